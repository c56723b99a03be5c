"""Random histories of one log, and of two replicas of a compacted one: seeds that failed once, and fresh ones (S1, S21).

A failure prints its seed: ``python -c "from tests.sim.log_histories import LogHistory; LogHistory(SEED).play(60)"``.
"""

from __future__ import annotations

import pytest

from tests.rules.compacted_replicas import CompactedReplicas
from tests.sim.grounds import LOG_STEPS
from tests.sim.log_histories import LogHistory
from tests.sim.test_campaign import drawn_by_the_tree

REPLICA_STEPS = 80
FRESH_LOGS, FRESH_REPLICAS = 200, 60


@pytest.mark.parametrize("seed", [396, 641, 713, 1112, 1467])
def test_histories_in_which_a_cut_came_back_with_the_power(seed: int) -> None:
    """Five of the first 1,500 failed: a record that was synced was exchanged for one that had been cut off, and epochs
    were of a log that was gone (``tests/rules/test_log_cuts.py``).
    """
    LogHistory(seed).play(LOG_STEPS)


def test_a_history_in_which_what_was_cut_off_stood_between_later_records() -> None:
    """A replica kept the records of a former leader (``tests/rules/test_log_cuts.py``)."""
    CompactedReplicas(64).play(REPLICA_STEPS)


def test_fresh_histories() -> None:
    """Others with each change of the product."""
    first = drawn_by_the_tree()
    for seed in range(first, first + FRESH_LOGS):
        print(f"LogHistory({seed})")  # noqa: T201 - a failure in CI must be replayed
        LogHistory(seed).play(LOG_STEPS)
    for seed in range(first, first + FRESH_REPLICAS):
        print(f"CompactedReplicas({seed})")  # noqa: T201
        CompactedReplicas(seed).play(REPLICA_STEPS)
