"""Counts the calls that one produce request makes in a running broker, and prints them as JSON (tests/tidy/figures.py).

The broker runs in this thread, which is profiled; the client is a second thread with a blocking socket, which is not. The
product comes from PYTHONPATH and may be of another commit, so little of it is used here.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

import minikafka
from minikafka.config import parse_broker
from minikafka.hosting.local_broker import LocalBroker
from minikafka.wire.codec import encode_request
from minikafka.wire.messages import ProducePartition, ProduceRequest
from minikafka.wire.records import Record, build_batch

PRODUCT = str(Path(minikafka.__file__).parent) + "/"
TOPIC = "walk"
WARM_UP = 20
REPEATED = 30
TIMEOUT_S = 30


class Walk:
    """The calls that were made while it was the thread's profiler."""

    def __init__(self) -> None:
        self._frames: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        # A coroutine that goes on after an await has the same frame as before: it counts once.
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT):
            self._frames.setdefault(frame, frame.f_code.co_filename)

    def figures(self) -> tuple[int, int, int]:
        """Calls, files, and calls in another file than the call before."""
        files = list(self._frames.values())
        changes = sum(before != after for before, after in itertools.pairwise(files))
        return len(files), len(set(files)), changes


def posted(connection: http.client.HTTPConnection, path: str, body: bytes, content_type: str) -> bytes:
    """Send a request and return the body of its response."""
    connection.request("POST", path, body, {"Content-Type": content_type})
    response = connection.getresponse()
    content = response.read()
    if response.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
        raise RuntimeError(f"POST {path}: {response.status} {content!r}")
    return content


def wait_until_ready(connection: http.client.HTTPConnection) -> None:
    """Return when the broker has registered and read the cluster's metadata."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        response.read()
        if response.status == HTTPStatus.OK:
            return
        time.sleep(0.05)
    raise TimeoutError(f"the broker is not ready after {TIMEOUT_S} s")


async def walk_of(send: Callable[[], bytes]) -> tuple[int, int, int]:
    """Send the request many times from another thread; the fewest calls, with their files."""
    found = []
    for number in range(WARM_UP + REPEATED):
        walk = Walk()
        sys.setprofile(walk if number >= WARM_UP else None)
        try:
            await asyncio.to_thread(send)
        finally:
            sys.setprofile(None)
        if number >= WARM_UP:
            found.append(walk.figures())
    return min(found)


async def main() -> dict[str, tuple[int, int, int]]:
    """Start a broker and measure both ways into it."""
    batch = build_batch([Record(0, 1_700_000_000_000, 0, None, b"x" * 100)])
    partition = ProducePartition(topic=TOPIC, partition=0, records=(batch,))
    produce = b"".join(encode_request(ProduceRequest(acks=1, partitions=(partition,))))
    settings = {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "controller.quorum.voters": ""}
    with tempfile.TemporaryDirectory(prefix="minikafka-walk-") as folder:
        node = LocalBroker(parse_broker({**settings, "log.dirs": folder}).config, log_level=100, syncs=False)
        await node.start()
        connection = http.client.HTTPConnection(node.address.host, node.address.port, timeout=TIMEOUT_S)
        json_of = "application/json"
        topic = json.dumps({"name": TOPIC, "partitions": 1, "replication_factor": 1}).encode()
        record = json.dumps({"value": "x" * 100}).encode()
        try:
            await asyncio.to_thread(wait_until_ready, connection)
            await asyncio.to_thread(posted, connection, "/v1/topics", topic, json_of)
            return {
                "/rpc": await walk_of(lambda: posted(connection, "/rpc/Produce", produce, "application/msgpack")),
                "/v1": await walk_of(lambda: posted(connection, f"/v1/topics/{TOPIC}/records?acks=1", record, json_of)),
            }
        finally:
            connection.close()
            await node.stop()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main())))
