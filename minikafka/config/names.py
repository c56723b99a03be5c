"""Names of settings beside the tables: a topic's and the broker's that is its default, what changes at run time, what
only Kafka knows.
"""

from __future__ import annotations

OWN_PREFIX = "mk."

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
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
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
    follower.replication.throttled.rate leader.replication.throttled.rate
    log.retention.check.interval.ms mk.log.level mk.metrics.partitions.max mk.validate.records
    replica.alter.log.dirs.io.max.bytes.per.second
    replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes
    replica.fetch.wait.max.ms replica.lag.time.max.ms
    """.split()
    )
)
"""Brokers' settings that can be changed at run time (KIP-226): Kafka's that exist here, and others that are looked up
whenever they are used. All others are read-only: a restart changes them.
"""

KNOWN_TO_KAFKA_ONLY = frozenset(
    """
    advertised.host.name background.threads broker.id broker.id.generation.enable
    controller.quorum.append.linger.ms controller.quorum.bootstrap.servers
    inter.broker.protocol.version
    leader.imbalance.per.broker.percentage log.dir log.flush.scheduler.interval.ms
    log.message.format.version log.preallocate log.retention.hours log.retention.minutes log.roll.hours
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size
    log.roll.jitter.ms log.cleaner.threads
    metadata.log.dir
    metadata.max.idle.interval.ms metadata.max.retention.bytes num.io.threads num.network.threads
    num.recovery.threads.per.data.dir num.replica.fetchers queued.max.requests replica.selector.class
    replica.socket.receive.buffer.bytes request.timeout.ms security.inter.broker.protocol socket.receive.buffer.bytes
    socket.send.buffer.bytes zookeeper.connect
    """.split()
)
"""Names that Kafka's files often carry and that mean nothing here: one notice each, no error."""

INSTEAD = {
    "broker.id": "node.id",
    "controller.quorum.bootstrap.servers": "controller.quorum.voters",
    "log.dir": "log.dirs",
    "log.retention.hours": "log.retention.ms",
    "log.retention.minutes": "log.retention.ms",
    "log.roll.hours": "log.roll.ms",
}
"""Of these names, those whose meaning another setting has. Without it a log is kept for a week where it was a day."""
