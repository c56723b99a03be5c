"""End-transaction markers: the control batches that commit or abort a transaction in one partition (KIP-98).

A marker is a control batch with the transactional bit, the producer's id and epoch, no sequence, and one record::

    key    int16 version 0, int16 type (0 ABORT, 1 COMMIT)
    value  int16 version 0, int32 epoch of the transaction coordinator

Readers with ``read_committed`` leave the batches of aborted transactions out: which those are among a fetch's records
is decided here as well.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from minikafka.errors import CorruptMessage
from minikafka.types import NO_EPOCH, NO_PRODUCER, Epoch, Offset
from minikafka.wire.batch import (
    CHECKED_FIELDS,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    MAGIC_AND_CRC,
    NO_SEQUENCE,
    PREFIX,
    TRANSACTIONAL_BIT,
    RecordBatch,
)
from minikafka.wire.messages import AbortedTransaction
from minikafka.wire.records import control_type_of, decode_batch

ABORT, COMMIT = 0, 1
"""Types of control records that end transactions."""

TRANSACTION_V2 = 2
"""From this transaction version on, a marker has a higher epoch than the data of its transaction (KIP-890)."""

# One record of 17 bytes: length 16, no attributes, deltas 0, a key of 4 bytes, a value of 6, no headers. Lengths are
# zigzag varints.
_RECORD = struct.Struct(">5shhBhiB")
_RECORD_HEAD = bytes((32, 0, 0, 0, 8))
_VALUE_SIZE = 12
_VALUE = struct.Struct(">hi")


class EndTransaction(NamedTuple):
    """What a marker says: the transaction of this producer in this partition is committed or aborted."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: Epoch
    transaction_version: int = 0
    """Version under which the coordinator ended the transaction; the marker's bytes do not hold it."""
    number: int = 0
    """Of the transaction among those that the coordinator has ended, rising; 0: not known. No bytes of the marker's."""


def marker_batch(
    marker: EndTransaction, *, timestamp_ms: int, base_offset: Offset = 0, leader_epoch: Epoch = NO_EPOCH
) -> bytes:
    """Encode ``marker`` as the control batch that Kafka writes."""
    record = _RECORD.pack(_RECORD_HEAD, 0, int(marker.is_commit), _VALUE_SIZE, 0, marker.coordinator_epoch, 0)
    checked = CHECKED_FIELDS.pack(
        TRANSACTIONAL_BIT | CONTROL_BIT,
        0,
        timestamp_ms,
        timestamp_ms,
        marker.producer_id,
        marker.producer_epoch,
        NO_SEQUENCE,
        1,
    )
    crc = crc32c(record, crc32c(checked))
    prefix = PREFIX.pack(base_offset, HEADER_SIZE - LENGTH_END + len(record), leader_epoch)
    return prefix + MAGIC_AND_CRC.pack(MAGIC, crc) + checked + record


def marker_of(batch: RecordBatch) -> EndTransaction | None:
    """Return the marker in a control batch, whose ``data`` must be the whole batch.

    Returns:
        None if the batch is another control batch, or if compaction has removed its record: then it ends nothing.

    Raises:
        CorruptMessage: The batch cannot be read, or its value is too short.
    """
    if batch.producer_id == NO_PRODUCER or not batch.record_count:
        return None
    record = decode_batch(batch)[0]
    kind = control_type_of(record)
    if kind not in (ABORT, COMMIT):
        return None
    value = record.value or b""
    if len(value) < _VALUE.size:
        raise CorruptMessage(
            f"end-transaction marker at offset {batch.base_offset}: its value has {len(value)} bytes, "
            f"not {_VALUE.size} or more"
        )
    coordinator_epoch = int(_VALUE.unpack_from(value)[1])
    return EndTransaction(batch.producer_id, batch.producer_epoch, kind == COMMIT, coordinator_epoch)


class AbortedFilter:
    """Walks over the records of one response, from its first batch on."""

    __slots__ = ("_aborting", "_ahead")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._ahead = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborting: set[int] = set()
        """Producers whose batches belong to an aborted transaction, up to its marker."""

    def skips(self, batch: RecordBatch) -> bool:
        """Return True if ``batch`` belongs to an aborted transaction. Batches must come in order, markers included.

        Raises:
            CorruptMessage: ``batch`` is a control batch that cannot be read.
        """
        if batch.producer_id == NO_PRODUCER:
            return False
        while self._ahead and self._ahead[0].first_offset <= batch.last_offset:
            self._aborting.add(self._ahead.popleft().producer_id)
        if batch.is_control:
            marker = marker_of(batch)
            if marker is not None and not marker.is_commit:
                self._aborting.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in self._aborting


def filter_of(aborted: tuple[AbortedTransaction, ...] | None) -> AbortedFilter | None:
    """Return the filter for a response's list; None if there is nothing to leave out."""
    return AbortedFilter(aborted) if aborted else None
