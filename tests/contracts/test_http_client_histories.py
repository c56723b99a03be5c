"""Random calls over kept connections to a server that cuts, delays and breaks its responses: no call gets another's.

The body of a call is its number. A response is right if it has that number, whatever happened to the calls before it
on the same connection; a call that fails is OutcomeUnknown, or the server has not seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
import uvloop

from minikafka.errors import OutcomeUnknown, Unreachable
from minikafka.types import Address
from minikafka.world.http import HttpNetwork
from tests.sim.test_campaign import drawn_by_the_tree

CALLERS = 6
CALLS = 25


class Server:
    """Reads requests from each connection, and answers them well, late, in pieces, too early or not at all."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.seen: set[bytes] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        random = self._random
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                # Sometimes the response begins before the request has come whole.
                early = size > 10_000 and random.random() < 0.1
                body = await reader.readexactly(5_000 if early else size)
                number = body[:8]
                self.seen.add(number)
                if random.random() < 0.05:
                    return
                await asyncio.sleep(random.choice((0, 0, 0, 0.005, 0.03)))
                filler = random.randbytes(random.choice((0, 10, 20_000)))
                response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % (8 + len(filler))
                closes = random.random() < 0.05
                response += (b"Connection: close\r\n" if closes else b"") + b"\r\n" + number + filler
                end = random.randrange(len(response)) if random.random() < 0.05 else len(response)
                at = 0
                while at < end and not writer.is_closing():
                    step = random.choice((1, 7, 100, 50_000))
                    writer.write(response[at : min(end, at + step)])
                    at += step
                    if random.random() < 0.3:
                        await asyncio.sleep(0)
                if early:
                    await reader.readexactly(size - 5_000)
                if closes or end < len(response):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def calls(random: Random, network: HttpNetwork, peer: Address, server: Server, first: int) -> int:
    """Calls one after the other; returns how many had a response."""
    loop, answered = asyncio.get_running_loop(), 0
    for number in range(first, first + CALLS):
        name = b"%08d" % number
        body = [name, bytes(random.choice((0, 100, 40_000)))]
        call = asyncio.ensure_future(
            network.call(peer, "Echo", body, deadline=loop.time() + random.choice((0.003, 0.02, 5)))
        )
        if random.random() < 0.1:
            await asyncio.sleep(random.choice((0, 0.001, 0.01)))
            call.cancel()
        try:
            response = await call
        except asyncio.CancelledError:
            continue
        except Unreachable:
            assert name not in server.seen
        except OutcomeUnknown:
            continue
        else:
            assert bytes(response[:8]) == name
            answered += 1
    return answered


def play(seed: int, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """One seed's history."""

    async def run() -> None:
        random = Random(f"http client/{seed}")
        server, network = Server(random), HttpNetwork()
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        peer = Address("127.0.0.1", listening.sockets[0].getsockname()[1])
        try:
            async with asyncio.timeout(120):
                counts = await asyncio.gather(
                    *(calls(random, network, peer, server, 1000 * caller) for caller in range(CALLERS))
                )
            assert sum(counts) > CALLERS * CALLS // 4
        finally:
            await network.close()
            listening.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_random_responses_to_random_calls(loop_factory: Callable[[], asyncio.AbstractEventLoop]):
    """Fresh ones with each change of the product."""
    first = drawn_by_the_tree()
    for seed in range(first, first + 6):
        print(f"tests.contracts.test_http_client_histories.play({seed}, ...)")  # noqa: T201 - to be replayed
        play(seed, loop_factory)
