"""Where a stream goes on after leaders changed: no JVM, brokers that answer by script (issue 4 Build 2)."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, NullType, StringType, StructField, StructType

from minikafka.blocking.brokers import Topic
from minikafka.blocking.reading import LogTruncated, RetentionPassedPosition
from minikafka.spark import source as module
from minikafka.spark.options import OptionError
from minikafka.spark.places import NothingToRead, Position, StreamOffset
from minikafka.spark.source import MiniKafkaSource
from minikafka.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Reported:
    """What the brokers of a cluster say; any of it can be changed."""

    def __init__(self) -> None:
        self.topic_id = "x"
        self.end = (90, 3)
        self.start = 0
        self.starts_at: dict[TopicPartition, int] = {}
        """Log starts that differ from ``start``."""
        self.epoch_end = 100
        self.partitions = (0,)

    def topics(self, names, *, certain=False):
        return {"a": Topic(topic_id=self.topic_id, partitions=self.partitions)}

    def ends(self, partitions):
        return dict.fromkeys(partitions, self.end)

    def starts(self, partitions):
        return {name: self.starts_at.get(name, self.start) for name in partitions}

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


def at(offset, epoch=3, partitions=(A0,), **more):
    positions = dict.fromkeys(partitions, Position(offset, epoch))
    return StreamOffset(positions=positions, topic_ids={"a": "x"}, **more).to_json()


def tasks(reader, start, end):
    """Partition, start and end of what each task reads, in the order of their numbers."""
    wanted = [each.value for each in reader.partitions(start, end)]
    return [(each.partition.partition, each.start, each.end) for each in wanted]


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
    assert end == at(80, 5, lost={"LogTruncated": {"a-0": 20}}, begins={A0: 80})


def test_a_cut_log_that_grew_again_is_read_from_where_it_was_cut():
    """KIP-101: the offsets are there again, the records are others."""
    reported = Reported()
    reported.end, reported.epoch_end = (150, 5), 80
    reader = stream(reported, failOnDataLoss="false")
    end = reader.latestOffset(at(100, 4), ReadAllAvailable())
    assert end == at(150, 5, lost={"LogTruncated": {"a-0": 20}}, begins={A0: 80})
    wanted = [each.value for each in reader.partitions(at(100, 4), end)]
    assert [(each.start, each.end) for each in wanted] == [(80, 150)]


def test_a_cut_log_that_grew_as_long_again_is_read_from_where_it_was_cut():
    """KIP-101: the same offset of another epoch was taken for a new leader alone, and nothing was read."""
    reported = Reported()
    reported.end, reported.epoch_end = (100, 5), 80
    with pytest.raises(LogTruncated, match=r"at 100 of epoch 4.* at 80: 20 records"):
        stream(reported).latestOffset(at(100, 4), ReadAllAvailable())
    reader = stream(reported, failOnDataLoss="false", maxOffsetsPerTrigger="10")
    end = reader.latestOffset(at(100, 4), ReadAllAvailable())
    assert end == at(90, 5, lost={"LogTruncated": {"a-0": 20}}, begins={A0: 80})
    assert tasks(reader, at(100, 4), end) == [(0, 80, 90)]


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
    assert end == at(80, 5, lost={"LogTruncated": {"a-0": 20}}, begins={A0: 80})
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


def test_topic_that_available_now_leaves_out_has_no_id_in_the_batch_end():
    """It made an empty batch, and was a loss (TopicRecreated) of a query that had read nothing of it."""

    class Growing(Reported):
        def topics(self, names, *, certain=False):
            return super().topics(names) | self.others

    reported = Growing()
    reported.others = {}
    reader = stream(reported, subscribePattern="a|b")
    reader.prepareForTriggerAvailableNow()
    reported.others = {"b": Topic(topic_id="z", partitions=(0,))}
    assert reader.latestOffset(at(90), ReadAllAvailable()) == at(90)
    assert reader.latestOffset(at(80), ReadAllAvailable()) == at(90)


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


def pushed(
    monkeypatch: pytest.MonkeyPatch, *filters: Filter, **options: str
) -> tuple[list[Filter], list[tuple[int, int]]]:
    """What a batch reader leaves to Spark, and the ranges of offsets that it reads of a log from 10 to 90."""
    reported = Reported()
    reported.start = 10
    monkeypatch.setattr(module, "_cluster_of", lambda _: reported)
    source = MiniKafkaSource(
        {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "a", "pushFilters": "true", **options}
    )
    schema = type("Schema", (), {"fieldNames": lambda _: [each.split()[0] for each in source.schema().split(", ")]})()
    reader = source.reader(schema)
    left = list(reader.pushFilters(list(filters)))
    return left, [(each.value.start, each.value.end) for each in reader.partitions()]


OFFSET = ("offset",)


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([EqualTo(OFFSET, 40)], [(40, 41)]),
        ([GreaterThan(OFFSET, 40)], [(41, 90)]),
        ([GreaterThanOrEqual(OFFSET, 40)], [(40, 90)]),
        ([LessThan(OFFSET, 40)], [(10, 40)]),
        ([LessThanOrEqual(OFFSET, 40)], [(10, 41)]),
        ([GreaterThan(OFFSET, 5), LessThan(OFFSET, 95)], [(10, 90)]),
        ([EqualTo(OFFSET, 90)], []),
        ([EqualTo(OFFSET, 9)], []),
        ([GreaterThan(OFFSET, 40), LessThan(OFFSET, 41)], []),
        ([LessThan(OFFSET, 20), GreaterThan(OFFSET, 60)], []),
        ([EqualTo(("partition",), 0), EqualTo(("topic",), "a")], [(10, 90)]),
        ([GreaterThan(("partition",), 0)], []),
        ([LessThanOrEqual(("partition",), 0)], [(10, 90)]),
        ([EqualTo(("topic",), "b")], []),
    ],
)
def test_filters_that_are_pushed_narrow_what_is_read(monkeypatch, filters: list[Filter], ranges: list[tuple[int, int]]):
    """Spark looks at none of the rows again: a bound that is one off would lose a row, or show one too many."""
    assert pushed(monkeypatch, *filters) == ([], ranges)


def test_filters_that_the_source_cannot_apply_are_left_to_spark(monkeypatch):
    """Of columns that have no bounds here, of fields within a column, and with values of another type."""
    others = [
        EqualTo(("timestamp",), 40),
        GreaterThan(("topic",), "a"),
        EqualTo(("offset", "more"), 40),
        EqualTo(OFFSET, True),
        EqualTo(OFFSET, 40.0),
    ]
    assert pushed(monkeypatch, *others) == (others, [(10, 90)])


def test_batch_beyond_the_log_is_refused_or_begins_where_the_log_begins(monkeypatch):
    """What retention has deleted is a loss by name, what no record has reached an error."""
    for name, given in (("startingOffsets", 91), ("endingOffsets", 91)):
        with pytest.raises(OptionError, match=f"{name}: a-0 ends at 90, not at 91"):
            pushed(monkeypatch, **{name: f'{{"a":{{"0":{given}}}}}'})
    assert pushed(monkeypatch, startingOffsets='{"a":{"0":90}}') == ([], [])
    before = {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":20}}'}
    with pytest.raises(RetentionPassedPosition, match="5 lost"):
        pushed(monkeypatch, **before)
    assert pushed(monkeypatch, failOnDataLoss="false", **before) == ([], [(10, 20)])


def test_query_waits_for_enough_records_or_until_its_patience_ends(monkeypatch):
    """minOffsetsPerTrigger and maxTriggerDelay; with Trigger.AvailableNow everything is read at once."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    options = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"}
    reported = Reported()
    reader = stream(reported, **options)
    assert reader.latestOffset(at(81), ReadAllAvailable()) == at(81)
    assert reader.latestOffset(at(80), ReadAllAvailable()) == at(90)
    now[0] += 59.0
    assert reader.latestOffset(at(81), ReadAllAvailable()) == at(81)
    now[0] += 1.0
    assert reader.latestOffset(at(81), ReadAllAvailable()) == at(90)
    assert reader.reportLatestOffset() == StreamOffset(positions={A0: Position(90, 3)}).to_json()
    now[0] += 1.0
    assert reader.latestOffset(at(89), ReadAllAvailable()) == at(89), "the patience of the next batch has begun"
    at_once = stream(reported, **options)
    at_once.prepareForTriggerAvailableNow()
    assert at_once.latestOffset(at(89), ReadAllAvailable()) == at(90)


def test_new_leader_alone_makes_no_batch():
    """Its epoch is not worth one."""
    reported = Reported()
    reported.end = (90, 4)
    assert stream(reported).latestOffset(at(90, 3), ReadAllAvailable()) == at(90, 3)


class Committed:
    """A group that remembers what was committed to it."""

    def __init__(self) -> None:
        self.commits: list[int] = []

    def commit(self, positions, topic_ids):
        self.commits.append((topic_ids["a"], positions[A0].offset))


def test_finished_batches_are_committed_once():
    """Spark says so again when nothing is new."""
    reader = stream(Reported(), commitGroup="g")
    reader._group = group = Committed()
    for offset in (80, 80, 90, 90):
        reader.commit(at(offset))
    assert group.commits == [("x", 80), ("x", 90)]
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(at(90), ReadAllAvailable()) == at(90)
    assert group.commits == [("x", 80), ("x", 90)]
    later = stream(Reported(), commitGroup="g")
    later._group = group
    later.prepareForTriggerAvailableNow()
    assert later.latestOffset(at(90), ReadAllAvailable()) == at(90)
    last = "Trigger.AvailableNow ends here, and Spark commits its last batch no more"
    assert group.commits == [("x", 80), ("x", 90), ("x", 90)], last
    successor = StreamOffset(positions={A0: Position(90, 3)}, topic_ids={"a": "y"})
    later.commit(successor.to_json())
    assert group.commits[3:] == [("y", 90)], "the same offset of the topic's successor"


def test_first_batch_begins_where_the_query_began():
    """Spark makes the start up again when batch 0 is replayed, and ``latest`` is somewhere else by then."""
    reader = stream(Reported())
    end = at(90, start=StreamOffset(positions={A0: Position(40, 3)}, topic_ids={"a": "x"}))
    assert [(each.value.start, each.value.end) for each in reader.partitions(at(70), end)] == [(40, 90)]


def two() -> Reported:
    """A topic of two partitions."""
    reported = Reported()
    reported.partitions = (0, 1)
    return reported


def test_partition_that_is_added_is_read_from_its_beginning():
    """Where its log begins by now."""
    reported = two()
    reported.start = 7
    reader = stream(reported, maxOffsetsPerTrigger="10")
    end = reader.latestOffset(at(90), ReadAllAvailable())
    assert tasks(reader, at(90), end) == [(1, 7, 17)]


@pytest.mark.parametrize("start", [at(90), at(90, initial=True)])
def test_partition_that_is_added_keeps_where_its_first_batch_begins(start):
    """Must be shown (retention): records that a batch had planned and DeleteRecords removed were lost without a word."""
    reported = two()
    end = stream(reported).latestOffset(start, ReadAllAvailable())
    assert tasks(stream(reported), start, end) == [(1, 0, 90)]
    reported.starts_at[A1] = 30
    with pytest.raises(RetentionPassedPosition, match="a-1: the checkpoint stands at 0, the log begins at 30: 30 lost"):
        stream(reported).partitions(start, end)
    assert tasks(stream(reported, failOnDataLoss="false"), start, end) == [(1, 30, 90)]
    assert stream(reported).latestOffset(end, ReadAllAvailable()) == end, "nothing is new"


def test_checkpoint_without_the_beginning_of_a_new_partition_is_read():
    """Earlier versions did not write it down: the log start of the replay is all that is known."""
    reported = two()
    reported.start = 7
    until = at(90, partitions=(A0, A1))
    assert tasks(stream(reported), at(90), until) == [(1, 7, 90)]


def retained(reported: Reported) -> None:
    reported.starts_at[A0] = 95


def half_retained(reported: Reported) -> None:
    reported.starts_at[A0] = 84


def smaller(reported: Reported) -> None:
    reported.partitions = (1,)


def of_another_id(reported: Reported) -> None:
    reported.topic_id = "y"


def cut_since(reported: Reported) -> None:
    reported.epoch_end = 75


@pytest.mark.parametrize(
    ("change", "first", "others"),
    [
        (cut_since, [(0, 80, 85), (0, 85, 90)], [(1, 80, 85), (1, 85, 90)]),
        (retained, [(0, 85, 85), (0, 90, 90)], [(1, 80, 85), (1, 85, 90)]),
        (half_retained, [(0, 84, 85), (0, 85, 90)], [(1, 80, 85), (1, 85, 90)]),
        (smaller, [(0, 85, 85), (0, 90, 90)], [(1, 80, 85), (1, 85, 90)]),
        (of_another_id, [(0, 85, 85), (0, 90, 90)], [(1, 85, 85), (1, 90, 90)]),
    ],
)
def test_batch_that_is_run_again_has_the_same_tasks(change, first, others):
    """Exactly once: notes and sequences are of a task's number, so what the log has lost moves no row to another."""
    reported = two()
    reader = stream(reported, failOnDataLoss="false", minPartitions="4")
    start = at(80, partitions=(A0, A1))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert tasks(reader, start, end) == [(0, 80, 85), (0, 85, 90), (1, 80, 85), (1, 85, 90)]
    change(reported)
    assert tasks(reader, start, end) == first + others


def test_first_batch_says_what_is_gone_before_it_is_written_down():
    """A batch 0 in the checkpoint that lost records could never be run again, whatever startingOffsets says then."""
    reported = Reported()
    reported.start = 85
    begin = at(80, initial=True)
    with pytest.raises(RetentionPassedPosition, match="5 lost"):
        stream(reported).latestOffset(begin, ReadAllAvailable())
    reader = stream(reported, failOnDataLoss="false")
    end = reader.latestOffset(begin, ReadAllAvailable())
    place = StreamOffset(positions={A0: Position(80, 3)}, topic_ids={"a": "x"})
    assert end == at(90, start=place, lost={"RetentionPassedPosition": {"a-0": 5}}, begins={A0: 85})
    assert tasks(reader, begin, end) == [(0, 85, 90)]


@pytest.mark.parametrize(
    ("change", "begins"), [(recreated, [(0, 0, 10), (0, 10, 20)]), (cut, [(0, 80, 90), (0, 90, 100)])]
)
def test_batch_that_begins_elsewhere_has_the_same_tasks_when_it_is_run_again(change, begins):
    """Exactly once: where a batch begins after a loss is in its end, as the log may have lost more by then."""
    reported = Reported()
    change(reported)
    reader = stream(reported, failOnDataLoss="false", maxOffsetsPerTrigger="20", minPartitions="2")
    end = reader.latestOffset(at(100, 3), ReadAllAvailable())
    assert tasks(reader, at(100, 3), end) == begins
    reported.start = begins[0][2]
    assert tasks(reader, at(100, 3), end) == [(0, reported.start, reported.start), begins[1]]
