"""A scenario as data, and the strikes that a seed makes of it.

A scenario as data: frozen, complete, checked. ``reading.py`` makes one from a file.

Rule for this file: times are seconds; a span is drawn from by the seed, a single time is a span of no width.

What happens when: a scenario, a seed and a duration as strikes in order of time.

The seed draws here and nowhere else, so that it means the same on every target: *which* broker is ``one``, which of
several faults, when within a span. Who leads when the strike comes is for the target's view (``faults.py``).

Rules for this file: one stream of draws per step; a longer duration only appends strikes of steps that repeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from minikafka.faults import (
    CLIENT,
    CLIENT_END,
    FAULTS,
    ISOLATE,
    MAJORITY,
    MESSAGES,
    MINORITY,
    ONE,
    OTHERS,
    End,
    View,
    links_of,
    nodes_of,
)
from minikafka.types import NodeId, TopicPartition
from minikafka.world.faults import EVERY_API, FaultSpec

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
        """Return True if a record of any topic is acknowledged only when it is synced."""
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


LAST_S: Final = 2.0
"""A step that repeats begins no new fault so shortly before the load ends: there would be nothing to see."""


SEED_BITS: Final = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault to come. ``whom`` and ``to`` hold no drawn words any more: only what a view resolves."""

    number: int
    """From 1, in order of time."""
    at_s: float
    """Since the load began."""
    what: str
    whom: str
    to: str = ""
    lasts_s: float | None = None
    """None: until everything is put right at the end; and for faults that are over at once."""
    clients: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    share: float = 0.0
    by_s: float = 0.0
    messages: FaultSpec | None = None
    """Of ``messages``: the fault, on a link that is not known yet."""
    seed: int = 0
    """Of what is drawn for each message (``loss``, ``delay`` with jitter), where the target supports it."""

    @property
    def name(self) -> str:
        """The fault in words: of messages, what happens to which of them."""
        if self.messages is None:
            return self.what
        words = (self.messages.kind, "" if self.messages.api == EVERY_API else self.messages.api, self.messages.message)
        return " ".join(each for each in words if each)

    def __str__(self) -> str:
        to = f">{self.to}" if self.to else ""
        lasts = f" for {self.lasts_s:g} s" if self.lasts_s is not None else ""
        values = [
            f"{name}={value:g}"
            for name, value in (("delay_s", self.delay_s), ("share", self.share), ("by_s", self.by_s))
            if value
        ]
        return " ".join([f"t={self.at_s:.1f} {self.name} {self.whom}{to}{lasts}", *values])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A strike whose victims are known: what a target carries out."""

    strike: Strike
    nodes: tuple[NodeId, ...]
    """Brokers, for faults of brokers; of link faults, those of ``whom``."""
    links: tuple[tuple[End, End], ...] = ()
    """Directed, for link faults; CLIENT_END stands for every client."""

    @property
    def what(self) -> str:
        return self.strike.what

    def __str__(self) -> str:
        if not self.links:
            return f"{self.what} {', '.join(f'n{node}' for node in self.nodes)}"
        links = ", ".join(f"{_end(source)}>{_end(target)}" for source, target in self.links)
        return f"{self.strike.name} {links}"


def _end(end: End) -> str:
    return CLIENT if end == CLIENT_END else f"n{end}"


def strikes_of(scenario: Scenario, seed: int, duration_s: float | None = None) -> tuple[Strike, ...]:
    """All strikes of a load of ``duration_s`` (the scenario's own when None), in order of time."""
    length_s = scenario.load.duration_s if duration_s is None else duration_s
    found: list[tuple[float, int, Strike]] = []
    for index, step in enumerate(scenario.steps):
        random, seeds = Random(f"{seed}/chaos/{index}"), Random(f"{seed}/chaos/{index}/messages")
        brokers = scenario.cluster.brokers
        strikes = [_strike(step, at_s, random, brokers) for at_s in _times(step, random, length_s)]
        found += [(each.at_s, index, replace(each, seed=seeds.getrandbits(SEED_BITS))) for each in strikes]
    found.sort(key=lambda each: each[:2])
    return tuple(replace(strike, number=number) for number, (_, _, strike) in enumerate(found, start=1))


def _times(step: Step, random: Random, length_s: float) -> Iterator[float]:
    at_s = step.at.draw(random) if step.at is not None else None
    if step.every is None:
        if at_s is not None:
            yield at_s
        return
    if at_s is None:
        at_s = step.every.draw(random)
    while at_s < length_s - LAST_S:
        yield at_s
        at_s = round(at_s + step.every.draw(random), 3)


def _strike(step: Step, at_s: float, random: Random, brokers: int) -> Strike:
    what = random.choice(step.what)
    word = FAULTS[what]
    whom = _settled(random.choice(step.whom), random, brokers)
    to = (_settled(step.to, random, brokers) or OTHERS) if word.is_link else ""
    lasts_s = step.lasts.draw(random) if step.lasts is not None else None
    return Strike(
        number=0,
        at_s=at_s,
        what=what,
        whom=whom,
        to=to,
        lasts_s=lasts_s if word.lasts else None,
        clients=step.clients and "clients" in word.takes,
        delay_s=step.delay_s if "delay" in word.takes else 0.0,
        jitter_s=step.jitter_s if "jitter" in word.takes else 0.0,
        share=step.share if "share" in word.takes else 0.0,
        by_s=step.by_s if "by" in word.takes else 0.0,
        messages=step.messages if what == MESSAGES else None,
    )


def _settled(words: str, random: Random, brokers: int) -> str:
    """Words of chance replaced by the brokers that the seed draws."""
    minority = (brokers - 1) // 2
    counts = {ONE: 1, MINORITY: max(minority, 1), MAJORITY: brokers // 2 + 1}
    settled: list[str] = []
    for word in (each.strip() for each in words.split(",")):
        if word in counts:
            drawn = sorted(random.sample(range(1, brokers + 1), counts[word]))
            settled.extend(f"n{node}" for node in drawn)
        elif word:
            settled.append(word)
    return ",".join(settled)


def hit_of(strike: Strike, view: View) -> Hit | None:
    """The brokers that the step hits at present; None if there are none."""
    nodes = () if strike.whom == CLIENT else nodes_of(strike.whom, view)
    if not FAULTS[strike.what].is_link:
        return Hit(strike=strike, nodes=nodes) if nodes else None
    links = link_words(strike)
    found = dict.fromkeys(link for words in links for link in links_of(words, view))
    return Hit(strike=strike, nodes=nodes, links=tuple(found)) if found else None


def link_words(strike: Strike) -> tuple[str, ...]:
    """The directed links of a link fault, in words: ``A>B``."""
    one_way = f"{strike.whom}>{strike.to}"
    if strike.what != ISOLATE:
        return (one_way,)
    both = (one_way, f"{strike.to}>{strike.whom}")
    return (*both, f"{strike.whom}>{CLIENT}", f"{CLIENT}>{strike.whom}") if strike.clients else both
