"""The sink's transactions: the rows of one task of one batch, and the note that they are written (KIP-98, KIP-890).

Rules for this file:

1. The transactional id depends on query and task only. A later attempt of the task, and a later life of the query,
   fences the former one, whose open transaction is aborted.
2. The note is an offset that is committed in the same transaction: batch + 1, for the group with the transactional id's
   name. It is read after the producer has been initialized: what an earlier attempt has not committed by then, it never
   commits.
3. A task leaves its transaction open. The driver commits all of them when all tasks have written and all are still
   open; a task whose note is there already writes nothing. So a batch of one task is atomic, and a batch of several is
   completed by its replay.
4. A response that was lost is requested again: with transaction version 2, the same EndTxn never ends the next
   transaction.
5. Spark kills the other tasks of a batch write that fails, but not at once. The driver first makes a mark, a
   transactional id of the job, and then fences each task that has not reported; a task looks for the mark after it has
   initialized its producer. So either it is fenced or it sees the mark, and its transaction holds no reader back.
6. So it does when a streaming query is stopped or fails, where Spark does not say to the driver which query it is. Each
   task notes that before its first row, in a group that both know by the name of the writer, with the run of the query:
   the run has the mark, because the query goes on in the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minikafka import errors as kafka
from minikafka.blocking.brokers import TRANSACTION_KEY, Brokers, BrokersUnreachable, Coordinator
from minikafka.types import NO_OFFSET, Offset
from minikafka.wire import messages as m
from minikafka.wire.group_messages import (
    CommitPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.outcomes import error_in
from minikafka.wire.transaction_messages import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

LOGGER = logging.getLogger("minikafka.spark")

ABORT_TIMEOUT_S, ABORT_TIMEOUT_MIN_S = 10.0, 0.5
"""So long an abort may wait for a coordinator that does not answer; less than the second is no time."""
NAME_PREFIX = "spark-sink"
ONGOING = "Ongoing"
"""The state of an open transaction in DescribeTransactions."""

_ENDED = (
    kafka.InvalidProducerEpoch,
    kafka.ProducerFenced,
    kafka.InvalidTxnState,
    kafka.InvalidProducerIdMapping,
    kafka.TransactionAbortable,
)


class BatchNotCommitted(Exception):
    """A transaction of the batch was ended by its timeout or by another run of the query; the sentence says which."""


class LaterBatchWritten(Exception):
    """The query runs a batch again, but a later one of its batches was written already."""


class JobFailed(Exception):
    """The job of this task has failed, and its driver has aborted what its tasks wrote."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that a task has filled; the driver ends it."""

    transactional_id: str
    producer_id: int
    epoch: int


def transactional_id(query: str, task: int) -> str:
    """The transactional id of a task, and the group that has its note (rules 1 and 2)."""
    return f"{NAME_PREFIX}-{query}-{task}"


def _mark(job: str) -> str:
    return f"{NAME_PREFIX}-{job}-failed"


def _group(writer: str) -> str:
    return f"{NAME_PREFIX}-{writer}"


def is_written(note: Offset, batch: int) -> bool:
    """Return True if the committed note (-1: none) says that the task has written this batch.

    Raises:
        LaterBatchWritten: The note is of a later batch.
    """
    if note > batch + 1:
        raise LaterBatchWritten(
            f"batch {batch} is run again, but batch {note - 1} of this query was written: the checkpoint is older than "
            "the topic; write to another topic, or start a new query"
        )
    return note == batch + 1


class TaskTransaction:
    """One attempt of one task: initializes the producer, and opens a transaction with the first row."""

    def __init__(self, brokers: Brokers, name: str, *, timeout_ms: int, patience_s: float | None = None) -> None:
        self.name = name
        self._brokers = brokers
        self._coordinator = Coordinator(brokers, name, key_type=TRANSACTION_KEY)
        response: m.InitProducerIdResponse = self._coordinator.ask(
            f"initializing transactional id {name}",
            m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms),
            timeout_s=patience_s,
        )
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    def note(self) -> Offset:
        """Return the committed note, -1 without one."""
        response: OffsetFetchResponse = Coordinator(self._brokers, self.name).ask(
            f"asking what {self.name} has written",
            OffsetFetchRequest(group_id=self.name, require_stable=True),
            error_of=_first_error,
        )
        return max((each.offset for each in response.partitions), default=NO_OFFSET)

    def write_note(self, batch: int, topic: str) -> None:
        """Say in the transaction that the batch is written. ``topic`` is one that exists: offsets need one."""
        Coordinator(self._brokers, self.name).ask(
            f"noting batch {batch} of {self.name}",
            TxnOffsetCommitRequest(
                transactional_id=self.name,
                group_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                transaction_version=TRANSACTION_V2,
                partitions=(CommitPartition(topic=topic, partition=0, offset=batch + 1),),
            ),
            error_of=_first_error,
        )

    @property
    def opened(self) -> OpenTransaction:
        """What the driver needs to end the transaction."""
        return OpenTransaction(self.name, self.producer_id, self.epoch)


def commit_all(brokers: Brokers, transactions: Sequence[OpenTransaction]) -> None:
    """Commit the transactions of a batch, or none if one of them is not open. BatchNotCommitted, BrokersUnreachable."""
    if len(transactions) > 1:
        for each in transactions:
            _check_open(brokers, each)
    for each in transactions:
        try:
            _end(brokers, each, is_commit=True)
        except _ENDED as error:
            raise _not_committed(each, error.name) from error


def _check_open(brokers: Brokers, each: OpenTransaction) -> None:
    """Raise BatchNotCommitted unless the transaction is as its task left it."""
    try:
        found = _described(brokers, each.transactional_id, f"asking whether {each.transactional_id} is open")
    except kafka.TransactionalIdNotFound as error:
        raise _not_committed(each, error.name) from error
    if (found.state, found.producer_id, found.producer_epoch) != (ONGOING, each.producer_id, each.epoch):
        raise _not_committed(each, f"it is {found.state}, of producer {found.producer_id}:{found.producer_epoch}")


def _not_committed(each: OpenTransaction, why: str) -> BatchNotCommitted:
    return BatchNotCommitted(
        f"the transaction of {each.transactional_id} was ended by its timeout, or by another run of the query ({why}): "
        "raise kafka.transaction.timeout.ms if batches take longer; the next run of the batch writes what is missing"
    )


def abort_all(brokers: Brokers, transactions: Iterable[OpenTransaction]) -> None:
    """Abort what is open of a failed batch. A failure is a warning: the timeout or the next attempt aborts it then.

    A transaction that was committed stays so: its coordinator refuses the abort.
    """

    def abort(each: OpenTransaction, timeout_s: float) -> None:
        try:
            _end(brokers, each, is_commit=False, timeout_s=timeout_s)
        except _ENDED as error:
            LOGGER.info("%s is not open: %s", each.transactional_id, error.message)

    _abort_each((each.transactional_id, partial(abort, each)) for each in transactions)


def abort_unreported(brokers: Brokers, job: str, names: Iterable[str], *, timeout_ms: int) -> None:
    """Abort what tasks of a failed job that never reported have open, and keep them from writing more (rule 5).

    Initializing the producer fences the task and aborts its transaction. A failure is a warning, as in
    :func:`abort_all`. ``names``: the transactional ids of the tasks.
    """

    def fence(name: str, timeout_s: float) -> None:
        TaskTransaction(brokers, name, timeout_ms=timeout_ms, patience_s=timeout_s)

    _abort_each((name, partial(fence, name)) for name in (_mark(job), *names))


def _abort_each(aborts: Iterable[tuple[str, Callable[[float], None]]]) -> None:
    """Abort by transactional id. One that nobody answers leaves the others half of its time, so that all of it ends."""
    timeout_s = ABORT_TIMEOUT_S
    for name, abort in aborts:
        if timeout_s < ABORT_TIMEOUT_MIN_S:
            LOGGER.warning("what %s may have open stays so until its timeout or its next attempt", name)
            continue
        try:
            abort(timeout_s)
        except (kafka.ProtocolError, BrokersUnreachable) as error:
            if isinstance(error, BrokersUnreachable):
                timeout_s /= 2
            LOGGER.warning("what %s may have open stays so until its timeout or its next attempt: %s", name, error)


def note_run(brokers: Brokers, writer: str, job: str, query: str, topic: str) -> None:
    """Say which query a writer writes, and in which job (rule 6). ``topic`` is one that exists: offsets need one."""
    Coordinator(brokers, _group(writer)).ask(
        f"noting the query of {writer}",
        OffsetCommitRequest(
            group_id=_group(writer),
            partitions=(CommitPartition(topic=topic, partition=0, offset=0, metadata=f"{job} {query}"),),
        ),
        error_of=_first_error,
    )


def abort_run(brokers: Brokers, writer: str, tasks: Sequence[int], *, timeout_ms: int) -> None:
    """Abort what tasks of a streaming query that never reported have open (rule 6), as :func:`abort_unreported`."""
    try:
        response: OffsetFetchResponse = Coordinator(brokers, _group(writer)).ask(
            f"asking for the query of {writer}",
            OffsetFetchRequest(group_id=_group(writer)),
            error_of=_first_error,
            timeout_s=ABORT_TIMEOUT_S,
        )
    except (kafka.ProtocolError, BrokersUnreachable) as error:
        LOGGER.warning("what a stopped query may have open stays so until its timeout or its next run: %s", error)
        return
    for noted in sorted({each.metadata for each in response.partitions}):
        job, query = noted.split()
        names = [transactional_id(query, task) for task in tasks]
        abort_unreported(brokers, job, names, timeout_ms=timeout_ms)


def check_job_goes_on(brokers: Brokers, job: str) -> None:
    """For a task, also when it has initialized its producer (rule 5). JobFailed, BrokersUnreachable."""
    name = _mark(job)
    try:
        _described(brokers, name, "asking whether the job goes on")
    except kafka.TransactionalIdNotFound:
        return
    raise JobFailed(f"job {job} has failed, and its driver has aborted what its tasks wrote: this task writes nothing")


def _described(brokers: Brokers, name: str, what: str) -> DescribedTransaction:
    response: DescribeTransactionsResponse = Coordinator(brokers, name, key_type=TRANSACTION_KEY).ask(
        what,
        DescribeTransactionsRequest(transactional_ids=(name,)),
        error_of=lambda answer: error_in(answer) or error_in(answer.transactions[0]),
    )
    return response.transactions[0]


def _end(brokers: Brokers, each: OpenTransaction, *, is_commit: bool, timeout_s: float | None = None) -> None:
    Coordinator(brokers, each.transactional_id, key_type=TRANSACTION_KEY).ask(
        f"ending the transaction of {each.transactional_id}",
        EndTxnRequest(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            producer_epoch=each.epoch,
            committed=is_commit,
            transaction_version=TRANSACTION_V2,
        ),
        timeout_s=timeout_s,
    )


def _first_error(response: Any) -> kafka.ProtocolError | None:
    errors = [error_in(response), *map(error_in, response.partitions)]
    return next((each for each in errors if each is not None), None)
