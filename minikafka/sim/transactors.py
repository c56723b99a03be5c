"""Transactional producers of a plan, and what their readers may see (KIP-98).

Each machine of the plan has one ``transactional.id`` and writes transactions of some records to a topic of its own,
``LEDGER``; some are aborted. The production consumer reads along with ``read_committed``.

========================  =============================================================================================
``kill_transactor t1``    kill -9; ``lasts_s`` later another process begins with the transactional id
``pause_transactor t1``   SIGSTOP for ``lasts_s``: its transaction may time out meanwhile
``twin_transactor t1``    SIGSTOP; another process takes over the transactional id; the first one wakes as a zombie
========================  =============================================================================================

At the end ``check/transactions.py`` compares what the processes know with the logs and with what the reader returned.

Rule for this file: a violation is reported by name and sentence; faults are undone for the process that they hit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from minikafka.check.transactions import ABORTED, COMMITTED, Process, Read, Written, anomalies, committed_rows
from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import ConsumerConfig, ProducerConfig
from minikafka.errors import (
    UNKNOWN,
    InvalidProducerEpoch,
    ProducerFenced,
    ProtocolError,
    RequestTimedOut,
    TransactionAbortable,
)
from minikafka.sim.cluster import SimCluster
from minikafka.sim.faults import At
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.transactor_plans import HOLD_MS, LEDGER
from minikafka.sim.workload import POLL_MS, SUCCESSOR, started
from minikafka.sim.world import Event
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import RecordBatch

READER: Final = "tr"

LAST_READER: Final = "tr-last"
"""Reads everything when all is over, in many small fetches: most begin within a transaction."""

SMALL_FETCH: Final = 150
"""Bytes."""

TWIN: Final = "z"
"""The machine ``t1z`` is where the second process of ``t1``'s transactional id runs."""

COMMITS_MAX: Final = 6
"""How often a commit of unknown outcome is repeated before the process gives up."""

PAUSE_S: Final = 0.2
"""Mean time between two transactions at pace 1."""


class Transactor:
    """One process: it begins transactions until it must end, or is fenced by another process."""

    def __init__(self, owner: Transactors, machine: str, process: str, transactional_id: str) -> None:
        self.machine = machine
        self.process = process
        self.transactional_id = transactional_id
        self.known = Process(process, transactional_id)
        """What it will have to answer for."""
        self.is_ending = False
        self.has_ended = False
        self.died_of: ProtocolError | None = None
        """Why it could do nothing more."""
        self._owner = owner
        self._random = Random(f"{owner.plan.seed}/transactor/{process}")
        self._world = owner.cluster.sim.of(machine)
        settings: dict[str, Any] = {**owner.plan.client_settings, **owner.plan.transactors[transactional_id]}
        self._hold_s = settings.pop(HOLD_MS, 0) / 1000
        self._config = ProducerConfig(
            bootstrap_servers=owner.cluster.bootstrap,
            client_id=process,
            transactional_id=transactional_id,
            **settings,
        )
        owner.cluster.sim.spawn(machine, self._run())

    async def _run(self) -> None:
        producer = await started(lambda: Producer(self._config, self._world))
        self.known.initialized_s = self._world.clock.now()
        self.known.epoch = producer._transactional()._identity.epoch
        try:
            while not self.is_ending and await self._transaction(producer):
                await asyncio.sleep(self._random.expovariate(1 / (PAUSE_S * self._owner.plan.pace)))
        finally:
            self.has_ended = True
        await producer.stop()

    async def _transaction(self, producer: Producer) -> bool:
        """One transaction; False: this producer can do nothing more."""
        written = Written(self.process, self._world.clock.now())
        await producer.begin_transaction()
        self.known.transactions.append(written)
        is_abort = self._random.random() < 0.25
        try:
            for number in range(self._random.choice((1, 2, 2, 5))):
                value = f"{self.process}.{len(self.known.transactions)}.{number}"
                place = self._random.choice(self._owner.places)
                written.values.append((place, value))
                future = await producer.send(place.topic, value.encode(), partition=place.partition)
                future.add_done_callback(_noted)
                if self._random.random() < 0.3:
                    await asyncio.sleep(self._random.expovariate(5.0))
            if self._hold_s and self._random.random() < 0.5:
                await asyncio.sleep(self._random.uniform(0.0, 2 * self._hold_s))
        except ProtocolError:
            is_abort = True
        return await (self._abort(producer, written) if is_abort else self._commit(producer, written))

    async def _commit(self, producer: Producer, written: Written) -> bool:
        is_unsure = False
        written.commit_s = self._world.clock.now()
        for _ in range(COMMITS_MAX):
            try:
                await producer.commit_transaction()
            except RequestTimedOut:
                is_unsure = True
            except TransactionAbortable:
                # Nothing was committed, whatever became of earlier attempts: the state allows an abort only.
                return await self._abort(producer, written)
            except ProtocolError as error:
                if not is_unsure and error.outcome != UNKNOWN:
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

    def __init__(self, owner: Transactors, machine: str = READER, **settings: Any) -> None:
        self.seen: dict[TopicPartition, list[Read]] = {name: [] for name in owner.places}
        self.positions: dict[TopicPartition, Offset] = dict.fromkeys(owner.places, 0)
        self._owner = owner
        self._config = ConsumerConfig(
            bootstrap_servers=owner.cluster.bootstrap,
            client_id=machine,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **settings,
        )
        self._world = owner.cluster.sim.of(machine)
        owner.cluster.sim.spawn(machine, self._run())

    async def _run(self) -> None:
        consumer = await started(lambda: Consumer(self._config, self._world))
        consumer.assign(self._owner.places)
        while True:
            taken = await consumer.getmany(timeout_ms=POLL_MS)
            for name, records in taken.items():
                now = self._world.clock.now()
                self.seen[name] += [Read(record.offset, (record.value or b"").decode(), now) for record in records]
            for name in self._owner.places:
                position = consumer._positions.states[name].position
                self.positions[name] = self.positions[name] if position is None else position


class Transactors:
    """All of one run; most plans have none."""

    def __init__(
        self,
        plan: Plan,
        cluster: SimCluster,
        at: At,
        tell: Callable[[str], None],
        report: Callable[[str, str], None],
    ) -> None:
        self.plan = plan
        self.cluster = cluster
        self.marks: Counter[str] = Counter()
        partitions = next((each.partitions for each in plan.topics if each.name == LEDGER), 0)
        self.places = [TopicPartition(LEDGER, number) for number in range(partitions)]
        self._at = at
        self._tell = tell
        self._report = report
        self._processes: dict[str, list[Transactor]] = {name: [] for name in plan.transactors}
        self._reader: LedgerReader | None = None
        self._last_reader: LedgerReader | None = None
        self._timed_out: set[object] = set()
        """Transactional ids of which the coordinator aborted a transaction."""
        self._begin: dict[str, Callable[[Transactor, Fault], None]] = {
            "kill_transactor": self._kill,
            "pause_transactor": self._pause,
            "twin_transactor": self._twin,
        }

    def start(self) -> None:
        """Everybody begins."""
        for name in self._processes:
            self._come(name, name)
        if self._processes:
            self.cluster.sim.observers.append(self._on_event)
            self._reader = LedgerReader(self)

    def begin(self, fault: Fault) -> None:
        """Let it happen, if whom it would hit is there."""
        process = self._newest(fault.target)
        if process is not None and not process.has_ended:
            self._begin[fault.kind](process, fault)
            self._tell(str(fault))
            self.marks[f"fault_{fault.kind}"] += 1

    def end(self) -> None:
        """Everything is put right, and nobody begins another transaction."""
        for process in self._every():
            self.cluster.sim.resume(process.machine)
            process.is_ending = True

    def missing(self) -> str:
        """What is still under way, as a sentence; empty: nothing."""
        busy = [each.process for each in self._every() if not each.has_ended]
        if busy:
            return f"{', '.join(busy)} have not ended their transactions"
        for name in self.places:
            replica = self.cluster.replica(self.cluster.leader_of(name), name)
            if replica is None:
                return f"{name} has no leader"
            if replica.last_stable_offset < replica.log.end_offset:
                return f"{name} is stable up to {replica.last_stable_offset}, and ends at {replica.log.end_offset}"
            if self._reader is not None and self._reader.positions[name] < replica.log.end_offset:
                return f"{name} is read up to {self._reader.positions[name]}, and ends at {replica.log.end_offset}"
        return ""

    def _on_event(self, event: Event) -> None:
        if event.kind == "transaction_timed_out":
            self._timed_out.add(event.facts["transactional_id"])

    # ---- what happens ------------------------------------------------------------------------------------------------

    def _every(self) -> Iterator[Transactor]:
        return (each for some in self._processes.values() for each in some)

    def _newest(self, name: str) -> Transactor | None:
        return self._processes[name][-1] if self._processes.get(name) else None

    def _come(self, name: str, machine: str) -> None:
        held = self._processes[name]
        self._end_all_on(machine)
        process = machine if not held else f"{machine}{SUCCESSOR}{len(held) + 1}"
        held.append(Transactor(self, machine, process, name))

    def _end_all_on(self, machine: str) -> None:
        """Kill -9: a machine runs one process."""
        for each in self._every():
            if each.machine == machine and not each.has_ended:
                self.cluster.sim.kill(machine)
                each.has_ended = True

    def _later(self, fault: Fault, do: Callable[[], None]) -> None:
        self._at(self.cluster.sim.loop.time() + fault.lasts_s, do)

    def _replace(self, process: Transactor) -> None:
        if process is self._newest(process.transactional_id) and process.has_ended:
            self._come(process.transactional_id, process.machine)

    def _kill(self, process: Transactor, fault: Fault) -> None:
        self._end_all_on(process.machine)
        self._later(fault, partial(self._replace, process))

    def _pause(self, process: Transactor, fault: Fault) -> None:
        self.cluster.sim.pause(process.machine)
        self._later(fault, partial(self.cluster.sim.resume, process.machine))

    def _twin(self, process: Transactor, fault: Fault) -> None:
        self._pause(process, fault)
        name = process.transactional_id
        self._come(name, name if process.machine != name else f"{name}{TWIN}")

    # ---- the verdict -------------------------------------------------------------------------------------------------

    def read_again(self) -> None:
        """Begin to read everything that was written; :meth:`unread` tells whether that is done."""
        if self._processes:
            self._last_reader = LedgerReader(self, LAST_READER, max_partition_fetch_bytes=SMALL_FETCH)

    def unread(self) -> str:
        """What the last reader has not read yet, as a sentence; empty: nothing."""
        for name in self.places if self._last_reader is not None else ():
            replica = self.cluster.replica(self.cluster.leader_of(name), name)
            position = self._last_reader.positions[name] if self._last_reader is not None else 0
            if replica is None or position < replica.log.end_offset:
                return f"{name} is read again up to {position}: {replica!r}"
        return ""

    def judge(self, logs: Mapping[TopicPartition, Sequence[RecordBatch]]) -> None:
        """``logs``: everything that each partition of the ledger holds, in the order of its offsets."""
        held = {name: list(committed_rows(logs[name])) for name in self.places}
        processes = [each.known for each in self._every()]
        for written in (each for process in processes for each in process.transactions):
            self.marks[f"transaction_{written.outcome}"] += 1
        readers = [each for each in (self._reader, self._last_reader) if each is not None]
        found = [each for reader in readers for each in anomalies(processes, held, reader.seen)]
        for name, what in dict.fromkeys(found):
            self._report(name, what)
        for process in self._every():
            self._judge_death(process)

    def _judge_death(self, process: Transactor) -> None:
        """Only a rival or a timeout fences a producer, and it keeps its producer id for as long as it lives.

        A rival is whoever initialized later, or may have. It may have begun earlier: it was paused meanwhile.
        """
        error = process.died_of
        if error is None:
            return
        rivals = [
            each
            for each in self._processes[process.transactional_id]
            if each is not process and each.known.initialized_s >= process.known.initialized_s
        ]
        is_fenced = isinstance(error, (ProducerFenced, InvalidProducerEpoch))
        if not is_fenced or not (rivals or process.transactional_id in self._timed_out):
            self._report("producer_fenced_by_nobody", f"{process.process} died of {error!r}")
