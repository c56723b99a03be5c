"""ListOffsets (1 to 11), OffsetForLeaderEpoch (2 to 4), DeleteRecords (0 to 2): positions in a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka.errors import UnsupportedVersion
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import NONE, Exchange, Translation, code_for
from minikafka.wire.messages import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    EpochAnswer,
    EpochQuery,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

# REPLICA_NOT_AVAILABLE as in produce.py; OFFSET_NOT_AVAILABLE came with version 5 (KIP-207).
_CODES = {9: (99, 6), 78: (5, 5)}


def _per_partition(
    message: Message,
    response: Any,
    *,
    partitions: str,
    index: str,
    row_of: Callable[[Any], Message],
    failed: Callable[[int, int], Message],
    refused: Callable[[Message], int] = lambda _: NONE,
) -> list[Message]:
    """Kafka's topics, each with the answers for its partitions in the order of the request.

    ``refused`` returns the error code of a partition that was left out of the typed request, else 0.
    """
    answers = {(each.topic, each.partition): each for each in response.partitions}
    topics = []
    for topic in message["topics"]:
        name = topic["name"] if "name" in topic else topic["topic"]
        rows = []
        for each in topic[partitions]:
            number = each[index]
            code = response.error_code or refused(each)
            rows.append(failed(number, code) if code else row_of(answers[name, number]))
        topics.append({"name": name, "topic": name, partitions: rows})
    return topics


# ---- ListOffsets -----------------------------------------------------------------------------------------------------


_TIMESTAMPS_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version in which a negative timestamp has a meaning."""


def _unsupported(partition: Message, version: int) -> int:
    """UNSUPPORTED_VERSION for a negative timestamp that this version does not know, as in Kafka; else 0."""
    timestamp = partition["timestamp"]
    if timestamp >= 0 or _TIMESTAMPS_FROM.get(timestamp, version + 1) <= version:
        return NONE
    return UnsupportedVersion.code


def _list_request(message: Message, exchange: Exchange) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        isolation_level=message["isolation_level"],
        partitions=tuple(
            ListOffsetsPartition(
                topic=topic["name"],
                partition=each["partition_index"],
                current_leader_epoch=each["current_leader_epoch"],
                timestamp=each["timestamp"],
            )
            for topic in message["topics"]
            for each in topic["partitions"]
            if not _unsupported(each, exchange.version)
        ),
    )


def _list_response(message: Message, response: Any, exchange: Exchange) -> Message:
    def row_of(answer: ListedOffset) -> Message:
        return {
            "partition_index": answer.partition,
            "error_code": code_for(answer.error_code, exchange.version, _CODES),
            "timestamp": answer.timestamp,
            "offset": answer.offset,
            "leader_epoch": answer.leader_epoch,
        }

    def failed(number: int, code: int) -> Message:
        return {"partition_index": number, "error_code": code_for(code, exchange.version, _CODES)}

    return {
        "topics": _per_partition(
            message,
            response,
            partitions="partitions",
            index="partition_index",
            row_of=row_of,
            failed=failed,
            refused=lambda partition: _unsupported(partition, exchange.version),
        )
    }


LIST_OFFSETS = Translation("ListOffsets", 1, 11, _list_request, _list_response)

# ---- OffsetForLeaderEpoch --------------------------------------------------------------------------------------------


def _epoch_request(message: Message, _exchange: Exchange) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        partitions=tuple(
            EpochQuery(
                topic=topic["topic"],
                partition=each["partition"],
                current_leader_epoch=each["current_leader_epoch"],
                leader_epoch=each["leader_epoch"],
            )
            for topic in message["topics"]
            for each in topic["partitions"]
        )
    )


def _epoch_response(message: Message, response: Any, exchange: Exchange) -> Message:
    def row_of(answer: EpochAnswer) -> Message:
        return {
            "error_code": code_for(answer.error_code, exchange.version, _CODES),
            "partition": answer.partition,
            "leader_epoch": answer.leader_epoch,
            "end_offset": answer.end_offset,
        }

    def failed(number: int, code: int) -> Message:
        return {"error_code": code_for(code, exchange.version, _CODES), "partition": number}

    return {
        "topics": _per_partition(
            message, response, partitions="partitions", index="partition", row_of=row_of, failed=failed
        )
    }


OFFSET_FOR_LEADER_EPOCH = Translation("OffsetForLeaderEpoch", 2, 4, _epoch_request, _epoch_response)

# ---- DeleteRecords ---------------------------------------------------------------------------------------------------


def _delete_request(message: Message, _exchange: Exchange) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        timeout_ms=message["timeout_ms"],
        partitions=tuple(
            DeleteRecordsPartition(topic=topic["name"], partition=each["partition_index"], offset=each["offset"])
            for topic in message["topics"]
            for each in topic["partitions"]
        ),
    )


def _delete_response(message: Message, response: Any, exchange: Exchange) -> Message:
    def row_of(answer: DeletedRecords) -> Message:
        return {
            "partition_index": answer.partition,
            "low_watermark": answer.low_watermark,
            "error_code": code_for(answer.error_code, exchange.version, _CODES),
        }

    def failed(number: int, code: int) -> Message:
        return {
            "partition_index": number,
            "low_watermark": -1,
            "error_code": code_for(code, exchange.version, _CODES),
        }

    return {
        "topics": _per_partition(
            message, response, partitions="partitions", index="partition_index", row_of=row_of, failed=failed
        )
    }


DELETE_RECORDS = Translation("DeleteRecords", 0, 2, _delete_request, _delete_response)
