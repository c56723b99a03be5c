"""The table of permissions of ``/v1``: each route has an entry, and denied requests get 403 before anything else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from minikafka.broker.access import Access
from minikafka.config import BrokerConfig
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.quorum.image import MetadataImage, acl_record
from minikafka.rest.permissions import NEEDS
from minikafka.rest.routes import ROUTES
from minikafka.types import ANONYMOUS, Address, Listener, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.acls import Acl, AclOperation, ResourceType
from tests.rest.fake_brokers import FakeCluster
from tests.rest.test_doors import Curl


def test_every_route_has_an_entry():
    """A route without one would fail for everybody."""
    assert NEEDS.keys() == {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize(("method", "path"), list(NEEDS), ids=str)
def test_a_route_that_names_a_resource_needs_something_of_it(method: str, path: str):
    """Otherwise its answer shows whether the resource exists."""
    needed = NEEDS[method, path]
    for parameter in ("topic", "group", "transactional_id"):
        assert needed is not None or f"{{{parameter}}}" not in path
    if needed is not None and needed.parameter:
        assert f"{{{needed.parameter}}}" in path


@pytest.fixture
async def curl() -> AsyncIterator[Curl]:
    """Two brokers with an authorizer: everybody may read and describe ``orders`` and nothing else."""
    cluster = FakeCluster(2)
    cluster.listener = "CLIENTS"
    async with cluster:
        cluster.add_topic("orders", [1, 2])
        cluster.add_topic("secret", [1, 2])
        entry = Acl(
            resource_type=ResourceType.TOPIC,
            resource_name="orders",
            principal=ANONYMOUS,
            operation=AclOperation.READ,
        )
        image = MetadataImage().replay_all([acl_record("a", entry)], 1, 1)
        for broker in cluster.brokers.values():
            broker.access = Access(BrokerConfig(), lambda: image, lambda _kind, /, **_facts: None, lambda: 0.0)  # type: ignore[arg-type]
        curl = Curl(cluster)
        async with curl.session:
            yield curl


async def test_a_denied_topic_looks_the_same_whether_it_exists_or_not(curl: Curl):
    """403 with the principal, the operation and the name that the client has sent."""
    for path in ("", "/partitions/0", "/partitions/0/records", "/records", "/configs"):
        there = (await curl.get(f"/v1/topics/secret{path}")).problem(403, "TOPIC_AUTHORIZATION_FAILED")
        missing = (await curl.get(f"/v1/topics/absent{path}")).problem(403, "TOPIC_AUTHORIZATION_FAILED")
        assert there["message"].replace("secret", "absent") == missing["message"]
        assert ANONYMOUS in there["message"]


async def test_allowed_reads_are_answered_by_any_broker(curl: Curl):
    """Partition 1 is led by broker 2, to which broker 1 forwards."""
    assert (await curl.get("/v1/topics/orders/partitions/1/records")).status == 200


async def test_lists_leave_denied_topics_out(curl: Curl):
    """Without an error."""
    assert [each["topic"] for each in (await curl.get("/v1/topics")).json["topics"]] == ["orders"]


async def test_counts_leave_denied_topics_out(curl: Curl, monkeypatch: pytest.MonkeyPatch):
    """They would tell how many topics there are, and which broker has them. A caller of all topics sees all counts."""
    counts = ("leader_count", "replica_count", "in_sync_count")

    async def counted() -> list[list[int]]:
        brokers = [*(await curl.get("/v1/brokers")).json["brokers"], (await curl.get("/v1/brokers/1")).json]
        return [[each[count] for count in counts] for each in brokers]

    orders = (ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)
    cluster = (ResourceType.CLUSTER, "kafka-cluster", AclOperation.DESCRIBE)
    allow(curl, monkeypatch, cluster, orders)
    few = await counted()
    allow(curl, monkeypatch, cluster, orders, (ResourceType.TOPIC, "secret", AclOperation.DESCRIBE))
    assert await counted() == [[2 * count for count in each] for each in few]
    assert sum(map(sum, few)) > 0


async def test_brokers_are_shown_at_the_listener_of_the_caller(curl: Curl, monkeypatch: pytest.MonkeyPatch):
    """As in Kafka's Metadata: the address of the brokers' own listener is not for clients."""
    made = curl.cluster.image

    def image() -> MetadataImage:
        found = made()
        at_clients = (Listener("CLIENTS", Address("kafka.example", 9093)),)
        brokers = {1: replace(found.brokers[1], listeners=at_clients), 2: found.brokers[2]}
        return replace(found, brokers=brokers)

    monkeypatch.setattr(curl.cluster, "image", image)
    clusters = (await curl.get("/v1/cluster")).json
    for shown in (clusters["brokers"][0], (await curl.get("/v1/brokers")).json["brokers"][0]):
        assert (shown["host"], shown["port"], shown["url"]) == ("kafka.example", 9093, "http://kafka.example:9093")
    partition = (await curl.get("/v1/topics/orders/partitions/0")).json
    ends = (await curl.get("/v1/topics/orders/partitions/0/offsets?at=latest")).json
    for shown in (clusters["controller"], partition["leader"], ends["leader"]):
        assert (shown["id"], shown["url"]) == (1, "http://kafka.example:9093")
    console = await curl.get("/", headers={"Accept": "text/html"})
    assert "http://kafka.example:9093" in console.headers["Content-Security-Policy"]
    assert "http://kafka.example:9093" in (await curl.get("/docs")).text


async def test_what_is_not_allowed_is_not_sent_to_a_broker(curl: Curl):
    """A produce to a topic that may only be read, a topic to be created, and a group."""
    refused = await curl.post("/v1/topics/orders/records", {"records": [{"value": "x"}]})
    refused.problem(403, "TOPIC_AUTHORIZATION_FAILED")
    (await curl.post("/v1/topics", {"name": "new"})).problem(403, "TOPIC_AUTHORIZATION_FAILED")
    (await curl.get("/v1/groups/g")).problem(403, "GROUP_AUTHORIZATION_FAILED")
    (await curl.get("/v1/controller/log")).problem(403, "CLUSTER_AUTHORIZATION_FAILED")
    refused = await curl.post("/v1/transactions", {"transactional_id": "t"})
    refused.problem(403, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    refused = await curl.post("/v1/transactions/t:commit", {"producer_id": 1, "producer_epoch": 0})
    refused.problem(403, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    asked = {type(each).__name__ for broker in curl.cluster.brokers.values() for each in broker.asked}
    assert not asked & {"ProduceRequest", "CreateTopicsRequest", "FindCoordinatorRequest"}


async def test_offsets_in_a_transaction_need_the_group_as_well(curl: Curl, monkeypatch: pytest.MonkeyPatch):
    """The group is in the body: its coordinator is not even looked for, which may create the topic of offsets."""
    entry = Acl(
        resource_type=ResourceType.TRANSACTIONAL_ID,
        resource_name="t",
        principal=ANONYMOUS,
        operation=AclOperation.WRITE,
    )
    image = MetadataImage().replay_all([acl_record("a", entry)], 1, 1)
    access = Access(BrokerConfig(), lambda: image, lambda _kind, /, **_facts: None, lambda: 0.0)  # type: ignore[arg-type]
    for broker in curl.cluster.brokers.values():
        monkeypatch.setattr(broker, "access", access)
    offsets = [{"topic": "orders", "partition": 0, "offset": 1}]
    body = {"producer_id": 1, "producer_epoch": 0, "group": "g", "offsets": offsets}
    (await curl("PUT", "/v1/transactions/t/offsets", json=body)).problem(403, "GROUP_AUTHORIZATION_FAILED")
    asked = {type(each).__name__ for broker in curl.cluster.brokers.values() for each in broker.asked}
    assert "FindCoordinatorRequest" not in asked


def allow(curl: Curl, monkeypatch: pytest.MonkeyPatch, *allowed: tuple[ResourceType, str, AclOperation]) -> None:
    """Everybody may do exactly this at all brokers."""
    entries = [
        Acl(resource_type=kind, resource_name=name, principal=ANONYMOUS, operation=operation)
        for kind, name, operation in allowed
    ]
    image = MetadataImage().replay_all([acl_record(str(n), each) for n, each in enumerate(entries)], len(entries), 1)
    access = Access(BrokerConfig(), lambda: image, lambda _kind, /, **_facts: None, lambda: 0.0)  # type: ignore[arg-type]
    for broker in curl.cluster.brokers.values():
        monkeypatch.setattr(broker, "access", access)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/groups/g/members", {"topics": ["{topic}"]}),
        ("POST", "/v1/groups/g/offsets:reset", {"to": "earliest", "topics": [{"topic": "{topic}", "partitions": [9]}]}),
        ("DELETE", "/v1/groups/g/offsets?topic={topic}", None),
        ("DELETE", "/v1/groups/g/offsets?topic={topic}&partition=0", None),
    ],
)
async def test_a_members_permissions_show_no_topic(
    curl: Curl, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: object
):
    """All permissions of a group, and none of its topics: a denied topic looks the same whether it exists or not."""
    allow(curl, monkeypatch, (ResourceType.GROUP, "g", AclOperation.ALL))
    messages = []
    for topic in ("secret", "absent"):
        sent = json.loads(json.dumps(body).replace("{topic}", topic))
        answer = await curl(method, path.replace("{topic}", topic), **({} if body is None else {"json": sent}))
        messages.append(answer.problem(403, "TOPIC_AUTHORIZATION_FAILED")["message"])
    assert messages[0].replace("secret", "absent") == messages[1]


@pytest.mark.parametrize(("may_see_it", "topics"), [(False, ["orders"]), (True, ["orders", "secret"])])
@pytest.mark.parametrize("path", ["", "/lag", "/offsets"])
async def test_a_groups_permission_shows_no_topic(
    curl: Curl, monkeypatch: pytest.MonkeyPatch, path: str, may_see_it: bool, topics: list[str]
):
    """As Kafka's OffsetFetch leaves them out: neither what is committed, nor what a member reads."""
    curl.cluster.add_topic("__consumer_offsets", [1])
    seen = [(ResourceType.TOPIC, name, AclOperation.DESCRIBE) for name in topics]
    allow(curl, monkeypatch, (ResourceType.GROUP, "g", AclOperation.DESCRIBE), *seen)
    partitions = (TopicPartition("orders", 0), TopicPartition("secret", 0), TopicPartition("secret", 1))
    described = g.DescribedMember(
        member_id="m",
        metadata=Subscription(topics=("orders", "secret")).packed(),
        assignment=Assignment(partitions=partitions).packed(),
    )

    async def groups(_request: g.DescribeGroupsRequest) -> g.DescribeGroupsResponse:
        found = g.DescribedGroup(group_id="g", state="Stable", protocol_type="consumer", members=(described,))
        return g.DescribeGroupsResponse(groups=(found,))

    async def offsets(_request: g.OffsetFetchRequest) -> g.OffsetFetchResponse:
        found = (g.FetchedOffset(topic=each.topic, partition=each.partition, offset=1) for each in partitions[:2])
        return g.OffsetFetchResponse(partitions=tuple(found))

    for broker in curl.cluster.brokers.values():
        monkeypatch.setattr(broker, "on_DescribeGroups", groups, raising=False)
        monkeypatch.setattr(broker, "on_OffsetFetch", offsets, raising=False)
    answer = await curl.get(f"/v1/groups/g{path}")
    assert answer.status == 200
    assert ("secret" in json.dumps(answer.json)) is may_see_it
    rows = answer.json["partitions" if path == "/lag" else "offsets"]
    assert sorted({each["topic"] for each in rows}) == topics


async def test_the_leader_of_a_group_learns_nothing_of_topics_that_it_may_not_describe(
    curl: Curl, monkeypatch: pytest.MonkeyPatch
):
    """What its own assignment says was dealt is the client's word: the heartbeat compared it with the topic's count."""
    curl.cluster.add_topic("__consumer_offsets", [1])
    allow(curl, monkeypatch, (ResourceType.GROUP, "g", AclOperation.READ))

    dealt: dict[str, int] = {}

    async def lives(_request: g.HeartbeatRequest) -> g.HeartbeatResponse:
        return g.HeartbeatResponse()

    async def groups(_request: g.DescribeGroupsRequest) -> g.DescribeGroupsResponse:
        described = g.DescribedMember(
            member_id="m", assignment=Assignment(partitions=(), user_data=json.dumps(dealt).encode()).packed()
        )
        found = g.DescribedGroup(
            group_id="g", state="Stable", generation_id=1, leader="m", protocol_type="consumer", members=(described,)
        )
        return g.DescribeGroupsResponse(groups=(found,))

    for broker in curl.cluster.brokers.values():
        monkeypatch.setattr(broker, "on_Heartbeat", lives, raising=False)
        monkeypatch.setattr(broker, "on_DescribeGroups", groups, raising=False)
    messages = []
    for topic in ("secret", "absent"):
        dealt.clear()
        dealt[topic] = -1
        answer = await curl.post("/v1/groups/g/members/m/heartbeat", {"generation": 1})
        messages.append(answer.problem(409, "REBALANCE_IN_PROGRESS")["message"])
    assert messages[0].replace("secret", "absent") == messages[1]
    assert messages[1].startswith("absent has 0 partitions")


async def test_health_and_addresses_are_free(curl: Curl):
    """Supervisors and clients need them before they have any permission."""
    for path in ("/healthz", "/readyz", "/v1/cluster", "/openapi.json"):
        assert (await curl.get(path)).status == 200


async def test_live_streams_show_only_topics_that_the_client_may_describe(curl: Curl):
    """A denied partition gets 403 whether it exists or not; the cluster's state leaves denied topics out."""
    there = (await curl.get("/v1/live?scope=secret-0")).problem(403, "TOPIC_AUTHORIZATION_FAILED")
    missing = (await curl.get("/v1/live?scope=absent-0")).problem(403, "TOPIC_AUTHORIZATION_FAILED")
    assert there["message"].replace("secret", "absent") == missing["message"]
    async with curl.session.get(f"{curl.cluster.brokers[1].url}/v1/live") as response:
        async for line in response.content:
            if line.startswith(b'data: {"summary"'):
                break
        state = json.loads(line.removeprefix(b"data: "))
    assert list(state["topics"]) == ["orders"]
    assert "Partitions: 2;" in state["summary"]


_PRODUCER = m.ActiveProducer(producer_id=4000, producer_epoch=3, last_sequence=6, last_offset=41, last_timestamp=1)


@pytest.mark.parametrize(("operation", "shown"), [(AclOperation.DESCRIBE, 0), (AclOperation.READ, 1)])
async def test_a_live_partition_shows_its_producers_to_readers_only(
    curl: Curl, monkeypatch: pytest.MonkeyPatch, operation: AclOperation, shown: int
):
    """As DescribeProducers, which needs READ of the topic."""
    allow(curl, monkeypatch, (ResourceType.TOPIC, "orders", operation))
    for broker in curl.cluster.brokers.values():
        broker.producers = (_PRODUCER,)
    async with curl.session.get(f"{curl.cluster.brokers[1].url}/v1/live?scope=orders-0") as response:
        async for line in response.content:
            if line.startswith(b'data: {"summary"'):
                break
        state = json.loads(line.removeprefix(b"data: "))
    assert (len(state["producers"]), state["producer_count"]) == (shown, shown)
