"""What the hand-written client makes of servers that misbehave: nothing is guessed, nothing leaks into the next call."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from minikafka.errors import ConnectionRefused, OutcomeUnknown, RequestRefused, Unreachable
from minikafka.types import Address
from minikafka.world import http_client
from minikafka.world.http import HttpNetwork
from minikafka.world.http_client import HttpClient

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[tuple[HttpNetwork, Address]]:
    """A server of raw bytes, and a client."""
    serving: list[asyncio.Task[None]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    network = HttpNetwork()
    try:
        yield network, Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        await network.close()
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """The head of the next request; its body is read and dropped."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(size)
    return head


def soon(seconds: float = 60.0) -> float:
    return asyncio.get_running_loop().time() + seconds


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/2 200\r\nContent-Length: 2\r\n\r\nok",
        b"\0" * 40_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf",
        b"HTTP/1.1 200",
        b"",
    ],
)
async def test_an_answer_that_is_not_understood_is_unknown(answer: bytes):
    """Network port: the request went out, so whatever comes back that is no answer says nothing of its fate."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with listening(serve) as (network, peer):
        with pytest.raises(OutcomeUnknown):
            await network.call(peer, "Echo", [b"x"], deadline=soon())


async def test_an_answer_in_single_bytes_is_put_together():
    """TCP gives bytes in any pieces; headers have any case."""
    body = bytes(range(256)) * 100

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        for byte in b"HTTP/1.1 200 OK\r\ncontent-LENGTH:%d\r\nX: y\r\n\r\n" % len(body):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        for start in range(0, len(body), 999):
            writer.write(body[start : start + 999])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with listening(serve) as (network, peer):
        assert await network.call(peer, "Echo", [], deadline=soon()) == body


async def test_connection_close_in_an_answer_means_a_new_connection():
    """A server that is stopping says so; the next call does not run into its closing connection."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n%d" % connections)
        await writer.drain()
        await reader.read()

    async with listening(serve) as (network, peer):
        assert await network.call(peer, "Echo", [], deadline=soon()) == b"1"
        assert await network.call(peer, "Echo", [], deadline=soon()) == b"2"


async def test_a_connection_is_kept_and_a_late_answer_is_never_the_next_calls():
    """A call past its deadline, or cancelled, takes its connection along."""
    seen: list[tuple[int, bytes]] = []
    connections = 0
    may_answer = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        mine = connections
        while True:
            api = (await request_of(reader)).split(b" ")[1]
            seen.append((mine, api))
            if api == b"/rpc/Slow":
                await may_answer.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(api), api))

    async with listening(serve) as (network, peer):
        assert await network.call(peer, "A", [], deadline=soon()) == b"/rpc/A"
        with pytest.raises(OutcomeUnknown, match="in time"):
            await network.call(peer, "Slow", [], deadline=soon(0.5))
        may_answer.set()
        assert await network.call(peer, "B", [], deadline=soon()) == b"/rpc/B"
        may_answer.clear()
        cancelled = asyncio.ensure_future(network.call(peer, "Slow", [], deadline=soon()))
        while len(seen) < 4:  # noqa: ASYNC110 - the server's state, no event to wait for
            await asyncio.sleep(0.001)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        may_answer.set()
        assert await network.call(peer, "C", [], deadline=soon()) == b"/rpc/C"
    assert seen == [(1, b"/rpc/A"), (1, b"/rpc/Slow"), (2, b"/rpc/B"), (2, b"/rpc/Slow"), (3, b"/rpc/C")]


async def test_a_connection_handed_on_at_once_is_not_hurt_by_the_call_before():
    """The first caller's task runs only after the second has sent: its clean-up must not touch the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            api = (await request_of(reader)).split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(api), api))

    async with listening(serve) as (network, peer):

        async def chain(name: str) -> None:
            for number in range(50):
                api = f"{name}{number}"
                assert await network.call(peer, api, [b"x"], deadline=soon()) == f"/rpc/{api}".encode()

        await asyncio.gather(*(chain(name) for name in "abcdef"))


async def test_an_answer_before_the_request_is_out_is_given_and_the_connection_is_not_used_again():
    """413 comes after the head; what is left of the body must not be read as the next request."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await reader.read(1)

    async with listening(serve) as (network, peer):
        for _ in range(2):
            with pytest.raises((RequestRefused, OutcomeUnknown), match=r"413|closed|reset|pipe"):
                await network.call(peer, "Produce", [bytes(32 << 20)], deadline=soon())
    assert connections == 2


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[tuple[HttpClient, Address, list[bytes]]]:
    """A client of its own, and the heads of all requests that its server has got."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append(await request_of(reader))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    client = HttpClient(connect_timeout_s=60.0, idle_s=10.0)
    async with listening(serve) as (_, peer):
        yield client, peer, heads
        await client.close()


async def test_a_connection_that_was_idle_for_long_takes_no_call():
    """The other end may be closing it at this moment, and the call's outcome would be unknown."""
    async with echoing() as (client, peer, _):
        assert await client.call(peer, "Echo", [], soon()) == (200, b"ok")
        (first,) = client._open
        first.idle_since -= 11.0
        assert await client.call(peer, "Echo", [], soon()) == (200, b"ok")
        assert not first.is_open


async def test_the_deadline_of_a_call_that_is_answered_does_not_end_the_next_one():
    """Its timer may be due in the turn in which its answer comes."""
    async with echoing() as (client, peer, _):
        await client.call(peer, "Echo", [], soon())
        (connection,) = client._open
        calling = asyncio.ensure_future(client.call(peer, "Echo", [], soon()))
        await asyncio.sleep(0)
        connection._expire(asyncio.get_running_loop().create_future())
        assert await calling == (200, b"ok")


async def test_a_call_that_connects_while_its_network_closes_is_not_sent():
    """A broker that was stopped must not act any more."""
    async with echoing() as (client, peer, heads):
        calling = asyncio.ensure_future(client.call(peer, "Echo", [], soon()))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(OutcomeUnknown, match="this end of the network is closed"):
            await calling
        assert heads == []


async def test_a_client_that_closes_does_not_look_for_tls(monkeypatch: pytest.MonkeyPatch):
    """It does where the peer closes a connection without an answer, which takes up to a second."""
    looked: list[Address] = []
    monkeypatch.setattr(http_client, "speaks_tls", lambda peer, _timeout_s: looked.append(peer))
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        arrived.set()
        if looked:
            await reader.read()
        writer.close()

    async with listening(serve) as (network, peer):
        for count in (1, 2):
            arrived.clear()
            calling = asyncio.ensure_future(network.call(peer, "Echo", [], deadline=soon()))
            await arrived.wait()
            if count == 2:
                await network.close()
            with pytest.raises(OutcomeUnknown, match="closed before the answer"):
                await calling
            assert looked == [peer]


async def test_a_refused_connection_is_told_in_words():
    """Not ``[Errno 111] Connection refused``: it reaches people, through the doctor and every client."""
    network = HttpNetwork()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        try:
            with pytest.raises(Unreachable, match=r"^Echo to 127\.0\.0\.1:\d+: Connect"):
                await network.call(Address(*nobody.getsockname()), "Echo", [], deadline=soon())
        finally:
            await network.close()


def unused_port() -> int:
    """A port at which nothing listens on any address of this machine."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        return int(nobody.getsockname()[1])


def named(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let the name ``localhost`` of this test's event loop have these addresses."""

    async def getaddrinfo(_host: str, port: int, **_more: object) -> list[tuple[object, ...]]:
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [
            (family, socket.SOCK_STREAM, 0, "", (address, port))
            for family, address in zip(families, addresses, strict=True)
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_a_name_whose_every_address_refuses_is_refused(monkeypatch: pytest.MonkeyPatch):
    """As ``localhost`` with ::1 and 127.0.0.1: asyncio raises "Multiple exceptions" without a number."""
    named(monkeypatch, "127.0.0.1", "127.0.0.2")
    network = HttpNetwork()
    try:
        with pytest.raises(ConnectionRefused, match="Connection refused"):
            await network.call(Address("localhost", unused_port()), "Echo", [], deadline=soon())
    finally:
        await network.close()


@pytest.mark.parametrize("other", [errno.EADDRNOTAVAIL, errno.EHOSTUNREACH])
async def test_an_address_that_is_only_unreachable_is_not_refused(monkeypatch: pytest.MonkeyPatch, other: int):
    """A machine without IPv6 cannot use ``::1``, which says nothing; an address without a route may be in use."""
    named(monkeypatch, "127.0.0.1", "127.0.0.2")
    loop = asyncio.get_running_loop()
    original = loop.sock_connect

    async def connect(sock: socket.socket, address: tuple[str, int]) -> None:
        if address[0] == "127.0.0.2":
            raise OSError(other, "not reached")
        await original(sock, address)

    monkeypatch.setattr(loop, "sock_connect", connect)
    network = HttpNetwork()
    try:
        with pytest.raises(Unreachable) as caught:
            await network.call(Address("localhost", unused_port()), "Echo", [], deadline=soon())
        assert isinstance(caught.value, ConnectionRefused) == (other == errno.EADDRNOTAVAIL)
    finally:
        await network.close()


async def test_a_name_with_an_address_that_accepts_meanwhile_is_not_refused(monkeypatch: pytest.MonkeyPatch):
    """The broker has started between the two attempts."""
    named(monkeypatch, "127.0.0.1", "127.0.0.2")
    loop = asyncio.get_running_loop()
    accepts = socket.socket()
    accepts.bind(("127.0.0.2", 0))
    original = loop.create_connection

    async def create_connection(*args: object, **more: object) -> object:
        try:
            return await original(*args, **more)
        finally:
            accepts.listen()

    monkeypatch.setattr(loop, "create_connection", create_connection)
    network = HttpNetwork()
    try:
        with pytest.raises(Unreachable) as caught:
            await network.call(Address("localhost", accepts.getsockname()[1]), "Echo", [], deadline=soon())
        assert not isinstance(caught.value, ConnectionRefused)
    finally:
        await network.close()
        accepts.close()


async def test_names_that_are_no_hosts_are_unreachable():
    """Nothing was sent, whatever is wrong with the address."""
    network = HttpNetwork()
    try:
        for host, port in (("no such host", 80), ("127.0.0.1", 0), ("\0", 80), ("127.0.0.1", 70_000), ("x" * 300, 80)):
            with pytest.raises(Unreachable):
                await network.call(Address(host, port), "Echo", [], deadline=soon())
    finally:
        await network.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_close_waits_for_nothing_that_was_cancelled_while_it_connected(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
):
    """A demo's consumer did not end: uvloop drops a cancelled connection without telling the protocol that it made."""

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def cancelled_after(turns: int) -> None:
        async with listening(serve) as (network, peer):
            call = asyncio.ensure_future(network.call(peer, "Metadata", [b"x"], deadline=soon()))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            async with asyncio.timeout(60):
                await network.close()

    async def at_every_turn() -> None:
        for turns in range(12):
            for _ in range(5):
                await cancelled_after(turns)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(at_every_turn())


def test_the_zone_of_an_address_stays_here():
    """RFC 6874: `Host: [fe80::1%eth0]` is no host, and was refused with 400; what has no colon is as it was."""
    client = HttpClient(connect_timeout_s=1, idle_s=1)
    for host, told in (("fe80::1%eth0", b"[fe80::1]"), ("::1", b"[::1]"), ("kafka-1", b"kafka-1")):
        assert b"\r\nHost: %b:9092\r\n" % told in client._new_head(Address(host, 9092), "Echo") % 0
