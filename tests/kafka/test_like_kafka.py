"""Answers at the edge, as Apache Kafka 4.3.1 gives them: ``tests/foreign/test_beside_kafka.py`` found where ours differed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from minikafka import LocalCluster
from minikafka.wire.kafka.codec import Message
from minikafka.wire.records import BatchBuilder
from tests.kafka.client import RawClient, errors_in
from tests.kafka.samples import EMPTY_ID

pytestmark = [pytest.mark.e2e]

UNKNOWN_TOPIC, INVALID_TOPIC, INCONSISTENT_PROTOCOL, INVALID_REQUEST, POLICY_VIOLATION = 3, 17, 23, 42, 44
UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH = 25, 113
INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS, MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 48, 51, 114, 115
NOT_YET = {14, 15, 16, CONCURRENT_TRANSACTIONS}
"""A coordinator that loads, and a transaction that ends."""

UNSUPPORTED_COMPRESSION = 76

TOPIC = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as made:
        made.sync.create_topic("t", partitions=2)
        made.sync.create_topic("compacted", partitions=1, config={"cleanup.policy": "compact"})
        yield made


@pytest_asyncio.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[RawClient]:
    host, _, port = cluster.bootstrap.partition(":")
    made = await RawClient.at(host, int(port))
    for kind in (0, 1):  # has the coordinators' topics created
        await settled(made, "FindCoordinator", 4, {"key_type": kind, "coordinator_keys": ["x"]})
    yield made
    await made.close()


async def settled(client: RawClient, name: str, version: int, message: Message) -> Message:
    """The answer, once the coordinator is ready."""
    async with asyncio.timeout(30):
        while True:
            answer = await client.call(name, version, message)
            if not errors_in(answer) & NOT_YET:
                return answer
            await asyncio.sleep(0.02)


async def producer(client: RawClient, **more: object) -> tuple[str, Message]:
    """A transactional id, and its producer id and epoch as members of a request."""
    name = uuid.uuid4().hex
    made = await settled(
        client,
        "InitProducerId",
        4,
        {"transactional_id": name, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1, **more},
    )
    return name, {"producer_id": made["producer_id"], "producer_epoch": made["producer_epoch"]}


@pytest.mark.parametrize("transactional_id", [None, "x"])
@pytest.mark.parametrize("known", [{"producer_id": 5}, {"producer_epoch": 5}], ids=str)
async def test_a_producer_names_id_and_epoch_or_neither(
    client: RawClient, transactional_id: str | None, known: Message
):
    """One of them says nothing; Kafka refuses it before anything else."""
    request = {"producer_id": -1, "producer_epoch": -1, "transaction_timeout_ms": 1000, **known}
    answer = await client.call("InitProducerId", 4, {"transactional_id": transactional_id, **request})
    assert answer["error_code"] == INVALID_REQUEST


@pytest.mark.parametrize("names_itself", [True, False])
async def test_a_producer_comes_back_to_its_open_transaction(client: RawClient, *, names_itself: bool):
    """Its transaction is aborted, and the repeated request succeeds: with the epoch of the abort for the producer that
    says who it is, with the next one for a newcomer.
    """
    name, known = await producer(client)
    v3 = {f"v3_and_below_{key}": value for key, value in {"transactional_id": name, **known}.items()}
    topics = [{"name": "t", "partitions": [0]}]
    assert errors_in(await settled(client, "AddPartitionsToTxn", 3, {**v3, "v3_and_below_topics": topics})) == {0}
    asked = known if names_itself else {"producer_id": -1, "producer_epoch": -1}
    request = {"transactional_id": name, "transaction_timeout_ms": 60_000, **asked}
    assert (await client.call("InitProducerId", 4, request))["error_code"] == CONCURRENT_TRANSACTIONS
    again = await settled(client, "InitProducerId", 4, request)
    assert (again["error_code"], again["producer_id"]) == (0, known["producer_id"])
    assert again["producer_epoch"] == known["producer_epoch"] + (1 if names_itself else 2)


async def test_offsets_of_no_partition_begin_no_transaction(client: RawClient):
    """TxnOffsetCommit adds the group's partition to the transaction, unless nothing is left to commit."""
    name, known = await producer(client)
    offset = {"partition_index": 9, "committed_offset": 1, "committed_metadata": None}
    commit = {"transactional_id": name, "group_id": "g", **known, "topics": [{"name": "t", "partitions": [offset]}]}
    assert errors_in(await settled(client, "TxnOffsetCommit", 5, commit)) == {UNKNOWN_TOPIC}
    ended = await settled(client, "EndTxn", 5, {"transactional_id": name, **known, "committed": True})
    assert ended["error_code"] == INVALID_TXN_STATE


async def test_records_of_a_compacted_topic_are_not_deleted(client: RawClient):
    """The last record of each key is what such a topic is for."""
    partitions = [{"partition_index": 0, "offset": 0}]
    topics = [{"name": "compacted", "partitions": partitions}, {"name": "t", "partitions": partitions}]
    answer = await client.call("DeleteRecords", 2, {"topics": topics, "timeout_ms": 9000})
    assert [each["partitions"][0]["error_code"] for each in answer["topics"]] == [POLICY_VIOLATION, 0]


async def test_offsets_of_partitions_that_do_not_exist_are_not_deleted(client: RawClient):
    """Each partition has its own code."""
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None, "committed_leader_epoch": -1}
    commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    assert errors_in(
        await settled(client, "OffsetCommit", 8, {**commit, "topics": [{"name": "t", "partitions": [offset]}]})
    ) == {0}
    topics = [
        {"name": "t", "partitions": [{"partition_index": 7}, {"partition_index": 0}]},
        {"name": "compacted", "partitions": []},
    ]
    answer = await client.call("OffsetDelete", 0, {"group_id": "g", "topics": topics})
    (topic,) = answer["topics"]
    assert [each["error_code"] for each in topic["partitions"]] == [UNKNOWN_TOPIC, 0]


async def test_a_member_names_its_protocol_when_it_syncs(client: RawClient):
    """KIP-559: from version 5 on."""
    sync = {"group_id": "g", "generation_id": 1, "member_id": "m", "protocol_type": None, "protocol_name": None}
    assert (await settled(client, "SyncGroup", 5, sync))["error_code"] == INCONSISTENT_PROTOCOL
    assert (await settled(client, "SyncGroup", 4, sync))["error_code"] == 25


@pytest.mark.parametrize("keys", [None, []])
async def test_no_names_stand_for_all_settings(client: RawClient, keys: list[str] | None):
    """An empty list says the same as none."""
    resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": keys}
    answer = await client.call("DescribeConfigs", 4, {"resources": [resource]})
    assert "retention.ms" in {each["name"] for each in answer["results"][0]["configs"]}


async def test_settings_of_a_topic_that_cannot_be(client: RawClient):
    """The name is invalid, whether or not there are topics."""
    resource = {"resource_type": TOPIC, "resource_name": "a/b", "configuration_keys": None}
    assert errors_in(await client.call("DescribeConfigs", 4, {"resources": [resource]})) == {INVALID_TOPIC}


async def test_a_setting_without_a_value_refuses_its_topic_only(client: RawClient):
    """The other topics of the request are created, unless they have the same name."""

    def topic(name: str, value: str | None) -> Message:
        configs = [{"name": "retention.ms", "value": value}]
        return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}

    topics = [topic("empty", None), topic("whole", "1000"), topic("empty", "1000")]
    asked = {"topics": topics, "timeout_ms": 10_000, "validate_only": False}
    answer = await settled(client, "CreateTopics", 7, asked)
    found = {each["name"]: (each["error_code"], each["error_message"]) for each in answer["topics"]}
    assert found == {"empty": (40, "retention.ms of topic 'empty' has no value"), "whole": (0, None)}
    assert len(answer["topics"]) == 2


async def test_unknown_elections_are_refused_at_each_partition(client: RawClient):
    """Clients look there."""
    asked = {"election_type": 2, "topic_partitions": [{"topic": "t", "partitions": [0, 1]}], "timeout_ms": 9000}
    answer = await client.call("ElectLeaders", 2, asked)
    [topic] = answer["replica_election_results"]
    assert [each["error_code"] for each in topic["partition_result"]] == [INVALID_REQUEST] * 2


@pytest.mark.parametrize("kind, code", [(1, 0), (2, MISMATCHED_ENDPOINT_TYPE), (3, UNSUPPORTED_ENDPOINT_TYPE)])
async def test_a_broker_describes_brokers_only(client: RawClient, kind: int, code: int):
    """KIP-919: a client that means controllers has come to the wrong listener."""
    answer = await client.call("DescribeCluster", 2, {"endpoint_type": kind})
    assert (answer["error_code"], answer["endpoint_type"]) == (code, 1)


async def test_topics_are_deleted_by_name_or_by_id(client: RawClient):
    """Neither, both, and the same topic twice say nothing certain: nothing is deleted."""
    named = await client.call("Metadata", 12, {"topics": [{"name": "t", "topic_id": EMPTY_ID}]})
    topic_id = named["topics"][0]["topic_id"]
    asked = [{"name": "t", "topic_id": topic_id}, *[{"name": None, "topic_id": EMPTY_ID}] * 2]
    answer = await client.call("DeleteTopics", 6, {"topics": asked, "timeout_ms": 9000})
    assert [each["error_code"] for each in answer["responses"]] == [INVALID_REQUEST] * 3
    answer = await client.call("DeleteTopics", 5, {"topic_names": ["t", "t"], "timeout_ms": 9000})
    assert [(each["name"], each["error_code"]) for each in answer["responses"]] == [("t", INVALID_REQUEST)]
    assert errors_in(await client.call("Metadata", 12, {"topics": [{"name": "t", "topic_id": EMPTY_ID}]})) == {0}


@pytest.mark.parametrize(
    "cursor", [{"topic_name": "t", "partition_index": -1}, {"topic_name": "s", "partition_index": 0}]
)
async def test_a_cursor_is_a_partition_of_a_topic_of_the_request(client: RawClient, cursor: Message):
    """Every topic of the request has the error."""
    asked = {"topics": [{"name": "t"}], "response_partition_limit": 5, "cursor": cursor}
    assert errors_in(await client.call("DescribeTopicPartitions", 0, asked)) == {INVALID_REQUEST}


async def heartbeat(client: RawClient, group: str, **fields: object) -> Message:
    """The answer to a ConsumerGroupHeartbeat that joins, unless ``fields`` say otherwise."""
    message = {"group_id": group, "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000, **fields}
    joining = {"subscribed_topic_names": ["t"], "topic_partitions": []} if not message["member_epoch"] else {}
    return await settled(client, "ConsumerGroupHeartbeat", 1, {**joining, **message})


async def test_a_heartbeat_without_a_group_is_an_invalid_request(client: RawClient):
    """Kafka's INVALID_GROUP_ID is for the classic protocol."""
    answer = await heartbeat(client, "")
    assert answer["error_code"] == INVALID_REQUEST


async def test_a_member_of_the_consumer_protocol_may_have_no_time_to_revoke(client: RawClient):
    """Kafka refuses a join without rebalance timeout (-1), but not one of 0."""
    group = uuid.uuid4().hex
    codes = [(await heartbeat(client, group, rebalance_timeout_ms=each))["error_code"] for each in (-1, 0)]
    assert codes == [INVALID_REQUEST, 0]


@pytest.mark.parametrize(("member_id", "code"), [(None, 0), ("m", STALE_MEMBER_EPOCH), ("x", UNKNOWN_MEMBER_ID)])
async def test_a_client_that_names_itself_to_fetch_offsets_must_be_a_member(
    client: RawClient, member_id: str, code: int
):
    """OffsetFetch 9 of a group of the consumer protocol, also with epoch -1."""
    group = uuid.uuid4().hex
    await heartbeat(client, group)
    asked = {"group_id": group, "member_id": member_id, "member_epoch": -1, "topics": None}
    (found,) = (await client.call("OffsetFetch", 9, {"groups": [asked], "require_stable": False}))["groups"]
    assert found["error_code"] == code


async def test_a_member_is_described_with_what_it_has_yet_to_revoke(client: RawClient):
    """ConsumerGroupDescribe; and a member without a regular expression has an empty one."""
    group = uuid.uuid4().hex
    joined = await heartbeat(client, group)
    await heartbeat(
        client,
        group,
        member_epoch=joined["member_epoch"],
        topic_partitions=joined["assignment"]["topic_partitions"],
        subscribed_topic_names=["compacted"],
    )
    (found,) = (await client.call("ConsumerGroupDescribe", 1, {"group_ids": [group]}))["groups"]
    (member,) = found["members"]
    described = [
        {each["topic_name"] for each in member[field]["topic_partitions"]}
        for field in ("assignment", "target_assignment")
    ]
    assert (member["subscribed_topic_regex"], described) == ("", [{"t"}, {"compacted"}])


@pytest.mark.parametrize("names", [["t"], ["__cluster_metadata", "t"], ["__cluster_metadata"] * 2])
async def test_only_the_metadata_partition_alone_has_its_quorum_described(client: RawClient, names: list[str]):
    """Whatever else a request names: no partition of it is described, and no node."""
    topics = [{"topic_name": name, "partitions": [{"partition_index": 0}]} for name in names]
    answer = await client.call("DescribeQuorum", 2, {"topics": topics})
    rows = [each["partitions"][0] for each in answer["topics"]]
    assert [(each["error_code"], each["current_voters"]) for each in rows] == [(UNKNOWN_TOPIC, [])] * len(names)
    assert answer["nodes"] == []


async def test_a_resource_that_has_no_settings_fails_the_whole_description(client: RawClient):
    """Loggers, client metrics and groups have settings in Kafka: they fail alone."""
    for kind, codes in ((1, [INVALID_REQUEST] * 2), (32, [INVALID_REQUEST, 0])):
        odd = {"resource_type": kind, "resource_name": "x", "configuration_keys": None}
        topic = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}
        answer = await client.call("DescribeConfigs", 4, {"resources": [odd, topic]})
        assert [each["error_code"] for each in answer["results"]] == codes


async def test_a_quota_of_an_entity_that_is_named_twice_has_one_result(client: RawClient):
    """The last one; the first alteration is made."""
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "ann"}],
        "ops": [{"key": "request_percentage", "value": 7.0}],
    }
    answer = await client.call("AlterClientQuotas", 1, {"entries": [entry, entry], "validate_only": False})
    assert [each["error_code"] for each in answer["entries"]] == [INVALID_REQUEST]
    user = {"entity_type": "user", "match_type": 0, "match": "ann"}
    address = {"entity_type": "ip", "match_type": 0, "match": "10.0.0.1"}
    found = await client.call("DescribeClientQuotas", 1, {"components": [user], "strict": True})
    assert found["entries"][0]["values"] == [{"key": "request_percentage", "value": 7.0}]
    found = await client.call("DescribeClientQuotas", 1, {"components": [user, address], "strict": False})
    assert found["error_code"] == INVALID_REQUEST


@pytest.mark.parametrize("version, code", [(6, UNSUPPORTED_COMPRESSION), (7, 0)])
async def test_zstd_needs_version_7_of_produce(client: RawClient, version: int, code: int):
    """KIP-110: consumers of that time cannot read it."""
    builder = BatchBuilder(compression="zstd")
    for _ in range(20):
        builder.append(1_700_000_000_000, b"k", b"value")
    rows = [{"index": 1, "records": [bytes(builder.build())]}]
    message = {"acks": -1, "timeout_ms": 9000, "topic_data": [{"name": "t", "partition_data": rows}]}
    assert errors_in(await client.call("Produce", version, message)) == {code}
