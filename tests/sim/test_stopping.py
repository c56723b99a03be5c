"""A stop that goes wrong is a stop all the same: whoever waits for the end learns of it."""

from __future__ import annotations

import pytest

from minikafka.quorum.records import PartitionChange
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.wire.messages import BrokerHeartbeatRequest
from tests.sim.cluster_kit import ORDERS, a_follower, facts_of, simulated


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


def test_a_late_heartbeat_does_not_leave_a_partition_to_a_replica_that_has_died() -> None:
    """Seed 940000448: the controller had stood still, and read what the process had sent before it died."""
    with simulated(min_insync_replicas="1") as cluster:
        cluster.create_topic("orders", replication_factor=2)
        cluster.settle()
        leader = cluster.leader_of(ORDERS)
        [follower] = set(cluster.partition(ORDERS).isr) - {leader}  # type: ignore[union-attr]
        image = cluster.image()
        assert image is not None
        assert cluster.controller() != follower
        late = BrokerHeartbeatRequest(
            broker_id=follower, broker_epoch=image.brokers[follower].broker_epoch, current_metadata_offset=image.offset
        )
        cluster.power_cut(follower)
        cluster.sim.spawn(f"n{leader}", cluster.brokers[leader].stop())
        cluster.run_for(0.5)
        world = cluster.asking_world()
        address = cluster.address_of(cluster.controller())
        assert not cluster.run(call(world.network, address, late, world.clock.now() + 5.0)).error_code
        cluster.run_for(1.0)
        cluster.boot(follower)  # the next incarnation answers as well, and may not register yet
        cluster.run_for(1.0)
        assert facts_of(cluster, "registration_refused", follower)
        assert cluster.leader_of(ORDERS) == leader
        assert facts_of(cluster, "controlled_shutdown_begun") == []


def test_a_controlled_shutdown_begins_as_soon_as_another_replica_has_answered() -> None:
    """It need not wait for the next heartbeat, which comes within ``broker.heartbeat.interval.ms``."""
    with simulated(min_insync_replicas="1", broker_heartbeat_interval_ms="4000") as cluster:
        cluster.create_topic("orders")
        cluster.settle()
        leader = cluster.leader_of(ORDERS)
        cluster.sim.spawn(f"n{leader}", cluster.brokers[leader].stop())
        took_s = cluster.until(lambda: cluster.leader_of(ORDERS) != leader, 10.0, "another leader")
        assert took_s < 1.0


def test_a_role_that_the_metadata_gives_in_the_midst_of_a_stop_is_not_taken() -> None:
    """Seed 950100889: the coordinator of such a leader waited on a purgatory that was closed, and took all of the loop."""
    with simulated() as cluster:
        cluster.create_topic("orders")
        cluster.settle()
        node = a_follower(cluster)
        broker, image = cluster.brokers[node], cluster.brokers[node].image
        change = PartitionChange(topic_id=image.topics["orders"].topic_id, partition=0, leader=node)
        stop_quorum = broker.quorum.stop

        async def hears_of_it() -> None:
            broker.metadata._show(image.staged([change]))
            await stop_quorum()

        broker.quorum.stop = hears_of_it  # type: ignore[method-assign]
        cluster.sim.spawn(f"n{node}", broker.stop())
        cluster.until(broker._stopped.is_set, 60.0, "the broker to stop")
        assert broker.replicas.partitions[ORDERS].role is None
