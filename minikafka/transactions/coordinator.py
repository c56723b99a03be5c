"""The transactional ids of one partition of ``__transaction_state``, for the broker that leads it (KIP-98).

The log is the coordinator's only memory. A request is answered when its record is committed: a producer that sends to a
partition relies on the coordinator to end the transaction there, whichever broker coordinates by then.

- The outcome of a transaction is decided by its committed PrepareCommit or PrepareAbort record, and by nothing else.
  EndTxn is answered then. Markers go out only after it, until every partition has one; the Complete record follows.
- A coordinator that takes over sends the markers of all decided transactions again: it cannot know which were written.
- Timeouts are measured by the monotonic clock, from the first partition or from the takeover: a jump of the wall clock
  aborts nothing, and a takeover gives an open transaction its whole timeout again.
- A transactional id expires by the wall clock, as it stands in the log.

Rules for this file: synchronous; each call fills the step and returns. A request that is refused raises ProtocolError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from minikafka import errors as kafka
from minikafka.coordination.regexes import compiled
from minikafka.coordination.rule import Step, Ticket, Write, as_coordinator, is_unknown
from minikafka.ports import Events
from minikafka.transactions.markers import MarkerId, OwedMarkers
from minikafka.transactions.records import (
    TIMEOUT_MS_MAX,
    State,
    TransactionRecord,
    TransactionValue,
    check_transactional_id,
    packed,
    unpacked,
)
from minikafka.transactions.settings import TransactionSettings
from minikafka.transactions.transaction import Transaction, next_producer
from minikafka.types import NO_OFFSET, NO_PRODUCER, Offset, TopicPartition
from minikafka.wire import transaction_messages as t
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import InitProducerIdRequest, InitProducerIdResponse, PartitionName

RETRY_PAUSE_S = 0.1
"""Pause before a Complete record that the log refused is written again."""

EXPIRED_COUNT_MAX, EXPIRED_PAUSE_S = 100, 0.1
"""Transactional ids that expire in one step, and the pause before the next one. Each is a record of its own: for ten
thousand that were used at the same time, the broker would do nothing else for a second."""

BUSY_WAIT_S = 0.1
"""How long partitions wait for the change of their transaction that is under way, before CONCURRENT_TRANSACTIONS."""

Committed = Callable[[Step], None]
Refused = Callable[[kafka.ProtocolError, Step], None]


class _Adding(NamedTuple):
    """A request that adds partitions to a transaction."""

    ticket: Ticket
    producer: tuple[int, int]
    partitions: frozenset[TopicPartition]
    version: int
    deadline: float


class TransactionCoordinator:
    """All transactional ids of one partition: a ``coordination.rule.Coordinator``."""

    kind = "transaction"
    skipped_event = "transaction_records_skipped"
    packed = staticmethod(packed)

    def __init__(self, settings: TransactionSettings, *, events: Events) -> None:
        self.markers = OwedMarkers()
        """What the marker sender takes its work from."""
        self._settings = settings
        self._events = events
        self._transactions: dict[str, Transaction] = {}
        self._open: dict[str, Transaction] = {}
        self._incomplete: dict[str, Transaction] = {}
        """Every marker is written, and the log refused the Complete record."""
        self._waiting: dict[str, list[_Adding]] = {}
        """By transactional id that is busy: the partitions of its next change."""
        self._retry_at = math.inf
        self._timeouts_at = math.inf
        self._expiration_at = math.inf

    # ------------------------------------------------------------------------------------------------- its life

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: Offset = NO_OFFSET,  # noqa: ARG002 - only groups use it
        producer_id: int = NO_PRODUCER,  # noqa: ARG002 - as offset
    ) -> bool:
        """One record of the log, first to last; the last of each key counts. False: a version of a later release."""
        record = unpacked(key, value)
        if record is None:
            return False
        if record.value is None:
            self._transactions.pop(record.transactional_id, None)
        else:
            self._transactions[record.transactional_id] = Transaction(
                record.transactional_id, record.value, self._settings.epoch_max
            )
        return True

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> None:
        """Nothing: the records of ``__transaction_state`` belong to no transaction themselves."""

    def loaded(self, step: Step) -> None:
        """The log was read to its end: finish what was decided, and give open transactions their whole timeout."""
        for each in self._transactions.values():
            if each.value.state is State.ONGOING:
                each.began_at = step.now
                self._opened(each, step)
            elif each.value.state.is_prepared:
                each.is_busy = True
                self._send_markers(each, step)
        self._plan_expiration(step)
        self._events(
            "transaction_coordinator_loaded", transactional_ids=len(self._transactions), markers=len(self.markers)
        )

    def resign(self, step: Step) -> None:
        """This broker leads the partition no longer: the next coordinator reads all of this from the log."""

    def committed(self, write: Write, step: Step) -> None:
        """The record of ``write`` is committed: it counts."""
        write.committed(step)

    def refused(self, write: Write, error: kafka.ProtocolError, step: Step) -> None:
        """The record was not written; or (outcome *unknown*) it may be committed later."""
        write.refused(error, step)

    def next_deadline(self) -> float:
        """When :meth:`tick` has something to do; infinity: never."""
        late_at = min((each.deadline for waiting in self._waiting.values() for each in waiting), default=math.inf)
        return min(self._retry_at, self._timeouts_at, self._expiration_at, late_at)

    def tick(self, step: Step) -> None:
        """Repeat refused Complete records, abort transactions over their timeout, forget ids that were not used."""
        self._answer_late(step)
        if self._retry_at <= step.now:
            self._retry_at = math.inf
            incomplete, self._incomplete = self._incomplete, {}
            for each in incomplete.values():
                self._complete(each, step)
        if self._timeouts_at <= step.now:
            self._timeouts_at = step.now + self._settings.timeout_check_ms / 1000 if self._open else math.inf
            self._abort_timed_out(step)
        if self._expiration_at <= step.now:
            self._expiration_at = math.inf
            self._expire(step)
            self._plan_expiration(step)

    # ------------------------------------------------------------------------------------------------- producers

    def knows(self, transactional_id: str) -> bool:
        """Return True if the id has a record, or its first one is being written."""
        return transactional_id in self._transactions

    def needs_producer_id(self, transactional_id: str) -> bool:
        """The next request may take a fresh producer id, which the caller must bring."""
        known = self._transactions.get(transactional_id)
        return known is None or known.needs_producer_id

    def initialize(
        self, ticket: Ticket, request: InitProducerIdRequest, step: Step, *, new_producer_id: int = NO_PRODUCER
    ) -> None:
        """InitProducerId with a transactional id: fences the producer before, and aborts its open transaction."""
        name = _checked_id(request.transactional_id)
        timeout_ms_max = min(self._settings.timeout_ms_max, TIMEOUT_MS_MAX)
        if not 0 < request.transaction_timeout_ms <= timeout_ms_max:
            raise kafka.InvalidTransactionTimeout(
                f"transaction.timeout.ms={request.transaction_timeout_ms} is not within 1 and the broker's "
                f"transaction.max.timeout.ms={timeout_ms_max}"
            )
        has_expected = request.producer_id >= 0 and request.producer_epoch >= 0
        expected = (request.producer_id, request.producer_epoch) if has_expected else None
        transaction = self._transactions.get(name)
        if transaction is None:
            if new_producer_id == NO_PRODUCER:
                # It expired after the caller had looked.
                raise kafka.ConcurrentTransactions(f"{name} is not known any more: retry")
            transaction = Transaction.new(name, new_producer_id, self._settings.epoch_max)
        transaction.check_takeover(expected)
        if transaction.value.state is State.ONGOING:
            self._fence(ticket, transaction, step)
            return
        target = transaction.initialize(
            expected, request.transaction_timeout_ms, new_producer_id=new_producer_id, now_ms=step.wall_ms
        )

        def committed(then: Step) -> None:
            self._plan_expiration(then)
            then.answer(
                ticket, InitProducerIdResponse(producer_id=target.producer_id, producer_epoch=target.producer_epoch)
            )
            self._free(transaction, then)

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            self._released(transaction, error, then)
            then.answer(ticket, InitProducerIdResponse.failed(error))

        self._transactions[name] = transaction
        self._write(transaction, target, step, committed, refused)

    def _fence(self, ticket: Ticket, transaction: Transaction, step: Step) -> None:
        """Abort the open transaction at an epoch of its own; the caller retries, and gets the epoch after that."""
        error = kafka.ConcurrentTransactions(
            f"{transaction.transactional_id}: its open transaction is being aborted: retry"
        )

        def committed(then: Step) -> None:
            self._send_markers(transaction, then)
            then.answer(ticket, InitProducerIdResponse.failed(error))

        def refused(why: kafka.ProtocolError, then: Step) -> None:
            self._released(transaction, why, then)
            then.answer(ticket, InitProducerIdResponse.failed(why))

        self._write(transaction, transaction.fence(step.wall_ms), step, committed, refused)

    # ------------------------------------------------------------------------------------------------- partitions

    def add_partitions(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: frozenset[TopicPartition],
        step: Step,
        *,
        version: int = 0,
        waits: bool = False,
    ) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn: answered with :class:`AddedPartitions` when the record is committed.

        With ``waits`` the partitions wait while another change of the transaction is under way: the end of the last
        transaction, or what other leaders add to this one. That takes milliseconds, less than the pause after which a
        client would retry. What has gathered by then is written as one record. The producer is checked after that, as
        in Kafka (KAFKA-18660): its id may be what the last transaction's end changes.
        """
        transaction = self._known(transactional_id, producer[0])
        adding = _Adding(ticket, producer, partitions, version, step.now + BUSY_WAIT_S)
        if waits and transaction.is_busy:
            self._waiting.setdefault(transactional_id, []).append(adding)
        else:
            self._add(transaction, [adding], step)

    def _add(self, transaction: Transaction, adding: Sequence[_Adding], step: Step) -> None:
        """Add the partitions of requests that name the same producer and version."""
        name, first = transaction.transactional_id, adding[0]
        union = frozenset().union(*(each.partitions for each in adding))
        target = transaction.add(*first.producer, union, version=first.version, now_ms=step.wall_ms)

        def answer(then: Step) -> None:
            for each in adding:
                then.answer(each.ticket, _added(name, each.partitions))

        if target is None:
            answer(step)
            return

        def committed(then: Step) -> None:
            self._opened(transaction, then)
            answer(then)
            self._free(transaction, then)

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            self._released(transaction, error, then)
            for each in adding:
                then.answer(each.ticket, t.AddedPartitions.failed(error, transactional_id=name))

        self._write(transaction, target, step, committed, refused)

    def _free(self, transaction: Transaction, step: Step) -> None:
        """No change of the transaction is under way any more: add what has waited for that."""
        transaction.is_busy, transaction.under_way = False, None
        name = transaction.transactional_id
        while not transaction.is_busy and (waiting := self._waiting.pop(name, None)):
            first = waiting[0]
            alike = [each for each in waiting if (each.producer, each.version) == (first.producer, first.version)]
            others = [each for each in waiting if each not in alike]
            if others:
                self._waiting[name] = others
            try:
                self._add(self._known(name, first.producer[0]), alike, step)
            except kafka.ProtocolError as error:
                for each in alike:
                    step.answer(each.ticket, t.AddedPartitions.failed(error, transactional_id=name))

    def _answer_late(self, step: Step) -> None:
        for name, waiting in list(self._waiting.items()):
            error = kafka.ConcurrentTransactions(f"another change of {name} is still under way: retry")
            for each in waiting:
                if each.deadline <= step.now:
                    step.answer(each.ticket, t.AddedPartitions.failed(error, transactional_id=name))
            left = [each for each in waiting if each.deadline > step.now]
            if left:
                self._waiting[name] = left
            else:
                del self._waiting[name]

    def verify(
        self, transactional_id: str, producer: tuple[int, int], partitions: frozenset[TopicPartition]
    ) -> t.AddedPartitions:
        """Which of the partitions belong to the open transaction: asked by leaders before they append (KIP-890)."""
        found = self._known(transactional_id, producer[0]).verify(*producer, partitions)
        return _added(transactional_id, partitions, found)

    def _known(self, transactional_id: str | None, producer_id: int) -> Transaction:
        name = _checked_id(transactional_id)
        transaction = self._transactions.get(name)
        if transaction is None:
            raise kafka.InvalidProducerIdMapping(
                f"{name} has no producer id; {producer_id} is not its own: initialize again"
            )
        return transaction

    # ------------------------------------------------------------------------------------------------- the end

    def end(self, ticket: Ticket, request: t.EndTxnRequest, step: Step, *, new_producer_id: int = NO_PRODUCER) -> None:
        """EndTxn: answered when the outcome is committed, before any marker is written."""
        transaction = self._known(request.transactional_id, request.producer_id)
        target = transaction.end(
            request.producer_id,
            request.producer_epoch,
            is_commit=request.committed,
            version=request.transaction_version,
            new_producer_id=new_producer_id,
            now_ms=step.wall_ms,
        )
        if target is None:
            step.answer(ticket, _ended(request, transaction.value))
            return

        def committed(then: Step) -> None:
            self._send_markers(transaction, then)
            then.answer(ticket, _ended(request, target))

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            self._released(transaction, error, then)
            then.answer(ticket, t.EndTxnResponse.failed(error))

        self._write(transaction, target, step, committed, refused)

    def take_markers(self, step: Step, leader_of: Callable[[TopicPartition], int | None]) -> dict[int, list[MarkerId]]:
        """The markers to send now, by leader; see :meth:`OwedMarkers.take`."""
        by_leader, done = self.markers.take(step.now, leader_of)
        for name in done:
            self._complete(self._transactions[name], step)
        return by_leader

    def markers_answered(self, answers: Iterable[tuple[MarkerId, int | None]], step: Step) -> None:
        """Error codes that leaders answered; None: no answer came, and the marker may be written or not."""
        for marker, code in answers:
            if code is None:
                self.markers.unanswered(marker, step.now)
            elif self.markers.answered(marker, code, step.now):
                self._complete(self._transactions[marker.transactional_id], step)

    def _send_markers(self, transaction: Transaction, step: Step) -> None:
        """The outcome is committed; the id stays busy until every partition has its marker."""
        self._open.pop(transaction.transactional_id, None)
        if transaction.value.partitions:
            self.markers.add(transaction.transactional_id, transaction.value, step.now)
        else:
            self._complete(transaction, step)

    def _complete(self, transaction: Transaction, step: Step) -> None:
        def committed(then: Step) -> None:
            self._plan_expiration(then)
            self._free(transaction, then)

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            if not is_unknown(error):
                self._incomplete[transaction.transactional_id] = transaction
                self._retry_at = min(self._retry_at, then.now + RETRY_PAUSE_S)

        self._write(transaction, transaction.complete(step.wall_ms), step, committed, refused)

    # ------------------------------------------------------------------------------------------------- time

    def _opened(self, transaction: Transaction, step: Step) -> None:
        self._open[transaction.transactional_id] = transaction
        self._timeouts_at = min(self._timeouts_at, step.now + self._settings.timeout_check_ms / 1000)

    def _abort_timed_out(self, step: Step) -> None:
        for each in list(self._open.values()):
            if each.is_busy or each.began_at + each.value.timeout_ms / 1000 >= step.now:
                continue
            self._events(
                "transaction_timed_out",
                transactional_id=each.transactional_id,
                producer_id=each.value.producer_id,
                producer_epoch=each.value.producer_epoch,
                timeout_ms=each.value.timeout_ms,
            )
            self._abort(each, step)

    def _abort(self, transaction: Transaction, step: Step) -> None:
        def committed(then: Step) -> None:
            self._send_markers(transaction, then)

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            self._released(transaction, error, then)

        self._write(transaction, transaction.fence(step.wall_ms), step, committed, refused)

    def _plan_expiration(self, step: Step) -> None:
        if self._expiration_at == math.inf and self._transactions:
            self._expiration_at = step.now + self._settings.expiration_check_ms / 1000

    def _expire(self, step: Step) -> None:
        oldest_ms = step.wall_ms - self._settings.id_expiration_ms
        expired = (
            each
            for each in self._transactions.values()
            if each.value.state.is_idle and not each.is_busy and each.value.updated_ms <= oldest_ms
        )
        some = list(islice(expired, EXPIRED_COUNT_MAX))
        for each in some:
            self._forget(each, step)
        if len(some) == EXPIRED_COUNT_MAX:
            self._expiration_at = step.now + EXPIRED_PAUSE_S

    def _forget(self, transaction: Transaction, step: Step) -> None:
        name = transaction.transactional_id

        def committed(then: Step) -> None:
            self._transactions.pop(name, None)
            self._free(transaction, then)
            self._events("transactional_id_expired", transactional_id=name)

        def refused(error: kafka.ProtocolError, then: Step) -> None:
            self._released(transaction, error, then)

        transaction.is_busy = True
        step.writes.append(Write((TransactionRecord(transactional_id=name, value=None),), committed, refused))

    # ------------------------------------------------------------------------------------------------- writing

    def _write(
        self, transaction: Transaction, target: TransactionValue, step: Step, committed: Committed, refused: Refused
    ) -> None:
        """Write ``target``; the id is busy until the caller's ``committed`` or ``refused`` releases it."""

        def advanced(then: Step) -> None:
            transaction.advance(target, then.now)
            committed(then)

        def answered(error: kafka.ProtocolError, then: Step) -> None:
            refused(as_coordinator(error), then)

        transaction.is_busy, transaction.under_way = True, target
        record = TransactionRecord(transactional_id=transaction.transactional_id, value=target)
        step.writes.append(Write((record,), advanced, answered))

    def _released(self, transaction: Transaction, error: kafka.ProtocolError, step: Step) -> None:
        """A write failed: unless its record may still be committed, the id is as before."""
        if is_unknown(error):
            return
        if transaction.is_new:
            self._transactions.pop(transaction.transactional_id, None)
        self._free(transaction, step)

    # ------------------------------------------------------------------------------------------------- showing

    def describe(self, transactional_id: str) -> t.DescribedTransaction:
        """DescribeTransactions, one of them."""
        transaction = self._transactions.get(_checked_id(transactional_id))
        if transaction is None or transaction.is_new:
            raise kafka.TransactionalIdNotFound(f"there is no transactional id {transactional_id}")
        value = transaction.value
        return t.DescribedTransaction(
            transactional_id=transactional_id,
            state=value.state.value,
            timeout_ms=value.timeout_ms,
            started_ms=value.started_ms,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            partitions=PartitionName.each(sorted(value.partitions)),
        )

    def list_transactions(self, request: t.ListTransactionsRequest, wall_ms: int) -> list[t.ListedTransaction]:
        """ListTransactions, of this partition. Raises InvalidRegularExpression."""
        pattern = id_pattern_of(request)
        return [
            t.ListedTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.value.producer_id,
                state=each.value.state.value,
            )
            for each in self._transactions.values()
            if not each.is_new
            and _is_listed(each.value, request, wall_ms)
            and (pattern is None or pattern.fullmatch(each.transactional_id))
        ]

    def values(self) -> Mapping[str, TransactionValue]:
        """The committed value of each transactional id, for observers."""
        return {each.transactional_id: each.value for each in self._transactions.values() if not each.is_new}


def id_pattern_of(request: t.ListTransactionsRequest) -> Any:
    """Return the compiled filter of transactional ids (KIP-1152), None without one. Raises InvalidRegularExpression."""
    return compiled(request.id_pattern, "transactional_id_pattern") if request.id_pattern else None


def _is_listed(value: TransactionValue, request: t.ListTransactionsRequest, wall_ms: int) -> bool:
    if request.states and value.state.value not in request.states:
        return False
    if request.producer_ids and value.producer_id not in request.producer_ids:
        return False
    if request.duration_ms < 0:
        return True
    return not value.state.is_idle and wall_ms - value.started_ms > request.duration_ms


def _checked_id(transactional_id: str | None) -> str:
    name = transactional_id or ""
    check_transactional_id(name)
    return name


def _added(
    transactional_id: str,
    partitions: Iterable[TopicPartition],
    errors: Mapping[TopicPartition, kafka.ProtocolError | None] | None = None,
) -> t.AddedPartitions:
    found = errors or {}
    return t.AddedPartitions(
        transactional_id=transactional_id,
        partitions=tuple(
            t.AddedPartition.failed(found.get(each), topic=each.topic, partition=each.partition)
            for each in sorted(partitions)
        ),
    )


def _ended(request: t.EndTxnRequest, value: TransactionValue) -> t.EndTxnResponse:
    if request.transaction_version < TRANSACTION_V2:
        return t.EndTxnResponse()
    producer_id, epoch = next_producer(value)
    return t.EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)
