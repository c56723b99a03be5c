"""The client's picture of the cluster only moves forward (S27)."""

from __future__ import annotations

import pytest

from minikafka.client.metadata import NOBODY, ClusterView, Leader
from minikafka.errors import InconsistentClusterId, UnknownTopicOrPartition
from minikafka.types import Address, TopicPartition
from minikafka.wire.messages import (
    CurrentLeader,
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
    NodeEndpoint,
)


def answer(*leaders: tuple[int, int], offset: int = 10, topic_id: str = "a", cluster: str = "c", error: int = 0):
    partitions = tuple(
        MetadataPartition(partition=index, leader_id=leader, leader_epoch=epoch)
        for index, (leader, epoch) in enumerate(leaders)
    )
    return MetadataResponse(
        cluster_id=cluster,
        controller_id=1,
        metadata_offset=offset,
        brokers=(MetadataBroker(node_id=1, host="a", port=1), MetadataBroker(node_id=2, host="b", port=2)),
        topics=(MetadataTopic(name="t", topic_id=topic_id, partitions=partitions, error_code=error),),
    )


def test_an_answer_is_taken_over():
    """S27: leaders, brokers and controller as told, and what changed is named."""
    view = ClusterView()
    update = view.update(answer((1, 5), (2, 7)), now=3.0)
    assert update.changed == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert view.leader("t", 1) == Leader(2, 7)
    assert view.brokers == {1: Address("a", 1), 2: Address("b", 2)}
    assert (view.controller_id, view.updated_at, view.partition_count("t")) == (1, 3.0, 2)
    assert view.update(answer((1, 5), (2, 7)), now=4.0).changed == ()


def test_an_older_answer_is_refused():
    """S27: a broker that lags behind must not bring a deposed leader back."""
    view = ClusterView()
    view.update(answer((2, 6), offset=20), now=1.0)
    assert not view.update(answer((1, 5), offset=19), now=2.0).accepted
    assert view.leader("t", 0) == Leader(2, 6)
    assert view.updated_at == 1.0


def test_a_hint_beats_metadata_of_an_older_epoch():
    """S27: NOT_LEADER named a newer leader; metadata that has not caught up does not undo that."""
    view = ClusterView()
    view.update(answer((1, 5)), now=1.0)
    endpoint = NodeEndpoint(node_id=9, host="n", port=9)
    assert view.learn_leader(TopicPartition("t", 0), CurrentLeader(leader_id=9, leader_epoch=6), [endpoint])
    assert not view.learn_leader(TopicPartition("t", 0), CurrentLeader(leader_id=1, leader_epoch=6))
    assert view.update(answer((1, 5), offset=11), now=2.0).changed == ()
    assert view.leader("t", 0) == Leader(9, 6)
    assert view.update(answer((2, 7), offset=12), now=3.0).changed == (TopicPartition("t", 0),)


@pytest.mark.parametrize(("topic_id", "is_news"), [("b", True), (None, True), ("a", False)])
def test_a_late_hint_about_the_former_topic_is_ignored(topic_id: str | None, is_news: bool):
    """S27: the former topic's epoch 5 would make the new topic's epochs, which begin with 0, look old for ever."""
    view = ClusterView()
    view.update(answer((1, 5)), now=1.0)
    view.update(answer((2, 0), offset=11, topic_id="b"), now=2.0)
    hint = CurrentLeader(leader_id=1, leader_epoch=5, topic_id=topic_id)
    assert view.learn_leader(TopicPartition("t", 0), hint) is is_news
    assert view.leader("t", 0) == (Leader(1, 5) if is_news else Leader(2, 0))


def test_a_topic_created_anew_starts_over():
    """S27: another topic id is another topic, whose epochs begin at 0 again."""
    view = ClusterView()
    view.update(answer((1, 5), (1, 5)), now=1.0)
    update = view.update(answer((2, 0), offset=11, topic_id="b"), now=2.0)
    assert view.leader("t", 0) == Leader(2, 0)
    assert view.leader("t", 1) == NOBODY
    assert set(update.changed) == {TopicPartition("t", 0), TopicPartition("t", 1)}


def test_a_deleted_topic_is_forgotten_and_the_reason_kept():
    """S27: UNKNOWN_TOPIC_OR_PARTITION in newer metadata removes the topic; other errors do not."""
    view = ClusterView()
    view.update(answer((1, 5)), now=1.0)
    view.update(answer(offset=11, error=5), now=2.0)
    assert view.leader("t", 0) == Leader(1, 5)
    view.update(answer(offset=12, error=3), now=3.0)
    assert view.partition_count("t") is None
    assert isinstance(view.errors["t"], UnknownTopicOrPartition)


def test_an_answer_about_all_topics_drops_those_not_named():
    """S27: what is not in a full answer does not exist."""
    view = ClusterView()
    view.update(answer((1, 5)), now=1.0)
    view.update(MetadataResponse(cluster_id="c", metadata_offset=11), now=2.0, all_topics=True)
    assert view.topics == {}
    assert view.brokers, "an answer without brokers says nothing about them"


def test_another_cluster_is_refused():
    """A wrong address must not silently send records to another cluster."""
    view = ClusterView()
    view.update(answer((1, 5)), now=1.0)
    with pytest.raises(InconsistentClusterId):
        view.update(answer((1, 5), cluster="d"), now=2.0)


def test_what_is_not_known_has_no_leader():
    """S27: unknown topics and partitions have no leader, negative ones included."""
    view = ClusterView()
    view.update(answer((1, 5)), now=1.0)
    assert view.leader("t", 1) == view.leader("t", -1) == view.leader("u", 0) == NOBODY
    assert repr(view) == "<cluster c metadata=10 controller=1 brokers=1,2 topics=1>"
