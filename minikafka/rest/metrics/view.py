"""What one scrape looks at: the broker at this moment, its partitions in order, and the counters beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from minikafka.broker.broker import Broker
from minikafka.broker.meters import Histogram
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.rest.metrics.groups import Groups
from minikafka.types import NO_NODE, TopicPartition


@dataclass(frozen=True, slots=True)
class ProcessGauges:
    """What the world around the broker can tell; read at each scrape."""

    active_faults: int
    """Faults that tests have set on links."""
    connections: int
    refused_connections: Mapping[str, int]
    """By the setting whose limit they exceeded."""
    queued_bytes: int
    free_bytes: int
    """On the file system of the data directory; -1 when it is not known."""
    loop_lag: Histogram


ReadGauges = Callable[[], ProcessGauges]


@dataclass(frozen=True)
class View:
    """One scrape's picture. ``limit``: how many partitions get series of their own."""

    broker: Broker
    limit: int
    groups: Groups = field(default_factory=Groups)
    now: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "now", self.broker.world.clock.now())

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
        """Is this the active controller?"""
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
