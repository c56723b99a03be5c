"""A whole cluster in virtual time: boots, elects, replicates, fails over. Times are those of the default settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from minikafka.client.producer import Producer
from minikafka.client.settings import ProducerConfig
from minikafka.client.structs import RecordMetadata
from minikafka.config import BrokerConfig
from minikafka.errors import NOT_WRITTEN, NotEnoughReplicas, NotLeaderOrFollower, RequestTimedOut
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Drop, Message
from minikafka.sim.world import SimWorld
from minikafka.types import TopicPartition
from minikafka.wire.codec import decode_request, find_api
from minikafka.wire.messages import ProducePartition, ProduceRequest, ProduceResponse
from minikafka.wire.records import BatchBuilder

SESSION_S = BrokerConfig().broker_session_timeout_ms / 1000
CLIENT = "client"


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Three brokers with default settings and a topic whose three partitions are led by one broker each."""
    with SimWorld(seed=11) as sim:
        cluster = SimCluster(sim, settings={"min.insync.replicas": "2"})
        cluster.boot()
        cluster.settle()
        cluster.create_topic("orders", partitions=3)
        cluster.settle()
        yield cluster


class Client:
    """A producer on a machine of its own."""

    def __init__(self, cluster: SimCluster, **settings: int) -> None:
        self.cluster = cluster
        self.world = cluster.sim.of(CLIENT)
        self.producer = Producer(ProducerConfig(bootstrap_servers=cluster.bootstrap, **settings), self.world)
        cluster.run(self.producer.start(), node=CLIENT)

    def send(self, partition: int, value: bytes = b"v") -> RecordMetadata:
        return self.cluster.run(self.producer.send_and_wait("orders", value, partition=partition), node=CLIENT)


def led_by(cluster: SimCluster, node: int) -> int:
    """A partition of orders that the broker leads."""
    return next(number for number in range(3) if cluster.leader_of(TopicPartition("orders", number)) == node)


def log_ends(cluster: SimCluster, name: TopicPartition) -> list[int]:
    """Of brokers 1, 2, 3."""
    replicas = [cluster.replica(node, name) for node in cluster.nodes]
    return [replica.log.end_offset if replica is not None else -1 for replica in replicas]


def isr_of(cluster: SimCluster, name: TopicPartition) -> tuple[int, ...]:
    state = cluster.partition(name)
    return state.isr if state is not None else ()


def timed(cluster: SimCluster, work: Callable[[], object]) -> float:
    """Virtual seconds."""
    began = cluster.sim.loop.time()
    work()
    return cluster.sim.loop.time() - began


def test_boots_elects_and_replicates(cluster: SimCluster) -> None:
    """Three brokers become a cluster within a second; a record acknowledged with acks=all is on all three (S16)."""
    assert cluster.sim.loop.time() < 2.0
    client = Client(cluster)
    for number in range(3):
        assert client.send(number).offset == 0
        assert client.send(number).offset == 1
    cluster.settle()
    for number in range(3):
        assert log_ends(cluster, TopicPartition("orders", number)) == [2, 2, 2]


def test_the_leader_dies(cluster: SimCluster) -> None:
    """kill -9 of a leader: the next acks=all produce succeeds within the session timeout plus a second (S19)."""
    client = Client(cluster)
    leader = next(node for node in cluster.nodes if node != cluster.controller())
    partition = led_by(cluster, leader)
    client.send(partition)
    cluster.crash(leader)
    took = timed(cluster, lambda: client.send(partition))
    assert took <= SESSION_S + 1.0
    state = cluster.partition(TopicPartition("orders", partition))
    assert state is not None
    # S19: the first of the assignment that is in the ISR and lives.
    assert state.leader == next(node for node in state.replicas if node != leader)


def test_the_leader_that_is_the_controller_dies(cluster: SimCluster) -> None:
    """kill -9 of a leader that is also the active controller: five seconds more, for the quorum's election."""
    client = Client(cluster)
    leader = cluster.controller()
    partition = led_by(cluster, leader)
    client.send(partition)
    cluster.crash(leader)
    took = timed(cluster, lambda: client.send(partition))
    assert took <= SESSION_S + 1.0 + 5.0
    assert cluster.controller() not in (leader, -1)


def test_a_dead_broker_returns(cluster: SimCluster) -> None:
    """The old leader comes back as a follower, catches up and joins the ISR again (S15, S19)."""
    client = Client(cluster)
    leader = next(node for node in cluster.nodes if node != cluster.controller())
    partition = led_by(cluster, leader)
    cluster.crash(leader)
    for _ in range(5):
        client.send(partition)
    cluster.restart(leader)
    cluster.settle()
    replica = cluster.replica(leader, TopicPartition("orders", partition))
    assert replica is not None
    assert replica.log.end_offset == 5
    assert cluster.leader_of(TopicPartition("orders", partition)) != leader


@pytest.mark.parametrize("is_controller", [False, True])
def test_controlled_shutdown(cluster: SimCluster, is_controller: bool) -> None:
    """SIGTERM: leaders move before the broker leaves: no send fails, the move takes under 300 ms."""
    client = Client(cluster, linger_ms=0)
    chosen = cluster.controller() if is_controller else next(n for n in cluster.nodes if n != cluster.controller())
    partition = led_by(cluster, chosen)
    name = TopicPartition("orders", partition)
    client.send(partition)
    slowest = 0.0

    async def send_on() -> int:
        nonlocal slowest
        sent = 0
        while not stopped():
            began = cluster.sim.loop.time()
            await client.producer.send_and_wait("orders", b"v", partition=partition)
            slowest = max(slowest, cluster.sim.loop.time() - began)
            sent += 1
            await asyncio.sleep(0.005)
        return sent

    broker = cluster.brokers[chosen]
    stopped = broker._stopped.is_set
    sending = cluster.sim.spawn(CLIENT, send_on())
    cluster.run_for(0.05)
    cluster.sim.spawn(f"n{chosen}", broker.stop())
    moved = cluster.until(lambda: cluster.leader_of(name) != chosen, 5.0, "the leader to move")
    cluster.until(sending.done, 60.0, "the broker to stop")
    assert sending.result() > 5
    assert moved < 0.3
    assert slowest < 0.3
    assert broker.failure is None


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_stopping_broker_ends_what_others_wait_for(cluster: SimCluster, is_controller: bool) -> None:
    """DESIGN (stopping): parked fetches of the metadata end at once; they do not cost the server's whole patience."""
    controller = cluster.controller()
    chosen = next(node for node in cluster.living() if (node == controller) is is_controller)
    cluster.brokers[chosen].hurry()
    began = cluster.sim.loop.time()
    cluster.stop(chosen)
    assert cluster.sim.loop.time() - began < 0.5


def test_a_paused_leader_acknowledges_nothing(cluster: SimCluster) -> None:
    """SIGSTOP past the session: what the old leader was told meanwhile is refused when it goes on, not acknowledged."""
    leader = next(node for node in cluster.nodes if node != cluster.controller())
    partition = led_by(cluster, leader)
    name = TopicPartition("orders", partition)
    world = cluster.asking_world()
    cluster.pause(leader)
    cluster.until(lambda: cluster.leader_of(name) not in (leader, -1), SESSION_S + 1.0, "another leader")

    async def tell(acks: int) -> ProduceResponse:
        builder = BatchBuilder()
        builder.append(world.clock.wall_ms(), None, b"told to the zombie")
        batch = bytes(builder.build())
        request = ProduceRequest(
            acks=acks, partitions=(ProducePartition(topic="orders", partition=partition, records=(batch,)),)
        )
        return await call(world.network, cluster.address_of(leader), request, cluster.sim.loop.time() + 60.0)  # type: ignore[no-any-return]

    told = [cluster.sim.spawn("script", tell(acks)) for acks in (1, -1)]
    cluster.run_for(1.0)
    cluster.resume(leader)
    cluster.until(lambda: all(each.done() for each in told), 10.0, "the zombie to answer")
    for each in told:
        answer = each.result().partitions[0]
        assert (answer.error_code, answer.outcome) == (NotLeaderOrFollower.code, NOT_WRITTEN)
    cluster.settle()
    assert log_ends(cluster, name) == [0, 0, 0]


def test_too_few_in_sync_replicas(cluster: SimCluster) -> None:
    """acks=all with the ISR below min.insync.replicas: NOT_ENOUGH_REPLICAS, outcome not written (S24)."""
    client = Client(cluster, delivery_timeout_ms=4000, request_timeout_ms=2000)
    leader = cluster.controller()
    partition = led_by(cluster, leader)
    client.send(partition)
    others = [node for node in cluster.nodes if node != leader]
    cluster.crash(others[0])
    name = TopicPartition("orders", partition)
    cluster.until(lambda: len(isr_of(cluster, name)) == 2, 20.0, "the ISR to shrink")
    client.send(partition)
    # The other one only stops replicating: the quorum keeps its majority.
    with pytest.raises(NotEnoughReplicas) as refused:
        _lose_follower(cluster, client, partition, others[1])
    assert refused.value.outcome == NOT_WRITTEN


def _lose_follower(cluster: SimCluster, client: Client, partition: int, follower: int) -> None:
    """Delete the follower's fetches of user partitions until it leaves the ISR, then send."""

    def drop_fetches(message: Message) -> Drop | None:
        if message.api != "Fetch" or message.kind != "request" or message.source != f"n{follower}":
            return None
        request = decode_request(find_api("Fetch"), message.body)
        return Drop() if any(each.topic == "orders" for each in request.partitions) else None  # type: ignore[attr-defined]

    cluster.sim.network.rule(drop_fetches)
    lagging = cluster.run(client.producer.send("orders", b"lags behind", partition=partition), node=CLIENT)
    name = TopicPartition("orders", partition)
    cluster.until(lambda: isr_of(cluster, name) == (cluster.leader_of(name),), 60.0, "the ISR to shrink")
    assert isinstance(lagging.exception(), RequestTimedOut)
    client.send(partition)
