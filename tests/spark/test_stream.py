"""Streams through a real Spark: exact ends, replays, and the sink (S39, issue 4 Build 2 and 3)."""

from __future__ import annotations

import pytest

from minikafka.spark.options import OptionError
from minikafka.spark.sink import NotMapOnly, exactly_once
from tests.spark.streams import run


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


def test_a_query_from_latest_loses_nothing(kafka, stream):
    """SPARK 2b: the place where a query began is in its first batch, so that records after it are never passed over."""
    kafka.write(stream.topic, 0, [b"old"] * 5)
    query = stream.start({"processingTime": "0 seconds"}, startingOffsets="latest")
    try:
        kafka.until("there is a batch", lambda: bool(query.recentProgress))
    finally:
        query.stop()
    kafka.write(stream.topic, 0, [b"new"] * 7)
    stream.run(startingOffsets="latest")
    assert stream.rows() == [(0, offset) for offset in range(5, 12)]


@pytest.mark.parametrize("how", ["true", "sequences"])
def test_exactly_once_between_topics(how, kafka, stream, tmp_path, read):
    """Build 3: a batch that was written and is run again adds nothing, not even an aborted record."""
    into = kafka.topic()
    kafka.write(stream.topic, 0, [b"%d" % index for index in range(300)])
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": into, "kafka.batch.size": "2048"}
    options |= {"checkpointLocation": str(tmp_path / "sink"), "exactlyOnce": how}
    plain = stream.frame().selectExpr("cast(offset as string) key", "value")

    run(exactly_once(plain, **options))
    # As if the driver had died after all writes, before the commit log: Spark runs the same batch again.
    for commit in (tmp_path / "sink" / "commits").iterdir():
        commit.unlink()
    run(exactly_once(plain, **options))
    for level in ("read_committed", "read_uncommitted"):
        values = [bytes(row.value) for row in read(into, **{"kafka.isolation.level": level}).collect()]
        assert sorted(values) == sorted(b"%d" % index for index in range(300))


def test_sequences_are_for_map_only_queries(stream):
    """Rule 1 of sequences: a task that is run again must get the same rows."""
    options = {"exactlyOnce": "sequences"}
    with pytest.raises(NotMapOnly, match="Aggregate"):
        exactly_once(stream.frame().groupBy("partition").count().selectExpr("cast(count as string) value"), **options)
    with pytest.raises(NotMapOnly, match="other values"):
        exactly_once(stream.frame().selectExpr("cast(rand() as string) value"), **options)


def test_sequences_are_for_queries_that_lose_nothing(stream):
    """Rule 1 of sequences: a task that lost its first records would skip as many others, which were never written."""
    options = {"exactlyOnce": "sequences"}
    exactly_once(stream.frame().select("value"), **options)
    may_lose = stream.frame(failOnDataLoss="false").select("value").where("value is not null")
    with pytest.raises(OptionError, match="sequences needs failOnDataLoss=true"):
        exactly_once(may_lose, **options)
    exactly_once(may_lose)
