"""For tests: ``/v1/wait`` answers when the cluster is in a state, and ``/v1/events`` has this broker's latest events.

- ``/v1/wait`` takes the place of sleeping (``world/states.py``). The metadata is that of the broker that is asked.
- ``/v1/events`` has the events as a list, as a journal that ``minikafka sim show`` opens, or as they happen. Brokers of
  one process (``LocalCluster``) share one list; a broker in a process of its own has only its own events.

Only there with ``mk.testing.endpoints.enable=true``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

from minikafka.errors import RequestTimedOut
from minikafka.rest import json_text
from minikafka.rest.model import LEFT_OUT, Model, many_of, member
from minikafka.rest.parameters import INT32_MAX, INT64_MAX, Flag, Integer, Parsed, Text, Wrong, kinds_parameter
from minikafka.rest.route import Json, Page, Routes, Stream, Visit, text_answer
from minikafka.rest.schema import PartitionNumber, TopicName, many, one_of, ref, table
from minikafka.rest.testing_faults import TIMEOUT_MS
from minikafka.rest.testing_hooks import instruments_of
from minikafka.types import Epoch, NodeId, Offset
from minikafka.web.problems import malformed
from minikafka.wire.limits import shown
from minikafka.world.events import EventRing, Wanted
from minikafka.world.states import ANY, SomeNode, Wish, until

ROUTES = Routes("testing", testing=True)
EVENTS_MAX = 10_000
EVENTS_DEFAULT = 1_000

# What one write to a stream's reader carries.
EVENTS_PER_CHUNK = 200

# A silent stream says every so often that it is alive: proxies cut what is silent for longer.
HEARTBEAT_S = 15.0


FROM = Integer("from", "The first event's number (`seq`).", default=0, high=INT64_MAX, example=1)
LIMIT = Integer("limit", "So many at the most.", default=EVENTS_DEFAULT, low=1, high=EVENTS_MAX)
KIND = kinds_parameter("Only of these kinds.")
PARTITION = Text("partition", "Only of this partition.", example="orders-0")
NODE = Text("node", "Only events of this broker.", pattern="[0-9]{1,10}", needed="a node id")
LAST_EVENT_ID = Integer(
    "Last-Event-ID",
    "As an EventSource sends it: go on behind this event. Wins over `from`.",
    place="header",
    high=INT64_MAX,
)


def _wanted(visit: Visit) -> Wanted:
    return Wanted(visit[KIND], visit[PARTITION], visit[NODE])


class _Event(Model, is_open=True):
    """One event; its facts are members beside these."""

    seq: int = member("Its number.", 139)
    ts_ms: int = member("Milliseconds since 1970.", 1_795_270_217_937)
    level: str = member("As in the log.", "warning")
    node: str = member("The broker that it comes from.", "1")
    event: str = member("What happened.", "isr_shrunk")
    cause: str | None = member("The request or timer that it happened for.", default=None)


class _Events(Model):
    """A window of the events."""

    start: int = member("The oldest that is kept.", 1)
    next: int = member("Where to go on.", 140)
    events: list[Any] = many_of(
        _Event, example=[_Event.example(partition="orders-0", epoch=0, old=[1, 2, 3], new=[1, 3])]
    )


@ROUTES.at("GET /v1/events", _Events.answer("A window of the events."), parameters=(FROM, LIMIT, KIND, PARTITION, NODE))
async def get_events(visit: Visit) -> Json:
    """A window of the events, oldest first. ``next`` is where to go on; what is older than ``start`` is gone."""
    ring = instruments_of(visit).ring
    end, limit = ring.end, visit[LIMIT]
    rows = list(ring.rows(visit[FROM], wanted=_wanted(visit), limit=limit))
    next_seq = rows[-1].seq + 1 if len(rows) == limit else end
    return _Events(start=ring.start, next=next_seq, events=[row.line() for row in rows]).out()


@ROUTES.at(
    "GET /v1/events/journal",
    text_answer("Lines of JSON, one event each.", json_text.NDJSON, '{"event":"isr_shrunk","node":"1"}\n'),
    parameters=(FROM, KIND, PARTITION, NODE),
)
async def get_journal(visit: Visit) -> Page:
    """The same events as lines of JSON: a file that ``minikafka sim show`` opens."""
    ring = instruments_of(visit).ring
    rows = ring.rows(visit[FROM], wanted=_wanted(visit))
    return Page(b"".join(json_text.text_of(row.line()) for row in rows), json_text.NDJSON)


@ROUTES.at(
    "GET /v1/events/stream",
    text_answer(
        "Server-sent events.",
        json_text.EVENT_STREAM,
        'id: 7\nevent: isr_shrunk\ndata: {"event": "isr_shrunk", "node": "1"}\n\n',
    ),
    parameters=(FROM, KIND, PARTITION, NODE, LAST_EVENT_ID),
)
async def get_stream(visit: Visit) -> Stream:
    """Events as they happen, after those that are kept; ``id`` is the event's number, so that readers can go on."""
    start = visit[LAST_EVENT_ID] + 1 if visit.gives(LAST_EVENT_ID) else visit[FROM]
    return Stream(_follow(instruments_of(visit).ring, start, _wanted(visit)), json_text.EVENT_STREAM)


async def _follow(ring: EventRing, start: int, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """A reader that is too slow for the ring learns how many events it missed."""
    loop = asyncio.get_running_loop()
    reported_at = loop.time()
    while True:
        if 0 < start < ring.start:
            yield json_text.event("missed", {"count": ring.start - start}, start)
        end = ring.end
        rows = list(ring.rows(start, wanted=wanted, limit=EVENTS_PER_CHUNK))
        start = rows[-1].seq + 1 if len(rows) == EVENTS_PER_CHUNK else end
        if rows:
            yield b"".join(json_text.event(row.kind, row.line(), row.seq) for row in rows)
        elif loop.time() >= reported_at + HEARTBEAT_S:
            yield json_text.HEARTBEAT
        else:
            await ring.until_news(end, reported_at + HEARTBEAT_S - loop.time())
            continue
        reported_at = loop.time()


_NODE = "[0-9]{1,10}"


def _some_node(name: str, description: str) -> Parsed[SomeNode | None]:
    def read(given: str) -> SomeNode:
        if given == ANY:
            return ANY
        if not re.fullmatch(_NODE, given) or int(given) > INT32_MAX:
            raise Wrong(f"{shown(given)}: a node id is needed, or {ANY}")
        return int(given)

    described = {"type": "string", "pattern": f"^(?:{ANY}|{_NODE})$"}
    return Parsed(name, description, default=None, reader=read, described=described)


def _nodes(
    name: str, description: str, default: frozenset[NodeId] | None, example: str | None = None
) -> Parsed[frozenset[NodeId] | None]:
    pattern = f"{_NODE}(,{_NODE})*"

    def read(given: str) -> frozenset[NodeId]:
        if not re.fullmatch(pattern, given):
            raise Wrong(f"{shown(given)}: node ids with commas are needed")
        return frozenset(map(int, given.split(",")))

    described = {"type": "string", "pattern": f"^{pattern}$"}
    return Parsed(name, description, default=default, reader=read, described=described, example=example)


TOPIC = Text("topic", "The topic.", length_max=249, example="orders")
PARTITION_AWAITED = Integer("partition", "The partition.", default=0, high=INT32_MAX)
EXISTS: Parsed[bool | None] = Parsed(
    "exists", "Is the topic there?", default=None, reader=Flag("", "").read, described={"type": "boolean"}
)
LEADER = _some_node("leader", "This broker leads the partition (`any`: some broker does), and has begun to.")
LEADER_NOT = Integer("leader_not", "A broker leads the partition that is not this one.", high=INT32_MAX)
LEADER_EPOCH = Integer("leader_epoch_at_least", "The leader epoch has come so far.", high=INT32_MAX)
ISR = _nodes("isr", "The ISR has exactly these members.", None, "1,2")
ISR_SIZE = Integer("isr_size", "The ISR has so many members.", high=INT32_MAX)
REPLICA = Integer("replica", "Whose high watermark and log end are meant; else the leader's.", high=INT32_MAX)
HW = Integer("hw_at_least", "The high watermark has come so far.", high=INT64_MAX)
LEO = Integer("leo_at_least", "The log end offset has come so far.", high=INT64_MAX)
ALIVE = _nodes("alive", "These brokers are registered and not fenced.", frozenset(), "1,2,3")
FENCED = _nodes("fenced", "These brokers are fenced.", frozenset())
CONTROLLER = _some_node("controller", "This broker is the active controller (`any`: some broker is).")
CONTROLLER_NOT = Integer("controller_not", "The active controller is known and is not this broker.", high=INT32_MAX)
OF_PARTITION = (LEADER, LEADER_NOT, LEADER_EPOCH, ISR, ISR_SIZE, HW, LEO)
OF_TOPIC = (EXISTS, *OF_PARTITION)
OF_CLUSTER = (ALIVE, FENCED, CONTROLLER, CONTROLLER_NOT)
AWAITED = (TOPIC, PARTITION_AWAITED, *OF_TOPIC, REPLICA, *OF_CLUSTER)
"""By the names of the members of Wish; -1: not awaited."""


class _Seen(Model):
    """What was seen, as far as it was asked for."""

    topic: TopicName = member(example="orders", default=None)
    exists: bool = member(example=True, default=None)
    partition: PartitionNumber = member(example=0, default=None)
    leader: NodeId = member(example=1, default=None)
    leader_epoch: Epoch = member(example=0, default=None)
    isr: list[NodeId] = member(many(ref("NodeId")), [1, 2], default=None)
    leader_says: str = member("The leader itself, where it says something else than the metadata.", default=None)
    replica: NodeId = member(default=None)
    hw: Offset | None = member("The replica's high watermark.", default=LEFT_OUT)
    leo: Offset | None = member("Its log end offset.", default=LEFT_OUT)
    controller: NodeId = member(default=None)
    brokers: dict[str, str] = member(
        table(one_of("", "alive", "fenced"), "By node id."), {"1": "alive", "2": "alive", "3": "alive"}
    )
    waited_ms: int = member("How long it took.", 812)


@ROUTES.at(
    "GET /v1/wait",
    _Seen.answer("It is so."),
    parameters=(*AWAITED, TIMEOUT_MS),
    query="topic=orders&leader=any",
    problems=(RequestTimedOut,),
)
async def get_wait(visit: Visit) -> Json:
    """Answer when everything is as asked for; 504 tells what is not, and what was seen last."""
    if not any(visit.gives(each) for each in (*OF_TOPIC, *OF_CLUSTER)):
        names = ", ".join(each.name for each in (*OF_TOPIC, *OF_CLUSTER))
        raise malformed(f"nothing to wait for: say at least one of {names}")
    if any(visit.gives(each) for each in OF_TOPIC) and not visit[TOPIC]:
        raise malformed("which topic?", [{"parameter": "topic", "detail": "is missing"}])
    asked = {each.name: visit.values[each.name] for each in AWAITED}
    wished: dict[str, Any] = {name: None if value == -1 else value for name, value in asked.items()}
    wish = Wish(**wished)
    clock = visit.host.world.clock
    began = clock.now()
    state = await until(wish, instruments_of(visit), timeout_s=visit[TIMEOUT_MS] / 1000)
    return {**state.as_json(), "waited_ms": int((clock.now() - began) * 1000)}
