"""Matching of clients' regular expressions beside other requests: in turns of the loop, one expression after the other.

A match takes no longer than the name and the automaton are long, and an expression may have to be matched with ten
thousand names. No request may hold the loop for that long, nor may a hundred that do so together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from minikafka.errors import CoordinatorLoadInProgress

WAITING_MAX: Final = 16
"""Requests that wait until their expression is matched; further ones are refused with a retriable error."""


class RegexTurns:
    """The expressions that one broker matches for clients."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, steps: Iterator[None]) -> None:
        """Take all steps; a single one without waiting for others. Raises CoordinatorLoadInProgress."""
        if next(steps, self) is self:
            return
        if self._waiting >= WAITING_MAX:
            raise CoordinatorLoadInProgress(
                f"{self._waiting} regular expressions are being matched; try again, or send a simpler one"
            )
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(0)
                for _ in steps:
                    await asyncio.sleep(0)
        finally:
            self._waiting -= 1
