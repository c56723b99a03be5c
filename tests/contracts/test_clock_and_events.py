"""The Clock and Events ports, simulated and real."""

from __future__ import annotations

import asyncio

from minikafka.ports import CAUSE
from tests.contracts.arms import Arm, contract


@contract
async def test_now_is_the_loops_own_clock(arm: Arm):
    """Deadlines computed from now() are good for asyncio.timeout_at."""
    clock = arm.world("n1").clock
    loop = asyncio.get_running_loop()
    assert loop.time() <= clock.now() <= loop.time()
    start, ticks = clock.now(), clock.ticks_ns()
    await asyncio.sleep(0.02)
    assert clock.now() - start >= 0.018
    assert clock.ticks_ns() > ticks


@contract
async def test_timers_say_when_they_are_due(arm: Arm):
    """Code that prolongs a timer compares (a muted client, a fault)."""
    del arm
    loop = asyncio.get_running_loop()
    timer = loop.call_at(loop.time() + 60, lambda: None)
    assert 59 < timer.when() - loop.time() < 61
    assert not timer.cancelled()
    timer.cancel()
    assert timer.cancelled()


@contract
async def test_the_calendar_is_in_milliseconds_since_1970(arm: Arm):
    """Record timestamps."""
    assert 1_600_000_000_000 < arm.world("n1").clock.wall_ms() < 4_000_000_000_000


@contract
async def test_events_take_any_facts(arm: Arm):
    """Rules tell sets, tuples, bytes and None; the sink must not fail on them."""
    events = arm.world("n1").events
    token = CAUSE.set("request-1")
    events("isr_shrunk", partition=("orders", 0), isr={3, 1}, leader=None, kind="a fact may be named so", data=b"\xff")
    CAUSE.reset(token)


@contract
async def test_randomness_is_forked_per_node(arm: Arm):
    """Two nodes' jitter must differ, or elections tie for ever."""
    assert arm.world("n1").random.random() != arm.world("n2").random.random()
