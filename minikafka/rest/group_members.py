"""``/v1/groups/{group}/members``: being a member of a group with nothing but HTTP.

Joining is one request, which returns with an assignment and where to begin in each partition; behind it are JoinGroup,
SyncGroup and OffsetFetch. If the coordinator makes this member the leader, the broker deals the partitions with the
assignors of the Python client. From then on the member sends heartbeats, commits, and leaves; 409
REBALANCE_IN_PROGRESS asks it to join again, with its member id.

- A join that has not ended when ``max_wait_ms`` is over is 409 with the member's id: its place is kept, join again.
- The broker keeps nothing between two requests. The numbers of partitions with which it dealt are in the leader's own
  assignment (:func:`counts_dealt`), so that the leader's heartbeat, at any broker, sees that a topic has grown (S31).
- Between giving up partitions and joining again, a member with a cooperative assignor names what it keeps in ``owned``.
  It must stop reading what is in ``revoked`` of the answer, and join again.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from minikafka import errors as kafka
from minikafka.groups.assignors import ASSIGNORS, COOPERATIVE, GroupMember, protocol_of
from minikafka.groups.protocol import PROTOCOL_TYPE, Assignment
from minikafka.rest import groups
from minikafka.rest.group_offsets import COMMIT_ANSWERS, COMMIT_PROBLEMS, Commit, committed, committing
from minikafka.rest.host import WAIT_MS_MAX, Host
from minikafka.rest.leaders import check_known, from_coordinator, look_up
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import FORWARD, INT32_MAX, Integer
from minikafka.rest.permissions import check_may, may_describe
from minikafka.rest.route import Json, Reply, Routes, Visit
from minikafka.rest.schema import many, one_of, text
from minikafka.rest.schemas import Place
from minikafka.types import Offset, TopicPartition
from minikafka.web.problems import Refused
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.acls import AclOperation, ResourceType
from minikafka.wire.apis import in_parts
from minikafka.wire.messages import EARLIEST, LATEST
from minikafka.wire.outcomes import failure_of
from minikafka.world.connections import identity_of

ROUTES = Routes("groups", also=(FORWARD,), problems=groups.COORDINATOR_PROBLEMS)

# Kafka's session.timeout.ms: a person types slower than a program beats, and may ask for more.
SESSION_MS_DEFAULT = 45_000
REBALANCE_MS_DEFAULT = 60_000
ASSIGNORS_DEFAULT = ("range",)
RESETS = {"earliest": EARLIEST, "latest": LATEST}
MAX_WAIT_MS = Integer(
    "max_wait_ms",
    "How long to wait for the rebalance to end; then 409, with the member's id to join again with.",
    default=WAIT_MS_MAX,
    high=WAIT_MS_MAX,
)


class Wish(Model):
    """A member, new or known."""

    topics: list[str] = member(many(text(minLength=1), "What it reads.", minItems=1), ["orders"])
    member_id: str = member("Left out at first; then the one of the answer.", default="")
    group_instance_id: str | None = member(
        "A static member: it keeps its partitions over a restart (KIP-345).", default=None
    )
    client_id: str = member("What tools show; `http` when left out.", "curl", default="")
    assignors: list[str] = member(
        many(one_of("", *ASSIGNORS), "The favourite first; `range` when left out.", minItems=1),
        default=ASSIGNORS_DEFAULT,
    )
    session_timeout_ms: int = member(
        f"The group goes on without a member that is silent for so long; {SESSION_MS_DEFAULT}.",
        default=SESSION_MS_DEFAULT,
        minimum=-INT32_MAX,
        maximum=INT32_MAX,
    )
    rebalance_timeout_ms: int = member(
        f"How long the group waits for it to join again; {REBALANCE_MS_DEFAULT}.",
        default=REBALANCE_MS_DEFAULT,
        minimum=1,
        maximum=INT32_MAX,
    )
    auto_offset_reset: str = member(
        "Where `begin` is without a commit; `latest`.", "earliest", default="latest", enum=RESETS
    )
    owned: list[groups.PartitionsOf] = many_of(
        groups.PartitionsOf, "With a cooperative or sticky assignor: what it has had.", default=()
    )
    generation: int = member({**groups.GENERATION, "description": "In which it got `owned`."}, default=g.NO_GENERATION)

    def request(self, visit: Visit) -> g.JoinGroupRequest:
        """As JoinGroup."""
        _, software = identity_of(visit.http.headers.get("User-Agent", ""))
        return g.JoinGroupRequest(
            group_id=visit[groups.GROUP],
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id or None,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(self._protocol(each) for each in dict.fromkeys(self.assignors)),
            client_id=self.client_id or "http",
            client_host=f"/{visit.http.remote}" if visit.http.remote else "",
            software=software,
        )

    def _protocol(self, name: str) -> g.GroupProtocol:
        assignor, topics = ASSIGNORS[name], tuple(dict.fromkeys(self.topics))
        owned, is_cooperative = tuple(groups.partitions_in(self.owned)), assignor.rebalance == COOPERATIVE
        return protocol_of(assignor, topics, owned, self.generation, is_cooperative=is_cooperative)


class _Beginning(Place):
    """Where to begin in one partition."""

    offset: Offset | None = member("What the group has committed; null: nothing.", 41)
    begin: Offset | None = member("Where to begin to read; null: not known now.", 41)


class Joined(groups.OfGroup, notes=True):
    """A member of a group, with its partitions."""

    member_id: str = member("For every later call.", "curl-2f1c0d8f7f3f4e6b")
    generation: int = member(groups.GENERATION, 1, source="generation_id")
    assignor: str = member("What the members agreed on.", "range")
    leads: bool = member("It is the group's leader: the broker has dealt in its name.", example=True)
    assignment: list[Any] = many_of(groups.PartitionsOf, groups.SORTED)
    committed: list[_Beginning] = many_of(_Beginning)
    revoked: list[Any] = many_of(groups.PartitionsOf, "Of `owned`: another's. Stop reading them and join again.")
    session_timeout_ms: int = member("A heartbeat or a commit is due within this time.", SESSION_MS_DEFAULT)


MEMBER_PROBLEMS = (kafka.FencedInstanceId, kafka.IllegalGeneration, kafka.RebalanceInProgress, kafka.UnknownMemberId)


@ROUTES.at(
    "POST /v1/groups/{group}/members",
    Joined.answer("It is a member, and these partitions are its own until the next rebalance.", revoked=[]),
    parameters=(MAX_WAIT_MS,),
    body=Wish.body(),
    problems=(
        *MEMBER_PROBLEMS,
        kafka.GroupMaxSizeReached,
        kafka.InconsistentGroupProtocol,
        kafka.InvalidRequest,
        kafka.InvalidSessionTimeout,
        kafka.UnknownTopicOrPartition,
    ),
)
async def post_member(visit: Visit) -> Json:
    """Join the group, or join again; answers when the group has shared out the partitions again.

    The first call has no ``member_id``; the answer has it, and every later call needs it.
    """
    group = visit[groups.GROUP]
    wish = await Wish.sent(visit)
    check_may(visit.permit, AclOperation.DESCRIBE, ResourceType.TOPIC, *wish.topics)
    for topic in wish.topics:
        check_known(visit, topic)
    is_new = not wish.member_id and not wish.group_instance_id
    try:
        joined = await _joined(visit, group, wish)
    except (Refused, kafka.ProtocolError) as raised:
        if is_new:
            await _leave_if_abandoned(visit, group, wish)
        refused = Refused.of(raised)
        if wish.member_id and refused.error.retriable:
            # It has a place in the group by now, which only its id gives back.
            refused.members.setdefault("member_id", wish.member_id)
        raise refused from raised.__cause__
    if is_new:
        await _leave_if_abandoned(visit, group, wish)
    return joined


async def _joined(visit: Visit, group: str, wish: Wish) -> Json:
    until = visit.host.world.clock.now() + visit[MAX_WAIT_MS] / 1000
    try:
        # Waiting requests end here, also when the coordinator is this broker itself.
        async with asyncio.timeout(visit[MAX_WAIT_MS] / 1000):
            joined, assigned = await _assigned(visit, group, wish, until)
    except (TimeoutError, kafka.NetworkException) as late:
        raise _not_yet(group, wish) from late
    revoked = [each for each in groups.partitions_in(wish.owned) if each not in assigned.partitions]
    return Joined.out_of(
        joined,
        group=group,
        assignor=joined.protocol_name or "",
        leads=joined.leader == joined.member_id,
        assignment=groups.partitions_out(assigned.partitions),
        committed=await _beginnings(visit, group, assigned.partitions, wish.auto_offset_reset),
        revoked=groups.partitions_out(revoked),
        session_timeout_ms=wish.session_timeout_ms,
    )


def _not_yet(group: str, wish: Wish) -> Refused:
    """Time is up: the coordinator waits for another client."""
    again = f"join again with member_id {wish.member_id}" if wish.member_id else "join again"
    message = f"group {group} waits for its other members to join, or for its leader; your place is kept: {again}"
    return Refused(kafka.RebalanceInProgress(message), member_id=wish.member_id or None)


async def _assigned(visit: Visit, group: str, wish: Wish, until: float) -> tuple[g.JoinGroupResponse, Assignment]:
    """Join, deal if this member leads, and sync; again while others make the group rebalance meanwhile."""
    while True:
        asked = wish.request(visit)
        joined: g.JoinGroupResponse = await from_coordinator(visit, group, asked, failed=_join_failed, until=until)
        wish.member_id = joined.member_id
        if joined.error_code == kafka.MemberIdRequired.code:
            continue
        request = g.SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=wish.group_instance_id or None,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=_dealt(visit, joined) if joined.members and not joined.skip_assignment else (),
        )
        try:
            synced: g.SyncGroupResponse = await from_coordinator(visit, group, request, until=until)
        except kafka.RebalanceInProgress:
            continue
        try:
            return joined, Assignment.given(synced.assignment)
        except kafka.InconsistentGroupProtocol:
            if not wish.group_instance_id:
                await _leave(visit, group, joined.member_id, "its assignment cannot be read")
            raise


async def _leave_if_abandoned(visit: Visit, group: str, wish: Wish) -> None:
    """A newcomer whose client has left is known to nobody: it would keep partitions until its session ends."""
    if wish.member_id and visit.http.transport is None:
        await _leave(visit, group, wish.member_id, "its client left before it had joined")


async def _leave(visit: Visit, group: str, member_id: str, reason: str) -> None:
    leaving = g.LeavingMember(member_id=member_id, reason=reason)
    await from_coordinator(visit, group, g.LeaveGroupRequest(group_id=group, members=(leaving,)))


def _join_failed(response: g.JoinGroupResponse) -> g.JoinGroupResponse | None:
    """The id that a newcomer is given first comes as an error (KIP-394)."""
    return response if response.error_code not in (0, kafka.MemberIdRequired.code) else None


def _dealt(visit: Visit, joined: g.JoinGroupResponse) -> tuple[g.MemberAssignment, ...]:
    """The leader's part (S30), with the partition counts that it was made from in its own assignment. It knows of the
    topics that its caller may describe.
    """
    assignor = ASSIGNORS[joined.protocol_name or ""]
    members = [GroupMember.joined(each) for each in joined.members]
    topics = sorted({topic for member in members for topic in member.subscription.topics})
    counts = {topic: _seen_count(visit, topic) for topic in topics}
    dealt = assignor.assign({topic: count for topic, count in counts.items() if count}, members)
    own_data = {joined.member_id: json.dumps(counts, separators=(",", ":")).encode()}
    assignments = {
        member: Assignment(partitions=tuple(partitions), user_data=own_data.get(member))
        for member, partitions in dealt.items()
    }
    return tuple(g.MemberAssignment(member_id=name, assignment=each.packed()) for name, each in assignments.items())


async def _beginnings(visit: Visit, group: str, partitions: tuple[TopicPartition, ...], reset: str) -> list[_Beginning]:
    """Where to begin in each partition: where the group has committed, else by ``auto_offset_reset`` (S35)."""
    committed: dict[TopicPartition, Offset] = {}
    for part in in_parts(partitions):
        request = g.OffsetFetchRequest(group_id=group, partitions=m.PartitionName.each(part))
        response: g.OffsetFetchResponse = await from_coordinator(visit, group, request)
        committed |= {
            TopicPartition(each.topic, each.partition): each.offset for each in response.partitions if each.offset >= 0
        }
    found = await look_up(visit, {each: RESETS[reset] for each in partitions if each not in committed})
    begins = {**found, **committed}
    return [
        _Beginning(**each._asdict(), offset=committed.get(each), begin=begins.get(each)) for each in sorted(partitions)
    ]


def partition_count(host: Host, topic: str) -> int:
    """How many a topic has now; 0: there is none of this name."""
    image = host.image.topics.get(topic)
    return len(image.partitions) if image is not None else 0


def _seen_count(visit: Visit, topic: str) -> int:
    """The partitions of a topic; of one that the caller may not describe, or that does not exist: 0."""
    return partition_count(visit.host, topic) if may_describe(visit.permit, topic) else 0


def counts_dealt(member: g.DescribedMember | None) -> dict[str, Any]:
    """What :func:`_dealt` left; nothing when a client has dealt, which looks after it itself."""
    if member is None:
        return {}
    try:
        counts = json.loads(Assignment.unpacked(member.assignment).user_data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return counts if isinstance(counts, dict) else {}


# ---- living, committing, leaving -------------------------------------------------------------------------------------


class _Standing(Model):
    """Where it stands."""

    generation: int = member({**groups.GENERATION, "minimum": 0}, 1, if_missing="the answer to the join has it")
    group_instance_id: str | None = member(default=None)

    def of(self, visit: Visit) -> dict[str, Any]:
        """Return the member that the path names, as a request to the coordinator has it."""
        named = {"group_id": visit[groups.GROUP], "member_id": visit[groups.MEMBER]}
        return {**named, "generation_id": self.generation, "group_instance_id": self.group_instance_id or None}


class _Lives(groups.OfGroup, notes=True):
    """A member that lives."""

    member_id: str = member(example=groups.MEMBER.example)
    generation: int = member(groups.GENERATION, 1)


@ROUTES.at(
    "POST /v1/groups/{group}/members/{member}/heartbeat",
    _Lives.answer("It lives, and nothing has changed."),
    body=_Standing.body(),
    problems=MEMBER_PROBLEMS,
)
async def post_heartbeat(visit: Visit) -> Json:
    """Say that the member lives; 409 REBALANCE_IN_PROGRESS: it is to join again."""
    group, member_id = visit[groups.GROUP], visit[groups.MEMBER]
    standing = await _Standing.sent(visit)
    await from_coordinator(visit, group, g.HeartbeatRequest(**standing.of(visit)))
    await _check_counts(visit, group, member_id, standing.generation)
    return _Lives.out_of(standing, group=group, member_id=member_id)


async def _check_counts(visit: Visit, group: str, member: str, generation: int) -> None:
    """The leader that was dealt for by a door learns when topics have more partitions, or are gone (S31)."""
    request = g.DescribeGroupsRequest(groups=(group,))
    response: g.DescribeGroupsResponse = await from_coordinator(visit, group, request, failed=lambda _: None)
    found = response.groups[0]
    if found.error_code or found.leader != member or found.generation_id != generation:
        return
    own = next((each for each in found.members if each.member_id == member), None)
    for topic, count in counts_dealt(own).items():
        if (now := _seen_count(visit, topic)) != count:
            raise kafka.RebalanceInProgress(f"{topic} has {now} partitions, {count} were shared out: join again")


class _MemberCommits(_Standing):
    """What it has read."""

    offsets: list[Commit] = many_of(Commit, minItems=1, maxItems=groups.PARTITION_COUNT_MAX)


@ROUTES.at(
    "PUT /v1/groups/{group}/members/{member}/offsets",
    COMMIT_ANSWERS,
    body=_MemberCommits.body(),
    problems=(*MEMBER_PROBLEMS, *COMMIT_PROBLEMS),
)
async def put_member_offsets(visit: Visit) -> Reply:
    """Commit as a member: the next offsets to read. Counts as a heartbeat; refused when the group has gone on."""
    sent = await _MemberCommits.sent(visit)
    return await committed(visit, g.OffsetCommitRequest(**sent.of(visit), partitions=committing(sent.offsets)))


class _Left(groups.OfGroup):
    """A member that has left its group."""

    member_id: str = member(example=groups.MEMBER.example)
    left: bool = member(example=True)


@ROUTES.at(
    "DELETE /v1/groups/{group}/members/{member}",
    _Left.answer("It is no member any more."),
    problems=(kafka.FencedInstanceId, kafka.UnknownMemberId),
)
async def delete_member(visit: Visit) -> Json:
    """Leave the group, or remove a member: the others share its partitions at once."""
    group, member_id = visit[groups.GROUP], visit[groups.MEMBER]
    leaving = g.LeavingMember(member_id=member_id, reason="left over /v1")
    request = g.LeaveGroupRequest(group_id=group, members=(leaving,))
    response: g.LeaveGroupResponse = await from_coordinator(visit, group, request, repeatable=False)
    for each in response.members:
        if each.error_code:
            raise failure_of(each)
    return _Left(group=group, member_id=member_id, left=True).out()
