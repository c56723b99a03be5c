"""Transactions in one log: which are open, which have ended but may still be undone, and where both begin (KIP-98).

Rules for this file:

1. The last stable offset is the smallest of three: the high watermark, the first offset of the oldest open transaction,
   and the first offset of every ended transaction whose marker is not below the high watermark. Without the third, a
   marker that only the leader has would expose data whose end is not committed (hachikuji's note on KAFKA-5121).
2. A step costs the same however many transactions are open: each append calls into this file.
3. What was once below a high watermark is decided for good. A watermark that falls later (a new leader knows an older
   one) does not bring an ended transaction back; only a cut of the log does.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import NamedTuple

from minikafka.types import NO_OFFSET, Offset


class AbortedTransaction(NamedTuple):
    """An aborted transaction: an entry of a ``.txnindex`` file."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    """Offset of its ABORT marker."""
    last_stable_offset: Offset
    """First offset of the oldest transaction that was still open at that marker; without one, the offset behind it."""


class HoldingTransaction(NamedTuple):
    """The transaction that holds the last stable offset below the high watermark."""

    first_offset: Offset
    producer_id: int
    marker_offset: Offset
    """Offset of its marker, which is not below the high watermark; -1: the transaction is open."""


class OpenTransactions:
    """The open and the uncommitted ended transactions of one log."""

    __slots__ = ("_committed_end", "_ended", "_open")

    def __init__(self) -> None:
        # Ordered by first offset, for transactions begin in the order of the log. An OrderedDict finds its first entry
        # at once, whatever was removed before it; a dict walks over the places of removed entries.
        self._open: OrderedDict[Offset, int] = OrderedDict()
        self._ended: list[HoldingTransaction] = []
        """Heap by first offset. Entries with markers below the high watermark are dropped as they surface."""
        self._committed_end: Offset = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def open(self) -> dict[Offset, int]:
        """Producer ids of open transactions by first offset, the oldest first."""
        return dict(self._open)

    def begin(self, first_offset: Offset, producer_id: int) -> None:
        """A producer's transaction begins."""
        self._open[first_offset] = producer_id

    def end(self, first_offset: Offset, marker_offset: Offset) -> Offset:
        """The transaction ends with this marker.

        Returns:
            The last stable offset that this makes possible: see :class:`AbortedTransaction`.
        """
        producer_id = self._open.pop(first_offset)
        if marker_offset >= self._committed_end:
            heapq.heappush(self._ended, HoldingTransaction(first_offset, producer_id, marker_offset))
        return next(iter(self._open), marker_offset + 1)

    def stable_end(self, high_watermark: Offset) -> Offset:
        """Return the last stable offset; see rule 1."""
        holding = self.holding(high_watermark)
        return high_watermark if holding is None else holding.first_offset

    def holding(self, high_watermark: Offset) -> HoldingTransaction | None:
        """Return the transaction at whose first offset the last stable offset stands; None: at the watermark."""
        ended = self._ended
        if not ended and not self._open:
            return None
        self._committed_end = max(self._committed_end, high_watermark)
        while ended and ended[0].marker_offset < self._committed_end:
            heapq.heappop(ended)
        oldest = ended[0] if ended else None
        if self._open:
            first_offset, producer_id = next(iter(self._open.items()))
            if oldest is None or first_offset < oldest.first_offset:
                oldest = HoldingTransaction(first_offset, producer_id, NO_OFFSET)
        return oldest if oldest is not None and oldest.first_offset < high_watermark else None

    def undecided_producers(self, high_watermark: Offset) -> set[int]:
        """Return the producers of ended transactions that may still be undone; the others are forgotten.

        A replica that nobody reads from (a follower) forgets them here only.
        """
        if not self._ended:
            return set()
        self._committed_end = max(self._committed_end, high_watermark)
        self._ended = [each for each in self._ended if each.marker_offset >= self._committed_end]
        heapq.heapify(self._ended)
        return {each.producer_id for each in self._ended}

    def committed(self, high_watermark: Offset) -> None:
        """Before a replay: transactions whose markers are below ``high_watermark`` are decided for good."""
        self._committed_end = high_watermark

    def ended_below(self, end_offset: Offset) -> list[HoldingTransaction]:
        """Before a cut: the ended transactions that may still be undone and whose markers stay."""
        return [each for each in self._ended if each.marker_offset < end_offset]

    def restore_ended(self, ended: list[HoldingTransaction]) -> None:
        """After a cut and its replay, which does not know the watermark: what :meth:`ended_below` returned."""
        self._ended = ended
        heapq.heapify(ended)

    def clear(self) -> None:
        """Forget everything."""
        self._open.clear()
        self._ended.clear()
        self._committed_end = 0
