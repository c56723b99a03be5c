"""What this process keeps of the brokers that it has started (world/processes.py)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minikafka.world.processes import BrokerDied, ProcessCluster

ENDS_AT_ONCE = ("-c", "raise SystemExit(3)")


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def at_most(count: int) -> None:
    """Return when no more are open: the loop closes a pipe in one of its next turns."""
    async with asyncio.timeout(60):
        while descriptors() > count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_brokers_that_ended_by_themselves_leave_no_descriptor_open(tmp_path: Path) -> None:
    """One was left for each that died and was started again, and for each that was dead at the end."""
    cluster = ProcessCluster(brokers=1, data_dir=tmp_path, launcher=ENDS_AT_ONCE)
    broker = cluster.brokers[1]
    before = descriptors()
    for _ in range(3):
        await broker.start()
        with pytest.raises(BrokerDied, match="exit code 3"):
            await broker.wait_ready(60)
        await at_most(before + 1)  # the lifeline of the last one
    await cluster.stop()
    assert broker._lifeline is None
