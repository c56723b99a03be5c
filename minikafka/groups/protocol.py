"""What members of a group tell each other through the coordinator, in Kafka's bytes (KAFKA-FACTS 5).

A *subscription* travels to the group's leader with JoinGroup; an *assignment* comes back with SyncGroup. The
coordinator hands both on without a look inside, except for the topics of a subscription (which offsets may expire).

Rules for this file: versions 0 to 3 are read, version 3 is written; bytes that are neither raise ValueError. An unknown
newer version is read as version 3, as KIP-429 asks for: later versions only add at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minikafka.coordination.packing import Packer, Unpacker, by_topic
from minikafka.errors import InconsistentGroupProtocol
from minikafka.types import TopicPartition

PROTOCOL_TYPE = "consumer"
"""Of groups whose members read topics; others (connect) are handed through in the same way."""

VERSION = 3
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What one member wants, and what it has."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    """Partitions that the member still has while it joins (cooperative protocols)."""
    generation: int = NO_GENERATION
    """The generation in which ``owned`` was assigned."""
    rack: str | None = None

    def packed(self) -> bytes:
        """Version 3."""
        out = Packer().int16(VERSION)
        out.array(sorted(self.topics), out.text).data(self.user_data)
        pack_partitions(out, self.owned)
        return out.int32(self.generation).text(self.rack).packed()

    @classmethod
    def unpacked(cls, packed: bytes) -> Subscription:
        """ValueError for bytes that are no subscription."""
        read = Unpacker(packed)
        version = read.version()
        topics, user_data = read.array(read.text), read.data_or_none()
        owned = unpack_partitions(read) if version >= 1 else ()
        generation = read.int32() if version >= 2 else NO_GENERATION
        rack = read.text_or_none() if version >= 3 else None
        return cls(topics=topics, user_data=user_data, owned=owned, generation=generation, rack=rack)

    @staticmethod
    def topics_in(packed: bytes) -> tuple[str, ...]:
        """The topics alone, whatever stands behind them, as Kafka's coordinator does; ValueError."""
        read = Unpacker(packed)
        read.version()
        topics = read.array(read.text)
        read.data_or_none()
        return tuple(topics)

    @classmethod
    def readable(cls, packed: bytes) -> Subscription:
        """What cannot be read subscribes to nothing: for who deals, so that the other members do not suffer for it."""
        try:
            return cls.unpacked(packed)
        except ValueError:
            return cls(topics=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one member got."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None

    def packed(self) -> bytes:
        """Version 3."""
        out = Packer().int16(VERSION)
        pack_partitions(out, self.partitions)
        return out.data(self.user_data).packed()

    @classmethod
    def unpacked(cls, packed: bytes) -> Assignment:
        """ValueError for bytes that are no assignment. No bytes at all: nothing is assigned, as in Kafka."""
        if not packed:
            return cls()
        read = Unpacker(packed)
        read.version()
        return cls(partitions=unpack_partitions(read), user_data=read.data_or_none())

    @classmethod
    def readable(cls, packed: bytes) -> Assignment:
        """What cannot be read assigns nothing: members of other protocols have bytes that are not ours to read."""
        try:
            return cls.unpacked(packed)
        except ValueError:
            return cls()

    @classmethod
    def given(cls, packed: bytes) -> Assignment:
        """As the member reads it whom the leader gave it, each partition once.

        INCONSISTENT_GROUP_PROTOCOL for bytes that are no assignment: joining again would bring the same.
        """
        try:
            found = cls.unpacked(packed)
        except ValueError as error:
            raise InconsistentGroupProtocol(
                f"the {len(packed)} bytes that the group's leader assigned are no assignment ({error}): stop the "
                "member that leads, or give this one a group or an assignor of its own"
            ) from error
        return cls(partitions=tuple(dict.fromkeys(found.partitions)), user_data=found.user_data)


def pack_partitions(out: Packer, partitions: Iterable[TopicPartition]) -> Packer:
    """Add partitions by topic."""

    def add(item: tuple[str, list[int]]) -> None:
        out.text(item[0]).array(item[1], out.int32)

    return out.array(list(by_topic(partitions).items()), add)


def unpack_partitions(read: Unpacker) -> tuple[TopicPartition, ...]:
    """Read what :func:`pack_partitions` wrote. Raises ValueError."""
    topics = read.array(lambda: (read.text(), read.array(read.int32)))
    return tuple(TopicPartition(topic, partition) for topic, numbers in topics for partition in numbers)
