"""``GET /v1/topics/{t}/records?follow=true``: the records of all partitions as they come, in one stream.

For people (``curl -N``: a line of JSON a record) and for browsers (``Accept: text/event-stream``). Each partition is
read by a reader of its own; between partitions the order is that of coming.

- ``id`` of an event, for ``Last-Event-ID``, has where every partition goes on: ``0:42,1:17``.
- Partitions that are added are read from their beginning.
- A line that is no record has one member, ``problem`` or ``truncated``, with the partition in it; an empty line says
  that the line is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TypeAlias

from minikafka.errors import InvalidPartitions
from minikafka.rest import json_text, sse
from minikafka.rest.fetch import FORMAT
from minikafka.rest.parameters import INT64_MAX, Parsed, Wrong
from minikafka.rest.reader import Change, PartitionReader
from minikafka.rest.stream import HEARTBEAT_MS
from minikafka.rest.visit import Stream, Visit
from minikafka.types import Offset, TopicPartition
from minikafka.web.accept import unacceptable_type

PARTITION_COUNT_MAX = 100
"""Each costs a parked fetch and up to a poll's records."""

NEWS_S = 1.0
"""How often it is looked for partitions that were added."""

Positions: TypeAlias = Mapping[int, Offset]


def _positions(given: str) -> Positions:
    found: dict[int, Offset] = {}
    for each in given.split(","):
        partition, colon, offset = each.partition(":")
        numbers = [text for text in (partition, offset) if text.isascii() and text.isdigit() and len(text) <= 18]
        if not colon or len(numbers) < 2 or int(offset) > INT64_MAX or int(partition) in found:
            raise Wrong(f"{given[:40]!r}: PARTITION:OFFSET with commas is needed, as in 0:42,1:17")
        found[int(partition)] = int(offset)
    return found


LAST_EVENT_ID: Parsed[Positions] = Parsed(
    name="Last-Event-ID",
    place="header",
    description="With `follow`: where each partition goes on, as the last event's `id` said; wins over `from`.",
    default={},
    default_shown=None,
    reader=_positions,
    described={"type": "string", "pattern": "^[0-9]{1,10}:[0-9]{1,18}$"},
    example="0:42",
)


def refuse_too_many(partition_count: int) -> None:
    """422 for a topic that is too wide for one stream."""
    if partition_count > PARTITION_COUNT_MAX:
        raise InvalidPartitions(
            f"follow reads {PARTITION_COUNT_MAX} partitions at the most, the topic has {partition_count}: "
            "follow them one by one, at .../partitions/N/stream"
        )


def followed(visit: Visit, topic: str, starts: Positions) -> Stream:
    """The stream that begins with these offsets."""
    accept = visit.accept
    wishes = {each: accept.quality(each) for each in (sse.NDJSON, sse.EVENT_STREAM)}
    if not max(wishes.values()):
        raise unacceptable_type(accept, wishes)
    as_events = wishes[sse.EVENT_STREAM] > wishes[sse.NDJSON]
    follower = _Follower(visit, topic, starts, _event if as_events else _line)
    head, silence = (sse.RETRY, sse.HEARTBEAT) if as_events else (b"", b"\n")
    return Stream(
        chunks=follower.chunks(head, silence),
        media_type=sse.EVENT_STREAM if as_events else sse.NDJSON,
        farewell=sse.FAREWELL if as_events else b'{"end": {"why": "the broker stops"}}\n',
        headers={"X-Accel-Buffering": "no"},
    )


def _event(change: Change, partition: int, position: str) -> bytes:
    return sse.event(change.kind, {"partition": partition, **change.data}, position or None)


def _line(change: Change, partition: int, _position: str) -> bytes:
    data = {"partition": partition, **change.data}
    return json_text.text_of(data if change.kind == "record" else {change.kind: data})


class _Follower:
    """All readers of one stream; they hand over one poll at a time."""

    def __init__(
        self, visit: Visit, topic: str, starts: Positions, written: Callable[[Change, int, str], bytes]
    ) -> None:
        self._visit = visit
        self._topic = topic
        self._written = written
        self._positions = dict(starts)
        self._polls: asyncio.Queue[tuple[int, list[Change], Offset]] = asyncio.Queue(maxsize=1)
        self._readers: dict[int, asyncio.Task[None]] = {}

    async def chunks(self, head: bytes, silence: bytes) -> AsyncGenerator[bytes, None]:
        """One chunk a poll; ``silence`` after heartbeat_ms without news. Ends when no partition can be read."""
        loop = asyncio.get_running_loop()
        patience_s = self._visit[HEARTBEAT_MS] / 1000
        try:
            self._begin()
            yield head
            wrote_at = loop.time()
            while self._polls.qsize() or any(not task.done() for task in self._readers.values()):
                try:
                    async with asyncio.timeout(min(NEWS_S, max(0.0, wrote_at + patience_s - loop.time()))):
                        chunk = self._chunk(*await self._polls.get())
                except TimeoutError:
                    self._begin()
                    chunk = silence if loop.time() >= wrote_at + patience_s else b""
                if chunk:
                    yield chunk
                    wrote_at = loop.time()
        finally:
            for task in self._readers.values():
                task.cancel()
            await asyncio.gather(*self._readers.values(), return_exceptions=True)

    def _begin(self) -> None:
        """A reader for each partition that has none yet."""
        topic = self._visit.host.image.topics.get(self._topic)
        for each in topic.partitions[:PARTITION_COUNT_MAX] if topic is not None else ():
            if each.partition not in self._readers:
                task = asyncio.create_task(self._read(each.partition), name=f"follow-{self._topic}-{each.partition}")
                self._readers[each.partition] = task

    async def _read(self, partition: int) -> None:
        name = TopicPartition(self._topic, partition)
        start = self._positions.setdefault(partition, 0)
        visit = self._visit
        reader = PartitionReader(visit, name, start, wait_ms=visit[HEARTBEAT_MS], form=visit[FORMAT])
        async for changes in reader.events():
            await self._polls.put((partition, changes, reader.next_offset))

    def _chunk(self, partition: int, changes: list[Change], next_offset: Offset) -> bytes:
        """The events of one poll: the position stands at the last one, for before it the poll is incomplete."""
        self._positions[partition] = next_offset
        kept = [each for each in changes if each.kind in {"record", "problem", "truncated"}]
        position = ",".join(f"{each}:{offset}" for each, offset in sorted(self._positions.items()))
        last = len(kept) - 1
        return b"".join(
            self._written(each, partition, position if number == last else "") for number, each in enumerate(kept)
        )
