"""Plans in which bugs of consumer groups are hunted: seeds with a group, and what a bug needs to be met at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

from minikafka.sim.plan import CLASSIC, Fault, Plan, PlannedGroup
from minikafka.sim.seeds import plan_of

OPERATIONS, FAULTS = 60, 6


@lru_cache
def numbers(count: int) -> list[int]:
    """The first so many seeds whose plans have a group of the classic protocol."""
    found: list[int] = []
    seed = 0
    while len(found) < count:
        groups = plan_of(seed, operations=OPERATIONS, faults=FAULTS).groups
        if groups and groups[0].protocol == CLASSIC:
            found.append(seed)
        seed += 1
    return found


def with_a_group(seed: int) -> Plan:
    """The plan of the n-th such seed."""
    return plan_of(numbers(100 * (seed // 100 + 1))[seed], operations=OPERATIONS, faults=FAULTS)


def with_group(**changes: Any) -> Callable[[int], Plan]:
    """The same with another group: what a bug needs to be met at all."""

    def plan(seed: int) -> Plan:
        drawn = with_a_group(seed)
        return drawn.with_(groups=tuple(changed(each, **changes) for each in drawn.groups))

    return plan


def changed(group: PlannedGroup, *, settings: dict[str, Any], **changes: Any) -> PlannedGroup:
    """Another group, its consumers' settings beside those it has."""
    return replace(group, settings={**group.settings, **settings}, **changes)


def with_nothing_to_fear(style: str, strategy: str = "") -> Callable[[int], Plan]:
    """Three members that come one after the other and take their time; one leaves in good order and comes back."""

    def plan(seed: int) -> Plan:
        random = Random(f"{seed}/calm")
        drawn = with_a_group(seed)
        patient: dict[str, Any] = {"max_poll_interval_ms": 30_000, "rebalance_timeout_ms": 30_000}
        if strategy:
            patient["partition_assignment_strategy"] = [strategy]
        late = {"w2": round(random.uniform(1.0, 6.0), 3), "w3": round(random.uniform(6.0, 12.0), 3)}
        options: dict[str, Any] = {"style": style, "work_s": 0.9, "members": 3, "late": late, "is_calm": True}
        groups = tuple(changed(each, settings=patient, **options) for each in drawn.groups)
        leaves = Fault(at_s=round(random.uniform(8.0, 18.0), 3), kind="stop_member", target="w1", lasts_s=1.0)
        link = {"delay_mean_s": drawn.link["delay_mean_s"]}
        return drawn.with_(groups=groups, faults=(leaves,), link=link, skew_s={})

    return plan


def with_static_zombies(seed: int) -> Plan:
    """Static members, one of which sleeps through a rebalance or is replaced, and goes on with its work."""
    random = Random(f"{seed}/zombies")
    drawn = with_a_group(seed)
    settings = {"session_timeout_ms": 30_000, "heartbeat_interval_ms": 2_000, "rebalance_timeout_ms": 3_000}
    options: dict[str, Any] = {"members": 3, "static": ("w1", "w2", "w3"), "late": {"w3": 5.0}, "work_s": 0.9}
    groups = tuple(changed(each, settings=settings, style="cycle", is_calm=False, **options) for each in drawn.groups)
    faults = [
        Fault(at_s=round(random.uniform(3.0, 12.0), 3), kind=kind, target=target, lasts_s=random.choice((1.0, 6.0)))
        for kind, target in (("pause_member", "w1"), ("twin_member", "w2"), ("pause_member", "w2"))
    ]
    return drawn.with_(groups=groups, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def with_late_polls(seed: int) -> Plan:
    """Members stall while others come and go."""
    random = Random(f"{seed}/late")
    drawn = with_a_group(seed)
    faults = [
        Fault(at_s=round(random.uniform(1.0, 12.0), 3), kind="stall_member", target=f"w{number}", lasts_s=15.0)
        for number in (1, 2, 1)
    ]
    faults += [
        Fault(at_s=round(random.uniform(4.0, 14.0), 3), kind="stop_member", target="w3", lasts_s=1.0) for _ in range(3)
    ]
    groups = tuple(changed(each, settings={}, members=3, is_calm=False) for each in drawn.groups)
    return drawn.with_(groups=groups, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def with_one_that_leaves(seed: int) -> Plan:
    """A group of one that leaves as soon as it came, and comes back."""
    random = Random(f"{seed}/leaves")
    drawn = with_a_group(seed)
    groups = tuple(changed(each, settings={}, members=1, static=(), is_calm=False) for each in drawn.groups)
    at_s = sorted(round(random.uniform(0.1, 12.0), 3) for _ in range(6))
    faults = tuple(Fault(at_s=each, kind="stop_member", target="w1", lasts_s=0.3) for each in at_s)
    return drawn.with_(
        groups=groups, faults=faults, settings={**drawn.settings, "group.initial.rebalance.delay.ms": "3000"}
    )


def with_an_expulsion(seed: int) -> Plan:
    """One of three members is expelled while it fetches the offsets of its new partitions."""
    random = Random(f"{seed}/expelled")
    drawn = with_a_group(seed)
    groups = tuple(changed(each, settings={}, members=3, static=(), is_calm=False) for each in drawn.groups)
    at_s = round(random.uniform(4.0, 8.0), 3)
    expelled = Fault(at_s=at_s, kind="expel_member", target="w1")
    leaves = Fault(at_s=round(at_s + 0.3, 3), kind="stop_member", target="w2", lasts_s=1.5)
    return drawn.with_(groups=groups, faults=(expelled, leaves))
