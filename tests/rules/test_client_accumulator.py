"""When a batch is sent, and what an answer means for it (S25, KIP-98, KIP-360)."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.client.accumulator import PRODUCER_EPOCH_MAX, Accumulator
from minikafka.client.batches import Identity, is_success, record_size
from minikafka.errors import (
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidRecord,
    MessageTooLarge,
    NetworkException,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    ProtocolError,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownProducerId,
)
from minikafka.wire.batch import RecordBatch, verify_client
from minikafka.wire.records import BatchBuilder, decode_batch


class Story:
    """An accumulator with one topic of three partitions, led by nodes 1, 2, 1."""

    def __init__(self, **settings: Any) -> None:
        given = {
            "batch_size": 1000,
            "linger_s": 0.005,
            "request_size_max": 5000,
            "delivery_timeout_s": 10.0,
            "calls_per_node_max": 5,
        }
        self.accumulator: Accumulator[str] = Accumulator(**(given | settings))
        self.accumulator.identity = Identity(7, 0)
        self.queues = [self.accumulator.queue("t", index) for index in range(3)]
        self.leaders = {0: 1, 1: 2, 2: 1}

    def add(self, name: str, *, partition: int = 0, now: float = 0.0, size: int = 10) -> bool:
        value = name.encode().ljust(size, b".")
        return self.accumulator.append(
            self.queues[partition], name, 1000, None, value, (), record_size(None, value), now
        )

    def drain(self, now: float):
        return self.accumulator.drain(now, lambda _topic, partition: self.leaders[partition])

    def one(self, now: float):
        """Drain and return the only batch."""
        (call,) = self.drain(now).calls
        (batch,) = call.batches
        return batch

    def fail(self, batch: Any, error: Any, now: float = 0.0):
        self.accumulator.call_ended(self.leaders[batch.queue.partition])
        return self.accumulator.failed(batch, error, now, 0.1)

    def succeed(self, batch: Any) -> None:
        self.accumulator.call_ended(self.leaders[batch.queue.partition])
        self.accumulator.succeeded(batch)


def sequences(batch: Any) -> tuple[int, int, int]:
    header = verify_client(batch.data)
    return header.producer_id, header.producer_epoch, header.base_sequence


def test_a_batch_that_the_application_filled_is_sealed():
    """It does not linger, no other record joins it, and its bytes count in buffer.memory until it is answered."""
    story = Story()
    builder = BatchBuilder()
    builder.append(1000, None, b"built", ())
    story.accumulator.add_built(story.queues[0], "built", builder, 1000, 1.0)
    assert story.accumulator.size == builder.size
    story.add("other", now=1.0)
    batch = story.one(1.0)
    assert [record.value for record in decode_batch(verify_client(batch.data))] == [b"built"]
    story.succeed(batch)
    story.succeed(story.one(2.0))
    assert story.accumulator.size == 0


def test_a_batch_waits_for_linger():
    """S25: a batch that is not full is sent linger.ms after its first record."""
    story = Story()
    assert story.add("a", now=1.0)
    assert not story.add("b", now=1.002)
    drained = story.drain(1.004)
    assert (drained.calls, drained.deadline) == ([], 1.005)
    batch = story.one(1.005)
    assert [record.value[:1] for record in decode_batch(batch.data)] == [b"a", b"b"]


def test_a_full_batch_is_sent_at_once():
    """S25: batch.size reached sends it whatever linger says, and the sender is told to look."""
    story = Story(linger_s=60.0)
    story.add("a", size=400)
    assert not story.drain(0.0).calls
    story.add("b", size=400)
    assert story.add("c", size=400), "the record that does not fit closes the batch"
    batch = story.one(0.0)
    assert batch.record_count == 2
    assert len(batch.data) <= 1000


def test_a_record_beyond_the_batch_size_goes_alone():
    """S25: batch.size bounds batches of several records, max.request.size the record."""
    story = Story(linger_s=60.0)
    assert story.add("big", size=3000)
    assert story.one(0.0).record_count == 1


def test_batches_obey_the_batch_size_while_one_is_in_flight():
    """Issue 13: under backlog batches grew to max.request.size, which topics with small segments refuse."""
    story = Story()
    story.add("first")
    first = story.one(1.0)
    for index in range(7):
        story.add(f"x{index}", size=400)
    story.add("large", size=3000)
    story.add("last")
    assert story.drain(1.1).calls == []
    story.succeed(first)
    counts, sizes = [], []
    while story.accumulator.oldest_unfinished is not None:
        batch = story.one(1.2)
        counts.append(batch.record_count)
        sizes.append(len(batch.data))
        story.succeed(batch)
    assert counts == [2, 2, 2, 1, 1, 1]
    assert [size > 1000 for size in sizes] == [False, False, False, False, True, False]
    assert batch.base_sequence == 9


def test_requests_merge_the_partitions_of_a_node():
    """S25: one request per broker carries a batch of each of its ready partitions."""
    story = Story()
    for partition in range(3):
        story.add("a", partition=partition)
    calls = story.drain(1.0).calls
    assert [(call.node, [batch.queue.partition for batch in call.batches]) for call in calls] == [(1, [0, 2]), (2, [1])]


def test_a_request_stays_below_max_request_size():
    """S25: what does not fit goes into a request of its own."""
    story = Story(batch_size=5000)
    story.add("a", partition=0, size=3000)
    story.add("b", partition=2, size=3000)
    assert [len(call.batches) for call in story.drain(1.0).calls] == [1, 1]


def test_requests_per_node_are_limited():
    """max.in.flight.requests.per.connection bounds the requests to one broker, not the partitions."""
    story = Story(batch_size=5000, calls_per_node_max=1)
    story.add("a", partition=0, size=3000)
    story.add("b", partition=2, size=3000)
    first = story.one(1.0)
    assert story.drain(1.0).calls == []
    story.succeed(first)
    assert story.one(1.0).queue.partition == 2


def test_urgent_batches_do_not_linger():
    """S25: flush, stop and a full buffer send at once."""
    story = Story(linger_s=60.0)
    story.add("a")
    story.accumulator.urgent += 1
    assert story.one(0.0).record_count == 1


def test_sequences_count_records_and_wrap():
    """KIP-98: consecutive per partition, from 0, and after 2^31-1 comes 0."""
    story = Story()
    story.add("a")
    story.add("b")
    batch = story.one(1.0)
    assert sequences(batch) == (7, 0, 0)
    story.succeed(batch)
    story.queues[0].next_sequence = 2**31 - 1
    story.add("c", now=1.0)
    story.add("d", now=1.0)
    batch = story.one(2.0)
    assert sequences(batch) == (7, 0, 2**31 - 1)
    story.succeed(batch)
    story.add("e", now=2.0)
    assert sequences(story.one(3.0)) == (7, 0, 1)


def test_a_retry_keeps_its_place_its_bytes_and_its_sequence():
    """KIP-98: the broker recognises a repeated batch only if it is the same; later ones wait behind it."""
    story = Story()
    story.add("a")
    batch = story.one(1.0)
    sent = bytes(batch.data)
    story.add("b", now=1.0)
    assert story.fail(batch, NetworkException(outcome="unknown"), now=1.0) is None
    drained = story.drain(1.05)
    assert (drained.calls, drained.leaderless) == ([], True)
    again = story.one(1.1)
    assert again is batch
    assert bytes(again.data) == sent


def test_a_new_leader_ends_the_pause():
    """S27: the retry does not sit out its backoff once the new leader is known."""
    story = Story()
    story.add("a")
    batch = story.one(1.0)
    story.fail(batch, NotLeaderOrFollower(), now=1.0)
    story.leaders[0] = 2
    story.accumulator.leader_changed(story.queues[0])
    (call,) = story.drain(1.0).calls
    assert (call.node, call.batches) == (2, [batch])


def test_nobody_leads():
    """A partition without a leader holds its batch and wants metadata; others go on."""
    story = Story()
    story.leaders[0] = -1
    story.add("a", partition=0)
    story.add("b", partition=1)
    drained = story.drain(1.0)
    assert [call.node for call in drained.calls] == [2]
    assert drained.leaderless


def test_without_a_producer_id_nothing_is_sent():
    """KIP-98: the id comes first; without idempotence none is wanted."""
    story = Story()
    story.accumulator.identity = None
    story.add("a")
    assert story.drain(1.0).wants_identity
    plain = Story(idempotent=False)
    plain.add("a")
    assert sequences(plain.one(1.0)) == (-1, -1, -1)


def test_the_delivery_timeout_of_what_was_never_sent_is_not_written():
    """Outcome: no attempt was made, so nothing can have been written; the sequence stays in line."""
    story = Story()
    story.leaders[0] = -1
    story.add("a")
    drained = story.drain(10.0)
    ((batch, error),) = drained.failures
    assert (batch.waiters[0][0], type(error), error.outcome) == ("a", RequestTimedOut, "not_written")
    assert story.accumulator.size == 0
    assert story.accumulator.oldest_unfinished is None


def test_the_delivery_timeout_names_the_brokers_reason():
    """Outcome: refused by every attempt is not_written, and the error is the refusal, not a bare timeout."""
    story = Story()
    story.add("a")
    batch = story.one(1.0)
    assert story.fail(batch, NotEnoughReplicas("isr is [1]"), now=1.0) is None
    ((failed, error),) = story.drain(10.0).failures
    assert failed is batch
    assert (type(error), error.outcome) == (NotEnoughReplicas, "not_written")
    story.add("b", now=10.0)
    assert sequences(story.one(11.0)) == (7, 1, 0), "a new epoch: a copy of the refused batch may still arrive"


def test_an_unknown_fate_begins_a_new_epoch():
    """KIP-360: after a batch that may be in the log, sequences start at 0 in the next producer epoch."""
    story = Story()
    story.add("a")
    batch = story.one(1.0)
    story.fail(batch, NetworkException(outcome="unknown"), now=1.0)
    story.fail(story.one(2.0), NotEnoughReplicas(), now=2.0)
    ((_, error),) = story.drain(10.0).failures
    assert error.outcome == "unknown", "a later refusal does not undo an attempt that may have been written"
    story.add("b", now=10.0)
    assert sequences(story.one(11.0)) == (7, 1, 0)
    story.add("c", partition=1, now=11.0)
    assert story.one(12.0).identity == Identity(7, 1)


def test_a_batch_in_flight_is_reported_at_its_timeout_and_settled_by_its_answer():
    """delivery.timeout.ms bounds everything; the late answer still decides how the sequence goes on."""
    for answered, expected in ((True, (7, 0, 1)), (False, (7, 1, 0))):
        story = Story()
        story.add("a")
        batch = story.one(1.0)
        story.add("b", now=9.0)
        drained = story.drain(10.0)
        assert [(failure.batch, failure.error.outcome) for failure in drained.failures] == [(batch, "unknown")]
        assert (drained.calls, drained.deadline) == ([], 19.0)
        if answered:
            story.succeed(batch)
        else:
            assert story.fail(batch, NetworkException(outcome="unknown"), now=11.0) is None
        assert sequences(story.one(11.0)) == expected


def test_batches_behind_one_in_flight_time_out_too():
    """delivery.timeout.ms holds for what waits: never sent, so not written."""
    story = Story(batch_size=100)
    story.add("a", size=80)
    batch = story.one(0.0)
    story.add("b", now=0.5, size=80)
    failures = story.drain(10.6).failures
    assert [(failure.error.outcome, failure.batch.waiters[0][0]) for failure in failures] == [
        ("unknown", "a"),
        ("not_written", "b"),
    ]
    story.succeed(batch)
    assert story.accumulator.size == 0
    story.add("c", now=11.0)
    assert sequences(story.one(12.0)) == (7, 0, 1)


def test_out_of_order_goes_on_in_a_new_epoch():
    """KIP-360: the log lacks what came before (unclean election); the batch itself is not there: from 0, once."""
    story = Story()
    story.add("a")
    batch = story.one(1.0)
    story.fail(batch, NetworkException(outcome="unknown"), now=1.0)
    assert story.fail(story.one(2.0), OutOfOrderSequenceNumber(), now=2.0) is None
    again = story.one(3.0)
    assert again is batch
    assert sequences(again) == (7, 1, 0)
    assert again.maybe_written is False


def test_an_abort_fails_what_waits_with_the_outcome_of_all_its_attempts():
    """KIP-98: of two batches that an abort drops, only the one that was never sent is not written for certain."""
    story = Story(transactional=True)
    story.add("a")
    story.add("b", partition=1)
    calls = story.drain(1.0).calls
    batches = {batch.queue.partition: batch for call in calls for batch in call.batches}
    story.fail(batches[0], NetworkException(outcome="unknown"), now=1.0)
    story.fail(batches[1], NotEnoughReplicas(), now=1.0)
    failures = story.accumulator.drop_unsent(RequestTimedOut("aborted"))
    assert {each.batch.queue.partition: each.error.outcome for each in failures} == {0: "unknown", 1: "not_written"}


def test_what_was_once_unknown_is_never_called_not_written():
    """A leader that lacks it was elected uncleanly, and a second such election may bring it back: simulator, seed 5388."""
    for last in (NetworkException(outcome="not_written"), InvalidRecord("no"), None):
        story = Story()
        story.add("a")
        story.fail(story.one(1.0), NetworkException(outcome="unknown"), now=1.0)
        story.fail(story.one(2.0), OutOfOrderSequenceNumber(), now=2.0)
        if last is None:
            (failure,) = story.drain(1_000_000.0).failures
        else:
            again = story.one(3.0)
            failure = story.fail(again, last, now=1_000_000.0)
            assert failure is not None
        assert failure.error.outcome == "unknown", last


def test_an_unknown_producer_id_is_retried_only_if_nothing_can_be_there():
    """KIP-360: with the broker's state gone a second copy would not be recognised."""
    story = Story()
    story.add("a")
    assert story.fail(story.one(1.0), UnknownProducerId(), now=1.0) is None
    assert sequences(story.one(2.0)) == (7, 1, 0)
    story = Story()
    story.add("a")
    story.fail(story.one(1.0), NetworkException(outcome="unknown"), now=1.0)
    failure = story.fail(story.one(2.0), UnknownProducerId(), now=2.0)
    assert failure is not None
    assert failure.error.outcome == "unknown"


def test_a_fenced_epoch_ends_the_batch_and_the_epoch():
    """KIP-98: INVALID_PRODUCER_EPOCH is not retried; the next batch must not meet the same fence."""
    story = Story()
    story.add("a")
    failure = story.fail(story.one(1.0), InvalidProducerEpoch(), now=1.0)
    assert failure is not None
    assert failure.error.outcome == "not_written"
    story.add("b", now=1.0)
    assert sequences(story.one(2.0)) == (7, 1, 0)


def test_spent_epochs_need_a_new_producer_id():
    """KIP-360: after epoch 32767 there is no next one."""
    story = Story()
    story.accumulator.identity = Identity(7, PRODUCER_EPOCH_MAX)
    story.add("a")
    story.fail(story.one(1.0), InvalidProducerEpoch(), now=1.0)
    story.add("b", now=1.0)
    assert story.drain(2.0).wants_identity
    story.accumulator.identity = Identity(8, 0)
    assert sequences(story.one(2.0)) == (8, 0, 0)


@pytest.mark.parametrize("error", [MessageTooLarge, RecordListTooLarge])
def test_too_large_splits_in_order(error: type[ProtocolError]):
    """KIP-126: batches of half the size, in the same order, with sequences in line, and nobody is forgotten."""
    story = Story()
    for name in "abcdef":
        story.add(name)
    batch = story.one(1.0)
    assert story.fail(batch, error(), now=1.0) is None
    first = story.one(1.0)
    assert [sink for sink, *_ in first.waiters] == ["a", "b"]
    assert [(index, count) for _, index, count, _ in first.waiters] == [(0, 1), (1, 1)]
    assert sequences(first) == (7, 1, 0)
    story.succeed(first)
    second = story.one(1.0)
    assert [record.value[:1] for record in decode_batch(second.data)] == [b"c", b"d"]
    assert sequences(second) == (7, 1, 2)
    assert story.accumulator.oldest_unfinished == 1
    story.succeed(second)
    third = story.one(1.0)
    assert [record.value[:1] for record in decode_batch(third.data)] == [b"e", b"f"]
    story.succeed(third)
    assert (story.accumulator.oldest_unfinished, story.accumulator.size) == (None, 0)


def test_batches_that_wait_are_split_before_they_are_refused():
    """What the topic takes is known from the first refusal: the batches behind it need no refusal of their own."""
    story = Story()
    for index in range(24):
        story.add(f"{index:02}", size=100)
    assert story.fail(story.one(1.0), RecordListTooLarge(), now=1.0) is None
    values = []
    while story.accumulator.oldest_unfinished is not None:
        batch = story.one(1.0)
        assert len(batch.data) <= 500
        values += [record.value[:2] for record in decode_batch(batch.data)]
        assert sequences(batch) == (7, 1, len(values) - batch.record_count)
        story.succeed(batch)
    assert values == [b"%02d" % index for index in range(24)]
    assert story.accumulator.size == 0


def test_batches_grow_again_when_the_topic_takes_more():
    """A limit that was raised, or one batch that compressed badly, does not make batches small for good."""
    story = Story(delivery_timeout_s=10_000.0)
    limit, now, largest = 400, 1.0, []
    for minute in range(30):
        limit = 400 if minute < 12 else 10_000  # max.message.bytes is raised
        now += 60.0
        refused, sizes = 0, []
        for index in range(10):
            story.add(f"{index:02}", size=100, now=now)
        while story.accumulator.oldest_unfinished is not None:
            batch = story.one(now + 1)
            if len(batch.data) > limit:
                assert story.fail(batch, MessageTooLarge(), now=now) is None
                refused += 1
            else:
                sizes.append(len(batch.data))
                story.succeed(batch)
        assert refused <= (2 if minute == 0 else 1)
        largest.append((max(sizes), refused))
    assert [minute for minute, (_, refused) in enumerate(largest) if refused] == [0, 5, 10]
    assert largest[11][0] <= 400
    assert largest[-1][0] > 800, "batch.size again"
    assert story.queues[0].size_max == 1000


def test_only_the_record_that_does_not_fit_fails():
    """A large record between small ones: it is refused alone, and small batches do not become smaller and smaller."""
    story = Story(batch_size=5000)
    for name, size in (("a", 100), ("big", 2000), ("b", 100), ("c", 100)):
        story.add(name, size=size)
    failed, written = [], []
    while story.accumulator.oldest_unfinished is not None:
        batch = story.one(1.0)
        if len(batch.data) > 1000:
            failure = story.fail(batch, MessageTooLarge(), now=1.0)
            failed += [sink for sink, *_ in batch.waiters] if failure else []
        else:
            written.append([sink for sink, *_ in batch.waiters])
            story.succeed(batch)
    assert (failed, written) == (["big"], [["a"], ["b", "c"]])


@pytest.mark.parametrize(("idempotent", "epoch"), [(True, 1), (False, -1)])
def test_a_batch_of_unknown_fate_that_is_too_large_is_split_too(idempotent: bool, epoch: int):
    """The first attempt's answer was lost. The next leader does not have it, or it would have called it a duplicate;
    a copy that is still on its way is fenced by the parts' new epoch.
    """
    story = Story(idempotent=idempotent)
    for name in "abcd":
        story.add(name)
    batch = story.one(1.0)
    assert story.fail(batch, NetworkException("reset", outcome="unknown"), now=1.0) is None
    assert story.fail(story.one(2.0), RecordListTooLarge(), now=2.0) is None
    first = story.one(2.0)
    assert sequences(first) == (7 if idempotent else -1, epoch, 0 if idempotent else -1)
    failure = story.fail(first, InvalidRecord("refused"), now=2.0)
    assert failure is not None
    assert failure.error.outcome == "unknown", "what was once unknown is never called not written"


def test_a_single_record_too_large_is_an_error():
    """MESSAGE_TOO_LARGE cannot be split further: not written."""
    story = Story()
    story.add("a")
    failure = story.fail(story.one(1.0), MessageTooLarge("max.message.bytes=5"), now=1.0)
    assert failure is not None
    assert (type(failure.error), failure.error.outcome) == (MessageTooLarge, "not_written")


def test_what_cannot_help_is_not_retried():
    """retriable decides: INVALID_RECORD comes back at once with the broker's words."""
    story = Story()
    story.add("a")
    failure = story.fail(story.one(1.0), InvalidRecord("recordCount: 0"), now=1.0)
    assert failure is not None
    assert "t-0: recordCount: 0" in failure.error.message


def test_a_duplicate_is_success():
    """KIP-98: DUPLICATE_SEQUENCE_NUMBER means that the batch is in the log."""
    assert is_success(None)
    assert is_success(DuplicateSequenceNumber())
    assert not is_success(OutOfOrderSequenceNumber())


@pytest.mark.parametrize("idempotent", [True, False])
def test_many_rows_fill_large_batches(idempotent: bool):
    """The batch call: batches up to batch.size, rows in order, sizes accounted and given back."""
    story = Story(idempotent=idempotent, batch_size=5000)
    rows = [(1, None, b"%03d" % index, ()) for index in range(300)]
    ends = [24 * (index + 1) for index in range(300)]
    start, parts = 0, []
    while start < 300:
        taken = story.accumulator.extend(story.queues[0], f"part-{start}", rows, start, ends, 1 << 30, 0.0)
        parts.append(taken)
        start += taken
    assert parts == [205, 95]
    first = story.one(0.0)
    assert RecordBatch.of(first.data).record_count == 205
    assert len(first.data) <= 5000
    story.succeed(first)
    second = story.one(0.01)
    assert [record.value for record in decode_batch(second.data)] == [row[2] for row in rows[205:]]
    story.succeed(second)
    assert story.accumulator.size == 0


def test_rows_stay_within_the_room_that_is_left():
    """buffer.memory: the batch call takes what fits, and at least one row."""
    story = Story()
    rows = [(1, None, b"x" * 79, ()) for _ in range(10)]
    ends = [100 * (index + 1) for index in range(10)]
    assert story.accumulator.extend(story.queues[0], "p", rows, 0, ends, 250, 0.0) == 2
    assert story.accumulator.extend(story.queues[0], "p", rows, 2, ends, 0, 0.0) == 1


@pytest.mark.parametrize("value", ["text", 5])
def test_a_record_that_the_codec_refuses_leaves_nothing_behind(value: Any):
    """S24: what is not bytes is refused; the batch that was opened for it is no batch, and the next record is its own."""
    story = Story()
    accumulator, queue = story.accumulator, story.queues[0]
    with pytest.raises(TypeError):
        accumulator.append(queue, "bad", 1000, None, value, (), 30, 0.0)
    assert (accumulator.size, accumulator.oldest_unfinished, len(queue.batches)) == (0, None, 0)
    with pytest.raises(TypeError):
        accumulator.extend(queue, "bad", [(1000, None, value, ())], 0, [30], 1000, 0.0)
    assert (accumulator.size, accumulator.oldest_unfinished, len(queue.batches)) == (0, None, 0)
    assert story.add("good"), "the sender is told to look, as for any first record"
    with pytest.raises(TypeError):
        accumulator.append(queue, "bad", 1000, None, value, (), 30, 0.0)
    story.add("better")
    batch = story.one(1.0)
    assert [waiter[:2] for waiter in batch.waiters] == [("good", 0), ("better", 1)]
    assert [record.value[:4] for record in decode_batch(batch.data)] == [b"good", b"bett"]
