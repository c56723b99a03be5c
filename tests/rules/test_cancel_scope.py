"""A block that others may end: what is cancelled, where the task goes on, and whose cancellation counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minikafka.sim.world import SimWorld
from minikafka.tasks import CancelScope


def run(body: Callable[[SimWorld], Coroutine[Any, Any, None]]) -> None:
    sim = SimWorld(1)
    sim.run(body(sim))


async def slept(scope: CancelScope, seen: list[str]) -> str:
    try:
        with scope:
            await asyncio.sleep(60)
            return "slept"
    finally:
        seen.append("left")
    return "ended"


def test_a_block_that_is_ended_cancels_its_wait_and_the_task_goes_on_behind_it() -> None:
    """Twice is as good as once, and the task does not count as cancelled."""

    async def body(sim: SimWorld) -> None:
        scope, seen = CancelScope(), list[str]()
        task = asyncio.ensure_future(slept(scope, seen))
        await asyncio.sleep(1)
        scope.end()
        scope.end()
        assert await task == "ended"
        assert (sim.loop.now, seen, task.cancelling()) == (1.0, ["left"], 0)

    run(body)


def test_a_block_that_has_ended_by_itself_is_not_ended_again() -> None:
    """News that come at the same instant as the response, or later, do not touch what the task does next."""

    async def body(sim: SimWorld) -> None:
        scope, seen = CancelScope(), list[str]()
        task = asyncio.ensure_future(slept(scope, seen))
        await asyncio.sleep(0)
        sim.loop.call_at(60.0, scope.end)  # its timer comes behind that of the sleep
        assert await task == "slept"
        scope.end()
        await asyncio.sleep(1)
        assert seen == ["left"]

    run(body)


@pytest.mark.parametrize("is_ended_first", [True, False])
def test_a_task_that_others_cancel_is_cancelled(is_ended_first: bool) -> None:
    """Also if its block is ended in the same turn."""

    async def body(_: SimWorld) -> None:
        scope, seen = CancelScope(), list[str]()
        task = asyncio.ensure_future(slept(scope, seen))
        await asyncio.sleep(1)
        if is_ended_first:
            scope.end()
        task.cancel()
        scope.end()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["left"]

    run(body)


def test_what_is_raised_in_a_block_leaves_it() -> None:
    """An error of the call, also one that its clean-up makes of the cancellation."""

    async def body(_: SimWorld) -> None:
        scope = CancelScope()
        with pytest.raises(ValueError, match="its clean-up"), scope:
            try:
                asyncio.get_running_loop().call_later(1.0, scope.end)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ValueError("its clean-up") from None
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0

    run(body)
