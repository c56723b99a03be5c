"""A stream of all partitions of a topic (``follow=true``), in virtual time: silence, partitions that are added, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka import errors as kafka
from minikafka.rest import fetch, topic_records
from minikafka.rest.topic_records import PARTITION_COUNT_MAX, Marks
from minikafka.sim.world import SimWorld
from minikafka.types import TopicPartition

TOPIC_ID = "A" * 21 + "Q"
SILENCE = b"silence"


class Reader:
    """Stands for the reader of one partition: each poll takes ``every_s``, and brings a record unless it is idle."""

    every_s = 0.25
    idle: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    """Partitions that end after one poll."""
    closed: list[int]

    def __init__(self, _visit: object, name: Any, start: int, *, topic_id: str | None, **_: object) -> None:
        self.partition = name.partition
        self.next_offset = start
        self.topic_id = topic_id or TOPIC_ID

    async def events(self) -> AsyncGenerator[list[fetch.Change], None]:
        try:
            while True:
                await asyncio.sleep(self.every_s)
                self.next_offset += self.partition not in self.idle
                is_news = self.partition not in self.idle
                yield [fetch.Change("record", {"offset": self.next_offset - 1})] if is_news else []
                if self.partition in self.ends:
                    return
        finally:
            self.closed.append(self.partition)


class Visit:
    """What a follower needs of its request: a heartbeat every four seconds, and a topic whose partitions change."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    def __getitem__(self, parameter: Any) -> object:
        return {"heartbeat_ms": 4000, "format": "auto"}[parameter.name]

    @property
    def host(self) -> SimpleNamespace:
        parts = tuple(SimpleNamespace(partition=number) for number in range(self.partitions))
        return SimpleNamespace(image=SimpleNamespace(topics={"orders": SimpleNamespace(partitions=parts)}))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> type[Reader]:
    """The readers of this test."""
    kind = type("OwnReader", (Reader,), {"closed": []})
    monkeypatch.setattr(fetch, "PartitionReader", kind)
    return kind


def follow(visit: Visit, body: Callable[[AsyncGenerator[bytes, None], asyncio.AbstractEventLoop], Any]) -> Any:
    """Run a body with the chunks of a stream, in a world of its own."""

    async def run() -> Any:
        starts = dict.fromkeys(range(visit.partitions), 0)
        written = lambda change, partition, _position: b"%d:%d" % (partition, change.data["offset"])  # noqa: E731
        follower = topic_records._Follower(visit, "orders", starts, Marks(TOPIC_ID, starts), written)  # type: ignore[arg-type]
        chunks = follower.chunks(b"head", SILENCE)
        assert await anext(chunks) == b"head"
        try:
            return await body(chunks, asyncio.get_running_loop())
        finally:
            await chunks.aclose()

    with SimWorld(1) as sim:
        sim.of("n1")
        return sim.run(run())


def test_partition_that_is_added_to_a_busy_topic_is_read(reader: type[Reader]):
    """Others always had something new: until they paused for a second, the partition was not read at all."""
    visit = Visit(1)

    async def body(chunks: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop) -> list[bytes]:
        visit.partitions = 2
        return [await anext(chunks) for _ in range(12)]

    assert b"1:0" in follow(visit, body)
    assert sorted(reader.closed) == [0, 1]


def test_silence_is_broken_after_the_heartbeat_and_counts_from_the_last_chunk(reader: type[Reader]):
    """Polls without news are no sign of life for the reader at the other end."""
    reader.idle = frozenset({0})
    reader.every_s = 1.5

    async def body(chunks: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop) -> list[tuple[bytes, int]]:
        began = loop.time()
        found = [(await anext(chunks), round(loop.time() - began)) for _ in range(3)]
        reader.idle = frozenset()
        found.append((await anext(chunks), round(loop.time() - began)))
        reader.idle = frozenset({0})
        return [*found, (await anext(chunks), round(loop.time() - began))]

    at = [(SILENCE, 4), (SILENCE, 8), (SILENCE, 12)]
    found = follow(Visit(1), body)
    assert found[:3] == at
    assert found[3][0] == b"0:0"
    assert found[4] == (SILENCE, found[3][1] + 4)


def test_stream_ends_with_its_last_reader_and_stops_readers_that_it_leaves_behind(reader: type[Reader]):
    """What no partition can be read of is over; a client that leaves leaves no fetch behind."""
    reader.ends = frozenset({0, 1})

    async def to_the_end(chunks: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop) -> list[bytes]:
        return [chunk async for chunk in chunks]

    assert sorted(follow(Visit(2), to_the_end)) == [b"0:0", b"1:0"]
    reader.ends = frozenset()
    reader.closed.clear()

    async def one(chunks: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop) -> bytes:
        return await anext(chunks)

    follow(Visit(3), one)
    assert sorted(reader.closed) == [0, 1, 2]


def test_one_stream_follows_so_many_partitions_at_most(reader: type[Reader]):
    """More are refused at the beginning, and not read when they are added."""
    visit: Any = Visit(PARTITION_COUNT_MAX + 1)
    names = [TopicPartition("orders", number) for number in range(visit.partitions)]
    with pytest.raises(kafka.InvalidPartitions, match="follow them one by one"):
        asyncio.run(topic_records._follow(visit, TOPIC_ID, names, asyncio.Semaphore()))
    reader.ends = frozenset(range(visit.partitions))

    async def to_the_end(chunks: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop) -> list[bytes]:
        return [chunk async for chunk in chunks]

    assert len(follow(visit, to_the_end)) == PARTITION_COUNT_MAX
