"""One broker of the lab: a disk, at times a process, and in it the seat of one replica.

Rules for this file: what a kill or a power cut leaves is the disk's business; what a start believes is the log's. The
high watermark's checkpoint is written when the scenario says so, and by an orderly stop.
"""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from minikafka.config import TopicConfig
from minikafka.invariant import InvariantViolation, invariant
from minikafka.lab.control import PARTITION, TOPIC_ID, News
from minikafka.lab.disk import LabDisk
from minikafka.log.checkpoint import format_offsets, parse_offsets
from minikafka.log.names import RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Buffer, Events
from minikafka.replication.follower import TruncationRule
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.types import Epoch, NodeId, Offset
from minikafka.wire.batch import split
from minikafka.wire.records import decode_batch

T = TypeVar("T")

# A scenario's log is a handful of records; one read shows it all.
READ_SIZE_MAX = 1 << 20


class Held(NamedTuple):
    """One record as a replica has it."""

    offset: Offset
    epoch: Epoch
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a scenario sets."""

    topic: TopicConfig
    lag_time_max_s: float
    fetch_wait_max_s: float
    truncation: TruncationRule


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never really waits: the lab's disk syncs at once, and there is no event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise InvariantViolation("the lab's disk never waits")


class Node:
    """One broker. ``partition`` is None while no process runs."""

    def __init__(self, node: NodeId, name: str, settings: Settings, events: Events) -> None:
        self.id = node
        self.name = name
        self.settings = settings
        self.disk = LabDisk()
        self.partition: Partition | None = None
        self.news: News | None = None
        self.broker_epoch = 0
        self.connected = True
        """False: neither peers nor the controller reach it."""
        self.listens = True
        """False: metadata and answers of the controller do not arrive for now."""
        self.stopped_cleanly = True
        self.events = events

    @property
    def seat(self) -> Partition:
        """The partition of a running process."""
        if self.partition is None:
            raise InvariantViolation(f"no process runs on {self.name}")
        return self.partition

    @property
    def up(self) -> bool:
        return self.partition is not None

    @property
    def reachable(self) -> bool:
        return self.up and self.connected

    def leads(self) -> LeaderReplica | None:
        """The leader's role, if this node believes that it has it."""
        role = self.partition.role if self.partition is not None else None
        return role if isinstance(role, LeaderReplica) else None

    # ---- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the log and the checkpoints as a broker does; no role yet."""
        invariant(self.partition is None, "one process at a time", node=self.name)
        log = PartitionLog.open(
            self.disk,
            PARTITION,
            self.settings.topic,
            clean=self.stopped_cleanly and self.disk.exists(str(PARTITION)),
            recovery_point=self._checkpointed(RECOVERY_POINT_CHECKPOINT),
            topic_id=TOPIC_ID,
            events=self.events,
        )
        self.stopped_cleanly = False
        self.partition = Partition(
            self.id,
            PARTITION,
            TOPIC_ID,
            log,
            self.settings.topic,
            high_watermark=self._checkpointed(REPLICATION_OFFSET_CHECKPOINT),
            lag_time_max_s=self.settings.lag_time_max_s,
            broker_epoch_of=self._broker_epoch_of,
            events=self.events,
            truncation=self.settings.truncation,
        )

    def _broker_epoch_of(self, node: NodeId) -> int | None:
        known: Mapping[NodeId, int] = self.news.broker_epochs if self.news is not None else {}
        return known.get(node)

    def _checkpointed(self, name: str) -> Offset:
        return parse_offsets(self.disk.read_file(name)).get(PARTITION, 0) if self.disk.exists(name) else 0

    def checkpoint(self) -> None:
        """Write the high watermark, and how far recovery may believe the log, durably."""
        log = self.seat.log
        high_watermark = format_offsets({PARTITION: self.seat.high_watermark})
        at_once(self.disk.publish(REPLICATION_OFFSET_CHECKPOINT, high_watermark))
        at_once(self.disk.publish(RECOVERY_POINT_CHECKPOINT, format_offsets({PARTITION: log.recovery_point})))
        log.recovery_point_checkpointed(log.recovery_point, done=True)

    def sync(self) -> None:
        at_once(self.seat.log.sync())

    def kill(self) -> None:
        """kill -9: the process is gone, the page cache stays."""
        self.seat.log.close()
        self.partition = None
        self.news = None

    def power_cut(self) -> None:
        """The process is gone, and with it everything that was not synced."""
        if self.up:
            self.kill()
        self.stopped_cleanly = False
        self.disk.power_cut()

    def stop(self) -> None:
        """An orderly end: everything synced, checkpoints written."""
        log = self.seat.log
        log.prepare_close()
        self.sync()
        self.checkpoint()
        self.kill()
        self.stopped_cleanly = True

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def take(self, news: News, now: float) -> None:
        """Read the metadata, and take up the role that it gives."""
        others = self.news
        self.news = news
        self.seat.apply(news.state, self.settings.topic, now)
        leader = self.leads()
        if leader is not None and (others is None or others.broker_epochs != news.broker_epochs):
            leader.advance(now)  # who left no longer counts (S9)

    # ---- looking inside ----------------------------------------------------------------------------------------------

    def records(self) -> list[Held]:
        """Everything in the log of a running process."""
        return _records_of(self.seat.log)

    def kept(self) -> list[Held]:
        """Everything in the log; of a dead process what a start would find on its disk."""
        if self.partition is not None:
            return self.records()
        disk = copy.deepcopy(self.disk)
        if not disk.exists(str(PARTITION)):
            return []
        log = PartitionLog.open(disk, PARTITION, self.settings.topic, clean=False, recovery_point=0, topic_id=TOPIC_ID)
        return _records_of(log)


def _records_of(log: PartitionLog) -> list[Held]:
    held: list[Held] = []
    offset = log.start_offset
    while offset < log.end_offset:
        part = log.read(offset, max_bytes=READ_SIZE_MAX)
        for buffer in part.buffers:
            held += held_in(buffer)
        offset = part.next_offset
    return held


def held_in(buffer: Buffer) -> list[Held]:
    """The records of whole batches."""
    return [
        Held(record.offset, batch.leader_epoch, (record.value or b"").decode())
        for batch in split(buffer)
        for record in decode_batch(batch)
    ]
