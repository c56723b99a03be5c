"""Long work in short turns: other requests are served in between, so none of them waits for all of it."""

from __future__ import annotations

import asyncio

from minikafka.config import KIB

# Some milliseconds of reading or writing JSON.
TURN_BYTES = 64 * KIB
ITEM_BYTES = 250
"""What an item costs beside its bytes, as bytes."""


class Turns:
    """The work since the last turn of others."""

    def __init__(self) -> None:
        self._done = 0

    async def after(self, size: int) -> None:
        """One more item of ``size`` bytes is done."""
        self._done += size + ITEM_BYTES
        if self._done >= TURN_BYTES:
            self._done = 0
            await asyncio.sleep(0)
