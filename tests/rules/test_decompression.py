"""Decompression never takes more memory than its limit allows, whatever a batch declares or expands to."""

import struct
import tracemalloc

import cramjam
import pytest
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode

from minikafka.errors import CorruptMessage
from minikafka.wire.batch import CODEC_NAMES, HEADER_SIZE, RecordBatch
from minikafka.wire.decompression import (
    DECOMPRESSED_BYTES_MAX,
    DECOMPRESSED_BYTES_MIN,
    decompressed,
    decompression_limit,
    plain_batch,
)
from minikafka.wire.records import Record, build_batch, decode_batch, records_of
from minikafka.wire.rewrite import slices

MIB = 1 << 20
ENCODERS = {"gzip": gzip_encode, "snappy": snappy_encode, "lz4": lz4_encode, "zstd": zstd_encode}
OPENERS = {
    "decompressed": decompressed,
    "decode_batch": lambda batch, limit: decode_batch(batch, limit=limit),
    "records_of": lambda batch, limit: list(records_of(batch, limit=limit)),
    "slices": lambda batch, limit: list(slices(batch, limit=limit)),
}


def batch_of(codec: str, body: bytes, *, count: int = 1) -> RecordBatch:
    head = bytearray(build_batch([Record(0, 1, value=b"")]))[:HEADER_SIZE]
    struct.pack_into(">i", head, 8, HEADER_SIZE - 12 + len(body))
    struct.pack_into(">h", head, 21, CODEC_NAMES.index(codec))
    struct.pack_into(">i", head, 57, count)
    return RecordBatch.of(bytes(head) + body)


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("codec", ENCODERS)
def test_a_bomb_is_refused_at_the_cost_of_the_limit(codec, opener):
    """9 KB of zstd that expand to 300 MB cost more than 1 GB on 62e114e: here no more than a few times the limit."""
    batch = batch_of(codec, ENCODERS[codec](bytes(64 * MIB)))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessage, match="expands to more than 1048576 bytes"):
            OPENERS[opener](batch, MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 300_000, MIB])
def test_what_fits_the_limit_is_returned_whole(codec, size):
    """The buffer grows until the limit, and one of exactly the limit still fits."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    batch = batch_of(codec, ENCODERS[codec](body), count=0)
    assert bytes(decompressed(batch, MIB)) == body
    if size:
        with pytest.raises(CorruptMessage, match="expands to more than"):
            decompressed(batch, size - 1)


def test_raw_snappy_is_read_like_framed_snappy():
    """librdkafka writes snappy without xerial's framing."""
    body = b"abc" * 1000
    assert bytes(decompressed(batch_of("snappy", bytes(cramjam.snappy.compress_raw(body))))) == body


def test_frames_in_a_row_are_one_body():
    """gzip members, zstd frames and lz4 frames may follow each other."""
    for codec in ("gzip", "zstd", "lz4"):
        body = ENCODERS[codec](b"a" * 100_000) + ENCODERS[codec](b"b" * 100_000)
        assert bytes(decompressed(batch_of(codec, body))) == b"a" * 100_000 + b"b" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xff\xff\xff\x0fxx",  # raw, 4 GiB declared
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x06\xff\xff\xff\xff\x0fx",
    ],
)
def test_a_declared_size_beyond_the_limit_is_refused_unread(body):
    """Nothing is allocated for a number that the sender made up."""
    with pytest.raises(CorruptMessage, match="expands to more than"):
        decompressed(batch_of("snappy", body))


@pytest.mark.parametrize("framed", [False, True], ids=["raw", "framed"])
@pytest.mark.parametrize("declared", [b"\xff\xff\xff\xff\xff\x7f", b"\xff" * 12, b"\x80"])
def test_a_declared_size_that_snappy_itself_refuses_is_a_corrupt_message(declared, framed):
    """Sizes of 4 GiB and more, and no size at all. One such batch stopped the broker that was to append it."""
    body = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + struct.pack(">i", len(declared)) + declared
    with pytest.raises(CorruptMessage, match="records: snappy"):
        decompressed(batch_of("snappy", body if framed else declared + b"some body of sixteen bytes and more"))


def test_a_zstd_frame_that_declares_too_much_is_refused_unread():
    """The content size in the frame's header decides before the first block is read."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0xC0 | 0x20]) + (1 << 40).to_bytes(8, "little") + bytes(20)
    with pytest.raises(CorruptMessage, match="expands to more than"):
        decompressed(batch_of("zstd", frame))


@pytest.mark.parametrize("size", [-4, 0, -2147483648, 1000])
def test_block_lengths_of_framed_snappy_are_checked(size):
    """A negative length made the codec's own reader go backwards for ever."""
    framed = snappy_encode(b"abc" * 1000)
    block = framed[20:]
    with pytest.raises(CorruptMessage, match="snappy: a block of"):
        decompressed(batch_of("snappy", framed[:16] + struct.pack(">i", len(block)) + block + struct.pack(">i", size)))


def test_thousands_of_tiny_snappy_blocks_are_refused():
    """One Python call a block must not become 200,000 calls a megabyte."""
    block = bytes(cramjam.snappy.compress_raw(b"a"))
    framed = snappy_encode(b"") + (struct.pack(">i", len(block)) + block) * 10_000
    with pytest.raises(CorruptMessage, match="blocks in"):
        decompressed(batch_of("snappy", framed))


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_more_records_than_bytes_are_refused_before_they_are_read(codec, opener):
    """2^31-1 records cannot be in a body of a few bytes, compressed or not."""
    body = b"\x0c\x00\x00\x00\x01\x01\x00"
    packed = ENCODERS[codec](body) if codec != "none" else body
    with pytest.raises(CorruptMessage, match="recordCount"):
        OPENERS[opener](batch_of(codec, packed, count=2**31 - 1), MIB)


@pytest.mark.parametrize("codec", ENCODERS)
def test_damage_of_every_kind_is_a_corrupt_message(codec):
    """A cut body, a foreign one and a flipped byte are all refused alike."""
    good = ENCODERS[codec](bytes(range(256)) * 100)
    for body in (b"", good[:-3], good[: len(good) // 2], b"no such codec " * 5):
        with pytest.raises(CorruptMessage):
            decompressed(batch_of(codec, body))


def test_a_plain_batch_keeps_its_header_but_the_codec():
    """Other attribute bits stay: readers look at the timestamp type."""
    data = bytearray(build_batch([Record(i, 1, value=b"v" * 100) for i in range(100)], compression="zstd"))
    data[22] |= 0x08
    plain = plain_batch(RecordBatch.of(data))
    assert (plain[22], plain[:22], plain[23:HEADER_SIZE]) == (0x08, data[:22], data[23:HEADER_SIZE])


def test_the_limit_follows_the_topic():
    """A multiple of max.message.bytes, within a floor and a ceiling."""
    assert decompression_limit(1000) == DECOMPRESSED_BYTES_MIN
    assert decompression_limit(2 * MIB) == 32 * MIB
    assert decompression_limit(2**31 - 1) == DECOMPRESSED_BYTES_MAX
