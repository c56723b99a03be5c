"""Prometheus families from rows of values: counters that events feed, quantiles of the recent past, and their
samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from minikafka.broker.meters import Histogram, exported_buckets
from minikafka.ports import Unheard
from minikafka.types import METADATA_TOPIC

# Quantiles are of the time since the mark before the last one: at least this long, at most twice that when a scraper
# scrapes at least this often.
WINDOW_S = 60.0

_ISR_CHANGES = frozenset({"isr_shrunk", "isr_expanded", "isr_changed"})


class EventCounts:
    """An observer of a broker's events: how often each kind happened, and what some of them say."""

    def __init__(self, unheard: Unheard | None = None) -> None:
        """``unheard``: where the sink counts hot events that it does not report."""
        self._reported: dict[str, int] = {}
        self._unheard = unheard or Unheard()
        self.isr_changes = dict.fromkeys(sorted(_ISR_CHANGES), 0)
        """As the partitions' leaders saw them: the controller tells the same changes again."""
        self.unclean_elections = 0
        self.truncated_records = {"divergence": 0, "metadata_divergence": 0}

    def __call__(self, kind: str, facts: Mapping[str, object]) -> None:
        """Count one event."""
        self._reported[kind] = self._reported.get(kind, 0) + 1
        if kind in _ISR_CHANGES:
            if "partition_epoch" not in facts:
                self.isr_changes[kind] += 1
        elif kind == "leader_elected":
            self.unclean_elections += facts.get("clean") is False
        elif kind == "log_truncated":
            of_metadata = str(facts.get("partition", "")).startswith(METADATA_TOPIC)
            old, new = facts.get("old"), facts.get("new")
            if isinstance(old, int) and isinstance(new, int):
                self.truncated_records["metadata_divergence" if of_metadata else "divergence"] += old - new

    def count(self, kind: str) -> int:
        """How often this kind happened."""
        return self._reported.get(kind, 0) + self._unheard.counts.get(kind, 0)

    @property
    def by_kind(self) -> dict[str, int]:
        """The number of events of each kind that occurred."""
        unheard = {kind for kind, count in self._unheard.counts.items() if count}
        return {kind: self.count(kind) for kind in {*self._reported, *unheard}}


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
"""(label values, value)."""

QUANTILES = (0.5, 0.75, 0.95, 0.99)


def gauge(name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """A value that goes up and down."""
    return _filled(GaugeMetricFamily(name, meaning, labels=labels), rows)


def counter(name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """A value that only rises; the samples are called ``name_total``."""
    return _filled(CounterMetricFamily(name, meaning, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for values, value in rows:
        family.add_metric([str(each) for each in values], value)
    return family


def number(name: str, meaning: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(name, meaning, value=value)


def total(name: str, meaning: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(name, meaning, value=value)


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
    name: str,
    meaning: str,
    label: str,
    rows: Iterable[tuple[str, Histogram]],
    windows: Windows,
    now: float,
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
