"""Issue 13 §2: the replicas of a large new topic are made over several turns of the loop, so that nothing waits for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.broker.replica_manager import NEW_PER_TURN_MAX, ReplicaManager
from minikafka.client.structs import NewTopic
from minikafka.errors import ReplicaNotAvailable
from minikafka.sim.cluster import SimCluster
from minikafka.types import NodeId, TopicPartition
from tests.sim.cluster_kit import Client, simulated, values

PARTITIONS = 3 * NEW_PER_TURN_MAX + 4
LAST = TopicPartition("wide", PARTITIONS - 1)
BROKER = 1


def in_the_midst_of_creation(cluster: SimCluster, client: Client) -> ReplicaManager:
    """The replicas of one broker, after the first turn that made some of the topic."""

    async def create() -> None:
        await client.admin.create_topics([NewTopic("wide", PARTITIONS, 3)], wait=False)

    cluster.sim.spawn(client.name, create())
    replicas = cluster.brokers[BROKER].replicas
    cluster.until(lambda: replicas.has_more_to_take_up, 10.0, "a broker to make some replicas of many")
    return replicas


def hosted(cluster: SimCluster, node: NodeId = BROKER) -> int:
    return sum(name.topic == "wide" for name in cluster.brokers[node].replicas.partitions)


def test_a_turn_makes_a_bounded_number_of_replicas() -> None:
    """Issue 13 §2: requests pass between the turns; one for a replica that is still to come is retried."""
    with simulated() as cluster:
        client = Client(cluster)
        replicas = in_the_midst_of_creation(cluster, client)
        assert hosted(cluster) == NEW_PER_TURN_MAX
        with pytest.raises(ReplicaNotAvailable, match="about to make"):
            replicas.get(LAST)
        cluster.settle()
        assert [hosted(cluster, node) for node in cluster.nodes] == [PARTITIONS] * 3
        client.send(b"first", LAST)
        cluster.settle()
        assert [values(cluster, node, LAST) for node in cluster.nodes] == [[b"first"]] * 3


def test_a_topic_that_is_deleted_meanwhile_is_not_made() -> None:
    """Issue 13 §2: nobody would ever remove the folders of replicas that were made afterwards."""
    with simulated() as cluster:
        replicas = in_the_midst_of_creation(cluster, Client(cluster))
        image = cluster.brokers[BROKER].image
        without = replace(image, topics={}, topic_names={})
        replicas.apply(image, without)
        replicas.take_up_some(without)
        assert not replicas.has_more_to_take_up
        assert hosted(cluster) == 0


def test_a_broker_that_is_killed_meanwhile_makes_the_rest_at_its_start() -> None:
    """Issue 13 §2: a broker that starts makes what it lacks before it is unfenced."""
    with simulated() as cluster:
        client = Client(cluster)
        in_the_midst_of_creation(cluster, client)
        cluster.crash(BROKER)
        cluster.restart(BROKER)
        cluster.settle()
        assert hosted(cluster) == PARTITIONS
        client.send(b"first", LAST)
        cluster.settle()
        assert values(cluster, BROKER, LAST) == [b"first"]


def test_a_coordinator_begins_with_a_replica_that_a_later_turn_made() -> None:
    """The offsets topic is made when the first group asks for its coordinator, with fifty partitions by default."""
    with simulated(offsets_topic_num_partitions=str(PARTITIONS)) as cluster:
        client = Client(cluster)
        cluster.create_topic("orders")
        client.run(client.admin.list_consumer_group_offsets("g1"))
        cluster.settle()
        begun = [len(list(cluster.brokers[node].groups.shards)) for node in cluster.nodes]
        assert sum(begun) == PARTITIONS
