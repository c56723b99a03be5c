"""The native clients over TLS: records, wrong certificates, and what they report about them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from minikafka import AdminClient, Consumer, NewTopic, Producer
from minikafka.config import parse_broker
from minikafka.errors import NetworkException
from minikafka.hosting.certificates import CertificateFolder
from minikafka.hosting.local_broker import LocalBroker
from tests.e2e.test_tls import LARGE, Certificates, broker

pytestmark = [pytest.mark.e2e]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Certificates:
    """The broker's certificate is for localhost and not for 127.0.0.1."""
    folder, other = (CertificateFolder(tmp_path_factory.mktemp(name)) for name in ("certs", "other"))
    for each in (folder, other):
        each.make_ca()
        each.make_client("client")
    folder.make_broker("broker", ["localhost"])
    return Certificates(folder.ca, folder.path("broker"), folder.path("client"), other.path("client"))


def options(port: int, made: Certificates, cert: Path | None = None) -> dict[str, object]:
    own = {} if cert is None else {"ssl_certfile": str(cert)}
    return {"bootstrap_servers": f"localhost:{port}", "ssl_cafile": str(made.ca), **own}


async def test_records_go_both_ways_with_client_certificates(made, tmp_path):
    """Producer, group, and admin client; large bodies, so that reading continues over many TLS records."""
    async with broker(made, tmp_path, ssl_client_auth="required") as port:
        settings = options(port, made, made.client)
        async with AdminClient(**settings) as admin:
            await admin.create_topics([NewTopic("orders", 3, 1)])
        async with Producer(**settings) as producer:
            sent = [await producer.send("orders", LARGE, partition=number % 3) for number in range(12)]
            await asyncio.gather(*sent)
        async with Consumer("orders", group_id="g", auto_offset_reset="earliest", **settings) as consumer:
            found = []
            while len(found) < len(sent):
                found += [each for batch in (await consumer.getmany(timeout_ms=1000)).values() for each in batch]
            await consumer.commit()
        assert [each.value for each in found] == [LARGE] * len(sent)


async def test_https_in_bootstrap_servers_and_a_context_of_ones_own(made, tmp_path):
    """The scheme turns TLS on, and a context takes the place of the files."""
    async with broker(made, tmp_path) as port:
        context = ssl.create_default_context(cafile=str(made.ca))
        async with Producer(bootstrap_servers=f"https://localhost:{port}", ssl_context=context) as producer:
            await producer.send_and_wait("orders", b"tea")


@pytest.mark.parametrize(
    ("host", "trusted", "said"),
    [
        ("127.0.0.1", "ca", "the broker's certificate is not accepted: IP address mismatch"),
        ("localhost", "other", "the broker's certificate is not accepted: unable to get local issuer certificate"),
    ],
)
async def test_a_broker_that_is_not_trusted_is_reported_with_the_reason(made, tmp_path, caplog, host, trusted, said):
    """Not as a broker that does not answer; nothing was sent to it."""
    ca = made.ca if trusted == "ca" else made.stranger.with_name("ca.pem")
    async with broker(made, tmp_path) as port:
        settings = {"bootstrap_servers": f"{host}:{port}", "ssl_cafile": str(ca), "default_api_timeout_ms": 1000}
        with caplog.at_level(logging.WARNING, "minikafka.client"), pytest.raises(NetworkException):
            async with AdminClient(**settings) as admin:
                await admin.describe_topics()
    assert said in caplog.text


async def fails(**settings: object) -> str:
    """The error of a client that gives up after a second."""
    with pytest.raises(NetworkException) as raised:
        async with AdminClient(**settings, default_api_timeout_ms=1000) as admin:
            await admin.describe_topics()
    return str(raised.value)


async def test_a_missing_or_wrong_client_certificate_ends_the_connection(made, tmp_path):
    """Where certificates are required nothing is answered; over TLS 1.3 the client learns it after its handshake."""
    async with broker(made, tmp_path, ssl_client_auth="required") as port:
        # Time does not mend it, so it is not tried again.
        assert "the broker requires a client certificate (1 attempt)" in await fails(**options(port, made, None))
        refused = "the broker does not accept the client's certificate (UNKNOWN_CA) (1 attempt)"
        assert refused in await fails(**options(port, made, made.stranger))


async def test_plain_text_and_tls_do_not_meet(made, tmp_path):
    """Each of the two clients reports it at once; the plain one had tried for 15 s in a command, and for 60 s in a program."""
    async with broker(made, tmp_path) as port:
        with pytest.raises(NetworkException, match=r"the broker's listener needs TLS \(1 attempt\); check"):
            await AdminClient(bootstrap_servers=f"localhost:{port}", default_api_timeout_ms=60_000).start()
    node = LocalBroker(parse_broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "2")}).config)
    await node.start()
    try:
        with pytest.raises(NetworkException, match=r"the broker's listener is in plain text \(1 attempt\); check"):
            await AdminClient(**options(node.address.port, made), default_api_timeout_ms=60_000).start()
    finally:
        await node.stop()
