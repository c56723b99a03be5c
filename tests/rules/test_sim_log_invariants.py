"""What the simulator asks of every log by itself, and that it can fail (KAFKA-FACTS 10.7, 10.14)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.log.epochs import EpochCache
from minikafka.log.partition_log import PartitionLog
from minikafka.sim import log_invariants
from minikafka.sim.log_invariants import LogInOrder, broken_sequence, disorder, stored_batches
from minikafka.sim.replica_view import ReplicaView
from minikafka.sim.world import Event
from minikafka.wire.batch import RecordBatch
from tests.rules.log_words import ORDERS, TIME, fill, from_producer, open_log
from tests.rules.memory_disk import MemoryDisk


def log_of(*epochs: int) -> PartitionLog:
    """A record in each of these epochs."""
    log = open_log(MemoryDisk())
    for epoch in epochs:
        fill(log, "v", epoch=epoch)
    return log


def made_of(monkeypatch: pytest.MonkeyPatch, batches: list[RecordBatch]) -> None:
    """Whatever log is looked at, this is what it holds."""
    monkeypatch.setattr(log_invariants, "stored_batches", lambda *_: batches)


def test_a_log_knows_the_epochs_of_its_batches_and_at_most_one_that_has_none_yet() -> None:
    """S21: a wrong start makes a follower keep what nobody acknowledged, or cut what was."""
    log = log_of(0, 0, 2, 2, 3)
    assert disorder(log) == ""
    for entries, is_right in (
        ([(0, 0), (2, 2), (3, 4), (5, 5)], True),  # it leads in 5 and has written nothing
        ([(0, 0), (2, 1), (3, 4)], False),
        ([(0, 0), (2, 2)], False),
        ([(0, 0), (1, 1), (2, 2), (3, 4)], False),
        ([(0, 0), (2, 2), (3, 4), (5, 9)], False),
    ):
        log.epochs = EpochCache(entries)
        assert bool(disorder(log)) != is_right, entries


def test_of_a_log_with_gaps_the_first_epoch_may_have_lost_its_beginning() -> None:
    """Retention and compaction: offsets are left out, and the later epochs begin where they began."""
    log = log_of(0, 0, 2, 3)
    rest = stored_batches(log, 1, 4)
    with pytest.MonkeyPatch.context() as patch:
        made_of(patch, rest)
        assert disorder(log), "nothing was compacted here"
        log.has_gaps = True
        assert disorder(log) == ""
        log.epochs = EpochCache([(0, 0), (2, 3), (3, 4)])
        assert disorder(log)


def test_batches_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole, a step back, an epoch that falls."""
    log = log_of(0, 1, 1)
    first, second, third = stored_batches(log, 0, 3)
    for batches, told in (
        ([first, third], "stands behind"),
        ([second, first, third], "stands behind"),
        ([first, second, third._replace(leader_epoch=0)], "is lower than"),
    ):
        made_of(monkeypatch, batches)
        assert told in disorder(log)


def test_the_sequences_of_a_producer_have_no_gap_and_no_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per producer and epoch; a new epoch begins at 0, and an old one does not come back (KIP-98)."""
    log = open_log(MemoryDisk())
    for producer, epoch, sequence, *values in ((7, 0, 3, "a", "b"), (8, 0, 0, "x"), (7, 0, 5, "c"), (7, 1, 0, "d")):
        log.append_as_leader(from_producer(producer, sequence, *values, epoch=epoch), leader_epoch=0, wall_ms=TIME)
    assert broken_sequence(log) == ""
    one, other, two, three = stored_batches(log, 0, 9)
    for batches, told in (
        ([one, two, two], "does not follow"),
        ([one, other, two._replace(base_sequence=6)], "does not follow"),
        ([one, three._replace(base_sequence=1)], "does not follow"),
        ([three, one], "older epoch"),
    ):
        made_of(monkeypatch, batches)
        assert told in broken_sequence(log)


def test_a_log_is_looked_at_when_it_was_cut_or_got_a_leader() -> None:
    """Not at each append: that would read whole logs at each step."""
    log, told = log_of(0, 1), list[str]()
    log.epochs = EpochCache([(0, 0)])
    partition: Any = SimpleNamespace(partition=ORDERS, topic_id="T", role=None, log=log)
    for kind in ("hw_advanced", "tail_truncated"):
        event = Event(0.0, "n1", 1, kind, {}, "")
        view = ReplicaView({}, None, partition, [event])
        if LogInOrder.looks_at(frozenset({kind})):
            LogInOrder().look(view, lambda name, _what: told.append(name))
    assert told == ["log_in_order"]
