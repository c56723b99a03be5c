"""What one scrape reads, and how Prometheus families are made of it.

- :class:`View` is the broker at the moment of the scrape: its partitions in order, its groups, its process.
- Families are made from rows of values; :class:`Windows` has quantiles of the recent past.
- Groups have kafka_exporter's lag, members and offsets, and Kafka's own counts of groups by state. A group has series
  at its coordinator only, so that sums over brokers are right. The leaders report the ends of the logs at the moment of
  the scrape; a partition whose leader does not answer has no lag in this scrape, rather than a wrong one.
- kafka_exporter (danielqsj/kafka_exporter) is one process which asks the whole cluster; here each of its series has
  exactly one broker, so that sums and counts over all brokers are right: a partition's series are at its leader (at the
  active controller if it has no leader), the cluster's at the active controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from minikafka.broker.broker import Broker
from minikafka.broker.meters import Histogram, exported_buckets
from minikafka.groups.coordinator import Standing
from minikafka.groups.group import State
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.rest.leaders import answer_of, offsets_in
from minikafka.types import NO_NODE, NodeId, Offset, TopicPartition
from minikafka.wire.messages import LATEST, ListOffsetsPartition, ListOffsetsRequest

# Quantiles are of the time since the mark before the last one: at least this long, at most twice that when a scraper
# scrapes at least this often.
WINDOW_S = 60.0


class Windows:
    """What histograms saw lately: they only grow, so the recent past is a difference from a copy made earlier.

    Copies are made at scrapes; the hot path knows nothing of windows.
    """

    def __init__(self) -> None:
        self._marks: dict[str, tuple[float, Histogram, Histogram]] = {}
        """When the latest copy was made, the copy before it, and itself."""

    def recent(self, name: str, seen: Histogram, now: float) -> Histogram:
        """What ``seen`` has observed in the last one to two windows; since the start, at first."""
        marked = self._marks.get(name)
        if marked is None:
            marked = self._marks[name] = (now, Histogram(), Histogram())
        at, before, latest = marked
        if now - at >= WINDOW_S:
            before = latest
            self._marks[name] = (now, before, seen.copy())
        return seen.since(before)


Row: TypeAlias = tuple[Sequence[object], float]
"""(label values, value); one label value may be a text by itself."""

QUANTILES = (0.5, 0.75, 0.95, 0.99)


number = GaugeMetricFamily
"""A gauge without labels."""
total = CounterMetricFamily
"""A counter without labels; its sample is called ``name_total``."""


def gauge(name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """A value that goes up and down; ``labels`` may be one by itself."""
    return _filled(GaugeMetricFamily, name, meaning, labels, rows)


def counter(name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """A value that only rises; the samples are called ``name_total``."""
    return _filled(CounterMetricFamily, name, meaning, labels, rows)


def _filled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    meaning: str,
    labels: Sequence[str],
    rows: Iterable[Row],
) -> Metric:
    family = kind(name, meaning, labels=(labels,) if isinstance(labels, str) else labels)
    for values, value in rows:
        family.add_metric([values] if isinstance(values, str) else [str(each) for each in values], value)
    return family


def histogram(
    name: str, meaning: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Histogram]]
) -> Metric:
    """Seconds in buckets, which can be added up over brokers."""
    family = HistogramMetricFamily(name, meaning, labels=labels)
    for values, seen in rows:
        buckets = [
            ("+Inf" if bound == float("inf") else f"{bound:.10g}", float(count))
            for bound, count in exported_buckets(seen)
        ]
        family.add_metric(values, buckets, sum_value=seen.sum_ns / 1e9)
    return family


def percentiles_ms(
    name: str, meaning: str, label: str, rows: Iterable[tuple[str, Histogram]], windows: Windows, now: float
) -> Metric:
    """Milliseconds as Kafka's histograms show them: quantiles of the last minute or two, count and sum of all."""
    family = Metric(name, meaning, "summary")
    for value, seen in rows:
        labels = {label: value}
        recent = windows.recent(f"{name}/{value}", seen, now)
        for quantile in QUANTILES:
            at = recent.quantile_ns(quantile)
            family.add_sample(name, {**labels, "quantile": str(quantile)}, 0.0 if at is None else at / 1e6)
        family.add_sample(f"{name}_count", labels, seen.count)
        family.add_sample(f"{name}_sum", labels, seen.sum_ns / 1e6)
    return family


# A scrape waits so long for other leaders; Prometheus itself gives up after ten seconds.
ASK_TIMEOUT_S: Final = 2.0

PARTITION = ("topic", "partition")
GROUP = "consumergroup"


@dataclass(frozen=True, slots=True)
class Groups:
    """What this broker coordinates, and where the logs that are read end."""

    standings: Sequence[Standing] = ()
    committed: Sequence[tuple[str, TopicPartition, Offset]] = ()
    """Committed offsets with a series of their own."""
    omitted: int = 0
    """Number of those that have none."""
    ends: Mapping[TopicPartition, Offset] = field(default_factory=dict)


async def look_at_groups(broker: Broker, limit: int) -> Groups:
    """This broker's groups now, with ``limit`` partitions of them at most."""
    standings = list(broker.groups.standings())
    committed = [
        (each.group_id, partition, value.offset)
        for each in standings
        for partition, value in sorted(each.committed.items())
        if value.offset >= 0
    ]
    wanted = sorted({partition for _, partition, _ in committed[:limit]})
    leaders: dict[NodeId, list[TopicPartition]] = {}
    for name in wanted:
        partition = broker.image.partition(name)
        if partition is not None and partition.leader != NO_NODE:
            leaders.setdefault(partition.leader, []).append(name)
    found = await asyncio.gather(*(_ends(broker, node, names) for node, names in leaders.items()))
    ends = {name: end for part in found for name, end in part.items()}
    return Groups(standings, committed[:limit], max(0, len(committed) - limit), ends)


async def _ends(broker: Broker, node: NodeId, names: list[TopicPartition]) -> dict[TopicPartition, Offset]:
    if node == broker.node_id:
        roles = {name: broker.partitions[name].role for name in names if name in broker.partitions}
        return {name: role.high_watermark for name, role in roles.items() if isinstance(role, LeaderReplica)}
    items = tuple(ListOffsetsPartition(topic=each.topic, partition=each.partition, timestamp=LATEST) for each in names)
    deadline = broker.world.clock.now() + ASK_TIMEOUT_S
    response = await answer_of(broker, node, ListOffsetsRequest(partitions=items), deadline)
    return {} if response is None else offsets_in(response)


def group_families(groups: Groups, limit: int) -> Iterator[Metric]:
    """All of them, family by family."""
    committed, ends = groups.committed, groups.ends
    lags = [(group, name, max(0, ends[name] - offset)) for group, name, offset in committed if name in ends]
    for name, meaning, values in (
        (
            "kafka_consumergroup_current_offset",
            "What a group has committed: the next offset that it will read. Reported by its coordinator.",
            committed,
        ),
        ("kafka_consumergroup_lag", "Records between what a group has committed and the high watermark.", lags),
    ):
        yield gauge(name, meaning, (GROUP, *PARTITION), (((group, *place), value) for group, place, value in values))
        yield gauge(name + "_sum", "The same over a topic's partitions.", (GROUP, "topic"), _by_topic(values))
    members = [(each.group_id, each.member_count) for each in groups.standings[:limit]]
    yield gauge("kafka_consumergroup_members", "Members of a group.", GROUP, members)
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    yield number(prefix + "numgroups", "Groups that this broker coordinates.", len(groups.standings))
    for state in State:
        count = sum(each.state is state for each in groups.standings)
        yield number(f"{prefix}numgroups{state.value.lower()}", f"Of these, those that are {state.value}.", count)
    offset_count = sum(len(each.committed) for each in groups.standings)
    yield number(prefix + "numoffsets", "Offsets that they have committed.", offset_count)
    meaning = "Committed offsets without series of their own; see mk.metrics.partitions.max."
    yield number("mk_metrics_group_partitions_omitted", meaning, groups.omitted)


def _by_topic(values: Sequence[tuple[str, TopicPartition, int]]) -> list[Row]:
    sums: dict[tuple[str, str], float] = {}
    for group, name, value in values:
        sums[group, name.topic] = sums.get((group, name.topic), 0.0) + value
    return list(sums.items())


@dataclass(frozen=True)
class View:
    """One scrape's picture. ``limit``: how many partitions get series of their own."""

    broker: Broker
    limit: int
    groups: Groups = field(default_factory=Groups)

    @cached_property
    def now(self) -> float:
        """The time at which the scrape first needed it: the same for all of it."""
        return self.broker.world.clock.now()

    @property
    def image(self) -> MetadataImage:
        return self.broker.image

    @cached_property
    def hosted(self) -> list[tuple[TopicPartition, Partition]]:
        """This broker's replicas, in order."""
        return sorted(self.broker.partitions.items())

    @cached_property
    def led(self) -> list[tuple[TopicPartition, LeaderReplica]]:
        """Those that it leads."""
        return [(name, each.role) for name, each in self.hosted if isinstance(each.role, LeaderReplica)]

    @property
    def shown(self) -> list[tuple[TopicPartition, Partition]]:
        """Those that get series of their own."""
        return self.hosted[: self.limit]

    @property
    def shown_led(self) -> list[tuple[TopicPartition, LeaderReplica]]:
        """Of those, the ones that this broker leads."""
        return [(name, each.role) for name, each in self.shown if isinstance(each.role, LeaderReplica)]

    @property
    def omitted(self) -> int:
        """Partitions that get none."""
        return max(0, len(self.hosted) - self.limit)

    @cached_property
    def is_controller(self) -> bool:
        """Return True if this is the active controller."""
        return self.broker.controller.is_active

    @cached_property
    def leaderless(self) -> list[tuple[TopicImage, PartitionImage]]:
        """Partitions that nobody leads, by the metadata."""
        image = self.image
        return [
            (topic, each)
            for topic, each in image.sorted_partitions()
            if each.leader == NO_NODE or not image.alive(each.leader)
        ]


# ---- kafka_exporter: brokers, topics and partitions ------------------------------------------------------------------


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
