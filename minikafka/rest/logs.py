"""A replica's own log, as it lies on its disk: batches and records, what is committed of them, and its epochs.

Any broker shows the log of any replica: it asks the one that has it. Unlike a fetch this goes beyond the high
watermark, to what may still be cut; ``committed`` marks which is which, by that replica's own watermark.
"""

from __future__ import annotations

from typing import Any

from minikafka.errors import (
    CorruptMessage,
    KafkaStorageError,
    NetworkException,
    OffsetOutOfRange,
    ProtocolError,
    ReplicaNotAvailable,
    UnknownTopicOrPartition,
)
from minikafka.rest.fetch import FORMAT, Room, decompressed_max, form_of, name_of
from minikafka.rest.json_text import Turns
from minikafka.rest.leaders import ask, partition_of
from minikafka.rest.parameters import INT32_MAX, INT64_MAX, PARTITION, TOPIC, Flag, Integer
from minikafka.rest.records import record_out
from minikafka.rest.route import Answer, Route
from minikafka.rest.schema import Schema, flag, many, ref, shape, text, whole
from minikafka.rest.schemas import RECORD_EXAMPLE
from minikafka.rest.visit import Reply, Visit
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.web.problems import Refused
from minikafka.wire.batch import CODEC_NAMES, RecordBatch, iterate, verify
from minikafka.wire.messages import DescribeLogRequest, DescribeLogResponse
from minikafka.wire.records import control_type_of, records_one_by_one

ASK_WAIT_S = 2.0

REPLICA = Integer(
    name="replica",
    description="Whose log: a broker's id. Left out: this broker's own, or the leader's where this broker has none.",
    default=-1,
    low=0,
    high=INT32_MAX,
)
FROM = Integer(
    name="from",
    description="The offset to begin at; left out: the log's start.",
    default=-1,
    low=0,
    high=INT64_MAX,
)
TO = Integer(
    name="to",
    description="Only batches that begin before this offset; left out: to the log's end.",
    default=-1,
    low=0,
    high=INT64_MAX,
)
MAX_BATCHES = Integer(name="max_batches", description="No more batches than this.", default=50, low=1, high=500)
RECORDS = Flag(name="records", description="Show the records of each batch.")

# Batches in one answer: their records become text three to five times as large.
LOG_BYTES_MAX = 1024 * 1024


async def get_log(visit: Visit) -> Reply:
    """The batches in a chosen replica's log, committed or not."""
    name = name_of(visit)
    log = await _describe(visit, name, max_bytes=LOG_BYTES_MAX)
    form = form_of(visit)
    batches: list[dict[str, Any]] = []
    room = Room()
    next_offset = max(visit[FROM], log.log_start_offset)
    for batch in iterate(b"".join(log.records)):
        if len(batches) == visit[MAX_BATCHES] or (visit.gives(TO) and batch.base_offset >= visit[TO]):
            break
        shown = _batch_out(batch, log.high_watermark)
        batches.append(shown)
        if visit[RECORDS]:
            await _add_records(shown, batch, form, room, decompressed_max(visit.host, name.topic))
        next_offset = batch.next_offset
    return Reply(
        {
            **_head_out(name, log),
            "synced_end": log.synced_end,
            "segment_count": log.segment_count,
            "size_bytes": log.size_bytes,
            "batches": batches,
            "next_offset": next_offset,
        }
    )


async def get_epochs(visit: Visit) -> Reply:
    """The leader-epoch cache of a chosen replica: which epoch's leader wrote from where to where (S21)."""
    name = name_of(visit)
    log = await _describe(visit, name, max_bytes=0)
    ends = [each.start_offset for each in log.epochs[1:]] + [log.log_end_offset]
    return Reply(
        {
            **_head_out(name, log),
            "epochs": [
                {"leader_epoch": each.leader_epoch, "start_offset": each.start_offset, "end_offset": end}
                for each, end in zip(log.epochs, ends, strict=False)
            ],
        }
    )


async def _describe(visit: Visit, name: TopicPartition, *, max_bytes: int) -> DescribeLogResponse:
    image = partition_of(visit.host, name)
    node: NodeId = visit[REPLICA]
    if not visit.gives(REPLICA):
        node = visit.host.node_id if visit.host.node_id in image.replicas else image.leader
    if node not in image.replicas:
        raise ReplicaNotAvailable(f"{name} is on the brokers {list(image.replicas)}, not on {node}")
    return await describe_log(visit, name, node, visit[FROM] if FROM.name in visit.values else -1, max_bytes=max_bytes)


async def describe_log(
    visit: Visit, name: TopicPartition, node: NodeId, offset: Offset, *, max_bytes: int
) -> DescribeLogResponse:
    """One broker's own log from ``offset`` on; -1: from its start."""
    request = DescribeLogRequest(topic=name.topic, partition=name.partition, offset=offset, max_bytes=max_bytes)
    try:
        log: DescribeLogResponse = await ask(visit, node, request, wait_s=ASK_WAIT_S, slack_s=0.0)
    except OffsetOutOfRange as error:
        raise Refused(error, topic=name.topic, partition=name.partition, replica=node) from None
    return log


def log_out(log: DescribeLogResponse) -> dict[str, Any]:
    """Whose log, and where it begins and ends."""
    return {
        "replica": log.broker_id,
        "role": log.role,
        "leader_epoch": log.leader_epoch,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
    }


def _head_out(name: TopicPartition, log: DescribeLogResponse) -> dict[str, Any]:
    return {"topic": name.topic, "partition": name.partition, **log_out(log)}


def _batch_out(batch: RecordBatch, high_watermark: Offset) -> dict[str, Any]:
    return {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "record_count": batch.record_count,
        "leader_epoch": batch.leader_epoch,
        "committed": batch.next_offset <= high_watermark,
        "crc": batch.crc,
        "is_valid": is_valid(batch),
        "size_bytes": batch.size,
        "max_timestamp": batch.max_timestamp,
        "compression": CODEC_NAMES[batch.codec] if batch.codec < len(CODEC_NAMES) else str(batch.codec),
        "is_control": batch.is_control,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
    }


def is_valid(batch: RecordBatch) -> bool:
    """Does the checksum fit the bytes?"""
    try:
        verify(batch.data)
    except ProtocolError:
        return False
    return True


async def _add_records(document: dict[str, Any], batch: RecordBatch, form: str, room: Room, limit: int) -> None:
    """Add the records of a batch, as far as the answer has room for them; ``detail`` says why some are not there."""
    turns = Turns()
    records: list[dict[str, Any]] = []
    document["records"] = records
    try:
        for record in records_one_by_one(batch, limit=limit):
            if room.is_full():
                document["detail"] = "not all records are shown: the answer is full; read them with a fetch"
                return
            out = record_out(record, batch.leader_epoch, form)
            if batch.is_control:
                out["control_type"] = control_type_of(record)
            records.append(out)
            await turns.after(room.take(record))
    except CorruptMessage as error:
        records.clear()
        document["detail"] = f"its records cannot be read: {error.message}"


# ---- the doors -------------------------------------------------------------------------------------------------------

LOG: dict[str, Schema] = {
    "replica": ref("NodeId"),
    "role": text("What the broker is for this partition."),
    "leader_epoch": ref("Epoch"),
    "log_start_offset": ref("Offset"),
    "high_watermark": ref("Offset"),
    "log_end_offset": ref("Offset"),
}
_HEAD = {
    "topic": ref("TopicName"),
    "partition": ref("PartitionNumber"),
    **LOG,
}
_BATCH = shape(
    "One record batch.",
    optional=("records", "detail"),
    base_offset=ref("Offset"),
    last_offset=ref("Offset"),
    record_count=whole(),
    leader_epoch=ref("Epoch"),
    committed=flag("Below this replica's high watermark: it cannot be cut any more."),
    crc=whole("CRC-32C as it stands in the batch."),
    is_valid=flag("The checksum fits the bytes."),
    size_bytes=whole(),
    max_timestamp=whole(),
    compression=text(),
    is_control=flag("Not for applications."),
    producer_id=whole("-1: not idempotent."),
    producer_epoch=whole(),
    base_sequence=whole(),
    records=many(ref("RecordOut")),
    detail=text("What is wrong with it."),
)
_HEAD_EXAMPLE = {
    "topic": "orders",
    "partition": 0,
    "replica": 2,
    "role": "follower",
    "leader_epoch": 3,
    "log_start_offset": 0,
    "high_watermark": 41,
    "log_end_offset": 42,
}
PROBLEMS = (
    CorruptMessage,
    KafkaStorageError,
    NetworkException,
    OffsetOutOfRange,
    ReplicaNotAvailable,
    UnknownTopicOrPartition,
)
ROUTES = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/log",
        handler=get_log,
        tag="partitions",
        parameters=(TOPIC, PARTITION, REPLICA, FROM, TO, MAX_BATCHES, RECORDS, FORMAT),
        answers={
            200: Answer(
                description="The log from there on.",
                schema=shape(
                    **_HEAD,
                    synced_end=whole("What survives a power cut: everything below."),
                    segment_count=whole("Files it is kept in."),
                    size_bytes=whole("Bytes in all of them."),
                    batches=many(_BATCH),
                    next_offset=whole("Where the next request should begin."),
                ),
                example={
                    **_HEAD_EXAMPLE,
                    "synced_end": 40,
                    "segment_count": 1,
                    "size_bytes": 4096,
                    "batches": [
                        {
                            "base_offset": 41,
                            "last_offset": 41,
                            "record_count": 1,
                            "leader_epoch": 3,
                            "committed": False,
                            "crc": 3_405_691_582,
                            "is_valid": True,
                            "size_bytes": 96,
                            "max_timestamp": 1_795_000_000_000,
                            "compression": "none",
                            "is_control": False,
                            "producer_id": -1,
                            "producer_epoch": -1,
                            "base_sequence": -1,
                            "records": [RECORD_EXAMPLE],
                        }
                    ],
                    "next_offset": 42,
                },
            )
        },
        problems=PROBLEMS,
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/epochs",
        handler=get_epochs,
        tag="partitions",
        parameters=(TOPIC, PARTITION, REPLICA),
        answers={
            200: Answer(
                description="The epochs, the oldest first.",
                schema=shape(
                    **_HEAD,
                    epochs=many(
                        shape(
                            leader_epoch=ref("Epoch"),
                            start_offset=ref("Offset"),
                            end_offset=whole("Where the next epoch begins, or the log's end."),
                        )
                    ),
                ),
                example={
                    **_HEAD_EXAMPLE,
                    "epochs": [
                        {"leader_epoch": 0, "start_offset": 0, "end_offset": 40},
                        {"leader_epoch": 3, "start_offset": 40, "end_offset": 42},
                    ],
                },
            )
        },
        problems=PROBLEMS,
    ),
)
