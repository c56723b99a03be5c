"""What came of a run, and the failure as a developer sees it.

Rules for this file: text and JSON from facts that the run collected; both are the same for the same plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from minikafka.sim.plan import Plan
from minikafka.sim.replica_view import Violation


@dataclass(slots=True, kw_only=True)
class Report:
    """One run of one plan."""

    plan: Plan
    violations: list[Violation] = field(default_factory=list)
    virtual_s: float = 0.0
    steps: int = 0
    trace: str = ""
    """sha256 over every step and event; empty: nobody asked for it, and the run passed."""
    marks: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """How many sends were acknowledged, failed, unknown; how many records were read."""
    named: list[str] = field(default_factory=list)
    """Losses that the plan's settings allow, by the history: acks=0, acks=1, unclean elections."""
    table: str = ""
    """Who stood where at the end."""
    story: list[str] = field(default_factory=list)
    """The last events before the end."""
    faults: list[str] = field(default_factory=list)
    """What was done to the cluster, with who was hit."""

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def failure(self) -> str | None:
        """The name of the first violation: what the shrinker keeps."""
        return self.violations[0].name if self.violations else None

    def render(self, *, replay: str = "") -> str:
        """The failure for people; a line for a run that passed."""
        plan = self.plan
        counts = " ".join(f"{name}={count}" for name, count in sorted(self.outcomes.items()))
        if self.ok:
            return f"passed   seed {plan.seed}   t={self.virtual_s:.3f}   step {self.steps:,}   {counts}"
        first = self.violations[0]
        lines = [f"FAILED {first.name}   seed {plan.seed}   t={first.time:.3f}   step {first.step:,}"]
        lines.append(f"  {first.what}")
        lines += [f"  also {each}" for each in self.violations[1:4]]
        if len(self.violations) > 4:
            lines.append(f"  and {len(self.violations) - 4} more")
        lines += ["", self.table, ""]
        lines += [f"  {fault}" for fault in self.faults]
        lines += ["", *(f"  {event}" for event in self.story), ""]
        lines.append(f"  replay  {replay or f'python -m minikafka.sim run --seed {plan.seed}'}")
        lines.append(
            f"  shrink  python -m minikafka.sim shrink --seed {plan.seed}"
            f"        {len(plan.faults)} faults, {len(plan.operations)} operations"
        )
        lines.append(f"  {counts}   policy {plan.policy}")
        lines.append(f"  trace sha256 {self.trace[:16]}")
        return "\n".join(lines)
