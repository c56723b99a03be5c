"""A cluster of one, with its one quirk: nobody else can tell that it died."""

from __future__ import annotations

import pytest

from minikafka.broker.broker import Broker
from minikafka.config import BrokerConfig
from minikafka.errors import InvalidConfig
from minikafka.sim.world import SimWorld

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAg"


def boot(sim: SimWorld) -> Broker:
    """Start the node's next incarnation."""
    config = BrokerConfig(
        node_id=1, cluster_id=CLUSTER_ID, listeners="PLAINTEXT://n1:9092", advertised_listeners="", insecure=True
    )
    broker = Broker(config, sim.of("n1"))

    async def start() -> None:
        await broker.start()
        await broker.wait_ready(60)

    task = sim.spawn("n1", start())
    assert sim.run_until(sim.loop.now + 60, task.done)
    task.result()
    return broker


def test_a_lone_broker_is_back_at_once_after_kill_9():
    """Its former incarnation's session is dead by the lock on the data directory: waiting it out would be nine seconds
    of nothing for everyone who runs one broker in a test.
    """
    with SimWorld(3) as sim:
        boot(sim)
        assert sim.loop.now < 1
        sim.kill("n1")
        again = sim.loop.now
        boot(sim)
        assert sim.loop.now - again < 1


@pytest.mark.parametrize(
    "text, sentence",
    [
        (b"version=2\ncluster.id=c\nnode.id=1\n", "version=2, this program understands version=1"),
        (b"version=1\ncluster.id=c\nnode.id=1\nmk.data.format.version=9\n", "has format 9, .* newer minikafka"),
    ],
)
def test_a_data_directory_of_another_format_is_refused_before_anything_is_opened(text: bytes, sentence: str):
    """DESIGN, risks: opening a newer format is refused with a sentence, also where no cluster.id is set."""
    with SimWorld(3) as sim:
        world = sim.of("n1")
        broker = Broker(BrokerConfig(node_id=1, listeners="PLAINTEXT://n1:9092", insecure=True), world)

        async def start() -> None:
            await world.disk.publish("meta.properties", text)
            with pytest.raises(InvalidConfig, match=sentence):
                await broker.start()

        task = sim.spawn("n1", start())
        assert sim.run_until(sim.loop.now + 60, task.done)
        task.result()
