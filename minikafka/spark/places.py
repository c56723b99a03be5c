"""Where a query begins and ends: offsets as Spark keeps them, found by asking brokers, and cut into tasks.

Offsets (:class:`StreamOffset`): Spark writes one JSON object into its checkpoint::

    {"$epochs": {"orders": {"0": 3}}, "$ids": {"orders": "Z3..."}, "orders": {"0": 12}}

Without the members that begin with ``$`` (no topic's name may) it is the JSON of Spark's Kafka source. Rules:

1. Ends are exclusive. The epoch is the leader's when the offset was committed: where that epoch ends in a later
   leader's log tells whether the records below the offset are still the same ones (KIP-101).
2. Keys are sorted, because Spark compares offsets as texts; if nothing is new, the reader returns what it was given.
3. ``$start`` stands in the end of batch 0 only. Spark does not keep the start of batch 0 and asks for it again when the
   batch is replayed: ``latest`` would then be somewhere else, and what came between would be lost.
4. ``$lost`` (kind -> partition -> records) stands in the end of a batch before which records were lost and that was
   allowed: so the query's progress shows it, and the checkpoint keeps it.
5. ``$initial`` marks an offset that a reader made up as the beginning; it never reaches a checkpoint.
6. ``$begins`` stands in the end of a batch that begins elsewhere than its start says: the partitions that are new to
   the query, and those where reading goes on behind a loss. So a batch that is run again has the same tasks, and
   records that were planned and are gone by then count as lost.

What the logs have lost since the checkpoint was written (:func:`resume`): the four ways to lose records that a query
had not read, or had read but the log no longer has, differ. Each is an error of its own when failOnDataLoss=true,
otherwise a count and a place to continue from.

Words and timestamps become offsets by requests to the brokers (:func:`resolve`). A query may begin where a consumer
group stands (``startingOffsets=committed``). With ``commitGroup=G`` the offsets of finished batches are committed to
the group G (:class:`Group`), so that lag monitors see the job. The checkpoint stays the only memory of the query: what
is committed decides nothing but where a *new* query begins. Rules:

1. A batch is committed when Spark says that it is done, never before.
2. A query commits without being a member. A group with members, or of another query, is refused by name
   (:class:`CommitRefused`) and not fought over.
3. A coordinator that does not answer in COMMIT_TIMEOUT_S is no reason to stop: the next batch commits all again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from minikafka.blocking.brokers import Brokers, BrokersUnreachable, Coordinator, Topic
from minikafka.blocking.reading import (
    DataLoss,
    LogTruncated,
    OffsetRange,
    PartitionVanished,
    RetentionPassedPosition,
    TopicRecreated,
)
from minikafka.errors import ProtocolError, UnknownTopicId, UnknownTopicOrPartition
from minikafka.spark.options import (
    EARLIEST_OFFSET,
    EARLIEST_WORD,
    LATEST_OFFSET,
    ByGroup,
    ByOffset,
    ByTimestamp,
    ByWord,
    OptionError,
    Place,
    Selection,
)
from minikafka.types import NO_EPOCH, NO_OFFSET, Epoch, Offset, TopicId, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.apis import in_parts
from minikafka.wire.messages import EARLIEST, LATEST
from minikafka.wire.outcomes import error_in

EPOCHS, IDS, START, INITIAL, LOST, BEGINS = "$epochs", "$ids", "$start", "$initial", "$lost", "$begins"


class BadOffset(ValueError):
    """What Spark handed back is no offset of this source; the sentence says where."""


class Position(NamedTuple):
    """A place in a partition."""

    offset: Offset
    epoch: Epoch = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """A place in every partition."""

    positions: Mapping[TopicPartition, Position]
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    start: StreamOffset | None = None
    """Where the query began; in the end of its first batch."""
    initial: bool = False
    lost: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Written, never read back."""
    begins: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    """Where the batch with this end begins, if not where its start says."""

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        members: dict[str, Any] = {
            EPOCHS: _nested({partition: each.epoch for partition, each in self.positions.items()}),
            IDS: dict(sorted(self.topic_ids.items())),
        }
        if self.initial:
            members[INITIAL] = True
        if self.lost:
            members[LOST] = {kind: dict(sorted(each.items())) for kind, each in sorted(self.lost.items())}
        if self.start is not None:
            members[START] = self.start.to_json()
        if self.begins:
            members[BEGINS] = _nested(self.begins)
        return members | _nested({partition: each.offset for partition, each in self.positions.items()})


def _nested(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Topic -> partition -> number, sorted by both."""
    result: dict[str, dict[str, int]] = {}
    for partition in sorted(numbers):
        result.setdefault(partition.topic, {})[str(partition.partition)] = numbers[partition]
    return result


def from_json(members: Any) -> StreamOffset:
    """Read what :meth:`StreamOffset.to_json` wrote, or the offset JSON of Spark's Kafka source. Raises BadOffset."""
    if not isinstance(members, dict):
        raise BadOffset(f"an offset is a JSON object, not {members!r}")
    epochs = _flat(members.get(EPOCHS, {}), EPOCHS)
    offsets = _flat({name: each for name, each in members.items() if not name.startswith("$")}, "offsets")
    ids = members.get(IDS, {})
    if not isinstance(ids, dict):
        raise BadOffset(f"{IDS}: {ids!r} is not topic -> topic id")
    start = members.get(START)
    return StreamOffset(
        positions={
            partition: Position(offset, epochs.get(partition, NO_EPOCH)) for partition, offset in offsets.items()
        },
        topic_ids=dict(ids),
        start=None if start is None else from_json(start),
        initial=members.get(INITIAL) is True,
        begins=_flat(members.get(BEGINS, {}), BEGINS),
    )


def _flat(nested: Any, what: str) -> dict[TopicPartition, int]:
    try:
        found = {
            TopicPartition(topic, int(partition)): number
            for topic, partitions in nested.items()
            for partition, number in partitions.items()
        }
    except (AttributeError, ValueError) as error:
        raise BadOffset(f"{what}: {nested!r} is not topic -> partition -> number") from error
    bad = [name for name, number in found.items() if type(number) is not int]
    if bad:
        raise BadOffset(f"{what}: {bad[0]} has {found[bad[0]]!r}, not a number")
    return found


def limited(
    begin: Mapping[TopicPartition, Offset], end: Mapping[TopicPartition, Offset], limit: int
) -> dict[TopicPartition, Offset]:
    """Ends that take about ``limit`` records: each partition its share, at least one where there is any.

    As Spark's rateLimit: a share below one record is rounded up, any other down. Partitions with nothing new keep
    their end; no end moves back.
    """
    sizes = {name: max(0, at - begin.get(name, at)) for name, at in end.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    result: dict[TopicPartition, Offset] = {}
    for name, at in end.items():
        size = sizes[name]
        if size == 0:
            result[name] = at
            continue
        taken = max(1, limit * size // total)
        result[name] = min(at, begin[name] + taken)
    return result


def new_records(begin: Mapping[TopicPartition, Position], end: Mapping[TopicPartition, Position]) -> int:
    """How many offsets lie between two places; partitions that only one of them knows do not count."""
    return sum(max(0, at.offset - begin[name].offset) for name, at in end.items() if name in begin)


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


LOGGER = logging.getLogger("minikafka.spark")

# The driver builds no batch meanwhile.
COMMIT_TIMEOUT_S = 5.0


class NothingCommitted(Exception):
    """The group that a query was to begin at has committed nothing for what the query reads."""


class CommitRefused(Exception):
    """The group may not be committed to; the sentence has the coordinator's error."""


class Group:
    """One group's offsets, fetched and committed synchronously."""

    def __init__(self, brokers: Brokers, name: str) -> None:
        self.name = name
        self._coordinator = Coordinator(brokers, name)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """What is committed; partitions without are left out. BrokersUnreachable, ProtocolError."""
        found: dict[TopicPartition, Position] = {}
        for part in in_parts(partitions):
            response: g.OffsetFetchResponse = self._coordinator.ask(
                f"asking for the offsets of group {self.name}",
                g.OffsetFetchRequest(group_id=self.name, partitions=m.PartitionName.each(part)),
                error_of=_error_of_offsets,
            )
            found |= {
                TopicPartition(each.topic, each.partition): Position(each.offset, each.leader_epoch)
                for each in response.partitions
                if each.offset >= 0
            }
        return found

    def commit(
        self, positions: Mapping[TopicPartition, Position], topic_ids: Mapping[str, TopicId] | None = None
    ) -> None:
        """Commit how far the query is. CommitRefused; an absent coordinator is a warning in the log.

        With ``topic_ids`` a topic that was created again under its name gets no position of the former one.
        """
        ids = topic_ids or {}
        items = [
            g.CommitPartition(
                topic=name.topic,
                partition=name.partition,
                offset=each.offset,
                leader_epoch=each.epoch,
                topic_id=ids.get(name.topic),
            )
            for name, each in sorted(positions.items())
        ]
        try:
            for part in in_parts(items):
                self._coordinator.ask(
                    f"committing to group {self.name}",
                    g.OffsetCommitRequest(group_id=self.name, partitions=tuple(part)),
                    error_of=_error_of_offsets,
                    timeout_s=COMMIT_TIMEOUT_S,
                )
        except BrokersUnreachable as absent:
            LOGGER.warning("group %s shows an older place of this query: %s", self.name, absent)
        except ProtocolError as error:
            raise CommitRefused(
                f"commitGroup={self.name}: {error.name}: {error.message}; give the query a group of its own"
            ) from error


def _error_of_offsets(response: Any) -> ProtocolError | None:
    errors = (error_in(each) for each in response.partitions)
    # A topic that is gone, or was created again, has no position that counts.
    gone = (UnknownTopicOrPartition, UnknownTopicId)
    return next((each for each in errors if each is not None and not isinstance(each, gone)), None)


class NothingToRead(Exception):
    """A topic or partition that the query names does not exist."""


class NoRecordAtTimestamp(Exception):
    """No record is so young, and startingOffsetsByTimestampStrategy is error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What exists of what the query reads."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, TopicId]

    def has(self, place: StreamOffset) -> bool:
        """Return True if everything that the checkpoint names is there and unchanged."""
        there = frozenset(self.partitions)
        same = all(self.topic_ids.get(topic) == topic_id for topic, topic_id in place.topic_ids.items())
        return same and all(name in there for name in place.positions)


def present(brokers: Brokers, selection: Selection, *expected: StreamOffset) -> Present:
    """The selected partitions that exist, sorted.

    What a checkpoint names and the asked broker does not know is looked for once more where nothing can be missing:
    a broker that has just started knows nothing yet.
    """
    found = _present(selection, brokers.topics(selection.named_topics))
    if all(found.has(each) for each in expected):
        return found
    return certainly_present(brokers, selection)


def certainly_present(brokers: Brokers, selection: Selection) -> Present:
    """The selected partitions that exist, sorted; what is not among them does not exist."""
    return _present(selection, brokers.topics(selection.named_topics, certain=True))


def _present(selection: Selection, topics: Mapping[str, Topic]) -> Present:
    partitions = sorted(
        name
        for topic, each in topics.items()
        for name in (TopicPartition(topic, number) for number in each.partitions)
        if selection.takes(name)
    )
    ids = {name.topic: topics[name.topic].topic_id for name in partitions}
    return Present(
        partitions=tuple(partitions), topic_ids={topic: each for topic, each in ids.items() if each is not None}
    )


def present_or_fail(brokers: Brokers, selection: Selection) -> Present:
    """As :func:`present`; NothingToRead when something that was named is not there."""
    found = certainly_present(brokers, selection)
    there = frozenset(found.partitions)
    lacking = [str(each) for each in selection.assign or () if each not in there]
    lacking += [topic for topic in selection.topics or () if topic not in found.topic_ids]
    if lacking:
        raise NothingToRead(f"{', '.join(lacking)}: no such topic or partition; `minikafka topics list` shows them")
    return found


def resolve(
    brokers: Brokers, place: Place, partitions: tuple[TopicPartition, ...], option: str
) -> dict[TopicPartition, Position]:
    """The offset that ``place`` means in each partition. OptionError, NoRecordAtTimestamp, NothingCommitted."""
    if isinstance(place, ByGroup):
        return _by_group(brokers, place, partitions)
    if isinstance(place, ByWord):
        time = EARLIEST if place.word == EARLIEST_WORD else LATEST
        return _positions(brokers, dict.fromkeys(partitions, time))
    if isinstance(place, ByTimestamp):
        return _by_timestamp(brokers, place, partitions, option)
    return _by_offset(brokers, place, partitions, option)


def _positions(brokers: Brokers, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position]:
    # The epoch of an end is the leader's; at any other offset it would be the record's, which says less.
    return {
        name: Position(offset, epoch if times[name] == LATEST else NO_EPOCH)
        for name, (offset, epoch) in brokers.list_offsets(times).items()
    }


def _by_offset(
    brokers: Brokers, place: ByOffset, partitions: tuple[TopicPartition, ...], option: str
) -> dict[TopicPartition, Position]:
    wrong = wrong_partitions(place.offsets, partitions)
    if wrong:
        raise OptionError(f"option {option}: {wrong}")
    words = {EARLIEST_OFFSET: EARLIEST, LATEST_OFFSET: LATEST}
    asked = {name: words[offset] for name, offset in place.offsets.items() if offset in words}
    found = _positions(brokers, asked)
    return {name: found.get(name, Position(offset)) for name, offset in sorted(place.offsets.items())}


def _by_group(
    brokers: Brokers, place: ByGroup, partitions: tuple[TopicPartition, ...]
) -> dict[TopicPartition, Position]:
    """A partition for which nothing is committed is read from its beginning, as one that is new to a query."""
    committed = Group(brokers, place.group).committed(partitions)
    if not committed:
        raise NothingCommitted(
            f"group {place.group} has committed nothing for what is read: begin with startingOffsets=earliest, or "
            "commit first (`minikafka groups describe` shows what it has)"
        )
    without = [name for name in partitions if name not in committed]
    return committed | _positions(brokers, dict.fromkeys(without, EARLIEST))


def _by_timestamp(
    brokers: Brokers, place: ByTimestamp, partitions: tuple[TopicPartition, ...], option: str
) -> dict[TopicPartition, Position]:
    if place.everywhere_ms is not None:
        times = dict.fromkeys(partitions, place.everywhere_ms)
    else:
        times = dict(place.partitions_ms or {})
        wrong = wrong_partitions(times, partitions)
        if wrong:
            raise OptionError(f"option {option}: {wrong}")
    found = {name: Position(offset) for name, (offset, _) in brokers.list_offsets(times).items()}
    late = sorted(name for name, position in found.items() if position.offset < 0)
    if late and not place.latest_if_none:
        raise NoRecordAtTimestamp(
            f"{late[0]} has no record at or after {times[late[0]]}; startingOffsetsByTimestampStrategy=latest would "
            "begin at its end"
        )
    return found | _positions(brokers, dict.fromkeys(late, LATEST))
