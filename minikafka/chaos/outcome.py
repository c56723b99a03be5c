"""The outcome of a run: its figures, the verdict in one word, and what the run may lose.

Figures (:class:`Figures`): throughput, latency, availability, and how long each fault silenced each partition.
*Silence* of a partition under a fault is the longest time without an acknowledgement from it, between the fault's
beginning and the first acknowledgement of every partition after it was put right. The *recovery* of a fault is the
longest silence of all partitions. An *unavailable* second of a partition is one in which it acknowledged nothing,
though a record waited for that.

The word is ``clean`` when no promise was broken: nothing was found but what the scenario's settings allow (that is
named, with its reason), everything converged in time, and no broker ended by itself. Otherwise it is ``damaged``. A
reason counts only where the scenario's settings really allow it; ``diverged`` is never allowed.

Rules for this file: it counts and formats, and measures nothing itself: times are seconds since the load began and come
as arguments. Memory grows with the seconds and, by four bytes, with the records. ``to_json`` is a contract
(docs/chaos-scenarios.md).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from minikafka.chaos.scenario import UNCLEAN, Scenario
from minikafka.check import findings
from minikafka.check.findings import Finding
from minikafka.faults import POWER_LOSS
from minikafka.types import TopicPartition


def quantile(values: Iterable[float], share: float) -> float | None:
    """The smallest of ``values`` that at least ``share`` of them do not exceed; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(slots=True, kw_only=True)
class Recovery:
    """One fault, as producers felt it."""

    number: int
    what: str
    """With who was hit."""
    began_s: float
    healed_s: float | None = None
    closed_s: float | None = None
    """When every partition had acknowledged something again."""
    silence_s: dict[TopicPartition, float] = field(default_factory=dict)
    _heard: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions in which something was acknowledged since the fault was healed."""

    def acknowledged(self, name: TopicPartition, at_s: float, before_s: float, names: Sequence[TopicPartition]) -> None:
        """``before_s``: when the partition had last acknowledged something."""
        silent_s = at_s - max(before_s, self.began_s)
        self.silence_s[name] = max(self.silence_s.get(name, 0.0), silent_s)
        if self.healed_s is not None and at_s >= self.healed_s:
            self._heard[name] = None
            if len(self._heard) == len(names):
                self.closed_s = at_s

    @property
    def recovery_s(self) -> float | None:
        """None: some partition has not acknowledged anything since."""
        return max(self.silence_s.values()) if self.closed_s is not None else None

    def to_json(self) -> dict[str, object]:
        return {
            "number": self.number,
            "what": self.what,
            "at_s": round(self.began_s, 3),
            "healed_s": None if self.healed_s is None else round(self.healed_s, 3),
            "recovery_s": None if self.recovery_s is None else round(self.recovery_s, 3),
            "partitions": {str(name): round(silent, 3) for name, silent in sorted(self.silence_s.items())},
        }


class Figures:
    """Grows with every answer."""

    def __init__(self, names: Sequence[TopicPartition]) -> None:
        self.names = tuple(names)
        """The partitions that producers send to."""
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.unknown = 0
        self.recoveries: list[Recovery] = []
        self.failovers = 0
        """How often a partition got another leader."""
        self._open: list[Recovery] = []
        self._last: dict[TopicPartition, float] = dict.fromkeys(self.names, 0.0)
        self._latencies: list[array[float]] = []
        """By second: of each record that was acknowledged in it, the seconds since its send."""
        self._heard: list[set[TopicPartition]] = []
        """By second: who acknowledged something."""
        self._waited: list[set[TopicPartition]] = []
        """By second: partitions whose acknowledgement a record waited for."""

    # ---- while it runs -----------------------------------------------------------------------------------------------

    def on_acknowledged(self, name: TopicPartition, at_s: float, latency_s: float) -> None:
        """One record, at its time."""
        self.acknowledged += 1
        second = int(at_s)
        while len(self._latencies) <= second:
            self._latencies.append(array("f"))
            self._heard.append(set())
        self.waited(name, at_s - latency_s, at_s)
        self._latencies[second].append(latency_s)
        self._heard[second].add(name)
        before_s = self._last.get(name, 0.0)
        self._last[name] = at_s
        if self._open:
            for each in self._open:
                each.acknowledged(name, at_s, before_s, self.names)
            self._open = [each for each in self._open if each.closed_s is None]

    def waited(self, name: TopicPartition, sent_s: float, ended_s: float) -> None:
        """A record waited for its acknowledgement, which came at the end or not at all."""
        while len(self._waited) <= int(ended_s):
            self._waited.append(set())
        for second in range(max(0, int(sent_s)), int(ended_s) + 1):
            self._waited[second].add(name)

    def began(self, number: int, what: str, at_s: float) -> Recovery:
        """A fault is in force from now on."""
        recovery = Recovery(number=number, what=what, began_s=at_s)
        self.recoveries.append(recovery)
        self._open.append(recovery)
        return recovery

    @property
    def open(self) -> tuple[Recovery, ...]:
        """Faults from which some partition has not recovered."""
        return tuple(self._open)

    def silent_since(self, at_s: float) -> tuple[TopicPartition, ...]:
        """Partitions in which nothing was acknowledged from then on."""
        return tuple(name for name in self.names if self._last[name] < at_s)

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def per_second(self) -> list[int]:
        """Records acknowledged in each second of the load."""
        return [len(each) for each in self._latencies]

    def latency_s(self, share: float, begin_s: float, end_s: float) -> float | None:
        """A quantile of the latencies of records acknowledged from one second (whole, inclusive) to another."""
        chosen = self._latencies[max(0, int(begin_s)) : max(0, math.ceil(end_s))]
        return quantile((value for each in chosen for value in each), share)

    def availability(self, end_s: float) -> float | None:
        """Share of (partition, second) in which something was acknowledged, of those in which a record waited.

        Over the whole seconds before ``end_s``; the first one is left out: clients connect in it.
        """
        heard, waited = (sum(map(len, each[1 : int(end_s)])) for each in (self._heard, self._waited))
        return heard / waited if waited else None

    def recovery_s(self, share: float) -> float | None:
        """A quantile of the recoveries of all faults that ended in one."""
        return quantile((each.recovery_s for each in self.recoveries if each.recovery_s is not None), share)

    def quiet_s(self) -> float:
        """When the first fault began; the end of the load without any."""
        return min((each.began_s for each in self.recoveries), default=float(len(self._latencies)))


_OF_A_LOG: Final[tuple[type[Finding], ...]] = (
    findings.LostWrite,
    findings.Unseen,
    findings.Shifted,
    findings.InconsistentOffsets,
    findings.NonmonotonicSend,
    findings.NonmonotonicPoll,
    findings.PollSkip,
    findings.Vanished,
    findings.AcknowledgedMissingOnReplica,
)
"""What a log that has lost its end shows: others stand in its place, and who had read it reads again."""

_LOOSE: Final[tuple[type[Finding], ...]] = (*_OF_A_LOG, findings.Duplicate)
"""And without idempotence a record may stand there twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why acknowledged records may be gone."""

    meaning: str
    needs: str
    """What the scenario must say for it."""
    holds: Callable[[Scenario], bool]
    kinds: tuple[type[Finding], ...]


def _has_acks(acks: str) -> Callable[[Scenario], bool]:
    return lambda scenario: any(each.acks == acks for each in scenario.load.producers)


def _is_unclean(scenario: Scenario) -> bool:
    topics = scenario.cluster.topics
    return any({**scenario.cluster.settings, **topic.configs}.get(UNCLEAN) == "true" for topic in topics)


def _is_unflushed(scenario: Scenario) -> bool:
    return POWER_LOSS in scenario.faults() and not scenario.cluster.syncs_first


REASONS: Final[Mapping[str, Reason]] = {
    "acks=0": Reason(
        meaning="nobody was asked whether the records arrived",
        needs='a producer with acks = "0"',
        holds=_has_acks("0"),
        kinds=_LOOSE,
    ),
    "acks=1": Reason(
        meaning="the leader acknowledged alone, before any follower had the record",
        needs='a producer with acks = "1"',
        holds=_has_acks("1"),
        kinds=_LOOSE,
    ),
    "unclean-election": Reason(
        meaning="a replica outside the ISR was made leader, as the topic asks for",
        needs=f"{UNCLEAN}=true",
        holds=_is_unclean,
        kinds=_LOOSE,
    ),
    "unflushed": Reason(
        meaning="Kafka acknowledges what lies in the page caches; they lost power together",
        needs=f"a {POWER_LOSS} step, and no log.flush.interval.messages=1",
        holds=_is_unflushed,
        kinds=_LOOSE,
    ),
}


def allowed_kinds(reasons: tuple[str, ...]) -> frozenset[str]:
    """The kinds of finding that these reasons explain."""
    return frozenset(kind.kind for reason in reasons for kind in REASONS[reason].kinds)


CLEAN: Final = "clean"
DAMAGED: Final = "damaged"

COUNTED_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "lost": ("lost-write", "unseen", "vanished"),
    "duplicated": ("duplicate",),
    "reordered": ("nonmonotonic-send", "inconsistent-offsets", "shifted", "nonmonotonic-poll", "int-nonmonotonic-poll"),
    "diverged": ("diverged", "replicas_differ", "acknowledged-missing-on-replica"),
}
"""Member of the JSON -> kinds of finding; all others are in ``findings`` only."""

EXAMPLES_MAX: Final = 5

COLUMNS_MAX: Final = 60
BARS: Final = "·▁▂▃▄▅▆▇█"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One run of one scenario on one target."""

    scenario: Scenario
    target: str
    seed: int
    duration_s: float
    figures: Figures
    findings: dict[str, int]
    """Kind -> how many, allowed or not."""
    examples: list[str] = field(default_factory=list)
    """Of findings that are not allowed: sentences."""
    missing: str = ""
    """What had not converged in time; empty: everything had."""
    converged_s: float | None = None
    """After the last fault was put right."""
    died: list[str] = field(default_factory=list)
    """Brokers that ended by themselves."""
    spared: list[str] = field(default_factory=list)
    """Strikes that hit nobody, as things stood."""
    troubles: Mapping[str, int] = field(default_factory=dict)
    """Errors that clients received, by name."""
    read: int = 0
    """Records that groups were given on the way."""
    batches: int = 0
    """Compared on each replica."""
    restart: tuple[float, float] | None = None
    """When the first rolling restart began and ended."""

    @property
    def allowed(self) -> dict[str, int]:
        """Findings that the settings allow."""
        kinds = allowed_kinds(self.scenario.expect.loss)
        return {kind: count for kind, count in self.findings.items() if kind in kinds}

    @property
    def damage(self) -> dict[str, int]:
        """Findings that break a promise."""
        allowed = self.allowed
        return {kind: count for kind, count in self.findings.items() if kind not in allowed}

    @property
    def verdict(self) -> str:
        return DAMAGED if self.damage or self.missing or self.died else CLEAN

    def count(self, member: str) -> int:
        """``lost`` and its siblings, allowed ones included."""
        return sum(self.findings.get(kind, 0) for kind in COUNTED_AS[member])

    # ---- for programs ------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, object]:
        """The contract."""
        figures = self.figures
        return {
            "verdict": self.verdict,
            "scenario": self.scenario.name,
            "target": self.target,
            "seed": self.seed,
            "duration_s": self.duration_s,
            "sent": figures.sent,
            "acknowledged": figures.acknowledged,
            "failed": figures.failed,
            "unknown": figures.sent - figures.acknowledged - figures.failed,
            "read": self.read,
            **{member: self.count(member) for member in COUNTED_AS},
            "findings": self.findings,
            "allowed": {"reasons": list(self.scenario.expect.loss), "findings": self.allowed},
            "examples": self.examples,
            "converged": not self.missing,
            "converged_s": _rounded(self.converged_s),
            "missing": self.missing,
            "died": self.died,
            "faults": [each.to_json() for each in figures.recoveries],
            "spared": self.spared,
            "failovers": figures.failovers,
            "recovery_s": {
                "p50": _rounded(figures.recovery_s(0.5)),
                "p99": _rounded(figures.recovery_s(0.99)),
                "max": _rounded(figures.recovery_s(1.0)),
            },
            "availability": _rounded(figures.availability(self.duration_s), 5),
            "latency_ms": self._latencies(),
            "throughput": figures.per_second(),
            "errors": dict(self.troubles),
        }

    def _latencies(self) -> dict[str, float | None]:
        quiet_s = self.figures.quiet_s()
        spans = {"before": (1.0, quiet_s), "during": (quiet_s, self.duration_s)}
        if self.restart is not None:
            spans["restart"] = self.restart
        latencies_ms: dict[str, float | None] = {}
        for name, span in spans.items():
            for share, word in ((0.5, "p50"), (0.99, "p99")):
                value_s = self.figures.latency_s(share, *span)
                latencies_ms[f"{name}_{word}"] = None if value_s is None else round(value_s * 1000, 1)
        return latencies_ms

    # ---- for people --------------------------------------------------------------------------------------------------

    def render(self) -> str:
        """The report."""
        figures, expect = self.figures, self.scenario.expect
        unknown = figures.sent - figures.acknowledged - figures.failed
        counts = ", ".join(f"{member} {self.count(member):,}" for member in COUNTED_AS)
        compared = f"; {self.batches:,} batches compared on each replica" if self.batches else ""
        answers = f"acknowledged {figures.acknowledged:,}, failed {figures.failed:,}, unknown {unknown:,}"
        lines = [
            f"verdict: {self.verdict}   {self.scenario.name} on {self.target}, seed {self.seed}, {self.duration_s:g} s",
            f"  sent {figures.sent:,}: {answers}; groups read {self.read:,}",
            f"  {counts}{compared}",
        ]
        if self.allowed:
            lines += [f"  allowed, {reason}: {REASONS[reason].meaning}" for reason in expect.loss]
        for kind, count in self.findings.items():
            lines.append(f"  {kind}: {count:,} ({'allowed' if kind in self.allowed else 'DAMAGE'})")
        lines += [f"    {each}" for each in self.examples[:EXAMPLES_MAX]]
        if self.missing:
            lines.append(f"  NOT CONVERGED after {expect.converge_s:g} s: {self.missing}")
        lines += [f"  DIED: {each}" for each in self.died]
        return "\n".join([*lines, *self._render_faults(), *self._render_figures()])

    def _render_faults(self) -> list[str]:
        lines = []
        for each in self.figures.recoveries:
            recovery = (
                "some partition never came back" if each.recovery_s is None else f"silent {each.recovery_s:.2f} s"
            )
            lasted = "" if each.healed_s is None else f" for {each.healed_s - each.began_s:.1f} s"
            lines.append(f"  t={each.began_s:6.1f}  {each.what}{lasted}: {recovery}")
        return lines + [f"  spared: {each}" for each in self.spared]

    def _render_figures(self) -> list[str]:
        figures, latencies = self.figures, self._latencies()
        p50, p99 = figures.recovery_s(0.5), figures.recovery_s(0.99)
        lines = []
        if p50 is not None and p99 is not None:
            faults = f"faults {len(figures.recoveries)}, failovers {figures.failovers}"
            lines.append(f"  {faults}; recovery p50 {p50:.2f} s, p99 {p99:.2f} s")
        if rates := figures.per_second():
            lines.append(f"  acknowledged per second, 0 to {max(rates):,}: {strip(rates)}")
        available = figures.availability(self.duration_s)
        parts = [f"{name.replace('_', ' ')} {value:g} ms" for name, value in latencies.items() if value is not None]
        if parts:
            lines.append(f"  latency of acknowledgements: {', '.join(parts)}")
        if available is not None:
            lines.append(f"  availability {100 * available:.2f} % of all partitions' seconds in which records waited")
        if self.converged_s is not None:
            lines.append(f"  converged {self.converged_s:.1f} s after the last fault was put right")
        if self.troubles:
            errors = [f"{name} {count:,}" for name, count in sorted(self.troubles.items())]
            lines.append(f"  clients' errors: {', '.join(errors)}")
        return lines


def strip(rates: Sequence[int]) -> str:
    """Throughput over time in one line: a bar for each second, or for each few; a dot where there was nothing."""
    each_s = max(1, math.ceil(len(rates) / COLUMNS_MAX))
    spans = [rates[at : at + each_s] for at in range(0, len(rates), each_s)]
    means = [sum(span) / len(span) for span in spans]
    highest = max(means, default=0.0)
    return "".join(BARS[math.ceil(mean / highest * (len(BARS) - 1))] if mean else BARS[0] for mean in means)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
