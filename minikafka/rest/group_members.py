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

from typing import Any

from minikafka.client.settings import ASSIGNORS
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
from minikafka.rest.body import Members
from minikafka.rest.coordinators import from_coordinator
from minikafka.rest.group_joining import (
    MAX_WAIT_MS,
    REBALANCE_MS_DEFAULT,
    RESETS,
    SESSION_MS_DEFAULT,
    counts_dealt,
    partition_count,
    post_member,
)
from minikafka.rest.group_offsets import (
    COMMIT_ANSWERS,
    COMMIT_BODY,
    COMMIT_EXAMPLE,
    COMMIT_PROBLEMS,
    commits_in,
    committed,
)
from minikafka.rest.groups import (
    COORDINATOR_PROBLEMS,
    GENERATION,
    GROUP,
    MEMBER,
    NOTE,
    PARTITIONS,
    PARTITIONS_EXAMPLE,
    document_of,
)
from minikafka.rest.parameters import FORWARD, INT32_MAX
from minikafka.rest.route import Answer, Route, json_body
from minikafka.rest.schema import flag, many, nullable, one_of, ref, shape, text, whole
from minikafka.rest.visit import Reply, Visit
from minikafka.web.problems import Fault, unacceptable
from minikafka.wire import group_messages as g
from minikafka.wire.outcomes import failure_of

# ---- living, committing, leaving -------------------------------------------------------------------------------------


async def post_heartbeat(visit: Visit) -> Reply:
    """Say that the member lives; 409 REBALANCE_IN_PROGRESS: it is to join again."""
    group, member = visit[GROUP], visit[MEMBER]
    document, note = await document_of(visit)
    faults: list[Fault] = []
    members = Members(document, "", faults)
    generation, instance_id = _standing(members, document)
    members.done()
    if faults:
        raise unacceptable(faults)
    request = g.HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance_id
    )
    await from_coordinator(visit, group, request)
    await _check_counts(visit, group, member, generation)
    return Reply({"group": group, "member_id": member, "generation": generation, **note})


def _standing(members: Members, document: dict[str, Any]) -> tuple[int, str | None]:
    """Generation and instance id; what is wrong with them is noted."""
    if "generation" not in document:
        members.wrong("generation", "is missing; the answer to the join has it")
    return members.integer("generation", -1, low=0, high=INT32_MAX), members.text("group_instance_id") or None


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


async def put_member_offsets(visit: Visit) -> Reply:
    """Commit as a member: the next offsets to read. Counts as a heartbeat; refused when the group has gone on."""
    document, note = await document_of(visit)
    faults: list[Fault] = []
    members = Members(document, "", faults)
    generation, instance_id = _standing(members, document)
    partitions = commits_in(members, faults)
    members.done()
    if faults:
        raise unacceptable(faults)
    request = g.OffsetCommitRequest(
        group_id=visit[GROUP],
        generation_id=generation,
        member_id=visit[MEMBER],
        group_instance_id=instance_id,
        partitions=partitions,
    )
    return await committed(visit, request, note)


async def delete_member(visit: Visit) -> Reply:
    """Leave the group, or remove a member: the others share its partitions at once."""
    group, member = visit[GROUP], visit[MEMBER]
    leaving = g.LeavingMember(member_id=member, reason="left over /v1")
    response: g.LeaveGroupResponse = await from_coordinator(
        visit, group, g.LeaveGroupRequest(group_id=group, members=(leaving,)), repeatable=False
    )
    for each in response.members:
        if each.error_code:
            raise failure_of(each)
    return Reply({"group": group, "member_id": member, "left": True})


# ---- the doors -------------------------------------------------------------------------------------------------------

_PATH = "/v1/groups/{group}/members"
MEMBER_PROBLEMS: tuple[type[ProtocolError], ...] = (
    *COORDINATOR_PROBLEMS,
    FencedInstanceId,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMemberId,
)
_JOIN_EXAMPLE = {"topics": ["orders"], "client_id": "curl", "auto_offset_reset": "earliest"}

ROUTES = (
    Route(
        method="POST",
        path=_PATH,
        handler=post_member,
        tag="groups",
        parameters=(GROUP, MAX_WAIT_MS, FORWARD),
        body=json_body(
            shape(
                "A member, new or known.",
                optional=(
                    *("member_id", "group_instance_id", "client_id", "assignors", "session_timeout_ms"),
                    *("rebalance_timeout_ms", "auto_offset_reset", "owned", "generation"),
                ),
                topics=many(text(), "What it reads.", minItems=1),
                member_id=text("Left out at first; then the one of the answer."),
                group_instance_id=text("A static member: it keeps its partitions over a restart (KIP-345)."),
                client_id=text("What tools show; `http` when left out."),
                assignors=many(one_of("", *ASSIGNORS), "The favourite first; `range` when left out.", minItems=1),
                session_timeout_ms=whole(
                    f"The group goes on without a member that is silent for so long; {SESSION_MS_DEFAULT}."
                ),
                rebalance_timeout_ms=whole(
                    f"How long the group waits for it to join again; {REBALANCE_MS_DEFAULT}.",
                    minimum=1,
                    maximum=INT32_MAX,
                ),
                auto_offset_reset=one_of("Where `begin` is without a commit; `latest`.", *RESETS),
                owned={**PARTITIONS, "description": "With a cooperative or sticky assignor: what it has had."},
                generation={**GENERATION, "description": "In which it got `owned`."},
            ),
            _JOIN_EXAMPLE,
        ),
        answers={
            200: Answer(
                description="It is a member, and these partitions are its own until the next rebalance.",
                schema=shape(
                    optional=("note",),
                    group=text(),
                    member_id=text("For every later call."),
                    generation=GENERATION,
                    assignor=text("What the members agreed on."),
                    leads=flag("It is the group's leader: the broker has dealt in its name."),
                    assignment=PARTITIONS,
                    committed=many(
                        shape(
                            topic=ref("TopicName"),
                            partition=ref("PartitionNumber"),
                            offset=nullable(whole("What the group has committed; null: nothing.")),
                            begin=nullable(whole("Where to begin to read; null: not known now.")),
                        )
                    ),
                    revoked={**PARTITIONS, "description": "Of `owned`: another's. Stop reading them and join again."},
                    session_timeout_ms=whole("A heartbeat or a commit is due within this time."),
                    note=NOTE,
                ),
                example={
                    "group": "billing",
                    "member_id": "curl-2f1c0d8f7f3f4e6b",
                    "generation": 1,
                    "assignor": "range",
                    "leads": True,
                    "assignment": PARTITIONS_EXAMPLE,
                    "committed": [
                        {"topic": "orders", "partition": 0, "offset": 41, "begin": 41},
                        {"topic": "orders", "partition": 1, "offset": None, "begin": 0},
                    ],
                    "revoked": [],
                    "session_timeout_ms": SESSION_MS_DEFAULT,
                },
            )
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
        body=json_body(
            shape("Where it stands.", optional=("group_instance_id",), generation=GENERATION, group_instance_id=text()),
            {"generation": 1},
        ),
        answers={
            200: Answer(
                description="It lives, and nothing has changed.",
                schema=shape(optional=("note",), group=text(), member_id=text(), generation=GENERATION, note=NOTE),
                example={"group": "billing", "member_id": "curl-2f1c0d8f7f3f4e6b", "generation": 1},
            )
        },
        problems=MEMBER_PROBLEMS,
    ),
    Route(
        method="PUT",
        path=_PATH + "/{member}/offsets",
        handler=put_member_offsets,
        tag="groups",
        parameters=(GROUP, MEMBER, FORWARD),
        body=json_body(
            shape(
                "What it has read.",
                optional=("group_instance_id",),
                generation=GENERATION,
                group_instance_id=text(),
                **COMMIT_BODY,
            ),
            {"generation": 1, **COMMIT_EXAMPLE},
        ),
        answers=COMMIT_ANSWERS,
        problems=(*MEMBER_PROBLEMS, *(each for each in COMMIT_PROBLEMS if each not in COORDINATOR_PROBLEMS)),
    ),
    Route(
        method="DELETE",
        path=_PATH + "/{member}",
        handler=delete_member,
        tag="groups",
        parameters=(GROUP, MEMBER, FORWARD),
        answers={
            200: Answer(
                description="It is no member any more.",
                schema=shape(group=text(), member_id=text(), left=flag()),
                example={"group": "billing", "member_id": "curl-2f1c0d8f7f3f4e6b", "left": True},
            )
        },
        problems=(*COORDINATOR_PROBLEMS, FencedInstanceId, UnknownMemberId),
    ),
)
