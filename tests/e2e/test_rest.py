"""curl against three real brokers: the README's own commands, any broker for everything, and what happens when one dies."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.haste import SHORT_SESSIONS
from tests.tidy.sources import ROOT


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=SHORT_SESSIONS) as running:
        yield running


def urls_of(cluster: LocalCluster) -> list[str]:
    return [f"http://{address}" for address in cluster.bootstrap.split(",")]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield session


async def create(http: aiohttp.ClientSession, url: str, name: str, **members: Any) -> dict[str, Any]:
    async with http.post(url + "/v1/topics", json={"name": name, **members}) as response:
        told = await response.json()
        assert response.status == 201, told
        return told


def commands_of_the_tour() -> list[list[str]]:
    """The curl commands of the tour, as a shell would split them."""
    tour = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    found = re.findall(r"^\$ (curl .*?(?:\\\n.*?)*)$", tour, flags=re.MULTILINE)
    return [shlex.split(each.replace("\\\n", " "), comments=True) for each in found]


def run_curl(arguments: list[str], base: str) -> tuple[int, Any]:
    """Do what curl would with ``--json DATA`` and one address."""
    assert arguments[0] == "curl"
    data: bytes | None = None
    url = ""
    rest = iter(arguments[1:])
    for each in rest:
        if each == "--json":
            data = next(rest).encode()
        else:
            assert not each.startswith("-"), f"this test does not know curl's {each}"
            url = each.replace("http://127.0.0.1:9092", base)
    headers = {"Content-Type": "application/json", "Accept": "application/json"} if data is not None else {}
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_tours_commands_with_curl_work_as_they_stand(cluster):
    """A newcomer's first three commands, literally, in order, without a pause; and a member with curl alone."""
    create_topic, produce, fetch, join = commands_of_the_tour()
    base = urls_of(cluster)[0]
    status, topic = run_curl(create_topic, base)
    assert (status, topic["topic"], topic["partition_count"]) == (201, "orders", 3)
    status, produced = run_curl(produce, base)
    assert status == 200
    assert produced["records"][0]["partition"] == 2
    assert produced["records"][0]["offset"] == 0
    status, read = run_curl(fetch, base)
    assert (status, read["wait"]["ended"], read["partition"]) == (200, "data", 2)
    (record,) = read["records"]
    assert (record["key"], record["value"], record["encoding"]) == ("ann", {"item": "tea", "count": 2}, "json")
    assert read["high_watermark"] == read["next_offset"] == 1
    status, problem = run_curl(create_topic, base)
    assert (status, problem["error"], problem["outcome"]) == (409, "TOPIC_ALREADY_EXISTS", "not_written")
    status, member = run_curl(join, base)
    assert (status, member["generation"]) == (200, 1)
    assert member["assignment"] == [{"topic": "orders", "partitions": [0, 1, 2]}]


async def test_curl_for_confluent_rest_proxy_produces(cluster, http):
    """Issue 14: both produce routes, called by curl as the proxy's own documentation does, at a broker that need not lead."""
    url = urls_of(cluster)[2]
    await create(http, url, "proxied", partitions=3, replication_factor=3)
    async with http.get(url + "/v1/cluster") as response:
        cluster_id = (await response.json())["cluster_id"]

    async def curl(path: str, content_type: str, document: object) -> tuple[str, Any]:
        arguments = ["-s", "-w", "\n%{http_code} %{content_type}", "-X", "POST", "-H", f"Content-Type: {content_type}"]
        process = await asyncio.create_subprocess_exec(
            "curl", *arguments, "-d", json.dumps(document), url + path, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        body, _, head = output.decode().rpartition("\n")
        return head, json.loads(body)

    rows = [{"key": "YW5u", "value": "dGVh", "partition": number} for number in range(3)]
    head, told = await curl("/topics/proxied", "application/vnd.kafka.binary.v2+json", {"records": rows})
    assert head == "200 application/vnd.kafka.v2+json"
    assert [(each["partition"], each["offset"], each["error"]) for each in told["offsets"]] == [
        (number, 0, None) for number in range(3)
    ]
    record = {"partition_id": 1, "value": {"type": "JSON", "data": {"item": "tea"}}}
    path = f"/clusters/{cluster_id}/topics/proxied/records"
    for prefix, offset in (("/v3", 1), ("/kafka/v3", 2)):
        head, told = await curl(prefix + path, "application/json", record)
        assert (head, told["error_code"], told["partition_id"], told["offset"]) == (
            "200 application/json",
            200,
            1,
            offset,
        )
    async with http.get(url + "/v1/topics/proxied/partitions/1/records?offset=0") as response:
        found = (await response.json())["records"]
    assert [(each["key"], each["value"]) for each in found] == [("ann", "tea"), *[(None, {"item": "tea"})] * 2]
    head, told = await curl("/topics/none", "application/vnd.kafka.json.v2+json", {"records": [{"value": 1}]})
    assert (head, told["error_code"]) == ("404 application/vnd.kafka.v2+json", 40401)


async def test_any_broker_serves_any_partition(cluster, http):
    """2.3: whoever is asked forwards once and says who served."""
    urls = urls_of(cluster)
    await create(http, urls[1], "anywhere", partitions=3, replication_factor=3, config={"min.insync.replicas": 2})
    for url in urls:
        for partition in range(3):
            path = f"/v1/topics/anywhere/partitions/{partition}/records"
            async with http.post(url + path, json={"value": url}) as response:
                told = await response.json()
                assert response.status == 200, told
                assert response.headers["Mk-Served-By"] == response.headers["Mk-Leader"]
    for url in urls:
        for partition in range(3):
            path = f"/v1/topics/anywhere/partitions/{partition}/records?offset=0"
            async with http.get(url + path) as response:
                read = await response.json()
            assert [each["value"] for each in read["records"]] == urls
            assert [each["offset"] for each in read["records"]] == [0, 1, 2]
    async with http.get(urls[0] + "/v1/topics/anywhere/partitions/0") as response:
        shown = await response.json()
    assert sorted(each["id"] for each in shown["replicas"]) == [1, 2, 3]
    assert shown["high_watermark"] == 3


async def test_a_parked_fetch_is_woken_by_a_produce_elsewhere(cluster, http):
    """S12: the long poll crosses two brokers and still ends with the data."""
    urls = urls_of(cluster)
    await create(http, urls[0], "parked", partitions=1, replication_factor=3)
    path = "/v1/topics/parked/partitions/0/records"

    async def poll(url: str) -> Any:
        async with http.get(f"{url}{path}?max_wait_ms=30000") as response:
            return await response.json()

    polls = [asyncio.ensure_future(poll(url)) for url in urls]
    await asyncio.sleep(0.2)
    async with http.post(urls[0] + path, json={"value": "news"}) as response:
        assert response.status == 200
    for each in await asyncio.gather(*polls):
        assert (each["wait"]["ended"], each["records"][0]["value"]) == ("data", "news")


async def test_refusals_of_the_real_controller_and_leader(cluster, http):
    """Kafka's names arrive unchanged: what the rules say is what a person reads."""
    url = urls_of(cluster)[2]

    async def refused(method: str, path: str, document: Any = None) -> tuple[int, str, str]:
        async with http.request(method, url + path, json=document) as response:
            told = await response.json(content_type="application/problem+json")
            return response.status, told["error"], told["outcome"]

    topics = "/v1/topics"
    assert await refused("POST", topics, {"name": "no/slash"}) == (422, "INVALID_TOPIC_EXCEPTION", "not_written")
    wide = {"name": "x", "replication_factor": 4}
    assert await refused("POST", topics, wide) == (422, "INVALID_REPLICATION_FACTOR", "not_written")
    unset = {"name": "x", "config": {"retention": "1"}}
    assert await refused("POST", topics, unset) == (422, "INVALID_CONFIG", "not_written")
    assert await refused("DELETE", "/v1/topics/nothing") == (404, "UNKNOWN_TOPIC_OR_PARTITION", "not_written")
    await create(http, url, "strict", partitions=1, replication_factor=1, config={"max.message.bytes": 1000})
    records = "/v1/topics/strict/records"
    assert await refused("GET", "/v1/topics/strict/partitions/0/records?offset=5") == (
        416,
        "OFFSET_OUT_OF_RANGE",
        "not_written",
    )
    large = {"value": "x" * 2_000}
    assert await refused("POST", records + "?acks=1", large) == (413, "MESSAGE_TOO_LARGE", "not_written")
    late = {"value": 1, "timestamp": "2999-01-01T00:00Z"}
    assert await refused("POST", records + "?acks=1", late) == (422, "INVALID_TIMESTAMP", "not_written")


async def test_health_and_the_protocol_in_json(cluster, http):
    """Liveness, readiness and /rpc for curl on every broker."""
    for url in urls_of(cluster):
        for path in ("/healthz", "/readyz"):
            async with http.get(url + path) as response:
                assert response.status == 200
        async with http.get(url + "/v1/cluster") as response:
            controller = (await response.json())["controller"]
        async with http.post(controller["url"] + "/rpc/DescribeQuorum", json={}) as response:
            told = await response.json()
        assert (told["leader_id"], len(told["voters"])) == (controller["id"], 3)


async def test_a_person_rides_out_the_death_of_a_leader(cluster, http):
    """Retrying what is *retriable* and *not_written* loses nothing and writes nothing twice; unknown is told as such."""
    urls = urls_of(cluster)
    await create(http, urls[0], "mortal", partitions=1, replication_factor=3, config={"min.insync.replicas": 2})
    await create(http, urls[0], "strictest", partitions=1, replication_factor=3, config={"min.insync.replicas": 3})
    path = "/v1/topics/mortal/partitions/0/records"
    async with http.get(urls[0] + "/v1/topics/mortal") as response:
        leader = (await response.json())["partitions"][0]["leader"]
    asked = next(url for node, url in zip(cluster.node_ids, urls, strict=True) if node != leader)

    async def write(number: int) -> str:
        """``written``, or ``unknown`` when nobody can tell; what surely did not happen is tried again."""
        async with asyncio.timeout(60):
            while True:
                async with http.post(f"{asked}{path}?timeout_ms=5000", json={"value": number}) as response:
                    told = await response.json(content_type=None)
                if response.status == 200:
                    return "written"
                if told["outcome"] != "not_written":
                    return "unknown"
                assert told["retriable"], told
                await asyncio.sleep(0.2)

    async def refused_for_lack_of_replicas(url: str) -> Any:
        """The refusal that comes once the dead broker is out of the ISR."""
        async with asyncio.timeout(60):
            while True:
                async with http.post(url, json={"value": 1}) as response:
                    told = await response.json(content_type=None)
                if (response.status, told.get("error")) == (503, "NOT_ENOUGH_REPLICAS"):
                    return told
                await asyncio.sleep(0.2)

    outcomes = {number: await write(number) for number in range(3)}
    await asyncio.to_thread(cluster.kill, leader)
    try:
        number = 3
        while number < 8 or outcomes[number - 1] != "written":
            outcomes[number] = await write(number)
            number += 1
        async with http.get(f"{asked}{path}?offset=0&max_wait_ms=5000") as response:
            read = await response.json()
            assert response.status == 200, read
        values = [each["value"] for each in read["records"]]
        assert len(values) == len(set(values))
        assert values == sorted(values)
        assert {number for number, outcome in outcomes.items() if outcome == "written"} <= set(values)
        assert read["leader_id"] != leader
        told = await refused_for_lack_of_replicas(f"{asked}/v1/topics/strictest/records?timeout_ms=500")
        assert (told["error_code"], told["retriable"], told["outcome"]) == (19, True, "not_written")
        assert (len(told["isr"]), told["min_insync_replicas"]) == (2, 3)
    finally:
        await asyncio.to_thread(cluster.restart, leader)
