"""The state of one group of the consumer protocol, as its records make it up (KIP-848).

Three epochs: ``epoch`` rises when the wanted assignment may change, ``assignment_epoch`` is that of the stored target,
and each member's epoch is the assignment that it has reached. member epoch <= assignment epoch <= group epoch.

A regular expression of a member is RE2's, matched in linear time. It matches whole names of topics, internal ones too,
as in Kafka (franz-go relies on that); what it matches is remembered until the topics change.

Rules for this file: all state is what ``apply`` made of records, in whatever order compaction left them; so the group
after a replay equals the group before it. Deadlines are in ``groups.py``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Final, Protocol

from minikafka.coordination.regexes import compiled, cost_of, parts
from minikafka.groups.consumer.records import (
    CURRENT,
    GROUP,
    MEMBER,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ConsumerRecord,
    ConsumerValue,
    Current,
    GroupEpoch,
    MemberMetadata,
    Regex,
    Target,
    TargetEpoch,
    TopicIdPartition,
    record,
    tombstone,
)
from minikafka.groups.group import State
from minikafka.invariant import invariant
from minikafka.types import TopicId
from minikafka.wire.batch import NO_TIMESTAMP

LEAVE, LEAVE_STATIC, JOIN = -1, -2, 0
"""Member epochs that are not epochs."""


class MemberState(enum.IntEnum):
    """The numbers are Kafka's and stand in records."""

    STABLE = 0
    UNREVOKED = 1
    """It must confirm that it has revoked partitions."""
    UNRELEASED = 2
    """Partitions of its target are still owned by other members."""


class Topic(Protocol):
    """What a coordinator needs of a topic in the metadata."""

    @property
    def topic_id(self) -> TopicId: ...

    @property
    def partitions(self) -> Sized: ...


Topics = Mapping[str, Topic]
"""All topics, by name."""

_NEW = Current(epoch=0, previous_epoch=0, state=MemberState.STABLE)


@dataclass(slots=True)
class ConsumerGroup:
    """One group; the dictionaries are by member id."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    emptied_ms: int = NO_TIMESTAMP
    """Wall clock when the last member went; -1: there are members, or it is not known."""
    assignment_epoch: int = 0
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    targets: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    currents: dict[str, Current] = field(default_factory=dict)
    regexes: dict[str, Regex] = field(default_factory=dict)
    """By regular expression."""
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    """The member that has a partition assigned or has yet to confirm its revocation. Follows from ``currents``."""

    def copy(self) -> ConsumerGroup:
        """The values are frozen, so copies of the dictionaries are enough."""
        return ConsumerGroup(
            self.group_id,
            self.epoch,
            self.metadata_hash,
            self.emptied_ms,
            self.assignment_epoch,
            dict(self.members),
            dict(self.targets),
            dict(self.currents),
            dict(self.regexes),
            dict(self.owners),
        )

    # ---- what it is ----

    @property
    def is_nothing(self) -> bool:
        """No record of it is left."""
        return not (self.epoch or self.assignment_epoch or self.members or self.targets or self.currents)

    @property
    def state(self) -> State:
        if not self.members:
            return State.EMPTY
        if self.epoch > self.assignment_epoch:
            return State.ASSIGNING
        if all(self.is_reconciled(each) for each in self.members):
            return State.STABLE
        return State.RECONCILING

    def is_reconciled(self, member_id: str) -> bool:
        """Return True if the member has reached the target; as in Kafka, a static one that is away has not."""
        current = self.current(member_id)
        return current.state == MemberState.STABLE and current.epoch == self.assignment_epoch

    def current(self, member_id: str) -> Current:
        """What the member may own; a new one nothing."""
        return self.currents.get(member_id, _NEW)

    def target(self, member_id: str) -> frozenset[TopicIdPartition]:
        """What the member is to own."""
        return self.targets.get(member_id, frozenset())

    def holder_of(self, instance_id: str) -> str | None:
        """The member with this instance id."""
        return next((key for key, each in self.members.items() if each.instance_id == instance_id), None)

    def topics_of(self, member_id: str) -> frozenset[str]:
        """The names that a member subscribes to, those that its regular expression matched among them."""
        member = self.members[member_id]
        return self._named(member.topics, member.regex)

    def topics(self) -> frozenset[str]:
        """The names that any member subscribes to."""
        # Each heartbeat needs them, and most members of a group subscribe to the same.
        distinct = dict.fromkeys((each.topics, each.regex) for each in self.members.values())
        return frozenset().union(*(self._named(*each) for each in distinct))

    def _named(self, topics: tuple[str, ...], regex: str | None) -> frozenset[str]:
        return frozenset(topics) | frozenset(self.matched(regex))

    def matched(self, regex: str | None) -> tuple[str, ...]:
        """The topics that a member's regular expression matched when it was resolved last."""
        found = self.regexes.get(regex) if regex else None
        return found.topics if found is not None else ()

    # ---- what changes ----

    def apply(self, each: ConsumerRecord) -> None:
        """One record, of the log or of a request. A tombstone of what is not there changes nothing."""
        value = each.value
        if isinstance(value, GroupEpoch):
            self.epoch, self.metadata_hash, self.emptied_ms = value.epoch, value.metadata_hash, value.emptied_ms
        elif isinstance(value, TargetEpoch):
            self.assignment_epoch = value.epoch
        elif isinstance(value, MemberMetadata):
            self.members[each.name] = value
        elif isinstance(value, Target):
            self.targets[each.name] = value.partitions
        elif isinstance(value, Current):
            self._set_current(each.name, value)
        elif isinstance(value, Regex):
            self.regexes[each.name] = value
        elif value is None:
            self._delete(each.kind, each.name)

    def _delete(self, kind: int, name: str) -> None:
        if kind == GROUP:
            self.epoch = self.metadata_hash = 0
            self.emptied_ms = NO_TIMESTAMP
        elif kind == TARGET_EPOCH:
            self.assignment_epoch = 0
        elif kind == MEMBER:
            self.members.pop(name, None)
        elif kind == TARGET:
            self.targets.pop(name, None)
        elif kind == CURRENT:
            self._set_current(name, None)
        elif kind == REGEX:
            self.regexes.pop(name, None)

    def _set_current(self, member_id: str, value: Current | None) -> None:
        # Release, then claim, in one step: a partition may move between the member's own two sets (KAFKA-16147). What
        # another member owns by now is not released: after compaction its record may come first (KAFKA-19862).
        old = self.currents.pop(member_id, _NEW)
        for partition in (*old.assigned, *old.revoking):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        if value is not None:
            self.currents[member_id] = value
            self.owners.update(dict.fromkeys((*value.assigned, *value.revoking), member_id))


class Draft:
    """A group with changes that are not yet committed: each is a record, applied to a copy of the group."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group.copy()
        self.records: list[ConsumerRecord] = []
        self.matched: dict[str, tuple[str, ...]] = {}
        """What the members' regular expressions match among all topics; no part of the records."""

    def set(self, value: ConsumerValue, name: str = "") -> None:
        """Add a record that sets a value."""
        self._add(record(self.group.group_id, value, name))

    def delete(self, kind: int, name: str = "") -> None:
        """Add a tombstone."""
        self._add(tombstone(self.group.group_id, kind, name))

    def move(self, member_id: str, current: Current) -> None:
        """Set what a member may own. No partition may have two owners."""
        for partition in current.assigned:
            owner = self.group.owners.get(partition, member_id)
            invariant(owner == member_id, "a partition is assigned to two members", partition=partition, owner=owner)
        self.set(current, member_id)

    def remove(self, member_id: str) -> None:
        """Delete a member: it left, or it was fenced."""
        self.delete(CURRENT, member_id)
        self.delete(TARGET, member_id)
        self.delete(MEMBER, member_id)

    def delete_all(self) -> None:
        """Delete what is left of a group without members."""
        for regex in list(self.group.regexes):
            self.delete(REGEX, regex)
        for member_id in sorted({*self.group.members, *self.group.targets, *self.group.currents}):
            self.remove(member_id)
        self.delete(TARGET_EPOCH)
        self.delete(GROUP)

    def _add(self, each: ConsumerRecord) -> None:
        self.group.apply(each)
        self.records.append(each)


FIELD: Final = "subscribed_topic_regex"


def check_regex(text: str) -> None:
    """InvalidRegularExpression unless RE2 accepts ``text``."""
    compiled(text, FIELD)


REGEXES_MAX: Final = 1_000
"""Expressions whose matches are remembered: a client may send another one with each heartbeat."""


class Regexes:
    """What expressions match among the present topics, remembered until the topics change."""

    def __init__(self) -> None:
        self._topics: Topics = {}
        self._characters = 0
        """Of the names of all topics."""
        self._found: dict[str, tuple[str, ...]] = {}

    def knows(self, text: str, topics: Topics) -> bool:
        """Return True if :meth:`matched` has nothing to match."""
        self._use(topics)
        return text in self._found

    def cost(self, text: str, topics: Topics) -> int:
        """The cost of :meth:`matched`; see ``coordination/regexes.py``."""
        return 0 if self.knows(text, topics) else cost_of(compiled(text, FIELD), self._characters)

    def matched(self, text: str, topics: Topics) -> tuple[str, ...]:
        """The names of topics that match, sorted."""
        if not self.knows(text, topics):
            for _ in self.match(text, topics):
                pass
        return self._found[text]

    def match(self, text: str, topics: Topics) -> Iterator[None]:
        """Match in turns: each step has a bounded cost. At the end the expression is known, unless the topics have
        changed meanwhile. Raises InvalidRegularExpression.
        """
        if self.knows(text, topics):
            return
        pattern = compiled(text, FIELD)
        found: list[str] = []
        for number, part in enumerate(parts(pattern, topics)):
            if number:
                yield
            found += [name for name in part if pattern.fullmatch(name)]
        if topics is not self._topics:
            return
        if len(self._found) >= REGEXES_MAX:
            self._found.clear()
        self._found[text] = tuple(sorted(found))

    def _use(self, topics: Topics) -> None:
        if topics is not self._topics:
            self._topics, self._found = topics, {}
            self._characters = sum(map(len, topics))
