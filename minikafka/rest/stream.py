"""A reader's place in a partition, from poll to poll, and ``GET .../partitions/{p}/stream``: its records as events.

Events, each a kind and its data:

- ``record``: one committed record. Its ``id`` is the offset: a browser that reconnects sends ``Last-Event-ID``, and the
  stream continues behind it.
- ``hw``: the high watermark, when it moved. ``leader``: the leader, when it changed.
- ``truncated``: an unclean election cut the log; reading continues where the log now ends.
- ``problem``: nothing can be read at present; the reader retries while that can help. ``end``: the broker stops.

A comment comes every ``heartbeat_ms`` without news, so that proxies and readers know that the connection works. For a
slow reader the records of one poll are held: the next poll waits until it has taken them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NamedTuple

from minikafka.config import KIB
from minikafka.errors import OffsetOutOfRange, ProtocolError, ThrottlingQuotaExceeded
from minikafka.rest import json_text
from minikafka.rest.fetch import (
    FORMAT,
    ISOLATION,
    ISOLATION_LEVEL,
    decompressed_max,
    fetch_of,
    name_of,
    only_partition,
    read_out,
)
from minikafka.rest.host import FETCH_RECORD_COUNT_MAX
from minikafka.rest.leaders import from_leader, leader_members
from minikafka.rest.parameters import FORWARD, INT64_MAX, PARTITION, TOPIC, Integer
from minikafka.rest.route import LEADER_PROBLEMS, Route, text_answer
from minikafka.rest.visit import Stream, Visit
from minikafka.types import NO_EPOCH, Epoch, Offset, TopicPartition
from minikafka.web.problems import Refused, problem_of
from minikafka.wire.markers import filter_of
from minikafka.wire.messages import (
    LATEST,
    CurrentLeader,
    EpochAnswer,
    EpochQuery,
    FetchedPartition,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

# Bytes of one poll: what is held for a reader, as text some times as large.
POLL_BYTES = 256 * KIB

# Between tries while nobody can be asked.
PAUSE_S = 1.0


class Change(NamedTuple):
    """One event; ``number`` is a record's offset (of several that cannot be read: the last one's)."""

    kind: str
    data: dict[str, Any]
    number: Offset | None = None


async def listed_offset(visit: Visit, name: TopicPartition, timestamp: int) -> Offset:
    """ListOffsets at the leader: EARLIEST, LATEST or a time; -1: no record is that new. Refused, ProtocolError."""

    def pick(response: ListOffsetsResponse) -> ListedOffset:
        return response.partitions[0]

    wanted = ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=timestamp)
    request = ListOffsetsRequest(isolation_level=ISOLATION[visit[ISOLATION_LEVEL]], partitions=(wanted,))
    found, _ = await from_leader(visit, name, request, pick=pick, wait_s=PAUSE_S)
    return found.offset


class PartitionReader:
    """Reads from ``next_offset`` on. ``wait_ms``: the longest that a poll waits for news."""

    def __init__(self, visit: Visit, name: TopicPartition, next_offset: Offset, *, wait_ms: int, form: str) -> None:
        self.visit = visit
        self.name = name
        self.next_offset = next_offset
        self._wait_ms = wait_ms
        self._form = form
        self._read_epoch: Epoch = NO_EPOCH
        """The leader epoch of the last batch that was read."""
        self._leader: CurrentLeader | None = None
        self._high_watermark: Offset = -1

    async def at_once(self) -> list[Change]:
        """What there is now; raises Refused or ProtocolError when it cannot be read."""
        answer, leader = await self._fetch(wait_ms=0)
        return await self._changes(answer, leader)

    async def events(self) -> AsyncGenerator[list[Change], None]:
        """The events of each poll; empty when there was no news. Ends with a problem that no repetition helps."""
        last_problem = ""
        while True:
            try:
                answer, leader = await self._fetch(wait_ms=self._wait_ms)
                if self._leader != leader and self._read_epoch != NO_EPOCH:
                    cut = await self._cut()
                    if cut is not None:
                        yield [self._truncated(cut)]
                        continue
                changes = await self._changes(answer, leader)
            except (Refused, ProtocolError) as raised:
                refused = raised if isinstance(raised, Refused) else Refused(raised)
                cut = self._end_of_shorter_log(refused)
                if cut is not None:
                    yield [self._truncated(cut)]
                    continue
                problem = problem_of(refused.error, status=refused.status, **refused.members)
                yield [Change("problem", problem)] if problem["detail"] != last_problem else []
                last_problem = problem["detail"]
                if not problem["retriable"]:
                    return
                await asyncio.sleep(PAUSE_S)
                continue
            last_problem = ""
            yield changes

    async def _fetch(self, *, wait_ms: int) -> tuple[FetchedPartition, CurrentLeader]:
        # They would grow for as long as the stream lives; its headers are out.
        self.visit.served_by.clear()
        self.visit.leaders.clear()
        request = fetch_of(self.visit, self.name, self.next_offset, max_bytes=POLL_BYTES, max_wait_ms=wait_ms)
        return await from_leader(self.visit, self.name, request, pick=only_partition, wait_s=wait_ms / 1000)

    async def _changes(self, answer: FetchedPartition, leader: CurrentLeader) -> list[Change]:
        """The events of one poll."""
        events: list[Change] = []
        if leader != self._leader:
            self._leader = leader
            events.append(Change("leader", leader_members(self.visit.host, leader)))
        records, self.next_offset = await read_out(
            answer.records,
            self.next_offset,
            aborted=filter_of(answer.aborted_transactions),
            count_max=FETCH_RECORD_COUNT_MAX,
            form=self._form,
            limit=decompressed_max(self.visit.host, self.name.topic),
        )
        for record in records:
            events.append(Change("record", record, record.get("last_offset", record["offset"])))
            self._read_epoch = record["leader_epoch"]
        if answer.high_watermark != self._high_watermark:
            self._high_watermark = answer.high_watermark
            events.append(
                Change("hw", {"high_watermark": answer.high_watermark, "log_end_offset": answer.log_end_offset})
            )
        return events

    async def _cut(self) -> Offset | None:
        """Where the new leader's log leaves what was read; None: it holds all of it (KIP-320)."""
        query = EpochQuery(topic=self.name.topic, partition=self.name.partition, leader_epoch=self._read_epoch)

        def pick(response: OffsetForLeaderEpochResponse) -> EpochAnswer:
            return response.partitions[0]

        request = OffsetForLeaderEpochRequest(partitions=(query,))
        found, _ = await from_leader(self.visit, self.name, request, pick=pick, wait_s=PAUSE_S)
        return found.end_offset if 0 <= found.end_offset < self.next_offset else None

    def _end_of_shorter_log(self, refused: Refused) -> Offset | None:
        """The log ends before what was read: it was cut. None: that is not what went wrong."""
        end = refused.members.get("log_end_offset", refused.members.get("high_watermark", -1))
        if isinstance(refused.error, OffsetOutOfRange) and 0 <= end < self.next_offset:
            return int(end)
        return None

    def _truncated(self, cut: Offset) -> Change:
        document = {
            "from": cut,
            "to": self.next_offset,
            "leader_epoch": self._read_epoch,
            "why": "the leader's log does not hold what was read from here on: it was lost in an unclean election",
        }
        self.next_offset, self._read_epoch, self._high_watermark = cut, NO_EPOCH, -1
        return Change("truncated", document)


START = Integer(
    name="offset",
    description="Where to begin; left out: at the next record that is committed, or behind `Last-Event-ID`.",
    high=INT64_MAX,
)
LAST_EVENT_ID = Integer(
    name="Last-Event-ID",
    place="header",
    description="The offset of the last record that was read; it wins over `offset`.",
    high=INT64_MAX - 1,
)
# Events that are written before other requests have their turn: some milliseconds.
EVENTS_AT_ONCE = 500

HEARTBEAT_MS = Integer(
    name="heartbeat_ms", description="A comment after so long without news.", default=15_000, low=100, high=30_000
)


async def get_stream(visit: Visit) -> Stream:
    """Committed records as they come; see ``/docs`` for the kinds of events."""
    name = name_of(visit)
    start = visit[LAST_EVENT_ID] + 1 if visit.gives(LAST_EVENT_ID) else visit[START]
    if start < 0:
        start = await listed_offset(visit, name, LATEST)
    reader = PartitionReader(visit, name, start, wait_ms=visit[HEARTBEAT_MS], form=visit[FORMAT])
    # The first look is taken before the answer begins: what is wrong with the request gets a status.
    first = await reader.at_once()
    return Stream(
        chunks=_chunks(reader, first),
        media_type=json_text.EVENT_STREAM,
        farewell=json_text.FAREWELL,
        headers={"X-Accel-Buffering": "no"},
    )


async def _chunks(reader: PartitionReader, first: list[Change]) -> AsyncGenerator[bytes, None]:
    """What each poll found, some events a chunk; a heartbeat when there is none."""
    yield json_text.RETRY
    for chunk in _chunks_of(first):
        yield chunk
    async for changes in reader.events():
        for chunk in _chunks_of(changes):
            yield chunk
            await asyncio.sleep(0)  # a write that the system takes at once gives nobody a turn
        if not changes:
            yield json_text.HEARTBEAT


def _chunks_of(changes: list[Change]) -> Iterator[bytes]:
    for start in range(0, len(changes), EVENTS_AT_ONCE):
        yield _written(changes[start : start + EVENTS_AT_ONCE])


def _written(changes: list[Change]) -> bytes:
    return b"".join(json_text.event(each.kind, each.data, each.number) for each in changes)


EXAMPLE = (
    'retry: 1000\n\nevent: leader\ndata: {"id": 1, "epoch": 3, "url": "http://127.0.0.1:9092"}\n\n'
    'id: 41\nevent: record\ndata: {"offset": 41, "timestamp": 1795000000000, "leader_epoch": 3, "key": "ann", '
    '"value": {"item": "tea"}, "encoding": "json", "headers": []}\n\n'
    'event: hw\ndata: {"high_watermark": 42, "log_end_offset": 42}\n\n: heartbeat\n\n'
)
ROUTES = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/stream",
        handler=get_stream,
        tag="records",
        parameters=(TOPIC, PARTITION, START, LAST_EVENT_ID, HEARTBEAT_MS, ISOLATION_LEVEL, FORMAT, FORWARD),
        answers={
            200: text_answer(
                "Events until the reader leaves: `record`, `hw`, `leader`, `truncated`, `problem`, `end`.",
                json_text.EVENT_STREAM,
                EXAMPLE,
                "Server-Sent Events.",
            )
        },
        problems=(*LEADER_PROBLEMS, OffsetOutOfRange, ThrottlingQuotaExceeded),
    ),
)
