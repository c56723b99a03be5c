"""One partition's log against a list, through appends, rolls, cuts, syncs, kills and power cuts (S1, S21, D6)."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minikafka.config import TopicConfig
from minikafka.log.partition_log import PartitionLog
from minikafka.types import NO_EPOCH
from minikafka.wire.batch import split, verify
from tests.rules.log_words import ORDERS, TIME, TOPIC_ID, client_batch
from tests.rules.memory_disk import MemoryDisk, run

CONFIG = TopicConfig(segment_bytes=500, index_interval_bytes=80, segment_index_bytes=80)


class LogMachine(RuleBasedStateMachine):
    """``model`` holds the stored bytes of each batch with its offsets; the log must agree byte by byte."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.model: list[tuple[int, int, bytes]] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.synced: list[tuple[int, int, bytes]] = []
        self.synced_end = 0
        self.checkpointed = 0
        self.saved_start = 0
        self.count = 0
        self.log = self.open()

    def open(self, *, clean: bool = False) -> PartitionLog:
        return PartitionLog.open(
            self.disk,
            ORDERS,
            CONFIG,
            clean=clean,
            recovery_point=self.checkpointed,
            start_offset=self.saved_start,
            topic_id=TOPIC_ID,
            save_start=self.save_start,
            tail_size_max=300,
        )

    async def save_start(self) -> None:
        self.saved_start = self.log.start_offset

    # ------------------------------------------------------------------------------------- rules

    @initialize(epoch=st.integers(0, 2))
    def lead(self, epoch: int) -> None:
        self.epoch = epoch

    @rule(sizes=st.lists(st.integers(0, 120), min_size=1, max_size=3), count=st.integers(1, 3))
    def append(self, sizes: list[int], count: int) -> None:
        for size in sizes:
            self.count += 1
            values = [f"{self.count}-{n}" + "x" * size for n in range(count)]
            batch = client_batch(*values, time=TIME + self.count)
            info = self.log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=TIME)
            assert info.base_offset == self.end
            stored = b"".join(self.log.read(self.end, max_bytes=1).buffers)
            self.model.append((self.end, info.last_offset + 1, stored))
            self.end = info.last_offset + 1

    @rule(count=st.integers(1, 4), jump=st.integers(0, 1))
    def follow(self, count: int, jump: int) -> None:
        other = MemoryDisk()
        leader = PartitionLog.open(other, ORDERS, CONFIG, start_offset=self.end)
        self.epoch += jump
        for n in range(count):
            self.count += 1
            batch = client_batch(f"follow-{self.count}", "y" * n, time=TIME + self.count)
            leader.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=TIME)
        batches = split(b"".join(leader.read(self.end, max_bytes=10_000).buffers))
        self.log.append_as_follower(batches)
        for batch in batches:
            self.model.append((batch.base_offset, batch.next_offset, bytes(batch.data)))
        self.end = batches[-1].next_offset

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch, self.end)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        offset = max(0, self.end - back)
        self.log.truncate_to(offset)
        self.cut(offset)
        self.end = self.log.end_offset
        assert self.end <= max(offset, 0) or back == 0
        self.model = [entry for entry in self.model if entry[1] > self.log.start_offset]
        assert self.end == (self.model[-1][1] if self.model else self.log.start_offset)
        self.synced_end = min(self.synced_end, self.end)
        if self.log.start_offset != self.start or not self.model:
            self.start = self.log.start_offset
            self.model, self.synced, self.synced_end = [], [], 0
        self.epoch += 1

    def cut(self, offset: int) -> None:
        self.model = [entry for entry in self.model if entry[1] <= offset]
        self.synced = [entry for entry in self.synced if entry[1] <= offset]
        self.synced_end = min(self.synced_end, offset)

    @rule(ahead=st.integers(0, 3))
    def restart(self, ahead: int) -> None:
        offset = self.end + ahead
        self.log.restart_at(offset)
        self.model, self.synced, self.synced_end = [], [], 0
        self.start = self.end = offset
        self.epoch += 1

    @rule()
    def sync(self) -> None:
        run(self.log.sync())
        self.synced, self.synced_end = list(self.model), self.end
        assert self.log.synced_end == self.end

    @rule(lag=st.integers(0, 5))
    def sync_while_written_to(self, lag: int) -> None:
        """What a sync covers is what stood when it was called, less what was cut meanwhile."""
        covered, end = list(self.model), self.end
        self.disk.held = True
        sync = self.log.sync()
        steps = 0
        try:
            for steps in range(lag):
                sync.send(None)
                if steps == lag - 1:
                    self.truncate(2)
                    self.append([10], 1)
        except StopIteration:
            pass
        else:
            self.disk.held = False
            run(sync)
        self.disk.held = False
        kept = [entry for entry in covered if entry in self.model]
        end = min(end, kept[-1][1] if kept else self.start)
        assert self.log.synced_end <= self.end
        if self.log.synced_end >= end and kept:
            self.synced, self.synced_end = kept, max(self.synced_end, end)

    @rule()
    def checkpoint(self) -> None:
        self.checkpointed = self.log.recovery_point
        self.log.recovery_point_checkpointed(self.checkpointed, done=True)

    @precondition(lambda self: self.end > self.start)
    @rule(share=st.floats(0, 1))
    def raise_start(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self.log.raise_start(offset)
        self.start = offset

    @rule()
    def delete_records(self) -> None:
        """Retention of what lies below the log start."""
        expired = self.log.expired_segments(TIME + self.count, self.end)
        paths = run(self.log.delete_segments(expired))
        for path in paths:
            self.disk.remove(path)
        self.start = self.log.start_offset
        first = self.log.start_offset
        self.model = [entry for entry in self.model if entry[1] > first]
        self.synced = [entry for entry in self.synced if entry[1] > first]

    @rule()
    def kill(self) -> None:
        """kill -9: the page cache stays, so nothing that was appended may be missing."""
        unsaved_start = self.log.start_offset
        self.disk.open_files.clear()
        self.log = self.open()
        if self.log.start_offset < unsaved_start:
            self.log.raise_start(unsaved_start)
        self.start = self.log.start_offset

    @rule()
    def stop_and_start(self) -> None:
        self.log.prepare_close()
        run(self.log.sync())
        run(self.save_start())
        self.checkpoint()
        self.log.close()
        assert not self.disk.open_files
        self.log = self.open(clean=True)
        assert self.log.report.checked_count == 0
        self.synced, self.synced_end = list(self.model), self.end

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed: int) -> None:
        """Everything that a completed sync covered is still there; what else is there is sound and without holes."""
        self.disk.power_cut(Random(seed))
        self.log = self.open()
        found = self.stored()
        by_base = {base: data for base, _, data in found}
        for base, end, data in self.synced:
            if end > self.log.start_offset:
                assert by_base.get(base) == data, (base, self.log, self.log.report)
        if self.synced:
            assert self.log.end_offset >= self.synced_end
        self.model, self.end = found, self.log.end_offset
        self.start = self.log.start_offset
        self.synced = [entry for entry in self.synced if entry in found]
        self.epoch = max(self.epoch, self.log.last_epoch) + 1

    # ------------------------------------------------------------------------------------- what must hold

    def stored(self) -> list[tuple[int, int, bytes]]:
        offset, found = self.log.start_offset, []
        self.log.tail.clear()
        while offset < self.log.end_offset:
            part = self.log.read(offset, max_bytes=1000)
            for batch in split(b"".join(part.buffers)):
                verify(batch.data)
                assert batch.base_offset <= offset
                found.append((batch.base_offset, batch.next_offset, bytes(batch.data)))
                offset = batch.next_offset
        return found

    @invariant()
    def the_log_is_the_list(self) -> None:
        assert self.log.failure is None
        assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end), self.log
        assert self.log.start_offset <= self.log.end_offset
        assert self.log.recovery_point <= self.log.synced_end <= self.log.end_offset
        tail_first = []
        offset = self.start
        while offset < self.end:
            part = self.log.read(offset, max_bytes=200)
            tail_first.append(b"".join(part.buffers))
            offset = part.next_offset
        wanted = [entry for entry in self.model if entry[1] > self.start]
        assert b"".join(tail_first) == b"".join(data for _, _, data in wanted)

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        """KAFKA-FACTS 10.7: derivable from the batches, but for entries that own no record."""
        entries = self.log.epochs.entries
        assert entries == sorted(entries)
        last = NO_EPOCH
        for base, _, data in self.model:
            epoch = verify(data).leader_epoch
            assert epoch >= last
            last = epoch
            if base >= self.start:
                assert self.log.epochs.epoch_at(base) == epoch

    @invariant()
    def producers_hold_no_descriptors(self) -> None:
        """One log keeps few files open, however many segments it has."""
        assert len({file.path for file in self.disk.open_files}) <= self.log.segment_count + 2


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=100,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLog.__doc__ = "Any story of one log ends with the bytes that the story says (S1, S21, D6)."
