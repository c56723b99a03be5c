"""Clients of Kafka's protocol in whole simulated clusters: the same history, judge and invariants as others (issue 14)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from minikafka.broker.kafka_pipeline import Pipeline
from minikafka.sim.kafka_plans import READER
from minikafka.sim.plan import Fault, Operation, Plan
from minikafka.sim.plan_features import (
    PLAN_FEATURES,
    departing_broker,
    elr_power_cut,
    heartbeat_group,
    kafka_clients,
    loops,
    pipelined_batches,
    refused_connections,
    transactors,
)
from minikafka.sim.run import Run
from minikafka.sim.search import QUICK, QUICK_CLIENT
from minikafka.sim.seeds import plan_of


def quick(kafka: dict[str, dict[str, int | str]], *faults: Fault, senders: tuple[str, ...] = ("k1",)) -> Plan:
    """Sixty records in bursts of four, with settings of seconds, and these faults."""
    operations = tuple(
        Operation(at_s=round(burst * 0.4 + number * 0.001, 3), client=client, topic="orders", partition=0)
        for burst in range(15)
        for number in range(4)
        for client in senders
    )
    return Plan(
        seed=5,
        settings={**QUICK, "min.insync.replicas": "2", "log.segment.bytes": "300"},
        client_settings=QUICK_CLIENT,
        operations=operations,
        faults=faults,
        duration_s=7.0,
        kafka=kafka,
    )


def played(plan: Plan) -> Run:
    run = Run(plan)
    report = run.run()
    assert report.ok, report.render()
    return run


@pytest.mark.parametrize("produce", [3, 9, 13])
def test_an_idempotent_producer_survives_its_leader_and_resets(produce: int) -> None:
    """Several requests in flight; the leader dies, and connections break with answers lost: each record stands once."""
    faults = (
        Fault(at_s=0.5, kind="resetting_link", target="client:k1>all", lasts_s=3.0, value=0.2),
        Fault(at_s=0.5, kind="resetting_link", target="all>client:k1", lasts_s=3.0, value=0.2),
        Fault(at_s=2.0, kind="crash", target="leader:orders-0", lasts_s=1.0),
    )
    run = played(quick({"k1": {"acks": -1, "in_flight": 5, "produce": produce}}, *faults))
    assert run.report.outcomes["ok"] == 60
    assert run.sim.marks["kafka_connection_lost"] > 2
    answered = Counter(e.facts["error"] for e in run.sim.journal if e.kind == "kafka_produce_answered")
    assert answered["NETWORK_EXCEPTION"] > 0


def test_a_producer_without_answers_finds_the_new_leader() -> None:
    """acks=0: only the closed connection tells the client that its leader is another one."""
    fault = Fault(at_s=1.0, kind="pause", target="leader:orders-0", lasts_s=4.0)
    run = played(quick({"k1": {"acks": 0, "in_flight": 5, "produce": 9}}, fault))
    assert run.report.outcomes["unknown"] >= 60
    assert run.sim.marks["kafka_acks_0_closed"] > 0


def test_a_producer_without_an_id_waits_before_it_connects_again() -> None:
    """Once for each retry.backoff.ms, though each lost connection wakes it: runs took twice as long otherwise."""
    fault = Fault(at_s=0.0, kind="resetting_link", target="client:k1>all", lasts_s=3.0, value=1.0)
    run = played(quick({"k1": {"acks": -1, "in_flight": 5, "produce": 9}}, fault))
    connected = [each for each in run.sim.journal if each.kind == "kafka_connected" and each.node == "k1"]
    assert 3 < len(connected) <= 3.0 / (int(QUICK_CLIENT["retry_backoff_ms"]) / 1000) + 10


@pytest.mark.parametrize("fetch", [4, 12, 17])
def test_a_reader_reads_everything_once_across_an_election(fetch: int) -> None:
    """Fetch sessions, leader epochs, and topic ids from version 13 on."""
    kafka: dict[str, dict[str, int | str]] = {
        "k1": {"acks": -1, "in_flight": 5, "produce": 9},
        READER: {"reads": 1, "fetch": fetch},
    }
    fault = Fault(at_s=2.0, kind="crash", target="leader:orders-0", lasts_s=1.0)
    run = played(quick(kafka, fault, Fault(at_s=4.0, kind="kill_reader", target=READER, lasts_s=0.2)))
    reader = next(each for each in run.sim_clients.readers if each.machine == READER)
    assert max(reader.positions.values()) == 60


def test_half_open_connections_of_one_client_alone() -> None:
    """A cut of ``client:k1`` is none of ``client:k2``; behind it every record of k1 has an outcome as well."""
    kafka: dict[str, dict[str, int | str]] = {name: {"acks": -1, "in_flight": 5, "produce": 9} for name in ("k1", "k2")}
    fault = Fault(at_s=1.0, kind="cut_both", target="client:k1>all", lasts_s=4.0)
    run = played(quick(kafka, fault, senders=("k1", "k2")))
    times: dict[str, list[float]] = {"k1": [], "k2": []}
    for event in run.sim.journal:
        if event.kind == "kafka_produce_answered" and event.facts["error"] == "":
            times[event.node].append(event.time)
    gaps = {name: max(b - a for a, b in pairwise(each)) for name, each in times.items()}
    assert gaps["k1"] > 3.0
    assert gaps["k2"] < 2.0


def test_answers_out_of_order_are_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client compares correlation ids; it does not sort what came."""

    def next_at_once(self: Pipeline) -> object:
        if self._started == len(self._pending):
            return None
        self._started += 1
        return self._pending[self._started - 1]

    def last_first(self: Pipeline) -> list[object]:
        done = [each for each in self._pending if each.is_done]
        for each in done:
            self._pending.remove(each)
            self._started -= 1
        return [each.answer for each in reversed(done)]

    monkeypatch.setattr(Pipeline, "next", next_at_once)
    monkeypatch.setattr(Pipeline, "answered", last_first)
    report = Run(quick({"k1": {"acks": -1, "in_flight": 5, "produce": 9}})).run()
    assert report.failure == "answers_out_of_order"


def test_what_else_a_seed_draws_stays_as_it_was() -> None:
    """Kafka clients are added; no other record, fault or setting moves."""
    drawn = 0
    for seed in range(30):
        plan = plan_of(seed)
        assert Plan.from_json(plan.to_json()) == plan
        if not plan.kafka:
            continue
        drawn += 1
        assert {each.client for each in plan.operations} >= {name for name in plan.kafka if name != READER} - {"k2"}
    assert 3 <= drawn <= 15
    adds = [add for _, add in PLAN_FEATURES]
    # Two change settings only, the others add topics, clients and faults of their own; the last one adds brokers.
    assert adds[adds.index(kafka_clients) + 1 :] == [
        refused_connections,
        transactors,
        loops,
        heartbeat_group,
        pipelined_batches,
        departing_broker,
        elr_power_cut,
    ]
    plain = plan_of(3, operations=20, faults=3, kinds=("crash",))
    added = kafka_clients(plain, Random(1))
    others = tuple(each for each in added.operations if each.client not in added.kafka)
    assert others == plain.operations
    assert [each for each in added.faults if "k1" not in each.target and "k2" not in each.target] == list(plain.faults)
    assert added.with_(kafka={}, operations=plain.operations, faults=plain.faults) == plain
