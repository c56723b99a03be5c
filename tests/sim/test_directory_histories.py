"""Random histories of a data directory: a planted bug that they find."""

from __future__ import annotations

import pytest

from minikafka.log.durability import Durability
from tests.sim.directory_histories import DirectoryHistory

STEPS = 60
SEEDS_MAX = 30


async def _not_saved(self: Durability) -> None:
    """Nothing makes a log start durable before the segments below it go."""


def test_segments_that_go_before_the_log_start_is_saved_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure brings some of them back; behind the first hole the log is cut, and synced records are lost."""
    monkeypatch.setattr(Durability, "save_start", _not_saved)
    for seed in range(SEEDS_MAX):
        try:
            DirectoryHistory(seed, deletes=True).play(STEPS)
        except AssertionError:
            break
    else:
        pytest.fail(f"{SEEDS_MAX} seeds have not found it")
    monkeypatch.undo()
    DirectoryHistory(seed, deletes=True).play(STEPS)
