"""The memory tail: batches just appended, so that followers and fast consumers cost no disk read (PERFORMANCE 7).

Rules for this file: it holds nothing that is not also in the log's file, gives out whole batches only, and never more
than asked for; a truncation empties it from there on. Small batches are copied: a view would keep the whole request
body alive that they came in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from minikafka.ports import Buffer, Buffers
from minikafka.types import Offset

COPIED_SIZE_MAX = 64 * 1024
"""Copying this much costs less than a system call saves; larger bodies stay as they came off the wire."""


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


class MemoryTail:
    """The last batches of one log, ``size_max`` bytes at most."""

    __slots__ = ("_held", "_size", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._held: deque[_Held] = deque()
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
            self._size -= self._held.popleft().size

    def read(self, offset: Offset, *, end_offset: Offset, max_bytes: int, min_one_batch: bool) -> LogSlice | None:
        """As :meth:`PartitionLog.read`; None when ``offset`` is not held here."""
        if not self._held or not self._held[0].base_offset <= offset < self._held[-1].next_offset:
            return None
        # Readers stand near the end: walk back to the batch, then forward over those just passed.
        wanted: list[_Held] = []
        for held in reversed(self._held):
            wanted.append(held)
            if held.base_offset <= offset:
                break
        first_offset = next_offset = wanted[-1].base_offset
        buffers: list[Buffer] = []
        size = 0
        for held in reversed(wanted):
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

    def drop_before(self, offset: Offset) -> None:
        """Forget batches that end at or before ``offset``: compaction has rewritten them."""
        while self._held and self._held[0].next_offset <= offset:
            self._size -= self._held.popleft().size

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()
        self._size = 0
