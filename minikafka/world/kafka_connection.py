"""The server's end of one connection that speaks Kafka's protocol.

Rules for this file:

1. Small frames are read into one buffer and copied out once, large ones are read into their place.
2. A large frame is admitted before memory is spent on it (``queued.max.request.bytes``); while there is no room the
   connection is not read. Connections wait for room in the order of their announcements, and none of them polls:
   thousands that announce a frame and send no more must not cost the loop anything. Nor may they keep others waiting:
   room is asked for when some of the frame has come, and while anyone waits, the server closes connections that have
   room and are too slow to use it.
3. The session gets FRAMES_PER_TURN frames in one turn of the loop, and no further ones while it is full: hundreds of
   small requests that arrived together do not delay other connections.
4. Where many connections are open (MANY in ``http_server.py``), answers that are ready in one turn of the loop leave in
   one write, those of all connections one after the other: clients that are woken one by one send one by one, which
   cost a broker with 32 busy clients a fifth more CPU. Where few are, the answers to a read leave at its end.
5. A connection that never asks, stands still in the middle of a frame, idles or does not read for too long is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from minikafka.errors import InvalidRequest
from minikafka.ports import Buffer, Buffers, FrameSession, SessionState
from minikafka.wire.kafka.frames import READ_SIZE, FrameReader
from minikafka.world.connections import KAFKA, OpenConnection, owner_of
from minikafka.world.outgoing import CHUNK_SIZE, SocketConnection
from minikafka.world.request_room import STRANGERS, is_too_slow

if TYPE_CHECKING:
    from minikafka.world.http_server import HttpServer

_Read = TypeVar("_Read")

FRAMES_PER_TURN = 16


class KafkaConnection(SocketConnection):
    """One connection, taken over from the look at its first byte."""

    def __init__(self, host: HttpServer) -> None:
        super().__init__(host.unread)
        self._host = host
        self.gone = asyncio.Event()
        """The connection is lost."""
        self._reader = FrameReader(host.request_max_bytes)
        self._session: FrameSession | None = None
        self._frames: deque[memoryview] = deque()
        """Frames that the session has not got yet, in order."""
        self._delivers = False
        """The next turn of the loop goes on with them."""
        self._has_backlog = False
        """The connection is not read until they are gone."""
        self._held = 0
        """Bytes admitted for the large frame that is being received, and for those that are being handled."""
        self.owner = STRANGERS
        """The owner of these bytes (``request_room.py``); it changes only while none are held."""
        self._is_stranger = False
        """Its client must log in, and has not."""
        self._announced = 0
        """Size of the large frame that is being received."""
        self._out: list[Buffer] = []
        """Answers of this turn of the loop."""
        self._flushes = False
        """A flush is scheduled, or follows in this call."""
        self._is_paused_by_session = False
        self._waits_for_room = False
        self._is_closing = False
        self._is_lost = False
        self._heard_at = self._loop.time()
        self._frame_since = 0.0
        """When the frame that is being received began."""
        self._has_asked = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def opened_at(self) -> float:
        """When the connection was accepted, on the loop's clock."""
        return self.record.opened_at

    @property
    def announced(self) -> int:
        """Size of the large frame that is being received."""
        return self._announced

    @property
    def is_busy(self) -> bool:
        """Return True while a request is being handled."""
        return bool(self._frames) or (self._session is not None and self._session.is_busy)

    # ---- the transport's calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._host.kafka_opened(self, cast("asyncio.Transport", transport))
        self._session = self._host.open_session(self)
        self._look_at_the_time()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002 - it is gone, for whatever reason
        self._detach()
        self.gone.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.closed()
        self._is_paused_by_session = False
        self._deliver()
        kept = 0
        if self.is_busy and not self._is_closing:
            # Frames that came whole are still handled, and hold their bytes until then.
            kept = self._held - (0 if self._waits_for_room else self._announced)
        if kept < self._held:
            self._host.release_frames(self.owner, self._held - kept)
        self._held = kept
        self._host.kafka_closed(self)
        self._is_lost = True
        self._let_go()

    def _let_go(self) -> None:
        """Give the session up once it has every frame of a connection that is lost.

        The session and its pending requests refer to the connection. Without this reference they are in no cycle, and
        the buffer for reading is freed with the last of them: full garbage collections are rare (``calm_collector``).
        """
        if self._is_lost and not self._frames:
            self._session = None

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the reader knows the place
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at = self._loop.time()
        self.record.received += nbytes
        self._take(self._reader.filled, nbytes)

    def take_over(self, data: bytes) -> None:
        """The bytes that were read before this connection was known to speak Kafka's protocol."""
        self._take(self._reader.feed, data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._session is not None:
            self._session.room(has_room=False)

    def _has_room(self) -> None:
        if self._session is not None:
            self._session.room(has_room=True)

    def describe(self) -> OpenConnection:
        """Return what is known about the connection now."""
        seen = self._session.describe() if self._session is not None else SessionState()
        return OpenConnection(
            record=self.record,
            protocol=KAFKA,
            remote=self.peer,
            idle_s=self._loop.time() - self._heard_at,
            client_id=seen.client_id,
            software=seen.software,
            last_request=seen.last_request,
            api_version=seen.api_version,
            pending_request=seen.pending_request,
        )

    # ---- frames ------------------------------------------------------------------------------------------------------

    def _take(self, read: Callable[[_Read], list[memoryview]], what: _Read) -> None:
        try:
            frames = read(what)
        except InvalidRequest as error:
            if self._session is not None:
                self._session.malformed(error)
            return
        if frames:
            self._has_asked = True
            self.record.requests += len(frames)
            self._frames.extend(frames)
            if not self._delivers:
                self._deliver()
        if frames or self._reader.is_empty:
            self._frame_since = self._heard_at
        if self._reader.announced != self._announced:
            self._announced = self._reader.announced
            if self._announced:
                self._admit()

    def _deliver(self) -> None:
        """Give frames to the session; what it has no room for waits until it resumes."""
        self._delivers = False
        # Answers that are there when the frames of one read are handled leave together, and at once: see MANY.
        flushes_here = not (self._flushes or self._host.has_many_frames)
        self._flushes |= flushes_here
        try:
            self._give_frames()
        finally:
            if flushes_here:
                self._flushes = False
                if self._out:
                    self.flush()
        if self._frames or self._has_backlog:
            self._has_backlog = bool(self._frames)
            self._set_reading()
        self._let_go()

    def _give_frames(self) -> None:
        for _ in range(FRAMES_PER_TURN):
            if self._is_closing:
                self._frames.clear()
            if not self._frames or self._is_paused_by_session or self._session is None:
                return
            self._session.received(self._frames.popleft())
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self._frames and not self._delivers:
            self._delivers = True
            self._loop.call_soon(self._deliver)

    def _admit(self) -> None:
        """Room for the large frame that has begun; without any, read on when there is some."""
        if not (self._held or self._waits_for_room):
            self.owner = STRANGERS if self._is_stranger else owner_of(self.record.principal, self.remote)
        self._waits_for_room = not self._host.admit_frame(self.owner, self._announced)
        if not self._waits_for_room:
            self._held += self._announced
            self._reader.make_room()
            self._frame_since = self._loop.time()
        elif self._transport is not None:
            self._host.wait_for_room(self)
        self._set_reading()

    def admit_waiting(self) -> bool:
        """Look for room again; False if the frame still waits."""
        if self._transport is not None and self._waits_for_room:
            self._admit()
        return self._transport is None or not self._waits_for_room

    def hurry(self) -> None:
        """Others wait for room: close the connection if its frame will not be complete in time at its present pace."""
        if not self._announced or self._waits_for_room or self._frames or self._is_paused_by_session:
            return
        received, sending_s = self._reader.received, self._loop.time() - self._frame_since
        if is_too_slow(received, self._announced, sending_s, self._host.frame_timeout_s) and self._session is not None:
            why = f"{received} of a frame's {self._announced} bytes came in {sending_s:.1f} s"
            self._session.malformed(InvalidRequest(f"{why}, and others wait for the room (queued.max.request.bytes)"))

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = not (self._frames or self._is_paused_by_session or self._waits_for_room)
        if wanted and not transport.is_reading():
            transport.resume_reading()
        elif not wanted and transport.is_reading():
            transport.pause_reading()

    # ---- the session's calls -----------------------------------------------------------------------------------------

    def send(self, answer: Buffers) -> None:
        self._out.extend(answer)
        if not self._flushes:
            self._flushes = True
            self._host.flush_soon(self)

    def handled(self, size: int) -> None:
        if size > READ_SIZE - 4 and self._held >= size:
            self._host.release_frames(self.owner, size)
            self._held -= size

    def close(self) -> None:
        self._is_closing = True
        self._frames.clear()
        self.flush()
        transport = self._transport
        if self._outgoing is None or transport is None or transport.is_closing():
            return
        self._outgoing.finish()
        if not transport.is_closing() and transport.is_reading():
            transport.pause_reading()

    def await_login(self, frame_bytes_max: int) -> None:
        self._is_stranger = True
        self._reader.limit(frame_bytes_max, has_headers=False)

    def logged_in(self, principal: str) -> None:
        self.record.principal = principal
        self._is_stranger = False
        self._host.kafka_logged_in(self)
        self._reader.limit(self._host.request_max_bytes, has_headers=True)

    def pause(self) -> None:
        self._is_paused_by_session = True
        self._set_reading()

    def resume(self) -> None:
        self._is_paused_by_session = False
        self._frame_since = self._loop.time()
        self._deliver_soon()
        self._set_reading()

    def flush(self) -> None:
        """Write the answers that are ready."""
        self._flushes = False
        out, self._out = self._out, []
        transport, outgoing = self._transport, self._outgoing
        if transport is None or outgoing is None or transport.is_closing():
            return
        if len(out) == 1 and not outgoing.waiting and len(out[0]) <= CHUNK_SIZE:
            self.record.sent += len(out[0])
            transport.write(out[0])
        else:
            self.record.sent += sum(map(len, out))
            outgoing.write(out)
        self._heard_at = self._loop.time()
        if not self.is_busy:
            self._host.kafka_answered(self)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Close once no answer is owed."""
        self._is_closing = True
        self._frames.clear()
        if not self.is_busy:
            self.close()

    def cancel(self) -> None:
        """End what is being handled: the process dies."""
        self._frames.clear()
        if self._session is not None:
            self._session.cancel()

    def _look_at_the_time(self) -> None:
        if self._transport is None:
            return
        idle_s, first_s = self._host.idle_timeout_s, self._host.first_request_timeout_s
        limit_s = idle_s if self._has_asked else min(first_s, idle_s)
        # A connection that is not read (a throttled client's) cannot show that its client lives.
        is_kept = self.is_busy or self._is_paused_by_session
        left_s = limit_s if is_kept else self._heard_at + limit_s - self._loop.time()
        if not (self._reader.is_empty or self._waits_for_room or self._is_paused_by_session):
            left_s = min(left_s, self._frame_since + self._host.frame_timeout_s - self._loop.time())
        if left_s <= 0:
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(min(left_s, first_s), self._look_at_the_time)
