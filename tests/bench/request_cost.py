"""What one small Produce request costs each broker: `python -m tests.bench.request_cost --help`.

Three broker processes with one topic. By default the brokers' CPU per request is measured, without any instrument. With
``--calls`` the brokers run under cProfile: calls per request of the functions that take the most time, and of those
that create tasks, futures, and timers, schedule callbacks, and write. With ``--syscalls`` strace counts system calls per request:
``epoll_wait`` is the number of turns of the event loop.

Partitions are led by different brokers, so with more than one partition every broker is leader and follower at once.
``--partitions 1`` separates the two roles.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pstats
import re
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from minikafka.hosting.processes import LAUNCHER, ProcessCluster
from minikafka.world.real import real_world
from tests.bench.arms import CONFIG, Ours
from tests.bench.frame_rows import Framed
from tests.bench.measure import CpuMeter, Run, closed_loop
from tests.bench.profiled_broker import FOLDER
from tests.bench.rows import batch_of, small_batch

BROKERS = 3
TOPIC = "cost"
PRIMITIVES = (
    "create_task",
    "create_future",
    "call_soon",
    "call_at",
    "call_later",
    "write",
    "writelines",
    "pwritev",
    "writev",
)
"""Names of functions that are always listed: what a request should need few of."""
_SYSCALL = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", re.MULTILINE)


class _Load:
    """Requests of one batch each, a fixed number in flight."""

    def __init__(self, arm: Ours, chosen: argparse.Namespace) -> None:
        self._arm = arm
        self._chosen = chosen
        self._batch = small_batch(chosen.size) if chosen.size < 1000 else batch_of(chosen.size + 16)

    async def __call__(self, count: int) -> Run:
        chosen = self._chosen
        return await closed_loop(
            lambda lane: self._arm.produce(TOPIC, lane % chosen.partitions, self._batch, chosen.acks),
            count=count,
            concurrency=chosen.connections,
        )


async def _measure(arm: Ours, load: _Load, chosen: argparse.Namespace) -> None:
    """Print CPU per request of each broker, and latency."""
    pids = arm.pids
    costs: list[list[float]] = []
    runs: list[Run] = []
    for _ in range(chosen.rounds):
        meters = [CpuMeter([pid]) for pid in pids]
        runs.append(await load(chosen.requests))
        costs.append([meter.lap() * 1e6 / chosen.requests for meter in meters])
    best = min(costs, key=sum)
    p50 = statistics.median(run.percentile(0.5) * 1e6 for run in runs)
    rate = statistics.median(run.per_second for run in runs)
    each_broker = " + ".join(f"{each:.1f}" for each in best)
    _print(f"CPU {sum(best):.1f} us a request ({each_broker}), best of {chosen.rounds}")
    _print(f"p50 {p50:.0f} us, {rate:.0f} requests/s")


async def _count_calls(arm: Ours, load: _Load, chosen: argparse.Namespace, folder: Path) -> None:
    """Print calls per request of each broker."""
    for pid in arm.pids:
        os.kill(pid, signal.SIGUSR2)
    await load(chosen.requests)
    for pid in arm.pids:
        os.kill(pid, signal.SIGUSR2)
    for node, pid in zip(arm.running.brokers, arm.pids, strict=True):
        path = folder / f"{pid}.prof"
        while not path.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
        _print_calls(node, pstats.Stats(str(path)), chosen)


def _print_calls(node: int, profile: Any, chosen: argparse.Namespace) -> None:
    rows = [
        (name, calls / chosen.requests, own * 1e6 / chosen.requests)
        for (path, line, name), (_, calls, own, _, _) in (
            (_place(each), figures) for each, figures in profile.stats.items()
        )
    ]
    _print(f"broker {node}: {sum(row[1] for row in rows):.1f} calls a request, own time under the profiler in us")
    top = sorted(rows, key=lambda row: -row[2])[: chosen.top]
    named = [row for row in rows if row not in top and any(f"'{each}'" in row[0] for each in PRIMITIVES)]
    for name, calls, own in (*top, *named):
        _print(f"  {calls:7.2f} {own:7.2f}  {name}")


def _place(key: tuple[str, int, str]) -> tuple[str, int, str]:
    path, line, name = key
    place = "/".join(Path(path).parts[-2:])
    return path, line, name if path == "~" else f"{place}:{line} {name}"


async def _count_syscalls(arm: Ours, load: _Load, chosen: argparse.Namespace, folder: Path) -> None:
    """Print system calls per request of each broker."""
    tracers = [
        await asyncio.create_subprocess_exec("strace", "-c", "-f", "-o", str(folder / f"{pid}.strace"), "-p", str(pid))
        for pid in arm.pids
    ]
    await asyncio.sleep(1)
    await load(chosen.requests)
    for tracer in tracers:
        tracer.send_signal(signal.SIGINT)
        await tracer.wait()
    for node, pid in zip(arm.running.brokers, arm.pids, strict=True):
        found = _SYSCALL.findall((folder / f"{pid}.strace").read_text())
        counts = {name: int(calls) / chosen.requests for calls, name in found if name != "total"}
        listed = ", ".join(f"{name} {calls:.2f}" for name, calls in counts.items() if calls >= 0.01)
        _print(f"broker {node}: {listed}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


async def _run(chosen: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="minikafka-bench-") as name:
        folder = Path(name)
        os.environ[FOLDER] = name
        launcher = ("-m", "tests.bench.profiled_broker") if chosen.calls else LAUNCHER
        config = {**CONFIG, "min.insync.replicas": "2"}
        async with (
            ProcessCluster(brokers=BROKERS, data_dir=folder / "data", config=config, launcher=launcher) as running,
            real_world() as real,
        ):
            arm: Ours = Ours(real.network, running)
            if chosen.protocol == "kafka":
                arm = Framed(arm)
            await arm.create(TOPIC, chosen.replicas, chosen.partitions)
            load = _Load(arm, chosen)
            await load(chosen.requests)
            if chosen.calls:
                await _count_calls(arm, load, chosen, folder)
            elif chosen.syscalls:
                await _count_syscalls(arm, load, chosen, folder)
            else:
                await _measure(arm, load, chosen)
            if isinstance(arm, Framed):
                arm.connections.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.request_cost", description=__doc__)
    parser.add_argument("--acks", type=int, default=-1)
    parser.add_argument("--replicas", type=int, default=BROKERS)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--connections", type=int, default=32, help="requests in flight, one on each connection")
    parser.add_argument("--size", type=int, default=100, help="bytes of a record")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--protocol", choices=("http", "kafka"), default="http")
    parser.add_argument("--top", type=int, default=40, help="functions to list with --calls")
    instruments = parser.add_mutually_exclusive_group()
    instruments.add_argument("--calls", action="store_true", help="count Python calls with cProfile")
    instruments.add_argument("--syscalls", action="store_true", help="count system calls with strace")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
