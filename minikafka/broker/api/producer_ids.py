"""Producer ids, out of blocks that the controller gives this broker, and InitProducerId without a transactional id.

A producer that comes back with its own number gets the next epoch, which fences what it may still have under way.
With a transactional id, the transaction coordinator answers (``transaction_manager.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from minikafka.errors import LeaderNotAvailable
from minikafka.wire import messages as m

EPOCH_MAX = 2**15 - 1


class ProducerIds:
    """The broker's present block of producer ids."""

    def __init__(
        self,
        node_id: int,
        *,
        broker_epoch: Callable[[], int],
        ask_controller: Callable[[object], Awaitable[object | None]],
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._ask_controller = ask_controller
        self._next = 0
        self._end = 0
        self._allocating = asyncio.Lock()

    async def handle_init_producer_id(self, request: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
        """A fresh (id, 0), or the next epoch of the caller's own id."""
        if request.producer_id >= 0 and 0 <= request.producer_epoch < EPOCH_MAX:
            return m.InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)
        return m.InitProducerIdResponse(producer_id=await self.allocate(), producer_epoch=0)

    async def allocate(self) -> int:
        """A producer id that nobody has had. Raises LeaderNotAvailable while no controller gives a block."""
        async with self._allocating:
            if self._next >= self._end:
                await self._request_block()
            producer_id = self._next
            self._next += 1
        return producer_id

    async def _request_block(self) -> None:
        answer = await self._ask_controller(
            m.AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        )
        if not isinstance(answer, m.AllocateProducerIdsResponse):
            raise LeaderNotAvailable("no active controller answers at present: try again")
        if answer.error_code:
            # The controller's own code means something else to the client of this broker.
            raise LeaderNotAvailable(f"the controller refused a block of producer ids: {answer.error_message}")
        self._next, self._end = answer.producer_id_start, answer.producer_id_start + answer.producer_id_len
