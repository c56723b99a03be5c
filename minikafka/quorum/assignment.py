"""Which brokers hold a partition, also while a reassignment is under way (KIP-455).

::

    [1,2,3]                          the partition's replicas
    --to [4,2,3]-->                  replicas [4,2,3,1], adding [4], removing [1]
    --4 catches up, joins the ISR--> complete: replicas [4,2,3]
    --cancelled before that-->       back to what is not adding: [1,2,3] (in the order that is left)

A second reassignment on the way starts from what is not adding: replicas that were only on their way in are dropped.
Rules for this file: pure values; who may be dropped when, and who leads then, stands in reassignments.py and
elections.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minikafka.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The replicas of a partition in order of preference, and those that come and go."""

    replicas: tuple[NodeId, ...]
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()

    @property
    def under_way(self) -> bool:
        """Is a reassignment not yet complete?"""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[NodeId, ...]:
        """Where the reassignment leads to."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def original(self) -> tuple[NodeId, ...]:
        """Where it came from, as far as that is still held."""
        return tuple(node for node in self.replicas if node not in self.adding)

    def reassigned(self, target: tuple[NodeId, ...]) -> Assignment:
        """On the way to ``target``: its replicas first, in its order, behind them those that are to go."""
        original = self.original
        replicas = (*target, *(node for node in original if node not in target))
        return Assignment(
            replicas=replicas,
            adding=tuple(node for node in target if node not in original),
            removing=tuple(node for node in original if node not in target),
        )

    def cancelled(self) -> Assignment:
        """As before the reassignment."""
        return Assignment(replicas=self.original)

    def settled(self, isr: Iterable[NodeId]) -> Assignment:
        """Complete, if every replica of the target is in ``isr``; else unchanged."""
        if self.under_way and frozenset(self.target) <= frozenset(isr):
            return Assignment(replicas=self.target)
        return self
