"""Every API that is offered, in every version, against a real broker: the answer is whole and says what it should."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from minikafka import LocalCluster
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.offer import OFFERS
from minikafka.wire.records import BatchBuilder
from tests.kafka.client import RawClient, errors_in
from tests.kafka.samples import EMPTY_ID, requests

pytestmark = [pytest.mark.e2e]

VERSIONS = [(offer.name, version) for offer in OFFERS.values() for version in range(offer.first, offer.last + 1)]
INVALID_RECORD = 87
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_FOUND, UNKNOWN_TOPIC_ID = 1, 3, 69, 100
UNSUPPORTED_VERSION, SECURITY_DISABLED, RESOURCE_NOT_FOUND = 35, 54, 91
INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, TRANSACTIONAL_ID_NOT_FOUND = 47, 49, 90, 105
TOPIC, BROKER, CLIENT_METRICS = 2, 4, 16
ONE_END = 2
"""Number of records in the topic ``one``; the first is the newest."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One broker, one topic with a record, one group with a committed offset."""
    with LocalCluster(brokers=1, config={"group.initial.rebalance.delay.ms": "0"}) as made:
        made.sync.create_topic("t", partitions=2)
        made.sync.produce("t", b"value")
        made.sync.create_topic("producers", partitions=1)
        made.sync.create_topic("one", partitions=1)
        made.sync.create_topic("compacted", partitions=1, config={"cleanup.policy": "compact"})
        asyncio.run(asked(made, "Produce", 8, to_one))
        # Whoever asks for a coordinator has the topic of offsets created.
        asyncio.run(asked(made, "FindCoordinator", 4))
        asyncio.run(asked(made, "OffsetCommit", 8))
        asyncio.run(asked(made, "FindCoordinator", 4, lambda message: message.update(key_type=1)))
        yield made


def address(cluster: LocalCluster) -> tuple[str, int]:
    host, _, port = cluster.bootstrap.partition(":")
    return host, int(port)


def to_one(message: Message) -> None:
    """Produce the records of the topic ``one``."""
    builder = BatchBuilder()
    for number in range(ONE_END):
        builder.append(1_700_000_000_000 - number, None, b"%d" % number)
    message["topic_data"] = [{"name": "one", "partition_data": [{"index": 0, "records": [bytes(builder.build())]}]}]


EXPECTED: dict[str, set[int]] = {
    "DeleteTopics": {UNKNOWN_TOPIC},
    "Heartbeat": {25},
    "SyncGroup": {25},
    "DeleteGroups": {NOT_FOUND},
    "OffsetDelete": {NOT_FOUND},
    "ConsumerGroupDescribe": {NOT_FOUND},
    "AlterPartitionReassignments": {85},
    "AddPartitionsToTxn": {INVALID_PRODUCER_ID_MAPPING},
    "AddOffsetsToTxn": {INVALID_PRODUCER_ID_MAPPING},
    "EndTxn": {INVALID_PRODUCER_ID_MAPPING},
    "TxnOffsetCommit": {INVALID_PRODUCER_ID_MAPPING},
    "DescribeTransactions": {TRANSACTIONAL_ID_NOT_FOUND},
    "DescribeAcls": {SECURITY_DISABLED},
    "CreateAcls": {SECURITY_DISABLED},
    "DeleteAcls": {SECURITY_DISABLED},
    "DescribeUserScramCredentials": {RESOURCE_NOT_FOUND},
    "AlterUserScramCredentials": {RESOURCE_NOT_FOUND},
}
"""Codes beside 0 that these requests are answered with."""


async def asked(cluster: LocalCluster, name: str, version: int, change: Any = None) -> Message:
    client = await RawClient.at(*address(cluster))
    try:
        named = await client.call("Metadata", 12, {"topics": [{"name": "t", "topic_id": EMPTY_ID}]})
        message = requests(named["topics"][0]["topic_id"])[name]
        if change is not None:
            change(message)
        for _ in range(300):
            answer = await client.call(name, version, message)
            if not errors_in(answer) & {14, 15, 16}:  # the coordinator is still being made
                return answer
            await asyncio.sleep(0.1)
        return answer
    finally:
        await client.close()


@pytest.mark.parametrize("name, version", VERSIONS, ids=str)
async def test_every_version_is_answered(cluster: LocalCluster, name: str, version: int):
    """The answer decodes to its last byte, and has the codes of a broker that understood the request."""
    answer = await asked(cluster, name, version)
    expected = EXPECTED.get(name, set())
    if name == "DescribeGroups" and version >= 6:
        expected = {NOT_FOUND}
    if name == "LeaveGroup":
        expected = {25}
    if name == "UnregisterBroker":
        expected = {102}
    if name == "JoinGroup" and version >= 4:
        expected = {79}
    assert errors_in(answer) <= expected | {0}, answer
    assert not expected or errors_in(answer) & expected


@pytest.mark.parametrize("name, version", [("Produce", 13), ("Fetch", 13), ("Fetch", 18), ("OffsetCommit", 10)])
async def test_a_topic_id_that_is_unknown(cluster: LocalCluster, name: str, version: int):
    """UNKNOWN_TOPIC_ID for its partitions, and nothing is written (KIP-516)."""

    def elsewhere(message: Message) -> None:
        for topic in message.get("topics", message.get("topic_data", ())):
            topic["topic_id"] = bytes(range(16))

    answer = await asked(cluster, name, version, elsewhere)
    assert UNKNOWN_TOPIC_ID in errors_in(answer)
    assert errors_in(answer) <= {0, UNKNOWN_TOPIC_ID}


@pytest.mark.parametrize(
    "version, timestamp, expected",
    [
        (1, -1, (0, "end")),
        (1, -2, (0, 0)),
        (6, -3, (UNSUPPORTED_VERSION, -1)),
        (7, -3, (0, 0)),
        (7, -4, (UNSUPPORTED_VERSION, -1)),
        (8, -4, (0, 0)),
        (8, -5, (UNSUPPORTED_VERSION, -1)),
        (9, -5, (0, -1)),
        (10, -6, (UNSUPPORTED_VERSION, -1)),
        (11, -6, (0, -1)),
        (11, -7, (UNSUPPORTED_VERSION, -1)),
    ],
)
async def test_list_offsets_special_timestamps(
    cluster: LocalCluster, version: int, timestamp: int, expected: tuple[int, int | str]
):
    """As a Kafka broker without tiered storage: all of a log is local, nothing is tiered, newer constants are refused."""

    def timed(message: Message) -> None:
        message["topics"] = [
            {"name": "one", "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}]}
        ]

    code, offset = expected
    answer = await asked(cluster, "ListOffsets", version, timed)
    (found,) = answer["topics"][0]["partitions"]
    assert (found["error_code"], found["offset"]) == (code, ONE_END if offset == "end" else offset)


@pytest.mark.parametrize("version", [7, 8, 13])
async def test_produce_names_the_records_that_a_batch_was_refused_for(cluster: LocalCluster, version: int):
    """KIP-467: from version 8 on. Nothing of the batch is written."""
    client = await RawClient.at(*address(cluster))
    try:
        named = await client.call("Metadata", 12, {"topics": [{"name": "compacted", "topic_id": EMPTY_ID}]})
        builder = BatchBuilder()
        for key in (b"key", None, b"key", None):
            builder.append(1_700_000_000_000, key, b"value")
        partition = {"index": 0, "records": [bytes(builder.build())]}
        topic = {"name": "compacted", "topic_id": named["topics"][0]["topic_id"], "partition_data": [partition]}
        answer = await client.call("Produce", version, {"acks": -1, "timeout_ms": 9000, "topic_data": [topic]})
        (found,) = answer["responses"][0]["partition_responses"]
        assert (found["error_code"], found["base_offset"]) == (INVALID_RECORD, -1)
        why = "the record has no key, and cleanup.policy is compact"
        expected = [{"batch_index": at, "batch_index_error_message": why} for at in (1, 3)]
        assert found["record_errors"] == (expected if version >= 8 else [])
    finally:
        await client.close()


@pytest.mark.parametrize("records", [None, [b""]])
async def test_produce_without_records_is_an_invalid_record(cluster: LocalCluster, records: Any):
    """As in Kafka: a partition needs exactly one batch."""

    def empty(message: Message) -> None:
        message["topic_data"] = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]

    answer = await asked(cluster, "Produce", 8, empty)
    assert errors_in(answer) == {INVALID_RECORD}


async def test_deleting_a_throttle_that_is_not_set_is_accepted(cluster: LocalCluster):
    """kafka-reassign-partitions removes them from topics and brokers, whichever of them has one."""
    names = (
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )

    def deletes(message: Message) -> None:
        configs = [{"name": each, "value": None, "config_operation": 1} for each in names]
        resources = [(TOPIC, "t"), (BROKER, "1"), (BROKER, "")]
        message["resources"] = [
            {"resource_type": kind, "resource_name": name, "configs": configs} for kind, name in resources
        ]

    assert errors_in(await asked(cluster, "IncrementalAlterConfigs", 1, deletes)) == {0}


async def test_list_offsets_with_one_unsupported_timestamp(cluster: LocalCluster):
    """The other partitions of the request are answered."""

    def mixed(message: Message) -> None:
        place = {"current_leader_epoch": -1}
        partitions = [
            {**place, "partition_index": 0, "timestamp": -9},
            {**place, "partition_index": 1, "timestamp": -2},
        ]
        message["topics"] = [{"name": "t", "partitions": partitions}]

    answer = await asked(cluster, "ListOffsets", 8, mixed)
    found = [(each["partition_index"], each["error_code"]) for each in answer["topics"][0]["partitions"]]
    assert found == [(0, UNSUPPORTED_VERSION), (1, 0)]


async def test_created_topics_carry_all_settings(cluster: LocalCluster):
    """KIP-525: own settings and the defaults with their sources, partitions and replicas; none before version 5."""
    answer = await asked(cluster, "CreateTopics", 5)
    (topic,) = answer["topics"]
    configs = {each["name"]: (each["value"], each["config_source"]) for each in topic["configs"]}
    assert (topic["num_partitions"], topic["replication_factor"]) == (1, 1)
    assert configs["retention.ms"] == ("1000", 1)
    assert configs["segment.bytes"] == ("1073741824", 5)
    assert not (await asked(cluster, "CreateTopics", 4))["topics"][0]["configs"]

    def checked_only(message: Message) -> None:
        message["validate_only"] = True

    (topic,) = (await asked(cluster, "CreateTopics", 7, checked_only))["topics"]
    assert {each["name"]: each["value"] for each in topic["configs"]}["retention.ms"] == "1000"


async def test_all_producers_of_a_partition(cluster: LocalCluster):
    """DescribeProducers names every producer with its epoch and last sequence."""
    for producer_id in (7001, 7002):
        builder = BatchBuilder(producer_id=producer_id, producer_epoch=3, base_sequence=0)
        builder.append(1_700_000_000_000, None, b"first")
        builder.append(1_700_000_000_001, None, b"second")
        records = bytes(builder.build())
        partition = {"index": 0, "records": [records]}
        produced = [{"name": "producers", "partition_data": [partition]}]
        answer = await asked(cluster, "Produce", 8, lambda message, data=produced: message.update(topic_data=data))
        assert errors_in(answer) == {0}

    def described(message: Message) -> None:
        message["topics"] = [{"name": "producers", "partition_indexes": [0, 5]}]

    answer = await asked(cluster, "DescribeProducers", 0, described)
    known, unknown = answer["topics"][0]["partitions"]
    assert [
        (each["producer_id"], each["producer_epoch"], each["last_sequence"], each["last_timestamp"])
        for each in known["active_producers"]
    ] == [(7001, 3, 1, 1_700_000_000_001), (7002, 3, 1, 1_700_000_000_001)]
    assert (unknown["error_code"], unknown["active_producers"]) == (UNKNOWN_TOPIC, [])


async def test_config_resources(cluster: LocalCluster):
    """Topics and brokers; version 0 lists client metrics, of which there are none, and knows nothing else."""
    answer = await asked(cluster, "ListConfigResources", 1)
    found = {(each["resource_name"], each["resource_type"]) for each in answer["config_resources"]}
    assert {("t", TOPIC), ("one", TOPIC), ("1", BROKER)} <= found
    assert (await asked(cluster, "ListConfigResources", 0))["config_resources"] == []
    answer = await asked(cluster, "ListConfigResources", 1, lambda message: message.update(resource_types=[99]))
    assert answer["error_code"] == UNSUPPORTED_VERSION


async def test_joining_before_kip_394(cluster: LocalCluster):
    """Clients of version 3 do not know MEMBER_ID_REQUIRED: they are members at once."""
    answer = await asked(cluster, "JoinGroup", 3)
    assert answer["error_code"] == 0
    assert answer["leader"] == answer["member_id"] == answer["members"][0]["member_id"]
    assert answer["member_id"].startswith("raw-")


async def test_unknown_kinds_of_coordinators_are_refused_for_good(cluster: LocalCluster):
    """A retriable error would make clients ask for ever."""
    answer = await asked(cluster, "FindCoordinator", 4, lambda message: message.update(key_type=2))
    assert answer["coordinators"][0]["error_code"] == 42


async def test_fenced_producers_receive_the_code_that_their_version_knows(cluster: LocalCluster):
    """KIP-588: PRODUCER_FENCED from InitProducerId 4 and version 2 of the others on, INVALID_PRODUCER_EPOCH before."""
    given = await asked(cluster, "InitProducerId", 0, lambda message: message.update(transactional_id="fenced"))
    old = {"producer_id": given["producer_id"], "producer_epoch": given["producer_epoch"]}
    await asked(cluster, "InitProducerId", 0, lambda message: message.update(transactional_id="fenced"))
    flat = {**old, "transactional_id": "fenced"}
    nested = {f"v3_and_below_{name}": value for name, value in flat.items()}
    first_with_its_own_code = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
    for name, first in first_with_its_own_code.items():
        changed = nested if name == "AddPartitionsToTxn" else flat
        stale = {**changed, "producer_epoch": 9} if name == "InitProducerId" else changed
        for version, code in ((first - 1, INVALID_PRODUCER_EPOCH), (first, PRODUCER_FENCED)):
            answer = await asked(cluster, name, version, lambda message, stale=stale: message.update(stale))
            assert errors_in(answer) - {0} == {code}, (name, version, answer)


async def test_transaction_over_the_oldest_and_the_newest_versions(cluster: LocalCluster):
    """Begun, described and committed; version 5 of EndTxn returns the epoch of the next transaction."""
    named = {"transactional_id": "whole"}
    given = await asked(cluster, "InitProducerId", 5, lambda message: message.update(named))
    flat = {**named, "producer_id": given["producer_id"], "producer_epoch": given["producer_epoch"]}
    nested = {f"v3_and_below_{name}": value for name, value in flat.items()}
    added = await asked(cluster, "AddPartitionsToTxn", 0, lambda message: message.update(nested))
    assert errors_in(added) == {0}
    assert errors_in(await asked(cluster, "AddOffsetsToTxn", 0, lambda message: message.update(flat))) == {0}
    offsets = {**flat, "group_id": "g"}
    for version in (0, 5):
        committed = await asked(cluster, "TxnOffsetCommit", version, lambda message: message.update(offsets))
        assert errors_in(committed) == {0}
    of_whole = {"transactional_ids": ["whole"]}
    described = await asked(cluster, "DescribeTransactions", 0, lambda message: message.update(of_whole))
    (state,) = described["transaction_states"]
    assert (state["transaction_state"], state["transaction_timeout_ms"]) == ("Ongoing", 1000)
    assert {each["topic"]: each["partitions"] for each in state["topics"]}["t"] == [0, 1]
    listed = await asked(cluster, "ListTransactions", 1)
    assert listed["unknown_state_filters"] == ["Lost"]
    for pattern, count in (("who.*e", 1), ("who", 0), ("", 1), (None, 1)):
        of_pattern = {"state_filters": ["Ongoing"], "transactional_id_pattern": pattern}
        listed = await asked(cluster, "ListTransactions", 2, lambda message, of=of_pattern: message.update(of))
        assert [each["transactional_id"] for each in listed["transaction_states"]].count("whole") == count
    broken = {"transactional_id_pattern": "(who"}
    assert errors_in(await asked(cluster, "ListTransactions", 2, lambda message: message.update(broken))) == {128}
    ended = await asked(cluster, "EndTxn", 5, lambda message: message.update({**flat, "committed": True}))
    assert (ended["producer_id"], ended["producer_epoch"]) == (given["producer_id"], given["producer_epoch"] + 1)


async def test_pipelined_requests_are_answered_in_order(cluster: LocalCluster):
    """Forty requests in one write, answered in their order."""
    client = await RawClient.at(*address(cluster))
    try:
        names = ["Metadata", "ListGroups"] * 20
        messages = {"Metadata": {"topics": None}, "ListGroups": {"states_filter": [], "types_filter": []}}
        client.writer.write(b"".join(client.request(name, 1, messages[name]) for name in names))
        for name in names:
            assert errors_in(await client.answer(name, 1)) <= {0, 15}
    finally:
        await client.close()


async def test_http_and_frames_share_the_port(cluster: LocalCluster):
    """The first byte decides, for each connection."""
    reader, writer = await asyncio.open_connection(*address(cluster))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()
    assert errors_in(await asked(cluster, "Metadata", 9)) == {0}
