"""When a rebalance may take partitions away: while the application asks for records, and not while it works on some.

A call of ``getone`` or ``getmany`` says that everything handed out before is done with. So a rebalance waits for the
next such call (for at most max.poll.interval.ms, else the group goes on without this member), and between the moment
when it goes ahead and its end nothing is handed out. Without faults a record is then read once, however commits
interleave.

Rules for this file: one task asks for records. What :meth:`enter` does, it does at once: no turn of the loop lies
between the application's call and the decision to hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PollGate:
    """The application's side and the rebalance's side of one consumer."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.holding = False
        """Nothing may be handed out."""
        self.last_poll_at = now()
        self._now = now
        self._depth = 0
        self._waiting: list[asyncio.Future[None]] = []
        """Who waits for the application: the rebalance, and a member that has left until it is asked."""

    @property
    def is_polling(self) -> bool:
        """Is the application asking for records now?"""
        return self._depth > 0

    def enter(self) -> None:
        """The application asks: what it had is done with."""
        self._depth += 1
        self.last_poll_at = self._now()
        for waiting in self._waiting:
            if not waiting.done():
                self.holding = True
                waiting.set_result(None)

    def leave(self) -> None:
        """It has its records, or none."""
        self._depth -= 1
        self.last_poll_at = self._now()

    async def hold(self) -> None:
        """Wait until the application asks, and hand out nothing from then on."""
        if self._depth == 0 and not self.holding:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                self._waiting.remove(waiting)
        self.holding = True

    def release(self) -> None:
        """Records may be handed out again."""
        self.holding = False
