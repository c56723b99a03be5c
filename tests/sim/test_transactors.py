"""Transactional producers of plans: they commit and abort under faults, and the verdict names what goes wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from minikafka.check.transactions import ABORTED, UNSURE, Process, committed_rows
from minikafka.errors import ProducerFenced
from minikafka.sim import transactors
from minikafka.sim.plan import Plan
from minikafka.sim.replica_view import ReplicaView
from minikafka.sim.run import run
from minikafka.sim.seeds import (
    long_transaction_plan_of,
    loop_plan_of,
    plan_of,
    transaction_message_plan_of,
    transactor_plan_of,
)
from minikafka.sim.transaction_invariants import Spans, StableOffset
from minikafka.sim.transactor import RefusedCopies, Transactor
from minikafka.sim.transactor_plans import LEDGER, TRANSACTION_MESSAGES, TRANSACTOR_FAULTS
from minikafka.sim.verdicts import Deliver, Drop, matching
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.markers import EndTransaction, marker_batch
from tests.sim.cluster_kit import Client, simulated
from tests.sim.test_transaction_markers import batch


@pytest.mark.parametrize(
    ("family", "seed"),
    [(transactor_plan_of, 3), (transactor_plan_of, 7), (long_transaction_plan_of, 3), (transaction_message_plan_of, 3)],
)
def test_plans_of_the_families_commit_and_abort(family: Callable[[int], Plan], seed: int):
    """Without this a plan whose producers never begin would pass."""
    report = run(family(seed))
    assert report.ok, report
    assert report.marks["transaction_committed"] > 2
    assert report.marks["transaction_aborted"] > 0


def test_long_transactions_stay_open_across_elections(monkeypatch: pytest.MonkeyPatch):
    """The plans in which a new leader must hold the last stable offset for its predecessor."""
    held: set[tuple[str, int]] = set()
    look = StableOffset._look_at_stable

    def noted(self: StableOffset, view: ReplicaView, spans: Spans, *rest: Any) -> None:
        leader = view.leader
        held.update((str(view.name), first) for first in spans.open.values() if leader and first < leader.epoch_start)
        look(self, view, spans, *rest)

    monkeypatch.setattr(StableOffset, "_look_at_stable", noted)
    assert run(long_transaction_plan_of(1)).ok
    assert held


def test_loops_transform_every_input_once(monkeypatch: pytest.MonkeyPatch):
    """Issue 17: read, transform and write in one transaction, while members die and rebalance."""
    judged: list[int] = []
    judge = transactors.loop_anomalies

    def counted(processes: Sequence[Process], *rest: Any) -> Any:
        judged.append(sum(bool(each.inputs) for process in processes for each in process.transactions))
        return judge(processes, *rest)

    monkeypatch.setattr(transactors, "loop_anomalies", counted)
    report = run(loop_plan_of(1))
    assert report.ok, report
    assert len(judged) == 1
    assert judged[0] > 5


def test_loops_meet_the_faults_of_their_coordinators():
    """Members that die, sleep or have twins, and both coordinators."""
    plans = [loop_plan_of(seed) for seed in range(40)]
    targets = {fault.target for plan in plans for fault in plan.faults}
    assert {"leader:__consumer_offsets-0", "leader:__transaction_state-0", "leader:outputs-0", "x1", "x2"} <= targets
    assert all(Plan.from_json(plan.to_json()) == plan for plan in plans)


def test_struck_messages_are_those_of_transactions():
    """Markers above all: between brokers; what producers request comes from clients."""
    struck = [fault for seed in range(40) for fault in transaction_message_plan_of(seed).faults if fault.message]
    assert {fault.message.split()[0] for fault in struck} == {api for api, _ in TRANSACTION_MESSAGES}
    assert all("client" not in fault.target for fault in struck if fault.message.startswith("WriteTxnMarkers"))
    assert all("client" in fault.target for fault in struck if fault.message.startswith("EndTxn"))


@pytest.mark.parametrize(
    ("fate", "outcome"),
    [
        pytest.param(Deliver(0.0, again_after_s=2.0), UNSURE, id="a copy was fenced, the other one has committed"),
        pytest.param(Deliver(2.0), ABORTED, id="the only one was fenced"),
    ],
)
def test_a_fenced_copy_of_a_commit_proves_nothing(fate: Deliver, outcome: str):
    """What a link doubles is excused; the word on a commit that arrived once is believed."""
    is_doubled = fate.again_after_s is not None
    with simulated(transaction_state_log_num_partitions="1", offsets_topic_num_partitions="1") as cluster:
        cluster.create_topic(LEDGER)
        cluster.settle()
        network = cluster.sim.network
        copies, plan = RefusedCopies(network), Plan(seed=1, transactors={"t1": {}})
        network.answered.append(copies.on_answered)
        network.rule(matching(fate, api="EndTxn", kind="request", source="t1", count=1))
        if is_doubled:
            network.rule(matching(Drop(), api="EndTxn", kind="answer", count=1))
        names = {"machine": "t1", "process": "t1", "transactional_id": "t1"}
        process = Transactor(plan, cluster, [TopicPartition(LEDGER, 0)], copies=copies, **names)
        begun = process.known.transactions
        cluster.until(lambda: any(each.commit_s < math.inf for each in begun), 10.0, "its first commit")
        cluster.run_for(0.5)
        Client(cluster, "z", transactional_id="t1")
        cluster.until(lambda: process.has_ended, 10.0, "its end")
    (written,) = begun
    assert isinstance(process.died_of, ProducerFenced)
    assert written.outcome == outcome


def test_some_seeds_have_transactional_producers_and_their_faults():
    """They are drawn by ``sim run`` by default."""
    plans = [plan_of(seed) for seed in range(200)]
    share = sum(bool(plan.transactors) for plan in plans) / len(plans)
    assert 0.05 < share < 0.3
    kinds = Counter(fault.kind for plan in plans for fault in plan.faults)
    assert all(kinds[kind] for kind in TRANSACTOR_FAULTS)
    assert 0.01 < sum(bool(plan.loops) for plan in plans) / len(plans) < 0.15
    assert all(any(topic.name == LEDGER for topic in plan.topics) == bool(plan.transactors) for plan in plans)


def at(offset: int, data: bytes) -> RecordBatch:
    (found,) = split(offset.to_bytes(8, "big") + data[8:])
    return found


def test_committed_rows_are_those_whose_next_marker_commits():
    """By producer id, in the order of offsets; open transactions and aborted ones are left out."""

    def marker(producer_id: int, *, is_commit: bool) -> bytes:
        return marker_batch(EndTransaction(producer_id, 0, is_commit, 1), timestamp_ms=1)

    log = [
        at(0, batch(7, 0, b"a")),
        at(1, batch(8, 0, b"b")),
        at(2, marker(8, is_commit=True)),
        at(3, batch(8, 1, b"c")),
        at(4, marker(7, is_commit=True)),
        at(5, marker(8, is_commit=False)),
        at(6, batch(9, 0, b"open")),
        at(7, batch(7, 1, b"d")),
        at(8, batch(7, 2, b"e")),
        at(9, marker(7, is_commit=True)),
    ]
    assert list(committed_rows(log)) == [(0, "a"), (1, "b"), (7, "d"), (8, "e")]
