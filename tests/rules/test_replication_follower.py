"""The follower's rules: what to ask, and what each answer makes it do."""

from __future__ import annotations

import pytest
from msgspec import structs

from minikafka.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from minikafka.events import DEBUG, WARNING, level_of
from minikafka.invariant import InvariantViolation
from minikafka.lab.scenario import TruncateByHighWatermark
from minikafka.log.partition_log import PartitionLog
from minikafka.replication.follower import (
    CutTo,
    Extend,
    FollowerReplica,
    NextFetch,
    RestartAt,
    TruncateByLeaderEpoch,
    Wait,
)
from minikafka.types import EpochEnd
from minikafka.wire.messages import EpochEndOffset, FetchedPartition
from tests.rules.log_words import TIME, from_producer
from tests.rules.replication_kit import (
    TP,
    Recorded,
    answer,
    batch,
    follower,
    leader,
    log_of,
    new_log,
    seat,
    values,
    write,
)


def said(**facts: object) -> FetchedPartition:
    """An answer of the leader."""
    return structs.replace(FetchedPartition(topic=TP.topic, partition=TP.partition), **facts)  # type: ignore[arg-type]


def refused(code: int, *, start: int = -1, end: int = -1) -> FetchedPartition:
    return said(error_code=code, log_start_offset=start, log_end_offset=end)


# ---- asking ----------------------------------------------------------------------------------------------------------


def test_it_asks_from_its_end_and_says_how_its_log_ends():
    """S5, KIP-320, KIP-595: the offset is the acknowledgement, the epochs are what the leader checks."""
    f = follower(log_of((0, 2), (3, 1)), epoch=4, high_watermark=1)
    assert f.next_fetch() == NextFetch(offset=3, last_fetched_epoch=3, leader_epoch=4, start_offset=0, high_watermark=1)


def test_it_does_not_cut_when_it_begins_to_follow():
    """S21: the log stays as it is until the leader says where the two part."""
    log = log_of((0, 3))
    assert follower(log, epoch=1, high_watermark=1).log.end_offset == 3


# ---- records ---------------------------------------------------------------------------------------------------------


def test_records_are_stored_as_they_came():
    """D4, S8: byte for byte, with the leader's offsets and epochs."""
    led = leader(log_of((0, 2), (1, 1)), isr=(1,), replicas=(1, 2), epoch=1)
    f = follower(epoch=1)
    step = f.on_response(answer(led, 0), asked=0)
    assert isinstance(step, Extend)
    f.append(step.batches)
    mine, theirs = (log.read(0, max_bytes=1 << 20).buffers for log in (f.log, led.log))
    assert b"".join(map(bytes, mine)) == b"".join(map(bytes, theirs))
    assert f.log.epochs.entries == [(0, 0), (1, 2)]


def test_what_was_appended_is_said_once_for_each_leader_epoch():
    """The epochs of a fetch's batches in order, each with the offsets of its records: journals and explain read them."""
    events = Recorded()
    led = leader(log_of((0, 2), (1, 1), (3, 3)), isr=(1,), replicas=(1, 2), epoch=3)
    f = follower(epoch=3, events=events)
    step = f.on_response(answer(led, 0), asked=0)
    assert isinstance(step, Extend)
    f.append(step.batches)
    appended = [(each["epoch"], each["base"], each["end"]) for each in events.of("batch_appended")]
    assert appended == [(0, 0, 2), (1, 2, 3), (3, 3, 6)]


def test_the_watermark_is_assigned_and_may_go_down():
    """KAFKA-FACTS 3.4: after a change of leader the new leader's may be lower; a maximum would be a guess."""
    f = follower(log_of((0, 3)), epoch=1, high_watermark=3)
    assert f.on_durable(2, 0)
    assert f.high_watermark == 2
    assert not f.on_durable(2, 0)


def test_the_leaders_log_start_is_followed():
    """KAFKA-FACTS 3.4: records that the leader has deleted go here as well, and never beyond the own end."""
    f = follower(log_of((0, 3)))
    f.on_durable(3, 2)
    assert f.log.start_offset == 2
    f.on_durable(9, 9)
    assert (f.log.start_offset, f.high_watermark) == (3, 3)


def test_records_below_the_end_are_refused():
    """Bytes that overlap the log would change what was acknowledged."""
    led = leader(log_of((0, 3)))
    f = follower(log_of((0, 2)))
    step = f.on_response(answer(led, 1), asked=2)
    assert isinstance(step, Extend)
    with pytest.raises(CorruptMessage):
        f.append(step.batches)
    assert f.log.end_offset == 2


def test_an_empty_log_may_begin_inside_a_batch():
    """KAFKA-6975: the leader's log starts in the middle of a batch; the follower restarted there and is sent the whole."""
    log = new_log()
    led = leader(log)
    write(led, "x")
    led.append(batch("a", "b", "c"), acks=1, wall_ms=0)  # offsets 1 to 3
    log.raise_start(2)
    f = follower()
    step = f.on_response(refused(OffsetOutOfRange.code, start=2, end=4), asked=0)
    assert step == RestartAt(2)
    f.restart_at(2)
    given = f.on_response(answer(led, 2), asked=2)
    assert isinstance(given, Extend)
    f.append(given.batches)
    assert f.log.end_offset == 4


def test_a_log_of_which_only_deleted_records_would_stay_restarts_at_the_leaders_start():
    """Records 1 to 2 of epoch 0 are uncommitted and were lost; the leader of epoch 1 wrote others, and deleted up to 2.

    It knows that record 2 is another one, and not that record 1 is: what a producer wrote there is not in its log.
    """
    log = log_of((0, 1))
    log.assign_epoch(1, 1)
    led = leader(log, epoch=1)
    for value in "abc":
        led.append(batch(value), acks=1, wall_ms=0)
    log.raise_start(2)
    mine = log_of((0, 1))
    for sequence, value in enumerate("xy"):
        mine.append_as_leader(from_producer(7, sequence, value), leader_epoch=0, wall_ms=TIME)
    f = follower(mine, epoch=1)
    parted = led.diverging(3, 0)
    assert parted == EpochEnd(0, 2)
    step = f.on_response(
        said(diverging_epoch=EpochEndOffset(epoch=0, end_offset=2), log_start_offset=2, log_end_offset=4), asked=3
    )
    assert step == RestartAt(2)
    f.restart_at(2)
    assert (f.log.start_offset, f.log.end_offset, len(f.log.producers)) == (2, 2, 0)


def test_a_log_whose_records_the_leader_has_all_deleted_restarts_inside_a_batch():
    """Seed 651809993: record 8 of epoch 0 is uncommitted, the leader's batch 8 to 9 of epoch 1 lost offset 8 to DeleteRecords.

    The leader's epochs begin at its log start, so it finds no divergence at 9, and sends the whole batch.
    """
    log = log_of((0, 8))
    log.assign_epoch(1, 8)
    led = leader(log, epoch=1)
    led.append(batch("a", "b"), acks=1, wall_ms=0)
    log.raise_start(9)
    f = follower(log_of((0, 9)), epoch=1)
    given = answer(led, 9)
    assert f.on_response(given, asked=9) == RestartAt(9)
    f.restart_at(9)
    again = f.on_response(given, asked=9)
    assert isinstance(again, Extend)
    f.append(again.batches)
    f.on_durable(10, 9)
    assert (f.log.start_offset, f.log.end_offset) == (9, 10)


def test_a_log_with_records_does_not_begin_anew_inside_a_batch():
    """KAFKA-6975 is for empty logs only: otherwise a wrong answer would wipe the log."""
    led = leader(log_of((0, 1)))
    led.append(batch("a", "b", "c"), acks=1, wall_ms=0)
    f = follower(log_of((0, 2)))
    given = f.on_response(answer(led, 1), asked=2)
    assert isinstance(given, Extend)
    with pytest.raises(CorruptMessage):
        f.append(given.batches)
    assert f.log.end_offset == 2


def test_an_answer_to_another_question_is_a_bug():
    """The driver throws such answers away; were one obeyed, records would land at the wrong place."""
    with pytest.raises(InvariantViolation):
        follower(log_of((0, 2))).on_response(said(), asked=1)


# ---- divergence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mine, leaders, cut",
    [
        # own (epoch, records).., the leader's (epoch, end) -> cut to
        ([(0, 5), (1, 3)], (0, 5), 5),  # epoch 1 is foreign
        ([(0, 5), (1, 3)], (1, 6), 6),  # the leader has less of epoch 1
        ([(0, 5), (1, 3)], (1, 9), 8),  # or more: nothing to cut
        ([(0, 6), (1, 6)], (0, 10), 6),  # KIP-279: the leader has more of epoch 0, what follows here is foreign
        ([(0, 5), (3, 3)], (2, 7), 5),  # the leader's epoch 2 is unknown here: down to the end of 0, ask again
        ([(4, 5)], (2, 3), 0),  # everything is foreign
        ([(0, 3)], (5, 9), 3),  # the leader's is newer than all: bounded by the own end
    ],
)
def test_where_to_cut(mine: list[tuple[int, int]], leaders: tuple[int, int], cut: int):
    """KIP-101, KIP-279: the end of the epoch in whichever log it ends first."""
    log = log_of(*mine)
    f = follower(log, epoch=9)
    diverging = said(diverging_epoch=EpochEndOffset(epoch=leaders[0], end_offset=leaders[1]))
    assert f.on_response(diverging, asked=log.end_offset) == CutTo(cut)


def test_a_diverging_answer_moves_neither_watermark_nor_log_start():
    """KAFKA-14704: truncate first; the watermark beside "you differ" would expose records that are about to go."""
    f = follower(log_of((0, 5), (1, 3)), epoch=2, high_watermark=4)
    diverging = said(
        diverging_epoch=EpochEndOffset(epoch=0, end_offset=5), high_watermark=8, log_start_offset=2, log_end_offset=9
    )
    step = f.on_response(diverging, asked=8)
    assert step == CutTo(5)
    assert (f.high_watermark, f.log.start_offset) == (4, 0)


def test_cutting_below_the_watermark_takes_it_along_and_is_told():
    """KAFKA-FACTS 3.4, S2: a watermark never exceeds the log's end."""
    events = Recorded()
    f = follower(log_of((0, 5)), epoch=1, high_watermark=4, events=events)
    f.cut_to(3)
    assert (f.log.end_offset, f.high_watermark) == (3, 3)
    (told,) = events.of("tail_truncated")
    assert (told["old"], told["new"], told["below_high_watermark"]) == (5, 3, True)


def test_an_epoch_that_began_at_the_end_without_records_goes_too():
    """KAFKA-10706: also when there is nothing to cut; else the leader is asked for an epoch it never had, for ever."""
    log = log_of((0, 3))
    log.assign_epoch(1, 3)
    events = Recorded()
    f = follower(log, epoch=2, events=events)
    assert f.next_fetch().last_fetched_epoch == 1
    f.cut_to(3)
    assert f.next_fetch().last_fetched_epoch == 0
    assert (events.of("tail_truncated"), len(events.of("nothing_truncated"))) == ([], 1)


def test_a_cut_that_removes_nothing_is_no_warning():
    """An operator who reads WARNING tail_truncated must find that records are gone (issue 13)."""
    assert (level_of("nothing_truncated", {}), level_of("tail_truncated", {})) == (DEBUG, WARNING)


def settled(f: FollowerReplica, theirs: PartitionLog) -> int:
    """Ask and cut until the logs agree; how many cuts it took."""
    led = leader(theirs, isr=(1,), epoch=9)
    for cuts in range(20):
        asked = f.next_fetch()
        end = led.diverging(asked.offset, asked.last_fetched_epoch)
        if end is None:
            return cuts
        step = f.on_response(
            said(diverging_epoch=EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)), asked=asked.offset
        )
        assert isinstance(step, CutTo)
        f.cut_to(step.offset)
    raise AssertionError("they never agree")


@pytest.mark.parametrize(
    "mine, theirs, common, cuts",
    [
        ([(0, 10)], [(0, 10)], 10, 0),
        ([(0, 6), (1, 6)], [(0, 10)], 6, 1),  # schedule 3 of KAFKA-FACTS 3.6
        ([(0, 2), (2, 2), (4, 2)], [(0, 2), (1, 2), (3, 2)], 2, 2),
        ([(0, 3), (1, 3), (5, 2)], [(0, 3), (1, 1), (4, 4)], 4, 2),  # two questions until an epoch is common
        ([(7, 4)], [(1, 2), (2, 2)], 0, 1),
        ([], [(0, 5)], 0, 0),
    ],
)
def test_repeated_questions_end_at_the_common_prefix(
    mine: list[tuple[int, int]], theirs: list[tuple[int, int]], common: int, cuts: int
):
    """KIP-279: each round names a smaller epoch, so it ends; what stays is exactly what both have."""
    f = follower(log_of(*mine), epoch=9)
    led = log_of(*theirs)
    assert settled(f, led) == cuts
    assert f.log.end_offset == common
    assert values(f.log) == values(led)[:common]


# ---- out of range ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start, end, expected",
    [
        (0, 2, CutTo(2)),  # the leader's log ends before ours
        (5, 9, RestartAt(5)),  # it starts behind ours
        (0, 3, Wait(OffsetOutOfRange.code, for_metadata=False)),  # neither: it has moved since, ask again
        (3, 9, Wait(OffsetOutOfRange.code, for_metadata=False)),  # it starts where ours ends: nothing is missing
        (-1, -1, Wait(OffsetOutOfRange.code, for_metadata=False)),  # it does not say
    ],
)
def test_out_of_range(start: int, end: int, expected: object):
    """KAFKA-FACTS 3.6: cut to the leader's end, or restart at its start, or ask again."""
    f = follower(log_of((0, 3)))
    assert f.on_response(refused(OffsetOutOfRange.code, start=start, end=end), asked=3) == expected


def test_a_restart_takes_the_watermark_along():
    """KAFKA-9491: else it points below the log's start."""
    f = follower(log_of((0, 3)), high_watermark=3)
    f.restart_at(7)
    assert (f.log.start_offset, f.log.end_offset, f.high_watermark) == (7, 7, 7)
    assert f.next_fetch().last_fetched_epoch == -1


@pytest.mark.parametrize(
    "error, for_metadata",
    [(FencedLeaderEpoch, True), (UnknownLeaderEpoch, False), (NotLeaderOrFollower, False), (KafkaStorageError, False)],
)
def test_errors_make_it_wait(error: type[FencedLeaderEpoch], for_metadata: bool):
    """KAFKA-FACTS 3.6: fenced means that only news can help; everything else may pass by itself."""
    step = follower().on_response(refused(error.code), asked=0)
    assert step == Wait(error.code, for_metadata=for_metadata)


# ---- truncation rules ------------------------------------------------------------------------------------------------


def test_a_log_without_any_epoch_has_only_its_watermark():
    """KAFKA-FACTS 3.6: from the LEO if any epoch is known, else from the watermark."""
    log = new_log()
    log.restart_at(5)
    rule = TruncateByLeaderEpoch()
    assert rule.on_follow(log, 3) == 3
    assert rule.on_follow(log_of((0, 5)), 3) == 5


def test_the_old_rule_cuts_at_the_watermark_and_tells_no_epoch():
    """S22, S23: what production must not do; it exists for the lab and the simulator."""
    f = follower(log_of((0, 5)), epoch=1, high_watermark=3, truncation=TruncateByHighWatermark())
    assert f.log.end_offset == 3
    assert f.next_fetch().last_fetched_epoch == -1
    assert TruncateByHighWatermark().on_diverging(f.log, EpochEnd(0, 9)) == 3


def test_production_has_the_epoch_rule():
    """DESIGN, risks: truncation by watermark is a rule object handed in from outside, with no switch in the product."""
    assert isinstance(seat().truncation, TruncateByLeaderEpoch)


def test_a_follower_notes_that_its_leaders_log_has_gaps():
    """Offsets that compaction left out would be a hole in the log when it is opened under another cleanup.policy."""
    role = follower()
    role.on_response(FetchedPartition(topic="orders", partition=0, has_gaps=True), asked=0)
    assert role.log.has_gaps
