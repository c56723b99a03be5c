"""A consumer group beside a query: ``commitGroup`` and ``startingOffsets=committed`` (issue 6, item 5)."""

from __future__ import annotations

import pytest

from minikafka.blocking import brokers as client
from minikafka.groups.protocol import Subscription
from minikafka.spark.places import Group, Position
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
from tests.spark.streams import TIMEOUT_S


def committed(kafka, group, topic, partitions=2):
    """What the group has committed, by partition."""
    names = [TopicPartition(topic, number) for number in range(partitions)]
    found = Group(kafka.brokers, group).committed(names)
    return {name.partition: at.offset for name, at in found.items()}


def test_a_group_is_told_of_finished_batches_and_never_earlier(kafka, stream, tmp_path):
    """Lag tools see the job; while a batch runs, its group still stands where the batch begins."""
    kafka.write(stream.topic, 0, [b"a"] * 30)
    seen = []

    def work(batch, _number):
        rows = [row.offset for row in batch.select("offset").collect()]
        seen.append((min(rows), max(rows) + 1, committed(kafka, "lagging", stream.topic).get(0)))

    query = (
        stream.frame(commitGroup="lagging", maxOffsetsPerTrigger="10")
        .writeStream.foreachBatch(work)
        .option("checkpointLocation", str(tmp_path / "place"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(TIMEOUT_S)
    assert not query.isActive
    assert [(begin, end) for begin, end, _ in seen] == [(0, 10), (10, 20), (20, 30)]
    # Spark says that a batch is done when it builds the next one: never is a record committed that is not done with.
    assert seen[0][2] is None
    assert all(told is not None and told <= begin for begin, _, told in seen[1:])
    # Trigger.AvailableNow ends without a word about its last batch; the reader knows by then that it is done.
    assert committed(kafka, "lagging", stream.topic) == {0: 30, 1: 0}


def test_new_queries_begin_where_the_group_has_committed(kafka, stream, read):
    """Stream and batch; a partition without a commit is read from its beginning."""
    kafka.write(stream.topic, 0, [b"a"] * 20)
    kafka.write(stream.topic, 1, [b"b"] * 4)
    Group(kafka.brokers, "begins").commit({TopicPartition(stream.topic, 0): Position(15)})
    options = {"commitGroup": "begins", "startingOffsets": "committed"}
    rows = read(stream.topic, **options).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == [
        *((0, offset) for offset in range(15, 20)),
        *((1, offset) for offset in range(4)),
    ]
    assert committed(kafka, "begins", stream.topic) == {0: 15}, "a batch query commits nothing"
    stream.run(**options)
    assert len(stream.rows()) == 9
    assert committed(kafka, "begins", stream.topic) == {0: 20, 1: 4}


def test_positions_of_a_deleted_topic_are_not_committed_to_its_successor(kafka):
    """KIP-848's topic ids: consumers of the group would begin behind records that no member has read."""
    topic = kafka.topic(1)
    deleted = kafka.brokers.topics([topic])[topic].topic_id
    kafka.delete(topic)
    kafka.create(topic, 1)
    group = Group(kafka.brokers, "successor")
    place = {TopicPartition(topic, 0): Position(15)}
    group.commit(place, {topic: deleted})
    assert committed(kafka, "successor", topic, 1) == {}
    group.commit(place, {topic: kafka.brokers.topics([topic])[topic].topic_id})
    assert committed(kafka, "successor", topic, 1) == {0: 15}


def test_errors_have_names(kafka, stream, read):
    """A group without commits, one without a name, one that belongs to others."""
    kafka.write(stream.topic, 0, [b"a"] * 3)
    with pytest.raises(Exception, match="NothingCommitted: group nobody has committed nothing"):
        read(stream.topic, commitGroup="nobody", startingOffsets="committed").collect()
    with pytest.raises(Exception, match="startingOffsets=committed needs commitGroup"):
        read(stream.topic, startingOffsets="committed").collect()
    joined(kafka, "taken", stream.topic)
    with pytest.raises(Exception, match="CommitRefused: commitGroup=taken: UNKNOWN_MEMBER_ID"):
        stream.run(commitGroup="taken")
    assert stream.rows() == [(0, offset) for offset in range(3)], "the batch was done"
    assert committed(kafka, "taken", stream.topic) == {}


def joined(kafka, group, topic):
    """A static member, which is spared the call for its id; the group is not empty any more."""
    request = g.JoinGroupRequest(
        group_id=group,
        group_instance_id="one",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocols=(g.GroupProtocol(name="range", metadata=Subscription(topics=(topic,)).packed()),),
    )
    brokers = kafka.brokers

    def attempt():
        found = brokers.ask_any(g.FindCoordinatorRequest(keys=(group,))).coordinators[0]
        error = client.error_in(found)
        if error is not None:
            raise error
        return client.call(client.Address(found.host, found.port), request)

    assert brokers.retrying("joining", attempt).generation_id == 1
