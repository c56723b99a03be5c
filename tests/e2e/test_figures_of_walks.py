"""The walks of a produce request are measured in a running broker (python -m tests.tidy.figures)."""

from __future__ import annotations

import pytest

from tests.tidy import figures
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.e2e


def test_both_walks_are_counted():
    """A request over /v1 makes all the calls that one over /rpc makes below it, in more files."""
    found = figures.walks(ROOT)
    assert found.keys() == figures.BEFORE_WALKS.keys()
    for calls, files, changes in found.values():
        assert 1 < files <= changes + 1 <= calls
    assert found["/v1"] > found["/rpc"]
