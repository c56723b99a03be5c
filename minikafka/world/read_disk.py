"""Data directories on real files, only read: a half of the Disk port for tools, and replicas' batches for the checker.

Rules for this file: nothing is created, locked or written, and no permission to write is needed. The reader of replicas
(after brokers have stopped or died) opens nothing of the log's own code, because a check must not share the checked
code's mistakes, and takes files as they stand: a batch that was cut short at the end of a log is not there.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

from minikafka.check import LogBatch, Recorder, ReplicaBatches
from minikafka.errors import DiskFailed
from minikafka.log.checkpoint import BadCheckpoint, parse_offsets
from minikafka.log.names import (
    GAPS,
    LOG,
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    offset_name,
    offsets_in,
)
from minikafka.ports import checked_path
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.wire.batch import iterate


def _refuse(*_: object, **__: object) -> NoReturn:
    """What would write, of the ports. DiskFailed."""
    raise DiskFailed("this disk is only for reading")


async def _refuse_to_sync(*_: object, **__: object) -> None:
    _refuse()


class ReadFile:
    """One file, opened for reading."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DiskFailed(f"{path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise DiskFailed(f"{path} is not a file")

    def read(self, position: int, size: int) -> bytes:
        """At most ``size`` bytes; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def region(self, position: int, size: int) -> None:
        """None: tools read, they do not send."""

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    append = truncate = _refuse
    sync = _refuse_to_sync


class ReadDisk:
    """A folder, looked at. FileNotFoundError when it is none."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise FileNotFoundError(f"{root} is not a directory")
        self._root = root

    def _full(self, path: str) -> Path:
        return self._root / checked_path(path) if path else self._root

    def open(self, path: str) -> ReadFile:
        """FileNotFoundError; it is not created."""
        return ReadFile(self._full(path))

    def exists(self, path: str) -> bool:
        return self._full(path).exists()

    def is_folder(self, path: str) -> bool:
        return self._full(path).is_dir()

    def names(self, folder: str) -> list[str]:
        """Sorted names directly inside; empty when the folder is missing."""
        full = self._full(folder)
        return sorted(entry.name for entry in full.iterdir()) if full.is_dir() else []

    def modified_ms(self, path: str) -> int:
        return self._full(path).stat().st_mtime_ns // 1_000_000

    def size_of(self, path: str) -> int:
        return self._full(path).stat().st_size

    def read_file(self, path: str) -> bytes:
        """The whole of a small file; FileNotFoundError when it is missing."""
        return self._full(path).read_bytes()

    # A lock would be a file, and so would what shows whether the disk ignores case.
    replace_file = replace = remove = lock = ignores_case = _refuse
    publish = sync_folder = _refuse_to_sync


# Lines of a history stay readable: so many batches go into one.
BATCHES_PER_LINE = 1_000


def batches_of(data_dir: Path, partition: TopicPartition) -> Iterator[LogBatch]:
    """All batches of a replica in log order, segment by segment. CorruptMessage where no batch can be recognized."""
    folder = data_dir / str(partition)
    for base in offsets_in([entry.name for entry in folder.iterdir()], LOG):
        path = folder / offset_name(base, LOG)
        if path.stat().st_size == 0:
            continue
        for batch in iterate(_mapped(path)):  # type: ignore[arg-type] # a map is a buffer
            yield LogBatch(batch.base_offset, batch.last_offset, batch.leader_epoch, batch.data)


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            if error.errno != errno.ENODEV:  # a share that maps no files
                raise
            return file.read()


def checkpointed(data_dir: Path, name: str) -> dict[TopicPartition, Offset]:
    """One of the offset checkpoints; empty when it was never written. DiskFailed for one that is damaged."""
    path = data_dir / name
    try:
        return parse_offsets(path.read_bytes()) if path.exists() else {}
    except BadCheckpoint as error:
        raise DiskFailed(f"{path} cannot be read: {error}") from error


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
    """Return True if compaction has removed offsets of this replica, or of the one that it was copied from."""
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
    left = iter(rows)
    yield list(islice(left, size))
    while chunk := list(islice(left, size)):
        yield chunk
