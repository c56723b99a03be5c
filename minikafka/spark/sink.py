"""``df.write`` and ``df.writeStream`` to topics, with the columns of Spark's Kafka sink.

At-least-once by default: a task that is run again writes its rows again. With ``exactlyOnce=true`` the rows of a
streaming query carry sequences that only depend on (query, task, batch, row), so that brokers, and this sink after
asking them, know what is written already. Rules:

1. A row's sequence is its number among the rows that its task sends to its partition. That is only the same again when
   the task gets the same rows in the same order, as in map-only queries over fixed ranges: :func:`exactly_once` looks.
2. The producer id is a digest of query and task; the producer epoch is the batch's number, so that a later batch fences
   the tasks of an earlier one. An id above 2^62 is never given out by a broker.
3. What is skipped must be committed, not just in a leader's log: DescribeProducers answers below the high watermark.
4. The topic's number of partitions must not change while a batch is run again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from minikafka.blocking.brokers import Brokers, call
from minikafka.client.partitioner import partition_of_key
from minikafka.errors import InvalidProducerEpoch, NetworkException, OutOfOrderSequenceNumber, ProtocolError
from minikafka.spark.options import OptionError, SinkOptions
from minikafka.spark.travel import Travels
from minikafka.types import TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.outcomes import error_in
from minikafka.wire.records import BatchBuilder, Row

PRODUCE_TIMEOUT_S = 30.0
KEYLESS_RUN = 1_000
"""Rows without key and partition that go to one partition before the next one's turn."""

EPOCH_COUNT = 1 << 15
DERIVED_ID_BIT = 1 << 62
ROW_OVERHEAD = 64
"""Bytes that a record takes beside key, value and headers; generous."""

MAP_ONLY_NODES = frozenset(
    "Project Filter SubqueryAlias View StreamingRelation StreamingRelationV2 StreamingDataSourceV2Relation "
    "StreamingDataSourceV2ScanRelation EventTimeWatermark Generate Union MapInArrow MapInPandas MapPartitions "
    "TypedFilter DeserializeToObject SerializeFromObject AppendColumns MapElements ResolvedHint".split()
)
"""Logical operators that keep rows where they are and in order."""


class NotMapOnly(Exception):
    """exactlyOnce=true is refused: a task that is run again might get other rows."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task reports."""

    rows: int
    skipped: int = 0
    """Of these, written by an earlier attempt."""


def check_columns(names: Sequence[str], options: SinkOptions) -> None:
    """OptionError unless the columns are those of Spark's Kafka sink: value, and what else it may have."""
    allowed = ("key", "value", "headers", "topic", "partition")
    if "value" not in names:
        raise OptionError("the sink needs a column `value` (string or binary)")
    surplus = [name for name in names if name not in allowed]
    if surplus:
        raise OptionError(f"columns {', '.join(surplus)}: the sink takes {', '.join(allowed)}; drop the others")
    if options.topic is None and "topic" not in names:
        raise OptionError("either the option `topic` or a column `topic` is needed")


def exactly_once(frame: Any, **options: str) -> Any:
    """``frame.writeStream`` with format, ``exactlyOnce=true`` and ``options`` set. NotMapOnly when the query is not.

    Looked at is the analysed plan: operators that move, join, sort or count rows, and expressions that give another
    value each time (``rand()``), are refused.
    """
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - the only way to the plan
    if not frame.isStreaming:
        raise NotMapOnly("exactlyOnce=true needs a streaming query")
    todo = [plan]
    while todo:
        node = todo.pop()
        name = node.nodeName()
        if name not in MAP_ONLY_NODES:
            raise NotMapOnly(
                f"exactlyOnce=true is for map-only queries until brokers have transactions; this one has {name}, whose "
                "rows may come in another order when a task is run again: write at least once, or to files"
            )
        if not node.deterministic():
            raise NotMapOnly(f"exactlyOnce=true: {name} has an expression that gives other values when it is run again")
        children = node.children()
        todo += [children.apply(index) for index in range(children.size())]
    writer = frame.writeStream.format("minikafka").option("exactlyOnce", "true").option("exactlyOnce.plan", "map-only")
    return writer.options(**options)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: a producer id and epoch, and whether earlier attempts may have written under it."""

    producer_id: int
    epoch: int
    is_derived: bool


def derived_identity(query_id: str, task: int, batch_id: int) -> Identity:
    """The same for every attempt of one task of one batch of one query (rule 2)."""
    name = f"{query_id}/{task}/{batch_id // EPOCH_COUNT}".encode()
    digest = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
    return Identity(DERIVED_ID_BIT | digest % DERIVED_ID_BIT, batch_id % EPOCH_COUNT, is_derived=True)


class _Partition:
    """The rows that wait for one partition."""

    __slots__ = ("next_sequence", "rows", "size", "written_until")

    def __init__(self, written_until: int) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.next_sequence = 0
        """Of the first row in ``rows``."""
        self.written_until = written_until
        """Sequences below it stand in the log."""


class TaskWriter:
    """Sends the rows of one task."""

    def __init__(self, options: SinkOptions, brokers: Brokers, identity: Identity, task: int) -> None:
        self._options = options
        self._brokers = brokers
        self._identity = identity
        self._task = task
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._size = 0
        self._keyless = 0
        self.rows = 0
        self.skipped = 0

    def write(self, batches: Iterator[Any]) -> Written:
        """Send everything; returns when all of it is acknowledged by all in-sync replicas."""
        for batch in batches:
            now_ms = time.time_ns() // 1_000_000
            columns = {name: batch.column(index).to_pylist() for index, name in enumerate(batch.schema.names)}
            nothing = [None] * batch.num_rows
            for topic, partition, key, value, headers in zip(
                columns.get("topic", nothing),
                columns.get("partition", nothing),
                columns.get("key", nothing),
                columns["value"],
                columns.get("headers", nothing),
                strict=True,
            ):
                self._add(topic, partition, _bytes(key), _bytes(value), headers, now_ms)
        self._flush()
        return Written(self.rows, self.skipped)

    def _add(
        self,
        topic: str | None,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        now_ms: int,
    ) -> None:
        into = self._options.topic or topic
        if not into:
            raise OptionError("a row has no topic: set the option `topic`, or fill the column")
        place = TopicPartition(into, self._choose(into, key) if partition is None else partition)
        waiting = self._partitions.get(place)
        if waiting is None:
            waiting = self._partitions[place] = _Partition(self._written_until(place))
        pairs = _headers(headers) if self._options.include_headers or headers else []
        waiting.rows.append((now_ms, key, value, pairs))
        size = ROW_OVERHEAD + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(each or b"") for name, each in pairs)
        waiting.size += size
        self._size += size
        self.rows += 1
        # A batch stays below batch_size; all partitions together below four of them.
        if waiting.size >= self._options.batch_size or self._size >= 4 * self._options.batch_size:
            self._flush()

    def _choose(self, topic: str, key: bytes | None) -> int:
        count = self._brokers.partition_count(topic)
        if key is not None:
            return partition_of_key(key, count)
        self._keyless += 1
        return (self._task + self._keyless // KEYLESS_RUN) % count

    def _flush(self) -> None:
        """Send what waits, one request per leader, until every batch is acknowledged."""
        self._size = 0
        self._brokers.retrying("writing", self._send_waiting, timeout_s=self._options.api_timeout_s + PRODUCE_TIMEOUT_S)

    def _send_waiting(self) -> None:
        groups: dict[Any, list[tuple[TopicPartition, bytearray]]] = {}
        for place, waiting in sorted(self._partitions.items()):
            self._skip(waiting)
            if waiting.rows:
                address = self._brokers.leader(place).address
                groups.setdefault(address, []).append((place, self._built(waiting)))
        refused: ProtocolError | None = None
        for group in groups.values():
            for answer in self._brokers.produce(group, timeout_s=PRODUCE_TIMEOUT_S):
                place = TopicPartition(answer.topic, answer.partition)
                error = error_in(answer)
                if error is None:
                    self._done(self._partitions[place])
                else:
                    refused = self._judged(place, error)
        if refused is not None:
            raise refused

    def _judged(self, place: TopicPartition, error: ProtocolError) -> ProtocolError:
        if isinstance(error, InvalidProducerEpoch):
            raise error
        if isinstance(error, OutOfOrderSequenceNumber):
            # An earlier attempt still writes, or an answer was lost longer ago than brokers remember: look again.
            until = self._written_until(place)
            if until <= self._partitions[place].next_sequence:
                raise error
            self._partitions[place].written_until = until
            self._skip(self._partitions[place])
            return NetworkException(f"{place}: went on behind an earlier attempt")
        return error

    def _skip(self, waiting: _Partition) -> None:
        """Leave out the rows that an earlier attempt wrote."""
        count = min(len(waiting.rows), max(0, waiting.written_until - waiting.next_sequence))
        if count:
            del waiting.rows[:count]
            waiting.next_sequence += count
            self.skipped += count
            if not waiting.rows:
                waiting.size = 0

    def _built(self, waiting: _Partition) -> bytearray:
        builder = BatchBuilder(
            compression=self._options.compression,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=waiting.next_sequence,
        )
        builder.extend(waiting.rows)
        return builder.build()

    def _done(self, waiting: _Partition) -> None:
        waiting.next_sequence += len(waiting.rows)
        waiting.rows, waiting.size = [], 0

    def _written_until(self, place: TopicPartition) -> int:
        """The sequence after the last that this identity has committed in a partition (rule 3)."""
        if not self._identity.is_derived:
            return 0
        item = m.DescribeProducersPartition(
            topic=place.topic, partition=place.partition, producer_id=self._identity.producer_id
        )

        def ask() -> m.DescribedProducer:
            response: m.DescribeProducersResponse = call(
                self._brokers.leader(place).address, m.DescribeProducersRequest(partitions=(item,))
            )
            error = error_in(response.partitions[0])
            if error is not None:
                raise error
            return response.partitions[0]

        state = self._brokers.retrying(f"asking what was written to {place}", ask)
        if state.producer_epoch > self._identity.epoch:
            raise InvalidProducerEpoch(f"{place}: a later batch of this query was written already")
        return state.last_sequence + 1 if state.producer_epoch == self._identity.epoch else 0


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    return [(each["key"], each["value"]) for each in value or []]


class _Writer(Travels):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        options = self._options
        brokers = Brokers(options.bootstrap, api_timeout_s=options.api_timeout_s)
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("the sink writes in tasks of Spark only")
        task = context.partitionId()
        if options.exactly_once:
            query_id = context.getLocalProperty("sql.streaming.queryId")
            batch_id = context.getLocalProperty("streaming.sql.batchId")
            if query_id is None or batch_id is None:
                raise OptionError("exactlyOnce=true: Spark does not tell this task which query and batch it is of")
            identity = derived_identity(query_id, task, int(batch_id))
        else:
            identity = Identity(*brokers.new_producer_id(), is_derived=False)
        return TaskWriter(options, brokers, identity, task).write(iterator)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write``: everything is written when the tasks have ended; there is nothing to commit or to take back."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was written stays, as with Spark's Kafka sink."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``: as :class:`BatchWriter`, batch by batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks have written."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was written stays; with exactlyOnce=true the batch that is run again goes on behind it."""
