"""A run that lost a record, in numbered sentences: what was done to it, sent, elected and cut.

Rules for this file: it reads plan and journal, and says only what the loss needs; one sentence is one step of the
story, in the order of time. Offsets and epochs are those of the partition that lost the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from minikafka.check.findings import LostWrite
from minikafka.faults import LEADER
from minikafka.sim.cluster import SimCluster
from minikafka.sim.faults import At, Faults
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.world import Event
from minikafka.types import NO_NODE, NodeId, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault as it was carried out, which may be milder than the plan has it."""

    time: float
    """Virtual seconds."""
    fault: Fault
    nodes: tuple[NodeId, ...]
    controller: NodeId = NO_NODE
    """Who was the active controller then: why a broker counts as silent may be understood only from that."""


class NotedFaults(Faults):
    """Carries faults out, and notes whom they hit and when."""

    def __init__(self, plan: Plan, cluster: SimCluster, at: At, tell: Callable[[str], None]) -> None:
        super().__init__(plan, cluster, at, tell)
        self.happened: list[Happened] = []

        self._carried_out: list[Happened] = []
        """What the fault that begins now has become, the last word last."""

    def begin(self, fault: Fault) -> None:
        self._carried_out.clear()
        self._note(fault.kind, fault, self._resolve(fault.target))
        super().begin(fault)
        if self._carried_out[-1].nodes:
            self.happened.append(self._carried_out[-1])

    def _stand_still(self, fault: Fault, nodes: tuple[NodeId, ...], mark: str) -> None:
        self._note("pause", fault, nodes)
        super()._stand_still(fault, nodes, mark)

    def _kill_instead(self, fault: Fault, nodes: tuple[NodeId, ...], mark: str) -> None:
        self._note("crash", fault, nodes)
        super()._kill_instead(fault, nodes, mark)  # which may not happen either

    def _note(self, kind: str, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        is_same = nodes == self._resolve(fault.target)
        target = fault.target if is_same else ",".join(map(str, nodes))
        done = replace(fault, kind=kind, target=target)
        now, controller = self._cluster.sim.loop.time(), self._cluster.controller()
        self._carried_out.append(Happened(time=now, fault=done, nodes=nodes, controller=controller))


def story_of(
    plan: Plan, happened: Sequence[Happened], journal: Sequence[Event], lost: Sequence[LostWrite]
) -> list[str]:
    """The steps of the story of the first record that was lost, and of those lost with it; [] without any."""
    if not lost:
        return []
    first = lost[0]
    name = f"{first.topic}-{first.partition}"
    events = [event for event in journal if event.facts.get("partition") == name]
    steps = [(each.time, _fault(each)) for each in happened]
    steps += _sends(plan, lost, name, events)
    steps += _changes(name, events, first.offset)
    return [f"t={time:.3f} s: {sentence}" for time, sentence in sorted(steps, key=lambda step: step[0])]


# ---- faults ----------------------------------------------------------------------------------------------------------


def _fault(each: Happened) -> str:
    fault = each.fault
    who, lasts = _who(each), f"{fault.lasts_s:g} s"
    several = len(each.nodes) > 1
    are, stand = ("are", "stand") if several or fault.target == "all" else ("is", "stands")
    match fault.kind:
        case "power_cut" | "power_cut_all":
            return f"the power of {who} fails for {lasts}; what was not synced is in danger"
        case "crash":
            return f"{who} {are} killed (kill -9), and started again {lasts} later"
        case "pause":
            return f"{who} {stand} still (SIGSTOP) for {lasts}"
        case "stop":
            return f"{who} {are} asked to stop (SIGTERM), and started again {lasts} later"
        case "isolate":
            return f"{who} {are} cut off from everybody for {lasts}"
        case "cut":
            return f"nothing from {_end(each, 0)} reaches {_end(each, 1)} for {lasts}"
        case "cut_both":
            return f"{_end(each, 0)} and {_end(each, 1)} do not reach each other for {lasts}"
        case "clog":
            return f"whatever {_end(each, 0)} sends to {_end(each, 1)} is held back for {lasts}"
        case _:
            return f"{fault.kind.replace('_', ' ')} at {who} for {lasts}"


def _who(each: Happened) -> str:
    if each.fault.target == "all":
        return "all brokers"
    roles = []
    if each.fault.target.startswith(f"{LEADER}:"):
        roles.append(f"leader of {each.fault.target.removeprefix(f'{LEADER}:')}")
    if each.nodes == (each.controller,):
        roles.append("the active controller")
    return _brokers(each.nodes) + (f", {' and '.join(roles)}," if roles else "")


def _end(each: Happened, place: int) -> str:
    """Who is at one end of a link."""
    node = each.nodes[place]
    return f"broker {node}" + (", the active controller," if node == each.controller else "")


def _brokers(nodes: Sequence[NodeId]) -> str:
    *others, last = map(str, nodes)
    return f"brokers {', '.join(others)} and {last}" if others else f"broker {last}"


# ---- sends -----------------------------------------------------------------------------------------------------------


def _sends(plan: Plan, lost: Sequence[LostWrite], name: str, events: Sequence[Event]) -> Iterator[tuple[float, str]]:
    acks = plan.client_settings.get("acks", "all")
    acks = "all" if acks == -1 else acks
    appends = [event for event in events if event.kind == "batch_appended" and "leader" not in event.facts]
    batches: dict[float, list[LostWrite]] = {}
    where: dict[float, Event] = {}
    for each in lost:
        covering = [event for event in appends if _covers(event, each.offset)]
        if f"{each.topic}-{each.partition}" == name and covering:
            batches.setdefault(covering[0].time, []).append(each)
            where[covering[0].time] = covering[0]
    for time, writes in batches.items():
        event = where[time]
        leader = f"broker {_node(event)}, leading {name} in epoch {event.facts['epoch']},"
        records = f"{_listed([each.value for each in writes])} of {writes[0].process} at offset {writes[0].offset}"
        yield time, f"{leader} appends {records}, and acknowledges with acks={acks}"
    others = [event for event in appends if event.time < min(batches, default=0.0)]
    if others:
        end = max(_number(event, "end") for event in others)
        yield others[0].time, f"{end} earlier record{'s are' if end > 1 else ' is'} sent, replicated and kept"


def _covers(event: Event, offset: Offset) -> bool:
    return _number(event, "base") <= offset < _number(event, "end")


def _listed(values: Sequence[str]) -> str:
    return f"record {values[0]}" if len(values) == 1 else f"records {', '.join(values)}"


# ---- what became of it -----------------------------------------------------------------------------------------------


def _changes(name: str, events: Sequence[Event], offset: Offset) -> Iterator[tuple[float, str]]:
    """The election of a replica that lacks the record, and the cuts that took it from those that had it."""
    appended = next((event.time for event in events if event.kind == "batch_appended" and _covers(event, offset)), None)
    if appended is None:
        return
    later = [event for event in events if event.time > appended]
    elected = next((e for e in later if e.kind == "became_leader" and _number(e, "leo") <= offset), None)
    if elected is not None:
        why = next(
            (
                str(event.facts["why"])
                for event in later
                if event.kind == "leader_elected" and event.facts["leader_epoch"] == elected.facts["epoch"]
            ),
            "",
        )
        reason = f" ({why})" if why else ""
        epoch, end = elected.facts["epoch"], elected.facts["leo"]
        sentence = f"broker {_node(elected)} becomes leader of {name} in epoch {epoch}{reason}; its log ends at {end}"
        yield elected.time, sentence
    cuts = [e for e in later if e.kind == "tail_truncated" and _number(e, "new") <= offset < _number(e, "old")]
    if cuts:
        nodes = sorted({_node(event) for event in cuts})
        old, new = max(_number(event, "old") for event in cuts), min(_number(event, "new") for event in cuts)
        does = "follow it and cut their logs" if len(nodes) > 1 else "follows it and cuts its log"
        yield cuts[0].time, f"{_brokers(nodes)} {does} {old}→{new}"


def _node(event: Event) -> NodeId:
    return int(event.node[1:])


def _number(event: Event, fact: str) -> int:
    value = event.facts[fact]
    return value if isinstance(value, int) else -1
