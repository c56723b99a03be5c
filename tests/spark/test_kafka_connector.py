"""Spark's own Kafka connector (``spark-sql-kafka-0-10``), unmodified, against three brokers of minikafka."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from minikafka import LocalCluster
from tests.spark.streams import TIMEOUT_S

pytestmark = pytest.mark.spark_kafka

SETTINGS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500", "min.insync.replicas": "2"}


class Topics:
    """A cluster of three brokers, and the connector's readers and writers for its topics."""

    def __init__(self, spark: Any, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": cluster.bootstrap}

    def create(self, *names: str) -> None:
        """Create topics of three partitions."""
        for name in names:
            self.cluster.sync.create_topic(name, partitions=3)

    def produce(self, topic: str, numbers: range, begin_ms: int) -> None:
        """Produce each number to the partition that is its remainder, one every millisecond."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        for number in numbers:
            producer.produce(topic, b"%d" % number, partition=number % 3, timestamp=begin_ms + number)
        assert producer.flush(TIMEOUT_S) == 0

    def read(self, topic: str, **options: str) -> list[int]:
        """The values of a batch read, sorted."""
        reader = self._spark.read.format("kafka").options(**self._options, subscribe=topic, **options)
        return sorted(int(row.value) for row in reader.load().select("value").collect())

    def write(self, topic: str, numbers: range, **options: str) -> None:
        """Write numbers in one batch."""
        frame = self._spark.range(numbers.start, numbers.stop).selectExpr(
            "cast(id as string) key", "cast(id as string) value"
        )
        frame.write.format("kafka").options(**self._options, topic=topic, **options).save()

    def copy(self, source: str, into: str, checkpoint: str) -> Any:
        """Start a query that copies what there is now, 60 records a batch."""
        options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
        frame = self._spark.readStream.format("kafka").options(**self._options, **options).load()
        writer = frame.select("key", "value").writeStream.format("kafka").options(**self._options, topic=into)
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


@pytest.fixture
def topics(spark: Any) -> Iterator[Topics]:
    with LocalCluster(brokers=3, config=SETTINGS) as cluster:
        yield Topics(spark, cluster)
        end_producers(spark)


def end_producers(spark: Any) -> None:
    """Wait until Spark has closed its producers, which it keeps for further batches.

    One that outlives its brokers asks those that have their ports next for its topic, and so creates it there, in the
    cluster of another test.
    """
    threads = spark.sparkContext._jvm.java.lang.Thread
    gives_up_at = time.monotonic() + TIMEOUT_S
    while names := [
        name
        for name in (thread.getName() for thread in threads.getAllStackTraces().keySet())
        if name.startswith("kafka-producer-network-thread")
    ]:
        assert time.monotonic() < gives_up_at, names
        time.sleep(0.1)


def finish(query: Any) -> None:
    """Wait for the end of a query, which must succeed."""
    try:
        assert query.awaitTermination(TIMEOUT_S), "the query is still running"
    finally:
        query.stop()


def test_batches_by_offset_and_by_time_and_of_each_codec(topics: Topics):
    """Issue 14: a batch is written with each compression; batches are read from and to offsets and times."""
    topics.create("written", "timed")
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for index, codec in enumerate(codecs):
        topics.write("written", range(index * 20, index * 20 + 20), **{"kafka.compression.type": codec})
    assert topics.read("written") == list(range(20 * len(codecs)))

    begin_ms = time.time_ns() // 1_000_000 - 60_000
    topics.produce("timed", range(90), begin_ms)
    offsets = {
        "startingOffsets": json.dumps({"timed": {"0": 10, "1": -2, "2": 30}}),
        "endingOffsets": json.dumps({"timed": {"0": 20, "1": 5, "2": -1}}),
    }
    assert topics.read("timed", **offsets) == sorted([*range(30, 60, 3), *range(1, 16, 3)])
    times = {"startingTimestamp": str(begin_ms + 31), "endingTimestamp": str(begin_ms + 61)}
    assert topics.read("timed", **times) == list(range(31, 61))


def test_a_stream_resumes_from_its_checkpoint_after_a_broker_is_killed(topics: Topics, tmp_path: Any):
    """Issue 14: copied in batches while a leader is killed, stopped, and started again: each record at least once, and none lost."""
    topics.create("source", "copy")
    begin_ms = time.time_ns() // 1_000_000 - 60_000
    topics.produce("source", range(300), begin_ms)
    checkpoint = str(tmp_path / "checkpoint")
    query = topics.copy("source", "copy", checkpoint)
    gives_up_at = time.monotonic() + TIMEOUT_S
    while not query.recentProgress:
        assert query.isActive, query.exception()
        assert time.monotonic() < gives_up_at
        time.sleep(0.01)
    topics.cluster.kill(topics.cluster.sync.wait.leader("source"))
    query.stop()
    finish(topics.copy("source", "copy", checkpoint))
    topics.produce("source", range(300, 400), begin_ms)
    finish(topics.copy("source", "copy", checkpoint))
    copied = collections.Counter(topics.read("copy"))
    assert sorted(copied) == list(range(400))
    # A batch that was stopped is run again: Spark's sink is at-least-once.
    assert set(copied.values()) <= {1, 2}
