"""Groups of the consumer protocol (KIP-848): epochs, reconciliation, fencing, static members, takeover."""

from __future__ import annotations

import random

import pytest

from minikafka.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRegularExpression,
    InvalidRequest,
    NonEmptyGroup,
    NotEnoughReplicas,
    ProtocolError,
    RequestTimedOut,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from minikafka.groups.consumer.group import REGEXES_MAX, Regexes
from minikafka.groups.limits import GroupSettings
from minikafka.wire.group_messages import (
    CommitPartition,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TopicIdPartitions,
)
from tests.rules.group_kit import Desk, topic_image

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
FENCED, FENCED_INSTANCE, UNKNOWN, UNRELEASED, FULL = 110, 82, 25, 111, 81


class ConsumerDesk(Desk):
    """A coordinator with heartbeats of the consumer protocol."""

    def topic(self, partitions: int, name: str = "t", topic_id: str = TOPIC_ID) -> None:
        self.topics = {**self.topics, name: topic_image(name, topic_id, partitions)}

    def send(self, **fields) -> int:
        ticket = next(self.tickets)
        step = self.step()
        try:
            request = ConsumerGroupHeartbeatRequest(group_id="g", **fields)
            self.coordinator.consumer_heartbeat(ticket, request, step)
        finally:
            self.done(step)
        return ticket

    def beat(self, member_id: str, epoch: int, owned: set[int] | None = None, **fields):
        parts = None if owned is None else (TopicIdPartitions(topic_id=TOPIC_ID, partitions=tuple(sorted(owned))),)
        if owned is not None and not owned:
            parts = ()
        return self.answers.get(self.send(member_id=member_id, member_epoch=epoch, topic_partitions=parts, **fields))

    def enter(self, member_id: str, **fields):
        given = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("t",), **fields}
        return self.beat(member_id, 0, set(), **given)

    def group(self):
        return self.coordinator.describe_consumer("g")

    def commit_as(self, member_id: str, epoch: int, partition: int = 0, **fields) -> int:
        ticket, step = next(self.tickets), self.step()
        request = OffsetCommitRequest(
            group_id="g",
            member_id=member_id,
            generation_id=epoch,
            partitions=(CommitPartition(topic="t", partition=partition, offset=5),),
            **fields,
        )
        try:
            self.coordinator.commit(ticket, request, step)
        finally:
            self.done(step)
        return ticket


@pytest.fixture
def desk() -> ConsumerDesk:
    made = ConsumerDesk()
    made.topic(4)
    return made


def assigned(response: ConsumerGroupHeartbeatResponse) -> set[int] | None:
    assert response.error_code == 0, response
    if response.assignment is None:
        return None
    return {number for each in response.assignment for number in each.partitions}


def test_partition_moves_only_after_its_owner_has_revoked_it(desk: ConsumerDesk):
    """Revoked before assigned: the second member waits for the first one's confirmation."""
    first = desk.enter("a")
    assert (first.member_epoch, assigned(first)) == (1, {0, 1, 2, 3})
    second = desk.enter("b")
    assert (second.member_epoch, assigned(second)) == (2, set())
    assert desk.group().state == "Reconciling"
    told = desk.beat("a", 1, {0, 1, 2, 3})
    kept = assigned(told)
    assert (told.member_epoch, len(kept)) == (1, 2)
    assert assigned(desk.beat("b", 2)) is None, "the first member has not confirmed"
    assert assigned(desk.beat("a", 1)) is None, "a heartbeat without topic_partitions confirms nothing"
    done = desk.beat("a", 1, kept)
    assert done.member_epoch == 2
    assert assigned(desk.beat("b", 2)) == {0, 1, 2, 3} - kept
    group = desk.group()
    assert (group.state, group.group_epoch, group.assignment_epoch, group.assignor) == ("Stable", 2, 2, "uniform")


def test_a_topic_that_a_member_leaves_while_it_revokes_is_revoked_as_well(desk: ConsumerDesk):
    """As in Kafka (beside it, seed 51004004); before, the member was assigned it until all else was revoked."""
    other_id = "BAECAwQFBgcICQoLDA0ODw"
    desk.topic(2, "other", other_id)
    desk.enter("a", subscribed_topic_names=("t", "other"))
    desk.beat("a", 1, {0, 1, 2, 3}, subscribed_topic_names=("other",))
    response = desk.beat("a", 1, subscribed_topic_names=("t",))
    assert (response.member_epoch, assigned(response)) == (1, set())
    assert desk.beat("a", 1).assignment is None, "nothing is new"
    done = desk.beat("a", 1, set())
    assert (done.member_epoch, assigned(done)) == (3, {0, 1, 2, 3})


def test_what_was_to_be_revoked_stays_so_when_its_member_leaves_a_topic(desk: ConsumerDesk):
    """Until the member has confirmed that, it may still read those partitions: nobody else gets them."""
    desk.topic(2, "other", "BAECAwQFBgcICQoLDA0ODw")
    desk.enter("a", subscribed_topic_names=("t", "other"))
    desk.enter("b")
    desk.beat("a", 1, {0, 1, 2, 3})
    desk.beat("a", 1, subscribed_topic_names=("t",))
    assert not assigned(desk.beat("b", 2))


def test_wrong_epochs_are_fenced(desk: ConsumerDesk):
    """The previous epoch passes once its response was lost, if the member owns no more than it was assigned."""
    desk.enter("a")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}))
    assert desk.beat("a", 1, kept).member_epoch == 2
    assert desk.beat("a", 1, kept).member_epoch == 2, "the response was lost"
    assert desk.beat("a", 1).error_code == FENCED
    assert desk.beat("a", 1, {0, 1, 2, 3}).error_code == FENCED
    assert desk.beat("a", 3).error_code == FENCED
    assert desk.beat("c", 1).error_code == UNKNOWN


def test_an_epoch_whose_response_was_lost_passes_while_the_next_revocation_is_due(desk: ConsumerDesk):
    """The confirmed revocation raises the epoch; the member that does not know it yet is not fenced."""
    desk.enter("a")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}))
    desk.enter("c")
    desk.enter("d")
    told = desk.beat("a", 1, kept)
    assert (told.member_epoch, len(assigned(told))) == (2, 1)
    assert desk.beat("a", 1, assigned(told)).member_epoch == 4, "the response with epoch 2 was lost"


def test_an_epoch_whose_response_was_lost_passes_after_partitions_have_come_free(desk: ConsumerDesk):
    """They come in the same epoch, and the response that assigns them may be lost as well."""
    desk.topic(2, "other", "BAECAwQFBgcICQoLDA0ODw")
    desk.enter("a")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}))
    desk.beat("a", 1, kept)
    own = assigned(desk.beat("b", 2))
    revoking = desk.beat("a", 2, kept, subscribed_topic_names=("other",))
    assert desk.beat("b", 2, own).member_epoch == 3, "the response is lost"
    desk.beat("a", revoking.member_epoch, set())
    assert assigned(desk.beat("b", 2, own)) == {0, 1, 2, 3}, "the response is lost"
    assert desk.beat("b", 2, own).member_epoch == 3


def test_a_repeated_join_confirms_no_revocation(desk: ConsumerDesk):
    """It may have been sent before the member owned anything, and come late."""
    desk.enter("a")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}))
    assert desk.enter("a").member_epoch == 1
    assert assigned(desk.beat("b", 2)) is None, "the first member may still own what it shall revoke"
    desk.beat("a", 1, kept)
    assert assigned(desk.beat("b", 2)) == {0, 1, 2, 3} - kept


def test_member_without_heartbeats_is_removed_after_its_session(desk: ConsumerDesk):
    """The others get its partitions from their next heartbeats on, at a higher epoch."""
    desk.enter("a")
    desk.enter("b")
    for _ in range(8):
        desk.pass_time(5)
        assert desk.beat("b", 2).member_epoch == 2
    desk.pass_time(6)
    assert [each.member_id for each in desk.group().members] == ["b"]
    response = desk.beat("b", 2)
    assert (response.member_epoch, assigned(response)) == (3, {0, 1, 2, 3})
    assert desk.beat("a", 1).error_code == UNKNOWN


def test_member_that_does_not_revoke_is_removed_after_its_rebalance_timeout(desk: ConsumerDesk):
    """It heartbeats all the time; another member waits for its partitions."""
    desk.enter("a", rebalance_timeout_ms=20_000)
    desk.enter("b")
    for _ in range(4):
        assert desk.beat("a", 1, {0, 1, 2, 3}).member_epoch == 1
        assert desk.beat("b", 2).member_epoch == 2
        desk.pass_time(5)
    desk.pass_time(1)
    assert desk.beat("a", 1).error_code == UNKNOWN
    assert assigned(desk.beat("b", 2)) == {0, 1, 2, 3}


def test_leaving_member_frees_its_partitions(desk: ConsumerDesk):
    """Epoch -1; the empty group keeps equal epochs and is listed as Empty."""
    desk.enter("a")
    assert desk.beat("a", -1).member_epoch == -1
    group = desk.group()
    assert (group.state, group.group_epoch, group.assignment_epoch) == ("Empty", 2, 2)
    assert assigned(desk.enter("b")) == {0, 1, 2, 3}


def test_static_member_returns_to_its_partitions(desk: ConsumerDesk):
    """Epoch -2: nothing moves while it is away, and its successor needs no new group epoch."""
    owned = assigned(desk.enter("a", instance_id="i"))
    assert desk.enter("x", instance_id="i").error_code == UNRELEASED
    assert desk.beat("a", -2, instance_id="i").member_epoch == -2
    back = desk.enter("a2", instance_id="i")
    assert (back.member_epoch, assigned(back)) == (1, owned)
    assert desk.group().group_epoch == 1
    assert desk.beat("a", 1, instance_id="i").error_code == FENCED_INSTANCE


def test_a_static_member_that_returns_without_a_regular_expression_drops_it(desk: ConsumerDesk):
    """A join says all: what the former process asked for would be assigned to one that does not read it."""
    desk.topic(4, "other", "BBECAwQFBgcICQoLDA0ODw")
    desk.enter(
        "a",
        instance_id="i",
        subscribed_topic_names=(),
        subscribed_topic_regex="other",
        server_assignor="range",
        rack_id="r",
    )
    desk.beat("a", -2, instance_id="i")
    assert assigned(desk.enter("a2", instance_id="i")) == {0, 1, 2, 3}
    (member,) = desk.group().members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex, member.rack_id) == (("t",), None, None)
    assert {each.topic for each in member.target_assignment} == {"t"}
    assert desk.group().assignor == "uniform"
    desk.beat("a2", -2, instance_id="i")
    desk.enter("a3", instance_id="i", subscribed_topic_names=None, subscribed_topic_regex="other")
    (member,) = desk.group().members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((), "other")


def test_a_static_member_that_leaves_has_revoked_what_it_was_to_revoke(desk: ConsumerDesk):
    """Only what is still its own waits for it: a process that has ended reads nothing."""
    desk.enter("a", instance_id="i")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}, instance_id="i"))
    desk.beat("a", -2, instance_id="i")
    assert assigned(desk.beat("b", 2)) == {0, 1, 2, 3} - kept


def test_static_member_that_stays_away_is_removed(desk: ConsumerDesk):
    """Its session goes on while it is away."""
    desk.enter("a", instance_id="i")
    desk.beat("a", -2, instance_id="i")
    desk.pass_time(46)
    assert desk.group().members == ()


def test_new_partitions_raise_the_group_epoch(desk: ConsumerDesk):
    """On the next heartbeat after the metadata changed; a deleted topic is taken away."""
    desk.enter("a")
    desk.topic(6)
    response = desk.beat("a", 1)
    assert (response.member_epoch, assigned(response)) == (2, {0, 1, 2, 3, 4, 5})
    del desk.topics["t"]
    response = desk.beat("a", 2)
    assert assigned(response) == set()
    assert desk.beat("a", 2, set()).member_epoch == 3


def test_majority_of_members_chooses_the_assignor(desk: ConsumerDesk):
    """The default, uniform, if none names one."""
    desk.enter("a", server_assignor="range")
    assert desk.group().assignor == "range"
    desk.enter("b", server_assignor="uniform")
    assert desk.group().assignor == "uniform"


OTHER_ID, THIRD_ID = "BAECAwQFBgcICQoLDA0ODw", "CAECAwQFBgcICQoLDA0ODw"


def topic_ids(response: ConsumerGroupHeartbeatResponse) -> set[str]:
    assert response.error_code == 0, response
    return {each.topic_id for each in response.assignment or ()}


def test_a_regular_expression_subscribes_to_whole_names_also_of_topics_that_come_later(desk: ConsumerDesk):
    """KIP-848: the coordinator resolves it. Names and expression add up."""
    desk.topic(1, "tea", OTHER_ID)
    first = desk.enter("a", subscribed_topic_names=(), subscribed_topic_regex=".*e.*")
    assert topic_ids(first) == {OTHER_ID}
    assert desk.group().members[0].subscribed_topic_regex == ".*e.*"
    both = desk.beat("a", first.member_epoch, None, subscribed_topic_names=("t",))
    assert topic_ids(both) == {OTHER_ID, TOPIC_ID}
    assert desk.beat("a", both.member_epoch).assignment is None
    desk.topic(1, "eel", THIRD_ID)
    later = desk.beat("a", both.member_epoch)
    assert (later.member_epoch, topic_ids(later)) == (both.member_epoch + 1, {OTHER_ID, TOPIC_ID, THIRD_ID})
    none = desk.beat("a", later.member_epoch, None, subscribed_topic_regex="")
    assert topic_ids(none) == {TOPIC_ID}
    assert desk.group().members[0].subscribed_topic_regex is None


def test_a_regular_expression_matches_internal_topics(desk: ConsumerDesk):
    """As in Kafka, where clients exclude them if they want to: franz-go consumes those that it named."""
    desk.topic(1, "__tea", OTHER_ID)
    response = desk.enter("a", subscribed_topic_names=(), subscribed_topic_regex=".*tea")
    assert topic_ids(response) == {OTHER_ID}


def test_a_regular_expression_does_not_match_what_its_member_may_not_describe(desk: ConsumerDesk):
    """Otherwise an assignment would show the partitions of a topic that the client cannot see."""
    desk.topic(1, "tea", OTHER_ID)
    response = desk.enter("a", subscribed_topic_names=(), subscribed_topic_regex="t.*", hidden_topics=("tea",))
    assert topic_ids(response) == {TOPIC_ID}


def test_members_with_different_permissions_do_not_change_the_assignment_in_turns(desk: ConsumerDesk):
    """The one that meets a change of topics decides, as in Kafka; heartbeats of the others leave it as it is."""
    desk.topic(1, "tea", OTHER_ID)
    one = desk.enter("a", subscribed_topic_names=(), subscribed_topic_regex="t.*")
    two = desk.enter("b", subscribed_topic_names=(), subscribed_topic_regex="t.*", hidden_topics=("tea",))
    epoch = desk.group().group_epoch
    for _ in range(2):
        assert desk.beat("b", two.member_epoch, hidden_topics=("tea",)).error_code == 0
        assert desk.beat("a", one.member_epoch).error_code == 0
    assert desk.group().group_epoch == epoch


def test_a_regular_expression_survives_the_coordinator(desk: ConsumerDesk):
    """What it matched is in the records: the next coordinator assigns the same without a look at the topics."""
    desk.topic(1, "tea", OTHER_ID)
    response = desk.enter("a", subscribed_topic_names=(), subscribed_topic_regex="te.")
    desk.take_over()
    assert desk.beat("a", response.member_epoch).member_epoch == response.member_epoch
    assert desk.group().members[0].subscribed_topic_regex == "te."


@pytest.mark.parametrize(
    "fields, error",
    [
        ({"member_id": ""}, InvalidRequest),
        ({"member_epoch": -3}, InvalidRequest),
        ({"member_epoch": -2}, InvalidRequest),
        ({"rebalance_timeout_ms": -1}, InvalidRequest),
        ({"rebalance_timeout_ms": 2**31}, InvalidRequest),
        ({"topic_partitions": None}, InvalidRequest),
        ({"subscribed_topic_names": None}, InvalidRequest),
        ({"instance_id": ""}, InvalidRequest),
        ({"server_assignor": "sticky"}, UnsupportedAssignor),
        ({"subscribed_topic_regex": "t("}, InvalidRegularExpression),
        ({"subscribed_topic_regex": "(?=t)t"}, InvalidRegularExpression),
        ({"subscribed_topic_regex": "((a{100}){100}){100}"}, InvalidRegularExpression),
        ({"subscribed_topic_regex": "t" * 40_000}, InvalidRegularExpression),
        ({"member_epoch": 1}, UnknownMemberId),
    ],
)
def test_bad_requests_are_refused(desk: ConsumerDesk, fields, error: type[ProtocolError]):
    """Each with Kafka's code; an unknown group is UNKNOWN_MEMBER_ID here, so that every client joins again."""
    good = {
        "member_id": "a",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": ("t",),
        "topic_partitions": (),
    }
    with pytest.raises(error):
        desk.send(**{**good, **fields})
    assert desk.log == []
    assert desk.coordinator.list_groups(ListGroupsRequest()) == ()


def test_full_group_refuses_new_members_only():
    """GROUP_MAX_SIZE_REACHED; a member that repeats its join stays."""
    desk = ConsumerDesk(GroupSettings(consumer_group_size_max=1))
    desk.topic(1)
    desk.enter("a")
    assert desk.enter("b").error_code == FULL
    assert desk.enter("a").error_code == 0


def test_offsets_are_fenced_by_member_epochs(desk: ConsumerDesk):
    """An older epoch passes for partitions that the member has had since then (KIP-1251)."""
    desk.enter("a")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}))
    desk.beat("a", 1, kept)
    new = assigned(desk.beat("b", 2))
    assert desk.answers[desk.commit_as("a", 1, min(kept))].partitions[0].error_code == 0
    desk.commit_as("a", 2, min(kept))
    for member, epoch, partition, error in [
        ("a", 1, min(new), StaleMemberEpoch),
        ("a", 3, min(kept), StaleMemberEpoch),
        ("b", 1, min(new), StaleMemberEpoch),
        ("x", 2, 0, UnknownMemberId),
        ("", -1, 0, UnknownMemberId),
    ]:
        with pytest.raises(error):
            desk.commit_as(member, epoch, partition)
    for epoch in (2, 1):  # also a stale one, as in Kafka
        with pytest.raises(UnsupportedVersion):
            desk.commit_as("a", epoch, min(new), knows_member_epochs=False)
    fetch = desk.coordinator.fetch_offsets
    assert fetch(OffsetFetchRequest(group_id="g", member_id="a", member_epoch=2)).partitions[0].offset == 5
    with pytest.raises(StaleMemberEpoch):
        fetch(OffsetFetchRequest(group_id="g", member_id="a", member_epoch=1))


def test_a_stale_epoch_in_a_transaction_is_an_illegal_generation(desk: ConsumerDesk):
    """As in Kafka: producers know no STALE_MEMBER_EPOCH here, and Java's would never send again."""
    desk.enter("a")
    desk.commit_in_transaction(5, member_id="a", generation=1)
    with pytest.raises(IllegalGeneration):
        desk.commit_in_transaction(5, member_id="a", generation=2)
    with pytest.raises(UnknownMemberId):
        desk.commit_in_transaction(5, member_id="x", generation=1)


def test_a_commit_at_an_older_epoch_passes_for_a_partition_that_is_being_revoked(desk: ConsumerDesk):
    """KIP-1251: the member commits what it has processed before it gives the partition up."""
    desk.enter("a")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}))
    assert desk.beat("a", 1, kept).member_epoch == 2
    desk.enter("c")
    desk.enter("d")
    (revoked,) = kept - assigned(desk.beat("a", 2, kept))
    assert desk.answers[desk.commit_as("a", 1, revoked)].partitions[0].error_code == 0


def test_a_commit_at_an_older_epoch_needs_all_its_partitions_since_then(desk: ConsumerDesk):
    """KIP-1251: one partition that came later makes it stale."""
    desk.enter("a")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}))
    revoked = min({0, 1, 2, 3} - kept)
    desk.beat("a", 1, kept)
    desk.beat("b", -1)
    grown = assigned(desk.beat("a", 2, kept))
    assert grown == {0, 1, 2, 3}
    partitions = tuple(CommitPartition(topic="t", partition=each, offset=7) for each in (min(kept), revoked))
    for order in (partitions, partitions[::-1]):
        request = OffsetCommitRequest(group_id="g", member_id="a", generation_id=1, partitions=order)
        with pytest.raises(StaleMemberEpoch):
            desk.coordinator.commit(next(desk.tickets), request, desk.step())


def test_response_waits_for_the_commit_and_the_group_serves_in_order(desk: ConsumerDesk):
    """Nothing of an uncommitted write is shown; requests that arrive meanwhile wait."""
    desk.commits_at_once = False
    assert desk.enter("a") is None
    waiting = desk.send(
        member_id="b",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    assert desk.group().members == ()
    assert len(desk.in_flight) == 1
    desk.commit_one()
    assert waiting not in desk.answers
    desk.commit_one()
    assert desk.answers[waiting].member_epoch == 2


def test_refused_write_changes_nothing(desk: ConsumerDesk):
    """The member is answered COORDINATOR_NOT_AVAILABLE and may try again."""
    desk.commits_at_once = False
    desk.enter("a")
    desk.refuse_one(NotEnoughReplicas("too few"))
    assert desk.answers[1].error_code == CoordinatorNotAvailable.code
    assert desk.coordinator.describe_consumer("g").error_code == GroupIdNotFound.code
    desk.commits_at_once = True
    assert assigned(desk.enter("a")) == {0, 1, 2, 3}


def test_write_with_unknown_outcome_counts_once_it_is_committed(desk: ConsumerDesk):
    """Until then the group refuses heartbeats: nobody knows what the members are."""
    desk.commits_at_once = False
    desk.enter("a")
    desk.refuse_one(RequestTimedOut("late", outcome="unknown"))
    with pytest.raises(CoordinatorNotAvailable):
        desk.enter("a")
    desk.commit_one()
    assert desk.enter("a").member_epoch == 1


def test_group_survives_a_takeover(desk: ConsumerDesk):
    """The successor reads the same group, also from a compacted log, and gives each member a whole session."""
    desk.enter("a")
    desk.enter("b")
    kept = assigned(desk.beat("a", 1, {0, 1, 2, 3}))
    before = desk.group()
    desk.take_over()
    assert desk.group() == before
    latest = {key: (at, value) for at, (key, value) in enumerate(desk.log)}
    desk.log = [(key, value) for key, (at, value) in sorted(latest.items(), key=lambda item: item[1][0])]
    desk.take_over()
    assert desk.group() == before
    desk.pass_time(44)
    assert desk.beat("a", 1, kept).member_epoch == 2
    assert assigned(desk.beat("b", 2)) == {0, 1, 2, 3} - kept


def test_lists_show_types_and_states(desk: ConsumerDesk):
    """DescribeGroups finds no classic group; deleting needs an empty group, and leaves nothing of it."""
    desk.enter("a")
    listed = desk.coordinator.list_groups
    [group] = listed(ListGroupsRequest(types=("Consumer",), states=("stable",)))
    assert (group.group_id, group.group_type, group.protocol_type) == ("g", "consumer", "consumer")
    assert listed(ListGroupsRequest(types=("classic",))) == ()
    assert desk.coordinator.describe("g").error_code == GroupIdNotFound.code
    assert [(each.state.value, each.member_count) for each in desk.coordinator.standings()] == [("Stable", 1)]
    with pytest.raises(NonEmptyGroup):
        desk.coordinator.delete_group(99, "g", desk.step())
    desk.beat("a", -1)
    step = desk.step()
    desk.coordinator.delete_group(99, "g", step)
    desk.done(step)
    assert listed(ListGroupsRequest()) == ()
    desk.take_over()
    assert listed(ListGroupsRequest()) == ()


def test_group_changes_its_protocol_while_it_is_empty():
    """Committed offsets stay in both directions, whatever the policy for groups with members is."""
    desk = ConsumerDesk(GroupSettings(initial_rebalance_delay_ms=0, migration_policy="disabled"))
    desk.topic(4)
    [member] = desk.stable(1)
    with pytest.raises(GroupIdNotFound):
        desk.enter("a")
    desk.commit(7, member_id=member, generation=1)
    desk.leave(member)
    desk.enter("a")
    desk.take_over()
    assert desk.group().state == "Stable"
    assert desk.committed() == 7
    desk.beat("a", -1)
    desk.stable(1)
    assert desk.state() == "Stable"
    assert desk.coordinator.describe_consumer("g").error_code == GroupIdNotFound.code
    desk.take_over()
    assert desk.state() == "Stable"
    assert desk.committed() == 7


def test_a_join_that_was_refused_leaves_no_member_when_its_write_is_committed_late():
    """Its client has its answer and joins again: a member from the first join would keep partitions from it."""
    desk = ConsumerDesk(GroupSettings(initial_rebalance_delay_ms=0))
    desk.topic(1)
    desk.enter("a")
    desk.beat("a", -1)
    desk.commits_at_once = False
    ticket = desk.join(instance="i")
    desk.refuse_one(RequestTimedOut("late", outcome="unknown"))
    assert desk.answers[ticket].error_code == CoordinatorNotAvailable.code
    desk.commit_all()
    assert desk.coordinator.standings() == []
    again = desk.join(instance="i")
    desk.pass_time(0)
    assert desk.answers[again].error_code == 0


def test_the_memory_of_regular_expressions_is_bounded():
    """A member may send another expression with each heartbeat, while the topics stay."""
    regexes, topics = Regexes(), {}
    for number in range(3 * REGEXES_MAX):
        assert regexes.matched(f"t{number}", topics) == ()
    assert len(regexes._found) <= REGEXES_MAX


def test_offsets_of_topics_that_members_read_do_not_expire():
    """The others do; a group without members and offsets is deleted."""
    desk = ConsumerDesk(GroupSettings(offsets_retention_ms=1000, expiry_interval_ms=1000))
    desk.topic(1)
    desk.enter("a")
    desk.commit_as("a", 1)
    for _ in range(5):
        desk.pass_time(5)
        desk.beat("a", 1)
    assert desk.committed() == 5
    desk.beat("a", -1)
    desk.pass_time(3)
    assert desk.committed() == -1
    assert desk.coordinator.list_groups(ListGroupsRequest()) == ()


def test_a_heartbeat_of_the_epoch_before_confirms_no_revocation(desk: ConsumerDesk):
    """One that arrives late knows nothing of a partition that the member has taken since, and must give up now."""
    desk.topic(2)
    desk.enter("a", subscribed_topic_names=())
    given = assigned(desk.beat("a", 1, set(), subscribed_topic_names=("t",)))
    assert given == {0, 1}
    desk.enter("b")
    assert assigned(desk.beat("a", 2, given)) == {0}
    assert desk.beat("a", 1, set()).error_code == FENCED
    assert assigned(desk.beat("b", 3)) in (None, set()), "it is still in use"


@pytest.mark.parametrize("wishes", [{"subscribed_topic_names": ()}, {"subscribed_topic_regex": "no.*"}], ids=str)
def test_a_member_that_reads_nothing_changes_no_assignment(desk: ConsumerDesk, wishes: dict[str, object]):
    """As in Kafka: the others need not do anything. The first member of a group begins its first epoch."""
    wishes = {"subscribed_topic_names": (), **wishes}
    assert desk.enter("first", **wishes).member_epoch == 1
    epoch = desk.enter("a").member_epoch
    assert desk.enter("b", **wishes).member_epoch == epoch
    assert (desk.group().group_epoch, desk.group().state) == (epoch, "Reconciling")
    desk.beat("first", 1, set())
    assert desk.group().state == "Stable"


def test_a_static_member_that_is_away_has_not_reached_its_target(desk: ConsumerDesk):
    """ConsumerGroupDescribe, as in Kafka."""
    desk.enter("a", instance_id="i")
    desk.beat("a", -2, instance_id="i")
    assert desk.group().state == "Reconciling"


@pytest.mark.parametrize("takes_over", [False, True])
def test_offsets_of_a_group_that_became_empty_are_kept_for_their_whole_time(takes_over: bool):
    """Its member read a quiet topic for longer than that: a restart of the application must find what it committed."""
    desk = ConsumerDesk(GroupSettings(offsets_retention_ms=100_000, expiry_interval_ms=1000))
    desk.topic(1)
    desk.enter("a")
    desk.commit_as("a", 1)
    for _ in range(5):
        desk.pass_time(40)
        desk.beat("a", 1)
    desk.beat("a", -1)
    if takes_over:
        desk.take_over()
    desk.pass_time(95)
    assert desk.committed() == 5
    back = desk.enter("b")
    desk.beat("b", -1)
    assert back.error_code == 0
    desk.pass_time(95)
    assert desk.committed() == 5
    desk.pass_time(10)
    assert desk.committed() == -1
    assert desk.coordinator.list_groups(ListGroupsRequest()) == ()


class Client:
    """A member as clients are: it owns what it was last assigned, and gives up the rest before it reports."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.owned: set[int] = set()
        self.full: dict[str, object] = {}
        """All fields, sent after a lost response, as clients do: the response then has the assignment."""

    def beat(self, desk: ConsumerDesk, *, is_lost: bool) -> None:
        if not self.epoch:
            response = desk.enter(self.member_id)
        else:
            response = desk.beat(self.member_id, self.epoch, self.owned, **self.full)
        if is_lost:
            self.full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("t",)}
            return
        self.full = {}
        if response.error_code in (FENCED, UNKNOWN):
            self.epoch, self.owned = 0, set()
            return
        self.epoch = response.member_epoch
        given = assigned(response)
        if given is not None:
            self.owned = given


@pytest.mark.parametrize("seed", range(20))
def test_no_partition_has_two_owners(seed: int):
    """Random joins, leaves, lost responses, crashes, takeovers and new partitions; then the group settles."""
    draw = random.Random(seed)
    desk = ConsumerDesk()
    desk.topic(5)
    clients = {name: Client(name) for name in "abcde"}
    live: set[str] = set()
    for _ in range(300):
        name = draw.choice("abcde")
        client = clients[name]
        what = draw.random()
        if what < 0.7:
            live.add(name)
            client.beat(desk, is_lost=draw.random() < 0.2)
        elif what < 0.78 and client.epoch:
            desk.beat(name, -1)
            client.epoch, client.owned = 0, set()
            live.discard(name)
        elif what < 0.82:
            desk.take_over()
        elif what < 0.85:
            desk.topic(draw.randint(len(desk.topics["t"].partitions), 9))
        else:
            desk.pass_time(draw.choice((1, 5)))
        check(desk, clients)
    for _ in range(12):
        for name in sorted(live):
            clients[name].beat(desk, is_lost=False)
            check(desk, clients)
    members = {each.member_id for each in desk.group().members}
    if live == members and live:
        assert desk.group().state == "Stable"
        dealt = sorted(number for name in live for number in clients[name].owned)
        assert dealt == list(range(len(desk.topics["t"].partitions)))


def check(desk: ConsumerDesk, clients: dict[str, Client]) -> None:
    group = desk.group()
    if group.error_code:
        return
    assert group.assignment_epoch <= group.group_epoch
    owners: dict[int, str] = {}
    for member in group.members:
        assert member.member_epoch <= group.assignment_epoch
        client = clients[member.member_id]
        numbers = {number for each in member.assignment for number in each.partitions}
        # What a client owns at an epoch that the coordinator would accept, and what it may own.
        for number in numbers | (client.owned if client.epoch else set()):
            assert owners.setdefault(number, member.member_id) == member.member_id, f"partition {number} is owned twice"


def test_members_that_are_gone_together_are_removed_in_batches_that_a_log_takes(desk: ConsumerDesk):
    """A batch above max.message.bytes would be refused again and again, and their partitions would stay theirs."""
    for number in range(40):
        desk.enter(f"{number:02}" + "m" * 16_000)
    desk.pass_time(40)
    desk.enter("alive")
    before = len(desk.log)
    desk.commits_at_once = False
    desk.pass_time(6)
    sizes = []
    while desk.in_flight:
        (write,) = desk.in_flight
        sizes.append(sum(len(key) + len(value or b"") for key, value in map(desk.coordinator.packed, write.records)))
        desk.commit_one()
    assert [each.member_id for each in desk.group().members] == ["alive"]
    assert len(sizes) > 1
    assert max(sizes) < 1 << 20
    assert sum(key.count(b"m" * 16_000) for key, _ in desk.log[before:]) == 3 * 40


def test_the_weight_of_a_group_grows_with_all_that_a_description_has(desk: ConsumerDesk):
    """Members, their topics, their partitions, committed offsets; an outline has none of these."""
    desk.topic(3)
    desk.enter("a")
    of_one = desk.coordinator.weight("g")
    desk.enter("b", subscribed_topic_names=tuple(f"t{number}" for number in range(100)))
    of_two = desk.coordinator.weight("g")
    assert of_two >= of_one + 101
    desk.commit_as("a", 1)
    assert desk.coordinator.weight("g") == of_two + 1
    outline = desk.coordinator.outline("g")
    assert (outline.group_id, outline.members) == ("g", ())
    assert outline.state == desk.group().state
