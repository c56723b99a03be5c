"""RecordBatch v2: its layout, the checks before it is stored, and the leader's stamp (KAFKA-FACTS 2).

Rules for this file:

1. Nothing here opens a record. Produce, replication and fetch handle the 61-byte header and pass the rest on.
2. Nothing here copies a body: a batch is a view, a stamp is a new head before the old body.
3. Base offset and leader epoch lie outside the checksum, so the leader may set them; what changes a checksummed
   field (LogAppendTime, tests that plant damage) recomputes the checksum.

::

    at  0 int64  baseOffset            at 23 int32  lastOffsetDelta
        8 int32  batchLength              27 int64  baseTimestamp
       12 int32  partitionLeaderEpoch     35 int64  maxTimestamp
       16 int8   magic = 2                43 int64  producerId
       17 uint32 crc of bytes 21..end     51 int16  producerEpoch
       21 int16  attributes               53 int32  baseSequence
                                          57 int32  recordCount, then the records
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from minikafka.errors import CorruptMessage, InvalidRecord, InvalidTimestamp, UnsupportedCompressionType
from minikafka.ports import Buffer, Buffers
from minikafka.types import NO_EPOCH, NO_PRODUCER, Epoch, Offset

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
LENGTH_END = 12
"""batchLength counts the bytes after itself: a batch takes ``batchLength + 12`` bytes."""
MAGIC = 2

PREFIX = struct.Struct(">qii")
"""Base offset, batch length, leader epoch: what a leader's stamp replaces."""
PREFIX_SIZE = 16
CHECKED_START = 21
"""The checksum covers the bytes from here to the end; the attributes stand first."""
ATTRIBUTES_END = 23

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
_UNUSED_BITS = 0xFF80
RECORD_SIZE_MIN = 7
"""Bytes of the smallest record: length, attributes, two deltas, two absent fields and a header count of 0."""

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CREATE_TIME = 0
LOG_APPEND_TIME = 1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
SEQUENCE_COUNT = 1 << 31
"""Sequences wrap from 2^31-1 to 0 (KIP-98)."""

PLAIN, PIPELINED, FOLLOWS = 0, 1, 2
"""How a leader compares the sequence of a producer that says how it sends. PLAIN: as Kafka. PIPELINED: several batches
of the partition may be in flight, and only one that follows no other is sent as this: what is older than the newest
sequence of its epoch is a duplicate. FOLLOWS: PIPELINED, and sent while the batch before it was in flight: it is
appended behind that one or not at all."""

CHECKED_FIELDS = struct.Struct(">hiqqqhii")
"""The header's part that the checksum covers: attributes to record count."""
MAGIC_AND_CRC = struct.Struct(">bI")
_LENGTH_AND_MAGIC = struct.Struct(">8xi4xb")


_View: TypeAlias = memoryview
"""mypyc looks for the types of a tuple's fields in this module's names, not among the built-in ones."""


class RecordBatch(NamedTuple):
    """The header of one batch, read once, over the batch's own bytes. Offsets are the stored ones.

    A tuple because a fetch reads thousands of them; compare batches by ``data``, count records by ``record_count``.
    """

    data: _View
    """The whole batch, header included."""
    base_offset: Offset
    batch_length: int
    leader_epoch: Epoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def of(cls, data: Buffer) -> RecordBatch:
        """Read the header of the batch that ``data`` is; at least 61 bytes, nothing is checked."""
        view = memoryview(data)
        return tuple.__new__(cls, (view, *HEADER.unpack_from(view)))  # what _make ends in, but for a check of the count

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> Offset:
        """Offset of the last record; compaction may have removed it, the batch still spans it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Offset:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd: index into ``CODEC_NAMES``."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """``CREATE_TIME`` or ``LOG_APPEND_TIME``; with the latter every record has ``max_timestamp``."""
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    @property
    def newest_timestamp(self) -> int:
        """Largest timestamp of the records that are here; -1: compaction has left none."""
        return self.max_timestamp if self.record_count else NO_TIMESTAMP

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Markers and quorum records: they take an offset and are never given to applications."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer(self) -> bool:
        """Return True if an idempotent producer sent it."""
        return self.producer_id != NO_PRODUCER

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 without a producer; wraps from 2^31-1 to 0 (KIP-98)."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_COUNT

    def __repr__(self) -> str:
        return (
            f"<batch {self.base_offset}..{self.last_offset} e{self.leader_epoch} n={self.record_count}"
            f" {CODEC_NAMES[self.codec] if self.codec < len(CODEC_NAMES) else self.codec}"
            f" pid={self.producer_id}/{self.producer_epoch} seq={self.base_sequence} size={self.size}>"
        )


def checksum(data: Buffer) -> int:
    """CRC-32C of the part of a whole batch that it covers."""
    return crc32c(memoryview(data)[CHECKED_START:])


def verify(data: Buffer) -> RecordBatch:
    """Check the one batch that ``data`` is, as a follower or a recovering log does (KAFKA-FACTS 1.4).

    Length, magic and CRC-32C raise CorruptMessage; a count that contradicts the offsets, or a sequence without a
    producer, raises InvalidRecord. Every message names the field.
    """
    size = len(data)
    if size < HEADER_SIZE:
        raise CorruptMessage(f"batch: {size} bytes are less than the header's {HEADER_SIZE}")
    batch = RecordBatch.of(data)
    if batch.magic != MAGIC:
        raise CorruptMessage(f"magic: {batch.magic}, only record batch version {MAGIC} is understood")
    if batch.batch_length != size - LENGTH_END:
        raise CorruptMessage(f"batchLength: {batch.batch_length}, but {size - LENGTH_END} bytes follow it")
    found = crc32c(batch.data[CHECKED_START:])
    if found != batch.crc:
        raise CorruptMessage(f"crc: the batch says {batch.crc:08x}, its bytes give {found:08x}")
    _check_counts(batch)
    return batch


def _check_counts(batch: RecordBatch) -> None:
    """What no sound batch has: compaction may remove records but never adds any."""
    if batch.base_offset < 0:
        raise InvalidRecord(f"baseOffset: {batch.base_offset} is negative")
    if batch.last_offset_delta < 0:
        raise InvalidRecord(f"lastOffsetDelta: {batch.last_offset_delta} is negative")
    if not 0 <= batch.record_count <= batch.last_offset_delta + 1:
        raise InvalidRecord(
            f"recordCount: {batch.record_count} records do not fit into {batch.last_offset_delta + 1} offsets"
        )
    if batch.producer_id < NO_PRODUCER:
        raise InvalidRecord(f"producerId: {batch.producer_id} is below -1")
    if batch.base_sequence < NO_SEQUENCE:
        raise InvalidRecord(f"baseSequence: {batch.base_sequence} is below -1")


def verify_client(data: Buffer, transactional: bool = False) -> RecordBatch:  # noqa: FBT001, FBT002 - hot
    """Check what a producer sent for one partition: :func:`verify`, and what only a client must obey.

    Exactly one batch, base offset 0, offsets without gaps, no more records than the body can hold, no bit but those of
    a known codec, CreateTime, timestamps in order, and a base sequence if there is a producer id (KAFKA-FACTS 2);
    without one the sequence means nothing, and aiokafka sends 0. The records are not read: that is
    :mod:`minikafka.wire.validate`. The transactional bit is accepted if ``transactional``: the request named a
    transactional id, and so the batch has a producer id. Raises CorruptMessage, InvalidRecord, InvalidTimestamp or
    UnsupportedCompressionType.
    """
    size = len(data)
    if size >= HEADER_SIZE:
        length = int(_LENGTH_AND_MAGIC.unpack_from(data)[0])
        if HEADER_SIZE <= length + LENGTH_END < size:
            raise InvalidRecord(
                f"batchLength: {length}, but {size - LENGTH_END} bytes follow: one batch per partition and request"
            )
    batch = verify(data)
    if batch.base_offset != 0:
        raise InvalidRecord(f"baseOffset: {batch.base_offset}, a producer sends 0")
    if batch.record_count == 0 or batch.record_count != batch.last_offset_delta + 1:
        raise InvalidRecord(
            f"recordCount: {batch.record_count}, but lastOffsetDelta {batch.last_offset_delta} spans"
            f" {batch.last_offset_delta + 1} offsets"
        )
    if batch.attributes:
        _check_attributes(batch, transactional=transactional)
    if not batch.attributes & CODEC_MASK and batch.record_count * RECORD_SIZE_MIN > size - HEADER_SIZE:
        raise InvalidRecord(f"recordCount: {batch.record_count} records do not fit {size - HEADER_SIZE} bytes")
    if batch.base_timestamp < NO_TIMESTAMP:
        raise InvalidRecord(f"baseTimestamp: {batch.base_timestamp} is below -1")
    if batch.max_timestamp < batch.base_timestamp:
        raise InvalidRecord(f"maxTimestamp: {batch.max_timestamp} is below baseTimestamp {batch.base_timestamp}")
    if batch.producer_id != NO_PRODUCER:
        if batch.base_sequence < 0:
            raise InvalidRecord(f"baseSequence: {batch.base_sequence} with producerId {batch.producer_id}")
        if batch.producer_epoch < 0:
            raise InvalidRecord(f"producerEpoch: {batch.producer_epoch} with producerId {batch.producer_id}")
    return batch


def _check_attributes(batch: RecordBatch, *, transactional: bool) -> None:
    """What a producer may not claim there."""
    for bit, what in ((CONTROL_BIT, "control"), (DELETE_HORIZON_BIT, "horizon")):
        if batch.attributes & bit:
            raise InvalidRecord(f"attributes: a producer may not set the {what} bit here")
    if batch.is_transactional and not transactional:
        raise InvalidRecord("attributes: the transactional bit is set, but the request names no transactional id")
    if batch.is_transactional and not batch.has_producer:
        raise InvalidRecord("attributes: the transactional bit is set, but the batch has no producer id")
    if batch.attributes & _UNUSED_BITS:
        raise InvalidRecord(f"attributes: bits {batch.attributes & _UNUSED_BITS:#06x} have no meaning")
    if batch.codec >= len(CODEC_NAMES):
        raise UnsupportedCompressionType(f"attributes: compression codec {batch.codec} is not known")
    if batch.codec and batch.size == HEADER_SIZE:
        raise InvalidRecord(f"recordCount: {batch.record_count}, but the body is empty")
    if batch.timestamp_type != CREATE_TIME:
        raise InvalidTimestamp("attributes: a producer may not claim LogAppendTime")


def iterate(data: Buffer) -> Iterator[RecordBatch]:
    """Walk the whole batches at the start of ``data``; a cut last one is dropped.

    No checksum is computed. CorruptMessage when a length or a magic cannot be one: after that nothing can be found.
    """
    view = memoryview(data)
    size = len(view)
    position = 0
    while size - position >= HEADER_SIZE:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(view, position)
        if magic != MAGIC:
            raise CorruptMessage(f"magic: {magic} at byte {position}")
        end = position + LENGTH_END + length
        if length < HEADER_SIZE - LENGTH_END:
            raise CorruptMessage(f"batchLength: {length} at byte {position} is less than a header")
        if end > size:
            return
        yield RecordBatch.of(view[position:end])
        position = end


def split(data: Buffer) -> list[RecordBatch]:
    """The whole batches in what a fetch returned, without checking them; see :func:`iterate`."""
    return list(iterate(data))


def from_offset(
    batches: Iterable[RecordBatch], offset: Offset, *, end_max: Offset | None = None
) -> Iterator[RecordBatch]:
    """Those of a fetch response's ``batches`` that reach ``offset`` or lie behind it; the first ones may lie before it.

    The base offset in a header has no checksum. One that is rotten shows by what the batch does not fit to, and a
    reader that went on behind it would miss records. What remains is a last batch that seems to lie a little further
    behind: compaction leaves such gaps, and a log that another program has compacted does not say that it has them.

    Args:
        batches: The batches in the order of the log.
        offset: Where the reader stands.
        end_max: Where the records end that the leader may serve, its high watermark; None: not known.

    Raises:
        CorruptMessage: At a batch that seems to end before the one in front of it ends, or before it begins; at one
            behind a gap that reaches over the beginning of the next; at one that seems to reach beyond ``end_max``;
            behind the last one, if none reaches ``offset``.
    """
    end, has_begun = offset, False
    ahead = iter(batches)
    last: RecordBatch | None = None
    batch = next(ahead, None)
    while batch is not None:
        last = batch
        following: RecordBatch | None = None
        damage: CorruptMessage | None = None
        has_looked = False
        if batch.next_offset > end:
            if end_max is not None and batch.next_offset > end_max:
                raise _rotten(end, batch)
            if batch.base_offset > end:
                has_looked = True
                try:
                    following = next(ahead, None)
                except CorruptMessage as error:
                    damage = error  # of the next batch, when its turn comes
                if following is not None and following.base_offset < batch.next_offset:
                    raise _rotten(end, batch)
            end, has_begun = batch.next_offset, True
            yield batch
        elif has_begun or batch.base_offset >= offset:
            raise _rotten(end, batch)
        if damage is not None:
            raise damage
        batch = following if has_looked else next(ahead, None)
    if last is not None and not has_begun:
        raise _rotten(end, last)


def _rotten(end: Offset, batch: RecordBatch) -> CorruptMessage:
    return CorruptMessage(
        f"offsets: a batch at {end} or behind it says that it holds {batch.base_offset} to {batch.last_offset}"
    )


def split_verified(data: Buffer) -> list[RecordBatch]:
    """As :func:`split`, each batch checked by :func:`verify`: what a follower does before it appends."""
    batches = []
    for batch in iterate(data):
        verify(batch.data)
        batches.append(batch)
    return batches


def stamped(batch: RecordBatch, *, base_offset: Offset, leader_epoch: Epoch) -> Buffers:
    """The batch as its leader stores it: a new 16-byte prefix, then the body as it came (D4)."""
    return PREFIX.pack(base_offset, batch.batch_length, leader_epoch), batch.data[PREFIX_SIZE:]


def stamped_log_append_time(
    batch: RecordBatch, *, base_offset: Offset, leader_epoch: Epoch, timestamp_ms: int
) -> Buffers:
    """As :func:`stamped` for ``message.timestamp.type=LogAppendTime``: every record reads as ``timestamp_ms``.

    Only the type bit and maxTimestamp change, the record deltas stay; the checksum is computed again.
    """
    head = with_fields(
        batch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=batch.attributes | TIMESTAMP_TYPE_BIT,
        max_timestamp=timestamp_ms,
    )
    return head, batch.data[HEADER_SIZE:]


def with_fields(
    batch: RecordBatch,
    *,
    base_offset: Offset | None = None,
    leader_epoch: Epoch = NO_EPOCH,
    attributes: int | None = None,
    max_timestamp: int | None = None,
) -> bytes:
    """A new 61-byte header for the batch's body, with its checksum."""
    checked = CHECKED_FIELDS.pack(
        batch.attributes if attributes is None else attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp if max_timestamp is None else max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.record_count,
    )
    crc = crc32c(batch.data[HEADER_SIZE:], crc32c(checked))
    base = batch.base_offset if base_offset is None else base_offset
    return PREFIX.pack(base, batch.batch_length, leader_epoch) + MAGIC_AND_CRC.pack(MAGIC, crc) + checked
