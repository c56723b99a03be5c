"""A whole cluster in one simulation, and the small language that tests and plans speak about it.

Everything here is called from outside the loop: verbs change the world at the present instant, ``until`` lets time pass
until something holds. Brokers are the production class; what dies is what ``kill -9`` or a power cut kills.

Rules for this file: it drives and looks, it checks nothing (``invariants.py`` does); nodes are visited in sorted order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from minikafka.broker.broker import Broker
from minikafka.config import BrokerConfig, parse_broker
from minikafka.errors import BY_CODE, ProtocolError, TopicAlreadyExists, WorldError, error_of
from minikafka.invariant import invariant
from minikafka.ports import World
from minikafka.quorum.image import MetadataImage, PartitionImage
from minikafka.replication.partition import Partition
from minikafka.rpc import call
from minikafka.sim.world import SimWorld
from minikafka.types import NO_NODE, Address, NodeId, TopicPartition
from minikafka.wire.messages import CreateTopicsRequest, CreateTopicsResponse, NewTopic

T = TypeVar("T")

CLUSTER_ID = "c2ltdWxhdGVkY2x1c3Rlcg"
PORT = 9092
CLIENTS, CLIENTS_PORT = "CLIENTS", 9093
"""The listener that is checked, where a plan has an authorizer."""
SCRIPT = "script"
"""The node from which the language itself asks brokers for things."""

BOOT_S = 30.0
"""Virtual seconds that a healthy cluster of any shape needs at most until everybody is ready."""


class NotReached(Exception):
    """What was waited for did not come about in the time given."""


def node_name(node: NodeId) -> str:
    """The simulated machine of a broker."""
    return f"n{node}"


def _has_loaded(broker: Broker) -> bool:
    """Its data; all that it consists of is made at one instant then."""
    return hasattr(broker, "replicas")


class SimCluster:
    """Brokers 1 to ``brokers`` of one simulation; the first ``voters`` of them form the quorum."""

    def __init__(
        self,
        sim: SimWorld,
        *,
        brokers: int = 3,
        voters: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.sim = sim
        self.nodes: tuple[NodeId, ...] = tuple(range(1, brokers + 1))
        self._names = {node: node_name(node) for node in self.nodes}
        self.voters = self.nodes[: voters or brokers]
        self.settings = dict(settings or {})
        self._configs: dict[NodeId, BrokerConfig] = {}
        self.brokers: dict[NodeId, Broker] = {}
        """The newest incarnation of each; see :meth:`alive`."""
        self._asking: World | None = None
        self.on_boot: Callable[[Broker], None] = lambda _: None
        """Called with each new process of a broker, before it starts."""

    # ------------------------------------------------------------------------------------- verbs

    def boot(self, *nodes: NodeId) -> None:
        """Start processes of ``nodes`` (none named: all)."""
        for node in nodes or self.nodes:
            name = node_name(node)
            world = self.sim.of(name)
            broker = self.brokers[node] = Broker(self.config_of(node), world)
            self.on_boot(broker)
            self.sim.spawn(name, self._live(broker))

    @staticmethod
    async def _live(broker: Broker) -> None:
        """What ``minikafka serve`` does, as far as the simulation can see."""
        try:
            await broker.start()
        except (WorldError, ProtocolError) as error:
            broker.failure = f"it did not start: {error}"
            broker.world.events("broker_failed", node=broker.node_id, why=broker.failure)
            broker._stopped.set()
            return
        await broker.wait_stopped()

    def restart(self, node: NodeId) -> None:
        """Start the process again, if there is none or it has ended by itself."""
        if not self.alive(node) or self._has_stopped(node):
            self.boot(node)

    def _has_stopped(self, node: NodeId) -> bool:
        return self.brokers[node]._stopped.is_set()

    def crash(self, node: NodeId) -> None:
        """Kill -9."""
        self.sim.kill(node_name(node))

    def power_cut(self, *nodes: NodeId) -> None:
        """Cut the power of machines: what was not synced is lost, but for a drawn part."""
        self.sim.power_cut(*map(node_name, nodes))

    def stop(self, node: NodeId, within_s: float = 60.0) -> None:
        """SIGTERM, and wait for the end: controlled shutdown."""
        broker = self.brokers[node]
        self.sim.spawn(node_name(node), broker.stop())
        self.until(lambda: self._has_stopped(node), within_s, f"broker {node} to stop")
        self.sim.kill(node_name(node))

    def pause(self, node: NodeId) -> None:
        """SIGSTOP."""
        if self.alive(node):
            self.sim.pause(node_name(node))

    def resume(self, node: NodeId) -> None:
        """SIGCONT."""
        if node in self.brokers:
            self.sim.resume(node_name(node))

    def wipe(self, node: NodeId) -> None:
        """A dead machine gets an empty disk."""
        invariant(not self.alive(node), "only a dead machine's disk is replaced", node=node)
        self.sim.disk(node_name(node)).wipe()
        self.sim.tell("disk_wiped", node_name(node))

    def cut(self, source: NodeId, target: NodeId) -> None:
        """Lose everything from one broker to another, one way."""
        self.sim.network.cut(node_name(source), node_name(target))

    def cut_off(self, node: NodeId) -> None:
        """Lose everything from and to a broker."""
        self.sim.network.isolate(node_name(node))

    def heal(self) -> None:
        """Undo every cut and let go what was held back."""
        self.sim.network.heal()
        self.sim.network.release()

    # ------------------------------------------------------------------------------------- time

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.sim.run_until(self.sim.loop.time() + seconds)

    def until(self, met: Callable[[], bool], within_s: float, what: str) -> float:
        """Let time pass until ``met()``; the virtual seconds that it took. Raises NotReached with who stands where."""
        began = self.sim.loop.time()
        if not self.sim.run_until(began + within_s, met):
            raise NotReached(f"waited {within_s} s for {what}\n{self.table()}")
        return self.sim.loop.time() - began

    def run(self, coro: Coroutine[Any, Any, T], *, node: str = SCRIPT) -> T:
        """Run a client's code on a machine of its own to its end."""
        if node == SCRIPT:
            self.asking_world()
        task = self.sim.spawn(node, coro)
        self.sim.run_until(None, task.done)
        invariant(task.done(), "the script came to its end", node=node)
        return task.result()

    def settle(self, within_s: float = BOOT_S) -> float:
        """Wait until every living broker is ready and every partition whole; the virtual seconds that it took."""
        return self.until(self.is_settled, within_s, "the cluster to settle")

    # ------------------------------------------------------------------------------------- looking

    def config_of(self, node: NodeId) -> BrokerConfig:
        """A broker's settings."""
        config = self._configs.get(node)
        if config is None:
            config = self._configs[node] = self._parsed_config(node)
        return config

    def _parsed_config(self, node: NodeId) -> BrokerConfig:
        voters = ",".join(f"{voter}@{node_name(voter)}:{PORT}" for voter in self.voters)
        given = {
            "node.id": str(node),
            "cluster.id": CLUSTER_ID,
            "process.roles": "broker,controller" if node in self.voters else "broker",
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{node_name(node)}:{PORT}",
            "mk.insecure": "true",
            # Off unless a plan says otherwise: plans that are kept were recorded without them.
            "mk.fence.on.refused.connection": "false",
            "mk.group.consumer.heartbeats.per.second": "0",
        }
        if "authorizer.class.name" in self.settings:
            given["listeners"] += f",{CLIENTS}://{node_name(node)}:{CLIENTS_PORT}"
            given["inter.broker.listener.name"] = "PLAINTEXT"
        return parse_broker({**given, **self.settings}).config

    def address_of(self, node: NodeId) -> Address:
        """Where a broker listens."""
        return Address(node_name(node), PORT)

    @property
    def bootstrap(self) -> str:
        """For clients."""
        return ",".join(f"{node_name(node)}:{PORT}" for node in self.nodes)

    def alive(self, node: NodeId) -> bool:
        """Return True if a process of this broker exists (a stopped or paused one does)."""
        return node in self.brokers and self.sim.loop.alive(self._names[node])

    def present(self) -> dict[NodeId, Broker]:
        """Brokers whose process exists and has loaded its data, though it may have ended by itself."""
        lives = self.sim.loop.incarnations
        return {
            node: broker
            for node, broker in self.brokers.items()
            if lives[self._names[node]].alive and hasattr(broker, "replicas")  # as _has_loaded, after each step
        }

    def living(self) -> tuple[NodeId, ...]:
        """Brokers whose process exists and has not ended by itself."""
        return tuple(
            node
            for node in self.nodes
            if self.alive(node) and self.brokers[node].failure is None and not self._has_stopped(node)
        )

    def serving(self) -> Iterable[Broker]:
        """Living brokers that have loaded their data."""
        return (self.brokers[node] for node in self.living() if _has_loaded(self.brokers[node]))

    def controller(self) -> NodeId:
        """The active controller with the highest epoch, NO_NODE when there is none."""
        active = [(broker.quorum.epoch, broker.node_id) for broker in self.serving() if broker.quorum.is_leader]
        return max(active)[1] if active else NO_NODE

    def image(self) -> MetadataImage | None:
        """The newest metadata that any living broker has applied, one that is about to stop included."""
        return max((broker.image for broker in self.present().values()), key=lambda image: image.offset, default=None)

    def partition(self, name: TopicPartition) -> PartitionImage | None:
        """A partition's state by the newest metadata."""
        image = self.image()
        return image.partition(name) if image is not None else None

    def leader_of(self, name: TopicPartition) -> NodeId:
        """The leader by the newest metadata, NO_NODE without one."""
        state = self.partition(name)
        return state.leader if state is not None else NO_NODE

    def replica(self, node: NodeId, name: TopicPartition) -> Partition | None:
        """A living broker's replica."""
        broker = self.brokers.get(node)
        if broker is None or not self.alive(node) or not _has_loaded(broker):
            return None
        return broker.partitions.get(name)

    def partition_names(self) -> tuple[TopicPartition, ...]:
        """All partitions by the newest metadata, sorted."""
        image = self.image()
        if image is None:
            return ()
        return tuple(TopicPartition(topic.name, each.partition) for topic, each in image.sorted_partitions())

    def is_settled(self) -> bool:
        """Nothing is missing; see :meth:`missing`."""
        return self.missing() is None

    def missing(self) -> str | None:
        """What the cluster still lacks to be whole, as a sentence; None: every living broker is ready, every partition
        has a leader, its living replicas are in the ISR and stand with equal logs at the leader's watermark.
        """
        living = self.living()
        for node in living:
            broker = self.brokers[node]
            if not _has_loaded(broker) or not broker.is_ready:
                return f"broker {node}: {broker.missing() if hasattr(broker, 'lifecycle') else 'it loads its data'}"
        image = self.image()
        if image is None or self.controller() == NO_NODE:
            return "there is no active controller"
        for node in living:
            if self.brokers[node].image.offset < image.offset:
                return f"broker {node} has applied {self.brokers[node].image.offset} of {image.offset} metadata records"
        for topic, state in image.sorted_partitions():
            lacks = self._partition_lacks(TopicPartition(topic.name, state.partition), state, living)
            if lacks:
                return lacks
        return None

    def waiting_for_a_lost_disk(self) -> list[TopicPartition]:
        """What nobody leads though all its replicas live: who led last is back without its disk (KIP-966)."""
        image = self.image()
        if image is None:
            return []
        return [
            TopicPartition(topic.name, state.partition)
            for topic, state in image.sorted_partitions()
            if state.leader == NO_NODE
            and all(map(image.eligible, state.replicas))
            and any(image.brokers[node].came_back_empty(state) for node in state.replicas)
        ]

    def _partition_lacks(self, name: TopicPartition, state: PartitionImage, living: tuple[NodeId, ...]) -> str | None:
        expected = tuple(node for node in state.replicas if node in living)
        if state.leader not in expected:
            return f"{name} has no living leader (leader {state.leader}, isr {list(state.isr)}, elr {list(state.elr)})"
        if set(state.isr) != set(expected):
            return f"{name} has the ISR {list(state.isr)}, its living replicas are {list(expected)}"
        leader = self.replica(state.leader, name)
        if leader is None or leader.epoch != state.leader_epoch:
            return f"broker {state.leader} has not taken up the leadership of {name}"
        end = leader.log.end_offset
        for node in expected:
            replica = self.replica(node, name)
            if replica is None or (replica.log.end_offset, replica.high_watermark) != (end, end):
                return f"broker {node} has not caught up: {replica!r}, the leader's log ends at {end}"
        return None

    def table(self) -> str:
        """The present state: one line per broker, one per replica."""
        lines = [f"  t={self.sim.loop.time():.3f}"]
        for node in self.nodes:
            broker = self.brokers.get(node)
            if broker is None or not self.alive(node):
                lines.append(f"  n{node} down")
                continue
            if not _has_loaded(broker):
                lines.append(f"  n{node} loading")
                continue
            paused = " paused" if self.sim.loop.incarnations[node_name(node)].paused else ""
            failed = f" FAILED {broker.failure}" if broker.failure else ""
            lines.append(f"  n{node} {broker.quorum!r} epoch={broker.broker_epoch}{paused}{failed}")
            lines.extend(f"       {partition!r}" for _, partition in sorted(broker.partitions.items()))
        return "\n".join(lines)

    # ------------------------------------------------------------------------------------- asking

    def create_topic(
        self, name: str, *, partitions: int = 1, replication_factor: int | None = None, **configs: str
    ) -> None:
        """Create a topic and wait until all brokers know it. Setting names have ``_`` for ``.``."""
        topic = NewTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor or min(3, len(self.nodes)),
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        self.run(self._create(topic))
        self.until(
            lambda: all(name in broker.image.topics for broker in self.serving()), BOOT_S, f"topic {name} to be known"
        )

    async def _create(self, topic: NewTopic) -> None:
        """Ask the controller until it has created the topic; a second attempt may find it there."""
        world = self.asking_world()
        while True:
            address = self.address_of(self.controller())
            if self.controller() != NO_NODE:
                try:
                    request = CreateTopicsRequest(topics=(topic,))
                    response = await call(world.network, address, request, world.clock.now() + 5.0)
                except (WorldError, ProtocolError):
                    response = None
                if isinstance(response, CreateTopicsResponse) and response.topics:
                    error = response.topics[0].error_code
                    if error in (0, TopicAlreadyExists.code):
                        return
                    if not BY_CODE[error].retriable:
                        raise error_of(error, response.topics[0].error_message)
            await asyncio.sleep(0.1)

    def asking_world(self) -> World:
        """The ports of the machine that :meth:`run` uses."""
        world = self._asking
        if world is None or not self.sim.loop.alive(SCRIPT):
            world = self._asking = self.sim.of(SCRIPT)
        return world
