"""Which records a compacted topic no longer owes: those that a later one of their key has replaced.

A record is replaced when a later place of its partition is known to hold one of its key: acknowledged there, read
there, or agreed by the replicas. The last one of a key is owed, unless it is a tombstone: those go after their time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from minikafka.check.clients import Outcome, SendBook, SentRecord
from minikafka.check.history import NULL_VALUE
from minikafka.check.places import Places
from minikafka.types import NO_OFFSET, Offset, TopicPartition


class Replaced:
    """Answers for one history; ``places``: topic -> where its values stand."""

    def __init__(self, topics: Collection[str], sends: SendBook, places: Mapping[str, Places]) -> None:
        self._topics = topics
        self._last: dict[tuple[TopicPartition, str], Offset] = {}
        self._records: dict[TopicPartition, dict[Offset, SentRecord]] = {}
        for record in sends.by_op.values() if topics else ():
            if record.topic not in topics or record.outcome is Outcome.FAILED:
                continue
            if record.offset is not None and record.partition is not None:
                self._stands(record, record.place, record.offset)
            known = places.get(record.topic)
            if known is not None and record.value in known.first and record.value != NULL_VALUE:
                for number, offset in known.several.get(record.value, [known.first[record.value]]):
                    self._stands(record, TopicPartition(record.topic, number), offset)

    def _stands(self, record: SentRecord, partition: TopicPartition, offset: Offset) -> None:
        self._records.setdefault(partition, {}).setdefault(offset, record)
        if record.key is not None:
            place = (partition, record.key)
            self._last[place] = max(offset, self._last.get(place, NO_OFFSET))

    def may_be_gone(self, partition: TopicPartition, offset: Offset) -> bool:
        """Is what stood at ``offset`` no longer owed? Always no where the topic is not compacted."""
        if partition.topic not in self._topics:
            return False
        record = self._records.get(partition, {}).get(offset)
        if record is None or record.key is None or record.value == NULL_VALUE:
            return True
        return self._last[partition, record.key] > offset
