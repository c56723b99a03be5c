"""The book on groups that change their protocol: each of its findings, and what is none (issue 17 Build 5)."""

from __future__ import annotations

import pytest

from minikafka.groups.consumer.group import MemberState
from minikafka.groups.consumer.records import (
    CURRENT,
    GROUP,
    MEMBER,
    ClassicSession,
    Current,
    GroupEpoch,
    MemberMetadata,
    TopicIdPartition,
    record,
    tombstone,
)
from minikafka.groups.protocol import Assignment
from minikafka.groups.records import GroupRecord, GroupValue, MemberRecord
from minikafka.sim.migration_watch import MigrationBook
from minikafka.types import TopicPartition


class Desk:
    """One group's book."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.book = MigrationBook(
            lambda name, _: self.found.append(name), lambda each: TopicPartition("t", each.partition)
        )

    def classic(self, generation: int, instance: str | None = None, **members: int) -> GroupRecord:
        value = GroupValue(
            protocol_type="consumer",
            generation=generation,
            state_timestamp_ms=0,
            members=tuple(
                MemberRecord(
                    member_id=name,
                    instance_id=instance,
                    client_id="",
                    client_host="",
                    rebalance_timeout_ms=1,
                    session_timeout_ms=1,
                    subscription=b"",
                    assignment=Assignment(partitions=(TopicPartition("t", number),)).packed(),
                )
                for name, number in members.items()
            ),
        )
        return GroupRecord(group="g", value=value)

    def current(self, name: str, epoch: int, *numbers: int, revoking: tuple[int, ...] = ()):
        value = Current(
            epoch=epoch,
            previous_epoch=epoch,
            state=MemberState.STABLE,
            assigned={TopicIdPartition("id", each): epoch for each in numbers},
            revoking={TopicIdPartition("id", each): epoch for each in revoking},
        )
        return record("g", value, name)

    def metadata(self, name: str, *, is_classic: bool = True):
        session = ClassicSession(session_timeout_ms=1) if is_classic else None
        return record("g", MemberMetadata(classic=session), name)

    def downgrade(self, record: GroupRecord, *members: str) -> None:
        gone = [tombstone("g", kind, each) for each in members for kind in (CURRENT, MEMBER)]
        self.book.recorded("g", [*gone, tombstone("g", GROUP), record])

    def upgrade(self, *currents) -> None:
        self.book.recorded(
            "g",
            [
                GroupRecord(group="g", value=None),
                record("g", GroupEpoch(epoch=9)),
                *(self.metadata(each.name, is_classic=each.name != "new") for each in currents),
                *currents,
            ],
        )


@pytest.fixture
def desk() -> Desk:
    """A classic group of two members in generation 3."""
    made = Desk()
    made.book.recorded("g", [made.classic(3, a=0, b=1)])
    return made


def test_conversions_both_ways_are_no_finding(desk: Desk):
    """Members keep what they are assigned, at their generation."""
    desk.upgrade(desk.current("a", 3, 0), desk.current("b", 3, 1), desk.current("new", 4))
    desk.book.recorded("g", [tombstone("g", CURRENT, "new"), tombstone("g", MEMBER, "new")])
    desk.downgrade(desk.classic(3, a=0, b=1), "a", "b")
    assert desk.found == []
    assert desk.book.marks["migrated_to_consumer"] == desk.book.marks["migrated_to_classic"] == 1


def test_a_group_in_both_protocols_is_a_finding(desk: Desk):
    """The tombstone of the classic record is missing."""
    desk.book.recorded("g", [record("g", GroupEpoch(epoch=4))])
    assert desk.found == ["two_protocols_recorded"]


def test_a_conversion_that_loses_something_is_a_finding(desk: Desk):
    """A member, a partition, or the epoch of a member."""
    desk.upgrade(desk.current("a", 3, 0))
    assert desk.found == ["conversion_changed_owners"], "b is missing"
    desk.downgrade(desk.classic(3, a=7), "a")
    assert desk.found == ["conversion_changed_owners"] * 2, "a has lost t-0"
    other = Desk()
    other.book.recorded("g", [other.classic(3, a=0)])
    other.upgrade(other.current("a", 2, 0))
    assert set(other.found) == {"conversion_changed_owners", "member_epoch_fell"}


def test_a_member_that_was_removed_without_a_record_is_no_finding(desk: Desk):
    """Below min.insync.replicas the record of the empty group is refused; the coordinator goes on without its members."""
    desk.book.left("g", "a")
    desk.upgrade(desk.current("b", 3, 1), desk.current("new", 4, 0))
    assert desk.found == []


def test_a_static_member_whose_place_another_process_takes_is_no_finding():
    """The upgrade renames it."""
    desk = Desk()
    desk.book.recorded("g", [desk.classic(3, "i", a=0)])
    desk.book.recorded(
        "g",
        [
            GroupRecord(group="g", value=None),
            record("g", MemberMetadata(instance_id="i"), "new"),
            desk.current("new", 4, 0),
        ],
    )
    assert desk.found == []


def test_members_that_vanish_are_a_finding(desk: Desk):
    """A tombstone alone; an empty group may be deleted."""
    desk.book.recorded("g", [GroupRecord(group="g", value=None)])
    assert desk.found == ["members_vanished"]
    empty = Desk()
    empty.book.recorded("g", [empty.classic(3)])
    empty.book.recorded("g", [GroupRecord(group="g", value=None)])
    assert empty.found == []


def test_two_owners_across_what_is_assigned_and_what_is_to_be_revoked_are_a_finding(desk: Desk):
    """By committed records."""
    desk.upgrade(desk.current("a", 3, 0), desk.current("b", 3, 1), desk.current("new", 4))
    desk.book.recorded("g", [desk.current("a", 4, revoking=(0,)), desk.current("new", 5, 0)])
    assert desk.found == ["two_owners_recorded"]


def test_a_partition_that_another_member_still_owns_is_a_finding(desk: Desk):
    """It was received by the classic protocol, and is given to a member of the consumer protocol."""
    desk.book.answered("g", "a", 3, frozenset({TopicPartition("t", 0)}))
    desk.upgrade(desk.current("a", 3, 0), desk.current("b", 3, 1), desk.current("new", 4))
    desk.book.recorded("g", [desk.current("a", 4), desk.current("new", 5, 0)])
    desk.book.answered("g", "new", 5, frozenset({TopicPartition("t", 0)}))
    assert desk.found == ["given_before_revoked"]


def test_a_partition_that_its_owner_has_given_up_is_no_finding(desk: Desk):
    """It joins without it, or it is removed."""
    desk.book.answered("g", "a", 3, frozenset({TopicPartition("t", 0)}))
    desk.book.answered("g", "b", 3, frozenset({TopicPartition("t", 1)}))
    desk.upgrade(desk.current("a", 3, 0), desk.current("b", 3, 1), desk.current("new", 4))
    desk.book.reported("g", "a", frozenset())
    desk.book.recorded("g", [desk.current("a", 4), tombstone("g", CURRENT, "b"), desk.current("new", 5, 0, 1)])
    desk.book.answered("g", "new", 5, frozenset({TopicPartition("t", 0), TopicPartition("t", 1)}))
    assert desk.found == []


def test_an_assignment_that_is_not_committed_is_a_finding(desk: Desk):
    """Of either protocol."""
    desk.book.answered("g", "a", 3, frozenset({TopicPartition("t", 5)}))
    desk.book.answered("g", "a", 4, frozenset({TopicPartition("t", 0)}))
    assert desk.found == ["assignment_unrecorded"] * 2


def test_commits_of_generations_that_a_member_has_left_are_a_finding(desk: Desk):
    """Unless it has owned the partition since (KIP-1251), as members of the consumer protocol may."""
    desk.upgrade(desk.current("a", 4, 0, 2), desk.current("b", 3, 1), desk.current("new", 9, 3))
    for op, (member, generation, number) in enumerate([("a", 4, 2), ("b", 3, 1), ("new", 8, 3), ("a", 3, 0)]):
        desk.book.commit_sent(op, "g", member, generation)
        desk.book.commit_granted(op, "g", member, [TopicPartition("t", number)])
    assert desk.found == []
    for op, (member, generation, number) in enumerate([("a", 3, 2), ("a", 2, 0), ("b", 2, 1)], start=10):
        desk.book.commit_sent(op, "g", member, generation)
        desk.book.commit_granted(op, "g", member, [TopicPartition("t", number)])
    assert desk.found == ["stale_generation_committed"] * 3


def test_a_commit_of_a_former_generation_of_a_classic_group_is_a_finding(desk: Desk):
    """Whatever the member has owned since."""
    desk.book.recorded("g", [desk.classic(4, a=0, b=1)])
    desk.book.commit_sent(1, "g", "a", 3)
    desk.book.commit_granted(1, "g", "a", [TopicPartition("t", 0)])
    assert desk.found == ["stale_generation_committed"]


def test_commits_of_strangers_and_of_others_partitions_are_a_finding(desk: Desk):
    """What was committed when the commit was sent counts; a refusal proves nothing."""
    desk.book.commit_sent(1, "g", "stranger", 3)
    desk.book.commit_granted(1, "g", "stranger", [])
    assert desk.found == []
    desk.book.commit_granted(1, "g", "stranger", [TopicPartition("t", 0)])
    desk.book.commit_sent(2, "g", "a", 3)
    desk.book.commit_granted(2, "g", "a", [TopicPartition("t", 1)])
    assert desk.found == ["zombie_commit", "zombie_commit"]


def test_a_deleted_offset_is_a_finding(desk: Desk):
    """No conversion deletes offsets."""
    desk.book.offset_recorded("g", TopicPartition("t", 0), 7)
    assert desk.book.offsets("g") == {TopicPartition("t", 0): 7}
    desk.book.offset_recorded("g", TopicPartition("t", 0), None)
    assert desk.found == ["committed_offset_deleted"]
