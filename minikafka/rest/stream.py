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
from collections.abc import AsyncGenerator, Iterator

from minikafka.errors import OffsetOutOfRange, ThrottlingQuotaExceeded
from minikafka.rest import sse
from minikafka.rest.fetch import FORMAT, ISOLATION_LEVEL, name_of
from minikafka.rest.parameters import FORWARD, INT64_MAX, PARTITION, TOPIC, Integer
from minikafka.rest.reader import Change, PartitionReader, listed_offset
from minikafka.rest.route import LEADER_PROBLEMS, Answer, Route
from minikafka.rest.schema import text
from minikafka.rest.visit import Stream, Visit
from minikafka.wire.messages import LATEST

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
        media_type=sse.EVENT_STREAM,
        farewell=sse.FAREWELL,
        headers={"X-Accel-Buffering": "no"},
    )


async def _chunks(reader: PartitionReader, first: list[Change]) -> AsyncGenerator[bytes, None]:
    """What each poll found, some events a chunk; a heartbeat when there is none."""
    yield sse.RETRY
    for chunk in _chunks_of(first):
        yield chunk
    async for changes in reader.events():
        for chunk in _chunks_of(changes):
            yield chunk
            await asyncio.sleep(0)  # a write that the system takes at once gives nobody a turn
        if not changes:
            yield sse.HEARTBEAT


def _chunks_of(changes: list[Change]) -> Iterator[bytes]:
    for start in range(0, len(changes), EVENTS_AT_ONCE):
        yield _written(changes[start : start + EVENTS_AT_ONCE])


def _written(changes: list[Change]) -> bytes:
    return b"".join(sse.event(each.kind, each.data, each.number) for each in changes)


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
                media_type=sse.EVENT_STREAM,
            )
        },
        problems=(*LEADER_PROBLEMS, OffsetOutOfRange, ThrottlingQuotaExceeded),
    ),
)
