"""The book on committed transactions: records of coordinators, and what each partition holds, in the order of offsets.

==================================  ===================================================================================
``transaction_state_illegal``       T1, T2, T22: a coordinator's committed record does not follow the one before it: its
                                    state, its partitions, its timeout, or a tombstone of an open transaction
``transaction_epoch_fell``          T1: the epoch of a producer id falls, or a producer id comes back
``complete_without_markers``        T6: a Complete record is committed, and a partition of the transaction has no
                                    committed marker of it
``marker_of_another_transaction``   T4, T5: a marker ends data of another transaction of its producer, or a span holds
                                    the data of two
``producer_epoch_fell``             T15: the epoch of a producer's batches or markers in a partition falls
``sequence_gap``                    T15: a transaction's first batch after a new epoch does not begin at sequence 0, or
                                    a batch does not follow the one before it
``coordinator_epoch_fell``          T16: the coordinator epoch of a producer's markers in a partition falls
==================================  ===================================================================================

The numbers are those of the project's list of invariants of transactions. T3, T8 and T9 are in
``transaction_invariants.py``.

Rules for this file: the book does no I/O, and the watch only looks. Records and batches come once each, in the order of
their offsets, as soon as any watermark has passed them.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from minikafka.sim.log_invariants import stored_batches
from minikafka.sim.replica_view import Key, OfPartition, ReplicaView, Report
from minikafka.transactions.records import TRANSACTIONS_TOPIC, State, TransactionValue, unpacked
from minikafka.types import Epoch, Offset, TopicPartition
from minikafka.wire.batch import NO_SEQUENCE, RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.records import decode_batch

Reporter: TypeAlias = Callable[[str, str], None]
"""(name, what was seen)"""

_BEFORE: Final[dict[State, frozenset[State | None]]] = {
    State.EMPTY: frozenset({None, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
}
"""Legal states before a record's; None: the transactional id is new, or was forgotten."""

SEQUENCES: Final = 2**31


@dataclass(slots=True)
class _Producer:
    """One producer id in one partition."""

    epoch: int = -1
    next_sequence: int | None = None
    """None: it is not known, or not counted."""
    coordinator_epoch: Epoch = -1
    open_epoch: int | None = None
    """Epoch of the open transaction's data."""


@dataclass(slots=True)
class TransactionBook:
    """All of one history."""

    report: Reporter
    exists: Callable[[TopicPartition], bool] = lambda _: True
    """True if a partition is in the metadata: a topic that was deleted needs no marker."""
    _values: dict[str, TransactionValue] = field(default_factory=dict)
    _used_ids: dict[str, set[int]] = field(default_factory=dict)
    _producers: dict[TopicPartition, dict[int, _Producer]] = field(default_factory=dict)
    _markers: set[tuple[TopicPartition, int, int, bool]] = field(default_factory=set)

    # ---- coordinators ------------------------------------------------------------------------------------------------

    def recorded(self, name: str, value: TransactionValue | None) -> None:
        """A record of a transactional id became committed; None: a tombstone."""
        before = self._values.get(name)
        if value is None:
            if before is not None and not before.state.is_idle:
                self.report("transaction_state_illegal", f"{name} was {before.state.value}, and is forgotten")
            self._values.pop(name, None)
            return
        self._look_at_state(name, before, value)
        if before is not None:
            self._look_at_producer(name, before, value)
            if before.state.is_prepared and value.state.is_idle:
                self._look_for_markers(name, before)
        self._used_ids.setdefault(name, set()).add(value.producer_id)
        self._values[name] = value

    def _look_at_state(self, name: str, before: TransactionValue | None, value: TransactionValue) -> None:
        was = None if before is None else before.state
        if was not in _BEFORE[value.state]:
            shown = "unknown" if was is None else was.value
            self.report("transaction_state_illegal", f"{name}: {value.state.value} after {shown}")
        if before is None:
            return
        if value.state is State.ONGOING and was is State.ONGOING and not before.partitions <= value.partitions:
            self.report("transaction_state_illegal", f"{name} loses {sorted(before.partitions - value.partitions)}")
        if value.state.is_prepared and was is State.ONGOING and before.partitions != value.partitions:
            self.report("transaction_state_illegal", f"{name} ends other partitions than it has")
        if value.state is not State.EMPTY and before.timeout_ms != value.timeout_ms:
            self.report("transaction_state_illegal", f"{name}: timeout {value.timeout_ms} after {before.timeout_ms}")

    def _look_at_producer(self, name: str, before: TransactionValue, value: TransactionValue) -> None:
        old, new = (before.producer_id, before.producer_epoch), (value.producer_id, value.producer_epoch)
        if old[0] == new[0]:
            if new[1] < old[1]:
                self.report("transaction_epoch_fell", f"{name}: {new} after {old}")
        elif new[1] != 0 or new[0] in self._used_ids.get(name, ()):
            self.report("transaction_epoch_fell", f"{name}: {new} after {old}, of {self._used_ids.get(name)}")

    def _look_for_markers(self, name: str, prepared: TransactionValue) -> None:
        is_commit = prepared.state is State.PREPARE_COMMIT
        wanted = prepared.producer_id, prepared.producer_epoch, is_commit
        for each in sorted(prepared.partitions):
            if (each, *wanted) not in self._markers and self.exists(each):
                self.report("complete_without_markers", f"{name} is complete, and {each} has no marker {wanted}")

    # ---- partitions --------------------------------------------------------------------------------------------------

    def batch_committed(self, name: TopicPartition, batch: RecordBatch, *, has_all: bool = True) -> None:
        """A batch became committed. ``has_all``: every batch before it was seen, and none was cleaned."""
        if batch.is_control:
            self._marked(name, batch)
        elif batch.is_transactional:
            self._written(name, batch, has_all=has_all)

    def _of(self, name: TopicPartition, producer_id: int) -> _Producer:
        return self._producers.setdefault(name, {}).setdefault(producer_id, _Producer())

    def _written(self, name: TopicPartition, batch: RecordBatch, *, has_all: bool) -> None:
        known = self._of(name, batch.producer_id)
        what = f"{name}@{batch.base_offset}: producer {batch.producer_id}"
        if known.open_epoch is not None and batch.producer_epoch != known.open_epoch:
            self.report(
                "marker_of_another_transaction",
                f"{what} writes in epoch {batch.producer_epoch}, and its transaction of {known.open_epoch} is open",
            )
        self._raised(known, batch.producer_epoch, what)
        if has_all and batch.base_sequence != NO_SEQUENCE:
            if known.next_sequence not in (None, batch.base_sequence):
                self.report("sequence_gap", f"{what} at {batch.base_sequence}, expected {known.next_sequence}")
            known.next_sequence = (batch.base_sequence + batch.last_offset_delta + 1) % SEQUENCES
        known.open_epoch = batch.producer_epoch

    def _marked(self, name: TopicPartition, batch: RecordBatch) -> None:
        marker = marker_of(batch)
        if marker is None:
            return
        known = self._of(name, marker.producer_id)
        what = f"{name}@{batch.base_offset}: marker {marker}"
        if known.open_epoch is not None and not 0 <= marker.producer_epoch - known.open_epoch <= 1:
            self.report("marker_of_another_transaction", f"{what} ends a transaction of epoch {known.open_epoch}")
        self._raised(known, marker.producer_epoch, what)
        if marker.coordinator_epoch < known.coordinator_epoch:
            self.report("coordinator_epoch_fell", f"{what} after coordinator epoch {known.coordinator_epoch}")
        known.coordinator_epoch = max(known.coordinator_epoch, marker.coordinator_epoch)
        known.open_epoch = None
        self._markers.add((name, marker.producer_id, marker.producer_epoch, marker.is_commit))

    def _raised(self, known: _Producer, epoch: int, what: str) -> None:
        if epoch < known.epoch:
            self.report("producer_epoch_fell", f"{what} in epoch {epoch} after {known.epoch}")
        elif epoch > known.epoch:
            known.epoch, known.next_sequence = epoch, 0


class CommittedTransactions(OfPartition):
    """Reads for the book what any watermark has passed. What a damaged disk shows is not believed."""

    name = "committed_transactions"

    def __init__(self, report: Reporter, were_rotten: Callable[[], Container[TopicPartition]]) -> None:
        self.book = TransactionBook(report, exists=self._exists)
        self._were_rotten = were_rotten
        self._read: dict[Key, Offset] = {}
        self._view: ReplicaView | None = None

    def _exists(self, name: TopicPartition) -> bool:
        image = self._view.image if self._view is not None else None
        return image is not None and image.partition(name) is not None and name not in self._were_rotten()

    def look(self, view: ReplicaView, _report: Report) -> None:
        """Read on."""
        log, start, end = view.partition.log, self._read.get(view.key, 0), view.partition.high_watermark
        if start >= end or view.name in self._were_rotten():
            return
        self._view = view
        has_all = not log.config.compacts and log.start_offset <= start
        offset = max(start, log.start_offset)
        for batch in stored_batches(log, start, end):
            offset = batch.next_offset
            if view.name.topic != TRANSACTIONS_TOPIC:
                self.book.batch_committed(view.name, batch, has_all=has_all)
                continue
            for record in decode_batch(batch) if not batch.is_control else ():
                found = unpacked(record.key or b"", record.value) if record.offset >= start else None
                if found is not None:
                    self.book.recorded(found.transactional_id, found.value)
        self._read[view.key] = offset
