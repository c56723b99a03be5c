"""Unmodified clients of Kafka against a cluster of minikafka: confluent-kafka (librdkafka), aiokafka, kafka-python.

Each produces, consumes, joins groups, commits and administers over Kafka's binary protocol on the brokers' one port.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from minikafka import LocalCluster
from minikafka.world.os_disk import OsRegion

pytestmark = [pytest.mark.e2e]

# For what hangs: nothing here takes a tenth of it.
PATIENCE_S = 60.0

QUIET = {"log_level": 0}
"""librdkafka writes to stderr when brokers go away."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers for everything that kills none."""
    with LocalCluster(brokers=3, config={"group.initial.rebalance.delay.ms": "0"}) as made:
        yield made


def created(cluster: LocalCluster, name: str, partitions: int = 3, **config: str) -> str:
    cluster.sync.create_topic(name, partitions=partitions, config={"min.insync.replicas": "2", **config})
    return name


def admin_of(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})


def done(futures: dict[Any, Any]) -> list[Any]:
    """The results of an admin call; the dictionary has to live until then."""
    return [future.result(PATIENCE_S) for future in futures.values()]


def written(cluster: LocalCluster, topic: str, values: list[bytes], **config: Any) -> list[Any]:
    """Produce with librdkafka; returns the errors of deliveries."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET, **config})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            key=b"key-%d" % (number % 7),
            value=value,
            headers=[("number", b"%d" % number)],
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    return errors


def read(cluster: LocalCluster, topic: str, count: int, **config: Any) -> list[Any]:
    """Consume with librdkafka, in a group of its own."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"readers-of-{topic}",
            "auto.offset.reset": "earliest",
            **QUIET,
            **config,
        }
    )
    consumer.subscribe([topic])
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_produces_and_consumes_with_each_compression(cluster: LocalCluster, codec: str):
    """Values, keys, headers and order within each partition survive; the producer is idempotent."""
    topic = created(cluster, f"codec-{codec}")
    values = [b"%s value %d " % (codec.encode(), number) * 20 for number in range(500)]
    assert written(cluster, topic, values, **{"compression.type": codec, "enable.idempotence": True}) == []
    found = read(cluster, topic, 500)
    assert sorted(each.value() for each in found) == sorted(values)
    assert all(each.key() == b"key-%d" % (int(each.headers()[0][1]) % 7) for each in found)
    for partition in range(3):
        numbers = [int(each.headers()[0][1]) for each in found if each.partition() == partition]
        assert numbers == sorted(numbers)


def test_librdkafka_reads_batches_that_the_broker_compressed_again(cluster: LocalCluster):
    """compression.type of the topic: large batches of another codec arrive in order and are readable."""
    topic = created(cluster, "compressed-again", partitions=1, **{"compression.type": "zstd"})
    values = [b"value %d " % number * 40 for number in range(3000)]
    for codec in ("none", "lz4"):
        assert written(cluster, topic, values, **{"compression.type": codec, "enable.idempotence": True}) == []
    assert [each.value() for each in read(cluster, topic, 6000)] == values * 2


def test_librdkafka_learns_that_there_are_no_acls(cluster: LocalCluster):
    """SECURITY_DISABLED, as from a Kafka broker without an authorizer."""
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = admin_of(cluster)
    # librdkafka 2.16 returns an empty list from describe_acls for this error; kafka-python raises it.
    (deleting,) = admin.delete_acls([everything]).values()
    with pytest.raises(KafkaException) as raised:
        deleting.result(PATIENCE_S)
    assert raised.value.args[0].code() == KafkaError.SECURITY_DISABLED


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_librdkafka_produces_with_each_acks(cluster: LocalCluster, acks: str):
    """acks=0 has no answers, and is written all the same."""
    topic = created(cluster, f"acks-{acks}")
    assert written(cluster, topic, [b"%d" % number for number in range(300)], acks=acks) == []
    assert len(read(cluster, topic, 300)) == 300


def test_librdkafka_group_shares_commits_and_resumes(cluster: LocalCluster):
    """Two members share the partitions; a third that comes later begins where they have committed."""
    topic = created(cluster, "shared", partitions=4)
    assert written(cluster, topic, [b"%d" % number for number in range(400)]) == []
    settings = {
        "group.id": "sharers",
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.auto.commit": False,
    }
    first, second = (
        Consumer({"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest", **QUIET, **settings})
        for _ in range(2)
    )
    seen: Counter[bytes] = Counter()

    def read_to() -> int:
        return sum(max(0, each.offset) for member in (first, second) for each in member.position(member.assignment()))

    try:
        for member in (first, second):
            member.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        # A member that is given a partition late reads it again from its start: nothing was committed.
        while time.monotonic() < deadline and not (
            len(seen) == 400 and [len(each.assignment()) for each in (first, second)] == [2, 2] and read_to() == 400
        ):
            for member in (first, second):
                for message in member.consume(100, 0.1):
                    assert message.error() is None, message.error()
                    seen[message.value()] += 1
        assert len(seen) == 400
        assert read_to() == 400
        for member in (first, second):
            member.commit(offsets=member.position(member.assignment()), asynchronous=False)
        admin = admin_of(cluster)
        described = done(admin.describe_consumer_groups(["sharers"]))[0]
        assert described.state.name == "STABLE"
        assert sorted(len(each.assignment.topic_partitions) for each in described.members) == [2, 2]
    finally:
        first.close()
        second.close()
    committed = Consumer({"bootstrap.servers": cluster.bootstrap, **QUIET, **settings})
    positions = committed.committed([TopicPartition(topic, number) for number in range(4)], PATIENCE_S)
    committed.close()
    assert sum(each.offset for each in positions) == 400


def test_librdkafka_administers(cluster: LocalCluster):
    """Topics, partitions, settings, offsets, records, groups and the cluster itself."""
    admin = admin_of(cluster)
    topics = admin.create_topics([NewTopic("managed", 2, 3, config={"retention.ms": "60000"}), NewTopic("bad name", 1)])
    assert topics["managed"].result(PATIENCE_S) is None
    with pytest.raises(KafkaException) as refused:
        topics["bad name"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    again = admin.create_topics([NewTopic("managed", 2, 3)])
    with pytest.raises(KafkaException) as refused:
        again["managed"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS

    resource = ConfigResource(ConfigResource.Type.TOPIC, "managed")
    described = done(admin.describe_configs([resource]))[0]
    assert described["retention.ms"].value == "60000"
    change = ConfigEntry("retention.ms", "70000", incremental_operation=AlterConfigOpType.SET)
    done(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "managed", incremental_configs=[change])]))
    assert done(admin.describe_configs([resource]))[0]["retention.ms"].value == "70000"
    brokers = done(admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "2")]))[0]
    assert brokers["node.id"].value == "2"

    done(admin.create_partitions([NewPartitions("managed", 5)]))
    assert len(admin.list_topics("managed", PATIENCE_S).topics["managed"].partitions) == 5

    assert written(cluster, "managed", [b"%d" % number for number in range(100)]) == []
    partition = TopicPartition("managed", 0)
    latest = done(admin.list_offsets({partition: OffsetSpec.latest()}))[0].offset
    newest = done(admin.list_offsets({partition: OffsetSpec.max_timestamp()}))[0].offset
    assert 0 <= newest < latest
    low = done(admin.delete_records([TopicPartition("managed", 0, 1)]))[0].low_watermark
    assert low == 1
    assert done(admin.list_offsets({partition: OffsetSpec.earliest()}))[0].offset == 1

    found = admin.describe_cluster().result(PATIENCE_S)
    assert sorted(each.id for each in found.nodes) == [1, 2, 3]
    read(cluster, "managed", 99, **{"group.id": "short-lived"})
    assert "short-lived" in [each.group_id for each in admin.list_consumer_groups().result(PATIENCE_S).valid]
    done(admin.delete_consumer_groups(["short-lived"]))
    assert "short-lived" not in [each.group_id for each in admin.list_consumer_groups().result(PATIENCE_S).valid]
    done(admin.delete_topics(["managed"]))
    assert "managed" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_librdkafka_finds_a_topic_that_was_deleted_and_created_again(cluster: LocalCluster):
    """Its id is another; a producer that lives through it goes on with the new one."""
    created(cluster, "reborn", partitions=1)
    assert written(cluster, "reborn", [b"old"]) == []
    admin = admin_of(cluster)
    done(admin.delete_topics(["reborn"]))
    created(cluster, "reborn", partitions=1)
    assert written(cluster, "reborn", [b"new"]) == []
    assert [each.value() for each in read(cluster, "reborn", 1)] == [b"new"]


def test_offsets_by_time(cluster: LocalCluster):
    """ListOffsets with a timestamp: the first record that is not older."""
    topic = created(cluster, "timed", partitions=1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for number in range(10):
        producer.produce(topic, value=b"%d" % number, timestamp=1_700_000_000_000 + 1000 * number)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "timed", **QUIET})
    at = consumer.offsets_for_times([TopicPartition(topic, 0, 1_700_000_004_500)], PATIENCE_S)
    beyond = consumer.offsets_for_times([TopicPartition(topic, 0, 1_800_000_000_000)], PATIENCE_S)
    consumer.close()
    assert at[0].offset == 5
    assert beyond[0].offset == -1


async def test_aiokafka_produces_consumes_and_commits(cluster: LocalCluster):
    """Plain and idempotent producers (the plain one sends baseSequence 0 without a producer id), a group, seeks."""
    topic = created(cluster, "aio", partitions=2)
    for is_idempotent in (False, True):
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, enable_idempotence=is_idempotent, compression_type="zstd"
        )
        async with producer:
            for number in range(50):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap, group_id="aio", auto_offset_reset="earliest"
    )
    async with consumer:
        values = [(await consumer.getone()).value for _ in range(100)]
        await consumer.commit()
        positions = {part: await consumer.committed(part) for part in consumer.assignment()}
    assert Counter(values) == Counter([b"%d" % number for number in range(50)] * 2)
    assert positions == {AioPartition(topic, 0): 50, AioPartition(topic, 1): 50}


async def test_aiokafka_administers(cluster: LocalCluster):
    """Its admin client speaks old versions of the APIs."""
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    try:
        created(cluster, "aio-admin")
        assert "aio-admin" in await admin.list_topics()
        described = await admin.describe_topics(["aio-admin"])
        assert len(described[0]["partitions"]) == 3
        await admin.delete_topics(["aio-admin"])
        assert "aio-admin" not in await admin.list_topics()
    finally:
        await admin.close()


def test_kafka_python_produces_consumes_and_administers(cluster: LocalCluster):
    """kafka-python 3 speaks the newest versions that are offered."""
    topic = created(cluster, "pure", partitions=2)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for number in range(100):
        producer.send(topic, b"%d" % number)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id="pure",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_S * 1000),
    )
    values = [next(consumer).value for _ in range(100)]
    consumer.commit()
    consumer.close()
    assert sorted(values, key=int) == [b"%d" % number for number in range(100)]
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        assert topic in admin.list_topics()
        assert "pure" in [each["group_id"] for each in admin.list_groups()]
    finally:
        admin.close()
    with warnings.catch_warnings():  # its clients may leave a socket open, which another test would be blamed for
        warnings.simplefilter("ignore", ResourceWarning)
        del producer, consumer, admin
        gc.collect()


def test_nothing_is_lost_or_doubled_when_a_leader_is_killed():
    """An idempotent librdkafka producer goes on through a kill of the partition's leader; every record is there once."""
    settings = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
    with LocalCluster(brokers=3, config=settings) as cluster:
        topic = created(cluster, "killed", partitions=1)
        leader = cluster.sync.wait.leader(topic)
        errors: list[Any] = []
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                **QUIET,
            }
        )
        killer = threading.Timer(0.3, cluster.kill, (leader,))
        killer.start()
        for number in range(3000):
            producer.produce(
                topic, value=b"%d" % number, on_delivery=lambda error, _: errors.append(error) if error else None
            )
            producer.poll(0.0005)
        assert producer.flush(PATIENCE_S) == 0
        killer.join()
        assert errors == []
        assert cluster.sync.wait.leader(topic) != leader
        # The topic of committed offsets has three replicas, so it can be created only while three brokers live.
        cluster.restart(leader)
        found = [int(each.value()) for each in read(cluster, topic, 3000)]
        assert found == list(range(3000))


def test_large_fetches_beyond_the_memory_tail_are_sent_from_the_file(monkeypatch: pytest.MonkeyPatch):
    """The same bytes reach a Kafka client and the native one; no fetch of theirs reads them into the broker."""
    values = [bytes([65 + number]) * 300_000 for number in range(8)]
    sent: list[int] = []
    real = OsRegion.send

    def counted(self: OsRegion, *given: int) -> int:
        size = real(self, *given)
        sent.append(size)
        return size

    monkeypatch.setattr(OsRegion, "send", counted)
    with LocalCluster(brokers=1, config={"mk.memory.tails.bytes": "0"}) as cluster:
        cluster.sync.create_topic("files", partitions=1)
        for value in values:
            cluster.sync.produce("files", value, partition=0)
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "isolation.level": "read_uncommitted", **QUIET}
        )
        try:
            consumer.assign([TopicPartition("files", 0, 0)])
            got = consumer.consume(len(values), PATIENCE_S)
            assert [each.value() for each in got] == values
        finally:
            consumer.close()
        assert sum(sent) > sum(map(len, values))
        sent.clear()
        assert [each.value for each in cluster.sync.consume("files", len(values))] == values
        assert sum(sent) > sum(map(len, values))


def test_librdkafka_commits_and_aborts_transactions(cluster: LocalCluster):
    """Over several partitions and brokers; a second producer with the same id fences the first."""
    topic = created(cluster, "librdkafka-transactions")
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "librdkafka", **QUIET}
    first = Producer(settings)
    first.init_transactions(PATIENCE_S)
    for number in range(4):
        first.begin_transaction()
        for partition in range(3):
            first.produce(topic, b"%d-%d" % (number, partition), partition=partition)
        if number % 2:
            # An abort drops what is not sent yet.
            assert first.flush(PATIENCE_S) == 0
            first.abort_transaction(PATIENCE_S)
        else:
            first.commit_transaction(PATIENCE_S)
    first.begin_transaction()
    first.produce(topic, b"fenced", partition=0)
    assert first.flush(PATIENCE_S) == 0
    second = Producer(settings)
    second.init_transactions(PATIENCE_S)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"last", partition=0)
    second.commit_transaction(PATIENCE_S)
    found = read(cluster, topic, 14, **{"isolation.level": "read_uncommitted"})
    expected = [b"%d-%d" % (number, partition) for number in range(4) for partition in range(3)]
    assert sorted(each.value() for each in found) == sorted([*expected, b"fenced", b"last"])
    committed = [b"%d-%d" % (number, partition) for number in (0, 2) for partition in range(3)]
    found = read(cluster, topic, 7, **{"isolation.level": "read_committed", "group.id": f"committed-of-{topic}"})
    assert sorted(each.value() for each in found) == sorted([*committed, b"last"])


def test_consume_and_explain_show_an_open_transaction(cluster: LocalCluster):
    """The command line reads up to it with read_committed, and explain names it until it has ended."""
    topic = created(cluster, "open-transaction", partitions=1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "open", **QUIET})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"first")
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(PATIENCE_S) == 0

    def explained() -> dict[str, Any]:
        path = f"http://{cluster.bootstrap_servers.split(',')[0]}/v1/topics/{topic}/partitions/0/explain"
        with urllib.request.urlopen(path, timeout=30) as answer:
            return json.loads(answer.read())["last_stable_offset"]  # type: ignore[no-any-return]

    def consumed(level: str) -> list[str]:
        command = [sys.executable, "-m", "minikafka", "consume", topic, "-b", cluster.bootstrap, "--from-beginning"]
        command += ["--exit-at-end", "--isolation-level", level]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()

    held = explained()
    assert (held["last_stable_offset"], held["held_by"]["first_offset"], held["held_by"]["marker_offset"]) == (
        2,
        2,
        None,
    )
    assert held["held_by"]["started_at"].startswith("20")
    assert held["sentence"].endswith(f"({held['held_by']['started_at']}) and is open")
    assert consumed("read_committed") == ["first"]
    assert consumed("read_uncommitted") == ["first", "open"]
    producer.abort_transaction(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while (held := explained())["held_by"] is not None:
        assert time.monotonic() < deadline, held
        time.sleep(0.05)
    assert held["last_stable_offset"] == 4
    assert consumed("read_committed") == ["first"]


async def test_aiokafka_commits_and_aborts_transactions(cluster: LocalCluster):
    """It sends version 0 of every request of transactions."""
    topic = created(cluster, "aiokafka-transactions")
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="aiokafka") as producer:
        async with producer.transaction():
            await producer.send(topic, b"kept", partition=0)
        with pytest.raises(LookupError):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"dropped", partition=0)
                raise LookupError
        async with producer.transaction():
            await producer.send(topic, b"kept too", partition=0)
    found = read(cluster, topic, 3, **{"isolation.level": "read_uncommitted"})
    assert [each.value() for each in found] == [b"kept", b"dropped", b"kept too"]
    found = read(cluster, topic, 2, **{"isolation.level": "read_committed", "group.id": f"committed-of-{topic}"})
    assert [each.value() for each in found] == [b"kept", b"kept too"]


def test_kafka_python_commits_and_aborts_transactions(cluster: LocalCluster):
    """As documented by its authors."""
    topic = created(cluster, "kafka-python-transactions")
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="kafka-python")
    producer.init_transactions()
    for value, commit in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.send(topic, value, partition=0).get(PATIENCE_S)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    found = read(cluster, topic, 3, **{"isolation.level": "read_uncommitted"})
    assert [each.value() for each in found] == [b"kept", b"dropped", b"kept too"]
    found = read(cluster, topic, 2, **{"isolation.level": "read_committed", "group.id": f"committed-of-{topic}"})
    assert [each.value() for each in found] == [b"kept", b"kept too"]
