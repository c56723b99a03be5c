"""The history of a run: each client's operations with their results, and what each replica holds at the end.

One JSON object per line, described with examples in docs/history-format.md. Rules of the format:

1. A send has one line when it is made and one when its outcome is known; without the second it is *unknown*.
2. Lines stand in the order in which things happened as their process saw them: a process's sends in calling order.
3. Values are named by a short id (:func:`value_id`). One value may be sent more than once, but sends with a value of
   their own are judged more sharply.
4. Times are seconds of whatever clock the recorder was given; they are for readers, no rule compares them.
5. A field that a reader does not know is ignored; a ``type`` that it does not know is an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A record was handed to a producer."""

    type: ClassVar[str] = "send"
    op: int
    """Names the send in its outcome; unique in the history."""
    time: float
    process: str
    topic: str
    partition: int | None
    """None when the partitioner decides; the outcome then names it."""
    key: str | None
    value: str
    sequence: int | None
    """Rises within process and key. Given: order is judged per process and key, for processes that send from several
    tasks. None: all sends of the process to a partition are expected in the order of their lines."""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The send is in the log, on as many replicas as its acks asked for (acks=0 is never more than Unknown)."""

    type: ClassVar[str] = "ok"
    op: int
    time: float
    partition: int | None
    """None: as in the send."""
    offset: Offset | None
    """None when the broker did not tell (an old duplicate)."""
    leader_epoch: Epoch
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The send is definitely not in the log."""

    type: ClassVar[str] = "failed"
    op: int
    time: float
    error: str
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nobody can say: the record may appear once, or never."""

    type: ClassVar[str] = "unknown"
    op: int
    time: float
    error: str
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """A consumer was handed records of one partition (possibly none)."""

    type: ClassVar[str] = "poll"
    time: float
    process: str
    topic: str
    partition: int
    records: Sequence[tuple[Offset, str]]
    position_before: Offset | None
    position_after: Offset | None
    high_watermark: Offset | None
    """As the fetch's answer gave it; None when not known."""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """The process's partitions were set: what it read before says nothing about what it reads next."""

    type: ClassVar[str] = "assign"
    time: float
    process: str
    partitions: Sequence[TopicPartition]
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek:
    """The process's position was set by hand (or by auto.offset.reset)."""

    type: ClassVar[str] = "seek"
    time: float
    process: str
    topic: str
    partition: int
    offset: Offset
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What one replica holds at the end: by record (``rows``) or by batch (``batches``), of any one partition alike.

    A log may be spread over several lines in offset order; their ``high_watermark`` and ``log_start`` agree.
    """

    type: ClassVar[str] = "replica"
    time: float
    node: NodeId
    topic: str
    partition: int
    high_watermark: Offset
    log_start: Offset
    rows: Sequence[tuple[Offset, Epoch, str]] = ()
    """(offset, leader epoch, value id)"""
    batches: Sequence[tuple[Offset, Offset, Epoch, str]] = ()
    """(base offset, end offset, leader epoch, digest of the batch's bytes)"""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What the run promises, as its own history states it."""

    type: ClassVar[str] = "expect"
    expectations: Expectations
    line: int = 0


Operation: TypeAlias = Send | Acknowledged | Failed | Unknown | Poll | Assign | Seek | Replica | Expect


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
            row = json.loads(line)
        except ValueError as problem:
            if _is_cut(line) and next(rest, None) is None:
                return
            raise HistoryError(number, f"not JSON: {problem}") from problem
        if not isinstance(row, dict):
            raise HistoryError(number, "not a JSON object")
        kind = row.get("type")
        parse = _PARSERS.get(kind) if isinstance(kind, str) else None
        if parse is None:
            raise HistoryError(number, f"unknown type {kind!r}; known are {', '.join(_PARSERS)}")
        try:
            operation = parse(_Row(row), number)
        except KeyError as problem:
            raise HistoryError(number, f"{kind} lacks the field {problem}") from problem
        except (TypeError, ValueError) as problem:
            raise HistoryError(number, f"{kind}: {problem}") from problem
        if operation is not None:
            yield operation


def _is_cut(line: str | bytes) -> bool:
    return line[:1] in {"{", b"{"} and line[-1:] not in {"\n", b"\n"}


class _Row:
    """One object of a history, read with the types that the format promises."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def number(self, name: str) -> int:
        return _integer(self._fields[name], name)

    def number_or_none(self, name: str) -> int | None:
        value = self._fields.get(name)
        return None if value is None else _integer(value, name)

    def text(self, name: str) -> str:
        return _text(self._fields[name], name)

    def text_or_none(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None else _text(value, name)

    def flag(self, name: str, default: bool) -> bool:  # noqa: FBT001 - the default of a flag is a flag
        value = self._fields.get(name, default)
        if type(value) is not bool:
            raise TypeError(f"{name} is {value!r}, not true or false")
        return value

    def time(self) -> float:
        value = self._fields["time"]
        if type(value) is not float and type(value) is not int:
            raise TypeError(f"time is {value!r}, not seconds")
        return float(value)

    def table(self, name: str, *columns: type, required: bool = False) -> tuple[tuple[Any, ...], ...]:
        """A list of rows with one type per column."""
        rows = self._fields[name] if required else self._fields.get(name, [])
        if not isinstance(rows, list):
            raise TypeError(f"{name} is not a list")
        result = []
        for row in rows:
            if not isinstance(row, list) or [type(cell) for cell in row] != list(columns):
                wanted = ", ".join(column.__name__ for column in columns)
                raise TypeError(f"{name} holds {row!r} where [{wanted}] belongs")
            result.append(tuple(row))
        return tuple(result)


def _integer(value: object, name: str) -> int:
    if type(value) is not int:  # bool is an int to isinstance
        raise TypeError(f"{name} is {value!r}, not an integer")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, not a string")
    return value


def _parse_header(row: _Row, line: int) -> None:
    version = row.number("version")
    if version != VERSION:
        raise ValueError(f"version {version} is not known here, only {VERSION}")
    if line != 1:
        raise ValueError("the header stands in the first line or nowhere")


def _parse_send(row: _Row, line: int) -> Send:
    return Send(
        op=row.number("op"),
        time=row.time(),
        process=row.text("process"),
        topic=row.text("topic"),
        partition=row.number_or_none("partition"),
        key=row.text_or_none("key"),
        value=row.text("value"),
        sequence=row.number_or_none("sequence"),
        line=line,
    )


def _parse_acknowledged(row: _Row, line: int) -> Acknowledged:
    leader_epoch = row.number_or_none("leader_epoch")
    return Acknowledged(
        op=row.number("op"),
        time=row.time(),
        partition=row.number_or_none("partition"),
        offset=row.number_or_none("offset"),
        leader_epoch=NO_EPOCH if leader_epoch is None else leader_epoch,
        line=line,
    )


def _parse_failed(row: _Row, line: int) -> Failed:
    return Failed(op=row.number("op"), time=row.time(), error=row.text("error"), line=line)


def _parse_unknown(row: _Row, line: int) -> Unknown:
    return Unknown(op=row.number("op"), time=row.time(), error=row.text("error"), line=line)


def _parse_poll(row: _Row, line: int) -> Poll:
    return Poll(
        time=row.time(),
        process=row.text("process"),
        topic=row.text("topic"),
        partition=row.number("partition"),
        records=row.table("records", int, str, required=True),
        position_before=row.number_or_none("position_before"),
        position_after=row.number_or_none("position_after"),
        high_watermark=row.number_or_none("high_watermark"),
        line=line,
    )


def _parse_assign(row: _Row, line: int) -> Assign:
    partitions = tuple(TopicPartition(*cells) for cells in row.table("partitions", str, int, required=True))
    return Assign(time=row.time(), process=row.text("process"), partitions=partitions, line=line)


def _parse_seek(row: _Row, line: int) -> Seek:
    return Seek(
        time=row.time(),
        process=row.text("process"),
        topic=row.text("topic"),
        partition=row.number("partition"),
        offset=row.number("offset"),
        line=line,
    )


def _parse_replica(row: _Row, line: int) -> Replica:
    rows = row.table("rows", int, int, str)
    batches = row.table("batches", int, int, int, str)
    if rows and batches:
        raise ValueError("a line lists rows or batches, not both")
    return Replica(
        time=row.time(),
        node=row.number("node"),
        topic=row.text("topic"),
        partition=row.number("partition"),
        high_watermark=row.number("high_watermark"),
        log_start=row.number("log_start"),
        rows=rows,
        batches=batches,
        line=line,
    )


def _parse_expect(row: _Row, line: int) -> Expect:
    plain = Expectations()
    starts = row.table("log_start", str, int, int)
    expectations = Expectations(
        idempotent=row.flag("idempotent", plain.idempotent),
        final_read_complete=row.flag("final_read_complete", plain.final_read_complete),
        replicas_complete=row.flag("replicas_complete", plain.replicas_complete),
        log_start={TopicPartition(topic, partition): offset for topic, partition, offset in starts},
        compacted=frozenset(topic for (topic,) in row.table("compacted", str)),
    )
    return Expect(expectations=expectations, line=line)


_PARSERS: dict[str, Callable[[_Row, int], Operation | None]] = {
    "history": _parse_header,
    Send.type: _parse_send,
    Acknowledged.type: _parse_acknowledged,
    Failed.type: _parse_failed,
    Unknown.type: _parse_unknown,
    Poll.type: _parse_poll,
    Assign.type: _parse_assign,
    Seek.type: _parse_seek,
    Replica.type: _parse_replica,
    Expect.type: _parse_expect,
}
