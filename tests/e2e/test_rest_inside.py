"""What ``/v1`` shows of the inside of three real brokers: replicas, logs, epochs, causes, the controller; and streams.

Every answer is held against the schema of its route (tests/rest/conform.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgpack
import pytest

from minikafka.rest import topic_records
from minikafka.testing.local_cluster import LocalCluster
from tests.e2e.haste import SHORT_SESSIONS
from tests.rest.conform import check_answer

PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=SHORT_SESSIONS) as running:
        yield running


class Person:
    """Asks any broker that lives, and checks what it says against the description."""

    def __init__(self, http: aiohttp.ClientSession, cluster: LocalCluster) -> None:
        self.http = http
        self.urls = dict(zip(cluster.node_ids, (f"http://{at}" for at in cluster.bootstrap.split(",")), strict=True))

    async def __call__(self, method: str, path: str, *, at: int = 1, expect: int = 200, **options: Any) -> Any:
        async with self.http.request(method, self.urls[at] + path, **options) as response:
            heard = await response.json(content_type=None)
        check_answer(method, path, response.status, response.content_type, heard)
        assert response.status == expect, heard
        return heard

    async def get(self, path: str, **options: Any) -> Any:
        return await self("GET", path, **options)

    async def post(self, path: str, document: Any, **options: Any) -> Any:
        return await self("POST", path, json=document, **options)

    async def topic(self, name: str, **members: Any) -> str:
        """A topic of one partition on all brokers; the address of its first partition."""
        await self.post("/v1/topics", {"name": name, "partitions": 1, "replication_factor": 3, **members}, expect=201)
        return f"/v1/topics/{name}/partitions/0"

    async def until(self, path: str, met: Any, *, at: int = 1) -> Any:
        """The first answer that is as wanted."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                heard = await self.get(path, at=at)
                if met(heard):
                    return heard
                await asyncio.sleep(0.1)


@pytest.fixture
async def person(cluster: LocalCluster) -> AsyncIterator[Person]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
        yield Person(http, cluster)


# ---- replicas, logs, causes ------------------------------------------------------------------------------------------


async def test_a_dead_leader_is_explained(cluster, person):
    """D9: the new leader, the smaller ISR and the missing broker each have their cause, and one leads to the other."""
    path = await person.topic("mortal", config={"min.insync.replicas": 2})
    for number in range(3):
        await person.post(path + "/records", {"value": number})
    before = await person.until(path, lambda heard: heard["told_by"] == [1, 2, 3])
    assert {each["why"].partition(":")[0] for each in before["replicas"]} <= {"it leads epoch 0", "it has everything"}
    dead = before["leader"]["id"]
    alive = next(node for node in cluster.node_ids if node != dead)
    await asyncio.to_thread(cluster.kill, dead)
    try:
        after = await person.until(path, lambda heard: heard["leader"] and heard["leader"]["id"] != dead, at=alive)
        (gone,) = [each for each in after["replicas"] if each["id"] == dead]
        assert gone["in_sync"] is False
        assert "connection refused by" in gone["why"]
        # The new leader hears with its follower's first fetch how far that is.
        heard = await person.until(path + "/explain", lambda heard: heard["high_watermark"]["held_by"] == [], at=alive)
        assert f"the process of broker {dead} has ended: connection refused by" in heard["leader"]["sentence"]
        assert [each["event"] for each in heard["leader"]["because"]] == ["leader_elected", "became_leader"]
        assert heard["isr"]["because"][0]["facts"]["old"] == [1, 2, 3]
        assert dead not in heard["isr"]["isr"]
        assert "every replica in the ISR has acknowledged all records" in heard["high_watermark"]["sentence"]
    finally:
        await asyncio.to_thread(cluster.restart, dead)
    await person.until(path, lambda heard: len(heard["isr"]) == 3, at=alive)
    elected = await person.post(path + "/elections", {"type": "preferred"}, at=alive)
    assert elected["leader"]["id"] == dead
    again = await person.post(path + "/elections", {"type": "preferred"}, at=alive, expect=409)
    assert again["error"] == "ELECTION_NOT_NEEDED"
    heard = await person.get(path + "/explain", at=alive)
    assert "a client asked for a preferred election" in heard["leader"]["sentence"]


async def test_a_refusal_is_remembered_with_its_reason(cluster, person):
    """The last refusal answers *why was I told NOT_ENOUGH_REPLICAS* after the fact."""
    path = await person.topic("small", replication_factor=1, config={"max.message.bytes": 1000})
    assert (await person.get(path + "/explain"))["last_refusal"] is None
    refused = await person.post(path + "/records", {"value": "x" * 2000}, expect=413)
    heard = (await person.get(path + "/explain"))["last_refusal"]
    assert heard["event"] == "produce_refused"
    assert heard["facts"]["error"] == refused["error"] == "MESSAGE_TOO_LARGE"
    assert heard["cause"].startswith("Produce#")


async def test_the_log_of_each_replica_is_there_to_read(person):
    """Any broker shows the log of any replica: the same batches, each with what is committed by its own watermark."""
    path = await person.topic("books")
    await person.post(path + "/records", {"records": [{"value": 1}, {"value": "two"}]})
    await person.post(path + "/records", {"value": 3})
    logs = []
    for replica in (1, 2, 3):
        at = replica % 3 + 1
        log = await person.until(
            f"{path}/log?replica={replica}&records=true", lambda heard: heard["high_watermark"] == 3, at=at
        )
        assert log["replica"] == replica
        assert [each["committed"] for each in log["batches"]] == [True, True]
        assert all(each["is_valid"] for each in log["batches"])
        assert [each["value"] for batch in log["batches"] for each in batch["records"]] == [1, "two", 3]
        logs.append([each["crc"] for each in log["batches"]])
        epochs = await person.get(f"{path}/epochs?replica={replica}", at=at)
        assert epochs["epochs"] == [{"leader_epoch": 0, "start_offset": 0, "end_offset": 3}]
    assert logs[0] == logs[1] == logs[2]
    page = await person.get(f"{path}/log?max_batches=1&from=1")
    assert ([each["base_offset"] for each in page["batches"]], page["next_offset"]) == ([0], 2)
    heard = await person.get(f"{path}/log?replica=7", expect=404)
    assert heard["errors"][0]["parameter"] == "replica"
    heard = await person.get(f"{path}/log?from=9", expect=416)
    assert heard["error"] == "OFFSET_OUT_OF_RANGE"


async def test_offsets_by_name_time_and_epoch(person):
    """ListOffsets and OffsetForLeaderEpoch for people."""
    path = await person.topic("times")
    rows = [{"value": number, "timestamp": 1_700_000_000_000 + 1000 * number} for number in range(5)]
    await person.post(path + "/records", {"records": rows})
    at = path + "/offsets?at="
    for word, offset in (("earliest", 0), ("latest", 5), ("hw", 5), ("leo", 5), ("max-timestamp", 4)):
        assert (await person.get(at + word, at=2))["offset"] == offset, word
    for moment, offset in ((1_700_000_001_500, 2), (1_700_000_004_001, -1), ("2023-11-14T22:13:22Z", 2)):
        assert (await person.get(f"{at}{moment}", at=3))["offset"] == offset, moment
    assert (await person.get(path + "/offsets?epoch=0"))["offset"] == 5
    assert (await person.get(path + "/offsets?epoch=7"))["offset"] == -1
    assert "only one can be" in (await person.get(path + "/offsets?epoch=0&at=hw", expect=400))["detail"]
    assert (await person.get(at + "yesterday", expect=400))["errors"][0]["parameter"] == "at"


async def test_what_is_old_can_be_deleted_on_all_replicas(person):
    """DeleteRecords: the log start moves everywhere, and readers below are told where the log begins."""
    path = await person.topic("shorter")
    await person.post(path + "/records", {"records": [{"value": number} for number in range(5)]})
    heard = await person.post(path + "/truncate-before", {"offset": 3}, at=2)
    assert heard["low_watermark"] == 3
    for replica in (1, 2, 3):
        assert (await person.get(f"{path}/log?replica={replica}"))["log_start_offset"] == 3
    gone = await person.get(path + "/records?offset=1", expect=416)
    assert gone["log_start_offset"] == 3
    assert (await person.post(path + "/truncate-before", {"offset": -1}, at=3))["low_watermark"] == 5
    assert (await person.post(path + "/truncate-before", {"offset": 9}, expect=416))["error"] == "OFFSET_OUT_OF_RANGE"
    assert (await person.post(path + "/truncate-before", {}, expect=422))["errors"][0]["pointer"] == "/offset"


async def test_the_controllers_log_is_readable(person):
    """Every decision by its name, on every broker, with what is committed."""
    await person.topic("traced")
    quorum = await person.get("/v1/controller", at=2)
    assert sorted(each["id"] for each in quorum["voters"]) == [1, 2, 3]
    assert {each["status"] for each in quorum["voters"]} == {"Leader", "Follower"}
    for replica in (1, 2, 3):
        records, offset = [], 0
        async with asyncio.timeout(PATIENCE_S):
            while not any(each["fields"].get("topic") == "traced" for each in records):
                page = await person.get(f"/v1/controller/log?replica={replica}&from={offset}&max_records=7")
                records += page["records"]
                offset = page["next_offset"]
        kinds = [each["type"] for each in records]
        assert kinds[0] == "LeaderChange"
        assert {"RegisterBroker", "TopicRecord", "PartitionRecord"} <= set(kinds)
        assert [each["offset"] for each in records] == sorted({each["offset"] for each in records})


async def test_brokers_are_listed_with_their_load(person):
    """Who leads how much, in one look."""
    await person.topic("weight")
    heard = (await person.get("/v1/brokers", at=3))["brokers"]
    assert [each["id"] for each in heard] == [1, 2, 3]
    assert sum(each["leader_count"] for each in heard) == len(
        [None for topic in (await person.get("/v1/topics"))["topics"] for _ in range(topic["partition_count"])]
    )
    assert (await person.get("/v1/brokers/2")) | {"port": 0} == heard[1] | {"port": 0}
    assert (await person.get("/v1/brokers/9", expect=404))["error"] == "BROKER_ID_NOT_REGISTERED"


# ---- producing in other forms ----------------------------------------------------------------------------------------


async def test_an_idempotent_curl_may_repeat_itself(person):
    """KIP-98 by headers: the repetition is answered with the first place, and a gap is refused."""
    path = await person.topic("once")
    producer = await person.post("/v1/producer-ids", {}, expect=201, at=2)
    headers = {"Producer-Id": str(producer["producer_id"]), "Producer-Epoch": "0", "Base-Sequence": "0"}
    for attempt in range(2):
        heard = await person.post(path + "/records", {"value": 1}, headers=headers)
        (batch,) = heard["partitions"]
        assert (batch["base_offset"], batch.get("duplicate", False)) == (0, attempt == 1)
    gap = await person.post(path + "/records", {"value": 1}, headers=headers | {"Base-Sequence": "5"}, expect=409)
    assert gap["error"] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    newer = await person.post("/v1/producer-ids", producer, expect=201)
    assert newer == {"producer_id": producer["producer_id"], "producer_epoch": 1}
    await person.post(path + "/records", {"value": 2}, headers=headers | {"Producer-Epoch": "1"})
    fenced = await person.post(path + "/records", {"value": 3}, headers=headers | {"Base-Sequence": "1"}, expect=409)
    assert fenced["error"] == "INVALID_PRODUCER_EPOCH"
    heard = await person.post("/v1/topics/once/records", {"value": 1}, headers=headers, expect=400)
    assert "/v1/topics/once/partitions/N/records" in heard["detail"]
    heard = await person.post(path + "/records", {"value": 1}, headers={"Producer-Id": "1"}, expect=400)
    assert "needs Producer-Epoch and Base-Sequence beside it" in heard["detail"]


async def test_a_file_goes_in_as_it_is_and_msgpack_keeps_bytes(person):
    """A picture needs no base64: raw in, msgpack out."""
    path = await person.topic("pictures")
    picture = bytes(range(256))
    headers = {"Content-Type": "application/octet-stream", "Kafka-Key": "käfer", "Kafka-Header-Source": "camera"}
    await person("POST", path + "/records", data=picture, headers=headers)
    (read,) = (await person.get(path + "/records"))["records"]
    assert (read["key"], read["encoding"], read["headers"]) == ("käfer", "base64", [["Source", "camera"]])
    packed = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    record = {"key": b"\xff", "value": picture, "headers": [["h", b"\x00"]]}
    url = person.urls[2] + path + "/records"
    async with person.http.post(url, data=msgpack.packb({"records": [record]}), headers=packed) as response:
        assert (response.status, response.content_type) == (200, "application/msgpack")
        assert msgpack.unpackb(await response.read())["records"][0]["offset"] == 1
    async with person.http.get(url + "?offset=1", headers=packed) as response:
        (heard,) = msgpack.unpackb(await response.read())["records"]
    assert (heard["key"], heard["value"], heard["headers"], heard["encoding"]) == (
        b"\xff",
        picture,
        [["h", b"\x00"]],
        "bytes",
    )
    async with person.http.get(url + "?offset=99", headers=packed) as response:
        problem = msgpack.unpackb(await response.read())
    assert (response.status, response.content_type, problem["error"]) == (
        416,
        "application/msgpack",
        "OFFSET_OUT_OF_RANGE",
    )


async def test_a_topic_can_be_looked_at_as_a_whole(person):
    """All partitions in one list, by time."""
    await person.topic("wide", partitions=3)
    rows = [{"key": str(number), "value": number, "timestamp": 1_700_000_000_000 + number} for number in range(20)]
    await person.post("/v1/topics/wide/records", {"records": rows})
    heard = await person.get("/v1/topics/wide/records?from=earliest", at=2)
    assert [each["value"] for each in heard["records"]] == list(range(20))
    assert sum(each["next_offset"] for each in heard["next"]) == 20
    last = await person.get("/v1/topics/wide/records?from=-2")
    assert len(last["records"]) == 6
    some = await person.get("/v1/topics/wide/records?from=earliest&max_records=5")
    assert [each["value"] for each in some["records"]] == list(range(5))
    assert sum(each["next_offset"] for each in some["next"]) == 5
    later = await person.get("/v1/topics/wide/records?from=1700000000015")
    assert [each["value"] for each in later["records"]] == [15, 16, 17, 18, 19]


# ---- streams ---------------------------------------------------------------------------------------------------------


@dataclass
class Happened:
    """One Server-Sent Event."""

    kind: str = ""
    id: str = ""
    data: Any = None
    comments: list[str] = field(default_factory=list)


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[Happened]:
    """As a browser reads them; a comment is an event of its own here."""
    event = Happened()
    async for line in response.content:
        text = line.decode().rstrip("\n")
        name, _, value = text.partition(": ")
        if text.startswith(":"):
            yield Happened(kind="comment", data=value)
        elif not text:
            if event.kind:
                yield event
            event = Happened()
        elif name == "event":
            event.kind = value
        elif name == "id":
            event.id = value
        elif name == "data":
            event.data = json.loads(value)


async def the_next(events: AsyncIterator[Happened], kind: str) -> Happened:
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            if event.kind == kind:
                return event
    raise AssertionError(f"the stream ended without {kind}")


async def test_a_stream_tells_records_watermark_and_leader_and_resumes(person):
    """SSE from day one; a browser that reconnects goes on behind what it has read."""
    path = await person.topic("live")
    await person.post(path + "/records", {"records": [{"value": number} for number in range(3)]})
    url = person.urls[3] + path + "/stream"
    async with person.http.get(url + "?offset=0&heartbeat_ms=200") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        events = events_of(response)
        assert (await the_next(events, "leader")).data["epoch"] == 0
        heard = [await the_next(events, "record") for _ in range(3)]
        assert [each.data["value"] for each in heard] == [0, 1, 2]
        topic_id = (await person.get(path.partition("/partitions")[0]))["topic_id"]
        assert [each.id for each in heard] == [f"{topic_id}:{number}" for number in range(3)]
        assert (await the_next(events, "hw")).data["high_watermark"] == 3
        await the_next(events, "comment")
        await person.post(path + "/records", {"value": "news"})
        assert (await the_next(events, "record")).data["value"] == "news"
    async with person.http.get(url, headers={"Last-Event-ID": "1"}) as response:
        assert [(await the_next(events_of(response), "record")).data["value"] for _ in range(1)] == [2]
    async with person.http.get(url) as response:
        events = events_of(response)
        await the_next(events, "hw")
        await person.post(path + "/records", {"value": "only what comes"})
        assert (await the_next(events, "record")).data["value"] == "only what comes"


async def lines_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.strip():
            yield json.loads(line)


async def test_a_topic_is_followed_over_all_partitions_as_lines_of_json(person):
    """`curl -N .../records?follow=true`: what is there, what comes, and partitions that are added."""
    path = (await person.topic("followed", partitions=3)).partition("/partitions")[0]
    for number in range(3):
        await person.post(f"{path}/partitions/{number}/records", {"value": f"old {number}"})
    async with person.http.get(person.urls[2] + path + "/records?follow=true&from=earliest") as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        lines = lines_of(response)
        async with asyncio.timeout(PATIENCE_S):
            old = [await anext(lines) for _ in range(3)]
            assert sorted((each["partition"], each["value"], each["offset"]) for each in old) == [
                (number, f"old {number}", 0) for number in range(3)
            ]
            await person.post(f"{path}/partitions/1/records", {"value": "new"})
            new = await anext(lines)
            assert (new["partition"], new["value"], new["offset"], new["leader_epoch"]) == (1, "new", 1, 0)
            await person.post(f"{path}/partitions", {"count": 4}, expect=200)
            await person.post(f"{path}/partitions/3/records", {"value": "added"})
            assert (await anext(lines))["partition"] == 3


async def test_a_followed_topic_goes_on_where_each_partition_was_left(person):
    """Server-Sent Events: the last event's id has all positions; what was read is not told again, nothing is missed."""
    path = (await person.topic("resumed", partitions=2)).partition("/partitions")[0]
    events_only = {"Accept": "text/event-stream"}
    url = person.urls[3] + path + "/records?follow=true"
    for number in range(2):
        await person.post(f"{path}/partitions/{number}/records", {"value": number})
    async with person.http.get(url + "&from=earliest&heartbeat_ms=200", headers=events_only) as response:
        assert response.content_type == "text/event-stream"
        events = events_of(response)
        heard = [await the_next(events, "record") for _ in range(2)]
        assert sorted(each.data["partition"] for each in heard) == [0, 1]
        assert heard[-1].id.endswith(":0:1,1:1")
        await the_next(events, "comment")
    for number in range(2):
        await person.post(f"{path}/partitions/{number}/records", {"value": 10 + number})
    async with person.http.get(url, headers={**events_only, "Last-Event-ID": heard[-1].id}) as response:
        events = events_of(response)
        values = [(await the_next(events, "record")).data["value"] for _ in range(2)]
        assert sorted(values) == [10, 11]


async def test_what_is_wrong_with_a_follower_has_a_status(person, monkeypatch):
    """Before the answer begins; too many partitions are refused with the way out."""
    path = (await person.topic("unfollowed", partitions=2)).partition("/partitions")[0]
    await person.get("/v1/topics/none/records?follow=true", expect=404)
    heard = await person("GET", path + "/records?follow=true", headers={"Last-Event-ID": "0:x"}, expect=400)
    assert "0:42,1:17" in heard["detail"]
    for accept, query in (("application/json", "?follow=true"), ("text/event-stream", "")):
        heard = await person("GET", path + "/records" + query, headers={"Accept": accept}, expect=406)
        assert accept not in heard["available"]
    monkeypatch.setattr(topic_records, "PARTITION_COUNT_MAX", 1)
    heard = await person.get(path + "/records?follow=true", expect=422)
    assert (heard["error"], "/partitions/N/stream" in heard["detail"]) == ("INVALID_PARTITIONS", True)


async def test_what_is_wrong_with_a_stream_has_a_status(person):
    """The first look is taken before the answer begins."""
    path = await person.topic("short")
    assert (await person.get(path + "/stream?offset=9", expect=416))["error"] == "OFFSET_OUT_OF_RANGE"
    assert (await person.get("/v1/topics/none/partitions/0/stream", expect=404))["outcome"] == "not_written"
    heard = await person("GET", path + "/stream", headers={"Last-Event-ID": "x"}, expect=400)
    assert heard["errors"][0]["parameter"] == "Last-Event-ID"
    heard = await person("GET", path + "/stream", headers={"Accept": "application/json"}, expect=406)
    assert heard["available"] == ["text/event-stream"]


async def test_a_stream_outlives_its_leader_and_ends_with_its_broker(cluster, person):
    """The new leader is told and nothing is missed; at a shutdown the reader gets a last word and a clean end."""
    path = await person.topic("lasting", config={"min.insync.replicas": 2})
    leader = (await person.get(path))["leader"]["id"]
    at = leader % 3 + 1
    async with person.http.get(person.urls[at] + path + "/stream?offset=0&heartbeat_ms=300") as response:
        events = events_of(response)
        assert (await the_next(events, "leader")).data["id"] == leader
        await person.post(path + "/records", {"value": "before"}, at=at)
        assert (await the_next(events, "record")).data["value"] == "before"
        await asyncio.to_thread(cluster.kill, leader)
        try:
            moved = await the_next(events, "leader")
            assert moved.data["id"] != leader
            await person.until(path, lambda heard: len(heard["isr"]) == 2, at=at)
            await person.post(path + "/records", {"value": "after"}, at=at)
            record = await the_next(events, "record")
            assert (record.id.rpartition(":")[2], record.data["value"]) == ("1", "after")
        finally:
            await asyncio.to_thread(cluster.restart, leader)
        await person.until(path, lambda heard: len(heard["isr"]) == 3, at=at)
        stopping = asyncio.ensure_future(asyncio.to_thread(cluster.terminate, at))
        try:
            assert (await the_next(events, "end")).data["why"] == "the broker stops"
            assert [each async for each in events] == []
        finally:
            await stopping
            await asyncio.to_thread(cluster.restart, at)


async def test_only_so_many_streams_are_open(person, monkeypatch):
    """In all, and of one user or address: 429 instead of memory; a place is free again when a reader leaves."""
    monkeypatch.setattr("minikafka.rest.routes.STREAM_COUNT_MAX", 2)
    path = await person.topic("crowded")
    url = person.urls[1] + path + "/stream?heartbeat_ms=100"
    async with person.http.get(url) as first, person.http.get(url) as second:
        assert (first.status, second.status) == (200, 200)
        heard = await person.get(path + "/stream", expect=429)
        assert (heard["error"], heard["retriable"]) == ("THROTTLING_QUOTA_EXCEEDED", True)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with person.http.get(url) as third:
                if third.status == 200:
                    break
            await asyncio.sleep(0.05)
    monkeypatch.setattr("minikafka.rest.routes.STREAM_COUNT_MAX_OF_ONE", 0)
    assert "0 of one user or address" in (await person.get(path + "/stream", expect=429))["detail"]
