"""Which brokers hold the replicas of a new topic (S18)."""

from __future__ import annotations

from collections.abc import Iterable

from minikafka.errors import InvalidReplicationFactor
from minikafka.types import NodeId


def place(
    brokers: Iterable[NodeId], *, partitions: int, replication_factor: int, start: int = 0
) -> tuple[tuple[NodeId, ...], ...]:
    """The replicas of each partition, the preferred leader first.

    S18: with n brokers, sorted, partition i's j-th replica is on broker (start + i + j) mod n. ``brokers`` are those
    that are usable now. Raises InvalidReplicationFactor, which says how many there are.
    """
    usable = sorted(brokers)
    if not 1 <= replication_factor <= len(usable):
        named = f" ({', '.join(map(str, usable))})" if usable else ""
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: {len(usable)} usable broker{'s' * (len(usable) != 1)}{named}",
            usable_brokers=usable,
        )
    return tuple(
        tuple(usable[(start + number + turn) % len(usable)] for turn in range(replication_factor))
        for number in range(partitions)
    )
