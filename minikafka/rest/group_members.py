"""``/v1/groups/{group}/members``: being a member of a group with nothing but HTTP.

Joining is one call, which returns with an assignment and where to begin in each partition; behind it are JoinGroup,
SyncGroup and OffsetFetch. When the coordinator makes this member the leader, the door deals the partitions with the
assignors that the Python client uses. From then on the member says that it lives (heartbeat), commits, and leaves;
409 REBALANCE_IN_PROGRESS asks it to join again, with its member id.

- A join that has not ended when ``max_wait_ms`` is over is 409 with the member's id: its place is kept, join again.
- The door keeps nothing between two calls. What the partitions were when it dealt them is kept in the leader's own
  assignment, so that the leader's heartbeat, at whichever broker, sees that a topic has grown (S31).
- Between giving up and joining again a member with a cooperative assignor names what it keeps in ``owned``; what is in
  ``revoked`` of the answer it must stop reading, and join again.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from minikafka.client.settings import ASSIGNORS
from minikafka.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    NetworkException,
    ProtocolError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from minikafka.groups.assignors import COOPERATIVE, GroupMember
from minikafka.groups.protocol import PROTOCOL_TYPE, Assignment, Subscription
from minikafka.rest.coordinators import from_coordinator, look_up
from minikafka.rest.group_offsets import (
    COMMIT_ANSWERS,
    COMMIT_BODY,
    COMMIT_EXAMPLE,
    COMMIT_PROBLEMS,
    commits_in,
    committed,
)
from minikafka.rest.group_parts import (
    GENERATION,
    GROUP,
    MEMBER,
    NOTE,
    PARTITIONS,
    PARTITIONS_EXAMPLE,
    document_of,
    partitions_in,
    partitions_out,
)
from minikafka.rest.groups import COORDINATOR_PROBLEMS
from minikafka.rest.host import WAIT_MS_MAX, Host
from minikafka.rest.leaders import failure_of, unknown_topic
from minikafka.rest.members import Members, nearest, shown
from minikafka.rest.parameters import FORWARD, INT32_MAX, Integer
from minikafka.rest.problems import Fault, Refused, unacceptable
from minikafka.rest.route import Answer, Route, json_body
from minikafka.rest.schema import flag, many, nullable, one_of, ref, shape, text, whole
from minikafka.rest.visit import Reply, Visit
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.messages import EARLIEST, LATEST

# Kafka's session.timeout.ms: a person types slower than a program beats, and may ask for more.
SESSION_MS_DEFAULT = 45_000
REBALANCE_MS_DEFAULT = 60_000
ASSIGNORS_DEFAULT = ("range",)
RESETS = {"earliest": EARLIEST, "latest": LATEST}

MAX_WAIT_MS = Integer(
    name="max_wait_ms",
    description="How long to wait for the rebalance to end; then 409, with the member's id to join again with.",
    default=WAIT_MS_MAX,
    low=0,
    high=WAIT_MS_MAX,
)


# ---- joining ---------------------------------------------------------------------------------------------------------


class Wish:
    """What a body says about a member."""

    def __init__(self, document: dict[str, Any], host: Host, client_host: str) -> None:
        faults: list[Fault] = []
        members = Members(document, "", faults)
        self.topics = _topics_in(members)
        self.member_id = members.text("member_id")
        self.instance_id = members.text("group_instance_id") or None
        self.client_id = members.text("client_id") or "http"
        self.client_host = client_host
        self.assignors = _assignors_in(members)
        self.session_ms = members.integer("session_timeout_ms", SESSION_MS_DEFAULT, low=-INT32_MAX, high=INT32_MAX)
        self.rebalance_ms = members.integer("rebalance_timeout_ms", REBALANCE_MS_DEFAULT, low=1, high=INT32_MAX)
        self.generation = members.integer("generation", -1, low=-1, high=INT32_MAX)
        self.owned = tuple(partitions_in(members, "owned", faults))
        self.reset = members.text("auto_offset_reset") or "latest"
        if self.reset not in RESETS:
            members.wrong("auto_offset_reset", f"one of {', '.join(RESETS)} is needed, not {shown(self.reset)}")
        members.done()
        if faults:
            raise unacceptable(faults)
        for topic in self.topics:
            if topic not in host.image.topics:
                raise unknown_topic(topic)

    def request(self, group: str) -> g.JoinGroupRequest:
        """As JoinGroup."""
        return g.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(self._protocol(each) for each in self.assignors),
            client_id=self.client_id,
            client_host=self.client_host,
        )

    def _protocol(self, name: str) -> g.GroupProtocol:
        assignor = ASSIGNORS[name]
        cooperative = assignor.rebalance == COOPERATIVE
        subscription = Subscription(
            topics=self.topics,
            user_data=assignor.user_data(self.owned, self.generation),
            owned=self.owned if cooperative else (),
            generation=self.generation if cooperative else g.NO_GENERATION,
        )
        return g.GroupProtocol(name=name, metadata=subscription.packed())


def _topics_in(members: Members) -> tuple[str, ...]:
    given = members.list("topics")
    if not given or any(type(each) is not str or not each for each in given):
        members.wrong("topics", f"a list of topic names is needed, not {shown(given)}")
        return ()
    return tuple(dict.fromkeys(given))


def _assignors_in(members: Members) -> tuple[str, ...]:
    given = members.any("assignors")
    if given is None:
        return ASSIGNORS_DEFAULT
    known = ", ".join(ASSIGNORS)
    if type(given) is not list or not given:
        members.wrong("assignors", f"a list of some of {known} is needed, not {shown(given)}")
        return ASSIGNORS_DEFAULT
    for each in given:
        if type(each) is not str or each not in ASSIGNORS:
            members.wrong("assignors", f"one of {known} is needed, not {shown(each)}{nearest(str(each), ASSIGNORS)}")
            return ASSIGNORS_DEFAULT
    return tuple(dict.fromkeys(given))


async def post_member(visit: Visit) -> Reply:
    """Join the group, or join again; answers when the group has shared out the partitions anew.

    The first call has no ``member_id``; the answer has it, and every later call needs it.
    """
    group = visit[GROUP]
    document, note = await document_of(visit)
    wish = Wish(document, visit.host, f"/{visit.http.remote}" if visit.http.remote else "")
    until = visit.host.world.clock.now() + visit[MAX_WAIT_MS] / 1000
    try:
        # Whoever waits is let go here, also when the coordinator is this broker itself.
        async with asyncio.timeout(visit[MAX_WAIT_MS] / 1000):
            joined, assigned = await _assigned(visit, group, wish, until)
    except (TimeoutError, NetworkException) as late:
        raise _not_yet(group, wish) from late
    revoked = [each for each in wish.owned if each not in assigned.partitions]
    return Reply(
        {
            "group": group,
            "member_id": joined.member_id,
            "generation": joined.generation_id,
            "assignor": joined.protocol_name,
            "leads": joined.leader == joined.member_id,
            "assignment": partitions_out(assigned.partitions),
            "committed": await _beginnings(visit, group, assigned.partitions, wish.reset),
            "revoked": partitions_out(revoked),
            "session_timeout_ms": wish.session_ms,
            **note,
        }
    )


def _not_yet(group: str, wish: Wish) -> Refused:
    """Time is up: the coordinator waits for somebody else."""
    again = f"join again with member_id {wish.member_id}" if wish.member_id else "join again"
    error = RebalanceInProgress(
        f"group {group} waits for its other members to join, or for its leader; your place is kept: {again}"
    )
    return Refused(error, member_id=wish.member_id or None)


async def _assigned(visit: Visit, group: str, wish: Wish, until: float) -> tuple[g.JoinGroupResponse, Assignment]:
    """Join, deal if this member leads, and sync; again while others make the group rebalance meanwhile."""
    while True:
        joined: g.JoinGroupResponse = await from_coordinator(
            visit, group, wish.request(group), failed=_join_failed, until=until
        )
        wish.member_id = joined.member_id
        if joined.error_code == MemberIdRequired.code:
            continue
        request = g.SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=wish.instance_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=_dealt(visit.host, joined) if joined.members and not joined.skip_assignment else (),
        )
        try:
            synced: g.SyncGroupResponse = await from_coordinator(visit, group, request, until=until)
        except RebalanceInProgress:
            continue
        return joined, Assignment.unpacked(synced.assignment)


def _join_failed(response: g.JoinGroupResponse) -> g.JoinGroupResponse | None:
    """The id that a newcomer is given first comes as an error (KIP-394)."""
    return response if response.error_code not in (0, MemberIdRequired.code) else None


def _dealt(host: Host, joined: g.JoinGroupResponse) -> tuple[g.MemberAssignment, ...]:
    """The leader's part (S30), with the partition counts that it was made from in its own assignment."""
    assignor = ASSIGNORS[joined.protocol_name or ""]
    members = [
        GroupMember(
            member_id=each.member_id,
            instance_id=each.group_instance_id,
            subscription=Subscription.readable(each.metadata),
        )
        for each in joined.members
    ]
    topics = sorted({topic for member in members for topic in member.subscription.topics})
    counts = {topic: _count(host, topic) for topic in topics}
    dealt = assignor.assign({topic: count for topic, count in counts.items() if count}, members)
    told = json.dumps(counts, separators=(",", ":")).encode()
    return tuple(
        g.MemberAssignment(
            member_id=member,
            assignment=Assignment(
                partitions=tuple(partitions), user_data=told if member == joined.member_id else None
            ).packed(),
        )
        for member, partitions in dealt.items()
    )


def _count(host: Host, topic: str) -> int:
    image = host.image.topics.get(topic)
    return len(image.partitions) if image is not None else 0


async def _beginnings(
    visit: Visit, group: str, partitions: tuple[TopicPartition, ...], reset: str
) -> list[dict[str, Any]]:
    """Where to begin in each partition: where the group has committed, else by ``auto_offset_reset`` (S35)."""
    if not partitions:
        return []
    asked = tuple(g.GroupPartition(topic=each.topic, partition=each.partition) for each in partitions)
    response: g.OffsetFetchResponse = await from_coordinator(
        visit, group, g.OffsetFetchRequest(group_id=group, partitions=asked)
    )
    offsets = {TopicPartition(each.topic, each.partition): each.offset for each in response.partitions}
    without = [each for each in partitions if offsets.get(each, -1) < 0]
    found = await look_up(visit, dict.fromkeys(without, RESETS[reset]))
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "offset": offsets[each] if each not in without else None,
            "begin": found.get(each) if each in without else offsets[each],
        }
        for each in sorted(partitions)
    ]


# ---- living, committing, leaving -------------------------------------------------------------------------------------


async def post_heartbeat(visit: Visit) -> Reply:
    """Say that the member lives; 409 REBALANCE_IN_PROGRESS: it is to join again."""
    group, member = visit[GROUP], visit[MEMBER]
    document, note = await document_of(visit)
    generation, instance_id = _standing(document)
    request = g.HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance_id
    )
    await from_coordinator(visit, group, request)
    await _check_counts(visit, group, member, generation)
    return Reply({"group": group, "member_id": member, "generation": generation, **note})


def _standing(document: dict[str, Any]) -> tuple[int, str | None]:
    faults: list[Fault] = []
    members = Members(document, "", faults)
    if "generation" not in document:
        members.wrong("generation", "is missing; the answer to the join has it")
    generation = members.integer("generation", -1, low=0, high=INT32_MAX)
    instance_id = members.text("group_instance_id") or None
    members.done()
    if faults:
        raise unacceptable(faults)
    return generation, instance_id


async def _check_counts(visit: Visit, group: str, member: str, generation: int) -> None:
    """The leader that was dealt for by a door is told when topics have more partitions, or are gone (S31)."""
    response: g.DescribeGroupsResponse = await from_coordinator(
        visit, group, g.DescribeGroupsRequest(groups=(group,)), failed=lambda _: None
    )
    found = response.groups[0]
    if found.error_code or found.leader != member or found.generation_id != generation:
        return
    own = next((each for each in found.members if each.member_id == member), None)
    for topic, count in _counts_of(own).items():
        if _count(visit.host, topic) != count:
            raise RebalanceInProgress(
                f"{topic} has {_count(visit.host, topic)} partitions, {count} were shared out: join again"
            )


def _counts_of(member: g.DescribedMember | None) -> dict[str, Any]:
    """What :func:`_dealt` left; nothing when a client has dealt, which looks after it itself."""
    if member is None:
        return {}
    try:
        told = json.loads(Assignment.unpacked(member.assignment).user_data or b"{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


async def put_member_offsets(visit: Visit) -> Reply:
    """Commit as a member: the next offsets to read. Counts as a heartbeat; refused when the group has gone on."""
    document, note = await document_of(visit)
    faults: list[Fault] = []
    members = Members(document, "", faults)
    if "generation" not in document:
        members.wrong("generation", "is missing; the answer to the join has it")
    generation = members.integer("generation", -1, low=0, high=INT32_MAX)
    instance_id = members.text("group_instance_id") or None
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
                            begin=nullable(whole("Where to begin to read; null: it cannot be told now.")),
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
