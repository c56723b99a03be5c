"""The client side of ``POST /rpc/{Api}``: HTTP/1.1 on a raw connection, one request at a time on each.

Written by hand because a general client is the dearest part of a small call (PERFORMANCE 2): here a call is one write,
one future and one timer. Rules for this file:

1. It understands what a server of this project answers: a status line, headers with Content-Length, a body. Anything
   else (chunks, upgrades, 1xx) ends the connection and is OutcomeUnknown, never a guess.
2. A call that ends early, by its deadline or by cancellation, aborts its connection: a late answer can never be taken
   for the next call's. So does an answer that came before the request was sent out, or that more bytes follow.
3. A large body is read from the socket into its place; request buffers are written as they are, never joined.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import cast
from urllib.parse import quote

from minikafka import errors as kafka
from minikafka.blocking.tls import NEEDS_TLS, TLS_PROBE_S, refuses_certificate, speaks_tls, tls_failure
from minikafka.config import KIB
from minikafka.ports import Buffers
from minikafka.types import Address
from minikafka.wire.apis import MSGPACK, RPC_PATH
from minikafka.world.outgoing import write_message

# Heads, and answers that are small, arrive here; only a longer body gets a buffer of its own.
READ_SIZE = 16 * KIB

# Answers' heads differ in length and in the second of their date: most have been read before.
HEADS_KEPT = 256

# What an answer may announce: far beyond fetch.max.bytes, far below what would end the process.
ANSWER_SIZE_MAX = 1 << 30

# This machine has no address of that family: nothing was sent.
NO_SUCH_ADDRESS_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_ENCODED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)[ \r]")

Answer = tuple[int, bytes | bytearray]
"""Status and body."""

ClientLogin = Callable[[], Awaitable[str]]
"""Returns the value of ``Authorization``."""


async def _header_of(login: ClientLogin) -> bytes:
    value = await login()
    if not value.isascii() or not value.isprintable():
        raise kafka.LoginRefused("the credentials have characters that no header may have; nothing was sent")
    return f"Authorization: {value}\r\n".encode()


@lru_cache(HEADS_KEPT)
def _understood(head: bytes) -> tuple[int, int, bool] | None:
    """Status, body size, and whether the connection goes on; None for an answer that breaks rule 1."""
    status, length = _STATUS.match(head), _LENGTH.search(head, 0, len(head) - 2)
    if status is None or length is None or _ENCODED.search(head):
        return None
    return int(status[1]), int(length[1]), _CLOSE.search(head) is None


async def _refused_by_every_address(loop: asyncio.AbstractEventLoop, peer: Address, give_up: float) -> bool:
    """Connect once more to each address of a name. Return True if each of them refuses.

    An address that this machine cannot use (``::1`` without IPv6) counts neither way, but one address must refuse.
    """
    is_refused = False
    try:
        async with asyncio.timeout_at(give_up):
            found = await loop.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, address in found:
                try:
                    with socket.socket(family, kind, protocol) as attempt:
                        attempt.settimeout(0)
                        await loop.sock_connect(attempt, address)
                    return False
                except ConnectionRefusedError:
                    is_refused = True
                except OSError as error:
                    if error.errno not in NO_SUCH_ADDRESS_HERE:
                        return False
    except (TimeoutError, socket.gaierror):
        return False
    return is_refused


class _ClosedUnanswered(kafka.OutcomeUnknown):
    """The peer closed a connection in plain text on which it had never sent a byte."""


class _Connection(asyncio.BufferedProtocol):
    """One connection to one peer."""

    def __init__(self, owner: HttpClient, peer: Address) -> None:
        self._owner = owner
        self.peer = peer
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._head = memoryview(bytearray(READ_SIZE))
        self._head_size = 0
        self._body: bytearray | None = None
        self._body_left: memoryview = self._head
        self._status = 0
        self._has_answered = False
        self._keep_alive = True
        self._answer: asyncio.Future[Answer] | None = None

    # ------------------------------------------------------------------------------------- one call

    async def exchange(self, head: bytes, body: Buffers, size: int, deadline: float) -> Answer:
        """Send a request of ``size`` body bytes and await its answer.

        TlsFailed when the broker refuses this end's certificate, OutcomeUnknown for everything else that goes wrong.
        """
        transport = self._transport
        if transport is None:
            raise kafka.OutcomeUnknown("the connection was closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._answer = answer
        timer = loop.call_at(deadline, self._expire, answer)
        try:
            write_message(transport, head, body, size)
            return await answer
        finally:
            timer.cancel()
            if answer.cancelled():
                self.abort()

    def _expire(self, answer: asyncio.Future[Answer]) -> None:
        if answer is self._answer:
            self._fail("no answer in time")

    def _fail(self, why: str, kind: type[kafka.WorldError] = kafka.OutcomeUnknown) -> None:
        """End the call under way, and the connection with it."""
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(kind(why))
        self.abort()

    def _done(self, body: bytes | bytearray) -> None:
        # From here on the connection may be another call's: the one that is answered does not touch it any more.
        answer, self._answer = self._answer, None
        self._head_size, self._body, self._has_answered = 0, None, True
        if not self._keep_alive or self._transport is None or self._transport.get_write_buffer_size():
            self.abort()
        else:
            self._owner.give_back(self)
        if answer is not None and not answer.done():
            answer.set_result((self._status, body))

    @property
    def is_open(self) -> bool:
        """Return True if a call may be sent on it."""
        return self._transport is not None

    def abort(self) -> None:
        """Close it now; nothing more is sent or read."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._owner.forget(self)

    # ------------------------------------------------------------------------------------- what arrives

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if exc is None:
            self._closed_early()
        elif isinstance(exc, ssl.SSLError) and refuses_certificate(exc) and not self._has_answered:
            # A broker with TLS 1.3 refuses it when this end's handshake is over, and has read no request then.
            self._fail(f"no TLS connection: {tls_failure(exc)}", kafka.TlsFailed)
        elif isinstance(exc, ConnectionResetError) and self._owner.tls is None:
            self._closed_early(kafka.in_words(exc))
        else:
            self._fail(tls_failure(exc) if isinstance(exc, ssl.SSLError) else kafka.in_words(exc))
        self._owner.closed(self)

    def eof_received(self) -> None:
        self._closed_early()

    def _closed_early(self, why: str = "the connection was closed before the answer") -> None:
        if self._has_answered or self._head_size:
            self._fail(why)
        elif self._owner.tls is None:
            self._fail(why, _ClosedUnanswered)
        else:
            self._fail(f"{why}; the broker may require a client certificate, or another one")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the place is known, whatever would fit
        return self._body_left if self._body is not None else self._head[self._head_size :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None or self._answer.done():
            self._fail("bytes that nobody asked for")
        elif self._body is not None:
            self._body_left = self._body_left[nbytes:]
            if not self._body_left:
                self._done(self._body)
        else:
            self._head_size += nbytes
            self._read_head()

    def _read_head(self) -> None:
        read = bytes(self._head[: self._head_size])
        end = read.find(b"\r\n\r\n") + 4
        if end < 4:
            if self._head_size == READ_SIZE:
                self._fail(f"a head of more than {READ_SIZE} bytes")
            return
        understood = _understood(read[:end])
        if understood is None:
            # A broker that has answered before has not become another program.
            kind = kafka.OutcomeUnknown if self._has_answered else kafka.NotABroker
            self._fail(f"an answer that is not understood: {read[:80]!r}", kind)
            return
        self._status, size, self._keep_alive = understood
        here = self._head_size - end
        if size > ANSWER_SIZE_MAX or here > size:
            self._fail(f"{size} bytes announced, {here} came with the head")
        elif here == size:
            self._done(read[end:])
        else:
            self._body = bytearray(size)
            self._body_left = memoryview(self._body)[here:]
            self._body[:here] = self._head[end : self._head_size]


class HttpClient:
    """Connections to any number of peers, kept for their next call; ``headers`` go with each, all use ``tls`` if it is
    given, and each call has the credentials of ``login``. Times are in seconds.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float,
        idle_s: float,
        headers: Mapping[str, str] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        login: ClientLogin | None = None,
    ) -> None:
        self.tls = tls
        self._login = login
        self._more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: dict[Address, list[_Connection]] = {}
        self._open: dict[_Connection, None] = {}
        self._heads: dict[tuple[Address, str], bytes] = {}
        self._all_closed = asyncio.Event()
        self._is_closed = False

    async def call(self, peer: Address, api: str, body: Buffers, deadline: float) -> Answer:
        """POST and await the answer, whatever its status; ``deadline`` is on the loop's clock.

        Unreachable when no connection was made (ConnectionRefused when the peer's machine refused it; TlsFailed, also
        when a plain connection was closed unanswered and the peer certainly uses TLS), OutcomeUnknown for everything
        else that goes wrong.
        """
        if self._is_closed:
            raise kafka.OutcomeUnknown("this end of the network is closed")
        loop = asyncio.get_running_loop()
        # Not kept with the heads: a token ends.
        authorization = b"" if self._login is None else await _header_of(self._login)
        connection = self._take(peer, loop.time()) or await self._connect(loop, peer, deadline)
        head = self._heads.get((peer, api)) or self._new_head(peer, api)
        size = sum(map(len, body))
        try:
            return await connection.exchange(head % size + authorization + b"\r\n", body, size, deadline)
        except _ClosedUnanswered as error:
            if await self._lacks_tls(peer, min(deadline - loop.time(), TLS_PROBE_S)):
                raise kafka.TlsFailed(NEEDS_TLS) from error
            raise kafka.OutcomeUnknown(str(error)) from error

    async def _lacks_tls(self, peer: Address, timeout_s: float) -> bool:
        """Return True if the peer closed a plain connection because it uses TLS, and not if this end closed it."""
        return not self._is_closed and await asyncio.to_thread(speaks_tls, peer, timeout_s)

    def _new_head(self, peer: Address, api: str) -> bytes:
        # A zone (fe80::1%eth0) means something on this machine only (RFC 6874).
        host = f"[{peer.host.partition('%')[0]}]" if ":" in peer.host else peer.host
        if not host.isascii():
            host = host.encode("idna").decode()
        path = quote(RPC_PATH + api)
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{peer.port}\r\nContent-Type: {MSGPACK}\r\n{self._more}"
        head = head.replace("%", "%%")
        return self._heads.setdefault((peer, api), f"{head}Content-Length: %d\r\n".encode())

    def _take(self, peer: Address, now: float) -> _Connection | None:
        idle = self._idle.get(peer)
        while idle:
            connection = idle.pop()
            if now - connection.idle_since < self._idle_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop, peer: Address, deadline: float) -> _Connection:
        give_up = loop.time() + self._connect_timeout_s
        try:
            async with asyncio.timeout_at(min(deadline, give_up)):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, peer), peer.host, peer.port, ssl=None if self.tls is None else self.tls()
                )
        except TimeoutError:
            if deadline <= give_up:
                raise kafka.OutcomeUnknown("no answer in time") from None
            raise kafka.Unreachable(f"no connection within {self._connect_timeout_s:g} s") from None
        except ConnectionRefusedError as error:
            raise kafka.ConnectionRefused(
                "Connection refused"
            ) from error  # asyncio's own text is "Connect call failed"
        except ssl.SSLError as error:
            raise kafka.TlsFailed(f"no TLS connection: {tls_failure(error)}") from error
        except (OSError, UnicodeError, ValueError, OverflowError) as error:
            # Several addresses that failed in different words are one OSError without a number.
            is_several = type(error) is OSError and error.errno is None
            if is_several and await _refused_by_every_address(loop, peer, min(deadline, give_up)):
                raise kafka.ConnectionRefused("Connection refused") from error
            raise kafka.Unreachable(kafka.in_words(error)) from error
        # Counted here and not when the transport is made: of a call that is cancelled between the two, uvloop closes
        # the transport without a word to its protocol, and close() would wait for it for ever.
        if connection.is_open:
            self._open[connection] = None
            self._all_closed.clear()
        if self._is_closed:
            connection.abort()
            raise kafka.OutcomeUnknown("this end of the network is closed")
        return connection

    # ------------------------------------------------------------------------------------- what connections tell

    def give_back(self, connection: _Connection) -> None:
        """Its call has its answer: it may take the next."""
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.setdefault(connection.peer, []).append(connection)

    def forget(self, connection: _Connection) -> None:
        """It takes no more calls."""
        idle = self._idle.get(connection.peer)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def closed(self, connection: _Connection) -> None:
        """Its transport is gone."""
        self._open.pop(connection, None)
        if not self._open:
            self._all_closed.set()

    async def close(self) -> None:
        """Abort every connection and wait until they are gone; calls under way are OutcomeUnknown."""
        self._is_closed = True
        for connection in list(self._open):
            connection.abort()
        if self._open:
            await self._all_closed.wait()
