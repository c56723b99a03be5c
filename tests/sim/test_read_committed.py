"""Readers with ``read_committed`` in a simulated cluster: what they get, when they wait, and after what faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from minikafka.broker.purgatory import Mark
from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.errors import NotLeaderOrFollower
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.sim.world import WALL_START_MS
from minikafka.wire.batch import split
from minikafka.wire.markers import AbortedFilter
from minikafka.wire.messages import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    DescribeProducersPartition,
    DescribeProducersRequest,
    ExplainPartitionRequest,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ProducePartition,
    ProduceRequest,
    UnstableTransaction,
)
from minikafka.wire.records import decode_batch
from minikafka.wire.transaction_messages import WriteTxnMarkersRequest
from tests.sim.cluster_kit import ORDERS, simulated, simulated_orders
from tests.sim.test_transaction_markers import asked, batch, codes, epoch_of, log_of, marker, produced, sent


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    # These transactions have no coordinator.
    with simulated_orders(transaction_partition_verification_enable="false", partitions=1) as cluster:
        yield cluster


def wrote(cluster: SimCluster, producer_id: int, sequence: int, *values: bytes, transactional: bool = True) -> None:
    answer = produced(cluster, batch(producer_id, sequence, *values, transactional=transactional))
    assert [each.error_code for each in answer.partitions] == [0]


def ended(cluster: SimCluster, producer_id: int, *, committed: bool) -> None:
    assert codes(sent(cluster, marker(producer_id=producer_id, committed=committed))) == [0]


def request(
    offset: int = 0, level: int = READ_COMMITTED, *, max_wait_ms: int = 0, max_bytes: int = 1 << 20
) -> FetchRequest:
    part = FetchPartition(topic="orders", partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(max_wait_ms=max_wait_ms, isolation_level=level, partitions=(part,))


def fetched(cluster: SimCluster, offset: int = 0, level: int = READ_COMMITTED, **options: int) -> FetchedPartition:
    answer = asked(cluster, cluster.leader_of(ORDERS), request(offset, level, **options)).partitions[0]
    assert not answer.error_code, answer
    return answer  # type: ignore[no-any-return]


def visible(answer: FetchedPartition) -> list[bytes | None]:
    """What a client hands out."""
    aborted = AbortedFilter(answer.aborted_transactions or ())
    return [
        record.value
        for found in split(b"".join(answer.records))
        if not aborted.skips(found) and not found.is_control
        for record in decode_batch(found)
    ]


def told(answer: FetchedPartition) -> list[tuple[int, int]] | None:
    if answer.aborted_transactions is None:
        return None
    return [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]


def a_mixed_log(cluster: SimCluster) -> None:
    """0 plain; 1-2 aborted, marker 5; 3 committed, marker 4; 6 open; 7 plain."""
    wrote(cluster, 20, 0, b"plain", transactional=False)
    wrote(cluster, 7, 0, b"gone 1", b"gone 2")
    wrote(cluster, 8, 0, b"kept")
    ended(cluster, 8, committed=True)
    ended(cluster, 7, committed=False)
    wrote(cluster, 9, 0, b"open")
    wrote(cluster, 20, 1, b"behind", transactional=False)


def check_mixed_log(cluster: SimCluster) -> None:
    answer = fetched(cluster)
    assert (answer.last_stable_offset, answer.high_watermark) == (6, 8)
    assert visible(answer) == [b"plain", b"kept"]
    assert told(answer) == [(7, 1)]
    assert not fetched(cluster, 6).records


def test_committed_records_are_read_up_to_the_last_stable_offset(cluster: SimCluster):
    """Aborted records are sent with their transaction's start; nothing behind an open transaction is."""
    a_mixed_log(cluster)
    check_mixed_log(cluster)
    assert told(fetched(cluster, 6)) == []
    assert told(fetched(cluster, 3, max_bytes=1)) == [(7, 1)]


def test_uncommitted_readers_get_everything_and_no_aborted_transactions(cluster: SimCluster):
    """A client that were told of them would skip records (Redpanda did so)."""
    a_mixed_log(cluster)
    answer = fetched(cluster, level=READ_UNCOMMITTED)
    assert answer.last_stable_offset == 6
    assert told(answer) is None
    values = [record.value for found in split(b"".join(answer.records)) for record in decode_batch(found)]
    assert [value for value in values if value in (b"gone 1", b"open", b"behind")] == [b"gone 1", b"open", b"behind"]


@pytest.mark.parametrize("how", ["stop", "crash", "power cut"])
def test_restarted_leader_answers_as_before(how: str):
    """From the snapshot and the index after a clean stop, by replay after the others."""
    with simulated(
        brokers=1,
        transaction_partition_verification_enable="false",
        min_insync_replicas="1",
        offsets_topic_replication_factor="1",
    ) as cluster:
        cluster.create_topic("orders", partitions=1)
        cluster.settle()
        a_mixed_log(cluster)
        if how == "stop":
            cluster.stop(1)
        elif how == "crash":
            cluster.crash(1)
        else:
            replica = cluster.replica(1, ORDERS)
            assert replica is not None
            cluster.run(replica.log.sync(), node="n1")
            cluster.power_cut(1)
        cluster.restart(1)
        cluster.settle()
        check_mixed_log(cluster)
        ended(cluster, 9, committed=True)
        assert visible(fetched(cluster)) == [b"plain", b"kept", b"open", b"behind"]


def test_new_leader_answers_as_its_predecessor(cluster: SimCluster):
    """Followers keep transactions, spans and indexes from the batches that they copy."""
    a_mixed_log(cluster)
    old = cluster.leader_of(ORDERS)
    cluster.crash(old)
    cluster.until(lambda: cluster.leader_of(ORDERS) not in (old, -1), 60.0, "a new leader")
    cluster.until(lambda: knows_the_watermark(cluster), 60.0, "its watermark")
    check_mixed_log(cluster)
    cluster.restart(old)
    cluster.settle()
    assert log_of(cluster, old).aborted_transactions(0, 8) == [(7, 1, 5, 6)]


def knows_the_watermark(cluster: SimCluster) -> bool:
    replica = cluster.replica(cluster.leader_of(ORDERS), ORDERS)
    return replica is not None and replica.high_watermark == 8


def test_marker_that_only_the_leader_has_decides_nothing(cluster: SimCluster):
    """A8: data below the high watermark, marker above it. An LSO of min(HW, first open) would expose the data."""
    wrote(cluster, 7, 0, b"a")
    leader = cluster.leader_of(ORDERS)
    for node in cluster.brokers:
        if node != leader:
            cluster.pause(node)
    log = log_of(cluster, leader)
    replica = cluster.replica(leader, ORDERS)
    assert replica is not None
    sender = epoch_of(cluster, leader)

    async def ask() -> Any:
        world = cluster.sim.of("asker")
        ask_marker = sent_request(leader, sender)
        task = asyncio.ensure_future(
            call(world.network, cluster.address_of(leader), ask_marker, world.clock.now() + 3.0)
        )
        await asyncio.sleep(1.0)
        answer = await call(world.network, cluster.address_of(leader), request(), world.clock.now() + 5.0)
        task.cancel()
        return answer.partitions[0]

    answer = cluster.run(ask())
    assert log.end_offset == 2
    assert (answer.high_watermark, answer.last_stable_offset, answer.records) == (1, 0, ())
    for node in cluster.brokers:
        if node != leader:
            cluster.resume(node)


def sent_request(broker_id: int, broker_epoch: int) -> Any:
    return WriteTxnMarkersRequest(broker_id=broker_id, broker_epoch=broker_epoch, markers=(marker(),))


def test_parked_reader_is_woken_by_the_last_stable_offset(cluster: SimCluster):
    """Not by records behind the open transaction, which move the high watermark only."""
    wrote(cluster, 7, 0, b"a")
    leader = cluster.leader_of(ORDERS)
    purgatory = cluster.brokers[leader].replicas.purgatory

    async def ask() -> tuple[float, FetchedPartition]:
        world = cluster.sim.of("reader")
        answer = await call(
            world.network, cluster.address_of(leader), request(max_wait_ms=20_000), world.clock.now() + 30.0
        )
        return world.clock.now(), answer.partitions[0]

    async def story() -> tuple[float, float, FetchedPartition]:
        waiting = asyncio.ensure_future(ask())
        await asyncio.sleep(1.0)
        world = cluster.sim.of("writer")
        for sequence in range(3):
            produce = produce_request(batch(20, sequence, b"behind", transactional=False))
            await call(world.network, cluster.address_of(leader), produce, world.clock.now() + 5.0)
        await asyncio.sleep(1.0)
        assert not waiting.done()
        assert purgatory.is_watched(Mark.LAST_STABLE, ORDERS)
        assert not purgatory.is_watched(Mark.HIGH_WATERMARK, ORDERS)
        other = next(each for each in cluster.brokers if each != leader)
        began = world.clock.now()
        await call(
            world.network,
            cluster.address_of(leader),
            sent_request(other, epoch_of(cluster, other)),
            world.clock.now() + 5.0,
        )
        return began, *await waiting

    began, woken, answer = cluster.run(story())
    assert woken - began < 1.0
    assert visible(answer) == [b"a", b"behind", b"behind", b"behind"]


def produce_request(data: bytes) -> Any:
    item = ProducePartition(topic="orders", partition=0, records=(data,))
    return ProduceRequest(timeout_ms=5000, partitions=(item,))


@pytest.mark.parametrize(("level", "latest"), [(READ_COMMITTED, 6), (READ_UNCOMMITTED, 8)])
def test_latest_offset_is_that_of_the_isolation_level(cluster: SimCluster, level: int, latest: int):
    """A reader that begins at the end must not skip what is decided later."""
    a_mixed_log(cluster)
    part = ListOffsetsPartition(topic="orders", partition=0, timestamp=LATEST)
    ask = ListOffsetsRequest(isolation_level=level, partitions=(part,))
    assert asked(cluster, cluster.leader_of(ORDERS), ask).partitions[0].offset == latest


def test_times_are_looked_up_below_the_last_stable_offset(cluster: SimCluster):
    """Of what is not decided yet no offset is given."""
    wrote(cluster, 7, 0, b"open")
    part = ListOffsetsPartition(topic="orders", partition=0, timestamp=WALL_START_MS)
    leader = cluster.leader_of(ORDERS)
    found = [
        asked(cluster, leader, ListOffsetsRequest(isolation_level=level, partitions=(part,))).partitions[0].offset
        for level in (READ_COMMITTED, READ_UNCOMMITTED)
    ]
    assert found == [-1, 0]
    ended(cluster, 7, committed=False)
    ask = ListOffsetsRequest(isolation_level=READ_COMMITTED, partitions=(part,))
    assert asked(cluster, leader, ask).partitions[0].offset == 0


def test_sessions_follow_the_last_stable_offset(cluster: SimCluster):
    """An incremental request that names nothing is answered once the transaction has ended, and not before."""
    wrote(cluster, 7, 0, b"a")
    leader = cluster.leader_of(ORDERS)
    first = asked(cluster, leader, replace(request(), session_epoch=0))
    assert first.session_id
    assert not first.partitions[0].records
    again = FetchRequest(
        max_wait_ms=0, isolation_level=READ_COMMITTED, session_id=first.session_id, session_epoch=1, partitions=()
    )
    assert asked(cluster, leader, again).partitions == ()
    ended(cluster, 7, committed=True)
    (found,) = asked(cluster, leader, replace(again, session_epoch=2)).partitions
    assert visible(found) == [b"a"]


def producers_of(**only: int) -> DescribeProducersRequest:
    return DescribeProducersRequest(partitions=(DescribeProducersPartition(topic="orders", partition=0, **only),))


def test_describe_producers_shows_open_transactions_and_coordinators(cluster: SimCluster):
    """KIP-664: what finds a hanging transaction, and what its abort needs."""
    wrote(cluster, 7, 0, b"a")
    assert codes(sent(cluster, marker(producer_id=8, coordinator_epoch=5))) == [0]
    (found,) = asked(cluster, cluster.leader_of(ORDERS), producers_of()).partitions
    assert [
        (each.producer_id, each.last_sequence, each.coordinator_epoch, each.current_txn_start_offset)
        for each in found.active
    ] == [(7, 0, -1, 0), (8, -1, 5, -1)]


def test_each_replica_shows_the_producers_that_it_knows(cluster: SimCluster):
    """KIP-664, as in Kafka: a follower, too. What one producer has written so far is a question for the leader."""
    wrote(cluster, 7, 0, b"a")
    leader = cluster.leader_of(ORDERS)
    replicas = [cluster.replica(node, ORDERS) for node in cluster.nodes]
    cluster.until(lambda: all(each and each.high_watermark == 1 for each in replicas), 5, "it is copied")
    for node in cluster.nodes:
        (found,) = asked(cluster, node, producers_of()).partitions
        assert [(each.producer_id, each.last_sequence) for each in found.active] == [(7, 0)]
        (found,) = asked(cluster, node, producers_of(producer_id=7)).partitions
        assert found.error_code == (0 if node == leader else NotLeaderOrFollower.code)


@pytest.mark.parametrize(
    ("level", "expected", "position"),
    [
        ("read_committed", [b"plain", b"kept"], 6),
        ("read_uncommitted", [b"plain", b"gone 1", b"gone 2", b"kept", b"open", b"behind"], 8),
    ],
)
def test_native_consumer_leaves_aborted_records_out(
    cluster: SimCluster, level: Any, expected: list[bytes], position: int
):
    """Its position passes over markers and aborted records, so that its lag becomes 0 (KAFKA-6607)."""
    a_mixed_log(cluster)
    world = cluster.sim.of("consumer")

    async def consumed() -> tuple[list[bytes], int]:
        config = ConsumerConfig(
            bootstrap_servers=cluster.bootstrap, isolation_level=level, auto_offset_reset="earliest", group_id=None
        )
        async with Consumer(config, world) as consumer:
            consumer.assign([ORDERS])
            found: list[bytes] = []
            for _ in range(10):
                records = await consumer.getmany(timeout_ms=200)
                found += [record.value for part in records.values() for record in part]
            return found, await consumer.position(ORDERS)

    assert cluster.run(consumed(), node="consumer") == (expected, position)


def test_explain_names_the_transaction_that_holds_the_last_stable_offset(cluster: SimCluster):
    """The oldest open one, with the timestamp of its first batch."""

    def unstable() -> UnstableTransaction | None:
        explain = ExplainPartitionRequest(topic="orders", partition=0)
        return asked(cluster, cluster.leader_of(ORDERS), explain).unstable  # type: ignore[no-any-return]

    assert unstable() is None
    wrote(cluster, 20, 0, b"plain", transactional=False)
    wrote(cluster, 9, 0, b"open")
    wrote(cluster, 8, 0, b"later")
    held = unstable()
    assert held is not None
    assert (held.producer_id, held.first_offset, held.marker_offset) == (9, 1, -1)
    assert held.started_ms == split(b"".join(fetched(cluster, 1, READ_UNCOMMITTED).records))[0].base_timestamp
    ended(cluster, 9, committed=True)
    held = unstable()
    assert held is not None
    assert (held.producer_id, held.first_offset) == (8, 2)
    ended(cluster, 8, committed=False)
    assert unstable() is None
