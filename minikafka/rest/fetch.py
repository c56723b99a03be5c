"""``GET /v1/topics/{t}/partitions/{p}/records``: a stateless long poll.

- Ends at ``min_bytes`` or after ``max_wait_ms``, and says which: ``"wait": {"ended": "data" | "timeout", "ms": ...}``.
- Committed records only (S2, S3). ``next_offset`` is where the next request should start: behind the last record told,
  or behind records that are none for applications (control batches).
- An offset outside the log is 416 with ``log_start_offset`` and ``high_watermark``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minikafka.errors import CorruptMessage
from minikafka.ports import Buffers
from minikafka.rest.host import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_RECORD_COUNT_DEFAULT,
    FETCH_RECORD_COUNT_MAX,
    WAIT_MS_DEFAULT,
    WAIT_MS_MAX,
)
from minikafka.rest.leaders import from_leader, reads_forward
from minikafka.rest.problems import malformed
from minikafka.rest.records import FORMATS, record_out, unreadable_out
from minikafka.rest.visit import Reply, Visit
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import RecordBatch, iterate
from minikafka.wire.messages import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from minikafka.wire.records import decode_batch

ISOLATION = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
PARTITION_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The parameters of one fetch."""

    offset: Offset
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    isolation: int
    form: str
    forward: bool


def name_of(visit: Visit) -> TopicPartition:
    """The partition that the address names; 400 when its number is none."""
    text = visit.path["partition"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= PARTITION_MAX):
        raise malformed(f"partition {text[:40]!r} in the address: a number from 0 to {PARTITION_MAX} is needed")
    return TopicPartition(visit.path["topic"], int(text))


def _wanted(visit: Visit) -> _Wanted:
    query = visit.query
    max_bytes_max = min(FETCH_BYTES_MAX, visit.host.config.fetch_max_bytes)
    wanted = _Wanted(
        offset=query.integer("offset", 0, low=0, high=2**63 - 1),
        max_wait_ms=query.integer("max_wait_ms", WAIT_MS_DEFAULT, low=0, high=WAIT_MS_MAX),
        min_bytes=query.integer("min_bytes", 1, low=1, high=max_bytes_max),
        max_bytes=query.integer("max_bytes", min(FETCH_BYTES_DEFAULT, max_bytes_max), low=1, high=max_bytes_max),
        max_records=query.integer("max_records", FETCH_RECORD_COUNT_DEFAULT, low=1, high=FETCH_RECORD_COUNT_MAX),
        isolation=ISOLATION[query.choice("isolation", tuple(ISOLATION), "read_uncommitted")],
        form=query.choice("format", FORMATS, "auto"),
        forward=reads_forward(visit),
    )
    if wanted.min_bytes > wanted.max_bytes:
        query.refuse(
            "min_bytes", f"{wanted.min_bytes} is more than max_bytes={wanted.max_bytes}: it could never be met"
        )
    query.done()
    return wanted


async def get_records(visit: Visit) -> Reply:
    """Read, waiting for news if there is none."""
    name = name_of(visit)
    wanted = _wanted(visit)
    request = FetchRequest(
        max_wait_ms=wanted.max_wait_ms,
        min_bytes=wanted.min_bytes,
        max_bytes=wanted.max_bytes,
        isolation_level=wanted.isolation,
        partitions=(
            FetchPartition(
                topic=name.topic,
                partition=name.partition,
                fetch_offset=wanted.offset,
                partition_max_bytes=wanted.max_bytes,
            ),
        ),
    )
    clock = visit.host.world.clock
    start = clock.now()
    answer, leader = await from_leader(
        visit, name, request, pick=_only_partition, forward=wanted.forward, wait_s=wanted.max_wait_ms / 1000
    )
    waited_ms = round((clock.now() - start) * 1000)
    size = sum(map(len, answer.records))
    records, next_offset = read_out(answer.records, wanted.offset, count_max=wanted.max_records, form=wanted.form)
    return Reply(
        {
            "topic": name.topic,
            "partition": name.partition,
            "records": records,
            "next_offset": next_offset,
            "high_watermark": answer.high_watermark,
            "log_start_offset": answer.log_start_offset,
            "log_end_offset": answer.log_end_offset,
            "leader_epoch": leader.leader_epoch,
            "leader_id": leader.leader_id,
            "wait": {"ended": "data" if size >= wanted.min_bytes else "timeout", "ms": waited_ms},
        }
    )


def _only_partition(response: FetchResponse) -> FetchedPartition:
    return response.partitions[0]


def read_out(data: Buffers, offset: Offset, *, count_max: int, form: str) -> tuple[list[dict[str, Any]], Offset]:
    """At most ``count_max`` records from ``offset`` on, and the offset to go on from."""
    told: list[dict[str, Any]] = []
    next_offset = offset
    for batch in iterate(data[0] if len(data) == 1 else b"".join(data)):
        if batch.next_offset <= offset:
            continue
        if len(told) >= count_max:
            break
        if not batch.is_control:
            told.extend(_batch_out(batch, offset, count_max - len(told), form))
            if len(told) >= count_max and told[-1].get("last_offset", told[-1]["offset"]) < batch.last_offset:
                return told, told[-1]["offset"] + 1
        next_offset = batch.next_offset
    return told, next_offset


def _batch_out(batch: RecordBatch, offset: Offset, count_max: int, form: str) -> list[dict[str, Any]]:
    try:
        records = decode_batch(batch)
    except CorruptMessage as error:
        return [unreadable_out(max(batch.base_offset, offset), batch.last_offset, batch.leader_epoch, error.message)]
    wanted = [record for record in records if record.offset >= offset]
    return [record_out(record, batch.leader_epoch, form) for record in wanted[:count_max]]
