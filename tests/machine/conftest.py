"""What only root may do, and only with a few tools of the system; .ci/run installs them."""

from __future__ import annotations

import pytest

from minikafka.chaos import loop_disk, namespaces, syscalls
from tests.left_out import leave_out


def why_not() -> str | None:
    """A sentence for people, or None: networks, disks and failing calls can be made here."""
    return namespaces.why_not() or loop_disk.why_not() or syscalls.why_not()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what this machine cannot do."""
    leave_out(config, items, "machine", why_not)
