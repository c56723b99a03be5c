"""``/v1/cluster``: who is there, who controls, which limits hold; health for supervisors; what an error means."""

from __future__ import annotations

from typing import Any

from minikafka import __version__
from minikafka.errors import BrokerNotAvailable
from minikafka.quorum.image import BrokerImage
from minikafka.rest.host import limits_of
from minikafka.rest.leaders import leader_members
from minikafka.rest.problems import malformed, page_of
from minikafka.rest.visit import Reply, Visit
from minikafka.types import NO_NODE
from minikafka.wire.messages import CurrentLeader, MetadataRequest, MetadataResponse


async def get_cluster(visit: Visit) -> Reply:
    """The cluster as this broker knows it."""
    visit.query.done()
    host = visit.host
    metadata: MetadataResponse = await host.answer("Metadata", MetadataRequest(topics=()))
    controller = None
    if metadata.controller_id != NO_NODE:
        known = CurrentLeader(leader_id=metadata.controller_id, leader_epoch=host.image.epoch)
        controller = leader_members(host, known)
    return Reply(
        {
            "cluster_id": metadata.cluster_id,
            "node_id": host.node_id,
            "version": __version__,
            "controller": controller,
            "brokers": [_broker_out(host.image.brokers[node]) for node in sorted(host.image.brokers)],
            "metadata_offset": metadata.metadata_offset,
            "limits": limits_of(host),
        }
    )


def _broker_out(broker: BrokerImage) -> dict[str, Any]:
    return {
        "id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
        "url": f"http://{broker.address}",
        "rack": broker.rack,
        "broker_epoch": broker.broker_epoch,
        "fenced": broker.fenced,
        "in_controlled_shutdown": broker.in_controlled_shutdown,
    }


async def get_health(visit: Visit) -> Reply:
    """Alive: the process serves and has not given up."""
    if visit.host.failure is not None:
        raise BrokerNotAvailable(visit.host.failure)
    return Reply({"status": "alive", "node_id": visit.host.node_id})


async def get_readiness(visit: Visit) -> Reply:
    """Ready: clients may be sent here."""
    host = visit.host
    if host.failure is not None:
        raise BrokerNotAvailable(host.failure)
    if not host.is_ready:
        raise BrokerNotAvailable(f"broker {host.node_id} is not ready: {host.missing()}")
    return Reply({"status": "ready", "node_id": host.node_id})


async def get_problem_page(visit: Visit) -> Reply:
    """What the ``type`` of a problem points at."""
    page = page_of(visit.path["slug"])
    if page is None:
        raise malformed(f"no problem is called {visit.path['slug'][:80]!r}", status=404)
    return Reply(page)
