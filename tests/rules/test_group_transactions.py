"""Offsets that are committed in a transaction (KIP-447): when they count, who may commit them, what a replay finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    IllegalGeneration,
    NotEnoughReplicas,
    RequestTimedOut,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from minikafka.groups.limits import GroupSettings
from minikafka.wire.group_messages import OffsetDeleteRequest, OffsetFetchRequest
from minikafka.wire.messages import PartitionName
from tests.rules.group_kit import Desk

UNSTABLE = UnstableOffsetCommit.code


@pytest.mark.parametrize(("commit", "expected"), [(True, 9), (False, 4)])
def test_offsets_of_a_transaction_count_when_it_commits(commit: bool, expected: int):
    """Until then readers see the older offset, or an error if they ask for stable ones."""
    desk = Desk()
    desk.commit(4)
    desk.commit_in_transaction(9)
    assert (desk.committed(), desk.stable_code()) == (4, UNSTABLE)
    desk.take_over()
    assert (desk.committed(), desk.stable_code()) == (4, UNSTABLE)
    desk.end_transaction(7, commit=commit)
    assert (desk.committed(), desk.stable_code()) == (expected, 0)
    desk.take_over()
    assert (desk.committed(), desk.stable_code()) == (expected, 0)


def test_offset_is_unstable_from_the_append_on():
    """Not only when its record is committed; a refused record leaves nothing behind."""
    desk = Desk(commits_at_once=False)
    desk.commit_in_transaction(9)
    assert desk.stable_code() == UNSTABLE
    desk.refuse_one(NotEnoughReplicas())
    assert desk.stable_code() == 0
    ticket = desk.commit_in_transaction(9)
    desk.refuse_one(RequestTimedOut("late", outcome="unknown"))
    assert desk.answers[ticket].partitions[0].error_code == CoordinatorNotAvailable.code
    assert desk.stable_code() == UNSTABLE
    desk.commit_one()
    desk.end_transaction(7)
    assert (desk.committed(), desk.stable_code()) == (9, 0)


def test_later_commit_wins_over_an_earlier_one_of_a_transaction():
    """By the order of the records, as compaction decides: 20 stands behind 10 in the log."""
    desk = Desk()
    desk.commit_in_transaction(10)
    desk.commit(20)
    desk.end_transaction(7)
    assert desk.committed() == 20
    desk.take_over()
    assert desk.committed() == 20


def test_transactions_of_several_producers_are_apart():
    """Each ends with its own marker; the offset is stable when both have ended."""
    desk = Desk()
    desk.commit_in_transaction(10, producer_id=7)
    desk.commit_in_transaction(20, producer_id=8)
    desk.end_transaction(8)
    assert (desk.committed(), desk.stable_code()) == (20, UNSTABLE)
    desk.end_transaction(7)
    assert (desk.committed(), desk.stable_code()) == (20, 0)


def test_deleted_offset_leaves_the_transaction():
    """KAFKA-19163: the commit does not bring it back; the group stays in the transaction, and is not forgotten."""
    desk = Desk()
    desk.commit_in_transaction(10)
    ticket, step = next(desk.tickets), desk.step()
    request = OffsetDeleteRequest(group_id="g", partitions=(PartitionName(topic="t", partition=0),))
    desk.coordinator.delete_offsets(ticket, request, step)
    desk.done(step)
    assert desk.stable_code() == 0
    assert desk.state() == "Empty"
    desk.end_transaction(7)
    assert desk.committed() == -1
    desk.take_over()
    assert desk.committed() == -1


def test_pending_offsets_and_their_group_do_not_expire():
    """A transaction may take longer than offsets are kept."""
    settings = GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=1_000, expiry_interval_ms=100)
    desk = Desk(settings)
    desk.commit(4)
    desk.commit_in_transaction(9)
    desk.pass_time(5.0)
    assert desk.committed() == 4
    desk.end_transaction(7, commit=False)
    desk.pass_time(5.0)
    assert desk.committed() == -1
    assert desk.coordinator.standings() == []


def test_a_group_does_not_expire_in_a_transaction_that_its_last_offset_has_left():
    """KAFKA-19164: the transaction may still commit other offsets for the group."""
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=1_000, expiry_interval_ms=100))
    (member,) = desk.stable(1)
    desk.commit_in_transaction(9)
    desk.leave(member)
    desk.coordinator.topics_deleted(["t"], step := desk.step())
    desk.done(step)
    desk.pass_time(5.0)
    assert desk.state() == "Empty"
    desk.end_transaction(7)
    desk.pass_time(5.0)
    assert desk.state() == "Dead"


def test_aborted_transaction_leaves_no_group_behind():
    """A group that never came to anything is not listed."""
    desk = Desk()
    desk.commit_in_transaction(9)
    assert desk.coordinator.standings()
    desk.end_transaction(7, commit=False)
    assert desk.coordinator.standings() == []


def test_members_are_fenced_by_their_generation():
    """The transactional id fences one producer's zombie, the generation the consumer's."""
    desk = Desk()
    (member,) = desk.stable(1)
    generation = 1
    desk.commit_in_transaction(5, member_id=member, generation=generation)
    for wrong, error in (
        ({"member_id": member, "generation": generation + 1}, IllegalGeneration),
        ({"member_id": member, "generation": generation - 1}, IllegalGeneration),
        ({"member_id": "nobody", "generation": generation}, UnknownMemberId),
        ({"member_id": "nobody", "generation": generation, "group": "unknown"}, IllegalGeneration),
        ({"member_id": member, "generation": generation, "instance": "i"}, (UnknownMemberId, FencedInstanceId)),
    ):
        with pytest.raises(error):
            desk.commit_in_transaction(6, **wrong)
    desk.end_transaction(7)
    assert desk.committed() == 5


def test_commit_without_a_member_is_not_fenced():
    """Old clients send no member: accepted also while the group has members, as in Kafka."""
    desk = Desk()
    desk.stable(1)
    desk.commit_in_transaction(5)
    desk.end_transaction(7)
    assert desk.committed() == 5


def test_a_consumer_that_assigns_itself_may_name_a_member():
    """librdkafka's group metadata may have a member id without a generation: taken while the group is empty."""
    desk = Desk()
    (member,) = desk.stable(1)
    desk.leave(member)
    desk.commit_in_transaction(5, member_id="rdkafka-1")
    desk.end_transaction(7)
    assert desk.committed() == 5
    desk.stable(1)
    with pytest.raises(UnknownMemberId):
        desk.commit_in_transaction(6, member_id="rdkafka-1")


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "in", "in", "commit", "abort", "delete"]),
        st.integers(0, 1),
        st.sampled_from([7, 8]),
    ),
    max_size=25,
)


@given(ACTIONS)
def test_replay_finds_what_the_coordinator_had(actions: list[tuple[str, int, int]]):
    """After every action: offsets, and which of them are unstable."""
    desk = Desk()
    for number, (kind, partition, producer_id) in enumerate(actions):
        if kind == "plain":
            desk.commit(number, partition=partition)
        elif kind == "in":
            desk.commit_in_transaction(number, partition=partition, producer_id=producer_id)
        elif kind == "delete":
            if desk.coordinator.standings():
                step = desk.step()
                places = (PartitionName(topic="t", partition=partition),)
                desk.coordinator.delete_offsets(
                    next(desk.tickets), OffsetDeleteRequest(group_id="g", partitions=places), step
                )
                desk.done(step)
        else:
            desk.end_transaction(producer_id, commit=kind == "commit")
        before = [(desk.committed(partition=each), desk.stable_code(partition=each)) for each in (0, 1)]
        desk.take_over()
        assert [(desk.committed(partition=each), desk.stable_code(partition=each)) for each in (0, 1)] == before


def test_fetch_of_all_offsets_shows_unstable_ones():
    """With ``require_stable``, also partitions of which nothing is committed yet."""
    desk = Desk()
    desk.commit_in_transaction(9, partition=3)
    found = desk.coordinator.fetch_offsets(OffsetFetchRequest(group_id="g", require_stable=True)).partitions
    assert [(each.partition, each.error_code) for each in found] == [(3, UNSTABLE)]
    assert desk.coordinator.fetch_offsets(OffsetFetchRequest(group_id="g")).partitions == ()
