"""Planted bugs of log compaction: each takes one small rule away (KAFKA-FACTS 1.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka.log import cleaner, compaction, recovery
from minikafka.log.cleaner import SegmentSwap
from minikafka.log.compaction import BatchFilter, CleanedTransactions, DirtyRange
from minikafka.log.epochs import EpochCache
from minikafka.log.partition_log import PartitionLog
from minikafka.log.producer_state import ProducerState
from minikafka.log.segment_store import SegmentStore
from minikafka.wire.batch import RecordBatch
from minikafka.wire.rewrite import RecordSlice, slices
from tests.rules.test_cleaner import (
    test_a_cut_into_a_swap_that_is_not_durable_restores_the_old_segments as old_segments_are_restored,
)
from tests.rules.test_cleaner import (
    test_a_new_segment_is_on_disk_before_it_takes_the_old_ones_place as new_segment_is_synced_first,
)
from tests.rules.test_cleaner import test_a_producer_goes_on_after_its_records_are_gone as producer_goes_on
from tests.rules.test_cleaner import (
    test_a_tail_of_five_batches_does_not_hide_the_last_one_below as tail_of_five_batches,
)
from tests.rules.test_cleaner import (
    test_epochs_begin_where_they_began_for_whoever_has_only_the_batches as epochs_are_in_the_batches,
)
from tests.rules.test_cleaner import (
    test_nothing_at_or_above_the_high_watermark_is_touched as nothing_above_the_watermark,
)
from tests.rules.test_cleaner import test_nothing_unsynced_makes_a_synced_value_go as nothing_unsynced_counts
from tests.rules.test_cleaner import (
    test_the_end_of_the_log_survives_when_its_last_batch_is_emptied as end_of_the_log_survives,
)
from tests.rules.test_cleaner import test_tombstones_go_after_their_time as tombstones_go_after_their_time
from tests.rules.test_cleaner_transactions import (
    test_a_marker_stays_for_its_data_and_then_for_delete_retention as a_marker_stays_for_its_data,
)
from tests.rules.test_cleaner_transactions import (
    test_a_snapshot_does_not_bring_back_a_transaction_whose_marker_is_gone as snapshot_does_not_bring_it_back,
)
from tests.rules.test_cleaner_transactions import (
    test_aborted_records_go_and_replace_nothing as aborted_records_replace_nothing,
)
from tests.rules.test_cleaner_transactions import (
    test_nothing_at_or_above_the_last_stable_offset_is_cleaned as nothing_above_the_stable_offset,
)
from tests.rules.test_log_holes import (
    test_a_lost_end_of_a_sealed_segment_is_no_gap as a_lost_end_is_no_gap,
)
from tests.rules.test_log_holes import (
    test_no_segment_with_gaps_is_sealed_before_the_marker_is_durable as marker_is_durable_first,
)
from tests.sim.bug import Bug


def up_to_the_end(original: Callable[..., DirtyRange]) -> Callable[..., DirtyRange]:
    def dirty_range(self: PartitionLog, *, high_watermark: int, now_ms: int) -> DirtyRange:
        return original(self, high_watermark=self.synced_end, now_ms=now_ms)

    return dirty_range


class NothingIsUnsynced:
    """The log says that all of it is durable."""

    def __get__(self, log: PartitionLog, owner: object) -> int:
        return log.end_offset


def values_only(original: Callable[..., bool]) -> Callable[..., bool]:
    def stays(record: RecordSlice, batch: RecordBatch, *rest: Any, **options: Any) -> bool:
        return record.has_value and original(record, batch, *rest, **options)

    return stays


def nobody_sends(*_: object) -> bool:
    return False


def none_is_remembered(*_: object) -> None:
    return None


def only_what_is_remembered(self: BatchFilter, batch: RecordBatch) -> bool:
    remembered = self._producers.last_offset_before(batch.producer_id, self._first_uncleanable)
    return self._epochs.begins(batch.leader_epoch, batch.base_offset) or remembered == batch.last_offset


def every_key_counts(self: BatchFilter, batch: RecordBatch) -> bool:
    return self.offsets.take(batch, () if batch.is_control else slices(batch))


def kept_snapshots(*_: object) -> None:
    return None


def watermark_itself(_: PartitionLog, high_watermark: int) -> int:
    return high_watermark


def any_hole_of_a_log_with_gaps(self: Any, before: int, number: int) -> bool:
    return bool(self.gaps)


def never_waits(self: PartitionLog) -> None:
    self.has_gaps = True


def header_of_nothing(batch: RecordBatch) -> bytes:
    return b""


def last_may_go(original: Callable[..., None]) -> Callable[..., None]:
    """An emptied batch is not written."""

    def append(self: Any, segment: Any, data: bytes) -> None:
        if data:
            original(self, segment, data)

    return append


async def indexes_only(self: SegmentSwap) -> None:
    """The log file's sync is left out."""
    for path in self.cleaned.index_paths:
        file = self._disk.open(path + ".cleaned")
        await file.sync()
        file.close()


def finished_at_once(self: SegmentStore) -> None:
    """Finish a swap whether its new name is durable or not."""
    self.rename_swap()
    self.finish_swap()


def _bug(name: str, story: str, told_in: Callable[[], None], *patches: tuple[Any, str, Any], source: str = "") -> Bug:
    return Bug(
        name=name,
        source=source or "ours",
        area="compaction",
        story=story,
        patches=patches,
        ground="drill",
        told_in=told_in,
    )


COMPACTION: tuple[Bug, ...] = (
    _bug(
        "cleaner_passes_the_watermark",
        "compaction lets a value go for one that is not committed yet (S2)",
        nothing_above_the_watermark,
        (PartitionLog, "dirty_range", up_to_the_end(PartitionLog.dirty_range)),
    ),
    _bug(
        "cleaner_counts_what_is_not_synced",
        "compaction lets a synced value go for one that a power cut may take",
        nothing_unsynced_counts,
        (PartitionLog, "synced_end", NothingIsUnsynced()),
    ),
    _bug(
        "tombstones_go_at_once",
        "the first cleaning drops tombstones: who reads slowly never hears of the deletion",
        tombstones_go_after_their_time,
        (compaction, "stays", values_only(compaction.stays)),
        source="KIP-534",
    ),
    _bug(
        "last_sequence_is_cleaned_away",
        "nothing is left of a producer's last batch: its repetition is written a second time",
        producer_goes_on,
        (ProducerState, "last_offset_before", none_is_remembered),
    ),
    _bug(
        "last_sequence_forgotten_behind_a_tail",
        "what is remembered of a producer may all be cut off: its last committed batch is cleaned away before",
        tail_of_five_batches,
        (BatchFilter, "_stays_empty", only_what_is_remembered),
    ),
    _bug(
        "end_of_the_log_is_cleaned_away",
        "the last batch goes with its records, and the log's end with it",
        end_of_the_log_survives,
        (cleaner, "emptied", header_of_nothing),
        (cleaner.Cleaner, "_append", last_may_go(cleaner.Cleaner._append)),
        source="KAFKA-17076",
    ),
    _bug(
        "epoch_start_is_cleaned_away",
        "the batch that begins an epoch goes: a copy believes that the epoch before it ended later (S21)",
        epochs_are_in_the_batches,
        (EpochCache, "begins", nobody_sends),
        source="KIP-279",
    ),
    _bug(
        "swap_before_sync",
        "the new segment takes the old ones' place before its bytes are on disk",
        new_segment_is_synced_first,
        (SegmentSwap, "_write_out", indexes_only),
    ),
    _bug(
        "cut_before_the_swap_is_durable",
        "a cut removes the old segments while a power cut can still take the name of the new one",
        old_segments_are_restored,
        (SegmentStore, "leave_swap", finished_at_once),
    ),
    _bug(
        "cleaner_passes_the_last_stable_offset",
        "a committed value goes for one of an open transaction, which is then aborted",
        nothing_above_the_stable_offset,
        (PartitionLog, "stable_end", watermark_itself),
        source="KIP-98",
    ),
    _bug(
        "aborted_keys_replace",
        "the map of keys holds those of aborted transactions: a committed value goes for a record that nobody may read",
        aborted_records_replace_nothing,
        (BatchFilter, "take", every_key_counts),
        source="KIP-98",
    ),
    _bug(
        "marker_goes_with_its_data",
        "a marker does not wait for the round after its data: a crash or a slow follower is left with data without an end",
        a_marker_stays_for_its_data,
        (CleanedTransactions, "marker_read", nobody_sends),
        source="KAFKA-8522",
    ),
    _bug(
        "snapshot_reopens_a_transaction",
        "a producer snapshot from before a removed marker is believed: the last stable offset never moves again",
        snapshot_does_not_bring_it_back,
        (SegmentStore, "remove_snapshots", kept_snapshots),
    ),
    _bug(
        "lost_segment_looks_compacted",
        "a log with gaps is opened behind a segment that the power took (ours, found by seed 950002627)",
        a_lost_end_is_no_gap,
        (recovery._Loader, "_is_left_out", any_hole_of_a_log_with_gaps),
    ),
    _bug(
        "marker_of_gaps_not_awaited",
        "a segment with gaps is sealed, and the power can take the marker that says where holes are explained",
        marker_is_durable_first,
        (PartitionLog, "_wait_for_gaps_marker", never_waits),
    ),
)
"""Told by directed tests: a rule of the log plays alone."""
