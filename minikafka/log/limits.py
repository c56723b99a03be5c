"""What a topic's settings refuse before a batch is appended (KAFKA-FACTS 1.3, 2)."""

from __future__ import annotations

from minikafka.config import TopicConfig
from minikafka.errors import InvalidTimestamp, MessageTooLarge, RecordListTooLarge
from minikafka.wire.batch import CREATE_TIME, NO_TIMESTAMP, RecordBatch


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
