"""The load beside the faults, and the evidence that a run is judged by; also for the demo and the end-to-end tests.

Load: producers with a ledger (:class:`Sender`), and groups that read along (:class:`Member`). The value of each record
is unique (``p1.42``). Each producer paces itself by the clock; while the cluster is silent it goes on sending until its
buffer's limit, as an application would.

Evidence: what producers send, its results and what members receive go into one history (:class:`Ledger`). At the end
everything is read back, the replicas are compared, and the checker gives its verdict.

Rule for this file: a client's errors are counted and reported, they never end the run; only the verdict judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from minikafka.chaos.outcome import Figures
from minikafka.chaos.scenario import Group, Load, Producers
from minikafka.check import Checker, Expectations, Recorder, Verdict, compare_replicas, merged, value_id
from minikafka.check.history import Assign, Operation, Poll, Seek, header_line, to_line
from minikafka.client.producer import Producer
from minikafka.client.settings import ProducerConfig, build
from minikafka.client.structs import ConsumerRebalanceListener, RecordMetadata
from minikafka.errors import NOT_WRITTEN, ProtocolError
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.world.clients import Consumer, client_world
from minikafka.world.read_disk import record_replica, replica_of

READER = "final-reader"
READ_BACK_TIMEOUT_MS = 1_000
POLL_RECORDS_MAX = 10_000

# A read that gets nothing for so long will get nothing more: the checker then says what is missing.
SILENCE_S = 20.0


class Ledger:
    """The history: written to a file line by line, and checked as it grows.

    What readers were given on the way is held against the final read by itself: what one reader read once is no proof
    that the log still has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checker = Checker()
        self.readers = Checker()
        """Everything that was read, and nothing else."""
        self._file = path.open("w", encoding="utf-8")
        self._clock = asyncio.get_running_loop().time
        self._file.write(header_line())
        self.recorder = Recorder(self._keep, self._clock, lines_before=1)

    def _keep(self, operation: Operation) -> None:
        self._file.write(to_line(operation))
        if isinstance(operation, Poll | Assign | Seek):
            self.readers.feed(operation)
            if operation.process != READER:
                return
        self.checker.feed(operation)

    @property
    def totals(self) -> dict[str, int]:
        """kind -> how many were found so far."""
        return dict(Counter(self.checker.totals) + Counter(self.readers.totals))

    def verdict(self) -> Verdict:
        """On all of it; to be asked once."""
        return merged(self.checker.verdict(), self.readers.verdict())

    def flush(self) -> None:
        """As a producer's ledger: everything recorded so far survives the end of this process."""
        self._file.flush()

    def close(self) -> None:
        """Everything is in the file."""
        self._file.close()


async def read_back(
    ledger: Ledger,
    client: Mapping[str, str],
    names: Sequence[TopicPartition],
    report_count: Callable[[int], object],
) -> dict[TopicPartition, Offset]:
    """Return the end offsets after reading partitions to their end; ``report_count`` gets the count of each poll.

    ``client``: where and how the reader connects, as parameters of a native consumer.
    """
    settings: dict[str, Any] = {**client, "auto_offset_reset": "none", "max_poll_records": POLL_RECORDS_MAX}
    consumer = Consumer(**settings)
    await consumer.start()
    try:
        consumer.assign(names)
        ledger.recorder.assign(READER, names)
        ends = dict(await consumer.end_offsets(names))
        position = dict.fromkeys(names, 0)
        for name in names:
            consumer.seek(name, 0)
            ledger.recorder.seek(READER, *name, 0)
        count = 0
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while any(position[name] < ends[name] for name in names) and loop.time() - heard_at < SILENCE_S:
            for name, records in (await consumer.getmany(timeout_ms=READ_BACK_TIMEOUT_MS)).items():
                rows = [(record.offset, value_id(record.value)) for record in records]
                after = rows[-1][0] + 1
                ledger.recorder.poll(
                    READER,
                    name.topic,
                    name.partition,
                    rows,
                    position_before=position[name],
                    position_after=after,
                )
                position[name] = after
                count += len(rows)
                heard_at = loop.time()
            report_count(count)
        return ends
    finally:
        await consumer.stop()


@dataclass(frozen=True, slots=True)
class Compared:
    """What was held against each other, replica by replica."""

    batches: int
    size: int
    differences: int


def compare(ledger: Ledger, folders: Mapping[NodeId, Path], ends: Mapping[TopicPartition, Offset]) -> Compared:
    """Write every replica into the history, and compare them byte by byte below the high watermarks ``ends``."""
    batches = size = differences = 0
    for partition, end in ends.items():
        for node, folder in folders.items():
            record_replica(ledger.recorder, partition, replica_of(folder, node, partition, high_watermark=end))
        comparison = compare_replicas(
            partition, [replica_of(folder, node, partition, high_watermark=end) for node, folder in folders.items()]
        )
        batches += comparison.batch_count
        size += comparison.size
        differences += len(comparison.findings)
    return Compared(batches, size, differences)


def judge(ledger: Ledger) -> Verdict:
    """The verdict on the whole; the history is closed."""
    ledger.recorder.expect(Expectations(idempotent=True, final_read_complete=True, replicas_complete=True))
    ledger.close()
    return ledger.verdict()


REQUEST_TIMEOUT_MS: Final = 3_000
"""A request that was swallowed is asked again after so long; Kafka's 30 s would outlast most faults."""

DELIVERY_TIMEOUT_MS: Final = 90_000
"""Longer than any fault of the library and the time to converge: no record is given up for being late."""

UNDER_WAY_MAX: Final = 20_000
"""Records of one producer without an answer: it waits then, as at the limit of its buffer."""

CLOSE_S: Final = 3.0
"""What a producer gets to say goodbye; its flush has been waited for before."""

POLL_TIMEOUT_MS: Final = 500
RETRY_S: Final = 0.2


class Sender:
    """One producer at its pace."""

    def __init__(
        self, machine: str, settings: Producers, partitions: int, client: Mapping[str, Any], work: Work
    ) -> None:
        self.under_way = 0
        self._machine = machine
        self._settings = settings
        self._partitions = partitions
        self._work = work
        self._answered = asyncio.Event()
        self._connect(client)

    def _connect(self, client: Mapping[str, Any]) -> None:
        machine, settings, work = self._machine, self._settings, self._work
        config = build(
            ProducerConfig,
            {
                **client,
                "client_id": machine,
                "acks": settings.acks if settings.acks == "all" else int(settings.acks),
                "request_timeout_ms": REQUEST_TIMEOUT_MS,
                "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
                "max_block_ms": DELIVERY_TIMEOUT_MS,
                "allow_auto_create_topics": False,
            },
        )
        self.producer: Any = Producer(config, client_world(config), ledger=contextlib.nullcontext(work.ledger))

    async def run(self) -> None:
        """Send to the partitions in turn until stopped, then wait for every answer."""
        number, work = 0, self._work
        while not work.stopping:
            number += 1
            await self._send(f"{self._machine}.{number}".encode(), number % self._partitions)
            await self._until_due(number / self._settings.rate)
        await self.producer.flush()

    async def _until_due(self, due_s: float) -> None:
        """Its pace; and while too much is under way, it waits for answers."""
        await asyncio.sleep(max(0.0, due_s - self._work.now()))
        while self.under_way >= UNDER_WAY_MAX and not self._work.stopping:
            self._answered.clear()
            await self._answered.wait()

    async def _send(self, value: bytes, partition: int) -> None:
        work, name = self._work, TopicPartition(self._settings.topic, partition)
        sent_s = work.now()
        work.figures.sent += 1
        work.waiting[name] += 1
        try:
            future = await self._pass_on(value, name)
        except (ProtocolError, KafkaError) as error:
            work.waiting[name] -= 1
            work.figures.waited(name, sent_s, work.now())
            work.refused(error)
            return
        self.under_way += 1
        future.add_done_callback(partial(self._note_result, name, sent_s))

    async def _pass_on(self, value: bytes, name: TopicPartition) -> asyncio.Future[Any]:
        """Give the producer a record. The native one has the history as its ledger."""
        future: asyncio.Future[Any] = await self.producer.send(name.topic, value, partition=name.partition)
        return future

    def _note_result(self, name: TopicPartition, sent_s: float, future: asyncio.Future[RecordMetadata]) -> None:
        self.under_way -= 1
        self._work.waiting[name] -= 1
        self._answered.set()
        if future.cancelled():
            return
        at_s = self._work.now()
        if (error := future.exception()) is not None:
            self._work.figures.waited(name, sent_s, at_s)
            self._work.refused(error)
            return
        self._work.figures.on_acknowledged(name, at_s, at_s - sent_s)


class KafkaSender(Sender):
    """One of Kafka's own producers, which logs in with SASL."""

    def _connect(self, client: Mapping[str, Any]) -> None:
        self.producer = AIOKafkaProducer(
            **client,
            client_id=self._machine,
            acks=self._settings.acks if self._settings.acks == "all" else int(self._settings.acks),
            enable_idempotence=self._settings.acks == "all",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )

    async def _pass_on(self, value: bytes, name: TopicPartition) -> asyncio.Future[Any]:
        recorder = self._work.ledger.recorder
        number = recorder.send(self._machine, name.topic, value_id(value), partition=name.partition)
        try:
            future = await super()._pass_on(value, name)
        except KafkaError as error:  # its buffer is full, or it has no metadata: nothing was sent
            recorder.failed(number, type(error).__name__)
            raise
        future.add_done_callback(partial(self._recorded, number))
        return future

    def _recorded(self, number: int, future: asyncio.Future[Any]) -> None:
        recorder = self._work.ledger.recorder
        if future.cancelled() or future.exception() is not None:
            recorder.unknown(number, "cancelled" if future.cancelled() else type(future.exception()).__name__)
        else:
            metadata = future.result()
            recorder.acknowledged(number, partition=metadata.partition, offset=metadata.offset)


class Member:
    """One member of a group that reads along; what it is given goes into the history."""

    def __init__(self, name: str, group: Group, client: Mapping[str, Any], work: Work) -> None:
        self.name = name
        self._group = group
        self._client = client
        self._work = work

    async def run(self) -> None:
        """Read until the load has ended; a consumer that fails is replaced, as a restarted application."""
        while not self._work.stopping:
            try:
                await self._live()
            except ProtocolError as error:
                self._work.troubles[f"{self._group.name}: {error.name}"] += 1
                await asyncio.sleep(RETRY_S)

    async def _live(self) -> None:
        settings = {
            **self._client,
            "group_id": self._group.name,
            "client_id": self.name,
            "auto_offset_reset": "earliest",
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "session_timeout_ms": 6_000,
            "heartbeat_interval_ms": 1_000,
        }
        consumer = Consumer(**settings)
        consumer.subscribe([self._group.topic], listener=_AssignmentListener(self, consumer))
        async with consumer:
            while not self._work.stopping:
                for name, records in (await consumer.getmany(timeout_ms=POLL_TIMEOUT_MS)).items():
                    rows = [(record.offset, value_id(record.value)) for record in records]
                    self._work.ledger.recorder.poll(
                        self.name, name.topic, name.partition, rows, high_watermark=consumer.highwater(name)
                    )
                    self._work.read += len(rows)

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """What it has from now on."""
        self._work.ledger.recorder.assign(self.name, partitions)


class _AssignmentListener(ConsumerRebalanceListener):
    def __init__(self, member: Member, consumer: Consumer) -> None:
        self._member = member
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:  # noqa: ARG002 - the listener's signature
        self._member.assigned(sorted(self._consumer.assignment()))

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:  # noqa: ARG002 - as above
        self._member.assigned(sorted(self._consumer.assignment()))


class Work:
    """All clients of one run."""

    def __init__(self, ledger: Ledger, figures: Figures, clock: Callable[[], float]) -> None:
        self.ledger = ledger
        self.figures = figures
        self.stopping = False
        self.read = 0
        """Records that groups were given."""
        self.waiting: Counter[TopicPartition] = Counter()
        """Records without an answer, by where they are to go."""
        self.troubles: Counter[str] = Counter()
        """Errors that clients received, by name."""
        self._clock = clock
        self._began_s = clock()
        self._senders: list[Sender] = []
        self._members: list[Member] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._log_level: int | None = None
        """The level of aiokafka's logger before this load; None: it was not changed."""

    def now(self) -> float:
        """Seconds since the load began."""
        return self._clock() - self._began_s

    def refused(self, error: BaseException) -> None:
        """A send that was not acknowledged."""
        is_known = isinstance(error, ProtocolError) and error.outcome == NOT_WRITTEN
        self.figures.failed += is_known
        self.figures.unknown += not is_known
        self.troubles[error.name if isinstance(error, ProtocolError) else type(error).__name__] += 1

    async def start(
        self, load: Load, partitions: dict[str, int], client: Mapping[str, str], kafka: Mapping[str, Any] | None
    ) -> None:
        """Connect all, then let all begin at once. NetworkException.

        ``client`` and ``kafka``: see :class:`minikafka.chaos.target.Target`. With the second, every other producer is
        one of Kafka's.
        """
        if kafka is not None:
            # It logs each retry as a warning: here faults are the rule, and what is not acknowledged is counted.
            kafkas = logging.getLogger("aiokafka")
            self._log_level = kafkas.level
            kafkas.setLevel(logging.CRITICAL)
        for settings in load.producers:
            for number, machine in enumerate(settings.machines()):
                given = partitions[settings.topic]
                if kafka is not None and number % 2 == 0:
                    self._senders.append(KafkaSender(machine, settings, given, kafka, self))
                else:
                    self._senders.append(Sender(machine, settings, given, client, self))
        for group in load.groups:
            for number in range(1, group.members + 1):
                self._members.append(Member(f"{group.name}-{number}", group, client, self))
        for sender in self._senders:
            await sender.producer.start()
        self._began_s = self._clock()
        self._tasks = [asyncio.ensure_future(sender.run()) for sender in self._senders]
        self._tasks += [asyncio.ensure_future(member.run()) for member in self._members]

    def check(self) -> None:
        """Raise what ended a client that should live: a bug, for expected errors are counted."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def finish(self, within_s: float) -> bool:
        """Stop all clients and wait for the last responses. Return False if some did not come in time."""
        self.stopping = True
        if not self._tasks:
            return True
        _, late = await asyncio.wait(self._tasks, timeout=within_s)
        self.check()
        await self.close()
        return not late

    async def close(self) -> None:
        """At once, whatever is under way: who has no answer by then has none."""
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        senders, self._senders = self._senders, []
        stopping = (asyncio.wait_for(sender.producer.stop(), CLOSE_S) for sender in senders)
        await asyncio.gather(*stopping, return_exceptions=True)
        if self._log_level is not None:
            logging.getLogger("aiokafka").setLevel(self._log_level)
            self._log_level = None
