"""Random lives of a group: joins, zombies, refused and late writes, new coordinators. What must hold, always holds."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from minikafka.errors import NotCoordinator, NotEnoughReplicas, ProtocolError, RequestTimedOut
from minikafka.groups.assignors import GroupMember, RangeAssignor
from minikafka.groups.limits import GroupSettings
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.groups.records import OffsetRecord, unpacked
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import JoinGroupResponse, SyncGroupResponse
from tests.rules.group_kit import Desk

PARTITIONS = 5
LIVES = 60
STEPS = 250
ACTIONS = {
    "sensible": 60,
    "write": 25,
    "short": 8,
    "join": 3,
    "sync": 3,
    "beat": 3,
    "commit": 3,
    "come": 1,
    "static": 1,
    "leave": 1,
    "refuse": 1,
    "late": 1,
    "long": 1,
    "take_over": 1,
}


@dataclass
class Client:
    """One consumer: what it was told, and what it waits for."""

    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    joining: int | None = None
    syncing: int | None = None
    joined: JoinGroupResponse | None = None
    owned: tuple[TopicPartition, ...] = ()


@dataclass
class Life:
    """A coordinator, its clients, and what was seen."""

    desk: Desk = field(
        default_factory=lambda: Desk(GroupSettings(initial_rebalance_delay_ms=3000), commits_at_once=False)
    )
    clients: list[Client] = field(default_factory=list)
    owners: dict[tuple[int, int, TopicPartition], str] = field(default_factory=dict)
    """(reign, generation, partition) to the member that was told that it has it."""
    reign: int = 0
    next_offset: int = 0
    tickets: list[int] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def read_answers(self) -> None:
        for client in self.clients:
            self._read_join(client)
            self._read_sync(client)

    def _read_join(self, client: Client) -> None:
        answer = self.desk.answers.get(client.joining)
        if not isinstance(answer, JoinGroupResponse):
            return
        client.joining = None
        if answer.error_code == 0:
            client.joined = answer
            client.generation, client.member_id = answer.generation_id, answer.member_id
        elif answer.member_id:
            client.member_id = answer.member_id
        elif answer.error_code in (25, 82):
            client.member_id = ""

    def _read_sync(self, client: Client) -> None:
        answer = self.desk.answers.get(client.syncing)
        if not isinstance(answer, SyncGroupResponse):
            return
        client.syncing = None
        if answer.error_code:
            return
        client.owned = Assignment.unpacked(answer.assignment).partitions
        for partition in client.owned:
            key = self.reign, client.generation, partition
            # A static member that came back has another id, and it is the same instance.
            who = client.instance or client.member_id
            assert self.owners.setdefault(key, who) == who, f"{key} has two owners"

    def assignments(self, joined: JoinGroupResponse) -> dict[str, bytes]:
        members = [
            GroupMember(
                member_id=each.member_id,
                instance_id=each.group_instance_id,
                subscription=Subscription.unpacked(each.metadata),
            )
            for each in joined.members
        ]
        dealt = RangeAssignor().assign({"t": PARTITIONS}, members)
        return {key: Assignment(partitions=tuple(each)).packed() for key, each in dealt.items()}

    def act(self, action: str, client: Client) -> None:
        with contextlib.suppress(ProtocolError):
            self._act(action, client)
        self.read_answers()
        self.check()

    def _act(self, action: str, client: Client) -> None:
        desk = self.desk
        match action:
            case "sensible":
                self.sensible(client)
            case "come" if len(self.clients) < 6:
                self.clients.append(Client())
            case "static" if len(self.clients) < 6:
                self.clients.append(Client(instance=f"i{len(self.clients) % 2}"))
            case "join":
                client.joining = desk.join(client.member_id, instance=client.instance)
                self.tickets.append(client.joining)
            case "sync" if client.joined is not None:
                given_out = self.assignments(client.joined) if client.joined.members else None
                client.syncing = desk.sync(client.member_id, client.generation, given_out, instance=client.instance)
                self.tickets.append(client.syncing)
            case "beat":
                desk.heartbeat(client.member_id, client.generation, instance=client.instance)
            case "leave":
                desk.leave(client.member_id, instance=client.instance)
            case "commit":
                self.next_offset += 1
                ticket = desk.commit(
                    self.next_offset,
                    member_id=client.member_id,
                    generation=client.generation,
                    instance=client.instance,
                )
                self.tickets.append(ticket)
            case "write" if desk.in_flight:
                desk.commit_one()
            case "refuse" if desk.in_flight:
                desk.refuse_one(NotEnoughReplicas())
            case "late" if desk.in_flight:
                desk.refuse_one(RequestTimedOut(outcome="unknown"))
            case "short":
                desk.pass_time(2)
            case "long":
                desk.pass_time(11)
            case "take_over":
                self.take_over()

    def sensible(self, client: Client) -> None:
        """What a client does that is well: join, sync, then commit; join again when it is told to."""
        if client.joining is not None or client.syncing is not None:
            return
        if client.generation < 0 or client.joined is None:
            self._act("join", client)
            return
        try:
            self._act("commit" if client.owned else "sync", client)
            self.desk.heartbeat(client.member_id, client.generation, instance=client.instance)
        except ProtocolError as error:
            client.joined, client.owned = None, ()
            if error.code in (22, 25, 82):
                client.generation = -1
                client.member_id = "" if error.code != 22 else client.member_id
            self.seen[error.name] += 1

    def take_over(self) -> None:
        """What is in flight is lost, or the next coordinator finds it: here it is lost."""
        desk = self.desk
        step = desk.step()
        desk.coordinator.resign(step)
        for write in desk.in_flight:
            desk.coordinator.refused(write, NotCoordinator(outcome="unknown"), step)
        desk.done(step)
        self.read_answers()
        desk.take_over()
        self.reign += 1

    def check(self) -> None:
        """What can be read is what the committed log says, no more and no less."""
        last = None
        for key, value in self.desk.log:
            record = unpacked(key, value)
            if isinstance(record, OffsetRecord):
                last = record.value
        assert self.desk.committed() == (-1 if last is None else last.offset)
        self.seen[self.desk.state()] += 1


def lived(seed: int) -> Life:
    random = Random(seed)
    life = Life(clients=[Client(), Client()])
    for action in random.choices(list(ACTIONS), list(ACTIONS.values()), k=STEPS):
        life.act(action, random.choice(life.clients))
    return life


def test_one_owner_per_generation_and_every_request_ends():
    """S29, S33, S34: a partition has one owner in a generation, offsets are what was committed, nobody waits for ever."""
    seen: Counter[str] = Counter()
    for seed in range(LIVES):
        life = lived(seed)
        life.desk.commits_at_once = True
        life.desk.commit_all()
        life.desk.pass_time(400)
        life.read_answers()
        assert [each for each in life.tickets if each not in life.desk.answers] == [], f"seed {seed}"
        seen += life.seen
        seen["owners"] += len(life.owners)
    hit = {"Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"}
    assert min(seen[each] for each in (*hit, "FENCED_INSTANCE_ID")) >= 10, seen
    assert seen["Stable"] >= LIVES * STEPS / 20, seen
    assert seen["owners"] >= LIVES * PARTITIONS, seen


@pytest.mark.parametrize("seed", range(100, 120))
def test_a_new_coordinator_finds_what_the_old_one_had_committed(seed: int):
    """A stable group is the same group after a change of coordinator: members, generation, assignments."""
    life = lived(seed)
    life.desk.commit_all()
    before = life.desk.coordinator.describe("g")
    life.desk.take_over()
    after = life.desk.coordinator.describe("g")
    if before.state in ("Stable", "Empty") and before.generation_id > 0:
        assert after == before
