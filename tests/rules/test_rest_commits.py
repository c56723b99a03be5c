"""What the body of a commit over HTTP may say: all of it is committed, or it is refused by name."""

from __future__ import annotations

import pytest

from minikafka.rest.group_offsets import Commit, Commits, committing
from minikafka.rest.groups import PARTITION_COUNT_MAX
from minikafka.web.problems import Refused


def body(count: int) -> dict[str, object]:
    return {"offsets": [{"topic": "t", "partition": number, "offset": 1} for number in range(count)]}


def test_a_commit_of_as_many_partitions_as_are_accepted_names_each():
    """Bad input never half-applies, and neither does good input: what the client sent is in the request."""
    partitions = committing(Commits.read(body(PARTITION_COUNT_MAX)).offsets)
    assert [each.partition for each in partitions] == list(range(PARTITION_COUNT_MAX))
    assert committing([Commit(topic="t", partition=3, offset=7)])[0].leader_epoch == -1


def test_a_commit_of_too_many_partitions_is_refused_and_not_cut():
    """Bad input never half-applies: 200 for a part of it would lose the rest without a word."""
    with pytest.raises(Refused) as refused:
        Commits.read(body(PARTITION_COUNT_MAX + 1))
    [fault] = refused.value.members["errors"]
    assert fault["pointer"] == "/offsets"
    assert fault["detail"] == "2500 entries are accepted in one request, not 2501"
