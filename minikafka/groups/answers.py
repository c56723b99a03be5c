"""The answers of JoinGroup and SyncGroup, made from the group's state.

Rule for this file: it reads the group and changes nothing.
"""

from __future__ import annotations

from minikafka.errors import ProtocolError
from minikafka.groups.group import Group, Member, State
from minikafka.wire.group_messages import JoinedMember, JoinGroupResponse, SyncGroupResponse


def joined(group: Group, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
    """The generation; only its leader receives the list of members."""
    protocol = group.protocol or ""
    leads = group.leader == member.member_id and (group.state is State.COMPLETING or skip_assignment)
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol,
        leader=group.leader or "",
        member_id=member.member_id,
        skip_assignment=skip_assignment,
        members=tuple(
            JoinedMember(member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata(protocol))
            for each in group.members.values()
        )
        if leads
        else (),
    )


def synced(group: Group, member: Member) -> SyncGroupResponse:
    """The member's own assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def failed_join(error: ProtocolError, *, member_id: str = "") -> JoinGroupResponse:
    """A refusal; ``member_id`` where the error hands one out (KIP-394)."""
    return JoinGroupResponse(error_code=error.code, error_message=error.message, member_id=member_id)


def failed_sync(error: ProtocolError) -> SyncGroupResponse:
    """A refusal."""
    return SyncGroupResponse(error_code=error.code, error_message=error.message)
