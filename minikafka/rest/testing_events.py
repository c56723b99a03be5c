"""``/v1/events``, for tests: this broker's latest events, as a list, as a journal, or as it happens.

Brokers of one process (``LocalCluster``) share one list; a broker in a process of its own tells of itself. The journal
is what ``minikafka sim show`` opens. Only there with ``mk.testing.endpoints.enable=true``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from typing import Any

from minikafka.rest import json_text
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import INT64_MAX, Integer, Parsed, Text, Wrong
from minikafka.rest.route import Route, text_answer
from minikafka.rest.schema import text, whole
from minikafka.rest.testing_hooks import instruments_of
from minikafka.rest.visit import Page, Reply, Stream, Visit
from minikafka.wire.limits import shown
from minikafka.world.event_ring import EventRing, Wanted

EVENTS_MAX = 10_000
EVENTS_DEFAULT = 1_000

# What one write to a stream's reader carries.
EVENTS_PER_CHUNK = 200

# A silent stream says every so often that it is alive: proxies cut what is silent for longer.
HEARTBEAT_S = 15.0
HEARTBEAT = b": still here\n\n"

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"


def _kinds(given: str) -> tuple[str, ...]:
    kinds = tuple(each.strip() for each in given.split(","))
    if not all(kind.isidentifier() for kind in kinds):
        raise Wrong(f"{shown(given)}: kinds of events with commas are needed, as in isr_shrunk,leader_elected")
    return kinds


FROM = Integer(name="from", description="The first event's number (`seq`).", default=0, high=INT64_MAX, example=1)
LIMIT = Integer(name="limit", description="So many at the most.", default=EVENTS_DEFAULT, low=1, high=EVENTS_MAX)
KIND: Parsed[Collection[str]] = Parsed(
    name="kind",
    description="Only of these kinds.",
    default=(),
    reader=_kinds,
    described={"type": "string", "pattern": "^[A-Za-z_]+(,[A-Za-z_]+)*$"},
    example="isr_shrunk,leader_elected",
)
PARTITION = Text(name="partition", description="Only of this partition.", example="orders-0")
NODE = Text(name="node", description="Only events of this broker.", pattern="[0-9]{1,10}", needed="a node id")
LAST_EVENT_ID = Integer(
    name="Last-Event-ID",
    place="header",
    description="As an EventSource sends it: go on behind this event. Wins over `from`.",
    high=INT64_MAX,
)


def _wanted(visit: Visit) -> Wanted:
    return Wanted(visit[KIND], visit[PARTITION], visit[NODE])


class _Event(Model, is_open=True):
    """One event; its facts are members beside these."""

    seq: int = member(whole("Its number."), 139)
    ts_ms: int = member(whole("Milliseconds since 1970."), 1_795_270_217_937)
    level: str = member(text("As in the log."), "warning")
    node: str = member(text("The broker that it comes from."), "1")
    event: str = member(text("What happened."), "isr_shrunk")
    cause: str | None = member(text("The request or timer that it happened for."), default=None)


class _Events(Model):
    """A window of the events."""

    start: int = member(whole("The oldest that is kept."), 1)
    next: int = member(whole("Where to go on."), 140)
    events: list[Any] = many_of(
        _Event, example=[_Event.example(partition="orders-0", epoch=0, old=[1, 2, 3], new=[1, 3])]
    )


async def get_events(visit: Visit) -> Reply:
    """A window of the events, oldest first. ``next`` is where to go on; what is older than ``start`` is gone."""
    ring = instruments_of(visit).ring
    end, limit = ring.end, visit[LIMIT]
    rows = list(ring.rows(visit[FROM], wanted=_wanted(visit), limit=limit))
    next_seq = rows[-1].seq + 1 if len(rows) == limit else end
    return Reply(_Events(start=ring.start, next=next_seq, events=[row.line() for row in rows]).out())


async def get_journal(visit: Visit) -> Page:
    """The same events as lines of JSON: a file that ``minikafka sim show`` opens."""
    ring = instruments_of(visit).ring
    rows = ring.rows(visit[FROM], wanted=_wanted(visit))
    return Page(b"".join(json_text.text_of(row.line()) for row in rows), NDJSON)


async def get_stream(visit: Visit) -> Stream:
    """Events as they happen, after those that are kept; ``id`` is the event's number, so that readers can go on."""
    start = visit[LAST_EVENT_ID] + 1 if visit.gives(LAST_EVENT_ID) else visit[FROM]
    return Stream(_follow(instruments_of(visit).ring, start, _wanted(visit)), SSE)


async def _follow(ring: EventRing, start: int, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """A reader that is too slow for the ring learns how many events it missed."""
    loop = asyncio.get_running_loop()
    told_at = loop.time()
    while True:
        if 0 < start < ring.start:
            yield _sse("missed", start, {"count": ring.start - start})
        end = ring.end
        rows = list(ring.rows(start, wanted=wanted, limit=EVENTS_PER_CHUNK))
        start = rows[-1].seq + 1 if len(rows) == EVENTS_PER_CHUNK else end
        if rows:
            yield b"".join(_sse(row.kind, row.seq, row.line()) for row in rows)
        elif loop.time() >= told_at + HEARTBEAT_S:
            yield HEARTBEAT
        else:
            await ring.until_news(end, told_at + HEARTBEAT_S - loop.time())
            continue
        told_at = loop.time()


def _sse(kind: str, seq: int, line: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, kind.encode(), json_text.compact(line))


ROUTES = (
    Route(
        method="GET",
        path="/v1/events",
        handler=get_events,
        tag="testing",
        testing=True,
        parameters=(FROM, LIMIT, KIND, PARTITION, NODE),
        answers={200: _Events.answer("A window of the events.")},
    ),
    Route(
        method="GET",
        path="/v1/events/journal",
        handler=get_journal,
        tag="testing",
        testing=True,
        parameters=(FROM, KIND, PARTITION, NODE),
        answers={200: text_answer("Lines of JSON, one event each.", NDJSON, '{"event":"isr_shrunk","node":"1"}\n')},
    ),
    Route(
        method="GET",
        path="/v1/events/stream",
        handler=get_stream,
        tag="testing",
        testing=True,
        parameters=(FROM, KIND, PARTITION, NODE, LAST_EVENT_ID),
        answers={
            200: text_answer(
                "Server-sent events.", SSE, 'id: 7\nevent: isr_shrunk\ndata: {"event":"isr_shrunk","node":"1"}\n\n'
            )
        },
    ),
)
