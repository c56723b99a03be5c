"""The classic protocol's steps on one group: join, sync, heartbeat, leave, and what time brings (S31, S33).

- The join phase ends when every known member has joined, or when its time is up: who is missing is dropped then (static
  members stay). The first one of an empty group always waits for its delay, so that members that start together meet.
- A generation begins when a join phase ends. Only the leader receives the list of members; its SyncGroup brings the
  assignments, which are in force once their record is committed.
- A member that is parked here is alive; any other must be heard within its session.
- Every refusal is an error of Kafka's; a zombie's request (old generation, replaced instance) changes nothing.

Rules for this file: each function takes the group and the step and leaves the group consistent; it never reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from minikafka import errors as kafka
from minikafka.coordination.rule import Step, Ticket, Write, as_coordinator, is_unknown
from minikafka.groups.group import Group, Member, State, failed_join, failed_sync, joined, synced
from minikafka.groups.limits import GroupSettings, check_join, check_subscriptions
from minikafka.ports import Events
from minikafka.wire import group_messages as g

NEW_MEMBER_JOIN_TIMEOUT_S = 300.0
"""A first join that is parked this long is given up: its client is gone (Kafka's bound)."""

PENDING_MAX = 1_000
"""Member ids of one group that were given out and not joined with. Kafka has no such bound: group.max.size counts who
has joined. A client that only ever asks for ids would fill the coordinator's memory for as long as its session lasts.
"""


class Rebalance:
    """The steps, with what they need besides a group."""

    def __init__(self, settings: GroupSettings, *, new_member_id: Callable[[str], str], events: Events) -> None:
        self._settings = settings
        self._new_member_id = new_member_id
        self._events = events

    # ------------------------------------------------------------------------------------------------- join

    def join(self, group: Group, ticket: Ticket, request: g.JoinGroupRequest, step: Step) -> None:
        """Answer or park; raises what is refused."""
        self.check_join(request)
        if group.state is State.DEAD:
            raise kafka.CoordinatorNotAvailable(f"group {group.group_id} is being deleted")
        known = request.member_id in group.members or request.group_instance_id in group.static
        if not known and len(group.members) >= self._settings.group_size_max:
            raise kafka.GroupMaxSizeReached(
                f"group {group.group_id} has {len(group.members)} members, which is group.max.size: raise it, or let "
                "one leave first"
            )
        if not group.supports(request.protocol_type, [each.name for each in request.protocols]):
            raise kafka.InconsistentGroupProtocol(
                f"group {group.group_id} is of type {group.protocol_type!r} and its members share none of "
                f"{[each.name for each in request.protocols]}: offer {' or '.join(group.common()) or 'what they speak'}"
            )
        own = request.member_id or group.static.get(request.group_instance_id)
        check_subscriptions(request, (each.protocols for each in group.members.values() if each.member_id != own))
        if not request.member_id:
            self._join_newcomer(group, ticket, request, step)
        elif request.member_id in group.pending and request.group_instance_id is None:
            self._add(group, request.member_id, ticket, request, step)
        else:
            self._rejoin(
                group, self.member_of(group, request.member_id, request.group_instance_id), ticket, request, step
            )

    def check_join(self, request: g.JoinGroupRequest) -> None:
        """What can be refused without a look at the group."""
        check_join(
            request,
            session_ms_min=self._settings.session_timeout_ms_min,
            session_ms_max=self._settings.session_timeout_ms_max,
        )

    def new_member_id(self, request: g.JoinGroupRequest) -> str:
        """A member id that no member has."""
        return self._new_member_id(request.group_instance_id or request.client_id or "consumer")

    def _join_newcomer(self, group: Group, ticket: Ticket, request: g.JoinGroupRequest, step: Step) -> None:
        new_id = self.new_member_id(request)
        if request.group_instance_id is None and request.needs_member_id:
            # The id first, so that a join that is sent twice does not leave a ghost (KIP-394).
            if len(group.pending) >= PENDING_MAX:
                raise too_many_pending(group.group_id)
            group.pending[new_id] = step.now + request.session_timeout_ms / 1000
            error = kafka.MemberIdRequired("join again with this member id")
            step.answer(ticket, failed_join(error, member_id=new_id))
            return
        old_id = group.static.get(request.group_instance_id)
        if old_id is None:
            self._add(group, new_id, ticket, request, step)
        else:
            self._replace_static(group, old_id, new_id, ticket, request, step)

    def _add(self, group: Group, member_id: str, ticket: Ticket, request: g.JoinGroupRequest, step: Step) -> None:
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(
            Member(
                member_id=member_id,
                instance_id=request.group_instance_id,
                client_id=request.client_id,
                client_host=request.client_host,
                software=request.software,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocols=request.protocols,
                expires_at=step.now + NEW_MEMBER_JOIN_TIMEOUT_S,
                is_new=True,
                join_ticket=ticket,
            )
        )
        group.new_member_came = True
        self._rebalance_or_go_on(group, step, f"{member_id} joins")

    def _rejoin(self, group: Group, member: Member, ticket: Ticket, request: g.JoinGroupRequest, step: Step) -> None:
        same = member.protocols == request.protocols
        if group.state is State.COMPLETING and same:
            # The answer to its join was lost.
            self._answer_join(group, member, ticket, step)
        elif group.state is State.STABLE and same and group.leader != member.member_id:
            self._answer_join(group, member, ticket, step)
        else:
            why = "joins again to lead" if same else "joins again with another subscription"
            self._park_join(member, ticket, request, step)
            self._rebalance_or_go_on(group, step, f"{member.member_id} {why}")

    def _park_join(self, member: Member, ticket: Ticket, request: g.JoinGroupRequest, step: Step) -> None:
        if member.join_ticket is not None:
            step.answer(member.join_ticket, failed_join(kafka.RebalanceInProgress("the member has joined again since")))
        member.join_ticket = ticket
        _take_word(member, request)

    def _replace_static(
        self, group: Group, old_id: str, new_id: str, ticket: Ticket, request: g.JoinGroupRequest, step: Step
    ) -> None:
        """The same instance came back: its old id is fenced; in a stable group nobody else notices (KIP-345)."""
        former_leader = group.leader or ""
        self._let_go(
            group.members[old_id], kafka.FencedInstanceId(f"{request.group_instance_id} has joined again"), step
        )
        member = group.rename(old_id, new_id)
        # Its session begins with its new id. While it is parked it cannot heartbeat, so it is not bounded as a new one.
        member.is_new = False
        member.expires_at = step.now + member.session_timeout_ms / 1000
        same = group.protocol is not None and member.metadata(group.protocol) == _metadata(request, group.protocol)
        self._events("group_member_replaced", group=group.group_id, instance=member.instance_id, old=old_id, new=new_id)
        if group.state is not State.STABLE or not same:
            self._park_join(member, ticket, request, step)
            self._rebalance_or_go_on(group, step, f"{member.instance_id} came back")
            return
        # Its new process may have other times, and other assignors beside the group's.
        before = replace(member)
        _take_word(member, request)
        member.expires_at = step.now + member.session_timeout_ms / 1000
        generation = group.generation

        def committed(then: Step) -> None:
            still = group.members.get(new_id)
            if still is not None and group.generation == generation:
                answer = joined(group, still, skip_assignment=group.leader == new_id and request.knows_skip_assignment)
                if not request.knows_skip_assignment:
                    answer = structs.replace(answer, leader=former_leader)
                then.answer(ticket, answer)
            else:
                then.answer(
                    ticket, failed_join(kafka.RebalanceInProgress("the group is rebalancing"), member_id=new_id)
                )

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            then.answer(ticket, failed_join(as_coordinator(error)))
            if not is_unknown(error) and new_id in group.members:
                still = group.rename(new_id, old_id)
                _take_word(still, before)
                still.expires_at = min(still.expires_at, before.expires_at)

        assignments = {each.member_id: each.assignment for each in group.members.values()}
        step.writes.append(Write((group.record(assignments, step.wall_ms),), committed, refused))

    # ------------------------------------------------------------------------------------------------- phases

    def _rebalance_or_go_on(self, group: Group, step: Step, why: str) -> None:
        if group.state is State.PREPARING:
            self._complete_join_if_all(group, step)
        else:
            self.prepare(group, step, why)

    def prepare(self, group: Group, step: Step, why: str) -> None:
        """Ask everyone to join again."""
        if group.state is State.COMPLETING:
            self._drop_assignments(group, kafka.RebalanceInProgress(why), step)
        group.is_initial = group.state is State.EMPTY
        group.sync_ends_at = math.inf
        group.not_synced.clear()
        timeout_ms = group.rebalance_timeout_ms
        if group.is_initial:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, timeout_ms)
            group.initial_ms_left = max(timeout_ms - delay_ms, 0)
            group.new_member_came = False
            group.join_ends_at = step.now + delay_ms / 1000
        else:
            group.join_ends_at = step.now + timeout_ms / 1000
        self._move(group, State.PREPARING, step, why)
        self._complete_join_if_all(group, step)

    def _complete_join_if_all(self, group: Group, step: Step) -> None:
        if not group.is_initial and group.has_all_joined:
            self._complete_join(group, step, "all have joined")

    def _initial_delay_over(self, group: Group, step: Step) -> None:
        """Members came while it lasted: wait once more, up to the rebalance timeout."""
        if group.new_member_came and group.initial_ms_left > 0:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, group.initial_ms_left)
            group.initial_ms_left -= delay_ms
            group.new_member_came = False
            group.join_ends_at = step.now + delay_ms / 1000
        else:
            self._complete_join(group, step, "the initial delay is over")

    def _complete_join(self, group: Group, step: Step, why: str) -> None:
        for member in [each for each in group.members.values() if each.join_ticket is None and not each.is_static]:
            self._tell_left(group, member, "did not join in time")
            group.drop(member)
        if group.members and not self._elect_joined_leader(group):
            # Only static members are left, and none is back: they keep their places (KIP-345).
            group.join_ends_at = step.now + group.rebalance_timeout_ms / 1000
            return
        group.join_ends_at = math.inf
        group.is_initial = False
        group.generation += 1
        if not group.members:
            self._become_empty(group, step, why)
            return
        group.protocol = group.elected_protocol()
        group.reads = group.topics()
        group.not_synced = set(group.members)
        group.sync_ends_at = step.now + group.rebalance_timeout_ms / 1000
        self._move(group, State.COMPLETING, step, why)
        for member in group.members.values():
            ticket, member.join_ticket = member.join_ticket, None
            member.is_new = False
            self._heard(member, step)
            step.answer(ticket, joined(group, member))

    def _elect_joined_leader(self, group: Group) -> bool:
        """Of those who came; False: nobody did."""
        came = [member.member_id for member in group.members.values() if member.join_ticket is not None]
        if came and group.leader not in came:
            group.leader = came[0]
        return bool(came)

    def _become_empty(self, group: Group, step: Step, why: str) -> None:
        group.protocol, group.leader, group.reads = None, None, frozenset()
        self._move(group, State.EMPTY, step, why)

        def done(*_: object) -> None:
            """No caller waits for it: if it is refused, the next coordinator finds members that do not respond."""

        step.writes.append(Write((group.record({}, step.wall_ms),), done, done))

    # ------------------------------------------------------------------------------------------------- sync

    def sync(self, group: Group, ticket: Ticket, request: g.SyncGroupRequest, step: Step) -> None:
        """Answer or park; raises what is refused."""
        member = self.member_of(group, request.member_id, request.group_instance_id)
        _check_generation(group, request.generation_id)
        if request.protocol_type not in (None, group.protocol_type) or (
            request.protocol_name not in (None, group.protocol)
        ):
            raise kafka.InconsistentGroupProtocol(
                f"group {group.group_id} uses {group.protocol_type}, {group.protocol} in generation "
                f"{group.generation}: join again"
            )
        if group.state is State.PREPARING:
            raise kafka.RebalanceInProgress(f"group {group.group_id} is waiting for its members to join: join again")
        if group.state not in (State.COMPLETING, State.STABLE):
            raise kafka.UnknownMemberId(f"group {group.group_id} is {group.state.value}")
        group.not_synced.discard(member.member_id)
        if not group.not_synced:
            group.sync_ends_at = math.inf
        if group.state is State.STABLE:
            self._heard(member, step)
            step.answer(ticket, synced(group, member))
            return
        if member.sync_ticket is not None:
            step.answer(member.sync_ticket, failed_sync(kafka.RebalanceInProgress("the member has synced again since")))
        member.sync_ticket = ticket
        if member.member_id == group.leader and group.assigning != group.generation:
            group.assigning = group.generation
            self._write_assignments(group, request, step)

    def _write_assignments(self, group: Group, request: g.SyncGroupRequest, step: Step) -> None:
        given = {each.member_id: each.assignment for each in request.assignments if each.member_id in group.members}
        generation = group.generation

        def is_current() -> bool:
            return group.state is State.COMPLETING and group.generation == generation

        def committed(then: Step) -> None:
            if is_current():
                for member in group.members.values():
                    member.assignment = given.get(member.member_id, b"")
                self._move(group, State.STABLE, then, "the assignment is committed")
                for member in group.members.values():
                    self._answer_sync(group, member, then)

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            if is_current():
                self._drop_assignments(group, as_coordinator(error), then)
                self.prepare(group, then, "the assignment was not written")

        step.writes.append(Write((group.record(given, step.wall_ms),), committed, refused))

    def _answer_sync(self, group: Group, member: Member, step: Step) -> None:
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is not None:
            self._heard(member, step)
            step.answer(ticket, synced(group, member))

    def _drop_assignments(self, group: Group, error: kafka.ProtocolError, step: Step) -> None:
        for member in group.members.values():
            member.assignment = b""
            ticket, member.sync_ticket = member.sync_ticket, None
            if ticket is not None:
                self._heard(member, step)
                step.answer(ticket, failed_sync(error))

    # ------------------------------------------------------------------------------------------------- heartbeat, leave

    def heartbeat(
        self, group: Group, request: g.HeartbeatRequest, step: Step, software: str = ""
    ) -> g.HeartbeatResponse:
        """Extend the member's session. While members are to join again the answer says so."""
        member = self.member_of(group, request.member_id, request.group_instance_id)
        _check_generation(group, request.generation_id)
        member.software = member.software or software
        if group.state not in (State.PREPARING, State.COMPLETING, State.STABLE):
            raise kafka.UnknownMemberId(f"group {group.group_id} is {group.state.value}")
        self._heard(member, step)
        if group.state is State.PREPARING:
            raise kafka.RebalanceInProgress(f"group {group.group_id} is rebalancing: join again")
        return g.HeartbeatResponse()

    def leave(self, group: Group, request: g.LeaveGroupRequest, step: Step) -> g.LeaveGroupResponse:
        """Each member by itself; those who stay rebalance once, at the end."""
        was = len(group.members)
        left = tuple(self._leave_one(group, each, step) for each in request.members)
        if len(group.members) < was:
            self._members_went(group, step, "a member left")
        elif group.state is State.PREPARING:
            self._complete_join_if_all(group, step)
        return g.LeaveGroupResponse(members=left)

    def _leave_one(self, group: Group, leaving: g.LeavingMember, step: Step) -> g.LeftMember:
        left = g.LeftMember(member_id=leaving.member_id, group_instance_id=leaving.group_instance_id)
        if leaving.group_instance_id is None and group.pending.pop(leaving.member_id, None) is not None:
            return left
        try:
            member_id = leaving.member_id or group.static.get(leaving.group_instance_id, "")
            member = self.member_of(group, member_id, leaving.group_instance_id)
        except kafka.ProtocolError as error:
            return structs.replace(left, error_code=error.code, error_message=error.message)
        self._remove(group, member, step, "left" + (f": {leaving.reason}" if leaving.reason else ""))
        return left

    def _remove(self, group: Group, member: Member, step: Step, why: str) -> None:
        self._let_go(member, kafka.UnknownMemberId(f"{member.member_id} {why}"), step)
        self._tell_left(group, member, why)
        group.drop(member)

    def _members_went(self, group: Group, step: Step, why: str) -> None:
        """Those who stay share what is free now."""
        if group.state in (State.STABLE, State.COMPLETING):
            self.prepare(group, step, why)
        elif group.state is State.PREPARING:
            self._complete_join_if_all(group, step)

    # ------------------------------------------------------------------------------------------------- time

    def tick(self, group: Group, step: Step) -> None:
        """Everything whose time has come."""
        for member_id in [each for each, until in group.pending.items() if until <= step.now]:
            del group.pending[member_id]
            if group.state is State.PREPARING:
                self._complete_join_if_all(group, step)
        silent = [member for member in group.members.values() if member.deadline <= step.now]
        for member in silent:
            self._remove(group, member, step, "was not heard within its session")
        if silent:
            self._members_went(group, step, "a member's session ended")
        if group.join_ends_at <= step.now:
            if group.is_initial:
                self._initial_delay_over(group, step)
            else:
                self._complete_join(group, step, "the rebalance timeout is over")
        if group.sync_ends_at <= step.now:
            group.sync_ends_at = math.inf
            missing = [group.members[each] for each in sorted(group.not_synced)]
            for member in missing:
                self._remove(group, member, step, "did not sync in time")
            group.not_synced.clear()
            self._members_went(group, step, "members did not sync in time")

    # ------------------------------------------------------------------------------------------------- parts

    def member_of(self, group: Group, member_id: str, instance_id: str | None) -> Member:
        """The requesting member. FENCED_INSTANCE_ID for a replaced instance, UNKNOWN_MEMBER_ID for an unknown one."""
        if instance_id is not None:
            current = group.static.get(instance_id)
            if current is None:
                raise kafka.UnknownMemberId(f"group {group.group_id} has no instance {instance_id}: join again")
            if current != member_id:
                raise kafka.FencedInstanceId(
                    f"instance {instance_id} of group {group.group_id} is another member now: stop this one, or give "
                    "each process a group.instance.id of its own"
                )
        member = group.members.get(member_id)
        if member is None:
            raise kafka.UnknownMemberId(f"group {group.group_id} has no member {member_id!r}: join again")
        return member

    def _heard(self, member: Member, step: Step) -> None:
        member.expires_at = step.now + member.session_timeout_ms / 1000

    def heard(self, group: Group, member_id: str, step: Step) -> None:
        """A commit is as good as a heartbeat."""
        self._heard(group.members[member_id], step)

    def resign(self, group: Group, error: kafka.ProtocolError, step: Step) -> None:
        """This broker no longer coordinates the group: answer every waiting member."""
        for member in group.members.values():
            self._let_go(member, error, step)

    def _let_go(self, member: Member, error: kafka.ProtocolError, step: Step) -> None:
        step.answer(member.join_ticket, failed_join(error))
        step.answer(member.sync_ticket, failed_sync(error))
        member.join_ticket = member.sync_ticket = None

    def _answer_join(self, group: Group, member: Member, ticket: Ticket, step: Step) -> None:
        self._heard(member, step)
        step.answer(ticket, joined(group, member))

    def _move(self, group: Group, state: State, step: Step, why: str) -> None:
        old, group.state = group.state, state
        group.state_timestamp_ms = step.wall_ms
        self._events(
            "group_state_changed",
            group=group.group_id,
            old=old.value,
            new=state.value,
            generation=group.generation,
            members=len(group.members),
            protocol=group.protocol,
            why=why,
        )

    def _tell_left(self, group: Group, member: Member, why: str) -> None:
        self._events("group_member_left", group=group.group_id, member=member.member_id, why=why)


def too_many_pending(name: str) -> kafka.CoordinatorNotAvailable:
    """Return the refusal of a newcomer while :data:`PENDING_MAX` member ids are given out."""
    return kafka.CoordinatorNotAvailable(
        f"group {name} has given out {PENDING_MAX} member ids that nobody has joined with yet: "
        "join again in a while, and join with the id that you are given"
    )


def _check_generation(group: Group, generation: int) -> None:
    if generation != group.generation:
        raise kafka.IllegalGeneration(
            f"group {group.group_id} is in generation {group.generation}, not {generation}: join again"
        )


def _take_word(member: Member, request: g.JoinGroupRequest | Member) -> None:
    """What the member says of itself counts from now on."""
    member.protocols = request.protocols
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.client_id, member.client_host = request.client_id, request.client_host
    member.software = request.software


def _metadata(request: g.JoinGroupRequest, protocol: str) -> bytes | None:
    return next((each.metadata for each in request.protocols if each.name == protocol), None)
