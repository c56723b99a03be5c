"""Metadata (0 to 13) and DescribeCluster (0 to 2)."""

from __future__ import annotations

from minikafka.errors import TopicAuthorizationFailed
from minikafka.types import NO_NODE
from minikafka.wire.acls import CLUSTER_NAME, ResourceType
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.schema import ZERO_UUID
from minikafka.wire.kafka.translate.common import (
    NOT_ASKED,
    UNKNOWN_TOPIC_ID,
    Directory,
    Exchange,
    Translation,
    describable,
    id_bytes,
)
from minikafka.wire.kafka.translate.shapes import plain
from minikafka.wire.messages import MetadataPartition, MetadataRequest, MetadataResponse, MetadataTopic


def _asked(message: Message, exchange: Exchange) -> tuple[str, ...] | None:
    topics = message["topics"]
    if topics is None or (exchange.version == 0 and not topics):
        return None
    names = []
    for each in topics:
        name = exchange.topic_name(each["topic_id"]) if _is_by_id(each) else each["name"]
        if name is not None:
            names.append(name)
    return tuple(names)


def _is_by_id(topic: Message) -> bool:
    """Return True if a request names this topic by its id; an empty name without an id is an invalid name."""
    return topic["name"] is None or (not topic["name"] and topic["topic_id"] != ZERO_UUID)


def _request(message: Message, exchange: Exchange) -> MetadataRequest:
    return MetadataRequest(
        topics=_asked(message, exchange), allow_auto_topic_creation=message["allow_auto_topic_creation"]
    )


def _response(message: Message, response: MetadataResponse, exchange: Exchange) -> Message:
    wants_operations = message["include_topic_authorized_operations"]
    by_id = [each for each in message["topics"] or () if _is_by_id(each)]
    ids = {exchange.topic_name(each["topic_id"]): each["topic_id"] for each in by_id}
    no_name = None if exchange.version >= 12 else ""
    topics = [
        # A client that may not describe a topic does not learn its name from its id.
        {**topic, "name": no_name, "topic_id": ids[each.name]}
        if each.error_code == TopicAuthorizationFailed.code and each.name in ids
        else topic
        for each in response.topics
        for topic in (_topic(each, exchange, wants_operations=wants_operations),)
    ]
    topics += [
        {
            "error_code": UNKNOWN_TOPIC_ID,
            "name": no_name,
            "topic_id": each["topic_id"],
            "partitions": [],
        }
        for each in by_id
        if exchange.topic_name(each["topic_id"]) is None
    ]
    brokers = [plain(each) for each in response.brokers]
    if response.error_code:
        # Clients look at topics for errors (before version 13 the request has no error of its own), and ignore a
        # response without brokers.
        if _asked(message, exchange) is None:
            topics += [_failed(response.error_code, each, ZERO_UUID) for each in describable(exchange.directory)]
        else:
            topics += [
                _failed(response.error_code, each["name"] or no_name, each["topic_id"])
                for each in message["topics"]
                if each["name"] or exchange.topic_name(each["topic_id"]) is not None
            ]
        brokers = _known_brokers(exchange.directory)
    return {
        "brokers": brokers,
        "cluster_id": response.cluster_id or None,
        "controller_id": response.controller_id,
        "topics": topics,
        "cluster_authorized_operations": _cluster_operations(message, exchange),
        "error_code": response.error_code,
    }


def _failed(code: int, name: str | None, topic_id: bytes) -> Message:
    return {"error_code": code, "name": name, "topic_id": topic_id, "partitions": []}


def _cluster_operations(message: Message, exchange: Exchange) -> int:
    if not message["include_cluster_authorized_operations"]:
        return NOT_ASKED
    return exchange.directory.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def _known_brokers(directory: Directory) -> list[Message]:
    found = [(node, directory.endpoint(node)) for node in directory.nodes()]
    return [
        {"node_id": node, "host": known[0].host, "port": known[0].port, "rack": known[1]}
        for node, known in found
        if known is not None
    ]


def _topic(topic: MetadataTopic, exchange: Exchange, *, wants_operations: bool) -> Message:
    operations = NOT_ASKED
    if wants_operations and topic.error_code != TopicAuthorizationFailed.code:
        operations = exchange.directory.operations(ResourceType.TOPIC, topic.name)
    return {
        "error_code": topic.error_code,
        "name": topic.name,
        "topic_id": id_bytes(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": [_partition(each) for each in topic.partitions],
        "topic_authorized_operations": operations,
    }


def _partition(partition: MetadataPartition) -> Message:
    return {
        "error_code": partition.error_code,
        "partition_index": partition.partition,
        "leader_id": partition.leader_id,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replica_nodes,
        "isr_nodes": partition.isr_nodes,
        "offline_replicas": partition.offline_replicas,
    }


METADATA = Translation("Metadata", 0, 13, _request, _response)

# ---- DescribeCluster -------------------------------------------------------------------------------------------------

BROKERS, CONTROLLERS = 1, 2
"""Kinds of endpoints (KIP-919)."""

MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 114, 115


def _cluster_request(_message: Message, _exchange: Exchange) -> MetadataRequest:
    return MetadataRequest(topics=())


def _cluster_response(message: Message, response: MetadataResponse, exchange: Exchange) -> Message:
    kind = message["endpoint_type"]
    code = response.error_code
    if not code and kind != BROKERS:
        code = MISMATCHED_ENDPOINT_TYPE if kind == CONTROLLERS else UNSUPPORTED_ENDPOINT_TYPE
    return {
        "error_code": code,
        "error_message": None if not code else response.error_message or f"endpoint_type={kind}: only brokers (1)",
        "endpoint_type": BROKERS,
        "cluster_id": response.cluster_id,
        "controller_id": response.controller_id if not code else NO_NODE,
        "brokers": []
        if code
        else [{**plain(each), "broker_id": each.node_id, "is_fenced": False} for each in response.brokers],
        "cluster_authorized_operations": NOT_ASKED if code else _cluster_operations(message, exchange),
    }


DESCRIBE_CLUSTER = Translation("DescribeCluster", 0, 2, _cluster_request, _cluster_response, serves="Metadata")
