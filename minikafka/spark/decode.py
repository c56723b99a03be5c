"""Record batches to Arrow, in the schema of Spark's Kafka source.

Rules for this file: one Arrow batch per fetch, built column by column from the fetch's bytes (columns.py), without an
object per record unless headers are asked for; a key or a value is copied once. Every checksum is verified. Records
outside the range and control batches are left out. Every column may be null, as Spark asks for.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from minikafka.spark.columns import Columns, columns_of
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import RecordBatch, verify
from minikafka.wire.records import decode_batch

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


@contextmanager
def no_cyclic_collection() -> Iterator[None]:
    """The collector is off inside the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def to_arrow(
    partition: TopicPartition, batches: Sequence[RecordBatch], start: Offset, end: Offset, *, include_headers: bool
) -> pa.RecordBatch | None:
    """The records of ``start`` to ``end`` as one batch; None when there is none. CorruptMessage, InvalidRecord."""
    data = [batch for batch in batches if not batch.is_control and batch.record_count]
    for batch in data:
        verify(batch.data)
    if not data:
        return None
    found = columns_of(data)
    chosen = None
    if data[0].base_offset < start or data[-1].last_offset >= end:
        chosen = (found.offsets >= start) & (found.offsets < end)
        found = found.taken(chosen)
    if not len(found):
        return None
    columns = _columns(partition, found)
    if not include_headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return pa.RecordBatch.from_arrays([*columns, _headers(data, chosen)], schema=SCHEMA_WITH_HEADERS)


def _columns(partition: TopicPartition, found: Columns) -> list[Any]:
    count = len(found)
    times = _numbers(pa.timestamp("ms", tz="UTC"), found.timestamps)
    buffer = pa.py_buffer(found.data)
    return [
        _binary(buffer, found.key_starts, found.key_lengths),
        _binary(buffer, found.value_starts, found.value_lengths),
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        _numbers(pa.int64(), found.offsets),
        times.cast(pa.timestamp("us", tz="UTC")),
        _numbers(pa.int32(), found.timestamp_types),
    ]


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
    with no_cyclic_collection():
        records = [record for batch in batches for record in decode_batch(batch)]
        if chosen is not None:
            records = [record for record, wanted in zip(records, chosen.tolist(), strict=True) if wanted]
        # Null without headers, as Spark's Kafka source has it.
        rows = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
        return pa.array(rows, SCHEMA_WITH_HEADERS.field("headers").type)
