"""One step of a coordinator: what a rule wants done, handed to the driver (DESIGN D1, D5).

A step collects answers for parked requests and writes to the coordinator's partition. A write is appended at once, in
order; what it changes comes into force when it is committed, and only then may a client read it or receive it.

Rules for this file: data. A ticket may be answered twice (first "unknown", later the truth): the driver gives the
first answer and drops the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from minikafka.errors import (
    UNKNOWN,
    CoordinatorNotAvailable,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    ProtocolError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from minikafka.log.verification import VerificationGuard
from minikafka.types import NO_OFFSET, Offset

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
    refused: Callable[[ProtocolError, Step], None]
    transaction: InTransaction | None = None
    base_offset: Offset = NO_OFFSET
    """Of the first record, set when the batch is appended."""


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


_UNAVAILABLE = (UnknownTopicOrPartition, NotEnoughReplicas, NotEnoughReplicasAfterAppend, RequestTimedOut)
_MOVED = (NotLeaderOrFollower, KafkaStorageError)


def as_coordinator(error: ProtocolError) -> ProtocolError:
    """The error that a client receives when the coordinator's log refused: Kafka's mapping, outcome kept."""
    if isinstance(error, _UNAVAILABLE):
        return CoordinatorNotAvailable(f"the coordinator's log: {error.message}", outcome=error.outcome)
    if isinstance(error, _MOVED):
        return NotCoordinator(f"the coordinator's log: {error.message}", outcome=error.outcome)
    return error


def is_unknown(error: ProtocolError) -> bool:
    """May the records still be committed?"""
    return error.outcome == UNKNOWN
