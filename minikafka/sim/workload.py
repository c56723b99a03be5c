"""Clients at work in a simulation: the production producer, and readers; all they are told goes into a history.

Three outcomes of a send: ok, failed (surely not written), unknown. A reader polls every partition of its topics over
and over, from its position on, as a consumer without a group does.

Rules for this file: a client is a machine of its own with its own ports; a send is recorded before it is handed to the
producer, its outcome when the future resolves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minikafka.broker.peer import call
from minikafka.check import Recorder, value_id
from minikafka.client.producer import Producer
from minikafka.client.settings import ProducerConfig
from minikafka.client.structs import RecordMetadata
from minikafka.errors import NOT_WRITTEN, ProtocolError, WorldError
from minikafka.ports import World
from minikafka.sim.plan import Operation
from minikafka.sim.world import SimWorld
from minikafka.types import Address, Offset, TopicPartition
from minikafka.wire.batch import split
from minikafka.wire.messages import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
)
from minikafka.wire.records import decode_batch

READ_PAUSE_S = 0.25
"""Between two rounds of a reader."""

CALL_S = 1.0


class SendingClient:
    """One producer and the sends that a plan has for it."""

    def __init__(
        self,
        sim: SimWorld,
        name: str,
        operations: Sequence[Operation],
        recorder: Recorder,
        *,
        bootstrap: str,
        settings: Mapping[str, Any],
        start_s: float,
    ) -> None:
        self.name = name
        self.unanswered = len(operations)
        self._operations = operations
        self._recorder = recorder
        self._start_s = start_s
        self._world = sim.of(name)
        self._config = ProducerConfig(bootstrap_servers=bootstrap, client_id=name, **settings)
        sim.spawn(name, self._run())

    async def _run(self) -> None:
        producer = await self._started()
        for number, operation in enumerate(self._operations):
            await asyncio.sleep(max(0.0, self._start_s + operation.at_s - self._world.clock.now()))
            value = f"{self.name}.{number}"
            op = self._recorder.send(self.name, operation.topic, value, partition=operation.partition)
            try:
                future = await producer.send(operation.topic, value.encode(), partition=operation.partition)
            except ProtocolError as error:
                self._failed(op, error)
            else:
                future.add_done_callback(self._on_outcome(op))

    async def _started(self) -> Producer:
        """A producer, as soon as any broker answers."""
        while True:
            producer = Producer(self._config, self._world)
            try:
                await producer.start()
            except ProtocolError:
                await asyncio.sleep(0.1)
            else:
                return producer

    def _on_outcome(self, op: int) -> Callable[[asyncio.Future[RecordMetadata]], None]:
        def on_outcome(future: asyncio.Future[RecordMetadata]) -> None:
            error = future.exception()
            if error is None:
                told = future.result()
                offset = told.offset if told.offset >= 0 else None
                self._recorder.acknowledged(op, partition=told.partition, offset=offset)
                self.unanswered -= 1
            elif isinstance(error, ProtocolError):
                self._failed(op, error)
            else:
                raise error

        return on_outcome

    def _failed(self, op: int, error: ProtocolError) -> None:
        self.unanswered -= 1
        if error.outcome == NOT_WRITTEN:
            self._recorder.failed(op, error.name)
        else:
            self._recorder.unknown(op, error.name)


class ReadingClient:
    """Reads whole partitions in order, again and again from where it stands."""

    def __init__(
        self,
        sim: SimWorld,
        name: str,
        partitions: Sequence[TopicPartition],
        recorder: Recorder,
        *,
        brokers: Sequence[Address],
    ) -> None:
        self.name = name
        self.positions: dict[TopicPartition, Offset] = dict.fromkeys(partitions, 0)
        self.watermarks: dict[TopicPartition, Offset] = dict.fromkeys(partitions, -1)
        """As the last answer about each gave it."""
        self._recorder = recorder
        self._brokers = list(brokers)
        self._world: World = sim.of(name)
        recorder.assign(name, list(partitions))
        sim.spawn(name, self._run())

    async def _run(self) -> None:
        while True:
            for broker, partitions in (await self._leaders()).items():
                await self._poll(broker, partitions)
            await asyncio.sleep(READ_PAUSE_S)

    async def _leaders(self) -> dict[Address, list[TopicPartition]]:
        """Who leads what, as one broker says; the next one is asked when it does not answer."""
        topics = tuple(sorted({name.topic for name in self.positions}))
        response = await self._ask(self._brokers[0], MetadataRequest(topics=topics))
        if not isinstance(response, MetadataResponse) or response.error_code:
            self._brokers.append(self._brokers.pop(0))
            return {}
        addresses = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        leaders: dict[Address, list[TopicPartition]] = {}
        for topic in response.topics:
            for partition in topic.partitions:
                name = TopicPartition(topic.name, partition.partition)
                if name in self.positions and partition.leader_id in addresses:
                    leaders.setdefault(addresses[partition.leader_id], []).append(name)
        return leaders

    async def _poll(self, broker: Address, partitions: Sequence[TopicPartition]) -> None:
        request = FetchRequest(
            max_wait_ms=0,
            partitions=tuple(
                FetchPartition(topic=name.topic, partition=name.partition, fetch_offset=self.positions[name])
                for name in partitions
            ),
        )
        response = await self._ask(broker, request)
        if isinstance(response, FetchResponse) and not response.error_code:
            for answer in response.partitions:
                if not answer.error_code and answer.diverging_epoch is None:
                    self._take(answer)

    def _take(self, answer: FetchedPartition) -> None:
        name = TopicPartition(answer.topic, answer.partition)
        position = self.positions[name]
        records = [
            (record.offset, value_id(record.value))
            for buffer in answer.records
            for batch in split(buffer)
            for record in decode_batch(batch)
            if record.offset >= position
        ]
        self.watermarks[name] = answer.high_watermark
        if not records:
            return
        self.positions[name] = records[-1][0] + 1
        self._recorder.poll(
            self.name,
            name.topic,
            name.partition,
            records,
            position_before=position,
            position_after=self.positions[name],
            high_watermark=answer.high_watermark,
        )

    async def _ask(self, peer: Address, request: object) -> object | None:
        try:
            answer: object = await call(self._world.network, peer, request, self._world.clock.now() + CALL_S)
        except (WorldError, ProtocolError):
            return None
        return answer
