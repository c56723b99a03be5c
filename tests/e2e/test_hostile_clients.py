"""Issue 5: slow-loris, idle connections, parked polls and bodies beyond the limit, against real brokers.

Memory stays bounded, sessions with the controller stay alive, and others are served.
"""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest

from minikafka import LocalCluster
from minikafka.config import BrokerConfig
from minikafka.ports import RequestContext
from minikafka.world import connections
from minikafka.world.http_server import HttpServer
from tests.e2e.test_processes import Up, run

pytestmark = pytest.mark.e2e

IDLE = 2_000
SLOW = 100
POLLS = 200
BODIES = 6
BODY_SIZE = 40 * 1024 * 1024
MIB = 1024 * 1024
GROWTH_MAX = 200 * MIB


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process holds the other end of each connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * (IDLE + SLOW + POLLS)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.fail(f"this machine allows {hard} open files, {wanted} are needed: raise `ulimit -Hn`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def connected(address: tuple[str, int], count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """So many connections on which no more than this is said."""
    with ExitStack() as stack:
        sockets = []
        for _ in range(count):
            opened = stack.enter_context(socket.create_connection(address, timeout=120))
            if said:
                opened.sendall(said)
            sockets.append(opened)
        yield sockets


def head(method: str, path: str, size: int = 0) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode()


def was_refused(connection: socket.socket, part: bytes) -> bool:
    """Send ``part`` of a body: whether the server answered with 503, or closed the connection, before the body's end."""
    try:
        connection.sendall(part)
        connection.settimeout(5)
        return b" 503 " in connection.recv(4096)
    except TimeoutError:
        return False
    except OSError:
        return True


def leaders(up: Up) -> list[tuple[int, int]]:
    """(leader, leader epoch) of each partition: a lost session would have moved it."""
    (topic,) = json.loads(run("topics", "describe", "t", "-b", up.bootstrap, "-o", "json"))["topics"]
    return [(each["leader"], each["leader_epoch"]) for each in topic["partitions"]]


def test_hostile_clients_cost_little_and_disturb_nobody(tmp_path: Path, many_files: None):
    """2,000 idle connections, slow heads and bodies, 200 parked polls: bounded memory, no election, all is served."""
    settings = ("broker.session.timeout.ms=6000", "broker.heartbeat.interval.ms=500")
    with Up(tmp_path, "--brokers", "3", *(part for each in settings for part in ("--config", each))) as up:
        run("topics", "create", "t", "--partitions", "3", "--replication-factor", "3", "-b", up.bootstrap)
        before = leaders(up)
        url = urlsplit(up.brokers[1]["url"])
        address = str(url.hostname), int(url.port or 0)
        process = psutil.Process(up.brokers[1]["pid"])
        size = process.memory_info().rss
        with ExitStack() as stack:
            stack.enter_context(connected(address, IDLE, b""))
            slow = stack.enter_context(connected(address, SLOW, b"POST /rpc/Produce HTTP/1.1\r\nX-"))
            poll = head("GET", "/v1/topics/t/partitions/0/records?offset=0&max_wait_ms=30000")
            stack.enter_context(connected(address, POLLS, poll))
            bodies = stack.enter_context(connected(address, BODIES, head("POST", "/rpc/Produce", BODY_SIZE)))
            for _ in range(10):
                for each in (*slow, *bodies):
                    each.send(b"x" * 100)
                time.sleep(0.1)
            values = "".join(f"k{n}:{n}\n" for n in range(500))
            summary = json.loads(run("produce", "t", "-b", up.bootstrap, "--key-separator", ":", given=values))
            assert summary["acknowledged"] == 500
            read = run("consume", "t", "-b", up.bootstrap, "--from-beginning", "--exit-at-end")
            assert sorted(map(int, read.split())) == list(range(500))
            assert sum(was_refused(each, bytes(BODY_SIZE - MIB)) for each in bodies) >= BODIES - 1, (
                "64 MiB are held at most"
            )
            assert process.memory_info().rss - size < GROWTH_MAX
        assert leaders(up) == before
        assert up.end() == 0


async def test_who_connects_and_asks_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch):
    """A head that never ends holds its connection for a bounded time; one that was answered is kept."""
    import asyncio

    from minikafka.types import Address

    monkeypatch.setattr(connections, "FIRST_REQUEST_TIMEOUT_S", 0.2)
    config = BrokerConfig()

    async def handler(_api: str, body: bytes, _context: RequestContext) -> list[bytes]:
        return [body]

    server = HttpServer(
        handler,
        request_max_bytes=config.socket_request_max_bytes,
        queued_max_bytes=config.queued_max_request_bytes,
        idle_timeout_s=60,
    )
    await server.listen(Address("127.0.0.1", 0))
    host, port = server.address
    request = b"POST /rpc/Echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"
    is_answered = False
    while not is_answered:  # who comes to speak only after that time, for the machine stood still, is let go as well
        good_reader, good = await asyncio.open_connection(host, port)
        good.write(request)
        try:
            assert (await good_reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
            is_answered = True
        except (asyncio.IncompleteReadError, ConnectionError):
            good.close()
    loris_reader, loris = await asyncio.open_connection(host, port)
    for each in b"POST /rpc/E":
        if loris_reader.at_eof():
            break
        loris.write(bytes([each]))
        await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):  # a byte was on its way while it was closed
            assert await loris_reader.read() == b""
    good.write(request)
    assert (await good_reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
    for each in (loris, good):
        each.close()
    await server.close()


@pytest.mark.parametrize("door", ["kafka", "/v1", "/rpc"])
def test_a_client_that_does_not_read_is_disconnected(door: str):
    """It has sent more requests than there is room for responses: one of them was under way for ever."""
    with LocalCluster(1, config={"connections.max.idle.ms": "1000"}) as cluster:
        cluster.sync.create_topic("wide", partitions=100)
        host, _, port = cluster.bootstrap.partition(":")
        requests = {
            # Metadata version 1 of all topics.
            "kafka": bytes.fromhex("0000000e0003000100000001ffffffffffff"),
            "/v1": head("GET", "/v1/topics/wide/partitions"),
            "/rpc": head("POST", "/rpc/Metadata", 2) + b"{}",
        }
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(0.5)
            client.connect((host, int(port)))
            with suppress(TimeoutError, ConnectionError):
                for _ in range(3_000):
                    client.sendall(requests[door])
            until = time.monotonic() + 60
            while f"{host}:{client.getsockname()[1]}" in peers(cluster):
                assert time.monotonic() < until, "it is still connected"
                time.sleep(0.2)


def peers(cluster: LocalCluster) -> set[str]:
    """Addresses and ports of the clients that have a connection."""
    with urlopen(f"http://{cluster.bootstrap}/v1/connections") as response:
        return {each["remote"] for each in json.load(response)["connections"]}
