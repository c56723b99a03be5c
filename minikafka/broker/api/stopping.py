"""AwaitStop, an API of our own: answered when this broker stops, or when the time is up.

The active controller holds one such request at each broker. When the broker's process dies, the request's connection
ends without an answer (``quorum/controller_brokers.py``). One that does not wait shows which incarnation of the broker
is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from minikafka.tasks import Flag
from minikafka.wire.messages import AwaitStopRequest, AwaitStopResponse

HELD_MS_MAX = 10_000
"""A request that asks for more is answered after this time."""


class StoppingApi:
    """Requests that wait for the end of this broker."""

    def __init__(self, broker_epoch: Callable[[], int]) -> None:
        """``broker_epoch``: of the latest registration of this process; -1: it has not registered yet."""
        self._stopping = Flag()
        self._broker_epoch = broker_epoch

    def close(self) -> None:
        """Answer every request: the broker stops."""
        self._stopping.set()

    def handle_await_stop(self, request: AwaitStopRequest) -> AwaitStopResponse | Awaitable[AwaitStopResponse]:
        """Wait for the stop at most ``max_wait_ms``."""
        if request.max_wait_ms <= 0 or self._stopping.is_set():
            return self._response()
        return self._wait(min(request.max_wait_ms, HELD_MS_MAX) / 1000)

    async def _wait(self, seconds: float) -> AwaitStopResponse:
        await self._stopping.wait(asyncio.get_running_loop().time() + seconds)
        return self._response()

    def _response(self) -> AwaitStopResponse:
        return AwaitStopResponse(is_stopping=self._stopping.is_set(), broker_epoch=self._broker_epoch())
