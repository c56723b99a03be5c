"""A replica's own log, as it lies on its disk: batches and records, what is committed of them, and its epochs.

Any broker shows the log of any replica: it asks the one that has it. Unlike a fetch this goes beyond the high
watermark, to what may still be cut; ``committed`` marks which is which, by that replica's own watermark.

The metadata log is on every broker too: its records are shown as what they decide, by Kafka's names.
"""

from __future__ import annotations

from typing import Any

from minikafka import errors as kafka
from minikafka.quorum.records import MetadataRecord, PartitionChange, decode, shown_fields
from minikafka.rest.fetch import FORMAT, Room, decompressed_max, form_of, name_of
from minikafka.rest.json_text import Turns
from minikafka.rest.leaders import ask, partition_of
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import INT32_MAX, INT64_MAX, Flag, Integer
from minikafka.rest.records import record_out
from minikafka.rest.route import Json, Routes, Visit
from minikafka.rest.schema import Timestamp, anything, table
from minikafka.rest.schemas import Place, RecordOut
from minikafka.types import METADATA_PARTITION, Epoch, NodeId, Offset, TopicPartition
from minikafka.web.problems import Refused, malformed
from minikafka.wire import records as wire
from minikafka.wire.batch import CODEC_NAMES, RecordBatch, iterate, verify
from minikafka.wire.messages import DescribeLogRequest, DescribeLogResponse

READING_PROBLEMS = (kafka.CorruptMessage, kafka.KafkaStorageError, kafka.NetworkException, kafka.OffsetOutOfRange)
ROUTES = Routes("partitions", problems=READING_PROBLEMS)
ASK_WAIT_S = 2.0
REPLICA = Integer(
    "replica",
    "Whose log: a broker's id. Left out: this broker's own, or the leader's where this broker has none.",
    high=INT32_MAX,
)
FROM = Integer("from", "The offset to begin at; left out: the log's start.", high=INT64_MAX)
TO = Integer("to", "Only batches that begin before this offset; left out: to the log's end.", high=INT64_MAX)
MAX_BATCHES = Integer("max_batches", "No more batches than this.", default=50, low=1, high=500)
RECORDS = Flag("records", "Show the records of each batch.")

# Batches in one answer: their records become text three to five times as large.
LOG_BYTES_MAX = 1024 * 1024


class Log(Model):
    """The replica, and where its log begins and ends."""

    replica: NodeId = member(example=2, source="broker_id")
    role: str = member("What the broker is for this partition.", "follower")
    leader_epoch: Epoch = member(example=3)
    log_start_offset: Offset = member(example=0)
    high_watermark: Offset = member(example=41)
    log_end_offset: Offset = member(example=42)


class _Batch(Model):
    """One record batch."""

    base_offset: Offset = member(example=41)
    last_offset: Offset = member(example=41)
    record_count: int = member(example=1)
    leader_epoch: Epoch = member(example=3)
    committed: bool = member("Below this replica's high watermark: it cannot be cut any more.", example=False)
    crc: int = member("CRC-32C as it stands in the batch.", 3_405_691_582)
    is_valid: bool = member("The checksum fits the bytes.", example=True)
    size_bytes: int = member(example=96, source="size")
    max_timestamp: int = member(example=1_795_000_000_000)
    compression: str = member(example="none")
    is_control: bool = member("Not for applications.", example=False)
    producer_id: int = member("-1: not idempotent.", -1)
    producer_epoch: int = member(example=-1)
    base_sequence: int = member(example=-1)
    records: list[Any] | None = many_of(RecordOut, example=[RecordOut.example()], default=None)
    detail: str | None = member("What is wrong with it.", default=None)


class _Batches(Log, Place):
    """Batches of a log."""

    synced_end: int = member("What survives a power cut: everything below.", 40)
    segment_count: int = member("Files it is kept in.", 1)
    size_bytes: int = member("Bytes in all of them.", 4096)
    batches: list[Any] = many_of(_Batch)
    next_offset: int = member("Where the next request should begin.", 42)


class _Epoch(Model):
    """A leader epoch in a log."""

    leader_epoch: Epoch = member(example=3)
    start_offset: Offset = member(example=40)
    end_offset: Offset = member("Where the next epoch begins, or the log's end.", 42)


class _Epochs(Log, Place):
    """The leader epochs of a log, the oldest first."""

    epochs: list[Any] = many_of(_Epoch)


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions/{partition}/log",
    _Batches.answer("The log from there on."),
    parameters=(REPLICA, FROM, TO, MAX_BATCHES, RECORDS, FORMAT),
    problems=(kafka.ReplicaNotAvailable, kafka.UnknownTopicOrPartition),
)
async def get_log(visit: Visit) -> Json:
    """The batches in a chosen replica's log, committed or not."""
    name = name_of(visit)
    if visit.gives(TO) and visit.gives(FROM) and visit[TO] < visit[FROM]:
        detail = f"{visit[TO]} is below from={visit[FROM]}; give an offset at or above it"
        raise malformed(f"parameter to: {detail}", [{"parameter": "to", "detail": detail}])
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
    return _Batches.out_of(log, **name._asdict(), batches=batches, next_offset=next_offset)


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions/{partition}/epochs",
    _Epochs.answer("The epochs, the oldest first."),
    parameters=(REPLICA,),
    problems=(kafka.ReplicaNotAvailable, kafka.UnknownTopicOrPartition),
)
async def get_epochs(visit: Visit) -> Json:
    """The leader-epoch cache of a chosen replica: which epoch's leader wrote from where to where (S21)."""
    name = name_of(visit)
    log = await _describe(visit, name, max_bytes=0)
    ends = [each.start_offset for each in log.epochs[1:]] + [log.log_end_offset]
    epochs = [_Epoch.out_of(each, end_offset=end) for each, end in zip(log.epochs, ends, strict=False)]
    return _Epochs.out_of(log, **name._asdict(), epochs=epochs)


async def _describe(visit: Visit, name: TopicPartition, *, max_bytes: int) -> DescribeLogResponse:
    image = partition_of(visit.host, name)
    node: NodeId = visit[REPLICA]
    if not visit.gives(REPLICA):
        node = visit.host.node_id if visit.host.node_id in image.replicas else image.leader
    if node not in image.replicas:
        detail = f"{name} is on the brokers {list(image.replicas)}, not on {node}"
        raise malformed(f"parameter replica: {detail}", [{"parameter": "replica", "detail": detail}], status=404)
    return await describe_log(visit, name, node, visit[FROM] if FROM.name in visit.values else -1, max_bytes=max_bytes)


async def describe_log(
    visit: Visit, name: TopicPartition, node: NodeId, offset: Offset, *, max_bytes: int
) -> DescribeLogResponse:
    """One broker's own log from ``offset`` on; -1: from its start."""
    request = DescribeLogRequest(topic=name.topic, partition=name.partition, offset=offset, max_bytes=max_bytes)
    try:
        log: DescribeLogResponse = await ask(visit, node, request, wait_s=ASK_WAIT_S, slack_s=0.0)
    except kafka.OffsetOutOfRange as error:
        raise Refused(error, topic=name.topic, partition=name.partition, replica=node) from None
    return log


def _batch_out(batch: RecordBatch, high_watermark: Offset) -> dict[str, Any]:
    return _Batch.out_of(
        batch,
        committed=batch.next_offset <= high_watermark,
        is_valid=is_valid(batch),
        compression=CODEC_NAMES[batch.codec] if batch.codec < len(CODEC_NAMES) else str(batch.codec),
        records=None,
        detail=None,
    )


def is_valid(batch: RecordBatch) -> bool:
    """Return True if the checksum fits the bytes."""
    try:
        verify(batch.data)
    except kafka.ProtocolError:
        return False
    return True


async def _add_records(document: dict[str, Any], batch: RecordBatch, form: str, room: Room, limit: int) -> None:
    """Add the records of a batch, as far as the answer has room for them; ``detail`` says why some are not there."""
    turns = Turns()
    records: list[dict[str, Any]] = []
    document["records"] = records
    try:
        for record in wire.records_one_by_one(batch, limit=limit):
            if room.is_full():
                document["detail"] = "not all records are shown: the answer is full; read them with a fetch"
                return
            out = record_out(record, batch.leader_epoch, form)
            if batch.is_control:
                out["control_type"] = wire.control_type_of(record)
            records.append(out)
            await turns.after(room.take(record))
    except kafka.CorruptMessage as error:
        records.clear()
        document["detail"] = f"its records cannot be read: {error.message}"


# ---- the metadata log ------------------------------------------------------------------------------------------------

CONTROL_NAMES = {
    wire.CONTROL_LEADER_CHANGE: "LeaderChange",
    wire.CONTROL_SNAPSHOT_HEADER: "SnapshotHeader",
    wire.CONTROL_SNAPSHOT_FOOTER: "SnapshotFooter",
    wire.CONTROL_KRAFT_VERSION: "KRaftVersion",
    wire.CONTROL_KRAFT_VOTERS: "KRaftVoters",
}
MAX_RECORDS = Integer("max_records", "No more records than this.", default=100, low=1, high=1_000)


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

    records: list[Any] = many_of(_Record)
    next_offset: int = member("Where the next request should begin.", 21)


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
    problems=(kafka.BrokerIdNotRegistered, kafka.LeaderNotAvailable),
    tag="cluster",
)
async def get_controller_log(visit: Visit) -> Json:
    """The metadata log: every decision of the controllers since the last snapshot but one, in order."""
    node = visit[REPLICA] if visit.gives(REPLICA) else visit.host.node_id
    if node != visit.host.node_id and node not in visit.host.image.brokers:
        raise kafka.BrokerIdNotRegistered(f"parameter replica: broker {node} is not registered")
    log = await describe_log(visit, METADATA_PARTITION, node, visit[FROM], max_bytes=LOG_BYTES_MAX)
    names = dict(visit.host.image.topic_names)
    records: list[dict[str, Any]] = []
    next_offset = max(visit[FROM], log.log_start_offset)
    for batch in iterate(b"".join(log.records)):
        # Raises CorruptMessage: a metadata log that cannot be read is not shown in part.
        for record in wire.decode_batch(batch):
            if record.offset < next_offset or len(records) == visit[MAX_RECORDS]:
                continue
            records.append(_record_out(batch, record, log.high_watermark, names))
            next_offset = record.offset + 1
    return _MetadataLog.out_of(log, records=records, next_offset=next_offset)


def _record_out(
    batch: RecordBatch, record: wire.RecordView, high_watermark: int, names: dict[str, str]
) -> dict[str, Any]:
    kind, detail = "unreadable", ""
    said: dict[str, Any] = {}
    if batch.is_control:
        control = wire.control_type_of(record)
        kind = CONTROL_NAMES.get(control, f"Control{control}")
    else:
        try:
            decoded = decode(record.value or b"")
            kind, said = type(decoded).__name__, _fields_out(decoded, names)
        except kafka.ProtocolError as error:
            detail = error.message
    where = {"leader_epoch": batch.leader_epoch, "committed": record.offset < high_watermark}
    return _Record.out_of(record, **where, type=kind, fields=said, detail=detail or None)


def _fields_out(record: MetadataRecord, names: dict[str, str]) -> dict[str, Any]:
    """What the record says; of a partition's change only what changes, with the topic's name where it is known."""
    document = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in shown_fields(record).items()
        if value is not None or not isinstance(record, PartitionChange)
    }
    topic_id = document.get("topic_id")
    if topic_id in names:
        document["topic"] = names[topic_id]
    return document
