"""Chaos on real processes (S38): scenarios end in a verdict, the verdict is no rubber stamp, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from minikafka.chaos import simulator
from minikafka.chaos.outcome import Outcome
from minikafka.chaos.processes import ProcessTarget
from minikafka.chaos.reading import find, read
from minikafka.chaos.runner import play
from minikafka.chaos.target import Target
from minikafka.cli.root import root
from minikafka.ui.journal import read_journals

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HERE = Path(__file__).parent


def scenario_file(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\nteaches = "what a test needs"\n{text}', encoding="utf-8")
    return path


async def played(path: Path, folder: Path, **options: Any) -> Outcome:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - a test waits for nothing else
    return await play(read(path), "processes", seed=1, folder=folder, **options)


def told(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(root, ["chaos", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_a_killed_leader_under_load_by_the_command_line(tmp_path: Path):
    """Issue 7 Build 1: run, report for programs, files, exit code 0; every acknowledged record is there, once."""
    mine = scenario_file(
        tmp_path,
        "mine",
        # Groups begin at once: a coordinator that is hit while it waits for members would let nobody read in time.
        '[cluster]\nsettings = { "group.initial.rebalance.delay.ms" = "0" }\n'
        'topics = [{ name = "orders", configs = { "min.insync.replicas" = "2" } }]\n'
        '[load]\nduration = "10s"\nproducers = [{ count = 2, rate = 60 }]\ngroups = [{ name = "readers", members = 2 }]\n'
        '[[steps]]\nwhat = "kill"\nwhom = "leader:orders-0"\nat = "2s"\nfor = "2s"\n'
        '[[steps]]\nwhat = "isolate"\nwhom = "controller"\nat = "6s"\nfor = "2s"\n',
    )
    kept = tmp_path / "kept"
    result = told("run", str(mine), "--keep", str(kept), "-o", "json")
    document = json.loads(result.stdout)
    assert document["verdict"] == "clean"
    assert document["acknowledged"] == document["sent"] > 600
    assert [document[each] for each in ("lost", "duplicated", "reordered", "diverged")] == [0, 0, 0, 0]
    assert document["read"] > 0
    assert len(document["faults"]) == 2
    assert all(each["recovery_s"] is not None for each in document["faults"])
    assert 0.0 < document["availability"] <= 1.0
    assert document["folder"] == str(kept)
    assert json.loads((kept / "report.json").read_text(encoding="utf-8"))["acknowledged"] == document["acknowledged"]
    assert (kept / "throughput.svg").stat().st_size > 500
    journal = read_journals([kept / "journal.jsonl"])
    assert {"leader_elected", "fault_set"} <= {entry.kind for entry in journal.entries}


LOOSE = """
[cluster]
topics = [{ name = "orders", partitions = 1 }]
[load]
duration = "8s"
producers = [{ count = 2, rate = 50, acks = "1" }]
[[steps]]
what = "isolate"
whom = "leader:orders-0"
at = "2s"
for = "5s"
[expect]
loss = "acks=1"
"""


@pytest.mark.parametrize("is_lossy", [False, True])
async def test_one_file_has_the_same_verdict_on_both_targets(is_lossy: bool, tmp_path: Path):
    """Issue 7, Must be shown: unchanged in simulator and processes, the same word; what may be lost is lost on both."""
    path = scenario_file(tmp_path, "loose", LOOSE) if is_lossy else find("zombie-leader")
    real = await played(path, tmp_path / "real")
    (tmp_path / "simulated").mkdir()
    simulated = await asyncio.to_thread(simulator.play, read(path), seed=1, folder=tmp_path / "simulated")
    assert real.verdict == simulated.verdict == "clean", real.render()
    assert (real.count("lost") > 0, simulated.count("lost") > 0) == (is_lossy, is_lossy)
    assert set(real.findings) == set(simulated.findings)


async def test_a_rolling_restart_fails_no_send(tmp_path: Path):
    """Issue 7, Must be shown: no send() fails, nothing is doubled; p99 during it stands beside p99 before."""
    outcome = await played(find("rolling-restart"), tmp_path / "run", duration_s=20.0)
    assert outcome.verdict == "clean", outcome.render()
    document = outcome.to_json()
    assert (document["failed"], document["unknown"], document["duplicated"], document["errors"]) == (0, 0, 0, {})
    latencies = document["latency_ms"]
    assert {"before_p99", "restart_p99"} <= latencies.keys()  # type: ignore[attr-defined]
    assert "restart p99" in outcome.render()
    assert document["failovers"] >= 3  # type: ignore[operator]


def test_a_fault_that_the_target_lacks_is_refused_by_name():
    """Issue 7 Build 2: exit 2 and which, before anything is started."""
    result = told("run", "power-loss-all", code=2)
    assert "power-loss-all: processes cannot make power-loss: " in result.stderr
    assert "--target simulator" in result.stderr
    assert "no scenario 'power-los'" in told("run", "power-los", code=2).stderr
    assert "one of simulator, processes" in told("run", "zombie-leader", "--target", "docker", code=2).stderr
    assert "has faults until 9 s" in told("run", "zombie-leader", "--duration", "5s", code=2).stderr
    assert "a time with its unit" in told("run", "zombie-leader", "--duration", "5", code=2).stderr


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path):
    """Issue 7 Build 1: no process, no file; the command says that it was interrupted."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(HERE.parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "minikafka", "chaos", "run", "storm"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "fault 1" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=180)
    assert (process.returncode, output) == (130, "")
    assert said.endswith("minikafka: interrupted\n")
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert list(tmp_path.iterdir()) == []


# ---- planted damage --------------------------------------------------------------------------------------------------

ISOLATED = """
[cluster]
topics = [{ name = "orders", partitions = 1, configs = { "min.insync.replicas" = "2" } }]
[load]
duration = "8s"
producers = [{ count = 8, rate = 4 }]
groups = [{ name = "readers" }]
[[steps]]
what = "isolate"
whom = "leader:orders-0"
at = "2s"
for = "5s"
"""
"""The five batches that a producer may have under way last for longer than a busy machine takes to cut all four links: a
follower that is cut off last would else hold all that the leader ever appends."""
SOON = """
[expect]
converge = "8s"
"""
"""Of what never converges."""
LOST_ANSWERS = """
[cluster]
topics = [{ name = "orders", partitions = 1, configs = { "min.insync.replicas" = "2" } }]
[load]
duration = "6s"
producers = [{ count = 2, rate = 60 }]
[[steps]]
what = "loss"
whom = "leader:orders-0"
to = "client"
at = "1s"
for = "4s"
share = 0.3
"""

CAUGHT = [
    ("hw_ignores_isr", ISOLATED, {"lost-write"}),
    # Its tail stays: it never follows again, or goes on behind the tail if its new leader's log is long enough by then.
    ("divergence_unseen", ISOLATED + SOON, {"not converged", "diverged"}),
    ("retries_duplicate", LOST_ANSWERS, {"duplicate"}),
]
"""Bug, scenario, and what it may be caught by."""


def planted(bug: str) -> type[Target]:
    """The target processes, its brokers with this bug."""

    class PlantedTarget(ProcessTarget):
        launcher = (str(HERE / "planted_serve.py"), bug)

    return PlantedTarget


@pytest.mark.parametrize("bug, text, kinds", CAUGHT, ids=[bug for bug, _, _ in CAUGHT])
async def test_planted_damage_is_caught(bug: str, text: str, kinds: set[str], tmp_path: Path):
    """Issue 7, Must be shown: brokers built with a bug of the simulator's are found out on real processes too."""
    outcome = await played(scenario_file(tmp_path, "caught", text), tmp_path / "run", made=planted(bug))
    assert outcome.verdict == "damaged", outcome.render()
    found = {*outcome.damage, *(["not converged"] if outcome.missing else [])}
    assert kinds & found, outcome.render()


@pytest.mark.parametrize("text", [ISOLATED, LOST_ANSWERS], ids=["isolated", "lost answers"])
async def test_without_the_bug_the_same_scenarios_are_clean(text: str, tmp_path: Path):
    """Else the verdict `damaged` above would prove nothing."""
    outcome = await played(scenario_file(tmp_path, "caught", text), tmp_path / "run")
    assert outcome.verdict == "clean", outcome.render()
