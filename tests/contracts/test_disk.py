"""The Disk and File ports, simulated and on the operating system (D2, D6)."""

from __future__ import annotations

import asyncio

import pytest

from minikafka.errors import DiskFailed
from tests.contracts.arms import Arm, contract


@contract
async def test_a_file_is_appended_read_cut_and_sized(arm: Arm):
    """The log's whole life with a file."""
    disk = arm.world("n1").disk
    file = disk.open("orders-0/00000000000000000000.log")
    assert file.size() == 0
    file.append([b"abc", bytearray(b"de"), memoryview(b"xfghx")[1:4], b""])
    file.append([])
    assert (file.size(), file.read(0, 99), file.read(2, 3), file.read(8, 5)) == (8, b"abcdefgh", b"cde", b"")
    file.truncate(3)
    assert (file.size(), file.read(0, 99)) == (3, b"abc")
    file.truncate(99)
    assert file.size() == 3
    file.append([b"!"])
    await file.sync()
    file.close()
    again = disk.open("orders-0/00000000000000000000.log")
    assert (again.size(), again.read(0, 99)) == (4, b"abc!")
    again.close()


@contract
async def test_an_append_of_thousands_of_buffers_is_whole(arm: Arm):
    """writev takes 1,024 at most."""
    file = arm.world("n1").disk.open("log")
    pieces = [bytes([n % 251]) * (n % 7) for n in range(3000)]
    file.append(pieces)
    assert file.read(0, 1 << 20) == b"".join(pieces)
    file.close()


@contract
async def test_two_handles_see_the_same_file(arm: Arm):
    """A reader's handle sees what the writer's appended."""
    disk = arm.world("n1").disk
    writer, reader = disk.open("log"), disk.open("log")
    writer.append([b"abc"])
    assert reader.read(0, 9) == b"abc"
    writer.close()
    assert reader.read(0, 9) == b"abc"
    reader.close()


@contract
async def test_a_closed_file_refuses_and_a_sync_under_way_survives_the_close(arm: Arm):
    """A log that is closed while its flusher syncs."""
    file = arm.world("n1").disk.open("log")
    file.append([b"abc"])
    sync = asyncio.ensure_future(file.sync())
    await asyncio.sleep(0)
    file.close()
    file.close()
    await sync
    for attempt in (lambda: file.append([b"x"]), lambda: file.read(0, 1), lambda: file.truncate(0)):
        with pytest.raises(DiskFailed):
            attempt()
    with pytest.raises(DiskFailed):
        await file.sync()


@contract
async def test_names_are_sorted_and_only_one_level_deep(arm: Arm):
    """Recovery lists segments in order."""
    disk = arm.world("n1").disk
    for path in ("b/2", "b/10", "b/1", "a", "b/c/deep"):
        disk.open(path).close()
    assert disk.names("b") == ["1", "10", "2", "c"]
    assert disk.names("") == ["a", "b"]
    assert disk.names("missing") == []
    assert disk.exists("b")
    assert disk.exists("b/c/deep")
    assert disk.exists("")
    assert not disk.exists("b/3")


@contract
async def test_small_files_are_replaced_whole(arm: Arm):
    """Checkpoints: a reader sees the old one or the new one, and no temporary file stays."""
    disk = arm.world("n1").disk
    with pytest.raises(FileNotFoundError):
        disk.read_file("folder/checkpoint")
    disk.replace_file("folder/checkpoint", b"one")
    old = disk.open("folder/checkpoint")
    disk.replace_file("folder/checkpoint", b"two")
    assert disk.read_file("folder/checkpoint") == b"two"
    assert old.read(0, 9) == b"one"
    old.close()
    await disk.publish("folder/checkpoint", b"three")
    await asyncio.gather(*(disk.publish("folder/checkpoint", b"%d" % n) for n in range(10)))
    assert disk.read_file("folder/checkpoint") == b"9", "publishes of one path happen in order"
    assert disk.names("folder") == ["checkpoint"]


@contract
async def test_folders_and_files_are_renamed(arm: Arm):
    """A deleted topic's folder gets the suffix -delete; open files follow."""
    disk = arm.world("n1").disk
    file = disk.open("orders-0/log")
    disk.replace("orders-0", "orders-0.abc-delete")
    file.append([b"still"])
    assert disk.names("") == ["orders-0.abc-delete"]
    assert disk.read_file("orders-0.abc-delete/log") == b"still"
    disk.replace("orders-0.abc-delete/log", "orders-0.abc-delete/log.deleted")
    await disk.sync_folder("orders-0.abc-delete")
    await disk.sync_folder("")
    assert disk.names("orders-0.abc-delete") == ["log.deleted"]
    with pytest.raises(FileNotFoundError):
        disk.replace("nothing", "something")
    disk.open("full/file").close()
    with pytest.raises(DiskFailed):
        disk.replace("orders-0.abc-delete", "full")
    file.close()


@contract
async def test_remove_takes_files_and_whole_folders(arm: Arm):
    """Retention and topic deletion; what is missing is no error; an open file can still be read."""
    disk = arm.world("n1").disk
    file = disk.open("a/b/log")
    file.append([b"abc"])
    disk.open("a/other").close()
    disk.remove("a/other")
    assert disk.names("a") == ["b"]
    disk.remove("a")
    disk.remove("a")
    disk.remove("a/b/log")
    assert not disk.exists("a")
    assert file.read(0, 9) == b"abc"
    file.close()


@contract
async def test_the_names_of_a_folder_that_is_gone_cannot_be_synced(arm: Arm):
    """A topic is deleted while the sync of its folder waits for the disk."""
    disk = arm.world("n1").disk
    disk.open("orders-0/log").close()
    await disk.sync_folder("orders-0")
    disk.replace("orders-0", "orders-0.abc-delete")
    with pytest.raises(DiskFailed, match="No such file or directory"):
        await disk.sync_folder("orders-0")


@contract
async def test_paths_stay_inside_the_data_directory(arm: Arm):
    """A topic named .. must not reach another directory."""
    disk = arm.world("n1").disk
    for path in ("../x", "/etc/x", "a/../../x", "a//x", "./x", "a/"):
        for attempt in (disk.open, disk.exists, disk.names, disk.read_file, disk.remove):
            with pytest.raises(ValueError, match="data directory"):
                attempt(path)
        with pytest.raises(ValueError, match="data directory"):
            disk.replace_file(path, b"")
        with pytest.raises(ValueError, match="data directory"):
            await disk.publish(path, b"")
        with pytest.raises(ValueError, match="data directory"):
            await disk.sync_folder(path)


@contract
async def test_modification_times_are_milliseconds_of_the_calendar(arm: Arm):
    """Retention by time falls back on them."""
    world = arm.world("n1")
    before = world.clock.wall_ms()
    world.disk.open("log").append([b"x"])
    assert before - 1000 <= world.disk.modified_ms("log") <= world.clock.wall_ms() + 1000
    with pytest.raises(FileNotFoundError):
        world.disk.modified_ms("missing")


@contract
async def test_folders_are_not_files(arm: Arm):
    """A file may have a name that looks like a partition's folder."""
    disk = arm.world("n1").disk
    disk.open("orders-0/log").close()
    found = {path: disk.is_folder(path) for path in ("orders-0", "orders-0/log", "orders-1")}
    assert found == {"orders-0": True, "orders-0/log": False, "orders-1": False}


@contract
async def test_sizes_are_known_without_opening_files(arm: Arm):
    """A start looks at the size of each segment."""
    world = arm.world("n1")
    file = world.disk.open("orders-0/log")
    file.append([b"ab", b"c"])
    assert world.disk.size_of("orders-0/log") == 3
    file.truncate(1)
    assert world.disk.size_of("orders-0/log") == 1
    with pytest.raises(FileNotFoundError):
        world.disk.size_of("orders-0/missing")


@contract
async def test_small_files_are_read_whole(arm: Arm):
    """Checkpoints and indexes are read in pieces that divide none of these sizes, or just do."""
    world = arm.world("n1")
    for size in (0, 1, 65_535, 65_536, 65_537, 200_000):
        data = bytes(number % 251 for number in range(size))
        world.disk.replace_file("data", data)
        assert world.disk.read_file("data") == data


@contract
async def test_the_data_directory_has_one_owner_at_a_time(arm: Arm):
    """Two brokers on one directory would destroy it; kill -9 frees it."""
    first = arm.world("n1")
    first.disk.lock()
    first.disk.lock()
    assert first.disk.names("") == []
    if not arm.simulated:  # a simulated node has one incarnation at a time
        with pytest.raises(DiskFailed):
            arm.world("n1").disk.lock()
        first.disk.fence()
    else:
        await arm.die("n1")
    arm.world("n1").disk.lock()


@contract
async def test_a_dead_incarnation_reaches_no_file(arm: Arm):
    """What is left of a killed broker must not write into its successor's log."""
    world = arm.world("n1")
    file = world.disk.open("log")
    file.append([b"abc"])
    await arm.die("n1")
    for attempt in (
        lambda: file.append([b"x"]),
        lambda: file.truncate(0),
        lambda: world.disk.open("log"),
        lambda: world.disk.replace_file("log", b"x"),
        lambda: world.disk.remove("log"),
        lambda: world.disk.replace("log", "other"),
    ):
        with pytest.raises(DiskFailed):
            attempt()
    with pytest.raises(DiskFailed):
        await world.disk.publish("log", b"x")
    with pytest.raises(DiskFailed):
        await file.sync()
    file.close()
    assert arm.world("n1").disk.read_file("log") == b"abc"


@contract
async def test_syncs_run_side_by_side_with_the_loop(arm: Arm):
    """Durability is awaited: other work goes on meanwhile, on many files at once."""
    disk = arm.world("n1").disk
    files = [disk.open(f"log-{n}") for n in range(5)] + [disk.open("__cluster_metadata-0/log")]
    for file in files:
        file.append([b"x" * 1000])
    await asyncio.gather(*(file.sync() for file in files), disk.sync_folder(""))
    for file in files:
        file.close()


@contract
async def test_a_disk_knows_whether_it_ignores_case(arm: Arm):
    """On the disks of macOS and Windows the folders of topics Orders and orders are one; a name stays as it was made."""
    disk = arm.world("n1").disk
    disk.open("Orders-0/log").close()
    assert disk.ignores_case() == disk.exists("orders-0") == disk.exists("ORDERS-0/log")
    assert disk.names("") == ["Orders-0"]
