"""Transactions with nothing but HTTP, at three real brokers: any broker is asked, and brokers die on the way (issue 17).

Every answer is held against the schema of its route (tests/rest/conform.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from minikafka import LocalCluster
from tests.e2e.haste import SHORT_SESSIONS
from tests.e2e.test_rest_inside import Person

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60
SETTINGS = {
    **SHORT_SESSIONS,
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=SETTINGS) as running:
        yield running


class Curl(Person):
    """A person with a topic and a transactional id of the same name."""

    name: str

    @property
    def place(self) -> str:
        return f"/v1/topics/{self.name}/partitions/0"

    @property
    def transaction(self) -> str:
        return f"/v1/transactions/{self.name}"

    async def begin(self, name: str, **more: Any) -> dict[str, Any]:
        """Create the topic, and become the producer."""
        self.name = name
        await self.topic(name)
        return await self.initialize(**more)

    async def initialize(self, **more: Any) -> dict[str, Any]:
        given: dict[str, Any] = await self.post("/v1/transactions", {"transactional_id": self.name, **more}, at=2)
        return {each: given[each] for each in ("producer_id", "producer_epoch")}

    async def send(self, sender: dict[str, Any], value: Any, *, sequence: int = 0, **options: Any) -> Any:
        headers = {
            "Transactional-Id": self.name,
            "Producer-Id": str(sender["producer_id"]),
            "Producer-Epoch": str(sender["producer_epoch"]),
            "Base-Sequence": str(sequence),
        }
        return await self.post(f"{self.place}/records", {"value": value}, headers=headers, **options)

    async def end(self, sender: dict[str, Any], how: str, **options: Any) -> Any:
        return await self.post(f"{self.transaction}:{how}", sender, **options)

    def records(self, isolation: str = "read_committed") -> str:
        return f"{self.place}/records?offset=0&isolation={isolation}"

    async def values(self, isolation: str = "read_committed") -> list[Any]:
        return values_of(await self.get(self.records(isolation), at=3))

    async def until_visible(self, *values: Any) -> None:
        """Markers follow the answer to a commit."""
        await self.until(self.records(), lambda read: values_of(read) == list(values), at=3)


@pytest.fixture
async def curl(cluster: LocalCluster) -> AsyncIterator[Curl]:
    async with aiohttp.ClientSession() as http:
        yield Curl(http, cluster)


def values_of(read: dict[str, Any]) -> list[Any]:
    return [each["value"] for each in read["records"]]


def next_of(ended: dict[str, Any]) -> dict[str, Any]:
    return {each: ended[each] for each in ("producer_id", "producer_epoch")}


async def test_records_and_offsets_count_when_the_transaction_commits(curl: Curl):
    """Issue 17, part 3: begin, produce, send offsets, commit; the next transaction has the next epoch."""
    sender = await curl.begin("counts")
    written = await curl.send(sender, "one")
    assert written["partitions"][0]["base_offset"] == 0
    await curl.send(sender, "two", sequence=1)
    offsets = {"offsets": [{"topic": "counts", "partition": 0, "offset": 7}]}
    pending = await curl("PUT", f"{curl.transaction}/offsets", json={**sender, "group": "counting", **offsets})
    assert pending == {"transactional_id": "counts", "group": "counting", **offsets}
    shown = await curl.get(curl.transaction)
    assert (shown["state"], {"topic": "counts", "partition": 0} in shown["partitions"]) == ("Ongoing", True)
    assert await curl.values() == []
    assert await curl.values("read_uncommitted") == ["one", "two"]
    ended = await curl.end(sender, "commit", at=3)
    assert (ended["committed"], ended["producer_epoch"]) == (True, sender["producer_epoch"] + 1)
    # At once: the leader waits until the last transaction has ended.
    await curl.send(next_of(ended), "three")
    await curl.until_visible("one", "two")
    group = await curl.until("/v1/groups/counting/offsets", lambda told: told["offsets"])
    assert group["offsets"][0]["committed"] == 7
    again = await curl.end(next_of(ended), "abort")
    assert (again["committed"], again["producer_epoch"]) == (False, ended["producer_epoch"] + 1)
    await curl.until(curl.transaction, lambda told: told["state"] == "CompleteAbort")
    assert await curl.values() == ["one", "two"]


async def test_every_request_may_be_repeated(curl: Curl):
    """What a client does after a 504: records are not written twice, and an end is answered as before."""
    sender = await curl.begin("repeats")
    offsets = {**sender, "group": "repeating", "offsets": [{"topic": "repeats", "partition": 0, "offset": 1}]}
    for attempt in range(2):
        [batch] = (await curl.send(sender, "once", at=attempt + 1))["partitions"]
        assert (batch["base_offset"], batch.get("duplicate", False)) == (0, attempt == 1)
        await curl("PUT", f"{curl.transaction}/offsets", json=offsets)
    first = await curl.end(sender, "commit")
    assert await curl.end(sender, "commit", at=2) == first
    await curl.until_visible("once")
    await curl.send(next_of(first), "later")
    late = await curl.end(sender, "commit", at=3, expect=409)
    assert (late["error"], late["outcome"]) == ("PRODUCER_FENCED", "not_written")
    assert (await curl.get(curl.transaction))["state"] == "Ongoing", "a late copy does not end the next transaction"
    await curl.end(next_of(first), "commit")
    await curl.until_visible("once", "later")


async def test_a_successor_fences_its_predecessor(curl: Curl):
    """The zombie's open transaction is aborted, and nothing that it sends later is committed."""
    zombie = await curl.begin("zombies")
    await curl.send(zombie, "lost")
    successor = await curl.initialize()
    assert successor["producer_epoch"] > zombie["producer_epoch"]
    refused = await curl.send(zombie, "late", sequence=1, expect=409)
    assert (refused["error"], refused["outcome"]) == ("INVALID_PRODUCER_EPOCH", "not_written")
    for how in ("commit", "abort"):
        assert (await curl.end(zombie, how, expect=409))["error"] == "PRODUCER_FENCED"
    offsets = {**zombie, "group": "zombies", "offsets": [{"topic": "zombies", "partition": 0, "offset": 1}]}
    refused = await curl("PUT", f"{curl.transaction}/offsets", json=offsets, expect=409)
    assert refused["error"] in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    await curl.send(successor, "kept")
    await curl.end(successor, "commit")
    await curl.until_visible("kept")


async def test_a_transaction_over_its_timeout_is_aborted(curl: Curl):
    """Its commit says so, and initializing again helps."""
    # Long enough for one record: between its way to the coordinator and to the leader, a machine may stand still.
    sender = await curl.begin("slow", timeout_ms=3_000)
    await curl.send(sender, "lost")
    await curl.until(curl.transaction, lambda told: told["state"] == "CompleteAbort")
    refused = await curl.end(sender, "commit", expect=409)
    assert (refused["error"], refused["outcome"]) == ("PRODUCER_FENCED", "not_written")
    again = await curl.initialize()
    await curl.send(again, "kept")
    await curl.end(again, "commit")
    await curl.until_visible("kept")


async def test_a_transaction_outlives_its_coordinator_and_its_leader(curl: Curl, cluster: LocalCluster):
    """kill -9 of the coordinator, then of the partition's leader, with the transaction open: it commits whole."""
    sender = await curl.begin("outlives", timeout_ms=300_000)
    await curl.send(sender, "one")
    sequence = 1
    for path in (curl.transaction, curl.place):
        shown = await curl.get(path)
        node = shown["coordinator"]["id"] if path == curl.transaction else shown["leader"]["id"]
        other = next(each for each in cluster.node_ids if each != node)
        cluster.kill(node)
        try:
            await send_until_acknowledged(curl, sender, sequence, at=other)
            sequence += 1
        finally:
            cluster.make_whole()
        cluster.sync.wait.isr("outlives", size=3)
    ended = await curl.end(sender, "commit")
    assert ended["committed"]
    await curl.until_visible("one", 1, 2)


async def send_until_acknowledged(curl: Curl, sender: dict[str, Any], sequence: int, *, at: int) -> None:
    """Send a record of the transaction; what may have been written is sent again, and not written twice."""
    headers = {"Transactional-Id": curl.name, "Base-Sequence": str(sequence)}
    headers |= {"Producer-Id": str(sender["producer_id"]), "Producer-Epoch": str(sender["producer_epoch"])}
    url = f"{curl.urls[at]}{curl.place}/records"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with curl.http.post(url, json={"value": sequence}, headers=headers) as response:
                assert response.status in (200, 503, 504), await response.text()
                if response.status == 200:
                    return
            await asyncio.sleep(0.2)


async def test_a_member_without_which_the_group_has_gone_on_commits_no_offsets(curl: Curl):
    """KIP-447: the generation fences the consumer's zombie, as the transactional id fences the producer's."""
    sender = await curl.begin("generations")
    wanted = {"topics": ["generations"], "client_id": "ann"}
    joined = await curl.post("/v1/groups/generations/members", wanted)
    member = {"member_id": joined["member_id"], "generation": joined["generation"]}
    offsets = [{"topic": "generations", "partition": 0, "offset": 1}]
    body = {**sender, "group": "generations", **member, "offsets": offsets}
    old = await curl(
        "PUT", f"{curl.transaction}/offsets", json={**body, "generation": joined["generation"] + 1}, expect=409
    )
    assert (old["error"], old["outcome"]) == ("ILLEGAL_GENERATION", "not_written")
    stranger = await curl("PUT", f"{curl.transaction}/offsets", json={**body, "member_id": "x"}, expect=404)
    assert stranger["error"] == "UNKNOWN_MEMBER_ID"
    await curl("PUT", f"{curl.transaction}/offsets", json=body)
    await curl.end(sender, "commit")
    await curl.until("/v1/groups/generations/offsets", lambda told: told["offsets"][0]["committed"] == 1)


async def test_nothing_to_commit_is_an_error_and_nothing_to_abort_is_none(curl: Curl):
    """A commit of nothing hides lost records; an abort fences what may be under way, so it raises the epoch."""
    sender = await curl.begin("empty")
    refused = await curl.end(sender, "commit", expect=409)
    assert (refused["error"], refused["outcome"]) == ("INVALID_TXN_STATE", "not_written")
    ended = await curl.end(sender, "abort")
    assert ended["producer_epoch"] == sender["producer_epoch"] + 1
    assert (await curl.send(sender, "late", expect=409))["error"] == "INVALID_PRODUCER_EPOCH"


async def test_bad_requests_name_what_is_wrong(curl: Curl):
    """400 and 422 before anything is sent to another broker, or Kafka's error code."""
    sender = await curl.begin("bad")
    refused = await curl.send(sender, 1, expect=400, params={"acks": "1"})
    assert "the records of a transaction need acks=all" in refused["detail"]
    path = f"{curl.place}/records"
    refused = await curl.post(path, {"value": 1}, headers={"Transactional-Id": "bad"}, expect=400)
    assert "Transactional-Id needs Producer-Id and Producer-Epoch and Base-Sequence beside it" in refused["detail"]
    refused = await curl.post("/v1/topics/bad/records", {"value": 1}, headers={"Transactional-Id": "bad"}, expect=400)
    assert "/v1/topics/bad/partitions/N/records" in refused["detail"]
    refused = await curl.post("/v1/transactions", {"transactional_id": "bad", "timeout_ms": 10_000_000}, expect=422)
    assert refused["error"] == "INVALID_TRANSACTION_TIMEOUT"
    refused = await curl.post("/v1/transactions", {"transactional_id": ""}, expect=422)
    assert refused["errors"][0]["pointer"] == "/transactional_id"
    refused = await curl.post(f"{curl.transaction}:commit", {"producer_id": 1}, expect=422)
    assert "POST /v1/transactions" in refused["errors"][0]["detail"]
    refused = await curl.send({**sender, "producer_id": sender["producer_id"] + 900}, 1, expect=409)
    assert refused["error"] == "INVALID_PRODUCER_ID_MAPPING"
    refused = await curl.post("/v1/transactions/unknown:abort", sender, expect=409)
    assert refused["error"] == "INVALID_PRODUCER_ID_MAPPING"
    assert await curl.values("read_uncommitted") == []
