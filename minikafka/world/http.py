"""The Network port over HTTP/1.1: ``POST /rpc/{Api}`` with aiohttp on both ends.

What a caller learns: a connection that could not be made (refused, no such host, no answer to the first packet) is
``Unreachable``; everything else that goes wrong, the deadline and every status but 200 included, is
``OutcomeUnknown``. A call that ends early, by its deadline or by cancellation, closes its connection: a late answer can
never be taken for the next call's.
"""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from minikafka.config import KIB, MIB
from minikafka.errors import OutcomeUnknown, Unreachable
from minikafka.ports import Buffers, Handler
from minikafka.types import Address
from minikafka.world.http_server import MSGPACK, READ_BUFFER_SIZE, RPC_PATH, Doors, HttpServer, Translate, read_whole

# Kafka's connections.max.idle.ms of brokers; a client lets go a minute earlier, so that it never sends into a
# connection that the server is closing.
SERVER_IDLE_S = 600.0
CLIENT_IDLE_S = 540.0

# A host that does not answer the first packet in this time is as good as none; the call's deadline may be sooner.
CONNECT_TIMEOUT_S = 3.0

# Below this size one joined write is cheaper than several.
JOINED_SIZE = 4 * KIB


class BuffersPayload(Payload):
    """A request body of several buffers, written one after the other without joining them.

    The buffers must not change until the call is over: the transport may hold on to them.
    """

    _autoclose = True

    def __init__(self, buffers: Buffers) -> None:
        super().__init__(buffers, content_type=MSGPACK)
        self._size = sum(map(len, buffers))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text, as the base class asks for."""
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all buffers."""
        if self._size is not None and self._size < JOINED_SIZE:
            await writer.write(b"".join(self._value))
            return
        for buffer in self._value:
            if buffer:
                await writer.write(buffer)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:  # noqa: ARG002
        """The length is always that of the buffers."""
        await self.write(writer)


class HttpNetwork:
    """One process's end of the network: any number of servers, one pool of client connections.

    ``doors`` mounts other routes on every server; ``translate`` lets ``/rpc`` take JSON. Both may be set later, before
    :meth:`serve`. Sizes are in bytes.
    """

    def __init__(
        self,
        *,
        doors: Doors | None = None,
        translate: Translate | None = None,
        request_max_bytes: int = 100 * MIB,
        queued_max_bytes: int = 64 * MIB,
        idle_timeout_s: float = SERVER_IDLE_S,
    ) -> None:
        self.doors = doors
        self.translate = translate
        self._request_max_bytes = request_max_bytes
        self._queued_max_bytes = queued_max_bytes
        self._idle_timeout_s = idle_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._servers: list[HttpServer] = []
        self._urls: dict[tuple[Address, str], URL] = {}
        self._closed = False

    async def call(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> bytes:
        """Send and await the answer; ``deadline`` is on the loop's clock. Unreachable, OutcomeUnknown."""
        if deadline <= asyncio.get_running_loop().time():
            raise OutcomeUnknown(f"{api} to {peer}: the deadline has passed")
        session = self._session if self._session is not None else self._open_session()
        url = self._urls.get((peer, api)) or self._new_url(peer, api)
        try:
            async with (
                asyncio.timeout_at(deadline),
                session.post(url, data=BuffersPayload(body), allow_redirects=False) as response,
            ):
                answer = await read_whole(response.content)
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ConnectionTimeoutError,
            aiohttp.InvalidURL,
            UnicodeError,
        ) as error:
            raise Unreachable(f"{api} to {peer}: {error}") from error
        except TimeoutError:
            raise OutcomeUnknown(f"{api} to {peer}: no answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise OutcomeUnknown(f"{api} to {peer}: {error!r}") from error
        if response.status != 200:
            raise OutcomeUnknown(f"{api} to {peer}: HTTP {response.status} {answer[:200]!r}")
        return answer

    def _new_url(self, peer: Address, api: str) -> URL:
        try:
            url = URL.build(scheme="http", host=peer.host, port=peer.port, path=RPC_PATH + api)
        except ValueError as error:
            raise Unreachable(f"{api} to {peer}: {error}") from error
        self._urls[peer, api] = url
        return url

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise OutcomeUnknown("this end of the network is closed")
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=CLIENT_IDLE_S, ttl_dns_cache=10, resolver=aiohttp.ThreadedResolver()
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=READ_BUFFER_SIZE,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )
        return self._session

    async def serve(self, address: Address, handler: Handler) -> HttpServer:
        """Listen; OSError when the port is in use."""
        server = HttpServer(
            handler,
            doors=self.doors,
            translate=self.translate,
            request_max_bytes=self._request_max_bytes,
            queued_max_bytes=self._queued_max_bytes,
            idle_timeout_s=self._idle_timeout_s,
        )
        await server.listen(address)
        self._servers.append(server)
        return server

    async def close(self) -> None:
        """Close every server and every connection."""
        self._closed = True
        for server in self._servers:
            await server.close()
        await self._close_session()

    async def abort(self) -> None:
        """As if the process had died: peers see their connections reset, and no call works any more."""
        self._closed = True
        for server in self._servers:
            server.abort()
        await self._close_session()

    async def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
