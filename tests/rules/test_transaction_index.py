"""``.txnindex``: Kafka's bytes, which entries a reader gets, and its file through the life of a segment."""

from __future__ import annotations

import struct
from random import Random

import pytest
from crc32c import crc32c

from minikafka.config import TopicConfig
from minikafka.log.inspect import dump, verify_log
from minikafka.log.names import offset_name
from minikafka.log.partition_log import PartitionLog
from minikafka.log.transaction_index import BadTransactionIndex, TransactionIndex, parse_transaction_index
from minikafka.log.transactions import AbortedTransaction
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import EndTransaction, marker_batch
from tests.rules.log_words import ORDERS, TIME, fill, in_transaction, open_log
from tests.rules.memory_disk import MemoryDisk, run

ENTRY = AbortedTransaction(4000, 10, 14, 12)
BYTES = bytes.fromhex("00000000000000000fa0000000000000000a000000000000000e000000000000000c")
LARGE = TopicConfig(segment_bytes=1 << 20)
FOLDER = str(ORDERS)


def path(base: int, suffix: str) -> str:
    return f"{FOLDER}/{offset_name(base, suffix)}"


def index_of(*entries: AbortedTransaction) -> TransactionIndex:
    index = TransactionIndex()
    index.entries = list(entries)
    return index


def test_entries_have_kafkas_bytes():
    """The vector of TRANSACTIONS.md."""
    assert index_of(ENTRY).to_bytes() == BYTES
    assert parse_transaction_index(BYTES) == [ENTRY]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (BYTES[:-1], "33 bytes are no whole entries"),
        (b"\0\1" + BYTES[2:], "version 1"),
        (BYTES + BYTES, "do not rise"),
        (bytes(68), "do not rise"),
        (index_of(ENTRY._replace(first_offset=15)).to_bytes(), "15..14 do not rise"),
    ],
)
def test_damaged_index_is_not_believed(data: bytes, why: str):
    """Zeros after a crash, a torn entry: it is rebuilt from the batches."""
    with pytest.raises(BadTransactionIndex, match=why):
        parse_transaction_index(data)


def test_marker_before_the_segment_is_damage():
    """The entry would be another segment's."""
    with pytest.raises(BadTransactionIndex, match="14 lies before the segment"):
        TransactionIndex().load(BYTES, base_offset=15)


def test_empty_file_is_damage():
    """It exposed aborted data: an empty index has no file."""
    with pytest.raises(BadTransactionIndex, match="is empty"):
        TransactionIndex().load(b"", base_offset=0)


def test_readers_get_the_transactions_that_overlap_what_they_read():
    """A9: from the fetch offset on, until everything below the end was decided."""
    index = index_of(AbortedTransaction(1, 0, 5, 2), AbortedTransaction(2, 2, 9, 10), AbortedTransaction(3, 20, 25, 26))
    for offset, end, expected, is_done in (
        (0, 2, [1], True),
        (0, 5, [1, 2], True),
        (0, 6, [1, 2], True),
        (6, 8, [2], True),
        (6, 11, [2], True),
        (9, 30, [2, 3], False),
        (10, 21, [3], True),
        (26, 30, [], False),
    ):
        found: list[AbortedTransaction] = []
        assert index.collect(offset, end, found) == is_done
        assert [entry.producer_id for entry in found] == expected


def abort(log: PartitionLog, producer_id: int = 7) -> None:
    marker = EndTransaction(producer_id, 0, False, 1)
    batch = RecordBatch.of(marker_batch(marker, timestamp_ms=TIME))
    log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME, marker=marker)


def write(log: PartitionLog, sequence: int, producer_id: int = 7) -> None:
    log.append_as_leader(in_transaction(producer_id, sequence, "x"), leader_epoch=0, wall_ms=TIME)


def test_index_lies_beside_the_segment_that_holds_the_marker():
    """And only there; segments without aborted transactions have no file."""
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    log.roll()
    abort(log)
    fill(log, "a")
    log.roll()
    assert not disk.exists(path(0, ".txnindex"))
    assert parse_transaction_index(disk.read_file(path(1, ".txnindex"))) == [(7, 0, 1, 2)]
    assert list(dump(disk, path(1, ".txnindex"))) == [
        {"version": 0, "producerId": 7, "firstOffset": 0, "lastOffset": 1, "lastStableOffset": 2}
    ]


def test_cut_marker_takes_its_entry_along():
    """The transaction is open again, and the file of the segment that was sealed goes when it is sealed anew."""
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    abort(log)
    log.roll()
    fill(log, "a")
    log.truncate_to(1)
    assert log.stable_end(1) == 0
    assert log.aborted_transactions(0, 1) == []
    fill(log, "b")
    run(log.sync())
    log.roll()
    assert not disk.exists(path(0, ".txnindex"))
    assert log.producers.transactions.open == {0: 7}


def test_deleted_segment_takes_its_index_along():
    """As ``.deleted``, with its other files."""
    disk = MemoryDisk()
    log = open_log(disk, TopicConfig(segment_bytes=1 << 20, retention_bytes=1))
    write(log, 0)
    abort(log)
    log.roll()
    fill(log, "a")
    paths = run(log.delete_segments(log.expired_segments(TIME, log.end_offset)))
    assert path(0, ".txnindex.deleted") in paths
    assert log.aborted_transactions(2, 3) == []


def test_leftover_index_of_no_segment_is_removed():
    """A power cut may keep the name of a file whose segment is gone."""
    disk = MemoryDisk()
    fill(open_log(disk, LARGE), "a")
    disk.replace_file(path(9, ".txnindex"), BYTES)
    open_log(disk, LARGE)
    assert not disk.exists(path(9, ".txnindex"))


def reopened(disk: MemoryDisk, *, end: int, watermark: int | None = None) -> PartitionLog:
    return open_log(disk, LARGE, clean=True, recovery_point=end, high_watermark=watermark)


def stopped(log: PartitionLog) -> int:
    log.prepare_close()
    run(log.sync())
    log.close()
    return log.end_offset


def test_what_was_written_and_synced_is_saved_by_a_clean_stop():
    """Without a roll or an unsynced byte the log still is not as it was found: else the index would lack the abort."""
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    log = reopened(disk, end=stopped(log))
    abort(log)
    run(log.sync())
    log = reopened(disk, end=stopped(log))
    assert log.aborted_transactions(0, 1) == [(7, 0, 1, 2)]
    assert log.report.checked_count == 0


def test_damaged_index_of_a_believed_segment_is_rebuilt():
    """From the batches of the segment, and the producers' state at its base."""
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    log.roll()
    abort(log)
    fill(log, "a")
    log.roll()
    write(log, 1)
    end = stopped(log)
    disk.replace_file(path(1, ".txnindex"), bytes(34))
    assert [each.what for each in verify_log(disk, FOLDER) if each.path == path(1, ".txnindex")] == [
        "no marker of producer 0 stands at 0"
    ]
    log = reopened(disk, end=end)
    assert log.aborted_transactions(0, 1) == [(7, 0, 1, 2)]
    assert log.producers.transactions.open == {3: 7}


def test_damaged_snapshot_exposes_no_open_transaction():
    """After a clean stop the only snapshot is damaged. Producers are read from the batches, not taken for unknown: the
    records of an open transaction were readable with ``read_committed``, and a batch that was sent again was appended.
    """
    disk = MemoryDisk()
    log = open_log(disk)
    fill(log, "a")
    sent = in_transaction(7, 0, "b")
    log.append_as_leader(sent, leader_epoch=0, wall_ms=TIME)
    end = stopped(log)
    (snapshot,) = [each for each in disk.inodes if each.endswith(".snapshot")]
    disk.inodes[snapshot].content[-1] ^= 1
    log = reopened(disk, end=end)
    assert log.stable_end(2) == 1
    assert log.append_as_leader(sent, leader_epoch=0, wall_ms=TIME).duplicate


def test_snapshot_above_the_watermark_does_not_expose_what_ended_above_it():
    """A8: Kafka's hole. The snapshot says that nothing is open, but the marker may still be undone."""
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    abort(log)
    log.roll()
    fill(log, "a", "b")
    end = stopped(log)
    log = reopened(disk, end=end, watermark=1)
    assert [log.stable_end(watermark) for watermark in (1, 2, 3)] == [0, 2, 3]
    assert reopened(disk, end=end, watermark=2).stable_end(2) == 2


def test_producer_that_expired_below_its_marker_does_not_expose_the_transaction_after_a_restart():
    """T8: until the marker is committed, only the producer's entry in the snapshot says that a transaction ended."""
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    abort(log)
    fill(log, "a")
    for now_ms in (0, LARGE.producer_id_expiration_ms):
        log.expire_producers(now_ms, high_watermark=1)
    assert log.stable_end(1) == 0
    end = stopped(log)
    for _ in range(2):
        log = reopened(disk, end=end, watermark=1)
        assert [log.stable_end(watermark) for watermark in (1, 2)] == [0, 2]
        assert stopped(log) == end


def test_producer_expires_once_its_marker_is_committed():
    """The other side: a follower that nobody reads learns it from the watermark at the next expiration."""
    log = open_log(MemoryDisk(), LARGE)
    write(log, 0)
    abort(log)
    idle_ms = LARGE.producer_id_expiration_ms
    assert [log.expire_producers(now_ms, high_watermark=1) for now_ms in (0, idle_ms)] == [0, 0]
    assert log.producers.transactions.undecided_producers(1) == {7}
    assert [log.expire_producers(now_ms, high_watermark=2) for now_ms in (2 * idle_ms, 3 * idle_ms)] == [0, 1]
    assert log.producers.transactions.undecided_producers(2) == set()
    assert log.stable_end(2) == 2


# ---- directories of Kafka --------------------------------------------------------------------------------------------


def of_kafka(*, clean: bool) -> MemoryDisk:
    """Offsets: 0 committed, 1 marker; 2 aborted, 3 marker; 4 open. After a clean stop with snapshot and indexes."""
    disk = MemoryDisk()

    def stored(batch: RecordBatch, offset: int) -> bytes:
        return struct.pack(">q", offset) + bytes(batch.data[8:12]) + struct.pack(">i", 3) + bytes(batch.data[16:])

    def marker(offset: int, *, commit: bool) -> bytes:
        return marker_batch(EndTransaction(7, 0, commit, 2), timestamp_ms=TIME, base_offset=offset, leader_epoch=3)

    batches = [
        stored(in_transaction(7, 0, "committed"), 0),
        marker(1, commit=True),
        stored(in_transaction(7, 1, "aborted"), 2),
        marker(3, commit=False),
        stored(in_transaction(7, 2, "open"), 4),
    ]
    disk.replace_file(path(0, ".log"), b"".join(batches))
    if clean:
        entry = struct.pack(">qhiqiqiq", 7, 0, 2, 4, 0, TIME, 2, 4)
        body = struct.pack(">i", 1) + entry
        disk.replace_file(path(5, ".snapshot"), struct.pack(">hI", 1, crc32c(body)) + body)
        disk.replace_file(path(0, ".txnindex"), index_of(AbortedTransaction(7, 2, 3, 4)).to_bytes())
        for suffix in (".index", ".timeindex"):
            disk.replace_file(path(0, suffix), b"")
    return disk


@pytest.mark.parametrize("clean", [True, False])
def test_directory_of_kafka_is_served_rightly(clean: bool):
    """At 62e114e all of it was read; later `read_committed` was refused (issue 13, part 5)."""
    log = open_log(of_kafka(clean=clean), LARGE, clean=clean, recovery_point=5 if clean else 0, high_watermark=5)
    assert log.end_offset == 5
    assert log.stable_end(5) == 4
    assert log.aborted_transactions(0, 4) == [(7, 2, 3, 4)]
    assert log.report.checked_count == (0 if clean else 5)
    (producer,) = log.producers.active()
    assert (producer.last_sequence, producer.coordinator_epoch, producer.current_txn_start_offset) == (2, 2, 4)


def test_verify_finds_nothing_wrong_with_transactions():
    """Batches of transactions are no finding any more."""
    assert [each for each in verify_log(of_kafka(clean=True), FOLDER) if "epoch-checkpoint" not in each.path] == []


def test_dump_shows_an_aborted_transaction():
    """``minikafka log dump --records``: the marker in Kafka's words."""
    rows = list(dump(of_kafka(clean=True), path(0, ".log"), records=True))
    markers = [row for row in rows if "endTxnMarker" in row]
    assert [(row["offset"], row["endTxnMarker"], row["coordinatorEpoch"]) for row in markers] == [
        (1, "COMMIT", 2),
        (3, "ABORT", 2),
    ]


def test_files_of_indexes_are_synced_before_the_recovery_point_passes_them():
    """Else a power cut loses an index, and the segment would be believed without it."""
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    abort(log)
    log.roll()
    fill(log, "a")
    run(log.sync())
    assert log.recovery_point == 3
    disk.power_cut(Random(1))
    assert disk.read_file(path(0, ".txnindex")) == index_of(AbortedTransaction(7, 0, 1, 2)).to_bytes()


def test_missing_index_of_the_segment_in_front_of_the_recovery_point_is_rebuilt():
    """The point may stand at the end of a segment that was sealed since, and whose index a power cut took. A missing
    index is an empty one: the segment must be walked, or readers of committed records get aborted ones.
    """
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    abort(log)
    run(log.sync())
    assert log.recovery_point == 2
    log.roll()
    fill(log, "a")
    assert log.recovery_point == 2
    disk.remove(path(0, ".txnindex"))
    again = open_log(disk, LARGE, recovery_point=2)
    assert again.aborted_transactions(0, 3) == [AbortedTransaction(7, 0, 1, 2)]


def test_an_index_that_was_being_swapped_in_is_missed_also_by_the_start_after_the_next(monkeypatch: pytest.MonkeyPatch):
    """1. Compaction ends before the last index of a segment has its name. 2. A start removes what is left of it, and ends
    before it has rebuilt the index. 3. The next start must not take the missing index for an empty one.
    """
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    write(log, 0)
    abort(log)
    log.roll()
    fill(log, "a")
    run(log.sync())
    disk.replace(path(0, ".txnindex"), path(0, ".txnindex.cleaned"))
    remove = MemoryDisk.remove

    def killed(disk: MemoryDisk, name: str) -> None:
        remove(disk, name)
        if name.endswith(".txnindex.cleaned"):
            raise KeyboardInterrupt

    monkeypatch.setattr(MemoryDisk, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        open_log(disk, LARGE, recovery_point=3)
    monkeypatch.undo()
    again = open_log(disk, LARGE, recovery_point=3)
    assert again.aborted_transactions(0, 3) == [AbortedTransaction(7, 0, 1, 2)]


def test_a_cut_behind_a_snapshot_does_not_expose_a_transaction_whose_marker_is_not_committed():
    """The replay begins with the snapshot, which says that nothing is open."""
    log = open_log(MemoryDisk(), LARGE)
    write(log, 0)
    abort(log)
    log.roll()
    fill(log, "a", "b")
    assert log.stable_end(1) == 0
    log.truncate_to(3)
    assert [log.stable_end(watermark) for watermark in (1, 2, 3)] == [0, 2, 3]
