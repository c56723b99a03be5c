"""The member's side of the consumer protocol (KIP-848, issue 17 Build 5). Random ones: ``consumer_histories.py``."""

from __future__ import annotations

import pytest

from minikafka.errors import FencedMemberEpoch, UnknownMemberId, UnsupportedAssignor
from minikafka.groups.consumer.member import FULL_EVERY, ConsumerMember, Wishes
from minikafka.groups.consumer.records import TopicIdPartition
from minikafka.wire.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)
from tests.rules.test_consumer_groups import TOPIC_ID, ConsumerDesk


def member(name: str = "m", **fields) -> ConsumerMember:
    made = ConsumerMember("g", name, rebalance_timeout_ms=60_000, **fields)
    made.wish(Wishes(topics=("t",)))
    return made


def numbers(*given: int) -> frozenset[TopicIdPartition]:
    return frozenset(TopicIdPartition(TOPIC_ID, each) for each in given)


def response(epoch: int, *assigned: int | None) -> ConsumerGroupHeartbeatResponse:
    given = None if assigned == (None,) else (TopicIdPartitions(topic_id=TOPIC_ID, partitions=assigned),)
    return ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=epoch, heartbeat_interval_ms=5000, assignment=given
    )


def test_it_joins_with_all_fields_and_then_sends_what_has_changed():
    """KIP-848: a joining member owns nothing; a quiet heartbeat says no more than the epoch."""
    one = member(instance_id="i", assignor="range")
    assert one.is_due
    first = one.request()
    assert first == ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        instance_id="i",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=("t",),
        subscribed_topic_regex="",
        server_assignor="range",
        topic_partitions=(),
    )
    one.answered(response(1, 0, 1))
    assert (one.epoch, one.interval_ms, one.to_take, one.owned, one.is_due) == (
        1,
        5000,
        numbers(0, 1),
        numbers(),
        False,
    )
    one.taken(numbers(0, 1))
    assert one.is_due, "what is owned is reported at once"
    assert one.request().topic_partitions == (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0, 1)),)
    one.answered(response(1, None))
    quiet = one.request()
    assert quiet == ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1, instance_id="i")


def test_what_must_be_revoked_is_owned_until_the_application_is_done_with_it():
    """Revocation before acknowledgement: heartbeats meanwhile still report all partitions, or nothing."""
    one = member()
    one.request()
    one.answered(response(1, 0, 1))
    one.taken(numbers(0, 1))
    one.request()
    one.answered(response(1, 0))
    assert (one.to_revoke, one.owned, one.is_due) == (numbers(1), numbers(0, 1), False)
    assert one.request().topic_partitions is None
    one.unanswered()
    assert one.request().topic_partitions == (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0, 1)),)
    one.answered(response(1, None))
    one.revoked(numbers(1))
    assert one.is_due
    assert one.request().topic_partitions == (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0,)),)


def test_what_is_no_longer_assigned_is_not_taken():
    """The assignment changed while the committed offsets were looked up."""
    one = member()
    one.request()
    one.answered(response(1, 0, 1))
    looked_up = one.to_take
    one.request()
    one.answered(response(2, 0))
    one.taken(looked_up)
    assert one.owned == numbers(0)


def test_what_was_taken_back_before_it_was_taken_is_acknowledged():
    """The coordinator waits to hear that the partition is not owned, though nothing has changed for the member."""
    one = member()
    one.request()
    one.answered(response(1, 0))
    one.taken(numbers(0))
    one.request()
    one.answered(response(2, 0, 1))
    assert one.to_take == numbers(1)
    one.request()
    one.answered(response(2, 0))
    assert one.is_due
    assert one.request().topic_partitions == (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0,)),)


def test_what_is_assigned_and_not_taken_yet_is_listed_as_owned():
    """Its former heartbeat without response said that it owns nothing: the coordinator gave the partitions to another
    member, and this one took them after that (seed 7000116 of random histories).
    """
    one = member()
    one.request()
    one.answered(response(1, 0, 1, 2))
    one.request()
    one.unanswered()
    again = one.request()
    assert again.topic_partitions == (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0, 1, 2)),)
    one.taken(numbers(0))
    one.answered(response(1, 0, 1))
    assert one.is_due, "the coordinator waits to hear that partition 2 is not owned"
    assert one.request().topic_partitions == (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0, 1)),)
    one.answered(response(2, None))
    assert one.to_take == numbers(1)
    assert not one.is_due


def test_after_a_request_without_response_everything_is_sent_again():
    """Kafka's client resets what it has sent: nobody knows what the coordinator heard."""
    one = member(assignor="uniform")
    one.request()
    one.answered(response(3, 0))
    one.taken(numbers(0))
    one.request()
    one.unanswered()
    again = one.request()
    assert (again.member_epoch, again.rebalance_timeout_ms, again.server_assignor) == (3, 60_000, "uniform")
    assert again.subscribed_topic_names == ("t",)
    assert again.topic_partitions == (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0,)),)


def test_what_a_late_copy_was_answered_is_learned_from_the_next_full_heartbeat():
    """The coordinator says a new assignment once, and in each response to a heartbeat that says everything."""
    desk = ConsumerDesk()
    desk.topic(2)
    first, second = member("a"), member("b")

    def receive(request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        fields = {name: getattr(request, name) for name in request.__struct_fields__ if name != "group_id"}
        return desk.answers[desk.send(**fields)]

    def beat(one: ConsumerMember) -> None:
        one.answered(receive(one.request()))
        one.revoked(one.to_revoke)
        one.taken(one.to_take)

    for one in (first, second, second):
        beat(one)
    late = second.request()
    beat(second)  # the request before it has no response
    for _ in range(3):
        beat(first)
    assert len(receive(late).assignment) == 1
    beat(second)
    assert not second.owned
    for _ in range(FULL_EVERY):
        beat(second)
    assert len(second.owned) == 1


def test_a_subscription_that_changes_under_way_is_sent_once_more():
    """The response answers the old one."""
    one = member()
    one.request()
    one.wish(Wishes(regex="t.*"))
    one.answered(response(1, 0))
    assert one.is_due
    changed = one.request()
    assert (changed.subscribed_topic_names, changed.subscribed_topic_regex) == ((), "t.*")


def test_a_member_that_joins_again_says_once_more_that_it_owns_nothing():
    """Its coordinator still waits for a revocation, which no join confirms (seed 8000142 of random histories)."""
    one = member()
    one.request()
    one.unanswered()
    one.request()
    one.answered(response(7))
    assert one.is_due
    assert one.request().topic_partitions == ()
    one.answered(response(7, None))
    assert not one.is_due
    one.request()
    one.lose(FencedMemberEpoch("x"))
    one.request()
    one.answered(response(8))
    assert one.request().topic_partitions == ()


@pytest.mark.parametrize("error", [FencedMemberEpoch("x"), UnknownMemberId("x")])
def test_a_fenced_member_gives_up_all_and_joins_again_with_its_id(error):
    """KIP-848: what is in flight or was begun before counts no longer."""
    one = member()
    one.request()
    one.answered(response(4, 0, 1))
    one.taken(numbers(0, 1))
    life = one.life
    one.request()
    assert one.is_fencing(error)
    assert one.lose(error) == numbers(0, 1)
    assert one.may_be_known == isinstance(error, FencedMemberEpoch)
    one.answered(response(5, 0))
    assert (one.is_outside, one.owned, one.life) == (True, numbers(), life + 1)
    assert (one.request().member_epoch, one.request().member_id) == (0, "m")
    assert not one.is_fencing(UnsupportedAssignor("x"))


def test_leaving():
    """-1; a static member -2, and its partitions wait for it."""
    assert member().leaving().member_epoch == -1
    assert member(instance_id="i").leaving().member_epoch == -2
    one = member()
    assert not one.may_be_known
    one.request()
    one.unanswered()
    assert one.may_be_known, "the coordinator may have heard the join"
