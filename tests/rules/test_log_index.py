"""Sparse indexes against a plain search over all batches (KAFKA-FACTS 1.3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minikafka.config import TopicConfig
from minikafka.log.names import offset_name
from minikafka.log.partition_log import PartitionLog
from minikafka.log.segment import OffsetIndex, TimeIndex
from minikafka.wire.batch import split
from minikafka.wire.records import decode_batch
from tests.rules.log_words import (
    ORDERS,
    TIME,
    client_batch,
    everything,
    fill,
    found_by_time,
    newest_record,
    on_disk,
    open_log,
)
from tests.rules.memory_disk import MemoryDisk

batches = st.lists(st.tuples(st.integers(1, 4), st.integers(-50, 50), st.integers(0, 60)), min_size=1, max_size=25)


def written(story: list[tuple[int, int, int]]) -> PartitionLog:
    """A log of batches (count, time shift, size) in segments of a few batches."""
    config = TopicConfig(segment_bytes=450, index_interval_bytes=60)
    log = PartitionLog.open(MemoryDisk(), ORDERS, config)
    for count, shift, size in story:
        batch = client_batch(*["x" * size] * count, time=TIME + shift)
        log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME)
    return on_disk(log)


@given(batches, st.integers(0, 400), st.integers(0, 80))
def test_a_read_begins_with_the_batch_that_holds_the_offset(story: list, max_bytes: int, end: int):
    """KAFKA-FACTS 3.7: whole batches from the one that holds the offset, nothing at or beyond the bound."""
    log = written(story)
    every = split(everything(log))
    log.tail.clear()
    for offset in range(log.end_offset + 1):
        part = log.read(offset, max_bytes=max_bytes, end_offset=end)
        found = split(b"".join(part.buffers))
        assert sum(b.size for b in found) == part.size
        expected = [b for b in every if b.last_offset >= offset and b.next_offset <= min(end, log.end_offset)]
        holding = next((b for b in every if b.last_offset >= offset), None)
        if not expected or holding is not expected[0] or offset >= end:
            assert not found
            continue
        assert found
        assert [b.data for b in found] == [b.data for b in expected[: len(found)]]
        assert part.size <= max_bytes or len(found) == 1
        assert (part.first_offset, part.next_offset) == (found[0].base_offset, found[-1].next_offset)
        assert not log.read(offset, max_bytes=0, end_offset=end, min_one_batch=False).buffers


@given(batches, st.integers(-60, 120), st.integers(0, 30))
def test_a_lookup_by_time_finds_the_first_record(story: list, shift: int, start: int):
    """ListOffsets: the earliest record at or after the time, though times go back and forth between batches."""
    log = written(story)
    records = [r for b in split(everything(log)) for r in decode_batch(b)]
    log.raise_start(min(start, log.end_offset))
    readable = [r for r in records if r.offset >= log.start_offset]
    for end in (None, max(0, log.end_offset - 3)):
        inside = [r for r in readable if end is None or r.offset < end]
        wanted = next((r for r in inside if r.timestamp >= TIME + shift), None)
        hit = found_by_time(log, TIME + shift, end)
        assert (hit and (hit.timestamp, hit.offset)) == (wanted and (wanted.timestamp, wanted.offset))
        newest = max(inside, key=lambda r: (r.timestamp, -r.offset), default=None)
        top = newest_record(log, end)
        assert (top and (top.timestamp, top.offset)) == (newest and (newest.timestamp, newest.offset))


def test_entries_are_kafkas_bytes():
    """KAFKA-FACTS 1.3: int32 last offset of the set and its first byte; int64 time and int32 offset; big-endian."""
    disk = MemoryDisk()
    config = TopicConfig(index_interval_bytes=100)
    log = open_log(disk, config)
    fill(log, *"abcd")
    size = log.size_bytes // 4
    log.prepare_close()
    index = disk.read_file("orders-0/" + offset_name(0, ".index"))
    # The first set is never indexed; b comes after one batch of 70 bytes, c after two: the interval of 100 is passed.
    assert index == (2).to_bytes(4) + (2 * size).to_bytes(4)
    times = disk.read_file("orders-0/" + offset_name(0, ".timeindex"))
    assert times == TIME.to_bytes(8) + (0).to_bytes(4)


def test_the_newest_time_is_not_that_of_the_record_at_the_end():
    """An index entry may be of the very record at which the reader has to stop: it is not committed."""
    log = open_log(MemoryDisk(), TopicConfig(index_interval_bytes=1))
    for number in range(4):
        fill(log, "x", time=TIME + number)
    assert [log.newest_timestamp(end) - TIME for end in (1, 2, 3, 4)] == [0, 1, 2, 3]


def test_damaged_entries_are_not_sane():
    """Rule 6 of segment.py: zeros, a torn entry or a position beyond the segment are never believed."""
    index = OffsetIndex(0)
    index.append(5, 100)
    index.append(9, 200)
    good = index.to_bytes()
    assert OffsetIndex(0, good).is_sane(size=300, end_offset=10)
    assert not OffsetIndex(0, good).is_sane(size=200, end_offset=10)
    assert not OffsetIndex(0, good).is_sane(size=300, end_offset=9)
    assert not OffsetIndex(0, good + bytes(8)).is_sane(size=300, end_offset=10)
    assert not OffsetIndex(0, good[:-1]).is_sane(size=300, end_offset=10)
    times = TimeIndex(0)
    times.append_if_later(TIME, 3)
    times.append_if_later(TIME, 4)
    assert len(times) == 1
    assert TimeIndex(0, times.to_bytes()).is_sane(end_offset=4)
    assert not TimeIndex(0, times.to_bytes()).is_sane(end_offset=3)
    assert not TimeIndex(0, times.to_bytes() + bytes(12)).is_sane(end_offset=4)
    assert not TimeIndex(0, times.to_bytes()[:-1]).is_sane(end_offset=4)


def test_an_entry_of_the_time_index_has_its_offset_whatever_the_segment_begins_with():
    """KAFKA-FACTS 1.3: entries are relative to the segment's base offset."""
    times = TimeIndex(100)
    times.append_if_later(TIME, 103)
    times.append_if_later(TIME + 5, 107)
    assert times.before(TIME + 5) == (TIME, 103)
    assert times.newest_before(107) == (TIME, 103)


def test_a_full_index_rolls_the_segment():
    """KAFKA-FACTS 1.3: index entries are bounded by segment.index.bytes, the time index keeps a slot for the roll."""
    log = open_log(MemoryDisk(), TopicConfig(index_interval_bytes=0, segment_index_bytes=48))
    for n in range(30):
        fill(log, "x", time=TIME + n)
    assert log.segment_count > 4
    assert log.end_offset == 30


@given(st.integers(0, 400))
def test_index_is_full_when_one_more_entry_exceeds_its_size(size_max: int) -> None:
    """Entries have 8 and 12 bytes; of the time index the last one is reserved for the roll."""
    for entries in range(40):
        assert OffsetIndex(0, bytes(8 * entries)).is_full(size_max) == (entries + 1 > size_max // 8)
        assert TimeIndex(0, bytes(12 * entries)).is_full(size_max) == (entries + 2 > size_max // 12)
