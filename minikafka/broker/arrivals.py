"""The order in which batches of a partition are appended when the validation of some runs beside the event loop.

A request that validates a long batch does not hold up the broker, but requests for the same partitions that arrive
after it wait for it: a producer's batches are appended in the order in which they arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from minikafka.types import TopicPartition


class Arrivals:
    """Produce requests that have arrived and are not yet appended, of partitions with a long validation under way."""

    def __init__(self) -> None:
        self._last: dict[TopicPartition, asyncio.Event] = {}

    def is_free(self, names: Sequence[TopicPartition]) -> bool:
        """Return True if no request waits that would have to be appended first."""
        return not self._last or self._last.keys().isdisjoint(names)

    @contextlib.asynccontextmanager
    async def entered(self, names: Sequence[TopicPartition]) -> AsyncIterator[list[asyncio.Event]]:
        """Queue behind earlier requests for ``names`` until the block ends; it gets what to wait for before it appends.

        A request waits only for earlier ones, so that none waits forever.
        """
        earlier = list(dict.fromkeys(self._last[name] for name in names if name in self._last))
        appended = asyncio.Event()
        self._last.update(dict.fromkeys(names, appended))
        try:
            yield earlier
        finally:
            appended.set()
            for name in names:
                if self._last.get(name) is appended:
                    del self._last[name]
