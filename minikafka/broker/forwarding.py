"""Requests that only the active controller answers, from clients that may ask any broker.

Kafka's brokers forward them (KIP-590), with the principal of the client (``envelopes.py``). A change is sent again only
while nothing of it can have been written; its answer goes out once this broker has applied it, so that the client's
next request here sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from minikafka import errors as kafka
from minikafka.ports import RequestContext, World
from minikafka.types import NO_NODE, Address, NodeId
from minikafka.wire.messages import Failed
from minikafka.wire.outcomes import failure_of

if TYPE_CHECKING:
    from minikafka.broker.metadata import MetadataCache

PAUSE_S = 0.1
"""Between two looks for a controller."""

APPLY_WAIT_S = 5.0
"""How long an answer waits until this broker has applied the change."""


class Forwarding:
    """Sends requests to the active controller, wherever it is."""

    def __init__(
        self,
        node_id: NodeId,
        world: World,
        metadata: MetadataCache,
        *,
        here: Callable[[str, object, RequestContext], Awaitable[Any]],
        send: Callable[[Address, object, RequestContext, float], Awaitable[Any]],
        controller: Callable[[], Address | None],
        timeout_s: float,
    ) -> None:
        self._node_id = node_id
        self._world = world
        self._metadata = metadata
        self._here = here
        self._send = send
        self._controller = controller
        self._timeout_s = timeout_s

    async def answer(self, api: str, request: Any, context: RequestContext) -> Any:
        """The controller's response. Raises RequestTimedOut with what became of the request, or what the controller
        raises.
        """
        timeout_s = max(getattr(request, "timeout_ms", 0) / 1000, self._timeout_s)
        deadline = self._world.clock.now() + timeout_s
        why = "the quorum has no leader"
        while self._world.clock.now() < deadline:
            try:
                response = await self._ask(api, request, context, deadline)
            except (kafka.NotController, kafka.Unreachable) as error:
                if isinstance(error, kafka.NotController) and error.outcome != kafka.NOT_WRITTEN:
                    raise
                why = str(error)
            except kafka.OutcomeUnknown as error:
                raise kafka.RequestTimedOut(
                    f"the controller did not answer {api}: {error}", outcome=kafka.UNKNOWN
                ) from None
            else:
                await self._applied(getattr(response, "metadata_offset", -1))
                return response
            await asyncio.sleep(PAUSE_S)
        raise kafka.RequestTimedOut(f"no controller took {api} in {timeout_s:g} s: {why}", outcome=kafka.NOT_WRITTEN)

    async def _ask(self, api: str, request: Any, context: RequestContext, deadline: float) -> Any:
        leader = self._metadata.leader_id
        if leader == self._node_id:
            return await self._here(api, request, context)
        address = self._controller() if leader != NO_NODE else None
        if address is None:
            raise kafka.NotController("no controller is known")
        response: Failed = await self._send(address, request, context, deadline)
        if response.error_code:
            raise failure_of(response)
        return response

    async def _applied(self, offset: int) -> None:
        """Wait until this broker's image has the change; a slow one does not hold the answer back for ever."""
        if not await self._metadata.until(lambda: self._metadata.image.offset >= offset, APPLY_WAIT_S):
            self._world.events("change_not_yet_applied", node=self._node_id, offset=offset)
