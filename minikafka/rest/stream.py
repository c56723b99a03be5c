"""``GET /v1/topics/{t}/partitions/{p}/stream``: committed records as Server-Sent Events.

- ``record`` events carry their offset as ``id``: a browser that reconnects says ``Last-Event-ID`` and goes on behind
  it.
- ``hw`` tells the high watermark when it moved, ``leader`` who leads when that changed, ``truncated`` that what was
  read is gone (an unclean election: the log was cut, and the stream goes on from where it now ends), ``problem`` that
  nothing can be read at present (it tries again while that can help), ``end`` that the broker stops.
- A comment comes every ``heartbeat_ms`` without news, so that proxies and readers know that the line is up.
- One poll's records are held for a slow reader, no more: the next poll waits until it has taken them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from minikafka.config import KIB
from minikafka.errors import OffsetOutOfRange, ProtocolError, ThrottlingQuotaExceeded
from minikafka.rest import json_text
from minikafka.rest.fetch import FORMAT, ISOLATION, ISOLATION_LEVEL, name_of, only_partition, read_out
from minikafka.rest.host import FETCH_RECORD_COUNT_MAX
from minikafka.rest.leaders import from_leader, leader_members
from minikafka.rest.parameters import FORWARD, INT64_MAX, PARTITION, TOPIC, Integer
from minikafka.rest.problems import Refused, problem_of
from minikafka.rest.route import LEADER_PROBLEMS, Answer, Route
from minikafka.rest.schema import text
from minikafka.rest.visit import Stream, Visit
from minikafka.types import NO_EPOCH, Epoch, Offset, TopicPartition
from minikafka.wire.messages import (
    LATEST,
    CurrentLeader,
    EpochAnswer,
    EpochQuery,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

EVENT_STREAM = "text/event-stream"

# Bytes of one poll: what is held for a reader, as text some times as large.
POLL_BYTES = 256 * KIB

# Between tries while nobody can be asked.
PAUSE_S = 1.0

START = Integer(
    name="offset",
    description="Where to begin; left out: at the next record that is committed, or behind `Last-Event-ID`.",
    default=-1,
    low=0,
    high=INT64_MAX,
)
LAST_EVENT_ID = Integer(
    name="Last-Event-ID",
    place="header",
    description="The offset of the last record that was read; it wins over `offset`.",
    default=-1,
    low=0,
    high=INT64_MAX - 1,
)
HEARTBEAT_MS = Integer(
    name="heartbeat_ms", description="A comment after so long without news.", default=15_000, low=100, high=30_000
)
HEARTBEAT = b": heartbeat\n\n"
FAREWELL = b'event: end\ndata: {"why": "the broker stops"}\n\n'


async def get_stream(visit: Visit) -> Stream:
    """Committed records as they come; see ``/docs`` for the kinds of events."""
    reader = _Reader(visit)
    # The first look is taken before the answer begins: what is wrong with the request gets a status.
    first = await reader.first()
    return Stream(
        chunks=reader.chunks(first), media_type=EVENT_STREAM, farewell=FAREWELL, headers={"X-Accel-Buffering": "no"}
    )


class _Reader:
    """One reader's place in the partition."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.name: TopicPartition = name_of(visit)
        self.next_offset: Offset = visit[START]
        if visit.gives(LAST_EVENT_ID):
            self.next_offset = visit[LAST_EVENT_ID] + 1
        self.read_epoch: Epoch = NO_EPOCH
        """The leader epoch of the last batch that was read."""
        self.leader: CurrentLeader | None = None
        self.high_watermark: Offset = -1

    async def first(self) -> bytes:
        """What there is at once; raises Refused or ProtocolError."""
        if self.next_offset < 0:
            self.next_offset = await self._latest()
        answer, leader = await self._fetch(self.next_offset, wait_ms=0)
        return b"retry: 1000\n\n" + self._told(answer, leader)

    async def chunks(self, first: bytes) -> AsyncGenerator[bytes, None]:
        """One chunk a poll."""
        yield first
        told_problem = ""
        while True:
            try:
                answer, leader = await self._fetch(self.next_offset, wait_ms=self.visit[HEARTBEAT_MS])
                if self.leader != leader and self.read_epoch != NO_EPOCH:
                    cut = await self._cut()
                    if cut is not None:
                        yield self._truncated(cut)
                        continue
                told = self._told(answer, leader)
            except (Refused, ProtocolError) as raised:
                refused = raised if isinstance(raised, Refused) else Refused(raised)
                cut = self._end_of_shorter_log(refused)
                if cut is not None:
                    yield self._truncated(cut)
                    continue
                problem = problem_of(refused.error, status=refused.status, **refused.members)
                yield _event("problem", problem) if problem["detail"] != told_problem else HEARTBEAT
                told_problem = problem["detail"]
                if not refused.error.retriable:
                    return
                await asyncio.sleep(PAUSE_S)
                continue
            told_problem = ""
            yield told or HEARTBEAT

    async def _latest(self) -> Offset:
        def pick(response: ListOffsetsResponse) -> ListedOffset:
            return response.partitions[0]

        wanted = ListOffsetsPartition(topic=self.name.topic, partition=self.name.partition, timestamp=LATEST)
        request = ListOffsetsRequest(partitions=(wanted,))
        found, _ = await from_leader(self.visit, self.name, request, pick=pick, wait_s=PAUSE_S)
        return found.offset

    async def _fetch(self, offset: Offset, *, wait_ms: int) -> tuple[FetchedPartition, CurrentLeader]:
        # They would grow for as long as the stream lives; its headers are out.
        self.visit.served_by.clear()
        self.visit.leaders.clear()
        request = FetchRequest(
            max_wait_ms=wait_ms,
            max_bytes=POLL_BYTES,
            isolation_level=ISOLATION[self.visit[ISOLATION_LEVEL]],
            partitions=(
                FetchPartition(
                    topic=self.name.topic,
                    partition=self.name.partition,
                    fetch_offset=offset,
                    partition_max_bytes=POLL_BYTES,
                ),
            ),
        )
        return await from_leader(self.visit, self.name, request, pick=only_partition, wait_s=wait_ms / 1000)

    def _told(self, answer: FetchedPartition, leader: CurrentLeader) -> bytes:
        """The events of one poll; empty when there was no news."""
        events: list[bytes] = []
        if leader != self.leader:
            self.leader = leader
            events.append(_event("leader", leader_members(self.visit.host, leader)))
        records, self.next_offset = read_out(
            answer.records, self.next_offset, count_max=FETCH_RECORD_COUNT_MAX, form=self.visit[FORMAT]
        )
        for record in records:
            events.append(_event("record", record, record.get("last_offset", record["offset"])))
            self.read_epoch = record["leader_epoch"]
        if answer.high_watermark != self.high_watermark:
            self.high_watermark = answer.high_watermark
            events.append(
                _event("hw", {"high_watermark": answer.high_watermark, "log_end_offset": answer.log_end_offset})
            )
        return b"".join(events)

    async def _cut(self) -> Offset | None:
        """Where the new leader's log leaves what was read; None: it holds all of it (KIP-320)."""
        query = EpochQuery(topic=self.name.topic, partition=self.name.partition, leader_epoch=self.read_epoch)

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

    def _truncated(self, cut: Offset) -> bytes:
        told = {
            "from": cut,
            "to": self.next_offset,
            "leader_epoch": self.read_epoch,
            "why": "the leader's log does not hold what was read from here on: it was lost in an unclean election",
        }
        self.next_offset, self.read_epoch, self.high_watermark = cut, NO_EPOCH, -1
        return _event("truncated", told)


def _event(kind: str, data: dict[str, Any], number: Offset | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    # JSON in one line holds no line break of its own.
    return head + b"event: " + kind.encode() + b"\ndata: " + json_text.text_of(data) + b"\n"


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
            200: Answer(
                description="Events until the reader leaves: `record`, `hw`, `leader`, `truncated`, `problem`, `end`.",
                schema=text("Server-Sent Events."),
                example=EXAMPLE,
                media_type=EVENT_STREAM,
            )
        },
        problems=(*LEADER_PROBLEMS, OffsetOutOfRange, ThrottlingQuotaExceeded),
    ),
)
