"""ExplainPartition: what this broker knows of a partition, and what happened to it lately (our own API; DESIGN D9).

Any broker answers: one with a replica tells its state, any other only what the metadata brought. The leader knows why
the high watermark stands where it stands; the active controller knows why it decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minikafka.broker.api.describe import describe_replica
from minikafka.broker.chronicle import Chronicle, Entry
from minikafka.errors import UnknownTopicOrPartition
from minikafka.replication.leader import LeaderReplica
from minikafka.types import TopicPartition
from minikafka.wire.batch import NO_TIMESTAMP, RecordBatch
from minikafka.wire.messages import (
    ExplainPartitionRequest,
    ExplainPartitionResponse,
    StoryEntry,
    UnstableTransaction,
)

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager


def handle_explain_partition(
    replicas: ReplicaManager, chronicle: Chronicle, request: ExplainPartitionRequest
) -> ExplainPartitionResponse:
    """Raises UnknownTopicOrPartition, CorruptMessage, KafkaStorageError."""
    name = TopicPartition(request.topic, request.partition)
    replica = replicas.partitions.get(name)
    if replica is None and not replicas.knows(name):
        raise UnknownTopicOrPartition(f"{name} is not known to broker {replicas.config.node_id}")
    story = chronicle.of(name)
    return ExplainPartitionResponse(
        broker_id=replicas.config.node_id,
        replica=describe_replica(replica, replicas.clock.now()) if replica is not None else None,
        unstable=_unstable(replica.role) if replica is not None and isinstance(replica.role, LeaderReplica) else None,
        story=tuple(entry.message() for entry in story.entries),
        watermark_moved=_told(story.watermark_moved),
        refused=_told(story.refused),
    )


def _unstable(leader: LeaderReplica) -> UnstableTransaction | None:
    """The transaction that holds the last stable offset back; its first batch is read for its timestamp."""
    log = leader.log
    holding = log.producers.transactions.holding(leader.high_watermark)
    if holding is None:
        return None
    started_ms = NO_TIMESTAMP
    if holding.first_offset >= log.start_offset:
        first = b"".join(log.read(holding.first_offset, max_bytes=0).buffers)
        started_ms = RecordBatch.of(first).base_timestamp
    return UnstableTransaction(
        producer_id=holding.producer_id,
        first_offset=holding.first_offset,
        marker_offset=holding.marker_offset,
        started_ms=started_ms,
    )


def _told(entry: Entry | None) -> StoryEntry | None:
    return entry.message() if entry is not None else None
