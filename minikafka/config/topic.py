"""The topics' settings, one table (D8)."""

from __future__ import annotations

from dataclasses import dataclass

from minikafka.config.setting import DAY_MS, GIB, INT_MAX, LONG_MAX, MIB, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What may differ from topic to topic."""

    segment_bytes: int = setting("segment.bytes", GIB, "roll a segment at this size", low=14, high=INT_MAX)
    segment_ms: int = setting("segment.ms", 7 * DAY_MS, "roll a segment at this age (record time)", low=1)
    segment_index_bytes: int = setting(
        "segment.index.bytes", 10 * MIB, "largest size of one index file", low=24, high=INT_MAX
    )
    index_interval_bytes: int = setting("index.interval.bytes", 4096, "bytes of log between index entries", low=0)
    retention_ms: int = setting("retention.ms", 7 * DAY_MS, "delete segments older than this; -1: never", low=-1)
    retention_bytes: int = setting("retention.bytes", -1, "delete segments beyond this size; -1: never", low=-1)
    file_delete_delay_ms: int = setting("file.delete.delay.ms", 60_000, "from rename to unlink", low=0)
    cleanup_policy: str = setting(
        "cleanup.policy",
        "delete",
        "what becomes of old segments",
        one_of=("delete", "compact", "compact,delete", "delete,compact"),
    )
    flush_messages: int = setting(
        "flush.messages", LONG_MAX, "1: acknowledge only what is synced to disk; larger: sync after so many", low=1
    )
    flush_ms: int = setting("flush.ms", LONG_MAX, "sync at least this often", low=0)
    max_message_bytes: int = setting("max.message.bytes", 1_048_588, "largest record batch", low=61, high=INT_MAX)
    compression_type: str = setting(
        "compression.type",
        "producer",
        "keep the producer's codec; the broker never opens a batch",
        one_of=("producer",),
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type", "CreateTime", "whose clock stamps records", one_of=("CreateTime", "LogAppendTime")
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms", LONG_MAX, "how far back a record's timestamp may lie", low=0
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms", 3_600_000, "how far ahead a record's timestamp may lie", low=0
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas", 1, "with acks=all, refuse to write with fewer in-sync replicas", low=1
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable", False, "let a replica outside the ISR lead when none of it lives: may lose"
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms", DAY_MS, "forget idle producers after this", low=1
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio", 0.5, "compact when more than this part of the log is dirty", low=0, high=1
    )
    min_compaction_lag_ms: int = setting("min.compaction.lag.ms", 0, "leave younger records uncompacted", low=0)
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms", LONG_MAX, "compact, whatever the dirty ratio, what is older", low=1
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms", DAY_MS, "how long tombstones stay after they were first cleaned", low=0
    )

    @property
    def compacts(self) -> bool:
        """Does ``cleanup.policy`` ask for compaction?"""
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """At which age a segment is rolled: one that stays active too long could not be compacted in time (KIP-354)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def syncs_before_acknowledging(self) -> bool:
        """D6: under flush.messages=1 a replica's acknowledged end is its synced end."""
        return self.flush_messages == 1
