"""What must not depend on the calendar, which people and NTP set: only its owner's monotonic clock counts there."""

from __future__ import annotations

from minikafka.rpc import call
from minikafka.wire import messages as m
from minikafka.wire.records import Record, build_batch
from tests.sim.cluster_kit import ORDERS, Client, simulated, values

TWO_DAYS_S = 2 * 86_400.0


def test_idle_producers_are_not_forgotten_when_the_calendar_jumps() -> None:
    """producer.id.expiration.ms counts how long a producer was silent. A calendar set two days ahead made every producer look idle for so long, and
    a batch that was sent again, since its answer was lost, was written twice.
    """
    with simulated(brokers=1, min_insync_replicas="1", log_retention_ms="-1") as cluster:
        cluster.create_topic(ORDERS.topic, producer_id_expiration_ms="3600000")
        client = Client(cluster)
        batch = build_batch(
            [Record(0, client.world.clock.wall_ms(), 0, None, b"once")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
        )
        item = m.ProducePartition(topic=ORDERS.topic, partition=ORDERS.partition, records=(batch,))

        async def send() -> m.ProducedPartition:
            deadline = client.world.clock.now() + 10.0
            response: m.ProduceResponse = await call(
                client.world.network, cluster.address_of(1), m.ProduceRequest(partitions=(item,)), deadline
            )
            return response.partitions[0]

        assert not client.run(send()).duplicate
        cluster.run_for(700.0)  # retention has looked
        cluster.sim.jump_clock("n1", TWO_DAYS_S)
        cluster.run_for(700.0)  # and once more
        assert client.run(send()).duplicate
        assert values(cluster, 1) == [b"once"]
        cluster.run_for(4200.0)
        assert not cluster.brokers[1].partitions[ORDERS].log.producers.last_sequences(), "an hour of silence is one"
