"""Where a reset leads: Kafka's tool, goal by goal (issue 6, item 6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.groups.offsets import KINDS, Goal, duration_ms


@pytest.mark.parametrize(
    ("goal", "new"),
    [
        (Goal("earliest"), 10),
        (Goal("latest"), 50),
        (Goal("current"), 30),
        (Goal("offset", offset=20), 20),
        (Goal("offset", offset=5), 10),
        (Goal("offset", offset=99), 50),
        (Goal("shift", shift=-5), 25),
        (Goal("shift", shift=-100), 10),
        (Goal("shift", shift=100), 50),
    ],
)
def test_a_goal_is_an_offset_within_the_log(goal, new):
    """Log 10 to 50, committed 30."""
    assert goal.of(start=10, end=50, committed=30) == new


def test_without_a_commit_the_current_offset_is_the_end():
    """Kafka's tool says the same of --to-current and --shift-by."""
    assert Goal("current").of(start=10, end=50, committed=None) == 50
    assert Goal("shift", shift=-1).of(start=10, end=50, committed=None) == 49


def test_a_time_after_the_last_record_is_the_end():
    """ListOffsets finds nothing there."""
    assert Goal("time", time_ms=1).of(start=0, end=50, committed=None, at_time=7) == 7
    assert Goal("time", time_ms=1).of(start=0, end=50, committed=3, at_time=None) == 50


@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**62),
    st.integers(-(2**62), 2**62),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.none() | st.integers(0, 2**62),
)
def test_no_goal_leaves_the_log(kind, offset, shift, start, size, committed):
    """An offset outside of it would be reset by the first consumer, to somewhere else."""
    goal = Goal(kind, offset=offset, shift=shift)
    assert start <= goal.of(start=start, end=start + size, committed=committed) <= start + size


def test_durations_are_iso_8601_or_seconds():
    """Kafka's form, and what people type."""
    assert duration_ms("PT1H30M") == 5_400_000
    assert duration_ms("P1DT0.5S") == 86_400_500
    assert duration_ms("90") == 90_000
    assert duration_ms("0.25") == 250
    for wrong in ("", "P", "PT", "1h", "-5", "P1M", "nan", "1e9", "9" * 15):
        with pytest.raises(ValueError, match=r"is the form|longer ago"):
            duration_ms(wrong)
