"""A member of the consumer groups in a plan: the production consumer with an application that reads, works and commits.

Rules for this file: the application does what the documentation tells it to: it commits what it has processed and
owns, and ends when its consumer tells it that another process has its place. What it does with records goes into the
book and, as far as it reads them, into the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from minikafka import errors as kafka
from minikafka.check import Recorder, value_id
from minikafka.check.groups import GroupBook
from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import ConsumerRebalanceListener, ConsumerRecord
from minikafka.sim.cluster import SimCluster
from minikafka.sim.plan import AFTER, AUTO, CLASSIC, CYCLE, MIGRATING, PlannedGroup
from minikafka.sim.workload import READ_PAUSE_S, SUCCESSOR, started
from minikafka.types import Offset, TopicPartition

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
        except (kafka.FencedInstanceId, kafka.UnreleasedInstanceId):
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
        except kafka.CorruptMessage as error:
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
            except kafka.ProtocolError as error:
                if error.outcome == kafka.NOT_WRITTEN:
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
