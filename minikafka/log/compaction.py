"""What compaction may do and keeps, and which log comes first: Kafka's rules, pure (KAFKA-FACTS 1.5, KIP-58, KIP-98,
KIP-354, KIP-534).

Rules for this file:

1. A log is *clean* below its first dirty offset, where the last round of cleaning stopped, and *dirty* above it. Dirty
   records are cleaned by whole segments, never the active one, nothing above the last stable offset or younger than
   ``min.compaction.lag.ms``. Differs from Kafka: nothing that is not yet synced here, for a record goes because a later
   one replaces it, and a power cut must not take that one too.
2. Of each key the record with the largest offset stays; offsets never change.
3. A tombstone stays until ``delete.retention.ms`` after it was first cleaned; then it goes like a value.
4. The last batch of each segment that is written stays, if need be without records: the log's end, and where the next
   segment begins, survive (KAFKA-17076). So does the last batch of each producer, which holds its last sequence.
   Differs from Kafka: what may still be cut off does not count as the last one.
5. The first batch of each leader epoch stays as well. Differs from Kafka: who has only the batches, a copy or a log
   that is recovered, would else believe that the epoch before it ended later, and tell a replica with foreign records
   to keep them (S21).

Rules for transactions, which :class:`BatchFilter` applies with those above to one batch after the other:

1. Every transaction with a batch in what is read has ended, because cleaning stops below the last stable offset. So
   which of them were aborted is known before the first batch is read (KAFKA-13727, KAFKA-8351).
2. Records of aborted transactions go at once and replace nothing: their keys are not mapped.
3. A marker stays while a batch of its transaction was read in this round, be it without records. So it goes in a later
   round than its data, and a crash between two segments leaves a marker without data, never data without a marker.
4. A marker without data stays until ``delete.retention.ms`` after the first round that found it so: a follower or a
   consumer that has read the data reads the marker too.
5. A marker that is the last word of a producer that may still send stays, whole. Differs from Kafka, which keeps its
   header: a log that is recovered from its batches then knows neither the producer's epoch nor the coordinator's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from minikafka.config import LONG_MAX, TopicConfig
from minikafka.log.epochs import EpochCache
from minikafka.log.producer_state import ProducerState
from minikafka.log.segment import RELATIVE_MAX
from minikafka.log.transaction_index import TransactionIndex
from minikafka.log.transactions import AbortedTransaction
from minikafka.types import NO_OFFSET, Offset
from minikafka.wire.batch import RecordBatch
from minikafka.wire.decompression import decompression_limit
from minikafka.wire.markers import marker_of
from minikafka.wire.rewrite import RecordSlice, delete_horizon, emptied, slices, thinned

RECORD_COUNT_MAX = 100_000
"""Records of a batch that is opened: about 60 MB of views. A compressed batch of 1 MiB may hold a million."""

_DIGEST_SIZE = 16
MAP_ENTRY_SIZE = 160
"""Bytes of memory that one key takes in an :class:`OffsetMap`: digest, offset and its place in the dict.

Measured with tracemalloc on CPython 3.11: 141 at most, and 19 by which the allocator rounds up; for the moment in
which the dict grows 30 more.
"""

Name = TypeVar("Name")


class OffsetMap:
    """Key -> its last offset in the dirty part, in bounded memory; keys are known by a digest of 16 bytes.

    blake2b where Kafka takes MD5: who may choose keys must not be able to make two of them collide.
    """

    __slots__ = ("_count_max", "_offsets", "end_offset")

    def __init__(self, memory_bytes: int) -> None:
        self._count_max = max(1, memory_bytes // MAP_ENTRY_SIZE)
        self._offsets: dict[bytes, Offset] = {}
        self.end_offset: Offset = NO_OFFSET
        """Every batch below has been taken in whole; -1 before the first one."""

    def __len__(self) -> int:
        return len(self._offsets)

    def take(self, batch: RecordBatch, records: Iterable[RecordSlice]) -> bool:
        """Take one batch's keys in; False when they do not all fit: the batch and what follows stay dirty.

        The first batch always fits, else nothing would ever be cleaned. Keys of a batch that did not fit whole may
        stand here: their records lie beyond ``end_offset`` and stay, so what they replace may go all the same.
        """
        offsets, is_first = self._offsets, self.end_offset == NO_OFFSET
        for record in records:
            if record.key is None:
                continue
            digest = blake2b(record.key, digest_size=_DIGEST_SIZE).digest()
            if digest not in offsets and len(offsets) >= self._count_max and not is_first:
                return False
            offsets[digest] = record.offset
        self.end_offset = batch.next_offset
        return True

    def is_replaced(self, key: memoryview | bytes, offset: Offset) -> bool:
        """Return True if a later record has this key."""
        return self._offsets.get(blake2b(key, digest_size=_DIGEST_SIZE).digest(), NO_OFFSET) > offset


def stays(record: RecordSlice, batch: RecordBatch, offsets: OffsetMap, *, now_ms: int) -> bool:
    """Return True if a round of cleaning keeps this record.

    What lies beyond the map stays. A record without a key, from before the topic was compacted, goes (as in Kafka).
    """
    if record.offset >= offsets.end_offset:
        return True
    if record.key is None or offsets.is_replaced(record.key, record.offset):
        return False
    horizon = delete_horizon(batch)
    return record.has_value or horizon is None or now_ms < horizon


def is_long(batch: RecordBatch) -> bool:
    """Return True if opening the batch would hold up everything else: it stays unchanged, and replaces nothing."""
    return batch.record_count > RECORD_COUNT_MAX


# ---- the dirty range -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What these rules need to know of one segment."""

    base_offset: Offset
    end_offset: Offset
    size: int
    index_size: int
    """Of the larger of its two indexes."""
    first_timestamp: int
    """-1: none is known."""
    newest_ms: int
    """Largest timestamp, or the file's time of change when its records have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyRange:
    """What of one log is dirty and may be cleaned now: ``[first_dirty, first_uncleanable)``."""

    first_dirty: Offset
    first_uncleanable: Offset
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """The oldest dirty record is older than ``max.compaction.lag.ms``."""

    @property
    def ratio(self) -> float:
        """Dirty bytes of all that would be read; 0 when there is nothing to clean."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0


def dirty_range(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    *,
    checkpoint: Offset | None,
    start_offset: Offset,
    committed_end: Offset,
    now_ms: int,
) -> DirtyRange:
    """What may be cleaned of ``segments``, oldest first, the last one active.

    ``checkpoint``: where the last round stopped, None when there was none; one outside the log counts as none (it was
    restarted, or its start has moved on). ``committed_end``: nothing at or above it may be cleaned.
    """
    end = segments[-1].end_offset
    first_dirty = checkpoint if checkpoint is not None and start_offset <= checkpoint <= end else start_offset
    sealed = segments[:-1]
    limit = min(committed_end, segments[-1].base_offset)
    # Without a lag times do not matter: a record that says it is of tomorrow is compacted today, as in Kafka.
    for segment in sealed if config.min_compaction_lag_ms else ():
        if segment.end_offset > first_dirty and segment.newest_ms > now_ms - config.min_compaction_lag_ms:
            limit = min(limit, segment.base_offset)
            break
    dirty = []
    first_uncleanable = segments[0].base_offset
    clean_bytes = 0
    for segment in sealed:
        if segment.end_offset > limit:
            break
        first_uncleanable = segment.end_offset
        if segment.end_offset <= first_dirty:
            clean_bytes += segment.size
        else:
            dirty.append(segment)
    oldest = min((s.first_timestamp for s in dirty if s.first_timestamp > 0), default=None)
    return DirtyRange(
        first_dirty=first_dirty,
        first_uncleanable=max(first_uncleanable, first_dirty),
        clean_bytes=clean_bytes,
        dirty_bytes=sum(segment.size for segment in dirty),
        is_overdue=oldest is not None and oldest < now_ms - config.max_compaction_lag_ms,
    )


def dirtiest(logs: Mapping[Name, tuple[DirtyRange, TopicConfig]]) -> Name | None:
    """Which log to clean next: of those that are overdue or dirtier than their ratio, the dirtiest; None: none is."""
    due = [
        name
        for name, (found, config) in logs.items()
        if found.dirty_bytes and (found.is_overdue or found.ratio > config.min_cleanable_dirty_ratio)
    ]
    return max(due, key=lambda name: logs[name][0].ratio, default=None)


def grouped(segments: Sequence[SegmentFacts], config: TopicConfig) -> list[int]:
    """How many of ``segments``, one after the other, are written into one new segment, group by group.

    As many as fit by bytes of log and index before cleaning, and whose offsets fit into int32 of an index.
    """
    counts: list[int] = []
    first: SegmentFacts | None = None
    size = index_size = 0
    for segment in segments:
        size += segment.size
        index_size += segment.index_size
        fits = (
            first is not None
            and size <= config.segment_bytes
            and index_size <= config.segment_index_bytes
            and segment.end_offset - 1 - first.base_offset <= RELATIVE_MAX
        )
        if fits:
            counts[-1] += 1
        else:
            counts.append(1)
            first, size, index_size = segment, segment.size, segment.index_size
    return counts


# ---- what one round keeps of each batch ------------------------------------------------------------------------------


class CleanedTransactions:
    """The transactions of the batches that one round reads in the order of the log."""

    __slots__ = ("_aborted", "_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """``aborted``: all that overlap what is read, by the offsets of their markers."""
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for each in aborted:
            self._aborted.setdefault(each.producer_id, []).append(each)
        self._with_data: set[int] = set()
        """Producers with a batch of a transaction since their last marker."""

    def aborted_with(self, batch: RecordBatch) -> AbortedTransaction | None:
        """Return the aborted transaction that a batch of data belongs to, or that a marker ends."""
        found = self._aborted.get(batch.producer_id, [])
        number = bisect_left(found, batch.last_offset, key=lambda each: each.last_offset)
        is_within = number < len(found) and found[number].first_offset <= batch.last_offset
        return found[number] if is_within and batch.is_transactional else None

    def data_read(self, batch: RecordBatch) -> None:
        """A batch of data was read, whatever stays of it."""
        if batch.is_transactional:
            self._with_data.add(batch.producer_id)

    def marker_read(self, marker: RecordBatch) -> bool:
        """A marker was read. Return True if data of its transaction was read before it."""
        has_data = marker.producer_id in self._with_data
        self._with_data.discard(marker.producer_id)
        return has_data


class BatchFilter:
    """One round over one log: first :meth:`take` each dirty batch, then ask what is :meth:`retained` of every batch."""

    def __init__(
        self,
        config: TopicConfig,
        epochs: EpochCache,
        producers: ProducerState,
        aborted: Iterable[AbortedTransaction],
        *,
        first_uncleanable: Offset,
        memory_bytes: int,
    ) -> None:
        """``aborted``: the aborted transactions of what the round reads; ``memory_bytes`` bounds the map of keys."""
        self.offsets = OffsetMap(memory_bytes)
        self.keyless = 0
        """Records without a key, which went."""
        self.last_marker_gone = NO_OFFSET
        """Offset of the last marker that lost its record; -1: none has."""
        self._config = config
        self._epochs = epochs
        self._producers = producers
        self._transactions = CleanedTransactions(aborted)
        self._last_offsets: dict[int, Offset] = {}
        """Producer id -> last offset of its newest batch among those that were taken."""
        self._first_uncleanable = first_uncleanable
        self._limit = decompression_limit(config.max_message_bytes)

    def take(self, batch: RecordBatch) -> bool:
        """Map the keys of the next dirty batch; False: they do not all fit. See :meth:`OffsetMap.take`."""
        has_keys = not (batch.is_control or is_long(batch) or self._transactions.aborted_with(batch))
        is_taken = self.offsets.take(batch, slices(batch, limit=self._limit) if has_keys else ())
        if is_taken and batch.has_producer and not batch.is_control:
            self._last_offsets[batch.producer_id] = batch.last_offset
        return is_taken

    def retained(self, batch: RecordBatch, index: TransactionIndex, *, now_ms: int) -> bytes | memoryview | None:
        """Decide what stays of the next batch.

        Args:
            batch: Batches come in the order of the log, from its beginning on.
            index: Of the segment that what stays is written to; an aborted transaction is added with its marker.
            now_ms: Wall clock.

        Returns:
            The batch's own ``data`` if nothing changes, None if nothing stays.

        Raises:
            CorruptMessage: The records cannot be read.
        """
        if batch.is_control:
            return self._retained_control(batch, index, now_ms)
        self._transactions.data_read(batch)
        is_aborted = self._transactions.aborted_with(batch) is not None
        if is_long(batch) and not is_aborted:
            return batch.data
        found = [] if is_aborted else list(slices(batch, limit=self._limit))
        kept = [record for record in found if stays(record, batch, self.offsets, now_ms=now_ms)]
        self.keyless += sum(r.key is None for r in found) - sum(r.key is None for r in kept)
        if not kept and not self._stays_empty(batch):
            return None
        horizon = None
        is_mapped = batch.next_offset <= self.offsets.end_offset
        if is_mapped and delete_horizon(batch) is None and not all(record.has_value for record in kept):
            horizon = self._horizon(now_ms)
        if horizon is None and len(kept) == batch.record_count:
            return batch.data
        return thinned(batch, kept, horizon=horizon)

    def _retained_control(self, batch: RecordBatch, index: TransactionIndex, now_ms: int) -> bytes | memoryview | None:
        marker = marker_of(batch)
        if marker is None:  # an emptied one ends nothing; others are not ours to judge
            return batch.data if batch.record_count or self._stays_empty(batch) else None
        if self._transactions.marker_read(batch):
            aborted = None if marker.is_commit else self._transactions.aborted_with(batch)
            if aborted is not None:
                index.append(aborted)
            return batch.data
        if self._producers.is_last_marker(batch.producer_id, batch.producer_epoch, batch.base_offset):
            return batch.data
        horizon = delete_horizon(batch)
        if horizon is None:
            return thinned(batch, list(slices(batch)), horizon=self._horizon(now_ms))
        if now_ms < horizon:
            return batch.data
        self.last_marker_gone = batch.base_offset
        return emptied(batch) if self._stays_empty(batch) else None

    def _horizon(self, now_ms: int) -> int:
        return min(now_ms + self._config.delete_retention_ms, LONG_MAX)

    def _stays_empty(self, batch: RecordBatch) -> bool:
        """Return True if its header counts: it begins a leader epoch, or may be the last batch of a producer that may
        still send, of those that nothing cuts off.

        Few batches are remembered of a producer, and all of them may lie above what may be cleaned, in a tail that a
        new leader cuts off. Which one is the last below is then known only if it was dirty. Else every batch stays
        that is there, until a later round knows.
        """
        if self._epochs.begins(batch.leader_epoch, batch.base_offset):
            return True
        if batch.is_control or not batch.has_producer:
            return False
        remembered = self._producers.last_offset_before(batch.producer_id, self._first_uncleanable)
        if remembered is None:
            return False
        return batch.last_offset >= max(remembered, self._last_offsets.get(batch.producer_id, NO_OFFSET))
