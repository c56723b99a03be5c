"""``minikafka certs``: what the certificates are good for, and that no file is overwritten by accident."""

from __future__ import annotations

import json
import os
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from minikafka.cli.root import root
from minikafka.config import parse_broker
from minikafka.errors import InvalidConfig
from minikafka.hosting.certificates import CertificateFolder
from minikafka.security.principals import PrincipalMapping
from minikafka.world.tls import server_context


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    """A CA, and a broker called localhost and 127.0.0.1."""
    made = CertificateFolder(tmp_path / "certs")
    made.make_ca()
    made.make_broker("broker-1", ["localhost", "127.0.0.1", "::1"])
    return made


def server(folder: CertificateFolder) -> ssl.SSLContext:
    """The context of a broker that requires client certificates."""
    config = parse_broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2",
            "ssl.keystore.location": str(folder.path("broker-1")),
            "ssl.truststore.location": str(folder.ca),
            "ssl.client.auth": "required",
        }
    ).config
    return server_context(config)


def client(folder: CertificateFolder, name: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder.ca))
    # Python 3.13 checks this by default: RFC 5280 to the letter.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if name is not None:
        context.load_cert_chain(folder.path(name))
    return context


def principal(server_side: ssl.SSLContext, client_side: ssl.SSLContext, host: str) -> str:
    """Shake hands in memory; return the principal that the server sees. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_side.wrap_bio(to_client, to_server, server_hostname=host),
        server_side.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    certificate = ends[1].getpeercert(binary_form=True)
    assert certificate is not None
    return PrincipalMapping().principal(certificate)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_client_and_broker_accept_each_other_by_name_and_by_address(folder: CertificateFolder, host: str):
    """Mutual TLS, and the principal is the subject as it was given."""
    made = folder.make_client("billing", subject="CN=billing,OU=finance,O=Example")
    assert made.subject == "CN=billing,OU=finance,O=Example"
    assert principal(server(folder), client(folder, "billing"), host) == "User:CN=billing,OU=finance,O=Example"
    # A broker calls brokers with its own certificate.
    assert principal(server(folder), client(folder, "broker-1"), host) == "User:CN=broker-1"


def test_another_name_and_another_ca_are_rejected(folder: CertificateFolder, tmp_path: Path):
    """The client verifies the name, both ends the CA, and a client's certificate does not make a server."""
    folder.make_client("billing")
    other = CertificateFolder(tmp_path / "other")
    other.make_ca()
    other.make_client("billing")
    stranger = client(folder)
    stranger.load_cert_chain(other.path("billing"))
    for context, host in (
        (client(folder, "billing"), "127.0.0.2"),
        (stranger, "localhost"),
        (client(folder), "localhost"),
    ):
        with pytest.raises(ssl.SSLError):
            principal(server(folder), context, host)
    impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    impostor.load_cert_chain(folder.path("billing"))
    with pytest.raises(ssl.SSLError):
        principal(impostor, client(folder, "billing"), "localhost")


def test_private_keys_are_readable_by_their_owner_only(folder: CertificateFolder):
    """Whatever the umask; clients of other users may read the CA's certificate."""
    before = os.umask(0)
    try:
        folder.make_ca(force=True)
        folder.make_client("billing")
    finally:
        os.umask(before)
    modes = {each.name: each.stat().st_mode & 0o777 for each in folder.folder.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": modes["ca.pem"], "broker-1.pem": 0o600, "billing.pem": 0o600}
    assert folder.folder.stat().st_mode & 0o777 == 0o700
    assert (modes["ca.pem"] & 0o133, modes["ca.pem"] & 0o444) == (0, 0o444)
    assert all((b"PRIVATE" in each.read_bytes()) == (each.name != "ca.pem") for each in folder.folder.iterdir())


def files(folder: CertificateFolder) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.folder.iterdir()}


def test_the_same_again_changes_nothing_and_anything_else_is_refused(folder: CertificateFolder, tmp_path: Path):
    """A script can run twice; a slip of the keyboard must not invalidate the certificates of a cluster."""
    folder.make_client("billing")
    before = files(folder)
    hosts = ["127.0.0.1", "localhost", "0:0:0:0:0:0:0:1"]
    assert not folder.make_ca().is_new
    assert not folder.make_broker("broker-1", hosts).is_new
    assert not folder.make_client("billing").is_new
    for make in (
        lambda: folder.make_ca("CN=other"),
        lambda: folder.make_broker("broker-1", ["localhost"]),
        lambda: folder.make_broker("broker-1", hosts, subject="CN=b"),
        lambda: folder.make_client("billing", subject="CN=b"),
        lambda: folder.make_client("broker-1"),
    ):
        with pytest.raises(InvalidConfig, match="--force"):
            make()
    assert files(folder) == before
    assert folder.make_ca(force=True).is_new
    with pytest.raises(InvalidConfig, match=r"not a certificate of CN=billing by .*--force"):
        folder.make_client("billing")
    assert folder.make_client("billing", force=True).is_new
    assert files(folder)["broker-1.pem"] == before["broker-1.pem"]


def test_a_broken_folder_is_refused_before_anything_is_written(folder: CertificateFolder):
    """An expired certificate, a key of another CA, a file that is none, a CA that is not there."""
    folder.make_client("old", days=0)
    with pytest.raises(InvalidConfig, match="has expired"):
        folder.make_client("old")
    folder.path("text").write_text("text", encoding="ascii")
    with pytest.raises(InvalidConfig, match="cannot be read as a certificate"):
        folder.make_client("text")
    for wrong in ("../escape", "b/../../escape", "ca", "CA", "", ".."):
        with pytest.raises(InvalidConfig, match="cannot be the name"):
            folder.make_client(wrong)
    for hosts in ([], ["a..b"], ["x" * 300]):
        with pytest.raises(InvalidConfig):
            folder.make_broker("b", hosts)
    with pytest.raises(InvalidConfig, match="not a subject"):
        folder.make_client("b", subject="billing")
    with pytest.raises(InvalidConfig, match="needs a subject"):
        folder.make_ca("", force=True)
    (folder.folder / "ca.pem").unlink()
    with pytest.raises(InvalidConfig, match="--force"):
        folder.make_ca()
    with pytest.raises(InvalidConfig, match="minikafka certs ca"):
        folder.make_client("b")
    assert not folder.path("b").exists()


def test_a_ca_key_that_does_not_fit_is_refused(folder: CertificateFolder):
    """Certificates that it signs would be rejected by everyone who trusts ca.pem."""
    key = folder.folder / "ca.key"
    key.write_bytes(folder.path("broker-1").read_bytes())
    with pytest.raises(InvalidConfig, match="is not the private key of"):
        folder.make_client("b")
    own = ec.generate_private_key(ec.SECP256R1())
    encrypted = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    for unusable in (b"text", encrypted):
        key.write_bytes(unusable)
        for make in (lambda: folder.make_client("b"), folder.make_ca):
            with pytest.raises(InvalidConfig, match="cannot be used as the CA's private key"):
                make()


def test_certificates_are_limited_to_their_purpose_and_to_the_life_of_their_ca(folder: CertificateFolder):
    """The CA signs no other CA, a client is no server under any name, and a clock may be some minutes behind."""
    made = folder.make_ca(days=2, force=True)
    assert folder.make_client("billing", days=365).not_after == made.not_after
    ca, billing = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (folder.ca, folder.path("billing")))
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert billing.not_valid_before_utc < datetime.now(UTC) - timedelta(minutes=4)
    impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    impostor.load_cert_chain(folder.path("billing"))
    careless = client(folder)
    careless.check_hostname = False
    with pytest.raises(ssl.SSLError):
        principal(impostor, careless, "localhost")


def test_an_expired_ca_signs_nothing(folder: CertificateFolder):
    """The error names the CA and the command that replaces it, also with --force, and no file is left."""
    folder.make_ca(days=0, force=True)
    before = files(folder)
    for force in (False, True):
        for name in ("broker-1", "b"):
            with pytest.raises(InvalidConfig, match=r"ca\.pem has expired; run `minikafka certs ca --dir .* --force`"):
                folder.make_client(name, force=force)
    assert files(folder) == before


def certs(*words: str) -> Result:
    return CliRunner().invoke(root, ["certs", *words])


def test_the_command_says_what_it_has_made(tmp_path: Path):
    """Text for people, JSON for scripts; exit code 2 and one sentence for what is refused."""
    where = ["--dir", str(tmp_path)]
    assert "ca.pem created: CN=minikafka CA, valid until" in certs("ca", *where).output
    said = json.loads(certs("broker", "b1", "--host", "localhost", "--host", "10.0.0.1", *where, "-o", "json").output)
    assert said["path"] == str(tmp_path / "b1.pem")
    assert (said["created"], said["subject"], said["hosts"]) == (True, "CN=b1", ["localhost", "10.0.0.1"])
    assert certs("client", "billing", *where).exit_code == 0
    assert "exists already: CN=billing" in certs("client", "billing", *where).output
    refused = certs("client", "billing", "--subject", "CN=x", *where)
    assert refused.exit_code == 2
    assert "use --force" in refused.output
    assert certs("client", "billing", "--subject", "CN=x", "--force", *where).exit_code == 0


def test_without_cryptography_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The package is optional: help works without it, and the command says how to install it."""
    monkeypatch.delitem(sys.modules, "minikafka.hosting.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert certs("ca", "--help").exit_code == 0
    refused = certs("ca", "--dir", str(tmp_path))
    assert refused.exit_code == 2
    assert "pip install cryptography" in refused.output


@pytest.mark.parametrize("host", ["kafka_1", "*.example.com", "käse.example.com", "10.0.0.1", "::1"])
def test_hosts_of_brokers_are_accepted(folder: CertificateFolder, host: str) -> None:
    """Names of compose services have underscores, and a wildcard serves several brokers."""
    assert folder.make_broker("broker-2", [host]).is_new


@pytest.mark.parametrize("host", ["", "bad host", "kafka-1:9092", "https://kafka-1", "a..b", "[::1]"])
def test_malformed_host_is_refused(folder: CertificateFolder, host: str) -> None:
    """A certificate for an address with its port would be made, and no client would accept it."""
    with pytest.raises(
        InvalidConfig, match="is neither a host name nor an IP address; give it without scheme and port"
    ):
        folder.make_broker("broker-2", [host])
    assert not folder.path("broker-2").exists()
