"""``POST /v1/topics/{t}/records`` and ``.../partitions/{p}/records``: JSON records become one batch per partition.

- Keys go where Kafka's producer puts them (murmur2); records without a key share one random partition per request
  (S26).
- Each batch is atomic. Batches for several partitions are not: 207 when some failed, each with its own problem; when
  all failed, the worst of them is the answer.
- 200 when it is acknowledged as ``acks`` asks (default ``all``), 202 for ``acks=0``: nothing is known then.
- What may have been written is 504 (507 when the disk failed), outcome *unknown*: sending again may write twice, unless
  the request carries the headers of an idempotent producer (``Producer-Id``, ``Producer-Epoch``, ``Base-Sequence``;
  KIP-98). Then a repetition is answered with where it was written the first time, and ``"duplicate": true``.
- With the header ``Transactional-Id`` beside these the batch is part of the producer's open transaction, which begins
  with its first batch (``transactions.py``). Sequences begin at 0 in each transaction.
- A raw body (``application/octet-stream``, ``text/plain``) is one value, unchanged; ``Kafka-Key`` and
  ``Kafka-Header-*`` are request headers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minikafka import errors as kafka
from minikafka.client.partitioner import murmur2_in_steps, partition_of_hash
from minikafka.invariant import InvariantViolation
from minikafka.rest import leaders
from minikafka.rest.body import kind_of, parsed_lines, parsed_records, read_body
from minikafka.rest.fetch import name_of
from minikafka.rest.host import TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX
from minikafka.rest.json_text import ITEM_BYTES, TURN_BYTES, long_step
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import FORWARD, INT32_MAX, INT64_MAX, TOPIC, Choice, Integer, Text
from minikafka.rest.records import RecordIn, records_in
from minikafka.rest.route import LEADER_PROBLEMS, Answer, Body, Json, Reply, Routes, Visit
from minikafka.rest.schema import PartitionNumber, Schema, Timestamp, many, ref
from minikafka.rest.schemas import OfTopic, RecordsIn
from minikafka.types import NO_NODE, Epoch, NodeId, Offset, TopicPartition
from minikafka.web.accept import JSON
from minikafka.web.problems import Refused, malformed, problem_of, status_of
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import CurrentLeader, ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse
from minikafka.wire.outcomes import failure_of
from minikafka.wire.records import BatchBuilder

ROUTES = Routes("records")
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
ACKS_PARAMETER = Choice(
    "acks",
    "Who must have the records before the answer: `all` in-sync replicas, the leader (`1`), nobody (`0`).",
    options=tuple(ACKS),
    default="all",
    error=kafka.InvalidRequiredAcks,
)
TIMEOUT_MS = Integer(
    "timeout_ms", "How long to wait for the in-sync replicas.", default=TIMEOUT_MS_DEFAULT, low=1, high=TIMEOUT_MS_MAX
)
KAFKA_KEY = Text("Kafka-Key", "The key of a raw body.", place="header", length_max=8_000)
PRODUCER_ID = Integer(
    "Producer-Id",
    "A producer's id, from `POST /v1/producer-ids` or `POST /v1/transactions`.",
    place="header",
    high=INT64_MAX,
)
PRODUCER_EPOCH = Integer("Producer-Epoch", "Its epoch.", place="header", high=2**15 - 1)
BASE_SEQUENCE = Integer(
    "Base-Sequence",
    "How many records it has sent to this partition before; in a transaction, how many of the transaction.",
    place="header",
    high=INT32_MAX,
)
IDEMPOTENCE = (PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE)
OF_A_TRANSACTION = Text(
    "Transactional-Id",
    "The records are part of this producer's open transaction, and become readable for `read_committed` "
    "when it is committed (see `POST /v1/transactions`).",
    place="header",
    length_max=8_000,
)
NOT_UTF8 = re.compile("[\ud800-\udfff]")
"""What stands in the text of an HTTP header for a byte that is not UTF-8: no message of a broker can carry it."""
RAW_HEADER = "Kafka-Header-"
HASHED_AT_ONCE = 128 * 1024
"""Bytes of keys that are hashed between two turns of the event loop: some 5 ms."""
KEY_COST = 32
"""A key costs as much as so many bytes, however short it is."""


@dataclass(slots=True)
class _Part:
    """One partition's batch on its way."""

    name: TopicPartition
    rows: list[RecordIn] = field(default_factory=list)
    hint: CurrentLeader | None = None
    leader: NodeId = NO_NODE
    error: kafka.ProtocolError | None = None
    answer: ProducedPartition | None = None
    batch: bytearray = field(default_factory=bytearray)


RAW: Schema = {"type": "string", "format": "binary", "description": "The value itself."}
RECORDS_BODY = Body(
    description='One record, a list of records, `{"records": [...]}`, one record a line, or one raw value with its key '
    "in the request header `Kafka-Key` and its headers in `Kafka-Header-NAME`.",
    contents={
        JSON: ({"anyOf": [ref("RecordIn"), ref("RecordsIn"), many(ref("RecordIn"), minItems=1)]}, RecordsIn.example()),
        "application/x-ndjson": ({"type": "string"}, '{"value": 1}\n{"value": 2}\n'),
        "application/octet-stream": (RAW, None),
        "text/plain": (RAW, "tea"),
    },
)
PROBLEMS = (
    *LEADER_PROBLEMS,
    kafka.CorruptMessage,
    kafka.InvalidRequiredAcks,
    kafka.InvalidTimestamp,
    kafka.MessageTooLarge,
    kafka.NotEnoughReplicas,
    kafka.NotEnoughReplicasAfterAppend,
    kafka.RequestTimedOut,
)


class _Batch(Model):
    """One batch."""

    partition: PartitionNumber = member(example=2)
    record_count: int = member("Records in the batch.", 1)
    leader_id: NodeId = member(example=1)
    base_offset: Offset | None = member(example=41, default=None)
    log_start_offset: Offset | None = member(example=0, default=None)
    leader_epoch: Epoch | None = member(example=3, default=None)
    duplicate: bool | None = member("The same batch had been written before; `base_offset` is where.", default=None)
    problem: Any = member(ref("Problem"), default=None)


class _Record(Model):
    """One record, in the order of the request."""

    partition: PartitionNumber = member(example=2)
    offset: Offset | None = member(example=41, default=None)
    timestamp: Timestamp | None = member(example=1_795_000_000_000, default=None)
    error: str | None = member("Kafka's name of the error, where its batch failed.", default=None)
    outcome: str | None = member(ref("Outcome"), default=None)


class _Produced(OfTopic, notes=True):
    """Where the records came to lie."""

    acks: str = member("As asked: `all`, `1` or `0`.", "all")
    partitions: list[Any] = many_of(_Batch)
    records: list[Any] = many_of(_Record)


WRITTEN = _Produced.answer("Acknowledged as `acks` asks.")
SENT = _Produced.answer(
    "`acks=0`: nothing is known of it.",
    acks="0",
    partitions=[{"partition": 2, "record_count": 1, "leader_id": 1}],
    records=[{"partition": 2}],
)
MIXED = Answer(
    "Some batches were written, some were not: each has its own problem.", {JSON: (_Produced.schema(), None)}
)


@ROUTES.at(
    "POST /v1/topics/{topic}/records",
    {200: WRITTEN, 202: SENT, 207: MIXED},
    parameters=(ACKS_PARAMETER, TIMEOUT_MS, FORWARD, KAFKA_KEY),
    body=RECORDS_BODY,
    problems=PROBLEMS,
)
async def post_records(visit: Visit) -> Reply:
    """Produce; the partitioner chooses."""
    return await _produce(visit, visit[TOPIC], None)


@ROUTES.at(
    "POST /v1/topics/{topic}/partitions/{partition}/records",
    {200: WRITTEN, 202: SENT},
    parameters=(ACKS_PARAMETER, TIMEOUT_MS, FORWARD, KAFKA_KEY, OF_A_TRANSACTION, *IDEMPOTENCE),
    body=RECORDS_BODY,
    problems=(
        *PROBLEMS,
        kafka.ConcurrentTransactions,
        kafka.InvalidProducerEpoch,
        kafka.InvalidProducerIdMapping,
        kafka.InvalidTxnState,
        kafka.OutOfOrderSequenceNumber,
        kafka.TransactionAbortable,
    ),
)
async def post_partition_records(visit: Visit) -> Reply:
    """Produce to the one partition that the address names."""
    name = name_of(visit)
    return await _produce(visit, name.topic, name)


async def _produce(visit: Visit, topic: str, only: TopicPartition | None) -> Reply:
    if only is not None:
        leaders.partition_of(visit.host, only)
    else:
        leaders.check_known(visit, topic)
    sender = _sender_of(visit, only)
    records = await _records(visit)
    await asyncio.sleep(0)
    if len(records) * ITEM_BYTES >= TURN_BYTES:
        await long_step()
    chosen = [None if only is None else only.partition] * len(records)
    parts, places = await _partitioned(visit, topic, records, chosen)
    await _send(visit, parts, sender)
    return _reply(visit, topic, parts, places, sender.acks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sender:
    """How batches are sent, and the producer that the request names, if it does."""

    acks: int = ACKS["all"]
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    transactional_id: str | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    """What makes a batch idempotent, as BatchBuilder takes it."""


class Written(NamedTuple):
    """The result of one record: its position, or the error of its batch."""

    partition: int
    offset: int = -1
    timestamp: int = -1
    error: kafka.ProtocolError | None = None


async def write(visit: Visit, topic: str, records: list[RecordIn], chosen: Sequence[int | None]) -> list[Written]:
    """Append records to an existing topic with acks=all, and return one result per record, in order.

    Args:
        visit: The request; its route declares ``FORWARD``.
        topic: A topic of this broker's image.
        records: The records, in the order of the request.
        chosen: Each record's partition, or None where the partitioner chooses.
    """
    parts, places = await _partitioned(visit, topic, records, chosen)
    await _send(visit, parts, _Sender())
    return [
        Written(part.name.partition, error=_error_of(part))
        if part.answer is None
        else Written(part.name.partition, part.answer.base_offset + at, _timestamp_of(part.rows[at], part.answer))
        for part, at in places
    ]


def _sender_of(visit: Visit, only: TopicPartition | None) -> _Sender:
    """Raises for headers that are not complete, or that do not fit the request."""
    if "Idempotency-Key" in visit.http.headers:
        raise malformed("the header Idempotency-Key is not supported here; Producer-Id and its companions are")
    given = [each.name for each in (OF_A_TRANSACTION, *IDEMPOTENCE) if each.name in visit.http.headers]
    acks, timeout_ms = ACKS[visit[ACKS_PARAMETER]], visit[TIMEOUT_MS]
    if not given:
        return _Sender(acks=acks, timeout_ms=timeout_ms)
    if only is None:
        raise malformed(
            f"the header {given[0]} needs one partition: sequences are counted per partition, so post to "
            f"/v1/topics/{visit[TOPIC]}/partitions/N/records"
        )
    missing = [each.name for each in IDEMPOTENCE if each.name not in given]
    if missing:
        raise malformed(f"the header {given[0]} needs {' and '.join(missing)} beside it")
    transactional_id = visit[OF_A_TRANSACTION] if OF_A_TRANSACTION.name in given else None
    if transactional_id == "":
        raise malformed(f"the header {OF_A_TRANSACTION.name} is empty; leave it out for records without a transaction")
    if transactional_id is not None and NOT_UTF8.search(transactional_id):
        raise malformed(f"the header {OF_A_TRANSACTION.name} is not UTF-8, as a transactional id must be")
    if transactional_id is not None and acks != ACKS["all"]:
        raise malformed(f"acks={visit[ACKS_PARAMETER]}: the records of a transaction need acks=all")
    state = {
        "producer_id": visit[PRODUCER_ID],
        "producer_epoch": visit[PRODUCER_EPOCH],
        "base_sequence": visit[BASE_SEQUENCE],
        "transactional": transactional_id is not None,
    }
    return _Sender(acks=acks, timeout_ms=timeout_ms, transactional_id=transactional_id, state=state)


async def _records(visit: Visit) -> list[RecordIn]:
    kind = kind_of(visit.http, "ndjson", "raw")
    body = await read_body(visit)
    now_ms = visit.host.world.clock.wall_ms()
    raw_headers = _raw_headers(visit)
    if kind == "raw":
        key = visit.http.headers.get(KAFKA_KEY.name)
        return [RecordIn(now_ms, None if key is None else _header_bytes(key), body, raw_headers)]
    if raw_headers or KAFKA_KEY.name in visit.http.headers:
        raise malformed(
            f"{KAFKA_KEY.name} and {RAW_HEADER}* go with a raw body (application/octet-stream or text/plain) only; in "
            "JSON they are members of the record"
        )
    lines_or_one = parsed_lines(body) if kind == "ndjson" else parsed_records(body, kind, visit.http)
    return await records_in(await lines_or_one, now_ms)


def _raw_headers(visit: Visit) -> list[tuple[str, bytes | None]]:
    """Record headers of a raw body; their names are as the client wrote them."""
    found = visit.http.headers.items()
    return [
        (name[len(RAW_HEADER) :], _header_bytes(value))
        for name, value in found
        if name.lower().startswith(RAW_HEADER.lower()) and len(name) > len(RAW_HEADER)
    ]


def _header_bytes(value: str) -> bytes:
    """The bytes that stood in the HTTP header."""
    return value.encode("utf-8", "surrogateescape")


async def _partitioned(
    visit: Visit, topic: str, records: list[RecordIn], chosen: Sequence[int | None]
) -> tuple[list[_Part], list[tuple[_Part, int]]]:
    """The parts by partition number, and for each record its part and its place therein.

    ``chosen`` has each record's partition, or None where the partitioner chooses.
    """
    # Again: it may have been deleted while the body was read.
    leaders.check_known(visit, topic)
    partitions = visit.host.image.topics[topic].partitions
    led = [each.partition for each in partitions if each.leader != NO_NODE] or list(range(len(partitions)))
    without_key = visit.host.world.random.choice(led)
    parts: dict[int, _Part] = {}
    places = []
    hashed_size = 0
    for record, given in zip(records, chosen, strict=True):
        if given is not None:
            number = given
        elif record.key is None:
            number = without_key
        else:
            key_hash = 0
            for step in murmur2_in_steps(record.key, HASHED_AT_ONCE):
                key_hash = step
                hashed_size += min(len(record.key), HASHED_AT_ONCE) + KEY_COST
                if hashed_size >= HASHED_AT_ONCE:
                    hashed_size = 0
                    await long_step()
            number = partition_of_hash(key_hash, len(partitions))
        part = parts.get(number)
        if part is None:
            part = parts[number] = _Part(TopicPartition(topic, number))
        places.append((part, len(part.rows)))
        part.rows.append(record)
    return [parts[number] for number in sorted(parts)], places


def _may_repeat(error: kafka.ProtocolError) -> bool:
    """Return True if nothing was written and a retry may succeed: the leader moved, or a transaction is ending."""
    return leaders.is_stale(error) or isinstance(error, kafka.ConcurrentTransactions)


async def _send(visit: Visit, parts: list[_Part], sender: _Sender) -> None:
    """Every part ends with an answer or an error. Metadata is refreshed while nothing was written."""
    forward = leaders.may_forward(visit)
    for part in parts:
        if sum([len(each.value or b"") + ITEM_BYTES for each in part.rows]) >= TURN_BYTES:
            await long_step()
        builder = BatchBuilder(**sender.state)
        builder.extend(part.rows)
        part.batch = builder.build()
    for attempt in range(leaders.ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(leaders.PAUSE_S)
        by_leader: dict[NodeId, list[_Part]] = {}
        for part in parts:
            if part.answer is None and (part.error is None or _may_repeat(part.error)):
                try:
                    leader = leaders.current_leader(visit.host, part.name, part.hint)
                except kafka.ProtocolError as error:
                    part.error = error
                    continue
                if not forward:
                    leaders.refuse_to_forward(visit, part.name, leader)
                part.leader = leader.leader_id
                by_leader.setdefault(leader.leader_id, []).append(part)
        if not by_leader:
            break
        await asyncio.gather(*(_send_to(visit, leader, theirs, sender) for leader, theirs in sorted(by_leader.items())))
        if not forward or all(part.answer is not None for part in parts):
            break
    visit.leaders.extend(part.leader for part in parts if part.leader != NO_NODE)


async def _send_to(visit: Visit, leader: NodeId, parts: list[_Part], sender: _Sender) -> None:
    request = ProduceRequest(
        acks=sender.acks,
        timeout_ms=sender.timeout_ms,
        client_id="rest",
        transactional_id=sender.transactional_id,
        transaction_version=TRANSACTION_V2 if sender.transactional_id is not None else 0,
        partitions=tuple(ProducePartition(**part.name._asdict(), records=(part.batch,)) for part in parts),
    )
    try:
        response: ProduceResponse = await leaders.ask(visit, leader, request, wait_s=sender.timeout_ms / 1000)
    except kafka.ProtocolError as error:
        for part in parts:
            part.error = error
        return
    answers = {TopicPartition(each.topic, each.partition): each for each in response.partitions}
    for part in parts:
        answer = answers[part.name]
        if answer.error_code:
            part.error, part.hint = failure_of(answer), answer.current_leader
        else:
            part.error, part.answer = None, answer


# ---- the answer ------------------------------------------------------------------------------------------------------


def _reply(visit: Visit, topic: str, parts: list[_Part], places: list[tuple[_Part, int]], acks: int) -> Reply:
    failed = [part for part in parts if part.answer is None]
    if len(failed) == len(parts):
        raise _refusal(visit, parts)
    body: Json = {
        "topic": topic,
        "acks": {-1: "all"}.get(acks, str(acks)),
        "partitions": [_part_out(visit, part, acks) for part in parts],
        "records": [_place_out(part, at, acks) for part, at in places],
    }
    return Reply(body, 207 if failed else 202 if acks == 0 else 200)


def _error_of(part: _Part) -> kafka.ProtocolError:
    if part.error is None:
        raise InvariantViolation(f"{part.name} has neither an answer nor an error")
    return leaders.still_moving(part.name, part.error)


def _problem_of(visit: Visit, part: _Part) -> dict[str, Any]:
    return problem_of(_error_of(part), **_facts_of(visit, part))


def _facts_of(visit: Visit, part: _Part) -> dict[str, Any]:
    """What a person looks at next: who leads, who is in sync, how many would have to be."""
    facts: dict[str, Any] = part.name._asdict()
    image = visit.host.image.partition(part.name)
    if image is not None:
        facts["isr"] = list(image.isr)
        known = CurrentLeader(leader_id=image.leader, leader_epoch=image.leader_epoch)
        facts["leader"] = visit.leader_out(known)
        topic = visit.host.image.topics[part.name.topic]
        facts["min_insync_replicas"] = leaders.min_isr(visit.host.config, topic, image)
    return facts


def _refusal(visit: Visit, parts: list[_Part]) -> Refused:
    """All failed: the answer is the worst of the problems, *unknown* before anything else."""
    errors = {part.name: _error_of(part) for part in parts}
    worst = max(parts, key=lambda part: (errors[part.name].outcome == kafka.UNKNOWN, status_of(errors[part.name])))
    facts = _facts_of(visit, worst)
    if len(parts) > 1:
        facts["partitions"] = [
            {"partition": part.name.partition, "problem": _problem_of(visit, part)} for part in parts
        ]
    return Refused(errors[worst.name], **facts)


def _part_out(visit: Visit, part: _Part, acks: int) -> dict[str, Any]:
    # By hand, as the records below: this is on the path of each produce request.
    document: dict[str, Any] = {
        "partition": part.name.partition,
        "record_count": len(part.rows),
        "leader_id": part.leader,
    }
    answer = part.answer
    if answer is None:
        return {**document, "problem": _problem_of(visit, part)}
    if acks == 0:
        return document
    document.update(
        base_offset=answer.base_offset, log_start_offset=answer.log_start_offset, leader_epoch=answer.leader_epoch
    )
    if answer.duplicate:
        document["duplicate"] = True
    return document


def _place_out(part: _Part, at: int, acks: int) -> dict[str, Any]:
    document: dict[str, Any] = {"partition": part.name.partition}
    if part.answer is None:
        error = _error_of(part)
        return {**document, "error": error.name, "outcome": error.outcome}
    if acks != 0:
        document["offset"] = part.answer.base_offset + at
        document["timestamp"] = _timestamp_of(part.rows[at], part.answer)
    return document


def _timestamp_of(record: RecordIn, answer: ProducedPartition) -> int:
    return record.timestamp if answer.log_append_time_ms < 0 else answer.log_append_time_ms
