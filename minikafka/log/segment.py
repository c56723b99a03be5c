"""One segment: a ``.log`` file of whole batches, its two indexes and its transaction index (KAFKA-FACTS 1.3).

Rules for this file:

1. ``size`` and ``next_offset`` tell what was appended; bytes that a failed append may have left lie beyond ``size``
   and are never read.
2. Positions come from an index entry and a walk over batch headers; a read ends at a batch boundary.
3. The indexes live in memory while the segment is active. They are written when it is sealed; after a crash the last
   segments are walked again and their indexes rebuilt.
4. After a clean stop the indexes of a sealed segment are read at first use (:meth:`Segment.believe`): a start would
   read two files for each segment, most of which nobody reads from. Wrong ones are rebuilt then.
5. The bytes of an index in memory are those of its file after a clean close: no preallocated tail, big-endian,
   ascending.
6. Missing entries of an index cost time only: a lookup gives the entry at or before what is sought, the reader walks on
   from there. Wrong entries are never believed: an index that is not ascending, or points beyond its segment, is
   rebuilt; an entry that leads to no batch, or behind what is sought, is passed over.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

from minikafka.errors import CorruptMessage, ProtocolError
from minikafka.log.names import INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX, offset_name
from minikafka.log.transaction_index import TransactionIndex
from minikafka.ports import Buffers, Disk, File, FileRegion
from minikafka.types import Offset
from minikafka.wire.batch import HEADER_SIZE, LENGTH_END, MAGIC, NO_TIMESTAMP, RecordBatch, verify

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

    def remove_before(self, offset: Offset) -> None:
        """Remove the entry that :meth:`position_before` found: it is damaged."""
        found = bisect_right(range(len(self)), offset - self._base_offset, key=self._first)
        if found:
            del self._entries[(found - 1) * _OFFSET_ENTRY.size : found * _OFFSET_ENTRY.size]

    @property
    def last_position(self) -> int:
        """Where the batch set of the last entry begins; -1 when empty."""
        return self._second(len(self) - 1) if len(self) else -1

    def boundary_before(self, position: int) -> int:
        """The greatest indexed batch boundary at or below ``position``, else 0."""
        found = bisect_right(range(len(self)), position, key=self._second)
        return self._second(found - 1) if found else 0

    def truncate(self, *, end_offset: Offset, size: int) -> None:
        """Forget what lies at or beyond the segment's new end."""
        self._keep(bisect_left(range(len(self)), end_offset - self._base_offset, key=self._first))
        self._keep(bisect_left(range(len(self)), size, key=self._second))

    def is_full(self, size_max: int) -> bool:
        """Return True if one more entry would exceed ``segment.index.bytes``."""
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

    def before(self, timestamp: int) -> tuple[int, Offset]:
        """The last entry before ``timestamp``: up to its offset every record is older; -1 and the base offset: none."""
        found = bisect_left(range(len(self)), timestamp, key=self._first)
        if not found:
            return NO_TIMESTAMP, self._base_offset
        return self._first(found - 1), self._base_offset + self._second(found - 1)

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


RELATIVE_MAX = 2**31 - 1
"""Offsets and positions in an index are int32, relative to the segment."""

REBUILT_INTERVAL_BYTES = 4096
"""Between two entries of indexes that are rebuilt at first use: the default of ``index.interval.bytes``."""

_WALK_SIZE_MIN = 8 * 1024
_WALK_SIZE_MAX = 256 * 1024


class Extent(NamedTuple):
    """A run of whole batches in a segment's file."""

    position: int
    size: int
    first_offset: Offset
    next_offset: Offset


def headers(file: File, position: int, end: int) -> Iterator[tuple[int, RecordBatch]]:
    """(position, header) of each batch from ``position`` on; ``data`` of these views is the header alone.

    Stops before a batch that is cut by ``end``. CorruptMessage when a length or a magic cannot be one. Reads little at
    first (a lookup ends soon) and more as it goes on.
    """
    chunk, chunk_start, size = memoryview(b""), position, _WALK_SIZE_MIN
    while end - position >= HEADER_SIZE:
        if position + HEADER_SIZE > chunk_start + len(chunk):
            chunk, chunk_start = memoryview(file.read(position, min(size, end - position))), position
            size = min(2 * size, _WALK_SIZE_MAX)
            if len(chunk) < HEADER_SIZE:
                return
        at = position - chunk_start
        header = RecordBatch.of(chunk[at : at + HEADER_SIZE])
        length = header.batch_length
        if header.magic != MAGIC or length < HEADER_SIZE - LENGTH_END:
            raise CorruptMessage(f"no batch at byte {position}: magic {header.magic}, length {length}")
        following = position + length + LENGTH_END
        if following > end:
            return
        yield position, header
        position = following


class Segment:
    """Batches from ``base_offset`` on, up to ``next_offset`` (exclusive)."""

    __slots__ = (
        "_disk",
        "_file",
        "_first_timestamp",
        "_index",
        "_max_timestamp",
        "_newest_is_checked",
        "_offset_of_max_timestamp",
        "_on_rebuilt",
        "_time_index",
        "base_offset",
        "bytes_since_index",
        "cut_write",
        "folder",
        "next_offset",
        "size",
        "suffix",
        "synced_writes",
        "transactions",
        "writes",
    )

    def __init__(self, disk: Disk, folder: str, base_offset: Offset, *, suffix: str = "") -> None:
        self._disk = disk
        self.folder = folder
        self.base_offset = base_offset
        self.suffix = suffix
        """What its log file's name still ends in while compaction writes it and swaps it in."""
        self._file: File | None = None
        self._index: OffsetIndex | None = OffsetIndex(base_offset)
        """None: neither index, nor the largest timestamp, was read yet."""
        self._time_index = TimeIndex(base_offset)
        self._on_rebuilt: Callable[[str], None] | None = None
        self.transactions = TransactionIndex()
        self.size = 0
        self.next_offset = base_offset
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = base_offset
        self.bytes_since_index = 0
        self.writes = 1
        """Counts changes of the file's content; the creation is one."""
        self.synced_writes = 0
        self.cut_write = 0
        """The number, among its writes, of its latest cut, or of the latest that may have been one; 0: none."""
        self._first_timestamp: int | None = None
        self._newest_is_checked = False

    # ------------------------------------------------------------------------------------- names

    def path(self, suffix: str) -> str:
        """Of one of the segment's files."""
        return f"{self.folder}/{offset_name(self.base_offset, suffix)}"

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that are the segment's alone; the snapshot at its base is also what its predecessor ends with."""
        return self.path(LOG), *self.index_paths

    @property
    def index_paths(self) -> tuple[str, ...]:
        """Of the offset index, the time index, and the transaction index unless it is empty and has no file."""
        if self.transactions.entries or self.transactions.has_file:
            return self.path(INDEX), self.path(TIME_INDEX), self.path(TRANSACTION_INDEX)
        return self.path(INDEX), self.path(TIME_INDEX)

    @property
    def is_dirty(self) -> bool:
        """Return True if the log file has changes that no completed sync covered."""
        return self.writes != self.synced_writes

    @property
    def is_written(self) -> bool:
        """Return True if the log file has changed since it was opened or created."""
        return self.writes > 1

    @property
    def file(self) -> File:
        """The log file; opened at first use, so that old segments hold no descriptor."""
        if self._file is None:
            self._file = self._disk.open(self.path(LOG) + self.suffix)
        return self._file

    # ------------------------------------------------------------------------------------- indexes

    @property
    def index(self) -> OffsetIndex:
        """The offset index."""
        index = self._index
        return self._read_indexes() if index is None else index

    @property
    def time_index(self) -> TimeIndex:
        """The time index."""
        if self._index is None:
            self._read_indexes()
        return self._time_index

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of its batches, -1 if none has one."""
        if self._index is None:
            self._read_indexes()
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> Offset:
        """Last offset of the batch with the largest timestamp; the base offset if none has one."""
        if self._index is None:
            self._read_indexes()
        return self._offset_of_max_timestamp

    def is_index_full(self, size_max: int) -> bool:
        """Return True if the next append may exceed ``segment.index.bytes`` in one of the indexes."""
        return self.index.is_full(size_max) or self._time_index.is_full(size_max)

    def load_indexes(self) -> None:
        """Read the indexes now, for their files will be gone."""
        if self._index is None:
            self._read_indexes()

    def take_indexes(self, index: OffsetIndex, time_index: TimeIndex) -> None:
        """Use these indexes, whose last time entry has the largest timestamp, from now on."""
        self._index, self._time_index = index, time_index
        self._max_timestamp = time_index.last_timestamp
        self._offset_of_max_timestamp = time_index.last_offset
        self._newest_is_checked = False

    def believe(self, *, size: int, next_offset: Offset, on_rebuilt: Callable[[str], None]) -> None:
        """Take the sealed segment as a clean stop left it, and its index files, unread.

        ``on_rebuilt`` is called with the reason when these cannot be believed and are rebuilt in memory.
        """
        self.size = size
        self.next_offset = next_offset
        self.synced_writes = self.writes
        self._index = None
        self._on_rebuilt = on_rebuilt

    def _read_indexes(self) -> OffsetIndex:
        try:
            index = OffsetIndex(self.base_offset, self._disk.read_file(self.path(INDEX)))
            time_index = TimeIndex(self.base_offset, self._disk.read_file(self.path(TIME_INDEX)))
        except FileNotFoundError:
            return self._rebuild_indexes("index missing")
        if not (
            index.is_sane(size=self.size, end_offset=self.next_offset)
            and time_index.is_sane(end_offset=self.next_offset)
        ):
            return self._rebuild_indexes("index damaged")
        self.take_indexes(index, time_index)
        return index

    def _rebuild_indexes(self, why: str) -> OffsetIndex:
        """Make both from the headers of the batches.

        They end where a header is damaged: who reads behind it walks there and finds the damage, and nobody else does.
        """
        index, damage = self._walk()
        self._index = index
        self._tell_rebuilt(f"{why}{damage}")
        return index

    def _walk(self) -> tuple[OffsetIndex, str]:
        """Make the time index from the headers, and an offset index; and what is damaged, in words."""
        walked, damage = Segment(self._disk, self.folder, self.base_offset), ""
        try:
            for _, header in headers(self.file, 0, self.size):
                walked.note(
                    size=header.size,
                    last_offset=header.last_offset,
                    max_timestamp=header.newest_timestamp,
                    offset_of_max=header.last_offset,
                    index_interval_bytes=REBUILT_INTERVAL_BYTES,
                )
        except CorruptMessage as error:
            damage = f", and {error.message}"
        self._time_index = walked.time_index
        self._max_timestamp = walked.max_timestamp
        self._offset_of_max_timestamp = walked.offset_of_max_timestamp
        self._newest_is_checked = True
        return walked.index, damage

    def _tell_rebuilt(self, why: str) -> None:
        if self._on_rebuilt is not None:
            self._on_rebuilt(f"{self.path(LOG)}: {why}")

    def has_newest(self, timestamp: int, offset: Offset) -> bool:
        """Return True if an entry of the time index is right: ``timestamp`` is that of the batch with ``offset``."""
        try:
            found = self.locate(offset)
        except CorruptMessage:
            return False
        return found is not None and found[1].newest_timestamp == timestamp

    def check_newest(self) -> bool:
        """Return True if the largest timestamp is that of some batch, or unknown. Else find the largest one.

        Nothing else tells whether the time index is right, and retention deletes by it.
        """
        if self.max_timestamp == NO_TIMESTAMP or self._newest_is_checked:
            return True
        self._newest_is_checked = True
        was_open = self._file is not None
        try:
            return self.has_newest(self._max_timestamp, self._offset_of_max_timestamp) or self._find_newest()
        finally:
            if not was_open and (file := self.take_file()) is not None:
                file.close()  # a look at all segments must not open all files

    def _find_newest(self) -> bool:
        _, damage = self._walk()
        if damage:  # there may be newer ones behind it
            self._max_timestamp = max(self._max_timestamp, self._disk.modified_ms(self.path(LOG)))
        self._tell_rebuilt(f"time index damaged{damage}")
        return False

    def take_file(self) -> File | None:
        """Hand over the open file, for its new owner to close."""
        file, self._file = self._file, None
        return file

    def __repr__(self) -> str:
        entries = "unread" if self._index is None else len(self._index)
        return f"<segment {self.base_offset}..{self.next_offset} size={self.size} index={entries}>"

    # ------------------------------------------------------------------------------------- writing

    def append(
        self,
        data: Buffers,
        *,
        size: int,
        last_offset: Offset,
        max_timestamp: int,
        offset_of_max: Offset,
        index_interval_bytes: int,
    ) -> None:
        """One gathered write of a batch set. DiskFull, DiskFailed.

        The set is indexed, by its last offset and first byte, when more than ``index_interval_bytes`` came before it.
        """
        (self._file or self.file).append(data)
        self.note(
            size=size,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
            offset_of_max=offset_of_max,
            index_interval_bytes=index_interval_bytes,
        )
        self.writes += 1

    def note(
        self, *, size: int, last_offset: Offset, max_timestamp: int, offset_of_max: Offset, index_interval_bytes: int
    ) -> None:
        """Take a batch set into the books that lies at the end of the file; also what recovery does."""
        index = self._index
        if index is None:
            index = self._read_indexes()
        if self._first_timestamp is None:
            self._first_timestamp = max_timestamp
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = offset_of_max
        if self.bytes_since_index > index_interval_bytes:
            index.append(last_offset, self.size)
            self._time_index.append_if_later(self._max_timestamp, self._offset_of_max_timestamp)
            self.bytes_since_index = 0
        self.bytes_since_index += size
        self.size += size
        self.next_offset = last_offset + 1

    def save_indexes(self) -> None:
        """Write the index files, the last time entry included; durable when its owner syncs them."""
        self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)
        self._disk.replace_file(self.path(INDEX), self.index.to_bytes())
        self._disk.replace_file(self.path(TIME_INDEX), self.time_index.to_bytes())
        if self.transactions.entries:
            self._disk.replace_file(self.path(TRANSACTION_INDEX), self.transactions.to_bytes())
            self.transactions.has_file = True
        elif self.transactions.has_file:
            self._disk.remove(self.path(TRANSACTION_INDEX))
            self.transactions.has_file = False

    def truncate(self, offset: Offset) -> None:
        """Keep whole batches below ``offset``."""
        found = self.locate(offset)
        if found is None:
            return
        position, _ = found
        self.file.truncate(position)
        self.writes += 1
        self.cut_write = self.writes
        self.size = position
        self.next_offset = self._end_before(position)
        self.index.truncate(end_offset=self.next_offset, size=self.size)
        self.time_index.truncate(end_offset=self.next_offset)
        self.transactions.truncate(self.next_offset)
        self.bytes_since_index = self.size - self.index.position_before(self.next_offset)
        self._first_timestamp = self._first_timestamp if position else None
        self.reload_max_timestamp()

    def _end_before(self, position: int) -> Offset:
        """Where the batch ends that stands before the one at ``position``; compaction may have left a gap between."""
        end = self.base_offset
        if position:
            for _, header in headers(self.file, self.index.boundary_before(position - 1), position):
                end = header.next_offset
        return end

    def reload_max_timestamp(self) -> None:
        """From the last time entry and a walk over what came after it."""
        self.take_indexes(self.index, self.time_index)
        start = self.index.position_before(self._offset_of_max_timestamp) if len(self.time_index) else 0
        for _, header in headers(self.file, start, self.size):
            if header.newest_timestamp > self._max_timestamp:
                self._max_timestamp = header.newest_timestamp
                self._offset_of_max_timestamp = header.last_offset

    # ------------------------------------------------------------------------------------- reading

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch, -1 when empty or damaged: what the time to roll is counted from."""
        if self._first_timestamp is None and self.size:
            header = self._header_at(0)
            self._first_timestamp = NO_TIMESTAMP if header is None else header.max_timestamp
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    def locate(self, offset: Offset, *, start: int = 0) -> tuple[int, RecordBatch] | None:
        """Position and header of the first batch whose last offset is at or beyond ``offset``; None: no such.

        ``start``: the position of a batch that does not lie behind it, if one is known. Raises CorruptMessage when
        ``offset`` seems to be in a batch, or in a gap, because the offsets of a header are damaged.
        """
        if offset >= self.next_offset:
            return None
        index = self.index
        indexed = index.position_before(offset)
        if indexed <= start:
            return self._locate_from(start, offset)
        try:
            return self._locate_from(indexed, offset, is_indexed=True)
        except CorruptMessage:
            # Nothing tells a damaged entry from a sound one, but the entry before leads to the batch as well.
            earlier = max(start, index.boundary_before(indexed - 1))
            found = self._locate_from(earlier, offset, is_indexed=earlier > start)
        index.remove_before(offset)
        self._tell_rebuilt(f"the index entry before offset {offset} is damaged")
        return found

    def position_of(self, offset: Offset) -> int:
        """Position of the first batch that ends at or behind ``offset``; the segment's end: no such. CorruptMessage."""
        found = self.locate(max(offset, self.base_offset))
        return self.size if found is None else found[0]

    def _locate_from(self, start: int, offset: Offset, *, is_indexed: bool = False) -> tuple[int, RecordBatch]:
        """Walk from the batch at byte ``start``, which does not lie behind ``offset``. See :meth:`locate`.

        Base offsets have no checksum. One that is damaged contradicts the batch before it, or those behind it.
        """
        before: tuple[int, RecordBatch] | None = None
        for found in headers(self.file, start, self.size):
            position, header = found
            base_offset = header.base_offset
            if before is None and is_indexed and base_offset > offset:
                raise CorruptMessage(f"{self.path(INDEX)}: offset {offset} lies before byte {position}")
            if base_offset + header.last_offset_delta >= offset:
                if base_offset < offset and self._is_overrun(position, header.size, offset):
                    before = found
                    continue
                if base_offset > offset and (following := self._truly_behind(position, header)) is not None:
                    if following <= offset:
                        before = None
                        continue
                    raise CorruptMessage(
                        f"{self.path(LOG)}: batch at byte {position} says that it begins at {base_offset}"
                    )
                if header.last_offset >= self.next_offset:
                    raise CorruptMessage(f"{self.path(LOG)}: batch at byte {position} ends at {header.last_offset}")
                if base_offset < self.base_offset or (before is not None and self._is_below(header, before)):
                    raise CorruptMessage(
                        f"{self.path(LOG)}: batch at byte {position} says that it begins at {base_offset}"
                    )
                return found
            before = found
        raise CorruptMessage(f"{self.path(LOG)}: no batch holds offset {offset} below {self.next_offset}")

    def _is_overrun(self, position: int, size: int, offset: Offset) -> bool:
        """Return True if the batch at ``position`` only seems to reach ``offset``: it is damaged, and the next begins
        there or before. Who has read the damaged one already, such as an in-sync follower, can go on.
        """
        following = self._header_at(position + size)
        return following is not None and following.base_offset <= offset and self._is_damaged(position, size)

    def _truly_behind(self, position: int, header: RecordBatch) -> Offset | None:
        """Return where the batch behind the one at ``position`` begins if both it and the one after it show that
        ``header`` has a base offset that is too large, else None.
        """
        following = self._header_at(position + header.size)
        if following is None or following.base_offset >= header.next_offset:
            return None
        third = self._header_at(position + header.size + following.size)
        end = self.next_offset if third is None else third.base_offset
        return following.base_offset if end < header.next_offset else None

    def _is_below(self, header: RecordBatch, before: tuple[int, RecordBatch]) -> bool:
        """Return True if ``header`` begins before the end of the sound batch in front of it."""
        position, previous = before
        return header.base_offset < previous.next_offset and not self._is_damaged(position, previous.size)

    def _header_at(self, position: int) -> RecordBatch | None:
        """The header of the batch at ``position``; None: there is none, or it cannot be read."""
        try:
            found = next(headers(self.file, position, self.size), None)
        except CorruptMessage:
            return None
        return None if found is None else found[1]

    def _is_damaged(self, position: int, size: int) -> bool:
        try:
            verify(self.read(position, size))
        except ProtocolError:
            return True
        return False

    def extent(self, offset: Offset, *, end_offset: Offset, max_bytes: int, min_one_batch: bool) -> Extent | None:
        """The whole batches to read; None when there is none.

        From the batch that holds ``offset``; nothing of the batch that holds ``end_offset`` or of later ones; at most
        ``max_bytes``, or one batch whatever its size with ``min_one_batch`` (KIP-74). Raises CorruptMessage when
        ``offset`` seems to be in a gap because the header of the batch that holds it is damaged.
        """
        first = self.locate(offset)
        if first is None or first[1].last_offset >= end_offset:
            return None
        start, header = first
        if header.base_offset > offset:
            self.check_batch_before(start, offset)
        limit, next_offset = self.size, self.next_offset
        if end_offset < self.next_offset:
            try:
                beyond = self.locate(end_offset, start=start)
            except CorruptMessage:  # where the damage begins is not known, but not in the first batch
                limit, next_offset = start + header.size, header.next_offset
            else:
                if beyond is not None:
                    limit, next_offset = beyond[0], min(beyond[1].base_offset, end_offset)
        if start + max_bytes >= limit:
            return Extent(start, limit - start, header.base_offset, next_offset)
        if header.size > max_bytes:
            return Extent(start, header.size, header.base_offset, header.next_offset) if min_one_batch else None
        position, next_offset = self._boundary_before(start + max_bytes, start=start, limit=limit)
        return Extent(start, position - start, header.base_offset, next_offset)

    def _boundary_before(self, stop: int, *, start: int, limit: int) -> tuple[int, Offset]:
        """The last end of a batch at or before byte ``stop``, and the offset there. The batch at ``start`` fits.

        Ends before a header that is damaged: what stands in front of it can be read.
        """
        end, next_offset = start, self.base_offset
        # Jump to the last indexed boundary within reach, unless it is none.
        for begin in (max(start, self.index.boundary_before(stop)), start):
            end = begin
            with contextlib.suppress(CorruptMessage):
                for position, walked in headers(self.file, begin, limit):
                    if position + walked.size > stop:
                        return position, walked.base_offset
                    end, next_offset = position + walked.size, walked.next_offset
            if end > begin:
                break
        return end, next_offset

    def check_batch_before(self, position: int, offset: Offset) -> None:
        """Verify the batch in front of ``position``, which seems to end before ``offset``. Raises CorruptMessage.

        Compaction leaves gaps, and a reader cannot distinguish one from a batch whose ``lastOffsetDelta`` is damaged:
        it would pass over that batch's records, and a follower would lose them.
        """
        before = None
        # From the entry before: a batch at an indexed byte has one in front of it that shows where it begins.
        start = self.index.boundary_before(max(self.index.position_before(offset) - 1, 0))
        end = self.base_offset
        for at, header in headers(self.file, start, position):
            if before is not None:
                end = before[1].next_offset
            before = at, header
        if before is None:
            return
        try:
            if before[1].base_offset < end:
                raise CorruptMessage(f"it says that it begins at {before[1].base_offset}, before {end}")
            verify(self.read(before[0], before[1].size))
        except CorruptMessage as error:
            raise CorruptMessage(f"{self.path(LOG)}: batch at byte {before[0]}: {error.message}") from error

    def region(self, position: int, size: int) -> FileRegion | None:
        """These bytes, to be sent from the log file; None: read them instead."""
        return self.file.region(position, size)

    def read(self, position: int, size: int) -> bytes:
        """Exactly these bytes of the log file; CorruptMessage when the file is shorter than it was."""
        data = self.file.read(position, size)
        if len(data) != size:
            raise CorruptMessage(f"{self.path(LOG)}: {len(data)} of {size} bytes at {position}")
        return data
