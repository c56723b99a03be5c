"""Positions in a partition: ListOffsets, where an epoch ends, DeleteRecords; and ids for idempotent producers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from minikafka.errors import InvalidRequest, OffsetNotAvailable, OffsetOutOfRange, RequestTimedOut
from minikafka.rest.fetch import name_of
from minikafka.rest.leaders import LOOK_UP_WAIT_S, ask, from_leader
from minikafka.rest.model import Model, member, one
from minikafka.rest.parameters import FORWARD, INT32_MAX, INT64_MAX, TIMEOUT_MS, Integer, Parsed, Wrong
from minikafka.rest.records import time_ms
from minikafka.rest.route import LEADER_PROBLEMS, Json, Reply, Routes, Visit
from minikafka.rest.schema import Timestamp, whole
from minikafka.rest.schemas import Leader, Place
from minikafka.types import Epoch, Offset, TopicPartition
from minikafka.web.problems import malformed
from minikafka.wire import messages as m
from minikafka.wire.limits import shown

ROUTES = Routes("records")

# Words of ListOffsets, and of what only the leader's replica says.
WORDS = {"earliest": m.EARLIEST, "latest": m.LATEST, "max-timestamp": m.MAX_TIMESTAMP}
OWN_WORDS = ("hw", "leo")


class At(NamedTuple):
    """Where to look: one of the words, or a moment in milliseconds."""

    word: str
    timestamp: int


def _read_at(given: str) -> At:
    if given in WORDS:
        return At(given, WORDS[given])
    if given in OWN_WORDS:
        return At(given, m.LATEST)
    try:
        return At("timestamp", time_ms(given))
    except ValueError:
        words = ", ".join((*WORDS, *OWN_WORDS))
        raise Wrong(f"{shown(given)}: one of {words}, milliseconds since 1970 or ISO 8601 is needed") from None


AT = Parsed(
    "at",
    "`earliest`: the log's start. `latest` (also `hw`): where the next committed record will lie. `leo`: "
    "the leader's log end. `max-timestamp`: the newest record. A moment (milliseconds since 1970, or ISO 8601 with a "
    "time zone): the first record at or after it; offset -1 when there is none.",
    default=At("latest", m.LATEST),
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
    "epoch",
    "Where this leader epoch ends in the leader's log (OffsetForLeaderEpoch, KIP-101), in place of `at`.",
    high=INT32_MAX,
)


class _Offset(Place):
    """One position."""

    at: str = member("What was asked for.", "earliest")
    offset: Offset = member(example=0)
    leader_epoch: Epoch = member(example=0)
    timestamp: Timestamp | None = member(negative_is_null=True)
    leader: Any = one(Leader)


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions/{partition}/offsets",
    _Offset.answer("The offset."),
    parameters=(AT, EPOCH, FORWARD),
    problems=(*LEADER_PROBLEMS, OffsetNotAvailable),
)
async def get_offsets(visit: Visit) -> Json:
    """An offset by its name, by time, or by leader epoch."""
    name = name_of(visit)
    if visit.gives(EPOCH):
        if visit.gives(AT):
            raise malformed("parameter epoch: stands beside at; only one can be")
        return await _epoch_end(visit, name)
    at = visit[AT]
    if at.word in OWN_WORDS:
        return await _own_mark(visit, name, at.word)
    wanted = m.ListOffsetsPartition(**name._asdict(), timestamp=at.timestamp)
    request = m.ListOffsetsRequest(partitions=(wanted,))
    found, leader = await from_leader(visit, name, request)
    return _Offset.out_of(found, at=at.word, leader=visit.leader_out(leader))


async def _own_mark(visit: Visit, name: TopicPartition, word: str) -> Json:
    request = m.ExplainPartitionRequest(**name._asdict())
    described, leader = await from_leader(visit, name, request)
    if described.replica is None:
        raise OffsetNotAvailable(f"broker {leader.leader_id} has not taken up {name} yet")
    offset = described.replica.high_watermark if word == "hw" else described.replica.log_end_offset
    return _Offset.out_of(
        leader, **name._asdict(), at=word, offset=offset, timestamp=None, leader=visit.leader_out(leader)
    )


async def _epoch_end(visit: Visit, name: TopicPartition) -> Json:
    wanted = m.EpochQuery(**name._asdict(), leader_epoch=visit[EPOCH])
    request = m.OffsetForLeaderEpochRequest(partitions=(wanted,))
    found, leader = await from_leader(visit, name, request)
    return _Offset.out_of(found, at="epoch", offset=found.end_offset, timestamp=None, leader=visit.leader_out(leader))


# ---- truncate-before -------------------------------------------------------------------------------------------------


class _Truncation(Model):
    """What to delete."""

    offset: int = member(
        "All before it goes; -1: all before the high watermark.",
        40,
        if_missing="-1 means the high watermark",
        minimum=-1,
        maximum=INT64_MAX,
    )


class _Truncated(Place, notes=True):
    """A partition whose log begins later."""

    low_watermark: Offset = member(example=40)
    leader: Any = one(Leader)


@ROUTES.at(
    "POST /v1/topics/{topic}/partitions/{partition}/truncate-before",
    _Truncated.answer("Deleted on every live replica."),
    parameters=(TIMEOUT_MS, FORWARD),
    body=_Truncation.body(),
    problems=(*LEADER_PROBLEMS, OffsetNotAvailable, OffsetOutOfRange, RequestTimedOut),
    tag="partitions",
)
async def post_truncation(visit: Visit) -> Json:
    """Delete what lies before an offset (DeleteRecords); ``{"offset": -1}``: all that is committed.

    Answers when the log start of every live replica has reached the offset.
    """
    name = name_of(visit)
    offset = (await _Truncation.sent(visit)).offset
    if offset == m.ALL_COMMITTED:
        # Named once: a request that is sent again, or arrives late, must not delete what was acknowledged since.
        latest = m.ListOffsetsPartition(**name._asdict(), timestamp=m.LATEST)
        listed, _ = await from_leader(visit, name, m.ListOffsetsRequest(partitions=(latest,)))
        offset = listed.offset
    known = visit.host.image.topics.get(name.topic)
    topic_id = None if known is None else known.topic_id
    wanted = m.DeleteRecordsPartition(**name._asdict(), topic_id=topic_id, offset=offset)
    request = m.DeleteRecordsRequest(timeout_ms=visit[TIMEOUT_MS], partitions=(wanted,))
    # Asked twice, it does the same: what is deleted stays deleted.
    found, leader = await from_leader(visit, name, request, wait_s=visit[TIMEOUT_MS] / 1000)
    return _Truncated.out_of(found, leader=visit.leader_out(leader))


# ---- producer ids ----------------------------------------------------------------------------------------------------


_PRODUCER_ID = whole("Its number.", minimum=0, maximum=INT64_MAX)
_PRODUCER_EPOCH = whole("Its incarnation.", minimum=0, maximum=2**15 - 1)


class _Producer(Model):
    """A producer's number and incarnation."""

    producer_id: int = member(_PRODUCER_ID, 1000)
    producer_epoch: int = member(_PRODUCER_EPOCH, 0)


class _Earlier(Model):
    """An earlier incarnation, or nothing."""

    producer_id: int = member(_PRODUCER_ID, default=-1)
    producer_epoch: int = member(_PRODUCER_EPOCH, default=-1)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if (self.producer_id < 0) != (self.producer_epoch < 0):
            yield "producer_epoch" if self.producer_epoch < 0 else "producer_id", "is missing; both or none"


@ROUTES.at(
    "POST /v1/producer-ids",
    {201: _Producer.answer("The producer's number.")},
    body=_Earlier.body(required=False),
    problems=(InvalidRequest,),
)
async def post_producer_id(visit: Visit) -> Reply:
    """A number for an idempotent producer (InitProducerId); with its own number, the next epoch, which fences the last.

    The numbers go into the headers ``Producer-Id``, ``Producer-Epoch`` and ``Base-Sequence`` of produce requests.
    """
    earlier = await _Earlier.sent(visit, required=False)
    request = m.InitProducerIdRequest(producer_id=earlier.producer_id, producer_epoch=earlier.producer_epoch)
    given: m.InitProducerIdResponse = await ask(visit, visit.host.node_id, request, wait_s=LOOK_UP_WAIT_S)
    return Reply(_Producer.out_of(given), 201)
