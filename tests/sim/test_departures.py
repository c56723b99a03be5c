"""Brokers that leave a running cluster for good, or come back under their id after they were unregistered (API 64)."""

from __future__ import annotations

import pytest

from minikafka.faults import ALL, CLIENT
from minikafka.sim.departures import (
    CUT_AWAY,
    DEPART,
    DEPARTURES,
    EMPTY_DISK,
    GIVE_UP,
    NEVER,
    OLD_DIRECTORY,
)
from minikafka.sim.message_faults import LOSE
from minikafka.sim.plan import VOTERS, Fault, Operation, Plan
from minikafka.sim.plan_features import departing_broker
from minikafka.sim.run import Run
from minikafka.sim.search import QUICK, QUICK_CLIENT
from minikafka.sim.seeds import plain_plan_of, plan_of
from minikafka.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


def leaving(*faults: Fault, brokers: int = 4) -> Plan:
    """Four brokers, and a record every tenth of a second for eight."""
    return Plan(
        seed=5,
        brokers=brokers,
        settings={**QUICK, "min.insync.replicas": "2", "log.segment.bytes": "300"},
        client_settings=QUICK_CLIENT,
        operations=tuple(
            Operation(at_s=round(number * 0.1, 1), client="p1", topic="orders", partition=0) for number in range(80)
        ),
        faults=faults,
        duration_s=9.0,
    )


def moved_to_4() -> Fault:
    """Broker 4 gets the lead of the only partition."""
    return Fault(at_s=0.2, kind="reassign", target="orders-0=4,2,3")


def played(plan: Plan) -> Run:
    running = Run(plan)
    report = running.run()
    assert report.ok, report.render()
    return running


def brokers_at_the_end(running: Run) -> set[int]:
    """The brokers that are registered, by the events of registrations."""
    found: set[int] = set()
    for event in running.sim.journal:
        if event.kind == "broker_registered":
            found.add(int(str(event.facts["broker"])))
        elif event.kind == "broker_unregistered":
            found.discard(int(str(event.facts["broker"])))
    return found


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_plans_with_departures_are_the_plans_without_and_a_departure_beside() -> None:
    """A kept seed of another plan draws what it drew; plain plans have no departures."""
    plans = [plan_of(seed) for seed in range(60)]
    with_one = [plan for plan in plans if any(fault.kind in DEPARTURES for fault in plan.faults)]
    assert 2 <= len(with_one) <= 15
    assert all(Plan.from_json(plan.to_json()) == plan for plan in with_one)
    assert all(plan.brokers > VOTERS for plan in with_one)
    assert not any(fault.kind in DEPARTURES for seed in range(30) for fault in plain_plan_of(seed).faults)


def test_nobody_leaves_where_a_bit_rots() -> None:
    """An operator looks after that broker."""
    plan = Plan(seed=1, faults=(Fault(at_s=3.0, kind="rot", target="n1", lasts_s=2.0),))
    assert departing_broker(plan, random=None) is plan  # type: ignore[arg-type]


# ---- at work ---------------------------------------------------------------------------------------------------------


def test_a_broker_that_departs_is_emptied_stopped_and_forgotten() -> None:
    """What it led is led by others, and nobody knows it at the end."""
    running = played(leaving(moved_to_4(), Fault(at_s=3.0, kind=DEPART, target="n4", value=NEVER)))
    assert running.report.marks["fault_depart"] == running.report.marks["unregistered_by_hand"] == 1
    assert brokers_at_the_end(running) == {1, 2, 3}
    assert 4 not in running.cluster.living()


@pytest.mark.parametrize("node", [4, 1])
def test_a_broker_that_was_given_up_comes_back_with_its_old_directory(node: int) -> None:
    """It registers as if for the first time, a voter too, and takes a replica over the log that lies there."""
    fault = Fault(at_s=3.0, kind=GIVE_UP, target=f"n{node}", lasts_s=0.5, value=OLD_DIRECTORY)
    running = played(leaving(moved_to_4(), fault))
    assert running.report.marks["unregistered_by_hand"] == 1
    assert brokers_at_the_end(running) == {1, 2, 3, 4}
    followed = [each for each in running.sim.journal if each.kind == "reassignment_ended"]
    assert node in followed[-1].facts["new"]  # type: ignore[operator]


def test_a_broker_comes_back_with_an_empty_disk() -> None:
    """It holds nothing, and nothing rests on it until it has caught up."""
    fault = Fault(at_s=3.0, kind=DEPART, target="n4", lasts_s=0.5, value=EMPTY_DISK)
    running = played(leaving(moved_to_4(), fault))
    assert running.report.marks["disk_wiped"] == 1
    assert brokers_at_the_end(running) == {1, 2, 3, 4}


def test_a_broker_behind_a_cut_registers_again() -> None:
    """Its process lives all the time: it was fenced, emptied and unregistered, and gets another broker epoch."""
    running = played(leaving(moved_to_4(), Fault(at_s=2.0, kind=CUT_AWAY, target="n4", lasts_s=5.0)))
    assert running.report.marks["unregistered_by_hand"] == 1
    lost = [each for each in running.sim.journal if each.kind == "session_lost" and each.node == "n4"]
    assert [each.facts["why"] for each in lost] == ["STALE_BROKER_EPOCH"]
    assert brokers_at_the_end(running) == {1, 2, 3, 4}


def test_an_operator_whose_response_was_lost_finds_the_broker_unregistered() -> None:
    """BROKER_ID_NOT_REGISTERED is a success then."""
    lost = Fault(1.0, LOSE, f"{ALL}>{CLIENT}", lasts_s=4.5, value=1.0, message="UnregisterBroker answer")
    running = played(leaving(lost, Fault(at_s=1.5, kind=DEPART, target="n4", value=NEVER)))
    assert running.report.marks["unregistered_before"] == 1
    assert brokers_at_the_end(running) == {1, 2, 3}


def test_a_broker_that_has_what_no_other_has_is_started_again() -> None:
    """The others of the ISR were away when it was killed: its records cannot be moved from anywhere else."""
    running = played(
        leaving(
            moved_to_4(),
            Fault(at_s=3.0, kind="cut_both", target="n2>n4", lasts_s=4.0),
            Fault(at_s=3.0, kind="cut_both", target="n3>n4", lasts_s=4.0),
            Fault(at_s=6.5, kind=GIVE_UP, target="n4", value=NEVER),
        ).with_(settings={**QUICK, "min.insync.replicas": "1", "log.segment.bytes": "300"})
    )
    assert brokers_at_the_end(running) == {1, 2, 3}
    begun = [each for each in running.sim.journal if each.kind == "data_directory_opened" and each.node == "n4"]
    assert len(begun) == 2
