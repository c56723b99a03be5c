"""DescribeLog: this broker's own log of a partition, as it lies there, committed or not (our own API).

Unlike Fetch it is answered by any replica, changes nothing (it is no acknowledgement), never waits, and goes to the
log's end: for people who look at what a replica holds beyond the high watermark, or held before it was cut. The
metadata log can be read in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minikafka.errors import InvalidRequest
from minikafka.types import METADATA_PARTITION, Offset, TopicPartition
from minikafka.wire.messages import DescribeLogRequest, DescribeLogResponse, EpochStart

if TYPE_CHECKING:
    from minikafka.broker.quorum_driver import QuorumDriver
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.log.partition_log import PartitionLog


def handle_describe_log(
    replicas: ReplicaManager, quorum: QuorumDriver, request: DescribeLogRequest
) -> DescribeLogResponse:
    """Raises UnknownTopicOrPartition, ReplicaNotAvailable, OffsetOutOfRange, CorruptMessage, KafkaStorageError."""
    if request.max_bytes < 0 or request.offset < -1:
        raise InvalidRequest("max_bytes must not be negative, offset not below -1")
    name = TopicPartition(request.topic, request.partition)
    if name == METADATA_PARTITION:
        role = quorum.core.role.name
        return _answer(replicas, request, quorum.log, role, quorum.epoch, quorum.high_watermark)
    partition = replicas.get(name)
    role = "offline" if partition.failed else "leader" if partition.leader == replicas.config.node_id else "follower"
    return _answer(replicas, request, partition.log, role, partition.epoch, partition.high_watermark)


def _answer(
    replicas: ReplicaManager,
    request: DescribeLogRequest,
    log: PartitionLog,
    role: str,
    epoch: int,
    high_watermark: Offset,
) -> DescribeLogResponse:
    start = log.start_offset if request.offset == -1 else request.offset
    max_bytes = min(request.max_bytes, replicas.config.fetch_max_bytes)
    read = log.read(start, max_bytes=max_bytes, min_one_batch=max_bytes > 0)
    return DescribeLogResponse(
        broker_id=replicas.config.node_id,
        role=role,
        leader_epoch=epoch,
        log_start_offset=log.start_offset,
        high_watermark=high_watermark,
        log_end_offset=log.end_offset,
        synced_end=log.synced_end,
        segment_count=log.segment_count,
        size_bytes=log.size_bytes,
        epochs=tuple(EpochStart(leader_epoch=epoch, start_offset=start) for epoch, start in log.epochs.entries),
        records=read.buffers,
    )
