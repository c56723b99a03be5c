"""The records of one partition: a stateless long poll (``.../records``), and a stream of events (``.../stream``).

The long poll:

- It ends at ``min_bytes`` or after ``max_wait_ms``; ``"wait": {"ended": "data" | "timeout", "ms": ...}`` says which.
- It returns committed records only (S2, S3). ``next_offset`` is where the next request should start: behind the last
  record shown, or behind records that are none for applications: control batches, with ``read_committed`` also aborted
  ones.
- An offset outside the log is 416 with ``log_start_offset`` and ``high_watermark``.

The stream keeps a reader's place from poll to poll. Its events, each a kind and its data:

- ``record``: one committed record. Its ``id`` is the topic's id and the offset: a browser that reconnects sends it as
  ``Last-Event-ID``, and the stream continues behind it.
- ``hw``: the high watermark, when it moved. ``leader``: the leader, when it changed.
- ``truncated``: an unclean election cut the log, and reading continues where the log now ends; or the topic was deleted
  and created again, and reading continues with its first record; or the next records were deleted before they were
  read, and reading continues where the log begins (only then ``from`` is larger than ``to``). Its ``id`` is that of the
  record before, so that a reader that leaves then does not continue behind what is gone. A stream that is resumed may
  begin with it.
- ``problem``: nothing can be read at present; the reader retries while that can help. ``end``: the broker stops.

A comment comes every ``heartbeat_ms`` without news, so that proxies and readers know that the connection works. For a
slow reader the records of one poll are held: the next poll waits until it has taken them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from minikafka import errors as kafka
from minikafka.config import KIB, MIB
from minikafka.rest import json_text
from minikafka.rest.host import FETCH_BYTES_MAX, FETCH_RECORD_COUNT_MAX, WAIT_MS_MAX, Host
from minikafka.rest.json_text import TURN_BYTES, Turns, long_step
from minikafka.rest.leaders import from_leader
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, INT64_MAX, PARTITION, TOPIC, Choice, Integer, Parsed, Text, Wrong
from minikafka.rest.records import FORMATS, record_out, unreadable_out
from minikafka.rest.route import LEADER_PROBLEMS, Json, Routes, Stream, Visit, text_answer
from minikafka.rest.schemas import Place, RecordOut
from minikafka.types import NO_EPOCH, Epoch, NodeId, Offset, TopicId, TopicPartition
from minikafka.web.problems import Refused, malformed
from minikafka.wire import messages as m
from minikafka.wire.batch import RecordBatch, from_offset, iterate
from minikafka.wire.decompression import DECOMPRESSED_BYTES_MAX, decompression_limit
from minikafka.wire.limits import shown
from minikafka.wire.markers import AbortedFilter, filter_of
from minikafka.wire.records import RecordView, records_one_by_one

ROUTES = Routes("records")
ISOLATION = {"read_uncommitted": m.READ_UNCOMMITTED, "read_committed": m.READ_COMMITTED}
OFFSET = Integer(
    "offset", "Where to begin; the answer's `next_offset` is where the next request should.", default=0, high=INT64_MAX
)
MAX_WAIT_MS = Integer("max_wait_ms", "How long to wait for `min_bytes`.", default=500, high=WAIT_MS_MAX)
MIN_BYTES = Integer("min_bytes", "Answer as soon as so many bytes are there.", default=1, low=1, high=FETCH_BYTES_MAX)
MAX_BYTES = Integer(
    "max_bytes", "No more than this, but at least one batch.", default=1 * MIB, low=1, high=FETCH_BYTES_MAX
)
MAX_RECORDS = Integer("max_records", "No more records than this.", default=500, low=1, high=FETCH_RECORD_COUNT_MAX)
ISOLATION_LEVEL = Choice(
    "isolation",
    "Kafka's isolation level. `read_committed` reads up to the last stable offset and leaves out the "
    "records of aborted transactions; `read_uncommitted` reads up to the high watermark, whatever transactions do.",
    options=tuple(ISOLATION),
    default="read_uncommitted",
)
FORMAT = Choice(
    "format",
    "How keys and values are shown: `auto` (JSON where it is JSON, else text, else base64), or one of "
    "these wherever possible. In msgpack `auto` gives the bytes as they are.",
    options=FORMATS,
    default="auto",
)
CONTAINS = Text(
    "contains",
    "Only records whose key, value or headers contain this text. One request searches at most `max_bytes` "
    "of the log: continue at `next_offset` until it is the high watermark.",
    example="ann",
)


def name_of(visit: Visit) -> TopicPartition:
    """The partition that the address names."""
    return TopicPartition(visit[TOPIC], visit[PARTITION])


class _Wait(Model):
    """What ended the wait."""

    ended: str = member(example="data", enum=["data", "timeout"])
    ms: int = member("How long it was.", 3)


class _Fetched(Place):
    """What one fetch found."""

    records: list[Any] = many_of(RecordOut)
    next_offset: Offset = member("Where the next request should begin.", 42)
    high_watermark: Offset = member(example=42)
    last_stable_offset: Offset = member(example=42)
    log_start_offset: Offset = member(example=0)
    log_end_offset: Offset = member(example=42)
    leader_epoch: Epoch = member(example=3)
    leader_id: NodeId = member(example=1)
    wait: _Wait = one(_Wait)


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions/{partition}/records",
    _Fetched.answer("Records, or none after `max_wait_ms`."),
    parameters=(OFFSET, MAX_WAIT_MS, MIN_BYTES, MAX_BYTES, MAX_RECORDS, ISOLATION_LEVEL, FORMAT, CONTAINS, FORWARD),
    problems=(*LEADER_PROBLEMS, kafka.OffsetOutOfRange, kafka.CorruptMessage, kafka.OffsetNotAvailable),
)
async def get_records(visit: Visit) -> Json:
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
    answer, leader = await from_leader(visit, name, request, wait_s=visit[MAX_WAIT_MS] / 1000)
    waited_ms = round((clock.now() - start) * 1000)
    size = sum(map(len, answer.records))
    wanted = Wanted(count_max=visit[MAX_RECORDS], form=form_of(visit), contains=visit[CONTAINS].encode())
    records, next_offset = await records_of(visit, answer, offset, wanted)
    return _Fetched.out_of(
        answer,
        records=records,
        next_offset=next_offset,
        leader_epoch=leader.leader_epoch,
        leader_id=leader.leader_id,
        wait=_Wait(ended="data" if size >= min_bytes else "timeout", ms=waited_ms),
    )


def fetch_of(
    visit: Visit,
    name: TopicPartition,
    offset: Offset,
    *,
    max_bytes: int,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    topic_id: TopicId | None = None,
) -> m.FetchRequest:
    """A fetch of one partition, with the request's isolation."""
    part = m.FetchPartition(**name._asdict(), topic_id=topic_id, fetch_offset=offset, partition_max_bytes=max_bytes)
    return m.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=ISOLATION[visit[ISOLATION_LEVEL]],
        partitions=(part,),
    )


def form_of(visit: Visit) -> str:
    """How keys and values are shown to this client."""
    return "bytes" if visit.wants_msgpack and visit[FORMAT] == "auto" else visit[FORMAT]


def decompressed_max(host: Host, topic: str) -> int:
    """What a batch of this topic may expand to."""
    image = host.image.topics.get(topic)
    given = image.configs.get("max.message.bytes") if image is not None else None
    return decompression_limit(host.config.message_max_bytes if given is None else int(given))


class Room:
    """What an answer may still hold: records, and bytes of the keys, values and headers that were read for it.

    Compressed batches may hold many times their size, so the bytes that were fetched do not bound the answer.
    """

    def __init__(self, count_max: int = FETCH_RECORD_COUNT_MAX, bytes_max: int = FETCH_BYTES_MAX) -> None:
        self._count = count_max
        self._bytes = bytes_max

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records an answer has, and how it shows them."""

    count_max: int
    form: str
    contains: bytes = b""
    """Only records that contain these bytes."""
    bytes_max: int = FETCH_BYTES_MAX
    """Of keys, values and headers; one record may go beyond it."""


async def records_of(
    visit: Visit, answer: m.FetchedPartition, offset: Offset, wanted: Wanted
) -> tuple[list[dict[str, Any]], Offset]:
    """What :func:`read_out` finds in the answer of a leader."""
    aborted, limit = filter_of(answer.aborted_transactions), decompressed_max(visit.host, answer.topic)
    data = answer.records
    batches = from_offset(iterate(data[0] if len(data) == 1 else b"".join(data)), offset, end_max=answer.readable_end)
    return await read_out(batches, offset, wanted, aborted=aborted, limit=limit)


async def read_out(
    batches: Iterable[RecordBatch],
    offset: Offset,
    wanted: Wanted,
    *,
    aborted: AbortedFilter | None = None,
    limit: int = DECOMPRESSED_BYTES_MAX,
) -> tuple[list[dict[str, Any]], Offset]:
    """The wanted records from ``offset`` on, as far as there is room, and the offset to go on from.

    Other requests are served in between. ``aborted``: batches to leave out. ``limit``: what one batch may expand to.
    """
    records: list[dict[str, Any]] = []
    next_offset = offset
    room, turns = Room(wanted.count_max, wanted.bytes_max), Turns()
    await asyncio.sleep(0)
    for batch in batches:
        if room.is_full():
            break
        if (aborted is not None and aborted.skips(batch)) or batch.is_control:
            await turns.after(0)
            next_offset = batch.next_offset
            continue
        found, next_offset = await _batch_out(batch, offset, wanted, room, turns, limit)
        records.extend(found)
    return records, next_offset


async def _batch_out(
    batch: RecordBatch, offset: Offset, wanted: Wanted, room: Room, turns: Turns, limit: int
) -> tuple[list[dict[str, Any]], Offset]:
    """The wanted records of one batch that there is room for, and the offset to go on from.

    One entry stands for a batch that cannot be read.
    """
    records: list[dict[str, Any]] = []
    form, contains = wanted.form, wanted.contains
    if batch.codec or len(batch.data) >= TURN_BYTES:
        await long_step()
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
    except kafka.CorruptMessage as error:
        room.take(None)
        first = max(batch.base_offset, offset)
        records = [unreadable_out(first, batch.last_offset, batch.leader_epoch, error.message)]
    return records, batch.next_offset


def _has(record: RecordView, wanted: bytes) -> bool:
    headers = [part for name, value in record.headers for part in (name.encode(), value)]
    return any(wanted in part for part in (record.key, record.value, *headers) if part is not None)


# Bytes of one poll: what is held for a reader, as text some times as large.
POLL_BYTES = 256 * KIB

# Between tries while nobody can be asked.
PAUSE_S = 1.0

LOST_IN_ELECTION = "the leader's log does not hold what was read from here on: it was lost in an unclean election"

DELETED_UNREAD = "records were deleted, by retention or by a client, before they were read: the log begins here"


class Change(NamedTuple):
    """One event; ``number`` is a record's offset (of several that cannot be read: the last one's)."""

    kind: str
    data: dict[str, Any]
    number: Offset | None = None


class Mark(NamedTuple):
    """A place in a partition of one topic, which another topic of the same name does not have."""

    topic_id: TopicId | None
    """None: not known. Then it is taken for a place in the present topic."""
    offset: Offset


_MARK = re.compile(r"(?:([A-Za-z0-9_-]{22}):(?=-1$|[0-9]))?(-1|[0-9]{1,19})", re.ASCII)


def _read_mark(given: str) -> Mark:
    found = _MARK.fullmatch(given)
    if found is None or not -(found[1] is not None) <= int(found[2]) < INT64_MAX:
        raise Wrong(f"{shown(given)}: the id of an event is needed, TOPIC_ID:OFFSET or OFFSET alone")
    return Mark(found[1], int(found[2]))


def present_id(visit: Visit, topic: str) -> TopicId | None:
    """Id of the topic that has this name now; None: there is none."""
    known = visit.host.image.topics.get(topic)
    return None if known is None else known.topic_id


async def listed_offset(visit: Visit, name: TopicPartition, timestamp: int) -> Offset:
    """ListOffsets at the leader: EARLIEST, LATEST or a time; -1: no record is that new. Refused, ProtocolError."""
    wanted = m.ListOffsetsPartition(**name._asdict(), timestamp=timestamp)
    request = m.ListOffsetsRequest(isolation_level=ISOLATION[visit[ISOLATION_LEVEL]], partitions=(wanted,))
    found, _ = await from_leader(visit, name, request)
    return Offset(found.offset)


@dataclass(eq=False)
class PartitionReader:
    """Reads from ``next_offset`` on. ``wait_ms``: the longest that a poll waits for news."""

    visit: Visit
    name: TopicPartition
    next_offset: Offset
    _: KW_ONLY
    wait_ms: int
    form: str
    topic_id: TopicId | None = None
    """Of the topic that ``next_offset`` is in; None: it is in the one that the first fetch finds."""
    _read_epoch: Epoch = field(default=NO_EPOCH, init=False)
    """The leader epoch of the last batch that was read."""
    _leader: m.CurrentLeader | None = field(default=None, init=False)
    _high_watermark: Offset = field(default=-1, init=False)

    async def at_once(self, *, resumes: bool) -> list[Change]:
        """What there is now; raises Refused or ProtocolError when it cannot be read.

        ``resumes``: what lies before ``next_offset`` was read, so it is reported if the log does not hold it.
        """
        begun = [self._begins_again()] if self._is_created_again() else []
        try:
            answer, leader = await self._fetch(wait_ms=0)
        except Refused as refused:
            moved = self._moved(refused) if resumes else None
            if moved is None:
                raise
            return [*begun, moved]
        return [*begun, *await self._changes(answer, leader)]

    async def events(self) -> AsyncGenerator[list[Change], None]:
        """The events of each poll; empty when there was no news. Ends with a problem that no repetition helps."""
        last_problem = ""
        while True:
            if self._is_created_again():
                yield [self._begins_again()]
            try:
                answer, leader = await self._fetch(wait_ms=self.wait_ms)
                if self._leader != leader and self._read_epoch != NO_EPOCH:
                    cut = await self._cut()
                    if cut is not None:
                        yield [self._truncated(cut)]
                        continue
                changes = await self._changes(answer, leader)
            except (Refused, kafka.ProtocolError) as raised:
                refused = Refused.of(raised)
                moved = self._moved(refused)
                if moved is not None:
                    yield [moved]
                    continue
                problem = refused.problem()
                yield [Change("problem", problem)] if problem["detail"] != last_problem else []
                last_problem = problem["detail"]
                if not problem["retriable"]:
                    return
                await asyncio.sleep(PAUSE_S)
                continue
            last_problem = ""
            yield changes

    async def _fetch(self, *, wait_ms: int) -> tuple[m.FetchedPartition, m.CurrentLeader]:
        # They would grow for as long as the stream lives; its headers are out.
        self.visit.served_by.clear()
        self.visit.leaders.clear()
        # The offset is one in this topic: another one of the same name is not read from there.
        self.topic_id = self.topic_id or self._present_id()
        request = fetch_of(
            self.visit, self.name, self.next_offset, max_bytes=POLL_BYTES, max_wait_ms=wait_ms, topic_id=self.topic_id
        )
        return await from_leader(self.visit, self.name, request, wait_s=wait_ms / 1000)

    async def _changes(self, answer: m.FetchedPartition, leader: m.CurrentLeader) -> list[Change]:
        """The events of one poll."""
        events: list[Change] = []
        if leader != self._leader:
            self._leader = leader
            events.append(Change("leader", self.visit.leader_out(leader)))
        wanted = Wanted(count_max=FETCH_RECORD_COUNT_MAX, form=self.form)
        records, self.next_offset = await records_of(self.visit, answer, self.next_offset, wanted)
        for record in records:
            events.append(Change("record", record, record.get("last_offset", record["offset"])))
            self._read_epoch = record["leader_epoch"]
        if answer.high_watermark != self._high_watermark:
            self._high_watermark = answer.high_watermark
            ends = {"high_watermark": answer.high_watermark, "log_end_offset": answer.log_end_offset}
            events.append(Change("hw", ends))
        return events

    async def _cut(self) -> Offset | None:
        """Where the new leader's log leaves what was read; None: it holds all of it (KIP-320)."""
        query = m.EpochQuery(**self.name._asdict(), leader_epoch=self._read_epoch)
        request = m.OffsetForLeaderEpochRequest(partitions=(query,))
        found, _ = await from_leader(self.visit, self.name, request)
        return found.end_offset if 0 <= found.end_offset < self.next_offset else None

    def _moved(self, refused: Refused) -> Change | None:
        """The log ends before what was read, or begins behind it: where reading continues. None: something else is
        wrong.
        """
        if not isinstance(refused.error, kafka.OffsetOutOfRange):
            return None
        end = refused.members.get("log_end_offset", refused.members.get("high_watermark", -1))
        if 0 <= end < self.next_offset:
            return self._truncated(int(end))
        start = refused.members.get("log_start_offset", -1)
        return self._truncated(int(start), DELETED_UNREAD) if start > self.next_offset else None

    def _present_id(self) -> TopicId | None:
        return present_id(self.visit, self.name.topic)

    def _is_created_again(self) -> bool:
        return None not in (self.topic_id, present := self._present_id()) and present != self.topic_id

    def _begins_again(self) -> Change:
        self.topic_id = self._present_id()
        return self._truncated(0, "the topic was deleted and created again: what was read is gone with the former one")

    def _truncated(self, cut: Offset, why: str = LOST_IN_ELECTION) -> Change:
        document = {"from": cut, "to": self.next_offset, "leader_epoch": self._read_epoch, "why": why}
        self.next_offset, self._read_epoch, self._high_watermark = cut, NO_EPOCH, -1
        return Change("truncated", document, cut - 1)


START = Integer(
    "offset",
    "Where to begin; left out: at the next record that is committed, or behind `Last-Event-ID`.",
    high=INT64_MAX,
)
LAST_EVENT_ID: Parsed[Mark] = Parsed(
    "Last-Event-ID",
    "The `id` of the last event that was read, `TOPIC_ID:OFFSET`: the stream continues behind it, or with the first "
    "record if the topic was deleted and created again. An offset alone is one in the present topic. It wins over "
    "`offset`.",
    place="header",
    default=Mark(None, -1),
    reader=_read_mark,
    described={"type": "string", "pattern": "^(?:[A-Za-z0-9_-]{22}:(?:-1|[0-9]{1,18})|[0-9]{1,18})$"},
    example="41",
)

# Events that are written before other requests have their turn: some milliseconds.
EVENTS_AT_ONCE = 500
HEARTBEAT_MS = Integer("heartbeat_ms", "A comment after so long without news.", default=15_000, low=100, high=30_000)
EXAMPLE = (
    'retry: 1000\n\nevent: leader\ndata: {"id": 1, "epoch": 3, "url": "http://127.0.0.1:9092"}\n\n'
    "id: MDEyMzQ1Njc4OWFiY2RlZg:41\nevent: record\n"
    'data: {"offset": 41, "timestamp": 1795000000000, "leader_epoch": 3, "key": "ann", '
    '"value": {"item": "tea"}, "encoding": "json", "headers": []}\n\n'
    'event: hw\ndata: {"high_watermark": 42, "log_end_offset": 42}\n\n: heartbeat\n\n'
)


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions/{partition}/stream",
    text_answer(
        "Events until the reader leaves: `record`, `hw`, `leader`, `truncated`, `problem`, `end`.",
        json_text.EVENT_STREAM,
        EXAMPLE,
        "Server-Sent Events.",
    ),
    parameters=(START, LAST_EVENT_ID, HEARTBEAT_MS, ISOLATION_LEVEL, FORMAT, FORWARD),
    problems=(*LEADER_PROBLEMS, kafka.OffsetOutOfRange, kafka.ThrottlingQuotaExceeded),
)
async def get_stream(visit: Visit) -> Stream:
    """Committed records as they come; see ``/docs`` for the kinds of events."""
    name = name_of(visit)
    resumes, last = visit.gives(LAST_EVENT_ID), visit[LAST_EVENT_ID]
    # Before the offset is looked up: that is one in this topic.
    topic_id = last.topic_id or present_id(visit, name.topic)
    start = last.offset + 1 if resumes else visit[START]
    if start < 0:
        start = await listed_offset(visit, name, m.LATEST)
    reader = PartitionReader(visit, name, start, wait_ms=visit[HEARTBEAT_MS], form=visit[FORMAT], topic_id=topic_id)
    # The first look is taken before the answer begins: what is wrong with the request gets a status.
    first = await reader.at_once(resumes=resumes)
    return Stream(chunks=_chunks(reader, first), media_type=json_text.EVENT_STREAM, farewell=json_text.FAREWELL)


async def _chunks(reader: PartitionReader, first: list[Change]) -> AsyncGenerator[bytes, None]:
    """What each poll found, some events a chunk; a heartbeat when there is none."""
    yield json_text.RETRY
    for chunk in _chunks_of(reader, first):
        yield chunk
    async for changes in reader.events():
        for chunk in _chunks_of(reader, changes):
            yield chunk
            await asyncio.sleep(0)  # a write that the system takes at once gives nobody a turn
            if len(chunk) >= TURN_BYTES:
                await long_step()
        if not changes:
            yield json_text.HEARTBEAT


def _chunks_of(reader: PartitionReader, changes: list[Change]) -> Iterator[bytes]:
    for start in range(0, len(changes), EVENTS_AT_ONCE):
        some = changes[start : start + EVENTS_AT_ONCE]
        yield b"".join(
            json_text.event(each.kind, each.data, None if each.number is None else f"{reader.topic_id}:{each.number}")
            for each in some
        )
