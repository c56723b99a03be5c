"""Purgatory: requests that wait until a mark of a log reaches an offset (KAFKA-FACTS 3.8); see :class:`Mark`.

One waiter per request, over all the partitions that it asks about. The order is check, watch, check: a waiter looks at
the world itself after each wake-up, so a wake-up too many costs time and none can be lost. Log-end waiters are woken
right after the append, watermark waiters after durability: else the leader's and the followers' syncs run in series.
When a partition changes its role, all of its waiters are woken.

A wake-up only notes which requests are to look: it comes from the middle of an append or of a fetch, and what was
checked there must still hold on its last line. The looks, and the answers of requests that need not wait any longer,
follow in one callback for all that one turn of the loop has woken.

Each mark of each partition has a heap by offset: a wake-up touches those whom it reaches and nobody else. Who is gone
stays in the heaps and is dropped in passing: when a heap has doubled, the dead are swept out, so that it never holds
more than about twice the living, also where nothing ever happens and the same requests time out again and again.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from minikafka.parked import Parked
from minikafka.ports import CAUSE
from minikafka.types import Offset, TopicPartition

if TYPE_CHECKING:
    from minikafka.broker.meters import PurgatoryMeter

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


class Waiter(Parked):
    """One parked request. Its own result is True when its condition was met, False when its deadline passed first or
    the broker stops; it raises what the condition raised.
    """

    __slots__ = (
        "_began_ns",
        "_error",
        "_is_met",
        "_meter",
        "_owner",
        "cause",
        "deadline",
        "is_expired",
        "is_parked",
        "is_woken",
        "met",
        "news",
        "released",
        "timer",
    )

    def __init__(
        self,
        owner: Purgatory,
        met: Callable[[], bool],
        deadline: float,
        news: list[TopicPartition] | None,
        meter: PurgatoryMeter | None,
    ) -> None:
        super().__init__(self._outcome)
        self.met = met
        self.deadline = deadline
        self.news = news
        self.cause = CAUSE.get()
        self.is_parked = True
        """False: its entries in the heaps are dead."""
        self.is_woken = False
        """It will look."""
        self.is_expired = False
        """Its deadline has come, by its timer. Not by comparing times: a timer may fire a rounding error too early, and
        nothing would wake the request again.
        """
        self.released: list[Condition] = []
        """By what it was woken: these have left their heaps."""
        self.timer: asyncio.TimerHandle | None = None
        self._owner = owner
        self._is_met = False
        self._error: Exception | None = None
        self._meter = meter
        self._began_ns = meter.enter() if meter is not None else 0

    def wake(self) -> None:
        """Make it check soon."""
        if not self.is_woken:
            self.is_woken = True
            self._owner.will_look(self)

    def expire(self) -> None:
        """Its deadline has come."""
        self.is_expired = True
        self.wake()

    def look(self) -> bool:
        """Return True if it is complete. Then its result is known."""
        self.is_woken = False
        if self.news is not None:
            self.news.extend([condition.partition for condition in self.released])
        try:
            self._is_met = self.met()
        except Exception as error:  # noqa: BLE001 - raised where the result is taken
            self._error = error
            return True
        return self._is_met or self.is_expired

    def end(self) -> None:
        """Leave the purgatory."""
        if not self.is_parked:
            return
        self.is_parked = False
        self._owner.parked -= 1
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self._meter is not None:
            self.parked_ns = self._meter.leave(self._began_ns)
        self.met = _never  # entries in the heaps may outlive the request for long

    def cancel(self) -> None:
        """Give the request up."""
        self.end()
        super().cancel()

    def _outcome(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._is_met


def _never() -> bool:
    """What a request that has gone waits for."""
    return False


class _Heap:
    """Operations that wait for one mark of one partition, the nearest offset first."""

    __slots__ = ("entries", "sweep_size")

    def __init__(self) -> None:
        self.entries: list[tuple[Offset, int, Waiter, Condition]] = []
        self.sweep_size = SWEEP_SIZE_MIN

    def push(self, birth: int, waiter: Waiter, condition: Condition) -> None:
        if len(self.entries) >= self.sweep_size:
            self.entries = [entry for entry in self.entries if entry[2].is_parked]
            heapq.heapify(self.entries)
            self.sweep_size = max(SWEEP_SIZE_MIN, 2 * len(self.entries))
        heapq.heappush(self.entries, (condition.offset, birth, waiter, condition))

    def release(self, offset: Offset | None) -> None:
        """Wake those who wait for ``offset`` or less; None: everyone."""
        entries = self.entries
        while entries and (offset is None or entries[0][0] <= offset):
            _, _, waiter, condition = heapq.heappop(entries)
            if waiter.is_parked:
                waiter.released.append(condition)
                waiter.wake()


class Purgatory:
    """All parked requests of one broker."""

    def __init__(self) -> None:
        self._heaps: dict[Mark, dict[TopicPartition, _Heap]] = {mark: {} for mark in Mark}
        self._births = itertools.count()
        self._woken: list[Waiter] = []
        """They will look in the next turn of the loop."""
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
        """Return True if an operation waits for it (None: this mark of any partition).

        For callers that must compute where the mark is.
        """
        heaps = self._heaps[mark]
        if not heaps:
            return False
        found = heaps.values() if partition is None else [heaps[partition]] if partition in heaps else []
        return any(entry[2].is_parked for heap in found for entry in heap.entries)

    async def until(
        self,
        conditions: Sequence[Condition],
        met: Callable[[], bool],
        deadline: float,
    ) -> bool:
        """Wait until ``met()``; it is asked first, and after each wake-up.

        False when the deadline (on the loop's clock) passed first or the broker stops. What ``met`` raises ends it.
        """
        return met() or await self.park(conditions, met, deadline)

    def park(
        self,
        conditions: Sequence[Condition],
        met: Callable[[], bool],
        deadline: float,
        *,
        news: list[TopicPartition] | None = None,
        meter: PurgatoryMeter | None = None,
    ) -> Waiter:
        """As ``until`` for a caller that has found ``met`` false. What happens from this call on wakes the waiter.

        Partitions that woke it are added to ``news`` before ``met`` is asked. ``meter`` counts it.
        """
        waiter = Waiter(self, met, deadline, news, meter)
        self.parked += 1
        loop = asyncio.get_running_loop()
        if self._closed or loop.time() >= deadline:
            waiter.expire()
            return waiter
        waiter.timer = loop.call_at(deadline, waiter.expire)
        for condition in conditions:
            self._push(waiter, condition)
        return waiter

    def add(self, waiter: Waiter, condition: Condition) -> None:
        """Let a parked request wait for one more condition. Nothing happens if it has gone."""
        if waiter.is_parked:
            self._push(waiter, condition)

    def will_look(self, waiter: Waiter) -> None:
        """A waiter was woken."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._look)
        self._woken.append(waiter)

    def _look(self) -> None:
        """Let the woken look, and answer those that need not wait any longer. What this wakes looks a turn later."""
        woken = iter(self._woken)
        self._woken = []
        before = CAUSE.get()
        try:
            for waiter in woken:
                CAUSE.set(waiter.cause)
                self._look_of(waiter)
        finally:
            CAUSE.set(before)
            for waiter in woken:  # there are none, unless a bug has ended the loop above
                self.will_look(waiter)

    def _look_of(self, waiter: Waiter) -> None:
        if not waiter.is_parked:
            return  # cancelled since
        if waiter.look() or self._is_over(waiter.deadline):
            waiter.end()
            waiter.ready()
            return
        for condition in waiter.released:
            self._push(waiter, condition)
        waiter.released.clear()

    def _is_over(self, deadline: float) -> bool:
        return self._closed or asyncio.get_running_loop().time() >= deadline

    def _push(self, waiter: Waiter, condition: Condition) -> None:
        heaps = self._heaps[condition.mark]
        heap = heaps.get(condition.partition)
        if heap is None:
            heap = heaps[condition.partition] = _Heap()
        heap.push(next(self._births), waiter, condition)
