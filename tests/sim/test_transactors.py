"""Transactional producers of plans: they commit and abort under faults, and the verdict names what goes wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from minikafka.sim.run import run
from minikafka.sim.seeds import plan_of, transactor_plan_of
from minikafka.sim.transactor_plans import LEDGER, TRANSACTOR_FAULTS
from minikafka.sim.transactors import committed_rows
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.markers import EndTransaction, marker_batch
from tests.sim.test_transaction_markers import batch


@pytest.mark.parametrize("seed", [3, 7])
def test_plans_of_the_family_commit_and_abort(seed: int):
    """Without this a plan whose producers never begin would pass."""
    report = run(transactor_plan_of(seed))
    assert report.ok, report
    assert report.marks["transaction_committed"] > 2
    assert report.marks["transaction_aborted"] > 0


def test_some_seeds_have_transactional_producers_and_their_faults():
    """They are drawn by ``sim run`` by default."""
    plans = [plan_of(seed) for seed in range(200)]
    share = sum(bool(plan.transactors) for plan in plans) / len(plans)
    assert 0.05 < share < 0.3
    kinds = Counter(fault.kind for plan in plans for fault in plan.faults)
    assert all(kinds[kind] for kind in TRANSACTOR_FAULTS)
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
    ]
    assert list(committed_rows(log)) == [(0, "a"), (1, "b")]
