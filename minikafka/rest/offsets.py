"""Positions in a partition: ListOffsets, where an epoch ends, DeleteRecords; and ids for idempotent producers."""

from __future__ import annotations

from typing import Any, NamedTuple

from minikafka.errors import InvalidRequest, OffsetNotAvailable, OffsetOutOfRange, RequestTimedOut
from minikafka.rest.body import FORM_NOTE, Members, kind_of, parsed_object, read_body
from minikafka.rest.fetch import name_of
from minikafka.rest.leaders import ask, from_leader, leader_members
from minikafka.rest.parameters import FORWARD, INT32_MAX, INT64_MAX, PARTITION, TOPIC, Integer, Parsed, Wrong
from minikafka.rest.records import moment_ms
from minikafka.rest.route import LEADER_PROBLEMS, Answer, Body, Route, json_body
from minikafka.rest.schema import nullable, ref, shape, text, whole
from minikafka.rest.schemas import LEADER_EXAMPLE
from minikafka.rest.topics import TIMEOUT_MS
from minikafka.rest.visit import Reply, Visit
from minikafka.types import TopicPartition
from minikafka.web.problems import Fault, Refused, malformed, unacceptable
from minikafka.wire.limits import shown
from minikafka.wire.messages import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    CurrentLeader,
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochAnswer,
    EpochQuery,
    ExplainPartitionRequest,
    ExplainPartitionResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from minikafka.wire.outcomes import failure_of

LOOK_UP_WAIT_S = 1.0

# Words of ListOffsets, and of what only the leader's replica says.
WORDS = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}
OWN_WORDS = ("hw", "leo")


class At(NamedTuple):
    """Where to look: one of the words, or a moment in milliseconds."""

    word: str
    timestamp: int


def _read_at(given: str) -> At:
    if given in WORDS:
        return At(given, WORDS[given])
    if given in OWN_WORDS:
        return At(given, LATEST)
    if given.isascii() and given.isdigit() and len(given) <= 18:
        return At("timestamp", int(given))
    try:
        return At("timestamp", moment_ms(given))
    except ValueError:
        words = ", ".join((*WORDS, *OWN_WORDS))
        raise Wrong(f"{shown(given)}: one of {words}, milliseconds since 1970 or ISO 8601 is needed") from None


AT = Parsed(
    name="at",
    description="`earliest`: the log's start. `latest` (also `hw`): where the next committed record will lie. `leo`: "
    "the leader's log end. `max-timestamp`: the newest record. A moment (milliseconds since 1970, or ISO 8601 with a "
    "time zone): the first record at or after it; offset -1 when there is none.",
    default=At("latest", LATEST),
    default_shown="latest",
    reader=_read_at,
    described={
        "anyOf": [
            {"type": "string", "enum": [*WORDS, *OWN_WORDS]},
            {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
            {"type": "string", "format": "date-time"},
        ]
    },
    example="earliest",
)
EPOCH = Integer(
    name="epoch",
    description="Where this leader epoch ends in the leader's log (OffsetForLeaderEpoch, KIP-101), in place of `at`.",
    default=-1,
    low=0,
    high=INT32_MAX,
)


async def get_offsets(visit: Visit) -> Reply:
    """An offset by its name, by time, or by leader epoch."""
    name = name_of(visit)
    if visit.gives(EPOCH):
        if visit.gives(AT):
            raise malformed("parameter epoch: stands beside at; only one can be")
        return await _epoch_end(visit, name)
    at = visit[AT]
    if at.word in OWN_WORDS:
        return await _own_mark(visit, name, at.word)
    request = ListOffsetsRequest(
        partitions=(ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=at.timestamp),)
    )

    def pick(response: ListOffsetsResponse) -> ListedOffset:
        return response.partitions[0]

    found, leader = await from_leader(visit, name, request, pick=pick, wait_s=LOOK_UP_WAIT_S)
    timestamp = found.timestamp if found.timestamp >= 0 else None
    return _offset_out(visit, name, leader, at.word, found.offset, found.leader_epoch, timestamp)


async def _own_mark(visit: Visit, name: TopicPartition, word: str) -> Reply:
    def pick(response: ExplainPartitionResponse) -> ExplainPartitionResponse:
        return response

    request = ExplainPartitionRequest(topic=name.topic, partition=name.partition)
    described, leader = await from_leader(visit, name, request, pick=pick, wait_s=LOOK_UP_WAIT_S)
    if described.replica is None:
        raise OffsetNotAvailable(f"broker {leader.leader_id} has not taken up {name} yet")
    offset = described.replica.high_watermark if word == "hw" else described.replica.log_end_offset
    return _offset_out(visit, name, leader, word, offset, leader.leader_epoch, None)


async def _epoch_end(visit: Visit, name: TopicPartition) -> Reply:
    request = OffsetForLeaderEpochRequest(
        partitions=(EpochQuery(topic=name.topic, partition=name.partition, leader_epoch=visit[EPOCH]),)
    )

    def pick(response: OffsetForLeaderEpochResponse) -> EpochAnswer:
        return response.partitions[0]

    found, leader = await from_leader(visit, name, request, pick=pick, wait_s=LOOK_UP_WAIT_S)
    return _offset_out(visit, name, leader, "epoch", found.end_offset, found.leader_epoch, None)


def _offset_out(
    visit: Visit,
    name: TopicPartition,
    leader: CurrentLeader,
    word: str,
    offset: int,
    epoch: int,
    timestamp: int | None,
) -> Reply:
    return Reply(
        {
            "topic": name.topic,
            "partition": name.partition,
            "at": word,
            "offset": offset,
            "leader_epoch": epoch,
            "timestamp": timestamp,
            "leader": leader_members(visit.host, leader),
        }
    )


# ---- truncate-before -------------------------------------------------------------------------------------------------


async def post_truncation(visit: Visit) -> Reply:
    """Delete what lies before an offset (DeleteRecords); ``{"offset": -1}``: all that is committed.

    Answers when the log start of every live replica has reached the offset.
    """
    name = name_of(visit)
    kind = kind_of(visit.http)
    document = parsed_object(await read_body(visit.http, visit.host, visit.admission), kind, visit.http)
    faults: list[Fault] = []
    members = Members(document, "", faults)
    offset = members.integer("offset", -1, low=-1, high=INT64_MAX)
    if "offset" not in document:
        members.wrong("offset", "is missing; -1 means the high watermark")
    members.done()
    if faults:
        raise unacceptable(faults)
    request = DeleteRecordsRequest(
        timeout_ms=visit[TIMEOUT_MS],
        partitions=(DeleteRecordsPartition(topic=name.topic, partition=name.partition, offset=offset),),
    )

    def pick(response: DeleteRecordsResponse) -> DeletedRecords:
        return response.partitions[0]

    # Asked twice, it does the same: what is deleted stays deleted.
    found, leader = await from_leader(visit, name, request, pick=pick, wait_s=visit[TIMEOUT_MS] / 1000)
    return Reply(
        {
            "topic": name.topic,
            "partition": name.partition,
            "low_watermark": found.low_watermark,
            "leader": leader_members(visit.host, leader),
            **({"note": FORM_NOTE} if kind == "form" else {}),
        }
    )


# ---- producer ids ----------------------------------------------------------------------------------------------------


async def post_producer_id(visit: Visit) -> Reply:
    """A number for an idempotent producer (InitProducerId); with its own number, the next epoch, which fences the last.

    The numbers go into the headers ``Producer-Id``, ``Producer-Epoch`` and ``Base-Sequence`` of produce requests.
    """
    body = await read_body(visit.http, visit.host, visit.admission)
    faults: list[Fault] = []
    members = Members(parsed_object(body, kind_of(visit.http), visit.http) if body.strip() else {}, "", faults)
    producer_id = members.integer("producer_id", -1, low=0, high=INT64_MAX)
    producer_epoch = members.integer("producer_epoch", -1, low=0, high=2**15 - 1)
    members.done()
    if (producer_id < 0) != (producer_epoch < 0) and not faults:
        members.wrong("producer_epoch" if producer_epoch < 0 else "producer_id", "is missing; both or none")
    if faults:
        raise unacceptable(faults)
    request = InitProducerIdRequest(producer_id=producer_id, producer_epoch=producer_epoch)
    given: InitProducerIdResponse = await ask(visit, visit.host.node_id, request, wait_s=LOOK_UP_WAIT_S)
    if given.error_code:
        raise Refused(failure_of(given))
    return Reply({"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}, 201)


# ---- the doors -------------------------------------------------------------------------------------------------------

_OFFSET = shape(
    "One position.",
    topic=ref("TopicName"),
    partition=ref("PartitionNumber"),
    at=text("What was asked for."),
    offset=ref("Offset"),
    leader_epoch=ref("Epoch"),
    timestamp=nullable(ref("Timestamp")),
    leader=ref("Leader"),
)
_PRODUCER: dict[str, Any] = {
    "producer_id": whole("Its number.", minimum=0, maximum=INT64_MAX),
    "producer_epoch": whole("Its incarnation.", minimum=0, maximum=2**15 - 1),
}
ROUTES = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/offsets",
        handler=get_offsets,
        tag="records",
        parameters=(TOPIC, PARTITION, AT, EPOCH, FORWARD),
        answers={
            200: Answer(
                description="The offset.",
                schema=_OFFSET,
                example={
                    "topic": "orders",
                    "partition": 0,
                    "at": "earliest",
                    "offset": 0,
                    "leader_epoch": 0,
                    "timestamp": None,
                    "leader": LEADER_EXAMPLE,
                },
            )
        },
        problems=(*LEADER_PROBLEMS, OffsetNotAvailable),
    ),
    Route(
        method="POST",
        path="/v1/topics/{topic}/partitions/{partition}/truncate-before",
        handler=post_truncation,
        tag="partitions",
        parameters=(TOPIC, PARTITION, TIMEOUT_MS, FORWARD),
        body=json_body(
            shape(
                "What to delete.",
                offset=whole("All before it goes; -1: all before the high watermark.", minimum=-1, maximum=INT64_MAX),
            ),
            {"offset": 40},
        ),
        answers={
            200: Answer(
                description="Deleted on every live replica.",
                schema=shape(
                    optional=("note",),
                    topic=ref("TopicName"),
                    partition=ref("PartitionNumber"),
                    low_watermark=ref("Offset"),
                    leader=ref("Leader"),
                    note=text("What could be asked better."),
                ),
                example={"topic": "orders", "partition": 0, "low_watermark": 40, "leader": LEADER_EXAMPLE},
            )
        },
        problems=(*LEADER_PROBLEMS, OffsetOutOfRange, RequestTimedOut),
    ),
    Route(
        method="POST",
        path="/v1/producer-ids",
        handler=post_producer_id,
        tag="records",
        body=Body(
            contents=json_body(
                shape("An earlier incarnation, or nothing.", optional=("producer_id", "producer_epoch"), **_PRODUCER),
                {},
            ).contents,
            required=False,
        ),
        answers={
            201: Answer(
                description="The producer's number.",
                schema=shape(**_PRODUCER),
                example={"producer_id": 1000, "producer_epoch": 0},
            )
        },
        problems=(InvalidRequest,),
    ),
)
