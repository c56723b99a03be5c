"""Compaction of one log on disk: latest values, offsets, sequences; and crashes at every disk operation (S1, S9, S29).

The model is the list of all records ever appended. A compacted log holds some of them, in order, at their offsets, and
the last of each key is always among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minikafka.config import TopicConfig
from minikafka.errors import CorruptMessage, DiskFull, OutOfOrderSequenceNumber
from minikafka.log.cleaner import Cleaned
from minikafka.log.compaction import MAP_ENTRY_SIZE
from minikafka.log.names import offset_name
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Buffers
from minikafka.types import EpochEnd
from minikafka.wire.batch import RecordBatch, split, verify_client
from minikafka.wire.records import Record, build_batch, decode_batch
from minikafka.wire.rewrite import delete_horizon
from tests.rules.log_words import TIME, everything, found_by_time, newest_record, on_disk, open_log
from tests.rules.memory_disk import MemoryDisk, MemoryFile, run

COMPACT = TopicConfig(cleanup_policy="compact", segment_bytes=400, index_interval_bytes=100, delete_retention_ms=1000)
BIG_MAP = 1000 * MAP_ENTRY_SIZE

Row = tuple[int, str, str | None]
"""Offset, key, value; None is a tombstone."""


def keyed(*pairs: tuple[str | None, str | None], time: int = TIME, **options: Any) -> RecordBatch:
    return verify_client(
        build_batch(
            [
                Record(0, time, key=None if k is None else k.encode(), value=None if v is None else v.encode())
                for k, v in pairs
            ],
            **options,
        )
    )


def put(log: PartitionLog, *pairs: tuple[str | None, str | None], epoch: int = 0, **options: Any) -> int:
    return log.append_as_leader(keyed(*pairs, **options), leader_epoch=epoch, wall_ms=TIME).base_offset


def rows(log: PartitionLog) -> list[Row]:
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for batch in split(everything(on_disk(log)))
        for record in decode_batch(batch)
    ]


def latest(found: list[Row]) -> dict[str, tuple[int, str | None]]:
    return {key: (offset, value) for offset, key, value in found}


async def no_pause(size: int) -> None:
    assert size > 0


def clean(
    log: PartitionLog,
    *,
    high_watermark: int | None = None,
    now_ms: int = TIME,
    memory_bytes: int = BIG_MAP,
    pause: Callable[[int], Any] = no_pause,
) -> Cleaned:
    mark = log.end_offset if high_watermark is None else high_watermark
    dirty = log.dirty_range(high_watermark=mark, now_ms=now_ms)
    found: Cleaned = run(log.clean(dirty, memory_bytes=memory_bytes, clock_ms=lambda: now_ms, pause=pause))
    return found


def filled(disk: MemoryDisk, config: TopicConfig = COMPACT, rounds: int = 5) -> PartitionLog:
    """Keys a to e, written ``rounds`` times, in several segments, synced; the active segment is not empty."""
    log = open_log(disk, config)
    for number in range(rounds):
        for key in "abcde":
            put(log, (key, f"{key}{number}" + "x" * 20))
    run(log.sync())
    return log


def test_the_last_of_each_key_stays_at_its_offset():
    """KAFKA-FACTS 1.5: offsets never change, and what lies in the active segment is left alone."""
    log = filled(MemoryDisk())
    before = rows(log)
    cleaned = clean(log)
    after = rows(log)

    assert latest(after) == latest(before)
    assert [row for row in before if row in after] == after
    active = log.dirty_range(high_watermark=log.end_offset, now_ms=TIME).first_uncleanable
    assert [offset for offset, _, _ in after if offset < active] == sorted(
        offset for offset, _ in latest([row for row in before if row[0] < active]).values()
    )
    assert (log.end_offset, log.clean_end) == (25, active)
    assert (cleaned.end_offset, cleaned.is_complete, cleaned.was_interrupted) == (active, True, False)
    assert cleaned.records_before == active
    assert cleaned.records_after == len([row for row in after if row[0] < active])


def test_a_second_round_finds_nothing_and_a_new_value_replaces_a_clean_one():
    """The checkpoint says what is clean; a clean record goes when a dirty one has its key."""
    log = filled(MemoryDisk())
    clean(log)
    assert log.dirty_range(high_watermark=log.end_offset, now_ms=TIME).dirty_bytes == 0
    put(log, ("a", "new"))
    log.roll()
    run(log.sync())
    segments = log.segment_count
    clean(log)
    assert [row for row in rows(log) if row[1] == "a"] == [(25, "a", "new")]
    # What the first round has made small is joined by the second.
    assert log.segment_count < segments - 3


def test_every_offset_can_be_read_over_the_gaps():
    """A fetch from an offset that is gone begins at the next record (S8)."""
    log = filled(MemoryDisk())
    clean(log)
    found = rows(log)
    for offset in range(log.end_offset):
        position, first = offset, None
        while first is None:  # a batch that is kept for its end or its sequence has no records
            part = log.read(position, max_bytes=1)
            assert position < part.next_offset <= log.end_offset
            batches = split(b"".join(part.buffers))
            first = next((r.offset for b in batches for r in decode_batch(b) if r.offset >= offset), None)
            position = part.next_offset
        assert first == next(at for at, _, _ in found if at >= offset)
        # None that reaches the end asked for, and the reader never stands beyond it.
        bounded = log.read(offset, max_bytes=10_000, end_offset=offset + 1)
        assert bounded.next_offset <= offset + 1


def test_nothing_at_or_above_the_high_watermark_is_touched():
    """S2: what is not committed may be cut; then the value before it is the last one."""
    log = filled(MemoryDisk())
    before = rows(log)
    clean(log, high_watermark=7)
    assert [row for row in rows(log) if row[0] >= 7] == [row for row in before if row[0] >= 7]
    assert log.clean_end is not None
    assert log.clean_end <= 7


def test_nothing_unsynced_makes_a_synced_value_go():
    """A power cut takes what is not synced: the value that it would have replaced is still there."""
    disk = MemoryDisk()
    log = filled(disk, rounds=2)
    for key in "abcde":
        put(log, (key, "late" + "x" * 60))
    log.roll()
    clean(log)
    assert {key for offset, key, _ in rows(log) if offset < 10} == set("abcde")


def test_tombstones_go_after_their_time():
    """KIP-534: the first cleaning dates them, one after delete.retention.ms drops them, and the key is gone."""
    log = open_log(MemoryDisk(), COMPACT)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None))
    log.roll()
    put(log, ("c", "1"))
    log.roll()
    run(log.sync())
    clean(log, now_ms=TIME)
    assert rows(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    assert [record.timestamp for batch in split(everything(log)) for record in decode_batch(batch)] == [TIME] * 3

    def again(now_ms: int) -> list[Row]:
        put(log, ("d", "x"))
        log.roll()
        run(log.sync())
        clean(log, now_ms=now_ms)
        return [row for row in rows(log) if row[1] != "d"]

    assert again(TIME + 999) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    assert again(TIME + 1000) == [(1, "b", "1"), (3, "c", "1")]


def test_a_producer_goes_on_after_its_records_are_gone():
    """S9: its last batch stays as an empty one; a duplicate is known, a gap refused, also after a start."""
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    put(log, ("k", "1"), producer_id=1, producer_epoch=0, base_sequence=0)
    put(log, ("k", "2"), producer_id=1, producer_epoch=0, base_sequence=1)
    put(log, ("k", "3"), producer_id=2, producer_epoch=0, base_sequence=0)
    put(log, ("z", "1"))
    log.roll()
    put(log, ("y", "1"))
    run(log.sync())
    clean(log)
    assert rows(log) == [(2, "k", "3"), (3, "z", "1"), (4, "y", "1")]
    assert [b.base_offset for b in split(everything(log)) if b.record_count == 0] == [0, 1]  # 0 begins the epoch
    for path in disk.names("orders-0"):
        if path.endswith(".snapshot"):  # a follower, or a lost file: the batches alone must tell
            disk.remove(f"orders-0/{path}")
    log = open_log(disk, COMPACT, recovery_point=log.recovery_point)
    again = log.append_as_leader(
        keyed(("k", "2"), producer_id=1, producer_epoch=0, base_sequence=1), leader_epoch=0, wall_ms=TIME
    )
    assert (again.duplicate, again.base_offset) == (True, 1)
    with pytest.raises(OutOfOrderSequenceNumber):
        put(log, ("k", "5"), producer_id=1, producer_epoch=0, base_sequence=4)
    assert put(log, ("k", "4"), producer_id=1, producer_epoch=0, base_sequence=2) == 5


def test_a_last_batch_that_may_still_be_cut_does_not_let_the_one_before_it_go():
    """Cut above the high watermark, the producer goes on behind its last committed batch."""
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    put(log, ("k", "1"), producer_id=1, producer_epoch=0, base_sequence=0)
    put(log, ("k", "2"))
    put(log, ("z", "2"))
    log.roll()
    put(log, ("k", "3"), producer_id=1, producer_epoch=0, base_sequence=1)
    run(log.sync())
    clean(log, high_watermark=3)
    log.truncate_to(3)
    assert log.producers.last_sequences() == {1: (0, 0)}
    disk.remove(f"orders-0/{offset_name(3, '.snapshot')}")
    log.truncate_to(3)
    log = open_log(disk, COMPACT)
    assert log.producers.last_sequences() == {1: (0, 0)}


def test_a_tail_of_five_batches_does_not_hide_the_last_one_below():
    """Found by seed 939000601: five batches are remembered of a producer, and a new leader cuts them all off."""
    for is_bumped, is_clean in itertools.product((False, True), repeat=2):
        _check_a_tail_of_five_batches(is_bumped=is_bumped, is_clean=is_clean)


def _check_a_tail_of_five_batches(*, is_bumped: bool, is_clean: bool) -> None:
    """``is_bumped``: the tail is one batch of the producer's next epoch; ``is_clean``: the last one below is not dirty."""
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    put(log, ("x", "1"))
    put(log, ("k", "1"), producer_id=1, producer_epoch=0, base_sequence=0)
    put(log, ("k", "2"), producer_id=1, producer_epoch=0, base_sequence=1)
    if is_clean:
        put(log, ("z", "1"))
        log.roll()
        put(log, ("y", "1"))
        run(log.sync())
        clean(log)
    put(log, ("k", "3"))
    put(log, ("z", "2"))
    log.roll()
    end = log.end_offset
    for number in range(1 if is_bumped else 5):
        sequence = 0 if is_bumped else 2 + number
        put(log, ("k", "4"), producer_id=1, producer_epoch=int(is_bumped), base_sequence=sequence)
    run(log.sync())
    clean(log, high_watermark=end)
    log.truncate_to(end)
    assert log.producers.last_sequences() == {1: (0, 1)}
    for path in disk.names("orders-0"):
        if path.endswith(".snapshot"):
            disk.remove(f"orders-0/{path}")
    log = open_log(disk, COMPACT)
    assert log.producers.last_sequences() == {1: (0, 1)}


def test_a_busy_producer_keeps_one_batch_of_what_is_cleaned():
    """All that is remembered of it lies in the active segment, in each round: the headers of former rounds go."""
    log = open_log(MemoryDisk(), replace(COMPACT, segment_bytes=4096))
    put(log, ("x", "1"))
    sequences = itertools.count()
    for _ in range(4):
        for size in (8, 6):
            log.roll()
            for _ in range(size):
                put(log, ("k", "1"), producer_id=1, producer_epoch=0, base_sequence=next(sequences))
        run(log.sync())
        clean(log)
        cleaned = [batch for batch in split(everything(log)) if batch.last_offset < log.clean_end]
        assert [batch.producer_id for batch in cleaned] == [-1, 1]


def test_the_end_of_the_log_survives_when_its_last_batch_is_emptied():
    """KAFKA-17076: all that is left in the log lies below; the end is told by an empty batch."""
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    put(log, ("a", None))
    put(log, ("b", None))
    log.roll()
    run(log.sync())
    clean(log, now_ms=TIME)
    put(log, ("a", "1"))
    log.roll()
    put(log, ("a", "2"))
    log.roll()
    run(log.sync())
    clean(log, now_ms=TIME + 5000)
    assert rows(log) == [(3, "a", "2")]
    put(log, ("a", None))
    log.roll()
    run(log.sync())
    clean(log, now_ms=TIME + 5000)
    put(log, ("q", None))
    log.roll()
    run(log.sync())
    clean(log, now_ms=TIME + 9000)
    log.clean_end = None  # the checkpoint is lost: all is dirty once more, and the last tombstone's time is over
    clean(log, now_ms=TIME + 99_000)
    assert rows(log) == []
    run(log.sync())
    end = log.end_offset
    assert open_log(disk, COMPACT, recovery_point=log.recovery_point).end_offset == end == 6
    assert open_log(disk, COMPACT, clean=True).end_offset == end
    follower = open_log(MemoryDisk(), COMPACT)
    follower.append_as_follower(split(everything(on_disk(log))))
    assert follower.end_offset == end


def test_old_records_without_a_key_go_and_are_counted():
    """From before cleanup.policy was compact; Kafka's cleaner drops them too."""
    log = open_log(MemoryDisk(), replace(COMPACT, cleanup_policy="delete"))
    put(log, (None, "1"), ("a", "1"))
    put(log, ("b", "1"))
    log.roll()
    log.config = COMPACT
    run(log.sync())
    assert clean(log).keyless == 1
    assert rows(log) == [(1, "a", "1"), (2, "b", "1")]


def test_a_small_map_takes_several_rounds_and_loses_nothing():
    """log.cleaner.dedupe.buffer.size bounds memory, not what is kept."""
    log = filled(MemoryDisk(), rounds=8)
    before = latest(rows(log))
    ends = []
    while log.dirty_range(high_watermark=log.end_offset, now_ms=TIME).dirty_bytes:
        cleaned = clean(log, memory_bytes=2 * MAP_ENTRY_SIZE)
        ends.append(cleaned.end_offset)
        assert latest(rows(log)) == before
    assert len(ends) > 3
    assert ends == sorted(set(ends))


def test_time_is_found_over_the_gaps():
    """ListOffsets: the first record at or after a time, and the newest one, of those that are left."""
    log = open_log(MemoryDisk(), COMPACT)
    for number in range(12):
        put(
            log, (f"k{number % 3}", "x" * 40), time=TIME + number, producer_id=1, producer_epoch=0, base_sequence=number
        )
    log.roll()
    run(log.sync())
    clean(log)
    times = [(offset, TIME + offset) for offset, _, _ in rows(log)]
    for number in range(12):
        hit = found_by_time(log, TIME + number)
        assert hit is not None
        assert (hit.offset, hit.timestamp) == next(each for each in times if each[1] >= TIME + number)
    newest = newest_record(log)
    assert newest is not None
    assert newest.offset == 11


def test_damage_is_told_and_not_written_anew():
    """A good checksum over bad bytes would hide the damage for ever."""
    disk = MemoryDisk()
    log = filled(disk)
    path = f"orders-0/{offset_name(0, '.log')}"
    disk.inodes[path].content[80] ^= 1
    before = bytes(disk.inodes[path].content)
    with pytest.raises(CorruptMessage, match="crc"):
        clean(log)
    assert bytes(disk.inodes[path].content) == before
    assert log.clean_end is None
    assert not [name for name in disk.names("orders-0") if name.endswith(".cleaned")]


def test_a_full_disk_puts_it_off():
    """Compaction needs room before it gives room: no broker fails for that."""
    disk = MemoryDisk()
    told: list[str] = []
    log = filled(disk)
    log._events = lambda kind, /, **facts: told.append(kind)
    disk.capacity = disk.used() + 10
    before = rows(log)
    cleaned = clean(log)
    assert cleaned.was_interrupted
    assert told == ["compaction_put_off"]
    assert rows(log) == before
    disk.capacity = None
    clean(log)
    assert latest(rows(log)) == latest(before)
    assert log.clean_end is not None


def test_a_tombstone_behind_what_was_mapped_begins_no_horizon():
    """What it deletes is still there: the time in which readers have to see it begins when that goes."""
    log = open_log(MemoryDisk(), COMPACT)
    for key, value in (("a", "1"), ("a", "2"), ("b", "1"), ("b", None)):
        put(log, (key, value))
    log.roll()
    put(log, ("c", "1"))
    run(log.sync())
    cleaned = clean(log, memory_bytes=MAP_ENTRY_SIZE)
    assert cleaned.end_offset == 2
    tombstone = next(batch for batch in split(everything(on_disk(log))) if batch.base_offset == 3)
    assert delete_horizon(tombstone) is None
    clean(log)
    tombstone = next(batch for batch in split(everything(on_disk(log))) if batch.base_offset == 3)
    assert delete_horizon(tombstone) == TIME + COMPACT.delete_retention_ms


def test_what_is_written_over_a_cut_is_dirty():
    """The log was clean up to an offset that was cut off since, and is there again with other records."""
    log = filled(MemoryDisk())
    clean(log)
    log.truncate_to(6)
    run(log.sync())
    for number in range(40):
        put(log, ("a", f"new {number}"))
    run(log.sync())
    dirty = log.dirty_range(high_watermark=log.end_offset, now_ms=TIME)
    assert dirty.first_dirty <= 6
    clean(log)
    assert not [row for row in rows(log) if row[0] < dirty.first_uncleanable - 1 and row[1] == "a"]


@pytest.mark.parametrize("what", ["cut", "cut below", "restart", "delete", "close"])
@pytest.mark.parametrize("lag", range(1, 16))
def test_what_happens_to_the_log_meanwhile_comes_first(what, lag):
    """Each wait of a round is where the log may be cut, begun anew, deleted from or closed."""
    disk = MemoryDisk()
    config = replace(COMPACT, cleanup_policy="compact,delete")
    log = filled(disk, config, rounds=6)
    before = rows(log)
    disk.held = True
    log.config = replace(config, segment_bytes=1000)
    dirty = log.dirty_range(high_watermark=20, now_ms=TIME)
    round_ = log.clean(dirty, memory_bytes=BIG_MAP, clock_ms=lambda: TIME, pause=no_pause)
    finished = False
    for _ in range(lag):
        try:
            round_.send(None)
        except StopIteration:
            finished = True
            break
    disk.held = False
    if what == "cut":
        log.truncate_to(21)
        expected = [row for row in before if row[0] < 21]
    elif what == "cut below":  # an unclean election: values that were replaced beyond the cut are lost
        log.truncate_to(11)
        expected = rows(log)
        assert set(expected) <= set(before[:11])
    elif what == "restart":
        log.restart_at(40)
        expected = []
    elif what == "delete":
        run(log.delete_segments(log._store.segments[:2]))
        expected = [row for row in before if row[0] >= log.start_offset]
    else:
        log.prepare_close()
        run(log.sync())
        log.close()
        expected = before
    if not finished:
        run(round_)
    if what != "close":
        names = [name for name in disk.names("orders-0") if name.endswith(".log")]
        assert names == [offset_name(segment.base_offset, ".log") for segment in log._store.segments]
        run(log.sync())
        put(log, ("new", "1"))
        put(log, ("new", "2"))
        expected = [*expected, (log.end_offset - 2, "new", "1"), (log.end_offset - 1, "new", "2")]
        assert set(rows(log)) <= set(expected)
        assert latest(rows(log)) == latest(expected)
    reopened = open_log(
        disk, config, clean=what == "close", recovery_point=log.recovery_point, start_offset=log.start_offset
    )
    assert latest(rows(reopened)) == latest(expected)
    assert reopened.end_offset == log.end_offset
    assert not [name for name in disk.names("orders-0") if name.endswith((".cleaned", ".swap"))]


class RemovalsFirst(MemoryDisk):
    """A power cut on it keeps the removals of files, and no other change of names that is not synced."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: set[str] = set()

    def remove(self, path: str) -> None:
        self.removed |= {name for name in self.inodes if name == path}
        super().remove(path)

    async def sync_folder(self, folder: str) -> None:
        await super().sync_folder(folder)
        self.removed.clear()

    def cut_power(self) -> None:
        self.durable_names = {path: inode for path, inode in self.durable_names.items() if path not in self.removed}
        self.inodes = dict(self.durable_names)
        for inode in self.inodes.values():
            inode.content = bytearray(inode.durable)


def swap_ended_at_once(what: str, lag: int) -> None:
    """End a swap after ``lag`` waits of its round, cut the power, and look for all records that were promised."""
    disk = RemovalsFirst()
    config = replace(COMPACT, cleanup_policy="compact,delete")
    log = open_log(disk, config)
    for number in range(6):
        for key in "abcd":
            put(log, (key, f"{key}{number}" + "x" * 20))
            put(log, (f"only {number} {key}", "1"))
    run(log.sync())
    point = log.recovery_point
    disk.held = True
    log.config = replace(config, segment_bytes=1000)
    dirty = log.dirty_range(high_watermark=40, now_ms=TIME)
    round_ = log.clean(dirty, memory_bytes=BIG_MAP, clock_ms=lambda: TIME, pause=no_pause)
    for _ in range(lag):
        try:
            round_.send(None)
        except StopIteration:
            break
    disk.held = False
    swapping = log._store.swapping
    start = 0
    if what == "cut":
        log.truncate_to(swapping.next_offset - 1 if swapping else 11)
    elif what == "cut at its end":
        log.truncate_to(swapping.next_offset if swapping else 15)
        assert log._store.active is not swapping or not swapping.suffix
    elif what == "cut below":
        log.truncate_to(swapping.base_offset + 1 if swapping else 1)
    elif what == "restart":
        log.restart_at(50)
    elif what == "delete":
        run(log.delete_segments(log._store.segments[:1]))
        start = log.start_offset
    else:
        log.prepare_close()
    promised = log.synced_end
    expected = [row for row in rows(log) if start <= row[0] < promised]
    disk.cut_power()
    opened = open_log(disk, config, recovery_point=min(point, promised), start_offset=start)
    assert opened.end_offset >= promised
    assert set(expected) <= set(rows(opened))


@pytest.mark.parametrize("what", ["cut at its end", "cut below", "restart", "delete", "close"])
@pytest.mark.parametrize("lag", range(1, 16))
def test_what_ends_a_swap_at_once_removes_nothing_that_is_promised(what, lag):
    """A swap ends without a sync when its log is cut, begun anew, deleted from or closed."""
    swap_ended_at_once(what, lag)


def test_a_cut_into_a_swap_that_is_not_durable_restores_the_old_segments():
    """The cut removed them before the new one had a durable name. A power cut that kept only the removals lost records
    below the synced end.
    """
    for lag in range(1, 16):
        swap_ended_at_once("cut", lag)


def test_a_follower_copies_gaps_and_says_so():
    """The copy is the leader's bytes; opened again with another policy the gaps are still no damage."""
    leader = filled(MemoryDisk())
    clean(leader)
    disk = MemoryDisk()
    copy = open_log(disk, COMPACT)
    copy.append_as_follower(split(everything(on_disk(leader))))
    run(copy.sync())
    assert everything(on_disk(copy)) == everything(on_disk(leader))
    plain = replace(COMPACT, cleanup_policy="delete")
    for is_clean in (False, True):
        again = open_log(disk, plain, clean=is_clean)
        assert rows(again) == rows(leader)
        assert not again.report.dropped
    assert not open_log(MemoryDisk(), plain).has_gaps


def test_epochs_begin_where_they_began_for_whoever_has_only_the_batches():
    """S21, KIP-279: the batch that begins an epoch stays, if need be without records. Else a leader whose epochs were made
    anew from a compacted log (killed before its recovery point was saved, or a copy of one) says that an epoch ended
    later than it did, and a replica with foreign records of that epoch keeps them: played here to the question.
    """
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    for epoch in range(4):
        for number in range(2):
            for key in "abcde":
                put(log, (key, f"{key}{number}" + "x" * 20), epoch=epoch)
    run(log.sync())
    expected = [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert log.epochs.entries == expected
    clean(log)
    killed = open_log(disk, COMPACT)
    copy = open_log(MemoryDisk(), COMPACT)
    copy.append_as_follower(split(everything(on_disk(log))))
    disk.replace_file("orders-0/leader-epoch-checkpoint", b"0\n4\n0 0\n1 ")
    torn = open_log(disk, COMPACT, recovery_point=log.recovery_point)
    for each in (log, killed, copy, torn):
        assert each.epochs.entries == expected
        # Who led epoch 0 had written 10 to 12 as well, when 1 took over at 10.
        assert each.end_offset_for(0) == EpochEnd(0, 10)


def test_the_epoch_at_the_start_of_a_log_begins_there_though_compaction_took_what_stood_there():
    """Retention let go what an epoch began with, compaction the next records: the log starts in a gap. A copy of it, and a
    log whose epochs come from its batches again, must not say that the epoch before ended behind the gap (S21).
    """
    both = replace(COMPACT, cleanup_policy="compact,delete", retention_ms=-1)
    disk = MemoryDisk()
    log = open_log(disk, both)
    for number in range(12):
        for key in "abcde":
            put(log, (key, f"{key}{number}" + "x" * 20), epoch=number // 2)
    run(log.sync())
    started = next(s.base_offset for s in log._store.segments if s.base_offset > 12)
    clean(log)
    log.raise_start(started)
    run(log.delete_segments(log._store.segments[:1]))
    assert next(iter(split(everything(on_disk(log))))).base_offset > log.start_offset
    expected = log.epochs.entries
    assert expected[0] == (1, log.start_offset)
    copy_disk = MemoryDisk()
    copy = open_log(copy_disk, both, start_offset=log.start_offset)
    copy.append_as_follower(split(everything(on_disk(log))))
    run(copy.sync())
    walked = open_log(disk, both, start_offset=log.start_offset)
    disk.replace_file("orders-0/leader-epoch-checkpoint", b"0\n4\n0 0\n1 ")
    torn = open_log(disk, both, start_offset=log.start_offset, recovery_point=log.recovery_point)
    copied = open_log(copy_disk, both, start_offset=log.start_offset, clean=True)
    for each in (log, copy, walked, torn, copied):
        assert each.epochs.entries == expected, each.report
        assert each.end_offset_for(0) == EpochEnd(0, log.start_offset)
        assert not each.report.dropped


def test_an_epoch_begins_where_it_began_though_a_replaced_segment_with_its_beginning_came_back():
    """The power brought back a segment that compaction had merged into the one before it, and the recovery point lies
    there. With that segment the beginning of epoch 1 was forgotten, and a follower would have kept records of epoch 0
    (S21; histories of ``producer_replicas.py``, seed 85057).
    """
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    put(log, ("a", "1"))
    put(log, ("b", "1"))
    log.roll()
    put(log, ("b", "2"), epoch=1)
    log.roll()
    put(log, ("c", "1"), epoch=1)
    run(log.sync())
    path = f"orders-0/{offset_name(2, '.log')}"
    replaced = disk.read_file(path)
    clean(log)
    run(log.sync())
    assert not disk.exists(path)
    disk.replace_file(path, replaced)
    opened = open_log(disk, COMPACT, recovery_point=3)
    assert not disk.exists(path)
    assert opened.epochs.entries == [(0, 0), (1, 2)]
    assert latest(rows(opened)) == {"a": (0, "1"), "b": (2, "2"), "c": (3, "1")}


@pytest.mark.parametrize("seed", range(4))
def test_what_a_killed_broker_knew_of_epochs_is_durable_after_the_next_sync(seed):
    """Its checkpoint was right, but in the page cache only, and the next process took it for saved: 1. an epoch begins;
    2. kill -9; 3. the next process syncs; 4. power cut; 5. the file is torn. Where Kafka's cleaner has been, or ours before
    it kept each epoch's first batch, the batches do not tell where an epoch began, and what is synced is lost (S21).
    """
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    put(log, ("a", "1"))
    put(log, ("b", "1"), epoch=1)
    put(log, ("c", "1"), epoch=1)
    log.note_gaps()
    run(log.sync())
    log.roll()
    put(log, ("d", "1"), epoch=1)
    run(log.sync())
    path = f"orders-0/{offset_name(0, '.log')}"
    first, _, third = split(disk.read_file(path))
    disk.inodes[path].content[:] = disk.inodes[path].durable = bytes(first.data) + bytes(third.data)
    put(log, ("e", "1"), epoch=2)
    expected = [(0, 0), (1, 1), (2, 4)]
    killed = open_log(disk, COMPACT, recovery_point=log.recovery_point)
    assert killed.epochs.entries == expected
    run(killed.sync())
    disk.power_cut(Random(seed))
    opened = open_log(disk, COMPACT, recovery_point=killed.recovery_point)
    assert opened.epochs.entries == expected, opened.report


def test_the_header_that_begins_an_epoch_goes_with_the_epoch():
    """It is kept for as long as the epoch is known, which is until the log starts behind it."""
    log = open_log(MemoryDisk(), replace(COMPACT, segment_bytes=100_000))
    for epoch in range(3):
        for number in range(8):
            put(log, ("k", f"{epoch}{number}"), epoch=epoch)
    log.roll()
    run(log.sync())
    clean(log)

    def headers() -> list[int]:
        return [batch.base_offset for batch in split(everything(on_disk(log))) if not batch.record_count]

    assert (headers(), rows(log)) == ([0, 8, 16], [(23, "k", "27")])
    log.raise_start(10)
    put(log, ("l", "1"), epoch=2)
    log.roll()
    run(log.sync())
    clean(log)
    assert (headers(), rows(log)) == ([16], [(23, "k", "27"), (24, "l", "1")])


def test_kafkas_own_parser_reads_cleaned_segments():
    """An independent check: aiokafka reads the files as one sequence of record sets, and finds the same records."""
    disk = MemoryDisk()
    log = filled(disk)
    clean(log)
    found = []
    for name in disk.names("orders-0"):
        if name.endswith(".log"):
            records = MemoryRecords(disk.read_file(f"orders-0/{name}"))
            while records.has_next():
                batch = records.next_batch()
                assert batch.validate_crc()
                found += [(each.offset, each.key.decode(), each.value.decode()) for each in batch]
    assert found == rows(log)


def test_a_new_segment_is_on_disk_before_it_takes_the_old_ones_place():
    """S1: its bytes and both its indexes are synced, and the folder, before the first file is renamed."""
    disk = RenamesWatched()
    log = filled(disk)
    clean(log)
    assert disk.renamed
    assert [path for path in disk.renamed if path not in disk.synced] == []


class RenamesWatched(MemoryDisk):
    """Notes what is renamed to ``.swap``."""

    def __init__(self) -> None:
        super().__init__()
        self.renamed: list[str] = []

    def replace(self, source: str, target: str) -> None:
        if target.endswith(".swap"):
            self.renamed.append(source)
        super().replace(source, target)


# ---- crashes ---------------------------------------------------------------------------------------------------------


class PowerLost(BaseException):
    """The process ends here."""


class CrashingFile(MemoryFile):
    disk: CrashingDisk

    def append(self, data: Buffers) -> None:
        self.disk.tick()
        super().append(data)

    async def sync(self) -> None:
        self.disk.tick()
        await super().sync()


class CrashingDisk(MemoryDisk):
    """Raises at the operation number ``crash_at``, before it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.crash_at: int | None = None
        self.operations = 0

    def tick(self) -> None:
        if self.crash_at is not None:
            if self.operations >= self.crash_at:
                raise PowerLost
            self.operations += 1

    def open(self, path: str) -> MemoryFile:
        file = super().open(path)
        return CrashingFile(self, path, file.inode)

    def replace_file(self, path: str, data: bytes) -> None:
        self.tick()
        super().replace_file(path, data)

    def replace(self, source: str, target: str) -> None:
        self.tick()
        super().replace(source, target)

    def remove(self, path: str) -> None:
        self.tick()
        super().remove(path)

    async def sync_folder(self, folder: str) -> None:
        self.tick()
        await super().sync_folder(folder)


@dataclass
class Outcome:
    """One crash and what was left."""

    operations: int
    crashed: bool
    segments: frozenset[str]


def crash(at: int, *, seed: int | None, again: int | None = None) -> Outcome:
    """Clean a log, die at operation ``at`` (a power cut when ``seed`` is given), open it: nothing that counts is lost."""
    disk = CrashingDisk()
    log = open_log(disk, COMPACT)
    for number in range(6):
        for position, key in enumerate("abcd"):
            sequence = number * 4 + position
            put(
                log,
                (key, None if number == 4 and key == "b" else f"{key}{number}" + "x" * 20),
                (f"only {number} {key}", "1"),  # each segment holds something that nothing replaces
                epoch=number // 3,
                producer_id=position % 2,
                producer_epoch=0,
                base_sequence=sequence // 2 * 2,
            )
    run(log.sync())
    log.config = replace(COMPACT, segment_bytes=1200)
    point = log.recovery_point
    before, end, sequences, epochs = rows(log), log.end_offset, log.producers.last_sequences(), log.epochs.entries
    disk.crash_at = at
    crashed = False
    try:
        clean(log)
        run(log.sync())
    except PowerLost:
        crashed = True
    operations, disk.crash_at = disk.operations, None
    if seed is not None:
        disk.power_cut(Random(seed))
    if again is not None:  # and once more while it recovers
        disk.crash_at, disk.operations = again, 0
        try:
            open_log(disk, COMPACT, recovery_point=point)
        except PowerLost:
            crashed = True
        disk.crash_at = None
        if seed is not None:
            disk.power_cut(Random(seed + 1))
    opened = open_log(disk, COMPACT, recovery_point=point)
    after = rows(opened)
    assert [row for row in before if row in after] == after
    assert latest(after) == latest(before)
    assert opened.end_offset == end
    assert opened.producers.last_sequences() == sequences
    assert opened.epochs.entries == epochs
    assert not opened.report.dropped, opened.report.dropped
    for offset in range(end):
        opened.read(offset, max_bytes=1)
    names = disk.names("orders-0")
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    # And compaction goes on from there.
    run(opened.sync())
    clean(opened)
    assert latest(rows(opened)) == latest(before)
    return Outcome(operations, crashed, frozenset(name for name in names if name.endswith(".log")))


def test_a_crash_at_any_operation_leaves_the_old_segments_or_the_new_ones():
    """kill -9 before each single operation of a round on disk, the sync behind it included."""
    at, seen = 0, set()
    while True:
        outcome = crash(at, seed=None)
        seen.add(outcome.segments)
        if not outcome.crashed:
            break
        at += 1
    assert at > 20
    assert len(seen) > 2


@given(at=st.integers(0, 60), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
def test_a_power_cut_at_any_operation_loses_nothing_that_counts(at, seed):
    """Any part of the names and bytes that were not synced may be gone."""
    crash(at, seed=seed)


@given(at=st.integers(0, 60), again=st.integers(0, 8), seed=st.none() | st.integers(0, 2**32))
@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
def test_a_second_crash_while_it_recovers_loses_nothing_either(at, again, seed):
    """Opening changes names too, and may be interrupted at each (KAFKA-FACTS 1.4)."""
    crash(at, seed=seed, again=again)


def of_small_segments(disk: MemoryDisk) -> PartitionLog:
    """A synced log of two epochs that a round merges into larger segments; each has something that nothing replaces."""
    log = open_log(disk, COMPACT)
    for number in range(6):
        for key in "abcd":
            put(log, (key, f"{key}{number}" + "x" * 20), (f"only {number} {key}", "1"), epoch=number // 3)
    run(log.sync())
    log.config = replace(COMPACT, segment_bytes=1200)
    return log


def stopped(lag: int, at: int, seed: int) -> tuple[bool, bool]:
    """A round is cancelled at its wait number ``lag``, the log is closed in good order, and the power goes at operation
    ``at`` of that. Was the round over, and did the power go?
    """
    disk = CrashingDisk()
    log = of_small_segments(disk)
    point, before, end = log.recovery_point, rows(log), log.end_offset
    disk.held = True
    dirty = log.dirty_range(high_watermark=end, now_ms=TIME)
    round_ = log.clean(dirty, memory_bytes=BIG_MAP, clock_ms=lambda: TIME, pause=no_pause)
    is_over = crashed = False
    try:
        for _ in range(lag):
            round_.send(None)
    except StopIteration:
        is_over = True
    round_.close()
    disk.held, disk.crash_at = False, at
    try:
        run(log.settle())
        log.prepare_close()
        run(log.sync())
    except PowerLost:
        crashed = True
    disk.crash_at = None
    disk.power_cut(Random(seed))
    opened = open_log(disk, COMPACT, recovery_point=point)
    assert latest(rows(opened)) == latest(before), (lag, at, seed, opened.report)
    assert opened.end_offset == end
    return is_over, crashed


@pytest.mark.parametrize("seed", range(4))
def test_a_stop_in_the_midst_of_a_round_and_then_a_power_cut_lose_nothing(seed):
    """The stop finished the swap at once: the old segments' removal could be on disk before the new one's name was, and
    what only they held was gone without a word.
    """
    lag, is_over = 1, False
    while not is_over:
        at, crashed = 0, True
        while crashed:
            is_over, crashed = stopped(lag, at, seed * 1000 + lag * 50 + at)
            at += 1
        lag += 1
    assert lag > 10


class FullDisk(CrashingDisk):
    """Has no room for operation number ``crash_at``: what writes or renames raises DiskFull."""

    def tick(self) -> None:
        self.operations += 1
        if self.crash_at is not None and self.operations == self.crash_at + 1:
            raise DiskFull("no room")

    def replace(self, source: str, target: str) -> None:
        if not self.exists(source):
            raise FileNotFoundError(source)
        super().replace(source, target)

    def remove(self, path: str) -> None:
        MemoryDisk.remove(self, path)

    async def sync_folder(self, folder: str) -> None:
        await MemoryDisk.sync_folder(self, folder)


def put_off(at: int) -> bool:
    """A round that finds the disk full at operation ``at``, and one that does not. Was it put off?"""
    disk = FullDisk()
    log = of_small_segments(disk)
    before, epochs = rows(log), log.epochs.entries
    disk.operations, disk.crash_at = 0, at
    was_put_off = clean(log).was_interrupted
    assert was_put_off == (disk.operations > at)
    disk.crash_at = None
    assert latest(rows(log)) == latest(before)
    assert not clean(log).was_interrupted
    assert log.failure is None
    assert latest(rows(log)) == latest(before)
    run(log.sync())
    again = open_log(disk, COMPACT, recovery_point=log.recovery_point)
    assert (rows(again), again.epochs.entries) == (rows(log), epochs)
    return was_put_off


def test_a_disk_that_is_full_at_any_operation_puts_it_off():
    """Also while a segment is swapped in: the next round finishes that, and its own files do not take the names that the
    swap needs still (the broker stopped over a missing file). And before the first round says that there are gaps.
    """
    at = 0
    while put_off(at):
        at += 1
    assert at > 20


def test_a_disk_that_is_full_for_an_index_keeps_no_file_open(monkeypatch: pytest.MonkeyPatch):
    """Each round, one every 15 s, left a descriptor behind."""
    disk = MemoryDisk()
    log = filled(disk)
    append = MemoryFile.append

    def refuse(file: MemoryFile, data: Buffers) -> None:
        if file.path.endswith("index.cleaned"):
            raise DiskFull(file.path)
        append(file, data)

    monkeypatch.setattr(MemoryFile, "append", refuse)
    held = []
    for _ in range(3):
        assert clean(log).was_interrupted
        held.append(sorted(file.path for file in disk.open_files))
    assert held[0] == held[2]


# ---- any history -----------------------------------------------------------------------------------------------------

ACTIONS = st.one_of(
    st.tuples(
        st.just("put"),
        st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 60)), min_size=1, max_size=4),
        st.sampled_from(["none", "gzip", "lz4"]),
    ),
    st.tuples(st.just("clean"), st.integers(0, 12), st.integers(1, 6)),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("reopen"), st.booleans(), st.none()),
)


@given(st.lists(ACTIONS, max_size=40))
@settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))
def test_a_compacted_log_is_the_map_of_latest_values_in_order(actions):
    """Whatever is written, cleaned (with small maps, behind low watermarks) and opened anew."""
    disk = MemoryDisk()
    log = open_log(disk, COMPACT)
    model: list[Row] = []
    count = 0
    for kind, first, second in actions:
        if kind == "put":
            pairs = [(key, None if size is None else f"{count}-" + "v" * size) for key, size in first]
            base = put(log, *pairs, compression=second)
            model += [(base + n, key, value) for n, (key, value) in enumerate(pairs)]
            count += 1
        elif kind == "clean":
            run(log.sync())
            clean(log, high_watermark=max(0, log.end_offset - first), memory_bytes=second * MAP_ENTRY_SIZE)
        elif kind == "roll":
            log.roll()
        else:
            run(log.sync())
            if first:
                log.prepare_close()
                run(log.sync())
            end = log.clean_end
            log = open_log(disk, COMPACT, clean=first, recovery_point=log.recovery_point)
            log.clean_end = end
        found = rows(log)
        assert [row for row in model if row in found] == found
        assert latest(found) == latest(model)
        assert log.end_offset == (model[-1][0] + 1 if model else 0)
