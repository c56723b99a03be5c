"""Small books for the judge: where values stand, which offsets a reader passed, which records moved together, and
which a compacted topic no longer owes.

One record that is missing, or too many, moves all that follow it. Reported record by record that would be half a log of
disputed offsets; it is one fact, reported as one stretch.

A record is replaced when a later place of its partition is known to hold one of its key: read there, agreed by the
replicas, or, where not all was read, acknowledged there. A record that was acknowledged and is nowhere is lost itself,
and has replaced nothing. The last one of a key is owed, unless it is a tombstone: those go after their time.

A tombstone without a reported place (its outcome is unknown) may have replaced every record of its key above which
there is a place for it, in the log and not known to hold a value: all tombstones look alike to readers, and this one
goes as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from minikafka.check.clients import NO_PARTITION, Outcome, SendBook, SentRecord
from minikafka.check.history import NULL_VALUE
from minikafka.types import NO_OFFSET, Offset, TopicPartition

Place: TypeAlias = tuple[int, Offset]
"""(partition, offset)"""


class Places:
    """Where each value of a topic stands: mostly one place, and a list of all for those with several."""

    def __init__(self) -> None:
        self.first: dict[str, Place] = {}
        self.several: dict[str, list[Place]] = {}

    def add(self, value: str, place: Place) -> None:
        first = self.first.setdefault(value, place)
        if first is not place:
            self.several.setdefault(value, [first]).append(place)


class Stretches:
    """Half-open stretches of offsets that may overlap; answers whether an offset lies in one."""

    def __init__(self, stretches: list[tuple[Offset, Offset]]) -> None:
        self._starts: list[Offset] = []
        self._ends: list[Offset] = []
        for start, end in sorted(stretches):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def contains(self, offset: Offset) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]


Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbours in a log that moved by the same distance."""

    distance: int
    offsets: list[Offset]
    """Where they were acknowledged, rising."""


def moved_together(
    acknowledged: Mapping[Offset, Record], stands_at: Callable[[Record], Offset | None]
) -> list[Stretch]:
    """The stretches, in the order of offsets; a record that stands nowhere (None) neither belongs nor separates."""
    if all(stands_at(record) in {None, offset} for offset, record in acknowledged.items()):
        return []
    stretches: list[Stretch] = []
    for offset in sorted(acknowledged):
        place = stands_at(acknowledged[offset])
        if place is None:
            continue
        if not stretches or stretches[-1].distance != place - offset:
            stretches.append(Stretch(place - offset, []))
        stretches[-1].offsets.append(offset)
    return [each for each in stretches if each.distance]


class Replaced:
    """Answers for one history; ``places``: topic -> where its values stand, ``ends``: of each log, if all was read."""

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
        """Where the last one of each key stands that may have replaced others."""
        self._claims: dict[TopicPartition, dict[Offset, list[SentRecord]]] = {}
        self._held: dict[TopicPartition, set[Offset]] = {}
        """Where values stand."""
        self._last_free: dict[TopicPartition, Offset] = {}
        self._deleted_somewhere: set[tuple[TopicPartition, str]] = set()
        """Keys of tombstones without a known place, in their partition where that is known."""
        self._replacing: set[tuple[str, str | None]] = set()
        """Topics and keys of all that may have replaced something."""
        for record in sends.by_op.values() if topics else ():
            if record.topic not in topics or record.outcome is Outcome.FAILED:
                continue
            if record.offset is not None and record.partition is not None:
                self._claim(record, record.place, record.offset)
                if record.value == NULL_VALUE or record.place not in ends:
                    self._stands(record, record.place, record.offset)
            elif record.value == NULL_VALUE and record.key is not None:
                self._deleted_somewhere.add((record.place, record.key))
                self._replacing.add((record.topic, record.key))
            known = places.get(record.topic)
            if known is not None and record.value in known.first and record.value != NULL_VALUE:
                for number, offset in known.several.get(record.value, [known.first[record.value]]):
                    partition = TopicPartition(record.topic, number)
                    self._claim(record, partition, offset)
                    self._stands(record, partition, offset)
                    self._held.setdefault(partition, set()).add(offset)

    def _claim(self, record: SentRecord, partition: TopicPartition, offset: Offset) -> None:
        self._claims.setdefault(partition, {}).setdefault(offset, []).append(record)

    def _stands(self, record: SentRecord, partition: TopicPartition, offset: Offset) -> None:
        if record.key is not None:
            place = (partition, record.key)
            self._last[place] = max(offset, self._last.get(place, NO_OFFSET))
            self._replacing.add((record.topic, record.key))

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

    def may_be_gone_from_anywhere(self, record: SentRecord) -> bool:
        """The same for a record that was acknowledged without its offset."""
        if record.topic not in self._topics:
            return False
        is_kept = record.key is not None and record.value != NULL_VALUE
        return not is_kept or (record.topic, record.key) in self._replacing

    def _is_replaced(self, record: SentRecord, partition: TopicPartition, offset: Offset) -> bool:
        if record.key is None or record.value == NULL_VALUE:
            return True
        if self._last.get((partition, record.key), NO_OFFSET) > offset:
            return True
        anywhere = TopicPartition(partition.topic, NO_PARTITION)
        is_deleted = any((place, record.key) in self._deleted_somewhere for place in (partition, anywhere))
        return is_deleted and self._is_room_above(partition, offset)

    def _is_room_above(self, partition: TopicPartition, offset: Offset) -> bool:
        """May a record of which nobody knows stand, or have stood, above ``offset``?"""
        end = self._ends.get(partition)
        if end is None:
            return True
        if partition not in self._last_free:
            held, last = self._held.get(partition, set()), end - 1
            while last in held:
                last -= 1
            self._last_free[partition] = last
        return self._last_free[partition] > offset
