"""The families of one broker: Kafka's own metrics, and those that only minikafka has.

Kafka's own are spelled as Strimzi's rules for the Prometheus JMX exporter spell them. Differences from Kafka: a topic's
traffic has series per topic only, not once more for all topics together, so that sums are right; metrics of the
controller are zero on brokers that are not the active one; a fetch of the metadata log is a request of its own kind,
``FetchMetadata``.

Only minikafka has: how far each replica is as its leader sees it, what became of writes, the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric

from minikafka import __version__
from minikafka.broker.meters import EventCounts, Histogram, ProcessGauges, RequestMeter, TopicMeter
from minikafka.replication.leader import LeaderReplica
from minikafka.rest.metrics.families import View, Windows, counter, gauge, histogram, number, percentiles_ms, total
from minikafka.types import METADATA_PARTITION

PARTITION = ("topic", "partition")

# Kafka's broker states: it runs, it wants to leave, it goes.
RUNNING, PENDING_SHUTDOWN, STARTING = 3, 6, 1


def mbeans(view: View, events: EventCounts, windows: Windows, process: ProcessGauges) -> Iterator[Metric]:
    """All of them, family by family."""
    yield from _replicas(view, events)
    yield from _partitions(view)
    yield from _controller(view, events)
    yield from _topics(view)
    yield from _fetchers(view)
    yield from _logs(view)
    yield from _cleaner(view)
    yield from _requests(view, windows)
    yield from _quorum(view)
    meaning = "Open connections to this broker."
    yield number("kafka_server_socket_server_metrics_connection_count", meaning, process.connections)


def _replicas(view: View, events: EventCounts) -> Iterator[Metric]:
    prefix = "kafka_server_replicamanager_"
    led = [leader for _, leader in view.led]
    failed = sum(1 for _, each in view.hosted if each.failed)
    yield number(prefix + "leadercount", "Partitions that this broker leads.", len(led))
    yield number(prefix + "partitioncount", "Replicas on this broker.", len(view.hosted))
    yield number(prefix + "offlinereplicacount", "Replicas whose disk failed.", failed)
    meaning = "Partitions led here with replicas outside the ISR."
    yield number(prefix + "underreplicatedpartitions", meaning, sum(map(is_under_replicated, led)))
    meaning = "Partitions led here whose ISR is below min.insync.replicas: acks=all is refused."
    yield number(prefix + "underminisrpartitioncount", meaning, sum(map(is_under_min_isr, led)))
    meaning = "Partitions led here whose ISR is just min.insync.replicas: one more loss and acks=all is refused."
    yield number(prefix + "atminisrpartitioncount", meaning, sum(map(is_at_min_isr, led)))
    changes = events.isr_changes
    yield total(prefix + "isrshrinks", "Times that a partition led here lost an ISR member.", changes["isr_shrunk"])
    yield total(prefix + "isrexpands", "Times that a partition led here won one.", changes["isr_expanded"])


def is_under_replicated(leader: LeaderReplica) -> bool:
    """Return True if a replica is outside the ISR."""
    return len(leader.isr) < len(leader.replicas)


def is_under_min_isr(leader: LeaderReplica) -> bool:
    """Return True if acks=all is refused."""
    return len(leader.isr) < leader.min_isr


def is_at_min_isr(leader: LeaderReplica) -> bool:
    """Return True if acks=all would be refused with one replica less in the ISR."""
    return len(leader.isr) == leader.min_isr


def _partitions(view: View) -> Iterator[Metric]:
    """As in Kafka every replica tells these, and those that do not lead tell zero."""
    families: tuple[tuple[str, str, Callable[[LeaderReplica], float]], ...] = (
        ("underreplicated", "Is a replica outside the ISR?", is_under_replicated),
        ("underminisr", "Is the ISR below min.insync.replicas?", is_under_min_isr),
        ("atminisr", "Is the ISR just min.insync.replicas?", is_at_min_isr),
        ("replicascount", "Replicas of the assignment.", lambda leader: len(leader.replicas)),
        ("insyncreplicascount", "Members of the ISR.", lambda leader: len(leader.isr)),
    )
    for name, meaning, value in families:
        rows = ((place, value(each.role) if isinstance(each.role, LeaderReplica) else 0) for place, each in view.shown)
        meaning_here = f"{meaning} Zero where this broker does not lead."
        yield gauge(f"kafka_cluster_partition_{name}", meaning_here, PARTITION, rows)


def _controller(view: View, events: EventCounts) -> Iterator[Metric]:
    prefix = "kafka_controller_kafkacontroller_"
    image, active = view.image, view.is_controller
    brokers = image.brokers.values()
    partitions = [each for topic in image.topics.values() for each in topic.partitions]
    yield number(prefix + "activecontrollercount", "1 on the active controller; the sum must be 1.", active)
    unpreferred = sum(each.leader != each.replicas[0] for each in partitions)
    fenced = sum(each.fenced for each in brokers)
    for name, meaning, value in (
        ("offlinepartitionscount", "Partitions that nobody leads.", len(view.leaderless)),
        (
            "preferredreplicaimbalancecount",
            "Partitions that are not led by the first replica of their assignment.",
            unpreferred,
        ),
        ("globaltopiccount", "Topics.", len(image.topics)),
        ("globalpartitioncount", "Partitions of all topics.", len(partitions)),
        ("activebrokercount", "Registered brokers that live.", len(brokers) - fenced),
        ("fencedbrokercount", "Registered brokers that are fenced.", fenced),
    ):
        meaning_here = f"{meaning} Reported by the active controller, zero elsewhere."
        yield number(prefix + name, meaning_here, value if active else 0)
    prefix = "kafka_controller_controllerstats_"
    meaning = "Elections of a replica that may have missed committed records, by this broker as controller."
    yield total(prefix + "uncleanleaderelections", meaning, events.unclean_elections)
    meaning = "Leader elections by this broker as controller; no times."
    elections = Metric(prefix + "leaderelectionrateandtimems", meaning, "summary")
    elections.add_sample(elections.name + "_count", {}, events.count("leader_elected"))
    yield elections
    yield number("kafka_server_kafkaserver_brokerstate", "1 starting, 3 running, 6 leaving.", _state(view))


def _state(view: View) -> int:
    if view.broker.is_ready:
        return RUNNING
    return STARTING if view.broker.lifecycle.is_fenced else PENDING_SHUTDOWN


def _topics(view: View) -> Iterator[Metric]:
    topics = sorted(view.broker.replicas.traffic.topics.items())[: view.limit]
    families: tuple[tuple[str, str, Callable[[TopicMeter], int]], ...] = (
        ("messagesin", "Records appended for producers.", lambda meter: meter.messages_in),
        ("bytesin", "Bytes of batches appended for producers.", lambda meter: meter.bytes_in),
        ("bytesout", "Bytes of batches fetched by consumers.", lambda meter: meter.bytes_out),
        ("totalproducerequests", "Batches that producers asked to append.", lambda meter: meter.produce_requests),
        ("failedproducerequests", "Batches answered with an error.", lambda meter: meter.failed_produce_requests),
        ("totalfetchrequests", "Partitions that consumers asked for.", lambda meter: meter.fetch_requests),
        ("failedfetchrequests", "Partitions answered with an error.", lambda meter: meter.failed_fetch_requests),
    )
    for name, meaning, value in families:
        rows = ((topic, value(meter)) for topic, meter in topics)
        yield counter(f"kafka_server_brokertopicmetrics_{name}", meaning, "topic", rows)
    traffic = view.broker.replicas.traffic
    prefix = "kafka_server_brokertopicmetrics_replication"
    yield total(prefix + "bytesin", "Bytes fetched from leaders.", traffic.replication_bytes_in)
    yield total(prefix + "bytesout", "Bytes fetched by followers.", traffic.replication_bytes_out)


def _fetchers(view: View) -> Iterator[Metric]:
    lags = view.broker.replicas.fetchers.lags()
    meaning = "The largest lag of a replica that follows here, in records."
    largest = max(lags.values(), default=0)
    yield gauge("kafka_server_replicafetchermanager_maxlag", meaning, "clientId", [("Replica", largest)])
    shown = dict(view.shown)
    meaning = "Records between a follower's log end and its leader's, as the leader last reported it."
    rows = [(("replica", *name), lag) for name, lag in sorted(lags.items()) if name in shown]
    yield gauge("kafka_server_fetcherlagmetrics_consumerlag", meaning, ("clientId", *PARTITION), rows)


def _logs(view: View) -> Iterator[Metric]:
    logs = [(name, each.log) for name, each in view.shown if not each.failed]
    metadata = view.broker.logs.get(METADATA_PARTITION)
    if metadata is not None:
        logs.insert(0, (METADATA_PARTITION, metadata))
    for kind, meaning, attribute in (
        ("size", "Bytes of all segments.", "size_bytes"),
        ("numlogsegments", "Segments.", "segment_count"),
        ("logstartoffset", "First offset.", "start_offset"),
        ("logendoffset", "The offset after the last one (LEO).", "end_offset"),
    ):
        rows = ((name, getattr(log, attribute)) for name, log in logs)
        yield gauge(f"kafka_log_log_{kind}", meaning, PARTITION, rows)
    meaning = "Data directories that failed: there is one, and the broker leaves when it fails."
    has_failed = view.broker.failure is not None and view.broker.failure.startswith("the disk failed")
    yield number("kafka_log_logmanager_offlinelogdirectorycount", meaning, has_failed)


def _cleaner(view: View) -> Iterator[Metric]:
    cleaner = view.broker.cleaner
    meter, partitions = cleaner.meter, view.broker.partitions
    damaged = [each.log.size_bytes for each in cleaner.uncleanable if partitions.get(each.partition) is each]
    idle_s = view.now - meter.last_look_at if meter.last_look_at is not None else 0.0
    prefix = "kafka_log_logcleanermanager_"
    yield number(prefix + "max_dirty_percent", "Dirty bytes of the dirtiest compacted log.", meter.max_dirty_percent)
    yield number(prefix + "time_since_last_run_ms", "Since it was last looked for a log to compact.", idle_s * 1000)
    meaning = "Compacted logs that are damaged and left alone."
    yield number(prefix + "uncleanable_partitions_count", meaning, len(damaged))
    yield number(prefix + "uncleanable_bytes", "Their bytes.", sum(damaged))
    prefix = "kafka_log_logcleaner_"
    meaning = "Bytes kept of those that the last round read."
    yield number(prefix + "cleaner_recopy_percent", meaning, meter.recopy_percent)
    yield number(prefix + "max_clean_time_secs", "Seconds that the last round took.", meter.last_round_s)
    meaning = "Keys of the last round, of those that log.cleaner.dedupe.buffer.size holds."
    yield number(prefix + "max_buffer_utilization_percent", meaning, meter.buffer_percent)


def _requests(view: View, windows: Windows) -> Iterator[Metric]:
    meters = sorted(view.broker.dispatcher.meters.by_name().items())
    traffic = view.broker.replicas.traffic
    prefix = "kafka_network_requestmetrics_"
    counts = [(name, meter.total.count) for name, meter in meters]
    yield counter(prefix + "requests", "Requests answered.", "request", counts)
    errors = [((name, error), count) for name, meter in meters for error, count in sorted(meter.errors.items())]
    errors += [(("Produce", error), count) for error, count in sorted(traffic.produce_errors.items())]
    errors += [(("FetchConsumer", error), count) for error, count in sorted(traffic.fetch_errors.items())]
    summed: Counter[tuple[str, str]] = Counter()
    for labels, count in errors:
        summed[labels] += count
    meaning = "Requests, and partitions of Produce and FetchConsumer, that were answered with an error."
    yield counter(prefix + "errors", meaning, ("request", "error"), summed.items())
    families: tuple[tuple[str, str, Callable[[RequestMeter], Histogram]], ...] = (
        ("totaltimems", "From the request, once it is read, to its answer.", lambda meter: meter.total),
        ("localtimems", "Spent here: checks, append, sync, read.", lambda meter: meter.local),
        ("remotetimems", "Parked: until replicas have it, or until there is something.", lambda meter: meter.remote),
    )
    for name, meaning, histogram_of in families:
        rows = [(kind, histogram_of(meter)) for kind, meter in meters]
        meaning_lately = f"{meaning} Quantiles of the last one to two minutes."
        yield percentiles_ms(prefix + name, meaning_lately, "request", rows, windows, view.now)
    sizes = {name: each.size for name, each in traffic.purgatory_meters.items()}
    sizes["FetchMetadata"] = view.broker.quorum.purgatory_meter.size
    meaning = "Requests that wait: Produce for replicas, Fetch for records (long polls)."
    name = "kafka_server_delayedoperationpurgatory_purgatorysize"
    yield gauge(name, meaning, "delayedOperation", sizes.items())


def _quorum(view: View) -> Iterator[Metric]:
    prefix = "kafka_server_raftmetrics_"
    quorum, commits = view.broker.quorum, view.broker.quorum.commits
    yield number(prefix + "current_leader", "Node id of the quorum's leader; -1: unknown.", quorum.leader_id)
    yield number(prefix + "current_epoch", "Epoch of the quorum.", quorum.epoch)
    yield number(prefix + "high_watermark", "Committed end of the metadata log.", quorum.high_watermark)
    yield number(prefix + "log_end_offset", "End of the metadata log here.", quorum.log.end_offset)
    meaning = "Milliseconds from the append of metadata to its commit, by this broker as controller."
    yield number(prefix + "commit_latency_avg", meaning, commits.sum_ns / commits.count / 1e6 if commits.count else 0.0)
    role = [(quorum.core.role.name, 1)]
    yield gauge(prefix + "current_state", "1 for the role of this node in the quorum.", "current_state", role)
    meaning = "The last record of the metadata log that this broker has applied."
    yield number("kafka_server_brokermetadatametrics_last_applied_record_offset", meaning, view.image.offset - 1)


def own(view: View, events: EventCounts, process: ProcessGauges) -> Iterator[Metric]:
    """All of them, family by family."""
    broker = view.broker
    yield gauge("mk_build_info", "1.", ("version", "node"), [((__version__, broker.node_id), 1.0)])
    is_ready = broker.is_ready and broker.has_session
    yield number("mk_broker_ready", "1 when clients may be sent here (/readyz).", is_ready)
    yield number("mk_broker_epoch", "Epoch of this broker's registration; -1: none.", broker.broker_epoch)
    yield from _own_replicas(view)
    traffic = broker.replicas.traffic
    outcomes = [(outcome, traffic.produce_outcomes.get(outcome, 0)) for outcome in OUTCOMES]
    meaning = "Batches by what became of them: written, not_written, unknown."
    yield counter("mk_produce_outcome", meaning, "outcome", outcomes)
    yield total("mk_acked_records", "Acknowledged records (acks 1 and all).", traffic.acked_records)
    meaning = "Records cut off this broker's logs because a new leader does not have them."
    yield counter("mk_truncated_records", meaning, "reason", events.truncated_records.items())
    meaning = "Events by kind: the words of the structured log, also those that are not logged."
    yield counter("mk_events", meaning, "event", sorted(events.by_kind.items()))
    meters = sorted(broker.dispatcher.meters.by_name().items())
    meaning = "From a request to its answer, in buckets that can be added up over brokers."
    times = [((name,), meter.total) for name, meter in meters]
    yield histogram("mk_request_duration_seconds", meaning, ("request",), times)
    received, sent = [(name, m.bytes_in) for name, m in meters], [(name, m.bytes_out) for name, m in meters]
    yield counter("mk_request_bytes", "Bodies of /rpc requests, and Kafka frames.", "request", received)
    yield counter("mk_response_bytes", "Bodies of /rpc answers, and Kafka frames.", "request", sent)
    yield from _protocols(view)
    meaning = "Large requests held now; see queued.max.request.bytes."
    yield number("mk_queued_request_bytes", meaning, process.queued_bytes)
    meaning = "Connections closed as they were accepted, by the setting whose limit they exceeded."
    yield counter("mk_refused_connections", meaning, "setting", process.refused_connections.items())
    throttle = broker.throttle
    meaning = "Requests of clients that exceeded a quota, by the quota."
    yield counter("mk_throttled_requests", meaning, "quota", throttle.throttled.items())
    seconds = [(key, ms / 1000) for key, ms in throttle.throttled_ms.items()]
    yield counter("mk_throttle_seconds", "Throttle times of these requests, in all.", "quota", seconds)
    yield number("mk_muted_connections", "Kafka connections of throttled clients, not read now.", throttle.muted)
    yield number("mk_log_dir_free_bytes", "Free on the data directory's file system.", process.free_bytes)
    meaning = "How late timers come: above all else, heartbeats wait so long."
    yield histogram("mk_eventloop_lag_seconds", meaning, (), [((), process.loop_lag)])
    yield number("mk_fault_active", "Faults on links that tests have set and not healed.", process.active_faults)
    meaning = "Replicas here without series of their own; see mk.metrics.partitions.max."
    yield number("mk_metrics_partitions_omitted", meaning, view.omitted)


def _protocols(view: View) -> Iterator[Metric]:
    """The same requests by the protocol that they came in, and the libraries that are connected."""
    prefix, labels = "mk_protocol_", ("protocol", "request")
    meters = sorted(view.broker.dispatcher.meters.by_protocol.items())
    meaning = "Requests by protocol: kafka (binary frames), rpc (/rpc), http (/v1), internal (the broker's own)."
    yield counter(prefix + "requests", meaning, labels, [(key, meter.total.count) for key, meter in meters])
    meaning = "Time from a request to its answer, in all, by protocol."
    yield counter(prefix + "request_seconds", meaning, labels, [(key, m.total.sum_ns / 1e9) for key, m in meters])
    meaning = "Bytes of requests by protocol; not counted for /v1."
    yield counter(prefix + "request_bytes", meaning, labels, [(key, meter.bytes_in) for key, meter in meters])
    meaning = "Bytes of answers by protocol; not counted for /v1."
    yield counter(prefix + "response_bytes", meaning, labels, [(key, meter.bytes_out) for key, meter in meters])
    meaning = "Open connections of Kafka's protocol by the name of the client's library (KIP-511), where known."
    yield gauge("mk_kafka_connections", meaning, "software", sorted(view.broker.kafka_software().items()))


OUTCOMES = ("written", "not_written", "unknown")


def _own_replicas(view: View) -> Iterator[Metric]:
    """A leader's knowledge of its followers: their ends, how far behind, and since when."""
    watermarks = [(name, each.high_watermark) for name, each in view.shown]
    yield gauge("mk_partition_hw", "The high watermark of this replica.", PARTITION, watermarks)
    epochs = [(name, each.epoch) for name, each in view.shown]
    yield gauge("mk_partition_leader_epoch", "The leader epoch that this replica knows.", PARTITION, epochs)
    labels = (*PARTITION, "replica")
    followers = [
        ((*place, node), leader, remote) for place, leader in view.shown_led for node, remote in leader.remotes.items()
    ]
    meaning = "A follower's log end as its leader knows it; -1: it has not fetched yet."
    yield gauge("mk_replica_leo", meaning, labels, [(key, remote.end_offset) for key, _, remote in followers])
    meaning = "Records between the leader's log end and a follower's."
    lags = [(key, leader.log.end_offset - max(remote.end_offset, 0)) for key, leader, remote in followers]
    yield gauge("mk_replica_lag_records", meaning, labels, lags)
    meaning = "Since a follower was last caught up; out of the ISR beyond replica.lag.time.max.ms. +Inf: never."
    behind = [(key, max(0.0, view.now - remote.caught_up_at())) for key, _, remote in followers]
    yield gauge("mk_replica_caught_up_seconds", meaning, labels, behind)
    meaning = "1 if the follower is in the ISR."
    yield gauge("mk_replica_in_sync", meaning, labels, [(key, key[-1] in leader.isr) for key, leader, _ in followers])
