"""Two processes with one node id: only the one that is registered speaks for it (KIP-903)."""

from __future__ import annotations

import asyncio

from minikafka.rpc import call
from minikafka.sim.cluster import CLUSTER_ID
from minikafka.wire import messages as m
from tests.sim.cluster_kit import ORDERS, Client, a_follower, facts_of, simulated


def test_fetches_of_a_replaced_process_do_not_speak_for_the_one_that_replaced_it() -> None:
    """A follower was told that its broker epoch is over, and went on fetching with none: which is not compared with
    anything. Its log brought the broker id back into the ISR, while the process that is registered holds nothing.
    """
    with simulated(min_insync_replicas="1") as cluster:
        cluster.create_topic(ORDERS.topic)
        cluster.settle()
        client = Client(cluster)
        client.send_all([b"1", b"2"])
        follower = a_follower(cluster)
        controller = cluster.address_of(cluster.controller())
        image = cluster.image()
        assert image is not None
        present = image.brokers[follower]
        network, clock = client.world.network, client.world.clock

        async def replace_it() -> None:
            register = m.BrokerRegistrationRequest(
                broker_id=follower,
                cluster_id=CLUSTER_ID,
                incarnation_id="AAAAAAAAAAAAAAAAAAAAAg",
                host="elsewhere",
                port=9092,
                previous_broker_epoch=present.broker_epoch,
            )
            told: m.BrokerRegistrationResponse = await call(network, controller, register, clock.now() + 5)
            assert told.error_code == 0
            for _ in range(40):
                beat = m.BrokerHeartbeatRequest(
                    broker_id=follower, broker_epoch=told.broker_epoch, current_metadata_offset=1 << 40
                )
                answer: m.BrokerHeartbeatResponse = await call(network, controller, beat, clock.now() + 5)
                assert answer.error_code == 0
                await asyncio.sleep(0.5)

        client.run(replace_it())
        assert facts_of(cluster, "session_lost", follower)
        after = cluster.image()
        assert after is not None
        assert after.eligible(follower), "the new process is there"
        state = cluster.partition(ORDERS)
        assert state is not None
        assert follower not in state.isr
