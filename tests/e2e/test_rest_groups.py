"""``/v1/groups`` against three real brokers: members over HTTP, offsets, lag, resets; any broker is asked (issue 6).

Every answer is held against the schema of its route (tests/rest/conform.py).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import msgpack
import pytest
from msgspec.structs import replace

from minikafka import Consumer
from minikafka.client.group_member import Member
from minikafka.rest.routes import ROUTES
from minikafka.testing.local_cluster import LocalCluster
from minikafka.wire.group_messages import MemberAssignment
from tests.e2e.test_rest_operations import Person

PATIENCE_S = 60
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=SETTINGS) as running:
        yield running


@pytest.fixture
async def person(cluster: LocalCluster) -> AsyncIterator[Person]:
    async with aiohttp.ClientSession() as http:
        yield Person(http, cluster)


async def filled(person: Person, name: str, partitions: int = 2, records: int = 5) -> str:
    """A topic with so many records in each partition."""
    topic = await person.topic(name, partitions)
    for number in range(partitions):
        told = {"records": [{"value": each} for each in range(records)]}
        await person("POST", f"{topic}/partitions/{number}/records", told)
    return name


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_reading_changes_nothing(method: str):
    """A link that somebody follows must not create `__consumer_offsets`, nor anything else in the metadata."""
    values = {"topic": "none", "partition": "0", "group": "x", "node": "1", "slug": "x", "member": "x", "id": "1"}
    with LocalCluster(brokers=1, config=SETTINGS) as fresh:
        broker = fresh.broker(1)
        async with aiohttp.ClientSession() as http:
            for route in ROUTES:
                if route.method != "GET":
                    continue
                path = re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "1"), route.path)
                async with http.request(method, f"http://{fresh.bootstrap}{path}") as answer:
                    assert answer.status < 500 or answer.status == 503
            async with http.request(method, f"http://{fresh.bootstrap}/v1/groups/x/offsets") as answer:
                assert answer.status == 404
            assert not broker.image.topics
            assert (await (await http.get(f"http://{fresh.bootstrap}/v1/groups")).json())["groups"] == []


def join_body(topic: str, **more: Any) -> dict[str, Any]:
    return {"topics": [topic], "client_id": "curl", "auto_offset_reset": "earliest", **more}


def numbers(told: dict[str, Any]) -> list[int]:
    return [number for part in told["assignment"] for number in part["partitions"]]


async def test_a_join_that_its_client_gives_up_leaves_no_member(person: Person):
    """`curl -m 1`: nobody knew the member's id, and it kept its partitions until its session ended."""
    topic = await filled(person, "given-up")
    group = "/v1/groups/given-up"
    wish = join_body(topic, session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000)
    first = await person("POST", f"{group}/members", wish)

    async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(PATIENCE_S * 50):
            if await holds():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(holds)

    async def has_two_members() -> bool:
        return len((await person("GET", group))["members"]) == 2

    async def is_gone() -> bool:
        """No broker has the request any more."""
        answers = [await (await person.http.get(f"{url}/v1/connections")).json() for url in person.urls]
        pending = [each["pending_request"] for answer in answers for each in answer["connections"]]
        return f"POST {group}/members" not in pending

    given_up = asyncio.ensure_future(person("POST", f"{group}/members", wish))
    await eventually(has_two_members)
    given_up.cancel()
    await eventually(is_gone)
    async with asyncio.timeout(PATIENCE_S):
        again = await person("POST", f"{group}/members", {**wish, "member_id": first["member_id"]})
        while numbers(again) != [0, 1]:
            again = await person("POST", f"{group}/members", {**wish, "member_id": first["member_id"]})


async def test_a_person_is_a_member_from_join_to_leave(person: Person):
    """Convention 2.3: join gives an assignment and where to begin; heartbeat, commit, lag, leave; any broker."""
    topic = await filled(person, "story")
    group = "/v1/groups/story"
    joined = await person("POST", f"{group}/members", join_body(topic))
    assert (joined["generation"], joined["assignor"], joined["leads"]) == (1, "range", True)
    assert joined["assignment"] == [{"topic": topic, "partitions": [0, 1]}]
    assert [(each["offset"], each["begin"]) for each in joined["committed"]] == [(None, 0), (None, 0)]
    member = f"{group}/members/{joined['member_id']}"
    for _ in range(3):
        assert (await person("POST", f"{member}/heartbeat", {"generation": 1}))["generation"] == 1
    offsets = [{"topic": topic, "partition": 0, "offset": 3, "metadata": "three"}]
    done = await person("PUT", f"{member}/offsets", {"generation": 1, "offsets": offsets})
    assert done["offsets"] == [{"topic": topic, "partition": 0, "offset": 3}]
    shown = await person("GET", group)
    assert (shown["state"], shown["generation"], shown["assignor"]) == ("Stable", 1, "range")
    [me] = shown["members"]
    assert (me["client_id"], me["host"], me["topics"]) == ("curl", "/127.0.0.1", [topic])
    assert me["assignment"] == joined["assignment"]
    assert shown["offsets"] == [
        {"topic": topic, "partition": 0, "committed": 3, "log_end": 5, "lag": 2},
        {"topic": topic, "partition": 1, "committed": None, "log_end": 5, "lag": None},
    ]
    lag = await person("GET", f"{group}/lag")
    assert (lag["lag_sum"], lag["lag_max"]["partition"]) == (2, 0)
    assert [each["member_id"] for each in lag["partitions"]] == [joined["member_id"]] * 2
    [first, second] = (await person("GET", f"{group}/offsets"))["offsets"]
    assert (first["metadata"], second["metadata"], second["commit_timestamp"]) == ("three", None, None)
    listed = await person("GET", "/v1/groups?state=Stable,Empty")
    assert {"group": "story", "protocol_type": "consumer", "state": "Stable"} in listed["groups"]
    assert "story" not in [each["group"] for each in (await person("GET", "/v1/groups?state=Empty"))["groups"]]
    assert (await person("DELETE", member))["left"]
    assert (await person("GET", group))["state"] == "Empty"
    refused = await person("POST", f"{member}/heartbeat", {"generation": 1}, expect=404)
    assert (refused["error"], "join again" in refused["detail"]) == ("UNKNOWN_MEMBER_ID", True)
    assert (await person("DELETE", group)) == {"group": "story", "deleted": True}
    assert (await person("GET", group, expect=404))["error"] == "GROUP_ID_NOT_FOUND"
    await person("DELETE", group, expect=404)


async def test_a_second_member_makes_the_first_one_join_again(person: Person):
    """S31, S33: the second's join waits for the first's; each reads one of two partitions, from what is committed."""
    topic = await filled(person, "two")
    group = "/v1/groups/two"
    first = await person("POST", f"{group}/members", join_body(topic))
    member = f"{group}/members/{first['member_id']}"
    await person(
        "PUT",
        f"{member}/offsets",
        {"generation": 1, "offsets": [{"topic": topic, "partition": number, "offset": 4} for number in (0, 1)]},
    )
    early = await person("POST", f"{group}/members?max_wait_ms=200", join_body(topic), expect=409)
    assert early["error"] == "REBALANCE_IN_PROGRESS"
    assert f"join again with member_id {early['member_id']}" in early["detail"]
    waiting = asyncio.ensure_future(person("POST", f"{group}/members", join_body(topic, member_id=early["member_id"])))
    told = await person("POST", f"{member}/heartbeat", {"generation": 1}, expect=409)
    assert (told["error"], "join again" in told["detail"]) == ("REBALANCE_IN_PROGRESS", True)
    again, second = await asyncio.gather(
        person("POST", f"{group}/members", join_body(topic, member_id=first["member_id"])), waiting
    )
    assert again["generation"] == second["generation"] == 2
    assert sorted(numbers(again) + numbers(second)) == [0, 1]
    assert [each["begin"] for each in (*again["committed"], *second["committed"])] == [4, 4]
    zombie = await person(
        "PUT",
        f"{member}/offsets",
        {"generation": 1, "offsets": [{"topic": topic, "partition": 0, "offset": 5}]},
        expect=409,
    )
    assert (zombie["error"], "join again" in zombie["detail"]) == ("ILLEGAL_GENERATION", True)
    for each in (again, second):
        await person("DELETE", f"{group}/members/{each['member_id']}")


def program(cluster: LocalCluster, topic: str, group: str) -> Consumer:
    """A member in Python, beside a person."""
    return Consumer(
        topic, bootstrap_servers=cluster.bootstrap, group_id=group, heartbeat_interval_ms=100, client_id="program"
    )


async def has(consumer: Consumer, count: int, beside: asyncio.Future[Any] | None = None) -> None:
    """It polls until it has so many partitions and ``beside``, which needs its polls, is done."""
    while len(consumer.assignment()) != count or (beside is not None and not beside.done()):
        await consumer.getmany(timeout_ms=50)


async def test_a_person_and_a_program_share_a_topic(person: Person, cluster: LocalCluster):
    """One group, two kinds of members; whoever leads deals by the same rules."""
    topic = await filled(person, "mixed", 4)
    group = "/v1/groups/mixed"
    async with program(cluster, topic, "mixed") as consumer:
        await has(consumer, 4)
        joining = asyncio.ensure_future(person("POST", f"{group}/members", join_body(topic)))
        await has(consumer, 2, joining)
        joined = await joining
        assert len(numbers(joined)) == 2
        assert not {each.partition for each in consumer.assignment()} & set(numbers(joined))
        await person("DELETE", f"{group}/members/{joined['member_id']}")
        await has(consumer, 4)


@pytest.mark.parametrize("static", [{}, {"group_instance_id": "desk"}], ids=["dynamic", "static"])
async def test_a_leader_that_assigns_what_nobody_can_read_is_named(
    person: Person, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, static: dict[str, str]
):
    """A program in another language leads: the person gets a problem, no 500, and does not stay in the group. Static
    members stay: they leave with their session only (KIP-345).
    """
    deal = Member._deal

    def garbage_for_others(self: Member, *given: Any) -> tuple[MemberAssignment, ...]:
        own = self.member_id
        return tuple(
            each if each.member_id == own else replace(each, assignment=b"\x00\x01\xff") for each in deal(self, *given)
        )

    monkeypatch.setattr(Member, "_deal", garbage_for_others)
    name = f"foreign-{len(static)}"
    topic = await filled(person, name, 2)
    group = f"/v1/groups/{name}"
    async with program(cluster, topic, name) as consumer:
        await has(consumer, 2)
        joining = asyncio.ensure_future(person("POST", f"{group}/members", join_body(topic, **static), expect=409))
        await has(consumer, 1 if static else 2, joining)
        told = await joining
        assert told["error"] == "INCONSISTENT_GROUP_PROTOCOL"
        assert "stop the member that leads" in told["detail"]
        members = {each["client_id"] for each in (await person("GET", group))["members"]}
        assert members == ({"program", "curl"} if static else {"program"})


async def test_new_partitions_are_shared_out(person: Person):
    """S31: the leader's heartbeat asks for another join when a topic grows, though no program watches."""
    topic = await filled(person, "grows")
    joined = await person("POST", "/v1/groups/grows/members", join_body(topic))
    member = f"/v1/groups/grows/members/{joined['member_id']}"
    await person("POST", f"{member}/heartbeat", {"generation": 1})
    await person("POST", f"/v1/topics/{topic}/partitions", {"count": 3})
    told: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE_S):
        while told.get("status") != 409:
            async with person.http.post(f"{person.urls[0]}{member}/heartbeat", json={"generation": 1}) as response:
                told = {"status": response.status, **await response.json(content_type=None)}
    assert f"{topic} has 3 partitions, 2 were shared out: join again" in told["detail"]
    again = await person("POST", "/v1/groups/grows/members", join_body(topic, member_id=joined["member_id"]))
    assert numbers(again) == [0, 1, 2]
    await person("POST", f"{member}/heartbeat", {"generation": again["generation"]})


async def test_a_topic_that_is_gone_makes_its_reader_join_again(person: Person):
    """S31: the partitions that are left are assigned again."""
    topics = [await filled(person, name, 1) for name in ("stays", "goes")]
    members = "/v1/groups/fewer/members"
    joined = await person("POST", members, {**join_body("stays"), "topics": topics})
    await person("DELETE", "/v1/topics/goes")
    told: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE_S):
        while told.get("status") != 409:
            beat = f"{person.urls[0]}{members}/{joined['member_id']}/heartbeat"
            async with person.http.post(beat, json={"generation": 1}) as response:
                told = {"status": response.status, **await response.json(content_type=None)}
    assert "goes has 0 partitions, 1 were shared out: join again" in told["detail"]


async def test_a_cooperative_member_keeps_what_stays_its_own(person: Person):
    """KIP-429 over HTTP: `owned` is kept, `revoked` is given up, and a second join hands it over."""
    topic = await filled(person, "coop", 4)
    path = "/v1/groups/coop/members"
    body = join_body(topic, assignors=["cooperative-sticky"])
    first = await person("POST", path, body)
    assert numbers(first) == [0, 1, 2, 3]
    owned = {"owned": first["assignment"], "generation": first["generation"], "member_id": first["member_id"]}
    waiting = asyncio.ensure_future(person("POST", path, body))
    async with asyncio.timeout(PATIENCE_S):
        while (await person("GET", "/v1/groups/coop"))["state"] == "Stable":  # noqa: ASYNC110 - HTTP tells it when asked
            await asyncio.sleep(0.02)
    kept, second = await asyncio.gather(person("POST", path, {**body, **owned}), waiting)
    assert numbers(kept) == [0, 1]
    assert kept["revoked"] == [{"topic": topic, "partitions": [2, 3]}]
    assert numbers(second) == []
    owned = {"owned": kept["assignment"], "generation": kept["generation"], "member_id": kept["member_id"]}
    both = await asyncio.gather(
        person("POST", path, {**body, **owned}),
        person("POST", path, {**body, "member_id": second["member_id"], "generation": second["generation"]}),
    )
    assert [numbers(each) for each in both] == [[0, 1], [2, 3]]


async def test_offsets_are_committed_reset_and_forgotten_by_hand(person: Person):
    """Kafka's tool over HTTP: every goal, shown first; refused while there are members."""
    topic = await filled(person, "byhand", 2, records=10)
    offsets = "/v1/groups/byhand/offsets"
    at = [{"topic": topic, "partition": 0, "offset": 6}, {"topic": topic, "partition": 1, "offset": 6}]
    assert (await person("PUT", offsets, {"offsets": at}))["offsets"] == at
    mixed = await person(
        "PUT", offsets, {"offsets": [at[0], {"topic": "nope", "partition": 0, "offset": 1}]}, expect=207
    )
    assert mixed["offsets"][0] == at[0]
    assert mixed["offsets"][1]["problem"]["error"] == "UNKNOWN_TOPIC_OR_PARTITION"

    async def reset(**goal: Any) -> list[int]:
        told = await person("POST", f"{offsets}:reset", {**goal, "dry_run": True})
        assert told["dry_run"]
        assert [each["committed"] for each in told["offsets"]] == [6, 6]
        return [each["new_offset"] for each in told["offsets"]]

    assert await reset(to="earliest") == [0, 0]
    assert await reset(to="latest") == [10, 10]
    assert await reset(to="current") == [6, 6]
    assert await reset(to_offset=99) == [10, 10]
    assert await reset(shift_by=-2) == [4, 4]
    assert await reset(to_datetime="2020-01-01T00:00:00Z") == [0, 0]
    assert await reset(by_duration="PT1H") == [0, 0]
    assert await reset(by_duration="PT0S") == [10, 10]
    some = {"to": "earliest", "topics": [{"topic": topic, "partitions": [1]}]}
    done = await person("POST", f"{offsets}:reset", some)
    assert (done["dry_run"], done["offsets"]) == (
        False,
        [{"topic": topic, "partition": 1, "committed": 6, "new_offset": 0}],
    )
    assert [each["lag"] for each in (await person("GET", offsets))["offsets"]] == [4, 10]
    for wrong in ({}, {"to": "earliest", "shift_by": 1}, {"to": "end"}, {"by_duration": "1h"}, {"to_datetime": "now"}):
        assert (await person("POST", f"{offsets}:reset", wrong, expect=422))["errors"]
    await person("POST", "/v1/groups/fresh/offsets:reset", {"to": "earliest"}, expect=404)
    joined = await person("POST", "/v1/groups/byhand/members", join_body(topic))
    for refused in (
        await person("POST", f"{offsets}:reset", {"to": "earliest"}, expect=409),
        await person("PUT", offsets, {"offsets": at}, expect=409),
        await person("DELETE", "/v1/groups/byhand", expect=409),
    ):
        assert refused["error"] == "NON_EMPTY_GROUP"
    subscribed = await person("DELETE", f"{offsets}?topic={topic}", expect=409)
    assert subscribed["error"] == "GROUP_SUBSCRIBED_TO_TOPIC"
    await person("DELETE", f"/v1/groups/byhand/members/{joined['member_id']}")
    gone = await person("DELETE", f"{offsets}?topic={topic}&partition=1")
    assert gone["deleted"] == [{"topic": topic, "partition": 1}]
    assert [each["partition"] for each in (await person("GET", offsets))["offsets"]] == [0]
    await person("DELETE", offsets, expect=400)


BAD_JOINS = [
    ({"topics": []}, 422, "INVALID_REQUEST", "1 or more entries are needed, not 0"),
    ({"topics": ["nope"]}, 404, "UNKNOWN_TOPIC_OR_PARTITION", "there is no topic 'nope'"),
    ({"session_timeout_ms": 1}, 422, "INVALID_SESSION_TIMEOUT", "from 6000 to 1800000 is allowed"),
    ({"session_timeout_ms": 9_999_999}, 422, "INVALID_SESSION_TIMEOUT", "group.max.session.timeout.ms"),
    ({"assignors": ["rnage"]}, 422, "INVALID_REQUEST", "did you mean 'range'?"),
    ({"assignors": ["sticky"]}, 409, "INCONSISTENT_GROUP_PROTOCOL", "offer range"),
    ({"member_id": "ghost"}, 404, "UNKNOWN_MEMBER_ID", "join again"),
    ({"client_id": "x" * 40_000}, 400, "INVALID_REQUEST", "client_id has 40000 bytes"),
    ({"topic": "x"}, 422, "INVALID_REQUEST", "did you mean 'topics'?"),
]


async def test_bad_input_has_kafka_s_error_and_says_what_to_do(person: Person):
    """Issue 6, must be shown, the /v1 part: nothing is half applied."""
    topic = await filled(person, "bad")
    group = "/v1/groups/bad"
    joined = await person("POST", f"{group}/members", join_body(topic, group_instance_id="one"))
    for change, status, error, sentence in BAD_JOINS:
        told = await person("POST", f"{group}/members", {**join_body(topic), **change}, expect=status)
        assert told["error"] == error, told
        assert sentence in told["detail"], told
    member = f"{group}/members/{joined['member_id']}"
    at = [{"topic": topic, "partition": 0, "offset": 1}]
    old = await person("PUT", f"{member}/offsets", {"generation": 9, "offsets": at}, expect=409)
    assert (old["error"], old["outcome"], "join again" in old["detail"]) == ("ILLEGAL_GENERATION", "not_written", True)
    long = [{**at[0], "metadata": "x" * 4097}]
    told = await person("PUT", f"{member}/offsets", {"generation": 1, "offsets": long}, expect=413)
    assert (told["error"], "offset.metadata.max.bytes is 4096" in told["detail"]) == ("OFFSET_METADATA_TOO_LARGE", True)
    for wrong in ({}, {"generation": 1}, {"generation": "1", "offsets": at}, {"generation": 1, "offsets": [{}]}):
        assert (await person("PUT", f"{member}/offsets", wrong, expect=422))["errors"]
    await person("POST", f"{member}/heartbeat", {}, expect=422)
    again = await person("POST", f"{group}/members", join_body(topic, group_instance_id="one"))
    assert again["member_id"] != joined["member_id"]
    fenced = {"generation": again["generation"], "group_instance_id": "one"}
    told = await person("POST", f"{member}/heartbeat", fenced, expect=409)
    assert (told["error"], "stop this one" in told["detail"]) == ("FENCED_INSTANCE_ID", True)
    assert [each["committed"] for each in (await person("GET", group))["offsets"]] == [None, None]
    empty = await person("GET", "/v1/groups//lag", expect=422)
    assert (empty["error"], "give it one" in empty["detail"]) == ("INVALID_GROUP_ID", True)
    assert (await person("GET", "/v1/groups?state=Stabel", expect=400))["errors"]


async def test_without_forwarding_the_coordinator_is_named(person: Person):
    """2.3: 421 with the right broker; msgpack says the same as JSON."""
    topic = await filled(person, "where")
    await person("PUT", "/v1/groups/where/offsets", {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]})
    coordinator = (await person("GET", "/v1/groups/where"))["coordinator"]
    told = []
    for url in person.urls:
        async with person.http.get(
            f"{url}/v1/groups/where?forward=never", headers={"Accept": "application/msgpack"}
        ) as response:
            told.append((response.status, msgpack.unpackb(await response.read()), response.headers["Mk-Served-By"]))
    assert sorted(status for status, _, _ in told) == [200, 421, 421]
    for status, answer, _ in told:
        if status == 421:
            assert (answer["error"], answer["coordinator"]) == ("NOT_COORDINATOR", coordinator)


async def test_a_group_lives_over_json_rpc(cluster: LocalCluster):
    """Bytes are base64 both ways: DescribeGroups of a live group and SyncGroup were 500 on 62e114e."""
    async with aiohttp.ClientSession() as http:

        async def rpc(api: str, /, **members: Any) -> dict[str, Any]:
            for _ in range(PATIENCE_S * 5):
                async with http.post(f"http://{address}/rpc/{api}", json=members) as answer:
                    assert answer.status == 200
                    told: dict[str, Any] = await answer.json()
                if told.get("error_code") not in (14, 15, 16):  # the coordinator is loading or being elected
                    break
                await asyncio.sleep(0.2)
            return told

        address = cluster.bootstrap.split(",")[0]
        for _ in range(PATIENCE_S * 5):
            [found] = (await rpc("FindCoordinator", keys=["json"]))["coordinators"]
            if not found.get("error_code"):
                break
            await asyncio.sleep(0.2)
        address = f"{found['host']}:{found['port']}"
        wish = {
            "group_id": "json",
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocols": [{"name": "range", "metadata": "AAH/"}],
        }
        member = (await rpc("JoinGroup", **wish))["member_id"]
        joined = await rpc("JoinGroup", **wish, member_id=member)
        assert joined["members"][0]["metadata"] == "AAH/"
        mine = {"member_id": member, "assignment": "/wA="}
        synced = await rpc(
            "SyncGroup", group_id="json", generation_id=joined["generation_id"], member_id=member, assignments=[mine]
        )
        assert synced["assignment"] == "/wA="
        [group] = (await rpc("DescribeGroups", groups=["json"]))["groups"]
        assert [(each["metadata"], each["assignment"]) for each in group["members"]] == [("AAH/", "/wA=")]
