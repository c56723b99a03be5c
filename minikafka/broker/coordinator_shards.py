"""The partitions of one internal topic that this broker leads, each with its coordinator; and who leads the others.

The leader of the partition that a name falls into (``coordination/rule.py``) coordinates that name (S32). Shards come
and go with the roles; the topic is created when a coordinator is looked up for the first time. FindCoordinator answers
here for groups and transactional ids.

A broker whose session with the controller has expired coordinates nothing: another may have been elected, and what
that one has committed since would be missing here.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from minikafka.broker.coordinator_shard import C, CoordinatorShard
from minikafka.config import BrokerConfig
from minikafka.coordination.rule import partition_of
from minikafka.errors import CoordinatorNotAvailable, InvalidRequest, NotCoordinator, ProtocolError
from minikafka.ports import RequestContext, World
from minikafka.quorum.image import MetadataImage
from minikafka.replication.leader import LeaderReplica
from minikafka.tasks import Flag
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.group_messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from minikafka.wire.messages import CreateTopicsRequest, CreateTopicsResponse, NewTopic

if TYPE_CHECKING:
    from minikafka.broker.flusher import Spawn
    from minikafka.broker.replica_manager import ReplicaManager


NO_DEADLINE_S = 3600.0
"""How long the clock sleeps when nothing is due; any step wakes it."""


class CoordinatorShards(Generic[C]):
    """Those of one incarnation of a broker, for one internal topic."""

    def __init__(
        self,
        world: World,
        replicas: ReplicaManager,
        topic: str,
        *,
        new_topic: Callable[[], NewTopic],
        new_coordinator: Callable[[], C],
        commit_timeout_s: float,
        image: Callable[[], MetadataImage],
        session_alive: Callable[[], bool],
        ask_controller: Callable[[object], Awaitable[object | None]],
        spawn: Spawn,
        on_step: Callable[[CoordinatorShard[C]], None] | None = None,
    ) -> None:
        self.topic = topic
        self._world = world
        self._replicas = replicas
        self._new_topic = new_topic
        self._new_coordinator = new_coordinator
        self._commit_timeout_s = commit_timeout_s
        self._image = image
        self._session_alive = session_alive
        self._ask_controller = ask_controller
        self._spawn = spawn
        self._on_step = on_step
        self._shards: dict[TopicPartition, CoordinatorShard[C]] = {}
        self._moved = Flag()
        self._due_at = math.inf
        self._creating = False

    def __iter__(self) -> Iterator[CoordinatorShard[C]]:
        """Those that are, whether or not they answer already; a copy, which may be kept over a wait."""
        return iter(list(self._shards.values()))

    def all_answering(self) -> list[CoordinatorShard[C]]:
        """Return every shard, for a list of all that this broker coordinates. Raises what keeps one from answering.

        A list without the names of one partition would be wrong. Clients repeat the request for each of these errors,
        but not for NOT_COORDINATOR.
        """
        shards = list(self)
        for shard in shards:
            try:
                shard.check()
            except NotCoordinator as error:
                raise CoordinatorNotAvailable(f"{error.message}: ask again") from error
        return shards

    def at(self, name: TopicPartition) -> CoordinatorShard[C] | None:
        """The shard of a partition; None: another broker leads it."""
        return self._shards.get(name)

    def of(self, name: str) -> CoordinatorShard[C]:
        """The shard that coordinates ``name``. Raises what keeps it from answering."""
        topic = self._image().topics.get(self.topic)
        if topic is None:
            raise NotCoordinator(f"{self.topic} does not exist yet: ask for the coordinator")
        shard = self._shards.get(TopicPartition(self.topic, partition_of(name, len(topic.partitions))))
        if shard is None:
            raise NotCoordinator(f"this broker does not coordinate {name}")
        if not self._session_alive():
            raise NotCoordinator("this broker's session with the controller has run out, it may have been replaced")
        shard.check()
        return shard

    # ---- roles ----

    def end_lost(self) -> None:
        """After the replicas took their roles: end what this broker leads no longer."""
        for name, shard in list(self._shards.items()):
            partition = self._replicas.partitions.get(name)
            if partition is not shard.partition or partition.role is not shard.leader:
                del self._shards[name]
                shard.end()

    def begin_new(self, image: MetadataImage) -> None:
        """After the replicas took their roles: begin what this broker leads now."""
        topic = image.topics.get(self.topic)
        for number in range(len(topic.partitions) if topic is not None else 0):
            name = TopicPartition(self.topic, number)
            partition = self._replicas.partitions.get(name)
            if partition is not None and isinstance(partition.role, LeaderReplica) and name not in self._shards:
                self._shards[name] = CoordinatorShard(
                    self._replicas,
                    partition,
                    partition.role,
                    self._new_coordinator(),
                    commit_timeout_s=self._commit_timeout_s,
                    spawn=self._spawn,
                    on_step=self._stepped,
                )

    def close(self) -> None:
        """The broker stops: every waiting request gets NOT_COORDINATOR."""
        for shard in self._shards.values():
            shard.end()
        self._shards.clear()

    # ---- time ----

    async def run(self) -> None:
        """Give each coordinator its turn when something is due; runs until cancelled."""
        while True:
            self._moved.clear()
            self._due_at = self._next_deadline()
            now = self._world.clock.now()
            if self._due_at > now and await self._moved.wait(min(self._due_at, now + NO_DEADLINE_S)):
                continue
            self._tick()

    def _next_deadline(self) -> float:
        loaded = (shard for shard in self._shards.values() if shard.is_loaded)
        return min((shard.coordinator.next_deadline() for shard in loaded), default=math.inf)

    def _tick(self) -> None:
        now = self._world.clock.now()
        for shard in self:
            # Also without a session with the controller: should another coordinate by then, what is decided here is
            # never committed, and its log is as it was.
            if shard.is_loaded and shard.coordinator.next_deadline() <= now:
                with shard.step() as step:
                    shard.coordinator.tick(step)

    def _stepped(self, shard: CoordinatorShard[C]) -> None:
        """The coordinator of a shard has made a step; no other shard's work has changed."""
        if self._on_step is not None:
            self._on_step(shard)
        if shard.is_loaded and shard.coordinator.next_deadline() < self._due_at:
            self._moved.set()

    # ---- finding ----

    @property
    def topic_exists(self) -> bool:
        return self.topic in self._image().topics

    def leader_of(self, name: str) -> NodeId:
        """The live broker that coordinates ``name``; CoordinatorNotAvailable when none is known."""
        image = self._image()
        if not self._session_alive():
            raise CoordinatorNotAvailable("this broker has no session with the controller: ask another one")
        topic = image.topics.get(self.topic)
        if topic is None:
            raise CoordinatorNotAvailable(f"{self.topic} is being created: ask again")
        number = partition_of(name, len(topic.partitions))
        leader = topic.partitions[number].leader
        if leader == NO_NODE or not image.alive(leader):
            raise CoordinatorNotAvailable(f"{self.topic}-{number} has no leader that lives: ask again")
        return leader

    async def create_topic(self) -> None:
        """Once at a time. What the controller refuses is answered COORDINATOR_NOT_AVAILABLE; the client asks again."""
        if self._creating:
            return
        self._creating = True
        try:
            answer = await self._ask_controller(CreateTopicsRequest(topics=(self._new_topic(),)))
            if isinstance(answer, CreateTopicsResponse) and answer.topics and answer.topics[0].error_code:
                self._world.events("offsets_topic_not_created", topic=self.topic, why=answer.topics[0].error_message)
        finally:
            self._creating = False


def internal_topic(
    config: BrokerConfig,
    image: MetadataImage,
    name: str,
    *,
    partitions: int,
    replication_factor: int,
    segment_bytes: int,
    min_insync_replicas: int | None = None,
) -> NewTopic:
    """An internal topic as a coordinator needs it, for a cluster of the size that this one has.

    ``min_insync_replicas`` None: the cluster's default.
    """
    # A cluster of one or two is no less a cluster; more voters than live brokers: they are still starting.
    brokers = max(len(config.voters), len(image.brokers))
    factor = min(replication_factor, brokers)
    configs = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}
    if min_insync_replicas is not None:
        configs["min.insync.replicas"] = str(min(min_insync_replicas, factor))
    return NewTopic(name=name, num_partitions=partitions, replication_factor=factor, configs=configs)


GROUP, TRANSACTION = 0, 1
"""Kinds of keys."""


class KeyKind(NamedTuple):
    """What one kind of keys names."""

    shards: CoordinatorShards[Any]
    check: Callable[[str], None]
    """Raises InvalidGroupId or InvalidRequest for a name that cannot be one."""


class FindCoordinatorApi:
    """Answers for every kind of coordinator."""

    def __init__(self, kinds: Mapping[int, KeyKind], image: Callable[[], MetadataImage]) -> None:
        self._kinds = kinds
        self._image = image

    def handle(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
        """One answer for each key, in the order of the request."""
        kind = self._kinds.get(request.key_type)
        if kind is None:
            raise InvalidRequest(
                f"key_type={request.key_type}: 0 (groups) and 1 (transactional ids) are served", member="key_type"
            )
        if not kind.shards.topic_exists:
            return self._create_and_find(kind, request, context)
        return self._found(kind, request, context)

    async def _create_and_find(
        self, kind: KeyKind, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        await kind.shards.create_topic()
        return self._found(kind, request, context)

    def _found(
        self, kind: KeyKind, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=tuple(self._coordinator(kind, key, context.listener) for key in request.keys)
        )

    def _coordinator(self, kind: KeyKind, key: str, listener: str) -> Coordinator:
        try:
            kind.check(key)
            leader = kind.shards.leader_of(key)
        except ProtocolError as error:
            return Coordinator.with_error(error, key=key)
        address = self._image().brokers[leader].address_at(listener)
        return Coordinator(key=key, node_id=leader, host=address.host, port=address.port)
