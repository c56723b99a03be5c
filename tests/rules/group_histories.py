"""Random histories of one group of the classic protocol and its coordinators, one after the other.

Clients that do as the protocol says and clients that do not; requests that arrive twice, or when nobody waits for them
any more; writes that are refused, late, or found by the next coordinator only; a log that is compacted; members whose
session ends, static members that come back, a group that is deleted. What must hold, always holds:

- A partition has one owner in a generation, whichever coordinator said so.
- Offsets are what the log says. One that a member has committed stands behind no record of a newer generation.
- A member that waits for nothing has an end of its session, and the coordinator looks at it by then.
- A new coordinator finds the group of the log's last record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from minikafka.coordination.rule import Write
from minikafka.errors import NotEnoughReplicas, ProtocolError, RequestTimedOut
from minikafka.groups.assignors import GroupMember, RangeAssignor
from minikafka.groups.group import Group, State
from minikafka.groups.limits import GroupSettings
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.groups.records import GroupRecord, GroupValue, OffsetRecord, unpacked
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import JoinGroupResponse, SyncGroupResponse
from tests.rules.group_kit import Desk

PARTITIONS = 5
IN_TRANSACTIONS = 1
"""The partition whose offsets are committed in transactions; all others are of partition 0."""
CLIENTS_MAX = 6
RETENTION_S = 120
ACTIONS = {
    "sensible": 60,
    "write": 25,
    "short": 8,
    "join": 3,
    "sync": 3,
    "beat": 3,
    "commit": 3,
    "arrive": 6,
    "come": 1,
    "static": 1,
    "leave": 1,
    "refuse": 1,
    "late": 1,
    "long": 1,
    "by_hand": 1,
    "end_transaction": 1,
    "delete": 0.3,
    "compact": 0.5,
    "fail_over": 1,
}


def is_of_group(write: Write) -> bool:
    return any(isinstance(each, GroupRecord) for each in write.records)


class GroupBreach(AssertionError):
    """A promise is broken; the message says which."""


@dataclass
class Client:
    """One consumer: what it was answered, and what it waits for."""

    instance: str | None = None
    session_ms: int = 10_000
    rebalance_ms: int = 60_000
    member_id: str = ""
    generation: int = -1
    joining: int | None = None
    syncing: int | None = None
    joined: JoinGroupResponse | None = None
    owned: tuple[TopicPartition, ...] = ()


@dataclass
class GroupHistory:
    """One seed's history."""

    seed: int

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.desk = Desk(
            GroupSettings(
                initial_rebalance_delay_ms=self.random.choice([0, 3000]),
                offsets_retention_ms=RETENTION_S * 1000,
                expiry_interval_ms=5_000,
            ),
            commits_at_once=False,
        )
        self.clients = [Client(), Client()]
        self.owners: dict[tuple[int, int, TopicPartition], str] = {}
        """(life of the group, generation, partition) to the member that has it, by a response."""
        self.lives_compacted = 0
        """Tombstones of the group that compaction has removed."""
        self.offset = 0
        self.tickets: list[int] = []
        self.commits: dict[int, tuple[int, int]] = {}
        """Tickets of commits: the offset, and the generation of the member; -1: committed by hand."""
        self.generations: dict[int, int] = {}
        """Offsets that members have committed, and the generation that the member named."""
        self.under_way: list[Callable[[], object]] = []
        """Copies of requests that have yet to arrive."""
        self.is_ahead = False
        """The group's last record was refused and is in force all the same. As in Kafka that is so of an empty group's:
        the next coordinator finds members that do not respond.
        """
        self.seen: Counter[str] = Counter()

    def play(self, steps: int) -> None:
        """``steps`` random steps, each followed by all checks, then a quiet end."""
        weights = [
            weight if weight > 10 else weight * self.random.choice([0.2, 1, 1, 3]) for weight in ACTIONS.values()
        ]
        for action in self.random.choices(list(ACTIONS), weights, k=steps):
            self.act(action, self.random.choice(self.clients))
        self.end()

    # ---- what happens ------------------------------------------------------------------------------------------------

    def act(self, action: str, client: Client) -> None:
        try:
            self._act(action, client)
        except ProtocolError as error:
            self.seen[error.name] += 1
        self.read_answers()
        self.check()

    def _act(self, action: str, client: Client) -> None:
        desk = self.desk
        match action:
            case "sensible":
                self.sensible(client)
            case "come" if len(self.clients) < CLIENTS_MAX:
                self.clients.append(self.newcomer(None))
            case "static" if len(self.clients) < CLIENTS_MAX:
                self.clients.append(self.newcomer(f"i{len(self.clients) % 2}"))
            case "join":
                self.join(client)
            case "sync" if client.joined is not None:
                self.sync(client)
            case "beat":
                self.send(partial(desk.heartbeat, client.member_id, client.generation, instance=client.instance))
            case "leave":
                self.send(partial(desk.leave, client.member_id, instance=client.instance))
            case "commit":
                self.commit(client.member_id, client.generation, client.instance)
            case "by_hand":
                self.commit("", -1, None)
            case "arrive" if self.under_way:
                self.under_way.pop(self.random.randrange(len(self.under_way)))()
            case "write" if desk.in_flight:
                self.write()
            case "refuse" if desk.in_flight:
                self.is_ahead |= is_of_group(desk.in_flight[0])
                desk.refuse_one(NotEnoughReplicas())
            case "late" if desk.in_flight:
                desk.refuse_one(RequestTimedOut(outcome="unknown"))
            case "short":
                desk.pass_time(2)
            case "long":
                desk.pass_time(self.random.choice([11, 11, 70, 200]))
            case "end_transaction" if not desk.in_flight:
                desk.end_transaction(7, commit=self.random.random() < 0.6)
            case "delete":
                step = desk.step()
                desk.coordinator.delete_group(next(desk.tickets), "g", step)
                desk.done(step)
            case "compact":
                self.compact()
            case "fail_over":
                self.fail_over()

    def write(self) -> None:
        """The oldest write is committed."""
        if is_of_group(self.desk.in_flight[0]):
            self.is_ahead = False
        self.desk.commit_one()

    def newcomer(self, instance: str | None) -> Client:
        choose = self.random.choice
        return Client(instance, session_ms=choose([6_000, 10_000, 30_000]), rebalance_ms=choose([5_000, 60_000]))

    def send(self, request: Callable[[], object]) -> object:
        """The request arrives now; a copy of it may arrive later, when no client waits for the response."""
        if self.random.random() < 0.1:
            self.under_way.append(request)
        return request()

    def join(self, client: Client) -> None:
        request = partial(
            self.desk.join,
            client.member_id,
            instance=client.instance,
            session_ms=client.session_ms,
            rebalance_ms=client.rebalance_ms,
        )
        client.joining = self.send(lambda: self.note(request()))

    def sync(self, client: Client) -> None:
        assert client.joined is not None
        dealt = self.assignments(client.joined) if client.joined.members else None
        request = partial(self.desk.sync, client.member_id, client.generation, dealt, instance=client.instance)
        client.syncing = self.send(lambda: self.note(request()))

    def note(self, ticket: int) -> int:
        self.tickets.append(ticket)
        return ticket

    def commit(self, member_id: str, generation: int, instance: str | None) -> None:
        self.offset += 1
        offset = self.offset

        is_in_transaction = self.random.random() < 0.2

        def request() -> None:
            if is_in_transaction:
                ticket = self.desk.commit_in_transaction(
                    offset, member_id=member_id, generation=generation, instance=instance, partition=IN_TRANSACTIONS
                )
            else:
                ticket = self.desk.commit(offset, member_id=member_id, generation=generation, instance=instance)
            self.commits[self.note(ticket)] = offset, generation
            self.generations[offset] = generation

        self.send(request)

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

    def sensible(self, client: Client) -> None:
        """What a client does that is well: join, sync, then commit; join again when it is asked to."""
        if client.joining is not None or client.syncing is not None:
            return
        if client.generation < 0 or client.joined is None:
            self.join(client)
            return
        try:
            if client.owned:
                self.commit(client.member_id, client.generation, client.instance)
            else:
                self.sync(client)
            self.send(partial(self.desk.heartbeat, client.member_id, client.generation, instance=client.instance))
        except ProtocolError as error:
            client.joined, client.owned = None, ()
            if error.code in (22, 25, 82):
                client.generation = -1
                client.member_id = "" if error.code != 22 else client.member_id
            raise

    def fail_over(self) -> None:
        """The next coordinator finds some of what was in flight."""
        self.desk.fail_over(self.random.choice([0, 0, 1, 2, len(self.desk.in_flight)]))
        self.read_answers()
        self.is_ahead = False
        self.check_loaded()

    def compact(self) -> None:
        """The last record of each key stays; a tombstone goes sooner or later. Of open transactions nothing goes."""
        desk = self.desk
        last = {key: at for at, (key, _) in enumerate(desk.log)}
        has_tombstones = self.random.random() < 0.5
        lives, self.lives_compacted = self.lives, 0
        desk.compact(
            at
            for at, (key, value) in enumerate(desk.log)
            if self.is_in_transactions(key, value) or (last[key] == at and (value is not None or has_tombstones))
        )
        self.lives_compacted = lives - self.lives
        self.fail_over()

    def is_in_transactions(self, key: bytes, value: bytes | None) -> bool:
        record = unpacked(key, value)
        return isinstance(record, OffsetRecord) and record.partition.partition == IN_TRANSACTIONS

    def end(self) -> None:
        """No more requests: the next coordinator has the same group, all is answered, and the members' sessions end."""
        while self.desk.in_flight:
            self.write()
        if self.random.random() < 0.5:
            self.hand_over()
        self.desk.commits_at_once = True
        self.desk.pass_time(400)
        self.read_answers()
        self.check()
        if any(each not in self.desk.answers for each in self.tickets):
            raise GroupBreach("a request is never answered")
        if self.desk.state() not in ("Empty", "Dead"):
            raise GroupBreach(f"members that no coordinator has heard stay: {self.desk.state()}")

    def hand_over(self) -> None:
        """Nothing is in flight: the next coordinator has the same group."""
        before, is_ahead = self.desk.coordinator.describe("g"), self.is_ahead
        self.fail_over()
        if before.state in ("Stable", "Empty") and before.generation_id > 0 and not is_ahead:
            self.seen["handed over"] += 1
            if self.desk.coordinator.describe("g") != before:
                raise GroupBreach("the next coordinator has another group")

    # ---- answers -----------------------------------------------------------------------------------------------------

    def read_answers(self) -> None:
        for client in self.clients:
            self._read_join(client)
            self._read_sync(client)

    def _read_join(self, client: Client) -> None:
        answer = self.desk.answers.get(client.joining)  # type: ignore[arg-type]
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
        answer = self.desk.answers.get(client.syncing)  # type: ignore[arg-type]
        if not isinstance(answer, SyncGroupResponse):
            return
        client.syncing = None
        if answer.error_code:
            client.joined = None
            return
        client.owned = Assignment.unpacked(answer.assignment).partitions
        for partition in client.owned:
            key = self.lives, client.generation, partition
            # A static member that came back has another id, and it is the same instance.
            name = client.instance or client.member_id
            if self.owners.setdefault(key, name) != name:
                raise GroupBreach(f"{key} has two owners: {self.owners[key]}, {name}")

    # ---- what must hold ----------------------------------------------------------------------------------------------

    @property
    def lives(self) -> int:
        """How often the group was deleted."""
        records = (unpacked(*each) for each in self.desk.log)
        return self.lives_compacted + sum(isinstance(each, GroupRecord) and each.value is None for each in records)

    def check(self) -> None:
        self.check_offsets()
        self.check_group()
        self.seen[self.desk.state()] += 1

    def check_offsets(self) -> None:
        """What can be read is what the log says, and no member of an old generation has committed it."""
        last, generation = None, 0
        for key, value in self.desk.log:
            record = unpacked(key, value)
            if isinstance(record, OffsetRecord):
                if record.value is not None and 0 <= self.generations[record.value.offset] < generation:
                    raise GroupBreach(f"offset {record.value.offset} is of a generation before {generation}")
                if record.partition.partition != IN_TRANSACTIONS:
                    last = record.value
            elif isinstance(record, GroupRecord):
                generation = 0 if record.value is None else record.value.generation
        expected = -1 if last is None else last.offset
        if self.desk.committed() != expected:
            raise GroupBreach(f"another offset: {self.desk.committed()}, not {expected}")

    def group(self) -> Group | None:
        return self.desk.coordinator._groups.get("g")

    def check_group(self) -> None:
        """It fits together, and each member's end is looked at."""
        group = self.group()
        if group is None:
            return
        members = group.members
        if group.static != {each.instance_id: name for name, each in members.items() if each.instance_id is not None}:
            raise GroupBreach(f"instances are not the members': {group.static}")
        if any(name != each.member_id for name, each in members.items()):
            raise GroupBreach("a member has another id")
        if (group.leader is None) != (not members) or (group.leader is not None and group.leader not in members):
            raise GroupBreach(f"{group.leader} leads and is no member")
        if group.state in (State.EMPTY, State.DEAD) and members:
            raise GroupBreach(f"{group.state} with members")
        if not group.not_synced <= members.keys():
            raise GroupBreach("one that has not synced is no member")
        for each in members.values():
            is_parked = each.join_ticket is not None or each.sync_ticket is not None
            if not is_parked and math.isinf(each.deadline):
                raise GroupBreach(f"{each.member_id} lives for ever")
            if group.state is State.STABLE and is_parked:
                raise GroupBreach(f"{each.member_id} waits in a stable group")
        if group.state is State.PREPARING and math.isinf(group.join_ends_at):
            raise GroupBreach("a join phase without an end")
        deadline = group.next_deadline()
        if deadline < math.inf and self.desk.coordinator.next_deadline() > max(deadline, self.desk.now):
            raise GroupBreach("a deadline that is not looked at")

    def check_loaded(self) -> None:
        """A new coordinator has the group of the last record."""
        value: GroupValue | None = None
        for key, each in self.desk.log:
            record = unpacked(key, each)
            if isinstance(record, GroupRecord):
                value = record.value
        group = self.group()
        if value is None:
            if group is not None and (group.members or group.generation):
                raise GroupBreach("a group without a record")
            return
        if group is None:
            raise GroupBreach("a record without a group")
        found = [(each.member_id, each.instance_id, each.assignment) for each in group.members.values()]
        recorded = [(each.member_id, each.instance_id, each.assignment) for each in value.members]
        if (group.generation, group.leader, found) != (value.generation, value.leader, recorded):
            raise GroupBreach(f"{group} is not that of the record {value}")
        self.check_group()
