"""Settings altered at run time take effect on running partitions, one test a kind; and where each value comes from."""

from __future__ import annotations

import pytest

from minikafka.broker.log_maintenance import RETENTION_FIRST_S
from minikafka.client.structs import ConfigResource, NewTopic
from minikafka.config import AT_RUN_TIME
from minikafka.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from minikafka.sim.cluster import SimCluster
from minikafka.types import NO_NODE
from minikafka.wire.admin import SOURCE_NAMES
from tests.sim.cluster_kit import ORDERS, Client, on_disk, simulated


def one_topic(cluster: SimCluster) -> Client:
    cluster.create_topic("orders", partitions=1)
    return Client(cluster)


def alter(client: Client, kind: str, name: str, **settings: str | None) -> None:
    """Settings with ``_`` for ``.``; None deletes. Returns when every live broker uses them."""
    told = {key.replace("_", "."): value for key, value in settings.items()}
    client.run(client.admin.incremental_alter_configs([ConfigResource(kind, name, told)]))


@pytest.mark.parametrize("kind, name", [("topic", "orders"), ("broker", "")])
def test_a_smaller_segment_is_rolled_at_the_next_append(kind: str, name: str):
    """segment.bytes, of a topic and of all brokers: on every replica."""
    with simulated() as cluster:
        client = one_topic(cluster)
        client.send_all([b"x" * 200] * 3)
        setting = "segment_bytes" if kind == "topic" else "log_segment_bytes"
        alter(client, kind, name, **{setting: "400"})
        client.send_all([b"x" * 200] * 3)
        cluster.settle()
        assert [len(on_disk(cluster, node, "orders-0", ".log")) for node in cluster.nodes] == [4, 4, 4]


def test_a_shorter_retention_deletes_at_the_next_check():
    """retention.ms: old segments go, on the leader and then on the followers; later records stay."""
    with simulated(log_retention_check_interval_ms="5000") as cluster:
        client = one_topic(cluster)
        alter(client, "topic", "orders", segment_bytes="300")
        client.send_all([b"x" * 200] * 4)
        cluster.run_for(RETENTION_FIRST_S)
        assert cluster.replica(1, ORDERS).log.start_offset == 0
        alter(client, "topic", "orders", retention_ms="1000")
        cluster.run_for(12.0)
        assert [cluster.replica(node, ORDERS).log.start_offset for node in cluster.nodes] == [4, 4, 4]
        alter(client, "topic", "orders", retention_ms=None)
        client.send_all([b"x" * 200] * 2)
        cluster.run_for(12.0)
        assert cluster.replica(1, ORDERS).log.start_offset == 4


def test_a_larger_message_is_taken_once_it_is_allowed():
    """max.message.bytes, by the default of all brokers and then by the topic's own."""
    with simulated() as cluster:
        client = one_topic(cluster)
        alter(client, "broker", "", message_max_bytes="500")
        refused = client.tell(cluster.leader_of(ORDERS), b"x" * 1000, acks=-1)
        assert refused.error_code == 10
        alter(client, "topic", "orders", max_message_bytes="5000")
        assert client.tell(cluster.leader_of(ORDERS), b"x" * 1000, acks=-1).error_code == 0


def test_fsync_before_acknowledging_holds_from_the_next_acknowledgement():
    """flush.messages=1: what lies in the page cache is synced too, and then every acknowledgement waits for the disks;
    switched off again, acknowledgements no longer wait.
    """
    with simulated() as cluster:
        client = one_topic(cluster)
        client.send_all([b"a", b"b"])
        logs = [cluster.replica(node, ORDERS).log for node in cluster.nodes]
        assert all(log.synced_end < log.end_offset for log in logs)
        alter(client, "topic", "orders", flush_messages="1")
        cluster.run_for(1.0)
        assert [log.synced_end for log in logs] == [2, 2, 2]
        client.send(b"c")
        assert [log.synced_end for log in logs] == [3, 3, 3]
        alter(client, "topic", "orders", flush_messages=None)
        client.send(b"d")
        assert all(log.synced_end < log.end_offset for log in logs)


@pytest.mark.parametrize("kind, name", [("topic", "orders"), ("broker", "")])
def test_a_partition_without_a_leader_gets_one_when_losing_records_is_allowed(kind: str, name: str):
    """unclean.leader.election.enable (S20): at once, not at the next of the five-minute checks."""
    with simulated() as cluster:
        client = Client(cluster)
        new = NewTopic("orders", replica_assignments={0: (1, 2)}, topic_configs={"min.insync.replicas": "1"})
        client.run(client.admin.create_topics([new]))
        client.send(b"a")
        cluster.crash(2)
        cluster.until(lambda: cluster.partition(ORDERS).isr == (1,), 30.0, "an ISR of one")
        cluster.crash(1)
        cluster.restart(2)
        cluster.until(lambda: cluster.controller() != NO_NODE, 30.0, "a controller")
        cluster.until(lambda: cluster.leader_of(ORDERS) == NO_NODE, 30.0, "the partition to be without a leader")
        cluster.until(lambda: cluster.brokers[cluster.controller()].image.eligible(2), 30.0, "broker 2 to be back")
        cluster.run_for(5.0)
        assert cluster.leader_of(ORDERS) == NO_NODE
        alter(client, kind, name, unclean_leader_election_enable="true")
        assert cluster.leader_of(ORDERS) == 2


def test_where_each_value_comes_from():
    """KIP-226: the topic, the broker, all brokers, what it was started with, the default; the one that counts first."""
    with simulated(log_retention_bytes="7000") as cluster:
        client = one_topic(cluster)
        alter(client, "topic", "orders", retention_ms="1")
        alter(client, "broker", "2", log_retention_ms="2")
        alter(client, "broker", "", log_retention_ms="3", log_segment_bytes="4000")
        [of_topic] = client.run(
            client.admin.describe_configs([ConfigResource("topic", "orders")], include_synonyms=True)
        )
        shown = {each.name: (each.value, SOURCE_NAMES[each.config_source]) for each in of_topic.configs}
        assert shown["retention.ms"] == ("1", "DYNAMIC_TOPIC_CONFIG")
        assert shown["segment.bytes"] == ("4000", "DYNAMIC_DEFAULT_BROKER_CONFIG")
        assert shown["retention.bytes"] == ("7000", "STATIC_BROKER_CONFIG")
        assert shown["segment.ms"] == ("604800000", "DEFAULT_CONFIG")
        [of_broker] = client.run(
            client.admin.describe_configs([ConfigResource("broker", "2", {"log.retention.ms": None})], True)
        )
        [setting] = of_broker.configs
        assert (setting.value, setting.read_only, setting.config_type) == ("2", False, 5)
        assert [(each.value, SOURCE_NAMES[each.source]) for each in setting.synonyms] == [
            ("2", "DYNAMIC_BROKER_CONFIG"),
            ("3", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
            ("604800000", "DEFAULT_CONFIG"),
        ]
        [of_all] = client.run(client.admin.describe_configs([ConfigResource("broker", "")]))
        assert [(each.name, each.value) for each in of_all.configs] == [
            ("log.retention.ms", "3"),
            ("log.segment.bytes", "4000"),
        ]
        assert cluster.replica(2, ORDERS).config.retention_ms == 1
        alter(client, "topic", "orders", retention_ms=None)
        assert [cluster.replica(node, ORDERS).config.retention_ms for node in cluster.nodes] == [3, 2, 3]


def test_what_only_a_restart_can_change_is_shown_as_read_only_and_refused():
    """The two must agree: whatever is not read-only can be altered."""
    with simulated() as cluster:
        client = one_topic(cluster)
        [of_broker] = client.run(client.admin.describe_configs([ConfigResource("broker", "1")]))
        changeable = [each.name for each in of_broker.configs if not each.read_only]
        assert sorted(changeable) == sorted(AT_RUN_TIME)
        now = {each.name: each.value for each in of_broker.configs}
        for name in changeable:
            client.run(
                client.admin.incremental_alter_configs(
                    [ConfigResource("broker", "", {name: now[name]})], validate_only=True
                )
            )
        with pytest.raises(InvalidConfig, match="restart"):
            alter(client, "broker", "1", listeners="PLAINTEXT://127.0.0.1:1")
        with pytest.raises(UnknownTopicOrPartition):
            alter(client, "topic", "nobody", retention_ms="1")
        with pytest.raises(InvalidRequest, match="topic or broker"):
            alter(client, "group", "g", x="1")


def test_the_older_form_of_altering_replaces_everything():
    """alter_configs, as in aiokafka: what is not named goes back to its default."""
    with simulated() as cluster:
        client = one_topic(cluster)
        alter(client, "topic", "orders", retention_ms="1")
        client.run(client.admin.alter_configs([ConfigResource("topic", "orders", {"segment.bytes": "1000"})]))
        config = cluster.replica(1, ORDERS).config
        assert (config.retention_ms, config.segment_bytes) == (604_800_000, 1000)
