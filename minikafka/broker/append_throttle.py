"""How much is written between two looks at the network: heartbeats and votes must not wait for a flood of batches.

An event loop sees what has arrived only once per turn, and appends of many requests may share one turn. A task that is
about to append asks here first, *before* its checks: between a check and the append that it allows nothing may happen.
"""

from __future__ import annotations

import asyncio

BYTES_PER_TURN_MAX = 4 * 1024 * 1024
"""A few milliseconds of checksums and page cache."""


class AppendThrottle:
    """The bytes that one broker appends, counted from pause to pause."""

    def __init__(self, bytes_max: int = BYTES_PER_TURN_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ending = False

    def take(self, size: int) -> bool:
        """Return True if these bytes may be appended in this turn of the loop. One batch may be of any size.

        Turns that nobody ended count on, which costs a pause too many per ``bytes_max`` and saves watching every turn.
        """
        if self._bytes >= self._bytes_max:
            return False
        self._bytes += size
        return True

    async def admit(self, size: int) -> None:
        """Return in the first turn in which these bytes may be appended."""
        while not self.take(size):
            if not self._ending:
                self._ending = True
                asyncio.get_running_loop().call_soon(self._begin)
            await asyncio.sleep(0)

    def _begin(self) -> None:
        self._ending = False
        self._bytes = 0
