"""The testing doors over HTTP: /v1/faults, /v1/wait, /v1/events, and that they are shut unless asked for (issue 5)."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from minikafka.hosting.processes import ProcessCluster
from minikafka.rest.host import WAIT_MS_MAX
from minikafka.rest.routes import TESTING_ROUTES
from minikafka.testing.local_cluster import LocalCluster
from minikafka.ui.journal import read_journals
from tests.e2e.haste import SHORT_LAGS
from tests.rest.conform import check, schema_of

pytestmark = pytest.mark.e2e

QUICK = {
    **SHORT_LAGS,
    "mk.testing.endpoints.enable": "true",
}


@dataclass
class Curl:
    """Requests to any broker; what comes back has been compared with the route's schema."""

    session: aiohttp.ClientSession
    urls: list[str]

    async def __call__(self, method: str, path: str, status: int = 200, *, at: int = 1, **options: Any) -> Any:
        async with self.session.request(method, self.urls[at - 1] + path, **options) as response:
            told = json.loads(await response.read())
            assert response.status == status, told
            self.compare(method, path.partition("?")[0], status, told)
            return told

    @staticmethod
    def compare(method: str, path: str, status: int, told: Any) -> None:
        for route in TESTING_ROUTES:
            there = re.sub(r"\{\w+\}", "[0-9]+", route.path)
            if route.method == method and re.fullmatch(there, path):
                if status < 400:
                    check(schema_of(route.answers[status]), told)
                else:
                    assert {"error", "detail", "outcome"} <= told.keys()

    async def get(self, path: str, status: int = 200, **options: Any) -> Any:
        if status == 200 and re.search(r"/v1/wait\?|wait_hits=", path):
            path += f"&timeout_ms={WAIT_MS_MAX}"  # what shall come has all the time that can be asked for
        return await self("GET", path, status, **options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=QUICK) as running:
        yield running


@pytest.fixture
async def curl(cluster: LocalCluster) -> AsyncIterator[Curl]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield Curl(session, [f"http://{address}" for address in cluster.bootstrap.split(",")])
        await asyncio.to_thread(cluster.faults.heal)


async def test_a_follower_is_cut_off_awaited_and_healed_with_curl_alone(curl: Curl):
    """The testing doors as a story: set a fault, await what comes of it, read why, heal, await the end."""
    await curl("POST", "/v1/topics", 201, json={"name": "doors", "replication_factor": 3})
    state = await curl.get("/v1/wait?topic=doors&exists=true&leader=any&isr_size=3")
    leader = state["leader"]
    cut_off, near = (node for node in (1, 2, 3) if node != leader)
    document = {"kind": "cut", "link": f"{cut_off}>{leader}", "api": "Fetch"}
    fault = await curl("POST", "/v1/faults", 201, json=document, at=near)
    await curl("POST", "/v1/topics/doors/records?acks=1", json={"value": "tea"})
    struck = await curl.get(f"/v1/faults/{fault['id']}?wait_hits=2", at=leader)
    assert struck["hits"] >= 2
    state = await curl.get(f"/v1/wait?topic=doors&isr={leader},{near}&hw_at_least=1")
    assert (state["hw"], state["replica"], sorted(state["isr"])) == (1, leader, sorted((leader, near)))
    told = await curl.get("/v1/events?kind=isr_shrunk&partition=doors-0")
    assert cut_off not in told["events"][-1]["new"]
    assert leader in told["events"][-1]["new"]
    assert (await curl.get("/v1/faults", at=cut_off))["faults"][0]["link"] == f"{cut_off}>{leader}"
    healed = await curl("DELETE", f"/v1/faults/{fault['id']}")
    assert (healed["active"], healed["hits"] >= 2) == (False, True)
    await curl.get(f"/v1/wait?topic=doors&isr_size=3&replica={cut_off}&leo_at_least=1&alive=1,2,3&controller=any")
    await curl.get(f"/v1/faults/{fault['id']}", 404)


async def test_faults_are_listed_in_order_and_cleared(curl: Curl):
    """Issue 5: list, add, remove one, clear."""
    first = await curl("POST", "/v1/faults", 201, json={"kind": "delay", "link": "2>1", "delay_ms": 1})
    more = {"kind": "drop", "link": "client<>1", "api": "Produce", "message": "answer", "count": 2}
    second = await curl("POST", "/v1/faults", 201, json=more)
    assert {name: second[name] for name in more} == more
    assert [each["id"] for each in (await curl.get("/v1/faults"))["faults"]] == [first["id"], second["id"]]
    assert await curl("DELETE", "/v1/faults") == {"healed": 2}
    await curl("POST", "/v1/faults", 201, json=more)
    assert await curl("POST", "/v1/faults:reset") == {"healed": 1}
    assert await curl.get("/v1/faults") == {"faults": []}


async def test_held_fetches_are_listed_and_delivered_one_at_a_time(curl: Curl):
    """PAGE 9.8: the high watermark moves with the follower's second fetch, by exactly the record that the first got."""
    await curl("POST", "/v1/topics", 201, json={"name": "held", "replication_factor": 2})
    leader = (await curl.get("/v1/wait?topic=held&leader=any&isr_size=2"))["leader"]
    document = {"kind": "hold", "link": f"broker>{leader}", "api": "Fetch", "message": "request"}
    fault = await curl("POST", "/v1/faults", 201, json=document)
    path = f"/v1/faults/{fault['id']}"
    await curl.get(f"{path}?wait_hits=1")
    for value in ("tea", "milk"):
        await curl("POST", "/v1/topics/held/records?acks=1", json={"value": value})
    seen = await curl.get(path)
    while not seen["held_count"]:
        seen = await curl.get(path)
    [held, *_] = seen["held"]
    assert (held["api"], held["message"], held["link"].partition(">")[2]) == ("Fetch", "request", str(leader))
    assert held["held_ms"] >= 0
    refused = await curl("POST", f"{path}:release", 422, json={"count": 0})
    assert refused["errors"][0]["pointer"] == "/count"
    state: dict[str, Any] = {"hw": 0}
    while state["hw"] < 2:
        await curl("POST", f"{path}:release", json={"count": 1, "latest": True})
        state = await curl.get(f"/v1/wait?topic=held&replica={leader}&leo_at_least=2")
        assert state["hw"] in {0, 1, 2}
    assert (await curl("DELETE", path))["held"] == []
    cut = await curl("POST", "/v1/faults", 201, json={"kind": "cut", "link": "1>1", "api": "Vote"})
    refused = await curl("POST", f"/v1/faults/{cut['id']}:release", 400, json={})
    assert "only hold holds messages" in refused["detail"]


async def test_a_fault_by_chance_for_a_time_is_in_the_journal_with_its_seed(curl: Curl):
    """Issue 5: probability, drawn from the run's seed; for_ms ends it, and its hits stay to be read."""
    document = {"kind": "delay", "link": "*>*", "delay_ms": 1, "probability": 0.5, "for_ms": 200}
    seen: dict[str, Any] = {"hits": 0}
    while not seen["hits"]:  # idle brokers send a handful of messages in that time: chance may spare them all
        fault = await curl("POST", "/v1/faults", 201, json=document)
        assert (fault["probability"], fault["for_ms"]) == (0.5, 200)
        assert fault["seed"] > 0
        over = await curl.get(f"/v1/faults/{fault['id']}?wait_hits=1000000", 400)
        assert "is over after" in over["detail"]
        seen = await curl.get(f"/v1/faults/{fault['id']}")
        assert not seen["active"]
    told = (await curl.get("/v1/events?kind=fault_set,fault_over"))["events"]
    mine = [event for event in told if event["fault"] == fault["id"]]
    assert [event["event"] for event in mine] == ["fault_set", "fault_over"]
    assert (mine[0]["seed"], mine[0]["probability"], mine[1]["hits"]) == (fault["seed"], 0.5, seen["hits"])

    swap = {"kind": "reorder", "link": "client>1", "api": "Produce", "seed": 99, "message": None, "for_ms": None}
    told = await curl("POST", "/v1/faults", 201, json=swap)
    assert {name: told[name] for name in swap} == swap


@pytest.mark.parametrize(
    "pointer, document",
    [
        ("/kind", {"link": "2>1"}),
        ("/kind", {"kind": "cutt", "link": "2>1"}),
        ("/link", {"kind": "cut", "link": "2-1"}),
        ("/link", {"kind": "cut", "link": "8>9"}),
        ("/api", {"kind": "cut", "link": "2>1", "api": "fetch"}),
        ("/count", {"kind": "cut", "link": "2>1", "count": 0}),
        ("/delay_ms", {"kind": "delay", "link": "2>1", "delay_ms": "1"}),
        ("/delay_ms", {"kind": "delay", "link": "2>1"}),
        ("/probability", {"kind": "cut", "link": "2>1", "probability": 0}),
        ("/seed", {"kind": "cut", "link": "2>1", "seed": 1.5}),
        ("/for_ms", {"kind": "cut", "link": "2>1", "for_ms": "1 s"}),
        ("/message", {"kind": "cut", "link": "2>1", "message": "both"}),
        ("/apis", {"kind": "cut", "link": "2>1", "apis": "Fetch"}),
        ("/error", {"kind": "error", "link": "2>1", "api": "Fetch", "error": "NOT_LEADER"}),
        ("/error", {"kind": "error", "link": "2>1", "api": "Fetch", "error": 6}),
        ("/api", {"kind": "error", "link": "2>1", "error": "NOT_LEADER_OR_FOLLOWER"}),
    ],
)
async def test_a_fault_that_cannot_be_is_422_with_a_pointer(curl: Curl, pointer: str, document: dict[str, Any]):
    """Unknown members and words are errors: a fault that never strikes would let a test pass for nothing."""
    told = await curl("POST", "/v1/faults", 422, json=document)
    assert told["errors"][0]["pointer"] == pointer
    assert (await curl.get("/v1/faults"))["faults"] == []


async def test_error_fault_answers_requests_of_curl(curl: Curl, cluster: LocalCluster):
    """In the format of the request: /rpc in JSON."""
    document = {"kind": "error", "link": "client>1", "api": "Metadata", "error": "NOT_CONTROLLER", "count": 1}
    fault = await curl("POST", "/v1/faults", 201, json=document, at=1)
    assert (fault["error"], fault["count"]) == ("NOT_CONTROLLER", 1)
    refused = await curl("POST", "/rpc/Metadata", json={}, at=1)
    assert refused == {
        "error_code": 41,
        "error_message": f"fault {fault['id']} (error client>1, Metadata)",
        "outcome": "not_written",
    }
    assert "error_code" not in await curl("POST", "/rpc/Metadata", json={}, at=1)


async def act(curl: Curl, node: int, word: str, status: int = 200, **options: Any) -> Any:
    return await curl("POST", f"/v1/brokers/{node}/actions", status, json={"do": word}, **options)


async def test_a_broker_is_killed_stopped_and_started(curl: Curl, cluster: LocalCluster):
    """Issue 5: node faults by any broker of the process, also by the one that ends; the cluster tells the difference."""
    since = cluster.events.mark
    assert await act(curl, 3, "kill") == {"node_id": 3, "do": "kill", "done": True, "faults": []}
    await curl.get("/v1/wait?fenced=3")
    assert (await act(curl, 3, "stop", 503))["error"] == "BROKER_NOT_AVAILABLE"
    await act(curl, 3, "start")
    await curl.get("/v1/wait?alive=1,2,3")
    assert "is running" in (await act(curl, 3, "start", 503))["detail"]

    assert not (await act(curl, 2, "stop", 202, at=2))["done"]
    await curl.get("/v1/wait?fenced=2")
    await cluster.events.wait("broker_stopped", node=2, since=since)
    asked = cluster.events.all("action_asked", since=since)
    assert [(each["do"], each["broker"]) for each in asked[:2]] == [("kill", 3), ("stop", 3)]
    await act(curl, 2, "start")
    await curl.get("/v1/wait?alive=1,2,3")


async def test_a_broker_that_stands_still_is_fenced_and_comes_back(curl: Curl, cluster: LocalCluster):
    """`pause`: its session ends though it lives; a second `pause` is the same one; `resume` lets all go."""
    paused = await act(curl, 2, "pause")
    assert await act(curl, 2, "pause") == paused
    [fault] = (await curl.get("/v1/faults"))["faults"]
    assert (fault["id"], fault["kind"], fault["link"]) == (paused["faults"][0], "hold", "2<>*")
    await curl.get("/v1/wait?fenced=2")
    assert (await act(curl, 2, "resume"))["faults"] == paused["faults"]
    await curl.get("/v1/wait?alive=1,2,3")

    await cluster.create_topic("unfetched")
    leader = await cluster.wait.leader("unfetched")
    follower = 1 + leader % 3
    await act(curl, follower, "pause_fetching")
    await curl("POST", "/v1/topics/unfetched/records?acks=1", json={"value": "tea"}, at=leader)
    await curl.get("/v1/wait?topic=unfetched&isr_size=2&alive=1,2,3")
    await act(curl, follower, "resume_fetching")
    await curl.get("/v1/wait?topic=unfetched&isr_size=3")


@pytest.mark.parametrize(
    "document, told",
    [
        ({"do": "kil"}, "did you mean 'kill'"),
        ({"do": "fill_disk"}, "/v1/machine"),
        ({"do": "power_loss"}, "simulator"),
        ({}, "is missing"),
        ({"do": "kill", "now": True}, "no such member"),
    ],
)
async def test_an_action_that_cannot_be_is_422(curl: Curl, document: dict[str, Any], told: str):
    """Words for what is done elsewhere say where."""
    refused = await curl("POST", "/v1/brokers/2/actions", 422, json=document)
    assert told in refused["errors"][0]["detail"]
    await curl("POST", "/v1/brokers/9/actions", 404, json={"do": "kill"})


async def test_a_machine_that_is_unwell(curl: Curl):
    """S38: /v1/machine of one broker: its calendar jumps and no other's; what is not named is well again."""
    healthy = {"disk_full": False, "sync_delay_ms": 0, "failing_syncs": 0, "calendar_ahead_ms": 0, "struck": 0}
    assert await curl.get("/v1/machine", at=2) == healthy
    hour = {"calendar_ahead_ms": 3_600_000}
    assert await curl("PUT", "/v1/machine", json=hour, at=2) == {**healthy, **hour}
    assert await curl.get("/v1/machine", at=1) == healthy
    assert await curl("PUT", "/v1/machine", json={"sync_delay_ms": 5}, at=2) == {**healthy, "sync_delay_ms": 5}
    assert await curl("PUT", "/v1/machine", json={}, at=2) == healthy
    told = (await curl.get("/v1/events?kind=machine_faults_set&node=2"))["events"]
    assert [event["calendar_ahead_ms"] for event in told] == [3_600_000, 0, 0]
    for member, value in (("disk_full", []), ("sync_delay_ms", -1), ("calendar", 1)):
        refused = await curl("PUT", "/v1/machine", 422, json={member: value}, at=2)
        assert refused["errors"][0]["pointer"] == f"/{member}"
    assert await curl.get("/v1/machine", at=2) == healthy


async def test_a_wait_in_vain_is_504_with_the_last_state(curl: Curl):
    """A bounded wait: a typed problem that tells what is not so, and what was seen."""
    told = await curl.get("/v1/wait?alive=9&controller=any&timeout_ms=50", 504)
    assert (told["error"], told["retriable"], told["outcome"]) == ("REQUEST_TIMED_OUT", True, "not_written")
    assert "broker 9 is not registered, wanted: alive" in told["detail"]
    assert told["seen"]["brokers"] == {"1": "alive", "2": "alive", "3": "alive"}
    assert told["seen"]["controller"] in {1, 2, 3}
    fault = await curl("POST", "/v1/faults", 201, json={"kind": "cut", "link": "1>1", "api": "Vote"})
    told = await curl.get(f"/v1/faults/{fault['id']}?wait_hits=1&timeout_ms=50", 504)
    assert told["seen"]["hits"] == 0


@pytest.mark.parametrize(
    "query, told",
    [
        ("", "say at least one of exists, leader"),
        ("isr=1", "which topic?"),
        ("topic=a", "say at least one of"),
        ("topic=a&isr=1,x", "node ids with commas"),
        ("topic=a&leader=one", "a node id is needed, or any"),
        ("topic=a&isr_siz=1", "did you mean 'isr_size'"),
        ("alive=1&timeout_ms=99999", "from 1 to 30000"),
    ],
)
async def test_a_wait_for_nothing_in_particular_is_400(curl: Curl, query: str, told: str):
    """A wait that is met at once by accident would hide a slip of the keyboard."""
    assert told in (await curl.get(f"/v1/wait?{query}", 400))["detail"]


async def test_events_are_read_on_from_a_number(curl: Curl):
    """A window, its end, and where to go on: nothing twice, nothing missed."""
    first = await curl.get("/v1/events?limit=3")
    assert ([event["seq"] for event in first["events"]], first["next"]) == ([1, 2, 3], 4)
    second = await curl.get("/v1/events?limit=1&from=4", at=2)
    assert second["events"][0]["seq"] == 4
    assert {event["node"] for event in (await curl.get("/v1/events?node=2"))["events"]} == {"2"}
    assert "a kind" not in (await curl.get("/v1/events?kind=a%20kind", 400))["errors"][0]["parameter"]


async def test_the_journal_is_a_file_for_the_replay_page(curl: Curl, tmp_path: Path):
    """`curl .../v1/events/journal > run.jsonl`, then `minikafka sim show run.jsonl`."""
    async with curl.session.get(f"{curl.urls[0]}/v1/events/journal") as response:
        assert response.content_type == "application/x-ndjson"
        (tmp_path / "run.jsonl").write_bytes(await response.read())
    journal = read_journals([tmp_path / "run.jsonl"])
    assert {"broker_registered", "controller_activated"} <= {entry.kind for entry in journal.entries}


async def lines_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    """One dictionary of fields for each event of a stream."""
    fields: dict[str, str] = {}
    async for line in response.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


async def test_events_are_followed_as_they_happen_and_resumed(curl: Curl):
    """Issue 5: follow as SSE; `Last-Event-ID` goes on behind the last one."""
    await curl("POST", "/v1/topics", 201, json={"name": "streamed", "replication_factor": 1})
    path = f"{curl.urls[0]}/v1/events/stream?kind=hw_advanced&partition=streamed-0"
    async with asyncio.timeout(60), curl.session.get(path) as response:
        assert response.content_type == "text/event-stream"
        events = lines_of(response)
        for count in (1, 2):
            await curl("POST", "/v1/topics/streamed/records", json={"value": count})
            told = await anext(events)
            assert (told["event"], json.loads(told["data"])["new"]) == ("hw_advanced", count)
    resumed = {"Last-Event-ID": str(int(told["id"]) - 1)}
    async with asyncio.timeout(60), curl.session.get(path, headers=resumed) as response:
        assert (await anext(lines_of(response)))["id"] == told["id"]


async def test_without_the_setting_the_doors_are_not_there(curl: Curl):
    """Nobody cuts a link of a broker that was not started for tests: 404 names the setting."""
    with LocalCluster(1) as shut:
        closed = Curl(curl.session, [f"http://{shut.bootstrap}"])
        for method, path in (("GET", "/v1/faults"), ("POST", "/v1/faults"), ("GET", "/v1/wait"), ("GET", "/v1/events")):
            told = await closed(method, path, 404)
            assert "mk.testing.endpoints.enable=true" in told["detail"]


@pytest.mark.slow
async def test_brokers_in_processes_of_their_own_have_faults_of_their_own(tmp_path: Path):
    """`minikafka up --config mk.testing.endpoints.enable=true`: a fault strikes at the broker where it was set."""
    async with (
        ProcessCluster(3, data_dir=tmp_path, config=QUICK) as running,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        curl = Curl(session, [f"http://{address}" for address in running.bootstrap.split(",")])
        await curl("POST", "/v1/topics", 201, json={"name": "far", "replication_factor": 3})
        leader = (await curl.get("/v1/wait?topic=far&leader=any&isr_size=3"))["leader"]
        cut_off, near = (node for node in (1, 2, 3) if node != leader)
        document = {"kind": "cut", "link": f"{cut_off}>{leader}", "api": "Fetch"}
        told = await curl("POST", "/v1/faults", 422, at=near, json=document)
        assert f"broker {near} is at neither end" in told["detail"]
        # Where the request arrives: the leader's own end knows from the header who sent it.
        fault = await curl("POST", "/v1/faults", 201, at=leader, json=document)
        assert (await curl.get("/v1/faults", at=near))["faults"] == []
        await curl("POST", "/v1/topics/far/records?acks=1", json={"value": "tea"})
        for at in (1, 2, 3):
            await curl.get(f"/v1/wait?topic=far&isr={leader},{near}", at=at)
        assert (await curl.get(f"/v1/faults/{fault['id']}", at=leader))["hits"] > 0
        await curl("DELETE", f"/v1/faults/{fault['id']}", at=leader)
        await curl.get(f"/v1/wait?topic=far&isr_size=3&replica={cut_off}&hw_at_least=1", at=near)
        told = await curl.get("/v1/events?kind=fault_hit", at=leader)
        assert {(event["source"], event["target"]) for event in told["events"]} == {(str(cut_off), str(leader))}
        refused = await curl("POST", f"/v1/brokers/{near}/actions?forward=never", 421, json={"do": "kill"}, at=leader)
        assert refused["broker"]["url"] == curl.urls[near - 1]
        assert "starts no broker again" in (await act(curl, near, "start", 503, at=near))["detail"]
        await act(curl, near, "kill", 202, at=near)
        assert await running.brokers[near].wait() == -signal.SIGKILL
        await running.restart(near)
        await act(curl, near, "stop", 202, at=near)
        assert await running.brokers[near].wait() == 0
