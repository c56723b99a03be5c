"""minikafka beside Apache Kafka: the same bytes to both, in turn, on one machine, in one run.

Both have as many brokers, replicas and in-sync replicas, temporary folders on one file system, no flush of their own,
and check every batch's CRC. Both clients are raw and of one class. A Java is fast once its compilers have seen the work:
each side gets thousands of small requests, a gigabyte of large ones, and a round or two of each row before anything counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psutil

from minikafka.world.real import real_world
from tests.bench import failover_rows, kafka_processes
from tests.bench.arms import Ours, cluster
from tests.bench.frame_rows import confluent_rows, frame_rows
from tests.bench.java_tool_rows import java_tool_rows
from tests.bench.kafka_arm import Theirs, kafka
from tests.bench.kafka_client_rows import client_rows
from tests.bench.kafka_jars import NoKafka
from tests.bench.kafka_processes import Java
from tests.bench.latency_rows import two_rows
from tests.bench.loads import CONCURRENCY, PARTITIONS, SMALL_LANES, Arm, OneAtATime, Reading, SmallRequests, Writing
from tests.bench.measure import KAFKA, Row, closed_loop, in_turn
from tests.bench.rows import BATCH_SIZES, KIB, batch_of, records_in, small_batch

WARM_UP_LANES = 8
CLAIMED = 1.0
"""The floor of the rows in which we say that we are ahead; the others are shown without one."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done."""

    rounds: int
    megabytes: int
    client_megabytes: int
    latencies: int
    requests: int
    warm_up: int
    """Small requests before anything else."""
    warm_up_rounds: int
    """Rounds of the largest batches after them: a gigabyte touches every page of Kafka's heap."""
    starts: int
    failovers: int


QUICK = Effort(
    rounds=2,
    megabytes=60,
    client_megabytes=20,
    latencies=200,
    requests=3_000,
    warm_up=3_000,
    warm_up_rounds=2,
    starts=1,
    failovers=1,
)
WHOLE = Effort(
    rounds=5,
    megabytes=160,
    client_megabytes=60,
    latencies=1_000,
    requests=20_000,
    warm_up=20_000,
    warm_up_rounds=7,
    starts=3,
    failovers=3,
)


@dataclass(frozen=True)
class Both:
    """A cluster of ours and one of Kafka's, each with its client."""

    ours: Ours
    kafka: Theirs
    brokers: int

    @property
    def arms(self) -> tuple[Arm, Arm]:
        return self.ours, self.kafka


@contextlib.asynccontextmanager
async def both(java: Java, brokers: int) -> AsyncIterator[Both]:
    """Start both sides, each with a topic to warm up with, and all replicas in sync."""
    async with cluster(brokers) as running, real_world() as real, kafka(java, brokers) as theirs:
        sides = Both(Ours(real.network, running), theirs, brokers)
        for arm in sides.arms:
            await arm.create("warm", brokers)
        await theirs.whole("warm", brokers)
        yield sides


async def kafka_rows(effort: Effort) -> list[Row]:
    """All rows; a sentence and no row without a Java or the jars."""
    try:
        java = await asyncio.to_thread(kafka_processes.find)
    except NoKafka as error:
        sys.stderr.write(f"Apache Kafka is left out: {error}\n")
        return []
    rows = []
    async with both(java, 1) as sides:
        rows += await _with_one_broker(sides, effort)
    async with both(java, 3) as sides:
        rows += await _with_three_brokers(java, sides, effort)
    for brokers in (1, 3):
        rows.append(await _start_row(java, brokers, effort.starts))
    return [dataclasses.replace(row, beside=f"{KAFKA} {java.version}") for row in rows]


async def _with_one_broker(sides: Both, effort: Effort) -> list[Row]:
    idle = await _memory_row(sides, "idle broker")
    await _warm_up(sides, 1, effort)
    rows = await _produce_rows(sides, 1, effort)
    rows.append(await _fetch_row(sides, effort))
    rows += await _latency_rows(sides, "acks=1 RF 1", 1, effort)
    rows.append(await _rate_row(sides, "acks=1 RF 1", 1, effort))
    rows += await _frame_rows(sides, 1, effort)
    rows += await client_rows(
        sides.ours, sides.kafka, sides.ours.running.bootstrap, rounds=effort.rounds, megabytes=effort.client_megabytes
    )
    return [*rows, idle, await _memory_row(sides, "broker after these rows")]


async def _with_three_brokers(java: Java, sides: Both, effort: Effort) -> list[Row]:
    await _warm_up(sides, -1, effort)
    rows = await _produce_rows(sides, -1, effort)
    rows += await _latency_rows(sides, "acks=all RF 3", -1, effort)
    rows.append(await _rate_row(sides, "acks=all RF 3", -1, effort))
    rows += await _frame_rows(sides, -1, effort)
    rows += await confluent_rows(
        sides.ours, sides.kafka, sides.brokers, rounds=effort.rounds, megabytes=effort.client_megabytes
    )
    rows += await java_tool_rows(
        java,
        sides.ours,
        sides.kafka,
        sides.brokers,
        rounds=effort.rounds,
        megabytes=effort.client_megabytes,
        latencies=effort.latencies,
    )
    return [*rows, *await _failover_rows(sides, effort.failovers)]


async def _warm_up(sides: Both, acks: int, effort: Effort) -> None:
    """Small requests, written and read, until a Java has compiled what they need; then large ones."""
    batch = batch_of(KIB + 16)
    for arm in sides.arms:
        await closed_loop(
            lambda lane: arm.produce("warm", lane % PARTITIONS, batch, acks),  # noqa: B023 - called in this round
            count=effort.warm_up,
            concurrency=WARM_UP_LANES,
        )
        await closed_loop(
            lambda lane: arm.fetch("warm", lane % PARTITIONS, 0, len(batch)),  # noqa: B023
            count=effort.warm_up // 4,
            concurrency=WARM_UP_LANES,
        )
        writing = _writing(sides, arm, batch_of(BATCH_SIZES[-1]), acks, effort)
        for _ in range(effort.warm_up_rounds):
            await writing()


def _writing(sides: Both, arm: Arm, batch: bytes, acks: int, effort: Effort) -> Writing:
    return Writing(arm, batch, replicas=sides.brokers, acks=acks, count=effort.megabytes * 1_000_000 // len(batch))


async def _produce_rows(sides: Both, acks: int, effort: Effort) -> list[Row]:
    rows = []
    for size in BATCH_SIZES:
        batch = batch_of(size)
        ours, theirs = (_writing(sides, arm, batch, acks, effort) for arm in sides.arms)
        pair = await in_turn(ours, theirs, rounds=effort.rounds, warm_up=2)
        note = f"brokers' CPU {ours.cpu_ms_per_mb:.2f} / {theirs.cpu_ms_per_mb:.2f} ms/MB"
        name = f"produce acks={'all' if acks == -1 else acks} RF {sides.brokers}, {size // KIB} KiB, c={CONCURRENCY}"
        rows.append(Row(name, "MB/s", pair.ours, pair.bare, pair.ratio, CLAIMED, note=note))
    return rows


async def _fetch_row(sides: Both, effort: Effort) -> Row:
    size = BATCH_SIZES[-1]
    batch = batch_of(size)
    arms = [Reading(arm, "f", batch, records_in(size), count=2 * effort.megabytes) for arm in sides.arms]
    for arm in arms:
        await arm.fill()
    ours, theirs = arms
    pair = await in_turn(ours, theirs, rounds=effort.rounds, warm_up=2)
    note = f"brokers' CPU {ours.cpu_ms_per_mb:.2f} / {theirs.cpu_ms_per_mb:.2f} ms/MB"
    return Row(f"fetch {size // KIB} KiB, c={CONCURRENCY}", "MB/s", pair.ours, pair.bare, pair.ratio, note=note)


async def _latency_rows(sides: Both, what: str, acks: int, effort: Effort) -> list[Row]:
    batch = batch_of(KIB + 16)
    for arm in sides.arms:
        await arm.create("l", sides.brokers, 1)
    ours, theirs = (OneAtATime(arm, "l", batch, acks=acks, count=effort.latencies) for arm in sides.arms)
    rows = await two_rows(f"{what}, one 1 KiB record, c=1", ours, theirs, rounds=effort.rounds, ceiling=None)
    note = f"brokers' CPU {ours.cpu_us:.0f} / {theirs.cpu_us:.0f} µs a record"
    return [dataclasses.replace(row, note=note) for row in rows]


async def _rate_row(sides: Both, what: str, acks: int, effort: Effort) -> Row:
    batch = small_batch(100)
    for arm in sides.arms:
        await arm.create("r", sides.brokers)
    ours, theirs = (SmallRequests(arm, "r", batch, acks=acks, count=effort.requests) for arm in sides.arms)
    pair = await in_turn(ours, theirs, rounds=effort.rounds, warm_up=2)
    note = f"brokers' CPU {ours.cpu_us:.0f} / {theirs.cpu_us:.0f} µs a request"
    name = f"small requests, {what}, 100 B, c={SMALL_LANES}"
    return Row(name, "requests/s", pair.ours, pair.bare, pair.ratio, note=note)


async def _frame_rows(sides: Both, acks: int, effort: Effort) -> list[Row]:
    return await frame_rows(
        sides.ours,
        sides.kafka,
        sides.brokers,
        acks=acks,
        rounds=effort.rounds,
        megabytes=effort.megabytes,
        latencies=effort.latencies,
        requests=effort.requests,
    )


async def _memory_row(sides: Both, what: str) -> Row:
    """Resident memory of the first broker; with files that it has mapped, which are the page cache's."""
    await asyncio.sleep(failover_rows.SETTLE_S)
    ours, theirs = (psutil.Process(arm.pids[0]).memory_info().rss / 1e6 for arm in sides.arms)
    name = f"resident memory, {what}"
    note = f"Kafka's heap: {' '.join(kafka_processes.HEAP)}"
    return Row(name, "MB", ours, theirs, ours / theirs, CLAIMED, at_least=False, note=note, same_work=False)


# ---- start and failover ----------------------------------------------------------------------------------------------


async def _start_row(java: Java, brokers: int, rounds: int) -> Row:
    """From starting formatted brokers to the first acknowledged record."""

    async def ours() -> float:
        began = time.perf_counter()
        async with cluster(brokers) as running, real_world() as real:
            return await _first_record(Ours(real.network, running), brokers, began)

    async def theirs() -> float:
        async with contextlib.AsyncExitStack() as stack:
            running = kafka_processes.KafkaCluster(java, brokers)
            stack.push_async_callback(running.close)
            await running.format()
            began = time.perf_counter()
            await running.start()
            arm = Theirs(running)
            stack.callback(arm.connections.close)
            return await _first_record(arm, brokers, began)

    pair = await in_turn(ours, theirs, rounds=rounds, warm_up=0)
    name = f"start to first acknowledged record, {brokers} broker{'s' * (brokers > 1)}"
    note = "Kafka's folders are formatted before"
    return Row(name, "s", pair.ours, pair.bare, pair.ratio, CLAIMED, at_least=False, note=note)


async def _first_record(arm: Arm, brokers: int, began: float) -> float:
    await arm.create("s", brokers, 1)
    await arm.produce("s", 0, small_batch(100), -1)
    return time.perf_counter() - began


async def _failover_rows(sides: Both, rounds: int) -> list[Row]:
    """A leader that is killed, and one that is told to stop; settings are the defaults, a session lasts 9 s."""
    rows = []
    for (name, hurt), number in zip(failover_rows.HURTS, (signal.SIGKILL, signal.SIGTERM), strict=True):
        topics = itertools.count()

        async def ours() -> float:
            return await failover_rows.failover(sides.ours.running, f"{number.name}{next(topics)}", hurt)  # noqa: B023

        async def theirs() -> float:
            return await _kafka_failover(sides.kafka, f"{number.name}{next(topics)}", number)  # noqa: B023

        pair = await in_turn(ours, theirs, rounds=rounds, warm_up=0)
        rows.append(Row(name, "s", pair.ours, pair.bare, pair.ratio, CLAIMED, at_least=False, note="default settings"))
    return rows


async def _kafka_failover(theirs: Theirs, topic: str, number: signal.Signals) -> float:
    """The same as ``failover_rows.failover``, by a raw client that asks for the new leader every few milliseconds."""
    await theirs.create(topic, len(theirs.pids), 1)
    batch = small_batch(100)
    await theirs.produce_anyhow(topic, batch)
    broker = theirs.running.brokers[await theirs.leader_of(topic)]
    longest, began = 0.0, time.perf_counter()
    ending = asyncio.ensure_future(broker.signalled(number))
    if number is signal.SIGKILL:
        await ending
        await theirs.produce_anyhow(topic, batch)
        longest = time.perf_counter() - began
    while not ending.done():
        began = time.perf_counter()
        await theirs.produce_anyhow(topic, batch)
        longest = max(longest, time.perf_counter() - began)
    await ending
    await broker.start()
    await theirs.whole(topic, len(theirs.pids))
    await asyncio.sleep(failover_rows.SETTLE_S)
    return longest
