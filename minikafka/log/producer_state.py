"""What idempotent producers wrote last: duplicates are answered, gaps are refused (KIP-98, KAFKA-FACTS 6).

Rules for this file:

1. The duplicate test comes before the sequence test. A duplicate is a success with the old offsets.
2. The log itself replicates this state: a follower, and recovery, take each batch in without judging it.
3. Expiry counts from when this process first saw a producer's last batch, not from record timestamps: events of the
   past are still being sent today.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from minikafka.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from minikafka.types import NO_OFFSET, Offset
from minikafka.wire.batch import NO_SEQUENCE, SEQUENCE_COUNT, RecordBatch

WINDOW_COUNT = 5
"""Batches remembered per producer: as many as a Kafka client may have in flight."""

SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_NO_COORDINATOR_EPOCH = -1


class BadSnapshot(Exception):
    """A producer snapshot cannot be believed; an older one is used instead."""


class Duplicate(NamedTuple):
    """Where a batch that came again already stands."""

    base_offset: Offset
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
    """A producer's newest batch in the log."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: Offset
    last_timestamp: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    window: deque[_Written] = field(default_factory=lambda: deque(maxlen=WINDOW_COUNT))
    seen_ms: int | None = None
    """When expiry first looked at it after its last batch."""


class ProducerState:
    """The producers of one log."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, batch: RecordBatch) -> Duplicate | None:
        """May a leader append it? Raises InvalidProducerEpoch or OutOfOrderSequenceNumber; None: yes.

        A producer that is not known (never seen, or expired) may begin with any sequence.
        """
        if not batch.has_producer or batch.is_control:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None:
            return None
        first, last = batch.base_sequence, batch.last_sequence
        if batch.producer_epoch == known.epoch:
            for written in known.window:
                if written.first_sequence == first and written.last_sequence == last:
                    return Duplicate(written.base_offset, written.last_offset, written.timestamp)
        if batch.producer_epoch < known.epoch:
            raise InvalidProducerEpoch(
                f"producer {batch.producer_id}: epoch {batch.producer_epoch} is older than {known.epoch}"
            )
        if batch.producer_epoch > known.epoch:
            if first != 0:
                raise OutOfOrderSequenceNumber(
                    f"producer {batch.producer_id}: epoch {batch.producer_epoch} begins with sequence {first}, not 0"
                )
            return None
        expected = (known.window[-1].last_sequence + 1) % SEQUENCE_COUNT if known.window else first
        if first != expected:
            raise OutOfOrderSequenceNumber(
                f"producer {batch.producer_id} epoch {known.epoch}: sequence {first}, expected {expected}",
                expected=expected,
                sequence=first,
            )
        return None

    def note(self, batch: RecordBatch, *, base_offset: Offset, timestamp: int) -> None:
        """A batch was appended at ``base_offset``; ``timestamp`` is its largest as stored."""
        if batch.producer_id < 0 or batch.is_control or batch.base_sequence == NO_SEQUENCE:
            return
        known = self._producers.get(batch.producer_id)
        if known is None or known.epoch != batch.producer_epoch:
            known = _Producer(batch.producer_epoch)
            self._producers[batch.producer_id] = known
        known.window.append(
            _Written(
                batch.base_sequence,
                batch.last_sequence,
                base_offset,
                base_offset + batch.last_offset_delta,
                timestamp,
            )
        )
        known.seen_ms = None

    def clear(self) -> None:
        """Forget all."""
        self._producers.clear()

    def expire(self, *, now_ms: int, idle_max_ms: int) -> int:
        """Forget producers idle for longer; ``now_ms`` on any clock that is always the same one. How many went."""
        expired = []
        for producer_id, producer in self._producers.items():
            if producer.seen_ms is None or producer.seen_ms > now_ms:
                producer.seen_ms = now_ms
            elif now_ms - producer.seen_ms >= idle_max_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def last_sequences(self) -> dict[int, tuple[int, int]]:
        """producer id -> (epoch, last sequence): for `describe` and for tests."""
        return {
            producer_id: (producer.epoch, producer.window[-1].last_sequence)
            for producer_id, producer in sorted(self._producers.items())
            if producer.window
        }

    def active(self) -> list[ProducerEntry]:
        """The newest batch of each producer, by producer id."""
        return [
            ProducerEntry(producer_id, producer.epoch, last.last_sequence, last.last_offset, last.timestamp)
            for producer_id, producer in sorted(self._producers.items())
            for last in list(producer.window)[-1:]
        ]

    def last_batch(self, producer_id: int) -> tuple[int, int, Offset] | None:
        """(epoch, last sequence, last offset) of a producer's newest batch; None when it is not known."""
        known = self._producers.get(producer_id)
        if known is None or not known.window:
            return None
        return known.epoch, known.window[-1].last_sequence, known.window[-1].last_offset

    def last_offset_before(self, producer_id: int, offset: Offset) -> Offset:
        """Last offset of the newest batch below ``offset`` that is remembered of a producer; -1: none is.

        A later one may still be cut off: then this one tells how the producer goes on.
        """
        known = self._producers.get(producer_id)
        below = (w.last_offset for w in known.window if w.last_offset < offset) if known is not None else ()
        return max(below, default=NO_OFFSET)

    # ------------------------------------------------------------------------------------- the snapshot file

    def to_snapshot(self) -> bytes:
        """``.snapshot``: int16 version, uint32 CRC-32C of the rest, int32 count, the last batch of each producer."""
        entries = [
            _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                last.last_offset - last.base_offset,
                last.timestamp,
                _NO_COORDINATOR_EPOCH,
                NO_OFFSET,
            )
            for producer_id, producer in sorted(self._producers.items())
            for last in list(producer.window)[-1:]
        ]
        body = _SNAPSHOT_COUNT.pack(len(entries)) + b"".join(entries)
        return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body

    def load_snapshot(self, data: bytes) -> None:
        """Replace all state by a snapshot's: a window of one batch per producer. BadSnapshot."""
        self._producers.clear()
        for entry in parse_snapshot(data):
            first = (entry.last_sequence - entry.offset_delta) % SEQUENCE_COUNT
            base = entry.last_offset - entry.offset_delta
            producer = _Producer(entry.epoch)
            producer.window.append(_Written(first, entry.last_sequence, base, entry.last_offset, entry.timestamp))
            self._producers[entry.producer_id] = producer


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
