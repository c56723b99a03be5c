"""Decompression with a bound: a few bytes on the wire must not become gigabytes in memory.

Rules for this file:

1. No caller decompresses without a limit. :func:`decompression_limit` derives it from ``max.message.bytes``; a caller
   that does not know the topic's settings uses ``DECOMPRESSED_BYTES_MAX``.
2. Declared sizes are compared with the limit before any memory is allocated (snappy and most zstd frames declare one).
3. The output goes into a buffer that grows from a multiple of the input up to the limit, never beyond it. The codec
   stops as soon as the buffer is full, so the cost of a batch that expands too far is the cost of the limit.
4. Whatever a codec raises comes out as CorruptMessage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache

import cramjam

from minikafka.errors import CorruptMessage
from minikafka.ports import Buffer
from minikafka.wire.batch import CODEC_MASK, CODEC_NAMES, HEADER_SIZE, RECORD_SIZE_MIN, RecordBatch

_MIB = 1 << 20
DECOMPRESSED_BYTES_MAX = 256 * _MIB
"""The limit for callers that do not know the topic's settings: clients and tools."""
DECOMPRESSED_BYTES_MIN = 16 * _MIB
"""No limit is lower: producers compare ``batch.size`` with sizes before compression as well as after it."""
EXPANSION_MAX = 16
"""A batch may expand to this multiple of ``max.message.bytes``."""

# The low byte of the attributes.
_CODEC_AT = 22
_FIRST_BUFFER = 64 * 1024
_GROWTH = 4
_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, 5)
_XERIAL_HEAD = b"\x82SNAPPY\x00"
_XERIAL_HEAD_SIZE = 16
# Blocks hold 32 KiB before compression, which snappy cannot make smaller than about 1.5 KiB.
_XERIAL_BLOCK_MEAN_MIN = 64
_XERIAL_BLOCK_SIZE = struct.Struct(">i")
_ZSTD_HEADER_SIZE_MAX = 18
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# cramjam's only sign that the output does not fit; the next larger buffer decides what it was.
_BUFFER_FULL = "failed to write whole buffer"


@lru_cache(64)
def decompression_limit(max_message_bytes: int) -> int:
    """The largest decompressed size of a batch in a topic with this ``max.message.bytes``."""
    return min(max(EXPANSION_MAX * max_message_bytes, DECOMPRESSED_BYTES_MIN), DECOMPRESSED_BYTES_MAX)


def decompressed(batch: RecordBatch, limit: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Return the bytes of the records of ``batch``; an uncompressed body is returned without a copy.

    Raises:
        CorruptMessage: the codec cannot read the body, the body expands to more than ``limit`` bytes, or the header
            counts more records than the bytes can hold. The records themselves are not read.
    """
    if not batch.codec:
        body: Buffer = batch.data[HEADER_SIZE:]
    else:
        body = memoryview(plain_batch(batch, limit))[HEADER_SIZE:]
    check_record_count(batch, len(body))
    return body


def plain_batch(batch: RecordBatch, limit: int = DECOMPRESSED_BYTES_MAX) -> bytearray:
    """Return a compressed batch without its compression: the same header, its codec bits cleared, and the records.

    The length and the checksum of the header remain those of the compressed batch. Raises CorruptMessage as
    :func:`decompressed` does.
    """
    codec = batch.codec
    if codec >= len(CODEC_NAMES):
        raise CorruptMessage(f"attributes: compression codec {codec} is not known")
    # A count that cannot be met within the limit is rejected before the body is read.
    check_record_count(batch, limit)
    body = batch.data[HEADER_SIZE:]
    try:
        declared = _declared_size(codec, body)
    except cramjam.DecompressionError as error:
        raise _unreadable(batch, error) from error
    if declared is not None and declared > limit:
        raise _too_large(batch, limit)
    buffer = _filled(batch, body, declared, limit)
    buffer[:HEADER_SIZE] = batch.data[:HEADER_SIZE]
    buffer[_CODEC_AT] &= ~CODEC_MASK & 0xFF
    return buffer


def check_record_count(batch: RecordBatch, size: int) -> None:
    """Raise CorruptMessage if ``size`` bytes cannot hold the records that the header counts."""
    if not 0 <= batch.record_count <= size // RECORD_SIZE_MIN:
        raise CorruptMessage(f"recordCount: {batch.record_count} records do not fit {size} bytes")


def _unreadable(batch: RecordBatch, error: cramjam.DecompressionError) -> CorruptMessage:
    return CorruptMessage(f"records: {CODEC_NAMES[batch.codec]}: {error}")


def _too_large(batch: RecordBatch, limit: int) -> CorruptMessage:
    return CorruptMessage(
        f"records: a {CODEC_NAMES[batch.codec]} batch of {batch.size} bytes expands to more than {limit} bytes, "
        "the limit for decompression"
    )


def _filled(batch: RecordBatch, body: memoryview, declared: int | None, limit: int) -> bytearray:
    """A buffer with room for the header and the decompressed ``body`` behind it, cut to what was written."""
    room = declared if declared is not None else min(max(_FIRST_BUFFER, _GROWTH * len(body)), limit)
    while True:
        buffer = bytearray(HEADER_SIZE + room)
        try:
            with memoryview(buffer)[HEADER_SIZE:] as out:
                size = _INTO[batch.codec](body, out)
        except cramjam.DecompressionError as error:
            if str(error) != _BUFFER_FULL:
                raise _unreadable(batch, error) from error
            if room >= limit:
                raise _too_large(batch, limit) from None
            room = min(_GROWTH * max(room, _FIRST_BUFFER), limit)
        else:
            del buffer[HEADER_SIZE + size :]
            return buffer


def _declared_size(codec: int, body: memoryview) -> int | None:
    """The decompressed size that the body declares, where it declares one that can be found at its start."""
    if codec == _SNAPPY:
        return sum(cramjam.snappy.decompress_raw_len(block) for block in _snappy_blocks(body))
    return _zstd_content_size(body) if codec == _ZSTD else None


def _zstd_content_size(body: memoryview) -> int | None:
    """The content size in the first frame's header (RFC 8878, 3.1.1.1); None without one, or if others follow."""
    if body[:4] != _ZSTD_MAGIC or len(body) < _ZSTD_HEADER_SIZE_MAX:
        return None
    descriptor = body[4]
    is_single_segment = descriptor & 0x20
    width = (0, 2, 4, 8)[descriptor >> 6] or (1 if is_single_segment else 0)
    if not width:
        return None
    at = 5 + (0 if is_single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(body[at : at + width], "little")
    return size + 256 if width == 2 else size


def _snappy_blocks(body: memoryview) -> Iterator[memoryview]:
    """The blocks of xerial's framing (which Kafka's clients write), else the whole body as one block."""
    if len(body) < _XERIAL_HEAD_SIZE or body[: len(_XERIAL_HEAD)] != _XERIAL_HEAD:
        yield body
        return
    position, count = _XERIAL_HEAD_SIZE, 0
    while position < len(body):
        count += 1
        start = position + _XERIAL_BLOCK_SIZE.size
        size = _XERIAL_BLOCK_SIZE.unpack_from(body, position)[0] if start <= len(body) else 0
        if not 0 < size <= len(body) - start:
            raise CorruptMessage(f"records: snappy: a block of {size} bytes at byte {position} of {len(body)}")
        if count > 1 + len(body) // _XERIAL_BLOCK_MEAN_MIN:
            raise CorruptMessage(f"records: snappy: more than {count - 1} blocks in {len(body)} bytes")
        position = start + size
        yield body[start:position]


def _snappy_into(body: memoryview, out: memoryview) -> int:
    written = 0
    for block in _snappy_blocks(body):
        written += cramjam.snappy.decompress_raw_into(block, out[written:])
    return written


_INTO: dict[int, Callable[[memoryview, memoryview], int]] = {
    _GZIP: cramjam.gzip.decompress_into,
    _SNAPPY: _snappy_into,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
