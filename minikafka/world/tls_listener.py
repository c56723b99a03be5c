"""A listening port whose connections begin with a TLS handshake.

asyncio's servers begin a handshake with each connection that they accept, however many there are. Here a connection
that is too many is closed before its handshake, and the others begin theirs in turn (``connections.py``). Nothing is
read from a connection before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import cast

from minikafka.errors import in_words
from minikafka.types import Address
from minikafka.world.connections import ConnectionQuota
from minikafka.world.rpc_connection import RpcConnection
from minikafka.world.tls import HANDSHAKE, HandshakeTurns, ServerTls, handshake_failure

BACKLOG = 1024

HANDSHAKE_TIMEOUT_S = 10.0
"""A connection whose handshake is not over this long after it was accepted is closed."""

# asyncio's default of half a minute lets a client that does not read hold a closed connection for that long.
SHUTDOWN_TIMEOUT_S = 5.0

RETRY_S = 1.0
"""A listener that cannot accept, because the process has no file descriptor left, tries again after this long."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


async def bound(address: Address) -> list[socket.socket]:
    """Return sockets that listen at all addresses of a host. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, name in dict.fromkeys((family, name) for family, _, _, _, name in found):
            sockets.append(socket.create_server(name, family=family, backlog=BACKLOG))
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


class TlsListener:
    """Accepts the connections of one listener."""

    def __init__(
        self,
        sockets: list[socket.socket],
        tls: ServerTls,
        quota: ConnectionQuota,
        listener: str,
        connection: Callable[[], RpcConnection],
    ) -> None:
        """``connection`` makes a connection's protocol; ``listener`` is the listener's name in contexts."""
        self.sockets = sockets
        self.tls = tls
        self.quota = quota
        self._name = listener
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._open: dict[RpcConnection, _Handshake] = {}
        """Connections whose handshake is not over."""
        self._throttled: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connections that exceed the quota of their address: they are closed after their throttle time."""
        self.tasks: set[asyncio.Task[None]] = set()
        for each in sockets:
            each.settimeout(0)
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Accept no more, and close connections whose handshake is not over."""
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()
        self.sockets = []
        for handshake in list(self._open.values()):
            handshake.abort()
        for accepted in list(self._throttled):
            self._end_throttled(accepted)

    async def wait_closed(self) -> None:
        """Wait until the event loop has let go of the connections that :meth:`close` has closed."""
        if self.tasks:
            await asyncio.wait(self.tasks)

    def established(self, connection: RpcConnection) -> bool:
        """The handshake of a connection is over; False: it was too late, and its connection must be closed."""
        handshake = self._open.get(connection)
        if handshake is not None:
            handshake.end()
        return handshake is not None

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                accepted, name = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self.tls.events("connections_not_accepted", remote="", why=in_words(error))
                self._loop.remove_reader(listening)
                self._loop.call_later(RETRY_S, self._accept_again, listening)
                return
            self._greet(accepted, str(name[0]))

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _greet(self, accepted: socket.socket, remote: str) -> None:
        accepted.settimeout(0)
        if not self.quota.admits(remote, self._name):
            accepted.close()
            return
        throttle_ms = self.quota.throttle_ms(remote, self._name)
        if throttle_ms:
            self.quota.opened(accepted, remote, self._name)
            self._throttled[accepted] = self._loop.call_later(throttle_ms / 1000, self._end_throttled, accepted)
            return
        connection = self._connection()
        handshake = self._open[connection] = _Handshake(self, accepted, remote, connection)
        self.quota.opened(handshake, remote, self._name)
        self.quota.handshakes.arrived(handshake)

    def _end_throttled(self, accepted: socket.socket) -> None:
        self._throttled.pop(accepted).cancel()
        self.quota.closed(accepted)
        accepted.close()

    def ended(self, handshake: _Handshake) -> None:
        """A handshake is over, whatever came of it."""
        if self._open.pop(handshake.connection, None) is not None:
            self.quota.closed(handshake)
            self.quota.handshakes.ended(handshake)


class _Early(asyncio.Protocol):
    """Keeps what is read of a connection before TLS reads from it: uvloop begins at once."""

    def __init__(self, turns: HandshakeTurns) -> None:
        self._turns = turns

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._turns.transport = cast("asyncio.Transport", transport)
        self._turns.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._turns.early += data
        if self._turns.transport is not None:
            self._turns.transport.pause_reading()


class _Handshake:
    """One connection from its acceptance to the end of its handshake."""

    def __init__(self, listener: TlsListener, accepted: socket.socket, remote: str, connection: RpcConnection) -> None:
        self.remote = remote
        self.connection = connection
        self._listener = listener
        self._socket = accepted
        self._task: asyncio.Task[None] | None = None
        self._turns = HandshakeTurns(listener.quota.handshakes.turns)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(connection.record.opened_at + HANDSHAKE_TIMEOUT_S, self.abort)

    def begin(self) -> None:
        """Read from the connection, and answer."""
        self._task = task = asyncio.get_running_loop().create_task(self._shake(), name="tls-handshake")
        self._listener.tasks.add(task)
        task.add_done_callback(self._listener.tasks.discard)

    async def _shake(self) -> None:
        loop = asyncio.get_running_loop()
        HANDSHAKE.set(self._turns)
        try:
            await self._listener.quota.handshakes.turns.next()
            # A client that is refused gets an alert (``AlertingSslObject``), and others are gone. ssl.SSLError is an
            # OSError.
            with contextlib.suppress(OSError):
                transport, _ = await loop.connect_accepted_socket(lambda: _Early(self._turns), self._socket)
                if transport.is_closing():
                    return
                secured = await loop.start_tls(
                    transport,
                    asyncio.Protocol(),
                    self._listener.tls.context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                    ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
                )
                if secured is not None and not secured.is_closing():
                    secured.set_protocol(self.connection)
                    self.connection.connection_made(secured)
        finally:
            self.end()
            if self._turns.failure is not None:
                why = handshake_failure(self._turns.failure)
                self._listener.tls.events("tls_handshake_failed", remote=self.remote, why=why)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._task is None:
            self._socket.close()
        else:
            # The event loop has the socket: it closes it when it finds its end. Without a descriptor it is closed.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self.end()

    def end(self) -> None:
        """The connection is established, or gone. Calls after the first one have no effect."""
        self._timer.cancel()
        self._turns.transport = None
        self._listener.ended(self)
