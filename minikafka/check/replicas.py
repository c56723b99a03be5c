"""Replicas against each other: equal below their high watermarks, by record, by batch digest, or byte by byte.

Which offsets two replicas owe each other: from the higher of their log starts up to the lower of their high
watermarks; a tail above that may still be cut. What replicas of a compacted log owe each other: ``compacted.py``.

:class:`ReplicaBook` keeps what a history lists; :func:`compare_replicas` streams whole logs of any size in lockstep
and holds one batch per replica.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from minikafka.check.compacted import compare_compacted
from minikafka.check.findings import MISSING, Diverged, Finding
from minikafka.check.history import HistoryError, Replica
from minikafka.check.logs import Comparison, LogBatch, ReplicaBatches
from minikafka.types import NO_EPOCH, Epoch, NodeId, Offset, TopicPartition

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
        """Whether this replica must hold the offset if any other does."""
        return self.log_start <= offset < self.high_watermark

    def holds(self, offset: Offset, value: str) -> bool:
        """Whether the record is here; of batches only the offsets are known."""
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
            held_by = [(log.node, *_told(holdings(log).get(offset))) for log in logs if log.owes(offset)]
            lines = tuple(log.lines[0] for log in logs if log.owes(offset))
            self._report(_diverged(partition, offset, held_by, lines=lines))
            del merged[offset]
        return merged


def _told(held: object) -> tuple[Epoch, str]:
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
        topic=partition.topic,
        partition=partition.partition,
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
