"""What the body of a commit over HTTP may say: all of it is committed, or it is refused by name."""

from __future__ import annotations

import pytest

from minikafka.rest import group_offsets
from minikafka.rest.body import Members
from minikafka.rest.group_offsets import commits_in
from minikafka.web.problems import Fault


@pytest.mark.parametrize("count, fault_count", [(2, 0), (3, 1)])
def test_a_commit_of_too_many_partitions_is_refused_and_not_cut(monkeypatch, count, fault_count):
    """Bad input never half-applies: 200 for a part of it would lose the rest without a word."""
    monkeypatch.setattr(group_offsets, "PARTITION_COUNT_MAX", 2)
    faults: list[Fault] = []
    given = {"offsets": [{"topic": "t", "partition": number, "offset": 1} for number in range(count)]}
    found = commits_in(Members(given, "", faults), faults)
    assert (len(found), len(faults)) == ((0, 1) if fault_count else (count, 0))
    assert not faults or faults[0]["pointer"] == "/offsets"
