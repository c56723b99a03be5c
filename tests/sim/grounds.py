"""Where planted bugs are hunted: one function per ground, from a seed (or a story's name) to the name of what broke.

Small grounds first: a bug of one rule is found soonest where only that rule plays.

- ``log``: one log on one disk (``log_histories.py``)
- ``replicas``: one partition, three replicas, the rules alone (``tests/rules/replication_histories.py``)
- ``quorum``: three members of the metadata quorum (``quorum_cluster.py``)
- ``story``: a scenario of the lab: what it prints is not what its file says
- ``drill``: a directed test of a whole cluster, for what chance meets too rarely
- ``cluster``: a plan of the simulator, whole clusters with clients
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pytest

from minikafka.errors import ProtocolError
from minikafka.invariant import InvariantViolation
from minikafka.lab.scenario import LIBRARY, read
from minikafka.lab.table import rendered
from minikafka.sim.cluster import NotReached
from minikafka.sim.run import slug
from tests.rules.replication_histories import History, Violation
from tests.sim.log_histories import LogBreach, LogHistory
from tests.sim.quorum_cluster import Breach
from tests.sim.test_quorum_sim import run_campaign

LOG_STEPS: Final = 60
REPLICA_STEPS: Final = 120
QUORUM_ROUNDS: Final = 15

WORDS: Final[Mapping[str, str]] = {
    "lacks what": "isr_member_lacks_committed",
    "has become": "exposed_record_changed",
    "never become equal": "not_converged",
    "watermark outside": "hw_outside_the_log",
    "two leaders in epoch": "two_leaders_in_an_epoch",
    "fell within": "hw_fell_within_an_epoch",
    "epochs fall": "epochs_fall_along_a_log",
    "agree at": "logs_diverge",
    "is gone": "acknowledged_record_gone",
    "voted twice": "voted_twice",
    "committed at": "committed_metadata_differs",
    "instead of": "snapshot_differs",
    "listeners differ": "listeners_differ",
    "acknowledged, but there": "acknowledged_metadata_lost",
    "refused, but there": "refused_metadata_there",
    "unknown, and there": "metadata_there_twice",
    "InvariantViolation: ": "",
}
"""A part of what a ground says, and its name; '': the invariant's sentence follows."""


def name_of(error: Exception) -> str:
    """The name of a failure: the same for every case of it."""
    told = str(error)
    if isinstance(error, InvariantViolation):
        return slug(told)
    for part, name in WORDS.items():
        if part in told:
            return name or slug(told.partition(part)[2])
    return slug(told)


def log(seed: int) -> str | None:
    """One log's history."""
    try:
        LogHistory(seed).play(LOG_STEPS)
    except (LogBreach, InvariantViolation) as breach:
        return name_of(breach)
    except ProtocolError:
        return "log_unreadable"
    return None


def replicas(seed: int) -> str | None:
    """One partition's history."""
    try:
        History(seed).play(REPLICA_STEPS)
    except (Violation, InvariantViolation) as breach:
        return name_of(breach)
    return None


def quorum(seed: int) -> str | None:
    """A campaign over three quorum members."""
    try:
        run_campaign(seed, rounds=QUORUM_ROUNDS)
    except (Breach, InvariantViolation) as breach:
        return name_of(breach)
    return None


def story(name: str) -> str | None:
    """A scenario of the lab: its name when it is told otherwise than its file says."""
    scenario = read(LIBRARY / f"{name}.txt")
    try:
        if all(rendered(scenario.play(each.options)) == each.text for each in scenario.expected):
            return None
    except (InvariantViolation, ProtocolError):
        return name
    return name


def drill(test: Callable[[], None]) -> str | None:
    """A directed test: its name when it fails."""
    try:
        test()
    except (AssertionError, NotReached, InvariantViolation, ProtocolError, pytest.fail.Exception):
        return drill_name(test)
    return None


def drill_name(test: Callable[[], None]) -> str:
    """What it is called in tables."""
    return test.__name__.removeprefix("test_")
