"""Batch reads and writes through a real Spark, found by the format's name alone (S39, issue 4 Build 1 and 3)."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import _parse_datatype_string

from minikafka.spark import decode


def test_arrow_schema_is_what_spark_expects(spark):
    """SPARK 2a: a RecordBatch's schema must equal Spark's own translation exactly."""
    for include, schema in ((False, decode.SCHEMA), (True, decode.SCHEMA_WITH_HEADERS)):
        declared = _parse_datatype_string(decode.schema_text(include_headers=include))
        assert to_arrow_schema(declared, timezone="UTC") == schema


def test_a_topic_reads_with_the_columns_of_sparks_kafka_source(kafka, read):
    """Build 1: names, types and nulls of the Kafka connector; no register(), no jar."""
    topic = kafka.topic()
    kafka.write(topic, 0, [b"a", b"b"], key=b"k", headers=[("h", b"1"), ("n", None)])
    kafka.write(topic, 1, [b"c"])
    frame = read(topic, includeHeaders="true")
    assert [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ]
    rows = sorted(frame.collect(), key=lambda row: (row.partition, row.offset))
    assert [(row.key, row.value, row.partition, row.offset, row.timestampType) for row in rows] == [
        (bytearray(b"k"), bytearray(b"a"), 0, 0, 0),
        (bytearray(b"k"), bytearray(b"b"), 0, 1, 0),
        (None, bytearray(b"c"), 1, 0, 0),
    ]
    assert [(each.key, each.value) for each in rows[0].headers] == [("h", bytearray(b"1")), ("n", None)]
    assert rows[2].headers is None
    assert rows[1].timestamp.timestamp() == 1_700_000_000.001


def test_offsets_timestamps_and_splits(kafka, read):
    """Build 1: per-partition JSON, timestamps, minPartitions, maxRecordsPerPartition; each record exactly once."""
    topic = kafka.topic()
    for partition in (0, 1):
        for start in (0, 50):
            kafka.write(topic, partition, [b"%d" % (start + index) for index in range(50)])

    def found(**options):
        frame = read(topic, **options)
        rows = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
        assert len(rows) == len(set(rows))
        return {each: sorted(o for p, o in rows if p == each) for each in (0, 1)}, frame.rdd.getNumPartitions()

    start, end = json.dumps({topic: {"0": 10, "1": -2}}), json.dumps({topic: {"0": -1, "1": 60}})
    got, tasks = found(startingOffsets=start, endingOffsets=end, minPartitions="5")
    assert got == {0: list(range(10, 100)), 1: list(range(60))}
    assert tasks >= 5
    got, tasks = found(maxRecordsPerPartition="30", startingTimestamp="1700000000025")
    assert got == {0: list(range(25, 100)), 1: list(range(25, 100))}
    assert tasks == 6


def test_pushed_filters_narrow_the_ranges(kafka, read):
    """SPARK 2d: partition and offset comparisons leave the plan; a reader with pushFilters only by option."""
    topic = kafka.topic()
    kafka.write(topic, 0, [b"x"] * 40)
    kafka.write(topic, 1, [b"y"] * 40)
    frame = read(topic, pushFilters="true").where("partition = 1 and offset >= 10 and offset < 13")
    assert [row.offset for row in frame.collect()] == [10, 11, 12]


def test_refusals_reach_the_user_as_sentences(spark, kafka, read):
    """D8: a wrong option, a missing topic and a schema by hand are named, not guessed around."""
    topic = kafka.topic()
    for options, told in (
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": json.dumps({topic: {"0": 0}})}, f"{topic}-1 lack an offset"),
        ({"startingTimestamp": "1"}, f"{topic}-0 has no record at or after 1"),
    ):
        with pytest.raises(PySparkException, match=told):
            read(topic, **options).count()
    with pytest.raises(PySparkException, match="no such topic"):
        read("nowhere").count()
    narrow = spark.read.format("minikafka").schema("value binary").option("kafka.bootstrap.servers", kafka.bootstrap)
    with pytest.raises(PySparkException, match="schema of its own"):
        narrow.option("subscribe", topic).load().count()


def test_a_frame_is_written_with_the_columns_of_sparks_kafka_sink(spark, kafka, read):
    """Build 3: key, value, headers, topic, partition; keys go where Kafka's clients put them."""
    from minikafka.client.partitioner import partition_of_key

    one, other = kafka.topic(), kafka.topic()
    rows = [(f"k{index}", f"v{index}", one if index % 2 else other) for index in range(200)]
    frame = spark.createDataFrame(rows, "key string, value string, topic string").repartition(3)

    def written(frame, **options):
        writer = frame.write.format("minikafka").option("kafka.bootstrap.servers", kafka.bootstrap)
        writer.options(**options).mode("append").save()

    written(frame)
    back = [(row.key.decode(), row.value.decode(), row.partition) for row in read(f"{one},{other}").collect()]
    assert sorted(back) == sorted((key, value, partition_of_key(key.encode(), 2)) for key, value, _ in rows)
    third = kafka.topic()
    headers = "array(named_struct('key', 'h', 'value', cast('1' as binary)))"
    written(
        spark.sql(f"select cast('x' as binary) value, 1 partition, {headers} headers"),
        topic=third,
        includeHeaders="true",
    )
    row = read(third, includeHeaders="true").collect()[0]
    assert (row.partition, row.key, bytes(row.headers[0].value)) == (1, None, b"1")
    with pytest.raises(PySparkException, match="topic"):
        written(spark.sql("select 'x' value"))
    with pytest.raises(PySparkException, match="columns extra"):
        written(spark.sql("select 'x' value, 1 extra"), topic=third)
