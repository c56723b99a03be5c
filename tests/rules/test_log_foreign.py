"""Logs that Kafka wrote: compacted without a marker, begun anywhere, with the epochs of another cluster (issue 13, 5)."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.config import TopicConfig
from minikafka.errors import InvalidConfig
from minikafka.log.checkpoint import format_epochs
from minikafka.log.inspect import is_metadata_of_kafka, verify_log
from minikafka.log.log_directory import LogDirectory
from minikafka.log.names import GAPS, offset_name
from minikafka.log.recovery import MisfitLog
from minikafka.quorum.records import FeatureLevel, encode
from minikafka.types import METADATA_PARTITION, Offset
from minikafka.wire.batch import RecordBatch, split, with_fields
from minikafka.wire.records import Record, build_batch, control_batch
from tests.rules.log_words import ORDERS, TIME, everything, open_log, values
from tests.rules.memory_disk import MemoryDisk, run

PLAIN = TopicConfig(segment_bytes=1 << 20)
FOLDER = str(ORDERS)


def at(offset: Offset, value: str, *, epoch: int = 0) -> bytes:
    record = Record(0, TIME, key=b"k", value=value.encode())
    return build_batch([record], base_offset=offset, leader_epoch=epoch)


def foreign(*segments: tuple[Offset, list[bytes]], epochs: list[tuple[int, Offset]] | None = None) -> MemoryDisk:
    """A partition's folder as Kafka leaves it: log files, and maybe the leader-epoch checkpoint."""
    disk = MemoryDisk()
    for base, batches in segments:
        disk.replace_file(f"{FOLDER}/{offset_name(base, '.log')}", b"".join(batches))
    if epochs is not None:
        disk.replace_file(f"{FOLDER}/leader-epoch-checkpoint", format_epochs(epochs))
    return disk


def opened(disk: MemoryDisk, **options: Any) -> tuple[list[tuple[Offset, str]], list[str]]:
    """(offset, value) of every record that the log has after an unclean stop, and the kinds of events."""
    told: list[str] = []
    log = open_log(disk, PLAIN, events=lambda kind, **_: told.append(kind), **options)
    offsets = [batch.base_offset for batch in split(everything(log))]
    return list(zip(offsets, values(log), strict=True)), told


@pytest.mark.parametrize("recovery_point", [0, None, 12])
def test_gaps_of_a_compacted_log_are_accepted_and_noted(recovery_point: int | None):
    """At 62e114e everything behind the first gap was cut off, and a log that begins with one was emptied."""
    disk = foreign((0, [at(3, "a"), at(5, "b"), at(9, "c")]), (12, [at(12, "d"), at(13, "e")]))
    found, told = opened(disk, recovery_point=recovery_point)
    assert found == [(3, "a"), (5, "b"), (9, "c"), (12, "d"), (13, "e")]
    assert "torn_tail_dropped" not in told
    assert disk.exists(f"{FOLDER}/{GAPS}")
    assert opened(disk)[0] == found


def test_batch_with_fewer_records_than_offsets_tells_of_compaction():
    """The hole between the segments is then no lost name, though it comes first."""
    one = RecordBatch.of(at(20, "x"))._replace(last_offset_delta=4)
    thin = with_fields(one, base_offset=20, leader_epoch=0) + one.data[61:]
    disk = foreign((0, [at(0, "a")]), (20, [thin]), (25, [at(25, "b")]))
    assert opened(disk)[0] == [(0, "a"), (20, "x"), (25, "b")]
    assert disk.exists(f"{FOLDER}/{GAPS}")


def test_batch_with_fewer_records_than_offsets_is_noted_also_where_no_hole_follows():
    """Its followers must hear of it before a later round of compaction leaves a hole (``mk.gaps``)."""
    one = RecordBatch.of(at(20, "x"))._replace(last_offset_delta=4)
    thin = with_fields(one, base_offset=0, leader_epoch=0) + one.data[61:]
    disk = foreign((0, [thin, at(5, "a")]))
    assert opened(disk)[0] == [(0, "x"), (5, "a")]
    assert disk.exists(f"{FOLDER}/{GAPS}")


def test_gap_that_nothing_follows_is_damage():
    """The base offset has no checksum; compaction never touches the last segment. So is one that the next contradicts."""
    assert opened(foreign((0, [at(0, "a"), at(7, "b")])))[0] == [(0, "a")]
    assert opened(foreign((0, [at(0, "a"), at(7, "b"), at(2, "c")])))[0] == [(0, "a")]
    assert opened(foreign((0, [at(0, "a"), at(7, "b")]), (2, [at(2, "c")])))[0] == [(0, "a")]


def test_sound_batches_that_do_not_fit_are_kept_as_a_stray_file():
    """A batch whose checksum is right is never destroyed; one whose checksum is wrong is cut, as a torn write."""
    last = at(7, "b")
    gap_at_end = foreign((0, [at(0, "a"), last]))
    found, told = opened(gap_at_end)
    assert (found, told.count("segment_set_aside")) == ([(0, "a")], 1)
    assert gap_at_end.read_file(f"{FOLDER}/{offset_name(0, '.log')}.stray") == last

    contradicted = foreign((0, [at(0, "a"), last]), (2, [at(2, "c")]))
    assert opened(contradicted)[0] == [(0, "a")]
    strays = [name for name in contradicted.names(FOLDER) if name.endswith(".stray")]
    assert strays == [f"{offset_name(0, '.log')}.stray", f"{offset_name(2, '.log')}.stray"]

    torn = foreign((0, [at(0, "a"), last[:-1] + b"?"]))
    assert opened(torn)[0] == [(0, "a")]
    assert [name for name in torn.names(FOLDER) if name.endswith(".stray")] == []


def test_log_that_begins_late_is_accepted_with_its_epochs():
    """Kafka's retention took what came before, and moved the first leader epoch to the start of the log."""
    segments = (100, [at(100, "a", epoch=3)]), (101, [at(101, "b", epoch=3)])
    assert opened(foreign(*segments, epochs=[(3, 100)]))[0] == [(100, "a"), (101, "b")]


def test_what_cannot_be_placed_is_kept_as_stray_files():
    """A beginning or a segment is missing, and nothing says why: the batches are not served, and not destroyed."""
    disk = foreign((100, [at(100, "a", epoch=3)]), epochs=[(2, 0), (3, 50)])
    content = disk.read_file(f"{FOLDER}/{offset_name(100, '.log')}")
    found, told = opened(disk)
    assert (found, told.count("segment_set_aside")) == ([], 1)
    assert disk.read_file(f"{FOLDER}/{offset_name(100, '.log')}.stray") == content

    disk = foreign((0, [at(0, "a")]), (9, [at(9, "b")]), (10, [at(10, "c")]))
    found, told = opened(disk)
    assert (found, told.count("segment_set_aside")) == ([(0, "a")], 2)
    assert [name for name in disk.names(FOLDER) if name.endswith(".stray")] == [
        f"{offset_name(9, '.log')}.stray",
        f"{offset_name(10, '.log')}.stray",
    ]
    # Again, with the same names: no earlier file is overwritten.
    disk.replace_file(f"{FOLDER}/{offset_name(9, '.log')}", at(9, "other"))
    opened(disk)
    assert disk.exists(f"{FOLDER}/{offset_name(9, '.log')}.stray.stray")


FALLING = (0, [at(0, "a", epoch=7), at(1, "b", epoch=7), at(2, "c", epoch=1)])


def test_log_whose_epochs_fall_is_not_cut():
    """It came from another cluster, whose epochs were higher; at 62e114e what came later was cut off."""
    disk = foreign(FALLING, epochs=[(7, 0)])
    content = disk.read_file(f"{FOLDER}/{offset_name(0, '.log')}")
    with pytest.raises(MisfitLog, match="offset 2 has leader epoch 1 after 7"):
        open_log(disk, PLAIN)
    assert disk.read_file(f"{FOLDER}/{offset_name(0, '.log')}") == content


def test_data_directory_sets_such_a_log_aside():
    """The folder gets another name, with the reason in an event; an earlier one of that name stays."""
    told: list[tuple[str, dict[str, object]]] = []

    def load(disk: MemoryDisk) -> LogDirectory:
        return run(
            LogDirectory.open(
                disk,
                node_id=1,
                cluster_id="c",
                directory_id="d",
                events=lambda kind, **facts: told.append((kind, facts)),
            )
        )

    disk = foreign()
    load(disk)
    for count in (1, 2):
        for path in foreign(FALLING).inodes:
            disk.replace_file(path, foreign(FALLING).read_file(path))
        assert ORDERS not in load(disk).logs
        aside = [name for name in disk.names("") if name.endswith("-stray")]
        assert len(aside) == count
    facts = [facts for kind, facts in told if kind == "log_set_aside"]
    assert sorted(str(each["folder"]) for each in facts) == sorted(aside)
    assert "leader epoch 1 after 7" in str(facts[0]["why"])


def test_a_metadata_log_of_another_cluster_is_not_set_aside():
    """Its folder has the node's votes, too: without them a voter could vote twice in one epoch."""
    disk, path = MemoryDisk(), f"{METADATA_PARTITION}/{offset_name(0, '.log')}"
    run(LogDirectory.open(disk, node_id=1, cluster_id="c", directory_id="d"))
    disk.replace_file(path, foreign(FALLING).read_file(f"{FOLDER}/{offset_name(0, '.log')}"))
    disk.replace_file(f"{METADATA_PARTITION}/quorum-state", b"{}")
    with pytest.raises(InvalidConfig, match=r"leader epoch 1 after 7.*the votes of this node"):
        run(LogDirectory.open(disk, node_id=1, cluster_id="c", directory_id="d"))
    assert disk.read_file(f"{METADATA_PARTITION}/quorum-state") == b"{}"


# ---- the metadata log ------------------------------------------------------------------------------------------------

KAFKA_METADATA = bytes.fromhex("010c0010") + b"metadata.version" + b"\0\x1e\0"
"""A FeatureLevelRecord as Kafka frames it: version of the frame, API key, version, fields."""


def with_metadata_log(payload: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    elected = control_batch(2, bytes(8), timestamp_ms=TIME, leader_epoch=1)
    records = build_batch([Record(0, TIME, value=payload)], base_offset=1, leader_epoch=1)
    disk.replace_file(f"{METADATA_PARTITION}/{offset_name(0, '.log')}", elected + records)
    return disk


def test_metadata_log_of_kafka_is_refused_before_anything_is_written():
    """One sentence; at 62e114e the broker won an election on it, appended to it, and failed with a traceback."""
    disk = with_metadata_log(KAFKA_METADATA)
    before = {path: disk.read_file(path) for path in disk.inodes}
    with pytest.raises(InvalidConfig, match="is the metadata log of Apache Kafka, which minikafka cannot read"):
        run(LogDirectory.open(disk, node_id=1, cluster_id="c", directory_id="d"))
    assert {path: disk.read_file(path) for path in disk.inodes} == before
    [finding] = verify_log(disk, str(METADATA_PARTITION))
    assert "metadata log of Apache Kafka" in finding.what
    assert not is_metadata_of_kafka(with_metadata_log(encode(FeatureLevel(name="f", level=1))))
    assert not is_metadata_of_kafka(MemoryDisk())
