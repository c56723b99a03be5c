"""When batches may be appended: how much between two looks at the network, and in which order.

Heartbeats and votes must not wait for a flood of batches (:class:`AppendThrottle`).

An event loop sees what has arrived only once per turn, and appends of many requests may share one turn. A task that is
about to append asks here first, *before* its checks: between a check and the append that it allows nothing may happen.

Batches of a partition keep their order when the validation of some runs beside the event loop (:class:`Arrivals`). A
request that validates a long batch does not hold up the broker, but requests for the same partitions that arrive
after it wait for it: a producer's batches are appended in the order in which they arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from minikafka.types import TopicPartition

BYTES_PER_TURN_MAX = 4 * 1024 * 1024
"""A few milliseconds of checksums and page cache."""


class AppendThrottle:
    """The bytes that one broker appends, counted from pause to pause."""

    def __init__(self, bytes_max: int = BYTES_PER_TURN_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ending = False

    def take(self, size: int) -> bool:
        """Return True if these bytes may be appended in this turn of the loop. One batch may be of any size.

        Turns that nobody ended count on, which costs a pause too many per ``bytes_max`` and saves watching every turn.
        """
        if self._bytes >= self._bytes_max:
            return False
        self._bytes += size
        return True

    async def admit(self, size: int) -> None:
        """Return in the first turn in which these bytes may be appended."""
        while not self.take(size):
            if not self._ending:
                self._ending = True
                asyncio.get_running_loop().call_soon(self._begin)
            await asyncio.sleep(0)

    def _begin(self) -> None:
        self._ending = False
        self._bytes = 0


class Arrivals:
    """Produce requests that have arrived and are not yet appended, of partitions with a long validation under way."""

    def __init__(self) -> None:
        self._last: dict[TopicPartition, asyncio.Event] = {}

    def is_free(self, names: Collection[TopicPartition]) -> bool:
        """Return True if no request waits that would have to be appended first."""
        return not self._last or self._last.keys().isdisjoint(names)

    def enter(self, names: Collection[TopicPartition]) -> Arrival:
        """Queue behind earlier requests for ``names`` until :meth:`leave`."""
        earlier = list(dict.fromkeys(self._last[name] for name in names if name in self._last))
        arrival = Arrival(names, earlier)
        self._last.update(dict.fromkeys(names, arrival.appended))
        return arrival

    def leave(self, arrival: Arrival) -> None:
        """The request is appended, or refused."""
        arrival.appended.set()
        for name in arrival.names:
            if self._last.get(name) is arrival.appended:
                del self._last[name]


class Arrival:
    """One request in the queue. It waits only for ``earlier`` ones, so that none waits forever."""

    __slots__ = ("appended", "earlier", "names")

    def __init__(self, names: Collection[TopicPartition], earlier: list[asyncio.Event]) -> None:
        self.names = names
        self.earlier = earlier
        self.appended = asyncio.Event()
