"""Which records a compacted topic no longer owes: those that a later one of their key has replaced.

A record is replaced when a later place of its partition is known to hold one of its key: acknowledged there, read
there, or agreed by the replicas. The last one of a key is owed, unless it is a tombstone: those go after their time.

A tombstone whose place nobody was told (its outcome is unknown) may have replaced every record of its key but the
last of the partition, above which nothing stood: all tombstones look alike to readers, and this one goes as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from minikafka.check.clients import NO_PARTITION, Outcome, SendBook, SentRecord
from minikafka.check.history import NULL_VALUE
from minikafka.check.places import Places
from minikafka.types import NO_OFFSET, Offset, TopicPartition


class Replaced:
    """Answers for one history; ``places``: topic -> where its values stand, ``ends``: of each log, where known."""

    def __init__(
        self,
        topics: Collection[str],
        sends: SendBook,
        places: Mapping[str, Places],
        ends: Mapping[TopicPartition, Offset],
    ) -> None:
        self._topics = topics
        self._ends = ends
        self._last: dict[tuple[TopicPartition, str], Offset] = {}
        self._claims: dict[TopicPartition, dict[Offset, list[SentRecord]]] = {}
        self._deleted_somewhere: set[tuple[TopicPartition, str]] = set()
        """Keys of tombstones without a known place, in their partition as far as it is known."""
        for record in sends.by_op.values() if topics else ():
            if record.topic not in topics or record.outcome is Outcome.FAILED:
                continue
            if record.offset is not None and record.partition is not None:
                self._stands(record, record.place, record.offset)
            elif record.value == NULL_VALUE and record.key is not None:
                self._deleted_somewhere.add((record.place, record.key))
            known = places.get(record.topic)
            if known is not None and record.value in known.first and record.value != NULL_VALUE:
                for number, offset in known.several.get(record.value, [known.first[record.value]]):
                    self._stands(record, TopicPartition(record.topic, number), offset)

    def _stands(self, record: SentRecord, partition: TopicPartition, offset: Offset) -> None:
        self._claims.setdefault(partition, {}).setdefault(offset, []).append(record)
        if record.key is not None:
            place = (partition, record.key)
            self._last[place] = max(offset, self._last.get(place, NO_OFFSET))

    def may_be_gone(self, partition: TopicPartition, offset: Offset) -> bool:
        """Is what stood at ``offset`` no longer owed? Always no where the topic is not compacted.

        Of several that claim the place any may have been the one: the others' loss is found for each of them.
        """
        if partition.topic not in self._topics:
            return False
        claims = self._claims.get(partition, {}).get(offset)
        return claims is None or any(self._is_replaced(record, partition, offset) for record in claims)

    def need_not_stand(self, record: SentRecord, partition: TopicPartition, offset: Offset) -> bool:
        """Is this record no longer owed, which was acknowledged at ``offset``?"""
        return partition.topic in self._topics and self._is_replaced(record, partition, offset)

    def _is_replaced(self, record: SentRecord, partition: TopicPartition, offset: Offset) -> bool:
        if record.key is None or record.value == NULL_VALUE:
            return True
        if self._last[partition, record.key] > offset:
            return True
        end = self._ends.get(partition)
        if end is not None and offset + 1 >= end:
            return False
        anywhere = TopicPartition(partition.topic, NO_PARTITION)
        return any((place, record.key) in self._deleted_somewhere for place in (partition, anywhere))
