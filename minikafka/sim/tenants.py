"""Tenants of a cluster with access control, and the watch over what brokers do for them.

A tenant is a machine that sends requests to the listener CLIENTS, over ``/rpc`` and Kafka's protocol: produce, fetch as
a consumer and as a follower, and changes of ACLs at any broker. Its principal is ``User:`` and its machine, as if it
had shown a certificate. What must hold:

- ``acted_without_permission``: a broker did what an ACL had to allow, and none did in the metadata that it had when the
  request came. This holds for the broker where it entered, and for the one that served it in an Envelope. The rule is
  written down once more here (:func:`permitted`), over all entries and without an index.
- ``revoked_acts_on``: a broker did it by metadata that others had replaced so long ago that it cannot be the broker's
  next round: a leader that is cut off refuses clients after its session.

Rules for this file: tenants draw from a stream of their own and stop with the safety phase; the watch looks at
requests and responses only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any, Final

from minikafka.broker.broker import Broker
from minikafka.broker.dispatch import settled
from minikafka.broker.envelopes import context_in
from minikafka.errors import ProtocolError, WorldError
from minikafka.ports import Buffers, RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.rpc import call
from minikafka.sim.cluster import CLIENTS, CLIENTS_PORT, SimCluster, node_name
from minikafka.sim.kafka_link import KafkaLink
from minikafka.sim.plan import Plan
from minikafka.sim.replica_view import Report
from minikafka.sim.tenant_plans import SECRETS, TENANTS
from minikafka.types import Address, NodeId
from minikafka.wire import messages as m
from minikafka.wire.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    AclPermission,
    CreateAclsRequest,
    PatternType,
    ResourceType,
)
from minikafka.wire.codec import decode_request, decode_response, find_api
from minikafka.wire.records import BatchBuilder

TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 0.15
"""The mean pause of a tenant."""

CLUSTER: Final = (ResourceType.CLUSTER, CLUSTER_NAME)
_IMPLIES: Final = {
    AclOperation.DESCRIBE: {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def permitted(image: MetadataImage, principal: str, operation: AclOperation, resource: tuple[int, str]) -> bool:
    """Kafka's rule: DENY before ALLOW, and no entry is a denial."""
    kind, name = resource
    is_allowed = False
    for acl in image.acls.values():
        covers = name.startswith(acl.resource_name) if acl.pattern_type == PatternType.PREFIXED else False
        if acl.resource_type != kind or not (covers or acl.resource_name in (name, "*")):
            continue
        if acl.principal not in (principal, "User:*") or acl.host not in ("*", principal.removeprefix("User:")):
            continue
        if acl.permission == AclPermission.DENY:
            if acl.operation in (operation, AclOperation.ALL):
                return False
        elif acl.operation in (operation, AclOperation.ALL, *_IMPLIES.get(operation, ())):
            is_allowed = True
    return is_allowed


def needs_of(request: Any, response: Any) -> Iterator[tuple[AclOperation, tuple[int, str]]]:
    """What was done by a response without error, as permissions."""
    if response.error_code:
        return
    if isinstance(request, m.ProduceRequest):
        done = [each.topic for each in response.partitions if not each.error_code]
        yield from ((AclOperation.WRITE, (ResourceType.TOPIC, topic)) for topic in done)
    elif isinstance(request, m.FetchRequest):
        read = [each.topic for each in response.partitions if not each.error_code]
        if request.replica_id >= 0:
            yield from ((AclOperation.CLUSTER_ACTION, CLUSTER) for _ in read)
        else:
            yield from ((AclOperation.READ, (ResourceType.TOPIC, topic)) for topic in read)
    elif isinstance(request, CreateAclsRequest):
        yield AclOperation.ALTER, CLUSTER


class PermissionWatch:
    """See the head of this file."""

    def __init__(self, plan: Plan, cluster: SimCluster, report: Report) -> None:
        self._cluster = cluster
        self._report = report
        self._rounds_s = 2 * int(plan.settings.get("broker.session.timeout.ms", "9000")) / 1000 + TIMEOUT_S
        """A leader's session, a request that waits, and the time between two looks of this watch."""
        self._seen: list[tuple[int, float]] = []
        """Ends of the metadata, and when each was first seen."""
        self.done = 0
        """Permitted things that were done."""

    def attach(self, broker: Broker) -> None:
        """Watch what a new process does for tenants."""
        handle, answer = broker.handle, broker._answer_kafka

        def watched(api: str, body: bytes | bytearray, context: RequestContext) -> Buffers | Awaitable[Buffers]:
            if api == "Envelope":
                envelope: m.EnvelopeRequest = decode_request(find_api(api), body)
                return self._enclosed(broker, self._image_of(broker), envelope, handle(api, body, context))
            if context.listener != CLIENTS:
                return handle(api, body, context)
            image, request = self._image_of(broker), decode_request(find_api(api), body)
            return self._rpc(broker, image, context, request, api, handle(api, body, context))

        def watched_kafka(api: str, request: object, context: RequestContext) -> Any:
            if context.listener != CLIENTS:
                return answer(api, request, context)
            return self._kafka(broker, self._image_of(broker), context, request, answer(api, request, context))

        broker.handle = watched
        broker._answer_kafka = watched_kafka  # type: ignore[method-assign]

    @staticmethod
    def _image_of(broker: Broker) -> MetadataImage:
        return broker.image if hasattr(broker, "metadata") else MetadataImage()

    async def _rpc(
        self, broker: Broker, image: MetadataImage, context: RequestContext, request: Any, api: str, answer: Any
    ) -> Buffers:
        buffers: Buffers = await answer if isinstance(answer, Awaitable) else answer
        self._judge(broker, image, context, request, decode_response(api, b"".join(buffers)))
        return buffers

    async def _enclosed(
        self, broker: Broker, image: MetadataImage, envelope: m.EnvelopeRequest, answer: Any
    ) -> Buffers:
        """What another broker has sent on for a tenant, which may have older metadata."""
        buffers: Buffers = await answer if isinstance(answer, Awaitable) else answer
        response: m.EnvelopeResponse = decode_response("Envelope", b"".join(buffers))
        if not response.error_code:
            request = decode_request(find_api(envelope.api), envelope.request[0])
            done = decode_response(envelope.api, b"".join(response.response))
            self._judge(broker, image, context_in(envelope), request, done)
        return buffers

    async def _kafka(
        self, broker: Broker, image: MetadataImage, context: RequestContext, request: Any, answer: Any
    ) -> Any:
        response = await settled(answer)
        self._judge(broker, image, context, request, response)
        return response

    def _judge(
        self, broker: Broker, image: MetadataImage, context: RequestContext, request: Any, response: Any
    ) -> None:
        newest = self._cluster.image() or image
        now = self._cluster.sim.loop.time()
        if not self._seen or newest.offset > self._seen[-1][0]:
            self._seen.append((newest.offset, now))
        for operation, resource in needs_of(request, response):
            what = f"broker {broker.node_id} did {operation.name} of {resource[1]} for {context.principal}"
            if not permitted(image, context.principal, operation, resource):
                self._report("acted_without_permission", f"{what} by metadata up to {image.offset}")
            elif not permitted(newest, context.principal, operation, resource):
                replaced_at = next((at for end, at in self._seen if end > image.offset), now)
                if now - replaced_at > self._rounds_s:
                    self._report("revoked_acts_on", f"{what}, {now - replaced_at:.1f} s after it was revoked")
            self.done += 1


class Tenants:
    """The tenants of one run."""

    def __init__(self, plan: Plan, cluster: SimCluster, report: Report) -> None:
        self._plan = plan
        self._cluster = cluster
        self._report = report
        self._is_over = False
        self.watch = PermissionWatch(plan, cluster, report)

    def start(self) -> None:
        """All of them go to work."""
        for name in TENANTS:
            world = self._cluster.sim.of(name)
            self._cluster.sim.spawn(name, self._work(name, world, Random(f"{self._plan.seed}/tenant/{name}")))

    def end(self) -> None:
        """They stop after their next request."""
        self._is_over = True

    async def _work(self, name: str, world: Any, random: Random) -> None:
        acts: tuple[Callable[[str, Any, NodeId, Random], Awaitable[None]], ...] = (
            self._produce,
            self._produce,
            self._fetch,
            self._fetch,
            self._fetch_as_a_follower,
            self._create_acl_over_kafka,
        )
        while not self._is_over:
            await asyncio.sleep(random.expovariate(1 / PAUSE_S))
            node = random.choice(self._cluster.nodes)
            try:
                await random.choice(acts)(name, world, node, random)
            except (WorldError, ProtocolError) as error:
                world.events("tenant_refused", tenant=name, why=type(error).__name__)

    @staticmethod
    async def _send(world: Any, node: NodeId, request: Any) -> None:
        await call(world.network, Address(node_name(node), CLIENTS_PORT), request, world.clock.now() + TIMEOUT_S)

    async def _produce(self, name: str, world: Any, node: NodeId, random: Random) -> None:
        builder = BatchBuilder()
        builder.append(world.clock.wall_ms(), None, f"{name}.{random.random()}".encode())
        partition = m.ProducePartition(topic=SECRETS, partition=0, records=(bytes(builder.build()),))
        await self._send(world, node, m.ProduceRequest(partitions=(partition,), acks=1, timeout_ms=1000))

    async def _fetch(self, _name: str, world: Any, node: NodeId, _random: Random) -> None:
        partition = m.FetchPartition(topic=SECRETS, partition=0, fetch_offset=0)
        await self._send(world, node, m.FetchRequest(max_wait_ms=0, partitions=(partition,)))

    async def _fetch_as_a_follower(self, _name: str, world: Any, node: NodeId, random: Random) -> None:
        """As a broker that it knows all about, its broker epoch too."""
        image = self._cluster.image()
        replica = random.choice([each for each in self._cluster.nodes if each != node])
        known = None if image is None else image.brokers.get(replica)
        request = m.FetchRequest(
            replica_id=replica,
            replica_epoch=-1 if known is None else known.broker_epoch,
            max_wait_ms=0,
            partitions=(m.FetchPartition(topic=SECRETS, partition=0, fetch_offset=0),),
        )
        await self._send(world, node, request)

    async def _create_acl_over_kafka(self, name: str, world: Any, node: NodeId, _random: Random) -> None:
        """A change that the broker forwards to the controller."""
        link = KafkaLink(world, Address(node_name(node), CLIENTS_PORT), name, {"CreateAcls": 3}, self._report)
        entry = Acl(
            resource_type=ResourceType.TOPIC,
            resource_name="nothing",
            principal=f"User:{name}",
            operation=AclOperation.READ,
        )
        creation = {
            "resource_type": entry.resource_type,
            "resource_name": entry.resource_name,
            "resource_pattern_type": entry.pattern_type,
            "principal": entry.principal,
            "host": entry.host,
            "operation": entry.operation,
            "permission_type": entry.permission,
        }
        await link.call("CreateAcls", {"creations": [creation]}, TIMEOUT_S)
        link.close("done")
