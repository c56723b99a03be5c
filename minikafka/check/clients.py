"""The books on what clients did: sends with their outcome, what was read where, and what the judge works out from both.

Rules for sends and reads (:class:`SendBook`, :class:`PollBook`): they are fed line by line, with a constant number of
steps for each. They judge nothing but what a single poll shows by itself (steps back, reads above the high watermark).
What needs the whole history waits in ``gaps`` and ``conflicts``.

The judge's books: where values stand (:class:`Places`), which offsets a reader passed (:class:`Stretches`), which
records moved together, and which records a compacted topic may lack (:class:`Replaced`).

One record that is missing, or too many, moves all that follow it. Reported record by record that would be half a log of
disputed offsets; it is one fact, reported as one stretch.

A record is replaced when a later place of its partition is known to hold one of its key: read there, agreed by the
replicas, or, where not all was read, acknowledged there. A record that was acknowledged and is nowhere is lost itself,
and has replaced nothing. The last one of a key must be there, unless it is a tombstone: those go after their time.

A tombstone without a reported place (its outcome is unknown) may have replaced every record of its key above which
there is a place for it, in the log and not known to hold a value: all tombstones look alike to readers, and this one
goes as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from minikafka.check.findings import Finding, IntNonmonotonicPoll, NonmonotonicPoll, ReadAboveHw
from minikafka.check.history import NULL_VALUE, Acknowledged, Assign, Failed, HistoryError, Poll, Seek, Send, Unknown
from minikafka.types import NO_OFFSET, Offset, TopicPartition

Report = Callable[[Finding], None]

NO_PARTITION = -1
_NO_LIMIT = 1 << 63


class Outcome(StrEnum):
    """What the client may believe of a send."""

    OPEN = "open"
    """No outcome yet; at the end the same as unknown."""
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    UNKNOWN = "unknown"


class SentRecord:
    """One send with what became of it."""

    __slots__ = (
        "earlier",
        "error",
        "key",
        "line",
        "offset",
        "op",
        "outcome",
        "outcome_line",
        "partition",
        "process",
        "sequence",
        "topic",
        "value",
    )

    def __init__(self, send: Send, earlier: SentRecord | None) -> None:
        self.op = send.op
        self.process = send.process
        self.topic = send.topic
        self.partition = send.partition
        self.key = send.key
        self.value = send.value
        self.sequence = send.sequence
        self.line = send.line
        self.outcome = Outcome.OPEN
        self.outcome_line = 0
        self.offset: Offset | None = None
        self.error = ""
        self.earlier = earlier
        """The send before this one that had the same value."""

    def __repr__(self) -> str:
        return f"<sent {self.op} {self.value} {self.outcome.value} {self.topic}-{self.partition}@{self.offset}>"

    @property
    def place(self) -> TopicPartition:
        """The partition, or -1 where it is unknown."""
        return TopicPartition(self.topic, NO_PARTITION if self.partition is None else self.partition)

    def namesakes(self) -> Iterator[SentRecord]:
        """This send and all before it that had the same value."""
        record: SentRecord | None = self
        while record is not None:
            yield record
            record = record.earlier


class SendBook:
    """Every send, by number, by value, and by the offset that was acknowledged."""

    def __init__(self) -> None:
        self.by_op: dict[int, SentRecord] = {}
        """In the order in which they were made."""
        self.by_value: dict[str, dict[str, SentRecord]] = {}
        """topic -> value -> the latest send of it."""
        self.acknowledged_at: dict[TopicPartition, dict[Offset, SentRecord]] = {}
        self.shared_offsets: dict[TopicPartition, dict[Offset, list[SentRecord]]] = {}
        """Sends that were acknowledged at an offset that an earlier one has."""
        self.outcomes = dict.fromkeys(Outcome, 0)
        self._sequences: dict[tuple[str, str, str | None], int] = {}

    def on_send(self, send: Send) -> None:
        if send.op in self.by_op:
            raise HistoryError(send.line, f"op {send.op} was used in line {self.by_op[send.op].line}")
        if send.sequence is not None:
            writer = (send.process, send.topic, send.key)
            if self._sequences.get(writer, send.sequence - 1) >= send.sequence:
                raise HistoryError(send.line, f"sequence {send.sequence} does not rise within process and key")
            self._sequences[writer] = send.sequence
        values = self.by_value.setdefault(send.topic, {})
        record = SentRecord(send, values.get(send.value))
        values[send.value] = record
        self.by_op[send.op] = record
        self.outcomes[Outcome.OPEN] += 1

    def on_acknowledged(self, answer: Acknowledged) -> None:
        record = self._close(answer.op, answer.line, Outcome.ACKNOWLEDGED)
        if answer.partition is not None:
            if record.partition is not None and record.partition != answer.partition:
                raise HistoryError(answer.line, f"op {answer.op} was sent to partition {record.partition}")
            record.partition = answer.partition
        if answer.offset is None:
            return
        if record.partition is None:
            raise HistoryError(answer.line, f"op {answer.op} has an offset and no partition")
        record.offset = answer.offset
        partition = TopicPartition(record.topic, record.partition)
        first = self.acknowledged_at.setdefault(partition, {}).setdefault(answer.offset, record)
        if first is not record:
            self.shared_offsets.setdefault(partition, {}).setdefault(answer.offset, []).append(record)

    def on_failed(self, answer: Failed) -> None:
        self._close(answer.op, answer.line, Outcome.FAILED).error = answer.error

    def on_unknown(self, answer: Unknown) -> None:
        self._close(answer.op, answer.line, Outcome.UNKNOWN).error = answer.error

    def _close(self, op: int, line: int, outcome: Outcome) -> SentRecord:
        record = self.by_op.get(op)
        if record is None:
            raise HistoryError(line, f"op {op} was never sent")
        if record.outcome is not Outcome.OPEN:
            raise HistoryError(line, f"op {op} had its outcome in line {record.outcome_line}")
        self.outcomes[Outcome.OPEN] -= 1
        self.outcomes[outcome] += 1
        record.outcome = outcome
        record.outcome_line = line
        return record


@dataclass(slots=True, kw_only=True)
class Gap:
    """A stretch of offsets that a process passed over; whether records are in it shows at the end."""

    process: str
    start: Offset
    end: Offset
    inside: bool
    """Within one poll, not between two."""
    line: int


@dataclass(slots=True)
class Reading:
    """One value at one offset, as its first reader read it."""

    value: str
    process: str
    line: int


class PartitionReads:
    """What was read of one partition, by all processes together."""

    def __init__(self) -> None:
        self.first: dict[Offset, Reading] = {}
        self.conflicts: dict[Offset, list[Reading]] = {}
        """Readings whose value differs from the first one's."""
        self.gaps: list[Gap] = []
        self.covered: list[tuple[Offset, Offset]] = []
        """Half-open stretches that polls went over, adjacent ones joined."""
        self.end = 0
        """The offset after the highest that was read."""

    def cover(self, start: Offset, end: Offset) -> None:
        if start >= end:
            return
        if self.covered and self.covered[-1][1] == start:
            start = self.covered.pop()[0]
        self.covered.append((start, end))


class PollBook:
    """Every read, and where each process stands."""

    def __init__(self, report: Report) -> None:
        self.partitions: dict[TopicPartition, PartitionReads] = {}
        self.polls = 0
        self.records = 0
        self._report = report
        self._next: dict[str, dict[TopicPartition, Offset]] = {}

    def on_assign(self, assign: Assign) -> None:
        self._next.pop(assign.process, None)

    def on_seek(self, seek: Seek) -> None:
        self._next.setdefault(seek.process, {})[TopicPartition(seek.topic, seek.partition)] = seek.offset

    def on_poll(self, poll: Poll) -> None:
        partition = TopicPartition(poll.topic, poll.partition)
        reads = self.partitions.get(partition)
        if reads is None:
            reads = self.partitions[partition] = PartitionReads()
        positions = self._next.setdefault(poll.process, {})
        expected = positions.get(partition)
        before = poll.position_before
        if before is not None and (expected is None or before > expected):
            if expected is not None:
                self._gap(reads, poll, expected, before, inside=False)
            expected = before
        self.polls += 1
        self.records += len(poll.records)
        start = expected
        if start is None and poll.records:
            start = poll.records[0][0]
        end = self._read(reads, poll, expected)
        after = poll.position_after
        if after is not None and (end is None or after > end):
            if end is not None:
                self._gap(reads, poll, end, after, inside=False)
            end = after
        if end is not None:
            positions[partition] = end
            if start is not None:
                reads.cover(start, end)

    def _read(self, reads: PartitionReads, poll: Poll, expected: Offset | None) -> Offset | None:
        """Enter the records; returns the offset that comes next."""
        first, process, line = reads.first, poll.process, poll.line
        limit = _NO_LIMIT if poll.high_watermark is None else poll.high_watermark
        came = NO_OFFSET
        in_order = True
        for offset, value in poll.records:
            if offset != expected and expected is not None:
                if offset > expected:
                    self._gap(reads, poll, expected, offset, inside=came != NO_OFFSET)
                elif in_order:
                    self._went_back(poll, offset, expected, inside=came != NO_OFFSET)
                    in_order = False
            known = first.get(offset)
            if known is None:
                first[offset] = Reading(value, process, line)
            elif known.value != value:
                reads.conflicts.setdefault(offset, []).append(Reading(value, process, line))
            if offset >= limit:
                self._above(poll, offset, value, limit)
                limit = _NO_LIMIT  # one finding a poll
            came = offset
            expected = offset + 1
            if offset >= reads.end:
                reads.end = expected
        return expected

    @staticmethod
    def _gap(reads: PartitionReads, poll: Poll, start: Offset, end: Offset, *, inside: bool) -> None:
        reads.gaps.append(Gap(process=poll.process, start=start, end=end, inside=inside, line=poll.line))

    def _went_back(self, poll: Poll, offset: Offset, expected: Offset, *, inside: bool) -> None:
        finding = IntNonmonotonicPoll if inside else NonmonotonicPoll
        self._report(finding(**_of(poll), offset=offset, expected=expected))

    def _above(self, poll: Poll, offset: Offset, value: str, high_watermark: Offset) -> None:
        self._report(ReadAboveHw(**_of(poll), offset=offset, value=value, high_watermark=high_watermark))


def _of(poll: Poll) -> dict[str, Any]:
    """What a finding has of the poll that shows it."""
    return {"topic": poll.topic, "partition": poll.partition, "lines": (poll.line,), "process": poll.process}


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
        return self.contains_all(offset, offset + 1)

    def contains_all(self, start: Offset, end: Offset) -> bool:
        """Return True if each offset from ``start`` to below ``end`` lies in a stretch."""
        at = bisect_right(self._starts, start) - 1
        return end <= start or (at >= 0 and end <= self._ends[at])


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
        """Return True if what was at ``offset`` need no longer be there. Always False where the topic is not compacted.

        Of several that claim the place any may have been the one: the others' loss is found for each of them.
        """
        if partition.topic not in self._topics:
            return False
        claims = self._claims.get(partition, {}).get(offset)
        return claims is None or any(self._is_replaced(record, partition, offset) for record in claims)

    def need_not_stand(self, record: SentRecord, partition: TopicPartition, offset: Offset) -> bool:
        """Return True if the record that was acknowledged at ``offset`` need no longer be there."""
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
        """Return True if an unknown record may be, or may have been, above ``offset``."""
        end = self._ends.get(partition)
        if end is None:
            return True
        if partition not in self._last_free:
            held, last = self._held.get(partition, set()), end - 1
            while last in held:
                last -= 1
            self._last_free[partition] = last
        return self._last_free[partition] > offset
