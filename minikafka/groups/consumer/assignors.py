"""The coordinator's assignors, ``uniform`` and ``range``: pure functions from subscriptions to a target assignment.

Both walk members in a fixed order, so that two coordinators that see the same group assign the same. Range deals each
topic by itself and forgets what was before. Uniform balances over all topics and moves as little as it can.

Rules for this file: a topic that does not exist is not in ``counts`` and is skipped; every partition of a subscribed
topic goes to exactly one of its subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from minikafka.groups.consumer.records import TopicIdPartition
from minikafka.types import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """One member, as an assignor sees it."""

    topics: frozenset[TopicId]
    previous: frozenset[TopicIdPartition] = frozenset()
    """Its target assignment so far."""
    instance_id: str | None = None


Subscribers: TypeAlias = Mapping[str, Subscriber]
"""By member id."""
Counts: TypeAlias = Mapping[TopicId, int]
"""Partitions of each topic that exists."""
Targets: TypeAlias = dict[str, set[TopicIdPartition]]
"""By member id; every member is in it."""

ROUNDS_MAX = 16
"""Passes that balance members with different subscriptions, as in Kafka."""


def range_assign(members: Subscribers, counts: Counts) -> Targets:
    """Deal each topic in ranges: static members first, by instance id, then the others by member id."""
    targets: Targets = {member_id: set() for member_id in members}
    ordered = sorted(
        members, key=lambda each: (members[each].instance_id is None, members[each].instance_id or "", each)
    )
    for topic_id in sorted(_wanted(members, counts)):
        subscribers = [each for each in ordered if topic_id in members[each].topics]
        quota, extra = divmod(counts[topic_id], len(subscribers))
        begin = 0
        for index, each in enumerate(subscribers):
            end = begin + quota + (index < extra)
            targets[each].update(TopicIdPartition(topic_id, number) for number in range(begin, end))
            begin = end
    return targets


def uniform_assign(members: Subscribers, counts: Counts) -> Targets:
    """Balance the number of partitions per member, keep previous targets where balance allows it."""
    if len({each.topics for each in members.values()}) <= 1:
        return _uniform_same(members, counts)
    return _uniform_different(members, counts)


def _wanted(members: Subscribers, counts: Counts) -> set[TopicId]:
    return {topic_id for each in members.values() for topic_id in each.topics if topic_id in counts}


def _kept(members: Subscribers, counts: Counts) -> Targets:
    """Previous targets that still count: the topic is subscribed to, the partition exists, and nobody else has it."""
    targets: Targets = {}
    taken: set[TopicIdPartition] = set()
    for member_id in sorted(members):
        member = members[member_id]
        targets[member_id] = {
            each
            for each in member.previous
            if each.topic_id in member.topics and each.partition < counts.get(each.topic_id, 0) and each not in taken
        }
        taken |= targets[member_id]
    return targets


def _unassigned(members: Subscribers, counts: Counts, targets: Targets) -> list[TopicIdPartition]:
    taken = {each for target in targets.values() for each in target}
    return [
        each
        for topic_id in sorted(_wanted(members, counts))
        for number in range(counts[topic_id])
        if (each := TopicIdPartition(topic_id, number)) not in taken
    ]


def _uniform_same(members: Subscribers, counts: Counts) -> Targets:
    """All members subscribe to the same topics: each gets the mean, the first ones in order one more."""
    targets = _kept(members, counts)
    if not targets:
        return targets
    total = sum(counts[topic_id] for topic_id in _wanted(members, counts))
    quota, extra = divmod(total, len(targets))
    # Members that have more go first: a partition more stays where it is.
    for member_id in sorted(targets, key=lambda each: (-len(targets[each]), each)):
        size = quota + (extra > 0)
        extra -= size > quota
        for surplus in sorted(targets[member_id])[size:]:
            targets[member_id].remove(surplus)
    free = iter(_unassigned(members, counts, targets))
    extra = total % len(targets) - sum(len(target) > quota for target in targets.values())
    for member_id in sorted(targets):
        target = targets[member_id]
        while len(target) < quota:
            target.add(next(free))
    for member_id in sorted(targets):
        if extra and len(targets[member_id]) == quota:
            targets[member_id].add(next(free))
            extra -= 1
    return targets


def _uniform_different(members: Subscribers, counts: Counts) -> Targets:
    """Subscriptions differ: deal to the least loaded subscriber, then even out topic by topic."""
    targets = _kept(members, counts)
    order = {member_id: index for index, member_id in enumerate(sorted(members))}
    subscribers = {
        topic_id: [each for each in order if topic_id in members[each].topics] for topic_id in _wanted(members, counts)
    }
    in_order = sorted(
        subscribers, key=lambda each: (-counts[each] / len(subscribers[each]), len(subscribers[each]), each)
    )

    def load(member_id: str) -> tuple[int, int]:
        return len(targets[member_id]), order[member_id]

    place = {topic_id: index for index, topic_id in enumerate(in_order)}
    for each in sorted(_unassigned(members, counts, targets), key=lambda one: (place[one.topic_id], one.partition)):
        targets[min(subscribers[each.topic_id], key=load)].add(each)
    for _ in range(ROUNDS_MAX):
        moves = [_even_out(topic_id, subscribers[topic_id], targets, load) for topic_id in in_order]
        if not any(moves):
            break
    return targets


def _even_out(
    topic_id: TopicId, subscribers: list[str], targets: Targets, load: Callable[[str], tuple[int, int]]
) -> int:
    """Move partitions of one topic from the most to the least loaded subscriber; return how many moved."""
    moved = 0
    while True:
        owners = [each for each in subscribers if any(one.topic_id == topic_id for one in targets[each])]
        if not owners:
            return moved
        most, least = max(owners, key=load), min(subscribers, key=load)
        if len(targets[most]) - len(targets[least]) <= 1:
            return moved
        last = max(each for each in targets[most] if each.topic_id == topic_id)
        targets[most].remove(last)
        targets[least].add(last)
        moved += 1


ASSIGNORS: Final[Mapping[str, Callable[[Subscribers, Counts], Targets]]] = {
    "uniform": uniform_assign,
    "range": range_assign,
}
"""By name, as ``group.remote.assignor`` gives it."""
