"""S33: many members of the consumer protocol (KIP-848) with failing writes and lost answers, and bugs planted into it."""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikafka.coordination.rule import Step
from minikafka.errors import (
    FencedMemberEpoch,
    NotEnoughReplicas,
    ProtocolError,
    RequestTimedOut,
    UnknownMemberId,
)
from minikafka.groups.consumer.group import ConsumerGroup, Draft
from minikafka.groups.consumer.groups import ConsumerGroups, Held
from minikafka.groups.consumer.heartbeat import Heartbeat
from minikafka.groups.consumer.records import (
    Current,
)
from minikafka.groups.limits import GroupSettings
from minikafka.invariant import InvariantViolation
from minikafka.wire.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)
from tests.rules.group_kit import Desk, topic_image

SESSION_S = 45.0
REBALANCE_MS = 60_000


def id_of(number: int) -> str:
    """A topic id in its text form."""
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=")


T, U = id_of(1), id_of(2)


def desk(partitions: int = 4, **options: Any) -> Desk:
    topics = {"t": topic_image("t", T, partitions), "u": topic_image("u", U, partitions)}
    return Desk(GroupSettings(initial_rebalance_delay_ms=0, **options), topics=topics)


def flat(given: tuple[TopicIdPartitions, ...] | None) -> set[tuple[str, int]]:
    return {(each.topic_id, number) for each in given or () for number in each.partitions}


def as_sent(owned: set[tuple[str, int]]) -> tuple[TopicIdPartitions, ...]:
    topics = sorted({topic for topic, _ in owned})
    return tuple(
        TopicIdPartitions(topic_id=topic, partitions=tuple(sorted(n for name, n in owned if name == topic)))
        for topic in topics
    )


@dataclass
class Member:
    """A client that does as the protocol says: it uses what it was assigned last, and reports what it owns."""

    desk: Desk
    member_id: str
    topics: tuple[str, ...] = ("t",)
    instance_id: str | None = None
    epoch: int = 0
    owned: set[tuple[str, int]] = field(default_factory=set)
    ticket: int | None = None
    is_full: bool = False
    """The next heartbeat says everything, so that its answer does: the one before it failed or was lost."""

    def request(self, **changes: Any) -> ConsumerGroupHeartbeatRequest:
        given: dict[str, Any] = {
            "group_id": "g",
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "topic_partitions": as_sent(self.owned),
        }
        if self.epoch == 0 or self.is_full:
            given |= {"subscribed_topic_names": self.topics, "rebalance_timeout_ms": REBALANCE_MS}
        return ConsumerGroupHeartbeatRequest(**{**given, **changes})

    def begin(self, **changes: Any) -> None:
        """Send a heartbeat."""
        step = self.desk.step()
        ticket = next(self.desk.tickets)
        try:
            self.desk.coordinator.consumer_heartbeat(ticket, self.request(**changes), step)
        finally:
            self.desk.done(step)
        self.ticket = ticket

    def end(self) -> ConsumerGroupHeartbeatResponse:
        """Take in its answer."""
        answer = self.desk.answers[self.ticket]
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.ticket, self.is_full = None, answer.error_code != 0
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = flat(answer.assignment)
        return answer

    def beat(self, **changes: Any) -> ConsumerGroupHeartbeatResponse:
        self.begin(**changes)
        return self.end()

    def hear_nothing(self) -> None:
        """The answer to its heartbeat is lost."""
        if self.ticket is not None:
            self.ticket, self.is_full = None, True

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _, number in self.owned)


def settle(*members: Member) -> None:
    for _ in range(6):
        for each in members:
            assert each.beat().error_code == 0


def described(desk: Desk) -> Any:
    return desk.coordinator.describe_consumer("g")


# ---- the safety of many members --------------------------------------------------------------------------------------


def check_owners(at: Desk, members: list[Member]) -> None:
    """No two members that the coordinator has not fenced may use a partition."""
    known = {each.member_id for each in described(at).members}
    uses = Counter(
        each for member in members if member.epoch > 0 and member.member_id in known for each in member.owned
    )
    assert max(uses.values(), default=0) <= 1, uses


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_partition_ever_has_two_owners(seed: int):
    """Members come, go and lose answers; coordinators change; writes fail. In the end everything is assigned."""
    chance = random.Random(seed)
    at = desk(partitions=chance.randint(1, 5))
    at.commits_at_once = False
    members: list[Member] = []
    born = 0

    def lose(member: Member) -> None:
        member.epoch, member.owned, member.ticket = 0, set(), None

    for _ in range(chance.randint(20, 80)):
        act = chance.random()
        if act < 0.15 and len(members) < 5:
            born += 1
            topics = chance.choice([("t",), ("t", "u"), ("u",)])
            members.append(Member(at, f"m{born}", topics=topics))
        elif act < 0.22 and members:
            gone = members.pop(chance.randrange(len(members)))
            if gone.epoch > 0 and chance.random() < 0.6:
                with suppress(ProtocolError):
                    gone.begin(member_epoch=-1, topic_partitions=None)
        elif act < 0.27:
            at.pass_time(chance.choice([1, 20, 50]))
            for each in members:
                each.hear_nothing()
        elif act < 0.32:
            at.take_over()
            for each in members:
                each.hear_nothing()
        elif act < 0.4 and at.in_flight:
            if chance.random() < 0.5:
                at.refuse_one(NotEnoughReplicas("too few"))
            else:
                at.refuse_one(RequestTimedOut("late", outcome="unknown"))
        elif act < 0.6 and at.in_flight:
            at.commit_one()
        elif members:
            member = chance.choice(members)
            if member.ticket is None:
                try:
                    member.begin()
                except ProtocolError as error:
                    if isinstance(error, UnknownMemberId | FencedMemberEpoch):
                        lose(member)
        for each in members:
            if each.ticket in at.answers:
                if chance.random() < 0.15:
                    each.hear_nothing()
                elif each.end().error_code in (UnknownMemberId.code, FencedMemberEpoch.code):
                    lose(each)
        check_owners(at, members)
    at.commits_at_once = True
    at.commit_all()
    for each in members:
        each.hear_nothing()
    for _ in range(12):
        for each in members:
            try:
                if each.beat().error_code:
                    lose(each)
            except UnknownMemberId:
                lose(each)
        check_owners(at, members)
    at.pass_time(SESSION_S - 1)
    for _ in range(12):
        for each in members:
            assert each.beat().error_code == 0
    at.pass_time(2)  # those that left without a word are gone
    for _ in range(12):
        for each in members:
            assert each.beat().error_code == 0
    wanted = {name for each in members for name in each.topics}
    ids = {"t": T, "u": U}
    everything = {(ids[name], number) for name in wanted for number in range(len(at.topics[name].partitions))}
    assert {each for member in members for each in member.owned} == everything
    check_owners(at, members)


def _forgets_revoking(self: ConsumerGroup, member_id: str, value: Current | None) -> None:
    """A partition is free as soon as its owner is asked to revoke it."""
    old = self.currents.pop(member_id, None)
    self.owners = {each: owner for each, owner in self.owners.items() if owner != member_id}
    if value is not None:
        self.currents[member_id] = value
        self.owners.update(dict.fromkeys(value.assigned, member_id))
    assert old is None or old.epoch >= -2


def _removes_quietly(self: Heartbeat, draft: Draft, member_ids: Iterable[str]) -> None:
    """A member is removed, and the group epoch stays."""
    for member_id in member_ids:
        draft.remove(member_id)


def _never_fences(self: ConsumerGroups, held: Held, step: Step) -> None:
    """Silent members stay for ever."""
    held.sessions.clear()
    held.revocations.clear()


@pytest.mark.parametrize(
    "owner, name, bug",
    [
        (ConsumerGroup, "_set_current", _forgets_revoking),
        (Heartbeat, "remove", _removes_quietly),
        (ConsumerGroups, "tick", _never_fences),
    ],
)
def test_planted_bugs_are_caught(monkeypatch, owner: type, name: str, bug: Any):
    """Each by the test above, within 100 seeds."""
    monkeypatch.setattr(owner, name, bug)
    lives = test_no_partition_ever_has_two_owners.hypothesis.inner_test
    for seed in range(100):
        try:
            lives(seed)
        except (AssertionError, InvariantViolation):
            return
    pytest.fail(f"{bug.__doc__} was not caught")


def test_a_group_after_a_replay_equals_the_group_before_it():
    """The log is the coordinator's only memory, in whatever order compaction left the last records of the keys."""
    at = desk()
    members = [Member(at, name, topics=("t", "u")) for name in "abc"]
    settle(*members)
    members[2].beat(member_epoch=-1, topic_partitions=None)
    settle(*members[:2])
    before = described(at)
    newest = dict(at.log)
    for seed in range(10):
        order = list(newest.items())
        random.Random(seed).shuffle(order)
        at.log = order
        at.take_over()
        assert described(at) == before
        settle(*members[:2])
        assert described(at) == before
