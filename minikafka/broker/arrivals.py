"""The order in which batches of a partition are appended when the validation of some runs beside the event loop.

A request that validates a long batch does not hold up the broker, but requests for the same partitions that arrive
after it wait for it: a producer's batches are appended in the order in which they arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from minikafka.types import TopicPartition


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
