"""Purgatory: requests that wait for a log end, a high watermark or a log start to reach an offset (KAFKA-FACTS 3.8).

One waiter per request, over all the partitions that it asks about. The order is check, watch, check: a waiter looks at
the world itself after each wake-up, so a wake-up too many costs time and none can be lost. Log-end waiters are woken
right after the append, watermark waiters after durability: else the leader's and the followers' syncs run in series.
When a partition changes its role, everyone who waits for it is woken and finds out.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from minikafka.types import Offset, TopicPartition


class Mark(enum.Enum):
    """What can be waited for."""

    LOG_END = "log end"
    HIGH_WATERMARK = "high watermark"
    LOG_START = "log start"


class Condition(NamedTuple):
    """Wake when the partition's mark reaches ``offset``."""

    mark: Mark
    partition: TopicPartition
    offset: Offset


class Waiters:
    """All parked requests of one broker."""

    def __init__(self) -> None:
        self._watching: dict[tuple[Mark, TopicPartition], dict[int, tuple[Offset, asyncio.Future[None]]]] = {}
        self._births = 0
        self.parked = 0
        self._closed = False

    def wake(self, mark: Mark, partition: TopicPartition, offset: Offset) -> None:
        """The mark has reached ``offset``: release those who wait for that or less."""
        for wanted, future in self._watching.get((mark, partition), {}).values():
            if wanted <= offset and not future.done():
                future.set_result(None)

    def wake_all(self, partition: TopicPartition) -> None:
        """The partition's role has changed: release everyone who waits for it."""
        for mark in Mark:
            for _, future in self._watching.get((mark, partition), {}).values():
                if not future.done():
                    future.set_result(None)

    def close(self) -> None:
        """The broker stops: release everyone for good. Later waits end at once."""
        self._closed = True
        for watching in self._watching.values():
            for _, future in watching.values():
                if not future.done():
                    future.set_result(None)

    def is_watched(self, mark: Mark, partition: TopicPartition) -> bool:
        """Does anybody wait for it? For callers to whom finding out where the mark stands costs something."""
        return (mark, partition) in self._watching

    async def until(
        self,
        conditions: Sequence[Condition],
        met: Callable[[], bool],
        deadline: float,
        *,
        just_asked: bool = False,
    ) -> bool:
        """Wait until ``met()``; it is asked first (unless the caller has ``just_asked``), and after each wake-up.

        False when the deadline (on the loop's clock) passed first or the broker stops. What ``met`` raises ends the
        wait.
        """
        loop = asyncio.get_running_loop()
        while just_asked or not met():
            just_asked = False
            if self._closed or loop.time() >= deadline:
                return False
            woken = loop.create_future()
            timer = loop.call_at(deadline, _release, woken)
            self._births += 1
            birth = self._births
            for mark, partition, offset in conditions:
                self._watching.setdefault((mark, partition), {})[birth] = (offset, woken)
            self.parked += 1
            try:
                await woken
            finally:
                self.parked -= 1
                timer.cancel()
                self._forget(conditions, birth)
        return True

    def _forget(self, conditions: Sequence[Condition], birth: int) -> None:
        for mark, partition, _ in conditions:
            watching = self._watching.get((mark, partition))
            if watching is not None:
                watching.pop(birth, None)
                if not watching:
                    del self._watching[mark, partition]


def _release(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
