"""Data directories on file systems that ignore case, as those of macOS and Windows: Orders-0 and orders-0 are one folder.

Before, the second of two such topics was kept in the folder of the first: records of the one were read from the other,
and a restart left one log for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minikafka.client.structs import NewTopic
from minikafka.errors import InvalidTopic, KafkaStorageError
from minikafka.log.log_directory import LogDirectory
from minikafka.log.names import DELETED_FOLDER
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.world import SimWorld
from minikafka.types import NodeId, TopicPartition
from tests.sim.cluster_kit import ORDERS, Client, facts_of, folders, simulated, values

UPPER = TopicPartition("Orders", 0)
OLD, NEW = [b"old %d" % number for number in range(5)], [b"new %d" % number for number in range(3)]


@contextmanager
def ignoring_case(*nodes: NodeId, brokers: int = 3) -> Iterator[SimCluster]:
    """A cluster in which the disks of ``nodes`` ignore case."""
    with SimWorld(7) as sim:
        cluster = SimCluster(sim, brokers=brokers, settings={"min.insync.replicas": "1"})
        for node in nodes:
            sim.disk(node_name(node)).ignores_case = True
        cluster.boot()
        cluster.settle()
        yield cluster


def on_all(name: TopicPartition) -> NewTopic:
    """A topic with replicas on all brokers, also on one that is away."""
    return NewTopic(name.topic, replica_assignments={0: [1, 2, 3]})


def test_topics_in_other_case_are_refused_as_long_as_one_broker_ignores_case() -> None:
    """Also by brokers whose own disks distinguish case: a reassignment could bring the replicas together."""
    with ignoring_case(3) as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([NewTopic("orders", 1, 2)]))
        with pytest.raises(InvalidTopic, match=r"'Orders' would share a folder with 'orders': .* broker 3's data"):
            client.run(client.admin.create_topics([NewTopic("Orders", 1, 2)]))
        with pytest.raises(InvalidTopic, match="'Orders' would share a folder with 'orders'"):
            client.send(b"created by its producer", UPPER)
        client.send_all(NEW)


@pytest.mark.parametrize(("former", "present"), [(UPPER, ORDERS), (ORDERS, UPPER)])
@pytest.mark.parametrize("is_away", [False, True])
def test_a_topic_made_again_in_other_case_begins_empty(
    former: TopicPartition, present: TopicPartition, *, is_away: bool
) -> None:
    """While a broker was away it has missed the deletion, and learns of both topics at once."""
    with ignoring_case(1, 2, 3) as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([on_all(former)]))
        client.send_all(OLD, former)
        cluster.settle()
        if is_away:
            cluster.stop(3)
        client.run(client.admin.delete_topics([former.topic]))
        client.run(client.admin.create_topics([on_all(present)]))
        client.send_all(NEW, present)
        if is_away:
            cluster.restart(3)
        cluster.settle()
        for node in cluster.nodes:
            assert values(cluster, node, present) == NEW
            assert str(present) in folders(cluster, node)
            assert str(former) not in folders(cluster, node)
        for node in cluster.nodes:
            cluster.crash(node)
        cluster.boot()
        cluster.settle()
        assert [values(cluster, node, present) for node in cluster.nodes] == [NEW] * 3


def test_a_deletion_and_a_creation_in_one_image_are_applied_in_this_order() -> None:
    """A snapshot of the metadata brings both at once; changes are sorted by name, and upper case comes first."""
    with ignoring_case(1, 2, 3) as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([on_all(ORDERS)]))
        client.send_all(OLD)
        cluster.settle()
        broker = cluster.brokers[3]
        take_roles = broker._take_roles
        broker._take_roles = lambda: None  # type: ignore[method-assign]
        client.run(client.admin.delete_topics(["orders"]))
        client.run(client.admin.create_topics([on_all(UPPER)]))
        cluster.until(lambda: broker.image.partition(UPPER) is not None, 10.0, "both images")
        broker._take_roles = take_roles  # type: ignore[method-assign]
        client.send_all(NEW, UPPER)
        cluster.until(lambda: values(cluster, 3, UPPER) == NEW, 30.0, "the new topic's records")
        assert any(name.startswith("orders-0.") and name.endswith(DELETED_FOLDER) for name in folders(cluster, 3))


def test_a_broker_whose_disk_comes_to_ignore_case_changes_nothing() -> None:
    """A data directory was moved. The controller does not admit the broker, which names the topics and what to do."""
    with simulated(brokers=3) as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([NewTopic("Orders", 1, 3), NewTopic("orders", 1, 3)]))
        client.send_all(OLD, UPPER)
        client.send_all(NEW)
        cluster.settle()
        cluster.stop(3)
        before = folders(cluster, 3)
        cluster.sim.disk("n3").ignores_case = True
        cluster.restart(3)
        cluster.run_for(10.0)
        refused = facts_of(cluster, "registration_refused", 3)[-1]
        assert "topics 'Orders' and 'orders' would share a folder; move log.dirs" in str(refused["why"])
        assert folders(cluster, 3) == before
        assert 3 in cluster.living()
        cluster.sim.disk("n3").ignores_case = False
        cluster.crash(3)
        cluster.restart(3)
        cluster.settle()
        assert (values(cluster, 3, UPPER), values(cluster, 3)) == (OLD, NEW)


def test_no_log_is_created_in_the_folder_of_another_topic() -> None:
    """Whatever the metadata says: the folder holds records that were acknowledged."""
    with SimWorld(1) as sim:
        sim.disk("n1").ignores_case = True
        disk = sim.of("n1").disk

        async def story() -> None:
            logs = await LogDirectory.open(disk, cluster_id="c", node_id=1, directory_id="d")
            logs.create(UPPER, topic_id="7Xv2AAAAAAAAAAAAAAAAAA", config=logs._config_of(UPPER))
            logs.create(TopicPartition("Orders", 1), topic_id="7Xv2AAAAAAAAAAAAAAAAAA", config=logs._config_of(UPPER))
            with pytest.raises(KafkaStorageError, match="orders-0: the folder Orders-0 has this name in another case"):
                logs.create(ORDERS, topic_id="8Xv2AAAAAAAAAAAAAAAAAA", config=logs._config_of(ORDERS))

        sim.run(story())
