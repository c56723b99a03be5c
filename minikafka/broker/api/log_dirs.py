"""DescribeLogDirs: the data directory of this broker, and how large each replica in it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minikafka.types import TopicPartition
from minikafka.wire.admin import DescribedLogDir, DescribeLogDirsRequest, DescribeLogDirsResponse, ReplicaSize

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager


def handle_describe_log_dirs(replicas: ReplicaManager, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """One directory; ``offset_lag`` is how far a replica is behind the high watermark that it knows."""
    asked = (
        None
        if request.partitions is None
        else {TopicPartition(each.topic, each.partition) for each in request.partitions}
    )
    return DescribeLogDirsResponse(
        results=(
            DescribedLogDir(
                log_dir=replicas.config.log_dirs,
                replicas=tuple(
                    ReplicaSize(
                        topic=name.topic,
                        partition=name.partition,
                        size_bytes=partition.log.size_bytes,
                        offset_lag=max(0, partition.high_watermark - partition.log.end_offset),
                    )
                    for name, partition in sorted(replicas.partitions.items())
                    if asked is None or name in asked
                ),
            ),
        )
    )
