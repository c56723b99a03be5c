"""S34: what a group commits, who may, when it counts, and when it ends (KAFKA-FACTS 5, KIP-211)."""

from __future__ import annotations

import pytest

from minikafka.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    NotEnoughReplicas,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from minikafka.groups.coordinator import EXPIRED_COUNT_MAX
from minikafka.groups.limits import GroupSettings
from minikafka.quorum.image import TopicImage
from minikafka.wire.group_messages import (
    CommitPartition,
    GroupProtocol,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from minikafka.wire.messages import PartitionName
from tests.rules.group_kit import Desk

DAY_S = 86_400.0


def delete_offsets(desk: Desk, *topics: str) -> list[int]:
    ticket = next(desk.tickets)
    step = desk.step()
    partitions = tuple(PartitionName(topic=topic, partition=0) for topic in topics)
    desk.coordinator.delete_offsets(ticket, OffsetDeleteRequest(group_id="g", partitions=partitions), step)
    desk.done(step)
    return [each.error_code for each in desk.answers[ticket].partitions]


def delete_group(desk: Desk) -> int:
    ticket = next(desk.tickets)
    step = desk.step()
    desk.coordinator.delete_group(ticket, "g", step)
    desk.done(step)
    return ticket


def outcome(desk: Desk, ticket: int) -> tuple[int, str]:
    (partition,) = desk.answers[ticket].partitions
    return partition.error_code, partition.outcome


def test_a_commit_counts_when_it_is_committed_and_not_before():
    """Nobody reads a pending offset: it may be lost with this coordinator."""
    desk = Desk(commits_at_once=False)
    ticket = desk.commit(5)
    assert (ticket in desk.answers, desk.committed()) == (False, -1)
    desk.commit_one()
    assert (outcome(desk, ticket), desk.committed()) == ((0, ""), 5)
    desk.take_over()
    assert desk.committed() == 5


def test_a_commit_that_was_not_written_says_so_and_changes_nothing():
    """Outcome not_written: safe to send again."""
    desk = Desk(commits_at_once=False)
    ticket = desk.commit(5)
    desk.refuse_one(NotEnoughReplicas())
    assert outcome(desk, ticket) == (15, "not_written")
    assert desk.committed() == -1


def test_a_commit_whose_wait_ran_out_is_unknown_and_may_still_count():
    """The record is in the log: what the log says is what is."""
    desk = Desk(commits_at_once=False)
    ticket = desk.commit(5)
    desk.refuse_one(RequestTimedOut(outcome="unknown"))
    assert (outcome(desk, ticket), desk.committed()) == ((15, "unknown"), -1)
    desk.commit_all()
    assert desk.committed() == 5


def test_commits_count_in_the_order_in_which_they_were_made():
    """Two in flight: the later one stands."""
    desk = Desk(commits_at_once=False)
    desk.commit(5)
    desk.commit(3)
    desk.commit_one()
    assert desk.committed() == 5
    desk.commit_one()
    assert desk.committed() == 3, "going back is the group's own decision"


def test_only_members_commit_while_there_are_any():
    """By hand (no generation, no member) it goes in an empty group only."""
    desk = Desk()
    desk.commit(1)
    (member,) = desk.stable(1)
    with pytest.raises(UnknownMemberId, match="only its members"):
        desk.commit(2)
    with pytest.raises(UnknownMemberId):
        desk.commit(2, member_id="zombie", generation=1)
    desk.commit(2, member_id=member, generation=1)
    desk.leave(member)
    desk.commit(3)
    assert desk.committed() == 3
    with pytest.raises(IllegalGeneration):
        desk.commit(1, group="nobody", generation=4, member_id="m")


def test_a_member_id_without_a_generation_does_not_matter_while_the_group_is_empty():
    """librdkafka's consumer sends its own with assign(); its first commit makes the group, and more follow."""
    desk = Desk()
    desk.commit(1, member_id="self-made")
    desk.commit(2, member_id="self-made")
    assert desk.committed() == 2
    (member,) = desk.stable(1)
    with pytest.raises(UnknownMemberId):
        desk.commit(3, member_id="self-made")
    desk.leave(member)
    with pytest.raises(UnknownMemberId):
        desk.commit(3, member_id=member, generation=1)
    desk.commit(3, member_id=member)
    assert desk.committed() == 3


def test_commits_during_a_rebalance():
    """Preparing: the old generation still commits what it has read. Completing: it must sync first."""
    desk = Desk()
    (old,) = desk.stable(1)
    new, _ = desk.join_new()
    desk.commit(7, member_id=old, generation=1)
    assert desk.committed() == 7
    desk.join(old)
    assert desk.state() == "CompletingRebalance"
    with pytest.raises(IllegalGeneration):
        desk.commit(8, member_id=old, generation=1)
    with pytest.raises(RebalanceInProgress):
        desk.commit(8, member_id=new, generation=2)


def test_a_commit_is_as_good_as_a_heartbeat():
    """A member that only ever commits lives."""
    desk = Desk()
    (member,) = desk.stable(1, session_ms=10_000)
    for offset in range(4):
        desk.pass_time(8)
        desk.commit(offset, member_id=member, generation=1)
    assert desk.state() == "Stable"


def test_metadata_has_a_limit():
    """offset.metadata.max.bytes, per partition; nothing of that partition is written."""
    desk = Desk()
    assert outcome(desk, desk.commit(1, metadata="x" * 4096))[0] == 0
    assert outcome(desk, desk.commit(2, metadata="x" * 4097))[0] == OffsetMetadataTooLarge.code
    assert desk.committed() == 1


def test_all_that_was_committed_can_be_asked_for():
    """OffsetFetch without partitions; a partition without an offset is -1 and no error."""
    desk = Desk()
    desk.commit(4, partition=1)
    desk.commit(3, topic="a")
    answer = desk.coordinator.fetch_offsets(OffsetFetchRequest(group_id="g"))
    assert [(each.topic, each.partition, each.offset) for each in answer.partitions] == [("a", 0, 3), ("t", 1, 4)]
    assert desk.committed(partition=9) == -1
    assert desk.committed(group="other") == -1


def test_offsets_of_an_empty_group_expire_by_its_emptiness():
    """KIP-211: seven days after it became empty, and the group with them; not while it has members."""
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=7 * 86_400_000))
    (member,) = desk.stable(1, session_ms=1_800_000)
    desk.commit(5, member_id=member, generation=1)
    for _ in range(8 * 48):
        desk.pass_time(1_700)
        desk.heartbeat(member, 1)
    assert desk.committed() == 5
    desk.leave(member)
    desk.pass_time(6.9 * DAY_S)
    assert desk.committed() == 5
    desk.pass_time(0.2 * DAY_S)
    assert (desk.committed(), desk.state()) == (-1, "Dead")
    desk.take_over()
    assert (desk.committed(), desk.state()) == (-1, "Dead")


def test_offsets_of_a_group_without_members_expire_by_their_own_age():
    """Committed by hand only: each by itself."""
    desk = Desk()
    desk.commit(1, partition=0)
    desk.pass_time(4 * DAY_S)
    desk.commit(2, partition=1)
    desk.pass_time(3.5 * DAY_S)
    assert (desk.committed(partition=0), desk.committed(partition=1)) == (-1, 2)
    desk.pass_time(4 * DAY_S)
    assert desk.state() == "Dead"


def test_groups_that_expire_together_do_so_in_several_steps():
    """The broker serves others in between. A log that refuses is tried once in each round, not again and again."""
    desk = Desk(GroupSettings(offsets_retention_ms=1000, expiry_interval_ms=10_000))
    count = 3 * EXPIRED_COUNT_MAX + 1
    for number in range(count):
        desk.commit(1, group=f"g{number}")
    desk.commits_at_once = False
    steps = []
    while desk.coordinator.next_deadline() < desk.now + 11:
        desk.pass_time(max(0.0, desk.coordinator.next_deadline() - desk.now))
        steps.append(len(desk.in_flight))
        while desk.in_flight:
            desk.refuse_one(NotEnoughReplicas("too few"))
        if len(steps) == 4:
            break
    assert steps == [EXPIRED_COUNT_MAX] * 3 + [1]
    assert desk.coordinator.next_deadline() > desk.now + 9
    desk.commits_at_once = True
    desk.pass_time(11)
    assert desk.coordinator.list_groups(ListGroupsRequest()) == ()


def test_topics_that_a_living_group_left_expire():
    """Stable: what nobody subscribes to any more, by its age; what is read stays."""
    desk = Desk()
    (member,) = desk.stable(1, session_ms=1_800_000)
    desk.commit(5, member_id=member, generation=1)
    desk.commit(6, member_id=member, generation=1, topic="left")
    for _ in range(8 * 51):
        desk.pass_time(1_700)
        desk.heartbeat(member, 1)
    assert (desk.committed(), desk.committed(topic="left")) == (5, -1)


def test_a_deleted_topics_offsets_are_forgotten():
    """So that a topic of the same name begins anew."""
    desk = Desk()
    desk.commit(5)
    desk.commit(6, topic="u")
    step = desk.step()
    desk.coordinator.topics_deleted(["t"], step)
    desk.done(step)
    assert (desk.committed(), desk.committed(topic="u")) == (-1, 6)


def test_a_topic_that_went_while_the_log_was_read_leaves_no_offsets():
    """Deleted, and made anew under the same name, before this coordinator answered: it begins anew."""
    desk = Desk()
    desk.commit(5)
    desk.commit(6, topic="u")
    desk.take_over(lambda coordinator: coordinator.topics_deleted_unloaded(["t"]))
    assert (desk.committed(), desk.committed(topic="u")) == (-1, 6)
    desk.commit(1)
    desk.take_over()
    assert desk.committed() == 1


def test_a_topic_that_went_before_the_log_was_read_leaves_no_offsets():
    """The former coordinator died before it could write that they are gone."""
    desk = Desk()
    desk.commit(5)
    desk.missing["t"] = None
    desk.take_over()
    assert desk.committed() == -1
    desk.missing.clear()
    desk.take_over()
    assert desk.committed() == -1, "it is not only hidden"


def test_offsets_of_a_deleted_topic_that_could_not_be_erased_go_with_the_next_look():
    """The tombstones were refused: they are written again, not kept for the seven days."""
    desk = Desk()
    desk.commit(5)
    desk.commits_at_once = False
    desk.missing["t"] = None
    step = desk.step()
    desk.coordinator.topics_deleted(["t"], step)
    desk.done(step)
    desk.refuse_one(NotEnoughReplicas())
    assert desk.committed() == 5
    desk.commits_at_once = True
    desk.pass_time(desk.settings.expiry_interval_ms / 1000)
    assert desk.committed() == -1


def topic_named(name: str, topic_id: str) -> dict[str, TopicImage]:
    return {name: TopicImage(name=name, topic_id=topic_id)}


FORMER, PRESENT = "AAECAwQFBgcICQoLDA0ODw", "EBESExQVFhcYGRobHB0eHw"


def test_offsets_of_a_topic_that_was_created_again_before_the_log_was_read_are_forgotten():
    """Issue 13: the former coordinator died before it could write that they are gone, and by the time its successor
    had read the log there was another topic of the name. The group skipped that topic's first records.
    """
    desk = Desk(topics=topic_named("t", FORMER))
    desk.commit(5)
    desk.topics = topic_named("t", PRESENT)
    desk.take_over()
    assert desk.committed() == -1
    desk.topics = topic_named("t", FORMER)
    desk.take_over()
    assert desk.committed() == -1, "it is not only hidden"
    desk.commit(1)
    desk.take_over()
    assert desk.committed() == 1


@pytest.mark.parametrize("partitions", [None, (PartitionName(topic="t", partition=0),)])
def test_offsets_of_a_topic_that_was_created_again_are_not_returned_until_they_are_erased(
    partitions: tuple[PartitionName, ...] | None,
):
    """Issue 13: the tombstones are refused, or wait for replicas. They are written again with the next look."""
    desk = Desk(topics=topic_named("t", FORMER))
    desk.commit(5)
    desk.commits_at_once = False
    step = desk.step()
    desk.coordinator.topics_deleted(["t"], step)
    desk.done(step)
    desk.topics = topic_named("t", PRESENT)
    desk.refuse_one(NotEnoughReplicas())
    found = desk.coordinator.fetch_offsets(OffsetFetchRequest(group_id="g", partitions=partitions)).partitions
    assert [each.offset for each in found] == ([] if partitions is None else [-1])
    desk.commits_at_once = True
    desk.pass_time(desk.settings.expiry_interval_ms / 1000)
    desk.topics = topic_named("t", FORMER)
    assert desk.committed() == -1


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_offset_of_the_present_topic_under_way_is_not_erased_with_the_former_ones(*, is_committed: bool):
    """The tombstones for the former topic were refused. Those of the next look would stand behind a commit that is
    acknowledged a moment later (seed 1002 of the offset histories).
    """
    desk = Desk(topics=topic_named("t", FORMER))
    desk.commit(5)
    desk.commits_at_once = False
    desk.topics = topic_named("t", PRESENT)
    if is_committed:
        desk.commit(1)
    else:
        desk.commit_in_transaction(1)
    desk.pass_time(desk.settings.expiry_interval_ms / 1000)
    desk.commits_at_once = True
    desk.commit_all()
    desk.end_transaction(7)
    assert desk.committed() == 1


@pytest.mark.parametrize("is_former_in_transaction", [True, False])
def test_an_offset_of_the_present_topic_stays_though_one_of_the_former_is_there(*, is_former_in_transaction: bool):
    """One of them waits for the end of a transaction (seeds 1496 and 1596 of the offset histories)."""
    desk = Desk(topics=topic_named("t", FORMER))
    commits = [desk.commit_in_transaction, desk.commit]
    if not is_former_in_transaction:
        commits.reverse()
    commits[0](5)
    desk.topics = topic_named("t", PRESENT)
    commits[1](1)
    desk.pass_time(desk.settings.expiry_interval_ms / 1000)
    desk.end_transaction(7)
    assert desk.committed() == 1
    desk.take_over()
    assert desk.committed() == 1


@pytest.mark.parametrize("is_created_again", [False, True])
def test_transactional_offsets_of_a_deleted_topic_do_not_count_when_the_transaction_commits(is_created_again: bool):
    """Issue 13: the coordinator that heard of the deletion died before it had written that they are gone."""
    desk = Desk(topics=topic_named("t", FORMER))
    desk.commit_in_transaction(5)
    if is_created_again:
        desk.topics = topic_named("t", PRESENT)
    else:
        desk.topics, desk.missing["t"] = {}, None
    desk.take_over()
    desk.end_transaction(7)
    desk.topics = topic_named("t", FORMER)
    assert desk.committed() == -1


def test_offsets_are_deleted_only_where_nobody_reads():
    """OffsetDelete: GROUP_SUBSCRIBED_TO_TOPIC for the others."""
    desk = Desk()
    (member,) = desk.stable(1)
    desk.commit(5, member_id=member, generation=1)
    desk.commit(6, member_id=member, generation=1, topic="left")
    assert delete_offsets(desk, "t", "left", "never") == [GroupSubscribedToTopic.code, 0, 0]
    assert (desk.committed(), desk.committed(topic="left")) == (5, -1)


def test_a_negative_offset_is_committed_as_any_other():
    """As in Kafka, whose clients take it for no offset; it must not refuse the other partitions of the request."""
    desk = Desk()
    assert desk.answers[desk.commit(-1, metadata="m")].partitions[0].error_code == 0
    desk.take_over()
    (found,) = desk.coordinator.fetch_offsets(OffsetFetchRequest(group_id="g")).partitions
    assert (found.offset, found.metadata) == (-1, "m")


def test_what_members_read_is_decided_by_their_generation():
    """OffsetDelete, as in Kafka: what a member joins with counts once the join phase has ended."""
    desk = Desk()
    (member,) = desk.stable(1)
    for topic in ("t", "u"):
        desk.commit(5, member_id=member, generation=1, topic=topic)
    desk.join_new(topics=("u",))
    assert delete_offsets(desk, "t", "u") == [GroupSubscribedToTopic.code, 0]
    desk.join(member)
    assert delete_offsets(desk, "t", "u") == [GroupSubscribedToTopic.code] * 2


@pytest.mark.parametrize(
    ("metadata", "codes"),
    [
        (b"", [GroupSubscribedToTopic.code] * 2),
        # Version 1 without the partitions that it says it has: Kafka's coordinator reads no further than version 0.
        (b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff", [GroupSubscribedToTopic.code, 0]),
    ],
)
def test_offsets_stay_where_a_subscription_cannot_be_read(metadata: bytes, codes: list[int]):
    """OffsetDelete, as in Kafka: then nobody knows what the member reads."""
    desk = Desk()
    joining = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocols=(GroupProtocol(name="range", metadata=metadata),),
        needs_member_id=False,
    )
    step = desk.step()
    desk.coordinator.join(next(desk.tickets), joining, step)
    desk.done(step)
    desk.pass_time(0)
    assert delete_offsets(desk, "t", "u") == codes


def test_a_group_is_deleted_though_a_member_id_was_given_out():
    """As in Kafka: its client gets another one."""
    desk = Desk()
    desk.commit(5)
    member = desk.answers[desk.join()].member_id
    assert desk.answers[delete_group(desk)].error_code == 0
    assert desk.committed() == -1
    with pytest.raises(UnknownMemberId):
        desk.join(member)


def test_a_group_is_deleted_with_its_offsets_only_when_it_is_empty():
    """DeleteGroups; also what is still on its way to be committed goes."""
    desk = Desk()
    with pytest.raises(GroupIdNotFound):
        delete_group(desk)
    (member,) = desk.stable(1)
    with pytest.raises(NonEmptyGroup):
        delete_group(desk)
    desk.leave(member)
    desk.commit(5)
    desk.commits_at_once = False
    desk.commit(6, partition=1)
    ticket = delete_group(desk)
    assert ticket not in desk.answers
    desk.commit_all()
    assert desk.answers[ticket].error_code == 0
    assert (desk.committed(), desk.committed(partition=1), desk.state()) == (-1, -1, "Dead")
    desk.take_over()
    assert (desk.committed(), desk.committed(partition=1), desk.state()) == (-1, -1, "Dead")


def test_a_deletion_that_is_not_written_leaves_the_group():
    """And it can be deleted again."""
    desk = Desk(commits_at_once=False)
    desk.commit(5)
    desk.commit_all()
    ticket = delete_group(desk)
    desk.refuse_one(NotEnoughReplicas())
    assert desk.answers[ticket].error_code == 15
    assert (desk.committed(), desk.state()) == (5, "Empty")


def test_groups_are_listed_by_state():
    """In any case of letters, as the Kafka tools accept them."""
    desk = Desk()
    desk.stable(1)
    desk.commit(1, group="by-hand")
    groups = desk.coordinator.list_groups(ListGroupsRequest())
    assert [(each.group_id, each.protocol_type, each.state) for each in groups] == [
        ("by-hand", "", "Empty"),
        ("g", "consumer", "Stable"),
    ]
    assert [each.group_id for each in desk.coordinator.list_groups(ListGroupsRequest(states=("stable",)))] == ["g"]


def test_an_empty_group_that_somebody_is_about_to_join_is_not_deleted():
    """Nothing left to expire, and a member id given out: it stays, and nothing is written (a write has records)."""
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_max=100 * 86_400_000))
    (member,) = desk.stable(1)
    desk.leave(member)
    desk.pass_time(8 * DAY_S - 1_000)
    assert desk.state() == "Dead"
    (member,) = desk.stable(1)
    desk.leave(member)
    desk.join(session_ms=20 * 86_400_000)
    desk.pass_time(8 * DAY_S)
    assert desk.state() == "Empty"
    desk.pass_time(30 * DAY_S)
    assert desk.state() == "Dead"


@pytest.mark.parametrize("how", ["delete", "expire", "delete the topic"])
def test_the_offsets_of_a_group_that_read_very_much_are_forgotten(how: str):
    """One batch with all tombstones would exceed max.message.bytes: the group could never be deleted."""
    desk = Desk(settings=GroupSettings(offsets_retention_ms=1000, expiry_interval_ms=1000))
    topic = "t" * 249
    for number in range(0, 6_000, 500):
        commit_many(desk, topic, range(number, number + 500))
    desk.commits_at_once = False
    if how == "delete":
        ticket = delete_group(desk)
    elif how == "expire":
        desk.pass_time(2)
    else:
        step = desk.step()
        desk.coordinator.topics_deleted([topic], step)
        desk.done(step)
    writes = list(desk.in_flight)
    sizes = [sum(len(desk.coordinator.packed(each)[0]) for each in write.records) for write in writes]
    assert sum(len(write.records) for write in writes) >= 6_000
    assert max(sizes) < 2**20 * 0.8
    assert desk.state() == ("Empty" if how == "delete the topic" else "Dead")
    desk.commit_all()
    if how == "delete":
        assert desk.answers[ticket].error_code == 0
    assert desk.committed(topic=topic) == -1
    assert desk.coordinator.standings() == []


def commit_many(desk: Desk, topic: str, numbers: range) -> None:
    step = desk.step()
    partitions = tuple(CommitPartition(topic=topic, partition=each, offset=1) for each in numbers)
    request = OffsetCommitRequest(group_id="g", generation_id=-1, member_id="", partitions=partitions)
    desk.coordinator.commit(next(desk.tickets), request, step)
    desk.done(step)
