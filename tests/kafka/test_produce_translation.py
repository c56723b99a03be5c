"""Produce responses: the unrolled form and the translation through the codec give the same bytes."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest

from minikafka.wire.kafka.codec import encode
from minikafka.wire.kafka.translate.common import Directory, Exchange
from minikafka.wire.kafka.translate.produce import PRODUCE
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


def common(name: str, version: int, *answers: ProducedPartition, **whole: Any) -> bytes | None:
    assert PRODUCE.common is not None
    message = asked(name, version, *(each.partition for each in answers))
    return PRODUCE.common(message, ProduceResponse(partitions=answers, **whole), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["t", "orders", "n" * 126, "n" * 127, "n" * 249])
def test_the_common_response_has_the_bytes_of_the_codec(name: str, version: int) -> None:
    """Numbers at the ends of their ranges, names on both sides of a longer length."""
    exchange = Exchange(version, cast("Directory", OneTopic(name)))
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
        assert common(name, version, answer) == b"".join(encode("Produce", "response", version, plain))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_other_response_is_left_to_the_codec(version: int) -> None:
    """Errors, errors of the whole request, several partitions, none, and several topics."""
    good = ProducedPartition(topic="t", partition=0, base_offset=1)
    moved = CurrentLeader(leader_id=2, leader_epoch=3)
    assert common("t", version, good) is not None
    assert common("t", version, ProducedPartition(topic="t", partition=0, error_code=6, current_leader=moved)) is None
    assert common("t", version, good, error_code=35) is None
    assert common("t", version, good, ProducedPartition(topic="t", partition=1)) is None
    assert common("t", version) is None
    assert PRODUCE.common is not None
    two = {"topic_data": [*asked("t", version, 0)["topic_data"], *asked("u", version)["topic_data"]]}
    assert PRODUCE.common(two, ProduceResponse(partitions=(good,)), version) is None
