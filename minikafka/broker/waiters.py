"""Purgatory: requests that wait until a mark of a log reaches an offset (KAFKA-FACTS 3.8); see :class:`Mark`.

One waiter per request, over all the partitions that it asks about. The order is check, watch, check: a waiter looks at
the world itself after each wake-up, so a wake-up too many costs time and none can be lost. Log-end waiters are woken
right after the append, watermark waiters after durability: else the leader's and the followers' syncs run in series.
When a partition changes its role, everyone who waits for it is woken and finds out.

Each mark of each partition has a heap by offset: a wake-up touches those whom it reaches and nobody else. Who is gone
stays in the heaps and is dropped in passing: when a heap has doubled, the dead are swept out, so that it never holds
more than about twice the living, also where nothing ever happens and the same requests time out again and again.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from minikafka.types import Offset, TopicPartition

SWEEP_SIZE_MIN = 8
"""Shorter heaps are not swept."""


class Mark(enum.StrEnum):
    """What can be waited for; text, since that is hashed without a call of a Python function."""

    LOG_END = "log end"
    HIGH_WATERMARK = "high watermark"
    LAST_STABLE = "last stable offset"
    LOG_START = "log start"


class Condition(NamedTuple):
    """Wake when the partition's mark reaches ``offset``."""

    mark: Mark
    partition: TopicPartition
    offset: Offset


class Committed(Protocol):
    """A replica, as far as its records are committed."""

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def last_stable_offset(self) -> Offset: ...


class Waiter:
    """One parked request; ``future`` is None before it waits and once it has gone: then its entries in the heaps are
    dead.
    """

    __slots__ = ("expired", "future", "released", "timer")

    def __init__(self) -> None:
        self.expired = False
        """Its deadline has come, by its timer. Not by comparing times: a timer may fire a rounding error too early, and
        nothing would wake the request again.
        """
        self.future: asyncio.Future[None] | None = None
        self.released: list[Condition] = []
        """By what it was woken: these have left their heaps."""
        self.timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def expire(self) -> None:
        self.expired = True
        self.wake()


class _Heap:
    """Who waits for one mark of one partition, the nearest offset first."""

    __slots__ = ("entries", "sweep_size")

    def __init__(self) -> None:
        self.entries: list[tuple[Offset, int, Waiter, Condition]] = []
        self.sweep_size = SWEEP_SIZE_MIN

    def push(self, birth: int, waiter: Waiter, condition: Condition) -> None:
        if len(self.entries) >= self.sweep_size:
            self.entries = [entry for entry in self.entries if entry[2].future is not None]
            heapq.heapify(self.entries)
            self.sweep_size = max(SWEEP_SIZE_MIN, 2 * len(self.entries))
        heapq.heappush(self.entries, (condition.offset, birth, waiter, condition))

    def release(self, offset: Offset | None) -> None:
        """Wake those who wait for ``offset`` or less; None: everyone."""
        entries = self.entries
        while entries and (offset is None or entries[0][0] <= offset):
            _, _, waiter, condition = heapq.heappop(entries)
            if waiter.future is not None:
                waiter.released.append(condition)
                waiter.wake()


class Waiters:
    """All parked requests of one broker."""

    def __init__(self) -> None:
        self._heaps: dict[Mark, dict[TopicPartition, _Heap]] = {mark: {} for mark in Mark}
        self._births = itertools.count()
        self.parked = 0
        self._closed = False

    def wake(self, mark: Mark, partition: TopicPartition, offset: Offset) -> None:
        """The mark has reached ``offset``: release those who wait for that or less."""
        heaps = self._heaps[mark]
        heap = heaps.get(partition) if heaps else None
        if heap is not None:
            heap.release(offset)
            if not heap.entries:
                del heaps[partition]

    def wake_committed(self, partition: TopicPartition, replica: Committed) -> None:
        """The high watermark has moved, and the last stable offset may have: it never moves without it."""
        self.wake(Mark.HIGH_WATERMARK, partition, replica.high_watermark)
        if self._heaps[Mark.LAST_STABLE]:
            self.wake(Mark.LAST_STABLE, partition, replica.last_stable_offset)

    def wake_all(self, partition: TopicPartition) -> None:
        """The partition's role has changed: release everyone who waits for it."""
        for heaps in self._heaps.values():
            heap = heaps.pop(partition, None)
            if heap is not None:
                heap.release(None)

    def close(self) -> None:
        """The broker stops: release everyone for good. Later waits end at once."""
        self._closed = True
        for heaps in self._heaps.values():
            for heap in heaps.values():
                heap.release(None)
            heaps.clear()

    def is_watched(self, mark: Mark, partition: TopicPartition | None = None) -> bool:
        """Does anybody wait for it (None: for this mark of any partition)? For callers to whom finding out where the
        mark stands costs something.
        """
        heaps = self._heaps[mark]
        if not heaps:
            return False
        found = heaps.values() if partition is None else [heaps[partition]] if partition in heaps else []
        return any(entry[2].future is not None for heap in found for entry in heap.entries)

    async def until(
        self,
        conditions: Sequence[Condition],
        met: Callable[[], bool],
        deadline: float,
        *,
        news: list[TopicPartition] | None = None,
    ) -> bool:
        """Wait until ``met()``; it is asked first, and after each wake-up.

        False when the deadline (on the loop's clock) passed first or the broker stops. What ``met`` raises ends the
        wait. Partitions that woke it are added to ``news`` before ``met`` is asked.
        """
        return met() or await self.from_now(conditions, met, deadline, news=news)

    def from_now(
        self,
        conditions: Sequence[Condition],
        met: Callable[[], bool],
        deadline: float,
        *,
        news: list[TopicPartition] | None = None,
        waiter: Waiter | None = None,
    ) -> Awaitable[bool]:
        """As ``until`` for a caller that has found ``met`` false. What happens from this call on wakes the waiter, also
        before the result is awaited. ``waiter``: a new one, for :meth:`add`.
        """
        if self._is_over(deadline):
            return self._wait(None, met, deadline, news)
        waiter = waiter or Waiter()
        waiter.released.extend(conditions)
        waiter.timer = asyncio.get_running_loop().call_at(deadline, waiter.expire)
        self._watch(waiter)
        return self._wait(waiter, met, deadline, news)

    def add(self, waiter: Waiter, condition: Condition) -> None:
        """Let a parked request wait for one more condition. Nothing happens if it has gone."""
        if waiter.future is not None:
            self._push(waiter, condition)

    async def _wait(
        self,
        waiter: Waiter | None,
        met: Callable[[], bool],
        deadline: float,
        news: list[TopicPartition] | None,
    ) -> bool:
        if waiter is None:
            return False
        self.parked += 1
        try:
            while True:
                if waiter.future is not None:
                    await waiter.future
                if news is not None:
                    news.extend(condition.partition for condition in waiter.released)
                if met():
                    return True
                if waiter.expired or self._is_over(deadline):
                    return False
                self._watch(waiter)
        finally:
            self.parked -= 1
            if waiter.timer is not None:
                waiter.timer.cancel()
            waiter.future = None

    def _is_over(self, deadline: float) -> bool:
        return self._closed or asyncio.get_running_loop().time() >= deadline

    def _watch(self, waiter: Waiter) -> None:
        """Wait for what it was released from (at first: for all)."""
        waiter.future = asyncio.get_running_loop().create_future()
        for condition in waiter.released:
            self._push(waiter, condition)
        waiter.released.clear()

    def _push(self, waiter: Waiter, condition: Condition) -> None:
        heaps = self._heaps[condition.mark]
        heap = heaps.get(condition.partition)
        if heap is None:
            heap = heaps[condition.partition] = _Heap()
        heap.push(next(self._births), waiter, condition)
