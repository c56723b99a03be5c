"""The target ``simulator``: a scenario and a seed as a plan, run under virtual time, in the same words at the end.

The plan is an ordinary one: kept as ``plan.json``, it plays again with ``minikafka sim run`` and opens with
``minikafka sim show``. Differences from real brokers: a producer's rate is lowered so that a run stays a matter of
seconds; members of groups read along as consumers without a group; a rolling restart goes by the clock.

Rules for this file: nothing here is random and nothing waits; every fault has a plan's word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from minikafka.chaos.load import DELIVERY_TIMEOUT_MS, REQUEST_TIMEOUT_MS
from minikafka.chaos.outcome import COUNTED_AS, Figures, Outcome
from minikafka.chaos.runner import check, write
from minikafka.chaos.scenario import Scenario, Strike, link_words, strikes_of
from minikafka.chaos.target import SIMULATOR
from minikafka.check.findings import KINDS
from minikafka.check.history import Acknowledged, Failed, Operation, Poll, Send, Unknown
from minikafka.faults import ALL, FAULTS, POWER_LOSS
from minikafka.sim import run as sim_run
from minikafka.sim.plan import FSYNC, PAGE_CACHE, Fault, Plan, PlannedTopic
from minikafka.sim.plan import Operation as Sending
from minikafka.types import TopicPartition

OPERATIONS_MAX: Final = 600
"""Records of a run: what a schedule shows does not depend on more, and each costs milliseconds."""

ROLL_S: Final = 6.0
"""From one restart of a rolling one to the next: a controlled shutdown, a start and a return to the ISR."""

PLAN: Final = "plan.json"


def plan_of(scenario: Scenario, seed: int, duration_s: float | None = None) -> Plan:
    """The plan that a scenario and a seed make."""
    cluster, load = scenario.cluster, scenario.load
    length_s = load.duration_s if duration_s is None else duration_s
    faults = [
        fault
        for strike in strikes_of(scenario, seed, length_s)
        for fault in faults_of(strike, length_s, cluster.brokers)
    ]
    return Plan(
        seed=seed,
        brokers=cluster.brokers,
        voters=cluster.brokers,
        policy=FSYNC if cluster.syncs_first else PAGE_CACHE,
        # As at every other target: the product's default, where other plans have it off.
        settings={"mk.fence.on.refused.connection": "true", **cluster.settings},
        client_settings={
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
            "linger_ms": 5,
        },
        clients={
            machine: {"acks": int(each.acks)}
            for each in load.producers
            if each.acks != "all"
            for machine in each.machines()
        },
        consumers=sum(group.members for group in load.groups),
        topics=tuple(
            PlannedTopic(
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=dict(topic.configs),
            )
            for topic in cluster.topics
        ),
        duration_s=length_s,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        operations=tuple(_operations(scenario, length_s)),
        within_budget=POWER_LOSS not in scenario.faults(),
    )


def faults_of(strike: Strike, length_s: float, brokers: int) -> Iterator[Fault]:
    """A strike in the plan's words."""
    lasts_s = strike.lasts_s if strike.lasts_s is not None else max(0.0, length_s - strike.at_s)
    fault = Fault(at_s=strike.at_s, kind=FAULTS[strike.what].kind, target=strike.whom, lasts_s=round(lasts_s, 3))
    match strike.what:
        case "isolate" | "cut":
            for words in link_words(strike):
                yield replace(fault, target=words)
        case "delay":
            value = strike.delay_s + strike.jitter_s / 2
            yield replace(fault, target=f"{strike.whom}>{strike.to}", value=value)
        case "loss":
            yield replace(fault, target=f"{strike.whom}>{strike.to}", value=strike.share)
        case "slow-disk":
            yield replace(fault, value=strike.delay_s)
        case "clock-jump":
            yield replace(fault, value=strike.by_s, lasts_s=0.0)
        case "rolling-restart":
            whom = [f"n{node}" for node in range(1, brokers + 1)] if strike.whom == ALL else strike.whom.split(",")
            for place, node in enumerate(whom):
                yield replace(fault, at_s=round(strike.at_s + place * ROLL_S, 3), target=node, lasts_s=0.0)
        case "restart":
            yield replace(fault, lasts_s=0.0)
        case _:
            yield fault


def _operations(scenario: Scenario, length_s: float) -> list[Sending]:
    """Sends at each producer's pace, to the partitions in turn."""
    load = scenario.load
    partitions = {topic.name: topic.partitions for topic in scenario.cluster.topics}
    wanted = length_s * sum(each.count * each.rate for each in load.producers)
    slower = min(1.0, OPERATIONS_MAX / wanted)
    sends = []
    for each in load.producers:
        for place, machine in enumerate(each.machines()):
            pause_s = 1 / (each.rate * slower)
            for number in range(int(length_s / pause_s)):
                at_s = round((number + place / each.count) * pause_s, 4)
                partition = number % partitions[each.topic]
                sends.append(Sending(at_s=at_s, client=machine, topic=each.topic, partition=partition))
    return sorted(sends, key=lambda sending: (sending.at_s, sending.client))


Event: TypeAlias = Send | Acknowledged | Failed | Unknown | Poll


class TimedRun(sim_run.Run):
    """A run that records the time of each client operation's result."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.operations: list[Event] = []
        self.began_s = 0.0
        self.healed_s = 0.0

    def _record(self, operation: Operation) -> None:
        super()._record(operation)
        if isinstance(operation, Event):
            self.operations.append(operation)

    def _safety(self) -> None:
        self.began_s = self.sim.loop.time()
        super()._safety()

    def _liveness(self) -> None:
        self.healed_s = self.sim.loop.time()
        super()._liveness()


def play(scenario: Scenario, *, seed: int, folder: Path, duration_s: float | None = None) -> Outcome:
    """Run it and write the files. CannotMake."""
    check(scenario, SIMULATOR, duration_s)
    plan = plan_of(scenario, seed, duration_s)
    (folder / PLAN).write_text(plan.to_json(), encoding="utf-8")
    (folder / scenario.path.name).write_bytes(scenario.path.read_bytes())
    outcome = outcome_of(scenario, TimedRun(plan))
    write(outcome, folder)
    return outcome


def outcome_of(scenario: Scenario, run: TimedRun) -> Outcome:
    """Run it, and tell it in chaos's words."""
    report = run.run()
    plan = run.plan
    figures = _figures(scenario, run)
    known = {kind.kind for kind in KINDS}
    findings = run.checker.totals
    died: dict[str, None] = {}
    missing, examples = "", []
    for violation in report.violations:
        if violation.name in {"not_converged", "not_readable", "not_booted", "not_reached"}:
            missing = f"{violation.name}: {violation.what}"
        elif violation.name in known or violation.name in COUNTED_AS["diverged"]:
            findings.setdefault(violation.name, 1)
            examples.append(violation.what)
        else:
            died[f"{violation.name}: {violation.what}"] = None
    outcome = Outcome(
        scenario=scenario,
        target=SIMULATOR,
        seed=plan.seed,
        duration_s=plan.duration_s,
        figures=figures,
        findings=findings,
        missing=missing,
        converged_s=None if missing or not run.healed_s else report.virtual_s - run.healed_s,
        died=list(died),
        read=sum(
            len(each.records) for each in run.operations if isinstance(each, Poll) and each.process.startswith("g")
        ),
    )
    outcome.examples = examples if outcome.damage else []
    return outcome


def _figures(scenario: Scenario, run: TimedRun) -> Figures:
    """The clients' answers, in order of time, under the faults of the plan."""
    topics = {each.topic for each in scenario.load.producers}
    figures = Figures([name for name in scenario.cluster.names() if name.topic in topics])
    sends: dict[int, Send] = {}
    faults = list(enumerate(run.plan.faults, start=1))
    for each in run.operations:
        at_s = 0.0 if isinstance(each, Send) else each.time - run.began_s
        while faults and faults[0][1].at_s <= at_s:
            number, fault = faults.pop(0)
            recovery = figures.began(number, f"{fault.kind} {fault.target}", fault.at_s)
            recovery.healed_s = min(fault.at_s + fault.lasts_s, run.plan.duration_s)
        match each:
            case Send():
                sends[each.op] = each
                figures.sent += 1
            case Acknowledged():
                send = sends[each.op]
                name = TopicPartition(send.topic, each.partition or 0)
                figures.on_acknowledged(name, max(0.0, at_s), each.time - send.time)
            case Failed() | Unknown():
                figures.failed += isinstance(each, Failed)
                figures.unknown += isinstance(each, Unknown)
                send = sends[each.op]
                if send.partition is not None:
                    name = TopicPartition(send.topic, send.partition)
                    figures.waited(name, max(0.0, send.time - run.began_s), max(0.0, at_s))
            case _:
                pass
    figures.failovers = _failovers(scenario, run)
    return figures


def _failovers(scenario: Scenario, run: TimedRun) -> int:
    """Return how often a partition got another leader, until all was put right."""
    failovers = 0
    leaders: dict[object, str] = {}
    names = set(map(str, scenario.cluster.names()))
    for event in run.sim.journal:
        if event.kind == "became_leader" and event.time <= (run.healed_s or math.inf):
            partition = event.facts["partition"]
            if partition in names:
                failovers += leaders.setdefault(partition, event.node) != event.node
                leaders[partition] = event.node
    return failovers
