"""A sensible request for each API of Kafka's protocol."""

from __future__ import annotations

import json
import uuid
from importlib import resources

from minikafka.types import Address
from minikafka.wire.acls import AclOperation
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import id_text
from minikafka.wire.records import BatchBuilder

EMPTY_ID = bytes(16)


def api_names() -> tuple[str, ...]:
    """All APIs of the schema, in its order."""
    text = resources.files("minikafka.wire.kafka").joinpath("schema.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["apis"])


def batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, b"key", b"value")
    return bytes(builder.build())


def requests(topic_id: bytes) -> dict[str, Message]:
    """A sensible request for each API; fields that a version lacks are not sent."""
    fresh = uuid.uuid4().hex
    partition = {"partition": 0, "partition_index": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "offset": 0}
    epochs = {"current_leader_epoch": -1, "leader_epoch": 0, "timestamp": -1, "max_num_offsets": 1}
    produced = {"index": 0, "records": [batch()]}
    committed = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "", "committed_leader_epoch": -1}
    resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    change = {"name": "retention.ms", "value": "77777", "config_operation": 0}
    named = {"name": "t", "topic": "t", "topic_id": topic_id}
    principal = {"principal": "User:x", "host": "*", "operation": 3, "permission_type": 3}
    acl = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, **principal}
    acl_filter = {
        "resource_type_filter": 2,
        "resource_name_filter": None,
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return {
        "Produce": {"acks": -1, "timeout_ms": 9000, "topic_data": [{**named, "partition_data": [produced]}]},
        "Fetch": {
            "replica_id": -1,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "topics": [{**named, "partitions": [partition]}],
            "forgotten_topics_data": [],
        },
        "ListOffsets": {"replica_id": -1, "topics": [{**named, "partitions": [{**partition, **epochs}]}]},
        "Metadata": {"topics": [named]},
        "OffsetCommit": {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{**named, "partitions": [committed]}],
        },
        "OffsetFetch": {
            "group_id": "g",
            "topics": [{**named, "partition_indexes": [0]}],
            "groups": [{"group_id": "g", "topics": [{**named, "partition_indexes": [0]}]}],
            "require_stable": False,
        },
        "FindCoordinator": {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
        "JoinGroup": {
            "group_id": f"join-{fresh}",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"}],
        },
        "Heartbeat": {"group_id": "g", "generation_id": 1, "member_id": "nobody"},
        "ConsumerGroupHeartbeat": {
            "group_id": f"consumer-{fresh}",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout_ms": 10_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        },
        "ConsumerGroupDescribe": {"group_ids": ["none"], "include_authorized_operations": True},
        "LeaveGroup": {"group_id": "g", "member_id": "nobody", "members": [{"member_id": "nobody"}]},
        "SyncGroup": {
            "group_id": "g",
            "generation_id": 1,
            "member_id": "nobody",
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        },
        "DescribeGroups": {"groups": ["g", "none"], "include_authorized_operations": True},
        "ListGroups": {"states_filter": [], "types_filter": []},
        "CreateTopics": {
            "topics": [
                {
                    "name": f"made-{fresh}",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [{"name": "retention.ms", "value": "1000"}],
                }
            ],
            "timeout_ms": 9000,
        },
        "DeleteTopics": {
            "topics": [{"name": "none", "topic_id": EMPTY_ID}],
            "topic_names": ["none"],
            "timeout_ms": 900,
        },
        "DeleteRecords": {"topics": [{"name": "t", "partitions": [partition]}], "timeout_ms": 9000},
        "InitProducerId": {"transactional_id": None, "transaction_timeout_ms": 1000},
        "OffsetForLeaderEpoch": {"topics": [{**named, "partitions": [{**partition, **epochs}]}]},
        "DescribeConfigs": {"resources": [resource, {**resource, "resource_type": 4, "resource_name": "1"}]},
        "AlterConfigs": {"resources": [{**resource, "configs": [change]}], "validate_only": True},
        "IncrementalAlterConfigs": {"resources": [{**resource, "configs": [change]}], "validate_only": True},
        "DescribeLogDirs": {"topics": None},
        "CreatePartitions": {
            "topics": [{"name": "t", "count": 3, "assignments": None}],
            "timeout_ms": 9000,
            "validate_only": True,
        },
        "DeleteGroups": {"groups_names": ["none"]},
        "ElectLeaders": {"election_type": 0, "topic_partitions": None, "timeout_ms": 9000},
        "AlterPartitionReassignments": {
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": None}]}],
            "timeout_ms": 9000,
        },
        "ListPartitionReassignments": {"topics": None, "timeout_ms": 9000},
        "OffsetDelete": {"group_id": "none", "topics": []},
        "DescribeQuorum": {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        "DescribeCluster": {"include_cluster_authorized_operations": True},
        "DescribeTopicPartitions": {"topics": [{"name": "t"}], "response_partition_limit": 1, "cursor": None},
        "DescribeProducers": {"topics": [{"name": "t", "partition_indexes": [0]}]},
        "AddPartitionsToTxn": {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "t", "partitions": [0, 1]}],
        },
        "AddOffsetsToTxn": {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0, "group_id": "g"},
        "TxnOffsetCommit": {
            "transactional_id": "tx",
            "group_id": "of-transactions",
            "producer_id": 1,
            "producer_epoch": 0,
            "topics": [
                {"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]}
            ],
        },
        "EndTxn": {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0, "committed": True},
        "DescribeTransactions": {"transactional_ids": ["tx"]},
        "ListTransactions": {"state_filters": ["Ongoing", "Lost"], "producer_id_filters": [], "duration_filter": -1},
        "WriteTxnMarkers": {
            "markers": [
                {
                    "producer_id": 9_000_000,
                    "producer_epoch": 0,
                    "transaction_result": True,
                    "topics": [{"name": "t", "partition_indexes": [1]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
        "DescribeAcls": acl_filter,
        "CreateAcls": {"creations": [acl]},
        "DeleteAcls": {"filters": [acl_filter]},
        "DescribeClientQuotas": {
            "components": [{"entity_type": "user", "match_type": 2, "match": None}],
            "strict": False,
        },
        "AlterClientQuotas": {
            "entries": [
                {
                    "entity": [{"entity_type": "client-id", "entity_name": "nobody"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                }
            ],
            "validate_only": True,
        },
        "UpdateFeatures": {
            "feature_updates": [
                {"feature": "transaction.version", "max_version_level": 2, "allow_downgrade": False, "upgrade_type": 1}
            ],
            "validate_only": True,
        },
        "UnregisterBroker": {"broker_id": 99},
        "DescribeUserScramCredentials": {"users": [{"name": "nobody"}]},
        "AlterUserScramCredentials": {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
        "ListConfigResources": {"resource_types": []},
    }


TOPIC_ID = bytes(range(16))


class Directory:
    """One broker, one topic."""

    def topic_name(self, topic_id: str) -> str | None:
        return "t" if topic_id == id_text(TOPIC_ID) else None

    def topic_id(self, name: str) -> str | None:
        return id_text(TOPIC_ID) if name == "t" else None

    def topics(self) -> list[str]:
        return ["t"]

    def nodes(self) -> list[int]:
        return [1]

    def endpoint(self, node: int) -> tuple[Address, str | None] | None:
        return (Address("host", 9092), None) if node == 1 else None

    def operations(self, _resource_type: int, _name: str) -> int:
        return 1 << AclOperation.DESCRIBE

    def wall_ms(self) -> int:
        return 0
