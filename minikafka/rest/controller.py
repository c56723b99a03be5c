"""``/v1/controller``: who leads the metadata quorum, how far everybody follows, and its log in readable form.

The state of the quorum is the active controller's to tell; the metadata log lies on every broker, and each shows its
own: ``committed`` marks what its watermark has passed.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from minikafka.errors import (
    CorruptMessage,
    KafkaStorageError,
    LeaderNotAvailable,
    NetworkException,
    OffsetOutOfRange,
    ProtocolError,
    ReplicaNotAvailable,
)
from minikafka.quorum.records import MetadataRecord, PartitionChange, decode
from minikafka.rest.leaders import from_controller, leader_members
from minikafka.rest.logs import FROM, LOG, LOG_BYTES_MAX, REPLICA, describe_log, log_out
from minikafka.rest.parameters import FORWARD, Integer
from minikafka.rest.route import CONTROLLER_PROBLEMS, Answer, Route
from minikafka.rest.schema import anything, flag, many, nullable, one_of, ref, shape, table, text, whole
from minikafka.rest.schemas import LEADER_EXAMPLE
from minikafka.rest.visit import Reply, Visit
from minikafka.types import METADATA_PARTITION
from minikafka.wire.batch import RecordBatch, iterate
from minikafka.wire.messages import CurrentLeader, DescribeQuorumRequest, DescribeQuorumResponse, QuorumReplica
from minikafka.wire.records import (
    CONTROL_KRAFT_VERSION,
    CONTROL_KRAFT_VOTERS,
    CONTROL_LEADER_CHANGE,
    CONTROL_SNAPSHOT_FOOTER,
    CONTROL_SNAPSHOT_HEADER,
    RecordView,
    control_type_of,
    decode_batch,
)

DESCRIBE_WAIT_S = 1.0

CONTROL_NAMES = {
    CONTROL_LEADER_CHANGE: "LeaderChange",
    CONTROL_SNAPSHOT_HEADER: "SnapshotHeader",
    CONTROL_SNAPSHOT_FOOTER: "SnapshotFooter",
    CONTROL_KRAFT_VERSION: "KRaftVersion",
    CONTROL_KRAFT_VOTERS: "KRaftVoters",
}

MAX_RECORDS = Integer(name="max_records", description="No more records than this.", default=100, low=1, high=1_000)


async def get_controller(visit: Visit) -> Reply:
    """The quorum: its leader, and how far every voter and observer is."""

    def items(response: DescribeQuorumResponse) -> tuple[DescribeQuorumResponse, ...]:
        return (response,)

    (quorum,) = await from_controller(visit, DescribeQuorumRequest(), items=items, wait_s=DESCRIBE_WAIT_S)
    leader = CurrentLeader(leader_id=quorum.leader_id, leader_epoch=quorum.leader_epoch)
    return Reply(
        {
            "cluster_id": quorum.cluster_id,
            "leader": leader_members(visit.host, leader),
            "high_watermark": quorum.high_watermark,
            "voters": [_member_out(each) for each in quorum.voters],
            "observers": [_member_out(each) for each in quorum.observers],
        }
    )


def _member_out(member: QuorumReplica) -> dict[str, Any]:
    def known(number: int) -> int | None:
        return number if number >= 0 else None

    return {
        "id": member.replica_id,
        "status": member.status,
        "log_end_offset": known(member.log_end_offset),
        "lag_records": known(member.lag),
        "last_fetch_ms_ago": known(member.last_fetch_ms_ago),
        "caught_up_ms_ago": known(member.last_caught_up_ms_ago),
    }


async def get_controller_log(visit: Visit) -> Reply:
    """The metadata log: every decision of the controllers since the last snapshot but one, in order."""
    node = visit[REPLICA] if visit.gives(REPLICA) else visit.host.node_id
    if node != visit.host.node_id and node not in visit.host.image.brokers:
        raise ReplicaNotAvailable(f"broker {node} is not registered")
    log = await describe_log(visit, METADATA_PARTITION, node, visit[FROM], max_bytes=LOG_BYTES_MAX)
    names = dict(visit.host.image.topic_names)
    records: list[dict[str, Any]] = []
    next_offset = max(visit[FROM], log.log_start_offset)
    for batch in iterate(b"".join(log.records)):
        for record in _records_of(batch):
            if record.offset < next_offset or len(records) == visit[MAX_RECORDS]:
                continue
            records.append(_record_out(batch, record, log.high_watermark, names))
            next_offset = record.offset + 1
    return Reply(
        {
            **log_out(log),
            "records": records,
            "next_offset": next_offset,
        }
    )


def _records_of(batch: RecordBatch) -> list[RecordView]:
    """Raises CorruptMessage: a metadata log that cannot be read is not shown in part."""
    return decode_batch(batch)


def _record_out(batch: RecordBatch, record: RecordView, high_watermark: int, names: dict[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "leader_epoch": batch.leader_epoch,
        "committed": record.offset < high_watermark,
    }
    if batch.is_control:
        kind = control_type_of(record)
        return {**document, "type": CONTROL_NAMES.get(kind, f"Control{kind}"), "fields": {}}
    try:
        decoded = decode(record.value or b"")
    except ProtocolError as error:
        return {**document, "type": "unreadable", "fields": {}, "detail": error.message}
    return {**document, "type": type(decoded).__name__, "fields": _fields_out(decoded, names)}


HIDDEN = "[hidden]"
"""In place of bytes: metadata records have no others than salts, keys and secrets."""


def _fields_out(record: MetadataRecord, names: dict[str, str]) -> dict[str, Any]:
    """What the record says; of a partition's change only what changes, with the topic's name where it is known."""
    document: dict[str, Any] = {}
    for each in fields(record):
        value = getattr(record, each.name)
        if value is None and isinstance(record, PartitionChange):
            continue
        if isinstance(value, bytes):
            value = HIDDEN
        document[each.name] = list(value) if isinstance(value, tuple) else value
    topic_id = document.get("topic_id")
    if topic_id in names:
        document["topic"] = names[topic_id]
    return document


# ---- the doors -------------------------------------------------------------------------------------------------------

_MEMBER = shape(
    "One member of the quorum.",
    id=ref("NodeId"),
    status=one_of("As `kafka-metadata-quorum` says it.", "Leader", "Follower", "Observer"),
    log_end_offset=nullable(ref("Offset")),
    lag_records=nullable(whole()),
    last_fetch_ms_ago=nullable(whole()),
    caught_up_ms_ago=nullable(whole()),
)
MEMBER_EXAMPLE = {
    "id": 1,
    "status": "Leader",
    "log_end_offset": 21,
    "lag_records": 0,
    "last_fetch_ms_ago": 0,
    "caught_up_ms_ago": 0,
}
_RECORD = shape(
    "One record of the metadata log.",
    optional=("detail",),
    offset=ref("Offset"),
    timestamp=ref("Timestamp"),
    leader_epoch=ref("Epoch"),
    committed=flag("A majority of the voters has it."),
    type=text("What it is, by Kafka's name."),
    fields=table(anything("A field."), "What it says."),
    detail=text("Why it cannot be read."),
)
ROUTES = (
    Route(
        method="GET",
        path="/v1/controller",
        handler=get_controller,
        tag="cluster",
        parameters=(FORWARD,),
        answers={
            200: Answer(
                description="The quorum, as its leader knows it.",
                schema=shape(
                    cluster_id=text(),
                    leader=ref("Leader"),
                    high_watermark=ref("Offset"),
                    voters=many(_MEMBER),
                    observers=many(_MEMBER),
                ),
                example={
                    "cluster_id": "MkU3OEVBNTcwNTJENDM2Qg",
                    "leader": LEADER_EXAMPLE,
                    "high_watermark": 21,
                    "voters": [MEMBER_EXAMPLE],
                    "observers": [],
                },
            )
        },
        problems=CONTROLLER_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/v1/controller/log",
        handler=get_controller_log,
        tag="cluster",
        parameters=(FROM, REPLICA, MAX_RECORDS),
        answers={
            200: Answer(
                description="The metadata log from there on.",
                schema=shape(
                    **LOG,
                    records=many(_RECORD),
                    next_offset=whole("Where the next request should begin."),
                ),
                example={
                    "replica": 1,
                    "role": "leader",
                    "leader_epoch": 1,
                    "log_start_offset": 0,
                    "high_watermark": 21,
                    "log_end_offset": 21,
                    "records": [
                        {
                            "offset": 20,
                            "timestamp": 1_795_000_000_000,
                            "leader_epoch": 1,
                            "committed": True,
                            "type": "PartitionChange",
                            "fields": {
                                "topic_id": "MDEyMzQ1Njc4OWFiY2RlZg",
                                "partition": 0,
                                "isr": [1, 2],
                                "topic": "orders",
                            },
                        }
                    ],
                    "next_offset": 21,
                },
            )
        },
        problems=(
            CorruptMessage,
            KafkaStorageError,
            LeaderNotAvailable,
            NetworkException,
            OffsetOutOfRange,
            ReplicaNotAvailable,
        ),
    ),
)
