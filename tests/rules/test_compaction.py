"""Which log is compacted, which part of it, and what stays (KAFKA-FACTS 1.5, KIP-58, KIP-354, KIP-534)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.config import TopicConfig
from minikafka.log.compaction import (
    MAP_ENTRY_SIZE,
    DirtyRange,
    OffsetMap,
    SegmentFacts,
    dirtiest,
    dirty_range,
    grouped,
    stays,
)
from minikafka.wire.batch import verify
from minikafka.wire.records import Record, build_batch
from minikafka.wire.rewrite import slices, thinned

NOW = 1_000_000
COMPACT = TopicConfig(cleanup_policy="compact", segment_bytes=100, segment_index_bytes=80)


def segment(
    base: int, end: int, *, size: int = 10, newest: int = 500, first: int = 400, index: int = 8
) -> SegmentFacts:
    return SegmentFacts(
        base_offset=base, end_offset=end, size=size, index_size=index, first_timestamp=first, newest_ms=newest
    )


LOG = [segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 35)]


def found(
    segments: list[SegmentFacts] = LOG,
    config: TopicConfig = COMPACT,
    *,
    checkpoint: int | None = None,
    start: int = 0,
    committed: int = 35,
) -> DirtyRange:
    return dirty_range(segments, config, checkpoint=checkpoint, start_offset=start, committed_end=committed, now_ms=NOW)


def test_all_but_the_active_segment_is_dirty_at_first():
    """KAFKA-FACTS 1.5: without a checkpoint cleaning begins at the log start."""
    dirty = found()
    assert (dirty.first_dirty, dirty.first_uncleanable) == (0, 30)
    assert (dirty.clean_bytes, dirty.dirty_bytes, dirty.ratio) == (0, 30, 1.0)


def test_clean_is_what_lies_below_the_checkpoint():
    """cleaner-offset-checkpoint: the ratio is of dirty bytes to all."""
    dirty = found(checkpoint=20)
    assert (dirty.first_dirty, dirty.first_uncleanable, dirty.clean_bytes, dirty.dirty_bytes) == (20, 30, 20, 10)
    assert dirty.ratio == pytest.approx(1 / 3)
    assert found(checkpoint=30).ratio == 0


def test_a_round_that_stopped_within_a_segment_goes_on_there():
    """After a full map: the segment counts as dirty whole."""
    dirty = found(checkpoint=15)
    assert (dirty.first_dirty, dirty.clean_bytes, dirty.dirty_bytes) == (15, 10, 20)


@pytest.mark.parametrize("checkpoint, start", [(36, 0), (5, 12)])
def test_a_checkpoint_outside_the_log_counts_as_none(checkpoint, start):
    """The log was begun anew and is shorter now; or its start has moved beyond what was clean."""
    assert found(checkpoint=checkpoint, start=start).first_dirty == start


@pytest.mark.parametrize("committed, end", [(35, 30), (30, 30), (29, 20), (20, 20), (3, 0)])
def test_nothing_that_is_not_committed_is_cleaned(committed, end):
    """S2: by whole segments, none that reaches the high watermark, and never the active one."""
    assert found(committed=committed).first_uncleanable == end


def test_the_lag_keeps_what_is_young():
    """min.compaction.lag.ms: the first segment with a young record, and all after it."""
    config = replace(COMPACT, min_compaction_lag_ms=1000)
    young = [segment(0, 10), segment(10, 20, newest=NOW - 999), segment(20, 30), segment(30, 35)]
    assert found(young, config).first_uncleanable == 10
    assert found(young, replace(config, min_compaction_lag_ms=999)).first_uncleanable == 30
    assert found(young, COMPACT).first_uncleanable == 30


def test_without_a_lag_records_of_the_future_are_compacted():
    """min.compaction.lag.ms=0 looks at no timestamp (LogCleanerManager): one wrong clock must not stop compaction."""
    assert found([LOG[0], segment(10, 20, newest=NOW + 1), *LOG[2:]]).first_uncleanable == 30


def test_a_lag_longer_than_the_clock_keeps_everything():
    """The largest value is how compaction is put off for good."""
    assert found(config=replace(COMPACT, min_compaction_lag_ms=2**63 - 1)).dirty_bytes == 0


def test_what_is_older_than_the_longest_lag_is_overdue():
    """max.compaction.lag.ms (KIP-354); records without a timestamp never are."""
    config = replace(COMPACT, max_compaction_lag_ms=NOW - 400)
    assert not found(config=config).is_overdue
    assert found([segment(0, 10, first=399), *LOG[1:]], config).is_overdue
    assert not found([segment(0, 10, first=-1), *LOG[1:]], config).is_overdue
    assert not found([segment(0, 10, first=399), *LOG[1:]], config, checkpoint=10).is_overdue


def test_the_dirtiest_log_beyond_its_ratio_comes_first():
    """min.cleanable.dirty.ratio must be exceeded, or max.compaction.lag.ms."""
    config = replace(COMPACT, min_cleanable_dirty_ratio=0.4)
    half, third, clean = found(checkpoint=15), found(checkpoint=20), found(checkpoint=30)
    assert half.ratio > 0.4 > third.ratio
    assert dirtiest({"a": (third, config), "b": (half, config), "c": (found(), config)}) == "c"
    assert dirtiest({"a": (third, config), "b": (half, config)}) == "b"
    assert dirtiest({"a": (third, config), "c": (clean, config)}) is None
    overdue = replace(third, is_overdue=True)
    assert dirtiest({"a": (overdue, config), "c": (clean, config)}) == "a"
    assert dirtiest({"c": (replace(clean, is_overdue=True), config)}) is None


def test_a_ratio_of_zero_cleans_whatever_is_dirty():
    """min.cleanable.dirty.ratio=0: Kafka's way to compact at once."""
    config = replace(COMPACT, min_cleanable_dirty_ratio=0.0)
    assert dirtiest({"a": (found(checkpoint=29), config)}) == "a"


def test_segments_are_joined_as_far_as_they_fit():
    """By bytes, by index, by offsets relative to the first (KAFKA-FACTS 1.3, 1.5)."""
    assert grouped([segment(n, n + 1, size=40) for n in range(5)], COMPACT) == [2, 2, 1]
    assert grouped([segment(0, 1, size=300), segment(1, 2, size=40)], COMPACT) == [1, 1]
    assert grouped([segment(n, n + 1, size=1, index=30) for n in range(5)], COMPACT) == [2, 2, 1]
    assert grouped([segment(0, 1, size=1), segment(2**31 - 1, 2**31, size=1)], COMPACT) == [2]
    assert grouped([segment(0, 1, size=1), segment(2**31 - 1, 2**31 + 1, size=1)], COMPACT) == [1, 1]
    assert grouped([], COMPACT) == []


# ---- which records stay ----------------------------------------------------------------------------------------------


def batch_at(offset: int, *records: tuple[str | None, str | None]):
    return verify(
        build_batch(
            [
                Record(
                    0, NOW, key=None if key is None else key.encode(), value=None if value is None else value.encode()
                )
                for key, value in records
            ],
            base_offset=offset,
        )
    )


def kept(batch, offsets: OffsetMap, now_ms: int = NOW) -> list[int]:
    return [record.offset for record in slices(batch) if stays(record, batch, offsets, now_ms=now_ms)]


def map_of(*batches, entries: int = 1000) -> OffsetMap:
    offsets = OffsetMap(entries * MAP_ENTRY_SIZE)
    for batch in batches:
        if not offsets.take(batch, slices(batch)):
            break
    return offsets


def test_of_each_key_the_last_record_stays():
    """KAFKA-FACTS 1.5: the record with the greatest offset."""
    first, second = batch_at(0, ("a", "1"), ("b", "1"), ("a", "2")), batch_at(3, ("b", "2"), ("c", "1"))
    offsets = map_of(first, second)
    assert (kept(first, offsets), kept(second, offsets)) == ([2], [3, 4])
    assert (len(offsets), offsets.end_offset) == (3, 5)


def test_an_old_record_without_a_key_goes():
    """From before the topic was compacted; Kafka's cleaner drops it too."""
    batch = batch_at(0, (None, "1"), ("a", "1"))
    assert kept(batch, map_of(batch)) == [1]


def test_an_empty_key_is_a_key():
    """No bytes are not no key."""
    batch = batch_at(0, ("", "1"), ("", "2"))
    assert kept(batch, map_of(batch)) == [1]


def test_a_tombstone_stays_until_its_horizon():
    """KIP-534: at its first cleaning there is no horizon; then until that time; a later value outlives it at once."""
    batch = batch_at(0, ("a", None), ("b", "1"))
    offsets = map_of(batch)
    assert kept(batch, offsets) == [0, 1]
    dated = verify(thinned(batch, list(slices(batch)), horizon=NOW + 10))
    assert kept(dated, offsets, NOW + 9) == [0, 1]
    assert kept(dated, offsets, NOW + 10) == [1]
    later = batch_at(2, ("a", "2"))
    assert kept(dated, map_of(batch, later), NOW) == [1]


def test_a_full_map_cleans_what_it_knows_and_leaves_the_rest_dirty():
    """log.cleaner.dedupe.buffer.size: the next round goes on where the map ended."""
    first, second, third = (
        batch_at(0, ("a", "1"), ("b", "1")),
        batch_at(2, ("b", "2"), ("c", "1")),
        batch_at(4, ("d", "")),
    )
    offsets = map_of(first, second, third, entries=2)
    assert offsets.end_offset == 2
    # b's later record is known though its batch did not fit whole: it stays, so the earlier one may go.
    assert (kept(first, offsets), kept(second, offsets), kept(third, offsets)) == ([0], [2, 3], [4])


def test_a_first_batch_always_fits():
    """Else a log whose batches hold more keys than memory would never get clean."""
    first, second = batch_at(0, ("a", "1"), ("b", "1"), ("c", "1")), batch_at(3, ("d", "1"))
    assert map_of(first, second, entries=1).end_offset == 3
