"""Groups of the consumer protocol on the wire and in their log, for the book that judges them (KIP-848).

Groups that a new coordinator has loaded are checked once for each load, right after the step in which it took over:

``loaded_consumer_group_differs``
    Epochs, members, targets and current assignments equal the last committed records.
``loaded_member_without_deadline``
    Every loaded member expires within the session timeout, and the coordinator wakes up for it.

Rule for this file: it only looks; what a damaged disk shows is not believed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.groups.consumer.group import ConsumerGroup
from minikafka.groups.consumer.heartbeat import unflat
from minikafka.groups.consumer.records import (
    CURRENT,
    GROUP,
    MEMBER,
    TARGET,
    TARGET_EPOCH,
    ConsumerRecord,
    ConsumerValue,
    GroupEpoch,
    Target,
    TargetEpoch,
    TopicIdPartition,
    unpacked,
)
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.sim.cluster import SimCluster
from minikafka.sim.consumer_group_book import ConsumerGroupBook
from minikafka.sim.offsets_topic_watch import OffsetsTopicWatch
from minikafka.sim.replica_view import Report
from minikafka.sim.verdicts import Message
from minikafka.sim.watch import Watch
from minikafka.types import TopicPartition
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import RecordBatch
from minikafka.wire.codec import decode_request, decode_response
from minikafka.wire.records import RecordView

DIFFERS: Final = "loaded_consumer_group_differs"
NO_DEADLINE: Final = "loaded_member_without_deadline"

WATCHED: Final = frozenset({"ConsumerGroupHeartbeat", "OffsetCommit"})

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
        facts[GROUP, ""] = GroupEpoch(epoch=group.epoch, metadata_hash=group.metadata_hash)
    if group.assignment_epoch:
        facts[TARGET_EPOCH, ""] = TargetEpoch(epoch=group.assignment_epoch)
    return facts


class ConsumerGroupWatch(OffsetsTopicWatch):
    """All groups of the consumer protocol of one run."""

    name: ClassVar[str] = "consumer_groups"

    def __init__(self, cluster: SimCluster, watch: Watch, migrating: Collection[str] = ()) -> None:
        """``migrating``: groups whose messages are judged by ``migration_watch.py``."""
        super().__init__(cluster, watch)
        self.book = ConsumerGroupBook(watch.report)
        self.marks: Counter[str] = Counter()
        self._migrating = migrating
        self._asked: dict[int, Any] = {}
        """Requests by number of the call."""
        self._values: dict[str, dict[tuple[int, str], ConsumerValue]] = {}
        cluster.sim.network.observers.append(self._on_sent)
        cluster.sim.network.answered.append(self._on_received)

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def _on_sent(self, message: Message, _verdict: object) -> None:
        if message.api not in WATCHED or message.kind != "request" or message.call in self._asked:
            return
        request = decode_request(BY_NAME[message.api], message.body)
        if request.group_id in self._migrating:
            return
        self._asked[message.call] = request
        if message.api == "OffsetCommit":
            self.book.commit_sent(message.call, request.group_id, request.member_id)
        else:
            given = request.topic_partitions
            self.book.reported(request.group_id, request.member_id, None if given is None else unflat(given))

    def _on_received(self, message: Message) -> None:
        request = self._asked.get(message.call) if message.api in WATCHED else None
        if request is None or not self._is_log_known(request.group_id):
            return
        answer = decode_response(message.api, message.body)
        if answer.error_code:
            return
        if message.api == "OffsetCommit":
            image = self._cluster.image()
            topics = image.topics if image is not None else {}
            granted = [
                TopicIdPartition(topics[each.topic].topic_id, each.partition)
                for each in answer.partitions
                if not each.error_code and each.topic in topics
            ]
            self.marks["consumer_group_commit_granted"] += bool(granted)
            self.book.commit_granted(message.call, request.group_id, request.member_id, granted)
        elif answer.member_epoch > 0:
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
