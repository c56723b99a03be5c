"""Three brokers with one SASL_SSL listener, at which they log in to each other with passwords, and clients with SCRAM."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from minikafka import AdminClient, NewTopic
from minikafka.config import parse_broker
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import ClusterAuthorizationFailed, ProtocolError
from minikafka.hosting.certificates import CertificateFolder
from minikafka.hosting.cluster_files import Ports
from minikafka.hosting.local_broker import LocalBroker
from minikafka.world import tls_listener
from tests.e2e.secured import basic

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
NODES = (1, 2, 3)
PASSWORDS = {f"b{node}": f"secret of b{node}" for node in NODES}
VOTE = json.dumps(
    {
        "cluster_id": "brokers-that-log-in-aa", "voter_id": 1, "candidate_id": 2, "candidate_epoch": 99,
        "last_epoch": 98, "last_epoch_end_offset": 10**9,
    }
).encode()  # fmt: skip
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Cluster:
    """The brokers of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = CertificateFolder(folder / "certs")
        self.certificates.make_ca()
        self.certificates.make_broker("broker", ["localhost"])
        ports = Ports()
        self.ports = {node: ports.take(0) for node in NODES}
        ports.release()
        self.running: dict[int, LocalBroker] = {}

    @property
    def ca(self) -> str:
        return str(self.certificates.ca)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"localhost:{port}" for port in self.ports.values())

    def settings(self, node: int, password: str) -> dict[str, str]:
        users = " ".join(f'user_{name}="{each}"' for name, each in {**PASSWORDS, f"b{node}": password}.items())
        own = f'username="b{node}" password="{password}"'
        return {
            "node.id": str(node),
            "cluster.id": "brokers-that-log-in-aa",
            "controller.quorum.voters": ",".join(f"{each}@localhost:{port}" for each, port in self.ports.items()),
            "listeners": f"SASL_SSL://127.0.0.1:{self.ports[node]}",
            "advertised.listeners": f"SASL_SSL://localhost:{self.ports[node]}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{MODULE} required {own} {users};",
            "ssl.keystore.location": str(self.certificates.path("broker")),
            "ssl.truststore.location": self.ca,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:b1;User:b2;User:b3",
            "log.dirs": str(self.folder / f"data-{node}"),
            "mk.log.level": "error",
            "mk.audit.path": str(self.folder / f"audit-{node}.log"),
        }

    async def start(self, node: int, password: str = "") -> LocalBroker:
        config = parse_broker(self.settings(node, password or PASSWORDS[f"b{node}"])).config
        self.running[node] = LocalBroker(config)
        await self.running[node].start()
        return self.running[node]

    def admin(self) -> AdminClient:
        return AdminClient(
            bootstrap_servers=self.bootstrap, security_protocol="SASL_SSL", ssl_cafile=self.ca,
            sasl_plain_username="b1", sasl_plain_password=PASSWORDS["b1"],
        )  # fmt: skip

    def produce(self, user: str, password: str, mechanism: str, **more: Any) -> KafkaError | None:
        """What becomes of a record with acks=all."""
        errors: list[KafkaError | None] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_SSL", "ssl.ca.location": self.ca,
                "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password, "log_level": 0,
                "message.timeout.ms": 30_000, "acks": "all", **more,
            }
        )  # fmt: skip
        producer.produce("orders", b"tea", on_delivery=lambda error, _: errors.append(error))
        producer.flush(PATIENCE_S)
        return errors[0]

    def without_login(self, node: int) -> bytes:
        """The answer to Metadata over Kafka's protocol, before a login."""
        request = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", -1)
        address, context = ("localhost", self.ports[node]), ssl.create_default_context(cafile=self.ca)
        with (
            socket.create_connection(address, timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(struct.pack(">i", len(request)) + request)
            try:
                return connection.recv(100)
            except ConnectionResetError:
                return b""

    def answer(self, node: int, path: str, *header: tuple[str, str], body: bytes = b"{}") -> tuple[int, Any]:
        """Status and document of a GET or, to /rpc, of a POST."""
        context = ssl.create_default_context(cafile=self.ca)
        url, sent = f"https://localhost:{self.ports[node]}{path}", body if path.startswith("/rpc") else None
        asked = urllib.request.Request(url, sent, dict(header))
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE_S, context=context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    async def stop(self) -> None:
        """All of them."""
        for each in self.running.values():
            each.hurry()
        await asyncio.gather(*(each.stop() for each in self.running.values()))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        for node in NODES:
            await made.start(node)
        await asyncio.gather(*(each.wait_ready(120) for each in made.running.values()))
        yield made
    finally:
        await made.stop()


async def test_brokers_replicate_and_clients_log_in_at_the_same_listener(cluster: Cluster):
    """acks=all needs both followers; a user of SCRAM has the permissions of its name, and a broker's those of all."""
    async with cluster.admin() as admin:
        await admin.create_topics([NewTopic("orders", num_partitions=1, replication_factor=3)])
        await admin.set_user_password("ann", "ann's", iterations=4096)
    assert await asyncio.to_thread(cluster.produce, "b2", PASSWORDS["b2"], "PLAIN") is None
    denied = await asyncio.to_thread(cluster.produce, "ann", "ann's", "SCRAM-SHA-512")
    assert denied is not None
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    status, found = await asyncio.to_thread(
        cluster.answer, 3, "/v1/topics/orders/partitions/0", basic("b1", PASSWORDS["b1"])
    )
    assert status == 200
    assert sorted(found["isr"]) == [1, 2, 3]
    status, found = await asyncio.to_thread(cluster.answer, 3, "/v1/whoami", basic("b2", PASSWORDS["b2"]))
    assert (status, found["principal"], found["super_user"]) == (200, "User:b2", True)


async def test_strangers_and_users_are_no_brokers_at_the_listener_of_brokers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """Over /rpc without a login and with a wrong one 401, and with a user's no CLUSTER_ACTION; over Kafka's protocol too."""
    async with cluster.admin() as admin:
        await admin.create_topics([NewTopic("orders", num_partitions=1, replication_factor=3)])
        await admin.set_user_password("ann", "ann's", iterations=4096)
    monkeypatch.setattr(tls_listener, "SHUTDOWN_TIMEOUT_S", 0.2)
    for path in ("/rpc/BrokerHeartbeat", "/v1/cluster"):
        for header in ((), (basic("b1", "wrong"),), (basic("nobody", "x"),)):
            assert (await asyncio.to_thread(cluster.answer, 1, path, *header))[0] == 401
    json_type = ("Content-Type", "application/json")
    vote = await asyncio.to_thread(cluster.answer, 1, "/rpc/Vote", basic("ann", "ann's"), json_type, body=VOTE)
    assert (vote[0], vote[1]["error_code"]) == (200, ClusterAuthorizationFailed.code)
    assert await asyncio.to_thread(cluster.without_login, 1) == b""
    once = {"message.timeout.ms": 2000, "reconnect.backoff.ms": 60_000, "reconnect.backoff.max.ms": 60_000}
    for more in (once, {**once, "security.protocol": "SSL"}):
        assert await asyncio.to_thread(partial(cluster.produce, "b1", "wrong", "PLAIN", **more)) is not None
    await asyncio.sleep(1.0)  # asyncio's TLS connections end so late


async def test_a_broker_with_another_password_does_not_join(tmp_path: Path):
    """The others refuse it, and the audit log says why; they go on without it, and it joins with the right one."""
    cluster = Cluster(tmp_path)
    try:
        for node in NODES[:2]:
            await cluster.start(node)
        await asyncio.gather(*(each.wait_ready(120) for each in cluster.running.values()))
        wrong = await cluster.start(3, "another")
        try:
            with pytest.raises((TimeoutError, ProtocolError)):
                await wrong.wait_ready(5)
        finally:
            await wrong.stop()
        refused = [
            json.loads(line)
            for node in NODES[:2]
            for line in (tmp_path / f"audit-{node}.log").read_text(encoding="utf-8").splitlines()
        ]
        assert ("b3", "bad_password") in {
            (each.get("user"), each.get("reason")) for each in refused if each["event"] == "client_login_failed"
        }
        await cluster.start(3)
        await cluster.running[3].wait_ready(120)
    finally:
        await cluster.stop()
