"""The simulated disk: what each kind of death leaves behind."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from minikafka.errors import DiskFailed, DiskFull
from minikafka.sim.world import SimWorld


def run(story, seed: int = 1):
    with SimWorld(seed) as sim:
        return sim.run(story(sim))


async def named(sim: SimWorld, node: str = "n1", path: str = "log"):
    """A file whose name is durable and whose content is empty."""
    world = sim.of(node)
    file = world.disk.open(path)
    await world.disk.sync_folder("")
    return world, file


def test_kill_keeps_what_was_never_synced():
    """The page cache belongs to the kernel: a dead process loses nothing it wrote."""

    async def story(sim: SimWorld) -> None:
        world = sim.of("n1")
        world.disk.open("folder/log").append([b"abc", b"def"])
        world.disk.replace_file("checkpoint", b"1")
        sim.kill("n1")
        world = sim.of("n1")
        assert world.disk.open("folder/log").read(0, 99) == b"abcdef"
        assert world.disk.read_file("checkpoint") == b"1"

    run(story)


def test_power_cut_keeps_what_was_synced_and_a_prefix_of_the_rest():
    """D6: only a sync promises; what follows it may survive in part, in order, and torn."""
    lengths: Counter[int] = Counter()
    holes = 0

    async def story(sim: SimWorld) -> bytes:
        _, file = await named(sim)
        file.append([b"A" * 1000])
        await file.sync()
        for letter in b"BCD":
            file.append([bytes([letter]) * 1000])
        sim.power_cut("n1")
        return sim.disk("n1").files()["log"]

    whole = b"".join(bytes([letter]) * 1000 for letter in b"ABCD")
    for seed in range(60):
        left = run(story, seed)
        assert left[:1000] == b"A" * 1000
        differ = [at for at in range(len(left)) if left[at] != whole[at]]
        assert all(left[at] == 0 for at in differ), "only zeroed sectors of the torn write may differ"
        assert not differ or min(differ) // 1000 == (len(left) - 1) // 1000
        holes += bool(differ)
        lengths[len(left)] += 1
    assert {1000, 2000, 3000, 4000} <= set(lengths), "whole writes survive too"
    assert any(length % 1000 for length in lengths), "torn writes happen"
    assert holes


def test_a_sync_covers_what_was_written_before_it_and_nothing_later():
    """Group commit: who appends during a sync must wait for the next one."""

    async def story(sim: SimWorld) -> None:
        _, file = await named(sim)
        file.append([b"before"])
        sync = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0)
        file.append([b"during"])
        await sync
        assert sim.disk("n1").durable_bytes("log") == b"before"

    run(story)


def test_a_power_cut_during_a_sync_may_leave_it_undone():
    """Nothing is promised before sync returns."""
    left = set()

    async def story(sim: SimWorld) -> bytes:
        _, file = await named(sim)
        file.append([b"x" * 10])
        sim.spawn("n1", file.sync())
        await asyncio.sleep(1e-6)
        sim.power_cut("n1")
        await asyncio.sleep(1)
        return sim.disk("n1").files()["log"]

    for seed in range(30):
        left.add(run(story, seed))
    assert {b"", b"x" * 10} <= left


def test_names_that_were_not_synced_may_be_gone_or_old():
    """A new segment, a replaced checkpoint, a removed file: durable only after sync_folder."""
    seen: Counter[tuple[bool, bytes, bool]] = Counter()

    async def story(sim: SimWorld) -> tuple[bool, bytes, bool]:
        world = sim.of("n1")
        await world.disk.publish("checkpoint", b"old")
        await world.disk.publish("doomed", b"")
        for folder in ("a", "b"):
            await world.disk.publish(f"{folder}/kept", b"")
        new = world.disk.open("a/new")
        new.append([b"data"])
        await new.sync()
        world.disk.replace_file("checkpoint", b"new")
        world.disk.remove("doomed")
        sim.power_cut("n1")
        disk = sim.of("n1").disk
        assert disk.names("b") == ["kept"]
        return disk.exists("a/new"), disk.read_file("checkpoint"), disk.exists("doomed")

    for seed in range(60):
        seen[run(story, seed)] += 1
    assert {new for new, _, _ in seen} == {True, False}
    assert {b"old", b"new"} < {checkpoint for _, checkpoint, _ in seen}, "old, new, and torn"
    assert {doomed for _, _, doomed in seen} == {True, False}


def test_a_power_cut_may_keep_a_later_name_and_lose_an_earlier_one():
    """No file system promises an order between changes of different names; those of one name keep their order."""
    left: Counter[tuple[str, ...]] = Counter()

    async def story(sim: SimWorld) -> tuple[str, ...]:
        disk = sim.of("n1").disk
        for name in ("a", "b"):
            disk.replace_file(name, b"")
        sim.power_cut("n1")
        return tuple(sim.disk("n1").files())

    for seed in range(200):
        left[run(story, seed)] += 1
    names = {"a", "b", "a.tmp", "b.tmp"}
    assert {frozenset(each) & {"a", "b"} for each in left} == {
        frozenset(),
        frozenset({"a"}),
        frozenset({"b"}),
        frozenset({"a", "b"}),
    }
    assert all(set(each) <= names and not {"a", "a.tmp"} <= set(each) for each in left)


def test_sync_folder_makes_names_durable_and_the_folder_too():
    """One call is enough after creating a partition's folder with its first segment."""

    async def story(sim: SimWorld) -> None:
        world = sim.of("n1")
        file = world.disk.open("orders-0/00000000000000000000.log")
        file.append([b"data"])
        await file.sync()
        await world.disk.sync_folder("orders-0")
        world.disk.replace("orders-0", "orders-0.gone-delete")
        await world.disk.sync_folder("")
        sim.power_cut("n1")
        assert sim.disk("n1").files() == {"orders-0.gone-delete/00000000000000000000.log": b"data"}

    for seed in range(10):
        run(story, seed)


def test_published_files_survive_any_power_cut_and_are_never_torn():
    """S-quorum: a vote is on disk before the answer, whole or as it was."""
    seen = set()

    async def story(sim: SimWorld) -> bytes:
        world = sim.of("n1")
        await world.disk.publish("quorum-state", b"epoch 1")
        sim.spawn("n1", world.disk.publish("quorum-state", b"epoch 2"))
        await asyncio.sleep(0.004)
        sim.power_cut("n1")
        return sim.of("n1").disk.read_file("quorum-state")

    for seed in range(40):
        seen.add(run(story, seed))
    assert seen == {b"epoch 1", b"epoch 2"}


def test_a_name_of_a_removed_folder_does_not_come_back_in_a_new_one():
    """A topic deleted and created anew must not find the old one's files."""

    async def story(sim: SimWorld) -> None:
        world = sim.of("n1")
        world.disk.open("orders-0/old").append([b"x"])
        world.disk.remove("orders-0")
        world.disk.open("orders-0/new").append([b"y"])
        await world.disk.sync_folder("orders-0")
        sim.power_cut("n1")
        assert sim.of("n1").disk.names("orders-0") == ["new"]

    run(story)


def test_a_renamed_file_of_a_renamed_folder_does_not_take_the_file_of_a_new_folder():
    """1. A file is renamed, and its folder after it. 2. A new folder has the former name, and a file of the former name in
    it, both durable. 3. The power goes: whatever becomes of the first folder, the new one keeps its file.
    """

    async def story(sim: SimWorld) -> dict[str, bytes]:
        world = sim.of("n1")
        world.disk.open("log/a").append([b"old"])
        await world.disk.sync_folder("log")
        world.disk.replace("log/a", "log/a.stray")
        world.disk.replace("log", "aside")
        file = world.disk.open("log/a")
        file.append([b"new"])
        await file.sync()
        await world.disk.sync_folder("log")
        sim.power_cut("n1")
        return sim.disk("n1").files()

    for seed in range(20):
        assert run(story, seed)["log/a"] == b"new"


def test_names_in_a_new_folder_do_not_come_into_the_old_one_of_that_name():
    """The power takes the removal of the old folder, and with it the new one."""

    async def story(sim: SimWorld) -> list[str]:
        world = sim.of("n1")
        world.disk.open("log/old")
        await world.disk.sync_folder("log")
        world.disk.replace("log", "aside")
        world.disk.open("log/new")
        sim.power_cut("n1")
        return sim.of("n1").disk.names("log")

    found = [run(story, seed) for seed in range(40)]
    assert ["old", "new"] not in found
    assert ["new", "old"] not in found
    assert {tuple(each) for each in found} == {(), ("new",), ("old",)}


def test_a_failed_sync_loses_what_it_was_to_keep():
    """After a failed fsync the kernel has dropped the pages: the cache shows them, a power cut does not."""

    async def story(sim: SimWorld) -> None:
        _, file = await named(sim)
        file.append([b"first"])
        sim.disk("n1").fail_next_sync()
        with pytest.raises(DiskFailed):
            await file.sync()
        assert file.read(0, 9) == b"first"
        file.append([b"second"])
        await file.sync()
        sim.power_cut("n1")
        assert sim.disk("n1").files()["log"] == bytes(5) + b"second"

    run(story)


def test_a_full_disk_refuses_and_leaves_everything_as_it_was():
    """DiskFull: nothing acknowledged is lost, and a smaller write may still fit."""

    async def story(sim: SimWorld) -> None:
        world, file = await named(sim)
        file.append([b"12345"])
        sim.disk("n1").capacity_bytes = 8
        with pytest.raises(DiskFull):
            file.append([b"67", b"89"])
        with pytest.raises(DiskFull):
            world.disk.replace_file("checkpoint", b"6789")
        with pytest.raises(DiskFull):
            await world.disk.publish("checkpoint", b"6789")
        assert sim.disk("n1").files() == {"log": b"12345"}
        file.append([b"678"])
        assert file.size() == 8

    run(story)


def test_a_dead_incarnation_can_touch_nothing():
    """The fence: what a killed broker's leftovers do must not reach its successor's files."""

    async def story(sim: SimWorld) -> None:
        old, file = await named(sim)
        file.append([b"x"])
        sim.kill("n1")
        new = sim.of("n1")
        for attempt in (
            lambda: file.append([b"y"]),
            lambda: file.truncate(0),
            lambda: file.read(0, 1),
            lambda: old.disk.open("log"),
            lambda: old.disk.remove("log"),
            lambda: old.disk.replace_file("log", b"z"),
        ):
            with pytest.raises(DiskFailed):
                attempt()
        with pytest.raises(DiskFailed):
            await file.sync()
        assert new.disk.read_file("log") == b"x"

    run(story)


def test_bit_rot_changes_one_bit_of_durable_data():
    """Damage that was not there when it was written: checksums must notice."""

    async def story(sim: SimWorld) -> None:
        _, file = await named(sim)
        file.append([b"abcdef"])
        await file.sync()
        at = sim.disk("n1").bit_rot("log")
        read = file.read(0, 99)
        assert [i for i in range(6) if read[i] != b"abcdef"[i]] == [at]
        assert (read[at] ^ b"abcdef"[at]).bit_count() == 1
        sim.disk("n1").wipe()
        assert sim.disk("n1").files() == {}

    run(story)


def test_a_slow_disk_delays_only_its_own_node():
    """`sync` takes seconds: votes elsewhere go on."""

    async def story(sim: SimWorld) -> None:
        _, slow = await named(sim, "n1")
        _, fast = await named(sim, "n2")
        sim.disk("n1").sync_mean_s = 50.0
        start = sim.loop.time()
        async with asyncio.timeout(1):
            await fast.sync()
        await slow.sync()
        assert sim.loop.time() - start > 1

    run(story)


def test_a_renamed_file_is_still_named_durably_by_its_former_name():
    """Until the folder is synced a power cut leaves the one name or the other."""

    async def story(sim: SimWorld) -> None:
        world, _ = await named(sim, path="log.swap")
        disk = sim.disk("n1")
        world.disk.replace("log.swap", "log")
        assert not disk.is_named("log")
        assert disk.is_named("log", "log.swap")
        await world.disk.sync_folder("")
        assert disk.is_named("log")
        assert not disk.is_named("log", "log.swap")

    run(story)


def test_a_disk_that_ignores_case_finds_a_name_in_any_case_and_keeps_it():
    """As exFAT, NTFS and APFS do, also for folders on the way and for what is replaced, renamed or removed."""

    async def story(sim: SimWorld) -> None:
        sim.disk("n1").ignores_case = True
        disk = sim.of("n1").disk
        assert disk.ignores_case() is True
        disk.open("Orders-0/Log").append([b"a"])
        disk.open("orders-0/log").append([b"b"])
        disk.replace_file("ORDERS-0/log.New", b"c")
        await disk.publish("orders-0/LOG.new", b"d")
        assert (disk.names(""), disk.names("ORDERS-0")) == (["Orders-0"], ["Log", "log.New"])
        assert (disk.read_file("orders-0/LOG"), disk.read_file("orders-0/log.new")) == (b"ab", b"d")
        disk.replace("orders-0", "Orders-0.abc-delete")
        assert not disk.exists("Orders-0")
        disk.remove("orders-0.ABC-delete/log")
        assert disk.names("orders-0.abc-DELETE") == ["log.New"]

    run(story)
