"""Histories of two replicas of a compacted partition: leaders change, disks forget, and both compact (S1, S2, S21, S29).

The model is the list of all records of the present leader's line, none of them compacted. Whatever happened to a replica,
once it has agreed with its leader by epochs (KIP-279) it holds nothing but records of that line, and of each key the
last one below its end. Whoever leads holds all that was committed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from minikafka.config import TopicConfig
from minikafka.log.inspect import verify_log
from minikafka.log.partition_log import PartitionLog
from minikafka.log.recovery import MisfitLog, UnsyncedCopy
from minikafka.ports import no_events
from minikafka.replication.follower import CutTo, FollowerReplica, RestartAt, TruncateByLeaderEpoch
from minikafka.types import UNDEFINED_EPOCH_END, Epoch, EpochEnd, Offset
from minikafka.wire.batch import split, verify_client
from minikafka.wire.messages import EpochEndOffset, FetchedPartition
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.rules.log_words import ORDERS, TIME, everything, on_disk, open_log
from tests.rules.memory_disk import MemoryDisk, run

CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=300, index_interval_bytes=100, delete_retention_ms=0)
KEYS = "abcdef"


class Entry(NamedTuple):
    """One record."""

    offset: Offset
    key: str
    value: str | None
    epoch: Epoch


async def no_pause(size: int) -> None:
    assert size > 0


class Replica:
    """One log on one disk, over all its processes."""

    def __init__(self, name: str, random: Random, config: TopicConfig = CONFIG) -> None:
        self.name = name
        self.config = config
        self.now_ms = TIME
        self.disk = MemoryDisk()
        self._random = random
        self._point = self._saved_start = 0
        self.log = self._open()

    def __repr__(self) -> str:
        return f"{self.name} {self.log!r}"

    def _open(self, *, clean: bool = False, **options: Any) -> PartitionLog:
        copies: dict[str, str] = {}
        while True:
            try:
                return open_log(
                    self.disk,
                    self.config,
                    clean=clean,
                    recovery_point=self._point,
                    start_offset=self._saved_start,
                    save_start=self.save_start,
                    copies=copies,
                    **options,
                )
            except UnsyncedCopy as made:
                run(self.disk.open(made.copy).sync())
                run(self.disk.sync_folder(str(ORDERS)))
                copies[made.source] = made.copy

    async def save_start(self) -> None:
        self._saved_start = self.log.start_offset

    def checkpoint(self) -> None:
        self._point = self.log.recovery_point
        self.log.recovery_point_checkpointed(self._point, done=True)

    def kill(self) -> None:
        self.disk.open_files.clear()
        self.log = self._open()

    def power_cut(self) -> None:
        promised = self.log.synced_end
        self.disk.power_cut(self._random)
        try:
            self.log = self._open()
        except MisfitLog:
            # Set aside in whole: what came back is older than a log that was begun again and never synced.
            assert promised == 0
            self.disk, self._point, self._saved_start = MemoryDisk(), 0, 0
            self.log = self._open()

    def stop_and_start(self) -> None:
        run(self.log.settle())
        self.log.prepare_close()
        run(self.log.sync())
        self.checkpoint()
        self.log.close()
        self.log = self._open(clean=True)
        findings = list(verify_log(self.disk, str(ORDERS)))
        assert not findings, (self, findings)

    def compact(self, high_watermark: Offset) -> None:
        dirty = self.log.dirty_range(high_watermark=high_watermark, now_ms=self.now_ms)
        run(self.log.clean(dirty, memory_bytes=1 << 20, clock_ms=lambda: self.now_ms, pause=no_pause))

    def delete_old(self, high_watermark: Offset) -> None:
        expired = self.log.expired_segments(self.now_ms, high_watermark)
        for path in run(self.log.delete_segments(expired)):
            self.disk.remove(path)

    def entries(self) -> list[Entry]:
        return [
            Entry(
                record.offset,
                (record.key or b"").decode(),
                None if record.value is None else record.value.decode(),
                batch.leader_epoch,
            )
            for batch in split(everything(on_disk(self.log)))
            for record in decode_batch(batch)
            if record.offset >= self.log.start_offset
        ]


def diverged(theirs: EpochEnd, leader: PartitionLog) -> FetchedPartition:
    """The leader's response to a follower whose log differs."""
    return FetchedPartition(
        topic=ORDERS.topic,
        partition=ORDERS.partition,
        log_start_offset=leader.start_offset,
        log_end_offset=leader.end_offset,
        diverging_epoch=EpochEndOffset(epoch=theirs.epoch, end_offset=theirs.end_offset),
    )


def latest(entries: list[Entry]) -> dict[str, Entry]:
    last = {entry.key: entry for entry in entries}
    return {key: entry for key, entry in last.items() if entry.value is not None}


class CompactedReplicas:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"compacted/{seed}")
        self.leader, self.follower = Replica("A", self.random), Replica("B", self.random)
        self.line: list[Entry] = []
        self.committed_end = 0
        self.epoch = 0
        self.leader.log.assign_epoch(0, 0)

    def play(self, steps: int) -> None:
        """``steps`` random steps, each followed by the checks of both replicas."""
        actions = self.actions()
        for _ in range(steps):
            self.random.choice(actions)()
            self.check(self.leader)
            self.check(self.follower)

    def actions(self) -> list[Callable[[], None]]:
        """What may happen, each as often as it is likely."""
        return (
            [self.append] * 8
            + [self.copy] * 8
            + [self.change_leader] * 2
            + [lambda: run(self.drawn().log.sync())] * 3
            + [lambda: self.drawn().checkpoint()] * 2
            + [lambda: self.compact(self.drawn())] * 4
            + [self.raise_start]
            + [lambda: self.restart("kill")] * 2
            + [lambda: self.restart("power_cut")] * 4
            + [lambda: self.restart("stop_and_start")]
        )

    def drawn(self) -> Replica:
        return self.random.choice((self.leader, self.follower))

    def append(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            pairs = [
                (self.random.choice(KEYS), None if self.random.random() < 0.1 else "v" * self.random.randint(0, 40))
                for _ in range(self.random.randint(1, 3))
            ]
            records = [Record(0, TIME, key=k.encode(), value=None if v is None else v.encode()) for k, v in pairs]
            batch = verify_client(build_batch(records))
            base = self.leader.log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=TIME).base_offset
            self.line += [Entry(base + n, key, value, self.epoch) for n, (key, value) in enumerate(pairs)]

    def copy(self) -> None:
        """As a fetch: some batches, and the leader's start; what both have is committed."""
        source, target = self.leader.log, self.follower.log
        if target.end_offset < source.start_offset:
            target.restart_at(source.start_offset)
            return
        if target.restart_is_unsynced:
            run(target.sync())
        size = self.random.choice((1, 300, 5000))
        if target.end_offset < source.end_offset:
            found = source.read(target.end_offset, max_bytes=size)
            batches = split(b"".join(found.buffers))
            is_empty = target.start_offset == target.end_offset
            if batches[0].base_offset < target.end_offset and (is_empty or target.end_offset <= source.start_offset):
                target.restart_at(batches[0].base_offset)  # the leader's log starts within a batch
            target.append_as_follower(batches)
        if source.start_offset <= target.end_offset and target.raise_start(source.start_offset):
            self.follower.delete_old(self.committed_end)
        self.committed_end = max(self.committed_end, min(source.end_offset, target.end_offset))

    def compact(self, replica: Replica) -> None:
        replica.compact(min(self.committed_end, replica.log.end_offset))

    def raise_start(self) -> None:
        log = self.leader.log
        if log.raise_start(self.random.randint(log.start_offset, max(log.start_offset, self.committed_end - 5))):
            self.leader.delete_old(self.committed_end)

    def change_leader(self) -> None:
        """To a replica with all that is committed."""
        if (
            self.follower.log.end_offset < self.committed_end
            or self.follower.log.start_offset < self.leader.log.start_offset
        ):
            return
        self.leader, self.follower = self.follower, self.leader
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """The leader's log is the line from here on, and the follower agrees with it."""
        self.epoch += 1
        end = self.leader.log.end_offset
        self.line = [entry for entry in self.line if entry.offset < end]
        self.leader.log.assign_epoch(self.epoch, end)
        self.agree()

    def restart(self, how: str) -> None:
        """A leader that may lose records leaves first: nobody else would have them. One that stays leads in a new epoch."""
        replica = self.drawn()
        if replica is self.leader and how == "power_cut":
            self.change_leader()
            if replica is self.leader:
                return
        getattr(replica, how)()
        if replica is self.follower:
            self.agree()
        else:
            self.begin_epoch()

    def agree(self) -> None:
        """The follower cuts off what the leader does not have (KIP-279)."""
        leader, log = self.leader.log, self.follower.log
        role = FollowerReplica(
            *(ORDERS, log),
            leader=0,
            epoch=self.epoch,
            high_watermark=log.end_offset,
            truncation=TruncateByLeaderEpoch(),
            events=no_events,
        )
        while leader.start_offset <= log.end_offset:
            theirs = leader.end_offset_for(log.last_epoch)
            if theirs == UNDEFINED_EPOCH_END:
                log.truncate_to(min(log.end_offset, leader.end_offset))
                break
            if theirs.epoch == log.last_epoch and theirs.end_offset >= log.end_offset:
                break
            step = role.on_response(diverged(theirs, leader), asked=log.end_offset)
            if isinstance(step, RestartAt):
                role.restart_at(step.offset)
                break
            assert isinstance(step, CutTo)
            role.cut_to(step.offset)

    def check(self, replica: Replica) -> None:
        log, found = replica.log, replica.entries()
        if log.end_offset < self.leader.log.start_offset:
            return  # it will begin again at the leader's start
        # Epochs below the leader's start are forgotten; what a replica has there goes with the next copy.
        start = max(log.start_offset, self.leader.log.start_offset)
        strangers = {entry for entry in set(found) - set(self.line) if entry.offset >= start}
        assert not strangers, (replica, strangers)
        expected = latest([entry for entry in self.line if entry.offset < log.end_offset])
        there = latest(found)
        # A leader may have compacted what is replaced further on before the replica copied it.
        committed = {entry.key: entry.offset for entry in self.line if entry.offset < self.committed_end}
        lost = {
            each
            for key, each in expected.items()
            if each.offset >= max(start, committed.get(key, 0)) and there.get(key) != each
        }
        assert not lost, (replica, lost)
