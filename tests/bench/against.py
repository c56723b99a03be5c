"""This source tree beside another one, such as an older commit: ``python -m tests.bench.against FOLDER``.

``FOLDER`` is a checkout with an environment of its own (``git worktree add FOLDER COMMIT``, then ``make compiled`` there).
Brokers of both trees run at the same time, and the client of this tree drives them in turn, over Kafka's protocol, which
does not change: a row tells what became slower or faster between the two commits. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from unittest import mock

import psutil
import uvloop

from minikafka.world.real import real_world
from tests.bench.arms import Ours, cluster
from tests.bench.frame_rows import PIPELINES, Framed, Pipelines
from tests.bench.loads import CONCURRENCY, PARTITIONS, SMALL_LANES, OneAtATime, Reading, SmallRequests, Writing
from tests.bench.measure import Run, in_turn
from tests.bench.report import figure
from tests.bench.rows import BATCH_SIZES, KIB, batch_of, records_in, small_batch

Load = Writing | Reading | SmallRequests | Pipelines | OneAtATime


@contextlib.contextmanager
def _python_of(folder: Path | None) -> Iterator[None]:
    """Brokers that start meanwhile run on the tree in ``folder``, or on this one."""
    python = sys.executable if folder is None else str(folder / ".venv/bin/python")
    # With PYTHONSAFEPATH `-m minikafka` is what the environment has installed, and not the folder in which this runs.
    with mock.patch.dict("os.environ", PYTHONSAFEPATH="1"), mock.patch.object(sys, "executable", python):
        yield


@contextlib.asynccontextmanager
async def _arms(folder: Path, brokers: int) -> AsyncIterator[list[Framed]]:
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(real_world())
        arms = []
        for tree in (None, folder):
            with _python_of(tree):
                running = await stack.enter_async_context(cluster(brokers))
            arms.append(Framed(Ours(real.network, running)))
            stack.callback(arms[-1].connections.close)
        yield arms


async def _speed(load: Load) -> float:
    """One round: MB or requests a second, or one by the median time of a record."""
    done = await load()
    return 1 / done.percentile(0.5) if isinstance(done, Run) else done


async def _show(name: str, loads: Sequence[Load], *, rounds: int) -> None:
    here, there = loads
    pair = await in_turn(lambda: _speed(here), lambda: _speed(there), rounds=rounds, warm_up=2)
    of_cpu = statistics.median(mine / other for mine, other in zip(here.cpu[2:], there.cpu[2:], strict=True))
    low, high = pair.quartiles
    print(  # noqa: T201
        f"{name:<46} {pair.ratio:6.3f}  ({low:.3f} to {high:.3f})  {of_cpu:6.3f}  "
        f"{figure(min(here.cpu))} / {figure(min(there.cpu))}",
        flush=True,
    )


async def _started(folder: Path | None, memory: list[float]) -> float:
    """Starts of three brokers up to their first acknowledged record, a second."""
    began = time.perf_counter()
    async with real_world() as real, AsyncExitStack() as stack:
        with _python_of(folder):
            arm = Ours(real.network, await stack.enter_async_context(cluster(3)))
        await arm.create("s", 3, 1)
        await arm.produce("s", 0, small_batch(100), -1)
        took = time.perf_counter() - began
        memory.append(statistics.median(psutil.Process(pid).memory_info().rss / 1e6 for pid in arm.pids))
        return 1 / took


async def _measure_starts(folder: Path, *, rounds: int) -> None:
    memory: tuple[list[float], list[float]] = ([], [])
    pair = await in_turn(lambda: _started(None, memory[0]), lambda: _started(folder, memory[1]), rounds=rounds)
    low, high = pair.quartiles
    print(f"{'start of 3 brokers to the first ack':<46} {pair.ratio:6.3f}  ({low:.3f} to {high:.3f})")  # noqa: T201
    here, there = map(statistics.median, memory)
    print(f"{'memory of a broker after its start, MB':<46} {here / there:6.3f}  {figure(here)} / {figure(there)}")  # noqa: T201


async def _measure(folder: Path, *, rounds: int, megabytes: int, count: int) -> None:
    print(f"{'':<46} {'speed':>6}  (half of rounds)      CPU  of the brokers here and there, ms/MB or µs/request")  # noqa: T201
    small, one = small_batch(100), batch_of(KIB + 16)
    for brokers, acks in ((1, 1), (3, -1)):
        name = f"acks={'all' if acks == -1 else acks} RF {brokers}"
        async with _arms(folder, brokers) as arms:
            for arm in arms:
                await arm.create("small", brokers)
                await arm.create("one", brokers, 1)
                for partition in range(PARTITIONS):
                    await arm.produce("small", partition, small, acks)
            for size in BATCH_SIZES:
                batch, writes = batch_of(size), megabytes * 1_000_000 // size
                written = [Writing(arm, batch, replicas=brokers, acks=acks, count=writes) for arm in arms]
                await _show(f"produce {name}, {size // KIB} KiB, c={CONCURRENCY}", written, rounds=rounds)
            for door, sides in (("frames", arms), ("/rpc", [Ours(arm.network, arm.running) for arm in arms])):
                for side, arm in zip(sides, arms, strict=True):
                    side.leaders = arm.leaders
                sent = [SmallRequests(side, "small", small, acks=acks, count=count) for side in sides]
                await _show(f"requests {name}, {door}, 100 B, c={SMALL_LANES}", sent, rounds=rounds)
            for connections, depth, _ in PIPELINES if brokers == 1 else ():
                shape = {"count": count, "connections": connections, "depth": depth}
                lanes = [Pipelines(arm, "small", small, acks=acks, **shape) for arm in arms]
                await _show(f"requests {name}, 100 B, {connections} connections x {depth}", lanes, rounds=rounds)
            records = [OneAtATime(arm, "one", one, acks=acks, count=count // 10) for arm in arms]
            await _show(f"1 / p50 {name}, one 1 KiB record, c=1", records, rounds=rounds)
            if brokers == 1:
                batch = batch_of(BATCH_SIZES[-1])
                held = records_in(BATCH_SIZES[-1])
                read = [Reading(arm, "read", batch, held, count=megabytes * 2) for arm in arms]
                for each in read:
                    await each.fill()
                await _show(f"fetch {BATCH_SIZES[-1] // KIB} KiB, c={CONCURRENCY}", read, rounds=rounds)
    await _measure_starts(folder, rounds=rounds)


def main() -> None:
    """Measure, and print each row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the other checkout, with its own .venv")
    parser.add_argument("--rounds", type=int, default=9, help="of each row, in turn (default: 9)")
    parser.add_argument("--megabytes", type=int, default=100, help="of a round with large batches (default: 100)")
    parser.add_argument("--requests", type=int, default=5_000, help="of a round with small batches (default: 5000)")
    given = parser.parse_args()
    if not (given.folder / ".venv/bin/python").exists():
        parser.error(f"{given.folder} has no environment: run `make compiled` there")
    work = _measure(given.folder, rounds=given.rounds, megabytes=given.megabytes, count=given.requests)
    uvloop.run(work)


if __name__ == "__main__":
    main()
