"""The producer's batches: records of one partition on their way, what they wait for, and what a refusal proves.

It has data, and pure functions of one batch; what becomes of batches is decided in accumulator.py.

:func:`unfit` and :func:`check_rows` say what is wrong with a record that cannot be sent: bytes or nothing as key and
value, headers of (str, bytes or None), and whole milliseconds are needed. The codec refuses everything else, too, but
in the middle of a batch and in its own words. So these are called only when something was refused, or when nothing may
be half done (``send_many``, a ledger); they name the argument that is wrong and what to give instead.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from minikafka import errors as kafka
from minikafka.types import NO_PRODUCER, NodeId, TopicPartition
from minikafka.wire.batch import HEADER_SIZE, checksum
from minikafka.wire.records import BatchBuilder, Headers, PlainRows, Row, Rows

# A record's varints at their longest: length, attributes, two deltas, two sizes, header count.
RECORD_OVERHEAD_MAX = 21
NEVER = float("inf")
IN_FLIGHT_MAX = 5
"""Batches of one partition in flight: a leader remembers as many of a producer."""
_PRODUCER_FIELDS = struct.Struct(">qhi")
_PRODUCER_AT = 43
_CRC_AT = 17

Sink = TypeVar("Sink")
Waiter = tuple[Sink, int, int, int]
"""(sink, index, count, timestamp): who wants to know of ``count`` records of a batch from ``index`` on. A plain tuple:
``send`` makes one per record."""


class Identity(NamedTuple):
    """Producer id and epoch: the broker refuses older epochs of the same id."""

    producer_id: int
    epoch: int


@dataclass(slots=True, eq=False, repr=False)
class Batch(Generic[Sink]):
    """Records of one partition on their way."""

    queue: PartitionQueue[Sink]
    builder: BatchBuilder
    number: int = field(kw_only=True)
    created_at: float = field(kw_only=True)
    deadline: float = 0.0
    size: int = HEADER_SIZE
    """Upper bound of its bytes, uncompressed."""
    waiters: list[Waiter[Sink]] = field(default_factory=list)
    data: bytearray | None = None
    identity: Identity | None = None
    base_sequence: int = -1
    place: tuple[int, ...] = ()
    """Which of the parts it is that a batch was split into; parts may be split again."""
    attempts: int = 0
    follows: bool = False
    """It was last sent while the batch before it was in flight."""
    is_severed: bool = False
    """In flight, and certainly not in the log: the batch before it was not written."""
    sent_as: int = 0
    """How many batches of the partition were sent before its last attempt."""
    retry_at: float = 0.0
    maybe_written: bool = False
    """It may be in the log of the partition's leader."""
    once_unknown: bool = False
    """The outcome of an attempt was unknown. What a later leader says of its own log changes nothing for people: an
    unclean election may have lost what was read before, or bring the former leader's log back."""
    stale_leader: bool = False
    """The last attempt showed that the leader is another one: ask for metadata until it is known."""
    last_error: kafka.ProtocolError | None = None
    reported: bool = False
    """Its waiters have their answer; if it is still in flight its answer only settles the sequence."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.queue.topic, self.queue.partition)

    @property
    def record_count(self) -> int:
        return self.builder.record_count

    def __repr__(self) -> str:
        return (
            f"<batch {self.topic_partition} n={self.record_count} size={self.size} seq={self.base_sequence}"
            f" attempts={self.attempts}{' maybe-written' if self.maybe_written else ''}>"
        )


@dataclass(slots=True, eq=False, repr=False)
class PartitionQueue(Generic[Sink]):
    """The batches of one partition, oldest first; only the last may be open."""

    topic: str
    partition: int
    size_max: int
    """Largest size of a batch of several records: batch.size, or less since a broker found a batch too large."""
    limited_at: float = 0.0
    """When ``size_max`` changed last."""
    batches: deque[Batch[Sink]] = field(default_factory=deque)
    open: Batch[Sink] | None = None
    in_flight: list[Batch[Sink]] = field(default_factory=list)
    """Batches that are being sent, in the order of their sequences."""
    is_steady: bool = False
    """The last answer acknowledged a batch of ``identity``: the next batch need not wait for those in flight."""
    identity: Identity | None = None
    next_sequence: int = 0
    unsettled: Identity | None = None
    """A batch of this identity was given up, and a copy of it may still come: a gap in its sequences may be closed."""
    sent: int = 0
    """Attempts so far."""
    waits_for: str = ""
    """Why its next batch was not sent when it was due; empty if nothing was in the way."""

    def __repr__(self) -> str:
        return f"<queue {self.topic}-{self.partition} batches={len(self.batches)} next_seq={self.next_sequence}>"


@dataclass(slots=True)
class Call(Generic[Sink]):
    """One request to one node, of batches of different partitions."""

    node: NodeId
    batches: list[Batch[Sink]] = field(default_factory=list)
    size: int = 0


class Failure(NamedTuple, Generic[Sink]):
    """A batch whose waiters must be answered."""

    batch: Batch[Sink]
    error: kafka.ProtocolError


@dataclass(slots=True)
class Drained(Generic[Sink]):
    """What is to be done now, and when to ask again."""

    calls: list[Call[Sink]]
    failures: list[Failure[Sink]]
    deadline: float = NEVER
    leaderless: bool = False
    """A batch waits for a leader that nobody knows: metadata is wanted."""
    wants_identity: bool = False


def fate_of(batch: Batch[Any]) -> kafka.Outcome:
    """What became of a batch that was not acknowledged."""
    return "unknown" if batch.maybe_written else "not_written"


def record_size(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Upper bound of one record's bytes inside a batch."""
    size = RECORD_OVERHEAD_MAX + (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    for name, content in headers:
        size += 10 + len(name.encode()) + (len(content) if content is not None else 0)
    return size


def is_success(error: kafka.ProtocolError | None) -> bool:
    """A duplicate that the broker no longer has an offset for is in the log all the same (KIP-98)."""
    return error is None or isinstance(error, kafka.DuplicateSequenceNumber)


def proves_absence(error: kafka.ProtocolError, batch: Batch[Any], *, idempotent: bool) -> bool:
    """Return True if the refusal shows that no attempt of this batch is in the leader's log.

    OUT_OF_ORDER_SEQUENCE_NUMBER does where all batches before it are settled: had an attempt been appended, the leader
    would have called it a duplicate (``wire/batch.py``, PIPELINED). UNKNOWN_PRODUCER_ID says nothing of earlier
    attempts: their state is gone with the records.
    """
    if not idempotent:
        return False
    if isinstance(error, kafka.OutOfOrderSequenceNumber):
        return True
    return isinstance(error, kafka.UnknownProducerId) and not batch.maybe_written


def with_producer(data: bytearray, identity: Identity | None, base_sequence: int) -> bytearray:
    """A copy of built batch bytes with another producer state; an attempt that hangs may still read the old ones."""
    copy = bytearray(data)
    producer_id, epoch = identity if identity is not None else (NO_PRODUCER, -1)
    _PRODUCER_FIELDS.pack_into(copy, _PRODUCER_AT, producer_id, epoch, base_sequence)
    copy[_CRC_AT : _CRC_AT + 4] = checksum(copy).to_bytes(4)
    return copy


UNFIT: Final = (TypeError, ValueError, AttributeError, OverflowError)
"""What the codec, and those who count a record's bytes, raise for what cannot be sent."""

_PLAIN: Final = frozenset({bytes, bytearray, memoryview, type(None)})
_TIME_MAX: Final = 2**63


def unfit(
    key: Any, value: Any, headers: Any, timestamp_ms: Any, *, partition: Any = None, of: str = ""
) -> kafka.InvalidRequest | None:
    """Why this record cannot be sent, not written; None: it can. ``of`` begins the sentence."""
    if partition is not None and not isinstance(partition, int):
        return _refusal("partition", f"{of}partition: a number is needed, not {partition!r:.80}")
    for name, given in (("key", key), ("value", value)):
        if not _is_bytes(given):
            kind = type(given).__name__
            return _refusal(name, f"{of}{name}: bytes are needed, not {kind}: encode it, or give a {name}_serializer")
    for header in headers or ():
        if not _is_header(header):
            return _refusal("headers", f"{of}headers: pairs of (str, bytes or None) are needed, not {header!r:.80}")
    if timestamp_ms is not None and not (isinstance(timestamp_ms, int) and -_TIME_MAX <= timestamp_ms < _TIME_MAX):
        return _refusal(
            "timestamp_ms", f"{of}timestamp_ms: milliseconds since 1970 are needed, not {timestamp_ms!r:.80}"
        )
    return None


def check_rows(rows: Rows) -> None:
    """InvalidRequest, which names the record by its index, when one of them cannot be sent."""
    if isinstance(rows, PlainRows):
        suspects: Iterable[tuple[int, Any]] = enumerate(rows[:1])
    elif {type(row[1]) for row in rows} | {type(row[2]) for row in rows} <= _PLAIN and (
        {type(row[0]) for row in rows} == {int} and not any(row[3] for row in rows)
    ):
        # Of the times only the largest and the smallest can be wrong; to look at each would cost more than to send it.
        times = [row[0] for row in rows]
        suspects = ((index, rows[index]) for index in (times.index(min(times)), times.index(max(times))))
    else:
        suspects = enumerate(rows)
    for index, (timestamp, key, value, headers) in suspects:
        if (wrong := unfit(key, value, headers, timestamp, of=f"record {index}: ")) is not None:
            raise wrong


def _refusal(field: str, sentence: str) -> kafka.InvalidRequest:
    return kafka.InvalidRequest(sentence, outcome=kafka.NOT_WRITTEN, field=field)


def _is_bytes(given: Any) -> bool:
    if type(given) in _PLAIN:
        return True
    try:
        memoryview(given)
    except TypeError:
        return False
    return True


def _is_header(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and _is_bytes(given[1])


# A tuple, or every row of a `send_many` would be one more object for the garbage collector to walk.
NO_HEADERS: Headers = ()


class AppendedRecord(NamedTuple):
    """What ``BatchToSend.append`` tells."""

    offset: int
    """Place in the batch."""
    size: int
    timestamp: int


class BatchToSend:
    """Records for one partition; full at ``size_max`` bytes, uncompressed."""

    def __init__(
        self,
        *,
        compression: str,
        size_max: int,
        wall_ms: int,
        rows: list[Row] | None = None,
        transactional: bool = False,
    ) -> None:
        self.rows = rows
        """What it holds, for a ledger; None: there is none."""
        self.builder = BatchBuilder(compression=compression, size_limit=size_max, transactional=transactional)
        self.first_timestamp = wall_ms
        self._wall_ms = wall_ms
        self._closed = False

    def append(
        self, *, timestamp: int | None, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS
    ) -> AppendedRecord | None:
        """Add a record; None when the batch is full or closed. InvalidRequest for one that is not bytes."""
        if self._closed:
            return None
        before = self.builder.size
        at = self.builder.record_count
        when = self._wall_ms if timestamp is None else timestamp
        try:
            fits = self.builder.append(when, key, value, headers)
        except UNFIT as error:
            if (wrong := unfit(key, value, headers, when)) is not None:
                raise wrong from error
            raise
        if not fits:
            return None
        if at == 0:
            self.first_timestamp = when
        if self.rows is not None:
            self.rows.append((when, key, value, headers))
        return AppendedRecord(at, self.builder.size - before, when)

    def close(self) -> None:
        """No more records."""
        self._closed = True

    def record_count(self) -> int:
        return self.builder.record_count

    def size(self) -> int:
        """Bytes so far, uncompressed."""
        return self.builder.size
