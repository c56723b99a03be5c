"""``GET /v1/topics/{t}/records``: the records of all partitions in one list, by time, for people who look at a topic.

Between partitions there is no order but that of timestamps; programs read partition by partition. It never waits:
``next`` has where each partition goes on, and the stream of a partition tells what comes.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from minikafka.errors import CorruptMessage, OffsetNotAvailable, OffsetOutOfRange, ProtocolError
from minikafka.rest.fetch import FORMAT, ISOLATION, ISOLATION_LEVEL, form_of, only_partition, read_out
from minikafka.rest.host import FETCH_RECORD_COUNT_MAX
from minikafka.rest.leaders import from_leader, unknown_topic
from minikafka.rest.members import shown
from minikafka.rest.parameters import FORWARD, INT64_MAX, TOPIC, Integer, Parsed, Wrong
from minikafka.rest.problems import Refused, problem_of
from minikafka.rest.records import moment_ms
from minikafka.rest.route import LEADER_PROBLEMS, Answer, Route
from minikafka.rest.schema import many, ref, shape, whole
from minikafka.rest.schemas import PROBLEM_EXAMPLE, RECORD_EXAMPLE
from minikafka.rest.visit import Reply, Visit
from minikafka.types import Offset, TopicPartition
from minikafka.wire.messages import (
    EARLIEST,
    LATEST,
    FetchPartition,
    FetchRequest,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

LOOK_WAIT_S = 1.0

# A topic may have thousands of partitions; so many are looked at side by side.
SIDE_BY_SIDE_MAX = 16

# What one partition may give: many of them are held at once.
PARTITION_BYTES_MAX = 256 * 1024


class Start(NamedTuple):
    """Where to begin in each partition: a timestamp of ListOffsets, and how many offsets before it."""

    timestamp: int
    back: int = 0


def _read_start(given: str) -> Start:
    if given == "earliest":
        return Start(EARLIEST)
    if given == "latest":
        return Start(LATEST)
    digits = given.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        return Start(LATEST, int(digits)) if given.startswith("-") else Start(int(digits))
    try:
        return Start(moment_ms(given))
    except ValueError:
        raise Wrong(
            f"{shown(given)}: earliest, latest, -N (the last N), milliseconds since 1970 or ISO 8601 is needed"
        ) from None


FROM = Parsed(
    name="from",
    description="Where to begin in each partition: `earliest`, `latest`, `-10` (ten before the end), or a moment "
    "(milliseconds since 1970, or ISO 8601 with a time zone).",
    default=Start(LATEST, 10),
    default_shown=-10,
    reader=_read_start,
    described={
        "anyOf": [
            {"type": "string", "enum": ["earliest", "latest"]},
            {"type": "integer", "minimum": -(10**18) + 1, "maximum": 10**18 - 1},
            {"type": "string", "format": "date-time"},
        ]
    },
    example="earliest",
)
MAX_RECORDS = Integer(
    name="max_records",
    description="No more records than this, of each partition and in all.",
    default=100,
    low=1,
    high=FETCH_RECORD_COUNT_MAX,
)


class _Part(NamedTuple):
    """What one partition gave."""

    partition: int
    records: list[dict[str, Any]]
    next_offset: Offset
    refused: Refused | None = None


async def get_topic_records(visit: Visit) -> Reply:
    """The records of all partitions, by timestamp; a partition that cannot be read now has its problem in ``next``."""
    topic = visit.host.image.topics.get(visit[TOPIC])
    if topic is None:
        raise unknown_topic(visit[TOPIC])
    gate = asyncio.Semaphore(SIDE_BY_SIDE_MAX)
    names = [TopicPartition(topic.name, each.partition) for each in topic.partitions]
    parts = await asyncio.gather(*(_look(visit, name, gate) for name in names))
    if parts[0].refused is not None and all(part.refused is not None for part in parts):
        raise parts[0].refused
    merged = [{"partition": part.partition, **record} for part in parts for record in part.records]
    merged.sort(key=lambda record: (record.get("timestamp", 0), record["partition"], record["offset"]))
    told = merged[: visit[MAX_RECORDS]]
    left = {part.partition: part.next_offset for part in parts}
    for record in reversed(merged[visit[MAX_RECORDS] :]):
        left[record["partition"]] = record["offset"]
    return Reply(
        {
            "topic": topic.name,
            "records": told,
            "next": [_next_out(part, left[part.partition]) for part in parts],
        }
    )


async def _look(visit: Visit, name: TopicPartition, gate: asyncio.Semaphore) -> _Part:
    async with gate:
        try:
            return await _part_of(visit, name)
        except Refused as refused:
            return _Part(name.partition, [], -1, refused)
        except ProtocolError as error:
            return _Part(name.partition, [], -1, Refused(error))


def _next_out(part: _Part, next_offset: Offset) -> dict[str, Any]:
    told: dict[str, Any] = {"partition": part.partition, "next_offset": next_offset}
    if part.refused is not None:
        told["problem"] = problem_of(part.refused.error, status=part.refused.status, **part.refused.members)
    return told


async def _part_of(visit: Visit, name: TopicPartition) -> _Part:
    def pick(response: ListOffsetsResponse) -> ListedOffset:
        return response.partitions[0]

    start = visit[FROM]
    wanted = ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=start.timestamp)
    listed = ListOffsetsRequest(partitions=(wanted,))
    found, _ = await from_leader(visit, name, listed, pick=pick, wait_s=LOOK_WAIT_S)
    if found.offset < 0:
        return _Part(name.partition, [], -1)
    offset = found.offset
    if start.back:
        earliest = ListOffsetsRequest(
            partitions=(ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=EARLIEST),)
        )
        first, _ = await from_leader(visit, name, earliest, pick=pick, wait_s=LOOK_WAIT_S)
        offset = max(first.offset, found.offset - start.back)
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=PARTITION_BYTES_MAX,
        isolation_level=ISOLATION[visit[ISOLATION_LEVEL]],
        partitions=(
            FetchPartition(
                topic=name.topic,
                partition=name.partition,
                fetch_offset=min(offset, INT64_MAX),
                partition_max_bytes=PARTITION_BYTES_MAX,
            ),
        ),
    )
    answer, _ = await from_leader(visit, name, request, pick=only_partition, wait_s=LOOK_WAIT_S)
    records, next_offset = read_out(answer.records, offset, count_max=visit[MAX_RECORDS], form=form_of(visit))
    return _Part(name.partition, records, next_offset)


ROUTES = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/records",
        handler=get_topic_records,
        tag="records",
        parameters=(TOPIC, FROM, MAX_RECORDS, ISOLATION_LEVEL, FORMAT, FORWARD),
        answers={
            200: Answer(
                description="What is there.",
                schema=shape(
                    topic=ref("TopicName"),
                    records=many(ref("TopicRecord")),
                    next=many(
                        shape(
                            optional=("problem",),
                            partition=ref("PartitionNumber"),
                            next_offset=whole("Where it goes on; -1: there is nothing at or after that moment."),
                            problem=ref("Problem"),
                        )
                    ),
                ),
                example={
                    "topic": "orders",
                    "records": [{"partition": 2, **RECORD_EXAMPLE}],
                    "next": [
                        {"partition": 0, "next_offset": -1, "problem": PROBLEM_EXAMPLE},
                        {"partition": 2, "next_offset": 42},
                    ],
                },
            )
        },
        problems=(*LEADER_PROBLEMS, CorruptMessage, OffsetNotAvailable, OffsetOutOfRange),
    ),
)
