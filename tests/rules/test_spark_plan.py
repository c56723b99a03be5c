"""Offsets, limits, ranges and losses of the Spark source, without Spark (S39; SPARK 2b, 5; KIP-101)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.blocking.brokers import Topic
from minikafka.blocking.reading import (
    LogTruncated,
    OffsetRange,
    PartitionVanished,
    RetentionPassedPosition,
    TopicRecreated,
)
from minikafka.spark.options import ByGroup, ByOffset, ByTimestamp, ByWord, OptionError, Place, Selection
from minikafka.spark.places import (
    BadOffset,
    Group,
    NoRecordAtTimestamp,
    NothingToRead,
    PartitionFacts,
    Position,
    StreamOffset,
    from_json,
    limited,
    missing,
    new_records,
    present,
    present_or_fail,
    resolve,
    resume,
    split,
    wrong_partitions,
)
from minikafka.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NAMES = [A0, A1, B0]


def test_an_offset_survives_json_with_sorted_keys():
    """SPARK 2b: Spark compares offsets as texts; another order of keys made 29 empty batches."""
    one = StreamOffset(
        positions={B0: Position(3, 1), A1: Position(2), A0: Position(1, 7)}, topic_ids={"b": "y", "a": "x"}
    )
    other = StreamOffset(
        positions={A0: Position(1, 7), B0: Position(3, 1), A1: Position(2)}, topic_ids={"a": "x", "b": "y"}
    )
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert from_json(json.loads(json.dumps(one.to_json()))) == one
    with_start = StreamOffset(
        positions=one.positions, topic_ids=one.topic_ids, start=other, initial=True, begins={B0: 1}
    )
    assert from_json(json.loads(json.dumps(with_start.to_json()))) == with_start
    lossy = StreamOffset(positions=one.positions, lost={"b": {"b-0": 2}, "a": {"a-1": 1, "a-0": 3}}).to_json()
    assert json.dumps(lossy["$lost"]) == '{"a": {"a-0": 3, "a-1": 1}, "b": {"b-0": 2}}', "the query's progress shows it"


def test_an_offset_of_sparks_kafka_source_is_taken():
    """A checkpointed query that moves here has no epochs and no ids yet."""
    assert from_json({"a": {"0": 5}}).positions == {A0: Position(5, -1)}


@pytest.mark.parametrize(
    "bad",
    [
        [],
        {"$ids": 5},
        {"$ids": ["a"]},
        {"a": 5},
        {"a": {"x": 5}},
        {"a": {"0": "5"}},
        {"a": {"0": True}},
        {"$begins": 5},
    ],
)
def test_what_is_no_offset_is_refused(bad):
    """A checkpoint of another source must not be taken for ours."""
    with pytest.raises(BadOffset):
        from_json(bad)


PLACES = st.fixed_dictionaries({name: st.tuples(st.integers(0, 50), st.integers(0, 50)) for name in NAMES})


@given(PLACES, st.integers(1, 60))
def test_a_limit_gives_each_partition_its_share(places, limit):
    """maxOffsetsPerTrigger: proportional, at least one where there is any, never beyond the end, never back."""
    begin = {name: low for name, (low, _) in places.items()}
    end = {name: low + more for name, (low, more) in places.items()}
    found = limited(begin, end, limit)
    assert found.keys() == end.keys()
    for name, at in found.items():
        assert begin[name] <= at <= end[name]
        assert (at > begin[name]) == (end[name] > begin[name])
    assert sum(found[name] - begin[name] for name in NAMES) <= max(limit, len(NAMES))


def test_a_limit_that_is_not_reached_changes_nothing():
    """Everything new is taken when it fits; a partition that the start does not know adds nothing to the count."""
    assert limited({A0: 0}, {A0: 5, B0: 9}, 5) == {A0: 5, B0: 9}
    assert new_records({A0: Position(1)}, {A0: Position(4), B0: Position(9)}) == 3


def test_a_partition_whose_end_went_back_takes_nothing_from_the_others():
    """A log that was cut is shorter than what was read of it; the limit still holds for what is new elsewhere."""
    assert limited({A0: 10, A1: 0}, {A0: 5, A1: 10}, 6) == {A0: 5, A1: 6}
    assert new_records({A0: Position(10), A1: Position(0)}, {A0: Position(5), A1: Position(3)}) == 3


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=4),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 30),
)
def test_a_split_covers_every_range_once(spans, least, most):
    """minPartitions and maxRecordsPerPartition: no record twice, none left out, none empty."""
    ranges = [
        OffsetRange(partition=TopicPartition("t", index), start=start, end=start + size, epoch=4, topic_id="x")
        for index, (start, size) in enumerate(spans)
    ]
    parts = split(ranges, min_partitions=least, max_records=most)
    for whole in ranges:
        own = [part for part in parts if part.partition == whole.partition]
        assert [offset for part in own for offset in range(part.start, part.end)] == list(range(whole.start, whole.end))
        assert all((part.epoch, part.topic_id) == (4, "x") for part in own)
    assert all(part.size > 0 for part in parts)
    assert most is None or all(part.size <= most for part in parts)
    total = sum(whole.size for whole in ranges)
    assert least is None or len(parts) >= min(least, total)


def test_no_range_is_cut_where_there_are_tasks_enough():
    """minPartitions is a least number: ranges of different sizes that reach it stay whole, and no part is empty."""
    large, small = (OffsetRange(partition=name, start=0, end=end) for name, end in ((A0, 90), (A1, 10)))
    assert split([large, small], min_partitions=2) == [large, small]
    tiny = OffsetRange(partition=A0, start=5, end=8)
    assert [(each.start, each.end) for each in split([tiny], min_partitions=10)] == [(5, 6), (6, 7), (7, 8)]


def facts(**changes):
    return PartitionFacts(**({"topic_id": "x", "log_start": 0, "epoch_end": 90} | changes))


def test_a_sound_position_is_where_reading_goes_on():
    """Nothing is lost while the epoch of the position ends at or after it."""
    for known in (facts(), facts(epoch_end=-1), facts(topic_id=None)):
        assert resume(A0, Position(90, 3), "x", known) == resume(A0, Position(90, 3), "x", facts())
    assert resume(A0, Position(90), None, facts(epoch_end=10)).loss is None


def test_losses_are_told_apart():
    """Build 2: truncation, retention, a topic made anew and one that is gone are named, with where to go on."""
    gone = resume(A0, Position(90, 3), "x", None)
    assert isinstance(gone.loss, PartitionVanished)
    anew = resume(A0, Position(90, 3), "x", facts(topic_id="y", log_start=4))
    assert isinstance(anew.loss, TopicRecreated)
    assert anew.offset == 4
    cut = resume(A0, Position(90, 3), "x", facts(epoch_end=70))
    assert isinstance(cut.loss, LogTruncated)
    assert (cut.offset, cut.lost_count) == (70, 20)
    late = resume(A0, Position(90, 3), "x", facts(log_start=100))
    assert isinstance(late.loss, RetentionPassedPosition)
    assert (late.offset, late.lost_count) == (100, 10)
    assert "LogTruncated: a-0" in str(cut.loss)
    assert "failOnDataLoss=false" in str(cut.loss)


def test_partitions_that_are_gone_or_misnamed():
    """A vanished partition is data loss; offsets by hand must name every partition and no other."""
    assert missing({A0: Position(1), B0: Position(1)}, [A0]) == [B0]
    assert wrong_partitions([A0], [A0]) == ""
    told = wrong_partitions([A0, B0], [A0, A1])
    assert "a-1 lack" in told
    assert "b-0 do not exist" in told


def test_truncation_below_the_log_start_goes_on_where_the_log_begins():
    """What stood between is gone twice."""
    cut = resume(A0, Position(90, 3), "x", facts(epoch_end=70, log_start=80))
    assert (cut.offset, cut.lost_count) == (80, 20)
    emptied = resume(A0, Position(90, 3), "x", facts(epoch_end=0))
    assert isinstance(emptied.loss, LogTruncated)
    assert (emptied.offset, emptied.lost_count) == (0, 90)


def test_checkpoint_at_the_log_start_has_lost_nothing():
    """The log was deleted up to there, and all of that was read."""
    at_start = resume(A0, Position(90, 3), "x", facts(log_start=90))
    assert (at_start.offset, at_start.loss) == (90, None)
    unknown = resume(A0, Position(90), None, facts(topic_id="y", epoch_end=-1))
    assert (unknown.offset, unknown.loss) == (90, None), "a checkpoint of Spark's Kafka source has no ids"


class Offsets:
    """Brokers whose logs begin at 10 and end at 90, with a record for each millisecond; epoch 3 leads."""

    def list_offsets(self, times):
        known = {-2: 10, -1: 90}
        return {name: (known.get(time, time if 10 <= time < 90 else -1), 3) for name, time in times.items()}

    def topics(self, names, *, certain=False):
        known = {
            "a": Topic(topic_id="x", partitions=(0, 1)),
            "b": Topic(topic_id="y", partitions=(0,)),
        }
        return {name: each for name, each in known.items() if names is None or name in names}


def test_partitions_that_are_assigned_are_read_and_no_others():
    """One that does not exist is an error, though its topic does."""
    assigned = Selection(assign=(A1, B0))
    for find in (present, present_or_fail):
        found = find(Offsets(), assigned)  # type: ignore[arg-type]
        assert (found.partitions, found.topic_ids) == ((A1, B0), {"a": "x", "b": "y"})
    for lacking in (Selection(assign=(A0, TopicPartition("b", 1))), Selection(topics=("a", "c"))):
        with pytest.raises(NothingToRead, match=r"^(b-1|c): no such topic or partition"):
            present_or_fail(Offsets(), lacking)  # type: ignore[arg-type]


def test_what_a_checkpoint_names_is_there_with_its_partitions_and_its_id():
    """Otherwise it is looked for once more before it counts as lost."""
    found = present(Offsets(), Selection(topics=("a",)))  # type: ignore[arg-type]
    at = Position(1)
    assert found.has(StreamOffset(positions={A0: at}, topic_ids={"a": "x"}))
    assert not found.has(StreamOffset(positions={A0: at, B0: at}, topic_ids={"a": "x"}))
    assert not found.has(StreamOffset(positions={A0: at}, topic_ids={"a": "z"}))


@pytest.mark.parametrize(
    ("place", "positions"),
    [
        (ByWord(word="earliest"), [Position(10), Position(10)]),
        (ByWord(word="latest"), [Position(90, 3), Position(90, 3)]),
        (ByOffset(offsets={B0: -1, A0: -2}), [Position(10), Position(90, 3)]),
        (ByOffset(offsets={A0: 0, B0: 41}), [Position(0), Position(41)]),
        (ByGroup(group="g"), [Position(7, 2), Position(10)]),
        (ByTimestamp(everywhere_ms=41), [Position(41), Position(41)]),
        (ByTimestamp(partitions_ms={A0: 41, B0: 95}, latest_if_none=True), [Position(41), Position(90, 3)]),
    ],
)
def test_places_are_found_at_the_brokers(monkeypatch: pytest.MonkeyPatch, place: Place, positions: list[Position]):
    """The epoch of an end is the leader's; a partition of which a group has committed nothing is read from its start."""
    monkeypatch.setattr(Group, "__init__", lambda *_: None)
    monkeypatch.setattr(Group, "committed", lambda *_: {A0: Position(7, 2)})
    found = resolve(Offsets(), place, (A0, B0), "startingOffsets")  # type: ignore[arg-type]
    assert list(found) == [A0, B0]
    assert list(found.values()) == positions


def test_places_that_do_not_fit_the_partitions_or_their_records_are_refused():
    """Each names the option, or the one that helps."""
    for place in (ByOffset(offsets={A0: 1}), ByTimestamp(partitions_ms={A0: 1})):
        with pytest.raises(OptionError, match=r"option endingOffsets: .* b-0 lack an offset"):
            resolve(Offsets(), place, (A0, B0), "endingOffsets")  # type: ignore[arg-type]
    with pytest.raises(NoRecordAtTimestamp, match="b-0 has no record at or after 95"):
        resolve(Offsets(), ByTimestamp(partitions_ms={A0: 41, B0: 95}), (A0, B0), "startingOffsets")  # type: ignore[arg-type]
