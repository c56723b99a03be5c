"""Certificates for the clusters that this package starts, and the way to the code that makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minikafka.errors import InvalidConfig
from minikafka.hosting.cluster_files import LOOPBACK
from minikafka.security.principals import NotAuthenticated, PrincipalMapping

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


BROKER, ADMIN = "broker", "admin"
"""Names of the certificates of all brokers of a local cluster, and of its own clients."""


class ClusterTls:
    """The certificates of a cluster on this machine, made when they are first asked for.

    All brokers share one certificate, for ``hosts``.
    """

    def __init__(self, folder: Path, hosts: Sequence[str] = ("localhost", LOOPBACK)) -> None:
        """Make the CA and the brokers' certificate, unless ``folder`` has them. Raises InvalidConfig."""
        self._folder = certificate_folder(folder)
        self._folder.make_ca()
        self._folder.make_broker(BROKER, hosts)

    @property
    def ca(self) -> Path:
        """The CA's certificate, in PEM: what clients must trust."""
        return self._folder.ca

    def client(self, name: str) -> Path:
        """Return a PEM file with the private key and the certificate of a client; its subject is ``CN=name``."""
        return self._folder.make_client(name).path

    def settings(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return settings of brokers by Kafka's names; with an authorizer, brokers and ADMIN become super users.

        Args:
            config: The caller's settings, which win over these, but for ``super.users``, which are joined.
        """
        settings = {
            "ssl.keystore.location": str(self._folder.path(BROKER)),
            "ssl.truststore.location": str(self.ca),
            "ssl.client.auth": "requested",
            **config,
        }
        if settings.get("authorizer.class.name"):
            rules = settings.get("ssl.principal.mapping.rules", "DEFAULT")
            own = [f"User:{mapped_name(rules, name)}" for name in (BROKER, ADMIN)]
            settings["super.users"] = ";".join([*own, *filter(None, [settings.get("super.users")])])
        return settings


def mapped_name(rules: str, name: str) -> str:
    """Name of the principal of the certificate ``CN=name``. Raises InvalidConfig if no rule matches."""
    try:
        return PrincipalMapping(rules).name(f"CN={name}")
    except NotAuthenticated as error:
        raise InvalidConfig(f"{error}; the cluster's own certificates need a rule that matches") from error
