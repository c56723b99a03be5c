"""``minikafka sim run``: several processes, how far it is, and Ctrl-C (issue 3)."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from minikafka import compiled
from minikafka.cli.root import root
from minikafka.sim import campaign as campaign_of_seeds
from minikafka.sim.__main__ import INTERRUPTED, main
from minikafka.sim.campaign import REDRAWN_EVERY_S, TOLD_EVERY_S, Campaign, Done, Progress, Task, read_plan, run_task
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.run import Report
from minikafka.sim.seeds import FAMILIES, FAULTS, OPERATIONS, plain_plan_of, plan_of

SMALL = Plan(seed=1)
PACE = {
    "seconds",
    "seeds_per_second",
    "seeds_per_core_second",
    "virtual_over_real",
    "virtual_over_core",
    "jobs",
}


GROUP_LOOKS = 300


def group_lives(group: int) -> bool:
    """Is any process of the group there? What the dead have left to their parents may take a moment."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    time.sleep(0.1)
    return True


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


class Stopwatch:
    """Real time, as the test wants it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def done(seed: int) -> Done:
    return Done(Report(plan=replace(SMALL, seed=seed), virtual_s=10.0), 0.5)


def after(count: int) -> Campaign:
    campaign = Campaign()
    for seed in range(count):
        campaign.add(done(seed))
    return campaign


def test_several_processes_tell_what_one_tells(tmp_path: Path) -> None:
    """``--jobs``: the same report but for the pace, in the order of the plans. The first one ends last."""
    arguments = ["run"]
    for seed, operations in ((40, 120), (41, 5), (42, 5)):
        arguments.append(str(tmp_path / f"{seed}.json"))
        Path(arguments[-1]).write_text(plan_of(seed, operations=operations, faults=1).to_json())
    alone, both = (
        CliRunner().invoke(main, [*arguments, "-o", "json", "--jobs", jobs], catch_exceptions=False) for jobs in "12"
    )
    assert (alone.exit_code, both.exit_code) == (0, 0)
    told, told_by_both = json.loads(alone.stdout), json.loads(both.stdout)
    assert told_by_both["jobs"] == 2
    assert {name: told[name] for name in told.keys() - PACE} == {
        name: told_by_both[name] for name in told_by_both.keys() - PACE
    }
    lines = CliRunner().invoke(main, [*arguments, "--jobs", "2"]).stdout.splitlines()
    assert [line.split()[2] for line in lines[:3]] == ["40", "41", "42"]


def test_the_json_says_how_large_the_plans_were() -> None:
    """A pace means nothing without the size of what is run."""
    told = after(4).to_json()
    assert told["plan"] == {"brokers": 3, "faults": 0, "groups": 0, "operations": 0}
    assert told["seeds_per_core_second"] == 2.0
    assert told["virtual_over_core"] == 20.0


@pytest.mark.parametrize("build", [compiled.COMPILED, compiled.PURE])
def test_a_pace_says_which_build_ran(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 15: a figure of seeds per second belongs to the compiled rules or to the sources."""
    monkeypatch.setattr(compiled, "build", lambda: build)
    assert after(1).to_json()["build"] == build
    assert f"a second of one core, {build})" in after(1).summary()


def test_plain_plans_are_what_the_issue_names_its_pace_for() -> None:
    """Three brokers, 200 client operations, ten faults; nothing else."""
    for seed in range(20):
        plan = plain_plan_of(seed)
        assert (plan.brokers, len(plan.operations), len(plan.faults)) == (3, OPERATIONS, FAULTS)
        assert (plan.consumers, plan.groups, len(plan.topics), plan.clients) == (0, (), 1, {})


def test_a_plain_seed_names_itself_so() -> None:
    """What a failure prints runs the same plan again."""
    assert Task(seed=7, family="plain").plan() == plain_plan_of(7)
    assert Task(seed=7, family="plain").replay == "python -m minikafka.sim run --seed 7 --family plain"
    assert Task(file="kept.json").replay == "python -m minikafka.sim run kept.json"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_family_is_chosen_by_name(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 17: thousands of seeds with transactions alone."""
    played: list[Plan] = []

    def run_nothing(plan: Plan, **_: object) -> Report:
        played.append(plan)
        return Report(plan=plan)

    monkeypatch.setattr(campaign_of_seeds, "run", run_nothing)
    result = CliRunner().invoke(main, ["run", "--family", family, "--seeds", "2", "--start", "5"])
    assert result.exit_code == 0, result.output
    assert played == [FAMILIES[family](5), FAMILIES[family](6)]
    assert all(bool(plan.transactors) for plan in played) or "transaction" not in family


def test_plain_and_another_family_contradict_each_other() -> None:
    """The error names both."""
    result = CliRunner().invoke(main, ["run", "--family", "transactions", "--plain", "--seed", "1"])
    assert result.exit_code == 2
    assert "--plain is --family plain, but --family transactions was given too" in result.output


def test_progress_on_a_screen_is_one_line_that_goes_away() -> None:
    """Drawn anew a few times a second, and blank at the end."""
    screen, clock = Screen(), Stopwatch()
    progress = Progress(10, screen, clock)
    progress.tell(after(1))
    assert screen.getvalue() == ""
    clock.now = REDRAWN_EVERY_S
    progress.tell(after(2))
    first = screen.getvalue()
    assert first.startswith("\r2 of 10 runs, 0 failed, ")
    assert "\n" not in first
    progress.clear()
    assert screen.getvalue() == first + "\r" + " " * (len(first) - 1) + "\r"


def test_progress_in_a_file_is_a_line_now_and_then() -> None:
    """No control characters, and nothing at all of a short campaign."""
    file, clock = io.StringIO(), Stopwatch()
    progress = Progress(3, file, clock)
    for runs, now in ((1, TOLD_EVERY_S - 1), (2, TOLD_EVERY_S), (3, 2 * TOLD_EVERY_S)):
        clock.now = now
        progress.tell(after(runs))
    progress.clear()
    lines = file.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("2 of 3 runs, 0 failed, ")


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_all_processes_and_sums_up(jobs: int) -> None:
    """A terminal interrupts the whole group: exit 130, what was found so far on stdout, nobody left behind."""
    command = [sys.executable, "-m", "minikafka.sim", "run", "--seeds", "10000", "--jobs", str(jobs)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("passed   seed 0 ")
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=240)
    assert process.returncode == INTERRUPTED == 130
    summary = out.splitlines()[-1]
    assert re.search(r"\d runs?, 0 failed, ", summary)
    assert summary.endswith(", interrupted")
    assert "Traceback" not in error
    assert any(not group_lives(process.pid) for _ in range(GROUP_LOOKS))


def test_a_task_is_a_plan_and_its_price() -> None:
    """What a process hands back."""
    ran = run_task(Task(seed=5, family="plain"))
    assert ran.report.plan.seed == 5
    assert ran.report.ok
    assert ran.cpu_s > 0


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(at_s=1.0, kind="craash", target="n1"), "there is no such kind of fault; did you mean crash?"),
        (Fault(at_s=1.0, kind="crash", target="x1"), "'x1' is unknown; one of n2, all, controller,"),
        (Fault(at_s=1.0, kind="crash", target="leadr:orders-0"), "'leadr' is unknown; did you mean 'leader'?"),
        (Fault(at_s=1.0, kind="crash", target="n4"), "there is no broker 4; there are 3"),
        (Fault(at_s=1.0, kind="cut", target="n1>n7"), "there is no broker 7; there are 3"),
        (Fault(at_s=1.0, kind="crash", target="leader:orders"), "names no partition"),
    ],
)
def test_a_plan_that_somebody_wrote_is_refused_with_a_sentence(tmp_path: Path, fault: Fault, why: str) -> None:
    """Before anything is run; a run that meets such a fault ends with an invariant's traceback."""
    path = tmp_path / "mine.json"
    path.write_text(SMALL.with_(faults=(fault,)).to_json())
    for command in ("run", "show", "shrink"):
        told = CliRunner().invoke(root, ["sim", command, str(path)])
        assert (told.exit_code, told.stdout) == (2, "")
        assert str(path) in told.stderr
        assert why in told.stderr


def test_a_plan_that_passes_has_nothing_to_be_cut_down_to(tmp_path: Path) -> None:
    """`sim shrink` of the wrong seed was a traceback."""
    path = tmp_path / "quiet.json"
    path.write_text(SMALL.to_json())
    told = CliRunner().invoke(root, ["sim", "shrink", str(path)])
    assert told.exit_code == 1
    assert "the plan of seed 1 passes: there is no failure" in told.output


def test_one_seed_or_many() -> None:
    """--seeds was not looked at beside --seed."""
    told = CliRunner().invoke(root, ["sim", "run", "--seed", "1", "--seeds", "3"])
    assert told.exit_code == 2
    assert "keep one of them" in told.output


def test_every_fault_that_seeds_draw_is_one_that_a_file_may_have(tmp_path: Path) -> None:
    """What a run carries out and what a file is allowed stand in different places."""
    path = tmp_path / "drawn.json"
    for seed in range(60):
        plan = plan_of(seed)
        path.write_text(plan.to_json())
        assert read_plan(path) == plan


ASKS_BOTH = """
from click.testing import CliRunner
from minikafka.cli.root import root
from minikafka.sim.__main__ import main
CliRunner().invoke(main, ["run", "--help"])
short, long = (CliRunner().invoke(root, ["sim", "run", asked]) for asked in ("-h", "--help"))
print(short.exit_code, long.exit_code, short.output == long.output)
"""


def test_help_is_the_same_whoever_asks_a_command_first():
    """Click keeps a command's help option as its first caller had it, and two programs share these commands."""
    told = subprocess.run([sys.executable, "-c", ASKS_BOTH], capture_output=True, text=True, check=True)
    assert told.stdout == "0 0 True\n"


@pytest.mark.parametrize("command", ["run", "shrink"])
def test_a_number_in_place_of_a_plan_names_the_option_for_a_seed(command):
    """`minikafka sim show 7` takes a seed there."""
    done = CliRunner().invoke(root, ["sim", command, "7"])
    assert done.exit_code == 2
    assert done.output.endswith("there is no file 7; for the plan of a seed say --seed 7\n")
