"""Consumer groups in plans: who belongs to one, how its members work, and what happens to them.

Rules for this file: data and draws, from the one stream that is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, NamedTuple

from minikafka.coordination.rule import partition_of
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.sim.plan import AFTER, AUTO, CONSUMER, CYCLE, MIGRATING, Fault, PlannedGroup, fault_at

OFFSETS_PARTITIONS: Final = 2

MIGRATE: Final = "migrate_member"

MEMBER_FAULTS: Final = (
    "kill_member",
    "stop_member",
    "stall_member",
    "pause_member",
    "isolate_member",
    "twin_member",
    "lose_member",
    "expel_member",
    MIGRATE,
)
"""What happens to members (``group_workload.py``)."""

DRAWN_MEMBER_FAULTS: Final = MEMBER_FAULTS[:6]
"""Those that every group with something to fear may meet; the others belong to ``drawn_failovers``."""

COORDINATOR_FAULTS: Final = ("crash", "isolate", "pause")

STRATEGIES: Final = (
    ["range"],
    ["roundrobin"],
    ["sticky"],
    ["cooperative-sticky"],
    ["cooperative-sticky"],
    ["range", "cooperative-sticky"],
)
"""The last is the consumer's own default: every member speaks both."""


class DrawnGroup(NamedTuple):
    """What a seed adds to a plan."""

    group: PlannedGroup
    faults: list[Fault]
    settings: dict[str, str]
    """Of the brokers."""
    is_calm: bool


def drawn_group(random: Random, duration_s: float, topic: str) -> DrawnGroup:
    """A group, and what goes wrong with it and with its coordinator."""
    is_calm = random.random() < 0.15
    members = random.choice((1, 2, 3, 3, 4))
    session_ms = random.choice((2000, 3000))
    machines = [f"w{number}" for number in range(1, members + 1)]
    static = tuple(each for each in machines if random.random() < 0.5) if random.random() < 0.3 else ()
    settings: dict[str, Any] = {
        "session_timeout_ms": session_ms,
        "heartbeat_interval_ms": session_ms // 4,
        "max_poll_interval_ms": random.choice((1500, 2500)) if not is_calm else 10_000,
        "rebalance_timeout_ms": random.choice((1500, 2500)) if not is_calm else 10_000,
        "default_api_timeout_ms": 5000,
        "fetch_max_wait_ms": 500,
        "auto_commit_interval_ms": random.choice((100, 700)),
        "partition_assignment_strategy": random.choice(STRATEGIES),
        "max_poll_records": random.choice((2, 10, 500)),
        "request_timeout_ms": random.choice((800, 2000)),
        "retry_backoff_ms": 50,
        "retry_backoff_max_ms": 300,
    }
    late = {each: round(random.uniform(0.0, duration_s / 2), 3) for each in machines[1:] if random.random() < 0.4}
    group = PlannedGroup(
        topic=topic,
        members=members,
        static=static,
        late=late,
        style=random.choice((CYCLE, CYCLE, AFTER, AUTO)),
        work_s=random.choice((0.0, 0.05, 0.3)),
        settings=settings,
        is_calm=is_calm,
    )
    faults = _calm_faults(random, duration_s, machines) if is_calm else _faults(random, duration_s, group)
    brokers = {
        "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
        "group.initial.rebalance.delay.ms": random.choice(("0", "200", "1000")),
        "group.min.session.timeout.ms": "1000",
        "offsets.commit.timeout.ms": random.choice(("500", "2000")),
        "offsets.topic.segment.bytes": random.choice(("2000", "100000")),
    }
    return DrawnGroup(group, faults, brokers, is_calm)


def drawn_heartbeat_group(random: Random, duration_s: float, topic: str) -> DrawnGroup:
    """A group of the consumer protocol, and what goes wrong with it and with its coordinator."""
    members = random.choice((2, 3, 3, 4))
    machines = [f"w{number}" for number in range(1, members + 1)]
    session_ms = random.choice((2000, 3000))
    group = PlannedGroup(
        topic=topic,
        members=members,
        static=tuple(each for each in machines if random.random() < 0.5) if random.random() < 0.4 else (),
        late={each: round(random.uniform(0.0, duration_s / 2), 3) for each in machines[1:] if random.random() < 0.5},
        work_s=random.choice((0.0, 0.1, 0.5)),
        settings={
            "heartbeat_interval_ms": session_ms // random.choice((4, 8)),
            "rebalance_timeout_ms": random.choice((1000, 2500)),
            "request_timeout_ms": random.choice((400, 800)),
        },
        protocol=CONSUMER,
    )
    faults = _faults(random, duration_s, group)
    coordinator = coordinator_of(group)
    for _ in range(random.randint(1, 2)):
        at_s, kind = random.uniform(0.5, duration_s), random.choice(COORDINATOR_FAULTS)
        faults.append(fault_at(at_s, kind, coordinator, random.expovariate(1.0) + 0.1))
    brokers = {
        "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.heartbeat.interval.ms": str(session_ms // 4),
        "offsets.commit.timeout.ms": random.choice(("500", "2000")),
        "offsets.topic.segment.bytes": random.choice(("2000", "100000")),
        # The default, one by which the interval depends on the number of members, and Kafka's.
        "mk.group.consumer.heartbeats.per.second": random.choice(("50", "50", "2", "0")),
    }
    return DrawnGroup(group, faults, brokers, is_calm=False)


def drawn_migrating_group(random: Random, duration_s: float, topic: str) -> DrawnGroup:
    """A group whose members change their protocol, in both directions, while members and coordinators fail.

    In half of the plans the members go to the consumer protocol and back one after the other, as in a rolling upgrade;
    in the others any member changes at any time.
    """
    drawn = drawn_group(random, duration_s, topic)
    members = random.choice((2, 3, 3, 4))
    machines = [f"w{number}" for number in range(1, members + 1)]
    session_ms = drawn.group.settings["session_timeout_ms"]
    group = replace(
        drawn.group,
        members=members,
        static=tuple(each for each in machines if random.random() < 0.5) if random.random() < 0.3 else (),
        late={each: round(random.uniform(0.0, duration_s / 3), 3) for each in machines[1:] if random.random() < 0.4},
        settings={
            **drawn.group.settings,
            "max_poll_interval_ms": random.choice((1500, 2500)),
            "rebalance_timeout_ms": random.choice((1500, 2500)),
        },
        work_s=random.choice((0.05, 0.3, 1.0)),
        is_calm=False,
        protocol=MIGRATING,
    )
    faults = [each for each in _faults(random, duration_s, group) if random.random() < 0.7]
    for way in range(2) if random.random() < 0.5 else ():
        at_s = duration_s * (0.1 + 0.45 * way)
        for machine in random.sample(machines, len(machines)):
            at_s += random.uniform(0.01, 0.45 / len(machines)) * duration_s
            faults.append(_migration(random, at_s, machine))
    if not any(each.kind == MIGRATE for each in faults):
        count = random.randint(3, 7)
        faults += [_migration(random, random.uniform(0.5, duration_s), random.choice(machines)) for _ in range(count)]
    migrations = [each.at_s for each in faults if each.kind == MIGRATE]
    coordinator = coordinator_of(group)
    for _ in range(random.randint(1, 3)):
        # Most coordinators fail while the group is converted.
        at_s = random.choice(migrations) + random.expovariate(4.0)
        kind = random.choice(COORDINATOR_FAULTS)
        faults.append(fault_at(at_s, kind, coordinator, random.expovariate(1.0) + 0.1))
    brokers = {
        **drawn.settings,
        "group.initial.rebalance.delay.ms": random.choice(("0", "200")),
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.heartbeat.interval.ms": str(session_ms // 4),
    }
    return DrawnGroup(group, faults, brokers, is_calm=False)


def _migration(random: Random, at_s: float, machine: str) -> Fault:
    is_killed = random.random() < 0.2
    return fault_at(at_s, MIGRATE, machine, random.expovariate(3.0), float(is_killed))


def _calm_faults(random: Random, duration_s: float, machines: Sequence[str]) -> list[Fault]:
    """Members leave in good order and come back."""
    return [
        fault_at(random.uniform(1.0, duration_s), "stop_member", random.choice(machines), 0.5)
        for _ in range(random.randint(0, 3))
    ]


def _faults(random: Random, duration_s: float, group: PlannedGroup) -> list[Fault]:
    kinds = [kind for kind in DRAWN_MEMBER_FAULTS if random.random() < 0.6 and (kind != "twin_member" or group.static)]
    faults = []
    for _ in range(random.randint(1, 5) if kinds else 0):
        kind = random.choice(kinds)
        target = random.choice(group.static if kind == "twin_member" else group.machines)
        lasts_s = random.choice((0.3, 1.0, 3.0)) * random.uniform(0.5, 1.5)
        faults.append(fault_at(random.uniform(0.5, duration_s), kind, target, lasts_s))
    coordinator = coordinator_of(group)
    for _ in range(random.randint(0, 3)):
        at_s, kind = random.uniform(0.5, duration_s), random.choice(COORDINATOR_FAULTS)
        target = random.choice((coordinator, coordinator, "controller"))
        faults.append(fault_at(at_s, kind, target, random.expovariate(1.0) + 0.1))
    if group.static:
        at_s, target = random.uniform(0.5, duration_s), random.choice(group.static)
        faults.append(fault_at(at_s, "twin_member", target, random.uniform(0.3, 3.0)))
    return faults


def coordinator_of(group: PlannedGroup) -> str:
    """The target of a fault that hits the group's coordinator."""
    return f"leader:{OFFSETS_TOPIC}-{partition_of(group.name, OFFSETS_PARTITIONS)}"


def drawn_failovers(random: Random, duration_s: float, group: PlannedGroup) -> list[Fault]:
    """Draw one schedule around a failover of the group's coordinator.

    - Members die for good together with the coordinator, and nobody joins after them: only the sessions that the next
      coordinator begins can free their partitions.
    - The processes of static members die with the coordinator and come back within their session: the next coordinator
      must know their instance ids.
    - A member is expelled while it looks up where to begin.
    """
    coordinator = coordinator_of(group)
    shapes = ("lost", "lost", "static", "expelled") if group.static else ("lost", "lost", "expelled")
    shape = random.choice(shapes)
    if shape == "expelled":
        at_s, target = round(random.uniform(0.15, 0.35) * duration_s, 3), random.choice(group.machines)
        others = [each for each in group.machines if each != target] or [target]
        return [
            fault_at(at_s, "expel_member", target),
            fault_at(at_s + 0.1, "stop_member", random.choice(others), 0.5),
        ]
    at_s = round(random.uniform(0.6, 0.9) * duration_s, 3)
    crash = fault_at(at_s + random.uniform(0.0, 0.2), "crash", coordinator, random.uniform(0.5, 3.0))
    if shape == "static":
        back_s = random.uniform(0.2, 1.0)
        return [*(fault_at(at_s, "kill_member", each, back_s) for each in group.static), crash]
    lost = random.sample(group.machines, random.randint(1, len(group.machines)))
    return [*(fault_at(at_s, "lose_member", each) for each in sorted(lost)), crash]
