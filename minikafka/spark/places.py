"""Where a query begins and ends: words, offsets and timestamps turned into offsets by asking the brokers.

A query may begin where a consumer group stands (``startingOffsets=committed``). With ``commitGroup=G`` the offsets of
finished batches are committed to the group G, so that lag monitors see the job. The checkpoint stays the only memory
of the query: what is committed decides nothing but where a *new* query begins.

Rules for this file:

1. A batch is committed when Spark says that it is done, never before.
2. A query commits without being a member: a group that has members, or has another query, is not fought over.
   A group with members is refused by name (:class:`CommitRefused`).
3. A coordinator that does not answer in COMMIT_TIMEOUT_S is no reason to stop: the next batch commits all again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minikafka.blocking.brokers import Brokers, BrokersUnreachable, Topic
from minikafka.blocking.coordinators import Coordinator
from minikafka.errors import ProtocolError, UnknownTopicOrPartition
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
from minikafka.wire import group_messages as g
from minikafka.wire.messages import EARLIEST, LATEST
from minikafka.wire.outcomes import error_in

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
        asked = tuple(g.GroupPartition(topic=each.topic, partition=each.partition) for each in partitions)
        response: g.OffsetFetchResponse = self._coordinator.ask(
            f"asking for the offsets of group {self.name}",
            g.OffsetFetchRequest(group_id=self.name, partitions=asked),
            error_of=_error_of_offsets,
        )
        return {
            TopicPartition(each.topic, each.partition): Position(each.offset, each.leader_epoch)
            for each in response.partitions
            if each.offset >= 0
        }

    def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Tell the group how far the query is. CommitRefused; an absent coordinator is a warning in the log."""
        request = g.OffsetCommitRequest(
            group_id=self.name,
            partitions=tuple(
                g.CommitPartition(
                    topic=name.topic, partition=name.partition, offset=each.offset, leader_epoch=each.epoch
                )
                for name, each in sorted(positions.items())
            ),
        )
        try:
            self._coordinator.ask(
                f"committing to group {self.name}", request, error_of=_error_of_offsets, timeout_s=COMMIT_TIMEOUT_S
            )
        except BrokersUnreachable as absent:
            LOGGER.warning("group %s shows an older place of this query: %s", self.name, absent)
        except ProtocolError as error:
            raise CommitRefused(
                f"commitGroup={self.name}: {error.name}: {error.message}; give the query a group of its own"
            ) from error


def _error_of_offsets(response: Any) -> ProtocolError | None:
    errors = (error_in(each) for each in response.partitions)
    # A topic that is gone has no place to tell of.
    return next((each for each in errors if each is not None and not isinstance(each, UnknownTopicOrPartition)), None)


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
