"""Client quotas with real brokers: Kafka's clients, /rpc, /v1, the command line, and hostile clients (SECURITY 8.7)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from minikafka import AdminClient, LocalCluster
from minikafka import Producer as NativeProducer
from minikafka.cli.root import root
from minikafka.security.quotas import CLIENT_ID, CONNECTION, FETCH, IP, MUTATION, PRODUCE, REQUEST, USER, Entity
from minikafka.wire.kafka.codec import Message
from minikafka.wire.records import BatchBuilder
from tests.kafka.client import RawClient, errors_in

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
KIB = 1024
ANONYMOUS: Entity = ((USER, "ANONYMOUS"),)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as made:
        made.sync.create_topic("t", partitions=1)
        yield made


@pytest.fixture(autouse=True)
def _no_quotas(cluster: LocalCluster) -> Iterator[None]:
    """Each test sets its own."""
    yield
    known = asyncio.run(with_admin(cluster, lambda admin: admin.describe_client_quotas()))
    removed = {entity: dict.fromkeys(values) for entity, values in known.items()}
    asyncio.run(with_admin(cluster, lambda admin: admin.alter_client_quotas(removed)))


async def with_admin(cluster: LocalCluster, work: Any) -> Any:
    async with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        return await work(admin)


def set_quotas(cluster: LocalCluster, entity: Entity, **values: float) -> None:
    asyncio.run(with_admin(cluster, lambda admin: admin.alter_client_quotas({entity: values})))


def batch(size: int) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, bytes(size))
    return bytes(builder.build())


def produced(size: int) -> Message:
    partition = {"index": 0, "records": [batch(size)]}
    return {"acks": -1, "timeout_ms": 9000, "topic_data": [{"name": "t", "partition_data": [partition]}]}


def address(cluster: LocalCluster) -> tuple[str, int]:
    host, _, port = cluster.bootstrap.partition(":")
    return host, int(port)


async def said(client: RawClient, name: str, version: int, message: Message, client_id: bytes) -> Message:
    client.writer.write(client.request(name, version, message, client_id))
    return await client.answer(name, version)


def test_librdkafka_learns_of_its_throttling(cluster: LocalCluster):
    """A producer and a consumer over their quotas: their callbacks report it, and every record goes through."""
    set_quotas(cluster, ((CLIENT_ID, "slow"),), producer_byte_rate=3000, consumer_byte_rate=4000)
    events: list[Any] = []
    settings = {"bootstrap.servers": cluster.bootstrap, "client.id": "slow", "throttle_cb": events.append}
    producer = Producer({**settings, "batch.size": 4000, "linger.ms": 0})
    for _ in range(12):
        producer.produce("t", bytes(3 * KIB))
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert events
    assert all(each.throttle_time > 0 for each in events)
    events.clear()
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10})
    consumer.subscribe(["t"])
    got = 0
    deadline = time.monotonic() + PATIENCE_S
    while got < 12 and time.monotonic() < deadline:
        record = consumer.poll(0.2)
        got += record is not None and record.error() is None
    # The first fetch may return ten seconds' worth: the next ones are over the quota.
    while not events and time.monotonic() < deadline:
        producer.produce("t", bytes(30 * KIB))
        consumer.poll(0.2)
        producer.poll(0)
    consumer.close()
    assert got == 12
    assert events


async def test_many_connections_and_client_ids_share_the_quota_of_their_user(cluster: LocalCluster):
    """Hostile test 23: the throttle times grow with what all connections have sent; another connection of the user,
    which sends no records, is answered meanwhile.
    """
    await with_admin(cluster, lambda admin: admin.alter_client_quotas({ANONYMOUS: {PRODUCE: 10.0 * KIB}}))
    clients = [await RawClient.at(*address(cluster)) for _ in range(20)]
    beside = await RawClient.at(*address(cluster))
    try:
        times = []
        for number, client in enumerate(clients):
            answer = await said(client, "Produce", 8, produced(20 * KIB), b"id-%d" % number)
            assert errors_in(answer) == {0}
            times.append(answer["throttle_time_ms"])
        # 400 KiB in all, 100 may come at once, and the rest takes thirty seconds at 10 KiB/s.
        assert times[:4] == [0, 0, 0, 0]
        assert times[-1] > 20_000
        assert times[6:] == sorted(times[6:])
        answer = await said(beside, "Metadata", 8, {"topics": []}, b"beside")
        assert answer["throttle_time_ms"] == 0
    finally:
        for client in (*clients, beside):
            await client.close()


def url(cluster: LocalCluster, path: str) -> str:
    return f"http://{cluster.bootstrap}{path}"


def asked(cluster: LocalCluster, method: str, path: str, document: Any = None) -> tuple[int, Any, Any]:
    """Status, headers and document of a response of ``/v1``."""
    return asked_of(cluster.bootstrap, method, path, document)


def asked_of(broker: str, method: str, path: str, document: Any) -> tuple[int, Any, Any]:
    """The same of one of several brokers."""
    request = urllib.request.Request(
        f"http://{broker}{path}",
        data=None if document is None else json.dumps(document).encode(),
        method=method,
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.headers, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, json.load(error)


def test_v1_refuses_a_client_that_is_throttled_for_long(cluster: LocalCluster):
    """The first request is served and says how long; the next gets 429 with Retry-After, and nothing is written."""
    set_quotas(cluster, ANONYMOUS, producer_byte_rate=100)
    body = {"records": [{"value": "x" * 5000}]}
    status, headers, _ = asked(cluster, "POST", "/v1/topics/t/partitions/0/records", body)
    assert (status, int(headers["Mk-Throttle-Time-Ms"]) > 30_000) == (200, True)
    before = asked(cluster, "GET", "/v1/topics/t/partitions/0/offsets")[2]
    status, headers, problem = asked(cluster, "POST", "/v1/topics/t/partitions/0/records", body)
    assert (status, problem["error"], problem["outcome"]) == (429, "THROTTLING_QUOTA_EXCEEDED", "not_written")
    assert int(headers["Retry-After"]) > 1
    assert asked(cluster, "GET", "/v1/topics/t/partitions/0/offsets")[2] == before
    status, _, _ = asked(cluster, "GET", "/v1/topics/t/partitions/0/records")  # consumers have another quota
    assert status == 200


def test_v1_counts_what_consumers_read(cluster: LocalCluster):
    """Responses with records count against the quota of consumers."""
    cluster.sync.produce("t", b"y" * 20_000)
    set_quotas(cluster, ANONYMOUS, consumer_byte_rate=100)
    status, headers, _ = asked(cluster, "GET", "/v1/topics/t/partitions/0/records")
    assert (status, int(headers["Mk-Throttle-Time-Ms"]) > 0) == (200, True)
    assert asked(cluster, "GET", "/v1/topics/t/partitions/0/records")[0] == 429


def test_v1_sets_and_shows_quotas(cluster: LocalCluster):
    """null is the default of a type as an entity, and removes a quota as a value."""
    change = {"user": "ann", "client_id": None, "quotas": {PRODUCE: 1024, REQUEST: 12.5}}
    status, _, document = asked(cluster, "PATCH", "/v1/quotas", change)
    assert (status, document["altered"], document["dry_run"]) == (200, change["quotas"], False)
    entry = {"user": "ann", "client_id": None, "quotas": {PRODUCE: 1024.0, REQUEST: 12.5}}
    assert asked(cluster, "GET", "/v1/quotas")[2] == {"quotas": [entry]}
    removal = {"user": "ann", "client_id": None, "quotas": {PRODUCE: None, REQUEST: None}}
    assert asked(cluster, "PATCH", "/v1/quotas?dry_run=true", removal)[2]["dry_run"] is True
    assert asked(cluster, "GET", "/v1/quotas")[2] == {"quotas": [entry]}
    assert asked(cluster, "PATCH", "/v1/quotas", removal)[0] == 200
    assert asked(cluster, "GET", "/v1/quotas")[2] == {"quotas": []}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"quotas": {PRODUCE: 1}}, 422),
        ({"user": "ann"}, 422),
        ({"user": "ann", "quotas": {}}, 422),
        ({"user": 5, "quotas": {PRODUCE: 1}}, 422),
        ({"user": "ann", "quotas": {PRODUCE: "1"}}, 422),
        ({"user": "ann", "quotas": {PRODUCE: 10**400}}, 422),
        ({"user": "ann", "quotas": {PRODUCE: 1}, "group": "g"}, 422),
        ({"user": "ann", "quotas": {"bytes": 1}}, 400),
        ({"ip": "localhost", "quotas": {CONNECTION: 1}}, 400),
        ({"ip": "10.0.0.7", "user": "ann", "quotas": {CONNECTION: 1}}, 400),
        ({"user": "ann", "quotas": {PRODUCE: -1}}, 400),
    ],
)
def test_v1_refuses_wrong_quotas(cluster: LocalCluster, change: Any, status: int):
    """With a problem, and nothing is set."""
    found, _, problem = asked(cluster, "PATCH", "/v1/quotas", change)
    assert found == status, problem
    assert asked(cluster, "GET", "/v1/quotas")[2] == {"quotas": []}


async def test_the_native_client_over_rpc_waits_and_goes_on(cluster: LocalCluster):
    """Requests over ``/rpc`` count by the client's user; a producer that is refused tries again."""
    await with_admin(cluster, lambda admin: admin.alter_client_quotas({ANONYMOUS: {PRODUCE: 20.0 * KIB}}))
    async with NativeProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(3):
            await producer.send_and_wait("t", bytes(80 * KIB))
    metrics = await asyncio.to_thread(lambda: urllib.request.urlopen(url(cluster, "/metrics")).read().decode())
    counted = [
        line for line in metrics.splitlines() if line.startswith(f'mk_throttled_requests_total{{quota="{PRODUCE}"}}')
    ]
    assert float(counted[0].split()[-1]) > 0


def test_the_command_line(cluster: LocalCluster):
    """``minikafka quotas`` sets, lists and removes."""

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(root, ["quotas", *arguments, "-b", cluster.bootstrap])
        assert result.exit_code == 0, result.output
        return result.output

    assert call("list") == "There are no quotas.\n"
    call("set", "--for-user", "ann", "--produce", "10M", "--request", "12.5")
    call("set", "--default-user", "--client-id", "etl", "--consume", "512K")
    listed = json.loads(call("list", "-o", "json"))
    assert listed == {
        "quotas": [
            {"client_id": "etl", "user": None, "quotas": {FETCH: 524_288.0}},
            {"user": "ann", "quotas": {PRODUCE: 10_485_760.0, REQUEST: 12.5}},
        ]
    }
    assert call("list", "--for-user", "ann", "-o", "tsv").splitlines()[1].split("\t") == [
        "ann",
        "-",
        "-",
        "10485760",
        "-",
        "12.5",
        "-",
        "-",
    ]
    call("set", "--for-ip", "10.0.0.7", "--connections", "5")
    call("set", "--for-user", "bob", "--mutations", "0.5")
    assert json.loads(call("list", "--for-ip", "10.0.0.7", "-o", "json"))["quotas"] == [
        {"ip": "10.0.0.7", "quotas": {CONNECTION: 5.0}}
    ]
    call("remove", "--for-ip", "10.0.0.7")
    call("remove", "--for-user", "bob", "--quota", "mutations")
    call("remove", "--for-user", "ann", "--quota", "produce")
    assert json.loads(call("list", "--for-user", "ann", "-o", "json"))["quotas"][0]["quotas"] == {REQUEST: 12.5}
    assert call("remove", "--for-user", "ann") == f"user ann: no longer limited by {REQUEST}\n"
    assert call("remove", "--for-user", "ann", "--quota", "produce") == f"user ann: was not limited by {PRODUCE}\n"
    call("remove", "--default-user", "--client-id", "etl")
    assert call("list") == "There are no quotas.\n"


def test_brokers_replicate_whatever_the_quotas_are():
    """Followers' fetches and the controller's APIs are exempt at a listener that clients use too."""
    with LocalCluster(brokers=3) as cluster:
        cluster.sync.create_topic("r", partitions=1, replicas=3)
        default: Entity = ((USER, None),)
        limits = {PRODUCE: 1e6, FETCH: 1.0, REQUEST: 0.001}
        asyncio.run(with_admin(cluster, lambda admin: admin.alter_client_quotas({default: limits})))
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for _ in range(5):
            producer.produce("r", bytes(1000))
        assert producer.flush(PATIENCE_S) == 0
        cluster.sync.wait.isr("r", size=3)


def new_topic(name: str, partitions: int) -> Message:
    return {
        "topics": [{"name": name, "num_partitions": partitions, "replication_factor": 1}],
        "timeout_ms": 30_000,
        "validate_only": False,
    }


async def test_the_controller_counts_what_a_client_creates_through_any_broker():
    """KIP-599: one rate for the cluster, by the client that has sent the request; old versions are served, and wait."""
    with LocalCluster(brokers=3) as cluster:
        limits = {((CLIENT_ID, "busy"),): {MUTATION: 1.0}}
        await with_admin(cluster, lambda admin: admin.alter_client_quotas(limits))
        brokers = [RawClient.at(*each.address) for each in cluster.files.brokers]
        clients = [await each for each in brokers]
        try:
            answer = await said(clients[0], "CreateTopics", 7, new_topic("a", 100), b"busy")
            assert (errors_in(answer), answer["throttle_time_ms"]) == ({0}, 0)
            for number, client in enumerate(clients):
                answer = await said(client, "CreateTopics", 7, new_topic(f"b{number}", 1), b"busy")
                assert errors_in(answer) == {89}
                assert answer["throttle_time_ms"] > 60_000
            another = await RawClient.at(*cluster.files.brokers[1].address)
            answer = await said(another, "CreateTopics", 7, new_topic("c", 1), b"other")
            assert (errors_in(answer), answer["throttle_time_ms"]) == ({0}, 0)
            answer = await said(another, "CreateTopics", 5, new_topic("d", 1), b"busy")
            assert errors_in(answer) == {0}
            assert answer["throttle_time_ms"] > 60_000
            await another.close()
        finally:
            for client in clients:
                await client.close()
        status, _, problem = await asyncio.to_thread(
            asked_of, str(cluster.files.brokers[2].address), "DELETE", "/v1/topics/a", None
        )
        assert (status, problem.get("error")) == (200, None)  # the client id of /v1 is another


def test_v1_refuses_mutations_with_retry_after(cluster: LocalCluster):
    """429, and nothing was created."""
    set_quotas(cluster, ANONYMOUS, controller_mutation_rate=1)
    assert asked(cluster, "POST", "/v1/topics", {"name": "first", "partitions": 50})[0] == 201
    status, headers, problem = asked(cluster, "POST", "/v1/topics", {"name": "second"})
    assert (status, problem["error"], problem["outcome"]) == (429, "THROTTLING_QUOTA_EXCEEDED", "not_written")
    assert int(headers["Retry-After"]) > 20
    assert "second" not in {each["topic"] for each in asked(cluster, "GET", "/v1/topics")[2]["topics"]}


@pytest.mark.parametrize("tls", [False, True], ids=["plain text", "TLS"])
async def test_connections_beyond_the_quota_of_their_address_are_closed_later(tls: bool):
    """KIP-612: they were accepted, nothing that they send is answered, and another address connects meanwhile."""
    with LocalCluster(brokers=1, tls=tls) as cluster:
        host, port = cluster.files.brokers[0].address
        at: Entity = ((IP, "127.0.0.7"),)
        await asyncio.to_thread(cluster.sync.create_topic, "t")
        async with AdminClient(**({"bootstrap_servers": cluster.bootstrap} | cluster.client_settings())) as admin:
            await admin.alter_client_quotas({at: {CONNECTION: 1.0}})
            opened = [await asyncio.open_connection(host, port, local_addr=("127.0.0.7", 0)) for _ in range(12)]
            try:
                for reader, writer in opened[10:]:
                    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    with contextlib.suppress(ConnectionError):
                        async with asyncio.timeout(PATIENCE_S):
                            assert await reader.read() == b""
                if not tls:
                    reader, writer = opened[0]
                    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    async with asyncio.timeout(PATIENCE_S):
                        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                assert at in await admin.describe_client_quotas()
            finally:
                for _, writer in opened:
                    writer.close()
