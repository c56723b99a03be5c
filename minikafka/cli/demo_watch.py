"""What the demo knows of its cluster: leaders, ISR and high watermarks, asked for several times a second.

Rules for this file: it only asks; a broker that does not answer is simply not heard of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minikafka.cli.asking import Asker
from minikafka.errors import ProtocolError
from minikafka.types import NO_NODE, NO_OFFSET, Address, Epoch, NodeId, Offset
from minikafka.wire.messages import (
    DescribedPartition,
    DescribeQuorumRequest,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    DescribeTopicsRequest,
)
from minikafka.world.processes import ProcessCluster

INTERVAL_S = 0.15
PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition, as the metadata and its leader tell."""

    partition: int
    leader: NodeId
    leader_epoch: Epoch
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    high_watermark: Offset = NO_OFFSET


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster at one time; ``at`` in seconds of the loop's clock, when the questions were asked."""

    at: float = 0.0
    controller: NodeId = NO_NODE
    partitions: tuple[PartitionState, ...] = ()
    marks: tuple[tuple[NodeId, int, Offset, Offset], ...] = ()
    """(node, partition, high watermark, log end) of every replica that was heard of."""

    def led_by(self, node: NodeId) -> tuple[int, ...]:
        return tuple(each.partition for each in self.partitions if each.leader == node)

    @property
    def all_in_sync(self) -> bool:
        """Does every partition have a leader and all of its replicas in the ISR?"""
        return bool(self.partitions) and all(
            each.leader != NO_NODE and sorted(each.isr) == sorted(each.replicas) for each in self.partitions
        )

    @property
    def settled(self) -> bool:
        """In sync, and every replica knows that all of its log is committed."""
        heard = len(self.marks) == sum(len(each.replicas) for each in self.partitions)
        ends = {(partition, mark) for _, partition, *marks in self.marks for mark in marks}
        return self.all_in_sync and heard and len(ends) == len(self.partitions)


class Watch:
    """Keeps ``state`` fresh while :meth:`run` runs."""

    def __init__(self, asker: Asker, cluster: ProcessCluster, topic: str) -> None:
        self.state = ClusterState()
        self._asker = asker
        self._cluster = cluster
        self._topic = topic
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Ask again and again."""
        while True:
            await self.refresh()
            await asyncio.sleep(INTERVAL_S)

    async def until(self, condition: Callable[[ClusterState], bool], timeout_s: float) -> float | None:
        """The time at which ``condition`` was first seen to hold; None after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(self.state):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return None
        return self.state.at

    async def refresh(self) -> None:
        """One round of questions to the brokers that run."""
        at = asyncio.get_running_loop().time()
        running = [broker.files for broker in self._cluster.brokers.values() if broker.is_running]
        topic = DescribeTopicsRequest(topics=(self._topic,))
        replicas = DescribeReplicasRequest(topics=(self._topic,))
        described, quorum, *held = await asyncio.gather(
            self._heard(*((files.address, topic) for files in running)),
            self._heard(*((files.address, DescribeQuorumRequest()) for files in running)),
            *(self._heard((files.address, replicas)) for files in running),
        )
        heard = [answer for answer in held if answer is not None]
        told = described.topics[0].partitions if described is not None and described.topics else ()
        if told or not self.state.partitions:
            self.state = ClusterState(
                at=at,
                controller=NO_NODE if quorum is None else quorum.leader_id,
                partitions=tuple(_partition(each, heard) for each in told),
                marks=tuple(
                    (answer.broker_id, each.partition, each.high_watermark, each.log_end_offset)
                    for answer in heard
                    for each in answer.replicas
                ),
            )
            self._moved.set()

    async def _heard(self, *questions: tuple[Address, object]) -> Any:
        """The first answer, asking one after the other; None when nobody answers."""
        for address, request in questions:
            try:
                return await self._asker.ask(address, request, PATIENCE_S)
            except ProtocolError:
                continue  # it was killed, or has not joined yet
        return None


def _partition(described: DescribedPartition, heard: list[DescribeReplicasResponse]) -> PartitionState:
    mark = NO_OFFSET
    for answer in heard:
        for each in answer.replicas:
            if each.partition == described.partition and answer.broker_id == described.leader:
                mark = each.high_watermark
    return PartitionState(
        partition=described.partition,
        leader=described.leader,
        leader_epoch=described.leader_epoch,
        replicas=described.replicas,
        isr=described.isr,
        high_watermark=mark,
    )
