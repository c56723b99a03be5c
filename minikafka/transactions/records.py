"""The records of ``__transaction_state``, byte for byte Kafka's.

The key is a transactional id, the value its latest transaction. No value: the id is forgotten. The topic is compacted,
so the last record of each key is all that counts. Values are written in version 1 (flexible) and read in 0 and 1.

Rules for this file: ``unpacked`` raises ValueError for bytes that are no such record, and returns None for versions of
keys and values that it does not know, so that a log written by a later release of Kafka can be read past them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final

from minikafka.coordination.packing import Packer, Unpacker, by_topic
from minikafka.errors import InvalidRequest
from minikafka.types import NO_PRODUCER, TopicPartition
from minikafka.wire.markers import TRANSACTION_V2

TRANSACTIONS_TOPIC: Final = "__transaction_state"

KEY_VERSION = 0
VALUE_VERSION = 1
"""The versions that are written."""

_INT16_MAX, _INT64_MAX = 2**15 - 1, 2**63 - 1
ID_BYTES_MAX = _INT16_MAX
"""Bytes of a transactional id: a key has its length as an int16."""

TIMEOUT_MS_MAX = 2**31 - 1
"""Of a transaction, as its record has it."""

NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1

_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_LAST_EPOCH_TAG = 100
"""Ours: Kafka keeps the last epoch in memory only. Kafka's readers skip tags that they do not know."""

_INT16, _INT64 = struct.Struct(">h"), struct.Struct(">q")


class State(Enum):
    """State of a transactional id; the value is the name in DescribeTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, and markers are being written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """No transaction is under way, so the transactional id may expire."""
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


_STATES = tuple(State)
"""By Kafka's number. Numbers 6 (Dead) and 7 (PrepareEpochFence) are never written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionValue:
    """One transactional id as a record of the log describes it."""

    producer_id: int
    previous_producer_id: int = NO_PRODUCER
    """Producer id before the last change of the id because its epochs were exhausted."""
    next_producer_id: int = NO_PRODUCER
    """Producer id that follows when this transaction is complete; set while its epochs are exhausted."""
    producer_epoch: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """Epoch before the last increment, so that a repeated request is recognized."""
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = NO_TIMESTAMP
    """Wall clock of the coordinator."""
    started_ms: int = NO_TIMESTAMP
    """Wall clock at which the first partition was added."""
    client_version: int = 0
    """Transaction version of the client's requests (KIP-890): 2 increments the epoch at each end of a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """``value`` None: the transactional id is forgotten."""

    transactional_id: str
    value: TransactionValue | None


def check_transactional_id(name: str) -> None:
    """Raise InvalidRequest for a name that cannot be a transactional id: no key could hold it."""
    if not name:
        raise InvalidRequest("transactional_id is empty", member="transactional_id")
    size = len(name.encode())
    if size > ID_BYTES_MAX:
        raise InvalidRequest(
            f"transactional_id has {size} bytes, {ID_BYTES_MAX} at most: choose a shorter one",
            member="transactional_id",
        )


def check_producer(producer_id: int, epoch: int) -> None:
    """Raise InvalidRequest for what cannot be a producer id and its epoch: no batch could hold them."""
    if not 0 <= producer_id <= _INT64_MAX:
        raise InvalidRequest(f"producer_id={producer_id}: from 0 to {_INT64_MAX} is allowed", member="producer_id")
    if not 0 <= epoch <= _INT16_MAX:
        raise InvalidRequest(f"producer_epoch={epoch}: from 0 to {_INT16_MAX} is allowed", member="producer_epoch")


def check_version(transaction_version: int) -> None:
    """Raise InvalidRequest for a transaction version that is not known: a record keeps it in an int16."""
    if not 0 <= transaction_version <= TRANSACTION_V2:
        raise InvalidRequest(
            f"transaction_version={transaction_version}: from 0 to {TRANSACTION_V2} is allowed",
            member="transaction_version",
        )


def packed(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value."""
    key = Packer().int16(KEY_VERSION).text(record.transactional_id).packed()
    return key, None if record.value is None else packed_value(record.value)


def packed_value(value: TransactionValue, version: int = VALUE_VERSION) -> bytes:
    """The bytes of a value; version 0 has no tagged fields."""
    out = Packer().int16(version)
    out.is_flexible = version >= 1
    out.int64(value.producer_id).int16(value.producer_epoch).int32(value.timeout_ms)
    out.int8(_STATES.index(value.state))

    def add(item: tuple[str, list[int]]) -> None:
        out.text(item[0]).array(item[1], out.int32).tags()

    out.array(None if value.state is State.EMPTY else tuple(by_topic(value.partitions).items()), add)
    out.int64(value.updated_ms).int64(value.started_ms)
    tags = {}
    if value.previous_producer_id != NO_PRODUCER:
        tags[_PREVIOUS_ID_TAG] = _INT64.pack(value.previous_producer_id)
    if value.next_producer_id != NO_PRODUCER:
        tags[_NEXT_ID_TAG] = _INT64.pack(value.next_producer_id)
    if value.client_version:
        tags[_CLIENT_VERSION_TAG] = _INT16.pack(value.client_version)
    if value.last_producer_epoch != NO_PRODUCER_EPOCH:
        tags[_LAST_EPOCH_TAG] = _INT16.pack(value.last_producer_epoch)
    return out.tags(tags).packed()


def unpacked(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Parse a key and a value.

    Returns:
        None for a version that this release does not know.

    Raises:
        ValueError: The bytes are no record of this topic.
    """
    read = Unpacker(key)
    if read.int16() != KEY_VERSION:
        return None
    transactional_id = read.text()
    if value is None:
        return TransactionRecord(transactional_id=transactional_id, value=None)
    body = Unpacker(value)
    version = body.version()
    if version > VALUE_VERSION:
        return None
    body.is_flexible = version >= 1
    return TransactionRecord(transactional_id=transactional_id, value=_unpacked_value(body))


def _unpacked_value(read: Unpacker) -> TransactionValue:
    producer_id, epoch, timeout_ms, number = read.int64(), read.int16(), read.int32(), read.int8()
    if not 0 <= number < len(_STATES):
        raise ValueError(f"a transaction in state {number}")

    def topic() -> list[TopicPartition]:
        name = read.text()
        found = [TopicPartition(name, each) for each in read.array(read.int32)]
        read.tags()
        return found

    partitions = frozenset(each for found in read.array_or_none(topic) or () for each in found)
    updated_ms, started_ms = read.int64(), read.int64()
    tags = read.tags()
    return TransactionValue(
        producer_id=producer_id,
        previous_producer_id=_number(tags, _PREVIOUS_ID_TAG, _INT64, NO_PRODUCER),
        next_producer_id=_number(tags, _NEXT_ID_TAG, _INT64, NO_PRODUCER),
        producer_epoch=epoch,
        last_producer_epoch=_number(tags, _LAST_EPOCH_TAG, _INT16, NO_PRODUCER_EPOCH),
        timeout_ms=timeout_ms,
        state=_STATES[number],
        partitions=partitions,
        updated_ms=updated_ms,
        started_ms=started_ms,
        client_version=_number(tags, _CLIENT_VERSION_TAG, _INT16, 0),
    )


def _number(tags: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    if tag not in tags:
        return default
    if len(tags[tag]) != form.size:
        raise ValueError(f"tagged field {tag} has {len(tags[tag])} bytes, not {form.size}")
    return int(form.unpack(tags[tag])[0])
