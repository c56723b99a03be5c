"""A flag to wait for until a deadline: who is woken, when a wait ends, and what a cancelled one leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minikafka.sim.world import SimWorld
from minikafka.tasks import Flag


def run(body: Callable[[SimWorld, Flag], Coroutine[Any, Any, None]]) -> SimWorld:
    sim = SimWorld(1)
    sim.run(body(sim, Flag()))
    return sim


def test_set_wakes_every_waiter_even_if_the_flag_is_cleared_at_once() -> None:
    """Drivers clear the flag, look, and wait again: no wake-up may be lost between."""

    async def body(_: SimWorld, flag: Flag) -> None:
        waiting = [asyncio.ensure_future(flag.wait(deadline)) for deadline in (5.0, float("inf"))]
        await asyncio.sleep(1)
        flag.set()
        flag.clear()
        assert await asyncio.gather(*waiting) == [True, True]
        assert not flag.is_set()

    run(body)


def test_the_deadline_ends_a_wait() -> None:
    """Each waiter has its own deadline; one that has passed suspends the task all the same, so that others run."""

    async def body(sim: SimWorld, flag: Flag) -> None:
        later = asyncio.ensure_future(flag.wait(5.0))
        assert not await flag.wait(3.0)
        assert sim.loop.now == 3.0
        seen: list[str] = []
        sim.loop.call_soon(seen.append, "another callback")
        assert not await flag.wait(2.0)
        assert seen == ["another callback"]
        assert not later.done()
        assert not await later
        assert sim.loop.now == 5.0

    run(body)


def test_a_flag_that_is_set_is_not_waited_for() -> None:
    """Not even for a turn of the loop."""

    async def body(sim: SimWorld, flag: Flag) -> None:
        flag.set()
        sim.loop.call_soon(flag.clear)
        assert await flag.wait(-1.0)
        assert flag.is_set()

    run(body)


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    """Neither its timer nor its place among the waiters; the flag serves the others."""

    async def body(_: SimWorld, flag: Flag) -> None:
        cancelled, other = (asyncio.ensure_future(flag.wait(60.0)) for _ in range(2))
        await asyncio.sleep(1)
        cancelled.cancel()
        flag.set()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await other

    sim = run(body)
    sim.run_until()  # as long as there is a timer
    assert sim.loop.now == 1.0
