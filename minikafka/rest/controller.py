"""``/v1/controller``: who leads the metadata quorum, how far everybody follows, and its log in readable form.

The state of the quorum is the active controller's to tell; the metadata log lies on every broker, and each shows its
own: ``committed`` marks what its watermark has passed.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from minikafka import errors as kafka
from minikafka.quorum.records import MetadataRecord, PartitionChange, decode
from minikafka.rest.leaders import from_controller, leader_members
from minikafka.rest.logs import FROM, LOG_BYTES_MAX, REPLICA, Log, describe_log
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, Integer
from minikafka.rest.route import CONTROLLER_PROBLEMS, Json, Routes, Visit
from minikafka.rest.schema import Timestamp, anything, one_of, table
from minikafka.rest.schemas import Leader
from minikafka.types import METADATA_PARTITION, Epoch, NodeId, Offset
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

ROUTES = Routes("cluster")
DESCRIBE_WAIT_S = 1.0
CONTROL_NAMES = {
    CONTROL_LEADER_CHANGE: "LeaderChange",
    CONTROL_SNAPSHOT_HEADER: "SnapshotHeader",
    CONTROL_SNAPSHOT_FOOTER: "SnapshotFooter",
    CONTROL_KRAFT_VERSION: "KRaftVersion",
    CONTROL_KRAFT_VOTERS: "KRaftVoters",
}
MAX_RECORDS = Integer("max_records", "No more records than this.", default=100, low=1, high=1_000)


class _Member(Model):
    """One member of the quorum."""

    id: NodeId = member(example=1)
    status: str = member(one_of("As `kafka-metadata-quorum` says it.", "Leader", "Follower", "Observer"), "Leader")
    log_end_offset: Offset | None = member(example=21)
    lag_records: int | None = member(example=0)
    last_fetch_ms_ago: int | None = member(example=0)
    caught_up_ms_ago: int | None = member(example=0)

    @classmethod
    def described(cls, each: QuorumReplica) -> _Member:
        """Return a member as the leader of the quorum describes it."""
        return cls(
            id=each.replica_id,
            status=each.status,
            log_end_offset=_known(each.log_end_offset),
            lag_records=_known(each.lag),
            last_fetch_ms_ago=_known(each.last_fetch_ms_ago),
            caught_up_ms_ago=_known(each.last_caught_up_ms_ago),
        )


def _known(number: int) -> int | None:
    return number if number >= 0 else None


class _Quorum(Model):
    """The quorum of controllers."""

    cluster_id: str = member(example="MkU3OEVBNTcwNTJENDM2Qg")
    leader: Any = one(Leader)
    high_watermark: Offset = member(example=21)
    voters: list[_Member] = many_of(_Member)
    observers: list[_Member] = many_of(_Member)


class _Record(Model):
    """One record of the metadata log."""

    offset: Offset = member(example=20)
    timestamp: Timestamp = member(example=1_795_000_000_000)
    leader_epoch: Epoch = member(example=1)
    committed: bool = member("A majority of the voters has it.", example=True)
    type: str = member("What it is, by Kafka's name.", "PartitionChange")
    fields: dict[str, Any] = member(
        table(anything("A field."), "What it says."),
        {"topic_id": "MDEyMzQ1Njc4OWFiY2RlZg", "partition": 0, "isr": [1, 2], "topic": "orders"},
    )
    detail: str | None = member("Why it cannot be read.", default=None)


class _MetadataLog(Log):
    """A part of the metadata log."""

    records: list[_Record] = many_of(_Record)
    next_offset: int = member("Where the next request should begin.", 21)


@ROUTES.at(
    "GET /v1/controller",
    _Quorum.answer("The quorum, as its leader knows it.", observers=[]),
    parameters=(FORWARD,),
    problems=CONTROLLER_PROBLEMS,
)
async def get_controller(visit: Visit) -> Json:
    """The quorum: its leader, and how far every voter and observer is."""
    quorum: DescribeQuorumResponse = await from_controller(visit, DescribeQuorumRequest(), wait_s=DESCRIBE_WAIT_S)
    leader = CurrentLeader(leader_id=quorum.leader_id, leader_epoch=quorum.leader_epoch)
    return _Quorum.out_of(
        quorum,
        leader=leader_members(visit.host, leader),
        voters=[_Member.described(each) for each in quorum.voters],
        observers=[_Member.described(each) for each in quorum.observers],
    )


@ROUTES.at(
    "GET /v1/controller/log",
    _MetadataLog.answer(
        "The metadata log from there on.",
        replica=1,
        role="leader",
        leader_epoch=1,
        high_watermark=21,
        log_end_offset=21,
    ),
    parameters=(FROM, REPLICA, MAX_RECORDS),
    problems=(
        kafka.BrokerIdNotRegistered,
        kafka.CorruptMessage,
        kafka.KafkaStorageError,
        kafka.LeaderNotAvailable,
        kafka.NetworkException,
        kafka.OffsetOutOfRange,
    ),
)
async def get_controller_log(visit: Visit) -> Json:
    """The metadata log: every decision of the controllers since the last snapshot but one, in order."""
    node = visit[REPLICA] if visit.gives(REPLICA) else visit.host.node_id
    if node != visit.host.node_id and node not in visit.host.image.brokers:
        raise kafka.BrokerIdNotRegistered(f"parameter replica: broker {node} is not registered")
    log = await describe_log(visit, METADATA_PARTITION, node, visit[FROM], max_bytes=LOG_BYTES_MAX)
    names = dict(visit.host.image.topic_names)
    records: list[_Record] = []
    next_offset = max(visit[FROM], log.log_start_offset)
    for batch in iterate(b"".join(log.records)):
        # Raises CorruptMessage: a metadata log that cannot be read is not shown in part.
        for record in decode_batch(batch):
            if record.offset < next_offset or len(records) == visit[MAX_RECORDS]:
                continue
            records.append(_record_out(batch, record, log.high_watermark, names))
            next_offset = record.offset + 1
    return _MetadataLog.out_of(log, replica=log.broker_id, records=records, next_offset=next_offset)


def _record_out(batch: RecordBatch, record: RecordView, high_watermark: int, names: dict[str, str]) -> _Record:
    shown = _Record(
        offset=record.offset,
        timestamp=record.timestamp,
        leader_epoch=batch.leader_epoch,
        committed=record.offset < high_watermark,
        type="unreadable",
        fields={},
    )
    if batch.is_control:
        kind = control_type_of(record)
        shown.type = CONTROL_NAMES.get(kind, f"Control{kind}")
        return shown
    try:
        decoded = decode(record.value or b"")
    except kafka.ProtocolError as error:
        shown.detail = error.message
        return shown
    shown.type, shown.fields = type(decoded).__name__, _fields_out(decoded, names)
    return shown


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
