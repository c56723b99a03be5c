"""What each event changes: the events of one partition folded into the state of every replica.

Nothing is guessed: a value moves when an event says so. What the events leave open is None. After a kill the last known
log of a replica stays, as what its disk may hold, until the broker has opened it again.

Rules for this file: pure; states are frozen, a change makes a new one; an event of another partition changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from minikafka.types import NO_EPOCH, NO_NODE, Epoch, NodeId, Offset
from minikafka.ui.journal import Entry

LEADER, FOLLOWER, NO_ROLE = "leader", "follower", ""

UP, LOADING, PAUSED, FENCED, DOWN, OFFLINE, STOPPED = "up", "loading", "paused", "fenced", "down", "offline", "stopped"
"""A process: serves, reads its disk, is held by SIGSTOP, is silent by the controller's word, was killed, has a failed
disk, has left in good order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring offsets of one log that one leader wrote."""

    base: Offset
    end: Offset
    epoch: Epoch
    """NO_EPOCH: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica as the events tell it."""

    node: NodeId
    process: str = UP
    role: str = NO_ROLE
    leader: NodeId = NO_NODE
    """The broker that it follows, or itself."""
    epoch: Epoch | None = None
    start: Offset = 0
    leo: Offset = 0
    hw: Offset | None = None
    runs: tuple[Run, ...] = ()
    isr: tuple[NodeId, ...] = ()
    """The committed ISR as this leader knows it; empty for others."""
    asked: tuple[NodeId, ...] | None = None
    """The ISR that it has proposed and that is not answered."""
    remotes: tuple[tuple[NodeId, Offset], ...] = ()
    """Remote LEOs that this leader knows; -1: none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The partition's state by the newest word of the controller."""

    leader: NodeId = NO_NODE
    epoch: Epoch = NO_EPOCH
    isr: tuple[NodeId, ...] = ()
    replicas: tuple[NodeId, ...] = ()


def cut(runs: Sequence[Run], start: Offset, end: Offset) -> tuple[Run, ...]:
    """What of ``runs`` lies in ``[start, end)``; an offset that no run covers is of an unknown epoch."""
    kept = [
        replace(run, base=max(run.base, start), end=min(run.end, end))
        for run in runs
        if max(run.base, start) < min(run.end, end)
    ]
    if not kept and start < end:
        return (Run(base=start, end=end, epoch=NO_EPOCH),)
    if kept and kept[0].base > start:
        kept.insert(0, Run(base=start, end=kept[0].base, epoch=NO_EPOCH))
    if kept and kept[-1].end < end:
        kept.append(Run(base=kept[-1].end, end=end, epoch=NO_EPOCH))
    return tuple(kept)


def runs_of(epochs: Sequence[Sequence[int]], start: Offset, end: Offset) -> tuple[Run, ...]:
    """A log's runs from its leader-epoch cache, ``[(epoch, first offset), ...]``."""
    stops = [*(base for _, base in epochs[1:]), end][: len(epochs)]
    runs = [Run(base=base, end=stop, epoch=epoch) for (epoch, base), stop in zip(epochs, stops, strict=True)]
    return cut(runs, start, end)


def grown(runs: Sequence[Run], base: Offset, end: Offset, epoch: Epoch) -> tuple[Run, ...]:
    """``runs`` with ``[base, end)`` behind them."""
    if runs and runs[-1].epoch == epoch and runs[-1].end == base:
        return (*runs[:-1], replace(runs[-1], end=end))
    return (*runs, Run(base=base, end=end, epoch=epoch))


class Story:
    """The replicas of one partition, event by event."""

    def __init__(self, partition: str) -> None:
        self.partition = partition
        self.replicas: dict[NodeId, Replica] = {}
        self.decided = Decided()

    def apply(self, entry: Entry) -> tuple[NodeId, ...]:
        """Take one event in; the replicas that it changed, in order."""
        node = entry.broker
        if node is None:
            return ()
        name = str(entry.facts.get("partition", ""))
        if name:
            if name != self.partition:
                return ()
            change = OF_REPLICA.get(entry.kind)
            if entry.kind in BY_CONTROLLER and "leader_epoch" in entry.facts:
                self._decide(entry)
                return ()
            if entry.kind == "replica_deleted":
                return (node,) if self.replicas.pop(node, None) else ()
            if change is None:
                return ()
            before = self.replicas.get(node)
            after = change(before or Replica(node=node), entry.facts)
            self.replicas[node] = after
            if entry.kind in STANDINGS or (entry.kind == SAMPLED and after.role == LEADER):
                self._heard(entry, after)
            return (node,) if after != before else ()
        return self._of_process(entry, node)

    def _of_process(self, entry: Entry, node: NodeId) -> tuple[NodeId, ...]:
        if entry.kind in BY_SESSION:
            node = _int(entry.facts["broker"])
        before = self.replicas.get(node)
        if before is None:
            return ()
        if entry.kind == "data_directory_opened" and before.process not in {LOADING, UP}:
            # It opened every log that it has, and this one was not among them.
            del self.replicas[node]
            return (node,)
        after = _process(before, entry.kind)
        self.replicas[node] = after
        return (node,) if after != before else ()

    def _heard(self, entry: Entry, replica: Replica) -> None:
        """A replica that takes up a role repeats what the controller has recorded."""
        if replica.epoch is not None and replica.epoch > self.decided.epoch:
            self.decided = Decided(
                leader=replica.leader,
                epoch=replica.epoch,
                isr=_nodes(entry.facts.get("isr")),
                replicas=_nodes(entry.facts.get("replicas")) or self.decided.replicas,
            )

    def _decide(self, entry: Entry) -> None:
        facts = entry.facts
        if _int(facts["leader_epoch"]) < self.decided.epoch:
            return
        isr = facts.get("isr", facts.get("new")) if entry.kind != "elr_changed" else self.decided.isr
        leader = facts.get("leader", NO_NODE if entry.kind == "leader_lost" else self.decided.leader)
        self.decided = replace(
            self.decided, leader=_int(leader), epoch=_int(facts["leader_epoch"]), isr=_nodes(isr) or self.decided.isr
        )


# ---- one replica, one event ------------------------------------------------------------------------------------------

Facts = Mapping[str, Any]


def _int(value: Any) -> int:
    return value if isinstance(value, int) else int(str(value))


def _nodes(value: Any) -> tuple[NodeId, ...]:
    return tuple(map(_int, value)) if isinstance(value, (list, tuple)) else ()


def _remotes(value: Any) -> tuple[tuple[NodeId, Offset], ...]:
    return tuple(sorted((int(node), _int(end)) for node, end in value.items())) if isinstance(value, Mapping) else ()


def _standing(before: Replica, facts: Facts) -> Replica:
    """A role was taken up: the event says all."""
    start, leo = _int(facts.get("start", before.start)), _int(facts["leo"])
    runs = runs_of(facts["epochs"], start, leo) if "epochs" in facts else cut(before.runs, start, leo)
    return Replica(
        node=before.node, process=UP, epoch=_int(facts["epoch"]), start=start, leo=leo, hw=_int(facts["hw"]), runs=runs
    )


def _became_leader(before: Replica, facts: Facts) -> Replica:
    taken = _standing(before, facts)
    return replace(
        taken,
        role=LEADER,
        leader=before.node,
        isr=_nodes(facts["isr"]),
        remotes=_remotes(facts.get("remotes", {})),
    )


def _became_follower(before: Replica, facts: Facts) -> Replica:
    return replace(_standing(before, facts), role=FOLLOWER, leader=_int(facts["leader"]))


def _log_opened(before: Replica, facts: Facts) -> Replica:
    start, end = _int(facts["start"]), _int(facts["end"])
    return Replica(node=before.node, process=LOADING, start=start, leo=end, runs=cut(before.runs, start, end))


def _appended(before: Replica, facts: Facts) -> Replica:
    base, end = _int(facts["base"]), _int(facts["end"])
    return replace(before, leo=end, runs=grown(before.runs, base, end, _int(facts["epoch"])))


def _hw_advanced(before: Replica, facts: Facts) -> Replica:
    return replace(before, hw=_int(facts["new"]), remotes=_remotes(facts["remotes"]))


def _follower_hw(before: Replica, facts: Facts) -> Replica:
    return replace(before, hw=_int(facts["new"]))


def _fetched(before: Replica, facts: Facts) -> Replica:
    remotes = {**dict(before.remotes), _int(facts["replica"]): _int(facts["offset"])}
    return replace(before, remotes=tuple(sorted(remotes.items())))


def _truncated(before: Replica, facts: Facts) -> Replica:
    new = _int(facts["new"])
    return replace(before, leo=new, start=min(before.start, new), runs=cut(before.runs, min(before.start, new), new))


def _restarted(before: Replica, facts: Facts) -> Replica:
    new = _int(facts["new"])
    return replace(before, start=new, leo=new, runs=())


def _start_raised(before: Replica, facts: Facts) -> Replica:
    start = _int(facts["start"])
    return replace(before, start=start, runs=cut(before.runs, start, before.leo))


def _sampled(before: Replica, facts: Facts) -> Replica:
    """A sample says all of the present; what was appended or cut since the one before, is what the ends leave."""
    start, leo, epoch = _int(facts["start"]), _int(facts["leo"]), _int(facts["epoch"])
    known = cut(before.runs, start, min(before.leo, leo)) if before.leo > start else ()
    role = str(facts["role"])
    return replace(
        before,
        process=role if role in (OFFLINE, LOADING) else PAUSED if before.process == PAUSED else UP,
        role=role if role in (LEADER, FOLLOWER) else NO_ROLE,
        leader=_int(facts["leader"]),
        epoch=epoch,
        start=start,
        leo=leo,
        hw=_int(facts["hw"]),
        runs=grown(known, before.leo, leo, epoch) if known and leo > before.leo else cut(known, start, leo),
        isr=_nodes(facts.get("isr")),
        asked=None if facts.get("asked") is None else _nodes(facts["asked"]),
        remotes=_remotes(facts.get("remotes")),
    )


def _isr_proposed(before: Replica, facts: Facts) -> Replica:
    return replace(before, asked=_nodes(facts["new"]))


def _isr_settled(before: Replica, facts: Facts) -> Replica:
    return replace(before, asked=None, isr=_nodes(facts["new"] if "new" in facts else facts["isr"]))


def _resting(before: Replica, process: str) -> Replica:
    return replace(
        before, process=process, role=NO_ROLE, leader=NO_NODE, isr=(), asked=None, remotes=(), epoch=before.epoch
    )


def _process(before: Replica, kind: str) -> Replica:
    match kind:
        case "node_killed" | "node_power_cut" if before.process == STOPPED:
            return before
        case "node_killed" | "node_power_cut":
            return _resting(before, DOWN)
        case "broker_fenced" if before.process == UP:
            return replace(before, process=FENCED)
        case "broker_unfenced" if before.process == FENCED:
            return replace(before, process=UP)
        case "broker_started" if before.process == LOADING:
            return replace(before, process=UP)
        case "data_directory_closed":
            return _resting(before, STOPPED)
        case "node_paused" if before.process == UP:
            return replace(before, process=PAUSED)
        case "node_resumed" if before.process == PAUSED:
            return replace(before, process=UP)
        case _:
            return before


SAMPLED: Final = "replica_sampled"
STANDINGS: Final = frozenset({"became_leader", "became_follower", "became_leaderless"})

BY_SESSION: Final = frozenset({"broker_fenced", "broker_unfenced"})
"""The controller tells these of another broker: ``broker`` names it."""

BY_CONTROLLER: Final = frozenset(
    {"leader_elected", "leader_lost", "isr_shrunk", "isr_expanded", "isr_changed", "elr_changed"}
)
"""The controller tells these with ``leader_epoch``; a leader tells its own ISR changes with ``epoch``."""

OF_REPLICA: Final[Mapping[str, Callable[[Replica, Facts], Replica]]] = {
    "became_leader": _became_leader,
    "became_follower": _became_follower,
    "became_leaderless": _standing,
    SAMPLED: _sampled,
    "log_opened": _log_opened,
    "batch_appended": _appended,
    "hw_advanced": _hw_advanced,
    "follower_hw_changed": _follower_hw,
    "follower_fetched": _fetched,
    "tail_truncated": _truncated,
    "log_truncated": _truncated,
    "log_restarted": _restarted,
    "log_start_raised": _start_raised,
    "segments_deleted": _start_raised,
    "isr_proposed": _isr_proposed,
    "isr_shrunk": _isr_settled,
    "isr_expanded": _isr_settled,
    "isr_changed": _isr_settled,
    "isr_proposal_ended": _isr_settled,
    "role_given_up": lambda before, _: _resting(before, before.process),
    "replica_failed": lambda before, _: _resting(before, OFFLINE),
}
"""Kind of event -> what it makes of the replica that reported it."""
