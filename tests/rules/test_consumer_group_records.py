"""Records of the consumer protocol (KIP-848) in __consumer_offsets, against bytes laid out by Kafka's schemas."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.groups.consumer.group import ConsumerGroup
from minikafka.groups.consumer.records import (
    Current,
    GroupEpoch,
    MemberMetadata,
    Regex,
    Target,
    TargetEpoch,
    TopicIdPartition,
    packed,
    record,
    tombstone,
    unpacked,
)

RAW_ID = bytes(range(16))
TOPIC_ID = base64.urlsafe_b64encode(RAW_ID).decode().rstrip("=")
P0, P2 = TopicIdPartition(TOPIC_ID, 0), TopicIdPartition(TOPIC_ID, 2)

MEMBER = MemberMetadata(
    instance_id="i", client_id="c", client_host="h", topics=("t",), rebalance_timeout_ms=5, server_assignor="range"
)
CURRENT = Current(epoch=3, previous_epoch=2, state=1, assigned={P0: 1, P2: 3})
CASES = [
    (record("g", GroupEpoch(epoch=7)), b"\0\3\0\1g", b"\0\0" + b"\0\0\0\7" + b"\0"),
    (
        record("g", GroupEpoch(epoch=7, emptied_ms=258)),
        b"\0\3\0\1g",
        b"\0\0" + b"\0\0\0\7" + b"\1\x64\x08\0\0\0\0\0\0\1\2",
    ),
    (
        record("g", GroupEpoch(epoch=7, metadata_hash=258)),
        b"\0\3\0\1g",
        b"\0\0" + b"\0\0\0\7" + b"\1\0\x08" + b"\0\0\0\0\0\0\1\2",
    ),
    (
        record("g", MEMBER, "m"),
        b"\0\5\0\1g\0\1m",
        b"\0\0" + b"\2i" + b"\0" + b"\2c" + b"\2h" + b"\2\2t" + b"\0" + b"\0\0\0\5" + b"\6range" + b"\0",
    ),
    (record("g", TargetEpoch(epoch=7)), b"\0\6\0\1g", b"\0\0" + b"\0\0\0\7" + b"\0"),
    (
        record("g", Target(partitions=frozenset({P2, P0})), "m"),
        b"\0\7\0\1g\0\1m",
        b"\0\0" + b"\2" + RAW_ID + b"\3\0\0\0\0\0\0\0\2" + b"\0" + b"\0",
    ),
    (
        record("g", CURRENT, "m"),
        b"\0\x08\0\1g\0\1m",
        b"\0\0" + b"\0\0\0\3" + b"\0\0\0\2" + b"\1"
        # topic, partitions, and the assignment epochs (KIP-1251) as tagged field 0 with 9 bytes
        + b"\2" + RAW_ID + b"\3\0\0\0\0\0\0\0\2" + b"\1\0\x09\3\0\0\0\1\0\0\0\3" + b"\1" + b"\0",
    ),
    (
        record("g", Regex(topics=("t",), version=1, timestamp_ms=2), "t.*"),
        b"\0\x10\0\1g\0\3t.*",
        b"\0\0" + b"\2\2t" + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\0\0\0\0\2" + b"\0",
    ),
    (tombstone("g", 8, "m"), b"\0\x08\0\1g\0\1m", None),
]  # fmt: skip


@pytest.mark.parametrize("each, key, value", CASES)
def test_records_have_kafkas_bytes(each, key: bytes, value: bytes | None):
    """Key types 3 and 5 to 8 and 16: fixed key, flexible value."""
    assert packed(each) == (key, value)
    assert unpacked(key, value) == each


def test_current_assignment_without_epochs_is_read():
    """Kafka before 4.3 writes no assignment epochs: the member's epoch counts for each partition."""
    value = b"\0\0" + b"\0\0\0\3" + b"\0\0\0\2" + b"\0" + b"\2" + RAW_ID + b"\2\0\0\0\2\0" + b"\1" + b"\0"
    read = unpacked(b"\0\x08\0\1g\0\1m", value)
    assert read == record("g", Current(epoch=3, previous_epoch=2, state=0, assigned={P2: 3}), "m")


def test_unknown_types_and_versions_are_skipped():
    """Share and streams groups (types 9 to 15, 17) and values of later releases."""
    assert unpacked(b"\0\x09\0\1g", b"\0\0") is None
    assert unpacked(b"\0\3\0\1g", b"\0\1whatever") is None
    with pytest.raises(ValueError, match="a value of version -1"):
        unpacked(b"\0\3\0\1g", b"\xff\xff")


@given(kind=st.sampled_from([3, 4, 5, 6, 7, 8, 16]), value=st.binary(max_size=60))
def test_damaged_records_raise_one_error(kind: int, value: bytes):
    """Any bytes: a record, None, or ValueError."""
    with contextlib.suppress(ValueError):
        unpacked(b"\0" + bytes((kind,)) + b"\0\1g\0\1m", b"\0\0" + value)


def test_a_partition_that_has_a_new_owner_is_not_released_by_the_former_one():
    """KAFKA-19862: compaction may leave the former owner's last record behind that of the new one."""
    group = ConsumerGroup("g")
    group.apply(record("g", Current(epoch=1, previous_epoch=0, state=0, assigned={P0: 1}), "former"))
    group.apply(record("g", Current(epoch=2, previous_epoch=0, state=0, assigned={P0: 2}), "present"))
    group.apply(record("g", Current(epoch=2, previous_epoch=1, state=0), "former"))
    assert group.owners == {P0: "present"}
