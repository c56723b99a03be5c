"""Switching from aiokafka is an import: the same names, and clear words where minikafka has less."""

from __future__ import annotations

import inspect
import os
import ssl
import subprocess
import sys
from inspect import signature
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.structs
import pytest

import minikafka
from minikafka import AdminClient, Consumer, Producer
from minikafka.client.settings import (
    CALLED_HERE,
    NOT_USED_HERE,
    REASONS,
    AdminConfig,
    ConsumerConfig,
    ProducerConfig,
    build,
)
from minikafka.errors import InvalidConfig

LATER = {
    "AIOKafkaProducer": "client",
    "AIOKafkaConsumer": "last_poll_timestamp",
    "AIOKafkaAdminClient": "",
}
"""What is left out."""

PAIRS = [
    (aiokafka.AIOKafkaProducer, minikafka.Producer, ProducerConfig),
    (aiokafka.AIOKafkaConsumer, minikafka.Consumer, ConsumerConfig),
    (aiokafka.admin.AIOKafkaAdminClient, minikafka.AdminClient, AdminConfig),
]


def public_methods(kind: type) -> dict[str, Any]:
    return {name: each for name, each in vars(kind).items() if callable(each) and not name.startswith("_")}


@pytest.mark.parametrize("theirs, ours, _config", PAIRS)
def test_methods_have_aiokafkas_names_and_parameters(theirs: type, ours: Any, _config: Any):
    """Issue 2, item 6: every public method of aiokafka's class that this slice has, with its parameters in order."""
    for name, method in public_methods(theirs).items():
        if name in LATER[theirs.__name__].split():
            assert not hasattr(ours, name), f"{name} exists now: take it off the list"
            continue
        wanted = list(inspect.signature(method).parameters)
        found = list(inspect.signature(getattr(ours, name)).parameters)
        missing = [each for each in wanted if each not in found and each not in {"pattern", "listener"}]
        assert not missing, f"{name}: {missing}"


@pytest.mark.parametrize("theirs, _ours, config", PAIRS)
def test_settings_have_aiokafkas_names(theirs: type, _ours: type, config: Any):
    """Issue 2, item 6: every constructor parameter of aiokafka is used, or taken with its default value."""
    for name, parameter in inspect.signature(theirs).parameters.items():
        if name in {"topics", "bootstrap_servers"}:
            continue
        if name in NOT_USED_HERE:
            build(config, {name: parameter.default})
        else:
            assert name in config.__dataclass_fields__, name


@pytest.mark.parametrize(
    ("settings", "uses_tls"),
    [
        ({}, False),
        ({"bootstrap_servers": "http://a:1"}, False),
        ({"security_protocol": "SSL"}, True),
        ({"bootstrap_servers": ["a:1", "https://b:1"]}, True),
        ({"ssl_cafile": "ca.pem"}, True),
        ({"ssl_certfile": "me.pem"}, True),
        ({"ssl_context": ssl.create_default_context()}, True),
    ],
)
def test_whatever_names_tls_turns_it_on(settings: dict[str, Any], uses_tls: bool):
    """A client with a CA file that connected in plain text would send everything to the wrong listener."""
    assert build(ProducerConfig, settings).uses_tls is uses_tls


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"ssl_keyfile": "key.pem"}, "ssl_keyfile"),
        ({"ssl_context": ssl.create_default_context(), "ssl_cafile": "ca.pem"}, "ssl_context"),
        ({"ssl_cafile": "/no/such/file"}, "ssl_cafile"),
        ({"ssl_certfile": "/no/such/file"}, "ssl_certfile"),
        ({"ssl_cafile": __file__}, "ssl_cafile"),
        ({"ssl_certfile": __file__}, "ssl_certfile"),
    ],
)
def test_files_for_tls_that_cannot_be_used_are_refused_at_once(settings: dict[str, Any], named: str):
    """By name, when the client is made and not when it first connects."""
    with pytest.raises(InvalidConfig) as raised:
        Producer(**settings)
    assert raised.value.facts["setting"] == named


def test_records_have_aiokafkas_members():
    """Issue 2, item 6: what comes back reads the same."""
    assert minikafka.RecordMetadata._fields == aiokafka.structs.RecordMetadata._fields
    assert set(minikafka.ConsumerRecord._fields) == set(aiokafka.structs.ConsumerRecord.__dataclass_fields__)
    assert minikafka.TopicPartition("t", 1) == aiokafka.structs.TopicPartition("t", 1)
    assert minikafka.OffsetAndTimestamp._fields[:2] == aiokafka.structs.OffsetAndTimestamp._fields


def test_settings_that_cannot_be_granted_are_refused():
    """A security setting must not be ignored silently; a misspelt name gets the nearest one."""
    with pytest.raises(InvalidConfig, match="need sasl_plain_username"):
        build(ProducerConfig, {"security_protocol": "SASL_SSL"})
    with pytest.raises(InvalidConfig, match="sasl_plain_password needs security_protocol"):
        build(ProducerConfig, {"sasl_plain_password": "secret"})
    with pytest.raises(InvalidConfig, match="sasl_mechanism='SCRAM-SHA-512'"):
        build(ProducerConfig, {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"})
    with pytest.raises(InvalidConfig, match="did you mean linger_ms"):
        build(ProducerConfig, {"linger_m": 5})
    assert build(ProducerConfig, {"acks": 1, "security_protocol": "PLAINTEXT"}).idempotent is False


def test_the_public_names_are_these():
    """STYLE 16: a small public face, pinned; everything else may move."""
    assert minikafka.__all__ == [
        "AdminClient",
        "CommitFailed",
        "Consumer",
        "ConsumerRebalanceListener",
        "ConsumerRecord",
        "GroupMetadata",
        "LocalCluster",
        "NewTopic",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "Producer",
        "RecordMetadata",
        "TopicPartition",
        "WakeUp",
        "__version__",
    ]
    for name in minikafka.__all__:
        assert getattr(minikafka, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        _ = minikafka.Nobody  # type: ignore[attr-defined]
    assert "acks" in inspect.signature(minikafka.Producer).parameters


def test_dir_lists_the_public_names_before_their_first_use():
    """Issue 13, section 0: a REPL completes `minikafka.Pro`, and dir() loads no client."""
    code = (
        "import sys, minikafka; names = dir(minikafka); "
        "print(set(minikafka.__all__) <= set(names), 'aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import minikafka", ("pathlib", "importlib.abc", "tempfile", "typing", "minikafka.wire")),
        ("import minikafka.cli.root", ("aiohttp", "minikafka.wire.kafka", "minikafka.broker")),
        (
            "import minikafka\nwith minikafka.LocalCluster(brokers=1) as cluster:\n    cluster.sync.create_topic('orders')",
            ("minikafka.broker.kafka_session", "minikafka.wire.kafka.codec", "minikafka.wire.kafka.translate"),
        ),
    ],
    ids=["the package", "the command line", "a cluster"],
)
def test_modules_are_loaded_when_they_are_needed(code, unwanted):
    """Issue 14: a process without Kafka clients does not load their codec, and an import loads little."""
    ending = f"\nimport sys; print([name for name in {unwanted!r} if name in sys.modules])"
    # MINIKAFKA_PURE: compiled modules that are installed need pathlib to be found.
    environment = {**os.environ, "MINIKAFKA_PURE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code + ending], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("config", "name", "hint"),
    [
        (ProducerConfig, "batch_size", "it is max_batch_size here"),
        (ProducerConfig, "batch.size", "it is max_batch_size here"),
        (ProducerConfig, "linger.ms", "it is linger_ms here"),
        (ProducerConfig, "retries", "retried until delivery_timeout_ms is over"),
        (ProducerConfig, "message.timeout.ms", "it is delivery_timeout_ms here"),
        (ProducerConfig, "queue.buffering.max.ms", "it is linger_ms here"),
        (ProducerConfig, "on_delivery", "send() returns a future"),
        (ConsumerConfig, "group.id", "it is group_id here"),
        (ConsumerConfig, "topics", 'topics are positional arguments: Consumer("orders"'),
        (ConsumerConfig, "fetch.wait.max.ms", "it is fetch_max_wait_ms here"),
        (ConsumerConfig, "ssl.ca.location", "it is ssl_cafile here"),
        (ConsumerConfig, "ssl_check_hostname", "give an ssl_context"),
        (ConsumerConfig, "sasl.username", "it is sasl_plain_username here"),
        (ProducerConfig, "sasl.mechanisms", "it is sasl_mechanism here"),
        (AdminConfig, "sasl_jaas_config", "logs in with sasl_plain_username and sasl_plain_password"),
        (AdminConfig, "broker_list", "it is bootstrap_servers here"),
        (AdminConfig, "client_idd", "did you mean client_id?"),
    ],
)
def test_settings_of_other_clients_name_the_parameter_here(config, name, hint):
    """People come with kafka-python's, confluent-kafka's and Java's names: the error names the right one."""
    with pytest.raises(InvalidConfig) as raised:
        build(config, {name: 1})
    assert raised.value.message.startswith(f"unknown parameter {name}; ")
    assert hint in raised.value.message


def test_every_name_of_another_client_leads_to_a_parameter():
    """A hint that names what does not exist would be worse than none."""
    known = {name for config in (ProducerConfig, ConsumerConfig, AdminConfig) for name in signature(config).parameters}
    assert set(CALLED_HERE.values()) <= known
    assert not known & (CALLED_HERE.keys() | REASONS.keys())


@pytest.mark.parametrize("client", [Producer, Consumer, AdminClient])
def test_a_dictionary_of_settings_is_answered_with_the_call(client):
    """confluent-kafka takes one dictionary with dotted names."""
    wanted = rf"{client.__name__}\(bootstrap_servers=\.\.\., client_id=\.\.\.\)"
    with pytest.raises(InvalidConfig, match=wanted):
        client({"bootstrap.servers": "127.0.0.1:1", "client.id": "c"})


def test_a_list_of_topics_is_answered_with_the_form():
    """`subscribe(["orders"])` takes a list in other clients; here each topic is an argument."""
    with pytest.raises(InvalidConfig, match="topics are positional arguments"):
        Consumer(["orders"])
    with pytest.raises(InvalidConfig, match="keyword arguments only"):
        Producer("127.0.0.1:9092")
