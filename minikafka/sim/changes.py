"""An administrator at work in a running cluster: moves replicas, adds partitions and sends to them, alters settings.

==================  ===================================================================================================
``reassign``        ``orders-0=4,2,3``: moved to these brokers; ``orders-0=``: a move is taken back
``add_partitions``  ``orders=5``: the topic grows to that many; a producer of its own sends to what is new
``alter_topic``     ``orders:segment.bytes=300``: set, and with nothing behind the equals sign taken back
``alter_broker``    ``2:log.segment.bytes=600``: the same of a broker, with nothing before the colon of all brokers
``elect``           ``orders-0``: uncleanly, where nobody may lead (:meth:`Changes.elect_where_nobody_may_lead`)
``grant``           ``s1:WRITE:ALLOW``: an ACL of a tenant (``tenant_plans.py``); ``revoke`` ``s1`` deletes all of them
``set_password``    ``s1:7``: another credential of a tenant; ``set_quota`` ``s1:500``: bytes a second that it may send
==================  ===================================================================================================

Rules for this file: an administrator is the production client on a machine of its own, and asks again until it has an
answer; a refusal is an answer. When a move is complete the cluster says (:meth:`Changes.missing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from minikafka.client.admin import AdminClient
from minikafka.client.structs import ConfigResource
from minikafka.errors import (
    ElectionNotNeeded,
    InvalidPartitions,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    ProtocolError,
)
from minikafka.ports import World
from minikafka.security.quotas import PRODUCE
from minikafka.security.scram import ITERATIONS_MIN
from minikafka.sim.change_plans import ADD_PARTITIONS, ALTER_BROKER, ALTER_TOPIC, REASSIGN
from minikafka.sim.cluster import SimCluster
from minikafka.sim.lives import RETRY_S, admin_config
from minikafka.sim.plan import Fault, Operation
from minikafka.sim.tenant_plans import GRANT, REVOKE, SECRETS, SET_PASSWORD, SET_QUOTA
from minikafka.types import TopicPartition
from minikafka.wire.acls import CLUSTER_NAME, Acl, AclFilter, AclOperation, AclPermission, ResourceType

ELECT: Final = "elect"
"""Never drawn: it is what an operator does about what came of other faults."""

SENDS_EACH: Final = 8
"""Records for each partition that was added."""

REFUSALS: Final = (ElectionNotNeeded, InvalidPartitions, InvalidReplicaAssignment, NoReassignmentInProgress)
"""Answers: another was first, or a broker is not known."""


class Changes:
    """What administrators do in one run."""

    def __init__(
        self, cluster: SimCluster, machine: Callable[[], str], send: Callable[[list[Operation]], None]
    ) -> None:
        """``machine`` names a new machine, ``send`` lets a producer send these, at times from now on."""
        self._cluster = cluster
        self._machine = machine
        self._send = send
        self._at_work: dict[str, Fault] = {}
        self._do: dict[str, Callable[[AdminClient, World, str], Awaitable[None]]] = {
            REASSIGN: self._reassign,
            ADD_PARTITIONS: self._add_partitions,
            ALTER_TOPIC: self._alter_topic,
            ALTER_BROKER: self._alter_broker,
            ELECT: self._elect,
            GRANT: self._grant,
            REVOKE: self._revoke,
            SET_PASSWORD: self._set_password,
            SET_QUOTA: self._set_quota,
        }

    def begin(self, fault: Fault) -> bool:
        """An operator sets out to do it."""
        machine = self._machine()
        world = self._cluster.sim.of(machine)
        self._at_work[machine] = fault
        self._cluster.sim.spawn(machine, self._carry_out(machine, world, fault))
        return True

    def elect_where_nobody_may_lead(self) -> None:
        """The last leader is back with an empty disk: an operator sees that, and lets another replica lead."""
        targets = {fault.target for fault in self._at_work.values() if fault.kind == ELECT}
        for name in self._cluster.waiting_for_a_lost_disk():
            if str(name) not in targets:
                self.begin(Fault(at_s=self._cluster.sim.loop.time(), kind=ELECT, target=str(name)))

    def missing(self) -> str:
        """Who has no answer yet, and what is under way; empty: nothing."""
        waiting = [f"{machine} waits for {fault.kind} {fault.target}" for machine, fault in self._at_work.items()]
        image = self._cluster.image()
        moving = [] if image is None else [each for each in image.sorted_partitions() if each[1].assignment.under_way]
        return "; ".join([*waiting, *(f"{topic.name}-{state.partition} is moved" for topic, state in moving)])

    async def _carry_out(self, machine: str, world: World, fault: Fault) -> None:
        while True:
            try:
                async with AdminClient(admin_config(self._cluster), world) as admin:
                    await self._do[fault.kind](admin, world, fault.target)
            except REFUSALS as error:
                world.events(f"{fault.kind}_refused", target=fault.target, error=error.name)
                break
            except ProtocolError as error:
                world.events("change_waits", change=fault.kind, target=fault.target, error=error.name)
                await asyncio.sleep(RETRY_S)
            else:
                break
        del self._at_work[machine]

    async def _reassign(self, admin: AdminClient, world: World, target: str) -> None:
        partition, _, brokers = target.partition("=")
        topic, _, number = partition.rpartition("-")
        nodes = [int(node) for node in brokers.split(",")] if brokers else None
        [error] = (await admin.alter_partition_reassignments({TopicPartition(topic, int(number)): nodes})).values()
        if error is not None:
            raise error
        world.events("move_begun" if nodes else "move_taken_back", replica_set=partition, nodes=brokers)

    async def _add_partitions(self, admin: AdminClient, world: World, target: str) -> None:
        topic, _, count = target.partition("=")
        image = self._cluster.image()
        known = image.topics.get(topic) if image is not None else None
        before = len(known.partitions) if known is not None else int(count)
        await admin.create_partitions({topic: int(count)}, wait=False)
        world.events("topic_enlarged", topic=topic, count=int(count))
        self._send(
            [
                Operation(at_s=round(number * 0.05, 4), client="", topic=topic, partition=partition)
                for number in range(SENDS_EACH)
                for partition in range(before, int(count))
            ]
        )

    async def _alter_topic(self, admin: AdminClient, world: World, target: str) -> None:
        await self._alter(admin, "topic", target)
        world.events("topic_altered", topic=target.partition(":")[0], setting=target.partition(":")[2])

    async def _alter_broker(self, admin: AdminClient, world: World, target: str) -> None:
        await self._alter(admin, "broker", target)
        world.events("broker_altered", broker=target.partition(":")[0], setting=target.partition(":")[2])

    @staticmethod
    async def _alter(admin: AdminClient, kind: str, target: str) -> None:
        resource, _, settings = target.partition(":")
        pairs = [setting.partition("=") for setting in settings.split(";")]
        given = {name: value or None for name, _, value in pairs}
        await admin.incremental_alter_configs([ConfigResource(kind, resource, given)], wait=False)

    async def _elect(self, admin: AdminClient, world: World, target: str) -> None:
        topic, _, number = target.rpartition("-")
        [error] = (await admin.elect_leaders("unclean", [TopicPartition(topic, int(number))])).values()
        if error is not None:
            raise error
        world.events("elected_by_hand", replica_set=target)

    async def _grant(self, admin: AdminClient, world: World, target: str) -> None:
        tenant, operation, permission = target.split(":")
        of_cluster = operation == AclOperation.ALTER.name
        acl = Acl(
            resource_type=ResourceType.CLUSTER if of_cluster else ResourceType.TOPIC,
            resource_name=CLUSTER_NAME if of_cluster else SECRETS,
            principal=f"User:{tenant}",
            operation=AclOperation[operation],
            permission=AclPermission[permission],
        )
        await admin.create_acls([acl], wait=False)
        world.events("tenant_granted", tenant=tenant, operation=operation, permission=permission)

    async def _revoke(self, admin: AdminClient, world: World, target: str) -> None:
        await admin.delete_acls([AclFilter(principal=f"User:{target}")], wait=False)
        world.events("tenant_revoked", tenant=target)

    async def _set_password(self, admin: AdminClient, world: World, target: str) -> None:
        tenant, _, password = target.partition(":")
        await admin.set_user_password(tenant, password, "SCRAM-SHA-256", iterations=ITERATIONS_MIN, wait=False)
        world.events("tenant_password_set", tenant=tenant)

    async def _set_quota(self, admin: AdminClient, world: World, target: str) -> None:
        tenant, _, limit = target.partition(":")
        await admin.alter_client_quotas({(("user", tenant),): {PRODUCE: float(limit)}}, wait=False)
        world.events("tenant_quota_set", tenant=tenant, limit=int(limit))
