"""Who reads which partition: range and round-robin, and what an assignor is (S30, KAFKA-FACTS 5).

An assignor is a pure function of the members' subscriptions and the topics' partition counts. It runs in the client
that leads the group; the coordinator only carries its result. ``sticky.py`` has the two that remember.

Rules for this file: members are dealt to in Kafka's order (static members by instance id first, then by member id);
topics that do not exist are nobody's; every partition of a subscribed topic goes to exactly one member.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from minikafka.groups.protocol import Subscription
from minikafka.types import TopicPartition

EAGER, COOPERATIVE = "eager", "cooperative"
"""Eager: everyone gives up everything before it joins. Cooperative: only what moves is given up, in a second step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member, as an assignor sees it."""

    member_id: str
    instance_id: str | None = None
    subscription: Subscription

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

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What a member adds to its subscription when it joins after having had ``owned`` in ``generation``."""

    def assign(self, partitions: Mapping[str, int], members: Sequence[GroupMember]) -> Assigned:
        """Deal all partitions of the topics (name to count) to the members that subscribe to them."""


def in_order(members: Sequence[GroupMember]) -> list[GroupMember]:
    """Sorted as Kafka deals to them."""
    return sorted(members, key=lambda member: member.order)


def all_partitions(partitions: Mapping[str, int], members: Sequence[GroupMember]) -> list[TopicPartition]:
    """Of every existing topic that a member subscribes to, sorted by topic and number."""
    topics = {topic for member in members for topic in member.subscription.topics}
    return [TopicPartition(topic, each) for topic in sorted(topics) for each in range(partitions.get(topic, 0))]


@dataclass(frozen=True, slots=True)
class RangeAssignor:
    """Each topic by itself: n partitions and m members, n // m in a row to each and one more to the first n % m.

    Two topics of 10 partitions and 3 members: the first member has eight, the others six each (the known skew).
    """

    name: str = field(default="range", init=False)
    rebalance: str = field(default=EAGER, init=False)

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002 - no memory
        return None

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
class RoundRobinAssignor:
    """All partitions of all topics in one list, dealt in turn; who does not subscribe to a topic is passed over."""

    name: str = field(default="roundrobin", init=False)
    rebalance: str = field(default=EAGER, init=False)

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002 - no memory
        return None

    def assign(self, partitions: Mapping[str, int], members: Sequence[GroupMember]) -> Assigned:
        assigned: Assigned = {member.member_id: [] for member in members}
        turns = itertools.cycle(in_order(members))
        for partition in all_partitions(partitions, members):
            member = next(each for each in turns if partition.topic in each.subscription.topics)
            assigned[member.member_id].append(partition)
        return assigned


DEFAULT_STRATEGY: Final = ("range", "cooperative-sticky")
"""Kafka's: range, with a way to cooperative-sticky by removing it in one rolling restart."""
