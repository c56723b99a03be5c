"""Frames of Kafka's protocol: 4 bytes of size, then a header, then a message.

Rules for this file: sans-IO. Bytes are read in place: a small frame is copied out of the read buffer once, a large one
is received into a buffer of its own and is never copied.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from mmap import mmap

from minikafka.errors import InvalidRequest
from minikafka.ports import Buffer, Buffers
from minikafka.wire.kafka.codec import read_varint
from minikafka.wire.kafka.schema import ApiSchema, api_with_key

READ_SIZE = 16 * 1024
"""Bytes of one connection's read buffer: many small requests fit."""

ANNOUNCED_AFTER = 8 * 1024
"""Bytes of a large frame that come before memory is asked for it: a client that sends four bytes holds none."""

CLEARED_SIZE_MAX = 2 * 1024 * 1024
"""Larger frames are received into pages that the system provides one by one. Python fills a new bytearray with zeros:
for 100 MiB that nobody has sent yet, this took 55 ms and 100 MiB."""

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_HEADER_SIZE = _HEADER.size
_RESPONSE_HEADER = struct.Struct(">ii")
"""The frame's size and the correlation id."""

API_VERSIONS_KEY = 18

HEADER_TAGS_MAX = 64
"""Tagged fields of a request's header, which is read before its sender has logged in. No client sends any."""


class Header:
    """A request's header. No tuple: compiled, the attributes of a class are read several times as fast."""

    __slots__ = ("body_at", "client_id", "correlation_id", "is_flexible", "key", "schema", "version")

    def __init__(
        self,
        key: int,
        version: int,
        correlation_id: int,
        client_id: bytes | None,
        schema: ApiSchema | None,
        is_flexible: bool,  # noqa: FBT001 - hot
        body_at: int,
    ) -> None:
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.schema = schema
        """None when no API has this key."""
        self.is_flexible = is_flexible
        """Compact lengths and tagged fields (KIP-482)."""
        self.body_at = body_at
        """Where the message begins in the frame."""


def read_header(frame: memoryview) -> Header:
    """The header of a frame (its size left out). Raises InvalidRequest."""
    try:
        key, version, correlation_id, size = _HEADER.unpack_from(frame)
        end = _HEADER_SIZE + max(size, 0)
        if end > len(frame):
            raise InvalidRequest("the client id is longer than the frame")
        client_id = bytes(frame[_HEADER_SIZE:end]) if size >= 0 else None
        schema, is_flexible = _form_of(key, version)
        if is_flexible:
            end = _skip_tags(frame, end)
    except (struct.error, IndexError, ValueError):
        raise InvalidRequest(f"a frame of {len(frame)} bytes holds no request header") from None
    return Header(key, version, correlation_id, client_id, schema, is_flexible, end)


@lru_cache(1024)
def _form_of(key: int, version: int) -> tuple[ApiSchema | None, bool]:
    schema = api_with_key(key)
    return schema, schema is not None and schema.is_flexible(version)


def _skip_tags(frame: memoryview, at: int) -> int:
    """Where tagged fields of a header end."""
    count, at = read_varint(frame, at)
    if count > HEADER_TAGS_MAX:
        raise InvalidRequest(f"the header has {count} tagged fields, {HEADER_TAGS_MAX} are accepted")
    for _ in range(count):
        _, at = read_varint(frame, at)
        size, at = read_varint(frame, at)
        at += size
    return at


def response_head(header: Header) -> bytearray:
    """Room for the size, then the response header. ApiVersions has the old header in every version (KIP-511)."""
    head = bytearray(_RESPONSE_HEADER.pack(0, header.correlation_id))
    if header.is_flexible and header.key != API_VERSIONS_KEY:
        head.append(0)
    return head


def sized(buffers: Buffers) -> Buffers:
    """Write the frame's size into the room that :func:`response_head` left in the first buffer."""
    first = buffers[0]
    if not isinstance(first, bytearray):
        raise TypeError("the first buffer of a frame is the one that response_head() began")
    size = len(first) if len(buffers) == 1 else sum(map(len, buffers))
    _SIZE.pack_into(first, 0, size - 4)
    return buffers


class FrameReader:
    """Splits a stream of bytes into frames. ``frame_bytes_max`` bounds a frame before memory is spent on it.

    A frame that is larger than the read buffer is ``announced`` once some of it has come; its caller gives it memory
    with :meth:`make_room` and reads nothing until then.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.limit(frame_bytes_max, has_headers=True)
        self._read = memoryview(bytearray(READ_SIZE))
        self._begin = 0
        self._end = 0
        """Unsplit bytes are ``_read[_begin:_end]``."""
        self._large: bytearray | mmap | None = None
        self._large_size = 0
        self.announced = 0
        """Size of the large frame that is being received; 0: none is."""

    def limit(self, frame_bytes_max: int, *, has_headers: bool) -> None:
        """Refuse larger frames from the next one on, and with ``has_headers`` those that have no room for a header."""
        self._frame_bytes_max = frame_bytes_max
        self._frame_bytes_min = _HEADER_SIZE if has_headers else 0

    @property
    def is_empty(self) -> bool:
        """No frame has begun."""
        return self._begin == self._end and not self.announced

    @property
    def received(self) -> int:
        """Bytes of the announced frame that have come."""
        return self._large_size if self._large is not None else 0

    def make_room(self) -> None:
        """Give the announced frame its memory."""
        if self.announced and self._large is None:
            self._large = bytearray(self.announced) if self.announced <= CLEARED_SIZE_MAX else mmap(-1, self.announced)
            self._large_size = self._end - self._begin
            self._large[: self._large_size] = self._read[self._begin : self._end]
            self._begin = self._end = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty, once an announced frame has its memory."""
        if self._large is not None:
            return memoryview(self._large)[self._large_size :]
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._end == READ_SIZE:
            rest = self._end - self._begin
            self._read[:rest] = self._read[self._begin : self._end]
            self._begin, self._end = 0, rest
        return self._read[self._end :]

    def feed(self, data: Buffer) -> list[memoryview]:
        """As :meth:`buffer` and :meth:`filled`, for bytes that lie elsewhere; large frames get their memory at once."""
        frames: list[memoryview] = []
        view = memoryview(data)
        while view:
            self.make_room()
            room = self.buffer()
            size = min(len(room), len(view))
            room[:size] = view[:size]
            view = view[size:]
            frames += self.filled(size)
        return frames

    def filled(self, size: int) -> list[memoryview]:
        """``size`` bytes have come: the frames that are complete now, without their sizes. Raises InvalidRequest."""
        if self._large is not None:
            self._large_size += size
            if self._large_size < len(self._large):
                return []
            whole, self._large, self.announced = memoryview(self._large), None, 0
            return [whole]
        self._end += size
        frames: list[memoryview] = []
        while not self.announced and self._end - self._begin >= 4:
            (length,) = _SIZE.unpack_from(self._read, self._begin)
            if not self._frame_bytes_min <= length <= self._frame_bytes_max:
                raise InvalidRequest(
                    f"a frame of {length} bytes: {self._frame_bytes_min} to {self._frame_bytes_max} are allowed "
                    "(socket.request.max.bytes)"
                )
            here = self._begin + 4
            if length <= self._end - here:
                frames.append(memoryview(bytes(self._read[here : here + length])))
                self._begin = here + length
                continue
            if length > READ_SIZE - 4 and self._end - here >= ANNOUNCED_AFTER:
                self._begin = here
                self.announced = length
            break
        return frames
