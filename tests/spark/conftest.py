"""Tests that start a JVM: one Spark session and one cluster for all of them."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minikafka.blocking import brokers as client
from minikafka.errors import ProtocolError
from minikafka.testing.local_cluster import LocalCluster
from minikafka.types import TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.records import Record, build_batch
from tests.bench import kafka_jars
from tests.bench.kafka_jars import NoKafka
from tests.left_out import leave_out
from tests.spark.spark_home import INTERPRETED, archive_classes, java_options, spark_home
from tests.spark.streams import Stream

PATIENCE_S = 60

# Also for those that tests start as processes.
os.environ.update(java_options())

# Without the extra there is nothing to start: `make test` installs it.
collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]


CONNECTOR = "spark_kafka_4.2.0"
"""Spark's Kafka connector and what it needs: the newest in Maven Central, which Spark 4.3 loads."""


@functools.cache
def connector_jars() -> list[Path]:
    """The jars of Spark's own Kafka connector. NoKafka says why they cannot be had."""
    pinned = kafka_jars.parse(Path(__file__).with_name(f"{CONNECTOR}.txt").read_text(encoding="ascii"))
    return kafka_jars.fetch_all(pinned, kafka_jars.cache_folder() / CONNECTOR)


def why_no_connector() -> str | None:
    """What keeps Spark's Kafka connector from running here."""
    try:
        connector_jars()
    except NoKafka as missing:
        return str(missing)
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything here needs a JVM; what needs the connector is deselected without its jars."""
    leave_out(config, items, "spark_kafka", why_no_connector)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SPARK_HOME whose Python processes start quickly, as its JVMs do."""
    archive_classes()
    os.environ.update(java_options())
    return spark_home(tmp_path_factory.mktemp("spark"))


@pytest.fixture(scope="session")
def spark(home: Path) -> Iterator[Any]:
    """One session: local[2,4] retries a failed task three times."""
    from minikafka.spark.session import open_session

    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.python.filterPushdown.enabled": "true"} | INTERPRETED
    if why_no_connector() is None:
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
        settings |= {"spark.kafka.producer.cache.timeout": "100ms"}
        settings |= {"spark.kafka.producer.cache.evictorThreadRunInterval": "100ms"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        session = open_session("tests", "local[2,4]", settings)
    # Errors are what these tests are about: the JVM need not print their stacks.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@dataclass
class Kafka:
    """A cluster of this process, and quick ways to fill it."""

    cluster: LocalCluster

    def __post_init__(self) -> None:
        self._names = itertools.count()

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def brokers(self) -> client.Brokers:
        return client.Brokers([each.address for each in self.cluster.files.brokers], api_timeout_s=PATIENCE_S)

    def topic(self, partitions: int = 2, replicas: int = 1, **configs: str) -> str:
        """A new topic that everybody knows."""
        name = f"t{next(self._names)}"
        self.create(name, partitions, replicas, **configs)
        return name

    def create(self, name: str, partitions: int, replicas: int = 1, **configs: str) -> None:
        new = m.NewTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        self._controller(m.CreateTopicsRequest(topics=(new,)))
        brokers = self.brokers
        brokers.list_offsets({TopicPartition(name, each): m.LATEST for each in range(partitions)})

    def delete(self, name: str) -> None:
        self._controller(m.DeleteTopicsRequest(topics=(name,)))
        self.until(f"{name} is gone", lambda: name not in self.brokers.topics(certain=True))

    def _controller(self, request: Any) -> Any:
        brokers = self.brokers

        def attempt() -> Any:
            known: m.MetadataResponse = brokers.ask_any(m.MetadataRequest(topics=()))
            place = next(each for each in known.brokers if each.node_id == known.controller_id)
            answer = client.call(client.Address(place.host, place.port), request)
            for each in answer.topics:
                error = client.error_in(each)
                if error is not None:
                    raise error
            return answer

        return brokers.retrying("asking the controller", attempt)

    def write(self, topic: str, partition: int, values: Sequence[bytes], **fields: Any) -> None:
        """Append values as one batch, acknowledged by all in-sync replicas."""
        records = [Record(0, 1_700_000_000_000 + index, 0, None, value) for index, value in enumerate(values)]
        self.append(topic, partition, [each._replace(**fields) for each in records])

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Append one batch, acknowledged by all in-sync replicas."""
        brokers = self.brokers

        def attempt() -> None:
            answers = brokers.produce([(TopicPartition(topic, partition), build_batch(records))], timeout_s=PATIENCE_S)
            error = client.error_in(answers[0])
            if error is not None:
                raise error

        brokers.retrying("writing", attempt)

    def until(self, what: str, condition: Callable[[], bool], timeout_s: float = 180) -> None:
        """Return when the condition holds; it may ask brokers, which may have no answer yet."""
        gives_up_at = time.monotonic() + timeout_s
        while True:
            with suppress(ProtocolError):
                if condition():
                    return
            assert time.monotonic() < gives_up_at, f"after {timeout_s} s, still waiting until {what}"
            time.sleep(0.01)

    def until_nothing_is_open(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the end and start offsets once no transaction holds readers of these partitions back."""
        addresses = [each.address for each in self.cluster.files.brokers]
        committed = client.Brokers(addresses, api_timeout_s=60, isolation_level=client.m.READ_COMMITTED)
        self.until("nothing is open", lambda: self.brokers.ends(places) == committed.ends(places))
        return dict(self.brokers.ends(places))

    def state(self, topic: str) -> m.DescribedPartition:
        """Partition 0, as the metadata has it."""
        answer = self.brokers.ask_any(m.DescribeTopicsRequest(topics=(topic,)))
        return answer.topics[0].partitions[0]

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        name = TopicPartition(topic, partition)
        item = m.DeleteRecordsPartition(topic=topic, partition=partition, offset=offset)
        answer = client.call(self.brokers.leader(name).address, m.DeleteRecordsRequest(partitions=(item,)))
        assert answer.partitions[0].error_code == 0, answer


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """Three brokers in this process."""
    # The tests' records are of 2023: retention would take them within minutes.
    with LocalCluster(brokers=3, config={"log.retention.ms": "-1"}) as cluster:
        yield Kafka(cluster)


@pytest.fixture
def read(spark: Any, kafka: Kafka) -> Callable[..., Any]:
    """A batch reader of a topic with some options."""

    def of(topic: str, **options: Any) -> Any:
        reader = spark.read.format("minikafka").option("kafka.bootstrap.servers", kafka.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    return of


@pytest.fixture
def stream(spark, kafka, tmp_path):
    """A new topic of two partitions and a query of it."""
    topic = kafka.topic()
    made = Stream(spark, kafka.bootstrap, topic, tmp_path)
    made.topic = topic
    return made
