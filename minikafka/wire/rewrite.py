"""Batches that compaction has thinned out: which records one holds, and the batch of those that stay (KIP-98, KIP-534).

Rules for this file:

1. Offsets never change: base offset, last offset delta, leader epoch, producer and sequence are the old batch's, so a
   batch spans what it spanned when it was written.
2. A record's bytes are copied, not rebuilt; only its timestamp delta changes when the base timestamp does.
3. A batch with a *delete horizon* (attribute bit 6) has it as its base timestamp: from that time on its tombstones may
   go (KIP-534). Readers add the delta to whatever the base is, so the records' timestamps stay. They add in 64 bits:
   a producer may send any delta, and a sum beyond them is taken as Java and the compiled codec take it.
4. A batch without records is a header of 61 bytes: it keeps a producer's last sequence, or the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from minikafka.errors import CorruptMessage
from minikafka.ports import Buffer
from minikafka.types import Offset
from minikafka.wire.batch import (
    CHECKED_FIELDS,
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AND_CRC,
    PREFIX,
    RecordBatch,
)
from minikafka.wire.decompression import DECOMPRESSED_BYTES_MAX, decompressed
from minikafka.wire.records import compressed

_VARINT_SIZE_MAX = 10
_LAST_SHIFT = 7 * (_VARINT_SIZE_MAX - 1)
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_UINT64_MAX = 2**64 - 1


class RecordSlice(NamedTuple):
    """One record where it stands in its batch's (decompressed) body."""

    offset: Offset
    timestamp: int
    key: memoryview | None
    has_value: bool
    """False: a tombstone."""
    data: memoryview
    """The whole record, its length included."""
    tail: memoryview
    """What follows the timestamp delta: offset delta, key, value, headers."""


def delete_horizon(batch: RecordBatch) -> int | None:
    """From when on (milliseconds since 1970) its tombstones and markers may go; None: not known yet."""
    return batch.base_timestamp if batch.attributes & DELETE_HORIZON_BIT else None


def slices(batch: RecordBatch, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[RecordSlice]:
    """The records of one batch in order; ``batch.data`` is all of it. CorruptMessage when they cannot be read.

    ``limit``: see :func:`minikafka.wire.decompression.decompressed`.
    """
    body = memoryview(decompressed(batch, limit))
    position = 0
    for _ in range(batch.record_count):
        length, start = _varint(body, position)
        end = start + length
        if length < 1 or end > len(body):
            raise CorruptMessage(f"records: a record of {length} bytes at byte {position} of {len(body)}")
        record = body[:end]
        time_delta, behind_time = _varint(record, start + 1)
        offset_delta, at = _varint(record, behind_time)
        key_size, at = _varint(record, at)
        key = None if key_size < 0 else record[at : at + key_size]
        if key is not None and len(key) < key_size:
            raise CorruptMessage(f"records: a key of {key_size} bytes is cut after {len(key)}")
        value_size, _ = _varint(record, at + max(key_size, 0))
        is_stamped = batch.timestamp_type == LOG_APPEND_TIME
        yield RecordSlice(
            batch.base_offset + offset_delta,
            batch.max_timestamp if is_stamped else _in_64_bits(batch.base_timestamp + time_delta),
            key,
            value_size >= 0,
            record[position:],
            record[behind_time:],
        )
        position = end
    if position != len(body):
        raise CorruptMessage(f"records: {len(body) - position} bytes follow the last of {batch.record_count}")


def thinned(batch: RecordBatch, kept: Iterable[RecordSlice], *, horizon: int | None) -> bytes:
    """``batch`` with the records ``kept`` of it and, unless None, a delete horizon; without any: :func:`emptied`."""
    records = list(kept)
    if not records:
        return emptied(batch)
    base_timestamp = batch.base_timestamp if horizon is None else horizon
    is_stamped = batch.timestamp_type == LOG_APPEND_TIME
    shift = batch.base_timestamp - base_timestamp
    body = (
        b"".join(_shifted(record, shift) for record in records)
        if shift
        else b"".join(record.data for record in records)
    )
    attributes = batch.attributes if horizon is None else batch.attributes | DELETE_HORIZON_BIT
    newest = batch.max_timestamp if is_stamped else max(record.timestamp for record in records)
    return _batch(
        batch,
        compressed(batch.codec, body),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        record_count=len(records),
    )


def with_body(batch: RecordBatch, body: Buffer, *, attributes: int) -> bytes:
    """``batch`` with the same records as other bytes, such as those of another codec."""
    return _batch(
        batch,
        body,
        attributes=attributes,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        record_count=batch.record_count,
    )


def emptied(batch: RecordBatch) -> bytes:
    """``batch`` without its records: who wrote what, and how far it reached."""
    return _batch(
        batch,
        b"",
        attributes=batch.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT),
        base_timestamp=batch.max_timestamp,
        max_timestamp=batch.max_timestamp,
        record_count=0,
    )


def _shifted(record: RecordSlice, shift: int) -> bytes:
    """The record with its timestamp delta counted from another base."""
    _, start = _varint(record.data, 0)
    old_delta, _ = _varint(record.data, start + 1)
    delta = _packed_varint(_in_64_bits(old_delta + shift))
    size = 1 + len(delta) + len(record.tail)
    return b"".join((_packed_varint(size), record.data[start : start + 1], delta, record.tail))


def _batch(
    batch: RecordBatch, body: Buffer, *, attributes: int, base_timestamp: int, max_timestamp: int, record_count: int
) -> bytes:
    checked = CHECKED_FIELDS.pack(
        attributes,
        batch.last_offset_delta,
        base_timestamp,
        max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        record_count,
    )
    crc = crc32c(body, crc32c(checked))
    length = HEADER_SIZE - LENGTH_END + len(body)
    return b"".join(
        (PREFIX.pack(batch.base_offset, length, batch.leader_epoch), MAGIC_AND_CRC.pack(MAGIC, crc), checked, body)
    )


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """(value, position behind it) of a zigzag varint; CorruptMessage when it has no end."""
    value = shift = 0
    for at in range(position, min(position + _VARINT_SIZE_MAX, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == _LAST_SHIFT:
                value &= _UINT64_MAX
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    raise CorruptMessage(f"records: no number at byte {position} of {len(data)}")


def _in_64_bits(number: int) -> int:
    """The signed number of 64 bits that a sum of two such numbers overflows to."""
    if _INT64_MIN <= number <= _INT64_MAX:
        return number
    return ((number - _INT64_MIN) & _UINT64_MAX) + _INT64_MIN


def _packed_varint(value: int) -> bytes:
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    packed = bytearray()
    while rest >= 0x80:
        packed.append(rest & 0x7F | 0x80)
        rest >>= 7
    packed.append(rest)
    return bytes(packed)
