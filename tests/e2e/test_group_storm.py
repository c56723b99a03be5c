"""Real processes: a group of eight under kill -9 of members and brokers (issue 6, must be shown); the short version.

The long one: ``python -m tests.e2e.group_storm --minutes 3``.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.group_storm import Outcome, storm

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STORM_S = 10.0


async def test_a_storm_loses_nothing_and_no_commit_goes_back(tmp_path):
    """S29, S31, S34: every acknowledged record is consumed; with commits after processing none is skipped."""
    outcome = await storm(tmp_path, STORM_S, seed=6)
    assert outcome.well, str(outcome)
    assert outcome.deeds["SIGKILL of members"] >= 2, str(outcome)
    assert outcome.deeds["SIGKILL of brokers"] >= 1, str(outcome)
    assert outcome.generation >= 2
    assert outcome.acknowledged > 100
    assert outcome.commits > 20


def test_a_storm_that_lost_something_says_so():
    """The judge must be able to fail."""
    facts = {
        "seconds": 1.0,
        "deeds": Counter(),
        "generation": 1,
        "acknowledged": 1,
        "missing": [],
        "read_twice": 0,
        "looks": 1,
        "commits": 1,
        "went_back": [],
        "fallen": [],
    }
    assert Outcome(**facts).well
    for wrong in ("missing", "went_back", "fallen"):
        assert not Outcome(**{**facts, wrong: ["x"]}).well
