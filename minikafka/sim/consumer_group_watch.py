"""Groups of the consumer protocol on the wire and in their log, and the book that judges them (KIP-848).

The watch only looks; what a damaged disk shows is not believed. Groups that a new coordinator has loaded are checked
once for each load, right after the step in which it took over:

``loaded_consumer_group_differs``
    Epochs, members, targets and current assignments equal the last committed records.
``loaded_member_without_deadline``
    Every loaded member expires within the session timeout, and the coordinator wakes up for it.

The book (:class:`ConsumerGroupBook`) has no I/O and knows which member may own what, by committed records and by
answers:

================================  =====================================================================================
``two_owners_recorded``           committed records give a partition to two members, assigned or to be revoked
``member_epoch_fell``             the epoch of a member falls, though it was not removed
``epochs_disordered``             not: member epoch <= assignment epoch <= group epoch; or one of the latter falls
``given_before_revoked``          a member receives a partition, and another one that received it has neither confirmed
                                  its revocation, nor left for a restart, nor been removed
``assignment_unrecorded``         a member receives an assignment or an epoch that is not committed
``zombie_commit``                 a commit is accepted from a member that was removed before, or of a partition that was
                                  another member's before
``interval_beyond_session``       a member receives an interval that is not shorter than its session timeout: it is
                                  removed between two heartbeats
================================  =====================================================================================

Records come batch by batch, for those of one heartbeat count at once. Refusals prove nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.groups.consumer.group import LEAVE_STATIC, ConsumerGroup
from minikafka.groups.consumer.heartbeat import unflat
from minikafka.groups.consumer.records import (
    CURRENT,
    GROUP,
    MEMBER,
    TARGET,
    TARGET_EPOCH,
    ConsumerRecord,
    ConsumerValue,
    Current,
    GroupEpoch,
    Target,
    TargetEpoch,
    TopicIdPartition,
    unpacked,
)
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.sim.cluster import SimCluster
from minikafka.sim.group_watch import AnswerWatch
from minikafka.sim.ownership import Owned, Ownership, OwnershipBook, Partitions
from minikafka.sim.replica_view import Report
from minikafka.sim.watch import Watch
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.group_messages import ConsumerGroupHeartbeatRequest
from minikafka.wire.records import RecordView


@dataclass(slots=True)
class _Group(Ownership):
    epoch: int = 0
    assignment_epoch: int = 0
    highest: dict[str, int] = field(default_factory=dict)
    """The highest epoch of each member, while it is one."""


class ConsumerGroupBook(OwnershipBook[_Group]):
    """All groups of one history."""

    def __init__(self, report: Report) -> None:
        super().__init__(report, _Group)

    def _name_of(self, partition: TopicIdPartition) -> str:
        return f"{partition.topic_id}-{partition.partition}"

    # ---- records -----------------------------------------------------------------------------------------------------

    def recorded(self, group: str, records: Iterable[ConsumerRecord]) -> None:
        """These became committed at once."""
        known = self._groups[group]
        for each in records:
            value = each.value
            if isinstance(value, GroupEpoch):
                self._rises(group, "group epoch", known.epoch, value.epoch)
                known.epoch = value.epoch
            elif isinstance(value, TargetEpoch):
                self._rises(group, "assignment epoch", known.assignment_epoch, value.epoch)
                known.assignment_epoch = value.epoch
            elif isinstance(value, Current):
                known.members[each.name] = Owned(value.epoch, frozenset(value.assigned), frozenset(value.revoking))
            elif value is None and each.kind == CURRENT:
                self._removed(known, each.name)
            elif value is None and each.kind == GROUP:
                self._groups[group] = known = _Group(sent=known.sent)
        self._look(group, known)

    def _removed(self, known: _Group, member: str) -> None:
        known.members.pop(member, None)
        known.highest.pop(member, None)
        known.given = {each: name for each, name in known.given.items() if name != member}

    def _rises(self, group: str, what: str, before: int, now: int) -> None:
        if now < before:
            self._report("epochs_disordered", f"{group}: the {what} fell from {before} to {now}")

    def _look(self, group: str, known: _Group) -> None:
        self._look_at_owners(group)
        for member, now in known.members.items():
            if now.epoch != LEAVE_STATIC:
                if now.epoch < known.highest.get(member, 0):
                    self._report("member_epoch_fell", f"{group}: {member} from {known.highest[member]} to {now.epoch}")
                known.highest[member] = max(now.epoch, known.highest.get(member, 0))
            if not now.epoch <= known.assignment_epoch <= known.epoch:
                self._report(
                    "epochs_disordered",
                    f"{group}: {member} at {now.epoch}, assignment {known.assignment_epoch}, group {known.epoch}",
                )

    # ---- messages ----------------------------------------------------------------------------------------------------

    def interval_received(self, group: str, member: str, interval_ms: int, session_ms: int) -> None:
        """A member has received the interval at which it is to heartbeat."""
        if interval_ms >= session_ms:
            self._report(
                "interval_beyond_session",
                f"{group}: {member} is to heartbeat every {interval_ms} ms, and its session ends after {session_ms} ms",
            )


def owned_by(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    """Return the partitions that the sender of a heartbeat owns; None if the heartbeat does not say.

    A static member that leaves for a restart names none, and owns none: its client stops reading before it sends this.
    So the coordinator drops what the member had still to revoke, as Kafka does, and no tombstone follows.
    """
    if request.member_epoch == LEAVE_STATIC:
        return frozenset()
    return None if request.topic_partitions is None else unflat(request.topic_partitions)


DIFFERS: Final = "loaded_consumer_group_differs"
NO_DEADLINE: Final = "loaded_member_without_deadline"

Values = Mapping[tuple[int, str], ConsumerValue]
"""The last committed record of each key of a group: type and name."""


def look_at_loaded(
    shard: CoordinatorShard[GroupCoordinator], records: Mapping[str, Values], now: float, report: Report
) -> None:
    """Check every group of a coordinator that has just taken over; ``records`` by group."""
    consumers = shard.coordinator._consumers
    for name, values in records.items():
        held = consumers.get(name)
        found = facts_of(held.group if held is not None else ConsumerGroup(name))
        if found != dict(values):
            report(DIFFERS, f"{name}: the new coordinator loaded {found}, committed is {dict(values)}")
    for held in consumers.all():
        for member, metadata in held.group.members.items():
            session_ms = shard.coordinator._settings.consumer_session_timeout_ms
            session_ms = session_ms if metadata.classic is None else metadata.classic.session_timeout_ms
            latest = now + session_ms / 1000
            deadline = held.sessions.get(member, math.inf)
            if deadline > latest:
                report(NO_DEADLINE, f"{held.group.group_id}: {member} expires at {deadline}, not by {latest:.3f}")
            elif shard.coordinator.next_deadline() > deadline:
                report(NO_DEADLINE, f"{held.group.group_id}: nothing wakes the coordinator when {member} expires")


def facts_of(group: ConsumerGroup) -> dict[tuple[int, str], ConsumerValue]:
    """The records that would make up this group; regular expressions aside."""
    facts: dict[tuple[int, str], ConsumerValue] = {(MEMBER, name): each for name, each in group.members.items()}
    facts |= {(TARGET, name): Target(partitions=each) for name, each in group.targets.items()}
    facts |= {(CURRENT, name): each for name, each in group.currents.items()}
    if group.epoch:
        facts[GROUP, ""] = GroupEpoch(epoch=group.epoch, metadata_hash=group.metadata_hash, emptied_ms=group.emptied_ms)
    if group.assignment_epoch:
        facts[TARGET_EPOCH, ""] = TargetEpoch(epoch=group.assignment_epoch)
    return facts


class ConsumerGroupWatch(AnswerWatch):
    """All groups of the consumer protocol of one run."""

    name: ClassVar[str] = "consumer_groups"

    def __init__(self, cluster: SimCluster, watch: Watch, migrating: Collection[str] = ()) -> None:
        """``migrating``: groups whose messages are judged by ``migration_watch.py``."""
        super().__init__(cluster, watch)
        self.book = ConsumerGroupBook(watch.report)
        self.marks: Counter[str] = Counter()
        self._migrating = migrating
        self._session_ms = cluster.config_of(cluster.nodes[0]).group_consumer_session_timeout_ms
        self._values: dict[str, dict[tuple[int, str], ConsumerValue]] = {}
        self._on_request = {"OffsetCommit": self._commits, "ConsumerGroupHeartbeat": self._beats}
        self._on_answer = {"OffsetCommit": self._committed, "ConsumerGroupHeartbeat": self._heard}

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def concerns(self, group: str) -> bool:
        """Return True for a group that keeps its protocol."""
        return group not in self._migrating

    def _commits(self, call: int, request: Any) -> None:
        self.book.commit_sent(call, request.group_id, request.member_id)

    def _beats(self, _call: int, request: Any) -> None:
        self.book.reported(request.group_id, request.member_id, owned_by(request))

    def _committed(self, call: int, request: Any, answer: Any) -> None:
        image = self._cluster.image()
        topics = image.topics if image is not None else {}
        granted = [
            TopicIdPartition(topics[each.topic].topic_id, each.partition)
            for each in answer.partitions
            if not each.error_code and each.topic in topics
        ]
        self.marks["consumer_group_commit_granted"] += bool(granted)
        self.book.commit_granted(call, request.group_id, request.member_id, granted)

    def _heard(self, _call: int, request: Any, answer: Any) -> None:
        if answer.member_epoch > 0:
            interval_ms = answer.heartbeat_interval_ms
            self.book.interval_received(request.group_id, request.member_id, interval_ms, self._session_ms)
            self.marks["consumer_group_assigned"] += bool(answer.assignment)
            assigned = None if answer.assignment is None else unflat(answer.assignment)
            self.book.answered(request.group_id, request.member_id, answer.member_epoch, assigned)

    # ---- the log -----------------------------------------------------------------------------------------------------

    def batch_committed(self, _batch: RecordBatch, records: list[RecordView]) -> None:
        """Replay the records of groups; those of one heartbeat count at once."""
        found: dict[str, list[ConsumerRecord]] = {}
        for record in records:
            parsed = unpacked(record.key or b"", record.value)
            if parsed is not None:
                found.setdefault(parsed.group, []).append(parsed)
        for group, parsed_of in found.items():
            self._replay(group, parsed_of)

    def _replay(self, group: str, records: list[ConsumerRecord]) -> None:
        values = self._values.setdefault(group, {})
        for each in records:
            if each.value is None:
                values.pop((each.kind, each.name), None)
            else:
                values[each.kind, each.name] = each.value
        self.marks["consumer_group_recorded"] += 1
        self.book.recorded(group, records)

    def taken_over(self, shard: CoordinatorShard[GroupCoordinator], name: TopicPartition) -> None:
        """Check the groups that a new coordinator has loaded."""
        values = {each: found for each, found in self._values.items() if self._partition(each) == name}
        self.marks["consumer_group_taken_over"] += bool(values)
        look_at_loaded(shard, values, self._cluster.sim.loop.time(), self._watch.report)
