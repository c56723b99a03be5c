"""Transactions beside Apache Kafka: how many a second, how long a commit takes, and what large ones carry.

Three brokers, three replicas. librdkafka drives both sides, so that only the brokers differ; then our producer drives
ours, with librdkafka on Kafka's side. The time of a commit begins when every record is acknowledged.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from minikafka import Producer
from tests.bench import kafka_processes
from tests.bench.kafka_jars import NoKafka
from tests.bench.kafka_rows import both
from tests.bench.latency_rows import Measured
from tests.bench.measure import KAFKA, Row, Run, in_turn

BROKERS, PARTITIONS, TOPIC = 3, 10, "transactions"
LARGE = 1000
"""Records of a large transaction."""
VALUE = bytes(100)
PATIENCE_S = 60.0
WARM_UP = 2
"""Rounds that do not count."""
_NUMBERS = itertools.count()
"""Each run has a transactional id of its own."""


@dataclass(frozen=True, slots=True)
class Load:
    """``count`` transactions, each with ``records`` records to the partitions in turn."""

    count: int
    records: int


Drive = Callable[[Load], Measured]
"""A client of one cluster, which carries out a load."""


def by_confluent(bootstrap: str, load: Load) -> Measured:
    """A measurement with librdkafka's producer."""
    import confluent_kafka

    def run() -> Run:
        names = {"bootstrap.servers": bootstrap, "transactional.id": f"bench-{next(_NUMBERS)}", "linger.ms": 0}
        producer: Any = confluent_kafka.Producer(names)
        producer.init_transactions(PATIENCE_S)
        commits, began = [], time.perf_counter()
        for _ in range(load.count):
            producer.begin_transaction()
            for number in range(load.records):
                producer.produce(TOPIC, VALUE, partition=number % PARTITIONS)
            producer.flush(PATIENCE_S)
            flushed_at = time.perf_counter()
            producer.commit_transaction(PATIENCE_S)
            commits.append(time.perf_counter() - flushed_at)
        return Run(load.count, time.perf_counter() - began, tuple(commits))

    return lambda: asyncio.to_thread(run)


def by_ours(bootstrap: str, load: Load) -> Measured:
    """The same with our producer."""

    async def run() -> Run:
        async with Producer(bootstrap_servers=bootstrap, transactional_id=f"bench-{next(_NUMBERS)}") as producer:
            commits, began = [], time.perf_counter()
            for _ in range(load.count):
                await producer.begin_transaction()
                for number in range(load.records):
                    await producer.send(TOPIC, VALUE, partition=number % PARTITIONS)
                await producer.flush()
                flushed_at = time.perf_counter()
                await producer.commit_transaction()
                commits.append(time.perf_counter() - flushed_at)
            return Run(load.count, time.perf_counter() - began, tuple(commits))

    return run


async def transaction_rows(*, rounds: int, count: int, large: int) -> list[Row]:
    """All rows, of ``count`` small and ``large`` large transactions a round; none without Kafka or librdkafka."""
    if importlib.util.find_spec("confluent_kafka") is None:
        sys.stderr.write("transactions beside Kafka are left out: confluent-kafka is not installed\n")
        return []
    try:
        java = await asyncio.to_thread(kafka_processes.find)
    except NoKafka as error:
        sys.stderr.write(f"transactions beside Kafka are left out: {error}\n")
        return []
    loads = Load(count, PARTITIONS), Load(large, LARGE)
    async with both(java, BROKERS) as sides:
        for arm in sides.arms:
            await arm.create(TOPIC, BROKERS, PARTITIONS)
        await sides.kafka.whole(TOPIC, BROKERS)
        mine, theirs = sides.ours.running.bootstrap, sides.kafka.running.bootstrap
        rows = await _rows("confluent-kafka", partial(by_confluent, mine), partial(by_confluent, theirs), loads, rounds)
        others = await _rows("producer", partial(by_ours, mine), partial(by_confluent, theirs), loads, rounds)
    rows += [replace(row, note="Kafka's by confluent-kafka") for row in others]
    return [replace(row, beside=f"{KAFKA} {java.version}") for row in rows]


async def _rows(client: str, ours: Drive, theirs: Drive, loads: tuple[Load, Load], rounds: int) -> list[Row]:
    small, large = loads
    name = f"{client} transactions RF {BROKERS}, a record in each of {PARTITIONS} partitions"
    commits: tuple[list[float], list[float]] = ([], [])
    speed = await _speed_row(name, "transactions/s", (ours(small), theirs(small)), rounds, 1, commits)
    mine, others = (times[WARM_UP:] for times in commits)
    ratio = statistics.median(one / other for one, other in zip(mine, others, strict=True))
    medians = statistics.median(mine) * 1e6, statistics.median(others) * 1e6
    p50 = Row(f"p50 of commit, {name}", "µs", *medians, ratio, at_least=False)
    name = f"{client} transactions RF {BROKERS} of {LARGE:,} records, {len(VALUE)} B"
    bulk = await _speed_row(name, "records/s", (ours(large), theirs(large)), rounds, LARGE, ([], []))
    return [speed, p50, bulk]


async def _speed_row(
    name: str,
    unit: str,
    arms: tuple[Measured, Measured],
    rounds: int,
    weight: int,
    commits: tuple[list[float], list[float]],
) -> Row:
    """Transactions a second, each of ``weight``; the median time of a commit in each round goes into ``commits``."""

    async def speed(side: int) -> float:
        run = await arms[side]()
        commits[side].append(run.percentile(0.5))
        return weight * run.per_second

    pair = await in_turn(lambda: speed(0), lambda: speed(1), rounds=rounds, warm_up=WARM_UP)
    return Row(name, unit, pair.ours, pair.bare, pair.ratio)
