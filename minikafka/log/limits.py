"""What a topic's settings refuse before a batch is appended (KAFKA-FACTS 1.3, 2)."""

from __future__ import annotations

from minikafka.config import TopicConfig
from minikafka.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge
from minikafka.wire.batch import CREATE_TIME, NO_TIMESTAMP, RecordBatch
from minikafka.wire.validate import keyless_records

_NAMED_MAX = 5


def uses_append_time(config: TopicConfig) -> bool:
    """Does the broker's clock stamp the records?"""
    return config.message_timestamp_type == "LogAppendTime"


def check_limits(batch: RecordBatch, config: TopicConfig, *, wall_ms: int, log: str) -> None:
    """Raises MessageTooLarge, RecordListTooLarge or InvalidTimestamp; ``log`` is named in the message.

    Timestamps are judged by what the header tells: the first record's and the largest.
    """
    if batch.size > config.max_message_bytes:
        raise MessageTooLarge(f"{log}: a batch of {batch.size} bytes, max.message.bytes is {config.max_message_bytes}")
    if batch.size > config.segment_bytes:
        raise RecordListTooLarge(f"{log}: a batch of {batch.size} bytes, segment.bytes is {config.segment_bytes}")
    if uses_append_time(config) or batch.timestamp_type != CREATE_TIME:
        return
    low = wall_ms - config.message_timestamp_before_max_ms
    high = wall_ms + config.message_timestamp_after_max_ms
    for timestamp in (batch.base_timestamp, batch.max_timestamp):
        if timestamp != NO_TIMESTAMP and not low <= timestamp <= high:
            raise InvalidTimestamp(f"{log}: timestamp {timestamp} is outside {low}..{high}")


def check_keys(batch: RecordBatch, log: str, limit: int) -> None:
    """A compacted log keeps the last record of each key: raises InvalidRecord for records without one (KAFKA-4808).

    The whole batch is refused; the message says which of its records, counted from 0. Reads all records, and raises
    InvalidRecord for those that cannot be read; ``limit`` is that of :func:`minikafka.wire.validate.check_records`.
    """
    keyless = keyless_records(batch, limit)
    if keyless:
        named = ", ".join(map(str, keyless[:_NAMED_MAX])) + (", ..." if len(keyless) > _NAMED_MAX else "")
        raise InvalidRecord(
            f"{log}: {len(keyless)} of {batch.record_count} records have no key (numbers {named} of the batch): "
            "cleanup.policy is compact, which keeps the last record of each key; give every record a key"
        )
