"""Requests that name topics by their ids (KIP-516): the id goes with the request, and is compared where something changes."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.errors import InvalidTopic, UnknownTopicId
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.offer import OFFERS
from minikafka.wire.kafka.translate.common import Exchange, Translation, id_text
from minikafka.wire.messages import (
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MetadataResponse,
    MetadataTopic,
)
from tests.kafka.samples import TOPIC_ID, Directory


def offer_of(name: str) -> Translation:
    return next(offer for offer in OFFERS.values() if offer.name == name)


PRODUCED: Message = {
    "acks": 1,
    "timeout_ms": 1,
    "transactional_id": None,
    "topic_data": [{"topic_id": TOPIC_ID, "name": "t", "partition_data": [{"index": 0, "records": [b"r"]}]}],
}
COMMITTED: Message = {
    "group_id": "g",
    "generation_id_or_member_epoch": 1,
    "member_id": "m",
    "group_instance_id": None,
    "topics": [
        {
            "topic_id": TOPIC_ID,
            "name": "t",
            "partitions": [
                {
                    "partition_index": 0,
                    "committed_offset": 5,
                    "committed_leader_epoch": -1,
                    "committed_metadata": "",
                }
            ],
        }
    ],
}


@pytest.mark.parametrize(
    "name, message, by_id_from", [("Produce", PRODUCED, 13), ("OffsetCommit", COMMITTED, 10)], ids=["produce", "commit"]
)
def test_a_request_by_id_carries_the_id(name: str, message: Message, by_id_from: int):
    """The topic may be created again while the request waits. Before, a topic has its name alone."""
    for version, expected in ((by_id_from - 1, None), (by_id_from, id_text(TOPIC_ID))):
        request: Any = offer_of(name).request(message, Exchange(version, Directory()))
        assert [(each.topic, each.topic_id) for each in request.partitions] == [("t", expected)]


def test_a_topic_is_deleted_by_its_id_even_if_its_name_has_another_one_by_then():
    """KIP-516: the controller compares the id, and an id that it does not know has no name in the response."""
    deleted = offer_of("DeleteTopics")
    exchange = Exchange(6, Directory())
    message = {"topics": [{"name": None, "topic_id": TOPIC_ID}, {"name": "u", "topic_id": bytes(16)}], "timeout_ms": 9}
    request = deleted.request(message, exchange)
    assert request == DeleteTopicsRequest(topics=("t", "u"), topic_ids={"t": id_text(TOPIC_ID)}, timeout_ms=9)
    unknown = DeletedTopic(name="t", error_code=UnknownTopicId.code, error_message="none with this id")
    answer = deleted.response(message, DeleteTopicsResponse(topics=(unknown, DeletedTopic(name="u"))), exchange)
    assert [(each["name"], each["error_code"]) for each in answer["responses"]] == [(None, 100), ("u", 0)]


@pytest.mark.parametrize("version", [4, 9, 12])
def test_an_empty_topic_name_without_an_id_has_one_answer(version: int):
    """As in Kafka, it is an invalid name, and no unknown id: clients below version 10 do not know that error."""
    offer = offer_of("Metadata")
    exchange = Exchange(version, Directory())
    asked = {"allow_auto_topic_creation": False, "include_cluster_authorized_operations": False}
    asked |= {"topics": [{"name": "", "topic_id": bytes(16)}], "include_topic_authorized_operations": False}
    assert offer.request(asked, exchange).topics == ("",)
    invalid = MetadataTopic(name="", error_code=InvalidTopic.code)
    answer = offer.response(asked, MetadataResponse(cluster_id="c", controller_id=1, topics=(invalid,)), exchange)
    assert [(each["name"], each["error_code"]) for each in answer["topics"]] == [("", InvalidTopic.code)]


@pytest.mark.parametrize("session_id, epoch, expected", [(0, 0, -1), (7, 0, -1), (7, -1, -1), (0, 2, 2)])
def test_a_fetch_of_an_unknown_id_that_continues_no_session_begins_none(session_id: int, epoch: int, expected: int):
    """Java's consumers request everything again with the id of the session that failed. An epoch without a session is
    left to the check of sessions.
    """
    partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
    topic = {"topic": "", "topic_id": b"?" * 16, "partitions": [{**partition, "partition_max_bytes": 9}]}
    sizes = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 9, "isolation_level": 0, "forgotten_topics_data": []}
    message = {"replica_id": -1, "session_id": session_id, "session_epoch": epoch, "topics": [topic], **sizes}
    request: Any = offer_of("Fetch").request(message, Exchange(13, Directory()))
    assert (request.session_id, request.session_epoch, request.partitions) == (session_id, expected, ())
