"""Bugs planted in single rules: Kafka's real ones and our own, each caught by name where that rule plays (issue 3).

The search is soak: ``python -m tests.sim.planted_table --hunt`` plays every seeded ground from seed 0 on.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.sim.bug import SEEDED, Bug
from tests.sim.planted_table import BEGIN, CLASS_SEEDS_MAX, CLASSES, CLUSTERS, END, NEEDED, RULES, table

DOCUMENT = Path(__file__).parents[2] / "docs/simulator.md"


def caught(bug: Bug) -> tuple[int, str | None]:
    """The seed that shows it and the name: the recorded one, else the first within the budget."""
    seeds = (bug.seed, *range(bug.budget)) if bug.ground in SEEDED else (0,)
    told: list[str] = []
    for seed in seeds:
        with bug.active():
            name = bug.play(seed)
        if name in bug.names:
            return seed, name
        told.append(f"{seed}: {name or 'passed'}")
    pytest.fail(f"{bug.name} ({bug.story}) was not caught by {bug.names}: {', '.join(told[:20])}")


@pytest.mark.parametrize("bug", RULES, ids=[bug.name for bug in RULES])
def test_a_bug_of_one_rule_is_caught_by_name(bug: Bug) -> None:
    """KAFKA-FACTS §11 and ours: the run that shows it fails by that name with the bug, and passes without."""
    seed, _ = caught(bug)
    assert bug.play(seed) is None


def test_the_document_lists_every_planted_bug() -> None:
    """docs/simulator.md: its table is the one that ``python -m tests.sim.planted_table`` writes."""
    text = DOCUMENT.read_text(encoding="utf-8")
    written = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert written == table().strip()
    names = re.findall(r"^\| `([a-z0-9_]+)`", written, re.MULTILINE)
    assert sorted(names) == sorted(bug.name for bug in (*CLUSTERS, *RULES))
    assert len(names) == len(set(names))


def test_each_class_of_schedules_has_two_planted_bugs_that_seeds_find() -> None:
    """The recorded hunts found each of them within the limit of seeds."""
    needed = json.loads(NEEDED.read_text(encoding="utf-8"))
    everything = {bug: needed[bug] for bugs in CLASSES.values() for bug in bugs}
    assert max(everything.values()) <= CLASS_SEEDS_MAX
    assert all(len(bugs) >= 2 for bugs in CLASSES.values())


def test_declared_budgets_cover_the_recorded_hunts() -> None:
    """If a kept plan no longer catches its bug, CI tries as many seeds as the hunt needed."""
    needed = json.loads(NEEDED.read_text(encoding="utf-8"))
    budgets = {bug.name: bug.within for bug in CLUSTERS} | {
        bug.name: bug.budget for bug in RULES if bug.ground in SEEDED
    }
    assert not {name for name, budget in budgets.items() if not 1 <= needed[name] <= budget}
