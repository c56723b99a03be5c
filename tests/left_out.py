"""Tests that need what not every machine has: elsewhere they are left out, and the run says how many and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LINES = pytest.StashKey[dict[str, None]]()
"""What the workers of pytest-xdist reported, each line once."""


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
    """Print the lines of the workers."""
    for line in config.stash.get(LINES, {}):
        terminalreporter.write_line(line)
