"""The high watermark rule, in one place: how far is the log committed? (S6, S9, S10; KIP-966's strict rule)

The rule is a pure function over what the leader knows. ``LeaderReplica`` calls it at the four moments of S9: after a
produce (and, under sync-before-acknowledge, after the sync), after a follower's fetch, on becoming leader, and when the
ISR has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minikafka.types import NodeId, Offset


@dataclass(frozen=True, slots=True)
class Standing:
    """One remote replica as the watermark rule sees it."""

    node: NodeId
    acknowledged_end: Offset
    """Everything below it is at the replica (and synced there, under that policy); -1: not known yet."""
    counts: bool
    """In the maximal ISR, or caught up and about to be let into it (S10)."""


def high_watermark_after(
    current: Offset, *, own_end: Offset, standings: Iterable[Standing], isr_size: int, min_isr: int
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
