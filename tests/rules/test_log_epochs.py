"""The leader-epoch cache, as KAFKA-FACTS 1.3 and 3.6 word it (S21, KIP-101, KIP-279, KAFKA-7415)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.log.checkpoint import parse_epochs
from minikafka.log.epochs import EpochCache
from minikafka.log.names import LEADER_EPOCH_CHECKPOINT
from minikafka.types import EpochEnd
from tests.rules.log_words import ORDERS, fill, open_log
from tests.rules.memory_disk import MemoryDisk, run


def test_the_articles_example():
    """S21: (0,0), (1,50); epoch 0 ended where epoch 1 began, the latest ends at the log's end."""
    cache = EpochCache()
    assert cache.assign(0, 0)
    assert cache.assign(1, 50)
    assert cache.entries == [(0, 0), (1, 50)]
    assert cache.end_offset_for(0, 70) == EpochEnd(0, 50)
    assert cache.end_offset_for(1, 70) == EpochEnd(1, 70)


@pytest.mark.parametrize(
    ("epoch", "start", "after"),
    [
        (4, 90, [(1, 10), (2, 20), (4, 40)]),  # the latest again: no news
        (4, 40, [(1, 10), (2, 20), (4, 40)]),
        (4, 30, [(1, 10), (2, 20), (4, 30)]),  # the latest, but earlier
        (4, 20, [(1, 10), (4, 20)]),
        (5, 50, [(1, 10), (2, 20), (4, 40), (5, 50)]),
        (5, 40, [(1, 10), (2, 20), (5, 40)]),  # an epoch without records gives way
        (5, 15, [(1, 10), (5, 15)]),
        (2, 30, [(1, 10), (2, 30)]),
        (0, 50, [(0, 50)]),
        (-1, 50, [(1, 10), (2, 20), (4, 40)]),
    ],
)
def test_assign(epoch: int, start: int, after: list[tuple[int, int]]):
    """KAFKA-FACTS 1.3: what contradicts the newcomer by epoch or by offset is of a log that was cut."""
    cache = EpochCache([(1, 10), (2, 20), (4, 40)])
    changed = cache.assign(epoch, start)
    assert cache.entries == after
    assert changed == (after != [(1, 10), (2, 20), (4, 40)])


@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        (-1, (-1, -1)),
        (0, (0, 10)),  # below all known: the asked epoch, the start of the first
        (1, (1, 20)),
        (2, (2, 40)),
        (3, (2, 40)),  # KIP-279: the largest known epoch not above it, with its name
        (4, (4, 60)),
        (5, (-1, -1)),  # above all known: undefined
    ],
)
def test_end_offset_for(epoch: int, end: tuple[int, int]):
    """KIP-279: without the epoch in the answer a follower keeps records of an epoch that the leader never had."""
    assert EpochCache([(1, 10), (2, 20), (4, 40)]).end_offset_for(epoch, 60) == EpochEnd(*end)


def test_an_empty_cache_answers_undefined():
    """KAFKA-FACTS 1.3: the follower must not cut anything on such an answer."""
    assert EpochCache().end_offset_for(0, 60) == EpochEnd(-1, -1)


def test_schedule_3_of_the_facts():
    """KIP-279: A answers (0, 10) for epoch 1, B's own end of epoch 0 is 6: B keeps nothing of epoch 1."""
    a = EpochCache([(0, 0), (2, 10)])
    b = EpochCache([(0, 0), (1, 6)])
    answer = a.end_offset_for(1, 10)
    assert answer == EpochEnd(0, 10)
    assert b.end_offset_for(answer.epoch, 12) == EpochEnd(0, 6)


@pytest.mark.parametrize(
    ("end", "after"),
    [(60, [(1, 10), (2, 20)]), (20, [(1, 10)]), (21, [(1, 10), (2, 20)]), (0, [])],
)
def test_truncate_from_end(end: int, after: list[tuple[int, int]]):
    """KAFKA-10706: entries at the end go too, for an epoch may have begun there without records."""
    cache = EpochCache([(1, 10), (2, 20)])
    cache.truncate_from_end(end)
    assert cache.entries == after


@pytest.mark.parametrize(
    ("start", "after"),
    [
        (5, [(1, 10), (2, 20)]),
        (10, [(1, 10), (2, 20)]),
        (15, [(1, 15), (2, 20)]),
        (20, [(2, 20)]),
        (99, [(2, 99)]),
    ],
)
def test_truncate_from_start(start: int, after: list[tuple[int, int]]):
    """KAFKA-FACTS 1.3: one entry stays for the epoch that covers the new start."""
    cache = EpochCache([(1, 10), (2, 20)])
    assert cache.truncate_from_start(start) == (after != [(1, 10), (2, 20)])
    assert cache.entries == after


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("start"), st.integers(0, 12), st.just(0)),
    ),
    max_size=15,
)


@given(steps)
def test_the_cache_agrees_with_the_records(story: list[tuple[str, int, int]]):
    """KAFKA-FACTS 10.7: it is what the records say, and every answer can be had by counting them."""
    cache, records, start, epoch = EpochCache(), [], 0, 0  # records[i] is the epoch of offset i
    for what, a, b in story:
        if what == "append":
            epoch = max([epoch, *records]) + a
            cache.assign(epoch, len(records))
            records += [epoch] * b
        elif what == "end":
            end = max(start, len(records) - a)
            del records[end:]
            cache.truncate_from_end(end)
        elif start + a <= len(records) and a:
            start += a
            cache.truncate_from_start(start)
        assert cache.entries == sorted(cache.entries)
        for offset in range(start, len(records)):
            assert cache.epoch_at(offset) == records[offset]
        for asked in range(epoch + 2):
            found = cache.end_offset_for(asked, len(records))
            if found.epoch in records[start:] and asked in records[start:]:
                assert found.end_offset == sum(e <= asked for e in records)


def test_a_log_that_starts_before_its_first_batch():
    """Compaction took what stood at the start: the first known epoch covers the gap; what begins there already stays."""
    cache = EpochCache([(1, 24), (2, 40)])
    assert cache.begin_at(20)
    assert cache.entries == [(1, 20), (2, 40)]
    assert cache.end_offset_for(0, 70) == EpochEnd(0, 20)
    assert not cache.begin_at(20)
    assert not cache.begin_at(22)
    assert not EpochCache().begin_at(20)


def test_epochs_below_the_start_are_forgotten_when_a_log_is_opened():
    """The start was raised, and the power took the checkpoint of epochs that was written then."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a", "b", epoch=0)
    fill(log, "c", "d", epoch=1)
    run(log.sync())
    assert open_log(disk, start_offset=3).epochs.entries == [(1, 3)]


def test_an_epoch_is_in_the_checkpoint_with_its_first_record():
    """Until then it can wait: a broker that becomes the leader of thousands of partitions would write as many files."""
    disk = MemoryDisk()
    log = open_log(disk)
    checkpoint = f"{ORDERS}/{LEADER_EPOCH_CHECKPOINT}"
    log.assign_epoch(5, 0)
    assert parse_epochs(disk.read_file(checkpoint)) == []
    fill(log, "a", epoch=5)
    assert parse_epochs(disk.read_file(checkpoint)) == [(5, 0)]
