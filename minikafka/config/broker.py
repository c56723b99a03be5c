"""The brokers' settings, one table (D8), and what follows from several of them together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from minikafka.addresses import (
    PLAIN_PROTOCOLS,
    PLAINTEXT,
    SASL_PROTOCOLS,
    TLS_PROTOCOLS,
    parse_host_names,
    parse_listeners,
    parse_origins,
    parse_overrides,
    parse_protocols,
    parse_voters,
)
from minikafka.config.listeners import (
    CONNECTIONS,
    Override,
    OwnLogin,
    SaslListener,
    connection_limit,
    sasl_listener,
)
from minikafka.config.names import BROKER_NAME_OF
from minikafka.config.security import SecuritySettings
from minikafka.config.setting import INT_MAX, LONG_MAX, MIB, kept_setting, setting
from minikafka.config.topic import TopicConfig
from minikafka.errors import InvalidConfig
from minikafka.types import Address, Listener, NodeId


def topic_default(name: str) -> Any:
    """The setting of a broker that is the default of the topics' setting ``name``: it has the same values."""
    of_topics = table(TopicConfig)[name]
    meaning = f"Default of {name} for topics that set none."
    return field(
        default=of_topics.default,
        metadata={**of_topics.metadata, "name": BROKER_NAME_OF[name], "meaning": meaning},
    )


@functools.cache
def table(kind: type[BrokerConfig | TopicConfig]) -> Mapping[str, Any]:
    """Kafka's name -> dataclass field, for ``BrokerConfig`` or ``TopicConfig``."""
    return {each.metadata["name"]: each for each in fields(kind) if "name" in each.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(SecuritySettings):
    """One broker's settings."""

    node_id: int = setting("node.id", 1, "Number of this broker in the cluster.", low=0, high=INT_MAX)
    cluster_id: str = setting("cluster.id", "", "22 base64 characters; taken from the data directory when empty")
    process_roles: str = setting(
        "process.roles",
        "broker,controller",
        "Roles of this node: broker and controller, or broker only.",
        one_of=("broker,controller", "controller,broker", "broker"),
    )
    controller_quorum_voters: str = setting(
        "controller.quorum.voters", "", "id@host:port, comma separated; empty: this node alone"
    )
    listeners: str = setting(
        "listeners",
        "PLAINTEXT://127.0.0.1:9092",
        "where to listen: NAME://host:port,...; port 0: any free one",
    )
    advertised_listeners: str = setting(
        "advertised.listeners",
        "",
        "Addresses that clients of each listener receive, by listener name (empty: the listeners).",
    )
    controller_listener_names: str = setting(
        "controller.listener.names", "", "Names of listeners that clients do not learn of."
    )
    inter_broker_listener_name: str = setting(
        "inter.broker.listener.name", "", "where brokers find each other; empty: the first listener for clients"
    )
    listener_security_protocol_map: str = setting(
        "listener.security.protocol.map",
        "",
        "NAME:PROTOCOL, comma separated; protocols are PLAINTEXT, HTTP, SSL, HTTPS, SASL_PLAINTEXT and SASL_SSL "
        "(default: for a listener with the name of a protocol that one, PLAINTEXT for all others)",
    )
    listener_overrides: tuple[Override, ...] = field(
        default=(), repr=False, metadata={"meaning": "Settings of single listeners; they have no fixed names."}
    )
    log_dirs: str = setting("log.dirs", "./minikafka-data", "Path of the data directory.")
    broker_rack: str = setting("broker.rack", "", "Rack of this broker, which clients can see.")

    num_partitions: int = setting(
        "num.partitions", 1, "Number of partitions of topics that are created without one.", low=1
    )
    default_replication_factor: int = setting(
        "default.replication.factor", 1, "Replication factor of topics that are created without one.", low=1
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", True, "Create a topic when a client first asks for it."
    )
    delete_topic_enable: bool = setting("delete.topic.enable", True, "Allow topics to be deleted.")

    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that has not caught up for this long is removed from the ISR.",
        low=1,
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms",
        500,
        "Longest time for which a leader holds a fetch of a follower that has nothing to return.",
        low=0,
    )
    replica_fetch_min_bytes: int = setting(
        "replica.fetch.min.bytes", 1, "A held fetch of a follower returns when it has this many bytes.", low=0
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes",
        MIB,
        "Bytes of one partition in a fetch of a follower (the first batch is returned whole).",
        low=0,
    )
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes", 10 * MIB, "Bytes of all partitions in a fetch of a follower.", low=0
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms", 1000, "Pause of a follower after a failed fetch.", low=0
    )
    replica_socket_timeout_ms: int = setting(
        "replica.socket.timeout.ms", 30_000, "a fetch that takes longer failed", low=1
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms", 5000, "how often high watermarks are written to disk", low=1
    )
    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable", True, "Move leaders back to their preferred replica periodically."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds", 300, "how often leaders are moved to their preferred replica", low=1
    )
    unclean_leader_election_interval_ms: int = setting(
        "unclean.leader.election.interval.ms", 300_000, "how often leaderless partitions are tried again", low=1
    )
    eligible_leader_replicas_enable: bool = setting(
        "mk.eligible.leader.replicas.enable",
        True,
        "Keep eligible leader replicas (KIP-966): replicas outside of the ISR that have all committed records.",
    )

    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        50,
        "Number of partitions of __consumer_offsets, over whose leaders groups are spread.",
        low=1,
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        3,
        "Replication factor of __consumer_offsets; at most the number of brokers.",
        low=1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", 100 * MIB, "Size of segments of __consumer_offsets.", low=14, high=INT_MAX
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", 10_080, "how long an empty group's offsets are kept", low=1
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        600_000,
        "Interval between checks for committed offsets that have expired.",
        low=1,
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms", 5000, "a commit that takes longer is answered as unknown", low=1
    )
    offset_metadata_max_bytes: int = setting("offset.metadata.max.bytes", 4096, "text of one committed offset", low=0)
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms", 3000, "an empty group waits so long for more members", low=0
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms", 6000, "Lowest session timeout that members may request.", low=1
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms", 1_800_000, "Highest session timeout that members may request.", low=1
    )
    group_max_size: int = setting("group.max.size", INT_MAX, "Maximum number of members of one group.", low=1)
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        45_000,
        "A member of the consumer protocol that does not heartbeat for this long is removed from its group",
        low=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        5000,
        "Longest interval at which members of the consumer protocol heartbeat; small groups heartbeat more often "
        "(mk.group.consumer.heartbeats.per.second).",
        low=1,
    )
    group_consumer_heartbeats_per_second: int = setting(
        "mk.group.consumer.heartbeats.per.second",
        50,
        "Heartbeats per second that the members of one group of the consumer protocol send together: a group of N "
        "members has an interval of N divided by this, from 500 ms to group.consumer.heartbeat.interval.ms. 0: always "
        "group.consumer.heartbeat.interval.ms, as in Kafka.",
        low=0,
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size", INT_MAX, "Maximum number of members of a group of the consumer protocol", low=1
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        "bidirectional",
        "Which way groups with members may change between the classic and the consumer protocol.",
        one_of=("bidirectional", "upgrade", "downgrade", "disabled"),
    )

    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions", 50, "Number of partitions of __transaction_state.", low=1
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        3,
        "Replication factor of __transaction_state; at most the number of brokers.",
        low=1,
    )
    transaction_state_log_min_isr: int = setting(
        "transaction.state.log.min.isr",
        2,
        "min.insync.replicas of __transaction_state; at most its replication factor.",
        low=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        100 * MIB,
        "Size of segments of __transaction_state.",
        low=14,
        high=INT_MAX,
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms", 900_000, "Highest transaction.timeout.ms that a producer may request.", low=1
    )
    transaction_partition_verification_enable: bool = setting(
        "transaction.partition.verification.enable",
        True,
        "Append a transactional batch only after the transaction's coordinator has confirmed its partition. Batches of "
        "transaction version 2 are always confirmed.",
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        604_800_000,
        "A transactional id without transactions for this long is forgotten.",
        low=1,
    )
    transaction_timeout_check_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "Interval between checks for transactions that have exceeded their timeout.",
        low=1,
    )
    transaction_expiration_check_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "Interval between checks for transactional ids that have expired.",
        low=1,
    )
    transaction_commit_timeout_ms: int = setting(
        "mk.transaction.commit.timeout.ms",
        10_000,
        "A record of the transaction coordinator that takes longer to commit is answered as unknown.",
        low=1,
    )

    broker_heartbeat_interval_ms: int = setting(
        "broker.heartbeat.interval.ms", 2000, "Interval at which a broker sends heartbeats to the controller.", low=1
    )
    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms", 9000, "A broker whose heartbeats stop for this long is fenced.", low=1
    )
    fence_on_refused_connection: bool = setting(
        "mk.fence.on.refused.connection",
        True,
        "Fence a broker whose connection ended and whose address refuses new ones, without waiting for its session.",
    )
    initial_broker_registration_timeout_ms: int = setting(
        "initial.broker.registration.timeout.ms", 60_000, "A broker that cannot register for this long stops.", low=1
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable", True, "Move leaders to other brokers before a broker stops."
    )
    controlled_shutdown_max_wait_ms: int = setting(
        "mk.controlled.shutdown.max.wait.ms",
        15_000,
        "A broker stops after this long even if it still has leaders.",
        low=0,
    )
    controller_quorum_election_timeout_ms: int = setting(
        "controller.quorum.election.timeout.ms",
        1000,
        "A voter that knows no leader for this long stands for election.",
        low=1,
    )
    controller_quorum_fetch_timeout_ms: int = setting(
        "controller.quorum.fetch.timeout.ms",
        2000,
        "A voter that hears nothing from the leader for this long stands for election.",
        low=1,
    )
    controller_quorum_election_backoff_max_ms: int = setting(
        "controller.quorum.election.backoff.max.ms", 1000, "Longest pause after a lost election of the quorum.", low=1
    )
    controller_quorum_request_timeout_ms: int = setting(
        "controller.quorum.request.timeout.ms", 2000, "Timeout of votes and other requests of the quorum.", low=1
    )
    controller_quorum_fetch_wait_max_ms: int = setting(
        "mk.controller.quorum.fetch.wait.max.ms",
        500,
        "An idle fetch of metadata is held for this long, or for a third of controller.quorum.fetch.timeout.ms.",
        low=1,
    )
    controller_quorum_retry_backoff_ms: int = setting(
        "controller.quorum.retry.backoff.ms", 20, "Pause before a request of the quorum is repeated.", low=0
    )
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        "metadata.log.max.record.bytes.between.snapshots",
        20 * MIB,
        "Bytes of metadata after which a snapshot is taken.",
        low=1,
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "Time after which a snapshot of the metadata is taken.",
        low=0,
    )

    log_segment_bytes: int = topic_default("segment.bytes")
    log_roll_ms: int = topic_default("segment.ms")
    log_index_size_max_bytes: int = topic_default("segment.index.bytes")
    log_index_interval_bytes: int = topic_default("index.interval.bytes")
    log_retention_ms: int = topic_default("retention.ms")
    log_retention_bytes: int = topic_default("retention.bytes")
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        300_000,
        "Interval between checks for segments that retention deletes.",
        low=1,
    )
    log_segment_delete_delay_ms: int = topic_default("file.delete.delay.ms")
    log_cleanup_policy: str = topic_default("cleanup.policy")
    log_cleaner_enable: bool = setting("log.cleaner.enable", True, "compact topics whose cleanup.policy says so")
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms", 15_000, "pause when there is nothing to compact", low=1
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size", 128 * MIB, "memory for the keys of one round of compaction", low=1024
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second", float(LONG_MAX), "compaction reads and writes no more", low=1
    )
    log_cleaner_min_cleanable_ratio: float = topic_default("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = topic_default("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = topic_default("max.compaction.lag.ms")
    log_cleaner_delete_retention_ms: int = topic_default("delete.retention.ms")
    log_flush_interval_messages: int = topic_default("flush.messages")
    log_flush_interval_ms: int = topic_default("flush.ms")
    log_flush_offset_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "Interval at which recovery points are written to disk.",
        low=1,
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        60_000,
        "Interval at which log start offsets are written to disk.",
        low=1,
    )
    message_max_bytes: int = topic_default("max.message.bytes")
    log_message_timestamp_type: str = topic_default("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = topic_default("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = topic_default("message.timestamp.after.max.ms")
    min_insync_replicas: int = topic_default("min.insync.replicas")
    unclean_leader_election_enable: bool = topic_default("unclean.leader.election.enable")
    producer_id_expiration_ms: int = topic_default("producer.id.expiration.ms")

    compression_type: str = topic_default("compression.type")
    compression_gzip_level: int = topic_default("compression.gzip.level")
    compression_lz4_level: int = topic_default("compression.lz4.level")
    compression_zstd_level: int = topic_default("compression.zstd.level")
    leader_replication_throttled_rate: int = kept_setting("leader.replication.throttled.rate", LONG_MAX, low=0)
    follower_replication_throttled_rate: int = kept_setting("follower.replication.throttled.rate", LONG_MAX, low=0)
    replica_alter_log_dirs_io_max_bytes_per_second: int = kept_setting(
        "replica.alter.log.dirs.io.max.bytes.per.second", LONG_MAX, low=0
    )

    fetch_max_bytes: int = setting("fetch.max.bytes", 55 * MIB, "Largest response to any fetch, in bytes.", low=1024)
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots", 1000, "fetch sessions remembered (KIP-227); 0: none", low=0
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes", 100 * MIB, "Size of the largest request body.", low=1024
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes", 64 * MIB, "request bodies held at once", low=1024
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms", 600_000, "A connection without requests for this long is closed.", low=1
    )
    max_connections: int = setting(
        "max.connections",
        INT_MAX,
        "connections of this broker; further ones are closed, except those of brokers at a listener of their own",
        low=1,
        high=INT_MAX,
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        INT_MAX,
        "connections of one IP address; further ones are closed",
        low=1,
        high=INT_MAX,
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        "",
        "max.connections.per.ip of single IP addresses: ADDRESS:NUMBER, comma separated ([ADDRESS]:NUMBER for IPv6).",
    )
    unauthenticated_connections_max: int = setting(
        "mk.unauthenticated.connections.max",
        256,
        "Connections of one SASL listener that have not logged in; a further one closes the oldest.",
        low=1,
        high=INT_MAX,
    )
    unauthenticated_connections_per_ip_max: int = setting(
        "mk.unauthenticated.connections.per.ip.max",
        32,
        "Connections of one IP address to a SASL listener that have not logged in; a further one closes the oldest.",
        low=1,
        high=INT_MAX,
    )
    tls_handshakes_max: int = setting(
        "mk.tls.handshakes.max",
        64,
        "TLS handshakes of one broker under way, half of them of one IP address; further connections wait their turn.",
        low=2,
        high=INT_MAX,
    )

    memory_tails_bytes: int = setting(
        "mk.memory.tails.bytes",
        64 * MIB,
        "memory for the newest batches of all logs together; 0: read from files",
        low=0,
    )
    validate_records: bool = setting(
        "mk.validate.records",
        True,
        "a leader walks over the records of a batch before it appends it; followers copy what their leader appended",
    )
    file_mode: str = setting(
        "mk.file.mode",
        "600",
        "permissions of new files in the data directory, and of a new journal; who may read them may enter new folders "
        "(700, 750, 755)",
        one_of=("600", "640", "644"),
    )
    insecure: bool = setting("mk.insecure", False, "allow a listener beyond loopback without authentication")
    http_allowed_hosts: str = setting(
        "mk.http.allowed.hosts",
        "",
        "names by which this broker may be called beside its own, comma separated; .example: all below it; *: any",
    )
    http_allowed_origins: str = setting(
        "mk.http.allowed.origins", "", "web pages that may use this API: http://localhost:5173, comma separated"
    )
    http_plain_credentials: bool = setting(
        "mk.http.plain.credentials",
        False,
        "Accept passwords and tokens over HTTP without TLS at listeners beyond loopback.",
    )
    testing_endpoints_enable: bool = setting(
        "mk.testing.endpoints.enable",
        False,
        "Serve what is for tests only: /v1/faults, /v1/wait, /v1/events, /v1/machine, and actions on brokers.",
    )
    history_minutes: int = setting(
        "mk.history.minutes",
        10,
        "Minutes of states and events that a broker remembers for the console and /v1/history (0: none).",
        low=0,
        high=24 * 60,
    )
    history_bytes: int = setting(
        "mk.history.bytes",
        16 * MIB,
        "Memory of a broker for this history, by an estimate; what is oldest is forgotten first.",
        low=MIB,
    )
    seed: int = setting(
        "mk.seed", 0, "Seed of the faults that apply by chance; the journal has it (0: drawn at the start).", low=0
    )
    journal_path: str = setting("mk.journal.path", "", "append every event to this file as JSON lines")
    audit_path: str = setting(
        "mk.audit.path",
        "",
        "Append refused requests and logins, and administrative operations, to this file as JSON lines.",
    )
    log_format: str = setting(
        "mk.log.format", "text", "the structured log: text for people, json for machines", one_of=("text", "json")
    )
    log_level: str = setting(
        "mk.log.level",
        "info",
        "the least important events that are logged",
        one_of=("debug", "info", "warning", "error"),
    )
    metrics_partitions_max: int = setting(
        "mk.metrics.partitions.max", 2000, "so many partitions get series of their own in /metrics", low=0
    )

    @property
    def all_listeners(self) -> tuple[Listener, ...]:
        """Where to listen, in the order of the setting."""
        return parse_listeners(self.listeners, "listeners")

    @property
    def client_listeners(self) -> tuple[Listener, ...]:
        """Listeners that clients and brokers learn of."""
        hidden = _names(self.controller_listener_names)
        return tuple(each for each in self.all_listeners if each.name not in hidden)

    @property
    def tls_listeners(self) -> tuple[str, ...]:
        """Names of the listeners that use TLS."""
        return tuple(each.name for each in self.all_listeners if self.protocol_of(each.name) in TLS_PROTOCOLS)

    @property
    def sasl_listeners(self) -> Mapping[str, SaslListener]:
        """Listeners at which clients must log in, by name. Raises InvalidConfig."""
        return {
            each.name: sasl_listener(
                self.sasl_enabled_mechanisms,
                self.connections_max_reauth_ms,
                tuple(own for own in self.listener_overrides if own.listener == each.name),
            )
            for each in self.all_listeners
            if self.protocol_of(each.name) in SASL_PROTOCOLS
        }

    @property
    def connection_limits(self) -> Mapping[str, int]:
        """``max.connections`` of single listeners, by name. Raises InvalidConfig."""
        return {own.listener: connection_limit(own) for own in self.listener_overrides if own.setting == CONNECTIONS}

    @property
    def connection_overrides(self) -> Mapping[str, int]:
        """Limits of connections of single IP addresses, by address. Raises InvalidConfig."""
        return parse_overrides(self.max_connections_per_ip_overrides, "max.connections.per.ip.overrides")

    @property
    def uses_tokens(self) -> bool:
        """Return True if a listener accepts tokens."""
        enabled = {each.strip() for each in self.sasl_enabled_mechanisms.split(",")}
        return any(
            "OAUTHBEARER" in each for each in (enabled, *(own.mechanisms for own in self.sasl_listeners.values()))
        )

    def protocol_of(self, listener: str) -> str:
        """The security protocol of a listener; one that is named like a protocol needs no entry in the map."""
        named = parse_protocols(self.listener_security_protocol_map).get(listener)
        if named is not None:
            return named
        return listener if listener in PLAIN_PROTOCOLS | TLS_PROTOCOLS else PLAINTEXT

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
    def clients_listener(self) -> Listener:
        """The first listener that is for clients alone; that of brokers, if there is none."""
        own = self.inter_broker_listener
        return next((each for each in self.client_listeners if each.name != own.name), own)

    @property
    def internal_listeners(self) -> frozenset[str]:
        """Names of the listeners at which brokers and controllers call each other."""
        clients = {each.name for each in self.client_listeners} - {self.inter_broker_listener.name}
        return frozenset(each.name for each in self.all_listeners) - clients

    @property
    def brokers_use_tls(self) -> bool:
        """Return True if brokers and controllers call each other with TLS."""
        return self.inter_broker_listener.name in self.tls_listeners

    @property
    def brokers_login(self) -> OwnLogin | None:
        """Name and password with which this broker logs in to others; None: it does not. Raises InvalidConfig."""
        at_brokers = self.sasl_listeners.get(self.inter_broker_listener.name)
        return None if at_brokers is None else at_brokers.own

    @property
    def brokers_scheme(self) -> str:
        """``https`` or ``http``: how the brokers' listener is called."""
        return "https" if self.brokers_use_tls else "http"

    @property
    def listener(self) -> Address:
        """The address to listen on for brokers and clients."""
        return self.inter_broker_listener.address

    @property
    def all_advertised(self) -> dict[str, Address]:
        """Configured advertised addresses, by listener name."""
        return {each.name: each.address for each in parse_listeners(self.advertised_listeners, "advertised.listeners")}

    @property
    def advertised(self) -> Address | None:
        """The address that brokers use, or None for the listening address."""
        return self.all_advertised.get(self.inter_broker_listener.name)

    @property
    def voters(self) -> dict[NodeId, Address]:
        """The quorum's voters by node id, sorted; this node alone when the setting is empty."""
        return parse_voters(self.controller_quorum_voters) or {self.node_id: self.advertised or self.listener}

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """``mk.http.allowed.hosts``, in lower case."""
        return parse_host_names(self.http_allowed_hosts, "mk.http.allowed.hosts")

    @property
    def allowed_origins(self) -> frozenset[str]:
        """``mk.http.allowed.origins``, in lower case, as browsers send them."""
        return parse_origins(self.http_allowed_origins, "mk.http.allowed.origins")

    def topic_defaults(self) -> TopicConfig:
        """What a topic gets when it says nothing."""
        return TopicConfig(**{member: getattr(self, given_by) for member, given_by in _topic_members().items()})


@functools.cache
def _topic_members() -> Mapping[str, str]:
    """Member of TopicConfig -> the member of BrokerConfig that is its default."""
    named = table(BrokerConfig)
    return {
        each.name: named[BROKER_NAME_OF[name]].name
        for name, each in table(TopicConfig).items()
        if name in BROKER_NAME_OF
    }


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, (each.strip().upper() for each in text.split(","))))
