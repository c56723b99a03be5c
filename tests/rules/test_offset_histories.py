"""Random histories of a group's offsets: seeds in which acknowledged offsets were erased, and fresh ones.

A failure prints its seed: ``python -c "from tests.rules.offset_histories import OffsetHistory; OffsetHistory(SEED).play(150)"``.
"""

from __future__ import annotations

import pytest

from tests.rules.offset_histories import OffsetHistory
from tests.sim.test_campaign import drawn_by_the_tree

STEPS = 150
FRESH = 150


@pytest.mark.parametrize("seed", [1002, 1496, 1596])
def test_histories_in_which_offsets_of_a_former_topic_took_those_of_the_present_with_them(seed: int):
    """Tombstones that were refused are written again, and erased what had been committed meanwhile."""
    OffsetHistory(seed).play(STEPS)


def test_fresh_histories():
    """Others with each change of the product."""
    first = drawn_by_the_tree()
    for seed in range(first, first + FRESH):
        print(f"OffsetHistory({seed})")  # noqa: T201 - a failure in CI must be replayed
        OffsetHistory(seed).play(STEPS)
