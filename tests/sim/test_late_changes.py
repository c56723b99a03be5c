"""Requests of administrators that arrive a second time, long after they were answered: they destroy nothing more."""

from __future__ import annotations

import pytest

from minikafka.client.admin import AdminClient
from minikafka.client.settings import AdminConfig
from minikafka.client.structs import NewTopic
from minikafka.quorum.image import PartitionImage
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Deliver, Message, Verdict
from tests.sim.cluster_kit import ORDERS, Client, simulated, simulated_orders, values

HELD_S = 60.0


def state_of(cluster: SimCluster) -> PartitionImage:
    """The partition as the controller knows it."""
    state = cluster.partition(ORDERS)
    assert state is not None
    return state


def hold_first(cluster: SimCluster, api: str) -> list[Message]:
    """Hold the first request of ``api`` of a client on its way; it is in the result once it was sent."""
    held: list[Message] = []

    def struck(message: Message) -> Verdict | None:
        if held or message.api != api or message.kind != "request":
            return None
        held.append(message)
        return Deliver(HELD_S)

    cluster.sim.network.rule(struck, of_requests=True)
    return held


def impatient_admin(cluster: SimCluster, client: Client) -> AdminClient:
    """An admin client that sends a request again after a second without a response."""
    config = AdminConfig(bootstrap_servers=cluster.bootstrap, request_timeout_ms=1000)
    admin = AdminClient(config, client.world)
    client.run(admin.start())
    return admin


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("before", [-1, 2])
def test_a_late_copy_of_delete_records_deletes_nothing_more(before: int, is_created_again: bool) -> None:
    """1. DeleteRecords is held on its way, sent again, and answered. 2. More records are acknowledged, in the same topic
    or in one that was created again under its name. 3. The held request arrives.
    """
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all([b"0", b"1"])
        admin = impatient_admin(cluster, client)
        held = hold_first(cluster, "DeleteRecords")
        assert client.run(admin.delete_records({ORDERS: before})) == {ORDERS: 2}
        assert held
        if is_created_again:
            client.run(client.admin.delete_topics([ORDERS.topic]))
            cluster.create_topic(ORDERS.topic)
        sent = [b"2", b"3", b"4"]
        client.send_all(sent)
        cluster.run_for(HELD_S + 1.0)
        assert values(cluster, cluster.leader_of(ORDERS)) == sent


@pytest.mark.parametrize("names_partitions", [False, True])
def test_a_late_copy_of_an_unclean_election_elects_nobody(names_partitions: bool) -> None:
    """1. A request for an unclean election is held on its way, sent again, and answered. 2. The elected leader, alone in
    sync by now, acknowledges a record, and is away for a moment. 3. The held request arrives while only a replica
    lives that lacks the record.
    """
    with simulated(brokers=6, voters=3, min_insync_replicas="1") as cluster:
        client = Client(cluster)
        topic = NewTopic(ORDERS.topic, replica_assignments={0: (4, 5, 6)})
        client.run(client.admin.create_topics([topic]))
        client.send(b"0")
        for node in (6, 5, 4):
            cluster.crash(node)
            cluster.until(lambda gone=node: gone not in state_of(cluster).isr, 30.0, "its session to end")
        assert state_of(cluster).leader == -1
        cluster.restart(5)
        cluster.until(lambda: cluster.image().alive(5), 30.0, "broker 5 to be let in")
        admin = impatient_admin(cluster, client)
        held = hold_first(cluster, "ElectLeaders")
        assert client.run(admin.elect_leaders("unclean", [ORDERS] if names_partitions else None)) == {ORDERS: None}
        assert held
        client.send(b"acknowledged")
        cluster.crash(5)
        cluster.restart(4)
        cluster.until(lambda: cluster.image().alive(4) and not cluster.image().alive(5), 30.0, "the other one alone")
        assert state_of(cluster).leader == -1
        cluster.run_for(HELD_S)
        cluster.restart(5)
        cluster.until(lambda: state_of(cluster).leader != -1, 30.0, "a leader")
        cluster.run_for(5.0)
        assert values(cluster, 4)[-1] == b"acknowledged"


def test_a_late_copy_of_delete_topics_spares_a_topic_that_was_created_again() -> None:
    """1. DeleteTopics is held on its way, sent again, and answered. 2. The topic is created again, and records are
    acknowledged. 3. The held request arrives.
    """
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all([b"0", b"1"])
        admin = impatient_admin(cluster, client)
        held = hold_first(cluster, "DeleteTopics")
        client.run(admin.delete_topics([ORDERS.topic]))
        assert held
        cluster.create_topic(ORDERS.topic)
        client.send_all([b"2", b"3"])
        cluster.run_for(HELD_S + 1.0)
        assert values(cluster, cluster.leader_of(ORDERS)) == [b"2", b"3"]
