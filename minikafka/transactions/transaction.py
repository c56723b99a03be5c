"""One transactional id: which request is legal in which state, and the value that it leads to (KIP-98, 360, 890).

Each method compares a request with the committed value and returns the value to be written next. It takes effect only
when its record is committed (:meth:`Transaction.advance`): at most one write is under way for each transactional id,
and until it ends other requests are rejected with CONCURRENT_TRANSACTIONS.

- A write whose outcome is unknown keeps the id busy until it is committed. Kafka allows further requests, and must
  remember an epoch that was raised by a write that failed (KAFKA-9666); here nothing can follow such a write.
- With transaction version 2, each end of a transaction raises the epoch, so that requests and batches of an earlier
  transaction are fenced. The version is that of the request, not of the cluster.
- A fence (timeout, InitProducerId while a transaction is open) raises the epoch once, before the abort, whatever the
  version.

Rules for this file: synchronous, no clock; methods raise ProtocolError and change nothing, except ``advance``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from minikafka import errors as kafka
from minikafka.invariant import invariant
from minikafka.transactions.records import (
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    State,
    TransactionValue,
)
from minikafka.types import NO_PRODUCER, TopicPartition
from minikafka.wire.markers import TRANSACTION_V2

EPOCH_MAX = 2**15 - 1
"""Never given to a producer: the coordinator can always fence once more."""

_LEGAL = {
    State.EMPTY: (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT),
    State.ONGOING: (State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT),
    State.PREPARE_COMMIT: (State.ONGOING,),
    State.PREPARE_ABORT: (State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT),
    State.COMPLETE_COMMIT: (State.PREPARE_COMMIT,),
    State.COMPLETE_ABORT: (State.PREPARE_ABORT,),
}
"""For each state, the states before it. PrepareAbort follows an idle state only when transaction version 2 aborts a
transaction without partitions."""

_COMPLETE = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


class _Ruling(Enum):
    """What an EndTxn request leads to."""

    PREPARE = "the outcome is written"
    DONE = "the transaction has ended as requested"
    CONCURRENT = "the transaction is ending as requested"
    INVALID = "no such transaction"
    FENCED = "another producer or the coordinator has ended it"
    UNMAPPED = "the producer id is not that of the transactional id"


_P, _D, _C, _I, _F = _Ruling.PREPARE, _Ruling.DONE, _Ruling.CONCURRENT, _Ruling.INVALID, _Ruling.FENCED

_END_V1 = {
    State.ONGOING: (_P, _P),
    State.PREPARE_COMMIT: (_C, _I),
    State.COMPLETE_COMMIT: (_D, _I),
    State.PREPARE_ABORT: (_I, _C),
    State.COMPLETE_ABORT: (_I, _D),
    State.EMPTY: (_I, _I),
}
"""Commit, abort; the epoch is the state's."""

_END_V2 = {
    State.ONGOING: ((_P, _F), (_P, _F)),
    State.PREPARE_COMMIT: ((_F, _C), (_F, _I)),
    State.PREPARE_ABORT: ((_F, _I), (_F, _C)),
    State.COMPLETE_COMMIT: ((_I, _D), (_P, _I)),
    # A commit that lost against the coordinator's own abort: Kafka's clients recover from being fenced (KAFKA-20785).
    State.COMPLETE_ABORT: ((_I, _F), (_P, _D)),
    State.EMPTY: ((_I, _F), (_P, _F)),
}
"""Commit, abort; each with the state's own epoch, then with the epoch before it (a retry)."""


@dataclass(slots=True)
class Transaction:
    """A transactional id that its coordinator knows."""

    transactional_id: str
    value: TransactionValue
    """Committed, except for an id whose first record is under way: its epoch is -1."""
    epoch_max: int = EPOCH_MAX
    is_busy: bool = False
    """A record is being written, or markers are: every other request is rejected."""
    under_way: TransactionValue | None = None
    """The value that was written last while the id is busy; it may not be committed."""
    began_at: float = math.inf
    """Monotonic seconds at which the open transaction began or this coordinator loaded it."""

    @classmethod
    def new(cls, transactional_id: str, producer_id: int, epoch_max: int = EPOCH_MAX) -> Transaction:
        """An id that has no record yet."""
        value = TransactionValue(
            producer_id=producer_id, producer_epoch=NO_PRODUCER_EPOCH, timeout_ms=0, state=State.EMPTY
        )
        return cls(transactional_id, value, epoch_max)

    @property
    def is_new(self) -> bool:
        """No record of the id is committed."""
        return self.value.producer_epoch == NO_PRODUCER_EPOCH

    @property
    def needs_producer_id(self) -> bool:
        """The next increment of the epoch takes another producer id."""
        return self._is_exhausted(self.value.producer_epoch)

    def _is_exhausted(self, epoch: int) -> bool:
        return epoch >= self.epoch_max - 1

    def advance(self, target: TransactionValue, now: float) -> None:
        """``target`` is committed."""
        before = self.value
        invariant(
            before.state in _LEGAL[target.state],
            "a transaction moved between states that do not follow each other",
            transactional_id=self.transactional_id,
            before=before,
            target=target,
        )
        invariant(
            target.producer_id != before.producer_id or target.producer_epoch >= before.producer_epoch,
            "the epoch of a producer fell",
            transactional_id=self.transactional_id,
            before=before,
            target=target,
        )
        if target.state is State.ONGOING:
            invariant(
                before.state is not State.ONGOING or before.partitions <= target.partitions,
                "a transaction lost partitions",
                transactional_id=self.transactional_id,
            )
            if before.state is not State.ONGOING:
                self.began_at = now
        else:
            self.began_at = math.inf
        self.value = target

    # ---- requests ----

    def check_takeover(self, expected: tuple[int, int] | None) -> None:
        """Raise unless a producer may initialize; ``expected``: producer id and epoch that it has had, or None."""
        self._check_idle()
        if expected is None or self.is_new:
            return
        producer_id, epoch = expected
        if self.value.state is State.ONGOING:
            # Its producer has received this epoch, so any other caller is a former producer, or a late copy of a
            # request. Kafka looks at the epoch only later, and lets them abort a transaction that is not their own.
            is_present = expected == (self.value.producer_id, self.value.producer_epoch)
        else:
            has_rotated = producer_id == self.value.previous_producer_id and self._is_exhausted(epoch)
            is_present = producer_id == self.value.producer_id or has_rotated
        if not is_present:
            raise self._fenced(producer_id, epoch)

    def initialize(
        self, expected: tuple[int, int] | None, timeout_ms: int, *, new_producer_id: int, now_ms: int
    ) -> TransactionValue:
        """InitProducerId; an open transaction must be fenced first (:meth:`fence`).

        Args:
            expected: Producer id and epoch that the caller has had, or None.
            timeout_ms: Timeout of the caller's transactions.
            new_producer_id: Used when the epochs of the present id are exhausted.
            now_ms: Wall clock.

        Raises:
            ConcurrentTransactions: The last transaction is ending.
            ProducerFenced: The caller is not the latest producer.
        """
        self.check_takeover(expected)
        value = self.value
        if not value.state.is_idle:
            raise self._concurrent()
        idle = replace(
            value,
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER,
            timeout_ms=timeout_ms,
            state=State.EMPTY,
            partitions=frozenset(),
            updated_ms=now_ms,
            started_ms=NO_TIMESTAMP,
        )
        epoch = NO_PRODUCER_EPOCH if expected is None else expected[1]
        is_current = expected is None or epoch == value.producer_epoch
        # The coordinator has fenced with its last epoch, which no producer may have: its transaction timed out.
        is_last_fence = epoch == value.last_producer_epoch and value.producer_epoch >= self.epoch_max
        if self.needs_producer_id and (is_current or is_last_fence):
            last = NO_PRODUCER_EPOCH if expected is None else epoch
            new_id = self._rotated(new_producer_id)
            return replace(idle, producer_id=new_id, producer_epoch=0, last_producer_epoch=last)
        if is_current or self.is_new:
            last = NO_PRODUCER_EPOCH if expected is None else value.producer_epoch
            return replace(idle, producer_epoch=value.producer_epoch + 1, last_producer_epoch=last)
        if epoch == value.last_producer_epoch:
            return replace(idle, previous_producer_id=value.previous_producer_id)
        raise self._fenced(*expected or (NO_PRODUCER, epoch))

    def fence(self, now_ms: int) -> TransactionValue:
        """The abort of the open transaction, at an epoch that no producer has yet.

        The epoch before is kept: the producer that had it and comes back with InitProducerId goes on with the epoch of
        the abort, as at Kafka's brokers with transaction version 2. One that names no epoch gets the next.
        """
        return replace(
            self.value,
            previous_producer_id=self.value.producer_id,
            state=State.PREPARE_ABORT,
            producer_epoch=self.value.producer_epoch + 1,
            last_producer_epoch=self.value.producer_epoch,
            updated_ms=now_ms,
        )

    def add(
        self, producer_id: int, epoch: int, partitions: frozenset[TopicPartition], *, version: int, now_ms: int
    ) -> TransactionValue | None:
        """AddPartitionsToTxn and AddOffsetsToTxn; None: all of them belong to the transaction already."""
        value = self.value
        self._check_producer(producer_id, epoch)
        self._check_idle()
        if value.state.is_prepared:
            raise self._concurrent()
        is_open = value.state is State.ONGOING
        if is_open and partitions <= value.partitions:
            return None
        return replace(
            value,
            previous_producer_id=producer_id,
            state=State.ONGOING,
            partitions=value.partitions | partitions,
            updated_ms=now_ms,
            started_ms=value.started_ms if is_open else now_ms,
            client_version=version,
        )

    def verify(
        self, producer_id: int, epoch: int, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, kafka.ProtocolError | None]:
        """Which partitions belong to the open transaction. A write under way does not matter (KAFKA-14904)."""
        self._check_producer(producer_id, epoch)
        if self.value.state.is_prepared:
            raise self._concurrent()
        return {
            each: None
            if self.value.state is State.ONGOING and each in self.value.partitions
            else kafka.TransactionAbortable(f"{each} is not part of the transaction of {self.transactional_id}")
            for each in sorted(partitions)
        }

    def end(
        self, producer_id: int, epoch: int, *, is_commit: bool, version: int, new_producer_id: int, now_ms: int
    ) -> TransactionValue | None:
        """EndTxn; None: the transaction has ended as requested.

        The order of the checks is Kafka's since 4.1: a busy id before the epoch (KAFKA-18464).

        The outcome of a ConcurrentTransactions is unknown if the transaction is ending, or has ended, as requested. The
        other copy or attempt of the request that did this may have no response, and the next attempt may be fenced: by
        then nothing here says any more what became of the transaction.
        """
        value = self.value
        ruling = self._ruling(value, producer_id, epoch, is_commit=is_commit, version=version)
        if ruling is _Ruling.UNMAPPED:
            raise self._mapping(producer_id)
        if self.is_busy:
            under_way = self.under_way or value
            rulings = (ruling, self._ruling(under_way, producer_id, epoch, is_commit=is_commit, version=version))
            raise self._concurrent(kafka.UNKNOWN if _D in rulings or _C in rulings else kafka.NOT_WRITTEN)
        self._check_not_reserved(producer_id, epoch)
        if ruling is _Ruling.DONE and version >= TRANSACTION_V2:
            # Its response names the epoch of the next transaction (KAFKA-20090).
            self._check_not_reserved(*next_producer(value))
        if ruling is _Ruling.FENCED:
            raise self._fenced(producer_id, epoch)
        if ruling is _Ruling.INVALID:
            raise kafka.InvalidTxnState(
                f"{self.transactional_id} is {value.state.value}: there is no transaction to "
                f"{'commit' if is_commit else 'abort'}"
            )
        if ruling is _Ruling.CONCURRENT:
            raise self._concurrent(kafka.UNKNOWN)
        return None if ruling is _Ruling.DONE else self._prepared(is_commit, version, new_producer_id, now_ms)

    def _ruling(
        self, value: TransactionValue, producer_id: int, epoch: int, *, is_commit: bool, version: int
    ) -> _Ruling:
        """What EndTxn leads to if ``value`` is committed and nothing is under way."""
        has_rotated = (
            version >= TRANSACTION_V2
            and producer_id == value.previous_producer_id
            and self._is_exhausted(epoch)
            and value.producer_epoch == 0
        )
        if producer_id != value.producer_id and not has_rotated:
            return _Ruling.UNMAPPED
        if version < TRANSACTION_V2:
            return _END_V1[value.state][not is_commit] if epoch == value.producer_epoch else _F
        is_retry = has_rotated or epoch + 1 == value.producer_epoch
        is_known = is_retry or epoch == value.producer_epoch
        return _END_V2[value.state][not is_commit][is_retry] if is_known else _F

    def _prepared(self, is_commit: bool, version: int, new_producer_id: int, now_ms: int) -> TransactionValue:  # noqa: FBT001 - a field of the request
        value = self.value
        prepared = replace(
            value,
            previous_producer_id=value.producer_id,
            state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
            updated_ms=now_ms,
            started_ms=value.started_ms if value.state is State.ONGOING else now_ms,
            client_version=version,
        )
        if version < TRANSACTION_V2:
            return prepared
        return replace(
            prepared,
            producer_epoch=value.producer_epoch + 1,
            last_producer_epoch=value.producer_epoch,
            next_producer_id=self._rotated(new_producer_id) if self.needs_producer_id else NO_PRODUCER,
        )

    def complete(self, now_ms: int) -> TransactionValue:
        """Every partition has its marker."""
        value = self.value
        done = replace(
            value,
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER,
            state=_COMPLETE[value.state],
            partitions=frozenset(),
            updated_ms=now_ms,
        )
        if value.next_producer_id == NO_PRODUCER:
            return done
        return replace(done, producer_id=value.next_producer_id, producer_epoch=0)

    # ---- checks ----

    def _check_idle(self) -> None:
        if self.is_busy:
            raise self._concurrent()

    def _check_producer(self, producer_id: int, epoch: int) -> None:
        if self.is_new or producer_id != self.value.producer_id:
            raise self._mapping(producer_id)
        if epoch != self.value.producer_epoch:
            raise self._fenced(producer_id, epoch)
        self._check_not_reserved(producer_id, epoch)

    def _check_not_reserved(self, producer_id: int, epoch: int) -> None:
        """Raise for the last epoch, also while it is the present one: only the coordinator fences with it."""
        if epoch >= self.epoch_max:
            raise self._fenced(producer_id, epoch)

    def _rotated(self, new_producer_id: int) -> int:
        if new_producer_id == NO_PRODUCER:
            # The epochs were exhausted only after the caller had looked.
            raise self._concurrent()
        return new_producer_id

    def _concurrent(self, outcome: kafka.Outcome = kafka.NOT_WRITTEN) -> kafka.ProtocolError:
        return kafka.ConcurrentTransactions(
            f"{self.transactional_id} is {self.value.state.value}, and another change of it is under way: retry",
            outcome=outcome,
        )

    def _mapping(self, producer_id: int) -> kafka.ProtocolError:
        return kafka.InvalidProducerIdMapping(f"{self.transactional_id} does not belong to producer id {producer_id}")

    def _fenced(self, producer_id: int, epoch: int) -> kafka.ProtocolError:
        return kafka.ProducerFenced(
            f"producer id {producer_id} with epoch {epoch} is not the latest producer of {self.transactional_id}: "
            "another one has taken over, or its transaction timed out"
        )


def next_producer(prepared: TransactionValue) -> tuple[int, int]:
    """Producer id and epoch of the producer's next transaction, once ``prepared`` is committed."""
    if prepared.next_producer_id != NO_PRODUCER:
        return prepared.next_producer_id, 0
    return prepared.producer_id, prepared.producer_epoch
