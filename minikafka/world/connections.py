"""The open connections of one broker: what is known of each, how many may be open, and whose TLS handshake is next.

Each connection counts into its own :class:`ConnectionRecord`. Everything else is read when ``GET /v1/connections``
lists them, so a request pays for three additions and no lookup.

:class:`ConnectionQuota` limits them in all, at one listener and of one address (Kafka's max.connections,
max.connections.per.ip). A connection beyond a limit is closed when accepted. At SASL listeners connections that have
not logged in are limited too: one more closes the oldest of them, so that strangers keep nobody out but each other. As
in Kafka the brokers' own listener is exempt from the broker's ``max.connections``, if clients have another one:
strangers cannot cut brokers off from each other. It is exempt from quotas of addresses as well (KIP-612): a connection
that exceeds the quota of its address is closed after its throttle time.

A handshake costs the broker's one thread signatures, and its client decides how long it takes. Rules for them:

1. At most ``limit`` handshakes are under way, and half as many of one IP address. Further connections wait, unread.
2. Addresses take turns: the connections of one address do not delay those of another by more than one handshake each.
3. While others wait, a handshake has PATIENCE_S; the slots of slower clients go to those that wait.
4. At most WAITING_MAX connections wait. One more closes one of the address with the most, the one that has waited
   longest.
5. One handshake goes on in a turn of the loop. Each costs a millisecond of signatures, and clients that connect at one
   moment, or that held back what a handshake waits for, would delay all others by those of all handshakes under way.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from minikafka import __version__
from minikafka.broker.event_limiter import EventLimiter
from minikafka.broker.large_turns import LargeTurns
from minikafka.config import INT_MAX
from minikafka.security.quotas import CONNECTION, ConnectionRates
from minikafka.types import ANONYMOUS

PATIENCE_S = 1.0
LOOK_S = 0.1
"""While connections wait, slow handshakes are looked for this often."""

WAITING_MAX = 1024

# A connection whose first request has not begun by then is closed: a client connects to send a request.
FIRST_REQUEST_TIMEOUT_S = 30.0

# As for a login that has begun (broker/kafka_login.py).
LOGIN_TIMEOUT_S = 10.0


def first_request_timeout_s(*, needs_login: bool) -> float:
    """Where clients must log in, silence counts as a login that takes too long."""
    return LOGIN_TIMEOUT_S if needs_login else FIRST_REQUEST_TIMEOUT_S


class Handshake(Protocol):
    """A connection from its acceptance to the end of its TLS handshake."""

    @property
    def remote(self) -> str:
        """IP address."""
        ...

    def begin(self) -> None:
        """It is the connection's turn."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class Handshakes:
    """The handshakes of all listeners of one broker. Call it on the event loop."""

    def __init__(self, limit: int = INT_MAX, refuse: Callable[[str], None] = lambda _ip: None) -> None:
        """``refuse`` is called with the address of each connection that is closed for others."""
        self._limit = limit
        self._limit_per_ip = max(1, limit // 2)
        self._refuse = refuse
        self._under_way: dict[Handshake, float] = {}
        """When each of them began, in that order."""
        self._of_ip: Counter[str] = Counter()
        """How many of them an address has."""
        self._waiting: dict[str, dict[Handshake, None]] = {}
        """By address, the next one to take its turn first; of each address in the order of their arrival."""
        self.waiting = 0
        """Connections that wait for their turn."""
        self._looks = False
        self.turns = LargeTurns()
        """Those of the handshakes that have something to compute (rule 5)."""

    @property
    def under_way(self) -> int:
        """Handshakes that have begun and not ended."""
        return len(self._under_way)

    def arrived(self, handshake: Handshake) -> None:
        """Begin a handshake, now or in its turn."""
        self._waiting.setdefault(handshake.remote, {})[handshake] = None
        self.waiting += 1
        self._begin_next()
        if self.waiting > WAITING_MAX:
            fullest = max(self._waiting.values(), key=len)
            self._close(next(iter(fullest)))
        if self.waiting and not self._looks:
            self._looks = True
            self._look_later()

    def ended(self, handshake: Handshake) -> None:
        """It is over, or its connection is closed. Calls after the first one have no effect."""
        ip = handshake.remote
        if self._under_way.pop(handshake, None) is not None:
            self._of_ip[ip] -= 1
            if not self._of_ip[ip]:
                del self._of_ip[ip]
        elif handshake in (queue := self._waiting.get(ip, {})):
            del queue[handshake]
            self.waiting -= 1
            if not queue:
                del self._waiting[ip]
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin handshakes while there is room."""
        while len(self._under_way) < self._limit:
            # Two addresses at most have all that one address may have.
            ip = next((each for each in self._waiting if self._of_ip[each] < self._limit_per_ip), None)
            if ip is None:
                return
            queue = self._waiting.pop(ip)
            first = next(iter(queue))
            del queue[first]
            self.waiting -= 1
            if queue:
                self._waiting[ip] = queue
            self._of_ip[ip] += 1
            self._under_way[first] = asyncio.get_running_loop().time()
            first.begin()

    def _close(self, handshake: Handshake) -> None:
        self._refuse(handshake.remote)
        self.ended(handshake)
        handshake.abort()

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Close handshakes whose slot a waiting connection could use, if they have had enough time."""
        late = asyncio.get_running_loop().time() - PATIENCE_S
        for handshake, began in list(self._under_way.items()):
            if began > late or not self.waiting:
                break
            # Connections of an address that has all it may have can use the slots of this address only.
            takes_any = any(self._of_ip[ip] < self._limit_per_ip for ip in self._waiting)
            if takes_any or handshake.remote in self._waiting:
                self._close(handshake)
        self._looks = self.waiting > 0
        if self._looks:
            self._look_later()


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


@lru_cache(64)
def identity_of(agent: str) -> tuple[str, str]:
    """Return the client id (only minikafka's own have one) and ``NAME VERSION`` of the software in a ``User-Agent``."""
    # Bytes that are not UTF-8 are lone surrogates in the text of a header, which no message of a broker can carry.
    readable = agent[:NAME_LENGTH_MAX].encode(errors="replace").decode()
    found = _PRODUCT.match(readable)
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


def owner_of(principal: str, remote: str) -> str:
    """Return the owner of a request where users share something: its user, or the address of one without a name."""
    return remote if principal == ANONYMOUS else principal


def close_once(transport: asyncio.Transport) -> None:
    """Close a transport unless it is closing: asyncio's of TLS cannot be aborted any more after a second close."""
    if not transport.is_closing():
        transport.close()


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
        now: Callable[[], float] = time.monotonic,
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
        self._now = now
        self.rates = ConnectionRates()
        """Quotas of addresses, by the metadata."""
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
        self.refused = dict.fromkeys((*self._limits, CONNECTION), 0)
        """By the setting or quota that refused them."""

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

    def throttle_ms(self, ip: str, listener: str = "") -> int:
        """Count a connection that was accepted; return after how many milliseconds it must be closed (0: it may stay).

        The brokers' own listener is exempt if clients have another one.
        """
        if self.rates.index is None or (listener == "" and len(self.listeners) > 1):
            return 0
        throttle_ms = self.rates.opened(ip, self._now())
        if throttle_ms:
            self._refuse(CONNECTION, ip, int(self.rates.index.connection_rate(ip) or 0))
        return throttle_ms

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


CLOSINGS: Final = 1_000
"""Closed connections after which memory is returned; a broker with few clients never does it."""
PAUSE_S: Final = 5.0
"""From the closing that reaches CLOSINGS: more connections may follow, and memory is returned once for all of them."""


def trim_allocator() -> bool:
    """Let glibc return free pages to the operating system; return False where the C library cannot."""
    import ctypes  # noqa: PLC0415 - most brokers never need it, and it would make each start slower

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # other C libraries; TypeError is what Windows raises
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    trim(0)
    return True


class FreedMemory:
    """Counts closed connections, and calls ``trim`` some time after many were closed.

    glibc keeps what is freed for later allocations. A broker sets it up to keep nearly all of it
    (``hosting/process.py``), so that large batches cost no page faults: after a burst of 5,000 connections it held 100
    MB that nothing used.
    """

    def __init__(self, trim: Callable[[], object] = trim_allocator) -> None:
        self._trim = trim
        self._closings = 0
        self._is_due = False

    def connection_closed(self) -> None:
        """Count a connection; call on the event loop."""
        self._closings += 1
        if self._closings >= CLOSINGS and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(PAUSE_S, self._return_memory)

    def _return_memory(self) -> None:
        self._closings, self._is_due = 0, False
        self._trim()
