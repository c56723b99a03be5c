"""Frames and request headers of Kafka's protocol."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest

from minikafka.errors import InvalidRequest
from minikafka.wire.kafka.frames import ANNOUNCED_AFTER, READ_SIZE, FrameReader, read_header, response_head, sized

LARGE = 100 * 1024 * 1024


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def torn(data: bytes, random: Random, reader: FrameReader) -> list[bytes]:
    """Give the reader ``data`` in pieces as a socket does: into its own buffer, as much as it has room for."""
    frames: list[bytes] = []
    while data:
        reader.make_room()
        room = reader.buffer()
        assert len(room) > 0
        size = min(len(room), len(data), random.choice((1, 3, 100, 5000, 100_000)))
        room[:size] = data[:size]
        data = data[size:]
        frames += map(bytes, reader.filled(size))
    return frames


@pytest.mark.parametrize("seed", range(40))
def test_frames_come_out_as_they_went_in_however_they_are_torn(seed: int):
    """Small ones, ones that just fit the read buffer, and ones that get a buffer of their own."""
    random = Random(seed)
    sizes = (10, 11, 100, READ_SIZE - 5, READ_SIZE - 4, READ_SIZE - 3, READ_SIZE, 70_000)
    bodies = [random.randbytes(random.choice(sizes)) for _ in range(30)]
    reader = FrameReader(LARGE)
    assert torn(b"".join(map(framed, bodies)), random, reader) == bodies
    assert reader.is_empty


def test_frames_that_came_before_are_fed():
    """What was read while it was not yet known that the connection speaks Kafka's protocol."""
    reader = FrameReader(LARGE)
    data = framed(b"x" * 20) + framed(b"y" * 40_000) + framed(b"z" * 30)
    assert [len(each) for each in reader.feed(data[:25_000])] == [20]
    assert reader.announced == 40_000
    assert [len(each) for each in reader.feed(data[25_000:])] == [40_000, 30]
    assert reader.announced == 0


def anonymous_mib() -> float:
    """Memory of this process that is no file's."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024


def test_announced_frame_takes_memory_as_its_bytes_come():
    """100 MiB were filled with zeros for a sender of four bytes."""
    reader = FrameReader(LARGE)
    before = anonymous_mib()
    assert reader.feed(struct.pack(">i", LARGE) + bytes(20)) == []
    assert not reader.announced
    assert reader.feed(bytes(ANNOUNCED_AFTER - 20)) == []
    assert reader.announced == LARGE
    reader.make_room()
    assert not reader.is_empty, "a connection that stands still here is in the midst of a frame"
    assert len(reader.buffer()) == LARGE - ANNOUNCED_AFTER
    assert anonymous_mib() - before < 20
    body = b"x" * (3 << 20)
    (frame,) = FrameReader(LARGE).feed(framed(body))
    assert frame == body


@pytest.mark.parametrize("length", [-1, 0, 9, LARGE + 1, 2**31 - 1])
def test_a_length_that_no_request_has_is_refused_before_memory_is_spent(length: int):
    """Too short for a header, negative, or beyond socket.request.max.bytes."""
    with pytest.raises(InvalidRequest, match=f"a frame of {length} bytes"):
        FrameReader(LARGE).feed(struct.pack(">i", length) + b"1234")


def test_headers():
    """Version 1 ends with the client id, version 2 with tagged fields; the API's version decides."""
    old = struct.pack(">hhih", 12, 3, 77, 2) + b"me" + b"rest"
    header = read_header(memoryview(old))
    assert (header.key, header.version, header.correlation_id, header.client_id) == (12, 3, 77, b"me")
    assert old[header.body_at :] == b"rest"
    new = struct.pack(">hhih", 12, 4, 77, -1) + b"\x01\x05\x02ab" + b"rest"
    header = read_header(memoryview(new))
    assert header.client_id is None
    assert new[header.body_at :] == b"rest"


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x12\x00\x03",
        struct.pack(">hhih", 12, 4, 1, 500) + b"short",
        struct.pack(">hhih", 12, 4, 1, 0) + b"\xff\xff\xff\xff\xff\xff\xff",
        struct.pack(">hhih", 12, 4, 1, 0) + b"\xff\xff\xff\x7f",
        struct.pack(">hhih", 12, 4, 1, 0),
        struct.pack(">hhih", 18, 3, 1, -1) + b"\xa8\x46" + bytes(2 * 9000),
    ],
)
def test_headers_that_cannot_be_read(frame: bytes):
    """Whatever is wrong with one, the error is InvalidRequest. The last one has 9,000 empty tagged fields: 100 MiB of them,
    which need no login, held the loop for seconds.
    """
    with pytest.raises(InvalidRequest):
        read_header(memoryview(frame))


def test_response_headers():
    """Flexible versions have tagged fields, ApiVersions never has, and the size is written last."""
    for key, version, size in ((12, 3, 8), (12, 4, 9), (18, 4, 8)):
        head = response_head(read_header(memoryview(struct.pack(">hhih", key, version, 5, 0) + b"\0\0\0")))
        assert len(head) == size
        head += b"body"
        assert bytes(sized([head, b"more"])[0][:8]) == struct.pack(">ii", size + 4 + 4 - 4, 5)
