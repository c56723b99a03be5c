"""Planted bugs are caught by name, and the same plans pass without them; a canary proves that failures are told."""

from __future__ import annotations

import pytest

from minikafka.sim.invariants import HwWithinLog, Report, Sight
from minikafka.sim.plan import plan_of
from minikafka.sim.run import run
from tests.sim.planted import PLANTED, Planted


def hunted(planted: Planted) -> tuple[int, str]:
    """The seed that caught it and by which name: the recorded one, else the first within the budget."""
    told = []
    for seed in (planted.seed, *range(planted.within)):
        with planted.active():
            report = run(planted.plan(seed))
        if report.failure in planted.caught_by:
            return seed, str(report.failure)
        told.append(f"{seed}: {report.failure or 'passed'}")
    pytest.fail(f"{planted.name} ({planted.story}) was not caught by {planted.caught_by}: {', '.join(told)}")


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_a_planted_bug_is_caught(planted: Planted) -> None:
    """KAFKA-FACTS §11, as planted: caught by name within its budget; the plan that caught it passes without it."""
    seed, _ = hunted(planted)
    report = run(planted.plan(seed))
    assert report.ok, report.render()


def test_the_canary_sings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invariant that never holds fails the first run, with its name, table, faults and command."""

    def sing(self: HwWithinLog, sight: Sight, report: Report) -> None:
        report("canary", f"{sight.name} was looked at")

    monkeypatch.setattr(HwWithinLog, "look", sing)
    report = run(plan_of(0, operations=5, faults=1))
    assert report.failure == "canary"
    text = report.render()
    assert "FAILED canary" in text
    assert "replay  python -m minikafka.sim run --seed 0" in text
    assert "<orders-0 leader" in text or "<orders-0 follower" in text
