"""A member of the consumer protocol (KIP-848): a small driver of the protocol, one request at a time, in one task.

Its work on a partition is to count: it commits the next number after the one that it has found, so a second owner or a
zombie shows as an offset that goes back.

Rules for this file: the driver gives partitions up before it reports so, and forgets all of them when the group has
fenced it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from minikafka import errors as kafka
from minikafka.groups.consumer.group import JOIN, LEAVE, LEAVE_STATIC
from minikafka.groups.consumer.heartbeat import flat, unflat
from minikafka.groups.consumer.records import TopicIdPartition
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.sim.plan import PlannedGroup
from minikafka.sim.workload import SUCCESSOR
from minikafka.types import Address, Offset, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.messages import PartitionName
from minikafka.wire.outcomes import error_in

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
            g.ConsumerGroupHeartbeatRequest(
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
        self._reports = not isinstance(answer, g.ConsumerGroupHeartbeatResponse)
        if not isinstance(answer, g.ConsumerGroupHeartbeatResponse):
            return True
        error = error_in(answer)
        if isinstance(error, kafka.FencedInstanceId):
            self._counts.clear()
            return False
        if isinstance(error, (kafka.FencedMemberEpoch, kafka.UnknownMemberId)):
            # Whatever it owned is another member's by now.
            self.epoch = JOIN
            self._counts.clear()
            return not self.is_replaced
        if error is not None:
            self._reports = True
            if not isinstance(error, kafka.UnreleasedInstanceId):
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
                g.ConsumerGroupHeartbeatRequest(
                    group_id=self._group.name,
                    member_id=self.process,
                    member_epoch=LEAVE if self.instance is None else LEAVE_STATIC,
                    instance_id=self.instance,
                )
            )
            if answer is not None and isinstance(
                error_in(answer), (type(None), kafka.UnknownMemberId, kafka.FencedInstanceId)
            ):
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
            g.OffsetCommitRequest(
                group_id=self._group.name,
                generation_id=self.epoch,
                member_id=self.process,
                group_instance_id=self.instance,
                partitions=tuple(
                    g.CommitPartition(topic=self._group.topic, partition=each.partition, offset=count)
                    for each, count in known.items()
                ),
            )
        )
        # Without an answer the same numbers are committed once more: a late copy then changes nothing.
        if isinstance(answer, g.OffsetCommitResponse) and not answer.error_code:
            done = {each.partition for each in answer.partitions if not each.error_code}
            self._counts.update((each, count) for each, count in known.items() if each.partition in done)

    async def _look_up(self, unknown: list[TopicPartition]) -> None:
        places = PartitionName.each(unknown)
        answer = await self._asked(
            g.OffsetFetchRequest(
                group_id=self._group.name,
                partitions=places,
                require_stable=True,
                member_id=self.process,
                member_epoch=self.epoch,
            )
        )
        if not isinstance(answer, g.OffsetFetchResponse) or answer.error_code:
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
        except kafka.WorldError:
            self._coordinator = None
            return None

    async def _found(self) -> Address | None:
        request = g.FindCoordinatorRequest(keys=(self._group.name,))
        for node in self._cluster.nodes:
            deadline = self._world.clock.now() + self._call_s / 4
            try:
                answer: g.FindCoordinatorResponse = await call(
                    self._world.network, self._cluster.address_of(node), request, deadline
                )
            except kafka.WorldError:
                continue
            found = answer.coordinators[0] if answer.coordinators else None
            if found is not None and not found.error_code:
                return Address(found.host, found.port)
        return None
