"""What a client believes of the cluster: brokers, topics, and who leads each partition in which epoch (S27).

Rules for this file:

1. No I/O and no clock: answers go in, with ``now``.
2. Never back to older metadata: an answer that reflects less of the metadata log than one seen before is refused, and
   within a topic a partition's leader epoch never falls (a refused produce may have named a newer one).
3. A topic that was deleted and created again has another topic id: then everything known of it is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from minikafka.errors import InconsistentClusterId, ProtocolError, error_of
from minikafka.types import NO_NODE, NO_OFFSET, Address, Epoch, NodeId, TopicId, TopicPartition
from minikafka.wire.messages import CurrentLeader, MetadataResponse, MetadataTopic, NodeEndpoint


class Leader(NamedTuple):
    """Who leads a partition, in which epoch; ``node`` is -1 when nobody does."""

    node: NodeId
    epoch: Epoch


NOBODY = Leader(NO_NODE, -1)


@dataclass(slots=True)
class TopicView:
    """One topic; partitions are numbered from 0 without gaps."""

    topic_id: TopicId | None
    is_internal: bool = False
    leaders: list[Leader] = field(default_factory=list)
    replicas: list[tuple[NodeId, ...]] = field(default_factory=list)
    isr: list[tuple[NodeId, ...]] = field(default_factory=list)


class Update(NamedTuple):
    """What an answer changed."""

    accepted: bool
    """False: it was older than what is known."""
    changed: tuple[TopicPartition, ...] = ()
    """Partitions whose leader or epoch is another one now, and partitions that are new or gone."""


class ClusterView:
    """A cache of metadata that only moves forward."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id: NodeId = NO_NODE
        self.metadata_offset = NO_OFFSET
        self.brokers: dict[NodeId, Address] = {}
        self.topics: dict[str, TopicView] = {}
        self.errors: dict[str, ProtocolError] = {}
        """Topics that the last answer about them refused to describe."""
        self.updated_at: float | None = None

    def update(self, response: MetadataResponse, now: float, *, all_topics: bool = False) -> Update:
        """Take over an answer. InconsistentClusterId when it comes from another cluster."""
        if self.cluster_id and response.cluster_id and response.cluster_id != self.cluster_id:
            raise InconsistentClusterId(
                f"this client belongs to cluster {self.cluster_id} and was answered by {response.cluster_id}"
            )
        if 0 <= response.metadata_offset < self.metadata_offset:
            return Update(accepted=False)
        self.cluster_id = self.cluster_id or response.cluster_id
        self.metadata_offset = max(self.metadata_offset, response.metadata_offset)
        self.controller_id = response.controller_id
        self.updated_at = now
        if response.brokers:
            self.brokers = {each.node_id: Address(each.host, each.port) for each in response.brokers}
        changed: list[TopicPartition] = []
        for topic in response.topics:
            changed.extend(self._update_topic(topic))
        if all_topics:
            named = {topic.name for topic in response.topics}
            for name in [name for name in self.topics if name not in named]:
                changed.extend(self._forget(name))
        return Update(accepted=True, changed=tuple(changed))

    def _update_topic(self, topic: MetadataTopic) -> Iterable[TopicPartition]:
        if topic.error_code:
            self.errors[topic.name] = error_of(topic.error_code, topic.error_message)
            # A topic without a leader is still there; only "unknown" says that it is gone.
            return self._forget(topic.name) if topic.error_code == 3 else ()
        self.errors.pop(topic.name, None)
        known = self.topics.get(topic.name)
        changed: list[TopicPartition] = []
        if known is not None and known.topic_id != topic.topic_id and None not in (known.topic_id, topic.topic_id):
            changed.extend(self._forget(topic.name))
            known = None
        partitions = sorted(topic.partitions, key=lambda each: each.partition)
        old = known.leaders if known is not None else []
        leaders = []
        for index, each in enumerate(partitions):
            leader = Leader(each.leader_id, each.leader_epoch)
            if index < len(old) and leader.epoch < old[index].epoch:
                leader = old[index]
            if index >= len(old) or leader != old[index]:
                changed.append(TopicPartition(topic.name, each.partition))
            leaders.append(leader)
        self.topics[topic.name] = TopicView(
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            leaders=leaders,
            replicas=[each.replica_nodes for each in partitions],
            isr=[each.isr_nodes for each in partitions],
        )
        return changed

    def _forget(self, name: str) -> list[TopicPartition]:
        topic = self.topics.pop(name, None)
        return [TopicPartition(name, index) for index in range(len(topic.leaders))] if topic is not None else []

    def learn_leader(
        self, partition: TopicPartition, leader: CurrentLeader | None, endpoints: Iterable[NodeEndpoint] = ()
    ) -> bool:
        """Take a broker's hint that came with a refusal; True when it was newer than what is known."""
        for each in endpoints:
            self.brokers[each.node_id] = Address(each.host, each.port)
        topic = self.topics.get(partition.topic)
        if leader is None or topic is None or not 0 <= partition.partition < len(topic.leaders):
            return False
        if leader.leader_epoch <= topic.leaders[partition.partition].epoch:
            return False
        topic.leaders[partition.partition] = Leader(leader.leader_id, leader.leader_epoch)
        return True

    def leader(self, topic: str, partition: int) -> Leader:
        """Who leads, as far as is known; ``NOBODY`` when nothing is."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.leaders):
            return NOBODY
        return known.leaders[partition]

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; None when it is not known."""
        known = self.topics.get(topic)
        return len(known.leaders) if known is not None else None

    def __repr__(self) -> str:
        return (
            f"<cluster {self.cluster_id or '?'} metadata={self.metadata_offset} controller={self.controller_id}"
            f" brokers={','.join(map(str, sorted(self.brokers)))} topics={len(self.topics)}>"
        )
