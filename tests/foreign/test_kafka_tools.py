"""The command-line tools of Apache Kafka 4.3.1 and 3.9.1, unmodified, against three brokers of minikafka.

`make test` runs those of 4.3.1, and the console clients of 3.9.1; `make foreign` runs all.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from minikafka import LocalCluster
from tests.e2e.hanging import PRODUCER_ID, leave_hanging
from tests.foreign.kafka_tools import NEWEST, OLDEST, tool_command

pytestmark = [pytest.mark.java, pytest.mark.e2e]

# For what hangs: a tool takes seconds.
PATIENCE_S = 120.0

Run = Callable[..., str]

OTHERS = {
    "org.apache.kafka.tools.ConsoleProducer": "kafka.tools.ConsoleProducer",
    "org.apache.kafka.tools.BrokerApiVersionsCommand": "kafka.admin.BrokerApiVersionsCommand",
    "org.apache.kafka.tools.AclCommand": "kafka.admin.AclCommand",
    "org.apache.kafka.tools.DumpLogSegments": "kafka.tools.DumpLogSegments",
}
"""Main classes of 3.9 that have other names."""

for_both = pytest.mark.parametrize("version", [NEWEST, pytest.param(OLDEST, marks=pytest.mark.every_tool)])
for_foreign = pytest.mark.parametrize("version", [NEWEST, OLDEST])


@pytest.fixture
def topic(version: str, request: pytest.FixtureRequest) -> str:
    """The name of the test's topic."""
    return f"{request.function.__name__.removeprefix('test_')}-{version}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config={"group.initial.rebalance.delay.ms": "0"}) as made:
        yield made


@pytest.fixture
def run(version: str, cluster: LocalCluster, tmp_path: Path) -> Run:
    """Run a tool's main class with the cluster's addresses; returns its output."""

    def run(main: str, *arguments: str, given: str | None = None, bootstrap: bool = True) -> str:
        command = tool_command(version, tmp_path, OTHERS.get(main, main) if version == OLDEST else main)
        command += [*(("--bootstrap-server", cluster.bootstrap) if bootstrap else ()), *arguments]
        done = subprocess.run(
            command, input=given or "", capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{main} {arguments}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout

    return run


TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"


def produce_lines(run: Run, topic: str, version: str, count: int) -> list[str]:
    """Produce records with the console producer; returns their values."""
    option = "--reader-property" if version == NEWEST else "--property"
    properties = (option, "parse.key=true", option, "key.separator=:")
    lines = [f"key-{number}:value-{number}\n" for number in range(count)]
    run("org.apache.kafka.tools.ConsoleProducer", "--topic", topic, *properties, given="".join(lines))
    return [line.partition(":")[2].strip() for line in lines]


def consume_lines(run: Run, topic: str, count: int, *options: str) -> list[str]:
    """Consume this number of records with the console consumer; returns their values."""
    limits = ("--from-beginning", "--max-messages", str(count), "--timeout-ms", "60000")
    return run("org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", topic, *limits, *options).split()


@pytest.mark.parametrize("version", [OLDEST])
def test_console_clients_of_kafka_3(cluster: LocalCluster, run: Run, topic: str, version: str):
    """The console producer and consumer of 3.9."""
    cluster.sync.create_topic(topic, partitions=3)
    values = produce_lines(run, topic, version, 60)
    assert sorted(consume_lines(run, topic, 60)) == sorted(values)


@for_both
def test_topics_records_and_groups(run: Run, topic: str, version: str):
    """kafka-topics, the console producer and consumer, kafka-consumer-groups, kafka-get-offsets."""
    assert f"Created topic {topic}." in run(
        TOPICS, "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "3"
    )
    described = run(TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "Isr: 1,2,3" in described
    values = produce_lines(run, topic, version, 60)
    assert sorted(consume_lines(run, topic, 60, "--group", "java")) == sorted(values)
    assert "java" in run(GROUPS, "--list").split()
    rows = [row.split() for row in run(GROUPS, "--describe", "--group", "java").splitlines() if row.startswith("java")]
    assert sum(int(row[3]) for row in rows) == 60
    assert {row[5] for row in rows} == {"0"}
    reset = ("--group", "java", "--reset-offsets", "--topic", topic, "--to-earliest", "--execute")
    assert run(GROUPS, *reset).count(topic) == 3
    ends = run("org.apache.kafka.tools.GetOffsetShell", "--topic", topic).split()
    assert sum(int(end.rpartition(":")[2]) for end in ends) == 60
    run(GROUPS, "--delete", "--group", "java")
    run(TOPICS, "--delete", "--topic", topic)
    assert topic not in run(TOPICS, "--list").split()


@for_both
@pytest.mark.usefixtures("version")
def test_settings(cluster: LocalCluster, run: Run, topic: str):
    """kafka-configs alters and describes a topic's settings."""
    cluster.sync.create_topic(topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run(CONFIGS, *entity, "--alter", "--add-config", "retention.ms=1000000,cleanup.policy=compact")
    described = run(CONFIGS, *entity, "--describe")
    assert "retention.ms=1000000" in described
    run(CONFIGS, *entity, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms=1000000" not in run(CONFIGS, *entity, "--describe")


@for_both
@pytest.mark.usefixtures("version")
def test_quotas_of_users_and_clients(run: Run):
    """kafka-configs alters, describes and removes client quotas (KIP-546)."""
    both = ("--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients", "--entity-default")
    run(CONFIGS, *both, "--alter", "--add-config", "producer_byte_rate=1048576,request_percentage=12.5")
    described = run(CONFIGS, *both, "--describe")
    assert "producer_byte_rate=1048576" in described
    assert "request_percentage=12.5" in described
    run(CONFIGS, *both, "--alter", "--delete-config", "producer_byte_rate,request_percentage")
    assert "producer_byte_rate" not in run(CONFIGS, *both, "--describe")
    user = ("--entity-type", "users", "--entity-name", "ann")
    run(CONFIGS, *user, "--alter", "--add-config", "controller_mutation_rate=0.5")
    assert "controller_mutation_rate=0.5" in run(CONFIGS, *user, "--describe")
    run(CONFIGS, *user, "--alter", "--delete-config", "controller_mutation_rate")


@for_both
@pytest.mark.usefixtures("version")
def test_quotas_of_addresses(run: Run):
    """kafka-configs alters, describes and removes quotas of IP addresses (KIP-612)."""
    for name in (("--entity-name", "127.0.0.7"), ("--entity-default",)):
        address = ("--entity-type", "ips", *name)
        run(CONFIGS, *address, "--alter", "--add-config", "connection_creation_rate=7")
        assert "connection_creation_rate=7" in run(CONFIGS, *address, "--describe")
        run(CONFIGS, *address, "--alter", "--delete-config", "connection_creation_rate")
        assert "connection_creation_rate" not in run(CONFIGS, *address, "--describe")


@for_both
@pytest.mark.usefixtures("version")
def test_the_cluster_itself(cluster: LocalCluster, run: Run, topic: str, tmp_path: Path):
    """kafka-metadata-quorum, kafka-log-dirs, kafka-cluster, kafka-leader-election, kafka-reassign-partitions."""
    cluster.sync.create_topic(topic, partitions=1)
    status = run("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status")
    assert "CurrentVoters:" in status
    assert "Leader" in run("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--replication")
    dirs = run("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", topic)
    found = json.loads(dirs.splitlines()[-1])
    assert sorted(each["broker"] for each in found["brokers"]) == [1, 2, 3]
    cluster_id = run(
        "org.apache.kafka.tools.ClusterTool", "cluster-id", "--bootstrap-server", cluster.bootstrap, bootstrap=False
    )
    assert "Cluster ID: " in cluster_id
    run("org.apache.kafka.tools.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [2, 3]}]}))
    reassign = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    run(reassign, "--reassignment-json-file", str(plan), "--execute")
    cluster.sync.wait.isr(topic, size=2)
    assert "is completed" in run(reassign, "--reassignment-json-file", str(plan), "--verify")


@for_both
def test_the_performance_tools(cluster: LocalCluster, run: Run, topic: str, version: str):
    """kafka-producer-perf-test and kafka-consumer-perf-test move 20,000 records of 100 bytes."""
    cluster.sync.create_topic(topic, partitions=3)
    addresses = () if version == NEWEST else ("--producer-props", f"bootstrap.servers={cluster.bootstrap}")
    produced = run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", "20000", "--record-size", "100", "--throughput", "-1", *addresses),
        bootstrap=version == NEWEST,
    )
    assert "20000 records sent" in produced
    records = "--num-records" if version == NEWEST else "--messages"
    consumed = run(
        "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, records, "20000", "--timeout", "60000"
    )
    assert ", 20000, " in consumed


@pytest.mark.every_tool
@for_foreign
@pytest.mark.usefixtures("version")
def test_records_are_deleted(cluster: LocalCluster, run: Run, topic: str, tmp_path: Path):
    """kafka-delete-records moves the log start offset, which kafka-get-offsets shows."""
    cluster.sync.create_topic(topic, partitions=1)
    cluster.sync.produce(topic, *(b"%d" % number for number in range(10)))
    plan = tmp_path / "offsets.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}))
    deleted = run("org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert f"partition: {topic}-0\tlow_watermark: 4" in deleted
    offsets = ("org.apache.kafka.tools.GetOffsetShell", "--topic", topic, "--time")
    assert run(*offsets, "earliest").split() == [f"{topic}:0:4"]
    assert run(*offsets, "latest").split() == [f"{topic}:0:10"]


@pytest.mark.every_tool
@for_foreign
def test_versions_and_groups(cluster: LocalCluster, run: Run, topic: str, version: str):
    """kafka-broker-api-versions; kafka-groups, which 4.x has."""
    versions = run("org.apache.kafka.tools.BrokerApiVersionsCommand")
    assert versions.count("Produce(0): 0 to 13") == 3
    assert versions.count("ListGroups(16): 0 to 5") == 3
    if version == NEWEST:
        cluster.sync.create_topic(topic)
        cluster.sync.produce(topic, b"value")
        assert consume_lines(run, topic, 1, "--group", "four") == ["value"]
        rows = [row.split() for row in run("org.apache.kafka.tools.GroupsCommand", "--list").splitlines()]
        assert ["four", "Classic", "consumer"] in rows


@pytest.mark.every_tool
@for_foreign
def test_verifiable_clients(cluster: LocalCluster, run: Run, topic: str, version: str):
    """kafka-verifiable-producer and kafka-verifiable-consumer report 50 records; kafka-e2e-latency sends 20."""
    cluster.sync.create_topic(topic, partitions=2)
    produced = run("org.apache.kafka.tools.VerifiableProducer", "--topic", topic, "--max-messages", "50")
    assert json.loads(produced.splitlines()[-1])["acked"] == 50
    group = ("--group-id", topic, "--max-messages", "50", "--reset-policy", "earliest")
    consumed = [
        json.loads(line)
        for line in run("org.apache.kafka.tools.VerifiableConsumer", "--topic", topic, *group).splitlines()
    ]
    assert sum(each["count"] for each in consumed if each["name"] == "records_consumed") == 50
    assert "shutdown_complete" in [each["name"] for each in consumed]
    named = ("--topic", topic, "--num-records", "20", "--producer-acks", "all", "--record-size", "100")
    latency = "org.apache.kafka.tools.EndToEndLatency"
    if version == NEWEST:
        measured = run(latency, *named)
    else:
        measured = run(latency, cluster.bootstrap, *named[1::2], bootstrap=False)
    assert "Avg latency: " in measured


@pytest.mark.every_tool
@for_foreign
@pytest.mark.usefixtures("version")
def test_transactions(run: Run, tmp_path: Path):
    """kafka-transactions lists and describes an open transaction, and finds and aborts a hanging one only."""
    settings = {"min.insync.replicas": "1", "transaction.state.log.replication.factor": "1"}
    settings |= {"transaction.state.log.min.isr": "1", "transaction.partition.verification.enable": "false"}
    main = "org.apache.kafka.tools.TransactionsCommand"
    with LocalCluster(brokers=1, config=settings, data_dir=tmp_path / "data") as cluster:

        def rows(*arguments: str) -> list[list[str]]:
            output = run(main, "--bootstrap-server", cluster.bootstrap, *arguments, bootstrap=False)
            return [line.split() for line in output.splitlines()[1:]]

        for topic in ("orders", "broken"):
            cluster.sync.create_topic(topic, partitions=1, replicas=1)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "running", "log_level": 0})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("orders", b"value")
        assert producer.flush(PATIENCE_S) == 0
        leave_hanging(cluster.bootstrap, "broken")
        [[name, coordinator, producer_id, state]] = rows("list")
        assert (name, coordinator, state) == ("running", "1", "Ongoing")
        [described] = rows("describe", "--transactional-id", "running")
        assert described[:5] == ["1", "running", producer_id, "0", "Ongoing"]
        assert described[-1] == "orders-0"
        place = ("--topic", "broken", "--partition", "0")
        assert [row[0] for row in rows("describe-producers", *place)] == [str(PRODUCER_ID)]
        # Both transactions are open for longer than no time at all; one of them hangs.
        everywhere = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout")
        assert [row[:2] for row in rows(*everywhere, "0")] == [["broken", "0"]]
        [hanging] = rows(*everywhere, "15")
        assert hanging[:6] == ["broken", "0", str(PRODUCER_ID), "0", "-1", "0"]
        rows("abort", *place, "--start-offset", "0")
        assert rows(*everywhere, "0") == []
        producer.commit_transaction(PATIENCE_S)
        # The commit is answered before its markers are written.
        assert [row[3] for row in rows("list")] in (["PrepareCommit"], ["CompleteCommit"])
    [folder] = (tmp_path / "data").rglob("broken-0")
    dump = ("org.apache.kafka.tools.DumpLogSegments", "--files", str(folder / "00000000000000000000.log"))
    assert "endTxnMarker: ABORT" in run(*dump, "--print-data-log", "--deep-iteration", bootstrap=False)


@for_both
def test_levels_of_features(cluster: LocalCluster, run: Run, version: str, tmp_path: Path):
    """kafka-features.sh describes, downgrades and upgrades; what cannot change is refused with the reason."""
    features = "org.apache.kafka.tools.FeatureCommand"

    def described() -> dict[str, list[str]]:
        # The first column is the name; then the lowest and the highest level that are supported, and the level in use.
        rows = [re.split(r"\t|\s{2,}", line) for line in run(features, "describe").splitlines()]
        return {row[0].split()[1]: [each.partition(": ")[2] for each in row[1:4]] for row in rows if len(row) > 3}

    found = described()
    assert found["transaction.version"] == ["1", "2", "2"]
    assert found["group.version"] == ["1", "1", "1"]
    assert set(found["metadata.version"]) == {"4.3-IV0" if version == NEWEST else "UNKNOWN 30"}
    try:
        assert "was downgraded to 1" in run(features, "downgrade", "--feature", "transaction.version=1")
        assert described()["transaction.version"] == ["1", "2", "1"]
    finally:
        assert "was upgraded to 2" in run(features, "upgrade", "--feature", "transaction.version=2")
    assert described() == found
    command = [*tool_command(version, tmp_path, features), "--bootstrap-server", cluster.bootstrap]
    command += ["downgrade", "--feature", "group.version=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1, done.stdout
    assert "group.version" in done.stdout + done.stderr
    assert "only supports versions 1-1" in done.stdout + done.stderr


@pytest.mark.every_tool
@for_foreign
def test_logs_with_transactions_are_dumped(run: Run, version: str, tmp_path: Path):
    """DumpLogSegments reads markers, the index and both internal topics of a data directory of minikafka."""
    settings = {"min.insync.replicas": "1", "offsets.topic.replication.factor": "1"}
    settings |= {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
    with LocalCluster(brokers=1, config=settings, data_dir=tmp_path / "data") as cluster:
        cluster.sync.create_topic("orders", partitions=1, replicas=1)
        names = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "dumped", "log_level": 0}
        producer = Producer(names)
        producer.init_transactions(PATIENCE_S)
        for value, commit in ((b"kept", True), (b"dropped", False)):
            producer.begin_transaction()
            producer.produce("orders", value)
            assert producer.flush(PATIENCE_S) == 0
            if commit:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)
        commit_offsets(cluster.bootstrap, producer)
        # Its successor is initialized when all markers are written.
        Producer(names).init_transactions(PATIENCE_S)
    dump = ("org.apache.kafka.tools.DumpLogSegments", "--files")

    def dumped(path: Path, *options: str) -> str:
        return run(*dump, str(path), *options, bootstrap=False)

    [folder] = (tmp_path / "data").rglob("orders-0")
    batches = dumped(folder / "00000000000000000000.log", "--print-data-log", "--deep-iteration")
    assert batches.count("isTransactional: true isControl: false") == 2
    assert batches.count("isTransactional: true isControl: true") == 2
    assert batches.index("endTxnMarker: COMMIT") < batches.index("endTxnMarker: ABORT")
    index = dumped(folder / "00000000000000000000.txnindex")
    assert "firstOffset: 2 lastOffset: 3 lastStableOffset: 4" in index

    def dumped_topic(name: str, decoder: str) -> str:
        paths = sorted((tmp_path / "data").rglob(f"{name}-*/*.log"))
        return "".join(dumped(path, decoder, "--print-data-log") for path in paths if path.stat().st_size)

    state = dumped_topic("__transaction_state", "--transaction-log-decoder")
    # Kafka 4 prints the record as JSON, in which 5 is CompleteAbort.
    assert ('"transactionStatus":5' if version == NEWEST else "state=CompleteAbort") in state
    offsets = dumped_topic("__consumer_offsets", "--offsets-decoder")
    assert "endTxnMarker: COMMIT" in offsets
    if version == NEWEST:
        # Offset commits, and the records of a group of the consumer protocol: epoch, member, target and assignment.
        kinds = {kind for kind in map(str, range(20)) if f'key: {{"type":"{kind}"' in offsets}
        assert {"1", "3", "5", "6", "7", "8"} <= kinds, offsets[:2000]
    assert "shop" in offsets


def commit_offsets(bootstrap: str, producer: Producer) -> None:
    """A member of the consumer protocol commits, and the producer does so for it in a transaction."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "shop", "group.protocol": "consumer", "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        consumer.commit(message, asynchronous=False)
        producer.begin_transaction()
        ends = [TopicPartition("orders", 0, 1)]
        producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)
    finally:
        consumer.close()


@pytest.mark.every_tool
@for_foreign
def test_compacted_logs_with_transactions_are_dumped(run: Run, version: str, tmp_path: Path):
    """DumpLogSegments reads what the cleaner left: no aborted record, delete horizons in markers, sound indexes."""
    settings = {"min.insync.replicas": "1", "log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.01"}
    settings |= {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
    with LocalCluster(brokers=1, config=settings, data_dir=tmp_path / "data") as cluster:
        config = {"cleanup.policy": "compact", "segment.bytes": "4000"}
        cluster.sync.create_topic("kv", partitions=1, replicas=1, config=config)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "kv", "log_level": 0})
        producer.init_transactions(PATIENCE_S)
        for _ in range(3):  # rounds: data goes, its markers get a horizon, entries of the index go
            for number in range(40):
                producer.begin_transaction()
                producer.produce("kv", b"aborted" if number % 2 else b"committed", key=b"%d" % (number % 3))
                assert producer.flush(PATIENCE_S) == 0
                (producer.abort_transaction if number % 2 else producer.commit_transaction)(PATIENCE_S)
            before, deadline = clean_end(tmp_path), time.monotonic() + PATIENCE_S
            while clean_end(tmp_path) == before:
                assert time.monotonic() < deadline, before
                time.sleep(0.1)
    [folder] = (tmp_path / "data").rglob("kv-0")
    paths = sorted(folder.glob("*.log"))
    dump = ("org.apache.kafka.tools.DumpLogSegments", "--files")
    first = run(*dump, str(paths[0]), "--print-data-log", "--deep-iteration", bootstrap=False)
    assert "payload: aborted" not in first
    assert "deleteHorizonMs: OptionalLong[" in first
    indexes = [*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.txnindex")]
    dumped = run(*dump, ",".join(map(str, indexes)), bootstrap=False)
    assert not re.search("(?i)mismatch|found|corrupt", dumped.replace(str(folder), "")), dumped


def clean_end(folder: Path) -> int:
    """Where the last round of compaction of the topic kv ended."""
    lines = [line for path in folder.rglob("cleaner-offset-checkpoint") for line in path.read_text().splitlines()]
    return max((int(line.rpartition(" ")[2]) for line in lines if line.startswith("kv ")), default=0)
