"""How late the event loop's timers come: what every heartbeat and every request waits before anybody looks at it."""

from __future__ import annotations

import asyncio

from minikafka.broker.meters import Histogram

# Four times a second: a stall of the length of a heartbeat is seen, and nobody notices the watching.
INTERVAL_S = 0.25


class LoopLag:
    """Watches the running loop from :meth:`start` to :meth:`stop`."""

    def __init__(self) -> None:
        self.seen = Histogram()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the running loop."""
        self._watch(asyncio.get_running_loop())

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_S
        self._timer = loop.call_at(due, self._on_time, loop, due)

    def _on_time(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.seen.observe(max(0, round((loop.time() - due) * 1e9)))
        self._watch(loop)
