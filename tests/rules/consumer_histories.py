"""Random histories of one group of the consumer protocol (KIP-848): its members are the client's rule, its coordinators
the broker's, one after the other.

Requests that are lost, arrive late or twice; responses that are lost; writes that are refused, late, or found by the
next coordinator only; a log that is compacted; sessions that end; static members that come back as another process;
members that leave; topics that grow or are created again. What must hold, always holds:

- No two members that the coordinator has not fenced own the same partition.
- A partition's owner, as the coordinator keeps it, is the member to which the log assigns it.
- Each member has an end of its session, and the coordinator looks at it by then.
- A member's commit is accepted for no partition of another member; what is acknowledged is returned.
- A new coordinator finds the group that the old one had.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from minikafka.errors import NotEnoughReplicas, ProtocolError, RequestTimedOut
from minikafka.groups.consumer.group import JOIN, ConsumerGroup, MemberState
from minikafka.groups.consumer.groups import Held
from minikafka.groups.consumer.member import FENCED, ConsumerMember, Wishes
from minikafka.groups.consumer.records import TopicIdPartition
from minikafka.groups.limits import GroupSettings
from minikafka.groups.records import OffsetRecord, unpacked
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import (
    CommitPartition,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OffsetCommitRequest,
)
from minikafka.wire.outcomes import error_in
from tests.rules.test_consumer_groups import ConsumerDesk

CLIENTS_MAX = 5
INSTANCES = ("i0", "i1")
QUIET_ROUNDS = 40
SESSION_S = 45
FATAL = (82, 111)
"""FENCED_INSTANCE_ID and UNRELEASED_INSTANCE_ID end a client."""

ACTIONS = {
    "beat": 40,
    "reconcile": 30,
    "write": 30,
    "commit": 10,
    "arrive": 6,
    "time_out": 3,
    "come": 3,
    "leave": 0.7,
    "restart": 0.7,
    "kill": 0.3,
    "wish": 1,
    "short": 4,
    "long": 1,
    "refuse": 1,
    "late": 1,
    "grow": 0.5,
    "create_again": 0.5,
    "compact": 0.5,
    "fail_over": 1,
}


class ConsumerBreach(AssertionError):
    """A promise is broken; the message says which."""


@dataclass(slots=True)
class Client:
    """A member, and the heartbeat that it waits for."""

    rule: ConsumerMember
    ticket: int | None = None
    is_fenced: bool = False
    """The coordinator has removed it, and it does not know that yet."""


class ConsumerHistory:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"consumer/{seed}")
        self.desk = ConsumerDesk(
            GroupSettings(consumer_session_timeout_ms=SESSION_S * 1000, expiry_interval_ms=20_000),
            commits_at_once=False,
        )
        self.clients: list[Client] = []
        self.born = self.topics = self.offset = 0
        self.counts = {"t": 0, "u": 0}
        for name in self.counts:
            self.create_topic(name)
        self.tickets: list[int] = []
        self.commits: dict[int, int] = {}
        """Tickets of commits, and what they commit."""
        self.under_way: list[Callable[[], object]] = []
        """Requests, and copies of requests, that have yet to arrive; no client waits for the response."""
        self.seen: Counter[str] = Counter()
        self.come(None)
        self.come(None)

    def play(self, steps: int) -> None:
        """``steps`` random steps, each followed by all checks, then a quiet end."""
        weights = [
            weight if weight > 10 else weight * self.random.choice([0.2, 1, 1, 3]) for weight in ACTIONS.values()
        ]
        for action in self.random.choices(list(ACTIONS), weights, k=steps):
            self.act(action)
        self.end()

    # ---- what happens ------------------------------------------------------------------------------------------------

    def act(self, action: str) -> None:
        try:
            self._act(action)
        except ProtocolError as error:
            self.seen[error.name] += 1
        self.read_responses()
        self.check()

    def _act(self, action: str) -> None:
        desk = self.desk
        client = self.random.choice(self.clients) if self.clients else None
        match action:
            case "come":
                self.come(self.random.choice((None, None, *INSTANCES)))
            case "arrive" if self.under_way:
                self.under_way.pop(self.random.randrange(len(self.under_way)))()
            case "write" if desk.in_flight:
                desk.commit_one()
            case "refuse" if desk.in_flight:
                desk.refuse_one(NotEnoughReplicas("too few"))
            case "late" if desk.in_flight:
                desk.refuse_one(RequestTimedOut("late", outcome="unknown"))
            case "short":
                desk.pass_time(1)
            case "long":
                desk.pass_time(self.random.choice([20, 50, 70]))
            case "grow":
                self.grow(self.random.choice(sorted(self.counts)))
            case "create_again":
                self.create_again(self.random.choice(sorted(self.counts)))
            case "compact":
                self.compact()
            case "fail_over":
                self.fail_over()
            case "beat" | "reconcile" | "commit" | "time_out" | "leave" | "restart" | "kill" | "wish" if client:
                getattr(self, action)(client)

    # ---- members ----

    def come(self, instance: str | None) -> None:
        if len(self.clients) >= CLIENTS_MAX:
            return
        self.born += 1
        rule = ConsumerMember("g", f"m{self.born}", rebalance_timeout_ms=60_000, instance_id=instance)
        rule.wish(self.wishes())
        self.clients.append(Client(rule))

    def wishes(self) -> Wishes:
        return self.random.choice([Wishes(topics=("t",)), Wishes(topics=("t", "u")), Wishes(regex="[tu]")])

    def wish(self, client: Client) -> None:
        client.rule.wish(self.wishes())

    def beat(self, client: Client, *, is_lossy: bool = True) -> None:
        """Send a heartbeat."""
        if client.ticket is not None:
            return
        request = client.rule.request()
        chance = self.random.random() if is_lossy else 1.0
        if chance < 0.1:
            self.under_way.append(partial(self.receive_late, request))
        if chance < 0.05:
            self.no_response(client)
            return
        try:
            client.ticket = self.receive(request)
        except ProtocolError as error:
            self.refused(client, error)

    def receive_late(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """A late list of partitions is lost if it is of the member's present epoch or the one before: docs/limits.md."""
        current = self.group().current(request.member_id)
        is_join = request.member_epoch == JOIN
        if (
            is_join
            or request.topic_partitions is None
            or request.member_epoch not in (current.epoch, current.previous_epoch)
        ):
            self.receive(request)

    def receive(self, request: ConsumerGroupHeartbeatRequest) -> int:
        fields = {name: getattr(request, name) for name in request.__struct_fields__ if name != "group_id"}
        ticket = self.desk.send(**fields)
        self.tickets.append(ticket)
        return ticket

    def refused(self, client: Client, error: ProtocolError) -> None:
        self.seen[error.name] += 1
        if isinstance(error, FENCED):
            client.rule.lose(error)
        elif error.code in FATAL:
            self.clients.remove(client)
        else:
            self.no_response(client)

    def no_response(self, client: Client) -> None:
        client.rule.unanswered()
        client.ticket = None

    def time_out(self, client: Client) -> None:
        if client.ticket is not None:
            self.no_response(client)

    def reconcile(self, client: Client) -> None:
        """The application gives up what it must and takes what is new; or only a part of it."""
        rule = client.rule
        rule.revoked(rule.to_revoke)
        taken = sorted(rule.to_take)
        rule.taken(frozenset(taken[: self.random.choice([1, len(taken)])]))

    def leave(self, client: Client) -> None:
        """With a goodbye, which may be lost or late."""
        self.clients.remove(client)
        if client.rule.may_be_known:
            self.goodbye(client)

    def goodbye(self, client: Client) -> None:
        send = partial(self.receive, client.rule.leaving())
        if self.random.random() < 0.2:
            self.under_way.append(send)
        else:
            send()

    def restart(self, client: Client) -> None:
        """Another process of the same static member."""
        if client.rule.instance_id is not None:
            try:
                self.leave(client)
            finally:
                self.come(client.rule.instance_id)

    def kill(self, client: Client) -> None:
        self.clients.remove(client)

    def commit(self, client: Client) -> None:
        """Of a partition that the member owns."""
        if not client.rule.owned:
            return
        self.offset += 1
        partition = self.random.choice(sorted(client.rule.owned))
        names = {image.topic_id: name for name, image in self.desk.topics.items()}
        if partition.topic_id not in names:
            return
        place = TopicPartition(names[partition.topic_id], partition.partition)
        send = partial(self.receive_commit, client.rule.member_id, client.rule.epoch, place, partition, self.offset)
        if self.random.random() < 0.15:
            self.under_way.append(send)
        else:
            send()

    def receive_commit(
        self, member_id: str, epoch: int, place: TopicPartition, partition: TopicIdPartition, offset: int
    ) -> None:
        desk = self.desk
        if desk.topics[place.topic].topic_id != partition.topic_id:
            return  # requests name topics: one that was created again since cannot be told from the former
        ticket, step = next(desk.tickets), desk.step()
        each = CommitPartition(topic=place.topic, partition=place.partition, offset=offset)
        request = OffsetCommitRequest(group_id="g", member_id=member_id, generation_id=epoch, partitions=(each,))
        try:
            desk.coordinator.commit(ticket, request, step)
        finally:
            desk.done(step)
        self.tickets.append(ticket)
        self.commits[ticket] = offset
        owner = self.group().owners.get(partition, member_id)
        if owner != member_id:
            raise ConsumerBreach(f"{member_id} commits an offset of {place}, which {owner} owns")
        self.seen["commit"] += 1

    # ---- the coordinator ----

    def create_topic(self, name: str) -> None:
        self.topics += 1
        self.counts[name] = self.random.randint(1, 4)
        self.desk.topic(self.counts[name], name, urlsafe_b64encode(self.topics.to_bytes(16)).decode()[:22])

    def grow(self, name: str) -> None:
        self.counts[name] += 1
        self.desk.topic(self.counts[name], name, self.desk.topics[name].topic_id)

    def create_again(self, name: str) -> None:
        self.create_topic(name)
        self.desk.coordinator.topics_deleted([name], step := self.desk.step())
        self.desk.done(step)

    def fail_over(self) -> None:
        """The next coordinator finds some of what was in flight."""
        found, before = self.random.choice([0, 0, 1, 2, len(self.desk.in_flight)]), self.group()
        is_quiet = not self.desk.in_flight[:found]
        self.desk.fail_over(found)
        if is_quiet and self.group() != before:
            raise ConsumerBreach(f"another group: {self.group()}, not {before}")

    def compact(self) -> None:
        """The last record of each key stays; tombstones go sooner or later."""
        desk = self.desk
        last = {key: at for at, (key, _) in enumerate(desk.log)}
        has_tombstones = self.random.random() < 0.5
        desk.compact(
            at for at, (key, value) in enumerate(desk.log) if last[key] == at and (value is not None or has_tombstones)
        )
        self.fail_over()

    def end(self) -> None:
        """Nothing is lost any more: every partition is owned, and the group is stable."""
        self.under_way.clear()
        self.desk.commits_at_once = True
        self.desk.commit_all()
        self.read_responses()
        if not self.clients:
            self.come(None)
        for _ in range(QUIET_ROUNDS):
            for client in list(self.clients):
                if client in self.clients:
                    self.beat(client, is_lossy=False)
                    self.read_responses()
                    self.reconcile(client)
                    self.check()
            self.desk.pass_time(5)
        if any(each not in self.desk.answers for each in self.tickets):
            raise ConsumerBreach("a request is never answered")
        if not self.clients:
            return
        wanted = {name for each in self.clients for name in self.topics_of(each)}
        every = [
            TopicIdPartition(self.desk.topics[name].topic_id, number)
            for name in wanted
            for number in range(self.counts[name])
        ]
        if sorted(each for client in self.clients for each in client.rule.owned) != sorted(every):
            raise ConsumerBreach(f"not owned once each: {[sorted(each.rule.owned) for each in self.clients]}, {every}")
        if self.desk.group().state != "Stable":
            raise ConsumerBreach(f"not stable: {self.desk.group()}")

    def topics_of(self, client: Client) -> tuple[str, ...]:
        wishes = client.rule._wishes
        return wishes.topics or tuple(self.counts)

    # ---- responses ---------------------------------------------------------------------------------------------------

    def read_responses(self) -> None:
        for client in list(self.clients):
            answer = self.desk.answers.get(client.ticket) if client.ticket is not None else None
            if not isinstance(answer, ConsumerGroupHeartbeatResponse):
                continue
            client.ticket = None
            error = error_in(answer)
            if not self.desk.commits_at_once and self.random.random() < 0.1:
                self.no_response(client)
            elif error is not None:
                self.refused(client, error)
            else:
                client.rule.answered(answer)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def held(self) -> Held | None:
        return self.desk.coordinator._consumers.get("g")

    def group(self) -> ConsumerGroup:
        """What is committed."""
        held = self.held()
        return held.group if held is not None else ConsumerGroup("g")

    def check(self) -> None:
        group = self.group()
        self.seen[group.state.value] += 1
        for client in self.clients:
            if client.rule.is_outside:
                client.is_fenced = False
            elif client.rule.member_id not in group.members:
                client.is_fenced = True
        used = Counter(each for client in self.clients if not client.is_fenced for each in client.rule.owned)
        if max(used.values(), default=0) > 1:
            owned = {each.rule.member_id: sorted(each.rule.owned) for each in self.clients}
            raise ConsumerBreach(f"two members own a partition: {owned}")
        self.check_owners(group)
        self.check_timers()
        self.check_offsets()

    def check_owners(self, group: ConsumerGroup) -> None:
        owners = [
            (each, name) for name, current in group.currents.items() for each in (*current.assigned, *current.revoking)
        ]
        if len(owners) != len(group.owners) or dict(owners) != group.owners:
            raise ConsumerBreach(f"owners do not follow from the members: {group.owners}, {owners}")
        if group.currents.keys() - group.members.keys() or group.targets.keys() - group.members.keys():
            raise ConsumerBreach("a member is gone and still has partitions")
        instances = [each.instance_id for each in group.members.values() if each.instance_id is not None]
        if len(instances) != len(set(instances)):
            raise ConsumerBreach(f"two members are one instance: {instances}")

    def check_timers(self) -> None:
        held = self.held()
        if held is None or held.is_writing:
            return
        members = held.group.members.keys()
        if held.sessions.keys() != members or any(
            math.isnan(each) or each == math.inf for each in held.sessions.values()
        ):
            raise ConsumerBreach(f"sessions are not the members': {held.sessions}, {sorted(members)}")
        unrevoked = {each for each in members if held.group.current(each).state == MemberState.UNREVOKED}
        if not unrevoked <= held.revocations.keys():
            raise ConsumerBreach(f"no end of the revocations of {unrevoked - held.revocations.keys()}")
        if members and self.desk.coordinator.next_deadline() > max(held.next_deadline(), self.desk.now):
            raise ConsumerBreach("a deadline that is not looked at")

    def check_offsets(self) -> None:
        """What can be read is what the log says, and what is acknowledged is there."""
        found: dict[TopicPartition, int] = {}
        written: set[int] = set()
        for key, value in self.desk.log:
            record = unpacked(key, value) if len(key) > 1 and key[1] < 3 else None
            if not isinstance(record, OffsetRecord):
                continue
            topic = self.desk.topics[record.partition.topic]
            if record.value is not None:
                written.add(record.value.offset)
            if record.value is None or record.value.topic_id != topic.topic_id:
                found.pop(record.partition, None)
            else:
                found[record.partition] = record.value.offset
        for name, count in self.counts.items():
            for number in range(count):
                offset = self.desk.committed(topic=name, partition=number)
                if offset != found.get(TopicPartition(name, number), -1):
                    raise ConsumerBreach(f"another offset of {name}-{number}: {offset}")
