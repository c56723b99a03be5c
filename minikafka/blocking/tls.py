"""TLS of clients: PEM files as a context of Python's ``ssl``, and what is wrong when two ends do not agree."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minikafka.errors import InvalidConfig, in_words
from minikafka.types import Address

# How long a server that has closed a connection in plain text may take for a TLS handshake.
TLS_PROBE_S = 1.0
NEEDS_TLS = "the broker's listener needs TLS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The files with which a client connects. Tasks of Spark carry them, so they must be on every machine."""

    cafile: str | None = None
    """CAs that are trusted; None: those of the system."""
    certfile: str | None = None
    keyfile: str | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises InvalidConfig, as :func:`client_context`."""
        return client_context(cafile=self.cafile, certfile=self.certfile, keyfile=self.keyfile)


def client_context(*, cafile: str | None, certfile: str | None = None, keyfile: str | None = None) -> ssl.SSLContext:
    """Return the context of a client, which verifies the broker's certificate and that it is for the broker's host.

    Args:
        cafile: PEM file with the CAs that are trusted; None: those of the system.
        certfile: PEM file with the client's own certificate, for brokers that want one.
        keyfile: PEM file with its private key; None: the key is in ``certfile``.

    Raises:
        InvalidConfig: A file cannot be used; the setting is that of the native clients.
    """
    for name, path in (("ssl_cafile", cafile), ("ssl_certfile", certfile), ("ssl_keyfile", keyfile)):
        if path is not None and (Path(path).is_dir() or not os.access(path, os.R_OK)):
            raise InvalidConfig(f"{name}={path}: the file does not exist or cannot be read", setting=name)
    with reading_pem("ssl_cafile", cafile, "CA certificates in PEM are needed"):
        context = ssl.create_default_context(cafile=cafile)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certfile is not None:
        wanted = "a certificate and its unencrypted private key are needed, in PEM"
        with reading_pem("ssl_certfile", certfile, wanted):
            context.load_cert_chain(certfile, keyfile, password="")
    return context


@contextmanager
def reading_pem(name: str, path: str | None, wanted: str) -> Iterator[None]:
    """Raise InvalidConfig for a file of the setting ``name`` that cannot be read, or is not what is ``wanted``."""
    try:
        yield
    except ssl.SSLError as error:
        raise InvalidConfig(f"{name}={path}: {error.reason or 'not PEM'}; {wanted}", setting=name) from error
    except OSError as error:
        raise InvalidConfig(f"{name}={path}: cannot be read: {in_words(error)}", setting=name) from error


# Names of TLS alerts in OpenSSL's reasons.
_NO_CERTIFICATE = "CERTIFICATE_REQUIRED"
_ABOUT_CERTIFICATES = frozenset(
    "BAD_CERTIFICATE CERTIFICATE_EXPIRED CERTIFICATE_REVOKED CERTIFICATE_UNKNOWN DECRYPT_ERROR UNKNOWN_CA "
    "UNSUPPORTED_CERTIFICATE".split()
)


def tls_failure(error: ssl.SSLError) -> str:
    """What is wrong with a peer's TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not accepted: {error.verify_message}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return "the broker's listener is in plain text"
    if _alert(error) == _NO_CERTIFICATE:
        return "the broker requires a client certificate"
    if refuses_certificate(error):
        return f"the broker does not accept the client's certificate ({_alert(error)})"
    return error.reason or str(error)


def refuses_certificate(error: ssl.SSLError) -> bool:
    """Return True if the peer does not accept this end's certificate, or wants one."""
    return _alert(error) in {_NO_CERTIFICATE, *_ABOUT_CERTIFICATES}


def _alert(error: ssl.SSLError) -> str:
    return (error.reason or "").partition("_ALERT_")[2]


def speaks_tls(peer: Address, timeout_s: float) -> bool:
    """Return True if a server certainly uses TLS: it goes through a handshake, or answers one with an alert."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(peer, timeout=max(timeout_s, 0.001)) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return bool(_alert(error))
    except OSError:
        return False
