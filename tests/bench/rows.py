"""The rows of issue 2: what a broker does beside a bare aiohttp server and client that do the same transfer."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil

from minikafka import AdminClient, NewTopic, Producer
from minikafka.broker.peer import call
from minikafka.types import Address
from minikafka.wire.messages import (
    FetchPartition,
    FetchRequest,
    MetadataRequest,
    ProducePartition,
    ProduceRequest,
)
from minikafka.wire.records import BatchBuilder, Record, build_batch
from minikafka.world.processes import ProcessCluster
from minikafka.world.real import real_world
from tests.bench.measure import Row, closed_loop, in_turn

KIB = 1024
BATCH_SIZES = (256 * KIB, 1000 * KIB)
CONCURRENCY = 4
PARTITIONS = 4
DEADLINE_S = 30.0


@contextlib.asynccontextmanager
async def bare_server() -> AsyncIterator[tuple[int, int]]:
    """A bare aiohttp server in a process of its own; (port, pid)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.bare", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield int(await process.stdout.readline()), process.pid
    finally:
        process.stdin.close()
        await process.wait()


class Bare:
    """A bare aiohttp client of the bare server."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session = session
        self.url = f"http://127.0.0.1:{port}/"

    async def post(self, body: bytes) -> None:
        async with self.session.post(self.url, data=body) as answer:
            await answer.read()

    async def get(self, size: int) -> None:
        async with self.session.get(f"{self.url}{size}") as answer:
            assert len(await answer.read()) == size


class Ours:
    """A raw client of a cluster: prepared batches through the same network port that brokers use."""

    def __init__(self, network: object, bootstrap: str) -> None:
        self.network = network
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self.first = Address(host, int(port))
        self.leaders: dict[int, Address] = {}

    async def find_leaders(self, topic: str) -> None:
        """Ask until every partition has a leader."""
        for _ in range(200):
            answer = await call(self.network, self.first, MetadataRequest(topics=(topic,)), self.deadline())
            nodes = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
            parts = answer.topics[0].partitions
            if parts and all(each.leader_id in nodes for each in parts):
                self.leaders = {each.partition: nodes[each.leader_id] for each in parts}
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{topic} has no leaders")

    @staticmethod
    def deadline() -> float:
        return asyncio.get_running_loop().time() + DEADLINE_S

    async def produce(self, topic: str, partition: int, batch: bytes, acks: int) -> None:
        request = ProduceRequest(
            acks=acks, partitions=(ProducePartition(topic=topic, partition=partition, records=(batch,)),)
        )
        answer = await call(self.network, self.leaders[partition], request, self.deadline())
        if answer.partitions[0].error_code:
            raise RuntimeError(answer.partitions[0].error_message)

    async def fetch(self, topic: str, partition: int, offset: int, size: int) -> int:
        request = FetchRequest(
            max_bytes=size,
            partitions=(
                FetchPartition(topic=topic, partition=partition, fetch_offset=offset, partition_max_bytes=size),
            ),
        )
        answer = await call(self.network, self.leaders[partition], request, self.deadline())
        return sum(len(each) for each in answer.partitions[0].records)


@contextlib.asynccontextmanager
async def cluster(brokers: int) -> AsyncIterator[ProcessCluster]:
    """Broker processes on loopback, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="minikafka-bench-") as folder:
        async with ProcessCluster(
            brokers=brokers, data_dir=Path(folder), config={"log.segment.delete.delay.ms": "0"}
        ) as running:
            yield running


async def create(bootstrap: str, topic: str, replicas: int, partitions: int = PARTITIONS) -> None:
    async with AdminClient(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions, replicas)])


async def touch_pages(ours: Ours, bootstrap: str, replicas: int, volume: int) -> None:
    """Write and delete as much as the row will write: new pages of a virtual machine's page cache cost ten times
    what pages cost that the machine has used before (PERFORMANCE: cold page cache)."""
    await create(bootstrap, "touch", replicas)
    await ours.find_leaders("touch")
    batch = batch_of(BATCH_SIZES[-1])
    await closed_loop(
        lambda lane: ours.produce("touch", lane % PARTITIONS, batch, -1), count=volume // len(batch), concurrency=4
    )
    async with AdminClient(bootstrap_servers=bootstrap) as admin:
        await admin.delete_topics(["touch"])
    await asyncio.sleep(1.0)


def batch_of(size: int) -> bytes:
    """A batch of about ``size`` bytes of 1 KiB records."""
    return bytes(
        build_batch([Record(0, 1_700_000_000_000, 0, None, bytes(KIB), ()) for _ in range(size // (KIB + 16))])
    )


async def produce_rows(brokers: int, *, acks: int, floor: float, rounds: int, count: int) -> list[Row]:
    """Throughput of prepared batches, four in flight on four partitions."""
    rows = []
    async with bare_server() as (port, _), cluster(brokers) as running, aiohttp.ClientSession() as session:
        async with real_world() as world:
            ours, bare = Ours(world.network, running.bootstrap), Bare(session, port)
            await touch_pages(ours, running.bootstrap, brokers, count * BATCH_SIZES[-1] * (rounds + 1))
            for size in BATCH_SIZES:
                topic, batch = f"t{size}", batch_of(size)
                await create(running.bootstrap, topic, brokers)
                await ours.find_leaders(topic)

                async def measure_ours(topic: str = topic, batch: bytes = batch) -> float:
                    run = await closed_loop(
                        lambda lane: ours.produce(topic, lane % PARTITIONS, batch, acks),
                        count=count,
                        concurrency=CONCURRENCY,
                    )
                    return run.per_second * len(batch) / 1e6

                async def measure_bare(batch: bytes = batch) -> float:
                    run = await closed_loop(lambda _: bare.post(batch), count=count, concurrency=CONCURRENCY)
                    return run.per_second * len(batch) / 1e6

                figure, yardstick = await in_turn(measure_ours, measure_bare, rounds=rounds)
                name = f"produce acks={'all' if acks == -1 else acks} RF {brokers}, {size // KIB} KiB, {CONCURRENCY} in flight"
                rows.append(Row(name, "MB/s", figure, yardstick, figure / yardstick, floor))
    return rows


async def fetch_rows(*, floor: float, rounds: int, count: int) -> list[Row]:
    """A consumer's fetch of about 1 MiB of old records, four in flight."""
    size = BATCH_SIZES[-1]
    async with bare_server() as (port, _), cluster(1) as running, aiohttp.ClientSession() as session:
        async with real_world() as world:
            ours, bare = Ours(world.network, running.bootstrap), Bare(session, port)
            await create(running.bootstrap, "f", 1)
            await ours.find_leaders("f")
            batch = batch_of(size)
            records = size // (KIB + 16)
            await closed_loop(lambda lane: ours.produce("f", lane, batch, 1), count=64, concurrency=PARTITIONS)

            async def one(lane: int, positions: dict[int, int]) -> None:
                got = await ours.fetch("f", lane, positions[lane] * records, size)
                if got != len(batch):
                    raise RuntimeError(f"a batch of {len(batch)} bytes was wanted, {got} came")
                positions[lane] = (positions[lane] + 1) % 12

            async def measure_ours() -> float:
                positions = dict.fromkeys(range(PARTITIONS), 0)
                run = await closed_loop(lambda lane: one(lane, positions), count=count, concurrency=CONCURRENCY)
                return run.per_second * len(batch) / 1e6

            async def measure_bare() -> float:
                run = await closed_loop(lambda _: bare.get(len(batch)), count=count, concurrency=CONCURRENCY)
                return run.per_second * len(batch) / 1e6

            figure, yardstick = await in_turn(measure_ours, measure_bare, rounds=rounds)
            return [
                Row(
                    f"fetch {size // KIB} KiB, {CONCURRENCY} in flight",
                    "MB/s",
                    figure,
                    yardstick,
                    figure / yardstick,
                    floor,
                )
            ]


async def latency_rows(*, ceiling: float, rounds: int, count: int) -> list[Row]:
    """One 1 KiB record at a time, acks=all on three brokers, beside a bare POST of the same bytes."""
    batch = batch_of(2 * KIB)
    async with bare_server() as (port, _), cluster(3) as running, aiohttp.ClientSession() as session:
        async with real_world() as world:
            ours, bare = Ours(world.network, running.bootstrap), Bare(session, port)
            await create(running.bootstrap, "l", 3, 1)
            await ours.find_leaders("l")

            async def measure_ours() -> float:
                run = await closed_loop(lambda _: ours.produce("l", 0, batch, -1), count=count, concurrency=1)
                return run.percentile(0.5) * 1e6

            async def measure_bare() -> float:
                run = await closed_loop(lambda _: bare.post(batch), count=count, concurrency=1)
                return run.percentile(0.5) * 1e6

            figure, yardstick = await in_turn(measure_ours, measure_bare, rounds=rounds)
            ratio = figure / yardstick
            return [Row("acks=all p50, one 1 KiB record", "µs", figure, yardstick, ratio, ceiling, at_least=False)]


async def producer_rows(*, count: int, rounds: int) -> list[Row]:
    """Records per second through the producer at 100 B, beside building the same batches with the compiled codec."""
    value = bytes(100)

    async def build() -> float:
        began = time.perf_counter()
        done = 0
        while done < count:
            builder = BatchBuilder(size_max=16 * KIB)
            while builder.append(1_700_000_000_000, None, value):
                done += 1
            builder.build()
        return done / (time.perf_counter() - began)

    async with cluster(1) as running:
        await create(running.bootstrap, "p", 1, 1)
        async with Producer(bootstrap_servers=running.bootstrap, acks=1, enable_idempotence=False) as producer:

            async def through_send() -> float:
                began = time.perf_counter()
                for _ in range(count // 10):
                    await producer.send("p", value)
                await producer.flush()
                return count / 10 / (time.perf_counter() - began)

            async def through_batch_call() -> float:
                began = time.perf_counter()
                for _ in range(count // 10_000):
                    await producer.send_many("p", [value] * 10_000, partition=0)
                await producer.flush()
                return count / (time.perf_counter() - began)

            rows = []
            for name, measured, floor in (("send()", through_send, 0.02), ("batch call", through_batch_call, 0.25)):
                figure, yardstick = await in_turn(measured, build, rounds=rounds)
                rows.append(
                    Row(
                        f"producer {name}, 100 B",
                        "records/s",
                        figure,
                        yardstick,
                        figure / yardstick,
                        floor,
                        note="beside the codec's build rate",
                    )
                )
            return rows


async def start_rows(*, rounds: int) -> list[Row]:
    """From starting the processes to the first acknowledged record, beside a bare server's first answer."""

    async def ours(brokers: int) -> float:
        began = time.perf_counter()
        async with cluster(brokers) as running, Producer(bootstrap_servers=running.bootstrap) as producer:
            await create(running.bootstrap, "s", brokers, 1)
            await producer.send_and_wait("s", b"first")
            return time.perf_counter() - began

    async def bare() -> float:
        began = time.perf_counter()
        async with bare_server() as (port, _), aiohttp.ClientSession() as session:
            await Bare(session, port).post(b"first")
            return time.perf_counter() - began

    rows = []
    for voters in (1, 3):
        figure, yardstick = await in_turn(lambda voters=voters: ours(voters), bare, rounds=rounds)  # type: ignore[misc]
        rows.append(
            Row(
                f"start to first acknowledged record, {voters} voter{'s' * (voters > 1)}",
                "s",
                figure,
                yardstick,
                figure / yardstick,
                float("inf"),
                at_least=False,
            )
        )
    return rows


async def memory_rows(*, ceiling: float) -> list[Row]:
    """Resident memory of an idle broker beside that of the bare server."""
    async with bare_server() as (_, bare_pid), cluster(1) as running:
        await asyncio.sleep(2.0)
        figure = psutil.Process(running.pid(1)).memory_info().rss / 1e6
        yardstick = psutil.Process(bare_pid).memory_info().rss / 1e6
    return [Row("resident memory, idle broker", "MB", figure, yardstick, figure / yardstick, ceiling, at_least=False)]
