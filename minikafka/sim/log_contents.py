"""What a log holds, as invariants compare it: batch by batch, or record by record where it is compacted.

Replicas are compacted each by itself: which batches they have, and where those begin, is theirs; what one of them still
has of an offset is the others' as well, and the last record of each key is everybody's (KAFKA-FACTS 1.5).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

from minikafka.errors import KafkaStorageError, OffsetOutOfRange
from minikafka.log.partition_log import PartitionLog
from minikafka.types import Epoch, Offset
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.records import decode_batch


class Batch(NamedTuple):
    """A batch, or one record of it, as invariants compare it."""

    base_offset: Offset
    end_offset: Offset
    epoch: Epoch
    checksum: int
    key: bytes | None = None
    """Of a record of a compacted log."""
    is_tombstone: bool = False
    """Of those: when its time is up it is no more, and needs not be anywhere."""

    def __str__(self) -> str:
        return f"@{self.base_offset}..{self.end_offset} e{self.epoch} crc {self.checksum:08x}"


def batches_of(log: PartitionLog, start: Offset, end: Offset) -> list[Batch]:
    """The batches of ``[start, end)``; nothing of a log that is closed or begins later."""
    return [
        Batch(batch.base_offset, batch.next_offset, batch.leader_epoch, batch.crc)
        for batch in stored_batches(log, start, end)
    ]


def rows_of(log: PartitionLog, start: Offset, end: Offset, *, is_compacted: bool) -> list[Batch]:
    """The same; of a compacted log its records."""
    return records_of(log, start, end) if is_compacted else batches_of(log, start, end)


def records_of(log: PartitionLog, start: Offset, end: Offset) -> list[Batch]:
    """The records of ``[start, end)``, each as a batch of its own; control batches are no records."""
    return [
        Batch(
            record.offset,
            record.offset + 1,
            batch.leader_epoch,
            zlib.crc32(record.value or b"", zlib.crc32(record.key or b"")),
            record.key,
            record.value is None,
        )
        for batch in stored_batches(log, start, end)
        if not batch.is_control
        for record in decode_batch(batch)
        if start <= record.offset < end
    ]


def latest(records: Iterable[Batch]) -> dict[bytes | None, Batch]:
    """The last of each key, but for tombstones: who has those has nothing."""
    last = {each.key: each for each in records}
    return {key: each for key, each in last.items() if not each.is_tombstone}


class LogContents:
    """What one log held at one moment, to compare it with what comes back from its disk."""

    def __init__(self, log: PartitionLog, start: Offset) -> None:
        self._start = start
        self._is_compacted = log.config.compacts
        self._rows = self._of(log)

    def _of(self, log: PartitionLog) -> list[Batch]:
        return rows_of(log, self._start, log.end_offset, is_compacted=self._is_compacted)

    def differs(self, log: PartitionLog) -> str:
        """How, as a sentence; empty: it does not. A kill in the midst of a compaction may end it, or undo it."""
        found = self._of(log)
        same = latest(found) == latest(self._rows) if self._is_compacted else found == self._rows
        difference = f"{list(map(str, found))}, before the kill {list(map(str, self._rows))}"
        return "" if same else difference


def stored_batches(log: PartitionLog, start: Offset, end: Offset) -> list[RecordBatch]:
    """The batches of ``[start, end)`` whole; nothing of a log that is closed or begins later."""
    found: list[RecordBatch] = []
    offset = max(start, log.start_offset)
    while offset < end:
        try:
            data = log.read(offset, max_bytes=1 << 20, end_offset=end)
        except (KafkaStorageError, OffsetOutOfRange):
            break
        read: list[RecordBatch] = [batch for buffer in data.buffers for batch in split(buffer)]
        if not read:
            break
        found.extend(read)
        offset = read[-1].next_offset
    return found
