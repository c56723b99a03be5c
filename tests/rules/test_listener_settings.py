"""Settings of single listeners: SASL mechanisms, users of PLAIN in JAAS form, and which listeners may leave loopback."""

from __future__ import annotations

import pytest

from minikafka.config import parse_broker, to_settings
from minikafka.config.listeners import jaas_users
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import InvalidConfig

NAME = "listener.name.clients.plain.sasl.jaas.config"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
BASE = {
    "listeners": "BROKERS://127.0.0.1:1,CLIENTS://127.0.0.1:2",
    "inter.broker.listener.name": "BROKERS",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
}


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (f'{PLAIN} required user_ann="secret";', {"ann": "secret"}),
        (
            f'  {PLAIN}   required\n  username="admin" password="x"\n  user_ann="a" user_b.c-d@e="b" ; ',
            {"ann": "a", "b.c-d@e": "b"},
        ),
        (
            rf'{PLAIN} required user_ann="q\"uo\\te; user_eve=" user_bob=bare;',
            {"ann": 'q"uo\\te; user_eve=', "bob": "bare"},
        ),
        (f"{PLAIN} required;", {}),
    ],
)
def test_users_of_a_jaas_text(text: str, users: dict[str, str]) -> None:
    """As Kafka writes it; the broker's own username and password are not used."""
    assert jaas_users(NAME, text, "PLAIN")[0] == users


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        f'{PLAIN} required user_ann="hunter2"',
        f'{PLAIN} required user_ann="hunter2";;',
        f'{PLAIN} required user_ann="hunter2"; {PLAIN} required;',
        f'{PLAIN} requisite user_ann="hunter2";',
        f'{PLAIN} required user_ann="hunter2" user_ann="other";',
        f'{PLAIN} required user_ann="";',
        f'{PLAIN} required user_="hunter2";',
        f'{PLAIN} required user_ANONYMOUS="hunter2";',
        f'{PLAIN} required user_ann="hunter2;',
        f'{PLAIN} required user_ann=hun"ter2;',
        f"{PLAIN} required user_ann=hunter2=x;",
        f'{PLAIN} required serviceName="hunter2";',
        f'{PLAIN} requireduser_ann="hunter2";',
        f'{SCRAM} required user_ann="hunter2";',
    ],
)
def test_other_texts_are_refused_without_showing_them(text: str) -> None:
    """What is not understood must not be skipped: a user would be missing, or a password wrong."""
    with pytest.raises(InvalidConfig) as caught:
        jaas_users(NAME, text, "PLAIN")
    assert "hunter2" not in str(caught.value)
    assert caught.value.facts["setting"] == NAME


def test_users_of_scram_are_not_in_settings() -> None:
    """The broker's own login is accepted, as in a file for Kafka."""
    own = f'{SCRAM} required username="admin" password="x";'
    name = "listener.name.clients.scram-sha-256.sasl.jaas.config"
    config = parse_broker({**BASE, name: own}).config
    assert config.sasl_listeners["CLIENTS"].passwords == {}
    with pytest.raises(InvalidConfig, match="user_ann is not supported"):
        parse_broker({**BASE, name: f'{SCRAM} required user_ann="x";'})


def test_a_listener_s_setting_wins_over_that_of_all_listeners() -> None:
    """Both listeners of a broker may differ."""
    config = parse_broker(
        {
            **BASE,
            "listeners": "BROKERS://127.0.0.1:1,CLIENTS://127.0.0.1:2,SASL_PLAINTEXT://127.0.0.1:3",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.clients.sasl.enabled.mechanisms": "PLAIN , SCRAM-SHA-256",
            "connections.max.reauth.ms": "10",
            "listener.name.sasl_plaintext.connections.max.reauth.ms": "20",
            NAME: f'{PLAIN} required user_ann="secret";',
        }
    ).config
    clients, other = config.sasl_listeners["CLIENTS"], config.sasl_listeners["SASL_PLAINTEXT"]
    assert (clients.mechanisms, clients.reauthentication_ms_max) == (("PLAIN", "SCRAM-SHA-256"), 10)
    assert (other.mechanisms, other.reauthentication_ms_max) == (("SCRAM-SHA-512",), 20)
    assert (clients.passwords, other.passwords) == ({"ann": "secret"}, {})


def test_passwords_are_hidden() -> None:
    """In the text of the configuration, of its parts, and in its settings."""
    config = parse_broker({**BASE, NAME: f'{PLAIN} required user_ann="hunter2";'}).config
    shown = to_settings(config)
    assert shown[NAME] == "[hidden]"
    assert "hunter2" not in f"{config} {config!r} {shown} {config.sasl_listeners}"
    of_scram = "listener.name.clients.scram-sha-512.sasl.jaas.config"
    config_of_scram = parse_broker({**BASE, of_scram: f'{SCRAM} required username="a" password="hunter2";'}).config
    assert to_settings(config_of_scram)[of_scram] == "[hidden]"
    assert "hunter2" not in f"{config_of_scram!r} {config_of_scram.sasl_listeners}"
    changed = parse_broker({"log.retention.ms": "5"}, base=config).config
    assert changed.listener_overrides == config.listener_overrides


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "the mechanism 'GSSAPI' is not supported; use PLAIN, SCRAM-SHA-256"),
        ({"sasl.enabled.mechanisms": " , "}, "sasl.enabled.mechanisms is empty"),
        (
            {"listener.name.clients.sasl.enabled.mechanisms": "plain"},
            "listener.name.clients.sasl.enabled.mechanisms: the mechanism 'plain' is not supported",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "enables PLAIN, but the listener has no users"),
        ({"listener.name.clients.connections.max.reauth.ms": "-1"}, "a whole number"),
        ({"listener.name.clients.connections.max.reauth.ms": "1" * 19 + "9"}, "a whole number"),
        ({"listener.name.clients.connections.max.reauth.ms": "9" * 5_000}, "a whole number"),
        ({"listener.name.clients.connections.max.reauth.ms": str(2**63)}, "a whole number"),
        ({"listener.name.clients.max.connections": str(2**31)}, "a whole number"),
        (
            {"listener.name.other.sasl.enabled.mechanisms": "PLAIN"},
            "OTHER is no SASL listener; SASL listeners: CLIENTS",
        ),
        ({"listener.name.brokers.sasl.enabled.mechanisms": "PLAIN"}, "BROKERS is no SASL listener"),
        ({"listener.name.clients.ssl.keystore.location": "x"}, "unknown setting listener.name.clients.ssl"),
        ({"listener.name..sasl.enabled.mechanisms": "PLAIN"}, "unknown setting listener.name"),
        ({"inter.broker.listener.name": "CLIENTS"}, "listener CLIENTS uses SASL_PLAINTEXT, but a listener of brokers"),
        ({"controller.listener.names": "CLIENTS"}, "listener BROKERS uses PLAINTEXT, but a listener of brokers"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, str], said: str) -> None:
    """Each error names the setting."""
    with pytest.raises(InvalidConfig) as caught:
        parse_broker(BASE | settings)
    assert said in str(caught.value)


def test_numbers_of_a_listener_have_the_bounds_of_those_of_all_listeners() -> None:
    """A time is a long, a number of connections is an int."""
    lifetime, connections = "connections.max.reauth.ms", "max.connections"
    for prefix in ("", "listener.name.clients."):
        config = parse_broker({**BASE, prefix + lifetime: str(2**63 - 1), prefix + connections: str(2**31 - 1)}).config
        assert config.sasl_listeners["CLIENTS"].reauthentication_ms_max == 2**63 - 1
        assert (config.max_connections, config.connection_limits.get("CLIENTS", 2**31 - 1)) == (2**31 - 1, 2**31 - 1)


PROTOCOLS = "listener.security.protocol.map"
BROKERS_JAAS = "listener.name.ssl.plain.sasl.jaas.config"
TOGETHER = {
    "listeners": "SSL://0.0.0.0:1",
    "advertised.listeners": "SSL://kafka-1.example.com:1",
    "listener.security.protocol.map": "SSL:SASL_SSL",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
    BROKERS_JAAS: f'{PLAIN} required username="b1" password="hunter2" user_b1="hunter2" user_b2="x";',
    "ssl.keystore.location": "broker.pem",
    "ssl.truststore.location": "ca.pem",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:b1;User:b2",
}
"""One listener for brokers and clients, where brokers log in too."""


def test_brokers_log_in_to_each_other() -> None:
    """Kafka's settings; the password is in no text."""
    config = parse_broker(TOGETHER).config
    assert config.brokers_login == ("b1", "hunter2")
    assert "hunter2" not in f"{config!r} {to_settings(config)} {config.sasl_listeners}"
    assert parse_broker(BASE).config.brokers_login is None
    scram = {"listener.name.ssl.scram-sha-512.sasl.jaas.config": f'{SCRAM} required username="other" password="x";'}
    both = parse_broker(TOGETHER | scram).config
    assert both.brokers_login == ("b1", "hunter2"), "with PLAIN, also if the listener has a login of SCRAM"
    assert both.sasl_listeners["SSL"].passwords == {"b1": "hunter2", "b2": "x"}
    without_acls = {"authorizer.class.name": "", "super.users": "", "mk.insecure": "true"}
    assert parse_broker(TOGETHER | without_acls).config.brokers_login == ("b1", "hunter2")


@pytest.mark.parametrize(
    ("changes", "setting", "said"),
    [
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"},
            "sasl.mechanism.inter.broker.protocol",
            "brokers read only after they have logged in",
        ),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "sasl.mechanism.inter.broker.protocol", "with PLAIN only"),
        ({"listener.security.protocol.map": "SSL:SASL_PLAINTEXT", "mk.insecure": "true"}, PROTOCOLS, "use SASL_SSL"),
        (
            {"listeners": "SSL://0.0.0.0:1,C://127.0.0.1:2", "controller.listener.names": "C"},
            PROTOCOLS,
            "listener C uses PLAINTEXT",
        ),
        (
            {"sasl.enabled.mechanisms": "SCRAM-SHA-512"},
            "listener.name.ssl.sasl.enabled.mechanisms",
            "which is not among its mechanisms",
        ),
        ({BROKERS_JAAS: f'{PLAIN} required user_b1="x";'}, BROKERS_JAAS, "must have the options username and password"),
        (
            {BROKERS_JAAS: f'{PLAIN} required username="b1" password="y" user_b1="x";'},
            BROKERS_JAAS,
            "must have the options username and password",
        ),
        (
            {
                "listeners": "SSL://0.0.0.0:1,C://127.0.0.1:2",
                "listener.security.protocol.map": "SSL:SASL_SSL,C:SASL_SSL",
                "controller.listener.names": "C",
                "listener.name.c.plain.sasl.jaas.config": f'{PLAIN} required username="b2" password="x" user_b1="hunter2";',
            },
            "listener.name.c.plain.sasl.jaas.config",
            "the same at all listeners of brokers and controllers",
        ),
        ({"super.users": "User:admin"}, "super.users", "User:b1, as which this broker logs in, is missing"),
        ({"ssl.truststore.location": ""}, "ssl.truststore.location", "brokers call each other with TLS"),
    ],
)
def test_logins_of_brokers_that_cannot_work_are_refused(changes: dict[str, str], setting: str, said: str) -> None:
    """Before the start, by setting: later there would be nothing but timeouts. No error shows a password."""
    with pytest.raises(InvalidConfig, match=said) as caught:
        parse_broker(TOGETHER | changes)
    assert caught.value.facts["setting"] == setting
    assert "hunter2" not in str(caught.value)


TRUSTED = {"ssl.truststore.location": "ca.pem"}


def test_a_listener_beyond_loopback_must_encrypt_authenticate_and_authorize() -> None:
    """All three, or mk.insecure=true."""
    safe = {
        **BASE,
        "listeners": "BROKERS://127.0.0.1:1,CLIENTS://0.0.0.0:2",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL",
        "ssl.keystore.location": "broker.pem",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
    }
    assert parse_broker(safe).config.sasl_listeners["CLIENTS"]
    for unsafe in (
        {"listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT"},
        {"listener.security.protocol.map": "CLIENTS:SSL"},
        {"authorizer.class.name": ""},
        {"listeners": "BROKERS://10.0.0.1:1,CLIENTS://0.0.0.0:2"},
        {"listeners": "BROKERS://10.0.0.1:1,CLIENTS://0.0.0.0:2", "ssl.client.auth": "required", **TRUSTED},
    ):
        with pytest.raises(InvalidConfig, match="beyond loopback"):
            parse_broker(safe | unsafe)
        assert parse_broker(safe | unsafe | {"mk.insecure": "true"}).config.insecure


def test_testing_endpoints_stay_on_loopback() -> None:
    """Hostile test 25: they kill brokers and show everything. A network of one's own is another matter."""
    secured = {
        **BASE,
        "listeners": "BROKERS://127.0.0.1:1,CLIENTS://0.0.0.0:2",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL",
        "ssl.keystore.location": "broker.pem",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
        "mk.testing.endpoints.enable": "true",
    }
    with pytest.raises(InvalidConfig, match=r"mk\.testing\.endpoints\.enable=true, but CLIENTS listens") as caught:
        parse_broker(secured)
    assert caught.value.facts["setting"] == "mk.testing.endpoints.enable"
    assert parse_broker(secured | {"mk.insecure": "true"}).config.testing_endpoints_enable
    assert parse_broker(secured | {"listeners": "BROKERS://127.0.0.1:1,CLIENTS://127.0.0.1:2"}).config
