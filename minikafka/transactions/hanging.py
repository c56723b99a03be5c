"""Hanging transactions: open in a partition, and unknown to every coordinator (KIP-664).

Nothing ends such a transaction, and the last stable offset of its partition stands still. A coordinator sends a marker
to each partition of a transaction before it forgets the partition, and a producer's partition is committed in
``__transaction_state`` before its first batch. A transaction hangs if it was open in the partition before the
coordinators did not know it, and is still open after that: both observations of the partition are needed, because a
transaction that has just ended is unknown to the coordinators too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from minikafka.types import Epoch, Offset, TopicPartition


class OpenTransaction(NamedTuple):
    """An open transaction as the leader of one partition knows it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: Epoch
    """Of the producer's last marker in this partition; -1: there was none."""
    start_offset: Offset
    last_timestamp: int
    """Of the producer's last batch."""


def suspects(
    found: Iterable[OpenTransaction],
    known: Mapping[int, Collection[TopicPartition]],
    *,
    now_ms: int,
    older_than_ms: int,
) -> list[OpenTransaction]:
    """Return the transactions that no coordinator will end, without a batch for ``older_than_ms``.

    Args:
        found: Observed before ``known``.
        known: Partitions of each producer's transaction, as the coordinators know them.
        now_ms: Wall clock.
        older_than_ms: Age of the last batch from which on a transaction is suspect.
    """
    return [
        each
        for each in found
        if now_ms - each.last_timestamp >= older_than_ms and each.partition not in known.get(each.producer_id, ())
    ]


def still_open(suspected: Iterable[OpenTransaction], found: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """Return the suspects that a later observation of their partitions still shows."""
    later = {(each.partition, each.producer_id, each.start_offset) for each in found}
    return [each for each in suspected if (each.partition, each.producer_id, each.start_offset) in later]
