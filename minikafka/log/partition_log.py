"""One partition on disk: the only door to its segments, epochs and producer state (S1, S21, S28).

Rules for this file:

1. It knows offsets, epochs and bytes; who leads, and how far records are committed, is not its business.
2. Writing is synchronous and in page cache; only :meth:`PartitionLog.sync` makes durable, and only it moves
   ``synced_end`` (D6). After an append or sync has failed, the log takes no more appends (KAFKA-10778).
3. A leader stamps base offset and epoch; a follower stores bytes as they came (D4).
4. Epoch cache and indexes are replaced as whole files at once (they survive kill -9) and synced by ``sync``.

Read segment.py, then durability.py, then recovery.py; health.py says when nothing may be written any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial

from minikafka.config import LONG_MAX, TopicConfig
from minikafka.errors import CorruptMessage, DiskFailed, DiskFull, OffsetOutOfRange
from minikafka.invariant import InvariantViolation, invariant
from minikafka.log import compaction
from minikafka.log.checkpoint import (
    BadCheckpoint,
    format_holes_end,
    format_partition_metadata,
    names_former,
    parse_partition_metadata,
)
from minikafka.log.cleaner import Cleaned, Cleaner, Pause, settle
from minikafka.log.compaction import DirtyRange
from minikafka.log.disk_reader import DiskReader
from minikafka.log.durability import Durability, EpochCheckpoint, LogHealth
from minikafka.log.limits import check_limits
from minikafka.log.names import GAPS, LOG, PARTITION_METADATA, TEMPORARY
from minikafka.log.recovery import LoadedLog, load, may_have_gaps
from minikafka.log.segment import RELATIVE_MAX, Segment
from minikafka.log.segment_store import SegmentAge, SegmentStore, expired_count
from minikafka.log.tail import COPIED_SIZE_MAX, LogSlice, MemoryTail
from minikafka.log.transactions import AbortedTransaction
from minikafka.log.verification import VerificationGuard
from minikafka.ports import Buffer, Buffers, Disk, Events, no_events
from minikafka.types import (
    NO_EPOCH,
    NO_OFFSET,
    NO_TOPIC_ID,
    Epoch,
    EpochEnd,
    Offset,
    TopicId,
    TopicPartition,
)
from minikafka.wire.batch import (
    CONTROL_BIT,
    NO_TIMESTAMP,
    PLAIN,
    RecordBatch,
    stamped,
    stamped_log_append_time,
    verify,
)
from minikafka.wire.markers import EndTransaction, marker_of

__all__ = ["AppendInfo", "LogSlice", "PartitionLog"]

TAIL_SIZE_MAX = 2 * 1024 * 1024
"""Default size of the memory tail: two full fetches of the largest default size."""


class AppendInfo:
    """Where a batch now stands. No tuple: compiled, a class is made and read several times as fast."""

    __slots__ = ("base_offset", "duplicate", "last_offset", "log_append_time_ms")

    def __init__(
        self,
        base_offset: Offset,
        last_offset: Offset,
        log_append_time_ms: int = NO_TIMESTAMP,
        duplicate: bool = False,  # noqa: FBT001, FBT002 - hot
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        """-1 with CreateTime."""
        self.duplicate = duplicate
        """Nothing was written: an idempotent producer sent it before (KIP-98)."""

    def __repr__(self) -> str:
        return f"<appended {self.base_offset}..{self.last_offset}{' before' if self.duplicate else ''}>"


class PartitionLog:
    """Append, read, cut and sync one replica's records. Offsets are half-open: ``[start_offset, end_offset)``."""

    def __init__(
        self,
        disk: Disk,
        partition: TopicPartition,
        config: TopicConfig,
        loaded: LoadedLog,
        durability: Durability,
        store: SegmentStore,
        *,
        topic_id: TopicId,
        events: Events,
        tail_size_max: int,
    ) -> None:
        self.partition = partition
        self.config = config
        self.topic_id = topic_id
        self.start_offset = loaded.start_offset
        """The first offset that can be read."""
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.report = loaded.report
        self.has_gaps = loaded.has_gaps
        """Compaction has left offsets out, here or where it was copied from."""
        self.clean_end: Offset | None = None
        """Where the last round of compaction stopped; None: there was none in this log."""
        self.tail = MemoryTail(tail_size_max)
        self._disk = disk
        self._events = events
        self._folder = str(partition)
        self._store = store
        self._durability = durability
        self._health = LogHealth(partition, events)
        self._reader = DiskReader(partition, store, self._health, events)
        self._epoch_checkpoint = EpochCheckpoint(disk, self._folder, loaded.epochs, durability, self._health)
        self._sync_failure: str | None = None
        self._rewrites = 0

    @classmethod
    def open(
        cls,
        disk: Disk,
        partition: TopicPartition,
        config: TopicConfig,
        *,
        clean: bool = False,
        recovery_point: Offset | None = 0,
        start_offset: Offset = 0,
        high_watermark: Offset | None = None,
        topic_id: TopicId | None = None,
        has_former: bool = False,
        events: Events = no_events,
        save_start: Callable[[], Awaitable[None]] | None = None,
        tail_size_max: int = TAIL_SIZE_MAX,
        copies: Mapping[str, str] | None = None,
    ) -> PartitionLog:
        """Open or create the log in folder ``<topic>-<partition>``; see ``recovery.py`` for what is believed.

        ``high_watermark`` is the checkpointed one: transactions that ended at or above it may still be undone; None:
        there are no such. ``topic_id`` is written to partition.metadata of a new log, before its first record, and with
        it ``has_former``: checkpoints on disk may name the partition for another log. Raises MisfitLog, DiskFailed, and
        with ``copies`` UnsyncedCopy (see ``recovery.load``).
        """
        folder = str(partition)
        is_new = not disk.exists(folder)
        path = f"{folder}/{PARTITION_METADATA}"
        known = topic_id_of(disk, partition)
        if known == NO_TOPIC_ID and topic_id is not None:
            disk.replace_file(path, format_partition_metadata(topic_id, has_former=has_former))
        loaded = load(
            disk,
            folder,
            config,
            clean=clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
            high_watermark=high_watermark,
            on_rebuilt=partial(_tell_rebuilt, events, folder),
            copies=copies,
        )
        point = recovery_point or 0
        synced_end = loaded.trusted_end if clean else min(point, loaded.trusted_end)
        durability = Durability(disk, folder, synced_end=synced_end, save_start=save_start)
        log = cls(
            disk,
            partition,
            config,
            loaded,
            durability,
            SegmentStore(disk, folder, loaded, durability, disk_recovery_point=point),
            topic_id=topic_id if known == NO_TOPIC_ID and topic_id is not None else known,
            events=events,
            tail_size_max=tail_size_max,
        )
        log._opened(loaded, is_new=is_new, wrote_metadata=known == NO_TOPIC_ID and topic_id is not None)
        return log

    def _opened(self, loaded: LoadedLog, *, is_new: bool, wrote_metadata: bool) -> None:
        if is_new or not self.report.clean:
            self._durability.created()
        if not self._store.active.size:
            invariant(self._store.active.file.size() == 0, "an empty segment has an empty file", log=self)
        if wrote_metadata or (self.topic_id != NO_TOPIC_ID and not self.report.clean):
            # A process that was killed may have left it, and the name of the folder, in the page cache. Without its
            # topic's id a log is nobody's.
            self._durability.replaced(f"{self._folder}/{PARTITION_METADATA}")
        if self._store.restarted_at is not None:
            # A recovery point on disk is of the log before.
            self._durability.withdraw()
            self._durability.start_moved()
        if self.has_gaps and not loaded.marks_gaps:
            self._mark_gaps(loaded.holes_end)
        if not self.report.clean:
            # Its end may have been cut, here or by the process before, and that is not durable yet.
            self._store.active.cut_write = self._store.active.writes if self._store.active.size else 0
            self._durability.folder_changed()
            if not is_new:
                self._store.note_removal()
            if not self._epoch_checkpoint.is_right:
                self._epoch_checkpoint.save()
            elif self.has_gaps:
                self._epoch_checkpoint.must_be_synced()
            if loaded.marks_gaps:
                # Not written again: it may be durable, and the next power cut would tear it.
                self._wait_for_gaps_marker()
            for segment in self._store.segments[:-1]:
                if segment.is_dirty:
                    self._store.save_indexes(segment)
        self._tell_opened(is_new=is_new)

    def _tell_opened(self, *, is_new: bool) -> None:
        for dropped in self.report.dropped:
            if dropped.kept_as:
                self._events(
                    "segment_set_aside",
                    partition=str(self.partition),
                    path=dropped.kept_as,
                    size=dropped.size,
                    reason=dropped.reason,
                )
                continue
            self._events(
                "torn_tail_dropped",
                partition=str(self.partition),
                path=dropped.path,
                position=dropped.position,
                size=dropped.size,
                reason=dropped.reason,
                below_recovery_point=dropped.below_recovery_point,
            )
        if not is_new:
            self._events(
                "log_opened",
                partition=str(self.partition),
                clean=self.report.clean,
                start=self.start_offset,
                end=self.end_offset,
                checked=self.report.checked_count,
                notes=self.report.notes,
            )

    # ------------------------------------------------------------------------------------- where it stands

    @property
    def end_offset(self) -> Offset:
        """The next offset to be written: LEO (S1)."""
        return self._store.segments[-1].next_offset

    @property
    def synced_end(self) -> Offset:
        """Everything below survives a power cut: a completed sync covered it."""
        return self._durability.synced_end

    @property
    def was_synced(self) -> bool:
        """Return True if a sync had covered it, or some of it, when it was opened."""
        return self.report.clean or self.report.recovery_point > 0

    @property
    def recovery_point(self) -> Offset:
        """What may be checkpointed: after a crash, only segments from the one before it on are walked."""
        return self._store.recovery_point

    @property
    def last_epoch(self) -> Epoch:
        """The latest leader epoch known, NO_EPOCH if none (S21)."""
        return self.epochs.latest

    @property
    def size_bytes(self) -> int:
        """Bytes of batches in all segments."""
        return sum(segment.size for segment in self._store.segments)

    @property
    def segment_count(self) -> int:
        return len(self._store.segments)

    @property
    def wants_sync(self) -> bool:
        """Return True if a sealed segment must be synced, or a roll waits for one: a driver then calls ``sync``."""
        return self._store.roll_is_put_off or any(segment.is_dirty for segment in self._store.segments[-2:-1])

    @property
    def restart_is_unsynced(self) -> bool:
        """Return True if the log begins again, and a follower has to sync that before it appends.

        If it did not: 1. power cut; 2. the removal of the old segments is undone, and the new one is kept without the
        marker of the restart; 3. the old records join the new ones, and no leader has them.
        """
        return self._store.restart_is_unsynced

    @property
    def wants_checkpoint(self) -> bool:
        """Return True if the log was cut below a recovery point that the disk may have: rolls wait for another one."""
        return self._store.disk_recovery_point > self.end_offset

    @property
    def failure(self) -> str | None:
        """Why it takes no more appends; None while it does."""
        return self._health.failure

    def describe(self) -> str:
        """One fixed-width line for transcripts and traces."""
        return (
            f"{self._folder:<20} start={self.start_offset:<8} end={self.end_offset:<8} synced={self.synced_end:<8}"
            f" e{self.last_epoch:<4} segments={self.segment_count:<4} size={self.size_bytes}"
        )

    def __repr__(self) -> str:
        return (
            f"<log {self._folder} start={self.start_offset} end={self.end_offset} synced={self.synced_end}"
            f" e{self.last_epoch} segments={self.segment_count} size={self.size_bytes}>"
        )

    # ------------------------------------------------------------------------------------- appending

    def append_as_leader(
        self,
        batch: RecordBatch,
        *,
        leader_epoch: Epoch,
        wall_ms: int,
        marker: EndTransaction | None = None,
        guard: VerificationGuard | None = None,
        sequencing: int = PLAIN,
    ) -> AppendInfo:
        """Stamp and append a client's batch (already through ``verify_client``), or the batch of ``marker``.

        ``wall_ms``: milliseconds since 1970, for LogAppendTime and the bounds of timestamps. ``guard``: that of a
        transactional batch (``verification.py``). ``sequencing``: how its sequence is compared (``wire/batch.py``).
        Raises MessageTooLarge, RecordListTooLarge, InvalidTimestamp, OutOfOrderSequenceNumber, InvalidProducerEpoch,
        InvalidTxnState; TransactionCoordinatorFenced for a marker; KafkaStorageError once the log has failed.
        """
        config = self.config
        self._health.check_writable()
        if leader_epoch < self.epochs.latest:
            raise InvariantViolation(f"leader epochs never fall along a log (epoch={leader_epoch} log={self})")
        if marker is None:
            # First: a batch that is in the log already is no larger than the limits were then.
            duplicate = self.producers.check(batch, guard, sequencing)
            if duplicate is not None:
                append_time = duplicate.timestamp if config.uses_append_time else NO_TIMESTAMP
                return AppendInfo(duplicate.base_offset, duplicate.last_offset, append_time, duplicate=True)
            check_limits(batch, config, wall_ms=wall_ms, log=self._folder)
        else:
            self.producers.check_marker(marker)
        base_offset = self._store.segments[-1].next_offset
        max_timestamp, append_time = batch.max_timestamp, NO_TIMESTAMP
        stored: Buffers
        if config.uses_append_time:
            max_timestamp = append_time = wall_ms
            stored = stamped_log_append_time(
                batch, base_offset=base_offset, leader_epoch=leader_epoch, timestamp_ms=wall_ms
            )
        else:
            stored = stamped(batch, base_offset=base_offset, leader_epoch=leader_epoch)
        size = len(batch.data)
        is_joined = size <= COPIED_SIZE_MAX or not batch.data.readonly
        data: tuple[Buffer, ...] = (b"".join(stored),) if is_joined else tuple(stored)
        last_offset = base_offset + batch.last_offset_delta
        if self._store.must_roll(config, size=size, last_offset=last_offset, max_timestamp=max_timestamp):
            self._roll(base_offset)
        self._write(data, size=size, last_offset=last_offset, max_timestamp=max_timestamp, offset_of_max=last_offset)
        if self.epochs.assign(leader_epoch, base_offset) or self._epoch_checkpoint.is_late:
            self._epoch_checkpoint.save()
        aborted = self.producers.note(
            batch,
            base_offset=base_offset,
            timestamp=max_timestamp,
            marker=marker,
        )
        if aborted is not None:
            self._store.note_aborted(aborted)
        self.tail.append(base_offset=base_offset, next_offset=last_offset + 1, buffers=data, size=size)
        return AppendInfo(base_offset, last_offset, append_time)

    def append_as_follower(self, batches: Sequence[RecordBatch]) -> AppendInfo:
        """Append the leader's batches as they are: checksums and offsets are checked, nothing is changed.

        Raises CorruptMessage or InvalidRecord before anything is written; KafkaStorageError once the log has failed.
        """
        self._health.check_writable()
        first_offset = expected = self.end_offset
        for batch in batches:
            verify(batch.data)
            if batch.base_offset < expected or (batch.base_offset > expected and not self._may_have_gaps):
                raise CorruptMessage(f"{self._folder}: batch at {batch.base_offset}, the log goes on at {expected}")
            if batch.base_offset > expected or batch.record_count <= batch.last_offset_delta:
                self.note_gaps()
            if batch.attributes & CONTROL_BIT:
                marker_of(batch)  # one that cannot be read is refused before anything is written
            expected = batch.next_offset
        pending: list[RecordBatch] = []
        pending_size = 0
        for batch in batches:
            if self._store.must_roll_for(self.config, batch, pending_size=pending_size):
                if pending:
                    self._write_set(pending, pending_size)
                    pending, pending_size = [], 0
                if self._store.must_roll_for(self.config, batch, pending_size=0):
                    # At the end, not where the batch begins: a hole between segments is taken for a loss.
                    is_near = batch.last_offset - self.end_offset <= RELATIVE_MAX
                    self._roll(self.end_offset if is_near else batch.base_offset)
            pending.append(batch)
            pending_size += batch.size
        if pending:
            self._write_set(pending, pending_size)
        # Nobody fetches from a follower; what stands in memory from an earlier leadership only takes room.
        self.tail.clear()
        return AppendInfo(batches[0].base_offset if batches else first_offset, self.end_offset - 1)

    @property
    def _may_have_gaps(self) -> bool:
        return self.has_gaps or may_have_gaps(self.config)

    def note_gaps(self) -> None:
        """From now on offsets are left out; a file says so, whatever ``cleanup.policy`` will be when this is opened."""
        if not self.has_gaps:
            with self._health.during("marker of gaps"):
                self._mark_gaps()

    def _mark_gaps(self, holes_end: Offset = 0) -> None:
        self._disk.replace_file(f"{self._folder}/{GAPS}", format_holes_end(holes_end))
        self._wait_for_gaps_marker()

    def _wait_for_gaps_marker(self) -> None:
        self._durability.replaced(f"{self._folder}/{GAPS}")
        self.has_gaps = self._store.waits_for_gaps_marker = True

    def _write_set(self, batches: list[RecordBatch], size: int) -> None:
        is_first = self.end_offset == self.start_offset
        newest = max(batches, key=lambda batch: batch.newest_timestamp)
        self._write(
            [batch.data for batch in batches],
            size=size,
            last_offset=batches[-1].last_offset,
            max_timestamp=newest.newest_timestamp,
            offset_of_max=newest.last_offset,
        )
        changed = self._epoch_checkpoint.is_late
        for batch in batches:
            changed |= self.epochs.assign(batch.leader_epoch, batch.base_offset)
            aborted = self.producers.note(batch, base_offset=batch.base_offset, timestamp=batch.max_timestamp)
            if aborted is not None:
                self._store.note_aborted(aborted)
        if is_first and batches[0].leader_epoch != NO_EPOCH:
            changed |= self.epochs.begin_at(self.start_offset)
        if changed:
            self._epoch_checkpoint.save()

    def _write(
        self, data: Sequence[Buffer], *, size: int, last_offset: Offset, max_timestamp: int, offset_of_max: Offset
    ) -> None:
        try:
            self._store.segments[-1].append(
                data,
                size=size,
                last_offset=last_offset,
                max_timestamp=max_timestamp,
                offset_of_max=offset_of_max,
                index_interval_bytes=self.config.index_interval_bytes,
            )
        except (DiskFull, DiskFailed) as error:
            raise self._health.failed("append", error) from error

    def roll(self) -> None:
        """Seal the active segment, unless it is empty."""
        self._health.check_writable()
        if self._store.active.size:
            self._roll(self.end_offset)

    def _roll(self, base_offset: Offset) -> None:
        """The next segment begins with the batch at ``base_offset``; may be put off until a sync."""
        sealed_size = self._store.active.size
        with self._health.during("roll"):
            rolled = self._store.roll(base_offset, size_max=self.config.max_message_bytes)
        if rolled:
            self._events("segment_rolled", partition=str(self.partition), base=base_offset, sealed_size=sealed_size)

    # ------------------------------------------------------------------------------------- reading

    def read(
        self,
        offset: Offset,
        *,
        max_bytes: int,
        end_offset: Offset | None = None,
        min_one_batch: bool = True,
        as_region: bool = False,
    ) -> LogSlice:
        """Whole batches from the one that holds ``offset``, none that reaches ``end_offset`` (default: LEO) or beyond.

        At most ``max_bytes``; with ``min_one_batch`` the first batch comes whatever its size (KIP-74). Empty at or
        above ``end_offset``. With ``as_region`` the one buffer of the result may be a :class:`FileRegion`. Raises
        OffsetOutOfRange below the start or above LEO, KafkaStorageError when the disk fails.
        """
        end = self.end_offset if end_offset is None else min(end_offset, self.end_offset)
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"{self._folder}: offset {offset} is outside {self.start_offset}..{self.end_offset}",
                log_start_offset=self.start_offset,
                log_end_offset=self.end_offset,
            )
        if offset >= end:
            return LogSlice((), 0, offset, offset)
        held = self.tail.read(offset, end_offset=end, max_bytes=max_bytes, min_one_batch=min_one_batch)
        if held is not None:
            return held
        return self._reader.read(offset, end=end, max_bytes=max_bytes, min_one_batch=min_one_batch, as_region=as_region)

    def stable_end(self, high_watermark: Offset) -> Offset:
        """The last stable offset: below it every transaction has ended and its marker is committed (KIP-98).

        A transaction whose first records were deleted begins at the log's start.
        """
        stable_end = self.producers.transactions.stable_end(high_watermark)
        return stable_end if stable_end >= self.start_offset else min(self.start_offset, high_watermark)

    def aborted_transactions(self, offset: Offset, end_offset: Offset) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in ``[offset, end_offset)``, maybe more."""
        return self._store.aborted_transactions(offset, end_offset)

    def batch_at_or_after(self, timestamp: int, start_offset: Offset, end_offset: Offset) -> RecordBatch | None:
        """The first batch with offsets in ``[start_offset, end_offset)`` and a record at or after ``timestamp`` (ms).

        Only headers are read: ``timestamps.first_at_or_after`` looks for the record, within :meth:`reading`. If there
        is none in the batch, ask again from its ``next_offset``.
        """
        start = max(start_offset, self.start_offset)
        return self._reader.batch_at_or_after(timestamp, start=start, end=min(end_offset, self.end_offset))

    def newest_timestamp(self, end_offset: Offset) -> int:
        """The largest timestamp (ms) below ``end_offset`` (ListOffsets -3); -1: there are no records."""
        return self._reader.newest_timestamp(start=self.start_offset, end=min(end_offset, self.end_offset))

    def reading(self) -> AbstractContextManager[None]:
        """Around whatever reads batches of this log: CorruptMessage and KafkaStorageError name the log."""
        return self._reader

    # ------------------------------------------------------------------------------------- epochs

    def end_offset_for(self, epoch: Epoch) -> EpochEnd:
        """Where ``epoch`` ends in this log (S21, KIP-279)."""
        return self.epochs.end_offset_for(epoch, self.end_offset)

    def assign_epoch(self, epoch: Epoch, start_offset: Offset) -> None:
        """A new leader's epoch begins, even without records (KAFKA-7415)."""
        invariant(start_offset <= self.end_offset, "an epoch begins within the log", start=start_offset, log=self)
        self._health.check_writable()
        is_next = epoch > self.epochs.latest and start_offset == self.end_offset
        if self.epochs.assign(epoch, start_offset):
            if is_next:
                self._epoch_checkpoint.save_with_records()
            else:
                self._epoch_checkpoint.save()

    # ------------------------------------------------------------------------------------- cutting

    def truncate_to(self, offset: Offset) -> int:
        """Keep whole batches below ``offset``; how many offsets went. KafkaStorageError when the disk fails."""
        self._health.check_writable()
        old_end = self.end_offset
        if offset < old_end and offset <= self.start_offset:
            self._restart(offset)  # nothing that can be read is left
            return old_end - offset
        if offset < old_end:
            self._cut(offset)
            if self.end_offset < self.start_offset:  # the start lay inside the batch that went
                self._restart(self.start_offset)
        # Always: an epoch that began at the end without records must go as well (KAFKA-10706).
        if self.epochs.truncate_from_end(min(offset, self.end_offset)):
            self._epoch_checkpoint.save()
        if self.end_offset < old_end:
            self._events("log_truncated", partition=str(self.partition), old=old_end, new=self.end_offset)
        return old_end - self.end_offset

    def _cut(self, offset: Offset) -> None:
        try:
            self._store.cut(offset)
        except (DiskFull, DiskFailed, CorruptMessage) as error:
            raise self._health.failed("truncation", error) from error
        if self.clean_end is not None:
            self.clean_end = min(self.clean_end, self.end_offset)
        self.tail.truncate(self.end_offset)

    def restart_at(self, offset: Offset) -> None:
        """Drop all and begin an empty log at ``offset``. ``synced_end`` is 0 until the next sync."""
        self._health.check_writable()
        self._restart(offset)

    def _restart(self, offset: Offset) -> None:
        old_end = self.end_offset
        with self._health.during("restart"):
            self._store.restart(offset)
        self.start_offset = offset
        self.clean_end = None
        self.tail.clear()
        self.epochs.clear()
        self._epoch_checkpoint.save()
        self._events("log_restarted", partition=str(self.partition), old=old_end, new=offset)

    # ------------------------------------------------------------------------------------- the start

    def raise_start(self, offset: Offset) -> bool:
        """Records below ``offset`` can no longer be read (DeleteRecords, the leader's start); False: no change."""
        invariant(offset <= self.end_offset, "the log start is within the log", offset=offset, log=self)
        if offset <= self.start_offset:
            return False
        self._health.check_writable()
        self.start_offset = offset
        self._durability.start_moved()
        if self.epochs.truncate_from_start(offset):
            self._epoch_checkpoint.save()
        self._events("log_start_raised", partition=str(self.partition), start=offset)
        return True

    def expired_segments(self, now_ms: int, high_watermark: Offset) -> list[Segment]:
        """The oldest segments that retention lets go, none that ends above ``high_watermark``."""
        # A sealed one may be empty, too: its file was emptied while the broker was stopped.
        segments = [segment for segment in self._store.segments if segment.size or segment is not self._store.active]
        count = expired_count(
            map(self._age, segments),  # one by one, also where this is compiled: a comprehension is a list there
            self.config,
            size=self.size_bytes,
            now_ms=now_ms,
            start_offset=self.start_offset,
            high_watermark=high_watermark,
        )
        doubtful = segments[:count]
        if segments[count:] and segments[count].max_timestamp > now_ms:
            doubtful = segments[: count + 1]  # nothing would ever be deleted
        if sum(not segment.check_newest() for segment in doubtful):
            return self.expired_segments(now_ms, high_watermark)
        return segments[:count]

    def _age(self, segment: Segment) -> SegmentAge:
        return SegmentAge(end_offset=segment.next_offset, size=segment.size, newest_ms=self._newest_ms(segment))

    def _newest_ms(self, segment: Segment) -> int:
        if segment.max_timestamp != NO_TIMESTAMP:
            return segment.max_timestamp
        return self._disk.modified_ms(segment.path(LOG))

    async def delete_segments(
        self, segments: Sequence[Segment], may_start_move: Callable[[], bool] | None = None
    ) -> list[str]:
        """Let ``segments``, the oldest ones, go: the start moves, is made durable, then the files are renamed.

        ``may_start_move`` is asked right before the start moves, for this may wait for the disk until then, and what
        made the segments expire may no longer hold.
        Gives the ``.deleted`` paths, to be removed after ``file.delete.delay.ms``. Raises DiskFailed and
        KafkaStorageError; CorruptMessage, and nothing goes, if damage hides what idempotent producers wrote last.
        """
        held = self._store.segments
        doomed = [segment for segment in held if any(segment is other for other in segments)]
        if not doomed:
            return []
        invariant(doomed == held[: len(doomed)], "only the oldest segments may go", log=self, doomed=doomed)
        if doomed[-1] is held[-1]:
            self.roll()
            if doomed[-1] is held[-1]:
                return []  # the roll waits for a sync
        await self._keep_producers(held[len(doomed)].base_offset)
        if self.is_closed or held[: len(doomed)] != doomed:
            return []  # cut, restarted or compacted meanwhile: the next round decides anew
        end = doomed[-1].next_offset
        if may_start_move is not None and not may_start_move():
            return []
        self.raise_start(end)
        await self._durability.save_start()
        self._health.check_writable()
        renamed = []
        # Meanwhile the log may have been cut or restarted: only what is still its oldest part goes.
        while held[0] in doomed and len(held) > 1 and held[1].base_offset <= end:
            renamed += self._store.delete_oldest()
        self._events("segments_deleted", partition=str(self.partition), count=len(doomed), start=self.start_offset)
        return renamed

    async def _keep_producers(self, base: Offset) -> None:
        """Before the segments below ``base`` go: a durable snapshot has what idempotent producers wrote last.

        1. A record's response is lost. 2. Its segment is rolled and deleted. 3. Power cut, with the snapshot of the
        roll not synced. 4. The record's retry would be appended again.
        """
        with self._reader, self._health.during("snapshot"):
            self._store.make_snapshot_at(base)
        if not self._durability.all_names_synced:
            await self.sync()

    # ------------------------------------------------------------------------------------- compaction

    def dirty_range(self, *, high_watermark: Offset, now_ms: int) -> DirtyRange:
        """What compaction may clean now; see ``compaction.py``. Raises CorruptMessage and KafkaStorageError."""
        with self._reader:
            facts = [self._facts(segment) for segment in self._store.segments]
        return compaction.dirty_range(
            facts,
            self.config,
            checkpoint=self.clean_end,
            start_offset=self.start_offset,
            committed_end=min(self.stable_end(high_watermark), self.synced_end),
            now_ms=now_ms,
        )

    def _facts(self, segment: Segment) -> compaction.SegmentFacts:
        return compaction.SegmentFacts(
            base_offset=segment.base_offset,
            end_offset=segment.next_offset,
            size=segment.size,
            index_size=max(segment.index.size, segment.time_index.size),
            first_timestamp=segment.first_timestamp if self.config.max_compaction_lag_ms < LONG_MAX else NO_TIMESTAMP,
            newest_ms=self._newest_ms(segment),
        )

    async def clean(
        self, dirty: DirtyRange, *, memory_bytes: int, clock_ms: Callable[[], int], pause: Pause
    ) -> Cleaned:
        """One round of compaction over ``dirty``; see ``cleaner.py``.

        ``memory_bytes`` bounds the map of keys. Raises CorruptMessage, after which what stands before the damage may
        be cleaned, and KafkaStorageError. A full disk is no error: the round is put off.
        """
        self._health.check_writable()
        cleaner = Cleaner(
            self._disk,
            self._folder,
            self._store,
            self._durability,
            self.config,
            self.epochs,
            facts_of=self._facts,
            clock_ms=clock_ms,
            pause=pause,
            on_swap=lambda segment: self.tail.drop_before(segment.next_offset),
        )
        try:
            with self._reader:
                if not self.has_gaps:
                    self._mark_gaps()
                if await self._has_durable_marker():
                    cleaned = await cleaner.clean(dirty, memory_bytes=memory_bytes)
                else:
                    cleaned = Cleaned(was_interrupted=True)
        except DiskFull as error:
            # Nothing was replaced by what could not be written; deletions elsewhere may make room.
            self._events("compaction_put_off", partition=str(self.partition), why=str(error))
            cleaned = cleaner.cleaned
            cleaned.was_interrupted = True
        if not cleaned.was_interrupted and cleaned.end_offset != NO_OFFSET:
            self.clean_end = min(cleaned.end_offset, self.end_offset)
        return cleaned

    async def _has_durable_marker(self) -> bool:
        """Wait for the marker of gaps. Return False if the log was cut or closed meanwhile."""
        cut_count = self._store.cut_count
        if self._store.waits_for_gaps_marker:
            await self._durability.sync_small_files()
            self._store.waits_for_gaps_marker = False
        return not self._store.is_closed and self._store.cut_count == cut_count

    def expire_producers(self, now_ms: int, *, high_watermark: Offset) -> int:
        """Forget producers idle for ``producer.id.expiration.ms``; how many. ``now_ms`` is of the monotonic clock."""
        idle_max_ms = self.config.producer_id_expiration_ms
        return self.producers.expire(now_ms=now_ms, idle_max_ms=idle_max_ms, high_watermark=high_watermark)

    # ------------------------------------------------------------------------------------- durability

    @property
    def is_closed(self) -> bool:
        """A closed log is neither read nor written; :meth:`sync` does nothing."""
        return self._health.is_closed

    async def sync(self) -> None:
        """Make durable what stands in the log now, then move ``synced_end`` (D6).

        Right also when the log is appended to, rolled or cut meanwhile, and when several run at once. DiskFailed is
        fatal for this log: the system may have dropped what it could not write.
        """
        if self._health.is_closed:
            return
        if self._sync_failure is not None:
            raise DiskFailed(self._sync_failure)
        marked_gaps = self.has_gaps
        try:
            await self._durability.sync(self.end_offset, self._store.segments)
        except (DiskFailed, DiskFull) as error:
            self._sync_failure = self._health.failed("sync", error).message
            raise
        if self.is_closed:
            return  # a new log may have its folder's name
        invariant(self.synced_end <= max(self.end_offset, 0), "nothing beyond the end is synced", log=self)
        self._store.roll_is_put_off = False
        if marked_gaps:
            self._store.waits_for_gaps_marker = False
        if self._durability.start_is_saved:
            self._store.remove_restart_marker()

    async def forget_former(self) -> None:
        """No checkpoint on disk names a former log of this partition any more: durably say no longer that one may.

        Names change on the loop only, and only while the folder is this log's: it may be renamed at any await.
        """
        path = f"{self._folder}/{PARTITION_METADATA}"
        if self.is_closed:
            return
        self._rewrites += 1  # several may do this at once
        temporary = f"{path}.{self._rewrites}{TEMPORARY}"
        self._disk.replace_file(temporary, format_partition_metadata(self.topic_id))
        with closing(self._disk.open(temporary)) as file:
            await file.sync()
        if self._health.is_closed:
            return
        self._disk.replace(temporary, path)
        try:
            await self._disk.sync_folder(self._folder)
        except DiskFailed:
            if not self._health.is_closed:
                raise

    def recovery_point_checkpointed(self, offset: Offset, *, done: bool) -> None:
        """The checkpoint on disk may say ``offset`` from now on; with ``done`` it says nothing else any more."""
        self._store.disk_recovery_point = offset if done else max(offset, self._store.disk_recovery_point)

    async def settle(self) -> None:
        """Finish what a round of compaction was swapping in when it was interrupted, each step durable before the next:
        a power cut must not leave the old segments' removal without the new one. KafkaStorageError.
        """
        self._health.check_writable()
        with self._health.during("swap"):
            await settle(self._disk, self._folder, self._store)

    def prepare_close(self) -> None:
        """Write what a clean stop leaves: the last indexes and a producer snapshot; then ``sync``, ``close``.

        When compaction may have been interrupted, :meth:`settle` comes before it.
        """
        self._health.check_writable()
        if self.report.clean and self._store.is_as_found:
            return  # whatever else has changed, such as the leader epochs, was written at once
        with self._health.during("closing"):
            self._store.leave_swap()
            self._store.save_indexes(self._store.active)
            self._store.take_snapshot()
        self._epoch_checkpoint.save()

    def close(self) -> None:
        """Let go of the files; unsynced data stays in the page cache. Nothing can be read or written afterwards."""
        self.retire("closed")

    def retire(self, reason: str) -> None:
        """Take the log out of service: its folder may be renamed now. Nothing is left to wait for a sync."""
        self._health.retire(reason)
        self._durability.abandon(self.end_offset)
        self.tail.clear()
        self._store.close()


def _tell_rebuilt(events: Events, partition: str, why: str) -> None:
    events("index_rebuilt", partition=partition, why=why)


def topic_id_of(disk: Disk, partition: TopicPartition) -> TopicId:
    """Return the topic id in the partition's folder; NO_TOPIC_ID if there is none that can be read."""
    try:
        return parse_partition_metadata(disk.read_file(f"{partition}/{PARTITION_METADATA}"))
    except (FileNotFoundError, BadCheckpoint):
        return NO_TOPIC_ID


def has_former_log(disk: Disk, partition: TopicPartition) -> bool:
    """Return True if checkpoints may name the partition for a log that had its folder before."""
    try:
        return names_former(disk.read_file(f"{partition}/{PARTITION_METADATA}"))
    except FileNotFoundError:
        return False
