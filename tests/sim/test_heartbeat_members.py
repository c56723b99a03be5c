"""Members of the consumer protocol in plans (KIP-848): they own, commit and fail over; what is loaded is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from minikafka.groups.consumer.group import ConsumerGroup
from minikafka.groups.consumer.groups import ConsumerGroups, Held
from minikafka.sim import consumer_group_watch
from minikafka.sim.consumer_group_watch import DIFFERS, NO_DEADLINE
from minikafka.sim.plan import CONSUMER, Plan
from minikafka.sim.run import run
from minikafka.sim.seeds import heartbeat_plan_of, plan_of


def test_members_own_and_commit_and_coordinators_are_loaded_again():
    """Without this a plan whose members never join would pass."""
    report = run(heartbeat_plan_of(5))
    assert report.ok, report
    for mark in ("assigned", "commit_granted", "recorded", "taken_over"):
        assert report.marks[f"consumer_group_{mark}"] > 1, (mark, report.marks)


def test_some_seeds_have_groups_of_the_consumer_protocol():
    """They are drawn by ``sim run`` by default; static members and every fault of members are among them."""
    plans = [plan_of(seed) for seed in range(200)]
    drawn = [plan for plan in plans if any(group.protocol == CONSUMER for group in plan.groups)]
    assert 0.03 < len(drawn) / len(plans) < 0.2
    plans = [heartbeat_plan_of(seed) for seed in range(60)]
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert {"kill_member", "stop_member", "stall_member", "pause_member", "isolate_member", "twin_member"} <= kinds
    assert any(group.static for plan in plans for group in plan.groups)
    assert all(Plan.from_json(plan.to_json()) == plan for plan in plans)


def test_what_a_new_coordinator_has_loaded_wrongly_is_reported(monkeypatch: pytest.MonkeyPatch):
    """A coordinator that forgets the targets of its members."""
    loaded = ConsumerGroups.loaded

    def forgetful(self: ConsumerGroups, step: Any) -> None:
        for held in self._held.values():
            held.group.targets.clear()
        loaded(self, step)

    monkeypatch.setattr(ConsumerGroups, "loaded", forgetful)
    assert run(heartbeat_plan_of(5)).failure == DIFFERS


def test_members_that_a_new_coordinator_never_removes_are_reported(monkeypatch: pytest.MonkeyPatch):
    """S33: sessions begin when a coordinator has loaded; a member that died meanwhile must not stay for ever."""

    def no_timers(self: ConsumerGroups, held: Held, step: Any) -> None:
        pass

    monkeypatch.setattr(ConsumerGroups, "_begin_timers", no_timers)
    assert run(heartbeat_plan_of(5)).failure == NO_DEADLINE


def test_facts_of_a_group_are_its_records():
    """A group of which nothing is left has none."""
    facts: Mapping[Any, Any] = consumer_group_watch.facts_of(ConsumerGroup("g"))
    assert facts == {}
