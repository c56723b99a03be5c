"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Iterable

from minikafka.wire.acls import ResourceType
from minikafka.wire.group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
    NamedTopicPartitions,
    TopicIdPartitions,
)
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import NOT_ASKED, Exchange, Translation, id_bytes, id_text

CLIENT_MAKES_ID_FROM = 1
"""Clients make their own member ids (KIP-1082)."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Kafka's numbers of member types."""


def _heartbeat_request(message: Message, exchange: Exchange) -> ConsumerGroupHeartbeatRequest:
    names, owned = message["subscribed_topic_names"], message["topic_partitions"]
    return ConsumerGroupHeartbeatRequest(
        group_id=message["group_id"],
        member_id=message["member_id"],
        member_epoch=message["member_epoch"],
        instance_id=message["instance_id"],
        rack_id=message["rack_id"],
        rebalance_timeout_ms=message["rebalance_timeout_ms"],
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=message["subscribed_topic_regex"],
        server_assignor=message["server_assignor"],
        topic_partitions=None
        if owned is None
        else tuple(
            TopicIdPartitions(topic_id=id_text(each["topic_id"]), partitions=tuple(each["partitions"]))
            for each in owned
        ),
        client_id=exchange.client_id,
        makes_member_id=exchange.version < CLIENT_MAKES_ID_FROM,
    )


def _heartbeat_response(message: Message, response: ConsumerGroupHeartbeatResponse, _exchange: Exchange) -> Message:
    assignment = response.assignment
    return {
        "error_code": response.error_code,
        "error_message": response.error_message or None,
        "member_id": response.member_id or message["member_id"],
        "member_epoch": response.member_epoch,
        "heartbeat_interval_ms": response.heartbeat_interval_ms,
        "assignment": None
        if assignment is None
        else {
            "topic_partitions": [
                {"topic_id": id_bytes(each.topic_id), "partitions": list(each.partitions)} for each in assignment
            ]
        },
    }


CONSUMER_GROUP_HEARTBEAT = Translation("ConsumerGroupHeartbeat", 0, 1, _heartbeat_request, _heartbeat_response)


def _describe_request(message: Message, _exchange: Exchange) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(groups=tuple(message["group_ids"]))


def _describe_response(message: Message, response: ConsumerGroupDescribeResponse, exchange: Exchange) -> Message:
    groups = response.groups
    if response.error_code:
        groups = tuple(
            DescribedConsumerGroup(group_id=name, error_code=response.error_code, error_message=response.error_message)
            for name in message["group_ids"]
        )
    wants_operations = message["include_authorized_operations"]
    return {
        "groups": [
            {
                "error_code": each.error_code,
                "error_message": each.error_message or None,
                "group_id": each.group_id,
                "group_state": each.state,
                "group_epoch": each.group_epoch,
                "assignment_epoch": each.assignment_epoch,
                "assignor_name": each.assignor,
                "members": _members(each),
                "authorized_operations": exchange.directory.operations(ResourceType.GROUP, each.group_id)
                if wants_operations and not each.error_code
                else NOT_ASKED,
            }
            for each in groups
        ]
    }


def _members(group: DescribedConsumerGroup) -> list[Message]:
    return [
        {
            "member_id": each.member_id,
            "instance_id": each.instance_id,
            "rack_id": each.rack_id,
            "member_epoch": each.member_epoch,
            "client_id": each.client_id,
            "client_host": each.client_host,
            "subscribed_topic_names": list(each.subscribed_topic_names),
            "subscribed_topic_regex": each.subscribed_topic_regex,
            "assignment": _assignment(each.assignment),
            "target_assignment": _assignment(each.target_assignment),
            "member_type": CLASSIC_MEMBER if each.is_classic else CONSUMER_MEMBER,
        }
        for each in group.members
    ]


def _assignment(topics: Iterable[NamedTopicPartitions]) -> Message:
    return {
        "topic_partitions": [
            {"topic_id": id_bytes(each.topic_id), "topic_name": each.topic, "partitions": list(each.partitions)}
            for each in topics
        ]
    }


CONSUMER_GROUP_DESCRIBE = Translation("ConsumerGroupDescribe", 0, 1, _describe_request, _describe_response)
