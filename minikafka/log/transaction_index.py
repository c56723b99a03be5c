"""``.txnindex``: the aborted transactions whose markers lie in one segment, in Kafka's bytes.

Entries of 34 bytes, big-endian, by the offset of their marker::

    int16 version 0 | int64 producer id | int64 first offset | int64 last offset (the marker) | int64 last stable offset

Rules for this file:

1. An empty index has no file. It lives in memory while its segment is active, as the other two indexes do.
2. To give a reader too many entries does no harm; one that is missing exposes aborted data.
"""

from __future__ import annotations

import struct
from bisect import bisect_left

from minikafka.log.transactions import AbortedTransaction
from minikafka.types import NO_OFFSET, Offset

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class BadTransactionIndex(Exception):
    """The file cannot be believed; it is rebuilt from the batches."""


class TransactionIndex:
    """The aborted transactions of one segment."""

    __slots__ = ("entries", "has_file")

    def __init__(self) -> None:
        self.entries: list[AbortedTransaction] = []
        self.has_file = False
        """A file of it may be in the folder."""

    def append(self, aborted: AbortedTransaction) -> None:
        """Add the transaction that a marker at the segment's end has aborted."""
        self.entries.append(aborted)

    def truncate(self, end_offset: Offset) -> None:
        """Remove the entries whose markers are at or beyond ``end_offset``."""
        del self.entries[self._first_at(end_offset) :]

    def _first_at(self, offset: Offset) -> int:
        return bisect_left(self.entries, offset, key=_last_offset)

    def collect(self, offset: Offset, end_offset: Offset, found: list[AbortedTransaction]) -> bool:
        """Add to ``found`` what a reader of ``[offset, end_offset)`` needs.

        Returns:
            True if no later segment has more: everything below ``end_offset`` was decided by then.
        """
        for number in range(self._first_at(offset), len(self.entries)):
            entry = self.entries[number]
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return True
        return False

    def to_bytes(self) -> bytes:
        """The file's content."""
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self.entries)

    def load(self, data: bytes, *, base_offset: Offset) -> None:
        """Take over a file's content; ``base_offset`` is that of its segment. Raises BadTransactionIndex."""
        self.entries = parse_transaction_index(data)
        if not data:
            raise BadTransactionIndex("is empty, and an empty index has no file")
        if self.entries and self.entries[0].last_offset < base_offset:
            raise BadTransactionIndex(f"a marker at {self.entries[0].last_offset} lies before the segment")


def parse_transaction_index(data: bytes) -> list[AbortedTransaction]:
    """All entries of a file. Raises BadTransactionIndex if its length, a version or the order is wrong."""
    if len(data) % _ENTRY.size:
        raise BadTransactionIndex(f"{len(data)} bytes are no whole entries")
    entries = []
    last_offset = NO_OFFSET
    for version, *numbers in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*numbers)
        if version != _VERSION:
            raise BadTransactionIndex(f"version {version}, only {_VERSION} is known")
        if entry.last_offset <= last_offset or not 0 <= entry.first_offset <= entry.last_offset:
            raise BadTransactionIndex(f"offsets {entry.first_offset}..{entry.last_offset} do not rise")
        last_offset = entry.last_offset
        entries.append(entry)
    return entries


def _last_offset(entry: AbortedTransaction) -> Offset:
    return entry.last_offset
