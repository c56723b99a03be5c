"""Fetch (4 to 18): consumers only. Brokers of minikafka replicate over ``/rpc``."""

from __future__ import annotations

from minikafka.errors import FetchSessionTopicIdError, InvalidRequest
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.schema import ZERO_UUID
from minikafka.wire.kafka.translate.common import (
    UNKNOWN_TOPIC_ID,
    Exchange,
    Translation,
    by_topic,
    code_for,
    endpoints_of,
    id_text,
    leader_of,
)
from minikafka.wire.messages import (
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionName,
)

BY_ID_FROM = 13
LEADER_FROM = 16
"""Kafka names the leader from here on, with its address (KIP-951), though responses have a place for it from 12 on."""
FULL_EPOCH = 0
"""Session epoch of a request that names all partitions and begins a session."""
FINAL_EPOCH = -1
"""Session epoch of a request that neither uses nor begins a session."""

# As in produce.py; OFFSET_NOT_AVAILABLE is a matter of ListOffsets only.
_CODES = {9: (99, 6), 56: (6, 6)}


def _request(message: Message, exchange: Exchange) -> FetchRequest:
    by_id = exchange.version >= BY_ID_FROM
    replica_id = message["replica_id"] if exchange.version < 15 else message["replica_state"]["replica_id"]
    if replica_id >= 0:
        raise InvalidRequest(
            f"replica_id={replica_id}: this protocol serves consumers; brokers replicate over /rpc", member="replica_id"
        )
    partitions = []
    has_unknown = False
    for topic in message["topics"]:
        topic_id = id_text(topic["topic_id"]) if by_id else None
        name = exchange.topic_name(topic["topic_id"]) if by_id else topic["topic"]
        if name is None:
            has_unknown = True
            continue
        partitions += [
            FetchPartition(
                topic=name,
                partition=each["partition"],
                topic_id=topic_id,
                current_leader_epoch=each["current_leader_epoch"],
                fetch_offset=each["fetch_offset"],
                last_fetched_epoch=each["last_fetched_epoch"],
                partition_max_bytes=each["partition_max_bytes"],
            )
            for each in topic["partitions"]
        ]
    session_id, session_epoch = message["session_id"], message["session_epoch"]
    forgotten = []
    for topic in message["forgotten_topics_data"]:
        name = exchange.topic_name(topic["topic_id"]) if by_id else topic["topic"]
        if name is None:
            raise FetchSessionTopicIdError(
                "a topic that the session shall forget no longer exists: begin a new session"
            )
        forgotten += [PartitionName(topic=name, partition=each) for each in topic["partitions"]]
    if has_unknown:
        # A session is kept by topic name, so an id without a name cannot be part of one: the client goes on without,
        # and asks for everything each time until the id is known or given up. A request that names everything may also
        # end its former session.
        if session_epoch > FULL_EPOCH and session_id:
            raise FetchSessionTopicIdError("a topic id that is new in the session is not known: begin a new session")
        if session_epoch == FULL_EPOCH:
            session_epoch = FINAL_EPOCH
    return FetchRequest(
        max_wait_ms=message["max_wait_ms"],
        min_bytes=message["min_bytes"],
        max_bytes=message["max_bytes"],
        isolation_level=message["isolation_level"],
        session_id=session_id,
        session_epoch=session_epoch,
        partitions=tuple(partitions),
        forgotten=tuple(forgotten),
    )


def _response(message: Message, response: FetchResponse, exchange: Exchange) -> Message:
    version = exchange.version
    if response.error_code:
        return _refused(message, response.error_code, version)
    by_id = version >= BY_ID_FROM
    is_committed = message["isolation_level"] != READ_UNCOMMITTED
    topics = []
    for name, answers in by_topic(response.partitions).items():
        topic_id = exchange.topic_id(name) if by_id else None
        if by_id and topic_id is None:
            # Deleted since the session began: only a new session, by names that exist, gets the client on.
            return _refused(message, FetchSessionTopicIdError.code, version)
        topics.append(
            {
                "topic": name,
                "topic_id": topic_id or ZERO_UUID,
                "partitions": [_partition(each, version, is_committed=is_committed) for each in answers],
            }
        )
    if by_id:
        for topic in message["topics"]:
            if exchange.topic_name(topic["topic_id"]) is None:
                partitions = [_failed(each["partition"], UNKNOWN_TOPIC_ID) for each in topic["partitions"]]
                topics.append({"topic_id": topic["topic_id"], "partitions": partitions})
    answer: Message = {"error_code": 0, "session_id": response.session_id, "responses": topics}
    if any(each.current_leader is not None for each in response.partitions):
        answer["node_endpoints"] = endpoints_of(response.partitions, exchange.directory)
    return answer


def _refused(message: Message, code: int, version: int) -> Message:
    """The whole request failed. Before version 7 there is no place for that but each partition."""
    topics = []
    if version < 7:
        for topic in message["topics"]:
            partitions = [_failed(each["partition"], code_for(code, version, _CODES)) for each in topic["partitions"]]
            topics.append({"topic": topic["topic"], "partitions": partitions})
    return {"error_code": code_for(code, version, _CODES), "session_id": 0, "responses": topics}


def _failed(partition: int, code: int) -> Message:
    return {
        "partition_index": partition,
        "error_code": code,
        "high_watermark": -1,
        "aborted_transactions": None,
        "records": (),
    }


def _partition(answer: FetchedPartition, version: int, *, is_committed: bool) -> Message:
    row: Message = {
        "partition_index": answer.partition,
        "error_code": code_for(answer.error_code, version, _CODES),
        "high_watermark": answer.high_watermark,
        "last_stable_offset": answer.last_stable_offset,
        "log_start_offset": answer.log_start_offset,
        "aborted_transactions": [
            {"producer_id": each.producer_id, "first_offset": each.first_offset}
            for each in answer.aborted_transactions or ()
        ]
        if is_committed
        else None,
        "records": answer.records,
    }
    if answer.diverging_epoch is not None:
        diverging = answer.diverging_epoch
        row["diverging_epoch"] = {"epoch": diverging.epoch, "end_offset": diverging.end_offset}
    if answer.current_leader is not None and version >= LEADER_FROM:
        row["current_leader"] = leader_of(answer.current_leader)
    return row


FETCH = Translation("Fetch", 4, 18, _request, _response)
