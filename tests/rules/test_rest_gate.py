"""Who may ask (web/gate.py): DNS rebinding and pages of other origins, told from curl, clients and brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.config import BrokerConfig, parse_broker
from minikafka.errors import InvalidConfig
from minikafka.web.gate import Asked, Gate

COMPOSE = {
    "listeners": "PLAINTEXT://:19092,PLAINTEXT_HOST://:9092",
    "advertised.listeners": "PLAINTEXT://kafka-1:19092,PLAINTEXT_HOST://mk.corp.example:29092",
    "controller.quorum.voters": "1@voter-1.corp.example:9093",
    "mk.insecure": "true",
}


def gate_of(listener: str = "127.0.0.1", **settings: str) -> Gate:
    return Gate.of(parse_broker({name.replace("_", "."): each for name, each in settings.items()}).config).at(listener)


def status(gate: Gate, method: str = "POST", host: str = "127.0.0.1:9092", **more) -> int:
    refused = gate.refusal(Asked(method=method, hosts=[host], **more))
    return 200 if refused is None else refused.status


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:9092", "127.0.0.1", "10.1.2.3:9092", "[::1]:9092", "localhost:9092", "LocalHost.", "a.localhost:1"],
)
def test_addresses_and_loopback_names_are_known(host: str):
    """No page's owner can let them point anywhere."""
    assert status(Gate(), host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:9092", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "kafka-1", "x.local"],
)
def test_other_names_are_unknown_on_loopback_whatever_the_method(host: str):
    """Rebinding reads data too: GET is no exception."""
    for method in ("GET", "POST", "OPTIONS"):
        refused = Gate().at("127.0.0.1").refusal(Asked(method=method, hosts=[host]))
        assert refused is not None
        assert (refused.status, refused.members["setting"]) == (403, "mk.http.allowed.hosts")
        assert "mk.http.allowed.hosts" in refused.error.message


def test_beyond_loopback_names_that_no_page_can_own_are_known():
    """Compose's and Kubernetes' names; a name of the public DNS must be said, as advertised.listeners says it."""
    config = parse_broker(COMPOSE).config
    gate = Gate.of(config).at("0.0.0.0")
    for host in ("kafka-1:19092", "broker-1", "mk_broker_1:9092", "mk-0.mk.default.svc.cluster.local", "a.internal"):
        assert status(gate, host=host) == 200
    for host in ("mk.corp.example:29092", "voter-1.corp.example:9093", "MK.corp.example."):
        assert status(gate, host=host) == 200
    assert status(gate, host="evil.example:29092") == 403
    assert status(gate, host="kafka-1.evil.example:29092") == 403
    assert status(Gate.of(config).at("127.0.0.1"), host="kafka-1:19092") == 200  # it is advertised


def test_more_names_may_be_allowed():
    """mk.http.allowed.hosts: a name, all below one, or any."""
    gate = gate_of(mk_http_allowed_hosts="A.example, .b.example")
    assert [status(gate, host=each) for each in ("a.example:1", "x.y.b.example", "b.example", "x.a.example")] == [
        200,
        200,
        403,
        403,
    ]
    assert status(gate_of(mk_http_allowed_hosts="*"), host="whatever.example") == 200


@pytest.mark.parametrize(
    "host", ["", "a b", "a/b", "user@127.0.0.1", "127.0.0.1:9092:1", "a:port", "[::1", "ä.example"]
)
def test_what_is_no_host_is_400(host: str):
    """RFC 9112, 3.2: an invalid field value."""
    assert status(gate_of(mk_http_allowed_hosts="*"), host=host) == 400


def test_one_host_is_needed_by_http_1_1():
    """RFC 9112, 3.2; whoever speaks 1.0 is no browser."""
    for hosts, needs, answer in (([], True, 400), (["a", "b"], True, 400), (["localhost"] * 2, False, 400)):
        refused = Gate().refusal(Asked(method="GET", hosts=hosts, needs_host=needs))
        assert refused is not None
        assert refused.status == answer
    assert Gate().refusal(Asked(method="GET", hosts=[], needs_host=False)) is None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:3000", "http://localhost:9092", "127.0.0.1:9092", ""]
)
def test_what_a_page_of_another_origin_sends_is_refused(method: str, origin: str):
    """CSRF: a form or a text is sent without asking. Another port is another origin, and so is another name. Of a GET
    the page could tell the status, and it could hold all the streams that there are.
    """
    refused = Gate().refusal(Asked(method=method, hosts=["127.0.0.1:9092"], origin=origin))
    assert refused is not None
    assert (refused.status, refused.members["setting"]) == (403, "mk.http.allowed.origins")
    assert "mk.http.allowed.origins" in refused.error.message


def test_own_pages_and_links_are_not_refused():
    """/docs is of the broker's own origin; a link to it may stand anywhere, but not in a frame, and not on a POST."""
    assert status(Gate(), origin="http://127.0.0.1:9092", site="same-origin") == 200
    assert status(Gate(), host="LOCALHOST:9092", origin="HTTP://localhost:9092") == 200
    assert status(Gate(), "GET", site="cross-site", is_link=True) == 200
    assert status(Gate(), "GET", site="cross-site") == 403
    assert status(Gate(), "GET", site="cross-site", is_link=True, origin="http://evil.example") == 403
    assert status(Gate(), "POST", site="cross-site", is_link=True) == 403
    assert status(Gate(), "GET", site="cross-site", is_link=True, host="evil.example") == 403


@pytest.mark.parametrize("site", [None, "same-origin", "cross-site"])
@pytest.mark.parametrize("scheme", ["https", "ws", "file", "chrome-extension", ""])
def test_the_scheme_belongs_to_the_origin(scheme: str, site: str | None):
    """RFC 6454: https://host is another origin than http://host, and a broker speaks http only."""
    origin = f"{scheme}://127.0.0.1:9092"
    assert status(Gate(), origin=origin, site=site) == 403
    allowed = gate_of(mk_http_allowed_origins="https://127.0.0.1:9092")
    assert status(allowed, origin=origin, site=site) == (200 if scheme == "https" else 403)


@pytest.mark.parametrize(
    "site,answer", [("cross-site", 403), ("same-site", 403), ("made-up", 403), ("same-origin", 200), ("none", 200)]
)
def test_sec_fetch_site_counts_without_an_origin(site: str, answer: int):
    """What a browser says of itself is believed when it speaks against the request."""
    assert status(Gate(), site=site) == answer
    assert status(Gate(), site=site, origin="http://127.0.0.1:9092") == answer


def test_allowed_origins_may_send_and_read():
    """The allow-list: preflights are answered, and answers can be read; caches are told that they differ."""
    gate = gate_of(mk_http_allowed_origins="http://UI.example:5173, https://b.example")
    origin = "http://ui.example:5173"
    assert status(gate, origin=origin, site="cross-site") == 200
    assert status(gate, "OPTIONS", origin=origin, asks_before=True) == 200
    assert gate.sharing(origin)["Access-Control-Allow-Origin"] == origin
    for foreign in ("http://ui.example", "https://ui.example:5173", "null", "http://b.example"):
        assert status(gate, origin=foreign) == 403
        assert status(gate, "OPTIONS", origin=foreign, asks_before=True) == 403
        assert gate.sharing(foreign) == {"Vary": "Origin"}
    assert Gate().sharing(origin) == {}
    assert status(gate, host="evil.example", origin=origin) == 403


@pytest.mark.parametrize(
    "name,text",
    [
        ("mk.http.allowed.hosts", "http://a.example"),
        ("mk.http.allowed.hosts", "a.example:9092"),
        ("mk.http.allowed.hosts", "*.example"),
        ("mk.http.allowed.origins", "*"),
        ("mk.http.allowed.origins", "null"),
        ("mk.http.allowed.origins", "a.example"),
        ("mk.http.allowed.origins", "http://a.example/"),
    ],
)
def test_settings_that_could_never_match_are_refused(name: str, text: str):
    """Bad input is named, with what is needed."""
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        parse_broker({name: text})


def test_a_name_in_another_script_is_known_as_it_is_sent():
    """Clients send it as IDNA; one that nobody could send is refused at the start."""
    config = BrokerConfig(advertised_listeners="PLAINTEXT://bücher.example:9092")
    assert status(Gate.of(config), host="xn--bcher-kva.example:9092") == 200
    with pytest.raises(InvalidConfig, match="no host name"):
        Gate.of(BrokerConfig(advertised_listeners="PLAINTEXT://" + "ü" * 70 + ":9092"))


def test_credentials_in_plain_text_are_refused_beyond_loopback():
    """Hostile test 20: others could read them. The setting allows it; TLS and loopback need none."""
    assert status(gate_of("127.0.0.1"), authorizations=1) == 200
    assert status(gate_of("10.0.0.7"), authorizations=1) == 403
    assert status(gate_of("10.0.0.7")) == 200
    assert status(replace(gate_of("10.0.0.7"), scheme="https"), authorizations=1) == 200
    assert status(gate_of("10.0.0.7", mk_http_plain_credentials="true"), authorizations=1) == 200


@pytest.mark.parametrize("name", ["token", "access_token", "password"])
def test_credentials_in_the_address_are_refused(name: str):
    """Hostile test 20: addresses are logged, by browsers and proxies too."""
    refused = Gate().refusal(Asked(method="GET", hosts=["localhost"], query_names=["offset", name]))
    assert refused is not None
    assert (refused.status, f"{name!r}" in refused.error.message) == (400, True)


def test_two_authorization_headers_are_refused():
    """Hostile test 20: a proxy may have looked at the other one."""
    assert status(Gate(), authorizations=2) == 400


def test_an_origin_is_refused_before_credentials_are_looked_at():
    """Hostile test 21: a page may not learn whether a password is right."""
    for site in ({"origin": "http://evil.example"}, {"site": "cross-site"}):
        assert status(Gate(), authorizations=1, **site) == 403
