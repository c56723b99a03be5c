"""The server's end of one connection, as long as it carries nothing but plain ``POST /rpc/{Api}`` with msgpack bodies.

A general HTTP server costs more than half of what a small request costs (PERFORMANCE 1). What brokers and clients of
this project send needs little of it: here a request is one match of its head, and its body is read from the socket into
its place. Rules for this file:

1. It answers only what it surely understands: a well-formed head with one Content-Length, one Host that is known and
   nothing unusual (what a browser says of a page is: web/gate.py), a body that is admitted and comes soon. Everything
   else is *handed over*: the general server gets the connection with every byte that was not answered yet, and keeps
   it. No refusal is written here.
2. One request at a time: the next is looked at when the answer is written, or is to leave with others (MANY in
   ``http_server.py``), and the socket takes more. Before a body is awaited or the general server gets the connection,
   all answers are written and the socket takes more: that server would not learn that it does not.
3. A handler is never cancelled by its client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, cast

from minikafka.config import KIB, MIB
from minikafka.parked import Parked, Result
from minikafka.ports import Buffers, RequestContext
from minikafka.tasks import ForTask
from minikafka.wire.apis import MSGPACK
from minikafka.wire.kafka import FIRST_BYTE_MAX
from minikafka.world.connections import (
    RPC,
    OpenConnection,
    agent_in,
    identity_of,
    owner_of,
)
from minikafka.world.outgoing import JOINED_SIZE, SocketConnection, write_message

if TYPE_CHECKING:
    from minikafka.world.http_server import HttpServer

# Heads arrive here, and small bodies with them; a longer body gets a buffer of its own. Idle connections keep theirs.
READ_SIZE = 4 * KIB

# A longer body is handed over, to be taken chunk by chunk: memory for one that is only announced would be filled with
# zeros before its first byte has come.
BODY_SIZE_MAX = 8 * MIB

OUT_MAX = 16
"""Small answers of one connection that wait for the next turn of the loop."""

# A peer's heads differ in the body's length only: most have been read before.
HEADS_KEPT = 256

_HEAD = re.compile(rb"POST /rpc/([A-Za-z]{1,64}) HTTP/1\.1\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)+)\r\n")
# What only the general server takes, or refuses: there the gate is asked about what a browser says of a page.
# Credentials are looked at there, for each request: no head with one is kept here.
_UNUSUAL = frozenset(
    {b"transfer-encoding", b"expect", b"upgrade", b"content-encoding", b"origin", b"authorization", b"cookie"}
)
_UNUSUAL_BEGINNINGS = (b"sec-fetch-", b"content-length")
LENGTH_DIGITS_MAX = 12
_MSGPACK = MSGPACK.encode()
_SPACES = b" \t"
_START = b"POST /rpc/"


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of a plain request says."""

    api: str
    length: int
    keeps_alive: bool
    host: bytes
    fields: bytes
    """All header lines."""


_heads: dict[bytes, Head] = {}
"""Heads that were read before. A head that goes to the general server is not kept: it may have credentials."""


def head_of(data: bytes) -> Head | None:
    """The head that ``data`` is, its empty line included; None when it is none, or asks for anything unusual."""
    head = _heads.get(data)
    if head is None and (head := _read_head(data)) is not None:
        if len(_heads) == HEADS_KEPT:
            _heads.clear()
        _heads[data] = head
    return head


def _read_head(data: bytes) -> Head | None:
    match = _HEAD.fullmatch(data)
    if match is None:
        return None
    fields = match[2]
    length = host = None
    keeps_alive = True
    for line in fields.split(b"\r\n"):
        name, _, value = line.partition(b":")
        name = name.lower()
        if name == b"content-length":
            value = value.strip(_SPACES)
            if length is not None or not value.isdigit() or len(value) > LENGTH_DIGITS_MAX:
                return None
            length = int(value)
        elif name == b"host":
            if host is not None:
                return None
            host = value.strip(_SPACES)
        elif name == b"content-type":
            if value.strip(_SPACES) != _MSGPACK:
                return None
        elif name == b"connection":
            said = value.strip(_SPACES).lower()
            if said not in (b"close", b"keep-alive"):
                return None
            keeps_alive = keeps_alive and said != b"close"
        elif name in _UNUSUAL or name.startswith(_UNUSUAL_BEGINNINGS):
            return None
    if length is None or host is None:
        return None
    return Head(match[1].decode(), length, keeps_alive, host, fields)


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes out."""

    buffers: Buffers
    content_type: str = MSGPACK
    status: bytes = b"200 OK"
    keeps_alive: bool = True


def answer_head(
    content_type: str, size: int, date: bytes, *, keeps_alive: bool, status: bytes = b"200 OK", more: bytes = b""
) -> bytes:
    """The head of an answer of ``size`` bytes; ``more`` are header lines with their ends."""
    start, end = _around_length(content_type, date, keeps_alive, status)
    return b"%b%d%b%b\r\n" % (start, size, end, more)


@lru_cache(8)
def _around_length(
    content_type: str,
    date: bytes,
    keeps_alive: bool,  # noqa: FBT001 - a cached function's key
    status: bytes,
) -> tuple[bytes, bytes]:
    """What stands before and behind the body's size: the same for all responses of a second."""
    connection = b"" if keeps_alive else b"Connection: close\r\n"
    return (
        b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: " % (status, content_type.encode()),
        b"\r\nDate: %b\r\n%b" % (date, connection),
    )


class NotAnswered(Exception):
    """A request that gets no answer on purpose: its connection stays silent, or breaks (``hang_up``)."""

    def __init__(self, why: str, *, hang_up: bool) -> None:
        super().__init__(why)
        self.hang_up = hang_up


class RpcConnection(SocketConnection):
    """One connection that was accepted."""

    def __init__(self, host: HttpServer) -> None:
        super().__init__(host.unread)
        self._host = host
        self.context: RequestContext | None = None
        """Of its requests; the server makes it for the first."""
        self._last: Head | None = None
        """Of the last request."""
        self._read = memoryview(bytearray(READ_SIZE))
        self._read_size = 0
        """Bytes in ``_read`` that belong to no request that is being answered."""
        self._head: Head | None = None
        """Of the request whose body is being read; ``_held`` bytes are admitted for it."""
        self._head_bytes = b""
        self._body: bytearray | None = None
        self._body_size = 0
        self._held = 0
        self._owner = ""
        """The owner of these bytes (``request_room.py``)."""
        self._handling: asyncio.Task[None] | Parked | None = None
        self._out: list[bytes] = []
        """Small answers that leave with those of other connections."""
        self._is_full = False
        self._awaits_code = False
        """Nothing is read until the code is loaded that this connection needs."""
        self._closes = False
        self._has_asked = False
        self._quiet_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None

    # ---- the transport's calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # A connection's TLS handshake is over, and the time for its first request has begun when it was accepted.
        self._quiet_since = self.record.opened_at
        self._look_at_the_time()
        self._host.opened(self, cast("asyncio.Transport", transport))
        self._owner = owner_of(self.record.principal, self.remote)

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002 - it is gone, for whatever reason
        self._let_go()
        self._host.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the place is known, whatever would fit
        if self._body is not None:
            return memoryview(self._body)[self._body_size :]
        return self._read[self._read_size :]

    def buffer_updated(self, nbytes: int) -> None:
        self.record.received += nbytes
        if self._body is not None:
            self._body_size += nbytes
            if self._body_size == len(self._body):
                self._answer(self._body)
            return
        self._read_size += nbytes
        if self._handling is None and not self._is_full:
            self._look_on()
        if self._read_size == READ_SIZE and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_full = True
        super().pause_writing()

    def _has_room(self) -> None:
        self._is_full = False
        if self._handling is None:
            self._go_on()

    # ---- one request -------------------------------------------------------------------------------------------------

    def _look_on(self) -> None:
        """Answer what was read, until a request must wait or something is incomplete."""
        while (
            self._read_size and self._handling is None and not self._is_full and not self._awaits_code and self._look()
        ):
            pass

    def _look(self) -> bool:
        """Begin the request if its head is complete, or pass on what the general server handles. True: it is done."""
        read = bytes(self._read[: self._read_size])
        end = read.find(b"\r\n\r\n") + 4
        if read[0] <= FIRST_BYTE_MAX and not self._has_asked:
            if not self._host.has_frame_code(partial(self._code_is_loaded, self._look_on)):
                self._await_code()
                return False
            if self._speak_frames(read):
                return False
        if self._host.needs_login or self.record.refusal:
            self._hand_over()
            return False
        if end < 4:
            if not (read.startswith(_START) or _START.startswith(read)) or self._read_size == READ_SIZE:
                self._hand_over()
            return False
        head = head_of(read[:end])
        if head is None or head.length > BODY_SIZE_MAX or not self._host.knows(head.host):
            self._hand_over()
            return False
        rest = self._read_size - end
        if rest < head.length:
            self.flush()
            if self._is_full:
                return False
        if not self._host.admit(self._owner, head.length):
            self._hand_over()
            return False
        self._has_asked = True
        self._head, self._held = head, head.length
        if rest >= head.length:
            stop = end + head.length
            self._keep(stop)
            self._answer(read[end:stop])
            return self._handling is None and not self._closes
        self._head_bytes = read[:end]
        self._body = bytearray(head.length)
        self._body[:rest] = self._read[end : self._read_size]
        self._body_size, self._read_size = rest, 0
        self._patience = self._loop.call_later(self._host.body_patience_s, self._hand_over)
        return False

    def _keep(self, stop: int) -> None:
        """What lies behind ``stop`` is the beginning of the next request."""
        rest = self._read_size - stop
        if rest:
            self._read[:rest] = self._read[stop : self._read_size]
        self._read_size = rest

    def _answer(self, body: bytes | bytearray) -> None:
        head, held = self._head, self._held
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._body, self._head, self._held = None, None, 0
        if head is None:
            return
        self._last = head
        self.record.requests += 1
        answer = self._host.rpc_answer(self, head, body)
        if not isinstance(answer, Answer):
            self._quiet_since = self._loop.time()
            self._wait_for(head, held, answer)
            return
        self._write(head, answer, may_wait=self._host.has_many_plain)
        self._host.release(self._owner, held)
        self._quiet_since = self._loop.time()
        if self._closes:
            self.close()

    def _wait_for(self, head: Head, held: int, answer: Awaitable[Buffers]) -> None:
        """Answer later: from an event if the request is parked, else from a task."""
        if isinstance(answer, Parked):
            self._handling = answer
            self._host.began(self, answer)
            answer.when_ready(partial(self._ready, head, held, answer))
            return
        answering = ForTask(answer)
        self._handling = handling = self._loop.create_task(self._handle(head, held, answering))
        handling.add_done_callback(answering.close_unused)
        self._host.began(self, handling)

    def _ready(self, head: Head, held: int, parked: Parked, result: Result) -> None:
        """The event has come for which the request has waited."""
        answer = self._host.answer_of(head.api, result)
        if not isinstance(answer, Answer):
            self._host.ended(self, parked)
            self._wait_for(head, held, answer)
            return
        try:
            self._write(head, answer)
        finally:
            self._ended(held, parked)

    async def _handle(self, head: Head, held: int, answering: ForTask[Awaitable[Buffers]]) -> None:
        handling = self._handling
        try:
            self._write(head, await self._host.awaited(head.api, answering.take()))
        except NotAnswered as silence:
            if silence.hang_up:
                self.abort()
        finally:
            self._ended(held, handling)

    def _ended(self, held: int, handling: asyncio.Task[None] | Parked | None) -> None:
        """A request that had to wait is answered: go on with the next."""
        self._host.release(self._owner, held)
        self._handling = None
        if handling is not None:
            self._host.ended(self, handling)
        self._quiet_since = self._loop.time()
        if self._closes:
            self.close()
        elif not self._is_full:
            self._go_on()

    def _write(self, head: Head, answer: Answer, *, may_wait: bool = False) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # the client has left
        if not (head.keeps_alive and answer.keeps_alive):
            self._closes = True
        size = sum(map(len, answer.buffers))
        head_bytes = answer_head(
            answer.content_type, size, self._host.http_date(), keeps_alive=not self._closes, status=answer.status
        )
        self.record.sent += len(head_bytes) + size
        if may_wait and size < JOINED_SIZE and len(self._out) < OUT_MAX and not self._closes:
            if not self._out:
                self._host.flush_soon(self)
            self._out.append(b"".join((head_bytes, *answer.buffers)))
            return
        self.flush()
        if size < JOINED_SIZE or self._outgoing is None:
            write_message(transport, head_bytes, answer.buffers, size)
        else:
            self._outgoing.write((head_bytes, *answer.buffers))

    def flush(self) -> None:
        """Write the answers that wait for this."""
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    def _go_on(self) -> None:
        """Look at what came meanwhile."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        was_full = self._read_size == READ_SIZE
        self._look_on()
        has_room = self._read_size < READ_SIZE
        if was_full and has_room and self._transport is transport and not transport.is_closing():
            transport.resume_reading()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def describe(self) -> OpenConnection:
        """Return what is known about the connection now."""
        last = self._last
        client_id, software = identity_of(agent_in(last.fields)) if last is not None else ("", "")
        return OpenConnection(
            record=self.record,
            protocol=None if last is None else RPC,
            remote=self.peer,
            idle_s=self._loop.time() - self._quiet_since,
            client_id=client_id,
            software=software,
            last_request=None if last is None else last.api,
            pending_request=None if last is None or self._handling is None else last.api,
        )

    def close(self) -> None:
        """After the answer that is under way."""
        self._closes = True
        self.flush()
        if self._handling is None and self._outgoing is not None:
            self._outgoing.finish()

    def _let_go(self) -> None:
        """No timers, no bytes held for a body that will not come."""
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        self._timer = self._patience = None
        if self._head is not None:
            self._host.release(self._owner, self._held)
            self._head, self._body, self._held = None, None, 0
        self._detach()

    def _look_at_the_time(self) -> None:
        """Limit the time without a request: short before the first one, long between two."""
        if self._transport is None:
            return
        idle_s = self._host.idle_timeout_s
        first_s = min(self._host.first_request_timeout_s, idle_s)
        left_s = self._quiet_since + (idle_s if self._has_asked else first_s) - self._loop.time()
        if self._handling is not None or self._body is not None:
            left_s = idle_s
        if left_s <= 0:
            self._transport.abort()
        else:
            # Asking may have made the limit a shorter one.
            self._timer = self._loop.call_later(min(left_s, first_s), self._look_at_the_time)

    def _await_code(self) -> None:
        self._awaits_code = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _code_is_loaded(self, go_on: Callable[[], None]) -> None:
        transport = self._transport
        self._awaits_code = False
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
            go_on()

    def _speak_frames(self, read: bytes) -> bool:
        """No HTTP begins so: from here on the connection speaks Kafka's protocol, if the server does."""
        transport = self._transport
        protocol = self._host.frame_protocol()
        if protocol is None or transport is None or transport.is_closing():
            return False
        self._let_go()
        self._host.closed(self)
        transport.pause_reading()
        protocol.record = self.record
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        protocol.take_over(read)
        return True

    def _hand_over(self) -> None:
        """From here on the connection is the general server's, with every byte that was not answered."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._awaits_code:
            return
        self.flush()
        if self._is_full:
            # The general server would not learn that the transport is full: `_look` decides again when it has room.
            if self._body is not None:
                self._patience = self._loop.call_later(self._host.body_patience_s, self._hand_over)
            return
        if not self._host.has_general_code(partial(self._code_is_loaded, self._hand_over)):
            self._await_code()
            return
        if self._body is None:
            unread = bytes(self._read[: self._read_size])
        else:
            unread = self._head_bytes + bytes(memoryview(self._body)[: self._body_size])
        protocol = self._host.general_protocol(self.record)
        if protocol is None:
            transport.abort()
            return
        self._let_go()
        self._host.closed(self)
        self.record.received -= len(unread)  # the general server counts them
        # Between the two, since uvloop reads into buffers or as chunks by what protocol it found when reading began.
        transport.pause_reading()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        protocol.data_received(unread)
