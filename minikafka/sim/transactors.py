"""Transactional producers of a plan, and what their readers may see (KIP-98).

Each machine of the plan has one ``transactional.id`` and writes transactions of some records to a topic of its own,
``LEDGER``; some are aborted. The production consumer reads along with ``read_committed``.

========================  =============================================================================================
``kill_transactor t1``    kill -9; ``lasts_s`` later another process begins with the transactional id
``pause_transactor t1``   SIGSTOP for ``lasts_s``: its transaction may time out meanwhile
``twin_transactor t1``    SIGSTOP; another process takes over the transactional id; the first one wakes as a zombie
========================  =============================================================================================

At the end, by a reading of the logs that uses neither the index of aborted transactions nor the last stable offset:

- a committed transaction is there whole and once, an aborted one not at all, one of unknown outcome whole or not;
- transactions of a transactional id are in the order in which they were begun;
- nothing that a process began after its successor was initialized is committed, by its own word or in the logs;
- the reader saw what is committed, in this order, and nothing else at any time.

Rule for this file: a violation is reported by name and sentence; faults are undone for the process that they hit.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import ConsumerConfig, ProducerConfig
from minikafka.errors import UNKNOWN, ProtocolError, RequestTimedOut, TransactionAbortable
from minikafka.sim.cluster import SimCluster
from minikafka.sim.faults import At
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.transactor_plans import LEDGER
from minikafka.sim.workload import POLL_MS, SUCCESSOR, started
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.records import decode_batch

READER: Final = "tr"

TWIN: Final = "z"
"""The machine ``t1z`` is where the second process of ``t1``'s transactional id runs."""

COMMITTED, ABORTED, UNSURE = "committed", "aborted", "unsure"

COMMITS_MAX: Final = 6
"""How often a commit of unknown outcome is repeated before the process gives up."""

PAUSE_S: Final = 0.2
"""Mean time between two transactions at pace 1."""


@dataclass(slots=True)
class Written:
    """One transaction, as its producer knows it."""

    process: str
    begun_s: float
    values: list[tuple[TopicPartition, str]] = field(default_factory=list)
    """What was handed to the producer."""
    outcome: str = UNSURE


class Transactor:
    """One process: it begins transactions until it must end, or is fenced by another process."""

    def __init__(self, owner: Transactors, machine: str, process: str, transactional_id: str) -> None:
        self.machine = machine
        self.process = process
        self.transactional_id = transactional_id
        self.initialized_s = math.inf
        self.epoch = -1
        """Of its producer when it was initialized: processes fence each other in this order."""
        self.is_ending = False
        self.has_ended = False
        self.transactions: list[Written] = []
        self._owner = owner
        self._random = Random(f"{owner.plan.seed}/transactor/{process}")
        self._world = owner.cluster.sim.of(machine)
        settings: dict[str, Any] = {**owner.plan.client_settings, **owner.plan.transactors[transactional_id]}
        self._config = ProducerConfig(
            bootstrap_servers=owner.cluster.bootstrap,
            client_id=process,
            transactional_id=transactional_id,
            **settings,
        )
        owner.cluster.sim.spawn(machine, self._run())

    async def _run(self) -> None:
        producer = await started(lambda: Producer(self._config, self._world))
        self.initialized_s = self._world.clock.now()
        self.epoch = producer._transactional()._identity.epoch
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
        self.transactions.append(written)
        is_abort = self._random.random() < 0.25
        try:
            for number in range(self._random.choice((1, 2, 2, 5))):
                value = f"{self.process}.{len(self.transactions)}.{number}"
                place = self._random.choice(self._owner.places)
                written.values.append((place, value))
                future = await producer.send(place.topic, value.encode(), partition=place.partition)
                future.add_done_callback(_noted)
                if self._random.random() < 0.3:
                    await asyncio.sleep(self._random.expovariate(5.0))
        except ProtocolError:
            is_abort = True
        return await (self._abort(producer, written) if is_abort else self._commit(producer, written))

    async def _commit(self, producer: Producer, written: Written) -> bool:
        is_unsure = False
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
            except ProtocolError:
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

    def __init__(self, owner: Transactors) -> None:
        self.seen: dict[TopicPartition, list[tuple[Offset, str]]] = {name: [] for name in owner.places}
        self.positions: dict[TopicPartition, Offset] = dict.fromkeys(owner.places, 0)
        self._owner = owner
        self._config = ConsumerConfig(
            bootstrap_servers=owner.cluster.bootstrap,
            client_id=READER,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        self._world = owner.cluster.sim.of(READER)
        owner.cluster.sim.spawn(READER, self._run())

    async def _run(self) -> None:
        consumer = await started(lambda: Consumer(self._config, self._world))
        consumer.assign(self._owner.places)
        while True:
            taken = await consumer.getmany(timeout_ms=POLL_MS)
            for name, records in taken.items():
                self.seen[name] += [(record.offset, (record.value or b"").decode()) for record in records]
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

    def judge(self, logs: Mapping[TopicPartition, Sequence[RecordBatch]]) -> None:
        """``logs``: everything that each partition of the ledger holds, in the order of its offsets."""
        held = {name: list(committed_rows(logs[name])) for name in self.places}
        counts = Counter((name, value) for name, rows in held.items() for _, value in rows)
        known: dict[tuple[TopicPartition, str], Written] = {}
        for written in (each for process in self._every() for each in process.transactions):
            self.marks[f"transaction_{written.outcome}"] += 1
            known.update(dict.fromkeys(written.values, written))
            self._judge_one(written, [counts[value] for value in written.values])
        for name, rows in held.items():
            for offset, value in rows:
                if (name, value) not in known:
                    self._report("committed_from_nowhere", f"{name}@{offset}: nobody has sent {value}")
            self._judge_order(name, [known[name, value] for _, value in rows if (name, value) in known])
            if self._reader is not None and self._reader.seen[name] != rows:
                self._report("read_committed_differs", _first_difference(name, self._reader.seen[name], rows))

    def _judge_one(self, written: Written, counts: list[int]) -> None:
        what = f"a transaction of {written.process}, {written.outcome}: {written.values[:1]} and more, found {counts}"
        if any(count > 1 for count in counts):
            self._report("transaction_doubled", what)
        elif written.outcome == COMMITTED and not all(counts):
            self._report("committed_transaction_lost", what)
        elif written.outcome == ABORTED and any(counts):
            self._report("aborted_transaction_visible", what)
        elif any(counts) and not all(counts):
            self._report("transaction_torn", what)
        if written.outcome == COMMITTED or any(counts):
            own = next(each for each in self._every() if each.process == written.process)
            for each in self._processes[own.transactional_id]:
                if each.epoch > own.epoch and written.begun_s > each.initialized_s:
                    self._report("zombie_committed", f"{what}, begun after {each.process} was initialized")

    def _judge_order(self, name: TopicPartition, found: Sequence[Written]) -> None:
        last: dict[str, float] = {}
        for written in found:
            if written.begun_s < last.get(written.process, 0.0):
                self._report("transactions_disordered", f"{name}: {written.process} began {written.values[:1]} earlier")
            last[written.process] = written.begun_s


def committed_rows(batches: Iterable[RecordBatch]) -> Iterator[tuple[Offset, str]]:
    """Return (offset, value) of every record whose transaction is committed in these batches, by offset."""
    open_rows: dict[int, list[tuple[Offset, str]]] = {}
    rows: list[tuple[Offset, str]] = []
    for batch in batches:
        if batch.is_control:
            marker = marker_of(batch)
            ended = open_rows.pop(batch.producer_id, [])
            if marker is not None and marker.is_commit:
                rows += ended
            continue
        found = [(record.offset, (record.value or b"").decode()) for record in decode_batch(batch)]
        if batch.is_transactional:
            open_rows.setdefault(batch.producer_id, []).extend(found)
        else:
            rows += found
    return iter(sorted(rows))


def _first_difference(name: TopicPartition, seen: list[tuple[Offset, str]], rows: list[tuple[Offset, str]]) -> str:
    for number in range(max(len(seen), len(rows))):
        one = seen[number] if number < len(seen) else None
        other = rows[number] if number < len(rows) else None
        if one != other:
            return f"{name}: the reader's record number {number} is {one}, committed is {other}"
    return f"{name}: equal"
