"""What follows from the batches of a log about producers and transactions: each rule in the simplest words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import decode_batch


@dataclass
class Known:
    """A producer by the naive replay."""

    epoch: int
    sequence: int = -1
    offset: int = -1
    coordinator: int = -1
    start: int = -1


@dataclass
class Replayed:
    """A log by the naive replay."""

    producers: dict[int, Known] = field(default_factory=dict)
    ended: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Producer, first offset, marker's offset, is it a commit."""
    committed: list[int] = field(default_factory=list)
    """Offsets of records of committed transactions and of none."""

    def of(self, producer_id: int, epoch: int) -> Known:
        known = self.producers.setdefault(producer_id, Known(epoch))
        if known.epoch != epoch:
            known.epoch, known.sequence, known.offset = epoch, -1, -1
        return known

    def open(self) -> list[int]:
        return [known.start for known in self.producers.values() if known.start >= 0]


def replayed(data: Iterable[bytes | memoryview]) -> Replayed:
    """Replay ``data``: whole batches, as they were appended."""
    found = Replayed()
    pending: dict[int, list[int]] = {}
    for batch in map(RecordBatch.of, data):
        offsets = list(range(batch.base_offset, batch.next_offset))
        if batch.producer_id < 0:
            found.committed += offsets
            continue
        known = found.of(batch.producer_id, batch.producer_epoch)
        if batch.is_control:
            (record,) = decode_batch(batch)
            assert record.key is not None
            assert record.value is not None
            known.coordinator = int.from_bytes(record.value[2:6])
            if known.start >= 0:
                is_commit = record.key[3] == 1
                found.ended.append((batch.producer_id, known.start, batch.base_offset, is_commit))
                found.committed += pending.pop(batch.producer_id) if is_commit else []
                pending.pop(batch.producer_id, None)
                known.start = -1
            continue
        known.sequence, known.offset = batch.last_sequence, batch.last_offset
        if batch.is_transactional:
            pending.setdefault(batch.producer_id, []).extend(offsets)
            known.start = batch.base_offset if known.start < 0 else known.start
        else:
            found.committed += offsets
    return found
