"""What ``minikafka doctor`` looks for in the security of brokers: listeners, certificates, administrators, ACLs, users.

The checks are pure functions of facts, as those of ``doctor_checks``; :func:`security_of` gathers the facts of one
broker's settings and of the files that they name on this machine.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from minikafka.addresses import SASL_PROTOCOLS, TLS_PROTOCOLS, is_loopback
from minikafka.cli.doctor_checks import ERROR, NOTE, WARNING, Finding
from minikafka.config import BrokerConfig, table
from minikafka.config.setting import parsed_value
from minikafka.errors import InvalidConfig, in_words
from minikafka.hosting.tls_files import certificate_folder
from minikafka.security.scram import ITERATIONS_DEFAULT

DAY_S = 86_400
DAYS_LOW = 30
"""A certificate that ends sooner is a warning: a new one takes an order, and a round through all brokers."""

OTHERS = 0o007
"""Permissions of users that are neither a file's owner nor in its group."""

SETTINGS = (
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "controller.listener.names",
    "authorizer.class.name",
    "super.users",
    "ssl.client.auth",
)
"""Names of the settings by which a broker is judged that runs elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """A PEM file that a setting names, or a certificate that a broker has shown (``path`` empty)."""

    path: str = ""
    setting: str = ""
    trouble: str = ""
    """Why it cannot be used; empty: it can."""
    seconds_left: float | None = None
    """Until it ends; None: not known."""
    hosts: frozenset[str] | None = None
    """Names and addresses that it is for; None: not known, or of no interest."""
    mode: int = 0
    has_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityFacts:
    """One broker."""

    where: str
    settings: BrokerConfig
    """Not checked as a whole: of a broker elsewhere only SETTINGS are known."""
    certificates: tuple[CertificateFacts, ...] = ()


def security_findings(facts: SecurityFacts) -> Iterator[Finding]:
    """All findings on one broker."""
    yield from _listeners(facts)
    names = _called_by(facts.settings)
    for each in facts.certificates:
        yield from _certificate(facts.where, each, names)
    config = facts.settings
    if config.authorizer_class_name and not config.super_users.strip():
        yield Finding(
            WARNING,
            "super-users",
            facts.where,
            "authorizer.class.name is set and super.users is empty: nobody can change ACLs if one is wrong",
            "set super.users to the principals of administrators, such as User:admin",
        )


def _listeners(facts: SecurityFacts) -> Iterator[Finding]:
    config = facts.settings
    for name, address in config.all_listeners:
        if is_loopback(address.host):
            continue
        protocol = config.protocol_of(name)
        place = f"listener {name} ({address}, {protocol})"
        if protocol not in TLS_PROTOCOLS:
            what = f"{place} is in plain text beyond loopback: the network reads and changes everything"
            do = f"use {'SASL_SSL' if protocol in SASL_PROTOCOLS else 'SSL or SASL_SSL'} in"
            yield Finding(
                WARNING, "listeners", facts.where, what, f"{do} listener.security.protocol.map, or listen on 127.0.0.1"
            )
        if protocol not in SASL_PROTOCOLS and not (protocol in TLS_PROTOCOLS and config.ssl_client_auth == "required"):
            yield Finding(
                WARNING,
                "listeners",
                facts.where,
                f"{place} serves clients that it does not know",
                "set ssl.client.auth=required, or use SASL_SSL in listener.security.protocol.map",
            )
        if not config.authorizer_class_name:
            yield Finding(
                WARNING,
                "listeners",
                facts.where,
                f"{place} lets every client do everything: there is no authorizer",
                "set authorizer.class.name and super.users (docs/security.md)",
            )


def _called_by(config: BrokerConfig) -> frozenset[str]:
    """Names by which clients and brokers call the TLS listeners, and which certificates must therefore have."""
    names = set(config.tls_listeners)
    advertised = config.all_advertised
    found = {advertised[name].host for name in names if name in advertised}
    found |= {
        each.address.host
        for each in config.all_listeners
        if each.name in names and each.name not in advertised and each.address.host not in {"0.0.0.0", "::"}  # noqa: S104 - compared
    }
    return frozenset(found)


def _certificate(where: str, facts: CertificateFacts, called_by: frozenset[str]) -> Iterator[Finding]:
    what = f"{facts.setting}={facts.path}" if facts.path else "the certificate that it shows"
    if facts.trouble:
        yield Finding(ERROR, "certificates", where, f"{what}: {facts.trouble}", f"give {facts.setting} a PEM file")
        return
    if facts.has_key and facts.mode & OTHERS:
        yield Finding(
            ERROR,
            "certificates",
            where,
            f"{what}: every user of the machine may access the private key, so the broker does not start",
            f"chmod o-rwx {facts.path}",
        )
    left = facts.seconds_left
    if left is not None and left <= DAYS_LOW * DAY_S:
        yield Finding(
            ERROR if left <= 0 else WARNING,
            "certificates",
            where,
            f"{what} {'has expired' if left <= 0 else f'expires in {left / DAY_S:.0f} days'}",
            "replace the file (`minikafka certs broker NAME ... --force`); brokers that run read it within 10 s",
        )
    missing = sorted(called_by - facts.hosts) if facts.hosts is not None else []
    if missing:
        yield Finding(
            ERROR,
            "certificates",
            where,
            f"{what} is not for {', '.join(missing)}, by which the broker is called: clients refuse it",
            f"make it for all names: `minikafka certs broker NAME {_hosts(missing)} ... --force`",
        )


def _hosts(names: list[str]) -> str:
    return " ".join(f"--host {each}" for each in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessFacts:
    """Who may do what in a cluster."""

    acl_count: int | None = None
    """None: not known, or there is no authorizer."""
    iterations: Mapping[str, Mapping[str, int]] | None = None
    """PBKDF2 iterations by user and mechanism; None: not known."""


def access_findings(facts: AccessFacts) -> Iterator[Finding]:
    """All findings on ACLs and users."""
    if facts.acl_count == 0:
        yield Finding(
            WARNING,
            "acls",
            "cluster",
            "an authorizer is on and there are no ACLs: super users may do everything, all others nothing",
            "`minikafka acls add --allow-principal User:NAME --producer --topic ...`",
        )
    for user, mechanisms in sorted((facts.iterations or {}).items()):
        weak = {name: count for name, count in mechanisms.items() if count < ITERATIONS_DEFAULT}
        if weak:
            users = ", ".join(f"{name} with {count}" for name, count in sorted(weak.items()))
            yield Finding(
                NOTE,
                "users",
                f"user {user}",
                f"{users} iterations: with a copy of the metadata log a weak password is guessed sooner",
                f"`minikafka users add {user}` sets the password again, with {ITERATIONS_DEFAULT}",
            )


# ---- gathering -------------------------------------------------------------------------------------------------------


def security_of(where: str, config: BrokerConfig) -> SecurityFacts:
    """The facts of a broker on this machine: its settings and their files."""
    certificates = []
    if config.tls_listeners:
        certificates.append(_file("ssl.keystore.location", config.ssl_keystore_location, has_key=True))
        if config.ssl_truststore_location:
            certificates.append(_file("ssl.truststore.location", config.ssl_truststore_location, has_key=False))
    return SecurityFacts(where=where, settings=config, certificates=tuple(certificates))


def settings_elsewhere(settings: Mapping[str, str]) -> BrokerConfig:
    """What is known of a broker that runs elsewhere, for :class:`SecurityFacts`; other settings have their defaults."""
    known = table(BrokerConfig)
    return BrokerConfig(**{known[name].name: parsed_value(known[name], settings[name]) for name in SETTINGS})


def shown_certificate(not_after: str) -> CertificateFacts:
    """Of a certificate that a broker has shown: ``notAfter`` as Python's ``ssl`` gives it."""
    return CertificateFacts(seconds_left=ssl.cert_time_to_seconds(not_after) - time.time())


def _file(setting: str, path: str, *, has_key: bool) -> CertificateFacts:
    facts = CertificateFacts(path=path, setting=setting, has_key=has_key)
    try:
        facts = replace(facts, mode=Path(path).stat().st_mode)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if has_key:
            # Without a password OpenSSL would ask for that of an encrypted key on the terminal.
            context.load_cert_chain(path, password="")
        else:
            context.load_verify_locations(path)
    except ssl.SSLError as error:
        wanted = "a private key that fits its certificate" if has_key else "CA certificates"
        return replace(facts, trouble=f"{error.reason or 'not PEM'}; {wanted} in PEM is needed")
    except OSError as error:
        return replace(facts, trouble=f"cannot be read: {in_words(error)}")
    try:
        made = certificate_folder(Path(path).parent).read(Path(path))
    except InvalidConfig:  # without the package cryptography the rest is not known
        return facts
    return replace(
        facts,
        seconds_left=made.not_after.timestamp() - time.time(),
        hosts=frozenset(made.hosts) if has_key else None,
    )
