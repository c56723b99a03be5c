"""The records of ``__consumer_offsets``, byte for byte Kafka's (KAFKA-FACTS 5).

A key says what a record is about: version 0 or 1 an offset of (group, topic, partition), version 2 a group. No value:
it is deleted. The topic is compacted, so the last record of each key is all that counts.

Rules for this file: ``unpacked`` raises ValueError for what is no such record, and returns None for versions of keys
and values that it does not know, so that a log written by a later release of Kafka can be read past them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minikafka.coordination.packing import Packer, Unpacker
from minikafka.log.names import topic_id_bytes
from minikafka.types import NO_EPOCH, NO_TOPIC_ID, Epoch, Offset, TopicId, TopicPartition, uuid_text

OFFSETS_TOPIC: Final = "__consumer_offsets"

OFFSET_KEY_VERSION, GROUP_KEY_VERSION = 1, 2
OFFSET_VALUE_VERSION, GROUP_VALUE_VERSION = 3, 3
"""The versions that are written, but for offsets with a topic id."""
FLEXIBLE_VERSION = 4
"""The newest version of both values. As in Kafka 4.1 and later, offsets are written with it if the topic id is known:
a topic that is deleted and created again under its name has other records at these offsets.
"""
TOPIC_ID_TAG, TOPIC_ID_SIZE = 0, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The next offset that a group will read from one partition."""

    offset: Offset
    leader_epoch: Epoch = NO_EPOCH
    """Leader epoch of the last consumed record, or -1 if unknown."""
    metadata: str = ""
    timestamp_ms: int
    """Wall clock of the coordinator at the commit."""
    topic_id: TopicId | None = None
    """Id of the topic when the offset was committed; None: the record does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One member as it stands in a group's record."""

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValue:
    """A group at the end of a rebalance; without members: it is empty."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int
    members: tuple[MemberRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """``value`` None: the offset is forgotten."""

    group: str
    partition: TopicPartition
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """``value`` None: the group is gone."""

    group: str
    value: GroupValue | None


GroupsRecord = OffsetRecord | GroupRecord


def packed(record: GroupsRecord) -> tuple[bytes, bytes | None]:
    """Key and value."""
    if isinstance(record, OffsetRecord):
        topic, partition = record.partition
        key = Packer().int16(OFFSET_KEY_VERSION).text(record.group).text(topic).int32(partition).packed()
        return key, None if record.value is None else _packed_offset(record.value)
    key = Packer().int16(GROUP_KEY_VERSION).text(record.group).packed()
    return key, None if record.value is None else _packed_group(record.value)


def unpacked(key: bytes, value: bytes | None) -> GroupsRecord | None:
    """Parse a key and a value; None for a version that this release does not know. ValueError: it is no record."""
    read = Unpacker(key)
    version = read.int16()
    if version not in (0, OFFSET_KEY_VERSION, GROUP_KEY_VERSION):
        return None
    body = None if value is None else Unpacker(value)
    value_version = 0 if body is None else body.version()
    if value_version > FLEXIBLE_VERSION:
        return None
    if body is not None:
        body.is_flexible = value_version >= FLEXIBLE_VERSION
    if version == GROUP_KEY_VERSION:
        return GroupRecord(group=read.text(), value=None if body is None else _unpacked_group(body, value_version))
    group, topic, partition = read.text(), read.text(), read.int32()
    offset = None if body is None else _unpacked_offset(body, value_version)
    return OffsetRecord(group=group, partition=TopicPartition(topic, partition), value=offset)


def _packed_offset(value: CommittedOffset) -> bytes:
    known = value.topic_id is not None
    out = Packer().int16(FLEXIBLE_VERSION if known else OFFSET_VALUE_VERSION)
    out.is_flexible = known
    out.int64(value.offset).int32(value.leader_epoch).text(value.metadata).int64(value.timestamp_ms)
    return out.tags({} if value.topic_id is None else {TOPIC_ID_TAG: topic_id_bytes(value.topic_id)}).packed()


def _unpacked_offset(read: Unpacker, version: int) -> CommittedOffset:
    offset = read.int64()
    epoch = read.int32() if version >= 3 else NO_EPOCH
    metadata, timestamp_ms = read.text(), read.int64()
    # Version 1 carries a time of expiry behind it, which is not used.
    topic_id = _topic_id(read.tags().get(TOPIC_ID_TAG))
    return CommittedOffset(
        offset=offset, leader_epoch=epoch, metadata=metadata, timestamp_ms=timestamp_ms, topic_id=topic_id
    )


def _topic_id(raw: bytes | None) -> TopicId | None:
    if raw is None:
        return None
    if len(raw) != TOPIC_ID_SIZE:
        raise ValueError(f"a topic id of {len(raw)} bytes")
    found = uuid_text(raw)
    return None if found == NO_TOPIC_ID else found


def _packed_group(value: GroupValue) -> bytes:
    out = Packer().int16(GROUP_VALUE_VERSION).text(value.protocol_type).int32(value.generation)
    out.text(value.protocol).text(value.leader).int64(value.state_timestamp_ms)

    def add(member: MemberRecord) -> None:
        out.text(member.member_id).text(member.instance_id).text(member.client_id).text(member.client_host)
        out.int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        out.data(member.subscription).data(member.assignment)

    return out.array(value.members, add).packed()


def _unpacked_group(read: Unpacker, version: int) -> GroupValue:
    protocol_type, generation = read.text(), read.int32()
    protocol, leader = read.text_or_none(), read.text_or_none()
    state_timestamp_ms = read.int64() if version >= 2 else -1

    def member() -> MemberRecord:
        member_id = read.text()
        instance_id = read.text_or_none() if version >= 3 else None
        client_id, client_host = read.text(), read.text()
        rebalance_timeout_ms = read.int32() if version >= 1 else -1
        session_timeout_ms = read.int32()
        subscription, assignment = read.data(), read.data()
        read.tags()
        return MemberRecord(
            member_id=member_id,
            instance_id=instance_id,
            client_id=client_id,
            client_host=client_host,
            rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            subscription=subscription,
            assignment=assignment,
        )

    members = read.array(member)
    read.tags()
    return GroupValue(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_timestamp_ms=state_timestamp_ms,
        members=members,
    )
