"""Anything can be sent to a port: damaged frames of Kafka's protocol harm nobody but their sender.

The seed is fixed and a fresh one is added; a failure prints the one that replays it
(``MINIKAFKA_FUZZ_SEED=N pytest tests/kafka/test_hostile_frames.py``).
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import re
import resource
import secrets
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from minikafka import LocalCluster
from minikafka.broker.kafka_session import KafkaSession
from minikafka.wire.kafka.frames import FrameReader
from minikafka.wire.kafka.offer import OFFERS
from minikafka.world.kafka_connection import KafkaConnection
from tests.kafka.client import RawClient, errors_in
from tests.kafka.test_every_version import address, requests

pytestmark = [pytest.mark.e2e]

GIVEN = os.environ.get("MINIKAFKA_FUZZ_SEED")
SEEDS = [int(GIVEN)] if GIVEN else [1, secrets.randbelow(2**32)]
FRAMES = 400
CONNECTIONS = 5_000


@pytest.fixture(scope="module")
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(scope="module")
def cluster(log: io.StringIO) -> Iterator[LocalCluster]:
    """One broker with a topic, which keeps its warnings."""
    settings = {"socket.request.max.bytes": str(8 << 20), "queued.max.request.bytes": str(16 << 20)}
    with LocalCluster(brokers=1, config=settings, log_stream=log) as made:
        made.sync.create_topic("t")
        yield made


def damaged(frame: bytes, random: Random) -> bytes:
    """One frame with something wrong, its size put right most of the time."""
    data = bytearray(frame[4:])
    kind = random.randrange(7)
    if kind == 0:
        del data[random.randrange(len(data)) :]
    elif kind == 1:
        data += random.randbytes(random.choice((1, 3, 1000)))
    elif kind == 2:
        for _ in range(random.choice((1, 5, 50))):
            data[random.randrange(len(data))] = random.randrange(256)
    elif kind == 3:
        at = random.randrange(len(data))
        data[at : at + 4] = random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe", b"\0\0\0\0"))
    elif kind == 4:
        struct.pack_into(">hh", data, 0, random.randrange(-5, 100), random.randrange(-2, 25))
    elif kind == 5:
        at = random.randrange(len(data))
        data[at:at] = b"\xff" * random.choice((1, 5, 20)) + b"\x0f"
    else:
        return struct.pack(">i", random.choice((-1, 0, 3, 2**31 - 1, 9 << 20))) + bytes(data)
    return struct.pack(">i", len(data)) + bytes(data)


@pytest.mark.parametrize("seed", SEEDS, ids=("given",) if GIVEN else ("fixed", "fresh"))
async def test_damaged_frames_harm_nobody(cluster: LocalCluster, log: io.StringIO, seed: int):
    """Each is answered, or its connection is closed; nothing raises, and other clients go on."""
    random = Random(seed)
    offers = list(OFFERS.values())
    for _ in range(FRAMES):
        offer = random.choice(offers)
        version = random.randrange(offer.first, offer.last + 1)
        client = await RawClient.at(*address(cluster))
        try:
            frame = client.request(offer.name, version, requests(random.randbytes(16))[offer.name])
            client.writer.write(damaged(frame, random))
            if random.random() < 0.5:
                client.writer.write(frame)
            client.writer.write_eof()
            await asyncio.wait_for(client.reader.read(), 60)
        except OSError:  # it was closed already
            pass
        finally:
            client.writer.close()
    client = await RawClient.at(*address(cluster))
    assert errors_in(await client.call("Metadata", 9, {"topics": None})) == {0}
    await client.close()
    assert "Traceback" not in log.getvalue(), f"MINIKAFKA_FUZZ_SEED={seed}: {log.getvalue()[-3000:]}"
    assert "raised" not in log.getvalue(), f"MINIKAFKA_FUZZ_SEED={seed}: {log.getvalue()[-3000:]}"


async def test_announcements_cost_no_memory(cluster: LocalCluster):
    """Two hundred connections announce eight megabytes each and send nothing more; the broker goes on."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    writers = []
    for _ in range(200):
        _, writer = await asyncio.open_connection(*address(cluster))
        writer.write(struct.pack(">i", 8 << 20) + struct.pack(">hhih", 0, 9, 1, 0))
        writers.append(writer)
    client = await RawClient.at(*address(cluster))
    assert errors_in(await client.call("Metadata", 9, {"topics": None})) == {0}
    await client.close()
    for writer in writers:
        writer.close()
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < 200, "1600 MB were announced"


def queued_bytes(cluster: LocalCluster) -> float:
    """Bytes of large requests that the broker holds."""
    with urllib.request.urlopen(f"http://{cluster.bootstrap}/metrics", timeout=60) as answer:
        told: str = answer.read().decode()
    return float(told.split("\nmk_queued_request_bytes ")[1].split(maxsplit=1)[0])


def many_topics() -> list[dict[str, Any]]:
    """Names for a request of 200 KB."""
    return [{"name": f"{number:0200}"} for number in range(1_000)]


async def test_frames_that_wait_for_room_are_read_when_others_leave():
    """queued.max.request.bytes is used up by half a frame: three whole ones wait, and none of them is forgotten."""
    settings = {"socket.request.max.bytes": str(1 << 20), "queued.max.request.bytes": str(1 << 20)}
    with LocalCluster(brokers=1, config=settings) as made:
        _, half = await asyncio.open_connection(*address(made))
        half.write(struct.pack(">i", 1_000_000) + struct.pack(">hhih", 0, 9, 1, 0) + bytes(500_000))
        await half.drain()
        client = await RawClient.at(*address(made))
        while not await asyncio.to_thread(queued_bytes, made):  # noqa: ASYNC110 - another thread's state, no event to wait for
            await asyncio.sleep(0.01)
        others = [await RawClient.at(*address(made)) for _ in range(3)]
        asked = {"topics": many_topics(), "allow_auto_topic_creation": False}
        calls = [asyncio.create_task(each.call("Metadata", 9, asked)) for each in others]
        assert errors_in(await client.call("Metadata", 9, {"topics": None})) == {0}
        assert not any(each.done() for each in calls)
        half.close()
        for answer in await asyncio.wait_for(asyncio.gather(*calls), 60):
            assert len(answer["topics"]) == len(asked["topics"])
        for each in (client, *others):
            await each.close()


async def test_whoever_has_room_and_does_not_send_is_closed_when_others_wait():
    """One client sent a tenth of a frame and then nothing: it held the room of all others for half a minute."""
    settings = {"socket.request.max.bytes": str(1 << 20), "queued.max.request.bytes": str(1 << 20)}
    log = io.StringIO()
    with LocalCluster(brokers=1, config=settings, log_stream=log) as made:
        reader, writer = await asyncio.open_connection(*address(made))
        writer.write(struct.pack(">i", 1_000_000) + struct.pack(">hhih", 0, 9, 1, 0) + bytes(20_000))
        client = await RawClient.at(*address(made))
        asked = {"topics": many_topics(), "allow_auto_topic_creation": False}
        for _ in range(3):
            assert len((await asyncio.wait_for(client.call("Metadata", 9, asked), 60))["topics"]) == 1_000
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        await client.close()
    assert "queued.max.request.bytes" in log.getvalue()


async def test_refused_http_request_closes_a_kafka_connection_that_stalls_mid_frame():
    """An HTTP request does not wait for room: its 503 closes the slow connection, and a retry succeeds."""
    settings = {"socket.request.max.bytes": str(1 << 20), "queued.max.request.bytes": str(1 << 20)}
    with LocalCluster(brokers=1, config=settings) as made:
        reader, writer = await asyncio.open_connection(*address(made))
        writer.write(struct.pack(">i", 1_000_000) + struct.pack(">hhih", 0, 9, 1, 0) + bytes(20_000))
        while not await asyncio.to_thread(queued_bytes, made):  # noqa: ASYNC110 - another thread's state, no event to wait for
            await asyncio.sleep(0.01)
        body = json.dumps({"topics": many_topics(), "allow_auto_topic_creation": False}).encode()
        host, port = address(made)
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{host}:{port}/rpc/Metadata", data=body, headers=head)
        statuses = []
        while statuses[-1:] != [200]:
            statuses.append(await asyncio.to_thread(status_of, request))
            await asyncio.sleep(0.1)
        assert set(statuses) == {503, 200}
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


def status_of(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_a_frame_larger_than_the_queue_is_admitted_beside_small_requests():
    """A parked fetch of 26 bytes counted as well, so that a frame beyond the limit was never read in a cluster."""
    settings = {"queued.max.request.bytes": "100000"}
    with LocalCluster(brokers=1, config=settings) as made:
        made.sync.create_topic("t")
        parked = await RawClient.at(*address(made))
        topics = [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}]
        fetch = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics}
        waiting = asyncio.create_task(parked.call("Fetch", 11, fetch))
        host, port = address(made)
        over_http, writer = await asyncio.open_connection(host, port)
        rpc = json.dumps({"max_wait_ms": 60_000, "min_bytes": 1, "partitions": [{"topic": "t", "partition": 0}]})
        head = f"POST /rpc/Fetch HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json"
        writer.write(f"{head}\r\nContent-Length: {len(rpc)}\r\n\r\n{rpc}".encode())
        client = await RawClient.at(*address(made))
        asked = {"topics": many_topics(), "allow_auto_topic_creation": False}
        assert len((await asyncio.wait_for(client.call("Metadata", 9, asked), 60))["topics"]) == 1_000
        assert not waiting.done()
        await asyncio.to_thread(made.sync.produce, "t", b"x")
        await asyncio.wait_for(waiting, 60)
        assert b" 200 " in await asyncio.wait_for(over_http.readline(), 60)
        writer.close()
        for each in (client, parked):
            await each.close()


async def test_a_frame_that_is_not_finished_does_not_stop_others(cluster: LocalCluster):
    """One byte at a time, for ever: only its own connection waits."""
    _, slow = await asyncio.open_connection(*address(cluster))
    client = await RawClient.at(*address(cluster))
    frame = client.request("Metadata", 9, {"topics": None})
    for byte in frame[:20]:
        slow.write(bytes((byte,)))
        await slow.drain()
        assert errors_in(await client.call("Metadata", 9, {"topics": None})) == {0}
    slow.close()
    await client.close()


async def test_too_large_a_frame_closes_its_connection():
    """Beyond socket.request.max.bytes, with one line in the log that names the setting, however often it is tried."""
    log = io.StringIO()
    with LocalCluster(brokers=1, config={"socket.request.max.bytes": str(8 << 20)}, log_stream=log) as made:
        for _ in range(5):
            reader, writer = await asyncio.open_connection(*address(made))
            writer.write(struct.pack(">i", 9 << 20) + b"\0\0\0\x09")
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        assert "socket.request.max.bytes" in log.getvalue()
        assert log.getvalue().count("client_connection_refused") < 5


def resident_mib() -> float:
    """Of this process, brokers and clients together, now."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


async def test_thousands_of_connections_cost_little_memory(cluster: LocalCluster):
    """Idle ones, and ones that sent half a frame: the broker serves others meanwhile, and both ends are cheap."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + 500  # both ends are here
    if most < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))
    count = min(CONNECTIONS, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500) // 2)
    frame = struct.pack(">i", 1 << 20) + struct.pack(">hhih", 0, 9, 1, 0)
    before = resident_mib()
    sockets: list[socket.socket] = []
    try:
        for number in range(count):
            sockets.append(socket.create_connection(address(cluster)))
            if number % 2:
                sockets[-1].send(frame)
            if number % 250 == 0:  # they are accepted in order, so the queue is empty then
                client = await RawClient.at(*address(cluster))
                assert errors_in(await client.call("Metadata", 9, {"topics": None})) == {0}
                await client.close()
        client = await RawClient.at(*address(cluster))
        assert errors_in(await client.call("Metadata", 9, {"topics": None})) == {0}
        await client.close()
        assert resident_mib() - before < count * 64 / 1024, "64 KiB for each connection"
    finally:
        for each in sockets:
            each.close()


async def test_closed_connections_are_freed_without_a_garbage_collection(cluster: LocalCluster):
    """Each one has a buffer of 16 KiB, and a broker begins a full collection after two million objects only. Their
    clients left after a response, in the middle of a frame, with a Fetch that waits, and after an unknown API.
    """

    def held() -> list[object]:
        kinds = (KafkaConnection, KafkaSession, FrameReader)
        return [each for each in gc.get_objects() if isinstance(each, kinds) and id(each) not in before]

    part = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1}
    topics = [{"topic": "t", "partitions": [{**part, "partition_max_bytes": 1000}]}]
    fetch = {"replica_id": -1, "max_wait_ms": 200, "min_bytes": 1_000_000, "max_bytes": 1 << 20, "topics": topics}
    endings = [b"", struct.pack(">i", 1 << 20) + b"half of it", struct.pack(">ihhi", 8, 999, 0, 1)]
    gc.collect()
    gc.disable()
    try:
        before = {id(each) for each in gc.get_objects()}
        for _ in range(5):
            for ending in [*endings, None]:
                client = await RawClient.at(*address(cluster))
                assert errors_in(await client.call("Metadata", 9, {"topics": None})) == {0}
                last = client.request("Fetch", 4, fetch) if ending is None else ending
                client.writer.write(last)
                await client.close()
        for _ in range(600):
            if not held():
                break
            await asyncio.sleep(0.1)
        assert not held()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "setting,limit", [("max.connections", 8), ("max.connections.per.ip", 8)], ids=["in all", "by address"]
)
async def test_connections_beyond_a_limit_are_closed(setting: str, limit: int):
    """Those within it are served; the log and the metrics say why the others were closed; a free place is used again."""
    log = io.StringIO()
    with LocalCluster(brokers=1, config={setting: str(limit)}, log_stream=log) as made:
        clients: list[RawClient] = []
        closed = 0
        for _ in range(limit + 5):
            client = await RawClient.at(*address(made))
            try:
                assert errors_in(await client.call("Metadata", 9, {"topics": None})) == {0}
                clients.append(client)
            except (ConnectionError, asyncio.IncompleteReadError):
                closed += 1
                client.writer.close()
        assert closed >= 5
        assert len(clients) <= limit
        assert log.getvalue().count("connection_limit_exceeded") == 1
        assert f"setting={setting} limit={limit}" in log.getvalue()
        await clients.pop().close()
        await clients.pop().close()
        async with asyncio.timeout(60):
            while True:
                try:
                    text = await asyncio.to_thread(read_metrics, made)
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        refused = re.search(rf'mk_refused_connections_total{{setting="{setting}"}} ([0-9.]+)', text)
        assert refused is not None
        assert float(refused[1]) >= closed
        for client in clients:
            await client.close()


def read_metrics(cluster: LocalCluster) -> str:
    """The text of /metrics."""
    host, port = address(cluster)
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text
