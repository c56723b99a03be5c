"""What each request gets on the connections of ``http_connections.py``: the general HTTP server, on aiohttp.

``/rpc`` is answered here when a request is not plain (``rpc_connection.py``), all else by the application of the other
routes. A broker loads this file with the first connection that needs it (``http_server.GENERAL_CODE``). The rules of
``http_server.py`` are kept here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from minikafka import errors as kafka
from minikafka.config import MIB
from minikafka.ports import RequestContext
from minikafka.web.accept import MSGPACK_TYPES
from minikafka.web.gate import ALWAYS, PREFLIGHT_ANSWER, WITHOUT_LOGIN
from minikafka.web.problems import status_of
from minikafka.wire.apis import MSGPACK, RPC_PATH, request_bytes_max
from minikafka.world.connections import HTTP, identity_of, owner_of
from minikafka.world.http_connections import (
    AUTHENTICATE,
    PARTS,
    PRINCIPAL,
    BodyTooLarge,
    HttpConnection,
    HttpConnections,
    LoadDoors,
    NoRoom,
    OtherRoutes,
    RpcAnswer,
    Silence,
    asked_of,
    read_whole,
    refusal,
)
from minikafka.world.http_server import (
    ALWAYS_ADMITTED_SIZE,
    JSON,
    NODE_HEADER,
    SEE_LOG,
    HttpServer,
    answered,
    refused,
)
from minikafka.world.rpc_connection import NotAnswered

# What `curl -d` says of JSON: taken as such. That no web page can send it is the gate's part.
FORM = "application/x-www-form-urlencoded"

# As large as uvloop reads at once: a megabyte arrives in four chunks without pausing the socket.
READ_BUFFER_SIZE = 1 * MIB

# What is left of a refused body is read and dropped for this long, so that the client can read the refusal.
LINGER_S = 1.0

CONTINUE = "100-continue"
"""The only expectation of clients that HTTP/1.1 has (RFC 9110, 10.1.1); HTTP/1.0 has none."""

BASIC_CHALLENGE = 'Basic realm="minikafka", charset="UTF-8"'
BEARER_CHALLENGE = 'Bearer realm="minikafka"'


class GeneralServer:
    """Serves the connections of a port that are more than plain requests; ``load_doors`` has the other routes."""

    def __init__(self, host: HttpServer, load_doors: LoadDoors | None) -> None:
        self._host = host
        self._routes = None
        if load_doors is not None:
            self._routes = OtherRoutes(load_doors, host.request_max_bytes, self._share, host.listener_name)
        self.connections = HttpConnections(
            self._on_request,
            host.tell_closed,
            host.quota,
            listener=host.listener_name,
            login_at=host.listener_name if host.needs_login else None,
            unread=host.unread,
            request_factory=self._make_request,
            access_log=None,
            keepalive_timeout=host.idle_timeout_s,
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER_SIZE,
            auto_decompress=False,
        )

    async def shutdown(self) -> None:
        """The end of the other routes begins."""
        if self._routes is not None:
            await self._routes.shutdown()

    async def cleanup(self) -> None:
        """No more requests."""
        if self._routes is not None:
            await self._routes.cleanup()

    def _make_request(
        self,
        message: Any,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        is_rpc = self._routes is None or message.path.startswith(RPC_PATH)
        if is_rpc or self._routes is None or self._routes.make_request is None:
            request = web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())
            if not is_rpc:
                request[PARTS] = (message, payload, protocol, writer, task)
            return request
        return self._routes.make_request(message, payload, protocol, writer, task)

    async def _on_request(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        if isinstance(connection, HttpConnection):
            connection.began(request)
        handling = asyncio.current_task()
        if handling is not None:
            self._host.began(connection, handling)
        try:
            asked = asked_of(request)
            refused = self._host.gate.refusal(asked)
            if refused is not None:
                return self._refuse(refused.status, refused.error, refused.members)
            expected = request.headers.get("Expect") or CONTINUE
            if expected.lower() != CONTINUE and asked.needs_host:
                error = kafka.InvalidRequest(f"Expect {expected[:80]!r} cannot be met, only {CONTINUE}")
                return self._refuse(417, error)
            if asked.asks_before:
                return web.Response(status=204, headers={**PREFLIGHT_ANSWER, **self._host.gate.sharing(asked.origin)})
            try:
                request[PRINCIPAL] = await self._principal_of(request)
                request[AUTHENTICATE] = partial(self._principal_of, request)
                if isinstance(connection, HttpConnection) and "Authorization" in request.headers:
                    self.connections.logged_in(connection)
            except kafka.ProtocolError as error:
                refused_login = self._refuse_credentials(request, error)
                await self._share(request, refused_login)
                return refused_login
            response: web.StreamResponse
            if self._routes is not None and (PARTS in request or isinstance(request, web.Request)):
                response = await self._routes.on_request(request)
            else:
                response = await self._on_rpc(request)
            # The application shares before a head goes out, with the hook of its requests.
            if not response.prepared and not isinstance(request, web.Request):
                await self._share(request, response)
            return response
        finally:
            if handling is not None:
                self._host.ended(connection, handling)

    async def _principal_of(self, request: web.BaseRequest) -> str:
        """The sender of a request: by its credentials, else by its connection. Raises ProtocolError."""
        given = request.headers.get("Authorization")
        record = cast("HttpConnection", request.protocol).record
        if given is None and request.path in WITHOUT_LOGIN and request.method in ("GET", "HEAD"):
            return record.principal
        if self._host.login is not None:
            of_request = await self._host.login.principal(given, request.remote or "")
        elif given is not None or self._host.needs_login:
            raise kafka.SaslAuthenticationFailed("this listener cannot check credentials")
        else:
            of_request = None
        if of_request is None and record.refusal:
            raise kafka.SaslAuthenticationFailed(f"the client certificate is not accepted: {record.refusal}")
        return of_request or record.principal

    def _refuse_credentials(self, request: web.BaseRequest, error: kafka.ProtocolError) -> web.Response:
        status = status_of(error)
        response = self._refuse(status, error)
        if status in (429, 503):
            response.headers["Retry-After"] = "1"
        # A browser asks for a password when a person opens a page, not when a script of one sends a request.
        is_script = request.headers.get("Sec-Fetch-Mode") not in (None, "navigate")
        if status == 401 and self._host.login is not None and self._host.login.has_passwords and not is_script:
            response.headers.add("WWW-Authenticate", BASIC_CHALLENGE)
        elif status == 401:
            response.headers.add("WWW-Authenticate", BEARER_CHALLENGE)
        return response

    async def _share(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Pages of allowed origins may read the answer; nobody keeps one that was for a user."""
        for name, value in ALWAYS.items():
            response.headers.setdefault(name, value)
        if "Authorization" in request.headers:
            response.headers.setdefault("Cache-Control", "no-store")
        response.headers.update(self._host.gate.sharing(request.headers.get("Origin")))

    async def _on_rpc(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if not path.startswith(RPC_PATH):
            return self._refuse(404, kafka.InvalidRequest(f"no such path: {path}"))
        if request.method != "POST":
            return self._refuse(405, kafka.InvalidRequest("/rpc takes POST"), Allow="POST")
        handler, content_type = self._host.handler, MSGPACK
        given = request.headers.get("Content-Type", MSGPACK).partition(";")[0].strip().lower()
        if given in (JSON, FORM):
            if self._host.json_handler is None:
                return self._refuse(415, kafka.InvalidRequest("this server's /rpc speaks msgpack"))
            handler, content_type = self._host.json_handler, JSON
        elif given not in MSGPACK_TYPES:
            reason = f"Content-Type {given[:80]!r} cannot be read here, only {JSON} and {MSGPACK}"
            return self._refuse(415, kafka.InvalidRequest(reason), {"accepted": [JSON, MSGPACK]})
        length = request.content_length
        size_max = min(self._host.request_max_bytes, request_bytes_max(path[len(RPC_PATH) :]))
        if length is not None and length > size_max:
            return self._too_large(length, size_max)
        owner, held = owner_of(request[PRINCIPAL], request.remote or ""), 0
        if not self._host.admits(owner, length or 0):
            return self._busy_now()

        def grown(size: int) -> None:
            """Count the ``size`` bytes received so far: a client that announces a body and stalls holds only these."""
            nonlocal held
            if size > size_max:
                raise BodyTooLarge(size)
            if size > ALWAYS_ADMITTED_SIZE and size > held:
                if not self._host.admits(owner, size, held=held):
                    raise NoRoom
                self._host.room.hold(owner, size - held)
                held = size

        try:
            content = request.content
            if content.is_eof():
                body = content.read_nowait()
                grown(len(body))
            else:
                if request.headers.get("Expect", "").lower() == CONTINUE and request.transport is not None:
                    request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                async with asyncio.timeout(self._host.frame_timeout_s):
                    body = await read_whole(content, grown)
            api = path[len(RPC_PATH) :]
            client_id, software = identity_of(request.headers.get("User-Agent", ""))
            context = RequestContext(
                "rpc", self._host.listener_name, request.remote or "", client_id, software, request[PRINCIPAL]
            )
            if self._host.interpose is None:
                buffers = await answered(handler, api, body, context)
            else:
                source = request.headers.get(NODE_HEADER, "")
                handle = partial(answered, handler, api, body, context)
                refuse = partial(refused, content_type, api)
                client = {"protocol": HTTP, "software": software}
                buffers = await self._host.interpose(source, api, (body,), handle, refuse, client)
        except NotAnswered as silence:
            return Silence(hang_up=silence.hang_up)
        except BodyTooLarge as error:
            return self._too_large(error.size, size_max)
        except NoRoom:
            return self._busy_now()
        except TimeoutError:
            return self._refuse(
                408, kafka.InvalidRequest(f"the body was not complete after {self._host.frame_timeout_s:g} s")
            )
        except ConnectionError:
            return Silence(hang_up=True)  # the client left before its body was complete
        except Exception as error:  # noqa: BLE001 - a handler never raises: the owner of this loop decides what stops
            self._host.tell_bug(path, error)
            return self._refuse(500, kafka.UnknownServerError(SEE_LOG, outcome=kafka.UNKNOWN))
        finally:
            self._host.release_frames(owner, held)
        return RpcAnswer(buffers, content_type, self._host.http_date())

    def _too_large(self, size: int, size_max: int) -> web.Response:
        limit = f"socket.request.max.bytes is {size_max}"
        if size_max < self._host.request_max_bytes:
            limit = f"requests of this API have at most {size_max}"
        return self._refuse(413, kafka.RecordListTooLarge(f"{size} bytes; {limit}"))

    def _busy_now(self) -> web.Response:
        self._host.hurry_frames()
        held, most = self._host.queued_bytes, self._host.room.limit
        detail = f"{held} bytes of requests are held; queued.max.request.bytes is {most}"
        return self._refuse(503, kafka.BrokerNotAvailable(detail), Retry_After="1")

    def _refuse(
        self, status: int, error: kafka.ProtocolError, members: Mapping[str, Any] | None = None, **headers: str
    ) -> web.Response:
        response = refusal(status, error, members, **headers)
        response.force_close()
        return response
