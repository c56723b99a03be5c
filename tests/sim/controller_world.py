"""A controller without a network: a quorum of one that commits when the test says so, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from minikafka.broker import controller_driver
from minikafka.broker.controller_driver import ControllerDriver
from minikafka.broker.metadata import MetadataCache
from minikafka.config import BrokerConfig
from minikafka.errors import NotController, ProtocolError, RecordListTooLarge
from minikafka.quorum.image import BrokerImage, PartitionImage
from minikafka.sim.world import SimWorld
from minikafka.types import Address, Epoch, NodeId, Offset, TopicPartition
from minikafka.wire.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    NewTopic,
)

CLUSTER_ID = "cluster"
ME = 1
# What a commit takes: all that comes meanwhile waits for the next batch.
COMMIT_S = 0.005


class FakeQuorum:
    """Commits each append at once, unless it is held or broken. Offsets skip one at each election, as in the real log."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.metadata = metadata
        self.end = 0
        self.epoch = 0
        self.last_contact: Mapping[NodeId, float] = {}
        self.heard_at = float("inf")
        """When a majority last followed it; inf: it does now."""
        self.resumed_at = float("-inf")
        """When a majority was heard again after an interruption; -inf: there was none."""
        self.batches: list[int] = []
        self.failure: ProtocolError | None = None
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    def majority_heard_at(self) -> float:
        return self.heard_at

    def majority_resumed_at(self) -> float:
        return self.resumed_at

    def lead(self, epoch: Epoch) -> None:
        """This node is elected, and has committed the control record of its epoch."""
        self.elect(epoch)
        self.catch_up()

    def elect(self, epoch: Epoch) -> None:
        """This node is elected; whether all that came before is committed and applied, it does not know yet."""
        self.epoch = epoch
        self.end += 1
        self.metadata.on_leader(ME, epoch, i_lead=False)

    def catch_up(self) -> None:
        """It does now."""
        self.metadata.on_leader(ME, self.epoch, i_lead=True)

    def lose(self, leader: NodeId = 2) -> None:
        self.epoch += 1
        self.metadata.on_leader(leader, self.epoch, i_lead=False)

    async def append(self, payloads: Sequence[bytes], *, epoch: Epoch) -> Offset:
        if self.epoch != epoch:
            raise NotController("deposed")
        if self.failure is not None:
            raise self.failure
        if sum(map(len, payloads)) > controller_driver.METADATA_BATCH_BYTES_MAX:
            raise RecordListTooLarge(f"{len(payloads)} metadata records are too large")
        base, self.end = self.end, self.end + len(payloads)
        self.batches.append(len(payloads))
        await asyncio.sleep(COMMIT_S)
        await self.may_commit.wait()
        if self.epoch != epoch:
            raise NotController("deposed", outcome="unknown")
        self.metadata.on_commit(base, epoch, payloads)
        return base + len(payloads)


class ControllerWorld:
    """The driver under test with what it stands on, and a few words to speak to it."""

    def __init__(self, sim: SimWorld, **settings: object) -> None:
        self.sim = sim
        self.world = sim.of("n1")
        self.metadata = MetadataCache(CLUSTER_ID, self.world.events)
        self.quorum = FakeQuorum(self.metadata)
        config = BrokerConfig(node_id=ME, **settings)  # type: ignore[arg-type]
        self.silent: set[Address] = set()
        """Addresses at which nobody answers."""
        self.driver = ControllerDriver(config, self.world, self.quorum, self.metadata, self.spawn, answers=self.answers)
        self.incarnations = 0
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(self.sim.spawn("n1", coroutine))
        return self.tasks[-1]

    async def answers(self, address: Address) -> bool:
        """What the driver is told when it tries an address."""
        return address not in self.silent

    def now(self) -> float:
        return self.world.clock.now()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.sim.journal]

    def facts(self, kind: str) -> list[Mapping[str, object]]:
        return [event.facts for event in self.sim.journal if event.kind == kind]

    def broker(self, node: NodeId) -> BrokerImage:
        return self.metadata.image.brokers[node]

    def partition(self, topic: str = "t", number: int = 0) -> PartitionImage:
        partition = self.metadata.image.partition(TopicPartition(topic, number))
        assert partition is not None
        return partition

    # ---- requests ----

    async def register(self, node: NodeId, incarnation: str = "", *, offset: Offset = -1, previous: int = -1) -> int:
        self.incarnations += 1
        request = BrokerRegistrationRequest(
            broker_id=node,
            cluster_id=CLUSTER_ID,
            incarnation_id=incarnation or f"i{self.incarnations}",
            host="127.0.0.1",
            port=9090 + node,
            current_metadata_offset=offset,
            previous_broker_epoch=previous,
            min_insync_replicas=self.driver.config.min_insync_replicas,
        )
        response = await self.driver.handle(request)
        return cast("int", response.broker_epoch)

    async def beat(
        self, node: NodeId, *, offset: Offset | None = None, leaving: bool = False
    ) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=node,
            broker_epoch=self.broker(node).broker_epoch,
            current_metadata_offset=self.metadata.image.offset if offset is None else offset,
            want_shut_down=leaving,
        )
        return cast("BrokerHeartbeatResponse", await self.driver.handle(request))

    async def join(self, *nodes: NodeId) -> None:
        """Register and unfence brokers."""
        for node in nodes:
            await self.register(node)
            assert not (await self.beat(node)).is_fenced

    async def create(self, *names: str, partitions: int = 1, factor: int = 1) -> CreateTopicsResponse:
        topics = tuple(NewTopic(name=name, num_partitions=partitions, replication_factor=factor) for name in names)
        return cast("CreateTopicsResponse", await self.driver.handle(CreateTopicsRequest(topics=topics)))


def play(story: Callable[[ControllerWorld], Awaitable[None]], **settings: object) -> SimWorld:
    """Run a story about one controller; it begins before any election."""
    with SimWorld(seed=7) as sim:
        world = ControllerWorld(sim, **settings)

        async def script() -> None:
            await world.driver.start()
            await story(world)

        sim.run(script())
    return sim
