"""Planted bugs are caught by name, and the same plans pass without them; a canary proves that failures are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from minikafka.sim import disk
from minikafka.sim.disk import NameChange
from minikafka.sim.invariants import HwWithinLog
from minikafka.sim.plan import Plan
from minikafka.sim.replica_view import ReplicaView, Report
from minikafka.sim.run import run
from minikafka.sim.seeds import plan_of
from tests.left_out import REMARK
from tests.sim import planted_table
from tests.sim.planted import Planted
from tests.sim.planted_table import CLUSTERS, kept_plan

ROTTED = "the kept plan of {0} no longer shows it: MINIKAFKA_PURE=1 python -m tests.sim.planted_table --record {0}"


KEPT = "kept"


def tries(planted: Planted) -> Iterator[tuple[str, Plan]]:
    """The kept plan, cut down to what the bug needs; if it has rotted, the recorded seed and as many as the budget is."""
    yield KEPT, kept_plan(planted)
    for seed in (planted.seed, *range(planted.within)):
        yield str(seed), planted.plan(seed)


def hunted(planted: Planted, record_property: Callable[[str, object], None]) -> Plan:
    """The plan that catches it by name. A kept plan that has rotted is named in the run's summary."""
    told = []
    for name, plan in tries(planted):
        with planted.active():
            report = run(plan)
        if report.failure in planted.caught_by:
            if name != KEPT:
                record_property(REMARK, ROTTED.format(planted.name))
            return plan
        told.append(f"{name}: {report.failure or 'passed'}")
    pytest.fail(f"{planted.name} ({planted.story}) was not caught by {planted.caught_by}: {', '.join(told)}")


@pytest.mark.parametrize("planted", CLUSTERS, ids=[planted.name for planted in CLUSTERS])
def test_a_planted_bug_is_caught(planted: Planted, record_property: Callable[[str, object], None]) -> None:
    """KAFKA-FACTS §11, as planted: caught by name within its budget; the plan that caught it passes without it."""
    report = run(hunted(planted, record_property), hashes_trace=False)
    assert report.ok, report.render()


def test_a_kept_plan_that_has_rotted_is_named_and_recorded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 16: a kept plan that no longer shows its bug costs a hunt in each run, so the run says how to record it."""
    planted = next(each for each in CLUSTERS if each.name == "hw_ignores_isr")
    file = tmp_path / "kept.json"
    file.write_text(plan_of(0, operations=0, faults=0).to_json(), encoding="utf-8")
    monkeypatch.setattr(planted_table, "CLUSTERS", (planted,))
    monkeypatch.setattr(planted_table, "kept", lambda _: file)
    monkeypatch.setattr(planted_table, "SHRINK_RUNS", 3)
    remarks: list[tuple[str, object]] = []
    hunted(planted, lambda name, value: remarks.append((name, value)))
    assert remarks == [(REMARK, ROTTED.format(planted.name))]
    assert planted_table.main(["--rotted"]) == 1
    assert capsys.readouterr().out == "hw_ignores_isr\n"
    assert planted_table.main(["--record"]) == 0
    assert planted_table.main(["--rotted"]) == 0
    remarks.clear()
    hunted(planted, lambda name, value: remarks.append((name, value)))
    assert remarks == []


def test_a_deletion_that_is_not_finished_shows_when_names_are_lost_in_any_order(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """Segments are deleted from the oldest on: a disk that keeps name changes in order never brings back an older one."""
    planted = next(each for each in CLUSTERS if each.name == "deletions_not_finished")
    plan = hunted(planted, record_property)

    def first_ones(changes: Sequence[NameChange], random: Random) -> Sequence[NameChange]:
        return changes[: random.randint(0, len(changes))]

    monkeypatch.setattr(disk, "any_subset", first_ones)
    with planted.active():
        report = run(plan)
    assert report.ok, report.render()
    assert report.marks["disk_names_lost"] > 0


def test_the_canary_sings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invariant that never holds fails the first run, with its name, table, faults and command."""

    def sing(self: HwWithinLog, view: ReplicaView, report: Report) -> None:
        report("canary", f"{view.name} was looked at")

    monkeypatch.setattr(HwWithinLog, "look", sing)
    report = run(plan_of(0, operations=5, faults=1))
    assert report.failure == "canary"
    text = report.render()
    assert "FAILED canary" in text
    assert "replay  python -m minikafka.sim run --seed 0" in text
    assert "<orders-0 leader" in text or "<orders-0 follower" in text
