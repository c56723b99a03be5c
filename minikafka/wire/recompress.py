"""Batches compressed again with the codec of their topic (``compression.type``), as Kafka's LogValidator does.

Rules for this file:

1. A batch that has the topic's codec already stays unchanged, whatever its level.
2. Only the codec changes: the records' bytes, offset deltas, timestamps, producer, epoch, and sequence stay. The
   checksum is computed again.
3. Decompression is bounded (``decompression.py``).
"""

from __future__ import annotations

from minikafka.config import KEEP_CODEC, NO_CODEC, TopicConfig
from minikafka.errors import CorruptMessage, InvalidRecord
from minikafka.wire.batch import CODEC_MASK, CODEC_NAMES, HEADER_SIZE, RecordBatch
from minikafka.wire.decompression import plain_batch
from minikafka.wire.records import compressed
from minikafka.wire.rewrite import with_body

_SIZE_MAX = 16 * 1024
"""A larger batch may take some milliseconds, depending on codec and level."""


def target_codec(batch: RecordBatch, config: TopicConfig) -> int | None:
    """Return the codec with which ``batch`` must be compressed again; None if it stays unchanged."""
    if config.compression_type == KEEP_CODEC:
        return None
    codec = 0 if config.compression_type == NO_CODEC else CODEC_NAMES.index(config.compression_type)
    return None if codec == batch.codec else codec


def is_long(batch: RecordBatch) -> bool:
    """Return True if no event loop should wait for the recompression of ``batch``."""
    return bool(batch.codec) or batch.size > _SIZE_MAX


def plain(batch: RecordBatch, limit: int) -> RecordBatch:
    """The batch without compression; its checksum is that of the compressed one.

    Raises:
        InvalidRecord: the body cannot be decompressed, or it expands to more than ``limit`` bytes.
    """
    if not batch.codec:
        return batch
    try:
        return RecordBatch.of(bytes(plain_batch(batch, limit)))
    except CorruptMessage as error:
        raise InvalidRecord(error.message) from error


def recompressed(batch: RecordBatch, codec: int, level: int | None) -> RecordBatch:
    """The batch, which has no compression, compressed with ``codec``."""
    body = compressed(codec, bytes(batch.data[HEADER_SIZE:]), level)
    return RecordBatch.of(with_body(batch, body, attributes=batch.attributes & ~CODEC_MASK | codec))
