"""Work that is due from time to time: ISR checks, checkpoints, retention, syncs by time, unlinking.

Each kind has its own interval and its own small loop; each does what rules decide and reports failures of the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from minikafka.errors import DiskFailed, DiskFull, KafkaStorageError
from minikafka.replication.leader import LeaderReplica
from minikafka.types import TopicPartition

if TYPE_CHECKING:
    from minikafka.broker.flusher import Spawn
    from minikafka.broker.live_settings import LiveSettings
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.replication.partition import Partition

# How often it is looked for what must be synced; Kafka's scheduler looks every second or less often too.
FLUSH_CHECK_S = 1.0
# Kafka's first retention check comes 30 s after the start.
RETENTION_FIRST_S = 30.0


class Caretaker:
    """The periodic work of one broker."""

    def __init__(self, replicas: ReplicaManager, live: LiveSettings, *, on_disk_failure: Callable[[str], None]) -> None:
        self.replicas = replicas
        self._live = live
        self._on_disk_failure = on_disk_failure
        self._last_sync: dict[TopicPartition, float] = {}

    def start(self, spawn: Spawn) -> None:
        """Begin all the loops."""
        live, config = self._live, self._live.started_with

        def fixed(interval_s: float) -> Callable[[], float]:
            return lambda: interval_s

        spawn(self._every(lambda: live.now.replica_lag_time_max_ms / 2000, self._shrink), "isr-check")
        spawn(
            self._every(
                lambda: config.replica_high_watermark_checkpoint_interval_ms / 1000, self.checkpoint_watermarks
            ),
            "hw-checkpoint",
        )
        spawn(
            self._every(
                lambda: config.log_flush_offset_checkpoint_interval_ms / 1000, self._checkpoint_recovery_points
            ),
            "recovery-point-checkpoint",
        )
        spawn(
            self._every(
                lambda: config.log_flush_start_offset_checkpoint_interval_ms / 1000, self._checkpoint_log_starts
            ),
            "log-start-checkpoint",
        )
        spawn(
            self._every(lambda: live.now.log_retention_check_interval_ms / 1000, self._retain, first=RETENTION_FIRST_S),
            "retention",
        )
        spawn(self._every(fixed(FLUSH_CHECK_S), self._sync), "flush")
        spawn(self._every(fixed(max(0.001, config.log_segment_delete_delay_ms / 1000 / 2)), self._unlink), "unlink")

    async def _every(
        self, interval_s: Callable[[], float], work: Callable[[], Awaitable[None]], *, first: float | None = None
    ) -> None:
        await self._pause(interval_s if first is None else lambda: min(interval_s(), first))
        while True:
            try:
                await work()
            except (DiskFailed, DiskFull) as error:
                self._on_disk_failure(str(error))
                return
            await self._pause(interval_s)

    async def _pause(self, interval_s: Callable[[], float]) -> None:
        """As long as the setting says; when it moves meanwhile, as long as it says then."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (left_s := began + interval_s() - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._live.until_moved()
            except TimeoutError:
                return

    async def _shrink(self) -> None:
        self.replicas.shrink_isrs()

    async def checkpoint_watermarks(self) -> None:
        """Write replication-offset-checkpoint: where watermarks start after a restart."""
        marks = {name: partition.high_watermark for name, partition in self.replicas.partitions.items()}
        await self.replicas.logs.checkpoint_high_watermarks(marks)

    async def _checkpoint_recovery_points(self) -> None:
        await self.replicas.logs.checkpoint_recovery_points()

    async def _checkpoint_log_starts(self) -> None:
        await self.replicas.logs.checkpoint_start_offsets()

    async def _retain(self) -> None:
        """Delete old segments, never above the high watermark (KAFKA-FACTS 1.5), and forget idle producers."""
        now_ms = self.replicas.clock.wall_ms()
        for partition in list(self.replicas.partitions.values()):
            # The topic may be deleted while this waits for the disk, for this partition or for one before it.
            if self.replicas.hosts(partition) and not partition.failed:
                # What the disk did is told by the guard, and takes this replica offline; the others go on.
                with contextlib.suppress(KafkaStorageError), self.replicas.storage_guard(partition):
                    await self._retain_one(partition, now_ms)

    async def _retain_one(self, partition: Partition, now_ms: int) -> None:
        log = partition.log
        log.expire_producers(now_ms)
        expired = log.expired_segments(now_ms, partition.high_watermark)
        if not isinstance(partition.role, LeaderReplica):
            # Followers take the leader's log start; they delete only what it has let go.
            expired = [segment for segment in expired if segment.next_offset <= log.start_offset]
        if expired:
            self.replicas.unlink_later(await log.delete_segments(expired), partition.config)

    async def _sync(self) -> None:
        """Begin the syncs that no request asks for: by flush.ms and flush.messages, and of sealed segments, with which
        the recovery point moves on (KAFKA-FACTS 1.3): else a crash would cost a walk over the whole log.
        """
        now = self.replicas.clock.now()
        for name, partition in list(self.replicas.partitions.items()):
            log = partition.log
            if partition.failed or log.synced_end >= log.end_offset:
                self._last_sync[name] = now
                continue
            self.replicas.sync_if_due(partition)
            overdue = now - self._last_sync.setdefault(name, now) >= partition.config.flush_ms / 1000
            if overdue or log.wants_sync:
                self.replicas.flushers[name].start()
        self._last_sync = {name: at for name, at in self._last_sync.items() if name in self.replicas.partitions}

    async def _unlink(self) -> None:
        self.replicas.unlink_due()
