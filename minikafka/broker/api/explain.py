"""ExplainPartition: what this broker knows of a partition, and what happened to it lately (our own API; DESIGN D9).

Any broker answers: one with a replica tells its state, any other only what the metadata brought. The leader knows why
the high watermark stands where it stands; the active controller knows why it decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minikafka.broker.api.describe import describe_replica
from minikafka.broker.chronicle import Chronicle, Entry
from minikafka.errors import UnknownTopicOrPartition
from minikafka.types import TopicPartition
from minikafka.wire.messages import ExplainPartitionRequest, ExplainPartitionResponse, StoryEntry

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager


def handle_explain_partition(
    replicas: ReplicaManager, chronicle: Chronicle, request: ExplainPartitionRequest
) -> ExplainPartitionResponse:
    """Raises UnknownTopicOrPartition."""
    name = TopicPartition(request.topic, request.partition)
    replica = replicas.partitions.get(name)
    if replica is None and not replicas.knows(name):
        raise UnknownTopicOrPartition(f"{name} is not known to broker {replicas.config.node_id}")
    story = chronicle.of(name)
    return ExplainPartitionResponse(
        broker_id=replicas.config.node_id,
        replica=describe_replica(replica, replicas.clock.now()) if replica is not None else None,
        story=tuple(entry.told() for entry in story.entries),
        watermark_moved=_told(story.watermark_moved),
        refused=_told(story.refused),
    )


def _told(entry: Entry | None) -> StoryEntry | None:
    return entry.told() if entry is not None else None
