"""Directories with committed, aborted and open transactions: Kafka's in our broker, and ours in Kafka's (issue 17, part 4).

With ``read_committed`` the same records are visible on both sides, before the open transaction has ended and after it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minikafka import LocalCluster
from tests.e2e.commands import completed
from tests.foreign.kafka_brokers import Kafka, kafka
from tests.foreign.kafka_tools import NEWEST, tool_command

pytestmark = [pytest.mark.java, pytest.mark.e2e, pytest.mark.slow]

PATIENCE_S = 60.0
TOPIC, PARTITION = "orders", "orders-0"
ISOLATION = ("read_uncommitted", "read_committed")
OURS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "min.insync.replicas": "1",
}

VISIBLE = ["c0", "c1", "plain"]
"""The records below the open transaction that a reader of committed records sees."""
BEHIND = ["behind"]
"""A committed record behind the open transaction's first one."""
EVERY = ["c0", "c1", "a0", "a1", "plain", "o0", *BEHIND]
OPEN_AT = 7
"""Offset of the open transaction's first record: markers have offsets, too."""


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    return producer


def send(producer: Producer, *values: str) -> None:
    for value in values:
        producer.produce(TOPIC, value.encode(), partition=0)
    assert producer.flush(PATIENCE_S) == 0


def fill(bootstrap: str) -> Producer:
    """Write all records; returns the producer whose transaction is open."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
    producer = transactional(bootstrap, "ends")
    producer.begin_transaction()
    send(producer, "c0", "c1")
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    send(producer, "a0", "a1")
    producer.abort_transaction(PATIENCE_S)
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    send(plain, "plain")
    stays_open = transactional(bootstrap, "stays-open")
    stays_open.begin_transaction()
    send(stays_open, "o0")
    producer.begin_transaction()
    send(producer, *BEHIND)
    producer.commit_transaction(PATIENCE_S)
    return stays_open


def read(bootstrap: str, isolation: str) -> list[str]:
    """All values of the topic that this reader sees."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": isolation, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[str] = []
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            values.append((message.value() or b"").decode())
        assert message is not None, f"no end after {values}"
        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
        return values
    finally:
        consumer.close()


def seen(bootstrap: str) -> dict[str, list[str]]:
    return {each: read(bootstrap, each) for each in ISOLATION}


OPEN = {"read_uncommitted": EVERY, "read_committed": VISIBLE}
ENDED = {"read_uncommitted": EVERY, "read_committed": [*VISIBLE, *BEHIND]}
"""What readers see while the transaction is open, and once it was aborted."""


def take(source: Path, target: Path) -> None:
    """Replace a partition's files, all but the one with the topic's id in its cluster (docs/limits.md)."""
    for folder, act in ((target, Path.unlink), (source, lambda path: shutil.copy(path, target))):
        for path in folder.iterdir():
            if path.name != "partition.metadata":
                act(path)


@contextmanager
def our_broker(folder: Path) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, config=OURS, data_dir=folder) as cluster:
        yield cluster


def folder_of(cluster: LocalCluster) -> Path:
    [found] = cluster.folder(cluster.node_ids[0]).rglob(PARTITION)
    return found


def test_kafkas_directory_in_our_broker(tmp_path: Path):
    """Every record that read_committed sees in Kafka, and no other one, is visible here."""
    copy = tmp_path / PARTITION
    with kafka() as theirs:
        producer = fill(theirs.bootstrap)
        assert seen(theirs.bootstrap) == OPEN
        theirs.stop()
        shutil.copytree(theirs.folder(PARTITION), copy)
        del producer
    with our_broker(tmp_path / "data") as cluster:
        cluster.sync.create_topic(TOPIC, partitions=1, replicas=1)
        cluster.terminate(cluster.node_ids[0])
        take(copy, folder_of(cluster))
        cluster.restart(cluster.node_ids[0])
        assert seen(cluster.bootstrap) == OPEN
        done = completed("transactions", "abort", PARTITION, "--start-offset", str(OPEN_AT), "-b", cluster.bootstrap)
        assert done.returncode == 0, done.stderr
        assert seen(cluster.bootstrap) == ENDED


def test_our_directory_in_kafkas_broker(tmp_path: Path):
    """The other way round."""
    with our_broker(tmp_path / "data") as cluster:
        producer = fill(cluster.bootstrap)
        assert seen(cluster.bootstrap) == OPEN
        ours = folder_of(cluster)
    del producer
    with kafka() as theirs:
        admin = AdminClient({"bootstrap.servers": theirs.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
        theirs.stop()
        take(ours, theirs.folder(PARTITION))
        theirs.start()
        assert seen(theirs.bootstrap) == OPEN
        abort_by_kafkas_tool(theirs, tmp_path)
        assert seen(theirs.bootstrap) == ENDED


def abort_by_kafkas_tool(theirs: Kafka, folder: Path) -> None:
    command = tool_command(NEWEST, folder, "org.apache.kafka.tools.TransactionsCommand")
    place = ("--topic", TOPIC, "--partition", "0", "--start-offset", str(OPEN_AT))
    arguments = [*command, "--bootstrap-server", theirs.bootstrap, "abort", *place]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]} {done.stderr[-2000:]}"
