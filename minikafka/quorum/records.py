"""The metadata log's records, and how one becomes the value of a log record.

Kafka's names and keys (KAFKA-FACTS 4.2); the bytes are msgpack, for Kafka's tools read no such records (DESIGN D4):
``[key, version, {field: value}]``, a field that is None left out. Reading is strict: a key, version or field that this
build does not know is UnsupportedVersion, for a broker that skipped a record would hold another image than its peers;
bytes that are not such a record are CorruptMessage.

Rules for this file: data only. What a record does to the cluster stands in ``image.py``.

Kafka's control records of the log, of the leader and of a snapshot's frame, are here as well. Their layouts are Kafka's
message formats, flexible version 0: fixed integers are big-endian, arrays carry their length plus one as an unsigned
varint, structures end in a count of tagged fields (0).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import msgspec

from minikafka.errors import CorruptMessage, UnsupportedVersion
from minikafka.invariant import invariant
from minikafka.types import NO_NODE, Epoch, NodeId, Offset, TopicId
from minikafka.wire.records import (
    CONTROL_LEADER_CHANGE,
    CONTROL_SNAPSHOT_FOOTER,
    CONTROL_SNAPSHOT_HEADER,
    control_batch,
)

RECORD_VERSION = 1
"""The only layout so far; it rises when a field changes its meaning."""

METADATA_VERSION = "metadata.version"
"""The feature that names the layout of this log; see :class:`FeatureLevel`."""

METADATA_VERSION_LEVEL = 1

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
"""Kafka's numbers of what a :class:`ConfigRecord` is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A new incarnation of a broker. One that is fenced is so until it has read this record."""

    broker_id: NodeId
    incarnation_id: str
    host: str
    port: int
    rack: str | None = None
    listeners: str | None = None
    """``NAME://host:port,...`` of the listeners that are not at ``host`` and ``port``; None: there are none."""
    broker_epoch: Offset | None = None
    """None: the offset of this very record. Set in snapshots, whose records have other offsets."""
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[str, ...] | None = None
    """``directory.id`` of its data directory; None: it did not tell (as builds before this field wrote it)."""
    ignores_case: bool | None = None
    """True: the file system of its data directory does not distinguish case. Else None, which older builds read."""
    min_insync_replicas: int | None = None
    """Its own default of topics' min.insync.replicas; None: 1, or it did not tell (as builds before this field)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """A broker left for good: it was fenced, and held no replica."""

    broker_id: NodeId
    broker_epoch: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChange:
    """A registered broker was fenced, unfenced, or began to shut down; None: as before (KIP-841)."""

    broker_id: NodeId
    broker_epoch: Offset
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created; its settings and partitions follow in the same batch."""

    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition as a whole: on creation, and in snapshots. Partitions of a topic come in order from 0."""

    topic_id: TopicId
    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: Epoch = 0
    partition_epoch: int = 0
    controller_epoch: Epoch | None = None
    """None: the epoch of the batch that carries the record. Set in snapshots."""
    elr: tuple[NodeId, ...] = ()
    last_known_elr: tuple[NodeId, ...] = ()
    recovered: bool = True
    adding: tuple[NodeId, ...] | None = None
    """None: no reassignment is under way (as builds without reassignments wrote it)."""
    removing: tuple[NodeId, ...] | None = None
    last_known_dirs: tuple[str, ...] | None = None
    """None: there is no last known leader, or nobody knows on which disk it led (our own addition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """What changes in a partition; None: as before.

    Every change raises the partition epoch by one, and one that names a leader (also the same, also nobody: -1) raises
    the leader epoch by one (KAFKA-FACTS 3.5).
    """

    topic_id: TopicId
    partition: int
    isr: tuple[NodeId, ...] | None = None
    leader: NodeId | None = None
    elr: tuple[NodeId, ...] | None = None
    last_known_elr: tuple[NodeId, ...] | None = None
    recovered: bool | None = None
    replicas: tuple[NodeId, ...] | None = None
    adding: tuple[NodeId, ...] | None = None
    removing: tuple[NodeId, ...] | None = None
    last_known_dirs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """One setting of one resource; a value of None deletes it.

    A broker's name is its id; the empty name stands for all brokers.
    """

    resource_name: str
    name: str
    value: str | None = None
    resource_type: int = TOPIC_RESOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopic:
    """The topic, its partitions and its settings are gone."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIds:
    """A block of producer ids was handed to a broker; the next block starts at ``next_producer_id``."""

    broker_id: NodeId = NO_NODE
    broker_epoch: Offset = -1
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevel:
    """The level of a feature of the cluster; ``metadata.version`` is the layout of this log."""

    name: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntry:
    """An access control entry was created. Numbers are those of ``wire/acls.py``."""

    id: str
    """22 characters of URL-safe base64, as a topic's id."""
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntry:
    """An access control entry was deleted."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredential:
    """A user has this credential for a SCRAM mechanism (Kafka's number), in place of the one before."""

    name: str
    mechanism: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredential:
    """A user's credential for a SCRAM mechanism was deleted."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """A quota of an entity was set; a value of None removes it. The entity is named by ``users`` and ``client_ids``, or
    by ``ips``.

    The lists are as in ``security/quotas.py``: not there for a type that is no part of the entity, empty for its
    default, else with one name.
    """

    users: tuple[str, ...] | None = None
    client_ids: tuple[str, ...] | None = None
    ips: tuple[str, ...] | None = None
    key: str
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecret:
    """What all brokers know and no client does; our own. Written once, with the cluster's first credential."""

    secret: bytes = field(repr=False)


MetadataRecord: TypeAlias = (
    RegisterBroker
    | UnregisterBroker
    | BrokerRegistrationChange
    | TopicRecord
    | PartitionRecord
    | PartitionChange
    | ConfigRecord
    | RemoveTopic
    | ProducerIds
    | FeatureLevel
    | AccessControlEntry
    | RemoveAccessControlEntry
    | UserScramCredential
    | RemoveUserScramCredential
    | ClientQuota
    | ClusterSecret
)

_KEYS: dict[type[MetadataRecord], int] = {
    RegisterBroker: 0,
    UnregisterBroker: 1,
    TopicRecord: 2,
    PartitionRecord: 3,
    ConfigRecord: 4,
    PartitionChange: 5,
    RemoveTopic: 9,
    UserScramCredential: 11,
    FeatureLevel: 12,
    ClientQuota: 14,
    ProducerIds: 15,
    BrokerRegistrationChange: 17,
    AccessControlEntry: 18,
    RemoveAccessControlEntry: 19,
    RemoveUserScramCredential: 22,
    ClusterSecret: 1101,
}
"""Kafka's API keys of its metadata records; from 1000 on they are our own."""


_LAYOUTS = {key: (kind, frozenset(each.name for each in fields(kind))) for kind, key in _KEYS.items()}
"""Class and names of the fields, by key."""


def encode(record: MetadataRecord) -> bytes:
    """The value of the log record that carries ``record``."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    fields_set = {name: value for name, value in values.items() if value is not None}
    return msgspec.msgpack.encode((_KEYS[type(record)], RECORD_VERSION, fields_set))


def decode(payload: bytes | memoryview) -> MetadataRecord:
    """The record in a log record's value; raises UnsupportedVersion or CorruptMessage (see the file's head)."""
    try:
        parts = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptMessage(f"a metadata record is not msgpack: {error}") from error
    if not isinstance(parts, list) or len(parts) != 3 or not isinstance(parts[2], dict):
        raise CorruptMessage("a metadata record is not [key, version, fields]")
    key, version, values = parts
    layout = _LAYOUTS.get(key) if isinstance(key, int) else None
    if layout is None or version != RECORD_VERSION:
        raise UnsupportedVersion(f"metadata record with key {key!r} and version {version!r} is not known to this build")
    kind, known = layout
    for name in values:
        if name not in known:
            raise UnsupportedVersion(f"{kind.__name__} has no field {name!r} that this build knows")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise CorruptMessage(f"{kind.__name__}: {error}") from error


HIDDEN = "[hidden]"


def shown_fields(record: MetadataRecord) -> dict[str, Any]:
    """The fields of a record for people, with HIDDEN in place of bytes: those are salts, keys and secrets."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    return {name: HIDDEN if isinstance(value, bytes) else value for name, value in values.items()}


_VERSION_0 = struct.pack(">h", 0)
_NO_TAGGED_FIELDS = b"\0"
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

# More voters than one varint byte can count do not exist in a static quorum.
VOTER_COUNT_MAX = 126


def _voters(voters: Sequence[NodeId]) -> bytes:
    invariant(len(voters) <= VOTER_COUNT_MAX, "the voters fit one byte", count=len(voters))
    return bytes([len(voters) + 1]) + b"".join(_INT32.pack(voter) + _NO_TAGGED_FIELDS for voter in voters)


def leader_change_batch(
    leader_id: NodeId, *, voters: Sequence[NodeId], granting: Sequence[NodeId], timestamp_ms: int
) -> bytes:
    """The first batch of a new leader: once it is committed, so is everything before it (KAFKA-12619)."""
    payload = _VERSION_0 + _INT32.pack(leader_id) + _voters(voters) + _voters(granting) + _NO_TAGGED_FIELDS
    return control_batch(CONTROL_LEADER_CHANGE, payload, timestamp_ms=timestamp_ms)


def snapshot_header_batch(*, last_contained_timestamp_ms: int, timestamp_ms: int) -> bytes:
    """The first batch of a snapshot: when the newest record in it was written."""
    payload = _VERSION_0 + _INT64.pack(last_contained_timestamp_ms) + _NO_TAGGED_FIELDS
    return control_batch(CONTROL_SNAPSHOT_HEADER, payload, timestamp_ms=timestamp_ms)


def snapshot_footer_batch(*, timestamp_ms: int) -> bytes:
    """The last batch of a snapshot: a file without it is not whole."""
    return control_batch(CONTROL_SNAPSHOT_FOOTER, _VERSION_0 + _NO_TAGGED_FIELDS, timestamp_ms=timestamp_ms)
