"""Groups in plans whose members change their protocol while they read (KIP-848, issue 17 Build 5)."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.groups.consumer.groups import ConsumerGroups
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.group import Group
from minikafka.sim.group_plans import MIGRATE
from minikafka.sim.migration_watch import OFFSETS_DIFFER, TWO_PROTOCOLS
from minikafka.sim.plan import MIGRATING, Plan
from minikafka.sim.run import run
from minikafka.sim.seeds import migration_plan_of

SEED = 5


def test_members_migrate_both_ways_and_coordinators_are_loaded_again():
    """Without this a plan whose groups never change their protocol would pass."""
    report = run(migration_plan_of(SEED))
    assert report.ok, report
    for mark in ("migrated_to_consumer", "migrated_to_classic", "migration_mixed", "migration_taken_over"):
        assert report.marks[mark] > 0, (mark, report.marks)
    for mark in ("migration_assigned", "migration_commit_granted"):
        assert report.marks[mark] > 1, (mark, report.marks)


def test_every_plan_of_the_family_migrates_while_its_coordinator_fails():
    """Static members, every fault of members, kill -9 in place of a departure, and rolling changes are among them."""
    plans = [migration_plan_of(seed) for seed in range(60)]
    for plan in plans:
        (group,) = plan.groups
        assert group.protocol == MIGRATING
        kinds = {fault.kind for fault in plan.faults if "__consumer_offsets" in fault.target}
        assert kinds & {"crash", "isolate", "pause"}
        assert any(fault.kind == MIGRATE for fault in plan.faults)
        assert Plan.from_json(plan.to_json()) == plan
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert {"kill_member", "stop_member", "stall_member", "pause_member", "isolate_member", "twin_member"} <= kinds
    assert any(group.static for plan in plans for group in plan.groups)
    assert any(fault.kind == MIGRATE and fault.value for plan in plans for fault in plan.faults)


def test_a_coordinator_that_holds_both_states_is_reported(monkeypatch: pytest.MonkeyPatch):
    """A new coordinator keeps a classic group in memory beside the group of the consumer protocol."""
    loaded = ConsumerGroups.loaded

    def with_both(self: ConsumerGroups, step: Any) -> None:
        loaded(self, step)
        for held in self.all():
            both[held.group.group_id] = held.group.epoch

    both: dict[str, int] = {}
    rest = GroupCoordinator.loaded

    def after(self: GroupCoordinator, step: Any) -> None:
        both.clear()
        rest(self, step)
        for name, epoch in both.items():
            self._groups[name] = Group(name, generation=epoch)

    monkeypatch.setattr(ConsumerGroups, "loaded", with_both)
    monkeypatch.setattr(GroupCoordinator, "loaded", after)
    failures = {run(migration_plan_of(seed)).failure for seed in range(SEED, SEED + 4)}
    assert failures & {TWO_PROTOCOLS, "loaded_group_differs"}


def test_offsets_that_a_new_coordinator_has_not_loaded_are_reported(monkeypatch: pytest.MonkeyPatch):
    """They are compared with the committed records, whichever protocol wrote those."""
    loaded = GroupCoordinator.loaded

    def forgetful(self: GroupCoordinator, step: Any) -> None:
        self._offsets._committed.clear()
        loaded(self, step)

    monkeypatch.setattr(GroupCoordinator, "loaded", forgetful)
    assert OFFSETS_DIFFER in {run(migration_plan_of(seed)).failure for seed in range(SEED, SEED + 4)}
