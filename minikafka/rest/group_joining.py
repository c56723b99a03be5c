"""Joining a group with one call: JoinGroup, the deal where this member leads, SyncGroup and OffsetFetch.

- A join that has not ended when ``max_wait_ms`` is over is 409 with the member's id: its place is kept, join again.
- What the partitions were when the door dealt them is kept in the leader's own assignment (:func:`counts_dealt`).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from minikafka.client.settings import ASSIGNORS
from minikafka.errors import (
    InconsistentGroupProtocol,
    MemberIdRequired,
    NetworkException,
    RebalanceInProgress,
)
from minikafka.groups.assignors import COOPERATIVE, GroupMember
from minikafka.groups.protocol import PROTOCOL_TYPE, Assignment, Subscription
from minikafka.rest.body import Members
from minikafka.rest.coordinators import from_coordinator, look_up
from minikafka.rest.groups import (
    GROUP,
    document_of,
    partitions_in,
    partitions_out,
)
from minikafka.rest.host import WAIT_MS_MAX, Host
from minikafka.rest.leaders import unknown_topic
from minikafka.rest.parameters import INT32_MAX, Integer
from minikafka.rest.visit import Reply, Visit
from minikafka.spelling import did_you_mean
from minikafka.types import TopicPartition
from minikafka.web.problems import Fault, Refused, unacceptable
from minikafka.wire import group_messages as g
from minikafka.wire.limits import shown
from minikafka.wire.messages import EARLIEST, LATEST
from minikafka.world.connections import identity_of

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


class Wish:
    """What a body says about a member."""

    def __init__(self, document: dict[str, Any], host: Host, client_host: str, software: str) -> None:
        faults: list[Fault] = []
        members = Members(document, "", faults)
        self.topics = _topics_in(members)
        self.member_id = members.text("member_id")
        self.instance_id = members.text("group_instance_id") or None
        self.client_id = members.text("client_id") or "http"
        self.client_host = client_host
        self.software = software
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
            software=self.software,
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
            members.wrong(
                "assignors",
                f"one of {known} is needed, not {shown(each)}{did_you_mean(str(each), ASSIGNORS, quoted=True)}",
            )
            return ASSIGNORS_DEFAULT
    return tuple(dict.fromkeys(given))


async def post_member(visit: Visit) -> Reply:
    """Join the group, or join again; answers when the group has shared out the partitions again.

    The first call has no ``member_id``; the answer has it, and every later call needs it.
    """
    group = visit[GROUP]
    document, note = await document_of(visit)
    _, software = identity_of(visit.http.headers.get("User-Agent", ""))
    wish = Wish(document, visit.host, f"/{visit.http.remote}" if visit.http.remote else "", software)
    until = visit.host.world.clock.now() + visit[MAX_WAIT_MS] / 1000
    try:
        # Waiting requests end here, also when the coordinator is this broker itself.
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
    """Time is up: the coordinator waits for another client."""
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
        try:
            return joined, Assignment.given(synced.assignment)
        except InconsistentGroupProtocol:
            if not wish.instance_id:
                leaving = g.LeavingMember(member_id=joined.member_id, reason="its assignment cannot be read")
                await from_coordinator(
                    visit, group, g.LeaveGroupRequest(group_id=group, members=(leaving,)), until=until
                )
            raise


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
    counts = {topic: partition_count(host, topic) for topic in topics}
    dealt = assignor.assign({topic: count for topic, count in counts.items() if count}, members)
    user_data = json.dumps(counts, separators=(",", ":")).encode()
    return tuple(
        g.MemberAssignment(
            member_id=member,
            assignment=Assignment(
                partitions=tuple(partitions), user_data=user_data if member == joined.member_id else None
            ).packed(),
        )
        for member, partitions in dealt.items()
    )


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


def partition_count(host: Host, topic: str) -> int:
    """How many a topic has now; 0: there is none of this name."""
    image = host.image.topics.get(topic)
    return len(image.partitions) if image is not None else 0


def counts_dealt(member: g.DescribedMember | None) -> dict[str, Any]:
    """What :func:`_dealt` left; nothing when a client has dealt, which looks after it itself."""
    if member is None:
        return {}
    try:
        counts = json.loads(Assignment.unpacked(member.assignment).user_data or b"{}")
    except ValueError:
        return {}
    return counts if isinstance(counts, dict) else {}
