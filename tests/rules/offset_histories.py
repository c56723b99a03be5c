"""Random histories of a group's committed offsets: what was acknowledged and not replaced is what OffsetFetch returns.

Commits, plain and in transactions, deletions, expiry, topics that are created again, and coordinators that fail over
with a part of what was in flight, from a log that may be compacted. The model knows nothing of the coordinator: of each
partition, the latest record counts that is plain, a tombstone, or of a committed transaction.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass
from random import Random

from minikafka.coordination.rule import Write
from minikafka.errors import NOT_WRITTEN, NotEnoughReplicas, ProtocolError, RequestTimedOut
from minikafka.groups.limits import GroupSettings
from minikafka.groups.records import OffsetRecord
from minikafka.quorum.image import TopicImage
from minikafka.wire.group_messages import OffsetDeleteRequest
from minikafka.wire.messages import PartitionName
from minikafka.wire.outcomes import error_in, outcome_of_all
from tests.rules.group_kit import Desk

PARTITIONS = (0, 1)
PRODUCERS = (7, 8)
RETENTION_S = 50


class OffsetBreach(AssertionError):
    """A promise is broken; the message is its name."""


@dataclass(slots=True)
class Row:
    """One record of the log, as the model keeps it."""

    partition: int
    offset: int
    """-1: a tombstone."""
    topic_id: str | None
    time_ms: int
    transaction: int | None
    """None: of no transaction."""


class OffsetHistory:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"offsets/{seed}")
        self.desk = Desk(
            GroupSettings(offsets_retention_ms=RETENTION_S * 1000, expiry_interval_ms=5_000), commits_at_once=False
        )
        self.rows: list[Row] = []
        self.transactions = dict(zip(PRODUCERS, (0, 1), strict=True))
        self.ended: dict[int, bool] = {}
        """Transactions that have ended, and whether they were committed."""
        self.begun = 2
        self.offset = 0
        self.topics = 0
        self.tickets: dict[int, int] = {}
        """Requests without an answer: ticket to the offset that it commits."""
        self.outcomes: dict[int, str] = {}
        self.deleting: dict[int, Write] = {}
        self.create_topic()

    def play(self, steps: int) -> None:
        """``steps`` random steps, each followed by all checks. Raises OffsetBreach."""
        weights = {
            self.commit: 6,
            self.commit_in_transaction: 6,
            self.write: 14,
            self.end_transaction: 3,
            self.delete: 1,
            self.refuse: 1,
            self.late: 1,
            self.fail_over: 1,
            self.compact: 1,
            self.pass_time: 1,
            self.create_again: 1,
        }
        drawn = [weight * self.random.choice([0.2, 1, 1, 4]) for weight in weights.values()]
        for action in self.random.choices(list(weights), drawn, k=steps):
            try:
                action()
            except ProtocolError as error:
                if error.outcome != NOT_WRITTEN:
                    raise
            self.check()
        while self.desk.in_flight:
            self.write()
        self.check()

    # ---- what happens ------------------------------------------------------------------------------------------------

    def create_topic(self) -> None:
        self.topics += 1
        self.topic_id = urlsafe_b64encode(self.topics.to_bytes(16)).decode()[:22]
        self.desk.topics = {"t": TopicImage(name="t", topic_id=self.topic_id)}

    def commit(self) -> None:
        self.offset += 1
        ticket = self.desk.commit(self.offset, partition=self.random.choice(PARTITIONS))
        self.tickets[ticket] = self.offset

    def commit_in_transaction(self) -> None:
        self.offset += 1
        ticket = self.desk.commit_in_transaction(
            self.offset, partition=self.random.choice(PARTITIONS), producer_id=self.random.choice(PRODUCERS)
        )
        self.tickets[ticket] = self.offset

    def write(self) -> None:
        """The oldest write is committed."""
        if self.desk.in_flight:
            self.note(self.desk.in_flight[0])
            self.desk.commit_one()

    def note(self, write: Write) -> None:
        producer_id = None if write.transaction is None else write.transaction.producer_id
        for record in write.records:
            row = Row(-1, -1, None, 0, None if producer_id is None else self.transactions[producer_id])
            if isinstance(record, OffsetRecord):
                row.partition = record.partition.partition
                if record.value is not None:
                    row.offset, row.topic_id = record.value.offset, record.value.topic_id
                    row.time_ms = record.value.timestamp_ms
            self.rows.append(row)

    def end_transaction(self) -> None:
        """Its marker stands behind all that is in flight."""
        while self.desk.in_flight:
            self.write()
        producer_id, is_commit = self.random.choice(PRODUCERS), self.random.random() < 0.6
        self.ended[self.transactions[producer_id]] = is_commit
        self.transactions[producer_id], self.begun = self.begun, self.begun + 1
        self.desk.end_transaction(producer_id, commit=is_commit)

    def delete(self) -> None:
        step = self.desk.step()
        places = (PartitionName(topic="t", partition=self.random.choice(PARTITIONS)),)
        request = OffsetDeleteRequest(group_id="g", partitions=places)
        self.desk.coordinator.delete_offsets(next(self.desk.tickets), request, step)
        self.desk.done(step)

    def refuse(self) -> None:
        write = self.desk.in_flight[0] if self.desk.in_flight else None
        if write is not None and id(write) not in self.deleting:
            self.desk.refuse_one(NotEnoughReplicas("too few"))

    def late(self) -> None:
        if self.desk.in_flight:
            self.deleting[id(self.desk.in_flight[0])] = self.desk.in_flight[0]
            self.desk.refuse_one(RequestTimedOut("late", outcome="unknown"))

    def fail_over(self) -> None:
        """The next coordinator finds some of what was in flight."""
        found = self.random.randint(0, len(self.desk.in_flight))
        for write in self.desk.in_flight[:found]:
            self.note(write)
        self.desk.fail_over(found)

    def compact(self) -> None:
        """Below the first open transaction, the last record of each key stays; aborted ones go and replace nothing."""
        desk = self.desk
        open_at = [at for at, row in enumerate(self.rows) if self.is_open(row)]
        limit = min(open_at, default=len(self.rows))
        last = {desk.log[at][0]: at for at in range(limit) if self.counts(self.rows[at])}
        has_tombstones = self.random.random() < 0.5
        kept = [
            at
            for at, (key, value) in enumerate(desk.log)
            if at >= limit or (last.get(key) == at and (value is not None or has_tombstones))
        ]
        desk.compact(kept)
        self.rows = [self.rows[at] for at in kept]
        self.fail_over()

    def pass_time(self) -> None:
        """What expires is old, and nothing is about to replace it."""
        before = list(self.desk.in_flight)
        self.desk.pass_time(self.random.choice([1, 6, 30, 60]))
        now_ms = self.desk.step().wall_ms
        under_way = {
            record.partition
            for write in before
            for record in write.records
            if isinstance(record, OffsetRecord) and record.value and record.value.topic_id == self.topic_id
        }
        for write in self.desk.in_flight:
            if write in before:
                continue
            for record in write.records:
                if not isinstance(record, OffsetRecord):
                    continue
                if record.partition in under_way:
                    raise OffsetBreach("an_offset_under_way_is_erased")
                row = self.row_of(record.partition.partition)
                if row is not None and row.topic_id == self.topic_id and now_ms - row.time_ms < RETENTION_S * 1000:
                    raise OffsetBreach("a_young_offset_expires")
                if self.open_offsets(record.partition.partition, self.topic_id):
                    raise OffsetBreach("an_offset_of_an_open_transaction_is_erased")

    def create_again(self) -> None:
        """The topic; the coordinator may fail before it hears of it."""
        self.create_topic()
        if self.random.random() < 0.5:
            self.desk.coordinator.topics_deleted(["t"], step := self.desk.step())
            self.desk.done(step)
        else:
            self.fail_over()

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def is_open(self, row: Row) -> bool:
        return row.transaction is not None and row.transaction not in self.ended

    def open_offsets(self, partition: int, topic_id: str | None = None) -> list[Row]:
        """Of open transactions, behind the last tombstone."""
        live = [each for each in self.rows if each.partition == partition]
        tombstone = max((at for at, each in enumerate(live) if each.offset < 0), default=-1)
        return [each for each in live[tombstone + 1 :] if self.is_open(each) and topic_id in (None, each.topic_id)]

    def counts(self, row: Row) -> bool:
        """Return True if it is of no transaction, or of a committed one."""
        return row.transaction is None or self.ended.get(row.transaction, False)

    def row_of(self, partition: int) -> Row | None:
        """The record that counts; None: there is none."""
        counted = [row for row in self.rows if row.partition == partition and self.counts(row)]
        return counted[-1] if counted and counted[-1].offset >= 0 else None

    def check(self) -> None:
        written = {row.offset for row in self.rows}
        for ticket in [each for each in self.tickets if each in self.desk.answers]:
            offset, answer = self.tickets.pop(ticket), self.desk.answers[ticket]
            failed = error_in(answer) or error_in(answer.partitions[0])  # type: ignore[attr-defined, arg-type]
            if failed is None and offset not in written:
                raise OffsetBreach("acknowledged_and_not_written")
            self.outcomes[offset] = "acknowledged" if failed is None else outcome_of_all(answer)  # type: ignore[arg-type]
        if any(self.outcomes.get(offset) == NOT_WRITTEN for offset in written):
            raise OffsetBreach("not_written_and_yet_written")
        for partition in PARTITIONS:
            row = self.row_of(partition)
            expected = row.offset if row is not None and row.topic_id == self.topic_id else -1
            found = self.desk.committed(partition=partition)
            if found != expected:
                raise OffsetBreach(f"another_offset: {found} of partition {partition}, not {expected}")
            if self.open_offsets(partition) and not self.desk.stable_code(partition=partition):
                raise OffsetBreach("an_open_transaction_is_called_stable")
