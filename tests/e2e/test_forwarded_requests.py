"""Hostile test 4 with processes: a broker with old metadata lets no revoked client through to another broker."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minikafka import AdminClient, NewTopic
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.faults import METADATA_FETCH
from minikafka.hosting.cluster_files import LOOPBACK, ClusterFiles, Ports, lay_out, write
from minikafka.hosting.processes import ProcessCluster
from minikafka.testing.plugin import QUICK
from minikafka.types import ANONYMOUS, Address, NodeId
from minikafka.wire.acls import CLUSTER_NAME, Acl, AclFilter, AclOperation, ResourceType
from tests.e2e.secured import eventually

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
CONFIG = {
    **QUICK,
    "inter.broker.listener.name": "BROKERS",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "mk.testing.endpoints.enable": "true",
    "auto.create.topics.enable": "false",
    # A broker that reads no metadata stays a follower of the controller.
    "controller.quorum.fetch.timeout.ms": "120000",
}


@dataclass(frozen=True)
class Cluster:
    """Three processes. Clients are User:ANONYMOUS at the listener CLIENTS; nobody is checked at BROKERS."""

    files: ClusterFiles
    admin: AdminClient

    def at(self, node: NodeId, listener: str) -> Address:
        broker = self.files.brokers[node - 1]
        return broker.clients if listener == "CLIENTS" else broker.address

    def call(self, node: NodeId, path: str, document: Any = None, listener: str = "CLIENTS") -> tuple[int, Any]:
        """Status and body of a GET, or of a POST of a document."""
        body = None if document is None else json.dumps(document).encode()
        sent = urllib.request.Request(
            f"http://{self.at(node, listener)}{path}", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(sent, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def produce(self, node: NodeId, partition: int) -> tuple[int, str]:
        """Status and error of a record that a client produces through a broker."""
        path = f"/v1/topics/orders/partitions/{partition}/records"
        status, answer = self.call(node, path, {"records": [{"value": "tea"}]})
        return status, answer.get("error", "")

    def create_topic(self, node: NodeId, name: str) -> tuple[int, str]:
        status, answer = self.call(node, "/v1/topics", {"name": name, "partitions": 1, "replication_factor": 1})
        return status, answer.get("error", "")

    def acls_known_to(self, node: NodeId) -> int:
        """By its own metadata."""
        status, answer = self.call(node, "/rpc/DescribeAcls", {"filter": {}}, "BROKERS")
        assert status == 200
        return len(answer.get("acls", ()))


@asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[Cluster]:
    """The cluster, with a topic ``orders`` that has a partition on each broker."""
    ports = Ports()
    own, clients = ({NodeId(node): Address(LOOPBACK, ports.take()) for node in (1, 2, 3)} for _ in range(2))
    ports.release()
    files = lay_out(folder, own, config=CONFIG, clients=clients)
    write(files)
    async with ProcessCluster(data_dir=folder) as running, AdminClient(bootstrap_servers=running.bootstrap) as admin:
        await admin.create_topics([NewTopic("orders", num_partitions=3, replication_factor=3)])
        yield Cluster(files, admin)


PERMITTED = (
    (ResourceType.TOPIC, "orders", AclOperation.WRITE),
    (ResourceType.CLUSTER, CLUSTER_NAME, AclOperation.CREATE),
)


async def test_hostile_test_4(tmp_path: Path):
    """Through a broker whose metadata stands still, at a leader and at the controller, which both know better.

    Where that broker leads itself it still accepts, as in Kafka: its own metadata allows it.
    """
    async with processes(tmp_path) as cluster:
        acls = [
            Acl(resource_type=kind, resource_name=name, principal=ANONYMOUS, operation=operation)
            for kind, name, operation in PERMITTED
        ]
        await cluster.admin.create_acls(acls)
        _, described = await asyncio.to_thread(cluster.call, 1, "/v1/topics/orders", None, "BROKERS")
        leaders = {each["partition"]: each["leader"] for each in described["partitions"]}
        _, found = await asyncio.to_thread(cluster.call, 1, "/v1/cluster", None, "BROKERS")
        controller = found["controller"]["id"]
        entry = next(node for node in (1, 2, 3) if node != controller)
        own = next(number for number, leader in leaders.items() if leader == entry)
        other = next(number for number, leader in leaders.items() if leader != entry)
        for partition in (own, other):
            assert await asyncio.to_thread(cluster.produce, entry, partition) == (200, "")
        assert (await asyncio.to_thread(cluster.create_topic, entry, "right"))[0] == 201

        fault = {"kind": "drop", "link": f"{entry}>{controller}", "api": METADATA_FETCH}
        status, _ = await asyncio.to_thread(cluster.call, entry, f"/v1/faults?broker={entry}", fault, "BROKERS")
        assert status == 201
        await cluster.admin.delete_acls([AclFilter(principal=ANONYMOUS)], wait=False)
        others = [node for node in (1, 2, 3) if node != entry]
        await eventually(lambda: all(cluster.acls_known_to(node) == 0 for node in others))
        assert await asyncio.to_thread(cluster.acls_known_to, entry) == len(PERMITTED)

        assert await asyncio.to_thread(cluster.produce, entry, own) == (200, "")
        assert await asyncio.to_thread(cluster.produce, entry, other) == (403, "TOPIC_AUTHORIZATION_FAILED")
        assert await asyncio.to_thread(cluster.create_topic, entry, "wrong") == (403, "TOPIC_AUTHORIZATION_FAILED")

        request = urllib.request.Request(f"http://{cluster.at(entry, 'BROKERS')}/v1/faults", method="DELETE")
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=PATIENCE_S).close())
        await eventually(lambda: cluster.produce(entry, own) == (403, "TOPIC_AUTHORIZATION_FAILED"))
        _, listed = await asyncio.to_thread(cluster.call, entry, "/v1/topics", None, "BROKERS")
        assert "wrong" not in {each["topic"] for each in listed["topics"]}
