"""Short words for tests of the replication rules: a log in memory, a leader, a follower, a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minikafka.config import TopicConfig
from minikafka.lab.node import LabDisk, held_in
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Buffers, Unheard
from minikafka.replication.follower import FollowerReplica, TruncateByLeaderEpoch, TruncationRule
from minikafka.replication.leader import FetchEffect, LeaderReplica, PartitionState
from minikafka.replication.partition import Partition
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import RecordBatch, stamped, verify_client
from minikafka.wire.messages import FetchedPartition
from minikafka.wire.records import Record, build_batch

TP = TopicPartition("orders", 0)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
LAG_S = 30.0
EVERYBODY: Mapping[int, int] = {1: 10, 2: 20, 3: 30, 4: 40}
"""Broker epochs in which every broker is eligible."""


class Recorded(list[tuple[str, dict[str, Any]]]):
    """An events sink that can be asked."""

    unheard = Unheard()

    def __call__(self, kind: str, /, **facts: object) -> None:
        self.append((kind, facts))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [facts for each, facts in self if each == kind]


def batch(*values: str) -> RecordBatch:
    """One batch, as a client sends it."""
    records = [Record(number, 0, value=value.encode()) for number, value in enumerate(values)]
    return verify_client(build_batch(records))


def batch_at(offset: Offset, *values: str) -> Buffers:
    """One batch, as a leader stores it."""
    return stamped(batch(*values), base_offset=offset, leader_epoch=0)


def new_log(config: TopicConfig | None = None) -> PartitionLog:
    return PartitionLog.open(LabDisk(), TP, config or TopicConfig())


def log_of(*epochs: tuple[int, int], config: TopicConfig | None = None) -> PartitionLog:
    """A log of one-record batches: (epoch, number of records) in turn; values name epoch and offset."""
    log = new_log(config)
    for epoch, count in epochs:
        for _ in range(count):
            log.append_as_leader(batch(f"{epoch}.{log.end_offset}"), leader_epoch=epoch, wall_ms=0)
    return log


def values(log: PartitionLog) -> list[str]:
    """What the log holds."""
    found: list[str] = []
    offset = log.start_offset
    while offset < log.end_offset:
        part = log.read(offset, max_bytes=1 << 20)
        found += [held.value for buffer in part.buffers for held in held_in(buffer)]
        offset = part.next_offset
    return found


def state(
    leader: int = 1, *, isr: tuple[int, ...] = (1, 2, 3), epoch: int = 0, version: int = 0, recovered: bool = True
) -> PartitionState:
    return PartitionState(
        replicas=(1, 2, 3), isr=isr, leader=leader, leader_epoch=epoch, partition_epoch=version, recovered=recovered
    )


def leader(
    log: PartitionLog | None = None,
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    epoch: int = 0,
    high_watermark: int = 0,
    config: TopicConfig | None = None,
    eligible: Mapping[int, int] = EVERYBODY,
    predecessor: LeaderReplica | None = None,
    recovered: bool = True,
    now: float = 0.0,
    events: Recorded | None = None,
) -> LeaderReplica:
    """Broker 1 leads."""
    config = config or TopicConfig()
    return LeaderReplica(
        1,
        TP,
        log if log is not None else new_log(config),
        config,
        PartitionState(
            replicas=replicas, isr=isr, leader=1, leader_epoch=epoch, partition_epoch=0, recovered=recovered
        ),
        high_watermark=high_watermark,
        lag_time_max_s=LAG_S,
        broker_epoch_of=eligible.get,
        predecessor=predecessor,
        now=now,
        events=events if events is not None else Recorded(),
    )


def follower(
    log: PartitionLog | None = None,
    *,
    epoch: int = 0,
    high_watermark: int = 0,
    truncation: TruncationRule | None = None,
    events: Recorded | None = None,
) -> FollowerReplica:
    """A follower of broker 1."""
    return FollowerReplica(
        TP,
        log if log is not None else new_log(),
        leader=1,
        epoch=epoch,
        high_watermark=high_watermark,
        truncation=truncation or TruncateByLeaderEpoch(),
        events=events if events is not None else Recorded(),
    )


def seat(me: int = 1, *, eligible: Mapping[int, int] = EVERYBODY, events: Recorded | None = None) -> Partition:
    """A replica's seat with an empty log."""
    return Partition(
        me,
        TP,
        TOPIC_ID,
        new_log(),
        TopicConfig(),
        high_watermark=0,
        lag_time_max_s=LAG_S,
        broker_epoch_of=eligible.get,
        events=events if events is not None else Recorded(),
    )


def write(role: LeaderReplica, *texts: str, now: float = 0.0) -> None:
    """Append with acks=1, one batch a value, and do what follows an append."""
    for text in texts:
        role.append(batch(text), acks=1, wall_ms=0)
    role.advance(now)


def fetched(role: LeaderReplica, node: int, offset: int, *, now: float = 0.0, epoch: int | None = None) -> FetchEffect:
    """A follower's fetch from ``offset`` was read without divergence."""
    return role.record_fetch(
        node,
        offset,
        start_offset=0,
        broker_epoch=EVERYBODY[node] if epoch is None else epoch,
        leader_end=role.log.end_offset,
        now=now,
    )


def answer(role: LeaderReplica, offset: int) -> FetchedPartition:
    """What the leader gives a follower that asks from ``offset``."""
    return FetchedPartition(
        topic=TP.topic,
        partition=TP.partition,
        high_watermark=role.high_watermark,
        log_start_offset=role.log.start_offset,
        log_end_offset=role.log.end_offset,
        records=tuple(role.log.read(offset, max_bytes=1 << 20).buffers),
    )
