"""The transactional ids of one partition: writes, markers, timeouts, takeovers (TRANSACTIONS A5)."""

from __future__ import annotations

import pytest

from minikafka.errors import (
    NOT_WRITTEN,
    UNKNOWN,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRegularExpression,
    InvalidRequest,
    InvalidTransactionTimeout,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    ProducerFenced,
    ProtocolError,
    RequestTimedOut,
    TransactionalIdNotFound,
    TransactionCoordinatorFenced,
    UnsupportedForMessageFormat,
)
from minikafka.transactions.coordinator import BUSY_WAIT_S
from minikafka.transactions.markers import FENCED_PAUSE_S, RETRY_PAUSE_S, MarkerId
from minikafka.transactions.records import State, TransactionRecord, TransactionValue, packed
from minikafka.transactions.settings import TransactionSettings
from minikafka.transactions.transaction import EPOCH_MAX
from minikafka.wire.transaction_messages import ListTransactionsRequest
from tests.rules.transaction_kit import P0, P1, Desk

A0, A1 = MarkerId("a", P0), MarkerId("a", P1)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_transaction_from_init_to_the_last_marker(commit: bool, version: int):
    """EndTxn is answered before any marker is sent; the id is busy until the last one is written."""
    desk = Desk()
    producer = desk.producer()
    assert producer == (4000, 0)
    desk.add(producer, P0, version=version)
    desk.add(producer, P1, version=version)
    answer = desk.end(producer, commit=commit, version=version)
    assert answer.error_code == 0
    bumped = (4000, version // 2)
    assert (answer.producer_id, answer.producer_epoch) == (bumped if version else (-1, -1))
    assert desk.value().state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    with pytest.raises(ConcurrentTransactions):
        desk.add(bumped, P0, version=version)
    assert desk.take() == {1: [A0], 2: [A1]}
    assert desk.take() == {}
    desk.answer([A0])
    assert desk.value().state.is_prepared
    desk.answer([A1])
    assert desk.value().state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert desk.is_idle
    assert desk.end(producer, commit=commit, version=version).error_code == 0
    assert desk.add(bumped, P0, version=version).error_code == 0


@pytest.mark.parametrize("epoch_max", [EPOCH_MAX, 2])
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_copy_of_an_end_under_way_has_an_unknown_outcome(commit: bool, version: int, epoch_max: int):
    """Seed 950012472: the copy was answered first, with *not written*, and its retry was fenced by another producer."""
    desk = Desk(TransactionSettings(epoch_max=epoch_max))
    desk.producer()
    producer = desk.producer()
    desk.add(producer, P0, version=version)
    desk.commits_at_once = False
    assert desk.end(producer, commit=commit, version=version) is None
    outcomes = []

    def ask_again() -> None:
        for is_commit in (commit, not commit):
            with pytest.raises(ConcurrentTransactions) as busy:
                desk.end(producer, commit=is_commit, version=version)
            outcomes.append(busy.value.outcome)

    ask_again()
    desk.refuse(RequestTimedOut("late", outcome=UNKNOWN), keep=True)
    ask_again()
    desk.commit()
    ask_again()
    desk.take()
    desk.answer([A0])
    ask_again()
    desk.commit()
    assert desk.end(producer, commit=commit, version=version).error_code == 0
    assert desk.init() is None
    ask_again()
    assert outcomes == [UNKNOWN, NOT_WRITTEN] * 5
    desk.commit()


def test_end_that_meets_another_change_was_not_written():
    """The transaction's partitions, its fence: what is under way is not the end that the request asks for."""
    desk = Desk(commits_at_once=False)
    desk.init()
    desk.commit()
    producer = 4000, 0
    for begin in (lambda: desk.add(producer, P0, version=2), desk.init):
        assert begin() is None
        with pytest.raises(ConcurrentTransactions) as busy:
            desk.end(producer, version=2)
        assert busy.value.outcome == NOT_WRITTEN
        desk.commit()


def test_every_request_is_answered_when_its_record_is_committed():
    """Plants 12 and 13: a partition that only memory knows would never get its marker."""
    desk = Desk(commits_at_once=False)
    assert desk.init() is None
    with pytest.raises(ConcurrentTransactions):
        desk.init()
    desk.commit()
    producer = desk.answers[1].producer_id, desk.answers[1].producer_epoch
    assert desk.add(producer, P0) is None
    assert desk.value().state is State.EMPTY
    desk.commit()
    assert desk.answers[3].error_code == 0
    assert desk.add(producer, P0).error_code == 0, "a known partition needs no record"
    assert desk.end(producer) is None
    assert desk.take() == {}
    desk.commit()
    assert desk.answers[5].error_code == 0
    assert desk.take() == {1: [A0]}


# ---- partitions that wait for a change that is under way ----


@pytest.mark.parametrize("version", [0, 2])
def test_partitions_wait_for_the_end_of_the_last_transaction(version: int):
    """The next transaction begins as soon as the last marker is written, not with a client's next attempt."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0, version=version)
    desk.end(producer, version=version)
    bumped = producer[0], producer[1] + version // 2
    later = desk.add_later(bumped, P1, version=version)
    assert later not in desk.answers
    desk.settle()
    assert desk.answers[later].error_code == 0
    assert (desk.value().state, desk.value().partitions) == (State.ONGOING, {P1})


def test_partitions_of_several_leaders_are_written_as_one_record():
    """KIP-890: each leader of a transaction's first records asks for its own partitions, all at the same time."""
    desk = Desk()
    producer = desk.producer()
    desk.commits_at_once = False
    first, *others = (desk.add_later(producer, each) for each in (P0, P1, P0))
    assert len(desk.in_flight) == 1
    desk.commit()
    assert desk.answers[first].error_code == 0
    assert not desk.answers.keys() & set(others)
    assert len(desk.in_flight) == 1
    desk.commit()
    assert [desk.answers[each].error_code for each in others] == [0, 0]
    assert [each.partition for each in desk.answers[others[0]].partitions] == [P1.partition]
    assert desk.value().partitions == {P0, P1}
    assert desk.in_flight == []


def test_partitions_that_have_waited_too_long_are_refused():
    """A client's connection is not held for longer than a retry takes; the transaction is as it was."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0, version=2)
    desk.end(producer, version=2)
    later = desk.add_later((producer[0], 1), P1)
    desk.pass_time(BUSY_WAIT_S)
    assert desk.answers[later].error_code == ConcurrentTransactions.code
    desk.settle()
    assert desk.value().state is State.COMPLETE_COMMIT
    assert desk.add((producer[0], 1), P1, version=2).error_code == 0


def test_producer_of_waiting_partitions_is_checked_when_they_are_added():
    """KAFKA-18660: a zombie is fenced then, and the producer id that the last transaction's end brings is known then."""
    desk = Desk(TransactionSettings(epoch_max=3))
    first = producer = desk.producer()
    while producer[0] == first[0]:
        desk.add(producer, P0, version=2)
        ended = desk.end(producer, version=2)
        zombie, later = desk.add_later(producer, P0), desk.add_later((ended.producer_id, ended.producer_epoch), P1)
        desk.settle()
        code = ProducerFenced.code if ended.producer_id == producer[0] else InvalidProducerIdMapping.code
        assert desk.answers[zombie].error_code == code
        assert desk.answers[later].error_code == 0
        producer = ended.producer_id, ended.producer_epoch
    assert producer[1] == 0
    assert desk.value().partitions == {P1}


def test_partitions_that_wait_get_their_turn_when_a_write_is_refused():
    """Whatever becomes of the change that is under way; one of unknown outcome lets nothing pass."""
    desk = Desk()
    producer = desk.producer()
    desk.commits_at_once = False
    first, later = desk.add_later(producer, P0), desk.add_later(producer, P1)
    desk.refuse(RequestTimedOut("late", outcome=UNKNOWN), keep=True)
    assert desk.answers[first].error_code == CoordinatorNotAvailable.code
    assert later not in desk.answers
    desk.refuse(NotEnoughReplicas("no"))
    desk.commit()
    assert desk.answers[later].error_code == 0
    assert desk.value().partitions == {P1}


def test_partitions_that_wait_for_an_id_that_expires_are_refused():
    """The tombstone is committed: the producer has to initialize."""
    desk = Desk()
    producer = desk.producer()
    desk.commits_at_once = False
    desk.pass_time(700_000.0)
    later = desk.add_later(producer, P0)
    desk.commit()
    assert desk.answers[later].error_code == InvalidProducerIdMapping.code


REFUSALS = [
    (NotEnoughReplicas("no"), CoordinatorNotAvailable),
    (NotLeaderOrFollower("no"), NotCoordinator),
]


@pytest.mark.parametrize("error, told", REFUSALS)
def test_refused_write_leaves_the_id_as_it_was(error: ProtocolError, told: type[ProtocolError]):
    """Not written: the next request finds the state before."""
    desk = Desk()
    producer = desk.producer()
    desk.commits_at_once = False
    desk.add(producer, P0)
    desk.refuse(error)
    assert desk.answers[2].error_code == told.code
    desk.commits_at_once = True
    assert desk.add(producer, P0).error_code == 0


def test_refused_first_record_leaves_no_trace():
    """The id does not exist: nothing of it is committed."""
    desk = Desk(commits_at_once=False)
    desk.init()
    desk.refuse(NotEnoughReplicas("no"))
    assert desk.coordinator.values() == {}
    assert not desk.coordinator.knows("a"), "it would be kept until it expires"
    with pytest.raises(InvalidProducerIdMapping):
        desk.add((4000, 0), P0)


def test_write_of_unknown_outcome_keeps_the_id_busy_until_it_is_committed():
    """D3.2: a second record on top of one that may still commit could decide a transaction twice."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0)
    desk.commits_at_once = False
    desk.end(producer)
    desk.refuse(RequestTimedOut("late", outcome=UNKNOWN), keep=True)
    assert desk.answers[3].error_code == CoordinatorNotAvailable.code
    assert desk.answers[3].outcome == UNKNOWN
    with pytest.raises(ConcurrentTransactions):
        desk.end(producer, commit=False)
    desk.pass_time(300.0)
    assert desk.value().state is State.ONGOING, "no timeout while the outcome is unknown"
    desk.commit()
    assert desk.value().state is State.PREPARE_COMMIT
    assert desk.take() == {1: [A0]}


def test_init_fences_an_open_transaction():
    """The abort has an epoch of its own, which nobody is given; the caller retries and gets the one above."""
    desk = Desk()
    old = desk.producer()
    desk.add(old, P0)
    assert desk.init().error_code == ConcurrentTransactions.code
    assert (desk.value().state, desk.value().producer_epoch) == (State.PREPARE_ABORT, 1)
    with pytest.raises(ConcurrentTransactions):
        desk.init()
    desk.settle()
    assert desk.producer() == (4000, 2)
    for request in (lambda: desk.add(old, P0), lambda: desk.end(old), lambda: desk.init(expected=old)):
        with pytest.raises(ProducerFenced):
            request()


@pytest.mark.parametrize("stale", [(4000, 0), (4000, 2), (3999, 1)])
def test_init_of_a_former_producer_does_not_abort_its_successors_transaction(stale: tuple[int, int]):
    """It is fenced, as it would be a moment later; the transaction that it is not part of stays open."""
    desk = Desk()
    assert desk.producer() == (4000, 0)
    present = desk.producer()
    assert present == (4000, 1)
    desk.add(present, P0)
    with pytest.raises(ProducerFenced):
        desk.init(expected=stale)
    assert desk.value().state is State.ONGOING
    assert desk.init(expected=present).error_code == ConcurrentTransactions.code
    assert desk.value().state is State.PREPARE_ABORT


def test_timeout_that_no_record_can_hold_is_refused():
    """transaction.max.timeout.ms may be set to more than a record's int32."""
    desk = Desk(TransactionSettings(timeout_ms_max=2**40))
    with pytest.raises(InvalidTransactionTimeout, match="2147483647"):
        desk.init(timeout_ms=2**31)
    assert desk.init(timeout_ms=2**31 - 1).error_code == 0


def test_refused_fence_does_not_raise_the_epoch():
    """KAFKA-9666: the epoch must not run away while the log refuses, nor be taken back if the record may commit."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0)
    desk.commits_at_once = False
    for _ in range(3):
        desk.init()
        desk.refuse(NotEnoughReplicas("no"))
        assert desk.value().producer_epoch == 0
    desk.init()
    desk.refuse(RequestTimedOut("late", outcome=UNKNOWN), keep=True)
    with pytest.raises(ConcurrentTransactions):
        desk.init()
    desk.commit()
    assert (desk.value().state, desk.value().producer_epoch) == (State.PREPARE_ABORT, 1)


@pytest.mark.parametrize("version", [0, 2])
def test_timed_out_transaction_is_aborted_at_a_higher_epoch(version: int):
    """KAFKA-19367: once higher, also when the client increments epochs itself."""
    desk = Desk()
    producer = desk.producer(timeout_ms=30_000)
    desk.add(producer, P0, version=version)
    desk.pass_time(29.0)
    assert desk.value().state is State.ONGOING
    desk.pass_time(12.0)
    assert (desk.value().state, desk.value().producer_epoch) == (State.PREPARE_ABORT, 1)
    desk.settle()
    with pytest.raises(ProducerFenced):
        desk.end(producer, version=version)
    assert desk.events.count("transaction_timed_out") == 1


def test_timeout_is_not_measured_by_the_wall_clock():
    """A clock that jumps a day ahead aborts nothing."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0)
    desk.wall_ms += 86_400_000
    desk.pass_time(50.0)
    assert desk.value().state is State.ONGOING


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_out_of_range_is_rejected(timeout_ms: int):
    """Above transaction.max.timeout.ms, or not positive."""
    with pytest.raises(InvalidTransactionTimeout):
        Desk().init(timeout_ms=timeout_ms)


def test_empty_id_is_rejected():
    """By every request."""
    desk = Desk()
    for request in (lambda: desk.init(""), lambda: desk.add((1, 0), P0, name=""), lambda: desk.end((1, 0), name="")):
        with pytest.raises(InvalidRequest):
            request()


def test_empty_abort_of_version_2_needs_no_markers():
    """It only raises the epoch, which fences what is still under way."""
    desk = Desk()
    producer = desk.producer()
    answer = desk.end(producer, commit=False, version=2)
    assert (answer.producer_id, answer.producer_epoch) == (4000, 1)
    assert (desk.value().state, desk.value().producer_epoch) == (State.COMPLETE_ABORT, 1)
    assert desk.is_idle


def test_producer_id_changes_when_its_epochs_are_exhausted():
    """With a short limit: version 2 changes it at the end of a transaction, InitProducerId otherwise."""
    desk = Desk(TransactionSettings(epoch_max=3))
    producer = desk.producer()
    for expected in ((4000, 1), (4000, 2), (4001, 0), (4001, 1)):
        desk.add(producer, P0, version=2)
        answer = desk.end(producer, version=2)
        desk.settle()
        producer = answer.producer_id, answer.producer_epoch
        assert producer == expected
    assert desk.producer() == (4001, 2)
    assert desk.producer() == (4002, 0)


def test_many_ids_expire_in_several_steps():
    """The broker does something else in between; the last ones do not wait for the next interval."""
    desk = Desk(TransactionSettings(id_expiration_ms=1000, expiration_check_ms=5000))
    for number in range(250):
        desk.producer(f"id-{number}")
    desk.commits_at_once = False
    steps = []
    for _ in range(4):
        desk.pass_time(desk.coordinator.next_deadline() - desk.now)
        steps.append(len(desk.in_flight))
        while desk.in_flight:
            desk.commit()
    assert steps == [100, 100, 50, 0]
    assert desk.now < 1010.0 + desk.settings.expiration_check_ms / 1000
    assert not desk.coordinator.values()


def test_producer_that_timed_out_at_its_last_epoch_goes_on_with_another_producer_id():
    """It names the epoch it had (KIP-360), and got the one that only fences: its next request was fatal."""
    desk = Desk(TransactionSettings(epoch_max=3))
    for _ in range(2):
        desk.producer(timeout_ms=1000)
    producer = desk.producer(timeout_ms=1000)
    assert producer == (4000, 2)
    desk.add(producer, P0, version=0)
    desk.pass_time(30.0)
    desk.settle()
    assert (desk.value().state, desk.value().producer_epoch) == (State.COMPLETE_ABORT, 3)
    for _ in range(2):  # the second one is a retry
        answer = desk.init(expected=producer)
        assert (answer.producer_id, answer.producer_epoch) == (4001, 0)
    desk.add((4001, 0), P0, version=0)
    assert desk.value().state is State.ONGOING


@pytest.mark.parametrize("version", [0, 2])
def test_nobody_uses_the_epoch_with_which_the_coordinator_fences(version: int):
    """A transaction at 32767 could not be fenced, nor end with version 2: its producer is refused before (KAFKA-20090)."""
    desk = Desk()
    last = TransactionValue(producer_id=4000, producer_epoch=EPOCH_MAX - 1, timeout_ms=1000, state=State.EMPTY)
    desk.log.append(packed(TransactionRecord(transactional_id="a", value=last)))
    desk.take_over()
    desk.add((4000, EPOCH_MAX - 1), P0, version=version)
    desk.pass_time(30.0)
    desk.settle()
    fenced = desk.value()
    assert (fenced.state, fenced.producer_epoch) == (State.COMPLETE_ABORT, EPOCH_MAX)
    with pytest.raises(ProducerFenced):
        desk.end((4000, EPOCH_MAX - 1), commit=False, version=version)
    with pytest.raises(ProducerFenced):
        desk.add((4000, EPOCH_MAX), P0, version=version)
    with pytest.raises(ProducerFenced):
        desk.end((4000, EPOCH_MAX), commit=False, version=version)
    desk.pass_time(30.0)
    assert desk.value() == fenced
    producer_id, epoch = desk.producer()
    assert (producer_id != 4000, epoch) == (True, 0)


# ---- markers ----


@pytest.mark.parametrize("code", [3, 6, 7, 13, 19, 20, 56, None])
def test_marker_is_sent_again_after_a_pause(code: int | None):
    """Retriable codes and lost answers; the leader is looked up anew."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0)
    desk.end(producer)
    assert desk.take() == {1: [A0]}
    desk.answer([A0], code)
    assert desk.take() == {}
    desk.leaders[P0] = 3
    desk.now = desk.coordinator.markers.next_at
    assert desk.take() == {3: [A0]}
    desk.answer([A0])
    assert desk.value().state is State.COMPLETE_COMMIT


def test_markers_of_a_transaction_keep_their_number_and_the_next_one_has_a_higher_number():
    """Leaders recognize late copies by it: before version 2 the epochs are the same."""
    desk = Desk()
    producer, numbers = desk.producer(), []
    for _ in range(2):
        desk.add(producer, P0, P1)
        desk.end(producer)
        desk.take()
        numbers.append({desk.coordinator.markers.number_of(each) for each in (A0, A1)})
        desk.answer([A0])
        desk.answer([A1], None)
        desk.pass_time(1)
        desk.take()
        numbers.append({desk.coordinator.markers.number_of(A1)})
        desk.answer([A1])
    assert numbers == [{1}, {1}, {2}, {2}]


def test_marker_waits_for_a_leader_and_ends_with_its_partition():
    """No leader at present: later. No such partition any more: done."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0, P1)
    desk.end(producer)
    desk.leaders.update({P0: -1, P1: -1})
    assert desk.take() == {}
    desk.now = desk.coordinator.markers.next_at
    desk.leaders.update({P0: 1, P1: None})
    assert desk.take() == {1: [A0]}
    desk.answer([A0])
    assert desk.value().state is State.COMPLETE_COMMIT


def test_transaction_whose_partitions_are_all_deleted_is_complete():
    """Nothing is sent."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0)
    desk.end(producer)
    desk.leaders[P0] = None
    assert desk.take() == {}
    assert desk.value().state is State.COMPLETE_COMMIT


def test_unsupported_partition_counts_as_done():
    """An old message format cannot hold markers."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0)
    desk.end(producer)
    desk.take()
    desk.answer([A0], UnsupportedForMessageFormat.code)
    assert desk.value().state is State.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [InvalidProducerEpoch, TransactionCoordinatorFenced])
def test_marker_that_a_partition_fences_holds_up_no_other_one(error: type[ProtocolError]):
    """A newer coordinator may have written there, or a stranger with this producer's id. In the latter case nobody else
    ends the transaction in the other partitions, and readers of committed records would never get past it there.
    """
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0, P1)
    desk.end(producer)
    assert desk.take() == {1: [A0], 2: [A1]}
    desk.answer([A0], error.code)
    desk.answer([A1], None)
    desk.now += RETRY_PAUSE_S
    assert desk.take() == {2: [A1]}
    desk.answer([A1])
    assert desk.value().state is State.PREPARE_COMMIT
    assert desk.coordinator.markers.next_at > desk.now + 1
    desk.now += FENCED_PAUSE_S
    assert desk.take() == {1: [A0]}, "the id would be busy for good"
    desk.answer([A0])
    assert desk.value().state is State.COMPLETE_COMMIT


def completing() -> Desk:
    """The markers are written, and the record that completes the transaction is not yet."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0)
    desk.end(producer)
    desk.take()
    desk.commits_at_once = False
    desk.answer([A0])
    return desk


def test_complete_record_that_was_refused_is_written_again():
    """The markers are not sent a second time."""
    desk = completing()
    desk.refuse(NotEnoughReplicas("no"))
    assert desk.value().state is State.PREPARE_COMMIT
    desk.commits_at_once = True
    desk.pass_time(1.0)
    assert desk.value().state is State.COMPLETE_COMMIT
    assert desk.take() == {}


def test_complete_record_of_unknown_outcome_is_not_written_again():
    """Two of them would end the transaction twice, the second time when the next one may have begun."""
    desk = completing()
    desk.refuse(RequestTimedOut("late", outcome=UNKNOWN), keep=True)
    desk.pass_time(1.0)
    desk.commit()
    assert desk.value().state is State.COMPLETE_COMMIT
    desk.pass_time(1.0)
    assert desk.in_flight == []


# ---- takeovers ----


@pytest.mark.parametrize("commit", [True, False])
def test_new_coordinator_sends_every_marker_of_a_decided_transaction(commit: bool):
    """It cannot know which of them were written."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0, P1)
    desk.end(producer, commit=commit)
    desk.take()
    desk.answer([A0])
    desk.take_over()
    with pytest.raises(ConcurrentTransactions):
        desk.init()
    assert desk.take() == {1: [A0], 2: [A1]}
    desk.answer([A0, A1])
    assert desk.value().state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)


def test_new_coordinator_knows_only_committed_records():
    """An EndTxn that was not committed never was; the open transaction has its whole timeout again."""
    desk = Desk()
    producer = desk.producer()
    desk.add(producer, P0)
    desk.pass_time(50.0)
    desk.commits_at_once = False
    desk.end(producer)
    desk.commits_at_once = True
    desk.take_over()
    assert desk.value().state is State.ONGOING
    assert desk.take() == {}
    desk.pass_time(50.0)
    assert desk.end(producer).error_code == 0


def test_retry_of_init_survives_a_takeover():
    """The last epoch is in the record, unlike Kafka's."""
    desk = Desk()
    producer = desk.producer()
    assert desk.init(expected=producer).producer_epoch == 1
    desk.take_over()
    assert desk.init(expected=producer).producer_epoch == 1


# ---- expiration, describing, listing ----


def test_idle_id_expires_and_an_open_one_does_not():
    """By the wall clock of its last record, after transactional.id.expiration.ms; its tombstone is in the log."""
    desk = Desk(TransactionSettings(id_expiration_ms=7_200_000, timeout_ms_max=2**31 - 1))
    desk.producer("idle")
    desk.add(desk.producer("open", timeout_ms=2**31 - 1), P0, name="open")
    desk.wall_ms += 3_500_000
    desk.pass_time(3600.0)
    assert set(desk.coordinator.values()) == {"idle", "open"}
    desk.pass_time(3600.0)
    assert set(desk.coordinator.values()) == {"open"}
    assert desk.log[-1][1] is None
    with pytest.raises(InvalidProducerIdMapping):
        desk.add((4000, 0), P0, name="idle")
    assert desk.producer("idle") == (4002, 0)


def test_an_id_with_a_change_under_way_does_not_expire():
    """Its tombstone would follow the record of the change: the producer that the change admits would be forgotten."""
    desk = Desk(TransactionSettings(id_expiration_ms=7_200_000))
    desk.producer("idle")
    desk.commits_at_once = False
    desk.wall_ms += 7_200_000
    desk.init("idle")
    desk.pass_time(3601.0)
    assert len(desk.in_flight) == 1
    desk.commit()
    assert set(desk.coordinator.values()) == {"idle"}


def test_an_id_whose_expiration_was_refused_goes_on():
    """It is as it was: its producer is served, and it expires later."""
    desk = Desk(TransactionSettings(id_expiration_ms=7_200_000))
    producer = desk.producer("idle")
    desk.commits_at_once = False
    desk.pass_time(7201.0)
    desk.refuse(NotEnoughReplicas())
    desk.commits_at_once = True
    desk.add(producer, P0, name="idle")
    assert desk.value("idle").state is State.ONGOING


def test_describe_and_list():
    """States by name, filters by state, producer id and age; ids of which nothing is committed are not shown."""
    desk = Desk()
    producer = desk.producer("a")
    desk.producer("b")
    desk.add(producer, P0)
    found = desk.coordinator.describe("a")
    assert (found.state, found.timeout_ms, found.producer_id, found.producer_epoch) == ("Ongoing", 60_000, 4000, 0)
    assert [(each.topic, each.partition) for each in found.partitions] == [P0]
    with pytest.raises(TransactionalIdNotFound):
        desk.coordinator.describe("c")

    def listed(**filters: object) -> list[str]:
        request = ListTransactionsRequest(**filters)  # type: ignore[arg-type]
        return [each.transactional_id for each in desk.coordinator.list_transactions(request, desk.wall_ms + 5000)]

    assert listed() == ["a", "b"]
    assert listed(states=("Ongoing",)) == ["a"]
    assert listed(producer_ids=(4001,)) == ["b"]
    assert listed(duration_ms=4000) == ["a"]
    assert listed(duration_ms=6000) == []
    assert listed(id_pattern="[a-z]") == ["a", "b"]
    assert listed(id_pattern="b|") == ["b"]
    assert listed(id_pattern="b", states=("Ongoing",)) == []
    with pytest.raises(InvalidRegularExpression, match=r"transactional_id_pattern='\(a' is no regular expression"):
        listed(id_pattern="(a")
    desk.commits_at_once = False
    desk.init("c")
    assert listed() == ["a", "b"]
