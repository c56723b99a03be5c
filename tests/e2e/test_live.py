"""``GET /v1/live`` on three real brokers: a snapshot and its differences give what ``/v1`` shows, whatever brokers do."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from confluent_kafka import Producer
from yarl import URL

from minikafka.rest import live
from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.haste import SHORT_SESSIONS
from tests.rules.test_differences import applied

pytestmark = pytest.mark.e2e

PATIENCE_S = 60
CONFIG = {**SHORT_SESSIONS, "mk.testing.endpoints.enable": "true"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=CONFIG) as running:
        yield running


@dataclass
class Reader:
    """What a viewer has read so far."""

    response: aiohttp.ClientResponse
    state: dict[str, Any] = field(default_factory=dict)
    last_id: str = ""
    at_ms: int = 0
    """When the latest frame was made."""
    kinds: list[str] = field(default_factory=list)

    async def read(self) -> str:
        """Apply the next event; its kind, or an empty text at the end of the stream."""
        kind, data = "", {}
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self.response.content.readline()).decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    data = json.loads(value)
                elif name == "id":
                    self.last_id = value
                elif not name and kind:
                    break
        self.kinds.append(kind)
        if kind == "snapshot":
            self.state = data
        elif kind == "frame":
            self.state, self.at_ms = applied(self.state, data["changes"]), data["at_ms"]
        return kind

    async def until(self, met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first state that is as wanted."""
        while not (self.state and met(self.state)):
            assert await self.read(), "the stream ended"
        return self.state


class Viewers:
    """Opens live streams of broker 1, and calls its API."""

    def __init__(self, http: aiohttp.ClientSession, cluster: LocalCluster) -> None:
        self.http = http
        self.urls = [f"http://{address}" for address in cluster.bootstrap.split(",")]

    @asynccontextmanager
    async def watch(self, scope: str = "cluster", last_id: str = "") -> AsyncIterator[Reader]:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        async with self.http.get(f"{self.urls[0]}/v1/live?scope={scope}", headers=headers) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            yield Reader(response)

    async def call(self, method: str, path: str, document: Any = None) -> Any:
        async with self.http.request(method, self.urls[0] + path, json=document) as response:
            told = await response.json(content_type=None)
            assert response.status < 300, told
            return told

    async def topic(self, name: str, *, partitions: int = 1) -> str:
        await self.call("POST", "/v1/topics", {"name": name, "partitions": partitions, "replication_factor": 3})
        return f"/v1/topics/{name}/partitions/0"

    async def produce(self, path: str) -> None:
        await self.call("POST", f"{path}/records", {"records": [{"value": "tea"}]})


@pytest.fixture
async def viewers(cluster: LocalCluster) -> AsyncIterator[Viewers]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        yield Viewers(http, cluster)
        await asyncio.to_thread(cluster.faults.heal)


def high_watermarks(state: dict[str, Any]) -> list[int | None]:
    return [each["hw"] for each in state["partition"]["replicas"].values()]


def tasks_of(cluster: LocalCluster) -> list[str]:
    """Names of the tasks of live streams."""
    names = cluster.at_once(lambda: [each.get_name() for each in asyncio.all_tasks()])
    return [each for each in names if each.startswith("live")]


async def until_nobody_watches(cluster: LocalCluster) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if not tasks_of(cluster):
                return
            await asyncio.sleep(0.05)


async def test_differences_give_what_the_api_shows(viewers: Viewers):
    """After records on a partition, the folded state has the values of ``/v1`` for each replica."""
    path = await viewers.topic("folded")
    async with viewers.watch("folded-0") as reader:
        assert await reader.read() == "hello"
        assert await reader.read() == "snapshot"
        for count in (1, 2, 3):
            await viewers.produce(path)
            await reader.until(lambda state, count=count: high_watermarks(state) == [count] * 3)  # type: ignore[misc]
        partition = await viewers.call("GET", path)
        shown = reader.state["partition"]
        for each in partition["replicas"]:
            for name in ("id", "role", "in_sync", "leo", "own_leo", "hw"):
                assert shown["replicas"][str(each["id"])][name] == each[name]
        for name in ("leader", "leader_epoch", "isr", "high_watermark", "log_end_offset", "last_stable_offset"):
            assert shown[name] == partition[name]
        assert shown["order"] == [each["id"] for each in partition["replicas"]]
        assert "frame" in reader.kinds
        assert reader.kinds.count("snapshot") == 1


async def test_stream_is_compressed_for_readers_that_accept_gzip(cluster: LocalCluster) -> None:
    """PAGE 5.3: each event can be read when it arrives, compressed or not, and compressed ones are a fraction of the size."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as http:
        viewers = Viewers(http, cluster)
        await viewers.call("POST", "/v1/topics", {"name": "packed", "partitions": 100, "replication_factor": 3})
        for accepted, is_packed in (("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0.0, br", False), ("", False)):
            unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
            read, received = b"", 0
            async with http.get(f"{viewers.urls[0]}/v1/live", headers={"Accept-Encoding": accepted}) as response:
                assert response.headers.get("Content-Encoding") == ("gzip" if is_packed else None)
                async with asyncio.timeout(PATIENCE_S):
                    while b'"packed"' not in read or not read.endswith(b"\n\n"):
                        part = await response.content.readany()
                        assert part, "the stream ended"
                        received += len(part)
                        read += unpack.decompress(part) if is_packed else part
            assert received < len(read) / 5 if is_packed else received == len(read)


async def test_viewers_share_one_reader_and_nothing_runs_without_them(viewers: Viewers, cluster: LocalCluster):
    """Three viewers of a partition cost one task of the channel and one for each broker; without viewers none runs."""
    await viewers.topic("shared")
    await until_nobody_watches(cluster)
    async with viewers.watch("shared-0") as one, viewers.watch("shared-0") as two, viewers.watch("shared-0") as three:
        for each in (one, two, three):
            await each.until(lambda _: True)
        assert sorted(tasks_of(cluster)) == ["live", "live-shared-0-1", "live-shared-0-2", "live-shared-0-3"]
    await until_nobody_watches(cluster)


async def test_a_reader_that_reconnects_continues_without_a_snapshot(viewers: Viewers):
    """While another viewer keeps the channel, the frames since the last event that was read are sent."""
    path = await viewers.topic("resumed")
    async with viewers.watch("resumed-0") as other:
        async with viewers.watch("resumed-0") as reader:
            await reader.until(lambda _: True)
        await viewers.produce(path)
        await other.until(lambda state: high_watermarks(state) == [1, 1, 1])
        async with viewers.watch("resumed-0", reader.last_id) as again:
            again.state = reader.state
            await again.until(lambda state: high_watermarks(state) == [1, 1, 1])
            assert set(again.kinds) == {"hello", "frame"}


async def test_a_reader_that_missed_too_much_gets_a_gap_and_a_snapshot(viewers: Viewers):
    """The channel that it read from is gone: the state is sent as a whole."""
    await viewers.topic("gone")
    async with viewers.watch("gone-0", "1a2b-7") as reader:
        await reader.until(lambda _: True)
        assert reader.kinds == ["hello", "gap", "snapshot"]


async def test_a_dead_broker_is_unknown_until_it_is_back(viewers: Viewers, cluster: LocalCluster):
    """Its values are null, the summary and the ISR follow, and all values return after its restart."""
    path = await viewers.topic("mortal")
    async with viewers.watch("mortal-0") as reader, viewers.watch() as overview:
        await reader.until(lambda state: None not in high_watermarks(state))
        await overview.until(lambda state: state["summary"].startswith("3 of 3 brokers"))
        await asyncio.to_thread(cluster.kill, 3)
        try:
            await reader.until(lambda state: state["partition"]["replicas"]["3"]["own_leo"] is None)
            state = await reader.until(lambda state: 3 not in state["partition"]["isr"])
            assert state["partition"]["leader"]["id"] in (1, 2)
            await overview.until(lambda state: state["brokers"]["3"]["fenced"])
            assert "The controller has fenced broker 3" in overview.state["brokers"]["3"]["why"]
            assert overview.state["topics"]["mortal"]["0"]["state"] == "under-replicated"
            await viewers.produce(path)
        finally:
            await asyncio.to_thread(cluster.restart, 3)
        await reader.until(lambda state: high_watermarks(state) == [1, 1, 1] and 3 in state["partition"]["isr"])
        await overview.until(lambda state: state["topics"]["mortal"]["0"]["state"] == "ok")


async def test_metadata_of_a_broker_without_a_controller_may_be_out_of_date(viewers: Viewers, cluster: LocalCluster):
    """Two of three voters are dead: what broker 1 knew last is marked, and sums without the dead leaders are unknown."""
    await viewers.topic("widowed", partitions=3)
    async with viewers.watch("widowed-0") as reader, viewers.watch() as overview:
        await reader.until(lambda state: state["caution"] == "" and None not in high_watermarks(state))
        await overview.until(lambda state: state["caution"] == "" and state["summary"].startswith("3 of 3 brokers"))
        await asyncio.to_thread(cluster.kill, 3)
        await asyncio.to_thread(cluster.kill, 2)
        try:
            state = await overview.until(lambda state: state["caution"] != "")
            assert state["caution"] == "broker 1 has no session with a controller, so this may be out of date"
            assert state["summary"].startswith(
                "Broker 1 has no session with a controller, so this may be out of date: "
            )
            assert "sends heartbeats" not in state["brokers"]["2"]["why"]
            assert "majority of the quorum's voters" in state["brokers"]["2"]["why"]
            state = await reader.until(lambda state: state["caution"] != "")
            assert state["summary"].startswith(
                "Broker 1 has no session with a controller, so this may be out of date: "
            )
            listed = (await viewers.call("GET", "/v1/topics?with=summary"))["topics"]
            widowed = next(each for each in listed if each["topic"] == "widowed")
            assert (widowed["bytes"], widowed["records"], widowed["partition_count"]) == (None, None, 3)
        finally:
            await asyncio.to_thread(cluster.restart, 2)
            await asyncio.to_thread(cluster.restart, 3)
        await overview.until(lambda state: state["caution"] == "" and state["summary"].startswith("3 of 3 brokers"))
        await reader.until(lambda state: state["caution"] == "" and len(state["partition"]["isr"]) == 3)


async def test_a_slow_broker_does_not_delay_the_values_of_others(viewers: Viewers):
    """Broker 3 holds its answers to broker 1: it is unknown, and records on the others are shown; healed, it is back."""
    path = await viewers.topic("slow")
    fault = {"kind": "hold", "link": "1>3", "api": "ExplainPartition"}
    async with viewers.watch("slow-0") as reader:
        await reader.until(lambda state: None not in high_watermarks(state))
        held = await viewers.call("POST", "/v1/faults", fault)
        await reader.until(lambda state: state["partition"]["replicas"]["3"]["own_leo"] is None)
        await viewers.produce(path)
        await reader.until(lambda state: high_watermarks(state) == [1, 1, None])
        await viewers.call("DELETE", f"/v1/faults/{held['id']}")
        await reader.until(lambda state: high_watermarks(state) == [1, 1, 1])


async def test_a_deleted_topic_ends_the_values_with_a_problem(viewers: Viewers):
    """The stream goes on: the topic may be created again."""
    await viewers.topic("brief")
    async with viewers.watch("brief-0") as reader:
        await reader.until(lambda state: "partition" in state)
        await viewers.call("DELETE", "/v1/topics/brief")
        state = await reader.until(lambda state: "problem" in state)
        assert state == {"problem": {"error": "UNKNOWN_TOPIC_OR_PARTITION", "detail": "there is no topic 'brief'"}}


async def test_a_topic_with_the_name_of_a_member_of_all_objects_is_a_topic(viewers: Viewers):
    """``__proto__`` is a valid topic name."""
    await viewers.topic("__proto__")
    async with viewers.watch() as overview:
        await overview.until(lambda state: "__proto__" in state["topics"])


@pytest.mark.parametrize("bound", ["VIEWER_COUNT_MAX", "VIEWER_COUNT_MAX_OF_ONE"])
async def test_only_so_many_viewers_are_served(
    viewers: Viewers, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, bound: str
):
    """In all, and of one user or address: 429 with a sentence; 404 and 400 for a scope that does not exist."""
    await until_nobody_watches(cluster)
    monkeypatch.setattr(live, bound, 1)
    async with viewers.watch() as reader:
        await reader.until(lambda _: True)
        for query, status, error in (
            ("", 429, "THROTTLING_QUOTA_EXCEEDED"),
            ("?scope=none-0", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("?scope=none", 400, "INVALID_REQUEST"),
        ):
            async with viewers.http.get(f"{viewers.urls[0]}/v1/live{query}") as response:
                assert (response.status, (await response.json(content_type=None))["error"]) == (status, error)


async def test_viewer_that_has_left_counts_no_more_although_nothing_is_written(
    viewers: Viewers, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quick reloads of a page do not use up the streams: a broker looks whether readers are there, and does not wait for a write."""
    await until_nobody_watches(cluster)
    monkeypatch.setattr(live, "HEARTBEAT_S", 10 * PATIENCE_S)
    async with viewers.watch() as reader:
        await reader.until(lambda _: True)
    await until_nobody_watches(cluster)


async def test_an_open_transaction_is_in_the_state(viewers: Viewers, cluster: LocalCluster):
    """Its producer with the first offset, and why the last stable offset stands there; committed, it is over."""
    await viewers.topic("transacted")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "transacted", "log_level": 0})

    def begin() -> None:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("transacted", b"value", partition=0)
        assert producer.flush(PATIENCE_S) == 0

    async with viewers.watch("transacted-0") as reader:
        await asyncio.to_thread(begin)
        state = await reader.until(lambda state: bool(state.get("producers")) and high_watermarks(state) == [1] * 3)
        [(producer_id, shown)] = state["producers"].items()
        assert (str(shown["producer_id"]), shown["transaction_start_offset"]) == (producer_id, 0)
        assert (state["producer_count"], state["partition"]["last_stable_offset"]) == (1, 0)
        assert f"the transaction of producer {producer_id} began at offset 0" in state["why_stable_offset"]
        await asyncio.to_thread(producer.commit_transaction, PATIENCE_S)
        state = await reader.until(lambda state: state["partition"]["last_stable_offset"] == 2)
        assert state["producers"][producer_id]["transaction_start_offset"] is None
        assert "no transaction is open" in state["why_stable_offset"]


async def test_topics_have_a_summary(viewers: Viewers):
    """Sizes and records of all leaders; without it the list costs no request to other brokers."""
    path = await viewers.topic("summed")
    for _ in range(3):
        await viewers.produce(path)
    found = {each["topic"]: each for each in (await viewers.call("GET", "/v1/topics?with=summary"))["topics"]}
    summed = found["summed"]
    assert (summed["records"], summed["under_replicated"], summed["without_leader"]) == (3, 0, 0)
    assert summed["bytes"] > 3 * 60
    plain = {each["topic"]: each for each in (await viewers.call("GET", "/v1/topics"))["topics"]}
    assert "bytes" not in plain["summed"]


async def test_stories_of_the_lab_are_played(viewers: Viewers):
    """A story under the old rule loses a record; a name that is no story, and one with a path, is refused."""
    stories = (await viewers.call("GET", "/v1/lab/stories"))["stories"]
    assert "data-loss" in [each["name"] for each in stories]
    story = await viewers.call("GET", "/v1/lab/stories/data-loss?truncation=high-watermark")
    assert (len(story["lost"]), story["options"]["truncation"]) == (1, "high-watermark")
    assert "high-watermark" not in (await viewers.call("GET", "/v1/lab/stories/data-loss"))["options"].values()
    for name, status in (("data-los", 404), ("..%2F..%2Fetc%2Fpasswd", 400), ("passwd", 404)):
        async with viewers.http.get(URL(f"{viewers.urls[0]}/v1/lab/stories/{name}", encoded=True)) as response:
            assert response.status == status
