"""Which task reads what, and what the logs have lost since the checkpoint was written. Pure.

The four ways to lose records that a query had not read, or had read but the log no longer has, differ: each is
an error of its own when failOnDataLoss=true, otherwise a count and a place to go on from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from minikafka.blocking.reading import (
    DataLoss,
    LogTruncated,
    OffsetRange,
    PartitionVanished,
    RetentionPassedPosition,
    TopicRecreated,
)
from minikafka.spark.offsets import Position
from minikafka.types import NO_EPOCH, NO_OFFSET, Offset, TopicId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What the brokers say of a partition at planning time."""

    topic_id: TopicId | None
    log_start: Offset
    epoch_end: Offset = NO_OFFSET
    """Where the position's epoch ends in the leader's log; -1: not asked, or no such epoch is known there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where to go on from, and what is gone (None: nothing)."""

    offset: Offset
    loss: DataLoss | None = None
    lost_count: int = 0
    """Records that are gone, as far as that can be counted; those of LogTruncated the query may have read before."""


def resume(
    partition: TopicPartition, position: Position, topic_id: TopicId | None, facts: PartitionFacts | None
) -> Resumed:
    """Check a checkpointed position against what the log is now.

    ``topic_id`` None: the checkpoint does not know it (it is of Spark's Kafka source). After a truncation reading goes
    on where the logs part: what stands there now was never read. It never goes back below that.
    """
    if facts is None:
        return Resumed(offset=position.offset, loss=PartitionVanished(partition, "it no longer exists"))
    if topic_id is not None and facts.topic_id is not None and topic_id != facts.topic_id:
        recreated = TopicRecreated(
            partition, f"the topic has the id {facts.topic_id}, the checkpoint is of {topic_id}: it was re-created"
        )
        return Resumed(offset=facts.log_start, loss=recreated)
    if position.epoch != NO_EPOCH and NO_OFFSET < facts.epoch_end < position.offset:
        truncated = LogTruncated(
            partition,
            f"the checkpoint stands at {position.offset} of epoch {position.epoch}, but the leader's log leaves that "
            f"epoch at {facts.epoch_end}: {position.offset - facts.epoch_end} records that were read are gone",
        )
        count = position.offset - facts.epoch_end
        return Resumed(offset=max(facts.epoch_end, facts.log_start), loss=truncated, lost_count=count)
    if position.offset < facts.log_start:
        count = facts.log_start - position.offset
        passed = RetentionPassedPosition(
            partition, f"the checkpoint stands at {position.offset}, the log begins at {facts.log_start}: {count} lost"
        )
        return Resumed(offset=facts.log_start, loss=passed, lost_count=count)
    return Resumed(offset=position.offset)


def split(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Ranges for tasks: one per partition, cut where ``max_records`` or about ``min_partitions`` ask for it.

    Together the parts cover each range exactly once, in order; empty ranges are dropped.
    """
    wanted = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in wanted)
    counts = []
    for each in wanted:
        count = 1
        if max_records is not None:
            count = -(-each.size // max_records)
        counts.append(count)
    if min_partitions is not None and sum(counts) < min_partitions and total:
        shares = [-(-each.size * min_partitions // total) for each in wanted]
        counts = [max(count, share) for count, share in zip(counts, shares, strict=True)]
    return [
        part for each, count in zip(wanted, counts, strict=True) for part in _cut(each, max(1, min(count, each.size)))
    ]


def _cut(whole: OffsetRange, count: int) -> Sequence[OffsetRange]:
    edges = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [
        OffsetRange(partition=whole.partition, start=start, end=end, epoch=whole.epoch, topic_id=whole.topic_id)
        for start, end in pairwise(edges)
    ]


def missing(known: Mapping[TopicPartition, Position], present: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Partitions of a checkpoint that are no longer there, sorted."""
    there = frozenset(present)
    return sorted(name for name in known if name not in there)


def wrong_partitions(given: Iterable[TopicPartition], actual: Iterable[TopicPartition]) -> str:
    """A sentence when offsets given by hand do not name exactly the partitions that are read; empty when they do."""
    named, there = frozenset(given), frozenset(actual)
    if named == there:
        return ""
    lacking, surplus = sorted(there - named), sorted(named - there)
    faults = []
    if lacking:
        faults.append(f"{', '.join(map(str, lacking))} lack an offset")
    if surplus:
        faults.append(f"{', '.join(map(str, surplus))} do not exist")
    return f"offsets must be given for every partition and no other: {'; '.join(faults)}"
