"""Rows a second that Spark reads from a topic, beside what any Python source could reach in the same run.

The yardstick ("bare") of every row is tests/bench/constant.py. Local Parquet and a plain consumer read the same rows and
stand beside the same yardstick. All of it goes to the ``noop`` sink on ``local[2]``; brokers, JVM and Python workers
share the cores. A stream is measured by its micro-batches after the first (their ``triggerExecution``), as the first
one starts the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil

from minikafka import Consumer, Producer
from minikafka.spark.options import FETCH_SIZE
from minikafka.types import TopicPartition
from minikafka.world.real import real_world
from tests.bench.arms import Ours, cluster
from tests.bench.loads import PARTITIONS
from tests.bench.measure import Row, in_turn

ROOT = Path(__file__).parents[2]
FLOOR = 0.5
TRIGGERS = 4
SEND_COUNT = 10_000


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A topic full of equal rows, and the same rows as Parquet."""

    label: str
    value_size: int
    count: int

    @property
    def topic(self) -> str:
        return f"rows{self.value_size}"

    @property
    def per_fetch(self) -> int:
        return max(1, FETCH_SIZE // (self.value_size + 10))


class Reads:
    """The arms: each reads all rows once and tells rows a second."""

    def __init__(self, session: Any, bootstrap: str, rows: Rows, folder: Path) -> None:
        self._session = session
        self._bootstrap = bootstrap
        self._rows = rows
        self._parquet = str(folder / rows.topic)
        self._folder = folder
        self._checkpoints = 0

    def ours(self) -> float:
        return self._save(self._batch(self._session.read.format("minikafka")))

    def ceiling(self) -> float:
        return self._save(self._constant(self._session.read))

    def parquet(self) -> float:
        return self._save(self._session.read.parquet(self._parquet))

    def ours_streamed(self) -> float:
        reader = self._batch(self._session.readStream.format("minikafka").option("startingOffsets", "earliest"))
        return self._stream(reader)

    def ceiling_streamed(self) -> float:
        return self._stream(self._constant(self._session.readStream))

    def write_parquet(self) -> None:
        """The topic's rows as Spark writes them."""
        self._batch(self._session.read.format("minikafka")).write.mode("overwrite").parquet(self._parquet)

    def _batch(self, reader: Any) -> Any:
        reader = reader.option("kafka.bootstrap.servers", self._bootstrap).option("subscribe", self._rows.topic)
        return reader.option("maxOffsetsPerTrigger", str(self._per_trigger)).load()

    @property
    def _per_trigger(self) -> int:
        return self._rows.count // TRIGGERS

    def _constant(self, reader: Any) -> Any:
        rows = self._rows
        chosen = {
            "rows": rows.count,
            "tasks": PARTITIONS,
            "valueSize": rows.value_size,
            "rowsPerBatch": rows.per_fetch,
            "rowsPerTrigger": self._per_trigger,
        }
        return reader.format("constant").options(**{name: str(value) for name, value in chosen.items()}).load()

    def _save(self, frame: Any) -> float:
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return self._rows.count / (time.perf_counter() - began)

    def _stream(self, frame: Any) -> float:
        self._checkpoints += 1
        checkpoint = self._folder / f"checkpoint-{self._rows.topic}-{self._checkpoints}"
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        told = [each for each in query.recentProgress if each["numInputRows"]]
        count = sum(each["numInputRows"] for each in told)
        if count != self._rows.count:
            raise RuntimeError(f"{self._rows.count} rows were wanted, {count} came")
        return statistics.median(
            each["numInputRows"] * 1000 / each["durationMs"]["triggerExecution"] for each in told[1:]
        )


async def spark_rows(*, rounds: int, rows_100: int, rows_1k: int) -> list[Row]:
    """Batch and stream of 100 B and 1 KiB records; a sentence and no row without Spark."""
    if importlib.util.find_spec("pyspark") is None:
        sys.stderr.write(
            "spark is left out: pyspark is not installed; run `make bench`, or `pip install '.[spark]'` in a clone\n"
        )
        return []
    folder = Path(tempfile.mkdtemp(prefix="minikafka-bench-spark-"))
    session = await asyncio.to_thread(_session)
    try:
        async with cluster(1) as running, real_world() as real:
            done: list[Row] = []
            for rows in (
                Rows(label="100 B", value_size=100, count=rows_100),
                Rows(label="1 KiB", value_size=1024, count=rows_1k),
            ):
                await Ours(real.network, running).create(rows.topic, 1)
                await _fill(running.bootstrap, rows)
                done += await _rows_of(Reads(session, running.bootstrap, rows, folder), running.bootstrap, rows, rounds)
            return done
    finally:
        await asyncio.to_thread(session.stop)
        shutil.rmtree(folder)


def _session() -> Any:
    from minikafka.spark.session import open_session
    from tests.bench.constant import ConstantSource

    # Workers import this folder's modules, and have the allocator that workers have elsewhere.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        del os.environ[name]
    session = open_session("bench", "local[2]")
    session.dataSource.register(ConstantSource)
    return session


async def _fill(bootstrap: str, rows: Rows) -> None:
    """All rows, spread evenly; values that no encoding makes smaller, or Parquet would store nothing."""
    drawn = Random(0).randbytes(SEND_COUNT + rows.value_size)
    values = [drawn[start : start + rows.value_size] for start in range(SEND_COUNT)]
    async with Producer(bootstrap_servers=bootstrap, max_batch_size=256 * 1024) as producer:
        for number in range(rows.count // SEND_COUNT):
            await producer.send_many(rows.topic, values, partition=number % PARTITIONS)
        await producer.flush()


async def _rows_of(reads: Reads, bootstrap: str, rows: Rows, rounds: int) -> list[Row]:
    async def consumed() -> float:
        return await _consume(bootstrap, rows)

    await asyncio.to_thread(reads.write_parquet)
    arms = (
        (f"spark batch, {rows.label}", in_thread(reads.ours), reads.ceiling, FLOOR),
        (f"spark stream, {rows.label}", in_thread(reads.ours_streamed), reads.ceiling_streamed, FLOOR),
        (f"spark reads Parquet, {rows.label}", in_thread(reads.parquet), reads.ceiling, None),
        (f"plain consumer, {rows.label}", consumed, reads.ceiling, None),
    )
    done = []
    for name, measured, bare, floor in arms:
        ours, yardstick = Metered(measured, rows.count), Metered(in_thread(bare), rows.count)
        pair = await in_turn(ours, yardstick, rounds=rounds)
        note = f"bare: constant Arrow batches; CPU {ours.least_us:.2f} / {yardstick.least_us:.2f} µs a row"
        done.append(Row(name, "rows/s", pair.ours, pair.bare, pair.ratio, floor, note=note))
    return done


def in_thread(measured: Callable[[], float]) -> Callable[[], Awaitable[float]]:
    """A measurement that waits for the JVM, beside the loop that reads the brokers' output."""
    return lambda: asyncio.to_thread(measured)


class Metered:
    """A measurement, and the CPU time that this process and everything below it spent on a row, at its least."""

    def __init__(self, measured: Callable[[], Awaitable[float]], count: int) -> None:
        self._measured = measured
        self._count = count
        self.least_us = float("inf")

    async def __call__(self) -> float:
        before = _cpu_seconds()
        rate = await self._measured()
        spent = sum(after - before.get(process, 0.0) for process, after in _cpu_seconds().items())
        self.least_us = min(self.least_us, spent * 1e6 / self._count)
        return rate


def _cpu_seconds() -> dict[psutil.Process, float]:
    """JVM, workers, brokers and ourselves."""
    found = {}
    here = psutil.Process()
    for each in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[each] = sum(each.cpu_times()[:2])
    return found


async def _consume(bootstrap: str, rows: Rows) -> float:
    """One process with one consumer, every record an object."""
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(rows.topic, number) for number in range(PARTITIONS)])
        began = time.perf_counter()
        count = 0
        while count < rows.count:
            count += sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))
        return count / (time.perf_counter() - began)
