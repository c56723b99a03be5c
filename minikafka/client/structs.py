"""What clients hand to applications, with aiokafka's fields.

Tuples, because a consumer makes a million of them a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minikafka.errors import UNKNOWN, IllegalGeneration, OffsetOutOfRange, Outcome, ProtocolError
from minikafka.types import Epoch, NodeId, Offset, TopicPartition
from minikafka.wire.records import Headers


class RecordMetadata(NamedTuple):
    """Where an acknowledged record lies."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: Offset
    """-1 with acks=0, or when the broker no longer knows where a duplicate lies."""
    timestamp: int
    """Milliseconds since 1970: the record's own, or the broker's if the topic says LogAppendTime."""
    timestamp_type: int
    """0 CreateTime, 1 LogAppendTime."""
    log_start_offset: Offset


class SentRecords(NamedTuple):
    """Where the records of one part of a ``send_many`` lie: runs of consecutive offsets, usually one."""

    topic: str
    partition: int
    runs: tuple[tuple[Offset, int], ...]
    """(first offset, count), in the order of the records."""

    @property
    def offsets(self) -> list[Offset]:
        """One offset per record, in the order in which they were given."""
        return [first + index if first >= 0 else first for first, count in self.runs for index in range(count)]


class ConsumerRecord(NamedTuple):
    """One record as read."""

    topic: str
    partition: int
    offset: Offset
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    checksum: int | None
    """Always None: v2 batches have one checksum per batch."""
    serialized_key_size: int
    """-1 without a key."""
    serialized_value_size: int
    headers: Headers
    """In order; the empty tuple when there are none."""


class OffsetAndMetadata(NamedTuple):
    """What a group has committed for a partition."""

    offset: Offset
    """The next one to read."""
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """For which member of a group a producer commits offsets (``Consumer.group_metadata``)."""

    group_id: str
    generation_id: int = -1
    """-1 with an empty ``member_id``: no member, and nothing fences an outdated consumer."""
    member_id: str = ""
    group_instance_id: str | None = None


class ConsumerRebalanceListener:
    """Called when partitions come and go (S31); override what is needed, plainly or with ``async def``.

    The consumer hands out nothing while it is called; ``seek`` and ``commit`` may be used.
    """

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> Any:
        """These will be another's: what was read of them may still be committed."""

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> Any:
        """These are new here; also called with none after a rebalance that brought nothing."""

    def on_partitions_lost(self, lost: list[TopicPartition]) -> Any:
        """These are another's already: the group went on without this member, and committing is refused."""
        return self.on_partitions_revoked(lost)


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: Offset
    timestamp: int
    leader_epoch: Epoch = -1


class NewTopic(NamedTuple):
    """A topic to create; -1 takes the brokers' default."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignments: dict[int, Sequence[int]] | None = None
    """Partition -> replicas, in order of preference; instead of the two numbers."""
    topic_configs: dict[str, str] | None = None


class NewPartitions(NamedTuple):
    """How many partitions a topic is to have."""

    total_count: int
    new_assignments: Sequence[Sequence[int]] | None = None
    """The replicas of each new partition, the preferred leader first; None: the cluster places them."""


class ConfigChange(NamedTuple):
    """What happens to one setting, where it is more than to be set or deleted."""

    operation: str
    """``set``, ``delete``, ``append`` or ``subtract``; the last two are for lists."""
    value: str | None = None


class ConfigResource(NamedTuple):
    """A topic or a broker, and settings of it."""

    resource_type: int | str
    """``topic`` or ``broker`` (Kafka's numbers 2 and 4)."""
    name: str
    """The topic's name; the broker's id as text, or "" for all brokers."""
    configs: Mapping[str, str | ConfigChange | None] = {}
    """Altering: name -> value (None deletes). Describing: the names asked for; none: all."""


class Reassignment(NamedTuple):
    """A reassignment under way."""

    replicas: tuple[NodeId, ...]
    adding_replicas: tuple[NodeId, ...]
    removing_replicas: tuple[NodeId, ...]

    @property
    def target(self) -> tuple[NodeId, ...]:
        """Where it leads to."""
        return tuple(node for node in self.replicas if node not in self.removing_replicas)


class NoOffsetForPartition(OffsetOutOfRange):
    """There is no position and ``auto_offset_reset`` is none: seek first (S35)."""


class WakeUp(Exception):
    """Another task called ``wakeup()``: nothing was handed out, the next call goes on as before."""


class CommitFailed(IllegalGeneration):
    """The group has gone on without this member, and its partitions may be another's now.

    Nothing was committed if ``outcome`` is ``not_written``. It is ``unknown`` when an earlier attempt of the same
    commit got no answer.
    """


class OffsetsPartlyChanged(ProtocolError):
    """Of several partitions the group's offsets were changed in some and not in others.

    ``done`` are those that were changed, ``refused`` has the error of each of the others, with its own outcome. The
    outcome of the whole is *unknown*, for it is none of the other two.
    """

    name = "OFFSETS_PARTLY_CHANGED"

    def __init__(
        self,
        message: str = "",
        *,
        outcome: Outcome = UNKNOWN,
        done: Sequence[TopicPartition] = (),
        refused: Mapping[TopicPartition, ProtocolError] | None = None,
    ) -> None:
        super().__init__(message, outcome=outcome)
        self.done = tuple(done)
        self.refused = dict(refused or {})


class LogTruncation(OffsetOutOfRange):
    """Records that were read are gone: a leader was elected that never had them (KIP-320).

    ``facts`` has ``offset`` (the position) and ``end_offset`` (where the logs part; -1 if unknown). Seek to go on.
    """
