"""What a broker knows about its open connections, for ``GET /v1/connections``.

Each connection counts into its own :class:`ConnectionRecord`. Everything else is read when connections are listed, so a
request pays for three additions and no lookup.

Also how many it holds, in all, at one listener and of one address (Kafka's max.connections, max.connections.per.ip). A
connection beyond a limit is closed when accepted. At SASL listeners connections that have not logged in are limited
too: one more closes the oldest of them, so that strangers keep nobody out but each other. As in Kafka the brokers' own
listener is exempt from the broker's ``max.connections``, if clients have another one: strangers cannot cut brokers off
from each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from minikafka import __version__
from minikafka.broker.event_limiter import EventLimiter
from minikafka.config import INT_MAX
from minikafka.types import ANONYMOUS
from minikafka.world.handshakes import Handshakes

KAFKA, RPC, HTTP = "kafka", "rpc", "http"
PROTOCOLS = (KAFKA, RPC, HTTP)
"""Kafka frames; plain ``POST /rpc`` requests only, as brokers and native clients send them; any other HTTP."""

SOFTWARE = "minikafka"
NAME_LENGTH_MAX = 200

_USER_AGENT = re.compile(rb"(?:^|\n)User-Agent:[ \t]*([^\r\n]{0,%d})" % NAME_LENGTH_MAX, re.IGNORECASE)
_PRODUCT = re.compile(r"([^\s/()]+)(?:/(\S+))?(?:\s+\(([^()]*)\))?")


class ConnectionRecord:
    """Counters of one connection. They stay with it when another protocol object takes the connection over."""

    __slots__ = ("number", "opened_at", "principal", "received", "refusal", "requests", "sent")

    def __init__(self, opened_at: float) -> None:
        """``opened_at`` is when the connection was accepted, on the loop's clock."""
        self.number = 0
        """Number of the connection among all that the broker has accepted."""
        self.opened_at = opened_at
        self.principal = ANONYMOUS
        """Of the client certificate; requests of the connection have it."""
        self.refusal = ""
        """Why the client certificate gives no principal. Empty: it gives one, or there is none."""
        self.received = 0
        self.sent = 0
        self.requests = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenConnection:
    """One open connection: a snapshot."""

    record: ConnectionRecord
    protocol: str | None
    """One of PROTOCOLS; None: the peer has not sent a request yet."""
    remote: str
    """Address and port of the peer."""
    idle_s: float
    """Time since the last request arrived or the last response was sent."""
    listener: str = ""
    client_id: str = ""
    software: str = ""
    """Name and version of the client's library."""
    last_request: str | None = None
    api_version: int | None = None
    """Kafka's version of the last request's API."""
    pending_request: str | None = None
    """The oldest request that is not answered yet."""


def user_agent(client_id: str = "") -> str:
    """Return the value of ``User-Agent`` that brokers and native clients send."""
    return f"{SOFTWARE}/{__version__}" + (f" ({client_id})" if client_id else "")


def agent_in(fields: bytes) -> str:
    """Return the value of ``User-Agent`` in the header lines of a request; empty if there is none."""
    found = _USER_AGENT.search(fields)
    return found[1].decode("latin-1") if found else ""


def identity_of(agent: str) -> tuple[str, str]:
    """Return the client id (only minikafka's own have one) and ``NAME VERSION`` of the software in a ``User-Agent``."""
    found = _PRODUCT.match(agent[:NAME_LENGTH_MAX])
    if found is None:
        return "", ""
    name, version, comment = found.groups()
    client_id = comment if comment and name == SOFTWARE else ""
    return client_id, f"{name} {version}" if version else name


def peer_of(peername: object) -> str:
    """Return ``ADDRESS:PORT`` of a socket's peer name; empty if the peer has left."""
    if not isinstance(peername, tuple):
        return str(peername or "")
    host, port = peername[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


MAX_CONNECTIONS = "max.connections"
MAX_CONNECTIONS_PER_IP = "max.connections.per.ip"
UNAUTHENTICATED = "mk.unauthenticated.connections.max"
UNAUTHENTICATED_PER_IP = "mk.unauthenticated.connections.per.ip.max"
HANDSHAKES = "mk.tls.handshakes.max"


class Abortable(Protocol):
    """A connection that can be closed at once."""

    def abort(self) -> None: ...


class ConnectionQuota:
    """The connections of all listeners of one broker."""

    def __init__(
        self,
        *,
        limit: int = INT_MAX,
        limit_per_ip: int = INT_MAX,
        overrides: Mapping[str, int] | None = None,
        by_listener: Mapping[str, int] | None = None,
        unauthenticated: int = INT_MAX,
        unauthenticated_per_ip: int = INT_MAX,
        handshakes: int = INT_MAX,
        events: EventLimiter | None = None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """``overrides`` replace ``limit_per_ip`` for single addresses; ``by_listener`` has limits of listeners, by
        their names in contexts.
        """
        self._limits = {
            MAX_CONNECTIONS: limit,
            MAX_CONNECTIONS_PER_IP: limit_per_ip,
            UNAUTHENTICATED: unauthenticated,
            UNAUTHENTICATED_PER_IP: unauthenticated_per_ip,
            HANDSHAKES: handshakes,
        }
        self._overrides = overrides or {}
        self._by_listener = by_listener or {}
        self._logging_in: dict[str, dict[Abortable, str]] = {}
        """By listener: connections that have not logged in, with their addresses; the oldest first."""
        self._strangers: Counter[tuple[str, str]] = Counter()
        """How many of them, by listener and address."""
        self._events = events
        self._on_closed = on_closed
        self.handshakes = Handshakes(handshakes, lambda ip: self._refuse(HANDSHAKES, ip, handshakes))
        self._open: dict[object, tuple[str, str]] = {}
        """Address and listener."""
        self._by_ip: Counter[str] = Counter()
        self._at: Counter[str] = Counter()
        """How many connections a listener has."""
        self.listeners: set[str] = set()
        """Names; the brokers' own is the empty one."""
        self.accepted = 0
        """Connections accepted since the start."""
        self.refused = dict.fromkeys(self._limits, 0)
        """By the setting that refused them."""

    @property
    def count(self) -> int:
        """Connections open now."""
        return len(self._open)

    def admits(self, ip: str, listener: str = "") -> bool:
        """Return True if one more connection may open; a refusal is counted and logged."""
        is_exempt = listener == "" and len(self.listeners) > 1
        of_ip = self._overrides.get(ip, self._limits[MAX_CONNECTIONS_PER_IP])
        if self._by_ip[ip] >= of_ip:
            self._refuse(MAX_CONNECTIONS_PER_IP, ip, of_ip)
        elif len(self._open) >= self._limits[MAX_CONNECTIONS] and not is_exempt:
            self._refuse(MAX_CONNECTIONS, ip, self._limits[MAX_CONNECTIONS])
        elif (at_listener := self._by_listener.get(listener)) is not None and self._at[listener] >= at_listener:
            self._refuse(MAX_CONNECTIONS, ip, at_listener, listener=listener)
        else:
            return True
        return False

    def _refuse(self, setting: str, ip: str, limit: int, **more: str) -> None:
        self.refused[setting] += 1
        if self._events is not None:
            self._events("connection_limit_exceeded", remote=ip, setting=setting, limit=limit, **more)

    def login_began(self, connection: Abortable, ip: str, listener: str) -> None:
        """A connection must log in. If too many have not, the oldest of them is closed."""
        waiting = self._logging_in.setdefault(listener, {})
        waiting[connection] = ip
        self._strangers[listener, ip] += 1
        if self._strangers[listener, ip] > self._limits[UNAUTHENTICATED_PER_IP]:
            oldest = next(each for each, its_ip in waiting.items() if its_ip == ip)
            self._evict(UNAUTHENTICATED_PER_IP, oldest, listener)
        elif len(waiting) > self._limits[UNAUTHENTICATED]:
            self._evict(UNAUTHENTICATED, next(iter(waiting)), listener)

    def _evict(self, setting: str, connection: Abortable, listener: str) -> None:
        self._refuse(setting, self._logging_in[listener][connection], self._limits[setting])
        self.login_ended(connection, listener)
        connection.abort()

    def login_ended(self, connection: Abortable, listener: str) -> None:
        """It has logged in, or is gone, or another object has taken it over."""
        ip = self._logging_in.get(listener, {}).pop(connection, None)
        if ip is None:
            return
        self._strangers[listener, ip] -= 1
        if not self._strangers[listener, ip]:
            del self._strangers[listener, ip]

    def opened(self, connection: object, ip: str, listener: str = "") -> None:
        """Count a connection."""
        self._open[connection] = ip, listener
        self._by_ip[ip] += 1
        self._at[listener] += 1

    def closed(self, connection: object) -> None:
        """Count it no more; one that was refused never counted."""
        ip, listener = self._open.pop(connection, ("", None))
        if listener is None:
            return
        self._at[listener] -= 1
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
        self._on_closed()
