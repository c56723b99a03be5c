"""A broker that measures how long each callback holds its event loop: ``python -m tests.fuzz.serve FOLDER HOLDS``.

CPU time of the loop's thread is measured, not time of day, since other processes use the machine too. They also slow
the CPU down, by its caches and its second thread: right after a long hold a known piece of work is measured, and the
hold is told as what it would have been on an undisturbed core. The longest hold is written to the file HOLDS as it
happens, so that the sender knows which request caused it. It runs on asyncio's own loop, whose handles are Python and
can be measured; uvloop's cannot.

Commands on standard input, one a line: ``measure`` collects garbage, returns free memory to the system and prints
``{"rss": bytes}``; ``holds`` prints those that were too long, with the place where they were seen; ``failure`` prints why the broker stopped by itself. The end of standard input ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import mmap
import socket
import struct
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from minikafka.config import parse_broker
from minikafka.hosting.local_broker import LocalBroker, load_doors
from minikafka.hosting.process import calm_collector
from minikafka.ports import CAUSE
from minikafka.world.http_server import FRAME_CODE, GENERAL_CODE

HOLD = struct.Struct("dQ")
"""The longest hold in seconds of CPU since the file was last zeroed, and how many callbacks ran."""

HOLD_S_MAX = 0.05

KNOWN_WORK_S = 0.0055
"""CPU time of :func:`known_work` on a quiet core of the machine for which HOLD_S_MAX is meant (3 GHz, Python 3.11)."""

SETTINGS = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",  # 50 logs made in one turn take as long as the disk wants
    "num.partitions": "2",
    "auto.create.topics.enable": "false",
    "log.segment.bytes": "1048576",
    "log.retention.bytes": "8388608",
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "500",
    "group.max.session.timeout.ms": "10000",
    "group.min.session.timeout.ms": "100",
}


LOOKS_EVERY_S = 0.01


def known_work() -> None:
    """Allocates and looks up, as a broker does."""
    held: dict[int, tuple[int, str]] = {}
    for number in range(20_000):
        held[number] = number, str(number)


def slowness() -> float:
    """How much slower than on a quiet core this thread runs at present; at least 1."""
    began = time.thread_time()
    known_work()
    return max(1.0, (time.thread_time() - began) / KNOWN_WORK_S)


class Watch:
    """Measures every callback of asyncio's loops in this process, and remembers where a long one was seen."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), HOLD.size)
        self._callbacks = 0
        self._collects_since = 0.0
        self._seen: tuple[int, str] = (0, "")
        self._excused = 0
        self.holds: list[dict[str, Any]] = []
        """Those beyond HOLD_S_MAX: seconds, the request that caused it if it is known, and the innermost frames."""

    def install(self) -> None:
        """From now on."""
        run = asyncio.events.Handle._run
        thread_time = time.thread_time
        unpack, pack = HOLD.unpack_from, HOLD.pack_into
        shared = self._shared

        def measured(handle: asyncio.events.Handle) -> None:
            began = thread_time()
            self._callbacks += 1
            run(handle)
            held = thread_time() - began if self._callbacks != self._excused else 0.0
            number, frames = self._seen
            if held > HOLD_S_MAX:
                held /= slowness()
            longest, count = unpack(shared)
            pack(shared, 0, max(held, longest), count + 1)
            if held > HOLD_S_MAX:
                cause = handle._context.get(CAUSE, "") if handle._context is not None else ""
                where = frames if number == self._callbacks else ""
                self.holds.append({"held_s": held, "cause": cause, "where": where})

        def collects(phase: str, about: dict[str, int]) -> None:
            # Nothing else runs meanwhile: without this nobody would see it.
            if phase == "start":
                self._collects_since = thread_time()
            elif (took := thread_time() - self._collects_since) > LOOKS_EVERY_S:
                where = f"collection of garbage, generation {about['generation']}, {1000 * took:.0f} ms"
                self._seen = (self._callbacks, where)

        gc.callbacks.append(collects)
        asyncio.events.Handle._run = measured  # type: ignore[method-assign]
        threading.Thread(target=self._look, args=(threading.get_ident(),), daemon=True).start()

    def excuse(self) -> None:
        """Do not count the callback that runs now: what it does is no work of a broker."""
        self._excused = self._callbacks

    def _look(self, thread: int) -> None:
        before = 0
        while True:
            time.sleep(LOOKS_EVERY_S)
            number = self._callbacks
            if number == before:
                frame = sys._current_frames().get(thread)
                stack = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
                frames = [each for each in stack if "importlib" not in each.filename][:7]
                where = " < ".join(f"{each.name}:{Path(each.filename).name}:{each.lineno}" for each in frames)
                self._seen = (number, where)
            before = number


def resident_bytes() -> int:
    """Anonymous memory of the process, after a collection and with free memory returned; files that are mapped are
    the system's to drop.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def tail_bytes(node: LocalBroker) -> int:
    """Records in the memory tails of all logs: they have a limit (``mk.memory.tails.bytes``), and fill up to it."""
    return sum(log.tail.size for log in node.broker.replicas.logs.logs.values())


def say(told: dict[str, Any]) -> None:
    """One line of JSON, at once."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


async def main(folder: Path, watch: Watch) -> None:
    """Serve until standard input ends."""
    # Whatever requests leave in memory shall be theirs, not code's.
    load_doors()
    GENERAL_CODE.load()
    FRAME_CODE.load()
    calm_collector()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = {"controller.quorum.voters": f"1@127.0.0.1:{port}", "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    config = parse_broker({**SETTINGS, **where, "log.dirs": str(folder)}).config
    node = LocalBroker(config, syncs=False)
    await node.start()
    await node.wait_ready(60)
    say({"port": node.address.port})
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).strip():
        told: dict[str, Any] = {"failure": node.failure}
        if line == b"measure":
            watch.excuse()
            told = {"rss": resident_bytes() - tail_bytes(node)}
        elif line == b"holds":
            told = {"holds": watch.holds[:]}
            watch.holds.clear()
        say(told)
    await node.kill()


if __name__ == "__main__":
    watching = Watch(Path(sys.argv[2]))
    watching.install()
    asyncio.run(main(Path(sys.argv[1]), watching))
