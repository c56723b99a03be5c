"""A scenario as it was played: its steps, how each replica looked before and after them, and the fate of its records.

A record on which a client relies is *lost* from the step on at which the leader serves without it, and *gone* from the
step on at which no disk holds it. Two replicas have *diverged* from the step on at which they count different records
of an offset as committed.

Rules for this file: it looks and keeps, it changes nothing. A loss or a difference that is mended later is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minikafka.lab.lab_cluster import LabCluster, Promised
from minikafka.lab.node import Held, Node
from minikafka.replication.follower import FollowerReplica
from minikafka.types import NO_EPOCH, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecord:
    """A record that a client relied on, and that the leader does not have."""

    value: str
    offset: Offset
    why: str
    """Why a client relied on it."""
    step: int
    """From this step on the leader serves without it."""
    gone_step: int | None
    """From this step on no disk holds it; None: some replica still does."""

    def __str__(self) -> str:
        gone = f", and no disk since step {self.gone_step}" if self.gone_step is not None else ""
        return f"{self.value} at offset {self.offset}, {self.why}; the leader lacks it since step {self.step}{gone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A record as one replica has it."""

    replica: str
    value: str
    epoch: Epoch

    def __str__(self) -> str:
        return f"{self.replica} has {self.value} of epoch {self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One offset at which two replicas count different records as committed."""

    offset: Offset
    versions: tuple[Version, Version]
    step: int
    """From this step on."""

    def __str__(self) -> str:
        one, other = self.versions
        return f"offset {self.offset}: {one}, {other}, since step {self.step}"


class RecordFates:
    """Looks after each step."""

    def __init__(self, lab: LabCluster) -> None:
        self._lab = lab
        self._missing: dict[Promised, int] = {}
        self._gone: dict[Promised, int] = {}
        self._differing: dict[tuple[Offset, Version, Version], int] = {}

    def look(self, step: int) -> None:
        """Note what has changed with this step."""
        if self._lab.leader() is not None:
            missing = self._lab.lost()
            self._missing = {each: self._missing.get(each, step) for each in missing}
        kept = {held for node in self._lab.nodes.values() for held in _places(node)} if self._missing else set()
        gone = [each for each in self._missing if (each.offset, each.value) not in kept]
        self._gone = {each: self._gone.get(each, step) for each in gone}
        differing = [
            (mine.offset, _version(one, mine), _version(other, yours))
            for mine, one, yours, other in self._lab.diverged()
        ]
        self._differing = {each: self._differing.get(each, step) for each in differing}

    def lost(self) -> list[LostRecord]:
        """As it stands at the end; nothing is called lost while nobody leads."""
        return [
            LostRecord(
                value=each.value,
                offset=each.offset,
                why=each.why,
                step=self._missing[each],
                gone_step=self._gone.get(each),
            )
            for each in self._lab.lost()
        ]

    def diverged(self) -> list[Difference]:
        """As it stands at the end."""
        return [
            Difference(offset=offset, versions=(one, other), step=step)
            for (offset, one, other), step in self._differing.items()
        ]


def _places(node: Node) -> list[tuple[Offset, str]]:
    return [(held.offset, held.value) for held in node.kept()]


def _version(node: Node, held: Held) -> Version:
    return Version(replica=node.name, value=held.value, epoch=held.epoch)


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
