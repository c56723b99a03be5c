"""AddPartitionsToTxn (0 to 3), AddOffsetsToTxn (0 to 4), TxnOffsetCommit (0 to 5), EndTxn (0 to 5),
WriteTxnMarkers (1 to 2), DescribeTransactions (0) and ListTransactions (0 to 2).

Versions 4 and 5 of AddPartitionsToTxn are for brokers, which speak ``/rpc`` here.
"""

from __future__ import annotations

from typing import Any

from minikafka import errors as kafka
from minikafka.wire import transaction_messages as t
from minikafka.wire.group_messages import CommitPartition
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Exchange, Translation, by_topic, code_for
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import PartitionName

# REPLICA_NOT_AVAILABLE is ours: a Kafka broker without the replica answers NOT_LEADER_OR_FOLLOWER.
_CODES = {9: (99, 6)}


def _markers_request(message: Message, _exchange: Exchange) -> t.WriteTxnMarkersRequest:
    return t.WriteTxnMarkersRequest(
        markers=tuple(
            t.TransactionMarker(
                producer_id=marker["producer_id"],
                producer_epoch=marker["producer_epoch"],
                committed=marker["transaction_result"],
                coordinator_epoch=marker["coordinator_epoch"],
                transaction_version=marker["transaction_version"],
                partitions=tuple(
                    PartitionName(topic=topic["name"], partition=each)
                    for topic in marker["topics"]
                    for each in topic["partition_indexes"]
                ),
            )
            for marker in message["markers"]
        )
    )


def _markers_response(message: Message, response: Any, exchange: Exchange) -> Message:
    codes = (each.error_code for each in response.markers)

    def code() -> int:
        return code_for(response.error_code or next(codes), exchange.version, _CODES)

    return {
        "markers": [
            {
                "producer_id": marker["producer_id"],
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            {"partition_index": each, "error_code": code()} for each in topic["partition_indexes"]
                        ],
                    }
                    for topic in marker["topics"]
                ],
            }
            for marker in message["markers"]
        ]
    }


WRITE_TXN_MARKERS = Translation("WriteTxnMarkers", 1, 2, _markers_request, _markers_response)

# ---- requests of producers -------------------------------------------------------------------------------------------

_FENCED = {kafka.ProducerFenced.code: (2, kafka.InvalidProducerEpoch.code)}
"""Clients know PRODUCER_FENCED from version 2 of these APIs on (KIP-588)."""

END_V2_FROM = 5
"""EndTxn of transaction version 2."""


def _add_request(message: Message, _exchange: Exchange) -> t.AddPartitionsToTxnRequest:
    return t.AddPartitionsToTxnRequest(
        transactions=(
            t.TransactionPartitions(
                transactional_id=message["v3_and_below_transactional_id"],
                producer_id=message["v3_and_below_producer_id"],
                producer_epoch=message["v3_and_below_producer_epoch"],
                partitions=tuple(
                    PartitionName(topic=topic["name"], partition=each)
                    for topic in message["v3_and_below_topics"]
                    for each in topic["partitions"]
                ),
            ),
        )
    )


def _add_response(message: Message, response: Any, exchange: Exchange) -> Message:
    added = response.transactions[0] if response.transactions else response
    codes = {} if added.error_code else {(each.topic, each.partition): each.error_code for each in added.partitions}

    def code(topic: str, partition: int) -> int:
        return code_for(added.error_code or codes[topic, partition], exchange.version, _FENCED)

    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {"partition_index": each, "partition_error_code": code(topic["name"], each)}
                    for each in topic["partitions"]
                ],
            }
            for topic in message["v3_and_below_topics"]
        ]
    }


ADD_PARTITIONS_TO_TXN = Translation("AddPartitionsToTxn", 0, 3, _add_request, _add_response)


def _add_offsets_request(message: Message, _exchange: Exchange) -> t.AddOffsetsToTxnRequest:
    return t.AddOffsetsToTxnRequest(
        transactional_id=message["transactional_id"],
        producer_id=message["producer_id"],
        producer_epoch=message["producer_epoch"],
        group_id=message["group_id"],
    )


def _add_offsets_response(_message: Message, response: Any, exchange: Exchange) -> Message:
    return {"error_code": code_for(response.error_code, exchange.version, _FENCED)}


ADD_OFFSETS_TO_TXN = Translation("AddOffsetsToTxn", 0, 4, _add_offsets_request, _add_offsets_response)


OFFSETS_V2_FROM = 5
"""TxnOffsetCommit of transaction version 2."""

_OFFSETS_CODES = {
    kafka.TransactionAbortable.code: (4, kafka.InvalidTxnState.code),
    kafka.CoordinatorLoadInProgress.code: (2, kafka.CoordinatorNotAvailable.code),
}


def _commit_request(message: Message, exchange: Exchange) -> t.TxnOffsetCommitRequest:
    return t.TxnOffsetCommitRequest(
        transactional_id=message["transactional_id"],
        group_id=message["group_id"],
        producer_id=message["producer_id"],
        producer_epoch=message["producer_epoch"],
        generation_id=message["generation_id"],
        member_id=message["member_id"],
        group_instance_id=message["group_instance_id"],
        transaction_version=TRANSACTION_V2 if exchange.version >= OFFSETS_V2_FROM else 0,
        partitions=tuple(
            CommitPartition(
                topic=topic["name"],
                partition=each["partition_index"],
                offset=each["committed_offset"],
                leader_epoch=each["committed_leader_epoch"],
                metadata=each["committed_metadata"] or "",
            )
            for topic in message["topics"]
            for each in topic["partitions"]
        ),
    )


def _commit_response(message: Message, response: Any, exchange: Exchange) -> Message:
    codes = {(each.topic, each.partition): each.error_code for each in response.partitions}

    def code(topic: str, partition: int) -> int:
        return code_for(response.error_code or codes[topic, partition], exchange.version, _OFFSETS_CODES)

    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": each["partition_index"],
                        "error_code": code(topic["name"], each["partition_index"]),
                    }
                    for each in topic["partitions"]
                ],
            }
            for topic in message["topics"]
        ]
    }


TXN_OFFSET_COMMIT = Translation("TxnOffsetCommit", 0, 5, _commit_request, _commit_response)


def _end_request(message: Message, exchange: Exchange) -> t.EndTxnRequest:
    return t.EndTxnRequest(
        transactional_id=message["transactional_id"],
        producer_id=message["producer_id"],
        producer_epoch=message["producer_epoch"],
        committed=message["committed"],
        transaction_version=TRANSACTION_V2 if exchange.version >= END_V2_FROM else 0,
    )


def _end_response(_message: Message, response: Any, exchange: Exchange) -> Message:
    return {
        "error_code": code_for(response.error_code, exchange.version, _FENCED),
        "producer_id": response.producer_id if not response.error_code else -1,
        "producer_epoch": response.producer_epoch if not response.error_code else -1,
    }


END_TXN = Translation("EndTxn", 0, 5, _end_request, _end_response)

# ---- requests of administrators --------------------------------------------------------------------------------------


def _describe_request(message: Message, _exchange: Exchange) -> t.DescribeTransactionsRequest:
    return t.DescribeTransactionsRequest(transactional_ids=tuple(message["transactional_ids"]))


def _describe_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    if response.error_code:
        return {"transaction_states": [_unknown(each, response.error_code) for each in message["transactional_ids"]]}
    return {
        "transaction_states": [
            _unknown(each.transactional_id, each.error_code)
            if each.error_code
            else {
                "error_code": 0,
                "transactional_id": each.transactional_id,
                "transaction_state": each.state,
                "transaction_timeout_ms": each.timeout_ms,
                "transaction_start_time_ms": each.started_ms,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "topics": [
                    {"topic": name, "partitions": [one.partition for one in partitions]}
                    for name, partitions in by_topic(each.partitions).items()
                ],
            }
            for each in response.transactions
        ]
    }


def _unknown(transactional_id: str, code: int) -> Message:
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout_ms": 0,
        "transaction_start_time_ms": -1,
        "producer_id": -1,
        "producer_epoch": -1,
        "topics": [],
    }


DESCRIBE_TRANSACTIONS = Translation("DescribeTransactions", 0, 0, _describe_request, _describe_response)


def _list_request(message: Message, _exchange: Exchange) -> t.ListTransactionsRequest:
    return t.ListTransactionsRequest(
        states=tuple(message["state_filters"]),
        producer_ids=tuple(message["producer_id_filters"]),
        duration_ms=message["duration_filter"],
        id_pattern=message["transactional_id_pattern"] or "",
    )


def _list_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    if response.error_code:
        return {"error_code": response.error_code, "unknown_state_filters": [], "transaction_states": []}
    return {
        "error_code": 0,
        "unknown_state_filters": list(response.unknown_states),
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": each.state,
            }
            for each in response.transactions
        ],
    }


LIST_TRANSACTIONS = Translation("ListTransactions", 0, 2, _list_request, _list_response)
