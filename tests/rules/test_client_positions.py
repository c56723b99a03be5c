"""Where a consumer stands, and what it may hand out (S35, S36, KIP-320)."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.client.metadata import Leader
from minikafka.client.positions import NEVER, RECORDS_AT_ONCE, PartitionState, Positions
from minikafka.client.structs import LogTruncation, NoOffsetForPartition
from minikafka.errors import CorruptMessage, InvalidTopic, NotLeaderOrFollower, OffsetOutOfRange
from minikafka.types import NO_EPOCH, TopicPartition
from minikafka.wire.batch import RecordBatch, from_offset, iterate, with_fields
from minikafka.wire.markers import EndTransaction, marker_batch
from minikafka.wire.messages import AbortedTransaction, EpochAnswer, FetchedPartition, ListedOffset
from minikafka.wire.records import Record, build_batch, control_batch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(base: int, count: int, *, epoch: int = 1) -> bytes:
    records = [Record(index, 1000 + index, value=b"%d" % (base + index)) for index in range(count)]
    return build_batch(records, base_offset=base, leader_epoch=epoch)


def fetched(*data: bytes) -> FetchedPartition:
    return FetchedPartition(topic="t", partition=0, high_watermark=99, records=(b"".join(data),))


class Story:
    """Positions with partitions led by node 1 in epoch 1."""

    def __init__(self, *partitions: TopicPartition, policy: str = "earliest", **settings: Any) -> None:
        self.positions = Positions(reset_policy=policy, **settings)
        self.positions.assign(partitions or [T0])
        self.leaders = dict.fromkeys(partitions or [T0], Leader(1, 1))
        self.topic_id: str | None = None

    def wanted(self, now: float = 0.0):
        return self.positions.wanted(lambda each: self.leaders[each], now, lambda _topic: self.topic_id)

    def state(self, partition: TopicPartition = T0) -> PartitionState:
        return self.positions.states[partition]

    def arrive(
        self,
        *data: bytes,
        partition: TopicPartition = T0,
        high_watermark: int = 99_999,
        aborted: tuple[AbortedTransaction, ...] | None = None,
    ) -> bool:
        """What is wanted of the partition is asked for and answered with ``data``."""
        (asked,) = [state for state in self.wanted().fetches[1] if state.partition == partition]
        asked.busy = True
        answer = FetchedPartition(
            topic="t",
            partition=partition.partition,
            high_watermark=high_watermark,
            aborted_transactions=aborted,
            records=(b"".join(data),) if data else (),
        )
        return self.positions.fetched(asked, asked.version, asked.fetch_offset, answer)

    def values(self, count: int | None = None) -> list[bytes]:
        return [record.value for records in self.positions.take(count).values() for record in records]


def started(*partitions: TopicPartition, at: int = 0, **settings: Any) -> Story:
    story = Story(*partitions, **settings)
    for partition in story.positions.states:
        story.positions.seek(partition, at)
    return story


def test_without_a_position_the_policy_looks_one_up():
    """S35: earliest and latest ask the leader; until it answers nothing is fetched."""
    for policy in ("earliest", "latest"):
        story = Story(policy=policy)
        wanted = story.wanted()
        assert wanted.fetches == {}
        assert [state.reset for state in wanted.resets[1]] == [policy]
        state = story.state()
        state.busy = True
        assert story.wanted().resets == {}
        listed = ListedOffset(topic="t", partition=0, offset=7, leader_epoch=1)
        story.positions.reset_done(state, state.version, listed, 1)
        assert [each.fetch_offset for each in story.wanted().fetches[1]] == [7]


def test_a_seek_beats_a_reset_under_way():
    """A seek while the position is looked up: the answer that comes later must not move it."""
    story = Story()
    (state,) = story.wanted().resets[1]
    state.busy, version = True, state.version
    story.positions.seek(T0, 42)
    story.positions.reset_done(state, version, ListedOffset(topic="t", partition=0, offset=7), 1)
    assert (story.state().position, story.wanted().fetches[1][0].fetch_offset) == (42, 42)


def test_policy_none_raises_until_a_seek():
    """S35: none raises an error when there is no position, each time, and a seek ends that."""
    story = Story(policy="none")
    for _ in range(2):
        with pytest.raises(NoOffsetForPartition, match="t-0"):
            story.positions.take(10)
        with pytest.raises(NoOffsetForPartition):
            story.positions.take_one()
    assert story.wanted().resets == {}
    story.positions.seek(T0, 3)
    assert story.positions.take(10) == {}
    assert story.wanted().fetches[1][0].fetch_offset == 3


def test_records_below_the_position_are_passed_over():
    """KAFKA-FACTS 3.7: a fetch answers with whole batches from the one that contains the offset."""
    story = started(at=3)
    assert story.arrive(batch(0, 5), batch(5, 2), high_watermark=7)
    assert story.state().fetch_offset == 7
    assert story.values() == [b"3", b"4", b"5", b"6"]
    assert (story.state().position, story.state().high_watermark) == (7, 7)


def test_one_by_one_moves_the_position_one_by_one():
    """The position is the next record to hand out, whatever was fetched ahead."""
    story = started()
    story.arrive(batch(0, 3))
    for expected in range(3):
        assert story.state().position == expected
        record = story.positions.take_one()
        assert record is not None
        assert (record.offset, record.value) == (expected, b"%d" % expected)
    assert story.positions.take_one() is None


def test_a_poll_is_bounded():
    """S36: max.poll.records bounds what one poll hands out; the rest comes with the next."""
    story = started()
    story.arrive(batch(0, 5), batch(5, 5))
    assert story.values(7) == [b"%d" % value for value in range(7)]
    assert story.state().position == 7
    assert story.values(7) == [b"7", b"8", b"9"]


def test_a_large_batch_is_made_part_by_part():
    """However records are asked for: all of them, once, in order; the position is the next one's, the buffer counts."""
    count = 2 * RECORDS_AT_ONCE + 7
    expected = [b"%d" % value for value in range(3, count + 2)]
    for at_once in (None, 1, 10, RECORDS_AT_ONCE, RECORDS_AT_ONCE + 1, count):
        story = started(at=3)
        story.arrive(batch(0, count), batch(count, 2))
        seen: list[bytes] = []
        while got := story.values(at_once):
            seen += got
            assert story.state().position == 3 + len(seen)
            assert story.state().has_buffered is (len(seen) < len(expected))
        assert seen == expected
        assert (story.state().buffered_size, story.positions.opened) == (0, 2)


def test_a_seek_into_a_batch_that_is_half_handed_out():
    """What was not made yet is forgotten with what was."""
    story = started()
    story.arrive(batch(0, 3 * RECORDS_AT_ONCE))
    assert len(story.values(RECORDS_AT_ONCE + 5)) == RECORDS_AT_ONCE + 5
    story.positions.seek(T0, 2)
    assert story.values() == []
    story.arrive(batch(0, 5))
    assert story.values() == [b"2", b"3", b"4"]


def test_the_position_passes_what_compaction_took_from_the_end_of_a_batch():
    """S24: a batch keeps its last offset when its last records are gone; one by one and all at once."""
    count = RECORDS_AT_ONCE + 3
    for at_once in (1, RECORDS_AT_ONCE, None):
        story = started()
        whole = RecordBatch.of(batch(0, count))
        kept = with_fields(whole._replace(last_offset_delta=count + 9), leader_epoch=1) + bytes(whole.data[61:])
        story.arrive(kept)
        assert sum(len(got) for got in iter(lambda: story.values(at_once), [])) == count  # noqa: B023 - used at once
        assert (story.state().position, story.state().has_buffered) == (count + 10, False)


def test_what_a_deserializer_raises_comes_after_all_before_it_and_every_time_until_a_seek():
    """Nothing is lost and nothing passed over: the records before it, of the same poll as well, are handed out."""

    def value_of(data: bytes) -> int:
        return int(data.replace(b"%d" % poisoned, b"poison"))

    poisoned = 2 + RECORDS_AT_ONCE + 3
    for at_once in (None, 1, 10_000):
        story = started(value_of=value_of)
        story.arrive(batch(0, 2), batch(2, 2 * RECORDS_AT_ONCE))
        seen: list[int] = []
        with pytest.raises(ValueError, match="poison") as caught:
            while True:
                seen += story.values(at_once)
        assert seen == list(range(poisoned))
        assert caught.value.__notes__ == [f"in the first record of t-0 from offset {poisoned} on"]
        for _ in range(2):
            with pytest.raises(ValueError, match="poison"):
                story.positions.take_one()
            assert story.state().position == poisoned
        story.positions.seek(T0, poisoned + 1)
        story.arrive(batch(2, 2 * RECORDS_AT_ONCE))
        assert story.values()[0] == poisoned + 1


def test_a_record_that_cannot_be_deserialized_is_told_one_by_one_too():
    """getone: the position stands in front of it, so a seek to the next offset passes over nothing else."""

    def value_of(data: bytes) -> bytes:
        if data == b"2":
            raise ValueError("poison")
        return data

    story = started(value_of=value_of)
    story.arrive(batch(0, 4))
    seen = []
    with pytest.raises(ValueError, match="poison"):
        while (record := story.positions.take_one()) is not None:
            seen.append(record.value)
    assert (seen, story.state().position) == ([b"0", b"1"], 2)
    story.positions.seek(T0, 3)
    story.arrive(batch(0, 4))
    assert story.values() == [b"3"]


def test_partitions_take_turns():
    """S36: a partition that always has data does not starve the other."""
    story = started(T0, T1)
    story.arrive(batch(0, 4), partition=T0)
    story.arrive(batch(0, 4), partition=T1)
    seen = [next(iter(story.positions.take(2))) for _ in range(4)]
    assert seen == [T0, T1, T0, T1]


def test_control_batches_and_gaps_are_passed():
    """Offsets have gaps: markers take offsets and are never handed out; the position goes beyond them."""
    story = started()
    marker = control_batch(1, b"\0" * 6, timestamp_ms=1, base_offset=2, leader_epoch=1)
    story.arrive(batch(0, 2), marker, batch(5, 1))
    assert story.values() == [b"0", b"1", b"5"]
    assert story.state().position == 6
    story.arrive(control_batch(1, b"\0" * 6, timestamp_ms=1, base_offset=6, leader_epoch=1))
    assert story.positions.take_one() is None
    assert story.state().position == 7


def test_paused_partitions_keep_their_buffer():
    """pause: nothing handed out, nothing fetched; resume goes on with what was buffered."""
    story = started(T0, T1)
    story.arrive(batch(0, 2), partition=T0)
    story.positions.pause(T0, paused=True)
    assert story.positions.take(10) == {}
    assert [state.partition for state in story.wanted().fetches[1]] == [T1]
    story.positions.pause(T0, paused=False)
    assert story.values() == [b"0", b"1"]


def test_only_the_asked_partitions_are_read():
    """getone and getmany take partitions; the others stay as they are."""
    story = started(T0, T1)
    story.arrive(batch(0, 1), partition=T0)
    story.arrive(batch(0, 1), partition=T1)
    assert list(story.positions.take(10, {T1: None})) == [T1]
    assert story.positions.take_one({T1: None}) is None
    record = story.positions.take_one({T0: None})
    assert record is not None
    assert record.partition == 0


def test_a_seek_forgets_what_was_under_way():
    """An answer for a position that was left must not be handed out."""
    story = started()
    (asked,) = story.wanted().fetches[1]
    asked.busy = True
    version, offset = asked.version, asked.fetch_offset
    story.positions.seek(T0, 50)
    assert story.wanted().fetches[1] == [asked], "the new position is fetched at once"
    answer = FetchedPartition(topic="t", partition=0, records=(batch(0, 5),))
    assert not story.positions.fetched(asked, version, offset, answer)
    assert story.positions.take(10) == {}
    assert story.state().position == 50


def test_a_removed_partition_gets_nothing():
    """assign replaces: what arrives for a partition that left is dropped; those that stay keep their position."""
    story = started(T0, T1)
    story.arrive(batch(0, 1), partition=T0)
    (asked,) = [state for state in story.wanted().fetches[1] if state.partition == T1]
    story.positions.assign([T0])
    assert not story.positions.fetched(
        asked, asked.version, 0, FetchedPartition(topic="t", partition=1, records=(batch(0, 1),))
    )
    assert story.values() == [b"0"]


def test_a_well_filled_buffer_is_not_fetched():
    """A limit on what is read ahead: below half a fetch's size the next one begins."""
    story = started(buffer_size_low=100)
    story.arrive(batch(0, 50))
    assert story.wanted().fetches == {}
    story.positions.take_one()
    assert story.wanted().fetches != {}


def test_out_of_range_resets_by_policy_after_the_buffer():
    """OFFSET_OUT_OF_RANGE: what was fetched is handed out first, then auto.offset.reset looks up a position."""
    story = started()
    story.arrive(batch(0, 2))
    story.positions.failed(story.state(), story.state().version, OffsetOutOfRange(), 0.0)
    assert story.wanted().resets == {}
    assert story.values() == [b"0", b"1"]
    assert [state.reset for state in story.wanted().resets[1]] == ["earliest"]


def test_out_of_range_with_policy_none_is_an_error():
    """S35: none raises OffsetOutOfRange with the offset, and a seek goes on."""
    story = started(policy="none", at=9)
    story.positions.failed(story.state(), story.state().version, OffsetOutOfRange(), 0.0)
    assert story.wanted().resets == {}
    with pytest.raises(OffsetOutOfRange) as caught:
        story.positions.take_one()
    assert caught.value.facts["offset"] == 9
    story.positions.seek(T0, 0)
    assert 1 in story.wanted().fetches


def test_retriable_errors_wait_and_others_are_told():
    """retriable decides; an error that cannot be helped is raised once, then tried again."""
    story = started()
    story.positions.failed(story.state(), story.state().version, NotLeaderOrFollower(), 5.0)
    assert (story.wanted(4.9).fetches, story.wanted(4.9).deadline) == ({}, 5.0)
    assert 1 in story.wanted(5.0).fetches
    story.positions.failed(story.state(), story.state().version, InvalidTopic("no"), 0.0)
    with pytest.raises(InvalidTopic, match="t-0: no"):
        story.positions.take(1)
    assert 1 in story.wanted(5.0).fetches


def test_nobody_leads():
    """Without a leader metadata is wanted; there is nothing to wait for by time."""
    story = started()
    story.leaders[T0] = Leader(-1, 2)
    wanted = story.wanted()
    assert (wanted.leaderless, wanted.fetches, wanted.deadline) == (True, {}, NEVER)


def test_a_corrupt_batch_stops_at_its_place():
    """CORRUPT_MESSAGE names the offset; what lies before it comes first, and a seek passes it."""
    story = started()
    bad = bytearray(batch(2, 3))
    bad[-1] ^= 1
    story.arrive(batch(0, 2), bytes(bad), batch(5, 1))
    assert story.values() == [b"0", b"1"]
    with pytest.raises(CorruptMessage, match=r"offset 2 .*seek to 5") as caught:
        story.positions.take(10)
    assert (caught.value.facts["offset"], caught.value.facts["next_offset"]) == (2, 5)
    assert story.state().position == 2
    assert story.wanted().fetches[1][0].fetch_offset == 2, "another replica may be whole"
    assert story.positions.opened == 2, "one batch opened, one error told: whoever fetches is to look again"
    story.positions.seek(T0, 5)
    story.arrive(batch(5, 1))
    assert story.values() == [b"5"]


@pytest.mark.parametrize(("byte", "bit"), [(7, 0x02), (23, 0x80)], ids=["baseOffset", "lastOffsetDelta"])
def test_a_batch_that_seems_to_lie_before_others_is_damaged(byte: int, bit: int):
    """Seed 938002498: a rotten bit made a batch end before it begins, and the consumer passed over its record."""
    story = started()
    rotten = bytearray(batch(2, 1))
    rotten[byte] ^= bit
    assert story.arrive(batch(0, 2), bytes(rotten), batch(3, 2))
    assert story.values() == [b"0", b"1"]
    with pytest.raises(CorruptMessage, match="the batch at offset 2 cannot be read"):
        story.values()
    story.positions.seek(T0, 3)
    assert story.arrive(batch(3, 2))
    assert story.values() == [b"3", b"4"]


@pytest.mark.parametrize("byte", [0, 3, 6])
def test_a_batch_that_seems_to_lie_behind_others_is_damaged(byte: int):
    """A rotten base offset that is larger: the record was delivered at an offset that was never written, and the position
    was behind all that follows.
    """
    story = started()
    rotten = bytearray(batch(2, 1))
    rotten[byte] ^= 1
    assert story.arrive(batch(0, 2), bytes(rotten), batch(3, 2))
    assert story.values() == [b"0", b"1"]
    with pytest.raises(CorruptMessage, match="the batch at offset 2 cannot be read"):
        story.values()


def test_a_last_batch_that_seems_to_reach_beyond_the_high_watermark_is_damaged():
    """Nothing follows that it could overlap with; the position went behind records that were not written yet."""
    story = started()
    assert story.arrive(batch(0, 2), batch(258, 1), high_watermark=3)
    assert story.values() == [b"0", b"1"]
    with pytest.raises(CorruptMessage, match="the batch at offset 2 cannot be read"):
        story.values()
    assert (story.state().position, story.wanted().fetches[1][0].fetch_offset) == (2, 2)
    assert story.arrive(batch(2, 1), high_watermark=3)
    assert story.values() == [b"2"]


def test_a_response_of_which_nothing_reaches_the_position_is_damaged():
    """Else the consumer asked for the same again and again, and never said why there was no record."""
    story = started(at=6)
    assert story.arrive(batch(4, 1))
    with pytest.raises(CorruptMessage, match="the batch at offset 6 cannot be read"):
        story.values()
    assert story.state().position == 6


def test_a_batch_behind_a_gap_comes_before_the_damage_behind_it():
    """Compaction leaves gaps; a look at the next batch must not hide the one before it."""
    found = from_offset(iterate(batch(0, 2) + batch(5, 1) + bytes(70)), 0)
    assert [next(found).base_offset, next(found).base_offset] == [0, 5]
    with pytest.raises(CorruptMessage):
        next(found)


def test_an_answer_behind_a_corrupt_batch_does_not_keep_the_partition_busy():
    """What was fetched ahead is of no use any more; from the corrupt batch on it is fetched again."""
    story = started()
    bad = bytearray(batch(2, 3))
    bad[-1] ^= 1
    story.arrive(batch(0, 2), bytes(bad))
    (asked,) = story.wanted().fetches[1]
    asked.busy = True
    version, ahead = asked.version, asked.fetch_offset
    assert story.values() == [b"0", b"1"]
    with pytest.raises(CorruptMessage):
        story.values()
    late = FetchedPartition(topic="t", partition=0, records=(batch(ahead, 1),))
    assert not story.positions.fetched(asked, version, ahead, late)
    story.arrive(batch(2, 4))
    assert story.values() == [b"2", b"3", b"4", b"5"]


def test_checksums_can_be_left_unchecked():
    """check.crcs=false: the records are read although the checksum is wrong."""
    bad = bytearray(batch(0, 1))
    bad[17] ^= 1
    story = started(check_crcs=False)
    story.arrive(bytes(bad))
    assert story.values() == [b"0"]


def test_bytes_that_are_no_batch():
    """A damaged answer is an error at the fetch offset, not a silent wait."""
    story = started(at=4)
    story.arrive(b"\0" * 10)
    with pytest.raises(CorruptMessage, match="offset 4"):
        story.positions.take_one()


def test_a_new_leader_epoch_is_validated_before_the_next_fetch():
    """KIP-320: the leader of a later epoch confirms the last fetched epoch; then fetching goes on."""
    story = started()
    story.arrive(batch(0, 5, epoch=1))
    story.leaders[T0] = Leader(2, 2)
    wanted = story.wanted()
    assert (wanted.fetches, [state.fetch_epoch for state in wanted.validations[2]]) == ({}, [1])
    state = story.state()
    story.positions.validated(
        state, state.version, 2, EpochAnswer(topic="t", partition=0, leader_epoch=1, end_offset=5)
    )
    assert story.wanted().fetches[2][0].fetch_offset == 5
    assert story.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_committed_position_is_validated_before_the_first_fetch():
    """KIP-320: the log may have been truncated since the commit; without an epoch there is nothing to compare."""
    story = Story()
    story.positions.begin_at(T0, 5, 1)
    wanted = story.wanted()
    assert (wanted.fetches, [state.fetch_epoch for state in wanted.validations[1]]) == ({}, [1])
    story.positions.begin_at(T0, 5, NO_EPOCH)
    wanted = story.wanted()
    assert (wanted.validations, [state.fetch_offset for state in wanted.fetches[1]]) == ({}, [5])


def test_truncation_of_what_was_not_read_goes_unnoticed():
    """KIP-320: records that were only fetched ahead are fetched anew; nobody saw them."""
    story = started()
    story.arrive(batch(0, 5))
    assert story.values(2) == [b"0", b"1"]
    story.leaders[T0] = Leader(2, 2)
    state = story.state()
    story.positions.validated(
        state, state.version, 2, EpochAnswer(topic="t", partition=0, leader_epoch=0, end_offset=3)
    )
    assert story.positions.take(10) == {}
    assert story.wanted().fetches[2][0].fetch_offset == 2
    assert state.fetch_epoch == 0, "the next fetch names it, and a later one would part from the log again"


def test_a_log_that_parts_at_the_position_has_lost_nothing_that_was_read():
    """KIP-320: no error, not even without a policy; only what was fetched ahead is fetched anew."""
    story = started(policy="none")
    story.arrive(batch(0, 5))
    assert story.values(2) == [b"0", b"1"]
    story.leaders[T0] = Leader(2, 2)
    state = story.state()
    answer = EpochAnswer(topic="t", partition=0, leader_epoch=1, end_offset=2)
    story.positions.validated(state, state.version, 2, answer)
    assert story.positions.take(10) == {}
    assert story.wanted().fetches[2][0].fetch_offset == 2


def test_truncation_of_what_was_read():
    """KIP-320: with a policy the position goes back to where the logs part; with none it is an error."""
    for policy in ("latest", "none"):
        story = started(policy=policy)
        story.arrive(batch(0, 5))
        assert len(story.values()) == 5
        story.leaders[T0] = Leader(2, 2)
        state = story.state()
        answer = EpochAnswer(topic="t", partition=0, leader_epoch=0, end_offset=3)
        story.positions.validated(state, state.version, 2, answer)
        if policy == "latest":
            assert story.wanted().fetches[2][0].fetch_offset == 3
            assert (story.state().position, story.state().fetch_epoch) == (3, 0)
        else:
            with pytest.raises(LogTruncation) as caught:
                story.positions.take(10)
            assert (caught.value.facts["offset"], caught.value.facts["end_offset"]) == (5, 3)


def test_a_position_that_went_back_is_validated_with_every_later_leader():
    """KIP-320: the leader that told where the logs part may be deposed before the next fetch."""
    story = started()
    story.arrive(batch(0, 5))
    story.values()
    story.leaders[T0] = Leader(2, 2)
    state = story.state()
    answer = EpochAnswer(topic="t", partition=0, leader_epoch=0, end_offset=3)
    story.positions.validated(state, state.version, 2, answer)
    story.leaders[T0] = Leader(3, 3)
    wanted = story.wanted()
    assert (wanted.fetches, list(wanted.validations)) == ({}, [3])


def test_a_position_that_was_looked_up_is_committed_before_any_record_comes():
    """S34: else a group that began at the latest offset would begin there again, and skip what came meanwhile."""
    story = Story(policy="latest")
    state = story.state()
    listed = ListedOffset(topic="t", partition=0, offset=7, leader_epoch=1)
    story.positions.reset_done(state, state.version, listed, 1)
    assert {name: offset for name, (offset, _) in story.positions.processed().items()} == {T0: 7}


def test_a_commit_names_the_epoch_before_its_offset_not_that_of_what_was_fetched_ahead():
    """KIP-320: with a later epoch the next owner would not notice that the log was cut."""
    story = started()
    story.arrive(batch(0, 2, epoch=1))
    story.arrive(batch(2, 2, epoch=2))
    assert story.values(2) == [b"0", b"1"]
    story.positions.asked()
    assert story.positions.processed() == {T0: (2, 1)}


@pytest.mark.parametrize(
    ("offset", "processed"), [(1, 2), (3, 3), (4, 4), (5, 2)], ids=["before", "some", "all", "of_a_former_position"]
)
def test_what_the_application_commits_it_is_done_with(offset: int, processed: int):
    """S34: of what it was handed since it last asked; an offset beyond was committed before a seek."""
    story = started()
    story.arrive(batch(0, 9))
    story.values(2)
    story.positions.asked()
    story.values(2)
    story.positions.committed(T0, offset, 1)
    story.positions.committed(T1, offset, 1)
    assert story.positions.processed()[T0][0] == processed


def test_an_epoch_the_leader_never_heard_of():
    """KIP-320: an undefined answer means that nothing is in common: reset, or tell."""
    story = started(policy="earliest")
    story.arrive(batch(0, 5))
    story.values()
    story.leaders[T0] = Leader(2, 2)
    state = story.state()
    story.positions.validated(state, state.version, 2, EpochAnswer(topic="t", partition=0))
    assert [each.reset for each in story.wanted().resets[2]] == ["earliest"]


def test_deserializers_apply_to_what_is_there():
    """aiokafka's key_deserializer and value_deserializer; sizes are those of the bytes."""
    story = started(value_of=lambda data: int(data) * 2)
    story.arrive(batch(20, 1))
    story.positions.seek(T0, 20)
    story.arrive(batch(20, 1))
    record = story.positions.take_one()
    assert record is not None
    assert (record.value, record.serialized_value_size, record.key, record.serialized_key_size) == (40, 2, None, -1)
    assert record.headers == (), "a list of its own for each record would have Python look for garbage twice as often"


# ---- aborted transactions --------------------------------------------------------------------------------------------


def written(base: int, *, producer_id: int = 7, transactional: bool = True) -> bytes:
    record = Record(0, 1000, value=b"%d" % base)
    return build_batch(
        [record],
        base_offset=base,
        leader_epoch=1,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )


def ended(base: int, *, commit: bool, producer_id: int = 7) -> bytes:
    marker = EndTransaction(producer_id, 0, commit, 1)
    return marker_batch(marker, timestamp_ms=1000, base_offset=base, leader_epoch=1)


def test_batches_of_aborted_transactions_are_passed_over():
    """From the start that the leader names up to the marker, of that producer only; the position goes on behind them."""
    story = started(at=0)
    story.arrive(
        written(0),
        ended(1, commit=True),
        written(2),
        written(3, producer_id=8),
        written(4, transactional=False),
        ended(5, commit=False),
        written(6),
        aborted=(AbortedTransaction(producer_id=7, first_offset=2),),
    )
    assert story.values() == [b"0", b"3", b"4", b"6"]
    story.arrive(written(7), ended(8, commit=False), aborted=(AbortedTransaction(producer_id=7, first_offset=6),))
    assert story.values() == []
    assert story.state().position == 9


def test_transaction_that_began_before_the_fetch_is_passed_over():
    """Its first batches were read before; the leader names it because its marker lies ahead."""
    story = started(at=5)
    story.arrive(written(5), ended(6, commit=False), aborted=(AbortedTransaction(producer_id=7, first_offset=2),))
    assert story.values() == []


def test_damaged_marker_is_an_error_at_its_place():
    """Without it the rest of the answer cannot be judged; what stands before it is handed out."""
    story = started(at=0, check_crcs=False)
    damaged = bytearray(ended(1, commit=False))
    damaged[61:] = b"\xff" * 17
    story.arrive(written(0), bytes(damaged), written(2), aborted=(AbortedTransaction(producer_id=8, first_offset=0),))
    assert story.values() == [b"0"]
    with pytest.raises(CorruptMessage, match="the batch at offset 1 cannot be read"):
        story.values()


@pytest.mark.parametrize("policy", ["latest", "earliest"])
def test_a_topic_that_was_created_again_is_read_from_its_first_record(policy: str):
    """Issue 13: the position, what was fetched and what is under way are of the former topic. The consumer went on at
    its old position, and passed over the new topic's first records.
    """
    story = started(policy=policy)
    story.topic_id = "former"
    story.arrive(batch(0, 5))
    assert story.values(2) == [b"0", b"1"]
    story.positions.asked()
    assert story.positions.topic_id(T0) == "former"
    state, version = story.state(), story.state().version
    state.busy = True
    story.topic_id = "present"
    wanted = story.wanted()
    assert (wanted.fetches, [each.reset for each in wanted.resets[1]]) == ({}, ["earliest"])
    assert not story.positions.fetched(state, version, 5, fetched(batch(5, 1)))
    assert (story.values(), story.positions.processed(), story.positions.topic_id(T0)) == ([], {}, "present")


def test_a_reset_that_is_under_way_when_its_topic_is_created_again_begins_again():
    """Issue 13: its answer is an offset of the former topic. The policy stays that of the reset."""
    story = Story(policy="latest")
    story.topic_id = "former"
    (state,) = story.wanted().resets[1]
    state.busy = True
    version = state.version
    story.topic_id = "present"
    assert [each.reset for each in story.wanted().resets[1]] == ["latest"]
    story.positions.reset_done(state, version, ListedOffset(topic="t", partition=0, offset=7, leader_epoch=1), 1)
    assert state.position is None


def test_a_topic_that_was_created_again_is_an_error_without_a_policy():
    """Issue 13: the application seeks, and reads the new topic."""
    story = started(policy="none")
    story.topic_id = "former"
    story.arrive(batch(0, 5))
    assert len(story.values()) == 5
    story.topic_id = "present"
    story.wanted()
    with pytest.raises(LogTruncation, match="deleted and created again") as caught:
        story.positions.take(10)
    assert (caught.value.facts["offset"], caught.value.facts["end_offset"]) == (5, 0)
    assert story.wanted().fetches == {}
    story.positions.seek(T0, 0)
    assert story.wanted().fetches[1][0].fetch_offset == 0


def test_a_position_that_is_held_stays_held_when_its_topic_is_created_again():
    """Issue 13: where the group has committed is being looked up; the coordinator compares the topics itself."""
    story = Story()
    story.positions.assign([])
    story.positions.assign([T0], held=True)
    for story.topic_id in ("former", "present"):
        wanted = story.wanted()
        assert (wanted.fetches, wanted.resets, story.positions.is_held(T0)) == ({}, {}, True)
