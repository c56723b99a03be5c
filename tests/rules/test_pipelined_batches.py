"""Several batches of a partition in flight: order, no duplicates, and true outcomes, whatever the network does."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from minikafka.client.accumulator import Accumulator
from minikafka.client.batches import IN_FLIGHT_MAX, Batch, Identity, is_success, record_size
from minikafka.client.sender import Sender, Unwatched
from minikafka.errors import (
    UNKNOWN,
    InvalidRecord,
    MessageTooLarge,
    NetworkException,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    ProtocolError,
    RequestTimedOut,
)
from minikafka.log.producer_state import WINDOW_COUNT, Duplicate, ProducerState
from minikafka.wire.batch import FOLLOWS, PIPELINED, SEQUENCE_COUNT, RecordBatch, verify_client
from minikafka.wire.records import decode_batch


class Partition:
    """An accumulator with one partition, and what each call to it carried."""

    def __init__(self, **settings: Any) -> None:
        given = {
            "batch_size": 100,
            "linger_s": 0.0,
            "request_size_max": 5000,
            "delivery_timeout_s": 10.0,
            "in_flight_max": 5,
        }
        self.accumulator: Accumulator[str] = Accumulator(**(given | settings))
        self.accumulator.identity = Identity(7, 0)
        self.queue = self.accumulator.queue("t", 0)
        self.names = 0

    def add(self, count: int = 1, *, size: int = 60, now: float = 0.0) -> None:
        """Records of ``size`` bytes: each fills a batch."""
        for _ in range(count):
            name = f"r{self.names}"
            self.names += 1
            value = name.encode().ljust(size, b".")
            self.accumulator.append(self.queue, name, 1000, None, value, (), record_size(None, value), now)

    def drain(self, now: float = 0.0) -> list[Batch[str]]:
        drained = self.accumulator.drain(now, lambda _topic, _partition: 1)
        assert all(len(call.batches) == 1 for call in drained.calls), "a request has a partition once"
        return [call.batches[0] for call in drained.calls]

    def fail(self, batch: Batch[str], error: ProtocolError, now: float = 0.0, pause_s: float = 0.0) -> Any:
        self.accumulator.call_ended(1)
        return self.accumulator.failed(batch, error, now, pause_s)

    def succeed(self, batch: Batch[str]) -> None:
        self.accumulator.call_ended(1)
        self.accumulator.succeeded(batch)


def steady(count: int, **settings: Any) -> tuple[Partition, list[Batch[str]]]:
    """A partition whose first batch is acknowledged, and then ``count`` batches in flight."""
    partition = Partition(**settings)
    partition.add()
    (first,) = partition.drain()
    partition.succeed(first)
    partition.add(count)
    batches = partition.drain()
    return partition, batches


def lost(outcome: Any = "unknown") -> NetworkException:
    return NetworkException("lost", outcome=outcome)


def test_a_leader_remembers_as_many_batches_as_may_be_in_flight():
    """A batch that is sent again while those behind it were written is recognized by the leader's window."""
    assert IN_FLIGHT_MAX == WINDOW_COUNT


def test_the_first_batch_of_an_epoch_goes_alone():
    """A leader that does not know the producer takes any sequence: the first batch must be the first."""
    partition = Partition()
    partition.add(3)
    (first,) = partition.drain()
    assert (first.base_sequence, first.follows, partition.drain()) == (0, False, [])
    partition.succeed(first)
    assert [each.base_sequence for each in partition.drain()] == [1, 2]


def test_a_batch_at_which_sequences_begin_again_goes_alone():
    """A leader that has forgotten the producer would take it for the first one, and append it before the others."""
    partition, (last,) = steady(1)
    partition.succeed(last)
    partition.queue.next_sequence = SEQUENCE_COUNT - 1
    partition.add(3)
    (last,) = partition.drain()
    assert last.base_sequence == SEQUENCE_COUNT - 1
    partition.succeed(last)
    assert [each.base_sequence for each in partition.drain()] == [0, 1]


def test_a_batch_behind_one_that_is_refused_for_good_was_not_written_whatever_became_of_its_answer():
    """The leader would have had to append it without the one in front of it."""
    partition, (one, two) = steady(2, delivery_timeout_s=5.0)
    assert partition.fail(one, InvalidRecord("no")) is not None
    assert partition.fail(two, lost()) is None
    (failure,) = partition.accumulator.drain(6.0, lambda _topic, _partition: 1).failures
    assert (failure.batch, failure.error.outcome) == (two, "not_written")


def test_an_acknowledgement_in_the_former_epoch_does_not_let_batches_of_the_next_one_follow():
    """Nothing of the new epoch is at the leader yet: its first batch goes alone all the same."""
    partition, (one, two) = steady(2, delivery_timeout_s=5.0)
    partition.fail(one, lost())
    partition.add(2, now=4.0)
    assert partition.drain(now=6.0) == [], "the first one has timed out, the second one is in flight"
    assert partition.queue.identity == Identity(7, 1)
    partition.succeed(two)
    (first,) = partition.drain(now=6.0)
    assert (first.identity, first.base_sequence) == (Identity(7, 1), 0)
    assert partition.drain(now=6.0) == []


def test_no_batch_follows_one_whose_delivery_timeout_is_over():
    """What became of it is settled first: its application has been answered, and its sequence may have to be given up."""
    partition, (one,) = steady(1, delivery_timeout_s=5.0)
    partition.add(now=4.0)
    assert partition.drain(now=6.0) == []
    assert one.reported
    partition.succeed(one)
    assert [each.base_sequence for each in partition.drain(now=6.0)] == [2]


def test_at_most_so_many_batches_are_in_flight_and_all_but_the_first_follow():
    """The leader must still remember the oldest one when it is sent again (WINDOW_COUNT)."""
    partition, batches = steady(8)
    assert [each.base_sequence for each in batches] == [1, 2, 3, 4, 5]
    assert [each.follows for each in batches] == [False, True, True, True, True]
    assert [verify_client(each.data).base_sequence for each in batches if each.data] == [1, 2, 3, 4, 5]
    partition.succeed(batches[1])
    assert partition.drain() == [], "a leader remembers five batches, and the first one may have to be sent again"
    partition.succeed(batches[0])
    sent = partition.drain()
    assert [(each.base_sequence, each.follows) for each in sent] == [(6, True), (7, True)]


@pytest.mark.parametrize("settings", [{"idempotent": False}, {"transactional": True}, {"in_flight_max": 1}])
def test_without_sequences_and_in_transactions_batches_go_one_by_one(settings: dict[str, Any]):
    """Nothing but the sequence keeps the order, and a transaction cannot go on in a new epoch."""
    partition, batches = steady(3, **settings)
    assert (len(batches), partition.accumulator.pipelines) == (1, False)


def test_no_batch_follows_one_that_waits_to_be_sent_again():
    """A retry is the oldest and goes alone, with its own sequence; then batches follow again."""
    partition, (one, two, three) = steady(3)
    partition.fail(one, NotLeaderOrFollower("moved"))
    partition.add()
    assert partition.drain() == [], "two and three are in flight"
    partition.fail(two, OutOfOrderSequenceNumber("one is missing"))
    partition.fail(three, OutOfOrderSequenceNumber("two is missing"))
    assert partition.drain() == [one]
    partition.succeed(one)
    assert partition.drain() == [two], "three was refused, too: it goes as the oldest"
    partition.succeed(two)
    (sent,) = partition.drain()
    assert (sent, sent.base_sequence, sent.follows) == (three, 3, False)
    assert partition.accumulator.identity == Identity(7, 0), "no epoch begins"


def test_a_batch_that_overtook_the_one_before_it_keeps_its_sequence():
    """S25, seed 933003757: of a doubled request one copy came before the older batch, and was refused; the other one
    came after it. Sent in a new epoch, the batch would be there twice.
    """
    partition, (one, two) = steady(2)
    partition.succeed(one)
    partition.fail(two, OutOfOrderSequenceNumber("one was missing"))
    assert partition.drain() == [two]
    assert (two.identity, two.base_sequence, two.follows) == (Identity(7, 0), 2, False)
    partition.fail(two, OutOfOrderSequenceNumber("one is gone"))
    assert partition.drain() == [two], "sent alone and refused, it is certainly not there"
    assert (two.identity, two.base_sequence) == (Identity(7, 1), 0)


def test_a_late_copy_of_a_refused_batch_cannot_take_the_place_of_another():
    """S16: with the same sequence, the leader would call the other batch a duplicate: acknowledged, and not there."""
    partition, leader = Partition(), Leader()
    partition.add()
    (one,) = partition.drain()
    late = bytes(one.data or b"")
    assert partition.fail(one, InvalidRecord("bad")) is not None
    partition.add()
    (two,) = partition.drain()
    leader.append(late, follows=False)
    leader.append(bytes(two.data or b""), follows=False)
    assert leader.values == [b"r0", b"r1"]


def test_a_batch_behind_may_land_before_the_one_in_front_is_settled():
    """The answer of the first is lost, the second is acknowledged: the first is sent again and is a duplicate."""
    partition, (one, two) = steady(2)
    partition.succeed(two)
    partition.fail(one, lost())
    assert partition.drain() == [one]
    partition.succeed(one)
    partition.add()
    (three,) = partition.drain()
    assert three.base_sequence == 3


def test_what_a_final_refusal_leaves_behind_goes_on_in_a_new_epoch():
    """The batch is not in the log, so those behind it are not either: they get new sequences, in order."""
    partition, (one, two, three) = steady(3)
    failure = partition.fail(one, InvalidRecord("bad"))
    assert (failure.batch, failure.error.outcome) == (one, "not_written")
    assert partition.drain() == [], "two and three are in flight with their old sequences"
    partition.fail(two, OutOfOrderSequenceNumber("gap"))
    partition.fail(three, lost())
    assert not three.once_unknown, "it cannot be in the log: the batch before it is not"
    (again,) = partition.drain()
    assert (again, again.identity, again.base_sequence) == (two, Identity(7, 1), 0)
    partition.succeed(two)
    (last,) = partition.drain()
    assert (last, last.identity, last.base_sequence) == (three, Identity(7, 1), 1)


def test_a_batch_behind_one_of_unknown_fate_keeps_its_sequence():
    """It may be in the log: sent again with another sequence it would be there twice."""
    partition, (one, two) = steady(2)
    partition.fail(one, lost())
    partition.fail(two, lost())
    drained = partition.accumulator.drain(10.0, lambda _topic, _partition: 1)
    assert [(each.batch, each.error.outcome) for each in drained.failures] == [(one, "unknown"), (two, "unknown")]
    partition, (one, two) = steady(2)
    two.deadline = 99.0
    partition.fail(one, lost())
    partition.fail(two, lost())
    (again,) = partition.drain(10.0)
    assert (again, again.identity, again.base_sequence) == (two, Identity(7, 0), 2)


def test_a_gap_that_a_late_copy_may_close_proves_nothing():
    """S25: the outcomes of two batches are unknown, and the older one's time is over. Sent again, the younger one is
    refused, for the older one is missing: copies of both may come all the same. In a new epoch it would be there twice.
    """
    partition, leader = Partition(), Leader()
    partition.add()
    (zero,) = partition.drain()
    leader.append(bytes(zero.data or b""), follows=False)
    partition.succeed(zero)
    partition.add()
    (one,) = partition.drain()
    partition.add(now=5.0)
    (two,) = partition.drain(now=5.0)
    late = [(bytes(each.data or b""), each.follows) for each in (one, two)]
    for each in (one, two):
        partition.fail(each, lost(), now=6.0)
    assert partition.drain(now=10.0) == [two], "the first one has timed out"
    with pytest.raises(OutOfOrderSequenceNumber) as refused:
        leader.append(bytes(two.data or b""), follows=two.follows)
    assert partition.fail(two, refused.value, now=10.0, pause_s=0.5) is None
    for data, follows in late:
        leader.append(data, follows=follows)
    assert partition.drain(now=10.0) == [], "it is not sent again without a pause"
    assert partition.drain(now=10.5) == [two]
    assert (two.identity, two.base_sequence) == (Identity(7, 0), 2)
    leader.append(bytes(two.data or b""), follows=two.follows)
    assert leader.values == [b"r0", b"r1", b"r2"]


def test_a_batch_behind_a_gap_that_stays_ends_as_unknown():
    """No copy came, and none may come: nobody can know that. What stands behind goes on in the new epoch."""
    partition, (one, two) = steady(2)
    two.deadline = 12.0
    partition.add(now=9.0)
    partition.fail(one, lost())
    partition.fail(two, lost())
    assert partition.drain(now=10.0) == [two]
    failure = partition.fail(two, OutOfOrderSequenceNumber("a gap"), now=12.0)
    assert (failure.batch, failure.error.outcome) == (two, "unknown")
    (three,) = partition.drain(now=12.0)
    assert (three.identity, three.base_sequence) == (Identity(7, 1), 0)


def test_a_batch_too_large_is_split_in_its_place():
    """KIP-126: the parts go first, then what stood behind, in a new epoch."""
    partition = Partition(batch_size=1000)
    partition.add()
    (first,) = partition.drain()
    partition.succeed(first)
    partition.add(2)
    (one,) = partition.drain()
    partition.queue.open = None
    partition.add(1)
    (two,) = partition.drain()
    partition.fail(one, MessageTooLarge("small segments"))
    partition.fail(two, OutOfOrderSequenceNumber("gap"))
    order = []
    while partition.accumulator.oldest_unfinished is not None:
        (batch,) = partition.drain()[:1]
        order += [(record.value or b"").rstrip(b".") for record in decode_batch(batch.data or b"")]
        assert batch.identity == Identity(7, 1)
        partition.succeed(batch)
    assert order == [b"r1", b"r2", b"r3"]


# ---- whatever happens ------------------------------------------------------------------------------------------------


class Leader:
    """A log of values with the real rules for sequences. It restarts, loses what it knows, and moves."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.values: list[bytes] = []

    def append(self, data: bytes, *, follows: bool) -> None:
        batch = verify_client(data)
        if self.state.check(batch, None, FOLLOWS if follows else PIPELINED) is not None:
            return
        self.state.note(batch, base_offset=len(self.values), timestamp=0)
        self.values += [(record.value or b"").rstrip(b".") for record in decode_batch(batch)]

    def restart(self) -> None:
        """From a snapshot, which has one batch of each producer."""
        snapshot = self.state.to_snapshot()
        self.state = ProducerState()
        self.state.load_snapshot(snapshot)

    def forget(self) -> None:
        """Producers expire, or the log is cut."""
        self.state = ProducerState()


def story(seed: int) -> None:
    random = Random(seed)
    forgets = random.random() < 0.3
    doubles = not forgets and random.random() < 0.3
    """Without final refusals: of a batch that is given up, and of those behind it, copies may still be written."""
    refusals = [NotLeaderOrFollower("moved"), lost("not_written"), *([] if doubles else [InvalidRecord("bad")])]
    timeout_s = 300.0 if doubles else random.choice((3.0, 30.0))
    partition, leader, now = Partition(delivery_timeout_s=timeout_s), Leader(), 0.0
    waiting: list[tuple[Batch[str], bytes, bool]] = []
    late: list[tuple[bytes, bool]] = []
    """Requests whose sender has given up, and copies of others, which arrive all the same."""
    outcomes: dict[str, str] = {}

    def settle(batch: Batch[str], outcome: str) -> None:
        for name, *_ in batch.waiters:
            assert name not in outcomes, f"{name} has two outcomes"
            outcomes[name] = outcome
        batch.waiters = []

    def send() -> None:
        drained = partition.accumulator.drain(now, lambda _topic, _partition: 1)
        for failure in drained.failures:
            settle(failure.batch, failure.error.outcome)
        for call in drained.calls:
            (batch,) = call.batches
            waiting.append((batch, bytes(batch.data or b""), batch.follows))
            if doubles and random.random() < 0.5:
                late.append(waiting[-1][1:])

    def deliver(data: bytes, *, follows: bool) -> ProtocolError | None:
        try:
            leader.append(data, follows=follows)
        except ProtocolError as error:
            return None if is_success(error) else error
        return None

    def answer(trouble: float) -> None:
        batch, data, follows = waiting.pop(random.randrange(len(waiting)))
        kind = random.random()
        error: ProtocolError | None
        if kind < trouble:
            error = random.choice(refusals)
        elif kind < 2 * trouble and not forgets:
            late.append((data, follows))
            error = lost()
        elif kind < 3 * trouble:
            deliver(data, follows=follows)
            error = lost()
        else:
            error = deliver(data, follows=follows)
        if error is None:
            settle(batch, "written")
            partition.succeed(batch)
            return
        failure = partition.fail(batch, error, now)
        if failure is not None:
            settle(failure.batch, failure.error.outcome)

    for _ in range(random.randint(20, 120)):
        now += random.random() * 0.2
        what = random.random()
        if what < 0.35:
            partition.add(random.randint(1, 3), now=now)
        elif what < 0.42:
            leader.restart()
        elif what < 0.45 and forgets:
            leader.forget()
        elif what < 0.5 and late:
            data, follows = late.pop(random.randrange(len(late)))
            deliver(data, follows=follows)
        elif waiting:
            answer(0.1)
        send()
    while partition.accumulator.oldest_unfinished is not None:
        now += 0.5
        send()
        if waiting:
            answer(0.0)
    for data, follows in late:
        deliver(data, follows=follows)
    check(partition, leader, outcomes, forgets=forgets)


def check(partition: Partition, leader: Leader, outcomes: dict[str, str], *, forgets: bool) -> None:
    written = [value.decode() for value in leader.values]
    assert outcomes.keys() == {f"r{number}" for number in range(partition.names)}
    for name, outcome in outcomes.items():
        assert outcome != "written" or name in written, f"{name} was acknowledged and is missing"
        assert outcome != "not_written" or name not in written, f"{name} is there, and its sender was sure it is not"
    if forgets:
        # A leader that has forgotten the producer appends a batch again, with one batch in flight too.
        written = list(dict.fromkeys(written))
    assert len(written) == len(set(written)), "a record is there twice"
    assert written == sorted(written, key=lambda name: int(name[1:])), "the order of sending is lost"


@pytest.mark.parametrize("block", range(10))
def test_order_and_outcomes_hold_whatever_happens(block: int):
    """Requests overtake each other, are lost, arrive late or twice; answers are lost; leaders refuse, restart, forget."""
    for seed in range(block * 100, block * 100 + 100):
        story(seed)


def test_a_forgotten_batch_is_called_a_duplicate():
    """A snapshot remembers one batch of a producer; the batch before it is older than its sequence.

    Where it stands is forgotten, so acks=all waits until all that is remembered is committed: an answer at once would
    acknowledge a record that the next election can lose (S16).
    """
    leader = Leader()
    partition, batches = steady(2)
    first = Partition()
    first.add()
    leader.append(bytes(first.drain()[0].data or b""), follows=False)
    for each in batches:
        leader.append(bytes(each.data or b""), follows=each.follows)
    leader.restart()
    leader.append(bytes(batches[1].data or b""), follows=False)
    again = RecordBatch.of(batches[0].data or b"")
    assert leader.state.check(again, None, PIPELINED) == Duplicate(base_offset=-1, last_offset=2, timestamp=-1)
    with pytest.raises(OutOfOrderSequenceNumber):
        leader.state.check(RecordBatch.of(batches[0].data or b""))  # PLAIN: as Kafka
    assert partition.accumulator.pipelines


def test_a_batch_that_follows_is_refused_by_a_leader_that_does_not_know_its_producer():
    """Else it would be the first one of the log, and the batch before it would come second."""
    _, (one, two) = steady(2)
    leader = Leader()
    with pytest.raises(OutOfOrderSequenceNumber):
        leader.append(bytes(two.data or b""), follows=True)
    leader.append(bytes(one.data or b""), follows=False)
    leader.append(bytes(two.data or b""), follows=True)
    assert leader.values == [b"r1", b"r2"]


def test_a_producer_that_ends_calls_no_record_not_written_that_was_once_of_unknown_outcome():
    """It waits to be sent again and is not in flight, and yet an attempt may have written it."""
    accumulator: Accumulator[Any] = Accumulator(
        batch_size=100, linger_s=0.0, request_size_max=5000, delivery_timeout_s=10.0
    )
    accumulator.identity = Identity(7, 0)
    queue = accumulator.queue("t", 0)
    tally = Unwatched()
    accumulator.append(queue, tally, 1000, None, b"a", (), record_size(None, b"a"), 0.0)
    (call,) = accumulator.drain(0.0, lambda _topic, _partition: 1).calls
    accumulator.call_ended(1)
    accumulator.failed(call.batches[0], lost(), 0.0, 1.0)
    sender = Sender.__new__(Sender)
    sender._accumulator, sender._space, sender._flushes = accumulator, [], []
    sender._fail_all("the producer was stopped")
    with pytest.raises(RequestTimedOut) as caught:
        tally.check()
    assert caught.value.outcome == UNKNOWN
