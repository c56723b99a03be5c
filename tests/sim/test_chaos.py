"""Scenarios of chaos on the simulator (S38): each is a plan; what it teaches comes about under virtual time."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from minikafka.chaos.reading import find, library, read
from minikafka.chaos.simulator import plan_of, play
from minikafka.chaos.target import CannotMake
from minikafka.faults import FAULTS, MESSAGES
from minikafka.sim.faults import Faults
from minikafka.sim.plan import FSYNC, PAGE_CACHE, Plan
from minikafka.sim.run import run as run_plan


@pytest.mark.parametrize("path", library(), ids=lambda path: path.stem)
def test_every_scenario_is_a_plan(path):
    """Issue 7: the same file drives the simulator; a plan is kept as JSON and comes back the same."""
    scenario = read(path)
    plan = plan_of(scenario, 1)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.faults
    assert plan.operations
    assert plan.duration_s == scenario.load.duration_s
    assert plan.policy == (FSYNC if scenario.cluster.syncs_first else PAGE_CACHE)
    assert max(fault.at_s for fault in plan.faults) <= plan.duration_s
    assert {FAULTS[what].kind for what in scenario.faults()} >= {fault.kind for fault in plan.faults}


def test_every_fault_has_a_plans_word():
    """No fault is left out silently."""
    kinds = {each.kind for each in FAULTS.values() if each.name != MESSAGES}  # which the simulator refuses
    assert kinds <= Faults.BEGIN.keys()


def test_the_product_s_default_holds_for_fencing_as_at_other_targets():
    """Plans of seeds have fencing by refused connections off; a scenario's own settings prevail."""
    scenario = read(find("kill-loop"))
    assert plan_of(scenario, 1).settings["mk.fence.on.refused.connection"] == "true"
    cluster = replace(scenario.cluster, settings={"mk.fence.on.refused.connection": "false"})
    assert plan_of(replace(scenario, cluster=cluster), 1).settings["mk.fence.on.refused.connection"] == "false"


CLEAN = (
    "zombie-leader",
    "majority-loss",
    "power-loss-all",
    "disk-full-leader",
    "failed-fsync",
    "rolling-restart",
    "clock-jump",
    "one-way-cut",
    "delay",
    "lossy-links",
    "boom-boom-minority",
    "vanlightly-isolated-leader",
    "storm",
)


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_lost(name, tmp_path):
    """Issue 7 Build 3: these lose nothing on any schedule; here is one, with the figures of its virtual time."""
    outcome = play(read(find(name)), seed=2, folder=tmp_path)
    assert outcome.verdict == "clean", outcome.render()
    assert outcome.findings == {}
    assert outcome.figures.acknowledged == outcome.figures.sent > 0
    assert outcome.figures.recovery_s(1.0) is not None
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["target"] == "simulator"


@pytest.mark.parametrize(
    "name", ["power-loss-unflushed", "vanlightly-isolated-leader-acks1", "vanlightly-unclean-election"]
)
def test_a_loss_that_the_settings_allow_is_named(name, tmp_path):
    """Issue 7, Must be shown: with the default policy the report names what was lost; and it was really lost."""
    outcome = play(read(find(name)), seed=1, folder=tmp_path)
    assert outcome.verdict == "clean", outcome.render()
    assert outcome.count("lost") > 0
    assert outcome.to_json()["allowed"]["findings"]["lost-write"] > 0  # type: ignore[index]


def test_what_is_kept_plays_again(tmp_path):
    """plan.json is an ordinary plan: `minikafka sim run plan.json` repeats the run, step by step."""
    scenario = read(find("zombie-leader"))
    play(scenario, seed=3, folder=tmp_path)
    plan = Plan.from_json((tmp_path / "plan.json").read_text(encoding="utf-8"))
    one, other = run_plan(plan), run_plan(plan_of(scenario, 3))
    assert one.trace == other.trace
    assert any("pause leader:orders-0" in fault for fault in one.faults)


def test_failovers_are_counted(tmp_path):
    """The leader that is frozen for six seconds is replaced, which is one failover; before, the report said 0."""
    assert play(read(find("zombie-leader")), seed=7, folder=tmp_path).to_json()["failovers"] == 1


def test_a_load_that_is_shorter_than_its_faults_is_refused(tmp_path):
    """`--duration` may not cut a scenario's story off."""
    with pytest.raises(CannotMake, match=r"zombie-leader has faults until 9 s"):
        play(read(find("zombie-leader")), seed=1, folder=tmp_path, duration_s=5.0)
