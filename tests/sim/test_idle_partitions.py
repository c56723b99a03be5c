"""A consumer that reads from a busy partition beside idle ones of the same leader."""

from __future__ import annotations

from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.types import TopicPartition
from tests.sim.cluster_kit import Client, simulated_orders

RECORDS = 60
IDLE = 4


def test_records_of_one_partition_do_not_wait_for_long_polls_of_idle_ones() -> None:
    """Each fetch brings one record. The idle partitions came to their ends one after the other, so that each has a
    long poll of its own: before, two of them were all that a broker got, and a fetch with a record waited half a second.
    """
    with simulated_orders(brokers=1, partitions=1 + IDLE, min_insync_replicas="1") as cluster:
        client = Client(cluster)
        names = [TopicPartition("orders", number) for number in range(1 + IDLE)]
        for number, name in enumerate(names):
            client.send_all([b"v"] * (number or RECORDS), name)
        settings = ConsumerConfig(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=1
        )
        consumer = Consumer(settings, client.world)
        client.run(consumer.start())
        consumer.assign(names)
        began, read = cluster.sim.loop.time(), 0
        while read < RECORDS + sum(range(1 + IDLE)):
            client.run(consumer.getone())
            read += 1
        assert cluster.sim.loop.time() - began < 2.0
        client.run(consumer.stop())
