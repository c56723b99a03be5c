"""Random histories of small parts: seeds that failed once, and fresh ones (S1, S9, S21)."""

from __future__ import annotations

import pytest

from tests.sim.histories import HISTORIES
from tests.sim.test_campaign import drawn_by_the_tree


@pytest.mark.parametrize("seed", [396, 641, 713, 1112, 1467, 1200590, 1200673])
def test_logs_of_which_a_cut_came_back_with_the_power(seed: int) -> None:
    """Five of the first 1,500 failed: a record that was synced was exchanged for one that had been cut off, and epochs
    were of a log that was gone (``tests/rules/test_log_cuts.py``).
    """
    play, _ = HISTORIES["log"]
    play(seed)


@pytest.mark.parametrize("seed", [64, 1100383])
def test_a_replica_in_which_what_was_cut_off_stood_between_later_records(seed: int) -> None:
    """It kept the records of a former leader (``tests/rules/test_log_cuts.py``)."""
    play, _ = HISTORIES["compacted-replicas"]
    play(seed)


@pytest.mark.parametrize("seed", [23, 459, 663, 50892, 60252, 62131])
def test_data_directories_in_which_a_former_topics_checkpoints_came_back(seed: int) -> None:
    """A log had the recovery point or high watermark of the topic that had its name before (``test_log_directory.py``).
    A hole in a log that was cut was taken for compaction's.
    """
    play, _ = HISTORIES["data-directory"]
    play(seed)


def test_a_member_that_was_silent_too_long_and_whose_coordinator_then_loads():
    """No request counts that a coordinator refuses because it has not loaded: its partitions may be others' by then."""
    play, _ = HISTORIES["migrating-group"]
    play(75089575)


@pytest.mark.parametrize("name", HISTORIES)
def test_fresh_histories(name: str) -> None:
    """Others with each change of the product."""
    play, count = HISTORIES[name]
    first = drawn_by_the_tree()
    for seed in range(first, first + count):
        print(f"python -m tests.sim.histories {name} {seed}")  # noqa: T201 - a failure in CI must be replayed
        play(seed)
