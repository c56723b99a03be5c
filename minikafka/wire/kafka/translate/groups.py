"""Consumer groups under the classic protocol: finding, joining, committing, describing."""

from __future__ import annotations

from typing import Any

from minikafka import errors as kafka
from minikafka.wire import group_messages as g
from minikafka.wire.acls import ResourceType
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import (
    NOT_ASKED,
    UNKNOWN_TOPIC_ID,
    Exchange,
    Translation,
    code_for,
    id_text,
)
from minikafka.wire.kafka.translate.shapes import (
    each_answer,
    flat,
    in_request_order,
    nested,
    plain,
    request_of,
    typed,
)
from minikafka.wire.messages import PartitionName

# ---- FindCoordinator -------------------------------------------------------------------------------------------------

BATCHED_FIND_FROM = 4


def _find_keys(message: Message, exchange: Exchange) -> list[str]:
    return message["coordinator_keys"] if exchange.version >= BATCHED_FIND_FROM else [message["key"]]


def _find_request(message: Message, exchange: Exchange) -> g.FindCoordinatorRequest:
    return g.FindCoordinatorRequest(keys=tuple(_find_keys(message, exchange)), key_type=message["key_type"])


def _find_response(message: Message, response: Any, exchange: Exchange) -> Message:
    asked: list[Message] = [{"key": key} for key in _find_keys(message, exchange)]
    rows = [plain(each) for each in each_answer(response, response.coordinators, g.Coordinator, asked)]
    return {**rows[0], "coordinators": rows} if exchange.version < BATCHED_FIND_FROM else {"coordinators": rows}


FIND_COORDINATOR = Translation("FindCoordinator", 0, 6, _find_request, _find_response)

# ---- JoinGroup, SyncGroup, Heartbeat, LeaveGroup ---------------------------------------------------------------------

MEMBER_ID_FIRST_FROM = 4
"""Clients that know MEMBER_ID_REQUIRED (KIP-394)."""
SKIP_ASSIGNMENT_FROM = 9


def _join_request(message: Message, exchange: Exchange) -> g.JoinGroupRequest:
    return typed(
        g.JoinGroupRequest,
        message,
        rebalance_timeout_ms=message["rebalance_timeout_ms" if exchange.version >= 1 else "session_timeout_ms"],
        client_id=exchange.client_id,
        needs_member_id=exchange.version >= MEMBER_ID_FIRST_FROM,
        knows_skip_assignment=exchange.version >= SKIP_ASSIGNMENT_FROM,
    )


def _join_response(message: Message, response: g.JoinGroupResponse, exchange: Exchange) -> Message:
    name = response.protocol_name
    return {
        **plain(response),
        "protocol_name": name if name is not None or exchange.version >= 7 else "",
        "member_id": response.member_id or message["member_id"],
    }


JOIN_GROUP = Translation("JoinGroup", 0, 9, _join_request, _join_response)

# A coordinator that reads its log knows nothing yet of the member, nor of the rebalance that it was in. Clients do not
# expect COORDINATOR_LOAD_IN_PROGRESS from these two: aiokafka's consumer stops for good, Java's fails in poll. As in
# Kafka, a heartbeat has no error; and as in Kafka 3, a member that syncs joins again, which it does until there is a
# coordinator.


def _loading(code: int, substitute: int) -> int:
    return substitute if code == kafka.CoordinatorLoadInProgress.code else code


SYNC_NAMES_PROTOCOL_FROM = 5


def _sync_request(message: Message, exchange: Exchange) -> g.SyncGroupRequest:
    request = typed(g.SyncGroupRequest, message)
    if exchange.version >= SYNC_NAMES_PROTOCOL_FROM and None in (request.protocol_type, request.protocol_name):
        raise kafka.InconsistentGroupProtocol("protocol_type and protocol_name are needed from version 5 on (KIP-559)")
    return request


def _sync_response(_message: Message, response: g.SyncGroupResponse, _exchange: Exchange) -> Message:
    return {**plain(response), "error_code": _loading(response.error_code, kafka.RebalanceInProgress.code)}


def _heartbeat_response(_message: Message, response: g.HeartbeatResponse, _exchange: Exchange) -> Message:
    return {**plain(response), "error_code": _loading(response.error_code, 0)}


SYNC_GROUP = Translation("SyncGroup", 0, 5, _sync_request, _sync_response)
HEARTBEAT = Translation("Heartbeat", 0, 4, request_of(g.HeartbeatRequest), _heartbeat_response)

SEVERAL_LEAVE_FROM = 3


def _leave_request(message: Message, exchange: Exchange) -> g.LeaveGroupRequest:
    if exchange.version >= SEVERAL_LEAVE_FROM:
        return typed(g.LeaveGroupRequest, message)
    members = (g.LeavingMember(member_id=message["member_id"]),)
    return g.LeaveGroupRequest(group_id=message["group_id"], members=members)


def _leave_response(_message: Message, response: Any, exchange: Exchange) -> Message:
    code = response.error_code
    if not code and exchange.version < SEVERAL_LEAVE_FROM and response.members:
        code = response.members[0].error_code
    return {**plain(response), "error_code": code}


LEAVE_GROUP = Translation("LeaveGroup", 0, 5, _leave_request, _leave_response)

# ---- OffsetCommit ----------------------------------------------------------------------------------------------------

BY_ID_FROM = 10

MEMBER_EPOCHS_FROM = 9
"""Members of the consumer protocol (KIP-848) commit and fetch with their epochs."""


def _topic_name(topic: Message, exchange: Exchange) -> str | None:
    name: str | None = exchange.topic_name(topic["topic_id"]) if exchange.version >= BY_ID_FROM else topic["name"]
    return name


def _commit_request(message: Message, exchange: Exchange) -> g.OffsetCommitRequest:
    return g.OffsetCommitRequest(
        group_id=message["group_id"],
        generation_id=message["generation_id_or_member_epoch"],
        member_id=message["member_id"],
        group_instance_id=message["group_instance_id"],
        knows_member_epochs=exchange.version >= MEMBER_EPOCHS_FROM,
        partitions=tuple(
            g.CommitPartition(
                topic=name,
                topic_id=id_text(topic["topic_id"]) if exchange.version >= BY_ID_FROM else None,
                partition=each["partition_index"],
                offset=each["committed_offset"],
                leader_epoch=each["committed_leader_epoch"],
                metadata=each["committed_metadata"] or "",
            )
            for topic in message["topics"]
            if (name := _topic_name(topic, exchange)) is not None
            for each in topic["partitions"]
        ),
    )


def _commit_response(message: Message, response: Any, exchange: Exchange) -> Message:
    codes: dict[tuple[str, int], int] = {(each.topic, each.partition): each.error_code for each in response.partitions}

    def code(name: str | None, partition: int) -> int:
        failed: int = response.error_code
        if name is None and failed != kafka.GroupAuthorizationFailed.code:
            return UNKNOWN_TOPIC_ID
        return failed or codes[name or "", partition]

    return {
        "topics": [
            {
                **topic,
                "partitions": [
                    {
                        "partition_index": each["partition_index"],
                        "error_code": code(_topic_name(topic, exchange), each["partition_index"]),
                    }
                    for each in topic["partitions"]
                ],
            }
            for topic in message["topics"]
        ]
    }


OFFSET_COMMIT = Translation("OffsetCommit", 2, 10, _commit_request, _commit_response)

# ---- OffsetFetch -----------------------------------------------------------------------------------------------------

SEVERAL_GROUPS_FROM = 8

# Before version 2 there is no place for an error of the whole group but its partitions.
_GROUP_ERROR_FROM = 2


def _fetch_groups(message: Message, exchange: Exchange) -> list[Message]:
    """The groups in the form of version 8, each once."""
    if exchange.version >= SEVERAL_GROUPS_FROM:
        return list({group["group_id"]: group for group in message["groups"]}.values())
    return [{"group_id": message["group_id"], "topics": message["topics"]}]


def _fetch_request(message: Message, exchange: Exchange) -> list[g.OffsetFetchRequest]:
    return [
        g.OffsetFetchRequest(
            group_id=group["group_id"],
            member_id=group["member_id"] if exchange.version >= MEMBER_EPOCHS_FROM else None,
            member_epoch=group["member_epoch"] if exchange.version >= MEMBER_EPOCHS_FROM else -1,
            partitions=None
            if group["topics"] is None
            else tuple(
                PartitionName(topic=name, partition=each)
                for topic in group["topics"]
                if (name := _topic_name(topic, exchange)) is not None
                for each in topic["partition_indexes"]
            ),
            require_stable=message["require_stable"],
        )
        for group in _fetch_groups(message, exchange)
    ]


def _fetch_response(message: Message, responses: list[g.OffsetFetchResponse], exchange: Exchange) -> Message:
    groups = [
        _fetched_group(group, response, exchange)
        for group, response in zip(_fetch_groups(message, exchange), responses, strict=True)
    ]
    return {"groups": groups} if exchange.version >= SEVERAL_GROUPS_FROM else groups[0]


def _fetched_group(group: Message, response: g.OffsetFetchResponse, exchange: Exchange) -> Message:
    if response.error_code and exchange.version >= _GROUP_ERROR_FROM:
        return {"group_id": group["group_id"], "error_code": response.error_code, "topics": []}
    if group["topics"] is None:
        topics = nested(response.partitions, _fetched)
        for topic in topics:
            topic["topic_id"] = exchange.topic_id(topic["name"]) or bytes(16)
        return {"group_id": group["group_id"], "error_code": 0, "topics": topics}
    found = {(each.topic, each.partition): each for each in response.partitions}

    def row(name: str | None, number: int) -> Message:
        code = UNKNOWN_TOPIC_ID if name is None else response.error_code
        if name is None or code:
            return _fetched(g.FetchedOffset(topic="", partition=number, error_code=code))
        return _fetched(found[name, number])

    topics = [
        {**topic, "partitions": [row(_topic_name(topic, exchange), each) for each in topic["partition_indexes"]]}
        for topic in group["topics"]
    ]
    return {"group_id": group["group_id"], "error_code": 0, "topics": topics}


def _fetched(answer: g.FetchedOffset) -> Message:
    return {
        "partition_index": answer.partition,
        "committed_offset": answer.offset,
        "committed_leader_epoch": answer.leader_epoch,
        "metadata": answer.metadata,
        "error_code": answer.error_code,
    }


OFFSET_FETCH = Translation("OffsetFetch", 1, 10, _fetch_request, _fetch_response)

# ---- OffsetDelete ----------------------------------------------------------------------------------------------------


def _delete_offsets_request(message: Message, _exchange: Exchange) -> g.OffsetDeleteRequest:
    return g.OffsetDeleteRequest(group_id=message["group_id"], partitions=flat(PartitionName, message["topics"]))


def _delete_offsets_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    if response.error_code:
        return {"error_code": response.error_code, "topics": []}
    codes = {(each.topic, each.partition): each.error_code for each in response.partitions}

    def row(topic: str, each: Message) -> Message:
        number = each["partition_index"]
        return {"partition_index": number, "error_code": codes[topic, number]}

    # As in Kafka, a topic without partitions is not answered.
    asked = [each for each in message["topics"] if each["partitions"]]
    return {"error_code": 0, "topics": in_request_order(asked, row)}


OFFSET_DELETE = Translation("OffsetDelete", 0, 0, _delete_offsets_request, _delete_offsets_response)

# ---- ListGroups, DescribeGroups, DeleteGroups ------------------------------------------------------------------------


def _list_request(message: Message, _exchange: Exchange) -> g.ListGroupsRequest:
    return g.ListGroupsRequest(states=tuple(message["states_filter"]), types=tuple(message["types_filter"]))


def _list_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    def group(each: g.ListedGroup) -> Message:
        return {**plain(each), "group_state": each.state}

    return {"error_code": response.error_code, "groups": list(map(group, response.groups))}


LIST_GROUPS = Translation("ListGroups", 0, 5, _list_request, _list_response)

# A group that does not exist is Dead, and no error before version 6 (KIP-1043).
_DESCRIBE_CODES = {69: (6, 0)}


def _describe_response(message: Message, response: Any, exchange: Exchange) -> Message:
    wants_operations = message["include_authorized_operations"]
    asked: list[Message] = [{"group_id": name} for name in message["groups"]]

    def member(each: g.DescribedMember) -> Message:
        return {**plain(each), "member_metadata": each.metadata, "member_assignment": each.assignment}

    return {
        "groups": [
            {
                **plain(each),
                "error_code": code,
                "group_state": each.state,
                "protocol_data": each.protocol,
                "members": list(map(member, each.members)),
                "authorized_operations": exchange.directory.operations(ResourceType.GROUP, each.group_id)
                if wants_operations and not code
                else NOT_ASKED,
            }
            for each in each_answer(response, response.groups, g.DescribedGroup, asked)
            for code in (code_for(each.error_code, exchange.version, _DESCRIBE_CODES),)
        ]
    }


DESCRIBE_GROUPS = Translation("DescribeGroups", 0, 6, request_of(g.DescribeGroupsRequest), _describe_response)


def _delete_groups_request(message: Message, _exchange: Exchange) -> g.DeleteGroupsRequest:
    return g.DeleteGroupsRequest(groups=tuple(message["groups_names"]))


def _delete_groups_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    asked: list[Message] = [{"group_id": name} for name in message["groups_names"]]
    return {"results": [plain(each) for each in each_answer(response, response.groups, g.DeletedGroup, asked)]}


DELETE_GROUPS = Translation("DeleteGroups", 0, 2, _delete_groups_request, _delete_groups_response)
