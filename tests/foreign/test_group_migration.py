"""A group of Java's consumers that moves from the classic to the consumer protocol and back, member by member (KIP-848).

Issue 17, Build 5: migration in both directions while members are live. The same steps run against Apache Kafka's own broker,
which says what a Java user expects to see.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minikafka import LocalCluster
from tests.foreign.kafka_apps import HERE, STREAMS, command
from tests.foreign.kafka_brokers import kafka

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.kafka_apps, pytest.mark.java_source]

# For what hangs: each step takes seconds.
PATIENCE_S = 90.0
TOPIC, GROUP, PARTITIONS = "orders", "shop", 6
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.consumer.heartbeat.interval.ms": "500"}

STEPS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("join a classic", "join b classic"), "Classic a=- b=-"),
    (("join c consumer",), "Consumer a=false b=false c=true"),
    (("leave a", "join d consumer"), "Consumer b=false c=true d=true"),
    (("leave b",), "Consumer c=true d=true"),
    (("join e classic",), "Consumer c=true d=true e=false"),
    (("leave c", "join f classic"), "Consumer d=true e=false f=false"),
    (("leave d",), "Classic e=- f=-"),
)
"""Commands, and the group that Kafka describes once it is stable: its type, and whether each member is upgraded."""


@contextmanager
def three_brokers() -> Iterator[str]:
    """Ours."""
    with LocalCluster(brokers=3, config=SETTINGS) as cluster:
        yield cluster.bootstrap


@contextmanager
def kafkas_broker() -> Iterator[str]:
    """Apache Kafka's, whose lower bound of the interval is 5 s by default."""
    with kafka({**SETTINGS, "group.consumer.min.heartbeat.interval.ms": "500"}) as broker:
        yield broker.bootstrap


class Members:
    """The program Migration.java, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._described: queue.Queue[str] = queue.Queue()
        self.reads: Counter[tuple[int, int]] = Counter()
        """How many times each record was read, by (partition, offset)."""
        self.failures: list[str] = []
        self.left: set[str] = set()
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "read":
                _, partition, offset = rest.split()
                self.reads[int(partition), int(offset)] += 1
            elif kind == "left":
                self.left.add(rest)
            elif kind == "group":
                self._described.put(rest)
            else:
                self.failures.append(line.strip())

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def describe(self) -> str:
        """Type, members and their protocols, if the group is stable and each partition is assigned; else all of it."""
        self.send("describe")
        kind, state, *members = self._described.get(timeout=PATIENCE_S).split()
        rows = [each.partition(":") for each in members]
        if state != "Stable" or sum(int(count or 0) for _, _, count in rows) != PARTITIONS:
            return f"{kind} {state} {members}"
        if any(count == "0" for _, _, count in rows):
            return f"{kind} {state} {members}"
        return " ".join([kind, *(name for name, _, _ in rows)])

    def until(self, what: str, condition: Callable[[], object]) -> None:
        gives_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process.poll() is None, f"the program ended with {self._process.returncode}"
            assert not self.failures, self.failures
            assert time.monotonic() < gives_up_at, f"still waiting until {what}: {self.describe()}"
            time.sleep(0.1)


class Filling:
    """A thread that produces a record every few milliseconds."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._ends = threading.Event()
        self.written: set[tuple[int, int]] = set()
        """(partition, offset) of each acknowledged record."""
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ends.wait(0.005):
            self._producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        if self._producer.flush(PATIENCE_S):
            self.errors.append("records are not acknowledged")

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.written.add((message.partition(), message.offset()))  # type: ignore[attr-defined]

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


@contextmanager
def filling(bootstrap: str) -> Iterator[Filling]:
    made = Filling(bootstrap)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def members_of(bootstrap: str, strategy: str, folder: Path) -> Iterator[Members]:
    arguments = command(STREAMS, folder, str(HERE / "Migration.java"), bootstrap, TOPIC, GROUP, strategy)
    with (
        (folder / "java.log").open("wb") as log,
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        members = Members(process)
        try:
            yield members
        finally:
            process.kill()
            members.thread.join()


def committed(bootstrap: str) -> dict[int, int]:
    """The group's committed offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    try:
        places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(places, timeout=PATIENCE_S)}
    finally:
        consumer.close()


@pytest.mark.parametrize("strategy", ["default", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"])
@pytest.mark.parametrize(
    "broker", [three_brokers, pytest.param(kafkas_broker, marks=pytest.mark.every_tool)], ids=["minikafka", "kafka"]
)
def test_members_change_their_protocol_one_by_one_and_back(
    broker: Callable[[], AbstractContextManager[str]], strategy: str, tmp_path: Path
):
    """Each record is read once, each offset is committed, and the group has the types and members that Kafka describes."""
    with broker() as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE_S)
        with filling(bootstrap) as producing, members_of(bootstrap, strategy, tmp_path) as members:
            for commands, expected in STEPS:
                for each in commands:
                    members.send(each)
                members.until(f"the group is {expected}", lambda expected=expected: members.describe() == expected)
                written = set(producing.written)
                members.until("all is read", lambda written=written: written <= members.reads.keys())
            producing.end()
            assert not producing.errors, producing.errors
            members.until("the rest is read", lambda: producing.written <= members.reads.keys())
            members.send("leave e")
            # Java's consumer calls its partitions lost, and does not commit them, if it is closed while its group rebalances.
            members.until("f is alone", lambda: members.describe() == "Classic f=-")
            members.send("leave f")
            members.until("all have left", lambda: members.left == set("abcdef"))
            assert not members.failures, members.failures
        assert members.reads.keys() == producing.written
        assert {place: count for place, count in members.reads.items() if count > 1} == {}
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for partition, offset in producing.written:
            ends[partition] = max(ends[partition], offset + 1)
        assert committed(bootstrap) == ends
