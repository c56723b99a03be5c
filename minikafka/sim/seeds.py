"""From a seed to its plan.

Swarm style: each seed draws which kinds of fault exist at all and how strong they are, the shape of the cluster, and
settings so small that rolls, snapshots, elections and rejoins happen every few virtual seconds.

Rules for this file: it draws from one stream per purpose; nothing here runs. What it draws stays within the fault
budget of ``plan.py``.

Plans are played slower than they are drawn, so that time-outs are as far from a message's way as Kafka's defaults have
them (a session of 9 s, a request of 30 s). Faults, operations and every time-out are stretched by one factor, so that
the same things happen in the same order; what a single message and a single sync take is not. So recovery has as much
time as in production, and an event costs the simulator no more. A plan that was kept is played as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from minikafka.faults import CONTROLLER, LEADER
from minikafka.invariant import invariant
from minikafka.sim.message_faults import LATE_BY_VALUE
from minikafka.sim.plan import FSYNC, PAGE_CACHE, VOTERS, Fault, Operation, Plan, PlannedTopic, fault_at
from minikafka.sim.plan_features import heartbeat_group, migrating_group, with_features
from minikafka.sim.tenant_plans import with_tenants
from minikafka.sim.transactor_plans import (
    with_long_transactions,
    with_loops,
    with_struck_messages,
    with_transactors,
)

PACE: Final = 3.0

DURATIONS: Final = (".ms", "_ms", ".seconds")
"""How the names of settings end that are spans of time."""


def slower(plan: Plan, by: float = PACE) -> Plan:
    """The same plan, ``by`` times as long."""
    return plan.with_(
        duration_s=plan.duration_s * by,
        pace=plan.pace * by,
        settings=_longer(plan.settings, by),
        client_settings=_longer(plan.client_settings, by),
        clients={name: _longer(settings, by) for name, settings in plan.clients.items()},
        kafka={name: _longer(settings, by) for name, settings in plan.kafka.items()},
        transactors={name: _longer(settings, by) for name, settings in plan.transactors.items()},
        loops={name: _longer(settings, by) for name, settings in plan.loops.items()},
        topics=tuple(replace(topic, configs=_longer(topic.configs, by)) for topic in plan.topics),
        faults=tuple(_longer_fault(each, by) for each in plan.faults),
        groups=tuple(replace(each, settings=_longer(each.settings, by)) for each in plan.groups),
        operations=tuple(replace(each, at_s=round(each.at_s * by, 4)) for each in plan.operations),
    )


def _longer_fault(fault: Fault, by: float) -> Fault:
    value = fault.value * by if fault.kind in LATE_BY_VALUE else fault.value
    return replace(fault, at_s=round(fault.at_s * by, 3), lasts_s=round(fault.lasts_s * by, 3), value=round(value, 4))


def _longer(settings: Mapping[str, Any], by: float) -> dict[str, Any]:
    """Brokers' settings are texts, clients' are numbers."""
    return {
        name: type(value)(round(int(value) * by)) if name.endswith(DURATIONS) else value
        for name, value in settings.items()
    }


OPERATIONS: Final = 200
FAULTS: Final = 10

OPERATIONS_BESIDE: Final = 60
FAULTS_BESIDE: Final = 6
"""Of plans that are about transactional producers."""

NODE_FAULTS: Final = (
    "crash",
    "power_cut",
    "pause",
    "isolate",
    "stop",
    "slow_disk",
    "jump_clock",
    "power_cut_all",
    "fail_sync",
    "disk_full",
)
LINK_FAULTS: Final = ("cut", "cut_both", "clog")
POWER_CUTS: Final = ("power_cut", "power_cut_all")


def plan_of(
    seed: int,
    *,
    operations: int = OPERATIONS,
    faults: int = FAULTS,
    kinds: Sequence[str] = (),
    policy: str | None = None,
) -> Plan:
    """The plan of a seed: three or four brokers, ``operations`` sends, ``faults`` faults, and some extras.

    ``kinds`` and ``policy`` are drawn unless given: a hunt for something narrows them, and has no other features.
    """
    plan = _drawn_plan(seed, operations, faults, kinds, policy)
    return slower(plan if kinds else with_features(plan))


def plain_plan_of(seed: int) -> Plan:
    """Three brokers, 200 sends, ten faults and nothing else: what issue 3 names its pace for."""
    return slower(_drawn_plan(seed, OPERATIONS, FAULTS, (), None, brokers=VOTERS))


def transactor_plan_of(seed: int) -> Plan:
    """Transactional producers in every plan: a family of its own, which hunts for bugs of transactions."""
    return slower(_transactor_plan(seed))


def long_transaction_plan_of(seed: int) -> Plan:
    """Of the same family, with transactions that stay open across elections."""
    return slower(with_long_transactions(_transactor_plan(seed), Random(f"{seed}/plan/transactions/long")))


def transaction_message_plan_of(seed: int) -> Plan:
    """Of the same family, with faults of single messages: markers, EndTxn, the partitions of transactions."""
    return slower(with_struck_messages(_transactor_plan(seed), Random(f"{seed}/plan/transactions/messages")))


def loop_plan_of(seed: int) -> Plan:
    """Of the same family, with processes that read, transform and write in one transaction."""
    return slower(with_loops(_transactor_plan(seed), Random(f"{seed}/plan/loops")))


def heartbeat_plan_of(seed: int) -> Plan:
    """A group of the consumer protocol in every plan (KIP-848)."""
    plan = _drawn_plan(seed, OPERATIONS_BESIDE, FAULTS_BESIDE, (), None)
    return slower(heartbeat_group(plan, Random(f"{seed}/plan/heartbeats")))


def migration_plan_of(seed: int) -> Plan:
    """A group whose members change its protocol, in both directions, in every plan (KIP-848)."""
    plan = _drawn_plan(seed, OPERATIONS_BESIDE, FAULTS_BESIDE, (), None)
    return slower(migrating_group(plan, Random(f"{seed}/plan/migrations")))


def tenant_plan_of(seed: int) -> Plan:
    """Tenants at a listener that is checked, while ACLs, credentials and quotas change: hunts for bugs of security."""
    plan = _drawn_plan(seed, OPERATIONS_BESIDE, FAULTS_BESIDE, (), None)
    return slower(with_tenants(plan, Random(f"{seed}/plan/tenants")))


FAMILIES: Final[Mapping[str, Callable[[int], Plan]]] = {
    "all": plan_of,
    "plain": plain_plan_of,
    "transactions": transactor_plan_of,
    "long-transactions": long_transaction_plan_of,
    "transaction-messages": transaction_message_plan_of,
    "loops": loop_plan_of,
    "consumer-protocol": heartbeat_plan_of,
    "group-migration": migration_plan_of,
    "security": tenant_plan_of,
}
"""By the name that ``sim run --family`` takes."""


def _transactor_plan(seed: int) -> Plan:
    plan = _drawn_plan(seed, OPERATIONS_BESIDE, FAULTS_BESIDE, (), None)
    return with_transactors(plan, Random(f"{seed}/plan/transactors"))


def _drawn_plan(
    seed: int, operations: int, faults: int, kinds: Sequence[str], policy: str | None, *, brokers: int | None = None
) -> Plan:
    shape = Random(f"{seed}/plan/shape")
    policy = shape.choice((FSYNC, PAGE_CACHE, PAGE_CACHE)) if policy is None else policy
    partitions = shape.choice((1, 2, 3))
    drawn = shape.choice((3, 3, 3, 4))
    brokers = drawn if brokers is None else brokers
    topics = (PlannedTopic(name="orders", partitions=partitions, replication_factor=3),)
    duration_s = shape.uniform(6.0, 10.0)
    min_isr = shape.choice((1, 2, 2))
    settings = _settings(Random(f"{seed}/plan/settings"), policy=policy, min_isr=min_isr)
    return Plan(
        seed=seed,
        brokers=brokers,
        policy=policy,
        settings=settings,
        client_settings=_client_settings(Random(f"{seed}/plan/clients")),
        topics=topics,
        link=_link(Random(f"{seed}/plan/link")),
        sync_mean_s=shape.choice((0.001, 0.002, 0.01)),
        readers=1,
        duration_s=duration_s,
        faults=_faults(
            Random(f"{seed}/plan/faults"), faults, duration_s, topics, kinds or _swarm(seed, policy), brokers
        ),
        operations=_operations(Random(f"{seed}/plan/operations"), operations, duration_s, topics),
        fifo=shape.random() < 0.05,
    )


def _settings(random: Random, *, policy: str, min_isr: int) -> dict[str, str]:
    session_ms = random.choice((1000, 1500, 2500))
    election_ms = random.choice((200, 400, 800))
    settings: dict[str, Any] = {
        "broker.session.timeout.ms": session_ms,
        "broker.heartbeat.interval.ms": session_ms // random.choice((3, 4)),
        "replica.lag.time.max.ms": random.choice((800, 1500, 4000)),
        "replica.fetch.wait.max.ms": random.choice((100, 250, 500)),
        "replica.fetch.backoff.ms": random.choice((100, 500)),
        "replica.socket.timeout.ms": random.choice((1000, 2000)),
        "replica.high.watermark.checkpoint.interval.ms": random.choice((300, 1000, 5000)),
        "controller.quorum.election.timeout.ms": election_ms,
        "controller.quorum.fetch.timeout.ms": election_ms * 2,
        "controller.quorum.request.timeout.ms": election_ms * 2,
        "controller.quorum.election.backoff.max.ms": election_ms,
        "mk.controller.quorum.fetch.wait.max.ms": 500,
        "metadata.log.max.record.bytes.between.snapshots": random.choice((800, 3000, 100_000)),
        "log.segment.bytes": random.choice((300, 600, 2000)),
        "log.index.interval.bytes": random.choice((0, 100, 500)),
        "log.flush.offset.checkpoint.interval.ms": random.choice((500, 2000)),
        "leader.imbalance.check.interval.seconds": random.choice((3, 10)),
        "mk.controlled.shutdown.max.wait.ms": 3000,
        "min.insync.replicas": min_isr,
    }
    if policy == FSYNC:
        settings["log.flush.interval.messages"] = 1
    return {name: str(value) for name, value in settings.items()}


def _client_settings(random: Random) -> dict[str, int | str]:
    request_ms = random.choice((800, 2000))
    return {
        "request_timeout_ms": request_ms,
        "delivery_timeout_ms": random.choice((3000, 8000)),
        "linger_ms": random.choice((0, 5, 20)),
        "max_batch_size": random.choice((100, 150, 16384)),
        "retry_backoff_ms": random.choice((20, 100)),
        "retry_backoff_max_ms": 500,
    }


def _link(random: Random) -> dict[str, float]:
    link = {"delay_mean_s": random.choice((0.0005, 0.001, 0.003))}
    if random.random() < 0.3:
        link["loss"] = random.choice((0.005, 0.02))
    if random.random() < 0.3:
        link["reset"] = random.choice((0.005, 0.02))
    if random.random() < 0.3:
        link["duplicate"] = random.choice((0.01, 0.05))
    return link


def _swarm(seed: int, policy: str) -> list[str]:
    """Some kinds of fault, and no other."""
    random = Random(f"{seed}/plan/kinds")
    kinds = [kind for kind in (*NODE_FAULTS, *LINK_FAULTS) if random.random() < 0.45]
    if policy == FSYNC and "power_cut_all" not in kinds and random.random() < 0.5:
        kinds.append("power_cut_all")  # what this policy is for
    if "fail_sync" in kinds:
        excluded = random.choice((POWER_CUTS, ("fail_sync",), ()))
        kinds = [kind for kind in kinds if kind not in excluded]
    return kinds or ["crash"]


def _faults(
    random: Random,
    count: int,
    duration_s: float,
    topics: Sequence[PlannedTopic],
    kinds: Sequence[str],
    brokers: int,
) -> tuple[Fault, ...]:
    """Faults of the given kinds, each kind more or less often."""
    weights = [random.choice((1, 2, 4)) for _ in kinds]
    lasts_mean_s = random.choice((0.5, 1.2, 2.5))
    faults = [
        _fault(
            random, random.choices(kinds, weights)[0], random.uniform(0.3, duration_s), lasts_mean_s, topics, brokers
        )
        for _ in range(count)
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _fault(
    random: Random, kind: str, at_s: float, lasts_mean_s: float, topics: Sequence[PlannedTopic], brokers: int
) -> Fault:
    lasts_s = random.expovariate(1 / lasts_mean_s) + 0.05
    value = 0.0
    if kind in LINK_FAULTS:
        one, other = random.sample(range(1, brokers + 1), 2)
        target = f"n{one}>n{other}"
    elif kind == "power_cut_all":
        target = "all"
    else:
        topic = random.choice(topics)
        leader = f"{LEADER}:{topic.name}-{random.randrange(topic.partitions)}"
        target = random.choice((leader, leader, CONTROLLER, *(f"n{node}" for node in range(1, brokers + 1))))
    if brokers > VOTERS and kind in {"crash", "power_cut"} and random.random() < 0.25:
        kind, target = "wipe", f"n{brokers}"
    if kind == "jump_clock":
        value = random.choice((-30.0, -2.0, 2.0, 30.0))
    elif kind == "slow_disk":
        value = random.choice((0.1, 0.5))
    return fault_at(at_s, kind, target, lasts_s, value)


def _operations(random: Random, count: int, duration_s: float, topics: Sequence[PlannedTopic]) -> tuple[Operation, ...]:
    """Sends in bursts of a few, as applications make them."""
    invariant(bool(topics), "a plan has a topic")
    producers = random.choice((1, 2, 3))
    operations: list[Operation] = []
    while len(operations) < count:
        at_s = random.uniform(0.0, duration_s)
        client = f"p{random.randint(1, producers)}"
        for burst in range(random.randint(1, 6)):
            topic = random.choice(topics)
            partition = random.randrange(topic.partitions)
            operations.append(
                Operation(at_s=round(at_s + burst * 0.001, 4), client=client, topic=topic.name, partition=partition)
            )
    return tuple(sorted(operations[:count], key=lambda each: each.at_s))
