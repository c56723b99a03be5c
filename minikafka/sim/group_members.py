"""Members of the consumer groups in a plan: of the classic protocol, and of the consumer protocol (KIP-848).

The classic one is the production consumer with an application that reads, works and commits. The other one is a small
driver of the protocol: one request at a time, in one task. Its work on a partition is to count: it commits the next
number after the one that it has found, so a second owner or a zombie shows as an offset that goes back.

Rules for this file: the application does what the documentation tells it to: it commits what it has processed and
owns, and ends when its consumer tells it that another process has its place. What it does with records goes into the
book and, as far as it reads them, into the history. The driver gives partitions up before it reports so, and forgets
all of them when the group has fenced it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from minikafka.check import Recorder, value_id
from minikafka.check.groups import GroupBook
from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import ConsumerRebalanceListener, ConsumerRecord
from minikafka.errors import (
    NOT_WRITTEN,
    CorruptMessage,
    FencedInstanceId,
    FencedMemberEpoch,
    ProtocolError,
    UnknownMemberId,
    UnreleasedInstanceId,
    WorldError,
)
from minikafka.groups.consumer.group import JOIN, LEAVE, LEAVE_STATIC
from minikafka.groups.consumer.heartbeat import flat, unflat
from minikafka.groups.consumer.records import TopicIdPartition
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.sim.group_plans import AFTER, AUTO, CLASSIC, CYCLE, MIGRATING, PlannedGroup
from minikafka.sim.workload import READ_PAUSE_S, SUCCESSOR, started
from minikafka.types import Address, Offset, TopicPartition
from minikafka.wire.group_messages import (
    CommitPartition,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from minikafka.wire.outcomes import error_in

POLL_MS = 1000
POLLS_PER_COMMIT = 3
"""Of the style ``after``."""

CLASSIC_SETTINGS: Final = frozenset({"session_timeout_ms", "heartbeat_interval_ms", "partition_assignment_strategy"})
"""With the consumer protocol the coordinator decides about these."""


class WorkloadMember(ConsumerRebalanceListener):
    """One process that belongs to a group."""

    def __init__(
        self,
        cluster: SimCluster,
        group: PlannedGroup,
        process: str,
        recorder: Recorder,
        book: GroupBook,
        *,
        instance: str | None,
        at_s: float,
        protocol: str = CLASSIC,
    ) -> None:
        self.process = process
        self.machine = process.partition(SUCCESSOR)[0]
        self.instance = instance
        self.protocol = protocol
        self.is_ending = False
        self.has_ended = False
        self.stalls_until = 0.0
        self.consumer: Consumer | None = None
        self._group = group
        self._recorder = recorder
        self._book = book
        self._begins_at = at_s
        self._reads_in = -1
        """The generation that gave it what it reads; one that it has only joined may never come into force."""
        self._next: dict[TopicPartition, Offset] = {}
        """Behind what it was handed last."""
        self._uncommitted: dict[TopicPartition, Offset] = {}
        """What it has processed and not yet committed, where it commits now and then."""
        self._owes = False
        """A commit has failed: the next poll brings another one."""
        self._polls = 0
        self._turn = asyncio.Lock()
        """One commit at a time, as in the consumer: the attempts of one must not count as those of the next."""
        self._world = cluster.sim.of(self.machine)
        settings = {
            name: value for name, value in group.settings.items() if protocol == CLASSIC or name not in CLASSIC_SETTINGS
        }
        self._config = ConsumerConfig(
            group_protocol="classic" if protocol == CLASSIC else "consumer",
            bootstrap_servers=cluster.bootstrap,
            client_id=process,
            group_id=group.name,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=group.style == AUTO,
            **settings,
        )
        cluster.sim.spawn(self.machine, self._run())

    @property
    def generation(self) -> int:
        """What it takes for the group's; -1: it is not in the group."""
        member = self.consumer._member if self.consumer is not None else None
        membership = member.membership() if member is not None else None
        return membership.generation if membership is not None else -1

    @property
    def owned(self) -> tuple[TopicPartition, ...]:
        """What it reads."""
        return tuple(sorted(self.consumer.assignment())) if self.consumer is not None else ()

    # ---- at work -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await asyncio.sleep(max(0.0, self._begins_at - self._world.clock.now()))
        self.consumer = consumer = await started(self._subscribed)
        try:
            while not self.is_ending:
                await self._poll(consumer)
        except (FencedInstanceId, UnreleasedInstanceId):
            self._world.events("crew_member_fenced", group=self._group.name, instance=self.instance)
        else:
            await self._commit(self._uncommitted)
        await consumer.stop()
        self.has_ended = True

    def _subscribed(self) -> Consumer:
        consumer = Consumer(self._config, self._world)
        consumer.subscribe([self._group.topic], listener=self)
        return consumer

    async def _poll(self, consumer: Consumer) -> None:
        try:
            taken = await consumer.getmany(timeout_ms=POLL_MS)
        except CorruptMessage as error:
            self._world.events("damage_refused_by_member", why=error.message)
            await asyncio.sleep(READ_PAUSE_S)
            for name in consumer.assignment():
                position = consumer._positions.states[name].position
                if position is not None:
                    consumer.seek(name, position)
            return
        for name, records in taken.items():
            self._handed(consumer, name, records)
        stalls_s = self.stalls_until - self._world.clock.now()
        if taken or stalls_s > 0:
            await asyncio.sleep(max(self._group.work_s, stalls_s))
        for name, records in taken.items():
            done = [(record.offset, value_id(record.value)) for record in records]
            self._book.processed(self._group.name, name, done)
        await self._worked(consumer, taken)

    def _handed(self, consumer: Consumer, name: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        start, first = consumer._positions.states[name].log_start_offset or 0, records[0].offset
        if self._next.get(name, first) < min(first, start):
            self._recorder.seek(self.process, name.topic, name.partition, min(first, start))
        self._next[name] = records[-1].offset + 1
        generation = self._reads_in if self.generation >= 0 else -1
        if generation < 0 or self._group.protocol != MIGRATING:
            # Where members migrate no number names one set of owners, since the epochs of members differ.
            self._book.handed(self._group.name, generation, self.instance or self.process, name)
        self._recorder.poll(
            self.process,
            name.topic,
            name.partition,
            [(record.offset, value_id(record.value)) for record in records],
            position_after=self._next[name],
        )

    async def _worked(self, consumer: Consumer, taken: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        if self._group.style == CYCLE and (taken or self._owes):
            await self._commit(None)
        elif self._group.style == AFTER:
            owned = consumer.assignment()
            self._uncommitted.update((name, records[-1].offset + 1) for name, records in taken.items() if name in owned)
            self._polls += 1
            if not taken or self._polls % POLLS_PER_COMMIT == 0:
                await self._commit(self._uncommitted)

    async def _commit(self, offsets: dict[TopicPartition, Offset] | None) -> None:
        """These, or (None) all positions. What is refused is another's to read again."""
        if self.consumer is None or (offsets is not None and not offsets):
            return
        self._owes = True
        consumer, given = self.consumer, None if offsets is None else dict(offsets)
        member_id = consumer._member.member_id if consumer._member is not None else ""
        async with self._turn:
            since = self._book.commits_sent(self._group.name)
            try:
                await consumer.commit(given)
            except ProtocolError as error:
                if error.outcome == NOT_WRITTEN:
                    self._book.commit_refused(self._group.name, member_id, since, given)
                facts = {"error": error.name, "outcome": error.outcome}
                self._world.events("crew_commit_failed", group=self._group.name, **facts)
                return
        self._owes = False
        if offsets is not None:
            offsets.clear()

    # ---- rebalances --------------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """What was processed of them is committed before they are another's."""
        await self._commit({name: offset for name, offset in self._uncommitted.items() if name in revoked})
        self._forget(revoked)

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        """Too late for that."""
        self._forget(lost)

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """Those that stay go on where they are."""
        self._reads_in = self.generation
        self._book.assigned(self._group.name, self.generation, self.process, assigned)
        self._recorder.assign(self.process, self.owned)
        for name in self.owned:
            if name not in assigned and name in self._next:
                self._recorder.seek(self.process, name.topic, name.partition, self._next[name])

    def _forget(self, names: Sequence[TopicPartition]) -> None:
        for name in names:
            self._next.pop(name, None)
            self._uncommitted.pop(name, None)


LEAVE_ATTEMPTS: Final = 5
"""A member that cannot reach its coordinator stops without it."""


class HeartbeatMember:
    """One process that belongs to a group."""

    def __init__(
        self, cluster: SimCluster, group: PlannedGroup, process: str, *, instance: str | None, at_s: float
    ) -> None:
        self.process = process
        self.machine = process.partition(SUCCESSOR)[0]
        self.instance = instance
        self.is_ending = False
        self.has_ended = False
        self.is_replaced = False
        """Another process is to have its instance id: it does not join again."""
        self.rests = False
        """It counts up from 0 only: where nothing is committed any more, a cluster comes to rest."""
        self.stalls_until = 0.0
        self.epoch = JOIN
        self._cluster = cluster
        self._group = group
        self._begins_at = at_s
        self._world = cluster.sim.of(self.machine)
        self._counts: dict[TopicIdPartition, Offset | None] = {}
        """What it owns, and the number that it has committed last; None: not known yet."""
        self._reports = True
        """The next heartbeat says everything."""
        self._coordinator: Address | None = None
        self._interval_s = group.settings["heartbeat_interval_ms"] / 1000
        """What the last response asked for; before the first one the plan's."""
        self._call_s = group.settings["request_timeout_ms"] / 1000
        cluster.sim.spawn(self.machine, self._run())

    @property
    def generation(self) -> int:
        """The epoch that it has reached; -1: it is not in the group."""
        return self.epoch or -1

    @property
    def owned(self) -> tuple[TopicPartition, ...]:
        """What it works on."""
        return tuple(sorted(self._name(each) for each in self._counts))

    def _name(self, partition: TopicIdPartition) -> TopicPartition:
        return TopicPartition(self._group.topic, partition.partition)

    # ---- the protocol ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await asyncio.sleep(max(0.0, self._begins_at - self._world.clock.now()))
        while not self.is_ending:
            if not await self._beat():
                break
            stalls_s = self.stalls_until - self._world.clock.now()
            await self._work()
            await asyncio.sleep(max(self._interval_s, stalls_s))
        else:
            await self._leave()
        self.has_ended = True

    async def _beat(self) -> bool:
        """One heartbeat, and what its answer asks for; False: another process has its instance id."""
        is_full = self._reports or self.epoch == JOIN
        owned = self._counts if self.epoch != JOIN else ()
        answer = await self._asked(
            ConsumerGroupHeartbeatRequest(
                group_id=self._group.name,
                member_id=self.process,
                member_epoch=self.epoch,
                instance_id=self.instance,
                rebalance_timeout_ms=self._group.settings["rebalance_timeout_ms"] if is_full else -1,
                subscribed_topic_names=(self._group.topic,) if is_full else None,
                topic_partitions=flat(owned) if is_full else None,
                client_id=self.process,
            )
        )
        self._reports = not isinstance(answer, ConsumerGroupHeartbeatResponse)
        if not isinstance(answer, ConsumerGroupHeartbeatResponse):
            return True
        error = error_in(answer)
        if isinstance(error, FencedInstanceId):
            self._counts.clear()
            return False
        if isinstance(error, (FencedMemberEpoch, UnknownMemberId)):
            # Whatever it owned is another member's by now.
            self.epoch = JOIN
            self._counts.clear()
            return not self.is_replaced
        if error is not None:
            self._reports = True
            if not isinstance(error, UnreleasedInstanceId):
                self._coordinator = None
            return True
        self.epoch = answer.member_epoch
        self._interval_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            await self._reconcile(unflat(answer.assignment))
        return True

    async def _reconcile(self, assigned: frozenset[TopicIdPartition]) -> None:
        """Give up what is assigned no more, and begin with what is new; the next heartbeat says so."""
        if assigned == self._counts.keys():
            return
        if not self._counts.keys() <= assigned:
            await asyncio.sleep(self._group.work_s)
        self._counts = {each: self._counts.get(each) for each in sorted(assigned)}
        self._reports = True

    async def _leave(self) -> None:
        """A static member keeps its partitions for its next process."""
        self._counts.clear()
        for _ in range(LEAVE_ATTEMPTS if self.epoch != JOIN else 0):
            answer = await self._asked(
                ConsumerGroupHeartbeatRequest(
                    group_id=self._group.name,
                    member_id=self.process,
                    member_epoch=LEAVE if self.instance is None else LEAVE_STATIC,
                    instance_id=self.instance,
                )
            )
            if answer is not None and isinstance(error_in(answer), (type(None), UnknownMemberId, FencedInstanceId)):
                return
            await asyncio.sleep(self._call_s / 4)

    # ---- its work ----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        unknown = [self._name(each) for each, count in self._counts.items() if count is None]
        if unknown:
            await self._look_up(unknown)
        known = {
            each: count + 1
            for each, count in self._counts.items()
            if count is not None and not (self.rests and count > 0)
        }
        if not known:
            return
        answer = await self._asked(
            OffsetCommitRequest(
                group_id=self._group.name,
                generation_id=self.epoch,
                member_id=self.process,
                group_instance_id=self.instance,
                partitions=tuple(
                    CommitPartition(topic=self._group.topic, partition=each.partition, offset=count)
                    for each, count in known.items()
                ),
            )
        )
        # Without an answer the same numbers are committed once more: a late copy then changes nothing.
        if isinstance(answer, OffsetCommitResponse) and not answer.error_code:
            done = {each.partition for each in answer.partitions if not each.error_code}
            self._counts.update((each, count) for each, count in known.items() if each.partition in done)

    async def _look_up(self, unknown: list[TopicPartition]) -> None:
        places = tuple(GroupPartition(topic=each.topic, partition=each.partition) for each in unknown)
        answer = await self._asked(
            OffsetFetchRequest(
                group_id=self._group.name,
                partitions=places,
                require_stable=True,
                member_id=self.process,
                member_epoch=self.epoch,
            )
        )
        if not isinstance(answer, OffsetFetchResponse) or answer.error_code:
            return
        found = {each.partition: max(0, each.offset) for each in answer.partitions if not each.error_code}
        for each, count in self._counts.items():
            if count is None:
                self._counts[each] = found.get(each.partition)

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def _asked(self, request: Any) -> Any:
        """One attempt at the coordinator; None: no answer."""
        try:
            if self._coordinator is None:
                self._coordinator = await self._found()
            if self._coordinator is None:
                return None
            deadline = self._world.clock.now() + self._call_s
            return await call(self._world.network, self._coordinator, request, deadline)
        except WorldError:
            self._coordinator = None
            return None

    async def _found(self) -> Address | None:
        request = FindCoordinatorRequest(keys=(self._group.name,))
        for node in self._cluster.nodes:
            deadline = self._world.clock.now() + self._call_s / 4
            try:
                answer: FindCoordinatorResponse = await call(
                    self._world.network, self._cluster.address_of(node), request, deadline
                )
            except WorldError:
                continue
            found = answer.coordinators[0] if answer.coordinators else None
            if found is not None and not found.error_code:
                return Address(found.host, found.port)
        return None
