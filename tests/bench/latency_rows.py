"""How long one record takes: alone, and while others send; p50 and p99, and how many small requests go through.

Beside each a bare POST of the same bytes. Under load both sides carry the same stream of large bodies at a fixed pace,
which is far from what either could carry: a record waits behind others, not behind a queue that only grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from tests.bench.loads import PARTITIONS, SMALL_LANES, OneAtATime, SmallRequests
from tests.bench.measure import CpuMeter, Row, Run, Step, closed_loop, in_turn
from tests.bench.rows import KIB, Both, batch_of, both, small_batch

LOAD_MB_S = 20
LOAD_SIZE = 256 * KIB

Measured = Callable[[], Awaitable[Run]]


class Percentiles(NamedTuple):
    """Of one arm's rounds, in µs: the medians of its p50 and of its p99."""

    p50: float
    p99: float

    @classmethod
    def of(cls, runs: list[Run]) -> Percentiles:
        return cls(*(statistics.median(run.percentile(share) * 1e6 for run in runs) for share in (0.5, 0.99)))


async def two_rows(name: str, ours: Measured, bare: Measured, *, rounds: int, ceiling: float | None) -> list[Row]:
    """The rows p50 and p99 of two arms that are measured in turn; ``ceiling`` is the p50's."""
    runs: tuple[list[Run], list[Run]] = ([], [])

    async def p50_of(arm: Measured, kept: list[Run]) -> float:
        kept.append(await arm())
        return kept[-1].percentile(0.5)

    await in_turn(lambda: p50_of(ours, runs[0]), lambda: p50_of(bare, runs[1]), rounds=rounds)
    kept = tuple(each[1:] for each in runs)  # the first round was the warm-up
    medians = [Percentiles.of(each) for each in kept]
    rows = []
    for index, share in enumerate((0.5, 0.99)):
        ratio = statistics.median(
            a.percentile(share) / b.percentile(share) for a, b in zip(kept[0], kept[1], strict=True)
        )
        most = ceiling if share == 0.5 else None
        label = f"{Percentiles._fields[index]} {name}"
        rows.append(Row(label, "µs", medians[0][index], medians[1][index], ratio, most, at_least=False))
    return rows


async def latency_rows(*, ceiling: float, rounds: int, count: int) -> list[Row]:
    """One 1 KiB record at a time, with nothing else to do."""
    rows = []
    async with both(3) as sides:
        for name, replicas, acks, most in (("acks=all RF 3", 3, -1, ceiling), ("acks=1 RF 1", 1, 1, None)):
            topic = f"l{replicas}"
            await sides.ours.create(topic, replicas, 1)
            ours, bare = one_at_a_time(sides, topic, acks, count)
            rows += await two_rows(f"{name}, one 1 KiB record, c=1", ours, bare, rounds=rounds, ceiling=most)
    return rows


async def load_rows(*, rounds: int, count: int) -> list[Row]:
    """The same while others send 20 MB/s in batches of 256 KiB, acks=all."""
    async with both(3) as sides:
        await sides.ours.create("l", 3, 1)
        await sides.ours.create("load", 3)
        body = batch_of(LOAD_SIZE)
        ours, bare = one_at_a_time(sides, "l", -1, count)
        loaded_ours = under(lambda lane: sides.ours.produce("load", lane % PARTITIONS, body, -1), ours)
        loaded_bare = under(lambda _: sides.bare.post(body), bare)
        name = f"acks=all RF 3, one 1 KiB record beside {LOAD_MB_S} MB/s"
        return await two_rows(name, loaded_ours, loaded_bare, rounds=rounds, ceiling=None)


def one_at_a_time(sides: Both, topic: str, acks: int, count: int) -> tuple[Measured, Measured]:
    """The two arms of a latency row."""
    batch = batch_of(KIB + 16)

    async def bare() -> Run:
        return await closed_loop(lambda _: sides.bare.post(batch), count=count, concurrency=1)

    return OneAtATime(sides.ours, topic, batch, acks=acks, count=count), bare


def under(step: Step, measured: Measured) -> Measured:
    """The same measurement while ``step`` sends ``LOAD_SIZE`` bytes again and again, at the pace of the load."""

    async def loaded() -> Run:
        async with _load(step):
            return await measured()

    return loaded


@contextlib.asynccontextmanager
async def _load(step: Step) -> AsyncIterator[None]:
    pause_s = LOAD_SIZE / (LOAD_MB_S * 1e6)

    async def lane() -> None:
        loop = asyncio.get_running_loop()
        due, number = loop.time(), 0
        async with asyncio.TaskGroup() as sending:
            while True:
                sending.create_task(_awaited(step(number)))
                due, number = due + pause_s, number + 1
                await asyncio.sleep(max(0.0, due - loop.time()))

    task = asyncio.ensure_future(lane())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _awaited(step: Awaitable[object]) -> None:
    await step


async def rate_rows(*, rounds: int, count: int) -> list[Row]:
    """Requests of one record of 100 B a second, 32 in flight: what a request costs, beside its bytes."""
    batch = small_batch(100)
    cpu: list[float] = []
    async with both(1) as sides:
        await sides.ours.create("r", 1)

        ours = SmallRequests(sides.ours, "r", batch, acks=1, count=count)

        async def bare() -> float:
            meter = CpuMeter([sides.bare_pid])
            run = await closed_loop(lambda _: sides.bare.post(batch), count=count, concurrency=SMALL_LANES)
            cpu.append(meter.lap() * 1e6 / count)
            return run.per_second

        pair = await in_turn(ours, bare, rounds=rounds)
    note = f"servers' CPU {ours.cpu_us:.0f} / {min(cpu):.0f} µs a request"
    name = f"small requests, acks=1 RF 1, 100 B, c={SMALL_LANES}"
    return [Row(name, "requests/s", pair.ours, pair.bare, pair.ratio, note=note)]
