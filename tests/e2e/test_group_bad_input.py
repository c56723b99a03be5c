"""Bad input of groups through the Python client and the command line: Kafka's error, and what to do (issue 6).

``/v1`` has the same in tests/e2e/test_rest_groups.py, the rules in tests/rules/test_group_refusals.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from minikafka import AdminClient, Consumer, NewTopic, TopicPartition
from minikafka.client.structs import CommitFailed
from minikafka.errors import (
    FencedInstanceId,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    OffsetMetadataTooLarge,
)
from minikafka.groups.protocol import Subscription
from minikafka.testing.local_cluster import LocalCluster
from minikafka.wire import group_messages as g
from minikafka.world.clients import Asker
from tests.e2e.test_processes import run

pytestmark = pytest.mark.e2e

TOO_LONG = "g" * 40_000
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
# No heartbeat notices what is done to the member: its commit does.
SILENT = {"heartbeat_interval_ms": 20_000, "session_timeout_ms": 30_000}
T0 = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, config=SETTINGS) as running:
        asyncio.run(_topic(running.bootstrap))
        yield running


async def _topic(bootstrap: str) -> None:
    async with AdminClient(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic("t", num_partitions=2, replication_factor=1)])


def consumer(cluster: LocalCluster, group: str, **more: Any) -> Consumer:
    return Consumer(
        "t", bootstrap_servers=cluster.bootstrap, group_id=group, enable_auto_commit=False, **{**SILENT, **more}
    )


async def joined(member: Consumer) -> None:
    while not member.assignment():
        await member.getmany(timeout_ms=50)


async def ask(cluster: LocalCluster, request: Any) -> Any:
    """As somebody else."""
    async with Asker(cluster.bootstrap) as asker:
        return await asker.ask(cluster.files.brokers[0].address, request)


async def member_of(cluster: LocalCluster, group: str) -> str:
    response = await ask(cluster, g.DescribeGroupsRequest(groups=(group,)))
    return response.groups[0].members[0].member_id


async def test_a_member_that_was_removed_commits_nothing(cluster):
    """UNKNOWN_MEMBER_ID."""
    async with consumer(cluster, "removed") as member:
        await joined(member)
        leaving = g.LeavingMember(member_id=await member_of(cluster, "removed"))
        await ask(cluster, g.LeaveGroupRequest(group_id="removed", members=(leaving,)))
        with pytest.raises(CommitFailed, match=r"UNKNOWN_MEMBER_ID.*nothing was committed; process less per poll"):
            await member.commit({T0: 1})
        assert await member.committed(T0) is None


async def test_a_member_of_an_old_generation_commits_nothing(cluster):
    """ILLEGAL_GENERATION: somebody has joined again in its name."""
    async with consumer(cluster, "old") as member:
        await joined(member)
        request = g.JoinGroupRequest(
            group_id="old",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=await member_of(cluster, "old"),
            protocols=(g.GroupProtocol(name="range", metadata=Subscription(topics=("t",)).packed()),),
        )
        assert (await ask(cluster, request)).generation_id == 2
        with pytest.raises(CommitFailed, match=r"ILLEGAL_GENERATION.*nothing was committed"):
            await member.commit({T0: 1})
        assert await member.committed(T0) is None


async def test_metadata_beside_an_offset_is_bounded(cluster):
    """OFFSET_METADATA_TOO_LARGE; what fits is kept."""
    async with consumer(cluster, "metadata") as member:
        await joined(member)
        with pytest.raises(
            OffsetMetadataTooLarge, match=r"5000 characters, offset\.metadata\.max\.bytes is 4096: commit less"
        ):
            await member.commit({T0: (1, "x" * 5000)})
        assert await member.committed(T0) is None
        await member.commit({T0: (1, "x" * 4096)})
        assert await member.committed(T0) == 1


@pytest.mark.parametrize(
    ("group", "more", "error", "told"),
    [
        ("short", {"session_timeout_ms": 1_000, "heartbeat_interval_ms": 300}, InvalidSessionTimeout, "from 6000 to"),
        ("long", {"session_timeout_ms": 2_000_000}, InvalidSessionTimeout, r"group\.max\.session\.timeout\.ms"),
        (TOO_LONG, {}, InvalidGroupId, "choose a shorter one"),
    ],
)
async def test_a_member_that_cannot_be_has_its_error_at_the_next_call(cluster, group, more, error, told):
    """INVALID_SESSION_TIMEOUT, INVALID_GROUP_ID: no joining again can help, so the consumer ends."""
    async with consumer(cluster, group, **more) as member:
        with pytest.raises(error, match=told):
            await joined(member)


async def test_a_timeout_that_no_record_can_hold_is_refused_and_the_broker_lives(cluster):
    """INVALID_REQUEST. Before, the record of the member could not be written, and that stopped the broker."""
    member = Consumer(
        "t",
        bootstrap_servers=cluster.bootstrap,
        group_id="slow",
        group_protocol="consumer",
        max_poll_interval_ms=2**31,
        request_timeout_ms=3_000,
    )
    async with member:
        with pytest.raises(InvalidRequest, match="send 0 to 2147483647"):
            await joined(member)
    assert (await ask(cluster, g.ListGroupsRequest())).error_code == 0


async def test_an_assignor_that_nobody_shares_and_an_instance_that_is_taken(cluster):
    """INCONSISTENT_GROUP_PROTOCOL names what the others offer; FENCED_INSTANCE_ID ends the older one."""
    async with consumer(cluster, "shared", group_instance_id="one", heartbeat_interval_ms=100) as member:
        await joined(member)
        async with consumer(cluster, "shared", partition_assignment_strategy="sticky") as other:
            with pytest.raises(InconsistentGroupProtocol, match="offer range or cooperative-sticky"):
                await joined(other)
        async with consumer(cluster, "shared", group_instance_id="one") as successor:
            with pytest.raises(FencedInstanceId, match="stop this one, or give each process"):
                while True:
                    await asyncio.gather(member.getmany(timeout_ms=50), successor.getmany(timeout_ms=50))


def test_an_empty_group_id_is_refused_before_anything_is_asked(cluster):
    """INVALID_GROUP_ID."""
    with pytest.raises(InvalidGroupId, match="give the group a name, or leave it out"):
        consumer(cluster, "")


async def test_the_command_line_says_the_same(cluster):
    """One sentence with Kafka's error on standard error, exit code 1 or 2, no traceback."""
    at = ("-b", cluster.bootstrap)

    async def told(*arguments: str, code: int = 1) -> str:
        return await asyncio.to_thread(run, *arguments, *at, code=code)

    said = await told("consume", "t", "--group", "cli", "--session-timeout-ms", "10")
    assert "INVALID_SESSION_TIMEOUT" in said
    assert "from 6000 to 1800000 is allowed" in said
    said = await told("consume", "t", "--group", TOO_LONG)
    assert "INVALID_GROUP_ID" in said
    assert "choose a shorter one" in said
    assert "give the group a name" in await told("consume", "t", "--group", "")
    assert "need a --group" in await told("consume", "t", "--instance-id", "one", code=2)
    async with consumer(cluster, "cli", group_instance_id="one", heartbeat_interval_ms=100) as member:
        await joined(member)
        said = await told("consume", "t", "--group", "cli", "--assignor", "sticky")
        assert "INCONSISTENT_GROUP_PROTOCOL" in said
        assert "offer range or cooperative-sticky" in said
        said = await told("groups", "reset-offsets", "cli", "--topic", "t", "--to-earliest", "--execute")
        assert "NON_EMPTY_GROUP" in said
        assert "stop its members first" in said
        assert "NON_EMPTY_GROUP" in await told("groups", "delete", "cli")
    assert "GROUP_ID_NOT_FOUND" in await told("groups", "describe", "nobody")
