"""Appending, reading, rolling, cutting and syncing one log (S1, S21, D4, D6, KAFKA-FACTS 1.3, 2, 3.7)."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from minikafka.config import TopicConfig
from minikafka.errors import (
    CorruptMessage,
    DiskFailed,
    InvalidTimestamp,
    KafkaStorageError,
    MessageTooLarge,
    OffsetOutOfRange,
    RecordListTooLarge,
)
from minikafka.invariant import InvariantViolation
from minikafka.log.disk_reader import TimestampHit
from minikafka.log.names import offset_name
from minikafka.log.partition_log import PartitionLog
from minikafka.types import EpochEnd
from minikafka.wire.batch import CHECKED_START, HEADER_SIZE, RecordBatch, split, verify, verify_client
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.rules.log_words import (
    SMALL,
    TIME,
    client_batch,
    everything,
    fill,
    found_by_time,
    newest_record,
    on_disk,
    open_log,
    values,
)
from tests.rules.memory_disk import MemoryDisk, run

LOG = "orders-0/00000000000000000000.log"


def test_offsets_are_half_open():
    """S1: LEO = 10 means that records 0 to 9 exist."""
    log = open_log(MemoryDisk())
    assert (log.start_offset, log.end_offset, log.synced_end, log.last_epoch) == (0, 0, 0, -1)
    info = log.append_as_leader(client_batch(*"abc"), leader_epoch=4, wall_ms=TIME)
    assert (info.base_offset, info.last_offset, info.log_append_time_ms, info.duplicate) == (0, 2, -1, False)
    assert (log.end_offset, log.last_epoch) == (3, 4)
    assert log.end_offset_for(4) == EpochEnd(4, 3)


def test_one_line_tells_where_it_stands():
    """STYLE 15: transcripts and traces compare this line."""
    log = open_log(MemoryDisk())
    fill(log, "a", "b", epoch=4)
    assert repr(log) == "<log orders-0 start=0 end=2 synced=0 e4 segments=1 size=140>"
    assert (
        log.describe()
        == "orders-0             start=0        end=2        synced=0        e4    segments=1    size=140"
    )


def test_the_leader_stamps_and_leaves_the_rest_alone():
    """D4: base offset and epoch, nothing else; the client's checksum still holds."""
    log = open_log(MemoryDisk())
    fill(log, "a")
    sent = client_batch("b", "c", compression="lz4")
    log.append_as_leader(sent, leader_epoch=6, wall_ms=TIME)
    (stored,) = split(b"".join(log.read(1, max_bytes=1000).buffers))
    verify(stored.data)
    assert (stored.base_offset, stored.leader_epoch, stored.crc) == (1, 6, sent.crc)
    assert stored.data[16:] == sent.data[16:]


def test_log_append_time():
    """KAFKA-FACTS 2: the broker's clock stamps every record; a duplicate is told the first time."""
    log = open_log(MemoryDisk(), TopicConfig(message_timestamp_type="LogAppendTime"))
    batch = client_batch("a", "b", time=5, producer_id=1, producer_epoch=0, base_sequence=0)
    assert log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME).log_append_time_ms == TIME
    assert log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME + 9).log_append_time_ms == TIME
    (stored,) = split(everything(log))
    assert {record.timestamp for record in decode_batch(verify(stored.data))} == {TIME}
    assert found_by_time(log, TIME) == (TIME, 0, 0)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (TopicConfig(max_message_bytes=100), MessageTooLarge),
        (TopicConfig(segment_bytes=100), RecordListTooLarge),
        (TopicConfig(message_timestamp_before_max_ms=10), InvalidTimestamp),
    ],
)
def test_limits(config: TopicConfig, error: type[Exception]):
    """KAFKA-FACTS 1.3, 2: refused before a byte is written."""
    log = open_log(MemoryDisk(), config)
    with pytest.raises(error):
        log.append_as_leader(client_batch("x" * 100, time=TIME - 11), leader_epoch=0, wall_ms=TIME)
    assert (log.end_offset, log.size_bytes, log.failure) == (0, 0, None)


@pytest.mark.parametrize("config", [TopicConfig(max_message_bytes=100), TopicConfig(segment_bytes=100)])
def test_a_duplicate_is_found_before_limits_that_were_lowered_since(config: TopicConfig):
    """A producer takes "too large" as proof that the batch is not in the log, and splits it."""
    log = open_log(MemoryDisk())
    batch = client_batch("x" * 100, producer_id=1, producer_epoch=0, base_sequence=0)
    log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME)
    log.config = config
    info = log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME)
    assert (info.base_offset, info.duplicate, log.end_offset) == (0, True, 1)


def test_timestamps_may_lie_an_hour_ahead():
    """message.timestamp.after.max.ms: the bound itself is allowed."""
    log = open_log(MemoryDisk())
    fill(log, "a", time=TIME + 3_600_000)
    with pytest.raises(InvalidTimestamp):
        fill(log, "b", time=TIME + 3_600_001)


def test_a_leaders_epoch_never_falls():
    """KAFKA-FACTS 10.7."""
    log = open_log(MemoryDisk())
    fill(log, "a", epoch=3)
    with pytest.raises(InvariantViolation):
        fill(log, "b", epoch=2)


# --------------------------------------------------------------------------------------------- rolling


def test_a_segment_is_full_at_segment_bytes():
    """KAFKA-FACTS 1.3: roll before the append that would exceed it."""
    log = open_log(MemoryDisk(), TopicConfig(segment_bytes=140))
    fill(log, "a", "b")
    assert log.segment_count == 1
    fill(log, "c")
    assert log.segment_count == 2


def test_a_segment_is_old_by_record_time():
    """KAFKA-FACTS 1.3: the incoming batch's time against the first batch's, not the wall clock; also after a restart."""
    for reopen in (False, True):
        disk = MemoryDisk()
        log = open_log(disk, TopicConfig(segment_ms=1000))
        fill(log, "a", time=TIME)
        fill(log, "b", time=TIME + 1000)
        if reopen:
            log = open_log(disk, TopicConfig(segment_ms=1000))
            run(log.sync())
        assert log.segment_count == 1
        fill(log, "c", time=TIME + 1001)
        assert log.segment_count == 2


def test_a_segment_that_was_emptied_is_as_old_as_what_comes_next():
    """The time of a record that was cut off is forgotten."""
    log = open_log(MemoryDisk(), TopicConfig(segment_ms=1000))
    log.append_as_leader(client_batch("a", "b", "c"), leader_epoch=0, wall_ms=TIME)
    log.truncate_to(1)
    assert log.size_bytes == 0
    run(log.sync())
    fill(log, "d", time=TIME + 5000)
    fill(log, "e", time=TIME + 5500)
    assert log.segment_count == 1


def test_an_empty_segment_is_not_rolled():
    """Two segments cannot have one base offset."""
    log = open_log(MemoryDisk())
    log.roll()
    fill(log, "a")
    log.roll()
    log.roll()
    assert log.segment_count == 2


def test_a_roll_leaves_kafkas_files():
    """KAFKA-FACTS 1.3: indexes of the sealed segment, a producer snapshot at the new base."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a")
    log.roll()
    assert disk.names("orders-0") == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000001.log",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert disk.read_file("orders-0/leader-epoch-checkpoint") == b"0\n1\n0 0\n"


# --------------------------------------------------------------------------------------------- reading


def test_reading_outside_the_log():
    """KAFKA-FACTS 3.7: below the start or above LEO is OFFSET_OUT_OF_RANGE, at LEO is empty."""
    log = open_log(MemoryDisk())
    fill(log, *"abc")
    log.raise_start(1)
    for offset in (0, 4, -1):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, max_bytes=100)
    assert log.read(3, max_bytes=100).buffers == ()
    assert (log.read(3, max_bytes=100).first_offset, log.read(3, max_bytes=100).next_offset) == (3, 3)


def test_the_tail_answers_without_a_disk_read():
    """PERFORMANCE 7: followers at the tail must not cost a pread each."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdef")
    reads = disk.reads
    part = log.read(2, max_bytes=150)
    assert (part.first_offset, part.next_offset, part.size) == (2, 4, 140)
    assert disk.reads == reads


def test_the_tail_and_the_files_say_the_same():
    """The tail is a copy: every read gives the same bytes with and without it."""
    with_tail = open_log(MemoryDisk(), tail_size_max=10_000)
    fill(with_tail, *"abcdefghij")
    parts = {
        (offset, max_bytes, end): with_tail.read(offset, max_bytes=max_bytes, end_offset=end)
        for offset in range(11)
        for max_bytes in (0, 70, 139, 140, 141, 400)
        for end in (0, 3, 5, 10)
    }
    on_disk(with_tail)
    for (offset, max_bytes, end), part in parts.items():
        read = with_tail.read(offset, max_bytes=max_bytes, end_offset=end)
        mine, theirs = b"".join(part.buffers), b"".join(read.buffers)
        assert mine.startswith(theirs)  # a file read ends with its segment
        assert bool(mine) == bool(theirs)


def test_the_tail_is_bounded_and_pins_no_request():
    """A small batch out of a large body is copied, so that the body can go."""
    log = open_log(MemoryDisk(), TopicConfig(), tail_size_max=1000)
    body = bytearray(1_000_000)
    sent = client_batch("x" * 100)
    body[: sent.size] = sent.data
    view = memoryview(body)[: sent.size]
    for _ in range(50):
        log.append_as_leader(RecordBatch.of(view), leader_epoch=0, wall_ms=TIME)
    assert 0 < log.tail.size <= 1000
    view.release()
    body[:200] = bytes(200)  # whoever reuses the buffer changes nothing that is stored
    assert [verify(b.data).base_offset for b in split(b"".join(log.read(48, max_bytes=999).buffers))] == [48, 49]


def test_a_body_in_a_reused_buffer_is_copied_however_large_it_is():
    """A receive buffer may be filled again while followers still read from the tail."""
    log = open_log(MemoryDisk(), TopicConfig())
    sent = client_batch("x" * 100_000)
    buffer = bytearray(sent.data)
    log.append_as_leader(RecordBatch.of(buffer), leader_epoch=0, wall_ms=TIME)
    buffer[100:200] = bytes(100)
    (stored,) = split(b"".join(log.read(0, max_bytes=1).buffers))
    verify(stored.data)


def test_a_cut_empties_the_tail():
    """Bytes of a deposed leader must not be served from memory after they were cut."""
    log = open_log(MemoryDisk())
    fill(log, *"abc")
    log.truncate_to(1)
    fill(log, "x", epoch=1)
    assert values(log) == ["a", "x"]


# --------------------------------------------------------------------------------------------- following


def fetched(log: object, offset: int) -> list[RecordBatch]:
    return split(b"".join(log.read(offset, max_bytes=10_000).buffers))  # type: ignore[attr-defined]


def test_a_follower_refuses_damage_before_it_writes_anything():
    """KAFKA-FACTS 2: CRC of every batch, first offset at or beyond LEO."""
    leader, follower = open_log(MemoryDisk()), open_log(MemoryDisk())
    fill(leader, *"abc")
    batches = fetched(leader, 0)
    damaged = bytearray(batches[2].data)
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessage, match="crc"):
        follower.append_as_follower([*batches[:2], RecordBatch.of(damaged)])
    with pytest.raises(CorruptMessage, match="goes on at"):
        follower.append_as_follower([batches[1], batches[0]])
    assert (follower.end_offset, follower.failure) == (0, None)
    follower.append_as_follower(batches)
    with pytest.raises(CorruptMessage, match="goes on at"):
        follower.append_as_follower(batches)
    assert values(follower) == ["a", "b", "c"]


def test_a_large_fetch_is_spread_over_segments():
    """Followers skip the size check, yet their segments stay bounded."""
    leader, follower = open_log(MemoryDisk(), TopicConfig()), open_log(MemoryDisk())
    fill(leader, *"abcdefghijkl")
    info = follower.append_as_follower(fetched(leader, 0))
    assert (info.base_offset, info.last_offset, follower.segment_count) == (0, 11, 3)
    assert everything(on_disk(follower)) == everything(leader)
    assert follower.append_as_follower([]).last_offset == 11


# --------------------------------------------------------------------------------------------- cutting


def test_truncation_keeps_what_is_below():
    """KAFKA-FACTS 3.6: [0, x); later segments, their snapshots and epochs go; the log goes on."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdefgh", epoch=0)
    fill(log, *"ijkl", epoch=1)
    assert log.truncate_to(6) == 6
    assert (log.end_offset, log.last_epoch, log.epochs.entries) == (6, 0, [(0, 0)])
    assert values(on_disk(log)) == list("abcdef")
    assert not [name for name in disk.names("orders-0") if name.endswith(".snapshot") and int(name[:20]) > 6]
    fill(log, "x", epoch=2)
    assert values(on_disk(log)) == [*"abcdef", "x"]
    assert values(open_log(disk)) == [*"abcdef", "x"]


def test_truncation_at_or_above_the_end_still_drops_an_empty_epoch():
    """KAFKA-10706: an epoch that began at the end, without records, would else be answered for."""
    log = open_log(MemoryDisk())
    fill(log, "a")
    log.assign_epoch(5, 1)
    assert log.truncate_to(1) == 0
    assert log.last_epoch == 0


def test_truncation_inside_a_batch_takes_the_whole_batch():
    """The log consists of whole batches."""
    log = open_log(MemoryDisk())
    log.append_as_leader(client_batch(*"ab"), leader_epoch=0, wall_ms=TIME)
    log.append_as_leader(client_batch(*"cd"), leader_epoch=0, wall_ms=TIME)
    assert log.truncate_to(3) == 2
    assert log.end_offset == 2


def test_restart_begins_an_empty_log_elsewhere():
    """KAFKA-FACTS 3.6: the leader's start lies beyond the follower's end."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdefgh")
    log.restart_at(100)
    assert (log.start_offset, log.end_offset, log.size_bytes, log.last_epoch) == (100, 100, 0, -1)
    assert [name for name in disk.names("orders-0") if name.endswith(".log")] == ["00000000000000000100.log"]


def test_the_start_rises_and_never_falls():
    """DeleteRecords: the log start offset is monotone and within the log."""
    log = open_log(MemoryDisk())
    fill(log, *"abc")
    assert log.raise_start(2)
    assert not log.raise_start(1)
    assert log.start_offset == 2
    assert log.epochs.entries == [(0, 2)]
    with pytest.raises(InvariantViolation):
        log.raise_start(4)


# --------------------------------------------------------------------------------------------- syncing


def step(sync: object) -> bool:
    """One step of a sync; False when it is done."""
    try:
        sync.send(None)  # type: ignore[attr-defined]
    except StopIteration:
        return False
    return True


def test_a_sync_covers_what_stood_when_it_was_called():
    """D6: group commit; what comes later rides on the next one."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a")
    disk.held = True
    sync = log.sync()
    step(sync)
    fill(log, "b")
    while step(sync):
        pass
    assert (log.synced_end, log.end_offset) == (1, 2)


def test_a_region_written_anew_is_not_synced_by_the_sync_before_the_cut():
    """Else a follower would acknowledge as durable a record that only the page cache holds."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abc")
    disk.held = True
    sync = log.sync()
    step(sync)
    log.truncate_to(1)
    fill(log, *"xyz", epoch=1)
    while step(sync):
        pass
    assert log.synced_end == 1
    disk.held = False
    run(log.sync())
    assert log.synced_end == 4


def test_what_changes_while_a_sync_runs_is_covered_by_the_next_one():
    """D6: records, the leader-epoch checkpoint, and the names of a new segment, at each point of the first sync."""
    points = 0
    while True:
        disk = MemoryDisk()
        log = open_log(disk)
        fill(log, *"ab")
        run(log.sync())
        log.roll()
        fill(log, "c", epoch=1)
        disk.held = True
        sync = log.sync()
        if not all(step(sync) for _ in range(points + 1)):
            break
        points += 1
        fill(log, "d", epoch=2)
        log.roll()
        while step(sync):
            pass
        disk.held = False
        run(log.sync())
        assert log.synced_end == 4
        assert {path for path, inode in disk.inodes.items() if inode.durable != inode.content} == set(), points
        assert disk.durable_names == disk.inodes, points
    assert points > len(("segments", "indexes", "epochs", "folders"))


def test_two_syncs_at_once():
    """Each promises its own end, in whatever order they finish; no file is closed under them."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a")
    disk.held = True
    first = log.sync()
    step(first)
    fill(log, *"bcdefgh")
    second = log.sync()
    while step(second):
        pass
    assert log.synced_end == 8
    log.truncate_to(3)
    while step(first):
        pass
    assert log.synced_end == 3


def test_a_cut_lowers_the_promise_at_once():
    """The next fetch offset of a follower is its synced end."""
    log = open_log(MemoryDisk())
    fill(log, *"abc")
    run(log.sync())
    log.truncate_to(2)
    assert (log.synced_end, log.recovery_point) == (2, 2)


def test_a_cut_is_durable_after_the_next_sync():
    """A power cut would bring back what was cut off, though nothing was appended since."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abc")
    run(log.sync())
    log.truncate_to(2)
    run(log.sync())
    file = disk.inodes[f"orders-0/{offset_name(0, '.log')}"]
    assert file.durable == file.content


def test_the_recovery_point_waits_for_the_indexes_of_a_sealed_segment():
    """What is below it is believed without being walked, so the index files must be durable, too."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a", "b")
    run(log.sync())
    assert log.recovery_point == 2
    log.roll()
    fill(log, "c")
    assert log.wants_sync is False  # its bytes are durable; its indexes may wait
    run(log.sync())
    assert log.recovery_point == 3
    fill(log, *"defgh")
    assert log.wants_sync
    log._store.save_indexes(log._store.segments[0])  # as after compaction that was given up
    assert log.recovery_point == 2
    run(log.sync())
    assert log.recovery_point == 8


def test_a_start_that_moves_while_it_is_saved_is_saved_again():
    """Segments below it go once it is durable; with the former start a power cut between them would leave a hole."""
    saved: list[int] = []

    async def save_start() -> None:
        saved.append(log.start_offset)
        if len(saved) == 1:
            log.raise_start(2)

    log = open_log(MemoryDisk(), save_start=save_start)
    fill(log, *"abc")
    log.raise_start(1)
    run(log.sync())
    assert not log._durability.start_is_saved
    run(log.sync())
    assert saved == [1, 2]


def test_no_roll_below_a_recovery_point_that_stands_on_disk():
    """After a cut below it the segment must stay the last one until another point is saved: else the old one lets a start
    believe it, and its index files, which are synced only after it was sealed (see SegmentStore.roll).
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdefghijkl")
    run(log.sync())
    log.recovery_point_checkpointed(12, done=True)
    log.truncate_to(2)
    fill(log, *"ABCDEFG", epoch=1)
    assert log.segment_count == 1
    assert log.wants_sync
    run(log.sync())
    fill(log, "H", epoch=1)
    assert (log.segment_count, log.wants_checkpoint) == (1, True)
    log.recovery_point_checkpointed(log.recovery_point, done=True)
    fill(log, "I", epoch=1)
    assert (log.segment_count, log.wants_checkpoint) == (2, False)


# --------------------------------------------------------------------------------------------- failing


def test_a_failed_append_stops_the_log():
    """KAFKA-10778: after an I/O error nobody knows what the file holds; no further append."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a")
    disk.failing.add(LOG)
    with pytest.raises(KafkaStorageError) as failed:
        fill(log, "b")
    assert failed.value.outcome == "unknown"
    disk.failing.clear()
    with pytest.raises(KafkaStorageError) as refused:
        fill(log, "b")
    assert refused.value.outcome == "not_written"
    assert log.failure is not None
    assert values(log) == ["a"]
    assert values(open_log(disk)) == ["a"]


def test_a_full_disk_stops_the_log_and_loses_nothing():
    """A full disk: refused as not written, what stands stays readable."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a")
    disk.capacity = disk.used()
    with pytest.raises(KafkaStorageError) as failed:
        fill(log, "b")
    assert failed.value.outcome == "not_written"
    assert values(on_disk(log)) == ["a"]


def test_a_failed_sync_is_fatal():
    """After a failed fsync the system may have dropped the pages: never retried, never promised."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a")
    disk.failing.add(LOG)
    with pytest.raises(DiskFailed):
        run(log.sync())
    disk.failing.clear()
    with pytest.raises(DiskFailed):
        run(log.sync())  # it would succeed, and promise what the system may have dropped
    assert log.synced_end == 0
    with pytest.raises(KafkaStorageError):
        fill(log, "b")


@pytest.mark.parametrize("steps", range(1, 10))
def test_a_retired_log_touches_no_file(steps: int):
    """A deleted topic's folder was renamed: opening a file by its old name would make the folder again.

    A sync of the folder that waited for the disk's thread does not find it. The disk has not failed for that: the
    broker stopped.
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdefgh")
    disk.held = True
    sync = log.sync()
    for _ in range(steps):
        step(sync)
    log.retire("deleted")
    disk.replace("orders-0", "gone")
    while step(sync):
        pass
    disk.held = False
    run(log.sync())
    for touch in (
        lambda: log.read(0, max_bytes=1),
        lambda: found_by_time(log, 0),
        lambda: fill(log, "x"),
        log.roll,
    ):
        with pytest.raises(KafkaStorageError):
            touch()
    assert log.synced_end == log.end_offset
    assert not disk.exists("orders-0")
    assert not disk.open_files


def test_a_file_that_became_shorter_is_an_error_not_an_answer():
    """Bytes that are gone must not be served as fewer bytes."""
    disk = MemoryDisk()
    log = on_disk(open_log(disk, SMALL))
    fill(log, *"abc")
    log.tail.clear()
    del disk.inodes[LOG].content[150:]
    with pytest.raises(CorruptMessage):
        log.read(0, max_bytes=1000)


def three_batches(segment_bytes: int) -> tuple[MemoryDisk, PartitionLog, str, int]:
    """A log of three batches of three records, and where the second one stands: its file, and the byte."""
    disk = MemoryDisk()
    log = on_disk(open_log(disk, replace(SMALL, segment_bytes=segment_bytes)))
    batch = build_batch([Record(offset, TIME, value=b"v") for offset in range(3)])
    for _ in range(3):
        log.append_as_leader(verify_client(batch), leader_epoch=0, wall_ms=TIME)
    log.tail.clear()
    path, start = (LOG, len(batch)) if segment_bytes > 100 else (f"orders-0/{offset_name(3, '.log')}", 0)
    return disk, log, path, start


@pytest.mark.parametrize("segment_bytes", [1 << 20, 100])
def test_no_damaged_bit_of_a_header_makes_a_read_pass_over_its_batch(segment_bytes: int):
    """Seed 651803867: a rotten lastOffsetDelta looked like one of compaction's gaps; the fetch began behind the batch."""
    disk, log, path, start = three_batches(segment_bytes)
    refused = 0
    for at in range(CHECKED_START - 4, HEADER_SIZE):
        for bit in range(8):
            disk.inodes[path].content[start + at] ^= 1 << bit
            for offset in (3, 4, 5):
                try:
                    found = log.read(offset, max_bytes=1000)
                except CorruptMessage:
                    refused += 1
                else:
                    assert found.first_offset == 3, (at, bit, offset)
            disk.inodes[path].content[start + at] ^= 1 << bit
    assert refused >= 5  # the sign makes it end before 3, other bits before 4 or 5
    assert log.read(4, max_bytes=1000).first_offset == 3


@pytest.mark.parametrize("segment_bytes", [1 << 20, 100])
def test_no_damaged_bit_of_a_base_offset_hides_a_record(segment_bytes: int):
    """No checksum covers it. The batches around it show that it is wrong, and who does not need the batch can go on."""
    disk, log, path, start = three_batches(segment_bytes)
    for at in range(8):
        for bit in range(8):
            disk.inodes[path].content[start + at] ^= 1 << bit
            for offset in (3, 4, 5):
                try:
                    found = log.read(offset, max_bytes=1000)
                except CorruptMessage:
                    continue
                assert found.first_offset == 3, (at, bit, offset)
            for offset, base in ((2, 0), (6, 6), (8, 6)):
                assert log.read(offset, max_bytes=1000, end_offset=9).first_offset == base, (at, bit, offset)
            assert log.read(0, max_bytes=1000, end_offset=3).next_offset == 3
            disk.inodes[path].content[start + at] ^= 1 << bit


def test_what_stands_before_a_damaged_length_is_read():
    """The walk to the end of what fits met the damage: CorruptMessage, or an invariant that took the broker along."""
    disk, log, path, start = three_batches(1 << 20)
    for at in range(8, 17):
        if 12 <= at < 16:
            continue  # the leader epoch
        for bit in range(8):
            disk.inodes[path].content[start + at] ^= 1 << bit
            found = log.read(1, max_bytes=start + 40)
            assert (found.first_offset, found.size >= start) == (0, True), (at, bit)
            disk.inodes[path].content[start + at] ^= 1 << bit
    assert log.read(1, max_bytes=start + 40).next_offset == 3


def test_no_damaged_bit_of_an_offset_index_hides_a_record():
    """It has no checksum. An entry that led behind what is sought made readers pass over records, as in a gap, and a
    truncation keep what had to go.
    """
    disk = MemoryDisk()
    config = replace(SMALL, segment_bytes=2000)
    log = open_log(disk, config)
    fill(log, *[f"{number:02}" for number in range(20)])
    log.roll()
    fill(log, "20")
    run(log.sync())
    log.prepare_close()
    log.close()
    path = LOG.replace(".log", ".index")
    entries = len(disk.read_file(path))
    assert entries >= 6 * 8
    rebuilt = []
    for at in range(entries):
        for bit in range(8):
            damaged = copy.deepcopy(disk)
            damaged.inodes[path].content[at] ^= 1 << bit
            log = open_log(
                damaged, config, clean=True, recovery_point=21, events=lambda kind, **_: rebuilt.append(kind)
            )
            for offset in range(20):
                assert log.read(offset, max_bytes=100).first_offset == offset, (at, bit)
            assert log.read(5, max_bytes=1000).size > 900
            for time in (TIME, TIME + 1):
                assert found_by_time(log, time) == (TimestampHit(TIME, 0, 0) if time == TIME else None)
            log.truncate_to(7)
            assert (log.end_offset, values(log)) == (7, [f"{number:02}" for number in range(7)])
    assert "index_rebuilt" in rebuilt


def test_no_damaged_bit_of_a_time_index_deletes_or_hides_a_record():
    """It has no checksum either. Retention deleted a segment that a smaller timestamp made old, or nothing any more."""
    disk = MemoryDisk()
    config = replace(SMALL, segment_bytes=2000, retention_ms=100_000)
    log = open_log(disk, config)
    times = [TIME + 1000 * number for number in range(20)]
    for time in times:
        fill(log, "v", time=time)
    log.roll()
    fill(log, "v", time=times[-1])
    run(log.sync())
    log.prepare_close()
    log.close()
    path = LOG.replace(".log", ".timeindex")
    entries = len(disk.read_file(path))
    assert entries >= 6 * 12
    for at in range(entries):
        for bit in range(8):
            damaged = copy.deepcopy(disk)
            damaged.inodes[path].content[at] ^= 1 << bit
            log = open_log(damaged, config, clean=True, recovery_point=21)
            for offset, time in enumerate(times):
                assert found_by_time(log, time) == TimestampHit(time, offset, 0), (at, bit)
            assert newest_record(log) == TimestampHit(times[-1], 19, 0), (at, bit)
            assert newest_record(log, 15) == TimestampHit(times[14], 14, 0), (at, bit)
            assert log.expired_segments(times[-1] + 100_000, high_watermark=21) == [], (at, bit)
            assert len(log.expired_segments(times[-1] + 100_001, high_watermark=21)) == 2, (at, bit)


@pytest.mark.parametrize("segment_bytes", [100, 1000], ids=["at a segment's end", "in a segment"])
def test_a_reader_that_has_read_a_batch_goes_on_behind_it_though_it_is_damaged(segment_bytes: int):
    """Seed 940003834: a rotten lastOffsetDelta seemed to hold the next offset; no in-sync follower could read on."""
    disk, log, path, start = three_batches(segment_bytes)
    for at in range(CHECKED_START - 4, HEADER_SIZE):
        for bit in range(8):
            disk.inodes[path].content[start + at] ^= 1 << bit
            found = log.read(6, max_bytes=1000)
            assert (found.first_offset, found.next_offset) == (6, 9), (at, bit)
            disk.inodes[path].content[start + at] ^= 1 << bit


def test_a_damaged_base_offset_of_the_next_batch_hides_no_record_of_the_one_before():
    """No checksum covers it, so the batch that seems to be overrun has to be damaged itself."""
    disk = MemoryDisk()
    log = on_disk(open_log(disk, SMALL))
    batch = build_batch([Record(offset, TIME, value=b"v") for offset in range(3)])
    for _ in range(2):
        log.append_as_leader(verify_client(batch), leader_epoch=0, wall_ms=TIME)
    log.tail.clear()
    disk.inodes[LOG].content[len(batch) + 7] ^= 2  # 3 becomes 1
    assert log.read(2, max_bytes=1000).first_offset == 0


def test_a_damaged_header_at_the_end_of_a_segment_is_not_a_gap_after_a_restart():
    """A sealed segment ends where the next one begins, whatever its last header says."""
    config = replace(SMALL, segment_bytes=100)
    disk = MemoryDisk()
    log = on_disk(open_log(disk, config))
    batch = build_batch([Record(offset, TIME, value=b"v") for offset in range(3)])
    for _ in range(3):
        log.append_as_leader(verify_client(batch), leader_epoch=0, wall_ms=TIME)
    disk.inodes[f"orders-0/{offset_name(3, '.log')}"].content[26] ^= 2
    log = on_disk(open_log(disk, config, recovery_point=log.end_offset, clean=True))
    assert log.end_offset == 9
    with pytest.raises(CorruptMessage, match="no batch holds offset 5"):
        log.read(5, max_bytes=1000)
    assert log.read(6, max_bytes=1000).first_offset == 6


def test_damaged_header_at_the_end_of_a_segment_takes_no_later_segment_along_after_a_kill():
    """Its segment seemed to end behind the beginning of the next one, which was synced, and so were those after it."""
    config = replace(SMALL, segment_bytes=100)
    disk = MemoryDisk()
    log = on_disk(open_log(disk, config))
    batch = build_batch([Record(offset, TIME, value=b"v") for offset in range(3)])
    for _ in range(3):
        log.append_as_leader(verify_client(batch), leader_epoch=0, wall_ms=TIME)
    disk.inodes[f"orders-0/{offset_name(3, '.log')}"].content[26] ^= 4
    log = on_disk(open_log(disk, config, recovery_point=log.end_offset))
    assert (log.end_offset, log.report.dropped) == (9, [])
    assert log.read(6, max_bytes=1000).first_offset == 6


@pytest.mark.parametrize("emptied", [0, 2])
def test_a_segment_whose_file_was_emptied_ends_no_broker(emptied: int):
    """Retention passed over it, and an invariant stopped the broker: only the oldest segments may go."""
    disk = MemoryDisk()
    log = open_log(disk, replace(SMALL, segment_bytes=100, retention_ms=1000))
    fill(log, *"abcd")
    run(log.sync())
    log.prepare_close()
    log.close()
    del disk.inodes[f"orders-0/{offset_name(emptied, '.log')}"].content[:]
    log = open_log(disk, replace(SMALL, segment_bytes=100, retention_ms=1000), clean=True, recovery_point=4)
    with pytest.raises(CorruptMessage):
        log.read(emptied, max_bytes=1000)
    assert newest_record(log) == TimestampHit(TIME, 1 if emptied == 0 else 0, 0)
    expired = log.expired_segments(TIME + 1001, high_watermark=4)
    assert run(log.delete_segments(expired))
    assert (log.start_offset, log.end_offset) == (4, 4)


def test_a_log_whose_first_batch_is_damaged_takes_appends():
    """The time to roll counts from its header: each produce request was refused with CORRUPT_MESSAGE after a restart."""
    disk = MemoryDisk()
    log = open_log(disk, replace(SMALL, segment_bytes=1000))
    fill(log, *"abcd")
    run(log.sync())
    log.prepare_close()
    log.close()
    disk.inodes[LOG].content[16] ^= 0xFF
    log = open_log(disk, replace(SMALL, segment_bytes=1000), clean=True, recovery_point=4)
    assert log.end_offset == 4
    fill(log, "e")
    assert log.read(4, max_bytes=1000).next_offset == 5


def test_a_rotten_batch_fails_who_reads_there_and_nobody_else():
    """Bit rot in an old batch's header must not take the replica offline: what is whole is still read and written."""
    told = []
    disk = MemoryDisk()
    log = on_disk(open_log(disk, SMALL, events=lambda kind, /, **facts: told.append(kind)))
    fill(log, *"abc")
    log.tail.clear()
    size = log.size_bytes // 3
    disk.inodes[LOG].content[size + 16] ^= 0xFF
    with pytest.raises(CorruptMessage, match="the log is damaged here"):
        log.read(1, max_bytes=1000)
    assert told[-1] == "damage_read"
    assert log.failure is None
    fill(log, "d")
    assert log.end_offset == 4
