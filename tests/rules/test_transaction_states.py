"""The state machine of one transactional id, row by row (TRANSACTIONS A2, A4.1, A4.2, A5.1, A5.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    ProtocolError,
    TransactionAbortable,
)
from minikafka.invariant import InvariantViolation
from minikafka.transactions.records import State, TransactionValue
from minikafka.transactions.transaction import Transaction, next_producer
from minikafka.types import TopicPartition

PID, OLD_PID, NEW_PID = 4000, 3999, 4001
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = 1_700_000_000_000
LAST = 32_766
IDLE = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


def transaction(
    state: State, epoch: int = 5, last: int = -1, previous: int = PID, *, busy: bool = False
) -> Transaction:
    is_open = state is State.ONGOING or state.is_prepared
    value = TransactionValue(
        producer_id=PID,
        previous_producer_id=previous,
        producer_epoch=epoch,
        last_producer_epoch=last,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset({P0}) if is_open else frozenset(),
        updated_ms=NOW - 10,
        started_ms=NOW - 20 if is_open else -1,
    )
    return Transaction("a", value, is_busy=busy)


# ---- InitProducerId (A4.1) ----

INITIALIZED = [
    ("first record of an id", Transaction.new("a", PID), None, (PID, 0, -1)),
    ("first record, the caller brings an old pair", Transaction.new("a", PID), (7, 3), (PID, 0, -1)),
    ("no expectation", transaction(State.EMPTY), None, (PID, 6, -1)),
    ("no expectation, after a commit", transaction(State.COMPLETE_COMMIT), None, (PID, 6, -1)),
    ("the present epoch", transaction(State.COMPLETE_ABORT), (PID, 5), (PID, 6, 5)),
    ("a retry of the present epoch", transaction(State.EMPTY, 6, last=5), (PID, 5), (PID, 6, 5)),
    ("an older epoch", transaction(State.EMPTY), (PID, 4), ProducerFenced),
    ("an epoch before the one that was retried", transaction(State.EMPTY, 6, last=5), (PID, 4), ProducerFenced),
    ("a newer epoch", transaction(State.EMPTY), (PID, 6), ProducerFenced),
    ("another producer id", transaction(State.EMPTY), (8, 5), ProducerFenced),
    ("epochs are exhausted", transaction(State.EMPTY, LAST), None, (NEW_PID, 0, -1)),
    ("epochs are exhausted, expected", transaction(State.EMPTY, LAST), (PID, LAST), (NEW_PID, 0, LAST)),
    ("epochs are exhausted by a fence", transaction(State.COMPLETE_ABORT, LAST + 1), None, (NEW_PID, 0, -1)),
    (
        "epochs are exhausted by a fence, the fenced producer is back",
        transaction(State.COMPLETE_ABORT, LAST + 1, last=LAST),
        (PID, LAST),
        (NEW_PID, 0, LAST),
    ),
    (
        "epochs are exhausted, a retry",
        transaction(State.EMPTY, LAST, last=LAST - 1),
        (PID, LAST - 1),
        (PID, LAST, LAST - 1),
    ),
    ("a retry after the id has changed", transaction(State.EMPTY, 0, LAST, OLD_PID), (OLD_PID, LAST), (PID, 0, LAST)),
    ("the id before, not exhausted", transaction(State.EMPTY, 0, LAST, OLD_PID), (OLD_PID, 9), ProducerFenced),
    ("the outcome is decided: commit", transaction(State.PREPARE_COMMIT), None, ConcurrentTransactions),
    ("the outcome is decided: abort", transaction(State.PREPARE_ABORT), None, ConcurrentTransactions),
    ("a record is under way", transaction(State.EMPTY, busy=True), None, ConcurrentTransactions),
    ("a record is under way, before the fence", transaction(State.EMPTY, busy=True), (8, 5), ConcurrentTransactions),
]


@pytest.mark.parametrize("of, expected, result", [row[1:] for row in INITIALIZED], ids=[row[0] for row in INITIALIZED])
def test_initialize(
    of: Transaction, expected: tuple[int, int] | None, result: tuple[int, int, int] | type[ProtocolError]
):
    """Each row of InitProducerId's table."""
    if isinstance(result, type):
        with pytest.raises(result):
            of.initialize(expected, 1000, new_producer_id=NEW_PID, now_ms=NOW)
        return
    target = of.initialize(expected, 1000, new_producer_id=NEW_PID, now_ms=NOW)
    assert (target.producer_id, target.producer_epoch, target.last_producer_epoch) == result
    assert (target.state, target.partitions, target.started_ms, target.timeout_ms, target.updated_ms) == (
        State.EMPTY,
        frozenset(),
        -1,
        1000,
        NOW,
    )


def test_initialize_repeated_after_the_id_changed_stays_the_same():
    """The record of a retry must not hide the id before from the next retry."""
    of = transaction(State.EMPTY, 0, LAST, OLD_PID)
    for _ in range(3):
        target = of.initialize((OLD_PID, LAST), 1000, new_producer_id=NEW_PID, now_ms=NOW)
        of.advance(target, 0.0)
    assert (of.value.producer_id, of.value.producer_epoch) == (PID, 0)


def test_initialize_without_a_fresh_id_at_exhausted_epochs_is_retried():
    """The id was allocated before the step; if it was not, the client comes again."""
    with pytest.raises(ConcurrentTransactions):
        transaction(State.EMPTY, LAST).initialize(None, 1000, new_producer_id=-1, now_ms=NOW)


@pytest.mark.parametrize("epoch", [5, LAST])
def test_fence_raises_the_epoch_once_and_a_newcomer_gets_another(epoch: int):
    """The abort's epoch is above the data's; an InitProducerId that names no epoch gets the next one (KAFKA-5231)."""
    of = transaction(State.ONGOING, epoch)
    target = of.fence(NOW)
    assert (target.state, target.producer_epoch, target.last_producer_epoch) == (State.PREPARE_ABORT, epoch + 1, epoch)
    assert (target.partitions, target.started_ms) == (of.value.partitions, of.value.started_ms)
    of.advance(target, 0.0)
    of.advance(of.complete(NOW), 0.0)
    after = of.initialize(None, 1000, new_producer_id=NEW_PID, now_ms=NOW)
    assert (after.producer_id, after.producer_epoch) == ((PID, 7) if epoch == 5 else (NEW_PID, 0))


def test_a_producer_that_goes_on_after_its_open_transaction_was_aborted():
    """Its InitProducerId aborts the transaction and is repeated: it gets the epoch of the abort, as at Kafka's brokers.

    A newcomer that initialized without an epoch meanwhile has fenced it.
    """
    of = transaction(State.ONGOING, 5)
    of.advance(of.fence(NOW), 0.0)
    of.advance(of.complete(NOW), 0.0)
    for _ in range(2):
        again = of.initialize((PID, 5), 1000, new_producer_id=NEW_PID, now_ms=NOW)
        assert (again.producer_id, again.producer_epoch, again.last_producer_epoch) == (PID, 6, 5)
    with pytest.raises(ProducerFenced):
        of.initialize((PID, 4), 1000, new_producer_id=NEW_PID, now_ms=NOW)
    of.advance(of.initialize(None, 1000, new_producer_id=NEW_PID, now_ms=NOW), 0.0)
    with pytest.raises(ProducerFenced):
        of.initialize((PID, 5), 1000, new_producer_id=NEW_PID, now_ms=NOW)


# ---- AddPartitionsToTxn (A5.1) ----


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize("version", [0, 2])
def test_add_begins_a_transaction(state: State, version: int):
    """The first partition sets the start."""
    target = transaction(state).add(PID, 5, frozenset({P1}), version=version, now_ms=NOW)
    assert target is not None
    assert (target.state, target.partitions, target.started_ms) == (State.ONGOING, {P1}, NOW)
    assert (target.producer_epoch, target.client_version) == (5, version)


def test_add_to_an_open_transaction_keeps_its_start():
    """The partitions are a union."""
    target = transaction(State.ONGOING).add(PID, 5, frozenset({P0, P1}), version=0, now_ms=NOW)
    assert target is not None
    assert (target.partitions, target.started_ms, target.updated_ms) == ({P0, P1}, NOW - 20, NOW)


def test_add_of_known_partitions_writes_nothing():
    """Ongoing, and all of them are in it."""
    assert transaction(State.ONGOING).add(PID, 5, frozenset({P0}), version=0, now_ms=NOW) is None


@pytest.mark.parametrize(
    "of, producer, error",
    [
        (transaction(State.EMPTY), (8, 5), InvalidProducerIdMapping),
        (Transaction.new("a", PID), (PID, -1), InvalidProducerIdMapping),
        (transaction(State.EMPTY), (PID, 4), ProducerFenced),
        (transaction(State.EMPTY), (PID, 6), ProducerFenced),
        (transaction(State.EMPTY, busy=True), (PID, 4), ProducerFenced),
        (transaction(State.EMPTY, busy=True), (PID, 5), ConcurrentTransactions),
        (transaction(State.ONGOING, busy=True), (PID, 5), ConcurrentTransactions),
        (transaction(State.PREPARE_COMMIT), (PID, 5), ConcurrentTransactions),
        (transaction(State.PREPARE_ABORT), (PID, 5), ConcurrentTransactions),
    ],
)
def test_add_is_refused(of: Transaction, producer: tuple[int, int], error: type[ProtocolError]):
    """Producer id, epoch, a write under way, a decided outcome: in this order."""
    with pytest.raises(error):
        of.add(*producer, frozenset({P0}), version=0, now_ms=NOW)


# ---- verification (A5.2) ----


def test_verify_looks_at_the_committed_partitions_only():
    """A write under way does not matter (KAFKA-14904); a partition outside of the transaction is abortable."""
    for busy in (False, True):
        found = transaction(State.ONGOING, busy=busy).verify(PID, 5, frozenset({P0, P1}))
        assert found[P0] is None
        assert isinstance(found[P1], TransactionAbortable)
    for state in IDLE:
        assert isinstance(transaction(state).verify(PID, 5, frozenset({P0}))[P0], TransactionAbortable)


@pytest.mark.parametrize(
    "state, producer, error",
    [
        (State.ONGOING, (8, 5), InvalidProducerIdMapping),
        (State.ONGOING, (PID, 4), ProducerFenced),
        (State.PREPARE_COMMIT, (PID, 5), ConcurrentTransactions),
        (State.PREPARE_ABORT, (PID, 5), ConcurrentTransactions),
    ],
)
def test_verify_is_refused(state: State, producer: tuple[int, int], error: type[ProtocolError]):
    """Each error of the coordinator's side."""
    with pytest.raises(error):
        transaction(state).verify(*producer, frozenset({P0}))


# ---- EndTxn before transaction version 2 (A5.3) ----

C, A = True, False
ENDS_V1: list[tuple[State, bool, State | type[ProtocolError] | None]] = [
    (State.ONGOING, C, State.PREPARE_COMMIT),
    (State.ONGOING, A, State.PREPARE_ABORT),
    (State.PREPARE_COMMIT, C, ConcurrentTransactions),
    (State.COMPLETE_COMMIT, C, None),
    (State.PREPARE_COMMIT, A, InvalidTxnState),
    (State.COMPLETE_COMMIT, A, InvalidTxnState),
    (State.PREPARE_ABORT, C, InvalidTxnState),
    (State.COMPLETE_ABORT, C, InvalidTxnState),
    (State.PREPARE_ABORT, A, ConcurrentTransactions),
    (State.COMPLETE_ABORT, A, None),
    (State.EMPTY, C, InvalidTxnState),
    (State.EMPTY, A, InvalidTxnState),
]


def ended(of: Transaction, producer: tuple[int, int], version: int, *, commit: bool) -> TransactionValue | None:
    return of.end(*producer, is_commit=commit, version=version, new_producer_id=NEW_PID, now_ms=NOW)


@pytest.mark.parametrize("state, commit, result", ENDS_V1)
def test_end_before_transaction_version_2(state: State, commit: bool, result: State | type[ProtocolError] | None):
    """The epoch stays, in the record and in the markers."""
    if isinstance(result, type):
        with pytest.raises(result):
            ended(transaction(state), (PID, 5), 0, commit=commit)
        return
    target = ended(transaction(state), (PID, 5), 0, commit=commit)
    assert (target and target.state) == result
    assert target is None or (target.producer_epoch, target.last_producer_epoch) == (5, -1)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("epoch", [4, 6])
@pytest.mark.parametrize("commit", [C, A])
def test_end_before_transaction_version_2_with_another_epoch_is_fenced(state: State, epoch: int, commit: bool):
    """In every state."""
    with pytest.raises(ProducerFenced):
        ended(transaction(state), (PID, epoch), 0, commit=commit)


# ---- EndTxn of transaction version 2 (A5.3) ----

EQUAL, RETRY = 5, 4
ENDS_V2: list[tuple[State, bool, int, State | type[ProtocolError] | None]] = [
    (State.ONGOING, C, EQUAL, State.PREPARE_COMMIT),
    (State.ONGOING, C, RETRY, ProducerFenced),
    (State.ONGOING, A, EQUAL, State.PREPARE_ABORT),
    (State.ONGOING, A, RETRY, ProducerFenced),
    (State.PREPARE_COMMIT, C, EQUAL, ProducerFenced),
    (State.PREPARE_COMMIT, C, RETRY, ConcurrentTransactions),
    (State.PREPARE_COMMIT, A, EQUAL, ProducerFenced),
    (State.PREPARE_COMMIT, A, RETRY, InvalidTxnState),
    (State.PREPARE_ABORT, C, EQUAL, ProducerFenced),
    (State.PREPARE_ABORT, C, RETRY, InvalidTxnState),
    (State.PREPARE_ABORT, A, EQUAL, ProducerFenced),
    (State.PREPARE_ABORT, A, RETRY, ConcurrentTransactions),
    (State.COMPLETE_COMMIT, C, EQUAL, InvalidTxnState),
    (State.COMPLETE_COMMIT, C, RETRY, None),
    (State.COMPLETE_COMMIT, A, EQUAL, State.PREPARE_ABORT),
    (State.COMPLETE_COMMIT, A, RETRY, InvalidTxnState),
    (State.COMPLETE_ABORT, C, EQUAL, InvalidTxnState),
    (State.COMPLETE_ABORT, C, RETRY, ProducerFenced),
    (State.COMPLETE_ABORT, A, EQUAL, State.PREPARE_ABORT),
    (State.COMPLETE_ABORT, A, RETRY, None),
    (State.EMPTY, C, EQUAL, InvalidTxnState),
    (State.EMPTY, C, RETRY, ProducerFenced),
    (State.EMPTY, A, EQUAL, State.PREPARE_ABORT),
    (State.EMPTY, A, RETRY, ProducerFenced),
]


@pytest.mark.parametrize("state, commit, epoch, result", ENDS_V2)
def test_end_of_transaction_version_2(
    state: State,
    commit: bool,
    epoch: int,
    result: State | type[ProtocolError] | None,
):
    """The record and the markers have the next epoch."""
    of = transaction(state)
    if isinstance(result, type):
        with pytest.raises(result):
            ended(of, (PID, epoch), 2, commit=commit)
        return
    target = ended(of, (PID, epoch), 2, commit=commit)
    assert (target and target.state) == result
    if target is not None:
        assert (target.producer_epoch, target.last_producer_epoch, target.client_version) == (6, 5, 2)
        assert target.started_ms == (NOW - 20 if state is State.ONGOING else NOW)
        of.advance(target, 0.0)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("epoch", [3, 6])
def test_end_of_transaction_version_2_with_a_foreign_epoch_is_fenced(state: State, epoch: int):
    """Neither the present epoch nor the one before."""
    for commit in (C, A):
        with pytest.raises(ProducerFenced):
            ended(transaction(state), (PID, epoch), 2, commit=commit)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize(
    "of, producer, error",
    [
        (transaction(State.ONGOING), (8, 5), InvalidProducerIdMapping),
        (transaction(State.ONGOING, busy=True), (8, 5), InvalidProducerIdMapping),
        (transaction(State.PREPARE_COMMIT, busy=True), (PID, 5), ConcurrentTransactions),
        (transaction(State.PREPARE_COMMIT, busy=True), (PID, 9), ConcurrentTransactions),
    ],
)
def test_end_looks_at_the_id_then_at_a_write_under_way_then_at_the_epoch(
    version: int, of: Transaction, producer: tuple[int, int], error: type[ProtocolError]
):
    """KAFKA-18464: a client that aborts right after its commit is not told that it was fenced."""
    with pytest.raises(error):
        ended(of, producer, version, commit=False)


def test_end_at_the_last_epoch_changes_the_producer_id():
    """A4.2: prepare has epoch 32767 and the next id, complete has (new id, 0); a retry gets the new pair (KAFKA-18660)."""
    of = transaction(State.ONGOING, LAST)
    prepared = ended(of, (PID, LAST), 2, commit=True)
    assert prepared is not None
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (PID, LAST + 1, NEW_PID)
    assert next_producer(prepared) == (NEW_PID, 0)
    of.advance(prepared, 0.0)
    with pytest.raises(ConcurrentTransactions):
        ended(of, (PID, LAST), 2, commit=True)
    of.advance(of.complete(NOW), 0.0)
    assert (of.value.producer_id, of.value.producer_epoch, of.value.previous_producer_id) == (NEW_PID, 0, PID)
    assert ended(of, (PID, LAST), 2, commit=True) is None
    assert next_producer(of.value) == (NEW_PID, 0)
    with pytest.raises(InvalidProducerIdMapping):
        ended(of, (PID, LAST), 0, commit=True)


@pytest.mark.parametrize(
    "state, complete", [(State.PREPARE_COMMIT, State.COMPLETE_COMMIT), (State.PREPARE_ABORT, State.COMPLETE_ABORT)]
)
def test_complete_keeps_epoch_and_start(state: State, complete: State):
    """The partitions are gone, the rest is as decided."""
    of = transaction(state)
    target = of.complete(NOW)
    assert (target.state, target.partitions, target.producer_epoch, target.started_ms) == (
        complete,
        frozenset(),
        5,
        NOW - 20,
    )


# ---- legal transitions (A2) ----

FOLLOWS = {
    State.EMPTY: set(IDLE),
    State.ONGOING: {State.ONGOING, *IDLE},
    State.PREPARE_COMMIT: {State.ONGOING},
    State.PREPARE_ABORT: {State.ONGOING, *IDLE},
    State.COMPLETE_COMMIT: {State.PREPARE_COMMIT},
    State.COMPLETE_ABORT: {State.PREPARE_ABORT},
}


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_advance_accepts_legal_transitions_only(before: State, after: State):
    """Anything else is a bug and stops the broker."""
    of = transaction(before)
    target = replace(of.value, state=after)
    if before in FOLLOWS[after]:
        of.advance(target, 7.0)
        assert of.value == target
    else:
        with pytest.raises(InvariantViolation):
            of.advance(target, 7.0)


def test_advance_rejects_a_lower_epoch_and_lost_partitions():
    """A2.4."""
    of = transaction(State.ONGOING)
    with pytest.raises(InvariantViolation):
        of.advance(replace(of.value, producer_epoch=4), 0.0)
    with pytest.raises(InvariantViolation):
        of.advance(replace(of.value, partitions=frozenset({P1})), 0.0)


def test_timeout_counts_from_the_first_partition():
    """Later partitions do not move the start; the end forgets it."""
    of = transaction(State.EMPTY)
    for now, partition in ((10.0, P0), (20.0, P1)):
        target = of.add(PID, 5, frozenset({partition}), version=0, now_ms=NOW)
        assert target is not None
        of.advance(target, now)
        assert of.began_at == 10.0
    of.advance(of.fence(NOW), 30.0)
    assert of.began_at == float("inf")
