"""Waits on the loop that brokers run on: its timers fire on whole milliseconds, up to half of one too early."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from minikafka.broker.purgatory import Condition, Mark, Purgatory
from minikafka.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("wait_s", [0.0004, 0.1, 0.0107])
def test_a_parked_request_ends_at_its_deadline(run, wait_s: float):
    """S12, long poll: a timer that fires a moment before the deadline, by rounding, ends the wait too. It used to leave
    the request parked for good: a follower of an idle partition did not hear of the high watermark for 30 seconds.
    """

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(20 if wait_s < 0.05 else 3):
            purgatory = Purgatory()
            async with asyncio.timeout(60):
                is_enough = await purgatory.until(
                    [Condition(Mark.LOG_END, ORDERS, 5)], lambda: False, loop.time() + wait_s
                )
            assert not is_enough
            assert purgatory.parked == 0

    run(wait())
