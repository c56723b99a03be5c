"""Topics, partitions, elections and reassignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from minikafka.errors import InvalidConfig, InvalidRequest, TopicAuthorizationFailed
from minikafka.types import INTERNAL_TOPICS, NO_NODE
from minikafka.wire import admin as a
from minikafka.wire import messages as m
from minikafka.wire.acls import ResourceType
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.schema import ZERO_UUID
from minikafka.wire.kafka.translate.common import (
    NONE,
    NOT_ASKED,
    UNKNOWN_TOPIC_ID,
    Exchange,
    Translation,
    describable,
    id_bytes,
    id_text,
)
from minikafka.wire.kafka.translate.shapes import (
    each_answer,
    error_of,
    flat,
    in_request_order,
    nested,
    plain,
    request_of,
    typed,
)

# ---- CreateTopics ----------------------------------------------------------------------------------------------------

CONFIGS_FROM = 5
"""The response has the settings of the created topics (KIP-525)."""


def _without_value(message: Message) -> dict[str, m.CreatedTopic]:
    """By name the errors of topics with a setting whose value is null."""
    return {
        topic["name"]: m.CreatedTopic.failed(
            InvalidConfig(f"{each['name']} of topic {topic['name']!r} has no value"), name=topic["name"]
        )
        for topic in message["topics"]
        for each in topic["configs"]
        if each["value"] is None
    }


def _create_request(message: Message, exchange: Exchange) -> m.CreateTopicsRequest:
    topics = []
    refused = _without_value(message)
    for topic in message["topics"]:
        if topic["name"] in refused:
            continue
        configs = {each["name"]: each["value"] for each in topic["configs"]}
        assignments = tuple(
            typed(m.ReplicaAssignment, each, partition=each["partition_index"]) for each in topic["assignments"]
        )
        topics.append(typed(m.NewTopic, topic, assignments=assignments, configs=configs))
    return typed(m.CreateTopicsRequest, message, topics=tuple(topics), include_configs=exchange.version >= CONFIGS_FROM)


def _create_response(message: Message, response: Any, exchange: Exchange) -> Message:
    def hidden(topic: m.CreatedTopic) -> int:
        """The error of a topic that was created, but whose settings the client may not read (KIP-525)."""
        is_hidden = exchange.version >= CONFIGS_FROM and not topic.error_code and topic.num_partitions < 0
        return TopicAuthorizationFailed.code if is_hidden else NONE

    asked: list[Message] = [{"name": name} for name in dict.fromkeys(topic["name"] for topic in message["topics"])]
    answers = [*_each_name_once(response.topics), *_without_value(message).values()]
    return {
        "topics": [
            {
                **plain(each),
                "topic_id": id_bytes(each.topic_id),
                "topic_config_error_code": hidden(each),
                "configs": [{**plain(config), "read_only": False, "is_sensitive": False} for config in each.configs],
            }
            for each in each_answer(response, answers, m.CreatedTopic, asked)
        ]
    }


def _each_name_once(answers: Iterable[Any]) -> list[Any]:
    """One answer for a topic that is named more than once: clients take the answers by name."""
    return list({each.name: each for each in answers}.values())


CREATE_TOPICS = Translation("CreateTopics", 2, 7, _create_request, _create_response)

# ---- DeleteTopics ----------------------------------------------------------------------------------------------------

DELETE_BY_ID_FROM = 6


class _Asked(NamedTuple):
    """A topic of DeleteTopics."""

    name: str | None
    """None: its id is unknown."""
    topic_id: bytes
    """As it was asked for."""
    refusal: str | None = None
    """Why the request itself is wrong."""


def _to_delete(message: Message, exchange: Exchange) -> list[_Asked]:
    if exchange.version < DELETE_BY_ID_FROM:
        return [_Asked(name, ZERO_UUID) for name in message["topic_names"]]
    asked = []
    for each in message["topics"]:
        name, topic_id = each["name"], each["topic_id"]
        if name is None and topic_id == ZERO_UUID:
            asked.append(_Asked(name, topic_id, "neither the name nor the id of a topic is given"))
        elif name is not None and topic_id != ZERO_UUID:
            asked.append(_Asked(name, topic_id, "the name and the id of a topic are given: give one of them"))
        else:
            asked.append(_Asked(exchange.topic_name(topic_id) if name is None else name, topic_id))
    return asked


def _delete_request(message: Message, exchange: Exchange) -> m.DeleteTopicsRequest:
    asked = [each for each in _to_delete(message, exchange) if each.refusal is None]
    known = [(each.name, each.topic_id) for each in asked if each.name is not None]
    return m.DeleteTopicsRequest(
        topics=tuple(name for name, _ in known),
        topic_ids={name: id_text(topic_id) for name, topic_id in known if topic_id != ZERO_UUID},
        timeout_ms=message["timeout_ms"],
    )


def _delete_response(message: Message, response: Any, exchange: Exchange) -> Message:
    found = {each.name: each for each in response.topics}
    rows: list[Message] = []
    asked = _to_delete(message, exchange)
    refused_each = [each for each in asked if each.refusal is not None]
    answered_once = dict.fromkeys(each for each in asked if each.refusal is None)
    for name, topic_id, refusal in [*refused_each, *answered_once]:
        if refusal is not None:
            refused = m.DeletedTopic.failed(InvalidRequest(refusal), name="")
            rows.append({"name": name, "topic_id": topic_id, **error_of(refused)})
            continue
        if name is None:
            rows.append({"name": None, "topic_id": topic_id, "error_code": UNKNOWN_TOPIC_ID})
            continue
        if response.error_code:
            answer = m.DeletedTopic(name=name, error_code=response.error_code, error_message=response.error_message)
        else:
            answer = found[name]
        if answer.error_code in (TopicAuthorizationFailed.code, UNKNOWN_TOPIC_ID) and topic_id != ZERO_UUID:
            # A client that may not delete a topic does not learn its name from its id; an unknown id has none.
            rows.append({"name": None, "topic_id": topic_id, "error_code": answer.error_code})
            continue
        known = id_bytes(answer.topic_id) if answer.topic_id else topic_id
        rows.append({"name": name, "topic_id": known, **error_of(answer)})
    return {"responses": rows}


DELETE_TOPICS = Translation("DeleteTopics", 1, 6, _delete_request, _delete_response)

# ---- CreatePartitions ------------------------------------------------------------------------------------------------


def _grow_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    asked: list[Message] = [{"name": name} for name in dict.fromkeys(topic["name"] for topic in message["topics"])]
    results = _each_name_once(response.results)
    return {"results": [plain(each) for each in each_answer(response, results, a.CreatedPartitions, asked)]}


CREATE_PARTITIONS = Translation("CreatePartitions", 0, 3, request_of(a.CreatePartitionsRequest), _grow_response)

# ---- ElectLeaders ----------------------------------------------------------------------------------------------------

ELECTIONS = {0: "preferred", 1: "unclean"}


def _elect_request(message: Message, exchange: Exchange) -> m.ElectLeadersRequest:
    kind = message["election_type"] if exchange.version >= 1 else 0
    topics = message["topic_partitions"]
    return m.ElectLeadersRequest(
        election_type=ELECTIONS.get(kind, str(kind)),
        partitions=None if topics is None else flat(m.PartitionName, topics, topic="topic"),
    )


def _elect_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    if response.error_code:
        # Before version 1 there is no place for an error of the whole request. Kafka has it at each partition always.
        def refused(_topic: str, number: int) -> Message:
            return {"partition_id": number, **error_of(response)}

        topics = message["topic_partitions"] or ()
        results = in_request_order(topics, refused, topic="topic", into="partition_result")
    else:
        results = nested(response.partitions, _row("partition_id"), topic="topic", rows="partition_result")
    return {"error_code": response.error_code, "replica_election_results": results}


ELECT_LEADERS = Translation("ElectLeaders", 0, 2, _elect_request, _elect_response)

# ---- reassignments (KIP-455) -----------------------------------------------------------------------------------------


def _row(index: str) -> Callable[[Any], Message]:
    """A row of our names, but for the number of its partition."""
    return lambda answer: {**plain(answer), index: answer.partition}


def _reassign_request(message: Message, _exchange: Exchange) -> a.AlterPartitionReassignmentsRequest:
    partitions = flat(a.ReassignedPartition, message["topics"])
    return typed(a.AlterPartitionReassignmentsRequest, message, partitions=partitions)


def _reassign_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    def refused(_topic: str, asked: Message) -> Message:
        return {"partition_index": asked["partition_index"], **error_of(response)}

    # Java's admin client looks for an error of the whole request at the partitions.
    results = (
        in_request_order(message["topics"], refused)
        if response.error_code
        else nested(response.responses, _row("partition_index"))
    )
    return {
        "allow_replication_factor_change": message["allow_replication_factor_change"],
        **error_of(response),
        "responses": results,
    }


ALTER_PARTITION_REASSIGNMENTS = Translation("AlterPartitionReassignments", 0, 1, _reassign_request, _reassign_response)


def _ongoing_request(message: Message, _exchange: Exchange) -> a.ListPartitionReassignmentsRequest:
    topics = message["topics"]
    return a.ListPartitionReassignmentsRequest(
        partitions=None if topics is None else flat(m.PartitionName, topics, rows="partition_indexes"),
        timeout_ms=message["timeout_ms"],
    )


def _ongoing_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    return {**error_of(response), "topics": nested(response.partitions, _row("partition_index"))}


LIST_PARTITION_REASSIGNMENTS = Translation("ListPartitionReassignments", 0, 0, _ongoing_request, _ongoing_response)

# ---- DescribeTopicPartitions (KIP-966) -------------------------------------------------------------------------------

PARTITIONS_MAX = 2000
"""Kafka's max.request.partition.size.limit."""


def _describe_request(message: Message, _exchange: Exchange) -> m.DescribeTopicsRequest:
    cursor = message["cursor"]
    if cursor is not None and cursor["partition_index"] < 0:
        raise InvalidRequest(f"cursor.partition_index={cursor['partition_index']} is negative", member="cursor")
    names = tuple(each["name"] for each in message["topics"])
    if cursor is not None and names and cursor["topic_name"] not in names:
        raise InvalidRequest(f"cursor.topic_name={cursor['topic_name']!r} is none of the topics", member="cursor")
    return m.DescribeTopicsRequest(topics=names or None)


def _describe_response(message: Message, response: Any, exchange: Exchange) -> Message:
    if response.error_code:
        names = [each["name"] for each in message["topics"]] or describable(exchange.directory)
        return {
            "topics": [{"error_code": response.error_code, "name": each, "partitions": []} for each in names],
            "next_cursor": None,
        }
    left = min(max(1, message["response_partition_limit"]), PARTITIONS_MAX)
    cursor = message["cursor"]
    first_name, first_partition = (cursor["topic_name"], cursor["partition_index"]) if cursor else ("", 0)
    topics = []
    next_cursor = None
    for topic in sorted(response.topics, key=lambda each: each.topic):
        if topic.topic < first_name:
            continue
        start = first_partition if topic.topic == first_name else 0
        if topic.error_code == TopicAuthorizationFailed.code:
            # As in Kafka, every page has the topics that the client may not describe.
            topics.append(_described(topic, (), exchange))
            continue
        if next_cursor is not None:
            continue
        if not left:
            next_cursor = {"topic_name": topic.topic, "partition_index": 0}
            continue
        partitions = topic.partitions[start : start + left]
        topics.append(_described(topic, partitions, exchange))
        left -= len(partitions)
        if start + len(partitions) < len(topic.partitions):
            next_cursor = {"topic_name": topic.topic, "partition_index": start + len(partitions)}
    return {"topics": topics, "next_cursor": next_cursor}


def _described(topic: m.DescribedTopic, partitions: Iterable[m.DescribedPartition], exchange: Exchange) -> Message:
    return {
        "error_code": topic.error_code,
        "name": topic.topic,
        "topic_id": id_bytes(topic.topic_id),
        "is_internal": topic.topic in INTERNAL_TOPICS,
        "partitions": [
            {
                "error_code": 0,  # also without a leader
                "partition_index": each.partition,
                "leader_id": each.leader if exchange.directory.endpoint(each.leader) is not None else NO_NODE,
                "leader_epoch": each.leader_epoch,
                "replica_nodes": each.replicas,
                "isr_nodes": each.isr,
                "eligible_leader_replicas": each.elr,
                "last_known_elr": each.last_known_elr,
                "offline_replicas": [node for node in each.replicas if exchange.directory.endpoint(node) is None],
            }
            for each in partitions
        ],
        "topic_authorized_operations": exchange.directory.operations(ResourceType.TOPIC, topic.topic)
        if topic.error_code != TopicAuthorizationFailed.code
        else NOT_ASKED,
    }


DESCRIBE_TOPIC_PARTITIONS = Translation("DescribeTopicPartitions", 0, 0, _describe_request, _describe_response)
