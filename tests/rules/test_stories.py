"""The lab's stories as ``/v1`` gives them: folded, they are the states of the lab; only the library is played."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.lab.scenario import LIBRARY, find, library, short_name
from minikafka.rest.stories import played
from tests.rules.test_differences import applied

STORIES = [short_name(path.relative_to(LIBRARY).with_suffix("").name) for path in library()]


def shown(state: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {
        name: (each["role"] + (", cut off" if each["cut_off"] else ""), each["own_leo"], each["hw"], each["epoch"])
        for name, each in state["partition"]["replicas"].items()
    }


@pytest.mark.parametrize("name", STORIES)
def test_folded_steps_are_the_states_of_the_lab(name: str):
    """The browser applies changes and derives nothing: after each step it must have what the lab's table shows."""
    document, run = played(name, ()), find(name).play()
    state = document["before"]
    assert len(document["steps"]) == len(run.steps) - 1
    for row, step in zip(document["steps"], run.steps[1:], strict=True):
        state = applied(state, row["changes"])
        assert shown(state) == {
            node: (view.role, view.end_offset, view.high_watermark, view.epoch) for node, view in step.after.items()
        }
        assert (state["summary"], row["number"]) == (step.what, step.number)


@pytest.mark.parametrize("name", STORIES)
def test_the_leader_of_a_state_is_that_of_the_highest_epoch(name: str):
    """A deposed leader that has not heard of it does not stand in for its successor; a cut cable deposes nobody."""
    document, run = played(name, ()), find(name).play()
    state = document["before"]
    for row, step in zip(document["steps"], run.steps[1:], strict=True):
        state = applied(state, row["changes"])
        epochs = {node: view.epoch for node, view in step.after.items() if view.role.startswith("leader")}
        found = state["partition"]["leader"]
        assert epochs.get(found) == max(epochs.values(), default=None), (step.number, found)
        assert found is None or state["partition"]["isr"] == step.after[found].isr.split(","), step.number


def test_a_story_under_two_rules_ends_differently():
    """The data loss of before KIP-101 is in the answer of one and not of the other."""
    old, new = (played("data-loss", (("truncation", each),)) for each in ("high-watermark", "leader-epoch"))
    assert old["lost"]
    assert not new["lost"]


def test_names_of_stories_are_unique():
    """Two files of one short name would hide one of them."""
    assert len(set(STORIES)) == len(STORIES)
