"""The production consumer while its topic is deleted and created again under the same name (issue 13).

It is cut off meanwhile, so that it learns of both at once. Before, it went on at its old position in the new topic, and passed
over the records that came before that.
"""

from __future__ import annotations

import pytest

from minikafka.client.structs import NewTopic
from minikafka.sim.cluster import SimCluster
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
