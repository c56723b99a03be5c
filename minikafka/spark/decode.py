"""Record batches to Arrow, in the schema of Spark's Kafka source.

Rules for this file: one Arrow batch per fetch, built column by column from the fetch's bytes, without an
object per record unless headers are asked for; a key or a value is copied once. Every checksum is verified. Records
outside the range and control batches are left out. Every column may be null, as Spark asks for. A fetch of a megabyte
may expand to gigabytes: compressed batches that expand beyond EXPANDED_MAX become several Arrow batches.

The fields of all records of a fetch are found at once. A record of a v2 batch is ``length, attributes, timestamp
delta, offset delta, key length, key, value length, value, header count, headers``; all numbers but the attributes'
byte are varints (zigzag, seven bits a byte). So:

1. :func:`record_starts` walks the lengths. Runs of equally long records, the usual case, are checked by comparing the
   lengths of all of them at once: if the first of a run begins where it is thought to, so do the others.
2. :func:`read_varints` reads one field of all records in a handful of array operations.
3. Whatever the bytes are, a record must end where the next one begins; if not, CorruptMessage. Nothing is read outside
   the buffer. The checksum is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from minikafka.errors import CorruptMessage
from minikafka.ports import Buffer
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import HEADER_SIZE, RecordBatch, verify
from minikafka.wire.decompression import decompressed
from minikafka.wire.garbage import without_collection
from minikafka.wire.records import decode_batch

RUN_MIN = 4
"""So many records of one length in a row are taken for the beginning of a run."""
RUN_WORTH = 64
"""A shorter run cost more than it brought: the next one must begin with more records."""
VARINT_BYTES_MAX = 10
LENGTH_BYTES_MAX = 5
NULL = -1
TIMESTAMP_MAX = (2**63 - 1) // 1000
EXPANDED_MAX = 64 * 1024 * 1024
"""Bytes of compressed batches, once expanded, that are decoded together; one batch may have more."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The records of some batches: numbers as arrays, keys and values as places in ``data`` (length -1: null)."""

    data: Any
    """The buffer that places refer to."""
    offsets: Any
    timestamps: Any
    """Milliseconds since 1970."""
    timestamp_types: Any
    key_starts: Any
    key_lengths: Any
    value_starts: Any
    value_lengths: Any

    def __len__(self) -> int:
        return len(self.offsets)

    def taken(self, chosen: Any) -> Columns:
        """Only the records that ``chosen`` (a mask) says."""
        return Columns(
            self.data,
            self.offsets[chosen],
            self.timestamps[chosen],
            self.timestamp_types[chosen],
            self.key_starts[chosen],
            self.key_lengths[chosen],
            self.value_starts[chosen],
            self.value_lengths[chosen],
        )


def columns_of(batches: Sequence[RecordBatch], bodies: Sequence[Buffer] | None = None) -> Columns:
    """All records of data batches that lie one behind the other in a fetch's answer. CorruptMessage.

    ``bodies``: their records without compression, if that was needed.
    """
    data, spans = _spans(batches, bodies)
    bytes_ = np.frombuffer(data, np.uint8)
    starts = np.concatenate(
        [
            record_starts(data, bytes_, at, end, batch.record_count)
            for (at, end), batch in zip(spans, batches, strict=True)
        ]
    )
    counts = np.array([batch.record_count for batch in batches])
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    # The last record of a batch ends with it; what follows is the next batch's header.
    ends[np.cumsum(counts) - 1] = [end for _, end in spans]
    try:
        return _fields(data, bytes_, starts, ends, batches, counts)
    except IndexError as error:
        raise CorruptMessage("records: a field reaches beyond the batch") from error


def _expanded(batches: Sequence[RecordBatch]) -> Iterator[tuple[Sequence[RecordBatch], Sequence[Buffer] | None]]:
    """The batches in portions that expand to EXPANDED_MAX or are one batch, with their bodies. CorruptMessage."""
    if not any(batch.codec for batch in batches):
        yield batches, None
        return
    portion: list[RecordBatch] = []
    bodies: list[Buffer] = []
    size = 0
    for batch in batches:
        body = decompressed(batch)
        if portion and size + len(body) > EXPANDED_MAX:
            yield portion, bodies
            portion, bodies, size = [], [], 0
        portion.append(batch)
        bodies.append(body)
        size += len(body)
    yield portion, bodies


def _spans(batches: Sequence[RecordBatch], bodies: Sequence[Buffer] | None) -> tuple[Any, list[tuple[int, int]]]:
    """One buffer with all bodies, and where each lies in it; nothing is copied unless something is compressed."""
    whole = batches[0].data.obj
    if not any(batch.codec for batch in batches) and all(batch.data.obj is whole for batch in batches):
        base = pa.py_buffer(whole).address
        places = [pa.py_buffer(batch.data).address - base for batch in batches]
        return whole, [
            (place + HEADER_SIZE, place + len(batch.data)) for place, batch in zip(places, batches, strict=True)
        ]
    if bodies is None:
        bodies = [decompressed(batch) for batch in batches]
    edges = np.cumsum([0, *map(len, bodies)]).tolist()
    return b"".join(bodies), list(pairwise(edges))


def record_starts(data: Any, bytes_: Any, at: int, end: int, count: int) -> Any:
    """Where each of ``count`` records between ``at`` and ``end`` begins. CorruptMessage."""
    parts = []
    wanted = RUN_MIN
    while count:
        walked, at, width, stride = _walk(data, at, end, count, wanted)
        parts.append(np.array(walked, np.int64))
        count -= len(walked)
        if count:
            run = _run(bytes_, at, end, min(count, (end - at) // stride), width, stride)
            parts.append(np.arange(at, at + run * stride, stride, dtype=np.int64))
            at += run * stride
            count -= run
            wanted = RUN_MIN if run >= RUN_WORTH else wanted * 2
    if at != end:
        raise CorruptMessage(f"records: they end at byte {at}, the batch ends at {end}")
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _walk(data: Any, at: int, end: int, count: int, run: int) -> tuple[list[int], int, int, int]:
    """Record by record, until ``run`` of them were equally long: (starts, next start, bytes of the length, size)."""
    starts = []
    same = size = width = 0
    for _ in range(count):
        starts.append(at)
        length, shift, width = 0, 0, 0
        while True:
            if at + width >= end or width == LENGTH_BYTES_MAX:
                raise CorruptMessage(f"records: no length at byte {at}")
            byte = data[at + width]
            width += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        before, size = size, (length >> 1) + width
        if length & 1 or at + size > end:
            raise CorruptMessage(f"records: the length at byte {at} is none")
        at += size
        same = same + 1 if size == before else 0
        if same >= run:
            break
    return starts, at, width, size


def _run(bytes_: Any, at: int, end: int, most: int, width: int, stride: int) -> int:
    """How many records from ``at`` on carry the same length, byte for byte, as the one before them."""
    found = 0
    step = RUN_WORTH
    while found < most:
        step = min(step * 8, most - found)
        first = at + found * stride
        equal = np.ones(step, bool)
        for byte in range(width):
            here = bytes_[first + byte : end : stride][:step]
            equal &= here == bytes_[at - stride + byte]
        if not equal.all():
            return found + int(equal.argmin())
        found += step
    return found


def read_varints(bytes_: Any, at: Any) -> tuple[Any, Any]:
    """The numbers at the places ``at``, and the places behind them. IndexError beyond the buffer, CorruptMessage."""
    byte = bytes_.take(at).astype(np.int64)
    behind = at + 1
    open_ = byte >= 0x80
    value = byte
    if open_.any():
        value &= 0x7F
        which: Any = slice(None) if open_.all() else np.flatnonzero(open_)
        for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
            byte = bytes_.take(behind[which]).astype(np.int64)
            value[which] |= (byte & 0x7F) << shift
            behind[which] += 1
            open_ = byte >= 0x80
            if not open_.any():
                break
            which = np.flatnonzero(open_) if isinstance(which, slice) else which[open_]
        else:
            raise CorruptMessage("records: a number is longer than ten bytes")
    # Logical, not arithmetic, or the highest bit of a ten-byte number would be taken for a sign.
    return (value.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(value & 1), behind


def _fields(data: Any, bytes_: Any, starts: Any, ends: Any, batches: Sequence[RecordBatch], counts: Any) -> Columns:
    _, at = read_varints(bytes_, starts)
    timestamp_deltas, at = read_varints(bytes_, at + 1)
    offset_deltas, at = read_varints(bytes_, at)
    key_lengths, key_starts = read_varints(bytes_, at)
    value_lengths, value_starts = read_varints(bytes_, _behind(key_starts, key_lengths, ends))
    header_counts, at = read_varints(bytes_, _behind(value_starts, value_lengths, ends))
    # Headers are not opened here; without any, the record ends where its count of headers does.
    if ((at > ends) | ((header_counts == 0) & (at != ends))).any():
        raise CorruptMessage("records: one does not end where the next begins")

    def spread(numbers: list[int], kind: Any) -> Any:
        return np.repeat(np.array(numbers, kind), counts)

    timestamps = spread([batch.base_timestamp for batch in batches], np.int64) + timestamp_deltas
    if any(batch.timestamp_type for batch in batches):
        appended = spread([batch.timestamp_type for batch in batches], bool)
        timestamps = np.where(appended, spread([batch.max_timestamp for batch in batches], np.int64), timestamps)
    return Columns(
        data,
        spread([batch.base_offset for batch in batches], np.int64) + offset_deltas,
        timestamps,
        spread([batch.timestamp_type for batch in batches], np.int32),
        key_starts,
        key_lengths,
        value_starts,
        value_lengths,
    )


def _behind(starts: Any, lengths: Any, ends: Any) -> Any:
    """The places behind keys or values."""
    behind = starts + np.maximum(lengths, 0)
    if ((lengths < NULL) | (behind >= ends)).any():
        raise CorruptMessage("records: a key or a value reaches beyond its record")
    return behind


SCHEMA_TEXT = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
HEADERS_TEXT = "headers array<struct<key: string, value: binary>>"

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_COLUMNS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
SCHEMA = pa.schema(_COLUMNS)
SCHEMA_WITH_HEADERS = pa.schema([*_COLUMNS, pa.field("headers", pa.list_(pa.field("element", _HEADER)))])


def schema_text(*, include_headers: bool) -> str:
    """The columns as Spark's DDL."""
    return f"{SCHEMA_TEXT}, {HEADERS_TEXT}" if include_headers else SCHEMA_TEXT


def to_arrow(
    partition: TopicPartition, batches: Sequence[RecordBatch], start: Offset, end: Offset, *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """The records of ``start`` to ``end``, as one batch unless they expand far. CorruptMessage, InvalidRecord."""
    data = [batch for batch in batches if not batch.is_control and batch.record_count]
    for batch in data:
        verify(batch.data)
    if not data:
        return
    for portion, bodies in _expanded(data):
        found = columns_of(portion, bodies)
        chosen = None
        if portion[0].base_offset < start or portion[-1].last_offset >= end:
            chosen = (found.offsets >= start) & (found.offsets < end)
            found = found.taken(chosen)
        if not len(found):
            continue
        columns = _columns(partition, found)
        if not include_headers:
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        else:
            yield pa.RecordBatch.from_arrays([*columns, _headers(portion, chosen)], schema=SCHEMA_WITH_HEADERS)


def _columns(partition: TopicPartition, found: Columns) -> list[Any]:
    count = len(found)
    buffer = pa.py_buffer(found.data)
    return [
        _binary(buffer, found.key_starts, found.key_lengths),
        _binary(buffer, found.value_starts, found.value_lengths),
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        _numbers(pa.int64(), found.offsets),
        _times(found.timestamps),
        _numbers(pa.int32(), found.timestamp_types),
    ]


def _times(timestamps: Any) -> Any:
    """Milliseconds since 1970 as Spark's timestamps; null beyond its 64 bits of microseconds.

    A producer may set any timestamp, and one record must not keep a query from all that follow it.
    """
    kind, spark_kind = pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")
    beyond = (timestamps > TIMESTAMP_MAX) | (timestamps < -TIMESTAMP_MAX)
    if not beyond.any():
        return _numbers(kind, timestamps).cast(spark_kind)
    return pa.array(np.where(beyond, 0, timestamps), pa.int64(), mask=beyond).cast(kind).cast(spark_kind)


def _numbers(kind: Any, numbers: Any) -> Any:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _binary(buffer: Any, starts: Any, lengths: Any) -> Any:
    """The bytes at these places of the buffer, copied once, in C++; a negative length is null.

    The buffer is looked at as twice as many values, every other of which is what lies between two of ours.
    """
    count = len(starts)
    null = lengths < 0
    all_null = bool(null.all())
    if all_null:
        return pa.nulls(count, pa.binary())
    edges = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = starts
    edges[1:-1:2] = starts + np.maximum(lengths, 0)
    edges[-1] = edges[-2]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), buffer])
    which = np.arange(0, 2 * count, 2)
    return pieces.take(pa.array(which, mask=null if null.any() else None))


def _headers(batches: Sequence[RecordBatch], chosen: Any) -> Any:
    """One object per record: what the other columns do without."""
    with without_collection():
        records = [record for batch in batches for record in decode_batch(batch)]
        if chosen is not None:
            records = [record for record, wanted in zip(records, chosen.tolist(), strict=True) if wanted]
        # Null without headers, as Spark's Kafka source has it.
        rows = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
        return pa.array(rows, SCHEMA_WITH_HEADERS.field("headers").type)
