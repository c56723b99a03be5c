"""Returns memory to the operating system after many connections were closed.

glibc keeps what is freed for later allocations. A broker sets it up to keep nearly all of it (``process.py``), so that
large batches cost no page faults: after a burst of 5,000 connections it held 100 MB that nothing used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

CLOSINGS: Final = 1_000
"""Closed connections after which memory is returned; a broker with few clients never does it."""
PAUSE_S: Final = 5.0
"""From the closing that reaches CLOSINGS: more connections may follow, and memory is returned once for all of them."""


def trim_allocator() -> bool:
    """Let glibc return free pages to the operating system; return False where the C library cannot."""
    import ctypes  # noqa: PLC0415 - most brokers never need it, and it would make each start slower

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # other C libraries; TypeError is what Windows raises
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    trim(0)
    return True


class FreedMemory:
    """Counts closed connections, and calls ``trim`` some time after many were closed."""

    def __init__(self, trim: Callable[[], object] = trim_allocator) -> None:
        self._trim = trim
        self._closings = 0
        self._is_due = False

    def connection_closed(self) -> None:
        """Count a connection; call on the event loop."""
        self._closings += 1
        if self._closings >= CLOSINGS and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(PAUSE_S, self._return_memory)

    def _return_memory(self) -> None:
        self._closings, self._is_due = 0, False
        self._trim()
