"""What the console costs: the history of brokers that nobody watches, five viewers while records are written, the first
state of a viewer, and what a viewer receives when a broker is killed.

CPU is compared, not time: two clusters, one with and one without, run side by side through the same seconds, so that both
see the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from minikafka import AdminClient
from minikafka.rest.live import VIEWER_COUNT_MAX_OF_ONE
from minikafka.types import NodeId
from minikafka.world.real import real_world
from tests.bench.arms import Ours, cluster
from tests.bench.loads import Writing
from tests.bench.measure import CpuMeter, Row, in_turn
from tests.bench.rows import batch_of, batch_of_values, small_batch

BROKERS = 3
IDLE_PARTITIONS = 1_000
BUSY_PARTITIONS = 50
PAUSE_S = 0.05
"""Between two records of the steady load: about 20 a second of each of four lanes."""
VIEWERS = 5
SETTLE_S = 3.0
POINTS_MAX = 0.5
"""Percent of a core that the history may cost while nobody watches (PAGE.md 5.3)."""
VIEWED_FLOOR = 0.97
OPEN_S = 1.0
"""After this, viewers have received their first states."""
FAST_BATCH_BYTES = 5_000
"""About 50 records: 20 a second are 1,000 records/s."""
ONE_PARTITION_MAX, CLUSTER_MAX = 3.0, 4.0
"""Points of a core that five viewers may cost the broker that serves them, of one partition and of the cluster."""
SNAPSHOT_MS_MAX, SNAPSHOT_KB_MAX = 15.0, 28.0
KILL_KB_MAX = 6.0
SNAPSHOTS = VIEWER_COUNT_MAX_OF_ONE
AS_BROWSER = {"Accept-Encoding": "gzip"}
CLOSED_S = 6.0
"""Before viewers come: those of the row before are gone, or these would be too many of one address."""


async def console_rows(*, rounds: int, seconds: float, megabytes: int) -> list[Row]:
    """The history at rest and under a steady load, then throughput with viewers."""
    async with cluster(BROKERS) as one, cluster(BROKERS, {"mk.history.minutes": "0"}) as other, real_world() as real:
        kept, forgetful = Ours(real.network, one), Ours(real.network, other)
        for each in (kept, forgetful):
            await each.create("idle", BROKERS, IDLE_PARTITIONS)
            await each.create("busy", BROKERS, BUSY_PARTITIONS)
        await asyncio.sleep(SETTLE_S)
        found = [
            await _history_row(f"{IDLE_PARTITIONS:,} idle partitions RF 3", kept, forgetful, rounds, seconds),
        ]
        async with steady_load(kept), steady_load(forgetful):
            name = f"the same and {BUSY_PARTITIONS} partitions with 80 records/s"
            found.append(await _history_row(name, kept, forgetful, rounds, seconds))
        async with steady_load(kept):
            name = f"the cluster, {IDLE_PARTITIONS + BUSY_PARTITIONS:,} partitions RF 3, {BUSY_PARTITIONS} active"
            found.append(await _viewers_row(name, kept, ["cluster"] * VIEWERS, CLUSTER_MAX, rounds, seconds))
        async with fast_load(kept):
            name = "one partition with 1,000 records/s"
            found.append(await _viewers_row(name, kept, ["busy-0"] * VIEWERS, ONE_PARTITION_MAX, rounds, seconds))
        found += [await _viewed_row(kept, rounds, megabytes), await _snapshot_row(kept, rounds)]
        return [*found, await _kill_row(kept)]


async def _history_row(name: str, kept: Ours, forgetful: Ours, rounds: int, seconds: float) -> Row:
    """The share of a core of one broker, with and without a history, in the same seconds."""
    shares = []
    meters = [CpuMeter(kept.pids), CpuMeter(forgetful.pids)]
    for _ in range(rounds):
        await asyncio.sleep(seconds)
        shares.append([meter.lap() / seconds / BROKERS * 100 for meter in meters])
    ours, bare = (statistics.median(each) for each in zip(*shares, strict=True))
    points = statistics.median(one - other for one, other in shares)
    return Row(
        f"history, {name}: CPU of a broker",
        "% of a core",
        ours,
        bare,
        ours / bare,
        at_least=False,
        note=f"bare: mk.history.minutes=0; {points:+.2f} points, at most {POINTS_MAX} are the aim",
        same_work=False,
    )


@contextlib.asynccontextmanager
async def steady_load(arm: Ours) -> AsyncIterator[None]:
    """Four producers of small records, in turn to all partitions, at a pace that leaves the brokers idle mostly."""
    batch = small_batch(100)

    async def lane(number: int) -> None:
        while True:
            for partition in range(number, BUSY_PARTITIONS, 4):
                await arm.produce("busy", partition, batch, -1)
                await asyncio.sleep(PAUSE_S)

    lanes = [asyncio.create_task(lane(number)) for number in range(4)]
    try:
        yield
    finally:
        for each in lanes:
            each.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)


async def _viewers_row(name: str, arm: Ours, scopes: list[str], most: float, rounds: int, seconds: float) -> Row:
    """The share of a core of the serving broker, with five viewers and without, in turn; bytes of each viewer."""
    serving, others = CpuMeter(arm.pids[:1]), CpuMeter(arm.pids[1:])
    shares, elsewhere, received = [], [], [0]

    async def lap() -> tuple[float, float]:
        serving.lap(), others.lap()
        await asyncio.sleep(seconds)
        return serving.lap() / seconds * 100, others.lap() / seconds / (BROKERS - 1) * 100

    for _ in range(rounds):
        without = await lap()
        async with viewers(arm, scopes, received):
            await asyncio.sleep(OPEN_S)
            received[0] = 0
            viewed = await lap()
            rate = received[0] / seconds / len(scopes)
        shares.append((viewed[0], without[0]))
        elsewhere.append(viewed[1] - without[1])
    ours, bare = (statistics.median(each) for each in zip(*shares, strict=True))
    points = statistics.median(one - other for one, other in shares)
    return Row(
        f"{VIEWERS} viewers of {name}: CPU of their broker",
        "% of a core",
        ours,
        bare,
        ours / bare,
        at_least=False,
        note=f"bare: without viewers; {points:+.2f} points, at most {most:g} are the aim; {statistics.median(elsewhere):+.2f} of "
        f"another broker; {rate / 1000:.1f} kB/s a viewer",
        same_work=False,
    )


@contextlib.asynccontextmanager
async def fast_load(arm: Ours) -> AsyncIterator[None]:
    """Batches of 50 records to one partition, 20 a second."""
    batch = batch_of_values(FAST_BATCH_BYTES, 100, varies=False)

    async def lane() -> None:
        while True:
            await arm.produce("busy", 0, batch, -1)
            await asyncio.sleep(PAUSE_S)

    task = asyncio.create_task(lane())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _viewed_row(arm: Ours, rounds: int, megabytes: int) -> Row:
    """Batches of 256 KiB with acks=all, while five live streams of the cluster and of a partition are open, and without."""
    batch = batch_of(256 * 1024)
    writing = Writing(arm, batch, replicas=BROKERS, acks=-1, count=megabytes * 1_000_000 // len(batch))

    async def viewed() -> float:
        async with viewers(arm):
            # The streams stay open for hours: what they cost to open is a row of its own.
            await asyncio.sleep(OPEN_S)
            return await writing()

    async def unviewed() -> float:
        await asyncio.sleep(OPEN_S)  # what the round before left to do is done in the pause, in both
        return await writing()

    pair = await in_turn(viewed, unviewed, rounds=rounds, warm_up=1)
    return Row(
        f"produce acks=all RF 3, 256 KiB, with {VIEWERS} viewers",
        "MB/s",
        pair.ours,
        pair.bare,
        pair.ratio,
        VIEWED_FLOOR,
        note=f"bare: without viewers; half of the rounds' ratios are {pair.quartiles[0]:.2f} to {pair.quartiles[1]:.2f}",
        same_work=False,
    )


async def _snapshot_row(arm: Ours, rounds: int) -> Row:
    """CPU of the serving broker for the first state of each of some viewers, of the cluster and of a partition."""
    serving = CpuMeter(arm.pids[:1])

    async def first(scope: str) -> tuple[int, int]:
        received = [0]
        async with _events(arm, scope, received) as events:
            return len(await _snapshot(events)), received[0]

    async def lap(scope: str) -> tuple[float, tuple[int, int]]:
        await asyncio.sleep(CLOSED_S)
        serving.lap()
        snapshots = await asyncio.gather(*(first(scope) for _ in range(SNAPSHOTS)))
        return serving.lap() / SNAPSHOTS * 1000, snapshots[0]

    found = [(await lap("cluster"), await lap("busy-0")) for _ in range(rounds)]
    whole, one = (statistics.median(each[at][0] for each in found) for at in (0, 1))
    size, received = found[-1][0][1]
    return Row(
        f"first state of the cluster, {IDLE_PARTITIONS + BUSY_PARTITIONS:,} partitions: CPU of the broker",
        "ms",
        whole,
        one,
        whole / one,
        at_least=False,
        note=f"of each of {SNAPSHOTS} viewers that come at once; bare: of one partition; at most {SNAPSHOT_MS_MAX:g} ms are the aim; "
        f"{received / 1000:.1f} kB are received, {size / 1000:.1f} kB without gzip; at most {SNAPSHOT_KB_MAX:g} kB are the aim",
        same_work=False,
    )


async def _kill_row(arm: Ours) -> Row:
    """What a viewer of the cluster receives from the death of a broker until no partition has it in its ISR."""
    async with AdminClient(bootstrap_servers=arm.running.bootstrap) as admin:
        controller = (await admin.describe_quorum()).leader_id
    victim: NodeId = next(node for node in list(arm.running.brokers)[1:] if node != controller)
    received = [0]
    await asyncio.sleep(CLOSED_S)
    async with _events(arm, "cluster", received) as events:
        state: dict[str, Any] = json.loads(await _snapshot(events))
        whole = received[0]
        await arm.running.kill9(victim)
        count = 0
        while any(victim in each["isr"] for topic in state["topics"].values() for each in topic.values()):
            kind, data = await anext(events)
            if kind == "frame":
                count += 1
                _apply(state, json.loads(data)["changes"])
        size = received[0] - whole
        async with aiohttp.ClientSession() as http:
            query = {"states": "false", "kind": "leader_elected,isr_shrunk", "limit": "5000"}
            async with http.get(f"http://{arm.first}/v1/history", params=query) as response:
                steps = (await response.json(content_type=None))["steps"]
    return Row(
        f"a broker is killed, {IDLE_PARTITIONS + BUSY_PARTITIONS:,} partitions: received by a viewer of the cluster",
        "kB",
        size / 1000,
        whole / 1000,
        size / whole,
        at_least=False,
        note=f"bare: the first state; {count} frames; at most {KILL_KB_MAX:g} kB are the aim; elections and changes of the ISR are "
        f"{len(steps)} lines of Events",
        same_work=False,
    )


async def _snapshot(events: AsyncIterator[tuple[str, bytes]]) -> bytes:
    async for kind, data in events:
        if kind == "snapshot":
            return data
    raise RuntimeError("the live stream ended before its snapshot")


def _apply(state: dict[str, Any], changes: list[list[Any]]) -> None:
    for path, *value in changes:
        place = state
        for name in path if len(value) == 2 else path[:-1]:
            place = place[name]
        if len(value) == 2:
            place.update(zip(*value, strict=True))
        elif value:
            place[path[-1]] = value[0]
        else:
            del place[path[-1]]


@contextlib.asynccontextmanager
async def _events(arm: Ours, scope: str, received: list[int]) -> AsyncIterator[AsyncIterator[tuple[str, bytes]]]:
    """A live stream at the first broker: kind and data of each event; ``received[0]`` counts bytes, compressed as for a browser."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as http,
        http.get(f"http://{arm.first}/v1/live", params={"scope": scope}, headers=AS_BROWSER) as response,
    ):
        response.raise_for_status()

        async def events() -> AsyncIterator[tuple[str, bytes]]:
            unpack, kind, rest = zlib.decompressobj(zlib.MAX_WBITS | 16), "", b""
            async for part in response.content.iter_any():
                received[0] += len(part)
                *lines, rest = (rest + unpack.decompress(part)).split(b"\n")
                for line in lines:
                    name, _, value = line.partition(b": ")
                    if name == b"event":
                        kind = value.decode()
                    elif name == b"data":
                        yield kind, value

        yield events()


@contextlib.asynccontextmanager
async def viewers(
    arm: Ours,
    scopes: Sequence[str] = ("cluster", "busy-0", "busy-0", "busy-1", "busy-2"),
    received: list[int] | None = None,
) -> AsyncIterator[None]:
    """Live streams at the first broker, whose events are read and dropped; ``received[0]`` counts their bytes."""
    count = received if received is not None else [0]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as http:

        async def watch(scope: str) -> None:
            async with http.get(f"http://{arm.first}/v1/live", params={"scope": scope}, headers=AS_BROWSER) as response:
                response.raise_for_status()
                async for part in response.content.iter_any():
                    count[0] += len(part)

        watching = [asyncio.create_task(watch(scope)) for scope in scopes]
        try:
            yield
        finally:
            for each in watching:
                each.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
