"""Addresses as settings have them: listeners, voters, bootstrap servers, names and origins of the HTTP door.

Rules for this file: text in, addresses out; a text that is none is InvalidConfig with the setting's name and the form.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping

from minikafka.errors import InvalidConfig
from minikafka.types import Address, Listener, NodeId

# An offset with its epoch in a snapshot's name is the longest number that names have.
_DIGITS_MAX = 30
_PORT_MAX = 65_535

PLAINTEXT = "PLAINTEXT"
PLAIN_PROTOCOLS = frozenset({PLAINTEXT, "HTTP", "SASL_PLAINTEXT"})
TLS_PROTOCOLS = frozenset({"SSL", "HTTPS", "SASL_SSL"})
SASL_PROTOCOLS = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - what Kafka's `PLAINTEXT://:9092` means; refused without mk.insecure


def is_number(text: str) -> bool:
    """Return True if ``text`` is a number in the digits 0 to 9. ``str.isdigit`` accepts other scripts, and ``²``."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _is_port(text: str) -> bool:
    return is_number(text) and int(text) <= _PORT_MAX


_LOOPBACK = re.compile(r"127(\.[0-9]{1,8}){1,3}")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?|[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,20})?")


def is_host(text: str) -> bool:
    """Return True for what can be the host of an address: a DNS name, an IPv4 or an IPv6 address without brackets."""
    return _HOST.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Return True if ``host`` is a loopback address or ``localhost``. No other name counts, whatever it begins with."""
    if _LOOPBACK.fullmatch(host) is None:
        return host in ("localhost", "::1", "[::1]")
    *bytes_, rest = [int(part) for part in host.split(".")[1:]]  # 127.1 is one, as sockets take it
    return max(bytes_, default=0) < 256 and rest < 256 ** (3 - len(bytes_))


@functools.lru_cache(256)  # asked again and again, and small
def parse_listeners(text: str, setting: str) -> tuple[Listener, ...]:
    """``NAME://host:port,...`` as listeners; no host: every interface. Raises InvalidConfig.

    Without ``NAME://`` it is ``PLAINTEXT://``. Names are free.
    """
    found: dict[str, Listener] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, separator, rest = part.partition("://")
        if not separator:
            name, rest = PLAINTEXT, part
        name = name.upper()
        host, colon, port = rest.rpartition(":")
        if not colon or not _is_port(port) or not re.fullmatch(r"[A-Z0-9_.-]+", name):
            raise InvalidConfig(f"{setting}={part!r}: {PLAINTEXT}://host:port is needed", setting=setting)
        if name in found:
            raise InvalidConfig(f"{setting} names {name} twice", setting=setting)
        found[name] = Listener(name, Address(host.strip("[]") or EVERY_INTERFACE, int(port)))
    return tuple(found.values())


def parse_overrides(text: str, setting: str) -> Mapping[str, int]:
    """``ADDRESS:NUMBER,...`` as numbers by IP address, in the form that sockets give. Raises InvalidConfig.

    Names of hosts are refused: a name would have to be looked up, and its addresses change.
    """
    found: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        host, colon, number = part.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip("[]")))
        except ValueError:
            address = ""
        if not (colon and address and is_number(number) and len(number) <= NUMBER_LENGTH_MAX):
            raise InvalidConfig(f"{setting}={part!r}: ADDRESS:NUMBER is needed, such as 127.0.0.1:100", setting=setting)
        found[address] = int(number)
    return found


NUMBER_LENGTH_MAX = 9
"""Digits of a number of connections."""


@functools.lru_cache(256)  # as above
def parse_protocols(text: str) -> Mapping[str, str]:
    """Parse ``listener.security.protocol.map`` (``NAME:PROTOCOL,...``) to protocols by listener name.

    Raises:
        InvalidConfig: An entry has another form, or a protocol that no listener supports.
    """
    setting = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not colon or protocol not in PLAIN_PROTOCOLS | TLS_PROTOCOLS:
            supported = ", ".join(sorted(PLAIN_PROTOCOLS | TLS_PROTOCOLS))
            raise InvalidConfig(
                f"{setting}={pair!r}: NAME:PROTOCOL is needed, with a protocol of {supported}",
                setting=setting,
            )
        protocols[name] = protocol
    return protocols


def parse_voters(text: str) -> dict[NodeId, Address]:
    """``1@a:9092,2@b:9092`` as a sorted mapping; raises InvalidConfig."""
    return dict(_voters(text))


@functools.lru_cache(256)  # as above
def _voters(text: str) -> Mapping[NodeId, Address]:
    voters: dict[NodeId, Address] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        node, at, address = part.partition("@")
        host, colon, port = address.rpartition(":")
        if not at or not colon or not is_number(node) or not _is_port(port):
            raise InvalidConfig(
                f"controller.quorum.voters: {part!r} is not id@host:port", setting="controller.quorum.voters"
            )
        if int(node) in voters:
            raise InvalidConfig(f"controller.quorum.voters names node {node} twice", setting="controller.quorum.voters")
        voters[int(node)] = Address(host.strip("[]"), int(port))
    return dict(sorted(voters.items()))


def parse_host_names(text: str, setting: str) -> frozenset[str]:
    """``a.example, .b.example`` in lower case (a leading dot: all below it; ``*``: any); raises InvalidConfig."""
    names = []
    for part in filter(None, (each.strip().lower() for each in text.split(","))):
        if part != "*" and not re.fullmatch(r"\.?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", part):
            raise InvalidConfig(f"{setting}={part!r}: a host name without a port is needed, or *", setting=setting)
        names.append(part)
    return frozenset(names)


def parse_origins(text: str, setting: str) -> frozenset[str]:
    """``http://localhost:5173, https://a.example`` in lower case; raises InvalidConfig."""
    origins = []
    for part in filter(None, (each.strip().lower() for each in text.split(","))):
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s*]+", part):
            raise InvalidConfig(
                f"{setting}={part!r}: scheme://host or scheme://host:port is needed, without a path", setting=setting
            )
        origins.append(part)
    return frozenset(origins)


def is_https(text: str) -> bool:
    """Return True if one of some bootstrap servers begins with ``https://``."""
    return any(part.strip().startswith("https://") for part in text.split(","))


@functools.lru_cache
def parse_bootstrap(text: str, *, https: bool = False) -> tuple[Address, ...]:
    """``host:port,host:port`` as addresses; ``http://`` may precede each, and with ``https`` also ``https://``.

    Raises InvalidConfig.
    """
    if is_https(text) and not https:
        raise InvalidConfig(
            f"bootstrap servers: {text!r} asks for TLS, which cannot be used here; name a listener in plain text",
            setting="bootstrap.servers",
        )
    addresses = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        host, colon, port = part.removeprefix("http://").removeprefix("https://").rstrip("/").rpartition(":")
        scheme, separator, rest = part.rpartition("://")
        if separator and scheme not in ("http", "https"):
            raise InvalidConfig(
                f"bootstrap servers: {part!r} is not host:port; leave out {scheme}://, as in {rest}",
                setting="bootstrap.servers",
            )
        if not colon or not host or not _is_port(port):
            example = f"{host or part}:9092" if not colon else "127.0.0.1:9092"
            raise InvalidConfig(
                f"bootstrap servers: {part!r} is not host:port, such as {example}", setting="bootstrap.servers"
            )
        addresses.append(Address(host.strip("[]"), int(port)))
    if not addresses:
        raise InvalidConfig("bootstrap servers: at least one host:port is needed", setting="bootstrap.servers")
    return tuple(addresses)
