"""Consumer groups under the classic protocol: finding, joining, committing, describing."""

from __future__ import annotations

from typing import Any

from minikafka.wire.acls import ResourceType
from minikafka.wire.group_messages import (
    CommitPartition,
    Coordinator,
    DeletedGroup,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    FetchedOffset,
    FindCoordinatorRequest,
    GroupPartition,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import NOT_ASKED, UNKNOWN_TOPIC_ID, Exchange, Translation, code_for
from minikafka.wire.messages import Failed

# ---- FindCoordinator -------------------------------------------------------------------------------------------------

BATCHED_FIND_FROM = 4


def _find_keys(message: Message, exchange: Exchange) -> list[str]:
    return message["coordinator_keys"] if exchange.version >= BATCHED_FIND_FROM else [message["key"]]


def _find_request(message: Message, exchange: Exchange) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(keys=tuple(_find_keys(message, exchange)), key_type=message["key_type"])


def _find_response(message: Message, response: Any, exchange: Exchange) -> Message:
    if response.error_code:
        found = [
            Coordinator(key=key, error_code=response.error_code, error_message=response.error_message, port=-1)
            for key in _find_keys(message, exchange)
        ]
    else:
        found = list(response.coordinators)
    rows = [
        {
            "key": each.key,
            "node_id": each.node_id,
            "host": each.host,
            "port": each.port,
            "error_code": each.error_code,
            "error_message": each.error_message or None,
        }
        for each in found
    ]
    return {**rows[0], "coordinators": rows} if exchange.version < BATCHED_FIND_FROM else {"coordinators": rows}


FIND_COORDINATOR = Translation("FindCoordinator", 0, 6, _find_request, _find_response)

# ---- JoinGroup -------------------------------------------------------------------------------------------------------

MEMBER_ID_FIRST_FROM = 4
"""Clients that know MEMBER_ID_REQUIRED (KIP-394)."""


def _join_request(message: Message, exchange: Exchange) -> JoinGroupRequest:
    session_ms = message["session_timeout_ms"]
    return JoinGroupRequest(
        group_id=message["group_id"],
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=message["rebalance_timeout_ms"] if exchange.version >= 1 else session_ms,
        member_id=message["member_id"],
        group_instance_id=message["group_instance_id"],
        protocol_type=message["protocol_type"],
        protocols=tuple(GroupProtocol(name=each["name"], metadata=each["metadata"]) for each in message["protocols"]),
        client_id=exchange.client_id,
        reason=message["reason"] or "",
        needs_member_id=exchange.version >= MEMBER_ID_FIRST_FROM,
    )


def _join_response(message: Message, response: JoinGroupResponse, exchange: Exchange) -> Message:
    name = response.protocol_name
    return {
        "error_code": response.error_code,
        "generation_id": response.generation_id,
        "protocol_type": response.protocol_type,
        "protocol_name": name if name is not None or exchange.version >= 7 else "",
        "leader": response.leader,
        "skip_assignment": response.skip_assignment,
        "member_id": response.member_id or message["member_id"],
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.group_instance_id, "metadata": each.metadata}
            for each in response.members
        ],
    }


JOIN_GROUP = Translation("JoinGroup", 0, 9, _join_request, _join_response)

# ---- SyncGroup, Heartbeat, LeaveGroup --------------------------------------------------------------------------------


def _sync_request(message: Message, _exchange: Exchange) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=message["group_id"],
        generation_id=message["generation_id"],
        member_id=message["member_id"],
        group_instance_id=message["group_instance_id"],
        protocol_type=message["protocol_type"],
        protocol_name=message["protocol_name"],
        assignments=tuple(
            MemberAssignment(member_id=each["member_id"], assignment=each["assignment"])
            for each in message["assignments"]
        ),
    )


def _sync_response(_message: Message, response: SyncGroupResponse, _exchange: Exchange) -> Message:
    return {
        "error_code": response.error_code,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol_name,
        "assignment": response.assignment,
    }


SYNC_GROUP = Translation("SyncGroup", 0, 5, _sync_request, _sync_response)


def _heartbeat_request(message: Message, _exchange: Exchange) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=message["group_id"],
        generation_id=message["generation_id"],
        member_id=message["member_id"],
        group_instance_id=message["group_instance_id"],
    )


def _error_only(_message: Message, response: Failed, _exchange: Exchange) -> Message:
    return {"error_code": response.error_code}


HEARTBEAT = Translation("Heartbeat", 0, 4, _heartbeat_request, _error_only)

SEVERAL_LEAVE_FROM = 3


def _leave_request(message: Message, exchange: Exchange) -> LeaveGroupRequest:
    members: tuple[LeavingMember, ...] = (LeavingMember(member_id=message["member_id"]),)
    if exchange.version >= SEVERAL_LEAVE_FROM:
        members = tuple(
            LeavingMember(
                member_id=each["member_id"],
                group_instance_id=each["group_instance_id"],
                reason=each["reason"] or "",
            )
            for each in message["members"]
        )
    return LeaveGroupRequest(group_id=message["group_id"], members=members)


def _leave_response(_message: Message, response: Any, exchange: Exchange) -> Message:
    code = response.error_code
    if not code and exchange.version < SEVERAL_LEAVE_FROM and response.members:
        code = response.members[0].error_code
    return {
        "error_code": code,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.group_instance_id,
                "error_code": each.error_code,
            }
            for each in response.members
        ],
    }


LEAVE_GROUP = Translation("LeaveGroup", 0, 5, _leave_request, _leave_response)

# ---- OffsetCommit ----------------------------------------------------------------------------------------------------

BY_ID_FROM = 10

MEMBER_EPOCHS_FROM = 9
"""Members of the consumer protocol (KIP-848) commit and fetch with their epochs."""


def _topic_name(topic: Message, exchange: Exchange) -> str | None:
    name: str | None = exchange.topic_name(topic["topic_id"]) if exchange.version >= BY_ID_FROM else topic["name"]
    return name


def _commit_request(message: Message, exchange: Exchange) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=message["group_id"],
        generation_id=message["generation_id_or_member_epoch"],
        member_id=message["member_id"],
        group_instance_id=message["group_instance_id"],
        knows_member_epochs=exchange.version >= MEMBER_EPOCHS_FROM,
        partitions=tuple(
            CommitPartition(
                topic=name,
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
        if name is None:
            return UNKNOWN_TOPIC_ID
        failed: int = response.error_code
        return failed or codes[name, partition]

    return {
        "topics": [
            {
                "name": topic["name"],
                "topic_id": topic["topic_id"],
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
    """The groups in the form of version 8."""
    if exchange.version >= SEVERAL_GROUPS_FROM:
        groups: list[Message] = message["groups"]
        return groups
    return [{"group_id": message["group_id"], "topics": message["topics"]}]


def _fetch_request(message: Message, exchange: Exchange) -> list[OffsetFetchRequest]:
    return [
        OffsetFetchRequest(
            group_id=group["group_id"],
            member_id=group["member_id"] if exchange.version >= MEMBER_EPOCHS_FROM else None,
            member_epoch=group["member_epoch"] if exchange.version >= MEMBER_EPOCHS_FROM else -1,
            partitions=None
            if group["topics"] is None
            else tuple(
                GroupPartition(topic=name, partition=each)
                for topic in group["topics"]
                if (name := _topic_name(topic, exchange)) is not None
                for each in topic["partition_indexes"]
            ),
            require_stable=message["require_stable"],
        )
        for group in _fetch_groups(message, exchange)
    ]


def _fetch_response(message: Message, responses: list[OffsetFetchResponse], exchange: Exchange) -> Message:
    groups = [
        _fetched_group(group, response, exchange)
        for group, response in zip(_fetch_groups(message, exchange), responses, strict=True)
    ]
    return {"groups": groups} if exchange.version >= SEVERAL_GROUPS_FROM else groups[0]


def _fetched_group(group: Message, response: OffsetFetchResponse, exchange: Exchange) -> Message:
    if response.error_code and exchange.version >= _GROUP_ERROR_FROM:
        return {"group_id": group["group_id"], "error_code": response.error_code, "topics": []}
    topics: list[Message] = []
    if group["topics"] is None:
        rows: dict[str, list[Message]] = {}
        for each in response.partitions:
            rows.setdefault(each.topic, []).append(_fetched(each))
        topics = [
            {"name": name, "topic_id": exchange.topic_id(name) or bytes(16), "partitions": partitions}
            for name, partitions in rows.items()
        ]
    else:
        found = {(each.topic, each.partition): each for each in response.partitions}
        for topic in group["topics"]:
            name = _topic_name(topic, exchange)
            partitions = []
            for number in topic["partition_indexes"]:
                if name is None:
                    answer = FetchedOffset(topic="", partition=number, error_code=UNKNOWN_TOPIC_ID)
                elif response.error_code:
                    answer = FetchedOffset(topic=name, partition=number, error_code=response.error_code)
                else:
                    answer = found[name, number]
                partitions.append(_fetched(answer))
            topics.append({"name": topic["name"], "topic_id": topic.get("topic_id"), "partitions": partitions})
    return {"group_id": group["group_id"], "error_code": 0, "topics": topics}


def _fetched(answer: FetchedOffset) -> Message:
    return {
        "partition_index": answer.partition,
        "committed_offset": answer.offset,
        "committed_leader_epoch": answer.leader_epoch,
        "metadata": answer.metadata,
        "error_code": answer.error_code,
    }


OFFSET_FETCH = Translation("OffsetFetch", 1, 10, _fetch_request, _fetch_response)

# ---- OffsetDelete ----------------------------------------------------------------------------------------------------


def _delete_offsets_request(message: Message, _exchange: Exchange) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=message["group_id"],
        partitions=tuple(
            GroupPartition(topic=topic["name"], partition=each["partition_index"])
            for topic in message["topics"]
            for each in topic["partitions"]
        ),
    )


def _delete_offsets_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    if response.error_code:
        return {"error_code": response.error_code, "topics": []}
    codes = {(each.topic, each.partition): each.error_code for each in response.partitions}
    return {
        "error_code": 0,
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": each["partition_index"],
                        "error_code": codes[topic["name"], each["partition_index"]],
                    }
                    for each in topic["partitions"]
                ],
            }
            for topic in message["topics"]
        ],
    }


OFFSET_DELETE = Translation("OffsetDelete", 0, 0, _delete_offsets_request, _delete_offsets_response)

# ---- ListGroups, DescribeGroups, DeleteGroups ------------------------------------------------------------------------


def _list_request(message: Message, _exchange: Exchange) -> ListGroupsRequest:
    return ListGroupsRequest(states=tuple(message["states_filter"]), types=tuple(message["types_filter"]))


def _list_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    return {
        "error_code": response.error_code,
        "groups": [
            {
                "group_id": each.group_id,
                "protocol_type": each.protocol_type,
                "group_state": each.state,
                "group_type": each.group_type,
            }
            for each in response.groups
        ],
    }


LIST_GROUPS = Translation("ListGroups", 0, 5, _list_request, _list_response)

# A group that does not exist is Dead, and no error before version 6 (KIP-1043).
_DESCRIBE_CODES = {69: (6, 0)}


def _describe_request(message: Message, _exchange: Exchange) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=tuple(message["groups"]))


def _describe_response(message: Message, response: Any, exchange: Exchange) -> Message:
    if response.error_code:
        found = [
            DescribedGroup(group_id=name, error_code=response.error_code, error_message=response.error_message)
            for name in message["groups"]
        ]
    else:
        found = list(response.groups)
    wants_operations = message["include_authorized_operations"]
    return {
        "groups": [
            {
                "error_code": code,
                "error_message": each.error_message or None,
                "group_id": each.group_id,
                "group_state": each.state,
                "protocol_type": each.protocol_type,
                "protocol_data": each.protocol,
                "members": [
                    {
                        "member_id": member.member_id,
                        "group_instance_id": member.group_instance_id,
                        "client_id": member.client_id,
                        "client_host": member.client_host,
                        "member_metadata": member.metadata,
                        "member_assignment": member.assignment,
                    }
                    for member in each.members
                ],
                "authorized_operations": exchange.directory.operations(ResourceType.GROUP, each.group_id)
                if wants_operations and not code
                else NOT_ASKED,
            }
            for each in found
            for code in (code_for(each.error_code, exchange.version, _DESCRIBE_CODES),)
        ]
    }


DESCRIBE_GROUPS = Translation("DescribeGroups", 0, 6, _describe_request, _describe_response)


def _delete_groups_request(message: Message, _exchange: Exchange) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups=tuple(message["groups_names"]))


def _delete_groups_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    if response.error_code:
        results = [DeletedGroup(group_id=name, error_code=response.error_code) for name in message["groups_names"]]
    else:
        results = list(response.groups)
    return {"results": [{"group_id": each.group_id, "error_code": each.error_code} for each in results]}


DELETE_GROUPS = Translation("DeleteGroups", 0, 2, _delete_groups_request, _delete_groups_response)
