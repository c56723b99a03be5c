"""Code that is loaded when a connection first needs it: the connection waits and loses nothing, all others are served."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop
from aiohttp import web

from minikafka.types import Address
from minikafka.world import http_server
from minikafka.world.http import HttpNetwork
from minikafka.world.http_server import HttpServer, LateCode

ANY = Address("127.0.0.1", 0)
PLAIN = b"POST /rpc/Echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
DOOR = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
FRAME = struct.pack(">i", 10) + b"tea" * 3 + b"."


class HeldCode(LateCode):
    """Code that takes as long to load as the test wants."""

    def __init__(self, *modules: str) -> None:
        super().__init__(*modules)
        self.is_wanted = threading.Event()
        self.may_load = threading.Event()

    def load(self) -> None:
        self.is_wanted.set()
        assert self.may_load.wait(120)
        super().load()


class EchoFrames:
    """A session of frames that answers each with itself."""

    is_busy = False

    def __init__(self, connection: Any, _context: object) -> None:
        self._connection = connection

    def received(self, frame: memoryview) -> None:
        self._connection.send([struct.pack(">i", len(frame)), bytes(frame)])

    def closed(self) -> None:
        """Nothing is under way."""


async def echo(_api: str, body: bytes, _context: object) -> list[bytes]:
    return [bytes(body)]


def mount(application: web.Application) -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    application.router.add_get("/hello", hello)


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldCode]:
    """Held code, in place of aiohttp's part and of the part for Kafka's protocol."""
    held = HeldCode("minikafka.world.http_requests", "minikafka.world.kafka_connection")
    monkeypatch.setattr(http_server, "GENERAL_CODE", held)
    monkeypatch.setattr(http_server, "FRAME_CODE", held)
    yield held
    held.may_load.set()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Callable[[Callable[[HttpServer], Awaitable[None]]], list[object]]:
    """Run a story with a server; what reached the loop's exception handler."""

    def play(story: Callable[[HttpServer], Awaitable[None]]) -> list[object]:
        errors: list[object] = []

        async def whole() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
            network = HttpNetwork(load_doors=lambda: mount)
            server = await network.serve(ANY, echo, sessions=EchoFrames)  # type: ignore[arg-type]
            try:
                async with asyncio.timeout(120):
                    await story(server)
            finally:
                await network.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(whole())
        return errors

    return play


async def body_of(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert head.startswith("http/1.1 200")
    return await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))


async def until(met: Callable[[], bool]) -> None:
    while not met():  # noqa: ASYNC110 - of a thread, or of the server
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("cut", [1, 7, len(DOOR) - 1])
def test_a_door_is_answered_when_its_code_is_loaded(play, code: HeldCode, cut: int):
    """Issue 15: an idle broker holds no code for visitors. The first one waits for it, plain requests do not."""

    async def story(server: HttpServer) -> None:
        visitor, to_door = await asyncio.open_connection(*server.address)
        plain, to_plain = await asyncio.open_connection(*server.address)
        to_door.write(DOOR[:cut])
        await asyncio.sleep(0.01)
        to_door.write(DOOR[cut:] + PLAIN % (3, b"two"))
        await until(code.is_wanted.is_set)
        to_plain.write(PLAIN % (3, b"one"))
        assert await body_of(plain) == b"one"
        code.may_load.set()
        assert [await body_of(visitor), await body_of(visitor)] == [b"hello", b"two"]
        assert server.connection_count == 2
        to_door.close()
        to_plain.close()

    assert play(story) == []


def test_a_body_that_is_handed_over_meanwhile_loses_no_byte(play, code: HeldCode, monkeypatch: pytest.MonkeyPatch):
    """A body that is slow is passed on in its middle: what it had is kept, and what follows is read later."""
    monkeypatch.setattr(http_server, "BODY_TIMEOUT_S", 0.6)

    async def story(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        body = bytes(range(256)) * 1000
        request = PLAIN % (len(body), body)
        writer.write(request[:100_000])
        await until(code.is_wanted.is_set)
        monkeypatch.setattr(http_server, "BODY_TIMEOUT_S", 60.0)
        writer.write(request[100_000:] + DOOR)
        code.may_load.set()
        assert [await body_of(reader), await body_of(reader)] == [body, b"hello"]
        assert server.queued_bytes == 0
        writer.close()

    assert play(story) == []


def test_frames_are_answered_when_their_code_is_loaded(play, code: HeldCode):
    """The first client of Kafka's protocol; what it has sent before is not lost."""

    async def story(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(FRAME)
        await until(code.is_wanted.is_set)
        writer.write(FRAME * 999)
        code.may_load.set()
        assert await reader.readexactly(len(FRAME) * 1000) == FRAME * 1000
        writer.close()

    assert play(story) == []


@pytest.mark.parametrize("first", [DOOR, FRAME], ids=["door", "frame"])
def test_a_client_that_leaves_meanwhile_is_gone(play, code: HeldCode, first: bytes):
    """Its connection is not served after its end."""

    async def story(server: HttpServer) -> None:
        _, writer = await asyncio.open_connection(*server.address)
        writer.write(first)
        await until(code.is_wanted.is_set)
        writer.transport.abort()
        code.may_load.set()
        await until(lambda: server.connection_count == 0)

    assert play(story) == []


@pytest.mark.parametrize("first", [DOOR, FRAME], ids=["door", "frame"])
def test_a_server_closes_while_code_is_loaded(play, code: HeldCode, first: bytes):
    """It does not wait for the code."""

    async def story(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(first)
        await until(code.is_wanted.is_set)
        await server.close()
        assert server.connection_count == 0
        assert await reader.read() == b""
        code.may_load.set()
        writer.close()

    assert play(story) == []


def test_code_that_cannot_be_loaded_is_a_bug_of_the_process(play, monkeypatch: pytest.MonkeyPatch):
    """It reaches the loop's exception handler, where a broker stops and reports it."""
    monkeypatch.setattr(http_server, "GENERAL_CODE", LateCode("minikafka.no_such_module"))

    async def story(server: HttpServer) -> None:
        _, writer = await asyncio.open_connection(*server.address)
        writer.write(DOOR)
        await asyncio.sleep(0)
        await until(lambda: bool(errors))
        writer.close()

    errors: list[object] = []

    async def observed(server: HttpServer) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
        await story(server)

    play(observed)
    assert [type(each) for each in errors] == [ModuleNotFoundError]
