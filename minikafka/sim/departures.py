"""Brokers that leave a running cluster and are unregistered (UnregisterBroker), for good or until they come back.

============  =====================================================================================================
``depart``    its replicas are moved to other brokers, it is stopped in good order, and unregistered
``give_up``   it is killed first; its replicas are moved while it is away. If a partition needs what only it has, it
              is started again and departs
``cut_away``  it is cut off for ``lasts_s`` while it lives; meanwhile its replicas are moved, and it is unregistered
============  =====================================================================================================

The target is a broker, ``n4``. ``value`` says how it comes back, ``lasts_s`` after it was unregistered: 0 never, 1 with
its old data directory, 2 with an empty disk. A broker that came back is given a replica of the plan's first topic.

Rules for this file: an operator is the production client on a machine of its own and repeats each request until it has
succeeded. That a broker is not registered is a success: the response to an earlier request was lost. A process ends
only when the fault budget of ``plan.py`` allows it (:meth:`Faults.nobody_may_die`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from minikafka import errors as kafka
from minikafka.client.admin import AdminClient
from minikafka.ports import World
from minikafka.quorum.image import MetadataImage
from minikafka.sim.changes import RETRY_S, admin_config
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.faults import STOP_S_MAX, At, Faults
from minikafka.sim.plan import Fault, Plan
from minikafka.types import NO_NODE, NodeId, TopicPartition

DEPART, GIVE_UP, CUT_AWAY = "depart", "give_up", "cut_away"
DEPARTURES: Final = (DEPART, GIVE_UP, CUT_AWAY)
"""Kinds of fault."""

NEVER, OLD_DIRECTORY, EMPTY_DISK = 0, 1, 2
"""How a broker comes back."""

OPERATOR: Final = "o"
"""Machines of operators are ``o1``, ``o2`` and so on."""


class Departures:
    """The departures of one run."""

    def __init__(self, plan: Plan, cluster: SimCluster, faults: Faults, at: At, tell: Callable[[str], None]) -> None:
        self.marks: Counter[str] = Counter()
        """``fault_depart`` and so on: how often each kind really happened."""
        self._plan = plan
        self._cluster = cluster
        self._faults = faults
        self._at = at
        self._tell = tell
        self._under_way: dict[NodeId, Fault] = {}

    def begin(self, fault: Fault) -> None:
        """An operator sets out to remove a broker, unless it is on its way out or gone already."""
        node = int(fault.target.removeprefix("n"))
        if node not in self._cluster.nodes or node in self._under_way or node in self._faults.gone:
            return
        self.marks[f"fault_{fault.kind}"] += 1
        self._tell(str(fault))
        self._under_way[node] = fault
        machine = f"{OPERATOR}{sum(self.marks.values())}"
        self._cluster.sim.spawn(machine, self._carry_out(self._cluster.sim.of(machine), fault, node))

    def missing(self) -> str:
        """Departures that are not complete, and brokers that are registered though they are gone; empty: none."""
        image = self._cluster.image()
        left = [f"broker {node} is on its way: {fault}" for node, fault in self._under_way.items()]
        if image is not None:
            left += [f"broker {node} is still registered" for node in sorted(self._faults.gone & image.brokers.keys())]
        return "; ".join(left)

    # ---- the operator ------------------------------------------------------------------------------------------------

    async def _carry_out(self, world: World, fault: Fault, node: NodeId) -> None:
        if fault.kind == CUT_AWAY:
            await self._remove_behind_a_cut(world, fault, node)
        else:
            await self._remove(world, fault, node)
            if fault.value != NEVER:
                await asyncio.sleep(fault.lasts_s)
                await self._by_hand(lambda: self._come_back(node, is_empty=fault.value == EMPTY_DISK))
                await self._give_a_replica(world, node)
        del self._under_way[node]

    async def _remove(self, world: World, fault: Fault, node: NodeId) -> None:
        """Until the broker is gone and unregistered."""
        if fault.kind == GIVE_UP:
            await self._by_hand(lambda: self._kill(node))
        while True:
            if node in self._faults.gone and self._is_needed(node):
                await self._by_hand(lambda: self._come_back(node))
            elif node not in self._faults.gone and self._holds_nothing(node):
                await self._stop(node)
            if await self._is_unregistered(world, node, may_ask=node in self._faults.gone):
                return
            await asyncio.sleep(RETRY_S)

    async def _remove_behind_a_cut(self, world: World, fault: Fault, node: NodeId) -> None:
        """As long as the cut lasts: the broker registers again when it reaches the controller."""
        ends_at = world.clock.now() + fault.lasts_s
        await self._by_hand(lambda: self._cluster.cut_off(node))
        while world.clock.now() < ends_at and not await self._is_unregistered(world, node, may_ask=True):
            await asyncio.sleep(RETRY_S)
        await asyncio.sleep(max(0.0, ends_at - world.clock.now()))
        await self._by_hand(lambda: self._cluster.sim.network.heal(node_name(node)))

    async def _is_unregistered(self, world: World, node: NodeId, *, may_ask: bool) -> bool:
        """Move its replicas away, as far as it has any; then request that it is forgotten."""
        try:
            async with AdminClient(admin_config(self._cluster), world) as admin:
                moves = self._moves_away_from(node)
                if moves:
                    await admin.alter_partition_reassignments(moves)  # errors: the topic is gone, or the next time
                if not may_ask:
                    return False
                await admin.unregister_broker(node)
        except kafka.BrokerIdNotRegistered:
            world.events("unregistered_before", broker=node)
        except kafka.ProtocolError as error:
            world.events("departure_waits", broker=node, error=error.name, why=error.message)
            return False
        else:
            world.events("unregistered_by_hand", broker=node)
        return True

    def _moves_away_from(self, node: NodeId) -> dict[TopicPartition, list[NodeId] | None]:
        """Each partition with a replica there, and its replicas without it: another broker takes the place."""
        moves: dict[TopicPartition, list[NodeId] | None] = {}
        for name, _, target in self._replicas(node):
            if node in target:
                others = [other for other in self._cluster.nodes if other not in target]
                moves[name] = [other for other in (*target, *others[:1]) if other != node]
        return moves

    async def _give_a_replica(self, world: World, node: NodeId) -> None:
        """Its old log may still lie there."""
        name = TopicPartition(self._plan.topics[0].name, 0)
        while True:
            image = self._cluster.image()
            state = image.partition(name) if image is not None else None
            if state is not None:
                others = [other for other in state.assignment.target if other != node]
                try:
                    async with AdminClient(admin_config(self._cluster), world) as admin:
                        [error] = (await admin.alter_partition_reassignments({name: [node, *others[:2]]})).values()
                except kafka.ProtocolError as failed:
                    error = failed
                if error is None:
                    return
                world.events("departure_waits", broker=node, error=error.name, why=error.message)
            await asyncio.sleep(RETRY_S)

    # ---- what is known -----------------------------------------------------------------------------------------------

    def _replicas(self, node: NodeId) -> list[tuple[TopicPartition, NodeId, tuple[NodeId, ...]]]:
        """Its partitions by the newest metadata: name, leader, and where the replicas are to be."""
        image = self._cluster.image() or MetadataImage()
        return [
            (TopicPartition(topic.name, state.partition), state.leader, state.assignment.target)
            for topic, state in image.sorted_partitions()
            if node in state.replicas
        ]

    def _holds_nothing(self, node: NodeId) -> bool:
        return self._cluster.image() is not None and not self._replicas(node)

    def _is_needed(self, node: NodeId) -> bool:
        """Return True if a partition has no leader and a replica there: no other one may have what it has."""
        return any(leader == NO_NODE for _, leader, _ in self._replicas(node))

    # ---- what is done to the machine ---------------------------------------------------------------------------------

    async def _by_hand(self, do: Callable[[], bool | None]) -> None:
        """Do something to a machine, from outside all of them, as soon as that is possible; False: it is not yet."""
        done: list[bool] = []

        def once() -> None:
            if not done and do() is not False:
                done.append(True)

        while not done:
            self._at(self._cluster.sim.loop.time(), once)
            await asyncio.sleep(RETRY_S)

    def _kill(self, node: NodeId) -> bool:
        if self._faults.nobody_may_die():
            return False
        self._faults.gone.add(node)
        self._cluster.crash(node)
        return True

    async def _stop(self, node: NodeId) -> None:
        """SIGTERM, and kill -9 if the process has not ended in time. One that is down already is not started again."""
        self._faults.gone.add(node)

        def terminate() -> None:
            broker = self._cluster.brokers[node]
            if node in self._cluster.living() and hasattr(broker, "producer_ids"):
                self._cluster.sim.spawn(node_name(node), broker.stop())

        await self._by_hand(terminate)
        waited_s = 0.0
        while node in self._cluster.living() and waited_s < STOP_S_MAX * self._plan.pace:
            await asyncio.sleep(RETRY_S)
            waited_s += RETRY_S
        await self._by_hand(lambda: self._cluster.crash(node))

    def _come_back(self, node: NodeId, *, is_empty: bool = False) -> None:
        if is_empty and node not in self._cluster.voters:
            self._cluster.wipe(node)
        self._faults.gone.discard(node)
        self._faults.restart_if_stopped(node)
