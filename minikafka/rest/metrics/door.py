"""``/metrics``: one broker's families as text, written one family at a time: requests are served in between.

Also kafka_exporter's families (danielqsj/kafka_exporter). That is one process which asks the whole cluster; here each
series has exactly one broker, so that sums and counts over all brokers are right: a partition's series are at its
leader (at the active controller if it has no leader), the cluster's at the active controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from minikafka.broker.broker import Broker
from minikafka.broker.meters import EventCounts, ReadGauges
from minikafka.errors import BrokerNotAvailable
from minikafka.rest.metrics.families import View, Windows, gauge, group_families, look_at_groups, number
from minikafka.rest.metrics.mbeans import mbeans, own
from minikafka.types import NodeId, Offset

PARTITION = ("topic", "partition")
SAMPLES_MAX: Final = 200
"""Written without a pause: about two milliseconds. With every API in use a family of buckets has 1,500 samples."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One partition that this broker speaks for."""

    labels: tuple[str, int]
    leader: NodeId
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    start_offset: Offset | None = None
    """Log start, if this broker leads it."""
    high_watermark: Offset | None = None


OF_PARTITIONS: tuple[tuple[str, str, Callable[[_Row], int | None]], ...] = (
    ("current_offset", "The high watermark: where consumers' latest is.", lambda part: part.high_watermark),
    ("oldest_offset", "The log start offset.", lambda part: part.start_offset),
    ("leader", "Node id of the leader; -1: nobody leads.", lambda part: part.leader),
    (
        "leader_is_preferred",
        "1 if the first replica of the assignment leads.",
        lambda part: part.leader == part.replicas[0],
    ),
    ("replicas", "Replicas of the assignment.", lambda part: len(part.replicas)),
    ("in_sync_replica", "Members of the ISR.", lambda part: len(part.isr)),
    (
        "under_replicated_partition",
        "1 if a replica is outside the ISR.",
        lambda part: len(part.isr) < len(part.replicas),
    ),
)
"""Of each partition: family (behind ``kafka_topic_partition_``), meaning, value; None where it is unknown."""


def exporter(view: View) -> Iterator[Metric]:
    """All of them, family by family."""
    image = view.image
    brokers = [image.brokers[node] for node in sorted(image.brokers)] if view.is_controller else []
    living = [each for each in brokers if not each.fenced]
    topics = [image.topics[name] for name in sorted(image.topics)][: view.limit] if view.is_controller else []
    if view.is_controller:
        yield number("kafka_brokers", "Brokers that live. Reported by the active controller.", len(living))
    addresses = [((each.address, each.node_id), 1) for each in living]
    meaning = "1 for each broker that lives. Reported by the active controller."
    yield gauge("kafka_broker_info", meaning, ("address", "id"), addresses)
    counts = [(topic.name, len(topic.partitions)) for topic in topics]
    yield gauge("kafka_topic_partitions", "Partitions of a topic. Reported by the active controller.", "topic", counts)
    rows = list(_rows(view))
    for name, meaning, value_of in OF_PARTITIONS:
        known = ((each.labels, value) for each in rows if (value := value_of(each)) is not None)
        yield gauge(f"kafka_topic_partition_{name}", meaning, PARTITION, known)


def _rows(view: View) -> Iterator[_Row]:
    for name, leader in view.shown_led:
        offsets = leader.log.start_offset, leader.high_watermark
        yield _Row((name.topic, name.partition), view.broker.node_id, leader.replicas, leader.isr, *offsets)
    if view.is_controller:
        for topic, each in view.leaderless[: view.limit]:
            yield _Row((topic.name, each.partition), -1, each.replicas, each.isr)


def in_pieces(family: Metric) -> Iterator[Metric]:
    """The family itself with its first samples, then the rest in families of its name: at most SAMPLES_MAX in each."""
    samples = family.samples
    family.samples = samples[:SAMPLES_MAX]
    yield family
    for start in range(SAMPLES_MAX, len(samples), SAMPLES_MAX):
        piece = Metric(family.name, family.documentation, family.type, family.unit)
        piece.samples = samples[start : start + SAMPLES_MAX]
        yield piece


def without_header(text: bytes) -> bytes:
    """The samples of a family's text, without its HELP and TYPE."""
    return text.split(b"\n", 2)[2]


class _Families(Collector):
    """A registry of some families that exist already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """They."""
        return self._families


class MetricsDoor:
    """Stands before one broker. ``events`` is called with every event, from the broker's first on."""

    def __init__(self, read_gauges: ReadGauges, events: EventCounts) -> None:
        self.events = events
        self._read_gauges = read_gauges
        self._windows = Windows()
        self._broker: Broker | None = None
        self._process = CollectorRegistry()
        for each in (ProcessCollector, PlatformCollector, GCCollector):
            each(registry=self._process)

    def open_to(self, broker: Broker) -> None:
        """From now on scrapes are of this broker, which has been started."""
        self._broker = broker

    def close(self) -> None:
        """503 from now on."""
        self._broker = None

    async def text(self) -> bytes:
        """One scrape. BrokerNotAvailable before the start and after the end."""
        if self._broker is None:
            raise BrokerNotAvailable("the broker is starting or has stopped")
        return await self.scrape(self._broker)

    async def scrape(self, broker: Broker) -> bytes:
        """The text. Other requests are served between two families, and within a long one."""
        # Loads HTTP servers of its own: 1 MB of memory that a broker without a scrape does without.
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415

        parts = []
        limit = broker.config.metrics_partitions_max
        for family in self._families(View(broker, limit, await look_at_groups(broker, limit))):
            for piece in in_pieces(family):
                await asyncio.sleep(0)
                text = generate_latest(_Families([piece]))
                parts.append(text if piece is family else without_header(text))
        return b"".join(parts)

    def _families(self, view: View) -> Iterator[Metric]:
        process = self._read_gauges()
        yield from mbeans(view, self.events, self._windows, process)
        yield from exporter(view)
        yield from group_families(view.groups)
        yield from own(view, self.events, process)
        yield from self._process.collect()
