"""The security of a cluster on this machine: its certificates, what its brokers need, and the settings of each client.

Rules for this file:

1. A user is the same principal through every door: ``User:shop`` logs in with SASL, or has the certificate ``CN=shop``
   where Python's native clients call the listener of brokers.
2. Passwords are in settings of brokers and clients and nowhere else: not in an error, not in a log.
3. ``certificates.py`` is imported on use only: it needs the package ``cryptography``.
"""

from __future__ import annotations

import re
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import InvalidConfig, InvalidRequest
from minikafka.hosting.cluster_files import LOOPBACK
from minikafka.security.principals import NotAuthenticated, PrincipalMapping
from minikafka.security.scram import ITERATIONS_MIN
from minikafka.wire.acls import Acl, AclOperation, ResourceType

if TYPE_CHECKING:
    from minikafka.client.admin import AdminClient
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


PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
WITH_TLS: Final = frozenset({SSL, SASL_SSL})
WITH_SASL: Final = frozenset({SASL_PLAINTEXT, SASL_SSL})

BROKERS, CLIENTS = "BROKERS", "CLIENTS"
"""Names of the two listeners of a cluster whose clients log in."""

MECHANISM: Final = "SCRAM-SHA-512"
SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", MECHANISM)
PASSWORD_SIZE: Final = 18

_SAME_NAME: Final = "RULE:^CN=([A-Za-z0-9._@-]+)$/$1/,DEFAULT"
_USER: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_MODULES: Final = "org.apache.kafka.common.security"


class ClusterSecurity:
    """One security protocol for the clients of a cluster, its certificates, and its users with their passwords."""

    def __init__(self, protocol: str, users: Mapping[str, str], certificates: Callable[[], ClusterTls]) -> None:
        """Make the certificates, if the protocol needs them.

        Args:
            protocol: One of PROTOCOLS.
            users: Passwords by name, for a SASL protocol; ADMIN gets a drawn one if it is not among them.
            certificates: Returns those of the cluster.

        Raises:
            InvalidConfig: The protocol is unknown, a user cannot be one, or certificates cannot be made.
        """
        if protocol not in PROTOCOLS:
            raise InvalidConfig(f"security_protocol={protocol!r} is unknown; use one of {', '.join(PROTOCOLS)}")
        self.protocol = protocol
        self.uses_sasl = protocol in WITH_SASL
        if users and not self.uses_sasl:
            raise InvalidConfig(f"users need security_protocol='{SASL_SSL}' or '{SASL_PLAINTEXT}'; it is {protocol!r}")
        for name, password in users.items():
            if _USER.fullmatch(name) is None or not password:
                raise InvalidConfig(
                    f"the user {name!r} needs a password, and a name of letters, digits and . _ @ - (at most 100)"
                )
        self.certificates = certificates() if protocol in WITH_TLS else None
        """The CA and the certificates; None: the protocol uses no TLS."""
        drawn = {ADMIN: secrets.token_urlsafe(PASSWORD_SIZE)} if self.uses_sasl else {}
        self.passwords: Mapping[str, str] = {**drawn, **users}
        """By user: those of the users who exist when the cluster has started."""
        self._rules = "DEFAULT"

    # ---- brokers -----------------------------------------------------------------------------------------------------

    def broker_settings(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of all brokers by Kafka's names, for the caller's ``config``, which wins over them."""
        settings = dict(config)
        if self.uses_sasl:
            settings = {
                "inter.broker.listener.name": BROKERS,
                "listener.security.protocol.map": f"{BROKERS}:{self.brokers_protocol},{CLIENTS}:{self.protocol}",
                "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM_MECHANISMS)),
                f"listener.name.{CLIENTS.lower()}.plain.sasl.jaas.config": _jaas(
                    "plain.PlainLoginModule", {f"user_{name}": word for name, word in self.passwords.items()}
                ),
                "authorizer.class.name": STANDARD_AUTHORIZER,
                "ssl.principal.mapping.rules": _SAME_NAME,
                **settings,
            }
        self._rules = settings.get("ssl.principal.mapping.rules", self._rules)
        if self.certificates is not None:
            return self.certificates.settings(settings)
        if self.uses_sasl and settings["authorizer.class.name"]:
            others = filter(None, [settings.get("super.users")])
            settings["super.users"] = ";".join([self.principal(ADMIN), *others])
        return settings

    @property
    def brokers_protocol(self) -> str:
        """The protocol of the listener of brokers."""
        return SSL if self.protocol in WITH_TLS else PLAINTEXT

    def principal(self, name: str) -> str:
        """The principal of a user of this name, or of the certificate ``CN=name``. Raises InvalidConfig."""
        return f"User:{name}" if self.uses_sasl else f"User:{mapped_name(self._rules, name)}"

    async def add_users(self, admin: AdminClient) -> None:
        """Create the SCRAM credentials of all users; PLAIN has their passwords from the settings."""
        for name, password in self.passwords.items():
            for mechanism in SCRAM_MECHANISMS:
                await admin.set_user_password(name, password, mechanism, iterations=ITERATIONS_MIN)

    def acls(
        self, name: str, operations: Sequence[str], *, topic: str = "", group: str = "", transactional_id: str = ""
    ) -> list[Acl]:
        """Return ACLs that allow operations (Kafka's names; none: All) on each resource that is named.

        Raises:
            InvalidRequest: An operation is unknown, or no resource is named.
        """
        resources = {
            ResourceType.TOPIC: topic,
            ResourceType.GROUP: group,
            ResourceType.TRANSACTIONAL_ID: transactional_id,
        }
        if not any(resources.values()):
            raise InvalidRequest("no resource is named: give topic, group or transactional_id", member="topic")
        return [
            Acl(
                resource_type=kind,
                resource_name=resource,
                principal=self.principal(name),
                operation=_operation(each),
            )
            for kind, resource in resources.items()
            for each in operations or ("All",)
            if resource
        ]

    # ---- clients -----------------------------------------------------------------------------------------------------

    def native(self, bootstrap: str, name: str) -> dict[str, str]:
        """Parameters of minikafka's own clients; ``bootstrap`` has the addresses of the listener of brokers."""
        if self.certificates is None:
            return {"bootstrap_servers": bootstrap}
        return {
            "bootstrap_servers": bootstrap,
            "ssl_cafile": str(self.certificates.ca),
            "ssl_certfile": str(self.certificates.client(name)),
        }

    def librdkafka(self, bootstrap: str, name: str, mechanism: str) -> dict[str, str]:
        """Configuration of librdkafka's clients: confluent-kafka, kcat."""
        settings = {"bootstrap.servers": bootstrap, "security.protocol": self.protocol}
        if self.certificates is not None:
            settings["ssl.ca.location"] = str(self.certificates.ca)
        if self.uses_sasl:
            settings |= {
                "sasl.mechanism": mechanism,
                "sasl.username": name,
                "sasl.password": self.password(name),
            }
        elif self.certificates is not None:
            own = str(self.certificates.client(name))
            settings |= {"ssl.certificate.location": own, "ssl.key.location": own}
        return settings

    def java(self, bootstrap: str, name: str, mechanism: str) -> dict[str, str]:
        """Configuration of Java's clients and tools, as it stands in a file of properties."""
        settings = {"bootstrap.servers": bootstrap, "security.protocol": self.protocol}
        if self.certificates is not None:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.certificates.ca)}
        if self.uses_sasl:
            module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
            settings |= {
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": _jaas(module, {"username": name, "password": self.password(name)}),
            }
        elif self.certificates is not None:
            own = str(self.certificates.client(name))
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": own}
        return settings

    def aiokafka(self, bootstrap: str, name: str, mechanism: str) -> dict[str, Any]:
        """Parameters of aiokafka's clients."""
        settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "security_protocol": self.protocol}
        if self.certificates is not None:
            settings["ssl_context"] = context = ssl.create_default_context(cafile=str(self.certificates.ca))
            if not self.uses_sasl:
                context.load_cert_chain(str(self.certificates.client(name)))
        if self.uses_sasl:
            settings |= {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": name,
                "sasl_plain_password": self.password(name),
            }
        return settings

    def password(self, name: str) -> str:
        """The password of a user. Raises InvalidConfig if there is no such user."""
        try:
            return self.passwords[name]
        except KeyError:
            known = ", ".join(sorted(self.passwords)) or "none"
            raise InvalidConfig(
                f"this cluster has no user {name!r}, only {known}; name it in users={{{name!r}: 'its password'}}"
            ) from None


def _operation(name: str) -> AclOperation:
    known = {each.name.replace("_", "").lower(): each for each in AclOperation if each >= AclOperation.ALL}
    try:
        return known[name.replace("_", "").lower()]
    except KeyError:
        raise InvalidRequest(
            f"{name!r} is no operation; Kafka's names are Read, Write, ...", member="operation"
        ) from None


def _jaas(module: str, options: Mapping[str, str]) -> str:
    """A login module with its options, quoted as Java reads them."""
    texts = (f'{key}="{value}"' for key, value in ((k, re.sub(r'(["\\])', r"\\\1", v)) for k, v in options.items()))
    return f"{_MODULES}.{module} required {' '.join(texts)};"
