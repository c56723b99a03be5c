"""ListOffsets (1 to 11), OffsetForLeaderEpoch (2 to 4), DeleteRecords (0 to 2): positions in a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka.errors import UnsupportedVersion
from minikafka.wire import messages as m
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import NONE, Exchange, Translation, code_for
from minikafka.wire.kafka.translate.shapes import flat, in_request_order, plain

# REPLICA_NOT_AVAILABLE as in produce.py; OFFSET_NOT_AVAILABLE came with version 5 (KIP-207).
_CODES = {9: (99, 6), 78: (5, 5)}


def _response_of(
    *, topic: str = "name", index: str = "partition_index", refused: Callable[[Message, int], int] = lambda *_: NONE
) -> Callable[[Message, Any, Exchange], Message]:
    """The translation of a response whose rows have our names, but for the number of the partition.

    ``refused`` returns the error code of a partition that was left out of the typed request, else 0.
    """

    def response_of(message: Message, response: Any, exchange: Exchange) -> Message:
        answers = {(each.topic, each.partition): each for each in response.partitions}

        def row(name: str, asked: Message) -> Message:
            number = asked[index]
            code = response.error_code or refused(asked, exchange.version)
            answer: Message = {"low_watermark": -1} if code else plain(answers[name, number])
            code = code_for(code or answer["error_code"], exchange.version, _CODES)
            return {**answer, index: number, "error_code": code}

        return {"topics": in_request_order(message["topics"], row, topic=topic)}

    return response_of


# ---- ListOffsets -----------------------------------------------------------------------------------------------------


_TIMESTAMPS_FROM = {
    m.LATEST: 1,
    m.EARLIEST: 1,
    m.MAX_TIMESTAMP: 7,
    m.EARLIEST_LOCAL: 8,
    m.LATEST_TIERED: 9,
    m.EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version in which a negative timestamp has a meaning."""


def _unsupported(partition: Message, version: int) -> int:
    """UNSUPPORTED_VERSION for a negative timestamp that this version does not know, as in Kafka; else 0."""
    timestamp = partition["timestamp"]
    if timestamp >= 0 or _TIMESTAMPS_FROM.get(timestamp, version + 1) <= version:
        return NONE
    return UnsupportedVersion.code


def _list_request(message: Message, exchange: Exchange) -> m.ListOffsetsRequest:
    supported = (
        {**topic, "partitions": [each for each in topic["partitions"] if not _unsupported(each, exchange.version)]}
        for topic in message["topics"]
    )
    return m.ListOffsetsRequest(
        isolation_level=message["isolation_level"], partitions=flat(m.ListOffsetsPartition, supported)
    )


def _epoch_request(message: Message, _exchange: Exchange) -> m.OffsetForLeaderEpochRequest:
    return m.OffsetForLeaderEpochRequest(
        partitions=flat(m.EpochQuery, message["topics"], topic="topic", index="partition")
    )


def _delete_request(message: Message, _exchange: Exchange) -> m.DeleteRecordsRequest:
    return m.DeleteRecordsRequest(
        timeout_ms=message["timeout_ms"], partitions=flat(m.DeleteRecordsPartition, message["topics"])
    )


LIST_OFFSETS = Translation("ListOffsets", 1, 11, _list_request, _response_of(refused=_unsupported))
OFFSET_FOR_LEADER_EPOCH = Translation(
    "OffsetForLeaderEpoch", 2, 4, _epoch_request, _response_of(topic="topic", index="partition")
)
DELETE_RECORDS = Translation("DeleteRecords", 0, 2, _delete_request, _response_of())
