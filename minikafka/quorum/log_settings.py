"""The topic settings under which the metadata log is kept: nothing of it is deleted but what snapshots hold."""

from __future__ import annotations

from minikafka.config import LONG_MAX, MIB, BrokerConfig, TopicConfig

METADATA_BATCH_BYTES_MAX = 8 * MIB
"""Of one append: it is one batch, so that it is applied as a whole or not at all."""


def metadata_log_settings(config: BrokerConfig) -> TopicConfig:
    """Retention never, every append synced, and segments as small as the largest batch and a snapshot's worth allow.

    A segment goes only as a whole, so a larger one would outlive the snapshots that replace it.
    """
    largest_batch = METADATA_BATCH_BYTES_MAX + MIB
    return TopicConfig(
        segment_bytes=max(largest_batch, config.metadata_log_max_record_bytes_between_snapshots),
        segment_index_bytes=config.log_index_size_max_bytes,
        retention_ms=-1,
        retention_bytes=-1,
        flush_messages=1,
        max_message_bytes=largest_batch,
        # A leader's clock may jump; its own records must never be refused for that.
        message_timestamp_after_max_ms=LONG_MAX,
    )
