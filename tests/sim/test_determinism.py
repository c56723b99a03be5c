"""One seed, one trace: in two processes, under different hash seeds (STYLE (d): hash order of strings and sets)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minikafka.sim.loop import SimLoop
from minikafka.sim.plan import Plan
from minikafka.sim.run import run
from minikafka.sim.seeds import plan_of
from tests.sim import versions

SCRIPT = """
import sys
from minikafka.sim.seeds import plan_of
from minikafka.sim.run import run
report = run(plan_of(int(sys.argv[1]), operations=60, faults=6))
print(report.trace, report.steps, report.virtual_s, sorted(report.marks.items()))
"""


def traced(seed: int, hash_seed: str) -> str:
    """What a fresh interpreter says of the seed."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", SCRIPT, str(seed)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=500).stdout


@pytest.mark.parametrize("seed", [3, 18])
def test_same_seed_same_trace(seed: int) -> None:
    """Every step and every event of a whole cluster is the same in another process with another hash seed."""
    first = traced(seed, "1")
    assert first == traced(seed, "4242")
    assert len(first.split()[0]) == 64


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_journals_are_the_same_on_the_newest_python_at_hand(tmp_path: Path) -> None:
    """Issue 3: byte for byte, on this interpreter under two hash seeds and on the newest that is found."""
    others = versions.environments(tmp_path, newest_only=True)
    for seed, hashes in versions.compared([sys.executable, *others], versions.SEEDS).items():
        assert len(set(hashes.values())) == 1, (seed, hashes)
        assert hashes[sys.executable] == versions.journal(sys.executable, seed, hash_seed="4242")


def test_another_seed_another_trace() -> None:
    """The trace sees what happens: two seeds differ."""
    assert run(plan_of(1, operations=20, faults=2)).trace != run(plan_of(2, operations=20, faults=2)).trace


def test_a_trace_is_hashed_when_it_is_asked_for() -> None:
    """Issue 13: nobody reads the trace of a run that passed, and making it takes 3 % of the run."""
    plan = plan_of(1, operations=20, faults=2)
    assert run(plan, hashes_trace=False).trace == ""
    assert len(run(plan).trace) == 64


def test_a_collection_that_comes_as_soon_as_it_may_frees_the_world_of_a_run() -> None:
    """Issue 13: a world that the collector has looked at too early stays until its tenth visit, which is as long."""
    gc.collect()
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1_000, 1_000)
    try:
        run(plan_of(1, operations=20, faults=2), hashes_trace=False)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect(0)
    assert [each for each in gc.get_objects() if type(each) is SimLoop] == []


def test_a_plan_survives_json() -> None:
    """A kept plan is the plan: text and back, every field."""
    plan = plan_of(12345)
    assert Plan.from_json(plan.to_json()) == plan
