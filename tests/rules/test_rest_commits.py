"""What the body of a commit over HTTP may say: all of it is committed, or it is refused by name."""

from __future__ import annotations

import pytest

from minikafka.groups.protocol import Assignment
from minikafka.rest.group_members import counts_dealt
from minikafka.rest.group_offsets import Commit, Commits, committing
from minikafka.rest.groups import PARTITION_COUNT_MAX
from minikafka.web.problems import Refused
from minikafka.wire.group_messages import DescribedMember


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


@pytest.mark.parametrize("left", [b"[" * 100_000, b"\xff", b"7", b""])
def test_what_another_client_left_in_its_assignment_counts_nothing(left: bytes):
    """Any member may have led the group before; however deep its data is nested, a heartbeat over HTTP is answered."""
    member = DescribedMember(
        member_id="m", client_id="", client_host="", assignment=Assignment(user_data=left).packed()
    )
    assert counts_dealt(member) == {}
