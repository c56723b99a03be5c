"""The check of synced ends: the durable names under which the next start finds a segment."""

from __future__ import annotations

from minikafka.sim.cluster import SimCluster
from minikafka.sim.power_watch import HOLE_FOUND, LESS_FOUND, PowerWatch, _first_unsynced, _promise
from minikafka.sim.world import SimWorld
from minikafka.wire.batch import RecordBatch, iterate, stamped
from tests.rules.log_words import client_batch, open_log
from tests.rules.memory_disk import MemoryDisk
from tests.rules.test_cleaner import COMPACT, keyed, put
from tests.sim.cluster_kit import Client, simulated_orders

FOLDER = "orders-0"
LOG = f"{FOLDER}/00000000000000000000.log"


async def renamed(sim: SimWorld, suffix: str, batch: RecordBatch) -> None:
    """Write a synced batch to a file whose former name is durable and whose present name is not."""
    disk = sim.of("n1").disk
    file = disk.open(LOG + suffix)
    file.append([batch.data])
    await file.sync()
    await disk.sync_folder(FOLDER)
    disk.replace(LOG + suffix, LOG)


def test_a_segment_with_a_durable_swap_name_counts_as_durable() -> None:
    """A power cut leaves ``.log`` or ``.log.swap``; a start renames the latter to the former."""

    async def story(sim: SimWorld) -> None:
        await renamed(sim, ".swap", client_batch("a"))
        assert not sim.disk("n1").is_durable(LOG)
        assert _first_unsynced(sim.disk("n1"), LOG) is None

    with SimWorld(1) as sim:
        sim.run(story(sim))


def test_a_segment_with_only_a_durable_cleaned_name_does_not_count_as_durable() -> None:
    """A start removes ``.log.cleaned``, so a power cut that undoes the rename loses the segment."""

    async def story(sim: SimWorld) -> None:
        await renamed(sim, ".cleaned", client_batch("a"))
        assert _first_unsynced(sim.disk("n1"), LOG) == 0

    with SimWorld(1) as sim:
        sim.run(story(sim))


def test_a_batch_appended_after_the_sync_does_not_count_as_durable() -> None:
    """A durable name does not make bytes durable that no sync has covered."""

    async def story(sim: SimWorld) -> None:
        await renamed(sim, ".swap", client_batch("a"))
        sim.of("n1").disk.open(LOG).append(stamped(client_batch("b"), base_offset=1, leader_epoch=0))
        assert _first_unsynced(sim.disk("n1"), LOG) == 1

    with SimWorld(1) as sim:
        sim.run(story(sim))


def test_a_record_that_recovery_leaves_out_is_a_hole() -> None:
    """Not one that was cut off with all that followed, nor one of an epoch that the opened log has not."""
    held = open_log(MemoryDisk(), COMPACT)
    for key, epoch in (("a", 0), ("b", 0), ("c", 1)):
        put(held, (key, "1"), epoch=epoch)
    promise = _promise(held)
    promise.end = 0

    def broken(*batches: tuple[int, str, int]) -> list[str]:
        found = open_log(MemoryDisk(), COMPACT)
        for offset, key, epoch in batches:
            held_batch = stamped(keyed((key, "1")), base_offset=offset, leader_epoch=epoch)
            found.append_as_follower([RecordBatch.of(b"".join(held_batch))])
        reported: list[str] = []
        with SimWorld(1) as sim:
            watch = PowerWatch(SimCluster(sim, brokers=1), lambda name, _: reported.append(name))
            watch._look_for_a_hole(1, promise, found)
        return reported

    assert broken((0, "a", 0), (1, "b", 0), (2, "c", 1)) == []
    assert broken((0, "a", 0), (1, "b", 0)) == []
    assert broken((0, "a", 0), (2, "c", 1)) == [HOLE_FOUND]
    assert broken((1, "b", 0), (2, "c", 1)) == [HOLE_FOUND]
    assert broken((0, "a", 0), (1, "x", 2), (2, "y", 2)) == []


def test_the_next_start_finds_what_a_clean_stop_has_left() -> None:
    """KAFKA-10471: after a clean stop nothing is recovered, so nothing else would find that a log has become shorter."""
    with simulated_orders() as cluster:
        reported: list[str] = []
        PowerWatch(cluster, lambda name, _: reported.append(name))
        Client(cluster).send_all([b"one", b"two"])
        cluster.settle()
        cluster.stop(1)
        cluster.boot(1)
        cluster.settle()
        assert reported == []
        cluster.stop(1)
        disk = cluster.sim.disk("n1")
        at = next(batch.size for batch in iterate(disk.content_bytes(LOG)))
        del disk.inode(LOG).content[at:], disk.inode(LOG).durable[at:]
        cluster.boot(1)
        cluster.settle()
        assert reported == [LESS_FOUND]
