"""ListOffsets for many partitions leaves turns of the loop to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from minikafka.broker.api.offsets import LISTED_PER_TURN, handle_list_offsets
from minikafka.errors import NotLeaderOrFollower
from minikafka.wire.messages import LATEST, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse


class Replicas:
    """Leads nothing, and counts the partitions that were looked up."""

    def __init__(self) -> None:
        self.looked_up = 0

    def get(self, _: Any) -> Any:
        self.looked_up += 1
        raise NotLeaderOrFollower("another broker leads it")

    def current_leader(self, _: Any) -> None:
        return None


@pytest.mark.parametrize("count", [1, LISTED_PER_TURN, LISTED_PER_TURN + 1, 5 * LISTED_PER_TURN + 7])
async def test_partitions_are_listed_in_turns(count: int):
    """At most LISTED_PER_TURN in one turn; a usual request is answered at once; the order is the request's."""
    replicas: Any = Replicas()
    partitions = tuple(ListOffsetsPartition(topic="t", partition=at, timestamp=LATEST) for at in range(count))
    answer = handle_list_offsets(replicas, ListOffsetsRequest(partitions=partitions), session_alive=lambda: True)
    if isinstance(answer, Awaitable):
        task = asyncio.ensure_future(answer)
        before = replicas.looked_up
        while not task.done():
            await asyncio.sleep(0)
            assert replicas.looked_up - before <= LISTED_PER_TURN
            before = replicas.looked_up
        answer = task.result()
    else:
        assert count <= LISTED_PER_TURN
    assert isinstance(answer, ListOffsetsResponse)
    assert [each.partition for each in answer.partitions] == list(range(count))
