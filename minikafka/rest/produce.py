"""``POST /v1/topics/{t}/records`` and ``.../partitions/{p}/records``: JSON records become one batch per partition.

- Keys go where Kafka's producer puts them (murmur2); records without a key share one random partition per request
  (S26).
- Each batch is atomic. Batches for several partitions are not: 207 when some failed, each with its own problem; when
  all failed, the worst of them is the answer.
- 200 when it is acknowledged as ``acks`` asks (default ``all``), 202 for ``acks=0``: nothing is known then.
- What may have been written is 504, outcome *unknown*: sending again may write twice, for no producer id is used here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from minikafka.client.partitioner import partition_of_key
from minikafka.errors import UNKNOWN, ProtocolError
from minikafka.invariant import InvariantViolation
from minikafka.rest.body import FORM_NOTE, kind_of, parsed, parsed_lines, read_body
from minikafka.rest.fetch import name_of
from minikafka.rest.host import TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX
from minikafka.rest.leaders import (
    ATTEMPTS_MAX,
    PAUSE_S,
    ask,
    current_leader,
    failure_of,
    is_stale,
    leader_members,
    partition_of,
    reads_forward,
    refuse_to_forward,
    still_moving,
    unknown_topic,
)
from minikafka.rest.problems import Refused, malformed, problem_of, status_of
from minikafka.rest.records import RecordIn, records_in
from minikafka.rest.visit import Reply, Visit
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.messages import CurrentLeader, ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse
from minikafka.wire.records import BatchBuilder

ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}

# A caller who sends one of these believes that it has an effect.
HEADERS_REFUSED = ("Producer-Id", "Producer-Epoch", "Base-Sequence", "Idempotency-Key")


@dataclass(slots=True)
class _Part:
    """One partition's batch on its way."""

    name: TopicPartition
    rows: list[RecordIn] = field(default_factory=list)
    hint: CurrentLeader | None = None
    leader: NodeId = NO_NODE
    error: ProtocolError | None = None
    answer: ProducedPartition | None = None


async def post_records(visit: Visit) -> Reply:
    """Produce; the partitioner chooses."""
    return await _produce(visit, visit.path["topic"], None)


async def post_partition_records(visit: Visit) -> Reply:
    """Produce to the one partition that the address names."""
    name = name_of(visit)
    return await _produce(visit, name.topic, name)


async def _produce(visit: Visit, topic: str, only: TopicPartition | None) -> Reply:
    acks = ACKS[visit.query.choice("acks", tuple(ACKS), "all")]
    timeout_ms = visit.query.integer("timeout_ms", TIMEOUT_MS_DEFAULT, low=1, high=TIMEOUT_MS_MAX)
    forward = reads_forward(visit)
    visit.query.done()
    _refuse_headers(visit)
    if only is not None:
        partition_of(visit.host, only)
    elif topic not in visit.host.image.topics:
        raise unknown_topic(topic)
    records, note = await _records(visit)
    parts, places = _partitioned(visit, topic, records, only)
    await _send(visit, parts, acks=acks, timeout_ms=timeout_ms, forward=forward)
    return _reply(visit, topic, parts, places, acks=acks, note=note)


def _refuse_headers(visit: Visit) -> None:
    for name in HEADERS_REFUSED:
        if name in visit.http.headers:
            raise malformed(f"the header {name} is not supported here yet; use the client for idempotent producing")


async def _records(visit: Visit) -> tuple[list[RecordIn], dict[str, str]]:
    kind = kind_of(visit.http)
    body = await read_body(visit.http, visit.host, visit.admission)
    document = parsed_lines(body) if kind == "ndjson" else parsed(body, kind, visit.http)
    note = {"note": FORM_NOTE} if kind == "form" else {}
    return records_in(document, visit.host.world.clock.wall_ms()), note


def _partitioned(
    visit: Visit, topic: str, records: list[RecordIn], only: TopicPartition | None
) -> tuple[list[_Part], list[tuple[_Part, int]]]:
    """The parts by partition number, and for each record its part and its place therein."""
    partitions = visit.host.image.topics[topic].partitions
    led = [each.partition for each in partitions if each.leader != NO_NODE] or list(range(len(partitions)))
    without_key = visit.host.world.random.choice(led)
    parts: dict[int, _Part] = {}
    places = []
    for record in records:
        if only is not None:
            number = only.partition
        elif record.key is None:
            number = without_key
        else:
            number = partition_of_key(record.key, len(partitions))
        part = parts.get(number)
        if part is None:
            part = parts[number] = _Part(TopicPartition(topic, number))
        places.append((part, len(part.rows)))
        part.rows.append(record)
    return [parts[number] for number in sorted(parts)], places


def _batch_of(rows: list[RecordIn]) -> bytearray:
    builder = BatchBuilder()
    builder.extend(rows)
    return builder.build()


async def _send(visit: Visit, parts: list[_Part], *, acks: int, timeout_ms: int, forward: bool) -> None:
    """Every part ends with an answer or an error. A stale picture is looked at anew while nothing was written."""
    batches = {part.name: _batch_of(part.rows) for part in parts}
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(PAUSE_S)
        by_leader: dict[NodeId, list[_Part]] = {}
        for part in parts:
            if part.answer is None and (part.error is None or is_stale(part.error)):
                try:
                    leader = current_leader(visit.host, part.name, part.hint)
                except ProtocolError as error:
                    part.error = error
                    continue
                if not forward:
                    refuse_to_forward(visit.host, part.name, leader)
                part.leader = leader.leader_id
                by_leader.setdefault(leader.leader_id, []).append(part)
        if not by_leader:
            break
        await asyncio.gather(
            *(
                _send_to(visit, leader, theirs, batches, acks=acks, timeout_ms=timeout_ms)
                for leader, theirs in sorted(by_leader.items())
            )
        )
        if not forward or all(part.answer is not None for part in parts):
            break
    visit.leaders.extend(part.leader for part in parts if part.leader != NO_NODE)


async def _send_to(
    visit: Visit,
    leader: NodeId,
    parts: list[_Part],
    batches: dict[TopicPartition, bytearray],
    *,
    acks: int,
    timeout_ms: int,
) -> None:
    request = ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        client_id="rest",
        partitions=tuple(
            ProducePartition(topic=part.name.topic, partition=part.name.partition, records=(batches[part.name],))
            for part in parts
        ),
    )
    try:
        response: ProduceResponse = await ask(visit, leader, request, wait_s=timeout_ms / 1000)
    except ProtocolError as error:
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


def _reply(
    visit: Visit,
    topic: str,
    parts: list[_Part],
    places: list[tuple[_Part, int]],
    *,
    acks: int,
    note: dict[str, str],
) -> Reply:
    failed = [part for part in parts if part.answer is None]
    if len(failed) == len(parts):
        raise _refusal(visit, parts)
    body = {
        "topic": topic,
        "acks": {-1: "all"}.get(acks, str(acks)),
        "partitions": [_part_out(visit, part, acks) for part in parts],
        "records": [_place_out(part, at, acks) for part, at in places],
        **note,
    }
    return Reply(body, 207 if failed else 202 if acks == 0 else 200)


def _error_of(part: _Part) -> ProtocolError:
    if part.error is None:
        raise InvariantViolation(f"{part.name} has neither an answer nor an error")
    return still_moving(part.name, part.error)


def _problem_of(visit: Visit, part: _Part) -> dict[str, Any]:
    return problem_of(_error_of(part), **_facts_of(visit, part))


def _facts_of(visit: Visit, part: _Part) -> dict[str, Any]:
    """What a person looks at next: who leads, who is in sync, how many would have to be."""
    facts: dict[str, Any] = {"topic": part.name.topic, "partition": part.name.partition}
    image = visit.host.image.partition(part.name)
    if image is not None:
        facts["isr"] = list(image.isr)
        known = CurrentLeader(leader_id=image.leader, leader_epoch=image.leader_epoch)
        facts["leader"] = leader_members(visit.host, known)
        configs = visit.host.image.topics[part.name.topic].configs
        minimum = int(configs.get("min.insync.replicas", visit.host.config.min_insync_replicas))
        facts["min_insync_replicas"] = min(minimum, len(image.replicas))
    return facts


def _refusal(visit: Visit, parts: list[_Part]) -> Refused:
    """All failed: the answer is the worst of the problems, *unknown* before anything else."""
    errors = {part.name: _error_of(part) for part in parts}
    worst = max(parts, key=lambda part: (errors[part.name].outcome == UNKNOWN, status_of(errors[part.name])))
    facts = _facts_of(visit, worst)
    if len(parts) > 1:
        facts["partitions"] = [
            {"partition": part.name.partition, "problem": _problem_of(visit, part)} for part in parts
        ]
    return Refused(errors[worst.name], **facts)


def _part_out(visit: Visit, part: _Part, acks: int) -> dict[str, Any]:
    told: dict[str, Any] = {"partition": part.name.partition, "record_count": len(part.rows), "leader_id": part.leader}
    answer = part.answer
    if answer is None:
        return {**told, "problem": _problem_of(visit, part)}
    if acks == 0:
        return told
    told.update(
        base_offset=answer.base_offset,
        log_start_offset=answer.log_start_offset,
        leader_epoch=answer.leader_epoch,
    )
    if answer.duplicate:
        told["duplicate"] = True
    return told


def _place_out(part: _Part, at: int, acks: int) -> dict[str, Any]:
    told: dict[str, Any] = {"partition": part.name.partition}
    if part.answer is None:
        error = _error_of(part)
        return {**told, "error": error.name, "outcome": error.outcome}
    if acks != 0:
        told["offset"] = part.answer.base_offset + at
        appended_ms = part.answer.log_append_time_ms
        told["timestamp"] = part.rows[at].timestamp if appended_ms < 0 else appended_ms
    return told
