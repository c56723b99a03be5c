"""The invariants of transactions: what the batches of a log say, and what a leader must not serve (T3, T8, T9)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.log.partition_log import PartitionLog
from minikafka.sim.replica_view import ReplicaView
from minikafka.sim.run import Run
from minikafka.sim.seeds import transactor_plan_of
from minikafka.sim.transaction_invariants import Ended, Spans, StableOffset
from minikafka.transactions.records import TRANSACTIONS_TOPIC, State, TransactionRecord, TransactionValue, packed
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.markers import EndTransaction, marker_batch
from minikafka.wire.records import Record, build_batch
from tests.sim.test_invariants import Told
from tests.sim.test_transaction_markers import batch

NAME = TopicPartition("ledger", 0)


class Log:
    """Batches that are appended one by one, and what the producer state claims to have open."""

    def __init__(self, *appended: bytes) -> None:
        self.start_offset = self.end_offset = 0
        self.is_closed = False
        self.batches: list[RecordBatch] = []
        self.producers = SimpleNamespace(transactions=SimpleNamespace(open={}))
        self.tail = SimpleNamespace(read=self._read)
        for data in appended:
            self.append(data)

    def append(self, data: bytes) -> None:
        (found,) = split(self.end_offset.to_bytes(8, "big") + data[8:])
        self.batches.append(found)
        self.end_offset = found.next_offset

    def cut(self, end: int) -> None:
        self.batches = [each for each in self.batches if each.next_offset <= end]
        self.end_offset = end

    def _read(self, offset: int, *, end_offset: int, **_: Any) -> Any:
        held = [each.data for each in self.batches if offset < each.next_offset <= end_offset]
        return SimpleNamespace(buffers=held)


def marker(producer_id: int, *, is_commit: bool = True) -> bytes:
    end = EndTransaction(producer_id, 0, is_commit, 1)
    return marker_batch(end, timestamp_ms=1, leader_epoch=3)


def spans(log: Log) -> Spans:
    return Spans(cast("PartitionLog", log))


def test_open_transactions_hold_the_stable_offset():
    """By producer id, from the first batch to the next marker; batches outside transactions hold nothing."""
    log = Log(batch(6, 0, b"plain", transactional=False), batch(7, 0, b"a"), batch(8, 0, b"b"), marker(7))
    found = spans(log)
    found.follow()
    assert found.open == {8: 2}
    assert found.ended == [Ended(1, 7, 3, is_commit=True)]
    assert found.stable_end(4, 4) == 2


def test_a_marker_that_is_not_below_the_watermark_ends_nothing_yet():
    """T8, the note on KAFKA-5121: its transaction could still be undone."""
    found = spans(Log(batch(7, 0, b"a"), marker(7), batch(8, 0, b"b", transactional=False)))
    found.follow()
    assert found.stable_end(1, 1) == 0
    assert found.stable_end(2, 2) == 2
    assert found.stable_end(1, 2) == 1


def test_a_cut_opens_transactions_whose_markers_went():
    """And forgets those that began behind it; the cursor then reads what comes in their place."""
    log = Log(batch(7, 0, b"a"), batch(8, 0, b"b"), marker(7), batch(7, 1, b"c"))
    found = spans(log)
    found.follow()
    found.settle(4)
    log.cut(2)
    found.cut(2)
    assert found.open == {7: 0, 8: 1}
    assert found.ended == []
    log.append(marker(7, is_commit=False))
    assert [each.marker.is_commit for each in found.follow()] == [False]
    assert found.settle(3) == [Ended(0, 7, 2, is_commit=False)]


def test_a_transaction_that_a_cut_leaves_ended_is_settled_once_its_marker_is_committed():
    """The cut removes what stands behind the marker, which is not below the watermark yet."""
    log = Log(batch(7, 0, b"a"), marker(7), batch(8, 0, b"b"), marker(8), batch(6, 0, b"p", transactional=False))
    found = spans(log)
    found.follow()
    assert found.settle(2) == [Ended(0, 7, 1, is_commit=True)]
    log.cut(4)
    found.cut(4)
    assert found.settle(4) == [Ended(2, 8, 3, is_commit=True)]


def look(at: StableOffset, log: Log, *, watermark: int, stable: int, epoch: int = 3, me: int = 1) -> list[str]:
    """What is reported of a leader with this log that serves ``stable``."""
    told = Told()
    leader = SimpleNamespace(log=log, epoch=epoch, high_watermark=watermark, last_stable_offset=stable)
    partition = SimpleNamespace(log=log, me=me, high_watermark=watermark)
    view = SimpleNamespace(
        name=NAME,
        life=f"n{me}#1",
        key=(NAME, "id"),
        events=[],
        kinds=frozenset(),
        unclean=(),
        partition=partition,
        leader=leader,
    )
    at.look(cast("ReplicaView", view), told)
    return told.names


def invariant(*decided: tuple[int, int, bool]) -> StableOffset:
    found = StableOffset(lambda: ())
    found.decisions._known.update(decided)
    return found


@pytest.mark.parametrize("stable", [0, 2, 3])
def test_a_stable_offset_that_is_not_the_logs_is_reported(stable: int):
    """Behind the open transaction, and before it: readers would wait for nothing."""
    log = Log(batch(6, 0, b"plain", transactional=False), batch(7, 0, b"a"), batch(6, 1, b"p", transactional=False))
    log.producers.transactions.open = {1: 7}
    assert look(invariant(), log, watermark=3, stable=1) == []
    assert look(invariant(), log, watermark=3, stable=stable) == ["last_stable_offset"]


def test_producer_state_that_forgot_an_open_transaction_is_reported():
    """Even while the watermark hides it."""
    assert look(invariant(), Log(batch(7, 0, b"a")), watermark=0, stable=0) == ["open_transactions_differ"]


def test_producer_state_with_a_transaction_that_the_log_has_ended_is_reported():
    """It would hold the last stable offset for good."""
    log = Log(batch(7, 0, b"a"), marker(7))
    log.producers.transactions.open = {0: 7}
    assert look(invariant((7, 0, True)), log, watermark=2, stable=2) == ["open_transactions_differ"]


def test_a_stable_offset_that_falls_is_reported():
    """T9: within an epoch; a successor may know an older watermark."""
    log = Log(batch(6, 0, b"plain", transactional=False))
    at = invariant()
    assert look(at, log, watermark=1, stable=1) == []
    assert look(at, log, watermark=0, stable=0, epoch=4, me=2) == []
    assert look(at, log, watermark=0, stable=0) == ["stable_offset_fell"]


def test_another_outcome_under_a_later_leader_is_reported():
    """T9: readers have seen the first one."""
    at = invariant((7, 0, True), (7, 0, False))
    assert look(at, Log(batch(7, 0, b"a"), marker(7)), watermark=2, stable=2) == []
    aborted = Log(batch(7, 0, b"a"), marker(7, is_commit=False))
    assert look(at, aborted, watermark=2, stable=2, epoch=4, me=2) == ["stable_outcome_changed"]
    other = invariant((7, 0, True), (7, 0, False))
    assert look(other, aborted, watermark=2, stable=2) == []
    committed = Log(batch(7, 0, b"a"), marker(7))
    assert look(other, committed, watermark=2, stable=2, epoch=4, me=2) == ["stable_outcome_changed"]


def test_a_transaction_open_below_what_was_served_is_reported_of_later_leaders_only():
    """A former leader that does not know of its successor may still have it open (seed 54)."""
    at = invariant((7, 0, True))
    assert look(at, Log(batch(7, 0, b"a"), marker(7)), watermark=2, stable=2, epoch=4) == []
    still = Log(batch(7, 0, b"a"))
    still.producers.transactions.open = {0: 7}
    assert look(at, still, watermark=1, stable=0, me=2, epoch=3) == []
    assert look(at, still, watermark=1, stable=0, me=3, epoch=5) == ["stable_outcome_changed"]


def decision(at: StableOffset, state: State, *, is_committed: bool) -> None:
    """A record of the coordinator's log, below its watermark or not."""
    key, value = packed(
        TransactionRecord(
            transactional_id="t",
            value=TransactionValue(producer_id=7, producer_epoch=0, timeout_ms=1000, state=state),
        )
    )
    log = Log(build_batch([Record(0, 1, key=key, value=value)]))
    leader = SimpleNamespace(log=log, epoch=0, high_watermark=int(is_committed))
    name = TopicPartition(TRANSACTIONS_TOPIC, 0)
    at.decisions.look(
        cast("ReplicaView", SimpleNamespace(name=name, life="n9#1", key=(name, "id"), leader=leader)), Told()
    )


@pytest.mark.parametrize(
    ("state", "is_committed", "expected"),
    [
        (State.PREPARE_COMMIT, True, []),
        (State.PREPARE_COMMIT, False, ["marker_without_decision"]),
        (State.PREPARE_ABORT, True, ["marker_without_decision"]),
        (State.ONGOING, True, ["marker_without_decision"]),
    ],
)
def test_a_marker_needs_a_committed_decision_of_its_kind(state: State, is_committed: bool, expected: list[str]):
    """T3: not before the record is below the watermark, and not of another kind."""
    at = invariant()
    decision(at, state, is_committed=is_committed)
    assert look(at, Log(batch(7, 0, b"a"), marker(7)), watermark=2, stable=2) == expected


def test_plans_show_the_invariants_markers_and_open_transactions(monkeypatch: pytest.MonkeyPatch):
    """Without this, invariants that are not asked would pass."""
    held, markers = [], []
    stable, marked = StableOffset._look_at_stable, type(invariant().decisions).look_at_marker

    def noted(self: StableOffset, view: Any, spans: Spans, *rest: Any) -> None:
        held.extend(spans.open)
        stable(self, view, spans, *rest)

    def counted(self: Any, view: Any, found: Any, report: Any) -> None:
        markers.append(found)
        marked(self, view, found, report)

    monkeypatch.setattr(StableOffset, "_look_at_stable", noted)
    monkeypatch.setattr(type(invariant().decisions), "look_at_marker", counted)
    assert Run(transactor_plan_of(3)).run().ok
    assert held
    assert len(markers) > 2
