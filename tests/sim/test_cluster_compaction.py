"""Compaction on a simulated cluster: replicas by themselves, coordinators that load, restarts and power cuts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import ConfigResource
from minikafka.errors import CorruptMessage, InvalidRecord, ProtocolError, WorldError
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.batch import split
from minikafka.wire.group_messages import (
    CommitPartition,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from minikafka.wire.messages import PartitionName
from minikafka.wire.records import decode_batch
from tests.sim.cluster_kit import ORDERS, Client, a_follower, facts_of, on_disk, simulated

COMPACT = {"cleanup_policy": "compact", "segment_bytes": "2000"}
SOON = {"log_cleaner_backoff_ms": "500", "log_cleaner_min_cleanable_ratio": "0.1"}


def put(client: Client, count: int, *, keys: int = 10, start: int = 0) -> dict[bytes, bytes]:
    """Records of ``keys`` keys in turn, each acknowledged; the last value of each."""
    latest = {}
    for number in range(start, start + count):
        key, value = b"k%d" % (number % keys), b"%04d" % number + bytes(60)
        client.run(client.producer.send_and_wait("orders", value, key=key, partition=0))
        latest[key] = value
    return latest


def held(cluster: SimCluster, node: NodeId, name: TopicPartition = ORDERS) -> list[tuple[int, bytes, bytes | None]]:
    """Offset, key, value of every record in a replica's files."""
    replica = cluster.replica(node, name)
    assert replica is not None
    log = replica.log
    log.tail.clear()
    found, offset = [], log.start_offset
    while offset < log.end_offset:
        part = log.read(offset, max_bytes=1 << 20)
        for batch in split(b"".join(part.buffers)):
            found += [(each.offset, each.key or b"", each.value) for each in decode_batch(batch)]
        offset = part.next_offset
    return found


def latest_of(rows: list[tuple[int, bytes, bytes | None]]) -> Mapping[bytes, bytes | None]:
    return {key: value for _, key, value in rows}


def test_every_replica_compacts_by_itself_and_keeps_the_latest() -> None:
    """S29: after many writes of few keys each replica is short, whole, and at the same end."""
    with simulated(**SOON) as cluster:
        cluster.create_topic("orders", **COMPACT)
        cluster.settle()
        client = Client(cluster)
        latest = put(client, 200)
        cluster.run_for(10.0)
        cluster.settle()
        for node in cluster.nodes:
            rows = held(cluster, node)
            assert latest_of(rows) == latest
            assert len(rows) < 80
            replica = cluster.replica(node, ORDERS)
            assert replica is not None
            assert (replica.log.end_offset, replica.high_watermark) == (200, 200)
            assert not on_disk(cluster, node, "orders-0", ".cleaned")
        told = facts_of(cluster, "log_compacted")
        assert len(told) >= 3
        assert all(fact["clean_end"] <= fact["high_watermark"] for fact in told)  # type: ignore[operator]


def test_a_consumer_reads_over_the_gaps_and_a_new_follower_copies_them() -> None:
    """Offsets only rise, nothing twice, and the latest value of each key is among what is read (S8)."""
    with simulated(**SOON) as cluster:
        cluster.create_topic("orders", **COMPACT)
        cluster.settle()
        client = Client(cluster)
        latest = put(client, 150)
        follower = a_follower(cluster)
        cluster.crash(follower)
        latest |= put(client, 150, start=150)
        cluster.run_for(20.0)
        cluster.restart(follower)
        cluster.settle(60.0)
        latest |= put(client, 7, start=300)
        for node in cluster.nodes:
            assert latest_of(held(cluster, node)) == latest
        consumer = Consumer(
            ConsumerConfig(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest"), client.world
        )
        client.run(consumer.start())
        consumer.assign([ORDERS])
        read = []
        while not read or read[-1].offset < 306:
            read.append(client.run(consumer.getone()))
        offsets = [record.offset for record in read]
        assert offsets == sorted(set(offsets))
        assert len(offsets) < 200
        assert {record.key: record.value for record in read} == latest
        client.run(consumer.stop())


def test_a_topic_that_is_compacted_no_more_keeps_its_gaps() -> None:
    """cleanup.policy=delete from now on: brokers start with the gaps, and a broker with an empty disk copies them."""
    with simulated(brokers=4, voters=3, **SOON) as cluster:
        cluster.create_topic("orders", **COMPACT)
        cluster.settle()
        client = Client(cluster)
        latest = put(client, 80)
        cluster.run_for(5.0)
        change = {"cleanup.policy": "delete"}
        client.run(client.admin.alter_configs([ConfigResource("topic", "orders", configs=change)]))
        cluster.run_for(1.0)
        state = cluster.partition(ORDERS)
        assert state is not None
        if 4 not in state.replicas:
            moved = [4, *state.replicas[:2]]
            client.run(client.admin.alter_partition_reassignments({ORDERS: moved}))
            cluster.settle(60.0)
        for node in cluster.nodes[:3]:
            cluster.crash(node)
            cluster.restart(node)
            cluster.settle(60.0)
        cluster.run_for(5.0)
        assert latest_of(held(cluster, 4)) == latest
        assert len(held(cluster, 4)) < 60


def test_a_power_cut_of_all_brokers_loses_no_latest_value() -> None:
    """Acknowledged under sync-before-acknowledge, compacted meanwhile: the power may go at any time."""
    for seed in range(6):
        with simulated(seed, log_flush_interval_messages="1", **SOON) as cluster:
            cluster.create_topic("orders", **COMPACT)
            cluster.settle()
            client = Client(cluster)
            latest = put(client, 120)
            cluster.run_for(0.45 + seed * 0.013)
            for node in cluster.nodes:
                cluster.power_cut(node)
            for node in cluster.nodes:
                cluster.restart(node)
            cluster.settle(60.0)
            latest |= put(client, 5, start=120)
            cluster.run_for(10.0)
            for node in cluster.nodes:
                assert latest_of(held(cluster, node)) == latest, seed


def test_a_record_without_a_key_is_refused_with_a_sentence() -> None:
    """INVALID_RECORD says which records; nothing of the batch is written."""
    with simulated() as cluster:
        cluster.create_topic("orders", **COMPACT)
        cluster.settle()
        client = Client(cluster)
        answer = client.tell(cluster.leader_of(ORDERS), b"value", acks=1)
        assert (answer.error_code, answer.outcome) == (InvalidRecord.code, "not_written")
        assert "1 of 1 records have no key (numbers 0 of the batch)" in answer.error_message
        assert "give every record a key" in answer.error_message
        assert held(cluster, cluster.leader_of(ORDERS)) == []


def test_a_coordinator_loads_thousands_of_commits_from_a_compacted_log() -> None:
    """S29, S32: the offsets topic is compact; after compaction and a restart every group stands where it stood."""
    with simulated(
        brokers=1,
        min_insync_replicas="1",
        offsets_topic_num_partitions="1",
        offsets_topic_segment_bytes="20000",
        **SOON,
    ) as cluster:
        name = TopicPartition(OFFSETS_TOPIC, 0)
        cluster.create_topic("orders")
        cluster.settle()
        client = Client(cluster)

        async def ask(request: object) -> Any:
            while True:
                try:
                    answer = await call(
                        client.world.network, cluster.address_of(1), request, client.world.clock.now() + 9
                    )
                except (ProtocolError, WorldError):
                    answer = None
                if answer is not None and not getattr(answer, "error_code", 0):
                    return answer
                await asyncio.sleep(0.1)

        async def commit_all() -> None:
            await ask(FindCoordinatorRequest(keys=("g0",)))
            for number in range(3000):
                offset = CommitPartition(topic="orders", partition=0, offset=number)
                await ask(OffsetCommitRequest(group_id=f"g{number % 7}", partitions=(offset,)))

        client.run(commit_all())
        replica = cluster.replica(1, name)
        assert replica is not None
        assert replica.config.compacts
        assert replica.log.end_offset >= 3000
        cluster.run_for(20.0)
        assert len(held(cluster, 1, name)) < 500
        cluster.crash(1)
        cluster.restart(1)
        cluster.settle(60.0)
        asked = (PartitionName(topic="orders", partition=0),)
        for group in range(7):
            answer = client.run(ask(OffsetFetchRequest(group_id=f"g{group}", partitions=asked)))
            assert answer.partitions[0].offset == max(n for n in range(3000) if n % 7 == group)


def test_a_topic_that_is_created_again_is_compacted_although_its_former_log_was_damaged() -> None:
    """Issue 13: damaged replicas were noted by name, so that the new topic was left alone until the broker restarted."""
    with simulated(brokers=1, min_insync_replicas="1", **SOON) as cluster:
        client = Client(cluster)
        cluster.create_topic("orders", **COMPACT)
        broker = cluster.brokers[1]
        assert broker is not None
        put(client, 60)

        async def damaged(*_given: Any, **_named: Any) -> Any:
            raise CorruptMessage("a byte has rotted")

        broker.replicas.get(ORDERS).log.clean = damaged  # type: ignore[method-assign]
        cluster.until(lambda: bool(facts_of(cluster, "log_uncleanable")), 30.0, "the damage to be noticed")
        client.run(client.admin.delete_topics(["orders"]))
        cluster.create_topic("orders", **COMPACT)
        put(client, 60)
        cluster.until(lambda: bool(facts_of(cluster, "log_compacted")), 30.0, "the new log to be compacted")


def test_a_rotten_header_stops_the_compaction_of_its_own_log_only() -> None:
    """With max.compaction.lag.ms the cleaner reads the first header of each segment, also of those that it will leave alone:
    the broker stopped, and stopped again after each start.
    """
    with simulated(brokers=1, min_insync_replicas="1", **SOON) as cluster:
        client = Client(cluster)
        cluster.create_topic("rotten", **COMPACT, max_compaction_lag_ms="100000000", index_interval_bytes="100")
        rotten = TopicPartition("rotten", 0)
        for number in range(60):
            client.run(client.producer.send_and_wait("rotten", bytes(60), key=b"%d" % number, partition=0))
        cluster.stop(1)
        disk = cluster.sim.disk("n1")
        disk.bit_rot(f"rotten-0/{0:020d}.log", 16)
        cluster.boot(1)
        cluster.settle()
        cluster.until(lambda: bool(facts_of(cluster, "log_uncleanable")), 30.0, "the damage to be noticed")
        cluster.create_topic("orders", **COMPACT)
        put(client, 60)
        cluster.until(lambda: bool(facts_of(cluster, "log_compacted")), 30.0, "the other log to be compacted")
        assert len(facts_of(cluster, "log_uncleanable")) == 1
        assert not facts_of(cluster, "broker_failed")
        assert cluster.brokers[1].replicas.get(rotten).failed is None


def test_a_full_disk_puts_compaction_off_and_stops_no_broker() -> None:
    """Deletions elsewhere may make room. The checkpoint of where compaction goes on found none either: the broker stopped."""
    later = {**SOON, "log_cleaner_backoff_ms": "60000"}
    with simulated(brokers=1, min_insync_replicas="1", **later) as cluster:
        client = Client(cluster)
        cluster.create_topic("orders", **COMPACT)
        put(client, 60)
        disk = cluster.sim.disk("n1")
        broker = cluster.brokers[1]
        assert broker is not None

        async def clean_when_full() -> None:
            await broker.replicas.get(ORDERS).log.sync()
            disk.capacity_bytes = disk.used_bytes()
            assert not await broker.cleaner.clean_one()
            disk.capacity_bytes = None

        cluster.run(clean_when_full(), node="n1")
        assert facts_of(cluster, "compaction_put_off")
        assert not facts_of(cluster, "broker_failed")
        cluster.until(lambda: broker.replicas.get(ORDERS).log.clean_end is not None, 90.0, "the log to be compacted")
