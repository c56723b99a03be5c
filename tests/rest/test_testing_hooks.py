"""Testing routes through any broker: who serves, who may, and what a failure means (PAGE M6, issue 19)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from minikafka.broker.access import Access
from minikafka.config import BrokerConfig
from minikafka.quorum.image import MetadataImage, acl_record
from minikafka.rest import testing_hooks
from minikafka.rest.routes import TESTING_ROUTES
from minikafka.types import ANONYMOUS
from minikafka.wire import messages as m
from minikafka.wire.acls import CLUSTER_NAME, Acl, AclOperation, ResourceType
from tests.rest.fake_brokers import FakeBroker, FakeCluster
from tests.rest.test_doors import Answer, Curl

CUT = {"kind": "cut", "link": "2>1", "api": "Fetch"}


@pytest.fixture
async def curl() -> AsyncIterator[Curl]:
    """Three brokers with test hooks, each with faults of its own."""
    async with FakeCluster(3, testing_endpoints_enable=True) as cluster:
        curl = Curl(cluster)
        async with curl.session:
            yield curl


def forwarded(broker: FakeBroker) -> list[m.RunTestHookRequest]:
    return [each for each in broker.asked if isinstance(each, m.RunTestHookRequest)]


def active(curl: Curl, node: int) -> list[int]:
    instruments = curl.cluster.brokers[node].instruments
    assert instruments is not None
    return list(instruments.faults.active)


async def test_fault_is_set_listed_and_healed_at_the_broker_that_the_request_names(curl: Curl):
    """M6: broker 1 forwards to broker 2, whose own number the fault has; broker 1 has none."""
    response = await curl.post("/v1/faults?broker=2", CUT, headers={"User-Agent": "curl/8.14.1"})
    assert response.json["set_by"] == "curl 8.14.1"
    assert (response.status, response.json["broker"], response.json["id"]) == (201, 2, 1)
    assert response.headers["Location"] == "/v1/faults/1?broker=2"
    assert response.headers["Mk-Served-By"] == "2"
    assert (active(curl, 1), active(curl, 2)) == ([], [1])
    assert (await curl.get("/v1/faults?broker=2", at=3)).json["faults"][0]["link"] == "2>1"
    assert (await curl.get("/v1/faults/1?broker=2")).json["kind"] == "cut"
    assert (await curl.get("/v1/faults/1")).problem(404, "INVALID_REQUEST")["detail"].startswith("broker 1 has no")
    assert not (await curl("DELETE", "/v1/faults/1?broker=2", at=3)).json["active"]
    assert active(curl, 2) == []


async def test_broker_without_metadata_takes_faults_of_links_to_voters():
    """Issue 15: a broker that had just restarted refused the next fault of `chaos run storm`, which ended the run."""
    voters = "1@127.0.0.1:9001,2@127.0.0.1:9002"
    async with FakeCluster(1, testing_endpoints_enable=True, controller_quorum_voters=voters) as cluster:
        curl = Curl(cluster)
        async with curl.session:
            assert list(cluster.brokers[1].image.brokers) == [1]
            assert (await curl.post("/v1/faults", {**CUT, "link": "1>2"})).json["link"] == "1>2"
            unknown = (await curl.post("/v1/faults", {**CUT, "link": "1>3"})).problem(422, "INVALID_REQUEST")
            assert "there is no broker 3, only 1, 2" in unknown["detail"]


async def test_all_brokers_are_listed_and_healed_and_silent_ones_are_named(curl: Curl):
    """M6: `broker=all` merges; a broker that is down is named, and its part is known not to have been done."""
    for node in (1, 2, 3):
        await curl.post(f"/v1/faults?broker={node}", {**CUT, "link": f"{node}>broker"})
    listed = (await curl.get("/v1/faults?broker=all")).json
    assert [(each["broker"], each["id"]) for each in listed["faults"]] == [(1, 1), (2, 1), (3, 1)]
    assert listed["no_answer"] == []
    await curl.cluster.brokers[3].network.close()
    healed = (await curl("DELETE", "/v1/faults?broker=all")).json
    assert healed["healed"] == 2
    [silent] = healed["no_answer"]
    assert (silent["broker"], silent["outcome"]) == (3, "not_written")
    assert "cannot be reached" in silent["detail"]
    assert (active(curl, 1), active(curl, 2)) == ([], [])


async def test_machine_and_actions_are_those_of_the_other_broker(curl: Curl):
    """M6: `/v1/machine` and `/v1/brokers/{id}/actions` are forwarded likewise; problems keep their pointers."""
    assert (await curl("PUT", "/v1/machine?broker=2", json={"sync_delay_ms": 5})).json["sync_delay_ms"] == 5
    assert (await curl.get("/v1/machine?broker=2", at=3)).json["sync_delay_ms"] == 5
    assert (await curl.get("/v1/machine")).json["sync_delay_ms"] == 0
    paused = (await curl.post("/v1/brokers/2/actions", {"do": "pause"})).json
    assert paused == {"node_id": 2, "do": "pause", "done": True, "faults": [1]}
    assert active(curl, 2) == [1]
    wrong = (await curl.post("/v1/brokers/2/actions", {"do": "kil"})).problem(422, "INVALID_REQUEST")
    assert wrong["errors"][0]["pointer"] == "/do"
    assert "broker 2: " in wrong["detail"]
    assert wrong["broker"]["id"] == 2
    ended = await curl.post("/v1/brokers/2/actions", {"do": "kill"})
    assert (ended.status, ended.json["done"]) == (202, False)
    (await curl.post("/v1/brokers/9/actions", {"do": "kill"})).problem(404, "BROKER_ID_NOT_REGISTERED")
    (await curl.get("/v1/faults?broker=three")).problem(400, "INVALID_REQUEST")


async def test_forward_never_names_the_broker_and_sends_nothing(curl: Curl):
    """As on other routes of `/v1`: 421 with the address."""
    refused = (await curl.post("/v1/faults?broker=2&forward=never", CUT)).problem(421, "INVALID_REQUEST")
    assert refused["broker"] == {"id": 2, "url": curl.cluster.brokers[2].url}
    assert forwarded(curl.cluster.brokers[2]) == []
    assert (await curl.post("/v1/faults?broker=1&forward=never", CUT)).status == 201


async def test_broker_that_cannot_be_reached_has_done_nothing(curl: Curl):
    """503, outcome not_written: a kill of a broker that is down is not reported as done."""
    await curl.cluster.brokers[2].network.close()
    refused = (await curl.post("/v1/brokers/2/actions", {"do": "kill"})).problem(503, "BROKER_NOT_AVAILABLE")
    assert refused["outcome"] == "not_written"
    assert "nothing was done there" in refused["detail"]


async def test_broker_that_does_not_answer_leaves_the_outcome_unknown(curl: Curl, monkeypatch: pytest.MonkeyPatch):
    """504 within the bound, sent once; a read that was lost changed nothing."""
    monkeypatch.setattr(testing_hooks, "FORWARD_SLACK_S", 0.05)
    target = curl.cluster.brokers[2]

    async def never(_request: m.RunTestHookRequest) -> m.RunTestHookResponse:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(target, "on_RunTestHook", never, raising=False)
    refused = (await curl.post("/v1/brokers/2/actions", {"do": "kill"})).problem(504, "NETWORK_EXCEPTION")
    assert refused["outcome"] == "unknown"
    assert "a broker that has ended cannot say so" in refused["detail"]
    assert len(forwarded(target)) == 1
    read = (await curl.get("/v1/faults?broker=2")).problem(504, "NETWORK_EXCEPTION")
    assert read["outcome"] == "not_written"


async def test_forwarded_request_is_never_forwarded_again(curl: Curl):
    """No loops: a broker that receives a request for another one refuses it."""
    request = m.RunTestHookRequest(broker_id=3, route="GET /v1/faults")
    answer = await curl.cluster.brokers[2].on_RunTestHook(request)
    assert (answer.status, answer.error_code) == (503, 8)
    assert "this is broker 2, not 3" in answer.error_message
    request = m.RunTestHookRequest(
        broker_id=2, route="POST /v1/brokers/{broker}/actions", path={"broker": "3"}, body=b'{"do": "kill"}'
    )
    answer = await curl.cluster.brokers[2].on_RunTestHook(request)
    assert (answer.status, answer.error_code) == (400, 42)
    assert "names broker 3" in answer.error_message
    assert forwarded(curl.cluster.brokers[3]) == []
    assert curl.cluster.brokers[2].acts == []


@pytest.mark.parametrize(
    ("route", "status"), [("GET /v1/topics", 400), ("GET /v1/wait", 400), ("POST /v1/faults", 400)]
)
async def test_what_is_no_forwarded_route_or_no_json_is_refused(curl: Curl, route: str, status: int):
    """The receiving broker reads a forwarded request as strictly as one of its own clients."""
    answer = await curl.cluster.brokers[2].on_RunTestHook(m.RunTestHookRequest(broker_id=2, route=route, body=b"{"))
    assert (answer.status, answer.outcome) == (status, "not_written")
    assert active(curl, 2) == []


def test_all_testing_routes_but_waits_and_events_are_forwarded():
    """M6: faults, machines and actions. What an action would mean, every broker's metadata tells."""
    named = {(route.method, route.path) for route in TESTING_ROUTES if testing_hooks.FORWARD in route.parameters}
    assert named == {
        (route.method, route.path)
        for route in TESTING_ROUTES
        if re.match(r"/v1/(faults|machine)", route.path) or route.method == "POST"
    }


# ---- permissions -----------------------------------------------------------------------------------------------------


def give(broker: FakeBroker, *principals: str) -> None:
    """Let exactly these users alter the cluster, as this broker knows it."""
    entries = [
        acl_record(
            str(at),
            Acl(
                resource_type=ResourceType.CLUSTER,
                resource_name=CLUSTER_NAME,
                principal=principal,
                operation=AclOperation.ALTER,
            ),
        )
        for at, principal in enumerate(principals)
    ]
    image = MetadataImage().replay_all(entries, 1, 1)
    broker.access = Access(BrokerConfig(), lambda: image, lambda _kind, /, **_facts: None, lambda: 0.0)


async def set_fault(curl: Curl) -> Answer:
    return await curl.post("/v1/faults?broker=2", CUT)


async def test_both_brokers_check_the_permission_of_the_first_sender():
    """M6: the forwarding broker's own rights never count, and either broker alone can refuse."""
    cluster = FakeCluster(2, testing_endpoints_enable=True)
    cluster.listener = "CLIENTS"
    async with cluster:
        curl = Curl(cluster)
        async with curl.session:
            first, second = cluster.brokers.values()
            give(first)
            give(second, ANONYMOUS)
            denied = (await set_fault(curl)).problem(403, "CLUSTER_AUTHORIZATION_FAILED")
            assert "broker" not in denied
            assert forwarded(second) == []

            give(first, ANONYMOUS)
            give(second, "User:broker-1")
            denied = (await set_fault(curl)).problem(403, "CLUSTER_AUTHORIZATION_FAILED")
            assert (denied["broker"]["id"], denied["outcome"]) == (2, "not_written")
            assert f"broker 2: {ANONYMOUS} has no permission" in denied["detail"]
            assert forwarded(second)[0].principal == ANONYMOUS
            assert active(curl, 2) == []

            give(second, ANONYMOUS)
            assert (await set_fault(curl)).status == 201
