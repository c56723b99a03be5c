"""``/v1/history``: earlier states of the cluster or of one partition, and what happened, from the brokers' histories.

- A state and its changes have the form of the live stream and are made by the same functions, so that for a time at
  which was watched, the history has what the live stream showed.
- Values of replicas come from the histories of all brokers that answer, and from what this broker's live streams
  received, which also has the values of brokers that have died since. The metadata is this broker's own.
- Times are milliseconds since 1970 of the broker that answers. Times of other brokers are corrected by the difference
  of the clocks if that is larger than the duration of the request.
- Limits: HISTORY_ROWS_MAX rows of each broker, and ``limit`` changes and ``limit`` steps in a response; ``next`` is
  where to continue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from msgspec import structs

from minikafka.broker.api.describe import HISTORY_ROWS_MAX, whole_milliseconds
from minikafka.broker.history import ImageChange
from minikafka.config import BrokerConfig
from minikafka.errors import BrokerNotAvailable, InvalidRequest, ProtocolError, UnknownTopicOrPartition
from minikafka.events import what_of, why_of
from minikafka.quorum.image import BrokerImage, MetadataImage, TopicImage
from minikafka.rest import json_text
from minikafka.rest.host import Host
from minikafka.rest.leaders import answer_of, partition_of
from minikafka.rest.live import CLUSTER, PERIOD_S, SCOPE, cluster_state, partition_state, seen_partition
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import INT64_MAX, Flag, Integer, Text, kinds_parameter
from minikafka.rest.permissions import may, may_describe
from minikafka.rest.route import Json, Page, Routes, Visit, text_answer
from minikafka.rest.schema import many, nullable
from minikafka.rest.views import PATIENCE_S, Event, Views, event_of, live_brokers, without_repeats
from minikafka.security.permissions import Permit
from minikafka.types import NO_NODE, Address, NodeId, Offset, TopicPartition
from minikafka.ui.journal import Entry, Journal
from minikafka.ui.page import NothingToShow, page_of, replay_of
from minikafka.ui.sentences import tone_of
from minikafka.wire import messages as m
from minikafka.wire.acls import CLUSTER_NAME, AclOperation, ResourceType
from minikafka.wire.differences import difference

ROUTES = Routes("cluster")
WINDOW_MS = 60_000
"""What a request gets that names no start."""
LIMIT_DEFAULT, LIMIT_MAX = 500, 5_000
STEP_MS_DEFAULT, STEP_MS_MAX = int(PERIOD_S * 1000), 60_000
REPLAY_ROWS = HISTORY_ROWS_MAX
ALIKE_MIN = 5
"""So many events of one kind, with one reason, within ALIKE_MS are one step."""
ALIKE_MS = 1_000
PARTITIONS_NAMED = 20
FROM = Integer("from", "Start, in milliseconds since 1970 (default: a minute before `to`).", high=INT64_MAX)
TO = Integer("to", "End, in milliseconds since 1970 (default: now).", high=INT64_MAX)
LIMIT = Integer(
    "limit",
    "Number of changes, and of steps, that a response has at most; those of one millisecond stay together.",
    default=LIMIT_DEFAULT,
    low=1,
    high=LIMIT_MAX,
)
STEP_MS = Integer(
    "step_ms", "Changes within this duration become one; 0: each is its own.", default=STEP_MS_DEFAULT, high=STEP_MS_MAX
)
STATES = Flag("states", "`false`: only the steps, without states.", default=True)
BROKER = Integer("broker", "Only steps that this broker reported.", high=2**31 - 1, example=1)
PARTITION = Text(
    "partition",
    "The partition, as `topic-number`.",
    pattern=r"[^/]+-[0-9]{1,9}",
    needed="a partition such as orders-0",
    required=True,
    example="orders-0",
)


KIND = kinds_parameter("Only steps of these kinds, separated by commas.")


class PastScene:
    """The cluster as the answering broker knew it at one time."""

    def __init__(self, host: Host, image: MetadataImage) -> None:
        self.config: BrokerConfig = host.config
        self.access = host.access
        self.image = image

    def address_of(self, node: NodeId) -> Address | None:
        """Where a broker listened."""
        known = self.image.brokers.get(node)
        return None if known is None else known.address


@dataclass(frozen=True, slots=True)
class Span:
    """The times that a request asks for, within what is kept."""

    start: int
    """What is older is not complete."""
    first: int
    last: int

    @classmethod
    def of(cls, visit: Visit) -> Span:
        """Raises BrokerNotAvailable without a history, InvalidRequest for an end before the start."""
        host = visit.host
        if not host.history.is_on:
            raise BrokerNotAvailable(
                f"broker {host.node_id} keeps no history: mk.history.minutes=0; set it to the minutes that you need"
            )
        now = host.world.clock.wall_ms()
        last = min(visit[TO], now) if visit.gives(TO) else now
        first = visit[FROM] if visit.gives(FROM) else last - WINDOW_MS
        if first > last:
            raise InvalidRequest(f"from={first} is later than to={last}; exchange them, or leave `to` out for now")
        start = host.history.start_ms or now
        if start > now:
            # The clock was set back: until it has caught up, this broker's own history lies in the future.
            start = first
        return cls(start, min(max(first, start), last), last)


# ---- what the brokers remember ---------------------------------------------------------------------------------------


class _Received(NamedTuple):
    """The history of one broker, in the time of the broker that asked."""

    node: NodeId
    samples: tuple[m.PastReplica, ...]
    events: tuple[Event, ...]
    start: int
    end: int


async def _histories(host: Host, name: TopicPartition | None, span: Span, rows: int) -> list[_Received]:
    """Of each broker that answers; the answering broker's own is among them."""
    request = m.ReadHistoryRequest(
        topic=None if name is None else name.topic,
        partition=-1 if name is None else name.partition,
        from_ms=span.first,
        to_ms=span.last,
        max_rows=rows,
    )
    found = await asyncio.gather(*(_history_of(host, node, request) for node in live_brokers(host)))
    return [each for each in found if each is not None]


async def _history_of(host: Host, node: NodeId, request: m.ReadHistoryRequest) -> _Received | None:
    """None: the broker does not answer; a reader sees that it is not among ``brokers``."""
    response, ahead = await _answer_and_skew(host, node, request)
    if response is not None and ahead:
        # The times asked for were those of this broker's clock: another clock has other times for the same moments.
        there = structs.replace(request, from_ms=max(0, request.from_ms + ahead), to_ms=request.to_ms + ahead)
        response, _ = await _answer_and_skew(host, node, there)
    if response is None:
        return None
    return _Received(
        node,
        tuple(structs.replace(each, at_ms=each.at_ms - ahead) for each in response.samples)
        if ahead
        else response.samples,
        tuple(
            event_of(node, structs.replace(each, at_ms=each.at_ms - ahead) if ahead else each)
            for each in response.events
        ),
        response.start_ms - ahead,
        min(request.to_ms, response.end_ms - ahead),
    )


async def _answer_and_skew(
    host: Host, node: NodeId, request: m.ReadHistoryRequest
) -> tuple[m.ReadHistoryResponse | None, int]:
    """The response, and by how many milliseconds the clock of that broker is ahead, beyond what the request took."""
    clock = host.world.clock
    began = clock.wall_ms()
    response: m.ReadHistoryResponse | None = await answer_of(host, node, request, clock.now() + 2 * PATIENCE_S)
    if response is None:
        return None, 0
    took = clock.wall_ms() - began
    ahead = response.wall_ms - (began + took // 2)
    return response, 0 if abs(ahead) <= took + 1 else ahead


# ---- states ----------------------------------------------------------------------------------------------------------


async def watermarks_at(host: Host, names: Iterable[TopicPartition], span: Span) -> dict[TopicPartition, Offset]:
    """The leaders' high watermarks at a time, of the partitions for which the brokers remember one."""

    async def watermark(name: TopicPartition) -> Offset | None:
        replicas = _Replicas(host.node_id)
        samples = [(each, one.node) for one in await _histories(host, name, span, 1) for each in one.samples]
        for sample, node in sorted(samples, key=lambda each: each[0].at_ms):
            if sample.at_ms <= span.last:
                replicas.apply(node, sample)
        leaders = [
            each.replica
            for each in replicas.views(()).values()
            if each.replica is not None and each.replica.role == "leader"
        ]
        return max((each.high_watermark for each in leaders), default=None)

    listed = list(names)
    found = await asyncio.gather(*(watermark(name) for name in listed))
    return {name: end for name, end in zip(listed, found, strict=True) if end is not None}


class _Replicas:
    """What is known of each replica at one time: what a live stream received, else what its broker remembers."""

    def __init__(self, reader: NodeId) -> None:
        self._reader = reader
        self._own: dict[NodeId, m.PastReplica] = {}
        self._followed: dict[NodeId, m.PastReplica] = {}

    def apply(self, reported_by: NodeId, sample: m.PastReplica) -> None:
        """Samples come in the order of time."""
        if reported_by == sample.broker_id:
            self._own[reported_by] = sample
        elif reported_by == self._reader:
            self._followed[sample.broker_id] = sample

    def views(self, events: Iterable[Event]) -> Views:
        """As if all brokers had been asked."""
        stories: dict[NodeId, list[m.StoryEntry]] = {}
        for each in events:
            facts = json.dumps(each.facts)
            entry = m.StoryEntry(event=each.kind, at_ms=each.at_ms, cause=each.cause, facts_json=facts)
            stories.setdefault(each.broker, []).append(entry)
        views: Views = {}
        for node in sorted({*self._own, *self._followed}):
            sample = self.of(node)
            if sample is not None and sample.replica is not None:
                views[node] = m.ExplainPartitionResponse(
                    broker_id=node, replica=sample.replica, story=tuple(stories.get(node, ()))
                )
        return views

    def of(self, node: NodeId) -> m.PastReplica | None:
        followed = self._followed.get(node)
        return followed if followed is not None and followed.is_followed else self._own.get(node)


class _Moment(NamedTuple):
    """Something that changes a state."""

    at_ms: int
    change: ImageChange | None = None
    sample: m.PastReplica | None = None
    reported_by: NodeId = NO_NODE
    event: Event | None = None


class _Past:
    """A scope while time goes by."""

    def __init__(self, visit: Visit, name: TopicPartition | None, span: Span, histories: list[_Received]) -> None:
        host = visit.host
        self._host, self._name, self._permit = host, name, visit.permit
        image, self._controller = host.history.image_at(span.first, host.image)
        self._present = image
        self._topics: dict[str, TopicImage] = dict(image.topics)
        self._brokers: dict[NodeId, BrokerImage] = dict(image.brokers)
        self._replicas = _Replicas(host.node_id)
        self._events: list[Event] = []
        moments = [_Moment(each.at_ms, change=each) for each in host.history.image_changes(span.first, span.last)]
        for each in histories:
            moments += (_Moment(sample.at_ms, sample=sample, reported_by=each.node) for sample in each.samples)
            if name is not None:
                moments += (_Moment(event.at_ms, event=event) for event in each.events)
        self._moments = sorted(moments, key=lambda each: each.at_ms)
        self._next = 0
        self.advance(span.first)

    def advance(self, to_ms: int) -> None:
        """Apply everything up to this time."""
        while self._next < len(self._moments) and self._moments[self._next].at_ms <= to_ms:
            self._apply(self._moments[self._next])
            self._next += 1

    def times(self, to_ms: int, step_ms: int) -> Iterator[int]:
        """The times after now at which something changes; those within ``step_ms`` are one: the last of them.

        An event of a partition has a state of its own, so that its time shows what was then and not a moment before.
        """
        moments = [each for each in self._moments[self._next :] if each.at_ms <= to_ms]
        at = {each.at_ms for each in moments if each.event is not None}
        for _, group in groupby(moments, key=lambda each: each.at_ms // step_ms if step_ms else each.at_ms):
            at.add(max(each.at_ms for each in group))
        yield from sorted(at)

    def _apply(self, moment: _Moment) -> None:
        if moment.sample is not None:
            self._replicas.apply(moment.reported_by, moment.sample)
        elif moment.event is not None:
            self._events.append(moment.event)
        elif moment.change is not None:
            moment.change.apply(self._topics, self._brokers)
            if moment.change.controller is not None:
                self._controller = moment.change.controller

    def state(self) -> dict[str, Any]:
        """The state now, as the live stream would show it."""
        name, topics = self._name, self._topics
        if name is not None:
            topics = {name.topic: topics[name.topic]} if name.topic in topics else {}
        scene = PastScene(self._host, replace(self._present, topics=dict(topics), brokers=dict(self._brokers)))
        caution = ""
        if self._controller == NO_NODE:
            caution = f"broker {self._host.node_id} knew of no controller at this time, so this may be out of date"
        if name is None:
            return cluster_state(scene, self._controller, self._permit, caution)
        try:
            views = self._replicas.views(self._events)
            return partition_state(scene, name, partition_of(scene, name), views, caution)
        except ProtocolError as error:
            return {"problem": {"error": error.name, "detail": error.message}}


# ---- steps -----------------------------------------------------------------------------------------------------------


class _Step(Model):
    """What happened."""

    t: int = member("When, in milliseconds since 1970.", 1_795_270_217_937)
    n: str = member("The broker that reported it.", "1")
    k: str = member("The kind of the event.", "isr_shrunk")
    w: str = member("What happened, in words.", "the ISR shrank from [1, 2, 3] to [1, 3]")
    p: str | None = member("The partition.", "orders-0", default=None)
    y: str | None = member("Why.", default=None)
    c: str | None = member("The request or timer that it happened for.", default=None)
    x: str | None = member("`good`, `warn` or `bad`.", "warn", default=None)
    f: dict[str, Any] | None = member(
        {"type": "object", "description": "The event's facts."}, {"old": [1, 2, 3], "new": [1, 3]}, default=None
    )
    count: int | None = member("Of many events alike: how many.", default=None)
    partitions: list[str] | None = member("Of many events alike: some of the partitions.", default=None)


class _Sample(Model):
    """A change of the state."""

    t: int = member("When, in milliseconds since 1970.", 1_795_270_211_250)
    changes: list[Any] = member(
        many({"type": "array"}, "As in a live `frame`."), [[["partition", "high_watermark"], 42]]
    )


def step_of(event: Event) -> dict[str, Any]:
    """An event as a row, with the names of the rows of the replay page."""
    kind, facts = event.kind, event.facts
    return _Step(
        t=event.at_ms,
        n=str(event.broker),
        k=kind,
        w=what_of(kind, facts),
        p=str(facts.get("partition") or "") or None,
        y=why_of(kind, facts) or None,
        c=event.cause or None,
        x=tone_of(kind, facts) or None,
        f={name: value for name, value in facts.items() if name != "partition"},
    ).out()


def grouped(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in order; many of one kind with one reason become one, which counts them and names some partitions."""
    groups: list[list[dict[str, Any]]] = []
    latest: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["k"], row["n"], row.get("y"))
        group = latest.get(key)
        if "p" not in row or group is None or row["t"] - group[0]["t"] > ALIKE_MS:
            group = latest[key] = []
            groups.append(group)
        group.append(row)
    shown_rows: list[dict[str, Any]] = []
    for group in groups:
        if len(group) < ALIKE_MIN:
            shown_rows += group
            continue
        first = group[0]
        row = {name: first[name] for name in ("t", "n", "k", "y", "c", "x") if name in first}
        row["w"] = f"{len(group)} partitions, the first of them {first['p']}: {first['w']}"
        shown_rows.append({**row, "count": len(group), "partitions": [each["p"] for each in group[:PARTITIONS_NAMED]]})
    return sorted(shown_rows, key=lambda row: row["t"])


def _is_visible(event: Event, permit: Permit | None) -> bool:
    """Events of a partition need DESCRIBE of its topic, all others DESCRIBE of the cluster."""
    if topic := str(event.facts.get("partition", "")).rpartition("-")[0]:
        return may_describe(permit, topic)
    return may(permit, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)


def _steps(visit: Visit, histories: list[_Received], span: Span) -> list[dict[str, Any]]:
    kinds, broker = visit[KIND], visit[BROKER]
    # Before the span is cut out: a copy of what happened before it is no event of its own.
    events = without_repeats(
        event
        for each in histories
        for event in each.events
        if event.at_ms <= span.last and _is_visible(event, visit.permit)
    )
    return grouped(
        step_of(each)
        for each in events
        if each.at_ms >= span.first and (not kinds or each.kind in kinds) and broker in (-1, each.broker)
    )


# ---- the routes ------------------------------------------------------------------------------------------------------


class _History(Model):
    """Earlier states and what happened between them."""

    scope: str = member("As in the request.", "orders-0")
    start: int = member("What is older is forgotten.", 1_795_270_200_000)
    exact_from: int = member("From here on the steps of all brokers are complete.", 1_795_270_200_000)
    from_: int = member("Time of `before`.", 1_795_270_210_000)
    to: int = member("Time of the last state.", 1_795_270_270_000)
    next: int | None = member("`from` of the request that continues; null: there is no more.")
    brokers: list[NodeId] = member("The brokers whose histories are in the response.", [1, 2, 3])
    before: dict[str, Any] | None = member(
        nullable({"type": "object", "description": "The state at `from`, as in a live `snapshot`."}),
        {"summary": "orders-0: ...", "partition": {"high_watermark": 41}},
    )
    samples: list[Any] = many_of(_Sample)
    steps: list[Any] = many_of(_Step, "Oldest first.")


_TIMES = (FROM, TO)


@ROUTES.at(
    "GET /v1/history",
    _History.answer("The state at `from`, its changes up to `to`, and what happened between the two."),
    parameters=(SCOPE, *_TIMES, LIMIT, STEP_MS, STATES, KIND, BROKER),
    problems=(UnknownTopicOrPartition, BrokerNotAvailable),
)
async def get_history(visit: Visit) -> Json:
    """Earlier states of the cluster or of one partition, as the live stream showed them, and what happened."""
    host, scope, limit = visit.host, visit[SCOPE], visit[LIMIT]
    name = None if scope == CLUSTER else seen_partition(visit, scope)
    span = Span.of(visit)
    histories = await _histories(host, name, span, limit)
    wanted = span.last
    span = replace(span, last=max(span.first, min(wanted, *(each.end for each in histories))))
    document: dict[str, Any] = {
        "scope": scope,
        "start": span.start,
        "exact_from": max(each.start for each in histories),
        "from": span.first,
        "to": wanted,
        "next": None,
        "brokers": [each.node for each in histories],
        "before": None,
        "samples": [],
    }
    if visit[STATES]:
        span = await _fill(document, _Past(visit, name, span, histories), span, limit, visit[STEP_MS])
    steps = _steps(visit, histories, span)
    if len(steps) > limit:
        span = replace(span, last=whole_milliseconds([each["t"] for each in steps], limit, span.last))
        # Events alike are grouped once more: a group counts those of this response.
        steps = _steps(visit, histories, span)
        document["samples"] = [each for each in document["samples"] if each["t"] <= span.last]
    if span.last < wanted:
        document["next"] = span.last + 1
    return {**document, "to": span.last, "steps": steps}


async def _fill(document: dict[str, Any], past: _Past, span: Span, limit: int, step_ms: int) -> Span:
    """The states of a span, until the limit is reached; the span that they cover."""
    state = document["before"] = past.state()
    turns, samples = json_text.Turns(), document["samples"]
    for at in past.times(span.last, step_ms):
        if len(samples) == limit:
            return replace(span, last=at - 1)
        past.advance(at)
        changed = past.state()
        changes = difference(state, changed)
        if changes:
            samples.append({"t": at, "changes": changes})
            state = changed
        await turns.after(json_text.TURN_BYTES // 8)
    return span


@ROUTES.at(
    "GET /v1/history/replay",
    text_answer("The page.", "text/html", "<!doctype html>", "HTML."),
    parameters=(PARTITION, *_TIMES),
    problems=(UnknownTopicOrPartition, BrokerNotAvailable),
)
async def get_replay(visit: Visit) -> Page:
    """The replay page of a partition: one HTML file that needs no broker and no network."""
    host = visit.host
    name = seen_partition(visit, visit[PARTITION])
    span = Span.of(visit)
    histories = await _histories(host, name, span, REPLAY_ROWS)
    span = replace(span, last=max(span.first, min(span.last, *(each.end for each in histories))))
    try:
        page = page_of(replay_of(journal_of(host, name, span, histories), partition=str(name)))
    except NothingToShow as error:
        raise UnknownTopicOrPartition(f"{error}; choose other times") from None
    return Page(
        page.encode(),
        "text/html; charset=utf-8",
        {
            "Content-Disposition": f'attachment; filename="replay-{_file_name(str(name))}.html"',
            # Opened from a broker, the page's own script must not act as a page of that broker.
            "Content-Security-Policy": "sandbox allow-scripts",
            "X-Content-Type-Options": "nosniff",
        },
    )


def _file_name(name: str) -> str:
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in name)


def journal_of(host: Host, name: TopicPartition, span: Span, histories: list[_Received]) -> Journal:
    """A partition's history as a journal, for the replay page: its samples are events too."""
    replicas = _Replicas(host.node_id)
    shown_now: dict[NodeId, m.PastReplica | None] = {}
    moments = [_Moment(each.at_ms, sample=each, reported_by=one.node) for one in histories for each in one.samples]
    events = without_repeats(event for one in histories for event in one.events if event.at_ms >= span.first)
    moments += [_Moment(each.at_ms, event=each) for each in events]
    entries: list[Entry] = []
    for moment in sorted((each for each in moments if each.at_ms <= span.last), key=lambda each: each.at_ms):
        at_s = max(0, moment.at_ms - span.first) / 1000
        if moment.event is not None:
            event = moment.event
            entries.append(
                Entry(at_s=at_s, node=str(event.broker), kind=event.kind, facts=event.facts, cause=event.cause)
            )
        elif moment.sample is not None:
            replicas.apply(moment.reported_by, moment.sample)
            node = moment.sample.broker_id
            sample = replicas.of(node)
            if sample is not None and sample.replica is not None and sample is not shown_now.get(node):
                facts = sample_facts(host, name, sample.at_ms, node, sample.replica)
                entries.append(Entry(at_s=at_s, node=str(node), kind="replica_sampled", facts=facts))
            shown_now[node] = sample
    return Journal(title=f"history of broker {host.node_id}", entries=entries, is_simulated=False, has_messages=False)


def sample_facts(
    host: Host, name: TopicPartition, at_ms: int, node: NodeId, replica: m.DescribedReplica
) -> Mapping[str, object]:
    """A sample as the facts of an event, by which ``ui/states.py`` sets the state of a replica."""
    image = host.history.image_at(at_ms, host.image)[0].partition(name)
    facts: dict[str, object] = {
        "partition": str(name),
        "role": replica.role,
        "epoch": replica.leader_epoch,
        "start": replica.log_start_offset,
        "leo": replica.log_end_offset,
        "hw": replica.high_watermark,
        "leader": NO_NODE if image is None else image.leader,
    }
    if replica.role == "leader":
        facts |= {
            "leader": node,
            "isr": list(replica.isr),
            "asked": None if replica.proposed_isr is None else list(replica.proposed_isr),
            "remotes": {str(each.broker_id): each.log_end_offset for each in replica.remotes},
            "replicas": [] if image is None else list(image.replicas),
        }
    return facts
