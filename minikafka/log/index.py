"""A segment's two sparse indexes, in memory in Kafka's bytes (KAFKA-FACTS 1.3).

Rules for this file:

1. The bytes in memory are the file's bytes after a clean close: no preallocated tail, big-endian, ascending.
2. Missing entries cost time only: a lookup gives the entry at or before what is sought, the reader walks on from there.
   Wrong entries are never believed: an index that is not ascending, or points beyond its segment, is rebuilt.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import ClassVar

from minikafka.types import Offset
from minikafka.wire.batch import NO_TIMESTAMP

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class _SparseIndex:
    """Fixed-size entries; the first field ascends strictly."""

    __slots__ = ("_base_offset", "_entries")
    layout: ClassVar[struct.Struct]

    def __init__(self, base_offset: Offset, data: bytes = b"") -> None:
        self._base_offset = base_offset
        self._entries = bytearray(data)

    def __len__(self) -> int:
        return len(self._entries) // self.layout.size

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._entries)

    def to_bytes(self) -> bytes:
        """The file's content."""
        return bytes(self._entries)

    def _entry(self, number: int) -> tuple[int, int]:
        first, second = self.layout.unpack_from(self._entries, number * self.layout.size)
        return first, second

    def _first(self, number: int) -> int:
        return self._entry(number)[0]

    def _second(self, number: int) -> int:
        return self._entry(number)[1]

    def _keep(self, count: int) -> None:
        del self._entries[count * self.layout.size :]

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()


class OffsetIndex(_SparseIndex):
    """``.index``: int32 offset relative to the base, int32 file position."""

    __slots__ = ()
    layout = _OFFSET_ENTRY

    def append(self, last_offset: Offset, position: int) -> None:
        """The batch set whose last offset is ``last_offset`` begins at ``position``."""
        self._entries += _OFFSET_ENTRY.pack(last_offset - self._base_offset, position)

    def position_before(self, offset: Offset) -> int:
        """Where to begin walking for ``offset``: the position of the greatest entry at or below it, else 0."""
        found = bisect_right(range(len(self)), offset - self._base_offset, key=self._first)
        return self._second(found - 1) if found else 0

    def boundary_before(self, position: int) -> int:
        """The greatest indexed batch boundary at or below ``position``, else 0."""
        found = bisect_right(range(len(self)), position, key=self._second)
        return self._second(found - 1) if found else 0

    def truncate(self, *, end_offset: Offset, size: int) -> None:
        """Forget what lies at or beyond the segment's new end."""
        self._keep(bisect_left(range(len(self)), end_offset - self._base_offset, key=self._first))
        self._keep(bisect_left(range(len(self)), size, key=self._second))

    def is_full(self, size_max: int) -> bool:
        """Would one more entry exceed ``segment.index.bytes``?"""
        return len(self._entries) + _OFFSET_ENTRY.size > size_max

    def is_sane(self, *, size: int, end_offset: Offset | None) -> bool:
        """Whole entries, both fields rising, inside the segment. Zeros after a crash are not."""
        if len(self._entries) % _OFFSET_ENTRY.size:
            return False
        last_offset, last_position = -1, -1
        for offset, position in _OFFSET_ENTRY.iter_unpack(self._entries):
            if offset <= last_offset or position <= last_position or position >= size:
                return False
            last_offset, last_position = offset, position
        return end_offset is None or last_offset < end_offset - self._base_offset


class TimeIndex(_SparseIndex):
    """``.timeindex``: int64 largest timestamp so far, int32 relative last offset of the batch that holds it."""

    __slots__ = ()
    layout = _TIME_ENTRY

    @property
    def last_timestamp(self) -> int:
        """-1 when empty."""
        return self._first(len(self) - 1) if self._entries else NO_TIMESTAMP

    @property
    def last_offset(self) -> Offset:
        """Offset of the last entry; the base offset when empty."""
        return self._base_offset + (self._second(len(self) - 1) if self._entries else 0)

    def append_if_later(self, timestamp: int, offset: Offset) -> None:
        """Only a strictly larger timestamp makes an entry."""
        if timestamp > self.last_timestamp:
            self._entries += _TIME_ENTRY.pack(timestamp, offset - self._base_offset)

    def offset_before(self, timestamp: int) -> Offset:
        """Up to this offset every record is older than ``timestamp``; the base offset when nothing is known."""
        found = bisect_left(range(len(self)), timestamp, key=self._first)
        return self._base_offset + (self._second(found - 1) if found else 0)

    def newest_before(self, end_offset: Offset) -> tuple[int, Offset]:
        """The last entry below ``end_offset``; -1 and the base offset when there is none."""
        found = bisect_left(range(len(self)), end_offset - self._base_offset, key=self._second)
        if not found:
            return NO_TIMESTAMP, self._base_offset
        return self._first(found - 1), self._base_offset + self._second(found - 1)

    def truncate(self, *, end_offset: Offset) -> None:
        """Forget entries at or beyond the segment's new end."""
        self._keep(bisect_left(range(len(self)), end_offset - self._base_offset, key=self._second))

    def is_full(self, size_max: int) -> bool:
        """The last slot is reserved for the entry at the roll."""
        return len(self._entries) + 2 * _TIME_ENTRY.size > size_max

    def is_sane(self, *, end_offset: Offset | None) -> bool:
        """Whole entries, timestamps rising, offsets not falling, inside the segment."""
        if len(self._entries) % _TIME_ENTRY.size:
            return False
        last_timestamp, last_offset = NO_TIMESTAMP, 0
        for timestamp, offset in _TIME_ENTRY.iter_unpack(self._entries):
            if timestamp <= last_timestamp or offset < last_offset:
                return False
            last_timestamp, last_offset = timestamp, offset
        return end_offset is None or not self._entries or last_offset < end_offset - self._base_offset
