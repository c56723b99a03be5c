"""Transactions read and written by a real Spark (issue 17, Build 3)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from minikafka.blocking import brokers as client
from minikafka.spark.options import OptionError, parse_sink
from minikafka.spark.sink import BatchWriter, StreamWriter, Written, exactly_once
from minikafka.spark.transactions import JobFailed, TaskTransaction, abort_all, commit_all
from minikafka.types import TopicPartition
from minikafka.wire.records import Record, build_batch
from tests.spark.streams import run

COMMITTED = {"kafka.isolation.level": "read_committed"}
names = itertools.count()


class Transaction:
    """A transaction with one batch of values in partition 0 of a topic."""

    def __init__(self, kafka: Any, topic: str, values: list[bytes]) -> None:
        self._brokers = kafka.brokers
        self._opened = TaskTransaction(self._brokers, f"writer-{next(names)}", timeout_ms=600_000).opened
        records = [Record(index, 1_700_000_000_000, 0, None, value) for index, value in enumerate(values)]
        batch = build_batch(
            records,
            producer_id=self._opened.producer_id,
            producer_epoch=self._opened.epoch,
            base_sequence=0,
            transactional=True,
        )

        def attempt() -> None:
            place = TopicPartition(topic, 0)
            answers = self._brokers.produce(
                [(place, batch)], timeout_s=60, transactional_id=self._opened.transactional_id
            )
            error = client.error_in(answers[0])
            if error is not None:
                raise error

        self._brokers.retrying("writing", attempt)

    def commit(self) -> None:
        commit_all(self._brokers, [self._opened])

    def abort(self) -> None:
        abort_all(self._brokers, [self._opened])


def values_of(frame: Any) -> list[bytes]:
    return [bytes(row.value) for row in sorted(frame.collect(), key=lambda row: (row.partition, row.offset))]


def stable_until(kafka: Any, topic: str, offset: int) -> None:
    """Markers follow a commit: wait until the last stable offset of partition 0 has reached ``offset``."""
    place = TopicPartition(topic, 0)
    stable = client.Brokers(
        [each.address for each in kafka.cluster.files.brokers],
        api_timeout_s=60,
        isolation_level=client.m.READ_COMMITTED,
    )
    kafka.until(f"{topic} is stable up to {offset}", lambda: stable.ends([place])[place][0] >= offset)


def test_read_committed_reads_neither_aborted_nor_open_transactions(kafka, read):
    """Build 3: batch reads with kafka.isolation.level, also of ranges that begin in an aborted transaction."""
    topic = kafka.topic(1)
    kafka.write(topic, 0, [b"plain"])
    Transaction(kafka, topic, [b"aborted"] * 4).abort()
    Transaction(kafka, topic, [b"committed"] * 2).commit()
    stable_until(kafka, topic, 9)
    still_open = Transaction(kafka, topic, [b"open"])
    kafka.write(topic, 0, [b"behind"])
    everything = [b"plain", *[b"aborted"] * 4, *[b"committed"] * 2, b"open", b"behind"]
    assert values_of(read(topic)) == everything
    assert values_of(read(topic, **COMMITTED)) == [b"plain", b"committed", b"committed"]
    assert values_of(read(topic, minPartitions="5", **COMMITTED)) == [b"plain", b"committed", b"committed"]
    still_open.abort()
    stable_until(kafka, topic, 12)
    assert values_of(read(topic, **COMMITTED)) == [b"plain", b"committed", b"committed", b"behind"]


def test_a_stream_waits_at_the_last_stable_offset(kafka, spark, stream):
    """Build 3: what an open transaction holds back is read by a later batch, once; aborted records never."""
    kafka.write(stream.topic, 0, [b"plain"] * 3)
    first, second = Transaction(kafka, stream.topic, [b"yes"] * 2), Transaction(kafka, stream.topic, [b"no"] * 2)
    assert sum(each["numInputRows"] for each in stream.run(**COMMITTED)) == 3
    second.abort()
    first.commit()
    stable_until(kafka, stream.topic, 9)
    assert sum(each["numInputRows"] for each in stream.run(**COMMITTED)) == 2
    assert stream.rows() == [(0, offset) for offset in range(5)]


def sink_options(kafka: Any, into: str, folder: Any) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": into,
        "kafka.batch.size": "2048",
        "checkpointLocation": str(folder / "sink"),
    }


def failing_once(batches: Any) -> Any:
    """The first attempt of each task dies after its first Arrow batch."""
    for batch in batches:
        yield batch
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt dies")


def test_a_task_that_is_run_again_leaves_nothing_of_its_first_attempt(spark, kafka, stream, tmp_path, read):
    """Build 3: exactly once for outside readers; the rows of the first attempt belong to an aborted transaction."""
    into = kafka.topic()
    kafka.write(stream.topic, 0, [b"%d" % index for index in range(300)])
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        rows = stream.frame().select("value").mapInArrow(failing_once, "value binary")
        writer = exactly_once(rows, **sink_options(kafka, into, tmp_path))
        run(writer)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(values_of(read(into, **COMMITTED))) == sorted(b"%d" % index for index in range(300))


@pytest.mark.parametrize("is_random", [False, True])
def test_any_query_is_written_by_one_transaction_a_batch(is_random, kafka, stream, tmp_path, read):
    """Build 3: rows may differ in each run of a batch; the first one that is committed counts."""
    into = kafka.topic()
    kafka.write(stream.topic, 0, [b"%d" % index for index in range(50)])
    kafka.write(stream.topic, 1, [b"%d" % index for index in range(50)])
    if is_random:
        rows = stream.frame().selectExpr("cast(rand() as string) value")
    else:
        rows = stream.frame().groupBy("partition").count().selectExpr("cast(count as string) value")

    def once() -> list[bytes]:
        writer = exactly_once(rows, **sink_options(kafka, into, tmp_path))
        run(writer if is_random else writer.outputMode("complete"))
        return values_of(read(into, **COMMITTED))

    first = once()
    assert len(first) == (100 if is_random else 2)
    for commit in (tmp_path / "sink" / "commits").iterdir():
        commit.unlink()
    assert once() == first


def test_speculation_is_refused():
    """Two attempts of one task would abort each other's transactions."""
    session = SimpleNamespace(conf={"spark.speculation": "true"})
    with pytest.raises(OptionError, match=r"spark.speculation=false"):
        exactly_once(SimpleNamespace(isStreaming=True, sparkSession=session))


def test_a_task_that_is_killed_while_it_writes_leaves_nothing_open(spark, kafka, read):
    """Spark kills the other tasks of a job that fails: the driver aborts their transactions too."""
    into = kafka.topic()
    # Task 0 has written row 0 when task 1 fails, and waits before row 1.
    wait = "reflect('java.lang.Thread', 'sleep', cast(if(id % 2 = 1, 20000 - 6000 * id, 0) as bigint))"
    value = f"concat(repeat('x', 300000), coalesce({wait}, ''), if(id = 3, raise_error('number 3'), ''))"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        frame = spark.range(0, 4, 1, 2).selectExpr(f"{value} value")
        writer = frame.write.format("minikafka").option("kafka.bootstrap.servers", kafka.bootstrap)
        writer = writer.option("kafka.batch.size", "1").option("topic", into).option("transactional", "true")
        with pytest.raises(PySparkException, match="number 3"):
            writer.mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    ends = kafka.until_nothing_is_open([TopicPartition(into, partition) for partition in range(2)])
    assert sum(end for end, _ in ends.values()) > 2
    assert values_of(read(into, **COMMITTED)) == []


def test_a_task_that_writes_after_its_job_has_failed_leaves_nothing_open(kafka, monkeypatch):
    """Spark kills the tasks of a failed job after a while: one that is so late must hold no reader back.

    A CI run waited 180 s for such a task's transaction (stop 42).
    """
    into = kafka.topic(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": into, "transactional": "true"}
    writer = BatchWriter(parse_sink(options, streaming=False))
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: SimpleNamespace(partitionId=lambda: 0)))
    rows = [pa.RecordBatch.from_pydict({"value": [b"late"]})]

    def end() -> int:
        place = TopicPartition(into, 0)
        return kafka.until_nothing_is_open([place])[place][0]

    writer.abort([writer.write(iter(rows)), None])
    assert end() == 2
    with pytest.raises(JobFailed, match="this task writes nothing"):
        writer.write(iter(rows))
    assert end() == 2


LARGE = 300_000
"""Bytes of a row that pushes the rows before it through all buffers to the sink."""


def enlarged(go_on: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Rows as large ones; a task waits before its fourth row until the file is there."""

    def enlarge(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            while number >= 3 and not go_on.exists():
                time.sleep(0.05)
            yield pa.RecordBatch.from_pydict({"value": [batch["value"][0].as_py() * LARGE]})

    return enlarge


def test_a_query_that_is_stopped_leaves_nothing_open(spark, kafka, stream, tmp_path, read):
    """`query.stop()` in the middle of a batch: Spark kills its tasks, and says to the driver neither query nor run."""
    into, go_on = kafka.topic(1), tmp_path / "go on"
    values = [b"%d" % index for index in range(5)]
    kafka.write(stream.topic, 0, values)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        rows = stream.frame().select("value").mapInArrow(enlarged(go_on), "value binary")
        writer = exactly_once(rows, **sink_options(kafka, into, tmp_path))
        query = writer.start()
        place = TopicPartition(into, 0)
        kafka.until("the first row is written", lambda: kafka.brokers.ends([place])[place][0] > 0)
        query.stop()
        kafka.until_nothing_is_open([place])
        assert values_of(read(into, **COMMITTED)) == []
        go_on.touch()
        run(writer)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    stable_until(kafka, into, kafka.brokers.ends([place])[place][0])
    assert values_of(read(into, **COMMITTED)) == [each * LARGE for each in values]


def test_a_task_that_writes_after_its_query_was_stopped_leaves_nothing_open(kafka, monkeypatch):
    """As of a batch write: the run that was stopped has a mark, and the next run of the query goes on."""
    into = kafka.topic(1)
    properties = {"sql.streaming.queryId": "q-stopped", "streaming.sql.batchId": "0"}
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=properties.get)
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: context))
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": into, "exactlyOnce": "true"}
    options |= {"exactlyOnce.plan": "one-task", "exactlyOnce.writer": "w"}

    def new_writer() -> StreamWriter:
        return StreamWriter(parse_sink(options, streaming=True))

    def write(writer: StreamWriter, value: bytes) -> Written:
        return writer.write(iter([pa.RecordBatch.from_pydict({"value": [value]})]))

    def end() -> int:
        place = TopicPartition(into, 0)
        return kafka.until_nothing_is_open([place])[place][0]

    tasks = new_writer()
    write(tasks, b"stopped")
    new_writer().abort([None], 0)
    assert end() == 2
    with pytest.raises(JobFailed, match="this task writes nothing"):
        write(tasks, b"late")
    assert end() == 2
    next_run = write(new_writer(), b"next run")
    with pytest.raises(JobFailed, match="this task writes nothing"):
        write(tasks, b"later still")
    new_writer().commit([next_run], 0)
    assert end() == 4


def test_a_batch_write_shows_all_or_nothing(spark, kafka, read):
    """Batch writes: transactional=true; a job that fails leaves no record for read_committed."""
    into = kafka.topic()

    def write(expression: str) -> None:
        frame = spark.range(0, 400, 1, 4).selectExpr(f"cast({expression} as string) value")
        writer = frame.write.format("minikafka").option("kafka.bootstrap.servers", kafka.bootstrap)
        writer.option("topic", into).option("transactional", "true").mode("append").save()

    with pytest.raises(PySparkException, match="number 399"):
        write("if(id = 399, raise_error('number 399'), id)")
    assert values_of(read(into, **COMMITTED)) == []
    write("id")
    kafka.until_nothing_is_open([TopicPartition(into, partition) for partition in range(2)])
    assert sorted(values_of(read(into, **COMMITTED))) == sorted(b"%d" % index for index in range(400))
