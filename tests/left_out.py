"""Tests that need what not every machine has: elsewhere they are left out, and the run says how many and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def leave_out(config: pytest.Config, items: list[pytest.Item], marker: str, why_not: Callable[[], str | None]) -> None:
    """Deselect what bears the marker if ``why_not``, which is asked only then, has a reason."""
    wanting = [item for item in items if item.get_closest_marker(marker)]
    reason = why_not() if wanting else None
    if reason is None:
        return
    items[:] = [item for item in items if item not in wanting]
    config.hook.pytest_deselected(items=wanting)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"{len(wanting)} {marker} tests are left out: {reason}")
