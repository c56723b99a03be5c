"""A chaos run that cannot begin (S38): it says so, and leaves neither brokers nor open files."""

from __future__ import annotations

from pathlib import Path

import pytest

from minikafka.chaos.processes import ProcessTarget
from minikafka.chaos.reading import find, read
from minikafka.chaos.runner import Run
from minikafka.errors import WorldError


class NeverReady(ProcessTarget):
    """Its brokers do not start."""

    closed = False

    async def start(self) -> None:
        raise WorldError("broker 1 is not ready")

    async def close(self) -> None:
        self.closed = True
        await super().close()


async def test_a_cluster_that_does_not_start_leaves_nothing_open(tmp_path: Path):
    """S38: whatever a run ends in, its history is whole and its brokers are gone."""
    scenario = read(find("kill-loop"))
    target = NeverReady(scenario, tmp_path, lambda _: None)
    run = Run(scenario, target, seed=1, duration_s=None, folder=tmp_path, say=lambda _: None)
    with pytest.raises(WorldError, match="broker 1 is not ready"):
        await run.run()
    assert target.closed
    # The history is whole on the disk, header and all: an open file would still hold it back, and warn when it goes.
    assert (tmp_path / "history.jsonl").read_text().startswith("{")
