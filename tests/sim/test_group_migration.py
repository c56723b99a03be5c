"""Groups that change their protocol while their members read, on a simulated cluster (KIP-848, issue 17 Build 5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from minikafka.sim.cluster import SimCluster
from tests.sim.cluster_kit import Client, simulated_orders
from tests.sim.group_kit import Worker, shared

PARTITIONS = 6
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky", "heartbeat_interval_ms": 1_000}
EAGER = {"partition_assignment_strategy": "range", "heartbeat_interval_ms": 1_000}
CONSUMER = {"group_protocol": "consumer"}
SETTINGS = {
    "offsets_topic_num_partitions": "4",
    "group_initial_rebalance_delay_ms": "500",
    "group_consumer_heartbeat_interval_ms": "1000",
    "group_consumer_session_timeout_ms": "10000",
}


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Three brokers and a topic of six partitions."""
    with simulated_orders(**SETTINGS, partitions=PARTITIONS) as cluster:
        yield cluster


class Filling:
    """Records that are written while the group changes."""

    def __init__(self, cluster: SimCluster) -> None:
        self.client = Client(cluster)
        self.values: list[bytes] = []

    def more(self, count: int = 60) -> None:
        first = len(self.values)
        new = [b"%d" % number for number in range(first, first + count)]

        async def send() -> None:
            sent = [
                await self.client.producer.send("orders", value, partition=number % PARTITIONS)
                for number, value in enumerate(new)
            ]
            await asyncio.gather(*sent)

        self.client.run(send())
        self.values += new


def counts(workers: list[Worker]) -> Counter[bytes]:
    return sum((each.values for each in workers), Counter())


def stable(cluster: SimCluster, workers: list[Worker], what: str) -> None:
    """All partitions have one reader each, and each worker has some."""
    cluster.until(lambda: shared(workers, PARTITIONS) and all(each.numbers for each in workers), 120.0, what)


@pytest.mark.parametrize("settings", [COOPERATIVE, EAGER], ids=["cooperative", "eager"])
def test_members_change_their_protocol_one_after_the_other_and_back(cluster: SimCluster, settings):
    """A rolling upgrade and a rolling downgrade: each record is read once, whichever members live together."""
    filling = Filling(cluster)
    old = [Worker(cluster, name, work_s=0.1, settings=settings) for name in ("a0", "a1")]
    stable(cluster, old, "the classic group to share")
    filling.more()
    new = [Worker(cluster, "b0", work_s=0.1, settings=CONSUMER)]
    stable(cluster, old + new, "the mixed group to share")
    filling.more()
    cluster.until(lambda: set(counts(old + new)) == set(filling.values), 120.0, "the mixed group to read")
    old[0].end()
    new.append(Worker(cluster, "b1", work_s=0.1, settings=CONSUMER))
    filling.more()
    stable(cluster, [old[1], *new], "the mixed group to share again")
    old[1].end()
    stable(cluster, new, "the consumer group to share")
    filling.more()
    cluster.until(lambda: set(counts(old + new)) == set(filling.values), 120.0, "the consumer group to read")
    # And back: the last member of the consumer protocol leaves.
    back = [Worker(cluster, name, work_s=0.1, settings=settings) for name in ("c0", "c1")]
    stable(cluster, new + back, "the mixed group to share once more")
    for each in new:
        each.end()
    filling.more()
    stable(cluster, back, "the classic group to share once more")
    every = old + new + back
    cluster.until(lambda: set(counts(every)) == set(filling.values), 120.0, "all to be read")
    for each in back:
        each.end()
    assert set(counts(every).values()) == {1}
    assert sum(each.refused for each in every) == 0


def test_a_killed_member_of_either_protocol_is_replaced(cluster: SimCluster):
    """Sessions of both kinds end in a mixed group; when the last new member is fenced, the group is classic again."""
    filling = Filling(cluster)
    old = [Worker(cluster, name, settings=COOPERATIVE) for name in ("a0", "a1")]
    stable(cluster, old, "the classic group to share")
    new = [Worker(cluster, "b0", settings=CONSUMER)]
    stable(cluster, old + new, "the mixed group to share")
    old[0].kill()
    stable(cluster, [old[1], *new], "the others to share")
    new[0].kill()
    stable(cluster, old[1:], "the classic member to have all")
    filling.more()
    cluster.until(lambda: set(counts(old + new)) == set(filling.values), 120.0, "all to be read")
    again = Worker(cluster, "a2", settings=COOPERATIVE)
    stable(cluster, [old[1], again], "a classic group")
    for each in (old[1], again):
        each.end()


def test_a_mixed_group_survives_its_coordinator(cluster: SimCluster):
    """The next coordinator reads the classic members from the records, with their sessions and assignors."""
    filling = Filling(cluster)
    old, new = Worker(cluster, "a0", settings=COOPERATIVE), Worker(cluster, "b0", settings=CONSUMER)
    stable(cluster, [old, new], "the mixed group to share")
    filling.more()
    cluster.until(lambda: set(counts([old, new])) == set(filling.values), 60.0, "all to be read")
    cluster.run_for(2.0)
    coordinator = new.consumer._coordinator._node
    cluster.crash(coordinator)
    filling.more()
    cluster.until(lambda: set(counts([old, new])) == set(filling.values), 120.0, "all to be read")
    cluster.restart(coordinator)
    stable(cluster, [old, new], "the mixed group to share")
    assert set(counts([old, new]).values()) == {1}
    for each in (old, new):
        each.end()
