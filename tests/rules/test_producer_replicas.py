"""Bugs planted in rules of producers and transactions, which the histories of two replicas must catch (KIP-98).

``tests/sim/test_histories.py`` plays fresh seeds of what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minikafka.log import producer_state, recovery
from minikafka.log.compaction import BatchFilter, CleanedTransactions
from minikafka.log.partition_log import PartitionLog
from minikafka.log.producer_state import ProducerState
from minikafka.log.segment_store import SegmentStore
from minikafka.log.transactions import OpenTransactions
from tests.rules.producer_replicas import STEPS, ProducerReplicas
from tests.sim import planted_transaction_logs as planted
from tests.sim.planted_compaction import (
    every_key_counts,
    kept_snapshots,
    nobody_sends,
    none_is_remembered,
    watermark_itself,
)


def none_is_a_duplicate(*_: object) -> None:
    return None


def any_marker_fits(*_: object) -> None:
    return None


def no_time(_: BatchFilter, now_ms: int) -> int:
    return now_ms


async def not_kept(*_: object) -> None:
    return None


BUGS: dict[str, tuple[int, Any, str, Any]] = {
    "a batch that was appended is appended again": (2, producer_state, "_duplicate_of", none_is_a_duplicate),
    "a late marker ends the next transaction": (3, ProducerState, "check_marker", any_marker_fits),
    "a snapshot does not say which transactions are open": (
        *(1, ProducerState, "to_snapshot"),
        planted.without_open_ones(ProducerState.to_snapshot),
    ),
    "followers do not index aborted transactions": (
        *(0, PartitionLog, "_write_set"),
        planted.leaders_index_only(PartitionLog._write_set),
    ),
    "the transaction index is not rebuilt": (
        *(0, recovery, "replay_producers"),
        planted.index_not_rebuilt(recovery.replay_producers),
    ),
    "aborted transactions that began before the fetch are left out": (
        *(0, PartitionLog, "aborted_transactions"),
        planted.begun_behind_the_fetch(PartitionLog.aborted_transactions),
    ),
    "an uncommitted marker ends a transaction": (0, OpenTransactions, "end", planted.ended_at_once),
    "the last stable offset is the watermark": (0, PartitionLog, "stable_end", watermark_itself),
    "aborted records replace committed ones": (2, BatchFilter, "take", every_key_counts),
    "a marker goes with its data": (3, CleanedTransactions, "marker_read", nobody_sends),
    "a marker does not wait for delete.retention.ms": (10, BatchFilter, "_horizon", no_time),
    "nothing is left of a producer's last batch": (1, ProducerState, "last_offset_before", none_is_remembered),
    "the marker that began a producer's epoch goes": (12, ProducerState, "is_last_marker", nobody_sends),
    "segments go before a snapshot of the producers is durable": (4, PartitionLog, "_keep_producers", not_kept),
    "the snapshot at the log's beginning goes with a marker": (45, SegmentStore, "first_snapshot", none_is_remembered),
    "a snapshot from before a marker that is gone stays": (45, SegmentStore, "remove_snapshots", kept_snapshots),
}
"""What goes wrong: the first seed that shows it, and what is replaced."""
SEEDS_MAX = 60


def fails(seed: int) -> bool:
    try:
        ProducerReplicas(seed).play(STEPS)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(("seed", "owner", "name", "replacement"), BUGS.values(), ids=BUGS)
def test_bugs_of_producers_and_transactions_are_caught(
    monkeypatch: pytest.MonkeyPatch, seed: int, owner: Any, name: str, replacement: Callable[..., Any]
) -> None:
    """A seed fails with the bug, and passes without it: the recorded one, or after a change of the histories another."""
    monkeypatch.setattr(owner, name, replacement)
    found = next((each for each in (seed, *range(SEEDS_MAX)) if fails(each)), None)
    assert found is not None
    monkeypatch.undo()
    ProducerReplicas(found).play(STEPS)
