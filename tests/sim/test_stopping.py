"""A stop that goes wrong is a stop all the same: whoever waits for the end learns of it."""

from __future__ import annotations

import pytest

from minikafka.sim.cluster import SimCluster
from tests.sim.cluster_kit import facts_of, simulated


async def fails() -> None:
    raise RuntimeError("boom")


def stopped(cluster: SimCluster) -> None:
    """Stop the broker; what its end raises is the caller's."""
    broker = cluster.brokers[1]

    async def stop() -> None:
        with pytest.raises(RuntimeError, match="boom"):
            await broker.stop()

    cluster.sim.spawn("n1", stop())
    cluster.until(broker._stopped.is_set, 60.0, "the broker to stop")


def test_a_bug_in_the_midst_of_a_stop_does_not_leave_a_broker_that_never_ends() -> None:
    """The process waited for ever, and held its port and its data directory."""
    with simulated(brokers=1, min_insync_replicas="1") as cluster:
        broker = cluster.brokers[1]
        broker.quorum.stop = fails  # type: ignore[method-assign]
        stopped(cluster)
        assert broker.failure == "stopping failed: RuntimeError: boom"
        assert facts_of(cluster, "broker_stopped")[-1]["clean"] is False
        assert not broker.world.disk.exists(".kafka_cleanshutdown")
