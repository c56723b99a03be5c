"""Settings: Kafka's names, Kafka's defaults, one table for brokers and one for topics (D8).

Rules for this file: it reads no file and no environment; it turns names and texts into checked values. An unknown name
is an error that suggests the nearest one; a name that Kafka knows and minikafka does not use is noted; our own settings
start with ``mk.``. Where a setting exists per broker and per topic, the broker's value is the topic's default, as in
Kafka (``log.segment.bytes`` and ``segment.bytes``).
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from minikafka.addresses import PLAINTEXT, is_loopback, parse_listeners, parse_voters
from minikafka.errors import InvalidConfig
from minikafka.types import Address, Listener, NodeId

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
DAY_MS = 86_400_000

OWN_PREFIX = "mk."


def _setting(
    name: str,
    default: Any,
    meaning: str,
    *,
    low: int | None = None,
    high: int | None = None,
    one_of: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that carries its Kafka name, range and meaning."""
    return field(
        default=default, metadata={"name": name, "meaning": meaning, "low": low, "high": high, "one_of": one_of}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What may differ from topic to topic."""

    segment_bytes: int = _setting("segment.bytes", GIB, "roll a segment at this size", low=14, high=INT_MAX)
    segment_ms: int = _setting("segment.ms", 7 * DAY_MS, "roll a segment at this age (record time)", low=1)
    segment_index_bytes: int = _setting(
        "segment.index.bytes", 10 * MIB, "largest size of one index file", low=24, high=INT_MAX
    )
    index_interval_bytes: int = _setting("index.interval.bytes", 4096, "bytes of log between index entries", low=0)
    retention_ms: int = _setting("retention.ms", 7 * DAY_MS, "delete segments older than this; -1: never", low=-1)
    retention_bytes: int = _setting("retention.bytes", -1, "delete segments beyond this size; -1: never", low=-1)
    file_delete_delay_ms: int = _setting("file.delete.delay.ms", 60_000, "from rename to unlink", low=0)
    cleanup_policy: str = _setting(
        "cleanup.policy",
        "delete",
        "what becomes of old segments",
        one_of=("delete", "compact", "compact,delete", "delete,compact"),
    )
    flush_messages: int = _setting(
        "flush.messages", LONG_MAX, "1: acknowledge only what is synced to disk; larger: sync after so many", low=1
    )
    flush_ms: int = _setting("flush.ms", LONG_MAX, "sync at least this often", low=0)
    max_message_bytes: int = _setting("max.message.bytes", 1_048_588, "largest record batch", low=61, high=INT_MAX)
    compression_type: str = _setting(
        "compression.type",
        "producer",
        "keep the producer's codec; the broker never opens a batch",
        one_of=("producer",),
    )
    message_timestamp_type: str = _setting(
        "message.timestamp.type", "CreateTime", "whose clock stamps records", one_of=("CreateTime", "LogAppendTime")
    )
    message_timestamp_before_max_ms: int = _setting(
        "message.timestamp.before.max.ms", LONG_MAX, "how far back a record's timestamp may lie", low=0
    )
    message_timestamp_after_max_ms: int = _setting(
        "message.timestamp.after.max.ms", 3_600_000, "how far ahead a record's timestamp may lie", low=0
    )
    min_insync_replicas: int = _setting(
        "min.insync.replicas", 1, "with acks=all, refuse to write with fewer in-sync replicas", low=1
    )
    unclean_leader_election_enable: bool = _setting(
        "unclean.leader.election.enable", False, "let a replica outside the ISR lead when none of it lives: may lose"
    )
    producer_id_expiration_ms: int = _setting(
        "producer.id.expiration.ms", DAY_MS, "forget idle producers after this", low=1
    )
    min_cleanable_dirty_ratio: float = _setting(
        "min.cleanable.dirty.ratio", 0.5, "compact when more than this part of the log is dirty", low=0, high=1
    )
    min_compaction_lag_ms: int = _setting("min.compaction.lag.ms", 0, "leave younger records uncompacted", low=0)
    max_compaction_lag_ms: int = _setting(
        "max.compaction.lag.ms", LONG_MAX, "compact, whatever the dirty ratio, what is older", low=1
    )
    delete_retention_ms: int = _setting(
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


BROKER_NAME_OF: dict[str, str] = {
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "index.interval.bytes": "log.index.interval.bytes",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "cleanup.policy": "log.cleanup.policy",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
    "producer.id.expiration.ms": "producer.id.expiration.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
}
"""A topic's setting -> the broker's that is its default. What stands here can be changed at run time, as in Kafka."""

TOPIC_NAME_OF: dict[str, str] = {broker: topic for topic, broker in BROKER_NAME_OF.items()}

OF_THE_CLUSTER = frozenset(
    """
    auto.create.topics.enable auto.leader.rebalance.enable default.replication.factor delete.topic.enable
    leader.imbalance.check.interval.seconds min.insync.replicas num.partitions unclean.leader.election.enable
    """.split()
)
"""Changed at run time for all brokers or not at all: whichever broker is asked or controls, the answer is the same."""

AT_RUN_TIME = (
    frozenset(TOPIC_NAME_OF)
    | OF_THE_CLUSTER
    | frozenset(
        """
    fetch.max.bytes log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.io.max.bytes.per.second
    log.retention.check.interval.ms mk.log.level mk.metrics.partitions.max replica.fetch.backoff.ms
    replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
    replica.lag.time.max.ms
    """.split()
    )
)
"""Brokers' settings that can be changed at run time (KIP-226): Kafka's that exist here, and others that are looked up
whenever they are used. All others are read-only: a restart changes them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker's settings."""

    node_id: int = _setting("node.id", 1, "this broker's number", low=0, high=INT_MAX)
    cluster_id: str = _setting("cluster.id", "", "22 base64 characters; taken from the data directory when empty")
    process_roles: str = _setting(
        "process.roles",
        "broker,controller",
        "what this node is",
        one_of=("broker,controller", "controller,broker", "broker"),
    )
    controller_quorum_voters: str = _setting(
        "controller.quorum.voters", "", "id@host:port, comma separated; empty: this node alone"
    )
    listeners: str = _setting(
        "listeners",
        "PLAINTEXT://127.0.0.1:9092",
        "where to listen: NAME://host:port,...; port 0: any free one",
    )
    advertised_listeners: str = _setting(
        "advertised.listeners", "", "what clients of each listener are told, by its name; empty: the listeners"
    )
    controller_listener_names: str = _setting(
        "controller.listener.names", "", "listeners that clients are told nothing of"
    )
    inter_broker_listener_name: str = _setting(
        "inter.broker.listener.name", "", "where brokers find each other; empty: the first listener for clients"
    )
    listener_security_protocol_map: str = _setting(
        "listener.security.protocol.map", "", "NAME:PROTOCOL, comma separated; PLAINTEXT is the only protocol"
    )
    log_dirs: str = _setting("log.dirs", "./minikafka-data", "the data directory")
    broker_rack: str = _setting("broker.rack", "", "kept for clients to see")

    num_partitions: int = _setting("num.partitions", 1, "for topics created without a number", low=1)
    default_replication_factor: int = _setting("default.replication.factor", 1, "for topics created without one", low=1)
    auto_create_topics_enable: bool = _setting("auto.create.topics.enable", True, "create a topic when first asked for")
    delete_topic_enable: bool = _setting("delete.topic.enable", True, "may topics be deleted")

    replica_lag_time_max_ms: int = _setting("replica.lag.time.max.ms", 30_000, "S14: out of the ISR after this", low=1)
    replica_fetch_wait_max_ms: int = _setting("replica.fetch.wait.max.ms", 500, "S12: follower long poll", low=0)
    replica_fetch_min_bytes: int = _setting("replica.fetch.min.bytes", 1, "follower long poll ends at this size", low=0)
    replica_fetch_max_bytes: int = _setting("replica.fetch.max.bytes", MIB, "per partition, soft", low=0)
    replica_fetch_response_max_bytes: int = _setting("replica.fetch.response.max.bytes", 10 * MIB, "per fetch", low=0)
    replica_fetch_backoff_ms: int = _setting("replica.fetch.backoff.ms", 1000, "pause after a failed fetch", low=0)
    replica_socket_timeout_ms: int = _setting(
        "replica.socket.timeout.ms", 30_000, "a fetch that takes longer failed", low=1
    )
    replica_high_watermark_checkpoint_interval_ms: int = _setting(
        "replica.high.watermark.checkpoint.interval.ms", 5000, "how often high watermarks are written to disk", low=1
    )
    auto_leader_rebalance_enable: bool = _setting(
        "auto.leader.rebalance.enable", True, "move leaders home by themselves"
    )
    leader_imbalance_check_interval_seconds: int = _setting(
        "leader.imbalance.check.interval.seconds", 300, "how often leaders are moved to their preferred replica", low=1
    )
    unclean_leader_election_interval_ms: int = _setting(
        "unclean.leader.election.interval.ms", 300_000, "how often leaderless partitions are tried again", low=1
    )
    eligible_leader_replicas_enable: bool = _setting("mk.eligible.leader.replicas.enable", True, "KIP-966")

    offsets_topic_num_partitions: int = _setting(
        "offsets.topic.num.partitions", 50, "of __consumer_offsets: over so many leaders groups are spread", low=1
    )
    offsets_topic_replication_factor: int = _setting(
        "offsets.topic.replication.factor", 3, "of __consumer_offsets; fewer in a smaller cluster", low=1
    )
    offsets_topic_segment_bytes: int = _setting(
        "offsets.topic.segment.bytes", 100 * MIB, "of __consumer_offsets", low=14, high=INT_MAX
    )
    offsets_retention_minutes: int = _setting(
        "offsets.retention.minutes", 10_080, "how long an empty group's offsets are kept", low=1
    )
    offsets_retention_check_interval_ms: int = _setting("offsets.retention.check.interval.ms", 600_000, "", low=1)
    offsets_commit_timeout_ms: int = _setting(
        "offsets.commit.timeout.ms", 5000, "a commit that takes longer is answered as unknown", low=1
    )
    offset_metadata_max_bytes: int = _setting("offset.metadata.max.bytes", 4096, "text of one committed offset", low=0)
    group_initial_rebalance_delay_ms: int = _setting(
        "group.initial.rebalance.delay.ms", 3000, "an empty group waits so long for more members", low=0
    )
    group_min_session_timeout_ms: int = _setting("group.min.session.timeout.ms", 6000, "of members", low=1)
    group_max_session_timeout_ms: int = _setting("group.max.session.timeout.ms", 1_800_000, "of members", low=1)
    group_max_size: int = _setting("group.max.size", INT_MAX, "members of one group", low=1)

    broker_heartbeat_interval_ms: int = _setting("broker.heartbeat.interval.ms", 2000, "to the controller", low=1)
    broker_session_timeout_ms: int = _setting("broker.session.timeout.ms", 9000, "silent for this long: fenced", low=1)
    initial_broker_registration_timeout_ms: int = _setting(
        "initial.broker.registration.timeout.ms", 60_000, "give up starting after this", low=1
    )
    controlled_shutdown_enable: bool = _setting("controlled.shutdown.enable", True, "move leaders before leaving")
    controlled_shutdown_max_wait_ms: int = _setting(
        "mk.controlled.shutdown.max.wait.ms", 15_000, "then leave anyway", low=0
    )
    controller_quorum_election_timeout_ms: int = _setting(
        "controller.quorum.election.timeout.ms", 1000, "no leader for this long: stand for election", low=1
    )
    controller_quorum_fetch_timeout_ms: int = _setting(
        "controller.quorum.fetch.timeout.ms", 2000, "no word from the leader for this long: stand for election", low=1
    )
    controller_quorum_election_backoff_max_ms: int = _setting(
        "controller.quorum.election.backoff.max.ms", 1000, "longest pause after a lost election", low=1
    )
    controller_quorum_request_timeout_ms: int = _setting(
        "controller.quorum.request.timeout.ms", 2000, "votes and other quorum calls", low=1
    )
    controller_quorum_fetch_wait_max_ms: int = _setting(
        "mk.controller.quorum.fetch.wait.max.ms",
        500,
        "an idle fetch of metadata is held so long, or for a third of controller.quorum.fetch.timeout.ms",
        low=1,
    )
    controller_quorum_retry_backoff_ms: int = _setting("controller.quorum.retry.backoff.ms", 20, "", low=0)
    metadata_log_max_record_bytes_between_snapshots: int = _setting(
        "metadata.log.max.record.bytes.between.snapshots", 20 * MIB, "snapshot by size", low=1
    )
    metadata_log_max_snapshot_interval_ms: int = _setting(
        "metadata.log.max.snapshot.interval.ms", 3_600_000, "snapshot by time", low=0
    )

    log_segment_bytes: int = _setting("log.segment.bytes", GIB, "see segment.bytes", low=14, high=INT_MAX)
    log_roll_ms: int = _setting("log.roll.ms", 7 * DAY_MS, "see segment.ms", low=1)
    log_index_size_max_bytes: int = _setting(
        "log.index.size.max.bytes", 10 * MIB, "see segment.index.bytes", low=24, high=INT_MAX
    )
    log_index_interval_bytes: int = _setting("log.index.interval.bytes", 4096, "see index.interval.bytes", low=0)
    log_retention_ms: int = _setting("log.retention.ms", 7 * DAY_MS, "see retention.ms", low=-1)
    log_retention_bytes: int = _setting("log.retention.bytes", -1, "see retention.bytes", low=-1)
    log_retention_check_interval_ms: int = _setting("log.retention.check.interval.ms", 300_000, "", low=1)
    log_segment_delete_delay_ms: int = _setting(
        "log.segment.delete.delay.ms", 60_000, "see file.delete.delay.ms", low=0
    )
    log_cleanup_policy: str = _setting(
        "log.cleanup.policy",
        "delete",
        "see cleanup.policy",
        one_of=("delete", "compact", "compact,delete", "delete,compact"),
    )
    log_cleaner_enable: bool = _setting("log.cleaner.enable", True, "compact topics whose cleanup.policy says so")
    log_cleaner_backoff_ms: int = _setting(
        "log.cleaner.backoff.ms", 15_000, "pause when there is nothing to compact", low=1
    )
    log_cleaner_dedupe_buffer_size: int = _setting(
        "log.cleaner.dedupe.buffer.size", 128 * MIB, "memory for the keys of one round of compaction", low=1024
    )
    log_cleaner_io_max_bytes_per_second: float = _setting(
        "log.cleaner.io.max.bytes.per.second", float(LONG_MAX), "compaction reads and writes no more", low=1
    )
    log_cleaner_min_cleanable_ratio: float = _setting(
        "log.cleaner.min.cleanable.ratio", 0.5, "see min.cleanable.dirty.ratio", low=0, high=1
    )
    log_cleaner_min_compaction_lag_ms: int = _setting(
        "log.cleaner.min.compaction.lag.ms", 0, "see min.compaction.lag.ms", low=0
    )
    log_cleaner_max_compaction_lag_ms: int = _setting(
        "log.cleaner.max.compaction.lag.ms", LONG_MAX, "see max.compaction.lag.ms", low=1
    )
    log_cleaner_delete_retention_ms: int = _setting(
        "log.cleaner.delete.retention.ms", DAY_MS, "see delete.retention.ms", low=0
    )
    log_flush_interval_messages: int = _setting("log.flush.interval.messages", LONG_MAX, "see flush.messages", low=1)
    log_flush_interval_ms: int = _setting("log.flush.interval.ms", LONG_MAX, "see flush.ms", low=0)
    log_flush_offset_checkpoint_interval_ms: int = _setting(
        "log.flush.offset.checkpoint.interval.ms", 60_000, "", low=1
    )
    log_flush_start_offset_checkpoint_interval_ms: int = _setting(
        "log.flush.start.offset.checkpoint.interval.ms", 60_000, "", low=1
    )
    message_max_bytes: int = _setting("message.max.bytes", 1_048_588, "see max.message.bytes", low=61, high=INT_MAX)
    log_message_timestamp_type: str = _setting(
        "log.message.timestamp.type", "CreateTime", "see message.timestamp.type", one_of=("CreateTime", "LogAppendTime")
    )
    log_message_timestamp_before_max_ms: int = _setting("log.message.timestamp.before.max.ms", LONG_MAX, "", low=0)
    log_message_timestamp_after_max_ms: int = _setting("log.message.timestamp.after.max.ms", 3_600_000, "", low=0)
    min_insync_replicas: int = _setting("min.insync.replicas", 1, "see the topic's setting", low=1)
    unclean_leader_election_enable: bool = _setting("unclean.leader.election.enable", False, "see the topic's setting")
    producer_id_expiration_ms: int = _setting("producer.id.expiration.ms", DAY_MS, "see the topic's setting", low=1)

    fetch_max_bytes: int = _setting("fetch.max.bytes", 55 * MIB, "cap on any fetch", low=1024)
    max_incremental_fetch_session_cache_slots: int = _setting(
        "max.incremental.fetch.session.cache.slots", 1000, "fetch sessions remembered (KIP-227); 0: none", low=0
    )
    socket_request_max_bytes: int = _setting("socket.request.max.bytes", 100 * MIB, "largest request body", low=1024)
    queued_max_request_bytes: int = _setting(
        "queued.max.request.bytes", 64 * MIB, "request bodies held at once", low=1024
    )
    connections_max_idle_ms: int = _setting("connections.max.idle.ms", 600_000, "close a silent connection", low=1)

    memory_tails_bytes: int = _setting(
        "mk.memory.tails.bytes",
        64 * MIB,
        "memory for the newest batches of all logs together; 0: read from files",
        low=0,
    )
    insecure: bool = _setting("mk.insecure", False, "allow a listener beyond loopback without authentication")
    testing_endpoints_enable: bool = _setting(
        "mk.testing.endpoints.enable", False, "serve what is for tests only: /v1/faults, /v1/wait, /v1/events"
    )
    seed: int = _setting(
        "mk.seed", 0, "of the faults that strike by chance, which the journal tells; 0: drawn at the start", low=0
    )
    journal_path: str = _setting("mk.journal.path", "", "append every event to this file as JSON lines")
    log_format: str = _setting(
        "mk.log.format", "text", "the structured log: text for people, json for machines", one_of=("text", "json")
    )
    log_level: str = _setting(
        "mk.log.level",
        "info",
        "the least important events that are logged",
        one_of=("debug", "info", "warning", "error"),
    )
    metrics_partitions_max: int = _setting(
        "mk.metrics.partitions.max", 2000, "so many partitions get series of their own in /metrics", low=0
    )

    @property
    def all_listeners(self) -> tuple[Listener, ...]:
        """Where to listen, in the order of the setting."""
        return parse_listeners(self.listeners, "listeners")

    @property
    def client_listeners(self) -> tuple[Listener, ...]:
        """Those that clients and brokers are told of."""
        hidden = _names(self.controller_listener_names)
        return tuple(each for each in self.all_listeners if each.name not in hidden)

    @property
    def inter_broker_listener(self) -> Listener:
        """The listener at which brokers find each other, and clients where nothing else was said."""
        wanted = self.inter_broker_listener_name.strip().upper()
        found = [each for each in self.client_listeners if wanted in {"", each.name}]
        if not found:
            raise InvalidConfig(
                f"inter.broker.listener.name={wanted!r}: one of the listeners for clients is needed, which are "
                f"{', '.join(each.name for each in self.client_listeners) or 'none'}",
                setting="inter.broker.listener.name",
            )
        return found[0]

    @property
    def listener(self) -> Address:
        """The address to listen on for brokers and clients."""
        return self.inter_broker_listener.address

    @property
    def all_advertised(self) -> dict[str, Address]:
        """What was said that clients are told, by the listener's name."""
        return {each.name: each.address for each in parse_listeners(self.advertised_listeners, "advertised.listeners")}

    @property
    def advertised(self) -> Address | None:
        """The address that brokers are told, or None: where we listen."""
        return self.all_advertised.get(self.inter_broker_listener.name)

    @property
    def voters(self) -> dict[NodeId, Address]:
        """The quorum's voters by node id, sorted; this node alone when the setting is empty."""
        return parse_voters(self.controller_quorum_voters) or {self.node_id: self.advertised or self.listener}

    def topic_defaults(self) -> TopicConfig:
        """What a topic gets when it says nothing."""
        named = table(BrokerConfig)
        return TopicConfig(
            **{
                each.name: getattr(self, named[BROKER_NAME_OF[name]].name)
                for name, each in table(TopicConfig).items()
                if name in BROKER_NAME_OF
            }
        )


KNOWN_TO_KAFKA_ONLY = frozenset(
    """
    advertised.host.name authorizer.class.name background.threads broker.id broker.id.generation.enable
    controller.quorum.append.linger.ms controller.quorum.bootstrap.servers
    compression.type inter.broker.protocol.version
    leader.imbalance.per.broker.percentage log.dir log.flush.scheduler.interval.ms
    log.message.format.version log.preallocate log.retention.hours log.retention.minutes log.roll.hours
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size
    log.roll.jitter.ms log.cleaner.threads max.connections max.connections.per.ip
    metadata.log.dir
    metadata.max.idle.interval.ms metadata.max.retention.bytes num.io.threads num.network.threads
    num.recovery.threads.per.data.dir num.replica.fetchers queued.max.requests replica.selector.class
    replica.socket.receive.buffer.bytes request.timeout.ms security.inter.broker.protocol socket.receive.buffer.bytes
    socket.send.buffer.bytes transaction.state.log.min.isr transaction.state.log.num.partitions
    transaction.state.log.replication.factor zookeeper.connect
    """.split()
)
"""Names that Kafka's files often carry and that mean nothing here: one notice each, no error."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A checked configuration and what should be told about it."""

    config: BrokerConfig
    notices: tuple[str, ...]


@functools.cache
def table(kind: type[BrokerConfig | TopicConfig]) -> Mapping[str, Any]:
    """Kafka's name -> dataclass field, for ``BrokerConfig`` or ``TopicConfig``."""
    return {each.metadata["name"]: each for each in fields(kind)}


def _parsed_value(each: Any, text: str) -> Any:
    name, low, high = each.metadata["name"], each.metadata["low"], each.metadata["high"]
    text = text.strip()
    if isinstance(each.default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfig(f"{name}={text!r}: say true or false", setting=name)
        return text.lower() == "true"
    if isinstance(each.default, int):
        try:
            number = int(text)
        except ValueError:
            raise InvalidConfig(f"{name}={text!r}: a whole number is needed", setting=name) from None
        if (low is not None and number < low) or number > (high if high is not None else LONG_MAX):
            upper = "" if high is None else f" and at most {high}"
            raise InvalidConfig(f"{name}={number}: at least {low}{upper} is needed", setting=name)
        return number
    if isinstance(each.default, float):
        return _parsed_fraction(name, text, low, high)
    if each.metadata["one_of"] and text not in each.metadata["one_of"]:
        raise InvalidConfig(f"{name}={text!r}: one of {', '.join(each.metadata['one_of'])} is needed", setting=name)
    return text


def _parsed_fraction(name: str, text: str, low: float, high: float | None) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= (float(LONG_MAX) if high is None else high):  # nan is not either
        upper = "" if high is None else f" and at most {high}"
        raise InvalidConfig(f"{name}={text!r}: a number of at least {low}{upper} is needed", setting=name)
    return number


def unknown_setting(name: str, known: Iterable[str]) -> InvalidConfig:
    """The error for a name that is not among ``known``; it suggests the nearest one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `minikafka serve --help` says where the names are listed"
    return InvalidConfig(f"unknown setting {name}{hint}", setting=name)


def parse_broker(settings: Mapping[str, str], *, base: BrokerConfig | None = None, lenient: bool = False) -> Parsed:
    """Check texts by Kafka's names and lay them over ``base``.

    ``lenient`` (for settings from the environment): an unknown name is a notice. Raises InvalidConfig with the
    setting's name and what would be right.
    """
    known = table(BrokerConfig)
    changes: dict[str, Any] = {}
    notices: list[str] = []
    for name, text in settings.items():
        each = known.get(name)
        if each is not None:
            changes[each.name] = _parsed_value(each, text)
        elif name in KNOWN_TO_KAFKA_ONLY:
            notices.append(f"{name} is known to Kafka and not used by minikafka")
        elif lenient:
            notices.append(f"{name} is not a setting of minikafka: ignored")
        else:
            raise unknown_setting(name, known)
    config = replace(base or BrokerConfig(), **changes)
    check(config)
    return Parsed(config, tuple(notices))


def check(config: BrokerConfig) -> None:
    """What must hold between settings; raises InvalidConfig."""
    _check_listeners(config)
    if config.broker_session_timeout_ms <= config.broker_heartbeat_interval_ms:
        raise InvalidConfig(
            f"broker.session.timeout.ms={config.broker_session_timeout_ms} must be larger than "
            f"broker.heartbeat.interval.ms={config.broker_heartbeat_interval_ms}",
            setting="broker.session.timeout.ms",
        )
    if config.voters and config.process_roles == "broker" and config.node_id in config.voters:
        raise InvalidConfig(
            "controller.quorum.voters names this node but process.roles is broker", setting="process.roles"
        )


def _check_listeners(config: BrokerConfig) -> None:
    listeners = config.all_listeners
    if not listeners:
        raise InvalidConfig("listeners is empty: NAME://host:port is needed", setting="listeners")
    for name, address in listeners:
        if not is_loopback(address.host) and not config.insecure:
            raise InvalidConfig(
                f"listeners={config.listeners}: {address.host} is beyond loopback and minikafka has no authentication; "
                f"let {name} listen on 127.0.0.1, or say mk.insecure=true (MK_INSECURE=true) if the network is yours",
                setting="listeners",
            )
    ports = [address.port for _, address in listeners if address.port]
    if len(set(ports)) < len(ports):
        raise InvalidConfig(f"listeners={config.listeners}: two listeners share a port", setting="listeners")
    _ = config.inter_broker_listener
    known = {each.name for each in config.client_listeners}
    for name in config.all_advertised:
        if name not in known:
            raise InvalidConfig(
                f"advertised.listeners names {name}, which is no listener for clients: {', '.join(sorted(known))} are",
                setting="advertised.listeners",
            )
    for pair in filter(None, map(str.strip, config.listener_security_protocol_map.split(","))):
        name, colon, protocol = pair.partition(":")
        if not colon or protocol.strip().upper() != PLAINTEXT:
            raise InvalidConfig(
                f"listener.security.protocol.map={pair!r}: NAME:{PLAINTEXT} is needed, there is no TLS and no SASL",
                setting="listener.security.protocol.map",
            )


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, (each.strip().upper() for each in text.split(","))))


def parse_topic(settings: Mapping[str, str], *, base: TopicConfig | None = None) -> TopicConfig:
    """Lay a topic's own settings over the broker's defaults; raises InvalidConfig naming the setting."""
    known = table(TopicConfig)
    changes = {}
    for name, text in settings.items():
        if name not in known:
            raise unknown_setting(name, known)
        changes[known[name].name] = _parsed_value(known[name], text)
    return replace(base or TopicConfig(), **changes)


def to_settings(config: BrokerConfig | TopicConfig) -> dict[str, str]:
    """The texts from which ``parse_*`` gives this configuration, by Kafka's names."""
    texts = {}
    for each in fields(config):
        value = getattr(config, each.name)
        texts[each.metadata["name"]] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings named in an environment, see :func:`environment_variables`."""
    return {name: environment[variable] for name, variable in environment_variables(environment).items()}


def environment_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Setting -> the variable of an environment that gives it: ``KAFKA_...`` then ``MK_...``, the latter wins.

    The Apache image's rule: the prefix goes, upper case becomes lower, ``_`` is ``.``, ``__`` is ``_``, ``___`` is
    ``-``. ``MK_X`` is Kafka's setting ``x`` when there is one, else ``mk.x``. ``CLUSTER_ID`` needs no prefix.
    """
    known = table(BrokerConfig)
    found: dict[str, str] = {}
    if environment.get("CLUSTER_ID"):
        found["cluster.id"] = "CLUSTER_ID"
    for prefix in ("KAFKA_", "MK_"):
        for variable in sorted(environment):
            if variable.startswith(prefix):
                rest = variable[len(prefix) :].lower()
                name = rest.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
                if prefix == "MK_" and name not in known:
                    name = OWN_PREFIX + name
                found[name] = variable
    return found
