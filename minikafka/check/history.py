"""The history of a run: each client's operations with their results, and what each replica holds at the end.

One JSON object per line, described with examples in docs/history-format.md. Rules of the format:

1. A send has one line when it is made and one when its outcome is known; without the second it is *unknown*.
2. Lines stand in the order in which things happened as their process saw them: a process's sends in calling order.
3. Values are named by a short id (:func:`value_id`). One value may be sent more than once, but sends with a value of
   their own are judged more sharply.
4. Times are seconds of whatever clock the recorder was given; they are for readers, no rule compares them.
5. A field that a reader does not know is ignored; a ``type`` that it does not know is an error.

A history is recorded while it happens, as operations (simulator) or as lines of JSON (demo, chaos, ledgers).
The recorder gets its clock and its sink, and keeps nothing but the count of lines, so that a recorder can run for
days. Record a send *before* it is handed to the producer and its outcome when the future resolves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct

from minikafka.types import NO_EPOCH, Epoch, NodeId, Offset, TopicPartition

VERSION = 1
TEXT_VALUE_LENGTH_MAX = 64
"""Longer values are named by a digest: a history of a million records stays readable and small."""

DIGEST_PREFIX = "b2:"
NULL_VALUE = "~null"


class HistoryError(Exception):
    """A history that cannot be read: ``line`` is the number of the offending line, from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def value_id(value: bytes | None) -> str:
    """The name of a value in a history: the text itself where it is short and printable, else ``b2:`` and a digest.

    Different values have different ids (up to a collision of 96-bit BLAKE2b); None, a tombstone, is ``~null``.
    """
    if value is None:
        return NULL_VALUE
    if len(value) <= TEXT_VALUE_LENGTH_MAX:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            pass  # not text: it gets a digest below
        else:
            if text.isprintable() and text != NULL_VALUE and not text.startswith(DIGEST_PREFIX):
                return text
    return DIGEST_PREFIX + hashlib.blake2b(value, digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What the run promises, and therefore what counts as a finding."""

    idempotent: bool = True
    """Producers are idempotent: no value appears more often than it was sent, and order holds."""
    final_read_complete: bool = False
    """At the end a reader read every partition from its log start to its high watermark."""
    replicas_complete: bool = False
    """Every replica that is listed was in sync at the end: it must hold all that was acknowledged."""
    log_start: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    """Where retention or DeleteRecords may have cut to: nothing below is expected to be there. 0 where not named."""
    compacted: frozenset[str] = frozenset()
    """Topics that are compacted: of each key the last record is owed (see ``clients.py``)."""


class Line(Struct, frozen=True, kw_only=True):
    """A line of a history."""

    line: int = msgspec.field(default=0, name="(line)")
    """Its number, from 1: no field of the format."""

    @property
    def type(self) -> str:
        """What the line is, in the format's words."""
        return str(self.__struct_config__.tag)


class Send(Line, frozen=True, kw_only=True, tag="send"):
    """A record was handed to a producer."""

    op: int
    """Names the send in its outcome; unique in the history."""
    time: float
    process: str
    topic: str
    partition: int | None = None
    """None when the partitioner decides; the outcome then names it."""
    key: str | None = None
    value: str
    sequence: int | None = None
    """Rises within process and key. Given: order is judged per process and key, for processes that send from several
    tasks. None: all sends of the process to a partition are expected in the order of their lines."""


class Acknowledged(Line, frozen=True, kw_only=True, tag="ok"):
    """The send is in the log, on as many replicas as its acks asked for (acks=0 is never more than Unknown)."""

    op: int
    time: float
    partition: int | None = None
    """None: as in the send."""
    offset: Offset | None = None
    """None when the broker did not tell (an old duplicate)."""
    leader_epoch: Epoch | None = NO_EPOCH


class Failed(Line, frozen=True, kw_only=True, tag="failed"):
    """The send is definitely not in the log."""

    op: int
    time: float
    error: str


class Unknown(Line, frozen=True, kw_only=True, tag="unknown"):
    """The outcome is unknown: the record may appear once, or never."""

    op: int
    time: float
    error: str


class Poll(Line, frozen=True, kw_only=True, tag="poll"):
    """A consumer was handed records of one partition (possibly none)."""

    time: float
    process: str
    topic: str
    partition: int
    records: tuple[tuple[Offset, str], ...]
    position_before: Offset | None = None
    position_after: Offset | None = None
    high_watermark: Offset | None = None
    """As the fetch's answer gave it; None when not known."""


class Assign(Line, frozen=True, kw_only=True, tag="assign"):
    """The process's partitions were set: what it read before says nothing about what it reads next."""

    time: float
    process: str
    partitions: tuple[TopicPartition, ...]


class Seek(Line, frozen=True, kw_only=True, tag="seek"):
    """The process's position was set by hand (or by auto.offset.reset)."""

    time: float
    process: str
    topic: str
    partition: int
    offset: Offset


class Replica(Line, frozen=True, kw_only=True, tag="replica"):
    """What one replica holds at the end: by record (``rows``) or by batch (``batches``), of any one partition alike.

    A log may be spread over several lines in offset order; their ``high_watermark`` and ``log_start`` agree.
    """

    time: float
    node: NodeId
    topic: str
    partition: int
    high_watermark: Offset
    log_start: Offset
    rows: tuple[tuple[Offset, Epoch, str], ...] = ()
    """(offset, leader epoch, value id)"""
    batches: tuple[tuple[Offset, Offset, Epoch, str], ...] = ()
    """(base offset, end offset, leader epoch, digest of the batch's bytes)"""


class Expect(Line, frozen=True, kw_only=True, tag="expect"):
    """What the run promises, as its own history states it."""

    expectations: Expectations


class _Promises(Struct, tag="expect"):
    """The line of an Expect."""

    idempotent: bool = True
    final_read_complete: bool = False
    replicas_complete: bool = False
    log_start: Sequence[tuple[str, int, Offset]] = ()
    compacted: Sequence[tuple[str]] = ()


class _Header(Struct, tag="history"):
    """The first line."""

    version: int


Operation: TypeAlias = Send | Acknowledged | Failed | Unknown | Poll | Assign | Seek | Replica | Expect
_Written: TypeAlias = _Header | Send | Acknowledged | Failed | Unknown | Poll | Assign | Seek | Replica | _Promises
_DECODER = msgspec.json.Decoder(_Written)
_TYPES = [each.__struct_config__.tag for each in get_args(_Written)]


# -- reading ---------------------------------------------------------------------------------------------------------


def read_history(lines: Iterable[str | bytes]) -> Iterator[Operation]:
    """Read operations one by one; blank lines are skipped. Raises :class:`HistoryError` at the first bad line.

    A last line that ends in the middle is what a writer that was killed leaves: it is not there.
    """
    rest = iter(lines)
    for number, line in enumerate(rest, 1):
        if line.isspace() or not line:
            continue
        try:
            operation: Any = _DECODER.decode(line)
        except msgspec.ValidationError as problem:
            known = f"; known types are {', '.join(_TYPES)}" if "type`" in str(problem) else ""
            raise HistoryError(number, f"{problem}{known}") from problem
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            if _is_cut(line) and next(rest, None) is None:
                return
            raise HistoryError(number, f"not JSON: {problem}") from problem
        match operation:
            case _Header(version=version):
                if version != VERSION:
                    raise HistoryError(number, f"version {version} is not known here, only {VERSION}")
                if number != 1:
                    raise HistoryError(number, "the header stands in the first line or nowhere")
                continue
            case _Promises():
                operation = Expect(expectations=_expectations_of(operation))
            case Replica() if operation.rows and operation.batches:
                raise HistoryError(number, "a line lists rows or batches, not both")
        msgspec.structs.force_setattr(operation, "line", number)
        yield operation


def _is_cut(line: str | bytes) -> bool:
    return line[:1] in {"{", b"{"} and line[-1:] not in {"\n", b"\n"}


def _expectations_of(promises: _Promises) -> Expectations:
    return Expectations(
        idempotent=promises.idempotent,
        final_read_complete=promises.final_read_complete,
        replicas_complete=promises.replicas_complete,
        log_start={TopicPartition(topic, partition): offset for topic, partition, offset in promises.log_start},
        compacted=frozenset(topic for (topic,) in promises.compacted),
    )


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
        self._add(
            Send,
            op=self._sends,
            process=process,
            topic=topic,
            partition=partition,
            key=key,
            value=value,
            sequence=sequence,
        )
        return self._sends

    def acknowledged(
        self, op: int, *, partition: int | None, offset: Offset | None, leader_epoch: Epoch = NO_EPOCH
    ) -> None:
        """The promise is given. ``offset`` None: it is in the log, but the broker did not tell where."""
        self._add(Acknowledged, op=op, partition=partition, offset=offset, leader_epoch=leader_epoch)

    def failed(self, op: int, error: str) -> None:
        """Only for errors with the outcome *not written*; ``error`` is Kafka's name for it."""
        self._add(Failed, op=op, error=error)

    def unknown(self, op: int, error: str) -> None:
        """Time-outs, broken connections, acks=0, and errors that say *unknown*."""
        self._add(Unknown, op=op, error=error)

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
        self._add(
            Poll,
            process=process,
            topic=topic,
            partition=partition,
            records=tuple(records),
            position_before=position_before,
            position_after=position_after,
            high_watermark=high_watermark,
        )

    def assign(self, process: str, partitions: Sequence[TopicPartition]) -> None:
        """The process's partitions were set, by hand or by a rebalance."""
        self._add(Assign, process=process, partitions=tuple(partitions))

    def seek(self, process: str, topic: str, partition: int, offset: Offset) -> None:
        """The process's next record is the one at ``offset``, or the first after it."""
        self._add(Seek, process=process, topic=topic, partition=partition, offset=offset)

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
        self._add(
            Replica,
            node=node,
            topic=topic,
            partition=partition,
            high_watermark=high_watermark,
            log_start=log_start,
            rows=tuple(rows),
            batches=tuple(batches),
        )

    def expect(self, expectations: Expectations) -> None:
        """State what the run promises; of several lines the last counts."""
        self._record(Expect(expectations=expectations, line=self._next_line()))

    def _add(self, kind: type[Any], **members: Any) -> None:
        self._record(kind(time=self._clock(), line=self._next_line(), **members))

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
        for name in operation.__struct_fields__:
            value = getattr(operation, name)
            if name != "line" and value is not None and (value != () or name in _NEVER_OMITTED):
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
