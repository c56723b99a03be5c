"""``df.write`` and ``df.writeStream`` to topics, with the columns of Spark's Kafka sink.

At-least-once by default: a task that is run again writes its rows again. With ``exactlyOnce=true`` each task of a
batch of a streaming query writes one transaction (transactions.py); readers with ``read_committed`` see each row once.
A batch write with ``transactional=true`` shows its rows only when the whole job has succeeded.

``exactlyOnce=sequences`` needs no transactions, and its rows are visible at once to every reader: they carry sequences
that only depend on (query, task, batch, row), so that brokers, and this sink after asking them, know what is written
already. Rules of sequences:

1. A row's sequence is its number among the rows that its task sends to its partition. That is only the same again when
   the task gets the same rows in the same order, as in map-only queries over fixed ranges of which none may be lost:
   :func:`exactly_once` looks.
2. The producer id is a digest of query and task; the producer epoch is the batch's number, so that a later batch fences
   the tasks of an earlier one. An id above 2^62 is never given out by a broker.
3. What is skipped must be committed, not just in a leader's log: DescribeProducers answers below the high watermark.
4. The topic's number of partitions must not change while a batch is run again.

Readers and writers travel to executors as :class:`Travels`: Spark pickles them by reference, and a Python without
minikafka would say no more than ModuleNotFoundError, from deep inside. The function that opens the parcel travels by
value instead (it pretends to be of ``__main__``), so that it can say what to install, and where.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from minikafka.blocking.brokers import Brokers
from minikafka.client.partitioner import partition_of_key
from minikafka.errors import UNKNOWN, InvalidProducerEpoch, NetworkException, OutOfOrderSequenceNumber, ProtocolError
from minikafka.spark.options import MAP_ONLY, ONE_TASK, Guarantee, OptionError, SinkOptions
from minikafka.spark.transactions import (
    OpenTransaction,
    TaskTransaction,
    abort_all,
    abort_run,
    abort_unreported,
    check_job_goes_on,
    commit_all,
    is_written,
    note_run,
    transactional_id,
)
from minikafka.types import TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.outcomes import error_in
from minikafka.wire.records import BatchBuilder, Row


def _open(module: str, name: str, state: dict[str, Any]) -> Any:
    import importlib  # noqa: PLC0415 - the function travels alone
    import socket  # noqa: PLC0415
    import sys  # noqa: PLC0415

    try:
        kind = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the Python of an executor ({sys.executable} on {socket.gethostname()}) has no {error.name}: run "
            f"`{sys.executable} -m pip install '.[spark]'` there, in a clone of minikafka; every driver and executor "
            "needs it"
        ) from error
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


_open.__module__ = "__main__"


class Travels:
    """Mixin: pickled as its module's name, its own name and its attributes."""

    def travelling(self) -> dict[str, Any]:
        """The attributes that go along."""
        return self.__dict__

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (type(self).__module__, type(self).__qualname__, self.travelling())


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
    """exactlyOnce is refused: a task that is run again might get other rows."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task reports."""

    rows: int
    skipped: int = 0
    """Of these, written by an earlier attempt."""
    transaction: OpenTransaction | None = None
    """What the driver commits; None: there is nothing to commit."""


COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int", "bigint", "smallint", "tinyint"),
}
"""What the sink takes, with the types that each column may have."""


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Raise OptionError unless the columns (name -> type) are those of Spark's Kafka sink."""
    if "value" not in columns:
        raise OptionError("the sink needs a column `value` (string or binary)")
    surplus = [name for name in columns if name not in COLUMNS]
    if surplus:
        raise OptionError(f"columns {', '.join(surplus)}: the sink takes {', '.join(COLUMNS)}; drop the others")
    for name, kind in columns.items():
        # A literal null is void; a collation follows the type.
        if kind.partition(" ")[0] not in (*COLUMNS[name], "void"):
            raise OptionError(f"column {name} is {kind}, {' or '.join(COLUMNS[name])} is needed: cast it")
    if options.topic is None and "topic" not in columns:
        raise OptionError("either the option `topic` or a column `topic` is needed")


def exactly_once(frame: Any, *, one_transaction: bool = False, **options: str) -> Any:
    """Return ``frame.writeStream`` with format, ``exactlyOnce=true`` and ``options`` set.

    If the analyzed plan is map-only and deterministic, each task writes a transaction of its own. Any other query is
    written by one task (``repartition(1)``), so by one transaction a batch: a task that is run again might get other
    rows, and a batch of which one task is committed could not be completed.

    Args:
        frame: A streaming DataFrame with the columns of the sink.
        one_transaction: Write every batch in one transaction, also of a map-only query.
        options: Options of the sink. ``exactlyOnce="sequences"`` writes without transactions.

    Raises:
        NotMapOnly: With ``exactlyOnce="sequences"`` the query is not map-only, or it is no streaming query.
        OptionError: ``spark.speculation`` is on: two attempts of a task would abort each other's transactions. Or a
            source has ``failOnDataLoss=false`` with ``exactlyOnce="sequences"``.
    """
    if not frame.isStreaming:
        raise NotMapOnly("exactlyOnce needs a streaming query")
    given = {name.lower(): value for name, value in options.items()}.get("exactlyonce", "true")
    is_by_sequences = given.strip().lower() == "sequences"
    if not is_by_sequences and str(frame.sparkSession.conf.get("spark.speculation", "false")).lower() == "true":
        raise OptionError("exactlyOnce=true: set spark.speculation=false; two attempts of a task abort each other")
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - the only way to the plan
    why_not = _why_not_map_only(plan)
    if why_not is not None and is_by_sequences:
        raise NotMapOnly(
            f"exactlyOnce=sequences is for map-only, deterministic queries; {why_not}: use exactlyOnce=true, or write "
            "at least once"
        )
    if is_by_sequences and any(map(_may_lose_records, _nodes(plan))):
        raise OptionError(
            "exactlyOnce=sequences needs failOnDataLoss=true at the source: a task that is run again without its first "
            "records would skip others in their place; use exactlyOnce=true"
        )
    is_parallel = why_not is None and not one_transaction
    rows = frame if is_parallel else frame.repartition(1)
    writer = rows.writeStream.format("minikafka").options(**{"exactlyOnce": "true"} | options)
    writer = writer.option("exactlyOnce.writer", uuid.uuid4().hex)
    return writer.option("exactlyOnce.plan", MAP_ONLY if is_parallel else ONE_TASK)


def _why_not_map_only(plan: Any) -> str | None:
    """Return what may give a task that is run again other rows: moved, joined, sorted or counted rows, ``rand()``."""
    for node in _nodes(plan):
        name = node.nodeName()
        if name not in MAP_ONLY_NODES:
            return f"this one has {name}, whose rows may come in another order when a task is run again"
        if not node.deterministic():
            return f"{name} has an expression that gives other values when it is run again"
    return None


def _may_lose_records(node: Any) -> bool:
    """Return True for a streaming source whose query goes on when records are gone."""
    if node.nodeName() != "StreamingRelationV2":
        return False
    return str(node.extraOptions().get("failOnDataLoss")).strip().lower() == "false"


def _nodes(plan: Any) -> Iterator[Any]:
    """All operators of a plan."""
    todo = [plan]
    while todo:
        node = todo.pop()
        yield node
        children = node.children()
        todo += [children.apply(index) for index in range(children.size())]


@dataclass(frozen=True, slots=True)
class Identity:
    """The writer: a producer id and epoch, and whether earlier attempts may have written under it."""

    producer_id: int
    epoch: int
    is_derived: bool
    transactional_id: str | None = None


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

    def __init__(
        self,
        options: SinkOptions,
        brokers: Brokers,
        identity: Identity,
        task: int,
        *,
        before_first: Callable[[str], None] | None = None,
    ) -> None:
        """Args: ``before_first`` is called with a topic before anything is sent."""
        self._options = options
        self._brokers = brokers
        self._identity = identity
        self._task = task
        self._before_first = before_first
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._size = 0
        self._keyless = 0
        self.rows = 0
        self.skipped = 0

    @property
    def topics(self) -> list[str]:
        """The topics that were written to, sorted."""
        return sorted({each.topic for each in self._partitions})

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
        size = ROW_OVERHEAD + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(each or b"") for name, each in pairs)
        # A batch stays within batch_size, unless one row is larger; all partitions together below four of them.
        if waiting.rows and waiting.size + size > self._options.batch_size:
            self._flush()
        waiting.rows.append((now_ms, key, value, pairs))
        waiting.size += size
        self._size += size
        self.rows += 1
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
        if groups and self._before_first is not None:
            self._before_first(self.topics[0])
            self._before_first = None
        for group in groups.values():
            answers = self._brokers.produce(
                group, timeout_s=PRODUCE_TIMEOUT_S, transactional_id=self._identity.transactional_id
            )
            answered = {(each.topic, each.partition): each for each in answers}
            for place, _ in group:
                if place not in answered:
                    refused = NetworkException(f"{place}: the response to Produce leaves it out", outcome=UNKNOWN)
                    continue
                error = error_in(answered[place])
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
            transactional=self._identity.transactional_id is not None,
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
            response: m.DescribeProducersResponse = self._brokers.call(
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
        self._job = uuid.uuid4().hex
        """Names a batch write, or a run of a streaming query; it travels to the tasks."""

    def write(self, iterator: Iterator[Any]) -> Written:
        options = self._options
        brokers = self._cluster()
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("the sink writes in tasks of Spark only")
        task = context.partitionId()
        if options.guarantee is Guarantee.AT_LEAST_ONCE:
            identity = Identity(*brokers.new_producer_id(), is_derived=False)
            return TaskWriter(options, brokers, identity, task).write(iterator)
        if options.guarantee is Guarantee.TRANSACTIONAL:
            transaction = self._begin(brokers, transactional_id(self._job, task))
            check_job_goes_on(brokers, self._job)
            return self._write_transaction(brokers, transaction, task, None, iterator)
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise OptionError("exactlyOnce: Spark gives this task no query id and batch id: it needs a streaming query")
        batch = int(batch_id)
        if options.guarantee is Guarantee.SEQUENCES:
            identity = derived_identity(query_id, task, batch)
            return TaskWriter(options, brokers, identity, task).write(iterator)
        if options.plan == ONE_TASK and task != 0:
            raise OptionError(f"exactlyOnce.plan={ONE_TASK}: the query has more than one task: use repartition(1)")
        if options.writer is not None:
            # A task that is killed late must not fence that of the next run.
            check_job_goes_on(brokers, self._job)
        transaction = self._begin(brokers, transactional_id(query_id, task))
        if is_written(transaction.note(), batch):
            skipped = sum(each.num_rows for each in iterator)
            return Written(skipped, skipped)

        def note_and_check(topic: str) -> None:
            if options.writer is not None:
                note_run(brokers, options.writer, self._job, query_id, topic)
                check_job_goes_on(brokers, self._job)

        return self._write_transaction(brokers, transaction, task, batch, iterator, before_first=note_and_check)

    def _write_transaction(
        self,
        brokers: Brokers,
        transaction: TaskTransaction,
        task: int,
        batch: int | None,
        iterator: Iterator[Any],
        *,
        before_first: Callable[[str], None] | None = None,
    ) -> Written:
        """Write the rows, and the note of ``batch`` if it has a number, and leave the transaction open."""
        opened = transaction.opened
        identity = Identity(opened.producer_id, opened.epoch, is_derived=False, transactional_id=transaction.name)
        writer = TaskWriter(self._options, brokers, identity, task, before_first=before_first)
        try:
            written = writer.write(iterator)
            if not written.rows:
                return written
            if batch is not None:
                transaction.write_note(batch, writer.topics[0])
        except BaseException:
            # The last stable offset need not wait for the next attempt or the timeout.
            abort_all(brokers, [opened])
            raise
        return replace(written, transaction=opened)

    def _begin(self, brokers: Brokers, name: str) -> TaskTransaction:
        return TaskTransaction(brokers, name, timeout_ms=self._options.transaction_timeout_ms)

    def _cluster(self) -> Brokers:
        return Brokers(self._options.bootstrap, api_timeout_s=self._options.api_timeout_s, tls=self._options.tls)

    def _commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written."""
        if self._options.has_transactions:
            commit_all(self._cluster(), _transactions(messages))

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was written without a transaction stays, as with Spark's Kafka sink."""
        if self._options.has_transactions:
            abort_all(self._cluster(), _transactions(messages))


def _transactions(messages: list[WriterCommitMessage | None]) -> list[OpenTransaction]:
    """Of the tasks that have written; a task that failed has no message."""
    return [each.transaction for each in messages if isinstance(each, Written) and each.transaction is not None]


def _unreported(messages: list[WriterCommitMessage | None]) -> list[int]:
    """The tasks that Spark has killed, or that failed; a killed one may go on for two seconds."""
    return [task for task, each in enumerate(messages) if each is None]


class BatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write``: with ``transactional=true`` the rows count when all tasks have ended, otherwise at once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the tasks' transactions, if there are any."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the tasks' transactions; what was written without them stays, as with Spark's Kafka sink."""
        self._abort(messages)
        if self._options.guarantee is Guarantee.TRANSACTIONAL:
            names = [transactional_id(self._job, task) for task in _unreported(messages)]
            abort_unreported(self._cluster(), self._job, names, timeout_ms=self._options.transaction_timeout_ms)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``: as :class:`BatchWriter`, batch by batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Commit the tasks' transactions, if there are any; Spark notes the batch afterwards."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the tasks' transactions that are open; without transactions, what was written stays."""
        self._abort(messages)
        options, tasks = self._options, _unreported(messages)
        if options.writer is not None and tasks:
            abort_run(self._cluster(), options.writer, tasks, timeout_ms=options.transaction_timeout_ms)
