"""The rows of one task of the sink: where they go and with which sequences; no JVM, brokers that answer by script."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

from minikafka.blocking.brokers import Leader
from minikafka.client.partitioner import partition_of_key
from minikafka.errors import InvalidProducerEpoch, NetworkException, OutOfOrderSequenceNumber, ProtocolError
from minikafka.spark import sink
from minikafka.spark.options import OptionError, parse_sink
from minikafka.spark.sink import DERIVED_ID_BIT, EPOCH_COUNT, Identity, TaskWriter, derived_identity
from minikafka.types import Address, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import decode_batch

AT = Address("127.0.0.1", 9001)
OWN = Identity(4000, 5, is_derived=False)
DERIVED = Identity(DERIVED_ID_BIT | 7, 5, is_derived=True)


class Brokers:
    """Topics of three partitions, led by one broker; ``refusals`` are its next answers."""

    def __init__(self, **written: int) -> None:
        self.sent: list[tuple[TopicPartition, int, list[Any]]] = []
        """Partition, first sequence, and records of each batch."""
        self.requests = 0
        self.refusals: dict[TopicPartition, list[ProtocolError]] = defaultdict(list)
        self.left_out: list[TopicPartition] = []
        """What the next responses leave out, each once."""
        self.last = {"epoch": -1, "sequence": -1} | written
        """What DescribeProducers says of every partition."""

    def partition_count(self, _topic: str) -> int:
        return 3

    def leader(self, _partition: TopicPartition) -> Leader:
        return Leader(address=AT, epoch=0)

    def retrying(self, _what: str, attempt: Any, **_: Any) -> Any:
        while True:
            try:
                return attempt()
            except NetworkException:
                continue

    def produce(self, batches: Any, **_: Any) -> list[m.ProducedPartition]:
        self.requests += 1
        answers = []
        for name, data in batches:
            batch = RecordBatch.of(bytes(data))
            if name in self.left_out:
                self.left_out.remove(name)
                continue
            if self.refusals[name]:
                error = self.refusals[name].pop(0)
                answers.append(m.ProducedPartition.failed(error, topic=name.topic, partition=name.partition))
                continue
            self.sent.append((name, batch.base_sequence, decode_batch(batch)))
            answers.append(m.ProducedPartition(topic=name.topic, partition=name.partition))
        return answers

    def call(self, _address: Address, request: m.DescribeProducersRequest) -> m.DescribeProducersResponse:
        (item,) = request.partitions
        described = m.DescribedProducer(
            topic=item.topic,
            partition=item.partition,
            producer_id=item.producer_id,
            producer_epoch=self.last["epoch"],
            last_sequence=self.last["sequence"],
        )
        return m.DescribeProducersResponse(partitions=(described,))

    def values(self, topic: str = "a") -> dict[int, list[bytes]]:
        """The values that each partition of a topic received, in order."""
        found: dict[int, list[bytes]] = defaultdict(list)
        for name, _, records in self.sent:
            if name.topic == topic:
                found[name.partition] += [record.value for record in records]
        return dict(found)


def writer(brokers: Brokers, identity: Identity = OWN, task: int = 0, **options: str) -> TaskWriter:
    parsed = parse_sink({"kafka.bootstrap.servers": "a:1", **options}, streaming=False)
    return TaskWriter(parsed, brokers, identity, task)  # type: ignore[arg-type]


def rows(*values: Any, **columns: list[Any]) -> Any:
    return iter([pa.RecordBatch.from_pydict({"value": [str(each) for each in values], **columns})])


def test_rows_go_to_the_partition_that_they_name_or_their_key_has():
    """Partition 0 is one, too; a key goes where Kafka's clients put it."""
    brokers = Brokers()
    given = rows("zero", "two", "keyed", key=[None, b"k", b"k"], partition=[0, 2, None])
    assert writer(brokers, task=1, topic="a").write(given).rows == 3
    where = partition_of_key(b"k", 3)
    expected: dict[int, list[bytes]] = defaultdict(list)
    for partition, value in ((0, b"zero"), (2, b"two"), (where, b"keyed")):
        expected[partition].append(value)
    assert brokers.values() == expected


def test_rows_without_a_key_take_turns_that_begin_with_the_tasks_number(monkeypatch: pytest.MonkeyPatch):
    """Else all tasks would write to the same partition."""
    monkeypatch.setattr(sink, "KEYLESS_RUN", 2)
    brokers = Brokers()
    writer(brokers, task=1, topic="a").write(rows(*range(6)))
    assert brokers.values() == {1: [b"0", b"5"], 2: [b"1", b"2"], 0: [b"3", b"4"]}


def test_option_topic_wins_over_the_column_and_a_row_needs_one_of_them():
    """As in Spark's Kafka sink."""
    brokers = Brokers()
    writer(brokers, topic="a").write(rows("x", topic=["b"]))
    writer(brokers).write(rows("y", topic=["b"]))
    assert (brokers.values("a"), brokers.values("b")) == ({0: [b"x"]}, {0: [b"y"]})
    for missing in (None, ""):
        with pytest.raises(OptionError, match="a row has no topic"):
            writer(brokers).write(rows("z", topic=pa.array([missing], pa.string())))


def test_headers_are_written_where_there_are_any():
    """A column of them is enough; nulls are none."""
    brokers = Brokers()
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    writer(brokers, topic="a").write(rows("x", "y", headers=headers))
    assert [record.headers for _, _, records in brokers.sent for record in records] == [[("h", b"1")], []]


def test_batches_are_sent_when_they_have_their_size():
    """One partition's, or four times as much of all of them; what is left follows at the end."""
    row = "x" * 36  # counts as 100 bytes
    brokers = Brokers()
    writer(brokers, topic="a", **{"kafka.batch.size": "200"}).write(rows(*[row] * 5, partition=[0] * 5))
    assert [len(records) for _, _, records in brokers.sent] == [2, 2, 1]
    small, spread = Brokers(), Brokers()
    writer(small, topic="a", **{"kafka.batch.size": "101"}).write(rows(*[row] * 3, partition=[0, 1, 2]))
    assert small.requests == 1
    writer(spread, topic="a", **{"kafka.batch.size": "200"}).write(rows(*[row] * 9, partition=list(range(9))))
    assert (spread.requests, len(spread.sent)) == (2, 9), "eight of a hundred bytes each are four batches"


def test_batch_never_grows_beyond_its_size_but_for_one_large_row():
    """A broker refuses batches above max.message.bytes, however often: small rows must not push a large one over it."""
    brokers = Brokers()
    large = "x" * 136  # counts as 200 bytes
    options = {"kafka.batch.size": "250"}
    writer(brokers, topic="a", **options).write(rows("x" * 36, large, "y" * 36, "z" * 36, partition=[0] * 4))
    assert [[len(record.value) for record in records] for _, _, records in brokers.sent] == [[36], [136], [36, 36]]
    beyond = Brokers()
    writer(beyond, topic="a", **options).write(rows("x" * 36, large * 2, "y" * 36, partition=[0] * 3))
    assert [[len(record.value) for record in records] for _, _, records in beyond.sent] == [[36], [272], [36]]
    assert [first for _, first, _ in beyond.sent] == [0, 1, 2]


def test_partition_that_a_response_leaves_out_is_sent_again():
    """Its rows are not acknowledged: a task that ends now would report rows that no log has."""
    brokers = Brokers()
    brokers.left_out = [TopicPartition("a", 1)]
    written = writer(brokers, DERIVED, topic="a").write(rows("x", "y", partition=[0, 1]))
    assert written.rows == 2
    assert brokers.values() == {0: [b"x"], 1: [b"y"]}
    assert brokers.requests == 2


def test_task_that_is_run_again_skips_what_it_finds():
    """Sequences 0 to 2 are there: the rows behind them are sent with theirs."""
    brokers = Brokers(epoch=5, sequence=2)
    written = writer(brokers, DERIVED, topic="a").write(rows(*range(5), partition=[0] * 5))
    assert (written.rows, written.skipped) == (5, 3)
    assert [(first, [record.value for record in records]) for _, first, records in brokers.sent] == [(3, [b"3", b"4"])]
    whole = Brokers(epoch=5, sequence=9)
    assert writer(whole, DERIVED, topic="a").write(rows(*range(5), partition=[0] * 5)).skipped == 5
    assert whole.requests == 0


def test_what_an_earlier_batch_wrote_is_not_taken_for_this_one():
    """Its epoch is older; a newer one has fenced this task."""
    earlier = Brokers(epoch=4, sequence=2)
    assert writer(earlier, DERIVED, topic="a").write(rows(*range(3), partition=[0] * 3)).skipped == 0
    assert [first for _, first, _ in earlier.sent] == [0]
    with pytest.raises(InvalidProducerEpoch, match="a later batch of this query was written already"):
        writer(Brokers(epoch=6, sequence=2), DERIVED, topic="a").write(rows("x"))


def test_sequences_go_on_from_batch_to_batch_and_stay_when_a_batch_is_sent_again():
    """A response that was lost is no reason for other numbers."""
    brokers = Brokers()
    name = TopicPartition("a", 0)
    brokers.refusals[name] = [NetworkException("lost")]
    writer(brokers, DERIVED, topic="a", **{"kafka.batch.size": "130"}).write(rows(*range(5), partition=[0] * 5))
    assert [(first, len(records)) for _, first, records in brokers.sent] == [(0, 2), (2, 2), (4, 1)]


def test_attempt_that_another_one_overtook_goes_on_behind_it_or_ends():
    """OUT_OF_ORDER_SEQUENCE_NUMBER: the partition is asked again; if it has no more than before, nothing helps."""
    brokers = Brokers()
    name = TopicPartition("a", 0)
    brokers.refusals[name] = [OutOfOrderSequenceNumber("1 was expected")]
    task = writer(brokers, DERIVED, topic="a")
    task._add("a", 0, None, b"0", None, 0)
    task._add("a", 0, None, b"1", None, 0)
    brokers.last |= {"epoch": 5, "sequence": 0}
    assert task.write(iter([])).skipped == 1
    assert [(first, [record.value for record in records]) for _, first, records in brokers.sent] == [(1, [b"1"])]
    stuck = Brokers()
    stuck.refusals[name] = [OutOfOrderSequenceNumber("1 was expected")]
    with pytest.raises(OutOfOrderSequenceNumber):
        writer(stuck, DERIVED, topic="a").write(rows("x", partition=[0]))


def test_fenced_task_ends_at_once():
    """Another attempt, or a later batch, writes in its place."""
    brokers = Brokers()
    brokers.refusals[TopicPartition("a", 0)] = [InvalidProducerEpoch("fenced")]
    with pytest.raises(InvalidProducerEpoch):
        writer(brokers, topic="a").write(rows("x", partition=[0]))
    assert brokers.sent == []


def test_first_topic_is_reported_once_before_anything_is_sent():
    """The sink notes the run of a query there; a task without rows reports nothing."""
    brokers = Brokers()
    seen: list[tuple[str, int]] = []
    task = writer(brokers, topic="b", **{"kafka.batch.size": "1"})
    task._before_first = lambda topic: seen.append((topic, len(brokers.sent)))
    task.write(rows(*range(3)))
    assert seen == [("b", 0)]
    empty = writer(brokers, topic="b")
    empty._before_first = lambda topic: seen.append((topic, len(brokers.sent)))
    assert empty.write(iter([])).rows == 0
    assert len(seen) == 1


def test_identities_of_tasks_never_meet():
    """Not those of brokers, not those of other tasks, and no two batches of one task share id and epoch."""
    one = derived_identity("q", 0, 7)
    assert one == derived_identity("q", 0, 7)
    assert (one.epoch, one.is_derived, one.producer_id >> 62) == (7, True, 1)
    others = [derived_identity("q", 1, 7), derived_identity("r", 0, 7), derived_identity("q", 0, 7 + EPOCH_COUNT)]
    assert len({one.producer_id, *(each.producer_id for each in others)}) == 4
    assert {each.epoch for each in others} == {7}
    assert derived_identity("q", 0, EPOCH_COUNT - 1).epoch == EPOCH_COUNT - 1
    assert derived_identity("q", 0, 8).producer_id == one.producer_id
