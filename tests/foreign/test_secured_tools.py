"""Kafka's own tools administer a secured cluster: users by kafka-configs, ACLs by kafka-acls, at the listener of clients."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import javaproperties
import pytest
from confluent_kafka import KafkaError, Producer

from minikafka import LocalCluster
from tests.foreign.kafka_tools import NEWEST, OLDEST, tool_command

pytestmark = [pytest.mark.java, pytest.mark.e2e]

PATIENCE_S = 120.0
PASSWORD = "carol's pass"

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers: what enters at one of them is forwarded to the controller."""
    with LocalCluster(3, security_protocol="SASL_SSL", users={"guest": "guest"}) as made:
        made.sync.create_topic("orders")
        yield made


@pytest.fixture
def run(version: str, cluster: LocalCluster, tmp_path: Path) -> Run:
    """Run a tool as a user; its exit code and what it prints."""

    def run(main: str, user: str, *arguments: str) -> tuple[int, str]:
        file = tmp_path / f"{user}.properties"
        file.write_text(javaproperties.dumps(cluster.java_config(user), timestamp=False), encoding="ascii")
        command = tool_command(version, tmp_path, main)
        command += ["--bootstrap-server", cluster.bootstrap, "--command-config", str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def written_by_carol(cluster: LocalCluster) -> KafkaError | None:
    """What came of a record."""
    login = {**cluster.confluent_config("guest"), "sasl.username": "carol", "sasl.password": PASSWORD}
    errors: list[KafkaError | None] = []
    producer = Producer({**login, "message.timeout.ms": 30_000, "log_level": 0})
    producer.produce("orders", b"tea", on_delivery=lambda error, _: errors.append(error))
    producer.flush(PATIENCE_S)
    return errors[0]


@pytest.mark.parametrize("version", [NEWEST, pytest.param(OLDEST, marks=pytest.mark.every_tool)])
def test_users_and_acls_are_administered_by_kafkas_tools(cluster: LocalCluster, run: Run, version: str):
    """Issue 18: a user is created, gets ACLs, writes, and loses both; without a permission the tool says which."""
    acls = "org.apache.kafka.tools.AclCommand" if version == NEWEST else "kafka.admin.AclCommand"
    configs, carol = "kafka.admin.ConfigCommand", ("--entity-type", "users", "--entity-name", "carol")

    def said(*words: str) -> str:
        code, printed = run(*words)
        assert code == 0, printed[-2000:]
        return printed

    said(configs, "admin", *carol, "--alter", "--add-config", f"SCRAM-SHA-512=[iterations=8192,password={PASSWORD}]")
    assert "SCRAM-SHA-512=iterations=8192" in said(configs, "admin", *carol, "--describe")
    denied = written_by_carol(cluster)
    assert denied is not None
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    writes = ("--allow-principal", "User:carol", "--producer", "--topic", "orders")
    said(acls, "admin", "--add", *writes)
    listed = said(acls, "admin", "--list", "--topic", "orders")
    assert "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)" in listed
    assert "(principal=User:carol, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    assert written_by_carol(cluster) is None
    code, refused = run(acls, "guest", "--list")
    assert (code, "ClusterAuthorizationException" in refused) == (1, True), refused
    said(acls, "admin", "--remove", "--force", *writes)
    assert "carol" not in said(acls, "admin", "--list", "--topic", "orders")
    said(configs, "admin", *carol, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM" not in said(configs, "admin", *carol, "--describe")
