"""Anomalies of transactions, each by its smallest history; what is right keeps silent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minikafka.check.transactions import ABORTED, COMMITTED, UNSURE, Process, Read, Written, anomalies, committed_rows
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import EndTransaction, marker_batch
from minikafka.wire.records import Record, build_batch, control_batch

ONE, TWO = TopicPartition("ledger", 0), TopicPartition("ledger", 1)


def process(*transactions: Written, name: str = "t1", epoch: int = 0, at_s: float = 0.0) -> Process:
    return Process(name, "t1", initialized_s=at_s, epoch=epoch, transactions=list(transactions))


def written(outcome: str, *values: str, begun_s: float = 1.0, name: str = "t1") -> Written:
    """A transaction with these values in both partitions; its commit is requested a second after it began."""
    places = [(place, value) for value in values for place in (ONE, TWO)]
    return Written(name, begun_s, places, outcome, commit_s=begun_s + 1.0)


def rows(*values: str) -> list[tuple[int, str]]:
    return list(enumerate(values))


def names(
    processes: Sequence[Process], one: list[tuple[int, str]], two: list[tuple[int, str]], *reads: Read
) -> list[str]:
    """What is found in two partitions, the first of which was read."""
    seen = {ONE: list(reads)} if reads else {}
    return [name for name, _ in anomalies(processes, {ONE: one, TWO: two}, seen)]


@pytest.mark.parametrize("outcome", [COMMITTED, UNSURE])
def test_a_transaction_that_is_whole_keeps_silent(outcome: str):
    """Also one of unknown outcome; a read after the commit was requested is no early one."""
    found = names([process(written(outcome, "a"))], rows("a"), rows("a"), Read(0, "a", 2.5))
    assert found == []


@pytest.mark.parametrize("outcome", [ABORTED, UNSURE])
def test_a_transaction_of_which_nothing_is_there_keeps_silent(outcome: str):
    """KIP-98: an abort, or a commit that was never decided, leaves nothing behind."""
    assert names([process(written(outcome, "a"))], [], []) == []


@pytest.mark.parametrize(
    ("outcome", "one", "two", "name"),
    [
        (COMMITTED, ["a"], [], "committed_transaction_lost"),
        (COMMITTED, [], [], "committed_transaction_lost"),
        (UNSURE, ["a"], [], "transaction_torn"),
        (ABORTED, ["a"], ["a"], "aborted_transaction_visible"),
        (ABORTED, ["a"], [], "aborted_transaction_visible"),
        (UNSURE, ["a", "a"], ["a"], "transaction_doubled"),
        (UNSURE, ["a", "b"], ["a"], "committed_from_nowhere"),
    ],
)
def test_effects_that_are_lost_torn_or_doubled(outcome: str, one: list[str], two: list[str], name: str):
    """By what the producer knows of the outcome."""
    assert names([process(written(outcome, "a"))], rows(*one), rows(*two)) == [name]


def test_transactions_of_one_process_stand_in_their_order():
    """The next one begins when the last one has ended, so its records come later in each partition."""
    both = process(written(COMMITTED, "a"), written(COMMITTED, "b", begun_s=5.0))
    assert names([both], rows("b", "a"), rows("a", "b")) == ["transactions_disordered"]


def test_each_transaction_stands_behind_the_one_before_it():
    """The third one began after the second one, and stands between the first one and that."""
    three = [written(COMMITTED, value, begun_s=begun_s) for value, begun_s in (("a", 1.0), ("b", 3.0), ("c", 5.0))]
    assert names([process(*three)], rows("a", "c", "b"), rows("a", "b", "c")) == ["transactions_disordered"]


@pytest.mark.parametrize(("begun_s", "expected"), [(3.0, []), (3.5, ["zombie_committed"]), (5.0, ["zombie_committed"])])
def test_a_zombie_commits_nothing_after_its_successor_was_initialized(begun_s: float, expected: list[str]):
    """KIP-98: InitProducerId aborts what is open. What was requested before may have been committed just before."""
    old = process(written(UNSURE, "a", begun_s=begun_s))
    new = process(name="t1~2", epoch=1, at_s=4.0)
    assert names([old, new], rows("a"), rows("a")) == expected
    old.transactions[0].outcome = COMMITTED
    assert names([old, new], [], []) == ["committed_transaction_lost", *expected]


@pytest.mark.parametrize(
    ("outcome", "held", "reads", "expected"),
    [
        (ABORTED, [], [Read(0, "a", 9.0)], ["aborted_read", "read_committed_differs"]),
        (COMMITTED, ["a"], [Read(0, "a", 1.5)], ["precommitted_read"]),
        (UNSURE, ["a"], [Read(0, "a", 1.5)], ["precommitted_read"]),
        (COMMITTED, ["a"], [Read(0, "a", 2.5), Read(0, "a", 2.6)], ["read_twice", "read_committed_differs"]),
        (
            COMMITTED,
            ["a"],
            [Read(0, "a", 2.5), Read(1, "x", 2.6), Read(0, "a", 2.7)],
            ["read_twice", "read_committed_differs"],
        ),
        (COMMITTED, ["a"], [Read(1, "x", 2.5)], ["read_committed_differs"]),
    ],
)
def test_readers_of_committed_records(outcome: str, held: list[str], reads: list[Read], expected: list[str]):
    """G1a, a read before the commit was requested, a repetition, a record passed over."""
    assert names([process(written(outcome, "a"))], rows(*held), rows(*held), *reads) == expected


def test_a_record_that_a_reader_has_not_returned_by_the_end_differs():
    """All that it returned is right, and the last record is missing."""
    both = process(written(COMMITTED, "a", "b"))
    assert names([both], rows("a", "b"), rows("a", "b"), Read(0, "a", 2.5)) == ["read_committed_differs"]
    assert names([both], rows("a", "b"), rows("a", "b"), Read(0, "a", 2.0), Read(1, "b", 2.0)) == []


def test_committed_rows_are_those_without_a_transaction_and_those_whose_marker_is_a_commit():
    """By markers alone, not by the index of aborted transactions, so that a bug there does not hide itself."""

    def batch(at: int, value: str, producer_id: int = -1) -> RecordBatch:
        epoch, is_open = (0, True) if producer_id >= 0 else (-1, False)
        record = Record(0, 1, value=value.encode())
        data = build_batch(
            [record], producer_id=producer_id, producer_epoch=epoch, transactional=is_open, base_offset=at
        )
        return RecordBatch.of(data)

    def marker(at: int, producer_id: int, *, is_commit: bool) -> RecordBatch:
        end = EndTransaction(producer_id, 0, is_commit, 1)
        return RecordBatch.of(marker_batch(end, timestamp_ms=1, base_offset=at))

    log = [
        batch(0, "a", 7),
        batch(1, "b", 8),
        batch(2, "c"),
        marker(3, 8, is_commit=False),
        batch(4, "d", 8),
        marker(5, 7, is_commit=True),
        batch(6, "e", 7),
        RecordBatch.of(control_batch(2, bytes(8), timestamp_ms=1, base_offset=7)),
        marker(8, 8, is_commit=True),
    ]
    assert list(committed_rows(log)) == [(0, "a"), (2, "c"), (4, "d")]
