"""How `make test` spreads the suite over two pytest-xdist workers (``-n 2 --dist loadgroup``).

Tests that use the system (broker processes, ports, signals, browsers, namespaces, containers, JVMs) form one group: it
begins first, and one worker runs it in order, so no two of these tests run at the same time. All other tests are
deterministic; they are grouped by file and fill the second worker, then both. Node IDs stay as they are without xdist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]

SYSTEM = "tests that use the system"
SYSTEM_FOLDERS = ("containers", "contracts", "e2e", "foreign", "fuzz", "machine", "rest", "spark")
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
    """Return the group that a test belongs to: the system's, or its file."""
    file = node_id.partition("::")[0]
    parts = file.split("/")
    system = file in SYSTEM_FILES or (parts[0] == "tests" and parts[1] in SYSTEM_FOLDERS)
    return SYSTEM if system else file


def rank(node_id: str) -> int:
    """Return the group's place in the order of work: lower ranks are handed out first."""
    group = group_of(node_id)
    if group == SYSTEM:
        return 0
    return 1 if group.split("/")[1] in LONG_FOLDERS else 2


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, put the tests into the order of work; the order within a rank stays."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))
