"""Produce (3 to 13), InitProducerId (0 to 5) and DescribeProducers (0)."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from minikafka.errors import (
    CoordinatorLoadInProgress,
    InvalidProducerEpoch,
    InvalidTxnState,
    LeaderNotAvailable,
    ProducerFenced,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from minikafka.ports import Buffer
from minikafka.wire.batch import ATTRIBUTES_END, CODEC_MASK, CODEC_NAMES
from minikafka.wire.kafka.codec import Message, encode, read_varint
from minikafka.wire.kafka.schema import ZERO_UUID
from minikafka.wire.kafka.translate.common import (
    UNKNOWN_TOPIC_ID,
    Exchange,
    Translation,
    Usual,
    code_for,
    each_once,
    endpoints_of,
    id_text,
    leader_of,
)
from minikafka.wire.kafka.translate.shapes import plain, request_of
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import (
    DescribeProducersPartition,
    DescribeProducersRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

BY_ID_FROM = 13
"""Topics are named by their ids (KIP-516)."""
ADDS_FROM = 12
"""Partitions are added to the producer's transaction with their first batch (KIP-890)."""
LOG_START_FROM = 5
"""Partitions are answered with their log's start."""

ZSTD = CODEC_NAMES.index("zstd")
ZSTD_FROM = 7
"""Batches may be compressed with zstd (KIP-110)."""

# REPLICA_NOT_AVAILABLE is ours: a Kafka broker without the replica says NOT_LEADER_OR_FOLLOWER. KAFKA_STORAGE_ERROR
# came with version 4.
_CODES = {9: (99, 6), 56: (4, 6), TransactionAbortable.code: (11, InvalidTxnState.code)}


def _is_early_zstd(records: Buffer | None, version: int) -> bool:
    """Return True if the first batch is compressed with zstd in a version that does not have it."""
    if version >= ZSTD_FROM or not records or len(records) < ATTRIBUTES_END:
        return False
    return records[ATTRIBUTES_END - 1] & CODEC_MASK == ZSTD


def _request(message: Message, exchange: Exchange) -> ProduceRequest:
    partitions = []
    by_id = exchange.version >= BY_ID_FROM
    for topic in message["topic_data"]:
        name = exchange.topic_name(topic["topic_id"]) if by_id else topic["name"]
        if name is None:
            continue
        topic_id = id_text(topic["topic_id"]) if by_id else None
        for each in topic["partition_data"]:
            if _is_early_zstd(each["records"], exchange.version):
                continue
            records = (each["records"],) if each["records"] else ()
            partitions.append(ProducePartition(topic=name, topic_id=topic_id, partition=each["index"], records=records))
    return ProduceRequest(
        acks=message["acks"],
        timeout_ms=message["timeout_ms"],
        client_id=exchange.client_id,
        transactional_id=message["transactional_id"],
        transaction_version=TRANSACTION_V2 if exchange.version >= ADDS_FROM else 0,
        partitions=tuple(partitions),
    )


def _response(message: Message, response: ProduceResponse, exchange: Exchange) -> Message:
    version = exchange.version
    by_id = version >= BY_ID_FROM
    # By name: what the authorizer refuses comes behind the results of the others.
    answers = {(each.topic, each.partition): each for each in response.partitions}
    topics = []
    for topic in message["topic_data"]:
        name = exchange.topic_name(topic["topic_id"]) if by_id else topic["name"]
        partitions = []
        for each in topic["partition_data"]:
            index = each["index"]
            is_denied = response.error_code == TransactionalIdAuthorizationFailed.code
            if is_denied or (response.error_code and name is not None):
                partitions.append(_refused(index, response.error_code, response.error_message, version))
            elif name is None:
                partitions.append(_refused(index, UNKNOWN_TOPIC_ID, None, version))
            elif _is_early_zstd(each["records"], version):
                partitions.append(_refused(index, UnsupportedCompressionType.code, None, version))
            elif by_id and answers[name, index].error_code == TopicAuthorizationFailed.code:
                # A client that may not write to a topic does not learn its name from its id.
                partitions.append(_refused(index, TopicAuthorizationFailed.code, None, version))
            else:
                partitions.append(_partition(answers[name, index], version))
        topics.append({"name": topic["name"], "topic_id": topic["topic_id"], "partition_responses": partitions})
    answer: Message = {"responses": topics}
    if any(each.current_leader is not None for each in response.partitions):
        answer["node_endpoints"] = endpoints_of(response.partitions, exchange.directory)
    return answer


def _refused(index: int, code: int, why: str | None, version: int) -> Message:
    return {
        "index": index,
        "error_code": code_for(code, version, _CODES),
        "base_offset": -1,
        "error_message": why or None,
    }


def _partition(answer: ProducedPartition, version: int) -> Message:
    if answer.error_code:
        refused = _refused(answer.partition, answer.error_code, answer.error_message, version)
        refused["current_leader"] = leader_of(answer.current_leader)
        refused["record_errors"] = [
            {"batch_index": each.batch_index, "batch_index_error_message": each.message}
            for each in answer.record_errors
        ]
        return refused
    return {
        "index": answer.partition,
        "error_code": 0,
        "base_offset": answer.base_offset,
        "log_append_time_ms": answer.log_append_time_ms,
        "log_start_offset": answer.log_start_offset,
    }


def first_error(message: Message, response: ProduceResponse, exchange: Exchange) -> int:
    """Return the first error code of a Produce request, or 0 if all of its batches were appended.

    The typed response knows nothing of topics whose ids are unknown, and of batches that the version does not have:
    they never reached the handler.
    """
    if response.error_code:
        return response.error_code
    if exchange.version < ZSTD_FROM and any(
        _is_early_zstd(each["records"], exchange.version)
        for topic in message["topic_data"]
        for each in topic["partition_data"]
    ):
        return UnsupportedCompressionType.code
    if exchange.version >= BY_ID_FROM and any(
        exchange.topic_name(topic["topic_id"]) is None for topic in message["topic_data"]
    ):
        return UNKNOWN_TOPIC_ID
    return next((each.error_code for each in response.partitions if each.error_code), 0)


# Unrolled: a request with one batch and acks other than 0, outside of transactions, and the response once the batch is
# appended. tests/kafka compares both with what the codec and the translator make of the same bytes.

FLEXIBLE_FROM = 9
"""Lengths are varints of one more than the length, and each structure ends with tagged fields (KIP-482)."""
_OPENING = struct.Struct(">hhiih")
"""Length of the transactional id (-1: none), acks, timeout, topics, length of the first topic's name."""
_COMPACT_OPENING = struct.Struct(">BhiB")
"""The same up to the topics."""
_ROW = struct.Struct(">iii")
"""Partitions, index of the first, size of its records."""
_COMPACT_ROW = struct.Struct(">Bi")
"""The same up to the index."""
_ONE = 2
"""As a varint: one element."""
_ID_SIZE = 16
_NAME_SIZE_MAX = 126
"""A longer name has a length of two bytes as a varint."""
_NO_TAGS = bytes(3)
"""Of the partition, the topic and the request."""


def _usual_request(frame: memoryview, at: int, exchange: Exchange) -> ProduceRequest | None:
    try:
        if exchange.version < FLEXIBLE_FROM:
            id_size, acks, timeout_ms, topics, size = _OPENING.unpack_from(frame, at)
            at += _OPENING.size
            partitions, index, records_size = _ROW.unpack_from(frame, at + max(size, 0))
            records_at = at + size + _ROW.size
            is_usual = id_size == -1 and topics == partitions == 1
            end = records_at + records_size
        else:
            id_size, acks, timeout_ms, topics = _COMPACT_OPENING.unpack_from(frame, at)
            at += _COMPACT_OPENING.size
            size = _ID_SIZE
            if exchange.version < BY_ID_FROM:
                size, at = frame[at] - 1, at + 1
            partitions, index = _COMPACT_ROW.unpack_from(frame, at + max(size, 0))
            records_size, records_at = read_varint(frame, at + size + _COMPACT_ROW.size)
            records_size -= 1
            end = records_at + records_size
            is_usual = id_size == 0 and topics == partitions == _ONE and frame[end : end + len(_NO_TAGS)] == _NO_TAGS
        if not is_usual or not acks or size <= 0 or size > _NAME_SIZE_MAX or records_size <= 0 or end > len(frame):
            return None
        spot = bytes(frame[at : at + size])
        by_id = exchange.version >= BY_ID_FROM
        name = exchange.topic_name(spot) if by_id else spot.decode()
    except (struct.error, IndexError, ValueError):
        return None
    if name is None or (exchange.version < ZSTD_FROM and _is_early_zstd(frame[records_at:end], exchange.version)):
        return None
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        client_id=exchange.client_id,
        transaction_version=TRANSACTION_V2 if exchange.version >= ADDS_FROM else 0,
        partitions=(
            ProducePartition(
                topic=name,
                topic_id=id_text(spot) if by_id else None,
                partition=index,
                records=(frame[records_at:end],),
            ),
        ),
    )


def _usual_response(response: ProduceResponse, exchange: Exchange) -> bytes | None:
    if len(response.partitions) != 1 or response.error_code:
        return None
    (answer,) = response.partitions
    if answer.error_code:
        return None
    version = exchange.version
    topic_id = exchange.topic_id(answer.topic) if version >= BY_ID_FROM else ZERO_UUID
    before, numbers, behind = _layout(version, answer.topic, topic_id or ZERO_UUID)
    values = (answer.partition, 0, answer.base_offset, answer.log_append_time_ms)
    if version >= LOG_START_FROM:
        return before + numbers.pack(*values, answer.log_start_offset) + behind
    return before + numbers.pack(*values) + behind


@lru_cache(1024)
def _layout(version: int, name: str, topic_id: bytes) -> tuple[bytes, struct.Struct, bytes]:
    """What the codec writes before and behind the numbers of such a response, and the numbers' form."""
    numbers = struct.Struct(">ihqqq" if version >= LOG_START_FROM else ">ihqq")
    zeros = dict.fromkeys(("index", "error_code", "base_offset", "log_append_time_ms", "log_start_offset"), 0)
    topic = {"name": name, "topic_id": topic_id, "partition_responses": [zeros]}
    whole = b"".join(encode("Produce", "response", version, {"responses": [topic]}))
    topic["partition_responses"] = [dict.fromkeys(zeros, -1)]
    other = b"".join(encode("Produce", "response", version, {"responses": [topic]}))
    start = next(at for at, (one, two) in enumerate(zip(whole, other, strict=True)) if one != two)
    return whole[:start], numbers, whole[start + numbers.size :]


PRODUCE = Translation(
    "Produce",
    3,
    13,
    _request,
    _response,
    # librdkafka before 2.11.1 stops compressing when it does not see version 0 (KAFKA-18659). Kafka does the same.
    advertised_first=0,
    usual=Usual(_usual_request, _usual_response),
)


def _init_response(_message: Message, response: InitProducerIdResponse, exchange: Exchange) -> Message:
    return {**plain(response), "error_code": code_for(response.error_code, exchange.version, _INIT_CODES)}


_INIT_CODES = {
    ProducerFenced.code: (4, InvalidProducerEpoch.code),
    # No controller gives the broker producer ids at present. Java's producers before 3.4 repeat the request after this
    # code only, any other one is fatal for them (KAFKA-14417).
    LeaderNotAvailable.code: (99, CoordinatorLoadInProgress.code),
}

INIT_PRODUCER_ID = Translation("InitProducerId", 0, 5, request_of(InitProducerIdRequest), _init_response)

# ---- DescribeProducers -----------------------------------------------------------------------------------------------


def _producers_request(message: Message, _exchange: Exchange) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        partitions=tuple(
            DescribeProducersPartition(topic=name, partition=each)
            for name, partitions in _asked_for(message).items()
            for each in partitions
        )
    )


def _producers_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    answers = {(each.topic, each.partition): each for each in response.partitions} if not response.error_code else {}
    return {
        "topics": [
            {
                "name": name,
                "partitions": [_producers(each, answers.get((name, each), response)) for each in partitions],
            }
            for name, partitions in _asked_for(message).items()
        ]
    }


def _asked_for(message: Message) -> dict[str, list[int]]:
    return each_once((topic["name"], topic["partition_indexes"]) for topic in message["topics"])


def _producers(partition: int, answer: Any) -> Message:
    """One partition; ``answer`` is its own, or the failed response as a whole."""
    return {
        "partition_index": partition,
        "error_code": code_for(answer.error_code, 0, _CODES),
        "error_message": answer.error_message or None,
        "active_producers": [] if answer.error_code else [plain(each) for each in answer.active],
    }


DESCRIBE_PRODUCERS = Translation("DescribeProducers", 0, 0, _producers_request, _producers_response)
