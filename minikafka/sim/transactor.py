"""One process with a transactional id, and the reader that sees what such processes have committed (KIP-98).

Rule for this file: the application does what the documentation says: it aborts what failed, repeats a commit of unknown
outcome, and ends when another process has fenced it. ``known`` is what it knows of its transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from minikafka.check.transactions import ABORTED, COMMITTED, Process, Read, Written
from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import ConsumerConfig, ProducerConfig
from minikafka.errors import (
    UNKNOWN,
    ConcurrentTransactions,
    ProtocolError,
    RequestTimedOut,
    TransactionAbortable,
)
from minikafka.sim.cluster import SimCluster
from minikafka.sim.network import SimNetwork
from minikafka.sim.plan import Plan
from minikafka.sim.transactor_plans import HOLD_MS
from minikafka.sim.verdicts import Message
from minikafka.sim.workload import POLL_MS, started
from minikafka.types import Offset, TopicPartition
from minikafka.wire.codec import decode_response

COMMITS_MAX: Final = 6
"""How often a commit of unknown outcome is repeated before the process gives up."""

END_TXN: Final = "EndTxn"

PAUSE_S: Final = 0.2
"""Mean time between two transactions at pace 1."""

PAUSE_BEFORE_LOOPS_S: Final = 0.6
"""The same in plans with loops, each of which makes several transactions of one."""


class RefusedCopies:
    """EndTxn requests that arrived twice, and whose caller received the refusal of one copy.

    The other copy may have committed, and its response may be lost: what is said of the fenced one is true of it, and
    no coordinator knows which of its responses is received. TCP doubles nothing (docs/limits.md).
    CONCURRENT_TRANSACTIONS is no such refusal: its outcome says whether another copy is under way.
    """

    def __init__(self, network: SimNetwork) -> None:
        self._doubled = network.doubled
        self._refused: set[int] = set()
        """Calls, by number."""

    def on_answered(self, message: Message) -> None:
        """Note a response that its caller has received."""
        if message.api == END_TXN and _error_of_end(message) not in (0, ConcurrentTransactions.code):
            self._refused.add(message.call)

    @property
    def count(self) -> int:
        """How many requests have arrived twice."""
        return len(self._doubled)

    def of(self, machine: str, count: int) -> bool:
        """Return True if a machine has received such a refusal since ``count`` requests had arrived twice."""
        return any(each.source == machine and each.call in self._refused for each in self._doubled[count:])


def _error_of_end(message: Message) -> int:
    return int(decode_response(END_TXN, message.body).error_code)


class Transactor:
    """One process: it begins transactions until it must end, or is fenced by another process."""

    def __init__(
        self,
        plan: Plan,
        cluster: SimCluster,
        places: Sequence[TopicPartition],
        *,
        machine: str,
        process: str,
        transactional_id: str,
        copies: RefusedCopies,
    ) -> None:
        self.machine = machine
        self.process = process
        self.transactional_id = transactional_id
        self.known = Process(process, transactional_id)
        """What it will have to answer for."""
        self.is_ending = False
        self.has_ended = False
        self.died_of: ProtocolError | None = None
        """Why it could do nothing more."""
        self._copies = copies
        self._plan = plan
        self._places = places
        self._random = Random(f"{plan.seed}/transactor/{process}")
        self._world = cluster.sim.of(machine)
        self.begun_s = self._world.clock.now()
        settings: dict[str, Any] = {**plan.client_settings, **self._settings()}
        self._hold_s = settings.pop(HOLD_MS, 0) / 1000
        self._config = ProducerConfig(
            bootstrap_servers=cluster.bootstrap, client_id=process, transactional_id=transactional_id, **settings
        )
        self._pause_s = (PAUSE_BEFORE_LOOPS_S if plan.loops else PAUSE_S) * plan.pace
        cluster.sim.spawn(machine, self._run())

    def _settings(self) -> Mapping[str, int | str]:
        return self._plan.transactors[self.transactional_id]

    async def _run(self) -> None:
        producer = await self._started_producer()
        try:
            while not self.is_ending and await self._transaction(producer):
                await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
        finally:
            self.has_ended = True
        await producer.stop()

    async def _started_producer(self) -> Producer:
        producer = await started(lambda: Producer(self._config, self._world))
        self.known.initialized_s = self._world.clock.now()
        self.known.epoch = producer._transactional()._identity.epoch
        return producer

    async def _transaction(self, producer: Producer) -> bool:
        """One transaction; False: this producer can do nothing more."""
        written = Written(self.process, self._world.clock.now())
        await producer.begin_transaction()
        self.known.transactions.append(written)
        is_abort = self._random.random() < 0.25
        try:
            for number in range(self._random.choice((1, 2, 2, 5))):
                value = f"{self.process}.{len(self.known.transactions)}.{number}"
                place = self._random.choice(self._places)
                written.values.append((place, value))
                await self._send(producer, place, value)
                if self._random.random() < 0.3:
                    await asyncio.sleep(self._random.expovariate(5.0))
            if self._hold_s and self._random.random() < 0.5:
                await asyncio.sleep(self._random.uniform(0.0, 2 * self._hold_s))
        except ProtocolError:
            is_abort = True
        return await (self._abort(producer, written) if is_abort else self._commit(producer, written))

    async def _send(self, producer: Producer, place: TopicPartition, value: str) -> None:
        future = await producer.send(place.topic, value.encode(), partition=place.partition)
        future.add_done_callback(_noted)

    async def _commit(self, producer: Producer, written: Written) -> bool:
        written.commit_s, copies = self._world.clock.now(), self._copies.count
        for _ in range(COMMITS_MAX):
            try:
                await producer.commit_transaction()
            except RequestTimedOut:
                continue
            except TransactionAbortable:
                # Nothing was committed, whatever became of earlier attempts: the state allows an abort only.
                return await self._abort(producer, written)
            except ProtocolError as error:
                if error.outcome != UNKNOWN and not self._copies.of(self.machine, copies):
                    written.outcome = ABORTED
                self.died_of = error
                return False
            else:
                written.outcome = COMMITTED
                return True
        return False

    async def _abort(self, producer: Producer, written: Written) -> bool:
        """Aborted, whatever becomes of the request: no commit was ever requested."""
        written.outcome = ABORTED
        for _ in range(COMMITS_MAX):
            try:
                await producer.abort_transaction()
            except RequestTimedOut:
                continue
            except ProtocolError as error:
                self.died_of = error
                return False
            else:
                return True
        return False


def _noted(future: asyncio.Future[Any]) -> None:
    """The transaction's end reports what became of its records."""
    if not future.cancelled():
        future.exception()


class LedgerReader:
    """The production consumer with ``read_committed``: everything that it returned, in this order."""

    def __init__(self, cluster: SimCluster, places: Sequence[TopicPartition], machine: str, **settings: Any) -> None:
        self.seen: dict[TopicPartition, list[Read]] = {name: [] for name in places}
        self.positions: dict[TopicPartition, Offset] = dict.fromkeys(places, 0)
        self._places = places
        self._config = ConsumerConfig(
            bootstrap_servers=cluster.bootstrap,
            client_id=machine,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **settings,
        )
        self._world = cluster.sim.of(machine)
        cluster.sim.spawn(machine, self._run())

    async def _run(self) -> None:
        consumer = await started(lambda: Consumer(self._config, self._world))
        consumer.assign(self._places)
        while True:
            taken = await consumer.getmany(timeout_ms=POLL_MS)
            for name, records in taken.items():
                now = self._world.clock.now()
                self.seen[name] += [Read(record.offset, (record.value or b"").decode(), now) for record in records]
            for name in self._places:
                position = consumer._positions.states[name].position
                self.positions[name] = self.positions[name] if position is None else position
