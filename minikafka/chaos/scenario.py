"""A scenario as data: frozen, complete, checked. ``reading.py`` makes one from a file.

Rule for this file: times are seconds; a span is drawn from by the seed, a single time is a span of no width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from minikafka.types import TopicPartition
from minikafka.world.faults import FaultSpec

SHORT_SESSIONS: Final = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "replica.socket.timeout.ms": "3000",
    "auto.create.topics.enable": "false",
}
"""Settings of every scenario's cluster, under its own: with Kafka's times (sessions of nine seconds, fetches that are
given up after thirty) a run would mostly wait."""

DURATION_S_MIN: Final = 1.0
DURATION_S_MAX: Final = 7 * 86_400.0
"""Of a load: a week. Its history, a line a record, is judged in memory; more is a slip of the unit."""

FLUSH_EACH: Final = "log.flush.interval.messages"
UNCLEAN: Final = "unclean.leader.election.enable"


class Span(NamedTuple):
    """Seconds, from ``low`` to ``high``."""

    low: float
    high: float

    def draw(self, random: Random) -> float:
        """One of them, to a millisecond."""
        return self.low if self.low == self.high else round(random.uniform(self.low, self.high), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that exists from the start."""

    name: str
    partitions: int = 3
    replication_factor: int = 3
    configs: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.name, number) for number in range(self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What is started."""

    brokers: int = 3
    security_protocol: str = "PLAINTEXT"
    """How clients connect, as ``LocalCluster`` has it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """All that differ from Kafka's defaults, SHORT_SESSIONS included."""
    topics: tuple[Topic, ...] = (Topic(name="orders"),)

    def names(self) -> tuple[TopicPartition, ...]:
        """All partitions, in the order of the file."""
        return tuple(name for topic in self.topics for name in topic.names())

    @property
    def syncs_first(self) -> bool:
        """Is a record acknowledged only once it is synced, on all topics?"""
        return self.settings.get(FLUSH_EACH) == "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """``count`` producers alike, each with a ledger."""

    name: str = "p"
    """They are p1, p2 and so on."""
    count: int = 1
    acks: str = "all"
    """``all``, ``1`` or ``0``."""
    rate: float = 50.0
    """Records a second, of each."""
    topic: str = "orders"

    def machines(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{number}" for number in range(1, self.count + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group that reads along."""

    name: str
    members: int = 1
    topic: str = "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What runs beside the faults."""

    duration_s: float = 20.0
    producers: tuple[Producers, ...] = (Producers(),)
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the plan of faults. Several words for ``what`` or ``whom``: the seed draws each time."""

    what: tuple[str, ...]
    whom: tuple[str, ...]
    to: str = ""
    """Of link faults: the other end."""
    at: Span | None = None
    every: Span | None = None
    """Again and again until the load ends; the first time at ``at``, or after one such pause."""
    lasts: Span | None = None
    """``for``. None: until the load ends."""
    clients: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    share: float = 0.0
    by_s: float = 0.0
    messages: FaultSpec | None = None
    """Of ``messages``: the fault, on a link that is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What may come of it. Nothing said: no promise is broken."""

    loss: tuple[str, ...] = ()
    """Reasons, of losses.REASONS, for which the settings allow to lose what was acknowledged."""
    converge_s: float = 60.0
    """So long may it take, after the last fault is put right, until every replica is in sync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One file."""

    name: str
    teaches: str
    cluster: Cluster
    load: Load
    steps: tuple[Step, ...]
    expect: Expectation = Expectation()
    source: str = ""
    """Where the story comes from."""
    path: Path = Path()

    def faults(self) -> tuple[str, ...]:
        """Every fault that it may need, each once, in order."""
        return tuple(dict.fromkeys(what for step in self.steps for what in step.what))

    def fixed_s(self) -> float:
        """When the last step with a time of its own is over, at the latest: a load may not be shorter."""
        ends = [
            (step.at.high if step.at is not None else 0.0) + (step.lasts.high if step.lasts is not None else 0.0)
            for step in self.steps
            if step.every is None
        ]
        return max(ends, default=0.0)
