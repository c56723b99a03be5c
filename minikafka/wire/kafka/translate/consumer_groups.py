"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Iterable

from minikafka.wire import group_messages as g
from minikafka.wire.acls import ResourceType
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import NOT_ASKED, Exchange, Translation, id_bytes, id_text
from minikafka.wire.kafka.translate.shapes import each_answer, plain, typed

CLIENT_MAKES_ID_FROM = 1
"""Clients make their own member ids (KIP-1082)."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Kafka's numbers of member types."""


def _heartbeat_request(message: Message, exchange: Exchange) -> g.ConsumerGroupHeartbeatRequest:
    owned = message["topic_partitions"]
    return typed(
        g.ConsumerGroupHeartbeatRequest,
        message,
        topic_partitions=None
        if owned is None
        else tuple(typed(g.TopicIdPartitions, each, topic_id=id_text(each["topic_id"])) for each in owned),
        client_id=exchange.client_id,
        makes_member_id=exchange.version < CLIENT_MAKES_ID_FROM,
    )


def _heartbeat_response(message: Message, response: g.ConsumerGroupHeartbeatResponse, _exchange: Exchange) -> Message:
    assignment = response.assignment
    return {
        **plain(response),
        "member_id": None if response.error_code else response.member_id or message["member_id"],
        "assignment": None if assignment is None else _assignment(assignment),
    }


def _assignment(topics: Iterable[g.TopicIdPartitions | g.NamedTopicPartitions]) -> Message:
    return {"topic_partitions": [{**plain(each), "topic_id": id_bytes(each.topic_id)} for each in topics]}


CONSUMER_GROUP_HEARTBEAT = Translation("ConsumerGroupHeartbeat", 0, 1, _heartbeat_request, _heartbeat_response)


def _describe_request(message: Message, _exchange: Exchange) -> g.ConsumerGroupDescribeRequest:
    return g.ConsumerGroupDescribeRequest(groups=tuple(message["group_ids"]))


def _describe_response(message: Message, response: g.ConsumerGroupDescribeResponse, exchange: Exchange) -> Message:
    wants_operations = message["include_authorized_operations"]
    asked: list[Message] = [{"group_id": name} for name in message["group_ids"]]
    return {
        "groups": [
            {
                **plain(each),
                "group_state": "" if each.error_code else each.state,
                "assignor_name": each.assignor,
                "members": list(map(_member, each.members)),
                "authorized_operations": exchange.directory.operations(ResourceType.GROUP, each.group_id)
                if wants_operations and not each.error_code
                else NOT_ASKED,
            }
            for each in each_answer(response, response.groups, g.DescribedConsumerGroup, asked)
        ]
    }


def _member(member: g.ConsumerMember) -> Message:
    return {
        **plain(member),
        "subscribed_topic_regex": member.subscribed_topic_regex or "",
        "assignment": _named_assignment(member.assignment),
        "target_assignment": _named_assignment(member.target_assignment),
        "member_type": CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    }


def _named_assignment(topics: Iterable[g.NamedTopicPartitions]) -> Message:
    return {
        "topic_partitions": [
            {"topic_id": id_bytes(each.topic_id), "topic_name": each.topic, "partitions": each.partitions}
            for each in topics
        ]
    }


CONSUMER_GROUP_DESCRIBE = Translation("ConsumerGroupDescribe", 0, 1, _describe_request, _describe_response)
