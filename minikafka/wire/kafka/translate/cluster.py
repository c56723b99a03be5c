"""Settings of brokers and topics, their list, features, and what DescribeQuorum and DescribeLogDirs report."""

from __future__ import annotations

from collections import deque
from typing import Any

from minikafka.errors import UnsupportedVersion
from minikafka.types import METADATA_TOPIC
from minikafka.wire import admin as a
from minikafka.wire import messages as m
from minikafka.wire.features import SAFE_DOWNGRADE, FeatureUpdate, UpdateFeaturesRequest
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.schema import ZERO_UUID
from minikafka.wire.kafka.translate.common import NONE, UNKNOWN_TOPIC_OR_PARTITION, Exchange, Translation
from minikafka.wire.kafka.translate.shapes import each_answer, error_of, flat, nested, plain, request_of, typed

# ---- settings --------------------------------------------------------------------------------------------------------


RECENT = 16
"""Different settings of topics that are remembered while a response is translated."""


def _describe_configs_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    # Results of topics share their settings (``broker/api/admin.py``): to translate them takes the longest of all.
    recent: deque[tuple[tuple[a.DescribedConfig, ...], list[Message]]] = deque(maxlen=RECENT)

    def configs(described: tuple[a.DescribedConfig, ...]) -> list[Message]:
        for known, translated in recent:
            if known is described:
                return translated
        found = [{**plain(each), "value": None if each.is_sensitive else each.value} for each in described]
        recent.append((described, found))
        return found

    results = each_answer(response, response.results, a.DescribedConfigs, _named(message))
    return {
        "results": [
            {
                "resource_type": each.resource_type,
                "resource_name": each.resource_name,
                "configs": configs(each.configs),
                **error_of(each),
            }
            for each in results
        ]
    }


def _named(message: Message) -> list[Message]:
    """The resources of a request, without what it says of them."""
    return [
        {"resource_type": each["resource_type"], "resource_name": each["resource_name"]}
        for each in message["resources"]
    ]


def _increment_request(message: Message, _exchange: Exchange) -> a.IncrementalAlterConfigsRequest:
    resources = tuple(
        typed(
            a.AlterConfigsResource,
            resource,
            configs=tuple(
                typed(a.AlterConfig, each, operation=each["config_operation"]) for each in resource["configs"]
            ),
        )
        for resource in message["resources"]
    )
    return typed(a.IncrementalAlterConfigsRequest, message, resources=resources)


def _alter_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    answers = each_answer(response, response.responses, a.AlteredConfigs, _named(message))
    return {"responses": [plain(each) for each in answers]}


DESCRIBE_CONFIGS = Translation(
    "DescribeConfigs", 1, 4, request_of(a.DescribeConfigsRequest), _describe_configs_response
)
ALTER_CONFIGS = Translation("AlterConfigs", 0, 2, request_of(a.AlterConfigsRequest), _alter_response)
INCREMENTAL_ALTER_CONFIGS = Translation("IncrementalAlterConfigs", 0, 1, _increment_request, _alter_response)

# ---- ListConfigResources (KIP-1142) ----------------------------------------------------------------------------------

BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
"""Kinds of resources that Kafka lists and of which there are none here."""

_LISTED = ({CLIENT_METRICS}, {a.TOPIC, a.BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})
"""Kinds of resources by version."""


def _kinds(message: Message, exchange: Exchange) -> set[int]:
    return set(message.get("resource_types", ())) or _LISTED[exchange.version]


def _resources_request(message: Message, exchange: Exchange) -> m.MetadataRequest:
    kinds = _kinds(message, exchange)
    unknown = sorted(kinds - _LISTED[exchange.version])
    if unknown:
        raise UnsupportedVersion(f"resource_type={unknown[0]} is not a kind of resource that can be listed")
    return m.MetadataRequest(topics=None if a.TOPIC in kinds else ())


def _resources_response(message: Message, response: Any, exchange: Exchange) -> Message:
    if response.error_code:
        return {"error_code": response.error_code, "config_resources": []}
    kinds = _kinds(message, exchange)
    found = [(topic.name, a.TOPIC) for topic in response.topics] if a.TOPIC in kinds else []
    if a.BROKER in kinds:
        found += [(str(broker.node_id), a.BROKER) for broker in response.brokers]
    return {
        "error_code": 0,
        "config_resources": [{"resource_name": name, "resource_type": kind} for name, kind in found],
    }


LIST_CONFIG_RESOURCES = Translation(
    "ListConfigResources", 0, 1, _resources_request, _resources_response, serves="Metadata"
)

# ---- UpdateFeatures (KIP-584, KIP-1022); ApiVersions, which the session answers, describes features ------------------


def _features_request(message: Message, exchange: Exchange) -> UpdateFeaturesRequest:
    def update(each: Message) -> FeatureUpdate:
        is_downgrade = exchange.version == 0 and each["allow_downgrade"]
        return FeatureUpdate(
            name=each["feature"],
            level=each["max_version_level"],
            upgrade_type=SAFE_DOWNGRADE if is_downgrade else each["upgrade_type"],
        )

    return typed(UpdateFeaturesRequest, message, updates=tuple(map(update, message["feature_updates"])))


def _features_response(message: Message, response: Any, exchange: Exchange) -> Message:
    # One refused feature refuses all: then there are no results of single features, as in Kafka.
    named = [each["feature"] for each in message["feature_updates"]] if not response.error_code else []
    results = [{"feature": name, "error_code": NONE, "error_message": None} for name in named]
    return {**error_of(response), "results": results if exchange.version < 2 else []}


UPDATE_FEATURES = Translation("UpdateFeatures", 0, 2, _features_request, _features_response)

# ---- UnregisterBroker ------------------------------------------------------------------------------------------------


def _unregister_request(message: Message, _: Exchange) -> m.UnregisterBrokerRequest:
    return m.UnregisterBrokerRequest(broker_id=message["broker_id"])


def _unregister_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    return error_of(response)


UNREGISTER_BROKER = Translation("UnregisterBroker", 0, 0, _unregister_request, _unregister_response)

# ---- DescribeQuorum --------------------------------------------------------------------------------------------------

CONTROLLER_LISTENER = "CONTROLLER"
"""Name under which the voters' endpoints are shown."""


def _quorum_response(message: Message, response: m.DescribeQuorumResponse, exchange: Exchange) -> Message:
    if response.error_code:
        return {**error_of(response), "topics": [], "nodes": []}
    asked = [
        (topic["topic_name"], [each["partition_index"] for each in topic["partitions"]]) for topic in message["topics"]
    ]
    if asked != [(METADATA_TOPIC, [0])]:
        # Whatever else the request names, no partition of it is described, as in Kafka.
        topics = [{"topic_name": name, "partitions": list(map(_without_quorum, rows))} for name, rows in asked]
        return {"error_code": 0, "topics": topics, "nodes": []}
    described = _quorum_partition(response, exchange.directory.wall_ms())
    return {
        "error_code": 0,
        "topics": [{"topic_name": METADATA_TOPIC, "partitions": [described]}],
        "nodes": [
            {**plain(each), "listeners": [{"name": CONTROLLER_LISTENER, **plain(each)}]} for each in response.endpoints
        ],
    }


def _without_quorum(partition: int) -> Message:
    return {
        "partition_index": partition,
        "error_code": UNKNOWN_TOPIC_OR_PARTITION,
        "error_message": f"only {METADATA_TOPIC}-0 has a quorum; describe it alone",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [],
        "observers": [],
    }


def _quorum_partition(response: m.DescribeQuorumResponse, wall_ms: int) -> Message:
    def replica(each: m.QuorumReplica) -> Message:
        fetched, caught_up = (
            wall_ms - ago if ago >= 0 else -1 for ago in (each.last_fetch_ms_ago, each.last_caught_up_ms_ago)
        )
        return {
            **plain(each),
            "replica_directory_id": ZERO_UUID,
            "last_fetch_timestamp": fetched,
            "last_caught_up_timestamp": caught_up,
        }

    return {
        "error_code": 0,
        "partition_index": 0,
        "leader_id": response.leader_id,
        "leader_epoch": response.leader_epoch,
        "high_watermark": response.high_watermark,
        "current_voters": list(map(replica, response.voters)),
        "observers": list(map(replica, response.observers)),
    }


DESCRIBE_QUORUM = Translation("DescribeQuorum", 0, 2, request_of(m.DescribeQuorumRequest), _quorum_response)

# ---- DescribeLogDirs -------------------------------------------------------------------------------------------------


def _dirs_request(message: Message, _exchange: Exchange) -> a.DescribeLogDirsRequest:
    topics = message["topics"]
    return a.DescribeLogDirsRequest(partitions=None if topics is None else flat(m.PartitionName, topics, topic="topic"))


def _dirs_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    def row(replica: a.ReplicaSize) -> Message:
        return {
            "partition_index": replica.partition,
            "partition_size": replica.size_bytes,
            "offset_lag": replica.offset_lag,
            "is_future_key": False,
        }

    return {
        "error_code": response.error_code,
        "results": [{**plain(each), "topics": nested(each.replicas, row)} for each in response.results],
    }


DESCRIBE_LOG_DIRS = Translation("DescribeLogDirs", 1, 5, _dirs_request, _dirs_response)
