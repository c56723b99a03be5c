"""Large requests of all connections take turns: one step of one of them in each turn of the loop.

To decode, to handle and to encode a request of four thousand partitions takes 10 to 20 ms each. A hundred clients that
sent one at the same time held the loop for less than 50 ms at a time, but for 11 s in all before it served anything
else: the broker's own heartbeats were late, and it lost its session. Small requests are served in between now.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LargeTurns:
    """The large requests of one broker, the longest waiting first."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, step: Callable[[], None]) -> None:
        """Call ``step`` in a turn of its own, at the earliest in the next one."""
        self._waiting.append(step)
        if len(self._waiting) == 1:
            self._plan()

    async def next(self) -> None:
        """Return in a turn in which no other large request does anything."""
        turn = asyncio.get_running_loop().create_future()
        self.call(lambda: None if turn.done() else turn.set_result(None))
        await turn

    def _plan(self) -> None:
        asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        step = self._waiting.popleft()
        if self._waiting:
            self._plan()
        step()
