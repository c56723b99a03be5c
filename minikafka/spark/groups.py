"""A consumer group beside a query: where it begins (``startingOffsets=committed``) and which offsets it commits.

With ``commitGroup=G`` the offsets of finished batches are committed to the group G, so that lag monitors see
the job. The checkpoint stays the only memory of the query: what is committed decides nothing but where a *new* query
begins.

Rules for this file:

1. A batch is committed when Spark says that it is done, never before.
2. A query commits without being a member: a group that has members, or has another query, is not fought over.
   A group with members is refused by name (:class:`CommitRefused`).
3. A coordinator that does not answer in COMMIT_TIMEOUT_S is no reason to stop: the next batch commits all again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from minikafka.blocking.brokers import Brokers, BrokersUnreachable
from minikafka.blocking.coordinators import Coordinator
from minikafka.errors import ProtocolError, UnknownTopicOrPartition
from minikafka.spark.offsets import Position
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
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
