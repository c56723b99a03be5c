"""Offsets that were committed in a transaction and wait for its end (KIP-447).

A transaction's offsets are ordinary records in a transactional batch. They count from the moment its COMMIT marker is
committed, unless an offset that was written after them counts already: compaction keeps the later record of a key, so a
coordinator that reads the log must come to the same result.

Rules for this file: synchronous, no clock. An offset that is deleted leaves the transaction, which stays open for its
group (KAFKA-19163, KAFKA-19164).
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from minikafka.groups.records import OffsetRecord
from minikafka.types import Offset, TopicPartition


class Placed(NamedTuple):
    """A record, and where it stands in the coordinator's log."""

    record: OffsetRecord
    offset: Offset


class TransactionalOffsets:
    """Of all groups of one coordinator."""

    def __init__(self) -> None:
        self._appended: Counter[tuple[str, TopicPartition]] = Counter()
        """Records in the log that are not committed yet."""
        self._pending: dict[int, dict[str, dict[TopicPartition, Placed]]] = {}
        """By producer id: an open transaction, the groups that take part in it, and their newest offsets."""
        self._producers: dict[str, set[int]] = {}
        """By group: the producers with an open transaction."""

    def groups(self) -> frozenset[str]:
        """Groups that take part in an open transaction."""
        return frozenset(self._producers) | {group for group, _ in self._appended}

    def is_open(self, group: str) -> bool:
        """Return True if the group takes part in an open transaction."""
        return group in self._producers or any(name == group for name, _ in self._appended)

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        """Return True if a transaction may still change the partition's committed offset."""
        return self._appended[group, partition] > 0 or any(
            partition in self._pending[each][group] for each in self._producers.get(group, ())
        )

    def partitions(self, group: str) -> frozenset[TopicPartition]:
        """Partitions with a pending offset."""
        found = frozenset(partition for name, partition in self._appended if name == group)
        return found.union(*(self._pending[each][group] for each in self._producers.get(group, ())))

    # ---- changes ----

    def begun(self, records: tuple[OffsetRecord, ...]) -> None:
        """The records were appended."""
        self._appended.update((each.group, each.partition) for each in records)

    def ended(self, records: tuple[OffsetRecord, ...]) -> None:
        """The records are committed, or were refused."""
        for each in records:
            key = each.group, each.partition
            self._appended[key] -= 1
            if not self._appended[key]:
                del self._appended[key]

    def add(self, producer_id: int, placed: Placed) -> None:
        """A record of an open transaction is committed."""
        record = placed.record
        self._pending.setdefault(producer_id, {}).setdefault(record.group, {})[record.partition] = placed
        self._producers.setdefault(record.group, set()).add(producer_id)

    def forget(self, group: str, partition: TopicPartition) -> None:
        """The offset was deleted after it was committed in a transaction."""
        for each in self._producers.get(group, ()):
            self._pending[each][group].pop(partition, None)

    def end(self, producer_id: int) -> dict[str, list[Placed]]:
        """The producer's transaction has ended: the offsets that were pending, by group."""
        groups = self._pending.pop(producer_id, {})
        for group in groups:
            producers = self._producers[group]
            producers.discard(producer_id)
            if not producers:
                del self._producers[group]
        return {group: list(found.values()) for group, found in groups.items()}
