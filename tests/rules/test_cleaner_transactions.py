"""Compaction of logs with transactions (KIP-98, KIP-534, KAFKA-8351, KAFKA-8522, KAFKA-13727)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from minikafka.config import LONG_MAX
from minikafka.log.compaction import MAP_ENTRY_SIZE
from minikafka.wire.batch import split
from minikafka.wire.markers import EndTransaction, marker_of
from minikafka.wire.rewrite import delete_horizon
from tests.rules.cleaned_histories import (
    COMPACT,
    COORDINATOR_EPOCH,
    CleanedLog,
    Pairs,
    comparable,
    latest,
    visible,
)
from tests.rules.log_words import TIME, everything, on_disk, open_log
from tests.rules.memory_disk import MemoryDisk, run
from tests.rules.test_cleaner import CrashingDisk, PowerLost

MARKER_SIZE = 78
"""Bytes of a marker's batch."""

STEPS = 100
WEIGHTS = {
    "plain": 4,
    "send": 10,
    "end": 8,
    "clean": 5,
    "roll": 2,
    "cut": 1,
    "expire": 1,
    "restart": 2,
}


@pytest.mark.parametrize("seed", range(60))
def test_readers_and_replicas_cannot_tell_that_a_log_with_transactions_was_compacted(seed: int):
    """Interleaved transactions, cleaned with small maps, cut, restarted and copied: the last committed value of each
    key, the last stable offset and what is known of producers are those of the log that was never cleaned.
    """
    walk(Random(seed))


def walk(random: Random) -> CleanedLog:
    """Play a history; it is checked after each step that may reveal something."""
    history = CleanedLog()
    values = itertools.count()
    for kind in random.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=STEPS):
        step(history, kind, random, values)
        if kind in ("clean", "cut", "restart"):
            history.check()
    history.roll()
    history.commit()
    history.clean()
    history.check()
    return history


def step(history: CleanedLog, kind: str, random: Random, values: Iterator[int]) -> None:
    match kind:
        case "plain":
            history.plain(drawn_pairs(random, values))
        case "send":
            history.send(random.randint(1, 3), drawn_pairs(random, values), random.choice(["none", "lz4"]))
        case "end":
            history.end(random.randint(1, 3), commit=random.random() < 0.5)
        case "clean":
            history.roll()
            history.commit(random.choice([0, 0, 0, 1, 3]))
            entries = random.choice([1, 2, 1000, 1000])
            history.clean(wait_ms=random.choice([0, 500, 2000]), memory_bytes=entries * MAP_ENTRY_SIZE)
        case "roll":
            history.roll(new_epoch=random.random() < 0.5)
        case "cut":
            history.cut(history.log.end_offset - random.randint(1, 4))
        case "expire":
            history.expire()
        case _:
            end = history.log.end_offset
            history.restart(clean=random.random() < 0.5, recovery_point=random.choice([end, random.randint(0, end)]))


def drawn_pairs(random: Random, values: Iterator[int]) -> Pairs:
    """One to three records with few keys; some are tombstones."""
    return [
        (random.choice("abc"), None if random.random() < 0.2 else f"{next(values)}" + "v" * random.choice([0, 20, 60]))
        for _ in range(random.randint(1, 3))
    ]


# ---- one rule each ---------------------------------------------------------------------------------------------------

LARGER = replace(COMPACT, segment_bytes=700)
BIG = "v" * 350
"""Two of them do not fit into one segment of those."""


def rounds(history: CleanedLog, count: int, *, wait_ms: int = 0) -> None:
    """Rounds of cleaning; before each something is written, so that the log is dirty."""
    for _ in range(count):
        history.plain([("round", "x")])
        history.roll()
        history.commit()
        history.clean(wait_ms=wait_ms)


def begun() -> CleanedLog:
    """Its first batch, which stays because it begins a leader epoch, belongs to no transaction."""
    history = CleanedLog()
    history.plain([("first", "x")])
    return history


def offsets(history: CleanedLog) -> list[int]:
    """Base offsets of the batches that are there, those with records."""
    return [batch.base_offset for batch in split(everything(on_disk(history.log))) if batch.record_count]


def entries(history: CleanedLog) -> list[tuple[int, ...]]:
    return [tuple(each) for segment in history.log._store.segments for each in segment.transactions.entries]


def test_aborted_records_go_and_replace_nothing():
    """Whatever their keys; the committed value that they stood in front of stays."""
    history = CleanedLog()
    history.plain([("a", "committed")])
    history.send(1, [("a", "aborted"), ("only here", "aborted")])
    history.end(1, commit=False)
    rounds(history, 1)
    assert visible(history.log, history.log.end_offset, committed=False) == {0: ("a", "committed"), 4: ("round", "x")}
    history.check()


def test_committed_records_are_compacted_like_any_other():
    """A transaction's record goes when a later one has its key; its tombstones go after their time."""
    history = CleanedLog()
    history.send(1, [("a", "1"), ("b", "1"), ("c", None)])
    history.end(1, commit=True)
    history.plain([("a", "2")])
    rounds(history, 1)
    assert visible(history.log, 5) == {1: ("b", "1"), 2: ("c", None), 4: ("a", "2")}
    rounds(history, 1, wait_ms=2000)
    assert visible(history.log, 5) == {1: ("b", "1"), 4: ("a", "2")}
    history.check()


def test_nothing_at_or_above_the_last_stable_offset_is_cleaned():
    """An open transaction keeps its records and all behind them dirty, whoever wrote those; its end frees them."""
    for commit in (True, False):
        history = CleanedLog()
        history.plain([("a", "1")])
        history.roll()
        history.send(1, [("a", "2")])
        history.plain([("b", "1"), ("b", "2")])
        rounds(history, 1)
        assert (history.log.clean_end, offsets(history)) == (1, [0, 1, 2, 4])
        history.end(1, commit=commit)
        rounds(history, 1)
        assert history.log.clean_end == 7
        assert visible(history.log, 6) == ({1: ("a", "2")} if commit else {0: ("a", "1")}) | {3: ("b", "2")}


def test_a_marker_stays_for_its_data_and_then_for_delete_retention():
    """KIP-534: not in the round in which its data goes (KAFKA-8522); then ``delete.retention.ms`` from the next one on."""
    for commit in (True, False):
        history = begun()
        history.send(2, [("a", "1")])
        history.end(2, commit=commit)
        history.end(2, commit=True)  # the producer's last word
        history.plain([("a", "2")])
        rounds(history, 1, wait_ms=5000)
        assert offsets(history)[:3] == [0, 2, 3]
        assert entries(history) == ([] if commit else [(2, 1, 2, 3)])
        rounds(history, 1, wait_ms=5000)
        marker = split(everything(on_disk(history.log)))[1]
        assert (marker.base_offset, delete_horizon(marker)) == (2, history.now_ms + COMPACT.delete_retention_ms)
        assert marker_of(marker) == EndTransaction(2, 1, commit, COORDINATOR_EPOCH)
        assert entries(history) == []
        rounds(history, 1, wait_ms=COMPACT.delete_retention_ms - 1)
        assert offsets(history)[1] == 2
        rounds(history, 1, wait_ms=1)
        assert offsets(history)[1] == 3
        history.check()


def test_a_marker_stays_while_a_batch_without_records_needs_it():
    """The last batch of a producer stays as a header and opens a transaction for who reads only batches."""
    history = begun()
    history.send(1, [("a", "1")])
    history.end(1, commit=False)
    rounds(history, 4, wait_ms=2000)
    headers = [batch.base_offset for batch in split(everything(on_disk(history.log))) if not batch.record_count]
    assert (headers, offsets(history)[:2]) == ([1], [0, 2])
    assert entries(history) == [(1, 1, 2, 3)]
    history.expire()
    rounds(history, 3, wait_ms=2000)
    assert [batch.producer_id for batch in split(everything(history.log))] == [-1] * len(offsets(history))


def test_the_last_marker_of_a_producer_stays_whole_until_the_producer_expires():
    """Its epoch keeps older incarnations out, its coordinator epoch older coordinators, after a recovery too."""
    history = begun()
    history.send(2, [("a", "1")])
    history.end(2, commit=True)
    history.plain([("a", "2")])
    rounds(history, 5, wait_ms=2000)
    (entry,) = history.copy().producers.active()
    assert (entry.producer_epoch, entry.coordinator_epoch) == (1, COORDINATOR_EPOCH)
    history.expire()
    rounds(history, 3, wait_ms=2000)
    assert not history.copy().producers.active()


@pytest.mark.parametrize("is_open", [False, True])
def test_producers_of_deleted_segments_are_known_after_a_marker_has_gone(is_open: bool):
    """The snapshot at the log's beginning goes with no marker: a recovery that lost the later ones has only this one.

    A retry would be appended again (histories of ``producer_replicas.py``, seed 20027). What the snapshot says of
    transactions is left out: one that was open there would never end, for its marker is gone.
    """
    history = begun()
    history.send(3, [("a", "1")])
    history.end(3, commit=True)
    history.send(2, [("a", "2")])
    if not is_open:
        history.end(2, commit=True)
        history.send(2, [("a", "3")])
    history.roll()
    base = history.log.end_offset
    history.end(2, commit=True)
    if not is_open:
        history.end(2, commit=True)
    history.plain([("a", "4")])
    history.roll()
    history.commit()
    history.log.raise_start(base)
    run(history.log.delete_segments(history.log.expired_segments(TIME, base)))
    if is_open:
        history.expire()
    rounds(history, 4, wait_ms=2000)
    assert base not in offsets(history)
    history.restart(clean=False, recovery_point=base + 1)
    assert history.log.report.checked_count
    assert history.log.start_offset == base
    assert history.log.producers.last_batch(3) == (0, 0, 1)
    assert history.log.stable_end(history.high_watermark) == history.high_watermark


def test_a_transaction_across_the_end_of_the_map_and_across_segments_is_known_as_aborted():
    """KAFKA-13727, KAFKA-8351: its data lies in one group of segments, its marker in another one, or beyond the map."""
    history = CleanedLog(LARGER)
    history.plain([("a", "committed"), ("big 1", BIG)])
    history.roll()
    history.send(1, [("a", "aborted"), ("big 2", BIG)])
    history.roll()
    history.send(1, [("a", "aborted")])
    history.plain([("big 3", BIG)])
    history.send(1, [("a", "aborted")])
    history.roll()
    history.end(1, commit=False)
    history.roll()
    history.commit()
    assert not history.clean(memory_bytes=2 * MAP_ENTRY_SIZE).is_complete
    history.check()
    assert [key for key, _ in visible(history.log, 7, committed=False).values()] == ["a", "big 1", "big 3"]
    history.clean()
    history.check()


def test_a_snapshot_does_not_bring_back_a_transaction_whose_marker_is_gone():
    """It says that the transaction is open. Recovered from it the last stable offset would never move again."""
    history = CleanedLog(LARGER)
    history.plain([("big 1", BIG)])
    history.send(2, [("a", "1")])
    history.plain([("b", "1")])
    history.roll()
    history.end(2, commit=False)
    history.send(1, [("big 2", BIG)])
    history.end(1, commit=True)
    history.roll()
    rounds(history, 1)
    history.expire()
    rounds(history, 2, wait_ms=2000)
    assert (3 in offsets(history), 5 in offsets(history)) == (False, True)
    assert 3 in [segment.base_offset for segment in history.log._store.segments]
    history.restart(clean=False, recovery_point=4)
    assert history.log.report.checked_count
    history.check()


def test_a_slow_follower_meets_data_and_marker_or_neither():
    """It copies while the leader cleans, and is never behind by ``delete.retention.ms``."""
    for seed in range(30):
        random, history = Random(seed), CleanedLog()
        follower, values = open_log(MemoryDisk(), COMPACT), itertools.count()
        for _ in range(40):
            number = random.randint(1, 2)
            history.send(number, [(random.choice("ab"), f"{next(values)}")])
            if random.random() < 0.7:
                history.end(number, commit=random.random() < 0.5)
            if random.random() < 0.3:
                rounds(history, 1, wait_ms=200)
            for _ in range(random.randint(2, 4)):
                part = history.log.read(follower.end_offset, max_bytes=1)
                follower.append_as_follower(split(b"".join(part.buffers)))
        while follower.end_offset < history.log.end_offset:
            part = history.log.read(follower.end_offset, max_bytes=1)
            follower.append_as_follower(split(b"".join(part.buffers)))
        history.commit()
        assert follower.stable_end(history.high_watermark) == history.stable_end()
        assert list(map(comparable, follower.producers.active())) == list(
            map(comparable, history.log.producers.active())
        )
        seen, expected = visible(follower, history.stable_end()), history.committed()
        assert {offset: expected.get(offset) for offset in seen} == seen
        assert latest(seen) == latest(expected)


def test_the_longest_delete_retention_keeps_markers_for_good():
    """The largest value that the setting takes does not overflow a timestamp."""
    history = CleanedLog(replace(COMPACT, delete_retention_ms=LONG_MAX))
    history.send(2, [("a", "1"), ("b", None)])
    history.end(2, commit=True)
    history.end(2, commit=True)
    history.plain([("a", "2")])
    rounds(history, 4, wait_ms=2000)
    assert offsets(history)[:3] == [0, 2, 3]
    history.check()


# ---- crashes ---------------------------------------------------------------------------------------------------------


def crash(at: int, seed: int | None) -> bool:
    """Die at operation ``at`` of the round in which markers go, with the power if ``seed`` is given, and start again."""
    disk = CrashingDisk()
    history = CleanedLog(LARGER, disk)
    for number in range(4):
        history.plain([(f"big {number}", BIG)])
        history.send(2, [("a", f"{number}")])
        history.send(3, [("a", f"{number}")])
        history.end(3, commit=number % 2 == 0)
        history.roll()
        history.end(2, commit=number % 2 == 0)
        history.send(1, [(f"other {number}", BIG)])
        history.end(1, commit=True)
        history.roll()
    history.commit()
    rounds(history, 1)
    history.expire()
    rounds(history, 1)
    history.plain([("a", "last")])
    history.roll()
    history.commit()
    before, point = history.log.size_bytes, history.log.recovery_point
    disk.crash_at = at
    try:
        history.clean(wait_ms=2000)
        is_over = True
        assert history.log.size_bytes < before - 4 * MARKER_SIZE
    except PowerLost:
        is_over = False
    disk.crash_at = None
    if seed is not None:
        disk.power_cut(Random(seed))
    history.log = open_log(disk, LARGER, recovery_point=point, high_watermark=history.high_watermark)
    assert not history.log.report.dropped
    history.check()
    rounds(history, 2, wait_ms=2000)
    history.check()
    return is_over


@pytest.mark.parametrize("seed", [None, 1])
def test_a_crash_at_any_operation_of_a_round_that_drops_markers_changes_no_transaction(seed: int | None):
    """kill -9 or a power cut before each operation on disk; snapshots of before must not come back and mislead."""
    at = 0
    while not crash(at, seed):
        at += 1
    assert at > 20
