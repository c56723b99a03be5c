"""Words for tests of the log: make batches, open logs, read them back."""

from __future__ import annotations

from typing import Any

from minikafka.config import TopicConfig
from minikafka.log.disk_reader import TimestampHit, first_at_or_after
from minikafka.log.partition_log import PartitionLog
from minikafka.types import TopicPartition
from minikafka.wire.batch import NO_TIMESTAMP, RecordBatch, split, verify_client
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.rules.memory_disk import MemoryDisk

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = "ouQDE1x2TxmS_V6fmuYyIw"
TIME = 1_700_000_000_000
SMALL = TopicConfig(segment_bytes=400, index_interval_bytes=100)


def client_batch(*values: str, time: int = TIME, **options: Any) -> RecordBatch:
    """What a producer sends: one record per value, one millisecond apart."""
    records = [Record(0, time + i, key=b"k", value=value.encode()) for i, value in enumerate(values)]
    return verify_client(build_batch(records, **options), options.get("transactional", False))


def from_producer(producer_id: int, sequence: int, *values: str, epoch: int = 0) -> RecordBatch:
    """A batch of an idempotent producer."""
    return client_batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def in_transaction(producer_id: int, sequence: int, *values: str, epoch: int = 0) -> RecordBatch:
    """A batch of a transaction."""
    return client_batch(
        *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


def open_log(disk: MemoryDisk, config: TopicConfig = SMALL, **options: Any) -> PartitionLog:
    return PartitionLog.open(disk, ORDERS, config, **{"topic_id": TOPIC_ID, **options})


def fill(log: PartitionLog, *values: str, epoch: int = 0, time: int = TIME) -> None:
    """One batch per value."""
    for value in values:
        log.append_as_leader(client_batch(value, time=time), leader_epoch=epoch, wall_ms=TIME)


def everything(log: PartitionLog) -> bytes:
    """All stored bytes, read in small steps."""
    offset, data = log.start_offset, b""
    while offset < log.end_offset:
        part = log.read(offset, max_bytes=300)
        assert part.size > 0
        data += b"".join(part.buffers)
        offset = part.next_offset
    return data


def values(log: PartitionLog) -> list[str]:
    """The values of all records from the log start on."""
    records = [record for batch in split(everything(log)) for record in decode_batch(batch)]
    return [(record.value or b"").decode() for record in records if record.offset >= log.start_offset]


def on_disk(log: PartitionLog) -> PartitionLog:
    """The same log with its memory tail emptied, so that reads go to the files."""
    log.tail.clear()
    return log


def found_by_time(log: PartitionLog, timestamp: int, end: int | None = None) -> TimestampHit | None:
    """The first record at or after ``timestamp`` below ``end``, as ListOffsets looks for it."""
    end = log.end_offset if end is None else end
    start = log.start_offset
    while (batch := log.batch_at_or_after(timestamp, start, end)) is not None:
        with log.reading():
            hit = first_at_or_after(batch, timestamp, start_offset=start, end_offset=end)
        if hit is not None:
            return hit
        start = batch.next_offset
    return None


def newest_record(log: PartitionLog, end: int | None = None) -> TimestampHit | None:
    """The first record with the largest timestamp below ``end``, as ListOffsets looks for it."""
    newest = log.newest_timestamp(log.end_offset if end is None else end)
    return found_by_time(log, newest, end) if newest != NO_TIMESTAMP else None
