"""Hostile tests of TLS listeners with real handshakes: certificates that must not connect, and handshakes that never end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from minikafka.blocking.tls import client_context
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.hosting.certificates import CertificateFolder
from minikafka.testing.local_cluster import LocalCluster
from minikafka.testing.plugin import QUICK
from minikafka.world.tls_listener import HANDSHAKE_TIMEOUT_S

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
ATTEMPTS = 5
"""Of what must be faster than a time-out of the broker, on a machine that does other work too."""
HALF_HELLOS = 300
SETTINGS = {
    **QUICK,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]*)$/$1/,DEFAULT",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One broker that requires certificates and makes principals of common names."""
    with LocalCluster(1, config=SETTINGS, tls=True) as running:
        yield running


def forged(
    cluster: LocalCluster,
    folder: Path,
    name: str,
    *,
    days: int = 1,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    by: CertificateFolder | None = None,
    units: int = 0,
) -> str:
    """A client's file; signed by the cluster's own CA unless another one is given."""
    assert cluster.certificates is not None
    ca = by.ca if by is not None else cluster.certificates.ca
    issuer = x509.load_pem_x509_certificate(ca.read_bytes())
    signer = load_pem_private_key((ca.parent / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x" * 60)
    key, end = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC) + timedelta(days=days)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name), *[unit] * units]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=30))
        .not_valid_after(end)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    file = folder / "forged.pem"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)
    )
    return str(file)


def whoami(cluster: LocalCluster, file: str) -> dict[str, object]:
    """Whom the broker takes the owner of the certificate for."""
    assert cluster.certificates is not None
    context = client_context(cafile=str(cluster.certificates.ca), certfile=file)
    url = f"https://{cluster.bootstrap}/v1/whoami"
    with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as answer:
        return json.loads(answer.read())


def test_certificates_that_do_not_connect(cluster: LocalCluster, tmp_path: Path):
    """Hostile test 17: another CA of the same name, expired, for servers only; names that mean something else in ACLs."""
    other = CertificateFolder(tmp_path / "other")
    other.make_ca()  # its subject is that of the cluster's own
    refused = [
        {"name": "admin", "by": other},
        {"name": "admin", "days": -1},
        {"name": "admin", "usage": ExtendedKeyUsageOID.SERVER_AUTH},
        {"name": "*"},
        {"name": "ANONYMOUS"},
        {"name": "long", "units": 1000},
    ]
    for given in refused:
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)) as caught:
            whoami(cluster, forged(cluster, tmp_path, **given))  # type: ignore[arg-type]
        if isinstance(caught.value, urllib.error.HTTPError):
            caught.value.close()
    assert whoami(cluster, forged(cluster, tmp_path, "admin"))["super_user"] is True  # the form is right


def handshake(cluster: LocalCluster, file: str | None, version: ssl.TLSVersion) -> bytes:
    """What a client gets that connects with this certificate and asks something."""
    assert cluster.certificates is not None
    context = client_context(cafile=str(cluster.certificates.ca), certfile=file)
    context.maximum_version = version
    host, _, port = cluster.bootstrap.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        return connection.recv(100)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_refused_certificate_is_an_alert_and_no_disconnection(
    cluster: LocalCluster, tmp_path: Path, version: ssl.TLSVersion
):
    """Issue 18: each client's authentication error. Clients try again after a disconnection, and never say why."""
    other = CertificateFolder(tmp_path / "other")
    other.make_ca("CN=other CA")
    is_new = version == ssl.TLSVersion.TLSv1_3
    refused = {
        forged(cluster, tmp_path, "admin", by=other): "TLSV1_ALERT_UNKNOWN_CA",
        None: "TLSV13_ALERT_CERTIFICATE_REQUIRED" if is_new else "SSLV3_ALERT_HANDSHAKE_FAILURE",
    }
    for file, reason in refused.items():
        with pytest.raises(ssl.SSLError) as caught:
            handshake(cluster, file, version)
        assert caught.value.reason == reason
    assert handshake(cluster, forged(cluster, tmp_path, "admin"), version).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("0000001200120003000000010000")])
def test_what_is_no_tls_is_disconnected_at_once(cluster: LocalCluster, sent: bytes):
    """A client in plain text would read an alert as a frame or as a page."""
    host, _, port = cluster.bootstrap.partition(":")

    def is_disconnected() -> bool:
        with socket.create_connection((host, int(port)), timeout=HANDSHAKE_TIMEOUT_S / 2) as connection:
            try:
                connection.sendall(sent)
                assert connection.recv(100) == b""
            except TimeoutError:
                return False
            except ConnectionResetError:
                pass
            return True

    assert any(is_disconnected() for _ in range(ATTEMPTS))


@pytest.mark.parametrize("name", ["admin,OU=x", "admin\n", "admin\nO=x", " admin", "admin+O=x", "Admin"])
def test_names_that_look_like_a_super_user(cluster: LocalCluster, tmp_path: Path, name: str):
    """Hostile test 17: whatever the CA signs, it is another principal, or none."""
    try:
        found = whoami(cluster, forged(cluster, tmp_path, name))
    except urllib.error.HTTPError as error:
        error.close()
        return
    except (urllib.error.URLError, ssl.SSLError, ConnectionError):
        return
    assert found["super_user"] is False
    assert found["principal"] != "User:admin"


class Kept(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def outcomes_without_a_principal(cluster: LocalCluster, file: str) -> tuple[int, str, str]:
    """What the owner of a certificate learns: status and detail over HTTP, and the first line that librdkafka logs."""
    assert cluster.certificates is not None
    context = client_context(cafile=str(cluster.certificates.ca), certfile=file)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"https://{cluster.bootstrap}/v1/cluster", timeout=PATIENCE_S, context=context)
    with caught.value as refused:
        detail = json.load(refused)["detail"]
    kept = Kept()
    log = logging.getLogger("test.librdkafka")
    log.addHandler(kept)
    files = {"ssl.certificate.location": file, "ssl.key.location": file}
    producer = Producer(cluster.confluent_config() | files, logger=log)
    end = time.monotonic() + PATIENCE_S
    while not kept.lines and time.monotonic() < end:
        producer.poll(0.1)
    return refused.code, detail, kept.lines[0]


async def test_a_certificate_without_a_principal_is_an_authentication_error(tmp_path: Path):
    """Issue 18: clients learn why nothing is served, and the audit log has the certificate's name."""
    audit = tmp_path / "audit.log"
    rules = {"ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/", "mk.audit.path": str(audit)}
    with LocalCluster(1, config={**SETTINGS, **rules}, tls=True) as strict:
        file = forged(strict, tmp_path, "Ann 7")
        status, detail, said = await asyncio.to_thread(outcomes_without_a_principal, strict, file)
        assert status == 401
        assert "no rule of ssl.principal.mapping.rules matches 'CN=Ann 7'" in detail
        assert "SASL Authentication failed" in said
        assert whoami(strict, forged(strict, tmp_path, "ann"))["principal"] == "User:ann"
        entries = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
        failed = [each for each in entries if each["event"] == "client_authentication_failed"]
        assert failed
        assert "'CN=Ann 7'" in failed[0]["why"]


def test_the_log_says_why_a_handshake_failed(tmp_path: Path):
    """One line for each address: a client in plain text, over HTTP or Kafka's protocol, or without trust on either side."""
    audit = tmp_path / "audit.log"
    with LocalCluster(1, config={**SETTINGS, "mk.audit.path": str(audit)}, tls=True) as strict:
        assert strict.certificates is not None
        other = CertificateFolder(tmp_path / "other")
        other.make_ca("CN=other CA")
        known, trusted = forged(strict, tmp_path, "admin"), str(strict.certificates.ca)
        clients = {
            "the client does not use TLS": b"GET / HTTP/1.1\r\n\r\n",
            "the client does not use TLS ": bytes.fromhex("0000001200120003000000010000"),
            "the client has no certificate (ssl.client.auth=required)": client_context(cafile=trusted),
            "the client's certificate is not accepted: unable to get local issuer certificate": client_context(
                cafile=trusted, certfile=forged(strict, tmp_path, "admin", by=other)
            ),
            "the client refused: unknown ca": client_context(cafile=str(other.ca), certfile=known),
        }
        host, _, port = strict.bootstrap.partition(":")
        for number, client in enumerate(clients.values(), 1):
            source = (f"127.0.1.{number}", 0)
            with (
                contextlib.suppress(OSError),  # ssl.SSLError is one
                socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=source) as plain,
            ):
                if isinstance(client, bytes):
                    plain.sendall(client)
                    plain.recv(100)
                else:
                    with client.wrap_socket(plain, server_hostname=host) as connection:
                        connection.recv(100)
        deadline = time.monotonic() + PATIENCE_S
        said: dict[str, str] = {}
        while len(said) < len(clients) and time.monotonic() < deadline:
            time.sleep(0.05)
            entries = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
            said = {each["remote"]: each["why"] for each in entries if each["event"] == "tls_handshake_failed"}
    assert said == {f"127.0.1.{number}": why.strip() for number, why in enumerate(clients, 1)}


def closed_for_others(cluster: LocalCluster, file: str) -> float:
    """How many handshakes have ended because others waited."""
    assert cluster.certificates is not None
    context = client_context(cafile=str(cluster.certificates.ca), certfile=file)
    with urllib.request.urlopen(f"https://{cluster.bootstrap}/metrics", timeout=PATIENCE_S, context=context) as answer:
        refused = re.search(rb'refused_connections_total{setting="mk.tls.handshakes.max"} ([0-9.e+]+)', answer.read())
    assert refused is not None
    return float(refused[1])


async def test_half_a_client_hello_each(cluster: LocalCluster, tmp_path: Path):
    """Hostile test 11: handshakes that stop are closed after ten seconds, and a client is served meanwhile.

    The strangers have another address than the client, and leave handshakes for it: the broker has 64 under way.
    """
    host, _, port = cluster.bootstrap.partition(":")
    await asyncio.to_thread(cluster.sync.create_topic, "orders")

    def half_hello() -> socket.socket:
        connection = socket.create_connection((host, int(port)), PATIENCE_S, ("127.0.0.2", 0))
        connection.sendall(bytes.fromhex("1603010200010001fc0303"))
        return connection

    def produced() -> KafkaError | None:
        errors: list[KafkaError | None] = []
        producer = Producer(cluster.confluent_config())
        producer.produce("orders", b"tea", on_delivery=lambda error, _: errors.append(error))
        producer.flush(PATIENCE_S)
        return errors[0]

    def wait_for_ends(open_ones: list[socket.socket]) -> None:
        for connection in open_ones:
            with connection:
                try:
                    while connection.recv(4096):
                        pass
                except ConnectionResetError:
                    pass

    async def is_served_meanwhile() -> bool:
        began = time.monotonic()
        open_ones = [half_hello() for _ in range(HALF_HELLOS)]
        assert await asyncio.to_thread(produced) is None
        is_meanwhile = time.monotonic() - began < HANDSHAKE_TIMEOUT_S
        await asyncio.to_thread(wait_for_ends, open_ones)
        assert time.monotonic() - began < 2 * PATIENCE_S
        return is_meanwhile

    for _ in range(ATTEMPTS):
        if await is_served_meanwhile():
            break
    else:
        pytest.fail(f"the client was not served within {HANDSHAKE_TIMEOUT_S} s")
    assert await asyncio.to_thread(closed_for_others, cluster, forged(cluster, tmp_path, "admin")) > 0
