"""What an invariant over replicas sees: one replica, after a step with an event about it.

Rule for this file: it names what there is to see and says nothing about what is right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from minikafka.broker.broker import Broker
from minikafka.quorum.image import MetadataImage
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.sim.world import Event
from minikafka.types import Epoch, NodeId, TopicId, TopicPartition


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: ``name`` stays the same from run to run, ``what`` tells this case."""

    name: str
    what: str
    time: float
    step: int

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


Report: TypeAlias = Callable[[str, str], None]
"""(name, what)"""

Key: TypeAlias = tuple[TopicPartition, TopicId]
"""A partition, and which of those that have had its name."""


class ReplicaView:
    """One replica after a step with events about it."""

    __slots__ = (
        "brokers",
        "events",
        "image",
        "is_hearsay",
        "key",
        "kinds",
        "leader",
        "life",
        "name",
        "partition",
        "time",
        "unclean",
    )

    def __init__(
        self, brokers: Mapping[NodeId, Broker], image: MetadataImage | None, partition: Partition, events: list[Event]
    ) -> None:
        self.brokers = brokers
        """Those that live and have loaded their data."""
        self.image = image
        """The newest that any of them has applied."""
        self.events = events
        """Those of the step about this replica, one or more."""
        self.kinds = frozenset([event.kind for event in events])
        self.life = life_of(events[0])
        self.time = events[0].time
        self.name = partition.partition
        self.key = (partition.partition, partition.topic_id)
        """A topic that was deleted and created again is another one: its epochs and offsets begin again."""
        self.partition = partition
        self.leader = partition.role if isinstance(partition.role, LeaderReplica) else None
        """Its role, if it leads."""
        self.is_hearsay = False
        """A leader of this partition was not looked at: its disk was damaged. What it exposed is known from others."""
        self.unclean: Collection[Epoch] = ()
        """In which epochs the partition had a leader that was elected uncleanly, as its topic allows."""

    def is_given_up(self, in_epoch: Epoch) -> bool:
        """Return True if an unclean election may have removed from this replica what was exposed in that epoch."""
        return any(in_epoch < epoch <= self.partition.epoch for epoch in self.unclean)

    def replica(self, node: NodeId) -> Partition | None:
        """What another broker has of the same partition."""
        broker = self.brokers.get(node)
        return broker.partitions.get(self.name) if broker is not None else None


def life_of(event: Event) -> str:
    """Node and incarnation that the event came from."""
    return f"{event.node}#{event.incarnation}"


def number_of(event: Event, fact: str) -> int:
    """A fact that is a number; -1 for one that is not."""
    value = event.facts[fact]
    return value if isinstance(value, int) else -1


class OfPartition(ABC):
    """An invariant over one replica, checked after each step with an event about it."""

    name: ClassVar[str]
    looks_after: ClassVar[frozenset[str] | None] = None
    """Kinds of the events after which it looks; None: every kind."""

    @classmethod
    def looks_at(cls, kinds: frozenset[str]) -> bool:
        """Return True if it looks after a step with events of these kinds."""
        return cls.looks_after is None or not cls.looks_after.isdisjoint(kinds)

    @abstractmethod
    def look(self, view: ReplicaView, report: Report) -> None:
        """Report what does not hold at this moment."""
