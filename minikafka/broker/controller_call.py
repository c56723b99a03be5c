"""A broker's own requests to the active controller, given up once another node has taken its place.

The process of the former controller may be stopped or cut off. A failover must not take longer by the timeout of a
request to it. The caller repeats the request at the new controller, so this is only for requests that may arrive twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from minikafka.errors import OutcomeUnknown
from minikafka.ports import World
from minikafka.rpc import call
from minikafka.types import Address


class ControllerCall:
    """One request at a time to the active controller; ``controller`` returns its address, None while it is unknown."""

    def __init__(self, world: World, controller: Callable[[], Address | None]) -> None:
        self._world = world
        self._controller = controller
        self._sent_to: Address | None = None
        self._under_way: asyncio.Timeout | None = None

    def on_news(self) -> None:
        """Give up the request under way if another controller is known. The former one may still lead without it."""
        under_way = self._under_way
        if under_way is not None and self._controller() not in (None, self._sent_to) and not under_way.expired():
            under_way.reschedule(asyncio.get_running_loop().time())

    async def send(self, controller: Address, request: object, timeout_s: float) -> Any:
        """Return the response, whose errors the caller reads. Raises what `rpc.call` raises; OutcomeUnknown also when
        the request was given up.
        """
        self._sent_to = controller
        try:
            async with asyncio.timeout_at(None) as self._under_way:
                return await call(self._world.network, controller, request, self._world.clock.now() + timeout_s)
        except TimeoutError:
            raise OutcomeUnknown("another node has become the active controller") from None
        finally:
            self._under_way = None
