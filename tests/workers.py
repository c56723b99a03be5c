"""How `make test` spreads the suite over three pytest-xdist workers (``-n 3 --dist loadgroup``) on two cores.

A worker takes one group of tests after the other: a file, or a folder whose files share an expensive fixture. Tests that
use the system (broker processes, ports, signals, browsers, namespaces, containers, JVMs) mostly wait; all others are
deterministic and compute. Groups that use the system are handed out first, but as long as there are others only two at a
time: three of them, or none, would leave the processors idle or overload them. Node IDs stay as they are without xdist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parents[1]

SYSTEM_FOLDERS = ("spark", "containers", "foreign", "machine", "fuzz", "e2e", "contracts", "rest")
"""Handed out in this order: what takes longest begins first."""

WHOLE_FOLDERS = ("spark", "containers", "foreign", "machine")
"""Each is one group: its files share a JVM, an image, builds of other projects, or the machine's networks and disks."""

SYSTEM_GROUPS_MAX = 2
"""How many groups that use the system run at the same time while deterministic tests are left."""

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
    """Return the group that a test belongs to: its file, or its folder."""
    file = node_id.partition("::")[0]
    folder = _folder_of(file)
    return f"tests/{folder}" if folder in WHOLE_FOLDERS else file


def _folder_of(path: str) -> str:
    parts = path.split("/")
    return parts[1] if parts[0] == "tests" else ""


def uses_the_system(group: str) -> bool:
    """Return True for a test, file or folder whose tests use the system."""
    file = group.partition("::")[0]
    return file in SYSTEM_FILES or _folder_of(file) in SYSTEM_FOLDERS


def rank(node_id: str) -> int:
    """Return the group's place in the order of work: lower ranks are handed out first."""
    folder = _folder_of(node_id)
    if folder in SYSTEM_FOLDERS:
        return SYSTEM_FOLDERS.index(folder)
    return len(SYSTEM_FOLDERS) + (0 if uses_the_system(node_id) else 1 if folder in LONG_FOLDERS else 2)


class GroupScheduling(LoadScopeScheduling):
    """Hands out whole groups, in the order in which the workers collected them, as ``SYSTEM_GROUPS_MAX`` allows."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        others = [work for other, work in self.assigned_work.items() if other is not node]
        busy = sum(
            any(uses_the_system(group) and not all(tests.values()) for group, tests in work.items()) for work in others
        )
        if busy >= SYSTEM_GROUPS_MAX:
            deterministic = next((group for group in self.workqueue if not uses_the_system(group)), None)
            if deterministic is not None:
                self.workqueue.move_to_end(deterministic, last=False)
        super()._assign_work_unit(node)


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
        if uses_the_system(item.nodeid) and not is_simulated(item):
            item.add_marker("system")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))
