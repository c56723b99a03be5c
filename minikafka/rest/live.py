"""``GET /v1/live``: the state of the cluster or of one partition as Server-Sent Events, then its differences.

- ``hello`` names the serving broker. ``snapshot`` has the whole state. ``frame`` has the changes since the state before
  (``wire/differences.py``). ``gap`` says that a snapshot follows because the reader missed frames that are not kept.
  ``heartbeat`` comes every HEARTBEAT_S without a frame, ``end`` when the broker stops.
- All viewers of one scope share one channel: one reader of the state and one encoding of each frame. A channel exists
  while it has viewers, so nothing runs while nobody watches.
- The channel of a partition requests the view of each broker in a loop of its own. A broker that is slow or down leaves
  its own values unknown and does not delay those of other brokers.
- A viewer holds a position, not a queue. A slow viewer receives what it missed at once, or a snapshot.
- With an authorizer, viewers share a channel only if they are the same client to it. Permissions are checked for each
  state, so that a permission that is removed ends the values.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeAlias

from minikafka.errors import ProtocolError, ThrottlingQuotaExceeded, UnknownTopicOrPartition
from minikafka.quorum.image import PartitionImage, TopicImage
from minikafka.rest import json_text
from minikafka.rest.cluster import broker_load, described_topics
from minikafka.rest.host import Host, Scene
from minikafka.rest.leaders import answer_of, min_isr, partition_of
from minikafka.rest.parameters import Text
from minikafka.rest.partitions import partition_out, watermark_sentence
from minikafka.rest.permissions import check_may, may
from minikafka.rest.route import Routes, Stream, Visit, text_answer
from minikafka.rest.sentences import (
    cluster_summary,
    partition_summary,
    why_fenced_or_up,
    why_out_of_date,
    why_the_stable_offset,
)
from minikafka.rest.transactions import producer_out
from minikafka.rest.views import Views, leaders_view, patience_with
from minikafka.security.permissions import Permit
from minikafka.tasks import until_ended
from minikafka.types import INTERNAL_TOPICS, NO_NODE, NodeId, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.acls import AclOperation, ResourceType
from minikafka.wire.differences import difference
from minikafka.world.connections import owner_of

PERIOD_S = 0.25
"""Time between two states of a channel, and between two requests to one broker."""
FORMAT = 2
"""Version of the stream's format: a page of another version does not apply its differences."""
HEARTBEAT_S = 5.0
"""Browsers do not show comments to a page, so that heartbeats are events."""
FRAMES_KEPT = 40
"""A viewer that missed more receives a snapshot."""
VIEWER_COUNT_MAX = 20
VIEWER_COUNT_MAX_OF_ONE = 10
"""Of one user, or of one address of clients without a name: nobody takes the streams of all others."""
TOPIC_COUNT_MAX = 50
"""A cluster's state has the partitions of so many topics, those with problems first, and counts all of them."""

STATES = OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED, OK = "offline", "under-min-isr", "under-replicated", "ok"
"""Of a partition, the worst first: without a leader; the leader refuses acks=all; replicas are out of the ISR."""

CLUSTER = "cluster"
SCOPE = Text(
    "scope",
    "`cluster`, or one partition as `topic-number`.",
    default=CLUSTER,
    pattern=r"cluster|[^/]+-[0-9]{1,9}",
    needed="cluster, or a partition such as orders-0,",
    example="orders-0",
)
LAST_EVENT_ID = Text(
    "Last-Event-ID",
    "The `id` of the last event that was read: the stream continues behind it.",
    place="header",
    pattern=r"[0-9a-f]{1,16}-[0-9]{1,18}",
    needed="the id of an event of this stream",
)

Permitted: TypeAlias = Callable[[], Permit | None]


def hello_out(host: Host) -> dict[str, Any]:
    """The first event of a stream: the serving broker, whether it has test hooks, and its clock."""
    return {
        "v": FORMAT,
        "node": host.node_id,
        "testing": host.config.testing_endpoints_enable,
        "now_ms": host.world.clock.wall_ms(),
    }


class LiveHub:
    """The channels of one broker, which exist while they have viewers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.channels: dict[Any, _Channel] = {}
        self.viewers: Counter[str] = Counter()
        """Open streams by user, or by the address of a client without a name."""

    async def events(self, visit: Visit, scope: str, seen: str) -> AsyncGenerator[bytes, None]:
        """The events for one viewer; ``seen`` is the id of the last event that it has read, or empty."""
        access, context = self._host.access, visit.context
        key = (scope, context.listener if access is None else context)
        channel = self.channels.get(key)
        if channel is None:
            channel = _channel(
                self._host,
                scope,
                lambda: None if access is None else access.permit(context, "GET /v1/live"),
                context.listener,
            )
            self.channels[key] = channel
        owner = owner_of(context.principal, context.remote)
        channel.viewer_count += 1
        self.viewers[owner] += 1
        try:
            async with contextlib.aclosing(channel.events(seen)) as events:
                async for each in events:
                    yield each
        finally:
            self.viewers -= Counter([owner])
            channel.viewer_count -= 1
            if not channel.viewer_count:
                del self.channels[key]
                await channel.stop()


class _Channel(ABC):
    """The present state of one scope, and the latest frames."""

    def __init__(self, host: Host, permit: Permitted) -> None:
        self.viewer_count = 0
        self._host = host
        self._permit = permit
        self._id = f"{host.world.clock.wall_ms():x}"
        self._state: dict[str, Any] = {}
        self._version = 0
        self._frames: deque[bytes] = deque(maxlen=FRAMES_KEPT)
        """The frames that led to the latest versions; the last one led to ``_version``."""
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="live")
        self._task.add_done_callback(lambda _: self._news.set())

    @abstractmethod
    async def read(self) -> dict[str, Any]:
        """The state now; ProtocolError if it cannot be shown."""

    async def stop(self) -> None:
        """No viewer is left."""
        self._task.cancel()
        await until_ended((self._task,))

    async def _run(self) -> None:
        while True:
            try:
                state = await self.read()
            except ProtocolError as error:
                state = {"problem": {"error": error.name, "detail": error.message}}
            self._publish(state)
            await asyncio.sleep(PERIOD_S)

    def _publish(self, state: dict[str, Any]) -> None:
        changes = difference(self._state, state)
        if changes:
            self._version += 1
            self._state = state
            at_ms = self._host.world.clock.wall_ms()
            self._frames.append(json_text.event("frame", {"at_ms": at_ms, "changes": changes}, self._position))
            self._host.history.on_shown(at_ms)
            self._news.set()
            self._news = asyncio.Event()

    @property
    def _position(self) -> str:
        return f"{self._id}-{self._version}"

    async def events(self, seen: str) -> AsyncGenerator[bytes, None]:
        """What a viewer gets that has read up to ``seen``."""
        yield json_text.RETRY + json_text.event("hello", hello_out(self._host))
        version = self._resumed(seen)
        missed = bool(seen) and not version
        while True:
            if version < self._version:
                # Taken together, without an await: no frame can come in between.
                chunk = self._since(version, missed=missed or version > 0)
                version = self._version
                missed = False
                yield chunk
            news = self._news
            if version == self._version:
                if self._task.done():
                    self._task.result()
                try:
                    await asyncio.wait_for(news.wait(), HEARTBEAT_S)
                except TimeoutError:
                    yield json_text.event("heartbeat", {})

    def _resumed(self, seen: str) -> int:
        """The version at which a viewer continues; 0: it needs a snapshot."""
        channel, _, version = seen.partition("-")
        return int(version) if channel == self._id and int(version) <= self._version else 0

    def _since(self, version: int, *, missed: bool) -> bytes:
        count = self._version - version
        if version and count <= len(self._frames):
            return b"".join(list(self._frames)[-count:])
        snapshot = json_text.event("snapshot", self._state, self._position)
        return json_text.event("gap", {"missed": count}) + snapshot if missed else snapshot


def _channel(host: Host, scope: str, permit: Permitted, listener: str) -> _Channel:
    if scope == CLUSTER:
        return _ClusterChannel(host, permit, listener)
    return _PartitionChannel(host, TopicPartition.parsed(scope), permit, listener)


def seen_partition(visit: Visit, scope: str) -> TopicPartition:
    """The partition that a scope names, also a deleted one; the client must be allowed to describe its topic."""
    name = TopicPartition.parsed(scope)
    check_may(visit.permit, AclOperation.DESCRIBE, ResourceType.TOPIC, name.topic)
    visit.host.check_caught_up()
    return name


# ---- the cluster -----------------------------------------------------------------------------------------------------


class _ClusterChannel(_Channel):
    """Brokers and partitions, from the metadata that this broker has: no other broker is requested."""

    def __init__(self, host: Host, permit: Permitted, listener: str) -> None:
        super().__init__(host, permit)
        self._listener = listener
        self._read_from: tuple[Any, ...] = ()
        self._read: dict[str, Any] = {}

    async def read(self) -> dict[str, Any]:
        metadata: m.MetadataResponse = await self._host.answer("Metadata", m.MetadataRequest(topics=()))
        # The image is replaced when it changes: while it is the same object, so is the state.
        source = (self._host.image, metadata.controller_id, present_caution(self._host))
        if not self._read_from or source[0] is not self._read_from[0] or source[1:] != self._read_from[1:]:
            self._read_from = source
            self._read = cluster_state(
                self._host, metadata.controller_id, self._permit(), source[2], listener=self._listener
            )
        return self._read


def present_caution(host: Host) -> str:
    """Why the metadata of this broker may be out of date now; empty if it is not."""
    return "" if host.has_session else why_out_of_date(host.node_id)


def cluster_state(
    scene: Scene, controller: NodeId, permit: Permit | None, caution: str = "", *, listener: str = ""
) -> dict[str, Any]:
    """The state of a cluster that viewers receive; topics that ``permit`` does not allow are left out and not counted.

    ``caution``: why the metadata may be out of date. ``listener``: that of the viewers, whose addresses they see.
    """
    image = scene.image
    topics = described_topics(image, permit)
    partitions = [each for topic in topics for each in topic.partitions]
    states = {topic.name: [_state_of(scene, topic, each) for each in topic.partitions] for topic in topics}
    under_min_isr = sum(each.count(UNDER_MIN_ISR) for each in states.values())
    ordered = sorted(states, key=lambda name: (_worst_first(states[name]), name in INTERNAL_TOPICS, name))
    shown = frozenset(ordered[:TOPIC_COUNT_MAX])
    return {
        "summary": cluster_summary(image, partitions, under_min_isr, caution),
        "caution": caution,
        "controller": None if controller == NO_NODE else controller,
        "brokers": {
            str(node): {
                **broker_load(scene, image.brokers[node], partitions, listener),
                "why": why_fenced_or_up(image.brokers[node], caution),
            }
            for node in sorted(image.brokers)
        },
        "topics": {
            topic.name: {
                str(each.partition): {
                    "leader": None if each.leader == NO_NODE else each.leader,
                    "isr": list(each.isr),
                    "replicas": list(each.replicas),
                    "state": state,
                }
                for each, state in zip(topic.partitions, states[topic.name], strict=True)
            }
            for topic in topics
            if topic.name in shown
        },
        "topics_left_out": len(topics) - len(shown),
    }


def _state_of(scene: Scene, topic: TopicImage, partition: PartitionImage) -> str:
    if partition.leader == NO_NODE:
        return OFFLINE
    if len(partition.isr) == len(partition.replicas):
        return OK
    return UNDER_MIN_ISR if len(partition.isr) < min_isr(scene.config, topic, partition) else UNDER_REPLICATED


def _worst_first(states: list[str]) -> int:
    """The place of a topic in the order in which topics are shown, by its partition that is worst off."""
    return min(map(STATES.index, states), default=len(STATES))


# ---- one partition ---------------------------------------------------------------------------------------------------


class _PartitionChannel(_Channel):
    """One partition, as its replicas report it."""

    def __init__(self, host: Host, name: TopicPartition, permit: Permitted, listener: str) -> None:
        self._name = name
        self._listener = listener
        self._views: Views = {}
        self._readers: dict[NodeId, asyncio.Task[None]] = {}
        self._heard: set[NodeId] = set()
        """Brokers that have answered or been late once."""
        self._all_heard = asyncio.Event()
        super().__init__(host, permit)

    async def stop(self) -> None:
        await super().stop()
        for node, reader in self._readers.items():
            reader.cancel()
            if node != self._host.node_id:
                self._note(node, None, is_followed=False)
        await until_ended(self._readers.values())

    async def read(self) -> dict[str, Any]:
        host, name = self._host, self._name
        permit = self._permit()
        check_may(permit, AclOperation.DESCRIBE, ResourceType.TOPIC, name.topic)
        metadata: m.MetadataResponse = await host.answer("Metadata", m.MetadataRequest(topics=()))
        image = partition_of(host, name)
        self._read_from({host.node_id, *image.replicas, metadata.controller_id} - {NO_NODE})
        if not self._all_heard.is_set():
            # The first snapshot waits for the brokers, so that it is not empty, but not for one that is late.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_heard.wait(), PERIOD_S)
        reads = may(permit, AclOperation.READ, ResourceType.TOPIC, name.topic)
        image = partition_of(host, name)
        return partition_state(
            host, name, image, self._views, present_caution(host), shows_producers=reads, listener=self._listener
        )

    def _read_from(self, nodes: set[NodeId]) -> None:
        """One reader for each of these brokers, and for no other."""
        for node in self._readers.keys() - nodes:
            self._readers.pop(node).cancel()
            self._views.pop(node, None)
            self._note(node, None, is_followed=False)
        for node in nodes - self._readers.keys():
            self._readers[node] = asyncio.create_task(self._reader(node), name=f"live-{self._name}-{node}")
        for reader in self._readers.values():
            if reader.done():
                reader.result()

    async def _reader(self, node: NodeId) -> None:
        while True:
            view = await self._view(node)
            if view is None:
                self._views.pop(node, None)
            else:
                self._views[node] = view
            self._note(node, None if view is None else view.replica)
            self._heard.add(node)
            if self._heard >= self._readers.keys():
                self._all_heard.set()
            await asyncio.sleep(PERIOD_S)

    def _note(self, node: NodeId, replica: m.DescribedReplica | None, *, is_followed: bool = True) -> None:
        """The history shows what viewers saw, also of a broker that dies with its own history."""
        host = self._host
        host.history.note(host.world.clock.wall_ms(), node, str(self._name), replica, is_followed=is_followed)

    async def _view(self, node: NodeId) -> m.ExplainPartitionResponse | None:
        """What a broker reports; None: it does not answer, and the state shows it as unknown."""
        request = m.ExplainPartitionRequest(topic=self._name.topic, partition=self._name.partition)
        deadline = self._host.world.clock.now() + patience_with(self._host.image, node)
        view: m.ExplainPartitionResponse | None = await answer_of(self._host, node, request, deadline)
        return view


def partition_state(
    host: Scene,
    name: TopicPartition,
    image: PartitionImage,
    views: Views,
    caution: str = "",
    *,
    shows_producers: bool = True,
    listener: str = "",
) -> dict[str, Any]:
    """The state of a partition that viewers receive, of what is recorded in ``image`` and reported in ``views``.

    ``caution``: why what is recorded may be out of date.
    ``shows_producers``: the viewer may read the topic, as DescribeProducers needs it.
    ``listener``: that of the viewers, whose addresses they see.
    """
    shown = partition_out(host, name, image, views, listener)
    # By id, so that a difference names the replica that changed. Objects have no order of numbers of their own.
    shown["order"] = list(image.replicas)
    shown["replicas"] = {str(each["id"]): each for each in shown["replicas"]}
    why = watermark_sentence(image, views)
    seen, view = leaders_view(views, image.leader), views.get(image.leader)
    unstable = None if view is None else view.unstable
    is_known = seen is not None and (unstable is not None or seen.last_stable_offset >= seen.high_watermark)
    why_stable = why_the_stable_offset(seen, unstable) if seen is not None and is_known else ""
    return {
        "summary": partition_summary(name, image, caution),
        "caution": caution,
        "why_watermark": f"{why[:1].upper()}{why[1:]}.",
        "why_stable_offset": f"{why_stable[:1].upper()}{why_stable[1:]}." if why_stable else "",
        "partition": shown,
        # By id, as the replicas.
        "producers": {str(each.producer_id): producer_out(each) for each in view.producers}
        if view is not None and shows_producers
        else {},
        "producer_count": view.producer_count if view is not None and shows_producers else 0,
    }


# ---- the door --------------------------------------------------------------------------------------------------------


ROUTES = Routes("cluster")
EXAMPLE = (
    'retry: 1000\n\nevent: hello\ndata: {"v": 2, "node": 1}\n\n'
    'id: 1a2b-1\nevent: snapshot\ndata: {"summary": "orders-0: ...", "partition": {"high_watermark": 41}}\n\n'
    'id: 1a2b-2\nevent: frame\ndata: {"changes": [[["partition", "high_watermark"], 42]]}\n\n'
)


@ROUTES.at(
    "GET /v1/live",
    text_answer(
        "Events until the reader leaves: `hello`, `snapshot`, `frame`, `gap`, `heartbeat`, `end`.",
        json_text.EVENT_STREAM,
        EXAMPLE,
        "Server-Sent Events.",
    ),
    parameters=(SCOPE, LAST_EVENT_ID),
    problems=(UnknownTopicOrPartition, ThrottlingQuotaExceeded),
)
async def get_live(visit: Visit) -> Stream:
    """The state of the cluster or of one partition: a snapshot, then differences."""
    scope = visit[SCOPE]
    if scope != CLUSTER:
        partition_of(visit.host, seen_partition(visit, scope))
    live, owner = visit.doors.live, owner_of(visit.context.principal, visit.context.remote)
    if live.viewers[owner] >= VIEWER_COUNT_MAX_OF_ONE:
        raise ThrottlingQuotaExceeded(
            f"{VIEWER_COUNT_MAX_OF_ONE} live streams of {owner} are open, the most that one broker serves; close a "
            "page, or open the console at another broker"
        )
    if live.viewers.total() >= VIEWER_COUNT_MAX:
        raise ThrottlingQuotaExceeded(
            f"{VIEWER_COUNT_MAX} live streams are open, the most that one broker serves; close a page, or open the "
            "console at another broker"
        )
    return Stream(
        live.events(visit, scope, visit[LAST_EVENT_ID]),
        json_text.EVENT_STREAM,
        farewell=json_text.FAREWELL,
        repeats_itself=True,
    )
