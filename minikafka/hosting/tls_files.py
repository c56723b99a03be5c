"""Certificates for the clusters that this package starts, and the way to the code that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from minikafka.errors import InvalidConfig

if TYPE_CHECKING:
    from minikafka.hosting.certificates import CertificateFolder

CA_DAYS, DAYS = 3650, 365
"""How long a CA and a certificate are valid, unless the caller says otherwise."""


def certificate_folder(folder: Path) -> CertificateFolder:
    """Return a folder in which certificates can be made. Raises InvalidConfig if ``cryptography`` is not installed."""
    try:
        from minikafka.hosting.certificates import CertificateFolder  # noqa: PLC0415 - it needs an extra
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        raise InvalidConfig(
            "making certificates needs the package cryptography; install it with `pip install cryptography`"
        ) from error
    return CertificateFolder(folder)
