"""Where a query begins and ends: words, offsets and timestamps turned into offsets by asking the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minikafka.blocking.brokers import Brokers, Topic
from minikafka.spark.groups import Group, NothingCommitted
from minikafka.spark.offsets import Position, StreamOffset
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
from minikafka.spark.plan import wrong_partitions
from minikafka.types import NO_EPOCH, TopicId, TopicPartition
from minikafka.wire.messages import EARLIEST, LATEST


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
        """Is everything there that the checkpoint names, and still the same?"""
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
    found = _present(selection, brokers.topics(selection.named_topics, certain=True))
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
