"""The judgements that need the whole history: one pass each over the books of clients.py and replicas.py.

Rules: every pass is linear in the records (sorting is for stretches of offsets and disputes, which are few); passes
report in the order of partitions and offsets, so that the same history gives the same verdict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

from minikafka.check import findings
from minikafka.check.clients import (
    Outcome,
    PartitionReads,
    Place,
    Places,
    PollBook,
    Reading,
    Replaced,
    SendBook,
    SentRecord,
    Stretches,
    moved_together,
)
from minikafka.check.findings import Finding
from minikafka.check.history import Expectations
from minikafka.check.replicas import ReplicaBook, ReplicaLog
from minikafka.types import NO_OFFSET, NodeId, Offset, TopicPartition

_NOTHING_READ = PartitionReads()

Writer: TypeAlias = tuple[str, str, int, str | None, bool]
"""Whose sends to a partition must stand in their order: process, topic, partition, and key if sends have sequences."""


class Judge:
    """Holds the books against each other. Call :meth:`judge` once, at the end."""

    def __init__(
        self,
        sends: SendBook,
        polls: PollBook,
        replicas: ReplicaBook,
        expectations: Expectations,
        report: Callable[[Finding], None],
    ) -> None:
        self._sends = sends
        self._polls = polls
        self._replicas = replicas
        self._expectations = expectations
        self._report = report
        touched = {**polls.partitions, **sends.acknowledged_at, **replicas.partitions}
        self._partitions = sorted(touched)
        self._agreed: dict[TopicPartition, dict[Offset, str]] = {}
        self._agreed_places: dict[str, dict[str, Place]] = {}
        """topic -> value -> its first place by the replicas' word."""
        self._places: dict[str, Places] = {}
        self._log_starts: dict[TopicPartition, Offset] = {}
        self._covered: dict[TopicPartition, Stretches] = {}
        self._replaced = Replaced((), sends, {}, {})
        self._lost_ops: set[int] = set()
        self.read_distinct = 0
        self.duplicates = 0
        """Values at more places than they were sent, whether that is a finding or not."""
        self.unknown_seen = 0
        self.unread = 0
        """Acknowledged records that nobody went over: not judged, for no reader was expected there."""

    @property
    def partition_count(self) -> int:
        return len(self._partitions)

    def judge(self) -> None:
        """Report everything that the whole history shows."""
        for partition in self._partitions:
            is_compacted = partition.topic in self._expectations.compacted
            self._agreed[partition] = self._replicas.agreed(partition, is_compacted=is_compacted)
            self._log_starts[partition] = self._log_start(partition)
            self._covered[partition] = Stretches(self._reads(partition).covered)
            self._collect_sightings(partition)
        ends = {each: self._end(each) for each in self._partitions} if self._expectations.final_read_complete else {}
        self._replaced = Replaced(self._expectations.compacted, self._sends, self._places, ends)
        self._outcomes()
        for partition in self._partitions:
            self._add_acknowledgements(partition)
        self._duplicates()
        for partition in self._partitions:
            moved = self._shifted(partition)
            self._inconsistent_offsets(partition, moved)
            self._vanished(partition, moved)
        self._order_of_sends()
        for topic in sorted(self._places):
            self._origins(topic)
        for partition in self._partitions:
            self._skips(partition)

    def _collect_sightings(self, partition: TopicPartition) -> None:
        """Where values were read, or are agreed by the replicas."""
        places = self._places.setdefault(partition.topic, Places())
        reads = self._reads(partition)
        agreed = self._agreed[partition]
        self.read_distinct += len(reads.first)
        for offset, reading in reads.first.items():
            places.add(reading.value, (partition.partition, offset))
        for offset, readings in reads.conflicts.items():
            for value in dict.fromkeys(reading.value for reading in readings):
                places.add(value, (partition.partition, offset))
        agreed_places = self._agreed_places.setdefault(partition.topic, {})
        for offset, value in agreed.items():
            agreed_places.setdefault(value, (partition.partition, offset))
            reading_here = reads.first.get(offset)
            if reading_here is None or (reading_here.value != value and offset not in reads.conflicts):
                places.add(value, (partition.partition, offset))

    def _add_acknowledgements(self, partition: TopicPartition) -> None:
        """An acknowledgement tells a place where nobody looked: swapped records are no duplicates of themselves."""
        if self._expectations.final_read_complete:
            return
        places = self._places[partition.topic]
        read = self._reads(partition).first
        agreed = self._agreed[partition]
        covered = self._covered[partition]
        for offset, record in self._sends.acknowledged_at.get(partition, {}).items():
            if offset not in read and offset not in agreed and not covered.contains(offset):
                places.add(record.value, (partition.partition, offset))

    # -- loss --------------------------------------------------------------------------------------------------------

    def _outcomes(self) -> None:
        """lost-write, unseen and acknowledged-missing-on-replica: each acknowledged send against all that was seen."""
        for record in self._sends.by_op.values():
            places = self._places.get(record.topic)
            seen = places is not None and record.value in places.first
            if record.outcome is Outcome.ACKNOWLEDGED:
                self._acknowledged(record, seen=seen)
            elif seen and record.outcome is not Outcome.FAILED:
                self.unknown_seen += 1

    def _acknowledged(self, record: SentRecord, *, seen: bool) -> None:
        offset = record.offset
        if offset is None or record.partition is None:
            is_owed = self._expectations.final_read_complete and not self._replaced.may_be_gone_from_anywhere(record)
            if is_owed and not seen and not self._was_deleted_unread(record):
                self._lost(record, (), NO_OFFSET)
            return
        partition = record.place
        if offset < self._log_starts[partition] or self._replaced.need_not_stand(record, partition, offset):
            return
        logs = self._replicas.partitions.get(partition)
        holders: tuple[NodeId, ...] = ()
        if logs:
            holders = tuple(node for node in sorted(logs) if logs[node].holds(offset, record.value))
            if holders:
                self._missing_on_replicas(record, offset, logs, holders)
            elif not (self._is_agreed_in(partition, record.value) and self._only_send(record)):
                self._lost(record, (), self._reads(partition).end)
                return
        reads = self._reads(partition)
        here = reads.first.get(offset)
        is_elsewhere = seen and self._only_send(record) and self._stands_in(partition, record.value)
        if (here is not None and here.value == record.value) or is_elsewhere:
            return
        if self._expectations.final_read_complete:
            if offset < reads.end:
                self._lost(record, holders, reads.end)
            else:
                self._unseen(record, offset, reads.end)
        elif self._covered[partition].contains(offset):
            self._lost(record, holders, reads.end)
        else:
            self.unread += 1

    def _is_agreed_in(self, partition: TopicPartition, value: str) -> bool:
        place = self._agreed_places[partition.topic].get(value)
        return place is not None and place[0] == partition.partition

    def _stands_in(self, partition: TopicPartition, value: str) -> bool:
        """Return True if a value that was seen in the topic was seen in this partition."""
        places = self._places[partition.topic]
        return any(number == partition.partition for number, _ in places.several.get(value, [places.first[value]]))

    def _was_deleted_unread(self, record: SentRecord) -> bool:
        """Return True if a record that was acknowledged without its offset must have stood below the log start.

        A leader omits the offset of a duplicate whose writer has later batches in the log. The record stands before
        all of those, so it stood below the log start if one of them was acknowledged there. Where readers went over
        everything before that one, or where there is none, the record must have been seen.
        """
        if record.partition is None:
            return False
        later = self._sends_at_log_start.get(_writer(record, record.partition), [])
        following = bisect_left(later, record.line, key=_line_of)
        if following == len(later):
            return False
        return not self._covered[record.place].contains_all(0, later[following][1])

    @cached_property
    def _sends_at_log_start(self) -> dict[Writer, list[tuple[int, Offset]]]:
        """Lines and offsets of each writer's sends that were acknowledged at the log start or below it."""
        sends: dict[Writer, list[tuple[int, Offset]]] = {}
        # Without idempotence the order of sends says nothing of their places.
        for record in self._sends.by_op.values() if self._expectations.idempotent else ():
            if record.offset is None or record.partition is None or record.offset > self._log_starts[record.place]:
                continue
            sends.setdefault(_writer(record, record.partition), []).append((record.line, record.offset))
        return sends

    def _lost(self, record: SentRecord, held_by: tuple[NodeId, ...], read_up_to: Offset) -> None:
        self._lost_ops.add(record.op)
        offset = NO_OFFSET if record.offset is None else record.offset
        reading = self._reads(record.place).first.get(offset)
        self._report(
            findings.LostWrite(
                **_of(record),
                offset=offset,
                held_by=held_by,
                read_up_to=read_up_to,
                was_read=reading is not None and reading.value == record.value,
            )
        )

    def _unseen(self, record: SentRecord, offset: Offset, read_up_to: Offset) -> None:
        self._report(findings.Unseen(**_of(record), offset=offset, read_up_to=read_up_to))

    def _missing_on_replicas(
        self, record: SentRecord, offset: Offset, logs: dict[NodeId, ReplicaLog], holders: tuple[NodeId, ...]
    ) -> None:
        if len(holders) == len(logs):
            return
        without: list[tuple[NodeId, str]] = []
        for node in sorted(logs):
            log = logs[node]
            must = log.owes(offset) or (self._expectations.replicas_complete and offset >= log.log_start)
            if must and node not in holders:
                row = log.rows.get(offset)
                without.append((node, findings.MISSING if row is None else row[1]))
        if without:
            self._report(
                findings.AcknowledgedMissingOnReplica(
                    topic=record.topic,
                    partition=record.place.partition,
                    offset=offset,
                    lines=(record.line, record.outcome_line),
                    value=record.value,
                    op=record.op,
                    holdings=tuple(without),
                )
            )

    def _log_start(self, partition: TopicPartition) -> Offset:
        """Nothing below is owed by anyone: retention may have taken it."""
        logs = self._replicas.partitions.get(partition, {})
        lowest = min((log.log_start for log in logs.values()), default=0)
        return max(lowest, self._expectations.log_start.get(partition, 0))

    def _end(self, partition: TopicPartition) -> Offset:
        """Where the log ends by the word of readers and replicas, once all of it was read."""
        read_up_to = max((end for _, end in self._reads(partition).covered), default=0)
        logs = self._replicas.partitions.get(partition, {})
        return max([read_up_to, *(log.high_watermark for log in logs.values())])

    # -- places ------------------------------------------------------------------------------------------------------

    def _duplicates(self) -> None:
        for topic in sorted(self._places):
            sent = self._sends.by_value.get(topic, {})
            for value, places in self._places[topic].several.items():
                record = sent.get(value)
                sends = _sends_that_may_stand(record)
                if len(places) <= max(sends, 1):
                    continue
                self.duplicates += 1
                if self._expectations.idempotent:
                    places.sort()
                    partition, offset = places[1]
                    lines = () if record is None else (record.line,)
                    self._report(
                        findings.Duplicate(
                            topic=topic,
                            partition=partition,
                            offset=offset,
                            lines=tuple(dict.fromkeys(lines + self._lines_of(topic, places))),
                            value=value,
                            places=tuple(places),
                            sends=sends,
                        )
                    )

    def _lines_of(self, topic: str, places: list[Place]) -> tuple[int, ...]:
        """The polls that showed the places, as far as they were read."""
        readings = [self._reads(TopicPartition(topic, partition)).first.get(offset) for partition, offset in places]
        return tuple(reading.line for reading in readings if reading is not None)

    def _shifted(self, partition: TopicPartition) -> dict[str, int]:
        """shifted: one finding for a stretch of records that moved together; returns each value's distance."""
        moved: dict[str, int] = {}
        acknowledged = self._sends.acknowledged_at.get(partition, {})
        places = self._places[partition.topic]

        def stands_at(record: SentRecord) -> Offset | None:
            place = places.first.get(record.value)
            if place is None or record.value in places.several or not self._only_send(record):
                return None
            return place[1] if place[0] == partition.partition else None

        read, agreed = self._reads(partition).first, self._agreed[partition]
        for stretch in moved_together(acknowledged, stands_at):
            first, last = stretch.offsets[0], stretch.offsets[-1]
            if first == last and (first in read or first in agreed):
                continue  # one record at another's place: a swap
            moved.update((acknowledged[offset].value, stretch.distance) for offset in stretch.offsets)
            self._report(
                findings.Shifted(
                    **partition._asdict(),
                    offset=first,
                    lines=(acknowledged[first].outcome_line, acknowledged[last].outcome_line),
                    until=last + 1,
                    distance=stretch.distance,
                    count=len(stretch.offsets),
                    values=(acknowledged[first].value, acknowledged[last].value),
                    processes=tuple(sorted({acknowledged[offset].process for offset in stretch.offsets})),
                )
            )
        return moved

    def _inconsistent_offsets(self, partition: TopicPartition, moved: Mapping[str, int]) -> None:
        """All reports of one offset must be equal; what ``moved`` explains is reported already."""
        reads = self._reads(partition)
        acknowledged = self._sends.acknowledged_at.get(partition, {})
        agreed = self._agreed[partition]
        disputed = dict.fromkeys(reads.conflicts)
        for offset, others in self._sends.shared_offsets.get(partition, {}).items():
            if any(other.value != acknowledged[offset].value for other in others):
                disputed[offset] = None
        for offset, record in acknowledged.items():
            reading = reads.first.get(offset)
            claimed = agreed.get(offset, record.value) if reading is None else reading.value
            differ = claimed != record.value or agreed.get(offset, record.value) != record.value
            if differ and record.value not in moved and not self._gave_way(record, offset, moved.get(claimed)):
                disputed[offset] = None
        for offset, value in agreed.items():
            reading = reads.first.get(offset)
            if reading is not None and reading.value != value:
                disputed[offset] = None
        for offset in sorted(disputed):
            self._dispute(partition, offset)

    def _gave_way(self, record: SentRecord, offset: Offset, distance: int | None) -> bool:
        """Return True if another record is there since that moved, and this one is gone or has moved with it."""
        places = self._places[record.topic]
        first = places.first.get(record.value)
        if distance is None or first is None:
            return distance is not None
        return (record.place.partition, offset + distance) in places.several.get(record.value, [first])

    def _dispute(self, partition: TopicPartition, offset: Offset) -> None:
        claims: dict[str, tuple[str, int]] = {}
        """value -> (who says so first, line)"""
        acknowledged = self._sends.acknowledged_at.get(partition, {}).get(offset)
        if acknowledged is not None:
            claims[acknowledged.value] = (f"the answer to {acknowledged.process}", acknowledged.outcome_line)
        for other in self._sends.shared_offsets.get(partition, {}).get(offset, []):
            claims.setdefault(other.value, (f"the answer to {other.process}", other.outcome_line))
        reads = self._reads(partition)
        readings: list[Reading] = [reads.first[offset]] if offset in reads.first else []
        for reading in readings + reads.conflicts.get(offset, []):
            claims.setdefault(reading.value, (f"a poll of {reading.process}", reading.line))
        if offset in self._agreed[partition]:
            claims.setdefault(self._agreed[partition][offset], ("the replicas", 0))
        self._report(
            findings.InconsistentOffsets(
                **partition._asdict(),
                offset=offset,
                lines=tuple(line for _, line in claims.values() if line),
                values=tuple((value, who) for value, (who, _) in claims.items()),
            )
        )

    def _order_of_sends(self) -> None:
        """nonmonotonic-send: neighbours in sending order must stand in that order.

        By the replicas' word at the end, else by what was read (Jepsen's version order), else by the answers. Unknown
        sends are left out: one may arrive late. A value that was sent several times is judged by its acknowledged
        offset.
        """
        if not self._expectations.idempotent:
            return
        last: dict[Writer, tuple[SentRecord, Offset]] = {}
        for record in self._sends.by_op.values():
            if record.outcome is not Outcome.ACKNOWLEDGED or record.op in self._lost_ops:
                continue
            place = self._place(record)
            if place is None:
                continue
            partition, offset = place
            writer = _writer(record, partition)
            before = last.get(writer)
            last[writer] = (record, offset)
            if before is not None and before[1] >= offset:
                self._report(
                    findings.NonmonotonicSend(
                        topic=record.topic,
                        partition=partition,
                        offset=offset,
                        lines=(before[0].line, record.line),
                        process=record.process,
                        key=record.key,
                        ops=(before[0].op, record.op),
                        values=(before[0].value, record.value),
                        offsets=(before[1], offset),
                    )
                )

    def _place(self, record: SentRecord) -> Place | None:
        claimed = None
        if record.partition is not None and record.offset is not None:
            claimed = (record.partition, record.offset)
        if not self._only_send(record):
            return claimed
        place = self._agreed_places.get(record.topic, {}).get(record.value)
        if place is not None:
            # A second copy elsewhere is a duplicate, not a change of order.
            agrees = claimed is not None and self._agreed.get(record.place, {}).get(claimed[1]) == record.value
            return claimed if agrees else place
        places = self._places.get(record.topic)
        if places is not None and record.value not in places.several:
            return places.first.get(record.value, claimed)
        return claimed

    def _only_send(self, record: SentRecord) -> bool:
        return record.earlier is None and self._sends.by_value[record.topic][record.value] is record

    # -- reads -------------------------------------------------------------------------------------------------------

    def _origins(self, topic: str) -> None:
        """aborted-read and phantom-read: whatever stands in a log was sent there, and not refused."""
        sent = self._sends.by_value.get(topic)
        if sent is None:
            return  # the history tells nothing of this topic's producers
        for value, (number, offset) in self._places[topic].first.items():
            record = sent.get(value)
            if record is not None and _sends_that_may_stand(record):
                if value in self._places[topic].several or _may_stand_in(record, number):
                    continue
                record = None  # it was sent to another partition
            name = TopicPartition(topic, number)
            reading = self._reads(name).first.get(offset)
            seen_by = "the replicas" if reading is None else reading.process
            lines: tuple[int, ...] = () if reading is None else (reading.line,)
            seen: dict[str, Any] = {**name._asdict(), "offset": offset, "value": value, "seen_by": seen_by}
            if record is None:
                self._report(findings.PhantomRead(**seen, lines=lines))
            else:
                lines = (record.line, record.outcome_line, *lines)
                self._report(findings.AbortedRead(**seen, lines=lines, op=record.op, error=record.error))

    def _skips(self, partition: TopicPartition) -> None:
        """poll-skip and int-poll-skip: a gap counts when records are known to stand in it."""
        reads = self._reads(partition)
        if not reads.gaps:
            return
        known = {**reads.first, **self._sends.acknowledged_at.get(partition, {}), **self._agreed[partition]}
        offsets = sorted(known)
        log_start = self._log_starts[partition]
        for gap in reads.gaps:
            first = bisect_left(offsets, max(gap.start, log_start))
            skipped = offsets[first : bisect_left(offsets, gap.end)]
            skipped = [offset for offset in skipped if not self._replaced.may_be_gone(partition, offset)]
            if skipped:
                finding = findings.IntPollSkip if gap.inside else findings.PollSkip
                self._report(
                    finding(
                        **partition._asdict(),
                        offset=skipped[0],
                        lines=(gap.line,),
                        process=gap.process,
                        until=gap.end,
                        count=len(skipped),
                    )
                )

    def _vanished(self, partition: TopicPartition, moved: Mapping[str, int]) -> None:
        """vanished: what a consumer was given was committed, whatever its producer knows; some replica has it.

        What was acknowledged and is gone is reported as lost, and another record in its place as a disagreement.
        """
        logs = self._replicas.partitions.get(partition, {})
        if not logs or any(log.batches for log in logs.values()):
            return
        agreed, sent = self._agreed[partition], self._sends.by_value.get(partition.topic, {})
        for offset, reading in self._reads(partition).first.items():
            if offset in agreed or offset < self._log_starts[partition] or reading.value in moved:
                continue
            is_owed = self._expectations.replicas_complete or any(log.owes(offset) for log in logs.values())
            if not is_owed or any(offset in log.rows for log in logs.values()):
                continue
            record = sent.get(reading.value)
            is_lost = record is not None and any(each.op in self._lost_ops for each in record.namesakes())
            if is_lost or self._replaced.may_be_gone(partition, offset):
                continue
            self._report(
                findings.Vanished(
                    **partition._asdict(),
                    offset=offset,
                    lines=(reading.line,),
                    process=reading.process,
                    value=reading.value,
                )
            )

    def _reads(self, partition: TopicPartition) -> PartitionReads:
        return self._polls.partitions.get(partition, _NOTHING_READ)


def _writer(record: SentRecord, partition: int) -> Writer:
    keyed = record.sequence is not None
    return (record.process, record.topic, partition, record.key if keyed else None, keyed)


def _line_of(send: tuple[int, Offset]) -> int:
    return send[0]


def _sends_that_may_stand(record: SentRecord | None) -> int:
    """How many sends of the value may be in the log: all but those that definitely failed."""
    if record is None:
        return 0
    return sum(sent.outcome is not Outcome.FAILED for sent in record.namesakes())


def _may_stand_in(record: SentRecord, partition: int) -> bool:
    """Return True if a send of the value may have gone to the partition: None is the partitioner's choice."""
    return any(
        sent.outcome is not Outcome.FAILED and sent.partition in {None, partition} for sent in record.namesakes()
    )


def _of(record: SentRecord) -> dict[str, Any]:
    """What a finding has of the record that it is about."""
    return {
        "topic": record.topic,
        "partition": record.place.partition,
        "lines": (record.line, record.outcome_line),
        "value": record.value,
        "op": record.op,
        "process": record.process,
    }
