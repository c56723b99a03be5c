"""A list of revoked certificates in the trust store is used, in handshakes over memory."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from minikafka.config import BrokerConfig
from minikafka.hosting.certificates import CertificateFolder
from minikafka.world.tls import broker_context, server_context


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    """A CA, a broker and two clients."""
    made = CertificateFolder(tmp_path)
    made.make_ca()
    made.make_broker("broker", ("localhost",))
    for name in ("ann", "bob"):
        made.make_client(name)
    return made


def revoked(folder: CertificateFolder, path: Path, *, days: int = 1) -> bytes:
    """The CA's list, on which a certificate stands; it is valid for so many days."""
    ca = x509.load_pem_x509_certificate(folder.ca.read_bytes())
    key = load_pem_private_key((folder.ca.parent / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    lost = x509.load_pem_x509_certificates(path.read_bytes()[path.read_bytes().index(b"-----BEGIN CERTIFICATE") :])[0]
    now = datetime.now(UTC)
    entry = x509.RevokedCertificateBuilder().serial_number(lost.serial_number).revocation_date(now).build()
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.subject)
        .last_update(now - timedelta(days=2))
        .next_update(now + timedelta(days=days))
        .add_revoked_certificate(entry)
    )
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def settings(folder: CertificateFolder) -> BrokerConfig:
    """Of a broker that requires certificates."""
    return BrokerConfig(
        ssl_keystore_location=str(folder.path("broker")),
        ssl_truststore_location=str(folder.ca),
        ssl_client_auth="required",
    )


def handshake(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> None:
    """Raise ssl.SSLError if one of both refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = ssl.SSLContext.wrap_bio(server_side, to_server, to_client, server_side=True)
    for _ in range(6):
        for each in (client, server):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
    server.do_handshake()


def client_of(folder: CertificateFolder, name: str) -> ssl.SSLContext:
    """TLS of a client with its certificate."""
    context = ssl.create_default_context(cafile=str(folder.ca))
    context.load_cert_chain(folder.path(name))
    return context


def test_a_revoked_client_does_not_connect(folder: CertificateFolder):
    """Others do, and so does the revoked one without the list."""
    clients = {name: client_of(folder, name) for name in ("ann", "bob")}
    for each in clients.values():
        handshake(server_context(settings(folder)), each)
    folder.ca.write_bytes(folder.ca.read_bytes() + revoked(folder, folder.path("bob")))
    server = server_context(settings(folder))
    handshake(server, clients["ann"])
    with pytest.raises(ssl.SSLError, match="revoked"):
        handshake(server, clients["bob"])


def test_a_revoked_broker_is_not_called(folder: CertificateFolder):
    """By another broker, which has the list."""
    config = settings(folder)
    server = server_context(config)
    handshake(server, broker_context(config))
    folder.ca.write_bytes(folder.ca.read_bytes() + revoked(folder, folder.path("broker")))
    with pytest.raises(ssl.SSLError, match="revoked"):
        handshake(server, broker_context(config))


def test_with_a_list_that_has_expired_nobody_connects(folder: CertificateFolder):
    """It may lack certificates that were revoked since."""
    ann = client_of(folder, "ann")
    folder.ca.write_bytes(folder.ca.read_bytes() + revoked(folder, folder.path("bob"), days=-1))
    with pytest.raises(ssl.SSLError, match="CRL has expired"):
        handshake(server_context(settings(folder)), ann)
