"""``/v1`` for administrators, against three real brokers: settings, partitions, reassignments; any broker is asked.

Every answer is held against the schema of its route (tests/rest/conform.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from minikafka.replication.leader import LeaderReplica
from minikafka.testing.local_cluster import LocalCluster
from tests.rest.conform import check_answer

PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        yield running


class Person:
    """Asks one broker after the other, and checks what they say against the description."""

    def __init__(self, http: aiohttp.ClientSession, cluster: LocalCluster) -> None:
        self.http = http
        self.urls = [f"http://{at}" for at in cluster.bootstrap.split(",")]
        self.asked = 0

    async def __call__(self, method: str, path: str, document: Any = None, *, expect: int = 200) -> Any:
        self.asked += 1
        url = self.urls[self.asked % len(self.urls)] + path
        async with self.http.request(method, url, json=document) as response:
            told = await response.json(content_type=None)
        check_answer(method, path.partition("?")[0], response.status, response.content_type, told)
        assert response.status == expect, told
        return told

    async def topic(self, name: str, partitions: int = 1, factor: int = 3) -> str:
        members = {"name": name, "partitions": partitions, "replication_factor": factor}
        await self("POST", "/v1/topics", members, expect=201)
        return f"/v1/topics/{name}"


@pytest.fixture
async def person(cluster: LocalCluster) -> AsyncIterator[Person]:
    async with aiohttp.ClientSession() as http:
        yield Person(http, cluster)


def by_name(told: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["name"]: (each["value"], each["source"]) for each in told["configs"]}


async def test_settings_are_altered_and_shown_by_any_broker(person: Person):
    """PATCH and GET: of a topic, of one broker, of all; null takes back; what is wrong is a problem."""
    topic = await person.topic("settings")
    altered = await person("PATCH", topic, {"config": {"retention.ms": 5, "segment.bytes": "2000"}})
    assert altered == {"altered": {"retention.ms": "5", "segment.bytes": "2000"}, "dry_run": False}
    for _ in range(3):
        shown = by_name(await person("GET", f"{topic}/configs"))
        assert shown["retention.ms"] == ("5", "DYNAMIC_TOPIC_CONFIG")
        assert shown["segment.ms"][1] == "DEFAULT_CONFIG"
    await person("PATCH", topic, {"config": {"retention.ms": None}})
    assert by_name(await person("GET", f"{topic}/configs"))["retention.ms"][1] == "DEFAULT_CONFIG"
    await person("PATCH", f"{topic}?dry_run=true", {"config": {"segment.bytes": 3000}})
    assert by_name(await person("GET", f"{topic}/configs"))["segment.bytes"][0] == "2000"
    refused = await person("PATCH", topic, {"config": {"retention.mss": "5"}}, expect=422)
    assert (refused["error"], "retention.ms" in refused["detail"]) == ("INVALID_CONFIG", True)
    for wrong in ({}, {"config": {}}, {"config": {"a": [1]}}, {"config": {"retention.ms": 5}, "more": 1}):
        assert (await person("PATCH", topic, wrong, expect=422))["errors"]
    await person("PATCH", "/v1/topics/nobody", {"config": {"retention.ms": 5}}, expect=404)
    await person("GET", "/v1/topics/nobody/configs", expect=404)
    for node in (1, 2, 3):
        await person("PATCH", f"/v1/brokers/{node}/configs", {"config": {"log.retention.bytes": node * 100}})
    await person("PATCH", "/v1/cluster/configs", {"config": {"log.roll.ms": 9000}})
    for node in (1, 2, 3):
        shown = by_name(await person("GET", f"/v1/brokers/{node}/configs"))
        assert shown["node.id"][0] == str(node)
        assert shown["log.retention.bytes"] == (str(node * 100), "DYNAMIC_BROKER_CONFIG")
        assert shown["log.roll.ms"] == ("9000", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert by_name(await person("GET", "/v1/cluster/configs")) == {
        "log.roll.ms": ("9000", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    }
    await person("PATCH", "/v1/brokers/1/configs", {"config": {"node.id": 7}}, expect=422)
    await person("GET", "/v1/brokers/9/configs", expect=404)


async def test_brokers_settings_count_at_once_and_read_only_ones_say_so(cluster: LocalCluster, person: Person):
    """KIP-226, beyond the defaults of topics: one broker's, all brokers'; where each stands is told."""
    assert {cluster.broker(node).config.replica_lag_time_max_ms for node in (1, 2, 3)} == {30_000}
    await person.topic("before", 3)
    await person("PATCH", "/v1/brokers/2/configs", {"config": {"replica.lag.time.max.ms": 4000}})
    await person("PATCH", "/v1/cluster/configs", {"config": {"num.partitions": 4, "replica.lag.time.max.ms": 5000}})
    assert [cluster.broker(node).config.replica_lag_time_max_ms for node in (1, 2, 3)] == [5000, 4000, 5000]
    await person("POST", "/v1/topics", {"name": "by-default", "replication_factor": 3}, expect=201)
    told = await person("GET", "/v1/topics/by-default")
    assert len(told["partitions"]) == 4
    role = next(each.role for each in cluster.broker(2).partitions.values() if isinstance(each.role, LeaderReplica))
    assert role.lag_time_max_s == 4.0

    shown = {each["name"]: each for each in (await person("GET", "/v1/brokers/2/configs"))["configs"]}
    lag = shown["replica.lag.time.max.ms"]
    assert [(each["value"], each["source"]) for each in lag["synonyms"]] == [
        ("4000", "DYNAMIC_BROKER_CONFIG"),
        ("5000", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        ("30000", "DEFAULT_CONFIG"),
    ]
    assert (lag["read_only"], shown["broker.session.timeout.ms"]["read_only"]) == (False, True)
    refused = await person(
        "PATCH", "/v1/brokers/2/configs", {"config": {"broker.session.timeout.ms": 9000}}, expect=422
    )
    assert (refused["error"], "read-only" in refused["detail"]) == ("INVALID_CONFIG", True)
    await person("PATCH", "/v1/brokers/2/configs", {"config": {"num.partitions": 1}}, expect=422)
    for path in ("/v1/brokers/2/configs", "/v1/cluster/configs"):
        await person("PATCH", path, {"config": {"replica.lag.time.max.ms": None}})
    await person("PATCH", "/v1/cluster/configs", {"config": {"num.partitions": None}})
    now = cluster.broker(1).config
    assert (now.replica_lag_time_max_ms, now.num_partitions) == (30_000, 1)


async def test_a_shorter_lag_limit_counts_for_who_lags_already(cluster: LocalCluster, person: Person):
    """S14: with the default of 30 s the follower would stay in the ISR for as long; the check does not sleep it out."""
    await person.topic("patience")
    leader = await cluster.wait.leader("patience")
    cut_off = next(node for node in (1, 2, 3) if node != leader)
    with cluster.faults.cut(f"{cut_off}>{leader}", api="Fetch"):
        await person("POST", "/v1/topics/patience/records?acks=1", {"value": "tea"})
        await person("PATCH", f"/v1/brokers/{leader}/configs", {"config": {"replica.lag.time.max.ms": 300}})
        await cluster.wait.isr("patience", 0, size=2, timeout_s=12)
    await person("PATCH", f"/v1/brokers/{leader}/configs", {"config": {"replica.lag.time.max.ms": None}})
    await cluster.wait.isr("patience", 0, size=3)


async def test_partitions_are_added(person: Person):
    """POST partitions: how many it is to have; never fewer."""
    topic = await person.topic("growing")
    assert (await person("POST", f"{topic}/partitions?dry_run=true", {"count": 4}))["dry_run"]
    assert (await person("POST", f"{topic}/partitions", {"count": 4}))["partition_count"] == 4
    for _ in range(3):
        assert len((await person("GET", topic))["partitions"]) == 4
    assert (await person("POST", f"{topic}/partitions", {"count": 2}, expect=422))["error"] == "INVALID_PARTITIONS"
    await person("POST", f"{topic}/partitions", {"count": "5"}, expect=422)
    await person("POST", f"{topic}/partitions", {}, expect=422)
    await person("POST", "/v1/topics/nobody/partitions", {"count": 5}, expect=404)


async def test_a_partition_moves(person: Person):
    """PUT, GET and DELETE of a reassignment (KIP-455); it completes by itself."""
    topic = await person.topic("moving", factor=1)
    path = f"{topic}/partitions/0/reassignment"
    begun = await person("PUT", path, {"replicas": [3, 1]})
    assert (begun["adding_replicas"], begun["removing_replicas"]) == ([3], []) or begun["complete"]
    async with asyncio.timeout(PATIENCE_S):
        while (await person("GET", "/v1/reassignments"))["reassignments"]:  # noqa: ASYNC110 - HTTP tells it when asked
            await asyncio.sleep(0.02)
    [partition] = (await person("GET", topic))["partitions"]
    assert (partition["replicas"], sorted(partition["isr"])) == ([3, 1], [1, 3])
    assert (await person("DELETE", path, expect=409))["error"] == "NO_REASSIGNMENT_IN_PROGRESS"
    assert (await person("PUT", path, {"replicas": [1, 9]}, expect=422))["error"] == "INVALID_REPLICA_ASSIGNMENT"
    await person("PUT", path, {"replicas": []}, expect=422)
    await person("PUT", path, {"replicas": ["1"]}, expect=422)
    await person("PUT", path, {}, expect=422)
    await person("PUT", f"{topic}/partitions/7/reassignment", {"replicas": [1]}, expect=404)
