"""A topic that is created, sent to, deleted and created again under its name, by one client that does both.

What the last life must hold is written to the history at the end: its own records with their outcomes, and of former
lives only those whose outcome is unknown, for such a request may arrive late. Whatever else comes back from a former
life is a record that nobody sent.

Rules for this file: the client knows when a life begins and ends: it sends only between the answers to its creation and
its deletion request, and waits for every outcome before it deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from minikafka.check import Recorder
from minikafka.client.admin import AdminClient
from minikafka.client.producer import Producer
from minikafka.client.settings import AdminConfig, ProducerConfig
from minikafka.client.structs import NewTopic, RecordMetadata
from minikafka.errors import NOT_WRITTEN, ProtocolError, TopicAlreadyExists, UnknownTopicOrPartition
from minikafka.ports import World
from minikafka.sim.cluster import SimCluster
from minikafka.sim.plan import Fault, Plan
from minikafka.types import Offset

Client = TypeVar("Client", AdminClient, Producer)

RECORDS: Final = 6
"""Of each life."""

PAUSE_S: Final = 0.03
"""Between two of them."""

RETRY_S: Final = 0.2
"""Before what an administrator wants is tried again: fewer brokers may live than a topic needs."""


def admin_config(cluster: SimCluster) -> AdminConfig:
    """How administrators are set: they ask again within seconds."""
    return AdminConfig(bootstrap_servers=cluster.bootstrap, request_timeout_ms=2000, default_api_timeout_ms=6000)


@dataclass(slots=True)
class Sent:
    """One record and what became of it."""

    life: int
    value: str
    offset: Offset | None = None
    error: ProtocolError | None = None


class TopicLives:
    """The lives of one topic in one run."""

    def __init__(self, plan: Plan, cluster: SimCluster, machine: str, fault: Fault) -> None:
        self.topic = fault.target
        self.is_done = False
        self._machine = machine
        self._lives = int(fault.value)
        self._gap_s = fault.lasts_s
        self._sent: list[Sent] = []
        self._life = 0
        self._world: World = cluster.sim.of(machine)
        self._admin_config = admin_config(cluster)
        self._config = ProducerConfig(
            bootstrap_servers=cluster.bootstrap,
            client_id=machine,
            **plan.producer_settings,  # type: ignore[arg-type]
        )
        cluster.sim.spawn(machine, self._run())

    def missing(self) -> str:
        """What it has not done yet; empty: nothing."""
        return "" if self.is_done else f"{self._machine} is in life {self._life} of {self._lives} of {self.topic}"

    def tell(self, recorder: Recorder) -> None:
        """Write what the last life must, and may, hold into the history."""
        tell_lives(recorder, self._machine, self.topic, self._sent, last=self._lives)

    # ---- at work -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        admin = await self._started(lambda: AdminClient(self._admin_config, self._world))
        producer = await self._started(lambda: Producer(self._config, self._world))
        while self._life < self._lives:
            self._life += 1
            await self._again(lambda: self._create(admin))
            self._world.events("topic_life_began", topic=self.topic, life=self._life)
            await self._send(producer)
            if self._life < self._lives:
                await asyncio.sleep(self._gap_s)
                await self._again(lambda: self._delete(admin))
                self._world.events("topic_life_ended", topic=self.topic, life=self._life)
                await asyncio.sleep(self._gap_s)
        await producer.stop()
        await admin.close()
        self.is_done = True

    @staticmethod
    async def _started(make: Callable[[], Client]) -> Client:
        while True:
            client = make()
            try:
                await client.start()
            except ProtocolError:
                await asyncio.sleep(RETRY_S)
            else:
                return client

    async def _again(self, work: Callable[[], Awaitable[object]]) -> None:
        """Until it is done: an administrator does not give up."""
        while True:
            try:
                await work()
            except ProtocolError as error:
                self._world.events("topic_life_waits", topic=self.topic, life=self._life, error=error.name)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _create(self, admin: AdminClient) -> None:
        new = NewTopic(self.topic, num_partitions=1, replication_factor=3)
        try:
            await admin.create_topics([new], wait=False)
        except TopicAlreadyExists:
            return  # an attempt that seemed to fail

    async def _delete(self, admin: AdminClient) -> None:
        try:
            await admin.delete_topics([self.topic], wait=False)
        except UnknownTopicOrPartition:
            return  # an attempt that seemed to fail

    async def _send(self, producer: Producer) -> None:
        waiting: list[tuple[Sent, asyncio.Future[RecordMetadata]]] = []
        for number in range(RECORDS):
            sent = Sent(self._life, f"{self._machine}.{self._life}.{number}")
            self._sent.append(sent)
            try:
                waiting.append((sent, await producer.send(self.topic, sent.value.encode(), partition=0)))
            except ProtocolError as error:
                sent.error = error
            await asyncio.sleep(PAUSE_S)
        for sent, future in waiting:
            try:
                sent.offset = (await future).offset
            except ProtocolError as error:
                sent.error = error


def tell_lives(recorder: Recorder, process: str, topic: str, sent: Iterable[Sent], *, last: int) -> None:
    """The sends of the last life with their outcomes; of those before it the ones that nobody knows the outcome of."""
    for each in sent:
        is_unknown = each.error is not None and each.error.outcome != NOT_WRITTEN
        if each.life != last and not is_unknown:
            continue
        op = recorder.send(process, topic, each.value, partition=0)
        if each.life != last:
            continue
        if each.error is None:
            recorder.acknowledged(op, partition=0, offset=each.offset)
        elif is_unknown:
            recorder.unknown(op, each.error.name)
        else:
            recorder.failed(op, each.error.name)
