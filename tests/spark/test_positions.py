"""Where a stream goes on after leaders changed: no JVM, brokers that answer by script (issue 4 Build 2)."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, NullType, StringType, StructField, StructType

from minikafka.blocking.brokers import Topic
from minikafka.blocking.reading import LogTruncated
from minikafka.spark.options import OptionError
from minikafka.spark.places import NothingToRead, Position, StreamOffset
from minikafka.spark.source import MiniKafkaSource
from minikafka.types import TopicPartition

A0 = TopicPartition("a", 0)


class Reported:
    """What the brokers of a cluster say; any of it can be changed."""

    def __init__(self) -> None:
        self.topic_id = "x"
        self.end = (90, 3)
        self.start = 0
        self.epoch_end = 100

    def topics(self, names, *, certain=False):
        return {"a": Topic(topic_id=self.topic_id, partitions=(0,))}

    def ends(self, partitions):
        return dict.fromkeys(partitions, self.end)

    def starts(self, partitions):
        return dict.fromkeys(partitions, self.start)

    def list_offsets(self, times):
        return {name: (self.start if time == -2 else self.end[0], -1) for name, time in times.items()}

    def epoch_ends(self, epochs):
        return dict.fromkeys(epochs, self.epoch_end)


def stream(reported, **options):
    given = {"kafka.bootstrap.servers": "127.0.0.1:9"} | options
    if "subscribePattern" not in given:
        given["subscribe"] = "a"
    source = MiniKafkaSource(given)
    schema = type("Schema", (), {"fieldNames": lambda _: [each.split()[0] for each in source.schema().split(", ")]})()
    reader = source.streamReader(schema)
    reader._brokers = reported
    return reader


def at(offset, epoch=3, **more):
    return StreamOffset(positions={A0: Position(offset, epoch)}, topic_ids={"a": "x"}, **more).to_json()


@pytest.mark.parametrize("available_now", [False, True])
def test_no_batch_goes_back_in_the_same_log(available_now):
    """Exactly once: a leader that was replaced, and does not know it yet, tells an end that was passed long ago."""
    reported = Reported()
    reader = stream(reported)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(at(100, 4), ReadAllAvailable()) == at(100, 4)


def test_a_shorter_log_is_a_truncation():
    """KIP-101: where the position's epoch ends below it, the log was cut, and that is raised, or counted."""
    reported = Reported()
    reported.end, reported.epoch_end = (80, 5), 80
    with pytest.raises(LogTruncated, match=r"at 100 of epoch 4.* at 80: 20 records"):
        stream(reported).latestOffset(at(100, 4), ReadAllAvailable())
    end = stream(reported, failOnDataLoss="false").latestOffset(at(100, 4), ReadAllAvailable())
    assert end == at(80, 5, lost={"LogTruncated": {"a-0": 20}})


def test_a_cut_log_that_grew_again_is_read_from_where_it_was_cut():
    """KIP-101: the offsets are there again, the records are others."""
    reported = Reported()
    reported.end, reported.epoch_end = (150, 5), 80
    reader = stream(reported, failOnDataLoss="false")
    end = reader.latestOffset(at(100, 4), ReadAllAvailable())
    assert end == at(150, 5, lost={"LogTruncated": {"a-0": 20}})
    wanted = [each.value for each in reader.partitions(at(100, 4), end)]
    assert [(each.start, each.end) for each in wanted] == [(80, 150)]


def recreated(reported: Reported) -> None:
    reported.topic_id, reported.end, reported.epoch_end = "y", (500, 0), -1


def cut(reported: Reported) -> None:
    reported.end, reported.epoch_end = (500, 5), 80


def deleted_up_to_150(reported: Reported) -> None:
    reported.start, reported.end = 150, (500, 3)


@pytest.mark.parametrize(
    ("change", "start", "end"), [(recreated, 0, 20), (cut, 80, 100), (deleted_up_to_150, 150, 170)]
)
def test_a_limit_counts_from_where_the_batch_begins(change, start, end):
    """A query that stands at 100 read 120 records of a topic that was re-created, and none where 100 is gone."""
    reported = Reported()
    change(reported)
    reader = stream(reported, failOnDataLoss="false", maxOffsetsPerTrigger="20")
    until = reader.latestOffset(at(100, 3), ReadAllAvailable())
    wanted = [each.value for each in reader.partitions(at(100, 3), until)]
    assert [(each.start, each.end) for each in wanted] == [(start, end)]


def test_a_short_topic_that_was_created_again_is_limited_and_waits_for_enough():
    """It ends below the offset where the query stands: it was read whole."""
    reported = Reported()
    recreated(reported)
    reported.end = (60, 0)
    reader = stream(reported, failOnDataLoss="false", maxOffsetsPerTrigger="20", minOffsetsPerTrigger="10")
    until = reader.latestOffset(at(100, 3), ReadAllAvailable())
    assert [(each.value.start, each.value.end) for each in reader.partitions(at(100, 3), until)] == [(0, 20)]
    reported.end = (5, 0)
    assert reader.latestOffset(at(100, 3), ReadAllAvailable()) == at(100, 3)


def test_a_start_beyond_the_end_is_refused():
    """Build 1: startingOffsets by hand that no record has reached would wait, or read again, without a word."""
    reader = stream(Reported(), startingOffsets='{"a":{"0":91}}')
    with pytest.raises(OptionError, match="startingOffsets: a-0 ends at 90, not at 91"):
        reader.initialOffset()


def test_a_cut_log_is_not_read_again_below_the_cut():
    """Its last stable offset may lie below: the marker of a transaction was cut off, and its records were read."""
    reported = Reported()
    reported.end, reported.epoch_end = (70, 5), 80
    reader = stream(reported, **{"failOnDataLoss": "false", "kafka.isolation.level": "read_committed"})
    end = reader.latestOffset(at(100, 4), ReadAllAvailable())
    assert end == at(80, 5, lost={"LogTruncated": {"a-0": 20}})
    assert [each.value for each in reader.partitions(at(100, 4), end)] == []


class Empty(Reported):
    """No topic exists."""

    def topics(self, names, *, certain=False):
        return {}


def test_a_topic_that_is_gone_may_be_lost_with_available_now_as_well():
    """failOnDataLoss=false: the same query went on with any other trigger, and was refused with this one."""
    reader = stream(Empty(), failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(at(100, 4), ReadAllAvailable())
    assert end["$lost"] == {"PartitionVanished": {"a-0": 0}}
    with pytest.raises(NothingToRead):
        stream(Empty()).prepareForTriggerAvailableNow()


def test_a_topic_that_is_created_while_a_query_begins_is_not_gone():
    """Trigger.AvailableNow reads what was there when it was prepared; the beginning is looked up later."""
    source = {"subscribePattern": "a"}
    reader = stream(Empty(), **source)
    reader.prepareForTriggerAvailableNow()
    reader._brokers = Reported()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [each.value for each in reader.partitions(start, end)] == []


def sink(*columns, **options):
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "a"} | options
    schema = StructType([StructField(name, kind) for name, kind in columns])
    return MiniKafkaSource(given).writer(schema, overwrite=False)


HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def test_columns_of_another_type_are_refused_when_the_query_is_planned():
    """As Spark's Kafka sink does; in a task it was a TypeError of Python."""
    for kind in (StringType(), BinaryType(), NullType()):
        sink(("key", kind), ("value", kind), ("partition", IntegerType()), ("headers", HEADERS))
    with pytest.raises(OptionError, match=r"column value is int, string or binary is needed: cast it"):
        sink(("value", IntegerType()))
    with pytest.raises(OptionError, match=r"column partition is string, int or "):
        sink(("value", StringType()), ("partition", StringType()))
    with pytest.raises(OptionError, match=r"column headers is array<string>"):
        sink(("value", StringType()), ("headers", ArrayType(StringType())))
