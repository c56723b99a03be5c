"""A flag that tasks wait for, each of them at most until its own deadline.

As ``asyncio.Event`` in a block of ``asyncio.timeout_at``, which drivers would write around most of their waits. A wait
here takes one future and one timer, and cancels no task when its deadline comes.
"""

from __future__ import annotations

import asyncio
from math import inf


class Flag:
    """A flag, not set at first."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[bool]] = []

    def is_set(self) -> bool:
        """Return True if the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all tasks that wait for it."""
        self._is_set = True
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(True)

    def clear(self) -> None:
        """Take the flag back: later waits suspend their task."""
        self._is_set = False

    async def wait(self, deadline: float = inf) -> bool:
        """Wait until the flag is set. Return False if ``deadline`` (of the monotonic clock) comes first."""
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        timer = None if deadline == inf else loop.call_at(deadline, _expire, woken)
        self._waiting.append(woken)
        try:
            return await woken
        finally:
            self._waiting.remove(woken)
            if timer is not None:
                timer.cancel()


def _expire(woken: asyncio.Future[bool]) -> None:
    if not woken.done():
        woken.set_result(False)
