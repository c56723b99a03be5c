"""What this broker can tell about itself: DescribeReplicas (our own API) and ApiVersions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minikafka import __version__
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.wire.apis import APIS
from minikafka.wire.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribedReplica,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    RemoteReplica,
)

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager


async def handle_api_versions(_request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Every API with the versions spoken here."""
    return ApiVersionsResponse(
        broker_version=__version__,
        apis=tuple(
            ApiVersion(api=api.name, api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS
        ),
    )


async def handle_describe_replicas(
    replicas: ReplicaManager, request: DescribeReplicasRequest, *, broker_epoch: int
) -> DescribeReplicasResponse:
    """Role, log end, high watermark and, on leaders, what is known of the followers."""
    names = sorted(name for name in replicas.partitions if request.topics is None or name.topic in request.topics)
    now = replicas.clock.now()
    return DescribeReplicasResponse(
        broker_id=replicas.config.node_id,
        broker_epoch=broker_epoch,
        replicas=tuple(_describe(replicas.partitions[name], now) for name in names),
    )


def _describe(partition: Partition, now: float) -> DescribedReplica:
    role = partition.role
    leading = isinstance(role, LeaderReplica)
    return DescribedReplica(
        topic=partition.partition.topic,
        partition=partition.partition.partition,
        role="offline" if partition.failed else "leader" if leading else "follower" if role else "idle",
        leader_epoch=partition.epoch,
        log_start_offset=partition.log.start_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log.end_offset,
        isr=role.isr if role else (),
        maximal_isr=role.maximal_isr if isinstance(role, LeaderReplica) else (),
        remotes=tuple(
            RemoteReplica(
                broker_id=node,
                log_end_offset=remote.end_offset,
                caught_up_ms_ago=int(min(now - remote.last_caught_up, 2**31) * 1000),
                in_sync=node in role.isr,
            )
            for node, remote in role.remotes.items()
        )
        if isinstance(role, LeaderReplica)
        else (),
    )
