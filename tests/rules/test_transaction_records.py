"""The bytes of __transaction_state are Kafka's."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.coordination.rule import java_hash, partition_of
from minikafka.transactions.records import (
    State,
    TransactionRecord,
    TransactionValue,
    packed,
    packed_value,
    unpacked,
)
from minikafka.types import TopicPartition

KEY = bytes.fromhex("000000086f72646572732d37")
EMPTY = bytes.fromhex("00000000000000000fa000000000ea6000ffffffff0000018bcfe56800ffffffffffffffff")
ONGOING = bytes.fromhex(
    "00000000000000000fa000000000ea60010000000100066f72646572730000000200000000000000020000018bcfe568640000018bcfe56864"
)
PREPARED = bytes.fromhex(
    "00010000000000000fa000010000ea600202076f7264657273030000000000000002000000018bcfe568c80000018bcfe56864"
    "0200080000000000000fa002020002"
)
T0 = 1_700_000_000_000
ORDERS = frozenset({TopicPartition("orders", 0), TopicPartition("orders", 2)})
VECTORS = [
    (
        0,
        EMPTY,
        TransactionValue(producer_id=4000, producer_epoch=0, timeout_ms=60_000, state=State.EMPTY, updated_ms=T0),
    ),
    (
        0,
        ONGOING,
        TransactionValue(
            producer_id=4000,
            producer_epoch=0,
            timeout_ms=60_000,
            state=State.ONGOING,
            partitions=ORDERS,
            updated_ms=T0 + 100,
            started_ms=T0 + 100,
        ),
    ),
    (
        1,
        PREPARED,
        TransactionValue(
            producer_id=4000,
            previous_producer_id=4000,
            producer_epoch=1,
            timeout_ms=60_000,
            state=State.PREPARE_COMMIT,
            partitions=ORDERS,
            updated_ms=T0 + 200,
            started_ms=T0 + 100,
            client_version=2,
        ),
    ),
]


@pytest.mark.parametrize("version, data, value", VECTORS, ids=["v0-empty", "v0-ongoing", "v1-prepared"])
def test_values_are_kafkas_bytes(version: int, data: bytes, value: TransactionValue):
    """A.3's vectors, computed from Kafka's schemas, in both directions."""
    assert packed_value(value, version) == data
    assert unpacked(KEY, data) == TransactionRecord(transactional_id="orders-7", value=value)


def test_key_and_tombstone_are_kafkas_bytes():
    """Version 0, the id behind an int16; no value forgets the id."""
    forgotten = TransactionRecord(transactional_id="orders-7", value=None)
    assert packed(forgotten) == (KEY, None)
    assert unpacked(KEY, None) == forgotten


@pytest.mark.parametrize(
    "transactional_id, value, partition", [("orders-7", 1234322255, 5), ("my-txn", -1061187895, 45)]
)
def test_partition_of_a_transactional_id_is_kafkas(transactional_id: str, value: int, partition: int):
    """The hash is that of groups."""
    assert java_hash(transactional_id) == value
    assert partition_of(transactional_id, 50) == partition


def test_unknown_versions_are_skipped_and_tags_are_ignored():
    """A later release may write another version, or more tagged fields."""
    assert unpacked(b"\x00\x01" + KEY[2:], EMPTY) is None
    assert unpacked(KEY, b"\x00\x02" + EMPTY[2:]) is None
    more = PREPARED[: -len(bytes.fromhex("0200080000000000000fa002020002"))] + bytes.fromhex("0105023132")
    found = unpacked(KEY, more)
    assert found is not None
    assert found.value is not None
    assert found.value.client_version == 0


def test_last_epoch_is_a_tag_that_kafka_skips():
    """Kafka keeps it in memory only, so a retry of InitProducerId across a failover would be fenced."""
    value = TransactionValue(producer_id=1, producer_epoch=5, last_producer_epoch=4, timeout_ms=1, state=State.EMPTY)
    assert packed_value(value).endswith(bytes.fromhex("016402" + "0004"))
    assert unpacked(*packed(TransactionRecord(transactional_id="a", value=value))) == TransactionRecord(
        transactional_id="a", value=value
    )


VALUES = st.builds(
    TransactionValue,
    producer_id=st.integers(0, 2**63 - 1),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    last_producer_epoch=st.integers(-1, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([each for each in State if each is not State.EMPTY]),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.text(st.characters(codec="utf-8"), max_size=4), st.integers(0, 9))
    ),
    updated_ms=st.integers(-1, 2**62),
    started_ms=st.integers(-1, 2**62),
    client_version=st.integers(0, 2),
)


@given(VALUES)
def test_any_value_is_read_as_it_was_written(value: TransactionValue):
    """Round trip."""
    record = TransactionRecord(transactional_id="t", value=value)
    assert unpacked(*packed(record)) == record


@given(st.binary(max_size=60), st.none() | st.binary(max_size=80))
def test_any_bytes_are_a_record_or_a_value_error(key: bytes, value: bytes | None):
    """No other exception escapes."""
    with contextlib.suppress(ValueError):
        unpacked(key, value)


@pytest.mark.parametrize("data", [b"\xff\xff" + EMPTY[2:], EMPTY[:16] + b"\x06" + EMPTY[17:], EMPTY[:-1]])
def test_damaged_values_are_rejected(data: bytes):
    """A negative version, a state that is never written, a value cut short."""
    with pytest.raises(ValueError):
        unpacked(KEY, data)
