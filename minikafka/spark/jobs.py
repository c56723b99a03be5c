"""The jobs flights and archive of ``minikafka spark``; each takes a session and what it needs, and returns its result.

``minikafka spark flights``: delays per day, airport and carrier as a watermarked stream; a summary back to a topic.

A window is written when the watermark has passed its end: the newest record's time less a week, because partitions are
read side by side and none of them keeps the others' time. So the last week of the topic stays open, and the summary
says up to which day it reaches.

How a job's stream is run: to the end of what is there, or until it is stopped, with its progress reported.

``minikafka spark archive TOPIC``: committed records to Parquet, by topic and day, exactly once and restartable.

Read the folder with Spark: its list of files (``_spark_metadata``) says which belong to committed batches.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

LOOK_INTERVAL_S = 0.5

Report = Callable[[int, int], object]
"""Called with a batch's number and how many rows were read so far."""


def run_query(writer: Any, *, follow: bool, report: Report) -> int:
    """Start a DataStreamWriter and wait for its end; rows read. Raises what ended the query.

    ``follow``: go on with what comes later, until the query is stopped.
    """
    query = (writer if follow else writer.trigger(availableNow=True)).start()
    rows, last = 0, -1
    try:
        with _interrupted_between_calls() as check:
            while True:
                ended = query.awaitTermination(LOOK_INTERVAL_S)
                for each in query.recentProgress:
                    if each["batchId"] > last and each["numInputRows"]:
                        rows += each["numInputRows"]
                        report(each["batchId"], rows)
                    last = max(last, each["batchId"])
                if ended:
                    return rows
                check()
    finally:
        query.stop()


@contextmanager
def _interrupted_between_calls() -> Iterator[Callable[[], None]]:
    """What is yielded raises KeyboardInterrupt if Ctrl-C was pressed.

    In the middle of a call to the JVM, pyspark's own handler breaks its connection, and py4j prints tracebacks.
    """
    is_asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True

    def check() -> None:
        if is_asked:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check  # handlers belong to the main thread
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def archive(
    session: Any,
    *,
    bootstrap: str,
    topic: str,
    into: str,
    checkpoint: str,
    report: Report,
    security: Mapping[str, str] | None = None,
    follow: bool = False,
    most_per_batch: int = 1_000_000,
) -> int:
    """Append what is new since the checkpoint; rows written. Raises what ended the query.

    ``security``: the source's options of TLS.
    """
    records = (
        session.readStream.format("minikafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**(security or {}))
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", str(most_per_batch))
        .load()
    )
    writer = (
        records.selectExpr("*", "to_date(timestamp) day")
        .writeStream.format("parquet")
        .partitionBy("topic", "day")
        .option("path", into)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
    )
    return run_query(writer, follow=follow, report=report)


WATERMARK = "7 days"
WINDOW = "1 day"
FLIGHT = "origin string, carrier string, dep_delay int, arr_delay int"
WINDOW_COLUMNS = (
    "start timestamp, end timestamp, origin string, carrier string, flights bigint, late bigint, delay_sum bigint, "
    "delay_known bigint"
)
LATE_MINUTES = 15
"""A departure counts as late from here, as airlines report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Flights of one carrier from one airport, in all windows that were closed."""

    origin: str
    carrier: str
    flights: int
    late: int
    delay_sum: int
    """Minutes, of those whose departure delay is known; early ones count negative."""
    delay_known: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the job found; ``until_ms`` is the end of the last closed window, milliseconds since 1970."""

    lines: tuple[Line, ...]
    windows: int
    until_ms: int
    rows_read: int


def flights(
    session: Any,
    *,
    bootstrap: str,
    topic: str,
    into: str,
    checkpoint: str,
    summary_topic: str | None,
    report: Report,
    step: Callable[[str], object] = lambda _: None,
    security: Mapping[str, str] | None = None,
) -> Summary:
    """Aggregate what is new, append closed windows to Parquet, write the summary of all of them to a topic.

    ``report`` is called after each batch, ``step`` with a few words before each step. ``security``: the options of TLS.
    """
    brokers = {"kafka.bootstrap.servers": bootstrap, **(security or {})}
    step(f"reading {topic}, counting by day, airport and carrier")
    rows = _aggregate(session, brokers, topic, into, checkpoint, report)
    step("adding up the days")
    windows = session.read.schema(WINDOW_COLUMNS).parquet(into)
    totals = (
        windows.groupBy("origin", "carrier")
        .agg({"flights": "sum", "late": "sum", "delay_sum": "sum", "delay_known": "sum"})
        .selectExpr(
            "origin",
            "carrier",
            "`sum(flights)` flights",
            "`sum(late)` late",
            "`sum(delay_sum)` delay_sum",
            "`sum(delay_known)` delay_known",
        )
        .orderBy("origin", "carrier")
        .cache()
    )
    if summary_topic:
        (
            totals.selectExpr("concat(origin, '/', carrier) key", "to_json(struct(*)) value")
            .write.format("minikafka")
            .options(**brokers)
            .option("topic", summary_topic)
            .mode("append")
            .save()
        )
    lines = tuple(Line(**row.asDict()) for row in totals.collect())
    ends = windows.selectExpr("count(*) count", "coalesce(max(unix_millis(end)), 0) until").collect()[0]
    return Summary(lines=lines, windows=ends["count"], until_ms=ends["until"], rows_read=rows)


def _aggregate(session: Any, brokers: Mapping[str, str], topic: str, into: str, checkpoint: str, report: Report) -> int:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    records = (
        session.readStream.format("minikafka")
        .options(**brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("minPartitions", "2")
        .load()
    )
    parsed = records.select("timestamp", f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight"))
    windows = (
        parsed.select("timestamp", "flight.*")
        .withWatermark("timestamp", WATERMARK)
        .groupBy(f.window("timestamp", WINDOW), "origin", "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(f.col("dep_delay") >= LATE_MINUTES).alias("late"),
            f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("delay_sum"),
            f.count("dep_delay").alias("delay_known"),
        )
        .selectExpr(
            "window.start start", "window.end end", "origin", "carrier", "flights", "late", "delay_sum", "delay_known"
        )
    )
    writer = (
        windows.writeStream.format("parquet")
        .option("path", into)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
    )
    return run_query(writer, follow=False, report=report)
