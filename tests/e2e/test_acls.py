"""Access control with real brokers and clients: what an ACL allows and denies, and who administers ACLs."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.types import ANONYMOUS
from tests.e2e.listeners import running, two_free_ports

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0


@asynccontextmanager
async def broker(folder: Path, **settings: str) -> AsyncIterator[tuple[str, str]]:
    """A broker with two listeners; yields the addresses of that of brokers and of that of clients."""
    own, clients = two_free_ports()
    settings_of_broker = {
        "listeners": f"BROKERS://127.0.0.1:{own},CLIENTS://127.0.0.1:{clients}",
        "inter.broker.listener.name": "BROKERS",
        "log.dirs": str(folder),
        "mk.log.level": "error",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        **settings,
    }
    async with running(settings_of_broker):
        yield f"127.0.0.1:{own}", f"127.0.0.1:{clients}"


SECURED = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}


def binding(
    kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType = AclPermissionType.ALLOW
) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, ANONYMOUS, "*", operation, permission)


def done(futures: dict) -> None:
    for each in futures.values():
        each.result(PATIENCE_S)


def produced(address: str) -> KafkaError | None:
    """What becomes of one record."""
    found: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": address, "log_level": 0, "broker.address.family": "v4"})
    producer.produce("orders", b"value", on_delivery=lambda error, _message: found.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return found[0]


def consumed(address: str) -> bytes | KafkaError:
    """The first record, or the error that the consumer reports."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "broker.address.family": "v4",
        }
    )
    consumer.subscribe(["orders"])
    try:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        error = message.error()
        return message.value() if error is None else error
    finally:
        consumer.close()


def story(own: str, clients: str) -> None:
    """Deny by default, allow, deny again: as an administrator and two applications see it."""
    admin = AdminClient({"bootstrap.servers": own, "log_level": 0, "broker.address.family": "v4"})
    done(admin.create_topics([NewTopic("orders", 1, 1)]))
    refused = produced(clients)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    done(admin.create_acls([binding(topic, "orders", AclOperation.WRITE), binding(topic, "orders", AclOperation.READ)]))
    assert produced(clients) is None
    denied = consumed(clients)
    assert isinstance(denied, KafkaError)
    assert denied.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    done(admin.create_acls([binding(group, "g", AclOperation.READ)]))
    assert consumed(clients) == b"value"

    done(admin.create_acls([binding(topic, "*", AclOperation.WRITE, AclPermissionType.DENY)]))
    refused = produced(clients)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    everything = AclBindingFilter(
        topic, "orders", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert len(admin.describe_acls(everything).result(PATIENCE_S)) == 3
    (deleted,) = admin.delete_acls([everything]).values()
    assert len(deleted.result(PATIENCE_S)) == 3
    assert admin.describe_acls(everything).result(PATIENCE_S) == []

    stranger = AdminClient({"bootstrap.servers": clients, "log_level": 0, "broker.address.family": "v4"})
    with pytest.raises(KafkaException) as caught:
        done(stranger.create_acls([binding(topic, "orders", AclOperation.READ)]))
    assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


async def test_acls_decide_what_librdkafka_may_do(tmp_path: Path):
    """Denials are Kafka's errors, not lost connections; changes count as soon as they are answered."""
    async with broker(tmp_path, **SECURED) as (own, clients):
        await asyncio.to_thread(story, own, clients)


def authorized(address: str, *, consumer_group: bool) -> dict[str, set[str]]:
    """What librdkafka learns that it may do with the cluster, a topic, and a group."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0, "broker.address.family": "v4"})
    cluster = admin.describe_cluster(include_authorized_operations=True).result(PATIENCE_S)
    topics = admin.describe_topics(TopicCollection(["orders"]), include_authorized_operations=True)
    found = {
        "cluster": cluster.authorized_operations,
        "topic": topics["orders"].result(PATIENCE_S).authorized_operations,
    }
    if consumer_group:
        groups = admin.describe_consumer_groups(["g"], include_authorized_operations=True)
        found["group"] = groups["g"].result(PATIENCE_S).authorized_operations
    # librdkafka has None for no operation at all.
    return {name: {each.name for each in operations or ()} for name, operations in found.items()}


def not_asked(address: str) -> list[object]:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0, "broker.address.family": "v4"})
    topics = admin.describe_topics(TopicCollection(["orders"]))
    return [
        admin.describe_cluster().result(PATIENCE_S).authorized_operations,
        topics["orders"].result(PATIENCE_S).authorized_operations,
    ]


async def test_authorized_operations_name_what_the_client_may_do(tmp_path: Path):
    """KIP-430: at the listener that is checked by its ACLs, at that of brokers everything; nothing if not asked for."""
    async with broker(tmp_path, **SECURED) as (own, clients):
        admin = AdminClient({"bootstrap.servers": own, "log_level": 0, "broker.address.family": "v4"})
        await asyncio.to_thread(done, admin.create_topics([NewTopic("orders", 1, 1)]))
        allowed = [
            binding(ResourceType.TOPIC, "orders", AclOperation.WRITE),
            binding(ResourceType.TOPIC, "orders", AclOperation.ALTER_CONFIGS),
            binding(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),  # librdkafka's name of CLUSTER
            binding(ResourceType.GROUP, "g", AclOperation.READ),
        ]
        await asyncio.to_thread(done, admin.create_acls(allowed))
        assert await asyncio.to_thread(authorized, clients, consumer_group=True) == {
            "cluster": set(),
            "topic": {"WRITE", "DESCRIBE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"},
            "group": {"READ", "DESCRIBE"},
        }
        describe = binding(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
        deny = binding(ResourceType.TOPIC, "*", AclOperation.WRITE, AclPermissionType.DENY)
        await asyncio.to_thread(done, admin.create_acls([describe, deny]))
        assert await asyncio.to_thread(authorized, clients, consumer_group=False) == {
            "cluster": {"CREATE", "DESCRIBE"},
            "topic": {"DESCRIBE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"},
        }
        assert await asyncio.to_thread(not_asked, clients) == [None, None]
        everything = await asyncio.to_thread(authorized, own, consumer_group=True)
        assert {name: len(operations) for name, operations in everything.items()} == {
            "cluster": 7,
            "topic": 8,
            "group": 5,
        }


async def acls(own: str, *arguments: str, code: int = 0) -> str:
    """What the command prints, errors included."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "minikafka",
        "acls",
        *arguments,
        "-b",
        own,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode == code, printed.decode()
    return printed.decode()


READ_AND_WRITE = "--allow-principal User:alice --operation Read --operation Write --topic orders".split()


async def test_the_command_line_adds_lists_and_removes_acls(tmp_path: Path):
    """Over /rpc, at the listener of brokers. Entries are in the metadata log: they survive a restart."""
    async with broker(tmp_path, **SECURED) as (own, _):
        assert "2 ACLs added" in await acls(own, "add", *READ_AND_WRITE)
        assert "1 ACL removed" in await acls(own, "remove", "--topic", "orders", "--operation", "Write")
    async with broker(tmp_path, **SECURED) as (own, _):
        listed = await acls(own, "list", "--topic", "orders")
        assert ("User:alice" in listed, "Read" in listed, "Write" in listed) == (True, True, False)
        assert "1 ACL removed" in await acls(own, "remove", "--all")
        assert "No ACL matches" in await acls(own, "list")
        refused = await acls(own, "add", "--allow-principal", "alice", "--topic", "orders", code=1)
        assert "use Type:name" in refused


async def test_explain_names_what_decides_and_what_would_allow(tmp_path: Path):
    """Issue 18: by the ACLs and settings of the cluster; the printed commands lead from denied to allowed."""
    consumer = ("explain", "--principal", "User:alice", "--consumer", "--topic", "orders", "--group", "billing")
    async with broker(tmp_path, **SECURED) as (own, _):
        await acls(own, "add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders")
        await acls(own, "add", "--deny-principal", "User:*", "--operation", "Describe", "--topic", "orders")
        said = await acls(own, *consumer)
        assert [line.split()[3] for line in said.splitlines()[1:4]] == ["allowed", "denied", "denied"]
        assert "an ACL allows it: ALLOW User:alice READ on TOPIC:LITERAL:orders from *" in said
        assert "an ACL denies it: DENY User:* DESCRIBE on TOPIC:LITERAL:orders from *" in said
        assert "no ACL applies to the resource" in said
        commands = [shlex.split(line) for line in said.splitlines() if line.startswith("  minikafka acls")]
        assert len(commands) == 2
        for words in commands:
            await acls(own, *words[2:])
        allowed = await acls(own, *consumer)
        assert [line.split()[3] for line in allowed.splitlines()[1:]] == ["allowed"] * 3
        decisions = json.loads(await acls(own, "explain", "--principal", "User:admin", "--cluster", "-o", "json"))
        assert {each["rule"] for each in decisions["decisions"]} == {"the principal is one of super.users"}


async def test_without_an_authorizer_acls_are_refused(tmp_path: Path):
    """SECURITY_DISABLED, as from Kafka: an ACL that nothing enforces would look like protection."""
    async with broker(tmp_path) as (own, _):
        assert "authorizer.class.name" in await acls(own, "list", code=1)
