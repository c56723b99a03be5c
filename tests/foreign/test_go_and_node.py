"""Unmodified clients in Go (franz-go, sarama, segmentio's kafka-go) and JavaScript (kafkajs, Confluent's) against three brokers.

Each program runs one scenario, checks what it gets, and prints what is asserted on here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from minikafka import LocalCluster
from tests.foreign.toolchains import HERE, confluent_modules, node_modules, output_of

pytestmark = [pytest.mark.e2e]

# For what hangs: a scenario takes seconds.
PATIENCE_S = 120.0

MARKS = {
    "franz": pytest.mark.go,
    "sarama": pytest.mark.go,
    "segmentio": pytest.mark.go,
    "kafkajs": pytest.mark.node,
    "confluent": pytest.mark.confluent_node,
}
SCRIPTS = {"kafkajs": ("client.js", node_modules), "confluent": ("confluent.js", confluent_modules)}
"""The programs in JavaScript, and where their packages are."""


def clients(*wanted: str) -> pytest.MarkDecorator:
    """One test for each of these clients."""
    return pytest.mark.parametrize("client", [pytest.param(each, marks=MARKS[each]) for each in wanted])


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers for all scenarios that kill none."""
    with LocalCluster(brokers=3, config={"group.initial.rebalance.delay.ms": "0"}) as made:
        yield made


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs are compiled to, once each."""
    return tmp_path_factory.mktemp("programs")


def command_of(client: str, programs: Path) -> list[str]:
    """How the client's program begins."""
    if client in SCRIPTS:
        script, modules = SCRIPTS[client]
        # Node looks for packages beside the program.
        folder = programs / client
        if not folder.exists():
            folder.mkdir()
            shutil.copy(HERE / "node" / script, folder)
            (folder / "node_modules").symlink_to(modules())
        return ["node", str(folder / script)]
    program = programs / client
    if not program.exists():
        output_of("go", "build", "-o", program, f"./{client}", cwd=HERE / "go")
    return [str(program)]


def run(client: str, programs: Path, scenario: str, cluster: LocalCluster, *, partitions: int = 4) -> str:
    """Run a scenario on a topic of its own; return what it printed."""
    topic = f"{client}-{scenario}"
    if partitions:
        cluster.sync.create_topic(topic, partitions=partitions, config={"min.insync.replicas": "2"})
    command = [*command_of(client, programs), scenario, cluster.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{client} {scenario}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout.strip()


def numbers_in(cluster: LocalCluster, topic: str, count: int) -> list[int]:
    """The values of partition 0 up to its end, which must come after ``count`` records."""
    # A commit would need the topic of offsets, which two brokers cannot create.
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        partition = TopicPartition(topic, 0, 0)
        consumer.assign([partition])
        values: list[int] = []
        while len(values) < count:
            found = consumer.consume(500, PATIENCE_S)
            assert found, f"{len(values)} of {count} records"
            values += [int(each.value()) for each in found]
        _, end = consumer.get_watermark_offsets(partition, PATIENCE_S)
    finally:
        consumer.close()
    assert end == count
    return values


@clients("franz", "sarama", "segmentio", "kafkajs", "confluent")
def test_records_of_every_codec_and_acks_are_read_back(client: str, cluster: LocalCluster, programs: Path):
    """20 records for each codec that the client has by itself and each of acks=all (idempotent, but for kafka-go), 1 and 0."""
    codecs = {"kafkajs": 2, "confluent": 4}.get(client, 5)
    assert run(client, programs, "produce", cluster) == str(20 * 3 * codecs)


@clients("franz", "sarama", "segmentio", "kafkajs", "confluent")
def test_offsets_are_found_by_time(client: str, cluster: LocalCluster, programs: Path):
    """Three records, a second apart: the first after half a second is the second one; the end is 3."""
    assert run(client, programs, "offsets", cluster) == "1 3"


@clients("franz", "sarama", "segmentio", "kafkajs", "confluent")
def test_topics_are_administered(client: str, cluster: LocalCluster, programs: Path):
    """Create, describe, configure, add partitions, delete and create again with one partition, and produce to it."""
    assert run(client, programs, "admin", cluster, partitions=0) == "1"


@clients("franz", "sarama", "segmentio", "kafkajs", "confluent")
def test_an_eager_group_shares_commits_and_resumes(client: str, cluster: LocalCluster, programs: Path):
    """Two members share four partitions; a third one goes on at their commits. kafkajs may read a record twice."""
    assert run(client, programs, "eager", cluster).split()[0] == "80"


@clients("franz", "confluent")
def test_a_cooperative_group_shares_commits_and_resumes(client: str, cluster: LocalCluster, programs: Path):
    """As above, with incremental rebalances."""
    assert run(client, programs, "cooperative", cluster).split()[0] == "80"


@clients("franz", "sarama")
def test_a_static_member_comes_back_to_its_generation(client: str, cluster: LocalCluster, programs: Path):
    """KIP-345: no rebalance."""
    assert run(client, programs, "static", cluster) == "true"


@clients("franz", "sarama", "kafkajs", "confluent")
def test_nothing_is_lost_or_doubled_when_the_leader_is_killed(client: str, programs: Path):
    """An idempotent producer goes on through the kill; every record is in the log once, in order."""
    settings = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
    with LocalCluster(brokers=3, config=settings) as cluster:
        topic = f"{client}-numbers"
        cluster.sync.create_topic(topic, partitions=1, config={"min.insync.replicas": "2"})
        leader = cluster.sync.wait.leader(topic)
        command = [*command_of(client, programs), "numbers", cluster.bootstrap, topic]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "half\n"
            cluster.kill(leader)
            printed, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, printed) == (0, "done\n")
        assert cluster.sync.wait.leader(topic) != leader
        count = 1000 if client == "kafkajs" else 3000
        assert numbers_in(cluster, topic, count) == list(range(count))
