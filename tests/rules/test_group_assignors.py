"""S30: exact results of the assignors, and what always holds of each."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikafka.groups.assignors import (
    Assigned,
    CooperativeStickyAssignor,
    GroupMember,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from minikafka.groups.protocol import Subscription
from minikafka.types import TopicPartition

ALL = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()]


def member(member_id: str, *topics: str, instance: str | None = None, **more) -> GroupMember:
    return GroupMember(
        member_id=member_id, instance_id=instance, subscription=Subscription(topics=topics or ("t",), **more)
    )


def numbers(assigned: Assigned, topic: str = "t") -> dict[str, list[int]]:
    return {key: [each.partition for each in partitions if each.topic == topic] for key, partitions in assigned.items()}


def sizes(assigned: Assigned) -> list[int]:
    return sorted(len(each) for each in assigned.values())


# ---- exact results ----


@pytest.mark.parametrize("partitions, shares", [(10, [4, 3, 3]), (11, [4, 4, 3]), (2, [1, 1, 0])])
def test_range_shares(partitions: int, shares: list[int]):
    """S30: in a row, n // c each, the first n mod c one more; more consumers than partitions: some idle (S29)."""
    assigned = numbers(RangeAssignor().assign({"t": partitions}, [member("C3"), member("C1"), member("C2")]))
    assert [len(assigned[each]) for each in ("C1", "C2", "C3")] == shares
    assert list(itertools.chain(*(assigned[each] for each in ("C1", "C2", "C3")))) == list(range(partitions))


def test_range_is_skewed_over_topics():
    """S30: two topics of ten, C1 gets 0 to 3 of both."""
    members = [member(each, "t", "u") for each in ("C1", "C2", "C3")]
    assigned = RangeAssignor().assign({"t": 10, "u": 10}, members)
    assert numbers(assigned, "t")["C1"] == numbers(assigned, "u")["C1"] == [0, 1, 2, 3]
    assert sizes(assigned) == [6, 6, 8]


def test_static_members_come_first_and_by_their_instance():
    """KAFKA-FACTS 5: so that a restart under a new member id moves nothing."""
    members = [member("a"), member("z", instance="2"), member("y", instance="3")]
    assert numbers(RangeAssignor().assign({"t": 3}, members)) == {"z": [0], "y": [1], "a": [2]}


def test_round_robin_deals_sorted_partitions():
    """S30: the article's ten partitions and four consumers, in Kafka's order."""
    members = [member(each) for each in ("C1-0", "C1-1", "C2-0", "C2-1")]
    assert numbers(RoundRobinAssignor().assign({"t": 10}, members)) == {
        "C1-0": [0, 4, 8],
        "C1-1": [1, 5, 9],
        "C2-0": [2, 6],
        "C2-1": [3, 7],
    }


def test_round_robin_passes_over_who_does_not_subscribe():
    """Kafka's documented example: t0 1, t1 2, t2 3 partitions; C0 t0; C1 t0, t1; C2 all."""
    members = [member("C0", "t0"), member("C1", "t0", "t1"), member("C2", "t0", "t1", "t2")]
    assigned = RoundRobinAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, members)
    assert {key: [str(each) for each in value] for key, value in assigned.items()} == {
        "C0": ["t0-0"],
        "C1": ["t1-0"],
        "C2": ["t1-1", "t2-0", "t2-1", "t2-2"],
    }


def test_sticky_is_better_than_round_robin_with_unequal_subscriptions():
    """Kafka's documented example: C2 has t2 alone, C1 both of t1."""
    members = [member("C0", "t0"), member("C1", "t0", "t1"), member("C2", "t0", "t1", "t2")]
    assigned = StickyAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, members)
    assert {key: sorted(str(each) for each in value) for key, value in assigned.items()} == {
        "C0": ["t0-0"],
        "C1": ["t1-0", "t1-1"],
        "C2": ["t2-0", "t2-1", "t2-2"],
    }


def test_sticky_keeps_what_it_can_when_a_member_goes():
    """Only the lost member's partitions move."""
    topics = {"t0": 2, "t1": 2, "t2": 2, "t3": 2}
    sticky = StickyAssignor()
    first = sticky.assign(topics, [member(each, *topics) for each in ("C0", "C1", "C2")])
    stay = ("C0", "C2")
    members = [member(each, *topics, user_data=sticky.user_data(first[each], 1)) for each in stay]
    second = sticky.assign(topics, members)
    for each in stay:
        assert set(first[each]) <= set(second[each])
    assert sizes(second) == [4, 4]


def test_the_newest_claim_counts_and_two_of_one_generation_none():
    """KAFKA-FACTS 5."""
    sticky = CooperativeStickyAssignor()
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    old = member("a", owned=(zero, one), generation=1)
    new = member("b", owned=(zero,), generation=2)
    assert numbers(StickyAssignor().assign({"t": 2}, [_eager(old), _eager(new)])) == {"a": [1], "b": [0]}
    both = [member("a", owned=(zero,), generation=2), member("b", owned=(zero,), generation=2)]
    assert sticky.assign({"t": 1}, both) == {"a": [], "b": []}, "withheld until one has given it up"


def _eager(each: GroupMember) -> GroupMember:
    data = StickyAssignor().user_data(each.subscription.owned, each.subscription.generation)
    return GroupMember(member_id=each.member_id, subscription=Subscription(topics=("t",), user_data=data))


def test_cooperative_hands_over_in_two_steps():
    """KIP-429: first it is given up, then it is given."""
    assignor = CooperativeStickyAssignor()
    first = assignor.assign({"t": 4}, [member("a")])
    joining = [member("a", owned=tuple(first["a"]), generation=1), member("b")]
    second = assignor.assign({"t": 4}, joining)
    assert (len(second["a"]), second["b"]) == (2, [])
    third = assignor.assign({"t": 4}, [member("a", owned=tuple(second["a"]), generation=2), member("b", generation=2)])
    assert third["a"] == second["a"]
    assert sorted(third["a"] + third["b"]) == [TopicPartition("t", each) for each in range(4)]


def test_cooperative_with_unequal_subscriptions_may_need_a_third_round():
    """What the first round withholds is dealt in the second, to members that own less by then: v-1 moves once more.

    Kafka's test of its assignor allows four rounds after the first.
    """
    topics, assignor = {"u": 3, "v": 3}, CooperativeStickyAssignor()
    owned = (*(TopicPartition("u", each) for each in (1, 2)), *(TopicPartition("v", each) for each in (0, 1, 2)))
    members = [member("a", "u", "v", owned=owned, generation=1), member("b", "v"), member("c", "u", "v")]
    first = assignor.assign(topics, members)
    assert (numbers(first, "u"), numbers(first, "v")) == ({"a": [], "b": [], "c": [0]}, {"a": [1, 2], "b": [], "c": []})
    second = assignor.assign(topics, given_up(members, first))
    assert numbers(second, "v") == {"a": [2], "b": [0], "c": []}
    third = assignor.assign(topics, given_up(members, second))
    assert numbers(third, "v") == {"a": [2], "b": [0, 1], "c": []}
    assert sizes(third) == [2, 2, 2]


def test_memory_of_another_program_is_no_memory():
    """User data that cannot be read is passed over."""
    assigned = StickyAssignor().assign({"t": 2}, [member("a", user_data=b"??"), member("b")])
    assert sizes(assigned) == [1, 1]


# ---- what always holds ----

TOPICS = st.dictionaries(st.sampled_from("tuvw"), st.integers(0, 7), min_size=1, max_size=4)


@st.composite
def groups(draw: st.DrawFn, *, equal: bool = False) -> tuple[dict[str, int], list[GroupMember]]:
    """Topics, and members with random memories of what they owned."""
    topics = draw(TOPICS)
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True))
    every = [TopicPartition(topic, each) for topic, count in topics.items() for each in range(count + 1)]
    wants = draw(st.lists(st.sampled_from("tuvwx"), min_size=1, unique=True))
    members = []
    for name in names:
        mine = wants if equal else draw(st.lists(st.sampled_from("tuvwx"), min_size=1, unique=True))
        owned = draw(st.lists(st.sampled_from(every), unique=True, max_size=6))
        generation = draw(st.integers(1, 3))
        members.append(
            member(
                name,
                *mine,
                instance=draw(st.none() | st.just(f"i{name}")),
                owned=tuple(owned),
                generation=generation,
                user_data=StickyAssignor().user_data(owned, generation),
            )
        )
    return topics, members


def subscribed(topics: dict[str, int], members: list[GroupMember]) -> set[TopicPartition]:
    wanted = {topic for each in members for topic in each.subscription.topics}
    return {TopicPartition(topic, each) for topic, count in topics.items() if topic in wanted for each in range(count)}


def given_up(members: list[GroupMember], assigned: Assigned) -> list[GroupMember]:
    """The members as they join again after a cooperative round: each owns what it was left with."""
    return [
        GroupMember(
            member_id=each.member_id,
            instance_id=each.instance_id,
            subscription=Subscription(
                topics=each.subscription.topics,
                owned=tuple(assigned[each.member_id]),
                generation=9,
                user_data=StickyAssignor().user_data(assigned[each.member_id], 9),
            ),
        )
        for each in members
    ]


FOLLOW_UPS_MAX = 4
"""Rounds after the first in which a cooperative assignment settles: the bound of Kafka's CooperativeStickyAssignorTest."""


def settled(assignor, topics: dict[str, int], members: list[GroupMember]) -> tuple[Assigned, list[GroupMember]]:
    """Assign until no member gives anything up: only then does a cooperative assignor begin no other round.

    With equal subscriptions the second round is the last. With unequal ones, what was withheld may be dealt otherwise in
    the second, since the members own other partitions by then.
    """
    assigned = assignor.assign(topics, members)
    for _ in range(FOLLOW_UPS_MAX):
        if assignor.rebalance == "eager" or not _gives_up(members, assigned):
            return assigned, members
        members = given_up(members, assigned)
        assigned = assignor.assign(topics, members)
    assert not _gives_up(members, assigned)
    return assigned, members


def _gives_up(members: list[GroupMember], assigned: Assigned) -> bool:
    return any(not set(each.subscription.owned) <= set(assigned[each.member_id]) for each in members)


@pytest.mark.parametrize("assignor", ALL, ids=lambda each: each.name)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_partition_goes_to_exactly_one_subscriber(assignor, data: st.DataObject):
    """S29, S30: and to one that asked for its topic."""
    topics, members = data.draw(groups())
    assigned, _ = settled(assignor, topics, members)
    given_out = [each for partitions in assigned.values() for each in partitions]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == subscribed(topics, members)
    wants = {each.member_id: each.subscription.topics for each in members}
    assert all(each.topic in wants[key] for key, partitions in assigned.items() for each in partitions)
    assert set(assigned) == set(wants)


@pytest.mark.parametrize("assignor", ALL, ids=lambda each: each.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_order_of_members_does_not_matter(assignor, data: st.DataObject):
    """The leader's answer depends on who is there, not on who came first."""
    topics, members = data.draw(groups())
    assert assignor.assign(topics, members) == assignor.assign(topics, members[::-1])


@pytest.mark.parametrize("assignor", ALL[1:], ids=lambda each: each.name)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_equal_subscriptions_are_balanced(assignor, data: st.DataObject):
    """Shares differ by one at most (range does so per topic only)."""
    topics, members = data.draw(groups(equal=True))
    assigned, _ = settled(assignor, topics, members)
    shares = sizes(assigned)
    assert shares[-1] - shares[0] <= 1


@pytest.mark.parametrize("assignor", ALL[2:], ids=lambda each: each.name)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_unequal_subscriptions_are_as_even_as_moving_makes_them(assignor, data: st.DataObject):
    """KIP-54: no partition has a subscriber with two fewer than its owner."""
    topics, members = data.draw(groups())
    assigned, _ = settled(assignor, topics, members)
    for partitions in assigned.values():
        for partition in partitions:
            for each in members:
                if partition.topic in each.subscription.topics:
                    assert len(assigned[each.member_id]) + 1 >= len(partitions)


@pytest.mark.parametrize("assignor", ALL[2:], ids=lambda each: each.name)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_settled_assignment_stays(assignor, data: st.DataObject):
    """Sticky: when nothing changes, nothing moves."""
    topics, members = data.draw(groups())
    assigned, members = settled(assignor, topics, members)
    again = assignor.assign(topics, given_up(members, assigned))
    assert {key: set(each) for key, each in again.items()} == {key: set(each) for key, each in assigned.items()}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_newcomer_takes_its_share_and_nobody_else_gains(data: st.DataObject):
    """Sticky, equal subscriptions: what moves moves to who came."""
    topics, members = data.draw(groups(equal=True))
    sticky = StickyAssignor()
    before = sticky.assign(topics, members)
    newcomer = member("new", *members[0].subscription.topics)
    after = sticky.assign(topics, [*given_up(members, before), newcomer])
    for key, partitions in before.items():
        assert set(after[key]) <= set(partitions)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_cooperative_never_gives_what_another_still_owns(data: st.DataObject):
    """KIP-429: at no time has a partition two owners."""
    topics, members = data.draw(groups())
    assigned = CooperativeStickyAssignor().assign(topics, members)
    for key, partitions in assigned.items():
        others = {part for each in members if each.member_id != key for part in each.subscription.owned}
        assert not others.intersection(partitions)
