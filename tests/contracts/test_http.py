"""What HTTP itself shows of the Network port: limits, other routes, and clients that misbehave (D7, Back-pressure)."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from aiohttp import web

from minikafka.client.caller import Caller
from minikafka.errors import NOT_WRITTEN, NetworkException, OutcomeUnknown, RequestRefused
from minikafka.ports import Handler, RequestContext, World
from minikafka.types import Address
from minikafka.web import gate as gate_rule
from minikafka.web.gate import Gate
from minikafka.wire.messages import MetadataRequest
from minikafka.world import http_requests, http_server, request_room, unread_responses
from minikafka.world.http import HttpNetwork
from minikafka.world.http_connections import Doors
from minikafka.world.http_server import HttpServer
from minikafka.world.rpc_connection import BODY_SIZE_MAX

ANY = Address("127.0.0.1", 0)
PATIENCE_S = 60


async def echo(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
    return [body]


@asynccontextmanager
async def serving(handler: Handler = echo, **options) -> AsyncIterator[tuple[HttpNetwork, HttpServer]]:
    network = HttpNetwork(**options)
    try:
        yield network, await network.serve(ANY, handler)
    finally:
        await network.close()


class Wire:
    """A raw connection: what is written is what is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, head: str, body: bytes = b"") -> None:
        self.writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def ended(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def wire_to(server: HttpServer) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


async def test_curl_gets_msgpack_with_length_date_and_keep_alive():
    """An answer is plain HTTP/1.1; two requests share a connection."""
    async with serving() as (_, server), wire_to(server) as wire:
        for body in (b"one", b""):
            wire.send(f"POST /rpc/Echo HTTP/1.1\nHost: localhost\nContent-Length: {len(body)}", body)
            status, headers, answer = await wire.answer()
            assert (status, answer, headers["content-type"]) == (200, body, "application/msgpack")
            assert headers["date"].endswith("GMT")
            assert "connection" not in headers


async def test_connection_close_is_honoured():
    """HTTP/1.1 clients that want no keep-alive."""
    async with serving() as (_, server), wire_to(server) as wire:
        wire.send("POST /rpc/Echo HTTP/1.1\nHost: localhost\nConnection: close\nContent-Length: 1", b"x")
        status, headers, _ = await wire.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await wire.ended()


async def test_chunked_bodies_arrive_whole():
    """A client that does not know its length yet."""
    async with serving() as (_, server), wire_to(server) as wire:
        wire.send(
            "POST /rpc/Echo HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert (await wire.answer())[2] == b"abcde"


async def test_expect_100_continue_is_answered():
    """curl sends it for large bodies and waits a second otherwise."""
    async with serving() as (_, server), wire_to(server) as wire:
        wire.send("POST /rpc/Echo HTTP/1.1\nHost: localhost\nExpect: 100-continue\nContent-Length: 5")
        assert (await wire.answer())[0] == 100
        wire.writer.write(b"hello")
        assert (await wire.answer())[2] == b"hello"


async def test_a_body_over_the_limit_is_refused_before_it_is_read():
    """socket.request.max.bytes: 413 by Content-Length alone; RFC 9457 body; the connection is closed."""
    async with serving(request_max_bytes=1000) as (_, server), wire_to(server) as wire:
        wire.send("POST /rpc/Produce HTTP/1.1\nHost: localhost\nContent-Length: 1001")
        status, headers, body = await wire.answer()
        assert (status, headers["content-type"]) == (413, "application/problem+json")
        assert json.loads(body)["error"] == "RECORD_LIST_TOO_LARGE"
        assert await wire.ended()


@pytest.mark.parametrize("api, status", [("Metadata", 413), ("Produce", 100)])
async def test_an_announced_length_costs_nothing(api: str, status: int):
    """100 MiB that were only announced were filled with zeros, 60 ms; only Produce may carry as much."""
    async with serving() as (_, server), wire_to(server) as wire:
        tracemalloc.start()
        try:
            wire.send(f"POST /rpc/{api} HTTP/1.1\nHost: localhost\nExpect: 100-continue\nContent-Length: 104857600")
            assert (await wire.answer())[0] == status
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "sent",
    [
        b"this is no http\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GE\x00T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /rpc/Echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: five\r\n\r\n",
        b"GET /rpc/Echo HTTP/1.1\r\nno colon here\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["words", "tls", "version", "method", "length", "header", "long"],
)
async def test_what_is_no_http_is_answered_with_a_problem_in_silence(sent, caplog):
    """Anybody can send anything to a port: the sender is told, the log is not filled with tracebacks."""
    async with serving() as (_, server), wire_to(server) as wire:
        wire.writer.write(sent)
        status, headers, body = await wire.answer()
        assert (status, headers["content-type"]) == (400, "application/problem+json")
        told = json.loads(body)
        assert (told["error"], told["outcome"], told["status"]) == ("INVALID_REQUEST", "not_written", 400)
        assert len(told["detail"]) < 300
        assert await wire.ended()
    assert caplog.text == ""


async def test_a_chunked_body_over_the_limit_is_refused_when_it_gets_there():
    """No length announced: the limit holds while reading."""
    async with serving(request_max_bytes=1000) as (_, server), wire_to(server) as wire:
        wire.send("POST /rpc/Produce HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked", b"400\r\n" + b"x" * 1024)
        assert (await wire.answer())[0] == 413


async def test_a_call_with_a_body_over_the_limit_is_refused_unread():
    """Issue 13: the outcome was unknown, although no broker had read the request. The connection's end is no hang."""
    async with serving(request_max_bytes=1000) as (network, server):
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        with pytest.raises(RequestRefused, match=r"HTTP 413: 5000 bytes; socket.request.max.bytes is 1000"):
            await network.call(server.address, "Produce", [b"x" * 5000], deadline=deadline)
        caller = Caller(World(clock=None, network=network, disk=None, events=None, random=None, entropy=None))  # type: ignore[arg-type]
        with pytest.raises(NetworkException, match="HTTP 413") as caught:
            await caller.call(server.address, MetadataRequest(topics=("t" * 5000,)), deadline=deadline)
        assert caught.value.outcome == NOT_WRITTEN
        assert await network.call(server.address, "Produce", [b"x" * 500], deadline=deadline) == b"x" * 500


async def test_bytes_in_flight_are_admitted_before_they_are_read():
    """queued.max.request.bytes: 503 with Retry-After; small bodies (followers' fetches) always pass."""
    go = asyncio.Event()
    size = http_server.ALWAYS_ADMITTED_SIZE + 1

    async def handler(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        if api == "Produce":
            await go.wait()
        return [b"%d" % len(body)]

    async with serving(handler, queued_max_bytes=size + 100) as (network, server), wire_to(server) as wire:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        parked = asyncio.ensure_future(network.call(server.address, "Produce", [bytes(size)], deadline=deadline))
        while server.queued_bytes == 0:  # noqa: ASYNC110 - another task's state, no event to wait for
            await asyncio.sleep(0.001)
        assert server.queued_bytes == size
        wire.send(f"POST /rpc/Produce HTTP/1.1\nHost: localhost\nContent-Length: {size}")
        status, headers, _ = await wire.answer()
        assert (status, headers["retry-after"]) == (503, "1")
        assert await network.call(server.address, "Fetch", [b"small"], deadline=deadline) == b"5"
        go.set()
        assert await parked == b"%d" % size
        assert server.queued_bytes == 0
        assert await network.call(server.address, "Produce", [bytes(size)], deadline=deadline) == b"%d" % size


async def test_large_requests_of_all_connections_take_turns():
    """One is handled in a turn of the loop: a hundred fetches of 4,000 partitions each held a broker for 10 s. Small
    requests are served in between, and records wait for nothing.
    """
    turn, large = 0, http_server.LARGE_BODY + 1
    handled: dict[str, list[int]] = {"Metadata": [], "Heartbeat": [], "Produce": []}

    def handler(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        handled[api].append(turn)
        return [b"%d" % len(body)]

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with serving(handler) as (network, server):
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        counting = asyncio.ensure_future(count_turns())
        sizes = [("Metadata", large)] * 30 + [("Heartbeat", 9), ("Produce", large)]
        calls = [network.call(server.address, api, [bytes(size)], deadline=deadline) for api, size in sizes]
        assert await asyncio.gather(*calls) == [b"%d" % size for _, size in sizes]
        counting.cancel()
    assert len(set(handled["Metadata"])) == 30
    assert max(handled["Heartbeat"] + handled["Produce"]) < max(handled["Metadata"])


async def test_a_chunked_body_is_admitted_as_it_comes():
    """Who announces no length is counted while it sends: any number of such bodies could fill the memory."""
    part, limit = http_server.ALWAYS_ADMITTED_SIZE, 3 * http_server.ALWAYS_ADMITTED_SIZE
    head = "POST /rpc/Produce HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked"
    chunk = b"%x\r\n%b\r\n" % (part, bytes(part))

    async def held(server: HttpServer, size: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while server.queued_bytes != size:  # noqa: ASYNC110 - another task's state, no event to wait for
                await asyncio.sleep(0.001)

    async with serving(queued_max_bytes=limit) as (network, server), wire_to(server) as one, wire_to(server) as other:
        one.send(head, chunk + chunk)
        await held(server, 2 * part)
        other.send(head, chunk + chunk)  # a small one always passes, and is not counted; it grows
        status, headers, _ = await other.answer()
        assert (status, headers["retry-after"]) == (503, "1")
        await held(server, 2 * part)
        one.writer.write(chunk + b"0\r\n\r\n")
        assert (await one.answer())[0] == 200
        await held(server, 0)
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        assert await network.call(server.address, "Produce", [b"small"], deadline=deadline) == b"small"


async def test_an_announced_body_holds_only_what_has_arrived():
    """A client that announced a large body and then stalled had every other large body refused for 30 seconds."""
    part, size = http_server.ALWAYS_ADMITTED_SIZE + 1, BODY_SIZE_MAX + 1
    async with serving(queued_max_bytes=size) as (network, server), wire_to(server) as slow:
        slow.send(f"POST /rpc/Produce HTTP/1.1\nHost: localhost\nContent-Length: {size}", bytes(2 * part))
        async with asyncio.timeout(PATIENCE_S):
            while server.queued_bytes < 2 * part:  # noqa: ASYNC110 - another task's state, no event to wait for
                await asyncio.sleep(0.001)
        assert server.queued_bytes == 2 * part
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        assert await network.call(server.address, "Produce", [bytes(part)], deadline=deadline) == bytes(part)
        slow.writer.write(bytes(size - 2 * part))
        assert (await slow.answer())[0] == 200
        assert server.queued_bytes == 0


async def test_a_single_body_larger_than_the_queue_is_still_admitted():
    """Else it could never be sent at all."""
    async with serving(queued_max_bytes=1000) as (network, server):
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        assert len(await network.call(server.address, "Produce", [bytes(500_000)], deadline=deadline)) == 500_000


async def test_a_body_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """Slow clients must not hold admitted bytes for ever."""
    monkeypatch.setattr(http_server, "BODY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(http_requests, "LINGER_S", 0.05)
    async with serving() as (_, server), wire_to(server) as wire:
        wire.send("POST /rpc/Produce HTTP/1.1\nHost: localhost\nContent-Length: 10", b"half")
        assert (await wire.answer())[0] == 408
        assert await wire.ended()
        assert server.queued_bytes == 0


async def test_a_client_that_leaves_in_mid_body_frees_its_bytes():
    """A producer that is killed while sending."""
    async with serving() as (_, server):
        async with wire_to(server) as wire:
            wire.send("POST /rpc/Produce HTTP/1.1\nHost: localhost\nContent-Length: 200000", b"half")
            while server.queued_bytes == 0:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
        async with asyncio.timeout(PATIENCE_S):
            while server.queued_bytes:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)


async def test_idle_connections_are_closed():
    """connections.max.idle.ms, also for those that never said a word."""
    was_answered = False
    async with serving(idle_timeout_s=0.1) as (_, server), wire_to(server) as silent:
        while not was_answered:  # who comes to speak only after that time is gone by then
            async with wire_to(server) as once:
                once.send("POST /rpc/Echo HTTP/1.1\nHost: localhost\nContent-Length: 1", b"x")
                with suppress(asyncio.IncompleteReadError, ConnectionError):
                    await once.answer()
                    was_answered = True
                assert await once.ended()
        assert await silent.ended()


@pytest.mark.parametrize(
    "request_line,extra,status",
    [
        ("GET /rpc/Echo HTTP/1.1", "", 405),
        ("POST /elsewhere HTTP/1.1", "", 404),
        ("POST /rpc/Echo HTTP/1.1", "\nContent-Type: application/json", 415),
        ("POST /rpc/Echo HTTP/1.1", "\nContent-Type: application/x-www-form-urlencoded", 415),
        ("POST /rpc/Echo HTTP/1.1", "\nContent-Type: text/plain", 415),
        ("POST /rpc/Echo HTTP/1.1", "\nContent-Type: multipart/form-data; boundary=x", 415),
        ("POST /rpc/Echo HTTP/1.1", "\nHost: again", 400),
        ("POST /rpc/Echo HTTP/1.1", "\nOrigin: null", 403),
        ("NONSENSE", "", 400),
    ],
)
async def test_what_rpc_does_not_take_is_refused(request_line: str, extra: str, status: int):
    """Doors that are not there say so, and the server goes on."""
    async with serving() as (network, server):
        async with wire_to(server) as wire:
            wire.send(f"{request_line}\nHost: localhost{extra}\nContent-Length: 2", b"{}")
            assert (await wire.answer())[0] == status
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        assert await network.call(server.address, "Echo", [b"on"], deadline=deadline) == b"on"


async def test_a_refusal_of_http_itself_is_told_with_what_to_do():
    """Whoever calls a broker by a name that it does not know must learn of the setting, not of the first bytes."""

    class Elsewhere(Gate):
        """As if everybody asked by a name of somebody else."""

        def _is_known(self, host: str) -> bool:
            return False

    async with serving(gate=Elsewhere()) as (network, server):
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        with pytest.raises(RequestRefused, match=r"HTTP 403: Host '127.0.0.1:\d+' is not .* mk.http.allowed.hosts$"):
            await network.call(server.address, "Echo", [b"on"], deadline=deadline)


async def test_http_1_1_needs_a_host_and_1_0_does_not():
    """RFC 9112, 3.2: 400 without one. No browser speaks 1.0; some balancers' health checks do."""
    async with serving() as (_, server):
        for version, status in (("1.1", 400), ("1.0", 200)):
            async with wire_to(server) as wire:
                wire.send(f"POST /rpc/Echo HTTP/{version}\nContent-Length: 2", b"hi")
                assert (await wire.answer())[0] == status


@pytest.mark.parametrize("beyond_loopback", [True, False])
async def test_a_server_takes_the_names_of_where_it_listens(monkeypatch: pytest.MonkeyPatch, beyond_loopback: bool):
    """Compose's names reach listeners beyond loopback, without being advertised; a public name reaches neither kind."""
    monkeypatch.setattr(gate_rule, "is_loopback", lambda host: not beyond_loopback)
    async with serving() as (_, server):
        for host, taken in (
            ("kafka-1:19092", beyond_loopback),
            ("evil.example:9092", False),
            ("localhost:29092", True),
        ):
            for kind in ("application/msgpack", "application/x-msgpack"):  # the plain path, and the general server
                async with wire_to(server) as wire:
                    wire.send(f"POST /rpc/Echo HTTP/1.1\nHost: {host}\nContent-Type: {kind}\nContent-Length: 2", b"hi")
                    assert (await wire.answer())[0] == (200 if taken else 403)


async def test_a_page_of_an_allowed_origin_may_call_and_read_rpc():
    """mk.http.allowed.origins: asked before (preflight), answered with what lets the page read (CORS)."""
    gate = Gate(origins=frozenset({"http://ui.example"}))
    async with serving(gate=gate) as (_, server), wire_to(server) as wire:
        asks = "OPTIONS /rpc/Echo HTTP/1.1\nHost: localhost\nAccess-Control-Request-Method: POST\nOrigin: http://"
        wire.send(asks + "ui.example")
        status, headers, _ = await wire.answer()
        assert (status, headers["access-control-allow-origin"]) == (204, "http://ui.example")
        assert (headers["access-control-allow-headers"], headers["vary"]) == ("*, Authorization", "Origin")
        wire.send("POST /rpc/Echo HTTP/1.1\nHost: localhost\nOrigin: http://ui.example\nContent-Length: 2", b"hi")
        status, headers, body = await wire.answer()
        assert (status, headers["access-control-allow-origin"], body) == (200, "http://ui.example", b"hi")
        wire.send(asks + "evil.example")
        status, headers, _ = await wire.answer()
        assert (status, "access-control-allow-origin" in headers) == (403, False)


async def test_json_goes_through_a_translator_of_the_same_handler():
    """D7: JSON is accepted on /rpc where no batches travel."""

    def translate(handler: Handler) -> Handler:
        async def translated(api: str, body: bytes, context: RequestContext) -> Sequence[bytes]:
            answer = b"".join(await handler(api, json.loads(body)["text"].encode(), context))
            return [json.dumps({"api": api, "text": answer.decode()}).encode()]

        return translated

    async with serving(translate=translate) as (_, server), wire_to(server) as wire:
        body = b'{"text":"hi"}'
        wire.send(
            f"POST /rpc/Echo HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: {len(body)}",
            body,
        )
        status, headers, answer = await wire.answer()
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(answer) == {"api": "Echo", "text": "hi"}


async def test_doors_are_put_together_once_when_somebody_comes():
    """A broker that only brokers and clients talk to never pays for routes; visitors at the same moment share them."""
    made: list[web.Application] = []

    def doors(application: web.Application) -> None:
        made.append(application)
        application.router.add_post("/echo", answer)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with serving(load_doors=lambda: doors) as (_, server):
        async with wire_to(server) as one, wire_to(server) as other:
            one.send("POST /rpc/Fetch HTTP/1.1\nHost: localhost\nContent-Length: 1", b"1")
            assert (await one.answer())[2] == b"1"
            assert made == []
            for wire, body in ((one, b"tea"), (other, b"milk")):
                wire.send(f"POST /echo HTTP/1.1\nHost: localhost\nContent-Length: {len(body)}", body)
            assert [(await wire.answer())[2] for wire in (one, other)] == [b"tea", b"milk"]
            one.send("POST /echo HTTP/1.1\nHost: localhost\nContent-Length: 1", b"2")
            assert (await one.answer())[2] == b"2"
        assert len(made) == 1


async def test_request_whose_routes_are_loaded_while_the_server_closes_is_refused():
    """It was answered, and a stream would have delayed the end: the routes were informed of it before they were loaded."""
    began, may_load = threading.Event(), threading.Event()

    def load() -> Doors:
        began.set()
        assert may_load.wait(120)
        return lambda application: None

    async with serving(load_doors=load) as (_, server), wire_to(server) as wire:
        wire.send("GET /v1/topics HTTP/1.1\nHost: localhost")
        await asyncio.to_thread(began.wait, 120)
        closing = asyncio.ensure_future(server.close())
        assert server._general is not None
        routes = server._general._routes
        while routes is not None and not routes._is_over:  # noqa: ASYNC110 - the turn in which the end has begun
            await asyncio.sleep(0)
        may_load.set()
        status, headers, body = await wire.answer()
        assert (status, headers["retry-after"], json.loads(body)["error"]) == (503, "1", "BROKER_NOT_AVAILABLE")
        await closing


async def test_doors_share_the_port_and_rpc_does_not_pass_through_them():
    """/v1, health and metrics are mounted; the fast path stays what it was."""
    seen: list[str] = []

    def doors(application: web.Application) -> None:
        @web.middleware
        async def note(request: web.Request, handler):
            seen.append(request.path)
            return await handler(request)

        async def health(request: web.Request) -> web.Response:
            return web.json_response({"status": "ok"})

        async def stream(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for word in (b"a", b"b"):
                await response.write(word)
            return response

        application.middlewares.append(note)
        application.router.add_get("/healthz", health)
        application.router.add_get("/stream", stream)
        application.router.add_post("/echo", answer)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with serving(load_doors=lambda: doors) as (_, server), wire_to(server) as wire:
        wire.send("GET /healthz HTTP/1.1\nHost: localhost")
        status, _, body = await wire.answer()
        assert (status, json.loads(body)) == (200, {"status": "ok"})
        wire.send("POST /rpc/Echo HTTP/1.1\nHost: localhost\nContent-Length: 3", b"rpc")
        assert (await wire.answer())[2] == b"rpc"
        wire.send(f"POST /echo HTTP/1.1\nHost: localhost\nContent-Length: {2 << 20}", bytes(2 << 20))
        assert len((await wire.answer())[2]) == 2 << 20
        wire.send("GET /nothing HTTP/1.1\nHost: localhost")
        assert (await wire.answer())[0] == 404
        wire.send("GET /stream HTTP/1.1\nHost: localhost\nConnection: close")
        async with asyncio.timeout(PATIENCE_S):
            assert (await wire.reader.read()).endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
        assert "/rpc/Echo" not in seen
        assert "/healthz" in seen


async def test_a_handler_that_raises_is_told_to_whoever_runs_the_loop():
    """An escape stops the broker: the process decides, the client gets 500."""
    told: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context.get("exception")))

    async def broken(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        raise ValueError("a bug")

    async with serving(broken) as (network, server):
        with pytest.raises(OutcomeUnknown, match="500"):
            await network.call(server.address, "Echo", [], deadline=asyncio.get_running_loop().time() + PATIENCE_S)
    assert [str(error) for error in told] == ["a bug"]


async def test_a_connection_that_reads_nothing_gets_no_further_answers():
    """Before, one connection with requests and without reads had all answers in the broker's memory."""
    handled = 0

    async def handler(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        nonlocal handled
        handled += 1
        return [bytes(1 << 20)]

    async with serving(handler) as (_, server), wire_to(server) as wire, asyncio.timeout(PATIENCE_S):
        for _ in range(100):
            wire.send("POST /rpc/Fetch HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked", b"0\r\n\r\n")
        before = 0
        while before < handled or not handled:
            before = handled
            for _ in range(1000):
                await asyncio.sleep(0)
        assert handled < 40
        for _ in range(100):
            assert len((await wire.answer())[2]) == 1 << 20


async def test_slow_readers_of_large_answers_give_way(monkeypatch: pytest.MonkeyPatch):
    """Those of one address that leave more than half of the room are disconnected; one that reads gets everything."""
    monkeypatch.setattr(unread_responses, "LOOK_S", 0.05)
    monkeypatch.setattr(request_room, "GRACE_S", 0.1)
    size = 32 << 20

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(size // 64)

    async def large(_request: web.Request) -> web.Response:
        return web.Response(body=parts(), headers={"Content-Length": str(size)})

    def doors(application: web.Application) -> None:
        application.router.add_get("/large", large)

    async with serving(load_doors=lambda: doors, queued_max_bytes=size) as (_, server), AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(wire_to(server)) for _ in range(3)]
        for each in silent:
            each.send("GET /large HTTP/1.1\nHost: localhost")
        async with asyncio.timeout(PATIENCE_S):
            while server.quota.accepted < 3 or server.connection_count > 1:  # noqa: ASYNC110 - it has no events
                await asyncio.sleep(0.01)
        reader = await stack.enter_async_context(wire_to(server))
        reader.send("GET /large HTTP/1.1\nHost: localhost")
        assert len((await reader.answer())[2]) == size


async def test_close_waits_for_an_answer_larger_than_the_sockets_buffers(monkeypatch: pytest.MonkeyPatch):
    """The last fetch of a stopping broker arrives whole."""
    monkeypatch.setattr(http_server, "CLOSE_GRACE_S", PATIENCE_S)
    big = bytes(8 << 20)

    async def handler(api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
        return [big]

    async with serving(handler) as (_, server), wire_to(server) as wire:
        wire.send("POST /rpc/Fetch HTTP/1.1\nHost: localhost\nContent-Length: 0")
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        closing = asyncio.ensure_future(server.close())
        async with asyncio.timeout(PATIENCE_S):
            assert len(await wire.reader.readexactly(len(big))) == len(big)
            await closing
