"""Which partitions still need the marker of an ended transaction, and when to send it.

A marker is sent until its partition's leader has answered, whichever broker leads by then. Each marker is under way
once at a time, so an answer can only be for the transaction that owes it.

Rules for this file: synchronous, no clock. A repeated marker is harmless (the leaders see to that), a missing one is
not: only an answer of the leader, or a partition that does not exist any more, ends a marker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from minikafka import errors as kafka
from minikafka.transactions.records import State, TransactionValue
from minikafka.types import NO_NODE, NodeId, TopicPartition

RETRY_PAUSE_S = 0.1

FENCED_PAUSE_S = 10.0
"""After an error of ``_FENCED``. Kafka gives the whole transaction up then; if no newer coordinator ends it, its
transactional id stays busy, and readers of committed records stay before it in every partition that has no marker.
"""

_DONE = frozenset({0, kafka.UnsupportedForMessageFormat.code, kafka.UnsupportedVersion.code})
_FENCED = frozenset({kafka.InvalidProducerEpoch.code, kafka.TransactionCoordinatorFenced.code})
"""A newer producer or a newer coordinator has written to the partition. Most likely this coordinator has been replaced,
and its successor ends the transaction; each partition rejects the markers of the former one by itself.
"""


class MarkerId(NamedTuple):
    """One marker in one partition."""

    transactional_id: str
    partition: TopicPartition


@dataclass(slots=True)
class _Ending:
    value: TransactionValue
    """In state PrepareCommit or PrepareAbort."""
    number: int
    left: dict[TopicPartition, float]
    """Partitions without the marker, and when to send it next; infinity while it is under way."""


class OwedMarkers:
    """The markers that the coordinator of one partition of ``__transaction_state`` has to write."""

    def __init__(self) -> None:
        self._endings: dict[str, _Ending] = {}
        self._ended = 0
        """Transactions that have been added."""
        self._next_at = math.inf

    def __len__(self) -> int:
        """Markers that are not answered yet."""
        return sum(len(each.left) for each in self._endings.values())

    @property
    def next_at(self) -> float:
        """Monotonic seconds at which the next marker may be sent; infinity: none is owed, or all are under way."""
        return self._next_at

    def add(self, transactional_id: str, value: TransactionValue, now: float) -> None:
        """The outcome of a transaction is committed: all of its partitions need the marker."""
        self._ended += 1
        self._endings[transactional_id] = _Ending(value, self._ended, dict.fromkeys(sorted(value.partitions), now))
        self._next_at = min(self._next_at, now)

    def value_of(self, marker: MarkerId) -> TransactionValue:
        """The decision that a marker writes."""
        return self._endings[marker.transactional_id].value

    def number_of(self, marker: MarkerId) -> int:
        """Of its transaction among those that this coordinator has ended. A leader recognizes late copies by it: before
        transaction version 2 the marker of the next transaction has the same epoch.
        """
        return self._endings[marker.transactional_id].number

    def take(
        self, now: float, leader_of: Callable[[TopicPartition], NodeId | None]
    ) -> tuple[dict[NodeId, list[MarkerId]], list[str]]:
        """Everything that may be sent now, by leader; it counts as under way from here on.

        Args:
            now: Monotonic seconds.
            leader_of: The partition's leader, ``NO_NODE`` while it has none, None if the partition does not exist.

        Returns:
            Markers by the broker to send them to, and the transactional ids whose last partition no longer exists.
        """
        by_leader: dict[NodeId, list[MarkerId]] = {}
        done = []
        for name, ending in list(self._endings.items()):
            for partition, due in list(ending.left.items()):
                if due > now:
                    continue
                leader = leader_of(partition)
                if leader is None:
                    del ending.left[partition]
                elif leader == NO_NODE:
                    ending.left[partition] = now + RETRY_PAUSE_S
                else:
                    ending.left[partition] = math.inf
                    by_leader.setdefault(leader, []).append(MarkerId(name, partition))
            if not ending.left:
                del self._endings[name]
                done.append(name)
        self._plan()
        return by_leader, done

    def answered(self, marker: MarkerId, error_code: int, now: float) -> bool:
        """The leader answered; True: it was the last marker of its transaction."""
        ending = self._endings[marker.transactional_id]
        if error_code not in _DONE:
            return self._retry(ending, marker, now + (FENCED_PAUSE_S if error_code in _FENCED else RETRY_PAUSE_S))
        del ending.left[marker.partition]
        if ending.left:
            return False
        del self._endings[marker.transactional_id]
        return True

    def unanswered(self, marker: MarkerId, now: float) -> None:
        """It is not known whether the leader has written it: it is sent again."""
        self._retry(self._endings[marker.transactional_id], marker, now + RETRY_PAUSE_S)

    def _retry(self, ending: _Ending, marker: MarkerId, due: float) -> bool:
        ending.left[marker.partition] = due
        self._plan()
        return False

    def _plan(self) -> None:
        self._next_at = min((due for each in self._endings.values() for due in each.left.values()), default=math.inf)


def is_commit(value: TransactionValue) -> bool:
    """The outcome that the markers of a prepared transaction carry."""
    return value.state is State.PREPARE_COMMIT
