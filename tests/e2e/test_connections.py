"""Who is connected to a broker: ``GET /v1/connections``, ``minikafka connections``, and the software of group members."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from minikafka import LocalCluster
from tests.e2e.commands import completed
from tests.rest.conform import check_answer

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, config={"group.initial.rebalance.delay.ms": "0"}) as made:
        made.sync.create_topic("orders", partitions=1, replicas=2)
        yield made


def asked(cluster: LocalCluster, path: str, *, broker: int = 1) -> Any:
    address = cluster.bootstrap.split(",")[broker - 1]
    request = urllib.request.Request(f"http://{address}{path}", headers={"User-Agent": "probe/1.5 (some words)"})
    with urllib.request.urlopen(request, timeout=30) as response:
        listed = json.loads(response.read())
        check_answer("GET", path, response.status, response.headers.get_content_type(), listed)
    return listed


def until(met: Callable[[], Any]) -> Any:
    """The first true result."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := met()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def connections(cluster: LocalCluster, **members: Any) -> list[dict[str, Any]]:
    """Connections of both brokers with these members."""
    listed = [one for broker in (1, 2) for one in asked(cluster, "/v1/connections", broker=broker)["connections"]]
    return [one for one in listed if all(one[name] == value for name, value in members.items())]


@pytest.fixture
def consumer(cluster: LocalCluster) -> Iterator[Consumer]:
    """A member of a group that has joined, and polls an empty topic from now on."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "billing", "client.id": "reader", **QUIET}
    made = Consumer({**config, "fetch.wait.max.ms": 5000, "fetch.error.backoff.ms": 100})
    made.subscribe(["orders"])
    until(lambda: made.poll(0.1) is None and made.assignment())
    yield made
    made.close()


def test_a_kafka_client_is_listed_with_its_software_and_its_parked_fetch(cluster: LocalCluster, consumer: Consumer):
    """A consumer that seems to hang: its connection shows the Fetch that waits, and for how long."""
    consumer.poll(0)
    [one] = until(lambda: connections(cluster, client_id="reader", pending_request="Fetch"))
    assert (one["protocol"], one["listener"], one["last_request"]) == ("kafka", "PLAINTEXT", "Fetch")
    assert one["software"].startswith("confluent-kafka-python ")
    assert one["remote"].startswith("127.0.0.1:")
    assert one["api_version"] >= 11
    assert one["requests"] > 2
    assert one["received_bytes"] > 100
    assert one["sent_bytes"] > 100
    later = until(
        lambda: [
            each
            for each in connections(cluster, client_id="reader", connection_id=one["connection_id"])
            if each["requests"] > one["requests"]
        ]
    )
    # Each response reckons it from the connection's age and the wall clock, which are read one after the other.
    since, before = (datetime.fromisoformat(each["since"]) for each in (later[0], one))
    assert abs(since - before) < timedelta(seconds=1)
    assert later[0]["received_bytes"] > one["received_bytes"]


def test_brokers_and_http_clients_are_listed(cluster: LocalCluster):
    """A follower by its broker id, and the request for the list itself."""
    listed = until(lambda: connections(cluster, client_id="broker-2", protocol="rpc", last_request="Fetch"))
    assert all(one["software"].startswith("minikafka ") for one in listed)
    [own] = [one for one in asked(cluster, "/v1/connections")["connections"] if one["software"] == "probe 1.5"]
    assert (own["protocol"], own["client_id"]) == ("http", "")
    assert own["last_request"] == own["pending_request"] == "GET /v1/connections"


def test_a_connection_without_a_request_has_no_protocol_yet(cluster: LocalCluster):
    """It keeps its number when its first request shows what it speaks."""
    host, port = cluster.bootstrap.split(",")[0].split(":")
    with socket.create_connection((host, int(port))) as silent:
        remote = f"127.0.0.1:{silent.getsockname()[1]}"
        [one] = until(lambda: connections(cluster, remote=remote))
        assert (one["protocol"], one["last_request"], one["requests"]) == (None, None, 0)
        request = b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.14.1\r\n\r\n"
        silent.sendall(request)
        [again] = until(
            lambda: connections(cluster, remote=remote, last_request="GET /v1/cluster", pending_request=None)
        )
        assert (again["protocol"], again["software"], again["requests"]) == ("http", "curl 8.14.1", 1)
        assert again["connection_id"] == one["connection_id"]
        assert again["received_bytes"] == len(request)
        assert again["sent_bytes"] > 500
    until(lambda: not connections(cluster, remote=remote))


def test_a_long_list_is_read_in_parts(cluster: LocalCluster):
    """``limit`` and ``after``: nothing twice, nothing left out, oldest first."""
    host, port = cluster.bootstrap.split(",")[0].split(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(5)]
    try:
        until(lambda: len(asked(cluster, "/v1/connections")["connections"]) >= 5)
        seen: list[int] = []
        while True:
            listed = asked(cluster, f"/v1/connections?limit=2&after={seen[-1] if seen else 0}")
            seen += [one["connection_id"] for one in listed["connections"]]
            if not listed["more"]:
                break
            assert len(listed["connections"]) == 2
        assert seen == sorted(set(seen))
        assert len(seen) >= 5
    finally:
        for each in sockets:
            each.close()


def test_the_command_lists_the_connections_of_all_brokers(cluster: LocalCluster, consumer: Consumer):
    """As a table and as JSON, by broker and protocol."""
    consumer.poll(0)
    done = completed("connections", "-b", cluster.bootstrap, "-o", "json")
    listed = json.loads(done.stdout)["brokers"]
    assert [(each["node_id"], each["reachable"]) for each in listed] == [(1, True), (2, True)]
    clients = {one["client_id"] for each in listed for one in each["connections"]}
    assert {"broker-2", "reader"} <= clients
    done = completed("connections", "-b", cluster.bootstrap, "--broker", "1", "--protocol", "rpc", "-o", "tsv")
    header, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert header[:4] == ["BROKER", "CONNECTION-ID", "PROTOCOL", "LISTENER"]
    assert {(row[0], row[2]) for row in rows} == {("1", "rpc")}
    wrong = completed("connections", "-b", cluster.bootstrap, "--broker", "7")
    assert wrong.returncode == 1
    assert "--broker 7: there is no such broker; the registered brokers are 1, 2" in wrong.stderr


def test_members_of_a_group_have_the_software_of_their_client(cluster: LocalCluster, consumer: Consumer):
    """In /v1 and in the command line's table and JSON; ``-o kafka`` stays as Kafka prints it."""
    assert consumer.assignment()
    [member] = asked(cluster, "/v1/groups/billing")["members"]
    assert member["software"].startswith("confluent-kafka-python ")
    done = completed("groups", "members", "billing", "-b", cluster.bootstrap, "-o", "json")
    assert [each["software"] for each in json.loads(done.stdout)["members"]] == [member["software"]]
    done = completed("groups", "members", "billing", "-b", cluster.bootstrap, "-o", "tsv")
    assert done.stdout.splitlines()[0].split("\t")[-1] == "SOFTWARE"
    assert member["software"] in done.stdout
    done = completed("groups", "members", "billing", "-b", cluster.bootstrap, "-o", "kafka")
    assert "confluent-kafka-python" not in done.stdout


def test_events_of_faults_name_protocol_and_software_of_the_client(cluster: LocalCluster):
    """Not only the client id, which several programs may share."""
    cluster.sync.faults.error("client:teller>*", "NOT_ENOUGH_REPLICAS", api="Produce", count=1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "teller", **QUIET})
    producer.produce("orders", b"tea")
    assert producer.flush(PATIENCE_S) == 0
    hit = cluster.sync.events.wait("fault_hit", source="client:teller")
    assert hit["protocol"] == "kafka"
    assert hit["software"].startswith("confluent-kafka-python ")
