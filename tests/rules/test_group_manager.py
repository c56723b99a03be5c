"""The groups of a broker: what it passes on to the coordinators of its partitions, and what it answers itself."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.broker.group_manager import GroupManager
from minikafka.config import BrokerConfig
from minikafka.errors import UnknownTopicOrPartition
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.ports import RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import (
    CommitPartition,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionOutcome,
)
from tests.rules.group_kit import topic_image

SHARD = TopicPartition(OFFSETS_TOPIC, 0)
CONTEXT = RequestContext()


def image(**topics: str) -> MetadataImage:
    """These topics by id, and the offsets topic."""
    found = {OFFSETS_TOPIC: "O", **topics}
    return MetadataImage(topics={name: topic_image(name, topic_id) for name, topic_id in found.items()})


class Office:
    """The groups of a broker that leads the only partition of the offsets topic, and that partition's coordinator."""

    def __init__(self, *, is_loaded: bool = True) -> None:
        self.is_alive = True
        self.is_loaded = self.is_answering = is_loaded
        self.coordinator = self
        self.deleted: list[str] = []
        self.software: list[str] = []
        self.partition = SimpleNamespace(partition=SHARD, role="leader")
        self.leader = self.partition.role
        self.groups = GroupManager(
            BrokerConfig(node_id=1),
            cast("Any", SimpleNamespace()),
            cast("Any", SimpleNamespace(partitions={SHARD: self.partition})),
            image=lambda: image(orders="A"),
            session_alive=lambda: self.is_alive,
            ask_controller=cast("Any", None),
            verifier=cast("Any", None),
            spawn=cast("Any", None),
            may_describe=lambda _: None,
        )
        self.groups.shards._shards[SHARD] = cast("Any", self)

    def check(self) -> None: ...

    def step(self) -> Any:
        return nullcontext("step")

    async def ask(self, begin: Any) -> Any:
        return begin("ticket", "step")

    def topics_deleted(self, topics: list[str], _step: object) -> None:
        self.deleted += topics

    def topics_deleted_unloaded(self, topics: list[str]) -> None:
        self.deleted += [f"{each} when it is loaded" for each in topics]

    def standings(self) -> list[Any]:
        return [SimpleNamespace(group_id="g")]

    def heartbeat(self, _request: HeartbeatRequest, _step: object, software: str) -> HeartbeatResponse:
        self.software.append(software)
        return HeartbeatResponse()

    def commit(self, _ticket: object, request: OffsetCommitRequest, _step: object) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            partitions=tuple(
                PartitionOutcome(topic=each.topic, partition=each.partition) for each in request.partitions
            )
        )


@pytest.mark.parametrize(
    ("new", "gone"),
    [({"orders": "A"}, []), ({}, ["orders"]), ({"orders": "B"}, ["orders"])],
    ids=["other_topic", "deleted", "created_again"],
)
def test_offsets_of_a_topic_are_forgotten_once_its_id_is_gone(new: dict[str, str], gone: list[str]):
    """Issue 13: a broker that was cut off learns of a deletion and of the topic's successor at once."""
    office = Office()
    office.groups.on_image(image(orders="A"), image(**new, refunds="C"))
    assert office.deleted == gone


def test_a_coordinator_that_is_still_loading_forgets_the_topics_that_go_meanwhile():
    """What it reads later may be an offset of the topic that is gone, and an older Kafka's says not of which topic."""
    office = Office(is_loaded=False)
    office.groups.on_image(image(orders="A"), image(orders="B"))
    assert office.deleted == ["orders when it is loaded"]


def test_a_broker_without_a_session_has_no_groups_to_show():
    """Another one may coordinate them by now, and their metrics and history would be shown twice."""
    office = Office()
    assert [each.group_id for each in office.groups.standings()] == ["g"]
    assert len(office.groups.coordinators()) == 1
    office.is_alive = False
    assert office.groups.standings() == office.groups.coordinators() == []


@pytest.mark.parametrize(("protocol", "software"), [("kafka", "sarama 1.46"), ("rpc", "")])
def test_the_software_of_a_heartbeat_is_that_of_the_member(protocol: str, software: str):
    """A member over HTTP sends its heartbeats through a broker, which is not what it runs."""
    office = Office()
    context = RequestContext(protocol=protocol, software="sarama 1.46")
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    office.groups.handlers()["Heartbeat"](beat, context)
    assert office.software == [software]


async def test_the_outcomes_of_a_commit_are_in_the_order_of_its_partitions():
    """The coordinator sees only those that exist."""
    names = (("gone", 0), ("orders", 0), ("orders", 9))
    asked = tuple(CommitPartition(topic=topic, partition=partition, offset=5) for topic, partition in names)
    response = await cast("Any", Office().groups.handlers()["OffsetCommit"])(
        OffsetCommitRequest(group_id="g", partitions=asked), CONTEXT
    )
    unknown = UnknownTopicOrPartition.code
    assert [(each.topic, each.partition, each.error_code) for each in response.partitions] == [
        ("gone", 0, unknown),
        ("orders", 0, 0),
        ("orders", 9, unknown),
    ]
