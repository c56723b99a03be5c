"""All groups of the consumer protocol of one coordinator: the order of their requests, their writes and their timers.

A group has at most one write in flight. Requests that arrive meanwhile wait, and are answered in order when it is
committed. So every decision and every response is about committed records only. While it is unknown whether a write
will be committed, the group refuses requests with COORDINATOR_NOT_AVAILABLE.

- A session begins with each accepted heartbeat. A member whose session ends is fenced.
- A member that must revoke partitions has its rebalance timeout for it. The timer is for one member epoch: if the
  member has moved on by then, nothing happens.

Rules for this file: synchronous; each call fills the step and returns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec import structs

from minikafka import errors as kafka
from minikafka.coordination.packing import by_topic
from minikafka.coordination.rule import Step, Ticket, Write, as_coordinator, is_unknown
from minikafka.groups.consumer import classic
from minikafka.groups.consumer.group import JOIN, ConsumerGroup, Draft, MemberState, Regexes, Topics
from minikafka.groups.consumer.heartbeat import Heartbeat, check_heartbeat
from minikafka.groups.consumer.records import ConsumerRecord, TopicIdPartition
from minikafka.groups.group import Group, failed_join
from minikafka.groups.limits import GroupSettings
from minikafka.groups.offsets import TOMBSTONE_BYTES, TOMBSTONES_BYTES_MAX
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.groups.rebalance import PENDING_MAX, too_many_pending
from minikafka.groups.records import GroupRecord
from minikafka.invariant import invariant
from minikafka.ports import Events
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.batch import NO_TIMESTAMP

RETRY_S = 1.0
"""Between a fencing that was not written and the next attempt."""

LEFT = -math.inf
"""When the session of a member ends that has left and is yet to be removed: nothing makes it longer."""

Records = tuple[ConsumerRecord | GroupRecord, ...]
Waiting = tuple[Ticket, g.ConsumerGroupHeartbeatRequest]


@dataclass(slots=True)
class Held:
    """One group, and what the coordinator keeps beside its records."""

    group: ConsumerGroup
    sessions: dict[str, float] = field(default_factory=dict)
    """Member id to the time at which its session ends."""
    revocations: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Member id to the epoch at which it must revoke partitions, and the time at which it must have done so."""
    syncs: dict[str, float] = field(default_factory=dict)
    """Classic members that have joined, and when they must have synced."""
    is_writing: bool = False
    is_unclear: bool = False
    """The write in flight was not committed in time: it may or may not be."""
    is_upgrading: bool = False
    """The write in flight takes the members of a classic group over: until it is committed, they are that group's."""
    waiting: deque[Waiting] = field(default_factory=deque)
    pending: dict[str, float] = field(default_factory=dict)
    """Member ids that classic newcomers received and have not joined with, and when these ids end."""
    matched: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What each regular expression matched when this coordinator resolved it last."""
    not_before: float = -math.inf

    def next_deadline(self) -> float:
        """When a member's time ends; never while a write is in flight."""
        if self.is_writing:
            return math.inf
        times = [*self.sessions.values(), *self.syncs.values(), *(at for _, at in self.revocations.values())]
        return max(min(times, default=math.inf), self.not_before)


class ConsumerGroups:
    """Those of one partition of ``__consumer_offsets``."""

    def __init__(self, settings: GroupSettings, *, topics: Callable[[], Topics], events: Events) -> None:
        self._settings = settings
        self._topics = topics
        self._events = events
        self._regexes = Regexes()
        self._held: dict[str, Held] = {}

    def _rules(self, wall_ms: int, matched: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> Heartbeat:
        return Heartbeat(self._settings, self._topics(), self._regexes, wall_ms, matched)

    # ---- life ----

    def replay(self, each: ConsumerRecord) -> None:
        """One record of the log."""
        held = self._held.setdefault(each.group, Held(ConsumerGroup(each.group)))
        held.group.apply(each)

    def loaded(self, step: Step) -> None:
        """The log was read to its end: sessions begin now."""
        for name, held in list(self._held.items()):
            if held.group.is_nothing:
                del self._held[name]
                continue
            self._begin_timers(held, step)

    def _begin_timers(self, held: Held, step: Step) -> None:
        for member_id in held.group.members:
            self._arm(held, member_id, step)

    def get(self, name: str) -> Held | None:
        """None: no group of this protocol has this name."""
        return self._held.get(name)

    def converted(self, name: str) -> Held | None:
        """As :meth:`get`; None also while the group is still a classic one, whose upgrade is being written."""
        held = self._held.get(name)
        return None if held is not None and held.is_upgrading else held

    def all(self) -> list[Held]:
        """By name."""
        return [self._held[name] for name in sorted(self._held)]

    def forget(self, name: str) -> None:
        """The group was deleted."""
        self._held.pop(name, None)

    # ---- requests ----

    def match(self, request: g.ConsumerGroupHeartbeatRequest) -> Iterator[None]:
        """Match the regular expression of a member before its heartbeat, in turns; see :meth:`Regexes.match`."""
        held = self._held.get(request.group_id)
        member = None if held is None else held.group.members.get(request.member_id)
        text = request.subscribed_topic_regex
        if text is None and member is not None:
            text = member.regex
        return self._regexes.match(text, self._topics()) if text else iter(())

    def heartbeat(
        self,
        ticket: Ticket,
        request: g.ConsumerGroupHeartbeatRequest,
        step: Step,
        *,
        converts: Records = (),
        upgrade: Callable[[], Draft] | None = None,
    ) -> None:
        """ConsumerGroupHeartbeat. Raises what is refused without a look at the group.

        ``converts`` are the tombstones of a classic group of the same name; they go with the first write. ``upgrade``
        makes a draft with the members of that group.
        """
        check_heartbeat(request, self._settings)
        prepared = upgrade() if upgrade is not None else None
        held = self._held.get(request.group_id)
        if held is None:
            if request.member_epoch != JOIN:
                # Kafka answers GROUP_ID_NOT_FOUND, which is final for every client. This one makes them join again.
                raise kafka.UnknownMemberId(f"there is no group {request.group_id}: join again")
            held = self._held[request.group_id] = Held(ConsumerGroup(request.group_id))
        if held.is_unclear:
            raise _unclear(held)
        if held.is_writing:
            held.waiting.append((ticket, request))
        else:
            self._answer(held, ticket, request, step, converts, prepared)

    def _answer(
        self,
        held: Held,
        ticket: Ticket,
        request: g.ConsumerGroupHeartbeatRequest,
        step: Step,
        converts: Records = (),
        prepared: Draft | None = None,
    ) -> None:
        draft = Draft(held.group) if prepared is None else prepared
        try:
            response = self._rules(step.wall_ms, held.matched).answer(draft, request)
        except kafka.ProtocolError as error:
            step.answer(ticket, failed_heartbeat(error))
            self._forget_if_nothing(held)
            return

        def done(error: kafka.ProtocolError | None, then: Step) -> None:
            if error is None:
                held.matched = draft.matched or held.matched
                self._heard(held, request, then)
            then.answer(ticket, response if error is None else failed_heartbeat(error))

        if draft.records:
            held.is_upgrading = prepared is not None
            self.write(held, draft, done, step, also=converts)
        else:
            done(None, step)

    def classic_join(self, ticket: Ticket, request: g.JoinGroupRequest, new_id: str, step: Step) -> None:
        """JoinGroup of a classic member: answered when what it changes is committed."""
        held = self._free(request.group_id)
        rules = self._rules(step.wall_ms, held.matched)
        held.pending = {each: until for each, until in held.pending.items() if until > step.now}
        if not request.member_id and request.group_instance_id is None and request.needs_member_id:
            classic.check_newcomer(rules, held.group, request)
            self._give_id(held, ticket, request, new_id, step)
            return
        if request.member_id in held.pending and request.group_instance_id is None:
            request, new_id = structs.replace(request, member_id=""), request.member_id
        draft = Draft(held.group)
        response = classic.join(rules, draft, request, new_id)

        def done(error: kafka.ProtocolError | None, then: Step) -> None:
            if error is None:
                held.pending.pop(response.member_id, None)
            if error is None and response.member_id in held.group.members:
                self._arm(held, response.member_id, then)
                held.syncs[response.member_id] = then.now + max(request.rebalance_timeout_ms, 1) / 1000
            then.answer(ticket, response if error is None else failed_join(error))

        if draft.records:
            self.write(held, draft, done, step)
        else:
            done(None, step)

    def _give_id(self, held: Held, ticket: Ticket, request: g.JoinGroupRequest, new_id: str, step: Step) -> None:
        """MEMBER_ID_REQUIRED: a join that is sent twice must not leave a member that no client knows of (KIP-394)."""
        if len(held.pending) >= PENDING_MAX:
            raise too_many_pending(request.group_id)
        held.pending[new_id] = step.now + request.session_timeout_ms / 1000
        step.answer(ticket, failed_join(kafka.MemberIdRequired("join again with this member id"), member_id=new_id))

    def classic_sync(self, request: g.SyncGroupRequest, step: Step) -> g.SyncGroupResponse:
        """SyncGroup of a classic member."""
        held = self._free(request.group_id)
        response = classic.sync(held.group, request, self._topics())
        self._arm(held, request.member_id, step, is_asked=response.error_code != 0)
        if not response.error_code:
            held.syncs.pop(request.member_id, None)
        return response

    def classic_heartbeat(self, request: g.HeartbeatRequest, step: Step) -> g.HeartbeatResponse:
        """Heartbeat of a classic member."""
        held = self._held[request.group_id]
        asked = classic.heartbeat(held.group, request)
        self._arm(held, request.member_id, step, is_asked=asked is not None)
        if asked is None:
            return g.HeartbeatResponse()
        return g.HeartbeatResponse.with_error(asked)

    def classic_leave(self, request: g.LeaveGroupRequest) -> g.LeaveGroupResponse:
        """LeaveGroup: the members' sessions end now; they are removed with the next write."""
        held = self._held[request.group_id]
        left = []
        for each in request.members:
            holder = held.group.holder_of(each.group_instance_id) if each.group_instance_id is not None else None
            member_id = each.member_id or holder or ""
            error: kafka.ProtocolError | None = None
            if holder is not None and holder != member_id:
                error = kafka.FencedInstanceId(f"instance {each.group_instance_id} is another member now")
            elif member_id not in held.group.members or (each.group_instance_id is not None and holder is None):
                if each.group_instance_id is not None or held.pending.pop(member_id, None) is None:
                    error = kafka.UnknownMemberId(f"group {request.group_id} has no member {member_id!r}")
            else:
                held.sessions[member_id] = LEFT
            left.append(
                g.LeftMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=0 if error is None else error.code,
                    error_message="" if error is None else error.message,
                )
            )
        return g.LeaveGroupResponse(members=tuple(left))

    def _free(self, name: str) -> Held:
        """The group, unless a write is in flight: then nothing can be said about its members."""
        held = self._held[name]
        if held.is_writing:
            raise kafka.CoordinatorNotAvailable(f"group {name} is being changed: try again")
        return held

    def downgrade(self, held: Held, done: Callable[[Group, Step], None], step: Step) -> None:
        """Make a group of classic members a classic group; ``done`` gets it when that is committed."""
        changed = classic.downgraded(held.group, self._topics())
        draft = Draft(held.group)
        draft.delete_all()

        def committed(error: kafka.ProtocolError | None, then: Step) -> None:
            if error is not None:
                held.not_before = then.now + RETRY_S
                return
            while held.waiting:
                again = kafka.CoordinatorNotAvailable(f"group {held.group.group_id} became a classic one: try again")
                then.answer(held.waiting.popleft()[0], failed_heartbeat(again))
            self.forget(changed.group_id)
            done(changed, then)

        self.write(held, draft, committed, step, also=(classic.record_of(changed),))

    def write(
        self,
        held: Held,
        draft: Draft,
        done: Callable[[kafka.ProtocolError | None, Step], None],
        step: Step,
        *,
        also: Records = (),
    ) -> None:
        """Write what a draft changes; it is in force when it is committed."""
        invariant(not held.is_writing, "a group writes twice at a time", group=held.group.group_id)
        held.is_writing = True

        def committed(then: Step) -> None:
            was_unclear, held.is_writing, held.is_unclear = held.is_unclear, False, False
            held.is_upgrading = False
            self._report(held.group, draft.group)
            held.group = draft.group
            for member_id in held.group.members.keys() - held.sessions.keys():
                # Of a classic group that has just been upgraded; any other one is armed below.
                self._arm(held, member_id, then)
            if was_unclear:
                # No heartbeat could be accepted meanwhile.
                self._begin_timers(held, then)
            self._clean_timers(held)
            done(None, then)
            self._answer_waiting(held, then)
            self._forget_if_nothing(held)

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            held.is_unclear = is_unknown(error)
            done(as_coordinator(error), then)
            if held.is_unclear:
                self._refuse_waiting(held, then)
                return
            held.is_writing = held.is_upgrading = False
            if held.group.is_nothing:
                # The classic group of this name goes on. A join must be decided with its members in view.
                self._refuse_waiting(held, then)
            self._answer_waiting(held, then)
            self._forget_if_nothing(held)

        step.writes.append(Write((*also, *draft.records), committed, refused))

    def _refuse_waiting(self, held: Held, step: Step) -> None:
        while held.waiting:
            step.answer(held.waiting.popleft()[0], failed_heartbeat(_unclear(held)))

    def _answer_waiting(self, held: Held, step: Step) -> None:
        while held.waiting and not held.is_writing:
            ticket, request = held.waiting.popleft()
            self._answer(held, ticket, request, step)

    def _forget_if_nothing(self, held: Held) -> None:
        if held.group.is_nothing and not held.is_writing and not held.waiting:
            self.forget(held.group.group_id)

    def _report(self, old: ConsumerGroup, new: ConsumerGroup) -> None:
        if old.state is not new.state:
            self._events(
                "group_state_changed",
                group=new.group_id,
                old=old.state.value,
                new=new.state.value,
                generation=new.epoch,
                members=len(new.members),
                protocol=self.assignor_of(new),
                why="consumer protocol",
            )

    # ---- time ----

    def _heard(self, held: Held, request: g.ConsumerGroupHeartbeatRequest, step: Step) -> None:
        """A heartbeat was accepted."""
        if request.member_id in held.group.members and request.member_epoch >= JOIN:
            self._arm(held, request.member_id, step)

    def _arm(self, held: Held, member_id: str, step: Step, *, is_asked: bool = False) -> None:
        """Begin the member's session again, and its rebalance timeout if the group waits for it.

        That of a classic member begins, as in Kafka, with the first response that asks it to join again
        (``is_asked``): it cannot know earlier that it has to.
        """
        if held.sessions.get(member_id) == LEFT:
            return
        member = held.group.members[member_id]
        session_ms = self._settings.consumer_session_timeout_ms
        session_ms = session_ms if member.classic is None else member.classic.session_timeout_ms
        held.sessions[member_id] = step.now + session_ms / 1000
        if not member.is_classic:
            held.syncs.pop(member_id, None)  # It has changed its protocol since.
        current = held.group.current(member_id)
        armed = held.revocations.get(member_id)
        if not self._owes(held.group, member_id):
            held.revocations.pop(member_id, None)
        elif (armed is None or armed[0] != current.epoch) and (is_asked or not member.is_classic):
            timeout_ms = max(held.group.members[member_id].rebalance_timeout_ms, 1)
            held.revocations[member_id] = current.epoch, step.now + timeout_ms / 1000

    def _owes(self, group: ConsumerGroup, member_id: str) -> bool:
        """Return True if the group waits for this member: for a revocation, or for a classic member to join again."""
        if group.members[member_id].is_classic:
            return classic.must_rejoin(group, member_id)
        return group.current(member_id).state == MemberState.UNREVOKED

    def _clean_timers(self, held: Held) -> None:
        for timers in (held.sessions, held.revocations, held.syncs):
            for member_id in timers.keys() - held.group.members.keys():
                del timers[member_id]

    def tick(self, held: Held, step: Step) -> None:
        """Fence the members whose time has run out."""
        group = held.group
        fenced = {
            each: "it left" if at == LEFT else "its session ended"
            for each, at in held.sessions.items()
            if at <= step.now
        }
        fenced |= {
            each: "it did not sync within its rebalance timeout" for each, at in held.syncs.items() if at <= step.now
        }
        for member_id, (epoch, at) in list(held.revocations.items()):
            if at > step.now:
                continue
            current = group.current(member_id)
            if current.epoch == epoch and self._owes(group, member_id):
                fenced[member_id] = "it did not revoke partitions within its rebalance timeout"
            else:
                del held.revocations[member_id]
        if not fenced:
            return
        fenced = {each: fenced[each] for each in _of_one_batch(group.group_id, sorted(fenced))}
        draft = Draft(group)
        self._rules(step.wall_ms).remove(draft, fenced)

        def done(error: kafka.ProtocolError | None, then: Step) -> None:
            if error is not None:
                held.not_before = then.now + RETRY_S
                return
            for member_id, why in sorted(fenced.items()):
                self._events("group_member_left", group=group.group_id, member=member_id, why=why)

        self.write(held, draft, done, step)

    # ---- reading ----

    def assignor_of(self, group: ConsumerGroup) -> str:
        """The assignor that is in use."""
        return self._rules(NO_TIMESTAMP).assignor_of(group)

    def describe(self, group: ConsumerGroup) -> g.DescribedConsumerGroup:
        """ConsumerGroupDescribe, one of its groups."""
        names = {each.topic_id: name for name, each in self._topics().items()} if group.members else {}

        def named(partitions: frozenset[TopicIdPartition]) -> tuple[g.NamedTopicPartitions, ...]:
            return tuple(
                g.NamedTopicPartitions(topic_id=topic_id, topic=names.get(topic_id, ""), partitions=tuple(numbers))
                for topic_id, numbers in by_topic(partitions).items()
            )

        return g.DescribedConsumerGroup(
            group_id=group.group_id,
            state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=self.assignor_of(group),
            members=tuple(
                g.ConsumerMember(
                    member_id=member_id,
                    instance_id=each.instance_id,
                    rack_id=each.rack_id,
                    member_epoch=group.current(member_id).epoch,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    subscribed_topic_names=each.topics,
                    subscribed_topic_regex=each.regex,
                    # What it must give up is its own until it has confirmed that, as in Kafka.
                    assignment=named(
                        frozenset({**group.current(member_id).assigned, **group.current(member_id).revoking})
                    ),
                    target_assignment=named(group.target(member_id)),
                    is_classic=each.is_classic,
                )
                for member_id, each in sorted(group.members.items())
            ),
        )

    def describe_as_classic(self, group: ConsumerGroup) -> g.DescribedGroup:
        """The same in the form of the classic protocol: the generation is the group epoch."""
        described = self.describe(group)
        topics = {name for each in described.members for name in each.topics}
        return g.DescribedGroup(
            group_id=group.group_id,
            state=described.state,
            generation_id=group.epoch,
            protocol_type="consumer",
            protocol=described.assignor,
            leader="",
            members=tuple(
                g.DescribedMember(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    metadata=Subscription(topics=each.subscribed_topic_names).packed(),
                    assignment=Assignment(
                        partitions=tuple(
                            TopicPartition(topic.topic, number)
                            for topic in each.assignment
                            for number in topic.partitions
                        )
                    ).packed(),
                )
                for each in described.members
            ),
            topics=tuple(sorted(topics)),
        )


def _of_one_batch(group_id: str, member_ids: Iterable[str]) -> list[str]:
    """The first members, whose tombstones fit into one batch; at least one. The others follow when it is committed."""
    some: list[str] = []
    left = TOMBSTONES_BYTES_MAX
    for each in member_ids:
        left -= 3 * (TOMBSTONE_BYTES + len(group_id.encode()) + len(each.encode()))
        if some and left < 0:
            break
        some.append(each)
    return some


def failed_heartbeat(error: kafka.ProtocolError) -> g.ConsumerGroupHeartbeatResponse:
    """A refusal."""
    return g.ConsumerGroupHeartbeatResponse.failed(error)


def _unclear(held: Held) -> kafka.CoordinatorNotAvailable:
    return kafka.CoordinatorNotAvailable(
        f"group {held.group.group_id} waits for records that are not yet committed: try again"
    )
