"""A scenario as data, frozen, complete and checked, and the strikes that a seed makes of it.

The classes are the tables of a file, with the types and limits of their fields; ``reading.py`` reads one and checks
what no type says. Times are seconds; a span is drawn from by the seed, a single time is a span of no width.

:func:`strikes_of` makes strikes in order of time of a scenario, a seed and a duration. The seed draws here and nowhere
else, so that it means the same on every target: *which* broker is ``one``, which of several faults, when within a span.
Who leads when the strike comes is for the target's view (``faults.py``). Each step has its own stream of draws; a
longer duration only appends strikes of steps that repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from minikafka import faults
from minikafka.faults import End, View
from minikafka.types import NodeId, TopicPartition
from minikafka.world.faults import COUNT_MAX, EVERY_API, FaultSpec

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


BROKERS_MAX: Final = 9
"""Each is a process of some 60 MB; more brokers make no more kinds of fault."""


NO_FIELD: Final = "(no field)"
"""Name of what a file cannot have."""


class Seconds(float):
    """A time; in a file with its unit, as ``200ms``."""


class Jump(Seconds):
    """A time that may be negative."""


class Span:
    """Seconds, from ``low`` to ``high``; in a file ``2s..6s``, or one time."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def draw(self, random: Random) -> float:
        """One of them, to a millisecond."""
        return self.low if self.low == self.high else round(random.uniform(self.low, self.high), 3)


class Words(tuple[str, ...]):
    """Texts; in a file a list of them, or a single one."""

    __slots__ = ()


class Settings(dict[str, str]):
    """Settings by Kafka's names; in a file values may also be numbers and flags."""


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the file."""


class Topic(Table, frozen=True, kw_only=True):
    """A topic that exists from the start."""

    name: str
    partitions: Annotated[int, Meta(ge=1, le=100)] = 3
    replication_factor: Annotated[int, Meta(ge=1, le=BROKERS_MAX)] = 3
    configs: Settings = field(default_factory=Settings)

    def names(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.name, number) for number in range(self.partitions))


class Cluster(Table, frozen=True, kw_only=True):
    """What is started."""

    brokers: Annotated[int, Meta(ge=1, le=BROKERS_MAX)] = 3
    security_protocol: str = "PLAINTEXT"
    """How clients connect, as ``LocalCluster`` has it."""
    settings: Settings = field(default_factory=Settings)
    """All that differ from Kafka's defaults, SHORT_SESSIONS included."""
    topics: tuple[Topic, ...] = ()

    def names(self) -> tuple[TopicPartition, ...]:
        """All partitions, in the order of the file."""
        return tuple(name for topic in self.topics for name in topic.names())

    @property
    def syncs_first(self) -> bool:
        """Return True if a record of any topic is acknowledged only when it is synced."""
        return self.settings.get(FLUSH_EACH) == "1"


class Producers(Table, frozen=True, kw_only=True):
    """``count`` producers alike, each with a ledger."""

    name: str = "p"
    """They are p1, p2 and so on."""
    count: Annotated[int, Meta(ge=1, le=100)] = 1
    acks: str = "all"
    """``all``, ``1`` or ``0``."""
    rate: Annotated[float, Meta(ge=0.1, le=20_000.0)] = 50.0
    """Records a second, of each."""
    topic: str = "orders"

    def machines(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{number}" for number in range(1, self.count + 1))


class Group(Table, frozen=True, kw_only=True):
    """A consumer group that reads along."""

    name: str
    members: Annotated[int, Meta(ge=1, le=50)] = 1
    topic: str = "orders"


class Load(Table, frozen=True, kw_only=True):
    """What runs beside the faults."""

    duration_s: Seconds = field(default=Seconds(20.0), name="duration")
    producers: tuple[Producers, ...] = ()
    groups: tuple[Group, ...] = ()


class Step(Table, frozen=True, kw_only=True):
    """One line of the plan of faults. Several words for ``what`` or ``whom``: the seed draws each time."""

    what: Words
    whom: Words = Words()
    to: str = ""
    """Of link faults: the other end."""
    at: Span | None = None
    every: Span | None = None
    """Again and again until the load ends; the first time at ``at``, or after one such pause."""
    lasts: Span | None = field(default=None, name="for")
    """None: until the load ends."""
    clients: bool = False
    delay_s: Seconds = field(default=Seconds(0.0), name="delay")
    jitter_s: Seconds = field(default=Seconds(0.0), name="jitter")
    share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    by_s: Jump = field(default=Jump(0.0), name="by")
    kind: str = ""
    """Of ``messages``, as are the next four: what happens to which of them."""
    api: str = EVERY_API
    message: str = ""
    count: Annotated[int, Meta(ge=1, le=COUNT_MAX)] | None = None
    error: str = ""

    def fault_of_messages(self) -> FaultSpec:
        """The fault of ``messages``, on a link that is not known yet. InvalidRequest."""
        return FaultSpec(
            kind=self.kind,  # type: ignore[arg-type]  # one of KINDS
            link="*>*",
            api=self.api,
            message=self.message or None,  # type: ignore[arg-type]  # checked by FaultSpec
            count=self.count,
            delay_ms=self.delay_s * 1000,
            jitter_ms=self.jitter_s * 1000,
            probability=self.share or 1.0,
            error=self.error or None,
        )


class Expectation(Table, frozen=True, kw_only=True):
    """What may come of it. Nothing said: no promise is broken."""

    loss: Words = Words()
    """Reasons, of losses.REASONS, for which the settings allow to lose what was acknowledged."""
    converge_s: Seconds = field(default=Seconds(60.0), name="converge")
    """So long may it take, after the last fault is put right, until every replica is in sync."""


class Scenario(Table, frozen=True, kw_only=True):
    """One file."""

    name: str
    teaches: str
    cluster: Cluster = Cluster()
    load: Load = Load()
    steps: tuple[Step, ...] = ()
    expect: Expectation = Expectation()
    source: str = ""
    """Where the story comes from."""
    path: Path = field(default=Path(), name=NO_FIELD)
    """The file."""

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
    return faults.CLIENT if end == faults.CLIENT_END else f"n{end}"


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
    word = faults.FAULTS[what]
    whom = _settled(random.choice(step.whom), random, brokers)
    to = (_settled(step.to, random, brokers) or faults.OTHERS) if word.is_link else ""
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
        messages=step.fault_of_messages() if what == faults.MESSAGES else None,
    )


def _settled(words: str, random: Random, brokers: int) -> str:
    """Words of chance replaced by the brokers that the seed draws."""
    minority = (brokers - 1) // 2
    counts = {faults.ONE: 1, faults.MINORITY: max(minority, 1), faults.MAJORITY: brokers // 2 + 1}
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
    nodes = () if strike.whom == faults.CLIENT else faults.nodes_of(strike.whom, view)
    if not faults.FAULTS[strike.what].is_link:
        return Hit(strike=strike, nodes=nodes) if nodes else None
    links = link_words(strike)
    found = dict.fromkeys(link for words in links for link in faults.links_of(words, view))
    return Hit(strike=strike, nodes=nodes, links=tuple(found)) if found else None


def link_words(strike: Strike) -> tuple[str, ...]:
    """The directed links of a link fault, in words: ``A>B``."""
    one_way = f"{strike.whom}>{strike.to}"
    if strike.what != faults.ISOLATE:
        return (one_way,)
    both = (one_way, f"{strike.to}>{strike.whom}")
    return (*both, f"{strike.whom}>{faults.CLIENT}", f"{faults.CLIENT}>{strike.whom}") if strike.clients else both
