"""After a clean stop the indexes of sealed segments are read at first use (segment.py, rule 4; issue 15, Build 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.errors import CorruptMessage
from minikafka.log.names import offset_name, offsets_in
from minikafka.log.partition_log import PartitionLog
from tests.rules.log_words import (
    SMALL,
    TIME,
    everything,
    fill,
    found_by_time,
    newest_record,
    on_disk,
    open_log,
    values,
)
from tests.rules.memory_disk import MemoryDisk, run

NAMES = "abcdefghijklmnopqrstuvwx"
SUFFIXES = (".index", ".timeindex")


class CountingDisk(MemoryDisk):
    """Remembers which small files were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_files: list[str] = []

    def read_file(self, path: str) -> bytes:
        self.read_files.append(path)
        return super().read_file(path)


@cache
def files_of_a_clean_stop() -> dict[str, bytes]:
    disk = MemoryDisk()
    log = open_log(disk)
    for number, name in enumerate(NAMES):
        # Times go back and forth, so that the largest one of a segment is not always its last.
        fill(log, name, epoch=number // 9, time=TIME + 10 * number - 35 * (number % 3))
    log.prepare_close()
    run(log.sync())
    log.close()
    return {path: disk.read_file(path) for path in disk.inodes}


def stopped_cleanly() -> CountingDisk:
    """24 records in several segments, as a clean stop leaves them."""
    disk = CountingDisk()
    for path, data in files_of_a_clean_stop().items():
        disk.replace_file(path, data)
    return disk


def opened(disk: MemoryDisk, **options: object) -> PartitionLog:
    return on_disk(open_log(disk, clean=True, recovery_point=len(NAMES), **options))


def bases(disk: MemoryDisk) -> list[int]:
    return offsets_in(disk.names("orders-0"), ".log")


def indexes_of(base: int) -> list[str]:
    return [f"orders-0/{offset_name(base, suffix)}" for suffix in SUFFIXES]


def test_clean_start_reads_no_index_of_a_sealed_segment():
    """A start with 100,000 segments must not read 200,000 files (issue 15, Build 6)."""
    disk = stopped_cleanly()
    first, *_, last = bases(disk)
    log = opened(disk)
    assert [path for path in disk.read_files if path.endswith(SUFFIXES)] == indexes_of(last)
    assert {file.path for file in disk.open_files} == {f"orders-0/{offset_name(last, '.log')}"}
    disk.read_files.clear()
    log.read(first, max_bytes=1)
    assert disk.read_files == indexes_of(first)
    log.read(first, max_bytes=1)
    assert disk.read_files == indexes_of(first), "once"


def test_retention_reads_only_the_oldest_indexes():
    """The first look at retention comes 30 s after a start, at all logs."""
    disk = stopped_cleanly()
    log = opened(disk)
    disk.read_files.clear()
    assert log.expired_segments(TIME + 1, high_watermark=len(NAMES)) == []
    assert disk.read_files == indexes_of(bases(disk)[0])


Operation = Callable[[PartitionLog], object]


def _truncate(offset: int) -> Operation:
    return lambda log: log.truncate_to(offset)


def _read(offset: int) -> Operation:
    return lambda log: b"".join(log.read(offset, max_bytes=150).buffers) if offset <= log.end_offset else None


def _by_time(shift: int) -> Operation:
    return lambda log: (found_by_time(log, TIME + shift), newest_record(log))


def _expired(age_ms: int) -> Operation:
    def expired(log: PartitionLog) -> object:
        log.config = replace(SMALL, retention_ms=1)
        return [segment.base_offset for segment in log.expired_segments(TIME + age_ms, log.end_offset)]

    return expired


def _append(name: str) -> Operation:
    return lambda log: fill(log, name, epoch=9)


operations = st.lists(
    st.one_of(
        st.integers(1, len(NAMES)).map(_truncate),
        st.integers(0, len(NAMES)).map(_read),
        st.integers(-50, 300).map(_by_time),
        st.integers(0, 300).map(_expired),
        st.sampled_from("XYZ").map(_append),
        st.just(lambda log: log.roll()),
    ),
    max_size=12,
)


@given(operations)
def test_unread_indexes_serve_as_those_read_at_the_start(story: list[Operation]):
    """Step by step beside a log whose indexes are all read when it is opened; at the end the files are the same."""
    disks = stopped_cleanly(), stopped_cleanly()
    lazy, eager = (opened(disk) for disk in disks)
    for segment in eager._store.segments:
        segment.load_indexes()
    for step in story:
        assert step(on_disk(lazy)) == step(on_disk(eager))
    assert values(on_disk(lazy)) == values(on_disk(eager))
    for log in (lazy, eager):
        log.prepare_close()
    assert {path: disks[0].read_file(path) for path in disks[0].inodes} == {
        path: disks[1].read_file(path) for path in disks[1].inodes
    }


@pytest.mark.parametrize("damage", ["lost", "lost since", "zeros", "longer", "beyond"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_wrong_index_of_a_clean_stop_is_rebuilt(damage: str, suffix: str):
    """Rule 6 of segment.py: whatever became of the files, the same batches are found, by offset and by time."""
    whole = stopped_cleanly()
    told: list[str] = []
    disk = stopped_cleanly()
    path = f"orders-0/{offset_name(bases(disk)[1], suffix)}"
    content = disk.inodes[path].content
    if damage == "lost":
        disk.remove(path)
    elif damage == "zeros":
        content[:] = bytes(2 * len(content))
    elif damage == "longer":
        content += b"\0"
    elif damage == "beyond":
        content[:] = b"\x7f" * 24
    log = opened(disk, events=lambda kind, /, **facts: told.append(kind))
    if damage == "lost since":
        disk.remove(path)
    sound = opened(whole)
    assert everything(log) == everything(sound)
    for shift in range(-50, 300, 7):
        assert found_by_time(log, TIME + shift) == found_by_time(sound, TIME + shift)
    assert newest_record(log) == newest_record(sound)
    rebuilt_at_start = [note for note in log.report.notes if "index missing" in note]
    assert (len(rebuilt_at_start), told.count("index_rebuilt")) == ((1, 0) if damage == "lost" else (0, 1))
    assert not log.report.dropped


def test_damage_behind_a_wrong_index_fails_only_readers_of_it():
    """A rotten header in a segment whose index is rebuilt: what stands before it is read, retention goes on."""
    told: list[str] = []
    disk = stopped_cleanly()
    base, following = bases(disk)[1:3]
    disk.inodes[indexes_of(base)[0]].content[:] = bytes(16)
    log = opened(disk, events=lambda kind, /, **facts: told.append(f"{kind}: {facts.get('why')}"))
    second = log.read(base, max_bytes=1).size
    rotten = opened(disk_with_damage(disk, base, second), events=lambda kind, /, **facts: told.append(kind))
    assert rotten.read(base, max_bytes=1).first_offset == base
    with pytest.raises(CorruptMessage, match="the log is damaged here"):
        rotten.read(base + 1, max_bytes=1)
    assert rotten.read(following, max_bytes=1).first_offset == following
    log.config = rotten.config = replace(SMALL, retention_ms=1)
    assert len(rotten.expired_segments(TIME + 10_000, len(NAMES))) == rotten.segment_count
    assert rotten.failure is None
    assert told.count("index_rebuilt") == 1


def disk_with_damage(disk: MemoryDisk, base: int, position: int) -> MemoryDisk:
    """The same files; the magic of the batch at ``position`` is wrong."""
    damaged = MemoryDisk()
    for path in disk.inodes:
        damaged.replace_file(path, disk.read_file(path))
    damaged.inodes[f"orders-0/{offset_name(base, '.log')}"].content[position + 16] ^= 0xFF
    return damaged
