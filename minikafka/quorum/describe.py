"""The quorum as people see it: the answer to DescribeQuorum.

Rules for this file: reads only. Only the leader knows how far the others are; any other member answers with what it
knows of the leader, and NOT_LEADER_OR_FOLLOWER, so that the caller asks there.
"""

from __future__ import annotations

from collections.abc import Mapping

from minikafka.errors import NotLeaderOrFollower
from minikafka.quorum.core import QuorumCore
from minikafka.quorum.roles import Leader, Progress
from minikafka.types import Address, NodeId
from minikafka.wire.messages import DescribeQuorumResponse, NodeEndpoint, QuorumReplica


def describe(core: QuorumCore, voters: Mapping[NodeId, Address], now: float) -> DescribeQuorumResponse:
    """Columns as kafka-metadata-quorum prints them; times are ages in milliseconds."""
    endpoints = tuple(NodeEndpoint(node_id=node, host=at.host, port=at.port) for node, at in sorted(voters.items()))
    role = core.role
    if not isinstance(role, Leader):
        return DescribeQuorumResponse(
            error_code=NotLeaderOrFollower.code,
            error_message=f"node {core.me} is {role.name}, the leader is {core.leader_id}",
            cluster_id=core.cluster_id,
            leader_id=core.leader_id,
            leader_epoch=core.epoch,
            high_watermark=core.high_watermark,
            endpoints=endpoints,
            role=role.name,
        )
    end = core.log.end_offset
    own = QuorumReplica(
        replica_id=core.me, log_end_offset=end, lag=0, last_fetch_ms_ago=0, last_caught_up_ms_ago=0, status="Leader"
    )
    others = [_replica(node, progress, "Follower", end=end, now=now) for node, progress in role.voters.items()]
    observers = [_replica(node, progress, "Observer", end=end, now=now) for node, progress in role.observers.items()]
    return DescribeQuorumResponse(
        cluster_id=core.cluster_id,
        leader_id=core.me,
        leader_epoch=core.epoch,
        high_watermark=core.high_watermark,
        voters=tuple(sorted([own, *others], key=lambda replica: replica.replica_id)),
        observers=tuple(sorted(observers, key=lambda replica: replica.replica_id)),
        endpoints=endpoints,
        role=role.name,
    )


def _replica(node: NodeId, progress: Progress, status: str, *, end: int, now: float) -> QuorumReplica:
    return QuorumReplica(
        replica_id=node,
        log_end_offset=progress.end_offset,
        lag=end - progress.end_offset if progress.end_offset >= 0 else -1,
        last_fetch_ms_ago=_age_ms(progress.last_fetch_at, now),
        last_caught_up_ms_ago=_age_ms(progress.last_caught_up_at, now),
        status=status,
    )


def _age_ms(at: float | None, now: float) -> int:
    return -1 if at is None else int((now - at) * 1000)
