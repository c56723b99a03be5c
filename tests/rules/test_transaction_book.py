"""The book on committed transactions: each of its findings, and what is none (T1, T2, T4 to T6, T15, T16, T22)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.sim.transaction_book import TransactionBook
from minikafka.transactions.records import State, TransactionValue
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import EndTransaction, marker_batch
from minikafka.wire.records import Record, build_batch

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
EMPTY = TransactionValue(producer_id=7, producer_epoch=0, timeout_ms=1000, state=State.EMPTY)
ONGOING = replace(EMPTY, state=State.ONGOING, partitions=frozenset({P0}))
PREPARED = replace(ONGOING, state=State.PREPARE_COMMIT, producer_epoch=1)
COMPLETE = replace(PREPARED, state=State.COMPLETE_COMMIT, partitions=frozenset())


class Desk:
    """A book and what it has reported."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.gone: set[TopicPartition] = set()
        self.book = TransactionBook(lambda name, _: self.found.append(name), exists=lambda each: each not in self.gone)

    def records(self, *values: TransactionValue | None) -> list[str]:
        for each in values:
            self.book.recorded("a", each)
        return self.found

    def data(self, epoch: int, sequence: int, name: TopicPartition = P0, *, has_all: bool = True) -> None:
        built = build_batch(
            [Record(0, 1, value=b"v")],
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        self.book.batch_committed(name, RecordBatch.of(bytes(built)), has_all=has_all)

    def marker(self, epoch: int, *, commits: bool = True, coordinator_epoch: int = 3) -> None:
        end = EndTransaction(7, epoch, commits, coordinator_epoch)
        self.book.batch_committed(P0, RecordBatch.of(marker_batch(end, timestamp_ms=1)))


@pytest.fixture
def desk() -> Desk:
    """Nothing is known."""
    return Desk()


def test_two_transactions_with_their_markers_are_no_finding(desk: Desk):
    """Version 2: each end raises the epoch, and the next transaction's sequences begin at 0."""
    for epoch in (0, 1):
        raised = [replace(each, producer_epoch=each.producer_epoch + epoch) for each in (ONGOING, PREPARED, COMPLETE)]
        desk.records(*([EMPTY] if epoch == 0 else []), raised[0])
        desk.data(epoch, 0)
        desk.data(epoch, 1)
        desk.records(raised[1])
        desk.marker(epoch + 1)
        desk.marker(epoch + 1)
        desk.records(raised[2])
    desk.records(None)
    assert desk.found == []


@pytest.mark.parametrize(
    "values",
    [
        (EMPTY, PREPARED),
        (EMPTY, ONGOING, COMPLETE),
        (EMPTY, ONGOING, PREPARED, replace(PREPARED, state=State.PREPARE_ABORT)),
        (EMPTY, ONGOING, EMPTY),
        (EMPTY, ONGOING, None),
        (EMPTY, ONGOING, replace(ONGOING, partitions=frozenset({P1}))),
        (EMPTY, ONGOING, replace(PREPARED, partitions=frozenset({P0, P1}))),
        (EMPTY, ONGOING, replace(PREPARED, timeout_ms=5)),
        (ONGOING,),
    ],
    ids=["no begin", "no decision", "two decisions", "begun anew", "forgotten", "lost", "other", "timeout", "no id"],
)
def test_a_record_that_does_not_follow_the_one_before_it_is_a_finding(desk: Desk, values):
    """T1, T2, T22."""
    assert desk.records(*values) == ["transaction_state_illegal"]


def test_epochs_rise_and_producer_ids_never_come_back(desk: Desk):
    """T1: the next id begins at epoch 0."""
    rotated = replace(EMPTY, producer_id=8)
    assert desk.records(EMPTY, rotated, replace(rotated, producer_epoch=2)) == []
    assert desk.records(replace(rotated, producer_epoch=1)) == ["transaction_epoch_fell"]
    assert desk.records(EMPTY) == ["transaction_epoch_fell"] * 2


def test_a_complete_record_needs_every_marker(desk: Desk):
    """T6: of its own kind and epoch, unless the topic was deleted."""
    both = frozenset({P0, P1})
    desk.records(EMPTY, replace(ONGOING, partitions=both), replace(PREPARED, partitions=both))
    desk.marker(1, commits=False)
    desk.gone.add(P1)
    assert desk.records(COMPLETE) == ["complete_without_markers"]


def test_a_marker_ends_the_transaction_of_its_own_epoch(desk: Desk):
    """T4, T5: the data's epoch, or the one above it."""
    desk.data(0, 0)
    desk.marker(2)
    assert desk.found == ["marker_of_another_transaction"]
    desk.data(2, 0)
    desk.data(3, 0)
    assert desk.found == ["marker_of_another_transaction"] * 2


def test_epochs_and_sequences_of_a_producer_in_a_partition(desk: Desk):
    """T15; gaps are looked for only where nothing was cleaned."""
    desk.data(1, 0)
    desk.data(1, 2, has_all=False)
    desk.data(1, 1)
    assert desk.found == []
    desk.data(1, 5)
    assert desk.found == ["sequence_gap"]
    desk.marker(2)
    desk.data(2, 6)
    assert desk.found == ["sequence_gap"] * 2
    desk.marker(1)
    assert "producer_epoch_fell" in desk.found


def test_coordinator_epochs_of_markers_never_fall(desk: Desk):
    """T16."""
    desk.marker(1, coordinator_epoch=4)
    desk.marker(1, coordinator_epoch=4)
    assert desk.found == []
    desk.marker(1, coordinator_epoch=3)
    assert desk.found == ["coordinator_epoch_fell"]
