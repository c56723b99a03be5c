"""What one round of compaction keeps of each batch: Kafka's rules, pure (KAFKA-FACTS 1.5, KIP-58, KIP-98, KIP-534).

Rules for this file:

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
from collections.abc import Iterable

from minikafka.config import LONG_MAX, TopicConfig
from minikafka.log.compaction import OffsetMap, is_long, stays
from minikafka.log.epochs import EpochCache
from minikafka.log.producer_state import ProducerState
from minikafka.log.transaction_index import TransactionIndex
from minikafka.log.transactions import AbortedTransaction
from minikafka.types import NO_OFFSET, Offset
from minikafka.wire.batch import RecordBatch
from minikafka.wire.decompression import decompression_limit
from minikafka.wire.markers import marker_of
from minikafka.wire.rewrite import delete_horizon, emptied, slices, thinned


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
        self._first_uncleanable = first_uncleanable
        self._limit = decompression_limit(config.max_message_bytes)

    def take(self, batch: RecordBatch) -> bool:
        """Map the keys of the next dirty batch; False: they do not all fit. See :meth:`OffsetMap.take`."""
        has_keys = not (batch.is_control or is_long(batch) or self._transactions.aborted_with(batch))
        return self.offsets.take(batch, slices(batch, limit=self._limit) if has_keys else ())

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
        """Does its header count: does it begin a leader epoch, or is it, of what may be cleaned, the last batch of a
        producer that may still send?
        """
        return self._epochs.begins(batch.leader_epoch, batch.base_offset) or (
            batch.has_producer
            and self._producers.last_offset_before(batch.producer_id, self._first_uncleanable) == batch.last_offset
        )
