"""The numbers and names every floor shares.

Rules for this file: no behaviour, only words, and how names are written. ``end`` is exclusive, ``last`` is inclusive,
``count`` is a number of things, ``size`` a number of bytes; units stand last (``timeout_ms``). All intervals are
half-open.
"""

from __future__ import annotations

import base64
from typing import NamedTuple, TypeAlias

NodeId: TypeAlias = int
"""A broker's ``node.id``: 0 or more. ``NO_NODE`` stands for nobody."""

Offset: TypeAlias = int
"""Position of a record in its partition; the next one to be written is the log end offset (LEO)."""

Epoch: TypeAlias = int
"""A leader epoch: rises by one at each change of leader (S21)."""

TopicId: TypeAlias = str
"""22 characters of URL-safe base64 without padding: 16 random bytes, as Kafka prints a UUID."""

NODE_ID_MAX = 2**31 - 1
NO_NODE = -1
NO_EPOCH = -1
NO_OFFSET = -1
NO_PRODUCER = -1
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero UUID: never a topic's id."""

ANONYMOUS = "User:ANONYMOUS"
"""The principal of callers that nobody has authenticated, as in Kafka."""

RESERVED_NAMES = frozenset({"", "*", "ANONYMOUS"})
"""Names that no client may have: ``User:*`` in an ACL stands for all principals."""

METADATA_TOPIC = "__cluster_metadata"
"""The quorum's own log; it is not a topic in the image and no client writes to it."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Logs of coordinators: their memory, and by its number of partitions the map from names to coordinators."""


def uuid_text(raw: bytes) -> str:
    """16 bytes as Kafka prints a UUID; see :data:`TopicId`."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def uuid_bytes(text: str) -> bytes:
    """The bytes that :func:`uuid_text` has written. ValueError for most other texts."""
    return base64.urlsafe_b64decode(text + "==")


class TopicPartition(NamedTuple):
    """One partition of one topic; prints, sorts and names its directory as Kafka does (S28)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parsed(cls, text: str) -> TopicPartition:
        """The partition that prints so. ValueError if no number stands behind the last dash."""
        topic, _, number = text.rpartition("-")
        return cls(topic, int(number))


class EpochEnd(NamedTuple):
    """Where an epoch ends in a log: the offset after its last record (KIP-101, KIP-279)."""

    epoch: Epoch
    end_offset: Offset


UNDEFINED_EPOCH_END = EpochEnd(NO_EPOCH, NO_OFFSET)


class Address(NamedTuple):
    """Where a node listens. In the simulator ``host`` is the node's name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Listener(NamedTuple):
    """One of a broker's addresses and its name: clients receive those of the listener that they connected to."""

    name: str
    address: Address

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
