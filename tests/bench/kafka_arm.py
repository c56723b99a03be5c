"""Apache Kafka's side of a row: the same calls as ``arms.Ours``, on the same class of client."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from aiokafka.protocol.admin import CreateTopicsRequest_v3, DeleteTopicsRequest_v3
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.metadata import MetadataRequest_v4

from minikafka.types import Address
from tests.bench.arms import DEADLINE_S
from tests.bench.kafka_processes import Java, KafkaCluster
from tests.bench.kafka_wire import (
    TIMEOUT_MS,
    BrokerError,
    Connections,
    Lost,
    fetch_answer,
    fetch_request,
    produce_answer,
    produce_request,
    struct_request,
)
from tests.bench.loads import PARTITIONS

NOT_YET = frozenset({3, 5, 6, 19, 38})
"""Unknown topic, no leader, not the leader, too few in sync, too few brokers: nothing is written, ask again."""
POLL_S = 0.02


class Theirs:
    """A raw client of a running Kafka."""

    def __init__(self, running: KafkaCluster) -> None:
        self.running = running
        self.connections = Connections()
        self.leaders: dict[tuple[str, int], Address] = {}

    @property
    def pids(self) -> list[int]:
        return self.running.pids

    async def ask(self, request: RequestStruct) -> Any:
        """One of aiokafka's requests, to any broker that answers."""
        give_up = time.monotonic() + 2 * DEADLINE_S
        while time.monotonic() < give_up:
            for broker in self.running.brokers.values():
                if broker.is_running:
                    with contextlib.suppress(Lost, OSError):
                        answer = await self.connections.call(broker.address, struct_request(request))
                        return request.RESPONSE_TYPE.decode(bytes(answer[4:]))  # after the correlation id
            if not any(broker.is_running for broker in self.running.brokers.values()):
                next(iter(self.running.brokers.values())).check()
            await asyncio.sleep(POLL_S)
        raise RuntimeError("no Kafka answers")

    async def create(self, topic: str, replicas: int, partitions: int = PARTITIONS) -> None:
        """A new topic, and wait until every partition has a leader."""
        give_up = time.monotonic() + 2 * DEADLINE_S
        while True:
            request = CreateTopicsRequest_v3([(topic, partitions, replicas, [], [])], TIMEOUT_MS, False)
            [(_, code, said)] = (await self.ask(request)).topic_errors
            if not code:
                break
            if code not in NOT_YET or time.monotonic() > give_up:
                raise RuntimeError(f"{topic} is not created: error {code}, {said}")
            await asyncio.sleep(POLL_S)
        while not await self.find_leaders(topic, partitions):
            if time.monotonic() > give_up:
                raise RuntimeError(f"{topic} has no leaders")
            await asyncio.sleep(POLL_S)

    async def find_leaders(self, topic: str, partitions: int) -> bool:
        """Learn who leads; does every partition have a leader?"""
        answer = await self.ask(MetadataRequest_v4([topic], False))
        nodes = {node: Address(host, port) for node, host, port, _ in answer.brokers}
        [(code, _, _, parts)] = answer.topics
        found = {(topic, part): nodes[leader] for _, part, leader, _, _ in parts if leader in nodes}
        self.leaders.update(found)
        return not code and len(found) == partitions

    async def delete(self, topic: str) -> None:
        """Delete it and wait until its files are gone on every broker."""
        [(_, code)] = (await self.ask(DeleteTopicsRequest_v3([topic], TIMEOUT_MS))).topic_error_codes
        if code:
            raise BrokerError(code, "DeleteTopics")
        for _ in range(800):
            if not [found for each in self.running.brokers.values() for found in each.data.glob(f"{topic}-*")]:
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{topic} is still there")

    async def produce(self, topic: str, partition: int, batch: bytes, acks: int) -> None:
        request = produce_request(topic, partition, batch, acks)
        while True:
            try:
                produce_answer(await self.connections.call(self.leaders[topic, partition], *request))
            except BrokerError as error:
                if error.code not in NOT_YET:
                    raise
            else:
                return
            await asyncio.sleep(POLL_S)  # the broker learns a moment later than the controller that it leads

    async def produce_anyhow(self, topic: str, batch: bytes) -> None:
        """To partition 0, asking again who leads it until some broker has acknowledged: acks=all."""
        request = produce_request(topic, 0, batch, -1)
        while True:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    produce_answer(await self.connections.call(self.leaders[topic, 0], *request))
            except (BrokerError, Lost, OSError):
                await asyncio.sleep(POLL_S / 4)
                await self.find_leaders(topic, 1)
            else:
                return

    async def fetch(self, topic: str, partition: int, offset: int, size: int) -> int:
        request = fetch_request(topic, partition, offset, size)
        return len(fetch_answer(await self.connections.call(self.leaders[topic, partition], request)))

    async def leader_of(self, topic: str) -> int:
        """The node that leads partition 0."""
        await self.find_leaders(topic, 1)
        leader = self.leaders[topic, 0]
        return next(node for node, broker in self.running.brokers.items() if broker.address == leader)

    async def whole(self, topic: str, replicas: int) -> None:
        """Wait until every partition has so many replicas in sync."""
        for _ in range(1200):
            answer = await self.ask(MetadataRequest_v4([topic], False))
            if all(len(in_sync) == replicas for _, _, _, _, in_sync in answer.topics[0][3]):
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{topic} has not {replicas} replicas in sync")


@contextlib.asynccontextmanager
async def kafka(java: Java, brokers: int) -> AsyncIterator[Theirs]:
    """A Kafka cluster that has started, and its client."""
    async with KafkaCluster(java, brokers) as running:
        theirs = Theirs(running)
        try:
            yield theirs
        finally:
            theirs.connections.close()
