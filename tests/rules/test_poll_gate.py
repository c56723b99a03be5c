"""S31, S36: when a rebalance may take partitions away from an application."""

from __future__ import annotations

import asyncio

from minikafka.client.base_member import PollGate
from minikafka.sim.world import SimWorld


def test_all_who_wait_for_the_application_go_on_when_it_asks():
    """The rebalance, and the member that left because it was late: neither takes the other's place."""
    with SimWorld(1) as sim:
        sim.of("c")

        async def story() -> None:
            gate = PollGate(sim.loop.time)
            waiting = [asyncio.ensure_future(gate.hold()) for _ in range(2)]
            await asyncio.sleep(0.1)
            assert [each.done() for each in waiting] == [False, False]
            gate.enter()
            assert gate.holding
            await asyncio.wait_for(asyncio.gather(*waiting), 1.0)
            gate.release()
            assert not gate.holding

        sim.run(story())


def test_what_a_member_holds_back_is_no_request_of_the_application():
    """It works on records that it had before: a member that was fenced joined again, and its commit was accepted."""
    with SimWorld(1) as sim:
        sim.of("c")

        async def story() -> None:
            gate = PollGate(sim.loop.time)
            gate.holding = True  # it takes partitions, and its listener is being called
            waiting = asyncio.ensure_future(gate.hold())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            gate.enter()
            await asyncio.wait_for(waiting, 1.0)
            await asyncio.wait_for(gate.hold(), 1.0)  # it asks
            gate.leave()
            await asyncio.wait_for(gate.hold(), 1.0)  # it has asked, and has nothing
            gate.release()
            waiting = asyncio.ensure_future(gate.hold())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            gate.enter()
            await asyncio.wait_for(waiting, 1.0)

        sim.run(story())
