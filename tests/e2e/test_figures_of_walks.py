"""The walks of a produce request are measured in a running broker (python -m tests.tidy.figures)."""

from __future__ import annotations

import pytest

from tests.tidy import figures
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.e2e


def test_both_walks_are_counted_and_a_quarter_shorter_than_before_issue_16():
    """A request over /v1 makes all the calls that one over /rpc makes below it, in more files. A walk that has become too
    long: print its calls beside those of the commit before, and keep or join what was added.
    """
    found = figures.walks(ROOT)
    assert found.keys() == figures.BEFORE_WALKS.keys()
    for calls, files, changes in found.values():
        assert 1 < files <= changes + 1 <= calls
    assert found["/v1"] > found["/rpc"]
    for name, (calls, _, changes) in found.items():
        before_calls, _, before_changes = figures.BEFORE_WALKS[name]
        assert calls <= before_calls * figures.WALKS_WANTED, f"{name}: calls of a produce request (issue 16)"
        assert changes <= before_changes * figures.WALKS_WANTED, f"{name}: changes of file of a produce request"
