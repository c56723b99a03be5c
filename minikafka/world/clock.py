"""The Clock port on the system's clocks."""

from __future__ import annotations

import asyncio
import time

from minikafka.world.machine_faults import MachineFaults


class SystemClock:
    """The running loop's clock and the machine's calendar; build it inside the loop."""

    def __init__(self, faults: MachineFaults | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._faults = faults or MachineFaults()

    def now(self) -> float:
        """Monotonic seconds (uvloop steps by a millisecond)."""
        return self._loop.time()

    def ticks_ns(self) -> int:
        """Monotonic nanoseconds for metrics."""
        return time.perf_counter_ns()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + self._faults.calendar_ahead_ms
