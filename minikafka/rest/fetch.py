"""``GET /v1/topics/{t}/partitions/{p}/records``: a stateless long poll.

- Ends at ``min_bytes`` or after ``max_wait_ms``, and says which: ``"wait": {"ended": "data" | "timeout", "ms": ...}``.
- Committed records only (S2, S3). ``next_offset`` is where the next request should start: behind the last record shown,
  or behind records that are none for applications: control batches, with ``read_committed`` also aborted ones.
- An offset outside the log is 416 with ``log_start_offset`` and ``high_watermark``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from minikafka.errors import CorruptMessage, OffsetNotAvailable, OffsetOutOfRange
from minikafka.ports import Buffers
from minikafka.rest.host import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_RECORD_COUNT_DEFAULT,
    FETCH_RECORD_COUNT_MAX,
    WAIT_MS_DEFAULT,
    WAIT_MS_MAX,
    Host,
)
from minikafka.rest.json_text import Turns
from minikafka.rest.leaders import from_leader
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, INT64_MAX, PARTITION, TOPIC, Choice, Integer, Text
from minikafka.rest.records import FORMATS, record_out, unreadable_out
from minikafka.rest.route import LEADER_PROBLEMS, Route
from minikafka.rest.schema import one_of, ref, whole
from minikafka.rest.schemas import Place, RecordOut
from minikafka.rest.visit import Reply, Visit
from minikafka.types import Epoch, NodeId, Offset, TopicPartition
from minikafka.web.problems import malformed
from minikafka.wire.batch import RecordBatch, iterate
from minikafka.wire.decompression import DECOMPRESSED_BYTES_MAX, decompression_limit
from minikafka.wire.markers import AbortedFilter, filter_of
from minikafka.wire.messages import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from minikafka.wire.records import RecordView, records_one_by_one

ISOLATION = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}

OFFSET = Integer(
    name="offset",
    description="Where to begin; the answer's `next_offset` is where the next request should.",
    default=0,
    high=INT64_MAX,
)
MAX_WAIT_MS = Integer(
    name="max_wait_ms", description="How long to wait for `min_bytes`.", default=WAIT_MS_DEFAULT, high=WAIT_MS_MAX
)
MIN_BYTES = Integer(
    name="min_bytes", description="Answer as soon as so many bytes are there.", default=1, low=1, high=FETCH_BYTES_MAX
)
MAX_BYTES = Integer(
    name="max_bytes",
    description="No more than this, but at least one batch.",
    default=FETCH_BYTES_DEFAULT,
    low=1,
    high=FETCH_BYTES_MAX,
)
MAX_RECORDS = Integer(
    name="max_records",
    description="No more records than this.",
    default=FETCH_RECORD_COUNT_DEFAULT,
    low=1,
    high=FETCH_RECORD_COUNT_MAX,
)
ISOLATION_LEVEL = Choice(
    name="isolation",
    description="Kafka's isolation level. `read_committed` reads up to the last stable offset and leaves out the "
    "records of aborted transactions; `read_uncommitted` reads up to the high watermark, whatever transactions do.",
    options=tuple(ISOLATION),
    default="read_uncommitted",
)
FORMAT = Choice(
    name="format",
    description="How keys and values are shown: `auto` (JSON where it is JSON, else text, else base64), or one of "
    "these wherever possible. In msgpack `auto` gives the bytes as they are.",
    options=FORMATS,
    default="auto",
)

CONTAINS = Text(
    name="contains",
    description="Only records whose key, value or headers contain this text. One request searches at most `max_bytes` "
    "of the log: continue at `next_offset` until it is the high watermark.",
    example="ann",
)


def name_of(visit: Visit) -> TopicPartition:
    """The partition that the address names."""
    return TopicPartition(visit[TOPIC], visit[PARTITION])


class _Wait(Model):
    """What ended the wait."""

    ended: str = member(one_of("", "data", "timeout"), "data")
    ms: int = member(whole("How long it was."), 3)


class _Fetched(Place):
    """What one fetch found."""

    records: list[Any] = many_of(RecordOut)
    next_offset: Offset = member(whole("Where the next request should begin."), 42)
    high_watermark: Offset = member(ref("Offset"), 42)
    last_stable_offset: Offset = member(ref("Offset"), 42)
    log_start_offset: Offset = member(ref("Offset"), 0)
    log_end_offset: Offset = member(ref("Offset"), 42)
    leader_epoch: Epoch = member(ref("Epoch"), 3)
    leader_id: NodeId = member(ref("NodeId"), 1)
    wait: _Wait = one(_Wait)


async def get_records(visit: Visit) -> Reply:
    """Read, waiting for news if there is none."""
    name = name_of(visit)
    offset, min_bytes = visit[OFFSET], visit[MIN_BYTES]
    max_bytes = min(visit[MAX_BYTES], visit.host.config.fetch_max_bytes)
    if min_bytes > max_bytes:
        detail = f"{min_bytes} is more than max_bytes={max_bytes}: it could never be met"
        raise malformed(f"parameter min_bytes: {detail}", [{"parameter": "min_bytes", "detail": detail}])
    request = fetch_of(visit, name, offset, max_bytes=max_bytes, max_wait_ms=visit[MAX_WAIT_MS], min_bytes=min_bytes)
    clock = visit.host.world.clock
    start = clock.now()
    answer, leader = await from_leader(visit, name, request, pick=only_partition, wait_s=visit[MAX_WAIT_MS] / 1000)
    waited_ms = round((clock.now() - start) * 1000)
    size = sum(map(len, answer.records))
    records, next_offset = await read_out(
        answer.records,
        offset,
        aborted=filter_of(answer.aborted_transactions),
        count_max=visit[MAX_RECORDS],
        form=form_of(visit),
        limit=decompressed_max(visit.host, name.topic),
        contains=visit[CONTAINS].encode(),
    )
    return Reply(
        _Fetched.out_of(
            answer,
            records=records,
            next_offset=next_offset,
            leader_epoch=leader.leader_epoch,
            leader_id=leader.leader_id,
            wait=_Wait(ended="data" if size >= min_bytes else "timeout", ms=waited_ms),
        )
    )


def fetch_of(
    visit: Visit, name: TopicPartition, offset: Offset, *, max_bytes: int, max_wait_ms: int = 0, min_bytes: int = 1
) -> FetchRequest:
    """A fetch of one partition, with the request's isolation."""
    part = FetchPartition(
        topic=name.topic, partition=name.partition, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=ISOLATION[visit[ISOLATION_LEVEL]],
        partitions=(part,),
    )


def form_of(visit: Visit) -> str:
    """How keys and values are shown to this client."""
    return "bytes" if visit.wants_msgpack and visit[FORMAT] == "auto" else visit[FORMAT]


def only_partition(response: FetchResponse) -> FetchedPartition:
    """What a fetch of one partition found."""
    return response.partitions[0]


def decompressed_max(host: Host, topic: str) -> int:
    """What a batch of this topic may expand to."""
    image = host.image.topics.get(topic)
    given = image.configs.get("max.message.bytes") if image is not None else None
    return decompression_limit(host.config.message_max_bytes if given is None else int(given))


class Room:
    """What an answer may still hold: records, and bytes of the keys, values and headers that were read for it.

    Compressed batches may hold many times their size, so the bytes that were fetched do not bound the answer.
    """

    def __init__(self, count_max: int = FETCH_RECORD_COUNT_MAX) -> None:
        self._count = count_max
        self._bytes = FETCH_BYTES_MAX

    def is_full(self) -> bool:
        return self._count <= 0 or self._bytes <= 0

    def take(self, record: RecordView | None, *, is_shown: bool = True) -> int:
        """One record more, or one entry for a batch that cannot be read; its bytes. It may go beyond the room.

        A record that is not shown takes no place, but its bytes count: they bound what one request may search.
        """
        self._count -= is_shown
        if record is None:
            return 0
        headers = sum(len(name) + len(value or b"") for name, value in record.headers)
        size = len(record.key or b"") + len(record.value or b"") + headers
        self._bytes -= size
        return size


async def read_out(
    data: Buffers,
    offset: Offset,
    *,
    aborted: AbortedFilter | None = None,
    count_max: int,
    form: str,
    limit: int = DECOMPRESSED_BYTES_MAX,
    contains: bytes = b"",
) -> tuple[list[dict[str, Any]], Offset]:
    """At most ``count_max`` records from ``offset`` on, as far as there is room, and the offset to go on from.

    Other requests are served in between. ``aborted``: batches to leave out. ``limit``: what one batch may expand to.
    ``contains``: only records that contain these bytes.
    """
    records: list[dict[str, Any]] = []
    next_offset = offset
    room = Room(count_max)
    for batch in iterate(data[0] if len(data) == 1 else b"".join(data)):
        if batch.next_offset <= offset:
            continue
        if room.is_full():
            break
        is_aborted = aborted is not None and aborted.skips(batch)
        if batch.is_control or is_aborted:
            next_offset = batch.next_offset
            continue
        found, next_offset = await _batch_out(batch, offset, room, form, limit, contains)
        records.extend(found)
    return records, next_offset


async def _batch_out(
    batch: RecordBatch, offset: Offset, room: Room, form: str, limit: int, contains: bytes
) -> tuple[list[dict[str, Any]], Offset]:
    """The wanted records of one batch that there is room for, and the offset to go on from.

    One entry stands for a batch that cannot be read.
    """
    records: list[dict[str, Any]] = []
    turns = Turns()
    await asyncio.sleep(0)
    try:
        for record in records_one_by_one(batch, limit=limit):
            if record.offset < offset:
                await turns.after(0)
                continue
            is_shown = not contains or _has(record, contains)
            if is_shown:
                records.append(record_out(record, batch.leader_epoch, form))
            await turns.after(room.take(record, is_shown=is_shown))
            if room.is_full() and record.offset < batch.last_offset:
                return records, record.offset + 1
    except CorruptMessage as error:
        room.take(None)
        first = max(batch.base_offset, offset)
        records = [unreadable_out(first, batch.last_offset, batch.leader_epoch, error.message)]
    return records, batch.next_offset


def _has(record: RecordView, wanted: bytes) -> bool:
    headers = [part for name, value in record.headers for part in (name.encode(), value)]
    return any(wanted in part for part in (record.key, record.value, *headers) if part is not None)


ROUTES = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/records",
        handler=get_records,
        tag="records",
        parameters=(
            TOPIC,
            PARTITION,
            OFFSET,
            MAX_WAIT_MS,
            MIN_BYTES,
            MAX_BYTES,
            MAX_RECORDS,
            ISOLATION_LEVEL,
            FORMAT,
            CONTAINS,
            FORWARD,
        ),
        answers={200: _Fetched.answer("Records, or none after `max_wait_ms`.")},
        problems=(*LEADER_PROBLEMS, OffsetOutOfRange, CorruptMessage, OffsetNotAvailable),
    ),
)
