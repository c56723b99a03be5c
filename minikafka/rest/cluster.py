"""``/v1/cluster``: who is there, who controls, which limits hold; health for supervisors."""

from __future__ import annotations

from typing import Any

from minikafka import __version__, compiled
from minikafka.errors import BrokerIdNotRegistered, BrokerNotAvailable
from minikafka.quorum.image import BrokerImage
from minikafka.rest.host import Host, Scene, limits_of
from minikafka.rest.leaders import leader_members
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import INT32_MAX, Integer
from minikafka.rest.route import Route, text_answer
from minikafka.rest.schema import ref, table, text, whole
from minikafka.rest.schemas import Broker, BrokerLoad, Leader
from minikafka.rest.visit import Handler, Page, Reply, Visit
from minikafka.types import NO_NODE, NodeId
from minikafka.wire.messages import CurrentLeader, MetadataRequest, MetadataResponse

BROKER = Integer(name="broker", place="path", description="The broker's node.id.", high=INT32_MAX, example=1)


async def get_cluster(visit: Visit) -> Reply:
    """The cluster as this broker knows it."""
    host = visit.host
    metadata: MetadataResponse = await host.answer("Metadata", MetadataRequest(topics=()))
    controller = None
    if metadata.controller_id != NO_NODE:
        known = CurrentLeader(leader_id=metadata.controller_id, leader_epoch=host.image.epoch)
        controller = leader_members(host, known)
    return Reply(
        _Cluster(
            cluster_id=metadata.cluster_id,
            node_id=host.node_id,
            version=__version__,
            build=compiled.build(),
            controller=controller,
            brokers=[_broker_out(host, host.image.brokers[node]) for node in sorted(host.image.brokers)],
            metadata_offset=metadata.metadata_offset,
            limits=limits_of(host),
        ).out()
    )


def _broker_out(host: Host, broker: BrokerImage) -> dict[str, Any]:
    return Broker.out_of(broker, id=broker.node_id, url=f"{host.config.brokers_scheme}://{broker.address}")


async def get_brokers(visit: Visit) -> Reply:
    """Every registered broker, and how much it leads and holds."""
    brokers = visit.host.image.brokers
    return Reply(_Brokers(brokers=[broker_load(visit.host, brokers[node]) for node in sorted(brokers)]).out())


async def get_broker(visit: Visit) -> Reply:
    """One broker."""
    broker = visit.host.image.brokers.get(visit[BROKER])
    if broker is None:
        raise BrokerIdNotRegistered(f"no broker {visit[BROKER]} is registered, only {sorted(visit.host.image.brokers)}")
    return Reply(broker_load(visit.host, broker))


def broker_load(host: Scene, broker: BrokerImage) -> dict[str, Any]:
    """One broker, and how much it leads and holds."""
    node = broker.node_id
    partitions = [partition for _, partition in host.image.sorted_partitions()]
    return BrokerLoad.out_of(
        broker,
        id=node,
        url=f"{host.config.brokers_scheme}://{broker.address}",
        leader_count=sum(each.leader == node for each in partitions),
        replica_count=sum(node in each.replicas for each in partitions),
        in_sync_count=sum(node in each.isr for each in partitions),
    )


async def get_health(visit: Visit) -> Reply:
    """Alive: the process serves and has not given up."""
    if visit.host.failure is not None:
        raise BrokerNotAvailable(visit.host.failure)
    return Reply(_Health(status="alive", node_id=visit.host.node_id).out())


async def get_readiness(visit: Visit) -> Reply:
    """Ready: clients may be sent here."""
    host = visit.host
    if host.failure is not None:
        raise BrokerNotAvailable(host.failure)
    if not host.is_ready:
        raise BrokerNotAvailable(f"broker {host.node_id} is not ready: {host.missing()}")
    return Reply(_Health(status="ready", node_id=host.node_id).out())


# ---- the doors -------------------------------------------------------------------------------------------------------


class _Health(Model):
    """How the broker is."""

    status: str = member(text("`alive` or `ready`."))
    node_id: NodeId = member(ref("NodeId"), 1)


class _Brokers(Model):
    """Every registered broker."""

    brokers: list[Any] = many_of(BrokerLoad)


class _Cluster(Model):
    """The cluster, as one broker knows it."""

    cluster_id: str = member(text(), "MkU3OEVBNTcwNTJENDM2Qg")
    node_id: NodeId = member(ref("NodeId"), 1)
    version: str = member(text(), __version__)
    build: str = member(text(enum=[compiled.COMPILED, compiled.PURE]), compiled.COMPILED)
    controller: Any = one(Leader, or_null=True)
    brokers: list[Any] = many_of(Broker)
    metadata_offset: int = member(ref("Offset"), 12)
    limits: dict[str, int] = member(table(whole(), "What one request may ask for."), {"body_bytes_max": 8_388_608})


def _health(path: str, handler: Handler, status: str) -> Route:
    return Route(
        method="GET",
        path=path,
        handler=handler,
        tag="health",
        answers={200: _Health.answer("Yes.", status=status)},
    )


# Prometheus' text format; what a scraper takes of it stands in its Accept.
METRICS_TEXT = "text/plain"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def get_metrics(visit: Visit) -> Page:
    """What this broker counts and where it stands, in Prometheus' text format (docs/operations.md has the names)."""
    if visit.metrics is None:
        raise BrokerNotAvailable("this broker counts nothing")
    return Page(await visit.metrics(), METRICS_TYPE)


ROUTES = (
    Route(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        tag="health",
        answers={
            200: text_answer(
                "The scrape.", METRICS_TEXT, "kafka_brokers 3.0\n", "Families of samples, with HELP and TYPE."
            )
        },
    ),
    _health("/healthz", get_health, "alive"),
    _health("/healthy", get_health, "alive"),
    _health("/readyz", get_readiness, "ready"),
    _health("/ready", get_readiness, "ready"),
    Route(
        method="GET",
        path="/v1/brokers",
        handler=get_brokers,
        tag="cluster",
        answers={200: _Brokers.answer("All brokers.")},
    ),
    Route(
        method="GET",
        path="/v1/brokers/{broker}",
        handler=get_broker,
        tag="cluster",
        parameters=(BROKER,),
        answers={200: BrokerLoad.answer("The broker.")},
        problems=(BrokerIdNotRegistered,),
    ),
    Route(
        method="GET",
        path="/v1/cluster",
        handler=get_cluster,
        tag="cluster",
        answers={200: _Cluster.answer("The cluster, as this broker knows it.")},
    ),
)
