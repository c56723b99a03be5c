"""Groups that change their protocol, on the wire and in their log, and the book that judges them (KIP-848).

The watch only looks. Such groups that a new coordinator has loaded are checked once for each load:

``loaded_two_protocols``
    The coordinator holds no classic group with a generation beside a group of the consumer protocol.
``loaded_offsets_differ``
    Committed offsets equal the last committed records, whatever protocol the group had when they were written.

Members and assignments that were loaded are compared by ``group_watch.py`` and ``consumer_group_watch.py``.

The book (:class:`MigrationBook`) has no I/O and knows which member may own what, across both protocols, while members
are live. Records come batch by batch, for those of one batch count at once. The state of a group is that of its classic
record or that of its records of the consumer protocol; a batch that converts the group changes one into the other.

================================  =====================================================================================
``two_protocols_recorded``        after a committed batch a group has a classic record and records of the consumer
                                  protocol
``conversion_changed_owners``     a batch converts the group, and after it a member that was not removed is missing, or
                                  has lost a partition or its epoch
``members_vanished``              a batch deletes a group that has members, and leaves it in neither protocol
``two_owners_recorded``           committed records give a partition to two members, assigned or to be revoked
``member_epoch_fell``             the epoch (the generation) of a member falls, though it was not removed
``given_before_revoked``          a member receives a partition, and another one that received it, by either protocol,
                                  has neither given it up nor been removed
``assignment_unrecorded``         a member receives an assignment or an epoch that is not committed
``stale_generation_committed``    a commit of a classic member is accepted for a generation that the member had left,
                                  though its group is a classic one or it has not owned the partition since (KIP-1251)
``zombie_commit``                 a commit is accepted from a member that was removed before, or of a partition that was
                                  another member's before
``committed_offset_deleted``      the offset of a partition is deleted, though nothing made it expire
================================  =====================================================================================

Refusals prove nothing. A static member of the classic protocol may keep what the leader has assigned to another member
meanwhile (KIP-345): ``given_before_revoked`` does not count those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.groups.consumer import records as consumer_records
from minikafka.groups.consumer.group import LEAVE, LEAVE_STATIC
from minikafka.groups.consumer.heartbeat import unflat
from minikafka.groups.consumer.records import (
    CURRENT,
    MEMBER,
    ConsumerRecord,
    ConsumerValue,
    Current,
    MemberMetadata,
    TopicIdPartition,
)
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.groups.records import GroupRecord, GroupValue, OffsetRecord, unpacked
from minikafka.sim.cluster import SimCluster
from minikafka.sim.group_watch import OFFSETS_DIFFER, AnswerWatch
from minikafka.sim.ownership import Owned, Ownership, OwnershipBook, Partitions
from minikafka.sim.plan import CLASSIC, CONSUMER
from minikafka.sim.replica_view import Report
from minikafka.sim.watch import Watch
from minikafka.sim.world import Event
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import RecordView

NOTHING: Final = ""
"""The protocol of a group without records."""


@dataclass(slots=True)
class _Group(Ownership):
    classic: GroupValue | None = None
    consumer: dict[tuple[int, str], ConsumerValue] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    """Members that a coordinator has removed, which may be before a record says so, or without one."""
    offsets: dict[TopicPartition, Offset] = field(default_factory=dict)

    @property
    def protocol(self) -> str:
        if self.consumer:
            return CONSUMER
        return CLASSIC if self.classic is not None else NOTHING


class MigrationBook(OwnershipBook[_Group]):
    """All groups of one history that may change their protocol."""

    def __init__(self, report: Report, named: Callable[[TopicIdPartition], TopicPartition]) -> None:
        super().__init__(report, _Group)
        self.marks: Counter[str] = Counter()
        self._named = named

    # ---- records -----------------------------------------------------------------------------------------------------

    def recorded(self, group: str, records: Iterable[GroupRecord | ConsumerRecord]) -> None:
        """These became committed at once."""
        known = self._groups[group]
        before, was = known.members, known.protocol
        for each in records:
            if isinstance(each, GroupRecord):
                known.classic = each.value
            elif each.value is None:
                known.consumer.pop((each.kind, each.name), None)
            else:
                known.consumer[each.kind, each.name] = each.value
        if known.classic is not None and known.consumer:
            kinds = sorted({kind for kind, _ in known.consumer})
            self._report("two_protocols_recorded", f"{group}: a classic record, and records of types {kinds}")
            return
        known.members = self._members(known)
        if known.protocol == NOTHING and before:
            self._report("members_vanished", f"{group}: {sorted(before)} were members, and no record is left")
        elif before and was != known.protocol:
            self.marks[f"migrated_to_{known.protocol}"] += 1
            self._look_at_conversion(group, before, known.members)
        self._look(group, before, known)

    def _members(self, known: _Group) -> dict[str, Owned]:
        if known.protocol == CONSUMER:
            return {
                name: self._owned(known, name, value)
                for (kind, name), value in known.consumer.items()
                if kind == CURRENT and isinstance(value, Current)
            }
        value = known.classic
        if value is None:
            return {}
        return {
            each.member_id: Owned(
                value.generation,
                frozenset(Assignment.unpacked(each.assignment).partitions),
                instance_id=each.instance_id,
                is_classic=True,
                in_classic_group=True,
            )
            for each in value.members
        }

    def _owned(self, known: _Group, name: str, value: Current) -> Owned:
        found = known.consumer.get((MEMBER, name))
        metadata = found if isinstance(found, MemberMetadata) else MemberMetadata()
        return Owned(
            value.epoch,
            frozenset(map(self._named, value.assigned)),
            frozenset(map(self._named, value.revoking)),
            metadata.instance_id,
            metadata.is_classic,
        )

    def _look_at_conversion(self, group: str, before: Mapping[str, Owned], now: Mapping[str, Owned]) -> None:
        by_instance = {each.instance_id: each for each in now.values() if each.instance_id is not None}
        left = self._groups[group].left
        for name, old in before.items():
            new = now.get(name)
            if new is None and name in left:
                continue  # the record of the group without it could not be written
            if new is None and old.instance_id is not None:
                new = by_instance.get(old.instance_id)  # a process of the other protocol has the place of this one
            elif new is not None and new.epoch < old.epoch and old.epoch != LEAVE_STATIC:
                self._report("conversion_changed_owners", f"{group}: {name} falls from {old.epoch} to {new.epoch}")
            if new is None or not old.assigned <= new.all:
                has = "nothing" if new is None else self._shown(new.all)
                self._report(
                    "conversion_changed_owners",
                    f"{group}: {name} had {self._shown(old.assigned)}, and {has} after that",
                )

    def _look(self, group: str, before: Mapping[str, Owned], known: _Group) -> None:
        self._look_at_owners(group)
        for name, now in known.members.items():
            old = before.get(name)
            if old is not None and 0 <= now.epoch < old.epoch:
                self._report("member_epoch_fell", f"{group}: {name} from {old.epoch} to {now.epoch}")
        known.given = {each: name for each, name in known.given.items() if name in known.members}
        if known.protocol == CONSUMER and {each.is_classic for each in known.members.values()} == {True, False}:
            self.marks["migration_mixed"] += 1

    def offset_recorded(self, group: str, partition: TopicPartition, offset: Offset | None) -> None:
        """An offset's record was committed; None: it was deleted."""
        offsets = self._groups[group].offsets
        if offset is not None:
            offsets[partition] = offset
        elif partition in offsets:
            self._report("committed_offset_deleted", f"{group}: {partition} was at {offsets.pop(partition)}")

    def offsets(self, group: str) -> Mapping[TopicPartition, Offset]:
        """What the log holds now."""
        return self._groups[group].offsets

    def left(self, group: str, member: str) -> None:
        """A coordinator has removed a member."""
        self._groups[group].left.add(member)

    # ---- messages ----------------------------------------------------------------------------------------------------

    def answered(self, group: str, member: str, epoch: int, assigned: Partitions | None) -> bool:
        """See :class:`OwnershipBook`."""
        is_current = super().answered(group, member, epoch, assigned)
        self.marks["migration_assigned"] += is_current and bool(assigned)
        return is_current


TWO_PROTOCOLS: Final = "loaded_two_protocols"


class MigrationWatch(AnswerWatch):
    """All groups of one run that may change their protocol."""

    name: ClassVar[str] = "migrations"

    def __init__(self, cluster: SimCluster, watch: Watch, groups: Collection[str]) -> None:
        super().__init__(cluster, watch)
        self.book = MigrationBook(watch.report, self._named)
        self._migrating = groups
        self._on_request = {
            "JoinGroup": self._joins,
            "LeaveGroup": self._leaves,
            "ConsumerGroupHeartbeat": self._beats,
            "OffsetCommit": self._commits,
        }
        self._on_answer = {
            "SyncGroup": self._synced,
            "ConsumerGroupHeartbeat": self._heard,
            "OffsetCommit": self._committed,
        }

    @property
    def marks(self) -> Counter[str]:
        """What groups did."""
        return self.book.marks

    def _named(self, partition: TopicIdPartition) -> TopicPartition:
        image = self._cluster.image()
        for name, topic in image.topics.items() if image is not None else ():
            if topic.topic_id == partition.topic_id:
                return TopicPartition(name, partition.partition)
        return TopicPartition(partition.topic_id, partition.partition)

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        if event.kind == "group_member_left" and event.facts["group"] in self._migrating:
            self.book.left(str(event.facts["group"]), str(event.facts["member"]))

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def concerns(self, group: str) -> bool:
        """Return True for a group that may change its protocol."""
        return group in self._migrating

    def _joins(self, _call: int, request: Any) -> None:
        owned = Subscription.unpacked(request.protocols[0].metadata).owned
        self.book.reported(request.group_id, request.member_id, frozenset(owned))

    def _leaves(self, _call: int, request: Any) -> None:
        for each in request.members:
            self.book.reported(request.group_id, each.member_id, frozenset())

    def _beats(self, _call: int, request: Any) -> None:
        given = request.topic_partitions
        owned = None if given is None else frozenset(map(self._named, unflat(given)))
        leaves = request.member_epoch in (LEAVE, LEAVE_STATIC)
        self.book.reported(request.group_id, request.member_id, frozenset() if leaves else owned)

    def _commits(self, call: int, request: Any) -> None:
        self.book.commit_sent(call, request.group_id, request.member_id, request.generation_id)

    def _synced(self, _call: int, request: Any, answer: Any) -> None:
        assigned = frozenset(Assignment.unpacked(answer.assignment).partitions)
        self.book.answered(request.group_id, request.member_id, request.generation_id, assigned)

    def _heard(self, _call: int, request: Any, answer: Any) -> None:
        if answer.member_epoch > 0:
            given = answer.assignment
            assigned = None if given is None else frozenset(map(self._named, unflat(given)))
            self.book.answered(request.group_id, request.member_id, answer.member_epoch, assigned)

    def _committed(self, call: int, request: Any, answer: Any) -> None:
        granted = [TopicPartition(each.topic, each.partition) for each in answer.partitions if not each.error_code]
        self.marks["migration_commit_granted"] += bool(granted)
        self.book.commit_granted(call, request.group_id, request.member_id, granted)

    # ---- the log -----------------------------------------------------------------------------------------------------

    def batch_committed(self, _batch: RecordBatch, records: list[RecordView]) -> None:
        """Note what a batch says of the groups, all of it at once."""
        found: dict[str, list[GroupRecord | ConsumerRecord]] = {}
        for each in records:
            key = each.key or b""
            record = consumer_records.unpacked(key, each.value) or unpacked(key, each.value)
            if record is None or record.group not in self._migrating:
                continue
            if isinstance(record, OffsetRecord):
                offset = None if record.value is None else record.value.offset
                self.book.offset_recorded(record.group, record.partition, offset)
            else:
                found.setdefault(record.group, []).append(record)
        for group, said in found.items():
            self.book.recorded(group, said)

    def taken_over(self, shard: CoordinatorShard[GroupCoordinator], name: TopicPartition) -> None:
        """Check the groups that a new coordinator has loaded."""
        rules = shard.coordinator
        for group in self._migrating:
            if self._partition(group) != name:
                continue
            classic, consumer = rules._groups.get(group), rules._consumers.get(group)
            if classic is not None and consumer is not None and (classic.generation or classic.members):
                self._watch.report(
                    TWO_PROTOCOLS, f"{group}: a classic group in generation {classic.generation} and {consumer.group}"
                )
            self.marks["migration_taken_over"] += classic is not None
            loaded = {each: value.offset for each, value in rules.committed_offsets(group).items()}
            recorded = dict(self.book.offsets(group))
            if loaded != recorded:
                self._watch.report(OFFSETS_DIFFER, f"{group}: loaded {loaded}, committed {recorded}")
