"""What the groups of one coordinator have committed (S34).

A commit counts once its record is committed: until then it is *pending*, and nobody is told of it.

Rules for this file: it never goes back by itself, and what a group commits is stored as it says; who may commit is
``coordinator.py``'s question. Expiry is by wall clock (KIP-211).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from minikafka.groups.group import Group, State
from minikafka.groups.records import CommittedOffset, OffsetRecord
from minikafka.types import TopicPartition


class CommittedOffsets:
    """Group, then partition, to what was committed last."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[str, Counter[TopicPartition]] = {}

    def of(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """What is committed for good."""
        return self._committed.get(group, {})

    def groups(self) -> frozenset[str]:
        """Those that have committed anything, or are about to."""
        return frozenset(self._committed) | frozenset(self._pending)

    def known(self, group: str) -> list[TopicPartition]:
        """All partitions with an offset that is committed or may become so, sorted."""
        return sorted(self.of(group).keys() | self._pending.get(group, Counter()).keys())

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        return self._pending.get(group, Counter())[partition] > 0

    # ---- changes ----

    def begun(self, records: tuple[OffsetRecord, ...]) -> None:
        """These were appended."""
        for record in records:
            self._pending.setdefault(record.group, Counter())[record.partition] += 1

    def ended(self, records: tuple[OffsetRecord, ...]) -> None:
        """These are pending no more, whatever became of them."""
        for record in records:
            pending = self._pending[record.group]
            pending[record.partition] -= 1
            if not pending[record.partition]:
                del pending[record.partition]
            if not pending:
                del self._pending[record.group]

    def apply(self, record: OffsetRecord) -> None:
        """It is committed: it counts."""
        if record.value is not None:
            self._committed.setdefault(record.group, {})[record.partition] = record.value
            return
        committed = self._committed.get(record.group, {})
        committed.pop(record.partition, None)
        if not committed:
            self._committed.pop(record.group, None)

    # ---- expiry ----

    def expired(self, group: Group, wall_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Whose time has come: of an empty group all that is older than its emptiness, of a living one the topics that
        nobody reads any more, of one that only ever commits each by its own age. Sorted.
        """
        reads: frozenset[str] | None = frozenset()
        if group.state is State.STABLE:
            reads = group.topics()
        elif group.state is not State.EMPTY:
            return []
        # An empty group keeps everything until it has been empty for long enough (KIP-211).
        if reads is None or (not group.members and group.protocol_type and _age(group, wall_ms) < retention_ms):
            return []
        found = [
            partition
            for partition, value in self.of(group.group_id).items()
            if partition.topic not in reads and wall_ms - value.timestamp_ms >= retention_ms
        ]
        return sorted(each for each in found if not self.is_pending(group.group_id, each))


def _age(group: Group, wall_ms: int) -> int:
    return wall_ms - group.state_timestamp_ms
