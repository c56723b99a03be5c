"""One process that reads, transforms and writes in transactions: a transform job of docs/transactions.md.

It reads the ledger as a member of a group with ``read_committed``, writes an output for each input, and commits the
offsets in the same transaction. Outputs are inputs again until they have been transformed ``HOPS`` times, so that
processes read each other's records.

Rules for this file: after an error the transaction is aborted and the consumer goes back to what is committed; after
one that the producer cannot survive, and after a commit of unknown outcome, the process ends, and ``on_end`` lets
another one begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from minikafka.check.transactions import COMMITTED, Written
from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import ConsumerRecord
from minikafka.errors import ProtocolError
from minikafka.sim.cluster import SimCluster
from minikafka.sim.plan import Plan
from minikafka.sim.transactor import Transactor
from minikafka.sim.transactor_plans import LEDGER, LOOP_GROUP, LOOP_SETTINGS, OUTPUTS
from minikafka.sim.workload import POLL_MS, READ_PAUSE_S, started
from minikafka.types import Offset, TopicPartition

HOPS: Final = 2
"""How often a record is transformed."""

MARK: Final = "+"
"""Before the number of transformations, at the end of a value."""


def is_transformed(value: str) -> bool:
    """Return True if an input with this value becomes an output."""
    return hops_of(value) < HOPS


def hops_of(value: str) -> int:
    """How often a value has been transformed."""
    _, _, hops = value.partition(MARK)
    return int(hops or 0)


class Looper(Transactor):
    """One process of the group; ``is_ending``: it does not wait within transactions any more, and goes on."""

    def __init__(
        self,
        plan: Plan,
        cluster: SimCluster,
        places: Sequence[TopicPartition],
        *,
        on_end: Callable[[Looper], None],
        **names: Any,
    ) -> None:
        self.is_busy = False
        """A transaction is open, or its consumer has still to go back to what is committed."""
        self.consumer: Consumer | None = None
        self._on_end = on_end
        self._outputs = [name for name in places if name.topic == OUTPUTS]
        super().__init__(plan, cluster, places, **names)
        self._random = Random(f"{plan.seed}/looper/{self.process}")
        settings: dict[str, Any] = {name: plan.loops[self.transactional_id][name] for name in LOOP_SETTINGS}
        self._consumer_config = ConsumerConfig(
            bootstrap_servers=cluster.bootstrap,
            client_id=self.process,
            group_id=LOOP_GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            **settings,
        )

    def _settings(self) -> Mapping[str, int | str]:
        given = self._plan.loops[self.transactional_id]
        return {name: value for name, value in given.items() if name not in LOOP_SETTINGS}

    def position(self, name: TopicPartition) -> Offset:
        """Where it reads a partition; -1: it does not."""
        state = self.consumer._positions.states.get(name) if self.consumer is not None else None
        return -1 if state is None or state.position is None else state.position

    async def _run(self) -> None:
        producer = await self._started_producer()
        self.consumer = consumer = await started(self._subscribed)
        while await self._step(producer, consumer):
            pass
        await consumer.stop()
        await producer.stop()
        self.has_ended, self.is_busy = True, False
        self._on_end(self)

    def _subscribed(self) -> Consumer:
        consumer = Consumer(self._consumer_config, self._world)
        consumer.subscribe([LEDGER, OUTPUTS])
        return consumer

    async def _step(self, producer: Producer, consumer: Consumer) -> bool:
        """What one poll brings, transformed; False: this process can do nothing more."""
        try:
            taken = await consumer.getmany(timeout_ms=POLL_MS)
        except ProtocolError:
            # Where to begin could not be looked up in time: the next poll tries again.
            await asyncio.sleep(READ_PAUSE_S)
            return True
        if not taken:
            return True
        self.is_busy = True
        written = Written(self.process, self._world.clock.now())
        self.known.transactions.append(written)
        is_alive = await self._transform(producer, consumer, written, taken)
        if is_alive and written.outcome != COMMITTED:
            await self._go_back(consumer)
        self.is_busy = not is_alive
        return is_alive

    async def _transform(
        self,
        producer: Producer,
        consumer: Consumer,
        written: Written,
        taken: Mapping[TopicPartition, Sequence[ConsumerRecord]],
    ) -> bool:
        number = len(self.known.transactions)
        try:
            # Before anything is awaited: in another generation the records may be another member's.
            group = consumer.group_metadata()
        except ProtocolError:
            return True
        await producer.begin_transaction()
        try:
            for name, record in ((name, each) for name, records in taken.items() for each in records):
                written.inputs.append((name, record.offset))
                written.outputs.append(None)
                hops = hops_of((record.value or b"").decode()) + 1
                if hops > HOPS:
                    continue
                output = (
                    self._random.choice(self._outputs),
                    f"{self.process}.{number}.{len(written.inputs)}{MARK}{hops}",
                )
                written.outputs[-1] = output
                written.values.append(output)
                await self._send(producer, *output)
            if not self.is_ending and self._random.random() < 0.3:
                await asyncio.sleep(self._random.expovariate(5.0) * self._plan.pace)
            offsets: dict[TopicPartition, Any] = {name: records[-1].offset + 1 for name, records in taken.items()}
            await producer.send_offsets_to_transaction(offsets, group)
        except ProtocolError:
            return await self._abort(producer, written)
        return await self._commit(producer, written)

    async def _go_back(self, consumer: Consumer) -> None:
        """Read again what was not committed; partitions that went to another member meanwhile are its to read."""
        while True:
            try:
                await consumer.seek_to_committed()
            except ProtocolError:
                await asyncio.sleep(READ_PAUSE_S)
            else:
                return
