"""``minikafka spark audit``: the durability audit at scale, as a job, its joins and their tables.

``minikafka spark audit``: the comparison of ledgers with the committed data, as joins: for runs of any size.

The rules are the history checker's and so are the words (check/findings.py); only the way is another: everything is a
table, a finding is what a join leaves over, and examples are taken with ``limit``.

::

    lost-write            acknowledged, and neither there nor (for a value sent once) elsewhere in its partition
    unseen                the same, beyond the last committed record
    duplicate             a value at more places than it was sent
    shifted               acknowledged records that all stand the same distance from where they were said to be
    inconsistent-offsets  a place for which acknowledgements, polls and the log do not all name one value; what a shift
                          explains is left out
    nonmonotonic-send     neighbours of one process, partition (and key, with sequences) that stand the other way round
    aborted-read          a record whose only sends failed
    phantom-read          a record that nobody sent, or not to its partition
    diverged              replicas that differ below their high watermarks, record by record
    read-above-hw         a poll in the ledger that was given a record at or above its high watermark

A topic below its log start owes nothing. Kinds about single polls (skips, steps back) are ``minikafka audit``'s.

What the audit joins: ledgers, committed records and replicas as tables, values named as a history names them.

``minikafka spark audit``: the durability audit at scale, with the history checker's verdict as its result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from minikafka.blocking.brokers import Brokers
from minikafka.check import findings
from minikafka.check.findings import Finding, findings_json
from minikafka.check.history import value_id
from minikafka.spark.options import parse_source
from minikafka.spark.places import Position, StreamOffset, present
from minikafka.types import NO_EPOCH, NO_OFFSET, NodeId, Offset, TopicPartition
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


def committed(
    session: SparkSession, source: Mapping[str, str], topics: list[str], log_starts: Mapping[TopicPartition, Offset]
) -> DataFrame:
    """All committed records of the topics, with their values' names (columns of DATA).

    Spark plans the read later: retention that has passed ``log_starts`` by then is an error, not a lost write.
    """
    reader = session.read.format("minikafka").options(**source).option("subscribe", ",".join(topics))
    if log_starts:  # without any, reading says that there is no such topic
        starts = StreamOffset(positions={name: Position(at) for name, at in log_starts.items()})
        reader = reader.option("startingOffsets", json.dumps(starts.to_json()))
    records = reader.load()
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


READER = "audit"
"""The reader of the committed records; the same name as in ``minikafka audit``."""


def _place(row: Any) -> dict[str, Any]:
    fields = row.asDict()
    number, offset = fields.get("partition"), fields.get("offset")
    return {
        "topic": row.topic,
        "partition": -1 if number is None else number,
        "offset": NO_OFFSET if offset is None else offset,
    }


def lost(row: Any) -> Finding:
    """Acknowledged and gone."""
    return findings.LostWrite(
        **_place(row),
        value=row.value,
        op=row.op,
        process=row.process,
        held_by=(),
        read_up_to=NO_OFFSET if row.offset is None else row.read_up_to,
    )


def unseen(row: Any) -> Finding:
    """Acknowledged and beyond all that is there."""
    return findings.Unseen(**_place(row), value=row.value, op=row.op, process=row.process, read_up_to=row.read_up_to)


def _first(row: Any) -> dict[str, Any]:
    return {"topic": row.topic, "partition": row.at[0].partition, "offset": row.at[0].offset}


def duplicate(row: Any) -> Finding:
    """A value with its places."""
    places = tuple((each.partition, each.offset) for each in row.at)
    second = {"topic": row.topic, "partition": places[1][0], "offset": places[1][1]}
    return findings.Duplicate(**second, value=row.value, places=places, sends=row.may_stand or 0)


def aborted(row: Any) -> Finding:
    """A value whose sends failed."""
    return findings.AbortedRead(**_first(row), value=row.value, op=row.last_op, error=row.error or "", seen_by=READER)


def phantom(row: Any) -> Finding:
    """A value that nobody sent."""
    return findings.PhantomRead(**_first(row), value=row.value, seen_by=READER)


def inconsistent(row: Any) -> Finding:
    """A place with all that is claimed of it."""
    return findings.InconsistentOffsets(**_place(row), values=tuple((each.value, each.who) for each in row.claims))


def shifted(row: Any) -> Finding:
    """A stretch that moved."""
    return findings.Shifted(
        **_place(row),
        until=row.until,
        distance=row.distance,
        count=row.count_,
        values=(row.first_value, row.last_value),
        processes=tuple(row.processes),
    )


def reordered(row: Any) -> Finding:
    """A send with the one before it."""
    return findings.NonmonotonicSend(
        topic=row.topic,
        partition=row.partition,
        offset=row.stands_at,
        process=row.process,
        key=row.key,
        ops=(row.before_op, row.op),
        values=(row.before_value, row.value),
        offsets=(row.before_stands_at, row.stands_at),
    )


def above(row: Any) -> Finding:
    """A record of a poll."""
    return findings.ReadAboveHw(**_place(row), process=row.process, value=row.value, high_watermark=row.high_watermark)


def diverged(row: Any) -> Finding:
    """A place with what each replica has there."""
    held = {each.node: (each.epoch, each.value) for each in row.holdings}
    owing = sorted({each.node for each in row.owing} | held.keys())
    holdings = {node: held.get(node, (NO_EPOCH, findings.MISSING)) for node in owing}
    usual = Counter(holdings.values()).most_common(1)[0][0]
    strays = [node for node in owing if holdings[node] != usual]
    return findings.Diverged(
        **_place(row),
        holdings=tuple((node, *holdings[node]) for node in owing),
        detail=f"replica {', '.join(map(str, strays))} differs from the others",
    )


EXAMPLES_MAX = 20

PLACE = ["topic", "partition", "offset"]
WHERE = ["topic", "partition"]
WRITER = ["file", "process", *WHERE, "stream"]
LOST = (
    "case when offset is null then places is null and not was_deleted else not coalesce(here = value, false)"
    " and not (sends = 1 and coalesce(exists(at, each -> each.partition = partition), false)) end"
)
ELSEWHERE = "places = 1 and not array_contains(may_be_in, -1) and not array_contains(may_be_in, at[0].partition)"
"""A value's only place is in a partition that it was not sent to."""


class Audit:
    """One comparison; ``findings`` are examples, ``totals`` are exact. ``close`` it at the end. BadLedger."""

    def __init__(self, session: SparkSession, ledgers: Sequence[Path]) -> None:
        self._cached: list[DataFrame] = []
        try:
            lines = whole_lines(self._cache(raw_lines(session, ledgers)), ledgers)
        except BadLedger:
            self.close()
            raise
        if len(ledgers) > 1:
            lines = lines.withColumn("process", f.concat("file", f.lit(": "), "process"))
        self._session = session
        self._lines = lines
        self.findings: list[Finding] = []
        self.totals: dict[str, int] = {}
        answers = lines.where("type in ('ok', 'failed', 'unknown')").select(
            "file",
            "op",
            f.col("type").alias("outcome"),
            f.col("partition").alias("acknowledged_partition"),
            "offset",
            "error",
        )
        # Joined again and again.
        self._sends = self._cache(
            lines.where("type = 'send'")
            .select("file", "op", "process", "topic", "partition", "key", "value", "sequence")
            .join(answers, ["file", "op"], "left")
            .withColumn("partition", f.coalesce("acknowledged_partition", "partition"))
            .drop("acknowledged_partition")
        )
        self._idempotent = lines.where("type = 'expect' and not idempotent").isEmpty()

    def close(self) -> None:
        """Let go of what was kept in memory."""
        for each in self._cached:
            each.unpersist()

    def _cache(self, rows: DataFrame) -> DataFrame:
        self._cached.append(rows)
        return rows.cache()

    def topics(self) -> list[str]:
        """Those that the ledgers know of."""
        return [row.topic for row in self._sends.select("topic").distinct().orderBy("topic").collect()]

    def counts(self) -> dict[str, int]:
        """How many sends ended how."""
        rows = self._sends.groupBy(f.coalesce("outcome", f.lit("unknown")).alias("outcome")).count().collect()
        return {row.outcome: row["count"] for row in rows}

    def judge(self, data: DataFrame, log_starts: DataFrame) -> int:
        """Hold ``data`` (columns of DATA) against the sends; records looked at."""
        data = self._cache(data)
        at = f.sort_array(f.collect_list(f.struct("partition", "offset")))
        values = self._cache(data.groupBy("topic", "value").agg(f.count("*").alias("places"), at.alias("at")))
        names = self._sends.groupBy("topic", "value").agg(
            f.count("*").alias("sends"),
            f.count_if(f.coalesce("outcome", f.lit("")) != "failed").alias("may_stand"),
            f.max("op").alias("last_op"),
            f.max("error").alias("error"),
            f.collect_set(
                f.when(f.coalesce("outcome", f.lit("")) != "failed", f.coalesce("partition", f.lit(-1)))
            ).alias("may_be_in"),
        )
        self._values(self._cache(values.join(names, ["topic", "value"], "left")))
        acknowledged = self._cache(self._acknowledged(data, values, names, log_starts))
        owed = acknowledged.where("offset is null or log_start is null or offset >= log_start").where(LOST)
        self._keep(findings.LostWrite, owed.where("offset is null or offset < read_up_to"), lost)
        self._keep(findings.Unseen, owed.where("offset >= read_up_to"), unseen)
        self._disputes(data, acknowledged, self._shifts(acknowledged))
        self._order(acknowledged)
        self._read_above_hw(data)
        return int(data.count())

    def _values(self, found: DataFrame) -> None:
        """What stands too often, or should not stand at all."""
        if self._idempotent:
            several = found.where("places > greatest(coalesce(may_stand, 0), 1)")
            self._keep(findings.Duplicate, several, duplicate)
        self._keep(findings.AbortedRead, found.where("may_stand = 0"), aborted)
        unsent = found.where(f"may_stand is null or may_stand > 0 and {ELSEWHERE}")
        self._keep(findings.PhantomRead, unsent, phantom)

    def _acknowledged(self, data: DataFrame, values: DataFrame, names: DataFrame, log_starts: DataFrame) -> DataFrame:
        """Each acknowledged send with what stands at its place (``here``) and where its value stands (``place``)."""
        ends = data.groupBy(*WHERE).agg((f.max("offset") + 1).alias("read_up_to"))
        first = values.select("topic", "value", "places", "at", f.col("at")[0].alias("place"))
        return self._with_deleted(
            self._sends.where("outcome = 'ok'")
            .join(data.withColumnRenamed("value", "here"), PLACE, "left")
            .join(first, ["topic", "value"], "left")
            .join(names.select("topic", "value", "sends"), ["topic", "value"])
            .join(f.broadcast(log_starts), WHERE, "left")
            .join(f.broadcast(ends), WHERE, "left")
            .fillna(0, ["read_up_to"])
            .withColumn("stream", f.when(f.col("sequence").isNotNull(), f.coalesce("key", f.lit(""))))
        )

    def _with_deleted(self, acknowledged: DataFrame) -> DataFrame:
        """Add ``was_deleted``: a send that was acknowledged without its offset must have stood below the log start.

        It stood before the next send of its writer that was acknowledged there, or lower, but before no offset 0.
        """
        if not self._idempotent or self._sends.where("outcome = 'ok' and offset is null").isEmpty():
            return acknowledged.withColumn("was_deleted", f.expr("false"))
        later = Window.partitionBy(*WRITER).orderBy("op").rowsBetween(1, Window.unboundedFollowing)
        following = f.min(f.when(f.col("offset") <= f.col("log_start"), f.col("offset"))).over(later)
        return acknowledged.withColumn("was_deleted", f.coalesce(following > 0, f.expr("false")))

    def _shifts(self, acknowledged: DataFrame) -> DataFrame:
        """One finding for a stretch of records that moved together; returns their values."""
        known = (
            acknowledged.where("sends = 1 and places = 1 and place.partition = partition and offset is not null")
            .withColumn("distance", f.col("place.offset") - f.col("offset"))
            .select(*PLACE, "value", "process", "here", "distance")
        )
        if known.where("distance != 0").isEmpty():
            return known.where("false").select("topic", "value")
        along = Window.partitionBy(*WHERE).orderBy("offset")
        turns = f.when(f.col("distance") == f.lag("distance").over(along), 0).otherwise(1)
        numbered = known.withColumn("turn", turns).withColumn("stretch", f.sum("turn").over(along))
        numbered = self._cache(numbered)
        stretches = (
            numbered.where("distance != 0")
            .groupBy(*WHERE, "stretch", "distance")
            .agg(
                f.min("offset").alias("offset"),
                (f.max("offset") + 1).alias("until"),
                f.count("*").alias("count_"),
                f.min_by("value", "offset").alias("first_value"),
                f.max_by("value", "offset").alias("last_value"),
                f.array_sort(f.collect_set("process")).alias("processes"),
                f.max("here").alias("here"),
            )
            # A record alone at another's place is a swap.
            .where("count_ > 1 or here is null")
        )
        self._keep(findings.Shifted, stretches, shifted)
        return numbered.join(stretches.select(*WHERE, "stretch"), [*WHERE, "stretch"]).select("topic", "value")

    def _disputes(self, data: DataFrame, acknowledged: DataFrame, moved: DataFrame) -> None:
        answers = acknowledged.where("offset is not null")
        polls = self._polls().select(*PLACE, "value", f.concat(f.lit("a poll of "), "process").alias("who"))
        read = data.select(*PLACE, "value", f.lit(f"a poll of {READER}").alias("who"))
        unexplained = (
            answers.where("here != value")
            .join(moved, ["topic", "value"], "left_anti")
            .join(moved.withColumnRenamed("value", "here"), ["topic", "here"], "left_anti")
        )
        disputed = unexplained.select(*PLACE).union(_several(answers))
        if not polls.isEmpty():
            disputed = disputed.union(_several(polls.union(read)))
        disputed = self._cache(disputed.distinct())
        acknowledged = answers.select(*PLACE, "value", f.concat(f.lit("the answer to "), "process").alias("who"))
        claims = (
            acknowledged.union(polls)
            .union(read)
            .join(f.broadcast(disputed.limit(EXAMPLES_MAX)), PLACE)
            .groupBy(*PLACE, "value")
            .agg(f.max("who").alias("who"))
            .groupBy(*PLACE)
            .agg(f.sort_array(f.collect_list(f.struct("who", "value")), asc=False).alias("claims"))
        )
        self._keep(findings.InconsistentOffsets, disputed, inconsistent, examples=claims)

    def _order(self, acknowledged: DataFrame) -> None:
        """By where a value stands (one that was sent several times, by its answer); unknown sends may arrive late."""
        if not self._idempotent:
            return
        stands = f.expr("sends = 1 and coalesce(places, 0) = 1")
        sent = (
            acknowledged.where(f"not ({LOST})")
            .withColumn("stands_at", f.when(stands, f.col("place.offset")).otherwise(f.col("offset")))
            .withColumn("partition", f.when(stands, f.col("place.partition")).otherwise(f.col("partition")))
            .where("stands_at is not null")
        )
        window = Window.partitionBy(*WRITER).orderBy("op")
        pairs = sent.select(
            "*", *(f.lag(name).over(window).alias(f"before_{name}") for name in ("op", "value", "stands_at"))
        )
        self._keep(findings.NonmonotonicSend, pairs.where("before_stands_at >= stands_at"), reordered)

    def _polls(self) -> DataFrame:
        """What polls in the ledgers were given, record by record."""
        polls = self._lines.where("type = 'poll'").select(
            "process", *WHERE, "high_watermark", f.explode("records").alias("record")
        )
        offset, value = f.col("record")[0].cast("bigint"), f.col("record")[1]
        return polls.select("process", *WHERE, "high_watermark", offset.alias("offset"), value.alias("value"))

    def _read_above_hw(self, data: DataFrame) -> None:
        """Above the watermark that came with it, or above today's: then it was above that of its time too."""
        polls = self._cache(self._polls())
        beyond_theirs = polls.where("offset >= high_watermark")
        ends = data.groupBy(*WHERE).agg((f.max("offset") + 1).alias("end"))
        beyond_todays = (
            polls.where("high_watermark is null or offset < high_watermark")
            .drop("high_watermark")
            .join(f.broadcast(ends), WHERE, "left")
            .withColumn("high_watermark", f.coalesce("end", f.lit(0)))
            .where("offset >= high_watermark")
            .groupBy("process", *WHERE, "high_watermark")
            .agg(f.max("offset").alias("offset"), f.max_by("value", "offset").alias("value"))
        )
        self._keep(findings.ReadAboveHw, beyond_theirs.unionByName(beyond_todays), above)

    def compare(self, replicas: Replicas) -> int:
        """Hold the replicas' records against each other, below the high watermarks; rows looked at."""
        held = replica_rows(self._session, replicas)
        marks = self._session.createDataFrame(
            [(node, *partition, start, end) for node, partition, _, start, end in replicas],
            "node int, topic string, partition int, log_start bigint, high_watermark bigint",
        )
        below = held.join(f.broadcast(marks), ["node", *WHERE]).where("offset >= log_start and offset < high_watermark")
        sides = below.groupBy(*PLACE).agg(
            f.sort_array(f.collect_list(f.struct("node", "epoch", "value"))).alias("holdings"),
            f.countDistinct("epoch", "value").alias("different"),
            f.count("*").alias("holders"),
        )
        due = marks.groupBy(*WHERE).agg(f.collect_list(f.struct("node", "log_start", "high_watermark")).alias("due"))
        wanted = sides.join(f.broadcast(due), WHERE).withColumn(
            "owing", f.expr("filter(due, each -> each.log_start <= offset and offset < each.high_watermark)")
        )
        self._keep(findings.Diverged, wanted.where("different > 1 or holders < size(owing)"), diverged)
        return int(below.count())

    def _keep(
        self,
        kind: type[Finding],
        rows: DataFrame,
        make: Callable[[Any], Finding],
        examples: DataFrame | None = None,
    ) -> None:
        rows = rows.cache()
        count = rows.count()
        if count:
            self.totals[kind.kind] = count
            shown = rows if examples is None else examples
            self.findings += [make(row) for row in shown.limit(EXAMPLES_MAX).collect()]
        rows.unpersist()


def _several(claims: DataFrame) -> DataFrame:
    """The places for which more than one value is claimed."""
    return claims.groupBy(*PLACE).agg(f.countDistinct("value").alias("different")).where("different > 1").select(*PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was found; ``records`` were held against the ledger, ``held`` rows between replicas."""

    totals: dict[str, int]
    findings: tuple[Finding, ...]
    sends: dict[str, int]
    records: int
    held: int

    @property
    def ok(self) -> bool:
        return not self.totals

    def to_json(self) -> dict[str, Any]:
        """As the history checker's verdict, with the counts that there are."""
        return {
            "ok": self.ok,
            "counts": {"sends": self.sends, "records_read": self.records, "replica_records": self.held},
            "findings": findings_json(self.totals, self.findings),
        }


def audit(
    session: Any,
    *,
    ledgers: Sequence[Path],
    bootstrap: str | None,
    replicas: Replicas,
    security: Mapping[str, str] | None = None,
) -> Audited:
    """Compare; the committed records come from brokers, or from the replica whose high watermark is highest (of
    equals the lowest node's). ``security``: the source's options of TLS. BadLedger.
    """
    with closing(Audit(session, ledgers)) as judge:
        brokers = None if bootstrap is None else {"kafka.bootstrap.servers": bootstrap, **(security or {})}
        return _audited(session, judge, brokers, replicas)


def _audited(session: Any, judge: Audit, source: Mapping[str, str] | None, replicas: Replicas) -> Audited:
    topics = judge.topics()
    if not topics:
        raise BadLedger("no record was sent, there is nothing to compare")
    log_starts: dict[TopicPartition, Offset]
    concerned = [each for each in replicas if each[1].topic in topics]
    if source is not None:
        log_starts = _starts(source, topics)
        data = committed(session, source, topics, log_starts)
    else:
        best = {}
        for each in sorted(concerned, key=lambda each: (each[4], -each[0])):
            best[each[1]] = each
        rows = replica_rows(session, list(best.values()))
        marks = session.createDataFrame(
            [(*name, each[3], each[4]) for name, each in best.items()],
            "topic string, partition int, log_start bigint, high_watermark bigint",
        )
        log_starts = {name: each[3] for name, each in best.items()}
        below = rows.join(marks, ["topic", "partition"]).where("offset >= log_start and offset < high_watermark")
        data = below.select("topic", "partition", "offset", "value")
    starts = session.createDataFrame(
        [(*name, start) for name, start in log_starts.items()], "topic string, partition int, log_start bigint"
    )
    records = judge.judge(data, starts)
    held = judge.compare(concerned) if concerned else 0
    return Audited(
        totals=judge.totals, findings=tuple(judge.findings), sends=judge.counts(), records=records, held=held
    )


def _starts(source: Mapping[str, str], topics: list[str]) -> dict[TopicPartition, Offset]:
    """Where each log begins."""
    options = parse_source({**source, "subscribe": ",".join(topics)}, streaming=False)
    brokers = Brokers(options.bootstrap, api_timeout_s=options.api_timeout_s, tls=options.tls)
    return brokers.starts(present(brokers, options.selection).partitions)
