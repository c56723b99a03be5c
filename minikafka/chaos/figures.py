"""Figures of a run: throughput, latency, how long each fault silenced each partition, availability.

*Silence* of a partition under a fault is the longest time without an acknowledgement from it, between the fault's
beginning and the first acknowledgement of every partition after it was put right. The *recovery* of a fault is the
longest silence of all partitions. An *unavailable* second of a partition is one in which it acknowledged nothing.

Rules for this file: times are seconds since the load began and come as arguments; memory grows with the seconds and,
by four bytes, with the records.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
    """Who has acknowledged something since it was healed."""

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

    # ---- while it runs -----------------------------------------------------------------------------------------------

    def on_acknowledged(self, name: TopicPartition, at_s: float, latency_s: float) -> None:
        """One record, at its time."""
        self.acknowledged += 1
        second = int(at_s)
        while len(self._latencies) <= second:
            self._latencies.append(array("f"))
            self._heard.append(set())
        self._latencies[second].append(latency_s)
        self._heard[second].add(name)
        before_s = self._last.get(name, 0.0)
        self._last[name] = at_s
        if self._open:
            for each in self._open:
                each.acknowledged(name, at_s, before_s, self.names)
            self._open = [each for each in self._open if each.closed_s is None]

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
        """Who has acknowledged nothing from then on."""
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
        """Share of (partition, second) in which something was acknowledged, over the whole seconds before ``end_s``.

        The first second is left out: clients connect in it.
        """
        seconds = self._heard[1 : int(end_s)]
        missing = max(0, int(end_s) - 1 - len(seconds))
        total = (len(seconds) + missing) * len(self.names)
        return sum(map(len, seconds)) / total if total else None

    def recovery_s(self, share: float) -> float | None:
        """A quantile of the recoveries of all faults that ended in one."""
        return quantile((each.recovery_s for each in self.recoveries if each.recovery_s is not None), share)

    def quiet_s(self) -> float:
        """When the first fault began; the end of the load without any."""
        return min((each.began_s for each in self.recoveries), default=float(len(self._latencies)))
