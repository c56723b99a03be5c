"""Open transactions whose first records retention or DeleteRecords has removed: as in Kafka, the high watermark limits."""

from __future__ import annotations

import pytest

from minikafka.config import TopicConfig
from minikafka.log.partition_log import PartitionLog
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import EndTransaction, marker_batch
from tests.rules.cleaned_histories import visible
from tests.rules.log_words import TIME, fill, in_transaction, open_log
from tests.rules.memory_disk import MemoryDisk, run


def opened(disk: MemoryDisk) -> PartitionLog:
    """A transaction open since offset 1, with one record; seven records follow in later segments."""
    log = open_log(disk)
    fill(log, "before")
    log.append_as_leader(in_transaction(7, 0, "open"), leader_epoch=0, wall_ms=TIME)
    for number in range(7):
        log.roll()
        fill(log, f"{number}")
    return log


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_open_transaction_survives_the_deletion_of_its_records(commit: bool, clean: bool):
    """The last stable offset is then the log's start; after a restart too. The marker ends the transaction."""
    disk = MemoryDisk()
    log = opened(disk)
    assert log.stable_end(log.end_offset) == 1
    assert log.raise_start(5)
    assert log.stable_end(log.end_offset) == log.start_offset == 5
    run(log.sync())
    if clean:
        log.prepare_close()
        run(log.sync())
    log = open_log(disk, clean=clean, recovery_point=log.recovery_point, start_offset=5)
    end(log, commit=commit)
    assert log.stable_end(log.end_offset) == log.end_offset == 10


def test_retention_goes_up_to_the_high_watermark_past_the_last_stable_offset():
    """As in Kafka: the head of an open transaction goes with its segment; nothing at or above the watermark does."""
    disk = MemoryDisk()
    log = opened(disk)
    log.config = TopicConfig(segment_bytes=400, retention_bytes=1)
    assert [segment.base_offset for segment in log.expired_segments(TIME, 4)] == [0, 2, 3]
    run(log.delete_segments(log.expired_segments(TIME, 4)))
    assert (log.start_offset, log.stable_end(4), log.stable_end(9)) == (4, 4, 4)
    assert log.producers.transactions.open == {1: 7}
    assert log.producers.last_sequences() == {7: (0, 0)}


@pytest.mark.parametrize("clean", [True, False])
def test_state_of_a_producer_survives_the_deletion_of_its_segments(clean: bool):
    """From the snapshots of later segments: the sequence goes on, and the marker ends what nobody can read any more."""
    disk = MemoryDisk()
    log = opened(disk)
    log.config = TopicConfig(segment_bytes=400, retention_bytes=1)
    run(log.sync())
    run(log.delete_segments(log.expired_segments(TIME, 6)))
    if clean:
        log.prepare_close()
        run(log.sync())
    log = open_log(disk, clean=clean, recovery_point=log.recovery_point, start_offset=6, high_watermark=9)
    assert log.producers.transactions.open == {1: 7}
    log.append_as_leader(in_transaction(7, 1, "more"), leader_epoch=0, wall_ms=TIME)
    end(log, commit=False)
    assert log.stable_end(log.end_offset) == log.end_offset == 11
    assert committed_values(log, 6) == ["4", "5", "6"]


@pytest.mark.parametrize("high_watermark", [2, 5])
def test_state_of_a_producer_survives_a_checkpointed_watermark_below_the_log_start(high_watermark: int):
    """The watermark's checkpoint may be older than the start's: everything below the start was committed all the same,
    and a snapshot below it is gone. A producer that was forgotten with it could write a batch twice.
    """
    disk = MemoryDisk()
    log = open_log(disk)
    log.append_as_leader(in_transaction(7, 0, "a"), leader_epoch=0, wall_ms=TIME)
    end(log, commit=True)
    for number in range(5):
        log.roll()
        fill(log, f"{number}")
    log.config = TopicConfig(segment_bytes=400, retention_bytes=1)
    run(log.sync())
    run(log.delete_segments(log.expired_segments(TIME, 5)))
    assert log.start_offset == 5
    log = open_log(
        disk, recovery_point=log.recovery_point, start_offset=log.start_offset, high_watermark=high_watermark
    )
    assert log.producers.last_sequences() == {7: (0, 0)}


def test_deleted_segments_take_their_aborted_transactions_along_and_no_others():
    """The entry of an aborted transaction lies with its marker: it serves what is left of the data."""
    disk = MemoryDisk()
    log = open_log(disk)
    log.append_as_leader(in_transaction(7, 0, "a"), leader_epoch=0, wall_ms=TIME)
    end(log, commit=False)
    log.append_as_leader(in_transaction(7, 1, "b"), leader_epoch=0, wall_ms=TIME)
    log.roll()
    log.append_as_leader(in_transaction(7, 2, "c"), leader_epoch=0, wall_ms=TIME)
    fill(log, "plain")
    log.roll()
    end(log, commit=False)
    log.raise_start(3)
    paths = run(log.delete_segments(log.expired_segments(TIME, 6)))
    assert [path for path in paths if ".txnindex" in path] == ["orders-0/00000000000000000000.txnindex.deleted"]
    assert log.aborted_transactions(3, 6) == [(7, 2, 5, 6)]
    assert committed_values(log, 3) == ["plain"]


def test_delete_records_into_an_aborted_transaction_leaves_the_rest_of_it_aborted():
    """The start lies within the segment and within the transaction; after a recovery from the batches too."""
    disk = MemoryDisk()
    log = open_log(disk, TopicConfig())
    for sequence, value in enumerate("abc"):
        log.append_as_leader(in_transaction(7, sequence, value), leader_epoch=0, wall_ms=TIME)
    fill(log, "plain")
    end(log, commit=False)
    assert log.raise_start(1)
    assert committed_values(log, 1) == ["plain"]
    run(log.sync())
    log = open_log(disk, TopicConfig(), recovery_point=0, start_offset=1, high_watermark=5)
    assert (log.stable_end(5), committed_values(log, 1), committed_values(log, 2)) == (5, ["plain"], ["plain"])


def test_compaction_and_deletion_of_an_open_transaction():
    """``compact,delete``: with its head deleted, compaction still stops before what is left of it."""
    disk = MemoryDisk()
    log = open_log(disk, TopicConfig(cleanup_policy="compact,delete", segment_bytes=400))
    fill(log, "before")
    log.append_as_leader(in_transaction(7, 0, "open"), leader_epoch=0, wall_ms=TIME)
    log.roll()
    log.append_as_leader(in_transaction(7, 1, "open"), leader_epoch=0, wall_ms=TIME)
    log.roll()
    fill(log, "after")
    log.roll()
    run(log.sync())
    log.raise_start(2)
    run(log.delete_segments(log.expired_segments(TIME, 4)))
    assert log.start_offset == 2
    assert log.dirty_range(high_watermark=4, now_ms=TIME).dirty_bytes == 0
    end(log, commit=False)
    log.roll()
    run(log.sync())
    assert log.dirty_range(high_watermark=5, now_ms=TIME).first_uncleanable == 5


def end(log: PartitionLog, *, commit: bool) -> None:
    marker = EndTransaction(7, 0, commit, 0)
    batch = RecordBatch.of(marker_batch(marker, timestamp_ms=TIME))
    log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME, marker=marker)


def committed_values(log: PartitionLog, start: int) -> list[str]:
    """What a consumer with ``read_committed`` reads from ``start`` on."""
    found = visible(log, log.stable_end(log.end_offset), start=start)
    return [value or "" for _, value in found.values()]
