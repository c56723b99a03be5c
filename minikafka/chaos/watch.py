"""What a run knows of its cluster: leaders, ISR and high watermarks, asked for several times a second.

Rules for this file: it only asks; a broker that does not answer is simply not heard of. Of several answers the newest
counts, by epoch: a broker that is cut off tells old things.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minikafka.errors import ProtocolError
from minikafka.types import NO_NODE, NO_OFFSET, Address, Epoch, NodeId, Offset, TopicPartition
from minikafka.wire import messages as m
from minikafka.world.clients import Asker

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
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster at one time; ``at`` in seconds of the loop's clock, when the questions were asked."""

    at: float = 0.0
    controller: NodeId = NO_NODE
    partitions: tuple[PartitionState, ...] = ()
    marks: tuple[tuple[NodeId, TopicPartition, Offset, Offset], ...] = ()
    """(node, partition, high watermark, log end) of every replica that was heard of."""

    def led_by(self, node: NodeId) -> tuple[int, ...]:
        return tuple(each.partition for each in self.partitions if each.leader == node)

    @property
    def all_in_sync(self) -> bool:
        """Return True if every partition has a leader and all of its replicas in the ISR."""
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
    """Keeps ``state`` fresh while :meth:`run` runs. ``addresses`` tells, whenever asked, those of brokers that run."""

    def __init__(self, asker: Asker, addresses: Callable[[], Mapping[NodeId, Address]], *topics: str) -> None:
        self.state = ClusterState()
        self._asker = asker
        self._addresses = addresses
        self._topics = topics
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
        requests = (
            m.DescribeTopicsRequest(topics=self._topics),
            m.DescribeQuorumRequest(),
            m.DescribeReplicasRequest(topics=self._topics),
        )
        asked = [self._heard(address, each) for address in self._addresses().values() for each in requests]
        answers = await asyncio.gather(*asked)
        held = [each for each in answers if isinstance(each, m.DescribeReplicasResponse)]
        quorums = [each for each in answers if isinstance(each, m.DescribeQuorumResponse)]
        topics = _newest([each for each in answers if isinstance(each, m.DescribeTopicsResponse)])
        if topics or not self.state.partitions:
            newest = max(quorums, key=lambda each: (each.leader_epoch, each.leader_id), default=None)
            self.state = ClusterState(
                at=at,
                controller=NO_NODE if newest is None else newest.leader_id,
                partitions=tuple(_partition(topic, each, held) for topic, each in topics),
                marks=tuple(
                    (
                        answer.broker_id,
                        TopicPartition(each.topic, each.partition),
                        each.high_watermark,
                        each.log_end_offset,
                    )
                    for answer in held
                    for each in answer.replicas
                ),
            )
            self._moved.set()

    async def _heard(self, address: Address, request: object) -> Any:
        """The answer; None when there is none."""
        try:
            return await self._asker.ask(address, request, PATIENCE_S)
        except ProtocolError:
            return None  # it was killed, or has not joined yet


def _newest(answers: list[m.DescribeTopicsResponse]) -> list[tuple[str, m.DescribedPartition]]:
    """Each partition as the newest of the answers has it, in the order of topics and numbers."""
    found: dict[TopicPartition, m.DescribedPartition] = {}
    for answer in answers:
        for topic in answer.topics:
            for each in topic.partitions:
                name = TopicPartition(topic.topic, each.partition)
                known = found.get(name)
                if known is None or _age(each) > _age(known):
                    found[name] = each
    return [(name.topic, each) for name, each in sorted(found.items())]


def _age(described: m.DescribedPartition) -> tuple[Epoch, int]:
    return described.leader_epoch, described.partition_epoch


def _partition(topic: str, described: m.DescribedPartition, held: list[m.DescribeReplicasResponse]) -> PartitionState:
    mark = NO_OFFSET
    for answer in held:
        for each in answer.replicas:
            is_this = (each.topic, each.partition) == (topic, described.partition)
            if is_this and answer.broker_id == described.leader:
                mark = each.high_watermark
    return PartitionState(
        partition=described.partition,
        leader=described.leader,
        leader_epoch=described.leader_epoch,
        replicas=described.replicas,
        isr=described.isr,
        high_watermark=mark,
        topic=topic,
    )
