"""Differences of states: applied in order, they give the sender's states."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minikafka.wire.differences import difference

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2) | st.lists(st.integers(0, 2), max_size=2)
NAMES = st.sampled_from(["a", "b", "c", "__proto__"])
STATES = st.dictionaries(
    NAMES, st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8), max_size=4
)


def applied(state: dict[str, Any], changes: list[list[Any]]) -> dict[str, Any]:
    """What a reader does."""
    state = copy.deepcopy(state)
    for path, *value in changes:
        place = state
        for name in path if len(value) == 2 else path[:-1]:
            place = place[name]
        if len(value) == 2:
            place.update(zip(*value, strict=True))
        elif value:
            place[path[-1]] = value[0]
        else:
            del place[path[-1]]
    return state


def text(state: Any) -> str:
    """JSON, which distinguishes true from 1."""
    return json.dumps(state, sort_keys=True)


@given(st.lists(STATES, min_size=2, max_size=5))
def test_applied_differences_give_each_state(states: list[dict[str, Any]]):
    """From the first state on, each difference leads to the next state."""
    shown = states[0]
    for before, after in itertools.pairwise(states):
        shown = applied(shown, difference(before, after))
        assert text(shown) == text(after)


@given(STATES)
def test_equal_states_have_no_difference(state: dict[str, Any]):
    """A cluster in which nothing happens sends nothing."""
    assert difference(state, copy.deepcopy(state)) == []


def test_a_difference_names_only_what_changed():
    """A moved high watermark is one number, not the whole partition."""
    before = {"replicas": {"1": {"leo": 4, "hw": 3}, "2": {"leo": 4, "hw": 3}}, "isr": [1, 2]}
    after = {"replicas": {"1": {"leo": 4, "hw": 4}, "2": {"leo": 4, "hw": 3}}, "isr": [1, 2]}
    assert difference(before, after) == [[["replicas", "1", "hw"], 4]]


def test_changed_members_of_one_object_share_their_path():
    """PAGE 5.3: what a viewer receives when a broker dies is bounded; each partition's path is in it once."""
    before = {"topics": {"orders": {"0": {"leader": 1, "isr": [1, 2], "replicas": [1, 2], "state": "ok"}}}}
    after = {"topics": {"orders": {"0": {"leader": 2, "isr": [2], "replicas": [1, 2], "state": "under-replicated"}}}}
    changes = difference(before, after)
    assert changes == [[["topics", "orders", "0"], ["leader", "isr", "state"], [2, [2], "under-replicated"]]]
    assert applied(before, changes) == after


class _Closed(dict[str, Any]):
    """Members that must not be looked at."""

    def items(self) -> Any:
        raise AssertionError("looked at a member")

    def __iter__(self) -> Any:
        raise AssertionError("looked at a member")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("looked at a member")

    __hash__ = None  # type: ignore[assignment]


def test_parts_that_two_states_share_are_not_looked_at():
    """PAGE 5.3: while the metadata is the same, four states a second of 1,000 partitions cost nothing to compare."""
    shared = _Closed(orders={"0": {"leader": 1}})
    assert difference({"topics": shared, "controller": 1}, {"topics": shared, "controller": 2}) == [[["controller"], 2]]
