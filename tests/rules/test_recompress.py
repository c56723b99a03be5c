"""Recompression of a client's batch to the topic's codec (KAFKA-FACTS 2, Kafka's LogValidator)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from minikafka.config import parse_topic
from minikafka.errors import InvalidRecord
from minikafka.wire.batch import CODEC_NAMES, HEADER_SIZE, RecordBatch, verify, verify_client
from minikafka.wire.recompress import is_long, plain, recompressed, target_codec
from minikafka.wire.records import Record, RecordView, build_batch, decode_batch

TIME = 1_700_000_000_000
TYPES = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LIMIT = 16 << 20


def batch_of(codec: str, count: int = 200) -> RecordBatch:
    records = [
        Record(0, TIME + number % 7, key=b"key %d" % number, value=b"value " * 9, headers=[("h", None)])
        for number in range(count)
    ]
    return verify_client(build_batch(records, compression=codec, producer_id=7, producer_epoch=2, base_sequence=11))


def told(records: Iterable[RecordView]) -> list[tuple[object, ...]]:
    return [(each.offset, each.timestamp, each.key, each.value, list(each.headers)) for each in records]


@pytest.mark.parametrize("compression_type", TYPES)
@pytest.mark.parametrize("source", CODEC_NAMES)
def test_batch_gets_the_codec_of_the_topic(source: str, compression_type: str):
    """Only codec, length and checksum change; a batch that has the codec stays as it is."""
    batch = batch_of(source)
    config = parse_topic({"compression.type": compression_type})
    codec = target_codec(batch, config)
    if TYPES[compression_type] == batch.codec:
        assert codec is None
        return
    assert codec == TYPES[compression_type]
    new = verify_client(recompressed(plain(batch, LIMIT), codec, config.compression_level).data)
    assert new.codec == codec
    for name in (
        "base_offset last_offset_delta base_timestamp max_timestamp producer_id producer_epoch base_sequence"
        " record_count timestamp_type leader_epoch"
    ).split():
        assert getattr(new, name) == getattr(batch, name), name
    assert told(decode_batch(new)) == told(decode_batch(batch))
    assert len(list(DefaultRecordBatch(bytes(new.data)))) == batch.record_count
    assert bytes(plain(new, LIMIT).data[HEADER_SIZE:]) == bytes(plain(batch, LIMIT).data[HEADER_SIZE:])


@pytest.mark.parametrize("source", CODEC_NAMES)
def test_producer_keeps_every_codec(source: str):
    """The default: no batch is compressed again."""
    assert target_codec(batch_of(source), parse_topic({})) is None


@pytest.mark.parametrize(
    "name, low, high", [("gzip", "1", "9"), ("lz4", "1", "12"), ("zstd", "-50", "19")], ids=["gzip", "lz4", "zstd"]
)
def test_level_is_used(name: str, low: str, high: str):
    """A higher level of the same codec gives a smaller batch."""
    sizes = []
    for level in (low, high):
        config = parse_topic({"compression.type": name, f"compression.{name}.level": level})
        new = recompressed(batch_of("none", 3000), TYPES[name], config.compression_level)
        assert verify(new.data).record_count == 3000
        sizes.append(new.size)
    assert sizes[0] > sizes[1]


def test_gzip_has_no_time_of_day():
    """Replays give equal bytes."""
    batch = batch_of("none")
    body = recompressed(batch, 1, -1).data[HEADER_SIZE:]
    assert bytes(body[4:8]) == bytes(4)


def test_body_that_expands_too_far_is_refused():
    """The limit is that of validation."""
    with pytest.raises(InvalidRecord, match="expands to more than 5000 bytes"):
        plain(batch_of("zstd"), 5000)


def test_short_plain_batches_are_compressed_on_the_loop():
    """A thread costs more than they do; what a compressed one expands to is not known."""
    assert not is_long(batch_of("none"))
    assert is_long(batch_of("none", 3000))
    assert is_long(batch_of("zstd", 3))
