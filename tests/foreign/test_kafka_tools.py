"""The command-line tools of Apache Kafka 4.3.1, unmodified, against three brokers of minikafka."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minikafka import LocalCluster

pytestmark = [pytest.mark.java, pytest.mark.e2e]

# For what hangs: a tool takes seconds.
PATIENCE_S = 120.0

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config={"group.initial.rebalance.delay.ms": "0"}) as made:
        yield made


@pytest.fixture
def run(cluster: LocalCluster, java: tuple[Path, str], tmp_path: Path) -> Run:
    """Run a tool's main class with the cluster's addresses; returns what it printed."""
    program, class_path = java
    quiet = tmp_path / "log4j2.properties"
    quiet.write_text("status=error\nrootLogger.level=off\n")

    def run(main: str, *arguments: str, given: str | None = None, bootstrap: bool = True) -> str:
        command = [str(program), "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={quiet}"]
        command += ["-cp", class_path, main, *(("--bootstrap-server", cluster.bootstrap) if bootstrap else ())]
        done = subprocess.run(
            [*command, *arguments], input=given or "", capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{main} {arguments}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout

    return run


TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"


def test_topics_records_and_groups(cluster: LocalCluster, run: Run):
    """kafka-topics, the console producer and consumer, kafka-consumer-groups, kafka-get-offsets."""
    assert "Created topic orders." in run(
        TOPICS, "--create", "--topic", "orders", "--partitions", "3", "--replication-factor", "3"
    )
    described = run(TOPICS, "--describe", "--topic", "orders")
    assert "PartitionCount: 3" in described
    assert "Isr: 1,2,3" in described
    lines = [f"key-{number}:value-{number}" for number in range(60)]
    run(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--topic", "orders", "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        given="\n".join(lines) + "\n",
    )
    consumed = run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "orders", "--from-beginning", "--max-messages", "60", "--timeout-ms", "60000", "--group", "java"),
    )
    assert sorted(consumed.split()) == sorted(line.partition(":")[2] for line in lines)
    assert run(GROUPS, "--list").split() == ["java"]
    rows = [row.split() for row in run(GROUPS, "--describe", "--group", "java").splitlines() if row.startswith("java")]
    assert sum(int(row[3]) for row in rows) == 60
    assert {row[5] for row in rows} == {"0"}
    reset = ("--group", "java", "--reset-offsets", "--topic", "orders", "--to-earliest", "--execute")
    assert run(GROUPS, *reset).count("orders") == 3
    ends = run("org.apache.kafka.tools.GetOffsetShell", "--topic", "orders").split()
    assert sum(int(end.rpartition(":")[2]) for end in ends) == 60
    run(GROUPS, "--delete", "--group", "java")
    run(TOPICS, "--delete", "--topic", "orders")
    assert "orders" not in run(TOPICS, "--list").split()


def test_settings(cluster: LocalCluster, run: Run):
    """kafka-configs alters and describes a topic's settings."""
    cluster.sync.create_topic("settings")
    topic = ("--entity-type", "topics", "--entity-name", "settings")
    run(CONFIGS, *topic, "--alter", "--add-config", "retention.ms=1000000,cleanup.policy=compact")
    described = run(CONFIGS, *topic, "--describe")
    assert "retention.ms=1000000" in described
    run(CONFIGS, *topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms=1000000" not in run(CONFIGS, *topic, "--describe")


def test_the_cluster_itself(cluster: LocalCluster, run: Run, tmp_path: Path):
    """kafka-metadata-quorum, kafka-log-dirs, kafka-cluster, kafka-leader-election, kafka-reassign-partitions."""
    cluster.sync.create_topic("moved", partitions=1)
    status = run("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status")
    assert "CurrentVoters:" in status
    assert "Leader" in run("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--replication")
    dirs = run("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", "moved")
    found = json.loads(dirs.splitlines()[-1])
    assert sorted(each["broker"] for each in found["brokers"]) == [1, 2, 3]
    cluster_id = run(
        "org.apache.kafka.tools.ClusterTool", "cluster-id", "--bootstrap-server", cluster.bootstrap, bootstrap=False
    )
    assert "Cluster ID: " in cluster_id
    run("org.apache.kafka.tools.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [2, 3]}]}))
    reassign = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    run(reassign, "--reassignment-json-file", str(plan), "--execute")
    cluster.sync.wait.isr("moved", size=2)
    assert "is completed" in run(reassign, "--reassignment-json-file", str(plan), "--verify")


def test_the_performance_tools(cluster: LocalCluster, run: Run):
    """kafka-producer-perf-test and kafka-consumer-perf-test move 20,000 records of 100 bytes."""
    cluster.sync.create_topic("perf", partitions=3)
    produced = run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "perf", "--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
    )
    assert "20000 records sent" in produced
    consumed = run(
        "org.apache.kafka.tools.ConsumerPerformance", "--topic", "perf", "--num-records", "20000", "--timeout", "60000"
    )
    assert ", 20000, " in consumed
