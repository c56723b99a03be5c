"""Data directories of replicas, with and without damage: for the audits' tests and for ``python -m tests.bench.audit``.

Damage is planted as a bug or a hand would leave it: every batch has a sound checksum, and high watermarks fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minikafka.check import HistoryWriter, value_id
from minikafka.log.checkpoint import MetaProperties, format_meta_properties, format_offsets, parse_offsets
from minikafka.log.names import LOG, META_PROPERTIES, REPLICATION_OFFSET_CHECKPOINT, offset_name, offsets_in
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import HEADER_SIZE, RecordBatch, iterate, with_fields
from minikafka.wire.records import Record, build_batch, decode_batch

Batches = list[bytes]
Change = Callable[[list[Record]], list[Record]]


# ---- one log as a list of batches ------------------------------------------------------------------------------------


def read_log(folder: Path) -> Batches:
    """Every batch of a replica's folder, in order."""
    paths = [folder / offset_name(base, LOG) for base in offsets_in([each.name for each in folder.iterdir()], LOG)]
    return [bytes(batch.data) for path in paths for batch in iterate(path.read_bytes())]


def write_log(data_dir: Path, partition: TopicPartition, batches: Batches) -> None:
    """The replica's log as one segment; its high watermark is its end."""
    folder = data_dir / str(partition)
    for path in folder.iterdir():
        path.unlink()
    (folder / offset_name(0, LOG)).write_bytes(b"".join(batches))
    path = data_dir / REPLICATION_OFFSET_CHECKPOINT
    marks = parse_offsets(path.read_bytes()) | {partition: RecordBatch.of(batches[-1]).next_offset}
    path.write_bytes(format_offsets(marks))


def moved(batch: bytes, distance: int) -> bytes:
    """The batch at another base offset."""
    view = RecordBatch.of(batch)
    head = with_fields(view, base_offset=view.base_offset + distance, leader_epoch=view.leader_epoch)
    return head + batch[HEADER_SIZE:]


def rebuilt(batches: Batches, offset: Offset, change: Change) -> Batches:
    """The log with ``change`` made to the records of the batch that holds ``offset``; what follows moves up or down."""
    result: Batches = []
    distance = 0
    for batch in batches:
        view = RecordBatch.of(batch)
        if not view.base_offset <= offset <= view.last_offset:
            result.append(moved(batch, distance) if distance else batch)
            continue
        records = [Record(0, each.timestamp, 0, each.key, each.value, each.headers) for each in decode_batch(view)]
        changed = change(records)
        distance = len(changed) - len(records)
        result.append(build_batch(changed, base_offset=view.base_offset, leader_epoch=view.leader_epoch))
    return result


# ---- damage ----------------------------------------------------------------------------------------------------------


def dropped(batches: Batches, offset: Offset) -> Batches:
    """The record is gone, and those behind it moved up."""
    at = _place(batches, offset)
    return rebuilt(batches, offset, lambda records: records[:at] + records[at + 1 :])


def swapped(batches: Batches, offset: Offset) -> Batches:
    """The record and the one behind it, which is in the same batch, at each other's place."""
    at = _place(batches, offset)
    return rebuilt(batches, offset, lambda r: [*r[:at], r[at + 1], r[at], *r[at + 2 :]])


def duplicated(batches: Batches, offset: Offset) -> Batches:
    """The record once more, at the end."""
    view = RecordBatch.of(next(each for each in batches if _holds(each, offset)))
    record = next(each for each in decode_batch(view) if each.offset == offset)
    last = RecordBatch.of(batches[-1])
    copy = Record(0, record.timestamp, 0, record.key, record.value, record.headers)
    return [*batches, build_batch([copy], base_offset=last.next_offset, leader_epoch=last.leader_epoch)]


def altered(batches: Batches, offset: Offset) -> Batches:
    """The record has another value."""
    at = _place(batches, offset)

    def change(records: list[Record]) -> list[Record]:
        return [*records[:at], records[at]._replace(value=b"altered"), *records[at + 1 :]]

    return rebuilt(batches, offset, change)


def _holds(batch: bytes, offset: Offset) -> bool:
    view = RecordBatch.of(batch)
    return view.base_offset <= offset <= view.last_offset


def _place(batches: Batches, offset: Offset) -> int:
    return offset - RecordBatch.of(next(each for each in batches if _holds(each, offset))).base_offset


@dataclass(frozen=True, slots=True)
class Damage:
    """What is planted on which replicas, and what the audits must say of it: kind -> count, and a value in examples."""

    name: str
    change: Callable[[Batches, Offset], Batches]
    everywhere: bool
    totals: dict[str, int]

    def plant(self, data_dirs: Sequence[Path], partition: TopicPartition, offset: Offset) -> None:
        """Change the logs: all of them, or the last one."""
        for data_dir in data_dirs if self.everywhere else data_dirs[-1:]:
            write_log(data_dir, partition, self.change(read_log(data_dir / str(partition)), offset))


DAMAGES = (
    Damage("one record dropped", dropped, everywhere=True, totals={"lost-write": 1, "shifted": 1}),
    Damage("two swapped", swapped, everywhere=True, totals={"inconsistent-offsets": 2, "nonmonotonic-send": 1}),
    Damage("one duplicated", duplicated, everywhere=True, totals={"duplicate": 1}),
    Damage("one replica altered", altered, everywhere=False, totals={"diverged": 1}),
)


# ---- a run as it should be -------------------------------------------------------------------------------------------


def write_ledger(path: Path, topic: str, values: Iterable[bytes]) -> None:
    """A producer that was told the offsets 0, 1, 2 ... of partition 0."""
    with path.open("w") as file:
        ledger = HistoryWriter(file.write, lambda: 0.0)
        for offset, value in enumerate(values):
            op = ledger.send("p", topic, value_id(value), partition=0)
            ledger.acknowledged(op, partition=0, offset=offset)


def write_replica(
    data_dir: Path, node: int, partition: TopicPartition, values: Sequence[bytes], per_batch: int
) -> None:
    """One partition in a broker's data directory, as after a clean stop."""
    (data_dir / str(partition)).mkdir(parents=True)
    meta = MetaProperties(cluster_id="c", node_id=node, directory_id="d")
    (data_dir / META_PROPERTIES).write_bytes(format_meta_properties(meta))
    if not (data_dir / REPLICATION_OFFSET_CHECKPOINT).exists():
        (data_dir / REPLICATION_OFFSET_CHECKPOINT).write_bytes(format_offsets({}))
    batches = [
        build_batch([Record(0, 1, 0, None, value) for value in values[base : base + per_batch]], base_offset=base)
        for base in range(0, len(values), per_batch)
    ]
    write_log(data_dir, partition, batches)
