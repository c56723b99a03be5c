"""A coordinator without a broker: requests by hand, time by hand, and a log whose commits are given by hand too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from minikafka.coordination.rule import Step, Write
from minikafka.errors import NotCoordinator, ProtocolError
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.limits import GroupSettings
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.quorum.image import PartitionImage, TopicImage
from minikafka.types import NO_PRODUCER, TopicPartition
from minikafka.wire.group_messages import (
    CommitPartition,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from minikafka.wire.messages import PartitionName
from minikafka.wire.transaction_messages import TxnOffsetCommitRequest

WALL_MS = 1_700_000_000_000


def topic_image(name: str, topic_id: str, partitions: int = 1) -> TopicImage:
    """A topic of which broker 1 leads every partition."""
    images = tuple(
        PartitionImage(
            partition=number, leader=1, replicas=(1,), isr=(1,), leader_epoch=0, partition_epoch=0, controller_epoch=0
        )
        for number in range(partitions)
    )
    return TopicImage(name=name, topic_id=topic_id, partitions=images)


def subscription(*topics: str, owned: tuple[TopicPartition, ...] = ()) -> bytes:
    return Subscription(topics=topics, owned=owned).packed()


def protocols(
    *names: str, topics: tuple[str, ...] = ("t",), owned: tuple[TopicPartition, ...] = ()
) -> tuple[GroupProtocol, ...]:
    metadata = subscription(*topics, owned=owned)
    return tuple(GroupProtocol(name=name, metadata=metadata) for name in names or ("range",))


def assignment(*numbers: int, topic: str = "t") -> bytes:
    return Assignment(partitions=tuple(TopicPartition(topic, each) for each in numbers)).packed()


@dataclass
class Desk:
    """One coordinator and all that stands around it."""

    settings: GroupSettings = field(default_factory=lambda: GroupSettings(initial_rebalance_delay_ms=0))
    commits_at_once: bool = True
    missing: dict[str, None] = field(default_factory=dict)
    """Topics that are not there."""
    topics: dict[str, TopicImage] = field(default_factory=dict)
    """Topics that groups of the consumer protocol may be assigned."""

    def __post_init__(self) -> None:
        self.now = 1000.0
        self.tickets = itertools.count(1)
        self.answers: dict[int, object] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        """What is committed, in Kafka's bytes."""
        self.of_transactions: dict[int, int] = {}
        """Offset of a record, and the producer of its transaction."""
        self.markers: list[tuple[int, int, bool]] = []
        """The end of the log when a transaction ended, its producer, and whether it was committed."""
        self.in_flight: list[Write] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.ids = itertools.count(1)
        self.take_over()

    def take_over(self, while_loading: Callable[[GroupCoordinator], object] = lambda _: None) -> None:
        """A new coordinator reads the log; ``while_loading`` happens before it is done."""
        self.in_flight = []
        self.coordinator = GroupCoordinator(
            self.settings,
            new_member_id=lambda name: f"{name}-{next(self.ids)}",
            events=lambda kind, **facts: self.told.append((kind, facts)),
            topic_exists=lambda topic: topic not in self.missing,
            topics=lambda: self.topics,
        )
        for offset, (key, value) in enumerate(self.log):
            self._replay_markers(offset)
            self.coordinator.replay(
                key, value, offset=offset, producer_id=self.of_transactions.get(offset, NO_PRODUCER)
            )
        self._replay_markers(len(self.log))
        while_loading(self.coordinator)
        step = self.step()
        self.coordinator.loaded(step)
        self.done(step)

    def fail_over(self, found: int = 0) -> None:
        """The coordinator resigns; the next one finds the first ``found`` writes that were in flight in the log."""
        step = self.step()
        self.coordinator.resign(step)
        for write in self.in_flight:
            self.coordinator.refused(write, NotCoordinator(outcome="unknown"), step)
        for ticket, answer in step.answers:
            self.answers.setdefault(ticket, answer)
        for write in self.in_flight[:found]:
            self._append(write)
        self.take_over()

    def compact(self, kept: Iterable[int]) -> None:
        """Only the records at these places of the log stay; the coordinator is as before."""
        kept = sorted(kept)
        moved = {at: number for number, at in enumerate(kept)}
        self.markers = [(sum(at < end for at in kept), producer, commit) for end, producer, commit in self.markers]
        self.of_transactions = {moved[at]: each for at, each in self.of_transactions.items() if at in moved}
        self.log = [self.log[at] for at in kept]

    def _replay_markers(self, offset: int) -> None:
        for end, producer_id, is_commit in self.markers:
            if end == offset:
                self.coordinator.transaction_ended(producer_id, is_commit=is_commit)

    def end_transaction(self, producer_id: int, *, commit: bool = True) -> None:
        """Its marker is committed."""
        self.markers.append((len(self.log), producer_id, commit))
        self.coordinator.transaction_ended(producer_id, is_commit=commit)

    def step(self) -> Step:
        return Step(self.now, WALL_MS + int(self.now * 1000))

    def done(self, step: Step) -> None:
        """Carry a step out."""
        for ticket, answer in step.answers:
            self.answers.setdefault(ticket, answer)
        self.in_flight += step.writes
        if self.commits_at_once:
            self.commit_all()

    def commit_all(self) -> None:
        while self.in_flight:
            self.commit_one()

    def commit_one(self) -> None:
        write = self.in_flight.pop(0)
        self._append(write)
        step = self.step()
        self.coordinator.committed(write, step)
        self.done(step)

    def _append(self, write: Write) -> None:
        write.base_offset = len(self.log)
        if write.transaction is not None:
            places = range(len(self.log), len(self.log) + len(write.records))
            self.of_transactions.update(dict.fromkeys(places, write.transaction.producer_id))
        self.log += [self.coordinator.packed(record) for record in write.records]

    def refuse_one(self, error: ProtocolError) -> None:
        """Its first write is refused; with outcome *unknown* it stays in flight."""
        write = self.in_flight[0]
        if error.outcome != "unknown":
            self.in_flight.pop(0)
        step = self.step()
        self.coordinator.refused(write, error, step)
        self.done(step)

    def pass_time(self, seconds: float) -> None:
        """With every deadline on the way met in its moment."""
        until = self.now + seconds
        while self.coordinator.next_deadline() <= until:
            self.now = max(self.now, self.coordinator.next_deadline())
            step = self.step()
            self.coordinator.tick(step)
            self.done(step)
        self.now = until

    # ---- requests; each gives its ticket, or what was raised is raised ----

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        names: tuple[str, ...] = ("range",),
        topics: tuple[str, ...] = ("t",),
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        client: str = "c",
        software: str = "",
        owned: tuple[TopicPartition, ...] = (),
        knows_skip_assignment: bool = True,
    ) -> int:
        ticket = next(self.tickets)
        step = self.step()
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocols=protocols(*names, topics=topics, owned=owned),
            client_id=client,
            software=software,
            knows_skip_assignment=knows_skip_assignment,
        )
        self.coordinator.join(ticket, request, step)
        self.done(step)
        return ticket

    def join_new(self, **options) -> tuple[str, int]:
        """A dynamic newcomer's two requests: its id, and the ticket of the second."""
        member_id = self.answers[self.join(**options)].member_id
        return member_id, self.join(member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
    ) -> int:
        ticket = next(self.tickets)
        step = self.step()
        given = tuple(MemberAssignment(member_id=key, assignment=each) for key, each in (assignments or {}).items())
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=given,
        )
        self.coordinator.sync(ticket, request, step)
        self.done(step)
        return ticket

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None):
        step = self.step()
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        response = self.coordinator.heartbeat(request, step)
        self.done(step)
        return response

    def leave(self, *members: str, group: str = "g", instance: str | None = None):
        step = self.step()
        leaving = tuple(LeavingMember(member_id=each, group_instance_id=instance) for each in members)
        response = self.coordinator.leave(LeaveGroupRequest(group_id=group, members=leaving), step)
        self.done(step)
        return response

    def commit(
        self,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        group: str = "g",
        partition: int = 0,
        topic: str = "t",
        instance: str | None = None,
        metadata: str = "",
    ) -> int:
        ticket = next(self.tickets)
        step = self.step()
        request = OffsetCommitRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            partitions=(CommitPartition(topic=topic, partition=partition, offset=offset, metadata=metadata),),
        )
        self.coordinator.commit(ticket, request, step)
        self.done(step)
        return ticket

    def commit_in_transaction(
        self,
        offset: int,
        *,
        producer_id: int = 7,
        producer_epoch: int = 0,
        member_id: str = "",
        generation: int = -1,
        group: str = "g",
        partition: int = 0,
        topic: str = "t",
        instance: str | None = None,
    ) -> int:
        ticket = next(self.tickets)
        step = self.step()
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            partitions=(CommitPartition(topic=topic, partition=partition, offset=offset),),
        )
        self.coordinator.commit_in_transaction(ticket, request, step, None)
        self.done(step)
        return ticket

    def stable_code(self, *, group: str = "g", partition: int = 0, topic: str = "t") -> int:
        """The error of an OffsetFetch with ``require_stable``."""
        places = (PartitionName(topic=topic, partition=partition),)
        request = OffsetFetchRequest(group_id=group, partitions=places, require_stable=True)
        return self.coordinator.fetch_offsets(request).partitions[0].error_code

    def committed(self, *, group: str = "g", partition: int = 0, topic: str = "t") -> int:
        request = OffsetFetchRequest(group_id=group, partitions=(PartitionName(topic=topic, partition=partition),))
        return self.coordinator.fetch_offsets(request).partitions[0].offset

    def state(self, group: str = "g") -> str:
        return self.coordinator.describe(group).state

    def stable(self, count: int, **options) -> list[str]:
        """A stable group of so many dynamic members; one partition each. Gives their ids, the leader first."""
        members: list[str] = []
        tickets: dict[str, int] = {}
        for _ in range(count):
            member_id, ticket = self.join_new(**options)
            for each in members:
                tickets[each] = self.join(each, **options)
            members.append(member_id)
            tickets[member_id] = ticket
        self.pass_time(0)
        answer = self.answers[tickets[members[0]]]
        leader = answer.leader
        given = {each: assignment(index) for index, each in enumerate(members)}
        for each in members:
            self.sync(each, answer.generation_id, given if each == leader else None)
        return [leader, *(each for each in members if each != leader)]
