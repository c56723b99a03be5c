"""The bytes of __consumer_offsets and of the consumer protocol are Kafka's; S32: which partition is a group's."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.coordination.packing import versions
from minikafka.coordination.rule import java_hash, partition_of
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.groups.records import (
    CommittedOffset,
    GroupRecord,
    GroupValue,
    MemberRecord,
    OffsetRecord,
    packed,
    unpacked,
)
from minikafka.types import TopicPartition

TEXTS = st.text(max_size=12).filter(lambda text: "\ud800" not in text)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
PARTITIONS = st.builds(TopicPartition, TEXTS, st.integers(0, 2**31 - 1))


@pytest.mark.parametrize(
    "group, value, partition",
    [("my-group", -1906497762, 12), ("test", 3556498, 48), ("", 0, 0), ("polygenelubricants", -(2**31), 0)],
)
def test_a_groups_partition_is_kafkas(group: str, value: int, partition: int):
    """S32: KAFKA-FACTS 5 gives the first two; the last is Java's well-known text with the hash that has no abs."""
    assert java_hash(group) == value
    assert partition_of(group, 50) == partition


def test_the_hash_is_over_utf_16_units():
    """A character beyond the basic plane counts as its two surrogates."""
    assert java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_hash_of_a_long_name_is_javas():
    """Computed step by step, as ``String.hashCode`` is defined."""
    text = "group-\u00e9\uffff" * 200
    value = 0
    for each in text:
        value = (31 * value + ord(each)) & 0xFFFFFFFF
    assert java_hash(text) == value - (1 << 32 if value >= 1 << 31 else 0)
    assert java_hash("") == 0


def test_an_offset_in_kafkas_bytes():
    """Key version 1, value version 3, laid out by hand."""
    value = CommittedOffset(offset=258, leader_epoch=7, metadata="m", timestamp_ms=1)
    key, body = packed(OffsetRecord(group="g", partition=TopicPartition("t", 3), value=value))
    assert key == b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3"
    assert body == b"\0\3" + b"\0\0\0\0\0\0\1\2" + b"\0\0\0\7" + b"\0\1m" + b"\0\0\0\0\0\0\0\1"


def test_a_group_in_kafkas_bytes():
    """Key version 2, value version 3, laid out by hand."""
    member = MemberRecord(
        member_id="m",
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=2,
        session_timeout_ms=1,
        subscription=b"S",
        assignment=b"A",
    )
    value = GroupValue(
        protocol_type="consumer", generation=4, protocol="range", leader="m", state_timestamp_ms=9, members=(member,)
    )
    key, body = packed(GroupRecord(group="g", value=value))
    assert key == b"\0\2" + b"\0\1g"
    assert body == (
        b"\0\3\0\x08consumer\0\0\0\4\0\5range\0\1m\0\0\0\0\0\0\0\x09"
        b"\0\0\0\1" + b"\0\1m" + b"\xff\xff" + b"\0\1c\0\1h" + b"\0\0\0\2\0\0\0\1" + b"\0\0\0\1S" + b"\0\0\0\1A"
    )


OFFSET_KEY = b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3"
TOPIC_ID = bytes(range(16))


TOPIC_ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"


@pytest.mark.parametrize(
    ("tags", "topic_id"),
    [
        (b"\0", None),
        (b"\1\0\x10" + bytes(16), None),
        (b"\1\0\x10" + TOPIC_ID, TOPIC_ID_TEXT),
        (b"\2\0\x10" + TOPIC_ID + b"\5\1x", TOPIC_ID_TEXT),
    ],
)
def test_offset_of_kafka_4_1_is_read(tags: bytes, topic_id: str | None):
    """Version 4 is flexible; the bytes are those of Kafka 4.3.1, the topic id and an unknown tagged field included."""
    value = bytes.fromhex("0004000000000000010200000007026d0000000000000001") + tags
    expected = CommittedOffset(offset=258, leader_epoch=7, metadata="m", timestamp_ms=1, topic_id=topic_id)
    assert unpacked(OFFSET_KEY, value) == OffsetRecord(group="g", partition=TopicPartition("t", 3), value=expected)


def test_offset_with_a_topic_id_in_kafkas_bytes():
    """As Kafka 4.1 and later write it: value version 4, the id as tagged field 0."""
    value = CommittedOffset(offset=258, leader_epoch=7, metadata="m", timestamp_ms=1, topic_id=TOPIC_ID_TEXT)
    key, body = packed(OffsetRecord(group="g", partition=TopicPartition("t", 3), value=value))
    assert key == OFFSET_KEY
    assert body == bytes.fromhex("0004000000000000010200000007026d0000000000000001") + b"\1\0\x10" + TOPIC_ID
    with pytest.raises(ValueError, match="a topic id of 2 bytes"):
        unpacked(OFFSET_KEY, bytes.fromhex("0004000000000000010200000007026d0000000000000001") + b"\1\0\2ab")


def test_group_of_version_4_is_read():
    """The bytes are those that Kafka 4.3.1 gives for the group of test_a_group_in_kafkas_bytes."""
    value = bytes.fromhex(
        "000409636f6e73756d6572000000040672616e6765026d000000000000000902026d00026302680000000200000001025302410000"
    )
    record = unpacked(b"\0\2" + b"\0\1g", value)
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    assert record.value.members[0].subscription == b"S"
    assert packed(record)[1] is not None
    assert unpacked(*packed(record)) == record


def test_values_of_newer_versions_are_skipped():
    """A later release of Kafka may have written them; None lets the caller go on with the next record."""
    assert unpacked(OFFSET_KEY, b"\0\5whatever") is None
    assert unpacked(b"\0\2" + b"\0\1g", b"\0\7") is None
    assert versions(OFFSET_KEY, b"\0\5whatever") == "key 1, value 5"
    with pytest.raises(ValueError, match="a value of version -1"):
        unpacked(OFFSET_KEY, b"\xff\xff")


@pytest.mark.parametrize("value", [b"\0\4", bytes(22) + b"\xff" * 6, b"\0\4" + bytes(21) + b"\x7f"])
def test_flexible_values_that_are_cut_raise_one_error(value: bytes):
    """As those of older versions do."""
    with pytest.raises(ValueError, match=r"left|null|no end"):
        unpacked(OFFSET_KEY, b"\0\4" + value[2:])


OFFSETS = st.builds(
    OffsetRecord,
    group=TEXTS,
    partition=PARTITIONS,
    value=st.none() | st.builds(CommittedOffset, offset=INT64, leader_epoch=INT32, metadata=TEXTS, timestamp_ms=INT64),
)
MEMBERS = st.builds(
    MemberRecord,
    member_id=TEXTS,
    instance_id=st.none() | TEXTS,
    client_id=TEXTS,
    client_host=TEXTS,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    session_timeout_ms=INT32,
    subscription=st.binary(max_size=9),
    assignment=st.binary(max_size=9),
)
GROUPS = st.builds(
    GroupRecord,
    group=TEXTS,
    value=st.none()
    | st.builds(
        GroupValue,
        protocol_type=TEXTS,
        generation=INT32,
        protocol=st.none() | TEXTS,
        leader=st.none() | TEXTS,
        state_timestamp_ms=INT64,
        members=st.lists(MEMBERS, max_size=3).map(tuple),
    ),
)


@given(OFFSETS | GROUPS)
def test_records_come_back_as_they_went(record):
    """Whatever is in them."""
    assert unpacked(*packed(record)) == record


@given(st.binary(max_size=40), st.none() | st.binary(max_size=80))
def test_bytes_that_are_no_record_raise_one_error(key: bytes, value: bytes | None):
    """ValueError, never another: a damaged record must not end a coordinator in an unknown way."""
    with contextlib.suppress(ValueError):
        unpacked(key, value)


def test_a_record_of_a_later_kind_is_passed_over():
    """KIP-848's keys 3 to 8, in a log that a later release wrote."""
    assert unpacked(b"\0\3\0\1g", b"") is None


def test_a_subscription_in_kafkas_bytes():
    """Version 3, laid out by hand."""
    value = Subscription(topics=("t",), owned=(TopicPartition("t", 1),), generation=5, rack="r")
    expected = (
        b"\0\3" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff" + b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\1" + b"\0\0\0\5" + b"\0\1r"
    )
    assert value.packed() == expected
    assert Subscription.unpacked(expected) == value


def test_older_subscriptions_are_read():
    """Version 0 has topics and user data only; version 1 owned partitions; version 2 the generation."""
    zero = b"\0\0" + b"\0\0\0\1\0\1t" + b"\0\0\0\1U"
    assert Subscription.unpacked(zero) == Subscription(topics=("t",), user_data=b"U")
    one = b"\0\1" + zero[2:] + b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\1"
    assert Subscription.unpacked(one).owned == (TopicPartition("t", 1),)
    assert Subscription.unpacked(b"\0\2" + one[2:] + b"\0\0\0\6").generation == 6


@given(st.lists(PARTITIONS, unique=True, max_size=6), st.none() | st.binary(max_size=5))
def test_assignments_come_back_sorted(partitions: list[TopicPartition], user_data: bytes | None):
    """By topic and number: the bytes do not depend on an order in memory."""
    value = Assignment(partitions=tuple(partitions), user_data=user_data)
    assert Assignment.unpacked(value.packed()) == Assignment(partitions=tuple(sorted(partitions)), user_data=user_data)


def test_no_bytes_are_no_partitions():
    """A member that the leader left out gets nothing, as in Kafka."""
    assert Assignment.unpacked(b"") == Assignment()


@given(st.binary(max_size=60))
def test_bytes_that_are_no_subscription_raise_one_error(packed_bytes: bytes):
    """They come from other clients."""
    for kind in (Subscription, Assignment):
        with contextlib.suppress(ValueError):
            kind.unpacked(packed_bytes)


@pytest.mark.parametrize("packed", [b"", b"\0", b"\xff\xff", b"\0\3garbage"])
def test_a_subscription_that_cannot_be_read_is_of_nothing_for_who_deals(packed):
    """One member from another program must not end the members that lead the group."""
    with pytest.raises(ValueError, match=r".*"):
        Subscription.unpacked(packed)
    assert Subscription.readable(packed) == Subscription(topics=())
    good = Subscription(topics=("t",))
    assert Subscription.readable(good.packed()) == good
