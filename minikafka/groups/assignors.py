"""Who reads which partition: range, round-robin and the sticky ones; what an assignor is (S30, KAFKA-FACTS 5).

An assignor is a pure function of the members' subscriptions and the topics' partition counts. It runs in the client
that leads the group; the coordinator only carries its result.

Rules for this file: members are dealt to in Kafka's order (static members by instance id first, then by member id);
topics that do not exist are nobody's; every partition of a subscribed topic goes to exactly one member.

Sticky (KIP-54) and cooperative-sticky (KIP-429) move as little as they can. With equal subscriptions the result is
Kafka's, partition by partition: each member keeps what it owned up to its share, the rest is dealt in order. With
unequal ones it is balanced greedily, and the old assignment is kept where moving would not improve the balance. They
deal by member id alone, as in Kafka. Whose partition it was: a member's own word, of the newest generation; two
claims of one generation are both dropped. Cooperative withholds in this round what another member still owns; its new
owner gets it in the next, once the owner has given it up. With unequal subscriptions the next round may deal it
otherwise and need one more, as in Kafka.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from minikafka.coordination.packing import Packer, Unpacker
from minikafka.groups.protocol import NO_GENERATION, Subscription, pack_partitions, unpack_partitions
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import GroupProtocol, JoinedMember

EAGER, COOPERATIVE = "eager", "cooperative"
"""Eager: everyone gives up everything before it joins. Cooperative: only what moves is given up, in a second step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member, as an assignor sees it."""

    member_id: str
    instance_id: str | None = None
    subscription: Subscription

    @classmethod
    def joined(cls, member: JoinedMember) -> Self:
        """Return a member as the coordinator names it to the leader of the group."""
        subscription = Subscription.readable(member.metadata)
        return cls(member_id=member.member_id, instance_id=member.group_instance_id, subscription=subscription)

    @property
    def order(self) -> tuple[bool, str, str]:
        """Kafka's order of members: static ones first, by instance id."""
        return self.instance_id is None, self.instance_id or "", self.member_id


Assigned = dict[str, list[TopicPartition]]
"""Member id to its partitions; every member is in it."""


class Assignor(Protocol):
    """What a consumer can be given in ``partition.assignment.strategy``, by name or as its own object."""

    @property
    def name(self) -> str:
        """What members agree on."""

    @property
    def rebalance(self) -> str:
        """``EAGER`` or ``COOPERATIVE``."""

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002 - no memory
        """What a member adds to its subscription when it joins after having had ``owned`` in ``generation``."""
        return None

    def assign(self, partitions: Mapping[str, int], members: Sequence[GroupMember]) -> Assigned:
        """Deal all partitions of the topics (name to count) to the members that subscribe to them."""


def protocol_of(
    assignor: Assignor,
    topics: tuple[str, ...],
    owned: tuple[TopicPartition, ...],
    generation: int,
    *,
    is_cooperative: bool,
) -> GroupProtocol:
    """Return what a member that has had ``owned`` in ``generation`` offers when it joins.

    ``is_cooperative``: it keeps its partitions while it joins, so its subscription names them.
    """
    subscription = Subscription(
        topics=topics,
        user_data=assignor.user_data(owned, generation),
        owned=owned if is_cooperative else (),
        generation=generation if is_cooperative else NO_GENERATION,
    )
    return GroupProtocol(name=assignor.name, metadata=subscription.packed())


def in_order(members: Sequence[GroupMember]) -> list[GroupMember]:
    """Sorted as Kafka deals to them."""
    return sorted(members, key=lambda member: member.order)


def all_partitions(partitions: Mapping[str, int], members: Sequence[GroupMember]) -> list[TopicPartition]:
    """Of every existing topic that a member subscribes to, sorted by topic and number."""
    topics = {topic for member in members for topic in member.subscription.topics}
    return [TopicPartition(topic, each) for topic in sorted(topics) for each in range(partitions.get(topic, 0))]


@dataclass(frozen=True, slots=True)
class RangeAssignor(Assignor):
    """Each topic by itself: n partitions and m members, n // m in a row to each and one more to the first n % m.

    Two topics of 10 partitions and 3 members: the first member has eight, the others six each (the known skew).
    """

    name: str = field(default="range", init=False)
    rebalance: str = field(default=EAGER, init=False)

    def assign(self, partitions: Mapping[str, int], members: Sequence[GroupMember]) -> Assigned:
        assigned: Assigned = {member.member_id: [] for member in members}
        ordered = in_order(members)
        for topic in sorted({topic for member in members for topic in member.subscription.topics}):
            subscribers = [member for member in ordered if topic in member.subscription.topics]
            each, extra = divmod(partitions.get(topic, 0), len(subscribers))
            begin = 0
            for index, member in enumerate(subscribers):
                end = begin + each + (index < extra)
                assigned[member.member_id] += [TopicPartition(topic, number) for number in range(begin, end)]
                begin = end
        return assigned


@dataclass(frozen=True, slots=True)
class RoundRobinAssignor(Assignor):
    """All partitions of all topics in one list, dealt in turn; who does not subscribe to a topic is passed over."""

    name: str = field(default="roundrobin", init=False)
    rebalance: str = field(default=EAGER, init=False)

    def assign(self, partitions: Mapping[str, int], members: Sequence[GroupMember]) -> Assigned:
        assigned: Assigned = {member.member_id: [] for member in members}
        turns = itertools.cycle(in_order(members))
        for partition in all_partitions(partitions, members):
            member = next(each for each in turns if partition.topic in each.subscription.topics)
            assigned[member.member_id].append(partition)
        return assigned


DEFAULT_STRATEGY: Final = ("range", "cooperative-sticky")
"""Kafka's: range, with a way to cooperative-sticky by removing it in one rolling restart."""


# ---- assignors that remember -----------------------------------------------------------------------------------------


Claims = dict[str, list[TopicPartition]]
"""Member id to what it owned, in its own order, without conflicts and without what it may not have any more."""


@dataclass(frozen=True, slots=True)
class StickyAssignor(Assignor):
    """Eager: members give up everything before they join and tell in their user data what they had."""

    name: str = field(default="sticky", init=False)
    rebalance: str = field(default=EAGER, init=False)

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Kafka's StickyAssignorUserData version 1: partitions by topic, then the generation."""
        return pack_partitions(Packer(), owned).int32(generation).packed()

    def assign(self, partitions: Mapping[str, int], members: Sequence[GroupMember]) -> Assigned:
        remembered = {member.member_id: _remembered(member.subscription.user_data) for member in members}
        return _assign(partitions, members, _claims(partitions, members, remembered))


@dataclass(frozen=True, slots=True)
class CooperativeStickyAssignor(Assignor):
    """Members keep their partitions while they join, and give up only what another member gets.

    It adds nothing to the subscription, which itself has what was owned, and in which generation.
    """

    name: str = field(default="cooperative-sticky", init=False)
    rebalance: str = field(default=COOPERATIVE, init=False)

    def assign(self, partitions: Mapping[str, int], members: Sequence[GroupMember]) -> Assigned:
        owned = {member.member_id: (member.subscription.generation, member.subscription.owned) for member in members}
        assigned = _assign(partitions, members, _claims(partitions, members, owned))
        return _withhold_what_others_own(assigned, members)


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    each.name: each for each in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}


def _withhold_what_others_own(assigned: Assigned, members: Sequence[GroupMember]) -> Assigned:
    owners: dict[TopicPartition, set[str]] = {}
    for member in members:
        for partition in member.subscription.owned:
            owners.setdefault(partition, set()).add(member.member_id)
    return {
        member_id: [each for each in partitions if not owners.get(each, set()) - {member_id}]
        for member_id, partitions in assigned.items()
    }


# ---- whose it was ----


def _remembered(user_data: bytes | None) -> tuple[int, tuple[TopicPartition, ...]]:
    """A member's own memory; what cannot be read is no memory, as in Kafka: it comes from another program."""
    if not user_data:
        return NO_GENERATION, ()
    read = Unpacker(user_data)
    try:
        owned = unpack_partitions(read)
        return (read.int32() if read.left else NO_GENERATION), owned
    except ValueError:
        return NO_GENERATION, ()


def _claims(
    partitions: Mapping[str, int],
    members: Sequence[GroupMember],
    owned: Mapping[str, tuple[int, Sequence[TopicPartition]]],
) -> Claims:
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        generation, claimed = owned[member.member_id]
        for partition in claimed:
            known = best.get(partition)
            if known is None or generation > known[0]:
                best[partition] = generation, member.member_id
            elif generation == known[0] and known[1] != member.member_id:
                best[partition] = generation, None
    return {
        member.member_id: [
            each
            for each in dict.fromkeys(owned[member.member_id][1])
            if best[each][1] == member.member_id
            and each.topic in member.subscription.topics
            and each.partition < partitions.get(each.topic, 0)
        ]
        for member in members
    }


# ---- the assignment ----


def _assign(partitions: Mapping[str, int], members: Sequence[GroupMember], claims: Claims) -> Assigned:
    if not members:
        return {}
    if len({frozenset(member.subscription.topics) for member in members}) == 1:
        return _equal(all_partitions(partitions, members), sorted(claims), claims)
    return _Unequal(partitions, members, claims).assigned()


def _equal(every: list[TopicPartition], members: list[str], claims: Claims) -> Assigned:
    """All may have all: shares are ⌊P/M⌋ or one more, exactly P % M members have one more."""
    low, larger_shares = divmod(len(every), len(members))
    high = low + bool(larger_shares)
    assigned: Assigned = {}
    below_low: list[str] = []
    at_low: list[str] = []
    for member in members:
        owned = claims[member]
        if len(owned) < low:
            keep = len(owned)
            below_low.append(member)
        elif larger_shares and len(owned) >= high:
            keep = high
            larger_shares -= 1
        else:
            keep = low
            at_low.append(member)
        assigned[member] = owned[:keep]
    taken = {partition for kept in assigned.values() for partition in kept}
    free = [partition for partition in every if partition not in taken]
    _deal(free, below_low, at_low, assigned, low=low, larger_shares=larger_shares)
    return assigned


def _deal(
    free: list[TopicPartition],
    below_low: list[str],
    at_low: list[str],
    assigned: Assigned,
    *,
    low: int,
    larger_shares: int,
) -> None:
    """In turn: first to those below the small share, then one more each to the first of those that have it."""
    waiting = list(free)
    waiting.reverse()
    round_ = list(below_low)
    while round_ and waiting:
        following: list[str] = []
        for member in round_:
            if not waiting:
                break
            assigned[member].append(waiting.pop())
            if len(assigned[member]) < low:
                following.append(member)
            else:
                at_low.append(member)
        round_ = following
    for member in at_low[:larger_shares]:
        if waiting:
            assigned[member].append(waiting.pop())


class _Unequal:
    """Members that want different topics: deal what is free to the least loaded, then move while it improves."""

    def __init__(self, partitions: Mapping[str, int], members: Sequence[GroupMember], claims: Claims) -> None:
        self._order = sorted(claims)
        self._rank = {member: index for index, member in enumerate(self._order)}
        self._may: dict[str, list[str]] = {}
        for member in sorted(members, key=lambda each: each.member_id):
            for topic in dict.fromkeys(member.subscription.topics):
                self._may.setdefault(topic, []).append(member.member_id)
        self._kept = {member: list(claims[member]) for member in self._order}
        owned = {partition for kept in self._kept.values() for partition in kept}
        free = [each for each in all_partitions(partitions, members) if each not in owned]
        self._free = sorted(free, key=lambda each: (len(self._may[each.topic]), each))

    def assigned(self) -> Assigned:
        """The most even assignment that moving one partition at a time leads to."""
        load: Assigned = {member: list(kept) for member, kept in self._kept.items()}
        for partition in self._free:
            load[self._least(load, partition.topic)].append(partition)
        while self._move_one(load):
            pass
        return load

    def _least(self, load: Assigned, topic: str) -> str:
        return min(self._may[topic], key=lambda member: (len(load[member]), self._rank[member]))

    def _move_one(self, load: Assigned) -> bool:
        """Move one partition from a member to one that has at least two fewer; each such move evens the loads out."""
        for giver in sorted(self._order, key=lambda member: (-len(load[member]), self._rank[member])):
            # What was dealt just now is moved before what a member owned.
            old = set(self._kept[giver])
            for partition in sorted(load[giver], key=lambda each: (each in old, each)):
                taker = self._least(load, partition.topic)
                if len(load[taker]) + 1 < len(load[giver]):
                    load[giver].remove(partition)
                    load[taker].append(partition)
                    return True
        return False
