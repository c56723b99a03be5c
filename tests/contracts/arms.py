"""One test body, run in the simulated world and in the real one.

A contract test is ``@contract async def test_x(arm)``; it runs once per arm. If the arms disagree, the simulator tests
a different system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
import uvloop

from minikafka.ports import World
from minikafka.sim.world import SimWorld
from minikafka.types import Address
from minikafka.world.real import RealWorld, real_world

T = TypeVar("T")


class Arm(Protocol):
    """What a contract test may do."""

    simulated: bool

    def world(self, node: str) -> World:
        """The ports of a new incarnation of ``node``."""

    async def on(self, node: str, coro: Coroutine[Any, Any, T]) -> T:
        """Run as that node."""

    async def die(self, node: str) -> None:
        """End the node's incarnation as kill -9 does."""

    def address(self, node: str, port: int = 0) -> Address:
        """Where a server of that node would listen."""


class SimulatedArm:
    """Everything in one SimWorld."""

    simulated = True

    def __init__(self, _: Path) -> None:
        self.sim = SimWorld(1)

    def world(self, node: str) -> World:
        return self.sim.of(node)

    async def on(self, node: str, coro: Coroutine[Any, Any, T]) -> T:
        return await self.sim.spawn(node, coro)

    async def die(self, node: str) -> None:
        self.sim.kill(node)

    def address(self, node: str, port: int = 0) -> Address:
        return Address(node, port)

    def run(self, body: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        with self.sim:
            self.sim.run(body(self))


class RealArm:
    """Loopback and a temporary folder, on asyncio's loop or uvloop's."""

    simulated = False
    runner: Callable[[Coroutine[Any, Any, None]], None] = staticmethod(asyncio.run)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._worlds: dict[str, RealWorld] = {}

    def world(self, node: str) -> World:
        real = self._worlds[node] = real_world(data_dir=str(self._folder / node))
        return real.world

    async def on(self, node: str, coro: Coroutine[Any, Any, T]) -> T:
        return await coro

    async def die(self, node: str) -> None:
        await self._worlds.pop(node).kill()

    def address(self, node: str, port: int = 0) -> Address:
        return Address("127.0.0.1", port)

    def run(self, body: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            try:
                async with asyncio.timeout(120):
                    await body(self)
            finally:
                for real in self._worlds.values():
                    await real.close()

        type(self).runner(whole())


class UvloopArm(RealArm):
    """As brokers run."""

    runner = staticmethod(uvloop.run)


ARMS = {"simulated": SimulatedArm, "asyncio": RealArm, "uvloop": UvloopArm}


def contract(body: Callable[[Arm], Awaitable[None]]) -> Callable[..., None]:
    """Make one plain test per arm of an async body."""

    @pytest.mark.parametrize("arm_name", sorted(ARMS))
    def test(arm_name: str, tmp_path: Path) -> None:
        ARMS[arm_name](tmp_path).run(body)

    test.__name__ = body.__name__
    test.__qualname__ = body.__qualname__
    test.__doc__ = body.__doc__
    test.__module__ = body.__module__
    return test


async def outcome(call: Awaitable[T]) -> T | type[BaseException]:
    """The result, or the type of what was raised."""
    try:
        return await call
    except Exception as error:
        return type(error)
