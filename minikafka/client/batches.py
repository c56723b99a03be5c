"""The producer's batches: records of one partition on their way, what they wait for, and what a refusal proves.

Rules for this file: data and pure questions about one batch; what becomes of batches is decided in accumulator.py.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from minikafka.errors import (
    DuplicateSequenceNumber,
    Outcome,
    OutOfOrderSequenceNumber,
    ProtocolError,
    UnknownProducerId,
)
from minikafka.types import NO_PRODUCER, NodeId, TopicPartition
from minikafka.wire.batch import HEADER_SIZE, checksum
from minikafka.wire.records import BatchBuilder, Headers

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
    """Who produces: the broker refuses older epochs of the same id."""

    producer_id: int
    epoch: int


class Batch(Generic[Sink]):
    """Records of one partition on their way."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "builder",
        "created_at",
        "data",
        "deadline",
        "follows",
        "identity",
        "is_severed",
        "last_error",
        "maybe_written",
        "number",
        "once_unknown",
        "queue",
        "reported",
        "retry_at",
        "sent_as",
        "size",
        "stale_leader",
        "waiters",
    )

    def __init__(self, queue: PartitionQueue[Sink], builder: BatchBuilder, *, number: int, created_at: float) -> None:
        self.queue = queue
        self.builder = builder
        self.number = number
        self.created_at = created_at
        self.deadline = 0.0
        self.size = HEADER_SIZE
        """Upper bound of its bytes, uncompressed."""
        self.waiters: list[Waiter[Sink]] = []
        self.data: bytearray | None = None
        self.identity: Identity | None = None
        self.base_sequence = -1
        self.attempts = 0
        self.follows = False
        """It was first sent while the batch before it was in flight."""
        self.is_severed = False
        """In flight, and certainly not in the log: the batch before it was not written."""
        self.sent_as = 0
        """How many batches of the partition were sent before its last attempt."""
        self.retry_at = 0.0
        self.maybe_written = False
        """It may be in the log of the partition's leader."""
        self.once_unknown = False
        """The outcome of an attempt was unknown. What a later leader says of its own log changes nothing for people: an
        unclean election may have lost what was read before, or bring the former leader's log back."""
        self.stale_leader = False
        """The last attempt showed that the leader is another one: ask for metadata until it is known."""
        self.last_error: ProtocolError | None = None
        self.reported = False
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


class PartitionQueue(Generic[Sink]):
    """The batches of one partition, oldest first; only the last may be open."""

    __slots__ = (
        "batches",
        "identity",
        "in_flight",
        "is_steady",
        "next_sequence",
        "open",
        "partition",
        "sent",
        "size_max",
        "topic",
    )

    def __init__(self, topic: str, partition: int, size_max: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: deque[Batch[Sink]] = deque()
        self.open: Batch[Sink] | None = None
        self.in_flight: list[Batch[Sink]] = []
        """Batches that are being sent, in the order of their sequences."""
        self.is_steady = False
        """The last answer acknowledged a batch of ``identity``: the next batch need not wait for those in flight."""
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.sent = 0
        """Attempts so far."""
        self.size_max = size_max
        """Largest size of a batch of several records: batch.size, or less once a broker found a batch too large."""

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
    error: ProtocolError


@dataclass(slots=True)
class Drained(Generic[Sink]):
    """What is to be done now, and when to ask again."""

    calls: list[Call[Sink]]
    failures: list[Failure[Sink]]
    deadline: float = NEVER
    leaderless: bool = False
    """A batch waits for a leader that nobody knows: metadata is wanted."""
    wants_identity: bool = False


def fate_of(batch: Batch[Any]) -> Outcome:
    """What became of a batch that was not acknowledged."""
    return "unknown" if batch.maybe_written else "not_written"


def record_size(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Upper bound of one record's bytes inside a batch."""
    size = RECORD_OVERHEAD_MAX + (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    for name, content in headers:
        size += 10 + len(name.encode()) + (len(content) if content is not None else 0)
    return size


def is_success(error: ProtocolError | None) -> bool:
    """A duplicate that the broker no longer has an offset for is in the log all the same (KIP-98)."""
    return error is None or isinstance(error, DuplicateSequenceNumber)


def proves_absence(error: ProtocolError, batch: Batch[Any], *, idempotent: bool) -> bool:
    """Does the refusal show that no attempt of this batch is in the leader's log, although the sequence is refused?

    OUT_OF_ORDER_SEQUENCE_NUMBER does for the oldest batch of a partition: had an attempt been appended, the leader
    would have called it a duplicate (``wire/batch.py``, PIPELINED). UNKNOWN_PRODUCER_ID says nothing of earlier
    attempts: their state is gone with the records.
    """
    if not idempotent:
        return False
    if isinstance(error, OutOfOrderSequenceNumber):
        return True
    return isinstance(error, UnknownProducerId) and not batch.maybe_written


def with_producer(data: bytearray, identity: Identity | None, base_sequence: int) -> bytearray:
    """A copy of built batch bytes with another producer state; an attempt that hangs may still read the old ones."""
    copy = bytearray(data)
    producer_id, epoch = identity if identity is not None else (NO_PRODUCER, -1)
    _PRODUCER_FIELDS.pack_into(copy, _PRODUCER_AT, producer_id, epoch, base_sequence)
    copy[_CRC_AT : _CRC_AT + 4] = checksum(copy).to_bytes(4)
    return copy
