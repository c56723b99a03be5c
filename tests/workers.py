"""How `make test` spreads the suite over four pytest-xdist workers (``-n 4 --dist loadgroup``) on two cores.

Tests that use the system (broker processes, ports, signals, browsers, namespaces, containers, JVMs) mostly wait. Three
workers begin with them, and the fourth with all other tests, which are deterministic and compute. A worker that is free
takes the next file of its kind, and of the other kind when there is none left. Some folders stay in one worker: their
tests share an expensive fixture, or a part of the machine. Node IDs stay as they are without xdist.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parents[1]

SYSTEM_FOLDERS = ("containers", "contracts", "e2e", "foreign", "fuzz", "machine", "rest", "spark")

WHOLE_FOLDERS = ("spark", "containers", "machine")
"""System folders that stay in one worker, the longest first: they begin first."""

SYSTEM_FILES = (
    "tests/clients/test_connection_failures.py",
    "tests/kafka/test_every_version.py",
    "tests/kafka/test_hostile_frames.py",
    "tests/kafka/test_like_kafka.py",
    "tests/kafka/test_repeated_names.py",
    "tests/rules/test_bench_kafka.py",
    "tests/rules/test_cli_settings.py",
    "tests/rules/test_spark_client.py",
    "tests/rules/test_spark_connections.py",
)
"""Files that listen on ports in folders whose other tests are deterministic (tests/tidy/test_workers.py)."""

LONG_FILES = (
    "tests/e2e/test_chaos.py",
    "tests/e2e/test_compiled_rules.py",
    "tests/e2e/test_pytest_plugin.py",
    "tests/fuzz/test_fuzz.py",
    "tests/foreign/test_kafka_tools.py",
    "tests/e2e/test_pages.py",
    "tests/foreign/test_kafka_apps.py",
    "tests/foreign/test_go_and_node.py",
    "tests/foreign/test_beside_kafka.py",
    "tests/e2e/test_operations.py",
    "tests/e2e/test_console_faults.py",
    "tests/e2e/test_transform_rounds.py",
    "tests/e2e/test_consumer_protocol.py",
    "tests/e2e/test_console_truth.py",
    "tests/e2e/test_console_history.py",
    "tests/e2e/test_console_views.py",
    "tests/foreign/test_kafka_directories.py",
    "tests/e2e/test_console_checks.py",
    "tests/e2e/test_console_time.py",
    "tests/e2e/test_console_acceptance.py",
    "tests/e2e/test_console.py",
    "tests/e2e/test_group_storm.py",
    "tests/e2e/test_sasl.py",
    "tests/e2e/test_oauth.py",
    "tests/e2e/test_fault_script.py",
    "tests/e2e/test_docs_search.py",
    "tests/foreign/test_beside_secured_kafka.py",
    "tests/foreign/test_beside_expiring_kafka.py",
    "tests/foreign/test_transform.py",
    "tests/foreign/test_secured_listeners.py",
)
"""System files of twenty seconds and more, the longest first: one of them at the end would keep one worker alone at work."""

LONG_FOLDERS = ("sim",)
"""Handed out before other deterministic tests, so that no long file is left at the end."""

FIRST = (*(f"tests/{folder}" for folder in WHOLE_FOLDERS), *LONG_FILES)
"""Groups that use the system, in the order in which they are handed out; all others follow."""


def group_of(node_id: str) -> str:
    """Return the group that a test belongs to: its file, or its folder where one worker runs all of it."""
    file = node_id.partition("::")[0]
    top, _, rest = file.partition("/")
    folder = rest.partition("/")[0]
    return f"{top}/{folder}" if top == "tests" and folder in WHOLE_FOLDERS else file


def uses_system(node_id: str) -> bool:
    """Return True for a test, or a group, that uses processes, ports or other parts of this machine."""
    file = node_id.partition("::")[0]
    parts = file.split("/")
    return file in SYSTEM_FILES or (parts[0] == "tests" and parts[1] in SYSTEM_FOLDERS)


def rank(node_id: str) -> int:
    """Return the group's place in the order of work: lower ranks are handed out first."""
    group, folder = group_of(node_id), node_id.split("/")[1]
    if not uses_system(node_id):
        return len(FIRST) + 1 + (folder not in LONG_FOLDERS)
    return FIRST.index(group) if group in FIRST else len(FIRST)


class GroupScheduling(LoadScopeScheduling):
    """Hands out whole groups, in the order in which the workers collected them; one worker begins with what computes."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assign the next group: one that uses the system if another worker computes."""
        others = (work for each, work in self.assigned_work.items() if each is not node)
        waiting = sum(self._is_in_system(work) for work in others)
        wanted = waiting < self.numnodes - 1
        group = next((each for each in self.workqueue if uses_system(each) == wanted), None)
        if group is not None:
            self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)

    def _is_in_system(self, work: dict[str, dict[str, bool]]) -> bool:
        """Return True if a worker has unfinished tests that use the system."""
        return any(uses_system(group) and not all(finished.values()) for group, finished in work.items())


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


def rotated(nodes: list[Any], worker: str, workers: int) -> list[Any]:
    """Return the nodes of a folder from another place on for each worker (``gw0``, ``gw1``, ...)."""
    start = len(nodes) * int(worker.removeprefix("gw")) // workers
    return nodes[start:] + nodes[:start]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin in each folder with other files. pytest rewrites the assertions of a new file, which takes most of
    the time of a first run, and keeps them on disk: workers in step would each rewrite all files.
    """
    report = yield
    about = getattr(collector.config, "workerinput", None)
    if about is not None and isinstance(collector, pytest.Directory):
        report.result = rotated(list(report.result), about["workerid"], about["workercount"])
    return report


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that uses the system, before ``-m`` selects tests by their marks."""
    if uses_system(item.nodeid) and not is_simulated(item):
        item.add_marker("system")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, put all tests into the order of work; tests of a file stay in its order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (rank(item.nodeid), item.nodeid.partition("::")[0]))
