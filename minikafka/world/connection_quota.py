"""How many connections a broker holds, in all and of one address (Kafka's max.connections, max.connections.per.ip).

A connection beyond a limit is closed when accepted. As in Kafka the brokers' own listener is exempt from
``max.connections``, if clients have another one: strangers cannot cut brokers off from each other. Synchronous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from minikafka.broker.event_limiter import EventLimiter
from minikafka.config import INT_MAX

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
