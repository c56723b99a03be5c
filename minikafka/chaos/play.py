"""One scenario on one target, by name: what the command line and the tests call.

Rules for this file: a fault that the target lacks is refused before anything is started; files go into the run's
folder: ``history.jsonl``, the brokers' journal, ``report.json``, ``throughput.svg``, and the scenario itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from minikafka.chaos.outcome import Outcome
from minikafka.chaos.picture import picture
from minikafka.chaos.runner import Run
from minikafka.chaos.scenario import DURATION_S_MAX, DURATION_S_MIN, Scenario
from minikafka.chaos.target import CannotMake, Target, lacks, target_class

REPORT: Final = "report.json"
PICTURE: Final = "throughput.svg"


def check(scenario: Scenario, target: str, duration_s: float | None) -> None:
    """CannotMake when the target lacks a fault, or the load would be over before the scenario is, or not in a week."""
    missing = lacks(target, scenario)
    if missing:
        raise CannotMake(f"{scenario.name}: {'; '.join(missing)}", scenario=scenario.name)
    if duration_s is not None and not DURATION_S_MIN <= duration_s <= DURATION_S_MAX:
        raise CannotMake(f"--duration {duration_s:g}s: from 1s to 7d is possible, as in a file", scenario=scenario.name)
    if duration_s is not None and duration_s < scenario.fixed_s():
        raise CannotMake(
            f"--duration {duration_s:g}s: {scenario.name} has faults until {scenario.fixed_s():g} s, its load"
            " must last as long",
            scenario=scenario.name,
        )


async def play(
    scenario: Scenario,
    target: str,
    *,
    seed: int,
    folder: Path,
    duration_s: float | None = None,
    say: Callable[[str], object] = lambda _: None,
    made: type[Target] | None = None,
) -> Outcome:
    """Play it and write the files. CannotMake, WorldError. ``made``: another class for the target, for tests."""
    check(scenario, target, duration_s)
    (folder / scenario.path.name).write_bytes(scenario.path.read_bytes())
    make = made or target_class(target)
    run = Run(scenario, make(scenario, folder, say), seed=seed, duration_s=duration_s, folder=folder, say=say)
    outcome = await run.run()
    write(outcome, folder)
    return outcome


def write(outcome: Outcome, folder: Path) -> None:
    """The report for programs, and the picture."""
    report = json.dumps(outcome.to_json(), indent=1, ensure_ascii=False) + "\n"
    (folder / REPORT).write_text(report, encoding="utf-8")
    (folder / PICTURE).write_text(picture(outcome), encoding="utf-8")
