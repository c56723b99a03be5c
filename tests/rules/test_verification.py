"""Guards of transactional batches at the leader (KIP-890): what is appended, and what a marker meanwhile prevents."""

from __future__ import annotations

import pytest

from minikafka.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    ThrottlingQuotaExceeded,
)
from minikafka.log import producer_state
from minikafka.log.producer_state import Duplicate, ProducerState
from minikafka.log.verification import OPEN_TRANSACTION, VerificationGuard
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import EndTransaction, marker_batch
from tests.rules.log_words import TIME, from_producer, in_transaction

FIRST = in_transaction(7, 0, "a")


class Leader:
    """A log's producer state, and where the log ends."""

    def __init__(self) -> None:
        self.state, self.end = ProducerState(), 0

    def append(self, batch: RecordBatch, guard: VerificationGuard | None) -> None:
        assert self.state.check(batch, guard) is None
        self.note(batch)

    def note(self, batch: RecordBatch) -> None:
        self.state.note(batch, base_offset=self.end, timestamp=TIME)
        self.end += batch.last_offset_delta + 1

    def end_transaction(self, *, epoch: int = 0, commit: bool = False, version: int = 0) -> None:
        marker = EndTransaction(7, epoch, commit, 1, version)
        batch = RecordBatch.of(marker_batch(marker, timestamp_ms=TIME))
        self.state.note(batch, base_offset=self.end, timestamp=TIME, marker=marker)
        self.end += 1


def test_first_batch_needs_its_guard_and_later_ones_the_open_transaction():
    """A guard of nobody, or none that was begun, opens no transaction."""
    leader = Leader()
    for guard in (OPEN_TRANSACTION, VerificationGuard()):
        with pytest.raises(InvalidTxnState, match="producer 7 epoch 0"):
            leader.state.check(FIRST, guard)
    leader.append(FIRST, leader.state.begin_verification(FIRST))
    second = in_transaction(7, 1, "b")
    assert leader.state.begin_verification(second) is OPEN_TRANSACTION
    leader.append(second, OPEN_TRANSACTION)


def test_guards_of_invented_producers_and_epochs_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """They are kept before the coordinator says if there is such a transaction; those that it refuses are not removed.
    So they make room, and take no place that a producer could have. The last ones that were used stay.
    """
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    state = ProducerState()
    first = [state.begin_verification(in_transaction(producer, 0, "a")) for producer in (7, 8)]
    assert state.begin_verification(FIRST) is first[0]
    state.guard_of(9, 0)
    assert list(state._guards) == [7, 9]
    with pytest.raises(InvalidTxnState):
        state.check(in_transaction(8, 0, "a"), first[1])
    assert state.check(FIRST, first[0]) is None
    assert state.check(from_producer(10, 0, "a")) is None
    epochs = range(1, 3 * producer_state.GUARDS_MAX)
    guards = [state.guard_of(7, epoch) for epoch in epochs]
    assert len(state._guards[7]) == producer_state.GUARDS_MAX
    assert state.guard_of(7, epochs[-1]) is guards[-1]


def test_no_batch_is_verified_for_a_producer_that_has_no_room(monkeypatch: pytest.MonkeyPatch):
    """The producers that are known go on."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    leader = Leader()
    for producer in (7, 8):
        batch = in_transaction(producer, 0, "a")
        leader.append(batch, leader.state.begin_verification(batch))
    with pytest.raises(ThrottlingQuotaExceeded):
        leader.state.guard_of(9, 0)
    with pytest.raises(ThrottlingQuotaExceeded):
        leader.state.check(in_transaction(9, 0, "a"))
    assert leader.state.begin_verification(in_transaction(7, 1, "b")) is OPEN_TRANSACTION


def test_batch_of_a_transaction_that_ended_while_it_was_verified_is_refused():
    """The marker removes the guard; so does one for a transaction that was open when the batch arrived."""
    leader = Leader()
    guard = leader.state.begin_verification(FIRST)
    leader.end_transaction()
    with pytest.raises(InvalidTxnState, match="ended before this batch"):
        leader.state.check(FIRST, guard)
    leader.append(FIRST, leader.state.begin_verification(FIRST))
    second = in_transaction(7, 1, "b")
    guard = leader.state.begin_verification(second)
    leader.end_transaction()
    with pytest.raises(InvalidTxnState):
        leader.state.check(second, guard)


def test_guard_of_the_next_transaction_is_another_one():
    """KAFKA-14884: verified, aborted, verified again for the next transaction; the first response must not count."""
    leader = Leader()
    late = leader.state.begin_verification(FIRST)
    leader.end_transaction()
    current = leader.state.begin_verification(FIRST)
    assert current is not late
    with pytest.raises(InvalidTxnState):
        leader.state.check(FIRST, late)
    leader.append(FIRST, current)


def test_next_transaction_of_version_2_may_arrive_before_the_marker():
    """The producer goes on when the decision is durable; the marker has the next transaction's epoch, and follows."""
    leader = Leader()
    leader.append(FIRST, leader.state.begin_verification(FIRST, begins_at_zero=True))
    following = in_transaction(7, 0, "b", epoch=1)
    guard = leader.state.begin_verification(following, begins_at_zero=True)
    late = leader.state.begin_verification(in_transaction(7, 1, "late"))
    leader.end_transaction(epoch=1, version=2)
    with pytest.raises(InvalidProducerEpoch):
        leader.state.check(in_transaction(7, 1, "late"), late)
    leader.append(following, guard)
    ended = leader.state.begin_verification(in_transaction(7, 0, "c", epoch=2), begins_at_zero=True)
    leader.end_transaction(epoch=3, version=2)
    with pytest.raises(InvalidProducerEpoch):
        leader.state.check(in_transaction(7, 0, "c", epoch=2), ended)


def test_later_batch_does_not_overtake_the_first_one_during_verification():
    """KAFKA-14920: an unknown producer may begin with any sequence, but not before a batch that is being verified."""
    leader = Leader()
    first, second = in_transaction(7, 5, "a"), in_transaction(7, 6, "b")
    guard = leader.state.begin_verification(first)
    assert leader.state.begin_verification(second) is guard
    with pytest.raises(OutOfOrderSequenceNumber, match="5 is missing"):
        leader.state.check(second, guard)
    leader.append(first, guard)
    leader.append(second, guard)


def test_transaction_version_2_begins_at_sequence_0():
    """Each transaction has an epoch of its own; before, a producer that is not known here may go on anywhere."""
    batch = in_transaction(7, 3, "a")
    leader = Leader()
    with pytest.raises(OutOfOrderSequenceNumber, match="0 is missing"):
        leader.state.check(batch, leader.state.begin_verification(batch, begins_at_zero=True))
    leader = Leader()
    leader.append(batch, leader.state.begin_verification(batch))


def test_duplicate_needs_no_verification():
    """Also after the transaction has ended: the batch is in the log."""
    leader = Leader()
    leader.append(FIRST, leader.state.begin_verification(FIRST))
    leader.end_transaction(commit=True)
    guard = leader.state.begin_verification(FIRST)
    assert guard is OPEN_TRANSACTION
    assert isinstance(leader.state.check(FIRST, guard), Duplicate)


def test_older_epoch_is_fenced_before_it_is_verified():
    """KAFKA-19690: INVALID_PRODUCER_EPOCH, from which clients recover, and not INVALID_TXN_STATE."""
    leader = Leader()
    leader.end_transaction(epoch=4)
    with pytest.raises(InvalidProducerEpoch):
        leader.state.begin_verification(FIRST)
    with pytest.raises(InvalidProducerEpoch):
        leader.state.check(FIRST, OPEN_TRANSACTION)


def test_wrong_epoch_does_not_disturb_the_right_one():
    """Its verification will fail; that of the producer goes on."""
    leader = Leader()
    guard = leader.state.begin_verification(FIRST)
    wrong = in_transaction(7, 0, "x", epoch=9)
    with pytest.raises(InvalidTxnState):
        leader.state.check(wrong, guard)
    assert leader.state.begin_verification(wrong) is not guard
    leader.append(FIRST, guard)


def test_guards_expire_as_producers_do():
    """A producer that never came back leaves nothing behind; its late response finds no guard."""
    leader = Leader()
    guard = leader.state.begin_verification(FIRST)
    leader.state.expire(now_ms=1_000, idle_max_ms=500, high_watermark=0)
    leader.state.expire(now_ms=1_499, idle_max_ms=500, high_watermark=0)
    assert leader.state.begin_verification(FIRST) is guard
    leader.state.expire(now_ms=2_000, idle_max_ms=500, high_watermark=0)
    leader.state.expire(now_ms=2_500, idle_max_ms=500, high_watermark=0)
    with pytest.raises(InvalidTxnState):
        leader.state.check(FIRST, guard)
