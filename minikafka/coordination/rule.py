"""The rule that ``broker/coordinator_shard.py`` drives: a coordinator whose only memory is one partition's log.

A step says what the rule wants done: it collects answers for parked requests and writes to the coordinator's partition
(DESIGN D1, D5). A write is appended at once, in order; what it changes comes into force when it is committed, and only
then may a client read it or receive it. A ticket may be answered twice (first "unknown", later the truth): the driver
gives the first answer and drops the second.

A name belongs to the partition of the internal topic that its hash gives (KAFKA-FACTS 5).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import mul
from typing import Any, NamedTuple, Protocol, TypeAlias

from minikafka import errors as kafka
from minikafka.log.verification import VerificationGuard
from minikafka.types import NO_OFFSET, NO_PRODUCER, Offset

_POWERS = [1]
"""Of 31, as 32-bit numbers; as many as the longest name has needed."""


def java_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 units, as a signed 32-bit number."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    while len(_POWERS) < len(units):
        _POWERS.append(31 * _POWERS[-1] & 0xFFFFFFFF)
    value: int = sum(map(mul, reversed(units), _POWERS)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(name: str, partitions: int) -> int:
    """The partition whose leader coordinates ``name`` (S32). Kafka's abs(MIN) is 0."""
    value = java_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


Ticket: TypeAlias = int
"""Names a request that waits for its answer."""


class InTransaction(NamedTuple):
    """The transaction that a write belongs to: its records count when the transaction commits."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None
    """None: the write needs no verification."""


@dataclass(slots=True)
class Write:
    """Records for one batch, and what follows.

    ``refused`` comes with outcome *not_written*, or *unknown* when the wait for the commit ran out: then
    ``committed`` may still come, for the records are in the log.
    """

    records: tuple[Any, ...]
    """Of the coordinator's own type; its ``packed`` gives their bytes."""
    committed: Callable[[Step], None]
    refused: Callable[[kafka.ProtocolError, Step], None]
    transaction: InTransaction | None = None
    behind: Write | None = None
    """An earlier write of the same step, without which this one must not be appended."""
    base_offset: Offset = NO_OFFSET
    """Of the first record, set when the batch is appended."""
    refusal: kafka.ProtocolError | None = None
    """Why it was not appended, if it was refused before that."""


@dataclass(slots=True)
class Step:
    """``now`` is monotonic seconds, ``wall_ms`` stands in records only."""

    now: float
    wall_ms: int
    answers: list[tuple[Ticket, object]] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    def answer(self, ticket: Ticket | None, response: object) -> None:
        """``response`` for the request that waits as ``ticket``; None: nobody waits."""
        if ticket is not None:
            self.answers.append((ticket, response))


_UNAVAILABLE = (
    kafka.UnknownTopicOrPartition,
    kafka.NotEnoughReplicas,
    kafka.NotEnoughReplicasAfterAppend,
    kafka.RequestTimedOut,
    kafka.ThrottlingQuotaExceeded,
)
_MOVED = (kafka.NotLeaderOrFollower, kafka.KafkaStorageError)


def as_coordinator(error: kafka.ProtocolError) -> kafka.ProtocolError:
    """The error that a client receives when the coordinator's log refused: Kafka's mapping, outcome kept."""
    if isinstance(error, _UNAVAILABLE):
        return kafka.CoordinatorNotAvailable(f"the coordinator's log: {error.message}", outcome=error.outcome)
    if isinstance(error, _MOVED):
        return kafka.NotCoordinator(f"the coordinator's log: {error.message}", outcome=error.outcome)
    return error


def is_unknown(error: kafka.ProtocolError) -> bool:
    """True if the records may still be committed."""
    return error.outcome == kafka.UNKNOWN


class Coordinator(Protocol):
    """It lives as long as this broker leads the partition. It is synchronous; each call fills the step and returns."""

    @property
    def kind(self) -> str:
        """Names its task and its event ``..._coordinator_not_loaded``: ``group``."""
        ...

    @property
    def skipped_event(self) -> str:
        """The kind of the event that reports records of newer versions."""
        ...

    def replay(
        self, key: bytes, value: bytes | None, *, offset: Offset = NO_OFFSET, producer_id: int = NO_PRODUCER
    ) -> bool:
        """Apply one record of the log, first to last; the last of each key counts.

        ``producer_id``: whose transaction the record belongs to, if any.

        Returns False for a version that a later release wrote. Raises ValueError: no coordinator wrote this.
        """
        ...

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> None:
        """A marker of a producer is committed, after the records of its transaction."""
        ...

    def packed(self, record: Any) -> tuple[bytes, bytes | None]:
        """The key and the value of a record of :class:`Write`."""
        ...

    def loaded(self, step: Step) -> None:
        """The log was read to its end, and all of it is committed."""
        ...

    def committed(self, write: Write, step: Step) -> None:
        """The records of ``write`` are committed: they count."""
        ...

    def refused(self, write: Write, error: kafka.ProtocolError, step: Step) -> None:
        """They were not written; or (outcome *unknown*) nobody knows yet, and :meth:`committed` may follow."""
        ...

    def resign(self, step: Step) -> None:
        """This broker leads the partition no longer: refuse everyone who waits."""
        ...

    def next_deadline(self) -> float:
        """Monotonic seconds at which :meth:`tick` has something to do; infinity: never."""
        ...

    def tick(self, step: Step) -> None:
        """Handle everything that is due."""
        ...
