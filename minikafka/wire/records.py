"""Records inside a batch: built and opened by clients and tools, with aiokafka's compiled codec (PERFORMANCE 3).

Rules for this file:

1. The codec never bounds-checks a header and takes some damage for memory, so :func:`decode_batch` looks at the length
   first, and decompresses within a limit by itself; whatever it raises comes out as CorruptMessage.
2. No work of ours per record: the codec's own objects go to the caller (they have the fields of :class:`Record`).
3. The same records give the same bytes: gzip's time of day is blanked.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count as number
from itertools import islice, repeat
from typing import NamedTuple, Protocol, TypeAlias, overload

from aiokafka.codec import (
    gzip_encode,
    lz4_encode,
    snappy_encode,
    zstd_encode,
)
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from minikafka.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType
from minikafka.invariant import InvariantViolation, invariant
from minikafka.ports import Buffer
from minikafka.types import NO_EPOCH, NO_PRODUCER, Epoch, Offset
from minikafka.wire.batch import (
    CODEC_NAMES,
    CONTROL_BIT,
    CREATE_TIME,
    HEADER_SIZE,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    RecordBatch,
    checksum,
    with_fields,
)
from minikafka.wire.decompression import DECOMPRESSED_BYTES_MAX, check_record_count, plain_batch

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Record headers in order; a name may come twice."""

# Control record types of KRaft; 0 and 1 end transactions (markers.py).
CONTROL_LEADER_CHANGE = 2
CONTROL_SNAPSHOT_HEADER = 3
CONTROL_SNAPSHOT_FOOTER = 4
CONTROL_KRAFT_VERSION = 5
CONTROL_KRAFT_VOTERS = 6

_GZIP = 1
_GZIP_TIME_START = HEADER_SIZE + 4
_GZIP_TIME_END = HEADER_SIZE + 8
_CRC_START = 17
_CRC_END = 21
_CONTROL_KEY = struct.Struct(">hh")
_COMPRESS = {"gzip": gzip_encode, "snappy": snappy_encode, "lz4": lz4_encode, "zstd": zstd_encode}
_COMPRESS_AT: dict[str, Callable[[bytes, int], bytes]] = {"lz4": lz4_encode, "zstd": zstd_encode}
# More than any batch may hold: aiokafka's builder then never reports "full".
_SIZE_UNLIMITED = 1 << 30


# What the codec was seen to raise for 200,000 damaged batches; a ValueError is bad UTF-8 in
# a header's name.
_DAMAGE = (
    KafkaError,
    struct.error,
    EOFError,
    ValueError,
    OSError,
    OverflowError,
    MemoryError,
)


class RecordView(Protocol):
    """What every record has, built or decoded."""

    @property
    def offset(self) -> Offset: ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        ...

    @property
    def timestamp_type(self) -> int:
        """0 CreateTime, 1 LogAppendTime."""
        ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Headers: ...


class Record(NamedTuple):
    """One record. For :func:`build_batch` the offset counts only by its distance from the first record's."""

    offset: Offset
    timestamp: int
    timestamp_type: int = CREATE_TIME
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def codec_number(name: str) -> int:
    """The attribute bits of a ``compression.type``; UnsupportedCompressionType for an unknown one."""
    if name not in CODEC_NAMES:
        raise UnsupportedCompressionType(f"compression.type {name!r} is none of {', '.join(CODEC_NAMES)}")
    return CODEC_NAMES.index(name)


Row: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp in milliseconds since 1970, key, value, headers."""


class PlainRows(Sequence[Row]):
    """Rows of one timestamp, without keys and headers: what a batch call mostly gets, at no tuple per record."""

    __slots__ = ("timestamp", "values")

    def __init__(self, timestamp: int, values: Sequence[bytes]) -> None:
        self.timestamp = timestamp
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return PlainRows(self.timestamp, self.values[index])
        return self.timestamp, None, self.values[index], ()


Rows: TypeAlias = Sequence[Row]


class BatchBuilder:
    """Fills one batch record by record: the producer's accumulator and :func:`build_batch`.

    The batch is full when the next record would take it beyond ``size_limit`` bytes before compression; the first
    record always fits. ``set_producer_state`` may come any time before ``build``: the sequence is known only when
    the batch is drained.
    """

    __slots__ = ("_append", "_builder", "_built", "_codec", "record_count")

    def __init__(
        self,
        *,
        compression: str = "none",
        size_limit: int = _SIZE_UNLIMITED,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = -1,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
    ) -> None:
        self._codec = codec_number(compression)
        self._builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=self._codec,
            is_transactional=int(transactional),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            batch_size=size_limit,
        )
        self._append = self._builder.append
        self._built: bytearray | None = None
        self.record_count = 0

    @property
    def size(self) -> int:
        """Bytes so far, header included, before compression."""
        return len(self._built) if self._built is not None else int(self._builder.size())

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> bool:
        """Add a record with its time in milliseconds since 1970; False when it no longer fits."""
        # The codec takes nothing but a list.
        listed = headers if type(headers) is list else [*headers]
        if self._append(self.record_count, timestamp, key, value, listed) is None:
            return False
        self.record_count += 1
        return True

    def extend(self, rows: Rows, start: int = 0, end: int | None = None) -> int:
        """Add ``rows[start:end]`` of (timestamp, key, value, headers) until full; how many were taken.

        One call for many records: the loop's own cost stays below the codec's.
        """
        append = self._append
        first = count = self.record_count
        if isinstance(rows, PlainRows):
            values = rows.values[start:end]
            for size in map(append, number(count), repeat(rows.timestamp), repeat(None), values, repeat([])):
                if size is None:
                    break
                count += 1
        else:
            for timestamp, key, value, headers in rows[start:end] if start or end is not None else rows:
                if append(count, timestamp, key, value, headers if type(headers) is list else [*headers]) is None:
                    break
                count += 1
        self.record_count = count
        return count - first

    def set_producer_state(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """The producer, and the sequence of its first record (KIP-98)."""
        invariant(self._built is None, "producer state set on a batch that is already built")
        self._builder.set_producer_state(producer_id, producer_epoch, base_sequence)

    def build(self) -> bytearray:
        """The batch's bytes, compressed; the same object at each call. Nobody may change them."""
        if self._built is None:
            if not self.record_count:
                raise InvariantViolation("a batch without records")
            built = self._builder.build()
            if self._codec == _GZIP and built[22] & 7 == _GZIP:
                _blank_gzip_time(built)
            self._built = built
        return self._built


def _blank_gzip_time(batch: bytearray) -> None:
    """The codec writes the time of day into gzip's header; replays of a run must give equal bytes."""
    batch[_GZIP_TIME_START:_GZIP_TIME_END] = b"\0\0\0\0"
    batch[_CRC_START:_CRC_END] = checksum(batch).to_bytes(4)


def build_batch(
    records: Iterable[RecordView],
    *,
    compression: str = "none",
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    base_offset: Offset = 0,
    leader_epoch: Epoch = NO_EPOCH,
) -> bytes:
    """One batch of all ``records``, which must be numbered without gaps; InvalidRecord when there is none."""
    builder = BatchBuilder(
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    if builder.record_count == 0:
        raise InvalidRecord("a batch needs at least one record")
    built = builder.build()
    if base_offset or leader_epoch != NO_EPOCH:
        struct.pack_into(">q", built, 0, base_offset)
        struct.pack_into(">i", built, 12, leader_epoch)
    return bytes(built)


def control_batch(
    control_type: int,
    payload: bytes,
    *,
    timestamp_ms: int,
    base_offset: Offset = 0,
    leader_epoch: Epoch = NO_EPOCH,
    transactional: bool = False,
) -> bytes:
    """A control batch of one record: key (int16 version 0, int16 type), value ``payload`` (KAFKA-FACTS 2)."""
    builder = BatchBuilder()
    builder.append(timestamp_ms, _CONTROL_KEY.pack(0, control_type), payload)
    batch = RecordBatch.of(builder.build())
    attributes = batch.attributes | CONTROL_BIT | (TRANSACTIONAL_BIT if transactional else 0)
    head = with_fields(batch, base_offset=base_offset, leader_epoch=leader_epoch, attributes=attributes)
    return head + batch.data[HEADER_SIZE:]


def control_type_of(record: RecordView) -> int:
    """Which control record it is; CorruptMessage when the key is none."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptMessage("control record: its key holds no type")
    return int(_CONTROL_KEY.unpack_from(record.key)[1])


def decode_batch(batch: RecordBatch | Buffer, *, limit: int = DECOMPRESSED_BYTES_MAX) -> list[RecordView]:
    """All records of one batch, control batches included; CorruptMessage when they cannot be read.

    The checksum is not looked at: :func:`minikafka.wire.batch.verify` does that. ``limit``: see ``decompressed``.
    """
    header, data = _plain(batch, limit)
    try:
        records: list[RecordView] = list(DefaultRecordBatch(data))
    except _DAMAGE as error:
        raise CorruptMessage(f"records: {type(error).__name__}: {error}") from error
    if len(records) != header.record_count:
        raise CorruptMessage(f"recordCount: {header.record_count}, but {len(records)} were found")
    return records


def records_of(batch: RecordBatch | Buffer, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[RecordView]:
    """As :func:`decode_batch`, for who is done with a record before the next: each is made when it is asked for.

    Ten thousand that are made at once have Python look for garbage among them, over and over, for three times as long
    as making them takes. All of them are read here first: of a damaged batch there is none.
    """
    header, data = _plain(batch, limit)
    try:
        last = deque(enumerate(DefaultRecordBatch(data), 1), maxlen=1)
    except _DAMAGE as error:
        raise CorruptMessage(f"records: {type(error).__name__}: {error}") from error
    count = last[0][0] if last else 0
    if count != header.record_count:
        raise CorruptMessage(f"recordCount: {header.record_count}, but {count} were found")
    # The codec's own iterator cannot be asked for an iterator again once it has begun.
    return islice(DefaultRecordBatch(data), None)


def records_one_by_one(batch: RecordBatch | Buffer, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[RecordView]:
    """As :func:`records_of`, without reading all of them first: CorruptMessage may come after records that are fine.

    For readers that stop early: the records of one batch may be millions.
    """
    header, data = _plain(batch, limit)
    count = 0
    try:
        for record in DefaultRecordBatch(data):
            count += 1
            yield record
    except _DAMAGE as error:
        raise CorruptMessage(f"records: {type(error).__name__}: {error}") from error
    if count != header.record_count:
        raise CorruptMessage(f"recordCount: {header.record_count}, but {count} were found")


def _plain(batch: RecordBatch | Buffer, limit: int) -> tuple[RecordBatch, Buffer]:
    """The batch's header, and the batch without compression for the codec; CorruptMessage (rule 1)."""
    header = _whole(batch)
    data = plain_batch(header, limit) if header.codec else header.data
    check_record_count(header, len(data) - HEADER_SIZE)
    return header, data


def _whole(batch: RecordBatch | Buffer) -> RecordBatch:
    """The batch, as long as it says that it is; CorruptMessage (rule 1)."""
    data = batch.data if isinstance(batch, RecordBatch) else memoryview(batch)
    if len(data) < HEADER_SIZE:
        raise CorruptMessage(f"batch: {len(data)} bytes are less than the header's {HEADER_SIZE}")
    header = batch if isinstance(batch, RecordBatch) else RecordBatch.of(data)
    if header.size != len(data):
        raise CorruptMessage(f"batchLength: {header.batch_length}, but {len(data) - 12} bytes follow it")
    return header


def compressed(codec: int, body: bytes, level: int | None = None) -> bytes:
    """The records' bytes as a batch of ``codec`` holds them, also where that is no smaller.

    Args:
        codec: index into ``CODEC_NAMES``.
        body: the records without compression.
        level: of the codecs that have levels; None is the codec's default. -1 is gzip's own default.
    """
    if not codec:
        return body
    if level is None:
        packed = bytes(_COMPRESS[CODEC_NAMES[codec]](body))
    elif codec == _GZIP:
        packed = zlib.compress(body, level, zlib.MAX_WBITS + 16)
    else:
        packed = bytes(_COMPRESS_AT[CODEC_NAMES[codec]](body, level))
    if codec == _GZIP:
        return packed[: _GZIP_TIME_START - HEADER_SIZE] + b"\0\0\0\0" + packed[_GZIP_TIME_END - HEADER_SIZE :]
    return packed
