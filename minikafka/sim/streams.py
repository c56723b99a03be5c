"""Streams of bytes on simulated links: connections of clients that speak Kafka's protocol.

What both ends see, as on TCP:

- Bytes arrive in order, in segments that are torn at any byte; one segment of each direction is on its way at a time.
- A lost segment is sent again until it arrives. While a link is cut, the connection is half-open: neither end notices.
- A reset, or the death of a process, loses what was on its way in both directions, answers included. Each end learns it
  when the signal arrives; a cut link loses that signal, too.
- A machine without power says nothing. Once it is back, the next segment to it is answered with a reset.

Faults of single messages strike a Kafka request at the server's end, when its turn has come, and its response before it
leaves, as on real brokers (``meet_faults``). One that is lost is never answered, and neither are those behind it.

Rules for this file: code of a node runs on that node's queue only, so that a paused process reads nothing; a link's
profile and rules decide about each segment as about any other message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import replace
from random import Random
from typing import Any, Final, Protocol

from minikafka.errors import InvalidRequest
from minikafka.faults import MessageKind
from minikafka.ports import Buffers, FrameSession, OpenSession, RequestContext
from minikafka.sim.loop import Incarnation, SimLoop
from minikafka.sim.verdicts import Deliver, Drop, Message, Reset, Rule
from minikafka.types import Address
from minikafka.wire.kafka.frames import FrameReader

SEGMENT: Final = "KafkaSegment"
"""The API of a segment, for rules: no rule about an API of the brokers strikes it."""

AGAIN_S, AGAIN_MAX_S = 0.05, 0.4
"""When a lost segment is sent again: the first time, and at most."""

TORN_SHARE: Final = 0.3
"""How many of the segments carry a part of what could be sent."""

TORN_EARLY: Final = 8
"""Half of those end within so many bytes: inside a frame's size or header."""

FRAME_BYTES_MAX: Final = 1 << 24


class Peer(Protocol):
    """The client's end of a stream."""

    def received(self, data: bytes) -> None: ...

    def lost(self) -> None:
        """The connection is gone. Called once, unless this end has closed it."""
        ...


class Listening(Protocol):
    """The server's side of an address."""

    address: Address
    incarnation: Incarnation
    context: Context
    request_context: RequestContext
    sessions: OpenSession | None

    def listens(self) -> bool: ...


class Carrier(Protocol):
    """What streams need of the network."""

    request_rules: list[Rule]

    def carry(
        self,
        message: Message,
        sender: Incarnation,
        *,
        arrived: Callable[[], None],
        lost: Callable[[], None],
        broken: Callable[[], None],
    ) -> None: ...

    def signal(self, source: str, target: str, then: Callable[[], None]) -> None: ...


class _Way:
    """One direction of a stream."""

    def __init__(
        self, stream: Stream, kind: MessageKind, sender: Incarnation, target: str, deliver: Callable[[bytes], None]
    ) -> None:
        self._stream = stream
        self._kind: MessageKind = kind
        self._sender = sender
        self._target = target
        self._deliver = deliver
        self._bytes = bytearray()
        self._is_busy = False
        self._ends = False
        self._is_over = False

    def write(self, data: bytes) -> None:
        self._bytes += data
        self._next()

    def end(self) -> None:
        """Close after what was written."""
        self._ends = True
        self._next()

    def _next(self) -> None:
        stream = self._stream
        if self._is_busy or self._is_over or stream.is_broken or not (self._bytes or self._ends):
            return
        self._is_busy = True
        size = len(self._bytes)
        self._is_over = not size
        if size > 1 and stream.tears.random() < TORN_SHARE:
            size = stream.tears.randrange(1, min(size, stream.tears.choice((TORN_EARLY, size))) + 1)
        segment = bytes(self._bytes[:size])
        del self._bytes[:size]
        self._send(segment, AGAIN_S)

    def _send(self, segment: bytes, again_s: float) -> None:
        stream = self._stream

        def arrived() -> None:
            self._is_busy = False
            if not stream.is_broken:
                self._deliver(segment)
                self._next()

        def again() -> None:
            if not stream.is_broken and self._sender.alive:
                self._send(segment, min(again_s * 2, AGAIN_MAX_S))

        message = Message(stream.number, self._kind, self._sender.node, self._target, SEGMENT, segment)
        stream.carrier.carry(
            message,
            self._sender,
            arrived=arrived,
            lost=lambda: stream.loop.happen_at(stream.loop.now + again_s, again),
            broken=stream.reset,
        )


class Stream:
    """One connection; this class is the client's end. An empty segment closes a direction."""

    def __init__(
        self,
        carrier: Carrier,
        loop: SimLoop,
        number: int,
        client: Incarnation,
        listener: Listening | None,
        address: Address,
        *,
        peer: Peer,
        tears: Random,
        on_end: Callable[[Stream], None],
    ) -> None:
        self.carrier = carrier
        self.loop = loop
        self.number = number
        self.tears = tears
        self.is_broken = False
        """Nothing travels any more."""
        self.client = client
        self.address = address
        self.server: ServerEnd | None = None
        """Once the first segment has arrived."""
        self._listener = listener
        self._peer = peer
        self._on_end = on_end
        self._context = loop.context_of(client)
        self._is_closed = False
        """The client has closed it, or knows that it is gone."""
        self._to_server = _Way(self, "request", client, address.host, self._arrive_at_server)

    # ---- the client's calls ------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Bytes to the server. When it has lost the connection, its machine answers with a reset."""
        if self.is_broken and not self._is_closed:
            self._tell_client()  # the first reset was lost on a cut link
        elif not self._is_closed:
            self._to_server.write(data)

    def close(self) -> None:
        """Hear nothing more; the server learns it when the end of the stream arrives."""
        if not self._is_closed:
            self._is_closed = True
            self._to_server.end()

    # ---- what happens to it ------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Break it now; each end learns it when the signal arrives."""
        if self._break():
            self._tell_client()
            self._tell_server()

    def client_died(self, *, powered: bool) -> None:
        """Without power nobody says so: the server keeps a half-open connection."""
        if self._break() and powered:
            self._tell_server()

    def server_died(self, *, powered: bool) -> None:
        """Without power nobody says so: segments are sent again until the machine is back, and answers with a reset."""
        if powered and self._break():
            self._tell_client()

    def server_closed(self) -> None:
        """The server's end of the stream has arrived at the client."""
        if self._break():
            self._client_lost()

    def arrive_at_client(self, segment: bytes) -> None:
        if not segment:
            self.server_closed()
        elif not self._is_closed:
            self.loop.call_soon(self._client_received, segment, context=self._context.copy())

    def _client_received(self, segment: bytes) -> None:
        if not self._is_closed:
            self._peer.received(segment)

    def _arrive_at_server(self, segment: bytes) -> None:
        listener = self._listener
        if listener is None or not listener.incarnation.alive or (self.server is None and not listener.listens()):
            # Its machine answers for a process that is gone, or that never listened.
            if self._break():
                self._tell_client()
            return
        if self.server is None:
            if listener.sessions is None:
                self.reset()
                return
            self.server = ServerEnd(self, listener)
        if segment:
            self.server.arrived(segment)
        elif self._break():
            self.server.lost()

    def _break(self) -> bool:
        """False when it was broken before."""
        if self.is_broken:
            return False
        self.is_broken = True
        self._on_end(self)
        return True

    def _tell_client(self) -> None:
        self.carrier.signal(self.address.host, self.client.node, self._client_lost)

    def _tell_server(self) -> None:
        server = self.server
        if server is not None:
            self.carrier.signal(self.client.node, self.address.host, server.lost)

    def _client_lost(self) -> None:
        def lost() -> None:
            if not self._is_closed:
                self._is_closed = True
                self._peer.lost()

        self.loop.call_soon(lost, context=self._context.copy())


class ServerEnd:
    """A broker's end of a stream: what its session sees as the connection."""

    def __init__(self, stream: Stream, listener: Listening) -> None:
        self.incarnation = listener.incarnation
        self._stream = stream
        self._context = listener.context
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._way = _Way(stream, "answer", listener.incarnation, stream.client.node, stream.arrive_at_client)
        self._session: FrameSession | None = None
        self._open: OpenSession | None = listener.sessions
        self._request_context = replace(listener.request_context, protocol="kafka", remote=stream.client.node)
        if self._request_context.listener:  # as for calls
            self._request_context = replace(self._request_context, principal=f"User:{stream.client.node}")
        self._is_paused = False
        self._is_closing = False
        self._unread: list[bytes] = []

    @property
    def is_busy(self) -> bool:
        """Return True while a request is being handled."""
        return self._session is not None and self._session.is_busy

    # ---- the stream's calls ------------------------------------------------------------------------------------------

    def arrived(self, segment: bytes) -> None:
        self._unread.append(segment)
        self._soon(self._read)

    def lost(self) -> None:
        """The connection is gone: the session goes on with what it began."""

        def closed() -> None:
            self._is_closing = True
            if self._session is not None:
                self._session.closed()

        self._soon(closed)

    def finish(self) -> None:
        """Close once no answer is owed."""
        self._is_closing = True
        if not self.is_busy:
            self._way.end()

    def _soon(self, do: Callable[[], None]) -> None:
        self._stream.loop.call_soon(do, context=self._context.copy())

    def _read(self) -> None:
        if self._session is None and self._open is not None:
            self._session = self._open(self, self._request_context)
        session = self._session
        if session is None:
            return
        # Without such a fault the session goes the way that it goes on brokers whose links cannot have any.
        session.meet_faults = self._meet_faults if self._stream.carrier.request_rules else None
        while self._unread and not self._is_paused and not self._is_closing:
            try:
                frames = self._reader.feed(self._unread.pop(0))
            except InvalidRequest as error:
                session.malformed(error)
                return
            for frame in frames:
                if not self._is_closing:
                    session.received(frame)

    async def _meet_faults(
        self,
        client_id: str,
        api: str,
        request: object,  # noqa: ARG002 - the port's signature
        handle: Callable[[], Awaitable[Any]],
    ) -> Any:
        await self._fault("request", client_id, api)
        response = await handle()
        await self._fault("answer", client_id, api)
        return response

    async def _fault(self, kind: MessageKind, client_id: str, api: str) -> None:
        client, server = client_id, self._stream.address.host
        ends = (client, server) if kind == "request" else (server, client)
        message = Message(self._stream.number, kind, *ends, api, b"")
        for rule in list(self._stream.carrier.request_rules):
            verdict = rule(message)
            if isinstance(verdict, Deliver):
                await asyncio.sleep(verdict.after_s or 0.0)
            elif isinstance(verdict, Reset):
                self._stream.reset()
            elif isinstance(verdict, Drop):
                await asyncio.Event().wait()

    # ---- the session's calls -----------------------------------------------------------------------------------------

    @property
    def opened_at(self) -> float:
        """Used for logins only."""
        return 0.0

    def send(self, answer: Buffers) -> None:
        self._way.write(b"".join(answer))
        if self._is_closing:
            self._soon(self.finish)

    def handled(self, size: int) -> None:
        """Memory is not simulated."""

    def close(self) -> None:
        self._is_closing = True
        self._way.end()

    def await_login(self, frame_bytes_max: int) -> None:
        """No listener of the simulator demands a login."""

    def logged_in(self, principal: str) -> None:
        """As above."""

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._soon(self._read)
