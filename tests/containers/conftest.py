"""Container tests run where a Docker engine is, or the rig's; elsewhere they are left out, and the run says so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.containers.engine import Engine, engine_with_image, why_not

IMAGE = "minikafka:test"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs an engine if there is none."""
    wanting = [item for item in items if item.get_closest_marker("containers")]
    reason = why_not() if wanting else None
    if reason is None:
        return
    items[:] = [item for item in items if item not in wanting]
    config.hook.pytest_deselected(items=wanting)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"{len(wanting)} container tests are left out: {reason}")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """With the image of this tree."""
    with engine_with_image(IMAGE) as running:
        yield running


@pytest.fixture(scope="session")
def project() -> str:
    """A name that no other run uses."""
    return f"minikafka-test-{os.getpid()}"
