"""What idempotent producers wrote last outlives the records from which it was known (KIP-98, KIP-360).

A broker that forgets it appends a retry again: a duplicate, although the producer was promised that there is none.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.config import TopicConfig
from minikafka.log.log_directory import LogDirectory
from minikafka.log.names import SNAPSHOT, offset_name, offsets_in
from minikafka.log.partition_log import PartitionLog
from minikafka.log.producer_state import parse_snapshot
from tests.rules.log_words import TIME, fill, from_producer, open_log
from tests.rules.memory_disk import MemoryDisk, run
from tests.rules.test_log_directory import ORDERS, SMALL, TOPIC_ID, opened

LONG_AFTER = TIME + 8 * 86_400_000
"""Retention lets all go by then."""

COMPACTED = replace(SMALL, cleanup_policy="compact")
FIRST_SEGMENT = "orders-0/00000000000000000000.log"
BATCH_SIZE = from_producer(7, 0, "0").size

SEEDS = st.integers(0, 2**32)


def with_synced_records(disk: MemoryDisk) -> tuple[LogDirectory, PartitionLog]:
    """Producer 7 has written sequences 0 to 2 at offsets 0, 1 and 2, and a sync covers them."""
    directory = opened(disk)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
    for sequence in range(3):
        log.append_as_leader(from_producer(7, sequence, f"{sequence}"), leader_epoch=0, wall_ms=TIME)
    run(log.sync())
    return directory, log


def delete_behind_an_unsynced_roll(disk: MemoryDisk) -> None:
    """DeleteRecords of what :func:`with_synced_records` wrote: it is in a segment of its own by then."""
    directory, log = with_synced_records(disk)
    log.roll()
    fill(log, "not synced")
    log.raise_start(3)
    run(directory.checkpoint_start_offsets())


def after_power_cut(disk: MemoryDisk, seed: int) -> PartitionLog:
    disk.power_cut(Random(seed))
    return opened(disk).logs[ORDERS]


def delete(log: PartitionLog, high_watermark: int) -> None:
    run(log.delete_segments(log.expired_segments(LONG_AFTER, high_watermark)))


def remove_snapshots(disk: MemoryDisk) -> None:
    for name in disk.names("orders-0"):
        if name.endswith(".snapshot"):
            disk.remove(f"orders-0/{name}")


@given(SEEDS)
def test_the_active_segment_expires_and_the_power_goes(seed: int) -> None:
    """Its roll makes a snapshot of the producers, which is synced before the segment goes."""
    disk = MemoryDisk()
    _, log = with_synced_records(disk)
    delete(log, 3)
    log = after_power_cut(disk, seed)
    assert log.start_offset == log.end_offset == 3
    assert log.producers.last_sequences() == {7: (0, 2)}


@given(SEEDS, st.integers(1, 40), st.booleans())
def test_the_power_goes_in_the_midst_of_the_deletion(seed: int, steps: int, checkpoint: bool) -> None:
    """KIP-98: the segment goes after the snapshot is durable, whichever step the power cut interrupts."""
    disk = MemoryDisk()
    directory, log = with_synced_records(disk)
    if checkpoint:
        run(directory.checkpoint_recovery_points())
    disk.held = True
    deletion = log.delete_segments(log.expired_segments(LONG_AFTER, 3))
    try:
        for _ in range(steps):
            deletion.send(None)
    except StopIteration:
        pass
    else:
        deletion.close()
    disk.held = False
    log = after_power_cut(disk, seed)
    assert log.end_offset == 3
    assert log.producers.last_sequences() == {7: (0, 2)}


@given(SEEDS)
def test_records_are_deleted_behind_an_unsynced_roll(seed: int) -> None:
    """DeleteRecords only moves the start: the segment is removed when the log is opened, unless it is still needed."""
    disk = MemoryDisk()
    delete_behind_an_unsynced_roll(disk)
    log = after_power_cut(disk, seed)
    assert log.start_offset == 3
    assert log.producers.last_sequences() == {7: (0, 2)}


@given(SEEDS)
def test_records_are_deleted_behind_an_unsynced_roll_and_the_process_is_killed_before_the_power_goes(seed: int) -> None:
    """The snapshot that the next process finds is made durable before that process removes the segment."""
    disk = MemoryDisk()
    delete_behind_an_unsynced_roll(disk)
    log = opened(disk).logs[ORDERS]
    assert not disk.exists(FIRST_SEGMENT)
    run(log.sync())
    log = after_power_cut(disk, seed)
    assert log.start_offset == 3
    assert log.producers.last_sequences() == {7: (0, 2)}


@given(SEEDS, SEEDS)
def test_two_power_cuts(seed: int, second: int) -> None:
    """What was opened after the first one is as good as what was written before it."""
    disk = MemoryDisk()
    directory, log = with_synced_records(disk)
    fill(log, *"abcdefghijkl")
    run(log.sync())
    run(directory.checkpoint_recovery_points())
    log = after_power_cut(disk, seed)
    delete(log, 8)
    assert 3 < log.start_offset < log.end_offset == 15
    log = after_power_cut(disk, second)
    assert 3 < log.start_offset < log.end_offset == 15
    assert log.producers.last_sequences() == {7: (0, 2)}


@pytest.mark.parametrize("config", [SMALL, COMPACTED], ids=["deleted", "compacted"])
@pytest.mark.parametrize("marker", ["kept", "lost"])
def test_a_log_that_was_begun_again_knows_no_producers(config: TopicConfig, marker: str) -> None:
    """Its former records may be another history's: the segments that a power cut brings back are no witness."""
    disk = MemoryDisk()
    directory, log = with_synced_records(disk)
    former = disk.read_file(FIRST_SEGMENT)
    log.restart_at(20)
    run(directory.checkpoint_start_offsets())
    disk.replace_file(FIRST_SEGMENT, former)
    if marker == "lost":
        disk.remove("orders-0/00000000000000000020.start")
    log = opened(disk, config_of=lambda _: config).logs[ORDERS]
    assert log.start_offset == log.end_offset == 20
    assert log.producers.last_sequences() == {}


def test_damage_above_the_log_start_leaves_what_is_known_of_producers_from_below_it() -> None:
    """Without snapshots the segments below the start are read for them: only damage among these segments lets them go."""
    disk = MemoryDisk()
    _, log = with_synced_records(disk)
    fill(log, *"abcdefghijklmnopq")
    run(log.sync())
    log.raise_start(12)
    remove_snapshots(disk)
    bases = offsets_in(disk.names("orders-0"), ".log")
    assert [base for base in bases if 0 < base <= 12]
    disk.inodes[f"orders-0/{offset_name(bases[-1], '.log')}"].content[-1] ^= 1
    log = open_log(disk, start_offset=12, recovery_point=0)
    assert (log.start_offset, log.end_offset, len(log.report.dropped)) == (12, 19, 1)
    assert log.producers.last_sequences() == {7: (0, 2)}


def test_a_log_without_snapshots_gets_one_before_its_segments_go() -> None:
    """An unclean start removes those above the recovery point."""
    disk = MemoryDisk()
    _, log = with_synced_records(disk)
    fill(log, *"abcdefghijkl")
    run(log.sync())
    remove_snapshots(disk)
    log = opened(disk).logs[ORDERS]
    delete(log, 8)
    log = opened(disk).logs[ORDERS]
    assert 3 < log.start_offset < log.end_offset == 15
    assert log.producers.last_sequences() == {7: (0, 2)}


@given(SEEDS)
def test_a_damaged_segment_below_the_start_costs_nothing_above_it(seed: int) -> None:
    """It is kept for its producers alone; where it cannot be read, the log begins behind it."""
    random = Random(seed)
    disk = MemoryDisk()
    directory, log = with_synced_records(disk)
    fill(log, *"abcdefghijkl")
    log.raise_start(9)
    run(log.sync())
    run(directory.checkpoint_start_offsets())
    first, *_ = (segment for segment in sorted(disk.names("orders-0")) if segment.endswith(".log"))
    path = f"orders-0/{first}"
    data = bytearray(disk.read_file(path))
    at = random.choice(
        [at for at in range(BATCH_SIZE) if at not in range(12, 16)]
    )  # no checksum covers the leader epoch
    data[at] ^= 1 << random.randrange(8)
    disk.replace_file(path, bytes(data))
    remove_snapshots(disk)
    log = opened(disk).logs[ORDERS]
    assert (log.start_offset, log.end_offset) == (9, 15)


def test_followers_are_looked_at_when_the_start_moves_not_before_the_disk() -> None:
    """An idle follower that asked again while the snapshot was written would not learn of the new start: seed 25."""
    disk = MemoryDisk()
    log = with_synced_records(disk)[1]
    seen: list[int] = []
    expired = log.expired_segments(LONG_AFTER, 3)
    disk.held = True
    waiting = log.delete_segments(expired, lambda: not seen.append(log.start_offset))
    waiting.send(None)
    assert seen == []
    waiting.close()
    disk.held = False
    run(log.delete_segments(log.expired_segments(LONG_AFTER, 3), lambda: not seen.append(log.start_offset)))
    assert (seen, log.start_offset) == ([0], 3)


def test_the_start_does_not_move_if_what_let_the_records_go_holds_no_more() -> None:
    """Seed 940002419: a leader became a follower while it waited for the disk, with a lower high watermark."""
    log = with_synced_records(MemoryDisk())[1]
    before = (log.start_offset, log.end_offset)
    assert run(log.delete_segments(log.expired_segments(LONG_AFTER, 3), lambda: False)) == []
    assert (log.start_offset, log.end_offset) == before
    assert run(log.delete_segments(log.expired_segments(LONG_AFTER, 3), lambda: True))
    assert log.start_offset == 3


def test_a_snapshot_at_the_beginning_of_a_segment_knows_nothing_of_what_is_in_it():
    """A producer that has its first batch there is not known before it."""
    disk = MemoryDisk()
    _, log = with_synced_records(disk)
    log.roll()
    log.append_as_leader(from_producer(8, 0, "first of the next segment"), leader_epoch=0, wall_ms=TIME)
    run(log.sync())
    log.close()
    remove_snapshots(disk)
    log = opened(disk).logs[ORDERS]
    run(log.delete_segments(log.expired_segments(LONG_AFTER, 3)))
    assert log.start_offset == 3
    entries = parse_snapshot(disk.read_file(f"{ORDERS}/{offset_name(3, SNAPSHOT)}"))
    assert [each.producer_id for each in entries] == [7]
