"""Kafka's control records of a metadata log: who leads, and the frame of a snapshot.

Rules for this file: bytes only. The layouts are Kafka's message formats, flexible version 0: fixed integers are
big-endian, arrays carry their length plus one as an unsigned varint, structures end in a count of tagged fields (0).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from minikafka.invariant import invariant
from minikafka.types import NodeId
from minikafka.wire.records import (
    CONTROL_LEADER_CHANGE,
    CONTROL_SNAPSHOT_FOOTER,
    CONTROL_SNAPSHOT_HEADER,
    control_batch,
)

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
