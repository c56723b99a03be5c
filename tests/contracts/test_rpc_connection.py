"""The server's own end of plain /rpc connections: what it answers itself, and what it hands over, on both loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

import pytest
import uvloop
from aiohttp import web

from minikafka.parked import Parked
from minikafka.ports import RequestContext
from minikafka.types import Address
from minikafka.world import http_server, rpc_connection
from minikafka.world.http import HttpNetwork
from minikafka.world.http_server import HttpServer
from minikafka.world.outgoing import HIGH_WATER
from minikafka.world.rpc_connection import HEADS_KEPT, OUT_MAX, head_of

ANY = Address("127.0.0.1", 0)
PLAIN = b"POST /rpc/Echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"

Story = Callable[[HttpServer, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Echo:
    """Answers what it got, ``times`` over; waits at the gate before it does."""

    def __init__(self) -> None:
        self.callers: list[str] = []
        self.seen: list[bytes] = []
        self.ended: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.times = 1

    async def __call__(self, api: str, body: bytes, context: RequestContext) -> Sequence[bytes]:
        self.seen.append(bytes(body))
        self.callers.append(context.client_host)
        await self.gate.wait()
        self.ended.append(bytes(body))
        return [bytes(body) * self.times]


class ParkedEcho(Echo):
    """The same without a task: an event answers, once the gate is open."""

    def __call__(self, api: str, body: bytes, context: RequestContext) -> Parked:  # type: ignore[override]
        self.seen.append(bytes(body))
        self.callers.append(context.client_host)
        waiting = Parked(partial(self._answer, bytes(body)))
        opening = asyncio.ensure_future(self.gate.wait())
        opening.add_done_callback(lambda _: waiting.ready())
        return waiting

    def _answer(self, body: bytes) -> Sequence[bytes]:
        self.ended.append(body)
        return [body * self.times]


def doors(application: web.Application) -> None:
    """One other route."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    application.router.add_get("/hello", hello)


@pytest.fixture(params=[Echo, ParkedEcho], ids=["tasks", "parked"])
def echo_class(request) -> type[Echo]:
    """Whether a request that waits has a task or is parked makes no difference to any story."""
    return request.param


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request, echo_class: type[Echo]):
    """Run a story with a server, its handler and a raw connection to it."""

    def play(story: Callable[..., Awaitable[None]]) -> None:
        async def told() -> None:
            network, echo = HttpNetwork(load_doors=lambda: doors), echo_class()
            server = await network.serve(ANY, echo)
            reader, writer = await asyncio.open_connection(*server.address)
            try:
                async with asyncio.timeout(120):
                    await story(server, echo, reader, writer)
            finally:
                writer.close()
                await network.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(told())

    return play


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(size)


async def until(met: Callable[[], bool]) -> None:
    """Wait for it; the story's own timeout is the limit."""
    while not met():  # noqa: ASYNC110 - the server has no events for tests
        await asyncio.sleep(0.005)


def plain(server: HttpServer) -> int:
    """Connections that were not handed over."""
    return len(server._plain)


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 3",
        b"content-length:3\r\nContent-Type: application/vnd.msgpack",
        b"X-Other: whatever, it: likes\r\nContent-Length: 3\r\nConnection: close",
        b"Content-Type: \t application/vnd.msgpack \r\nContent-Length:\t3 \r\nConnection:  Keep-Alive \t",
    ],
)
def test_a_plain_head(lines: bytes):
    """What curl, brokers and clients of this project send."""
    lines = lines.replace(b"vnd.msgpack", b"msgpack")
    head = head_of(b"POST /rpc/Echo HTTP/1.1\r\nHost: localhost:9092\r\n" + lines + b"\r\n\r\n")
    assert head is not None
    told = (head.api, head.length, head.keeps_alive, head.host)
    assert told == ("Echo", 3, b"close" not in lines, b"localhost:9092")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.0\r\nHost: x\r\nContent-Length: 3\r\n\r\n",
        b"POST /rpc/Echo?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nUpgrade: h2c\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Type: application/json\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: upgrade\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n folded: line\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nno colon\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nX: a\0b\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nContent-Length: 3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\nContent-Length: 3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\norigin : null\r\nContent-Length: 3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nSec-Fetch-Site: cross-site\r\nContent-Length: 3\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\nHost: x\nContent-Length: 3\n\n",
    ],
)
def test_a_head_that_is_not_plain(head: bytes):
    """Two readings of one request are how requests are smuggled: whatever could be read twice is handed over."""
    assert head_of(head) is None


def test_a_head_with_credentials_is_not_kept():
    """The general server reads it, and no part of it stays in memory here."""
    plain = b"POST /rpc/Kept HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    secret = b"Authorization: Basic bWU6c2VjcmV0\r\n"
    assert head_of(plain + b"\r\n") is not None
    assert head_of(plain + secret + b"\r\n") is None
    kept = [head for head in rpc_connection._heads if head.startswith(b"POST /rpc/Kept ")]
    assert kept == [plain + b"\r\n"]


def test_no_more_heads_are_kept_than_a_peer_sends():
    """They are forgotten together: a client whose heads are all different leaves some of them."""
    for number in range(2 * HEADS_KEPT + 1):
        assert head_of(b"POST /rpc/Echo HTTP/1.1\r\nHost: x%d\r\nContent-Length: 3\r\n\r\n" % number) is not None
    assert len(rpc_connection._heads) <= HEADS_KEPT


def test_a_head_full_of_spaces_is_read_in_one_pass():
    """Whoever sends it pays: no field makes an expression try each place where its value might end."""
    head = b"POST /rpc/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n%b: a" + b" " * 200_000 + b"b\r\n\r\n"
    for name in (b"Content-Type", b"Connection", b"Content-Length-", b"Host"):
        began = time.process_time()
        assert head_of(head % name) is None
        assert time.process_time() - began < 1.0  # some 40 s when it takes the square


def test_a_handler_learns_who_asks_on_plain_connections_and_on_others(play):
    """Groups tell where their members are (Kafka's HOST): /127.0.0.1, whichever protocol read the request."""

    async def story(server, echo, reader, writer):
        writer.write(PLAIN % (3, b"one"))
        assert await answer(reader) == (200, b"one")
        assert plain(server) == 1
        writer.write(
            (PLAIN % (3, b"two")).replace(b"Host: localhost", b"Host: [::1]\r\nContent-Type: application/x-msgpack")
        )
        assert await answer(reader) == (200, b"two")
        assert plain(server) == 0
        assert echo.callers == ["/127.0.0.1", "/127.0.0.1"]

    play(story)


def test_a_page_is_looked_at_by_the_general_server_whatever_came_before(play):
    """The gate (web/gate.py): no origin and no unknown name is let in on a connection that is known."""

    async def story(server, echo, reader, writer):
        writer.write(PLAIN % (3, b"one"))
        assert await answer(reader) == (200, b"one")
        writer.write((PLAIN % (3, b"two")).replace(b"localhost", b"LOCALHOST:1\r\nOrigin: http://evil.example"))
        status, told = await answer(reader)
        assert (status, b"mk.http.allowed.origins" in told, plain(server)) == (403, True, 0)
        assert echo.seen == [b"one"]

    play(story)


def test_an_unknown_name_is_refused_on_the_first_request(play):
    """DNS rebinding: the page is of the broker's own origin, only its name is not the broker's."""

    async def story(server, echo, reader, writer):
        writer.write((PLAIN % (3, b"one")).replace(b"localhost", b"evil.example:9092"))
        status, told = await answer(reader)
        assert (status, b"mk.http.allowed.hosts" in told, echo.seen) == (403, True, [])

    play(story)


def test_who_is_handed_over_while_the_server_closes_is_closed(play):
    """No reading begins again on a connection that is gone; on uvloop that would be an error of the loop."""

    async def story(server, echo, reader, writer):
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        await until(lambda: plain(server) == 1)
        server._stop_listening()
        writer.write(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await until(lambda: server.connection_count == 0)
        assert errors == []

    play(story)


def test_requests_that_come_together_are_answered_in_order_one_at_a_time(play):
    """HTTP/1.1 pipelining: a handler never runs beside another of the same connection."""

    async def story(server, echo, reader, writer):
        echo.gate.clear()
        writer.write(b"".join(PLAIN % (2, b"%02d" % number) for number in range(40)))
        await until(lambda: bool(echo.seen))
        await asyncio.sleep(0.05)
        assert echo.seen == [b"00"]
        echo.gate.set()
        assert [await answer(reader) for _ in range(40)] == [(200, b"%02d" % number) for number in range(40)]
        assert plain(server) == 1

    play(story)


def test_more_requests_than_the_buffer_holds(play):
    """Reading pauses while it is full, and goes on."""

    async def story(server, echo, reader, writer):
        echo.gate.clear()
        bodies = [b"%05d" % number * 300 for number in range(200)]
        for body in bodies:
            writer.write(PLAIN % (len(body), body))
        await until(lambda: bool(echo.seen))
        await asyncio.sleep(0.05)
        assert len(echo.seen) == 1
        echo.gate.set()
        for body in bodies:
            assert await answer(reader) == (200, body)
        assert plain(server) == 1

    play(story)


def test_byte_by_byte(play):
    """However the network cuts it."""

    async def story(server, echo, reader, writer):
        for byte in PLAIN % (5, b"hello"):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        assert await answer(reader) == (200, b"hello")
        assert plain(server) == 1

    play(story)


def test_a_body_of_megabytes_and_the_next_request_behind_it(play):
    """Read into its place; what follows it is not lost."""

    async def story(server, echo, reader, writer):
        body = bytes(range(256)) * 20_000
        writer.write(PLAIN % (len(body), body) + PLAIN % (4, b"next"))
        assert await answer(reader) == (200, body)
        assert await answer(reader) == (200, b"next")
        assert (plain(server), server.queued_bytes) == (1, 0)

    play(story)


def test_the_general_server_takes_over_with_every_byte(play):
    """A door behind plain requests on one connection; from then on everything is the general server's."""

    async def story(server, echo, reader, writer):
        door = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"
        writer.write(PLAIN % (3, b"one") + door + PLAIN % (3, b"two"))
        told = [await answer(reader) for _ in range(3)]
        assert told == [(200, b"one"), (200, b"hello"), (200, b"two")]
        assert (plain(server), server.connection_count) == (0, 1)
        writer.write(door)
        assert await answer(reader) == (200, b"hello")

    play(story)


def test_a_slow_body_is_handed_over_and_answered(play, monkeypatch: pytest.MonkeyPatch):
    """Its bytes are held by nobody in between, and none is lost."""
    monkeypatch.setattr(http_server, "BODY_TIMEOUT_S", 0.6)

    async def story(server, echo, reader, writer):
        body = b"half" * 50_000
        request = PLAIN % (len(body), body)
        await until(lambda: plain(server) == 1)
        writer.write(request[:100_000])
        await until(lambda: server.queued_bytes > 0)
        monkeypatch.setattr(http_server, "BODY_TIMEOUT_S", 60.0)  # for the rest, from the hand-over on
        await until(lambda: plain(server) == 0)
        writer.write(request[100_000:])
        assert await answer(reader) == (200, body)
        assert server.queued_bytes == 0

    play(story)


def test_a_client_that_leaves_does_not_cancel_its_handler(play):
    """What was asked is done; nobody is there to be told."""

    async def story(server, echo, reader, writer):
        echo.gate.clear()
        writer.write(PLAIN % (3, b"bye"))
        await until(lambda: bool(echo.seen))
        writer.close()
        await until(lambda: server.connection_count == 0)
        echo.gate.set()
        await until(lambda: bool(echo.ended))

    play(story)


def test_who_does_not_read_is_not_answered_on_and_on(play):
    """The next request waits until the socket takes more: memory is bounded by one answer a connection."""

    async def story(server, echo, reader, writer):
        echo.times = 4_000_000
        for _ in range(20):
            writer.write(PLAIN % (4, b"1234"))
        await asyncio.sleep(0.3)
        assert len(echo.seen) <= 2
        echo.times = 1
        assert (await answer(reader))[1] == b"1234" * 4_000_000
        while len(echo.seen) < 20:
            await reader.read(1 << 20)

    play(story)


def test_connection_close_and_the_servers_own_end(play):
    """Both end after the answer."""

    async def story(server, echo, reader, writer):
        echo.gate.clear()
        writer.write(PLAIN % (1, b"x"))
        await until(lambda: bool(echo.seen))
        closing = asyncio.ensure_future(server.close())
        await asyncio.sleep(0)
        echo.gate.set()
        assert await answer(reader) == (200, b"x")
        assert await reader.read() == b""
        await closing
        assert server.connection_count == 0

    play(story)


def test_requests_whose_handler_need_not_wait_are_answered_in_one_turn(play):
    """Hundreds of them in one read: each is answered in order, without a task and without deepening the stack."""

    async def story(server: HttpServer, echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks: list[int] = []

        def handler(_api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
            tasks.append(len(asyncio.all_tasks()))
            return [bytes(body)]

        before = len(asyncio.all_tasks())
        server.handler = handler
        count = 2000
        writer.write(b"".join(PLAIN % (4, b"%04d" % number) for number in range(count)))
        for number in range(count):
            assert await answer(reader) == (200, b"%04d" % number)
        assert set(tasks) <= {before - 1, before}
        assert plain(server) == 1

    play(story)


@pytest.mark.parametrize("many", [0, http_server.MANY], ids=["many", "few"])
def test_small_responses_that_are_known_at_once_wait_for_others_if_there_are_many_connections(
    play, monkeypatch: pytest.MonkeyPatch, many: int
):
    """They keep their order with large ones, a limited number of them waits, and the last is written before the end."""
    monkeypatch.setattr(http_server, "MANY", many)
    sizes = Random(7).choices((1, 100, 900, 3_000), weights=(9, 9, 9, 1), k=400)

    async def story(server: HttpServer, echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (connection,) = server._plain
        waiting: list[int] = []

        def handler(_api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
            waiting.append(len(connection._out))
            assert (connection in server._to_flush) >= bool(connection._out)
            return [body * int(body)]

        server.handler = handler
        writer.write(b"".join(PLAIN % (4, b"%04d" % size) for size in sizes))
        writer.write(PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % (4, b"0001"))
        for size in [*sizes, 1]:
            assert await answer(reader) == (200, b"%04d" % size * size)
        assert await reader.read() == b""
        assert max(waiting) == (OUT_MAX if many == 0 else 0)

    play(story)


def test_a_response_that_waits_for_others_is_written_before_its_server_closes(play, monkeypatch: pytest.MonkeyPatch):
    """The connection closes in the very turn in which the request was handled, before the response would leave."""
    monkeypatch.setattr(http_server, "MANY", 0)

    async def story(server: HttpServer, echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (connection,) = server._plain

        def handler(_api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
            asyncio.get_running_loop().call_soon(connection.close)
            return [bytes(body)]

        server.handler = handler
        writer.write(PLAIN % (1, b"x"))
        assert await answer(reader) == (200, b"x")
        assert await reader.read() == b""

    play(story)


@pytest.mark.parametrize("many", [0, http_server.MANY], ids=["many", "few"])
@pytest.mark.parametrize("is_unusual", [False, True], ids=["body", "unusual"])
def test_no_body_is_awaited_and_nothing_handed_over_while_the_client_does_not_read(
    play, monkeypatch: pytest.MonkeyPatch, many: int, *, is_unusual: bool
):
    """The general server would not learn that the transport holds enough: a stream grew in memory without a limit."""
    monkeypatch.setattr(http_server, "MANY", many)
    size, steps = 3_000, 9
    last = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n" if is_unusual else (PLAIN % (1, b"y"))[:-1]

    async def story(server: HttpServer, echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ((connection, transport),) = server._plain.items()
        seen: list[bytes] = []

        def handler(_api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
            seen.append(bytes(body))
            return [bytes(body) * size]

        server.handler = handler
        writer.transport.pause_reading()
        for end, option in ((transport, socket.SO_SNDBUF), (writer.transport, socket.SO_RCVBUF)):
            end.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, option, 8 * 1024
            )  # else the kernel holds megabytes
        sent = 0
        while transport.get_write_buffer_size() < HIGH_WATER - steps * size:
            writer.write(PLAIN % (1, b"x"))
            sent += 1
            await until(lambda: len(seen) == sent)  # noqa: B023 - it is awaited here
            await asyncio.sleep(0)
        assert not connection._is_full
        writer.write(PLAIN % (1, b"x") * (steps + 3) + last)
        await until(lambda: connection._is_full)
        await asyncio.sleep(0.05)
        assert plain(server) == 1
        assert connection._body is None
        writer.transport.resume_reading()
        for _ in range(sent + steps + 3):
            assert await answer(reader) == (200, b"x" * size)
        if not is_unusual:
            writer.write(b"y")
        assert await answer(reader) == (200, b"hello" if is_unusual else b"y" * size)

    play(story)


def test_a_call_that_is_cancelled_before_its_first_step_leaves_no_coroutine(play):
    """A server that is killed in the turn in which a request came: Python would warn of what nobody awaited."""

    async def story(server: HttpServer, _echo: Echo, _reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await until(lambda: plain(server) == 1)
        server.handler = echo = Echo()
        [connection] = server._plain
        request = PLAIN % (1, b"x")
        connection.get_buffer(-1)[: len(request)] = request
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            connection.buffer_updated(len(request))
            [handling] = server._handling
            handling.cancel()
            await asyncio.wait([handling])
            await asyncio.sleep(0)
            gc.collect()
        assert (echo.seen, told) == ([], [])
        server._handling.discard(handling)
        server._busy.discard(connection)

    play(story)


def test_a_parked_request_is_answered_in_the_call_of_its_event(play):
    """No task, and no further turn of the loop; the request behind it begins there, too."""

    async def story(
        server: HttpServer, _echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parked: list[Parked] = []

        def handler(_api: str, body: bytes, _context: RequestContext) -> Parked:
            parked.append(Parked(lambda: [bytes(body)]))
            return parked[-1]

        server.handler = handler
        before = asyncio.all_tasks()
        writer.write(PLAIN % (1, b"a") + PLAIN % (1, b"b"))
        await until(lambda: bool(parked))
        parked[0].ready()
        assert len(parked) == 2
        assert asyncio.all_tasks() == before
        assert await answer(reader) == (200, b"a")
        parked[1].ready()
        assert await answer(reader) == (200, b"b")
        assert not server._busy
        assert not server._handling

    play(story)


def test_parked_requests_whose_result_must_be_awaited_or_is_a_bug(play):
    """The first gets a task for the rest; the second is answered with status 500, and the owner of the loop learns of it."""

    async def story(
        server: HttpServer, _echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop, bugs = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: bugs.append(type(context["exception"])))
        cold = loop.create_future()
        waiting = [Parked(lambda: cold), Parked(lambda: 1 // 0)]
        server.handler = lambda *_: waiting[0]
        writer.write(PLAIN % (1, b"a") + PLAIN % (1, b"b"))
        await until(lambda: bool(server._handling))
        waiting.pop(0).ready()
        await asyncio.sleep(0)
        assert server._busy
        cold.set_result([b"cold"])
        assert await answer(reader) == (200, b"cold")
        waiting[0].ready()
        assert (await answer(reader))[0] == 500
        assert bugs == [ZeroDivisionError]
        assert not server._busy
        assert not server._handling

    play(story)


def test_a_killed_server_computes_no_parked_answer(play):
    """As if its process had died: the event may come later, from a timer of the loop."""

    async def story(
        server: HttpServer, _echo: Echo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        computed: list[int] = []
        waiting = Parked(lambda: computed.append(1))
        server.handler = lambda *_: waiting
        writer.write(PLAIN % (1, b"a"))
        await until(lambda: bool(server._handling))
        server.abort()
        waiting.ready()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert computed == []

    play(story)
