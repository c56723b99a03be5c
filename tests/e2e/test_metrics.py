"""``/metrics`` of three real brokers: names that dashboards know, values that agree with what was done, sums that add up."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from confluent_kafka import Producer as ConfluentProducer
from prometheus_client.parser import text_string_to_metric_families

from minikafka import AdminClient, Consumer, NewTopic, Producer, TopicPartition
from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.haste import SHORT_SESSIONS
from tests.tidy.sources import ROOT

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

SETTINGS = {
    **SHORT_SESSIONS,
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}

PARTITIONS = 6
"""Three of the topic, three of __consumer_offsets."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=SETTINGS) as running:
        yield running


def text_of(cluster: LocalCluster, node: int) -> str:
    """One broker's answer."""
    address = next(each.address for each in cluster.files.brokers if each.node_id == node)
    scraper = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.2"
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": scraper})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


def scrape(cluster: LocalCluster, node: int) -> Samples:
    """One broker's samples, as Prometheus' own parser reads them."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text_of(cluster, node)):
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: object) -> float:
    return samples[name, tuple(sorted((label, str(value)) for label, value in labels.items()))]


def over_all(cluster: LocalCluster, name: str, **labels: object) -> float:
    """The sum over the brokers that run and tell it."""
    wanted = {(label, str(value)) for label, value in labels.items()}
    return sum(
        value
        for node in cluster.node_ids
        for (told, its_labels), value in scrape(cluster, node).items()
        if told == name and wanted <= set(its_labels)
    )


def wait_until(cluster: LocalCluster, what: Callable[[], object], limit_s: float = 120.0) -> None:
    """Ask again and again, with the brokers' own loop as the clock."""
    until = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < until, f"not in {limit_s:g} s"
        cluster.run(_a_turn)


async def _a_turn() -> None:
    await asyncio.sleep(0.05)


async def a_group_reads(cluster: LocalCluster, topic: str) -> None:
    """A member of a group commits 10, 10 and 2 of 30 records, and leaves; while it is there it is told."""
    consumer = Consumer(topic, bootstrap_servers=cluster.bootstrap, group_id="watched", enable_auto_commit=False)
    async with consumer:
        while len(consumer.assignment()) < 3:
            await consumer.getmany(timeout_ms=50)
        assert over_all(cluster, "kafka_consumergroup_members", consumergroup="watched") == 1
        assert over_all(cluster, "kafka_coordinator_group_groupmetadatamanager_numgroupsstable") == 1
        await consumer.commit({TopicPartition(topic, number): offset for number, offset in enumerate((10, 10, 2))})


async def test_what_was_done_is_what_is_told(cluster: LocalCluster):
    """HTTP-CLI-CONVENTIONS 4.4: both families and our own agree with 30 records on 3 partitions, read once."""
    async with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("told", num_partitions=3, replication_factor=3)])
    async with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for number in range(30):
            await producer.send_and_wait("told", b"value", partition=number % 3)
    async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition("told", number) for number in range(3)]
        consumer.assign(partitions)
        for _ in range(30):
            await consumer.getone()
    await a_group_reads(cluster, "told")
    assert over_all(cluster, "kafka_consumergroup_current_offset", consumergroup="watched", topic="told") == 22
    assert over_all(cluster, "kafka_consumergroup_current_offset_sum", consumergroup="watched", topic="told") == 22
    assert over_all(cluster, "kafka_consumergroup_lag", consumergroup="watched", topic="told") == 8
    assert over_all(cluster, "kafka_consumergroup_lag", consumergroup="watched", partition=2) == 8
    assert over_all(cluster, "kafka_consumergroup_lag_sum", consumergroup="watched", topic="told") == 8
    assert over_all(cluster, "kafka_consumergroup_members", consumergroup="watched") == 0
    prefix = "kafka_coordinator_group_groupmetadatamanager_num"
    assert [over_all(cluster, prefix + word) for word in ("groups", "groupsempty", "groupsstable")] == [1, 1, 0]
    assert over_all(cluster, prefix + "offsets") == 3
    assert over_all(cluster, "kafka_server_brokertopicmetrics_messagesin_total", topic="told") == 30
    assert over_all(cluster, "kafka_server_brokertopicmetrics_totalproducerequests_total", topic="told") == 30
    assert over_all(cluster, "kafka_server_brokertopicmetrics_failedproducerequests_total", topic="told") == 0
    bytes_in = over_all(cluster, "kafka_server_brokertopicmetrics_bytesin_total", topic="told")
    assert over_all(cluster, "kafka_server_brokertopicmetrics_bytesout_total", topic="told") >= bytes_in > 0
    assert over_all(cluster, "kafka_server_brokertopicmetrics_replicationbytesout_total") >= 2 * bytes_in
    assert over_all(cluster, "kafka_network_requestmetrics_requests_total", request="Produce") >= 30
    assert over_all(cluster, "mk_acked_records_total") == 30
    assert over_all(cluster, "mk_produce_outcome_total", outcome="written") == 30
    assert over_all(cluster, "kafka_topic_partition_current_offset", topic="told") == 30
    assert over_all(cluster, "kafka_topic_partition_in_sync_replica", topic="told") == 9
    assert over_all(cluster, "kafka_topic_partition_under_replicated_partition", topic="told") == 0
    assert over_all(cluster, "kafka_topic_partitions", topic="told") == 3
    assert over_all(cluster, "kafka_brokers") == 3
    assert over_all(cluster, "kafka_log_log_logendoffset", topic="told") == 90
    assert over_all(cluster, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert over_all(cluster, "kafka_server_replicamanager_leadercount") == PARTITIONS
    assert over_all(cluster, "mk_replica_leo", topic="told") == 60
    assert over_all(cluster, "mk_replica_lag_records", topic="told") == 0
    assert over_all(cluster, "mk_replica_in_sync", topic="told") == 6


def test_acks_all_waits_remotely_and_long_polls_are_in_purgatory(cluster: LocalCluster):
    """remotetimems is where waiting shows; local and remote time are the whole."""
    name = "kafka_network_requestmetrics_"

    def agree(told: Samples, request: str) -> bool:
        total, local, remote = (
            value(told, f"{name}{part}timems_sum", request=request) for part in ("total", "local", "remote")
        )
        count = value(told, name + "totaltimems_count", request=request)
        return total == pytest.approx(local + remote) and (
            value(told, "mk_request_duration_seconds_count", request=request)
            == value(told, "mk_request_duration_seconds_bucket", request=request, le="+Inf")
            == count
        )

    for node in cluster.node_ids:
        requests = {
            dict(labels)["request"] for key, labels in scrape(cluster, node) if key == name + "totaltimems_count"
        }
        assert "Fetch" in requests or "FetchConsumer" in requests or "FetchFollower" in requests
        for request in requests:
            # Requests end between the families of one scrape, so that one may count what another does not yet.
            wait_until(cluster, lambda node=node, request=request: agree(scrape(cluster, node), request))
    assert over_all(cluster, name + "remotetimems_sum", request="Produce") > 0
    wait_until(
        cluster,
        lambda: over_all(cluster, "kafka_server_delayedoperationpurgatory_purgatorysize", delayedOperation="Fetch") > 0,
    )


def test_errors_are_counted_by_kafka_s_names_and_client_texts_are_no_labels(cluster: LocalCluster):
    """A label's value must never be what a client sent: a thousand wrong names would be a thousand series."""
    address = cluster.bootstrap.split(",")[0]
    for path, body in (
        ("/rpc/NoSuchApi", b"{}"),
        ("/rpc/Produce", b'{"acks":7,"timeout_ms":1,"partitions":[]}'),
        ("/rpc/Fetch", b'{"partitions":[{"topic":"no-such-topic-here","partition":0,"fetch_offset":0}]}'),
    ):
        request = urllib.request.Request(
            f"http://{address}{path}", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            json.loads(answer.read())
    told = scrape(cluster, 1)
    errors = "kafka_network_requestmetrics_errors_total"
    assert value(told, errors, request="Produce", error="INVALID_REQUIRED_ACKS") == 1
    assert value(told, errors, request="FetchConsumer", error="UNKNOWN_TOPIC_OR_PARTITION") >= 1
    assert not [labels for _, labels in told if "no-such-topic-here" in str(labels) or "NoSuchApi" in str(labels)]


def documented() -> set[str]:
    """The metrics that docs/operations.md names, in its tables."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    return {
        name
        for row in re.findall(r"^\| (`(?:kafka|mk|process|python)_.*?) \|", text, flags=re.MULTILINE)
        for name in re.findall(r"`([a-z0-9_]+)", row)
    }


def test_every_metric_is_in_the_manual_and_the_manual_names_no_other(cluster: LocalCluster):
    """A table in the docs that nobody checks is wrong within a month."""
    told = {
        family.name + ("_total" if family.type == "counter" else "")
        for node in cluster.node_ids
        for family in text_string_to_metric_families(text_of(cluster, node))
    }
    assert documented() == told


def asked_for() -> list[tuple[str, str]]:
    """Every expression that this tree ships, with where it stands: the dashboard, the alerts, the manual's alerts."""
    folder = ROOT / "configs" / "observability"
    dashboard = json.loads((folder / "grafana" / "dashboards" / "minikafka.json").read_text(encoding="utf-8"))
    alerts = yaml.safe_load((folder / "alerts.yml").read_text(encoding="utf-8"))
    manual = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("## What to alert on")[2]
    found = [
        (f"dashboard, {panel['title']}", target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    found += [(f"alert {rule['alert']}", rule["expr"]) for group in alerts["groups"] for rule in group["rules"]]
    found += [
        ("manual", told) for told in re.findall(r"^\| `(.*?)` \|", manual.partition("## Metrics")[0], re.MULTILINE)
    ]
    return [
        (where, told.replace("$__rate_interval", "1m").replace("$__range", "15m").replace("$topic", ".*"))
        for where, told in found
    ]


def test_what_the_dashboard_and_the_alerts_ask_for_is_told(cluster: LocalCluster):
    """Issue 5, Build 5: each name, each label and each value that an expression selects by exists in a live scrape."""
    told: dict[str, list[dict[str, str]]] = {"up": [{}]}
    for node in cluster.node_ids:
        for name, labels in scrape(cluster, node):
            told.setdefault(name, []).append(dict(labels))
    expressions = asked_for()
    assert len(expressions) > 50
    for where, expression in expressions:
        nodes: list[Any] = []
        promql_parser.walk(promql_parser.parse(expression), lambda node, nodes=nodes: nodes.append(node))  # type: ignore[misc]
        selectors = [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]
        aggregates = [node for node in nodes if isinstance(node, promql_parser.AggregateExpr)]
        grouped_by = {label for node in aggregates if node.modifier is not None for label in node.modifier.labels}
        assert selectors, where
        for selector in selectors:
            assert selector.name in told, f"{where}: nobody tells {selector.name}"
            series = [{"job": "minikafka", "instance": "any", **labels} for labels in told[selector.name]]
            for matcher in selector.matchers.matchers:
                assert matcher.name in series[0], f"{where}: {selector.name} has no label {matcher.name}"
                if matcher.op == promql_parser.MatchOp.Equal:
                    assert any(each[matcher.name] == matcher.value for each in series), f"{where}: {matcher}"
            assert grouped_by <= set().union(*series), f"{where}: {grouped_by}"


def test_a_dead_broker_shows_where_operators_look(cluster: LocalCluster):
    """The first alerts everywhere: under-replicated partitions, the ISR's size, one controller; and that they go away."""
    victim = 3
    others = [node for node in cluster.node_ids if node != victim]

    def sum_of(name: str, **labels: Any) -> float:
        wanted = {(label, str(each)) for label, each in labels.items()}
        return sum(
            each
            for node in others
            for (told, its), each in scrape(cluster, node).items()
            if told == name and wanted <= set(its)
        )

    shrinks = sum_of("kafka_server_replicamanager_isrshrinks_total")
    expands = sum_of("kafka_server_replicamanager_isrexpands_total")
    wanted = {
        "kafka_server_replicamanager_underreplicatedpartitions": PARTITIONS,
        "kafka_controller_kafkacontroller_activecontrollercount": 1,
        "kafka_controller_kafkacontroller_fencedbrokercount": 1,
        "kafka_controller_kafkacontroller_activebrokercount": 2,
        "kafka_brokers": 2,
        "kafka_server_replicamanager_atminisrpartitioncount": PARTITIONS,
        "kafka_server_replicamanager_underminisrpartitioncount": 0,
        "kafka_topic_partition_under_replicated_partition": PARTITIONS,
        "kafka_controller_controllerstats_uncleanleaderelections_total": 0,
    }
    cluster.kill(victim)
    try:
        wait_until(cluster, lambda: {name: sum_of(name) for name in wanted} == wanted)
        wait_until(cluster, lambda: sum_of("mk_replica_in_sync", replica=victim) == 0)
        assert sum_of("kafka_server_replicamanager_isrshrinks_total") > shrinks
    finally:
        cluster.restart(victim)
    wait_until(cluster, lambda: over_all(cluster, "kafka_server_replicamanager_underreplicatedpartitions") == 0)
    wait_until(cluster, lambda: over_all(cluster, "mk_replica_in_sync", replica=victim) >= 2)
    wait_until(cluster, lambda: sum_of("kafka_server_replicamanager_isrexpands_total") > expands)


def test_partitions_beyond_the_limit_get_no_series_and_it_is_said():
    """Cardinality is bounded by a setting, and totals still count everything."""
    with LocalCluster(brokers=1, config={"mk.metrics.partitions.max": "2"}) as small:
        body = json.dumps({"name": "many", "partitions": 5, "replication_factor": 1}).encode()
        request = urllib.request.Request(
            f"http://{small.bootstrap}/v1/topics", data=body, headers={"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=30).close()
        wait_until(small, lambda: value(scrape(small, 1), "kafka_server_replicamanager_leadercount") == 5)
        told = scrape(small, 1)
        partitions = {dict(labels).get("partition") for name, labels in told if ("topic", "many") in labels}
        assert partitions - {None} == {"0", "1"}
        assert value(told, "mk_metrics_partitions_omitted") == 3


def test_requests_and_connections_are_told_by_protocol():
    """A Kafka client beside /rpc: each has its series, and the older families their sum."""
    with LocalCluster(brokers=1) as small:
        small.sync.create_topic("orders", partitions=1, replicas=1)
        small.sync.produce("orders", b"tea")
        producer = ConfluentProducer({"bootstrap.servers": small.bootstrap_servers, "client.id": "billing"})
        producer.produce("orders", b"milk")
        assert producer.flush(60) == 0
        told = scrape(small, 1)
        requests = "mk_protocol_requests_total"
        counts = [value(told, requests, protocol=each, request="Produce") for each in ("kafka", "rpc")]
        assert min(counts) >= 1
        assert value(told, "kafka_network_requestmetrics_requests_total", request="Produce") == sum(counts)
        for name in ("request_seconds", "request_bytes", "response_bytes"):
            assert value(told, f"mk_protocol_{name}_total", protocol="kafka", request="Produce") > 0
        assert value(told, "mk_kafka_connections", software="confluent-kafka-python") >= 1
        assert not [labels for _, labels in told if "billing" in str(labels)]
