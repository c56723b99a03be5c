"""Finding records by time: time index, offset index, batch headers, and last the one batch that is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from minikafka.log.segment import Segment, headers
from minikafka.types import Epoch, Offset
from minikafka.wire.batch import NO_TIMESTAMP, RecordBatch, verify
from minikafka.wire.records import RecordView, decode_batch


class TimestampHit(NamedTuple):
    """A record found by its time."""

    timestamp: int
    offset: Offset
    leader_epoch: Epoch


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, *, start_offset: Offset, end_offset: Offset
) -> TimestampHit | None:
    """The first record in ``[start_offset, end_offset)`` whose timestamp is ``timestamp`` or later."""
    for segment in segments:
        if segment.max_timestamp < timestamp or segment.next_offset <= start_offset:
            continue
        begin = max(segment.time_index.offset_before(timestamp), start_offset)
        position = segment.index.position_before(begin)
        for at, header in headers(segment.file, position, segment.size):
            if header.base_offset >= end_offset:
                return None
            if header.newest_timestamp < timestamp or header.last_offset < start_offset:
                continue
            hit = _first_in_batch(
                segment,
                at,
                header,
                lambda record: record.timestamp >= timestamp and start_offset <= record.offset < end_offset,
            )
            if hit is not None:
                return hit
    return None


def first_newest(segments: Sequence[Segment], *, start_offset: Offset, end_offset: Offset) -> TimestampHit | None:
    """The first of the records in ``[start_offset, end_offset)`` with the largest timestamp."""
    newest = NO_TIMESTAMP
    for segment in segments:
        whole = start_offset <= segment.base_offset and segment.next_offset <= end_offset
        if whole and segment.size:
            newest = max(newest, segment.max_timestamp)
        elif segment.next_offset > start_offset and segment.base_offset < end_offset:
            newest = max(newest, _newest_of_part(segment, start_offset, end_offset))
    if newest == NO_TIMESTAMP:
        return None
    return first_at_or_after(segments, newest, start_offset=start_offset, end_offset=end_offset)


def _newest_of_part(segment: Segment, start_offset: Offset, end_offset: Offset) -> int:
    newest = NO_TIMESTAMP
    position = segment.index.position_before(start_offset)
    for at, header in headers(segment.file, position, segment.size):
        if header.base_offset >= end_offset:
            break
        if header.last_offset < start_offset or header.newest_timestamp <= newest:
            continue
        if start_offset <= header.base_offset and header.last_offset < end_offset:
            newest = header.newest_timestamp
        else:
            inside = (r.timestamp for r in _opened(segment, at, header) if start_offset <= r.offset < end_offset)
            newest = max(newest, max(inside, default=NO_TIMESTAMP))
    return newest


def _opened(segment: Segment, position: int, header: RecordBatch) -> list[RecordView]:
    return decode_batch(verify(segment.read(position, header.size)))


def _first_in_batch(
    segment: Segment, position: int, header: RecordBatch, wanted: Callable[[RecordView], bool]
) -> TimestampHit | None:
    for record in _opened(segment, position, header):
        if wanted(record):
            return TimestampHit(record.timestamp, record.offset, header.leader_epoch)
    return None
