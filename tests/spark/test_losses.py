"""What a query says when records are gone or brokers are down, and how it goes on (issue 4, must be shown)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from minikafka.hosting.cluster_files import Ports
from minikafka.testing.local_cluster import LocalCluster
from minikafka.types import NO_NODE, TopicPartition
from tests.spark.conftest import Kafka
from tests.spark.streams import Stream, lost

IMPATIENT = {"kafka.default.api.timeout.ms": "3000", "kafkaConsumer.pollTimeoutMs": "3000"}
ENDED_WITHIN_S = 170.0
"""With the default of a minute for each step it would be three minutes."""


@pytest.fixture(scope="module")
def fragile() -> Iterator[Kafka]:
    """Three brokers that tests may kill, if they bring them back."""
    config = {
        "log.retention.ms": "-1",
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "300",
        "log.retention.check.interval.ms": "200",
    }
    with LocalCluster(brokers=3, config=config) as cluster:
        yield Kafka(cluster)


def stream_of(spark, kafka, folder, **configs) -> Stream:
    """A new topic of one partition and a query of it."""
    topic = kafka.topic(1, **configs)
    made = Stream(spark, kafka.bootstrap, topic, folder)
    made.topic = topic
    return made


def values(stream) -> list[tuple[int, str]]:
    """Offset and value of all that came out, in the order of offsets."""
    rows = stream.spark.read.parquet(stream.out).collect()
    return sorted((row.offset, bytes(row.value).decode()) for row in rows)


def test_a_log_that_an_unclean_election_cut(spark, fragile, tmp_path):
    """Must be shown (truncation), KIP-101: the query has read committed records that the new leader never had."""
    stream = stream_of(spark, fragile, tmp_path, replicas=2, unclean_leader_election_enable="true")
    fragile.write(stream.topic, 0, [b"a"] * 10)
    stream.run()
    before = fragile.state(stream.topic)
    follower = next(node for node in before.replicas if node != before.leader)
    fragile.cluster.kill(follower)
    fragile.until("the ISR is the leader alone", lambda: fragile.state(stream.topic).isr == (before.leader,))
    fragile.write(stream.topic, 0, [b"b"] * 5)
    stream.run()
    assert stream.rows() == [(0, offset) for offset in range(15)]
    fragile.cluster.kill(before.leader)
    fragile.cluster.restart(follower)
    fragile.until("the follower leads", lambda: fragile.state(stream.topic).leader == follower)

    # At once, and also when the log has grown over the place again.
    cut = f"LogTruncated: {stream.topic}-0: .* at 15 of epoch .* at 10: 5 records that were read are gone"
    with pytest.raises(StreamingQueryException, match=cut):
        stream.run()
    fragile.write(stream.topic, 0, [b"c"] * 7)
    with pytest.raises(StreamingQueryException, match=cut):
        stream.run()
    told = stream.run(failOnDataLoss="false")
    assert lost(told) == [{"LogTruncated": {f"{stream.topic}-0": 5}}]
    fragile.cluster.restart(before.leader)
    fragile.write(stream.topic, 0, [b"d"])
    stream.run()
    history = "a" * 10 + "b" * 5
    rest = "c" * 7 + "d"
    assert values(stream) == sorted([*enumerate(history), *enumerate(rest, 10)])


def test_retention_that_passed_the_position(spark, fragile, tmp_path):
    """Must be shown (retention): the broker's own, by size; raised by name, or counted and gone on from the log start."""
    sizes = {"segment_bytes": "1000", "retention_bytes": "3000", "file_delete_delay_ms": "0"}
    stream = stream_of(spark, fragile, tmp_path, **sizes)
    fragile.write(stream.topic, 0, [b"first"])
    stream.run()
    for number in range(20):
        fragile.write(stream.topic, 0, [b"%d" % number + b"x" * 500])
    partition = TopicPartition(stream.topic, 0)
    fragile.until("retention has deleted", lambda: fragile.brokers.starts([partition])[partition] > 1)
    with pytest.raises(StreamingQueryException, match=f"RetentionPassedPosition: {partition}: .* at 1, .* lost"):
        stream.run()
    told = lost(stream.run(failOnDataLoss="false"))
    assert [list(each) for each in told] == [["RetentionPassedPosition"]]
    count = told[0]["RetentionPassedPosition"][str(partition)]
    assert count > 10
    assert stream.rows() == [(0, 0), *((0, offset) for offset in range(1 + count, 21))]


def test_records_that_were_deleted_before_they_were_read(kafka, stream):
    """Must be shown (retention): DeleteRecords beyond the position; the other partition is not concerned."""
    kafka.write(stream.topic, 0, [b"a"] * 10)
    kafka.write(stream.topic, 1, [b"a"] * 10)
    stream.run()
    kafka.write(stream.topic, 0, [b"b"] * 10)
    kafka.write(stream.topic, 1, [b"b"] * 10)
    kafka.delete_records(stream.topic, 0, 15)
    with pytest.raises(StreamingQueryException, match=f"RetentionPassedPosition: {stream.topic}-0: .*5 lost"):
        stream.run()
    told = stream.run(failOnDataLoss="false")
    assert lost(told) == [{"RetentionPassedPosition": {f"{stream.topic}-0": 5}}]
    zero = [(0, offset) for offset in (*range(10), *range(15, 20))]
    assert stream.rows() == zero + [(1, offset) for offset in range(20)]


def test_a_topic_that_was_made_anew(kafka, stream):
    """Must be shown (re-creation): another topic id under the same name, with fewer records and with more."""
    kafka.write(stream.topic, 0, [b"a"] * 10)
    stream.run()
    for count in (3, 20):
        kafka.delete(stream.topic)
        kafka.create(stream.topic, 2)
        kafka.write(stream.topic, 0, [b"%d" % count] * count)
        with pytest.raises(StreamingQueryException, match=f"TopicRecreated: {stream.topic}-0: .* it was re-created"):
            stream.run()
        told = stream.run(failOnDataLoss="false")
        assert lost(told) == [{"TopicRecreated": {f"{stream.topic}-0": 0, f"{stream.topic}-1": 0}}]
    history = [*enumerate(["a"] * 10), *enumerate(["3"] * 3), *enumerate(["20"] * 20)]
    assert values(stream) == sorted(history)


def test_a_topic_that_is_gone(spark, kafka, tmp_path):
    """Must be shown (re-creation): a partition that no longer exists is named; allowed, the others go on."""
    stream = stream_of(spark, kafka, tmp_path)
    other = kafka.topic(1)
    pattern = {"subscribePattern": f"{stream.topic}|{other}"}
    del stream.options["subscribe"]
    kafka.write(stream.topic, 0, [b"a"])
    kafka.write(other, 0, [b"b"])
    stream.run(**pattern)
    kafka.delete(stream.topic)
    kafka.write(other, 0, [b"c"])
    with pytest.raises(StreamingQueryException, match=f"PartitionVanished: {stream.topic}-0: it no longer exists"):
        stream.run(**pattern)
    told = stream.run(failOnDataLoss="false", **pattern)
    assert lost(told) == [{"PartitionVanished": {f"{stream.topic}-0": 0}}]
    assert values(stream) == [(0, "a"), (0, "b"), (1, "c")]
    with pytest.raises(StreamingQueryException, match="no such topic"):
        stream.run(subscribe=stream.topic)


def test_a_leader_that_is_down(spark, fragile, tmp_path):
    """Must be shown (broker down): reads go on from the next leader, in the same query's checkpoint."""
    stream = stream_of(spark, fragile, tmp_path, replicas=3)
    fragile.write(stream.topic, 0, [b"a"] * 5)
    stream.run()
    first = fragile.state(stream.topic).leader
    fragile.cluster.kill(first)
    fragile.write(stream.topic, 0, [b"b"] * 5)
    stream.run()
    fragile.cluster.restart(first)
    assert stream.rows() == [(0, offset) for offset in range(10)]


def test_brokers_that_are_down(spark, fragile, tmp_path):
    """Must be shown (broker down): without any replica the query ends by name and in time, and resumes afterwards."""
    stream = stream_of(spark, fragile, tmp_path)
    fragile.write(stream.topic, 0, [b"a"] * 5)
    stream.run()
    only = fragile.state(stream.topic).leader
    fragile.cluster.kill(only)
    fragile.until("nobody leads", lambda: fragile.state(stream.topic).leader == NO_NODE)
    began = time.monotonic()
    told = f"BrokersUnreachable: asking for offsets: .* {stream.topic}-0 has no leader"
    with pytest.raises(StreamingQueryException, match=told):
        stream.run(**IMPATIENT)
    with pytest.raises(PySparkException, match=told):
        batch_of(spark, fragile.bootstrap, stream.topic).count()
    ports = Ports()
    nobody = f"127.0.0.1:{ports.take()}"
    with pytest.raises(PySparkException, match=f"BrokersUnreachable: asking for metadata: .* {nobody}: no connection"):
        batch_of(spark, nobody, stream.topic).count()
    ports.release()
    assert time.monotonic() - began < ENDED_WITHIN_S
    fragile.cluster.restart(only)
    fragile.write(stream.topic, 0, [b"c"] * 5)
    stream.run()
    assert stream.rows() == [(0, offset) for offset in range(10)]


def batch_of(spark, bootstrap, topic):
    """A batch query that does not wait long."""
    reader = spark.read.format("minikafka").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).options(**IMPATIENT).load()
