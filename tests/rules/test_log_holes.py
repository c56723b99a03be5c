"""Holes between the segments of a log with gaps: compaction leaves none, so one is a loss (S1, S21, S29; recovery.py 3).

A power failure may keep a later segment's name and lose an earlier one's, or the end of its file. Where offsets are left
out anyway this looked like compaction, and a replica went on without acknowledged records.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from minikafka.log.inspect import verify_log
from minikafka.log.names import GAPS, offset_name
from minikafka.log.partition_log import PartitionLog
from minikafka.log.segment import RELATIVE_MAX
from minikafka.types import Offset
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.records import Record, build_batch
from tests.rules.log_words import ORDERS, TIME, everything, on_disk, open_log
from tests.rules.memory_disk import MemoryDisk, run
from tests.rules.test_cleaner import COMPACT, clean, filled, put

MARKER = f"{ORDERS}/{GAPS}"


def at(*offsets: Offset) -> list[RecordBatch]:
    """One batch of one record of 50 bytes at each offset: three fill a segment of COMPACT."""
    return [
        next(iter(split(build_batch([Record(0, TIME, key=b"k", value=b"v" * 50)], base_offset=offset, leader_epoch=0))))
        for offset in offsets
    ]


def offsets(log: PartitionLog) -> list[Offset]:
    return [batch.base_offset for batch in split(everything(on_disk(log)))]


def segments(disk: MemoryDisk) -> list[Offset]:
    return [int(name[:20]) for name in disk.names(str(ORDERS)) if name.endswith(".log")]


def strays(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.names(str(ORDERS)) if name.endswith(".stray")]


def copied(disk: MemoryDisk, *more: Offset, **options: Any) -> PartitionLog:
    """A follower's copy of a log with gaps: 0, 5 and 10 are synced, then ``more`` came."""
    log = open_log(disk, COMPACT, **options)
    log.append_as_follower(at(0, 5, 10))
    run(log.sync())
    log.append_as_follower(at(*more))
    return log


def test_a_follower_begins_a_segment_where_the_one_before_it_ends():
    """Not at its first batch: offsets may be left out in front of it."""
    disk = MemoryDisk()
    copied(disk, 20, 30, 40, 50, 60, 70)
    assert segments(disk) == [0, 11, 41]


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("lost", [11, 41])
def test_a_lost_segment_is_no_gap(lost: Offset, policy: str):
    """Its name was never synced; a later one's survived. What follows is set aside, and is copied again."""
    disk = MemoryDisk()
    copied(disk, 20, 30, 40, 50, 60, 70, 80, 90)
    disk.remove(f"{ORDERS}/{offset_name(lost, '.log')}")
    log = open_log(disk, replace(COMPACT, cleanup_policy=policy))
    assert offsets(log) == [offset for offset in (0, 5, 10, 20, 30, 40) if offset < lost]
    assert [dropped.kept_as != "" for dropped in log.report.dropped] == [True] * len(strays(disk)) != []


def test_a_lost_end_of_a_sealed_segment_is_no_gap():
    """The batch is gone whole, so that what is left of the file is sound."""
    disk = MemoryDisk()
    copied(disk, 20, 30, 40, 50, 60)
    disk.inodes[f"{ORDERS}/{offset_name(11, '.log')}"].content[-at(40)[0].size :] = b""
    log = open_log(disk, COMPACT)
    assert offsets(log) == [0, 5, 10, 20, 30]
    assert strays(disk) == [offset_name(41, ".log.stray")]


@pytest.mark.parametrize("seed", range(100))
def test_a_power_failure_leaves_a_beginning_of_what_was_copied(seed: int):
    """Syncs, compaction and the power failure come anywhere; then once more, for what recovery writes is unsynced too."""
    random = Random(seed)
    leader = filled(MemoryDisk(), rounds=12)
    clean(leader, high_watermark=random.randrange(30, 60))
    batches = list(split(everything(on_disk(leader))))
    disk = MemoryDisk()
    log, copied_count = open_log(disk, COMPACT), 0
    for _ in range(2):
        while copied_count < len(batches) and random.random() < 0.9:
            upto = copied_count + random.randrange(1, 4)
            log.append_as_follower(batches[copied_count:upto])
            copied_count = upto
            if random.random() < 0.2:
                run(log.sync())
            if random.random() < 0.1:
                clean(log)
        point = log.recovery_point
        kept = everything(on_disk(log))
        disk.power_cut(random)
        log = open_log(disk, COMPACT, recovery_point=point)
        left = everything(on_disk(log))
        assert log.end_offset >= point
        missing = {batch.base_offset for batch in split(kept)} - {batch.base_offset for batch in split(left)}
        cleaned_away = {offset for offset in missing if offset < point}
        assert min(missing - cleaned_away, default=log.end_offset) >= log.end_offset
        copied_count = sum(batch.base_offset < log.end_offset for batch in batches)


def test_no_segment_with_gaps_is_sealed_before_the_marker_is_durable():
    """Else a hole after a power failure that takes the marker, too, would look like one that Kafka's cleaner left."""
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    log.append_as_follower(at(0, 5, 10, 15, 20, 25, 30))
    assert segments(disk) == [0]
    assert log.wants_sync
    run(log.sync())
    log.append_as_follower(at(35, 40))
    assert segments(disk) == [0, 31]


def test_a_sync_that_began_before_the_marker_does_not_cover_it():
    """Else a segment could be sealed, and the power could take the marker that was written while the sync ran."""
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    log.append_as_follower(at(0))
    disk.held = True
    sync = log.sync()
    for _ in range(3):  # the marker comes when the small files of this sync are known
        sync.send(None)
    log.append_as_follower(at(5))
    disk.held = False
    with pytest.raises(StopIteration):
        sync.send(None)
    log.append_as_follower(at(10, 15, 20, 25, 30))
    assert segments(disk) == [0]
    run(log.sync())
    log.append_as_follower(at(35, 40))
    assert segments(disk) == [0, 31]


def test_a_killed_process_may_have_left_the_marker_in_the_page_cache():
    """The next one does not take it for durable, and does not write it again, which could tear what is durable."""
    disk = MemoryDisk()
    copied(disk, 20)
    written = disk.inodes[MARKER]
    log = open_log(disk, COMPACT)
    log.append_as_follower(at(30, 40, 50, 60))
    assert segments(disk) == [0, 11]
    assert disk.inodes[MARKER] is written
    run(log.sync())
    log.append_as_follower(at(70))
    assert segments(disk) == [0, 11, 61]


def test_a_round_of_compaction_waits_for_the_marker():
    """What it writes has gaps, and is sealed."""
    disk = MemoryDisk()
    log = filled(disk)
    clean(log)
    assert disk.durable_names[MARKER].durable == b"0\n"


def test_a_round_of_compaction_is_put_off_if_the_log_is_cut_while_it_waits_for_the_marker():
    """What was synced and committed when it was planned may be gone."""
    disk = MemoryDisk()
    log = filled(disk)
    dirty = log.dirty_range(high_watermark=log.end_offset, now_ms=TIME)

    async def no_pause(size: int) -> None:
        assert size > 0

    disk.held = True
    cleaning = log.clean(dirty, memory_bytes=10_000, clock_ms=lambda: TIME, pause=no_pause)
    cleaning.send(None)
    log.truncate_to(6)
    put(log, ("a", "other"))
    with pytest.raises(StopIteration) as stopped:
        while True:
            cleaning.send(None)
    assert stopped.value.value.was_interrupted
    assert offsets(log) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("marker", [None, b"", b"1", b"\x00\x00\n"])
def test_holes_that_were_left_earlier_stay_explained(marker: bytes | None):
    """By Kafka's cleaner, or by this program before followers went on at the end: without a marker that says up to where
    there are holes, a gap in a sealed segment explains them, and is noted. What comes later has none.
    """
    disk = MemoryDisk()
    for batches in (at(0, 5, 10), at(20, 21), at(30)):
        name = offset_name(batches[0].base_offset, ".log")
        disk.replace_file(f"{ORDERS}/{name}", b"".join(batch.data for batch in batches))
    if marker is not None:
        disk.replace_file(MARKER, marker)
    log = open_log(disk, COMPACT)
    assert offsets(log) == [0, 5, 10, 20, 21, 30]
    assert disk.read_file(MARKER) == b"30\n"
    log.append_as_follower(at(40))
    run(log.sync())
    log.append_as_follower(at(50, 60, 70, 80, 90, 100, 110))
    assert segments(disk) == [0, 20, 30, 51, 81]
    disk.remove(f"{ORDERS}/{offset_name(51, '.log')}")
    again = open_log(disk, COMPACT, recovery_point=log.recovery_point)
    assert offsets(again) == [0, 5, 10, 20, 21, 30, 40, 50]
    assert disk.read_file(MARKER) == b"30\n"


@pytest.mark.parametrize("recovery_point, expected", [(3, [0, 1, 2]), (5, [0, 1, 2]), (6, [0, 1, 2, 6, 7])])
def test_marker_without_an_offset_explains_holes_up_to_the_recovery_point_only(
    recovery_point: int, expected: list[Offset]
):
    """It is that of an earlier version: what was synced behind a hole was copied so, and what was not is a lost name."""
    disk = MemoryDisk()
    for batches in (at(0, 1, 2), at(6, 7)):
        name = offset_name(batches[0].base_offset, ".log")
        disk.replace_file(f"{ORDERS}/{name}", b"".join(batch.data for batch in batches))
    disk.replace_file(MARKER, b"")
    assert offsets(open_log(disk, COMPACT, recovery_point=recovery_point)) == expected


def test_a_hole_between_segments_without_gaps_is_a_loss_also_where_the_topic_is_compacted():
    """A leader's log before its first round of compaction."""
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    log.append_as_follower(at(*range(9)))
    disk.remove(f"{ORDERS}/{offset_name(3, '.log')}")
    assert offsets(open_log(disk, COMPACT)) == [0, 1, 2]
    assert strays(disk) == [offset_name(6, ".log.stray")]


def test_segment_that_overlaps_the_one_before_it_was_not_replaced_by_it():
    """It goes on behind the end of that one: what follows would look like a gap, and its own records would be lost."""
    disk = MemoryDisk()
    for batches in (at(0, 5, 10), at(8, 12), at(20, 21)):
        name = offset_name(batches[0].base_offset, ".log")
        disk.replace_file(f"{ORDERS}/{name}", b"".join(batch.data for batch in batches))
    log = open_log(disk, COMPACT, recovery_point=0)
    assert offsets(log) == [0, 5, 10]
    assert len(log.report.dropped) == 2


def test_offsets_that_do_not_fit_into_one_segment_are_a_hole_that_is_explained():
    """Offsets in an index are 32 bits, relative to the segment: behind a larger gap the next one begins at the batch."""
    far = 12 + RELATIVE_MAX
    disk = MemoryDisk()
    log = copied(disk, far, far + 5)
    assert segments(disk) == [0, far]
    assert offsets(open_log(disk, COMPACT, recovery_point=log.recovery_point)) == [0, 5, 10, far, far + 5]


def test_log_verify_finds_the_lost_segment():
    """Holes that the marker does not explain; those of a log whose marker says nothing may be Kafka's."""
    disk = MemoryDisk()
    log = copied(disk, 20, 30, 40, 50, 60, 70)
    run(log.sync())
    log.prepare_close()
    assert list(verify_log(disk, str(ORDERS))) == []
    disk.remove(f"{ORDERS}/{offset_name(11, '.log')}")
    assert "begins at 41, the segment before it ends at 11" in [each.what for each in verify_log(disk, str(ORDERS))]
    disk.replace_file(MARKER, b"")
    assert "begins at 41, the segment before it ends at 11" not in [each.what for each in verify_log(disk, str(ORDERS))]
