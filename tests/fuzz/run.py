"""Send generated HTTP requests and frames of Kafka's protocol to a broker process, and count what must not happen."""

from __future__ import annotations

import json
import mmap
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import msgpack

from minikafka.rest.route import Route
from minikafka.wire.apis import Api
from minikafka.wire.kafka.translate.common import Translation
from tests.fuzz.frames import FRAME_TARGETS, FrameCaller, crowd, fault_of, frame_for, topic_id
from tests.fuzz.requests import JSON, TARGETS, TOPICS, Request, bombs, request_for
from tests.fuzz.serve import HOLD, HOLD_S_MAX

Target = Api | Route | Translation
PROTOCOLS: dict[str, tuple[Target, ...]] = {
    "http": TARGETS,
    "kafka": FRAME_TARGETS,
    "both": (*TARGETS, *FRAME_TARGETS),
}
"""What requests are for: APIs and routes over HTTP, APIs of Kafka's protocol."""

MEMORY_GROWTH_MAX = 0.2
PATIENCE_S = 60.0
"""For a broker that does not answer: a hang is a failure, however slow the machine."""
PARKED_S = 0.25
"""Requests that may wait for others (JoinGroup, long polls, streams) are left behind after this."""
WARM_UP = 20
"""Requests to each target before memory is measured first: every code path has run, and the logs have records."""
FILES_MAX = 12_000
"""Open files of the sender and of the broker, for a crowd of connections."""
SETTLE_S = 3.0
MALLOC = {"PYTHONMALLOC": "malloc", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Freed buffers go back to the system, so that what is measured is in use and no hole in glibc's heap."""
UNKNOWN_SERVER_ERROR = -1


class NoAnswer(Exception):
    """The broker neither answered nor closed the connection."""


class Served:
    """The measured broker process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="minikafka-fuzz-")
        folder = Path(self._folder.name)
        most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most < FILES_MAX:
            resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX if hard < 0 else min(FILES_MAX, hard), hard))
        holds = folder / "holds"
        holds.write_bytes(bytes(HOLD.size))
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.serve", str(folder / "data"), str(holds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env=os.environ | MALLOC,
            )
        with holds.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), HOLD.size)
        try:
            self.port: int = self._line()["port"]
        except NoAnswer:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._shared.close()
        self._folder.cleanup()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            ended = f"the broker process ended with {self._process.wait(PATIENCE_S)}"
            raise NoAnswer(f"{ended}, and wrote:\n{self.log()[-3_000:]}")
        told: dict[str, Any] = json.loads(line)
        return told

    def _ask(self, command: bytes) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(command + b"\n")
        self._process.stdin.flush()
        return next(iter(self._line().values()))

    def resident_bytes(self) -> int:
        """After a collection and with free memory returned."""
        return int(self._ask(b"measure"))

    def holds(self) -> list[dict[str, Any]]:
        """Holds beyond HOLD_S_MAX since the last call, as the broker saw them."""
        told: list[dict[str, Any]] = self._ask(b"holds")
        return told

    def failure(self) -> str | None:
        """Why the broker stopped by itself."""
        told: str | None = self._ask(b"failure")
        return told

    @property
    def peak_bytes(self) -> int:
        """The largest resident size of the process so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def longest_hold_s(self) -> float:
        """The longest that one callback has held the loop since the last call, in seconds of CPU."""
        longest: float
        longest, count = HOLD.unpack_from(self._shared)
        HOLD.pack_into(self._shared, 0, 0.0, count)
        return longest

    def log(self) -> str:
        """All that the broker has written to standard error."""
        return self._log.read_text(errors="replace")


class Caller:
    """One connection at a time; a request is bytes, so nothing about it needs to be well-formed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """The next request opens another connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, request: Request, *, may_wait: bool) -> tuple[int, bytes] | None:
        """Status and body; None: it waits, and was left behind. A connection that is closed without answer is 0."""
        length = len(request.body) if request.length is None else request.length
        head = f"{request.method} {request.target} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Length: {length}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in request.headers) + "\r\n"
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), PATIENCE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        patience_s = PARKED_S if may_wait or request.length is not None else PATIENCE_S
        try:
            self._write(head.encode("utf-8", "replace") + request.body)
            return self._answer(request.method == "HEAD", patience_s)
        except TimeoutError:
            self.close()
            if patience_s == PATIENCE_S:
                raise NoAnswer(request.name) from None
            return None
        except ConnectionError:
            self.close()
            return 0, b""

    def _write(self, data: bytes) -> None:
        """All of it, unless the broker answers before it has read all: then it will not read the rest."""
        assert self._socket is not None
        view = memoryview(data)
        self._socket.settimeout(PATIENCE_S)
        while view:
            readable, writable, _ = select.select([self._socket], [self._socket], [], PATIENCE_S)
            if readable:
                return
            if not writable:
                raise TimeoutError
            view = view[self._socket.send(view[: 1 << 18]) :]

    def _answer(self, is_head: bool, patience_s: float) -> tuple[int, bytes]:
        assert self._socket is not None
        self._socket.settimeout(patience_s)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._part()
        head, _, body = data.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        closes = fields.get(b"connection", b"").lower() == b"close"
        if is_head or status in (204, 304):
            if closes:
                self.close()
            return status, b""
        if b"content-length" not in fields:
            self.close()  # a stream: its head is the answer
            return status, b""
        size = int(fields[b"content-length"])
        parts, held = [body], len(body)
        self._socket.settimeout(PATIENCE_S)
        while held < size:
            part = self._part()
            parts.append(part)
            held += len(part)
        if closes:
            self.close()
        return status, b"".join(parts)

    def _part(self) -> bytes:
        assert self._socket is not None
        part = self._socket.recv(1 << 20)
        if not part:
            raise ConnectionResetError
        return part


MAY_WAIT = (
    "AwaitStop",
    "JoinGroup",
    "SyncGroup",
    "Fetch",
    "members",
    "stream",
    "records",
    "events",
    "ListOffsets",
    "Produce",
)


@dataclass
class Counts:
    """What happened, and what must not have."""

    seed: int
    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """Sentences about answers of 500, tracebacks, holds and hangs; empty: all is well."""
    longest_holds: list[tuple[float, str]] = field(default_factory=list)
    holds: list[dict[str, Any]] = field(default_factory=list)
    """As the broker saw them: where it was, and for whom."""
    rss_before: int = 0
    rss_after: int = 0
    peak_bytes: int = 0
    tracebacks: int = 0
    seconds: float = 0.0
    connections: int = 0
    """Connections that were open at a time at the end."""

    @property
    def longest_hold_s(self) -> float:
        return self.longest_holds[0][0] if self.longest_holds else 0.0

    @property
    def held_too_long(self) -> int:
        return sum(held > HOLD_S_MAX for held, _ in self.longest_holds)

    def render(self) -> str:
        """For people."""
        mib = 1 << 20
        statuses = ", ".join(f"{status} {count:,}" for status, count in sorted(self.statuses.items()))
        lines = [
            f"seed {self.seed}: {self.requests:,} requests to {len(self.targets)} APIs and routes in {self.seconds:.0f} s"
            + (f", then {self.connections:,} connections at a time" if self.connections else ""),
            f"answers: {statuses}",
            (
                f"answers of 500: {self.statuses['500']}   tracebacks in the log: {self.tracebacks}   "
                f"holds of more than {HOLD_S_MAX * 1000:.0f} ms of CPU: {self.held_too_long}"
            ),
            (
                f"memory: {self.rss_before / mib:.0f} MiB before, {self.rss_after / mib:.0f} MiB after "
                f"({self.rss_after / max(self.rss_before, 1) - 1:+.0%}), peak {self.peak_bytes / mib:.0f} MiB"
            ),
            "longest holds of the loop: "
            + "; ".join(f"{held * 1000:.1f} ms {name}" for held, name in self.longest_holds[:8]),
        ]
        lines += [f"held {each['held_s'] * 1000:.0f} ms {each['cause']} {each['where']}" for each in self.holds[:40]]
        return "\n".join(lines + [f"NOT WELL: {fault}" for fault in self.faults[:40]])


def fuzz(
    seed: int,
    *,
    requests: int | None = None,
    seconds: float | None = None,
    protocol: str = "both",
    connections: int = 0,
    say: Callable[[str], None] | None = None,
) -> Counts:
    """So many requests, or for so long, to each target of the protocol in turn; then so many connections at a time."""
    counts = Counts(seed)
    targets = PROTOCOLS[protocol]
    warm_up = max(WARM_UP * len(targets), (requests or 0) // 10)
    random = Random(seed)
    bombs()  # made once, before the clock runs
    began = time.monotonic()
    with Served() as served:
        caller = Caller(served.port)
        frames = FrameCaller(served.port, patience_s=PATIENCE_S, parked_s=PARKED_S)
        try:
            ids = _set_up(caller)
            served.holds()
            served.longest_hold_s()
            while (requests is None or counts.requests < requests) and (
                seconds is None or time.monotonic() - began < seconds
            ):
                if counts.requests == warm_up:
                    counts.rss_before = served.resident_bytes()
                    served.longest_hold_s()
                if say is not None and counts.requests and counts.requests % 10_000 == 0:
                    say(counts.render())
                target = targets[counts.requests % len(targets)]
                if isinstance(target, Translation):
                    _one_frame(counts, random, served, frames, target, ids)
                else:
                    _one(counts, random, served, caller, target)
            caller.close()
            frames.close()
            if connections:
                counts.connections = crowd(served.port, connections, PATIENCE_S)
                _note_hold(counts, served, f"{connections} connections")
            _settle(served)
            failure = served.failure()
            if failure:
                counts.faults.append(f"the broker stopped by itself: {failure}")
            counts.holds = served.holds()
            counts.rss_after = served.resident_bytes()
        except (NoAnswer, OSError) as error:
            counts.faults.append(f"after {counts.requests} requests: {type(error).__name__}: {error}")
        finally:
            caller.close()
            frames.close()
            if os.environ.get("MINIKAFKA_FUZZ_LOG"):
                Path(os.environ["MINIKAFKA_FUZZ_LOG"]).write_text(served.log())
        counts.peak_bytes = served.peak_bytes
        counts.tracebacks = served.log().count("Traceback (most recent call last)")
    counts.seconds = time.monotonic() - began
    if counts.tracebacks:
        counts.faults.append(f"{counts.tracebacks} tracebacks in the broker's log")
    if counts.rss_before and counts.rss_after > counts.rss_before * (1 + MEMORY_GROWTH_MAX):
        counts.faults.append(f"memory grew from {counts.rss_before} to {counts.rss_after} bytes")
    return counts


def _set_up(caller: Caller) -> list[bytes]:
    """The topics that requests hit; their ids."""
    ids = []
    for name in TOPICS:
        document = {"name": name, "partitions": 40 if name == "wide" else 2}
        if name == "compacted":
            document["config"] = {
                "cleanup.policy": "compact",
                "segment.bytes": "65536",
                "min.cleanable.dirty.ratio": "0.1",
            }
        body = json.dumps(document).encode()
        answer = caller.send(Request("set up", "POST", "/v1/topics", body, (("Content-Type", JSON),)), may_wait=False)
        if answer is None or answer[0] not in (200, 201):
            raise NoAnswer(f"topic {name} was not created: {answer}")
        ids.append(topic_id(json.loads(answer[1])["topic_id"]))
    return ids


def _one(counts: Counts, random: Random, served: Served, caller: Caller, target: Api | Route) -> None:
    number = counts.requests
    request = request_for(random, target)
    may_wait = any(word in request.name for word in MAY_WAIT)
    answer = caller.send(request, may_wait=may_wait)
    counts.requests += 1
    counts.targets[
        request.name.split(" ")[0] if request.target.startswith("/rpc") else request.name.split(" app")[0]
    ] += 1
    what = f"request {number}, {request.name} ({request.target[:80]}, {len(request.body)} bytes)"
    _note_hold(counts, served, what)
    if answer is None:
        counts.statuses["left waiting"] += 1
        return
    status, body = answer
    is_bug = status == 500 or _is_server_error(request, status, body)
    counts.statuses["500" if is_bug else str(status or "closed")] += 1
    if is_bug:
        counts.faults.append(f"{what}: 500 {body[:300]!r}")
        if served.failure():
            raise NoAnswer(f"the broker stopped by itself: {served.failure()}")


def _one_frame(
    counts: Counts, random: Random, served: Served, caller: FrameCaller, target: Translation, ids: list[bytes]
) -> None:
    frame = frame_for(random, target, ids)
    what = f"request {counts.requests}, Kafka {frame.name} ({len(frame.data)} bytes)"
    counts.requests += 1
    counts.targets[f"Kafka {target.name}"] += 1
    try:
        outcome, answers = caller.send(frame)
    except TimeoutError:
        raise NoAnswer(what) from None
    _note_hold(counts, served, what)
    fault = fault_of(frame, answers, UNKNOWN_SERVER_ERROR)
    counts.statuses["500" if fault else f"Kafka {outcome}"] += 1
    if fault:
        counts.faults.append(f"{what}: {fault}")
        if served.failure():
            raise NoAnswer(f"the broker stopped by itself: {served.failure()}")


def _note_hold(counts: Counts, served: Served, what: str) -> None:
    held = served.longest_hold_s()
    counts.longest_holds.append((held, what))
    counts.longest_holds.sort(reverse=True)
    keep = max(20, counts.held_too_long)
    del counts.longest_holds[keep:]
    if held > HOLD_S_MAX:
        counts.faults.append(f"{what} held the loop for {held * 1000:.1f} ms")


def _is_server_error(request: Request, status: int, body: bytes) -> bool:
    """Does an answer of ``/rpc`` say UNKNOWN_SERVER_ERROR, which is what a bug becomes there?"""
    if not request.target.startswith("/rpc/") or status != 200:
        return False
    if body[:1] == b"{":
        head = json.loads(body)
    else:
        head = msgpack.unpackb(body[4 : 4 + int.from_bytes(body[:4])], strict_map_key=False)
    return bool(head.get("error_code") == UNKNOWN_SERVER_ERROR)


def _settle(served: Served) -> None:
    """Requests that were left behind end with their own waits; give them the time of the longest usual one."""
    time.sleep(SETTLE_S)
    served.resident_bytes()
