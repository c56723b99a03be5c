"""Fetch, OffsetCommit and TxnOffsetCommit in Kafka's form: what the broker is asked, and what old versions and lost topics receive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka import errors as kafka
from minikafka.wire import transaction_messages as t
from minikafka.wire.group_messages import PartitionOutcome
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Directory, Exchange
from minikafka.wire.kafka.translate.fetch import FETCH
from minikafka.wire.kafka.translate.groups import OFFSET_COMMIT
from minikafka.wire.kafka.translate.transactions import TXN_OFFSET_COMMIT
from minikafka.wire.messages import CurrentLeader, FetchedPartition, FetchRequest, FetchResponse

KNOWN, UNKNOWN = bytes(range(1, 17)), bytes(range(2, 18))


class Topics:
    """The topic t has the id KNOWN."""

    def topic_name(self, topic_id: str) -> str | None:
        return "t" if topic_id == "AQIDBAUGBwgJCgsMDQ4PEA" else None

    def topic_id(self, name: str) -> str | None:
        return "AQIDBAUGBwgJCgsMDQ4PEA" if name == "t" else None


def exchange_of(version: int) -> Exchange:
    return Exchange(version, cast("Directory", Topics()), "client")


def fetch(*ids: bytes, session_id: int = 0, session_epoch: int = -1, replica_id: int = -1) -> Message:
    """One partition of each topic."""
    row = {
        "partition": 0,
        "current_leader_epoch": 5,
        "fetch_offset": 7,
        "last_fetched_epoch": 4,
        "partition_max_bytes": 100,
    }
    return {
        "replica_id": replica_id,
        "replica_state": {"replica_id": replica_id},
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [{"topic": "t", "topic_id": each, "partitions": [row]} for each in ids],
        "forgotten_topics_data": [],
    }


def asked(version: int, message: Message) -> FetchRequest:
    return cast("FetchRequest", FETCH.request(message, exchange_of(version)))


@pytest.mark.parametrize("version", [4, 12, 14, 15, 18])
@pytest.mark.parametrize("replica_id", [0, 1])
def test_no_broker_replicates_over_this_protocol(version: int, replica_id: int):
    """A fetch with a replica's id would move the high watermark; broker 0 is one as well."""
    with pytest.raises(kafka.InvalidRequest):
        asked(version, fetch(KNOWN, replica_id=replica_id))


@pytest.mark.parametrize("version", [12, 13, 18])
def test_a_fetch_says_up_to_which_epoch_its_reader_has_read(version: int):
    """KIP-320, KIP-595: without it nobody tells a consumer that its log has been cut."""
    (partition,) = asked(version, fetch(KNOWN)).partitions
    assert (partition.topic, partition.fetch_offset) == ("t", 7)
    assert (partition.current_leader_epoch, partition.last_fetched_epoch) == (5, 4)


@pytest.mark.parametrize("session_epoch", [1, 2])
def test_a_session_takes_in_no_unknown_id(session_epoch: int):
    """It is kept by name: the client begins a new one, from its first incremental request on."""
    with pytest.raises(kafka.FetchSessionTopicIdError):
        asked(13, fetch(UNKNOWN, session_id=9, session_epoch=session_epoch))


def test_a_request_for_everything_with_an_unknown_id_begins_no_session():
    """What is known is served; the unknown id must be named again each time."""
    request = asked(13, fetch(KNOWN, UNKNOWN, session_epoch=0))
    assert (len(request.partitions), request.session_epoch) == (1, -1)


@pytest.mark.parametrize(("version", "is_named"), [(12, False), (15, False), (16, True), (18, True)])
def test_a_response_names_the_leader_where_it_has_its_address(version: int, is_named: bool):
    """KIP-951: Kafka fills ``current_leader``, which is there since version 12, from version 16 on."""
    topics: Any = SimpleNamespace(topic_id=Topics().topic_id, topic_name=Topics().topic_name, endpoint=lambda _: None)
    leader = CurrentLeader(leader_id=2, leader_epoch=3)
    moved = FetchedPartition(topic="t", partition=0, error_code=6, current_leader=leader)
    response = FETCH.response(fetch(KNOWN), FetchResponse(partitions=(moved,)), Exchange(version, topics, "client"))
    assert ("current_leader" in response["responses"][0]["partitions"][0]) is is_named


@pytest.mark.parametrize(("name", "code"), [("t", 0), ("gone", kafka.FetchSessionTopicIdError.code)])
def test_a_topic_of_the_session_that_was_deleted_ends_it(name: str, code: int):
    """There is no id for its answer: the zero id would be another topic's to the client."""
    response = FetchResponse(session_id=9, partitions=(FetchedPartition(topic=name, partition=0),))
    assert FETCH.response(fetch(session_id=9, session_epoch=3), response, exchange_of(13))["error_code"] == code


def test_an_answer_has_the_id_that_its_request_named():
    """The topic may be deleted, and created again, before the response is written."""
    topics: Any = Topics()
    exchange = Exchange(13, topics, "client")
    FETCH.request(fetch(KNOWN), exchange)
    topics.topic_id = lambda _: "zzzzzzzzzzzzzzzzzzzzzw"
    response = FetchResponse(partitions=(FetchedPartition(topic="t", partition=0),))
    (topic,) = FETCH.response(fetch(KNOWN), response, exchange)["responses"]
    assert topic["topic_id"] == KNOWN


def test_an_id_that_becomes_known_meanwhile_is_unknown_in_the_answer_too():
    """The handler has seen nothing of it: the answer must not lack its partition."""
    topics: Any = SimpleNamespace(topic_name=lambda _: None)
    exchange = Exchange(13, topics, "client")
    FETCH.request(fetch(UNKNOWN), exchange)
    topics.topic_name = lambda _: "new"
    (topic,) = FETCH.response(fetch(UNKNOWN), FetchResponse(), exchange)["responses"]
    assert [each["error_code"] for each in topic["partitions"]] == [kafka.UnknownTopicId.code]


def offsets() -> Message:
    row = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 3, "committed_metadata": None}
    return {
        "transactional_id": "tx",
        "group_id": "g",
        "producer_id": 7,
        "producer_epoch": 0,
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
        "topics": [{"name": "t", "partitions": [row]}],
    }


@pytest.mark.parametrize(("version", "transaction_version"), [(4, 0), (5, 2)])
def test_offsets_of_version_5_are_of_transaction_version_2(version: int, transaction_version: int):
    """KIP-890: the request adds the group's partition to the transaction by itself."""
    request: Any = TXN_OFFSET_COMMIT.request(offsets(), exchange_of(version))
    assert request.transaction_version == transaction_version
    assert [(each.offset, each.leader_epoch) for each in request.partitions] == [(5, 3)]


@pytest.mark.parametrize(
    ("version", "error", "code"),
    [
        (1, kafka.CoordinatorLoadInProgress, kafka.CoordinatorNotAvailable.code),
        (2, kafka.CoordinatorLoadInProgress, kafka.CoordinatorLoadInProgress.code),
        (3, kafka.TransactionAbortable, kafka.InvalidTxnState.code),
        (4, kafka.TransactionAbortable, kafka.TransactionAbortable.code),
    ],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_old_versions_receive_codes_that_they_know(
    version: int, error: type[kafka.ProtocolError], code: int, is_whole: bool
):
    """Of the whole request, or of one partition."""
    part = PartitionOutcome.failed(error("no"), topic="t", partition=0)
    response = (
        t.TxnOffsetCommitResponse.with_error(error("no")) if is_whole else t.TxnOffsetCommitResponse(partitions=(part,))
    )
    (topic,) = TXN_OFFSET_COMMIT.response(offsets(), response, exchange_of(version))["topics"]
    assert [each["error_code"] for each in topic["partitions"]] == [code]


@pytest.mark.parametrize(("version", "knows"), [(8, False), (9, True)])
def test_old_commits_name_no_member_epoch(version: int, knows: bool):
    """KIP-848: what an old client sends as its generation is never the epoch of a member of the consumer protocol."""
    message = {**offsets(), "generation_id_or_member_epoch": 1}
    request: Any = OFFSET_COMMIT.request(message, exchange_of(version))
    assert request.knows_member_epochs is knows
    assert [(each.offset, each.leader_epoch) for each in request.partitions] == [(5, 3)]
