"""Transactions in one log against a naive replay of all its batches, through rolls, cuts, stops, kills and power cuts.

Held after each step (T8, T10 to T12 of the invariants of transactions): the last stable offset, what a reader with
``read_committed`` gets, the entries of the transaction indexes, and the producers' state.
"""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minikafka.config import TopicConfig
from minikafka.errors import ProtocolError
from minikafka.log.names import TRANSACTION_INDEX
from minikafka.log.partition_log import PartitionLog
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.markers import AbortedFilter, EndTransaction, marker_batch
from minikafka.wire.messages import AbortedTransaction
from tests.rules.log_words import ORDERS, TIME, TOPIC_ID, client_batch, in_transaction
from tests.rules.memory_disk import MemoryDisk, run
from tests.rules.transaction_replay import replayed

CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=100)
PRODUCERS = st.sampled_from([7, 8, 9])


class TransactionMachine(RuleBasedStateMachine):
    """``model`` holds the stored bytes of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.model: list[bytes] = []
        self.epoch = 0
        self.point = self.saved_watermark = self.watermark = 0
        self.saved_start = 0
        self.log = self.open()

    def open(self, *, clean: bool = False) -> PartitionLog:
        return PartitionLog.open(
            self.disk,
            ORDERS,
            CONFIG,
            clean=clean,
            recovery_point=self.point,
            start_offset=self.saved_start,
            high_watermark=self.saved_watermark,
            topic_id=TOPIC_ID,
            save_start=self.save_start,
        )

    async def save_start(self) -> None:
        self.saved_start = self.log.start_offset

    # ------------------------------------------------------------------------------------- rules

    def appended(self, batch: RecordBatch, marker: EndTransaction | None = None) -> None:
        before = self.log.end_offset
        try:
            info = self.log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=TIME, marker=marker)
        except ProtocolError:
            assert self.log.end_offset == before
            return
        if not info.duplicate:
            self.model.append(b"".join(self.log.read(before, max_bytes=1).buffers))

    def next_of(self, producer_id: int, raised: int) -> tuple[int, int]:
        """Epoch and sequence that fit."""
        known = replayed(self.model).producers.get(producer_id)
        if known is None or raised:
            return (known.epoch if known else 0) + raised, 0
        return known.epoch, known.sequence + 1

    @rule()
    def plain(self) -> None:
        self.appended(client_batch("plain"))

    @rule(producer_id=PRODUCERS, raised=st.sampled_from([0, 0, 0, 1]), count=st.integers(1, 3), is_in=st.booleans())
    def produce(self, producer_id: int, raised: int, count: int, *, is_in: bool) -> None:
        epoch, sequence = self.next_of(producer_id, raised)
        values = ["v"] * count
        if is_in:
            self.appended(in_transaction(producer_id, sequence, *values, epoch=epoch))
        else:
            self.appended(client_batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))

    @rule(producer_id=PRODUCERS, raised=st.integers(0, 1), commit=st.booleans(), coordinator=st.integers(0, 2))
    def end(self, producer_id: int, raised: int, coordinator: int, *, commit: bool) -> None:
        epoch = self.next_of(producer_id, raised)[0]
        marker = EndTransaction(producer_id, epoch, commit, coordinator, 2 * raised)
        self.appended(RecordBatch.of(marker_batch(marker, timestamp_ms=TIME)), marker)

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        """The high watermark rises, to the end of a batch as it always does."""
        ends = [batch.next_offset for batch in map(RecordBatch.of, self.model) if batch.next_offset > self.watermark]
        if ends:
            self.watermark = ends[int(share * (len(ends) - 1))]

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(back=st.integers(0, 8))
    def truncate(self, back: int) -> None:
        """Maybe below the high watermark, as after an unclean election."""
        self.log.truncate_to(max(self.log.start_offset, self.log.end_offset - back))
        self.took_over()
        self.epoch += 1

    @precondition(lambda self: self.watermark > self.log.start_offset)
    @rule()
    def delete_records(self) -> None:
        """Within the first segment: with the segment, what only it says of producers may go."""
        segments = self.log._store.segments
        self.log.raise_start(min(self.watermark, segments[0].next_offset - 1))

    @rule()
    def follow(self) -> None:
        """A follower of this log becomes the leader: everything comes from its copies of the batches."""
        other = MemoryDisk()
        first = RecordBatch.of(self.model[0]).base_offset if self.model else self.log.end_offset
        follower = PartitionLog.open(other, ORDERS, CONFIG, start_offset=first, topic_id=TOPIC_ID)
        for data in self.model:
            follower.append_as_follower([RecordBatch.of(data)])
        if follower._store.segments[0].next_offset <= self.log.start_offset:
            return  # its next start would delete the segment; see delete_records
        follower.raise_start(self.log.start_offset)
        self.disk, self.log, self.point, self.saved_start = other, follower, 0, self.log.start_offset

    @rule()
    def checkpoint(self) -> None:
        run(self.log.sync())
        self.point = self.log.recovery_point
        self.log.recovery_point_checkpointed(self.point, done=True)

    @rule()
    def checkpoint_watermark(self) -> None:
        self.saved_watermark = self.watermark

    @rule()
    def kill(self) -> None:
        start = self.log.start_offset
        self.disk.open_files.clear()
        self.log = self.open()
        self.log.raise_start(start)
        self.took_over(reloaded=True)

    @rule()
    def stop_and_start(self) -> None:
        self.log.prepare_close()
        self.checkpoint()
        self.saved_start = self.log.start_offset
        self.log.close()
        self.log = self.open(clean=True)
        assert self.log.report.checked_count == 0
        self.took_over(reloaded=True)

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed: int) -> None:
        self.disk.power_cut(Random(seed))
        self.log = self.open()
        self.took_over(reloaded=True)
        self.epoch += 1

    def took_over(self, *, reloaded: bool = False) -> None:
        end = self.log.end_offset
        # After a power cut, batches that were cut and never synced may be there again.
        self.model = [
            bytes(batch.data)
            for segment in self.log._store.segments
            for batch in split(segment.read(0, segment.size) if segment.size else b"")
        ]
        watermark = self.saved_watermark if reloaded else self.watermark
        self.watermark = max(self.log.start_offset, min(watermark, end))
        self.saved_watermark = min(self.saved_watermark, end)

    # ------------------------------------------------------------------------------------- what must hold

    @invariant()
    def producers_are_those_of_the_replay(self) -> None:
        expected = {
            producer_id: (known.epoch, known.sequence, known.offset, known.coordinator, known.start)
            for producer_id, known in replayed(self.model).producers.items()
        }
        assert {
            each.producer_id: (
                each.producer_epoch,
                each.last_sequence,
                each.last_offset,
                each.coordinator_epoch,
                each.current_txn_start_offset,
            )
            for each in self.log.producers.active()
        } == expected

    @invariant()
    def indexes_hold_the_aborted_transactions(self) -> None:
        model = replayed(self.model)
        segments = self.log._store.segments
        expected = [(producer_id, first, marker) for producer_id, first, marker, commit in model.ended if not commit]
        found = [(segment, entry) for segment in segments for entry in segment.transactions.entries]
        assert [entry[:3] for _, entry in found] == expected
        for segment, entry in found:
            assert segment.base_offset <= entry.last_offset < segment.next_offset
            assert entry.last_stable_offset <= entry.last_offset + 1
        for segment in segments[:-1]:
            path = segment.path(TRANSACTION_INDEX)
            content = self.disk.read_file(path) if self.disk.exists(path) else b""
            assert content == segment.transactions.to_bytes()

    @invariant()
    def last_stable_offset_is_that_of_the_replay(self) -> None:
        model = replayed(self.model)
        held = model.open() + [first for _, first, marker, _ in model.ended if marker >= self.watermark]
        expected = max(min([self.watermark, *held]), min(self.log.start_offset, self.watermark))
        assert self.log.stable_end(self.watermark) == expected

    @invariant()
    def readers_get_what_was_committed(self) -> None:
        """From each batch on, in reads of different sizes."""
        stable_end = self.log.stable_end(self.watermark)
        committed = sorted(replayed(self.model).committed)
        for number, data in enumerate(self.model):
            offset = RecordBatch.of(data).base_offset
            if offset < self.log.start_offset:
                continue
            expected = [each for each in committed if offset <= each < stable_end]
            assert self.read(offset, stable_end, max_bytes=100 + 150 * (number % 4)) == expected

    def read(self, offset: int, stable_end: int, *, max_bytes: int) -> list[int]:
        found: list[int] = []
        while offset < stable_end:
            part = self.log.read(offset, max_bytes=max_bytes, end_offset=stable_end)
            aborted = self.log.aborted_transactions(offset, part.next_offset)
            skipping = AbortedFilter(
                AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in aborted
            )
            for batch in split(b"".join(part.buffers)):
                if not skipping.skips(batch) and not batch.is_control:
                    found += range(batch.base_offset, batch.next_offset)
            assert part.next_offset > offset
            offset = part.next_offset
        return found


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


WALKS, STEPS = 30, 70


def walked(seed: int) -> None:
    """One long random walk: most steps write, so that transactions span segments, stops and cuts."""
    random = Random(seed)
    machine = TransactionMachine()
    for _ in range(STEPS):
        producer_id = random.choice((7, 8, 9))
        number = random.randrange(100)
        if number < 45:
            machine.produce(
                producer_id, random.choice((0, 0, 0, 0, 1)), random.randrange(1, 4), is_in=random.random() < 0.8
            )
        elif number < 65:
            machine.end(producer_id, random.randrange(2), random.choice((0, 0, 1)), commit=random.random() < 0.4)
        elif number < 80:
            machine.commit(random.random())
        elif number < 84:
            machine.checkpoint_watermark()
        elif number < 88:
            machine.checkpoint()
        elif number < 90:
            machine.truncate(random.randrange(6))
        elif number < 92 and machine.watermark > machine.log.start_offset and random.random() < 0.3:
            machine.delete_records()
        elif number < 94:
            machine.kill()
        elif number < 96:
            machine.power_cut(random.randrange(1 << 32))
        elif number < 98:
            machine.stop_and_start()
        else:
            machine.follow()
        machine.producers_are_those_of_the_replay()
        machine.indexes_hold_the_aborted_transactions()
        machine.last_stable_offset_is_that_of_the_replay()
        machine.readers_get_what_was_committed()


def test_random_walks():
    """As the machine, with many more steps to each story."""
    for seed in range(WALKS):
        walked(seed)
