"""The cluster: its brokers and its quorum of controllers, and the connections of the broker that answers.

- ``/v1/cluster``, ``/v1/brokers``: registered brokers, the controller, limits of this API; health for supervisors.
- ``/v1/connections``: clients and brokers that are connected to this broker, and what each of them does now.
- ``/v1/whoami``: the caller as the broker sees it, which is what ACLs and ``super.users`` must name.
- ``/v1/controller``: the leader, the voters and the observers of the metadata quorum, as its leader knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minikafka import __version__, compiled
from minikafka.errors import BrokerIdNotRegistered, BrokerNotAvailable, InvalidRequest
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.rest.host import Scene, limits_of, place_of
from minikafka.rest.leaders import change, from_controller
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, INT32_MAX, INT64_MAX, Integer
from minikafka.rest.permissions import may_describe
from minikafka.rest.route import CONTROLLER_PROBLEMS, Json, Page, Routes, Visit, text_answer
from minikafka.rest.schemas import CLUSTER_ID_EXAMPLE, Broker, BrokerLoad, Leader
from minikafka.rest.sentences import timestamp_text
from minikafka.security.permissions import Permit
from minikafka.types import NO_NODE, NodeId, Offset
from minikafka.wire import messages as m
from minikafka.world.connections import PROTOCOLS, OpenConnection

ROUTES = Routes("cluster")
BROKER = Integer("broker", "The broker's node.id.", place="path", high=INT32_MAX, example=1)


# Prometheus' text format; what a scraper takes of it stands in its Accept.
METRICS_TEXT = "text/plain"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@ROUTES.at(
    "GET /metrics",
    text_answer("The scrape.", METRICS_TEXT, "kafka_brokers 3.0\n", "Families of samples, with HELP and TYPE."),
    tag="health",
)
async def get_metrics(visit: Visit) -> Page:
    """What this broker counts and where it stands, in Prometheus' text format (docs/operations.md has the names)."""
    if visit.doors.metrics is None:
        raise BrokerNotAvailable("this broker counts nothing")
    return Page(await visit.doors.metrics(), METRICS_TYPE)


class _Cluster(Model):
    """The cluster, as one broker knows it."""

    cluster_id: str = member(example=CLUSTER_ID_EXAMPLE)
    node_id: NodeId = member(example=1)
    version: str = member(example=__version__)
    build: str = member(example=compiled.COMPILED, enum=(compiled.COMPILED, compiled.PURE))
    controller: Any = one(Leader, or_null=True)
    brokers: list[Any] = many_of(Broker)
    metadata_offset: Offset = member(example=12)
    limits: dict[str, int] = member("What one request may ask for.", {"body_bytes_max": 8_388_608})


@ROUTES.at("GET /v1/cluster", _Cluster.answer("The cluster, as this broker knows it."))
async def get_cluster(visit: Visit) -> Json:
    """The cluster as this broker knows it."""
    host = visit.host
    metadata: m.MetadataResponse = await host.answer("Metadata", m.MetadataRequest(topics=()))
    controller = None
    if metadata.controller_id != NO_NODE:
        known = m.CurrentLeader(leader_id=metadata.controller_id, leader_epoch=host.image.epoch)
        controller = visit.leader_out(known)
    brokers = [
        Broker.out_of(broker, **place_of(host, broker, visit.context.listener))
        for _, broker in sorted(host.image.brokers.items())
    ]
    return _Cluster.out_of(
        metadata,
        node_id=host.node_id,
        version=__version__,
        build=compiled.build(),
        controller=controller,
        brokers=brokers,
        limits=limits_of(host),
    )


class _Brokers(Model):
    """Every registered broker."""

    brokers: list[Any] = many_of(BrokerLoad)


@ROUTES.at("GET /v1/brokers", _Brokers.answer("All brokers."))
async def get_brokers(visit: Visit) -> Json:
    """Every registered broker, and how many of the partitions that the caller may describe it leads and holds."""
    host, partitions, listener = visit.host, described_partitions(visit), visit.context.listener
    brokers = sorted(host.image.brokers.items())
    return _Brokers(brokers=[broker_load(host, each, partitions, listener) for _, each in brokers]).out()


@ROUTES.at("GET /v1/brokers/{broker}", BrokerLoad.answer("The broker."), problems=(BrokerIdNotRegistered,))
async def get_broker(visit: Visit) -> Json:
    """One broker."""
    return broker_load(visit.host, registered(visit), described_partitions(visit), visit.context.listener)


def described_topics(image: MetadataImage, permit: Permit | None) -> list[TopicImage]:
    """The topics that the caller may describe, by name. Counts are made of these too: they tell of the others."""
    return [image.topics[name] for name in sorted(image.topics) if may_describe(permit, name)]


def described_partitions(visit: Visit) -> list[PartitionImage]:
    """The partitions of the topics that the caller may describe."""
    return [each for topic in described_topics(visit.host.image, visit.permit) for each in topic.partitions]


class _Unregistered(Model, notes=True):
    """A broker that the cluster has forgotten."""

    id: NodeId = member(example=3)
    unregistered: bool = member(example=True)


@ROUTES.change(
    "DELETE /v1/brokers/{broker}",
    _Unregistered.answer("Unregistered."),
    problems=(BrokerIdNotRegistered, InvalidRequest),
)
async def delete_broker(visit: Visit) -> Json:
    """Forget a broker that is gone for good. It must be stopped, and hold no replica."""
    node = registered(visit).node_id
    await change(visit, m.UnregisterBrokerRequest(broker_id=node))
    return _Unregistered(id=node, unregistered=True).out()


def registered(visit: Visit) -> BrokerImage:
    """The broker that the path names. Raises BrokerIdNotRegistered."""
    brokers = visit.host.image.brokers
    if visit[BROKER] not in brokers:
        raise BrokerIdNotRegistered(f"no broker {visit[BROKER]} is registered, only {sorted(brokers)}")
    return brokers[visit[BROKER]]


def broker_load(
    scene: Scene, broker: BrokerImage, partitions: Sequence[PartitionImage], listener: str = ""
) -> dict[str, Any]:
    """One broker, and how much it leads and holds of these partitions."""
    node = broker.node_id
    return BrokerLoad.out_of(
        broker,
        **place_of(scene, broker, listener),
        leader_count=sum(each.leader == node for each in partitions),
        replica_count=sum(node in each.replicas for each in partitions),
        in_sync_count=sum(node in each.isr for each in partitions),
    )


class _Health(Model):
    """How the broker is."""

    status: str = member("`alive` or `ready`.")
    node_id: NodeId = member(example=1)


@ROUTES.at("GET /healthy", _Health.answer("Yes.", status="alive"), tag="health")
@ROUTES.at("GET /healthz", _Health.answer("Yes.", status="alive"), tag="health")
async def get_health(visit: Visit) -> Json:
    """Alive: the process serves and has not given up."""
    if visit.host.failure is not None:
        raise BrokerNotAvailable(visit.host.failure)
    return _Health(status="alive", node_id=visit.host.node_id).out()


@ROUTES.at("GET /ready", _Health.answer("Yes.", status="ready"), tag="health")
@ROUTES.at("GET /readyz", _Health.answer("Yes.", status="ready"), tag="health")
async def get_readiness(visit: Visit) -> Json:
    """Ready: clients may be sent here."""
    host = visit.host
    if host.failure is not None:
        raise BrokerNotAvailable(host.failure)
    if not (host.is_ready and host.has_session):
        raise BrokerNotAvailable(f"broker {host.node_id} is not ready: {host.missing()}")
    return _Health(status="ready", node_id=host.node_id).out()


COUNT_MAX = 1000
"""Describing a connection costs the broker some microseconds, during which it does nothing else."""
AFTER = Integer(
    "after",
    "Leave out connections with this id or a smaller one, to read the next part of a long list.",
    default=0,
    high=INT64_MAX,
    example=17,
)
LIMIT = Integer(
    "limit", "Maximum number of connections in the response.", default=COUNT_MAX, low=1, high=COUNT_MAX, example=100
)


class _Connection(Model):
    """One open connection."""

    connection_id: int = member(
        "Number of the connection among all that this broker has accepted.", 17, source="record.number"
    )
    protocol: str | None = member(
        "`kafka`: Kafka's binary protocol. `rpc`: only plain `POST /rpc`, as brokers and native clients send. "
        "`http`: other HTTP requests. Null: the peer has not sent a request yet.",
        "kafka",
        enum=PROTOCOLS,
    )
    listener: str = member("Name of the listener.", "PLAINTEXT")
    remote: str = member("Address and port of the peer.", "127.0.0.1:50412")
    principal: str = member(
        "Principal of the client certificate, or `User:ANONYMOUS`.", "User:CN=billing", source="record.principal"
    )
    client_id: str = member("Client id of the last request; empty if the client sends none.", "billing")
    software: str = member(
        "Name and version of the client's library; empty if the client does not send them.", "librdkafka 2.16.1"
    )
    since: str = member("When the connection was accepted.", "2026-11-22T09:30:00.000+00:00")
    requests: int = member("Requests received on the connection.", 812, source="record.requests")
    received_bytes: int = member(example=96231, source="record.received")
    sent_bytes: int = member(example=8123, source="record.sent")
    last_request: str | None = member("API of the last request, or method and path of an HTTP request.", "Fetch")
    api_version: int | None = member("Version of that API in Kafka's protocol.", 17)
    pending_request: str | None = member(
        "The oldest request that is not answered yet, such as a Fetch that waits for records.", "Fetch"
    )
    idle_ms: int = member("Time since the last request arrived or the last response was sent.", 204)


class _Connections(Model):
    """Open connections of one broker, the oldest first."""

    node_id: NodeId = member(example=1)
    connections: list[Any] = many_of(_Connection)
    more: bool = member("The list is longer: read the rest with `after`.", example=False)


@ROUTES.at("GET /v1/connections", _Connections.answer("Open connections of this broker."), parameters=(AFTER, LIMIT))
async def get_connections(visit: Visit) -> Json:
    """The open connections of the broker that answers: who is connected, and what each connection waits for."""
    limit = visit[LIMIT]
    list_connections = visit.doors.connections
    listed = [] if list_connections is None else list_connections(after=visit[AFTER], limit=limit + 1)
    clock, main = visit.host.world.clock, visit.host.config.inter_broker_listener.name
    now, wall_ms = clock.now(), clock.wall_ms()

    def out(each: OpenConnection) -> dict[str, Any]:
        since = timestamp_text(wall_ms - round((now - each.record.opened_at) * 1000))
        idle_ms = max(0, round(each.idle_s * 1000))
        return _Connection.out_of(each, listener=each.listener or main, since=since, idle_ms=idle_ms)

    connections, more = [out(each) for each in listed[:limit]], len(listed) > limit
    return _Connections(node_id=visit.host.node_id, connections=connections, more=more).out()


class _WhoAmI(Model):
    """The sender of a request."""

    principal: str = member(
        "Principal, as ACLs and `super.users` name it. `User:ANONYMOUS`: the client has neither logged in nor sent "
        "a certificate.",
        "User:CN=billing,O=example",
    )
    host: str = member("IP address of the client, as hosts of ACLs name it.", "127.0.0.1", source="remote")
    listener: str = member("Name of the listener.", "CLIENTS")
    security_protocol: str = member(
        "`SSL`: the connection uses TLS. `SASL`: each request needs credentials.",
        "SSL",
        enum=["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
    )
    checked: bool = member("Requests of this client need permissions.", example=True)
    super_user: bool = member("The principal is one of `super.users`.", example=False)


@ROUTES.at("GET /v1/whoami", _WhoAmI.answer("The caller."))
async def get_whoami(visit: Visit) -> Json:
    """The principal of the caller, and whether its requests need permissions."""
    context, config = visit.context, visit.host.config
    listener = context.listener or config.inter_broker_listener.name
    protocol = "SSL" if listener in config.tls_listeners else "PLAINTEXT"
    return _WhoAmI.out_of(
        context,
        listener=listener,
        security_protocol=f"SASL_{protocol}" if listener in config.sasl_listeners else protocol,
        checked=visit.permit is not None,
        super_user=context.principal in config.super_principals,
    )


# ---- the quorum of controllers ---------------------------------------------------------------------------------------


class _Member(Model):
    """One member of the quorum."""

    id: NodeId = member(example=1, source="replica_id")
    status: str = member("As `kafka-metadata-quorum` says it.", "Leader", enum=["Leader", "Follower", "Observer"])
    log_end_offset: Offset | None = member(example=21, negative_is_null=True)
    lag_records: int | None = member(example=0, source="lag", negative_is_null=True)
    last_fetch_ms_ago: int | None = member(example=0, negative_is_null=True)
    caught_up_ms_ago: int | None = member(example=0, source="last_caught_up_ms_ago", negative_is_null=True)


class _Quorum(Model):
    """The quorum of controllers."""

    cluster_id: str = member(example=CLUSTER_ID_EXAMPLE)
    leader: Any = one(Leader)
    high_watermark: Offset = member(example=21)
    voters: list[Any] = many_of(_Member)
    observers: list[Any] = many_of(_Member)


@ROUTES.at(
    "GET /v1/controller",
    _Quorum.answer("The quorum, as its leader knows it.", observers=[]),
    parameters=(FORWARD,),
    problems=CONTROLLER_PROBLEMS,
)
async def get_controller(visit: Visit) -> Json:
    """The quorum: its leader, and how far every voter and observer is."""
    quorum: m.DescribeQuorumResponse = await from_controller(visit, m.DescribeQuorumRequest())
    return _Quorum.out_of(quorum, leader=visit.leader_out(quorum))
