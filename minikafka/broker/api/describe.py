"""What this broker can tell about itself: DescribeReplicas (our own API), DescribeProducers and ApiVersions.

DescribeLog and ExplainPartition, also our own, have files of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from minikafka import __version__
from minikafka.errors import OffsetNotAvailable, ProtocolError
from minikafka.replication.leader import NEVER, LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.types import NO_EPOCH, NO_OFFSET, TopicPartition
from minikafka.wire.apis import APIS
from minikafka.wire.batch import NO_SEQUENCE
from minikafka.wire.messages import (
    ActiveProducer,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribedProducer,
    DescribedReplica,
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    RemoteReplica,
)

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager


def handle_api_versions(_request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Every API with the versions spoken here."""
    return ApiVersionsResponse(
        broker_version=__version__,
        apis=tuple(
            ApiVersion(api=api.name, api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS
        ),
    )


def handle_describe_replicas(
    replicas: ReplicaManager, request: DescribeReplicasRequest, *, broker_epoch: int
) -> DescribeReplicasResponse:
    """Role, log end, high watermark and, on leaders, what is known of the followers."""
    names = sorted(name for name in replicas.partitions if request.topics is None or name.topic in request.topics)
    now = replicas.clock.now()
    return DescribeReplicasResponse(
        broker_id=replicas.config.node_id,
        broker_epoch=broker_epoch,
        wall_ms=replicas.clock.wall_ms(),
        replicas=tuple(describe_replica(replicas.partitions[name], now) for name in names),
    )


def describe_replica(partition: Partition, now: float) -> DescribedReplica:
    """One replica as its own broker knows it."""
    role = partition.role
    replica = DescribedReplica(
        topic=partition.partition.topic,
        partition=partition.partition.partition,
        role="offline" if partition.failed else "leader" if isinstance(role, LeaderReplica) else "follower",
        leader_epoch=partition.epoch,
        log_start_offset=partition.log.start_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log.end_offset,
        isr=role.isr if role else (),
        lag_time_max_ms=int(partition.lag_time_max_s * 1000),
        failure=partition.failed or "",
        last_stable_offset=partition.last_stable_offset,
    )
    if isinstance(role, LeaderReplica):
        return _with_followers(replica, role, now)
    return replica if role or partition.failed else replace(replica, role="idle")


def _with_followers(replica: DescribedReplica, leader: LeaderReplica, now: float) -> DescribedReplica:
    holding = leader.watermark_holders(now)
    return replace(
        replica,
        maximal_isr=leader.maximal_isr,
        acknowledged_end=leader.own_end,
        epoch_start_offset=leader.epoch_start,
        min_isr=leader.min_isr,
        proposed_isr=leader.proposal.isr if leader.proposal is not None else None,
        remotes=tuple(
            RemoteReplica(
                broker_id=node,
                log_end_offset=remote.end_offset,
                caught_up_ms_ago=_ms_ago(remote.caught_up_at(), now),
                in_sync=node in leader.isr,
                last_fetch_ms_ago=_ms_ago(remote.fetched_at(), now) if remote.fetched_at() != NEVER else -1,
                holds_watermark=node in holding,
                may_join=leader.may_join(node),
            )
            for node, remote in leader.remotes.items()
        ),
    )


def _ms_ago(at: float, now: float) -> int:
    return int(min(now - at, 2**31) * 1000)


def handle_describe_producers(replicas: ReplicaManager, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """What one idempotent producer wrote last to each partition, once that is committed (issue 4); or all of them.

    Who goes on behind an earlier attempt must not go on behind records that a new leader may not have: while the
    producer's last batch is at or above the high watermark the answer is OFFSET_NOT_AVAILABLE.
    """
    return DescribeProducersResponse(
        partitions=tuple(_describe_producer(replicas, item) for item in request.partitions)
    )


def _describe_producer(replicas: ReplicaManager, item: DescribeProducersPartition) -> DescribedProducer:
    name = TopicPartition(item.topic, item.partition)
    try:
        leader = replicas.get(name).as_leader()
        if item.producer_id < 0:
            active = tuple(ActiveProducer(**each._asdict()) for each in leader.log.producers.active())
            return DescribedProducer(topic=item.topic, partition=item.partition, active=active)
        known = leader.log.producers.last_batch(item.producer_id)
        if known is not None and known[2] >= leader.high_watermark:
            raise OffsetNotAvailable(f"{name}: the last batch of producer {item.producer_id} is not yet committed")
    except ProtocolError as error:
        return DescribedProducer(
            topic=item.topic, partition=item.partition, error_code=error.code, error_message=error.message
        )
    epoch, sequence, offset = known or (NO_EPOCH, NO_SEQUENCE, NO_OFFSET)
    return DescribedProducer(
        topic=item.topic,
        partition=item.partition,
        producer_id=item.producer_id,
        producer_epoch=epoch,
        last_sequence=sequence,
        last_offset=offset,
    )
