"""Bugs of transactions in a partition's log: the last stable offset, producer state, the index of aborted ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from minikafka.broker.api import fetch as fetch_api
from minikafka.log import recovery
from minikafka.log.partition_log import PartitionLog
from minikafka.log.producer_state import ProducerState
from minikafka.log.transactions import OpenTransactions
from minikafka.replication.leader import LeaderReplica
from minikafka.types import NO_OFFSET, Offset
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import TRANSACTION_V2, EndTransaction
from tests.sim.planted_transactions import family, held_open, struck

# ---- the last stable offset ------------------------------------------------------------------------------------------


def of_its_own_epoch(self: LeaderReplica) -> Offset:
    """Transactions that began under an earlier leader hold nothing."""
    transactions = self.log.producers.transactions
    kept = transactions._open
    transactions._open = OrderedDict((first, each) for first, each in kept.items() if first >= self.epoch_start)
    try:
        return self.log.stable_end(self.high_watermark)
    finally:
        transactions._open = kept


def ended_at_once(self: OpenTransactions, first_offset: Offset, marker_offset: Offset) -> Offset:
    """A marker counts as soon as the leader has appended it."""
    self._open.pop(first_offset)
    return next(iter(self._open), marker_offset + 1)


class _ToTheWatermark:
    """A leader that takes the high watermark for the last stable offset."""

    def __init__(self, leader: LeaderReplica) -> None:
        self._leader = leader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leader, "high_watermark" if name == "last_stable_offset" else name)


def to_the_watermark(original: Callable[..., Any]) -> Callable[..., Any]:
    """Readers of committed records get records up to the high watermark."""

    def read(*given: Any) -> Any:
        replicas, item, partition, leader, *rest = given
        return original(replicas, item, partition, _ToTheWatermark(leader), *rest)

    return read


# ---- producer state --------------------------------------------------------------------------------------------------


def without_open_ones(original: Callable[[ProducerState], bytes]) -> Callable[[ProducerState], bytes]:
    def to_snapshot(self: ProducerState) -> bytes:
        starts = [(each, each.transaction_start) for each in self._producers.values()]
        for each, _ in starts:
            each.transaction_start = NO_OFFSET
        try:
            return original(self)
        finally:
            for each, start in starts:
                each.transaction_start = start

    return to_snapshot


def repeated_markers_refused(original: Callable[[ProducerState, EndTransaction], None]) -> Callable[..., None]:
    def check_marker(self: ProducerState, marker: EndTransaction) -> None:
        known = self._producers.get(marker.producer_id)
        is_known = known is not None and known.epoch == marker.producer_epoch
        is_late = is_known and marker.transaction_version >= TRANSACTION_V2
        original(self, marker._replace(producer_epoch=marker.producer_epoch - 1) if is_late else marker)

    return check_marker


# ---- aborted transactions --------------------------------------------------------------------------------------------


def leaders_index_only(original: Callable[..., None]) -> Callable[..., None]:
    def write(self: PartitionLog, batches: list[RecordBatch], size: int) -> None:
        entries = self._store.active.transactions.entries
        count = len(entries)
        original(self, batches, size)
        del entries[count:]

    return write


def index_not_rebuilt(original: Callable[..., None]) -> Callable[..., None]:
    def replay(*given: Any, **options: Any) -> None:
        original(*given, **{**options, "unindexed": ()})

    return replay


def begun_behind_the_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
    def aborted(self: PartitionLog, offset: Offset, end_offset: Offset) -> Any:
        return [each for each in original(self, offset, end_offset) if each.first_offset >= offset]

    return aborted


STABLE = ("last_stable_offset", "open_transactions_differ")
READ = ("aborted_read", "precommitted_read", "read_twice", "read_committed_differs")

TRANSACTION_LOG_CLUSTERS = (
    held_open(
        name="stable_offset_forgets_former_leaders",
        story="a new leader's last stable offset moves past transactions that were open when it was elected",
        caught_by=STABLE,
        patches=[(LeaderReplica, "last_stable_offset", property(of_its_own_epoch))],
        seed=1,
    ),
    family(
        name="uncommitted_markers_end_transactions",
        story="the last stable offset moves past a transaction whose marker only the leader has (KAFKA-5121)",
        caught_by=STABLE,
        patches=[(OpenTransactions, "end", ended_at_once)],
    ),
    family(
        name="committed_readers_read_to_the_watermark",
        story="a fetch of committed records is bounded by the high watermark (KAFKA-9807)",
        caught_by=READ,
        patches=[(fetch_api, "_read_as_consumer", to_the_watermark(fetch_api._read_as_consumer))],
        seed=1,
    ),
    held_open(
        name="snapshots_forget_open_transactions",
        story="a snapshot of producer state does not say which transactions are open (KAFKA-12153)",
        caught_by=STABLE,
        patches=[(ProducerState, "to_snapshot", without_open_ones(ProducerState.to_snapshot))],
        seed=7,
    ),
    struck(
        name="repeated_markers_are_refused",
        story="a marker that was written, and whose answer was lost, is refused as one of an old epoch (KAFKA-19999)",
        caught_by=("not_converged",),
        patches=[(ProducerState, "check_marker", repeated_markers_refused(ProducerState.check_marker))],
        seed=6,
    ),
    family(
        name="followers_do_not_index_aborts",
        story="only the leader that appends an abort marker indexes it: its successor serves aborted records",
        caught_by=READ,
        patches=[(PartitionLog, "_write_set", leaders_index_only(PartitionLog._write_set))],
        seed=11,
    ),
    family(
        name="transaction_index_not_rebuilt",
        story="after a crash the index of aborted transactions is not rebuilt from the log",
        caught_by=READ,
        patches=[(recovery, "replay_producers", index_not_rebuilt(recovery.replay_producers))],
        seed=4,
    ),
    family(
        name="aborts_before_the_fetch_left_out",
        story="a fetch does not name aborted transactions that began before its offset",
        caught_by=READ,
        patches=[(PartitionLog, "aborted_transactions", begun_behind_the_fetch(PartitionLog.aborted_transactions))],
        seed=5,
    ),
)
