"""Clients at work in a simulation: the production producer and consumer, and readers of ours; all answers go
into a history.

Three outcomes of a send: ok, failed (surely not written), unknown; acks=0 is never more than unknown. A reader polls
every partition of its topics over and over, from its position on, as a consumer without a group does.

Rules for this file: a client is a machine of its own with its own ports; a send is recorded before it is handed to the
producer, its outcome when the future resolves. A client that dies leaves its sends without an outcome; who comes after
it on its machine is another process of the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from minikafka import errors as kafka
from minikafka.check import Recorder, value_id
from minikafka.client.admin import AdminClient
from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import ConsumerConfig, ProducerConfig
from minikafka.client.structs import RecordMetadata
from minikafka.ports import Buffer, World
from minikafka.rpc import call
from minikafka.sim.kafka_plans import TOMBSTONE
from minikafka.sim.plan import Operation
from minikafka.sim.world import SimWorld
from minikafka.types import Address, Offset, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.batch import RecordBatch, split, verify
from minikafka.wire.records import decode_batch

READ_PAUSE_S = 0.25
"""Between two rounds of a reader, at a pace of 1."""

READ_WAIT_MS = 500
"""How long a leader may keep a reader waiting that has read all there is: consumers wait for the watermark."""

CALL_S = 1.0

POLL_MS = 500
"""Of the production consumer."""

SUCCESSOR = "~"
"""``p1~2`` is the second process on the machine p1."""


Client = TypeVar("Client", AdminClient, Producer, Consumer)


async def started(make: Callable[[], Client], pause_s: float = 0.1) -> Client:
    """A client, as soon as any broker answers; each attempt is a new one of ``make``."""
    while True:
        client = make()
        try:
            await client.start()
        except kafka.ProtocolError:
            await asyncio.sleep(pause_s)
        else:
            return client


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
        """Of the process, in the history."""
        self.machine = name.partition(SUCCESSOR)[0]
        self.unanswered = len(operations)
        self.left = list(operations)
        """What has not been sent yet."""
        self._recorder = recorder
        self._start_s = start_s
        self._world = sim.of(self.machine)
        self._config = ProducerConfig(bootstrap_servers=bootstrap, client_id=self.machine, **settings)
        sim.spawn(self.machine, self._run())

    async def _run(self) -> None:
        producer = await started(lambda: Producer(self._config, self._world))
        number = 0
        while self.left:
            await asyncio.sleep(max(0.0, self._start_s + self.left[0].at_s - self._world.clock.now()))
            operation = self.left.pop(0)
            name = operation.key.removeprefix(TOMBSTONE)
            value = None if name != operation.key else f"{self.name}.{number}".encode()
            number += 1
            op = self._recorder.send(
                self.name, operation.topic, value_id(value), key=name or None, partition=operation.partition
            )
            key = name.encode() if name else None
            try:
                future = await producer.send(operation.topic, value, key=key, partition=operation.partition)
            except kafka.ProtocolError as error:
                self._failed(op, error)
            else:
                future.add_done_callback(self._on_outcome(op))

    def _on_outcome(self, op: int) -> Callable[[asyncio.Future[RecordMetadata]], None]:
        def on_outcome(future: asyncio.Future[RecordMetadata]) -> None:
            error = future.exception()
            if error is None and self._config.required_acks == 0:
                self._recorder.unknown(op, "acks=0")
                self.unanswered -= 1
            elif error is None:
                metadata = future.result()
                offset = metadata.offset if metadata.offset >= 0 else None
                self._recorder.acknowledged(op, partition=metadata.partition, offset=offset)
                self.unanswered -= 1
            elif isinstance(error, kafka.ProtocolError):
                self._failed(op, error)
            else:
                raise error

        return on_outcome

    def _failed(self, op: int, error: kafka.ProtocolError) -> None:
        self.unanswered -= 1
        if error.outcome == kafka.NOT_WRITTEN:
            self._recorder.failed(op, error.name)
        else:
            self._recorder.unknown(op, error.name)


class Reader:
    """Reads partitions in order, again and again from where it stands; that outlives it. What it reads is recorded."""

    def __init__(
        self,
        sim: SimWorld,
        name: str,
        partitions: Sequence[TopicPartition],
        recorder: Recorder,
        positions: Mapping[TopicPartition, Offset],
    ) -> None:
        self.name = name
        self.machine = name.partition(SUCCESSOR)[0]
        self.positions: dict[TopicPartition, Offset] = dict(positions)
        self._recorder = recorder
        self._world: World = sim.of(self.machine)
        recorder.assign(name, list(partitions))

    def _take(self, name: TopicPartition, buffers: Iterable[Buffer], high_watermark: Offset) -> list[RecordBatch]:
        """Record what a leader has sent, and go on behind it. Returns the batches; none: there was nothing to take."""
        position = self.positions[name]
        batches = [batch for buffer in buffers for batch in split(buffer)]
        try:
            records = [
                (record.offset, value_id(record.value))
                for batch in batches
                for record in decode_batch(verify(batch.data))
                if record.offset >= position
            ]
        except (kafka.CorruptMessage, kafka.InvalidRecord) as error:
            self._world.events("damage_refused_by_reader", partition=str(name), position=position, why=error.message)
            return []
        if batches:
            # Compaction may have left a batch fewer records than it spans, or none.
            self.positions[name] = max(position, batches[-1].next_offset)
            self._recorder.poll(
                self.name,
                name.topic,
                name.partition,
                records,
                position_before=position,
                position_after=self.positions[name],
                high_watermark=high_watermark,
            )
        return batches

    def _seek(self, name: TopicPartition, offset: Offset) -> None:
        self._world.events("reader_reset", partition=str(name), old=self.positions[name], new=offset)
        self.positions[name] = offset
        self._recorder.seek(self.name, name.topic, name.partition, offset)


class ReadingClient(Reader):
    """Reads whole partitions over ``/rpc``."""

    def __init__(
        self,
        sim: SimWorld,
        name: str,
        partitions: Sequence[TopicPartition],
        recorder: Recorder,
        *,
        brokers: Sequence[Address],
        positions: Mapping[TopicPartition, Offset] | None = None,
        pace: float = 1.0,
    ) -> None:
        super().__init__(sim, name, partitions, recorder, positions or dict.fromkeys(partitions, 0))
        self._brokers = list(brokers)
        self._pace = pace
        sim.spawn(self.machine, self._run())

    async def _run(self) -> None:
        leaders: dict[Address, list[TopicPartition]] = {}
        wait_ms = 0
        while True:
            if not leaders:
                leaders = await self._leaders()
            before = dict(self.positions)
            answers = [await self._poll(broker, partitions, wait_ms) for broker, partitions in leaders.items()]
            wait_ms = int(READ_WAIT_MS * self._pace) if self.positions == before else 0
            if sum(answers) < len(self.positions):
                leaders = {}
            await asyncio.sleep(READ_PAUSE_S * self._pace)

    async def _leaders(self) -> dict[Address, list[TopicPartition]]:
        """The leaders by the response of one broker; the next one is requested if it does not respond."""
        topics = tuple(sorted({name.topic for name in self.positions}))
        response = await self._ask(self._brokers[0], m.MetadataRequest(topics=topics))
        if not isinstance(response, m.MetadataResponse) or response.error_code:
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

    async def _poll(self, broker: Address, partitions: Sequence[TopicPartition], wait_ms: int) -> int:
        """Of how many partitions it said something."""
        request = m.FetchRequest(
            max_wait_ms=wait_ms,
            partitions=tuple(
                m.FetchPartition(topic=name.topic, partition=name.partition, fetch_offset=self.positions[name])
                for name in partitions
            ),
        )
        response = await self._ask(broker, request)
        if not isinstance(response, m.FetchResponse) or response.error_code:
            return 0
        heard = 0
        for answer in response.partitions:
            if answer.error_code == kafka.OffsetOutOfRange.code:
                self._reset(answer)
            elif not answer.error_code and answer.diverging_epoch is None:
                name = TopicPartition(answer.topic, answer.partition)
                self._take(name, answer.records, answer.high_watermark)
                heard += 1
        return heard

    def _reset(self, answer: m.FetchedPartition) -> None:
        """To what is still there: retention has passed this reader, by the leader's word (followers hear of
        it later); or a log was cut.
        """
        name = TopicPartition(answer.topic, answer.partition)
        position = self.positions[name]
        bounded = min(max(position, answer.log_start_offset), answer.log_end_offset)
        if answer.log_start_offset < 0 or bounded == position:
            return
        self._seek(name, bounded)

    async def _ask(self, peer: Address, request: object) -> object | None:
        try:
            answer: object = await call(
                self._world.network, peer, request, self._world.clock.now() + CALL_S * self._pace
            )
        except (kafka.WorldError, kafka.ProtocolError):
            return None
        return answer


class ConsumingClient(Reader):
    """The production consumer: what it hands out, in the order in which it does."""

    def __init__(
        self,
        sim: SimWorld,
        name: str,
        partitions: Sequence[TopicPartition],
        recorder: Recorder,
        *,
        bootstrap: str,
        settings: Mapping[str, Any],
        positions: Mapping[TopicPartition, Offset] | None = None,
    ) -> None:
        super().__init__(sim, name, partitions, recorder, positions or {})
        self._partitions = list(partitions)
        self._config = ConsumerConfig(
            bootstrap_servers=bootstrap, client_id=name, auto_offset_reset="earliest", **settings
        )
        sim.spawn(self.machine, self._run())

    async def _run(self) -> None:
        consumer = await started(lambda: Consumer(self._config, self._world))
        consumer.assign(self._partitions)
        for name, position in self.positions.items():
            consumer.seek(name, position)
        while True:
            try:
                taken = await consumer.getmany(timeout_ms=POLL_MS)
            except kafka.CorruptMessage as error:
                # What an application does: it stays in front of the damage, in case the next leader has it whole.
                self._world.events("damage_refused_by_consumer", why=error.message)
                await asyncio.sleep(READ_PAUSE_S)
                for name in self._partitions:
                    consumer.seek(name, self.positions.get(name, 0))
                continue
            for name, records in taken.items():
                self._note_reset(name, records[0].offset, consumer)
                self.positions[name] = records[-1].offset + 1
                self._recorder.poll(
                    self.name,
                    name.topic,
                    name.partition,
                    [(record.offset, value_id(record.value)) for record in records],
                    position_after=self.positions[name],
                )

    def _note_reset(self, name: TopicPartition, first: Offset, consumer: Consumer) -> None:
        """It went forward by itself, to the log start that the leader reported."""
        start = consumer._positions.states[name].log_start_offset or 0
        if self.positions.get(name, 0) < min(first, start):
            self._recorder.seek(self.name, name.topic, name.partition, min(first, start))
