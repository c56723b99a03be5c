"""Requests that name the same group, transactional id or partition many times: each is described once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from msgspec.structs import replace

from minikafka.broker.api.admin import DESCRIBED_PER_TURN, AdminApi
from minikafka.config import BrokerConfig
from minikafka.errors import CoordinatorLoadInProgress
from minikafka.quorum.image import MetadataImage, TopicImage
from minikafka.wire.admin import BROKER, TOPIC, DescribeConfigsRequest, DescribeConfigsResource
from minikafka.wire.group_messages import FetchedOffset, OffsetFetchResponse
from minikafka.wire.kafka.codec import STRING_BYTES_MAX, decode, encode
from minikafka.wire.kafka.translate.cluster import DESCRIBE_CONFIGS
from minikafka.wire.kafka.translate.common import Exchange
from minikafka.wire.response_room import RESPONSE_BYTES_MAX
from tests.kafka.client import RawClient
from tests.kafka.test_like_kafka import client, cluster, heartbeat, settled
from tests.kafka.test_session import Line

__all__ = ["client", "cluster"]

TIMES = 300


def offsets(metadata_bytes: int) -> OffsetFetchResponse:
    """The committed offsets of as many partitions as it takes."""
    whole, rest = divmod(metadata_bytes, STRING_BYTES_MAX)
    sizes = [STRING_BYTES_MAX] * whole + [rest]
    return OffsetFetchResponse(
        partitions=tuple(
            FetchedOffset(topic="t", partition=number, metadata="m" * size) for number, size in enumerate(sizes)
        )
    )


async def test_offsets_of_a_group_that_is_named_many_times_are_fetched_once():
    """Two thousand names of one group with a megabyte of metadata would be a response of two gigabytes."""
    line = Line()
    line.prompt["OffsetFetch"] = offsets(1)
    line.ask("OffsetFetch", 8, {"groups": [{"group_id": name, "topics": None} for name in "ab" * TIMES]}, 1)
    assert [request.group_id for _, request, _ in line.asked] == ["a", "b"]
    answer = decode("OffsetFetch", "response", 8, memoryview(line.sent[0]), 9)
    assert [each["group_id"] for each in answer["groups"]] == ["a", "b"]


async def test_offsets_of_many_groups_end_where_the_response_is_full():
    """The other groups have a retriable error and are not even looked for; clients request them again."""
    line = Line()
    line.prompt["OffsetFetch"] = offsets(RESPONSE_BYTES_MAX // 2)
    line.ask("OffsetFetch", 8, {"groups": [{"group_id": name, "topics": None} for name in "abcd"]}, 1)
    assert [request.group_id for _, request, _ in line.asked] == ["a", "b"]
    answer = decode("OffsetFetch", "response", 8, memoryview(line.sent[0]), 9)
    full = CoordinatorLoadInProgress.code
    assert [each["error_code"] for each in answer["groups"]] == [0, 0, full, full]


def test_settings_of_a_broker_that_is_named_many_times_are_described_once():
    """Two hundred names of one broker held the loop for 62 ms."""
    own = DescribeConfigsResource(resource_type=BROKER, resource_name="1")
    all_brokers = DescribeConfigsResource(resource_type=BROKER, resource_name="", configuration_keys=("a", "b"))
    one_setting = replace(own, configuration_keys=("log.dirs",))
    request = DescribeConfigsRequest(resources=(one_setting, own, all_brokers) * TIMES)
    answer = AdminApi(BrokerConfig(node_id=1), MetadataImage).handle_describe_configs(request)
    assert [each.resource_name for each in answer.results] == ["1", "1", ""]
    assert [each.name for each in answer.results[0].configs] == ["log.dirs"]
    assert len(answer.results[1].configs) > 1


async def test_settings_of_many_topics_are_described_in_turns_and_once_for_all_that_are_alike():
    """Two thousand topics held the loop for 0.1 s in the handler, and for 0.4 s in the translation."""
    topics = {
        name: TopicImage(name=name, topic_id=name, configs={"retention.ms": "7"} if number % 50 == 0 else {})
        for number, name in enumerate(f"t-{number}" for number in range(TIMES))
    }
    image = MetadataImage(topics=topics)
    request = DescribeConfigsRequest(
        resources=(
            *(DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in topics),
            DescribeConfigsResource(resource_type=TOPIC, resource_name="none"),
        )
    )
    answering = AdminApi(BrokerConfig(node_id=1), lambda: image).handle_describe_configs(request)
    assert isinstance(answering, Awaitable)
    turns = 0
    task = asyncio.ensure_future(answering)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= TIMES // DESCRIBED_PER_TURN
    results = task.result().results
    assert [each.resource_name for each in results] == [*topics, "none"]
    assert results[-1].error_code
    assert len({id(each.configs) for each in results[:-1]}) == 2
    retention = [next(one.value for one in each.configs if one.name == "retention.ms") for each in results[:-1]]
    assert [number for number, value in enumerate(retention) if value == "7"] == list(range(0, TIMES, 50))
    answer = DESCRIBE_CONFIGS.response({"resources": []}, task.result(), Exchange(4, Line().session._directory))
    assert [each["configs"] is answer["results"][0]["configs"] for each in answer["results"][49:51]] == [False, True]
    decoded = decode(
        "DescribeConfigs", "response", 4, memoryview(b"".join(encode("DescribeConfigs", "response", 4, answer)))
    )
    assert [len(each["configs"]) for each in decoded["results"]] == [len(each.configs) for each in results]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "version", "asked", "found"),
    [
        ("DescribeGroups", 4, "groups", "groups"),
        ("ConsumerGroupDescribe", 1, "group_ids", "groups"),
        ("DescribeTransactions", 0, "transactional_ids", "transaction_states"),
    ],
)
async def test_what_is_named_many_times_is_described_once(
    client: RawClient, name: str, version: int, asked: str, found: str
):
    """Each of these had a response as long as the request wanted."""
    await settled(client, "FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["x"]})
    assert (await heartbeat(client, "g"))["error_code"] == 0
    answer = await client.call(name, version, {asked: ["g", "h"] * TIMES})
    assert len(answer[found]) == 2
