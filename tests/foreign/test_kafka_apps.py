"""Kafka Connect and Kafka Streams 4.3.1, unmodified, against three brokers that are killed on the way; and what dashboards
request with Java's admin client.
"""

from __future__ import annotations

import collections
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from minikafka import LocalCluster
from tests.foreign.kafka_apps import CONNECT, HERE, STREAMS, command, properties

pytestmark = [pytest.mark.kafka_apps, pytest.mark.e2e]

# For what hangs: each step takes seconds.
PATIENCE_S = 180.0
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=SETTINGS) as made:
        yield made


@contextmanager
def running(arguments: list[str], log: Path) -> Iterator[Callable[[str, Callable[[], bool]], None]]:
    """Run a program, which SIGTERM must stop at the end; yields a function that waits for a condition."""
    with log.open("wb") as output, subprocess.Popen(arguments, stdout=output, stderr=output) as process:

        def until(what: str, condition: Callable[[], bool]) -> None:
            gives_up_at = time.monotonic() + PATIENCE_S
            while not condition():
                text = log.read_text(errors="replace")[-3000:]
                assert process.poll() is None, f"the program ended with {process.returncode}: {text}"
                assert time.monotonic() < gives_up_at, f"still waiting until {what}: {text}"
                time.sleep(0.1)

        try:
            yield until
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
        finally:
            process.kill()


def records_in(cluster: LocalCluster, topic: str, partitions: int) -> list[list[Message]]:
    """All records of a topic that committed transactions, or none, have written; by partition."""
    names = {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**names, "enable.partition.eof": True, "isolation.level": "read_committed"})
    try:
        found = []
        for partition in range(partitions):
            place = TopicPartition(topic, partition, 0)
            consumer.assign([place])
            records: list[Message] = []
            while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
                records.append(message)
            assert message is not None, f"no end of {topic}-{partition} after {len(records)} records"
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            found.append(records)
        return found
    finally:
        consumer.close()


def is_in_sync(cluster: LocalCluster) -> bool:
    """Return True if every replica of every topic is in sync, internal ones included."""
    topics = (
        AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(timeout=PATIENCE_S).topics
    )
    return all(len(each.isrs) == len(each.replicas) for topic in topics.values() for each in topic.partitions.values())


def first_occurrences(lines: list[str]) -> list[str]:
    """The lines without repetitions."""
    return list(dict.fromkeys(lines))


def test_connect_copies_a_file_through_a_topic(cluster: LocalCluster, tmp_path: Path):
    """Issue 14: FileStreamSource and FileStreamSink, standalone: every line arrives, in order per partition."""
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    cluster.sync.create_topic("lines", partitions=3)
    worker = properties(
        tmp_path / "worker.properties",
        {
            "bootstrap.servers": cluster.bootstrap,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": tmp_path / "offsets",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "service_load",
            "listeners": "http://127.0.0.1:0",
        },
    )
    names = "org.apache.kafka.connect.file.FileStream"
    reads = properties(
        tmp_path / "source.properties",
        {"name": "source", "connector.class": f"{names}SourceConnector", "file": source, "topic": "lines"},
    )
    writes = properties(
        tmp_path / "sink.properties",
        {"name": "sink", "connector.class": f"{names}SinkConnector", "file": sink, "topics": "lines"},
    )
    lines = [f"line {number}" for number in range(400)]

    def append(some: list[str]) -> None:
        with source.open("a", encoding="ascii") as output:
            output.write("".join(f"{each}\n" for each in some))

    def arrived() -> list[str]:
        return sink.read_text(encoding="ascii").splitlines() if sink.exists() else []

    append(lines[:100])
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    with running(command(CONNECT, tmp_path, main, worker, reads, writes), tmp_path / "connect.log") as until:
        until("the first lines are in the sink", lambda: set(lines[:100]) <= set(arrived()))
        append(lines[100:200])
        cluster.kill(cluster.sync.wait.leader("lines"))
        for begin in range(200, 400, 20):
            append(lines[begin : begin + 20])
        until("all lines are in the sink", lambda: set(lines) <= set(arrived()))
    assert set(arrived()) == set(lines)
    place = {line: number for number, line in enumerate(first_occurrences(arrived()))}
    for partition in records_in(cluster, "lines", 3):
        values = first_occurrences([(record.value() or b"").decode() for record in partition])
        assert values == sorted(values, key=lines.index), "the source's order"
        assert values == sorted(values, key=place.__getitem__), "the sink's order"


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_streams_counts_words(cluster: LocalCluster, tmp_path: Path, guarantee: str):
    """Kafka's WordCountDemo while each broker is killed once: no count is too small, with transactions all are exact."""
    inputs, outputs = "streams-plaintext-input", "streams-wordcount-output"
    cluster.sync.create_topic(inputs, partitions=2)
    cluster.sync.create_topic(outputs, partitions=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    expected: collections.Counter[str] = collections.Counter()

    def produce(begin: int, end: int) -> None:
        for number in range(begin, end):
            words = ("all", f"third{number % 3}", f"own{number}")
            expected.update(words)
            producer.produce(inputs, " ".join(words), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0

    def counts() -> dict[str, int]:
        found: dict[str, int] = {}
        for partition in records_in(cluster, outputs, 2):
            for record in partition:
                found[(record.key() or b"").decode()] = int.from_bytes(record.value() or b"", "big")
        return found

    def none_too_small() -> bool:
        found = counts()
        return all(found.get(word, 0) >= count for word, count in expected.items())

    config = properties(
        tmp_path / "streams.properties",
        {
            "bootstrap.servers": cluster.bootstrap,
            "state.dir": tmp_path / "state",
            "commit.interval.ms": "300",
            "replication.factor": "3",
            "processing.guarantee": guarantee,
        },
    )
    main = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
    produce(0, 100)
    with running(command(STREAMS, tmp_path, main, config), tmp_path / "streams.log") as until:
        until("the first words are counted", none_too_small)
        assert counts() == expected
        # One after the other: leaders, coordinators of the group and of the transactions, and the controller.
        for node in cluster.node_ids:
            produce(100 * node, 100 * node + 50)
            cluster.kill(node)
            produce(100 * node + 50, 100 * node + 100)
            until("all words are counted", none_too_small)
            cluster.restart(node)
            until(f"broker {node} is in sync again", lambda: is_in_sync(cluster))
    assert counts().keys() == expected.keys()
    if guarantee == "exactly_once_v2":
        assert counts() == expected


@pytest.mark.java_source
def test_a_dashboard_gets_its_answers(cluster: LocalCluster, tmp_path: Path):
    """Issue 14: the admin requests of kafka-ui and AKHQ; features that brokers lack are refused by name."""
    cluster.sync.create_topic("orders", partitions=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    now_ms = time.time_ns() // 1_000_000
    for timestamp in (now_ms - 1000, now_ms):
        producer.produce("orders", b"tea", partition=0, timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "shop"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()
    arguments = command(CONNECT, tmp_path, str(HERE / "Dashboard.java"), cluster.bootstrap, "orders", "shop")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{done.stdout} {done.stderr[-2000:]}"
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == {
        "nodes": "[1, 2, 3]",
        "controller": "true",
        "cluster": "true",
        "operations": "[CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE]",
        "voters": "3",
        "features": "[group.version, metadata.version, transaction.version]",
        "topic.configs": "true",
        "topic.retention": "604800000",
        "topic.documented": "true",
        "broker.configs": "true",
        "broker.retention": "604800000",
        "broker.documented": "true",
        "topics": "[__consumer_offsets, orders]",
        "isr": "[3, 3, 3]",
        "dirs": "[1, 1, 1]",
        "EarliestSpec": "0",
        "LatestSpec": "2",
        "MaxTimestampSpec": "1",
        "TimestampSpec": "0",
        "producers": "0",
        "reassignments": "0",
        "groups": "[shop]",
        "state": "Empty",
        "committed": "1",
        "acls": "SecurityDisabledException",
        "quotas": "{}",
        "users": "{}",
        "transactions": "[]",
    }
