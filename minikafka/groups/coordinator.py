"""The groups of one partition of ``__consumer_offsets``, for the broker that leads it (S29 to S34).

It lives as long as the broker leads the partition: it reads the whole log (``replay``), takes over (``loaded``),
answers, and ends (``resign``). The log is its only memory: what is not in there is gone with it, and members find
out by their next request.

- Everything is decided at once and in order. Records are appended in that order; what they change comes into force, is
  answered and can be read when they are committed.
- Committed offsets are what members and tools may rely on; nobody reads a pending one.
- A group without members and offsets is deleted when its last offset expires.
- Groups of the consumer protocol (KIP-848) are in ``consumer/groups.py``; the classic group of the same name is then
  empty and stands for the group's offsets. A group changes its protocol only while it has no members.

Rules for this file: synchronous; each call fills the step and returns. A request that is refused raises ProtocolError.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from minikafka import errors as kafka
from minikafka.coordination.rule import InTransaction, Step, Ticket, Write, as_coordinator, is_unknown
from minikafka.groups.consumer import records as consumer_records
from minikafka.groups.consumer.classic import is_all_classic, upgraded
from minikafka.groups.consumer.group import JOIN, Draft, Topics
from minikafka.groups.consumer.groups import ConsumerGroups, Held
from minikafka.groups.consumer.heartbeat import check_committer, check_member
from minikafka.groups.consumer.records import ConsumerRecord
from minikafka.groups.group import Group, State, failed_join
from minikafka.groups.limits import GroupSettings, check_commit, check_group_id, check_producer, metadata_refusal
from minikafka.groups.offsets import CommittedOffsets, Placed, batches
from minikafka.groups.protocol import PROTOCOL_TYPE
from minikafka.groups.rebalance import Rebalance
from minikafka.groups.records import CommittedOffset, GroupRecord, GroupsRecord, OffsetRecord, packed, unpacked
from minikafka.log.verification import VerificationGuard
from minikafka.ports import Events
from minikafka.types import NO_OFFSET, NO_PRODUCER, Offset, TopicId, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.batch import NO_TIMESTAMP
from minikafka.wire.transaction_messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse


class Standing(NamedTuple):
    """A group in short, for who watches."""

    group_id: str
    state: State
    member_count: int
    committed: Mapping[TopicPartition, CommittedOffset]


EXPIRED_COUNT_MAX, EXPIRED_PAUSE_S = 100, 0.1
"""Groups of which something expires in one step, and the pause before the next one. Each is a write of its own: for ten
thousand that were used at the same time, the broker would do nothing else for a second."""

CLASSIC, CONSUMER = "classic", "consumer"
"""Types of groups, as ListGroups names them."""


def packed_any(record: GroupsRecord | ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record of either protocol."""
    return consumer_records.packed(record) if isinstance(record, ConsumerRecord) else packed(record)


class GroupCoordinator:
    """All groups of one partition: a ``coordination.rule.Coordinator``."""

    kind = "group"
    skipped_event = "group_records_skipped"
    packed = staticmethod(packed_any)

    def __init__(
        self,
        settings: GroupSettings,
        *,
        new_member_id: Callable[[str], str],
        events: Events,
        topic_exists: Callable[[str], bool] = lambda _: True,
        topics: Callable[[], Topics] = dict,
    ) -> None:
        self._settings = settings
        self._events = events
        self._topic_exists = topic_exists
        self._gone_unloaded: dict[str, None] = {}
        """Topics that were deleted while the log was being read; another of the same name may be there by now."""
        self._rebalance = Rebalance(settings, new_member_id=new_member_id, events=events)
        self._consumers = ConsumerGroups(settings, topics=topics, events=events)
        self._topics = topics
        self._groups: dict[str, Group] = {}
        self._offsets = CommittedOffsets()
        self._agenda: list[tuple[float, str]] = []
        self._planned: dict[str, float] = {}
        self._expiry_at = math.inf
        self._to_expire: deque[str] = deque()
        """The groups that the present round of expiry has yet to look at."""

    # ------------------------------------------------------------------------------------------------- its life

    def replay(
        self, key: bytes, value: bytes | None, *, offset: Offset = NO_OFFSET, producer_id: int = NO_PRODUCER
    ) -> bool:
        """One record of the log, first to last; the last of each key counts. False: a version of a later release."""
        consumer_record = consumer_records.unpacked(key, value)
        if consumer_record is not None:
            self._consumers.replay(consumer_record)
            return True
        record = unpacked(key, value)
        if record is None:
            return False
        if isinstance(record, OffsetRecord):
            if producer_id == NO_PRODUCER:
                self._offsets.apply(record, offset)
            else:
                self._offsets.transactional.add(producer_id, Placed(record, offset))
        elif record.value is None:
            self._groups.pop(record.group, None)
        else:
            self._groups[record.group] = Group.of(record.group, record.value)
        return True

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> None:
        """The marker of a transaction is committed: its offsets count from now on, or are forgotten."""
        for name in self._offsets.transaction_ended(producer_id, is_commit=is_commit):
            group = self._groups.get(name)
            if group is not None:
                self._forget_if_nothing(group)

    def loaded(self, step: Step) -> None:
        """The log was read to its end: sessions begin now."""
        self._consumers.loaded(step)
        names = self._offsets.groups() | {each.group.group_id for each in self._consumers.all()}
        for name in sorted(names - self._groups.keys()):
            self._groups[name] = Group(name)
        for group in self._groups.values():
            group.started(step.now)
            if group.state is State.STABLE and group.state_timestamp_ms == NO_TIMESTAMP:
                self._rebalance.prepare(group, step, "it was converted, and has not rebalanced since")
            self._plan(group)
        # Nobody coordinated when these went, or the coordinator did not finish its answers.
        self.topics_deleted(self._gone_unloaded, step)
        self._erase_orphans(step)
        self._gone_unloaded.clear()
        self._expiry_at = step.now + self._settings.expiry_interval_ms / 1000
        self._events("group_coordinator_loaded", groups=len(self._groups))

    def resign(self, step: Step) -> None:
        """This broker no longer leads the partition: every waiting member is sent to the new coordinator."""
        error = kafka.NotCoordinator("the group has another coordinator now")
        for group in self._groups.values():
            self._rebalance.resign(group, error, step)

    def committed(self, write: Write, step: Step) -> None:
        """The records of ``write`` are committed: they count."""
        write.committed(step)
        name = write.records[0].group
        if GroupRecord(group=name, value=None) in write.records and self._consumers.get(name) is not None:
            self._groups[name] = Group(name)  # the classic group became one of the consumer protocol
        self._touched(self._groups.get(write.records[0].group), step)

    def refused(self, write: Write, error: kafka.ProtocolError, step: Step) -> None:
        """They were not written; or (outcome *unknown*) nobody knows yet, and :meth:`committed` may follow."""
        write.refused(error, step)
        self._touched(self._groups.get(write.records[0].group), step)

    def next_deadline(self) -> float:
        """When :meth:`tick` has something to do; infinity: never."""
        while self._agenda and self._planned.get(self._agenda[0][1]) != self._agenda[0][0]:
            heapq.heappop(self._agenda)
        return min(self._agenda[0][0] if self._agenda else math.inf, self._expiry_at)

    def tick(self, step: Step) -> None:
        """Everything whose time has come."""
        while self._agenda and self._agenda[0][0] <= step.now:
            when, name = heapq.heappop(self._agenda)
            if self._planned.get(name) == when:
                del self._planned[name]
                self._touched(self._groups.get(name), step)
        if self._expiry_at <= step.now:
            self.expire_offsets(step)

    def _touched(self, group: Group | None, step: Step) -> None:
        """Handle what is due in a group, and schedule what is next; a group without a state is forgotten."""
        if group is None:
            return
        held = self._consumers.get(group.group_id)
        # A classic group that is being upgraded waits for that; its members' time stands still.
        while held is None and group.next_deadline() <= step.now:
            self._rebalance.tick(group, step)
        while held is not None and held.next_deadline() <= step.now:
            self._consumers.tick(held, step)
        if held is not None:
            self._downgrade_if_due(held, step)
        self._plan(group)
        self._forget_if_nothing(group)

    def _plan(self, group: Group) -> None:
        held = self._consumers.get(group.group_id)
        deadline = group.next_deadline() if held is None else held.next_deadline()
        if deadline < self._planned.get(group.group_id, math.inf):
            self._planned[group.group_id] = deadline
            heapq.heappush(self._agenda, (deadline, group.group_id))

    def _downgrade_if_due(self, held: Held, step: Step) -> None:
        """Only members of the classic protocol are left: the group is theirs again."""
        if not self._settings.may_downgrade or held.is_writing or held.not_before > step.now:
            return
        if is_all_classic(held.group) and len(held.group.members) <= self._settings.group_size_max:
            self._consumers.downgrade(held, self._downgraded, step)

    def _downgraded(self, group: Group, step: Step) -> None:
        self._groups[group.group_id] = group
        group.started(step.now)
        self._rebalance.prepare(group, step, "the last member of the consumer protocol has left")

    def _forget_if_nothing(self, group: Group) -> None:
        """A group that never came to anything (a join that was not repeated) leaves no trace."""
        if self._consumers.get(group.group_id) is not None:
            return
        is_trace = group.generation or group.members or group.pending or group.state is not State.EMPTY
        is_trace = is_trace or self._offsets.transactional.is_open(group.group_id)
        if not is_trace and not self._offsets.known(group.group_id):
            self._groups.pop(group.group_id, None)

    # ------------------------------------------------------------------------------------------------- members

    def assigns(self, group: str) -> bool:
        """Return True if the coordinator assigns the group's partitions: it is one of the consumer protocol."""
        return self._consumers.get(group) is not None

    def join(self, ticket: Ticket, request: g.JoinGroupRequest, step: Step) -> None:
        """JoinGroup: parked until the join phase ends."""
        check_group_id(request.group_id)
        if self._consumers.get(request.group_id) is not None:
            self._rebalance.check_join(request)
            self._join_consumer_group(ticket, request, step)
            return
        group = self._groups.get(request.group_id)
        if group is None:
            self._rebalance.check_join(request)
            if request.member_id:
                raise kafka.UnknownMemberId(f"there is no group {request.group_id}: join without a member id")
            group = self._groups[request.group_id] = Group(request.group_id)
        try:
            self._rebalance.join(group, ticket, request, step)
        finally:
            self._touched(group, step)

    def _join_consumer_group(self, ticket: Ticket, request: g.JoinGroupRequest, step: Step) -> None:
        """An empty group of the consumer protocol becomes a classic one; any other one refuses classic members."""
        self._member_group(request.group_id)
        held = self._consumers.get(request.group_id)
        if held is not None and held.group.members:
            new_id = self._rebalance.new_member_id(request)
            self._consumers.classic_join(ticket, request, new_id, step)
            self._touched(self._groups.get(request.group_id), step)
            return
        if held is None or held.is_writing:
            raise kafka.CoordinatorNotAvailable(f"group {request.group_id} is being changed: try again")
        draft = Draft(held.group)
        draft.delete_all()
        is_answered = False

        def done(error: kafka.ProtocolError | None, then: Step) -> None:
            nonlocal is_answered
            if error is None and held.waiting:
                error = kafka.CoordinatorNotAvailable(
                    f"group {request.group_id} has a new member of the consumer protocol"
                )
            if error is not None:
                is_answered = True
                then.answer(ticket, failed_join(error))
                return
            self._consumers.forget(request.group_id)
            if is_answered:
                return  # the write was late: its client joins again
            try:
                self.join(ticket, request, then)
            except kafka.ProtocolError as refusal:
                then.answer(ticket, failed_join(refusal))

        self._consumers.write(held, draft, done, step)

    def match(self, request: g.ConsumerGroupHeartbeatRequest) -> Iterator[None]:
        """Match a member's regular expression in turns, before :meth:`consumer_heartbeat`."""
        return self._consumers.match(request)

    def consumer_heartbeat(self, ticket: Ticket, request: g.ConsumerGroupHeartbeatRequest, step: Step) -> None:
        """ConsumerGroupHeartbeat: answered when what it changes is committed. Raises what is refused at once."""
        check_group_id(request.group_id)
        classic = self._groups.get(request.group_id)
        converts: tuple[GroupRecord, ...] = ()
        upgrade: Callable[[], Draft] | None = None
        if classic is not None and classic.state is State.DEAD:
            raise kafka.CoordinatorNotAvailable(f"group {request.group_id} is being deleted")
        if classic is not None and self._consumers.get(request.group_id) is None and request.member_epoch == JOIN:
            # Member ids that nobody has joined with end with the classic group, as in Kafka: clients ask for others.
            if classic.generation or classic.pending:
                converts = (GroupRecord(group=request.group_id, value=None),)
            if classic.state is not State.EMPTY:
                upgrade = self._upgrade_of(classic)
        self._consumers.heartbeat(ticket, request, step, converts=converts, upgrade=upgrade)
        if self._consumers.get(request.group_id) is not None:
            self._touched(self._groups.setdefault(request.group_id, Group(request.group_id)), step)

    def _upgrade_of(self, classic: Group) -> Callable[[], Draft]:
        """How a classic group with members takes in one of the consumer protocol. GROUP_ID_NOT_FOUND: not at all."""
        if not self._settings.may_upgrade or len(classic.members) >= self._settings.consumer_group_size_max:
            raise kafka.GroupIdNotFound(
                f"group {classic.group_id} has members of the classic protocol: stop them, set group.protocol=classic, "
                "or let the brokers' group.consumer.migration.policy allow an upgrade"
            )
        return lambda: upgraded(classic, self._topics())

    def sync(self, ticket: Ticket, request: g.SyncGroupRequest, step: Step) -> None:
        """SyncGroup: parked until the leader's assignment is committed."""
        group = self._member_group(request.group_id)
        if self._consumers.get(request.group_id) is not None:
            step.answer(ticket, self._consumers.classic_sync(request, step))
            self._touched(group, step)
            return
        self._rebalance.sync(group, ticket, request, step)
        self._touched(group, step)

    def heartbeat(self, request: g.HeartbeatRequest, step: Step, software: str = "") -> g.HeartbeatResponse:
        """Heartbeat."""
        group = self._member_group(request.group_id)
        if self._consumers.converted(request.group_id) is not None:
            response = self._consumers.classic_heartbeat(request, step)
            self._plan(group)
            return response
        return self._rebalance.heartbeat(group, request, step, software)

    def leave(self, request: g.LeaveGroupRequest, step: Step) -> g.LeaveGroupResponse:
        """LeaveGroup: an error for each member, also if there is no group."""
        check_group_id(request.group_id)
        if request.group_id not in self._groups:
            unknown = kafka.UnknownMemberId(f"there is no group {request.group_id}")
            return g.LeaveGroupResponse(
                members=tuple(
                    g.LeftMember.failed(unknown, member_id=each.member_id, group_instance_id=each.group_instance_id)
                    for each in request.members
                )
            )
        group = self._member_group(request.group_id)
        if self._consumers.get(request.group_id) is not None:
            if self._consumers.converted(request.group_id) is None:
                raise kafka.CoordinatorNotAvailable(f"group {request.group_id} is being changed: try again")
            response = self._consumers.classic_leave(request)
        else:
            response = self._rebalance.leave(group, request, step)
        self._touched(group, step)
        return response

    def _member_group(self, name: str) -> Group:
        check_group_id(name)
        group = self._groups.get(name)
        if group is None:
            raise kafka.UnknownMemberId(f"there is no group {name}: join again")
        if group.state is State.DEAD:
            raise kafka.CoordinatorNotAvailable(f"group {name} is being deleted")
        return group

    # ------------------------------------------------------------------------------------------------- offsets

    def commit(self, ticket: Ticket, request: g.OffsetCommitRequest, step: Step) -> None:
        """OffsetCommit: answered when the records are committed. Raises what is refused as a whole."""
        check_group_id(request.group_id)
        self._check_committer(request, step)
        self._commit(ticket, request, step, g.OffsetCommitResponse, None)

    def commit_in_transaction(
        self, ticket: Ticket, request: TxnOffsetCommitRequest, step: Step, guard: VerificationGuard | None
    ) -> None:
        """TxnOffsetCommit: answered when the records are committed; they count when the transaction commits.

        Args:
            ticket: Names the request.
            request: The request; a member's is fenced by its generation (KIP-447), one without a member is not.
            step: What is to be done.
            guard: The proof that the producer's transaction contains this coordinator's partition; None: not needed.
        """
        check_group_id(request.group_id)
        check_producer(request)
        self._check_transactional_committer(request)
        transaction = InTransaction(request.producer_id, request.producer_epoch, guard)
        self._commit(ticket, request, step, TxnOffsetCommitResponse, transaction)

    def _commit(
        self,
        ticket: Ticket,
        request: g.OffsetCommitRequest | TxnOffsetCommitRequest,
        step: Step,
        response_of: type[g.OffsetCommitResponse | TxnOffsetCommitResponse],
        transaction: InTransaction | None,
    ) -> None:
        refused = {}
        for each in request.partitions:
            check_commit(each)
            wrong = metadata_refusal(each, size_max=self._settings.offset_metadata_size_max)
            if wrong is not None:
                refused[each.topic, each.partition] = wrong
        records = tuple(
            OffsetRecord(
                group=request.group_id,
                partition=TopicPartition(each.topic, each.partition),
                value=CommittedOffset(
                    offset=each.offset,
                    leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                    timestamp_ms=step.wall_ms,
                    topic_id=self._topic_id(each.topic),
                ),
            )
            for each in request.partitions
            if (each.topic, each.partition) not in refused
        )

        def answer(error: kafka.ProtocolError | None, then: Step) -> None:
            results = []
            for each in request.partitions:
                why = refused.get((each.topic, each.partition), error)
                results.append(_outcome(TopicPartition(each.topic, each.partition), why))
            then.answer(ticket, response_of(partitions=tuple(results)))

        if not records:
            answer(None, step)
            return
        self._groups.setdefault(request.group_id, Group(request.group_id))
        self._write_offsets(records, answer, step, transaction=transaction)

    def _check_transactional_committer(self, request: TxnOffsetCommitRequest) -> None:
        """Raise unless the request's member may commit; a rebalance does not keep it from that, as in Kafka."""
        is_member = request.generation_id >= 0 or request.member_id or request.group_instance_id is not None
        group = self._group_of_commit(request)
        if group is None or not is_member:
            return
        held = self._consumers.converted(request.group_id)
        if held is not None:
            try:
                check_committer(held.group, request, self._topics())
            except kafka.StaleMemberEpoch as error:
                # Producers know no STALE_MEMBER_EPOCH. Java's would be in a fatal state; this makes it abort.
                raise kafka.IllegalGeneration(
                    f"{error.message}; nothing was committed, abort the transaction"
                ) from error
            return
        if request.generation_id < 0 and group.state is State.EMPTY:
            # A consumer that assigns its partitions itself, as in _check_committer.
            return
        self._rebalance.member_of(group, request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise kafka.IllegalGeneration(
                f"group {group.group_id} is in generation {group.generation}, not {request.generation_id}: "
                "nothing was committed; abort the transaction and join again"
            )

    def _group_of_commit(self, request: g.OffsetCommitRequest | TxnOffsetCommitRequest) -> Group | None:
        """The group, if there is one; a commit without a generation makes it."""
        group = self._groups.get(request.group_id)
        if group is None and request.generation_id >= 0:
            raise kafka.IllegalGeneration(f"there is no group {request.group_id}: join again")
        if group is not None and group.state is State.DEAD:
            raise kafka.CoordinatorNotAvailable(f"group {request.group_id} is being deleted")
        return group

    def _check_committer(self, request: g.OffsetCommitRequest, step: Step) -> None:
        group = self._group_of_commit(request)
        if group is None:
            return
        held = self._consumers.converted(request.group_id)
        if held is not None:
            check_committer(held.group, request, self._topics())
            return
        if request.generation_id < 0 and group.state is State.EMPTY:
            # An administrator, or a consumer that assigns its partitions itself; librdkafka's names a member id.
            return
        if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
            raise kafka.UnknownMemberId(
                f"group {group.group_id} is {group.state.value}: only its members may commit, "
                "by hand it goes while it is empty"
            )
        member = self._rebalance.member_of(group, request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise kafka.IllegalGeneration(
                f"group {group.group_id} is in generation {group.generation}, not {request.generation_id}: "
                "nothing was committed, join again"
            )
        if group.state is State.COMPLETING:
            raise kafka.RebalanceInProgress(
                f"group {group.group_id} waits for its new assignment: nothing was committed, sync (or join) first"
            )
        self._rebalance.heard(group, member.member_id, step)

    def _write_offsets(
        self,
        records: tuple[OffsetRecord, ...],
        answer: Callable[[kafka.ProtocolError | None, Step], None],
        step: Step,
        *,
        also: tuple[ConsumerRecord | GroupRecord, ...] = (),
        transaction: InTransaction | None = None,
        behind: Write | None = None,
    ) -> Write:
        offsets = self._offsets
        pending = offsets if transaction is None else offsets.transactional
        pending.begun(records)

        def committed(then: Step) -> None:
            pending.ended(records)
            for offset, record in enumerate(records, write.base_offset):
                if transaction is None:
                    offsets.apply(record, offset)
                else:
                    offsets.transactional.add(transaction.producer_id, Placed(record, offset))
            answer(None, then)

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            if not is_unknown(error):
                pending.ended(records)
            answer(as_coordinator(error), then)

        write = Write((*records, *also), committed, refused, transaction, behind)
        step.writes.append(write)
        return write

    def fetch_offsets(self, request: g.OffsetFetchRequest) -> g.OffsetFetchResponse:
        """OffsetFetch: what is committed; -1 where nothing is.

        With ``require_stable``, partitions that an open transaction may still change have an error (KIP-447).
        """
        check_group_id(request.group_id)
        held = self._consumers.converted(request.group_id)
        if held is not None and (request.member_id is not None or request.member_epoch >= 0):
            check_member(held.group, request.member_id or "", request.member_epoch)
        committed = self._offsets.of(request.group_id)
        unstable = self._offsets.transactional.partitions(request.group_id) if request.require_stable else frozenset()
        if request.partitions is None:
            valid = (name for name, value in committed.items() if not self._is_of_another_topic(name, value))
            asked = sorted(unstable.union(valid))
        else:
            asked = [TopicPartition(each.topic, each.partition) for each in request.partitions]
        found = []
        for partition in asked:
            value = committed.get(partition)
            if value is not None and self._is_of_another_topic(partition, value):
                value = None  # the record that erases it is not committed yet, or was refused
            if partition in unstable:
                error = kafka.UnstableOffsetCommit(f"an open transaction commits an offset of {partition}: retry")
                found.append(g.FetchedOffset.with_error(error, topic=partition.topic, partition=partition.partition))
                continue
            found.append(
                g.FetchedOffset(topic=partition.topic, partition=partition.partition)
                if value is None
                else g.FetchedOffset(
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=value.offset,
                    leader_epoch=value.leader_epoch,
                    metadata=value.metadata,
                    commit_timestamp_ms=value.timestamp_ms,
                )
            )
        return g.OffsetFetchResponse(partitions=tuple(found))

    def delete_offsets(self, ticket: Ticket, request: g.OffsetDeleteRequest, step: Step) -> None:
        """OffsetDelete: of topics that no member reads. Raises what is refused as a whole."""
        check_group_id(request.group_id)
        group = self._existing(request.group_id)
        held = self._consumers.converted(request.group_id)
        reads: frozenset[str] | None = frozenset() if held is None else held.group.topics()
        if group.members:
            reads = group.reads
            if group.protocol_type != PROTOCOL_TYPE:
                raise kafka.NonEmptyGroup(f"group {group.group_id} has members, and they are no consumers: stop them")
        asked = [TopicPartition(each.topic, each.partition) for each in request.partitions]
        refused = {
            each: kafka.GroupSubscribedToTopic(f"members of group {group.group_id} read {each.topic}")
            for each in asked
            if reads is None or each.topic in reads
        }
        stored = set(self._offsets.known(group.group_id))
        records = tuple(
            OffsetRecord(group=group.group_id, partition=each, value=None)
            for each in dict.fromkeys(asked)
            if each in stored and each not in refused
        )

        def answer(error: kafka.ProtocolError | None, then: Step) -> None:
            results = tuple(_outcome(each, refused.get(each, error)) for each in asked)
            then.answer(ticket, g.OffsetDeleteResponse(partitions=results))

        self._write_tombstones(records, answer, step)

    def expire_offsets(self, step: Step) -> None:
        """Forget what is too old; an empty group of which nothing is left is deleted.

        One round looks at every group once, in several steps if many of them have something to forget.
        """
        if not self._to_expire:
            self._erase_orphans(step)  # those whose tombstones were refused
            self._to_expire.extend(self._groups)
        left = EXPIRED_COUNT_MAX
        while self._to_expire and left:
            group = self._groups.get(self._to_expire.popleft())
            left -= group is not None and self._expire(group, step)
        pause_s = EXPIRED_PAUSE_S if self._to_expire else self._settings.expiry_interval_ms / 1000
        self._expiry_at = step.now + pause_s

    def _expire(self, group: Group, step: Step) -> bool:
        """Forget what is too old of one group; return True if there was something."""
        gone = self._offsets.expired(group, step.wall_ms, self._settings.offsets_retention_ms)
        held = self._consumers.converted(group.group_id)
        if held is not None:
            topics, retention_ms = held.group.topics(), self._settings.offsets_retention_ms
            is_kept = step.wall_ms - held.group.emptied_ms < retention_ms
            gone = [] if is_kept else [each for each in gone if each.topic not in topics]
        is_empty = held is None or not (held.group.members or held.is_writing)
        is_over = is_empty and group.state is State.EMPTY and set(gone) == set(self._offsets.known(group.group_id))
        is_over = is_over and not self._offsets.transactional.is_open(group.group_id)
        is_old = step.wall_ms - group.state_timestamp_ms >= self._settings.offsets_retention_ms
        with_group = is_over and not group.pending  # a member that received a member id is about to join
        if gone or (with_group and is_old and (group.generation or held is not None)):
            self._events("group_offsets_expired", group=group.group_id, partitions=[str(each) for each in gone])
            self._erase(group, gone, step, with_group=with_group)
            return True
        return False

    def topics_deleted_unloaded(self, topics: Iterable[str]) -> None:
        """As :meth:`topics_deleted`, before the log was read to its end: :meth:`loaded` will do it."""
        self._gone_unloaded.update(dict.fromkeys(topics))

    def topics_deleted(self, topics: Iterable[str], step: Step) -> None:
        """What was committed for partitions that are no more is forgotten."""
        names = set(topics)
        for group in list(self._groups.values()):
            gone = [each for each in self._offsets.known(group.group_id) if each.topic in names]
            if gone:
                self._erase(group, gone, step, with_group=False)

    def _erase_orphans(self, step: Step) -> None:
        """Forget what was committed for topics that are gone, also if others were created under their names.

        A tombstone erases all that stands before it, in open transactions as well. So nothing is written where the
        present topic has an offset, or may have: what is under way was accepted for it. The others are not returned,
        and the next look finds them.
        """
        for group in list(self._groups.values()):
            name = group.group_id
            values = self._values(name)
            kept = {each for each, value in values if not self._is_orphan(each, value)}
            gone = sorted(
                each for each in {each for each, _ in values} - kept if not self._offsets.is_in_flight(name, each)
            )
            if gone:
                self._erase(group, gone, step, with_group=False)

    def _values(self, group: str) -> list[tuple[TopicPartition, CommittedOffset]]:
        """What is committed, for good or in an open transaction."""
        return [*self._offsets.of(group).items(), *self._offsets.transactional.values(group)]

    def _is_orphan(self, partition: TopicPartition, value: CommittedOffset) -> bool:
        return not self._topic_exists(partition.topic) or self._is_of_another_topic(partition, value)

    def _topic_id(self, name: str) -> TopicId | None:
        topic = self._topics().get(name)
        return None if topic is None else topic.topic_id

    def _is_of_another_topic(self, partition: TopicPartition, value: CommittedOffset) -> bool:
        """Return True if the offset is of a topic that was deleted and created again since."""
        present = self._topic_id(partition.topic)
        return None not in (present, value.topic_id) and present != value.topic_id

    # ------------------------------------------------------------------------------------------------- groups

    def list_groups(self, request: g.ListGroupsRequest) -> tuple[g.ListedGroup, ...]:
        """Sorted by name; ``states`` and ``types`` in any case of letters."""
        states, types = ({each.lower() for each in wanted} for wanted in (request.states, request.types))
        listed = [self._listed(group) for _, group in sorted(self._groups.items())]
        return tuple(
            each
            for each in listed
            if (not states or each.state.lower() in states) and (not types or each.group_type in types)
        )

    def _listed(self, group: Group) -> g.ListedGroup:
        name, held = group.group_id, self._consumers.converted(group.group_id)
        if held is None:
            return g.ListedGroup(
                group_id=name, protocol_type=group.protocol_type, state=group.state.value, group_type=CLASSIC
            )
        state = group.state if group.state is State.DEAD else held.group.state
        return g.ListedGroup(group_id=name, protocol_type="consumer", state=state.value, group_type=CONSUMER)

    def standings(self) -> list[Standing]:
        """Every group, by name."""
        return [
            Standing(name, State(self._listed(group).state), self._size(group), self._offsets.of(name))
            for name, group in sorted(self._groups.items())
        ]

    def glances(self) -> dict[str, tuple[object, ...]]:
        """Each group with a value that differs once its state, generation, members or committed offsets do: cheap."""
        found: dict[str, tuple[object, ...]] = {}
        for name, group in self._groups.items():
            held = self._consumers.get(name)
            offsets = tuple([(at, each.offset) for at, each in self._offsets.of(name).items()])
            if held is None:
                found[name] = (group.state, group.generation, tuple(group.members), offsets)
            else:
                found[name] = (held.group.state, held.group.epoch, tuple(held.group.members), offsets)
        return found

    def weight(self, name: str) -> int:
        """The members of a group, the names of topics and the partitions that they have, and the committed offsets: to
        describe them takes about 1 µs each.
        """
        held = self._consumers.get(name)
        offsets = len(self._offsets.of(name))
        if held is None:
            return offsets + len(self._groups[name].members)
        topics = sum(1 + len(each.topics) for each in held.group.members.values())
        return offsets + topics + 2 * len(held.group.owners)

    def outline(self, name: str) -> g.DescribedGroup:
        """A group without its members."""
        listed = self._listed(self._groups[name])
        return g.DescribedGroup(group_id=name, state=listed.state, protocol_type=listed.protocol_type)

    def committed_offsets(self, name: str) -> Mapping[TopicPartition, CommittedOffset]:
        """What a group has committed."""
        return self._offsets.of(name)

    def _size(self, group: Group) -> int:
        held = self._consumers.converted(group.group_id)
        return len(group.members) if held is None else len(held.group.members)

    def describe(self, name: str, *, of_any_protocol: bool = False) -> g.DescribedGroup:
        """Describe a group; one that does not exist is Dead and not found, as in Kafka.

        ``of_any_protocol``: a group of the consumer protocol is described in the same form. Kafka's clients ask for
        those with ConsumerGroupDescribe.
        """
        held = self._consumers.converted(name)
        if of_any_protocol and held is not None and not held.group.is_nothing:
            return self._consumers.describe_as_classic(held.group)
        group = self._groups.get(name)
        if group is None or held is not None:
            why = "there is no group" if group is None else "DescribeGroups is for classic groups; this is none:"
            error = kafka.GroupIdNotFound(f"{why} {name}")
            return g.DescribedGroup.with_error(error, group_id=name, state=State.DEAD.value)
        stable = group.state is State.STABLE
        protocol = (group.protocol or "") if stable else ""
        return g.DescribedGroup(
            group_id=name,
            state=group.state.value,
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol=protocol,
            leader=group.leader or "",
            members=tuple(
                g.DescribedMember(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    software=each.software,
                    metadata=each.metadata(protocol),
                    assignment=each.assignment,
                )
                for each in group.members.values()
            ),
        )

    def describe_consumer(self, name: str) -> g.DescribedConsumerGroup:
        """Describe a group of the consumer protocol; GROUP_ID_NOT_FOUND if there is none."""
        held = self._consumers.converted(name)
        if held is None:
            error = kafka.GroupIdNotFound(f"there is no group {name} of the consumer protocol")
            return g.DescribedConsumerGroup.with_error(error, group_id=name, state=State.DEAD.value)
        return self._consumers.describe(held.group)

    def delete_group(self, ticket: Ticket, name: str, step: Step) -> None:
        """DeleteGroups, one of them: only without members. The answer is a :class:`DeletedGroup`."""
        group = self._existing(name)
        held = self._consumers.get(name)
        if held is not None and held.is_writing:
            raise kafka.CoordinatorNotAvailable(f"group {name} waits for records that are not yet committed: try again")
        if group.state is not State.EMPTY or self._size(group):
            raise kafka.NonEmptyGroup(
                f"group {name} is {self._listed(group).state} and has {self._size(group)} members"
            )

        def answer(error: kafka.ProtocolError | None, then: Step) -> None:
            then.answer(ticket, _deleted(name, error))

        self._erase(group, self._offsets.known(name), step, with_group=True, answer=answer)

    def _existing(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            raise kafka.GroupIdNotFound(f"there is no group {name}")
        if group.state is State.DEAD:
            raise kafka.CoordinatorNotAvailable(f"group {name} is being deleted")
        return group

    def _erase(
        self,
        group: Group,
        partitions: Iterable[TopicPartition],
        step: Step,
        *,
        with_group: bool,
        answer: Callable[[kafka.ProtocolError | None, Step], None] | None = None,
    ) -> None:
        """Tombstones for offsets, and for the group: from now on it is Dead, and gone when they are committed."""
        name = group.group_id
        records = tuple(OffsetRecord(group=name, partition=each, value=None) for each in partitions)
        also: tuple[ConsumerRecord | GroupRecord, ...] = ()
        if with_group:
            group.state = State.DEAD
            held = self._consumers.get(name)
            if held is not None:
                draft = Draft(held.group)
                draft.delete_all()
                also = tuple(draft.records)
            also = (*also, GroupRecord(group=name, value=None))

        def ended(error: kafka.ProtocolError | None) -> None:
            if with_group and error is None:
                self._groups.pop(name, None)
                self._consumers.forget(name)
                self._events("group_deleted", group=name)
            elif with_group and error is not None and not is_unknown(error):
                group.state = State.EMPTY

        self._write_tombstones(records, answer or (lambda *_: None), step, also=also, ended=ended)

    def _write_tombstones(
        self,
        records: tuple[OffsetRecord, ...],
        answer: Callable[[kafka.ProtocolError | None, Step], None],
        step: Step,
        *,
        also: tuple[ConsumerRecord | GroupRecord, ...] = (),
        ended: Callable[[kafka.ProtocolError | None], None] = lambda _: None,
    ) -> None:
        """Write tombstones for offsets in as many batches as they need; ``also`` is in the last.

        All batches are appended in one step, each behind the one before. So if the last one is committed, all are; if
        one is refused, so are those after it, and what was appended before it is forgotten all the same: ``answer``
        gets the outcome of all batches, ``ended`` that of the last one.
        """
        *first, last = batches(records)
        writes: list[Write] = []
        for batch in first:
            before = writes[-1] if writes else None
            writes.append(self._write_offsets(batch, lambda *_: None, step, behind=before))

        def all_ended(error: kafka.ProtocolError | None, then: Step) -> None:
            ended(error)
            if error is not None and any(each.refusal is None for each in writes):
                error = type(error)(f"{error.message}; some of the offsets may be forgotten", outcome=kafka.UNKNOWN)
            answer(error, then)

        if last or also:
            self._write_offsets(last, all_ended, step, also=also, behind=writes[-1] if writes else None)
        else:
            all_ended(None, step)


def _outcome(partition: TopicPartition, error: kafka.ProtocolError | None) -> g.PartitionOutcome:
    if error is None:
        return g.PartitionOutcome(topic=partition.topic, partition=partition.partition)
    return g.PartitionOutcome.failed(error, topic=partition.topic, partition=partition.partition)


def _deleted(name: str, error: kafka.ProtocolError | None) -> g.DeletedGroup:
    if error is None:
        return g.DeletedGroup(group_id=name)
    return g.DeletedGroup.failed(error, group_id=name)
