"""The producer as applications see it (S24 to S26), with aiokafka's method and parameter names.

Records go to the accumulator; ``sender.py`` sends them. ``send`` is the hot path: what it does per record is one
look-up of the topic, the choice of a partition, one append in the compiled codec and one future. ``send_many`` does
without the future per record.

Idempotence is on by default: a retry neither duplicates nor reorders. Without it (``acks`` 0 or 1, or
``enable_idempotence=False``) a request whose answer was lost is sent again and may be written twice.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from itertools import accumulate
from typing import Any, Literal, NamedTuple, cast, overload

from minikafka import errors as kafka
from minikafka.client.accumulator import Accumulator
from minikafka.client.batches import NO_HEADERS, RECORD_OVERHEAD_MAX, UNFIT, BatchToSend, check_rows, record_size, unfit
from minikafka.client.caller import Caller, Client
from minikafka.client.ledger import AckLedger, LedgerSink
from minikafka.client.metadata import AbsentPartitions, Metadata, no_partition
from minikafka.client.partitioner import KeyHashes, choose_sticky
from minikafka.client.sender import Part, Queue, Sender, Unwatched, Waiting
from minikafka.client.settings import ProducerConfig
from minikafka.client.structs import GroupMetadata, OffsetAndMetadata, RecordMetadata, SentRecords
from minikafka.client.transactions import State, Transactions, offsets_of
from minikafka.config import KIB
from minikafka.ports import World
from minikafka.tasks import Step, in_turn
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import HEADER_SIZE
from minikafka.wire.records import Headers, PlainRows, Row, Rows

# A list is what the compiled codec takes without a conversion; nobody changes it.
NO_HEADERS_LISTED: Headers = []

STICKY_SIZE = 16 * KIB
"""Bytes without a key that go to one partition before another one is chosen: Kafka's default batch.size (KIP-794)."""

UNENDED = (State.OPEN, State.DOOMED, State.ABORTING)
"""``stop`` aborts such a transaction."""

LEDGER_PROCESS = "producer"
"""A producer's name in its ledger, unless it has a ``client_id``."""

RecordLike = bytes | tuple[Any, ...]
"""What ``send_many`` takes: a value, or (key, value), (key, value, headers) or (key, value, headers, timestamp_ms)."""


class SentPart(NamedTuple):
    """Some records of a ``send_many`` that share a batch, and so a fate."""

    indexes: Sequence[int]
    """Which of the records that were given, in order."""
    partition: int
    future: asyncio.Future[SentRecords]


class Producer(Client):
    """Sends records. Use ``async with``, or ``start`` and ``stop``.

    This is the form with the world given; ``minikafka.Producer(bootstrap_servers=...)`` makes its own.
    """

    _kind = "a producer"

    def __init__(
        self,
        config: ProducerConfig,
        world: World | AbstractAsyncContextManager[World],
        *,
        ledger: AbstractContextManager[LedgerSink] | None = None,
    ) -> None:
        super().__init__(world)
        self.config = config
        self._ledger_source = ledger
        if ledger is not None and config.transactional_id is not None:
            raise kafka.InvalidConfig(
                "a ledger does not know of transactions: leave out ledger or transactional_id", setting="ledger"
            )
        self._ledger: AckLedger | None = None
        self._transactions: Transactions | None = None
        self._metadata: Metadata | None = None
        self._sender: Sender | None = None
        self._accumulator: Accumulator[Waiting] = Accumulator(
            batch_size=min(config.max_batch_size, config.max_request_size),
            linger_s=config.linger_ms / 1000,
            request_size_max=config.max_request_size,
            delivery_timeout_s=config.delivery_timeout_ms / 1000,
            compression=config.compression_type or "none",
            idempotent=config.idempotent,
            transactional=config.transactional_id is not None,
            calls_per_node_max=config.max_in_flight_requests_per_connection,
            in_flight_max=config.max_in_flight_batches,
        )
        self._unwatched = Unwatched()
        self._topics: dict[str, list[Queue]] = {}
        """The sender's queues, while the producer runs; empty otherwise, so that ``send`` takes its slow path."""
        self._sticky: dict[str, tuple[int, int]] = {}
        """Topic -> (partition, bytes that still go there)."""
        self._hash = KeyHashes()
        self._partitioner = config.partitioner
        self._key_of = config.key_serializer
        self._value_of = config.value_serializer
        # Read by every send: what does not change.
        self._record_size_max = config.max_request_size - HEADER_SIZE
        self._buffer_memory = config.buffer_memory
        self._stopping = False

    # ---------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Connect to the cluster. NetworkException when no bootstrap server answers in default_api_timeout_ms."""
        world = await self._enter_world()
        try:
            self._create_future = asyncio.get_running_loop().create_future
            self._now, self._wall_ms = world.clock.now, world.clock.wall_ms
            caller = Caller(world)
            self._metadata = Metadata(self.config, world, caller, auto_create=self.config.allow_auto_create_topics)
            await self._metadata.start(world.clock.now() + self.config.default_api_timeout_ms / 1000)
            self._sender = Sender(self.config, world, self._accumulator, self._metadata, caller)
            if self.config.transactional_id is None:
                self._topics = self._sender.topics
            else:
                self._transactions = Transactions(
                    self.config,
                    world,
                    self._metadata,
                    self._sender,
                    self._accumulator,
                    on_doomed=self._close_topics,
                )
            if self._ledger_source is not None:
                self._ledger = AckLedger(
                    self._resources.enter_context(self._ledger_source),
                    self.config.client_id or LEDGER_PROCESS,
                    self._sender.epochs,
                    self._sender.fail,
                    answers=self.config.required_acks != 0,
                    idempotent=self.config.idempotent,
                )
            self._sender.start()
            if self._transactions is not None:
                await self._transactions.initialize()
        except BaseException:
            await self._close()
            raise

    async def stop(self) -> None:
        """Send what is buffered, wait for the answers (delivery_timeout_ms at most), and close.

        Raises as :meth:`flush` does if records that were sent with ``future=False`` failed.
        """
        await self._stop()
        self._unwatched.check()

    async def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._topics = {}
        try:
            if self._transactions is not None and self._transactions.state in UNENDED:
                await self._transactions.abort()
            elif self._sender is not None:
                await self._sender.flushed()
        finally:
            await self._close()

    async def _close(self) -> None:
        self._topics = {}
        steps: list[Step] = []
        if self._sender is not None:
            steps.append(self._sender.stop)
        if self._ledger is not None:
            # The last outcomes reach the ledger through callbacks of their futures.
            steps.append(lambda: asyncio.sleep(0))
        if self._metadata is not None:
            steps.append(self._metadata.stop)
        await in_turn(*steps, self._resources.aclose)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._stop()
        if error is None:
            self._unwatched.check()

    # ---------------------------------------------------------------------------------------- sending

    @overload
    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        future: Literal[True] = True,
    ) -> asyncio.Future[RecordMetadata]: ...

    @overload
    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        future: Literal[False],
    ) -> None: ...

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        future: bool = True,
    ) -> asyncio.Future[RecordMetadata] | None:
        """Buffer one record and return the future of its RecordMetadata.

        Waits for metadata and for buffer memory, ``max_block_ms`` at most: then RequestTimedOut or
        UnknownTopicOrPartition, not written. A partition that the topic does not have is an error after three seconds
        in which brokers name the same number of partitions: it might be being added. MessageTooLarge for a record
        beyond ``max_request_size``, InvalidRequest for one that is not bytes. The future fails with a ProtocolError
        whose ``outcome`` says what is known: ``not_written`` or ``unknown``.

        With ``future=False`` the record gets no future, which takes less CPU and memory for each record: the next
        :meth:`flush`, or :meth:`stop`, raises the first error of such records and says how many failed.
        """
        if self._key_of is not None:
            key = self._key_of(key)
        if self._value_of is not None:
            value = self._value_of(value)
        try:
            if headers:
                size = record_size(key, value, headers)
            else:
                headers = NO_HEADERS_LISTED
                size = RECORD_OVERHEAD_MAX
                if key is not None:
                    size += len(key)
                if value is not None:
                    size += len(value)
            accumulator = self._accumulator
            queues = self._topics.get(topic)
            try:
                if size > self._record_size_max:
                    raise self._too_large(size)
                if queues is None or accumulator.size + size > self._buffer_memory:
                    queues = await self._admitted(topic, size)
                if partition is None:
                    partition = self._partition(topic, queues, key, size)
                elif not 0 <= partition < len(queues):
                    queues = await self._with_partition(topic, partition)
            except kafka.ProtocolError as error:
                self._note_refused(topic, partition, [(0, key, value, headers)], error)
                raise
            waiting: asyncio.Future[RecordMetadata] | None = None
            if future or self._ledger is not None:
                waiting = self._create_future()
            if self._ledger is not None and waiting is not None:
                # What stands there as sent must not be refused by the codec afterwards.
                if (wrong := unfit(key, value, headers, timestamp_ms)) is not None:
                    raise wrong
                self._ledger.follow(self._ledger.sent(topic, partition, ((key, value),)), waiting)
                if not future:
                    waiting.add_done_callback(self._unwatched.ended)
            if accumulator.append(
                queues[partition],
                self._unwatched if waiting is None else waiting,
                self._wall_ms() if timestamp_ms is None else operator.index(timestamp_ms),
                key,
                value,
                headers,
                size,
                self._now(),
            ):
                self._running().wake()
            return waiting if future else None
        except UNFIT as error:
            if (wrong := unfit(key, value, headers, timestamp_ms, partition=partition)) is not None:
                raise wrong from error
            raise

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """:meth:`send`, and wait for the acknowledgement."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def send_many(
        self,
        topic: str,
        records: Iterable[RecordLike],
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[SentPart]:
        """Buffer many records at a fraction of ``send``'s price; one future per part, not per record.

        A record is a value (bytes), or a tuple (key, value[, headers[, timestamp_ms]]). Records of one partition keep
        their order. MessageTooLarge, and InvalidRequest for what is not bytes, are raised before anything is buffered;
        a part for which memory stayed full, or whose metadata stayed unknown, has a failed future (not written).
        """
        now_ms = self._running().world.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        given = list(records)
        if not given:
            return []
        plain = set(map(type, given)) == {bytes}
        rows: Rows = PlainRows(now_ms, cast("list[bytes]", given)) if plain else [_row(each, now_ms) for each in given]
        if self._key_of is not None or self._value_of is not None:
            rows = [self._serialized(row) for row in rows]
        check_rows(rows)
        try:
            return await self._send_many(topic, rows, partition)
        except kafka.ProtocolError as error:
            self._note_refused(topic, partition, rows, error)
            raise

    def create_batch(self) -> BatchToSend:
        """An empty batch to fill and give to :meth:`send_batch`."""
        return BatchToSend(
            compression=self.config.compression_type or "none",
            size_max=self.config.max_batch_size,
            wall_ms=self._running().world.clock.wall_ms(),
            transactional=self._transactions is not None,
            rows=None if self._ledger is None else [],
        )

    async def send_batch(self, batch: BatchToSend, topic: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        """Send a filled batch to one partition; the future is the RecordMetadata of its first record."""
        batch.close()
        if batch.record_count() == 0:
            raise kafka.InvalidRequest("the batch holds no records")
        rows = batch.rows or []
        try:
            await self._admitted(topic, batch.size())
            queues = await self._with_partition(topic, partition)
        except kafka.ProtocolError as error:
            self._note_refused(topic, partition, rows, error)
            raise
        future: asyncio.Future[RecordMetadata] = self._create_future()
        self._note_sent(topic, partition, rows, future)
        part = Part(future, batch.record_count())
        part.only_first = True
        self._accumulator.add_built(queues[partition], part, batch.builder, batch.first_timestamp, self._now())
        self._running().wake()
        return future

    async def flush(self) -> None:
        """Send what is buffered now, without lingering, and wait until all of it has an answer.

        Raises the first error of the records that were sent with ``future=False`` since the last call.
        """
        sender = self._running()
        await sender.flushed()
        sender.check()
        self._unwatched.check()

    async def partitions_for(self, topic: str) -> frozenset[int]:
        """The topic's partitions."""
        self._running()
        return frozenset(range(len(await self._known(topic, 1, self._now() + self.config.max_block_ms / 1000))))

    # ---------------------------------------------------------------------------------------- transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """``async with producer.transaction():`` commits at the end of the block; an exception in it aborts.

        Raises as :meth:`commit_transaction` does; a transaction that could not be committed has been aborted then,
        unless the outcome is unknown.
        """
        await self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException:
            if self._transactional().state in (State.OPEN, State.DOOMED):
                await self.abort_transaction()
            raise

    async def begin_transaction(self) -> None:
        """Begin a transaction: records are sent, and offsets committed, within one only."""
        self._transactional().begin()
        self._topics = self._running().topics

    async def commit_transaction(self) -> None:
        """Wait until every record is acknowledged, and commit the transaction.

        Readers with ``isolation_level="read_committed"`` see its records a moment later, partition by partition.

        Raises:
            TransactionAbortable: A record or offsets failed, and nothing was committed: abort the transaction.
            ProducerFenced: Another producer has this transactional id, or the transaction timed out; nothing was
                committed, unless the error's ``outcome`` is unknown.
            RequestTimedOut: The outcome is unknown: call this method again.
        """
        transactions = self._transactional()
        self._close_topics()
        await transactions.commit()

    async def abort_transaction(self) -> None:
        """Abort the transaction: no reader with ``isolation_level="read_committed"`` will see its records."""
        transactions = self._transactional()
        self._close_topics()
        await transactions.abort()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata], group_id: str | GroupMetadata
    ) -> None:
        """Commit what a group has consumed as part of the transaction: it counts if and only if that is committed.

        Args:
            offsets: The next offset to read of each partition, as ``Consumer.position`` returns it.
            group_id: ``consumer.group_metadata()``: a consumer that has lost its partitions is fenced. A group's name
                alone does not fence.

        Raises:
            IllegalGeneration: The group has gone on without this consumer: abort the transaction.
            TransactionAbortable: A copy of an earlier request for other offsets of a partition may still arrive, since
                its first attempt got no response. It would be the last word: abort the transaction.
            ProtocolError: The offsets were not committed, or the outcome is unknown: abort the transaction.
        """
        of_group = GroupMetadata(group_id) if isinstance(group_id, str) else group_id
        await self._transactional().send_offsets(offsets_of(offsets), of_group)

    def _close_topics(self) -> None:
        """Let each ``send`` take its slow path, which refuses it."""
        self._topics = {}

    def _transactional(self) -> Transactions:
        self._running()
        if self._transactions is None:
            raise kafka.InvalidRequest("this producer has no transactions: give it a transactional_id")
        return self._transactions

    # ---------------------------------------------------------------------------------------- partition

    def _partition(self, topic: str, queues: list[Queue], key: bytes | None, size: int) -> int:
        """S26: the configured partitioner, or murmur2 of the key, or the sticky partition without one."""
        if self._partitioner is not None:
            chosen = self._partitioner(key, list(range(len(queues))), self._with_leader(topic, len(queues)))
            if not 0 <= chosen < len(queues):
                raise kafka.InvalidRequest(
                    f"the partitioner chose partition {chosen} of {topic}, which has {len(queues)}"
                )
            return chosen
        if key is not None:
            return self._hash(key) % len(queues)
        partition, left = self._sticky.get(topic, (-1, 0))
        if left <= 0 or partition >= len(queues):  # a topic that is created again may have fewer
            partition, left = self._next_sticky(topic, queues, partition), min(self.config.max_batch_size, STICKY_SIZE)
        self._sticky[topic] = (partition, left - size)
        return partition

    def _with_leader(self, topic: str, count: int) -> list[int]:
        view = self._running().metadata.view
        return [index for index in range(count) if view.leader(topic, index).node in view.brokers]

    def _next_sticky(self, topic: str, queues: list[Queue], current: int) -> int:
        available = self._with_leader(topic, len(queues)) or list(range(len(queues)))
        lengths = [len(queues[index].batches) for index in available]
        return choose_sticky(self._running().world.random, available, lengths, current)

    # ---------------------------------------------------------------------------------------- ledger

    def _note_sent(self, topic: str, partition: int, rows: Sequence[Row], future: asyncio.Future[Any]) -> None:
        if self._ledger is not None:
            self._ledger.follow(self._ledger.sent(topic, partition, _named(rows)), future)

    def _note_buffered(self, topic: str, partition: int, rows: Sequence[Row], future: asyncio.Future[Any]) -> None:
        """Only now is it known how many fitted; a ledger that cannot be written has ended the producer, unsent."""
        try:
            self._note_sent(topic, partition, rows, future)
        except OSError:
            future.exception()
            raise

    def _note_refused(self, topic: str, partition: int | None, rows: Sequence[Row], error: kafka.ProtocolError) -> None:
        if self._ledger is not None:
            self._ledger.refused(topic, partition, _named(rows), error)

    # ---------------------------------------------------------------------------------------- slow paths

    async def _send_many(self, topic: str, rows: Rows, partition: int | None) -> list[SentPart]:
        queues = self._topics.get(topic) or await self._admitted(topic, 0)
        if partition is not None and not 0 <= partition < len(queues):
            queues = await self._with_partition(topic, partition)
        everything = range(len(rows))
        if partition is not None:
            return await self._send_rows(topic, partition, rows, everything)
        if self._partitioner is None and (isinstance(rows, PlainRows) or all(row[1] is None for row in rows)):
            return await self._send_rows(topic, None, rows, everything)
        self._check_sizes(rows)
        groups: list[list[int]] = [[] for _ in queues]
        hash_of, count, default = self._hash, len(queues), self._partitioner is None
        for index, row in enumerate(rows):
            key = row[1]
            if default and key is not None:
                groups[hash_of(key) % count].append(index)
            else:
                at = self._partition(topic, queues, key, RECORD_OVERHEAD_MAX + len(row[2] or b""))
                groups[at].append(index)
        parts: list[SentPart] = []
        for at, indexes in enumerate(groups):
            if indexes:
                parts.extend(await self._send_rows(topic, at, [rows[index] for index in indexes], indexes))
        return parts

    async def _send_rows(self, topic: str, partition: int | None, rows: Rows, indexes: Sequence[int]) -> list[SentPart]:
        """Buffer rows batch by batch, to one partition or (None) to sticky ones, letting the sender run in between."""
        ends = list(accumulate(self._check_sizes(rows)))
        parts: list[SentPart] = []
        start = 0
        while start < len(rows):
            future: asyncio.Future[SentRecords] = self._create_future()
            try:
                size = ends[start] - (ends[start - 1] if start else 0)
                queues = self._topics.get(topic)
                if queues is None or self._accumulator.size + size > self._buffer_memory:
                    queues = await self._admitted(topic, size)
                at = self._partition(topic, queues, None, 0) if partition is None else partition
                if at >= len(queues):
                    raise no_partition(TopicPartition(topic, at), len(queues))
            except kafka.ProtocolError as error:
                self._note_refused(topic, partition, [rows[index] for index in range(start, len(rows))], error)
                future.set_exception(error)
                parts.append(SentPart(indexes[start:], -1 if partition is None else partition, future))
                break
            part = Part(future)
            room = self._buffer_memory - self._accumulator.size
            taken = self._accumulator.extend(queues[at], part, rows, start, ends, room, self._now())
            part.left = taken
            if self._ledger is not None:
                self._note_buffered(topic, at, [rows[index] for index in range(start, start + taken)], future)
            if partition is None:
                sent = ends[start + taken - 1] - (ends[start - 1] if start else 0)
                self._sticky[topic] = (at, self._sticky[topic][1] - sent)
            parts.append(SentPart(indexes[start : start + taken], at, future))
            start += taken
            self._running().wake()
            if start < len(rows):
                # A megabyte of records was built: let answers in and requests out.
                await asyncio.sleep(0)
        return parts

    def _check_sizes(self, rows: Rows) -> list[int]:
        limit = self._record_size_max
        if isinstance(rows, PlainRows):
            sizes = list(map(RECORD_OVERHEAD_MAX.__add__, map(len, rows.values)))
        else:
            sizes = [record_size(key, value, headers) for _, key, value, headers in rows]
        if max(sizes) > limit:
            raise self._too_large(max(sizes))
        return sizes

    def _too_large(self, size: int) -> kafka.MessageTooLarge:
        limit = self.config.max_request_size
        return kafka.MessageTooLarge(
            f"a record of {size + HEADER_SIZE} bytes (with its batch's header) is beyond max_request_size={limit}",
            max_request_size=limit,
        )

    def _serialized(self, row: Row) -> Row:
        timestamp, key, value, headers = row
        return (
            timestamp,
            key if self._key_of is None else self._key_of(key),
            value if self._value_of is None else self._value_of(value),
            headers,
        )

    async def _admitted(self, topic: str, size: int) -> list[Queue]:
        """The topic's queues, once metadata knows the topic and the buffer has room for ``size`` more bytes."""
        sender = self._running()
        number = self._transaction_number()
        deadline = self._now() + self.config.max_block_ms / 1000
        queues = await self._known(topic, 1, deadline)
        await sender.space_for(size, deadline)
        self._check_goes_on(number)
        return queues

    async def _with_partition(self, topic: str, partition: int) -> list[Queue]:
        if partition < 0:
            raise kafka.InvalidRequest(f"{topic}: partition {partition} is negative")
        number = self._transaction_number()
        queues = await self._known(topic, partition + 1, self._now() + self.config.max_block_ms / 1000)
        self._check_goes_on(number)
        return queues

    def _transaction_number(self) -> int | None:
        """Return the number of the open transaction; None without transactions. Raises InvalidRequest."""
        return None if self._transactions is None else self._transactions.check_open()

    def _check_goes_on(self, number: int | None) -> None:
        """Raise unless the producer runs, and its transaction is the one that was open before it waited."""
        self._running()
        if self._transaction_number() != number:
            raise kafka.InvalidRequest("the transaction ended while this record waited to be buffered: it was not sent")

    async def _known(self, topic: str, count: int, deadline: float) -> list[Queue]:
        """The topic's queues once it has at least ``count`` partitions (S27)."""
        sender = self._running()
        metadata = sender.metadata
        if not isinstance(topic, str):
            raise kafka.InvalidRequest(f"topic: a str is needed, not {type(topic).__name__}", field="topic")
        metadata.follow(topic)
        absent = AbsentPartitions(metadata.view, sender.world.clock)
        while True:
            queues = sender.queues(topic)
            if queues is not None and len(queues) >= count:
                return queues
            if queues is None:
                error = metadata.view.errors.get(topic)
                if error is not None and not error.retriable:
                    raise type(error)(f"{topic}: {error.message}", outcome=kafka.NOT_WRITTEN)
            elif (missing := absent.error(TopicPartition(topic, count - 1))) is not None:
                raise missing
            try:
                await metadata.refreshed(deadline, topic=topic)
            except kafka.RequestTimedOut:
                self._running()
                if queues is not None:
                    raise no_partition(TopicPartition(topic, count - 1), len(queues)) from None
                waited = f"after max_block_ms={self.config.max_block_ms}"
                reason = metadata.view.errors.get(topic)
                if isinstance(reason, kafka.LeaderNotAvailable):
                    raise kafka.LeaderNotAvailable(f"{topic} is being created and has no leader {waited}") from None
                raise kafka.UnknownTopicOrPartition(f"no broker knows the topic {topic} {waited}") from None

    def _running(self) -> Sender:
        if self._sender is None or self._stopping:
            raise kafka.InvalidRequest(
                "the producer was stopped"
                if self._sender is not None
                else "the producer is not started; use `async with Producer(...)`, or await its start() first"
            )
        self._sender.check()
        return self._sender

    def __repr__(self) -> str:
        return f"<producer {self._accumulator!r}>"


def _named(rows: Sequence[Row]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values."""
    return ((row[1], row[2]) for row in rows)


def _row(record: Any, now_ms: int) -> Row:
    """A record as ``send_many`` takes it, spelled out."""
    if not isinstance(record, tuple):
        return now_ms, None, bytes(record) if isinstance(record, bytearray | memoryview) else record, NO_HEADERS
    if len(record) == 2:
        return now_ms, record[0], record[1], NO_HEADERS
    if not 3 <= len(record) <= 4:
        raise kafka.InvalidRequest(
            f"a record is a value or (key, value[, headers[, timestamp_ms]]), not {len(record)} members"
        )
    timestamp = record[3] if len(record) == 4 else None
    return (now_ms if timestamp is None else timestamp), record[0], record[1], record[2] or NO_HEADERS
