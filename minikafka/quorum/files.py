"""The two small files of a quorum member beside its log: ``quorum-state`` and snapshots.

``quorum-state`` has what a member must not forget: its epoch, its vote in it, and who led it. The text is Kafka's
version 1, one JSON line (KAFKA-FACTS 1.2). A file that cannot be read is an error, never "no state": a member without
memory would vote twice in one epoch.

A snapshot is the state at (end offset, epoch), all of it committed. The file holds v2 batches numbered from 0: a header
control batch, batches of the state's records, a footer control batch. It is written under ``.checkpoint.part`` and
renamed when it is durable, so a name without ``.part`` means a whole file.

Rules for this file: names, bytes and values only; the driver reads, writes and renames.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minikafka.addresses import is_number
from minikafka.errors import CorruptMessage, KafkaStorageError
from minikafka.quorum.records import snapshot_footer_batch, snapshot_header_batch
from minikafka.types import METADATA_PARTITION, NO_NODE, NO_TOPIC_ID, Epoch, EpochEnd, NodeId
from minikafka.wire.batch import RecordBatch, split_verified, stamped
from minikafka.wire.records import (
    CONTROL_SNAPSHOT_FOOTER,
    CONTROL_SNAPSHOT_HEADER,
    BatchBuilder,
    control_type_of,
    decode_batch,
)

QUORUM_STATE_PATH = f"{METADATA_PARTITION}/quorum-state"

DATA_VERSION = 1

# Version 0 also has clusterId, appliedOffset and currentVoters, which are not needed.
READABLE_VERSIONS = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """Saved before anything that depends on it is said (KAFKA-FACTS 4.1)."""

    epoch: Epoch = 0
    leader_id: NodeId = NO_NODE
    """The leader of ``epoch``, once known. A member that finds itself here after a restart resigned (KAFKA-10527)."""
    voted_id: NodeId = NO_NODE
    """The candidate that this member voted for in ``epoch``."""


def encode_state(state: QuorumState) -> bytes:
    """The file's content."""
    members = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": state.voted_id,
        # Voters are named by their id alone: a static quorum has no directory ids (KIP-853).
        "votedDirectoryId": NO_TOPIC_ID,
        "data_version": DATA_VERSION,
    }
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


def decode_state(data: bytes) -> QuorumState:
    """Read the file's content; KafkaStorageError when it is not what :func:`encode_state` or Kafka writes."""
    try:
        members = json.loads(data)
    except ValueError as error:
        raise KafkaStorageError(f"quorum-state is not JSON: {error}") from error
    if not isinstance(members, dict) or members.get("data_version") not in READABLE_VERSIONS:
        raise KafkaStorageError("quorum-state: data_version 0 or 1 is needed")
    found = [members.get(name, NO_NODE) for name in ("leaderEpoch", "leaderId", "votedId")]
    if not all(type(each) is int for each in found) or found[0] < 0:
        raise KafkaStorageError("quorum-state: leaderEpoch, leaderId and votedId must be whole numbers")
    return QuorumState(epoch=found[0], leader_id=found[1], voted_id=found[2])


FOLDER = str(METADATA_PARTITION)
SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"

SNAPSHOT_BATCH_BYTES = 1024 * 1024
"""A batch of the snapshot is closed at this size: one is decoded at a time."""

SNAPSHOTS_KEPT = 2
"""The newest, and the one before it, where the log starts: who is a little behind needs no snapshot at all."""


def snapshot_path(snapshot: EpochEnd) -> str:
    """Where the snapshot lies in the data directory: 20 digits of end offset, 10 of epoch, as in Kafka."""
    return f"{FOLDER}/{snapshot.end_offset:020d}-{snapshot.epoch:010d}{SUFFIX}"


def part_path(snapshot: EpochEnd) -> str:
    """Where the snapshot is written until it is whole."""
    return snapshot_path(snapshot) + ".part"


def parse_snapshot_name(name: str) -> EpochEnd | None:
    """The snapshot of this file name, or None when it is not a whole snapshot's."""
    if not name.endswith(SUFFIX):
        return None
    end_offset, dash, epoch = name.removesuffix(SUFFIX).partition("-")
    if not (dash and len(end_offset) == 20 and len(epoch) == 10 and is_number(end_offset + epoch)):
        return None
    return EpochEnd(int(epoch), int(end_offset))


def by_offset(snapshot: EpochEnd) -> tuple[int, int]:
    """Sort key: snapshots in the order of the log."""
    return snapshot.end_offset, snapshot.epoch


def encode_snapshot(snapshot: EpochEnd, payloads: Sequence[bytes], *, timestamp_ms: int) -> Iterator[bytes]:
    """The file's batches in order; ``timestamp_ms`` stamps all of them."""
    offset = 0
    header = snapshot_header_batch(last_contained_timestamp_ms=timestamp_ms, timestamp_ms=timestamp_ms)
    footer = snapshot_footer_batch(timestamp_ms=timestamp_ms)
    for data in (header, *_state_batches(payloads, timestamp_ms=timestamp_ms), footer):
        batch = RecordBatch.of(data)
        yield b"".join(stamped(batch, base_offset=offset, leader_epoch=snapshot.epoch))
        offset += batch.last_offset_delta + 1


def _state_batches(payloads: Sequence[bytes], *, timestamp_ms: int) -> Iterator[bytes]:
    builder = BatchBuilder(size_limit=SNAPSHOT_BATCH_BYTES)
    for payload in payloads:
        if not builder.append(timestamp_ms, None, payload):
            yield bytes(builder.build())
            builder = BatchBuilder(size_limit=SNAPSHOT_BATCH_BYTES)
            builder.append(timestamp_ms, None, payload)
    if builder.record_count:
        yield bytes(builder.build())


def decode_snapshot(data: bytes) -> list[bytes]:
    """The state's records; CorruptMessage unless the file is whole, from header to footer."""
    batches = split_verified(data)
    if sum(batch.size for batch in batches) != len(data):
        raise CorruptMessage("snapshot: its last batch is cut off")
    if len(batches) < 2 or not (batches[0].is_control and batches[-1].is_control):
        raise CorruptMessage("snapshot: header or footer is missing")
    frame = [control_type_of(decode_batch(batch)[0]) for batch in (batches[0], batches[-1])]
    if frame != [CONTROL_SNAPSHOT_HEADER, CONTROL_SNAPSHOT_FOOTER]:
        raise CorruptMessage(f"snapshot: framed by control records {frame}, not by header and footer")
    return [record.value or b"" for batch in batches[1:-1] for record in decode_batch(batch)]
