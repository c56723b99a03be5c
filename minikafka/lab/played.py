"""A scenario as it was played: its steps, and how each replica looked before and after them.

Rule for this file: it looks and keeps, it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minikafka.lab.lab_cluster import LabCluster
from minikafka.lab.node import Node
from minikafka.lab.record_fate import Difference, LostRecord
from minikafka.replication.follower import FollowerReplica
from minikafka.types import NO_EPOCH, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One replica as the articles' tables show it."""

    role: str
    end_offset: Offset | None = None
    high_watermark: Offset | None = None
    remotes: tuple[tuple[str, Offset], ...] = ()
    isr: str = ""
    """Leader only: as committed."""
    asked: str = ""
    """Leader only: the ISR that it has asked the controller for."""
    epoch: Epoch | None = None


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event of a rule, and of whose replica."""

    replica: str
    kind: str
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: what happened, why, and what it changed."""

    number: int
    line: int
    """Of the command in the scenario; steps that follow from it by themselves have the same."""
    what: str
    lines: tuple[str, ...]
    events: tuple[NodeEvent, ...]
    before: Mapping[str, View]
    after: Mapping[str, View]

    def changed(self) -> list[str]:
        """Names of the replicas that look different now."""
        return [name for name, view in self.after.items() if self.before.get(name) != view]


@dataclass(slots=True)
class Run:
    """A scenario as it was played."""

    options: Mapping[str, str]
    steps: list[Step] = field(default_factory=list)
    leader: str = ""
    lost: list[LostRecord] = field(default_factory=list)
    diverged: list[Difference] = field(default_factory=list)


def views_of(lab: LabCluster) -> dict[str, View]:
    """Every replica's present state, by its name."""
    return {node.name: _view(lab, node) for node in lab.nodes.values()}


def _view(lab: LabCluster, node: Node) -> View:
    if node.partition is None:
        return View(role="down")
    seat = node.partition
    leader = node.leads()
    role = "leader" if leader else "follower" if isinstance(seat.role, FollowerReplica) else "idle"
    return View(
        role=role if node.connected else f"{role}, cut off",
        end_offset=seat.log.end_offset,
        high_watermark=seat.high_watermark,
        remotes=tuple((lab.name(each), remote.end_offset) for each, remote in leader.remotes.items()) if leader else (),
        isr=lab.names(leader.isr) if leader else "",
        asked=lab.names(leader.proposal.isr) if leader and leader.proposal else "",
        epoch=seat.epoch if seat.epoch != NO_EPOCH else None,
    )
