"""What stands in a data directory, and what is wrong with it: behind ``minikafka log dump`` and ``log verify``.

Rules for this file: it only reads; it gives plain rows (JSON values) and findings, and never stops at the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from minikafka.errors import ProtocolError
from minikafka.log.checkpoint import (
    BadCheckpoint,
    parse_epochs,
    parse_holes_end,
    parse_offsets,
    parse_partition_metadata,
)
from minikafka.log.epochs import EpochCache
from minikafka.log.names import (
    GAPS,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START_OFFSET_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_name,
    offset_of,
    offsets_in,
    partition_of,
)
from minikafka.log.producer_state import BadSnapshot, parse_snapshot
from minikafka.log.scan import Damage, scan
from minikafka.log.segment import RELATIVE_MAX, OffsetIndex, TimeIndex
from minikafka.log.transaction_index import BadTransactionIndex, parse_transaction_index
from minikafka.ports import Disk
from minikafka.types import METADATA_PARTITION, NO_EPOCH, Epoch, Offset, TopicPartition
from minikafka.wire.batch import CODEC_NAMES, RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.records import control_type_of, decode_batch

Row = dict[str, Any]

_NO_DATA = memoryview(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    path: str
    position: int | None
    """Byte in the file, or line for text files; None: the file as a whole."""
    what: str

    def __str__(self) -> str:
        at = "" if self.position is None else f" at {self.position}"
        return f"{self.path}{at}: {self.what}"


# ------------------------------------------------------------------------------------------------- dump


def dump(disk: Disk, path: str, *, records: bool = False) -> Iterator[Row]:
    """Rows of one file, chosen by its name: ``.log``, ``.index``, ``.timeindex``, ``.txnindex``, ``.snapshot``
    or a text checkpoint.

    Of a ``.log`` one row per batch, with ``records`` also one per record. Damage is a row with the key ``error``.
    FileNotFoundError when there is no such file; ValueError for a name that it does not know.
    """
    name = path.rpartition("/")[2]
    for suffix, rows in (
        (INDEX, _dump_index),
        (TIME_INDEX, _dump_time_index),
        (TRANSACTION_INDEX, _dump_transaction_index),
        (SNAPSHOT, _dump_snapshot),
    ):
        base = offset_of(name, suffix)
        if base is not None:
            return _unless_bad(rows(base, disk.read_file(path)))
    base = offset_of(name, LOG)
    if base is not None:
        if not disk.exists(path):
            raise FileNotFoundError(path)
        return _dump_log(disk, path, base, records=records)
    if name == LEADER_EPOCH_CHECKPOINT:
        return _unless_bad(_dump_epochs(disk.read_file(path)))
    if name in {LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT}:
        return _unless_bad(_dump_offsets(disk.read_file(path)))
    raise ValueError(f"{path}: not a log, index, snapshot or checkpoint file")


def _unless_bad(rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of a small file; one with the reason if it cannot be believed."""
    try:
        yield from rows
    except (BadCheckpoint, BadSnapshot, BadTransactionIndex) as error:
        yield {"error": str(error)}


def _batches(disk: Disk, path: str, base: Offset, epoch: Epoch = NO_EPOCH) -> Iterator[tuple[int, RecordBatch]]:
    """As :func:`scan`, of a whole segment; ``epoch``: of the batch before it."""
    with closing(disk.open(path)) as file:
        yield from scan(
            file, size=file.size(), first_offset=base, last_offset_max=base + RELATIVE_MAX, epoch=epoch, gaps=True
        )


def batch_row(position: int, batch: RecordBatch) -> Row:
    """A batch's header in Kafka's words."""
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "position": position,
        "maxTimestamp": batch.max_timestamp,
        "timestampType": ("CreateTime", "LogAppendTime")[batch.timestamp_type],
        "size": batch.size,
        "magic": batch.magic,
        "compresscodec": CODEC_NAMES[batch.codec] if batch.codec < len(CODEC_NAMES) else str(batch.codec),
        "crc": batch.crc,
    }


def _dump_log(disk: Disk, path: str, base: Offset, *, records: bool) -> Iterator[Row]:
    try:
        for position, batch in _batches(disk, path, base):
            yield batch_row(position, batch)
            if records:
                yield from _record_rows(batch)
    except Damage as damage:
        yield {"position": damage.position, "error": damage.reason}


def _record_rows(batch: RecordBatch) -> Iterator[Row]:
    try:
        decoded = decode_batch(batch)
    except ProtocolError as error:
        yield {"baseOffset": batch.base_offset, "error": error.message}
        return
    for record in decoded:
        row: Row = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [list(header) for header in record.headers],
        }
        if batch.is_control:
            row["controlType"] = control_type_of(record)
            marker = marker_of(batch)
            if marker is not None:
                row["endTxnMarker"] = "COMMIT" if marker.is_commit else "ABORT"
                row["coordinatorEpoch"] = marker.coordinator_epoch
        yield row


def _dump_index(base: Offset, data: bytes) -> Iterator[Row]:
    for offset, position in OffsetIndex.layout.iter_unpack(data[: len(data) // 8 * 8]):
        yield {"offset": base + offset, "position": position}


def _dump_time_index(base: Offset, data: bytes) -> Iterator[Row]:
    for timestamp, offset in TimeIndex.layout.iter_unpack(data[: len(data) // 12 * 12]):
        yield {"timestamp": timestamp, "offset": base + offset}


def _dump_transaction_index(_: Offset, data: bytes) -> Iterator[Row]:
    for entry in parse_transaction_index(data):
        yield {
            "version": 0,
            "producerId": entry.producer_id,
            "firstOffset": entry.first_offset,
            "lastOffset": entry.last_offset,
            "lastStableOffset": entry.last_stable_offset,
        }


def _dump_snapshot(_: Offset, data: bytes) -> Iterator[Row]:
    for entry in parse_snapshot(data):
        yield {
            "producerId": entry.producer_id,
            "producerEpoch": entry.epoch,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "lastTimestamp": entry.timestamp,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": entry.current_transaction_first_offset,
        }


def _dump_epochs(data: bytes) -> Iterator[Row]:
    for epoch, start in parse_epochs(data):
        yield {"epoch": epoch, "startOffset": start}


def _dump_offsets(data: bytes) -> Iterator[Row]:
    for partition, offset in parse_offsets(data).items():
        yield {"topic": partition.topic, "partition": partition.partition, "offset": offset}


# ------------------------------------------------------------------------------------------------- verify


def verify_directory(disk: Disk) -> Iterator[Finding]:
    """All that is wrong in a broker's data directory (KAFKA-FACTS 10.6 to 10.8, on one replica).

    Meant for a stopped broker: of a running one, or after kill -9, the last segment has no index files yet and the
    checkpoints lag; neither is a finding.
    """
    ends: dict[TopicPartition, tuple[Offset, Offset]] = {}
    for folder in disk.names(""):
        partition = partition_of(folder)
        if partition is not None and disk.is_folder(folder):
            verifier = _LogVerifier(disk, folder)
            yield from verifier.findings()
            ends[partition] = (verifier.first_offset, verifier.end_offset)
    for name in (RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT):
        if not disk.exists(name):
            continue
        try:
            offsets = parse_offsets(disk.read_file(name))
        except BadCheckpoint as error:
            yield Finding(path=name, position=None, what=str(error))
            continue
        for partition, offset in offsets.items():
            end = ends.get(partition, (0, offset))[1]
            if offset > end:
                yield Finding(path=name, position=None, what=f"{partition} {offset} is beyond the log's end {end}")


def verify_log(disk: Disk, folder: str) -> Iterator[Finding]:
    """All that is wrong with one replica's folder."""
    return _LogVerifier(disk, folder).findings()


def is_metadata_of_kafka(disk: Disk) -> bool:
    """Return True if the metadata log in a data directory was written by Apache Kafka, whose records are other ones."""
    folder = str(METADATA_PARTITION)
    for base in offsets_in(disk.names(folder), LOG):
        try:
            for _, batch in _batches(disk, f"{folder}/{offset_name(base, LOG)}", base):
                if not batch.is_control:
                    return any((record.value or b"")[:1] == _KAFKA_FRAME_VERSION for record in decode_batch(batch))
        except (Damage, ProtocolError):
            return False  # damage is reported elsewhere
    return False


METADATA_OF_KAFKA = (
    "is the metadata log of Apache Kafka, which minikafka cannot read: move folders of partitions, not this one "
    "(docs/limits.md, Kafka's directories)"
)
_KAFKA_FRAME_VERSION = b"\1"
"""In front of each metadata record of Kafka's; ours are msgpack arrays."""


class _LogVerifier:
    def __init__(self, disk: Disk, folder: str) -> None:
        self.disk = disk
        self.folder = folder
        self.epochs = EpochCache()
        self.first_offset = 0
        self.end_offset = 0
        self._gaps: bool | None = None

    def findings(self) -> Iterator[Finding]:
        names = self.disk.names(self.folder)
        bases = offsets_in(names, LOG)
        if self.folder == str(METADATA_PARTITION) and is_metadata_of_kafka(self.disk):
            yield Finding(path=self.folder, position=None, what=METADATA_OF_KAFKA)
            return
        if not bases:
            yield Finding(path=self.folder, position=None, what="holds no segment")
            return
        self.first_offset = self.end_offset = bases[0]
        epoch = NO_EPOCH
        for base in bases:
            path = self._path(base, LOG)
            batches: dict[int, RecordBatch] = {}
            damage = self._read(path, base, epoch, batches)
            if base < self.end_offset or (base > self.end_offset and not self._is_left_out(base, batches, bases)):
                yield Finding(
                    path=path, position=0, what=f"begins at {base}, the segment before it ends at {self.end_offset}"
                )
            if damage is not None:
                yield damage
            for batch in batches.values():
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
                self.end_offset, epoch = batch.next_offset, batch.leader_epoch
            yield from self._check_indexes(base, batches, is_last=base == bases[-1])
        yield from self._check_epochs()
        yield from self._check_small_files(names)

    def _is_left_out(self, base: Offset, batches: dict[int, RecordBatch], bases: list[Offset]) -> bool:
        """Return True if compaction explains the hole before segment ``base``, which holds ``batches``."""
        marker = f"{self.folder}/{GAPS}"
        holes_end = parse_holes_end(self.disk.read_file(marker)) if self.disk.exists(marker) else None
        if holes_end is not None:
            first = next(iter(batches.values()), None)
            return base <= holes_end or (first is not None and first.last_offset - self.end_offset > RELATIVE_MAX)
        if self._gaps is None:
            self._gaps = self.disk.exists(marker) or any(map(self._shows_gaps, bases))
        return self._gaps

    def _shows_gaps(self, base: Offset) -> bool:
        batches: dict[int, RecordBatch] = {}
        self._read(self._path(base, LOG), base, NO_EPOCH, batches)
        expected = base
        for batch in batches.values():
            if batch.base_offset > expected or batch.record_count <= batch.last_offset_delta:
                return True
            expected = batch.next_offset
        return False

    def _path(self, base: Offset, suffix: str) -> str:
        return f"{self.folder}/{offset_name(base, suffix)}"

    def _read(self, path: str, base: Offset, epoch: Epoch, batches: dict[int, RecordBatch]) -> Finding | None:
        try:
            for position, batch in _batches(self.disk, path, base, epoch):
                batches[position] = batch._replace(data=_NO_DATA)  # a part of the view would keep what was read
        except Damage as damage:
            return Finding(path=path, position=damage.position, what=damage.reason)
        return None

    def _check_indexes(self, base: Offset, batches: dict[int, RecordBatch], *, is_last: bool) -> Iterator[Finding]:
        for suffix, check in ((INDEX, self._check_index), (TIME_INDEX, self._check_time_index)):
            path = self._path(base, suffix)
            if self.disk.exists(path):
                yield from check(path, base, self.disk.read_file(path), batches)
            elif not is_last:
                yield Finding(path=path, position=None, what="is missing")
        path = self._path(base, TRANSACTION_INDEX)
        if self.disk.exists(path):
            yield from self._check_transaction_index(path, self.disk.read_file(path), batches)

    @staticmethod
    def _check_transaction_index(path: str, data: bytes, batches: dict[int, RecordBatch]) -> Iterator[Finding]:
        try:
            entries = parse_transaction_index(data)
        except BadTransactionIndex as error:
            yield Finding(path=path, position=None, what=str(error))
            return
        markers = {batch.base_offset: batch.producer_id for batch in batches.values() if batch.is_control}
        for number, entry in enumerate(entries):
            if markers.get(entry.last_offset) != entry.producer_id:
                yield Finding(
                    path=path,
                    position=number * 34,
                    what=f"no marker of producer {entry.producer_id} stands at {entry.last_offset}",
                )

    @staticmethod
    def _check_index(path: str, base: Offset, data: bytes, batches: dict[int, RecordBatch]) -> Iterator[Finding]:
        index = OffsetIndex(base, data)
        size = max((position + batch.size for position, batch in batches.items()), default=0)
        if not index.is_sane(size=size, end_offset=None):
            yield Finding(path=path, position=None, what="entries do not rise within the segment")
            return
        for number, row in enumerate(_dump_index(base, data)):
            batch = batches.get(row["position"])
            if batch is None:
                yield Finding(path=path, position=number * 8, what=f"no batch begins at byte {row['position']}")
            elif batch.base_offset > row["offset"]:
                yield Finding(
                    path=path, position=number * 8, what=f"offset {row['offset']} lies before byte {row['position']}"
                )

    @staticmethod
    def _check_time_index(path: str, base: Offset, data: bytes, batches: dict[int, RecordBatch]) -> Iterator[Finding]:
        if not TimeIndex(base, data).is_sane(end_offset=None):
            yield Finding(path=path, position=None, what="entries do not rise")
            return
        newest = {batch.last_offset: batch.max_timestamp for batch in batches.values()}
        for number, row in enumerate(_dump_time_index(base, data)):
            if newest.get(row["offset"]) != row["timestamp"]:
                yield Finding(
                    path=path, position=number * 12, what=f"no batch ends at {row['offset']} with {row['timestamp']}"
                )

    def _check_epochs(self) -> Iterator[Finding]:
        path = f"{self.folder}/{LEADER_EPOCH_CHECKPOINT}"
        if not self.disk.exists(path):
            if self.epochs.entries:
                yield Finding(path=path, position=None, what="is missing")
            return
        try:
            found = parse_epochs(self.disk.read_file(path))
        except BadCheckpoint as error:
            yield Finding(path=path, position=None, what=str(error))
            return
        cache = EpochCache(found)
        for epoch, start in self.epochs.entries:
            if self.first_offset <= start and cache.epoch_at(start) != epoch and start >= (found or [(0, start)])[0][1]:
                yield Finding(
                    path=path, position=None, what=f"offset {start} is of epoch {epoch}, not {cache.epoch_at(start)}"
                )
        for epoch, start in found:
            if start > self.end_offset:
                yield Finding(
                    path=path, position=None, what=f"epoch {epoch} begins at {start}, the log ends at {self.end_offset}"
                )

    def _check_small_files(self, names: list[str]) -> Iterator[Finding]:
        for offset in offsets_in(names, SNAPSHOT):
            path = self._path(offset, SNAPSHOT)
            try:
                parse_snapshot(self.disk.read_file(path))
            except BadSnapshot as error:
                yield Finding(path=path, position=None, what=str(error))
        if PARTITION_METADATA in names:
            try:
                parse_partition_metadata(self.disk.read_file(f"{self.folder}/{PARTITION_METADATA}"))
            except BadCheckpoint as error:
                yield Finding(path=f"{self.folder}/{PARTITION_METADATA}", position=None, what=str(error))
