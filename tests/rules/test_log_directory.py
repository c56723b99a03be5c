"""A broker's data directory: identity, clean and unclean stops, checkpoints, deleted logs (KAFKA-FACTS 1.1 to 1.4)."""

from __future__ import annotations

import copy
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.config import TopicConfig
from minikafka.errors import CorruptMessage, DiskFailed, InvalidConfig, KafkaStorageError
from minikafka.invariant import InvariantViolation
from minikafka.log.checkpoint import BadCheckpoint, format_partition_metadata, parse_offsets
from minikafka.log.inspect import verify_directory
from minikafka.log.log_directory import LOGS_SYNCED_AT_ONCE, LogDirectory
from minikafka.log.names import FOLDER_NAME_SIZE_MAX, offset_name
from minikafka.log.partition_log import PartitionLog
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import EndTransaction, marker_batch
from minikafka.world.os_disk import OsDisk
from tests.rules.log_words import ORDERS, SMALL, TIME, TOPIC_ID, fill, in_transaction, on_disk, values
from tests.rules.memory_disk import MemoryDisk, MemoryFile, run

OTHER = TopicPartition("flights", 3)
POINTS, STARTS, MARKS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)


def opened(disk: MemoryDisk, **options: Any) -> LogDirectory:
    wanted = {"node_id": 1, "cluster_id": "c", "directory_id": "d", "config_of": lambda _: SMALL, **options}
    return run(LogDirectory.open(disk, **wanted))


def with_logs(disk: MemoryDisk) -> tuple[LogDirectory, PartitionLog, PartitionLog]:
    directory = opened(disk)
    orders = directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
    flights = directory.create(OTHER, topic_id="AAAAAAAAAAAAAAAAAAAAAw", config=SMALL)
    fill(orders, *"abcdefgh")
    fill(flights, "x")
    return directory, orders, flights


def test_a_new_directory_gets_an_identity():
    """KAFKA-FACTS 1.2: meta.properties names cluster, node and directory; it stays the same ever after."""
    disk = MemoryDisk()
    assert not opened(disk).was_clean
    assert b"node.id=1" in disk.read_file("meta.properties")
    assert opened(disk, directory_id="another").meta.directory_id == "d"


@pytest.mark.parametrize(
    ("options", "text", "sentence"),
    [
        ({"node_id": 2}, None, "belongs to node 1, this is node 2"),
        ({"cluster_id": "x"}, None, "belongs to cluster 'c'"),
        ({}, b"version=1\ncluster.id=c\nnode.id=1\nmk.data.format.version=2\n", "use a newer minikafka"),
        ({}, b"version=1\ncluster.id=c\nnode.id=1\nmk.data.format.version=0\n", "understands 1 to 1"),
        ({}, b"version=7\n", "version=7, this program understands version=1; restore the file"),
        ({}, b"cluster.id=c\n", "version=none"),
        ({}, b"version=1\nnode.id=1\n", "cluster.id is missing"),
        ({}, b"version=1\ncluster.id=c\nnode.id=one\n", "cannot be read"),
    ],
)
def test_a_directory_of_somebody_else_is_refused(options: dict[str, Any], text: bytes | None, sentence: str):
    """A broker that served another's data, or a format it does not know, would destroy it."""
    disk = MemoryDisk()
    opened(disk)
    if text is not None:
        disk.replace_file("meta.properties", text)
    with pytest.raises(InvalidConfig, match=sentence):
        opened(disk, **options)


def test_logs_without_an_identity_are_refused():
    """As Kafka refuses: with a new meta.properties the logs were somebody else's, and set aside as strays."""
    disk = MemoryDisk()
    with_logs(disk)
    disk.remove("meta.properties")
    before = disk.names("")
    with pytest.raises(InvalidConfig, match="holds flights-3, orders-0, but no meta"):
        opened(disk)
    assert disk.names("") == before
    directory, *_ = with_logs(MemoryDisk())
    assert directory.meta.node_id == 1


@pytest.mark.parametrize(
    ("policy", "is_clean"),
    [("delete", True), ("delete", False), ("compact", True)],
    ids=["clean", "killed", "compacted"],
)
def test_a_damaged_end_of_a_segment_takes_no_later_segment_along(policy: str, is_clean: bool):
    """A rotten base offset or lastOffsetDelta in the last batch of a synced segment. What followed was removed, as if it
    overlapped, or as replaced by compaction; and the log ended at an offset that was never written.
    """
    config = replace(SMALL, cleanup_policy=policy)
    disk = MemoryDisk()
    directory = opened(disk, config_of=lambda _: config)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=config)
    fill(log, *(each + "x" * 30 for each in "abcdefghijkl"))
    segments = [(segment.base_offset, segment.next_offset) for segment in log._store.segments]
    assert segments == [(0, 4), (4, 8), (8, 12)]
    size = log.size_bytes // 12
    run(log.sync())
    if is_clean:
        assert run(directory.close(broker_epoch=77))
    else:
        run(directory.checkpoint_recovery_points())
    for base, end in segments:
        path = f"{ORDERS}/{offset_name(base, '.log')}"
        for at in (*range(8), *range(23, 27)):
            for bit in range(8):
                harmed = copy.deepcopy(disk)
                content = harmed.inodes[path].content
                content[len(content) - size + at] ^= 1 << bit
                last = bytes(content[-size:])
                again = opened(harmed, config_of=lambda _: config)
                log = again.logs[ORDERS]
                is_up = int.from_bytes(last[:8], signed=True) > end - 1 or at >= 8
                if end < 12 and is_up and last[23] < 0x80:
                    assert (log.end_offset, log.segment_count) == (12, 3), (base, at, bit)
                    for offset in {*range(12)} - {end - 1}:
                        assert log.read(offset, max_bytes=100).first_offset == offset, (base, at, bit)
                    with pytest.raises(CorruptMessage):
                        log.read(end - 1, max_bytes=100)
                elif is_clean:
                    assert log.end_offset == 12 or again.previous_broker_epoch == -1, (base, at, bit)
                assert log.end_offset <= 12, (base, at, bit)


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_segment_that_is_gone_from_a_compacted_log_is_reported_as_lost(is_removed: bool):
    """It leaves a hole as compaction does; but its index is still there."""
    config = replace(SMALL, cleanup_policy="compact")
    disk = MemoryDisk()
    directory = opened(disk, config_of=lambda _: config)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=config)
    fill(log, *(each + "x" * 30 for each in "abcdefghijkl"))
    assert run(directory.close(broker_epoch=77))
    path = f"{ORDERS}/{offset_name(4, '.log')}"
    disk.remove(path) if is_removed else disk.replace_file(path, b"")
    assert opened(disk, config_of=lambda _: config).previous_broker_epoch == -1


@pytest.mark.parametrize("text", [b"0\n2\n0 0\n7 4\n", b"0\n2\n0 0\n2 4\n", b"0\n1\n0 0\n"])
def test_leader_epochs_that_the_last_batch_contradicts_are_read_from_the_batches(text: bytes):
    """One wrong digit in a file without a checksum: a follower would cut off committed records, or never be served."""
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
    fill(log, *"abcd", epoch=0)
    fill(log, *"efgh", epoch=3)
    run(directory.close())
    path = f"{ORDERS}/leader-epoch-checkpoint"
    assert disk.read_file(path) == b"0\n2\n0 0\n3 4\n"
    disk.replace_file(path, text)
    log = opened(disk).logs[ORDERS]
    assert log.epochs.entries == [(0, 0), (3, 4)]
    assert "the batch has 3" in log.report.notes[0]
    assert log.report.checked_count == 0


def test_what_is_kept_of_a_log_is_durable_before_it_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    """Batches whose checksums are right and whose offsets do not follow are copied aside. A power cut could take the copy,
    and leave the file without them.
    """
    disk = MemoryDisk()
    _, orders, _ = with_logs(disk)
    run(orders.sync())
    path = f"{ORDERS}/{offset_name(0, '.log')}"
    content = disk.inodes[path].content
    size = orders.size_bytes // 8
    content[size + 7] ^= 2  # 1 becomes 3
    kept: list[bytes] = []
    truncate = MemoryFile.truncate

    def watched(file: MemoryFile, at: int) -> None:
        if file.path == path:
            inode = disk.durable_names[f"{path}.stray"]
            assert inode.durable == bytes(content[at:])
            kept.append(inode.durable)
        truncate(file, at)

    monkeypatch.setattr(MemoryFile, "truncate", watched)
    log = opened(disk).logs[ORDERS]
    assert (log.end_offset, len(kept)) == (1, 1)
    assert [name for name in disk.names(str(ORDERS)) if name.startswith(offset_name(0, ".log"))] == [
        offset_name(0, ".log"),
        offset_name(0, ".log.stray"),
    ]
    assert log.report.dropped[0].kept_as == f"{path}.stray"
    assert not any(file.path.endswith(".stray") for file in disk.open_files)


def test_a_file_with_a_name_like_a_folders_is_left_alone(tmp_path: Path):
    """An operator's copy of a checkpoint: no broker started with it, since it is no folder of a partition."""
    disk = OsDisk(str(tmp_path), syncs=False)
    names = ("recovery-point-offset-checkpoint-1", "backup-2")
    for name in names:
        (tmp_path / name).write_text("0\n0\n")
    assert not opened(disk).logs
    assert not list(verify_directory(disk))
    assert {*disk.names("")} > {*names}
    disk.close()


def test_a_clean_stop_and_start():
    """KAFKA-FACTS 1.4: marker and checkpoints; nothing is walked; the marker is gone as soon as it was read."""
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    orders.raise_start(3)
    assert run(directory.close(broker_epoch=77, high_watermarks={ORDERS: 6}))
    assert not disk.open_files
    assert disk.read_file(".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":77}'
    assert disk.read_file(MARKS) == b"0\n1\norders 0 6\n"
    assert disk.read_file(POINTS) == b"0\n2\nflights 3 1\norders 0 8\n"
    assert disk.read_file(STARTS) == b"0\n1\norders 0 3\n"
    again = opened(disk)
    assert (again.was_clean, again.previous_broker_epoch) == (True, 77)
    assert not disk.exists(".kafka_cleanshutdown")
    log = again.logs[ORDERS]
    assert (log.report.checked_count, log.start_offset, log.synced_end, log.topic_id) == (0, 3, 8, TOPIC_ID)
    assert again.checkpointed_high_watermark(ORDERS) == 6
    assert again.checkpointed_high_watermark(OTHER) == 0
    assert values(on_disk(log)) == list("defgh")


def test_a_clean_stop_syncs_several_logs_at_once():
    """10,000 logs would take half a minute one after the other. All of them are durable before the marker is."""
    disk = MemoryDisk()
    directory = opened(disk)
    names = [TopicPartition("orders", number) for number in range(30)]
    for name in names:
        fill(directory.create(name, topic_id=TOPIC_ID, config=SMALL), *"abc")
    waiting: list[int] = []

    async def in_turns(*works: Coroutine[Any, Any, bool]) -> list[bool]:
        left, results = list(works), []
        while left:
            for work in list(left):
                try:
                    work.send(None)
                except StopIteration as stop:
                    left.remove(work)
                    results.append(stop.value)
            waiting.append(len(left))
        return results

    disk.held = True
    assert run(directory.close(together=in_turns))
    disk.held = False
    assert max(waiting) == LOGS_SYNCED_AT_ONCE
    disk.power_cut(Random(1))
    again = opened(disk)
    assert again.was_clean
    assert {name: again.logs[name].end_offset for name in names} == dict.fromkeys(names, 3)


def test_a_clean_stop_writes_nothing_of_a_log_without_new_records():
    """A start gives each partition a new leader epoch. An epoch without records is dropped when the log is opened, so
    its file is written with the first record.
    """
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    run(directory.close())
    directory = opened(disk)
    orders, flights = directory.logs[ORDERS], directory.logs[OTHER]
    for log in (orders, flights):
        log.assign_epoch(7, log.end_offset)
    fill(flights, "y", epoch=7)
    disk.synced.clear()
    run(directory.close())
    assert not [path for path in disk.synced if path.startswith("orders-0")]
    assert "flights-3/leader-epoch-checkpoint" in disk.synced
    disk.power_cut(Random(1))
    again = opened(disk)
    assert again.was_clean
    assert (again.logs[ORDERS].last_epoch, again.logs[ORDERS].end_offset) == (0, 8)
    assert (again.logs[OTHER].last_epoch, again.logs[OTHER].epochs.entries) == (7, [(0, 0), (7, 1)])


@pytest.mark.parametrize("end", ["kill -9", "power cut"])
def test_an_epoch_without_records_before_it_is_kept_with_its_first_record(end: str):
    """Records of the new epoch that are synced show where it begins, also when the log is opened without a walk."""
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    run(orders.sync())
    orders.assign_epoch(5, orders.end_offset)
    orders.assign_epoch(7, orders.end_offset)
    fill(orders, *"ijkl", epoch=7)
    run(orders.sync())
    run(directory.checkpoint_recovery_points())
    if end == "power cut":
        disk.power_cut(Random(3))
    log = opened(disk).logs[ORDERS]
    assert (log.end_offset, log.epochs.entries) == (12, [(0, 0), (7, 8)])
    assert log.end_offset_for(0) == (0, 8)


def test_the_marker_is_gone_for_good_before_a_log_is_loaded():
    """KAFKA-10471: a power cut while loading must not find it again."""
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    run(directory.close())
    opened(disk)
    assert ".kafka_cleanshutdown" not in disk.durable_names


def test_who_comes_back_without_a_log_tells_the_controller_of_an_unclean_stop():
    """KIP-966: an empty replica must not be elected because its broker stopped cleanly before its folder was removed.

    Found by a soak (seed 1795326294): an operator stopped a broker, removed a rotten partition's folder as the
    documents say, and started it again; it was still eligible, was elected, and what was acknowledged was gone.
    """
    disk = MemoryDisk()
    directory, _, _ = with_logs(disk)
    assert run(directory.close(broker_epoch=77))
    again = opened(disk)
    assert again.previous_broker_epoch == 77
    assert run(again.close(broker_epoch=78))
    disk.remove(str(ORDERS))
    told: list[tuple[str, dict[str, Any]]] = []
    without = opened(disk, events=lambda kind, **facts: told.append((kind, facts)))
    assert (without.was_clean, without.previous_broker_epoch) == (True, -1)
    assert ("logs_lost", {"partitions": [str(ORDERS)]}) in told
    assert without.logs[OTHER].end_offset == 1
    assert run(without.close(broker_epoch=79))
    assert opened(disk).previous_broker_epoch == 79, "what has been told is no news"


def test_a_clean_stop_without_its_checkpoint_is_told_as_unclean():
    """Nobody can say then which logs there were."""
    disk = MemoryDisk()
    directory, _, _ = with_logs(disk)
    assert run(directory.close(broker_epoch=77))
    disk.remove(POINTS)
    assert opened(disk).previous_broker_epoch == -1


@pytest.mark.parametrize("is_shorter", [False, True])
def test_a_log_that_had_to_be_cut_after_a_clean_stop_is_reported_as_lost(is_shorter: bool):
    """Damage at the end of the last segment, or a file that was not copied to its end. The replica counted as one that holds all that was committed: it could lead,
    and the others would have cut their logs, too.
    """
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    assert run(directory.close(broker_epoch=77))
    path = max(each for each in disk.inodes if each.startswith(str(ORDERS)) and each.endswith(".log"))
    content, size = disk.inodes[path].content, orders.size_bytes // 8
    if is_shorter:
        del content[-size:]
    else:
        content[-size + 16] ^= 0xFF
    told: list[tuple[str, Any]] = []
    again = opened(disk, events=lambda kind, /, **facts: told.append((kind, facts)))
    assert again.logs[ORDERS].end_offset < 8
    assert (again.was_clean, again.previous_broker_epoch) == (True, -1)
    assert ("logs_lost", {"partitions": [str(ORDERS)]}) in told


@pytest.mark.parametrize(
    ("point", "is_damaged"),
    [(8, True), (7, True), (6, False), (0, False), (None, True)],
    ids=["all was synced", "the next one was", "this one was not", "nothing was", "an operator took the points away"],
)
def test_a_log_that_is_cut_below_its_recovery_point_after_a_kill_is_damaged(point: int | None, is_damaged: bool):
    """What was not synced may be torn, and everything behind it goes: that is no damage. What was synced is cut only
    where it has rotten, and then others have what is gone here. (Seed 651817121: a last known leader led again with
    what was left, and the others truncated to it.)
    """
    disk = MemoryDisk()
    _, orders, _ = with_logs(disk)
    if point is None:
        disk.remove(POINTS)
    else:
        disk.replace_file(POINTS, f"0\n1\norders 0 {point}\n".encode())
    path = max(each for each in disk.inodes if each.startswith(str(ORDERS)) and each.endswith(".log"))
    disk.inodes[path].content[-2 * (orders.size_bytes // 8) + 30] ^= 0xFF
    events: list[tuple[str, Any]] = []
    again = opened(disk, events=lambda kind, /, **facts: events.append((kind, facts)))
    assert (again.was_clean, again.logs[ORDERS].end_offset) == (False, 6)
    assert list(again.damaged) == [ORDERS] * is_damaged
    assert (("logs_lost", {"partitions": [str(ORDERS)]}) in events) == is_damaged


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_damaged_log_is_remembered_until_the_controller_knows(is_clean: bool):
    """The process may end before it is let in, and the next one finds a log that ends well."""
    disk = MemoryDisk()
    _, orders, _ = with_logs(disk)
    disk.replace_file(POINTS, b"0\n1\norders 0 8\n")
    path = max(each for each in disk.inodes if each.startswith(str(ORDERS)) and each.endswith(".log"))
    disk.inodes[path].content[-2 * (orders.size_bytes // 8) + 30] ^= 0xFF
    first = opened(disk)
    assert list(first.damaged) == [ORDERS]
    if is_clean:
        assert run(first.close(broker_epoch=77))
    second = opened(disk)
    assert (list(second.damaged), second.previous_broker_epoch) == ([ORDERS], -1)
    second.forget_damage(ORDERS)
    assert not second.damaged
    assert not opened(disk).damaged


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_cut_by_power", [True, False])
def test_damage_is_remembered_before_what_shows_it_is_gone(
    is_clean: bool, is_cut_by_power: bool, monkeypatch: pytest.MonkeyPatch
):
    """The process may end right after it has cut the log: the next one finds a log that ends well, and would lead with
    what is left of it as the last known leader.
    """
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    assert run(directory.close(broker_epoch=77))
    if not is_clean:
        disk.remove(".kafka_cleanshutdown")
    path = max(each for each in disk.inodes if each.startswith(str(ORDERS)) and each.endswith(".log"))
    disk.inodes[path].content[-2 * (orders.size_bytes // 8) + 30] ^= 0xFF
    if is_clean:
        disk.remove(path.replace(".log", ".index"))
    truncate = MemoryFile.truncate

    def killed(file: MemoryFile, at: int) -> None:
        truncate(file, at)
        raise KeyboardInterrupt

    monkeypatch.setattr(MemoryFile, "truncate", killed)
    with pytest.raises(KeyboardInterrupt):
        opened(disk)
    monkeypatch.undo()
    if is_cut_by_power:
        disk.power_cut(Random(1))
    again = opened(disk)
    assert (list(again.damaged), again.logs[ORDERS].end_offset) == ([ORDERS], 6)


def test_damage_is_remembered_before_the_index_of_a_lost_segment_is_removed(monkeypatch: pytest.MonkeyPatch):
    """Nothing else shows that there was a segment, when its file is gone."""
    disk = MemoryDisk()
    directory, _, _ = with_logs(disk)
    assert run(directory.close(broker_epoch=77))
    path = max(each for each in disk.inodes if each.startswith(str(ORDERS)) and each.endswith(".log"))
    disk.remove(path)
    remove = MemoryDisk.remove

    def killed(disk: MemoryDisk, name: str) -> None:
        remove(disk, name)
        if name.endswith(".index"):
            raise KeyboardInterrupt

    monkeypatch.setattr(MemoryDisk, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        opened(disk)
    monkeypatch.undo()
    assert list(opened(disk).damaged) == [ORDERS]


def test_a_kill_is_unclean_and_loses_nothing():
    """kill -9: no marker, no broker epoch, every record still there."""
    disk = MemoryDisk()
    with_logs(disk)
    again = opened(disk)
    assert (again.was_clean, again.previous_broker_epoch) == (False, -1)
    assert {str(p): values(on_disk(log)) for p, log in again.logs.items()} == {
        "flights-3": ["x"],
        "orders-0": list("abcdefgh"),
    }


def test_a_log_that_failed_makes_the_stop_unclean():
    """The marker says that everything is on disk; with one failed log it would lie."""
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    disk.failing.add("orders-0/00000000000000000005.log")
    with pytest.raises(KafkaStorageError):
        fill(orders, "z")
    assert run(directory.close(broker_epoch=1)) is False
    assert not disk.exists(".kafka_cleanshutdown")
    disk.failing.clear()
    assert not opened(disk).was_clean


def test_a_disk_that_fails_while_stopping_makes_the_stop_unclean():
    """As above, when only the sync fails."""
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    disk.failing.add("flights-3/00000000000000000000.log")
    assert run(directory.close()) is False
    assert not disk.exists(".kafka_cleanshutdown")


def test_a_log_that_was_not_touched_is_not_written_again():
    """Stopping a broker with a thousand idle partitions must not sync a thousand times."""
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    run(directory.close())
    directory = opened(disk)
    disk.synced.clear()
    run(directory.close())
    assert not [path for path in disk.synced if "/" in path]


@pytest.mark.parametrize("text", [None, b"", b"0\n1\n", b"garbage"])
def test_unreadable_checkpoints_cost_time_only(text: bytes | None):
    """KAFKA-FACTS 1.4.1: they count as 0; no record and no deleted prefix may be lost by that."""
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    run(orders.sync())
    expired = orders.expired_segments(TIME + 8 * 86_400_000, high_watermark=5)
    run(orders.delete_segments(expired))
    run(directory.checkpoint_recovery_points())
    for name in (POINTS, STARTS, MARKS):
        disk.remove(name) if text is None else disk.replace_file(name, text)
    log = opened(disk).logs[ORDERS]
    assert (log.start_offset, values(on_disk(log))) == (5, list("fgh"))


@pytest.mark.parametrize("start", [6, 8, 9, 900])
def test_a_checkpointed_start_that_cannot_be_is_not_believed_after_a_clean_stop(start: int):
    """One wrong digit in a file without a checksum. The whole log was dropped, or records that nobody had deleted; and
    the replica counted as one that was stopped cleanly, so that it could lead and have the others drop theirs.
    """
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    orders.raise_start(5)
    run(directory.close(broker_epoch=77))
    assert disk.read_file(STARTS) == b"0\n1\norders 0 5\n"
    disk.replace_file(STARTS, f"0\n2\nflights 3 {start}\norders 0 {start}\n".encode())
    again = opened(disk)
    log = again.logs[ORDERS]
    assert (log.start_offset, log.end_offset, values(on_disk(log))) == (5, 8, list("fgh"))
    assert log.report.notes == [f"the checkpointed start {start} is wrong: the log begins at 5"]
    assert values(on_disk(again.logs[OTHER])) == ["x"]


def test_a_start_behind_that_of_the_first_leader_epoch_is_not_believed_whatever_epochs_follow():
    """The first epoch that is known begins where the log does; later ones say nothing of its start."""
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
    for epoch, name in enumerate("abcd"):
        fill(log, name, epoch=epoch)
    run(directory.close(broker_epoch=77))
    disk.replace_file(STARTS, b"0\n1\norders 0 2\n")
    again = opened(disk).logs[ORDERS]
    assert (again.start_offset, values(on_disk(again))) == (0, list("abcd"))


def test_a_rotten_batch_and_a_lost_checkpoint_do_not_keep_a_broker_from_starting():
    """Without the checkpointed watermark, or without a snapshot, producers are read from the batches. One that cannot be
    read fails who reads there, and nothing else.
    """
    for is_snapshot_lost in (False, True):
        disk = MemoryDisk()
        directory = opened(disk)
        log = directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
        log.append_as_leader(in_transaction(7, 0, "a" * 80), leader_epoch=0, wall_ms=TIME)
        marker = EndTransaction(7, 0, is_commit=True, coordinator_epoch=0)
        batch = RecordBatch.of(marker_batch(marker, timestamp_ms=TIME))
        log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME, marker=marker)
        fill(log, *"abcdef")
        assert log.segment_count > 1
        run(directory.close(high_watermarks={ORDERS: 8}))
        lost = [path for path in disk.inodes if path.endswith(".snapshot")] if is_snapshot_lost else [MARKS]
        for name in lost:
            disk.replace_file(name, b"?")
        path = f"{ORDERS}/{offset_name(0, '.log')}"
        disk.inodes[path].content[16] ^= 0xFF
        log = opened(disk).logs[ORDERS]
        assert (log.start_offset, log.end_offset) == (0, 8)
        assert "of producers is not known" in log.report.notes[0]
        assert log.read(7, max_bytes=1000).next_offset == 8


def test_overlapping_publications_leave_the_latest():
    """The older content may be ready later; it must not win, and neither may be half of both."""
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    disk.held = True
    first = directory.checkpoint_high_watermarks({ORDERS: 1})
    second = directory.checkpoint_high_watermarks({ORDERS: 2})
    first.send(None)
    second.send(None)
    disk.held = False
    run(second)
    run(first)
    assert parse_offsets(disk.read_file(MARKS)) == {ORDERS: 2}
    assert parse_offsets(bytes(disk.durable_names[MARKS].content)) == {ORDERS: 2}
    assert not [name for name in disk.names("") if name.endswith(".tmp")]


def test_a_publication_of_what_was_durable_before_is_not_left_out_while_another_one_is_under_way():
    """What is under way would be the last word."""
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    run(directory.checkpoint_high_watermarks({ORDERS: 1}))
    disk.held = True
    first = directory.checkpoint_high_watermarks({ORDERS: 2})
    first.send(None)
    disk.held = False
    run(directory.checkpoint_high_watermarks({ORDERS: 1}))
    run(first)
    assert parse_offsets(disk.read_file(MARKS)) == {ORDERS: 1}


def test_a_recovery_point_that_is_still_being_published_stands_on_disk_for_the_log():
    """A publication that is overtaken ends first, and says nothing of the one behind it: if the log is cut meanwhile, a
    segment sealed unsynced below the later point would be believed after a power cut.
    """
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    disk.held = True
    earlier = directory.checkpoint_recovery_points()
    earlier.send(None)
    disk.held = False
    run(orders.sync())
    disk.held = True
    later = directory.checkpoint_recovery_points()
    later.send(None)
    disk.held = False
    run(earlier)
    assert orders._store.disk_recovery_point == orders.end_offset
    run(later)
    assert parse_offsets(disk.read_file(POINTS))[ORDERS] == orders.end_offset


def test_a_deleted_log_waits_under_another_name():
    """KAFKA-FACTS 1.1: <topic>-<p>.<32 hex>-delete; a topic of the same name may come at once; a start removes it."""
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    path = directory.delete(ORDERS)
    assert path.startswith("orders-0.")
    assert path.endswith("-delete")
    assert directory.get(ORDERS) is None
    with pytest.raises(KafkaStorageError):
        orders.read(0, max_bytes=1)
    assert directory.create(ORDERS, topic_id="AAAAAAAAAAAAAAAAAAAABA", config=SMALL).end_offset == 0
    assert disk.names(path)
    again = opened(disk)
    assert disk.names(path) == []
    assert sorted(map(str, again.logs)) == ["flights-3", "orders-0"]
    again.remove(path)


def test_a_stray_log_is_set_aside_not_deleted():
    """KAFKA-FACTS 1.1: what the metadata does not place here is renamed and kept."""
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    path = directory.retire_stray(ORDERS)
    assert path.endswith("-stray")
    assert ORDERS not in opened(disk).logs
    assert disk.names(path)


def test_a_log_that_is_set_aside_again_leaves_the_former_one():
    """A replica that moved away, came back and moved away again: what was set aside first is the older, fuller log."""
    disk = MemoryDisk()
    long = TopicPartition("t" * 249, 0)
    directory = opened(disk)
    paths = []
    for value in "abc":
        fill(directory.create(long, topic_id=TOPIC_ID, config=SMALL), value)
        paths.append(directory.retire_stray(long))
    assert len(set(paths)) == 3
    assert all(disk.names(path) for path in paths)
    assert max(map(len, paths)) <= FOLDER_NAME_SIZE_MAX
    assert not opened(disk).logs


def test_a_log_is_created_once():
    """Two logs on one folder would overwrite each other."""
    directory, *_ = with_logs(MemoryDisk())
    with pytest.raises(InvariantViolation):
        directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)


def test_the_memory_for_tails_is_shared_out():
    """A broker with many partitions must not hold four MiB of each."""
    directory = opened(MemoryDisk(), tail_budget_bytes=1024 * 1024)
    logs = [directory.create(TopicPartition("t", n), topic_id=TOPIC_ID, config=TopicConfig()) for n in range(4)]
    assert [log.tail.size_max for log in logs] == [256 * 1024] * 4
    directory.delete(TopicPartition("t", 0))
    assert logs[1].tail.size_max == 1024 * 1024 // 3


def test_without_memory_for_tails_every_read_goes_to_the_file():
    """mk.memory.tails.bytes=0: what a test of the disk wants."""
    directory = opened(MemoryDisk(), tail_budget_bytes=0)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
    fill(log, "a", "b")
    assert (log.tail.size_max, log.tail.size) == (0, 0)
    assert values(on_disk(log)) == ["a", "b"]


@given(st.integers(0, 2**32), st.integers(0, 8), st.booleans())
def test_a_power_cut_at_any_point(seed: int, synced: int, checkpoint: bool):
    """What a completed sync covered is there, with the directory's own checkpoints being torn as well."""
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
    fill(log, *"abcdefgh"[:synced])
    run(log.sync())
    if checkpoint:
        run(directory.checkpoint_recovery_points())
    fill(log, *"abcdefgh"[synced:])
    disk.power_cut(Random(seed))
    again = opened(disk)
    left = values(on_disk(again.logs[ORDERS])) if ORDERS in again.logs else []
    assert left == list("abcdefgh")[: len(left)]
    assert len(left) >= synced


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_a_power_cut_while_old_segments_are_deleted(seed: int, steps: int):
    """The names of deleted segments may come back in any order; what was synced and not deleted never goes."""
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
    fill(log, *"abcdefghijklmnopqrst")
    run(log.sync())
    run(directory.checkpoint_recovery_points())
    disk.held = True
    deletion = log.delete_segments(log.expired_segments(TIME + 8 * 86_400_000, high_watermark=11))
    try:
        for _ in range(steps):
            deletion.send(None)
    except StopIteration:
        pass
    else:
        deletion.close()
    disk.held = False
    disk.power_cut(Random(seed))
    log = opened(disk).logs[ORDERS]
    left = values(on_disk(log))
    assert log.end_offset == 20
    assert left == list("abcdefghijklmnopqrst")[log.start_offset :]
    assert log.start_offset in {0, 5, 10}


def test_an_unreadable_checkpoint_is_told():
    """Who runs the broker learns that a full walk is coming, and why."""
    disk = MemoryDisk()
    opened(disk)
    disk.replace_file(POINTS, b"x")
    told: list[str] = []
    opened(disk, events=lambda kind, **facts: told.append(kind))
    assert told == ["checkpoint_unreadable", "data_directory_opened"]
    with pytest.raises(BadCheckpoint):
        parse_offsets(b"x")


def test_a_directory_that_is_in_use_is_refused():
    """Two processes on one data directory would corrupt it."""

    class Locked(MemoryDisk):
        def lock(self) -> None:
            raise DiskFailed("in use")

    with pytest.raises(DiskFailed):
        opened(Locked())


def test_others_get_their_turn_between_two_logs():
    """DESIGN, Risks: a broker that loads thousands of logs does not hold up those who share its loop."""
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    run(directory.close(broker_epoch=4, high_watermarks={}))
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    assert len(opened(disk, pause=pause).logs) == 2
    assert pauses == 2


# ---- a name that is used again ---------------------------------------------------------------------------------------

SECOND_ID = "AAAAAAAAAAAAAAAAAAAABQ"


def deleted(disk: MemoryDisk) -> LogDirectory:
    """orders-0 was there, with all checkpoints written, and is deleted."""
    directory, orders, _ = with_logs(disk)
    run(orders.sync())
    orders.raise_start(6)
    run(directory.checkpoint_recovery_points())
    run(directory.checkpoint_start_offsets())
    run(directory.checkpoint_high_watermarks({ORDERS: 8, OTHER: 1}))
    directory.delete(ORDERS)
    return directory


def created_anew(disk: MemoryDisk) -> LogDirectory:
    """It is deleted and created anew with two records."""
    directory = deleted(disk)
    fill(directory.create(ORDERS, topic_id=SECOND_ID, config=SMALL), "A", "B")
    return directory


def test_a_topic_created_anew_has_no_checkpoints_of_its_predecessor():
    """Found by seed 1033: kill -9 before the next checkpoints; the new log had the old one's watermark and start."""
    disk = MemoryDisk()
    created_anew(disk)
    again = opened(disk)
    log = again.logs[ORDERS]
    assert again.checkpointed_high_watermark(ORDERS) == 0
    assert (log.start_offset, log.end_offset, log.topic_id) == (0, 2, SECOND_ID)
    assert values(on_disk(log)) == ["A", "B"]
    assert log.report.checked_count == 2, "nothing of it is below a recovery point"
    assert (again.logs[OTHER].end_offset, again.checkpointed_high_watermark(OTHER)) == (1, 1)


def test_the_same_when_the_broker_dies_between_deletion_and_creation():
    """The name stands in checkpoints, and no log has it, when the broker starts."""
    disk = MemoryDisk()
    deleted(disk)
    fill(opened(disk).create(ORDERS, topic_id=SECOND_ID, config=SMALL), "A", "B")
    again = opened(disk)
    assert values(on_disk(again.logs[ORDERS])) == ["A", "B"]
    assert again.checkpointed_high_watermark(ORDERS) == 0


def test_a_checkpoint_under_way_does_not_bring_them_back():
    """It was begun before the deletion and is published after the creation: it comes too late."""
    disk = MemoryDisk()
    directory, orders, _ = with_logs(disk)
    orders.raise_start(6)
    disk.held = True
    late = [directory.checkpoint_start_offsets(), directory.checkpoint_high_watermarks({ORDERS: 8})]
    for coroutine in late:
        coroutine.send(None)
    directory.delete(ORDERS)
    fill(directory.create(ORDERS, topic_id=SECOND_ID, config=SMALL), "A", "B")
    disk.held = False
    for coroutine in late:
        run(coroutine)
    again = opened(disk)
    assert values(on_disk(again.logs[ORDERS])) == ["A", "B"]
    assert again.checkpointed_high_watermark(ORDERS) == 0


def test_a_start_that_was_being_saved_is_saved_again_when_a_topic_is_created_again():
    """The checkpoint under way is dropped, and that of the disk lacks the new start: the segments below it were removed,
    and a power cut that kept some of these removals left a hole in front of records that had been synced.
    """
    disk = MemoryDisk()
    directory = deleted(disk)
    flights = directory.logs[OTHER]
    fill(flights, *"abcdefghijkl")
    run(flights.sync())
    old = flights._store.segments[:3]
    disk.held = True
    deletion = flights.delete_segments(old)
    while flights.start_offset == 0:
        deletion.send(None)
    fill(directory.create(ORDERS, topic_id=SECOND_ID, config=SMALL), "A", "B")
    disk.held = False
    assert len(run(deletion)) > 0
    starts = parse_offsets(bytes(disk.durable_names[STARTS].content))
    assert starts == {OTHER: flights.start_offset}


def test_a_start_that_equals_that_of_a_former_topic_is_saved_all_the_same():
    """The former topic's was taken out of the file, so the file has to be written again though its content is known."""
    disk = MemoryDisk()
    directory = deleted(disk)
    orders = directory.create(ORDERS, topic_id=SECOND_ID, config=SMALL)
    fill(orders, *"ABCDEFGH")
    orders.raise_start(6)
    run(orders.sync())
    assert parse_offsets(bytes(disk.durable_names[STARTS].content)) == {ORDERS: 6}


def test_a_log_that_was_begun_again_below_its_saved_start_survives_kill_9():
    """What was synced since would lie below the start that the checkpoint knows, and be dropped."""
    disk = MemoryDisk()
    _, orders, _ = with_logs(disk)
    orders.raise_start(6)
    run(orders.sync())
    orders.truncate_to(4)
    fill(orders, "E")
    run(orders.sync())
    log = opened(disk).logs[ORDERS]
    assert (log.start_offset, values(on_disk(log))) == (4, ["E"])


def test_marks_of_logs_without_a_role_are_kept():
    """A broker whose metadata comes late, or that stops before it comes, has no replica to ask for its watermark."""
    disk = MemoryDisk()
    directory, *_ = with_logs(disk)
    run(directory.close(high_watermarks={ORDERS: 5, OTHER: 1}))
    again = opened(disk)
    run(again.checkpoint_high_watermarks({OTHER: 1}))
    assert again.checkpointed_high_watermark(ORDERS) == 5
    assert parse_offsets(disk.read_file(MARKS)) == {ORDERS: 5, OTHER: 1}
    again.delete(OTHER)
    run(again.close(high_watermarks={}))
    assert parse_offsets(disk.read_file(MARKS)) == {ORDERS: 5}


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_checkpoints_that_come_back_with_the_power_are_not_believed_of_a_topic_that_was_created_again(kills: int):
    """1. A topic is deleted and created again; its name is taken out of the checkpoints. 2. Power failure: the new folder
    is there, and the checkpoints as they were. The recovery point, beyond which the first segment began, let believe
    that the log begins there, without the records before; high watermark and start were the former log's as well.
    """
    disk = MemoryDisk()
    directory = deleted(disk)
    former = {name: disk.durable_names[name] for name in (POINTS, STARTS, MARKS)}
    assert parse_offsets(bytes(former[POINTS].content))[ORDERS] == 8
    fill(directory.create(ORDERS, topic_id=SECOND_ID, config=SMALL), *"ABCDEFG")
    disk.inodes.update(former)
    for _ in range(kills):
        directory = opened(disk)
    disk.remove(f"{ORDERS}/{offset_name(0, '.log')}")
    again = opened(disk)
    log = again.logs[ORDERS]
    assert (log.start_offset, log.end_offset, log.synced_end, again.checkpointed_high_watermark(ORDERS)) == (0, 0, 0, 0)
    assert ORDERS not in parse_offsets(disk.read_file(MARKS)), "another checkpoint may be written alone"
    fill(log, *"ABC")
    log.raise_start(2)
    run(log.sync())
    run(again.checkpoint_recovery_points())
    disk.power_cut(Random(1))
    log = opened(disk).logs[ORDERS]
    assert (log.topic_id, log.start_offset, log.report.recovery_point, values(on_disk(log))) == (SECOND_ID, 2, 3, ["C"])


def test_a_checkpoint_that_was_torn_when_a_name_was_taken_out_of_it_says_nothing_of_the_new_log():
    """A lost checkpoint lets a log begin at its first segment, for the start may have been saved there."""
    disk = MemoryDisk()
    fill(deleted(disk).create(ORDERS, topic_id=SECOND_ID, config=SMALL), *"ABCDEFG")
    for name in (POINTS, STARTS):
        disk.replace_file(name, b"")
    disk.remove(f"{ORDERS}/{offset_name(0, '.log')}")
    log = opened(disk).logs[ORDERS]
    assert (log.start_offset, log.end_offset) == (0, 0)


def test_a_checkpoint_names_no_log_while_a_former_log_may_be_meant():
    """A log that says so in its folder gets its own recovery point and start only when it no longer does."""
    disk = MemoryDisk()
    directory = created_anew(disk)
    assert b"mk.former" in disk.read_file(f"{ORDERS}/partition.metadata")
    disk.held = True
    waiting = directory.checkpoint_recovery_points()
    while ORDERS not in parse_offsets(disk.read_file(POINTS)):
        waiting.send(None)
    metadata = disk.durable_names[f"{ORDERS}/partition.metadata"]
    assert metadata.durable == f"version: 0\ntopic_id: {SECOND_ID}".encode()
    waiting.close()


def test_a_topic_that_is_created_again_meanwhile_keeps_its_folder_and_gets_no_marks_of_the_former_one():
    """What rewrites partition.metadata waits for the disk; then the folder may be another log's."""
    disk = MemoryDisk()
    directory = created_anew(disk)
    disk.held = True
    waiting = directory.checkpoint_high_watermarks({ORDERS: 2})
    for _ in range(3):
        waiting.send(None)
    directory.delete(ORDERS)
    fill(directory.create(ORDERS, topic_id=TOPIC_ID, config=SMALL), "x")
    disk.held = False
    run(waiting)
    again = opened(disk)
    assert (again.logs[ORDERS].topic_id, again.checkpointed_high_watermark(ORDERS)) == (TOPIC_ID, 0)


def test_a_second_topic_that_is_created_again_meanwhile_is_believed_too():
    """Its folder must not say for good that checkpoints mean a former log: its own start would be lost."""
    disk = MemoryDisk()
    directory = created_anew(disk)
    disk.held = True
    waiting = directory.checkpoint_recovery_points()
    waiting.send(None)
    directory.delete(OTHER)
    directory.create(OTHER, topic_id=TOPIC_ID, config=SMALL)
    disk.held = False
    run(waiting)
    for name in (ORDERS, OTHER):
        assert b"mk.former" not in disk.read_file(f"{name}/partition.metadata")


def test_where_compaction_had_come_to_in_a_former_log_says_nothing_of_the_new_one():
    """Its records would never be compacted."""
    disk = MemoryDisk()
    created_anew(disk)
    run(disk.publish("cleaner-offset-checkpoint", b"0\n1\norders 0 2\n"))
    assert opened(disk).logs[ORDERS].clean_end is None


def test_a_log_that_is_created_after_a_kill_trusts_no_checkpoint_that_may_not_be_durable():
    """The process before may have taken a name out of a checkpoint, which the power brings back."""
    disk = MemoryDisk()
    created_anew(disk)
    third = TopicPartition("third", 0)
    opened(disk).create(third, topic_id=TOPIC_ID, config=SMALL)
    assert b"mk.former" in disk.read_file(f"{third}/partition.metadata")


class RemovalsWatched(MemoryDisk):
    """Notes segments that go before the name of what replaces them is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[str] = []
        self.too_soon: list[str] = []

    def remove(self, path: str) -> None:
        if path.endswith(".log") and path in self.inodes:
            self.removed.append(path)
            if not self.is_replaced(f"orders-0/{0:020d}.log"):
                self.too_soon.append(path)
        super().remove(path)

    def is_replaced(self, path: str) -> bool:
        return self.durable_names[path] is self.inodes[path]


class ReplacementWatched(RemovalsWatched):
    """Notes segments that are removed while no durable name leads a start to the segment that replaces them."""

    def is_replaced(self, path: str) -> bool:
        names = [name for name, inode in self.durable_names.items() if inode is self.inodes[path]]
        return any(name.endswith((".log", ".swap")) for name in names)  # what is .cleaned is removed by a start


def ended_in_a_swap(disk: MemoryDisk) -> LogDirectory:
    """The round of compaction ends when it has begun to swap its segment in; what it did is in the page cache only."""
    compact = TopicConfig(cleanup_policy="compact", segment_bytes=400)
    directory = opened(disk, config_of=lambda _: compact)
    log = directory.create(ORDERS, topic_id=TOPIC_ID, config=compact)
    fill(log, *(each + "x" * 30 for each in "abcdefghijklmnop"))
    run(log.sync())
    log.config = TopicConfig(cleanup_policy="compact", segment_bytes=4000)
    disk.held = True
    dirty = log.dirty_range(high_watermark=log.end_offset, now_ms=TIME)

    async def go_on(_: int) -> None:
        """Nobody else wants a turn."""

    round_ = log.clean(dirty, memory_bytes=1_000_000, clock_ms=lambda: TIME, pause=go_on)
    while log._store.swapping is None:
        round_.send(None)
    round_.close()
    disk.held = False
    return directory


def test_a_clean_stop_finishes_what_compaction_was_swapping_in():
    """The cleaner's task is cancelled before the logs are closed: each step of its swap is durable before the next."""
    disk = RemovalsWatched()
    assert run(ended_in_a_swap(disk).close())
    assert disk.removed
    assert not disk.too_soon


def test_a_start_makes_the_name_of_a_swap_durable_before_it_finishes_it():
    """kill -9 while a swap's name is in the page cache only. The next start removes what it replaces; if only that
    removal reached the disk, a power cut would leave neither the old segments nor the new one.
    """
    disk = ReplacementWatched()
    ended_in_a_swap(disk)
    assert not disk.removed
    opened(disk, config_of=lambda _: TopicConfig(cleanup_policy="compact", segment_bytes=400))
    assert disk.removed
    assert not disk.too_soon


def test_a_log_of_a_new_data_directory_has_no_former_one():
    """Nothing can name it: its partition.metadata is Kafka's to the byte, and no checkpoint waits for another one."""
    disk = MemoryDisk()
    opened(disk).create(ORDERS, topic_id=TOPIC_ID, config=SMALL)
    assert disk.read_file(f"{ORDERS}/partition.metadata") == format_partition_metadata(TOPIC_ID)
