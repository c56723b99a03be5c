"""The producer's driver: drains the accumulator, calls the leaders, and tells every waiter what became of its records.

Rules for this file: it decides nothing about batches (accumulator.py does); every task is owned, and one that ends in
an exception ends the producer: all waiters get it, ``send`` raises it. A future is set once, by :func:`acknowledge` or
:func:`refuse`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from minikafka import errors as kafka
from minikafka.client.accumulator import Accumulator
from minikafka.client.batches import Batch, Call, Identity, PartitionQueue, is_success
from minikafka.client.caller import Caller
from minikafka.client.metadata import Metadata, Update
from minikafka.client.settings import ProducerConfig
from minikafka.client.structs import RecordMetadata, SentRecords
from minikafka.ports import World
from minikafka.tasks import Flag, Tasks
from minikafka.types import NO_EPOCH, NO_NODE, Epoch, NodeId, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.batch import FOLLOWS, PIPELINED, PLAIN
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.outcomes import error_in

# A broker answers a produce at timeout_ms with what it knows; only a call later than this has an unknown outcome.
ANSWER_GRACE_S = 1.0


class Part:
    """The records of one ``send_many`` or ``send_batch`` in one batch, which may be split. It has its answer when all
    of them have theirs: what became of some says nothing of the others.
    """

    __slots__ = ("_error", "_outcomes", "_runs", "future", "left", "only_first")

    def __init__(self, future: asyncio.Future[SentRecords] | asyncio.Future[RecordMetadata], count: int = 0) -> None:
        self.future = future
        self.only_first = False
        """Answer with the first record's RecordMetadata, as ``send_batch`` does."""
        self.left = count
        """Records without an answer. ``send_many`` knows it once a batch has taken as many as it has room for."""
        self._runs: list[tuple[tuple[int, ...], RecordMetadata, int]] = []
        """Place of the batch among those that one was split into, first record and count of what is in the log."""
        self._error: kafka.ProtocolError | None = None
        """The first error."""
        self._outcomes: set[kafka.Outcome] = set()
        """Those of all errors."""

    def landed(self, first: RecordMetadata, count: int, place: tuple[int, ...] = ()) -> None:
        """``count`` more records of the part are in the log from ``first`` on."""
        self._runs.append((place, first, count))
        self._ended(count)

    def refused(self, error: kafka.ProtocolError, count: int) -> None:
        """``count`` more records did not make it."""
        self._error = self._error or error
        self._outcomes.add(error.outcome)
        self._ended(count)

    def _ended(self, count: int) -> None:
        self.left -= count
        if self.left or self.future.done():
            return
        error = self._error
        if error is not None:
            if self._runs:
                error = type(error)(
                    f"{error.message} (other records of the part were written)", outcome=kafka.UNKNOWN, **error.facts
                )
            elif len(self._outcomes) > 1:
                error = type(error)(error.message, outcome=kafka.UNKNOWN, **error.facts)
            self.future.set_exception(error)
            return
        # The answer to a batch may come after that to the next one, if it was lost and the batch was sent again.
        self._runs.sort(key=lambda each: each[0])
        _, first, _ = self._runs[0]
        runs = tuple((metadata.offset, count) for _, metadata, count in self._runs)
        done = first if self.only_first else SentRecords(first.topic, first.partition, runs)
        self.future.set_result(done)  # type: ignore[arg-type]


class Unwatched:
    """All records that were sent without a future: how many of them failed, and how, until it is asked for."""

    __slots__ = ("_count", "_first", "_outcomes")

    def __init__(self) -> None:
        self._count = 0
        self._first: kafka.ProtocolError | None = None
        self._outcomes: set[kafka.Outcome] = set()

    def landed(self, first: RecordMetadata, count: int) -> None:
        """``count`` more records are in the log: nobody waits for them."""

    def refused(self, error: kafka.ProtocolError, count: int) -> None:
        """``count`` more records failed."""
        self._count += count
        self._first = self._first or error
        self._outcomes.add(error.outcome)

    def ended(self, future: asyncio.Future[RecordMetadata]) -> None:
        """A record that has a future, for a ledger, is acknowledged or failed."""
        error = None if future.cancelled() else future.exception()
        if isinstance(error, kafka.ProtocolError):
            self.refused(error, 1)

    def check(self) -> None:
        """Raise the first failure since the last call, with the number of records that failed; ``unknown`` if the
        outcome of any of them is.
        """
        first, count, outcomes = self._first, self._count, self._outcomes
        if first is None:
            return
        self._first, self._count, self._outcomes = None, 0, set()
        outcome = first.outcome if len(outcomes) == 1 else kafka.UNKNOWN
        message = (
            f"{first.message} ({count} of the records that were sent without a future failed; this is the first error)"
        )
        raise type(first)(message, outcome=outcome, **first.facts)


Waiting: TypeAlias = "asyncio.Future[RecordMetadata] | Part | Unwatched"
Queue: TypeAlias = PartitionQueue[Waiting]


def acknowledge(batch: Batch[Waiting], answer: m.ProducedPartition | None) -> None:
    """Tell the waiters of an appended batch; None: there is no answer to expect (acks=0), offsets are -1."""
    topic, partition = where = batch.topic_partition
    base, log_start, append_time = (
        (answer.base_offset, answer.log_start_offset, answer.log_append_time_ms) if answer is not None else (-1, -1, -1)
    )
    timestamp_type = 1 if append_time >= 0 else 0
    # Once per record: tuple.__new__ is what RecordMetadata's own constructor ends in, without the arguments' check.
    new = tuple.__new__
    for sink, index, count, timestamp in batch.waiters:
        offset = base + index if base >= 0 else -1
        if append_time >= 0:
            timestamp = append_time  # noqa: PLW2901 - LogAppendTime replaces the record's own
        metadata = new(RecordMetadata, (topic, partition, where, offset, timestamp, timestamp_type, log_start))
        if isinstance(sink, Part):
            sink.landed(metadata, count, batch.place)
        elif isinstance(sink, Unwatched):
            sink.landed(metadata, count)
        elif not sink.done():
            sink.set_result(metadata)
    batch.waiters = []


def refuse(batch: Batch[Waiting], error: kafka.ProtocolError) -> None:
    """Tell the waiters of a failed batch; each gets an exception of its own, tracebacks grow with every raise."""
    for sink, _, count, _ in batch.waiters:
        each = type(error)(error.message, outcome=error.outcome, **error.facts)
        if isinstance(sink, Part | Unwatched):
            sink.refused(each, count)
        elif not sink.done():
            sink.set_exception(each)
    batch.waiters = []


class Sender:
    """Owner of the sending task and of the calls in flight."""

    def __init__(
        self,
        config: ProducerConfig,
        world: World,
        accumulator: Accumulator[Waiting],
        metadata: Metadata,
        caller: Caller,
    ) -> None:
        self.topics: dict[str, list[Queue]] = {}
        """One queue per partition, of the topics that were sent to and that metadata knows."""
        self._queues: dict[TopicPartition, Queue] = {}
        """Every queue there ever was: its sequences go on even if the topic was out of sight for a while."""
        self.epochs: dict[TopicPartition, Epoch] = {}
        """The leader epoch of each partition's last acknowledgement."""
        self.broken: BaseException | None = None
        """Why the producer ended by itself: a bug, or metadata of another cluster."""
        self.on_failure: Callable[[kafka.ProtocolError], None] = lambda _: None
        """Called with the error of each batch that failed for good, before its waiters."""
        self._config = config
        self.world = world
        self._accumulator = accumulator
        self.metadata = metadata
        self._caller = caller
        self._wake = Flag()
        self.wake: Callable[[], None] = self._wake.set
        """Look again: something was added, or is urgent."""
        self._tasks = Tasks(lambda _task, error: self.fail(error))
        self._main: asyncio.Task[None] | None = None
        self._identity_task: asyncio.Task[None] | None = None
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._space: list[tuple[int, asyncio.Future[None]]] = []
        metadata.listeners.append(self._on_metadata)

    def start(self) -> None:
        self._main = self._tasks.spawn(self._run(), "producer-sender")

    async def stop(self) -> None:
        """Cancel what is in flight and answer all who still wait."""
        try:
            await self._tasks.end()
        finally:
            self._fail_all("the producer was stopped")

    # ---------------------------------------------------------------------------------------- for the producer

    async def flushed(self) -> None:
        """Return when every record added before the call has its answer; in a transaction, when none of them is in
        flight either.
        """
        newest = self._accumulator.newest
        oldest = self._oldest_awaited()
        if self.broken is not None or oldest is None or oldest > newest:
            return
        await self._wait_among(self._flushes, newest)

    async def _wait_among(self, waiters: list[tuple[int, asyncio.Future[None]]], number: int) -> None:
        """Wait, as one of ``waiters``, until :meth:`_settle` or the end of the producer; batches do not linger then."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (number, waiting)
        waiters.append(entry)
        self._accumulator.urgent += 1
        self.wake()
        try:
            await waiting
        finally:
            self._accumulator.urgent -= 1
            waiters.remove(entry)

    def _oldest_awaited(self) -> int | None:
        """Number of the oldest batch that a flush waits for; None: there is none."""
        accumulator = self._accumulator
        is_transactional = self._config.transactional_id is not None
        return accumulator.oldest_unfinished if is_transactional else accumulator.oldest_unanswered

    async def space_for(self, size: int, deadline: float) -> None:
        """Wait for buffer memory; RequestTimedOut (not written) at ``deadline``."""
        while self._accumulator.size + size > self._config.buffer_memory and self._accumulator.size > 0:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wait_among(self._space, size)
            except TimeoutError:
                raise kafka.RequestTimedOut(
                    f"buffer_memory={self._config.buffer_memory} bytes are full of unacknowledged records and stayed so"
                    f" for max_block_ms={self._config.max_block_ms}",
                    outcome=kafka.NOT_WRITTEN,
                ) from None
            self.check()

    def begin_identity(self, identity: Identity) -> None:
        """The next transaction begins, with an epoch of its own."""
        self._accumulator.begin_identity(identity, self._queues.values())

    def drop_unsent(self, error: kafka.ProtocolError) -> None:
        """Fail what is not in flight."""
        for failure in self._accumulator.drop_unsent(error):
            refuse(failure.batch, failure.error)
        self.wake()

    def check(self) -> None:
        """Raise what ended the producer, if anything did."""
        if self.broken is not None:
            raise self.broken

    def queues(self, topic: str) -> list[Queue] | None:
        """The topic's queues, as many as it has partitions; None when metadata does not know the topic."""
        known = self.metadata.view.partition_count(topic)
        if known is None:
            self.topics.pop(topic, None)
            return None
        queues = self.topics.setdefault(topic, [])
        del queues[known:]
        for index in range(len(queues), known):
            partition = TopicPartition(topic, index)
            if partition not in self._queues:
                self._queues[partition] = self._accumulator.queue(topic, index)
            queues.append(self._queues[partition])
        return queues

    # ---------------------------------------------------------------------------------------- the tasks

    def fail(self, error: BaseException) -> None:
        """End the producer: nothing more is sent, every waiter gets the reason."""
        if self.broken is None:
            self.broken = error
            self.topics.clear()
            self.world.events("producer_broken", error=repr(error))
            self._fail_all(f"the producer ended: {error!r}")
            if self._main is not None:
                self._main.cancel()

    async def _run(self) -> None:
        accumulator, clock, wake = self._accumulator, self.world.clock, self._wake
        while True:
            wake.clear()
            drained = accumulator.drain(clock.now(), self._leader_of)
            for failure in drained.failures:
                self._refuse(failure.batch, failure.error)
            for call in drained.calls:
                self._tasks.spawn(self._produce(call), "producer-call")
            if drained.leaderless:
                self.metadata.refresh_soon()
            if drained.wants_identity and self._identity_task is None:
                self._identity_task = self._tasks.spawn(self._init_producer_id(), "producer-identity")
            self._settle()
            await wake.wait(drained.deadline)

    def _leader_of(self, topic: str, partition: int) -> NodeId:
        node = self.metadata.view.leader(topic, partition).node
        return node if node in self.metadata.view.brokers else NO_NODE

    async def _produce(self, call: Call[Waiting]) -> None:
        """One request and its answer. The answer of a partition that is missing counts as unknown."""
        config, clock = self._config, self.world.clock
        sequencing = PIPELINED if self._accumulator.pipelines else PLAIN
        request = m.ProduceRequest(
            acks=config.required_acks,
            timeout_ms=config.request_timeout_ms,
            client_id=config.client_id,
            transactional_id=config.transactional_id,
            transaction_version=0 if config.transactional_id is None else TRANSACTION_V2,
            partitions=tuple(
                m.ProducePartition(
                    topic=each.queue.topic,
                    partition=each.queue.partition,
                    records=(each.data or b"",),
                    sequencing=FOLLOWS if each.follows else sequencing,
                )
                for each in call.batches
            ),
        )
        if config.required_acks == 0:
            for batch in call.batches:
                acknowledge(batch, None)
        answers: dict[tuple[str, int], m.ProducedPartition] = {}
        refusal: kafka.ProtocolError | None = None
        endpoints: object = ()
        try:
            deadline = clock.now() + config.request_timeout_ms / 1000 + ANSWER_GRACE_S
            response: m.ProduceResponse
            if self._config.idempotent:
                # A copy that the former leader may have replicated is recognized by its sequence.
                partitions = [each.topic_partition for each in call.batches]
                response = await self.metadata.call_leader(call.node, request, partitions, deadline=deadline)
            else:
                response = await self.metadata.call(call.node, request, deadline=deadline)
            answers = {(each.topic, each.partition): each for each in response.partitions}
            endpoints = response.node_endpoints
        except kafka.ProtocolError as error:
            refusal = error
        self._accumulator.call_ended(call.node)
        now = clock.now()
        for batch in call.batches:
            where = (batch.queue.topic, batch.queue.partition)
            self._on_answer(batch, answers.get(where), refusal, endpoints, now)
            if self._leader_of(*where) not in (NO_NODE, call.node):
                # The refusal, or metadata meanwhile, named another leader: no pause before it is asked.
                self._accumulator.leader_changed(batch.queue)
        self.wake()

    def _on_answer(
        self,
        batch: Batch[Waiting],
        answer: m.ProducedPartition | None,
        refusal: kafka.ProtocolError | None,
        endpoints: object,
        now: float,
    ) -> None:
        error = refusal
        if error is None:
            error = (
                error_in(answer) if answer is not None else kafka.UnknownServerError("no answer", outcome=kafka.UNKNOWN)
            )
        if error is None or is_success(error):
            self.epochs[batch.topic_partition] = NO_EPOCH if answer is None else answer.leader_epoch
            acknowledge(batch, answer)
            self._accumulator.succeeded(batch)
            return
        if error.stale_metadata or isinstance(error, kafka.NetworkException):
            leader = answer.current_leader if answer is not None else None
            self.metadata.learn_leader(batch.topic_partition, leader, endpoints)
        if self._config.required_acks == 0 and error.outcome != kafka.NOT_WRITTEN:
            # Nobody waits for it, and sending it again might write it twice.
            self._accumulator.succeeded(batch)
            return
        identity = batch.queue.identity
        failure = self._accumulator.failed(batch, error, now, self.metadata.backoff.pause_s(batch.attempts))
        self.world.events(
            "produce_attempt_failed",
            partition=str(batch.topic_partition),
            error=error.name,
            outcome=error.outcome,
            attempts=batch.attempts,
            final=failure is not None,
        )
        if batch.queue.identity != identity:
            self.world.events(
                "producer_epoch_bumped", partition=str(batch.topic_partition), identity=batch.queue.identity
            )
        if failure is not None:
            self._refuse(failure.batch, failure.error)

    def _refuse(self, batch: Batch[Waiting], error: kafka.ProtocolError) -> None:
        self.world.events(
            "delivery_failed",
            partition=str(batch.topic_partition),
            records=batch.record_count,
            error=error.name,
            outcome=error.outcome,
        )
        self.on_failure(error)
        refuse(batch, error)

    async def _init_producer_id(self) -> None:
        """Get a producer id from any broker; batches wait for it, within their delivery timeout. A refusal that no
        other attempt can mend fails them.
        """
        attempts = 0
        try:
            while True:
                for address in self.metadata.any_addresses():
                    deadline = self.world.clock.now() + self._config.request_timeout_ms / 1000
                    try:
                        answer: m.InitProducerIdResponse = await self._caller.call(
                            address, m.InitProducerIdRequest(), deadline=deadline
                        )
                    except kafka.ProtocolError as error:
                        self.world.events("init_producer_id_failed", error=error.name, message=error.message)
                        self._accumulator.why_no_identity = error.message
                        if error.retriable:
                            continue
                        for failure in self._accumulator.refuse_identity(error):
                            self._refuse(failure.batch, failure.error)
                        return
                    self._accumulator.identity = Identity(answer.producer_id, answer.producer_epoch)
                    self._accumulator.why_no_identity = ""
                    return
                attempts += 1
                await asyncio.sleep(self.metadata.backoff.pause_s(attempts))
        finally:
            self._identity_task = None
            self.wake()

    # ---------------------------------------------------------------------------------------- waiters

    def _on_metadata(self, update: Update) -> None:
        if self.metadata.failed is not None:
            self.fail(self.metadata.failed)
            return
        for topic in list(self.topics):
            self.queues(topic)
        for partition in update.changed:
            queue = self._queues.get(partition)
            if queue is not None:
                self._accumulator.leader_changed(queue)
        self.wake()

    def _settle(self) -> None:
        """Release flushes that are done and senders for whom there is memory."""
        if self._flushes:
            oldest = self._oldest_awaited()
            for newest, waiting in self._flushes:
                if (oldest is None or oldest > newest) and not waiting.done():
                    waiting.set_result(None)
        taken = self._accumulator.size
        for size, waiting in self._space:
            # First come, first served; a record larger than the whole buffer gets it for itself.
            if taken > 0 and taken + size > self._config.buffer_memory:
                break
            taken += size
            if not waiting.done():
                waiting.set_result(None)

    def _fail_all(self, why: str) -> None:
        for batch in self._accumulator.abandon():
            unknown = batch.once_unknown or batch in batch.queue.in_flight
            refuse(batch, kafka.RequestTimedOut(why, outcome=kafka.UNKNOWN if unknown else kafka.NOT_WRITTEN))
        for _, waiting in [*self._space, *self._flushes]:
            if not waiting.done():
                waiting.set_result(None)
