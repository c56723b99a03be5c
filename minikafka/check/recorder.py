"""Recording a history while it happens, as operations (simulator) or as lines of JSON (demo, chaos, ledgers).

Rules: the clock and the sink are passed in; nothing is kept but the count of lines, so that a recorder can run for
days. Record a send *before* it is handed to the producer and its outcome when the future resolves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields

from minikafka.check.history import (
    VERSION,
    Acknowledged,
    Assign,
    Expect,
    Expectations,
    Failed,
    Operation,
    Poll,
    Replica,
    Seek,
    Send,
    Unknown,
)
from minikafka.types import NO_EPOCH, Epoch, NodeId, Offset, TopicPartition

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Recorder:
    """Hands each operation to ``record``, numbered as the line that it would be in a file.

    ``clock`` gives seconds; any clock will do (virtual time in the simulator). ``lines_before``: how many lines the
    file has already (its header); ``sends_before``: how many of them are sends, whose numbers are taken.
    """

    def __init__(
        self,
        record: Callable[[Operation], None],
        clock: Callable[[], float],
        *,
        lines_before: int = 0,
        sends_before: int = 0,
    ) -> None:
        self._record = record
        self._clock = clock
        self._line = lines_before
        self._sends = sends_before

    def send(
        self,
        process: str,
        topic: str,
        value: str,
        *,
        key: str | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> int:
        """A record is about to be handed to a producer; returns the number that names it in its outcome."""
        self._sends += 1
        self._record(
            Send(
                op=self._sends,
                time=self._clock(),
                process=process,
                topic=topic,
                partition=partition,
                key=key,
                value=value,
                sequence=sequence,
                line=self._next_line(),
            )
        )
        return self._sends

    def acknowledged(
        self, op: int, *, partition: int | None, offset: Offset | None, leader_epoch: Epoch = NO_EPOCH
    ) -> None:
        """The promise is given. ``offset`` None: it is in the log, but the broker did not tell where."""
        self._record(
            Acknowledged(
                op=op,
                time=self._clock(),
                partition=partition,
                offset=offset,
                leader_epoch=leader_epoch,
                line=self._next_line(),
            )
        )

    def failed(self, op: int, error: str) -> None:
        """Only for errors with the outcome *not written*; ``error`` is Kafka's name for it."""
        self._record(Failed(op=op, time=self._clock(), error=error, line=self._next_line()))

    def unknown(self, op: int, error: str) -> None:
        """Time-outs, broken connections, acks=0, and errors that say *unknown*."""
        self._record(Unknown(op=op, time=self._clock(), error=error, line=self._next_line()))

    def poll(
        self,
        process: str,
        topic: str,
        partition: int,
        records: Sequence[tuple[Offset, str]],
        *,
        position_before: Offset | None = None,
        position_after: Offset | None = None,
        high_watermark: Offset | None = None,
    ) -> None:
        """A consumer was handed ``records`` of one partition, as (offset, value id)."""
        self._record(
            Poll(
                time=self._clock(),
                process=process,
                topic=topic,
                partition=partition,
                records=tuple(records),
                position_before=position_before,
                position_after=position_after,
                high_watermark=high_watermark,
                line=self._next_line(),
            )
        )

    def assign(self, process: str, partitions: Sequence[TopicPartition]) -> None:
        """The process's partitions were set, by hand or by a rebalance."""
        self._record(
            Assign(time=self._clock(), process=process, partitions=tuple(partitions), line=self._next_line()),
        )

    def seek(self, process: str, topic: str, partition: int, offset: Offset) -> None:
        """The process's next record is the one at ``offset``, or the first after it."""
        self._record(
            Seek(
                time=self._clock(),
                process=process,
                topic=topic,
                partition=partition,
                offset=offset,
                line=self._next_line(),
            )
        )

    def replica(
        self,
        node: NodeId,
        topic: str,
        partition: int,
        *,
        high_watermark: Offset,
        log_start: Offset = 0,
        rows: Sequence[tuple[Offset, Epoch, str]] = (),
        batches: Sequence[tuple[Offset, Offset, Epoch, str]] = (),
    ) -> None:
        """One replica's log, or the next part of it; list every replica of a partition or none."""
        self._record(
            Replica(
                time=self._clock(),
                node=node,
                topic=topic,
                partition=partition,
                high_watermark=high_watermark,
                log_start=log_start,
                rows=tuple(rows),
                batches=tuple(batches),
                line=self._next_line(),
            )
        )

    def expect(self, expectations: Expectations) -> None:
        """State what the run promises; of several lines the last counts."""
        self._record(Expect(expectations=expectations, line=self._next_line()))

    def _next_line(self) -> int:
        self._line += 1
        return self._line


class HistoryWriter(Recorder):
    """A recorder that writes lines: ``write`` gets each with its line end; the header first unless lines are there."""

    def __init__(
        self,
        write: Callable[[str], object],
        clock: Callable[[], float],
        *,
        lines_before: int = 0,
        sends_before: int = 0,
    ) -> None:
        def write_line(operation: Operation) -> None:
            write(to_line(operation))

        super().__init__(write_line, clock, lines_before=max(1, lines_before), sends_before=sends_before)
        if not lines_before:
            write(header_line())


def header_line() -> str:
    """The first line of a history, with its line end."""
    return _encode({"type": "history", "version": VERSION}) + "\n"


def to_line(operation: Operation) -> str:
    """The operation as a line of a history, with its line end; what is None or empty is left out."""
    row: dict[str, object] = {"type": operation.type}
    if isinstance(operation, Expect):
        row |= _expectations_row(operation.expectations)
    else:
        for name in _NAMES[type(operation)]:
            value = getattr(operation, name)
            if value is not None and (value != () or name in _NEVER_OMITTED):
                row[name] = value
    return _encode(row) + "\n"


def _expectations_row(expectations: Expectations) -> dict[str, object]:
    return {
        "idempotent": expectations.idempotent,
        "final_read_complete": expectations.final_read_complete,
        "replicas_complete": expectations.replicas_complete,
        "log_start": [[*partition, offset] for partition, offset in sorted(expectations.log_start.items())],
        **({"compacted": [[topic] for topic in sorted(expectations.compacted)]} if expectations.compacted else {}),
    }


_NEVER_OMITTED = frozenset({"records", "partitions"})
_NAMES: dict[type, tuple[str, ...]] = {
    kind: tuple(member.name for member in fields(kind) if member.name != "line")
    for kind in (Send, Acknowledged, Failed, Unknown, Poll, Assign, Seek, Replica)
}
