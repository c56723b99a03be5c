"""Settings that brokers get one after the other, each with its restart: until the last one has them, they disagree."""

from __future__ import annotations

from minikafka.client.structs import NewTopic
from tests.sim.cluster_kit import ORDERS, Client, simulated, values


def test_a_minimum_of_isrs_that_is_raised_broker_by_broker_loses_nothing() -> None:
    """min.insync.replicas rises from 1 to 2 in the files of the controllers; broker 4, which leads, has 1 still.

    1. Broker 2 leaves the ISR. 2. Broker 4 acknowledges a record alone, by its own minimum. 3. Broker 2 is back, without
    that record, when 4 is restarted: the controller must not take 2 for an eligible leader replica by *its* minimum.
    """
    with simulated(brokers=4, voters=3, min_insync_replicas="1") as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([NewTopic(ORDERS.topic, replica_assignments={0: (4, 2)})]))
        client.send(b"0")
        cluster.settings["min.insync.replicas"] = "2"
        for node in cluster.voters:
            cluster.stop(node)
            cluster._configs.pop(node)
            cluster.restart(node)
            cluster.settle(60.0)
        cluster.until(lambda: set(cluster.partition(ORDERS).isr) == {2, 4}, 60.0, "both replicas to be in sync")
        cluster.stop(2)
        client.send(b"acknowledged")
        cluster.cut(4, 2)
        cluster.restart(2)
        cluster.until(lambda: cluster.image().alive(2), 60.0, "broker 2 to be let in")
        cluster.stop(4)
        cluster.run_for(10.0)
        cluster.sim.network.heal()
        cluster.restart(4)
        cluster.settle(60.0)
        assert values(cluster, cluster.leader_of(ORDERS)) == [b"0", b"acknowledged"]
