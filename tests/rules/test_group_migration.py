"""Groups that change their protocol while members live (KIP-848, group.consumer.migration.policy; issue 17 Build 5)."""

from __future__ import annotations

import contextlib

import pytest

from minikafka.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    NotEnoughReplicas,
    ProtocolError,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from minikafka.groups.consumer.records import ClassicSession, MemberMetadata, packed, record, unpacked
from minikafka.groups.limits import GroupSettings
from minikafka.groups.protocol import Assignment
from minikafka.groups.rebalance import PENDING_MAX
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import ListGroupsRequest, OffsetFetchRequest
from tests.rules.group_kit import assignment
from tests.rules.test_consumer_groups import ConsumerDesk, assigned


def desk_of(**fields) -> ConsumerDesk:
    made = ConsumerDesk(GroupSettings(initial_rebalance_delay_ms=0, **fields))
    made.topic(4)
    return made


def numbers(assignment: bytes) -> list[int]:
    return sorted(each.partition for each in Assignment.unpacked(assignment).partitions)


def test_the_record_of_a_classic_member_is_kafkas():
    """Tag 0 of record 5: session timeout and assignors; without it, the bytes are as before."""
    session = ClassicSession(session_timeout_ms=45_000, protocols=(("range", b"\x00\x03xyz"), ("sticky", b"")))
    written = record("g", MemberMetadata(client_id="c", topics=("t",), rebalance_timeout_ms=5, classic=session), "m")
    assert unpacked(*packed(written)) == written
    plain = record("g", MemberMetadata(client_id="c", topics=("t",)), "m")
    assert unpacked(*packed(plain)) == plain
    assert not plain.value.is_classic


def test_an_upgrade_keeps_generation_and_assignment_and_asks_the_classic_member_to_join():
    """The classic member's partitions stay its own until it has joined again without them."""
    desk = desk_of()
    [member] = desk.stable(1)
    had = numbers(desk.coordinator.describe("g").members[0].assignment)
    first = desk.enter("new")
    assert first.member_epoch == 2
    theirs = assigned(first)
    assert theirs == {2, 3}
    assert theirs.isdisjoint(had)
    shown = {each.member_id: each.is_classic for each in desk.group().members}
    assert shown == {member: True, "new": False}
    with pytest.raises(IllegalGeneration):
        desk.commit(5, member_id=member, generation=7)
    ticket = desk.commit(5, member_id=member, generation=1)
    assert desk.answers[ticket].partitions[0].error_code == 0
    joined = desk.answers[desk.join(member)]
    assert (joined.error_code, joined.generation_id, joined.leader, joined.members) == (0, 2, "", ())
    mine = numbers(desk.answers[desk.sync(member, 2)].assignment)
    assert mine == [0, 1]


def test_a_classic_member_commits_in_a_former_generation_what_it_has_owned_since():
    """KIP-1251 counts for both protocols, as in Kafka 4.3.1 (beside it, seed 890443782): the commit may have been on
    its way while the generation rose. What the member does not own is another matter.
    """
    desk = desk_of()
    [member] = desk.stable(1)
    theirs = assigned(desk.enter("new"))
    desk.join(member)
    desk.sync(member, 2)
    [mine, *_] = sorted({0, 1, 2, 3} - theirs)
    ticket = desk.commit_as(member, 1, mine)
    assert desk.answers[ticket].partitions[0].error_code == 0
    assert desk.committed(partition=mine) == 5
    for generation, partition in ((1, min(theirs)), (0, mine), (3, mine)):
        with pytest.raises(IllegalGeneration):
            desk.commit_as(member, generation, partition)


@pytest.mark.parametrize(("dealt", "epoch"), [((0, 1), 1), ((0,), 2)])
def test_an_upgrade_for_a_member_that_reads_nothing_assigns_only_what_is_nobodys(dealt: tuple[int, ...], epoch: int):
    """As in Kafka, the classic member need not join again; unless its cooperative rebalance was half done."""
    desk = desk_of()
    desk.topic(2)
    member, _ = desk.join_new()
    desk.pass_time(0)
    desk.sync(member, 1, {member: assignment(*dealt)})
    assert desk.enter("new", subscribed_topic_names=()).member_epoch == epoch
    assert desk.heartbeat(member, 1).error_code == (0 if epoch == 1 else RebalanceInProgress.code)


def test_a_classic_member_with_an_old_generation_fetches_no_offsets():
    """OffsetFetch 9 in a group of the consumer protocol: ILLEGAL_GENERATION, as classic members expect it."""
    desk = desk_of()
    [member] = desk.stable(1)
    desk.enter("new")
    with pytest.raises(IllegalGeneration):
        desk.coordinator.fetch_offsets(OffsetFetchRequest(group_id="g", member_id=member, member_epoch=0))


def test_classic_members_go_on_while_the_upgrade_is_written():
    """Java's consumer gave up its partitions: UNKNOWN_MEMBER_ID for a commit or a heartbeat at that moment."""
    desk = desk_of()
    [member] = desk.stable(1)
    desk.commits_at_once = False
    assert desk.enter("new") is None, "the upgrade waits for its commit"
    assert desk.heartbeat(member, 1).error_code == 0
    ticket = desk.commit(5, member_id=member, generation=1)
    assert desk.coordinator.describe("g").state == "Stable"
    assert [each.state for each in desk.coordinator.list_groups(ListGroupsRequest())] == ["Stable"]
    with pytest.raises(CoordinatorNotAvailable):
        desk.leave(member)
    with pytest.raises(CoordinatorNotAvailable):
        desk.sync(member, 1)
    desk.commit_all()
    assert desk.answers[ticket].partitions[0].error_code == 0
    assert [each.is_classic for each in desk.group().members] == [True, False]


def test_a_refused_upgrade_leaves_the_classic_group():
    """Its members go on, also while nobody knows whether the upgrade was written."""
    desk = desk_of()
    [member] = desk.stable(1)
    desk.commits_at_once = False
    desk.enter("new")
    desk.refuse_one(RequestTimedOut("late", outcome="unknown"))
    assert desk.heartbeat(member, 1).error_code == 0
    desk.commit_one()
    assert [each.is_classic for each in desk.group().members] == [True, False]
    other = desk_of()
    [member] = other.stable(1)
    other.commits_at_once = False
    other.enter("new")
    other.refuse_one(NotEnoughReplicas("too few"))
    assert other.heartbeat(member, 1).error_code == 0
    assert other.coordinator.describe("g").state == "Stable"


def classic_again() -> tuple[ConsumerDesk, str]:
    """A member of the consumer protocol has come and left; the classic member that stays is returned."""
    desk = desk_of()
    [member] = desk.stable(1)
    desk.enter("new")
    desk.join(member)
    desk.sync(member, 2)
    desk.send(member_id="new", member_epoch=-1)
    return desk, member


def test_the_last_member_of_the_consumer_protocol_leaves_and_the_group_is_classic():
    """Its generation is that of its members, who are asked to join again."""
    desk, member = classic_again()
    described = desk.coordinator.describe("g")
    assert (described.state, described.generation_id, described.protocol) == ("PreparingRebalance", 2, "")
    joined = desk.answers[desk.join(member)]
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 3, member)


def test_an_upgrade_leaves_a_cooperative_member_what_it_has_yet_to_give_up():
    """KIP-429: what its new assignment lacks is nobody's by the record, and still in use until it joins again."""
    desk = desk_of()
    desk.topic(2)
    [member] = desk.stable(1)
    desk.join(member, owned=(TopicPartition("t", 0), TopicPartition("t", 1)))
    desk.pass_time(0)
    desk.sync(member, 2, {member: assignment(0)})
    first = desk.enter("new")
    assert (first.member_epoch, assigned(first)) == (3, set())
    assert desk.heartbeat(member, 2).error_code == RebalanceInProgress.code
    assert numbers(desk.answers[desk.sync(member, 2)].assignment) == [0]
    assert assigned(desk.beat("new", 3, set())) in (None, set())
    desk.join(member, owned=(TopicPartition("t", 0),))
    assert assigned(desk.beat("new", 3, set())) == {1}


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "rebalanced"])
def test_a_group_that_became_classic_rebalances_under_its_next_coordinator(is_late: bool):
    """Else what the last member of the consumer protocol had would stay without a member; once is enough."""
    desk, member = classic_again()
    if is_late:
        desk.join(member)
        desk.sync(member, 3, {member: assignment(0, 1, 2, 3)})
    desk.take_over()
    assert desk.state() == ("Stable" if is_late else "PreparingRebalance")
    if not is_late:
        assert desk.answers[desk.join(member)].generation_id == 3


def test_a_rebalancing_group_is_upgraded_when_it_is_stable():
    """COORDINATOR_NOT_AVAILABLE is retried by every client; what cannot be converted is GROUP_ID_NOT_FOUND."""
    desk = desk_of()
    desk.stable(1)
    desk.join_new()
    with pytest.raises(CoordinatorNotAvailable):
        desk.enter("new")


def test_a_member_id_that_nobody_joined_with_does_not_hold_up_an_upgrade():
    """Its client may be gone; if it is not, it asks for another one."""
    desk = desk_of()
    [member] = desk.stable(1)
    left = desk.answers[desk.join(session_ms=600_000)].member_id
    assert desk.enter("new").error_code == 0
    assert {each.member_id for each in desk.group().members} == {"new", member}
    with pytest.raises(UnknownMemberId):
        desk.join(left)


@pytest.mark.parametrize(("policy", "may_upgrade"), [("disabled", False), ("downgrade", False), ("upgrade", True)])
def test_the_policy_decides(policy, may_upgrade):
    """Kafka's group.consumer.migration.policy."""
    desk = desk_of(migration_policy=policy)
    [member] = desk.stable(1)
    if not may_upgrade:
        with pytest.raises(GroupIdNotFound, match=r"migration\.policy"):
            desk.enter("new")
        return
    desk.enter("new")
    desk.join(member)
    desk.send(member_id="new", member_epoch=-1)
    assert [each.is_classic for each in desk.group().members] == [True], "no downgrade"


def test_a_classic_member_needs_an_assignor_in_common():
    """A downgrade must find one that all classic members speak."""
    desk = desk_of()
    desk.stable(1)
    desk.enter("new")
    with pytest.raises(InconsistentGroupProtocol, match="share none"):
        desk.join(names=("other",))


def test_a_classic_member_that_leaves_is_removed_whatever_becomes_of_the_write_in_flight():
    """LeaveGroup was answered without an error: neither that write nor a late heartbeat brings its session back."""
    desk = desk_of()
    [member] = desk.stable(1)
    desk.enter("new")
    desk.join(member)
    desk.commits_at_once = False
    desk.beat("new", 2, None, subscribed_topic_names=("t", "u"))
    desk.refuse_one(RequestTimedOut("late", outcome="unknown"))
    assert desk.leave(member).members[0].error_code == 0
    with contextlib.suppress(ProtocolError):
        desk.heartbeat(member, 2)
    desk.commit_all()
    desk.pass_time(0)
    desk.commit_all()
    assert [each.member_id for each in desk.group().members] == ["new"]


def test_a_static_member_that_returns_with_the_classic_protocol_drops_its_regular_expression():
    """It names its topics: those that the expression of its former process matched would have no reader."""
    desk = desk_of()
    desk.topic(4, "other", "BBECAwQFBgcICQoLDA0ODw")
    desk.enter("stays")
    desk.enter("new", instance_id="i", subscribed_topic_names=(), subscribed_topic_regex="other")
    desk.send(member_id="new", member_epoch=-2, instance_id="i")
    back = desk.answers[desk.join(instance="i")].member_id
    [shown] = [each for each in desk.group().members if each.member_id == back]
    assert (shown.subscribed_topic_names, shown.subscribed_topic_regex) == (("t",), None)
    assert {each.topic for each in shown.target_assignment} == {"t"}


def test_a_static_member_that_returns_with_the_classic_protocol_has_its_partitions_and_nobody_rebalances():
    """KIP-345 in a group of the consumer protocol: its new process takes its place."""
    desk = desk_of()
    desk.enter("stays")
    before = desk.answers[desk.join(instance="i")].member_id
    desk.beat("stays", 1, ())
    desk.pass_time(0)

    def of(member_id: str) -> list[tuple[int, ...]]:
        [shown] = [each for each in desk.group().members if each.member_id == member_id]
        return [each.partitions for each in shown.target_assignment]

    epoch, partitions = desk.group().group_epoch, of(before)
    assert partitions
    back = desk.answers[desk.join(instance="i")].member_id
    assert back != before
    assert {each.member_id for each in desk.group().members} == {"stays", back}
    assert (desk.group().group_epoch, of(back)) == (epoch, partitions)


@pytest.mark.parametrize("is_empty", [False, True], ids=["upgrade", "empty classic group"])
def test_a_refused_conversion_refuses_the_joins_that_waited_for_it(is_empty: bool):
    """The classic members still have their partitions: a second joiner would have received all of them at once."""
    desk = desk_of()
    [member] = desk.stable(1)
    if is_empty:
        desk.leave(member)
    desk.commits_at_once = False
    desk.enter("first")
    waiting = desk.send(
        member_id="second",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    desk.refuse_one(NotEnoughReplicas("too few"))
    assert desk.answers[waiting].error_code == CoordinatorNotAvailable.code
    assert desk.in_flight == []
    assert desk.coordinator.describe("g").state == ("Empty" if is_empty else "Stable")
    if not is_empty:
        assert desk.heartbeat(member, 1).error_code == 0
    desk.commits_at_once = True
    assert desk.enter("second").error_code == 0
    desk.take_over()
    assert desk.coordinator.describe("g").error_code == GroupIdNotFound.code, "nothing is left of the classic group"


def test_a_lost_response_to_a_classic_newcomer_leaves_no_member_without_a_client():
    """KIP-394 in a group of the consumer protocol: partitions of such a member had no reader until its session ended."""
    desk = desk_of()
    desk.enter("new")
    lost = desk.answers[desk.join()]
    assert lost.error_code == MemberIdRequired.code
    again = desk.answers[desk.join()]
    assert again.error_code == MemberIdRequired.code
    assert again.member_id not in ("", lost.member_id)
    joined = desk.answers[desk.join(again.member_id)]
    assert (joined.error_code, joined.member_id) == (0, again.member_id)
    assert sorted(each.member_id for each in desk.group().members) == sorted(["new", again.member_id])
    repeated = desk.answers[desk.join(again.member_id)]
    assert (repeated.error_code, repeated.generation_id) == (0, joined.generation_id)
    desk.pass_time(11)
    with pytest.raises(UnknownMemberId):
        desk.join(lost.member_id)


@pytest.mark.parametrize("asks", ["heartbeat", "sync"])
def test_a_classic_member_has_its_rebalance_timeout_from_the_response_on_that_asks_it_to_join(asks: str):
    """As in Kafka (seed 51001022 beside it): an upgrade does not remove a member that could not know of it."""
    desk = desk_of()
    desk.topic(2)
    member, _ = desk.join_new(rebalance_ms=1_000)
    desk.pass_time(0)
    desk.sync(member, 1, {member: assignment(0, 1)})
    desk.enter("new")
    desk.pass_time(2)
    answer = desk.heartbeat(member, 1) if asks == "heartbeat" else desk.answers[desk.sync(member, 1)]
    assert answer.error_code == RebalanceInProgress.code
    desk.pass_time(2)
    with pytest.raises(UnknownMemberId):
        desk.heartbeat(member, 1)


@pytest.mark.parametrize("then", ["", "syncs", "changes its protocol"])
def test_a_classic_member_must_sync_within_its_rebalance_timeout(then: str):
    """As in Kafka: one that joins and never syncs would keep its partitions unread for as long as it sends heartbeats."""
    desk = desk_of()
    desk.topic(2)
    desk.enter("new")
    member, ticket = desk.join_new(rebalance_ms=1_000)
    generation = desk.answers[ticket].generation_id
    if then == "syncs":
        desk.sync(member, generation)
    desk.pass_time(0.9)
    if then == "changes its protocol":
        desk.enter(member)
    else:
        desk.heartbeat(member, generation)
    desk.pass_time(0.2)
    assert sorted(each.member_id for each in desk.group().members) == sorted(["new", *([member] if then else [])])


def test_a_classic_newcomer_gives_its_member_id_back():
    """LeaveGroup with an id that nobody has joined with yet succeeds, as in a classic group."""
    desk = desk_of()
    desk.enter("new")
    given = desk.answers[desk.join()].member_id
    assert desk.leave(given).members[0].error_code == 0
    with pytest.raises(UnknownMemberId):
        desk.join(given)


def test_member_ids_for_classic_newcomers_are_bounded():
    """A client that only ever asks for ids must not fill the coordinator's memory; time frees it."""
    desk = desk_of()
    desk.enter("new")
    for _ in range(PENDING_MAX):
        desk.join()
    with pytest.raises(CoordinatorNotAvailable, match="join again in a while"):
        desk.join()
    desk.beat("new", 1)
    desk.now += 11
    assert desk.answers[desk.join()].error_code == MemberIdRequired.code


def test_a_replaced_instance_that_leaves_is_fenced():
    """Its old process must not believe that the instance is unknown: FENCED_INSTANCE_ID, as in a classic group."""
    desk = desk_of()
    desk.enter("new")
    old = desk.answers[desk.join(instance="i")].member_id
    new = desk.answers[desk.join(instance="i")].member_id
    assert old != new
    left = desk.leave(old, instance="i")
    assert left.members[0].error_code == FencedInstanceId.code
    assert desk.leave("", instance="i").members[0].error_code == 0
    assert [each.member_id for each in desk.group().members] == ["new"]


def test_a_classic_member_that_joins_with_the_consumer_protocol_under_its_id_is_classic_no_more():
    """Its JoinGroup would be waited for, and a downgrade would take it for a member that can go on."""
    desk = desk_of()
    desk.enter("stays")
    member, _ = desk.join_new()
    assert {each.member_id: each.is_classic for each in desk.group().members} == {"stays": False, member: True}
    assert desk.enter(member).error_code == 0
    assert {each.member_id: each.is_classic for each in desk.group().members} == {"stays": False, member: False}


@pytest.mark.parametrize("is_new", [False, True], ids=["was in use", "new"])
def test_a_member_id_that_nobody_joined_with_does_not_keep_an_empty_group_classic(is_new: bool):
    """Its client may have been restarted with the consumer protocol: it would wait for its own former session."""
    desk = desk_of()
    if not is_new:
        (member,) = desk.stable(1)
        desk.leave(member)
    left = desk.answers[desk.join(session_ms=600_000)].member_id
    first = desk.enter("new")
    assert (first.error_code, assigned(first)) == (0, {0, 1, 2, 3})
    with pytest.raises(UnknownMemberId):
        desk.join(left)
    desk.send(member_id="new", member_epoch=-1)
    ticket, step = next(desk.tickets), desk.step()
    desk.coordinator.delete_group(ticket, "g", step)
    desk.done(step)
    assert desk.answers[ticket].error_code == 0
