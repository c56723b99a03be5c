"""Transactions of real brokers as an administrator sees them: minikafka transactions, and /v1."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from minikafka import LocalCluster
from tests.e2e.commands import completed
from tests.e2e.hanging import PRODUCER_ID, leave_hanging

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
SETTINGS = {
    "min.insync.replicas": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.partition.verification.enable": "false",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, config=SETTINGS) as made:
        yield made


def opened(cluster: LocalCluster, topic: str) -> Producer:
    """A producer with an open transaction of one record in partition 0; its transactional id is the topic's name."""
    cluster.sync.create_topic(topic, partitions=1, replicas=1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    assert producer.flush(PATIENCE_S) == 0
    return producer


def of_command(cluster: LocalCluster, *arguments: str) -> Any:
    done = completed("transactions", *arguments, "-b", cluster.bootstrap, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_commands_show_a_running_transaction(cluster: LocalCluster):
    """It is listed and described, does not hang, and is aborted only by force."""
    producer = opened(cluster, "running")
    [listed] = of_command(cluster, "list", "--state", "Ongoing")["transactions"]
    assert (listed["transactional_id"], listed["coordinator"]) == ("running", 1)
    names = of_command(cluster, "list", "--transactional-id-pattern", "run[a-z]*")["transactions"]
    assert [each["transactional_id"] for each in names] == ["running"]
    broken = completed("transactions", "list", "--transactional-id-pattern", "(", "-b", cluster.bootstrap)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "transactional_id_pattern='(' is no regular expression of RE2" in broken.stderr
    [described] = of_command(cluster, "describe", "running")["transactions"]
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", 60_000)
    assert described["partitions"] == [{"topic": "running", "partition": 0}]
    assert described["producer_id"] == listed["producer_id"]
    [partition] = of_command(cluster, "describe-producers", "running-0")["partitions"]
    [active] = partition["producers"]
    assert (active["producer_id"], active["transaction_start_offset"]) == (listed["producer_id"], 0)
    everything = ("--topic", "running", "--max-transaction-timeout", "0")
    assert of_command(cluster, "find-hanging", *everything) == {"transactions": []}
    arguments = ("transactions", "abort", "running-0", "-b", cluster.bootstrap, "--start-offset")
    missing = completed(*arguments, "7")
    assert (missing.returncode, "no open transaction at offset 7" in missing.stderr) == (1, True)
    refused = completed(*arguments, "0")
    assert (refused.returncode, "is not hanging" in refused.stderr, refused.stdout) == (1, True, "")
    assert of_command(cluster, "abort", "running-0", "--start-offset", "0", "--force")["aborted"]["start_offset"] == 0
    [partition] = of_command(cluster, "describe-producers", "running-0")["partitions"]
    assert partition["producers"][0]["transaction_start_offset"] is None
    producer.abort_transaction(PATIENCE_S)


def test_commands_find_and_abort_a_hanging_transaction(cluster: LocalCluster):
    """Tables name it; after the abort nothing hangs, and read_committed goes on behind it."""
    cluster.sync.create_topic("broken", partitions=1, replicas=1)
    leave_hanging(cluster.bootstrap, "broken")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("broken", b"behind")
    assert producer.flush(PATIENCE_S) == 0
    consume = ("consume", "broken", "--from-beginning", "--exit-at-end", "-b", cluster.bootstrap, "--isolation-level")
    assert completed(*consume, "read_committed").stdout == ""
    found = completed("transactions", "find-hanging", "-b", cluster.bootstrap)
    columns, row = found.stdout.splitlines()
    assert columns.split()[:3] == ["Topic", "Partition", "ProducerId"]
    assert row.split()[:6] == ["broken", "0", str(PRODUCER_ID), "0", "-1", "0"]
    done = completed("transactions", "abort", "broken-0", "--start-offset", "0", "-b", cluster.bootstrap)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Transaction aborted.")
    found = completed("transactions", "find-hanging", "--max-transaction-timeout", "0", "-b", cluster.bootstrap)
    assert found.stdout == "No transaction hangs.\n"
    assert completed(*consume, "read_committed").stdout.splitlines() == ["behind"]
    assert completed(*consume, "read_uncommitted").stdout.splitlines() == ["late", "behind"]


def test_unknown_names_are_sentences(cluster: LocalCluster):
    """Exit code 1, the error's name, nothing on standard output."""
    for arguments in (("describe", "nobody"), ("find-hanging", "--topic", "nothing")):
        done = completed("transactions", *arguments, "-b", cluster.bootstrap)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(("TRANSACTIONAL_ID_NOT_FOUND: ", "UNKNOWN_TOPIC_OR_PARTITION: ", "minikafka: "))


def got(cluster: LocalCluster, path: str) -> Any:
    with urllib.request.urlopen(f"http://{cluster.bootstrap}{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def test_curl_reads_transactions(cluster: LocalCluster):
    """The list with its filters, one transactional id, the producers of a partition; 404 for an unknown id."""
    producer = opened(cluster, "by-curl")
    listed = got(cluster, "/v1/transactions?state=Ongoing&running_longer_than_ms=0")["transactions"]
    [own] = [each for each in listed if each["transactional_id"] == "by-curl"]
    assert (own["coordinator"], own["state"]) == (1, "Ongoing")
    assert got(cluster, f"/v1/transactions?producer_id={own['producer_id']}")["transactions"] == [own]
    assert got(cluster, "/v1/transactions?producer_id=123456789") == {"transactions": []}
    one = got(cluster, "/v1/transactions/by-curl")
    assert (one["state"], one["timeout_ms"], one["coordinator"]["id"]) == ("Ongoing", 60_000, 1)
    assert one["partitions"] == [{"topic": "by-curl", "partition": 0}]
    assert one["started_ms"] > 0
    found = got(cluster, "/v1/topics/by-curl/partitions/0/producers")
    [active] = found["producers"]
    assert (active["producer_id"], active["transaction_start_offset"]) == (own["producer_id"], 0)
    assert found["leader"]["id"] == 1
    producer.abort_transaction(PATIENCE_S)
    for path, error in (
        ("/v1/transactions/nobody", "TRANSACTIONAL_ID_NOT_FOUND"),
        ("/v1/topics/nothing/partitions/0/producers", "UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            got(cluster, path)
        with caught.value as refused:
            assert (refused.code, json.load(refused)["error"]) == (404, error)
