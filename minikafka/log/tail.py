"""The memory tail: batches just appended, so that followers and fast consumers cost no disk read (PERFORMANCE 7).

Rules for this file: it holds nothing that is not also in the log's file, gives out whole batches only, and never more
than asked for; a truncation empties it from there on. Small batches are copied: a view would keep the whole request
body alive that they came in.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from minikafka.ports import Buffer, Buffers
from minikafka.types import Offset

COPIED_SIZE_MAX = 64 * 1024
"""Copying this much costs less than a system call saves; larger bodies stay as they came off the wire."""

GIVEN_MAX = 128
"""More batches than this cost less to read from the file, in one call. A megabyte of batches of one small record each
held the loop for milliseconds."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Whole batches from a log: ``size`` bytes in ``buffers``, offsets ``first_offset`` to ``next_offset``.

    Empty: no buffers, and both offsets are the one asked for.
    """

    buffers: Buffers
    size: int
    first_offset: Offset
    next_offset: Offset


class _Held(NamedTuple):
    base_offset: Offset
    next_offset: Offset
    buffers: tuple[Buffer, ...]
    size: int


_base_offset_of = itemgetter(0)
_FORGOTTEN = _Held(-1, -1, (), 0)
_FORGOTTEN_MAX = 1024
"""Places of forgotten batches that are kept at the front: to close each gap at once would move all other places."""


class MemoryTail:
    """The last batches of one log, ``size_max`` bytes at most."""

    __slots__ = ("_first", "_held", "_size", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._held: list[_Held] = []
        self._first = 0
        """Index in ``_held`` of the oldest batch that is not forgotten."""
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._size

    def append(self, *, base_offset: Offset, next_offset: Offset, buffers: tuple[Buffer, ...], size: int) -> None:
        """One batch as it stands in the file. Buffers must never change."""
        if self._held and self._held[-1].next_offset != base_offset:
            self.clear()
        self._held.append(_Held(base_offset, next_offset, buffers, size))
        self._size += size
        while self._size > self.size_max:
            self._forget_first()

    def read(self, offset: Offset, *, end_offset: Offset, max_bytes: int, min_one_batch: bool) -> LogSlice | None:
        """As :meth:`PartitionLog.read`; None when ``offset`` is not held here, or for more than GIVEN_MAX batches."""
        batches = self._held
        if not batches or not batches[self._first].base_offset <= offset < batches[-1].next_offset:
            return None
        number = bisect_right(batches, offset, self._first, key=_base_offset_of) - 1
        first_offset = next_offset = batches[number].base_offset
        buffers: list[Buffer] = []
        size = 0
        for at in range(number, len(batches)):
            if at - number == GIVEN_MAX:
                return None
            held = batches[at]
            fits = size + held.size <= max_bytes or (min_one_batch and not buffers)
            if held.next_offset > end_offset or not fits:
                break
            buffers += held.buffers
            size += held.size
            next_offset = held.next_offset
        if not buffers:
            return LogSlice((), 0, offset, offset)
        return LogSlice(buffers, size, first_offset, next_offset)

    def truncate(self, end_offset: Offset) -> None:
        """Forget batches that do not end at or before ``end_offset``."""
        while self._held and self._held[-1].next_offset > end_offset:
            self._size -= self._held.pop().size
            self._clear_if_empty()

    def drop_before(self, offset: Offset) -> None:
        """Forget batches that end at or before ``offset``: compaction has rewritten them."""
        while self._held and self._held[self._first].next_offset <= offset:
            self._forget_first()

    def _forget_first(self) -> None:
        self._size -= self._held[self._first].size
        self._held[self._first] = _FORGOTTEN
        self._first += 1
        if self._first > _FORGOTTEN_MAX:
            del self._held[: self._first]
            self._first = 0
        self._clear_if_empty()

    def _clear_if_empty(self) -> None:
        """Without a batch there are no places either: each method but this one looks at ``_held`` alone."""
        if self._first == len(self._held):
            self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()
        self._first = 0
        self._size = 0
