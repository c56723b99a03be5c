"""Compaction of this broker's replicas, one after the other, the dirtiest first.

Which log, and what of it, is decided in ``log/compaction.py``; here is when: after each round at once the next, and
``log.cleaner.backoff.ms`` of pause when nothing is due. Each replica is compacted by itself, below its own high
watermark: leader and followers may differ in what they still hold of replaced records, never in the last of a key.

The loop gets its turn after every few batches. A replica whose log turns out to be damaged is left alone until the
broker starts again, and counted by a metric; a full disk puts its compaction off.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minikafka.errors import CorruptMessage, KafkaStorageError
from minikafka.log.cleaner import Cleaned
from minikafka.log.compaction import MAP_ENTRY_SIZE, DirtyRange, dirtiest
from minikafka.types import TopicPartition

if TYPE_CHECKING:
    from minikafka.broker.live_settings import LiveSettings
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.replication.partition import Partition

_SLEEP_MIN_S = 0.001


@dataclass(slots=True)
class CleanerMeter:
    """What the last rounds did, for metrics."""

    rounds: int = 0
    recopy_percent: float = 0.0
    """Bytes kept of those rewritten, in the last round."""
    buffer_percent: float = 0.0
    """Keys of the last round, of those that fit."""
    last_round_s: float = 0.0
    last_look_at: float | None = None
    """On the broker's clock."""
    max_dirty_percent: float = 0.0
    """Of the dirtiest log, at the last look."""


class LogCleaner:
    """The compaction of one broker."""

    def __init__(self, replicas: ReplicaManager, live: LiveSettings) -> None:
        self.meter = CleanerMeter()
        self.uncleanable: dict[TopicPartition, str] = {}
        """Replicas that are damaged, and why."""
        self._replicas = replicas
        self._live = live

    def dirty_ranges(self) -> dict[TopicPartition, DirtyRange]:
        """What is dirty of every replica here that is compacted."""
        now_ms = self._replicas.clock.wall_ms()
        return {
            name: each.log.dirty_range(high_watermark=each.high_watermark, now_ms=now_ms)
            for name, each in self._replicas.partitions.items()
            if each.config.compacts and not each.failed and each.log.failure is None
        }

    async def run(self) -> None:
        """Compact for as long as the broker runs."""
        while True:
            if not await self.clean_one():
                await asyncio.sleep(self._live.now.log_cleaner_backoff_ms / 1000)

    async def clean_one(self) -> bool:
        """One round over the log that needs it most; False when none does, or nothing came of it."""
        self.meter.last_look_at = self._replicas.clock.now()
        partitions = self._replicas.partitions
        self.uncleanable = {name: why for name, why in self.uncleanable.items() if name in partitions}
        ranges = {name: found for name, found in self.dirty_ranges().items() if name not in self.uncleanable}
        self.meter.max_dirty_percent = 100 * max((found.ratio for found in ranges.values()), default=0.0)
        name = dirtiest({name: (found, partitions[name].config) for name, found in ranges.items()})
        if name is None:
            return False
        try:
            return await self._clean(partitions[name], ranges[name])
        except KafkaStorageError:
            return False  # the guard has taken the replica offline and reported it to the broker

    async def _clean(self, partition: Partition, dirty: DirtyRange) -> bool:
        began = self._replicas.clock.now()
        try:
            with self._replicas.storage_guard(partition):
                cleaned = await partition.log.clean(
                    dirty,
                    memory_bytes=self._live.now.log_cleaner_dedupe_buffer_size,
                    clock_ms=self._replicas.clock.wall_ms,
                    pause=self._pause,
                )
        except CorruptMessage as error:
            self.uncleanable[partition.partition] = error.message
            self._replicas.events("log_uncleanable", partition=str(partition.partition), why=error.message)
            return False
        await self._replicas.logs.checkpoint_clean_ends()
        self._note(partition, dirty, cleaned, self._replicas.clock.now() - began)
        return not cleaned.was_interrupted

    def _note(self, partition: Partition, dirty: DirtyRange, cleaned: Cleaned, round_s: float) -> None:
        meter = self.meter
        meter.rounds += 1
        meter.last_round_s = round_s
        meter.recopy_percent = 100 * cleaned.bytes_after / cleaned.bytes_before if cleaned.bytes_before else 0.0
        meter.buffer_percent = min(
            100.0, 100 * cleaned.keys * MAP_ENTRY_SIZE / self._live.now.log_cleaner_dedupe_buffer_size
        )
        self._replicas.events(
            "log_compacted",
            partition=str(partition.partition),
            first_dirty=dirty.first_dirty,
            clean_end=cleaned.end_offset,
            high_watermark=partition.high_watermark,
            dirty_ratio=round(dirty.ratio, 3),
            overdue=dirty.is_overdue,
            records_before=cleaned.records_before,
            records_after=cleaned.records_after,
            bytes_before=cleaned.bytes_before,
            bytes_after=cleaned.bytes_after,
            segments_before=cleaned.segments_before,
            segments_after=cleaned.segments_after,
            keyless=cleaned.keyless,
            interrupted=cleaned.was_interrupted,
        )

    async def _pause(self, size: int) -> None:
        """Let others run, and keep to log.cleaner.io.max.bytes.per.second."""
        due_s = size / self._live.now.log_cleaner_io_max_bytes_per_second
        await asyncio.sleep(due_s if due_s >= _SLEEP_MIN_S else 0)
