"""Transactions beside Apache Kafka: how many a second, how long a commit takes, and what large ones carry.

Three brokers, three replicas. librdkafka drives both sides, so that only the brokers differ; then our producer drives
ours, with librdkafka on Kafka's side. The time of a commit begins when every record is acknowledged.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from minikafka import Producer
from tests.bench import kafka_processes
from tests.bench.kafka_jars import NoKafka
from tests.bench.latency_rows import two_rows
from tests.bench.measure import KAFKA, Row, Run, in_turn

TOPIC, PARTITIONS = "transactions", 10
LARGE = 1000
"""Records of a large transaction."""
VALUE = bytes(100)
PATIENCE_S = 60.0
_NUMBERS = itertools.count()
"""Each run has a transactional id of its own."""


@dataclass(frozen=True, slots=True)
class Load:
    """``count`` transactions, each with ``records`` records to the partitions in turn."""

    count: int
    records: int


def by_confluent(bootstrap: str, load: Load) -> Callable[[], Awaitable[Run]]:
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


def by_ours(bootstrap: str, load: Load) -> Callable[[], Awaitable[Run]]:
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
    # kafka_rows imports what a machine without Java need not have.
    from tests.bench.kafka_rows import both

    if importlib.util.find_spec("confluent_kafka") is None:
        sys.stderr.write("transactions beside Kafka are left out: confluent-kafka is not installed\n")
        return []
    try:
        java = await asyncio.to_thread(kafka_processes.find)
    except NoKafka as error:
        sys.stderr.write(f"transactions beside Kafka are left out: {error}\n")
        return []
    rows: list[Row] = []
    async with both(java, 3) as sides:
        for arm in sides.arms:
            await arm.create(TOPIC, 3, PARTITIONS)
        await sides.kafka.whole(TOPIC, 3)
        mine, theirs = sides.ours.running.bootstrap, sides.kafka.running.bootstrap
        for client, drive in (("confluent-kafka", by_confluent), ("producer", by_ours)):
            rows += await _rows(
                client,
                lambda load, drive=drive: (drive(mine, load), by_confluent(theirs, load)),
                rounds=rounds,
                loads=(Load(count, PARTITIONS), Load(large, LARGE)),
                note="" if drive is by_confluent else "Kafka's by confluent-kafka",
                beside=f"{KAFKA} {java.version}",
            )
    return rows


async def _rows(
    client: str,
    arms: Callable[[Load], tuple[Callable[[], Awaitable[Run]], Callable[[], Awaitable[Run]]]],
    *,
    rounds: int,
    loads: tuple[Load, Load],
    note: str,
    beside: str,
) -> list[Row]:
    small, large = loads
    name = f"{client} transactions RF 3, a record in each of {PARTITIONS} partitions"
    speed = await _per_second(arms(small), rounds, f"{name}", "transactions/s", 1)
    commit = (await two_rows(f"of commit, {name}", *arms(small), rounds=rounds, ceiling=None))[0]
    bulk = await _per_second(
        arms(large), rounds, f"{client} transactions RF 3, {LARGE:,} records of 100 B each", "records/s", large.records
    )
    return [replace(row, note=note, beside=beside) for row in (speed, commit, bulk)]
