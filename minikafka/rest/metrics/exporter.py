"""kafka_exporter's metrics (danielqsj/kafka_exporter), without the exporter.

It is one process that asks the whole cluster; here each series has exactly one broker, so that sums and counts
over all brokers are right: a partition's by its leader (by the active controller if nobody leads), the cluster's by the
active controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from minikafka.rest.metrics.families import gauge, number
from minikafka.rest.metrics.view import View
from minikafka.types import NodeId, Offset

PARTITION = ("topic", "partition")


@dataclass(frozen=True, slots=True)
class _Row:
    """One partition that this broker speaks for."""

    labels: tuple[str, int]
    leader: NodeId
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    offsets: tuple[Offset, Offset] | None
    """Log start and high watermark, if this broker leads it."""


OF_PARTITIONS: tuple[tuple[str, str, Callable[[_Row], int | None]], ...] = (
    (
        "kafka_topic_partition_current_offset",
        "The high watermark: where consumers' latest is.",
        lambda part: part.offsets[1] if part.offsets else None,
    ),
    (
        "kafka_topic_partition_oldest_offset",
        "The log start offset.",
        lambda part: part.offsets[0] if part.offsets else None,
    ),
    ("kafka_topic_partition_leader", "Node id of the leader; -1: nobody leads.", lambda part: part.leader),
    (
        "kafka_topic_partition_leader_is_preferred",
        "1 if the first replica of the assignment leads.",
        lambda part: part.leader == part.replicas[0],
    ),
    ("kafka_topic_partition_replicas", "Replicas of the assignment.", lambda part: len(part.replicas)),
    ("kafka_topic_partition_in_sync_replica", "Members of the ISR.", lambda part: len(part.isr)),
    (
        "kafka_topic_partition_under_replicated_partition",
        "1 if a replica is outside the ISR.",
        lambda part: len(part.isr) < len(part.replicas),
    ),
)
"""Of each partition: family, meaning, value; None where this broker does not know it."""


def exporter(view: View) -> Iterator[Metric]:
    """All of them, family by family."""
    image = view.image
    brokers = [image.brokers[node] for node in sorted(image.brokers)] if view.is_controller else []
    living = [each for each in brokers if not each.fenced]
    topics = [image.topics[name] for name in sorted(image.topics)][: view.limit] if view.is_controller else []
    if view.is_controller:
        yield number("kafka_brokers", "Brokers that live. Reported by the active controller.", len(living))
    yield gauge(
        "kafka_broker_info",
        "1 for each broker that lives. Reported by the active controller.",
        ("address", "id"),
        (((str(each.address), each.node_id), 1.0) for each in living),
    )
    yield gauge(
        "kafka_topic_partitions",
        "Partitions of a topic. Reported by the active controller.",
        ("topic",),
        (((topic.name,), float(len(topic.partitions))) for topic in topics),
    )
    rows = list(_rows(view))
    for name, meaning, value_of in OF_PARTITIONS:
        known = ((each.labels, value_of(each)) for each in rows)
        yield gauge(name, meaning, PARTITION, ((labels, float(value)) for labels, value in known if value is not None))


def _rows(view: View) -> Iterator[_Row]:
    for name, leader in view.shown_led:
        offsets = (leader.log.start_offset, leader.high_watermark)
        yield _Row((name.topic, name.partition), view.broker.node_id, leader.replicas, leader.isr, offsets)
    if view.is_controller:
        for topic, each in view.leaderless[: view.limit]:
            yield _Row((topic.name, each.partition), -1, each.replicas, each.isr, None)
