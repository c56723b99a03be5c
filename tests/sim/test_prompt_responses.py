"""Handlers respond at once when nothing must be awaited, and append before they make anybody wait (issue 14)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from minikafka.broker.api import produce as produce_api
from minikafka.broker.broker import Broker
from minikafka.broker.dispatch import Begun, settled
from minikafka.errors import UnknownTopicOrPartition
from minikafka.sim.cluster import SimCluster
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.records import Record, build_batch
from tests.sim.cluster_kit import ORDERS, simulated, simulated_orders, values


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with simulated_orders() as cluster:
        yield cluster


def answer(broker: Broker, request: object) -> Any:
    """What the handler returns: a response, Begun or an awaitable."""
    return broker.dispatcher.answer(BY_REQUEST[type(request)], request)


LONG = build_batch([Record(0, 1_000, 0, None, b"long %d" % number * 40) for number in range(3000)], compression="gzip")


def produce(value: bytes, *, acks: int, topic: str = "orders") -> m.ProduceRequest:
    return produce_batch(build_batch([Record(0, 1_000, 0, None, value)]), acks=acks, topic=topic)


def produce_batch(batch: bytes, *, acks: int, topic: str = "orders") -> m.ProduceRequest:
    part = m.ProducePartition(topic=topic, partition=0, records=(batch,))
    return m.ProduceRequest(acks=acks, timeout_ms=5000, partitions=(part,))


def fetch(offset: int, **more: Any) -> m.FetchRequest:
    part = m.FetchPartition(topic="orders", partition=0, fetch_offset=offset, partition_max_bytes=1000)
    return m.FetchRequest(max_bytes=1000, partitions=(part,), **more)


@pytest.mark.parametrize(("max_bytes", "is_at_once"), [(1000, False), (100, True)])
def test_a_fetch_whose_limit_is_reached_does_not_wait(cluster: SimCluster, max_bytes: int, is_at_once: bool) -> None:
    """The second batch does not fit: whatever else is appended, the response cannot become larger."""
    leader = cluster.leader_of(ORDERS)

    async def ask() -> None:
        for value in (b"one", b"two"):
            await settled(answer(cluster.brokers[leader], produce(value, acks=-1)))
        part = m.FetchPartition(topic="orders", partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
        request = m.FetchRequest(max_bytes=1000, partitions=(part,), max_wait_ms=500, min_bytes=max_bytes)
        response = answer(cluster.brokers[leader], request)
        assert isinstance(response, m.FetchResponse) == is_at_once
        await settled(response)

    cluster.run(ask())


def test_a_produce_request_that_need_not_wait_is_answered_at_once(cluster: SimCluster) -> None:
    """acks=1 and errors: no task, no turn of the loop."""
    leader = cluster.leader_of(ORDERS)

    async def ask() -> None:
        response = answer(cluster.brokers[leader], produce(b"one", acks=1))
        assert [(each.error_code, each.base_offset) for each in response.partitions] == [(0, 0)]
        response = answer(cluster.brokers[leader], produce(b"lost", acks=-1, topic="elsewhere"))
        assert [each.error_code for each in response.partitions] == [UnknownTopicOrPartition.code]

    cluster.run(ask())
    assert values(cluster, leader, ORDERS) == [b"one"]


def test_a_produce_request_that_waits_for_replicas_is_appended_before_its_handler_returns(cluster: SimCluster) -> None:
    """So the next request of the connection may begin while this one waits for the high watermark."""
    leader = cluster.leader_of(ORDERS)

    async def ask() -> list[int]:
        begun = [answer(cluster.brokers[leader], produce(value, acks=-1)) for value in (b"one", b"two")]
        assert [type(each) for each in begun] == [Begun, Begun]
        assert values(cluster, leader, ORDERS) == [b"one", b"two"]
        return [(await settled(each)).partitions[0].base_offset for each in begun]

    assert cluster.run(ask()) == [0, 1]


def test_a_long_batch_is_begun_only_when_it_is_appended(cluster: SimCluster) -> None:
    """It is validated beside the loop; the later short batch for the same partition waits behind it."""
    leader = cluster.leader_of(ORDERS)
    broker = cluster.brokers[leader]

    async def ask() -> None:
        long = answer(broker, produce_batch(LONG, acks=-1))
        assert not isinstance(long, (Begun, m.ProduceResponse))
        behind = asyncio.ensure_future(answer(broker, produce(b"short", acks=1)))
        begun = await long
        assert isinstance(begun, Begun)
        assert len(values(cluster, leader, ORDERS)) == 3000
        assert (await behind).partitions[0].base_offset == 3000
        assert (await settled(begun)).partitions[0].error_code == 0

    cluster.run(ask())


def test_a_begun_request_sees_what_happens_before_it_is_awaited(cluster: SimCluster) -> None:
    """A session awaits the rest in a task, which begins a turn later: no wake-up between may be lost."""
    leader = cluster.leader_of(ORDERS)
    broker = cluster.brokers[leader]

    async def ask() -> float:
        waiting = answer(broker, produce(b"one", acks=-1))
        polling = answer(broker, fetch(0, max_wait_ms=20_000, min_bytes=1))
        await settled(answer(broker, produce(b"two", acks=-1)))
        began = cluster.sim.loop.now
        assert (await settled(waiting)).partitions[0].error_code == 0
        assert (await settled(polling)).partitions[0].records
        return cluster.sim.loop.now - began

    assert cluster.run(ask()) < 1.0


def test_produce_of_one_partition_equals_the_form_for_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path for a single batch is unrolled: responses, log and metrics are those of the general form."""
    good = build_batch([Record(0, 1_000, 0, None, b"a"), Record(1, 1_000, 0, None, b"b")])
    idempotent = build_batch([Record(0, 1_000, 0, None, b"c")], producer_id=7, producer_epoch=0, base_sequence=0)
    future = build_batch([Record(0, 10**15, 0, None, b"d")])
    script = [
        produce_batch(batch, acks=acks, topic=topic)
        for batch in (good, idempotent, idempotent, good[:-1] + b"?", future, b"", LONG)
        for acks in (1, 0, -1)
        for topic in ("orders", "elsewhere", "__consumer_offsets")
    ]

    def play(*, expires: bool = False) -> tuple[object, ...]:
        with simulated() as cluster:
            cluster.create_topic("orders")
            cluster.settle()
            leader = cluster.leader_of(ORDERS)
            broker = cluster.brokers[leader]

            async def ask() -> list[tuple[type, object]]:
                log = broker.replicas.partitions[ORDERS].log
                answers = []
                for request in script:
                    end = log.end_offset
                    if expires:  # between the append and the response
                        monkeypatch.setattr(broker.lifecycle, "_is_in_time", lambda end=end: log.end_offset == end)
                    answers.append(answer(broker, request))
                return [(type(each), await settled(each)) for each in answers]

            responses = cluster.run(ask())
            traffic = broker.replicas.traffic
            counters = traffic.topics, traffic.produce_outcomes, traffic.produce_errors, traffic.acked_records
            monkeypatch.undo()
            return responses, values(cluster, leader, ORDERS), counters

    for expires in (False, True):
        unrolled = play(expires=expires)
        monkeypatch.setattr(produce_api, "_produce_one", lambda *_: None)
        assert play(expires=expires) == unrolled


def test_a_fetch_with_data_and_what_only_reads_state_are_answered_at_once(cluster: SimCluster) -> None:
    """Each of these costs no task at any door."""
    leader = cluster.leader_of(ORDERS)
    broker = cluster.brokers[leader]
    asked = (
        (fetch(0, max_wait_ms=500, min_bytes=1), m.FetchResponse),
        (fetch(1, max_wait_ms=0), m.FetchResponse),
        (fetch(99, max_wait_ms=500), m.FetchResponse),
        (m.MetadataRequest(topics=("orders",)), m.MetadataResponse),
        (m.ApiVersionsRequest(), m.ApiVersionsResponse),
        (m.DescribeTopicsRequest(), m.DescribeTopicsResponse),
        (m.ListOffsetsRequest(partitions=(m.ListOffsetsPartition(topic="orders", partition=0, timestamp=-1),)), None),
        (g.FindCoordinatorRequest(keys=("group",)), g.FindCoordinatorResponse),
    )

    async def ask() -> None:
        # The offsets topic is created by the first of these, which waits for it.
        await settled(answer(broker, g.FindCoordinatorRequest(keys=("group",))))
        await settled(answer(broker, produce(b"one", acks=-1)))
        for request, response in asked:
            assert type(answer(broker, request)) is (response or m.ListOffsetsResponse)

    cluster.run(ask())
