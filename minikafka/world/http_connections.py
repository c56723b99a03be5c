"""HTTP connections on aiohttp: what is read from them beside plain requests, and the responses that go out there.

:class:`HttpConnection` bounds one connection in time and counts its bytes; :class:`OtherRoutes` is the application of
``/v1``, health and metrics. ``http_server.py`` decides what each request gets.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import Transport
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from minikafka import errors as kafka
from minikafka.ports import Buffers
from minikafka.web.gate import Asked
from minikafka.web.problems import PROBLEM_TYPE, problem_of
from minikafka.world.connections import (
    HTTP,
    NAME_LENGTH_MAX,
    ConnectionQuota,
    ConnectionRecord,
    OpenConnection,
    first_request_timeout_s,
    identity_of,
    owner_of,
    peer_of,
)
from minikafka.world.outgoing import CHUNK_SIZE, write_message
from minikafka.world.rpc_connection import answer_head
from minikafka.world.unread_responses import Unread, UnreadResponses

Doors: TypeAlias = Callable[[web.Application], None]
"""Mounts other routes (``/v1``, health, metrics) on the application that shares the port."""

LoadDoors: TypeAlias = Callable[[], Doors]
"""Loads the code of other routes; called on a thread, since it takes long."""

Share: TypeAlias = Callable[[web.Request, web.StreamResponse], Awaitable[None]]
"""Adds to an answer's headers before they go out."""

# Where a request that came before the application keeps what it was made of.
PARTS: web.RequestKey[tuple[Any, ...]] = web.RequestKey("minikafka.parts", tuple)

# Of what could not be read, so much is shown to its sender.
DETAIL_LENGTH_MAX = 200


class RpcAnswer(web.StreamResponse):
    """200 with a body of several buffers, written without header objects: a small one in one gathered write, a large
    one in chunks, as the client takes them.
    """

    def __init__(self, buffers: Buffers, content_type: str, date: bytes) -> None:
        super().__init__()
        self._buffers = buffers
        self._type = content_type
        self._date = date
        self._writer: AbstractStreamWriter | None = None
        self.size = 0
        """Bytes, head included, once it is prepared."""
        self.left = 0
        """Bytes that are not written yet."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write the head, and a small body."""
        self._keep_alive = request.keep_alive
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client left before the answer")
        size = sum(map(len, self._buffers))
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items()).encode()
        head = answer_head(self._type, size, self._date, keeps_alive=bool(self._keep_alive), more=more)
        self.size = len(head) + size
        self._writer = request.writer
        if size <= CHUNK_SIZE:
            write_message(transport, head, self._buffers, size)
            self._buffers = ()
        else:
            transport.write(head)
            self.left = size
        return None

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - as in aiohttp
        """Write the rest. The connection's next request waits until the client has taken most of it."""
        if self._writer is None:
            return
        for buffer in self._buffers:
            for start in range(0, len(buffer), CHUNK_SIZE):
                transport = self._writer.transport
                if transport is None or transport.is_closing():
                    raise ConnectionResetError("the client left before the end of the answer")
                chunk = memoryview(buffer)[start : start + CHUNK_SIZE]
                transport.write(chunk)
                self.left -= len(chunk)
                await self._writer.drain()
        await self._writer.drain()


class Silence(web.StreamResponse):
    """Nothing at all; the connection is broken, or waits for its next request."""

    def __init__(self, *, hang_up: bool) -> None:
        super().__init__()
        self._hangs_up = hang_up

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write nothing."""
        self._keep_alive = not self._hangs_up
        if self._hangs_up and request.transport is not None:
            request.transport.abort()
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing: nothing was begun."""


def refusal(
    status: int, error: kafka.ProtocolError, members: Mapping[str, Any] | None = None, **headers: str
) -> web.Response:
    """A problem (RFC 9457) of HTTP itself; errors of the protocol are 200 answers with Kafka's code."""
    return web.Response(
        status=status,
        body=json.dumps(problem_of(error, status=status, **(members or {}))).encode() + b"\n",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        content_type=PROBLEM_TYPE,
    )


def asked_of(request: web.BaseRequest) -> Asked:
    """What the rule for who may ask needs to know."""
    headers = request.headers
    return Asked(
        method=request.method,
        hosts=headers.getall("Host", ()),
        needs_host=request.version >= HttpVersion11,
        origin=headers.get("Origin"),
        site=headers.get("Sec-Fetch-Site"),
        is_link=headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document",
        asks_before=request.method == "OPTIONS" and "Access-Control-Request-Method" in headers,
        authorizations=len(headers.getall("Authorization", ())),
        query_names=request.query.keys() if "?" in request.path_qs else (),
    )


PRINCIPAL: web.RequestKey[str] = web.RequestKey("minikafka.principal", str)
"""The sender of a request."""

AUTHENTICATE: web.RequestKey[partial[Coroutine[Any, Any, str]]] = web.RequestKey("minikafka.authenticate", partial)
"""Looks at the credentials of a request again: long responses end with them. Raises ProtocolError."""

LISTENER = web.AppKey("listener", str)
"""Name of the listener at which an application serves, as in contexts of requests."""


class OtherRoutes:
    """The application of the other routes. It is put together when their first request comes: a broker that only other
    brokers and clients talk to never pays for it.
    """

    def __init__(self, load_doors: LoadDoors, request_max_bytes: int, share: Share, listener: str) -> None:
        self._load_doors = load_doors
        self._listener = listener
        self._share = share
        self._request_max_bytes = request_max_bytes
        self._opening = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._is_over = False
        self._handle: Any = None
        self.make_request: Callable[..., web.BaseRequest] | None = None
        """Once it is put together."""

    async def on_request(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request that is the application's, or that came before there was one."""
        if not isinstance(request, web.Request):
            async with self._opening:
                make_request = None if self._is_over else self.make_request or await self._open()
                if self._is_over or make_request is None:  # the end may have begun while the code was loaded
                    return refusal(503, kafka.BrokerNotAvailable("the server is closing"), Retry_After="1")
            first = request
            request = make_request(*request[PARTS])
            request[PRINCIPAL], request[AUTHENTICATE] = first[PRINCIPAL], first[AUTHENTICATE]
        response: web.StreamResponse = await self._handle(request)
        return response

    async def _open(self) -> Callable[..., web.BaseRequest]:
        mount = await asyncio.to_thread(self._load_doors)
        application = web.Application(client_max_size=self._request_max_bytes)
        application[LISTENER] = self._listener
        mount(application)
        application.on_response_prepare.append(self._share)
        runner = self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
        await runner.setup()
        server: Any = runner.server
        self._handle = server.request_handler
        make_request: Callable[..., web.BaseRequest] = server.request_factory
        self.make_request = make_request
        return make_request

    async def shutdown(self) -> None:
        """The application's own end begins."""
        self._is_over = True
        if self._runner is not None:
            await self._runner.shutdown()

    async def cleanup(self) -> None:
        """No more requests."""
        if self._runner is not None:
            await self._runner.cleanup()


class BodyTooLarge(Exception):
    """A body grew beyond the limit while it was read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class NoRoom(Exception):
    """A body of unknown length grew beyond what can be held."""


async def read_whole(content: StreamReader, grown: Callable[[int], None]) -> bytes:
    """The rest of a body, joined once; ``grown`` receives its size after each part, and may raise."""
    chunks: list[bytes] = []
    size = 0
    while not content.at_eof():
        chunk, _ = await content.readchunk()
        size += len(chunk)
        grown(size)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class HttpConnection(RequestHandler):
    """One connection. What is no HTTP is answered with a problem, in silence: anybody can send anything to a port.

    It is bounded in time: before its first request here, between two requests by aiohttp (connections.max.idle.ms).
    Where requests need credentials, a connection that has carried no right ones is closed after LOGIN_TIMEOUT_S,
    whatever it has sent.
    """

    _deadline: asyncio.TimerHandle | None = None
    """Closes a connection without a request, or without a login if there must be one."""
    must_log_in = False
    """No request of it has had right credentials yet, and this listener's requests need them."""
    record: ConnectionRecord
    all_unread: UnreadResponses
    _own: Transport
    """The transport, also while it closes: aiohttp lets go of it then."""
    _pending: web.BaseRequest | None = None
    """The request that is being answered."""
    _response: web.StreamResponse | None = None
    """What is being written."""
    _was_full = False
    """The transport was full at the present response, or one before that is not read yet."""
    _last: tuple[str, str] | None = None
    """Method with path, and User-Agent, of the last request."""
    _active_at = 0.0

    def force_close(self) -> None:
        """Close the connection, as aiohttp does."""
        if self.transport is not None and self.transport.is_closing():
            self.transport = None  # see close_once
        super().force_close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected; it has FIRST_REQUEST_TIMEOUT_S to send the head of a request, byte by byte or not."""
        self._own = cast("Transport", transport)
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._active_at = loop.time()
        # The time for a login has begun when the connection was accepted.
        began_at = self.record.opened_at if self.must_log_in else self._active_at
        timeout_s = first_request_timeout_s(needs_login=self.must_log_in)
        self._deadline = loop.call_at(began_at + timeout_s, self.force_close)

    def data_received(self, data: bytes) -> None:
        """Count what arrived."""
        self.record.received += len(data)
        super().data_received(data)

    def began(self, request: web.BaseRequest) -> None:
        """A whole head has come: from now on the time between requests counts, unless there must be a login."""
        if not self.must_log_in:
            self._end_deadline()
        self.record.requests += 1
        self._pending = request
        self._last = f"{request.method} {request.path}"[:NAME_LENGTH_MAX], request.headers.get("User-Agent", "")
        self._active_at = asyncio.get_running_loop().time()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Count what was sent."""
        self._response = resp
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._pending = self._response = None
            if self._was_full and not self.writing_paused:
                self._was_full = False
                self.all_unread.ended(self)
            self._active_at = asyncio.get_running_loop().time()
            self.record.sent += resp.size if isinstance(resp, RpcAnswer) else request.writer.output_size

    def describe(self) -> OpenConnection:
        """Return what is known about the connection now."""
        last, agent = self._last or (None, "")
        client_id, software = identity_of(agent)
        return OpenConnection(
            record=self.record,
            protocol=None if last is None else HTTP,
            remote="" if self.transport is None else peer_of(self.transport.get_extra_info("peername")),
            idle_s=asyncio.get_running_loop().time() - self._active_at,
            client_id=client_id,
            software=software,
            last_request=last,
            pending_request=None if self._pending is None else last,
        )

    def pause_writing(self) -> None:
        """The transport is full."""
        self._was_full = True
        self.all_unread.paused(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The transport takes more."""
        if not self._unwritten()[1]:
            self.all_unread.ended(self)
        super().resume_writing()

    def unread(self) -> Unread:
        """What the client has not taken yet."""
        request = self._pending
        principal = self.record.principal if request is None else request.get(PRINCIPAL, self.record.principal)
        name = self._own.get_extra_info("peername")
        in_transport = self._own.get_write_buffer_size()
        held, left = self._unwritten()
        return Unread(owner_of(principal, str(name[0]) if name else ""), held + in_transport, left + in_transport)

    def _unwritten(self) -> tuple[int, int]:
        """Bytes of the response that is being written in parts, and how many of them are still to be written."""
        response, request = self._response, self._pending
        if isinstance(response, RpcAnswer):
            return (response.size, response.left) if response.left else (0, 0)
        if response is None or request is None or response.content_length is None:
            return 0, 0
        left = response.content_length - request.writer.output_size
        return (response.content_length, left) if left > 0 else (0, 0)

    def connection_lost(self, exc: BaseException | None) -> None:
        """They are gone."""
        self.all_unread.ended(self)
        self._end_deadline()
        super().connection_lost(exc)

    def logged_in(self) -> None:
        """A request had right credentials."""
        self.must_log_in = False
        self._end_deadline()

    def abort(self) -> None:
        """At once."""
        self._own.abort()

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that could not be read, or that no handler answered."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        said = " ".join((message or "").split())[:DETAIL_LENGTH_MAX]
        response = refusal(status, kafka.InvalidRequest(f"this is no HTTP request: {said or 'it cannot be read'}"))
        response.force_close()
        return response


class HttpConnections(web.Server):
    """aiohttp's low-level server, which also knows its transports and says when the last one is gone."""

    def __init__(
        self,
        handler: Any,
        tell_closed: Callable[[], None],
        quota: ConnectionQuota,
        *,
        listener: str,
        login_at: str | None,
        unread: UnreadResponses,
        request_factory: Any,
        **connection_options: Any,
    ) -> None:
        """``login_at`` is the name of a listener whose requests need credentials."""
        super().__init__(handler, request_factory=request_factory, handler_cancellation=False, **connection_options)
        self._connection_options = connection_options
        self.closing = False
        self.transports: dict[Transport, None] = {}
        self._by_connection: dict[RequestHandler, Transport] = {}
        self._tell_closed = tell_closed
        self._quota = quota
        self._listener_name = listener
        self._login_at = login_at
        self._unread = unread

    def __call__(self, record: ConnectionRecord | None = None) -> RequestHandler:
        loop = asyncio.get_running_loop()
        connection = HttpConnection(self, loop=loop, **self._connection_options)
        connection.record = record or ConnectionRecord(loop.time())
        connection.all_unread = self._unread
        connection.must_log_in = self._login_at is not None
        return connection

    @property
    def open(self) -> list[HttpConnection]:
        """Connections open now."""
        return [each for each in self._by_connection if isinstance(each, HttpConnection)]

    def connection_made(self, handler: RequestHandler, transport: Transport) -> None:
        super().connection_made(handler, transport)
        self.transports[transport] = None
        self._by_connection[handler] = transport
        name = transport.get_extra_info("peername")
        remote = str(name[0]) if name else ""
        self._quota.opened(handler, remote, self._listener_name)
        if self._login_at is not None and isinstance(handler, HttpConnection):
            self._quota.login_began(handler, remote, self._login_at)
        if self.closing:
            transport.abort()

    def logged_in(self, connection: HttpConnection) -> None:
        """A request of the connection had right credentials."""
        if connection.must_log_in and self._login_at is not None:
            connection.logged_in()
            self._quota.login_ended(connection, self._login_at)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._quota.closed(handler)
        if self._login_at is not None and isinstance(handler, HttpConnection):
            self._quota.login_ended(handler, self._login_at)
        transport = self._by_connection.pop(handler, None)
        if transport is not None:
            del self.transports[transport]
        self._tell_closed()
