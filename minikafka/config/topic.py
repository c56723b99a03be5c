"""The topics' settings, one table (D8)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from minikafka.config.setting import DAY_MS, GIB, INT_MAX, LONG_MAX, MIB, kept_setting, setting
from minikafka.errors import InvalidConfig

KEEP_CODEC, NO_CODEC = "producer", "uncompressed"
COMPRESSION_TYPES = (NO_CODEC, "zstd", "lz4", "snappy", "gzip", KEEP_CODEC)

_REPLICA = re.compile(r"[0-9]+:[0-9]+")


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
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms", 60_000, "Time between the renaming of a file that is deleted and its removal.", low=0
    )
    cleanup_policy: str = setting(
        "cleanup.policy",
        "delete",
        "Old segments are deleted, compacted, or both.",
        one_of=("delete", "compact", "compact,delete", "delete,compact"),
    )
    flush_messages: int = setting(
        "flush.messages", LONG_MAX, "1: acknowledge only what is synced to disk; larger: sync after so many", low=1
    )
    flush_ms: int = setting("flush.ms", LONG_MAX, "The log is synced at least this often.", low=0)
    max_message_bytes: int = setting(
        "max.message.bytes", 1_048_588, "Size of the largest record batch.", low=61, high=INT_MAX
    )
    compression_type: str = setting(
        "compression.type",
        KEEP_CODEC,
        "codec of stored batches, others are compressed again; producer: each batch keeps its codec",
        one_of=COMPRESSION_TYPES,
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level", -1, "Compression level of gzip: 1 to 9, or -1.", low=-1, high=9
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level", 9, "Compression level of lz4: 1 to 17.", low=1, high=17
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level", 3, "Compression level of zstd: -131072 to 22.", low=-131_072, high=22
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        "CreateTime",
        "Timestamp of records: of their creation, or of their append to the log.",
        one_of=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms", LONG_MAX, "how far back a record's timestamp may lie", low=0
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms", 3_600_000, "how far ahead a record's timestamp may lie", low=0
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas", 1, "Writes with acks=all are refused while fewer replicas are in sync.", low=1
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
    remote_storage_enable: bool = setting(
        "remote.storage.enable", False, "tiered storage, which minikafka does not have: only false is accepted"
    )
    remote_log_copy_disable: bool = kept_setting("remote.log.copy.disable", False)
    remote_log_delete_on_disable: bool = kept_setting("remote.log.delete.on.disable", False)
    local_retention_ms: int = kept_setting("local.retention.ms", -2, low=-2)
    local_retention_bytes: int = kept_setting("local.retention.bytes", -2, low=-2)
    preallocate: bool = kept_setting("preallocate", False)
    segment_jitter_ms: int = kept_setting("segment.jitter.ms", 0, low=0)
    leader_replication_throttled_replicas: str = kept_setting("leader.replication.throttled.replicas", "")
    follower_replication_throttled_replicas: str = kept_setting("follower.replication.throttled.replicas", "")

    # What follows from the settings, computed once: each produce request reads it.
    compacts: bool = field(init=False, repr=False, compare=False)
    """True if ``cleanup.policy`` has ``compact``."""
    roll_ms: int = field(init=False, repr=False, compare=False)
    """At which age a segment is rolled: one that stays active too long could not be compacted in time (KIP-354)."""
    syncs_before_acknowledging: bool = field(init=False, repr=False, compare=False)
    """D6: under flush.messages=1 a replica's acknowledged end is its synced end."""
    uses_append_time: bool = field(init=False, repr=False, compare=False)
    """True if records get the broker's time (LogAppendTime)."""

    def __post_init__(self) -> None:
        compacts = "compact" in self.cleanup_policy
        derived = {
            "compacts": compacts,
            "roll_ms": min(self.segment_ms, self.max_compaction_lag_ms) if compacts else self.segment_ms,
            "syncs_before_acknowledging": self.flush_messages == 1,
            "uses_append_time": self.message_timestamp_type == "LogAppendTime",
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raise InvalidConfig for a value that its own range does not exclude and Kafka refuses."""
        if self.compression_gzip_level == 0:
            raise InvalidConfig("compression.gzip.level=0: use 1 to 9, or -1.", setting="compression.gzip.level")
        if self.remote_storage_enable:
            raise InvalidConfig(
                "remote.storage.enable=true: tiered storage is not available; leave it at false.",
                setting="remote.storage.enable",
            )
        for name, text in (
            ("leader.replication.throttled.replicas", self.leader_replication_throttled_replicas),
            ("follower.replication.throttled.replicas", self.follower_replication_throttled_replicas),
        ):
            replicas = [each.strip() for each in text.split(",")]
            if replicas not in (["*"], [""]) and not all(map(_REPLICA.fullmatch, replicas)):
                raise InvalidConfig(
                    f"{name}={text!r}: use * or a list of PARTITION:BROKER,PARTITION:BROKER,...", setting=name
                )

    @property
    def compression_level(self) -> int | None:
        """Level for the codec of ``compression.type``; None if it has none."""
        return {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }.get(self.compression_type)
