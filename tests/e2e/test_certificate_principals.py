"""Principals of client certificates at a real broker: the same one over Kafka's protocol, /rpc and /v1, and ACLs on it."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, NewTopic, ResourceType
from confluent_kafka.admin import ResourcePatternType as Pattern

from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.types import ANONYMOUS
from tests.certificates import authority, signed
from tests.e2e.test_tls import PATIENCE_S, Certificates, broker, context_of, librdkafka

pytestmark = [pytest.mark.e2e, pytest.mark.openssl]

CLIENT = "User:CN=client"

SECURED = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "ssl.client.auth": "requested",
    "ssl.principal.mapping.rules": "RULE:^CN=boss$/admin/,RULE:^CN=(client)$/CN=$1/",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Certificates:
    """``client`` has a principal, ``stranger`` is signed by the same CA and no rule matches it."""
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder, "ca")
    client, stranger, own = (signed(folder, name, by="ca") for name in ("client", "stranger", "broker"))
    signed(folder, "boss", by="ca")
    return Certificates(folder / "ca.pem", own, client, stranger)


def boss(made: Certificates) -> Path:
    return made.client.with_name("boss.pem")


def answer(port: int, context: ssl.SSLContext, path: str, body: object = None) -> tuple[int, dict]:
    """Status and JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://localhost:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def create_topic(port: int, made: Certificates, name: str, cert: Path | None = None) -> KafkaError | None:
    """Over Kafka's protocol; the error, if there is one."""
    admin = AdminClient(librdkafka(port, made, cert=cert))
    try:
        for each in admin.create_topics([NewTopic(name, 1, 1)], request_timeout=PATIENCE_S).values():
            each.result(PATIENCE_S)
    except KafkaException as raised:
        return raised.args[0]
    return None


def allow_creation(port: int, made: Certificates, name: str) -> None:
    binding = AclBinding(
        ResourceType.TOPIC, name, Pattern.LITERAL, CLIENT, "*", AclOperation.CREATE, AclPermissionType.ALLOW
    )
    admin = AdminClient(librdkafka(port, made, cert=boss(made)))
    for each in admin.create_acls([binding]).values():
        each.result(PATIENCE_S)


async def test_the_same_principal_through_every_door(made, tmp_path):
    """An ACL for the certificate's owner counts over Kafka's protocol, /rpc and /v1, and a super user needs none."""
    async with broker(made, tmp_path, **SECURED) as port:
        assert await asyncio.to_thread(create_topic, port, made, "of-admin", boss(made)) is None
        for cert, name in ((None, ANONYMOUS), (made.client, CLIENT)):
            context = context_of(made, cert)
            denied = await asyncio.to_thread(create_topic, port, made, "orders", cert)
            assert denied is not None
            assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            assert name in denied.str()
            body = {"topics": [{"name": "orders", "num_partitions": 1, "replication_factor": 1}]}
            _, said = await asyncio.to_thread(answer, port, context, "/rpc/CreateTopics", body)
            assert name in said["topics"][0]["error_message"]
            body = {"name": "orders", "partitions": 1, "replication_factor": 1}
            status, said = await asyncio.to_thread(answer, port, context, "/v1/topics", body)
            assert status == 403
            assert name in said["detail"]
        for topic in ("by-kafka", "by-rpc", "by-v1"):
            await asyncio.to_thread(allow_creation, port, made, topic)
        context = context_of(made, made.client)
        assert await asyncio.to_thread(create_topic, port, made, "by-kafka", made.client) is None
        body = {"topics": [{"name": "by-rpc", "num_partitions": 1, "replication_factor": 1}]}
        await asyncio.to_thread(answer, port, context, "/rpc/CreateTopics", body)
        body = {"name": "by-v1", "partitions": 1, "replication_factor": 1}
        status, _ = await asyncio.to_thread(answer, port, context, "/v1/topics", body)
        assert status == 201
        _, listed = await asyncio.to_thread(answer, port, context_of(made, boss(made)), "/v1/topics")
        assert {each["topic"] for each in listed["topics"]} == {"of-admin", "by-kafka", "by-rpc", "by-v1"}


async def test_whoami_shows_what_acls_must_name(made, tmp_path):
    """Principal, address and listener, and whether ACLs count for the caller at all."""
    async with broker(made, tmp_path, **SECURED) as port:
        for cert, name, is_super in (
            (None, ANONYMOUS, False),
            (made.client, CLIENT, False),
            (boss(made), "User:admin", True),
        ):
            status, said = await asyncio.to_thread(answer, port, context_of(made, cert), "/v1/whoami")
            assert status == 200
            assert said == {
                "principal": name,
                "host": "127.0.0.1",
                "listener": "CLIENTS",
                "security_protocol": "SSL",
                "checked": True,
                "super_user": is_super,
            }
        status, listed = await asyncio.to_thread(answer, port, context_of(made, boss(made)), "/v1/connections")
        assert status == 200
        assert "User:admin" in {each["principal"] for each in listed["connections"]}


async def test_a_certificate_that_no_rule_matches_is_refused(made, tmp_path, capsys):
    """As in Kafka: it is not anonymous, although a client without a certificate would be. The log has the DN."""
    async with broker(made, tmp_path, **SECURED, **{"mk.log.level": "warning"}) as port:
        status, said = await asyncio.to_thread(answer, port, context_of(made, made.stranger), "/v1/whoami")
        assert status == 401
        assert "no rule of ssl.principal.mapping.rules matches 'CN=stranger'" in said["detail"]
        denied = await asyncio.to_thread(create_topic_soon, port, made, made.stranger)
        assert denied.code() in {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
    logged = [line for line in capsys.readouterr().err.splitlines() if "client_authentication_failed" in line]
    assert len(logged) == 1
    assert "remote=127.0.0.1" in logged[0]
    assert "CN=stranger" in logged[0]


def create_topic_soon(port: int, made: Certificates, cert: Path) -> KafkaError:
    admin = AdminClient(librdkafka(port, made, cert=cert))
    with pytest.raises(KafkaException) as raised:
        admin.list_topics(timeout=2)
    return raised.value.args[0]
