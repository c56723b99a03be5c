"""TLS listeners: Kafka clients and HTTP clients with right and wrong certificates, beside the brokers' plain listener."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from minikafka.config import parse_broker
from minikafka.errors import InvalidConfig
from minikafka.world.tls import server_context
from tests.certificates import authority, openssl, signed
from tests.e2e.listeners import running, two_free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.openssl]

PATIENCE_S = 60.0

LARGE = b"x" * 900_000
"""Fetched from a file: a plain listener would send it with sendfile."""


@dataclass(frozen=True)
class Certificates:
    """PEM files; ``ca`` has signed ``broker`` and ``client``, and another CA has signed ``stranger``."""

    ca: Path
    broker: Path
    client: Path
    stranger: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Certificates:
    """Certificates of two CAs, made once."""
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder, "ca")
    authority(folder, "other")
    return Certificates(
        folder / "ca.pem",
        signed(folder, "broker", by="ca"),
        signed(folder, "client", by="ca"),
        signed(folder, "stranger", by="other"),
    )


@asynccontextmanager
async def broker(made: Certificates, folder: Path, **settings: str) -> AsyncIterator[int]:
    """A broker whose listener CLIENTS uses TLS; yields that listener's port."""
    plain, port = two_free_ports()
    settings_of_broker = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CLIENTS://127.0.0.1:{port}",
        "advertised.listeners": f"CLIENTS://localhost:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SSL",
        "ssl.keystore.location": str(made.broker),
        "ssl.truststore.location": str(made.ca),
        "log.dirs": str(folder),
        "mk.log.level": "error",
        "mk.memory.tails.bytes": "0",
        "group.initial.rebalance.delay.ms": "0",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    async with running(settings_of_broker):
        yield port


def librdkafka(port: int, made: Certificates, *, cert: Path | None = None, **more: object) -> dict[str, object]:
    own = {} if cert is None else {"ssl.certificate.location": str(cert), "ssl.key.location": str(cert)}
    return {
        "bootstrap.servers": f"localhost:{port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(made.ca),
        "broker.address.family": "v4",
        "log_level": 0,
        **own,
        **more,
    }


def round_trip(settings: dict[str, object]) -> bytes:
    """Produce one large record and consume it in a group."""
    producer = Producer({**settings, "message.max.bytes": 2_000_000})
    producer.produce("orders", LARGE)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def first_error(settings: dict[str, object]) -> KafkaError:
    """What librdkafka reports first about its connections. The code of a failed handshake is either _SSL or _TRANSPORT,
    with the cause in the text, depending on which of its threads reports it.
    """
    errors: list[KafkaError] = []
    admin = AdminClient({**settings, "error_cb": errors.append})
    for _ in range(600):
        admin.poll(0.1)
        if errors:
            return errors[0]
    raise AssertionError("librdkafka has reported no error")


def context_of(made: Certificates, cert: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.ca))
    if cert is not None:
        context.load_cert_chain(cert)
    return context


def cluster_over_https(port: int, context: ssl.SSLContext, origin: str | None = None) -> dict[str, object]:
    headers = {} if origin is None else {"Origin": origin}
    request = urllib.request.Request(f"https://localhost:{port}/v1/cluster", headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
        return json.load(answer)


async def test_librdkafka_produces_and_consumes_over_tls(made, tmp_path):
    """A record from a log's file arrives whole: under TLS it must not bypass the encryption with sendfile."""
    async with broker(made, tmp_path) as port:
        assert await asyncio.to_thread(round_trip, librdkafka(port, made)) == LARGE


async def test_a_client_that_does_not_trust_the_ca_reports_a_tls_error(made, tmp_path):
    """The client must learn the cause, not only that it was disconnected."""
    async with broker(made, tmp_path) as port:
        settings = librdkafka(port, made, **{"ssl.ca.location": str(made.stranger.with_name("other.pem"))})
        assert "certificate verify failed" in (await asyncio.to_thread(first_error, settings)).str()


async def test_the_host_name_must_be_in_the_certificate(made, tmp_path):
    """A client that verifies names rejects a broker whose certificate is for another name."""
    async with broker(made, tmp_path) as port:
        settings = librdkafka(port, made, **{"bootstrap.servers": f"127.0.0.1:{port}"})
        assert "certificate verify failed" in (await asyncio.to_thread(first_error, settings)).str()


async def test_aiokafka_produces_and_consumes_over_tls(made, tmp_path):
    """The second client library, with Python's own TLS."""
    async with broker(made, tmp_path) as port:
        options = {"bootstrap_servers": f"localhost:{port}", "security_protocol": "SSL"}
        async with AIOKafkaProducer(ssl_context=context_of(made), **options) as producer:
            await producer.send_and_wait("orders", b"tea")
        async with AIOKafkaConsumer(
            "orders", ssl_context=context_of(made), auto_offset_reset="earliest", **options
        ) as consumer:
            assert (await consumer.getone()).value == b"tea"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_only_certificates_of_the_trusted_ca_connect_where_they_are_required(made, tmp_path, version):
    """mTLS: no certificate and one of another CA are rejected by librdkafka's and by Python's handshake."""
    async with broker(made, tmp_path, ssl_client_auth="required", ssl_enabled_protocols=version) as port:
        assert await asyncio.to_thread(round_trip, librdkafka(port, made, cert=made.client)) == LARGE
        assert (await asyncio.to_thread(cluster_over_https, port, context_of(made, made.client)))["brokers"]
        for wrong in (None, made.stranger):
            # uvloop ends a failed handshake without an alert, so librdkafka reports how the connection ended.
            error = await asyncio.to_thread(first_error, librdkafka(port, made, cert=wrong))
            assert error.code() in {KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
            # The client of TLS 1.3 learns it when it reads: as an alert, or as a connection that the broker has ended.
            with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(cluster_over_https, port, context_of(made, wrong))
            producer = AIOKafkaProducer(
                bootstrap_servers=f"localhost:{port}", security_protocol="SSL", ssl_context=context_of(made, wrong)
            )
            with pytest.raises(KafkaConnectionError):
                await producer.start()
            await producer.stop()


async def test_https_serves_v1_and_its_own_pages_only(made, tmp_path):
    """The gate compares a page's origin with https, not with http: either mistake would lock out or let in pages."""
    async with broker(made, tmp_path) as port:
        context = context_of(made)
        own = f"https://localhost:{port}"
        assert (await asyncio.to_thread(cluster_over_https, port, context, own))["brokers"]
        for foreign in (f"http://localhost:{port}", "https://evil.example"):
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                await asyncio.to_thread(cluster_over_https, port, context, foreign)
            refused.value.close()


async def test_plain_text_at_a_tls_port_is_closed_without_an_answer(made, tmp_path):
    """Neither HTTP nor Kafka frames are served in plain text there, and the listener goes on."""
    async with broker(made, tmp_path) as port:
        for sent in (b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert b"HTTP" not in await reader.read()
            writer.close()
        assert (await asyncio.to_thread(cluster_over_https, port, context_of(made)))["brokers"]


def config_with(**settings: str):
    return parse_broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    ).config


def test_files_that_cannot_be_used_are_refused_by_setting(made, tmp_path):
    """SECURITY 8.7, test 25: one sentence with the setting's name, at start; nothing of a key is in it."""
    readable = tmp_path / "readable.pem"
    shutil.copyfile(made.broker, readable)
    readable.chmod(0o644)
    mismatched = tmp_path / "mismatched.pem"
    mismatched.write_bytes(made.client.with_suffix(".key").read_bytes() + made.broker.with_suffix(".crt").read_bytes())
    mismatched.chmod(0o600)
    encrypted = tmp_path / "encrypted.pem"
    openssl(
        tmp_path, "pkcs8", "-topk8", "-in", str(made.broker.with_suffix(".key")), "-out", "encrypted.pem",
        "-passout", "pass:canary",
    )  # fmt: skip
    encrypted.write_bytes(encrypted.read_bytes() + made.broker.with_suffix(".crt").read_bytes())
    for path, said in (
        (readable, "every user of this machine may access the private key"),
        (mismatched, "KEY_VALUES_MISMATCH"),
        (encrypted, "an unencrypted private key"),
        (made.ca.with_name("missing.pem"), "cannot be read"),
    ):
        with pytest.raises(InvalidConfig, match=said) as raised:
            server_context(config_with(ssl_keystore_location=str(path)))
        assert raised.value.facts["setting"] == "ssl.keystore.location"
        assert "BEGIN" not in str(raised.value)
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(InvalidConfig, match="CA certificates in PEM are needed") as raised:
        server_context(
            config_with(
                ssl_keystore_location=str(made.broker), ssl_truststore_location=str(empty), ssl_client_auth="required"
            )
        )
    assert raised.value.facts["setting"] == "ssl.truststore.location"
