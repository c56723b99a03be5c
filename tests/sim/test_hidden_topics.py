"""What members of the classic protocol learn of topics that they may not describe, where the coordinator assigns."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.errors import MemberIdRequired
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.rpc import call
from minikafka.sim.cluster import CLIENTS_PORT, SimCluster, node_name
from minikafka.sim.tenant_plans import AUTHORIZER
from minikafka.types import Address
from minikafka.wire.acls import Acl, AclOperation, ResourceType
from minikafka.wire.group_messages import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from tests.sim.cluster_kit import Client, simulated

SECURED = {"min_insync_replicas": "1", "authorizer_class_name": AUTHORIZER, "super_users": "User:admin"}


def allowed(kind: ResourceType, name: str, operation: AclOperation) -> Acl:
    return Acl(resource_type=kind, resource_name=name, principal="User:reader", operation=operation)


class Asker:
    """A client that may read the group and describe one of two topics, and an application that may do everything."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.client = Client(cluster)
        cluster.create_topic("orders", partitions=2)
        cluster.create_topic("secrets", partitions=2)
        acls = [
            allowed(ResourceType.GROUP, "g", AclOperation.READ),
            allowed(ResourceType.TOPIC, "orders", AclOperation.DESCRIBE),
        ]
        self.client.run(self.client.admin.create_acls(acls))
        self.ask("application", FindCoordinatorRequest(key_type=0, keys=("g",)))
        cluster.run_for(3.0)

    def ask(self, machine: str, request: Any) -> Any:
        world = self.cluster.sim.of(machine)
        address = Address(node_name(1), CLIENTS_PORT) if machine == "reader" else self.cluster.address_of(1)

        async def send() -> Any:
            return await call(world.network, address, request, world.clock.now() + 30)

        return self.cluster.run(send(), node=machine)

    def beat(self, epoch: int) -> Any:
        """The application's heartbeat: it owns nothing, so that all partitions are the reader's."""
        topics = ("orders",) if epoch == 0 else None
        return self.ask(
            "application",
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="application",
                member_epoch=epoch,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=topics,
                topic_partitions=(),
            ),
        )

    def join(self, member_id: str = "") -> tuple[str, int]:
        """The reader joins with both topics: its id and generation."""
        subscription = Subscription(topics=("orders", "secrets")).packed()
        asked = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocols=(GroupProtocol(name="range", metadata=subscription),),
        )
        joined = self.ask("reader", asked)
        if joined.error_code == MemberIdRequired.code:
            return self.join(joined.member_id)
        assert joined.error_code == 0, joined
        return joined.member_id, joined.generation_id

    def assigned(self, member_id: str, generation: int) -> set[str]:
        """The topics in what the reader is assigned."""
        asked = SyncGroupRequest(group_id="g", member_id=member_id, generation_id=generation)
        response = self.ask("reader", asked)
        assert response.error_code == 0, response
        return {each.topic for each in Assignment.unpacked(response.assignment).partitions}


@pytest.mark.parametrize("is_upgraded", [False, True])
def test_a_classic_member_is_assigned_no_topic_that_it_may_not_describe(*, is_upgraded: bool) -> None:
    """The coordinator assigns: the client needs no metadata, so its subscription would show that the topic exists and how
    many partitions it has. A new one behind a topic that it may not describe has it join again for nothing.
    """
    with simulated(brokers=1, **SECURED) as cluster:
        it = Asker(cluster)
        member_id = ""
        if is_upgraded:
            member_id, generation = it.join()
            it.assigned(member_id, generation)
        epoch = it.beat(0).member_epoch
        member_id, generation = it.join(member_id)
        found = it.assigned(member_id, generation)
        it.beat(epoch)
        epoch = it.beat(generation).member_epoch
        member_id, generation = it.join(member_id)
        assert found | it.assigned(member_id, generation) == {"orders"}
        it.client.run(it.client.admin.create_partitions({"secrets": 5}))
        cluster.run_for(1.0)
        assert it.beat(epoch).member_epoch == epoch
        alive = it.ask("reader", HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation))
        assert alive.error_code == 0
