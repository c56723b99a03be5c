"""When a broker returns memory to the operating system: after many closed connections, once for all of them."""

from __future__ import annotations

import asyncio
import platform

from minikafka.sim.loop import SimLoop
from minikafka.world.connections import CLOSINGS, PAUSE_S, FreedMemory, trim_allocator


def test_memory_is_returned_once_after_many_closings():
    """Closings during the pause belong to it; later ones are counted from zero."""

    async def story() -> None:
        trims: list[float] = []
        loop = asyncio.get_running_loop()
        memory = FreedMemory(lambda: trims.append(loop.time()))
        began = loop.time()
        for _ in range(CLOSINGS - 1):
            memory.connection_closed()
        await asyncio.sleep(10 * PAUSE_S)
        assert trims == []
        memory.connection_closed()
        last = loop.time()
        for _ in range(3 * CLOSINGS):
            memory.connection_closed()
        await asyncio.sleep(10 * PAUSE_S)
        assert trims == [last + PAUSE_S]
        for _ in range(CLOSINGS):
            memory.connection_closed()
        await asyncio.sleep(10 * PAUSE_S)
        assert len(trims) == 2
        assert began < last

    loop = SimLoop(0)
    try:
        loop.run(story())
    finally:
        loop.close()


def test_glibc_is_trimmed_and_other_libraries_are_left_alone():
    """Nothing is raised on a system without the function."""
    assert trim_allocator() is (platform.libc_ver()[0] == "glibc")
