"""How clients split what they ask for into requests that brokers accept, and how they report what became of these."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minikafka.client.group_operations import GroupOperations
from minikafka.client.settings import AdminConfig
from minikafka.errors import UNKNOWN, NonEmptyGroup, UnknownMemberId
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.apis import BY_NAME, PARTITIONS_MAX, in_parts
from minikafka.wire.codec import decode_request, encode_request


def test_items_are_split_in_order():
    """Every item once; nothing asked is no request."""
    items = list(range(2 * PARTITIONS_MAX + 1))
    parts = list(in_parts(items))
    assert [len(part) for part in parts] == [PARTITIONS_MAX, PARTITIONS_MAX, 1]
    assert [item for part in parts for item in part] == items
    assert list(in_parts([])) == []


def test_a_full_part_is_within_the_limits():
    """Whatever the topics are called."""
    part = m.FetchPartition(
        topic="t" * 249,
        partition=10**6,
        current_leader_epoch=2**30,
        fetch_offset=2**40,
        partition_max_bytes=2**30,
    )
    fetch = m.FetchRequest(partitions=(part,) * PARTITIONS_MAX)
    assert decode_request(BY_NAME["Fetch"], b"".join(encode_request(fetch))) == fetch
    query = m.EpochQuery(topic="t" * 249, partition=10**6, current_leader_epoch=2**30, leader_epoch=2**30)
    epochs = m.OffsetForLeaderEpochRequest(partitions=(query,) * PARTITIONS_MAX)
    assert decode_request(BY_NAME["OffsetForLeaderEpoch"], b"".join(encode_request(epochs))) == epochs


class Admin(GroupOperations):
    """An admin client whose coordinator refused the second attempt; the response to the first one was lost."""

    async def _check_there(self, _partitions: object) -> None: ...

    async def _ask_coordinator(self, _name: str, _request: Any, _error_of: object, **_: Any) -> Any:
        return g.OffsetCommitResponse.failed(UnknownMemberId("group g has members", outcome=UNKNOWN))


async def test_a_reset_that_finds_members_has_the_outcome_of_all_attempts():
    """The group had none when the first attempt arrived: its offsets may have moved."""
    admin = Admin(AdminConfig(bootstrap_servers="127.0.0.1:1"), cast("Any", None))
    with pytest.raises(NonEmptyGroup) as raised:
        await admin.alter_consumer_group_offsets("g", {TopicPartition("orders", 0): 5})
    assert raised.value.outcome == UNKNOWN
