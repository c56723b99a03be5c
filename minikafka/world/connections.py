"""What a broker knows about its open connections, for ``GET /v1/connections``.

Each connection counts into its own :class:`ConnectionRecord`. Everything else is read when connections are listed, so a
request pays for three additions and no lookup.

Also how many it holds, in all and of one address (Kafka's max.connections, max.connections.per.ip). A connection
beyond a limit is closed when accepted. As in Kafka the brokers' own listener is exempt from ``max.connections``, if
clients have another one: strangers cannot cut brokers off from each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from minikafka import __version__
from minikafka.broker.event_limiter import EventLimiter
from minikafka.config import INT_MAX
from minikafka.types import ANONYMOUS

KAFKA, RPC, HTTP = "kafka", "rpc", "http"
PROTOCOLS = (KAFKA, RPC, HTTP)
"""Kafka frames; plain ``POST /rpc`` requests only, as brokers and native clients send them; any other HTTP."""

SOFTWARE = "minikafka"
NAME_LENGTH_MAX = 200

_USER_AGENT = re.compile(rb"(?:^|\n)User-Agent:[ \t]*([^\r\n]{0,%d})" % NAME_LENGTH_MAX, re.IGNORECASE)
_PRODUCT = re.compile(r"([^\s/()]+)(?:/(\S+))?(?:\s+\(([^()]*)\))?")


class ConnectionRecord:
    """Counters of one connection. They stay with it when another protocol object takes the connection over."""

    __slots__ = ("number", "opened_at", "principal", "received", "requests", "sent")

    def __init__(self, opened_at: float) -> None:
        self.number = 0
        """Number of the connection among all that the broker has accepted."""
        self.opened_at = opened_at
        self.principal = ANONYMOUS
        """Of the client certificate; requests of the connection have it."""
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


class ConnectionQuota:
    """The connections of all listeners of one broker."""

    def __init__(
        self,
        *,
        limit: int = INT_MAX,
        limit_per_ip: int = INT_MAX,
        events: EventLimiter | None = None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = {MAX_CONNECTIONS: limit, MAX_CONNECTIONS_PER_IP: limit_per_ip}
        self._events = events
        self._on_closed = on_closed
        self._ips: dict[object, str] = {}
        self._by_ip: Counter[str] = Counter()
        self.listeners: set[str] = set()
        """Names; the brokers' own is the empty one."""
        self.accepted = 0
        """Connections accepted since the start."""
        self.refused = dict.fromkeys(self._limits, 0)
        """By the setting that refused them."""

    @property
    def count(self) -> int:
        """Connections open now."""
        return len(self._ips)

    def admits(self, ip: str, listener: str = "") -> bool:
        """Return True if one more connection may open; a refusal is counted and logged."""
        is_exempt = listener == "" and len(self.listeners) > 1
        if self._by_ip[ip] >= self._limits[MAX_CONNECTIONS_PER_IP]:
            self._refuse(MAX_CONNECTIONS_PER_IP, ip)
        elif len(self._ips) >= self._limits[MAX_CONNECTIONS] and not is_exempt:
            self._refuse(MAX_CONNECTIONS, ip)
        else:
            return True
        return False

    def _refuse(self, setting: str, ip: str) -> None:
        self.refused[setting] += 1
        if self._events is not None:
            self._events("connection_limit_exceeded", remote=ip, setting=setting, limit=self._limits[setting])

    def opened(self, connection: object, ip: str) -> None:
        """Count a connection."""
        self._ips[connection] = ip
        self._by_ip[ip] += 1

    def closed(self, connection: object) -> None:
        """Count it no more; one that was refused never counted."""
        ip = self._ips.pop(connection, None)
        if ip is None:
            return
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
        self._on_closed()
