"""What replicas hold, read from their data directories: for the checker, after brokers have stopped or died.

Rules for this file: it only reads, it opens nothing of the log's own code (a check must not share the checked code's
mistakes), and it takes files as they stand: a batch that was cut short at the end of a log is not there.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minikafka.check import LogBatch, Recorder, ReplicaBatches
from minikafka.log.checkpoint import parse_offsets
from minikafka.log.names import (
    GAPS,
    LOG,
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    offset_name,
    offsets_in,
)
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.wire.batch import iterate

# Lines of a history stay readable: so many batches go into one.
BATCHES_PER_LINE = 1_000


def batches_of(data_dir: Path, partition: TopicPartition) -> Iterator[LogBatch]:
    """All batches of a replica in log order, segment by segment. CorruptMessage where no batch can be recognized."""
    folder = data_dir / str(partition)
    for base in offsets_in([entry.name for entry in folder.iterdir()], LOG):
        path = folder / offset_name(base, LOG)
        if path.stat().st_size == 0:
            continue
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for batch in iterate(mapped):  # type: ignore[arg-type] # a map is a buffer
            yield LogBatch(batch.base_offset, batch.last_offset, batch.leader_epoch, batch.data)


def checkpointed(data_dir: Path, name: str) -> dict[TopicPartition, Offset]:
    """One of the offset checkpoints; empty when it was never written."""
    path = data_dir / name
    return parse_offsets(path.read_bytes()) if path.exists() else {}


def replica_of(
    data_dir: Path, node: NodeId, partition: TopicPartition, *, high_watermark: Offset | None = None
) -> ReplicaBatches:
    """One replica for ``compare_replicas``. ``high_watermark`` None: the checkpointed one."""
    if high_watermark is None:
        high_watermark = checkpointed(data_dir, REPLICATION_OFFSET_CHECKPOINT).get(partition, 0)
    log_start = checkpointed(data_dir, LOG_START_OFFSET_CHECKPOINT).get(partition, 0)
    return ReplicaBatches(
        node=node,
        high_watermark=high_watermark,
        log_start=log_start,
        batches=_Stored(data_dir, partition),
        is_compacted=is_compacted(data_dir, partition),
    )


def is_compacted(data_dir: Path, partition: TopicPartition) -> bool:
    """Has compaction left offsets out of this replica, or of the one it was copied from?"""
    return (data_dir / str(partition) / GAPS).exists()


@dataclass(frozen=True, slots=True)
class _Stored:
    """:func:`batches_of`, once per iteration."""

    data_dir: Path
    partition: TopicPartition

    def __iter__(self) -> Iterator[LogBatch]:
        return batches_of(self.data_dir, self.partition)


def record_replica(recorder: Recorder, partition: TopicPartition, replica: ReplicaBatches) -> None:
    """Write a replica's batches into a history, each by a digest of all its bytes."""
    for rows in _chunks((_row(batch) for batch in replica.batches), BATCHES_PER_LINE):
        recorder.replica(
            replica.node,
            partition.topic,
            partition.partition,
            high_watermark=replica.high_watermark,
            log_start=replica.log_start,
            batches=rows,
        )


def _row(batch: LogBatch) -> tuple[Offset, Offset, int, str]:
    digest = hashlib.blake2b(batch.data, digest_size=12).hexdigest()
    return batch.base_offset, batch.last_offset + 1, batch.leader_epoch, digest


def _chunks(
    rows: Iterable[tuple[Offset, Offset, int, str]], size: int
) -> Iterator[list[tuple[Offset, Offset, int, str]]]:
    """Lists of at most ``size``; one empty list without rows, so that an empty replica is reported as well."""
    chunk: list[tuple[Offset, Offset, int, str]] = []
    any_yielded = False
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk, any_yielded = [], True
    if chunk or not any_yielded:
        yield chunk
