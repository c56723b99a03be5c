"""Replicas of a compacted log against each other: each was compacted by itself, so they owe each other less than bytes.

- What two of them hold at one offset is the same record, from the same leader epoch.
- A record that one of them lacks has a successor: some replica has a later one of its key below the watermark of the
  one that lacks it. Tombstones, whose time may be over, and records without a key may be gone as well.
- A tombstone goes after all that it deletes: who lacks it has no earlier record of its key. Who never had it, for it
  was gone when it came to copy it (``ReplicaBatches.missed``), may have one that all others lack, though some replica
  still has the tombstone.
- A record of a transaction that no replica knows as committed below its watermark replaces nothing, and any replica may
  lack it: it was aborted, or is open, and one that has read the ABORT marker removes it.

So the last committed value of every key is on every replica. Rules for this file: a few passes in log order; of each
key a digest and an offset per replica are held, of the records one at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from minikafka.check.findings import MISSING, Diverged
from minikafka.check.logs import Comparison, LogBatch, ReplicaBatches
from minikafka.types import NO_EPOCH, NO_OFFSET, Epoch, NodeId, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.rewrite import RecordSlice, slices


class _Row(NamedTuple):
    offset: Offset
    epoch: Epoch
    key: bytes | None
    """A digest."""
    has_value: bool
    content: bytes
    """A digest of time, key, value and headers."""
    is_committed: bool
    """False: its transaction was aborted, or has no marker."""


class _Walk:
    """One replica's place among its records."""

    def __init__(self, replica: ReplicaBatches) -> None:
        self.replica = replica
        self.uncommitted: set[Offset] = set()
        """Base offsets of batches whose transactions no replica knows as committed."""
        self.missed = {_digest(key): offset for key, offset in replica.missed.items()}
        self.last_of_key: dict[bytes, Offset] = {}
        """Below this replica's watermark, by the word of all replicas."""
        self.held_of_key: dict[bytes, Offset] = {}
        """What the walk has come by."""
        self.batch_count = self.size = 0
        self._rows: Iterator[_Row] = iter(())
        self.current: _Row | None = None

    @property
    def node(self) -> NodeId:
        return self.replica.node

    def fates(self) -> Iterator[tuple[Offset, bool]]:
        """Base offset of each batch of a transaction below the watermark, and whether it is known as committed."""
        begun: dict[int, list[Offset]] = {}
        for batch in self.replica.batches:
            header = RecordBatch.of(batch.data)
            if not header.is_transactional or batch.base_offset >= self.replica.high_watermark:
                continue
            if not header.is_control:
                begun.setdefault(header.producer_id, []).append(batch.base_offset)
            elif (marker := marker_of(header)) is not None:
                yield from ((offset, marker.is_commit) for offset in begun.pop(header.producer_id, ()))
        yield from ((offset, False) for offsets in begun.values() for offset in offsets)

    def rows(self) -> Iterator[_Row]:
        """The records between the replica's marks, from the beginning."""
        low, high = self.replica.log_start, self.replica.high_watermark
        for batch in self.replica.batches:
            if batch.last_offset >= low and batch.base_offset < high:
                self.batch_count += 1
                self.size += len(batch.data)
                header = RecordBatch.of(batch.data)
                for record in () if header.is_control else slices(header):
                    if low <= record.offset < high:
                        yield _row(batch, record, header, is_committed=batch.base_offset not in self.uncommitted)

    def note(self, row: _Row) -> None:
        """Some replica has this record: below this one's watermark it may be the last of its key."""
        if row.key is not None and row.is_committed and row.offset < self.replica.high_watermark:
            self.last_of_key[row.key] = max(row.offset, self.last_of_key.get(row.key, NO_OFFSET))

    def begin(self) -> None:
        self.batch_count = self.size = 0
        self._rows = self.rows()
        self.current = next(self._rows, None)

    def advance(self) -> None:
        if self.current is not None and self.current.key is not None and self.current.is_committed:
            self.held_of_key[self.current.key] = self.current.offset
        self.current = next(self._rows, None)

    def may_lack(self, row: _Row) -> bool:
        """Is there a reason that a record which another replica has is not here?"""
        if row.key is None or not row.is_committed or self.last_of_key.get(row.key, NO_OFFSET) > row.offset:
            return True
        return not row.has_value and (
            row.key not in self.held_of_key or self.missed.get(row.key, NO_OFFSET) >= row.offset
        )

    def is_alone_with(self, row: _Row) -> bool:
        """Is it known why this replica still has a record that was deleted elsewhere?"""
        return row.key is not None and self.missed.get(row.key, NO_OFFSET) > row.offset


def _row(batch: LogBatch, record: RecordSlice, header: RecordBatch, *, is_committed: bool) -> _Row:
    # Offset delta, key, value, headers: what compaction copies; the timestamp delta is counted from another base.
    content = hashlib.blake2b(record.tail, digest_size=12, salt=record.timestamp.to_bytes(8, signed=True))
    content.update(header.timestamp_type.to_bytes(1))
    key = None if record.key is None else _digest(record.key)
    return _Row(record.offset, batch.leader_epoch, key, record.has_value, content.digest(), is_committed)


def _digest(key: bytes | memoryview) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def compare_compacted(partition: TopicPartition, replicas: Sequence[ReplicaBatches]) -> Comparison:
    """As ``compare_replicas``, record by record; ``batches`` of each are gone over several times. CorruptMessage."""
    walks = [_Walk(replica) for replica in sorted(replicas, key=lambda replica: replica.node)]
    uncommitted = {offset for walk in walks for offset, is_committed in walk.fates() if not is_committed}
    if uncommitted:
        uncommitted -= {offset for walk in walks for offset, is_committed in walk.fates() if is_committed}
    for walk in walks:
        walk.uncommitted = uncommitted
    for walk in walks:
        for row in walk.rows():
            for other in walks:
                other.note(row)
    for walk in walks:
        walk.begin()
    findings: list[Diverged] = []
    going = list(walks)
    while (offset := min((w.current.offset for w in going if w.current is not None), default=None)) is not None:
        here = [w for w in going if w.current is not None and w.current.offset == offset]
        due = [w for w in going if w.replica.log_start <= offset < w.replica.high_watermark]
        strays = _strays(offset, here, due)
        if strays:
            findings.append(_difference(partition, offset, due, strays))
            going = [walk for walk in going if walk not in strays]
        for walk in here:
            walk.advance()
    first = walks[0] if walks else None
    return Comparison(
        batch_count=0 if first is None else first.batch_count,
        size=0 if first is None else first.size,
        end_offset=min((replica.high_watermark for replica in replicas), default=0),
        findings=tuple(findings),
        is_compacted=True,
    )


def _strays(offset: Offset, here: Sequence[_Walk], due: Sequence[_Walk]) -> list[_Walk]:
    """Who has another record than most, or lacks one without a reason."""
    rows = [walk.current for walk in here if walk.current is not None]
    camps = Counter((row.epoch, row.content) for row in rows)
    model = camps.most_common(1)[0][0]
    row = next(row for row in rows if (row.epoch, row.content) == model)
    strays = [w for w in here if w.current is not None and (w.current.epoch, w.current.content) != model]
    if all(walk.is_alone_with(row) for walk in here):
        return strays
    return strays + [w for w in due if w not in here and not w.may_lack(row) and row.offset == offset]


def _difference(partition: TopicPartition, offset: Offset, due: Sequence[_Walk], strays: Sequence[_Walk]) -> Diverged:
    lacking = [walk for walk in strays if walk.current is None or walk.current.offset != offset]
    reasons = [f"replica {walk.node} lacks the last record of its key" for walk in lacking]
    reasons += [f"replica {walk.node} has another record" for walk in strays if walk not in lacking]
    return Diverged(
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        holdings=tuple((walk.node, *_told(walk, offset)) for walk in due),
        detail=", ".join(reasons),
    )


def _told(walk: _Walk, offset: Offset) -> tuple[Epoch, str]:
    if walk.current is None or walk.current.offset != offset:
        return NO_EPOCH, MISSING
    return walk.current.epoch, "b2:" + walk.current.content.hex()
