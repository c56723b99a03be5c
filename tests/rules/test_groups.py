"""S29, S31, S33, S34: the coordinator's classic protocol, state by state (KAFKA-FACTS 5)."""

from __future__ import annotations

import pytest

from minikafka.errors import (
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    NotCoordinator,
    NotEnoughReplicas,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from minikafka.groups.limits import GroupSettings
from minikafka.wire.group_messages import HeartbeatRequest
from tests.rules.group_kit import Desk, assignment


def generation_of(desk: Desk) -> int:
    return desk.coordinator.describe("g").generation_id


def test_a_newcomer_is_given_an_id_first():
    """KIP-394: a join that is sent twice leaves no ghost."""
    desk = Desk()
    answer = desk.answers[desk.join()]
    assert (answer.error_code, answer.member_id) == (MemberIdRequired.code, "c-1")
    assert desk.state() == "Empty"
    desk.pass_time(10)
    assert desk.state() == "Dead", "an id that nobody used ends with its session, and the group with it"


def test_a_group_of_one_is_stable_after_join_and_sync():
    """S33: Join, then Sync; generation 1; only what is committed is in force."""
    desk = Desk(commits_at_once=False)
    member, ticket = desk.join_new()
    joined = desk.answers[ticket]
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, member, "range")
    assert [each.member_id for each in joined.members] == [member]
    synced = desk.sync(member, 1, {member: assignment(0, 1)})
    assert desk.state() == "CompletingRebalance"
    assert synced not in desk.answers, "not before the record is committed"
    desk.commit_all()
    assert desk.state() == "Stable"
    assert desk.answers[synced].assignment == assignment(0, 1)


def test_only_the_leader_learns_who_the_members_are():
    """S33: the coordinator picks a leader and sends it the members; the first joiner leads."""
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3000))
    tickets = [desk.join_new() for _ in range(3)]
    assert desk.state() == "PreparingRebalance"
    desk.pass_time(6)
    answers = [desk.answers[ticket] for _, ticket in tickets]
    assert {answer.leader for answer in answers} == {tickets[0][0]}
    assert [len(answer.members) for answer in answers] == [3, 0, 0]
    assert {answer.generation_id for answer in answers} == {1}


def test_the_first_join_phase_waits_and_is_extended_while_members_come():
    """KIP-134: 3 s, and 3 s more if somebody came, up to the rebalance timeout."""
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3000))
    _, first = desk.join_new(rebalance_ms=8000)
    desk.pass_time(2.9)
    desk.join_new(rebalance_ms=8000)
    desk.pass_time(2.9)
    assert first not in desk.answers
    desk.join_new(rebalance_ms=8000)
    desk.pass_time(2.1)
    assert first not in desk.answers, "the second extension ends with the rebalance timeout, at 8 s"
    desk.pass_time(0.2)
    assert desk.answers[first].generation_id == 1
    assert len(desk.answers[first].members) == 3


def test_a_new_member_makes_everyone_join_again():
    """S31: joining triggers a rebalance; heartbeats tell it and still count."""
    desk = Desk()
    (old,) = desk.stable(1)
    new, ticket = desk.join_new()
    with pytest.raises(RebalanceInProgress):
        desk.heartbeat(old, 1)
    assert ticket not in desk.answers
    again = desk.join(old)
    assert desk.answers[ticket].generation_id == desk.answers[again].generation_id == 2
    waiting = desk.sync(new, 2)
    desk.sync(old, 2, {old: assignment(0), new: assignment(1)})
    assert desk.answers[waiting].assignment == assignment(1)
    assert desk.state() == "Stable"


def test_a_heartbeat_while_preparing_keeps_the_session():
    """KAFKA-FACTS 5: REBALANCE_IN_PROGRESS, and the timer is reset all the same."""
    desk = Desk()
    (old,) = desk.stable(1, session_ms=10_000)
    desk.join_new(session_ms=10_000)
    for _ in range(3):
        desk.pass_time(6)
        with pytest.raises(RebalanceInProgress):
            desk.heartbeat(old, 1)
    assert {each.member_id for each in desk.coordinator.describe("g").members} >= {old}


def test_a_new_coordinator_learns_the_software_of_a_member_from_its_heartbeat():
    """Kafka's record of a group has no place for it. A rejoin replaces it; a later heartbeat does not."""
    desk = Desk()
    (member,) = desk.stable(1)
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)

    def software() -> list[str]:
        return [each.software for each in desk.coordinator.describe("g").members]

    desk.coordinator.heartbeat(beat, desk.step(), "sarama 1.46.3")
    assert software() == ["sarama 1.46.3"]
    desk.take_over()
    assert software() == [""]
    desk.coordinator.heartbeat(beat, desk.step(), "sarama 1.46.3")
    desk.coordinator.heartbeat(beat, desk.step())
    assert software() == ["sarama 1.46.3"]
    desk.join(member, software="sarama 1.47.0")
    assert software() == ["sarama 1.47.0"]


def test_a_silent_member_is_dropped_and_the_others_rebalance():
    """S31: a member that dies."""
    desk = Desk()
    leader, other = desk.stable(2, session_ms=10_000)
    generation = generation_of(desk)
    desk.pass_time(6)
    desk.heartbeat(leader, generation)
    desk.pass_time(6)
    assert desk.state() == "PreparingRebalance"
    with pytest.raises(UnknownMemberId):
        desk.heartbeat(other, generation)
    ticket = desk.join(leader)
    assert [each.member_id for each in desk.answers[ticket].members] == [leader]


def test_who_does_not_join_again_in_time_is_dropped():
    """The join phase ends with the longest rebalance timeout."""
    desk = Desk()
    leader, other = desk.stable(2, session_ms=30_000, rebalance_ms=20_000)
    ticket = desk.join(leader, session_ms=30_000, rebalance_ms=20_000)
    desk.pass_time(19)
    with pytest.raises(RebalanceInProgress):
        desk.heartbeat(other, generation_of(desk))
    assert ticket not in desk.answers
    desk.pass_time(2)
    assert [each.member_id for each in desk.answers[ticket].members] == [leader]


def test_who_does_not_sync_in_time_is_dropped():
    """KAFKA-FACTS 5: members that never sync are removed after the rebalance timeout."""
    desk = Desk()
    leader, other = desk.stable(2, session_ms=60_000, rebalance_ms=20_000)
    options = {"session_ms": 60_000, "rebalance_ms": 20_000}
    desk.join(leader, **options)
    generation = desk.answers[desk.join(other, **options)].generation_id
    desk.sync(leader, generation, {leader: assignment(0), other: assignment(1)})
    assert desk.state() == "Stable"
    desk.pass_time(21)
    assert desk.state() == "PreparingRebalance"
    with pytest.raises(UnknownMemberId):
        desk.heartbeat(other, generation)


def test_leaving_rebalances_at_once_and_the_last_one_leaves_an_empty_group():
    """S31; the empty generation is a record too."""
    desk = Desk()
    leader, other = desk.stable(2)
    assert desk.leave(other).members[0].error_code == 0
    assert desk.state() == "PreparingRebalance"
    desk.join(leader)
    generation = generation_of(desk)
    desk.leave(leader)
    assert desk.state() == "Empty"
    assert generation_of(desk) == generation + 1
    desk.take_over()
    assert desk.state() == "Empty"
    assert generation_of(desk) == generation + 1
    assert desk.leave("who").members[0].error_code == UnknownMemberId.code


def test_members_of_a_group_that_is_unknown_leave_with_an_error_each():
    """As in Kafka: an administrator that removes several members learns of each one."""
    desk = Desk()
    left = desk.leave("one", "two", group="nothing")
    assert left.error_code == 0
    assert [(each.member_id, each.error_code) for each in left.members] == [
        ("one", UnknownMemberId.code),
        ("two", UnknownMemberId.code),
    ]


def test_a_follower_that_joins_again_unchanged_gets_the_generation_that_there_is():
    """KAFKA-FACTS 5: no rebalance; the leader's joining again is one."""
    desk = Desk()
    leader, other = desk.stable(2)
    generation = generation_of(desk)
    assert desk.answers[desk.join(other)].generation_id == generation
    assert desk.state() == "Stable"
    desk.join(other, topics=("t", "u"))
    assert desk.state() == "PreparingRebalance"
    desk.join(leader)
    assert generation_of(desk) == generation + 1


def test_generations_fence_zombies():
    """A request of another generation changes nothing."""
    desk = Desk()
    (member,) = desk.stable(1)
    for call in (desk.heartbeat, desk.sync):
        with pytest.raises(IllegalGeneration):
            call(member, 0)
    with pytest.raises(IllegalGeneration):
        desk.commit(5, member_id=member, generation=0)
    assert desk.committed() == -1


def test_the_leaders_first_assignment_of_a_generation_counts():
    """What is in force and what stands last in the log are the same, also when a sync is sent twice."""
    desk = Desk(commits_at_once=False)
    member, _ = desk.join_new()
    first = desk.sync(member, 1, {member: assignment(0)})
    second = desk.sync(member, 1, {member: assignment(7)})
    assert desk.answers[first].error_code == RebalanceInProgress.code
    desk.commit_all()
    assert desk.answers[second].assignment == assignment(0)
    desk.take_over()
    assert desk.coordinator.describe("g").members[0].assignment == assignment(0)


def test_the_last_assignment_is_described_while_members_join():
    """As in Kafka; it ends when a new one is in force, or is dropped."""
    desk = Desk()
    member, _ = desk.join_new()
    desk.sync(member, 1, {member: assignment(0)})
    desk.join(member)  # the leader: all join again
    assert desk.state() == "CompletingRebalance"
    assert [each.assignment for each in desk.coordinator.describe("g").members] == [assignment(0)]


def test_an_assignment_that_is_not_written_is_nobodys():
    """Too few replicas: the group joins again, and is told that nothing was written."""
    desk = Desk(commits_at_once=False)
    member, _ = desk.join_new()
    ticket = desk.sync(member, 1, {member: assignment(0)})
    desk.refuse_one(NotEnoughReplicas())
    assert desk.answers[ticket].error_code == 15
    assert desk.state() == "PreparingRebalance"
    again = desk.join(member)
    assert desk.answers[again].generation_id == 2


def test_an_assignment_that_is_committed_too_late_is_not_in_force():
    """The wait ran out, the group went on; the commit of the old generation changes nothing."""
    desk = Desk(commits_at_once=False)
    member, _ = desk.join_new()
    desk.sync(member, 1, {member: assignment(0)})
    desk.refuse_one(RequestTimedOut(outcome="unknown"))
    desk.join(member)
    desk.commit_all()
    assert (desk.state(), generation_of(desk)) == ("CompletingRebalance", 2)


def test_the_assignor_is_elected_by_votes_among_those_that_all_speak():
    """KAFKA-FACTS 5."""
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3000))
    tickets = [
        desk.join_new(names=("a", "b", "c"))[1],
        desk.join_new(names=("b", "c"))[1],
        desk.join_new(names=("c", "b"))[1],
        desk.join_new(names=("b", "c", "d"))[1],
    ]
    with pytest.raises(InconsistentGroupProtocol):
        desk.join(names=("a", "d"))
    desk.pass_time(6)
    assert {desk.answers[each].protocol_name for each in tickets} == {"b"}


def test_a_static_member_that_comes_back_disturbs_nobody():
    """KIP-345: same generation and assignment under a new id; the old id is fenced, also by the next coordinator."""
    desk = Desk()
    first = desk.answers[desk.join(instance="i")]
    old = first.member_id
    desk.sync(old, 1, {old: assignment(3)}, instance="i")
    back = desk.answers[desk.join(instance="i")]
    assert (back.generation_id, back.skip_assignment, desk.state()) == (1, True, "Stable")
    assert back.member_id != old
    with pytest.raises(FencedInstanceId):
        desk.heartbeat(old, 1, instance="i")
    assert desk.answers[desk.sync(back.member_id, 1, instance="i")].assignment == assignment(3)
    desk.take_over()
    desk.heartbeat(back.member_id, 1, instance="i")
    with pytest.raises(FencedInstanceId):
        desk.commit(1, member_id=old, generation=1, instance="i")


def test_a_static_leader_whose_client_knows_no_skipped_assignment_does_not_learn_that_it_leads():
    """As in Kafka (KIP-814): before JoinGroup 9 the answer names its former id as the leader's."""
    desk = Desk()
    old = desk.answers[desk.join(instance="i")].member_id
    desk.sync(old, 1, {old: assignment(3)}, instance="i")
    back = desk.answers[desk.join(instance="i", knows_skip_assignment=False)]
    assert (back.generation_id, back.leader, back.members, back.skip_assignment) == (1, old, (), False)
    assert desk.answers[desk.sync(back.member_id, 1, instance="i")].assignment == assignment(3)


def test_a_static_member_that_comes_back_has_the_times_of_its_new_process():
    """KIP-345: a longer session counts from its return on, also for the next coordinator; if it is written."""
    desk = Desk()
    old = desk.answers[desk.join(instance="i", session_ms=10_000)].member_id
    desk.sync(old, 1, {old: assignment(3)}, instance="i")
    back = desk.answers[desk.join(instance="i", session_ms=60_000)].member_id
    desk.pass_time(50)
    desk.heartbeat(back, 1, instance="i")
    desk.take_over()
    desk.pass_time(50)
    desk.heartbeat(back, 1, instance="i")
    desk.commits_at_once = False
    desk.join(instance="i", session_ms=600_000)
    desk.refuse_one(NotEnoughReplicas())
    desk.pass_time(61)
    assert desk.state() != "Stable", "the session of before, for the other was not written"


def test_a_static_member_whose_return_was_not_written_is_its_old_self():
    """What is in memory and what is in the log are one."""
    desk = Desk(commits_at_once=False)
    old = desk.answers[desk.join(instance="i")].member_id
    desk.sync(old, 1, {old: assignment(3)}, instance="i")
    desk.commit_all()
    ticket = desk.join(instance="i")
    desk.refuse_one(NotEnoughReplicas())
    assert desk.answers[ticket].error_code == 15
    desk.heartbeat(old, 1, instance="i")


def test_a_static_member_whose_return_is_written_late_joins_the_new_generation_itself():
    """KIP-345: the group has rebalanced meanwhile, without the subscription of the new process."""
    desk = Desk()
    (member,) = desk.stable(1)
    ticket = desk.join(instance="i", session_ms=300_000)
    desk.join(member)
    old = desk.answers[ticket].member_id
    desk.sync(old, 2, instance="i")
    desk.sync(member, 2, {member: assignment(0), old: assignment(1)})
    desk.commits_at_once = False
    back = desk.join(instance="i", session_ms=300_000)
    joined = desk.join(member, topics=("t", "u"))
    desk.pass_time(60)
    assert desk.answers[joined].generation_id == 3
    desk.commit_one()
    assert desk.answers[back].error_code == RebalanceInProgress.code


def test_a_newcomer_that_never_joins_holds_up_a_rebalance_for_its_session_only():
    """KIP-394: the others wait for the id that was given out, but not until the rebalance timeout."""
    desk = Desk()
    (member,) = desk.stable(1)
    desk.join(session_ms=10_000)
    ticket = desk.join(member, topics=("t", "u"), rebalance_ms=60_000)
    desk.pass_time(9)
    assert ticket not in desk.answers
    desk.pass_time(1)
    assert desk.answers[ticket].generation_id == 2


def test_a_newcomer_that_leaves_before_it_has_joined_holds_up_a_rebalance_no_longer():
    """Nobody else is missing: the join phase ends at once, not when the session of that id would have ended."""
    desk = Desk()
    (member,) = desk.stable(1)
    newcomer = desk.answers[desk.join(session_ms=10_000)].member_id
    ticket = desk.join(member, topics=("t", "u"), rebalance_ms=60_000)
    assert ticket not in desk.answers
    desk.leave(newcomer)
    assert desk.answers[ticket].generation_id == 2


def two_static_members(desk: Desk) -> dict[str, str]:
    """The member ids of instances a and b, which have joined and are to sync."""
    ids: dict[str, str] = {}
    for instance in ("a", "b"):
        ticket = desk.join(instance=instance, session_ms=60_000, rebalance_ms=5_000)
        if ids:
            desk.join(ids["a"], instance="a", session_ms=60_000, rebalance_ms=5_000)
        ids[instance] = desk.answers[ticket].member_id
    return ids


def test_static_members_that_are_away_keep_their_places():
    """KIP-345: within their session; nobody leaves for them on close."""
    desk = Desk()
    ids = two_static_members(desk)
    generation = generation_of(desk)
    given = {ids["a"]: assignment(0), ids["b"]: assignment(1)}
    desk.sync(ids["a"], generation, given, instance="a")
    desk.sync(ids["b"], generation, instance="b")
    desk.join(ids["a"], instance="a", topics=("t", "u"), session_ms=60_000, rebalance_ms=5_000)
    desk.pass_time(6)
    assert [each.group_instance_id for each in desk.coordinator.describe("g").members] == ["a", "b"]
    desk.pass_time(60)
    assert [each.group_instance_id for each in desk.coordinator.describe("g").members] == []


def test_a_static_member_that_comes_back_is_still_expected_to_sync_under_its_new_id():
    """It was to sync when its process ended. The new process has the same time for that, and is dropped after it."""
    desk = Desk()
    ids = two_static_members(desk)
    desk.sync(ids["a"], generation_of(desk), {ids["a"]: assignment(0), ids["b"]: assignment(1)}, instance="a")
    back = desk.answers[desk.join(instance="b", session_ms=60_000, rebalance_ms=5_000)]
    assert (back.member_id != ids["b"], desk.state()) == (True, "Stable")
    desk.pass_time(6)
    assert [each.group_instance_id for each in desk.coordinator.describe("g").members] == ["a"]


def test_a_new_coordinator_knows_members_and_assignments_and_restarts_sessions():
    """The log is the memory: nobody has to join again."""
    desk = Desk()
    members = desk.stable(2, session_ms=10_000)
    generation = generation_of(desk)
    desk.pass_time(9)
    desk.take_over()
    desk.pass_time(9)
    for member in members:
        desk.heartbeat(member, generation)
    assert desk.state() == "Stable"
    assert {each.assignment for each in desk.coordinator.describe("g").members} == {assignment(0), assignment(1)}


def test_a_new_coordinator_drops_members_that_it_never_hears():
    """Sessions of dynamic and static members begin when the coordinator takes over, without any request."""
    desk = Desk()
    member = desk.stable(1, session_ms=10_000)[0]
    desk.join(instance="i", session_ms=10_000)
    desk.join(member, session_ms=10_000)
    desk.sync(member, generation_of(desk), {})
    desk.pass_time(9)
    desk.take_over()
    assert len(desk.coordinator.describe("g").members) == 2
    desk.pass_time(9)
    assert len(desk.coordinator.describe("g").members) == 2
    desk.pass_time(2)
    assert desk.coordinator.describe("g").members == ()


def test_who_waits_when_the_coordinator_moves_is_told():
    """NOT_COORDINATOR: look for the new one."""
    desk = Desk()
    desk.stable(1)
    _, ticket = desk.join_new()
    step = desk.step()
    desk.coordinator.resign(step)
    desk.done(step)
    assert desk.answers[ticket].error_code == NotCoordinator.code


def test_bad_requests_are_refused_by_name():
    """Nothing is half-applied."""
    desk = Desk()
    with pytest.raises(InvalidGroupId):
        desk.join(group="")
    with pytest.raises(InvalidSessionTimeout, match="5999: from 6000"):
        desk.join(session_ms=5_999)
    with pytest.raises(InvalidRequest, match="rebalance_timeout_ms=0"):
        desk.join(rebalance_ms=0)
    with pytest.raises(UnknownMemberId):
        desk.join("somebody")
    with pytest.raises(InconsistentGroupProtocol):
        desk.coordinator.join(1, _without_protocols(), desk.step())
    assert desk.state() == "Dead"


def _without_protocols():
    from minikafka.wire.group_messages import JoinGroupRequest

    return JoinGroupRequest(group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=1, protocols=())


def test_whoever_comes_while_the_first_join_phase_is_left_by_all_may_join():
    """The only member left during its first join phase: the next one meets nobody with whom it could disagree."""
    desk = Desk(GroupSettings(initial_rebalance_delay_ms=3000))
    member, _ = desk.join_new()
    desk.leave(member)
    assert desk.state() == "PreparingRebalance"
    second, ticket = desk.join_new(names=("cooperative-sticky",))
    desk.pass_time(6)
    assert desk.answers[ticket].protocol_name == "cooperative-sticky"
    assert desk.answers[ticket].leader == second


def test_a_static_member_that_joins_again_while_it_is_parked_waits_for_the_end_of_the_join_phase():
    """It waits for the coordinator, so it cannot heartbeat: its session does not end meanwhile."""
    desk = Desk()
    (member,) = desk.stable(1)
    first = desk.join(instance="i")
    again = desk.join(instance="i")
    assert desk.answers[first].error_code == FencedInstanceId.code
    for _ in range(4):
        desk.pass_time(5)
        with pytest.raises(RebalanceInProgress):
            desk.heartbeat(member, 1)
    assert again not in desk.answers, "its session lasts 10 s, the join phase 60 s"
    desk.join(member)
    assert desk.answers[again].error_code == 0
