"""Sends the markers of ended transactions to the leaders of their partitions.

- Markers of all coordinators of this broker go out together, one request for each leader and turn. Several requests may
  be under way to one leader: a partition below its minimum of in-sync replicas must not hold back the others.
- The session with the controller is checked before each send: a broker that may have been replaced as coordinator sends
  nothing. The leaders' check of the coordinator epoch is the second line.
- An answer that comes after the coordinator has lost its partition is dropped; its successor sends the markers again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.broker.verification import AskBroker
from minikafka.errors import ProtocolError, WorldError
from minikafka.ports import World
from minikafka.quorum.image import MetadataImage
from minikafka.tasks import Flag
from minikafka.transactions.coordinator import TransactionCoordinator
from minikafka.transactions.markers import MarkerId, is_commit
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.messages import PartitionName
from minikafka.wire.transaction_messages import TransactionMarker, WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from minikafka.broker.flusher import Spawn

ANSWER_WAIT_S = 40.0
"""A leader answers within 30 s, whatever its followers do."""

MARKERS_MAX = 1_000
"""In one request."""

ANSWER_TURNS = 4
"""Turns of the loop that the response to EndTxn takes at most, where tasks await it: the general HTTP server, quotas,
faults. Markers are sent after that. They take longer, and the client would wait for them.
"""

PAUSE_S = 0.1
"""Without a session with the controller, between two looks for one."""


class _Item(NamedTuple):
    """A marker that is under way."""

    shard: CoordinatorShard[TransactionCoordinator]
    marker: MarkerId


class MarkerSender:
    """The one sender of a broker."""

    def __init__(
        self,
        node_id: NodeId,
        world: World,
        *,
        shards: Callable[[], Iterable[CoordinatorShard[TransactionCoordinator]]],
        image: Callable[[], MetadataImage],
        session_alive: Callable[[], bool],
        broker_epoch: Callable[[], int],
        ask_broker: AskBroker,
        spawn: Spawn,
    ) -> None:
        self._node_id = node_id
        self._world = world
        self._shards = shards
        self._image = image
        self._session_alive = session_alive
        self._broker_epoch = broker_epoch
        self._ask_broker = ask_broker
        self._spawn = spawn
        self._woken = Flag()
        self._is_running = False

    def wake(self, shard: CoordinatorShard[TransactionCoordinator]) -> None:
        """The coordinator of a shard has made a step; markers may be due."""
        if shard.coordinator.markers.next_at == math.inf or not shard.is_answering:
            return
        self._woken.set()
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run(), "transaction markers")

    def _next_at(self) -> float:
        answering = (each for each in self._shards() if each.is_answering)
        return min((each.coordinator.markers.next_at for each in answering), default=math.inf)

    async def _run(self) -> None:
        """Send what is due until nothing is owed but what is under way."""
        while (due := self._next_at()) < math.inf:
            now = self._world.clock.now()
            self._woken.clear()
            if due > now:
                await self._woken.wait(due)
                continue
            for _ in range(ANSWER_TURNS):
                await asyncio.sleep(0)
            if self._session_alive():
                self._send_due()
            else:
                await asyncio.sleep(PAUSE_S)
        self._is_running = False

    def _send_due(self) -> None:
        by_leader: dict[NodeId, list[_Item]] = {}
        for shard in self._shards():
            if shard.is_answering and shard.coordinator.markers.next_at <= self._world.clock.now():
                with shard.step() as step:
                    taken = shard.coordinator.take_markers(step, self._leader_of)
                for leader, markers in taken.items():
                    by_leader.setdefault(leader, []).extend(_Item(shard, each) for each in markers)
        for leader, items in sorted(by_leader.items()):
            left = iter(items)
            while some := list(islice(left, MARKERS_MAX)):
                self._spawn(self._send(leader, some), f"transaction markers to broker {leader}")

    def _leader_of(self, name: TopicPartition) -> NodeId | None:
        """The live leader; None: there is no such partition.

        This broker's metadata cannot be older than the partition: it was there when the coordinator's record was
        committed, so before this broker was elected to coordinate.
        """
        image = self._image()
        partition = image.partition(name)
        if partition is None:
            return None
        return partition.leader if image.alive(partition.leader) else NO_NODE

    async def _send(self, leader: NodeId, items: list[_Item]) -> None:
        markers, order = _grouped(items)
        request = WriteTxnMarkersRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), markers=tuple(markers)
        )
        codes: list[int | None] = [None] * len(order)
        try:
            response: WriteTxnMarkersResponse = await self._ask_broker(leader, request, ANSWER_WAIT_S)
        except (WorldError, ProtocolError) as error:
            self._report(leader, f"{type(error).__name__}: {error}", len(order))
        else:
            if response.error_code:
                self._report(leader, response.error_message, len(order))
            else:
                codes = [each.error_code for each in response.markers]
        by_shard: dict[CoordinatorShard[TransactionCoordinator], list[tuple[MarkerId, int | None]]] = {}
        for item, code in zip(order, codes, strict=True):
            by_shard.setdefault(item.shard, []).append((item.marker, code))
        for shard, answers in by_shard.items():
            if shard.is_answering:
                with shard.step() as step:
                    shard.coordinator.markers_answered(answers, step)

    def _report(self, leader: NodeId, why: str, count: int) -> None:
        self._world.events("markers_not_sent", node=self._node_id, to=leader, markers=count, why=why)


def _grouped(items: list[_Item]) -> tuple[list[TransactionMarker], list[_Item]]:
    """One marker for each transaction, with all of its partitions; and the items in that order."""
    by_transaction: dict[tuple[CoordinatorShard[TransactionCoordinator], str], list[_Item]] = {}
    for item in items:
        by_transaction.setdefault((item.shard, item.marker.transactional_id), []).append(item)
    markers = []
    for (shard, _), group in by_transaction.items():
        value = shard.coordinator.markers.value_of(group[0].marker)
        markers.append(
            TransactionMarker(
                producer_id=value.producer_id,
                producer_epoch=value.producer_epoch,
                committed=is_commit(value),
                coordinator_epoch=shard.leader.epoch,
                transaction_version=value.client_version,
                number=shard.coordinator.markers.number_of(group[0].marker),
                partitions=PartitionName.each(each.marker.partition for each in group),
            )
        )
    return markers, [item for group in by_transaction.values() for item in group]
