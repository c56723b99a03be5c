"""What must hold of every log by itself (KAFKA-FACTS §10.7, §10.14): its batches are in order, its epochs theirs.

And what compaction may take from a replica, looked at after each of its rounds (KAFKA-FACTS 1.5, S9). A record that a
leader's watermark has passed is *exposed*. It may be gone only when a later record of its key was exposed too, or when
it is a tombstone whose ``delete.retention.ms`` have passed since. Of each producer the batch with its last sequence
stays.

Rule for this file: it only looks, whenever a log was cut, compacted or got a leader, and at the end of a run.

Logs are compared batch by batch, or record by record where it is compacted.

Each replica is compacted by itself, so replicas may hold different batches that begin at different offsets. Where two
replicas hold the same offset, they hold the same record, and each replica holds the last record of each key
(KAFKA-FACTS 1.5).
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, TypeAlias

from msgspec import Struct

from minikafka.errors import KafkaStorageError
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Buffer
from minikafka.sim.replica_view import OfPartition, ReplicaView, Report
from minikafka.types import Epoch, Offset
from minikafka.wire.batch import (
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_SEQUENCE,
    SEQUENCE_COUNT,
    RecordBatch,
    iterate,
)
from minikafka.wire.markers import marker_of
from minikafka.wire.records import decode_batch


class Batch(Struct, frozen=True, gc=False):
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
    return list(map(batch_of, stored_heads(log, start, end)))


def rows_of(log: PartitionLog, start: Offset, end: Offset, *, is_compacted: bool) -> list[Batch]:
    """The same; of a compacted log its records."""
    return records_of(log, start, end) if is_compacted else batches_of(log, start, end)


def records_of(log: PartitionLog, start: Offset, end: Offset) -> list[Batch]:
    """The records of ``[start, end)``, each as a batch of its own; control batches are no records."""
    return records_in(stored_batches(log, start, end), start, end)


def records_in(batches: Iterable[RecordBatch], start: Offset, end: Offset) -> list[Batch]:
    """The same of these batches."""
    return [
        Batch(
            record.offset,
            record.offset + 1,
            batch.leader_epoch,
            zlib.crc32(record.value or b"", zlib.crc32(record.key or b"")),
            record.key,
            record.value is None,
        )
        for batch in batches
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
        if latest(found) == latest(self._rows) if self._is_compacted else found == self._rows:
            return ""
        return f"{list(map(str, found))}, before the kill {list(map(str, self._rows))}"


class Head(Struct, frozen=True, gc=False):
    """Those of the first fields of a batch's header that invariants compare."""

    base_offset: Offset
    next_offset: Offset
    """Behind the batch."""
    length: int
    epoch: Epoch
    checksum: int
    attributes: int


_HEAD: Final = struct.Struct(">qiibIhi")

Stored: TypeAlias = tuple[Head, memoryview, int]
"""The head of a batch, the bytes in which the batch stands, and where it begins there."""


def stored_batches(log: PartitionLog, start: Offset, end: Offset) -> list[RecordBatch]:
    """The batches of ``[start, end)`` whole; see :func:`stored_heads`."""
    return [whole(*stored) for stored in stored_heads(log, start, end)]


def batch_of(stored: Stored) -> Batch:
    """What invariants compare of it."""
    head = stored[0]
    return Batch(head.base_offset, head.next_offset, head.epoch, head.checksum)


def whole(head: Head, data: memoryview, at: int) -> RecordBatch:
    """The batch that was found by its head."""
    return RecordBatch.of(data[at : at + head.length + LENGTH_END])


def stored_heads(log: PartitionLog, start: Offset, end: Offset) -> list[Stored]:
    """The batches of ``[start, end)``; nothing of a log that is closed or begins later."""
    found: list[Stored] = []
    offset, end = max(start, log.start_offset), min(end, log.end_offset)
    while offset < end:
        held = log.tail.read(offset, end_offset=end, max_bytes=1 << 20, min_one_batch=True)
        read: list[Stored] = []
        try:
            if held is None:
                _note_stored(log, offset, end, read)
            else:
                for data in held.buffers:
                    _note_heads(data, offset, end, read)
        except KafkaStorageError:
            break
        if not read:
            break
        found.extend(read)
        offset = read[-1][0].next_offset
    return found


def _note_stored(log: PartitionLog, start: Offset, end: Offset, found: list[Stored]) -> None:
    """Add the batches of ``[start, end)`` to ``found``, without the memory tail.

    ``PartitionLog.read`` finds where the batches end in the file, and then reads them. Segments of simulated clusters
    are short: reading one to its end costs less than to look for that place, and invariants read after each step.
    """
    with log.reading():
        for segment in log._store.segments[log._store.number_of(start) :]:
            position = segment.index.position_before(start)
            if _note_heads(segment.file.read(position, segment.size - position), start, end, found):
                break


def _note_heads(data: Buffer, start: Offset, end: Offset, found: list[Stored]) -> bool:
    """Add the batches of ``data`` that end in ``(start, end]`` to ``found``. True when ``end`` was reached: what stands
    behind it is not asked for, it may be damaged.

    As :func:`minikafka.wire.batch.iterate`, which reads whole headers: most of them are only passed by.
    """
    view = memoryview(data)
    at, last = 0, len(view) - HEADER_SIZE
    while at <= last:
        base_offset, length, epoch, magic, checksum, attributes, last_offset_delta = _HEAD.unpack_from(view, at)
        if magic != MAGIC or length < HEADER_SIZE - LENGTH_END:
            next(iterate(view[at:]), None)  # it raises CorruptMessage
            break
        if at + length > last + HEADER_SIZE - LENGTH_END:
            break
        next_offset = base_offset + last_offset_delta + 1
        if start < next_offset <= end:
            found.append((Head(base_offset, next_offset, length, epoch, checksum, attributes), view, at))
        if next_offset >= end:
            return True
        at += length + LENGTH_END
    return False


class LogInOrder(OfPartition):
    """Offsets rise, epochs never fall, and the leader epochs that a log knows are those of its batches (§10.7)."""

    name = "log_in_order"
    looks_after = frozenset({"became_leader", "tail_truncated", "nothing_truncated", "log_restarted"})
    """Events after which a log is not what it was."""

    def look(self, view: ReplicaView, report: Report) -> None:
        wrong = disorder(view.partition.log)
        if wrong:
            report(self.name, f"{view.name} on {view.life}: {wrong}")


def disorder(log: PartitionLog) -> str:
    """What is not in order, as a sentence; empty: nothing."""
    batches = stored_batches(log, log.start_offset, log.end_offset)
    for before, batch in pairwise(batches):
        is_next = batch.base_offset >= before.next_offset if log.has_gaps else batch.base_offset == before.next_offset
        if not is_next:
            return f"{batch!r} stands behind {before!r}"
        if batch.leader_epoch < before.leader_epoch:
            return f"the epoch of {batch!r} is lower than that of {before!r}"
    begun: dict[Epoch, Offset] = {}
    for batch in batches:
        begun.setdefault(batch.leader_epoch, max(batch.base_offset, log.start_offset))
    entries = [(epoch, start) for epoch, start in log.epochs.entries if start < log.end_offset]
    beyond = [start for _, start in log.epochs.entries if start > log.end_offset]
    if log.has_gaps:  # of the first epoch only later batches may be left, or none
        begun = {epoch: begun.get(epoch, start) for epoch, start in entries[:1]} | begun
        entries[:1] = [(epoch, max(start, begun[epoch])) for epoch, start in entries[:1]]
    if beyond or entries != list(begun.items()):
        return f"it knows {log.epochs!r}, its batches say {begun}, its end is {log.end_offset}"
    return ""


def broken_sequence(log: PartitionLog) -> str:
    """Of an idempotent producer: a batch that does not follow the one before it (§10.14), as a sentence; else empty.

    Of a log that nothing was compacted in: there the last batch of each producer is all that must be left.
    """
    last: dict[int, RecordBatch] = {}
    for batch in stored_batches(log, log.start_offset, log.end_offset):
        # What a group coordinator writes in a transaction has no sequence, as in Kafka.
        if not batch.has_producer or batch.is_control or batch.base_sequence == NO_SEQUENCE:
            continue
        before = last.get(batch.producer_id)
        last[batch.producer_id] = batch
        if before is None:
            continue
        if batch.producer_epoch < before.producer_epoch:
            return f"{batch!r} is of an older epoch of its producer than {before!r}"
        expected = (before.last_sequence + 1) % SEQUENCE_COUNT if batch.producer_epoch == before.producer_epoch else 0
        if batch.base_sequence != expected:
            return f"{batch!r} does not follow {before!r}"
    return ""


def last_batches(log: PartitionLog) -> dict[int, object]:
    """By producer, the newest batch that is known of it and stands in the log: what tells a retry from a new batch."""
    found = {producer: log.producers.last_batch(producer) for producer in log.producers.last_sequences()}
    return {producer: last for producer, last in found.items() if last is not None and last[2] >= log.start_offset}


class KeyBook:
    """What was exposed of one compacted partition, by key."""

    def __init__(self) -> None:
        self._offsets: dict[bytes | None, list[Offset]] = {}
        self._times: dict[Offset, float] = {}
        self.tombstones: dict[Offset, bytes] = {}
        """Their keys."""
        self._open: dict[int, dict[Offset, None]] = {}
        """By producer: offsets of its open transaction."""
        self._aborted: set[Offset] = set()

    def note_transactions(self, batches: Iterable[RecordBatch]) -> None:
        """Note which records belong to transactions that were aborted; noting them twice is harmless."""
        for batch in batches:
            marker = marker_of(batch) if batch.is_control else None
            if marker is not None:
                ended = self._open.pop(marker.producer_id, {})
                self._aborted.update(() if marker.is_commit else ended)
            elif batch.is_transactional:
                offsets = range(batch.base_offset, batch.next_offset)
                self._open.setdefault(batch.producer_id, {}).update(dict.fromkeys(offsets))

    def note(self, record: Batch, time: float) -> None:
        """``record`` was exposed at ``time``, in virtual seconds."""
        offsets = self._offsets.setdefault(record.key, [])
        offsets.insert(bisect_right(offsets, record.base_offset), record.base_offset)
        self._times[record.base_offset] = time
        if record.is_tombstone and record.key is not None:
            self.tombstones[record.base_offset] = record.key

    def exposed(self, start: Offset, end: Offset) -> list[Offset]:
        """The offsets of ``[start, end)`` that were exposed."""
        return [offset for offset in self._times if start <= offset < end]

    def may_be_gone(self, record: Batch, *, end: Offset, time: float, delete_retention_s: float) -> bool:
        """Return True if a log that goes up to ``end`` may lack it at ``time``."""
        if record.key is None or record.base_offset in self._aborted:
            return True
        offsets = self._offsets[record.key]
        later = bisect_right(offsets, record.base_offset)
        if later < len(offsets) and offsets[later] < end:
            return True
        return record.is_tombstone and time - self._times[record.base_offset] >= delete_retention_s


def lost_sequences(log: PartitionLog, end: Offset) -> list[int]:
    """Producers whose newest batch, below ``end``, left no trace in the log: what follows would be taken for new."""
    held = {(batch.producer_id, batch.last_offset) for batch in stored_batches(log, log.start_offset, end)}
    lost = []
    for producer in log.producers.last_sequences():
        last = log.producers.last_batch(producer)
        if last is not None and log.start_offset <= last[2] < end and (producer, last[2]) not in held:
            lost.append(producer)
    return lost
