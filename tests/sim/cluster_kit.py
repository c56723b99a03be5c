"""Short words for tests of whole clusters: a cluster, a client on a machine of its own, what a replica holds."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from minikafka.client.admin import AdminClient
from minikafka.client.producer import Producer
from minikafka.client.settings import AdminConfig, ProducerConfig
from minikafka.client.structs import RecordMetadata
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.sim.world import SimWorld
from minikafka.types import NodeId, TopicId, TopicPartition
from minikafka.wire.batch import split
from minikafka.wire.messages import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse
from minikafka.wire.records import BatchBuilder, decode_batch

T = TypeVar("T")

ORDERS = TopicPartition("orders", 0)


@contextmanager
def simulated(
    seed: object = 11, *, brokers: int = 3, voters: int | None = None, **settings: str
) -> Iterator[SimCluster]:
    """A cluster that is up; names of settings have ``_`` for ``.``."""
    with SimWorld(seed) as sim:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        cluster = SimCluster(sim, brokers=brokers, voters=voters, settings={"min.insync.replicas": "2", **given})
        cluster.boot()
        cluster.settle()
        yield cluster


@contextmanager
def simulated_orders(seed: object = 11, *, partitions: int = 1, **given: Any) -> Iterator[SimCluster]:
    """The same with the topic orders, on all brokers."""
    with simulated(seed, **given) as cluster:
        cluster.create_topic("orders", partitions=partitions)
        cluster.settle()
        yield cluster


class Client:
    """A producer and an admin client on one machine."""

    def __init__(self, cluster: SimCluster, name: str = "client", **settings: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.world = cluster.sim.of(name)
        config = ProducerConfig(bootstrap_servers=cluster.bootstrap, client_id=name, **settings)
        self.producer = Producer(config, self.world)
        self.admin = AdminClient(AdminConfig(bootstrap_servers=cluster.bootstrap), self.world)
        self.run(self.producer.start())
        self.run(self.admin.start())

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run its code to the end."""
        return self.cluster.run(coro, node=self.name)

    def send(self, value: bytes, name: TopicPartition = ORDERS) -> RecordMetadata:
        """One record, acknowledged."""
        return self.run(self.producer.send_and_wait(name.topic, value, partition=name.partition))

    def send_all(self, values: Sequence[bytes], name: TopicPartition = ORDERS) -> None:
        """Records one after the other, each acknowledged before the next."""
        for value in values:
            self.send(value, name)

    def tell(
        self, node: NodeId, value: bytes, *, acks: int, name: TopicPartition = ORDERS, topic_id: TopicId | None = None
    ) -> ProducedPartition:
        """One produce request to one broker, whoever leads; its answer for the partition."""

        async def ask() -> ProduceResponse:
            builder = BatchBuilder()
            builder.append(self.world.clock.wall_ms(), None, value)
            item = ProducePartition(
                topic=name.topic, topic_id=topic_id, partition=name.partition, records=(bytes(builder.build()),)
            )
            request = ProduceRequest(acks=acks, timeout_ms=5000, partitions=(item,))
            deadline = self.world.clock.now() + 10.0
            return await call(self.world.network, self.cluster.address_of(node), request, deadline)  # type: ignore[no-any-return]

        return self.run(ask()).partitions[0]


def values(cluster: SimCluster, node: NodeId, name: TopicPartition = ORDERS) -> list[bytes]:
    """Every record in a replica's log, from its start to its end."""
    replica = cluster.replica(node, name)
    if replica is None:
        return []
    found: list[bytes] = []
    log = replica.log
    offset = log.start_offset
    while offset < log.end_offset:
        part = log.read(offset, max_bytes=1 << 20)
        for batch in (batch for buffer in part.buffers for batch in split(buffer)):
            found += [each.value or b"" for each in decode_batch(batch) if each.offset >= log.start_offset]
        offset = part.next_offset
    return found


def on_disk(cluster: SimCluster, node: NodeId, folder: str, suffix: str = "") -> list[str]:
    """Names of files in a folder of a broker's data directory."""
    files = cluster.sim.disk(f"n{node}").files()
    return [path.partition("/")[2] for path in files if path.startswith(f"{folder}/") and path.endswith(suffix)]


def folders(cluster: SimCluster, node: NodeId) -> list[str]:
    """Folders of a broker's data directory."""
    return sorted({path.partition("/")[0] for path in cluster.sim.disk(f"n{node}").files() if "/" in path})


def a_follower(cluster: SimCluster, name: TopicPartition = ORDERS) -> NodeId:
    """A replica that neither leads the partition nor is the active controller, if there is such a one."""
    state = cluster.partition(name)
    others = [node for node in state.replicas if node != state.leader] if state is not None else []
    return next((node for node in others if node != cluster.controller()), others[0])


def facts_of(cluster: SimCluster, kind: str, node: NodeId | None = None) -> list[Mapping[str, object]]:
    """What was told under this name, by a broker or by all."""
    return [
        event.facts
        for event in cluster.sim.journal
        if event.kind == kind and (node is None or event.node == f"n{node}")
    ]


def both_are_back(cluster: SimCluster, *nodes: int) -> None:
    """They have been let in, each in its present life, and the controller has had time for an election."""
    cluster.run_for(20.0)
    image = cluster.image()
    assert image is not None
    assert {node: image.eligible(node) for node in nodes} == dict.fromkeys(nodes, True)
    assert {node: image.brokers[node].broker_epoch for node in nodes} == {
        node: cluster.brokers[node].broker_epoch for node in nodes
    }
