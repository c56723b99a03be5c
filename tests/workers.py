"""How `make test` spreads the suite over three pytest-xdist workers (``-n 3 --dist loadgroup``) on two cores.

Tests that use the system (broker processes, ports, signals, browsers, namespaces, containers, JVMs) mostly wait. They form
two groups, which begin first; one worker runs each group in order, so at most two of these tests run at the same time. All
other tests are deterministic and compute; they are grouped by file and fill the third worker, then all. Node IDs stay as
they are without xdist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]

END_TO_END = "end-to-end tests"
SYSTEM = "other tests that use the system"
SYSTEM_GROUPS = (END_TO_END, SYSTEM)
SYSTEM_FOLDERS = {
    "containers": SYSTEM,
    "contracts": SYSTEM,
    "e2e": END_TO_END,
    "foreign": SYSTEM,
    "fuzz": SYSTEM,
    "machine": SYSTEM,
    "rest": SYSTEM,
    "spark": SYSTEM,
}
"""The group of each folder. Both should take about as long."""

SYSTEM_FILES = (
    "tests/clients/test_connection_failures.py",
    "tests/kafka/test_every_version.py",
    "tests/kafka/test_hostile_frames.py",
    "tests/rules/test_bench_kafka.py",
    "tests/rules/test_cli_settings.py",
    "tests/rules/test_spark_client.py",
    "tests/rules/test_spark_connections.py",
)
"""Files that listen on ports in folders whose other tests are deterministic (tests/tidy/test_workers.py)."""

LONG_FOLDERS = ("sim",)
"""Handed out before other deterministic tests, so that no long file is left at the end."""


def group_of(node_id: str) -> str:
    """Return the group that a test belongs to: one of the system's, or its file."""
    file = node_id.partition("::")[0]
    parts = file.split("/")
    if file in SYSTEM_FILES:
        return SYSTEM
    return SYSTEM_FOLDERS.get(parts[1], file) if parts[0] == "tests" else file


def rank(node_id: str) -> int:
    """Return the group's place in the order of work: lower ranks are handed out first."""
    group = group_of(node_id)
    if group in SYSTEM_GROUPS:
        return SYSTEM_GROUPS.index(group)
    return len(SYSTEM_GROUPS) + (group.split("/")[1] not in LONG_FOLDERS)


class GroupScheduling(LoadScopeScheduling):
    """Hands out whole groups, in the order in which the workers collected them."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """With ``--dist loadgroup``, the groups of this module."""
    if config.getvalue("dist") != "loadgroup":
        return None
    # xdist would begin with the group of most tests.
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def is_simulated(item: pytest.Item) -> bool:
    """Return True for a contract test on simulated ports (tests/contracts/arms.py)."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("arm_name") == "simulated"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that use the system. In a worker, put all into the order of work; the order within a rank stays."""
    for item in items:
        if group_of(item.nodeid) in SYSTEM_GROUPS and not is_simulated(item):
            item.add_marker("system")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))
