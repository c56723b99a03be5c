"""Random histories of a group's offsets in which acknowledged ones were erased; tests/sim/test_histories.py plays fresh ones."""

from __future__ import annotations

import pytest

from tests.rules.offset_histories import OffsetHistory

STEPS = 150


@pytest.mark.parametrize("seed", [1002, 1496, 1596])
def test_histories_in_which_offsets_of_a_former_topic_took_those_of_the_present_with_them(seed: int):
    """Tombstones that were refused are written again, and erased what had been committed meanwhile."""
    OffsetHistory(seed).play(STEPS)
