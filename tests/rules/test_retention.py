"""Retention: by time, by size, below the start, never above the high watermark (KAFKA-FACTS 1.5)."""

from __future__ import annotations

import pytest

from minikafka.config import TopicConfig
from minikafka.invariant import InvariantViolation
from minikafka.log.segment_store import SegmentAge, expired_count
from tests.rules.log_words import TIME, fill, on_disk, open_log, values
from tests.rules.memory_disk import MemoryDisk, run

# Three segments of 100 bytes, ten records each, of times 1000, 2000 and 3000.
AGES = [SegmentAge(end_offset=10 * n, size=100, newest_ms=1000 * n) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "now", "start", "high_watermark", "count"),
    [
        (-1, -1, 10**9, 0, 30, 0),
        (500, -1, 1501, 0, 30, 1),
        (500, -1, 1500, 0, 30, 0),  # not older than: as old as
        (500, -1, 9000, 0, 30, 3),
        (500, -1, 9000, 0, 29, 2),  # never above the high watermark
        (500, -1, 9000, 0, 9, 0),
        (0, -1, 1001, 0, 30, 1),
        (-1, 300, 0, 0, 30, 0),
        (-1, 200, 0, 0, 30, 1),
        (-1, 201, 0, 0, 30, 0),  # what is left must still hold retention.bytes
        (-1, 0, 0, 0, 30, 3),
        (-1, 0, 0, 0, 15, 1),
        (-1, -1, 0, 20, 30, 2),  # DeleteRecords
        (-1, -1, 0, 19, 30, 1),
    ],
)
def test_what_may_go(retention_ms: int, retention_bytes: int, now: int, start: int, high_watermark: int, count: int):
    """KAFKA-FACTS 1.5, value by value: oldest first, none after the first that stays."""
    config = TopicConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    assert expired_count(AGES, config, size=300, now_ms=now, start_offset=start, high_watermark=high_watermark) == count


@pytest.mark.parametrize("policy, count", [("delete", 3), ("compact", 1), ("compact,delete", 3)])
def test_a_compacted_topic_keeps_what_is_old(policy: str, count: int):
    """cleanup.policy=compact: age and size delete nothing; DeleteRecords still does."""
    config = TopicConfig(retention_ms=1, retention_bytes=0, cleanup_policy=policy)
    assert expired_count(AGES, config, size=300, now_ms=9000, start_offset=10, high_watermark=30) == count


def test_a_young_segment_protects_the_older_ones_behind_it():
    """Oldest first, stop at the first that does not qualify: the log never gets a hole."""
    ages = [SegmentAge(end_offset=10, size=1, newest_ms=9000), SegmentAge(end_offset=20, size=1, newest_ms=0)]
    config = TopicConfig(retention_ms=1)
    assert expired_count(ages, config, size=2, now_ms=9000, start_offset=0, high_watermark=99) == 0


def test_segments_behind_the_first_that_stays_are_not_looked_at():
    """Their newest timestamps would be read from the disk, for each segment of thousands of logs."""
    looked_at = []

    def ages():
        for age in AGES:
            looked_at.append(age)
            yield age

    config = TopicConfig(retention_ms=1)
    assert expired_count(ages(), config, size=300, now_ms=1002, start_offset=0, high_watermark=30) == 1
    assert looked_at == AGES[:2]


def test_segments_go_from_the_log_and_then_from_the_disk():
    """The start moves to the first survivor, files are renamed first and removed after file.delete.delay.ms."""
    disk = MemoryDisk()
    log = on_disk(open_log(disk))
    fill(log, *"abcdefghijkl")
    log.roll()
    expired = log.expired_segments(TIME + 8 * 86_400_000, high_watermark=7)
    assert expired
    renamed = run(log.delete_segments(expired))
    assert log.start_offset == expired[-1].next_offset <= 7
    assert all(path.endswith(".deleted") and disk.exists(path) for path in renamed)
    assert values(log)[0] == "abcdefghijkl"[log.start_offset]
    again = open_log(disk, recovery_point=0, start_offset=log.start_offset)
    assert values(again) == values(log)
    assert not [name for name in disk.names("orders-0") if name.endswith(".deleted")]


def test_segments_that_are_cut_while_their_deletion_waits_for_the_disk_stay():
    """What made them expire was counted before: the next round decides about what is left."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdefghijkl")
    expired = log.expired_segments(TIME + 8 * 86_400_000, high_watermark=12)
    assert len(expired) > 1
    disk.held = True
    deletion = log.delete_segments(expired)
    deletion.send(None)
    log.truncate_to(2)
    disk.held = False
    with pytest.raises(StopIteration) as stopped:
        deletion.send(None)
    assert stopped.value.value == []
    assert (log.start_offset, values(on_disk(log))) == (0, ["a", "b"])


def test_the_active_segment_goes_too_and_the_log_goes_on():
    """KAFKA-FACTS 1.5: a new one is rolled first; offsets are never used twice."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abc")
    assert log.expired_segments(TIME, high_watermark=3) == []
    expired = log.expired_segments(TIME + 8 * 86_400_000, high_watermark=3)
    run(log.delete_segments(expired))
    assert (log.start_offset, log.end_offset, log.size_bytes) == (3, 3, 0)
    assert log.expired_segments(TIME + 80 * 86_400_000, high_watermark=3) == []
    fill(log, "d")
    assert values(log) == ["d"]
    assert open_log(disk, start_offset=3).end_offset == 4


def test_records_without_time_are_as_old_as_their_file():
    """KAFKA-FACTS 1.5: file time when there is no timestamp."""
    disk = MemoryDisk()
    disk.clock_ms = 5000
    log = open_log(disk, TopicConfig(retention_ms=100))
    fill(log, "a", time=-1)
    assert not log.expired_segments(5100, high_watermark=1)
    assert log.expired_segments(5101, high_watermark=1)


def test_only_the_oldest_may_be_deleted():
    """A hole in the middle would be taken for damage at the next start."""
    log = open_log(MemoryDisk())
    fill(log, *"abcdefghijkl")
    oldest = log.expired_segments(TIME + 8 * 86_400_000, high_watermark=12)
    with pytest.raises(InvariantViolation):
        run(log.delete_segments(oldest[1:2]))


def test_deleting_waits_for_the_checkpoint_of_the_start():
    """A power cut between two removals must not look like a log that lost its beginning (durability.py, rule 3)."""
    disk = MemoryDisk()
    saved: list[int] = []

    async def save() -> None:
        saved.append(log.start_offset)
        assert disk.exists("orders-0/00000000000000000000.log")

    log = open_log(disk, save_start=save)
    fill(log, *"abcdefghijkl")
    run(log.delete_segments(log.expired_segments(TIME + 8 * 86_400_000, high_watermark=6)))
    assert saved == [log.start_offset]
    assert not disk.exists("orders-0/00000000000000000000.log")
