"""`minikafka log dump` and `log verify`: what stands in the files, and what is wrong with them (KAFKA-FACTS 10)."""

from __future__ import annotations

import tracemalloc

import pytest

from minikafka.config import TopicConfig
from minikafka.log.inspect import dump, verify_directory, verify_log
from minikafka.log.names import offset_name
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import CONTROL_LEADER_CHANGE, control_batch
from tests.rules.log_words import TIME, client_batch, fill, from_producer, open_log
from tests.rules.memory_disk import MemoryDisk, run


def closed_log() -> MemoryDisk:
    """Twelve records in two epochs and three segments, cleanly closed."""
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, *"abcdef", epoch=0)
    log.append_as_leader(from_producer(7, 0, "g"), leader_epoch=0, wall_ms=TIME)
    fill(log, *"hijkl", epoch=3)
    log.prepare_close()
    run(log.sync())
    log.close()
    return disk


def path(base: int, suffix: str) -> str:
    return "orders-0/" + offset_name(base, suffix)


def test_a_sound_log_has_no_findings():
    """A tool that cries wolf is not read."""
    disk = closed_log()
    assert list(verify_log(disk, "orders-0")) == []
    assert list(verify_directory(disk)) == []


def test_a_killed_brokers_log_has_no_findings():
    """After kill -9 the last segment has no index files yet: it is walked at the next start."""
    disk = MemoryDisk()
    fill(open_log(disk), *"abcdefghijkl")
    assert list(verify_directory(disk)) == []


def damage_index(disk: MemoryDisk) -> None:
    disk.inodes[path(0, ".index")].content[7] ^= 1


def damage_time(disk: MemoryDisk) -> None:
    disk.inodes[path(0, ".timeindex")].content[7] ^= 1


DAMAGES = [
    (lambda d: d.inodes[path(0, ".log")].content.__setitem__(100, 99), path(0, ".log"), "crc"),
    (lambda d: d.inodes[path(10, ".log")].content.extend(b"\0" * 7), path(10, ".log"), "no header"),
    (lambda d: d.remove(path(5, ".log")), path(10, ".log"), "begins at 10, the segment before it ends at 5"),
    (lambda d: d.remove(path(0, ".index")), path(0, ".index"), "is missing"),
    (damage_index, path(0, ".index"), "no batch begins at"),
    (lambda d: d.inodes[path(0, ".index")].content.extend(bytes(8)), path(0, ".index"), "do not rise"),
    (damage_time, path(0, ".timeindex"), "no batch ends at"),
    (
        lambda d: d.replace_file("orders-0/leader-epoch-checkpoint", b"0\n2\n0 0\n3 8\n"),
        "orders-0/leader-epoch-checkpoint",
        "offset 7 is of epoch 3, not 0",
    ),
    (
        lambda d: d.replace_file("orders-0/leader-epoch-checkpoint", b"0\n2\n0 0\n9 99\n"),
        "orders-0/leader-epoch-checkpoint",
        "epoch 9 begins at 99",
    ),
    (
        lambda d: d.replace_file("orders-0/leader-epoch-checkpoint", b"0\n"),
        "orders-0/leader-epoch-checkpoint",
        "line 2",
    ),
    (lambda d: d.remove("orders-0/leader-epoch-checkpoint"), "orders-0/leader-epoch-checkpoint", "is missing"),
    (lambda d: d.inodes[path(10, ".snapshot")].content.__setitem__(10, 9), path(10, ".snapshot"), "checksum"),
    (
        lambda d: d.replace_file("orders-0/partition.metadata", b"version: 0\n"),
        "orders-0/partition.metadata",
        "topic_id",
    ),
    (
        lambda d: d.replace_file("recovery-point-offset-checkpoint", b"0\n1\norders 0 13\n"),
        "recovery-point-offset-checkpoint",
        "beyond the log's end 12",
    ),
    (lambda d: d.replace_file("replication-offset-checkpoint", b"0\n2\n"), "replication-offset-checkpoint", "line 2"),
]


@pytest.mark.parametrize(("harm", "where", "what"), DAMAGES)
def test_each_damage_is_found_and_named(harm: object, where: str, what: str):
    """KAFKA-FACTS 10.6 to 10.8 on disk: file, place and reason, so that somebody can act on it."""
    disk = closed_log()
    harm(disk)  # type: ignore[operator]
    findings = list(verify_directory(disk))
    assert any(finding.path == where and what in finding.what for finding in findings), findings
    assert all(str(finding).startswith(finding.path) for finding in findings)


def test_an_empty_folder_is_a_finding():
    """A replica without any segment has lost its log."""
    disk = MemoryDisk()
    disk.replace_file("orders-0/partition.metadata", b"")
    assert [f.what for f in verify_log(disk, "orders-0")] == ["holds no segment"]


def test_dump_of_a_log():
    """One row per batch in Kafka's words, then its records on demand."""
    disk = closed_log()
    rows = list(dump(disk, path(5, ".log")))
    assert [(r["baseOffset"], r["partitionLeaderEpoch"], r["producerId"]) for r in rows] == [
        (5, 0, -1),
        (6, 0, 7),
        (7, 3, -1),
        (8, 3, -1),
        (9, 3, -1),
    ]
    assert (rows[0]["position"], rows[1]["position"], rows[0]["compresscodec"], rows[0]["timestampType"]) == (
        0,
        70,
        "none",
        "CreateTime",
    )
    full = list(dump(disk, path(5, ".log"), records=True))
    assert [r["value"] for r in full if "value" in r] == [b"f", b"g", b"h", b"i", b"j"]
    assert not disk.open_files


def test_dump_tells_damage_and_ends():
    """What stands before the damage is shown, and where it is."""
    disk = closed_log()
    disk.inodes[path(5, ".log")].content[139] ^= 1
    *sound, last = dump(disk, path(5, ".log"), records=True)
    assert len(sound) == 2
    assert last["position"] == 70
    assert "crc" in last["error"]


def test_dump_of_records_that_cannot_be_opened():
    """A sound checksum around garbage: the batch is shown, its records are an error row."""
    disk = MemoryDisk()
    log = open_log(disk)
    from tests.rules.test_records import with_records_area

    log.append_as_leader(
        RecordBatch.of(with_records_area(bytes(client_batch("a").data), b"\xff" * 9)), leader_epoch=0, wall_ms=TIME
    )
    rows = list(dump(disk, path(0, ".log"), records=True))
    assert "error" not in rows[0]
    assert "error" in rows[1]


def test_dump_of_control_records():
    """The quorum's own batches tell their type."""
    disk = MemoryDisk()
    log = open_log(disk)
    log.append_as_leader(
        RecordBatch.of(control_batch(CONTROL_LEADER_CHANGE, b"x", timestamp_ms=TIME)), leader_epoch=0, wall_ms=TIME
    )
    batch, record = dump(disk, path(0, ".log"), records=True)
    assert (batch["isControl"], record["controlType"]) == (True, 2)


def test_dump_of_the_other_files():
    """Index, time index, snapshot and checkpoints in rows."""
    disk = closed_log()
    disk.replace_file("recovery-point-offset-checkpoint", b"0\n1\norders 0 12\n")
    assert list(dump(disk, path(5, ".index"))) == [{"offset": 7, "position": 140}, {"offset": 9, "position": 280}]
    assert list(dump(disk, path(5, ".timeindex"))) == [{"timestamp": TIME, "offset": 5}]
    (producer,) = dump(disk, path(12, ".snapshot"))
    assert (producer["producerId"], producer["lastSequence"], producer["lastOffset"]) == (7, 0, 6)
    assert list(dump(disk, "orders-0/leader-epoch-checkpoint")) == [
        {"epoch": 0, "startOffset": 0},
        {"epoch": 3, "startOffset": 7},
    ]
    assert list(dump(disk, "recovery-point-offset-checkpoint")) == [{"topic": "orders", "partition": 0, "offset": 12}]


def test_dump_of_damaged_small_files():
    """A row that says so, not a traceback."""
    disk = closed_log()
    for name in (path(10, ".snapshot"), "orders-0/leader-epoch-checkpoint", "replication-offset-checkpoint"):
        disk.replace_file(name, b"1\n")
        assert [key for row in dump(disk, name) for key in row] == ["error"]


def test_dump_of_what_is_not_there():
    """A mistyped path must not create a file."""
    disk = MemoryDisk()
    for name in (path(0, ".log"), path(0, ".index")):
        with pytest.raises(FileNotFoundError):
            list(dump(disk, name))
    with pytest.raises(ValueError, match="not a log"):
        list(dump(disk, "orders-0/readme.txt"))
    assert disk.names("") == []


def test_verify_holds_no_more_of_a_log_than_it_reads_at_a_time():
    """Each batch's view kept the megabyte that it was read with: a segment of a gigabyte took a gigabyte."""
    disk = MemoryDisk()
    log = open_log(disk, TopicConfig())
    for _ in range(80):
        log.append_as_leader(client_batch("x" * 100_000), leader_epoch=0, wall_ms=TIME)
    tracemalloc.start()
    try:
        assert list(verify_log(disk, "orders-0")) == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 5_000_000
