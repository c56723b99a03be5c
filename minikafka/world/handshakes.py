"""TLS handshakes of one broker: how many are under way, and whose turn is next.

A handshake costs the broker's one thread signatures, and its client decides how long it takes. Rules for this file:

1. At most ``limit`` handshakes are under way, and half as many of one IP address. Further connections wait, unread.
2. Addresses take turns: the connections of one address do not delay those of another by more than one handshake each.
3. While others wait, a handshake has PATIENCE_S; the slots of slower clients go to those that wait.
4. At most WAITING_MAX connections wait. One more closes one of the address with the most, the one that has waited
   longest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from minikafka.config import INT_MAX

PATIENCE_S = 1.0
LOOK_S = 0.1
"""While connections wait, slow handshakes are looked for this often."""

WAITING_MAX = 1024


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
        """Begin the handshakes for which there is room."""
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
