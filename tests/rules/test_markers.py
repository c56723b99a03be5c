"""Markers in Kafka's bytes, and the leader's rules for appending them (KIP-98, KIP-890)."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from minikafka.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from minikafka.log.producer_state import ProducerState, parse_snapshot
from minikafka.log.transactions import HoldingTransaction, OpenTransactions
from minikafka.wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT, RecordBatch, verify, verify_client, with_fields
from minikafka.wire.markers import EndTransaction, marker_batch, marker_of
from minikafka.wire.records import CONTROL_LEADER_CHANGE, control_batch, decode_batch
from minikafka.wire.rewrite import emptied
from tests.rules.log_words import TIME, client_batch, from_producer, in_transaction, open_log
from tests.rules.memory_disk import MemoryDisk

COMMITTED = EndTransaction(4000, 3, True, 7)
ABORTED = COMMITTED._replace(is_commit=False)
COMMIT_BYTES = bytes.fromhex(
    "000000000000000000000042ffffffff02ce4cf28e0030000000000000018bcfe568000000018bcfe56800"
    "0000000000000fa00003ffffffff000000012000000008000000010c00000000000700"
)
ABORT_BYTES = bytes.fromhex(
    "000000000000000000000042ffffffff023a7224c60030000000000000018bcfe568000000018bcfe56800"
    "0000000000000fa00003ffffffff000000012000000008000000000c00000000000700"
)


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("marker", "data"), [(COMMITTED, COMMIT_BYTES), (ABORTED, ABORT_BYTES)])
def test_markers_have_kafkas_bytes(marker: EndTransaction, data: bytes):
    """The vectors of TRANSACTIONS.md, which kafka-python decodes as well."""
    assert marker_batch(marker, timestamp_ms=TIME).hex() == data.hex()
    batch = verify(data)
    assert batch.is_control
    assert batch.is_transactional
    assert marker_of(batch) == marker
    assert [record.offset for record in decode_batch(batch)] == [0]


def test_marker_at_an_offset_and_in_an_epoch():
    """A follower, and a test, writes it where the leader put it; the checksum does not cover that."""
    batch = verify(marker_batch(COMMITTED, timestamp_ms=TIME, base_offset=40, leader_epoch=5))
    assert (batch.base_offset, batch.leader_epoch, batch.crc) == (40, 5, verify(COMMIT_BYTES).crc)


def test_other_control_batches_are_no_markers():
    """KRaft's records have no producer; a marker whose record compaction removed ends nothing."""
    assert marker_of(RecordBatch.of(control_batch(CONTROL_LEADER_CHANGE, b"x", timestamp_ms=TIME))) is None
    assert marker_of(RecordBatch.of(emptied(RecordBatch.of(COMMIT_BYTES)))) is None


def test_marker_with_a_short_value_is_corrupt():
    """Two bytes hold no coordinator epoch: to guess one would let an old coordinator in."""
    batch = RecordBatch.of(control_batch(1, b"\0\0", timestamp_ms=TIME, transactional=True))
    data = with_fields(batch._replace(producer_id=7, producer_epoch=0)) + batch.data[61:]
    with pytest.raises(CorruptMessage, match="its value has 2 bytes, not 6"):
        marker_of(RecordBatch.of(data))


# ---- what clients may send -------------------------------------------------------------------------------------------


def test_transactional_bit_needs_a_transactional_id_in_the_request():
    """Who names none cannot have been verified against a coordinator."""
    data = in_transaction(7, 0, "a").data
    assert verify_client(data, transactional=True).is_transactional
    with pytest.raises(InvalidRecord, match="names no transactional id"):
        verify_client(data)


def test_clients_may_not_send_markers():
    """With or without a transactional id."""
    for data in (COMMIT_BYTES, ABORT_BYTES):
        for transactional in (False, True):
            with pytest.raises(InvalidRecord, match="control bit"):
                verify_client(data, transactional)


def test_transactional_batch_needs_a_producer():
    """Without a producer id no marker would ever end its transaction."""
    batch = client_batch("a")
    data = with_fields(batch, attributes=TRANSACTIONAL_BIT) + batch.data[61:]
    with pytest.raises(InvalidRecord, match="no producer id"):
        verify_client(data, transactional=True)


# ---- the leader's rules ----------------------------------------------------------------------------------------------


def ended(state: ProducerState, marker: EndTransaction, at: int) -> object:
    state.check_marker(marker)
    batch = RecordBatch.of(marker_batch(marker, timestamp_ms=TIME))
    return state.note(batch, base_offset=at, timestamp=TIME, marker=marker)


def written(state: ProducerState, batch: RecordBatch, at: int) -> None:
    assert state.check(batch) is None
    state.note(batch, base_offset=at, timestamp=batch.max_timestamp)


def test_transaction_begins_with_its_first_batch_and_ends_with_a_marker():
    """Later batches do not move its start; the marker of an abort gives the entry of the transaction index."""
    state = ProducerState()
    written(state, in_transaction(7, 0, "a", "b"), 10)
    written(state, in_transaction(7, 2, "c"), 12)
    assert state.transactions.open == {10: 7}
    assert ended(state, EndTransaction(7, 0, False, 1), 14) == (7, 10, 14, 15)
    assert state.transactions.open == {}
    written(state, in_transaction(7, 3, "d"), 15)
    assert ended(state, EndTransaction(7, 0, True, 1), 16) is None


def test_index_entry_names_the_oldest_transaction_of_another_producer():
    """The last stable offset that the abort makes possible (A7)."""
    state = ProducerState()
    written(state, in_transaction(7, 0, "a"), 10)
    written(state, in_transaction(8, 0, "b"), 12)
    assert ended(state, EndTransaction(7, 0, False, 1), 14) == (7, 10, 14, 12)


def test_open_transactions_of_a_snapshot_begin_in_the_order_of_the_log():
    """A snapshot is sorted by producer id: else the last stable offset would pass the oldest transaction."""
    state, loaded = ProducerState(), ProducerState()
    written(state, in_transaction(8, 0, "a"), 10)
    written(state, in_transaction(7, 0, "b"), 12)
    loaded.load_snapshot(state.to_snapshot())
    assert loaded.transactions.stable_end(20) == state.transactions.stable_end(20) == 10
    assert ended(loaded, EndTransaction(8, 0, False, 1), 14) == (8, 10, 14, 12)


def test_batch_outside_the_open_transaction_is_refused():
    """A4.3, rule 5: its order against the transaction would be lost."""
    state = ProducerState()
    written(state, in_transaction(7, 0, "a"), 0)
    with pytest.raises(InvalidTxnState, match="open since offset 0"):
        state.check(from_producer(7, 1, "b"))
    with pytest.raises(InvalidTxnState):
        state.check(from_producer(7, 0, "b", epoch=1))
    ended(state, EndTransaction(7, 0, True, 1), 1)
    assert state.check(from_producer(7, 1, "b")) is None


def test_duplicate_is_answered_before_anything_else():
    """A4.3, rule 1: the retry of a batch whose transaction has ended is a success."""
    state = ProducerState()
    written(state, in_transaction(7, 0, "a"), 0)
    ended(state, EndTransaction(7, 0, True, 1), 1)
    assert state.check(in_transaction(7, 0, "a")) == (0, 0, TIME)


@pytest.mark.parametrize("version", [0, 1])
def test_marker_of_the_first_versions_has_the_epoch_of_its_data(version: int):
    """An equal epoch ends the transaction, or is a harmless repetition; a lower one is refused."""
    state = ProducerState()
    written(state, in_transaction(7, 0, "a", epoch=2), 0)
    marker = EndTransaction(7, 2, False, 1, version)
    with pytest.raises(InvalidProducerEpoch, match="the marker has epoch 1, the producer is at 2"):
        state.check_marker(marker._replace(producer_epoch=1))
    assert ended(state, marker, 1) == (7, 0, 1, 2)
    assert ended(state, marker, 2) is None
    written(state, in_transaction(7, 1, "b", epoch=2), 3)


def test_marker_of_version_2_must_raise_the_epoch_unless_it_is_a_retry():
    """KAFKA-19446: a late copy must not end the next transaction. KAFKA-19999: a retry must be accepted."""
    state = ProducerState()
    written(state, in_transaction(7, 0, "a"), 0)
    marker = EndTransaction(7, 1, True, 1, 2)
    with pytest.raises(InvalidProducerEpoch):
        state.check_marker(marker._replace(producer_epoch=0))
    ended(state, marker, 1)
    ended(state, marker, 2)
    written(state, in_transaction(7, 0, "b", epoch=1), 3)
    with pytest.raises(InvalidProducerEpoch):
        state.check_marker(marker)
    assert state.transactions.open == {3: 7}


def test_older_coordinator_is_fenced():
    """A coordinator that was replaced must not end what its successor has begun."""
    state = ProducerState()
    ended(state, EndTransaction(7, 0, True, 5), 0)
    with pytest.raises(TransactionCoordinatorFenced, match="coordinator epoch 4 is older than 5"):
        state.check_marker(EndTransaction(7, 0, True, 4))
    ended(state, EndTransaction(7, 0, True, 6), 1)
    state.check_marker(EndTransaction(8, 0, True, 4))


def test_marker_without_a_transaction_fences():
    """It raises the epoch: older batches are refused, and the new epoch begins with sequence 0."""
    state = ProducerState()
    written(state, from_producer(7, 0, "a"), 0)
    assert ended(state, EndTransaction(7, 1, False, 1), 1) is None
    with pytest.raises(InvalidProducerEpoch):
        state.check(from_producer(7, 1, "b"))
    with pytest.raises(OutOfOrderSequenceNumber):
        state.check(from_producer(7, 1, "b", epoch=1))
    assert state.check(from_producer(7, 0, "b", epoch=1)) is None


def test_batches_of_a_coordinator_have_no_sequence():
    """Offsets committed in a transaction: they begin it, and only the epoch is checked."""
    state = ProducerState()
    batch = in_transaction(7, 5, "a", epoch=2)._replace(base_sequence=-1)
    written(state, batch, 3)
    assert state.transactions.open == {3: 7}
    assert state.check(batch) is None
    with pytest.raises(InvalidProducerEpoch):
        state.check(batch._replace(producer_epoch=1))


def test_open_transactions_do_not_expire():
    """KAFKA-9144, T22: an expired producer with an open transaction would hold back readers for ever."""
    state = ProducerState()
    written(state, in_transaction(7, 0, "a"), 0)
    written(state, from_producer(8, 0, "b"), 1)
    for now_ms in (0, 1000, 2000):
        state.expire(now_ms=now_ms, idle_max_ms=500, high_watermark=2)
    assert [each.producer_id for each in state.active()] == [7]
    ended(state, EndTransaction(7, 0, True, 1), 2)
    expired = [state.expire(now_ms=now_ms, idle_max_ms=500, high_watermark=3) for now_ms in (2000, 2400, 2600)]
    assert expired == [0, 0, 1]


def test_a_marker_begins_the_idle_time_again_even_if_it_ends_nothing():
    """KIP-890: it raises the producer's epoch; forgotten at once, batches of the old epoch would be taken again."""
    state = ProducerState()
    written(state, from_producer(7, 0, "a"), 0)
    assert [state.expire(now_ms=now_ms, idle_max_ms=500, high_watermark=1) for now_ms in (0, 400)] == [0, 0]
    ended(state, EndTransaction(7, 1, False, 1), 1)
    assert [state.expire(now_ms=now_ms, idle_max_ms=500, high_watermark=2) for now_ms in (600, 1099)] == [0, 0]
    with pytest.raises(InvalidProducerEpoch):
        state.check(from_producer(7, 1, "b"))
    assert state.expire(now_ms=1100, idle_max_ms=500, high_watermark=2) == 1


# ---- snapshots -------------------------------------------------------------------------------------------------------

SNAPSHOT = bytes.fromhex(
    "000175e4933d000000020000000000000fa00003ffffffffffffffffffffffff000000000000018bcfe568000000000"
    "7ffffffffffffffff0000000000000fa1000000000004000000000000000e000000040000018bcfe56800ffffffff00"
    "0000000000000a"
)


def test_snapshot_has_kafkas_bytes():
    """The vector of TRANSACTIONS.md: a producer of which only a marker is known, and one with an open transaction."""
    state = ProducerState()
    written(state, in_transaction(4001, 0, *"abcde"), 10)
    state._producers[4001].last_timestamp = TIME  # the vector's batch has one timestamp
    ended(state, COMMITTED, 15)
    assert state.to_snapshot().hex() == SNAPSHOT.hex()
    loaded = ProducerState()
    loaded.load_snapshot(SNAPSHOT)
    assert loaded.to_snapshot() == SNAPSHOT
    assert loaded.transactions.open == {10: 4001}
    assert [each.last_offset for each in parse_snapshot(SNAPSHOT)] == [-1, 14]
    assert crc32c(SNAPSHOT[6:]) == 0x75E4933D


def test_producer_known_by_a_marker_begins_with_sequence_0_after_a_load():
    """KAFKA-9144: an entry without a batch is an empty window, not a batch at offset -1."""
    state = ProducerState()
    state.load_snapshot(SNAPSHOT)
    with pytest.raises(OutOfOrderSequenceNumber, match="sequence 1, expected 0"):
        state.check(in_transaction(4000, 1, "a", epoch=3))
    assert state.check(in_transaction(4000, 0, "a", epoch=3)) is None
    with pytest.raises(InvalidProducerEpoch):
        state.check(in_transaction(4000, 0, "a", epoch=2))


@pytest.mark.parametrize("is_commit", [True, False])
def test_late_copy_of_a_marker_does_not_end_the_next_transaction_of_its_epoch(is_commit: bool):
    """Before version 2 both have the same epoch (KIP-890): only the coordinator's number tells the markers apart."""
    state = ProducerState()
    marker = EndTransaction(7, 0, is_commit, coordinator_epoch=3, number=5)
    written(state, in_transaction(7, 0, "a"), 10)
    ended(state, marker, 11)
    assert ended(state, marker, 12) is None, "a retry"
    written(state, in_transaction(7, 1, "b"), 13)
    for number in (5, 4):
        with pytest.raises(InvalidProducerEpoch, match=f"its transaction {number} has ended here"):
            state.check_marker(marker._replace(number=number))
    # The next one's marker, those of a new coordinator, and an administrator's have nothing to do with that number.
    for next_one in (
        marker._replace(number=6),
        marker._replace(coordinator_epoch=4, number=1),
        marker._replace(number=0),
    ):
        state.check_marker(next_one)
    ended(state, marker._replace(coordinator_epoch=4, number=1), 14)
    written(state, in_transaction(7, 2, "c"), 15)
    state.check_marker(marker._replace(coordinator_epoch=4, number=2))


def test_number_of_a_marker_is_forgotten_with_the_log():
    """A cut may take a marker back, which then comes again with its number; followers do not know the number."""
    marker = EndTransaction(7, 0, True, coordinator_epoch=3, number=5)
    state = ProducerState()
    written(state, in_transaction(7, 0, "a"), 10)
    ended(state, marker, 11)
    state.clear()
    written(state, in_transaction(7, 0, "a"), 10)
    state.check_marker(marker)
    state.note(RecordBatch.of(marker_batch(marker, timestamp_ms=TIME)), base_offset=11, timestamp=TIME)
    written(state, in_transaction(7, 1, "b"), 12)
    state.check_marker(marker._replace(number=6))


# ---- the last stable offset ------------------------------------------------------------------------------------------


def test_last_stable_offset_is_held_by_open_and_by_uncommitted_ended_transactions():
    """A8: a marker that is not below the high watermark decides nothing yet."""
    transactions = OpenTransactions()
    assert transactions.stable_end(9) == 9
    transactions.begin(3, 7)
    transactions.begin(5, 8)
    assert [transactions.stable_end(hw) for hw in (2, 9)] == [2, 3]
    transactions.end(3, 12)
    assert [transactions.stable_end(hw) for hw in (10, 12)] == [3, 3]
    assert transactions.holding(12) == HoldingTransaction(3, 7, 12)
    assert transactions.stable_end(13) == 5
    assert transactions.holding(13) == HoldingTransaction(5, 8, -1)
    assert transactions.holding(5) is None
    transactions.end(5, 13)
    assert [transactions.stable_end(hw) for hw in (13, 14)] == [5, 14]


def test_cut_that_takes_the_marker_of_the_oldest_transaction_leaves_the_others_in_order():
    """The oldest one that is left holds the last stable offset, in whichever order they have ended."""
    transactions = OpenTransactions()
    for producer_id, first_offset in enumerate((1, 2, 3)):
        transactions.begin(first_offset, producer_id)
    for first_offset, marker in ((3, 10), (2, 11), (1, 12)):
        transactions.end(first_offset, marker)
    transactions.restore_ended(transactions.ended_below(12))
    assert transactions.stable_end(9) == 2


def test_transaction_that_was_committed_once_stays_so_when_the_watermark_falls():
    """A new leader knows an older watermark; the marker below the former one is on every replica that can lead."""
    transactions = OpenTransactions()
    transactions.begin(3, 7)
    transactions.end(3, 6)
    assert transactions.stable_end(7) == 7
    assert transactions.stable_end(5) == 5


def test_leader_appends_markers_and_refuses_without_a_change():
    """The log takes a marker like a batch; one that is refused leaves no byte."""
    log = open_log(MemoryDisk())
    log.append_as_leader(in_transaction(7, 0, "a", epoch=1), leader_epoch=3, wall_ms=TIME)
    marker = EndTransaction(7, 1, False, 2)
    batch = RecordBatch.of(marker_batch(marker, timestamp_ms=TIME))
    with pytest.raises(InvalidProducerEpoch):
        log.append_as_leader(batch, leader_epoch=3, wall_ms=TIME, marker=marker._replace(producer_epoch=0))
    assert log.end_offset == 1
    info = log.append_as_leader(batch, leader_epoch=3, wall_ms=TIME, marker=marker)
    assert (info.base_offset, log.end_offset, log.last_epoch) == (1, 2, 3)
    stored = verify(b"".join(log.read(1, max_bytes=1000).buffers))
    assert (stored.leader_epoch, marker_of(stored)) == (3, marker)
    assert stored.attributes == TRANSACTIONAL_BIT | CONTROL_BIT
