"""Transactional producers of a plan, and what their readers may see (KIP-98).

Each machine of the plan has one ``transactional.id`` and writes transactions of some records to a topic of its own,
``LEDGER``; some are aborted. The production consumer reads along with ``read_committed``.

========================  =============================================================================================
``kill_transactor t1``    kill -9; ``lasts_s`` later another process begins with the transactional id
``pause_transactor t1``   SIGSTOP for ``lasts_s``: its transaction may time out meanwhile
``twin_transactor t1``    SIGSTOP; another process takes over the transactional id; the first one wakes as a zombie
========================  =============================================================================================

At the end ``check/transactions.py`` compares what the processes know with the logs and with what the reader returned.

Rules for this file: a violation is reported by name and sentence; faults are undone for the process that they hit. What
a group has committed is read from the log alone, so that a bug in its coordinator does not hide itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from minikafka.check.transactions import Process, anomalies, committed_rows, loop_anomalies
from minikafka.coordination.rule import partition_of
from minikafka.errors import InvalidProducerEpoch, ProducerFenced
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.records import OFFSETS_TOPIC, OffsetRecord, unpacked
from minikafka.sim.cluster import SimCluster
from minikafka.sim.faults import At
from minikafka.sim.log_invariants import stored_batches
from minikafka.sim.looper import Looper, is_transformed
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.transactor import LedgerReader, RefusedCopies, Transactor
from minikafka.sim.transactor_plans import LEDGER, LOOP_GROUP, OUTPUTS
from minikafka.sim.workload import SUCCESSOR
from minikafka.sim.world import Event
from minikafka.types import NO_OFFSET, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.records import decode_batch


def committed_offsets(batches: Iterable[RecordBatch], group: str) -> dict[TopicPartition, Offset]:
    """Return the group's offsets as the log of its coordinator says.

    The offsets of a transaction count from its COMMIT marker on, unless an offset that stands later in the log counts
    already: compaction keeps the later record.
    """
    counted: dict[TopicPartition, tuple[Offset, Offset]] = {}
    pending: dict[int, list[tuple[TopicPartition, Offset, Offset]]] = {}

    def count(name: TopicPartition, at: Offset, value: Offset) -> None:
        if at > counted.get(name, (NO_OFFSET, 0))[0]:
            counted[name] = (at, value)

    for batch in batches:
        if batch.is_control:
            marker = marker_of(batch)
            for each in pending.pop(batch.producer_id, []) if marker is not None else ():
                if marker is not None and marker.is_commit:
                    count(*each)
            continue
        for record in decode_batch(batch):
            found = unpacked(record.key or b"", record.value)
            if not isinstance(found, OffsetRecord) or found.group != group:
                continue
            if found.value is None:
                counted.pop(found.partition, None)
            elif batch.is_transactional:
                pending.setdefault(batch.producer_id, []).append((found.partition, record.offset, found.value.offset))
            else:
                count(found.partition, record.offset, found.value.offset)
    return {name: offset for name, (_, offset) in counted.items()}


READER: Final = "tr"

LAST_READER: Final = "tr-last"
"""Reads everything when all is over, in many small fetches: most begin within a transaction."""

SMALL_FETCH: Final = 150
"""Bytes."""

RESTART_S: Final = 0.5
"""After which a loop that ended by itself is begun again, at pace 1."""

TRANSACTIONAL_TOPICS: Final = frozenset({LEDGER, OUTPUTS})

TWIN: Final = "z"
"""The machine ``t1z`` is where the second process of ``t1``'s transactional id runs."""


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
        self.places = [
            TopicPartition(each.name, number)
            for each in plan.topics
            for number in range(each.partitions)
            if each.name in TRANSACTIONAL_TOPICS
        ]
        self._copies = RefusedCopies(cluster.sim.network)
        self._at = at
        self._tell = tell
        self._report = report
        self._processes: dict[str, list[Transactor]] = {name: [] for name in (*plan.transactors, *plan.loops)}
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
        """Start all transactors."""
        for name in self._processes:
            self._come(name, name)
        if self._processes:
            self.cluster.sim.observers.append(self._on_event)
            self.cluster.sim.network.answered.append(self._copies.on_answered)
            self._reader = LedgerReader(self.cluster, self.places, READER)

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

    def replace_loops_that_are_gone(self) -> None:
        """As a supervisor would: they go on until no input is left."""
        for name in self.plan.loops:
            self._replace(self._processes[name][-1])

    def missing(self) -> str:
        """What is still under way, as a sentence; empty: nothing."""
        busy = [each.process for each in self._every() if not each.has_ended and not isinstance(each, Looper)]
        busy += [each.process for each in self._loopers() if each.is_busy]
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
            positions = {each.process: each.position(name) for each in self._loopers()}
            if self.plan.loops and max(positions.values(), default=-1) < replica.log.end_offset:
                return f"{name} ends at {replica.log.end_offset}, and loops are at {positions}"
        return ""

    def _loopers(self) -> list[Looper]:
        return [each for each in self._every() if isinstance(each, Looper) and not each.has_ended]

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
        names: dict[str, Any] = {
            "machine": machine,
            "process": process,
            "transactional_id": name,
            "copies": self._copies,
        }
        if name in self.plan.loops:
            held.append(Looper(self.plan, self.cluster, self.places, on_end=self._looper_ended, **names))
        else:
            ledger = [each for each in self.places if each.topic == LEDGER]
            held.append(Transactor(self.plan, self.cluster, ledger, **names))

    def _looper_ended(self, process: Looper) -> None:
        """A supervisor begins it again, unless another process has its transactional id."""
        at_s = self.cluster.sim.loop.time() + RESTART_S * self.plan.pace
        self._at(at_s, partial(self._replace, process))

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
            self._last_reader = LedgerReader(
                self.cluster, self.places, LAST_READER, max_partition_fetch_bytes=SMALL_FETCH
            )

    def unread(self) -> str:
        """What the last reader has not read yet, as a sentence; empty: nothing."""
        for name in self.places if self._last_reader is not None else ():
            replica = self.cluster.replica(self.cluster.leader_of(name), name)
            position = self._last_reader.positions[name] if self._last_reader is not None else 0
            if replica is None or position < replica.log.end_offset:
                return f"{name} is read again up to {position}: {replica!r}"
        if self.plan.loops and self._coordinator_of_loops() is None:
            return f"{self._partition_of_loops()} has no coordinator that has loaded it"
        return ""

    def _partition_of_loops(self) -> TopicPartition:
        """Where the offsets of the loops' group are committed."""
        image = self.cluster.image()
        count = len(image.topics[OFFSETS_TOPIC].partitions) if image is not None else 1
        return TopicPartition(OFFSETS_TOPIC, partition_of(LOOP_GROUP, count))

    def _coordinator_of_loops(self) -> GroupCoordinator | None:
        """The coordinator of the loops' group; None while there is none that answers."""
        name = self._partition_of_loops()
        broker = self.cluster.present().get(self.cluster.leader_of(name))
        shard = broker.groups.shards.at(name) if broker is not None else None
        return shard.coordinator if shard is not None and shard.is_answering else None

    def judge(self, logs: Mapping[TopicPartition, Sequence[RecordBatch]]) -> None:
        """``logs``: everything that each partition of the ledger holds, in the order of its offsets."""
        held = {name: list(committed_rows(logs[name])) for name in self.places}
        processes = [each.known for each in self._every()]
        for written in (each for process in processes for each in process.transactions):
            self.marks[f"transaction_{written.outcome}"] += 1
        readers = [each for each in (self._reader, self._last_reader) if each is not None]
        found = [each for reader in readers for each in anomalies(processes, held, reader.seen)]
        if self.plan.loops:
            found += self._of_loops(processes, held)
        for name, what in dict.fromkeys(found):
            self._report(name, what)
        for process in self._every():
            self._judge_death(process)

    def _of_loops(
        self, processes: Sequence[Process], held: Mapping[TopicPartition, Sequence[tuple[Offset, str]]]
    ) -> Iterator[tuple[str, str]]:
        name, coordinator = self._partition_of_loops(), self._coordinator_of_loops()
        replica = self.cluster.replica(self.cluster.leader_of(name), name)
        if replica is None or coordinator is None:
            return  # as :meth:`unread` has said
        batches = stored_batches(replica.log, replica.log.start_offset, replica.high_watermark)
        committed = committed_offsets(batches, LOOP_GROUP)
        served = coordinator._offsets.of(LOOP_GROUP)
        if {place: each.offset for place, each in served.items()} != committed:
            yield "group_offsets_differ", f"{name} says {committed}, its coordinator serves {served}"
        yield from loop_anomalies(processes, held, self.places, committed, is_transformed)

    def _judge_death(self, process: Transactor) -> None:
        """Only a rival or a timeout fences a producer, and it keeps its producer id for as long as it lives.

        A rival is a process that initialized later, or may have: its response came after this one had begun. Either may
        have been paused before it saw its own response.
        A late copy of a process's own InitProducerId is a rival too: the coordinator cannot know better.
        """
        error = process.died_of
        if error is None:
            return
        rivals = [
            each
            for each in self._processes[process.transactional_id]
            if each is not process and each.known.initialized_s >= process.begun_s
        ]
        is_doubled = any(
            message.api == "InitProducerId" and message.source == process.machine
            for message in self.cluster.sim.network.doubled
        )
        is_fenced = isinstance(error, (ProducerFenced, InvalidProducerEpoch))
        if not is_fenced or not (rivals or is_doubled or process.transactional_id in self._timed_out):
            self._report("producer_fenced_by_nobody", f"{process.process} died of {error!r}")
