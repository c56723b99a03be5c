"""What this broker reports of itself: DescribeReplicas, DescribeLog and ExplainPartition (APIs of our own),
DescribeLogDirs, DescribeProducers and ApiVersions.

DescribeLog has this broker's own log of a partition, committed or not. Unlike Fetch it is answered by any replica,
changes nothing (it is no acknowledgement), never waits, and goes to the log's end: for people who look at what a
replica holds beyond the high watermark, or held before it was cut. The metadata log can be read in the same way.

ExplainPartition has what this broker knows of a partition, and its latest events (DESIGN D9). A broker with a replica
reports its state, any other only what the metadata brought. The leader knows why the high watermark stands where it
stands; the active controller knows why it decided. ReadHistory has the same of earlier times (``broker/history.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from minikafka import __version__
from minikafka.broker.partition_history import ENTRIES_MAX, Entry, PartitionHistory
from minikafka.errors import InvalidRequest, OffsetNotAvailable, ProtocolError, UnknownTopicOrPartition
from minikafka.replication.leader import NEVER, LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.types import METADATA_PARTITION, NO_EPOCH, NO_OFFSET, NodeId, Offset, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.admin import DescribedLogDir, DescribeLogDirsRequest, DescribeLogDirsResponse, ReplicaSize
from minikafka.wire.apis import APIS
from minikafka.wire.batch import NO_SEQUENCE, NO_TIMESTAMP, RecordBatch

if TYPE_CHECKING:
    from minikafka.broker.history import History
    from minikafka.broker.quorum_driver import QuorumDriver
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.log.partition_log import PartitionLog

LOADING = "loading"
"""The role of a replica whose broker has not read the metadata since its start."""
PRODUCERS_PER_TURN = 1_000
"""Producers that DescribeProducers describes in one turn of the loop: 2 to 5 ms."""
PRODUCERS_SHOWN = 20
PRODUCERS_LOOKED_AT = 1_000
"""A partition with more of them does not show them in its state: they are looked at four times a second."""
HISTORY_ROWS_MAX = 10_000
COPIES_MS = 10_000
"""All brokers report what the controller recorded, each when it has it. A reader gets what is so much older, too, and
does not take a copy for another event.
"""
"""The most samples, and the most events, of one response."""


def handle_api_versions(_request: m.ApiVersionsRequest) -> m.ApiVersionsResponse:
    """Every API with the versions spoken here."""
    return m.ApiVersionsResponse(
        broker_version=__version__,
        apis=tuple(
            m.ApiVersion(api=api.name, api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS
        ),
    )


def handle_describe_replicas(
    replicas: ReplicaManager, request: m.DescribeReplicasRequest, *, broker_epoch: int
) -> m.DescribeReplicasResponse:
    """Role, log end, high watermark and, on leaders, what is known of the followers."""
    names = sorted(name for name in replicas.partitions if request.topics is None or name.topic in request.topics)
    now = replicas.clock.now()
    return m.DescribeReplicasResponse(
        broker_id=replicas.config.node_id,
        broker_epoch=broker_epoch,
        wall_ms=replicas.clock.wall_ms(),
        replicas=tuple(describe_replica(replicas.partitions[name], now) for name in names),
    )


def describe_replica(partition: Partition, now: float) -> m.DescribedReplica:
    """One replica as its own broker knows it."""
    role, log = partition.role, partition.log
    leader = role if isinstance(role, LeaderReplica) else None
    return m.DescribedReplica(
        topic=partition.partition.topic,
        partition=partition.partition.partition,
        role="offline" if partition.failed else "leader" if leader else "follower" if role else "idle",
        leader_epoch=partition.epoch,
        log_start_offset=log.start_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=log.end_offset,
        isr=role.isr if role else (),
        lag_time_max_ms=int(partition.lag_time_max_s * 1000),
        failure=partition.failed or "",
        last_stable_offset=partition.last_stable_offset,
        # Of leaders alone; for all others as the message has it.
        maximal_isr=leader.maximal_isr if leader else (),
        acknowledged_end=leader.own_end if leader else -1,
        epoch_start_offset=leader.epoch_start if leader else -1,
        min_isr=leader.min_isr if leader else -1,
        proposed_isr=leader.proposal.isr if leader and leader.proposal is not None else None,
        remotes=_followers(leader, now) if leader else (),
    )


def _describe_loading(replicas: ReplicaManager, name: TopicPartition) -> m.DescribedReplica | None:
    """The log of a replica that takes up its role when this broker, which has just started, has read the metadata."""
    log = replicas.logs.get(name)
    if log is None:
        return None
    return m.DescribedReplica(
        topic=name.topic,
        partition=name.partition,
        role=LOADING,
        leader_epoch=log.epochs.latest,
        log_start_offset=log.start_offset,
        high_watermark=max(log.start_offset, min(replicas.logs.checkpointed_high_watermark(name), log.end_offset)),
        log_end_offset=log.end_offset,
    )


def _followers(leader: LeaderReplica, now: float) -> tuple[m.RemoteReplica, ...]:
    holding = leader.watermark_holders(now)
    return tuple(
        m.RemoteReplica(
            broker_id=node,
            log_end_offset=remote.end_offset,
            caught_up_ms_ago=_ms_ago(remote.caught_up_at(), now),
            in_sync=node in leader.isr,
            last_fetch_ms_ago=_ms_ago(remote.fetched_at(), now) if remote.fetched_at() != NEVER else -1,
            holds_watermark=node in holding,
            may_join=leader.may_join(node),
        )
        for node, remote in leader.remotes.items()
    )


def _ms_ago(at: float, now: float) -> int:
    return int(min(now - at, 2**31) * 1000)


def handle_describe_producers(
    replicas: ReplicaManager, request: m.DescribeProducersRequest
) -> m.DescribeProducersResponse | Awaitable[m.DescribeProducersResponse]:
    """What one idempotent producer wrote last to each partition, once that is committed (issue 4): leaders know. Or
    all producers of this replica, which a follower shows, too (KIP-664).

    Who goes on behind an earlier attempt must not go on behind records that a new leader may not have: while the
    producer's last batch is at or above the high watermark the answer is OFFSET_NOT_AVAILABLE.
    """
    # Each once: a partition may have thousands of producers, and a request may name it as often.
    items = {(each.topic, each.partition, each.producer_id): each for each in request.partitions}
    if any(each.producer_id < 0 for each in items.values()):
        return _describe_in_turns(replicas, items.values())
    return m.DescribeProducersResponse(partitions=tuple(_describe_producer(replicas, each) for each in items.values()))


async def _describe_in_turns(
    replicas: ReplicaManager, items: Iterable[m.DescribeProducersPartition]
) -> m.DescribeProducersResponse:
    """Describe a partition's 100,000 producers in several turns of the loop: in one they held it for 0.3 s."""
    found = []
    count = 0
    for item in items:
        described = _describe_producer(replicas, item)
        active = []
        if item.producer_id < 0 and not described.error_code:
            producers = replicas.get(TopicPartition(item.topic, item.partition)).log.producers
            for each in producers.each_active():
                active.append(m.ActiveProducer(**each._asdict()))
                count += 1
                if not count % PRODUCERS_PER_TURN:
                    await asyncio.sleep(0)
        found.append(structs.replace(described, active=tuple(active)))
    return m.DescribeProducersResponse(partitions=tuple(found))


def _describe_producer(replicas: ReplicaManager, item: m.DescribeProducersPartition) -> m.DescribedProducer:
    name = TopicPartition(item.topic, item.partition)
    try:
        replica = replicas.get(name)
        if item.producer_id < 0:
            return m.DescribedProducer(topic=item.topic, partition=item.partition)
        leader = replica.as_leader()
        known = leader.log.producers.last_batch(item.producer_id)
        if known is not None and known[2] >= leader.high_watermark:
            raise OffsetNotAvailable(f"{name}: the last batch of producer {item.producer_id} is not yet committed")
    except ProtocolError as error:
        return m.DescribedProducer.with_error(error, topic=item.topic, partition=item.partition)
    epoch, sequence, offset = known or (NO_EPOCH, NO_SEQUENCE, NO_OFFSET)
    return m.DescribedProducer(
        topic=item.topic,
        partition=item.partition,
        producer_id=item.producer_id,
        producer_epoch=epoch,
        last_sequence=sequence,
        last_offset=offset,
    )


def handle_describe_log(
    replicas: ReplicaManager, quorum: QuorumDriver, request: m.DescribeLogRequest
) -> m.DescribeLogResponse:
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
    request: m.DescribeLogRequest,
    log: PartitionLog,
    role: str,
    epoch: int,
    high_watermark: Offset,
) -> m.DescribeLogResponse:
    start = log.start_offset if request.offset == -1 else request.offset
    max_bytes = min(request.max_bytes, replicas.config.fetch_max_bytes)
    read = log.read(start, max_bytes=max_bytes, min_one_batch=max_bytes > 0)
    return m.DescribeLogResponse(
        broker_id=replicas.config.node_id,
        role=role,
        leader_epoch=epoch,
        log_start_offset=log.start_offset,
        high_watermark=high_watermark,
        log_end_offset=log.end_offset,
        synced_end=log.synced_end,
        segment_count=log.segment_count,
        size_bytes=log.size_bytes,
        epochs=tuple(m.EpochStart(leader_epoch=epoch, start_offset=start) for epoch, start in log.epochs.entries),
        records=read.buffers,
    )


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


def handle_explain_partition(
    replicas: ReplicaManager, partition_history: PartitionHistory, request: m.ExplainPartitionRequest
) -> m.ExplainPartitionResponse:
    """Raises UnknownTopicOrPartition, CorruptMessage, KafkaStorageError."""
    name = TopicPartition(request.topic, request.partition)
    replica = replicas.partitions.get(name)
    if replica is None and not replicas.knows(name):
        raise UnknownTopicOrPartition(f"{name} is not known to broker {replicas.config.node_id}")
    story = partition_history.of(name)
    leader = replica.role if replica is not None and isinstance(replica.role, LeaderReplica) else None
    return m.ExplainPartitionResponse(
        broker_id=replicas.config.node_id,
        replica=_describe_loading(replicas, name)
        if replica is None
        else describe_replica(replica, replicas.clock.now()),
        unstable=None if leader is None else _unstable(leader),
        producers=() if leader is None else _latest_producers(leader.log),
        producer_count=0 if leader is None else len(leader.log.producers),
        story=tuple(entry.message() for entry in story.entries),
        watermark_moved=_story_entry(story.watermark_moved),
        refused=_story_entry(story.refused),
    )


def whole_milliseconds(times_ms: Sequence[int], count: int, end_ms: int) -> int:
    """The time up to which a reader gets ``count`` rows of ``times_ms``, which are in order; ``end_ms`` if that is all.

    A reader goes on from the millisecond after it. So the rows of one millisecond stay together, and those of the first
    one are all there, even if they are more than ``count``: nothing is left out and nothing is twice.
    """
    return end_ms if len(times_ms) <= count else max(times_ms[count] - 1, times_ms[0])


def handle_read_history(
    history: History, partition_history: PartitionHistory, request: m.ReadHistoryRequest, *, node: NodeId, wall_ms: int
) -> m.ReadHistoryResponse:
    """The samples and events between two times. Raises InvalidRequest."""
    if not 0 < request.max_rows <= HISTORY_ROWS_MAX or request.from_ms > request.to_ms:
        raise InvalidRequest(f"max_rows from 1 to {HISTORY_ROWS_MAX} and from_ms up to to_ms are needed")
    name = None if request.topic is None else f"{request.topic}-{request.partition}"
    start_ms, end_ms, count = history.start_ms or wall_ms, request.to_ms, request.max_rows
    samples = [] if name is None else history.samples(name, request.from_ms, end_ms)
    events = history.events(name, request.from_ms - COPIES_MS if name is None else 0, end_ms)
    before = sum(each.at_ms < request.from_ms for each in events)
    if name is not None:
        # Older than the history, and still in the partition history. After a clock was set back, both may have one.
        old = partition_history.of(TopicPartition(request.topic or "", request.partition)).entries
        older = [each for each in old if each.at_ms < start_ms and each not in events]
        story = [*older, *events[:before]]
        events, before = [*story[-ENTRIES_MAX:], *events[before:]], min(len(story), ENTRIES_MAX)
    first = sum(each.at_ms <= request.from_ms for each in samples)
    for rows in ([each.at_ms for each in samples[first:]], [each.at_ms for each in events[before:]]):
        end_ms = min(end_ms, whole_milliseconds(rows, count, end_ms))
    return m.ReadHistoryResponse(
        broker_id=node,
        wall_ms=wall_ms,
        start_ms=start_ms,
        end_ms=end_ms,
        samples=tuple(
            m.PastReplica(at_ms=each.at_ms, broker_id=each.node, replica=each.replica, is_followed=each.is_followed)
            for each in samples
            if each.at_ms <= end_ms
        ),
        events=tuple(each.message() for each in events if each.at_ms <= end_ms),
    )


def _latest_producers(log: PartitionLog) -> tuple[m.ActiveProducer, ...]:
    """Producers with open transactions, the oldest first, then the others, the latest first."""
    if len(log.producers) > PRODUCERS_LOOKED_AT:
        return ()
    active = log.producers.active()
    open_first = sorted(
        active,
        key=lambda each: (
            each.current_txn_start_offset < 0,
            each.current_txn_start_offset if each.current_txn_start_offset >= 0 else -each.last_timestamp,
        ),
    )
    return tuple(m.ActiveProducer(**each._asdict()) for each in open_first[:PRODUCERS_SHOWN])


def _unstable(leader: LeaderReplica) -> m.UnstableTransaction | None:
    """The transaction that holds the last stable offset back; its first batch is read for its timestamp."""
    log = leader.log
    holding = log.producers.transactions.holding(leader.high_watermark)
    if holding is None:
        return None
    started_ms = NO_TIMESTAMP
    if holding.first_offset >= log.start_offset:
        first = b"".join(log.read(holding.first_offset, max_bytes=0).buffers)
        started_ms = RecordBatch.of(first).base_timestamp
    return m.UnstableTransaction(
        producer_id=holding.producer_id,
        first_offset=holding.first_offset,
        marker_offset=holding.marker_offset,
        started_ms=started_ms,
    )


def _story_entry(entry: Entry | None) -> m.StoryEntry | None:
    return entry.message() if entry is not None else None
