"""Groups that change their protocol, on the wire and in their log, for the book that judges them (KIP-848).

Such groups that a new coordinator has loaded are checked once for each load:

``loaded_two_protocols``
    The coordinator holds no classic group with a generation beside a group of the consumer protocol.
``loaded_offsets_differ``
    Committed offsets equal the last committed records, whatever protocol the group had when they were written.

Members and assignments that were loaded are compared by ``group_watch.py`` and ``consumer_group_watch.py``.

Rule for this file: it only looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.groups.consumer import records as consumer_records
from minikafka.groups.consumer.group import LEAVE, LEAVE_STATIC
from minikafka.groups.consumer.heartbeat import unflat
from minikafka.groups.consumer.records import ConsumerRecord, TopicIdPartition
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.groups.records import GroupRecord, OffsetRecord, unpacked
from minikafka.sim.cluster import SimCluster
from minikafka.sim.migration_book import MigrationBook
from minikafka.sim.offsets_topic_watch import OffsetsTopicWatch
from minikafka.sim.verdicts import Message
from minikafka.sim.watch import Watch
from minikafka.sim.world import Event
from minikafka.types import TopicPartition
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import RecordBatch
from minikafka.wire.codec import decode_request, decode_response
from minikafka.wire.records import RecordView

TWO_PROTOCOLS: Final = "loaded_two_protocols"
OFFSETS_DIFFER: Final = "loaded_offsets_differ"

WATCHED: Final = frozenset({"JoinGroup", "SyncGroup", "LeaveGroup", "ConsumerGroupHeartbeat", "OffsetCommit"})


class MigrationWatch(OffsetsTopicWatch):
    """All groups of one run that may change their protocol."""

    name: ClassVar[str] = "migrations"

    def __init__(self, cluster: SimCluster, watch: Watch, groups: Collection[str]) -> None:
        super().__init__(cluster, watch)
        self.book = MigrationBook(watch.report, self._named)
        self._migrating = groups
        self._asked: dict[int, Any] = {}
        """Requests by number of the call."""
        self._on_request: dict[str, Callable[[int, Any], None]] = {
            "JoinGroup": self._joins,
            "LeaveGroup": self._leaves,
            "ConsumerGroupHeartbeat": self._beats,
            "OffsetCommit": self._commits,
        }
        self._on_answer: dict[str, Callable[[int, Any, Any], None]] = {
            "SyncGroup": self._synced,
            "ConsumerGroupHeartbeat": self._heard,
            "OffsetCommit": self._committed,
        }
        cluster.sim.network.observers.append(self._on_sent)
        cluster.sim.network.answered.append(self._on_received)

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

    def _on_sent(self, message: Message, _verdict: object) -> None:
        if message.api not in WATCHED or message.kind != "request" or message.call in self._asked:
            return
        request = decode_request(BY_NAME[message.api], message.body)
        if request.group_id not in self._migrating:
            return
        self._asked[message.call] = request
        note = self._on_request.get(message.api)
        if note is not None:
            note(message.call, request)

    def _on_received(self, message: Message) -> None:
        request, note = self._asked.get(message.call), self._on_answer.get(message.api)
        if request is None or note is None or not self._is_log_known(request.group_id):
            return
        answer = decode_response(message.api, message.body)
        if not answer.error_code:
            note(message.call, request, answer)

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
