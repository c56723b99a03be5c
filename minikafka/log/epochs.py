"""The leader-epoch cache: which epoch's leader wrote from which offset on (S21, KIP-101, KIP-279).

Rules for this file: epochs and start offsets both strictly rise; it writes nothing itself, its owner replaces the
checkpoint file whenever a method returns True.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from minikafka.types import NO_EPOCH, UNDEFINED_EPOCH_END, Epoch, EpochEnd, Offset


class EpochCache:
    """(epoch, start offset) pairs of one log."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[Epoch, Offset]] = ()) -> None:
        self._epochs: list[Epoch] = []
        self._starts: list[Offset] = []
        for epoch, start in entries:
            self._epochs.append(epoch)
            self._starts.append(start)

    @property
    def entries(self) -> list[tuple[Epoch, Offset]]:
        """All pairs, ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> Epoch:
        """The last epoch, NO_EPOCH when there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: Epoch, start: Offset) -> bool:
        """``epoch`` begins at ``start``; True when that was news.

        The latest epoch again is no news, unless it begins earlier than known. Else entries that contradict it, by
        epoch or by offset, give way: they belong to a log that was cut.
        """
        if epoch < 0:
            return False
        if self._epochs and self._epochs[-1] == epoch and start >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start)
        return True

    def truncate_from_end(self, end: Offset) -> bool:
        """Forget epochs that begin at ``end`` or later."""
        before = len(self._starts)
        while self._starts and self._starts[-1] >= end:
            self._epochs.pop()
            self._starts.pop()
        return len(self._starts) != before

    def truncate_from_start(self, start: Offset) -> bool:
        """Forget epochs that end at ``start`` or before; the one that covers it begins there from now on."""
        covering = bisect_right(self._starts, start) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == start):
            return False
        del self._epochs[:covering]
        del self._starts[:covering]
        self._starts[0] = start
        return True

    def begin_at(self, start: Offset) -> bool:
        """The log starts at ``start``, before its first batch: compaction took what stood between.

        Had an epoch begun there, its first batch would have stayed (``compaction.py``), so the one that is known first
        covers the gap. (Should it begin only at its end: the epoch before has no record left there to speak of.)
        """
        if not self._starts or self._starts[0] <= start:
            return False
        self._starts[0] = start
        return True

    def clear(self) -> bool:
        """Forget all."""
        had_any = bool(self._epochs)
        self._epochs.clear()
        self._starts.clear()
        return had_any

    def end_offset_for(self, epoch: Epoch, log_end: Offset) -> EpochEnd:
        """Where ``epoch`` ended in this log, in the words of KIP-279.

        The latest epoch ends at the log's end. An epoch above it, or none at all: undefined. Else the largest known
        epoch not above it, which ended where the next known one began; below all known ones: the asked epoch, and
        the start of the first.
        """
        if epoch == NO_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return UNDEFINED_EPOCH_END
        if epoch == self._epochs[-1]:
            return EpochEnd(epoch, log_end)
        higher = bisect_right(self._epochs, epoch)
        if higher == 0:
            return EpochEnd(epoch, self._starts[0])
        return EpochEnd(self._epochs[higher - 1], self._starts[higher])

    def epoch_at(self, offset: Offset) -> Epoch:
        """The epoch that covers ``offset``; NO_EPOCH below all."""
        covering = bisect_right(self._starts, offset) - 1
        return self._epochs[covering] if covering >= 0 else NO_EPOCH

    def begins(self, epoch: Epoch, offset: Offset) -> bool:
        """Return True if ``epoch`` begins at ``offset``."""
        found = bisect_left(self._starts, offset)
        return found < len(self._starts) and (self._epochs[found], self._starts[found]) == (epoch, offset)

    def __repr__(self) -> str:
        return f"<epochs {' '.join(f'{epoch}@{start}' for epoch, start in self.entries) or 'none'}>"
