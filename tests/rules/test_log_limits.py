"""What a topic refuses before a batch is appended, and which of its records are to blame (KIP-467)."""

from __future__ import annotations

import pytest

from minikafka.config import TopicConfig
from minikafka.errors import InvalidRecord, InvalidTimestamp
from minikafka.log.limits import RECORD_ERRORS_MAX, check_keys, check_limits
from minikafka.wire.batch import RecordBatch, verify_client
from minikafka.wire.records import BatchBuilder

NOW = 1_700_000_000_000
HOUR = 3_600_000


def batch(*timestamps: int, codec: str = "none", value: bytes = b"value") -> RecordBatch:
    builder = BatchBuilder(compression=codec)
    for timestamp in timestamps:
        builder.append(timestamp, None if timestamp % 2 else b"key", value)
    return verify_client(bytes(builder.build()))


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_refused_timestamps_name_their_records(codec: str):
    """Each record outside the bounds, by its number within the batch."""
    config = TopicConfig(message_timestamp_after_max_ms=HOUR, message_timestamp_before_max_ms=HOUR)
    with pytest.raises(InvalidTimestamp) as refused:
        check_limits(batch(NOW, NOW + 2 * HOUR, NOW, NOW - 2 * HOUR, codec=codec), config, wall_ms=NOW, log="t-0")
    ahead = (
        f"timestamp {NOW + 2 * HOUR} is 7200000 ms ahead of the broker's clock; message.timestamp.after.max.ms=3600000"
    )
    behind = (
        f"timestamp {NOW - 2 * HOUR} is 7200000 ms behind the broker's clock; message.timestamp.before.max.ms=3600000"
    )
    assert refused.value.record_errors == ((1, f"{ahead} is the limit"), (3, f"{behind} is the limit"))
    assert refused.value.message == f"t-0: {ahead} is the limit"


def test_refused_timestamps_of_a_batch_that_takes_long_to_read_name_no_record():
    """The event loop does not decompress it only to say more."""
    config = TopicConfig(message_timestamp_after_max_ms=HOUR, max_message_bytes=2_000_000)
    with pytest.raises(InvalidTimestamp) as refused:
        check_limits(batch(NOW + 2 * HOUR, value=bytes(1_200_000)), config, wall_ms=NOW, log="t-0")
    assert refused.value.record_errors == ()


def test_records_without_a_key_are_named():
    """On a compacted topic, up to a bound on the response."""
    with pytest.raises(InvalidRecord) as refused:
        check_keys(batch(NOW, NOW + 1, NOW, NOW + 3), "t-0", 1_000_000)
    assert refused.value.record_errors == tuple(
        (at, "the record has no key, and cleanup.policy is compact") for at in (1, 3)
    )
    with pytest.raises(InvalidRecord) as refused:
        check_keys(batch(*[NOW + 1] * (RECORD_ERRORS_MAX + 1)), "t-0", 1_000_000)
    assert len(refused.value.record_errors) == RECORD_ERRORS_MAX
