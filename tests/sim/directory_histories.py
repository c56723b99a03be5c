"""Random histories of one broker's data directory: topics come, go and come again under their names (S1, KAFKA-10471).

The model keeps, of each topic id, every record that was ever written at an offset, what the log holds now, and what a
completed sync has covered. After each start: no synced record is missing, nothing is there that was not written to this
topic, and no checkpoint claims more than was true of it. Syncs and checkpoints take their time, and kill -9, a power
failure or a clean stop may come in the midst of them.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from random import Random

from minikafka.config import TopicConfig
from minikafka.errors import KafkaStorageError
from minikafka.log.log_directory import LogDirectory
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import World
from minikafka.sim.world import SimWorld
from minikafka.types import NO_TOPIC_ID, Offset, TopicId, TopicPartition
from minikafka.wire.batch import split, verify_client
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.rules.log_words import TIME, everything, on_disk

CONFIG = TopicConfig(segment_bytes=300, index_interval_bytes=100, retention_ms=1)
COMPACTED = with_changes(CONFIG, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
"""No two records have the same key, so that compaction rewrites segments and leaves nothing out."""
NAMES = (TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0))
NODE = "n1"


@dataclass
class Topic:
    """One topic id: what its one partition here holds."""

    topic_id: TopicId
    name: TopicPartition
    held: dict[Offset, str] = field(default_factory=dict)
    ever: defaultdict[Offset, set[str]] = field(default_factory=lambda: defaultdict(set))
    synced: dict[Offset, str] = field(default_factory=dict)
    """What no failure may take."""
    start: Offset = 0
    high_watermark: Offset = 0
    marks: set[Offset] = field(default_factory=lambda: {0})
    """All high watermarks that it ever had."""
    is_hosted: bool = True


class DirectoryHistory:
    """One seed's history."""

    def __init__(self, seed: int, *, deletes: bool = False) -> None:
        """With ``deletes`` the power often goes while retention deletes segments."""
        self.seed = seed
        self.random = Random(f"directory/{seed}")
        self.deletes = deletes
        self.topics: dict[TopicId, Topic] = {}
        self.current: dict[TopicPartition, Topic] = {}
        self.written = 0
        self.epoch = 0
        self.was_stopped = False
        self.is_power = False
        """The power went since the last start."""
        self.sim: SimWorld
        self.world: World
        self.directory: LogDirectory

    def play(self, steps: int) -> None:
        """``steps`` random steps; everything is compared with the model at each start."""
        with SimWorld(f"directory/{self.seed}") as self.sim:
            self.sim.run(self._play(steps))

    async def _play(self, steps: int) -> None:
        actions = (
            [self.append] * 12
            + [self.sync] * 5
            + [self.truncate] * 2
            + [self.raise_start] * 2
            + [self.delete_old] * 2
            + [self.compact] * 2
            + [self.checkpoint] * 6
            + [self.create] * 3
            + [self.delete] * 2
            + [self.move_away] * 2
            + [self.wait] * 8
            + [self.kill] * 2
            + [self.power_cut] * 3
            + [self.stop] * 2
            + [self.cut_power_while_deleting] * (6 if self.deletes else 0)
        )
        await self.start()
        for _ in range(steps):
            done = self.random.choice(actions)()
            if done is not None:
                await done
        await self.power_cut()

    # ---- starts and ends of the process ----

    async def start(self) -> None:
        """Maybe a second time: the first may end in the midst of it."""
        self.world = self.sim.of(NODE)
        opening = self.sim.spawn(NODE, self._open())
        if self.random.random() < 0.1:
            await asyncio.sleep(self.random.uniform(0, 0.02))
            if not opening.done():
                self.was_stopped = False
                self._end(is_power=self.random.random() < 0.5)
                self.world = self.sim.of(NODE)
                opening = self.sim.spawn(NODE, self._open())
        self.directory = await opening
        self._compare()
        for topic in self.current.values():
            if topic.is_hosted:
                self._host(topic)
        for name in list(self.directory.logs):
            if name not in self.current or not self.current[name].is_hosted:
                self.directory.retire_stray(name)

    async def _open(self) -> LogDirectory:
        return await LogDirectory.open(
            self.world.disk, node_id=1, cluster_id="c", directory_id="d", config_of=config_of, tail_budget_bytes=0
        )

    def _end(self, *, is_power: bool) -> None:
        if is_power:
            self.sim.power_cut(NODE)
        else:
            self.sim.kill(NODE)
        self.is_power |= is_power

    async def kill(self) -> None:
        self._end(is_power=False)
        self.was_stopped = False
        await self.start()

    async def power_cut(self) -> None:
        self._end(is_power=True)
        self.was_stopped = False
        await self.start()

    async def cut_power_while_deleting(self) -> None:
        """The names of removed segments may come back one by one."""
        topic = self.drawn()
        if topic is not None:
            log = self.log(topic)
            for _ in range(4):
                self._append(topic)
            topic.high_watermark = self.random.randint(topic.high_watermark, log.end_offset)
            topic.marks.add(topic.high_watermark)
            await self.sim.spawn(NODE, self._sync(topic, log))
            work = self.sim.spawn(NODE, self._delete_old(topic, log))
            await asyncio.wait({work}, timeout=self.random.choice((0.01, 0.03, 0.1, 1.0)))
        await self.power_cut()

    async def stop(self) -> None:
        """A clean stop, maybe interrupted; the power may go after it."""
        marks = {name: topic.high_watermark for name, topic in self.current.items() if topic.is_hosted}
        covered = {topic.topic_id: dict(topic.held) for topic in self.current.values() if topic.is_hosted}
        # A broker ends its tasks first.
        for work in self.works:
            work.cancel()
        await asyncio.sleep(0)
        directory = self.directory
        closing = self.sim.spawn(NODE, directory.close(broker_epoch=7, high_watermarks=marks, together=asyncio.gather))
        await asyncio.wait({closing}, timeout=self.random.choice((0.01, 0.05, 5.0)))
        self.was_stopped = closing.done()
        if self.was_stopped:
            assert closing.result()
            for topic_id, held in covered.items():
                self.topics[topic_id].synced = held
        self._end(is_power=self.random.random() < 0.5)
        await self.start()

    # ---- topics ----

    def create(self) -> None:
        """A topic of a name that is free, or the replica of one that was moved away comes back."""
        name = self.random.choice(NAMES)
        topic = self.current.get(name)
        if topic is None:
            topic_id = f"{len(self.topics):021d}A"
            topic = self.current[name] = self.topics[topic_id] = Topic(topic_id, name)
        elif topic.is_hosted:
            return
        topic.is_hosted = True
        self._host(topic)

    def delete(self) -> None:
        name = self.random.choice(NAMES)
        topic = self.current.pop(name, None)
        if topic is not None and topic.is_hosted:
            self._remove(topic)

    def move_away(self) -> None:
        """The topic stays, on other brokers."""
        topic = self.drawn()
        if topic is not None:
            self._remove(topic)
            topic.is_hosted = False

    def _remove(self, topic: Topic) -> None:
        folder = self.directory.delete(topic.name)
        topic.held, topic.synced, topic.start, topic.high_watermark = {}, {}, 0, 0
        if self.random.random() < 0.7:
            self.directory.remove(folder)

    def _host(self, topic: Topic) -> None:
        """As the broker does when it learns the metadata."""
        log = self.directory.get(topic.name)
        if log is not None and log.topic_id != topic.topic_id:
            self.directory.retire_stray(topic.name)
            log = None
        if log is None:
            promised = {offset for offset in topic.synced if offset >= topic.start}
            assert not promised, f"the log of {topic} is gone"
            topic.synced = {}
            topic.held, topic.start = {}, 0
            self.directory.create(topic.name, topic_id=topic.topic_id, config=config_of(topic.name))
        log = self.log(topic)
        mark = self.directory.checkpointed_high_watermark(topic.name)
        assert mark in topic.marks, f"{log!r} of {topic.topic_id} has the high watermark {mark}, it had {topic.marks}"
        topic.high_watermark = max(log.start_offset, min(mark, log.end_offset))
        topic.marks.add(topic.high_watermark)

    # ---- records ----

    def drawn(self) -> Topic | None:
        hosted = [topic for _, topic in sorted(self.current.items()) if topic.is_hosted]
        return self.random.choice(hosted) if hosted else None

    def log(self, topic: Topic) -> PartitionLog:
        log = self.directory.get(topic.name)
        assert log is not None
        return log

    def append(self) -> None:
        topic = self.drawn()
        if topic is not None:
            self._append(topic)

    def _append(self, topic: Topic) -> None:
        log = self.log(topic)
        for _ in range(self.random.randint(1, 5)):
            self.written += 1
            value = f"{topic.topic_id.strip('0')}/{self.written}" + "x" * self.random.randint(0, 60)
            batch = verify_client(build_batch([Record(0, TIME, key=value.encode(), value=value.encode())]))
            info = log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=TIME)
            topic.held[info.base_offset] = value
            topic.ever[info.base_offset].add(value)
        if self.random.random() < 0.5:
            topic.high_watermark = self.random.randint(topic.high_watermark, log.end_offset)
            topic.marks.add(topic.high_watermark)

    def truncate(self) -> None:
        topic = self.drawn()
        if topic is not None:
            log = self.log(topic)
            low = max(topic.high_watermark, log.start_offset)
            log.truncate_to(self.random.randint(low, max(low, log.end_offset)))
            topic.held = {offset: value for offset, value in topic.held.items() if offset < log.end_offset}
            topic.synced = {offset: value for offset, value in topic.synced.items() if offset < log.end_offset}
            self.epoch += 1

    def raise_start(self) -> None:
        topic = self.drawn()
        if topic is not None and topic.high_watermark > topic.start:
            self.log(topic).raise_start(self.random.randint(topic.start, topic.high_watermark))
            self._note_start(topic, self.log(topic))

    def _note_start(self, topic: Topic, log: PartitionLog) -> None:
        topic.start = max(topic.start, log.start_offset)
        topic.marks.add(topic.start)
        topic.high_watermark = max(topic.high_watermark, topic.start)

    def _spawn(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Begin what takes time. A log may be closed meanwhile."""

        async def run() -> None:
            try:
                await work(*args)
            except KafkaStorageError as error:
                if not re.search("set aside|No such file", str(error)):
                    raise

        self.works.append(self.sim.spawn(NODE, run()))

    def sync(self) -> None:
        topic = self.drawn()
        if topic is not None:
            self._spawn(self._sync, topic, self.log(topic))

    async def _sync(self, topic: Topic, log: PartitionLog) -> None:
        covered = dict(topic.held)
        await log.sync()
        if not log.is_closed:
            topic.synced |= {offset: value for offset, value in covered.items() if topic.held.get(offset) == value}

    def delete_old(self) -> None:
        """Retention."""
        topic = self.drawn()
        if topic is not None:
            self._spawn(self._delete_old, topic, self.log(topic))

    async def _delete_old(self, topic: Topic, log: PartitionLog) -> None:
        def note() -> bool:
            topic.start = max(topic.start, *(segment.next_offset for segment in expired))
            return True

        expired = log.expired_segments(TIME + 10, topic.high_watermark)
        if expired:
            for path in await log.delete_segments(expired, note):
                self.directory.remove(path)
            if not log.is_closed:
                self._note_start(topic, log)

    def compact(self) -> None:
        topic = self.current.get(NAMES[0])
        if topic is not None and topic.is_hosted:
            self._spawn(self._compact, topic, self.log(topic))

    async def _compact(self, topic: Topic, log: PartitionLog) -> None:
        if id(log) in self.cleaning:
            return
        self.cleaning.add(id(log))
        dirty = log.dirty_range(high_watermark=topic.high_watermark, now_ms=TIME + 10)
        await log.clean(dirty, memory_bytes=1 << 20, clock_ms=lambda: TIME, pause=pause)
        self.cleaning.discard(id(log))

    def checkpoint(self) -> None:
        directory = self.directory

        async def high_watermarks() -> None:
            marks = {name: topic.high_watermark for name, topic in self.current.items() if topic.is_hosted}
            await directory.checkpoint_high_watermarks(marks)

        self._spawn(
            self.random.choice(
                (
                    directory.checkpoint_recovery_points,
                    directory.checkpoint_recovery_points,
                    directory.checkpoint_start_offsets,
                    directory.checkpoint_clean_ends,
                    high_watermarks,
                )
            )
        )

    async def wait(self) -> None:
        await asyncio.sleep(self.random.choice((0.001, 0.01, 0.1)))

    # ---- what must hold ----

    def _compare(self) -> None:
        """Each log that is there with what was written to its topic."""
        self.cleaning: set[int] = set()
        self.works: list[asyncio.Task[None]] = []
        assert self.directory.was_clean or not self.was_stopped
        for name, log in self.directory.logs.items():
            topic = self.topics.get(log.topic_id)
            if log.topic_id == NO_TOPIC_ID:
                assert log.end_offset == 0 or not self.current.get(name) or not self.current[name].synced, log
                continue
            assert topic is not None
            assert topic.name == name
            found = {
                record.offset: (record.value or b"").decode()
                for batch in split(everything(on_disk(log)))
                for record in decode_batch(batch)
                if record.offset >= log.start_offset
            }
            # What was cut off, here or of a replica that was moved away, may come back in part.
            holes = {o for o in range(log.start_offset, log.end_offset) if o not in found and o in topic.held}
            assert not holes, (log, holes)
            strangers = {offset: value for offset, value in found.items() if value not in topic.ever[offset]}
            assert not strangers, (log, strangers)
            if self.current.get(name) is not topic or not topic.is_hosted:
                continue
            if log.start_offset > topic.start:  # of a log that was cut to nothing, segments may come back
                kept = {offset: value for offset, value in found.items() if topic.held.get(offset) == value}
                assert not kept, (log, topic.start, kept)
            lost = {o: v for o, v in topic.synced.items() if o >= topic.start and found.get(o) != v}
            assert not lost, (log, lost, log.report)
            if not self.is_power or self.was_stopped:
                gone = {o: v for o, v in topic.held.items() if o >= topic.start and found.get(o) != v}
                assert not gone, (log, gone, log.report)
            assert (log.clean_end or 0) <= log.end_offset
            topic.held = found
            topic.synced = {offset: value for offset, value in topic.synced.items() if offset >= topic.start}
            topic.start = log.start_offset
            topic.marks.add(topic.start)
        self.is_power = False


def config_of(name: TopicPartition) -> TopicConfig:
    return COMPACTED if name == NAMES[0] else CONFIG


async def pause(size: int) -> None:
    await asyncio.sleep(0.0001)
