"""What groups of the consumer protocol promise (KIP-848), each by the smallest history that breaks it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minikafka.groups.consumer.group import LEAVE_STATIC, MemberState
from minikafka.groups.consumer.records import (
    CURRENT,
    GROUP,
    ConsumerRecord,
    Current,
    GroupEpoch,
    TargetEpoch,
    TopicIdPartition,
    record,
    tombstone,
)
from minikafka.sim.consumer_group_watch import ConsumerGroupBook, owned_by
from minikafka.wire.group_messages import ConsumerGroupHeartbeatRequest

ONE, TWO = TopicIdPartition("id", 0), TopicIdPartition("id", 1)


def epochs(group: int, assignment: int | None = None) -> list[ConsumerRecord]:
    return [
        record("g", GroupEpoch(epoch=group)),
        record("g", TargetEpoch(epoch=group if assignment is None else assignment)),
    ]


def current(
    member: str, epoch: int, *assigned: TopicIdPartition, revoking: Sequence[TopicIdPartition] = ()
) -> ConsumerRecord:
    value = Current(
        epoch=epoch,
        previous_epoch=max(0, epoch - 1),
        state=MemberState.UNREVOKED if revoking else MemberState.STABLE,
        assigned=dict.fromkeys(assigned, epoch),
        revoking=dict.fromkeys(revoking, epoch),
    )
    return record("g", value, member)


class Story:
    """A book, and the names of what it reported."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.book = ConsumerGroupBook(lambda name, _what: self.names.append(name))

    def records(self, *records: ConsumerRecord) -> None:
        self.book.recorded("g", records)

    def answer(self, member: str, epoch: int, *assigned: TopicIdPartition) -> None:
        self.book.answered("g", member, epoch, frozenset(assigned))


@pytest.fixture
def story() -> Story:
    """Member a owns both partitions, and knows it."""
    story = Story()
    story.records(*epochs(1), current("a", 1, ONE, TWO))
    story.answer("a", 1, ONE, TWO)
    return story


def revoked(story: Story, *, confirmed: bool) -> None:
    """Partition 1 goes from a to b; a says that it has given it up, or it does not."""
    story.records(*epochs(2), current("a", 1, ONE, revoking=[TWO]), current("b", 2))
    story.answer("a", 1, ONE)
    if confirmed:
        story.book.reported("g", "a", frozenset({ONE}))
    story.records(current("a", 2, ONE), current("b", 2, TWO))
    story.answer("b", 2, TWO)


def test_a_partition_that_moves_in_steps_keeps_silent(story: Story):
    """Revoked, confirmed, free, assigned; an answer that comes late to its member changes nothing."""
    revoked(story, confirmed=True)
    story.answer("a", 1, ONE, TWO)
    story.answer("b", 2, TWO)
    assert story.names == []


def test_a_partition_is_given_only_after_its_revocation_was_confirmed(story: Story):
    """C4: a heartbeat that does not say what the member owns confirms nothing."""
    story.book.reported("g", "a", None)
    revoked(story, confirmed=False)
    assert story.names == ["given_before_revoked"]


def test_the_partitions_of_a_removed_member_are_free(story: Story):
    """A member that was fenced or left needs no confirmation."""
    story.records(*epochs(2), tombstone("g", CURRENT, "a"), current("b", 2, ONE, TWO))
    story.answer("b", 2, ONE, TWO)
    assert story.names == []


@pytest.mark.parametrize(("sent", "names"), [(LEAVE_STATIC, []), (1, ["given_before_revoked"])])
def test_a_static_member_that_leaves_for_a_restart_confirms_its_revocations(story: Story, sent: int, names: list[str]):
    """KIP-848: it owns nothing then, though the heartbeat names no partitions; any other such heartbeat says nothing."""
    story.records(*epochs(2), current("a", 1, ONE, revoking=[TWO]), current("b", 2))
    story.answer("a", 1, ONE)
    heartbeat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=sent, instance_id="i")
    story.book.reported("g", "a", owned_by(heartbeat))
    story.records(current("a", LEAVE_STATIC, ONE))
    story.records(current("b", 2, TWO))
    story.answer("b", 2, TWO)
    assert story.names == names


def test_what_a_static_member_keeps_while_it_restarts_is_given_to_no_other(story: Story):
    """KIP-848: only what it had still to revoke is free."""
    heartbeat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=LEAVE_STATIC, instance_id="i")
    story.book.reported("g", "a", owned_by(heartbeat))
    story.records(*epochs(2), current("a", LEAVE_STATIC, ONE))
    story.records(current("b", 2, ONE))
    assert story.names == ["two_owners_recorded"]


@pytest.mark.parametrize("records", [[current("b", 1, TWO)], [current("b", 1, revoking=[ONE])]])
def test_no_two_members_own_a_partition(story: Story, records: list[ConsumerRecord]):
    """C4, the safety invariant: neither assigned nor still to be revoked."""
    story.records(*records)
    assert story.names == ["two_owners_recorded"]


def test_records_of_one_batch_count_at_once(story: Story):
    """KAFKA-16147: a partition may change its owner within one heartbeat's records, in any order."""
    story.records(*epochs(2), current("b", 2, TWO), current("a", 2, ONE))
    assert story.names == []


def test_epochs_of_members_never_fall(story: Story):
    """A static member that left for a restart, and one that was removed and is back, begin again."""
    story.records(*epochs(3), current("a", 3, ONE))
    story.records(current("a", -2, ONE))
    story.records(current("a", 3, ONE))
    assert story.names == []
    story.records(current("a", 2, ONE))
    assert story.names == ["member_epoch_fell"]
    story.records(tombstone("g", CURRENT, "a"))
    story.records(current("a", 1, ONE))
    assert story.names == ["member_epoch_fell"]


@pytest.mark.parametrize("records", [epochs(1, 2), [current("a", 2, ONE)], epochs(0)])
def test_epochs_are_in_order(story: Story, records: list[ConsumerRecord]):
    """Member epoch <= assignment epoch <= group epoch, and neither of the group's falls."""
    story.records(*records)
    assert "epochs_disordered" in story.names


def test_a_deleted_group_begins_anew(story: Story):
    """Its tombstone ends all that was known."""
    story.records(tombstone("g", CURRENT, "a"), tombstone("g", GROUP))
    story.records(*epochs(1), current("b", 1, ONE))
    story.answer("b", 1, ONE)
    assert story.names == []


@pytest.mark.parametrize(("member", "epoch", "assigned"), [("a", 2, [ONE]), ("a", 1, [ONE]), ("b", 1, [TWO])])
def test_an_answer_comes_after_its_records(story: Story, member: str, epoch: int, assigned: list[TopicIdPartition]):
    """An epoch, an assignment or a member that is not committed."""
    story.answer(member, epoch, *assigned)
    assert story.names[0] == "assignment_unrecorded"


def test_commits_of_members_and_owners_keep_silent(story: Story):
    """Also while the partition is to be revoked."""
    story.book.commit_sent(1, "g", "a")
    story.book.commit_granted(1, "g", "a", [ONE, TWO])
    story.records(*epochs(2), current("a", 1, ONE, revoking=[TWO]))
    story.book.commit_sent(2, "g", "a")
    story.book.commit_granted(2, "g", "a", [TWO])
    assert story.names == []


@pytest.mark.parametrize("is_removed", [False, True])
def test_commits_of_zombies(story: Story, is_removed: bool):
    """What was sent after the partition had become another member's, or by a member that had been removed."""
    revoked(story, confirmed=True)
    if is_removed:
        story.records(tombstone("g", CURRENT, "a"))
    story.book.commit_sent(1, "g", "a")
    story.book.commit_granted(1, "g", "a", [ONE if is_removed else TWO])
    assert story.names == ["zombie_commit"]


@pytest.mark.parametrize(("interval_ms", "names"), [(999, []), (1000, ["interval_beyond_session"])])
def test_an_interval_is_shorter_than_the_session(story: Story, interval_ms: int, names: list[str]):
    """A member that heartbeats no more often than its session lasts is removed in between."""
    story.book.interval_received("g", "a", interval_ms, 1000)
    assert story.names == names
