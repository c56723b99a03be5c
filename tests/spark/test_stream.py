"""Streams through a real Spark: exact ends, replays, losses by name, and the sink (S39, issue 4 Build 2 and 3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from minikafka.spark.sink import NotMapOnly, exactly_once

TIMEOUT_S = 110


class Stream:
    """A streaming query of a topic into Parquet, run piece by piece."""

    def __init__(self, spark: Any, bootstrap: str, topic: str, folder: Any, **options: str) -> None:
        self.spark = spark
        self.out, self.checkpoint = str(folder / "out"), str(folder / "checkpoint")
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
        } | options

    def frame(self, **options: str) -> Any:
        return self.spark.readStream.format("minikafka").options(**self.options | options).load()

    def start(self, trigger: dict[str, Any], **options: str) -> Any:
        return (
            self.frame(**options)
            .select("partition", "offset", "value")
            .writeStream.format("parquet")
            .option("checkpointLocation", self.checkpoint)
            .trigger(**trigger)
            .start(self.out)
        )

    def run(self, **options: str) -> list[dict[str, Any]]:
        """Read what is there now; the progress of each batch."""
        query = self.start({"availableNow": True}, **options)
        try:
            query.awaitTermination(TIMEOUT_S)
            assert not query.isActive
            return [json.loads(each.json) for each in query.recentProgress]
        finally:
            query.stop()

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in self.spark.read.parquet(self.out).collect())


@pytest.fixture
def stream(spark, kafka, tmp_path):
    """A new topic of two partitions and a query of it."""
    topic = kafka.topic()
    made = Stream(spark, kafka.bootstrap, topic, tmp_path)
    made.topic = topic
    return made


def test_available_now_reads_to_the_end_in_limited_batches(kafka, stream):
    """Build 1: maxOffsetsPerTrigger and Trigger.AvailableNow; a second run reads what is new and nothing else."""
    kafka.write(stream.topic, 0, [b"a"] * 60)
    kafka.write(stream.topic, 1, [b"b"] * 30)
    progress = [each for each in stream.run(maxOffsetsPerTrigger="30") if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [30, 30, 30]
    first = progress[0]["sources"][0]["endOffset"]
    assert (first["$start"][stream.topic], first[stream.topic]) == ({"0": 0, "1": 0}, {"0": 20, "1": 10})
    assert "$start" not in progress[1]["sources"][0]["endOffset"]
    kafka.write(stream.topic, 1, [b"c"] * 5)
    assert sum(each["numInputRows"] for each in stream.run()) == 5
    assert stream.rows() == [(0, offset) for offset in range(60)] + [(1, offset) for offset in range(35)]


def _lost(progress):
    """What the batches say was lost."""
    ends = [each["sources"][0]["endOffset"] for each in progress if each["numInputRows"]]
    return [end["$lost"] for end in ends if "$lost" in end]


def test_losses_are_raised_by_name_and_reported_when_allowed(kafka, stream):
    """Must be shown: retention and a topic made anew each raise their own error, or are counted in the progress."""
    kafka.write(stream.topic, 0, [b"a"] * 10)
    stream.run()
    kafka.write(stream.topic, 0, [b"b"] * 10)
    kafka.delete_records(stream.topic, 0, 15)
    with pytest.raises(StreamingQueryException, match=f"RetentionPassedPosition: {stream.topic}-0: .*5 lost"):
        stream.run()
    told = stream.run(failOnDataLoss="false")
    assert _lost(told) == [{"RetentionPassedPosition": {f"{stream.topic}-0": 5}}]
    assert stream.rows() == [(0, offset) for offset in (*range(10), *range(15, 20))]

    kafka.delete(stream.topic)
    kafka.create(stream.topic, 2)
    kafka.write(stream.topic, 0, [b"c"] * 3)
    with pytest.raises(StreamingQueryException, match=f"TopicRecreated: {stream.topic}-0"):
        stream.run()
    told = stream.run(failOnDataLoss="false")
    assert stream.rows()[:3] == [(0, 0), (0, 0), (0, 1)]
    assert _lost(told) == [{"TopicRecreated": {f"{stream.topic}-0": 0, f"{stream.topic}-1": 0}}]

    kafka.delete(stream.topic)
    with pytest.raises(StreamingQueryException, match="no such topic"):
        stream.run()


def test_a_truncated_log_is_noticed(kafka, stream, tmp_path):
    """Must be shown: a checkpoint beyond where its epoch ends in the leader's log is LogTruncated, not silence.

    The log of a cluster that keeps its promises is never cut below its high watermark, so the checkpoint is moved: it
    claims to have read records of an epoch that ended earlier.
    """
    kafka.write(stream.topic, 0, [b"a"] * 10)
    stream.run()
    newest = max((tmp_path / "checkpoint" / "offsets").iterdir(), key=lambda path: path.name)
    version, metadata, offset = newest.read_text().splitlines()
    moved = json.loads(offset)
    moved[stream.topic]["0"] = 14
    newest.write_text("\n".join([version, metadata, json.dumps(moved)]))
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    kafka.write(stream.topic, 0, [b"b"] * 1)
    with pytest.raises(StreamingQueryException, match=f"LogTruncated: {stream.topic}-0.* at 14 of epoch .* at 11"):
        stream.run()


def test_a_query_from_latest_loses_nothing(kafka, stream):
    """SPARK 2b: the place where a query began is in its first batch, so that records after it are never passed over."""
    kafka.write(stream.topic, 0, [b"old"] * 5)
    query = stream.start({"processingTime": "0 seconds"}, startingOffsets="latest")
    try:
        kafka.brokers.retrying("waiting for batch 0", lambda: _at_least_one_batch(query))
    finally:
        query.stop()
    kafka.write(stream.topic, 0, [b"new"] * 7)
    stream.run(startingOffsets="latest")
    assert stream.rows() == [(0, offset) for offset in range(5, 12)]


def _at_least_one_batch(query):
    from minikafka.errors import LeaderNotAvailable

    if query.lastProgress is None or query.lastProgress["batchId"] is None or not query.recentProgress:
        raise LeaderNotAvailable("not yet")


def test_exactly_once_between_topics(spark, kafka, stream, tmp_path, read):
    """Build 3: a batch that was written and is run again adds nothing; a query that is not map-only is refused."""
    into = kafka.topic()
    kafka.write(stream.topic, 0, [b"%d" % index for index in range(300)])
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": into, "kafka.batch.size": "2048"}
    options["checkpointLocation"] = str(tmp_path / "sink")
    plain = stream.frame().selectExpr("cast(offset as string) key", "value")

    def run():
        query = exactly_once(plain, **options).trigger(availableNow=True).start()
        try:
            query.awaitTermination(TIMEOUT_S)
            assert not query.isActive
        finally:
            query.stop()

    run()
    # As if the driver had died after all writes, before the commit log: Spark runs the same batch again.
    for commit in (tmp_path / "sink" / "commits").iterdir():
        commit.unlink()
    run()
    values = [bytes(row.value) for row in read(into).collect()]
    assert sorted(values) == sorted(b"%d" % index for index in range(300))

    with pytest.raises(NotMapOnly, match="Aggregate"):
        exactly_once(stream.frame().groupBy("partition").count().selectExpr("cast(count as string) value"), **options)
    with pytest.raises(NotMapOnly, match="other values"):
        exactly_once(stream.frame().selectExpr("cast(rand() as string) value"), **options)
