"""Idempotence on the broker: KIP-98's rules, the window of five, the snapshot file (KAFKA-FACTS 1.5, 6)."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from minikafka.errors import NOT_WRITTEN, InvalidProducerEpoch, OutOfOrderSequenceNumber, ThrottlingQuotaExceeded
from minikafka.log import producer_state
from minikafka.log.producer_state import BadSnapshot, Duplicate, ProducerState, parse_snapshot
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.records import CONTROL_LEADER_CHANGE, control_batch
from tests.rules.log_words import TIME, client_batch, from_producer, on_disk, open_log, values
from tests.rules.memory_disk import MemoryDisk, run


def appended(state: ProducerState, batch: RecordBatch, at: int) -> None:
    assert state.check(batch) is None
    state.note(batch, base_offset=at, timestamp=batch.max_timestamp)


def test_a_batch_that_comes_again_is_answered_with_its_offsets():
    """KIP-98: a lost answer makes the producer send again; the record may stand in the log only once."""
    state = ProducerState()
    batch = from_producer(7, 0, "a", "b")
    appended(state, batch, 40)
    assert state.check(batch) == Duplicate(40, 41, TIME + 1)


def test_zero_is_a_producer_id():
    """KIP-98: -1 alone stands for no producer; the first producer of a cluster is 0, and its batches are known, too."""
    state = ProducerState()
    batch = from_producer(0, 0, "a")
    appended(state, batch, 40)
    assert state.check(batch) == Duplicate(40, 40, TIME)


def test_the_window_is_five_batches():
    """KAFKA-FACTS 6: any of the last five is a duplicate; an older one cannot be told from a gap."""
    state = ProducerState()
    for n in range(6):
        appended(state, from_producer(7, n, "x"), n)
    assert [state.check(from_producer(7, n, "x")) for n in range(1, 6)] == [Duplicate(n, n, TIME) for n in range(1, 6)]
    with pytest.raises(OutOfOrderSequenceNumber):
        state.check(from_producer(7, 0, "x"))


def test_a_producer_beyond_the_limit_is_refused_and_known_ones_go_on(monkeypatch: pytest.MonkeyPatch):
    """Clients invent producer ids. None that is known is forgotten for another: its retry would be appended again."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    state = ProducerState()
    for producer in (7, 8):
        appended(state, from_producer(producer, 0, "a"), producer)
    with pytest.raises(ThrottlingQuotaExceeded, match=r"producer 9 is new, .* producer\.id\.expiration\.ms") as caught:
        state.check(from_producer(9, 0, "a"))
    assert (caught.value.retriable, caught.value.outcome) == (True, NOT_WRITTEN)
    assert state.check(from_producer(7, 0, "a")) == Duplicate(7, 7, TIME)
    appended(state, from_producer(7, 1, "b"), 9)
    # Followers take over what the leader has.
    state.note(from_producer(9, 0, "a"), base_offset=10, timestamp=TIME)
    assert len(state) == 3
    for now_ms in (0, 1):
        state.expire(now_ms=now_ms, idle_max_ms=1, high_watermark=11)
    assert state.check(from_producer(10, 0, "a")) is None


def test_a_gap_is_refused_and_says_what_was_expected():
    """KIP-98: a lost batch before this one would otherwise be lost in silence."""
    state = ProducerState()
    appended(state, from_producer(7, 0, "a", "b"), 0)
    with pytest.raises(OutOfOrderSequenceNumber, match="sequence 3, expected 2"):
        state.check(from_producer(7, 3, "d"))
    assert state.check(from_producer(7, 2, "c")) is None


def test_the_same_first_sequence_with_another_length_is_no_duplicate():
    """KAFKA-FACTS 6: first and last sequence must both agree."""
    state = ProducerState()
    appended(state, from_producer(7, 0, "a", "b"), 0)
    with pytest.raises(OutOfOrderSequenceNumber):
        state.check(from_producer(7, 0, "a"))


def test_epochs():
    """KAFKA-FACTS 6: an older epoch is fenced, a newer one begins with sequence 0."""
    state = ProducerState()
    appended(state, from_producer(7, 0, "a", epoch=3), 0)
    with pytest.raises(InvalidProducerEpoch):
        state.check(from_producer(7, 1, "b", epoch=2))
    with pytest.raises(OutOfOrderSequenceNumber):
        state.check(from_producer(7, 1, "b", epoch=4))
    appended(state, from_producer(7, 0, "b", epoch=4), 1)
    assert state.last_sequences() == {7: (4, 0)}


def test_sequences_wrap():
    """KIP-98: after 2^31-1 comes 0."""
    state = ProducerState()
    appended(state, from_producer(7, 2**31 - 2, "a", "b"), 0)
    assert state.check(from_producer(7, 0, "c")) is None


def test_a_batch_whose_sequences_wrap_is_a_duplicate_after_a_restart_too():
    """KIP-98: a snapshot tells a batch's last sequence and its length; the first one is found across the wrap."""
    state, loaded = ProducerState(), ProducerState()
    batch = from_producer(7, 2**31 - 1, "a", "b")
    appended(state, batch, 40)
    loaded.load_snapshot(state.to_snapshot())
    assert loaded.check(batch) == state.check(batch) == Duplicate(40, 41, TIME + 1)
    assert loaded.check(from_producer(7, 1, "c")) is None


def test_an_unknown_producer_may_begin_anywhere():
    """KAFKA-FACTS 6: its state may have expired."""
    assert ProducerState().check(from_producer(7, 1234, "a")) is None


def test_producers_expire_after_idle_time_by_the_brokers_clock():
    """Events of 2013 sent today must not make their producer expire at once: record time does not count."""
    state = ProducerState()
    batch = RecordBatch.of(from_producer(7, 0, "a").data)
    appended(state, batch._replace(max_timestamp=0), 0)
    assert state.expire(now_ms=1_000_000, idle_max_ms=100, high_watermark=0) == 0
    assert state.expire(now_ms=1_000_099, idle_max_ms=100, high_watermark=0) == 0
    appended(state, from_producer(7, 1, "b"), 1)
    assert state.expire(now_ms=1_000_150, idle_max_ms=100, high_watermark=0) == 0
    assert state.expire(now_ms=5, idle_max_ms=100, high_watermark=0) == 0  # the clock was set back
    assert state.expire(now_ms=105, idle_max_ms=100, high_watermark=0) == 1
    assert len(state) == 0


def test_batches_without_a_producer_and_control_batches_leave_no_state():
    """A marker has no sequence."""
    state = ProducerState()
    state.note(client_batch("a"), base_offset=0, timestamp=TIME)
    state.note(RecordBatch.of(control_batch(CONTROL_LEADER_CHANGE, b"", timestamp_ms=TIME)), base_offset=1, timestamp=0)
    assert len(state) == 0


def test_the_snapshot_is_kafkas_bytes():
    """KAFKA-FACTS 1.5: version 1, CRC-32C of the rest, 48 bytes per producer."""
    state = ProducerState()
    appended(state, from_producer(7, 0, "a", "b"), 40)
    appended(state, from_producer(7, 2, "c", "d", "e"), 42)
    entry = struct.pack(">qhiqiqiq", 7, 0, 4, 44, 2, TIME + 2, -1, -1)
    body = struct.pack(">i", 1) + entry
    assert state.to_snapshot() == struct.pack(">hI", 1, crc32c(body)) + body
    loaded = ProducerState()
    loaded.load_snapshot(state.to_snapshot())
    assert loaded.check(from_producer(7, 2, "c", "d", "e")) == Duplicate(42, 44, TIME + 2)
    with pytest.raises(OutOfOrderSequenceNumber):
        loaded.check(from_producer(7, 0, "a", "b"))  # the window is one batch after a restart


def test_a_damaged_snapshot_is_refused():
    """KAFKA-FACTS 1.5: a bad checksum drops the file; the one before it is used."""
    state = ProducerState()
    appended(state, from_producer(7, 0, "a"), 0)
    good = state.to_snapshot()
    body = struct.pack(">i", 2) + bytes(48)
    short = struct.pack(">hI", 1, crc32c(body)) + body
    for bad in (b"", good[:-1], good[:-1] + b"\1", b"\0\2" + good[2:], short):
        with pytest.raises(BadSnapshot):
            list(parse_snapshot(bad))


def test_a_duplicate_is_not_written_again_and_the_log_tells_where_it_stands():
    """KIP-98 through the log: one record, the old offset, a success."""
    log = open_log(MemoryDisk())
    first = log.append_as_leader(from_producer(7, 0, "a"), leader_epoch=0, wall_ms=TIME)
    log.append_as_leader(from_producer(8, 0, "b"), leader_epoch=0, wall_ms=TIME)
    again = log.append_as_leader(from_producer(7, 0, "a"), leader_epoch=0, wall_ms=TIME)
    assert (again.base_offset, again.last_offset, again.duplicate) == (first.base_offset, first.last_offset, True)
    assert values(log) == ["a", "b"]


@pytest.mark.parametrize("clean", [True, False])
def test_state_survives_a_restart(clean: bool):
    """KAFKA-FACTS 1.4.5: from the newest snapshot and the batches after it, with many rolled segments in between."""
    disk = MemoryDisk()
    log = open_log(disk)
    for n in range(20):
        log.append_as_leader(from_producer(7, n, "x"), leader_epoch=0, wall_ms=TIME)
    if clean:
        log.prepare_close()
        run(log.sync())
        log.close()
    log = open_log(disk, clean=clean, recovery_point=20 if clean else 0)
    assert log.append_as_leader(from_producer(7, 19, "x"), leader_epoch=0, wall_ms=TIME).duplicate
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append_as_leader(from_producer(7, 21, "x"), leader_epoch=0, wall_ms=TIME)
    assert values(on_disk(log)) == ["x"] * 20


@pytest.mark.parametrize("cut", [19, 12, 3, 0])
def test_a_cut_takes_the_state_back(cut: int):
    """After a truncation the next sequence is that of the records which are left."""
    log = open_log(MemoryDisk())
    for n in range(20):
        log.append_as_leader(from_producer(7, n, "x"), leader_epoch=0, wall_ms=TIME)
    log.truncate_to(cut)
    if cut:
        with pytest.raises(OutOfOrderSequenceNumber):
            log.append_as_leader(from_producer(7, cut + 1, "x"), leader_epoch=0, wall_ms=TIME)
    assert not log.append_as_leader(from_producer(7, cut, "x"), leader_epoch=0, wall_ms=TIME).duplicate
    assert log.end_offset == cut + 1


def test_active_producers_are_listed_with_their_newest_batch():
    """DescribeProducers: one entry per producer id, in order."""
    log = open_log(MemoryDisk())
    for producer_id, sequence in ((9, 0), (7, 0), (7, 1)):
        log.append_as_leader(from_producer(producer_id, sequence, "x"), leader_epoch=0, wall_ms=TIME)
    assert log.producers.active() == [(7, 0, 1, 2, TIME, -1, -1), (9, 0, 0, 0, TIME, -1, -1)]


def test_followers_learn_the_state_from_the_batches():
    """KAFKA-FACTS 6: a follower that becomes leader knows the duplicates of its predecessor."""
    leader, follower = open_log(MemoryDisk()), open_log(MemoryDisk())
    for n in range(3):
        leader.append_as_leader(from_producer(7, n, "x"), leader_epoch=0, wall_ms=TIME)
    follower.append_as_follower(split(b"".join(leader.read(0, max_bytes=10_000).buffers)))
    assert [follower.producers.check(from_producer(7, n, "x")) for n in range(3)] == [
        Duplicate(n, n, TIME) for n in range(3)
    ]
