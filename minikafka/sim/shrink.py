"""A smaller plan that fails by the same name: faults go first, then operations, then times get shorter (ddmin).

Removing one event does not move the others, because every purpose and link draws from a stream of its own; a candidate
counts only if its first violation has the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from minikafka.sim.plan import Plan

T = TypeVar("T")

Fails = Callable[[Plan], str | None]
"""Run a plan: the name of its first violation, or None."""


class Shrinker:
    """Cuts one plan down, in at most ``runs_max`` runs."""

    def __init__(self, fails: Fails, name: str, *, runs_max: int = 300) -> None:
        self._fails = fails
        self._name = name
        self.runs_left = runs_max

    def shrink(self, plan: Plan) -> Plan:
        """The smallest plan found."""
        before = None
        while before != plan and self.runs_left > 0:
            before = plan
            plan = self._fewer(plan, "faults")
            plan = self._fewer(plan, "operations")
            plan = self._shorter(plan)
            plan = self._simpler(plan)
        return plan

    def _still(self, plan: Plan) -> bool:
        if self.runs_left <= 0:
            return False
        self.runs_left -= 1
        return self._fails(plan) == self._name

    def _fewer(self, plan: Plan, member: str) -> Plan:
        """Drop ever smaller pieces of a list while the failure stays."""
        items: Sequence[object] = getattr(plan, member)
        size = max(1, len(items) // 2)
        while items:
            start = 0
            while start < len(items):
                fewer = tuple(items[:start]) + tuple(items[start + size :])
                candidate = plan.with_(**{member: fewer})
                if self._still(candidate):
                    plan, items = candidate, fewer
                else:
                    start += size
            if size == 1:
                break
            size = max(1, size // 2)
        return plan

    def _shorter(self, plan: Plan) -> Plan:
        """End the safety phase after the last thing that happens; shorten what lasts."""
        ends = [fault.at_s + fault.lasts_s for fault in plan.faults] + [each.at_s for each in plan.operations]
        for end_s in (max(ends, default=0.0) + 0.1, max((fault.at_s for fault in plan.faults), default=0.0) + 0.1):
            candidate = plan.with_(duration_s=round(min(plan.duration_s, end_s), 3))
            if candidate != plan and self._still(candidate):
                plan = candidate
        return plan

    def _simpler(self, plan: Plan) -> Plan:
        """Plain links, plain order, no reader, one producer's settings: whatever the failure does not need."""
        delay = {name: value for name, value in plan.link.items() if name == "delay_mean_s"}
        all_changes: list[dict[str, object]] = [
            {"link": delay},
            {"fifo": True},
            {"readers": 0},
            {"client_settings": {}},
        ]
        for changes in all_changes:
            candidate = plan.with_(**changes)
            if candidate != plan and self._still(candidate):
                plan = candidate
        return plan


class PlanPasses(ValueError):
    """There is no failure that a plan could be cut down to."""


def shrink(plan: Plan, fails: Fails, *, runs_max: int = 300) -> tuple[Plan, str]:
    """The smallest plan found that fails by the same name, and that name. PlanPasses when ``plan`` does."""
    name = fails(plan)
    if name is None:
        raise PlanPasses(f"the plan of seed {plan.seed} passes")
    return Shrinker(fails, name, runs_max=runs_max).shrink(plan), name
