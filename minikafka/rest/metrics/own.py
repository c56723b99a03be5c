"""What only minikafka tells: how far each replica is as its leader sees it, what became of writes, the event loop."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from minikafka import __version__
from minikafka.replication.leader import NEVER
from minikafka.rest.metrics.families import EventCounts, counter, gauge, histogram, number, total
from minikafka.rest.metrics.view import ProcessGauges, View

PARTITION = ("topic", "partition")
REPLICA = ("topic", "partition", "replica")


def own(view: View, events: EventCounts, process: ProcessGauges) -> Iterator[Metric]:
    """All of them, family by family."""
    broker = view.broker
    yield gauge("mk_build_info", "1.", ("version", "node"), [((__version__, broker.node_id), 1.0)])
    yield number("mk_broker_ready", "1 when clients may be sent here (/readyz).", broker.is_ready)
    yield number("mk_broker_epoch", "Epoch of this broker's registration; -1: none.", broker.broker_epoch)
    yield from _replicas(view)
    traffic = broker.replicas.traffic
    yield counter(
        "mk_produce_outcome",
        "Batches by what became of them: written, not_written, unknown.",
        ("outcome",),
        (((outcome,), float(traffic.produce_outcomes.get(outcome, 0))) for outcome in OUTCOMES),
    )
    yield total("mk_acked_records", "Acknowledged records (acks 1 and all).", traffic.acked_records)
    yield counter(
        "mk_truncated_records",
        "Records cut off this broker's logs because a new leader does not have them.",
        ("reason",),
        (((reason,), float(count)) for reason, count in events.truncated_records.items()),
    )
    yield counter(
        "mk_events",
        "Events by kind: the words of the structured log, also those that are not logged.",
        ("event",),
        (((kind,), float(count)) for kind, count in sorted(events.by_kind.items())),
    )
    meters = sorted(broker.dispatcher.meters.by_name().items())
    yield histogram(
        "mk_request_duration_seconds",
        "From a request to its answer, in buckets that can be added up over brokers.",
        ("request",),
        (((name,), meter.total) for name, meter in meters),
    )
    yield counter(
        "mk_request_bytes",
        "Bodies of /rpc requests, and Kafka frames.",
        ("request",),
        (((name,), m.bytes_in) for name, m in meters),
    )
    yield counter(
        "mk_response_bytes",
        "Bodies of /rpc answers, and Kafka frames.",
        ("request",),
        (((name,), m.bytes_out) for name, m in meters),
    )
    yield from _protocols(view)
    yield number(
        "mk_queued_request_bytes", "Large requests held now; see queued.max.request.bytes.", process.queued_bytes
    )
    yield counter(
        "mk_refused_connections",
        "Connections closed as they were accepted, by the setting whose limit they exceeded.",
        ("setting",),
        (((setting,), float(count)) for setting, count in process.refused_connections.items()),
    )
    throttle = broker.throttle
    yield counter(
        "mk_throttled_requests",
        "Requests of clients that exceeded a quota, by the quota.",
        ("quota",),
        (((key,), float(count)) for key, count in throttle.throttled.items()),
    )
    yield counter(
        "mk_throttle_seconds",
        "Throttle times of these requests, in all.",
        ("quota",),
        (((key,), ms / 1000) for key, ms in throttle.throttled_ms.items()),
    )
    yield number("mk_muted_connections", "Kafka connections of throttled clients, not read now.", throttle.muted)
    yield number("mk_log_dir_free_bytes", "Free on the data directory's file system.", process.free_bytes)
    yield histogram(
        "mk_eventloop_lag_seconds",
        "How late timers come: above all else, heartbeats wait so long.",
        (),
        [((), process.loop_lag)],
    )
    yield number("mk_fault_active", "Faults on links that tests have set and not healed.", process.active_faults)
    yield number(
        "mk_metrics_partitions_omitted",
        "Replicas here without series of their own; see mk.metrics.partitions.max.",
        view.omitted,
    )


def _protocols(view: View) -> Iterator[Metric]:
    """The same requests by the protocol that they came in, and the libraries that are connected."""
    meters = sorted(view.broker.dispatcher.meters.by_protocol.items())
    labels = ("protocol", "request")
    yield counter(
        "mk_protocol_requests",
        "Requests by protocol: kafka (binary frames), rpc (/rpc), http (/v1), internal (the broker's own).",
        labels,
        ((key, float(meter.total.count)) for key, meter in meters),
    )
    yield counter(
        "mk_protocol_request_seconds",
        "Time from a request to its answer, in all, by protocol.",
        labels,
        ((key, meter.total.sum_ns / 1e9) for key, meter in meters),
    )
    yield counter(
        "mk_protocol_request_bytes",
        "Bytes of requests by protocol; not counted for /v1.",
        labels,
        ((key, float(meter.bytes_in)) for key, meter in meters),
    )
    yield counter(
        "mk_protocol_response_bytes",
        "Bytes of answers by protocol; not counted for /v1.",
        labels,
        ((key, float(meter.bytes_out)) for key, meter in meters),
    )
    yield gauge(
        "mk_kafka_connections",
        "Open connections of Kafka's protocol by the name of the client's library (KIP-511), where known.",
        ("software",),
        (((name,), float(count)) for name, count in sorted(view.broker.kafka_software().items())),
    )


OUTCOMES = ("written", "not_written", "unknown")


def _replicas(view: View) -> Iterator[Metric]:
    """A leader's knowledge of its followers: their ends, how far behind, and since when."""
    yield gauge(
        "mk_partition_hw",
        "The high watermark of this replica.",
        PARTITION,
        ((name, float(each.high_watermark)) for name, each in view.shown),
    )
    yield gauge(
        "mk_partition_leader_epoch",
        "The leader epoch that this replica knows.",
        PARTITION,
        ((name, float(each.epoch)) for name, each in view.shown),
    )
    remotes = [
        ((*name, node), leader, remote) for name, leader in view.shown_led for node, remote in leader.remotes.items()
    ]
    yield gauge(
        "mk_replica_leo",
        "A follower's log end as its leader knows it; -1: it has not fetched yet.",
        REPLICA,
        ((labels, float(remote.end_offset)) for labels, _, remote in remotes),
    )
    yield gauge(
        "mk_replica_lag_records",
        "Records between the leader's log end and a follower's.",
        REPLICA,
        ((labels, float(leader.log.end_offset - max(remote.end_offset, 0))) for labels, leader, remote in remotes),
    )
    yield gauge(
        "mk_replica_caught_up_seconds",
        "Since a follower was last caught up; out of the ISR beyond replica.lag.time.max.ms. +Inf: never.",
        REPLICA,
        (
            (labels, float("inf") if remote.caught_up_at() == NEVER else max(0.0, view.now - remote.caught_up_at()))
            for labels, _, remote in remotes
        ),
    )
    yield gauge(
        "mk_replica_in_sync",
        "1 if the follower is in the ISR.",
        REPLICA,
        ((labels, float(labels[-1] in leader.isr)) for labels, leader, _ in remotes),
    )
