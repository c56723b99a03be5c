"""Faults on links strike Kafka's own clients, by their client id (issue 14, Build 6)."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
import urllib.request
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import Consumer, Producer

from minikafka import LocalCluster

pytestmark = pytest.mark.e2e

# For what hangs: nothing here takes a tenth of it.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as made:
        yield made


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())
    cluster.sync.create_topic(name, partitions=1)
    yield name
    cluster.sync.faults.heal()


def produced(cluster: LocalCluster, topic: str, client_id: str, **config: object) -> None:
    """One record by librdkafka, which retries until it is acknowledged."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "client.id": client_id, "log_level": 0, **config}
    )
    errors: list[object] = []
    producer.produce(topic, b"tea", on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(PATIENCE_S) == 0
    assert errors == []


@pytest.mark.parametrize("is_idempotent, copies", [(False, 2), (True, 1)])
def test_the_answer_that_one_client_loses_makes_it_retry(
    cluster: LocalCluster, topic: str, is_idempotent: bool, copies: int
):
    """The record was written and librdkafka cannot know: its retry writes twice, or once where it is idempotent."""
    lost = cluster.sync.faults.cut("*>client:billing", api="Produce", message="answer", count=1)
    produced(cluster, topic, "shipping")
    assert lost.hits == 0
    produced(cluster, topic, "billing", **{"enable.idempotence": is_idempotent})
    assert lost.hits == 1
    assert cluster.sync.wait.log_end(topic, 0, 1 + copies) == 1 + copies
    (hit,) = [each for each in cluster.events.all("fault_hit") if each["fault"] == lost.number]
    assert (hit["target"], hit["api"], hit["message"]) == ("client:billing", "Produce", "answer")


def test_a_request_that_is_cut_was_not_written(cluster: LocalCluster, topic: str):
    """The connection breaks before the request is handled; the retry is the only copy, whatever the client is."""
    cut = cluster.sync.faults.cut("client>*", api="Produce", message="request", count=1)
    produced(cluster, topic, "billing")
    assert cut.hits == 1
    assert cluster.sync.wait.log_end(topic, 0, 1) == 1


def test_a_request_that_is_dropped_is_sent_again_when_its_time_is_up(cluster: LocalCluster, topic: str):
    """The connection stays silent; librdkafka gives up waiting and uses another one."""
    dropped = cluster.sync.faults.drop("client:patient>*", api="Produce", message="request", count=1)
    produced(cluster, topic, "patient", **{"request.timeout.ms": 1000, "socket.timeout.ms": 1500})
    assert dropped.hits == 1
    assert cluster.sync.wait.log_end(topic, 0, 1) == 1


async def test_a_request_that_is_held_waits_until_it_is_healed(cluster: LocalCluster, topic: str):
    """Requests of other clients pass meanwhile."""
    held = cluster.faults.hold("client:slow>*", api="Produce", message="request")
    slow, quick = (
        AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, client_id=name) for name in ("slow", "quick")
    )
    async with slow, quick:
        sending = asyncio.ensure_future(slow.send_and_wait(topic, b"milk"))
        await held.wait_hits(1)
        assert (await quick.send_and_wait(topic, b"tea")).offset == 0
        assert not sending.done()
        held.heal()
        assert (await sending).offset == 1


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS"])
def test_librdkafka_retries_a_request_that_is_answered_with_an_error(cluster: LocalCluster, topic: str, error: str):
    """The request is not handled, so the retry writes the only copy; another client is not struck."""
    refused = cluster.sync.faults.error("client:billing>*", error, api="Produce", count=2)
    produced(cluster, topic, "shipping")
    assert refused.hits == 0
    produced(cluster, topic, "billing")
    assert (refused.hits, refused.is_active) == (2, False)
    assert cluster.sync.wait.log_end(topic, 0, 2) == 2


async def test_aiokafka_raises_a_final_error_that_a_fault_answers(cluster: LocalCluster, topic: str):
    """An error that no retry helps reaches the application, and nothing was written."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, client_id="final") as producer:
        cluster.faults.error("client:final>*", "TOPIC_AUTHORIZATION_FAILED", api="Produce", count=1)
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait(topic, b"milk")
        assert (await producer.send_and_wait(topic, b"tea")).offset == 0


def test_a_replaced_answer_makes_an_unsafe_producer_write_twice(cluster: LocalCluster, topic: str):
    """``message="answer"``: the request is handled, and the client reads an error in place of its answer."""
    replaced = cluster.sync.faults.error(
        "*>client:billing", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", api="Produce", message="answer", count=1
    )
    produced(cluster, topic, "billing", **{"enable.idempotence": False})
    assert replaced.hits == 1
    assert cluster.sync.wait.log_end(topic, 0, 2) == 2


@pytest.mark.parametrize("api", ["FindCoordinator", "JoinGroup", "SyncGroup", "Metadata"])
def test_a_consumer_joins_although_a_request_is_refused_once(cluster: LocalCluster, topic: str, api: str):
    """The error is in the field where this API has it: librdkafka asks again."""
    error = {"FindCoordinator": "COORDINATOR_NOT_AVAILABLE", "Metadata": "LEADER_NOT_AVAILABLE"}
    cluster.sync.produce(topic, b"tea")
    refused = cluster.sync.faults.error("client:reader>*", error.get(api, "NOT_COORDINATOR"), api=api, count=1)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "client.id": "reader",
            "group.id": topic,
            "auto.offset.reset": "earliest",
            # A topic whose Metadata was refused is asked about again with the next refresh: every five minutes.
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        record = None
        while record is None and time.monotonic() < deadline:
            found = consumer.poll(1.0)
            record = found if found is not None and found.error() is None else None
        assert record is not None
        assert record.value() == b"tea"
        assert refused.hits == 1
    finally:
        consumer.close()


def test_native_producer_retries_a_request_that_is_answered_with_an_error(cluster: LocalCluster, topic: str):
    """Over /rpc: ``client`` without an id."""
    refused = cluster.sync.faults.error("client>*", "NOT_LEADER_OR_FOLLOWER", api="Produce", count=1)
    (told,) = cluster.sync.produce(topic, b"tea")
    assert (told.offset, refused.hits) == (0, 1)


def test_what_is_held_ends_with_its_broker():
    """Also when its client has left: a broker that is killed runs nothing any more."""
    with LocalCluster(brokers=1) as cluster:
        cluster.sync.create_topic("held", partitions=1, replicas=1)
        held = cluster.sync.faults.hold("client:gone>*", api="Produce", message="request")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "gone", "log_level": 0})
        producer.produce("held", b"tea", on_delivery=lambda error, _: None)
        producer.poll(0)
        held.wait_hits(1)
        producer.purge()
        producer.flush(PATIENCE_S)
        del producer
        cluster.kill(1)
        tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]
        assert [each.get_name() for each in tasks if each.get_name() == "kafka-Produce"] == []


def test_explain_names_the_client_whose_record_was_refused():
    """By client id and by the name and version of its library (KIP-511)."""
    with LocalCluster(brokers=1) as cluster:
        cluster.sync.create_topic("small", partitions=1, replicas=1, config={"max.message.bytes": "1000"})
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "billing", "log_level": 0})
        producer.produce("small", b"x" * 2000, on_delivery=lambda error, _: None)
        assert producer.flush(PATIENCE_S) == 0
        path = f"http://{cluster.bootstrap_servers}/v1/topics/small/partitions/0/explain"
        with urllib.request.urlopen(path, timeout=30) as answer:
            refusal = json.loads(answer.read())["last_refusal"]
        assert refusal["facts"]["client_id"] == "billing"
        assert refusal["facts"]["software"].startswith("confluent-kafka-python ")
        assert refusal["facts"]["protocol"] == "kafka"
        who = f"producer 'billing' ({refusal['facts']['software']}, Kafka protocol)"
        assert refusal["sentence"].startswith(f"{who} was answered MESSAGE_TOO_LARGE (not_written): small-0: ")
