"""The rows: what a broker or a producer does beside a bare aiohttp server and client that do the same transfer.

Before a throughput row is measured, a round of it has been written and deleted: new pages of a virtual machine's page
cache cost ten times what pages cost that were used before. Each round writes to topics of its own and deletes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import aiohttp
import psutil
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from minikafka import Producer
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import Record, build_batch
from minikafka.wire.validate import check_records
from minikafka.world.real import real_world
from tests.bench.arms import Bare, Ours, bare_server, cluster
from tests.bench.loads import CONCURRENCY, Reading, Writing
from tests.bench.measure import CpuMeter, Row, closed_loop, in_turn

KIB = 1024
BATCH_SIZES = (256 * KIB, 1000 * KIB)


@dataclass(frozen=True)
class Both:
    """A running cluster and a running bare server, each with its client."""

    ours: Ours
    bare: Bare
    bare_pid: int


@contextlib.asynccontextmanager
async def both(brokers: int) -> AsyncIterator[Both]:
    """Start both sides."""
    async with (
        bare_server() as (port, bare_pid),
        cluster(brokers) as running,
        aiohttp.ClientSession() as session,
        real_world() as real,
    ):
        yield Both(Ours(real.network, running), Bare(session, port), bare_pid)


def records_in(size: int) -> int:
    """How many records :func:`batch_of` puts into a batch."""
    return size // (KIB + 16)


def batch_of(size: int) -> bytes:
    """A batch of about ``size`` bytes of 1 KiB records."""
    now_ms = time.time_ns() // 1_000_000
    return build_batch([Record(0, now_ms, 0, None, bytes(KIB)) for _ in range(records_in(size))])


def small_batch(size: int) -> bytes:
    """One record with a value of ``size`` bytes."""
    return build_batch([Record(0, time.time_ns() // 1_000_000, 0, None, bytes(size))])


async def produce_rows(brokers: int, *, acks: int, floor: float, rounds: int, megabytes: int) -> list[Row]:
    """Throughput of prepared batches, four in flight on four partitions."""
    rows = []
    async with both(brokers) as sides:
        for size in BATCH_SIZES:
            batch = batch_of(size)
            count = megabytes * 1_000_000 // len(batch)
            ours = Writing(sides.ours, batch, replicas=brokers, acks=acks, count=count)
            bare = Carried(sides, partial(sides.bare.post, batch), len(batch), count)
            pair = await in_turn(ours, bare, rounds=rounds, warm_up=2)
            rows.append(
                Row(
                    f"produce acks={'all' if acks == -1 else acks} RF {brokers}, {size // KIB} KiB, c={CONCURRENCY}",
                    "MB/s",
                    pair.ours,
                    pair.bare,
                    pair.ratio,
                    floor,
                    note=f"servers' CPU {ours.cpu_ms_per_mb:.2f} / {bare.cpu_ms_per_mb:.2f} ms/MB",
                )
            )
    return rows


def batch_of_values(size: int, value_size: int, *, varies: bool) -> bytes:
    """A batch of about ``size`` bytes of records whose values have ``value_size`` bytes, or half to one and a half."""
    random = Random(size + value_size)
    now_ms = time.time_ns() // 1_000_000
    records, held, number = [], 0, 0
    while held < size - 2 * value_size:
        length = random.randint(value_size // 2, value_size * 3 // 2) if varies else value_size
        records.append(Record(0, now_ms + number // 10, 0, None, bytes(length)))
        held += length + 16
        number += 1
    return build_batch(records)


VALIDATION_FLOOR = 0.95
"""With compiled rules; without them records of different sizes take twenty times as long."""


async def validation_rows(*, rounds: int, megabytes: int) -> list[Row]:
    """Throughput of uncompressed batches with mk.validate.records beside another broker without, in turn.

    Two brokers run, and each batch goes to both: what a busy machine takes, it takes from both. Many short rounds: a few
    long ones differed by more than the validation costs.
    """
    rows = []
    rounds, megabytes = 3 * rounds, megabytes // 3
    async with cluster(1) as checking, cluster(1, {"mk.validate.records": "false"}) as trusting, real_world() as real:
        sides = Ours(real.network, checking), Ours(real.network, trusting)
        for value_size, varies in ((KIB, False), (100, False), (KIB, True), (100, True)):
            for size in BATCH_SIZES:
                batch = batch_of_values(size, value_size, varies=varies)
                count = megabytes * 1_000_000 // len(batch)
                ours, bare = (Writing(side, batch, replicas=1, acks=1, count=count) for side in sides)
                pair = await in_turn(ours, bare, rounds=rounds, warm_up=2)
                alone = validation_ms(batch) / (len(batch) / 1e6)
                kind = f"{value_size // 2} to {value_size * 3 // 2} B" if varies else f"{value_size} B"
                rows.append(
                    Row(
                        f"produce acks=1 RF 1, {size // KIB} KiB of {kind} records, validated",
                        "MB/s",
                        pair.ours,
                        pair.bare,
                        pair.ratio,
                        VALIDATION_FLOOR,
                        note=(
                            f"bare: mk.validate.records=false; half of {rounds} rounds' ratios are "
                            f"{pair.quartiles[0]:.3f} to {pair.quartiles[1]:.3f}; "
                            f"broker's CPU {ours.cpu_ms_per_mb:.2f} / {bare.cpu_ms_per_mb:.2f} ms/MB; the validation alone "
                            f"{alone:.3f} ms/MB, {alone * pair.bare / 10:.1f} % of the time that a MB takes"
                        ),
                        same_work=False,
                    )
                )
    return rows


def validation_ms(batch: bytes) -> float:
    """CPU of one validation in milliseconds, in the best of 20 turns: the rounds of a loaded machine differ by more."""
    read = RecordBatch.of(batch)
    turns = []
    for _ in range(20):
        begun = time.process_time()
        for _ in range(20):
            check_records(read, len(batch))
        turns.append((time.process_time() - begun) * 1000 / 20)
    return min(turns)


async def fetch_rows(*, floor: float, rounds: int, count: int) -> list[Row]:
    """A consumer's fetch of about 1 MiB of records that are in no memory tail, four in flight."""
    size = BATCH_SIZES[-1]
    batch = batch_of(size)
    async with both(1) as sides:
        ours = Reading(sides.ours, "f", batch, records_in(size), count=count)
        await ours.fill()
        bare = Carried(sides, lambda: sides.bare.get(len(batch)), len(batch), count)
        pair = await in_turn(ours, bare, rounds=rounds)
    name = f"fetch {size // KIB} KiB, c={CONCURRENCY}"
    note = f"servers' CPU {ours.cpu_ms_per_mb:.2f} / {bare.cpu_ms_per_mb:.2f} ms/MB"
    return [Row(name, "MB/s", pair.ours, pair.bare, pair.ratio, floor, note=note)]


class Carried:
    """Bodies to or from the bare server, four in flight: MB/s."""

    def __init__(self, sides: Both, step: Callable[[], Awaitable[None]], size: int, count: int) -> None:
        self._pid = sides.bare_pid
        self._step = step
        self._count = count
        self._megabytes = count * size / 1e6
        self._cpu: list[float] = []

    @property
    def cpu_ms_per_mb(self) -> float:
        """The server's CPU, of the round that took the least."""
        return min(self._cpu)

    async def __call__(self) -> float:
        meter = CpuMeter([self._pid])
        run = await closed_loop(lambda _: self._step(), count=self._count, concurrency=CONCURRENCY)
        self._cpu.append(meter.lap() * 1000 / self._megabytes)
        return self._megabytes / run.seconds


async def producer_rows(*, count: int, rounds: int) -> list[Row]:
    """Acknowledged records per second through one producer at 100 B, beside the codec building the same batches."""
    value = bytes(100)
    rows = []
    async with cluster(1) as running, real_world() as real:
        await Ours(real.network, running).create("p", 1, 1)
        async with Producer(bootstrap_servers=running.bootstrap) as producer:

            async def build() -> float:
                return _build_rate(value, count)

            async def through_send() -> float:
                sent = count // 10
                began = time.perf_counter()
                for _ in range(sent):
                    await producer.send("p", value)
                await producer.flush()
                return sent / (time.perf_counter() - began)

            async def through_batch_call() -> float:
                values = [value] * 10_000
                calls = max(1, count // len(values))
                began = time.perf_counter()
                for _ in range(calls):
                    await producer.send_many("p", values)
                await producer.flush()
                return calls * len(values) / (time.perf_counter() - began)

            for name, measured, floor in (
                ("send()", through_send, 0.02),
                ("send_many() of 10,000", through_batch_call, 0.25),
            ):
                pair = await in_turn(measured, build, rounds=rounds)
                note = "bare: the compiled codec's build rate"
                rows.append(
                    Row(f"producer {name}, 100 B", "records/s", pair.ours, pair.bare, pair.ratio, floor, note=note)
                )
    return rows


def _build_rate(value: bytes, count: int) -> float:
    """Records per second that the compiled codec puts into batches of 1,000."""
    began = time.perf_counter()
    for _ in range(max(1, count // 1000)):
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 30,
        )
        append = builder.append
        for offset in range(1000):
            append(offset, 1_700_000_000_000, None, value, [])
        builder.build()
    return max(1, count // 1000) * 1000 / (time.perf_counter() - began)


async def start_rows(*, rounds: int) -> list[Row]:
    """From starting the processes to the first acknowledged record, beside a bare server's first answer."""

    async def ours(brokers: int) -> float:
        began = time.perf_counter()
        async with cluster(brokers) as running, real_world() as real:
            await Ours(real.network, running).create("s", brokers, 1)
            async with Producer(bootstrap_servers=running.bootstrap) as producer:
                await producer.send_and_wait("s", b"first")
                return time.perf_counter() - began

    async def bare() -> float:
        began = time.perf_counter()
        async with bare_server() as (port, _), aiohttp.ClientSession() as session:
            await Bare(session, port).post(b"first")
            return time.perf_counter() - began

    rows = []
    for voters in (1, 3):
        pair = await in_turn(lambda voters=voters: ours(voters), bare, rounds=rounds, warm_up=0)  # type: ignore[misc]
        name = f"start to first acknowledged record, {voters} voter{'s' * (voters > 1)}"
        rows.append(Row(name, "s", pair.ours, pair.bare, pair.ratio, at_least=False))
    return rows


async def memory_rows(*, ceiling: float) -> list[Row]:
    """Resident memory of an idle broker beside that of the bare server after its first request."""
    async with both(1) as sides:
        await sides.bare.post(b"first")
        await asyncio.sleep(2.0)
        figure = psutil.Process(sides.ours.pids[0]).memory_info().rss / 1e6
        yardstick = psutil.Process(sides.bare_pid).memory_info().rss / 1e6
    return [
        Row(
            "resident memory, idle broker",
            "MB",
            figure,
            yardstick,
            figure / yardstick,
            ceiling,
            at_least=False,
            same_work=False,
        )
    ]
