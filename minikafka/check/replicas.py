"""Replicas against each other: equal below their high watermarks, by record, by batch digest, or byte by byte.

Two replicas are compared from the higher of their log starts up to the lower of their high watermarks; a tail above
that may still be cut. :class:`ReplicaBook` keeps what a history lists; :func:`compare_replicas` streams whole logs of
any size in lockstep and holds one batch per replica.

Replicas of a compacted log (:func:`compare_compacted`) were compacted each by itself, so fewer of their bytes agree:

- What two of them hold at one offset is the same record, from the same leader epoch.
- A record that one of them lacks has a successor: some replica has a later one of its key below the watermark of the
  one that lacks it. Tombstones, whose time may be over, and records without a key may be gone as well.
- A tombstone goes after all that it deletes: a replica that lacks it has no earlier record of its key. A replica that
  never had it, because it was gone before that one copied it (``ReplicaBatches.missed``), may have a record that all
  others lack, if some replica still has the tombstone.
- A record of a transaction that no replica knows as committed below its watermark replaces nothing, and any replica may
  lack it: it was aborted, or is open, and a replica that has read the ABORT marker removes it.

So the last committed value of every key is on every replica. Rule for this file: a few passes in log order, which hold
one record at a time, and of each key a digest and an offset per replica.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from msgspec import Struct

from minikafka.check.findings import MISSING, Diverged, Finding
from minikafka.check.history import HistoryError, Replica
from minikafka.types import NO_EPOCH, NO_OFFSET, Epoch, NodeId, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.rewrite import RecordSlice, slices


class LogBatch(Struct, frozen=True):
    """One batch as it stands in a log."""

    base_offset: Offset
    last_offset: Offset
    leader_epoch: Epoch
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBatches:
    """One replica's log: its marks, and its batches in log order; read several times when it is compacted."""

    node: NodeId
    high_watermark: Offset
    log_start: Offset
    batches: Iterable[LogBatch]
    is_compacted: bool = False
    """True if compaction has removed offsets, here or at the replica that it was copied from."""
    missed: Mapping[bytes, Offset] = field(default_factory=dict)
    """Tombstones that were gone elsewhere when this replica came to copy them: key -> offset of the last.

    An older record of such a key stays here alone: in Kafka too a replica that is away for longer than
    ``delete.retention.ms`` does not learn what was deleted meanwhile.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was looked at and found."""

    batch_count: int
    """Batches that were held against another replica's."""
    size: int
    """Their bytes, each batch counted once."""
    end_offset: Offset
    """Everything below was compared between all replicas (or is reported)."""
    findings: tuple[Diverged, ...]
    is_compacted: bool = False
    """Compared record by record, not byte by byte: each replica was compacted by itself."""

    @property
    def equal(self) -> bool:
        return not self.findings


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


class _CompactedWalk:
    """One replica's place among its records."""

    def __init__(self, replica: ReplicaBatches) -> None:
        self.replica = replica
        self.uncommitted: set[Offset] = set()
        """Base offsets of batches whose transactions no replica knows as committed."""
        self.missed = {_key_digest(key): offset for key, offset in replica.missed.items()}
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
        """Return True if there is a reason that a record of another replica is not here."""
        if row.key is None or not row.is_committed or self.last_of_key.get(row.key, NO_OFFSET) > row.offset:
            return True
        return not row.has_value and (
            row.key not in self.held_of_key or self.missed.get(row.key, NO_OFFSET) >= row.offset
        )

    def is_alone_with(self, row: _Row) -> bool:
        """Return True if it is known why this replica still has a record that was deleted elsewhere."""
        return row.key is not None and self.missed.get(row.key, NO_OFFSET) > row.offset


def _row(batch: LogBatch, record: RecordSlice, header: RecordBatch, *, is_committed: bool) -> _Row:
    # Offset delta, key, value, headers: what compaction copies; the timestamp delta is counted from another base.
    content = hashlib.blake2b(record.tail, digest_size=12, salt=record.timestamp.to_bytes(8, signed=True))
    content.update(header.timestamp_type.to_bytes(1))
    key = None if record.key is None else _key_digest(record.key)
    return _Row(record.offset, batch.leader_epoch, key, record.has_value, content.digest(), is_committed)


def _key_digest(key: bytes | memoryview) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def compare_compacted(partition: TopicPartition, replicas: Sequence[ReplicaBatches]) -> Comparison:
    """As ``compare_replicas``, record by record; ``batches`` of each are gone over several times. CorruptMessage."""
    walks = [_CompactedWalk(replica) for replica in sorted(replicas, key=lambda replica: replica.node)]
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
            findings.append(_compacted_difference(partition, offset, due, strays))
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


def _strays(offset: Offset, here: Sequence[_CompactedWalk], due: Sequence[_CompactedWalk]) -> list[_CompactedWalk]:
    """Replicas that have another record than most, or that lack one without a reason."""
    rows = [walk.current for walk in here if walk.current is not None]
    camps = Counter((row.epoch, row.content) for row in rows)
    model = camps.most_common(1)[0][0]
    row = next(row for row in rows if (row.epoch, row.content) == model)
    strays = [w for w in here if w.current is not None and (w.current.epoch, w.current.content) != model]
    if all(walk.is_alone_with(row) for walk in here):
        return strays
    return strays + [w for w in due if w not in here and not w.may_lack(row) and row.offset == offset]


def _compacted_difference(
    partition: TopicPartition, offset: Offset, due: Sequence[_CompactedWalk], strays: Sequence[_CompactedWalk]
) -> Diverged:
    lacking = [walk for walk in strays if walk.current is None or walk.current.offset != offset]
    reasons = [f"replica {walk.node} lacks the last record of its key" for walk in lacking]
    reasons += [f"replica {walk.node} has another record" for walk in strays if walk not in lacking]
    return Diverged(
        **partition._asdict(),
        offset=offset,
        holdings=tuple((walk.node, *_held_by(walk, offset)) for walk in due),
        detail=", ".join(reasons),
    )


def _held_by(walk: _CompactedWalk, offset: Offset) -> tuple[Epoch, str]:
    if walk.current is None or walk.current.offset != offset:
        return NO_EPOCH, MISSING
    return walk.current.epoch, "b2:" + walk.current.content.hex()


Report = Callable[[Finding], None]
Holding = TypeVar("Holding")


class ReplicaLog:
    """What a history says that one replica holds."""

    def __init__(self, first: Replica) -> None:
        self.node = first.node
        self.high_watermark = first.high_watermark
        self.log_start = first.log_start
        self.rows: dict[Offset, tuple[Epoch, str]] = {}
        self.batches: dict[Offset, tuple[Offset, Epoch, str]] = {}
        """base offset -> (end offset, leader epoch, digest)"""
        self.end = first.log_start
        self.lines: list[int] = []

    def __repr__(self) -> str:
        return f"<replica {self.node} start={self.log_start} hw={self.high_watermark} end={self.end}>"

    def owes(self, offset: Offset) -> bool:
        """Return True if this replica must have the offset if any other has it."""
        return self.log_start <= offset < self.high_watermark

    def holds(self, offset: Offset, value: str) -> bool:
        """Return True if the record is here; only the offsets of batches are known."""
        if self.rows:
            row = self.rows.get(offset)
            return row is not None and row[1] == value
        return bool(self.batches) and self.log_start <= offset < self.end


class ReplicaBook:
    """The logs of a history's ``replica`` lines."""

    def __init__(self, report: Report) -> None:
        self.partitions: dict[TopicPartition, dict[NodeId, ReplicaLog]] = {}
        self._report = report

    def on_replica(self, replica: Replica) -> None:
        logs = self.partitions.setdefault(TopicPartition(replica.topic, replica.partition), {})
        log = logs.get(replica.node)
        if log is None:
            log = logs[replica.node] = ReplicaLog(replica)
        if (log.high_watermark, log.log_start) != (replica.high_watermark, replica.log_start):
            raise HistoryError(replica.line, f"replica {replica.node} has other marks in line {log.lines[0]}")
        if (replica.rows and log.batches) or (replica.batches and log.rows):
            raise HistoryError(replica.line, f"replica {replica.node} is listed by rows and by batches")
        log.lines.append(replica.line)
        for offset, epoch, value in replica.rows:
            self._next(replica, log, offset)
            log.rows[offset] = (epoch, value)
            log.end = offset + 1
        for base_offset, end_offset, epoch, digest in replica.batches:
            self._next(replica, log, base_offset)
            log.batches[base_offset] = (end_offset, epoch, digest)
            log.end = end_offset

    def _next(self, replica: Replica, log: ReplicaLog, offset: Offset) -> None:
        """A log whose offsets do not rise is broken by itself; only a first batch may begin below the log start."""
        if offset < log.end and (log.rows or log.batches):
            self._report(
                _diverged(
                    TopicPartition(replica.topic, replica.partition),
                    offset,
                    [(log.node, NO_EPOCH, MISSING)],
                    detail=f"offsets of replica {log.node} go back from {log.end} to {offset}",
                    lines=(replica.line,),
                )
            )

    def agreed(self, partition: TopicPartition, *, is_compacted: bool = False) -> dict[Offset, str]:
        """offset -> value of what stands below high watermarks undisputed; reports where the replicas differ.

        Of a compacted log a replica may lack what another one has; a missing record counts only by its send.
        """
        logs = self.partitions.get(partition, {})
        ordered = [logs[node] for node in sorted(logs)]
        by_row = [log for log in ordered if not log.batches]
        rows = self._merge(partition, by_row, lambda log: log.rows, lambda offset, _row: offset, gaps=is_compacted)
        by_batch = [log for log in ordered if not log.rows]
        if not is_compacted:
            self._merge(partition, by_batch, lambda log: log.batches, lambda _base, batch: batch[0] - 1, gaps=False)
        return {offset: row[1] for offset, row in rows.items()}

    def _merge(
        self,
        partition: TopicPartition,
        logs: Sequence[ReplicaLog],
        holdings: Callable[[ReplicaLog], dict[Offset, Holding]],
        last_offset: Callable[[Offset, Holding], Offset],
        *,
        gaps: bool,
    ) -> dict[Offset, Holding]:
        """One pass over every log for what is there, one for what is missing."""
        merged: dict[Offset, Holding] = {}
        disputed: dict[Offset, None] = {}
        for log in logs:
            for offset, held in holdings(log).items():
                if (
                    log.log_start <= offset
                    and last_offset(offset, held) < log.high_watermark
                    and merged.setdefault(offset, held) != held
                ):
                    disputed[offset] = None
        for log in () if gaps else logs:
            here = holdings(log)
            for offset, held in merged.items():
                if log.log_start <= offset and last_offset(offset, held) < log.high_watermark and offset not in here:
                    disputed[offset] = None
        for offset in sorted(disputed):
            held_by = [(log.node, *_epoch_and_content(holdings(log).get(offset))) for log in logs if log.owes(offset)]
            lines = tuple(log.lines[0] for log in logs if log.owes(offset))
            self._report(_diverged(partition, offset, held_by, lines=lines))
            del merged[offset]
        return merged


def _epoch_and_content(held: object) -> tuple[Epoch, str]:
    """(leader epoch, value or digest) of a row or a batch."""
    match held:
        case (int(epoch), str(value)):
            return epoch, value
        case (int(end_offset), int(epoch), str(digest)):
            return epoch, f"{digest} up to {end_offset}"
        case _:
            return NO_EPOCH, MISSING


def _diverged(
    partition: TopicPartition,
    offset: Offset,
    holdings: Sequence[tuple[NodeId, Epoch, str]],
    *,
    detail: str = "",
    lines: tuple[int, ...] = (),
) -> Diverged:
    return Diverged(
        **partition._asdict(),
        offset=offset,
        lines=lines,
        holdings=tuple(holdings),
        detail=detail,
    )


# -- whole logs, byte by byte ----------------------------------------------------------------------------------------


class _Walk:
    """One replica's place in the lockstep."""

    def __init__(self, replica: ReplicaBatches) -> None:
        self.replica = replica
        self.node = replica.node
        self._batches: Iterator[LogBatch] = iter(replica.batches)
        self.end = 0
        self.disorder: Offset | None = None
        self.current: LogBatch | None = None
        self.advance()

    def advance(self) -> None:
        """Go to the next batch that this replica owes; None at the end, or where offsets do not rise."""
        self.current = None
        for batch in self._batches:
            if batch.base_offset < self.end or batch.last_offset < batch.base_offset:
                self.disorder = batch.base_offset
                return
            self.end = batch.last_offset + 1
            if batch.base_offset >= self.replica.log_start:
                if batch.last_offset < self.replica.high_watermark:
                    self.current = batch
                return


def compare_replicas(partition: TopicPartition, replicas: Sequence[ReplicaBatches]) -> Comparison:
    """Compare logs below their high watermarks, every byte of every batch, headers included.

    Of replicas that differ from the majority (of a tie, from the lowest node) the first difference is reported and
    they are compared no further. Linear in the bytes; one batch per replica is held. As soon as one of the logs is
    compacted, they are compared by ``compare_compacted``.
    """
    if any(replica.is_compacted for replica in replicas):
        return compare_compacted(partition, replicas)
    walks = [_Walk(replica) for replica in sorted(replicas, key=lambda replica: replica.node)]
    findings: list[Diverged] = []
    batch_count = size = 0
    while True:
        findings += [_disorder(partition, walk) for walk in walks if walk.disorder is not None]
        walks = [walk for walk in walks if walk.disorder is None]
        offset = min((walk.current.base_offset for walk in walks if walk.current is not None), default=None)
        if offset is None or len(walks) < 2:
            break
        # Who must have a batch here: those whose marks enclose the one that stands at this offset.
        last = max(
            walk.current.last_offset
            for walk in walks
            if walk.current is not None and walk.current.base_offset == offset
        )
        due = [walk for walk in walks if walk.replica.log_start <= offset and last < walk.replica.high_watermark]
        here = [walk for walk in walks if walk.current is not None and walk.current.base_offset == offset]
        if len(due) > 1:
            model, strays = _majority(due, offset)
            batch_count += 1
            size += len(model.data) if model is not None else 0
            if strays:
                findings.append(_difference(partition, offset, due, model, strays))
                walks = [walk for walk in walks if walk not in strays]
        for walk in here:
            walk.advance()
    end_offset = min((replica.high_watermark for replica in replicas), default=0)
    return Comparison(batch_count=batch_count, size=size, end_offset=end_offset, findings=tuple(findings))


def _at(walk: _Walk, offset: Offset) -> LogBatch | None:
    return walk.current if walk.current is not None and walk.current.base_offset == offset else None


def _majority(due: Sequence[_Walk], offset: Offset) -> tuple[LogBatch | None, list[_Walk]]:
    """The batch that most replicas have, and the walks that have another or none."""
    camps: list[tuple[LogBatch | None, list[_Walk]]] = []
    for walk in due:
        batch = _at(walk, offset)
        for model, members in camps:
            same = batch is None if model is None else batch is not None and batch.data == model.data
            if same:
                members.append(walk)
                break
        else:
            camps.append((batch, [walk]))
    # max keeps the first of equals, and the walks stand in order of their nodes.
    model, members = max(camps, key=lambda camp: len(camp[1]))
    return model, [walk for walk in due if walk not in members]


def _difference(
    partition: TopicPartition, offset: Offset, due: Sequence[_Walk], model: LogBatch | None, strays: Sequence[_Walk]
) -> Diverged:
    holdings: list[tuple[NodeId, Epoch, str]] = []
    for walk in due:
        batch = _at(walk, offset)
        holdings.append(
            (walk.node, *((NO_EPOCH, MISSING) if batch is None else (batch.leader_epoch, _digest(batch.data))))
        )
    details = []
    for walk in strays:
        batch = _at(walk, offset)
        if batch is not None and model is not None:
            details.append(f"replica {walk.node} differs at byte {_first_difference(batch.data, model.data)}")
    return _diverged(partition, offset, holdings, detail=", ".join(details))


def _disorder(partition: TopicPartition, walk: _Walk) -> Diverged:
    offset = walk.end if walk.disorder is None else walk.disorder
    detail = f"offsets of replica {walk.node} go back from {walk.end} to {offset}"
    return _diverged(partition, offset, [(walk.node, NO_EPOCH, MISSING)], detail=detail)


def _first_difference(one: bytes | bytearray | memoryview, two: bytes | bytearray | memoryview) -> int:
    for position, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return position
    return min(len(one), len(two))


def _digest(data: bytes | bytearray | memoryview) -> str:
    return "b2:" + hashlib.blake2b(data, digest_size=12).hexdigest()
