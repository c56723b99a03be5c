"""What ``minikafka lab`` prints with ``-o json``: a contract (docs/lab.md).

Rule for this file: what nobody knows is null; names are those of the table, in the words of ``topics describe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from minikafka.lab.causes import RULES, changes_of
from minikafka.lab.compare import Comparison
from minikafka.lab.fate import Difference, LostRecord
from minikafka.lab.played import Run, Step, View
from minikafka.lab.scenario import Scenario
from minikafka.lab.table import truncation_of
from minikafka.types import NO_OFFSET


def run_as_json(scenario: Scenario, run: Run) -> dict[str, Any]:
    """One run: exactly scenario, truncation, lost, diverged, steps."""
    truncation = truncation_of(run)
    return {
        "scenario": scenario.name,
        "truncation": truncation,
        "lost": [_lost(each) for each in run.lost],
        "diverged": [_difference(each) for each in run.diverged],
        "steps": [_step(each, truncation) for each in run.steps],
    }


def compared_as_json(
    scenario: Scenario, both: Comparison, left: Mapping[str, str], right: Mapping[str, str]
) -> dict[str, Any]:
    """Two runs of one schedule; a step that one side does not have is null there."""
    first = both.first
    return {
        "scenario": scenario.name,
        "left": _side(both.left, left),
        "right": _side(both.right, right),
        "first_difference": None if first is None else {"step": first.number, "what": first.what},
        "steps": [
            {
                "differs": pair.differs,
                "left": None if pair.left is None else _step(pair.left, truncation_of(both.left)),
                "right": None if pair.right is None else _step(pair.right, truncation_of(both.right)),
            }
            for pair in both.pairs
        ],
    }


def _side(run: Run, options: Mapping[str, str]) -> dict[str, Any]:
    return {
        "options": dict(options),
        "truncation": truncation_of(run),
        "lost": [_lost(each) for each in run.lost],
        "diverged": [_difference(each) for each in run.diverged],
    }


def _lost(each: LostRecord) -> dict[str, Any]:
    return asdict(each)


def _difference(each: Difference) -> dict[str, Any]:
    return {"offset": each.offset, "step": each.step, "versions": [asdict(version) for version in each.versions]}


def _step(step: Step, truncation: str) -> dict[str, Any]:
    return {
        "step": step.number,
        "what": step.what,
        "told": list(step.lines),
        "changes": [
            {**asdict(change), "because": RULES[change.rule], "cause": step.what}
            for change in changes_of(step, truncation)
        ],
        "replicas": {name: _view(view) for name, view in step.after.items()},
    }


def _view(view: View) -> dict[str, Any]:
    return {
        "role": view.role,
        "leo": view.end_offset,
        "remote_leo": {name: None if end == NO_OFFSET else end for name, end in view.remotes},
        "high_watermark": view.high_watermark,
        "isr": view.isr.split(",") if view.isr else [],
        "isr_asked": view.asked.split(",") if view.asked else None,
        "leader_epoch": view.epoch,
    }
