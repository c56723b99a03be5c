"""One HTTP connection on aiohttp: what the gate sees of a request, and what of a response its client has not taken."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import HttpVersion10, web
from aiohttp.test_utils import make_mocked_request

from minikafka.web.gate import Asked
from minikafka.world.connections import ConnectionRecord, owner_of
from minikafka.world.http_connections import HttpConnection, RpcAnswer, asked_of
from minikafka.world.outgoing import CHUNK_SIZE
from minikafka.world.unread_responses import Unread


def test_gate_sees_every_header_that_it_judges():
    """A preflight is an OPTIONS request that names a method, and a link is a navigation to a document."""
    headers = [("Host", "a"), ("Host", "b"), ("Origin", "http://o"), ("Sec-Fetch-Site", "none")]
    headers += [("Authorization", "Basic x"), ("Authorization", "Bearer y")]
    headers += [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]
    found = asked_of(make_mocked_request("GET", "/v1/topics?a=1&b=2", headers=headers))  # type: ignore[arg-type]
    assert tuple(found.query_names) == ("a", "b")
    assert found == Asked(
        "GET", ["a", "b"], True, "http://o", "none", is_link=True, authorizations=2, query_names=found.query_names
    )
    for method, more, is_preflight in (
        ("OPTIONS", {"Access-Control-Request-Method": "POST"}, True),
        ("OPTIONS", {}, False),
        ("GET", {"Access-Control-Request-Method": "POST"}, False),
    ):
        embedded = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe", **more}
        found = asked_of(make_mocked_request(method, "/", headers=embedded, version=HttpVersion10))
        assert found == Asked(method, (), False, asks_before=is_preflight)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 7

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "10.0.0.1", 1


class Writer:
    """aiohttp's writer; ``left`` has what an answer had left when it waited for its client."""

    def __init__(self, transport: Transport, answer: RpcAnswer) -> None:
        self.transport = transport
        self.left: list[int] = []
        self._answer = answer

    async def drain(self) -> None:
        self.left.append(self._answer.left)


def begun(*buffers: bytes) -> tuple[RpcAnswer, Transport, Writer, Any]:
    """An answer, and the request that it is for."""
    answer, transport = RpcAnswer(buffers, "application/msgpack", b"now"), Transport()
    writer = Writer(transport, answer)
    return answer, transport, writer, SimpleNamespace(keep_alive=True, transport=transport, writer=writer)


@pytest.mark.parametrize("size", [0, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE])
async def test_large_answer_waits_for_its_client_after_each_chunk(size: int):
    """A small one is written with its head; ``size`` has what goes out, ``left`` what is still to be written."""
    answer, transport, writer, request = begun(b"a" * (size // 3), b"b" * (size - size // 3))
    await answer.prepare(request)
    is_large = size > CHUNK_SIZE
    assert answer.left == (size if is_large else 0)
    await answer.write_eof()
    text = b"".join(transport.written)
    assert (len(text), text.partition(b"\r\n\r\n")[2]) == (answer.size, b"a" * (size // 3) + b"b" * (size - size // 3))
    assert writer.left == sorted(writer.left, reverse=True)
    assert writer.left[-1] == 0
    assert len(writer.left) > size // CHUNK_SIZE if is_large else writer.left == [0]


async def test_answer_to_a_client_that_left_is_given_up():
    """Before its head, and between two chunks: nothing more is written."""
    answer, transport, _, request = begun(bytes(2 * CHUNK_SIZE))
    await answer.prepare(request)
    transport.closing = True
    with pytest.raises(ConnectionResetError, match="before the end"):
        await answer.write_eof()
    with pytest.raises(ConnectionResetError, match="before the answer"):
        await begun(b"")[0].prepare(request)
    assert len(transport.written) == 1


def test_unread_bytes_of_a_response_are_those_that_are_held_and_those_that_are_left():
    """In the transport and in the response; one that is written whole is held by the transport only."""
    connection: Any = object.__new__(HttpConnection)
    connection._own, connection.record = Transport(), ConnectionRecord(0.0)
    owner = owner_of(connection.record.principal, "10.0.0.1")
    assert connection.unread() == Unread(owner, 7, 7)
    answer = connection._response = RpcAnswer((b"",), "", b"")
    answer.size, answer.left = 1000, 300
    assert connection.unread() == Unread(owner, 1007, 307)
    answer.left = 0
    assert connection.unread() == Unread(owner, 7, 7)
    connection._response = web.Response(body=bytes(1000))
    for written, unread in ((400, Unread(owner, 1007, 607)), (1200, Unread(owner, 7, 7))):
        connection._pending = SimpleNamespace(get=lambda _, record: record, writer=SimpleNamespace(output_size=written))
        assert connection.unread() == unread


@pytest.mark.parametrize("must_log_in", [False, True])
async def test_deadline_of_a_connection_ends_with_its_first_request_or_with_its_login(must_log_in: bool):
    """Where there must be a login, requests without right credentials keep no connection open."""
    connection: Any = object.__new__(HttpConnection)
    connection.record, connection.must_log_in = ConnectionRecord(0.0), must_log_in
    deadline = connection._deadline = asyncio.get_running_loop().call_later(1000, connection.abort)
    connection.began(make_mocked_request("GET", "/v1/topics"))
    assert (connection.record.requests, deadline.cancelled()) == (1, not must_log_in)
    connection.logged_in()
    assert (connection.must_log_in, deadline.cancelled(), connection._deadline) == (False, True, None)
