"""What a small request costs between its bytes and those of its response: `python -m tests.bench.path_cost --help`.

One broker in this process answers requests that are put into its real sessions (Kafka's protocol) and its dispatcher
(``/rpc``), without a socket: decoding, the handler, the log's file, and encoding. Processor time is measured, so that
other work on the machine matters little. ``--against FOLDER`` measures another source tree in turn with this one, each in a
process of its own, and prints the ratio of each row. ``--profile ROW`` prints where a row's time goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import logging
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import uvloop

from minikafka import compiled
from minikafka.config import parse_broker
from minikafka.hosting.cluster_files import Ports
from minikafka.hosting.local_broker import LocalBroker
from minikafka.ports import RequestContext
from minikafka.wire.codec import encode_request
from minikafka.wire.messages import (
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    NewTopic,
    ProducePartition,
    ProduceRequest,
)
from tests.bench.kafka_wire import FRAME, fetch_request, produce_request
from tests.bench.rows import small_batch

TOPIC = "cost"
IN_A_TURN = 4
"""Requests that arrive in one turn of the loop."""
PRODUCE_FRAMES, FETCH_FRAMES, PRODUCE_RPC, FETCH_RPC = "produce frames", "fetch frames", "produce rpc", "fetch rpc"
ROWS = (PRODUCE_FRAMES, FETCH_FRAMES, PRODUCE_RPC, FETCH_RPC)


class _Line:
    """The connection of a session: keeps the last answer."""

    opened_at = 0.0

    def __init__(self) -> None:
        self.answers = 0
        self.last: Any = ()

    def send(self, answer: Any) -> None:
        self.answers += 1
        self.last = answer

    def handled(self, size: int) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def close(self) -> None:
        raise AssertionError("the session closed the connection")

    def await_login(self, frame_bytes_max: int) -> None:
        raise AssertionError(frame_bytes_max)

    def logged_in(self, principal: str) -> None:
        raise AssertionError(principal)


class Costs:
    """One broker, and its rows."""

    def __init__(self, local: LocalBroker) -> None:
        self._broker = local.broker
        self._line = _Line()
        self._session = self._broker.open_kafka_session(self._line, RequestContext("kafka", "", "127.0.0.1"))
        self._rpc = RequestContext("http", "", "127.0.0.1")
        batch = small_batch(100)
        fetch = fetch_request(TOPIC, 1, 0, 1024)
        produce = b"".join(produce_request(TOPIC, 0, batch, 1))
        part = ProducePartition(topic=TOPIC, partition=0, records=(batch,))
        rpc_produce = b"".join(encode_request(ProduceRequest(acks=1, timeout_ms=1000, partitions=(part,))))
        wanted = FetchPartition(topic=TOPIC, partition=1, fetch_offset=0, partition_max_bytes=1024)
        rpc_fetch = b"".join(
            encode_request(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1024, partitions=(wanted,)))
        )
        self._rows: dict[str, Callable[[], None]] = {
            PRODUCE_FRAMES: self._framed(produce),
            FETCH_FRAMES: self._framed(fetch),
            PRODUCE_RPC: self._called("Produce", rpc_produce),
            FETCH_RPC: self._called("Fetch", rpc_fetch),
        }
        self._to_read = b"".join(produce_request(TOPIC, 1, batch, 1))

    def _framed(self, request: bytes) -> Callable[[], None]:
        frame = request[FRAME.size :]
        return lambda: self._session.received(memoryview(bytes(frame)))

    def _called(self, api: str, body: bytes) -> Callable[[], None]:
        def call() -> None:
            answer = self._broker.handle(api, body, self._rpc)
            if isinstance(answer, Awaitable):  # once in some megabytes: the turn is over (broker/append_throttle.py)
                waiting = asyncio.ensure_future(answer)
                waiting.add_done_callback(lambda done: self._line.send(done.result()))
            else:
                self._line.send(answer)

        return call

    async def prepare(self) -> None:
        """Create the topic and write what is fetched."""
        topic = NewTopic(name=TOPIC, num_partitions=2, replication_factor=1)
        await self._broker.answer("CreateTopics", CreateTopicsRequest(topics=(topic,), timeout_ms=5000))
        while len(self._broker.partitions) < 2:  # noqa: ASYNC110 - a benchmark
            await asyncio.sleep(0.05)
        self._framed(self._to_read)()

    async def run(self, row: str, count: int) -> float:
        """CPU microseconds of one request."""
        call, line = self._rows[row], self._line
        before = line.answers
        gc.collect()
        began = time.process_time()
        for _ in range(count // IN_A_TURN):
            for _ in range(IN_A_TURN):
                call()
            await asyncio.sleep(0)
        cost = (time.process_time() - began) * 1e6 / count
        while line.answers - before < count:  # noqa: ASYNC110 - a benchmark
            await asyncio.sleep(0)
        return cost


@asynccontextmanager
async def _costs() -> AsyncIterator[Costs]:
    with tempfile.TemporaryDirectory(prefix="minikafka-bench-") as folder:
        ports = Ports()
        address = f"127.0.0.1:{ports.take()}"
        settings = {
            "node.id": "1",
            "listeners": f"PLAINTEXT://{address}",
            "controller.quorum.voters": f"1@{address}",
            "log.dirs": folder,
        }
        local = LocalBroker(parse_broker(settings).config, syncs=False, log_level=logging.ERROR)
        await local.start()
        try:
            await local.wait_ready(30)
            costs = Costs(local)
            await costs.prepare()
            yield costs
        finally:
            await local.stop()
            ports.release()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _work() -> None:
    """Answer each line of standard input, ``row:count``, with its cost."""
    async with _costs() as costs:
        _say(compiled.build())
        # On a thread: a broker whose loop stands still for long loses its session.
        while line := await asyncio.to_thread(sys.stdin.readline):
            row, _, count = line.strip().partition(":")
            _say(str(await costs.run(row, int(count))))


async def _profile(row: str, count: int, top: int) -> None:
    async with _costs() as costs:
        await costs.run(row, count)
        profiler = cProfile.Profile()
        profiler.enable()
        await costs.run(row, count)
        profiler.disable()
    profile: Any = pstats.Stats(profiler)
    rows = [
        (own * 1e6 / count, calls / count, name if path == "~" else f"{'/'.join(Path(path).parts[-2:])}:{line} {name}")
        for (path, line, name), (_, calls, own, _, _) in profile.stats.items()
    ]
    _say(f"{row}: {sum(calls for _, calls, _ in rows):.0f} calls, {sum(own for own, _, _ in rows):.1f} us profiled")
    for own, calls, name in sorted(rows, reverse=True)[:top]:
        _say(f"  {calls:6.2f} {own:6.2f} us  {name}")


class _Worker:
    """Another process with a source tree of its own."""

    def __init__(self, tree: Path) -> None:
        # The driver is this one in every tree: older trees may lack it.
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        command = (sys.executable, str(Path(__file__).resolve()), "--worker")
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.build = self._answer()

    def _answer(self) -> str:
        output: IO[str] | None = self._process.stdout
        assert output is not None
        return output.readline().strip()

    def cost(self, row: str, count: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{row}:{count}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        with suppress(OSError):
            self._process.communicate(timeout=30)


def _compare(trees: list[Path], rows: list[str], count: int, rounds: int) -> None:
    workers = [_Worker(each) for each in trees]
    try:
        for tree, worker in zip(trees, workers, strict=True):
            _say(f"{tree}: {worker.build}")
        for row in rows:
            for worker in workers:
                worker.cost(row, count)
            costs: list[list[float]] = [[] for _ in workers]
            for number in range(rounds):
                turn = list(enumerate(workers))
                for index, worker in turn if number % 2 else reversed(turn):
                    costs[index].append(worker.cost(row, count))
            shown = "  ".join(f"{min(each):6.1f} ({statistics.median(each):6.1f})" for each in costs)
            ratio = f"  ratio {min(costs[0]) / min(costs[1]):.3f}" if len(costs) > 1 else ""
            _say(f"{row:16} us, best (median): {shown}{ratio}")
    finally:
        for worker in workers:
            worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.path_cost", description=__doc__)
    parser.add_argument("--against", type=Path, help="another source tree, for example of `git worktree add`")
    parser.add_argument("--row", choices=ROWS, action="append", help="measure only this row (repeatable)")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", choices=ROWS, metavar="ROW", help="profile one of the rows with cProfile")
    parser.add_argument("--top", type=int, default=45, help="functions to list with --profile")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        uvloop.run(_work())
    elif chosen.profile:
        uvloop.run(_profile(chosen.profile, chosen.requests, chosen.top))
    else:
        here = Path(__file__).resolve().parent.parent.parent
        trees = [here, *([chosen.against.resolve()] if chosen.against else [])]
        _compare(trees, chosen.row or list(ROWS), chosen.requests, chosen.rounds)


if __name__ == "__main__":
    main()
