"""Find me a story: look for a schedule that loses an acknowledged record under given settings, and cut it down.

A seed makes a plan with few records and few faults, the faults aimed at the moments around a send; the whole cluster
runs it, and the history checker says whether an acknowledged record is nowhere to be read. The invariants of
``invariants.py`` do not end these runs: settings under which records are lost break them as well, and earlier.

Rules for this file: only settings of time are set besides those asked for, so that a failover takes a second and not a
minute; the faults keep within the budget of ``plan.py``; the same seed and settings give the same result.

The shrinker makes a smaller plan that fails by the same name: faults go first, then operations, then times get shorter
(ddmin). Removing one event does not move the others, because every purpose and link draws from a stream of its own; a
candidate counts only if its first violation has the same name.

The story of a run that lost a record is in numbered sentences: what was done to it, sent, elected and cut. It is made
of plan and journal, and has only what the loss needs; one sentence is one step, in the order of time. Offsets and
epochs are those of the partition that lost the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any, Final, TypeVar

from minikafka.check import Checker
from minikafka.check.findings import LostWrite
from minikafka.check.history import Operation as HistoryOperation
from minikafka.client.settings import ProducerConfig
from minikafka.config import BrokerConfig, parse_broker, table
from minikafka.errors import InvalidConfig, did_you_mean
from minikafka.faults import LEADER
from minikafka.sim.cluster import SimCluster
from minikafka.sim.faults import At, Faults
from minikafka.sim.plan import FSYNC, PAGE_CACHE, Fault, Operation, Plan, PlannedTopic
from minikafka.sim.replica_view import number_of
from minikafka.sim.run import Run
from minikafka.sim.world import Event
from minikafka.types import NO_NODE, NodeId, Offset

T = TypeVar("T")

Fails = Callable[[Plan], str | None]
"""Run a plan: the name of its first violation, or None."""


class Shrinker:
    """Cuts one plan down, in at most ``runs_max`` runs."""

    def __init__(self, fails: Fails, name: str, *, runs_max: int = 300) -> None:
        self._fails = fails
        self._name = name
        self.runs_left = runs_max

    def shrink(self, plan: Plan) -> Plan:
        """The smallest plan found."""
        before = None
        while before != plan and self.runs_left > 0:
            before = plan
            plan = self._fewer(plan, "faults")
            plan = self._fewer(plan, "operations")
            plan = self._shorter(plan)
            plan = self._simpler(plan)
        return plan

    def _still(self, plan: Plan) -> bool:
        if self.runs_left <= 0:
            return False
        self.runs_left -= 1
        return self._fails(plan) == self._name

    def _fewer(self, plan: Plan, member: str) -> Plan:
        """Drop ever smaller pieces of a list while the failure stays."""
        items: Sequence[object] = getattr(plan, member)
        size = max(1, len(items) // 2)
        while items:
            start = 0
            while start < len(items):
                fewer = tuple(items[:start]) + tuple(items[start + size :])
                candidate = plan.with_(**{member: fewer})
                if self._still(candidate):
                    plan, items = candidate, fewer
                else:
                    start += size
            if size == 1:
                break
            size = max(1, size // 2)
        return plan

    def _shorter(self, plan: Plan) -> Plan:
        """End the safety phase after the last thing that happens; shorten what lasts."""
        ends = [fault.at_s + fault.lasts_s for fault in plan.faults] + [each.at_s for each in plan.operations]
        for end_s in (max(ends, default=0.0) + 0.1, max((fault.at_s for fault in plan.faults), default=0.0) + 0.1):
            candidate = plan.with_(duration_s=round(min(plan.duration_s, end_s), 3))
            if candidate != plan and self._still(candidate):
                plan = candidate
        return plan

    def _simpler(self, plan: Plan) -> Plan:
        """Plain links, plain order, no reader, one producer's settings: whatever the failure does not need."""
        delay = {name: value for name, value in plan.link.items() if name == "delay_mean_s"}
        all_changes: list[dict[str, object]] = [
            {"link": delay},
            {"fifo": True},
            {"readers": 0},
            {"client_settings": {}},
        ]
        for changes in all_changes:
            candidate = plan.with_(**changes)
            if candidate != plan and self._still(candidate):
                plan = candidate
        return plan


class PlanPasses(ValueError):
    """There is no failure that a plan could be cut down to."""


def shrink(plan: Plan, fails: Fails, *, runs_max: int = 300) -> tuple[Plan, str]:
    """The smallest plan found that fails by the same name, and that name. PlanPasses when ``plan`` does."""
    name = fails(plan)
    if name is None:
        raise PlanPasses(f"the plan of seed {plan.seed} passes")
    return Shrinker(fails, name, runs_max=runs_max).shrink(plan), name


TOPIC: Final = "orders"
BROKERS: Final = 3
OPERATIONS: Final = 12
FAULTS: Final = 3
DURATION_S: Final = 5.0
SHRINK_RUNS_MAX: Final = 120

STEPS_WANTED: Final = 6
"""Faults and sends of a story that is easily read."""

SEEDS_FOR_A_SHORTER: Final = 10
"""So many more are tried when a story cannot be cut down to that: some losses need a long run-up, most do not."""

# A link slow enough that a leader can die between its answer to the producer and its followers' next fetch.
DELAY_MEAN_S: Final = 0.004

QUICK: Final[Mapping[str, str]] = {
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "250",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "250",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "1000",
    "controller.quorum.election.timeout.ms": "400",
    "controller.quorum.fetch.timeout.ms": "800",
    "controller.quorum.request.timeout.ms": "800",
    "controller.quorum.election.backoff.max.ms": "400",
    "leader.imbalance.check.interval.seconds": "3",
    "mk.controlled.shutdown.max.wait.ms": "2000",
}
"""Kafka's defaults are for machines that fail once a month; these say the same in seconds."""

QUICK_CLIENT: Final[Mapping[str, int | str]] = {
    "request_timeout_ms": 1000,
    "delivery_timeout_ms": 4000,
    "linger_ms": 0,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 500,
}

KINDS: Final[Mapping[str, int]] = {
    "crash": 6,
    "isolate": 2,
    "pause": 2,
    "power_cut": 2,
    "power_cut_all": 2,
    "stop": 1,
    "cut": 2,
    "clog": 1,
}
"""Kinds of fault and how often each is drawn."""

PRODUCER_NAMES: Final[Mapping[str, str]] = {
    "batch.size": "max_batch_size",
    **{
        each.name.replace("_", "."): each.name
        for each in fields(ProducerConfig)
        if each.name not in {"bootstrap_servers", "client_id", "partitioner", "key_serializer", "value_serializer"}
    },
}
"""Kafka's names of the producer's settings, and the parameters that they are here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The settings under which a story is wanted."""

    broker: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def policy(self) -> str:
        """Which faults the durability policy must survive (DESIGN D6)."""
        return FSYNC if self.broker.get("log.flush.interval.messages") == "1" else PAGE_CACHE

    @property
    def acks(self) -> str:
        """As people say it."""
        acks = self.producer.get("acks", "all")
        return "all" if acks == -1 else str(acks)


def asked_for(settings: Mapping[str, str]) -> Asked:
    """Settings by Kafka's names, the producer's and the brokers' (a topic's by the broker's name of its default).

    Raises InvalidConfig for an unknown name, with the nearest one, and for a value that cannot be; also for acks=0:
    nothing is acknowledged then, so nothing acknowledged can be lost.
    """
    known = table(BrokerConfig)
    broker = {name: text for name, text in settings.items() if name in known}
    producer: dict[str, int | str] = {}
    for name, text in settings.items():
        if name in PRODUCER_NAMES:
            producer[PRODUCER_NAMES[name]] = _value(text)
        elif name not in broker:
            hint = did_you_mean(name, [*known, *PRODUCER_NAMES])
            raise InvalidConfig(f"unknown setting {name}{hint}", setting=name)
    parse_broker(broker)
    if ProducerConfig(**{**QUICK_CLIENT, **producer}).required_acks == 0:  # type: ignore[arg-type]
        raise InvalidConfig("acks=0: nothing is acknowledged, so no acknowledged record can be lost", setting="acks")
    return Asked(broker=broker, producer=producer)


def _value(text: str) -> Any:
    if text in {"true", "false"}:
        return text == "true"
    return int(text) if text.lstrip("-").isdecimal() else text


# ---- plans -----------------------------------------------------------------------------------------------------------


def plan_for(seed: int, asked: Asked) -> Plan:
    """The plan of a seed under these settings: a dozen sends, three faults around them."""
    random = Random(f"{seed}/search")
    replication_factor = int(asked.broker.get("default.replication.factor", BROKERS))
    operations = _operations(random)
    plan = Plan(
        seed=seed,
        brokers=BROKERS,
        voters=BROKERS,
        policy=asked.policy,
        settings=QUICK,
        client_settings=QUICK_CLIENT,
        topics=(PlannedTopic(name=TOPIC, partitions=1, replication_factor=min(replication_factor, BROKERS)),),
        link={"delay_mean_s": DELAY_MEAN_S},
        readers=0,
        duration_s=DURATION_S,
        faults=_faults(random, operations),
        operations=operations,
        fifo=True,
    )
    return with_settings(plan, asked)


def with_settings(plan: Plan, asked: Asked) -> Plan:
    """The plan with the settings asked for; whatever cut the plan down may not touch them."""
    return plan.with_(
        settings={**plan.settings, **asked.broker}, client_settings={**plan.client_settings, **asked.producer}
    )


def _operations(random: Random) -> tuple[Operation, ...]:
    """Sends one by one and in bursts, from one producer."""
    times: list[float] = []
    while len(times) < OPERATIONS:
        at_s = random.uniform(0.2, DURATION_S)
        times += [at_s + number * 0.002 for number in range(random.choice((1, 1, 2, 4)))]
    return tuple(
        Operation(at_s=round(at_s, 4), client="p1", topic=TOPIC, partition=0) for at_s in sorted(times[:OPERATIONS])
    )


def _faults(random: Random, operations: Sequence[Operation]) -> tuple[Fault, ...]:
    """Most of them within milliseconds of a send, and most at the leader of that moment."""
    faults = []
    for _ in range(FAULTS):
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        aimed = random.choice(operations).at_s + random.uniform(-0.005, 0.03)
        at_s = aimed if random.random() < 0.8 else random.uniform(0.1, DURATION_S)
        faults.append(
            Fault(at_s=round(at_s, 4), kind=kind, target=_target(random, kind), lasts_s=random.choice((0.5, 1.5, 3.0)))
        )
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _target(random: Random, kind: str) -> str:
    if kind == "power_cut_all":
        return "all"
    if kind in {"cut", "clog"}:
        one, other = random.sample(range(1, BROKERS + 1), 2)
        return f"n{one}>n{other}"
    return random.choice((f"{LEADER}:{TOPIC}-0",) * 3 + ("n1", "n2", "n3", "controller"))


# ---- runs ------------------------------------------------------------------------------------------------------------


class StoryRun(Run):
    """A run that only its history judges."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.watch.close()
        self.noted = self.faults = NotedFaults(plan, self.cluster, self.schedule.at, self.report.faults.append)
        self._evidence = Checker()

    def _record(self, operation: HistoryOperation) -> None:
        super()._record(operation)
        self._evidence.feed(operation)

    def lost(self) -> tuple[LostWrite, ...]:
        """Acknowledged records that are nowhere to be read, by the history. To be asked once, when the run is over."""
        return tuple(each for each in self._evidence.verdict().findings if isinstance(each, LostWrite))


def loses(plan: Plan) -> bool:
    """Return True if the plan loses an acknowledged record."""
    return any(each.name == LostWrite.kind for each in StoryRun(plan).run().violations)


# ---- the search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A story."""

    seed: int
    plan: Plan
    """As short as it became."""
    sentences: tuple[str, ...]
    lost: tuple[LostWrite, ...]
    """The records that are gone."""
    runs: int
    """How many runs cutting it down took."""

    @property
    def steps(self) -> int:
        """Faults and sends."""
        return len(self.plan.faults) + len(self.plan.operations)


@dataclass(slots=True, kw_only=True)
class Search:
    """What was tried, and what came of it."""

    asked: Asked
    tried: int = 0
    found: Found | None = None
    losses: int = 0
    """Seeds that lost a record."""
    losing: int | None = None
    """The last seed that lost a record, which may still be cut down."""
    others: Counter[str] = field(default_factory=Counter)
    """What else was found in runs that lost nothing, and in how many: duplicates, where idempotence is off."""


Progress = Callable[[str], None]


def search(result: Search, *, seeds: int, start: int = 0, progress: Progress = lambda _: None) -> Search:
    """Try seeds one by one until one loses an acknowledged record; cut it down, and a few more if it stays long.

    The shortest story is kept. ``result`` is filled in as it goes: an interrupted search still shows what was
    tried.
    """
    end = start + seeds
    for seed in range(start, start + seeds):
        if seed >= end:
            break
        progress(f"seed {seed}: {result.tried} of {seeds} tried")
        plan = plan_for(seed, result.asked)
        names = {each.name for each in StoryRun(plan).run().violations}
        result.tried += 1
        if LostWrite.kind in names:
            result.losing = seed
            result.losses += 1
            found = cut_down(plan, result.asked, progress)
            if result.found is None:
                end = min(end, seed + 1 + SEEDS_FOR_A_SHORTER)
            if result.found is None or found.steps < result.found.steps:
                result.found = found
            if result.found.steps <= STEPS_WANTED:
                break
        else:
            result.others.update(sorted(names))
    return result


def cut_down(plan: Plan, asked: Asked, progress: Progress = lambda _: None) -> Found:
    """The smallest plan found that still loses a record, as a story."""
    runs = 0

    def fails(candidate: Plan) -> str | None:
        nonlocal runs
        runs += 1
        progress(
            f"seed {plan.seed} loses a record; cutting it down: run {runs},"
            f" {len(candidate.faults)} faults, {len(candidate.operations)} sends"
        )
        return LostWrite.kind if loses(with_settings(candidate, asked)) else None

    small = Shrinker(fails, LostWrite.kind, runs_max=SHRINK_RUNS_MAX).shrink(plan)
    small = with_settings(small, asked)
    plainest = with_settings(small.with_(settings={}, client_settings={}), asked)
    if fails(plainest) is not None:
        small = plainest
    ran = StoryRun(small)
    ran.run()
    lost = ran.lost()
    return Found(
        seed=plan.seed,
        plan=small,
        sentences=tuple(story_of(small, ran.noted.happened, ran.sim.journal, lost)),
        lost=lost,
        runs=runs,
    )


# ---- the story -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault as it was carried out, which may be milder than the plan has it."""

    time: float
    """Virtual seconds."""
    fault: Fault
    nodes: tuple[NodeId, ...]
    controller: NodeId = NO_NODE
    """The active controller then: why a broker counts as silent may be understood only from that."""


class NotedFaults(Faults):
    """Injects faults, and records the time and the targets of each."""

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
    """The node at one end of a link."""
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
        end = max(number_of(event, "end") for event in others)
        yield others[0].time, f"{end} earlier record{'s are' if end > 1 else ' is'} sent, replicated and kept"


def _covers(event: Event, offset: Offset) -> bool:
    return number_of(event, "base") <= offset < number_of(event, "end")


def _listed(values: Sequence[str]) -> str:
    return f"record {values[0]}" if len(values) == 1 else f"records {', '.join(values)}"


# ---- what became of it -----------------------------------------------------------------------------------------------


def _changes(name: str, events: Sequence[Event], offset: Offset) -> Iterator[tuple[float, str]]:
    """The election of a replica that lacks the record, and the cuts that took it from those that had it."""
    appended = next((event.time for event in events if event.kind == "batch_appended" and _covers(event, offset)), None)
    if appended is None:
        return
    later = [event for event in events if event.time > appended]
    elected = next((e for e in later if e.kind == "became_leader" and number_of(e, "leo") <= offset), None)
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
    cuts = [e for e in later if e.kind == "tail_truncated" and number_of(e, "new") <= offset < number_of(e, "old")]
    if cuts:
        nodes = sorted({_node(event) for event in cuts})
        old, new = max(number_of(event, "old") for event in cuts), min(number_of(event, "new") for event in cuts)
        does = "follow it and cut their logs" if len(nodes) > 1 else "follows it and cuts its log"
        yield cuts[0].time, f"{_brokers(nodes)} {does} {old}→{new}"


def _node(event: Event) -> NodeId:
    return int(event.node[1:])
