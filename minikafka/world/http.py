"""The Network port over HTTP/1.1: ``POST /rpc/{Api}``, served by ``http_server.py``, called by ``http_client.py``.

What a caller learns: a connection that could not be made (refused, no such host, no answer to the first packet) is
``Unreachable``; a request that HTTP refused unread (403, 413, 415, or a problem that says so) is ``RequestRefused``;
everything else that goes wrong, the deadline and every other status but 200 included, is ``OutcomeUnknown``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from ssl import SSLContext
from typing import Unpack

from minikafka.errors import OutcomeUnknown, Unreachable
from minikafka.ports import Buffers, Handler, HttpLogin, OpenSession
from minikafka.tasks import in_turn
from minikafka.types import Address
from minikafka.wire.codec import http_failure
from minikafka.world.connections import ConnectionQuota, OpenConnection, user_agent
from minikafka.world.http_client import ClientLogin, HttpClient
from minikafka.world.http_server import NODE_HEADER, HttpServer, ServerOptions
from minikafka.world.link_faults import LinkEnd
from minikafka.world.tls import ServerTls

# A minute earlier than servers (IDLE_S): a client never sends into a connection that the server is closing.
CLIENT_IDLE_S = 540.0

# A host that does not answer the first packet in this time is as good as none; the call's deadline may be sooner.
CONNECT_TIMEOUT_S = 3.0


class HttpNetwork:
    """One process's end of the network: any number of servers, one pool of client connections.

    ``quota`` limits the connections of all servers together, and ``options`` are those of each. ``tls`` has each
    listener that uses TLS, by name. With ``client_tls``, which returns the context for a new connection, all calls use
    TLS; ``client_login`` returns the value of ``Authorization`` that each call carries. ``login_listeners`` names
    listeners at which each HTTP request needs credentials; ``logins``, which is set later, makes the check of a
    listener's credentials. ``links`` is where faults strike, in tests. ``client_id`` is how calls name their sender to
    the peers.
    """

    def __init__(
        self,
        *,
        quota: ConnectionQuota | None = None,
        tls: Mapping[str, ServerTls] | None = None,
        client_tls: Callable[[], SSLContext] | None = None,
        client_login: ClientLogin | None = None,
        login_listeners: Collection[str] = (),
        links: LinkEnd | None = None,
        client_id: str = "",
        **options: Unpack[ServerOptions],
    ) -> None:
        self._options = options
        self.quota = quota if quota is not None else ConnectionQuota()
        self._tls = tls or {}
        self._login_listeners = login_listeners
        self.logins: Callable[[str], HttpLogin] | None = None
        """Makes the check of credentials of a listener."""
        self._links = links
        headers = {"User-Agent": user_agent(client_id)}
        if links is not None:
            headers[NODE_HEADER] = links.node
        self._client = HttpClient(
            connect_timeout_s=CONNECT_TIMEOUT_S,
            idle_s=CLIENT_IDLE_S,
            headers=headers,
            tls=client_tls,
            login=client_login,
        )
        self._servers: list[HttpServer] = []

    async def call(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> bytes | bytearray:
        """Send and await the answer; ``deadline`` is on the loop's clock. Raises WorldErrors, as the port says."""
        links = self._links
        if links is None:
            return await self._call(peer, api, body, deadline=deadline)
        if links.has_faults():
            return await links.call(peer, api, body, deadline=deadline, send=self._call)
        answer = await self._call(peer, api, body, deadline=deadline)
        if links.has_faults():
            # A fault that was set meanwhile: a long poll's answer must not slip through a cut.
            return await links.arriving(peer, api, body, answer, deadline=deadline)
        return answer

    async def _call(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> bytes | bytearray:
        if deadline <= asyncio.get_running_loop().time():
            raise OutcomeUnknown(f"{api} to {peer}: the deadline has passed")
        try:
            status, answer = await self._client.call(peer, api, body, deadline)
        except (Unreachable, OutcomeUnknown) as error:
            raise type(error)(f"{api} to {peer}: {error}") from error
        if status != 200:
            failure = http_failure(status, answer)
            raise type(failure)(f"{api} to {peer}: {failure}")
        return answer

    async def serve(
        self, address: Address, handler: Handler, *, listener: str = "", sessions: OpenSession | None = None
    ) -> HttpServer:
        """Listen; OSError when the port is in use."""
        server = HttpServer(
            handler,
            listener=listener,
            sessions=sessions,
            interpose=self._links.serve if self._links is not None else None,
            quota=self.quota,
            tls=self._tls.get(listener),
            needs_login=listener in self._login_listeners,
            login=None if self.logins is None else self.logins(listener),
            **self._options,
        )
        await server.listen(address)
        self._servers.append(server)
        return server

    def connections(self, *, after: int, limit: int) -> list[OpenConnection]:
        """Return what is known about the open connections of all servers, the oldest first.

        Args:
            after: Leave out connections with this number or a smaller one.
            limit: Number of connections to return at most.
        """
        found = [(each.record.number, server, each) for server in self._servers for each in server.connections]
        listed = sorted((each for each in found if each[0] > after), key=lambda each: each[0])[:limit]
        return [replace(each.describe(), listener=server.listener_name) for _, server, each in listed]

    @property
    def servers(self) -> tuple[HttpServer, ...]:
        """All that listen or did."""
        return tuple(self._servers)

    async def close(self) -> None:
        """Close every server and every connection."""
        if self._links is not None:
            await self._links.close()
        for server in self._servers:
            await server.close()
        await self._client.close()

    async def abort(self) -> None:
        """As if the process had died: peers see their connections reset, and no call works any more."""
        for server in self._servers:
            server.abort()
        links = () if self._links is None else (self._links.close,)
        await in_turn(*links, self._client.close)
