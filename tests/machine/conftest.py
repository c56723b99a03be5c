"""What only root may do, and only with a few tools of the system; .ci/run installs them."""

from __future__ import annotations

import pytest

from minikafka.chaos import machine, netns
from tests.left_out import leave_out


def why_not() -> str | None:
    """A sentence for people, or None: networks, disks and failing calls can be made here."""
    return netns.why_no_namespaces() or machine.why_no_mounts() or machine.why_no_injection()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what this machine cannot do."""
    leave_out(config, items, "machine", why_not)
