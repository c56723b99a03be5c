"""Random histories of a classic group: they meet what they are for, and can fail. Fresh seeds: ``test_histories.py``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from minikafka.errors import NotEnoughReplicas
from minikafka.groups import rebalance
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.group import Group
from tests.rules.group_histories import PARTITIONS, GroupBreach, GroupHistory
from tests.rules.group_kit import Desk

HISTORIES = 40
STEPS = 250


def test_histories_meet_all_states_and_refusals():
    """S29, S33, S34: a history in which no group becomes stable would show nothing."""
    seen: Counter[str] = Counter()
    for seed in range(HISTORIES):
        history = GroupHistory(seed)
        history.play(STEPS)
        seen += history.seen
        seen["owners"] += len(history.owners)
    states = {"Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Dead"}
    refusals = {"REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "ILLEGAL_GENERATION"}
    assert min(seen[each] for each in states | refusals) >= HISTORIES, seen
    assert seen["Stable"] >= HISTORIES * STEPS / 10, seen
    assert seen["owners"] >= HISTORIES * PARTITIONS, seen
    assert seen["handed over"] >= HISTORIES / 10, seen


def _nothing(*_: object) -> None:
    """Sessions do not begin when a log was read."""


def _forgets_the_instance(self: Group, old_id: str, new_id: str) -> Any:
    """A static member that comes back stays known under its old id."""
    self.members = {(new_id if key == old_id else key): member for key, member in self.members.items()}
    self.members[new_id].member_id = new_id
    self.leader = new_id if self.leader == old_id else self.leader
    return self.members[new_id]


def _any_generation(*_: object) -> None:
    """A member of an old generation syncs in the present one."""


def _any_committer(*_: object) -> None:
    """Members of old generations commit."""


def _plans_nothing(*_: object) -> None:
    """No group is looked at when its time has come."""


def _record_of_the_leader(self: Group, assignments: dict[str, bytes], timestamp_ms: int) -> Any:
    """The record has the first member only."""
    members, self.members = self.members, dict(list(self.members.items())[:1])
    try:
        return _RECORD(self, assignments, timestamp_ms)
    finally:
        self.members = members


_RECORD = Group.record


@pytest.mark.parametrize(
    "owner, name, bug",
    [
        (Group, "started", _nothing),
        (Group, "rename", _forgets_the_instance),
        (rebalance, "_check_generation", _any_generation),
        (GroupCoordinator, "_plan", _plans_nothing),
        (Group, "record", _record_of_the_leader),
        (GroupCoordinator, "_check_committer", _any_committer),
        (GroupCoordinator, "_check_transactional_committer", _any_committer),
    ],
)
def test_planted_bugs_are_caught(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, bug: Any):
    """Each within 100 histories."""
    monkeypatch.setattr(owner, name, bug)
    for seed in range(100):
        try:
            GroupHistory(seed).play(STEPS)
        except (GroupBreach, KeyError):
            return
    pytest.fail(f"{bug.__doc__} was not caught")


def test_an_empty_group_whose_record_is_refused_returns_with_members_that_end():
    """As in Kafka: no client waits for that record. The next coordinator finds the members of the generation before,
    which have left and are never heard; their sessions end, and the group is empty in a newer generation.
    """
    desk = Desk()
    members = desk.stable(2)
    generation = desk.coordinator.describe("g").generation_id
    desk.commits_at_once = False
    desk.leave(*members)
    desk.refuse_one(NotEnoughReplicas())
    assert desk.state() == "Empty"
    desk.take_over()
    desk.commits_at_once = True
    assert desk.state() == "Stable"
    desk.pass_time(11)
    assert desk.state() == "Empty"
    desk.take_over()
    after = desk.coordinator.describe("g")
    assert (after.state, after.members, after.generation_id) == ("Empty", (), generation + 1)
