"""Each finding of the history checker: a history that has it, and the nearest one that does not (KAFKA-FACTS 10)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from minikafka.check.findings import (
    KINDS,
    AbortedRead,
    AcknowledgedMissingOnReplica,
    Diverged,
    Duplicate,
    Finding,
    InconsistentOffsets,
    LostWrite,
    NonmonotonicSend,
    PollSkip,
    Shifted,
)
from minikafka.check.history import Expectations, HistoryError, Operation, Recorder
from minikafka.check.verdict import EXAMPLES_MAX, Checker, Verdict, check_operations, merged
from minikafka.types import TopicPartition

COMPLETE = Expectations(final_read_complete=True)


class Story:
    """A history of one partition in a few words."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.recorder = Recorder(self.operations.append, lambda: 0.0)

    def sent(self, *values: str, process: str = "p", sequence: int | None = None, key: str | None = None) -> list[int]:
        return [self.recorder.send(process, "t", value, partition=0, key=key, sequence=sequence) for value in values]

    def acknowledged(self, *values: str, at: int = 0, process: str = "p") -> Story:
        """Sends that were told offsets from ``at`` on."""
        for offset, value in enumerate(values, at):
            self.recorder.acknowledged(self.sent(value, process=process)[0], partition=0, offset=offset)
        return self

    def failed(self, value: str) -> Story:
        self.recorder.failed(self.sent(value)[0], "NOT_ENOUGH_REPLICAS")
        return self

    def unknown(self, value: str) -> Story:
        self.recorder.unknown(self.sent(value)[0], "REQUEST_TIMED_OUT")
        return self

    def read(self, *values: str, at: int = 0, process: str = "c", **marks: int) -> Story:
        return self.read_rows(list(enumerate(values, at)), process=process, **marks)

    def read_rows(self, rows: Sequence[tuple[int, str]], process: str = "c", **marks: int) -> Story:
        self.recorder.poll(process, "t", 0, rows, **marks)
        return self

    def replica(self, node: int, *values: str, high_watermark: int | None = None, log_start: int = 0) -> Story:
        rows = [(offset, 0, value) for offset, value in enumerate(values, log_start)]
        mark = log_start + len(values) if high_watermark is None else high_watermark
        self.recorder.replica(node, "t", 0, high_watermark=mark, log_start=log_start, rows=rows)
        return self

    def verdict(self, expectations: Expectations = COMPLETE) -> Verdict:
        return check_operations(self.operations, expectations)

    def kinds(self, expectations: Expectations = COMPLETE) -> dict[str, int]:
        return self.verdict(expectations).totals


def test_a_clean_history_has_no_finding() -> None:
    """Everything acknowledged is read once, in order, and on every replica."""
    story = Story().acknowledged("a", "b", "c").failed("x").unknown("y").read("a", "b", "c")
    for node in (1, 2, 3):
        story.replica(node, "a", "b", "c")
    verdict = story.verdict()
    assert verdict.ok
    assert verdict.totals == {}
    counts = verdict.counts
    assert (counts.sends, counts.acknowledged, counts.failed, counts.unknown) == (5, 3, 1, 1)
    assert (counts.records_read, counts.offsets_read, counts.polls, counts.replicas) == (3, 3, 1, 3)
    assert (counts.unknown_seen, counts.unread, counts.duplicates, counts.partitions) == (0, 0, 0, 1)


# -- lost-write and unseen -------------------------------------------------------------------------------------------


def test_lost_write_when_a_reader_passed_over_it() -> None:
    """Jepsen's lost-write: acknowledged at 1, something above was read, 1 was read by nobody."""
    verdict = Story().acknowledged("a", "b", "c").read_rows([(0, "a"), (2, "c")]).verdict()
    (finding,) = verdict.of("lost-write")
    assert isinstance(finding, LostWrite)
    assert (finding.offset, finding.value, finding.op, finding.read_up_to, finding.lines) == (1, "b", 2, 3, (3, 4))
    assert verdict.totals == {"lost-write": 1, "int-poll-skip": 1}


def test_an_unread_tail_is_unseen_not_lost() -> None:
    """Nothing above it was read: it may only be late; with a complete final read it is a finding all the same."""
    story = Story().acknowledged("a", "b").read("a")
    assert story.kinds() == {"unseen": 1}
    assert story.verdict(Expectations()).ok
    assert story.verdict(Expectations()).counts.unread == 1


def test_a_partial_reader_proves_loss_only_where_it_went() -> None:
    """Without a complete final read a consumer that began at the end says nothing about the beginning."""
    story = Story().acknowledged("a", "b", "c").read("c", at=2)
    assert story.kinds(Expectations()) == {}
    assert story.kinds() == {"lost-write": 2}
    passing = Story().acknowledged("a", "b", "c").read_rows([(2, "c")], position_before=1)
    assert passing.kinds(Expectations()) == {"lost-write": 1, "poll-skip": 1}


def test_what_one_reader_went_over_stays_proven_when_another_reads_a_part_of_it() -> None:
    """The second reader begins again where the first one began, and ends before it."""
    story = Story().acknowledged("a", "b", "c", "d")
    story.read_rows([(0, "a"), (1, "b"), (3, "d")]).read("a", "b", process="other")
    assert story.kinds(Expectations()) == {"lost-write": 1, "int-poll-skip": 1}
    (finding,) = story.verdict().of("lost-write")
    assert isinstance(finding, LostWrite)
    assert (finding.offset, finding.read_up_to) == (2, 4)


def test_a_short_reading_within_a_longer_one_proves_no_less() -> None:
    """The readers went over [0, 10) and [1, 2): what lies at 5 must have been seen."""
    story = Story().acknowledged("a", at=5).read_rows([], position_before=0, position_after=10)
    story.read_rows([], process="other", position_before=1, position_after=2)
    assert story.kinds(Expectations()) == {"lost-write": 1, "poll-skip": 1}


def test_nothing_below_the_log_start_is_lost() -> None:
    """Retention may take what was acknowledged (S28)."""
    story = Story().acknowledged("a", "b", "c").read("c", at=2)
    start = {TopicPartition("t", 0): 2}
    assert story.kinds(Expectations(final_read_complete=True, log_start=start)) == {}
    story.replica(1, "c", log_start=2).replica(2, "c", log_start=2)
    assert story.kinds() == {}


def test_what_one_replica_must_still_have_is_lost_though_retention_took_it_from_another() -> None:
    """S28: replicas delete on their own; nothing is below the log start that one of them still has."""
    story = Story().acknowledged("a", "b").read("b", at=1)
    for node in (1, 2):
        story.recorder.replica(node, "t", 0, high_watermark=2, log_start=node - 1, rows=[(1, 0, "b")])
    assert story.kinds() == {"lost-write": 1}


def test_a_log_start_that_the_run_names_does_not_bring_back_what_every_replica_has_deleted() -> None:
    """The run names where it deleted last; retention may have gone further."""
    story = Story().acknowledged("a", "b", "c").read("b", "c", at=1)
    for node in (1, 2):
        story.replica(node, "b", "c", log_start=1)
    start = {TopicPartition("t", 0): 0}
    assert story.kinds(Expectations(final_read_complete=True, log_start=start)) == {}


def test_a_record_that_no_replica_has_is_lost_without_any_reader() -> None:
    """S22: both replicas end at 1, the acknowledged record 1 is gone. The lab has no consumers."""
    verdict = Story().acknowledged("m0", "m1").replica(1, "m0").replica(2, "m0").verdict(Expectations())
    assert verdict.totals == {"lost-write": 1}
    assert verdict.findings[0].offset == 1


def test_a_record_that_was_read_and_then_vanished_is_lost() -> None:
    """What a consumer saw must stay (KAFKA-FACTS 10, rule 10)."""
    for values, was_read in ((("a", "b"), True), (("a",), False)):
        story = Story().acknowledged("a", "b").read(*values).replica(1, "a").replica(2, "a")
        [finding] = story.verdict().findings
        assert isinstance(finding, LostWrite)
        assert finding.was_read is was_read


ALL = Expectations(final_read_complete=True, replicas_complete=True)


def test_a_record_of_unknown_outcome_that_was_read_may_not_vanish() -> None:
    """S3: consumers are given committed records, whatever the producer was answered; the log is shorter since, or has
    a hole. A tail may be gone from replicas that nobody promised to be complete.
    """
    cut = Story().unknown("u").read("u").replica(1).replica(2)
    assert cut.kinds(ALL) == {"vanished": 1}
    assert cut.kinds() == {}
    hole = Story().unknown("u").acknowledged("a", at=1).read("u", "a")
    for node in (1, 2):
        hole.recorder.replica(node, "t", 0, high_watermark=2, rows=[(1, 0, "a")])
    [finding] = hole.verdict().findings
    assert (finding.kind, finding.offset, finding.lines) == ("vanished", 0, (5,))
    assert Story().unknown("u").read("u").replica(1, log_start=1).replica(2, log_start=1).kinds(ALL) == {}


def in_the_other_partition(story: Story) -> Story:
    """What was sent to partition 0 stands in partition 1 of all replicas, and was read there."""
    story.recorder.poll("c", "t", 1, [(0, "a")])
    for node in (1, 2):
        story.recorder.replica(node, "t", 0, high_watermark=0)
        story.recorder.replica(node, "t", 1, high_watermark=1, rows=[(0, 0, "a")])
    return story


def test_a_record_in_another_partition_than_it_was_sent_to_is_not_where_it_was_acknowledged() -> None:
    """S26: it is lost where it belongs, and nobody sent it to where it is."""
    assert in_the_other_partition(Story().acknowledged("a")).kinds(ALL) == {"lost-write": 1, "phantom-read": 1}
    assert in_the_other_partition(Story().unknown("a")).kinds(ALL) == {"phantom-read": 1}


def test_a_record_that_was_read_in_another_partition_is_lost_where_it_belongs() -> None:
    """S26, by the word of readers: its own partition was read beyond its place."""
    story = Story().acknowledged("a", "b").read("b", at=1)
    story.recorder.poll("c", "t", 1, [(0, "a")])
    verdict = story.verdict()
    assert verdict.totals == {"lost-write": 1, "phantom-read": 1}
    both = Story().acknowledged("a", "b")
    both.recorder.poll("c", "t", 1, [(5, "a"), (6, "b")])
    assert both.kinds() == {"unseen": 2, "phantom-read": 2}, "they have not moved together within a log"
    assert [(each.partition, each.value) for each in verdict.of("phantom-read")] == [(1, "a")]  # type: ignore[attr-defined]


def test_what_readers_and_replicas_have_at_one_place_are_both_judged() -> None:
    """Nobody sent what the replicas hold; and a value that was sent twice is not found at its other place."""
    story = Story().acknowledged("a").read("a").replica(1, "z").replica(2, "z")
    assert story.kinds() == {"lost-write": 1, "inconsistent-offsets": 1, "phantom-read": 1}
    story = Story().unknown("x").acknowledged("a", "a").replica(1, "x", "a").replica(2, "x", "a")
    assert story.kinds(Expectations()) == {"lost-write": 1, "inconsistent-offsets": 1}
    (finding,) = Story().unknown("x").acknowledged("a", "b").read("x", "b").verdict().of("lost-write")
    assert isinstance(finding, LostWrite)
    assert not finding.was_read, "another record was read there"


def test_replicas_of_a_compacted_topic_may_lack_what_was_replaced() -> None:
    """Each is compacted by itself."""
    story = Story()
    for offset, value in enumerate("ab"):
        story.recorder.acknowledged(story.sent(value, key="k")[0], partition=0, offset=offset)
    story.recorder.replica(1, "t", 0, high_watermark=2, rows=[(0, 0, "a"), (1, 0, "b")])
    story.recorder.replica(2, "t", 0, high_watermark=2, rows=[(1, 0, "b")])
    assert story.kinds(Expectations(compacted=frozenset({"t"}))) == {}
    assert story.kinds(Expectations()) == {"diverged": 1, "acknowledged-missing-on-replica": 1}


def test_unknown_sends_are_never_lost_and_may_appear_once() -> None:
    """An unknown send may stand in the log or not; twice is a duplicate for an idempotent producer."""
    assert Story().unknown("u").acknowledged("a").read("a").verdict().ok
    seen = Story().unknown("u").acknowledged("a", at=1).read("u", "a").verdict()
    assert seen.ok
    assert seen.counts.unknown_seen == 1
    assert Story().unknown("u").acknowledged("a", at=1).read("u", "a", "u").kinds() == {"duplicate": 1}


def test_an_acknowledgement_without_an_offset_is_held_to_its_word() -> None:
    """A broker may answer an old duplicate without its offset: the value must still be there."""
    story = Story().acknowledged("a")
    story.recorder.acknowledged(story.sent("b")[0], partition=None, offset=None)
    assert story.kinds(Expectations()) == {}, "nobody need have read it"
    assert story.read("a").kinds() == {"lost-write": 1}
    assert story.read("b", at=1).kinds() == {}


def test_a_record_acknowledged_without_an_offset_before_a_deleted_one_is_not_lost() -> None:
    """A writer's records stand in the order of its sends: this one stood below the log start (S28)."""

    def kinds(log_start: int, *, process: str = "p", is_idempotent: bool = True) -> dict[str, int]:
        story = Story()
        story.recorder.acknowledged(story.sent("a")[0], partition=0, offset=None)
        story.acknowledged("b", at=5, process=process).acknowledged("c", at=6).read("b", "c", at=5)
        start = {TopicPartition("t", 0): log_start}
        return story.kinds(Expectations(idempotent=is_idempotent, final_read_complete=True, log_start=start))

    assert kinds(5) == {}
    assert kinds(4) == {"lost-write": 1}, "it may have stood at the log start"
    assert kinds(5, process="another") == {"lost-write": 1}, "another process says nothing of its place"
    assert kinds(5, is_idempotent=False) == {"lost-write": 1}, "the order of sends says nothing of its place"


def test_a_record_acknowledged_without_an_offset_is_lost_though_deleted_if_readers_went_over_its_place() -> None:
    """Everything before the writer's next record was read, and the record was not among it."""

    def kinds(*read: str) -> dict[str, int]:
        story = Story()
        story.recorder.acknowledged(story.sent("a")[0], partition=0, offset=None)
        story.acknowledged("b", at=2).acknowledged("x", "y", process="q").read(*read).read("c", at=4, process="d")
        start = {TopicPartition("t", 0): 4}
        return story.acknowledged("c", at=4).kinds(Expectations(final_read_complete=True, log_start=start))

    assert kinds("x", "y") == {"lost-write": 1}
    assert kinds("x") == {}
    assert kinds("a") == {"inconsistent-offsets": 1}, "it was read where another one was acknowledged"


def test_readers_that_took_turns_went_over_a_place_together() -> None:
    """One read [0, 1), another one [1, 2): together they went over everything before the writer's next record."""
    story = Story()
    story.recorder.acknowledged(story.sent("a")[0], partition=0, offset=None)
    story.acknowledged("b", at=2).acknowledged("x", "y", process="q")
    story.read("y", at=1).read("x", process="other").read("c", at=4, process="d").acknowledged("c", at=4)
    start = {TopicPartition("t", 0): 4}
    assert story.kinds(Expectations(final_read_complete=True, log_start=start)) == {"lost-write": 1}


def test_a_record_acknowledged_without_an_offset_after_a_deleted_one_is_lost() -> None:
    """It stands above what its process sent before it, and may stand above the log start."""
    story = Story().acknowledged("a", at=1)
    story.recorder.acknowledged(story.sent("b")[0], partition=0, offset=None)
    story.acknowledged("c", at=7).read("c", at=7)
    start = {TopicPartition("t", 0): 5}
    (finding,) = story.verdict(Expectations(final_read_complete=True, log_start=start)).findings
    assert isinstance(finding, LostWrite)
    assert finding.sentence() == "b of p was acknowledged and is nowhere to be read (acknowledged without an offset)"


# -- duplicate -------------------------------------------------------------------------------------------------------


def test_duplicate_names_both_places() -> None:
    """One value at two offsets (Jepsen's duplicate); allowed, but counted, without idempotence."""
    story = Story().acknowledged("a", "b").read("a", "b", "a")
    verdict = story.verdict()
    assert verdict.totals == {"duplicate": 1}
    (finding,) = verdict.findings
    assert isinstance(finding, Duplicate)
    assert (finding.places, finding.sends) == (((0, 0), (0, 2)), 1)
    (backwards,) = Story().acknowledged("a", "b").read("a", at=2, process="d").read("a", "b").verdict().of("duplicate")
    assert isinstance(backwards, Duplicate)
    assert (backwards.places, backwards.offset) == (((0, 0), (0, 2)), 2), "in the order of offsets, not of reading"
    plain = story.verdict(Expectations(final_read_complete=True, idempotent=False))
    assert plain.ok
    assert plain.counts.duplicates == 1


def test_a_value_sent_twice_may_stand_twice() -> None:
    """Ledgers of real producers repeat values (a heartbeat, a tombstone)."""
    story = Story().acknowledged("a", "a")
    assert story.read("a", "a").kinds() == {}
    assert story.read("a", at=2).kinds() == {"duplicate": 1}
    assert Story().acknowledged("a", "a").read("a").kinds() == {"unseen": 1}
    assert Story().acknowledged("a").failed("a").read("a", "a").kinds() == {"duplicate": 1}


# -- order -----------------------------------------------------------------------------------------------------------


def test_nonmonotonic_send_by_acknowledged_offsets() -> None:
    """A process's later send stands before its earlier one."""
    story = Story().acknowledged("a", at=1).acknowledged("b", at=0).read("b", "a")
    verdict = story.verdict()
    assert verdict.totals == {"nonmonotonic-send": 1}
    (finding,) = verdict.findings
    assert isinstance(finding, NonmonotonicSend)
    assert (finding.values, finding.offsets, finding.ops) == (("a", "b"), (1, 0), (1, 2))
    assert story.verdict(Expectations(idempotent=False)).ok


def test_only_neighbors_in_sending_order_are_compared() -> None:
    """One record that stands too late is one finding, however many come after it."""
    story = Story().acknowledged("a", at=3).acknowledged("b", "c", "d").read("b", "c", "d", "a")
    assert story.kinds() == {"nonmonotonic-send": 1}


def test_two_sends_of_a_value_do_not_stand_at_one_offset() -> None:
    """Both were acknowledged: the second one must stand behind the first one."""
    story = Story().acknowledged("a").acknowledged("a").read("a")
    assert story.kinds() == {"nonmonotonic-send": 1}


def test_order_is_not_owed_between_processes_or_by_unknown_sends() -> None:
    """Two producers race; an unknown send may arrive late."""
    assert (
        Story().acknowledged("a", at=1, process="p").acknowledged("b", at=0, process="q").read("b", "a").kinds() == {}
    )
    assert Story().unknown("u").acknowledged("a").read("a", "u").kinds() == {}


def test_sequences_narrow_the_order_to_a_key() -> None:
    """A process with several tasks numbers its sends per key: other keys may overtake."""

    def two_sends(second_key: str, second_sequence: int) -> Story:
        story = Story()
        (first,) = story.sent("a", key="k", sequence=1)
        (second,) = story.sent("b", key=second_key, sequence=second_sequence)
        story.recorder.acknowledged(first, partition=0, offset=1)
        story.recorder.acknowledged(second, partition=0, offset=0)
        return story.read("b", "a")

    assert two_sends("other", 1).kinds() == {}
    assert two_sends("k", 2).kinds() == {"nonmonotonic-send": 1}
    with pytest.raises(HistoryError, match="sequence 1 does not rise"):
        two_sends("k", 1).verdict()
    story = Story()
    for topic in ("t", "u"):
        story.recorder.send("p", topic, "a", key="k", sequence=1)
    assert story.verdict().ok, "a topic has sequences of its own"


def test_keys_alone_do_not_narrow_the_order() -> None:
    """Without sequences all sends of a process to a partition are expected in their order, whatever their keys."""
    story = Story()
    for value, key, offset in (("a", "j", 1), ("b", "k", 0)):
        story.recorder.acknowledged(story.sent(value, key=key)[0], partition=0, offset=offset)
    assert story.read("b", "a").kinds() == {"nonmonotonic-send": 1}


def test_two_swapped_records_are_reordered_not_duplicated() -> None:
    """The log holds what was acknowledged, at each other's place."""
    assert Story().acknowledged("a", "b", "c").read("b", "a", "c").kinds() == {
        "inconsistent-offsets": 2,
        "nonmonotonic-send": 1,
    }
    by_replicas = Story().acknowledged("a", "b").replica(1, "b", "a").replica(2, "b", "a")
    assert by_replicas.kinds(Expectations()) == {"inconsistent-offsets": 2, "nonmonotonic-send": 1}


def test_a_missing_record_is_one_loss_and_one_shift() -> None:
    """Issue 4: what follows a record that was taken out is told as one stretch, not offset by offset."""
    verdict = Story().acknowledged("a", "b", "c", "d", "e").read("a", "c", "d", "e").verdict()
    assert verdict.totals == {"lost-write": 1, "shifted": 1}
    (shift,) = verdict.of("shifted")
    assert isinstance(shift, Shifted)
    assert (shift.offset, shift.until, shift.distance, shift.count, shift.values) == (2, 5, -1, 3, ("c", "e"))
    assert shift.processes == ("p",)
    assert shift.sentence() == "3 records, acknowledged from 2 to 5 (exclusive), c to e, stand 1 lower"


def test_a_shift_names_all_whose_records_moved():
    """Those in its midst as well: by the first and the last alone nobody could say whose loss it may be."""
    story = Story().acknowledged("x", "a").acknowledged("b", at=2, process="q").acknowledged("c", "d", at=3)
    (shift,) = story.acknowledged("e", at=5, process="n").read(*"abcd").verdict().of("shifted")
    assert isinstance(shift, Shifted)
    assert (shift.values, shift.processes) == (("a", "d"), ("p", "q"))


def test_two_missing_records_shift_in_two_stretches() -> None:
    """Each stretch has its distance; a lost record does not end the one that it lies in."""
    verdict = Story().acknowledged(*"abcdefg").read(*"acdefg").verdict()
    assert verdict.totals == {"lost-write": 1, "shifted": 1}
    verdict = Story().acknowledged(*"abcdefgh").read(*"acdfgh").verdict()
    assert verdict.totals == {"lost-write": 2, "shifted": 2}
    shifts = [finding.evidence() for finding in verdict.of("shifted")]
    assert [(each["distance"], each["count"]) for each in shifts] == [(-1, 2), (-2, 3)]


def test_a_record_too_many_shifts_what_follows_it() -> None:
    """A duplicate, or a record that nobody sent, in the middle of a log that was rewritten."""
    assert Story().acknowledged(*"abcd").read(*"abacd").kinds() == {"duplicate": 1, "shifted": 1}
    assert Story().acknowledged(*"abcd").read(*"abxcd").kinds() == {"phantom-read": 1, "shifted": 1}


def test_a_shift_hides_no_disagreement_between_readers() -> None:
    """Two readers who saw different values there are still named."""
    story = Story().acknowledged(*"abcd").read(*"acd", process="c1").read_rows([(3, "x")], process="c2")
    assert story.unknown("x").kinds() == {"lost-write": 1, "shifted": 1}
    story = Story().acknowledged(*"abcd").unknown("x").read(*"acd", process="c1").read_rows([(1, "x")], process="c2")
    assert story.kinds() == {"lost-write": 1, "shifted": 1, "inconsistent-offsets": 1}


def test_a_shift_explains_no_record_that_went_elsewhere() -> None:
    """The shift may be allowed to one producer (acks=1 in the simulator): what moved otherwise is told by itself."""
    story = Story().acknowledged("a", at=0, process="q").acknowledged("b", "c", at=1).acknowledged("d", at=3)
    verdict = story.read(*"bcad").verdict()
    assert verdict.totals == {"shifted": 1, "inconsistent-offsets": 1}
    (finding,) = verdict.of("inconsistent-offsets")
    assert isinstance(finding, InconsistentOffsets)
    assert finding.values == (("a", "the answer to q"), ("b", "a poll of c"))
    with_it = Story().acknowledged(*"axbcbd").read(*"abcbd").verdict()
    assert with_it.totals["inconsistent-offsets"] == 1, "of x alone: both b moved with the others"


def test_a_record_that_moved_alone_is_named() -> None:
    """The last one: nobody saw anything where it was acknowledged."""
    assert Story().acknowledged("a", at=0).acknowledged("b", at=2).read("a", "b").kinds() == {"shifted": 1}


# -- what stands there -----------------------------------------------------------------------------------------------


def test_inconsistent_offsets_names_who_says_what() -> None:
    """Two readers see different values at one offset (an unclean or diverged leader between)."""
    story = Story().unknown("a").unknown("b").read("a", process="c1").read("b", process="c2")
    (finding,) = story.verdict().of("inconsistent-offsets")
    assert isinstance(finding, InconsistentOffsets)
    assert finding.values == (("a", "a poll of c1"), ("b", "a poll of c2"))
    assert finding.lines == (5, 6)
    assert Story().unknown("a").read("a", process="c1").read("a", process="c2").kinds() == {}


def test_one_offset_acknowledged_twice_is_inconsistent() -> None:
    """Two leaders of one epoch, or a cut of an acknowledged record: both were told offset 0."""
    story = Story().acknowledged("a", at=0, process="p").acknowledged("b", at=0, process="q").read("a")
    assert story.kinds() == {"lost-write": 1, "inconsistent-offsets": 1}
    assert story.verdict().of("lost-write")[0].evidence()["value"] == "b"


def test_an_offset_is_disputed_though_one_of_its_claims_agrees_with_the_first() -> None:
    """Three sends were acknowledged at one offset, and the last one has another value."""
    story = Story()
    for value, process in (("a", "p"), ("a", "q"), ("b", "r")):
        story.acknowledged(value, process=process)
    assert story.kinds(Expectations()) == {"inconsistent-offsets": 1}


def test_readers_and_replicas_must_agree() -> None:
    """What a consumer saw below the high watermark stays so (KAFKA-FACTS 10, rule 10)."""
    story = Story().unknown("a").unknown("b").read("a").replica(1, "b").replica(2, "b")
    assert story.kinds(Expectations()) == {"inconsistent-offsets": 1}


def test_aborted_read_names_the_refusal() -> None:
    """Jepsen's G1a: a send that definitely failed is in the log."""
    verdict = Story().failed("x").acknowledged("a", at=1).read("x", "a").verdict()
    assert verdict.totals == {"aborted-read": 1}
    (finding,) = verdict.findings
    assert isinstance(finding, AbortedRead)
    assert (finding.value, finding.error, finding.seen_by) == ("x", "NOT_ENOUGH_REPLICAS", "c")
    assert verdict.counts.unknown_seen == 0
    assert Story().failed("x").replica(1, "x").replica(2, "x").kinds() == {"aborted-read": 1}


def test_phantom_read_only_where_the_senders_are_known() -> None:
    """A value that nobody sent: damage that passed the checksum, or somebody else's record."""
    assert Story().acknowledged("a").read("a", "ghost").kinds() == {"phantom-read": 1}
    assert Story().read("a", "ghost").kinds() == {}


# -- polls -----------------------------------------------------------------------------------------------------------


def test_nonmonotonic_poll_between_polls() -> None:
    """A process reads an offset again; allowed after a seek or an assignment, or for another process."""
    story = Story().acknowledged("a", "b").read("a", "b")
    again = [(1, "b")]
    assert Story.read_rows(story, again, process="other").kinds() == {}
    assert story.read_rows(again).kinds() == {"nonmonotonic-poll": 1}
    story = Story().acknowledged("a", "b").read("a", "b")
    story.recorder.seek("c", "t", 0, 1)
    assert story.read_rows(again).kinds() == {}
    story.recorder.assign("c", [TopicPartition("t", 0)])
    assert story.read_rows(again).kinds() == {}


def test_nonmonotonic_poll_within_a_poll() -> None:
    """Offsets of one poll must rise."""
    story = Story().acknowledged("a", "b")
    assert story.read_rows([(0, "a"), (0, "a"), (1, "b")]).kinds() == {"int-nonmonotonic-poll": 1}
    twice = Story().acknowledged("a", "b").read_rows([(0, "a"), (1, "b"), (0, "a"), (1, "b"), (1, "b")])
    assert twice.kinds() == {"int-nonmonotonic-poll": 1}, "one finding a poll"


def test_poll_skip_counts_the_records_passed_over() -> None:
    """Offsets 1 and 2 exist and are passed over between polls, by records or by position."""
    story = Story().acknowledged("a", "b", "c", "d").read("a", "b", "c", "d", process="other").read("a")
    (finding,) = story.read("d", at=3).verdict().findings
    assert isinstance(finding, PollSkip)
    assert (finding.kind, finding.offset, finding.until, finding.count) == ("poll-skip", 1, 3, 2)
    by_position = Story().acknowledged("a", "b").read("a", "b", process="other")
    assert by_position.read("a", position_before=0, position_after=2).kinds() == {"poll-skip": 1}
    between = Story().acknowledged("a", "b", "c").read("a", "b", "c", process="other").read("a")
    assert between.read("c", at=2, position_before=2).kinds() == {"poll-skip": 1}


def test_a_gap_without_records_is_no_skip() -> None:
    """Offsets that no record has (a dropped unknown batch, retention) may be passed over."""
    story = Story().acknowledged("a").acknowledged("d", at=3).read_rows([(0, "a"), (3, "d")])
    assert story.kinds() == {}
    story = Story().acknowledged("a", "b").read("a", process="c").read("b", at=1)
    assert story.kinds() == {}
    deleted = Story().acknowledged("a", "b", "c")
    deleted.recorder.seek("c", "t", 0, 0)
    deleted.read("c", at=2)
    assert deleted.kinds(Expectations()) == {"lost-write": 2, "poll-skip": 1}
    assert deleted.kinds(Expectations(log_start={TopicPartition("t", 0): 2})) == {}


def test_int_poll_skip_within_a_poll() -> None:
    """A hole in one poll where another process read a record."""
    story = Story().acknowledged("a", "b", "c").read("a", "b", "c", process="other")
    assert story.read_rows([(0, "a"), (2, "c")]).kinds() == {"int-poll-skip": 1}
    by_replicas = Story().acknowledged("a").unknown("u").acknowledged("b", at=2).read_rows([(0, "a"), (2, "b")])
    assert by_replicas.replica(1, "a", "u", "b").replica(2, "a", "u", "b").kinds() == {"int-poll-skip": 1}


def test_read_above_the_high_watermark() -> None:
    """S3: consumers see records below HW only; HW is exclusive (S2)."""
    assert Story().acknowledged("a", "b").read("a", "b", high_watermark=2).kinds() == {}
    assert Story().acknowledged("a", "b").read("a", "b", high_watermark=1).kinds() == {"read-above-hw": 1}
    one_a_poll = Story().acknowledged("a", "b", "c").read("a", "b", "c", high_watermark=1)
    assert one_a_poll.kinds() == {"read-above-hw": 1}


# -- replicas --------------------------------------------------------------------------------------------------------


def test_diverged_replicas_below_the_high_watermark() -> None:
    """S23: offset 1 differs for good. Above the lower high watermark a tail may still be cut."""
    verdict = Story().unknown("m0").unknown("m1").unknown("n1").replica(1, "m0", "m1").replica(2, "m0", "n1").verdict()
    assert verdict.totals == {"diverged": 1}
    (finding,) = verdict.findings
    assert isinstance(finding, Diverged)
    assert (finding.offset, finding.holdings) == (1, ((1, 0, "m1"), (2, 0, "n1")))
    tail = Story().unknown("m0").unknown("m1").unknown("n1").replica(1, "m0", "m1")
    assert tail.replica(2, "m0", "n1", high_watermark=1).kinds() == {}
    disputed = Story().unknown("x").acknowledged("a").replica(1, "x").replica(2, "a").kinds()
    assert disputed == {"diverged": 1, "acknowledged-missing-on-replica": 1, "unseen": 1}, "neither is agreed"


def test_an_offset_that_a_replica_lists_twice_is_divergence() -> None:
    """A log in which two records have one offset is broken, whatever the other replicas hold."""
    story = Story()
    story.recorder.replica(1, "t", 0, high_watermark=2, rows=[(0, 0, "a"), (0, 0, "a"), (1, 0, "b")])
    (finding,) = story.verdict(Expectations()).findings
    assert isinstance(finding, Diverged)
    assert (finding.offset, finding.detail) == (0, "offsets of replica 1 go back from 1 to 0")


def test_a_hole_below_the_high_watermark_is_divergence() -> None:
    """A replica's HW never exceeds its LEO (S2): what it counts as committed it must have."""
    story = Story().unknown("a").unknown("b").replica(1, "a", "b").replica(2, "a", high_watermark=2)
    (finding,) = story.verdict().of("diverged")
    assert isinstance(finding, Diverged)
    assert finding.holdings == ((1, 0, "b"), (2, -1, "missing"))


def test_replicas_by_batch_digest() -> None:
    """Large logs are listed by batch: the first offset of each batch that differs is named."""

    def story(*digests: str) -> dict[str, int]:
        story = Story()
        for node, digest in enumerate(digests, 1):
            batches = [(0, 10, 0, "same"), (10, 20, 0, digest), (20, 30, 0, f"tail{node}")]
            story.recorder.replica(node, "t", 0, high_watermark=20, log_start=0, batches=batches)
        return story.kinds()

    assert story("x", "x", "x") == {}
    assert story("x", "y", "x") == {"diverged": 1}
    broken = Story()
    batches = [(0, 10, 0, "a"), (5, 20, 0, "b")]
    broken.recorder.replica(1, "t", 0, high_watermark=20, log_start=0, batches=batches)
    assert broken.kinds() == {"diverged": 1}
    beyond = Story().acknowledged("a", at=20)
    beyond.recorder.replica(1, "t", 0, high_watermark=20, batches=[(0, 20, 0, "a")])
    assert beyond.kinds(Expectations()) == {"lost-write": 1}
    trimmed = Story()
    trimmed.recorder.replica(1, "t", 0, high_watermark=10, log_start=5, batches=[(0, 10, 0, "thinned")])
    trimmed.recorder.replica(2, "t", 0, high_watermark=10, batches=[(0, 10, 0, "whole")])
    assert trimmed.kinds() == {}, "the log start lies inside the first batch"


def test_acknowledged_missing_on_replica() -> None:
    """A replica with the record's offset below its HW must hold it; one that lags only if all should be complete."""
    story = Story().acknowledged("a", "b").replica(1, "a", "b").replica(2, "a", "x")
    finding = story.verdict().of("acknowledged-missing-on-replica")[0]
    assert isinstance(finding, AcknowledgedMissingOnReplica)
    assert (finding.offset, finding.value, finding.holdings) == (1, "b", ((2, "x"),))
    lagging = Story().acknowledged("a", "b").replica(1, "a", "b").replica(2, "a")
    assert lagging.kinds(Expectations()) == {}
    assert lagging.kinds(Expectations(replicas_complete=True)) == {"acknowledged-missing-on-replica": 1}
    trimmed = Story().acknowledged("a", "b").replica(1, "a", "b").replica(2, "b", log_start=1)
    assert trimmed.kinds(Expectations(replicas_complete=True)) == {}


def test_the_first_record_of_a_log_is_missed_as_any_other() -> None:
    """A replica that begins at its log start without a record has lost it."""
    story = Story().acknowledged("a", "b").read("a", "b").replica(1, "a", "b")
    story.recorder.replica(2, "t", 0, high_watermark=2, rows=[(1, 0, "b")])
    verdict = story.verdict()
    assert verdict.totals == {"acknowledged-missing-on-replica": 1, "diverged": 1}
    (finding,) = verdict.of("diverged")
    assert isinstance(finding, Diverged)
    assert [node for node, _, _ in finding.holdings] == [1, 2]


# -- the verdict itself ----------------------------------------------------------------------------------------------


def test_contradictions_are_errors_not_findings() -> None:
    """A history that contradicts itself was written wrongly: no verdict is better than a false one."""
    story = Story().acknowledged("a")
    story.recorder.unknown(1, "X")
    with pytest.raises(HistoryError, match="line 3: op 1 had its outcome in line 2"):
        story.verdict()
    story = Story()
    story.recorder.failed(9, "X")
    with pytest.raises(HistoryError, match="op 9 was never sent"):
        story.verdict()
    story = Story()
    story.recorder.acknowledged(story.sent("a")[0], partition=1, offset=0)
    with pytest.raises(HistoryError, match="was sent to partition 0"):
        story.verdict()
    story = Story()
    story.recorder.acknowledged(story.recorder.send("p", "t", "a"), partition=None, offset=0)
    with pytest.raises(HistoryError, match="op 1 has an offset and no partition"):
        story.verdict()
    story = Story().replica(1, "a")
    story.recorder.replica(1, "t", 0, high_watermark=1, batches=[(0, 1, 0, "x")])
    with pytest.raises(HistoryError, match="line 2: replica 1 is listed by rows and by batches"):
        story.verdict()
    story = Story().replica(1, "a")
    with pytest.raises(HistoryError, match="other marks in line 1"):
        story.replica(1, "b", high_watermark=7).verdict()


def test_expectations_of_the_history_and_of_the_caller() -> None:
    """The history may state what it promises; who checks it has the last word."""
    story = Story().acknowledged("a", "b").read("a")
    assert check_operations(story.operations).ok
    story.recorder.expect(COMPLETE)
    assert check_operations(story.operations).totals == {"unseen": 1}
    assert check_operations(story.operations, Expectations()).ok


def test_a_broken_log_of_a_thousand_records_keeps_a_hundred_examples() -> None:
    """Counts are exact, evidence is bounded."""
    values = [f"v{number}" for number in range(1000)]
    verdict = Story().acknowledged(*values).read("end", at=1000).unknown("end").verdict()
    assert verdict.totals == {"lost-write": 1000}
    assert len(verdict.of("lost-write")) == EXAMPLES_MAX
    assert "and 997 more" in verdict.render()


def test_the_json_contract_and_the_text() -> None:
    """`to_json` survives JSON unchanged; `render` tells the same story to people."""
    verdict = Story().acknowledged("a", "b", "c").read_rows([(0, "a"), (2, "c")]).verdict()
    told: Any = verdict.to_json()
    assert json.loads(json.dumps(told)) == told
    assert list(told) == ["ok", "counts", "expectations", "findings"]
    assert list(told["counts"]) == [
        "sends", "acknowledged", "failed", "unknown", "unknown_seen", "polls", "records_read", "offsets_read",
        "unread", "duplicates", "partitions", "replicas",
    ]  # fmt: skip
    assert told["findings"]["lost-write"]["count"] == 1
    assert told["findings"]["lost-write"]["examples"] == [
        {"topic": "t", "partition": 0, "offset": 1, "lines": [3, 4], "value": "b", "op": 2, "process": "p",
         "held_by": [], "read_up_to": 3, "was_read": False}
    ]  # fmt: skip
    assert verdict.render().splitlines() == [
        "verdict: NOT OK, 2 findings",
        "  sent                 3  acknowledged 3, failed 0, unknown 0 (of which seen 0)",
        "  read                 2  at 2 offsets of 1 partitions in 1 polls; acknowledged and unread 0",
        "  replicas             0  logs compared",
        "  lost-write 1: an acknowledged record is gone: readers passed its place, or no replica has it",
        "    t-0@1: b of p was acknowledged and is nowhere to be read (partition was read up to 3) (lines 3, 4)",
        "  int-poll-skip 1: within one poll a process passed over records that exist",
        "    t-0@1: c passed over 1 record from 1 to 2 (exclusive) (lines 7)",
    ]
    assert Story().acknowledged("a").read("a").verdict().render().startswith("verdict: ok, nothing found")


def test_every_kind_has_a_word_and_a_meaning_of_its_own() -> None:
    """Kinds are a contract of CLI and JSON."""
    assert len({kind.kind for kind in KINDS}) == len({kind.meaning for kind in KINDS}) == len(KINDS) == 16
    assert [kind.kind for kind in KINDS if kind.sentence is Finding.sentence] == []


def steps(work: Callable[[], object]) -> int:
    """Lines of Python that ``work`` executes: a measure of time that no other process disturbs."""
    count = 0

    def tracer(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def large_history(size: int) -> list[Operation]:
    """Sends, polls, three replicas, every tenth record damaged in one way or another."""
    story = Story()
    values = [f"v{number}" for number in range(size)]
    story.acknowledged(*values)
    held = [value for number, value in enumerate(values) if number % 10]
    story.read(*held).read_rows(list(enumerate(values))[::-1]).read_rows(list(enumerate(values))[::7])
    story.replica(1, *values).replica(2, *held).replica(3, *values)
    return story.operations


def test_checking_takes_time_linear_in_the_history() -> None:
    """Four times the history, four times the steps, damage included: a million records must be checkable."""

    def check(operations: list[Operation]) -> Callable[[], object]:
        return lambda: check_operations(operations, COMPLETE)

    small, large = (steps(check(large_history(size))) for size in (250, 1000))
    assert large < 4.4 * small
    assert large < 1000 * 400


def test_a_checker_takes_findings_from_elsewhere() -> None:
    """The demo adds what the byte-by-byte comparison of data directories found."""
    checker = Checker()
    checker.report(Diverged(topic="t", partition=0, offset=3, holdings=((1, 0, "a"), (2, 0, "b"))))
    assert checker.verdict().totals == {"diverged": 1}


def test_two_verdicts_are_merged_with_what_both_found() -> None:
    """Totals add up, and the examples of both are kept; the counts are the first one's."""
    one, other = (Story().acknowledged("a", value).read(value, at=1) for value in ("b", "c"))
    found = merged(one.verdict(), other.failed("x").verdict())
    assert found.totals == {"lost-write": 2}
    assert len(found.of("lost-write")) == 2
    assert found.counts == one.verdict().counts
