"""What idempotent and transactional producers wrote last: duplicates are answered, gaps and old epochs are refused.

KIP-98, KIP-890, KAFKA-FACTS 6.

Rules for this file:

1. The duplicate test comes before the sequence test. A duplicate is a success with the old offsets.
2. The log itself replicates this state: a follower, and recovery, take each batch in without judging it.
3. Expiry counts from when this process first saw a producer's last batch, not from record timestamps: events of the
   past are still being sent today. A producer with an open transaction never expires, nor one whose last marker is not
   below the high watermark: its entry is what tells a restart to look for that marker (:func:`replay_producers`). One
   of which only a marker is known stays as long as any other: its epoch keeps older incarnations out (KAFKA-9144).
   None goes early to make room for others, because its retry would be appended once more. Leaders refuse new producers
   instead, beyond PRODUCERS_MAX.
4. State changes after the append, never before it (KAFKA-6683).
5. A replay begins with the newest snapshot that can be believed and reads the batches after it: of data only the
   headers, of markers the whole batch. It removes snapshots that cannot be read, and writes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from minikafka.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    ProtocolError,
    ThrottlingQuotaExceeded,
    TransactionCoordinatorFenced,
)
from minikafka.log.names import LOG, SNAPSHOT, offset_name
from minikafka.log.segment import Segment, headers
from minikafka.log.transactions import AbortedTransaction, OpenTransactions
from minikafka.log.verification import OPEN_TRANSACTION, VerificationGuard
from minikafka.ports import Disk
from minikafka.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER, Epoch, Offset
from minikafka.wire.batch import (
    CONTROL_BIT,
    FOLLOWS,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PLAIN,
    SEQUENCE_COUNT,
    TRANSACTIONAL_BIT,
    RecordBatch,
)
from minikafka.wire.markers import TRANSACTION_V2, EndTransaction, marker_of

WINDOW_COUNT = 5
"""Batches remembered per producer: as many as a Kafka client may have in flight."""

PRODUCERS_MAX = 100_000
"""Producers of one log. A leader refuses batches of further ones: each takes half a KiB of memory until
``producer.id.expiration.ms``, and clients choose their producer ids. As many more may be under verification.
"""

GUARDS_MAX = 8
"""Epochs of one producer that are verified at a time; the lowest one makes room."""

SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class BadSnapshot(Exception):
    """A producer snapshot cannot be believed; an older one is used instead."""


class Duplicate(NamedTuple):
    """Where a batch that came again already stands."""

    base_offset: Offset
    """-1: forgotten, and it ends at ``last_offset`` or before."""
    last_offset: Offset
    timestamp: int
    """The stored batch's largest timestamp: the append time under LogAppendTime."""


class _Written(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: int


class ProducerEntry(NamedTuple):
    """A producer's newest batch in the log, and its open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1: since its last marker, or without sequences, it has written nothing."""
    last_offset: Offset
    last_timestamp: int
    coordinator_epoch: Epoch
    """Of its last marker; -1: there was none."""
    current_txn_start_offset: Offset
    """-1: no transaction is open."""


@dataclass(slots=True)
class _Producer:
    epoch: int
    window: list[_Written] = field(default_factory=list)
    """Its last WINDOW_COUNT batches in this epoch. A deque takes four times the memory."""
    seen_ms: int | None = None
    """When expiry first looked at it after its last batch."""
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: Epoch = NO_EPOCH
    transaction_start: Offset = NO_OFFSET
    """First offset of its open transaction; -1: none is open."""
    marker_offset: Offset = NO_OFFSET
    """Of its last marker in this epoch; -1: there was none, or it is older than the snapshot that was loaded."""
    marker_number: int = 0
    """Of the last marker that this process has appended as the leader; 0: not known. Snapshots do without it: what
    another process has received it does not append later."""


class ProducerState:
    """The producers of one log."""

    __slots__ = ("_guards", "_producers", "transactions")

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._guards: dict[int, dict[int, VerificationGuard]] = {}
        """By producer id and epoch: a batch with a wrong epoch does not disturb the right one."""
        self.transactions = OpenTransactions()

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def has_seen_markers(self) -> bool:
        """True if a transaction of a known producer has ended in this log."""
        return any(producer.coordinator_epoch != NO_EPOCH for producer in self._producers.values())

    def begin_verification(self, batch: RecordBatch, *, begins_at_zero: bool = False) -> VerificationGuard:
        """The guard with which a client's transactional batch may be appended, once its coordinator has confirmed it.

        Args:
            batch: The batch.
            begins_at_zero: The sequences of each transaction begin at 0 (transaction version 2).

        Returns:
            OPEN_TRANSACTION: there is nothing to verify, because the producer's transaction is open, or the batch is
            a duplicate.

        Raises:
            InvalidProducerEpoch: A newer incarnation of the producer has written or was fenced here.
            ThrottlingQuotaExceeded: The producer is not known, and the log has PRODUCERS_MAX already.
        """
        known = self._producers.get(batch.producer_id)
        if known is not None and _duplicate_of(batch, known) is not None:
            return OPEN_TRANSACTION
        guard = self.guard_of(batch.producer_id, batch.producer_epoch, begins_at_zero=begins_at_zero)
        if guard is not OPEN_TRANSACTION:
            guard.lowest_sequence = min(guard.lowest_sequence, batch.base_sequence)
        return guard

    def guard_of(self, producer_id: int, epoch: int, *, begins_at_zero: bool = False) -> VerificationGuard:
        """As :meth:`begin_verification`, for a batch without sequences.

        Raises InvalidProducerEpoch, ThrottlingQuotaExceeded.
        """
        known = self._producers.get(producer_id)
        if known is not None and known.epoch > epoch:
            raise _old_epoch(producer_id, epoch, known.epoch)
        if known is not None and known.epoch == epoch and known.transaction_start != NO_OFFSET:
            return OPEN_TRANSACTION
        if known is None:
            self._check_room(producer_id)
        # Clients choose their ids, and nobody has confirmed them yet: guards make room for others, the longest unused
        # first, where producers would not.
        guards = self._guards[producer_id] = self._guards.pop(producer_id, {})
        if len(self._guards) > PRODUCERS_MAX:
            del self._guards[next(iter(self._guards))]
        guard = guards.get(epoch)
        if guard is None:
            if len(guards) >= GUARDS_MAX:
                del guards[min(guards)]
            guard = guards[epoch] = VerificationGuard(begins_at_zero=begins_at_zero)
        guard.seen_ms = None
        return guard

    def check(
        self, batch: RecordBatch, guard: VerificationGuard | None = None, sequencing: int = PLAIN
    ) -> Duplicate | None:
        """Decide whether a leader may append a batch of data; None: it may.

        A producer that is not known (never seen, or expired) may begin with any sequence, unless the batch FOLLOWS
        another one.

        Args:
            batch: The batch.
            guard: From :meth:`begin_verification`. None: the batch needs no verification.
            sequencing: PLAIN, PIPELINED or FOLLOWS (``wire/batch.py``).

        Raises:
            InvalidProducerEpoch: A newer incarnation of the producer has written or was fenced here.
            OutOfOrderSequenceNumber: A batch before this one is missing.
            InvalidTxnState: The producer has a transaction open, and the batch is not part of it; or the batch is
                transactional, and the transaction that was verified has ended.
            ThrottlingQuotaExceeded: The producer is not known, and the log has PRODUCERS_MAX already.
        """
        if batch.producer_id == NO_PRODUCER or batch.attributes & CONTROL_BIT:
            return None
        known = self._producers.get(batch.producer_id)
        if known is not None:
            duplicate = _duplicate_of(batch, known)
            if duplicate is not None:
                return duplicate
        # After the epoch, before the sequence (KIP-890, KAFKA-19690).
        if guard is not None and (known is None or known.transaction_start == NO_OFFSET):
            self._check_guard(batch, guard, is_known=known is not None)
        if known is None:
            self._check_room(batch.producer_id)
            if sequencing == FOLLOWS and batch.base_sequence > 0:
                raise OutOfOrderSequenceNumber(
                    f"producer {batch.producer_id} is not known, and sequence {batch.base_sequence} follows another one"
                )
            return None
        if batch.base_sequence != NO_SEQUENCE:
            if sequencing != PLAIN and (forgotten := _forgotten(batch, known)) is not None:
                return forgotten
            _check_sequence(batch, known)
        if known.transaction_start != NO_OFFSET and not batch.is_transactional:
            raise InvalidTxnState(
                f"producer {batch.producer_id} epoch {known.epoch}: its transaction is open since offset "
                f"{known.transaction_start}, and this batch is not part of it; commit or abort the transaction first"
            )
        return None

    def _check_room(self, producer_id: int) -> None:
        """Raise ThrottlingQuotaExceeded if one more producer is too many. Nothing of it is in the log."""
        if len(self._producers) >= PRODUCERS_MAX:
            raise ThrottlingQuotaExceeded(
                f"producer {producer_id} is new, and the partition has {PRODUCERS_MAX} idempotent producers, which is "
                "the limit; let applications keep their producers, or lower producer.id.expiration.ms"
            )

    def _check_guard(self, batch: RecordBatch, guard: VerificationGuard, *, is_known: bool) -> None:
        if self._guards.get(batch.producer_id, {}).get(batch.producer_epoch) is not guard:
            raise InvalidTxnState(
                f"producer {batch.producer_id} epoch {batch.producer_epoch}: its transaction ended before this batch "
                "could be appended; abort the transaction"
            )
        lowest = 0 if guard.begins_at_zero and not is_known else guard.lowest_sequence
        if batch.base_sequence > lowest:
            raise OutOfOrderSequenceNumber(
                f"producer {batch.producer_id} epoch {batch.producer_epoch}: the transaction begins with sequence "
                f"{batch.base_sequence}, {lowest} is missing"
            )

    def check_marker(self, marker: EndTransaction) -> None:
        """Decide whether a leader may append a marker. Without an open transaction it may: the marker then fences.

        Raises:
            InvalidProducerEpoch: The transaction that this marker would end belongs to a newer incarnation.
            TransactionCoordinatorFenced: A newer coordinator has written a marker of this producer.
        """
        known = self._producers.get(marker.producer_id)
        if known is None:
            return
        is_old = marker.producer_epoch < known.epoch
        if marker.transaction_version >= TRANSACTION_V2 and marker.producer_epoch == known.epoch:
            # The marker's epoch is above that of the data that it ends. With an open transaction of the same epoch this
            # is a late copy of an earlier marker; without one it is a retry, and harmless (KAFKA-19446, KAFKA-19999).
            is_old = known.transaction_start != NO_OFFSET
        if is_old:
            raise InvalidProducerEpoch(
                f"producer {marker.producer_id}: the marker has epoch {marker.producer_epoch}, the producer is at "
                f"{known.epoch}"
            )
        is_late = marker.coordinator_epoch == known.coordinator_epoch and 0 < marker.number <= known.marker_number
        if is_late and known.transaction_start != NO_OFFSET:
            # Before version 2 the next transaction has the same epoch.
            raise InvalidProducerEpoch(
                f"producer {marker.producer_id}: its transaction {marker.number} has ended here, and the next is open"
            )
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {marker.producer_id}: coordinator epoch {marker.coordinator_epoch} is older than "
                f"{known.coordinator_epoch}"
            )

    def note(
        self, batch: RecordBatch, *, base_offset: Offset, timestamp: int, marker: EndTransaction | None = None
    ) -> AbortedTransaction | None:
        """Take over a batch that was appended at ``base_offset``; nothing is refused.

        Args:
            batch: ``data`` of a control batch must be the whole batch; of others, the header is enough.
            base_offset: The offset of its first record in the log.
            timestamp: Its largest timestamp as stored.
            marker: What the leader that appends it knows of a marker beyond its bytes.

        Returns:
            The transaction that it aborts, for the transaction index.
        """
        producer_id, attributes = batch.producer_id, batch.attributes
        if producer_id < 0:
            return None
        if attributes & CONTROL_BIT:
            return self._note_marker(batch, base_offset, timestamp, marker)
        is_transactional = attributes & TRANSACTIONAL_BIT
        if batch.base_sequence == NO_SEQUENCE and not is_transactional:
            return None
        known = self._producers.get(producer_id)
        if known is None or known.epoch != batch.producer_epoch:
            known = self._known(producer_id, batch.producer_epoch)
        if batch.base_sequence != NO_SEQUENCE:
            window = known.window
            if len(window) == WINDOW_COUNT:
                del window[0]
            window.append(
                _Written(
                    batch.base_sequence,
                    batch.last_sequence,
                    base_offset,
                    base_offset + batch.last_offset_delta,
                    timestamp,
                )
            )
        known.seen_ms = None
        known.last_timestamp = timestamp
        if is_transactional and known.transaction_start == NO_OFFSET:
            self._guards.pop(producer_id, None)
            known.transaction_start = base_offset
            self.transactions.begin(base_offset, producer_id)
        return None

    def _note_marker(
        self, batch: RecordBatch, base_offset: Offset, timestamp: int, given: EndTransaction | None
    ) -> AbortedTransaction | None:
        marker = marker_of(batch)
        if marker is None:
            return None
        version, number = (0, 0) if given is None else (given.transaction_version, given.number)
        # With version 2 the marker's epoch is that of the next transaction, whose first batch may be here already.
        ended = marker.producer_epoch - (version >= TRANSACTION_V2)
        guards = self._guards.pop(marker.producer_id, {})
        if left := {epoch: guard for epoch, guard in guards.items() if epoch > ended}:
            self._guards[marker.producer_id] = left
        known = self._known(marker.producer_id, marker.producer_epoch)
        if number or marker.coordinator_epoch != known.coordinator_epoch:
            known.marker_number = number
        known.coordinator_epoch = marker.coordinator_epoch
        known.marker_offset = base_offset
        known.seen_ms = None
        known.last_timestamp = timestamp
        start = known.transaction_start
        if start == NO_OFFSET:
            return None
        known.transaction_start = NO_OFFSET
        stable_end = self.transactions.end(start, base_offset)
        return None if marker.is_commit else AbortedTransaction(marker.producer_id, start, base_offset, stable_end)

    def _known(self, producer_id: int, epoch: int) -> _Producer:
        """The producer, in this epoch: a new one begins without a window."""
        known = self._producers.get(producer_id)
        if known is None:
            known = self._producers[producer_id] = _Producer(epoch)
        elif known.epoch != epoch:
            known.epoch = epoch
            known.window.clear()
            known.marker_offset = NO_OFFSET
        return known

    def clear(self) -> None:
        """Forget all."""
        self._producers.clear()
        self._guards.clear()
        self.transactions.clear()

    def expire(self, *, now_ms: int, idle_max_ms: int, high_watermark: Offset) -> int:
        """Forget producers idle for longer; ``now_ms`` on any clock that is always the same one. How many went."""
        undecided = self.transactions.undecided_producers(high_watermark)
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_start == NO_OFFSET
            and producer_id not in undecided
            and _is_idle(producer, now_ms, idle_max_ms)
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        for producer_id, guards in list(self._guards.items()):
            left = {epoch: each for epoch, each in guards.items() if not _is_idle(each, now_ms, idle_max_ms)}
            if left:
                self._guards[producer_id] = left
            else:
                del self._guards[producer_id]
        return len(idle)

    def last_sequences(self) -> dict[int, tuple[int, int]]:
        """producer id -> (epoch, last sequence): for `describe` and for tests."""
        return {
            producer_id: (producer.epoch, producer.window[-1].last_sequence)
            for producer_id, producer in sorted(self._producers.items())
            if producer.window
        }

    def active(self) -> list[ProducerEntry]:
        """The newest batch of each producer and its open transaction, by producer id."""
        return list(self.each_active())

    def each_active(self) -> Iterator[ProducerEntry]:
        """Yield the entries of :meth:`active` one at a time; producers may change between two of them."""
        for producer_id in sorted(self._producers):
            producer = self._producers.get(producer_id)
            if producer is not None:
                yield ProducerEntry(
                    producer_id,
                    producer.epoch,
                    producer.window[-1].last_sequence if producer.window else NO_SEQUENCE,
                    producer.window[-1].last_offset if producer.window else NO_OFFSET,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.transaction_start,
                )

    def last_batch(self, producer_id: int) -> tuple[int, int, Offset] | None:
        """(epoch, last sequence, last offset) of a producer's newest batch; None when it is not known."""
        known = self._producers.get(producer_id)
        if known is None or not known.window:
            return None
        return known.epoch, known.window[-1].last_sequence, known.window[-1].last_offset

    def last_offset_before(self, producer_id: int, offset: Offset) -> Offset | None:
        """Last offset of the newest batch below ``offset`` that tells how a producer goes on if the log is cut there.
        -1: there may be one, but what is remembered lies above. None: there is none, or the producer is not known.
        """
        known = self._producers.get(producer_id)
        if known is None:
            return None
        window = known.window
        below = max((w.last_offset for w in window if w.last_offset < offset), default=NO_OFFSET)
        if below != NO_OFFSET:
            return below
        if not window:
            return NO_OFFSET if known.marker_offset >= offset else None
        # The window has all of this epoch, which a marker below began.
        is_whole = len(window) < WINDOW_COUNT and window[0].first_sequence == 0
        return None if is_whole and NO_OFFSET < known.marker_offset < offset else NO_OFFSET

    def is_last_marker(self, producer_id: int, epoch: int, offset: Offset) -> bool:
        """Return True if nothing is known of a producer but this marker, with which its epoch began."""
        known = self._producers.get(producer_id)
        return known is not None and not known.window and known.epoch == epoch and known.marker_offset <= offset

    # ------------------------------------------------------------------------------------- the snapshot file

    def to_snapshot(self) -> bytes:
        """``.snapshot``: int16 version, uint32 CRC-32C of the rest, int32 count, the last batch of each producer.

        A producer without a window, of which only a marker is known, has sequence and offset -1.
        """
        entries = []
        for producer_id, producer in sorted(self._producers.items()):
            last = producer.window[-1] if producer.window else _NOTHING_WRITTEN
            entries.append(
                SnapshotEntry(
                    producer_id,
                    producer.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.last_offset - last.base_offset,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.transaction_start,
                )
            )
        return _format_snapshot(entries)

    def load_snapshot(self, data: bytes) -> None:
        """Replace all state by a snapshot's: a window of one batch per producer, or none. BadSnapshot."""
        self.clear()
        begun = []
        for entry in parse_snapshot(data):
            producer = _Producer(
                entry.epoch,
                last_timestamp=entry.timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                transaction_start=max(entry.current_transaction_first_offset, NO_OFFSET),
            )
            if entry.last_sequence >= 0:
                first = (entry.last_sequence - entry.offset_delta) % SEQUENCE_COUNT
                base = entry.last_offset - entry.offset_delta
                producer.window.append(_Written(first, entry.last_sequence, base, entry.last_offset, entry.timestamp))
            if producer.transaction_start != NO_OFFSET:
                begun.append((producer.transaction_start, entry.producer_id))
            self._producers[entry.producer_id] = producer
        for start, producer_id in sorted(begun):
            self.transactions.begin(start, producer_id)


_NOTHING_WRITTEN = _Written(NO_SEQUENCE, NO_SEQUENCE, NO_OFFSET, NO_OFFSET, NO_TIMESTAMP)


def _is_idle(state: _Producer | VerificationGuard, now_ms: int, idle_max_ms: int) -> bool:
    """Return True if ``state`` has not changed for that long; the first look begins the wait."""
    if state.seen_ms is None or state.seen_ms > now_ms:
        state.seen_ms = now_ms
        return False
    return now_ms - state.seen_ms >= idle_max_ms


def _duplicate_of(batch: RecordBatch, known: _Producer) -> Duplicate | None:
    """Return where ``batch`` already stands, if it does. Raises InvalidProducerEpoch."""
    if batch.producer_epoch < known.epoch:
        raise _old_epoch(batch.producer_id, batch.producer_epoch, known.epoch)
    if batch.producer_epoch == known.epoch:
        first, last = batch.base_sequence, batch.last_sequence
        for written in known.window:
            if written.first_sequence == first and written.last_sequence == last:
                return Duplicate(written.base_offset, written.last_offset, written.timestamp)
    return None


def _old_epoch(producer_id: int, epoch: int, newest: int) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(f"producer {producer_id}: epoch {epoch} is older than {newest}")


def _check_sequence(batch: RecordBatch, known: _Producer) -> None:
    """Raise OutOfOrderSequenceNumber if a batch before this one is missing."""
    first = batch.base_sequence
    if batch.producer_epoch > known.epoch:
        if first != 0 and known.epoch != NO_EPOCH:
            raise OutOfOrderSequenceNumber(
                f"producer {batch.producer_id}: epoch {batch.producer_epoch} begins with sequence {first}, not 0"
            )
        return
    # Without a window a marker has begun this epoch: nothing was written in it, so it begins with 0.
    expected = (known.window[-1].last_sequence + 1) % SEQUENCE_COUNT if known.window else 0
    if first != expected:
        raise OutOfOrderSequenceNumber(
            f"producer {batch.producer_id} epoch {known.epoch}: sequence {first}, expected {expected}",
            expected=expected,
            sequence=first,
        )


def _forgotten(batch: RecordBatch, known: _Producer) -> Duplicate | None:
    """Return where a batch in front of those that are remembered stands at most, if it is one.

    Snapshots remember one batch of a producer, and it may have several in flight. The sequences of an epoch have no gap
    in a log, and a producer that is PIPELINED begins none in the middle while an older batch is not settled: what is
    older than the newest sequence is in the log. It need not be committed, so acks=all waits for the newest.
    """
    if batch.producer_epoch != known.epoch or not known.window:
        return None
    newest = known.window[-1]
    if (newest.last_sequence - batch.last_sequence) % SEQUENCE_COUNT >= SEQUENCE_COUNT // 2:
        return None
    return Duplicate(NO_OFFSET, newest.last_offset, NO_TIMESTAMP)


class SnapshotEntry(NamedTuple):
    """One producer in a snapshot file."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_transaction_first_offset: Offset


def parse_snapshot(data: bytes) -> Iterable[SnapshotEntry]:
    """All entries of a snapshot file. Raises BadSnapshot when length, version or checksum is wrong."""
    head = _SNAPSHOT_HEAD.size
    if len(data) < head + _SNAPSHOT_COUNT.size:
        raise BadSnapshot(f"{len(data)} bytes are no snapshot")
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise BadSnapshot(f"version {version}, only {SNAPSHOT_VERSION} is understood")
    body = data[head:]
    if crc32c(body) != crc:
        raise BadSnapshot("its checksum is wrong")
    (count,) = _SNAPSHOT_COUNT.unpack_from(body)
    if len(body) != _SNAPSHOT_COUNT.size + count * _SNAPSHOT_ENTRY.size:
        raise BadSnapshot(f"{count} entries promised in {len(body)} bytes")
    return [SnapshotEntry._make(entry) for entry in _SNAPSHOT_ENTRY.iter_unpack(body[_SNAPSHOT_COUNT.size :])]


def _format_snapshot(entries: list[SnapshotEntry]) -> bytes:
    body = _SNAPSHOT_COUNT.pack(len(entries)) + b"".join(_SNAPSHOT_ENTRY.pack(*entry) for entry in entries)
    return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def without_transactions(snapshot: bytes) -> bytes:
    """Return the snapshot without its open transactions. Raises BadSnapshot."""
    return _format_snapshot(
        [entry._replace(current_transaction_first_offset=NO_OFFSET) for entry in parse_snapshot(snapshot)]
    )


# ---- replay ----------------------------------------------------------------------------------------------------------


def replay_producers(
    disk: Disk,
    folder: str,
    segments: list[Segment],
    state: ProducerState,
    snapshots: list[Offset],
    *,
    end: Offset,
    clean: bool = False,
    high_watermark: Offset | None = None,
    unindexed: Collection[Segment] = (),
    on_damage: Callable[[str], None] | None = None,
) -> None:
    """Rebuild ``state`` as of ``end``; removes snapshots that cannot be read, from disk and from ``snapshots``.

    Args:
        disk: Where the log is.
        folder: The log's.
        segments: All of them, oldest first.
        state: Is cleared first.
        snapshots: Offsets of the snapshots in the folder, ascending.
        end: The log's end.
        clean: The last stop was clean. Kafka: without a snapshot there were no producers. (One that is damaged is one.)
        high_watermark: As known on disk. Transactions whose markers lie at or above it have ended but may still be
            undone, and the replay begins below it, because a snapshot does not tell where they began. None: the caller
            knows these transactions.
        unindexed: Segments with markers whose transaction index is rebuilt; the replay begins before the first of them.
        on_damage: Is called with what cannot be read of a segment, and the replay goes on with the next one. None: it
            ends with an error.

    Raises:
        CorruptMessage: A batch cannot be read.
        InvalidRecord: As CorruptMessage.
    """
    latest = min((segment.base_offset for segment in unindexed), default=end)
    had_snapshots = bool(snapshots)
    start = _load_newest(disk, folder, state, snapshots, latest)
    if high_watermark is not None and start is not None and start > high_watermark and state.has_seen_markers:
        start = _load_newest(disk, folder, state, snapshots, high_watermark)
    elif clean and start is None and not had_snapshots and not unindexed:
        return
    if high_watermark is not None:
        state.transactions.committed(min(high_watermark, end))  # a power cut may have left less of the log
    start = max(segments[0].base_offset, start or 0)
    for segment in segments:
        if segment.next_offset <= start:
            continue
        try:
            _replay_segment(segment, state, start, end, needs_index=any(segment is each for each in unindexed))
        except ProtocolError as damage:
            if on_damage is None:
                raise
            on_damage(f"{segment.path(LOG)}: {damage.message}; what follows in it of producers is not known")


def _replay_segment(segment: Segment, state: ProducerState, start: Offset, end: Offset, *, needs_index: bool) -> None:
    found = segment.locate(max(start, segment.base_offset))
    if found is None:
        return
    for position, header in headers(segment.file, found[0], segment.size):
        if header.base_offset >= end:
            return
        if header.base_offset >= start:
            is_marker = header.is_control and header.has_producer
            batch = RecordBatch.of(segment.read(position, header.size)) if is_marker else header
            aborted = state.note(batch, base_offset=header.base_offset, timestamp=header.max_timestamp)
            if aborted is not None and needs_index:
                segment.transactions.append(aborted)


def _load_newest(
    disk: Disk, folder: str, state: ProducerState, snapshots: list[Offset], latest: Offset
) -> Offset | None:
    """Load the newest snapshot at or below ``latest`` and return its offset; None, and no state, without one."""
    state.clear()
    for offset in [each for each in reversed(snapshots) if each <= latest]:
        path = f"{folder}/{offset_name(offset, SNAPSHOT)}"
        try:
            state.load_snapshot(disk.read_file(path))
        except BadSnapshot:
            disk.remove(path)
            snapshots.remove(offset)
        else:
            return offset
    return None
