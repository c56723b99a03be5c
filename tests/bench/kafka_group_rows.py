"""Groups beside Apache Kafka: how long a rebalance takes with each protocol, and a loop that reads, transforms and writes.

Three brokers, three replicas, default settings. librdkafka drives both sides, so that only the brokers differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from minikafka.groups.limits import GroupSettings
from tests.bench import kafka_processes
from tests.bench.kafka_jars import NoKafka
from tests.bench.kafka_rows import both
from tests.bench.latency_rows import two_rows
from tests.bench.measure import KAFKA, Row, Run, in_turn

if TYPE_CHECKING:
    from confluent_kafka import Consumer

BROKERS, MEMBERS, PARTITIONS = 3, 50, 200
GROUP_TOPIC, INPUT, OUTPUT = "rebalanced", "loop-input", "loop-output"
NOTES = {
    "classic": "members heartbeat every 3 s, librdkafka's default",
    "consumer": f"members heartbeat every {GroupSettings().consumer_interval_ms(MEMBERS) / 1000:g} s, which our coordinator "
    "chooses for their number; Kafka's members every 5 s, its default",
}
"""By protocol: what decides about most of the time."""
PATIENCE_S = 120.0
_NUMBERS = itertools.count()
"""Each run has names of its own."""


class _Group:
    """Members that one thread polls in turn."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{protocol}-{next(_NUMBERS)}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        self._members: list[Consumer] = []
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._polls = threading.Thread(target=self._poll)
        self._polls.start()

    def _poll(self) -> None:
        while not self._ends.wait(0.002):
            with self._lock:
                for each in self._members:
                    each.poll(0)

    def join(self, count: int) -> None:
        import confluent_kafka

        for _ in range(count):
            member = confluent_kafka.Consumer(self._settings)
            member.subscribe([GROUP_TOPIC])
            with self._lock:
                self._members.append(member)

    def leave(self, count: int) -> None:
        for _ in range(count):
            with self._lock:
                member = self._members.pop()
            member.close()

    def settle(self) -> None:
        """Wait until every partition has one owner, and every member its share."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_settled():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the group does not settle: {self._counts()}")
            time.sleep(0.005)

    def _counts(self) -> list[int]:
        with self._lock:
            return [len(each.assignment()) for each in self._members]

    def _is_settled(self) -> bool:
        counts = self._counts()
        return sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1

    def grow(self) -> float:
        """One member fewer, and when that has settled, the time in ms that one more takes."""
        self.leave(1)
        self.settle()
        began = time.perf_counter()
        self.join(1)
        self.settle()
        return (time.perf_counter() - began) * 1000

    def end(self) -> None:
        self.leave(len(self._members))
        self._ends.set()
        self._polls.join()


@contextlib.asynccontextmanager
async def _group(bootstrap: str, protocol: str) -> AsyncIterator[_Group]:
    group = _Group(bootstrap, protocol)
    try:
        await asyncio.to_thread(group.join, MEMBERS)
        await asyncio.to_thread(group.settle)
        yield group
    finally:
        await asyncio.to_thread(group.end)


class _Loop:
    """One record at a time: written, read and transformed in a transaction with its offset, and read again."""

    def __init__(self, bootstrap: str) -> None:
        import confluent_kafka

        name = f"bench-loop-{next(_NUMBERS)}"
        names = {"bootstrap.servers": bootstrap, "log_level": 0}
        reads = {**names, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._confluent: Any = confluent_kafka
        self._source = confluent_kafka.Producer({**names, "linger.ms": 0})
        self._reader = confluent_kafka.Consumer({**reads, "group.id": name, "auto.offset.reset": "latest"})
        self._writer = confluent_kafka.Producer({**names, "transactional.id": name, "linger.ms": 0})
        self._last = confluent_kafka.Consumer({**reads, "group.id": f"{name}-last", "auto.offset.reset": "latest"})

    def start(self) -> None:
        self._writer.init_transactions(PATIENCE_S)
        for consumer, topic in ((self._reader, INPUT), (self._last, OUTPUT)):
            place = self._confluent.TopicPartition(topic, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=PATIENCE_S)
            consumer.assign([self._confluent.TopicPartition(topic, 0, end)])

    def run(self, count: int) -> Run:
        seconds, began = [], time.perf_counter()
        for number in range(count):
            sent_at = time.perf_counter()
            self._source.produce(INPUT, b"%d" % number, partition=0)
            self._source.poll(0)
            found = self._read(self._reader)
            self._writer.begin_transaction()
            self._writer.produce(OUTPUT, found.value() + b"!", partition=0)
            ends = [self._confluent.TopicPartition(INPUT, 0, found.offset() + 1)]
            self._writer.send_offsets_to_transaction(ends, self._reader.consumer_group_metadata(), PATIENCE_S)
            self._writer.commit_transaction(PATIENCE_S)
            self._read(self._last)
            seconds.append(time.perf_counter() - sent_at)
        return Run(count, time.perf_counter() - began, tuple(seconds))

    @staticmethod
    def _read(consumer: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = consumer.poll(1.0)
            if found is not None and found.error() is None:
                return found
        raise RuntimeError("a record does not arrive")

    def end(self) -> None:
        self._reader.close()
        self._last.close()


async def kafka_loop_rows(*, rounds: int, count: int) -> list[Row]:
    """The loop that reads, transforms and writes, ``count`` records a round; none without Kafka or librdkafka."""
    return await _beside_kafka({INPUT: 1, OUTPUT: 1}, partial(_loop_rows, rounds=rounds, count=count))


async def kafka_rebalance_rows(*, rounds: int) -> list[Row]:
    """A rebalance with each protocol; none without Kafka or librdkafka."""

    async def measured(ours: str, theirs: str) -> list[Row]:
        return [await _rebalance_row(ours, theirs, protocol, rounds) for protocol in ("classic", "consumer")]

    return await _beside_kafka({GROUP_TOPIC: PARTITIONS}, measured)


async def _beside_kafka(topics: dict[str, int], measured: Callable[[str, str], Awaitable[list[Row]]]) -> list[Row]:
    """Measure with our bootstrap and Kafka's; both clusters have the topics, by their number of partitions."""
    if importlib.util.find_spec("confluent_kafka") is None:
        sys.stderr.write("groups beside Kafka are left out: confluent-kafka is not installed\n")
        return []
    try:
        java = await asyncio.to_thread(kafka_processes.find)
    except NoKafka as error:
        sys.stderr.write(f"groups beside Kafka are left out: {error}\n")
        return []
    async with both(java, BROKERS) as sides:
        for topic, partitions in topics.items():
            for arm in sides.arms:
                await arm.create(topic, BROKERS, partitions)
            await sides.kafka.whole(topic, BROKERS)
        rows = await measured(sides.ours.running.bootstrap, sides.kafka.running.bootstrap)
    return [replace(row, beside=f"{KAFKA} {java.version}") for row in rows]


async def _rebalance_row(ours: str, theirs: str, protocol: str, rounds: int) -> Row:
    name = f"confluent-kafka rebalance, {MEMBERS} members, {PARTITIONS} partitions, {protocol} protocol"
    async with _group(ours, protocol) as mine, _group(theirs, protocol) as other:
        pair = await in_turn(lambda: asyncio.to_thread(mine.grow), lambda: asyncio.to_thread(other.grow), rounds=rounds)
    return Row(name, "ms", pair.ours, pair.bare, pair.ratio, at_least=False, note=NOTES[protocol])


async def _loop_rows(ours: str, theirs: str, *, rounds: int, count: int) -> list[Row]:
    loops = [_Loop(each) for each in (ours, theirs)]
    try:
        for each in loops:
            await asyncio.to_thread(each.start)
        mine, other = (partial(asyncio.to_thread, each.run, count) for each in loops)
        name = f"confluent-kafka read, transform and write RF {BROKERS}, from the input to the output"
        return await two_rows(name, mine, other, rounds=rounds, ceiling=None)
    finally:
        for each in loops:
            each.end()
