"""Issue 13 §2: the replicas of a large new topic are made over several turns of the loop, so that nothing waits for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.broker.replica_manager import NEW_PER_TURN_MAX, ReplicaManager
from minikafka.client.structs import NewTopic
from minikafka.errors import DiskFailed, ReplicaNotAvailable
from minikafka.log.log_directory import LogDirectory
from minikafka.quorum.records import MetadataRecord, PartitionChange, PartitionRecord, RemoveTopic, TopicRecord
from minikafka.replication.follower import FollowerReplica
from minikafka.sim.cluster import SimCluster
from minikafka.types import NodeId, TopicPartition
from tests.sim.cluster_kit import Client, a_follower, facts_of, simulated, values

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


@pytest.mark.parametrize("again", [False, True])
def test_a_replica_that_cannot_be_removed_leaves_the_others_their_roles(monkeypatch: pytest.MonkeyPatch, again: bool):
    """The disk fails as a topic is deleted, and the same image moves the leader of another one away.

    This broker leaves in good order, which takes time. It must not lead meanwhile what others lead. A topic that was
    created again does not get the log of its predecessor, whose folder still has the name.
    """
    with simulated() as cluster:
        cluster.create_topic("apples", partitions=1)
        cluster.create_topic("orders", partitions=1)
        cluster.settle()
        name = TopicPartition("orders", 0)
        leader = cluster.leader_of(name)
        replicas = cluster.brokers[leader].replicas
        image = cluster.brokers[leader].image
        led = image.topics["orders"].partitions[0]
        other = next(node for node in led.isr if node != leader)
        change = PartitionChange(topic_id=image.topics["orders"].topic_id, partition=0, leader=other)
        records: list[MetadataRecord] = [RemoveTopic(topic_id=image.topics["apples"].topic_id), change]
        if again:
            records += [
                TopicRecord(name="apples", topic_id="again-again-again-again"[:22]),
                PartitionRecord(
                    topic_id="again-again-again-again"[:22],
                    partition=0,
                    replicas=led.replicas,
                    isr=led.isr,
                    leader=other,
                ),
            ]

        def fails(path: TopicPartition) -> str:
            raise DiskFailed(f"{path}: Input/output error")

        monkeypatch.setattr(replicas.logs, "delete", fails)

        async def apply() -> None:
            replicas.apply(image, image.staged(records))

        applying = cluster.sim.spawn(f"n{leader}", apply())
        cluster.sim.run_until(None, applying.done)
        applying.result()
        role = replicas.partitions[name].role
        assert isinstance(role, FollowerReplica)
        assert role.leader == other
        assert TopicPartition("apples", 0) not in replicas.partitions
        assert "Input/output error" in (cluster.brokers[leader].failure or "")


def failing(_: LogDirectory, partition: TopicPartition, target: str) -> str:
    """In place of what renames a log's folder."""
    raise DiskFailed(f"{partition} -> {target}: Input/output error")


def test_a_stray_that_cannot_be_set_aside_has_the_broker_leave_in_good_order(monkeypatch: pytest.MonkeyPatch):
    """Its topic was deleted while it was away. The broker halted, and what it led had to wait for its session to end."""
    with simulated() as cluster:
        cluster.create_topic("apples", partitions=1)
        cluster.settle()
        node = next(each for each in cluster.nodes if each != cluster.controller())
        cluster.stop(node)
        client = Client(cluster)
        client.run(client.admin.delete_topics(["apples"]))
        monkeypatch.setattr(LogDirectory, "_retire", failing)
        cluster.boot(node)
        cluster.until(lambda: bool(facts_of(cluster, "broker_stopped", node)[1:]), 60.0, "the broker to stop")
        failure = cluster.brokers[node].failure or ""
        assert failure.startswith("the disk failed: apples-0"), "no task of the broker's own failed"
        assert failure.endswith("Input/output error")


def test_a_former_topics_log_that_cannot_be_set_aside_is_not_the_new_topics(monkeypatch: pytest.MonkeyPatch):
    """A topic was created again while the broker was away, and the disk fails. The next change of the metadata must not
    make the new topic's replica in the folder that still holds the former one.
    """
    with simulated() as cluster:
        cluster.create_topic("apples", partitions=1)
        cluster.settle()
        name = TopicPartition("apples", 0)
        Client(cluster).send(b"of the former topic", name)
        node = a_follower(cluster, name)
        replicas, image = cluster.brokers[node].replicas, cluster.brokers[node].image
        new_id = "again-again-again-again"[:22]
        led = image.topics["apples"].partitions[0]
        records: list[MetadataRecord] = [
            RemoveTopic(topic_id=image.topics["apples"].topic_id),
            TopicRecord(name="apples", topic_id=new_id),
            PartitionRecord(topic_id=new_id, partition=0, replicas=led.replicas, isr=led.isr, leader=node),
        ]
        without, again = image.staged(records[:1]), image.staged(records)
        moved = again.staged([PartitionChange(topic_id=new_id, partition=0, leader=node)])

        def fails(source: str, target: str) -> None:
            raise DiskFailed(f"{source}: Input/output error")

        async def apply() -> None:
            del replicas.partitions[name], replicas.flushers[name]  # as when the broker has just started
            monkeypatch.setattr(replicas.logs._disk, "replace", fails)
            for old, new in ((without, again), (again, moved)):
                replicas.apply(old, new)

        applying = cluster.sim.spawn(f"n{node}", apply())
        cluster.sim.run_until(None, applying.done)
        applying.result()
        assert name not in replicas.partitions
        assert "Input/output error" in (cluster.brokers[node].failure or "")


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
