"""S33: members of both protocols in one group (KIP-848), with failing writes, lost answers and new coordinators."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from minikafka.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalGeneration,
    MemberIdRequired,
    NotEnoughReplicas,
    ProtocolError,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from minikafka.groups import coordinator
from minikafka.groups.assignors import CooperativeStickyAssignor, GroupMember
from minikafka.groups.consumer.group import ConsumerGroup, Draft, Topics
from minikafka.groups.group import Group
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.invariant import InvariantViolation
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import (
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.rules.group_kit import Desk
from tests.rules.test_consumer_group_lives import Member as ConsumerMember
from tests.rules.test_consumer_group_lives import T, _forgets_revoking, desk

ASSIGNOR = "cooperative-sticky"
OUT = {UnknownMemberId.code, IllegalGeneration.code, FencedMemberEpoch.code, FencedInstanceId.code}
SESSION_MS, REBALANCE_MS = 45_000, 60_000


@dataclass
class ClassicMember:
    """A client with the cooperative protocol: it uses what it received last, and gives up the rest before it joins."""

    desk: Desk
    partitions: int
    member_id: str = ""
    generation: int = -1
    owned: set[int] = field(default_factory=set)
    wants: str = "join"
    """Its next request: join, sync or heartbeat."""
    ticket: int | None = None
    joined: JoinGroupResponse | None = None
    instance_id: str | None = None
    sent_at: float = 0.0
    """When it sent its latest request that a coordinator has counted."""

    @property
    def may_have_expired(self) -> bool:
        """Return True if its session may be over: it has sent nothing for so long."""
        return self.ticket is None and self.desk.now - self.sent_at >= SESSION_MS / 1000

    def lose(self) -> None:
        """It is out of the group, and uses nothing."""
        self.member_id, self.generation, self.owned, self.wants, self.ticket = "", -1, set(), "join", None

    def begin(self) -> None:
        """Send the next request."""
        step, ticket = self.desk.step(), next(self.desk.tickets)
        before, self.sent_at = self.sent_at, self.desk.now
        is_answered = self.wants == "heartbeat"
        try:
            self._send(ticket, step)
        except CoordinatorNotAvailable:
            self.sent_at = before
        except ProtocolError as error:
            self._failed(error.code)
        else:
            self.ticket = None if is_answered else ticket
        finally:
            self.desk.done(step)

    def _send(self, ticket: int, step: Any) -> None:
        coordinator = self.desk.coordinator
        if self.wants == "join":
            owned = tuple(TopicPartition("t", each) for each in sorted(self.owned))
            metadata = Subscription(topics=("t",), owned=owned, generation=self.generation).packed()
            request = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocols=(GroupProtocol(name=ASSIGNOR, metadata=metadata),),
                client_id="c",
            )
            coordinator.join(ticket, request, step)
        elif self.wants == "sync":
            request = SyncGroupRequest(
                group_id="g",
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                assignments=self._assignments(),
            )
            coordinator.sync(ticket, request, step)
        else:
            self._failed(self.desk.heartbeat(self.member_id, self.generation, instance=self.instance_id).error_code)

    def _assignments(self) -> tuple[MemberAssignment, ...]:
        if self.joined is None or not self.joined.members:
            return ()
        members = [
            GroupMember(member_id=each.member_id, subscription=Subscription.readable(each.metadata))
            for each in self.joined.members
        ]
        found = CooperativeStickyAssignor().assign({"t": self.partitions}, members)
        return tuple(
            MemberAssignment(member_id=name, assignment=Assignment(partitions=tuple(each)).packed())
            for name, each in found.items()
        )

    def end(self) -> None:
        """Take in the answer."""
        assert self.ticket is not None
        answer, self.ticket = self.desk.answers[self.ticket], None
        if answer.error_code == MemberIdRequired.code:
            self.member_id = answer.member_id
        elif answer.error_code:
            self._failed(answer.error_code)
        elif isinstance(answer, JoinGroupResponse):
            self.member_id, self.generation, self.joined, self.wants = (
                answer.member_id,
                answer.generation_id,
                answer,
                "sync",
            )
        elif isinstance(answer, SyncGroupResponse):
            given = {each.partition for each in Assignment.unpacked(answer.assignment).partitions}
            # What it must give up is not used from here on; it joins again, so that another member gets it.
            self.wants = "join" if self.owned - given else "heartbeat"
            self.owned = given

    def _failed(self, code: int) -> None:
        if code in OUT:
            self.lose()
        elif code == RebalanceInProgress.code:
            self.wants = "join"

    def hear_nothing(self) -> None:
        """The answer is lost; a request is repeated."""
        if self.ticket is not None and self.wants == "sync":
            self.wants = "join"
        self.ticket = None


def known(at: Desk) -> set[str]:
    """The ids of the members that the coordinator has."""
    return {each.member_id for each in at.coordinator.describe("g", of_any_protocol=True).members}


def check_owners(at: Desk, classics: list[ClassicMember], consumers: list[ConsumerMember]) -> None:
    """No two members that the coordinator has not fenced may use a partition. A coordinator that ends before the removal
    of a member is committed says nothing of it.
    """
    ids = known(at)
    gone = {facts["member"] for kind, facts in at.told if kind == "group_member_left"}
    gone |= {member.member_id for member in classics if member.may_have_expired and member.member_id not in ids}
    uses = Counter(each for member in classics if member.member_id not in gone for each in member.owned)
    uses.update(
        number for member in consumers if member.epoch > 0 and member.member_id in ids for _, number in member.owned
    )
    assert max(uses.values(), default=0) <= 1, uses


def migrated(seed: int) -> None:
    """Members of both protocols come, go and lose answers; writes fail. At no time has a partition two owners, and in
    the end everything is assigned.
    """
    chance = random.Random(seed)
    partitions = chance.randint(1, 5)
    at = desk(partitions=partitions)
    at.commits_at_once = False
    classics: list[ClassicMember] = []
    consumers: list[ConsumerMember] = []
    born = 0

    def lose(member: ConsumerMember) -> None:
        member.epoch, member.owned, member.ticket = 0, set(), None

    def instance() -> str | None:
        """One of the instance ids that no process has at present, or none."""
        free = {"i1", "i2"} - {each.instance_id for each in (*classics, *consumers)}
        return chance.choice([None, *sorted(free)])

    def take_in(loss: float) -> None:
        for each in classics:
            if each.ticket in at.answers:
                each.hear_nothing() if chance.random() < loss else each.end()
        for one in consumers:
            if one.ticket in at.answers:
                if chance.random() < loss:
                    one.hear_nothing()
                elif one.end().error_code in OUT:
                    lose(one)
        check_owners(at, classics, consumers)

    def send(member: Any) -> None:
        if member.ticket is not None:
            return
        if isinstance(member, ClassicMember):
            member.begin()
            return
        try:
            member.begin()
        except ProtocolError as error:
            if error.code in OUT:
                lose(member)

    for _ in range(chance.randint(20, 120)):
        act = chance.random()
        if act < 0.1 and len(classics) < 3:
            classics.append(ClassicMember(at, partitions, instance_id=instance()))
        elif act < 0.18 and len(consumers) < 3:
            born += 1
            consumers.append(ConsumerMember(at, f"m{born}", instance_id=instance()))
        elif act < 0.22 and consumers:
            gone = consumers.pop(chance.randrange(len(consumers)))
            if gone.epoch > 0 and chance.random() < 0.7:
                with suppress(ProtocolError):
                    gone.begin(member_epoch=-1 if gone.instance_id is None else -2, topic_partitions=None)
        elif act < 0.26 and classics:
            member = classics.pop(chance.randrange(len(classics)))
            if member.member_id and member.instance_id is None and chance.random() < 0.7:
                with suppress(ProtocolError):
                    at.leave(member.member_id)
        elif act < 0.3:
            at.pass_time(chance.choice([1, 3, 20, 50]))
        elif act < 0.33:
            at.fail_over(chance.choice([0, 0, 1, len(at.in_flight)]))
            for each in (*classics, *consumers):
                each.hear_nothing()
        elif act < 0.42 and at.in_flight:
            if chance.random() < 0.7:
                at.refuse_one(NotEnoughReplicas("too few"))
            else:
                at.refuse_one(RequestTimedOut("late", outcome="unknown"))
        elif act < 0.65 and at.in_flight:
            at.commit_one()
        elif classics or consumers:
            send(chance.choice([*classics, *consumers]))
        take_in(0.1)

    at.commits_at_once = True
    at.commit_all()
    take_in(0.0)
    for _ in range(60):
        for each in (*classics, *consumers):
            send(each)
            take_in(0.0)
        at.pass_time(3)
        take_in(0.0)
    if classics or consumers:
        used = [number for each in classics for number in each.owned]
        used += [number for each in consumers for topic, number in each.owned if topic == T]
        assert sorted(used) == list(range(partitions)), (classics, consumers, known(at))


def test_a_history_whose_coordinator_ends_while_it_removes_members() -> None:
    """The removal was committed, and no event said so: the next owner was taken for a second one."""
    migrated(41000392)


def _takes_all(classic: Group, topics: Topics) -> Draft:
    """A classic group is converted as if it had no members."""
    return Draft(ConsumerGroup(classic.group_id))


@pytest.mark.parametrize(
    "owner, name, bug", [(coordinator, "upgraded", _takes_all), (ConsumerGroup, "_set_current", _forgets_revoking)]
)
def test_planted_bugs_are_caught(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, bug: Any):
    """Each within 100 seeds. Fresh seeds without them: ``tests/sim/test_histories.py``."""
    monkeypatch.setattr(owner, name, bug)
    for seed in range(100):
        try:
            migrated(seed)
        except (AssertionError, InvariantViolation):
            return
    pytest.fail(f"{bug.__doc__} was not caught")
