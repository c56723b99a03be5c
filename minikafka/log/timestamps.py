"""Finding records by time: time index, offset index, batch headers, and last the one batch that is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minikafka.log.segment import Segment, headers
from minikafka.types import Epoch, Offset
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
        if segment.max_timestamp < timestamp or segment.next_offset <= start_offset:
            continue
        begin = max(segment.time_index.offset_before(timestamp), start_offset)
        for at, header in headers(segment.file, segment.index.position_before(begin), segment.size):
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
        whole = start_offset <= segment.base_offset and segment.next_offset <= end_offset
        if whole and segment.size:
            found = max(found, segment.max_timestamp)
        elif segment.next_offset > start_offset and segment.base_offset < end_offset:
            found = max(found, _newest_of_part(segment, start_offset, end_offset))
    return found


def _newest_of_part(segment: Segment, start_offset: Offset, end_offset: Offset) -> int:
    found, begin = NO_TIMESTAMP, start_offset
    if start_offset <= segment.base_offset:
        found, begin = segment.time_index.newest_before(end_offset)
    for at, header in headers(segment.file, segment.index.position_before(begin), segment.size):
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
