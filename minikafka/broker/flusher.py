"""Group commit: one sync in flight per log, everyone else rides the next (D6).

The sync's task belongs to the broker, not to the request that asked for it: a request that is cancelled leaves it
running. A failed sync is fatal for the log: after it the page cache may have dropped data, so nothing that this log
holds in memory can be trusted or acknowledged any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from minikafka.errors import DiskFailed, DiskFull, KafkaStorageError
from minikafka.log.partition_log import PartitionLog
from minikafka.tasks import shielded
from minikafka.types import Offset, TopicPartition

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class Flusher:
    """Makes one log durable."""

    def __init__(
        self,
        partition: TopicPartition,
        log: PartitionLog,
        spawn: Spawn,
        on_failure: Callable[[str], None],
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_synced`` is called after each sync: a leader's acknowledged end may have moved.

        Neither receives the partition's name: the topic may have been deleted and created again meanwhile.
        """
        self.partition = partition
        self.log = log
        self._spawn = spawn
        self._on_failure = on_failure
        self._on_synced = on_synced
        self._running: asyncio.Task[None] | None = None
        self._failed: str | None = None
        self._wanted_end: Offset = 0
        """How far the log must be durable for those who asked since the last sync ended."""

    async def durable(self, end_offset: Offset) -> None:
        """Return once everything below ``end_offset`` that is still in the log is synced.

        Raises KafkaStorageError, outcome *unknown*, when the disk failed.
        """
        while self.log.synced_end < min(end_offset, self.log.end_offset):
            if self._failed is not None:
                raise KafkaStorageError(f"{self.partition}: {self._failed}", outcome="unknown")
            await shielded(self.start(end_offset))

    def start(self, end_offset: Offset | None = None) -> asyncio.Task[None]:
        """Sync everything below ``end_offset`` (default: the log's end), behind the sync that runs now, if one does.

        The sync that runs may have begun before the latest append.
        """
        self._wanted_end = max(self._wanted_end, self.log.end_offset if end_offset is None else end_offset)
        running = self.under_way
        if running is None:
            running = self._running = self._spawn(self._sync(), f"sync-{self.partition}")
        return running

    @property
    def under_way(self) -> asyncio.Task[None] | None:
        """The sync that runs."""
        return None if self._running is None or self._running.done() else self._running

    async def _sync(self) -> None:
        try:
            await self.log.sync()
        except (DiskFailed, DiskFull) as error:
            self._failed = str(error)
            self._on_failure(self._failed)
        else:
            wanted_end, self._wanted_end = self._wanted_end, 0
            if not self.log.is_closed and self.log.synced_end < min(wanted_end, self.log.end_offset):
                self._running = None
                self.start(wanted_end)
            self._on_synced()
