"""Apache Kafka's own broker for tests that compare: one process, which the bench starts with other options of Java."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from minikafka.types import NodeId
from tests.bench import kafka_processes
from tests.bench.kafka_processes import Java, KafkaBroker, KafkaCluster
from tests.foreign.kafka_tools import JVM, java, shared_classes

READY_WITHIN_S = 60.0


def _java() -> Java:
    """A Java whose broker lives for a minute: its start takes half of the processor time."""
    program, class_path = java()
    options = (*JVM, "-Xmx512m", *shared_classes(program, class_path))
    found = kafka_processes.find()
    return found._replace(class_path=class_path, broker_options=options, format_options=options)


class Kafka:
    """Running brokers of Apache Kafka, mostly one, with the methods that a test needs; all of them block."""

    def __init__(self, runner: asyncio.Runner, cluster: KafkaCluster, login: Mapping[str, str]) -> None:
        self._runner = runner
        self._cluster = cluster
        self._login = login

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def _broker(self) -> KafkaBroker:
        [broker] = self._cluster.brokers.values()
        return broker

    def folder(self, partition: str) -> Path:
        """The folder of a partition, such as ``orders-0``, of one broker."""
        return self._broker.data / partition

    def start(self) -> None:
        """Start the processes, and wait until one answers that knows all. RuntimeError with last lines."""
        self._runner.run(self._cluster.start())
        self._until_ready()

    def end(self, node: NodeId, how: signal.Signals) -> None:
        """End the process of one broker."""
        self._runner.run(self._cluster.brokers[node].signalled(how))

    def restart(self, node: NodeId) -> None:
        """Start the process of one broker again."""
        self._runner.run(self._cluster.brokers[node].start())
        self._until_ready()

    def _until_ready(self) -> None:
        admin, deadline = (
            AdminClient({**self._login, "bootstrap.servers": self.bootstrap, "log_level": 0}),
            time.monotonic() + READY_WITHIN_S,
        )
        while True:
            try:
                found = len(admin.list_topics(timeout=1.0).brokers)
            except KafkaException:
                found = 0
            if found == len(self._cluster.brokers):
                return
            for broker in self._cluster.brokers.values():
                broker.check()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka is not ready: {broker.last_words()}")

    def stop(self) -> None:
        """SIGTERM to one broker: Kafka closes its logs."""
        self._runner.run(self._broker.signalled(signal.SIGTERM))


@contextmanager
def kafka(
    settings: Mapping[str, str] | None = None, login: Mapping[str, str] = MappingProxyType({}), *, brokers: int = 1
) -> Iterator[Kafka]:
    """Brokers of Apache Kafka 4.3.1, formatted and started. NoKafka says what is missing.

    ``login`` has librdkafka's settings for clients of a broker whose ``settings`` require a login.
    """
    with asyncio.Runner() as runner:
        cluster = KafkaCluster(_java(), brokers)
        try:
            for broker in cluster.brokers.values():
                with broker.settings.open("a", encoding="ascii") as file:
                    file.write("".join(f"{name}={value}\n" for name, value in (settings or {}).items()))
            runner.run(cluster.format())
            made = Kafka(runner, cluster, login)
            made.start()
            yield made
        finally:
            runner.run(cluster.close())
