"""Produce: the unrolled forms of requests and responses, and the translations through the codec, are the same."""

from __future__ import annotations

import base64
from random import Random
from typing import Any, cast

import pytest

from minikafka.errors import ProtocolError, TopicAuthorizationFailed, UnsupportedCompressionType
from minikafka.wire.batch import ATTRIBUTES_END
from minikafka.wire.kafka.codec import Message, decode, encode
from minikafka.wire.kafka.translate.common import Directory, Exchange, each_once
from minikafka.wire.kafka.translate.produce import PRODUCE, ZSTD, first_error
from minikafka.wire.messages import CurrentLeader, ProducedPartition, ProduceResponse

RAW_ID = bytes(range(1, 17))
VERSIONS = range(PRODUCE.first, PRODUCE.last + 1)


class OneTopic:
    """A directory in which all ids belong to one topic."""

    def __init__(self, name: str) -> None:
        self._name = name

    def topic_name(self, _topic_id: str) -> str:
        return self._name

    def topic_id(self, _name: str) -> str:
        return base64.urlsafe_b64encode(RAW_ID).decode().rstrip("=")

    def endpoint(self, _node: int) -> None:
        return None


def asked(name: str, version: int, *partitions: int) -> dict[str, Any]:
    """A request as the codec decodes it: a field that the version lacks has its default."""
    named = {"name": "", "topic_id": RAW_ID} if version >= 13 else {"name": name, "topic_id": bytes(16)}
    data = [{"index": each, "records": b""} for each in partitions]
    return {"acks": 1, "timeout_ms": 1, "topic_data": [{**named, "partition_data": data}]}


def exchange_of(version: int, name: str = "t") -> Exchange:
    return Exchange(version, cast("Directory", OneTopic(name)), "client")


def usual(name: str, version: int, *answers: ProducedPartition, **whole: Any) -> bytes | None:
    """The unrolled response to a request that named the topic."""
    assert PRODUCE.usual is not None
    exchange = exchange_of(version, name)
    exchange.topic_name(RAW_ID)
    return PRODUCE.usual.response(ProduceResponse(partitions=answers, **whole), exchange)


def test_a_topic_that_stands_twice_in_a_request_has_the_partitions_of_both() -> None:
    """Each of them once, in the order of the request."""
    assert each_once([("t", [2, 0]), ("u", [0]), ("t", [0, 1])]) == {"t": [2, 0, 1], "u": [0]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["t", "orders", "n" * 126, "n" * 127, "n" * 249])
def test_the_usual_response_has_the_bytes_of_the_codec(name: str, version: int) -> None:
    """Numbers at the ends of their ranges, names on both sides of a longer length."""
    exchange = exchange_of(version, name)
    for numbers in ((0, 0, -1, 0), (7, 2**63 - 1, 1_700_000_000_000, 2**40), (2**31 - 1, 255, 256, 2**63 - 1)):
        partition, base_offset, time_ms, start = numbers
        answer = ProducedPartition(
            topic=name,
            partition=partition,
            base_offset=base_offset,
            log_append_time_ms=time_ms,
            log_start_offset=start,
            leader_epoch=4,
        )
        response = ProduceResponse(partitions=(answer,))
        plain = PRODUCE.response(asked(name, version, partition), response, exchange)
        assert usual(name, version, answer) == b"".join(encode("Produce", "response", version, plain))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_other_response_is_left_to_the_codec(version: int) -> None:
    """Errors, errors of the whole request, several partitions, and none."""
    good = ProducedPartition(topic="t", partition=0, base_offset=1)
    moved = CurrentLeader(leader_id=2, leader_epoch=3)
    assert usual("t", version, good) is not None
    assert usual("t", version, ProducedPartition(topic="t", partition=0, error_code=6, current_leader=moved)) is None
    assert usual("t", version, good, error_code=35) is None
    assert usual("t", version, good, ProducedPartition(topic="t", partition=1)) is None
    assert usual("t", version) is None


def encoded(message: dict[str, Any], version: int) -> bytes:
    return b"".join(encode("Produce", "request", version, {"transactional_id": None, **message}))


def both(frame: bytes, at: int, version: int) -> tuple[Any, Any]:
    """What the unrolled form makes of a frame, and what the codec and the translator do, or their error."""
    assert PRODUCE.usual is not None
    quick = PRODUCE.usual.request(memoryview(frame), at, exchange_of(version))
    try:
        plain = PRODUCE.request(decode("Produce", "request", version, memoryview(frame), at), exchange_of(version))
    except ProtocolError as error:
        plain = error
    return quick, plain


@pytest.mark.parametrize("version", VERSIONS)
def test_the_usual_request_is_what_the_codec_makes_of_it(version: int) -> None:
    """Issue 15: whatever the frame has in front, and whatever follows: librdkafka sends a few bytes too many."""
    for name, acks, size in (("t", 1, 61), ("orders", -1, 127), ("n" * 126, 1, 16_384), ("tøpic", 1, 2_100_000)):
        message = asked(name, version, 3) | {"acks": acks, "timeout_ms": 30_000}
        message["topic_data"][0]["partition_data"][0]["records"] = [b"r" * size]
        for before, behind in ((b"", b""), (b"header", b"\x00\x00\x00")):
            quick, plain = both(before + encoded(message, version) + behind, len(before), version)
            assert quick is not None
            assert quick == plain


@pytest.mark.parametrize("version", VERSIONS)
def test_every_other_request_is_left_to_the_codec(version: int) -> None:
    """acks=0, transactions, several topics or partitions, none, and no records."""
    usual_one = asked("t", version, 3)
    usual_one["topic_data"][0]["partition_data"][0]["records"] = [b"r"]
    topic = usual_one["topic_data"][0]
    row = topic["partition_data"][0]
    others = [
        {"acks": 0},
        {"transactional_id": "x"},
        {"topic_data": []},
        {"topic_data": [topic, topic]},
        {"topic_data": [{**topic, "partition_data": []}]},
        {"topic_data": [{**topic, "partition_data": [row, row]}]},
        {"topic_data": [{**topic, "partition_data": [{**row, "records": None}]}]},
        {"topic_data": [{**topic, "partition_data": [{**row, "records": []}]}]},
    ]
    assert both(encoded(usual_one, version), 0, version)[0] is not None
    for other in others:
        assert both(encoded({**usual_one, **other}, version), 0, version)[0] is None, other


@pytest.mark.parametrize("version", VERSIONS)
def test_a_damaged_request_is_read_as_the_codec_reads_it_or_left_to_it(version: int) -> None:
    """Issue 15: cut short anywhere, and with any byte changed."""
    message = asked("topic", version, 3)
    message["topic_data"][0]["partition_data"][0]["records"] = [b"r" * 70]
    whole = encoded(message, version)
    random = Random(version)
    damaged = [whole[:end] for end in range(len(whole))]
    for at in range(len(whole)):
        values = (0, 1, 0x7F, 0x80, 0xFF, random.randrange(256))
        damaged += [whole[:at] + bytes((value,)) + whole[at + 1 :] for value in values]
    seen = 0
    for frame in damaged:
        quick, plain = both(frame, 0, version)
        assert quick is None or quick == plain, frame
        seen += quick is not None
    assert seen > 100, "most damage is in the records, the topic or the numbers"


NAMES = {bytes([number] * 16): name for number, name in ((1, "denied"), (2, "allowed"))}


class TwoTopics:
    """A directory with the topics of NAMES."""

    def topic_name(self, topic_id: str) -> str | None:
        return NAMES.get(base64.urlsafe_b64decode(topic_id + "=="))

    def topic_id(self, name: str) -> str:
        (raw,) = (raw for raw, each in NAMES.items() if each == name)
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@pytest.mark.parametrize("version", [9, 13])
def test_results_go_to_their_own_topics_whatever_their_order(version: int) -> None:
    """The authorizer's refusals come behind the results of what was appended, also for a topic that was named first."""
    exchange = Exchange(version, cast("Directory", TwoTopics()), "client")
    asked_for = {
        "acks": 1,
        "timeout_ms": 1,
        "topic_data": [
            {
                "name": "" if version >= 13 else name,
                "topic_id": raw if version >= 13 else bytes(16),
                "partition_data": [{"index": 0, "records": b""}],
            }
            for raw, name in NAMES.items()
        ],
    }
    refused = ProducedPartition.with_error(
        TopicAuthorizationFailed("User:ann has no permission for WRITE on TOPIC denied."), topic="denied", partition=0
    )
    response = ProduceResponse(partitions=(ProducedPartition(topic="allowed", partition=0, base_offset=7), refused))
    rows = [
        row
        for topic in PRODUCE.response(asked_for, response, exchange)["responses"]
        for row in topic["partition_responses"]
    ]
    assert [(row["error_code"], row["base_offset"]) for row in rows] == [(TopicAuthorizationFailed.code, -1), (0, 7)]
    # A client that may not write to a topic does not learn its name from its id.
    assert bool(rows[0]["error_message"]) == (version < 13)


def test_a_batch_that_the_version_does_not_have_is_the_first_error() -> None:
    """With acks=0 the broker closes the connection for it: nothing else tells the producer."""
    records = bytearray(70)
    records[ATTRIBUTES_END - 1] = ZSTD
    partition = {"index": 0, "records": bytes(records)}
    message: Message = {"topic_data": [{"name": "t", "topic_id": bytes(16), "partition_data": [partition]}]}
    codes = [first_error(message, ProduceResponse(), exchange_of(version)) for version in (6, 7)]
    assert codes == [UnsupportedCompressionType.code, 0]
