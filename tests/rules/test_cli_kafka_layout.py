"""``-o kafka``: what Kafka's own tools print, byte for byte (HTTP-CLI-CONVENTIONS 4.1)."""

from __future__ import annotations

import json

from minikafka.cli import kafka_layout as layout
from minikafka.client.structs import Reassignment
from minikafka.errors import ElectionNotNeeded, PreferredLeaderNotAvailable
from minikafka.types import TopicPartition
from minikafka.wire.admin import ConfigSynonym, DescribedConfig, DescribedConfigs
from minikafka.wire.messages import (
    DescribedPartition,
    DescribedTopic,
    DescribeQuorumResponse,
    NodeEndpoint,
    QuorumReplica,
)

O0, O1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
T2, T10 = TopicPartition("t", 2), TopicPartition("t", 10)


def partition(number: int = 0, **told: object) -> DescribedPartition:
    state = {"leader": 1, "leader_epoch": 5, "partition_epoch": 7, "controller_epoch": 3}
    return DescribedPartition(**{"partition": number, "replicas": (1, 2, 3), "isr": (1, 2), **state, **told})  # type: ignore[arg-type]


def topic(*partitions: DescribedPartition) -> DescribedTopic:
    return DescribedTopic(topic="orders", topic_id="7Xv2", config={"min.insync.replicas": "2"}, partitions=partitions)


def test_topics_describe():
    """kafka-topics.sh --describe: tabs, `none` without a leader, only settings that are not defaults."""
    configs = [
        DescribedConfig(name="min.insync.replicas", value="2", config_source=1),
        DescribedConfig(name="retention.ms", value="5", config_source=5),
        DescribedConfig(name="segment.bytes", value="1000", config_source=4),
    ]
    told = topic(partition(), partition(1, leader=-1, isr=(), elr=(3,), last_known_elr=(2,)))
    assert list(layout.topics_described([told], {"orders": configs})) == [
        "Topic: orders\tTopicId: 7Xv2\tPartitionCount: 2\tReplicationFactor: 3\tConfigs: min.insync.replicas=2,segment.bytes=1000",
        "\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1,2\tElr: \tLastKnownElr: ",
        "\tTopic: orders\tPartition: 1\tLeader: none\tReplicas: 1,2,3\tIsr: \tElr: 3\tLastKnownElr: 2",
    ]


def test_topics_describe_while_replicas_move():
    """Replicas that are added do not count for the replication factor."""
    told = topic(partition(replicas=(4, 2, 1), adding_replicas=(4,), removing_replicas=(1,)))
    assert list(layout.topics_described([told], {"orders": []})) == [
        "Topic: orders\tTopicId: 7Xv2\tPartitionCount: 1\tReplicationFactor: 2\tConfigs: ",
        "\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 4,2,1\tIsr: 1,2\tAdding Replicas: 4\tRemoving Replicas: 1\tElr: \tLastKnownElr: ",
    ]


def described(name: str) -> DescribedConfigs:
    synonyms = (
        ConfigSynonym(name="retention.ms", value="5", source=1),
        ConfigSynonym(name="log.retention.ms", value="9", source=5),
    )
    return DescribedConfigs(
        resource_type=2,
        resource_name=name,
        configs=(DescribedConfig(name="retention.ms", value="5", config_source=1, synonyms=synonyms),),
    )


def test_configs():
    """kafka-configs.sh --describe and --alter."""
    line = (
        "  retention.ms=5 sensitive=false "
        "synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5, DEFAULT_CONFIG:log.retention.ms=9}"
    )
    for everything, heading in (
        (False, "Dynamic configs for topic orders are:"),
        (True, "All configs for topic orders are:"),
    ):
        assert list(layout.configs_described("topic", described("orders"), everything=everything)) == [heading, line]
    [heading, _] = layout.configs_described("broker", described(""), everything=False)
    assert heading == "Default configs for brokers in the cluster are:"
    assert layout.configs_altered("topic", "orders") == "Completed updating config for topic orders."
    assert layout.configs_altered("broker", "") == "Completed updating default config for brokers in the cluster."


def test_offsets_and_deleted_records():
    """kafka-get-offsets.sh and kafka-delete-records.sh."""
    assert list(layout.offsets({O0: 42, O1: -1})) == ["orders:0:42", "orders:1:-1"]
    assert list(layout.records_deleted({O0: 10})) == [
        "Executing records delete operation",
        "Records delete operation completed:",
        "partition: orders-0\tlow_watermark: 10",
    ]


def test_reassignments():
    """kafka-reassign-partitions.sh, all five actions; partitions sorted by number, not by text."""
    text = layout.assignment_json({T10: (1,), T2: (2, 3)})
    assert text == (
        '{"version":1,"partitions":['
        '{"topic":"t","partition":2,"replicas":[2,3],"log_dirs":["any","any"]},'
        '{"topic":"t","partition":10,"replicas":[1],"log_dirs":["any"]}]}'
    )
    assert json.loads(text)["version"] == 1
    one, two = layout.assignment_json({T2: (1, 2)}), layout.assignment_json({T2: (4, 2)})
    assert list(layout.reassignment_generated({T2: (1, 2)}, {T2: (4, 2)})) == [
        "Current partition replica assignment",
        one,
        "",
        "Proposed partition reassignment configuration",
        two,
    ]
    assert list(layout.reassignment_started({T2: (1, 2)}, [T2])) == [
        "Current partition replica assignment",
        "",
        one,
        "",
        "Save this to use as the --reassignment-json-file option during rollback",
        "Successfully started partition reassignment for t-2",
    ]
    assert list(layout.reassignment_started({}, [T10, T2]))[-1].endswith("partition reassignments for t-2,t-10")
    moving = {T10: Reassignment((1, 2), (2,), ()), T2: Reassignment((4, 2, 1), (4,), (1,))}
    assert list(layout.reassignments_listed(moving)) == [
        "Current partition reassignments:",
        "t-2: replicas: 4,2,1. adding: 4. removing: 1.",
        "t-10: replicas: 1,2. adding: 2.",
    ]
    assert list(layout.reassignments_listed({})) == ["No partition reassignments found."]
    wanted = {T2: (4, 2), T10: (1, 2), O0: (1, 2)}
    assert list(layout.reassignments_verified(wanted, {T10: (1, 2), O0: (1, 3)}, {T2: moving[T2]})) == [
        "Status of partition reassignment:",
        "There is no active reassignment of partition orders-0, but replica set is 1,3 rather than 1,2.",
        "Reassignment of partition t-2 is still in progress.",
        "Reassignment of partition t-10 is completed.",
    ]
    assert layout.reassignment_cancelled([T2]) == "Successfully cancelled partition reassignment for: t-2"
    assert layout.reassignment_cancelled([T10, T2]) == "Successfully cancelled partition reassignments for: t-2,t-10"
    assert layout.reassignment_cancelled([]) == "None of the specified partition reassignments are active."


def test_elections():
    """kafka-leader-election.sh."""
    answers = {O1: None, O0: None, T2: ElectionNotNeeded("led"), T10: PreferredLeaderNotAvailable("away")}
    assert list(layout.leaders_elected("preferred", answers)) == [
        "Successfully completed leader election (PREFERRED) for partitions orders-0, orders-1",
        "Valid replica already elected for partitions t-2",
        "Error completing leader election (PREFERRED) for partition: t-10: PREFERRED_LEADER_NOT_AVAILABLE: away",
    ]
    assert list(layout.leaders_elected("unclean", {})) == []


def quorum() -> DescribeQuorumResponse:
    def replica(node: int, end: int, ms_ago: int) -> QuorumReplica:
        return QuorumReplica(
            replica_id=node, log_end_offset=end, lag=20 - end, last_fetch_ms_ago=ms_ago, last_caught_up_ms_ago=ms_ago
        )

    return DescribeQuorumResponse(
        cluster_id="c",
        leader_id=2,
        leader_epoch=7,
        high_watermark=19,
        voters=(replica(1, 18, 400), replica(2, 20, 0), replica(3, 20, -1)),
        observers=(replica(4, 20, 5),),
        endpoints=(NodeEndpoint(node_id=1, host="a", port=1), NodeEndpoint(node_id=2, host="b", port=2)),
    )


def test_quorum():
    """kafka-metadata-quorum.sh describe --status and --replication: padded cells, each followed by a tab."""
    assert list(layout.quorum_status(quorum())) == [
        "ClusterId:              c",
        "LeaderId:               2",
        "LeaderEpoch:            7",
        "HighWatermark:          19",
        "MaxFollowerLag:         2",
        "MaxFollowerLagTimeMs:   400",
        'CurrentVoters:          [{"id": 1, "endpoints": ["PLAINTEXT://a:1"]}, {"id": 2, "endpoints": ["PLAINTEXT://b:2"]}, {"id": 3}]',
        'CurrentObservers:       [{"id": 4}]',
    ]
    directory = "AAAAAAAAAAAAAAAAAAAAAA"
    assert list(layout.quorum_replication(quorum(), now_ms=1000)) == [
        "NodeId\tDirectoryId           \tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus  \t",
        f"2     \t{directory}\t20          \t0  \t1000              \t1000                 \tLeader  \t",
        f"1     \t{directory}\t18          \t2  \t600               \t600                  \tFollower\t",
        f"3     \t{directory}\t20          \t0  \t-1                \t-1                   \tFollower\t",
        f"4     \t{directory}\t20          \t0  \t995               \t995                  \tObserver\t",
    ]
