"""The administrator of groups on a simulated cluster: several partitions at once are changed all, or each is told of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from minikafka.cli.group_changes import _move
from minikafka.cli.running import Failure
from minikafka.client.structs import OffsetsPartlyChanged
from minikafka.errors import GroupSubscribedToTopic, NonEmptyGroup, UnknownTopicOrPartition
from minikafka.sim.cluster import SimCluster
from minikafka.types import TopicPartition
from tests.sim.cluster_kit import Client, simulated
from tests.sim.group_kit import Worker, shared

GROUP = "g"
ORDERS, REFUNDS, GONE = (TopicPartition(topic, 0) for topic in ("orders", "refunds", "gone"))
FAR = TopicPartition("orders", 7)


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Three brokers, two topics."""
    with simulated(offsets_topic_num_partitions="4", group_initial_rebalance_delay_ms="0") as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("refunds")
        cluster.settle()
        yield cluster


def committed(client: Client) -> dict[TopicPartition, int]:
    found = client.run(client.admin.list_consumer_group_offsets(GROUP))
    return {partition: each.offset for partition, each in found.items()}


def blind(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the admin client looks at first changes between that look and the change."""

    async def sees_nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(client.admin, name, sees_nothing)


@pytest.mark.parametrize("wrong", [GONE, FAR])
def test_offsets_of_what_is_not_there_keep_all_from_being_committed(cluster: SimCluster, wrong: TopicPartition):
    """Bad input never half-applies: the others are left alone, whatever the order."""
    client = Client(cluster)
    client.run(client.admin.alter_consumer_group_offsets(GROUP, {ORDERS: 1}))
    with pytest.raises(UnknownTopicOrPartition, match="nothing was committed") as caught:
        client.run(client.admin.alter_consumer_group_offsets(GROUP, {ORDERS: 5, wrong: 5, REFUNDS: 5}))
    assert caught.value.outcome == "not_written"
    assert committed(client) == {ORDERS: 1}


def test_offsets_of_what_goes_just_then_are_told_by_partition(cluster: SimCluster, monkeypatch: pytest.MonkeyPatch):
    """A topic is deleted between the look and the commit: what was done, what not, and why."""
    client = Client(cluster)
    blind(client, "_check_there", monkeypatch)
    with pytest.raises(OffsetsPartlyChanged, match="committed: orders-0, refunds-0; not committed: gone-0") as caught:
        client.run(client.admin.alter_consumer_group_offsets(GROUP, {ORDERS: 5, GONE: 5, REFUNDS: 5}))
    assert caught.value.done == (ORDERS, REFUNDS)
    assert {name: type(error) for name, error in caught.value.refused.items()} == {GONE: UnknownTopicOrPartition}
    assert committed(client) == {ORDERS: 5, REFUNDS: 5}
    with pytest.raises(UnknownTopicOrPartition, match=r"gone-0: .*; orders-7: ") as whole:
        client.run(client.admin.alter_consumer_group_offsets(GROUP, {GONE: 5, FAR: 5}))
    assert whole.value.outcome == "not_written"


def reading(cluster: SimCluster, client: Client) -> Worker:
    """A member reads orders; for refunds the group has committed, and nobody reads it."""
    client.run(client.admin.alter_consumer_group_offsets(GROUP, {ORDERS: 0, REFUNDS: 3}))
    worker = Worker(cluster, "c0")
    cluster.until(lambda: shared([worker], 1), 60.0, "it to read")
    return worker


def test_offsets_that_somebody_reads_keep_all_from_being_forgotten(cluster: SimCluster):
    """Several topics in one call: GROUP_SUBSCRIBED_TO_TOPIC, and nothing is gone."""
    client = Client(cluster)
    worker = reading(cluster, client)
    with pytest.raises(NonEmptyGroup):
        client.run(client.admin.alter_consumer_group_offsets(GROUP, {REFUNDS: 1}))
    with pytest.raises(GroupSubscribedToTopic, match="read orders: nothing was forgotten"):
        client.run(client.admin.delete_consumer_group_offsets(GROUP, [REFUNDS, ORDERS]))
    assert committed(client) == {ORDERS: 0, REFUNDS: 3}
    client.run(client.admin.delete_consumer_group_offsets(GROUP, [REFUNDS]))
    assert committed(client) == {ORDERS: 0}
    worker.end()


def test_offsets_that_somebody_reads_just_then_are_told_by_partition(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
):
    """Somebody subscribes between the look and the change."""
    client = Client(cluster)
    worker = reading(cluster, client)
    blind(client, "_check_unread", monkeypatch)
    with pytest.raises(
        OffsetsPartlyChanged, match="forgotten: refunds-0; not forgotten: orders-0: GROUP_SUB"
    ) as caught:
        client.run(client.admin.delete_consumer_group_offsets(GROUP, [REFUNDS, ORDERS]))
    assert (caught.value.done, caught.value.outcome) == ((REFUNDS,), "unknown")
    assert [each.outcome for each in caught.value.refused.values()] == ["not_written"]
    assert committed(client) == {ORDERS: 0}
    worker.end()


class ScriptedAdmin:
    """Moves groups until one is refused."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.moved: list[str] = []

    async def alter_consumer_group_offsets(self, group: str, _offsets: Any) -> None:
        if group == self.refused:
            raise NonEmptyGroup(f"group {group} has members since")
        self.moved.append(group)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        (("a", "b", "c"), "b: NON_EMPTY_GROUP: group b has members since; moved before: a; not tried: c"),
        (("a", "b"), "moved before: a; not tried: none"),
    ],
)
async def test_a_reset_of_all_groups_that_fails_on_the_way_names_those_that_were_moved(
    groups: Sequence[str], told: str
):
    """``groups reset-offsets --all-groups``: members may come between the look at all groups and the change of one."""
    admin = ScriptedAdmin("b")
    with pytest.raises(Failure, match=told):
        await _move(admin, {group: {ORDERS: 1} for group in groups})  # type: ignore[arg-type]
    assert admin.moved == ["a"]
