"""Records 3 to 8 and 16 of ``__consumer_offsets``, byte for byte Kafka's (KIP-848).

A key is its type (int16) and its fields in the fixed form. A value is version 0, in the flexible form. No value means
that the subject of the key is gone.

Rules for this file: ``unpacked`` raises ValueError for bytes that are no such record, and returns None for types of
keys and versions of values that it does not know. Compaction reorders records: each must make sense alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from minikafka.coordination.packing import Packer, Unpacker, by_topic
from minikafka.types import TopicId, uuid_bytes, uuid_text
from minikafka.wire.batch import NO_TIMESTAMP

GROUP, TOPICS, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
"""The types of keys."""
KEY_TYPES: Final = frozenset({GROUP, TOPICS, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX})
VALUE_VERSION = 0
_HASH_TAG = 0
_EMPTIED_TAG = 100
"""Ours. Kafka's coordinators forget offsets by the age of their commits only; its readers skip unknown tags."""
_UUID = struct.Struct(">qq")


class TopicIdPartition(NamedTuple):
    """One partition of the topic with this id."""

    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpoch:
    """Type 3: the group's epoch, and a hash of the topics that it was decided upon."""

    epoch: int
    metadata_hash: int = 0
    emptied_ms: int = NO_TIMESTAMP
    """Wall clock when the last member went; -1: there are members, or it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSession:
    """What a member of the classic protocol says of itself beside that."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...] = ()
    """Its assignors, the favorite first, with the subscription for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """Type 5: what a member said of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicSession | None = None
    """Set if the member uses the classic protocol, in a group that is being migrated."""

    @property
    def is_classic(self) -> bool:
        """Return True if the member sends JoinGroup, SyncGroup and Heartbeat."""
        return self.classic is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpoch:
    """Type 6: the group epoch that the target assignment was made for."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Type 7: the partitions that a member is to own once it has reconciled."""

    partitions: frozenset[TopicIdPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """Type 8: the partitions that a member may own now, and those that it must confirm to have revoked."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Each partition, and the member epoch at which it was assigned (KIP-1251)."""
    revoking: Mapping[TopicIdPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex:
    """Type 16: the topics that a regular expression matched."""

    topics: tuple[str, ...] = ()
    version: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """Type 4, which Kafka wrote before 4.1: read and ignored."""


ConsumerValue = GroupEpoch | MemberMetadata | TargetEpoch | Target | Current | Regex | PartitionMetadata

_TYPE_OF: Final[dict[type, int]] = {
    GroupEpoch: GROUP,
    PartitionMetadata: TOPICS,
    MemberMetadata: MEMBER,
    TargetEpoch: TARGET_EPOCH,
    Target: TARGET,
    Current: CURRENT,
    Regex: REGEX,
}
_OF_GROUP: Final = frozenset({GROUP, TOPICS, TARGET_EPOCH})
"""Types whose key has no field but the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRecord:
    """One record. ``value`` None: the subject is gone."""

    group: str
    kind: int
    name: str = ""
    """The member id, or the regular expression; empty where the key has none."""
    value: ConsumerValue | None


def record(group: str, value: ConsumerValue, name: str = "") -> ConsumerRecord:
    """A record that sets a value."""
    return ConsumerRecord(group=group, kind=_TYPE_OF[type(value)], name=name, value=value)


def tombstone(group: str, kind: int, name: str = "") -> ConsumerRecord:
    """A record that deletes the subject of its key."""
    return ConsumerRecord(group=group, kind=kind, name=name, value=None)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def packed(each: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Key and value."""
    key = Packer().int16(each.kind).text(each.group)
    if each.kind not in _OF_GROUP:
        key.text(each.name)
    if each.value is None:
        return key.packed(), None
    out = Packer().int16(VALUE_VERSION)
    out.is_flexible = True
    _pack(out, each.value)
    return key.packed(), out.packed()


def unpacked(key: bytes, value: bytes | None) -> ConsumerRecord | None:
    """Parse a key and a value; None for a type or version that this release does not know."""
    read = Unpacker(key)
    kind = read.int16()
    if kind not in KEY_TYPES:
        return None
    group = read.text()
    name = "" if kind in _OF_GROUP else read.text()
    if value is None:
        return tombstone(group, kind, name)
    body = Unpacker(value)
    version = body.version()
    if version > VALUE_VERSION:
        return None
    body.is_flexible = True
    return ConsumerRecord(group=group, kind=kind, name=name, value=_READERS[kind](body))


def _pack(out: Packer, value: ConsumerValue) -> None:
    if isinstance(value, GroupEpoch):
        tags = {_HASH_TAG: Packer().int64(value.metadata_hash).packed()} if value.metadata_hash else {}
        if value.emptied_ms != NO_TIMESTAMP:
            tags[_EMPTIED_TAG] = Packer().int64(value.emptied_ms).packed()
        out.int32(value.epoch).tags(tags)
    elif isinstance(value, MemberMetadata):
        out.text(value.instance_id).text(value.rack_id).text(value.client_id).text(value.client_host)
        out.array(value.topics, out.text).text(value.regex).int32(value.rebalance_timeout_ms)
        out.text(value.server_assignor).tags({} if value.classic is None else {0: _packed_classic(value.classic)})
    elif isinstance(value, TargetEpoch):
        out.int32(value.epoch).tags()
    elif isinstance(value, Target):
        _pack_partitions(out, dict.fromkeys(value.partitions, 0), with_epochs=False)
        out.tags()
    elif isinstance(value, Current):
        out.int32(value.epoch).int32(value.previous_epoch).int8(value.state)
        _pack_partitions(out, value.assigned, with_epochs=True)
        _pack_partitions(out, value.revoking, with_epochs=True)
        out.tags()
    elif isinstance(value, Regex):
        out.array(value.topics, out.text).int64(value.version).int64(value.timestamp_ms).tags()
    else:
        out.array((), out.int32).tags()


def _packed_classic(value: ClassicSession) -> bytes:
    out = Packer()
    out.is_flexible = True

    def add(item: tuple[str, bytes]) -> None:
        out.text(item[0]).data(item[1]).tags()

    out.int32(value.session_timeout_ms).array(value.protocols, add)
    return out.tags().packed()


def _pack_partitions(out: Packer, given: Mapping[TopicIdPartition, int], *, with_epochs: bool) -> None:
    def add(item: tuple[TopicId, list[int]]) -> None:
        topic_id, numbers = item
        out.raw(uuid_bytes(topic_id)).array(numbers, out.int32)
        tags = {}
        if with_epochs:
            epochs = Packer()
            epochs.is_flexible = True
            epochs.array([given[TopicIdPartition(topic_id, each)] for each in numbers], epochs.int32)
            tags[0] = epochs.packed()
        out.tags(tags)

    out.array(list(by_topic(given).items()), add)


def _read_group(read: Unpacker) -> GroupEpoch:
    epoch, tags = read.int32(), read.tags()
    return GroupEpoch(
        epoch=epoch,
        metadata_hash=Unpacker(tags[_HASH_TAG]).int64() if _HASH_TAG in tags else 0,
        emptied_ms=Unpacker(tags[_EMPTIED_TAG]).int64() if _EMPTIED_TAG in tags else NO_TIMESTAMP,
    )


def _read_member(read: Unpacker) -> MemberMetadata:
    member = MemberMetadata(
        instance_id=read.text_or_none(),
        rack_id=read.text_or_none(),
        client_id=read.text(),
        client_host=read.text(),
        topics=read.array(read.text),
        regex=read.text_or_none(),
        rebalance_timeout_ms=read.int32(),
        server_assignor=read.text_or_none(),
    )
    tags = read.tags()
    return member if 0 not in tags else replace(member, classic=_read_classic(tags[0]))


def _read_classic(packed: bytes) -> ClassicSession:
    read = Unpacker(packed)
    read.is_flexible = True

    def protocol() -> tuple[str, bytes]:
        name, metadata = read.text(), read.data_or_none() or b""
        read.tags()
        return name, metadata

    return ClassicSession(session_timeout_ms=read.int32(), protocols=read.array(protocol))


def _read_target_epoch(read: Unpacker) -> TargetEpoch:
    value = TargetEpoch(epoch=read.int32())
    read.tags()
    return value


def _read_target(read: Unpacker) -> Target:
    value = Target(partitions=frozenset(_read_partitions(read, 0)))
    read.tags()
    return value


def _read_current(read: Unpacker) -> Current:
    epoch, previous, state = read.int32(), read.int32(), read.int8()
    # Without the tag of KIP-1251 (Kafka before 4.3) a partition counts as assigned at the member's epoch.
    assigned, revoking = _read_partitions(read, epoch), _read_partitions(read, epoch)
    read.tags()
    return Current(epoch=epoch, previous_epoch=previous, state=state, assigned=assigned, revoking=revoking)


def _read_regex(read: Unpacker) -> Regex:
    value = Regex(topics=read.array(read.text), version=read.int64(), timestamp_ms=read.int64())
    read.tags()
    return value


def _read_partitions(read: Unpacker, epoch: int) -> dict[TopicIdPartition, int]:
    found: dict[TopicIdPartition, int] = {}

    def topic() -> None:
        topic_id = uuid_text(_UUID.pack(read.int64(), read.int64()))
        numbers, tags = read.array(read.int32), read.tags()
        epochs: tuple[int, ...] = (epoch,) * len(numbers)
        if 0 in tags:
            inner = Unpacker(tags[0])
            inner.is_flexible = True
            epochs = inner.array_or_none(inner.int32) or epochs
        if len(epochs) != len(numbers):
            raise ValueError(f"{len(numbers)} partitions with {len(epochs)} epochs")
        found.update({TopicIdPartition(topic_id, number): at for number, at in zip(numbers, epochs, strict=True)})

    read.array(topic)
    return found


_READERS: Final[dict[int, Callable[[Unpacker], ConsumerValue]]] = {
    GROUP: _read_group,
    TOPICS: lambda _: PartitionMetadata(),
    MEMBER: _read_member,
    TARGET_EPOCH: _read_target_epoch,
    TARGET: _read_target,
    CURRENT: _read_current,
    REGEX: _read_regex,
}
