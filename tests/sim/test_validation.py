"""A batch that cannot be read enters no log, and validation beside the loop changes the order of nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minikafka.errors import InvalidRecord, MessageTooLarge, NotLeaderOrFollower
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.sim.world import WALL_START_MS
from minikafka.types import TopicPartition
from minikafka.wire.batch import (
    CODEC_NAMES,
    HEADER_SIZE,
    checksum,
    split,
)
from minikafka.wire.messages import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
)
from minikafka.wire.records import Record, build_batch
from tests.sim.cluster_kit import ORDERS, facts_of, simulated, simulated_orders, values


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with simulated_orders() as cluster:
        yield cluster


def batch(values: list[bytes], **options: Any) -> bytes:
    return build_batch([Record(0, WALL_START_MS, 0, None, value) for value in values], **options)


def with_body(count: int, body: bytes) -> bytes:
    """A header that fits, with the right checksum, over any bytes."""
    data = bytearray(batch([b"x"])[:HEADER_SIZE] + body)
    data[8:12] = (len(data) - 12).to_bytes(4)
    data[23:27], data[57:61] = (count - 1).to_bytes(4), count.to_bytes(4)
    data[17:21] = checksum(data).to_bytes(4)
    return bytes(data)


async def produce(
    cluster: SimCluster, records: bytes, *, within_s: float = 10.0, topic: str = "orders"
) -> ProducedPartition:
    world = cluster.sim.of(f"client-{len(cluster.sim.journal)}")
    item = ProducePartition(topic=topic, partition=0, records=(records,))
    request = ProduceRequest(acks=-1, timeout_ms=5000, partitions=(item,))
    leader = cluster.leader_of(TopicPartition(topic, 0))
    answer = await call(world.network, cluster.address_of(leader), request, world.clock.now() + within_s)
    produced: ProducedPartition = answer.partitions[0]
    return produced


@pytest.mark.parametrize(
    "records",
    [
        with_body(2, b"\xa5" * 300),
        with_body(1, b""),
        with_body(2**31 - 1, batch([b"a", b"b"])[HEADER_SIZE:]),
        with_body(3, batch([b"a" * 20, b"b" * 20])[HEADER_SIZE:]),
    ],
    ids=["random body", "empty body", "2^31-1 records", "one too many"],
)
def test_unreadable_batch_is_refused_before_it_is_written(cluster: SimCluster, records: bytes):
    """The checksum is right: at 62e114e each of these was appended, and the third used up 2^31 offsets."""
    cluster.run(produce(cluster, batch([b"first"])))
    answer = cluster.run(produce(cluster, records))
    assert (answer.error_code, answer.outcome) == (InvalidRecord.code, "not_written")
    assert "record" in answer.error_message
    assert cluster.run(produce(cluster, batch([b"second"]))).base_offset == 1
    assert values(cluster, cluster.leader_of(ORDERS)) == [b"first", b"second"]
    assert [each["outcome"] for each in facts_of(cluster, "produce_refused")] == ["not_written"]


def test_validation_can_be_switched_off():
    """mk.validate.records=false: only the header is checked, for those who trust their producers."""
    with simulated_orders(mk_validate_records="false") as cluster:
        assert cluster.run(produce(cluster, with_body(2, b"\xa5" * 300))).error_code == 0
        assert cluster.run(produce(cluster, with_body(2, b""))).error_code == InvalidRecord.code


LONG = batch([b"long %d" % number * 40 for number in range(3000)], compression="gzip")


def arriving(cluster: SimCluster, *requests: Callable[[], Any]) -> list[ProducedPartition]:
    """Requests that arrive a little after one another, none waiting for the one before it."""

    async def all_of_them() -> list[ProducedPartition]:
        tasks = []
        for each in requests:
            tasks.append(asyncio.ensure_future(each()))
            await asyncio.sleep(0.02)
        return [await task for task in tasks]

    return cluster.run(all_of_them())


def test_long_validation_keeps_the_order_of_arrival(cluster: SimCluster):
    """A short batch that arrives while a long one of its partition is validated is appended behind it."""
    for _ in range(5):
        answers = arriving(cluster, lambda: produce(cluster, LONG), lambda: produce(cluster, batch([b"short"])))
        assert [each.error_code for each in answers] == [0, 0]
        assert answers[1].base_offset == answers[0].base_offset + 3000


@pytest.mark.parametrize("validates", ["true", "false"])
def test_batches_are_compressed_with_the_topics_codec(validates: str):
    """compression.type=zstd: offsets go on, duplicates are found, followers copy the leader's bytes, readers read them."""
    with simulated(mk_validate_records=validates) as cluster:
        cluster.create_topic("orders", compression_type="zstd")
        cluster.settle()
        for source in ("none", "gzip", "zstd", "none"):
            assert cluster.run(produce(cluster, batch([source.encode()] * 3, compression=source))).error_code == 0
        idempotent = batch([b"once"], producer_id=7, producer_epoch=0, base_sequence=0)
        first, again = [cluster.run(produce(cluster, idempotent)) for _ in range(2)]
        assert (first.base_offset, again.base_offset, again.duplicate) == (12, 12, True)
        cluster.settle()
        for node in cluster.nodes:
            assert values(cluster, node) == [
                each for source in (b"none", b"gzip", b"zstd", b"none") for each in [source] * 3
            ] + [b"once"]
            log = cluster.replica(node, ORDERS).log  # type: ignore[union-attr]
            stored = [each for data in log.read(0, max_bytes=1 << 20).buffers for each in split(data)]
            assert {each.codec for each in stored} == {CODEC_NAMES.index("zstd")}


def test_recompression_keeps_the_order_of_arrival(cluster: SimCluster):
    """A batch that needs no thread is appended behind one that is compressed in a thread."""
    cluster.create_topic("packed", compression_type="gzip")
    cluster.settle()
    long = batch([b"long %d" % number * 4 for number in range(3000)])
    for _ in range(5):
        answers = arriving(
            cluster,
            lambda: produce(cluster, long, topic="packed"),
            lambda: produce(cluster, batch([b"short"]), topic="packed"),
        )
        assert [each.error_code for each in answers] == [0, 0]
        assert answers[1].base_offset == answers[0].base_offset + 3000


def test_batch_that_recompression_makes_too_large_is_refused():
    """max.message.bytes holds for what is stored, as in Kafka."""
    with simulated() as cluster:
        cluster.create_topic("orders", compression_type="uncompressed", max_message_bytes="10000")
        cluster.settle()
        packed = batch([b"x" * 20_000], compression="zstd")
        assert len(packed) < 10_000
        answer = cluster.run(produce(cluster, packed))
        assert (answer.error_code, answer.outcome) == (MessageTooLarge.code, "not_written")


def test_leader_that_is_deposed_during_validation_writes_nothing(cluster: SimCluster):
    """What allows an append is checked after the validation, in the same turn as the append."""
    leader = cluster.leader_of(ORDERS)
    broker = cluster.brokers[leader]

    async def slowly(work: Callable[[], Any]) -> Any:
        await asyncio.sleep(40.0)
        return work()

    broker.replicas.offload = slowly

    async def asked() -> ProducedPartition:
        asked = asyncio.ensure_future(produce(cluster, LONG, within_s=100.0))
        await asyncio.sleep(1.0)
        for node in cluster.nodes:
            if node != leader:
                cluster.cut(leader, node)
                cluster.cut(node, leader)
        return await asked

    answer = cluster.run(asked())
    assert (answer.error_code, answer.outcome) == (NotLeaderOrFollower.code, "not_written")
    assert cluster.leader_of(ORDERS) != leader
    assert values(cluster, leader) == []
