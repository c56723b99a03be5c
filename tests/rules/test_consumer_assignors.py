"""Assignors of the consumer protocol (KIP-848): every partition has one subscriber, loads are even, little moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.groups.consumer.assignors import ASSIGNORS, Subscriber, range_assign, uniform_assign
from minikafka.groups.consumer.records import TopicIdPartition

TOPICS = ("a", "b", "c")
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))
MEMBERS = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "m4", "m5"]), st.frozensets(st.sampled_from(TOPICS)), min_size=1
)


def numbers(target: set[TopicIdPartition], topic: str) -> list[int]:
    return sorted(each.partition for each in target if each.topic_id == topic)


def after(members: dict[str, frozenset[str]], targets: dict[str, set[TopicIdPartition]]) -> dict[str, Subscriber]:
    return {
        each: Subscriber(topics=topics, previous=frozenset(targets.get(each, ()))) for each, topics in members.items()
    }


@pytest.mark.parametrize("name", ASSIGNORS)
@given(first=MEMBERS, second=MEMBERS, counts=COUNTS, later=COUNTS)
def test_every_partition_has_exactly_one_subscriber(name: str, first, second, counts, later):
    """Also when members, subscriptions and topics change between two assignments."""
    targets = ASSIGNORS[name](after(first, {}), counts)
    targets = ASSIGNORS[name](after(second, targets), later)
    assert targets.keys() == second.keys()
    dealt = sorted(each for target in targets.values() for each in target)
    assert dealt == sorted(
        TopicIdPartition(topic, number)
        for topic, count in later.items()
        if any(topic in topics for topics in second.values())
        for number in range(count)
    )
    assert all(each.topic_id in second[member] for member, target in targets.items() for each in target)


@given(count=st.integers(1, 6), counts=COUNTS, joins=st.integers(0, 3), leaves=st.integers(0, 5))
def test_uniform_is_even_and_moves_as_little_as_it_can(count: int, counts, joins: int, leaves: int):
    """All subscribe to the same topics: loads differ by one at most; what a member may keep, it keeps."""
    topics = frozenset(TOPICS)
    first = {f"m{each}": topics for each in range(count)}
    old = uniform_assign(after(first, {}), counts)
    second = {f"m{each}": topics for each in range(min(leaves, count - 1), count + joins)}
    new = uniform_assign(after(second, old), counts)
    loads = sorted(len(target) for target in new.values())
    assert loads[-1] - loads[0] <= 1
    kept = sum(len(old[each] & new[each]) for each in old.keys() & new.keys())
    quota, extra = divmod(sum(counts.values()), len(second))
    most = sorted((len(old[each]) for each in old.keys() & new.keys()), reverse=True)
    assert kept == sum(min(size, quota + (index < extra)) for index, size in enumerate(most))
    assert uniform_assign(after(second, new), counts) == new


def test_uniform_evens_out_different_subscriptions():
    """A member with one topic gets all of it when the other has a second topic of the same size."""
    members = {"m1": Subscriber(topics=frozenset("ab")), "m2": Subscriber(topics=frozenset("a"))}
    targets = uniform_assign(members, {"a": 4, "b": 4})
    assert numbers(targets["m1"], "b") == [0, 1, 2, 3]
    assert numbers(targets["m2"], "a") == [0, 1, 2, 3]


def test_range_gives_the_first_members_one_more():
    """Static members stand first, by instance id; then the others, by member id."""
    members = {
        "a": Subscriber(topics=frozenset("t")),
        "b": Subscriber(topics=frozenset("t")),
        "z": Subscriber(topics=frozenset("t"), instance_id="i"),
    }
    targets = range_assign(members, {"t": 7})
    assert [numbers(targets[each], "t") for each in "zab"] == [[0, 1, 2], [3, 4], [5, 6]]
