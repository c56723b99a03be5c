"""What a topic's settings refuse before a batch is appended (KAFKA-FACTS 1.3, 2)."""

from __future__ import annotations

from minikafka.config import TopicConfig
from minikafka.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge
from minikafka.wire.batch import NO_TIMESTAMP, TIMESTAMP_TYPE_BIT, RecordBatch
from minikafka.wire.decompression import decompression_limit
from minikafka.wire.validate import is_long, keyless_records, timestamps_of

_NAMED_MAX = 5

RECORD_ERRORS_MAX = 1000
"""Refused records of a batch that a response names."""


_KEYLESS = "the record has no key, and cleanup.policy is compact"


def check_limits(batch: RecordBatch, config: TopicConfig, *, wall_ms: int, log: str) -> None:
    """Raises MessageTooLarge, RecordListTooLarge or InvalidTimestamp; ``log`` is named in the message.

    Timestamps are judged by what the header tells: the first record's and the largest.
    """
    size = len(batch.data)
    if size > config.max_message_bytes:
        raise MessageTooLarge(
            f"{log}: a batch of {size} bytes is larger than the topic's max.message.bytes={config.max_message_bytes}; "
            "raise it, or send smaller batches"
        )
    if size > config.segment_bytes:
        raise RecordListTooLarge(
            f"{log}: a batch of {size} bytes is larger than the topic's segment.bytes={config.segment_bytes}; "
            "raise it, or send smaller batches"
        )
    if config.uses_append_time or batch.attributes & TIMESTAMP_TYPE_BIT:
        return
    for timestamp in (batch.base_timestamp, batch.max_timestamp):
        why = _why_refused(timestamp, config, wall_ms)
        if why:
            refused = InvalidTimestamp(f"{log}: {why}")
            refused.record_errors = _refused_records(batch, config, wall_ms)
            raise refused


def _why_refused(timestamp: int, config: TopicConfig, wall_ms: int) -> str:
    """Return why a record with this timestamp is refused; empty if it is not."""
    if timestamp == NO_TIMESTAMP:
        return ""
    ahead = timestamp - wall_ms
    if ahead > config.message_timestamp_after_max_ms:
        return (
            f"timestamp {timestamp} is {ahead} ms ahead of the broker's clock; "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_max_ms} is the limit"
        )
    if -ahead > config.message_timestamp_before_max_ms:
        return (
            f"timestamp {timestamp} is {-ahead} ms behind the broker's clock; "
            f"message.timestamp.before.max.ms={config.message_timestamp_before_max_ms} is the limit"
        )
    return ""


def _refused_records(batch: RecordBatch, config: TopicConfig, wall_ms: int) -> tuple[tuple[int, str], ...]:
    """Records whose timestamp is refused; none if the batch takes long to read, or cannot be read."""
    limit = decompression_limit(config.max_message_bytes)
    if is_long(batch, limit):
        return ()
    try:
        found = timestamps_of(batch, limit)
    except InvalidRecord:
        return ()
    refused = ((at, _why_refused(timestamp, config, wall_ms)) for at, timestamp in enumerate(found))
    return tuple((at, why) for at, why in refused if why)[:RECORD_ERRORS_MAX]


def check_keys(batch: RecordBatch, log: str, limit: int) -> None:
    """A compacted log keeps the last record of each key: raises InvalidRecord for records without one (KAFKA-4808).

    The whole batch is refused; the message says which of its records, counted from 0. Reads all records, and raises
    InvalidRecord for those that cannot be read; ``limit`` is that of :func:`minikafka.wire.validate.check_records`.
    """
    keyless = keyless_records(batch, limit)
    if keyless:
        named = ", ".join(map(str, keyless[:_NAMED_MAX])) + (", ..." if len(keyless) > _NAMED_MAX else "")
        refused = InvalidRecord(
            f"{log}: {len(keyless)} of {batch.record_count} records have no key (numbers {named} of the batch): "
            "cleanup.policy is compact, which keeps the last record of each key; give every record a key"
        )
        refused.record_errors = tuple((at, _KEYLESS) for at in keyless[:RECORD_ERRORS_MAX])
        raise refused
