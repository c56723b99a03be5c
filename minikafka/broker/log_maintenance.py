"""Work that is due from time to time: ISR checks, checkpoints, retention, syncs by time, unlinking; and compaction.

Each kind has its own interval, from the end of one turn to the beginning of the next. A turn that waits for the disk
is a task of its own: a slow one holds up nothing else. Between turns one task waits for all of them, since most brokers
of a test never live to see the first. Each does what rules decide and reports failures of the disk.

Compaction takes one replica after the other, the dirtiest first. Which log, and what of it, is decided in
``log/compaction.py``; here is when: after each round at once the next, and ``log.cleaner.backoff.ms`` of pause when
nothing is due. Each replica is compacted by itself, below its own high watermark: leader and followers may differ in
what they still hold of replaced records, never in the last of a key. The loop gets its turn after every few batches.
A replica whose log turns out to be damaged is left alone until the broker starts again, and counted by a metric; a
full disk puts its compaction off.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minikafka.errors import CorruptMessage, DiskFailed, DiskFull, KafkaStorageError
from minikafka.log.cleaner import Cleaned
from minikafka.log.compaction import MAP_ENTRY_SIZE, DirtyRange, dirtiest
from minikafka.replication.leader import LeaderReplica
from minikafka.tasks import Flag
from minikafka.types import TopicPartition

if TYPE_CHECKING:
    from minikafka.broker.flusher import Spawn
    from minikafka.broker.live_settings import LiveSettings
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.config import BrokerConfig
    from minikafka.replication.partition import Partition


# How often it is looked for what must be synced; Kafka's scheduler looks every second or less often too.
FLUSH_CHECK_S = 1.0
# Kafka's first retention check comes 30 s after the start.
RETENTION_FIRST_S = 30.0
RETAINED_PER_TURN = 100
"""Partitions that retention looks at in one turn of the loop; the first look reads two small files for each."""


@dataclass(slots=True, eq=False)
class _Duty:
    """One kind of work."""

    name: str
    interval_s: Callable[[BrokerConfig], float]
    """By the settings, which move at run time."""
    work: Callable[[], Callable[[], Awaitable[None]] | None]
    """Returns what is left to do in a task, if anything is. One that is cancelled before it begins never calls it."""
    pause_max_s: float = math.inf
    """Of the pause before the first turn."""
    idle_since: float = 0.0
    """The end of the last turn, at first the start; on the monotonic clock."""
    is_at_work: bool = False
    due_at: float = math.inf
    """When its next turn begins; never while one is under way."""

    def plan(self, settings: BrokerConfig) -> None:
        """Find out when the next turn begins: the last one has ended, or a setting has moved."""
        pause_s = min(self.interval_s(settings), self.pause_max_s)
        self.due_at = math.inf if self.is_at_work else self.idle_since + pause_s


class LogMaintenance:
    """The periodic work of one broker."""

    def __init__(
        self, replicas: ReplicaManager, live: LiveSettings, *, on_disk_failure: Callable[[str], None], spawn: Spawn
    ) -> None:
        self.replicas = replicas
        self._on_disk_failure = on_disk_failure
        self._spawn = spawn
        self._unsynced: dict[TopicPartition, float] = {}
        """Logs that the latest look found unsynced, and since when: their last sync that began here, or the look before
        the first that found them so."""
        self._looked_at = replicas.clock.now()
        self._news = Flag()
        """Something is due earlier than at :attr:`_next_at`: a turn has ended, or a setting has moved."""
        self._next_at = math.inf
        self._live = live
        live.subscribe(self._on_settings)
        unlink_s = max(0.001, live.started_with.log_segment_delete_delay_ms / 1000 / 2)
        self._duties = (
            _Duty("isr-check", lambda now: now.replica_lag_time_max_ms / 2000, replicas.shrink_isrs),
            _Duty(
                "hw-checkpoint",
                lambda now: now.replica_high_watermark_checkpoint_interval_ms / 1000,
                lambda: self.checkpoint_watermarks,
            ),
            _Duty(
                "recovery-point-checkpoint",
                lambda now: now.log_flush_offset_checkpoint_interval_ms / 1000,
                lambda: replicas.logs.checkpoint_recovery_points,
            ),
            _Duty(
                "log-start-checkpoint",
                lambda now: now.log_flush_start_offset_checkpoint_interval_ms / 1000,
                lambda: replicas.logs.checkpoint_start_offsets,
            ),
            _Duty(
                "retention",
                lambda now: now.log_retention_check_interval_ms / 1000,
                lambda: self._retain,
                pause_max_s=RETENTION_FIRST_S,
            ),
            _Duty("flush", lambda _: FLUSH_CHECK_S, self._sync),
            _Duty("unlink", lambda _: unlink_s, replicas.unlink_due),
        )

    def _on_settings(self, settings: BrokerConfig) -> None:
        for duty in self._duties:
            duty.plan(settings)
        self._news.set()

    async def run(self) -> None:
        """Begin each turn when it is due, for as long as the broker runs."""
        clock = self.replicas.clock
        for duty in self._duties:
            duty.idle_since = clock.now()
            duty.plan(self._live.now)
        while True:
            now = clock.now()
            for duty in self._duties:
                if duty.due_at <= now:
                    self._begin(duty)
            self._next_at = min(duty.due_at for duty in self._duties)
            self._news.clear()
            await self._news.wait(self._next_at)

    def _begin(self, duty: _Duty) -> None:
        duty.is_at_work, duty.due_at = True, math.inf
        with self._disk_guard():
            rest = duty.work()
            if rest is None:
                self._end(duty)
            else:
                self._spawn(self._finish(duty, rest), duty.name)

    async def _finish(self, duty: _Duty, rest: Callable[[], Awaitable[None]]) -> None:
        with self._disk_guard():
            await rest()
            self._end(duty)
            if duty.due_at < self._next_at:
                self._news.set()

    def _end(self, duty: _Duty) -> None:
        duty.pause_max_s = math.inf
        duty.idle_since = self.replicas.clock.now()
        duty.is_at_work = False
        duty.plan(self._live.now)

    @contextlib.contextmanager
    def _disk_guard(self) -> Iterator[None]:
        """Report a failure of the disk: the broker stops, and the duty has no next turn."""
        try:
            yield
        except (DiskFailed, DiskFull) as error:
            self._on_disk_failure(str(error))

    async def checkpoint_watermarks(self) -> None:
        """Write replication-offset-checkpoint: where watermarks start after a restart."""
        marks = {name: partition.high_watermark for name, partition in self.replicas.partitions.items()}
        await self.replicas.logs.checkpoint_high_watermarks(marks)

    async def _retain(self) -> None:
        """Delete old segments, never above the high watermark (KAFKA-FACTS 1.5), and forget idle producers."""
        now_ms = self.replicas.clock.wall_ms()
        for number, partition in enumerate(list(self.replicas.partitions.values()), 1):
            if number % RETAINED_PER_TURN == 0:
                await asyncio.sleep(0)
            # The topic may be deleted while this waits for the disk, for this partition or for one before it.
            if self.replicas.hosts(partition) and not partition.failed:
                # The guard reports what the disk did, and takes this replica offline; damaged segments stay, and the
                # log has reported the damage. The others go on.
                with contextlib.suppress(KafkaStorageError, CorruptMessage), self.replicas.storage_guard(partition):
                    await self._retain_one(partition, now_ms)

    async def _retain_one(self, partition: Partition, now_ms: int) -> None:
        log, role = partition.log, partition.role

        def may_start_move() -> bool:
            # A leader that follows meanwhile has another high watermark, which may be lower.
            partition.stir()
            return partition.role is role

        # By the monotonic clock: a calendar that jumps ahead must not make everybody look idle for a day, for who is
        # forgotten may write a batch twice.
        log.expire_producers(int(self.replicas.clock.now() * 1000), high_watermark=partition.high_watermark)
        expired = log.expired_segments(now_ms, partition.high_watermark)
        if not isinstance(partition.role, LeaderReplica):
            # Followers take the leader's log start; they delete only what it has let go.
            expired = [segment for segment in expired if segment.next_offset <= log.start_offset]
        if expired:
            self.replicas.unlink_later(await log.delete_segments(expired, may_start_move), partition.config)

    def _sync(self) -> Callable[[], Awaitable[None]] | None:
        """Begin the syncs that no request asks for: by flush.ms and flush.messages, and of sealed segments, with which
        the recovery point moves on (KAFKA-FACTS 1.3): else a crash would cost a walk over the whole log.
        """
        now = self.replicas.clock.now()
        unsynced: dict[TopicPartition, float] = {}
        wants_checkpoint = False
        for name, partition in list(self.replicas.partitions.items()):
            log = partition.log
            wants_checkpoint |= log.wants_checkpoint and not partition.failed
            if partition.failed or log.synced_end >= log.end_offset:
                continue
            self.replicas.sync_if_due(partition)
            since = unsynced[name] = self._unsynced.get(name, self._looked_at)
            if now - since >= partition.config.flush_ms / 1000 or log.wants_sync:
                self.replicas.flushers[name].start()
                unsynced[name] = now  # what is there now is being synced
        self._unsynced, self._looked_at = unsynced, now
        return self.replicas.logs.checkpoint_recovery_points if wants_checkpoint else None


_SLEEP_MIN_S = 0.001


# ---- compaction ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CleanerMeter:
    """What the last rounds did, for metrics."""

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
        self.uncleanable: dict[Partition, str] = {}
        """Replicas that are damaged, and why. Not by name: a topic that is created again has other logs."""
        self._replicas = replicas
        self._live = live

    def dirty_ranges(self) -> dict[TopicPartition, DirtyRange]:
        """What is dirty of every replica here that is compacted, and neither offline nor damaged."""
        now_ms = self._replicas.clock.wall_ms()
        found: dict[TopicPartition, DirtyRange] = {}
        for name, each in list(self._replicas.partitions.items()):
            if not each.config.compacts or each.failed or each.log.failure is not None or each in self.uncleanable:
                continue
            try:
                with self._replicas.storage_guard(each):
                    found[name] = each.log.dirty_range(high_watermark=each.high_watermark, now_ms=now_ms)
            except CorruptMessage as error:
                self._leave_alone(each, error)
            except KafkaStorageError:
                continue  # the guard has taken the replica offline and reported it to the broker
        return found

    def _leave_alone(self, partition: Partition, error: CorruptMessage) -> None:
        self.uncleanable[partition] = error.message
        self._replicas.events("log_uncleanable", partition=str(partition.partition), why=error.message)

    async def run(self) -> None:
        """Compact for as long as the broker runs."""
        while True:
            if not await self.clean_one():
                await asyncio.sleep(self._live.now.log_cleaner_backoff_ms / 1000)

    async def clean_one(self) -> bool:
        """One round over the log that needs it most; False when none does, or nothing came of it."""
        self.meter.last_look_at = self._replicas.clock.now()
        partitions = self._replicas.partitions
        self.uncleanable = {each: why for each, why in self.uncleanable.items() if self._replicas.hosts(each)}
        ranges = self.dirty_ranges()
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
            self._leave_alone(partition, error)
            return False
        # Without room for the checkpoint, a start reads what is clean once more.
        with self._replicas.storage_guard(partition), contextlib.suppress(DiskFull):
            await self._replicas.logs.checkpoint_clean_ends()
        self._note(partition, dirty, cleaned, self._replicas.clock.now() - began)
        return not cleaned.was_interrupted

    def _note(self, partition: Partition, dirty: DirtyRange, cleaned: Cleaned, round_s: float) -> None:
        meter = self.meter
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
