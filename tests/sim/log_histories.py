"""Random histories of one log on one disk, with names for what may go wrong (S1, S21, D6; KAFKA-FACTS 10.7, 10.14).

Appends of idempotent producers, new epochs, cuts, syncs (some interrupted by cuts), checkpoints, kills and power cuts.
``tests/rules/test_log_machine.py`` explores more; here a seed is a history, and a failure has a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from minikafka.config import TopicConfig
from minikafka.errors import ProtocolError
from minikafka.log.partition_log import PartitionLog
from minikafka.wire.batch import RecordBatch, split, verify
from tests.rules.log_words import ORDERS, TIME, TOPIC_ID, from_producer
from tests.rules.memory_disk import MemoryDisk, run

CONFIG = TopicConfig(segment_bytes=400, index_interval_bytes=80, segment_index_bytes=80)
PRODUCERS = (1, 2)


class LogBreach(Exception):
    """A promise of the log is broken; the message is its name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch that was written."""

    base: int
    end: int
    data: bytes
    epoch: int
    producer: int
    last_sequence: int


def entry_of(batch: RecordBatch) -> Entry:
    """A stored batch, as the model keeps it."""
    return Entry(
        batch.base_offset,
        batch.next_offset,
        bytes(batch.data),
        batch.leader_epoch,
        batch.producer_id,
        batch.last_sequence,
    )


class LogHistory:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"log/{seed}")
        self.disk = MemoryDisk()
        self.model: list[Entry] = []
        self.ever: set[Entry] = set()
        self.synced: list[Entry] = []
        self.checkpointed = 0
        self.epoch = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.log = self._open()

    def _open(self, *, clean: bool = False) -> PartitionLog:
        return PartitionLog.open(
            self.disk,
            ORDERS,
            CONFIG,
            clean=clean,
            recovery_point=self.checkpointed,
            topic_id=TOPIC_ID,
            tail_size_max=300,
        )

    @property
    def end(self) -> int:
        return self.model[-1].end if self.model else 0

    def play(self, steps: int) -> None:
        """``steps`` random steps, each followed by all checks. Raises LogBreach."""
        actions = (
            [self.append] * 14
            + [self.new_epoch] * 2
            + [self.truncate] * 3
            + [self.sync] * 4
            + [self.sync_and_write] * 3
            + [self.checkpoint] * 3
            + [self.kill] * 2
            + [self.power_cut] * 3
            + [self.stop_and_start]
        )
        for _ in range(steps):
            self.random.choice(actions)()
            self.check()

    # ---- what happens ------------------------------------------------------------------------------------------------

    def append(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            producer = self.random.choice(PRODUCERS)
            values = ["v" * self.random.randint(0, 60) for _ in range(self.random.randint(1, 2))]
            batch = from_producer(producer, self.sequences[producer], *values)
            try:
                told = self.log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=TIME)
            except ProtocolError as error:
                raise LogBreach("good_batch_refused") from error
            if told.duplicate:
                raise LogBreach("good_batch_refused")
            self.sequences[producer] += len(values)
            stored = split(b"".join(self.log.read(self.end, max_bytes=1).buffers))[0]
            self.model.append(entry_of(stored))
            self.ever.add(self.model[-1])

    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch, self.end)

    def truncate(self) -> None:
        offset = max(1, self.end - self.random.randint(0, 8))
        if offset < self.end:
            self.log.truncate_to(offset)
            self._cut(offset)
        self.epoch += 1

    def _cut(self, offset: int) -> None:
        self.model = [entry for entry in self.model if entry.end <= offset]
        self.synced = [entry for entry in self.synced if entry.end <= offset]
        self._resume()
        if self.log.end_offset != self.end:
            raise LogBreach("cut_elsewhere")

    def _resume(self) -> None:
        """Producers go on behind what the log has of them, as after a change of leader."""
        last = {entry.producer: entry.last_sequence for entry in self.model}
        self.sequences = {producer: last.get(producer, -1) + 1 for producer in PRODUCERS}

    def sync(self) -> None:
        run(self.log.sync())
        self.synced = list(self.model)

    def sync_and_write(self) -> None:
        """What is cut and written anew while a sync is under way is not covered by it."""
        covered, lag = list(self.model), self.random.randint(1, 5)
        self.disk.held = True
        sync = self.log.sync()
        try:
            for _ in range(lag):
                sync.send(None)
            if self.end > 2:
                self.log.truncate_to(self.end - 2)
                self._cut(self.end - 2)
                self.epoch += 1
            self.append()
            self.disk.held = False
            run(sync)
        except StopIteration:
            pass
        self.disk.held = False
        self.synced = [entry for entry in covered if entry in self.model]

    def checkpoint(self) -> None:
        self.checkpointed = self.log.recovery_point
        self.log.recovery_point_checkpointed(self.checkpointed, done=True)

    def kill(self) -> None:
        self.disk.open_files.clear()
        self.log = self._open()
        if self.stored() != self.model:
            raise LogBreach("kill_lost_records")

    def power_cut(self) -> None:
        promised = self.log.synced_end
        covered = [entry for entry in self.model if entry.end <= promised]
        self.disk.power_cut(self.random)
        self.log = self._open()
        found = self.stored()
        if any(entry not in self.ever for entry in found):
            raise LogBreach("recovered_what_was_never_written")
        if found[: len(self.synced)] != self.synced or found[: len(covered)] != covered:
            raise LogBreach("synced_record_lost")
        self.model = found
        self.synced = self.synced[: len(found)]
        self.epoch = max(self.epoch, self.log.last_epoch) + 1
        self._resume()

    def stop_and_start(self) -> None:
        self.log.prepare_close()
        self.sync()
        self.checkpoint()
        self.log.close()
        self.log = self._open(clean=True)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def stored(self) -> list[Entry]:
        """Every batch on disk, each checked."""
        found: list[Entry] = []
        offset = self.log.start_offset
        self.log.tail.clear()
        while offset < self.log.end_offset:
            part = self.log.read(offset, max_bytes=1000)
            if not part.size:
                raise LogBreach("hole_in_the_log")
            for batch in split(b"".join(part.buffers)):
                try:
                    verify(batch.data)
                except ProtocolError as error:
                    raise LogBreach("damaged_batch_served") from error
                found.append(entry_of(batch))
                offset = batch.next_offset
        return found

    def check(self) -> None:
        """After each step."""
        log = self.log
        if not log.recovery_point <= log.synced_end <= log.end_offset:
            raise LogBreach("synced_beyond_the_end")
        if log.end_offset != self.end or self.stored() != self.model:
            raise LogBreach("log_differs")
        if self.model:
            wanted = self.random.choice(self.model)
            first = split(b"".join(log.read(wanted.base, max_bytes=1).buffers))[0]
            if first.base_offset != wanted.base:
                raise LogBreach("read_elsewhere")
        if any(log.epochs.epoch_at(entry.base) != entry.epoch for entry in self.model):
            raise LogBreach("epochs_differ")
        ends = [start for _, start in log.epochs.entries]
        if ends and ends[-1] > log.end_offset:
            raise LogBreach("epochs_differ")
        last = {entry.producer: (0, entry.last_sequence) for entry in self.model}
        if log.producers.last_sequences() != dict(sorted(last.items())):
            raise LogBreach("producers_differ")
