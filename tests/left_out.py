"""What a run says at its end: tests that need what this machine lacks, how many and why, and remarks of single tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

LINES = pytest.StashKey[dict[str, None]]()
"""What the workers of pytest-xdist reported, each line once."""

REMARK: Final = "remark"
"""Property of a test (``record_property``) that the run prints at its end, though the test passed."""


def leave_out(config: pytest.Config, items: list[pytest.Item], marker: str, why_not: Callable[[], str | None]) -> None:
    """Deselect what bears the marker if ``why_not``, which is asked only then, has a reason."""
    wanting = [item for item in items if item.get_closest_marker(marker)]
    reason = why_not() if wanting else None
    if reason is None:
        return
    items[:] = [item for item in items if item not in wanting]
    config.hook.pytest_deselected(items=wanting)
    line = f"{len(wanting)} {marker} tests are left out: {reason}"
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workeroutput"):
        config.workeroutput.setdefault("left_out", []).append(line)
    elif reporter is not None:
        reporter.write_line(line)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the lines of a worker, which has no terminal. All workers collect the same tests."""
    lines = node.config.stash.setdefault(LINES, {})
    lines.update(dict.fromkeys(getattr(node, "workeroutput", {}).get("left_out", ())))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the lines of the workers and the remarks of tests."""
    reports = (report for all_of_one_outcome in terminalreporter.stats.values() for report in all_of_one_outcome)
    properties = (each for report in reports for each in getattr(report, "user_properties", ()))
    remarks = dict.fromkeys(value for name, value in properties if name == REMARK)
    for line in (*config.stash.get(LINES, {}), *remarks):
        terminalreporter.write_line(line)
