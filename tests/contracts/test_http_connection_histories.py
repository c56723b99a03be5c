"""Random requests on one HTTP connection, cut into random pieces: each is answered once, in order, and lets its memory go.

A connection begins as one of plain ``/rpc`` requests (``rpc_connection.py``) and the general server takes it over
with the first request that is not plain. No reader may notice where a packet ended, nor the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from unittest import mock

import pytest
import uvloop

from minikafka.parked import Parked
from minikafka.ports import RequestContext
from minikafka.world import http_server
from minikafka.world.http import HttpNetwork
from minikafka.world.http_server import HttpServer
from tests.contracts.test_rpc_connection import ANY, answer, doors, until
from tests.sim.test_campaign import drawn_by_the_tree

SIZES = (0, 1, 100, 3_000, 9_000, 70_000, 300_000)


class Handler:
    """Answers a body with its size and first bytes: at once, from a coroutine, or when an event comes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.running = 0

    def __call__(self, _api: str, body: bytes | bytearray, _context: RequestContext) -> Any:
        response = [expected(bytes(body))]
        form = self._random.randrange(4)
        if form == 0:
            return response
        if form == 1:
            return self._later(response)
        parked = Parked(lambda: response if form == 2 else self._later(response))
        asyncio.get_running_loop().call_later(self._random.choice((0, 0.002)), parked.ready)
        return parked

    async def _later(self, response: Sequence[bytes]) -> Sequence[bytes]:
        self.running += 1
        assert self.running == 1, "one request of a connection at a time"
        await asyncio.sleep(self._random.choice((0, 0.002)))
        self.running -= 1
        return response


def expected(body: bytes) -> bytes:
    """The whole body, if it is neither small nor large: that response is too large to wait for others."""
    return b"%d bytes, " % len(body) + (body if 9_000 <= len(body) < 70_000 else body[:20])


def drawn(random: Random, number: int, *, is_plain: bool) -> tuple[bytes, bytes]:
    """A request and the body of its response."""
    body = (b"%d." % number) + random.randbytes(random.choice(SIZES))
    kind = "plain" if is_plain else random.choice(("plain", "chunked", "get", "fields", "get"))
    if kind == "get":
        return b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", b"hello"
    head = b"POST /rpc/Echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-msgpack\r\n"
    if kind == "chunked":
        cut = random.randint(0, len(body))
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", expected(body)
    if kind == "fields":
        head += b"X-Filler: " + b"x" * random.randint(1, 3_000) + b"\r\n"
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), expected(body)


async def story(random: Random, server: HttpServer, handler: Handler) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    plain_count = random.choice((0, 5, 40))
    requests = [drawn(random, number, is_plain=number < plain_count) for number in range(random.randint(1, 40))]

    async def send() -> None:
        data = b"".join(request for request, _ in requests)
        sizes = random.choice(((1, 2, 3), (10, 1_000), (50_000,), (1_000_000,), (1, 100, 100_000)))
        at = pieces = 0
        while at < len(data):
            # Small pieces at random places, and the rest of a large body in one.
            size = random.choice(sizes) if pieces < 2_000 else 1_000_000
            writer.write(data[at : at + size])
            at, pieces = at + size, pieces + 1
            if random.random() < 0.3:
                await writer.drain()
                await asyncio.sleep(0)

    sending = asyncio.create_task(send())
    for number, (_, wanted) in enumerate(requests):
        if random.random() < 0.05:
            await asyncio.sleep(0.005)
        assert await answer(reader) == (200, wanted), number
    await sending
    assert server.queued_bytes == 0
    writer.close()
    await until(lambda: server.connection_count == 0)
    assert handler.running == 0


def play(seed: int, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """One seed's history."""

    async def run() -> None:
        random = Random(f"http/{seed}")
        handler, network = Handler(random), HttpNetwork(load_doors=lambda: doors)
        server = await network.serve(ANY, handler)
        try:
            async with asyncio.timeout(120):
                await story(random, server, handler)
        finally:
            await network.close()

    # As with few other connections, and as with many: then small responses wait for the next turn of the loop.
    many = Random(f"many/{seed}").choice((0, http_server.MANY))
    with asyncio.Runner(loop_factory=loop_factory) as runner, mock.patch.object(http_server, "MANY", many):
        runner.run(run())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_random_requests_in_random_pieces(loop_factory: Callable[[], asyncio.AbstractEventLoop]):
    """Fresh ones with each change of the product."""
    first = drawn_by_the_tree()
    for seed in range(first, first + 15):
        print(f"tests.contracts.test_http_connection_histories.play({seed}, ...)")  # noqa: T201 - to be replayed
        play(seed, loop_factory)
