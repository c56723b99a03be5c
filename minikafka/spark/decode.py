"""Record batches to Arrow, in the schema of Spark's Kafka source.

Rules for this file: one Arrow batch per fetch, built column by column (a tuple per record would cost three times as
much); the cyclic garbage collector is off while the lists of a fetch are alive, because it would walk them again and
again; records outside the range and control batches are left out. Every column may be null, as Spark asks for.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import RecordView, decode_batch

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
    """The records of ``start`` to ``end`` as one Arrow batch; None when there is none. CorruptMessage."""
    with no_cyclic_collection():
        records: list[RecordView] = []
        for batch in batches:
            if batch.is_control or batch.record_count == 0:
                continue
            found = decode_batch(batch)
            if batch.base_offset < start or batch.last_offset >= end:
                found = [record for record in found if start <= record.offset < end]
            records += found
        if not records:
            return None
        return _columns(partition, records, include_headers=include_headers)


def _columns(partition: TopicPartition, records: list[RecordView], *, include_headers: bool) -> pa.RecordBatch:
    count = len(records)
    times = _int64([record.timestamp for record in records]).cast(pa.timestamp("ms", tz="UTC"))
    columns: list[Any] = [
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        _int64([record.offset for record in records]),
        times.cast(pa.timestamp("us", tz="UTC")),
        pa.array([record.timestamp_type for record in records], pa.int32()),
    ]
    if include_headers:
        columns.append(pa.array([_headers(record) for record in records], SCHEMA_WITH_HEADERS.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS if include_headers else SCHEMA)


def _int64(numbers: list[int]) -> Any:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(array("q", numbers))])


def _headers(record: RecordView) -> list[dict[str, Any]] | None:
    """Null without headers, as Spark's Kafka source has it."""
    return [{"key": name, "value": value} for name, value in record.headers] or None
