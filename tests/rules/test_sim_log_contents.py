"""What invariants compare of compacted logs (S29): the last of each key, and whatever still stands at an offset.

And how they read logs (issue 15): faster than readers do, and the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.errors import CorruptMessage
from minikafka.log.names import LOG, offset_name
from minikafka.log.partition_log import PartitionLog
from minikafka.sim import log_invariants
from minikafka.sim.invariants import CommittedPrefixEqual, Exposed, GoneWhenCopied, still_owed
from minikafka.sim.log_invariants import Batch, KeyBook, latest, lost_sequences, records_of, stored_batches
from minikafka.sim.replica_view import ReplicaView
from minikafka.sim.world import Event
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.markers import EndTransaction, marker_batch
from minikafka.wire.records import Record, build_batch
from tests.rules.log_words import TIME, client_batch, everything, from_producer, on_disk, open_log
from tests.rules.memory_disk import MemoryDisk
from tests.rules.test_cleaner import COMPACT, clean, filled, put

ORDERS = TopicPartition("orders", 0)
LENGTH_AT = 8
"""Where a batch has its length."""


def row(offset: int, key: bytes, *, crc: int = 0, gone: bool = False) -> Batch:
    return Batch(offset, offset + 1, 0, crc, key, gone)


def test_the_last_of_a_key_is_owed_and_nothing_else():
    """A leader that lacks what a later record replaces is whole; so is one whose tombstones are gone."""
    rows = [row(0, b"a"), row(1, b"b"), row(2, b"a"), row(3, b"c"), row(4, b"c", gone=True)]
    exposed = [Exposed(each, 1) for each in rows]
    assert [each.batch.base_offset for each in still_owed(exposed, [])] == [1, 2]
    # The next one may be in its log, and not committed yet.
    assert [each.batch.base_offset for each in still_owed(exposed, [row(5, b"b")])] == [2]


def test_a_tombstone_is_the_same_as_nothing():
    """One replica still has it, the next one has not: neither has the key."""
    assert latest([row(0, b"a"), row(1, b"a", gone=True)]) == latest([]) == {}
    assert latest([row(0, b"a", crc=1), row(1, b"a", crc=2)]) == {b"a": row(1, b"a", crc=2)}


def test_an_empty_key_is_a_key_too():
    """A record with the key b"" is owed like any other."""
    assert latest([row(0, b"")]) == {b"": row(0, b"")}


def without(log: PartitionLog, offset: int) -> PartitionLog:
    """A copy that lacks a batch."""
    copy = open_log(MemoryDisk(), COMPACT)
    copy.append_as_follower([batch for batch in split(everything(on_disk(log))) if batch.base_offset != offset])
    return copy


def held_as(log: PartitionLog, topic_id: str = "T") -> Any:
    return SimpleNamespace(partition=ORDERS, topic_id=topic_id, role=None, log=log)


@pytest.mark.parametrize(
    ("leader", "missed"),
    [("has it too", {}), ("lacks it", {b"a": 1}), ("is gone", {b"a": 1}), ("leads another topic", {b"a": 1})],
)
def test_a_tombstone_was_missed_when_its_leader_lacked_it(leader: str, missed: dict[bytes, int]):
    """What a follower skipped though its leader had it is no excuse for a difference at the end."""
    whole = open_log(MemoryDisk(), COMPACT)
    for value in ("1", None, "2"):
        put(whole, ("a" if value != "2" else "b", value))
    committed = CommittedPrefixEqual()
    book = committed.by_key[ORDERS, "T"] = KeyBook()
    for record in records_of(whole, 0, 3):
        book.note(record, 0.0)
    led = {
        "has it too": held_as(whole),
        "lacks it": held_as(without(whole, 1)),
        "leads another topic": held_as(whole, "U"),
    }
    brokers = {3: SimpleNamespace(partitions={ORDERS: led[leader]})} if leader in led else {}
    watch = GoneWhenCopied(committed)
    for base, end in ((0, 1), (2, 3)):
        event = Event(0.0, "n1", 1, "batch_appended", {"base": base, "end": end, "leader": 3}, "")
        view = ReplicaView(brokers, None, held_as(without(whole, 1)), [event])  # type: ignore[arg-type]
        watch.look(view, lambda name, what: pytest.fail(f"{name}: {what}"))
    assert watch.tombstones("n1", ORDERS) == missed
    assert watch.never_had("n1", (ORDERS, "T")) == {1}


def test_the_first_look_at_a_copy_sees_the_gap_before_it():
    """Seed 651802872: nothing had been exposed before, and the compacted leader's first batch left a gap in front."""
    whole = open_log(MemoryDisk(), COMPACT)
    for key, value in (("a", "1"), ("b", "1"), ("b", "2")):
        put(whole, (key, value))
    committed = CommittedPrefixEqual()
    book = committed.by_key[ORDERS, "T"] = KeyBook()
    for record in records_of(whole, 0, 3):
        book.note(record, 0.0)
    watch = GoneWhenCopied(committed)
    event = Event(0.0, "n1", 1, "batch_appended", {"base": 2, "end": 3, "leader": 3}, "")
    view = ReplicaView({}, None, held_as(without(whole, 1)), [event])
    watch.look(view, lambda name, what: pytest.fail(f"{name}: {what}"))
    assert watch.never_had("n1", (ORDERS, "T")) == {1}


@pytest.mark.parametrize("committed", [True, False])
def test_a_record_of_an_aborted_transaction_may_be_gone(committed: bool):
    """Seed 955000203: compaction removed the last record of a key, rightly, and the simulator reported a lost record."""
    book = KeyBook()
    record = build_batch([Record(0, TIME, 0, b"a", b"1")], producer_id=7, producer_epoch=0, transactional=True)
    marker = marker_batch(EndTransaction(7, 0, committed, 0), timestamp_ms=TIME, base_offset=1)
    batches = [RecordBatch.of(data) for data in (record, marker)]
    book.note(row(0, b"a"), 0.0)
    book.note_transactions(batches[:1])
    assert not book.may_be_gone(row(0, b"a"), end=2, time=1.0, delete_retention_s=0.0)
    book.note_transactions(batches)
    assert book.may_be_gone(row(0, b"a"), end=2, time=1.0, delete_retention_s=0.0) is not committed


def test_a_record_is_replaced_within_the_log_only():
    """A replica that ends before the later record of the key must still have the earlier one."""
    book = KeyBook()
    for offset in (0, 5):
        book.note(row(offset, b"a"), 0.0)
    gone = [book.may_be_gone(row(0, b"a"), end=end, time=1.0, delete_retention_s=0.0) for end in (5, 6)]
    assert gone == [False, True]


def test_a_tombstone_may_be_gone_when_its_time_is_over():
    """``delete.retention.ms`` counts from when readers could see it."""
    book, tombstone = KeyBook(), row(0, b"a", gone=True)
    book.note(tombstone, 10.0)
    assert not book.may_be_gone(tombstone, end=1, time=14.9, delete_retention_s=5.0)
    assert book.may_be_gone(tombstone, end=1, time=15.0, delete_retention_s=5.0)


def test_the_last_batch_of_each_producer_must_stay(monkeypatch: pytest.MonkeyPatch):
    """From the first offset of the log up to the last one that is compared."""
    log = open_log(MemoryDisk())
    for producer_id in (7, 8):
        log.append_as_leader(from_producer(producer_id, 0, "a"), leader_epoch=0, wall_ms=TIME)
    assert lost_sequences(log, 2) == []
    monkeypatch.setattr(log_invariants, "stored_batches", lambda *_: [])
    assert lost_sequences(log, 2) == [7, 8]
    assert lost_sequences(log, 1) == [7]


def read_as_readers_do(log: PartitionLog, start: int, end: int) -> list[bytes]:
    """The plain form of ``stored_batches``: one read of the log after the other."""
    found: list[bytes] = []
    offset = max(start, log.start_offset)
    while offset < min(end, log.end_offset):
        read = [batch for buffer in log.read(offset, max_bytes=1, end_offset=end).buffers for batch in split(buffer)]
        if not read:
            break
        found += [bytes(batch.data) for batch in read]
        offset = read[-1].next_offset
    return found


def several_segments() -> PartitionLog:
    """Batches of one to four records in segments of a few batches; the log starts within one of them."""
    log = open_log(MemoryDisk())
    for count in (1, 3, 2, 4, 1, 1, 2, 3, 4, 1, 2, 1):
        log.append_as_leader(client_batch(*["value"] * count), leader_epoch=0, wall_ms=TIME)
    log.raise_start(2)
    return log


def with_gaps() -> PartitionLog:
    """What compaction leaves."""
    log = filled(MemoryDisk())
    clean(log)
    return log


@pytest.mark.parametrize("make", [several_segments, with_gaps])
@pytest.mark.parametrize("has_tail", [True, False])
def test_invariants_read_the_batches_that_readers_are_given(make: Callable[[], PartitionLog], has_tail: bool):
    """Issue 15: reading whole segments gives what ``PartitionLog.read`` gives, for every start and end."""
    log = make() if has_tail else on_disk(make())
    assert log.segment_count > 2
    end = log.end_offset
    for start in range(end + 2):
        for stop in range(end + 2):
            found = [bytes(batch.data) for batch in stored_batches(log, start, stop)]
            assert found == read_as_readers_do(log, start, stop), (start, stop)
    assert stored_batches(log, 0, end)


def test_a_closed_log_has_nothing():
    """A log that its broker has closed, or whose disk has failed, is no finding of the invariants that read it."""
    log = several_segments()
    log.close()
    assert stored_batches(log, 0, log.end_offset) == []


def test_damage_raises_only_where_it_is():
    """A length that cannot be one raises, as it does for readers, and not in front of the damaged batch."""
    disk = MemoryDisk()
    log = open_log(disk)
    for value in ("whole", "damaged"):
        log.append_as_leader(client_batch(value), leader_epoch=0, wall_ms=TIME)
    [first] = stored_batches(on_disk(log), 0, 1)
    length_of_second = slice(first.size + LENGTH_AT, first.size + LENGTH_AT + 4)
    disk.inodes[f"{ORDERS}/{offset_name(0, LOG)}"].content[length_of_second] = bytes(4)
    assert [batch.base_offset for batch in stored_batches(log, 0, 1)] == [0]
    with pytest.raises(CorruptMessage, match="orders-0"):
        stored_batches(log, 0, 2)
