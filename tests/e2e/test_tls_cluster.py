"""Clusters whose every connection uses TLS: replication, failover, an authorizer that brokers are under too."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourceType,
)
from confluent_kafka.admin import ResourcePatternType as Pattern

from minikafka.blocking.tls import client_context
from minikafka.config import parse_broker
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import ClusterAuthorizationFailed, InvalidConfig, TopicAuthorizationFailed
from minikafka.faults import METADATA_FETCH
from minikafka.hosting.certificates import CertificateFolder
from minikafka.rest import testing_hooks
from minikafka.testing.local_cluster import LocalCluster
from minikafka.testing.plugin import QUICK
from minikafka.types import Address
from minikafka.wire.acls import Acl
from minikafka.wire.codec import decode_response, encode_request
from minikafka.wire.kafka.codec import encode, varint
from minikafka.wire.messages import (
    AllocateProducerIdsRequest,
    CreateTopicsRequest,
    EnvelopeRequest,
    FetchPartition,
    FetchRequest,
    NewTopic,
    RunTestHookRequest,
    VoteRequest,
)
from minikafka.world.clients import Asker
from minikafka.world.real import real_world

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0

SECURED = {
    **QUICK,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "ssl.client.auth": "required",
    "mk.testing.endpoints.enable": "true",
}


@pytest.fixture(scope="module")
def cluster():
    """Three brokers with mutual TLS and an authorizer, for all tests of this file."""
    with LocalCluster(3, config=SECURED, tls=True) as running:
        yield running


def context_of(cluster: LocalCluster, name: str | None) -> ssl.SSLContext:
    assert cluster.certificates is not None
    cert = None if name is None else str(cluster.certificates.client(name))
    return client_context(cafile=str(cluster.certificates.ca), certfile=cert)


def allow(cluster: LocalCluster, name: str, kind: ResourceType, resource: str, *operations: AclOperation) -> None:
    """An ACL for the certificate of ``CN=name``, created by the cluster's own super user."""
    admin = AdminClient(cluster.confluent_config())
    bindings = [
        AclBinding(kind, resource, Pattern.LITERAL, f"User:CN={name}", "*", each, AclPermissionType.ALLOW)
        for each in operations
    ]
    for each in admin.create_acls(bindings).values():
        each.result(PATIENCE_S)
    wanted = {(name, resource, each.value) for each in operations}
    until = time.monotonic() + PATIENCE_S
    for node in cluster.node_ids:  # each checks clients with the metadata that it has
        while not wanted <= {_entry(each) for each in cluster.broker(node).image.acls.values()}:
            assert time.monotonic() < until, f"broker {node} does not know the ACLs"
            time.sleep(0.01)


def _entry(acl: Acl) -> tuple[str, str, int]:
    return acl.principal.removeprefix("User:CN="), acl.resource_name, int(acl.operation)


def test_records_are_replicated_and_survive_their_leader(cluster: LocalCluster):
    """acks=all waits for followers that fetch over TLS; a restarted broker comes back into the ISR."""
    cluster.sync.create_topic("orders", replicas=3)
    cluster.sync.produce("orders", b"one")
    leader = cluster.sync.wait.leader("orders", 0)
    cluster.kill(leader)
    cluster.sync.produce("orders", b"two")
    assert cluster.sync.wait.leader("orders", 0) != leader
    cluster.restart(leader)
    cluster.sync.wait.isr("orders", 0, {1, 2, 3}, timeout_s=PATIENCE_S)
    assert [each.value for each in cluster.sync.consume("orders", 2)] == [b"one", b"two"]


def test_a_client_needs_acls_for_its_certificate(cluster: LocalCluster):
    """Through librdkafka, with the configuration that the cluster gives; any broker may be the leader."""
    cluster.sync.create_topic("sales", replicas=3)
    errors: list[KafkaError | None] = []
    producer = Producer({**cluster.confluent_config("shop"), "message.timeout.ms": 5000})
    producer.produce("sales", b"tea", on_delivery=lambda error, _message: errors.append(error))
    producer.flush(PATIENCE_S)
    assert errors
    assert errors[0] is not None
    allow(cluster, "shop", ResourceType.TOPIC, "sales", AclOperation.WRITE, AclOperation.READ)
    allow(cluster, "shop", ResourceType.GROUP, "g", AclOperation.READ)
    producer = Producer(cluster.confluent_config("shop"))
    producer.produce("sales", b"tea", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors[-1] is None
    consumer = Consumer({**cluster.confluent_config("shop"), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["sales"])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.value() == b"tea"


async def asked(cluster: LocalCluster, name: str, request: object) -> object:
    """The answer of broker 1 to the owner of a certificate, over /rpc. Raises its error."""
    address = cluster.files.brokers[0].address
    async with Asker(cluster.bootstrap, context_of(cluster, name)) as asker:
        return await asker.ask(Address(*address), request, PATIENCE_S)


def fetch(replica: int, topic: str = "secret") -> FetchRequest:
    part = FetchPartition(topic=topic, partition=0, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(replica_id=replica, max_wait_ms=0, partitions=(part,))


def vote_for(candidate: int, cluster: LocalCluster) -> VoteRequest:
    return VoteRequest(
        cluster_id=cluster.files.cluster_id, voter_id=1, candidate_id=candidate, candidate_epoch=99, last_epoch=98,
        last_epoch_end_offset=10**9,
    )  # fmt: skip


async def test_without_an_authorizer_clients_may_act_as_brokers():
    """Hostile tests 1 to 3 show something: with security off a stranger is a follower, is elected, and creates topics."""
    with LocalCluster(3, config=QUICK, tls=True) as unchecked:
        await asyncio.to_thread(unchecked.sync.create_topic, "secret", replicas=3)
        for topic in ("secret", "__cluster_metadata"):
            answer = await asked(unchecked, "reader", fetch(2, topic))
            assert [each.error_code for each in answer.partitions] != [TopicAuthorizationFailed.code]
        await asyncio.to_thread(answered, unchecked, 1, "plain", create_topics("forged"))
        assert "forged" in await asyncio.to_thread(topics, unchecked)
        answer = await asked(unchecked, "reader", vote_for(2, unchecked))
        assert answer.error_code == 0


async def test_the_apis_of_brokers_need_cluster_action(cluster: LocalCluster):
    """SECURITY 8.7, tests 1 and 2: a client with READ of everything is no follower and no voter."""
    await asyncio.to_thread(cluster.sync.create_topic, "secret", replicas=3)
    await asyncio.to_thread(allow, cluster, "reader", ResourceType.TOPIC, "*", AclOperation.READ)
    answer = await asked(cluster, "reader", fetch(-1))
    assert answer.partitions[0].error_code != TopicAuthorizationFailed.code
    for request in (fetch(2), fetch(2, "__cluster_metadata"), fetch(-1, "__cluster_metadata")):
        answer = await asked(cluster, "reader", request)
        assert [each.error_code for each in answer.partitions] == [TopicAuthorizationFailed.code]
    vote = vote_for(2, cluster)
    forged = RunTestHookRequest(broker_id=1, route="DELETE /v1/faults", principal="User:CN=admin")
    for request in (vote, AllocateProducerIdsRequest(broker_id=2, broker_epoch=1), forged):
        with pytest.raises(ClusterAuthorizationFailed):
            await asked(cluster, "reader", request)
    own = ResourceType.BROKER, "kafka-cluster", AclOperation.CLUSTER_ACTION  # librdkafka's name of CLUSTER
    await asyncio.to_thread(allow, cluster, "reader", *own)
    answer = await asked(cluster, "reader", fetch(2))
    assert [each.error_code for each in answer.partitions] != [TopicAuthorizationFailed.code]


def test_forwarded_faults_need_the_permission_of_the_client_that_set_them(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
):
    """M6: broker 1 forwards over mutual TLS as a super user, and broker 2 still checks the client."""
    # Brokers of one process need not forward to each other.
    monkeypatch.setattr(testing_hooks, "_is_here", lambda node, host, _instruments: node == host.node_id)
    sent = urllib.request.Request(
        f"https://{cluster.files.brokers[0].address}/v1/faults?broker=2",
        json.dumps({"kind": "cut", "link": "client>2", "api": "Vote"}).encode(),
        {"Content-Type": "application/json"},
    )

    def set_fault() -> dict[str, object]:
        with urllib.request.urlopen(sent, timeout=PATIENCE_S, context=context_of(cluster, "tester")) as answer:
            assert answer.headers["Mk-Served-By"] == "2"
            return json.load(answer)

    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        set_fault()
    refused.value.close()
    allow(cluster, "tester", ResourceType.BROKER, "kafka-cluster", AclOperation.ALTER)
    since = cluster.events.mark
    assert set_fault()["broker"] == 2
    allowed = cluster.events.all("request_allowed", since=since)
    assert [(each["principal"], each["api"]) for each in allowed] == [("User:CN=tester", "POST /v1/faults")] * 2
    cluster.faults.heal()


def whoami(cluster: LocalCluster, node: int, name: str | None) -> bytes:
    address = cluster.files.brokers[node - 1].address
    url = f"https://{address}/v1/whoami"
    with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context_of(cluster, name)) as answer:
        return answer.read()


def test_every_broker_knows_the_same_principal(cluster: LocalCluster):
    """And none serves a client without a certificate."""
    for node in cluster.node_ids:
        assert b'"User:CN=shop"' in whoami(cluster, node, "shop")
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            whoami(cluster, node, None)


CREATE_TOPICS, ENVELOPE = 19, 58
SUPER_USER = "User:CN=admin"


def topics(cluster: LocalCluster) -> set[str]:
    """All of them."""
    return set(AdminClient(cluster.confluent_config()).list_topics(timeout=PATIENCE_S).topics)


def kafka_frame(key: int, version: int, client_id: str, message: bytes, *, flexible: bool = False) -> bytes:
    """A request of Kafka's protocol, without its size."""
    name = client_id.encode()
    return struct.pack(">hhih", key, version, 7, len(name)) + name + b"\0" * flexible + message


def create_topics(topic: str, client_id: str = "") -> bytes:
    """CreateTopics in version 4."""
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    message = {"topics": [wanted], "timeout_ms": 30_000, "validate_only": False}
    return kafka_frame(CREATE_TOPICS, 4, client_id, b"".join(encode("CreateTopics", "request", 4, message)))


def envelope(inner: bytes, principal: str) -> bytes:
    """Envelope (KIP-590), in which Kafka's brokers forward a request with the principal that has sent it."""
    kind, name = (text.encode() for text in principal.split(":"))
    said = b"".join(bytes([len(each) + 1]) + each for each in (kind, name)) + b"\0\0"  # version 0; no token; no tags
    said = b"\0\0" + said
    fields = (inner, said, socket.inet_aton("127.0.0.1"))
    message = b"".join(varint(len(each) + 1) + each for each in fields) + b"\0"
    return kafka_frame(ENVELOPE, 0, "", message, flexible=True)


def answered(cluster: LocalCluster, node: int, name: str, frame: bytes) -> bytes:
    """The broker's answer to one frame of the owner of a certificate; empty if the broker closes the connection."""
    address = cluster.files.brokers[node - 1].address
    with (
        socket.create_connection(tuple(address), timeout=PATIENCE_S) as plain,
        context_of(cluster, name).wrap_socket(plain, server_hostname=address.host) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        try:
            head = answers.read(4)
            return answers.read(int.from_bytes(head, "big")) if head else b""
        except ConnectionResetError:
            return b""


MSGPACK = {"Content_Type": "application/msgpack"}


def creation(topic: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=(NewTopic(name=topic, num_partitions=1, replication_factor=1),))


def posted(cluster: LocalCluster, node: int, name: str, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Status and body of a POST."""
    url = f"https://{cluster.files.brokers[node - 1].address}{path}"
    given = {"Content-Type": "application/json", **{each.replace("_", "-"): value for each, value in headers.items()}}
    asked_for = urllib.request.Request(url, body, given)
    try:
        with urllib.request.urlopen(asked_for, timeout=PATIENCE_S, context=context_of(cluster, name)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_a_client_cannot_act_as_another_principal(cluster: LocalCluster):
    """Hostile test 3. Brokers name the client of a request that they send on, in an Envelope; a client may send none.

    Over Kafka's protocol no broker serves it, over ``/rpc`` it needs CLUSTER_ACTION, and no name that a client gives
    (client id, headers of proxies, a broker's node id) changes the principal of its certificate.
    """
    by_kafka, by_http = create_topics("forged", SUPER_USER), b'{"name": "forged", "partitions": 1}'
    by_rpc = json.dumps({"topics": [{"name": "forged", "num_partitions": 1}]}).encode()
    names = {
        "X_Forwarded_User": SUPER_USER,
        "X_Remote_User": SUPER_USER,
        "Forwarded": f'for=127.0.0.1;by="{SUPER_USER}"',
        "Mk_Node_Id": "2",
        "Mk_Principal": SUPER_USER,
        "User_Agent": f"minikafka/0.1.0 ({SUPER_USER})",
    }
    for node in cluster.node_ids:
        for inner in (by_kafka, envelope(by_kafka, SUPER_USER)):
            assert answered(cluster, node, "plain", envelope(inner, SUPER_USER)) == b""
        refused = answered(cluster, node, "plain", by_kafka)
        assert struct.pack(">h", TopicAuthorizationFailed.code) in refused
        status, answer = posted(cluster, node, "plain", "/v1/topics", by_http, **names)
        assert (status, json.loads(answer)["error"]) == (403, TopicAuthorizationFailed.name)
        [created] = json.loads(posted(cluster, node, "plain", "/rpc/CreateTopics", by_rpc, **names)[1])["topics"]
        assert created["error_code"] == TopicAuthorizationFailed.code
        forged = EnvelopeRequest(
            api="CreateTopics", request_principal=SUPER_USER, broker_id=node, request=encode_request(creation("forged"))
        )
        refused = posted(cluster, node, "plain", "/rpc/Envelope", b"".join(encode_request(forged)), **names, **MSGPACK)
        error = decode_response("Envelope", refused[1])
        assert error.error_code == ClusterAuthorizationFailed.code
        assert "User:CN=plain has no permission for CLUSTER_ACTION" in error.error_message
    assert "forged" not in topics(cluster)
    # The requests are right: who may create topics creates one, at any broker.
    for node in cluster.node_ids:
        assert answered(cluster, node, "admin", create_topics(f"right-{node}"))
        assert f"right-{node}" in topics(cluster)


def test_a_revoked_client_does_not_pass_through_a_broker_with_old_metadata():
    """Hostile test 4 over Kafka's protocol: brokers call each other by mutual TLS as super users, and the controller
    still refuses a client by its own metadata.
    """
    slow = {**SECURED, "controller.quorum.fetch.timeout.ms": "120000"}
    own = ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE  # librdkafka's name of CLUSTER
    with LocalCluster(3, config=slow, tls=True) as running:
        allow(running, "maker", *own)
        controller = running.broker(1).metadata.leader_id
        entry = next(node for node in running.node_ids if node != controller)
        assert answered(running, entry, "maker", create_topics("right"))
        assert "right" in topics(running)
        with running.faults.drop(f"{entry}>{controller}", api=METADATA_FETCH):
            before = running.broker(entry).image.offset
            admin = AdminClient(running.confluent_config())
            kind, name, _ = own
            every = AclBindingFilter(
                kind, name, Pattern.LITERAL, "User:CN=maker", None, AclOperation.ANY, AclPermissionType.ANY
            )
            for each in admin.delete_acls([every]).values():
                each.result(PATIENCE_S)
            refused = answered(running, entry, "maker", create_topics("wrong"))
            assert struct.pack(">h", TopicAuthorizationFailed.code) in refused
            assert running.broker(entry).image.offset == before
        [denied] = running.events.all("request_denied", node=controller)
        assert (denied["principal"], denied["forwarded_by"]) == ("User:CN=maker", entry)
        assert "wrong" not in topics(running)


def test_a_broker_that_is_no_super_user_does_not_start(tmp_path: Path):
    """Its requests would be refused by all others, and nothing but timeouts would show why."""
    folder = CertificateFolder(tmp_path)
    folder.make_ca()
    folder.make_broker("b1", ["127.0.0.1"])
    config = parse_broker(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": str(folder.path("b1")),
            "ssl.truststore.location": str(folder.ca),
            "ssl.client.auth": "required",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:admin",
            "log.dirs": str(tmp_path / "logs"),
        }
    ).config
    with pytest.raises(InvalidConfig, match="User:CN=b1, which this broker is by its certificate, is missing"):
        real_world(config)


def test_a_cluster_with_files_of_its_own_starts_again_with_its_certificates(tmp_path: Path):
    """Its CA stays, keys are private, and the other form is refused before its files are changed."""
    with LocalCluster(1, tmp_path, config=QUICK, tls=True) as running:
        running.sync.create_topic("orders")
        running.sync.produce("orders", b"tea")
        settings = running.client_settings("mine")
    assert all(each.stat().st_mode & 0o77 == 0 for each in (tmp_path / "certs").glob("*.pem") if each.name != "ca.pem")
    with pytest.raises(InvalidConfig, match="with SSL, not PLAINTEXT: start them with security_protocol='SSL'"):
        LocalCluster(1, tmp_path)
    with LocalCluster(1, tmp_path, tls=True) as running:
        assert running.client_settings("mine")["ssl_cafile"] == settings["ssl_cafile"]
        assert [each.value for each in running.sync.consume("orders", 1)] == [b"tea"]
    with LocalCluster(1, tmp_path / "plain", config=QUICK):
        before = (tmp_path / "plain" / "broker-1" / "broker.properties").read_bytes()
    with pytest.raises(InvalidConfig, match="with PLAINTEXT, not SSL"):
        LocalCluster(1, tmp_path / "plain", tls=True)
    assert (tmp_path / "plain" / "broker-1" / "broker.properties").read_bytes() == before
