"""Certificates in PEM files: a CA of one's own, and the certificates of brokers and clients that it signs.

Rules for this file:

1. It needs the package ``cryptography``: other modules open it by ``secured.certificate_folder``.
2. Files with a private key have mode 0600 from their first byte on. A file appears whole or not at all,
   also after a power failure.
3. An existing file is never overwritten unless the caller says so. A file that already has what is asked for is left
   unchanged, so that a script can be run again.
4. Keys are of curve P-256. Certificates of brokers are good for servers and clients, since brokers call each other.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

from minikafka.errors import InvalidConfig
from minikafka.hosting.cluster_files import replace_file
from minikafka.hosting.secured import CA_DAYS, DAYS
from minikafka.security.principals import PrincipalMapping

CA_FILE, CA_KEY = "ca.pem", "ca.key"

_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")

SKEW = timedelta(minutes=5)
"""Certificates are valid from this long ago on, for machines whose clocks are behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One certificate file."""

    path: Path
    subject: str
    """The DN in the form that principals have."""
    hosts: tuple[str, ...]
    not_after: datetime
    is_new: bool
    """False: it existed and has what was asked for."""


class CertificateFolder:
    """A folder with a CA (``ca.pem``, ``ca.key``) and the files ``NAME.pem``: a private key, then its certificate.

    Every method raises InvalidConfig, with what to do, if a file cannot be read or exists with other content, or if a
    value cannot be in a certificate.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ca(self) -> Path:
        """The CA's certificate: what clients trust."""
        return self.folder / CA_FILE

    def path(self, name: str) -> Path:
        """The file of a broker or client."""
        return self.folder / f"{name}.pem"

    def read(self, path: Path) -> Made:
        """Return the first certificate of a PEM file, made by whatever tool."""
        return _made(path, _certificate(path), is_new=False)

    def make_ca(self, subject: str = "CN=minikafka CA", *, days: int = CA_DAYS, force: bool = False) -> Made:
        """Make the CA. With ``force`` a new one replaces it: certificates of the old one must be made again."""
        name = _name(subject)
        if (self.ca.exists() or (self.folder / CA_KEY).exists()) and not force:
            found = _certificate(self.ca)
            _ = self._signer()
            return self._unchanged(self.ca, found, wanted=found.subject == name, what=f"a CA {subject}")
        key = _new_key()
        certificate = _signed(name, (), days, key, None)
        _make_folder(self.folder)
        replace_file(self.folder / CA_KEY, _pem(key), 0o600)
        replace_file(self.ca, _pem(certificate), 0o644)
        return _made(self.ca, certificate, is_new=True)

    def make_broker(
        self, name: str, hosts: Sequence[str], *, subject: str = "", days: int = DAYS, force: bool = False
    ) -> Made:
        """Make a broker's certificate, for all host names and IP addresses by which clients and brokers call it."""
        if not hosts:
            raise InvalidConfig(f"{name}: a broker's certificate needs the names and addresses by which it is called")
        return self._make(name, subject, tuple(hosts), days, force=force)

    def make_client(self, name: str, *, subject: str = "", days: int = DAYS, force: bool = False) -> Made:
        """Make a client's certificate; its subject is the client's principal."""
        return self._make(name, subject, (), days, force=force)

    def _make(self, name: str, subject: str, hosts: tuple[str, ...], days: int, *, force: bool) -> Made:
        if _FILE_NAME.fullmatch(name) is None or name.lower() == "ca":  # one file where case is ignored
            raise InvalidConfig(f"{name!r} cannot be the name of a certificate file; use letters, digits and hyphens")
        path, given = self.path(name), subject or f"CN={name}"
        issuer = self._signer()
        if issuer[1].not_valid_after_utc <= datetime.now(UTC):
            raise InvalidConfig(
                f"{self.ca} has expired; run `minikafka certs ca --dir {self.folder} --force`, then make all "
                "certificates again, with --force"
            )
        if path.exists() and not force:
            found = _certificate(path)
            wanted = (
                found.subject == _name(given)
                and set(_hosts(found)) == {str(_general_name(each).value) for each in hosts}
                and _is_by(found, issuer[1])
            )
            of = f" for {', '.join(hosts)}" if hosts else ""
            return self._unchanged(path, found, wanted=wanted, what=f"a certificate of {given}{of} by {self.ca}")
        key = _new_key()
        certificate = _signed(_name(given), hosts, days, key, issuer)
        replace_file(path, _pem(key) + _pem(certificate), 0o600)
        return _made(path, certificate, is_new=True)

    def _unchanged(self, path: Path, found: x509.Certificate, *, wanted: bool, what: str) -> Made:
        """Return the unchanged file if it is what was asked for."""
        if not wanted or found.not_valid_after_utc <= datetime.now(UTC):
            why = "has expired" if wanted else f"is not {what}"
            raise InvalidConfig(f"{path} exists and {why}; use --force to replace it, or choose another name")
        return _made(path, found, is_new=False)

    def _signer(self) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
        """Key and certificate of the CA."""
        key_path = self.folder / CA_KEY
        if not self.ca.exists():
            raise InvalidConfig(f"{self.ca} does not exist; run `minikafka certs ca --dir {self.folder}` first")
        certificate = _certificate(self.ca)
        try:
            key = load_pem_private_key(key_path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise InvalidConfig(f"{key_path} cannot be used as the CA's private key: {type(error).__name__}") from error
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise InvalidConfig(f"{key_path} is not the private key of {self.ca}")
        return key, certificate


def _new_key() -> EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(subject: str) -> x509.Name:
    """``CN=billing,O=Example``, most specific part first, as an X.509 name."""
    try:
        name = x509.Name.from_rfc4514_string(subject)
    except ValueError as error:
        raise InvalidConfig(f"{subject!r} is not a subject; write it as CN=billing,O=Example") from error
    if not name.rdns:
        raise InvalidConfig("a certificate needs a subject, such as CN=billing")
    return name


def _signed(
    name: x509.Name,
    hosts: tuple[str, ...],
    days: int,
    key: EllipticCurvePrivateKey,
    issuer: tuple[EllipticCurvePrivateKey, x509.Certificate] | None,
) -> x509.Certificate:
    """A certificate; of a CA if ``issuer`` is None, of a broker if it has hosts."""
    is_ca = issuer is None
    by_key, by_name = (key, name) if issuer is None else (issuer[0], issuer[1].subject)
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        # A certificate that outlives its CA would fail without a word of its own.
        .not_valid_after(end if issuer is None else min(end, issuer[1].not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(_key_usage(is_ca=is_ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by_key.public_key()), critical=False)
    )
    if not is_ca:
        usages = [Usage.SERVER_AUTH, Usage.CLIENT_AUTH] if hosts else [Usage.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(each) for each in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(by_key, hashes.SHA256())


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if _HOST_NAME.fullmatch(name) is None:
        raise InvalidConfig(f"{host!r} is neither a host name nor an IP address; give it without scheme and port")
    return x509.DNSName(name)


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    """Names and addresses that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(each.value) for each in names)


def _is_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"{path} cannot be read as a certificate in PEM; use --force to replace it") from error


def _pem(what: EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    if isinstance(what, x509.Certificate):
        return bytes(what.public_bytes(Encoding.PEM))
    return bytes(what.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _made(path: Path, certificate: x509.Certificate, *, is_new: bool) -> Made:
    principal = PrincipalMapping().principal(certificate.public_bytes(Encoding.DER))
    return Made(
        path=path,
        subject=principal.removeprefix("User:"),
        hosts=_hosts(certificate),
        not_after=certificate.not_valid_after_utc,
        is_new=is_new,
    )


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
