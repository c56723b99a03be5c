"""What one connection has still to write: buffers through its transport, regions of files past it with ``sendfile``.

:class:`SocketConnection` is what all connections have in common that read into buffers of their own.

Rules for this file:

1. Bytes leave in the order in which they were given.
2. A region is sent directly only while the transport holds nothing; when the socket is full, once it has room again: a
   client that reads slowly costs no memory. Where regions cannot be sent directly they go through the transport in
   chunks, one for each time that the socket has room: such a client costs a chunk of memory, not a response.
3. ``waiting`` is empty unless the protocol is paused. So its owner goes on when it is resumed.
4. One turn of the loop sends TURN_SIZE bytes of regions at most: a fast reader could take tens of megabytes at once.
   Until the next turn the protocol is paused, as the transport would pause it.
5. A file that is shorter than its region, or that cannot be read, ends the connection: the response's size was sent.
6. Under TLS the kernel cannot send a file, and the transport encrypts at once what it is given. So large buffers go in
   chunks too, and a turn encrypts TLS_TURN_SIZE at most.
7. A connection that ends writes first what is waiting, in the same chunks.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import cast

from minikafka.config import KIB, MIB
from minikafka.errors import DiskFailed, DiskFull
from minikafka.ports import Buffer, Buffers, FileRegion
from minikafka.world.connections import ConnectionRecord, owner_of, peer_of
from minikafka.world.unread_responses import Unread, UnreadResponses

JOINED_SIZE = 4 * KIB
"""Buffers below this size are joined to one write."""

CHUNK_SIZE = 128 * KIB
"""More than the transport's high-water mark: if the socket takes none of it, the transport pauses its protocol."""

HIGH_WATER = 64 * KIB

TURN_SIZE = 4 * MIB
"""Sent in less than a millisecond."""

TLS_TURN_SIZE = 1 * MIB
"""Encrypted in some two milliseconds."""

MORE: int = getattr(socket, "MSG_MORE", 0)


def write_message(transport: asyncio.Transport, head: bytes, buffers: Buffers, size: int) -> None:
    """Write a head and ``size`` bytes of a body: in one write, or in one for each buffer if they are large.

    uvloop gathers them. Not transport.writelines: before Python 3.12 asyncio joins there.
    """
    if size < JOINED_SIZE:
        transport.write(b"".join((head, *buffers)))
        return
    transport.write(head)
    for buffer in buffers:
        if buffer:
            transport.write(buffer)


class Outgoing:
    """The writing end of one connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.waiting: deque[Buffer | FileRegion] = deque()
        self._transport = transport
        self._begin = 0
        """Bytes of the first region in ``waiting`` that are sent."""
        self.is_paused = False
        """The transport holds enough."""
        self._ends = False
        """The transport closes once nothing is waiting."""
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self._socket: socket.socket | None = None
        """A duplicate of the transport's socket: uvloop's own cannot send."""
        if self._is_tls:
            transport.set_write_buffer_limits(high=HIGH_WATER, low=0)

    def write(self, buffers: Buffers) -> None:
        """Write the buffers now if the transport takes them, else when it resumes."""
        self.waiting.extend(buffers)
        self._advance()

    def pause(self) -> None:
        """The transport holds enough."""
        self.is_paused = True

    def resume(self) -> None:
        """The transport takes more."""
        self.is_paused = False
        self._advance()

    def finish(self) -> None:
        """Close the transport once it has been given all that is waiting."""
        self._ends = True
        self._advance()

    def unsent(self) -> tuple[int, int]:
        """How many bytes are in memory, and how many are to be sent, those in files too."""
        held = self._transport.get_write_buffer_size()
        left = held - self._begin
        for each in self.waiting:
            left += len(each)
            if isinstance(each, bytes | bytearray | memoryview):
                held += len(each)
        return held, left

    def close(self) -> None:
        """The connection is gone."""
        self.waiting.clear()
        if self._socket is not None:
            asyncio.get_running_loop().remove_writer(self._socket)
            self._socket.close()
            self._socket = None

    def _advance(self) -> None:
        waiting, transport = self.waiting, self._transport
        left = TLS_TURN_SIZE if self._is_tls else TURN_SIZE
        try:
            while waiting and not self.is_paused and not transport.is_closing():
                if isinstance(waiting[0], bytes | bytearray | memoryview):
                    left -= self._write_buffers()
                else:
                    left -= self._send(waiting[0], left)
                if left <= 0 and waiting and not self.is_paused:
                    self._yield()
        except (OSError, DiskFailed, DiskFull):
            transport.abort()
        if transport.is_closing():
            waiting.clear()
        elif self._ends and not waiting:
            transport.close()

    def _write_buffers(self) -> int:
        """Write buffers up to the next region, or up to the first large one; return how many bytes were encrypted."""
        small: list[Buffer] = []
        large: Buffer = b""
        while self.waiting and isinstance(self.waiting[0], bytes | bytearray | memoryview):
            buffer = self.waiting[0]
            self.waiting.popleft()
            if len(buffer) >= JOINED_SIZE:
                large = buffer
                if self._is_tls and len(buffer) > CHUNK_SIZE:
                    large = memoryview(buffer)[:CHUNK_SIZE]
                    self.waiting.appendleft(memoryview(buffer)[CHUNK_SIZE:])
                break
            small.append(buffer)
        encrypted = len(large) + sum(map(len, small)) if self._is_tls else 0
        if small:
            joined = small[0] if len(small) == 1 else b"".join(small)
            if self.waiting and not large:
                # uvloop keeps a small buffer until the end of the turn, and the region could not be sent directly.
                joined = joined[self._send_head(joined) :]
            if joined:
                self._transport.write(joined)
        if large:
            self._transport.write(large)
        return encrypted

    def _yield(self) -> None:
        protocol = self._transport.get_protocol()
        protocol.pause_writing()
        asyncio.get_running_loop().call_soon(self._go_on, protocol)

    def _go_on(self, protocol: asyncio.BaseProtocol) -> None:
        if self.waiting:  # else all was sent because the connection closes, or it is gone
            protocol.resume_writing()

    def _send(self, region: FileRegion, size_max: int) -> int:
        direct = self._direct()
        sent = None
        if direct is not None:
            try:
                sent = region.send(direct.fileno(), self._begin, size_max)
            except BlockingIOError:
                self._await_room(direct)
                return 0
            if sent == 0:
                raise DiskFailed("the file is shorter than the region that is being sent")
        if sent is None:
            sent = min(CHUNK_SIZE, len(region) - self._begin)
            self._transport.write(region.read(self._begin, sent))
        self._begin += sent
        if self._begin == len(region):
            self.waiting.popleft()
            self._begin = 0
        return sent

    def _await_room(self, direct: socket.socket) -> None:
        protocol = self._transport.get_protocol()
        protocol.pause_writing()
        asyncio.get_running_loop().add_writer(direct, self._has_room, direct, protocol)

    def _has_room(self, direct: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        asyncio.get_running_loop().remove_writer(direct)
        self._go_on(protocol)

    def _send_head(self, data: Buffer) -> int:
        """Send the bytes before a region, to leave together with it; how many the socket took."""
        direct = self._direct()
        if direct is None:
            return 0
        try:
            return direct.send(data, MORE)
        except BlockingIOError:
            return 0

    def _direct(self) -> socket.socket | None:
        """The socket, if bytes may be written to it past the transport."""
        if self._is_tls or self._transport.get_write_buffer_size():
            return None
        if self._socket is None:
            own = self._transport.get_extra_info("socket")
            if own is None:
                return None
            self._socket = own.dup()
            self._socket.settimeout(0)
            # Resumed once everything is sent, the next bytes of a region can be sent directly again.
            self._transport.set_write_buffer_limits(high=HIGH_WATER, low=0)
        return self._socket


class SocketConnection(asyncio.BufferedProtocol):
    """The server's end of one connection, without what it reads."""

    def __init__(self, unread: UnreadResponses) -> None:
        self._loop = asyncio.get_running_loop()
        self.record = ConnectionRecord(self._loop.time())
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._unread = unread

    @property
    def remote(self) -> str:
        """The address of the other end; empty when it has left."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    @property
    def peer(self) -> str:
        """Address and port of the other end; empty when it has left."""
        return "" if self._transport is None else peer_of(self._transport.get_extra_info("peername"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._outgoing = Outgoing(self._transport)

    def pause_writing(self) -> None:
        if self._outgoing is not None:
            self._outgoing.pause()
            self._unread.paused(self)

    def resume_writing(self) -> None:
        if self._outgoing is None:
            return
        self._outgoing.resume()
        if not self._outgoing.waiting:
            if not self._outgoing.is_paused:
                self._unread.ended(self)
            self._has_room()

    def unread(self) -> Unread:
        """What the other end has not taken yet."""
        held, left = (0, 0) if self._outgoing is None else self._outgoing.unsent()
        return Unread(owner_of(self.record.principal, self.remote), held, left)

    def _has_room(self) -> None:
        """All that was given to it is written, or is the transport's."""

    def abort(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    def _detach(self) -> None:
        """Let go of the transport, which is gone or another protocol's."""
        self._unread.ended(self)
        if self._outgoing is not None:
            self._outgoing.close()
        self._transport = self._outgoing = None
