"""``GET /v1/topics/{t}/records``: the records of all partitions of a topic, as one list or, with ``follow=true``, as a
stream.

The list is ordered by timestamp, and within a partition by offset, for people who look at a topic; programs read
partition by partition. It never waits: ``next`` has the offset from which each partition continues.

The stream does not end. It is lines of JSON for ``curl -N``, and Server-Sent Events for browsers (``Accept:
text/event-stream``). Each partition has a reader of its own; records of several partitions come in the order in which
they were read.

- ``id`` of an event, for ``Last-Event-ID``, has the topic's id and the next offset of each partition:
  ``TOPIC_ID:0:42,1:17``. A partition that it does not name is read from its beginning, also after the topic was deleted
  and created again: what an ``id`` says of partitions then is true of the new topic, or left out.
- Partitions that are added are read from their beginning.
- A line that is not a record has one member, ``problem`` or ``truncated``, which names the partition; an empty line
  shows that the connection works.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from minikafka import errors as kafka
from minikafka.config import KIB
from minikafka.rest import fetch, json_text
from minikafka.rest.host import FETCH_BYTES_MAX, FETCH_RECORD_COUNT_MAX
from minikafka.rest.json_text import long_step
from minikafka.rest.leaders import check_known, from_leader
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import FORWARD, TOPIC, Flag, Integer, Parsed, Wrong
from minikafka.rest.records import time_ms
from minikafka.rest.route import LEADER_PROBLEMS, Answer, Contents, Reply, Routes, Stream, Visit
from minikafka.rest.schema import PartitionNumber, ref, text
from minikafka.rest.schemas import PROBLEM_EXAMPLE, OfTopic, TopicRecord
from minikafka.tasks import until_ended
from minikafka.types import Offset, TopicId, TopicPartition
from minikafka.web.accept import JSON, MSGPACK_TYPES, unacceptable_type
from minikafka.web.problems import Refused
from minikafka.wire.limits import shown
from minikafka.wire.messages import EARLIEST, LATEST

ROUTES = Routes("records", also=(fetch.ISOLATION_LEVEL, fetch.FORMAT, FORWARD))
PARTITION_COUNT_MAX = 100
"""Each costs a parked fetch and up to a poll's records."""
NEWS_S = 1.0
"""How often it is looked for partitions that were added."""
Positions: TypeAlias = Mapping[int, Offset]


class Marks(NamedTuple):
    """Places in partitions of one topic, which another topic of the same name does not have."""

    topic_id: TopicId | None
    """None: not known. Then they are taken for places in the present topic."""
    positions: Positions


def _marks(given: str) -> Marks:
    found: dict[int, Offset] = {}
    topic = re.match("([A-Za-z0-9_-]{22}):", given, re.ASCII)
    for each in given[topic.end() if topic else 0 :].split(","):
        partition, colon, offset = each.partition(":")
        numbers = [text for text in (partition, offset) if text.isascii() and text.isdigit() and len(text) <= 18]
        if not colon or len(numbers) < 2 or int(partition) in found:
            needed = "PARTITION:OFFSET with commas is needed, as in 0:42,1:17, or TOPIC_ID:0:42,1:17"
            raise Wrong(f"{given[:40]!r}: {needed}")
        found[int(partition)] = int(offset)
    return Marks(topic[1] if topic else None, found)


LAST_EVENT_ID: Parsed[Marks] = Parsed(
    "Last-Event-ID",
    "With `follow`: the `id` of the last event that was read, which has the topic's id and where each partition goes "
    "on. If the topic was deleted and created again, its partitions are read from their beginning. Positions without "
    "the topic's id are taken for those of the present topic. It wins over `from`.",
    place="header",
    default=Marks(None, {}),
    reader=_marks,
    described={"type": "string", "pattern": "^(?:[A-Za-z0-9_-]{22}:)?[0-9]{1,10}:[0-9]{1,18}$"},
    example="0:42",
)


def _event(change: fetch.Change, partition: int, position: str) -> bytes:
    return json_text.event(change.kind, {"partition": partition, **change.data}, position or None)


def _line(change: fetch.Change, partition: int, _position: str) -> bytes:
    data = {"partition": partition, **change.data}
    return json_text.text_of(data if change.kind == "record" else {change.kind: data})


@dataclass(eq=False)
class _Follower:
    """All readers of one stream; they hand over one poll at a time."""

    visit: Visit
    topic: str
    starts: Positions
    begun: Marks
    """Its positions are in the topic with its id; other partitions begin in the present topic."""
    written: Callable[[fetch.Change, int, str], bytes]
    _polls: asyncio.Queue[tuple[int, list[fetch.Change], fetch.Mark]] = field(init=False)
    _readers: dict[int, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _former_ids: set[TopicId | None] = field(default_factory=set, init=False)
    """Of topics that were deleted and created again while this was read."""

    def __post_init__(self) -> None:
        self._polls = asyncio.Queue(maxsize=1)
        # Where each partition goes on, and the topic that this is in.
        self._positions, self._topic_id = dict(self.starts), self.begun.topic_id

    async def chunks(self, head: bytes, silence: bytes) -> AsyncGenerator[bytes, None]:
        """One chunk a poll; ``silence`` after heartbeat_ms without news. Ends when no partition can be read."""
        loop = asyncio.get_running_loop()
        patience_s = self.visit[fetch.HEARTBEAT_MS] / 1000
        try:
            self._begin()
            yield head
            wrote_at = looked_at = loop.time()
            while self._polls.qsize() or any(not task.done() for task in self._readers.values()):
                try:
                    async with asyncio.timeout_at(min(looked_at + NEWS_S, wrote_at + patience_s)):
                        chunk = self._chunk(*await self._polls.get())
                except TimeoutError:
                    chunk = silence if loop.time() >= wrote_at + patience_s else b""
                if loop.time() >= looked_at + NEWS_S:  # also while there is always something to read
                    self._begin()
                    looked_at = loop.time()
                if chunk:
                    yield chunk
                    wrote_at = loop.time()
        finally:
            for task in self._readers.values():
                task.cancel()
            await until_ended(self._readers.values())

    def _begin(self) -> None:
        """A reader for each partition that has none yet."""
        topic = self.visit.host.image.topics.get(self.topic)
        for each in topic.partitions[:PARTITION_COUNT_MAX] if topic is not None else ():
            if each.partition not in self._readers:
                task = asyncio.create_task(self._read(each.partition), name=f"follow-{self.topic}-{each.partition}")
                self._readers[each.partition] = task

    async def _read(self, partition: int) -> None:
        name = TopicPartition(self.topic, partition)
        start, topic_id = self.starts.get(partition, 0), None
        if partition in self.begun.positions:
            topic_id = self.begun.topic_id
        visit = self.visit
        reader = fetch.PartitionReader(
            visit, name, start, wait_ms=visit[fetch.HEARTBEAT_MS], form=visit[fetch.FORMAT], topic_id=topic_id
        )
        async for changes in reader.events():
            await self._polls.put((partition, changes, fetch.Mark(reader.topic_id, reader.next_offset)))

    def _chunk(self, partition: int, changes: list[fetch.Change], mark: fetch.Mark) -> bytes:
        """The events of one poll: the position stands at the last one, for before it the poll is incomplete."""
        kept = [each for each in changes if each.kind in {"record", "problem", "truncated"}]
        position = self._moved(partition, mark)
        last = len(kept) - 1
        return b"".join(
            self.written(each, partition, position if number == last else "") for number, each in enumerate(kept)
        )

    def _moved(self, partition: int, mark: fetch.Mark) -> str:
        """The id of an event after which a partition is read from ``mark`` on; empty if it has none."""
        if mark.topic_id is None or mark.topic_id in self._former_ids:
            return ""  # this reader has not yet noticed what another one has
        if mark.topic_id != self._topic_id:
            # Positions in the former topic are none in this one: what is not named is read from its beginning.
            self._former_ids.add(self._topic_id)
            self._topic_id = mark.topic_id
            self._positions.clear()
        self._positions[partition] = mark.offset
        return f"{self._topic_id}:" + ",".join(f"{each}:{offset}" for each, offset in sorted(self._positions.items()))


# A topic may have thousands of partitions; so many are looked at side by side.
SIDE_BY_SIDE_MAX = 16

PARTITION_BYTES_MAX = 256 * KIB
"""Bytes of the log that are fetched of one partition."""


class Start(NamedTuple):
    """Where to begin in each partition: a timestamp of ListOffsets, and how many offsets before it."""

    timestamp: int
    back: int = 0


def _read_start(given: str) -> Start:
    if given == "earliest":
        return Start(EARLIEST)
    if given == "latest":
        return Start(LATEST)
    if re.fullmatch("-[0-9]{1,18}", given):
        return Start(LATEST, back=int(given[1:]))
    try:
        return Start(time_ms(given))
    except ValueError:
        needed = "earliest, latest, -N (the last N), milliseconds since 1970 or ISO 8601 is needed"
        raise Wrong(f"{shown(given)}: {needed}") from None


FROM = Parsed(
    "from",
    "Where to begin in each partition: `earliest`, `latest`, `-10` (ten before the end), or a moment "
    "(milliseconds since 1970, or ISO 8601 with a time zone).",
    default=Start(LATEST, 10),
    default_shown=-10,
    reader=_read_start,
    described={
        "anyOf": [
            {"type": "string", "enum": ["earliest", "latest"]},
            {"type": "integer", "minimum": -(10**18) + 1, "maximum": 10**18 - 1},
            {"type": "string", "format": "date-time"},
        ]
    },
    example="earliest",
)
MAX_RECORDS = Integer(
    "max_records",
    "No more records than this, of each partition and in all.",
    default=100,
    low=1,
    high=FETCH_RECORD_COUNT_MAX,
)
FOLLOW = Flag("follow", "Go on with what comes: lines of JSON, or Server-Sent Events where `Accept` says so.")


class _Next(Model):
    """Where to go on in a partition."""

    partition: PartitionNumber = member(example=2)
    next_offset: Offset = member("Where it goes on; -1: there is nothing at or after that moment.", 42)
    problem: dict[str, Any] | None = member(ref("Problem"), default=None)


class _Records(OfTopic):
    """Records of all partitions, by timestamp."""

    records: list[Any] = many_of(TopicRecord)
    next: list[_Next] = many_of(_Next)


class _Found:
    """The first records of all partitions by timestamp, and where each partition continues.

    Whatever the number of partitions, hardly more than twice the records that the answer has room for are held.
    """

    def __init__(self, partition_count: int, count_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = max(1, FETCH_BYTES_MAX // partition_count)
        """Of the keys, values and headers of one partition; one record may go beyond it."""
        self._lists: list[list[dict[str, Any]]] = []
        self._held_count = 0
        self._next: dict[int, tuple[Offset, Refused | None]] = {}

    async def add(self, partition: int, records: list[dict[str, Any]], next_offset: Offset) -> None:
        """Add what a partition gave."""
        self._next[partition] = next_offset, None
        if records:
            self._lists.append([{"partition": partition, **record} for record in records])
            self._held_count += len(records)
        if self._held_count >= 2 * self.count_max:
            await long_step()
            self.cut()

    def refuse(self, partition: int, refused: Refused) -> None:
        """Note why a partition gave nothing."""
        self._next[partition] = -1, refused

    def cut(self) -> list[dict[str, Any]]:
        """Return the records that there is room for; no others are held."""
        # Each partition keeps its order: what does not fit is then all behind what is shown of it.
        merged = list(heapq.merge(*self._lists, key=lambda record: (record.get("timestamp", 0), record["partition"])))
        for record in reversed(merged[self.count_max :]):
            self._next[record["partition"]] = record["offset"], None
        kept = merged[: self.count_max]
        self._lists, self._held_count = [kept], len(kept)
        return kept

    def next_offsets(self) -> list[_Next]:
        """Return where each partition continues. Raises Refused if none could be read."""
        found = sorted(self._next.items())
        first = found[0][1][1]
        if first is not None and all(refused is not None for _, (_, refused) in found):
            raise first
        return [
            _Next(partition=partition, next_offset=offset, problem=None if refused is None else refused.problem())
            for partition, (offset, refused) in found
        ]


LISTED = _Records.example(next=[_Next.example(partition=0, next_offset=-1, problem=PROBLEM_EXAMPLE), _Next.example()])
FOLLOWED: Contents = {
    json_text.NDJSON: (
        text("A record a line; another line has one member: `problem`, `truncated` or `end`."),
        '{"partition": 2, "offset": 41, "timestamp": 1795000000000, "key": "ann", "value": "tea", "headers": []}\n',
    ),
    json_text.EVENT_STREAM: (
        text(
            "Events until the reader leaves: `record`, `truncated`, `problem`, `end`; "
            "`id` has the topic's id and all positions."
        ),
        (
            "retry: 1000\n\nid: MDEyMzQ1Njc4OWFiY2RlZg:0:0,2:42\n"
            'event: record\ndata: {"partition": 2, "offset": 41, "value": "tea"}\n\n'
        ),
    ),
}


@ROUTES.at(
    "GET /v1/topics/{topic}/records",
    Answer("What is there; with `follow`, that and what comes.", {JSON: (_Records.schema(), LISTED), **FOLLOWED}),
    parameters=(FROM, FOLLOW, MAX_RECORDS, fetch.HEARTBEAT_MS, LAST_EVENT_ID),
    problems=(
        *LEADER_PROBLEMS,
        kafka.CorruptMessage,
        kafka.InvalidPartitions,
        kafka.OffsetNotAvailable,
        kafka.OffsetOutOfRange,
        kafka.ThrottlingQuotaExceeded,
    ),
)
async def get_topic_records(visit: Visit) -> Reply | Stream:
    """The records of all partitions, by timestamp; a partition that cannot be read now has its problem in ``next``.

    With ``follow`` they are sent as they come, partition by partition, and it does not end.
    """
    topic = visit.host.image.topics[check_known(visit, visit[TOPIC])]
    gate = asyncio.Semaphore(SIDE_BY_SIDE_MAX)
    names = [TopicPartition(topic.name, each.partition) for each in topic.partitions]
    if visit[FOLLOW]:
        return await _follow(visit, topic.topic_id, names, gate)
    if not visit.accept.quality(JSON) and not max(map(visit.accept.quality, MSGPACK_TYPES)):
        raise unacceptable_type(visit.accept, (JSON, *MSGPACK_TYPES[:1]))
    found = _Found(len(names), visit[MAX_RECORDS])
    await asyncio.gather(*(_look(visit, name, gate, found) for name in names))
    records = found.cut()
    next_offsets = found.next_offsets()
    return Reply(_Records(topic=topic.name, records=records, next=next_offsets).out())


async def _follow(visit: Visit, topic_id: TopicId, names: list[TopicPartition], gate: asyncio.Semaphore) -> Stream:
    """What is wrong with the request gets a status: the starts are found before the answer begins."""
    if len(names) > PARTITION_COUNT_MAX:
        raise kafka.InvalidPartitions(
            f"follow reads {PARTITION_COUNT_MAX} partitions at the most, the topic has {len(names)}: "
            "follow them one by one, at .../partitions/N/stream"
        )
    wishes = {each: visit.accept.quality(each) for each in (json_text.NDJSON, json_text.EVENT_STREAM)}
    if not max(wishes.values()):
        raise unacceptable_type(visit.accept, wishes)
    as_events = wishes[json_text.EVENT_STREAM] > wishes[json_text.NDJSON]
    last = visit[LAST_EVENT_ID]
    positions = last.positions

    async def start_of(name: TopicPartition) -> Offset:
        if name.partition in positions:
            return positions[name.partition]
        async with gate:
            if positions:
                # It was added after the reader left.
                return await fetch.listed_offset(visit, name, EARLIEST)
            found = await _start_of(visit, name)
            return found if found >= 0 else await fetch.listed_offset(visit, name, LATEST)

    offsets = await asyncio.gather(*map(start_of, names))
    starts = dict(zip((name.partition for name in names), offsets, strict=True))
    begun = Marks(last.topic_id or topic_id, positions or starts)
    follower = _Follower(visit, names[0].topic, starts, begun, _event if as_events else _line)
    head, silence = (json_text.RETRY, json_text.HEARTBEAT) if as_events else (b"", b"\n")
    return Stream(
        chunks=follower.chunks(head, silence),
        media_type=json_text.EVENT_STREAM if as_events else json_text.NDJSON,
        farewell=json_text.FAREWELL if as_events else b'{"end": {"why": "the broker stops"}}\n',
    )


async def _start_of(visit: Visit, name: TopicPartition) -> Offset:
    """Where ``from`` begins in a partition; -1: nothing is that new."""
    start = visit[FROM]
    found = await fetch.listed_offset(visit, name, start.timestamp)
    if start.back and found >= 0:
        return max(await fetch.listed_offset(visit, name, EARLIEST), found - start.back)
    return found


async def _look(visit: Visit, name: TopicPartition, gate: asyncio.Semaphore, found: _Found) -> None:
    async with gate:
        try:
            offset = await _start_of(visit, name)
            if offset < 0:
                await found.add(name.partition, [], -1)
                return
            max_bytes = min(PARTITION_BYTES_MAX, found.bytes_max)
            request = fetch.fetch_of(visit, name, offset, max_bytes=max_bytes)
            answer, _ = await from_leader(visit, name, request)
            form = fetch.form_of(visit)
            wanted = fetch.Wanted(count_max=found.count_max, form=form, bytes_max=found.bytes_max)
            await found.add(name.partition, *await fetch.records_of(visit, answer, offset, wanted))
        except (Refused, kafka.ProtocolError) as raised:
            found.refuse(name.partition, Refused.of(raised))
