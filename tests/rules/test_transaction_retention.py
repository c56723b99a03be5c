"""Open transactions whose first records retention or DeleteRecords has removed: as in Kafka, the high watermark limits."""

from __future__ import annotations

import pytest

from minikafka.log.partition_log import PartitionLog
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import EndTransaction, marker_batch
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
    marker = EndTransaction(7, 0, commit, 0)
    batch = RecordBatch.of(marker_batch(marker, timestamp_ms=TIME))
    log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME, marker=marker)
    assert log.stable_end(log.end_offset) == log.end_offset == 10
