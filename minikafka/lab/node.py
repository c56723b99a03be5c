"""One broker of the lab: a disk, at times a process, and in it the seat of one replica.

Rules for this file: what a kill or a power cut leaves is the disk's business; what a start believes is the log's. The
high watermark's checkpoint is written when the scenario says so, and by an orderly stop.

The disk is the simulator's, but it draws nothing: a power cut takes all that it may take, because a scenario is to show
one course of events. Syncs complete at once.

===================  =================================================================================================
kill                 nothing is lost: the page cache stays
``sync``             what stands in the file is durable
``sync_folder``      the folder's names are durable
power cut            each file is as it was at its last sync, each folder as it was at its last ``sync_folder``
===================  =================================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

from minikafka.config import TopicConfig
from minikafka.invariant import InvariantViolation, invariant
from minikafka.lab.control import PARTITION, TOPIC_ID, News
from minikafka.log.checkpoint import format_offsets, parse_offsets
from minikafka.log.names import RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Buffer, Events
from minikafka.replication.follower import TruncationRule
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.sim.disk import FencedDisk, SimDisk
from minikafka.sim.loop import Incarnation, SimLoop
from minikafka.types import Epoch, NodeId, Offset
from minikafka.wire.batch import split
from minikafka.wire.records import decode_batch


class _TakesAll(Random):
    """Draws what a power cut leaves: nothing that it may take."""

    def randint(self, a: int, _b: int) -> int:
        return a

    def random(self) -> float:
        return 1.0


class _AtOnce:
    """The loop of the lab's disks, on which a sync takes no time."""

    now = 0.0

    def create_future(self) -> _AtOnce:
        return self

    def happen_at(self, _at: float, finish: Callable[[], None]) -> None:
        finish()

    def done(self) -> bool:
        return True

    def __await__(self) -> Iterator[Any]:
        return iter(())


class LabDisk(FencedDisk):
    """The Disk port of one node: the simulator's, without chance; it outlives the node's processes."""

    def __init__(self) -> None:
        disk = SimDisk("lab", "lab", cast("SimLoop", _AtOnce()), lambda: 0)
        disk.sync_mean_s, disk.draws = 0.0, _TakesAll
        super().__init__(disk, Incarnation("lab", 1))
        self.number = 0
        """Which disk it is: one more with each that takes its place."""

    def power_cut(self) -> None:
        """Forget what was not synced."""
        self._disk.power_cut()

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self._disk.wipe()
        self.number += 1


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
        changed = self.seat.apply(news.state, self.settings.topic, now)
        leader = self.leads()
        if leader is not None and changed and self.seat.config.syncs_before_acknowledging:
            self.sync()  # what it recovered, or last got as a follower, counts only when it is synced
            leader.advance(now)
        if leader is not None and (others is None or others.broker_epochs != news.broker_epochs):
            leader.advance(now)  # who left no longer counts (S9)

    # ---- looking inside ----------------------------------------------------------------------------------------------

    def records(self) -> list[Held]:
        """Everything in the log of a running process."""
        return records_of(self.seat.log)

    def kept(self) -> list[Held]:
        """Everything in the log; of a dead process what a start would find on its disk."""
        if self.partition is not None:
            return self.records()
        disk = copy.deepcopy(self.disk)
        if not disk.exists(str(PARTITION)):
            return []
        log = PartitionLog.open(disk, PARTITION, self.settings.topic, clean=False, recovery_point=0, topic_id=TOPIC_ID)
        return records_of(log)


def records_of(log: PartitionLog) -> list[Held]:
    """Every record of a log."""
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
