"""`python -m tests.bench.partitions`: what many partitions cost three broker processes, and how long a start takes.

Measured in one run: CreateTopics until every replica exists, the CPU and the memory of idle brokers, the failover of a
third of all leaders after a kill -9, and the start of one broker with many segments after a clean stop and after a kill
-9. All settings are the defaults. Figures are printed; nothing is asserted, for they depend on the machine.

Usage: python -m tests.bench.partitions [--partitions N] [--segments N] [--only PART] [-o table|json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from minikafka import AdminClient, NewTopic
from minikafka.hosting.processes import ProcessCluster
from minikafka.log.log_directory import LogDirectory, read_identity
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import BatchBuilder
from minikafka.world.os_disk import OsDisk
from tests.bench.measure import CpuMeter

BROKERS = 3
TOPICS = 10
READY_S = 600.0
FAILOVER_S = 60.0
SETTINGS = {"mk.log.format": "json"}
RECORD = b"x" * 100
# Work that follows a change (checkpoints, the first look at retention after 30 s) is no part of an idle broker.
SETTLE_S = 5.0


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    name: str
    value: float
    unit: str
    per_partition: str = ""
    """The same value divided by the number of partitions, with its unit."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    partitions: int
    segments: int
    seconds: float
    """For how long idle brokers are watched."""


async def cluster_figures(size: Size) -> list[Figure]:
    """Creation, idle cost and failover on three brokers, each partition with three replicas."""
    with tempfile.TemporaryDirectory(prefix="minikafka-partitions-") as folder:
        async with ProcessCluster(brokers=BROKERS, data_dir=Path(folder), config=SETTINGS) as running:
            before_cpu, before_mb = await _at_rest(running, size.seconds)
            began = time.perf_counter()
            await _create(running, size.partitions, BROKERS)
            created_s = time.perf_counter() - began
            _say(f"created in {created_s:.1f} s")
            await asyncio.sleep(SETTLE_S)
            cpu, megabytes = await _at_rest(running, size.seconds)
            _say(f"idle: {cpu:.2f} % of a core, {megabytes:.1f} MB")
            failover = await _failover(running)
    count = size.partitions
    return [
        Figure("create, RF 3", created_s, "s", f"{created_s / count * 1000:.2f} ms"),
        Figure("CPU of an idle broker without partitions", before_cpu, "% of a core"),
        Figure("CPU of an idle broker", cpu, "% of a core", f"{(cpu - before_cpu) / count * 1e4:.2f} µs/s"),
        Figure("memory of an idle broker without partitions", before_mb, "MB"),
        Figure("memory of an idle broker", megabytes, "MB", f"{(megabytes - before_mb) / count * 1000:.1f} kB"),
        *failover,
    ]


async def _create(running: ProcessCluster, partitions: int, replicas: int) -> None:
    """Create the topics, and wait until each broker has all its replicas."""
    each = partitions // TOPICS
    async with AdminClient(bootstrap_servers=running.bootstrap, request_timeout_ms=120_000) as admin:
        for number in range(TOPICS):
            await admin.create_topics([NewTopic(f"idle{number}", each, replicas)])
    wanted = each * TOPICS * replicas
    folders = [running.folder(node) for node in running.brokers]
    for _ in range(int(READY_S / 0.1)):
        if sum(each.name.startswith("idle") for folder in folders for each in os.scandir(folder)) == wanted:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"{wanted} replicas do not exist after {READY_S} s")


async def _at_rest(running: ProcessCluster, seconds: float) -> tuple[float, float]:
    """CPU in percent of a core, resident memory in MB: the mean of the brokers."""
    pids = [broker.pid for broker in running.brokers.values()]
    meter = CpuMeter(pids)
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    share = meter.lap() / (time.perf_counter() - began) / len(pids) * 100
    return share, statistics.mean(psutil.Process(pid).memory_info().rss / 1e6 for pid in pids)


async def _failover(running: ProcessCluster) -> list[Figure]:
    """Kill a broker; the survivors' logs say when it was fenced and when each of its partitions had a new leader."""
    async with AdminClient(bootstrap_servers=running.bootstrap) as admin:
        controller = (await admin.describe_cluster())["controller_id"]
        victim = next(node for node in running.brokers if node != controller)
        moved = sum(each.leader == victim for topic in await admin.describe_topics() for each in topic.partitions)
    survivors = [broker for node, broker in running.brokers.items() if node != victim]
    meter = CpuMeter([broker.pid for broker in survivors])
    sizes = {broker.node_id: broker.files.log_path.stat().st_size for broker in survivors}
    wall = time.time()
    await running.kill9(victim)
    deadline = time.perf_counter() + FAILOVER_S
    leaders = 0
    while leaders < moved and time.perf_counter() < deadline:
        await asyncio.sleep(0.5)
        events = [each for broker in survivors for each in _events(broker.files.log_path, sizes[broker.node_id])]
        leaders = sum(each["event"] == "became_leader" for each in events)
    await asyncio.sleep(3.0)
    events = [each for broker in survivors for each in _events(broker.files.log_path, sizes[broker.node_id])]
    # A partition may change its leader once more; the first time counts.
    first: dict[str, float] = {}
    for each in sorted((each for each in events if each["event"] == "became_leader"), key=lambda e: e["ts_ms"]):
        first.setdefault(each["partition"], each["ts_ms"] / 1000)
    fenced = min(each["ts_ms"] / 1000 for each in events if each["event"] == "broker_fenced")
    count = len(first)
    return [
        Figure("kill -9 to the fencing", fenced - wall, "s"),
        Figure(
            f"fencing to the last of {count:,} new leaders",
            max(first.values()) - fenced,
            "s",
            f"{(max(first.values()) - fenced) / count * 1000:.2f} ms",
        ),
        Figure("CPU of both survivors for it", meter.lap(), "s"),
    ]


def _events(path: Path, offset: int) -> Iterator[dict]:
    with path.open("rb") as log:
        log.seek(offset)
        for line in log.read().splitlines():
            if line.startswith(b"{") and line.endswith(b"}"):
                yield json.loads(line)


async def start_figures(size: Size) -> list[Figure]:
    """The start of one broker that holds all partitions, each with the same number of segments."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="minikafka-partitions-") as folder:
        # Its only broker is stopped and started again within the life of this object, which holds the port.
        running = ProcessCluster(brokers=1, data_dir=Path(folder), config=SETTINGS)
        broker = next(iter(running.brokers.values()))
        try:
            await running.start()
            await _create(running, size.partitions, 1)
            await asyncio.sleep(1.0)
            await broker.terminate(timeout_s=READY_S)
            per_partition = max(1, size.segments // size.partitions)
            began = time.perf_counter()
            segments = await _fill(running.folder(broker.node_id), per_partition)
            _say(f"wrote {segments:,} segments in {time.perf_counter() - began:.1f} s")
            for name, end in (("after a clean stop", broker.terminate), ("after kill -9", broker.kill9)):
                seconds, cpu, megabytes = await _start(running)
                _say(f"start {name}: {seconds:.1f} s")
                what = f"start {name}, {segments:,} segments"
                each = f"{seconds / segments * 1e6:.1f} µs a segment"
                figures.append(Figure(what, seconds, "s", each))
                figures.append(Figure(f"CPU of it, {name}", cpu, "s"))
                figures.append(Figure(f"memory {name}", megabytes, "MB"))
                began = time.perf_counter()
                await (broker.terminate(timeout_s=READY_S) if end == broker.terminate else broker.kill9())
                if end == broker.terminate:
                    figures.append(Figure("clean stop", time.perf_counter() - began, "s"))
                    await _start(running)
                    await broker.kill9()
        finally:
            await running.stop()
    return figures


async def _start(running: ProcessCluster) -> tuple[float, float, float]:
    """Seconds to ready, CPU seconds and resident memory in MB."""
    broker = next(iter(running.brokers.values()))
    began = time.perf_counter()
    await broker.start()
    await broker.wait_ready(READY_S)
    seconds = time.perf_counter() - began
    process = psutil.Process(broker.pid)
    return seconds, sum(process.cpu_times()[:2]), process.memory_info().rss / 1e6


async def _fill(folder: Path, segments: int) -> int:
    """Write sealed segments of one batch each into every log of a stopped broker, as a clean stop would leave them."""
    disk = OsDisk(str(folder), syncs=False)
    identity = read_identity(disk)
    assert identity is not None
    logs = await LogDirectory.open(
        disk, node_id=identity.node_id, cluster_id=identity.cluster_id, directory_id=identity.directory_id
    )
    epoch = logs.previous_broker_epoch
    builder = BatchBuilder(size_limit=1024)
    wall_ms = int(time.time() * 1000)
    builder.extend([(wall_ms, None, RECORD, ())])
    batch = RecordBatch.of(builder.build())
    chosen = [log for name, log in sorted(logs.logs.items()) if name.topic.startswith("idle")]
    for log in chosen:
        for number in range(segments):
            if number:
                log.roll()
            log.append_as_leader(batch, leader_epoch=max(log.last_epoch, 0), wall_ms=wall_ms)
        # Sealed segments of all logs together have more files than a process may open.
        await log.sync()
        for segment in log._store.segments[:-1]:
            file = segment.take_file()
            if file is not None:
                file.close()
    count = sum(log.segment_count for log in chosen)
    ends = {log.partition: log.end_offset for log in logs.logs.values()}
    await logs.close(broker_epoch=epoch, high_watermarks=ends)
    disk.close()
    return count


PARTS: dict[str, Callable[[Size], Awaitable[list[Figure]]]] = {"cluster": cluster_figures, "start": start_figures}


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


async def _measure(only: str, size: Size) -> list[Figure]:
    figures: list[Figure] = []
    for name, work in PARTS.items():
        if only in name:
            figures += await work(size)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.partitions", description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=10_000, help="Number of partitions (default: 10000).")
    parser.add_argument("--segments", type=int, default=100_000, help="Segments of the starting broker (100000).")
    parser.add_argument("--seconds", type=float, default=20.0, help="Time for which idle brokers are watched (20).")
    parser.add_argument("--only", default="", help=f"Part to measure: {' or '.join(PARTS)} (default: all).")
    parser.add_argument("-o", dest="form", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    size = Size(arguments.partitions, arguments.segments, arguments.seconds)
    figures = asyncio.run(_measure(arguments.only, size))
    if arguments.form == "json":
        report = {"partitions": size.partitions, "figures": [vars(each) for each in figures]}
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
        return
    lines = [f"| {size.partitions:,} partitions | figure | each |", "|---|---|---|"]
    lines += [f"| {each.name} | {each.value:,.3g} {each.unit} | {each.per_partition} |" for each in figures]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
