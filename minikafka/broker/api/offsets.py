"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: questions and commands about positions in a log.

A leader whose session with the controller has expired refuses each of these requests, whatever replica id it names. No
follower sends one, so replication does not depend on the answer of a leader that may be deposed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from minikafka import errors as kafka
from minikafka.broker.api.produce import TIMEOUT_MS_MAX
from minikafka.broker.lifecycle import SessionAlive, session_expired
from minikafka.broker.purgatory import Condition, Mark
from minikafka.log.disk_reader import TimestampHit, first_at_or_after
from minikafka.replication.leader import LeaderReplica
from minikafka.types import INTERNAL_TOPICS, Offset, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.decompression import DECOMPRESSED_BYTES_MAX
from minikafka.wire.validate import is_long

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.log.partition_log import PartitionLog
    from minikafka.replication.partition import Partition


LISTED_PER_TURN = 500
"""Positions that are looked up before others are served."""
SEARCH_COST = 25
"""A search by timestamp reads a log's index, a walk of headers and a batch: as much as this many positions."""
SEARCHED_HERE_MAX = 2_000
"""Records of a batch that are read on the loop, in one to two milliseconds; for more there is another thread."""


def handle_list_offsets(
    replicas: ReplicaManager, request: m.ListOffsetsRequest, *, session_alive: SessionAlive
) -> m.ListOffsetsResponse | Awaitable[m.ListOffsetsResponse]:
    """The offset for a time, or the earliest, latest, or newest timestamp's.

    The latest is the high watermark, with ``read_committed`` the last stable offset, and for replicas the log's end.
    Times are looked up below it.

    A new leader whose watermark has not reached its epoch's start answers OFFSET_NOT_AVAILABLE to clients (KIP-207).
    """
    if len(request.partitions) > LISTED_PER_TURN or any(_is_search(item) for item in request.partitions):
        return _list_in_turns(replicas, request, session_alive)
    return m.ListOffsetsResponse(
        partitions=tuple(_list_one(replicas, request, item, session_alive) for item in request.partitions)
    )


async def _list_in_turns(
    replicas: ReplicaManager, request: m.ListOffsetsRequest, session_alive: SessionAlive
) -> m.ListOffsetsResponse:
    found = []
    cost = 0
    for item in request.partitions:
        if cost >= LISTED_PER_TURN:
            await asyncio.sleep(0)
            cost = 0
        if _is_search(item):
            found.append(await _search_one(replicas, request, item, session_alive))
            cost += SEARCH_COST
        else:
            found.append(_list_one(replicas, request, item, session_alive))
            cost += 1
    return m.ListOffsetsResponse(partitions=tuple(found))


def _is_search(item: m.ListOffsetsPartition) -> bool:
    return item.timestamp >= 0 or item.timestamp == m.MAX_TIMESTAMP


def _list_one(
    replicas: ReplicaManager, request: m.ListOffsetsRequest, item: m.ListOffsetsPartition, session_alive: SessionAlive
) -> m.ListedOffset:
    try:
        partition, leader = _leader_of(replicas, item, session_alive)
        with replicas.storage_guard(partition):
            timestamp, offset, epoch = _position(leader, item.timestamp, request)
    except kafka.ProtocolError as error:
        return _refusal(replicas, item, error)
    return m.ListedOffset(
        topic=item.topic, partition=item.partition, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


async def _search_one(
    replicas: ReplicaManager, request: m.ListOffsetsRequest, item: m.ListOffsetsPartition, session_alive: SessionAlive
) -> m.ListedOffset:
    try:
        partition, leader = _leader_of(replicas, item, session_alive)
        with replicas.storage_guard(partition):
            end = _readable_end(leader, request)
            timestamp = leader.log.newest_timestamp(end) if item.timestamp == m.MAX_TIMESTAMP else item.timestamp
            hit = await _first_at_or_after(replicas, leader.log, timestamp, end) if timestamp >= 0 else None
        # The search may have taken turns: what a deposed leader found is not its answer to give, and a topic that was
        # created again meanwhile has other offsets.
        if _leader_of(replicas, item, session_alive)[1] is not leader:
            raise kafka.NotLeaderOrFollower(f"{partition.partition}: the leader has changed during the search")
    except kafka.ProtocolError as error:
        return _refusal(replicas, item, error)
    timestamp, offset, epoch = hit if hit is not None else (-1, -1, -1)
    return m.ListedOffset(
        topic=item.topic, partition=item.partition, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


async def _first_at_or_after(
    replicas: ReplicaManager, log: PartitionLog, timestamp: int, end: Offset
) -> TimestampHit | None:
    start = log.start_offset
    while (batch := log.batch_at_or_after(timestamp, start, end)) is not None:
        search = partial(first_at_or_after, batch, timestamp, start_offset=start, end_offset=end)
        with log.reading():
            is_short = batch.record_count <= SEARCHED_HERE_MAX and not is_long(batch, DECOMPRESSED_BYTES_MAX)
            hit = search() if is_short else await replicas.offload(search)
        if hit is not None:
            return hit
        start = batch.next_offset
    return None


def _leader_of(
    replicas: ReplicaManager, item: m.ListOffsetsPartition, session_alive: SessionAlive
) -> tuple[Partition, LeaderReplica]:
    name = TopicPartition(item.topic, item.partition)
    partition = replicas.get(name)
    leader = partition.as_leader(item.current_leader_epoch)
    if not session_alive():
        raise session_expired(name)
    return partition, leader


def _refusal(replicas: ReplicaManager, item: m.ListOffsetsPartition, error: kafka.ProtocolError) -> m.ListedOffset:
    return m.ListedOffset.with_error(
        error,
        topic=item.topic,
        partition=item.partition,
        current_leader=replicas.current_leader(TopicPartition(item.topic, item.partition))
        if error.stale_metadata
        else None,
    )


def _position(leader: LeaderReplica, timestamp: int, request: m.ListOffsetsRequest) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch for one of the negative timestamps that name a position."""
    log = leader.log
    if timestamp in (m.EARLIEST, m.EARLIEST_LOCAL):
        return -1, log.start_offset, log.epochs.epoch_at(log.start_offset)
    if timestamp in (m.LATEST_TIERED, m.EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if timestamp != m.LATEST:
        raise kafka.InvalidRequest(
            f"timestamp={timestamp} is not supported; use milliseconds since 1970, -1 (latest), -2 (earliest), "
            "-3 (max timestamp), -4 (earliest local), -5 (latest tiered) or -6 (earliest pending upload)."
        )
    return -1, _readable_end(leader, request), leader.epoch


def _readable_end(leader: LeaderReplica, request: m.ListOffsetsRequest) -> Offset:
    if request.replica_id >= 0:
        return leader.log.end_offset
    if not leader.knows_its_watermark:
        raise kafka.OffsetNotAvailable(
            f"{leader.partition}: the new leader's high watermark {leader.high_watermark} is behind its epoch's start "
            f"{leader.epoch_start}: ask again in a moment"
        )
    return leader.last_stable_offset if request.isolation_level == m.READ_COMMITTED else leader.high_watermark


def handle_offset_for_leader_epoch(
    replicas: ReplicaManager, request: m.OffsetForLeaderEpochRequest, *, session_alive: SessionAlive
) -> m.OffsetForLeaderEpochResponse | Awaitable[m.OffsetForLeaderEpochResponse]:
    """Where an epoch ends in the leader's log (KIP-101, KIP-279)."""
    may_answer = session_alive()
    if len(request.partitions) > LISTED_PER_TURN:
        return _epoch_ends_in_turns(replicas, request, may_answer=may_answer)
    return m.OffsetForLeaderEpochResponse(
        partitions=tuple(_epoch_end(replicas, item, may_answer=may_answer) for item in request.partitions)
    )


async def _epoch_ends_in_turns(
    replicas: ReplicaManager, request: m.OffsetForLeaderEpochRequest, *, may_answer: bool
) -> m.OffsetForLeaderEpochResponse:
    found = []
    for number, item in enumerate(request.partitions, 1):
        found.append(_epoch_end(replicas, item, may_answer=may_answer))
        if number % LISTED_PER_TURN == 0:
            await asyncio.sleep(0)
    return m.OffsetForLeaderEpochResponse(partitions=tuple(found))


def _epoch_end(replicas: ReplicaManager, item: m.EpochQuery, *, may_answer: bool) -> m.EpochAnswer:
    name = TopicPartition(item.topic, item.partition)
    try:
        leader = replicas.get(name).as_leader(item.current_leader_epoch)
        if not may_answer:
            raise session_expired(name)
    except kafka.ProtocolError as error:
        return m.EpochAnswer.with_error(error, topic=item.topic, partition=item.partition)
    end = leader.log.end_offset_for(item.leader_epoch)
    return m.EpochAnswer(topic=item.topic, partition=item.partition, leader_epoch=end.epoch, end_offset=end.end_offset)


async def handle_delete_records(
    replicas: ReplicaManager, request: m.DeleteRecordsRequest, *, session_alive: SessionAlive
) -> m.DeleteRecordsResponse:
    """Raise log starts; answer when every live replica's start has reached the offset (the low watermark).

    All starts are raised before anything is waited for: meanwhile a topic may be deleted and created again.
    """
    deadline = replicas.clock.now() + min(max(0, request.timeout_ms), TIMEOUT_MS_MAX) / 1000
    begun = [_begin_deletion(replicas, item, session_alive) for item in request.partitions]
    return m.DeleteRecordsResponse(
        partitions=tuple(
            [each if isinstance(each, m.DeletedRecords) else await _deleted(replicas, each, deadline) for each in begun]
        )
    )


class _Deletion(NamedTuple):
    """One partition whose log begins at ``offset`` now."""

    partition: Partition
    leader: LeaderReplica
    offset: Offset


def _begin_deletion(
    replicas: ReplicaManager, item: m.DeleteRecordsPartition, session_alive: SessionAlive
) -> _Deletion | m.DeletedRecords:
    name = TopicPartition(item.topic, item.partition)
    try:
        if name.topic in INTERNAL_TOPICS:
            raise kafka.InvalidTopic(
                f"{name}: a coordinator needs the records of its log, they are not deleted on request"
            )
        partition = replicas.get(name)
        if item.topic_id is not None and item.topic_id != partition.topic_id:
            raise kafka.UnknownTopicId(f"{name} has the topic id {partition.topic_id} here, not {item.topic_id}")
        leader = partition.as_leader()
        if not session_alive():
            raise session_expired(name)
        if leader.log.config.cleanup_policy == "compact":
            raise kafka.PolicyViolation(
                f"{name}: cleanup.policy=compact keeps the last record of each key; write a record without a value to "
                "delete a key, or set cleanup.policy=compact,delete"
            )
        offset = leader.high_watermark if item.offset == m.ALL_COMMITTED else item.offset
        if not 0 <= offset <= leader.high_watermark:
            raise kafka.OffsetOutOfRange(
                f"{name}: offset {offset} is not within 0 and the high watermark {leader.high_watermark}",
                high_watermark=leader.high_watermark,
            )
        if offset > leader.log.start_offset:
            leader.stir()
            with replicas.storage_guard(partition):
                leader.log.raise_start(offset)
    except kafka.ProtocolError as error:
        return m.DeletedRecords.failed(error, topic=item.topic, partition=item.partition)
    return _Deletion(partition, leader, offset)


async def _deleted(replicas: ReplicaManager, deletion: _Deletion, deadline: float) -> m.DeletedRecords:
    partition, leader, offset = deletion
    name = partition.partition

    def reached() -> bool:
        return partition.as_leader() is leader and replicas.low_watermark(leader) >= offset

    try:
        condition = Condition(Mark.LOG_START, name, offset)
        with replicas.traffic.purgatory_meters["DeleteRecords"].parked():
            is_reached = await replicas.purgatory.until([condition], reached, deadline)
        if not is_reached:
            raise kafka.RequestTimedOut(f"{name}: deleted here, some live replica has not followed yet")
    except kafka.ProtocolError as error:
        error = type(error)(error.message, outcome=kafka.UNKNOWN, **error.facts)
        return m.DeletedRecords.failed(error, topic=name.topic, partition=name.partition)
    return m.DeletedRecords(topic=name.topic, partition=name.partition, low_watermark=replicas.low_watermark(leader))
