"""Reading one log from its files: by offset, and by time.

Rules for this file: what may be read is decided by its caller. A failing disk is KafkaStorageError; damaged bytes are
CorruptMessage, to who reads there and nobody else: a rotten batch must not take the log offline for all that is still
whole.

Records are found by time with the time index, the offset index, batch headers, and last the one batch that is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from minikafka.errors import CorruptMessage, DiskFailed, KafkaStorageError
from minikafka.log.durability import LogHealth
from minikafka.log.segment import Segment, headers
from minikafka.log.segment_store import SegmentStore
from minikafka.log.tail import LogSlice
from minikafka.ports import Buffer, Events
from minikafka.types import Epoch, Offset, TopicPartition
from minikafka.wire.batch import NO_TIMESTAMP, RecordBatch, verify
from minikafka.wire.records import records_one_by_one


class TimestampHit(NamedTuple):
    """A record found by its time."""

    timestamp: int
    offset: Offset
    leader_epoch: Epoch


def batch_at_or_after(
    segments: Sequence[Segment], timestamp: int, *, start_offset: Offset, end_offset: Offset
) -> RecordBatch | None:
    """The first batch with offsets in ``[start_offset, end_offset)`` and a record at or after ``timestamp`` (ms).

    Only its header was read: the checksum is not verified, and the record may have another offset.
    """
    for segment in segments:
        if segment.next_offset <= start_offset:
            continue
        segment.check_newest()
        if segment.max_timestamp < timestamp:
            continue
        begin = start_offset
        newest_before, offset = segment.time_index.before(timestamp)
        if offset > start_offset and segment.has_newest(newest_before, offset):
            begin = offset
        for at, header in headers(segment.file, segment.position_of(begin), segment.size):
            if header.base_offset >= end_offset:
                return None
            if header.newest_timestamp >= timestamp and header.last_offset >= start_offset:
                return RecordBatch.of(segment.read(at, header.size))
    return None


def first_at_or_after(
    batch: RecordBatch, timestamp: int, *, start_offset: Offset, end_offset: Offset
) -> TimestampHit | None:
    """The first record of ``batch`` in ``[start_offset, end_offset)`` at or after ``timestamp`` (ms).

    Takes long if the batch is long: it may run on any thread. Raises CorruptMessage and InvalidRecord.
    """
    for record in records_one_by_one(verify(batch.data)):
        if record.timestamp >= timestamp and start_offset <= record.offset < end_offset:
            return TimestampHit(record.timestamp, record.offset, batch.leader_epoch)
    return None


def newest(segments: Sequence[Segment], *, start_offset: Offset, end_offset: Offset) -> int:
    """The largest timestamp (ms) of the records in ``[start_offset, end_offset)``; -1: there are none."""
    found = NO_TIMESTAMP
    for segment in segments:
        if not segment.size:
            continue
        whole = start_offset <= segment.base_offset and segment.next_offset <= end_offset
        if whole:
            segment.check_newest()
            found = max(found, segment.max_timestamp)
        elif segment.next_offset > start_offset and segment.base_offset < end_offset:
            found = max(found, _newest_of_part(segment, start_offset, end_offset))
    return found


def _newest_of_part(segment: Segment, start_offset: Offset, end_offset: Offset) -> int:
    found, begin = NO_TIMESTAMP, start_offset
    if start_offset <= segment.base_offset:
        found, begin = segment.time_index.newest_before(end_offset)
        if found != NO_TIMESTAMP and not segment.has_newest(found, begin):
            found, begin = NO_TIMESTAMP, segment.base_offset
    for at, header in headers(segment.file, segment.position_of(begin), segment.size):
        if header.base_offset >= end_offset:
            break
        if header.last_offset < start_offset or header.newest_timestamp <= found:
            continue
        if start_offset <= header.base_offset and header.last_offset < end_offset:
            found = header.newest_timestamp
        else:
            records = records_one_by_one(verify(segment.read(at, header.size)))
            inside = (record.timestamp for record in records if start_offset <= record.offset < end_offset)
            found = max(found, max(inside, default=NO_TIMESTAMP))
    return found


REGION_SIZE_MIN = 32 * 1024
"""Reading less than this costs less than the calls that send it from the file."""


class DiskReader:
    """Reads one log's segments. A ``with`` block of it stands around all that reads them, so that errors name the log.

    A class's block, for every read enters one: that of a generator costs three times as much.
    """

    def __init__(self, partition: TopicPartition, store: SegmentStore, health: LogHealth, events: Events) -> None:
        self._partition = str(partition)
        self._store = store
        self._health = health
        self._events = events

    def __enter__(self) -> None:
        self._health.check_readable()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise CorruptMessage and KafkaStorageError that name the log."""
        if isinstance(error, DiskFailed):
            raise KafkaStorageError(f"{self._partition}: read failed: {error}") from error
        if isinstance(error, CorruptMessage):
            self._events("damage_read", partition=self._partition, why=error.message)
            raise CorruptMessage(f"{self._partition}: the log is damaged here: {error.message}") from error

    def read(
        self, offset: Offset, *, end: Offset, max_bytes: int, min_one_batch: bool, as_region: bool = False
    ) -> LogSlice:
        """Whole batches from the one that holds ``offset``, none that reaches ``end``; see ``PartitionLog.read``."""
        with self:
            for segment in self._store.segments[self._store.number_of(offset) :]:
                if offset >= segment.next_offset:
                    continue
                extent = segment.extent(offset, end_offset=end, max_bytes=max_bytes, min_one_batch=min_one_batch)
                if extent is None:
                    break
                region = None
                if as_region and extent.size >= REGION_SIZE_MIN:
                    region = segment.region(extent.position, extent.size)
                data = segment.read(extent.position, extent.size) if region is None else cast("Buffer", region)
                return LogSlice((data,), extent.size, extent.first_offset, extent.next_offset)
        return LogSlice((), 0, offset, offset)

    def batch_at_or_after(self, timestamp: int, *, start: Offset, end: Offset) -> RecordBatch | None:
        """See ``PartitionLog.batch_at_or_after``."""
        with self:
            return batch_at_or_after(self._store.segments, timestamp, start_offset=start, end_offset=end)

    def newest_timestamp(self, *, start: Offset, end: Offset) -> int:
        """The largest timestamp (ms) of the records in ``[start, end)``; -1: there are none."""
        with self:
            return newest(self._store.segments, start_offset=start, end_offset=end)
