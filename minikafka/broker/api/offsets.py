"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: questions and commands about positions in a log.

A leader whose session with the controller has expired refuses clients, as it does in ``fetch.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from minikafka.broker.api.produce import TIMEOUT_MS_MAX
from minikafka.broker.lifecycle import SessionAlive, session_expired
from minikafka.broker.waiters import Condition, Mark
from minikafka.errors import (
    InvalidRequest,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ProtocolError,
    RequestTimedOut,
    UnsupportedForMessageFormat,
)
from minikafka.replication.leader import LeaderReplica
from minikafka.types import TopicPartition
from minikafka.wire.messages import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochAnswer,
    EpochQuery,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.log.partition_log import PartitionLog


LISTED_PER_TURN = 500
"""Partitions that are looked up before others are served: a search by timestamp reads a log's index and a batch."""


def handle_list_offsets(
    replicas: ReplicaManager, request: ListOffsetsRequest, *, session_alive: SessionAlive
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """The offset for a time, or the earliest, latest (high watermark; log end for replicas), or newest timestamp's.

    A new leader whose watermark has not reached its epoch's start answers OFFSET_NOT_AVAILABLE to clients (KIP-207).
    """
    if len(request.partitions) > LISTED_PER_TURN:
        return _list_in_turns(replicas, request, session_alive)
    return ListOffsetsResponse(
        partitions=tuple(_list_one(replicas, request, item, session_alive) for item in request.partitions)
    )


async def _list_in_turns(
    replicas: ReplicaManager, request: ListOffsetsRequest, session_alive: SessionAlive
) -> ListOffsetsResponse:
    found = []
    for number, item in enumerate(request.partitions, 1):
        found.append(_list_one(replicas, request, item, session_alive))
        if number % LISTED_PER_TURN == 0:
            await asyncio.sleep(0)
    return ListOffsetsResponse(partitions=tuple(found))


def _list_one(
    replicas: ReplicaManager, request: ListOffsetsRequest, item: ListOffsetsPartition, session_alive: SessionAlive
) -> ListedOffset:
    name = TopicPartition(item.topic, item.partition)
    try:
        partition = replicas.get(name)
        leader = partition.as_leader(item.current_leader_epoch)
        if request.replica_id < 0 and not session_alive():
            raise session_expired(name)
        if request.isolation_level == READ_COMMITTED:
            check_isolation(leader.log)
        with replicas.storage_guard(partition):
            timestamp, offset, epoch = _find(leader, item.timestamp, for_client=request.replica_id < 0)
    except ProtocolError as error:
        return ListedOffset(
            topic=item.topic,
            partition=item.partition,
            error_code=error.code,
            error_message=error.message,
            current_leader=replicas.current_leader(name) if error.stale_metadata else None,
        )
    return ListedOffset(
        topic=item.topic, partition=item.partition, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def check_isolation(log: PartitionLog) -> None:
    """Raise UnsupportedForMessageFormat for ``read_committed`` from a log that holds batches of transactions."""
    if log.has_transactions:
        raise UnsupportedForMessageFormat(
            f"{log.partition}: isolation level read_committed is refused: this log holds batches of transactions that "
            "Kafka wrote, and which of them were aborted is not known here; read it with read_uncommitted"
        )


def _find(leader: LeaderReplica, timestamp: int, *, for_client: bool) -> tuple[int, int, int]:
    log = leader.log
    end = leader.high_watermark if for_client else log.end_offset
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_offset, log.epochs.epoch_at(log.start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if timestamp < EARLIEST_PENDING_UPLOAD:
        raise InvalidRequest(
            f"timestamp={timestamp} is not supported; use milliseconds since 1970, -1 (latest), -2 (earliest), "
            "-3 (max timestamp), -4 (earliest local), -5 (latest tiered) or -6 (earliest pending upload)."
        )
    if for_client and not leader.knows_its_watermark:
        raise OffsetNotAvailable(
            f"{leader.partition}: the new leader's high watermark {leader.high_watermark} is behind its epoch's start "
            f"{leader.epoch_start}: ask again in a moment"
        )
    if timestamp == LATEST:
        return -1, end, leader.epoch
    found = log.max_timestamp_offset(end) if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp, end)
    return found if found is not None else (-1, -1, -1)


def handle_offset_for_leader_epoch(
    replicas: ReplicaManager, request: OffsetForLeaderEpochRequest, *, session_alive: SessionAlive
) -> OffsetForLeaderEpochResponse:
    """Where an epoch ends in the leader's log (KIP-101, KIP-279)."""
    may_answer = request.replica_id >= 0 or session_alive()
    return OffsetForLeaderEpochResponse(
        partitions=tuple(_epoch_end(replicas, item, may_answer=may_answer) for item in request.partitions)
    )


def _epoch_end(replicas: ReplicaManager, item: EpochQuery, *, may_answer: bool) -> EpochAnswer:
    name = TopicPartition(item.topic, item.partition)
    try:
        leader = replicas.get(name).as_leader(item.current_leader_epoch)
        if not may_answer:
            raise session_expired(name)
    except ProtocolError as error:
        return EpochAnswer(
            topic=item.topic, partition=item.partition, error_code=error.code, error_message=error.message
        )
    end = leader.log.end_offset_for(item.leader_epoch)
    return EpochAnswer(topic=item.topic, partition=item.partition, leader_epoch=end.epoch, end_offset=end.end_offset)


async def handle_delete_records(
    replicas: ReplicaManager, request: DeleteRecordsRequest, *, session_alive: SessionAlive
) -> DeleteRecordsResponse:
    """Raise log starts; answer when every live replica's start has reached the offset (the low watermark)."""
    deadline = replicas.clock.now() + min(max(0, request.timeout_ms), TIMEOUT_MS_MAX) / 1000
    return DeleteRecordsResponse(
        partitions=tuple([await _delete_one(replicas, item, deadline, session_alive) for item in request.partitions])
    )


async def _delete_one(
    replicas: ReplicaManager, item: DeleteRecordsPartition, deadline: float, session_alive: SessionAlive
) -> DeletedRecords:
    name = TopicPartition(item.topic, item.partition)
    try:
        partition = replicas.get(name)
        leader = partition.as_leader()
        if not session_alive():
            raise session_expired(name)
        offset = leader.high_watermark if item.offset == -1 else item.offset
        if not 0 <= offset <= leader.high_watermark:
            raise OffsetOutOfRange(
                f"{name}: offset {offset} is not within 0 and the high watermark {leader.high_watermark}",
                high_watermark=leader.high_watermark,
            )
        if offset > leader.log.start_offset:
            with replicas.storage_guard(partition):
                leader.log.raise_start(offset)

        def reached() -> bool:
            return partition.as_leader() is leader and replicas.low_watermark(leader) >= offset

        condition = Condition(Mark.LOG_START, name, offset)
        with replicas.traffic.purgatories["DeleteRecords"].parked():
            is_reached = await replicas.waiters.until([condition], reached, deadline)
        if not is_reached:
            raise RequestTimedOut(f"{name}: deleted here, some live replica has not followed yet", outcome="unknown")
    except ProtocolError as error:
        return DeletedRecords(
            topic=item.topic,
            partition=item.partition,
            error_code=error.code,
            error_message=error.message,
            outcome=error.outcome,
        )
    return DeletedRecords(topic=item.topic, partition=item.partition, low_watermark=replicas.low_watermark(leader))
