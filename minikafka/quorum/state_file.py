"""What a quorum member must not forget: its epoch, its vote in it, and who led it. The file ``quorum-state``.

Rules for this file: pure text to value and back. The text is Kafka's version 1, one JSON line (KAFKA-FACTS 1.2). A file
that cannot be read is an error, never "no state": a member without memory would vote twice in one epoch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from minikafka.errors import KafkaStorageError
from minikafka.types import METADATA_PARTITION, NO_NODE, NO_TOPIC_ID, Epoch, NodeId

QUORUM_STATE_PATH = f"{METADATA_PARTITION}/quorum-state"

DATA_VERSION = 1

# Version 0 also has clusterId, appliedOffset and currentVoters, which are not needed.
READABLE_VERSIONS = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """Saved before anything that depends on it is said (KAFKA-FACTS 4.1)."""

    epoch: Epoch = 0
    leader_id: NodeId = NO_NODE
    """Who leads ``epoch``, once known. A member that finds itself here after a restart has resigned (KAFKA-10527)."""
    voted_id: NodeId = NO_NODE
    """Whom this member voted for in ``epoch``."""


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
