"""Container tests run where a Docker engine is, or the rig's; elsewhere they are left out, and the run says so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.containers.engine import Engine, engine_with_image, why_not
from tests.left_out import leave_out

IMAGE = "minikafka:test"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs an engine if there is none."""
    leave_out(config, items, "containers", why_not)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """With the image of this tree."""
    with engine_with_image(IMAGE) as running:
        yield running


@pytest.fixture(scope="session")
def project() -> str:
    """A name that no other run uses."""
    return f"minikafka-test-{os.getpid()}"
