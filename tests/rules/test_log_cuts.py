"""A log that was cut, and a power failure before the cut was durable: what was cut off may come back (S1, S21).

Files keep a beginning of what was done to each, and names any combination: the cut may be gone and what was written
later there, or the other way round. Found by ``tests/sim/log_histories.py`` and ``compacted_replicas.py``.
"""

from __future__ import annotations

from random import Random

import pytest

from minikafka.log.checkpoint import format_epochs
from minikafka.log.names import offset_name
from minikafka.log.partition_log import PartitionLog
from minikafka.log.recovery import MisfitLog
from tests.rules.log_words import ORDERS, fill, open_log, values
from tests.rules.memory_disk import Inode, MemoryDisk, run

EPOCHS = f"{ORDERS}/leader-epoch-checkpoint"


def path(base: int) -> str:
    return f"{ORDERS}/{offset_name(base, '.log')}"


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log._store.segments]


def come_back() -> tuple[MemoryDisk, PartitionLog]:
    """Segments 0 to 5 and 5 to 10 of epoch 1 were synced. The log was cut at 3, and two records of epoch 2 followed; but
    the removal of the second segment is not durable, and the power has gone.
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdefghij", epoch=1)
    assert bases(log) == [0, 5]
    run(log.sync())
    stale = disk.inodes[path(5)]
    log.truncate_to(3)
    log.assign_epoch(2, 3)
    fill(log, "x", "y", epoch=2)
    disk.inodes[path(5)] = stale
    return disk, log


@pytest.mark.parametrize("recovery_point", [0, 3, 10, None])
def test_a_segment_that_comes_back_behind_a_later_epoch_is_set_aside(recovery_point: int | None):
    """The log before it ends just where it begins. The whole log was set aside for that, as one of another cluster."""
    disk, _ = come_back()
    log = open_log(disk, recovery_point=recovery_point)
    assert (values(log), log.epochs.entries) == ([*"abcxy"], [(1, 0), (2, 3)])
    assert disk.exists(path(5) + ".stray")
    assert [dropped.reason for dropped in log.report.dropped] == ["was cut off at 5, and came back with the power"]


@pytest.mark.parametrize("checkpoint", [b"", b"0\n1\n1 0\n"], ids=["torn", "old"])
def test_the_checkpoint_of_epochs_may_be_lost_with_the_cut(checkpoint: bytes):
    """It is replaced with each cut and each epoch, and not synced at once."""
    disk, _ = come_back()
    disk.replace_file(EPOCHS, checkpoint)
    log = open_log(disk, recovery_point=3)
    assert (values(log), log.epochs.entries) == ([*"abcxy"], [(1, 0), (2, 3)])


@pytest.mark.parametrize("recovery_point", [3, 5, 8, 10, 12, 15])
@pytest.mark.parametrize("back", [(5,), (10,), (5, 10)], ids=str)
@pytest.mark.parametrize("checkpoint", [b"", b"0\n1\n1 0\n"], ids=["torn", "old"])
def test_several_segments_come_back_with_the_checkpoint_of_epochs(
    checkpoint: bytes, back: tuple[int, ...], recovery_point: int
):
    """The recovery point of the log that was cut vouches for them, and the old checkpoint for their epochs: the batch
    before them has a later one. They stood behind it, or the whole log was set aside (seed 950160657).
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdefghijklmno", epoch=1)
    assert bases(log) == [0, 5, 10]
    run(log.sync())
    stale = {path(base): disk.inodes[path(base)] for base in back}
    log.truncate_to(3)
    log.assign_epoch(2, 3)
    fill(log, "x", "y", epoch=2)
    disk.inodes |= stale
    disk.replace_file(EPOCHS, checkpoint)
    log = open_log(disk, recovery_point=recovery_point)
    assert (values(log), log.epochs.entries) == ([*"abcxy"], [(1, 0), (2, 3)])


def test_what_was_written_after_the_cut_is_walked_though_the_recovery_point_lies_behind_it():
    """The point is of the log that was cut, and the segment before the one that came back was believed for it."""
    disk, _ = come_back()
    disk.inodes[path(0)].content[-10:] = bytes(10)
    log = open_log(disk, recovery_point=10)
    assert values(log) == [*"abcx"]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_written_after_the_cut_is_synced_though_the_recovery_point_lies_behind_it(seed: int):
    """It was believed at first, and counted as synced: the next sync passed over it, and the next power failure took it."""
    disk, _ = come_back()
    log = open_log(disk, recovery_point=10)
    run(log.sync())
    assert log.synced_end == 5
    disk.power_cut(Random(seed))
    assert values(open_log(disk, recovery_point=5)) == [*"abcxy"]


def test_what_was_written_after_the_cut_may_end_behind_the_beginning_of_what_comes_back():
    """A sound segment was believed to end where the removed one begins, for the recovery point of the log that was cut
    (``LogHistory(1200673)``).
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdefghij", epoch=1)
    run(log.sync())
    stale = disk.inodes[path(5)]
    log.truncate_to(5)
    fill(log, *"xyz", epoch=2)
    assert bases(log) == [0]
    disk.inodes[path(5)] = stale
    for suffix in (".index", ".timeindex"):
        disk.replace_file(path(5).replace(".log", suffix), b"")
    log = open_log(disk, recovery_point=10)
    assert (bases(log), values(log), log.epochs.entries) == ([0], [*"abcdexyz"], [(1, 0), (2, 5)])


def test_a_log_of_another_cluster_is_set_aside_in_whole_also_where_its_epochs_fall_between_segments():
    """Its checkpoint was written when a leader of this cluster began there, and knows nothing of its beginning."""
    disk, _ = come_back()
    disk.replace_file(EPOCHS, format_epochs([(1, 5)]))
    with pytest.raises(MisfitLog, match="offset 5 has leader epoch 1 after 2"):
        open_log(disk)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_segment_is_not_sealed_before_its_cut_is_durable(is_killed: bool):
    """1. The log is cut, and written on. 2. A next segment begins. 3. The power goes, and the first segment is as it was
    before the cut. Where what was cut off ends just where the next segment begins, nothing shows the exchange.
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcde", epoch=1)
    run(log.sync())
    log.truncate_to(3)
    log.assign_epoch(2, 3)
    fill(log, "x", epoch=2)
    if is_killed:
        log = open_log(disk, recovery_point=3)
    fill(log, *"yz", epoch=2)
    assert (bases(log), log.wants_sync) == ([0], True)
    run(log.sync())
    fill(log, "w", epoch=2)
    assert (bases(log), values(log)) == ([0, 6], [*"abcxyzw"])


@pytest.mark.parametrize("how", ["cut", "killed", "restarted"])
def test_no_segment_takes_the_name_of_a_removed_one_and_is_sealed_before_the_removal_is_durable(how: str):
    """1. The log is cut between two segments. 2. Records of a later epoch fill a segment that has the name of the removed
    one, and a next one begins. 3. The power goes, and the name means the removed segment again. Where that ends just
    where the next one begins, a former leader's records stand between later ones (``CompactedReplicas(1100383)``).
    """
    disk = MemoryDisk()
    log = open_log(disk, start_offset=5 if how == "restarted" else 0)
    if how != "restarted":
        fill(log, *"abcde", epoch=1)
    fill(log, *"fghij", epoch=1)
    run(log.sync())
    stale = disk.inodes[path(5)]
    log.truncate_to(5)
    log.assign_epoch(2, 5)
    if how == "killed":
        log = open_log(disk, recovery_point=5)
    fill(log, *"FGHIJK", epoch=2)
    if path(10) in disk.inodes:
        disk.inodes[path(5)] = stale
        log = open_log(disk, recovery_point=5)
    assert values(log)[-6:] == [*"FGHIJK"]
    assert log.wants_sync
    run(log.sync())
    fill(log, *"LMNOPQ", epoch=2)
    assert bases(log)[-1] > 10


def test_epochs_of_believed_segments_come_back_with_them():
    """Only the checkpoint of epochs had heard of the cut. By it a follower's epoch would end later than it did (S21)."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abc", epoch=0)
    fill(log, *"defghij", epoch=6)
    run(log.sync())
    whole: dict[str, Inode] = {name: disk.inodes[name] for name in (path(0), path(5))}
    contents = {name: bytes(inode.content) for name, inode in whole.items()}
    log.truncate_to(2)
    disk.inodes.update(whole)
    for name, content in contents.items():
        disk.inodes[name].content[:] = content
    assert open_log(disk, recovery_point=10).epochs.entries == [(0, 0), (6, 3)]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_log_that_begins_again_is_synced_before_a_follower_appends_to_it(is_killed: bool):
    """Else the power may undo the removal of the old segment, and take the marker of the restart, but leave the new
    segment: where the old one ends just there, its records, which no leader has, precede the new ones
    (``CompactedReplicas(76833)``).
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcde", epoch=1)
    run(log.sync())
    log.restart_at(5)
    if is_killed:
        log = open_log(disk, recovery_point=0)
    assert (log.restart_is_unsynced, log.synced_end, log.end_offset) == (True, 0, 5)
    run(log.sync())
    assert (log.restart_is_unsynced, log.synced_end) == (False, 5)


def test_a_log_that_begins_below_its_checkpointed_start_claims_nothing_synced():
    """The recovery point on disk is of the log before, and so is the start."""
    disk = MemoryDisk()
    log = open_log(disk, start_offset=10)
    fill(log, *"abcde")
    run(log.sync())
    log.restart_at(3)
    fill(log, *"ABCDEFGHIJKL")
    log = open_log(disk, start_offset=10, recovery_point=15)
    assert (log.start_offset, log.end_offset, log.synced_end) == (3, 15, 0)


def test_a_log_that_begins_again_at_0_needs_no_sync():
    """No older record has a place before it, and a sync of nothing would never end the wait."""
    log = open_log(MemoryDisk())
    fill(log, *"abc")
    log.truncate_to(0)
    assert not log.restart_is_unsynced
