"""Opening a log after an unclean stop: a prefix, and what was dropped (KAFKA-FACTS 1.4, S21)."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.config import TopicConfig
from minikafka.log.names import offset_name, offsets_in
from minikafka.log.partition_log import PartitionLog
from minikafka.log.recovery import MisfitLog
from minikafka.wire.batch import split
from tests.rules.log_words import SMALL, TIME, TOPIC_ID, everything, fill, from_producer, on_disk, open_log, values
from tests.rules.memory_disk import MemoryDisk, run

NAMES = "abcdefghijklmnopqrst"


@cache
def template(*, epochs: bool) -> tuple[dict[str, bytes], bytes]:
    disk = MemoryDisk()
    log = open_log(disk)
    for n, name in enumerate(NAMES):
        fill(log, name, epoch=n // 6 if epochs else 0)
    return {path: disk.read_file(path) for path in disk.inodes}, everything(log)


def written(*, epochs: bool = True) -> tuple[MemoryDisk, bytes]:
    """Twenty records in epochs 0 to 3, several segments, never synced; and their bytes."""
    files, whole = template(epochs=epochs)
    disk = MemoryDisk()
    for path, data in files.items():
        disk.replace_file(path, data)
    return disk, whole


def log_paths(disk: MemoryDisk) -> list[str]:
    bases = offsets_in(disk.names("orders-0"), ".log")
    return [f"orders-0/{offset_name(base, '.log')}" for base in bases]


def epochs_of(log: PartitionLog) -> list[tuple[int, int]]:
    """As derived from the batches."""
    found: list[tuple[int, int]] = []
    for batch in split(everything(log)):
        if not found or found[-1][0] != batch.leader_epoch:
            found.append((batch.leader_epoch, batch.base_offset))
    return found


def check_prefix(log: PartitionLog, whole: bytes, *, all_told: bool = True) -> None:
    """What opened is a prefix, made of whole batches, and the epochs are those of its batches."""
    left = everything(on_disk(log))
    assert whole.startswith(left)
    assert log.end_offset == len(values(log))
    assert log.epochs.entries == epochs_of(log)
    if all_told:
        assert bool(log.report.dropped) == (left != whole)


@given(st.integers(0, 3), st.integers(0, 400))
def test_any_torn_tail(segment: int, keep: int):
    """A file that is shorter than it was: everything from the torn batch on is gone, and said to be."""
    disk, whole = written()
    path = log_paths(disk)[segment]
    del disk.inodes[path].content[keep:]
    log = open_log(disk)
    boundary = segment == 3 and keep % 70 == 0  # of the last file's batches nothing says that there were more
    check_prefix(log, whole, all_told=not boundary)
    assert all(dropped.reason for dropped in log.report.dropped)
    assert open_log(disk, recovery_point=20).report.notes or keep >= 350
    fill(log, "new", epoch=9)
    assert values(log)[-1] == "new"


@given(st.integers(0, 3), st.integers(0, 2000), st.integers(1, 255))
def test_any_flipped_byte(segment: int, at: int, flip: int):
    """One damaged byte anywhere: what opens never holds it, unless it hit the leader epoch within its bounds."""
    disk, whole = written(epochs=False)
    content = disk.inodes[log_paths(disk)[segment]].content
    content[at % len(content)] ^= flip
    damaged = bytes(content)
    try:
        log = open_log(disk)
    except MisfitLog:
        # A higher epoch in front of lower ones: the log is set aside as it is, and nothing of it is served.
        assert at % len(content) % 70 in {12, 13, 14, 15}
        assert bytes(content) == damaged
        return
    left = everything(on_disk(log))
    if whole.startswith(left):
        assert len(left) < len(whole)
        assert log.report.dropped[0].path == log_paths(disk)[segment]
    else:
        # Base offset and epoch are outside the checksum: a higher epoch cannot be told from a true one.
        different = [i for i, (a, b) in enumerate(zip(whole, left, strict=False)) if a != b]
        assert {i % 70 for i in different} <= {12, 13, 14, 15}


@given(st.integers(0, 3), st.integers(1, 100), st.binary(max_size=1))
def test_zeros_after_the_end_are_cut_off(segment: int, count: int, last: bytes):
    """A power cut may leave the file longer than what was written: zeros are no batches."""
    disk, whole = written()
    disk.inodes[log_paths(disk)[segment]].content += bytes(count) + last
    log = open_log(disk)
    left = everything(on_disk(log))
    assert left == whole[: 350 * (segment + 1)]
    assert log.epochs.entries == epochs_of(log)
    assert log.report.dropped[0].size == count + len(last)


@given(st.integers(0, 3))
def test_a_missing_segment(missing: int):
    """A name lost with the power: what comes after the hole is dropped, nothing is kept without its beginning."""
    disk, whole = written()
    disk.remove(log_paths(disk)[missing])
    log = open_log(disk)
    assert whole.startswith(everything(on_disk(log)))
    assert log.start_offset == 0
    if missing == 0:
        assert log.end_offset == 0


@pytest.mark.parametrize("with_gaps", [False, True])
def test_a_damaged_base_offset_is_cut_off_with_what_follows(with_gaps: bool):
    """No checksum covers it. With gaps the damaged batch was taken for one behind a gap, and the log was cut after it: a
    leader that ends further on would have had this replica go on there, without the records in between.
    """
    disk = MemoryDisk()
    log = open_log(disk, TopicConfig())
    if with_gaps:
        log.note_gaps()
    fill(log, *"abcdefgh")
    path = log_paths(disk)[0]
    size = log.size_bytes // 8
    for bit in range(64):
        damaged = copy.deepcopy(disk)
        damaged.inodes[path].content[size + 7 - bit // 8] ^= 1 << bit % 8
        log = open_log(damaged, TopicConfig())
        assert (log.end_offset, values(log)) == (1, ["a"]), bit


def test_what_was_dropped_is_said():
    """Who reads the log of the broker must learn which bytes went, and why."""
    told: list[tuple[str, dict[str, object]]] = []
    disk, _ = written()
    path = log_paths(disk)[1]
    disk.inodes[path].content[139] ^= 1
    log = open_log(disk, events=lambda kind, **facts: told.append((kind, facts)), recovery_point=9)
    first, *later = log.report.dropped
    assert (first.path, first.position, first.below_recovery_point) == (path, 70, True)
    assert "crc" in first.reason
    assert {"comes after damage at offset 6"} == {dropped.reason for dropped in later}
    assert [kind for kind, _ in told].count("torn_tail_dropped") == len(log.report.dropped)
    assert told[-1][0] == "log_opened"


def test_only_segments_from_the_recovery_point_on_are_walked():
    """KAFKA-FACTS 1.4.3: start-up time must not grow with the age of the log."""
    disk, whole = written()
    log = open_log(disk)
    run(log.sync())
    point = log.recovery_point
    reopened = open_log(disk, recovery_point=point)
    assert point == 20
    assert reopened.report.checked_count <= 5
    check_prefix(reopened, whole)


def test_after_a_clean_stop_nothing_is_walked():
    """KAFKA-FACTS 1.4.3: skip all of this."""
    disk, whole = written()
    log = open_log(disk)
    log.prepare_close()
    run(log.sync())
    log.close()
    log = open_log(disk, clean=True, recovery_point=20)
    assert (log.report.checked_count, log.synced_end) == (0, 20)
    check_prefix(log, whole)


def test_wrong_epoch_in_the_checkpoint_sets_no_segment_aside_after_a_clean_stop():
    """It has no checksum. Each segment that begins in a lower epoch would be taken for one that a power cut brought back,
    and all its acknowledged records would be lost.
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *NAMES, epoch=1)
    log.prepare_close()
    run(log.sync())
    log.close()
    disk.replace_file("orders-0/leader-epoch-checkpoint", b"0\n1\n7 0\n")
    log = open_log(disk, clean=True, recovery_point=20)
    assert (values(log), log.epochs.entries, log.report.dropped) == ([*NAMES], [(1, 0)], [])


def test_nothing_beyond_the_recovery_point_is_known_to_be_synced():
    """D6: after a crash a follower may not claim as durable what only the page cache holds."""
    disk, _ = written()
    log = open_log(disk, recovery_point=7)
    assert log.synced_end <= 7
    run(log.sync())
    assert log.synced_end == 20


def test_of_a_segment_that_is_walked_nothing_is_known_to_be_synced():
    """It may have been cut below the recovery point and written again, and kill -9 leaves both as they were."""
    disk, _ = written()
    log = open_log(disk)
    run(log.sync())
    log.truncate_to(16)
    fill(log, "w", "x", "y", "z", epoch=4)
    assert open_log(disk, recovery_point=20).synced_end == 15


@pytest.mark.parametrize("recovery_point, walked", [(5, 20), (6, 15), (10, 15), (11, 10)])
def test_segment_that_ends_at_the_recovery_point_is_walked(recovery_point: int, walked: int):
    """What was synced up to there is its records: its indexes may not be."""
    disk, _ = written()
    assert open_log(disk, recovery_point=recovery_point).report.checked_count == walked


def test_nothing_is_known_to_be_synced_beyond_a_cut_below_the_recovery_point():
    """A follower that claimed it would acknowledge what it writes there next before it syncs that (D6)."""
    disk, _ = written()
    run(open_log(disk).sync())
    path = log_paths(disk)[1]
    disk.remove(path.replace(".log", ".index"))
    disk.inodes[path].content[80] ^= 1
    log = open_log(disk, recovery_point=20)
    assert (log.end_offset, log.synced_end) == (6, 6)


@pytest.mark.parametrize("recovery_point", [0, 8])
def test_stale_leader_epochs_of_segments_that_are_walked_are_not_believed(recovery_point: int):
    """A power cut may bring back the checkpoint of a log that was cut since: its epochs would hide the true ones."""
    disk, whole = written()
    disk.replace_file("orders-0/leader-epoch-checkpoint", b"0\n2\n0 0\n7 16\n")
    check_prefix(open_log(disk, recovery_point=recovery_point), whole)


def test_a_producer_snapshot_of_segments_that_are_walked_is_not_believed():
    """A power cut may bring back the one of a log that was cut since. By it a batch that was cut off would count as a
    duplicate: its retry would be acknowledged, and be nowhere.
    """
    disk = MemoryDisk()
    log = open_log(disk)
    for sequence in range(6):
        log.append_as_leader(from_producer(7, sequence, NAMES[sequence]), leader_epoch=0, wall_ms=TIME)
    snapshot = f"orders-0/{offset_name(5, '.snapshot')}"
    former = disk.read_file(snapshot)
    log.truncate_to(3)
    run(log.sync())
    for sequence in range(4):
        log.append_as_leader(from_producer(8, sequence, NAMES[sequence]), leader_epoch=1, wall_ms=TIME)
    assert disk.read_file(snapshot) != former
    disk.replace_file(snapshot, former)
    log = open_log(disk, recovery_point=3)
    assert log.producers.last_sequences() == {7: (0, 2), 8: (0, 3)}
    assert not log.append_as_leader(from_producer(7, 3, "d"), leader_epoch=1, wall_ms=TIME).duplicate


def test_a_producer_snapshot_within_a_segment_is_not_believed_after_an_unclean_stop():
    """A clean stop made it, the log was cut below it since, and a power cut brought it back."""
    disk = MemoryDisk()
    log = open_log(disk)
    for sequence in range(3):
        log.append_as_leader(from_producer(7, sequence, NAMES[sequence]), leader_epoch=0, wall_ms=TIME)
    log.prepare_close()
    run(log.sync())
    snapshot = f"orders-0/{offset_name(3, '.snapshot')}"
    former = disk.read_file(snapshot)
    log.truncate_to(1)
    run(log.sync())
    for sequence in range(9):
        log.append_as_leader(from_producer(8, sequence, NAMES[sequence]), leader_epoch=1, wall_ms=TIME)
    run(log.sync())
    for offset in offsets_in(disk.names("orders-0"), ".snapshot"):
        disk.remove(f"orders-0/{offset_name(offset, '.snapshot')}")
    disk.replace_file(snapshot, former)
    log = open_log(disk, recovery_point=10)
    assert log.producers.last_sequences() == {7: (0, 0), 8: (0, 8)}
    assert not log.append_as_leader(from_producer(7, 1, "b"), leader_epoch=1, wall_ms=TIME).duplicate


def test_a_lost_or_stale_index_is_made_anew():
    """Rule 6 of segment.py: the reader finds the same batches whatever became of the index files."""
    disk, whole = written()
    log = open_log(disk)
    run(log.sync())
    for path in list(disk.inodes):
        if path.endswith("05.index"):
            disk.remove(path)
        elif path.endswith("0.index"):
            disk.inodes[path].content[:] = bytes(16)
        elif path.endswith(".timeindex"):
            disk.inodes[path].content += b"\0"
    log = open_log(disk, recovery_point=20)
    check_prefix(log, whole)
    assert log.report.notes
    assert not log.report.dropped


def test_epoch_0_survives():
    """KAFKA-10432: recovery must not forget epoch 0."""
    disk = MemoryDisk()
    fill(open_log(disk), "a", "b")
    disk.remove("orders-0/leader-epoch-checkpoint")
    assert open_log(disk).epochs.entries == [(0, 0)]


def test_a_lost_epoch_checkpoint_is_rebuilt_also_below_the_recovery_point():
    """KAFKA-FACTS 1.4: a lost watermark is harmless, a lost epoch cache is not."""
    for damage in (None, b"", b"0\n9\n", b"0\n1\n3 18\n"):
        disk, whole = written()
        run(open_log(disk).sync())
        if damage is None:
            disk.remove("orders-0/leader-epoch-checkpoint")
        else:
            disk.replace_file("orders-0/leader-epoch-checkpoint", damage)
        log = open_log(disk, recovery_point=20)
        check_prefix(log, whole)
        assert log.report.notes or damage is None


def test_an_epoch_without_records_does_not_survive_its_log():
    """KAFKA-FACTS 1.3: on load, entries at or beyond the end go."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a")
    log.assign_epoch(5, 1)
    assert log.last_epoch == 5
    assert open_log(disk).last_epoch == 0


def test_epoch_without_records_does_not_survive_a_clean_stop():
    """Kafka's checkpoint has it. By it a follower would name an epoch of which it has no record (KAFKA-FACTS 1.3)."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"ab")
    log.prepare_close()
    run(log.sync())
    log.close()
    disk.replace_file("orders-0/leader-epoch-checkpoint", b"0\n2\n0 0\n5 2\n")
    assert open_log(disk, clean=True, recovery_point=2).epochs.entries == [(0, 0)]


def test_a_log_that_ends_below_its_start_begins_anew_there():
    """KAFKA-FACTS 1.4.4: the leader deleted up to there; offsets must not go back."""
    disk, _ = written()
    log = open_log(disk, start_offset=30)
    assert (log.start_offset, log.end_offset, log.last_epoch) == (30, 30, -1)


@pytest.mark.parametrize("recovery_point", [0, 20, None])
def test_hole_just_below_the_log_start_drops_nothing_above_it(recovery_point: int | None):
    """The last batches below the start were lost with the power: nobody reads there, and what follows is sound."""
    disk, whole = written()
    del disk.inodes[log_paths(disk)[0]].content[210:]
    for offset in offsets_in(disk.names("orders-0"), ".snapshot"):
        disk.remove(f"orders-0/{offset_name(offset, '.snapshot')}")
    log = open_log(disk, recovery_point=recovery_point, start_offset=5)
    assert (log.start_offset, everything(on_disk(log))) == (5, whole[350:])


def test_a_lost_recovery_checkpoint_means_walk_everything_and_keep_it():
    """KAFKA-FACTS 1.4.1: it counts as 0, but must not be taken for "nothing was ever synced"."""
    disk = MemoryDisk()
    log = open_log(disk, start_offset=100)
    fill(log, "a", "b")
    kept = open_log(disk, recovery_point=None)
    assert (kept.start_offset, values(kept)) == (100, ["a", "b"])


def test_a_log_without_its_beginning_is_not_believed():
    """A replica that lost its first segment's name must not pass for one whose records were deleted."""
    disk, _ = written()
    disk.remove(log_paths(disk)[0])
    log = open_log(disk, recovery_point=0)
    assert (log.start_offset, log.end_offset) == (0, 0)
    assert "nothing is left before" in log.report.dropped[0].reason


@pytest.mark.parametrize("recovery_point, start_offset", [(0, 7), (8, 0), (None, 0)])
def test_log_without_its_beginning_is_kept_where_nothing_says_that_it_was_lost(
    recovery_point: int | None, start_offset: int
):
    """The first segment begins below the log start, or below what was once synced, or nothing is known of either."""
    disk, whole = written()
    disk.remove(log_paths(disk)[0])
    log = open_log(disk, recovery_point=recovery_point, start_offset=start_offset)
    assert (log.start_offset, log.end_offset, log.report.dropped) == (max(5, start_offset), 20, [])
    assert whole.endswith(everything(on_disk(log)))


@pytest.mark.parametrize("bit", [0, 3])
def test_last_batch_behind_the_end_of_a_compacted_log_is_cut_off_after_a_clean_stop(bit: int):
    """No checksum covers its base offset, and it seems to follow a gap. Recovery point and snapshot say otherwise: the
    offsets that were left out would never be copied from another replica.
    """
    disk = MemoryDisk()
    config = replace(SMALL, cleanup_policy="compact")
    log = open_log(disk, config)
    fill(log, *"abcdefg")
    log.prepare_close()
    run(log.sync())
    log.close()
    disk.inodes[log_paths(disk)[-1]].content[70 + 7] ^= 1 << bit
    log = open_log(disk, config, clean=True, recovery_point=7)
    assert (log.end_offset, values(log)) == (6, [*"abcdef"])


@pytest.mark.parametrize("snapshots", ["kept", "lost"])
def test_recovery_point_below_the_end_cuts_nothing_off_after_a_clean_stop(snapshots: str):
    """The checkpoint may be an old one: only with a snapshot there, and none at the end, has the log ended there."""
    disk = MemoryDisk()
    config = replace(SMALL, cleanup_policy="compact")
    log = open_log(disk, config)
    fill(log, *"abcdefg")
    log.prepare_close()
    run(log.sync())
    log.close()
    found = offsets_in(disk.names("orders-0"), ".snapshot")
    assert found == [5, 7]
    for offset in found if snapshots == "lost" else ():
        disk.remove(f"orders-0/{offset_name(offset, '.snapshot')}")
    log = open_log(disk, config, clean=True, recovery_point=5)
    assert (values(log), log.report.dropped) == ([*"abcdefg"], [])


def test_a_log_begun_anew_survives_kill_9():
    """A follower far behind restarts at the leader's start; kill -9 before any checkpoint must not empty it."""
    disk, _ = written()
    log = open_log(disk)
    log.restart_at(500)
    assert log.synced_end == 0
    fill(log, "far", epoch=8)
    log = open_log(disk)
    assert (log.start_offset, log.end_offset, values(log)) == (500, 501, ["far"])

    async def save() -> None:
        disk.replace_file("saved", b"")

    log = open_log(disk, save_start=save)
    run(log.sync())
    assert disk.exists("saved")
    assert not [name for name in disk.names("orders-0") if name.endswith(".start")]
    assert log.synced_end == 501


def test_a_killed_brokers_topic_id_survives_a_later_power_cut():
    """S26, DESIGN D6: the process that made a log was killed before its first sync. What the next one synced with the
    first records is the topic's id too: without it the log would be taken for another topic's, and set aside.
    """
    for seed in range(20):
        disk = MemoryDisk()
        open_log(disk, topic_id=TOPIC_ID)
        log = open_log(disk, topic_id=None)  # after a kill -9: all that was written is seen, nothing of it is synced
        fill(log, "tea")
        run(log.sync())
        disk.power_cut(Random(seed))
        log = open_log(disk, topic_id=None)
        assert (log.topic_id, values(log)) == (TOPIC_ID, ["tea"])


def test_leftovers_are_removed():
    """KAFKA-FACTS 1.4.2: .deleted, .cleaned, temporary files, and indexes without a log."""
    disk, whole = written()
    for name in (
        "00000000000000000001.log.deleted",
        "00000000000000000777.index",
        "x.tmp",
        "00000000000000000001.log.cleaned",
    ):
        disk.replace_file(f"orders-0/{name}", b"old")
    check_prefix(open_log(disk), whole)
    assert not [n for n in disk.names("orders-0") if n.endswith((".deleted", ".tmp", ".cleaned")) or "777" in n]


def test_aiokafka_reads_our_segment_files():
    """D4: the bytes on disk are Kafka's, so a parser that is not ours reads every one of them."""
    from aiokafka.record import MemoryRecords

    disk = MemoryDisk()
    log = open_log(disk, TopicConfig(segment_bytes=400))
    fill(log, *NAMES, epoch=4)
    found = []
    for path in log_paths(disk):
        records = MemoryRecords(disk.read_file(path))
        while records.has_next():
            batch = records.next_batch()
            assert batch is not None
            assert batch.validate_crc()
            found += [(record.offset, record.key, record.value) for record in batch]
    assert found == [(n, b"k", name.encode()) for n, name in enumerate(NAMES)]


def test_what_a_follower_stores_is_what_the_leader_stores():
    """D4: verbatim, also where segments end."""
    leader_disk, whole = written()
    leader = on_disk(open_log(leader_disk))
    follower_disk = MemoryDisk()
    follower = open_log(follower_disk, SMALL)
    while follower.end_offset < leader.end_offset:
        part = leader.read(follower.end_offset, max_bytes=1000)
        follower.append_as_follower(split(b"".join(part.buffers)))
    assert everything(follower) == whole
    assert log_paths(follower_disk) == log_paths(leader_disk)
    assert follower.epochs.entries == leader.epochs.entries
