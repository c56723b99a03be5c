"""``minikafka spark audit``: the comparison of a ledger with the committed data, as joins: for runs of any size.

The rules are the history checker's and so are the words (check/findings.py); only the way is another: everything is a
table, a finding is what a join leaves over, and examples are taken with ``limit``.

::

    lost-write           acknowledged at a place where other data or none is committed, and found nowhere else
    duplicate            a value at more places than it was sent
    aborted-read         a record whose only sends failed             phantom-read      a record that nobody sent
    nonmonotonic-send    neighbours of one process, partition (and key, with sequences) that stand the other way round
    diverged             replicas that differ below their high watermarks, record by record
    read-above-hw        a poll in the ledger that was given a record at or above its high watermark

Values are named as the ledger names them (``value_id``); a topic below its log start owes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from minikafka.check.findings import (
    AbortedRead,
    Diverged,
    Duplicate,
    Finding,
    LostWrite,
    NonmonotonicSend,
    PhantomRead,
    ReadAboveHw,
)
from minikafka.check.history import value_id
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.batch import iterate
from minikafka.wire.records import decode_batch

EXAMPLES_MAX = 20

LEDGER = (
    "type string, op bigint, time double, process string, topic string, partition int, key string, value string, "
    "sequence bigint, offset bigint, leader_epoch int, error string, high_watermark bigint, "
    "records array<array<string>>"
)
DATA = "topic string, partition int, offset bigint, value string"
HELD = "node int, topic string, partition int, offset bigint, epoch int, value string"

Replicas = list[tuple[NodeId, TopicPartition, list[Path], int, int]]
"""(node, partition, segment files in order, log start, high watermark)."""


class Audit:
    """One comparison; ``findings`` are examples, ``totals`` are exact."""

    def __init__(self, session: SparkSession, ledger: str) -> None:
        lines = session.read.schema(LEDGER).json(ledger)
        # Three of its tables are joined again and again.
        self._lines = lines.cache()
        self._session = session
        self.findings: list[Finding] = []
        self.totals: dict[str, int] = {}
        answers = lines.where("type in ('ok', 'failed', 'unknown')").select(
            "op", f.col("type").alias("outcome"), f.col("partition").alias("at"), "offset", "error"
        )
        self._sends = (
            lines.where("type = 'send'")
            .select("op", "process", "topic", "partition", "key", "value", "sequence")
            .join(answers, "op", "left")
            .withColumn("partition", f.coalesce("at", "partition"))
            .drop("at")
            .cache()
        )

    def topics(self) -> list[str]:
        """Those that the ledger knows of."""
        return [row.topic for row in self._sends.select("topic").distinct().orderBy("topic").collect()]

    def counts(self) -> dict[str, int]:
        """How many sends ended how."""
        rows = self._sends.groupBy(f.coalesce("outcome", f.lit("unknown")).alias("outcome")).count().collect()
        return {row.outcome: row["count"] for row in rows}

    def judge(self, data: DataFrame, log_starts: DataFrame) -> int:
        """Hold ``data`` (columns of DATA) against the sends; records looked at."""
        data = data.cache()
        owed = self._sends.join(log_starts, ["topic", "partition"], "left").where(
            "outcome = 'ok' and (offset is null or log_start is null or offset >= log_start)"
        )
        values = data.groupBy("topic", "value").agg(
            f.count("*").alias("places"),
            f.sort_array(f.collect_list(f.struct("partition", "offset"))).alias("at"),
        )
        lost = owed.join(values, ["topic", "value"], "left_anti")
        self._keep(LostWrite, lost, _lost)
        may_stand = self._sends.groupBy("topic", "value").agg(
            f.count_if(f.coalesce("outcome", f.lit("")) != "failed").alias("sends"),
            f.max("op").alias("op"),
            f.max("error").alias("error"),
        )
        found = values.join(may_stand, ["topic", "value"], "left").cache()
        several = found.where("places > greatest(coalesce(sends, 0), 1)")
        self._keep(Duplicate, several, _duplicate)
        self._keep(AbortedRead, found.where("sends = 0"), _aborted)
        self._keep(PhantomRead, found.where("sends is null"), _phantom)
        self._order(data)
        self._read_above_hw()
        return int(data.count())

    def _order(self, data: DataFrame) -> None:
        """By where a value stands first; unknown sends are left out, as one may arrive late."""
        stands = data.groupBy("topic", "partition", "value").agg(f.min("offset").alias("stands_at"))
        sent = (
            self._sends.where("outcome = 'ok'")
            .join(stands, ["topic", "partition", "value"])
            .withColumn("stream", f.when(f.col("sequence").isNotNull(), f.coalesce("key", f.lit(""))))
        )
        window = Window.partitionBy("process", "topic", "partition", "stream").orderBy("op")
        pairs = sent.select(
            "*", *(f.lag(name).over(window).alias(f"before_{name}") for name in ("op", "value", "stands_at"))
        )
        self._keep(NonmonotonicSend, pairs.where("before_stands_at >= stands_at"), _reordered)

    def _read_above_hw(self) -> None:
        polls = self._lines.where("type = 'poll' and high_watermark is not null").select(
            "process", "topic", "partition", "high_watermark", f.explode("records").alias("record")
        )
        above = polls.select(
            "*", f.col("record")[0].cast("bigint").alias("offset"), f.col("record")[1].alias("value")
        ).where("offset >= high_watermark")
        self._keep(ReadAboveHw, above, _above)

    def compare(self, replicas: Replicas) -> int:
        """Hold the replicas' records against each other, below the high watermarks; rows looked at."""
        held = replica_rows(self._session, replicas)
        marks = self._session.createDataFrame(
            [(node, *partition, start, end) for node, partition, _, start, end in replicas],
            "node int, topic string, partition int, log_start bigint, high_watermark bigint",
        )
        below = held.join(f.broadcast(marks), ["node", "topic", "partition"]).where(
            "offset >= log_start and offset < high_watermark"
        )
        sides = below.groupBy("topic", "partition", "offset").agg(
            f.sort_array(f.collect_list(f.struct("node", "epoch", "value"))).alias("holdings"),
            f.countDistinct("epoch", "value").alias("different"),
            f.count("*").alias("holders"),
        )
        due = marks.groupBy("topic", "partition").agg(
            f.collect_list(f.struct("node", "log_start", "high_watermark")).alias("due")
        )
        wanted = sides.join(f.broadcast(due), ["topic", "partition"]).withColumn(
            "owing", f.expr("filter(due, each -> each.log_start <= offset and offset < each.high_watermark)")
        )
        self._keep(Diverged, wanted.where("different > 1 or holders < size(owing)"), _diverged)
        return int(below.count())

    def _keep(self, kind: type[Finding], rows: DataFrame, make: Callable[[Any], Finding]) -> None:
        rows = rows.cache()
        count = rows.count()
        if count:
            self.totals[kind.kind] = count
            self.findings += [make(row) for row in rows.limit(EXAMPLES_MAX).collect()]
        rows.unpersist()


# ---- what the tables are read from -----------------------------------------------------------------------------------


def committed(session: SparkSession, bootstrap: str, topics: list[str]) -> DataFrame:
    """All committed records of the topics, with their values' names (columns of DATA)."""
    records = (
        session.read.format("minikafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", ",".join(topics))
        .load()
    )
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


# ---- rows to findings ------------------------------------------------------------------------------------------------


def _place(row: Any) -> dict[str, Any]:
    fields = row.asDict()
    number, offset = fields.get("partition"), fields.get("offset")
    return {
        "topic": row.topic,
        "partition": -1 if number is None else number,
        "offset": -1 if offset is None else offset,
    }


def _lost(row: Any) -> Finding:
    return LostWrite(**_place(row), value=row.value, op=row.op, process=row.process, held_by=(), read_up_to=-1)


def _first(row: Any) -> dict[str, Any]:
    return {"topic": row.topic, "partition": row.at[0].partition, "offset": row.at[0].offset}


def _duplicate(row: Any) -> Finding:
    places = tuple((each.partition, each.offset) for each in row.at)
    second = {"topic": row.topic, "partition": places[1][0], "offset": places[1][1]}
    return Duplicate(**second, value=row.value, places=places, sends=row.sends or 0)


def _aborted(row: Any) -> Finding:
    return AbortedRead(**_first(row), value=row.value, op=row.op, error=row.error or "", seen_by="spark")


def _phantom(row: Any) -> Finding:
    return PhantomRead(**_first(row), value=row.value, seen_by="spark")


def _reordered(row: Any) -> Finding:
    return NonmonotonicSend(
        topic=row.topic,
        partition=row.partition,
        offset=row.stands_at,
        process=row.process,
        key=row.key,
        ops=(row.before_op, row.op),
        values=(row.before_value, row.value),
        offsets=(row.before_stands_at, row.stands_at),
    )


def _above(row: Any) -> Finding:
    return ReadAboveHw(**_place(row), process=row.process, value=row.value, high_watermark=row.high_watermark)


def _diverged(row: Any) -> Finding:
    holdings = tuple((each.node, each.epoch, each.value) for each in row.holdings)
    return Diverged(**_place(row), holdings=holdings)
