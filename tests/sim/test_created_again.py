"""The production consumer while its topic is deleted and created again under the same name (issue 13).

It is cut off meanwhile, so that it learns of both at once. Before, it went on at its old position in the new topic, and passed
over the records that came before that.
"""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.client.structs import NewTopic
from minikafka.errors import UnknownTopicId
from minikafka.sim.cluster import SimCluster
from minikafka.types import TopicPartition
from tests.sim.cluster_kit import ORDERS, Client, simulated_orders
from tests.sim.group_kit import Worker

FORMER = [b"former %d" % number for number in range(5)]
PRESENT = [b"present %d" % number for number in range(9)]


def replace_topic(cluster: SimCluster, client: Client) -> None:
    """Delete and create the topic while the reader is cut off, and send more records than it has read."""
    cluster.sim.network.isolate("reader")
    client.run(client.admin.delete_topics([ORDERS.topic]))
    client.run(client.admin.create_topics([NewTopic(ORDERS.topic, 1, 3)]))
    client.send_all(PRESENT)
    cluster.sim.network.heal()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("group", [None, "classic", "consumer"])
def test_records_of_a_topic_that_was_created_again_are_all_read(group: str | None, reset: str) -> None:
    """In a group the offsets that it has committed are of the former topic, too."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all(FORMER)
        settings = {"auto_offset_reset": "earliest", "group_protocol": group or "classic", "group_id": group}
        worker = Worker(cluster, "reader", commits=group is not None, settings=settings)
        cluster.until(lambda: len(worker.values) == len(FORMER), 30.0, "the first records to be read")
        if reset == "latest":
            worker.consumer._positions._reset_policy = reset
        cluster.run_for(1.0)
        replace_topic(cluster, client)
        cluster.until(lambda: len(worker.values) == len(FORMER) + len(PRESENT), 60.0, "the new topic to be read")
        worker.end()
        assert list(worker.values) == FORMER + PRESENT
        if group is not None:
            found = client.run(client.admin.list_consumer_group_offsets(group))
            assert {name: each.offset for name, each in found.items()} == {ORDERS: len(PRESENT)}


def test_a_topic_that_was_seen_to_be_gone_is_read_from_its_first_record() -> None:
    """Without a group a consumer keeps its place in a topic that it does not find, or a reset to ``latest`` would pass over
    what was sent before it finds the new one.
    """
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all(FORMER)
        worker = Worker(cluster, "reader", commits=False, settings={"auto_offset_reset": "earliest", "group_id": None})
        cluster.until(lambda: len(worker.values) == len(FORMER), 30.0, "the first records to be read")
        worker.consumer._positions._reset_policy = "latest"
        client.run(client.admin.delete_topics([ORDERS.topic]))
        metadata = worker.consumer._running_metadata()
        cluster.until(lambda: metadata.view.partition_count(ORDERS.topic) is None, 60.0, "the reader to miss the topic")
        client.run(client.admin.create_topics([NewTopic(ORDERS.topic, 1, 3)]))
        client.send_all(PRESENT)
        cluster.until(lambda: len(worker.values) == len(FORMER) + len(PRESENT), 60.0, "the new topic to be read")
        worker.end()
        assert list(worker.values) == FORMER + PRESENT


def test_fetches_and_commits_name_the_topic_that_they_mean() -> None:
    """One that is under way while the topic is replaced then reaches no other topic: it is refused."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all(FORMER)
        worker = Worker(cluster, "reader", commits=False, settings={"enable_auto_commit": False})
        cluster.until(lambda: len(worker.values) == len(FORMER), 30.0, "the first records to be read")
        image = cluster.image()
        assert image is not None
        state = worker.consumer._positions.states[ORDERS]
        assert state.topic_id == image.topics[ORDERS.topic].topic_id
        fetcher, named = worker.consumer._fetcher, set()
        assert fetcher is not None
        call_leader = fetcher._metadata.call_leader

        async def noted(node: int, request: Any, *given: Any, **more: Any) -> Any:
            named.update(each.topic_id for each in request.partitions)
            return await call_leader(node, request, *given, **more)

        fetcher._metadata.call_leader = noted  # type: ignore[method-assign]
        client.send_all(PRESENT)
        cluster.until(lambda: len(worker.values) == len(FORMER) + len(PRESENT), 30.0, "more records to be read")
        assert named == {state.topic_id}
        state.topic_id = "AAECAwQFBgcICQoLDA0ODw"
        with pytest.raises(UnknownTopicId):
            cluster.run(worker.consumer.commit({ORDERS: 1}), node="reader")


def test_a_producer_that_lives_on_does_not_bring_deleted_topics_back() -> None:
    """It asks about each topic that it has ever sent to. Only a send creates a topic, and no other than its own."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send(b"former")
        client.run(client.admin.delete_topics([ORDERS.topic]))
        cluster.run_for(2 * client.producer.config.metadata_max_age_ms / 1000)
        client.send(b"x", TopicPartition("other", 0))
        topics = cluster.brokers[1].image.topics
        assert ORDERS.topic not in topics
        assert "other" in topics
        client.send(b"present")
        assert ORDERS.topic in cluster.brokers[1].image.topics
