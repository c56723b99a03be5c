"""Prometheus families from rows of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from minikafka.broker.meters import Histogram, exported_buckets
from minikafka.rest.metrics.counts import Windows

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
