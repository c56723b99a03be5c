"""One group: its members, state and generation, and what can be asked of them (KAFKA-FACTS 5).

::

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable        any -> Dead
      ^------------'   ^------------------'------------------'

Rules for this file: it holds and tells; ``rebalance.py`` decides. Members stand in the order in which they came, so
that the first joiner is the first candidate for leader. Times are monotonic seconds, timeouts milliseconds.

The answers of JoinGroup and SyncGroup are made from this state, and change nothing.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from minikafka.coordination.rule import Ticket
from minikafka.errors import ProtocolError
from minikafka.groups.protocol import PROTOCOL_TYPE, Subscription
from minikafka.groups.records import GroupRecord, GroupValue, MemberRecord
from minikafka.invariant import invariant
from minikafka.wire.group_messages import GroupProtocol, JoinedMember, JoinGroupResponse, SyncGroupResponse


class State(enum.Enum):
    """The names are Kafka's and are printed."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    ASSIGNING = "Assigning"
    """Consumer protocol: the target assignment is older than the group epoch."""
    RECONCILING = "Reconciling"
    """Consumer protocol: members are on their way to the target assignment."""
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class Member:
    """One member. ``expires_at`` counts only while it waits for nothing: who is parked here is alive."""

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    software: str = ""
    """Name and version of its library (KIP-511). Kafka's record of a group has no place for it: a new coordinator
    learns it from the next heartbeat."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    expires_at: float
    is_new: bool = False
    """It has not yet been answered for the first time: bounded even while it is parked."""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def deadline(self) -> float:
        """When it counts as dead unless it is heard."""
        parked = self.join_ticket is not None or self.sync_ticket is not None
        return math.inf if parked and not self.is_new else self.expires_at

    def metadata(self, protocol: str) -> bytes:
        """Its subscription for this assignor; empty when it does not speak it."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")


@dataclass(slots=True)
class Group:
    """All of one group but its offsets."""

    group_id: str
    protocol_type: str = ""
    """Empty until the first member; of groups that only commit, for ever."""
    state: State = State.EMPTY
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str | None, str] = field(default_factory=dict)
    """Instance id to member id. None, of requests that name no instance id, is none of them; "" may be one."""
    pending: dict[str, float] = field(default_factory=dict)
    """Member ids that were given out and not yet joined with, and when they end."""
    reads: frozenset[str] | None = None
    """What the members of the present generation read; None: unknown, so nothing may be concluded from it."""
    state_timestamp_ms: int = -1
    """Wall clock of the last change of state; offsets expire by it while the group is empty."""

    join_ends_at: float = math.inf
    """Preparing: when the join phase ends, even if members are missing."""
    is_initial: bool = False
    """The join phase of an empty group: it always lasts its delay, and longer while members keep coming (KIP-134)."""
    initial_ms_left: float = 0.0
    new_member_came: bool = False
    sync_ends_at: float = math.inf
    """Completing and Stable: when those who have not synced are dropped."""
    not_synced: set[str] = field(default_factory=set)
    assigning: int = -1
    """The generation whose assignment was written or is being written: the leader's first word counts."""

    # ---- what it is ----

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks for; never nothing, or time could not go on."""
        return max((1, *(member.rebalance_timeout_ms for member in self.members.values())))

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and all(member.join_ticket is not None for member in self.members.values())

    def next_deadline(self) -> float:
        """When something is to be done about this group; infinity: never."""
        times = [self.join_ends_at, self.sync_ends_at, *self.pending.values()]
        times.extend(member.deadline for member in self.members.values())
        return min(times)

    def topics(self) -> frozenset[str] | None:
        """What the members subscribe to, also those of the next generation; None: unknown."""
        if not self.members:
            return frozenset()
        if self.protocol_type != PROTOCOL_TYPE or self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                topics.update(Subscription.topics_in(member.metadata(self.protocol)))
            except ValueError:
                return None
        return frozenset(topics)

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return True if a member of this type with these assignors could join: one assignor is left that all support.

        Where nobody is, everybody may: also in a join phase whose members have all left again.
        """
        if not self.members:
            return True
        return protocol_type == self.protocol_type and not set(self.common()).isdisjoint(names)

    def common(self) -> list[str]:
        """The assignors that all members speak, in the order of the first member's wishes."""
        members = list(self.members.values())
        spoken = [{each.name for each in member.protocols} for member in members]
        return (
            [each.name for each in members[0].protocols if all(each.name in names for names in spoken)]
            if members
            else []
        )

    def elected_protocol(self) -> str:
        """The assignor with the most votes among those that all speak; each member votes for its first such one."""
        common = self.common()
        invariant(bool(common), "members without a common protocol", group=self.group_id)
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common) for member in self.members.values()
        )
        return max(votes, key=lambda name: votes[name])

    # ---- what changes ----

    def add(self, member: Member) -> None:
        """The first one leads."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.pending.pop(member.member_id, None)
        if self.leader is None:
            self.leader = member.member_id

    def drop(self, member: Member) -> None:
        """Its place as leader goes to who came next."""
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self.not_synced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, old_id: str, new_id: str) -> Member:
        """A static member came back under another id: everything else stays unchanged, its place in the order too."""
        self.members = {(new_id if key == old_id else key): member for key, member in self.members.items()}
        member = self.members[new_id]
        member.member_id = new_id
        if member.instance_id is not None:
            self.static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.not_synced:
            self.not_synced.remove(old_id)
            self.not_synced.add(new_id)
        return member

    # ---- as a record ----

    def record(self, assignments: dict[str, bytes], timestamp_ms: int) -> GroupRecord:
        """As it will stand in ``__consumer_offsets`` with these assignments."""
        protocol = self.protocol
        members = tuple(
            MemberRecord(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=b"" if protocol is None else member.metadata(protocol),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        value = GroupValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=protocol,
            leader=self.leader,
            state_timestamp_ms=timestamp_ms,
            members=members,
        )
        return GroupRecord(group=self.group_id, value=value)

    @classmethod
    def of(cls, group_id: str, value: GroupValue) -> Group:
        """As a new coordinator finds it; ``started`` gives its members their time."""
        group = cls(group_id, value.protocol_type, generation=value.generation, protocol=value.protocol)
        group.state_timestamp_ms = value.state_timestamp_ms
        for each in value.members:
            protocols = (
                () if value.protocol is None else (GroupProtocol(name=value.protocol, metadata=each.subscription),)
            )
            group.add(
                Member(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    session_timeout_ms=each.session_timeout_ms,
                    rebalance_timeout_ms=each.rebalance_timeout_ms,
                    protocols=protocols,
                    assignment=each.assignment,
                    expires_at=math.inf,
                )
            )
        group.leader = value.leader
        group.state = State.STABLE if group.members else State.EMPTY
        group.reads = group.topics()
        return group

    def started(self, now: float) -> None:
        """Restart every member's session under a new coordinator: no heartbeat could arrive meanwhile."""
        for member in self.members.values():
            member.expires_at = now + member.session_timeout_ms / 1000


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
    return JoinGroupResponse.with_error(error, member_id=member_id)


def failed_sync(error: ProtocolError) -> SyncGroupResponse:
    """A refusal."""
    return SyncGroupResponse.with_error(error)
