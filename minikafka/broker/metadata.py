"""The metadata as this broker knows it: the image that it follows, and what it tells clients of it.

The cache listens to the quorum's log. Each committed batch gives one new image, which is kept and shown to subscribers;
they are called in the order in which they subscribed, from the loop, and must not wait. A record that this build cannot
read stops the broker: skipping it would give this broker another cluster than its peers'.

Metadata and DescribeTopicPartitions are answered from the image (:class:`MetadataApi`). A topic that is requested by
name, does not exist and may be created (``auto.create.topics.enable`` and the request allows it) is created by the
controller first; the answer waits, briefly, until this broker knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from minikafka.broker.live_settings import LiveSettings
from minikafka.errors import InvalidTopic, LeaderNotAvailable, ProtocolError, UnknownTopicOrPartition
from minikafka.ports import Events, RequestContext, World
from minikafka.quorum.controller_topics import check_topic_name
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.quorum.records import decode, encode
from minikafka.tasks import Flag
from minikafka.types import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    NO_EPOCH,
    NO_NODE,
    NO_OFFSET,
    Epoch,
    EpochEnd,
    NodeId,
    Offset,
)
from minikafka.wire import messages as m

if TYPE_CHECKING:
    from minikafka.broker.quorum_driver import QuorumDriver


ImageSubscriber: TypeAlias = Callable[[MetadataImage, MetadataImage], None]
"""(old, new)."""

LeaderSubscriber: TypeAlias = Callable[[NodeId, Epoch, bool], None]
"""(leader's id or -1, epoch, whether this node leads)."""


REMOVED_TOPICS_MAX = 10_000
"""Names of deleted topics that are remembered."""


class MetadataCache:
    """The newest image, and who wants to know of the next one."""

    def __init__(self, cluster_id: str, events: Events) -> None:
        self.cluster_id = cluster_id
        self.image = MetadataImage(cluster_id=cluster_id)
        self.removed_below: dict[str, Offset] = {}
        """By name, an offset of the metadata log below which its last topic was deleted, as far as seen here."""
        self._any_removed_below: Offset = NO_OFFSET
        """Below this offset topics of any other name may have been deleted: a snapshot does not say which."""
        self.leader_id: NodeId = NO_NODE
        self.leader_epoch: Epoch = NO_EPOCH
        self.i_lead = False
        self._events = events
        self._image_subscribers: list[ImageSubscriber] = []
        self._leader_subscribers: list[LeaderSubscriber] = []
        self._moved = Flag()

    def subscribe(self, callback: ImageSubscriber) -> None:
        """Call ``callback`` with (old, new) at each change, beginning with the next."""
        self._image_subscribers.append(callback)

    def subscribe_leader(self, callback: LeaderSubscriber) -> None:
        """Call ``callback`` with who leads the quorum: once now, then at each change."""
        self._leader_subscribers.append(callback)
        callback(self.leader_id, self.leader_epoch, self.i_lead)

    async def until(self, met: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until an image fulfills ``met``; False if none does in time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not met():
            self._moved.clear()
            if not await self._moved.wait(deadline):
                return False
        return True

    def removed_below_of(self, name: str) -> Offset:
        """An offset of the metadata log below which the last topic of this name was deleted, if there was one."""
        return self.removed_below.get(name, self._any_removed_below)

    # ---- the quorum's listener ----

    def on_commit(self, base_offset: Offset, leader_epoch: Epoch, payloads: Sequence[bytes]) -> None:
        """Apply one committed batch. Raises UnsupportedVersion or CorruptMessage."""
        records = [decode(payload) for payload in payloads]
        self._show(self.image.replay_all(records, base_offset + len(records), leader_epoch))

    def on_snapshot(self, snapshot: EpochEnd, payloads: Sequence[bytes]) -> None:
        """Restore the state from a snapshot. Raises UnsupportedVersion or CorruptMessage."""
        records = [decode(payload) for payload in payloads]
        empty = MetadataImage(cluster_id=self.cluster_id)
        self._events("snapshot_loaded", end_offset=snapshot.end_offset, epoch=snapshot.epoch, records=len(records))
        self._any_removed_below = snapshot.end_offset
        self._show(empty.replay_all(records, snapshot.end_offset, snapshot.epoch))

    def on_leader(self, leader_id: NodeId, epoch: Epoch, i_lead: bool) -> None:  # noqa: FBT001 - the listener's form
        """The quorum's leader is known, or no longer known."""
        self.leader_id, self.leader_epoch, self.i_lead = leader_id, epoch, i_lead
        for callback in tuple(self._leader_subscribers):
            callback(leader_id, epoch, i_lead)

    def snapshot_payloads(self) -> Sequence[bytes]:
        """The image as records, for a snapshot at ``image.offset``."""
        return [encode(record) for record in self.image.records()]

    def _show(self, new: MetadataImage) -> None:
        old, self.image = self.image, new
        for name in removed_topics(old, new):
            self.removed_below.pop(name, None)
            self.removed_below[name] = new.offset
        while len(self.removed_below) > REMOVED_TOPICS_MAX:
            forgotten = self.removed_below.pop(next(iter(self.removed_below)))
            self._any_removed_below = max(self._any_removed_below, forgotten)
        self._moved.set()
        for callback in tuple(self._image_subscribers):
            callback(old, new)


def removed_topics(old: MetadataImage, new: MetadataImage) -> list[str]:
    """Names of the topics, in the sense of topic ids, that ``old`` has and ``new`` has not."""
    if old.topic_names is new.topic_names:
        return []
    return [name for topic_id, name in old.topic_names.items() if topic_id not in new.topic_names]


def metadata_of(
    image: MetadataImage, request: m.MetadataRequest, *, controller_id: NodeId, listener: str = ""
) -> m.MetadataResponse:
    """What clients need to find leaders: brokers that live, where the client's ``listener`` finds them, and the topics
    asked for, an unknown one with an error.
    """
    addresses = {node: broker.address_at(listener) for node, broker in image.brokers.items()}
    return m.MetadataResponse(
        cluster_id=image.cluster_id,
        controller_id=controller_id,
        brokers=tuple(
            m.MetadataBroker(node_id=node, host=addresses[node].host, port=addresses[node].port, rack=broker.rack)
            for node, broker in sorted(image.brokers.items())
            if not broker.fenced
        ),
        topics=tuple(_topic(image, name) for name in _asked(image, request.topics)),
        metadata_offset=image.offset,
    )


def describe_topics(image: MetadataImage, request: m.DescribeTopicsRequest) -> m.DescribeTopicsResponse:
    """Partition state as the controller has recorded it (S15), for people and checks."""
    return m.DescribeTopicsResponse(topics=tuple(_described(image, name) for name in _asked(image, request.topics)))


def _asked(image: MetadataImage, names: Iterable[str] | None) -> list[str]:
    """Every topic in order, or each of those asked for once."""
    return sorted(image.topics) if names is None else list(dict.fromkeys(names))


def _missing(name: str) -> ProtocolError:
    """A name that no topic can have is not worth asking for again."""
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        return error
    return UnknownTopicOrPartition(f"there is no topic {name!r}")


def _topic(image: MetadataImage, name: str) -> m.MetadataTopic:
    topic = image.topics.get(name)
    if topic is None:
        error = _missing(name)
        return m.MetadataTopic.with_error(error, name=name, is_internal=name in INTERNAL_TOPICS)
    return m.MetadataTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=tuple(_partition(image, topic, partition) for partition in topic.partitions),
    )


def _partition(image: MetadataImage, topic: TopicImage, partition: PartitionImage) -> m.MetadataPartition:
    alive = partition.leader != NO_NODE and image.alive(partition.leader)
    error = None
    if not alive:
        error = LeaderNotAvailable(f"{topic.name}-{partition.partition} has no leader that lives")
    return m.MetadataPartition(
        partition=partition.partition,
        leader_id=partition.leader if alive else NO_NODE,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=tuple(node for node in partition.replicas if not image.alive(node)),
        error_code=error.code if error else 0,
        error_message=error.message if error else "",
    )


def _described(image: MetadataImage, name: str) -> m.DescribedTopic:
    topic = image.topics.get(name)
    if topic is None:
        error = _missing(name)
        return m.DescribedTopic.with_error(error, topic=name)
    return m.DescribedTopic(
        topic=name,
        topic_id=topic.topic_id,
        config=dict(sorted(topic.configs.items())),
        partitions=tuple(
            m.DescribedPartition(
                partition=each.partition,
                leader=each.leader,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                controller_epoch=each.controller_epoch,
                replicas=each.replicas,
                isr=each.isr,
                elr=each.elr,
                last_known_elr=each.last_known_elr,
                adding_replicas=each.adding,
                removing_replicas=each.removing,
            )
            for each in topic.partitions
        ),
    )


# ---- the APIs --------------------------------------------------------------------------------------------------------


# How long an answer waits for a topic that it has just had created; after that the client asks again.
CREATION_WAIT_S = 2.0


class MetadataApi:
    """Handlers that read the image."""

    def __init__(
        self,
        live: LiveSettings,
        world: World,
        metadata: MetadataCache,
        quorum: QuorumDriver,
        ask_controller: Callable[[object, RequestContext], Awaitable[object | None]],
    ) -> None:
        self._live = live
        self.world = world
        self.metadata = metadata
        self.quorum = quorum
        self._ask_controller = ask_controller

    def handle_metadata(
        self, request: m.MetadataRequest, context: RequestContext
    ) -> m.MetadataResponse | Awaitable[m.MetadataResponse]:
        """Brokers, topics, partitions, leaders; errors per topic and partition."""
        if request.allow_auto_topic_creation and self._live.now.auto_create_topics_enable:
            missing = self._missing(request)
            if missing:
                return self._create_and_answer(missing, request, context)
        return self._metadata(request, context)

    def _metadata(self, request: m.MetadataRequest, context: RequestContext) -> m.MetadataResponse:
        controller = self.quorum.leader_id
        if controller == NO_NODE and context.protocol == "kafka":
            # As in Kafka, where any broker is named: requests for the controller may come here, and wait for one to be
            # elected. librdkafka's admin client waits for a controller that it has not heard of until its request times
            # out, and its clients request metadata again only after minutes.
            controller = self._live.now.node_id
        return metadata_of(self.metadata.image, request, controller_id=controller, listener=context.listener)

    def _missing(self, request: m.MetadataRequest) -> list[str]:
        known = self.metadata.image.topics
        return [name for name in dict.fromkeys(request.topics or ()) if name not in known and name != METADATA_TOPIC]

    async def _create_and_answer(
        self, missing: list[str], request: m.MetadataRequest, context: RequestContext
    ) -> m.MetadataResponse:
        config = self._live.now
        creation = m.CreateTopicsRequest(
            topics=tuple(
                m.NewTopic(
                    name=name,
                    num_partitions=config.num_partitions,
                    replication_factor=config.default_replication_factor,
                )
                for name in missing
            )
        )
        answer = await self._ask_controller(creation, context)
        refused: dict[str, m.CreatedTopic] = {}
        if isinstance(answer, m.CreateTopicsResponse):
            # Too few brokers may be more soon: such a topic stays unknown, and clients ask again.
            refused = {each.name: each for each in answer.topics if each.error_code == InvalidTopic.code}
            names = [each.name for each in answer.topics if each.error_code == 0]
            cache = self.metadata
            if not await cache.until(lambda: all(name in cache.image.topics for name in names), CREATION_WAIT_S):
                self.world.events("topic_creation_unseen", topics=names)
        response = self._metadata(request, context)
        topics = [
            m.MetadataTopic(name=name, error_code=refused[name].error_code, error_message=refused[name].error_message)
            if (name := each.name) in refused
            else each
            for each in response.topics
        ]
        return replace(response, topics=tuple(topics))
