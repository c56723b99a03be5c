"""What this process keeps of the brokers that it has started (world/processes.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minikafka.world.processes import BrokerDied, ProcessCluster

ENDS_AT_ONCE = ("-c", "raise SystemExit(3)")


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_brokers_that_ended_by_themselves_leave_no_descriptor_open(tmp_path: Path) -> None:
    """One was left for each that died and was started again, and for each that was dead at the end."""
    cluster = ProcessCluster(brokers=1, data_dir=tmp_path, launcher=ENDS_AT_ONCE)
    broker = cluster.brokers[1]
    counts = []
    for _ in range(3):
        await broker.start()
        with pytest.raises(BrokerDied, match="exit code 3"):
            await broker.wait_ready(30)
        counts.append(descriptors())
    assert counts[1:] == counts[:1] * 2
    await cluster.stop()
    assert broker._lifeline is None
