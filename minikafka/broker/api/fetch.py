"""Fetch: read from partitions, as a consumer or as a follower.

- Waits up to ``max_wait_ms`` for ``min_bytes``, then answers with what there is (S12); an error or a divergence in any
  partition answers at once.
- A follower's fetch offset is also its acknowledgement: everything below it is at the follower (S5, S7). It counts
  once per request, only after a read that succeeded and did not diverge; the answer carries the watermark *after* it.
- A consumer reads below the high watermark, taken once per read (S3, KAFKA-9807); only leaders serve (S17).
- The first batch is returned even if it is larger than every limit (KIP-74).
- Differs from Kafka: no incremental fetch sessions (``session_id`` is always 0), no rack awareness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minikafka.broker.waiters import Condition, Mark
from minikafka.errors import InconsistentTopicId, InvalidRequest, OffsetOutOfRange, ProtocolError
from minikafka.replication.leader import LeaderReplica
from minikafka.types import EpochEnd, Offset, TopicPartition
from minikafka.wire.messages import (
    EpochEndOffset,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.log.partition_log import LogSlice
    from minikafka.replication.partition import Partition

# A parked fetch holds a connection; nobody gains by waiting longer than this in one request.
MAX_WAIT_MS_MAX = 300_000


@dataclass(frozen=True, slots=True)
class _Read:
    """What one partition has to say."""

    answer: FetchedPartition
    size: int
    urgent: bool
    """Do not wait: an error, or a divergence."""


async def handle_fetch(replicas: ReplicaManager, request: FetchRequest) -> FetchResponse:
    """Read, wait if there is too little, read again; see the head of this file."""
    if request.max_wait_ms < 0:
        raise InvalidRequest(f"max_wait_ms={request.max_wait_ms} is negative", member="max_wait_ms")
    if request.max_bytes < 0 or any(each.partition_max_bytes < 0 for each in request.partitions):
        raise InvalidRequest("max_bytes and partition_max_bytes must not be negative")
    now = replicas.clock.now()
    deadline = now + min(request.max_wait_ms, MAX_WAIT_MS_MAX) / 1000
    budget = min(request.max_bytes, replicas.config.fetch_max_bytes)
    min_bytes = min(request.min_bytes, budget)
    reads = _read_all(replicas, request, budget, acknowledge=True)
    if _enough(reads, min_bytes) or request.max_wait_ms == 0 or not request.partitions:
        return _response(reads)
    mark = Mark.LOG_END if request.replica_id >= 0 else Mark.HIGH_WATERMARK
    conditions = [
        Condition(mark, TopicPartition(each.topic, each.partition), each.fetch_offset + 1)
        for each in request.partitions
    ]

    def enough() -> bool:
        nonlocal reads
        reads = _read_all(replicas, request, budget, acknowledge=False)
        return _enough(reads, min_bytes)

    if not await replicas.waiters.until(conditions, enough, deadline, just_asked=True):
        reads = _read_all(replicas, request, budget, acknowledge=False)
    return _response(reads)


def _enough(reads: list[_Read], min_bytes: int) -> bool:
    return any(each.urgent for each in reads) or sum(each.size for each in reads) >= min_bytes


def _response(reads: list[_Read]) -> FetchResponse:
    return FetchResponse(partitions=tuple(each.answer for each in reads))


def _read_all(replicas: ReplicaManager, request: FetchRequest, budget: int, *, acknowledge: bool) -> list[_Read]:
    reads = []
    any_data = False
    for item in request.partitions:
        read = _read_one(replicas, request, item, budget, first=not any_data, acknowledge=acknowledge)
        budget = max(0, budget - read.size)
        any_data = any_data or read.size > 0
        reads.append(read)
    return reads


def _read_one(
    replicas: ReplicaManager,
    request: FetchRequest,
    item: FetchPartition,
    budget: int,
    *,
    first: bool,
    acknowledge: bool,
) -> _Read:
    name = TopicPartition(item.topic, item.partition)
    partition: Partition | None = None
    try:
        partition = replicas.get(name)
        if item.topic_id is not None and item.topic_id != partition.topic_id:
            raise InconsistentTopicId(f"{item.topic} has the id {partition.topic_id} here, not {item.topic_id}")
        leader = partition.as_leader(item.current_leader_epoch)
        if request.replica_id >= 0:
            return _read_as_follower(replicas, request, item, partition, leader, budget, first, acknowledge)
        return _read_as_consumer(replicas, item, partition, leader, budget, first)
    except ProtocolError as error:
        return _refusal(replicas, name, partition, error)


def _read_as_follower(
    replicas: ReplicaManager,
    request: FetchRequest,
    item: FetchPartition,
    partition: Partition,
    leader: LeaderReplica,
    budget: int,
    first: bool,  # noqa: FBT001 - named at its only call
    acknowledge: bool,  # noqa: FBT001 - as first
) -> _Read:
    leader.check_fetcher(request.replica_id, request.replica_epoch)
    diverging = leader.diverging(item.fetch_offset, item.last_fetched_epoch)
    if diverging is not None:
        replicas.events("fetch_diverged", partition=str(partition.partition), replica=request.replica_id, end=diverging)
        return _diverged(partition, leader, diverging)
    end = leader.log.end_offset
    data = _read_log(replicas, partition, item, end, budget, first=first)
    if acknowledge:
        effect = leader.record_fetch(
            request.replica_id,
            item.fetch_offset,
            start_offset=item.log_start_offset,
            broker_epoch=request.replica_epoch,
            leader_end=end,
            now=replicas.clock.now(),
        )
        replicas.follower_fetched(partition, leader, effect)
    return _data(partition, leader, data)


def _read_as_consumer(
    replicas: ReplicaManager,
    item: FetchPartition,
    partition: Partition,
    leader: LeaderReplica,
    budget: int,
    first: bool,  # noqa: FBT001
) -> _Read:
    diverging = leader.diverging(item.fetch_offset, item.last_fetched_epoch)
    if diverging is not None:
        return _diverged(partition, leader, diverging)
    end = leader.high_watermark
    if end < item.fetch_offset <= leader.log.end_offset:
        return _data(partition, leader, None)
    return _data(partition, leader, _read_log(replicas, partition, item, end, budget, first=first))


def _read_log(
    replicas: ReplicaManager, partition: Partition, item: FetchPartition, end: Offset, budget: int, *, first: bool
) -> LogSlice | None:
    log = partition.log
    if not log.start_offset <= item.fetch_offset <= log.end_offset:
        raise OffsetOutOfRange(
            f"{partition.partition}: offset {item.fetch_offset} is outside {log.start_offset} to {log.end_offset}",
            log_start_offset=log.start_offset,
            log_end_offset=log.end_offset,
        )
    limit = min(budget, item.partition_max_bytes)
    if item.fetch_offset >= end or (limit <= 0 and not first):
        return None
    with replicas.storage_guard(partition):
        return log.read(item.fetch_offset, max_bytes=limit, end_offset=end, min_one_batch=first)


def _data(partition: Partition, leader: LeaderReplica, data: LogSlice | None) -> _Read:
    answer = FetchedPartition(
        topic=partition.partition.topic,
        partition=partition.partition.partition,
        high_watermark=leader.high_watermark,
        last_stable_offset=leader.high_watermark,
        log_start_offset=leader.log.start_offset,
        log_end_offset=leader.log.end_offset,
        records=data.buffers if data is not None else (),
    )
    return _Read(answer, data.size if data is not None else 0, urgent=False)


def _diverged(partition: Partition, leader: LeaderReplica, diverging: EpochEnd) -> _Read:
    answer = FetchedPartition(
        topic=partition.partition.topic,
        partition=partition.partition.partition,
        high_watermark=leader.high_watermark,
        last_stable_offset=leader.high_watermark,
        log_start_offset=leader.log.start_offset,
        log_end_offset=leader.log.end_offset,
        diverging_epoch=EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset),
    )
    return _Read(answer, 0, urgent=True)


def _refusal(
    replicas: ReplicaManager, name: TopicPartition, partition: Partition | None, error: ProtocolError
) -> _Read:
    known = partition is not None and isinstance(partition.role, LeaderReplica)
    answer = FetchedPartition(
        topic=name.topic,
        partition=name.partition,
        error_code=error.code,
        error_message=error.message,
        high_watermark=partition.high_watermark if known and partition else -1,
        log_start_offset=partition.log.start_offset if known and partition else -1,
        log_end_offset=partition.log.end_offset if known and partition else -1,
        current_leader=replicas.current_leader(name) if error.stale_metadata else None,
    )
    return _Read(answer, 0, urgent=True)
