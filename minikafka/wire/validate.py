"""Validation of a batch's records before they enter a log: every reader must be able to find each of them.

A record has no checksum and no marker of its own. A reader finds it by the lengths of the records in front of it, and
its offset by its delta. :func:`check_records` therefore walks over the frames of all records: each ends where the next
begins, the last ends with the body, and the offset deltas are 0, 1, 2, ... No record is decoded for it.

Rules for this file:

1. The compiled codec's walk decides (about 110 ns a record), and only it reports faults. Most of that is the codec's
   own time: a walk in Python over the same bytes takes several times as long.
2. Two faster checks accept sound records, and leave all others to the codec. Where the rules are compiled it is
   :mod:`minikafka.wire.frames` (4 ns a record). Elsewhere it is :func:`_is_uniform`, for records of equal layout, as
   most producers of fixed-size values send them: it compares the bytes that frame them, column by column (10 to 20 ns
   a record).
3. Each walk returns to the interpreter every few thousand records, so that another thread can run.
4. The garbage collector does not run during the walk. The costliest body of 1 MB is one record with half a million
   empty headers: 39 ms with the collector off, 50 ms with it on.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from itertools import islice, pairwise
from operator import attrgetter
from typing import NamedTuple

from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import decode_varint

from minikafka.errors import CorruptMessage, InvalidRecord
from minikafka.ports import Buffer
from minikafka.wire import frames
from minikafka.wire.batch import HEADER_SIZE, RecordBatch
from minikafka.wire.decompression import DECOMPRESSED_BYTES_MIN, plain_batch
from minikafka.wire.garbage import without_collection

_DAMAGE = (KafkaError, struct.error, ValueError, OverflowError, MemoryError)
"""What the codec raises for records that it cannot read; a ValueError is bad UTF-8 in a header's key, too."""
_CHUNK = 4096
_FRAMES = 65_536
"""As ``_CHUNK``, for the compiled walk: 0.4 ms."""
_UNIFORM_COUNT_MIN = 32
"""Below this the codec is as fast."""
_SMALL_SIZE_MAX = 4096
_SHORT_RUNS_MAX = 2
"""Timestamp deltas and offset deltas grow by a byte here and there, which begins a run."""
_PLAIN_SIZE_MAX = 1_100_000
"""A batch of the default ``max.message.bytes``: 20 us to 2 ms, 15 ms for tiny records, 40 ms for a hostile body."""
_COMPRESSED_SIZE_MAX = 8 * 1024
_COUNT_MAX = 65_536
_DELTAS_KEPT = 16_384
_offset_of = attrgetter("offset")


def is_long(batch: RecordBatch, limit: int) -> bool:
    """Return True if the validation of ``batch`` may take longer than an event loop should wait."""
    if batch.record_count > _COUNT_MAX:
        return True
    if batch.codec:
        return len(batch.data) > _COMPRESSED_SIZE_MAX or limit > 2 * DECOMPRESSED_BYTES_MIN
    return len(batch.data) > _PLAIN_SIZE_MAX


def check_records(batch: RecordBatch, limit: int) -> None:
    """Check that a reader finds all records of a client's batch, which has passed ``verify_client``.

    Args:
        batch: the batch; the view must be of the batch alone to be fast.
        limit: the largest size that a compressed body may expand to.

    Raises:
        InvalidRecord: the message names the record.
    """
    count = batch.record_count
    if frames.IS_COMPILED:
        data = _plain(batch, limit)
        if not are_framed(data if isinstance(data, bytes) else bytes(data), count):
            _walk(batch, data)
        return
    is_small = count < _UNIFORM_COUNT_MIN and not batch.codec and len(batch.data) <= _SMALL_SIZE_MAX
    if is_small and _are_few_sound(batch.data, count):
        return
    data = _plain(batch, limit)
    if count < _UNIFORM_COUNT_MIN or not _is_uniform(data, count):
        _walk(batch, data)


def are_framed(data: bytes, count: int) -> bool:
    """Return True if the records are surely sound: :mod:`minikafka.wire.frames` has walked over all of them."""
    position = HEADER_SIZE
    for number in range(0, count, _FRAMES):
        position = frames.walk(data, position, number, min(number + _FRAMES, count))
        if position == frames.UNSURE:
            return False
    return position == len(data)


def keyless_records(batch: RecordBatch, limit: int) -> list[int]:
    """Numbers of the records without a key, counted from 0. Raises as :func:`check_records` does."""
    return _walk(batch, _plain(batch, limit), keys=True)


def timestamps_of(batch: RecordBatch, limit: int) -> list[int]:
    """Timestamps of all records, in order. Raises InvalidRecord if they cannot be read."""
    data = _plain(batch, limit)
    try:
        return [record.timestamp for record in DefaultRecordBatch(data)]
    except _DAMAGE as error:
        raise InvalidRecord(f"records: they cannot be read ({type(error).__name__}: {error})") from error


def _plain(batch: RecordBatch, limit: int) -> bytes | bytearray:
    """The batch without compression, as an object of its own: a memoryview's slices with a step are slow."""
    if batch.codec:
        try:
            return plain_batch(batch, limit)
        except CorruptMessage as error:
            raise InvalidRecord(error.message) from error
    whole = batch.data.obj
    if isinstance(whole, (bytes, bytearray)) and len(whole) == len(batch.data):
        return whole
    return bytes(batch.data)


def _are_few_sound(data: Buffer, count: int) -> bool:
    """Return True if :func:`_walk` accepts the records. Unrolled for small batches: its chunks, and its care for the
    garbage of many records and headers, cost them more than the records do.
    """
    try:
        return list(map(_offset_of, islice(DefaultRecordBatch(data), None))) == list(range(count))
    except _DAMAGE:
        return False


def _walk(batch: RecordBatch, data: Buffer, *, keys: bool = False) -> list[int]:
    # The codec's own iterator cannot be asked for an iterator again once it has begun.
    records = islice(DefaultRecordBatch(data), None)
    keyless: list[int] = []
    number, is_last = 0, False
    while not is_last:
        chunk = islice(records, _CHUNK)
        offsets: list[int] = []
        extend = offsets.extend  # mypyc's own extend keeps nothing of what came before an error
        try:
            with without_collection():
                if keys:
                    for at, record in enumerate(chunk, number):
                        offsets.append(record.offset)
                        if record.key is None:
                            keyless.append(at)
                else:
                    extend(map(_offset_of, chunk))
        except _DAMAGE as error:
            at = number + len(offsets)
            if at >= batch.record_count:
                what = f"bytes follow record {at - 1}, the last"
            else:
                what = f"record {at} of {batch.record_count} cannot be read ({type(error).__name__}: {error})"
            raise InvalidRecord(f"records: {what}") from error
        if offsets != _deltas(number, number + len(offsets)):
            at = next(at for at, offset in enumerate(offsets, number) if at != offset)
            raise InvalidRecord(
                f"records: record {at} of {batch.record_count} has offset delta {offsets[at - number]}, not {at}"
            )
        number += len(offsets)
        is_last = len(offsets) < _CHUNK
    if number != batch.record_count:
        raise InvalidRecord(f"recordCount: {batch.record_count}, but {number} records were found")
    return keyless


def _deltas(start: int, end: int) -> list[int]:
    """The numbers from ``start`` on; building them again takes as long as a sixth of the walk."""
    return _kept_deltas()[start:end] if end <= _DELTAS_KEPT else list(range(start, end))


@functools.cache
def _kept_deltas() -> list[int]:
    return list(range(_DELTAS_KEPT))


# ---- records of equal layout -----------------------------------------------------------------------------------------

_CONTINUED, _ENDED = bytes(range(0x80, 0x100)), bytes(range(0x80))
"""The bytes of a varint: all but the last have the high bit."""

_DELTA_STARTS = (0, 64, 8192, 65_536)
"""Where the zigzag varint of an offset delta grows by a byte; runs beyond the last are left to the codec."""


def _delta_columns(start: int, end: int) -> tuple[bytes, ...]:
    """First bytes, second bytes, ... of the varints of the deltas from ``start`` on, which have one size."""
    if end <= _DELTA_STARTS[1]:
        return (bytes(range(2 * start, 2 * end, 2)),)
    # Built from repetitions: one byte after the other, every import of this module would take 20 ms.
    low = bytes(range(0x80, 0x100, 2)) * ((end - start) // 64)
    upper = range(start >> 6, end >> 6)
    if end <= _DELTA_STARTS[2]:
        return low, _each_repeated(upper, 64)
    return (
        low,
        _each_repeated((each & 0x7F | 0x80 for each in upper), 64),
        _each_repeated(range(start >> 13, end >> 13), 8192),
    )


def _each_repeated(values: Iterable[int], times: int) -> bytes:
    return b"".join(bytes((value,)) * times for value in values)


_DELTAS = [_delta_columns(start, end) for start, end in pairwise(_DELTA_STARTS)]


class _Layout(NamedTuple):
    """Where the bytes that frame a record stand, counted from its first; it has no headers."""

    size: int
    fixed: list[int]
    """Lengths, attributes and the count of headers: equal in records of one layout."""
    timestamp: int
    """Where the timestamp delta begins; it ends where the offset delta begins."""
    delta: int
    key: int
    """Where the key's length begins, and the offset delta ends."""


def _is_uniform(data: bytes | bytearray, count: int) -> bool:
    """Return True if the records are surely sound: long runs of one layout, with the right offset deltas."""
    position, number, size, runs = HEADER_SIZE, 0, len(data), 0
    for width, (low, high) in enumerate(pairwise(_DELTA_STARTS)):
        while number < min(high, count):
            layout = _layout(data, position)
            if layout is None or layout.key - layout.delta != width + 1:
                return False
            step = layout.size
            run = _run(data, position, layout, min(min(count, high) - number, (size - position) // step))
            runs += 1
            if number + run < _UNIFORM_COUNT_MIN * (runs - _SHORT_RUNS_MAX):
                return False
            end = position + run * step
            for at, column in enumerate(_DELTAS[width], position + layout.delta):
                if data[at:end:step] != column[number - low : number - low + run]:
                    return False
            position, number = end, number + run
    return number == count and position == size


def _run(data: bytes | bytearray, position: int, layout: _Layout, run: int) -> int:
    """Count the records from ``position`` on, at most ``run``, that have this layout; the first has it."""
    size, fixed, timestamp, delta, _ = layout
    if run > 1 and any(data[position + at] != data[position + at + size] for at in fixed):
        return 1
    end = position + run * size
    for at in fixed:
        column = data[position + at : end : size]
        same = column[:1]
        if column != same * run:
            run -= len(column.lstrip(same))
            end = position + run * size
    for at in range(timestamp, delta):
        column = data[position + at : end : size]
        if at < delta - 1:
            run -= len(column.lstrip(_CONTINUED))
        elif not column.isascii():
            run -= len(column.lstrip(_ENDED))
        end = position + run * size
    return run


def _layout(data: bytes | bytearray, position: int) -> _Layout | None:
    """Return the layout of the record at ``position``; None if it is unsound, or has headers or attributes."""
    try:
        length, start = _number(data, position)
        _, delta_at = _number(data, start + 1)
        _, key_at = _number(data, delta_at)
        key_size, key_end = _number(data, key_at)
        value_at = key_end + key_size if key_size > 0 else key_end
        value_size, value_end = _number(data, value_at)
    except ValueError:
        return None
    headers_at = value_end + value_size if value_size > 0 else value_end
    end = headers_at + 1
    if key_size < -1 or value_size < -1 or end != start + length or end > len(data):
        return None
    if data[start] or data[headers_at]:
        return None
    fixed = [*range(start + 1 - position), *range(key_at - position, key_end - position)]
    fixed += [*range(value_at - position, value_end - position), headers_at - position]
    return _Layout(end - position, fixed, start + 1 - position, delta_at - position, key_at - position)


def _number(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """(value, position behind it) of a varint. The codec's function does not look where the data ends."""
    if not 0 <= position < len(data):
        raise ValueError(f"byte {position} of {len(data)}")
    value, end = decode_varint(data, position)
    return int(value), int(end)
