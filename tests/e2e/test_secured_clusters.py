"""Clusters of LocalCluster under each security protocol, and the settings that they give to clients."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import javaproperties
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import KafkaError, Producer

from minikafka import Consumer
from minikafka.errors import InvalidConfig, InvalidRequest, TopicAuthorizationFailed
from minikafka.testing.local_cluster import LocalCluster
from minikafka.testing.plugin import QUICK

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
USERS = {"shop": 'se"c\\r, et=;', "guest": "x"}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module", params=["SASL_PLAINTEXT", "SASL_SSL"])
def cluster(request):
    """Three brokers whose clients log in, with a topic ``orders`` to which ``shop`` may write."""
    with LocalCluster(3, config=QUICK, security_protocol=request.param, users=USERS) as running:
        running.sync.create_topic("orders")
        running.sync.allow("shop", "Write", "Describe", topic="orders")
        yield running


def produce(settings: dict[str, str]) -> KafkaError | None:
    """Produce one record to ``orders``; return its error."""
    errors: list[KafkaError | None] = []
    producer = Producer({**settings, "message.timeout.ms": 30_000})
    producer.produce("orders", b"tea", on_delivery=lambda error, _: errors.append(error))
    producer.flush(PATIENCE_S)
    return errors[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_users_log_in_with_every_mechanism_and_need_acls(cluster: LocalCluster, mechanism: str):
    """The password is quoted for each client as it needs it; ``admin`` is a super user, ``guest`` has no ACL."""
    assert produce(cluster.confluent_config(mechanism=mechanism)) is None
    assert produce(cluster.confluent_config("shop", mechanism)) is None
    denied = produce(cluster.confluent_config("guest", mechanism))
    assert denied is not None
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_connects_with_its_parameters(cluster: LocalCluster, mechanism: str):
    """The same through aiokafka: right, and without an ACL."""
    async with AIOKafkaProducer(**cluster.aiokafka_config("shop", mechanism)) as producer:
        await producer.send_and_wait("orders", b"milk")
    async with AIOKafkaProducer(**cluster.aiokafka_config("guest", mechanism)) as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait("orders", b"milk")


async def test_a_certificate_is_the_same_principal_as_a_login(cluster: LocalCluster):
    """Native clients call the listener of brokers: with TLS as the owner of a certificate, without it unchecked."""
    async with Consumer("orders", auto_offset_reset="earliest", **cluster.client_settings("shop")) as consumer:
        if cluster.certificates is None:
            assert (await consumer.getone()).topic == "orders"
        else:
            with pytest.raises(TopicAuthorizationFailed):  # it may write
                await consumer.getone()


def test_names_that_are_unknown_are_refused(cluster: LocalCluster):
    """With the names that are known; a password is in no error."""
    with pytest.raises(InvalidConfig, match="no user 'nobody', only admin, guest, shop"):
        cluster.confluent_config("nobody")
    with pytest.raises(InvalidRequest, match="'Reed' is no operation"):
        cluster.sync.allow("shop", "Reed", topic="orders")
    with pytest.raises(InvalidRequest, match="no resource is named"):
        cluster.sync.allow("shop", "Read")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"security_protocol": "TLS"}, "use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security_protocol": "SSL", "users": {"a": "x"}}, "users need security_protocol='SASL_SSL'"),
        ({"security_protocol": "SASL_SSL", "users": {"a b": "canary"}}, "the user 'a b' needs a password, and a name"),
        ({"security_protocol": "PLAINTEXT", "tls": True}, "tls=True contradicts security_protocol='PLAINTEXT'"),
    ],
)
def test_bad_arguments_name_what_is_possible(asked: dict[str, object], sentence: str):
    """Before a file is written or a port is taken."""
    with pytest.raises(InvalidConfig) as refused:
        LocalCluster(1, **asked)
    assert sentence in str(refused.value)
    assert "canary" not in str(refused.value)


def test_a_cluster_with_files_of_its_own_starts_again_with_new_passwords(tmp_path: Path):
    """Its files have passwords of PLAIN, so that they are private; a user that is left out keeps its SCRAM login."""
    with LocalCluster(1, tmp_path, config=QUICK, security_protocol="SASL_PLAINTEXT", users={"a": "old"}) as running:
        running.sync.create_topic("orders")
        running.sync.allow("a", topic="orders")
        assert produce(running.confluent_config("a")) is None
    assert stat.S_IMODE((tmp_path / "broker-1" / "broker.properties").stat().st_mode) == 0o600
    with LocalCluster(1, tmp_path, security_protocol="SASL_PLAINTEXT", users={"a": "new"}) as running:
        assert produce(running.confluent_config("a")) is None
        assert produce({**running.confluent_config("a", "PLAIN"), "sasl.password": "new"}) is None
    with pytest.raises(InvalidConfig, match="with SASL_PLAINTEXT, not PLAINTEXT"):
        LocalCluster(1, tmp_path)


@pytest.mark.kcat
def test_kcat_reads_the_configuration_as_a_file(cluster: LocalCluster, tmp_path: Path):
    """The same dictionary, written line by line."""
    file = tmp_path / "kcat.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in cluster.confluent_config().items()))
    done = subprocess.run(
        ["kcat", "-F", str(file), "-L"], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert 'topic "orders"' in done.stdout


def test_java_reads_its_properties_back(cluster: LocalCluster):
    """Escapes of .properties and of JAAS; Java's own tools connect with them in tests/foreign."""
    settings = cluster.java_config("shop", "PLAIN")
    text = javaproperties.dumps(settings, timestamp=False)
    assert javaproperties.loads(text) == settings
    assert settings["sasl.jaas.config"].endswith('username="shop" password="se\\"c\\\\r, et=;";')
