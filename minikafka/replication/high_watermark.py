"""The high watermark rule, in one place: how far is the log committed? (S6, S9, S10; KIP-966's strict rule)

The rule is a pure function over what the leader knows. ``LeaderReplica`` calls it at the four moments of S9: after a
produce (and, under sync-before-acknowledge, after the sync), after a follower's fetch, on becoming leader, and when the
ISR has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minikafka.types import NodeId, Offset


class ReplicaState(NamedTuple):
    """One remote replica as the watermark rule sees it."""

    node: NodeId
    acknowledged_end: Offset
    """Everything below it is at the replica (and synced there, under that policy); -1: not known yet."""
    counts: bool
    """In the maximal ISR, or caught up and about to be let into it (S10)."""


def effective_min_isr(min_insync_replicas: int, replicas: Sequence[NodeId], adding: Sequence[NodeId] = ()) -> int:
    """How many in-sync replicas are needed: min.insync.replicas, but never more than the partition has replicas.

    Replicas that a reassignment is still adding do not count: raising the replication factor from 1 to 3 must not stop
    the partition while the new ones catch up. The controller and the leader both use this rule: where the leader stops
    committing, the controller begins to keep eligible leader replicas (KIP-966).
    """
    return min(min_insync_replicas, len(replicas) - len(adding))


def high_watermark_after(
    current: Offset, *, own_end: Offset, standings: Iterable[ReplicaState], isr_size: int, min_isr: int
) -> Offset:
    """The high watermark, never below ``current``.

    ``own_end`` is the leader's acknowledged end. With fewer committed ISR members than ``min_isr`` nothing advances at
    all, not even records sent with acks=1: else the last replica standing would commit alone, and an unclean restart
    of it would lose what consumers have seen (KAFKA-15583; played by scenarios/elr/last_replica_standing.txt).
    """
    if isr_size < min_isr:
        return current
    candidate = min([own_end, *(each.acknowledged_end for each in standings if each.counts)])
    return max(current, candidate)
