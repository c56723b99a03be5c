"""Clients that end while their caller is cancelled, or while something fails: nothing may stay open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from minikafka.client.admin import AdminClient
from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import AdminConfig, ConsumerConfig, ProducerConfig
from minikafka.client.structs import NewTopic
from minikafka.errors import InvalidRequest, RequestTimedOut
from minikafka.ports import World
from tests.clients.fake_cluster import LOSE_REQUEST, UNREACHABLE, FakeCluster, once, play

BOOTSTRAP = "broker-1:9092,broker-2:9092,broker-3:9092"


class Resources:
    """The world of one client, and whether it was closed."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.is_closed = False

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[World]:
        try:
            yield self._cluster.world
        finally:
            await asyncio.sleep(0.001)
            self.is_closed = True


CLIENTS: dict[str, Callable[[Any], Any]] = {
    "producer": lambda world: Producer(ProducerConfig(bootstrap_servers=BOOTSTRAP), world),
    "consumer": lambda world: Consumer(ConsumerConfig(bootstrap_servers=BOOTSTRAP), world, ["t"]),
    "admin": lambda world: AdminClient(AdminConfig(bootstrap_servers=BOOTSTRAP), world),
}


async def left_over(before: set[asyncio.Task[Any]]) -> list[str]:
    """Tasks that somebody left behind."""
    await asyncio.sleep(0.01)
    return sorted(task.get_name() for task in asyncio.all_tasks() - before)


@pytest.mark.parametrize("name", sorted(CLIENTS))
@pytest.mark.parametrize("steps", range(8))
def test_who_is_cancelled_while_it_stops_leaves_nothing_open(name: str, steps: int):
    """The caller's patience may end between any two steps of stop()."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        before = asyncio.all_tasks()
        resources = Resources(cluster)
        client = CLIENTS[name](resources())
        await client.start()
        stopping = asyncio.ensure_future(client.stop())
        for _ in range(steps):
            await asyncio.sleep(0)
        stopping.cancel()
        (outcome,) = await asyncio.gather(stopping, return_exceptions=True)
        assert outcome is None or isinstance(outcome, asyncio.CancelledError)
        if steps:
            assert await left_over(before) == []
        await client.stop()

    play(story)


def test_a_producer_whose_stop_is_cancelled_twice_tells_everybody():
    """S25: the first time it waits for answers, the second time for its own tasks."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        before = asyncio.all_tasks()
        resources = Resources(cluster)
        producer = Producer(ProducerConfig(bootstrap_servers=BOOTSTRAP), resources())
        await producer.start()
        cluster.faults.append(once("Produce", LOSE_REQUEST))
        future = await producer.send("t", b"tea")
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.sleep(1)
        stopping.cancel()
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        with pytest.raises(RequestTimedOut) as told:
            await asyncio.wait_for(future, 1)
        assert told.value.outcome == "unknown"
        assert resources.is_closed
        assert await left_over(before) == []

    play(story)


def test_a_cancelled_caller_of_stop_is_told_so():
    """The end of the client's own tasks swallowed the caller's cancellation."""

    async def story():
        cluster = FakeCluster()
        admin = AdminClient(AdminConfig(bootstrap_servers=BOOTSTRAP), cluster.world)
        await admin.start()
        stopping = asyncio.ensure_future(admin.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping

    play(story)


def test_a_send_that_waits_for_a_topic_is_told_that_the_producer_was_stopped():
    """S27: not that max_block_ms had passed, which it had not."""

    async def story():
        cluster = FakeCluster()
        producer = Producer(ProducerConfig(bootstrap_servers=BOOTSTRAP, allow_auto_create_topics=False), cluster.world)
        await producer.start()
        sending = asyncio.ensure_future(producer.send("nowhere", b"tea"))
        await asyncio.sleep(1)
        await producer.stop()
        with pytest.raises(InvalidRequest, match="the producer was stopped"):
            await sending

    play(story)


def test_a_consumer_is_stopped_twice_and_the_second_time_does_nothing():
    """``async with`` around a stop() by hand."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        resources = Resources(cluster)
        consumer = Consumer(ConsumerConfig(bootstrap_servers=BOOTSTRAP), resources(), ["t"])
        await consumer.start()
        await consumer.stop()
        assert resources.is_closed
        calls = len(cluster.calls)
        await consumer.stop()
        assert len(cluster.calls) == calls

    play(story)


def test_a_closed_admin_client_says_so_at_once():
    """It tried for a minute, and said then that it may have happened."""

    async def story():
        cluster = FakeCluster()
        admin = AdminClient(AdminConfig(bootstrap_servers=BOOTSTRAP), cluster.world)
        await admin.start()
        await admin.close()
        with pytest.raises(InvalidRequest, match="the admin client was closed"):
            await admin.create_topics([NewTopic("t")])
        assert cluster.now() < 1

    play(story)


def test_what_was_created_is_never_told_as_not_written():
    """S15: the controller has recorded it; that nobody answers for a moment is no word on it."""

    async def story():
        cluster = FakeCluster()
        async with AdminClient(AdminConfig(bootstrap_servers=BOOTSTRAP), cluster.world) as admin:
            cluster.faults.append(
                lambda _node, api, _request: UNREACHABLE if cluster.topics and api != "CreateTopics" else None
            )
            with pytest.raises(RequestTimedOut, match="the change of t is done") as told:
                await admin.create_topics([NewTopic("t")], timeout_ms=5000)
            assert told.value.outcome == "written"
            cluster.faults[:] = [once("Metadata", UNREACHABLE, count=3)]
            (created,) = await admin.create_topics([NewTopic("u")], timeout_ms=5000)
            assert created.name == "u"

    play(story)


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_a_stop_that_is_thrown_away_begins_nothing_more(name: str):
    """As of a process that was killed in the simulator: each step that was begun all the same made an event loop."""

    async def story() -> Any:
        cluster = FakeCluster()
        cluster.topic("t")
        resources = Resources(cluster)
        client = CLIENTS[name](resources())
        await client.start()
        stopping = client.stop()
        stopping.send(None)
        return stopping, resources

    loops: list[asyncio.AbstractEventLoop] = []
    stopping, resources = play(story)
    # Where asyncio itself looks for a loop: Python 3.12 has no other function for it than the public one.
    looked_for = "_get_event_loop" if hasattr(asyncio.events, "_get_event_loop") else "get_event_loop"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.events, looked_for, lambda *_: loops.append(asyncio.new_event_loop()) or loops[-1])
        stopping.close()
    for loop in loops:
        loop.close()
    assert loops == []
    assert not resources.is_closed
