"""A request that fails as a whole: each API and version says so where its clients look for it."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.errors import (
    ClusterAuthorizationFailed,
    CoordinatorLoadInProgress,
    GroupAuthorizationFailed,
    NotController,
    ProtocolError,
    ReplicaNotAvailable,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from minikafka.types import NO_NODE
from minikafka.wire.apis import BY_NAME
from minikafka.wire.codec import error_response
from minikafka.wire.kafka.codec import Message, decode, encode
from minikafka.wire.kafka.offer import OFFERS
from minikafka.wire.kafka.schema import api_named
from minikafka.wire.kafka.translate.common import Exchange
from minikafka.wire.kafka.translate.topics import PARTITIONS_MAX
from minikafka.wire.messages import (
    CreatedTopic,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsResponse,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicsResponse,
    MetadataResponse,
    MetadataTopic,
)
from tests.kafka.client import errors_in, fitted
from tests.kafka.samples import TOPIC_ID, Directory, requests

WITHOUT_FIELD = {("ElectLeaders", 0), ("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
"""These requests name nothing, and their responses have no error of their own: clients see an empty answer, as
from Kafka.
"""

VERSIONS = [(offer.name, version) for offer in OFFERS.values() for version in range(offer.first, offer.last + 1)]


def refused(name: str, version: int, error: Any, message: Message | None = None) -> Message:
    """The response, after a way through the codec."""
    (offer,) = (each for each in OFFERS.values() if each.name == name)
    asked = requests(TOPIC_ID)[name] if message is None else message
    body = b"".join(encode(name, "request", version, fitted(api_named(name).request, asked)))
    read = decode(name, "request", version, memoryview(body), 0)
    exchange = Exchange(version, Directory())
    request = offer.request(read, exchange)
    failed = error_response(BY_NAME[offer.api], error)
    response = offer.response(read, [failed for _ in request] if isinstance(request, list) else failed, exchange)
    return decode(name, "response", version, memoryview(b"".join(encode(name, "response", version, response))), 0)


def answered(name: str, version: int, message: Message, response: Any) -> Message:
    """The message for a response of ours."""
    (offer,) = (each for each in OFFERS.values() if each.name == name)
    asked = {**requests(TOPIC_ID)[name], **message}
    body = b"".join(encode(name, "request", version, fitted(api_named(name).request, asked)))
    read = decode(name, "request", version, memoryview(body), 0)
    exchange = Exchange(version, Directory())
    offer.request(read, exchange)
    return offer.response(read, response, exchange)


@pytest.mark.parametrize("name, version", VERSIONS, ids=str)
def test_every_version_has_a_place_for_the_error_of_a_request(name: str, version: int):
    """At the top, or repeated for every topic, partition, group or resource of the request."""
    codes = errors_in(refused(name, version, NotController("not me")))
    assert (NotController.code in codes) is ((name, version) not in WITHOUT_FIELD)


@pytest.mark.parametrize("name, version", VERSIONS, ids=str)
def test_every_version_has_room_for_the_longest_sentence(name: str, version: int):
    """Sentences repeat names of the request, which are nearly as long as a text of a response may be."""
    codes = errors_in(refused(name, version, NotController("\N{EURO SIGN}" * 32_767 + " is not the controller")))
    assert (NotController.code in codes) is ((name, version) not in WITHOUT_FIELD)


@pytest.mark.parametrize("version", [0, 4, 12, 13])
@pytest.mark.parametrize("topics", [[{"name": "t", "topic_id": TOPIC_ID}], None])
def test_refused_metadata_still_names_the_brokers(version: int, topics: Any):
    """Clients ignore a Metadata response without brokers, and with it the errors of its topics."""
    answer = refused("Metadata", version, ReplicaNotAvailable("none"), {"topics": topics if version or topics else []})
    assert [(each["node_id"], each["host"], each["port"]) for each in answer["brokers"]] == [(1, "host", 9092)]
    assert [(each["name"], each["error_code"]) for each in answer["topics"]] == [("t", ReplicaNotAvailable.code)]


@pytest.mark.parametrize("name", ["Metadata", "DescribeTopicPartitions"])
def test_a_refused_request_for_everything_names_what_the_client_may_describe(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """The error stands at each topic, and topics that ACLs hide stay hidden."""
    monkeypatch.setattr(Directory, "topics", lambda _: ["hidden", "t"])
    monkeypatch.setattr(Directory, "operations", lambda _self, _kind, topic: 0 if topic == "hidden" else 1 << 8)
    answer = refused(
        name,
        12 if name == "Metadata" else 0,
        ReplicaNotAvailable("none"),
        {**requests(TOPIC_ID)[name], "topics": None if name == "Metadata" else []},
    )
    assert [each["name"] for each in answer["topics"]] == ["t"]


def test_a_refused_request_by_id_does_not_show_the_name():
    """Whatever the request failed for, whether the client may describe the topic is not known."""
    topics = [{"name": None, "topic_id": TOPIC_ID}]
    answer = refused("Metadata", 12, ReplicaNotAvailable("none"), {**requests(TOPIC_ID)["Metadata"], "topics": topics})
    assert [(each["name"], each["topic_id"], each["error_code"]) for each in answer["topics"]] == [
        (None, TOPIC_ID, ReplicaNotAvailable.code)
    ]


@pytest.mark.parametrize("by_id", [True, False])
def test_a_denied_topic_does_not_show_the_name_of_its_id(*, by_id: bool):
    """In Metadata and DeleteTopics. A client that names the topic gets the name back."""
    named = {"name": None if by_id else "t", "topic_id": TOPIC_ID if by_id else bytes(16)}
    denied = {"error_code": TopicAuthorizationFailed.code, "error_message": "t is denied"}
    found = answered("Metadata", 13, {"topics": [named]}, MetadataResponse(topics=(MetadataTopic(name="t", **denied),)))
    deleted = answered(
        "DeleteTopics", 6, {"topics": [named]}, DeleteTopicsResponse(topics=(DeletedTopic(name="t", **denied),))
    )
    for each in (*found["topics"], *deleted["responses"]):
        assert each["error_code"] == TopicAuthorizationFailed.code
        assert (each["name"], each["topic_id"] == TOPIC_ID) == (
            (None, True) if by_id else ("t", each["topic_id"] == TOPIC_ID)
        )
        assert "t is denied" not in str(each) or not by_id


def test_an_election_of_named_partitions_refused_in_version_0():
    """There is no error of the request before version 1."""
    named = {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0, 3]}], "timeout_ms": 9}
    (topic,) = refused("ElectLeaders", 0, NotController("not me"), named)["replica_election_results"]
    found = [(each["partition_id"], each["error_code"]) for each in topic["partition_result"]]
    assert (topic["topic"], found) == ("t", [(0, 41), (3, 41)])


def test_a_refused_reassignment_names_the_partitions():
    """Java's admin client takes the error of each from there; without them it finds the response malformed."""
    answer = refused("AlterPartitionReassignments", 1, ClusterAuthorizationFailed("denied"))
    rows = [(each["name"], row["error_code"]) for each in answer["responses"] for row in each["partitions"]]
    assert (answer["error_code"], rows) == (31, [("t", 31)])


@pytest.mark.parametrize(
    "name, version, denial",
    [("OffsetCommit", 10, GroupAuthorizationFailed), ("Produce", 13, TransactionalIdAuthorizationFailed)],
)
def test_a_denial_of_the_request_comes_before_an_unknown_id(name: str, version: int, denial: type[ProtocolError]):
    """As in Kafka: a client that is denied the group does not look for a topic. Other errors come behind it."""
    asked = requests(b"?" * 16)[name]
    assert errors_in(refused(name, version, denial("denied"), asked)) == {denial.code}
    assert errors_in(refused(name, version, CoordinatorLoadInProgress("wait"), asked)) == {100}


def test_settings_of_a_created_topic_that_are_hidden_have_an_error():
    """KIP-525. Java's admin client says otherwise that the broker is too old."""
    response = CreateTopicsResponse(topics=(CreatedTopic(name="made"),))
    codes = [
        answered("CreateTopics", version, {}, response)["topics"][0]["topic_config_error_code"] for version in (4, 5, 7)
    ]
    assert codes == [0, 29, 29]


def test_a_page_of_partitions_has_the_denied_topics():
    """As in Kafka: they count for no page."""
    denied = DescribedTopic(topic="z", error_code=TopicAuthorizationFailed.code)
    partition = DescribedPartition(
        partition=0, leader=1, leader_epoch=0, partition_epoch=0, controller_epoch=0, replicas=(1,), isr=(1,)
    )
    response = DescribeTopicsResponse(topics=(DescribedTopic(topic="t", partitions=(partition,) * 2), denied))
    asked: Message = {"topics": [{"name": "t"}, {"name": "z"}], "response_partition_limit": 1, "cursor": None}
    answer = answered("DescribeTopicPartitions", 0, asked, response)
    found = [(each["name"], each["error_code"], len(each["partitions"])) for each in answer["topics"]]
    assert found == [("t", 0, 1), ("z", 29, 0)]
    assert answer["next_cursor"] == {"topic_name": "t", "partition_index": 1}


@pytest.mark.parametrize("leader", [NO_NODE, 7])
def test_a_partition_without_a_living_leader_is_described_without_an_error(leader: int):
    """As in Kafka, other than in Metadata: a client that asks why it has none needs its replicas."""
    partition = DescribedPartition(
        partition=0,
        leader=leader,
        leader_epoch=3,
        partition_epoch=0,
        controller_epoch=0,
        replicas=(7,),
        isr=(),
        elr=(7,),
    )
    topic = DescribedTopic(topic="t", partitions=(partition,))
    asked: Message = {"topics": [{"name": "t"}], "response_partition_limit": 1, "cursor": None}
    [found] = answered("DescribeTopicPartitions", 0, asked, DescribeTopicsResponse(topics=(topic,)))["topics"]
    assert [(each["error_code"], each["leader_id"]) for each in found["partitions"]] == [(0, NO_NODE)]
    assert found["partitions"][0]["eligible_leader_replicas"] == (7,)


@pytest.mark.parametrize(("limit", "count"), [(-1, 1), (0, 1), (3, 3), (10**6, PARTITIONS_MAX)])
def test_a_page_of_partitions_has_one_at_least_and_a_bounded_number(limit: int, count: int):
    """KIP-966: whatever the client asks for. A page without partitions would be asked for again and again."""
    partition = DescribedPartition(
        partition=0, leader=1, leader_epoch=0, partition_epoch=0, controller_epoch=0, replicas=(1,), isr=(1,)
    )
    topic = DescribedTopic(topic="t", partitions=(partition,) * (PARTITIONS_MAX + 1))
    asked: Message = {"topics": [{"name": "t"}], "response_partition_limit": limit, "cursor": None}
    answer = answered("DescribeTopicPartitions", 0, asked, DescribeTopicsResponse(topics=(topic,)))
    assert [len(each["partitions"]) for each in answer["topics"]] == [count]
    assert answer["next_cursor"] == {"topic_name": "t", "partition_index": count}
