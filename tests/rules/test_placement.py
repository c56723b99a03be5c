"""Spreading partitions anew: even, and with few moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.errors import InvalidReplicationFactor
from minikafka.quorum.assignment import place, spread
from minikafka.types import TopicPartition


def of(count: int, factor: int, brokers: tuple[int, ...] = (1, 2, 3)) -> dict[TopicPartition, tuple[int, ...]]:
    placed = place(brokers, partitions=count, replication_factor=factor)
    return {TopicPartition("t", number): replicas for number, replicas in enumerate(placed)}


def moved(before: dict[TopicPartition, tuple[int, ...]], after: dict[TopicPartition, tuple[int, ...]]) -> int:
    return sum(len(set(after[name]) - set(before[name])) for name in after)


def test_what_is_even_stays():
    """S18's placement is even: asked for the same brokers, nothing moves."""
    before = of(6, 3)
    assert spread(before, (1, 2, 3)) == before


def test_a_fourth_broker_gets_its_share_and_no_more():
    """Adding a broker: a quarter of the replicas move, all of them to it."""
    before = of(8, 3)
    after = spread(before, (1, 2, 3, 4))
    assert Counter(node for replicas in after.values() for node in replicas) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert moved(before, after) == 6
    assert Counter(replicas[0] for replicas in after.values()) == {1: 2, 2: 2, 3: 2, 4: 2}


def test_a_broker_that_is_left_out_is_emptied():
    """Decommissioning: only what it held moves."""
    before = of(6, 2, (1, 2, 3))
    after = spread(before, (1, 2))
    assert moved(before, after) == sum(3 in replicas for replicas in before.values())


def test_another_replication_factor():
    """More copies are added where there is room; fewer keep the first ones."""
    assert spread(of(2, 1), (1, 2, 3), replication_factor=3) == {
        TopicPartition("t", 0): (1, 3, 2),
        TopicPartition("t", 1): (2, 1, 3),
    }
    assert [len(each) for each in spread(of(3, 3), (1, 2, 3), replication_factor=1).values()] == [1, 1, 1]


def test_too_few_brokers():
    """The error names the partition."""
    with pytest.raises(InvalidReplicationFactor, match="t-0: 3 replicas"):
        spread(of(1, 3), (1, 2))


@given(
    before=st.dictionaries(
        st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 9)),
        st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True).map(tuple),
        max_size=12,
    ),
    brokers=st.sets(st.integers(1, 8), min_size=3),
)
def test_any_assignment_is_spread_evenly(before: dict[TopicPartition, tuple[int, ...]], brokers: set[int]):
    """Replicas differ by one at most, each partition keeps its number of copies, all on the chosen brokers."""
    after = spread(before, brokers)
    assert {name: len(replicas) for name, replicas in after.items()} == {
        name: len(each) for name, each in before.items()
    }
    loads = Counter(dict.fromkeys(brokers, 0))
    for replicas in after.values():
        assert len(set(replicas)) == len(replicas)
        assert set(replicas) <= brokers
        loads.update(replicas)
    assert max(loads.values()) - min(loads.values()) <= 1
