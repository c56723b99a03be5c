"""Which fetches leave as regions of files, and what a cold region waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from minikafka.broker.api.fetch import handle_fetch
from minikafka.broker.dispatch import settled
from minikafka.errors import DiskFailed, KafkaStorageError, NotLeaderOrFollower
from minikafka.sim.cluster import SimCluster
from minikafka.sim.disk import FencedFile
from minikafka.wire.messages import READ_COMMITTED, FetchedPartition, FetchPartition, FetchRequest
from tests.sim.cluster_kit import ORDERS, Client, simulated

LARGE = b"v" * 40_000


@dataclass
class Region:
    """A region of a simulated file."""

    data: bytes
    is_cached: bool = True
    fails: bool = False
    meanwhile: Callable[[], object] = object

    def __len__(self) -> int:
        return len(self.data)

    def warm(self) -> None:
        if self.fails:
            raise DiskFailed("the device is gone")
        self.meanwhile()
        self.is_cached = True


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    """Regions that simulated files have given away; the first entry is the pattern for those to come."""
    found = [Region(b"")]

    def region(self: FencedFile, position: int, size: int) -> Region:
        found.append(replace(found[0], data=self.read(position, size)))
        return found[-1]

    monkeypatch.setattr(FencedFile, "region", region)
    return found


def led() -> Any:
    """A cluster of one broker without a memory tail."""
    return simulated(brokers=1, mk_memory_tails_bytes="0", min_insync_replicas="1")


def filled(cluster: SimCluster, *records: bytes) -> None:
    cluster.create_topic("orders", partitions=1, replication_factor=1)
    Client(cluster).send_all(records)


def replicas_of(cluster: SimCluster) -> Any:
    broker: Any = cluster.brokers[1]
    return broker.replicas


def fetched(cluster: SimCluster, *, sends_files: bool = True, **asked: Any) -> FetchedPartition:
    """The answer of the partition's leader to one fetch from its start."""
    request = FetchRequest(
        max_bytes=1 << 20,
        partitions=(FetchPartition(topic="orders", partition=0, fetch_offset=0, partition_max_bytes=1 << 20),),
        **asked,
    )
    replicas = replicas_of(cluster)

    async def ask() -> Any:
        return await settled(handle_fetch(replicas, request, session_alive=lambda: True, sends_files=sends_files))

    return cluster.run(ask(), node="n1").partitions[0]


def test_large_reads_from_files_are_regions_of_all_records(given: list[Region]) -> None:
    """One region has all batches up to the limit, however many there are."""
    with led() as cluster:
        filled(cluster, LARGE, b"small", LARGE)
        answer = fetched(cluster)
        assert list(answer.records) == given[1:]
        assert given[1].data == b"".join(fetched(cluster, sends_files=False).records)


def test_small_reads_are_read(given: list[Region]) -> None:
    """A system call less."""
    with led() as cluster:
        filled(cluster, b"small")
        assert [type(each) for each in fetched(cluster).records] == [bytes]
        assert not given[1:]


def test_followers_get_bytes(given: list[Region]) -> None:
    """Their batches may be truncated, and others written in their place, while they are sent."""
    with led() as cluster:
        filled(cluster, LARGE)
        fetched(cluster, replica_id=1, replica_epoch=1)
        assert not given[1:]


def test_readers_of_committed_records_get_regions(given: list[Region]) -> None:
    """Aborted transactions come from the index: no batch is looked at."""
    with led() as cluster:
        filled(cluster, LARGE)
        assert list(fetched(cluster, isolation_level=READ_COMMITTED).records) == given[1:]
        assert len(given) == 2


def test_cold_region_is_warmed_before_the_answer(given: list[Region]) -> None:
    """Sending it at once would hold the loop until the disk has read it."""
    with led() as cluster:
        filled(cluster, LARGE)
        given[0].is_cached = False
        answer = fetched(cluster)
        assert list(answer.records) == given[1:]
        assert given[1].is_cached


def test_a_replica_that_is_replaced_while_the_disk_is_read_is_not_answered_from(given: list[Region]) -> None:
    """Kafka's protocol would name the old topic's records by the id of the new one."""
    with led() as cluster:
        filled(cluster, LARGE)
        partitions = replicas_of(cluster).partitions
        given[0].is_cached, given[0].meanwhile = False, lambda: partitions.pop(ORDERS)
        answer = fetched(cluster)
        assert answer.error_code == NotLeaderOrFollower.code
        assert not answer.records


def test_disk_that_fails_under_a_cold_region_takes_the_replica_offline(given: list[Region]) -> None:
    """As a failing read does: the partition's error, not that of the request."""
    with led() as cluster:
        filled(cluster, LARGE)
        given[0].is_cached, given[0].fails = False, True
        answer = fetched(cluster)
        assert answer.error_code == KafkaStorageError.code
        assert not answer.records
        assert replicas_of(cluster).partitions[ORDERS].failed
