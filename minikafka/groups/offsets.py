"""What groups have committed (S34), and where a reset moves them.

A commit counts once its record is committed: until then it is *pending*, and no member receives it.

Rules for this file: it never goes back by itself, and what a group commits is stored as it says; who may commit is
``coordinator.py``'s question. Expiry is by wall clock (KIP-211).

Offsets that were committed in a transaction wait for its end (KIP-447). A transaction's offsets are ordinary records
in a transactional batch. They count from the moment its COMMIT marker is committed, unless an offset that was written
after them counts already: compaction keeps the later record of a key, so a coordinator that reads the log must come to
the same result.

Rules for this file: synchronous, no clock. An offset that is deleted leaves the transaction, which stays open for its
group (KAFKA-19163, KAFKA-19164).

A reset has the goals of kafka-consumer-groups' ``--reset-offsets`` (:class:`Goal`). Every goal is brought between the
log's start and its end, as Kafka's tool does: what was deleted cannot be read again, and what is not there yet cannot
be skipped. Times are milliseconds since 1970; the caller has looked them up in the logs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from minikafka.groups.group import Group, State
from minikafka.groups.records import CommittedOffset, OffsetRecord
from minikafka.types import NO_OFFSET, Offset, TopicPartition


class Placed(NamedTuple):
    """A record, and where it stands in the coordinator's log."""

    record: OffsetRecord
    offset: Offset


TOMBSTONES_BYTES_MAX = 1 << 19
"""Of one batch of tombstones: half of what a batch may have by default (max.message.bytes). A group that has committed
offsets of thousands of partitions could never be deleted otherwise.
"""

TOMBSTONE_BYTES = 32
"""Of a tombstone beside the names in its key, at most: lengths, numbers, and what a record has in front."""


def batches(records: tuple[OffsetRecord, ...]) -> list[tuple[OffsetRecord, ...]]:
    """Divide tombstones of one group into batches that may be appended; at least one, which may be empty."""
    divided: list[list[OffsetRecord]] = [[]]
    size = 0
    group_size = len(records[0].group.encode()) if records else 0
    for each in records:
        own = TOMBSTONE_BYTES + group_size + len(each.partition.topic.encode())
        if divided[-1] and size + own > TOMBSTONES_BYTES_MAX:
            divided.append([])
            size = 0
        divided[-1].append(each)
        size += own
    return [tuple(each) for each in divided]


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

    def values(self, group: str) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """What open transactions have committed so far."""
        for each in self._producers.get(group, ()):
            for partition, placed in self._pending[each][group].items():
                if placed.record.value is not None:
                    yield partition, placed.record.value

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        """Return True if a transaction may still change the partition's committed offset."""
        return self.is_in_flight(group, partition) or any(
            partition in self._pending[each][group] for each in self._producers.get(group, ())
        )

    def is_in_flight(self, group: str, partition: TopicPartition) -> bool:
        """Return True if a record of a transaction is appended and not committed yet."""
        return self._appended[group, partition] > 0

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


class CommittedOffsets:
    """Group, then partition, to what was committed last."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[str, Counter[TopicPartition]] = {}
        self._placed: dict[tuple[str, TopicPartition], Offset] = {}
        """Where the record of a committed offset stands in the log."""
        self.transactional = TransactionalOffsets()

    def of(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """What is committed for good."""
        return self._committed.get(group, {})

    def groups(self) -> frozenset[str]:
        """Those that have committed anything, or are about to."""
        return frozenset(self._committed) | frozenset(self._pending) | self.transactional.groups()

    def known(self, group: str) -> list[TopicPartition]:
        """All partitions with an offset that is committed or may become so, sorted."""
        pending = self._pending.get(group, Counter()).keys() | self.transactional.partitions(group)
        return sorted(self.of(group).keys() | pending)

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        return self.is_in_flight(group, partition) or self.transactional.is_pending(group, partition)

    def is_in_flight(self, group: str, partition: TopicPartition) -> bool:
        """Return True if a record of the partition is appended and not committed yet."""
        plain = self._pending.get(group, Counter())[partition] > 0
        return plain or self.transactional.is_in_flight(group, partition)

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

    def apply(self, record: OffsetRecord, offset: Offset = NO_OFFSET) -> None:
        """The record, which stands at ``offset``, is committed: it counts."""
        if record.value is not None:
            self._committed.setdefault(record.group, {})[record.partition] = record.value
            self._placed[record.group, record.partition] = offset
            return
        self._placed.pop((record.group, record.partition), None)
        self.transactional.forget(record.group, record.partition)
        committed = self._committed.get(record.group, {})
        committed.pop(record.partition, None)
        if not committed:
            self._committed.pop(record.group, None)

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> list[str]:
        """A marker is committed: the transaction's offsets count, or are forgotten. The groups that took part."""
        ended = self.transactional.end(producer_id)
        if is_commit:
            for placed in (each for of_group in ended.values() for each in of_group):
                self._apply_unless_older(placed)
        return list(ended)

    def _apply_unless_older(self, placed: Placed) -> None:
        record = placed.record
        if placed.offset > self._placed.get((record.group, record.partition), NO_OFFSET):
            self.apply(record, placed.offset)

    # ---- expiry ----

    def expired(self, group: Group, wall_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Offsets that have expired: of an empty group those older than its emptiness, of a live one the topics that
        nobody reads any more, of one that only ever commits each by its own age. Sorted.
        """
        reads: frozenset[str] | None = frozenset()
        if group.state is State.STABLE:
            reads = group.reads
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


# ---- resets ----------------------------------------------------------------------------------------------------------


EARLIEST, LATEST, CURRENT, OFFSET, SHIFT, TIME = "earliest", "latest", "current", "offset", "shift", "time"
KINDS = (EARLIEST, LATEST, CURRENT, OFFSET, SHIFT, TIME)

_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
DURATION_MS_MAX = 10**14
"""Three thousand years: longer ones are typing errors."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One of ``KINDS``, with what belongs to it."""

    kind: str
    offset: Offset = 0
    shift: int = 0
    time_ms: int = 0

    def of(self, *, start: Offset, end: Offset, committed: Offset | None, at_time: Offset | None = None) -> Offset:
        """The new offset of a partition whose log goes from ``start`` to ``end``.

        Without a commit the current offset is the end, as in Kafka's tool. ``at_time``: the first record at or after
        ``time_ms``; None: there is none, which is the end.
        """
        current = end if committed is None else committed
        wanted = {
            EARLIEST: start,
            LATEST: end,
            CURRENT: current,
            OFFSET: self.offset,
            SHIFT: current + self.shift,
            TIME: end if at_time is None else at_time,
        }[self.kind]
        return min(max(wanted, start), end)


def duration_ms(text: str) -> int:
    """ISO 8601, ``P1DT2H30M5S``, as in Kafka; or a number of seconds. ValueError: it is something else."""
    found = _DURATION.fullmatch(text)
    if found is not None and any(found.groups()):
        seconds = sum(_SECONDS[unit] * float(value) for unit, value in found.groupdict().items() if value)
    elif re.fullmatch(r"\d{1,15}(?:\.\d{1,9})?", text, re.ASCII):
        seconds = float(text)
    else:
        raise ValueError(f"{text[:60]!r}: PnDTnHnMnS is the form (PT1H30M), or a number of seconds")
    if seconds * 1000 > DURATION_MS_MAX:
        raise ValueError(f"{text[:60]!r} is longer ago than anything")
    return int(seconds * 1000)
