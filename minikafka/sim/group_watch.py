"""What consumer groups say on the wire, and what their log holds, passed to the book that judges it (check/groups.py).

Requests and answers between members and coordinators are read as they are sent; ``__consumer_offsets`` is read as far
as any watermark passes it, which is before any client can receive it.

Rules for this file: it only looks; what a damaged disk shows is not believed.

Groups that a new coordinator has loaded from its log are checked once per load, right after the step in which it took
over:

``loaded_group_differs``
    Generation, leader, protocol, members, instance ids and assignments equal the last committed record of each group.
``loaded_member_without_deadline``
    Every loaded member that is not parked expires within its session timeout, and the coordinator wakes up for it.
``loaded_offsets_differ``
    Committed offsets equal the last committed records.

All watches of groups share ``OffsetsTopicWatch``: what ``__consumer_offsets`` holds, batch by batch as it becomes
committed, and each coordinator that takes over.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.check.groups import GroupBook
from minikafka.coordination.rule import partition_of
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.group import Group, State
from minikafka.groups.protocol import Assignment
from minikafka.groups.records import OFFSETS_TOPIC, GroupValue, OffsetRecord, unpacked
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.log_invariants import stored_batches
from minikafka.sim.replica_view import OfPartition, ReplicaView, Report
from minikafka.sim.verdicts import Message
from minikafka.sim.watch import Watch
from minikafka.sim.world import Event
from minikafka.types import NodeId, Offset, TopicId, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import RecordBatch
from minikafka.wire.codec import decode_request, decode_response
from minikafka.wire.records import RecordView, decode_batch


class OffsetsTopicWatch(OfPartition):
    """The base of what watches groups of one run."""

    def __init__(self, cluster: SimCluster, watch: Watch) -> None:
        self._cluster = cluster
        self._watch = watch
        self._nodes = {node_name(node): node for node in cluster.nodes}
        self._read: dict[tuple[TopicPartition, TopicId], Offset] = {}
        """Up to where the log was read."""
        self._loaded_on: list[str] = []
        """Nodes on which a coordinator has taken over in this step."""
        self._loaded: dict[tuple[NodeId, TopicPartition], CoordinatorShard[GroupCoordinator]] = {}
        """The coordinator that took over each partition last, by node."""
        cluster.sim.observers.append(self._on_event)
        cluster.sim.loop.after_step.append(self._after_step)
        watch.also(self)

    @abstractmethod
    def batch_committed(self, batch: RecordBatch, records: list[RecordView]) -> None:
        """Note a batch that any watermark has passed, which is before any client can receive it."""

    @abstractmethod
    def taken_over(self, shard: CoordinatorShard[GroupCoordinator], name: TopicPartition) -> None:
        """Check a coordinator that has just loaded its partition; the log was read up to there in the same step."""

    # ---- the log -----------------------------------------------------------------------------------------------------

    def look(self, view: ReplicaView, _report: Report) -> None:
        """Read on, as far as this replica knows it to be committed."""
        if view.name.topic != OFFSETS_TOPIC:
            return
        log, start, end = view.partition.log, self._read.get(view.key, 0), view.partition.high_watermark
        if start >= end:
            return
        offset = max(start, log.start_offset)
        for batch in stored_batches(log, start, end):
            if not batch.is_control:
                self.batch_committed(batch, [each for each in decode_batch(batch) if each.offset >= offset])
            offset = batch.next_offset
        self._read[view.key] = offset

    # ---- coordinators ------------------------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        if event.kind == "group_coordinator_loaded":
            self._loaded_on.append(event.node)

    def _after_step(self) -> None:
        while self._loaded_on:
            node = self._nodes[self._loaded_on.pop()]
            broker, image = self._cluster.present().get(node), self._cluster.image()
            if broker is None or image is None or self._watch.forgiven:
                continue
            for shard in broker.groups.shards:
                name = shard.partition.partition
                if not shard.is_loaded or self._loaded.get((node, name)) is shard:
                    continue
                self._loaded[node, name] = shard
                state = image.partition(name)
                # A deposed leader may load what its successor's log has changed since.
                is_newest = state is not None and (state.leader, state.leader_epoch) == (node, shard.leader.epoch)
                if is_newest and name not in self._watch.were_rotten:
                    self.taken_over(shard, name)

    def _partition(self, group: str) -> TopicPartition:
        image = self._cluster.image()
        topic = image.topics.get(OFFSETS_TOPIC) if image is not None else None
        return TopicPartition(OFFSETS_TOPIC, partition_of(group, len(topic.partitions)) if topic is not None else 0)

    def _is_log_known(self, group: str) -> bool:
        """Return True if everything that was committed there was seen. It was not where a disk was damaged."""
        return self._partition(group) not in self._watch.were_rotten


class AnswerWatch(OffsetsTopicWatch):
    """The base of what judges the answers of coordinators, in the order in which clients receive them."""

    def __init__(self, cluster: SimCluster, watch: Watch) -> None:
        super().__init__(cluster, watch)
        self._asked: dict[int, Any] = {}
        """Requests by number of the call."""
        self._on_request: dict[str, Callable[[int, Any], None]] = {}
        """What looks at each kind of request when it is sent, by its API."""
        self._on_answer: dict[str, Callable[[int, Any, Any], None]] = {}
        """What looks at a request and its answer without an error when it has arrived."""
        cluster.sim.network.observers.append(self._on_sent)
        cluster.sim.network.answered.append(self._on_received)

    @abstractmethod
    def concerns(self, group: str) -> bool:
        """Return True for a group that is judged here."""

    def _on_sent(self, message: Message, _verdict: object) -> None:
        is_known = message.api in self._on_request or message.api in self._on_answer
        if not is_known or message.kind != "request" or message.call in self._asked:
            return
        request = decode_request(BY_NAME[message.api], message.body)
        if self.concerns(request.group_id):
            self._asked[message.call] = request
            if (note := self._on_request.get(message.api)) is not None:
                note(message.call, request)

    def _on_received(self, message: Message) -> None:
        request, note = self._asked.get(message.call), self._on_answer.get(message.api)
        if request is None or note is None or not self._is_log_known(request.group_id):
            return
        answer = decode_response(message.api, message.body)
        if not answer.error_code:
            note(message.call, request, answer)


DIFFERS: Final = "loaded_group_differs"
NO_DEADLINE: Final = "loaded_member_without_deadline"
OFFSETS_DIFFER: Final = "loaded_offsets_differ"


def look_at_loaded(
    shard: CoordinatorShard[GroupCoordinator], records: Mapping[str, GroupValue | None], now: float, report: Report
) -> None:
    """Check every group of a coordinator that has just taken over.

    Args:
        shard: The partition of ``__consumer_offsets`` with its coordinator.
        records: The last committed record of each group; None for a group that was deleted.
        now: Virtual seconds.
        report: Receives the violations.
    """
    groups = shard.coordinator._groups
    for name, value in records.items():
        group = groups.get(name)
        if group is not None and group.state is State.DEAD:
            continue  # it is being deleted: its topics are gone
        expected = _recorded(value)
        found = _loaded(group)
        if found != expected:
            report(DIFFERS, f"{name}: the new coordinator loaded {found}, the committed record is {expected}")
    for name, group in groups.items():
        for member in group.members.values():
            if member.join_ticket is not None or member.sync_ticket is not None:
                continue
            latest = now + member.session_timeout_ms / 1000
            if member.deadline > latest:
                report(NO_DEADLINE, f"{name}: {member.member_id} expires at {member.deadline}, not by {latest:.3f}")
            elif shard.coordinator.next_deadline() > member.deadline:
                report(NO_DEADLINE, f"{name}: nothing wakes the coordinator when {member.member_id} expires")


_Facts = tuple[int, str | None, str | None, dict[str, str | None], dict[str | None, str], dict[str, bytes]]


def _recorded(value: GroupValue | None) -> _Facts:
    if value is None:
        return _loaded(None)
    return (
        value.generation,
        value.leader,
        value.protocol,
        {each.member_id: each.instance_id for each in value.members},
        {each.instance_id: each.member_id for each in value.members if each.instance_id is not None},
        {each.member_id: each.assignment for each in value.members},
    )


def _loaded(group: Group | None) -> _Facts:
    if group is None:
        return 0, None, None, {}, {}, {}
    members = group.members
    return (
        group.generation,
        group.leader,
        group.protocol,
        {name: member.instance_id for name, member in members.items()},
        dict(group.static),
        {name: member.assignment for name, member in members.items()},
    )


WATCHED: Final = frozenset({"SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch"})


@dataclass(slots=True)
class _Asked:
    """A request that was sent, and what was known then."""

    request: Any
    fence: int
    owed: dict[TopicPartition, Offset]


class GroupWatch(OffsetsTopicWatch):
    """All groups of one run."""

    name: ClassVar[str] = "groups"

    def __init__(self, cluster: SimCluster, watch: Watch, migrating: Collection[str] = ()) -> None:
        """``migrating``: groups of which only the offsets are judged here (``migration_watch.py`` has the rest)."""
        super().__init__(cluster, watch)
        self.book = GroupBook(watch.report)
        self.marks: Counter[str] = Counter()
        self._migrating = migrating
        self._asked: dict[int, _Asked] = {}
        """By number of the call."""
        self._groups: dict[str, GroupValue | None] = {}
        """The last committed record of each group; None: it was deleted."""
        self._offsets: dict[str, dict[TopicPartition, Offset]] = {}
        """The last committed record of each offset that has one."""
        self._transactional: set[str] = set()
        """Groups with offsets that count by the markers of transactions."""
        self._on_request: dict[str, Callable[[int, Any], None]] = {"OffsetCommit": self._commit_sent}
        self._on_answer: dict[str, Callable[[int, _Asked, Any, str], None]] = {
            "SyncGroup": self._synced,
            "Heartbeat": self._heartbeat,
            "OffsetCommit": self._committed,
            "OffsetFetch": self._fetched,
        }
        cluster.sim.network.observers.append(self._on_message)
        cluster.sim.network.answered.append(self._on_received)

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        if event.kind == "group_coordinator_loaded":
            self.marks["group_taken_over"] += bool(event.facts["groups"])

    def taken_over(self, shard: CoordinatorShard[GroupCoordinator], name: TopicPartition) -> None:
        """Check the groups that a new coordinator has loaded."""
        groups = {each: value for each, value in self._groups.items() if self._partition(each) == name}
        look_at_loaded(shard, groups, self._cluster.sim.loop.time(), self._watch.report)
        for group in sorted(shard.coordinator._offsets.groups() | self._offsets.keys()):
            if group in self._transactional or group in self._migrating or self._partition(group) != name:
                continue
            loaded = {each: value.offset for each, value in shard.coordinator.committed_offsets(group).items()}
            recorded = self._offsets.get(group, {})
            if loaded != recorded:
                self._watch.report(OFFSETS_DIFFER, f"{group}: loaded {loaded}, committed {recorded}")

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def _on_message(self, message: Message, _verdict: object) -> None:
        if message.api not in WATCHED:
            return
        if message.kind == "request":
            self._request(message)
        else:
            asked = self._asked.get(message.call)
            answer = decode_response(message.api, message.body)
            if asked is not None and not answer.error_code:
                self._on_answer[message.api](message.call, asked, answer, message.source)

    def _request(self, message: Message) -> None:
        note = self._on_request.get(message.api)
        if message.call in self._asked:
            if note is not None:
                note(message.call, self._asked[message.call].request)
            return
        request = decode_request(BY_NAME[message.api], message.body)
        # Whether a heartbeat is granted is for its broker to know; the others have the log to go by.
        broker = message.target if message.api == "Heartbeat" else None
        group = request.group_id
        owed = self.book.owed(group) if message.api == "OffsetFetch" else {}
        self._asked[message.call] = _Asked(request, self.book.fence(group, broker), owed)
        if note is not None:
            note(message.call, request)

    def _commit_sent(self, call: int, request: g.OffsetCommitRequest) -> None:
        offsets = {TopicPartition(each.topic, each.partition): each.offset for each in request.partitions}
        self.book.commit_sent(
            call,
            request.group_id,
            request.member_id,
            request.generation_id,
            offsets,
            instance=request.group_instance_id,
        )

    def _synced(self, _call: int, asked: _Asked, answer: g.SyncGroupResponse, source: str) -> None:
        request: g.SyncGroupRequest = asked.request
        self.marks["group_synced"] += 1
        if request.group_id in self._migrating:
            return
        self.book.synced(
            request.group_id,
            request.generation_id,
            request.member_id,
            Assignment.unpacked(answer.assignment).partitions,
            broker=source,
            instance=request.group_instance_id,
            fence=asked.fence,
            is_log_known=self._is_log_known(request.group_id),
        )

    def _heartbeat(self, _call: int, asked: _Asked, _answer: g.HeartbeatResponse, _source: str) -> None:
        request: g.HeartbeatRequest = asked.request
        if request.group_id in self._migrating:
            return
        self.book.heartbeat_granted(request.group_id, request.generation_id, request.member_id, asked.fence)

    def _committed(self, call: int, asked: _Asked, answer: g.OffsetCommitResponse, _source: str) -> None:
        request: g.OffsetCommitRequest = asked.request
        granted = [TopicPartition(each.topic, each.partition) for each in answer.partitions if not each.error_code]
        self.marks["group_commit_granted"] += bool(granted)
        self.book.commit_granted(call, request.group_id, granted, is_log_known=self._is_log_known(request.group_id))

    def _fetched(self, _call: int, asked: _Asked, answer: g.OffsetFetchResponse, source: str) -> None:
        request: g.OffsetFetchRequest = asked.request
        leader = self._cluster.leader_of(self._partition(request.group_id))
        if node_name(leader) != source:
            return  # it has not heard yet that it leads no more
        for each in answer.partitions:
            if not each.error_code:
                self.marks["group_offset_found"] += each.offset >= 0
                self.book.found(request.group_id, TopicPartition(each.topic, each.partition), each.offset, asked.owed)

    def _on_received(self, message: Message) -> None:
        asked = self._asked.get(message.call)
        if message.api != "OffsetFetch" or asked is None:
            return
        group = asked.request.group_id
        if group in self._transactional or not self._is_log_known(group):
            return
        for each in decode_response(message.api, message.body).partitions:
            if not each.error_code:
                self.book.received(group, TopicPartition(each.topic, each.partition), each.offset)

    # ---- the log -----------------------------------------------------------------------------------------------------

    def batch_committed(self, batch: RecordBatch, records: list[RecordView]) -> None:
        """Offsets of transactions count by their markers, and are judged with ``loop_anomalies``."""
        for record in records:
            if not batch.is_transactional:
                self._replay(record.key, record.value)
            elif isinstance(parsed := unpacked(record.key or b"", record.value), OffsetRecord):
                self._transactional.add(parsed.group)

    def _replay(self, key: bytes | None, value: bytes | None) -> None:
        record = None if key is None else unpacked(key, value)
        if record is None:
            return
        if isinstance(record, OffsetRecord):
            offset = record.value.offset if record.value is not None else None
            self.book.offset_recorded(record.group, record.partition, offset)
            offsets = self._offsets.setdefault(record.group, {})
            if offset is None:
                offsets.pop(record.partition, None)
            else:
                offsets[record.partition] = offset
            return
        self._groups[record.group] = record.value
        self.marks["group_recorded"] += record.value is not None
        if record.group in self._migrating:
            return
        if record.value is None:
            self.book.group_deleted(record.group)
        else:
            members = record.value.members
            dealt = [Assignment.unpacked(each.assignment).partitions for each in members]
            self.book.group_recorded(record.group, record.value.generation, dealt)
