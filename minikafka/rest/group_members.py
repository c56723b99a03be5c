"""``/v1/groups/{group}/members``: being a member of a group with nothing but HTTP.

Joining is one call, which returns with an assignment and where to begin in each partition; behind it are JoinGroup,
SyncGroup and OffsetFetch. When the coordinator makes this member the leader, the door deals the partitions with the
assignors that the Python client uses. From then on the member says that it lives (heartbeat), commits, and leaves;
409 REBALANCE_IN_PROGRESS asks it to join again, with its member id.

- The door keeps nothing between two calls. What the partitions were when it dealt them is kept in the leader's own
  assignment, so that the leader's heartbeat, at whichever broker, sees that a topic has grown (S31).
- Between giving up and joining again a member with a cooperative assignor names what it keeps in ``owned``; what is in
  ``revoked`` of the answer it must stop reading, and join again.
"""

from __future__ import annotations

from minikafka.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    ProtocolError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from minikafka.rest.coordinators import from_coordinator
from minikafka.rest.group_joining import MAX_WAIT_MS, Joined, Wish, counts_dealt, partition_count, post_member
from minikafka.rest.group_offsets import COMMIT_ANSWERS, COMMIT_PROBLEMS, Commit, committed, committing
from minikafka.rest.groups import COORDINATOR_PROBLEMS, GENERATION, GROUP, MEMBER, PARTITION_COUNT_MAX
from minikafka.rest.model import Model, many_of, member, note
from minikafka.rest.parameters import FORWARD
from minikafka.rest.route import Route
from minikafka.rest.schema import flag, text
from minikafka.rest.visit import Reply, Visit
from minikafka.wire import group_messages as g
from minikafka.wire.outcomes import failure_of

# ---- living, committing, leaving -------------------------------------------------------------------------------------


class _Standing(Model):
    """Where it stands."""

    generation: int = member({**GENERATION, "minimum": 0}, 1, if_missing="the answer to the join has it")
    group_instance_id: str | None = member(text(), default=None)


class _Lives(Model):
    """A member that lives."""

    group: str = member(text(), "billing")
    member_id: str = member(text(), MEMBER.example)
    generation: int = member(GENERATION, 1)
    note: str | None = note()


async def post_heartbeat(visit: Visit) -> Reply:
    """Say that the member lives; 409 REBALANCE_IN_PROGRESS: it is to join again."""
    group, member_id = visit[GROUP], visit[MEMBER]
    standing = await _Standing.sent(visit)
    request = g.HeartbeatRequest(
        group_id=group,
        generation_id=standing.generation,
        member_id=member_id,
        group_instance_id=standing.group_instance_id or None,
    )
    await from_coordinator(visit, group, request)
    await _check_counts(visit, group, member_id, standing.generation)
    return Reply(_Lives.out_of(standing, group=group, member_id=member_id, note=visit.note))


async def _check_counts(visit: Visit, group: str, member: str, generation: int) -> None:
    """The leader that was dealt for by a door learns when topics have more partitions, or are gone (S31)."""
    response: g.DescribeGroupsResponse = await from_coordinator(
        visit, group, g.DescribeGroupsRequest(groups=(group,)), failed=lambda _: None
    )
    found = response.groups[0]
    if found.error_code or found.leader != member or found.generation_id != generation:
        return
    own = next((each for each in found.members if each.member_id == member), None)
    for topic, count in counts_dealt(own).items():
        if partition_count(visit.host, topic) != count:
            raise RebalanceInProgress(
                f"{topic} has {partition_count(visit.host, topic)} partitions, {count} were shared out: join again"
            )


class _MemberCommits(_Standing):
    """What it has read."""

    offsets: list[Commit] = many_of(Commit, minItems=1, maxItems=PARTITION_COUNT_MAX)


async def put_member_offsets(visit: Visit) -> Reply:
    """Commit as a member: the next offsets to read. Counts as a heartbeat; refused when the group has gone on."""
    sent = await _MemberCommits.sent(visit)
    request = g.OffsetCommitRequest(
        group_id=visit[GROUP],
        generation_id=sent.generation,
        member_id=visit[MEMBER],
        group_instance_id=sent.group_instance_id or None,
        partitions=committing(sent.offsets),
    )
    return await committed(visit, request)


class _Left(Model):
    """A member that has left its group."""

    group: str = member(text(), "billing")
    member_id: str = member(text(), MEMBER.example)
    left: bool = member(flag(), example=True)


async def delete_member(visit: Visit) -> Reply:
    """Leave the group, or remove a member: the others share its partitions at once."""
    group, member_id = visit[GROUP], visit[MEMBER]
    leaving = g.LeavingMember(member_id=member_id, reason="left over /v1")
    response: g.LeaveGroupResponse = await from_coordinator(
        visit, group, g.LeaveGroupRequest(group_id=group, members=(leaving,)), repeatable=False
    )
    for each in response.members:
        if each.error_code:
            raise failure_of(each)
    return Reply(_Left(group=group, member_id=member_id, left=True).out())


# ---- the doors -------------------------------------------------------------------------------------------------------

_PATH = "/v1/groups/{group}/members"
MEMBER_PROBLEMS: tuple[type[ProtocolError], ...] = (
    *COORDINATOR_PROBLEMS,
    FencedInstanceId,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMemberId,
)

ROUTES = (
    Route(
        method="POST",
        path=_PATH,
        handler=post_member,
        tag="groups",
        parameters=(GROUP, MAX_WAIT_MS, FORWARD),
        body=Wish.body(),
        answers={
            200: Joined.answer("It is a member, and these partitions are its own until the next rebalance.", revoked=[])
        },
        problems=(
            *MEMBER_PROBLEMS,
            GroupMaxSizeReached,
            InconsistentGroupProtocol,
            InvalidRequest,
            InvalidSessionTimeout,
            UnknownTopicOrPartition,
        ),
    ),
    Route(
        method="POST",
        path=_PATH + "/{member}/heartbeat",
        handler=post_heartbeat,
        tag="groups",
        parameters=(GROUP, MEMBER, FORWARD),
        body=_Standing.body(),
        answers={200: _Lives.answer("It lives, and nothing has changed.")},
        problems=MEMBER_PROBLEMS,
    ),
    Route(
        method="PUT",
        path=_PATH + "/{member}/offsets",
        handler=put_member_offsets,
        tag="groups",
        parameters=(GROUP, MEMBER, FORWARD),
        body=_MemberCommits.body(),
        answers=COMMIT_ANSWERS,
        problems=(*MEMBER_PROBLEMS, *(each for each in COMMIT_PROBLEMS if each not in COORDINATOR_PROBLEMS)),
    ),
    Route(
        method="DELETE",
        path=_PATH + "/{member}",
        handler=delete_member,
        tag="groups",
        parameters=(GROUP, MEMBER, FORWARD),
        answers={200: _Left.answer("It is no member any more.")},
        problems=(*COORDINATOR_PROBLEMS, FencedInstanceId, UnknownMemberId),
    ),
)
