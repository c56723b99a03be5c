"""TLS of clients: PEM files as a context of Python's ``ssl``."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from minikafka.errors import InvalidConfig


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
        if path is not None and not os.access(path, os.R_OK):
            raise InvalidConfig(f"{name}={path}: the file does not exist or cannot be read", setting=name)
    try:
        context = ssl.create_default_context(cafile=cafile)
    except ssl.SSLError as error:
        raise InvalidConfig(
            f"ssl_cafile={cafile}: {error.reason or 'not PEM'}; CA certificates in PEM are needed", setting="ssl_cafile"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certfile is not None:
        try:
            context.load_cert_chain(certfile, keyfile, password="")
        except ssl.SSLError as error:
            raise InvalidConfig(
                f"ssl_certfile={certfile}: {error.reason or 'not PEM'}; a certificate and its unencrypted private key "
                "are needed, in PEM",
                setting="ssl_certfile",
            ) from error
    return context
