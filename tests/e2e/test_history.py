"""``GET /v1/history`` on three real brokers: it shows for each moment what the live stream showed, also of a dead broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from minikafka.testing.local_cluster import LocalCluster
from minikafka.wire.differences import difference
from tests.e2e.haste import SHORT_SESSIONS
from tests.e2e.test_live import PATIENCE_S, Reader, Viewers, high_watermarks
from tests.rules.test_differences import applied

pytestmark = pytest.mark.e2e

CONFIG = {**SHORT_SESSIONS, "mk.testing.endpoints.enable": "true", "replica.lag.time.max.ms": "1500"}
KINDS = "topic_created,leader_elected,became_leader,became_follower"
"""Of topics that are created while the brokers run: each has its copies within moments, also on a busy machine."""
AGO = ("caught_up_ms_ago", "last_fetch_ms_ago", "lag_ms")
"""They change without an event: the history has them to the second."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=CONFIG) as running:
        yield running


@pytest.fixture
async def viewers(cluster: LocalCluster) -> AsyncIterator[Viewers]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        yield Viewers(http, cluster)
        await asyncio.to_thread(cluster.faults.heal)


class Recorder(Reader):
    """A viewer that keeps each state with its time."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader.response)
        self.states: list[tuple[int, dict[str, Any]]] = []

    async def read(self) -> str:
        kind = await super().read()
        if kind == "frame":
            self.states.append((self.at_ms, self.state))
        return kind


def without_ages(state: dict[str, Any]) -> dict[str, Any]:
    """A state without what changes by itself."""
    replicas = {
        node: {name: value for name, value in each.items() if name not in AGO and name != "why"}
        for node, each in state.get("partition", {}).get("replicas", {}).items()
    }
    return {**state, "partition": {**state["partition"], "replicas": replicas}}


def state_at(history: dict[str, Any], at_ms: int) -> dict[str, Any]:
    """The fold of a response up to a time."""
    state: dict[str, Any] = history["before"]
    for sample in history["samples"]:
        if sample["t"] <= at_ms:
            state = applied(state, sample["changes"])
    return state


async def test_history_shows_each_state_that_the_live_stream_showed(viewers: Viewers, cluster: LocalCluster):
    """Through produces, a held fetch, and the death and return of the leader: for the time of each frame the fold of
    the history is the state that viewers had.
    """
    path = await viewers.topic("rewound")
    async with viewers.watch("rewound-0") as opened:
        reader = Recorder(opened)
        await reader.until(lambda state: None not in high_watermarks(state))
        began = (await viewers.call("GET", "/v1/history?states=false"))["to"]
        await viewers.produce(path)
        await reader.until(lambda state: high_watermarks(state) == [1] * 3)
        with cluster.faults.hold("3>broker", api="Fetch"):
            await viewers.produce(path)
            await reader.until(lambda state: 3 not in state["partition"]["isr"])
        await reader.until(lambda state: 3 in state["partition"]["isr"])
        await asyncio.to_thread(cluster.kill, 2)
        await reader.until(lambda state: state["partition"]["replicas"]["2"]["own_leo"] is None)
        await reader.until(lambda state: 2 not in state["partition"]["isr"])
        lost = reader.state
        found = await viewers.call("GET", f"/v1/history?scope=rewound-0&from={began}&step_ms=0&limit=5000")
        assert found["brokers"] == [1, 3]
        assert found["next"] is None
        assert len(reader.states) > 5
        for at_ms, state in reader.states:
            if began <= at_ms <= found["to"]:
                assert difference(without_ages(state_at(found, at_ms)), without_ages(state)) == []
        shrunk = [each["f"]["new"] for each in found["steps"] if each["k"] == "isr_shrunk"]
        assert (shrunk[0], shrunk[-1]) == ([1, 2], [1, 3])
        await asyncio.to_thread(cluster.restart, 2)
        await reader.until(lambda state: state["partition"]["replicas"]["2"]["own_leo"] is not None)
    # The dead broker's values of before are still there, though it has forgotten them.
    jump = await viewers.call("GET", f"/v1/history?scope=rewound-0&from={began}&to={began}")
    assert jump["before"]["partition"]["replicas"]["2"]["own_leo"] == 0
    assert lost["partition"]["replicas"]["2"]["own_leo"] is None


async def test_history_is_kept_while_nobody_watches(viewers: Viewers):
    """Nobody has opened a page: the ends of the logs are there a second later, from all brokers."""
    path = await viewers.topic("unwatched")
    for _ in range(3):
        await viewers.produce(path)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await viewers.call("GET", "/v1/history?scope=unwatched-0")
            state = state_at(found, found["to"])
            if "partition" in state and high_watermarks(state) == [3] * 3:
                break
            await asyncio.sleep(0.2)
    assert [each["own_leo"] for each in state["partition"]["replicas"].values()] == [3] * 3
    assert [each["k"] for each in found["steps"] if each["k"] == "became_leader"] == ["became_leader"]


async def test_cluster_has_a_history_of_its_own(viewers: Viewers):
    """Topics that are created and deleted are there at the times between; filters leave other steps out."""
    await viewers.topic("shortlived")
    created = (await viewers.call("GET", "/v1/history?states=false"))["to"]
    await viewers.call("DELETE", "/v1/topics/shortlived")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await viewers.call("GET", f"/v1/history?from={created}")
            if "shortlived" not in state_at(found, found["to"])["topics"]:
                break
    assert "shortlived" in found["before"]["topics"]
    only = await viewers.call("GET", "/v1/history?states=false&kind=topic_created")
    assert {each["k"] for each in only["steps"]} == {"topic_created"}
    assert {each["f"]["topic"] for each in only["steps"]} >= {"shortlived"}


async def test_groups_have_a_history_with_their_lag(viewers: Viewers):
    """Members, committed offsets and lag at each time, sampled once a second; a deleted group was there before."""
    path = await viewers.topic("grouped")
    for _ in range(3):
        await viewers.produce(path)
    offsets = "/v1/groups/keeping/offsets"

    async def commit(offset: int) -> int:
        await viewers.call("PUT", offsets, {"offsets": [{"topic": "grouped", "partition": 0, "offset": offset}]})
        return await sampled(offset)

    async def sampled(offset: int | None) -> int:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await viewers.call("GET", "/v1/history/groups")
                mine = [each for each in found["groups"] if each["group"] == "keeping"]
                if [one["committed"] for each in mine for one in each["offsets"]] == (
                    [] if offset is None else [offset]
                ):
                    return int(found["at"])
                await asyncio.sleep(0.2)

    first, second = await commit(1), await commit(3)
    member = await viewers.call("POST", "/v1/groups/keeping/members", {"topics": ["grouped"], "client_id": "tea"})
    async with asyncio.timeout(PATIENCE_S):
        while True:
            now = await viewers.call("GET", "/v1/history/groups?group=keeping")
            if now["groups"][0]["members"]:
                break
            await asyncio.sleep(0.2)
    assert [each["member_id"] for each in now["groups"][0]["members"]] == [member["member_id"]]
    await viewers.call("DELETE", f"/v1/groups/keeping/members/{member['member_id']}")
    await viewers.call("DELETE", "/v1/groups/keeping")
    await sampled(None)
    for at, committed, lag in ((first, 1, 2), (second, 3, 0)):
        [past] = (await viewers.call("GET", f"/v1/history/groups?at={at}&group=keeping"))["groups"]
        assert past["sampled_ms"] <= at
        assert past["members"] == []
        assert [(each["committed"], each["log_end"], each["lag"]) for each in past["offsets"]] == [(committed, 3, lag)]
    gone = "/v1/history/groups?group=keeping"
    async with viewers.http.get(viewers.urls[0] + gone) as response:
        assert (response.status, (await response.json(content_type=None))["error"]) == (404, "GROUP_ID_NOT_FOUND")


async def test_long_spans_are_read_in_parts(viewers: Viewers):
    """``limit`` cuts a response, and ``next`` continues without a gap: all parts together are the whole."""
    path = await viewers.topic("parted")
    async with viewers.watch("parted-0") as reader:
        for count in range(1, 7):
            await viewers.produce(path)
            await reader.until(lambda state, count=count: high_watermarks(state) == [count] * 3)  # type: ignore[misc]
    whole = await viewers.call("GET", "/v1/history?scope=parted-0&step_ms=0&limit=5000")
    to = whole["to"]
    start, state, parts = whole["from"], {}, 0
    while start is not None:
        part = await viewers.call("GET", f"/v1/history?scope=parted-0&step_ms=0&limit=2&from={start}&to={to}")
        if state:
            assert without_ages(part["before"]) == without_ages(state_at(whole, start))
        assert len(part["samples"]) <= 2
        state, start, parts = state_at(part, to), part["next"], parts + 1
    assert parts > 1
    assert without_ages(state) == without_ages(state_at(whole, to))


async def test_no_event_is_lost_or_twice_between_parts(viewers: Viewers):
    """Many events have the same millisecond: a part of one step holds all of them, or the reader would never go on."""
    for topic, partitions in (("counted", 12), ("counted-too", 3)):
        body = {"name": topic, "partitions": partitions, "replication_factor": 3}
        await viewers.call("POST", "/v1/topics", body)
    whole = await viewers.call("GET", f"/v1/history?states=false&limit=5000&kind={KINDS}")
    to, start, found = whole["to"], whole["from"], Counter[str]()
    while start is not None:
        part = await viewers.call("GET", f"/v1/history?states=false&limit=1&from={start}&to={to}&kind={KINDS}")
        assert part["next"] is None or part["next"] > start
        found.update(events_of(part))
        start = part["next"]
    assert found == events_of(whole)


def events_of(history: dict[str, Any]) -> Counter[str]:
    """How many events of each kind."""
    kinds = Counter[str]()
    for step in history["steps"]:
        kinds[step["k"]] += step.get("count", 1)
    return kinds


async def test_replay_page_is_exported(viewers: Viewers):
    """The page needs no broker: it has the partition's steps, and says that it is made of samples."""
    path = await viewers.topic("exported")
    async with viewers.watch("exported-0") as reader:
        await viewers.produce(path)
        await reader.until(lambda state: high_watermarks(state) == [1] * 3)
    async with viewers.http.get(viewers.urls[0] + "/v1/history/replay?partition=exported-0") as response:
        page = await response.text()
        assert response.status == 200, page
        assert response.headers["Content-Disposition"] == 'attachment; filename="replay-exported-0.html"'
        assert response.headers["Content-Security-Policy"] == "sandbox allow-scripts"
    assert "became_leader" in page
    assert "replica_sampled" in page
    assert "are samples" in page
    assert "http://127" not in page


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
async def test_events_of_brokers_with_other_clocks_are_at_the_readers_times(ahead_ms: int):
    """A calendar that is an hour off, at the broker whose events are read: they are in the last minute all the same."""
    with LocalCluster(brokers=3, config=CONFIG) as skewed:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
            viewers = Viewers(http, skewed)
            await viewers.call("PUT", "/v1/machine?broker=3", {"calendar_ahead_ms": ahead_ms})
            await viewers.call("POST", "/v1/topics", {"name": "skewed", "assignments": [[3, 1, 2]]})
            path = "/v1/topics/skewed/partitions/0"
            for _ in range(3):
                await viewers.produce(path)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    found = await viewers.call("GET", "/v1/history?scope=skewed-0")
                    state = state_at(found, found["to"])
                    if "partition" in state and high_watermarks(state) == [3] * 3:
                        break
                    await asyncio.sleep(0.2)
            led = [each for each in found["steps"] if each["k"] == "became_leader"]
            assert [each["n"] for each in led] == ["3"]
            assert found["from"] <= led[0]["t"] <= found["to"]


async def test_what_cannot_be_is_refused_with_the_reason(viewers: Viewers):
    """An end before the start, a missing partition, a partition without a history."""
    for query, status, words in (
        ("/v1/history?from=5&to=4", 400, "is later than to=4"),
        ("/v1/history/replay", 400, "parameter partition"),
        ("/v1/history/replay?partition=nosuch-0", 404, "no events of any partition"),
        ("/v1/history?scope=orders", 400, "a partition such as orders-0"),
    ):
        async with viewers.http.get(viewers.urls[0] + query) as response:
            problem = await response.json(content_type=None)
            assert (response.status, words in problem["detail"]) == (status, True), problem
