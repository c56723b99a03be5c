"""Administrators who move replicas, add partitions and alter settings while brokers die (issue 3; KIP-455)."""

from __future__ import annotations

from random import Random

import pytest

from minikafka.quorum.assignment import Assignment
from minikafka.sim.changes import (
    ADD_PARTITIONS,
    ALTER_TOPIC,
    ELECT,
    REASSIGN,
    SENDS_EACH,
    SETTINGS,
    drawn_changes,
)
from minikafka.sim.plan import Fault, Operation, Plan, PlannedTopic
from minikafka.sim.plan_features import online_changes
from minikafka.sim.run import Run, run
from minikafka.sim.search import QUICK, QUICK_CLIENT
from minikafka.sim.seeds import plan_of
from minikafka.types import TopicPartition

CAUGHT_AS = "not_converged"
"""Nobody who may lead is left, though everybody lives."""


def changed(*changes: tuple[float, str, str], faults: tuple[Fault, ...] = ()) -> Plan:
    """Four brokers, a record every tenth of a second for six, and these changes."""
    made = tuple(Fault(at_s=at_s, kind=kind, target=target) for at_s, kind, target in changes)
    return Plan(
        seed=5,
        brokers=4,
        settings={**QUICK, "min.insync.replicas": "2", "log.segment.bytes": "300"},
        client_settings=QUICK_CLIENT,
        operations=tuple(
            Operation(at_s=round(number * 0.1, 1), client="p1", topic="orders", partition=0) for number in range(60)
        ),
        faults=tuple(sorted((*made, *faults), key=lambda fault: fault.at_s)),
        duration_s=7.0,
    )


def played(plan: Plan) -> Run:
    running = Run(plan)
    report = running.run()
    assert report.ok, report.render()
    return running


def replicas_at_the_end(running: Run) -> tuple[int, ...]:
    """By the newest committed metadata that was told."""
    moved = [event for event in running.sim.journal if event.kind == "reassignment_ended"]
    return tuple(moved[-1].facts["new"])  # type: ignore[arg-type]


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_seed_draws_changes_that_can_be_carried_out() -> None:
    """Known brokers, no broker twice, partitions that are there; each kind, and a move that is taken back, is drawn."""
    kinds: dict[str, int] = {}
    for seed in range(200):
        drawn = drawn_changes(Random(seed), topic="orders", partitions=2, brokers=4, duration_s=8.0, may_move=True)
        for each in drawn:
            kinds[each.kind] = kinds.get(each.kind, 0) + 1
            check(each)
    assert sorted(kinds) == sorted((REASSIGN, ADD_PARTITIONS, ALTER_TOPIC))


def check(change: Fault) -> None:
    assert 0 < change.at_s < 9
    what, _, value = change.target.partition("=")
    if change.kind == REASSIGN:
        nodes = [int(node) for node in value.split(",") if node]
        assert what in {"orders-0", "orders-1"}
        assert len(nodes) == len(set(nodes)) != 1
        assert set(nodes) <= {1, 2, 3, 4}
    elif change.kind == ADD_PARTITIONS:
        assert (what, int(value) > 2) == ("orders", True)
    else:
        assert dict(SETTINGS)[what.removeprefix("orders:")].count(value) == 1


def test_nothing_moves_while_a_bit_is_rotten() -> None:
    """Moves could take away the last sound replica: beyond the fault budget."""
    bit_rot = Fault(at_s=3.0, kind="rot", target="n1", lasts_s=2.0)
    for seed in range(50):
        plan = online_changes(Plan(seed=seed, faults=(bit_rot,)), Random(seed))
        assert not any(fault.kind == REASSIGN for fault in plan.faults)


def test_changes_have_a_stream_of_their_own() -> None:
    """Plans with them are what they were, and changes beside."""
    changes = {REASSIGN, ADD_PARTITIONS, ALTER_TOPIC}
    plans = [plan_of(seed) for seed in range(40)]
    changing = [plan for plan in plans if any(fault.kind in changes for fault in plan.faults)]
    assert 4 < len(changing) < 25
    assert all(Plan.from_json(plan.to_json()) == plan for plan in changing)


# ---- at work ---------------------------------------------------------------------------------------------------------


def test_a_partition_moves_under_load_while_brokers_die() -> None:
    """KIP-455: to a new broker and in another order; a new replica dies on the way, and the controller."""
    faults = (
        Fault(at_s=1.1, kind="crash", target="n4", lasts_s=1.0),
        Fault(at_s=1.3, kind="pause", target="controller", lasts_s=1.0),
    )
    running = played(changed((1.0, REASSIGN, "orders-0=4,2,3"), faults=faults))
    assert replicas_at_the_end(running) == (4, 2, 3)
    assert running.report.marks["fault_reassign"] == 1
    assert running.report.marks["replica_deleted"] >= 1


def test_a_move_that_is_taken_back_leaves_nothing_behind() -> None:
    """The new replica could not catch up, so nothing was complete."""
    faults = (Fault(at_s=0.5, kind="crash", target="n4", lasts_s=4.0),)
    running = played(changed((1.0, REASSIGN, "orders-0=4,2,3"), (2.0, REASSIGN, "orders-0="), faults=faults))
    marks = running.report.marks
    assert (marks["move_begun"], marks["move_taken_back"]) == (1, 1)
    assert 4 not in replicas_at_the_end(running)


def test_what_an_administrator_asks_for_too_late_is_refused_and_said() -> None:
    """Nothing is under way; fewer partitions than there are. A refusal is an answer: nobody waits."""
    running = played(changed((1.0, REASSIGN, "orders-0="), (1.5, ADD_PARTITIONS, "orders=1")))
    marks = running.report.marks
    assert (marks["reassign_refused"], marks["add_partitions_refused"]) == (1, 1)


def test_added_partitions_are_sent_to_read_and_compared() -> None:
    """Their records stand in the history like all others: found by the final read, on every replica alike."""
    faults = (Fault(at_s=1.05, kind="crash", target="controller", lasts_s=1.0),)
    running = played(changed((1.0, ADD_PARTITIONS, "orders=3"), faults=faults))
    assert running.report.marks["topic_enlarged"] == 1
    assert running.report.outcomes["send"] == 60 + 2 * SENDS_EACH
    assert running.sim_clients.readers[-1].positions[TopicPartition("orders", 2)] >= 1


def test_settings_change_under_load() -> None:
    """Smaller segments and a retention by size: more rolls, and a log start that moves."""
    running = played(
        changed(
            (1.0, ALTER_TOPIC, "orders:segment.bytes=200"),
            (2.0, ALTER_TOPIC, "orders:retention.bytes=600"),
            (3.0, ALTER_TOPIC, "orders:segment.bytes="),
        ).with_(topics=(PlannedTopic(name="orders", partitions=1, replication_factor=3),))
    )
    assert running.report.marks["topic_altered"] == 3


def test_a_move_that_does_not_wait_for_the_isr_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle must be able to fail: planted, old replicas go before the new ones have caught up."""

    def at_once(self: Assignment, _isr: object, _minimum: int) -> Assignment:
        return Assignment(replicas=self.target) if self.under_way else self

    plan = changed((2.0, REASSIGN, "orders-0=4"))
    assert run(plan).ok
    monkeypatch.setattr(Assignment, "settled", at_once)
    assert run(plan).failure == CAUGHT_AS


def test_an_operator_whose_election_took_place_already_is_done() -> None:
    """The answer to the first request was lost, or another leader came back: ELECTION_NOT_NEEDED (seed 30370)."""
    running = Run(changed())

    def ask() -> None:
        running.sim_clients.changes.begin(Fault(at_s=2.0, kind=ELECT, target="orders-0"))

    running.schedule.at(2.0, ask)
    report = running.run()
    assert report.ok, report.render()
    assert report.marks["elect_refused"] == 1
