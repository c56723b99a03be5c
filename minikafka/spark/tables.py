"""What the audit joins: ledgers, committed records and replicas as tables, values named as a history names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from minikafka.check.history import value_id
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.batch import iterate
from minikafka.wire.records import decode_batch

CUT = "cut"
"""Column for a line that is no JSON."""
LEDGER = (
    "type string, op bigint, time double, process string, topic string, partition int, key string, value string, "
    "sequence bigint, offset bigint, leader_epoch int, error string, high_watermark bigint, idempotent boolean, "
    f"records array<array<string>>, {CUT} string"
)
TYPES = ("history", "expect", "send", "ok", "failed", "unknown", "assign", "seek", "poll", "replica")
DATA = "topic string, partition int, offset bigint, value string"
HELD = "node int, topic string, partition int, offset bigint, epoch int, value string"

Replicas = list[tuple[NodeId, TopicPartition, list[Path], int, int]]
"""(node, partition, segment files in order, log start, high watermark)."""


class BadLedger(Exception):
    """A ledger has a line that means nothing; the sentence shows it."""


def raw_lines(session: SparkSession, ledgers: Sequence[Path]) -> DataFrame:
    """The lines of some ledgers with their file's name, those that are none too."""
    reader = session.read.schema(LEDGER).option("columnNameOfCorruptRecord", CUT)
    return reader.json([str(each.absolute()) for each in ledgers]).withColumn("file", f.col("_metadata.file_name"))


def whole_lines(lines: DataFrame, ledgers: Sequence[Path]) -> DataFrame:
    """``raw_lines`` without a last line that has no end, of a writer that was killed; BadLedger for any other."""
    wrong = lines.where(f"{CUT} is not null or type is null or type not in {TYPES}").select("file", "type", CUT)
    allowed = {each.name: int(_ends_in_the_middle(each)) for each in ledgers}
    for row in wrong.limit(len(ledgers) + 1).collect():
        name = unquote(row.file)
        allowed[name] -= 1
        if row[CUT] is None or allowed[name] < 0:
            raise BadLedger(f"{row.file}: {row[CUT] or f'unknown type {row.type!r}'} is no line of a history")
    return lines.where(f"{CUT} is null").drop(CUT)


def _ends_in_the_middle(ledger: Path) -> bool:
    with ledger.open("rb") as file:
        file.seek(max(0, ledger.stat().st_size - 1))
        return file.read() not in {b"", b"\n"}


def committed(session: SparkSession, source: Mapping[str, str], topics: list[str]) -> DataFrame:
    """All committed records of the topics, with their values' names (columns of DATA)."""
    records = session.read.format("minikafka").options(**source).option("subscribe", ",".join(topics)).load()
    return records.select("topic", "partition", "offset", "value").mapInArrow(_named, DATA)


def _named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = pa.array([value_id(value) for value in batch.column("value").to_pylist()], pa.string())
        columns = [batch.column("topic"), batch.column("partition"), batch.column("offset"), names]
        yield pa.RecordBatch.from_arrays(columns, names=["topic", "partition", "offset", "value"])


def replica_rows(session: SparkSession, replicas: Replicas) -> DataFrame:
    """Every record of the replicas' files (columns of HELD); executors must see the same folders."""
    files = [(node, *name, str(path)) for node, name, paths, _, _ in replicas for path in paths]
    table = session.createDataFrame(files, "node int, topic string, partition int, path string")
    return table.repartition(max(1, len(files)), "path").mapInArrow(_held, HELD)


def _held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for table in batches:
        for file in table.to_pylist():
            data = Path(file["path"]).read_bytes()
            for batch in iterate(data):
                if batch.is_control:
                    continue
                records = decode_batch(batch)
                count = len(records)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.repeat(pa.scalar(file["node"], pa.int32()), count),
                        pa.repeat(pa.scalar(file["topic"], pa.string()), count),
                        pa.repeat(pa.scalar(file["partition"], pa.int32()), count),
                        pa.array([record.offset for record in records], pa.int64()),
                        pa.repeat(pa.scalar(batch.leader_epoch, pa.int32()), count),
                        pa.array([value_id(record.value) for record in records], pa.string()),
                    ],
                    names=["node", "topic", "partition", "offset", "epoch", "value"],
                )
