"""The Network port, simulated and over HTTP (D2)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from minikafka.errors import ConnectionRefused, OutcomeUnknown, Unreachable
from minikafka.ports import Handler, RequestContext, Server, World
from minikafka.sim import network as sim_network
from minikafka.types import Address
from minikafka.world import http_server
from tests.contracts.arms import Arm, contract

SOON_S = 60.0


async def echo(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
    return [api.encode(), b":", body]


async def serve(arm: Arm, handler: Handler, node: str = "server") -> Server:
    world = arm.world(node)
    return await arm.on(node, world.network.serve(arm.address(node), handler))


async def call(world: World, peer: Address, api: str = "Echo", *body: bytes, within_s: float = SOON_S) -> bytes:
    return await world.network.call(peer, api, body, deadline=world.clock.now() + within_s)


@contextmanager
def much_grace() -> Iterator[None]:
    """A server that closes gives busy connections minutes: whatever ends sooner did not use it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (http_server, sim_network):
            patch.setattr(module, "CLOSE_GRACE_S", 5 * SOON_S)
        yield


@contract
async def test_a_call_carries_api_and_body_and_brings_the_answer(arm: Arm):
    """The framed call above HTTP: bytes both ways."""
    server = await serve(arm, echo)
    client = arm.world("client")
    assert server.address.port > 0
    assert await call(client, server.address, "Produce", b"a", b"", b"bc") == b"Produce:abc"
    assert await call(client, server.address, "Fetch") == b"Fetch:"


@contract
async def test_buffers_of_any_kind_and_size_arrive_equal(arm: Arm):
    """Batches are never joined on the way: bytes, bytearray, memoryview, several MiB, thousands of pieces."""
    received: list[bytes] = []
    pieces = [os.urandom(3 << 20), bytearray(os.urandom(70_000)), memoryview(os.urandom(1 << 20))[7:]]
    whole = b"".join(pieces)
    many = [bytes([n % 256]) * (n % 50) for n in range(3000)]

    async def handler(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes | bytearray | memoryview]:
        received.append(body)
        return pieces if api == "Big" else many

    server = await serve(arm, handler)
    client = arm.world("client")
    assert await call(client, server.address, "Big", *pieces) == whole
    assert await call(client, server.address, "Many", *many) == b"".join(many)
    assert received == [whole, b"".join(many)]
    assert all(type(body) in (bytes, bytearray) for body in received), "nobody else holds it"


@contract
async def test_a_call_to_nobody_is_unreachable(arm: Arm):
    """It did not happen: whoever sent it may send it elsewhere. The machine answers that nobody listens."""
    server = await serve(arm, echo)
    await server.close()
    with pytest.raises(ConnectionRefused):
        await call(arm.world("client"), server.address)


@contract
async def test_a_host_that_cannot_be_is_unreachable(arm: Arm):
    """A name that does not resolve is a connection that was never made, and never another kind of error."""
    client = arm.world("client")
    for host in ("x" * 70, "a..b", "bad host", "[::1"):
        with pytest.raises(Unreachable) as caught:
            await call(client, Address(host, 9092))
        assert arm.simulated or not isinstance(caught.value, ConnectionRefused), "no machine has refused it"


@contract
async def test_a_handler_slower_than_the_deadline_is_unknown_and_finishes(arm: Arm):
    """The caller cannot know; the handler is not cancelled because its client left."""
    began, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        began.set()
        await go.wait()
        done.set()
        return [b"late"]

    server = await serve(arm, slow)
    client = arm.world("client")
    while not began.is_set():  # on a machine that stood still, the deadline passed before the call went out
        with pytest.raises(OutcomeUnknown):
            await call(client, server.address, within_s=0.2)
    go.set()
    async with asyncio.timeout(SOON_S):
        await done.wait()


@contract
async def test_a_late_answer_is_never_taken_for_another_calls(arm: Arm):
    """A call that ended early, by deadline or by cancellation, closes its connection."""
    go = asyncio.Event()

    async def handler(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        if api == "Slow":
            await go.wait()
        return [api.encode() * 100_000]

    server = await serve(arm, handler)
    client = arm.world("client")
    with pytest.raises(OutcomeUnknown):
        await call(client, server.address, "Slow", within_s=0.1)
    cancelled = asyncio.ensure_future(call(client, server.address, "Slow"))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    go.set()
    for _ in range(5):
        assert await call(client, server.address, "Quick") == b"Quick" * 100_000


@contract
async def test_a_deadline_that_has_passed_is_unknown(arm: Arm):
    """Never an answer after the deadline, never a hang."""
    server = await serve(arm, echo)
    client = arm.world("client")
    with pytest.raises(OutcomeUnknown):
        await client.network.call(server.address, "Echo", [], deadline=client.clock.now() - 1)


@contract
async def test_calls_run_side_by_side(arm: Arm):
    """A parked long poll must not hold up a heartbeat."""
    go = asyncio.Event()

    async def handler(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        if api == "Park":
            await go.wait()
        else:
            go.set()
        return [body]

    server = await serve(arm, handler)
    client = arm.world("client")
    answers = await asyncio.gather(
        *(call(client, server.address, "Park", bytes([n])) for n in range(20)),
        call(client, server.address, "Go", b"go"),
    )
    assert answers == [bytes([n]) for n in range(20)] + [b"go"]


@contract
async def test_a_server_that_dies_with_a_request_leaves_it_unknown(arm: Arm):
    """Kill -9 of a broker: its callers learn at once that they do not know."""
    started = asyncio.Event()

    async def never(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        started.set()
        await asyncio.Event().wait()
        return []

    server = await serve(arm, never)
    client = arm.world("client")
    waiting = asyncio.ensure_future(call(client, server.address, within_s=60))
    await started.wait()
    await arm.die("server")
    with pytest.raises(OutcomeUnknown):
        await waiting
    with pytest.raises(Unreachable):
        await call(client, server.address)


@contract
async def test_close_lets_running_handlers_answer(arm: Arm):
    """Stopping: refuse new requests, end the waiters, close the server; nobody loses the answer."""
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        started.set()
        await go.wait()
        return [b"answered"]

    server = await serve(arm, handler)
    client = arm.world("client")
    waiting = asyncio.ensure_future(call(client, server.address))
    await started.wait()
    with much_grace():
        closing = asyncio.ensure_future(server.close())
        await asyncio.sleep(0.05)
        go.set()
        assert await waiting == b"answered"
        await closing
    with pytest.raises(Unreachable):
        await call(arm.world("another"), server.address)


@contract
async def test_close_does_not_wait_for_handlers_that_never_end(arm: Arm):
    """One parked fetch must not cost the whole shutdown time-out; the handler itself is left to finish."""
    started, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def parked(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        started.set()
        await go.wait()
        done.set()
        return [b""]

    server = await serve(arm, parked)
    client = arm.world("client")
    waiting = asyncio.ensure_future(call(client, server.address, within_s=60))
    await started.wait()
    async with asyncio.timeout(SOON_S):
        await server.close()
        with pytest.raises(OutcomeUnknown):
            await waiting
        go.set()
        await done.wait()


@contract
async def test_idle_connections_do_not_keep_a_server_open(arm: Arm):
    """Keep-alive connections are closed at once."""
    server = await serve(arm, echo)
    client = arm.world("client")
    await asyncio.gather(*(call(client, server.address) for _ in range(5)))
    start = client.clock.now()
    with much_grace():
        await server.close()
    assert client.clock.now() - start < SOON_S, "well below the grace that busy connections get"


@contract
async def test_a_port_can_be_taken_again_after_close_and_not_before(arm: Arm):
    """A restarted broker finds its port free."""
    world = arm.world("server")
    server = await arm.on("server", world.network.serve(arm.address("server"), echo))
    port = server.address.port
    with pytest.raises(OSError):
        await arm.on("server", world.network.serve(arm.address("server", port), echo))
    await server.close()
    again = await arm.on("server", world.network.serve(arm.address("server", port), echo))
    assert again.address.port == port
    assert await call(arm.world("client"), again.address, "Echo", b"1") == b"Echo:1"


@contract
async def test_two_servers_of_one_node_have_ports_of_their_own(arm: Arm):
    """Port 0 means: any that is free."""
    world = arm.world("server")
    one = await arm.on("server", world.network.serve(arm.address("server"), echo))

    async def other(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        return [b"other"]

    two = await arm.on("server", world.network.serve(arm.address("server"), other))
    client = arm.world("client")
    assert one.address != two.address
    assert await call(client, one.address) == b"Echo:"
    assert await call(client, two.address) == b"other"
