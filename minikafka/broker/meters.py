"""What a broker counts while it works: plain numbers that the hot path adds to and a scrape reads.

Rules for this file: nothing here knows Prometheus, a clock or a label's spelling (``rest/metrics`` does); to observe is
a few additions. What numbers are kept by is bounded: names of our own APIs, Kafka's errors, topics that this broker
hosts; never a text that a client sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

from minikafka.parked import Parked
from minikafka.ports import Unheard
from minikafka.types import METADATA_TOPIC

_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)

BOUNDS_NS: tuple[int, ...] = (
    0,
    *(round(step * 10**power) for power in range(4, 11) for step in _STEPS if step * 10**power <= 60e9),
)
"""Upper bounds of a histogram's buckets: nothing at all, then ten a decade, from 10 microseconds to 50 seconds."""


class Histogram:
    """Durations in nanoseconds, counted in buckets of :data:`BOUNDS_NS` and one beyond."""

    __slots__ = ("buckets", "sum_ns")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count one."""
        self.buckets[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def copy(self) -> Histogram:
        """The current value."""
        same = Histogram()
        same.buckets[:] = self.buckets
        same.sum_ns = self.sum_ns
        return same

    def add(self, other: Histogram) -> None:
        """Add what ``other`` has counted."""
        self.buckets[:] = [mine + its for mine, its in zip(self.buckets, other.buckets, strict=True)]
        self.sum_ns += other.sum_ns

    def since(self, earlier: Histogram) -> Histogram:
        """What was observed after ``earlier``, a copy of this one."""
        recent = Histogram()
        recent.buckets[:] = [now - then for now, then in zip(self.buckets, earlier.buckets, strict=True)]
        recent.sum_ns = self.sum_ns - earlier.sum_ns
        return recent

    def quantile_ns(self, quantile: float) -> float | None:
        """The duration that this share did not exceed, interpolated within its bucket; None when nothing was seen."""
        count = self.count
        if not count:
            return None
        rank = quantile * count
        below = 0
        for position, here in enumerate(self.buckets):
            if here and below + here >= rank:
                low = BOUNDS_NS[position - 1] if position else 0
                high = BOUNDS_NS[position] if position < len(BOUNDS_NS) else low
                return low + (high - low) * (rank - below) / here
            below += here
        return float(BOUNDS_NS[-1])


class RequestMeter:
    """One kind of request."""

    __slots__ = ("bytes_in", "bytes_out", "errors", "local", "remote", "total")

    def __init__(self) -> None:
        self.total = Histogram()
        self.remote = Histogram()
        """Parked in purgatory: until replicas have the records, or until there is something to fetch."""
        self.local = Histogram()
        """The rest: checks, append, sync, read."""
        self.errors: dict[str, int] = {}
        """Whole requests that failed, by Kafka's error name."""
        self.bytes_in = 0
        self.bytes_out = 0

    def observe(self, total_ns: int, remote_ns: int) -> None:
        """One request was answered."""
        if remote_ns:
            self.total.observe(total_ns)
            self.remote.observe(remote_ns)
            self.local.observe(total_ns - remote_ns)
            return
        bucket = bisect_left(BOUNDS_NS, total_ns)
        self.total.buckets[bucket] += 1
        self.total.sum_ns += total_ns
        self.local.buckets[bucket] += 1
        self.local.sum_ns += total_ns
        self.remote.buckets[0] += 1

    def add(self, other: RequestMeter) -> None:
        """Add what ``other`` has counted."""
        self.total.add(other.total)
        self.remote.add(other.remote)
        self.local.add(other.local)
        for error, count in other.errors.items():
            self.errors[error] = self.errors.get(error, 0) + count
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out

    def failed(self, error: str) -> None:
        """The whole request was refused."""
        self.errors[error] = self.errors.get(error, 0) + 1


@dataclass(slots=True)
class TopicMeter:
    """What clients moved through this broker's partitions of one topic; followers' fetches do not count."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    failed_produce_requests: int = 0
    failed_fetch_requests: int = 0


class Visit:
    """One request under way: how long it was parked."""

    __slots__ = ("parked_ns",)

    def __init__(self) -> None:
        self.parked_ns = 0


VISIT: ContextVar[Visit | Parked | None] = ContextVar("VISIT", default=None)
"""The request that all of this happens for; the dispatcher sets it, purgatory adds to it."""


class RequestMeters:
    """Every kind of request, by protocol and by Kafka's names (``Produce``, ``FetchConsumer``, ``FetchFollower``)."""

    def __init__(self) -> None:
        self.by_protocol: dict[tuple[str, str], RequestMeter] = {}
        """By protocol (``RequestContext.protocol``) and name."""

    def of(self, name: str, protocol: str) -> RequestMeter:
        """The meter of one kind of one protocol; both are our own words."""
        key = protocol, name
        meter = self.by_protocol.get(key)
        if meter is None:
            meter = self.by_protocol[key] = RequestMeter()
        return meter

    def by_name(self) -> dict[str, RequestMeter]:
        """The sums over all protocols, as they are now."""
        sums: dict[str, RequestMeter] = {}
        for (_, name), meter in self.by_protocol.items():
            sums.setdefault(name, RequestMeter()).add(meter)
        return sums


class PurgatoryMeter:
    """Requests of one kind that wait: ``with purgatory.parked()`` counts one and adds its time to its visit. A request
    that waits without a task of its own enters and leaves.
    """

    __slots__ = ("_ticks_ns", "size")

    def __init__(self, ticks_ns: Callable[[], int]) -> None:
        self.size = 0
        self._ticks_ns = ticks_ns

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Around the wait."""
        began_ns = self.enter()
        try:
            yield
        finally:
            parked_ns = self.leave(began_ns)
            visit = VISIT.get()
            if visit is not None:
                visit.parked_ns += parked_ns

    def enter(self) -> int:
        """Begin a wait. Returns the time, for ``leave``."""
        self.size += 1
        return self._ticks_ns()

    def leave(self, began_ns: int) -> int:
        """End a wait. Returns its duration in nanoseconds."""
        self.size -= 1
        return self._ticks_ns() - began_ns


class Traffic:
    """What moved through the replicas of one broker."""

    def __init__(self, ticks_ns: Callable[[], int]) -> None:
        self.topics: dict[str, TopicMeter] = {}
        self.produce_outcomes: dict[str, int] = {}
        """Batches by what became of them: written, not_written, unknown."""
        self.acked_records = 0
        """Records whose append was acknowledged to a producer (acks 1 and all)."""
        self.produce_errors: dict[str, int] = {}
        """Batches that were answered with an error, by Kafka's name."""
        self.fetch_errors: dict[str, int] = {}
        """Consumers' partitions that were answered with an error."""
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.purgatory_meters = {name: PurgatoryMeter(ticks_ns) for name in ("Produce", "Fetch", "DeleteRecords")}

    def topic(self, name: str) -> TopicMeter:
        """The meter of a topic; ask only for topics that this broker hosts, so that there are no more of them."""
        meter = self.topics.get(name)
        if meter is None:
            meter = self.topics[name] = TopicMeter()
        return meter

    def keep_topics(self, known: Container[str]) -> None:
        """Deleted topics are no longer reported."""
        for name in [name for name in self.topics if name not in known]:
            del self.topics[name]

    def produced(self, outcome: str, error: str | None, acked_records: int) -> None:
        """One batch was answered."""
        self.produce_outcomes[outcome] = self.produce_outcomes.get(outcome, 0) + 1
        self.acked_records += acked_records
        if error is not None:
            self.produce_errors[error] = self.produce_errors.get(error, 0) + 1

    def fetch_failed(self, error: str) -> None:
        """One partition of a consumer's fetch was answered with an error."""
        self.fetch_errors[error] = self.fetch_errors.get(error, 0) + 1


def exported_buckets(histogram: Histogram) -> Iterator[tuple[float, int]]:
    """(upper bound in seconds, how many were not above it), for the bounds at 1, 2.5 and 5 of each decade; all last."""
    below = 0
    for position, bound in enumerate(BOUNDS_NS):
        below += histogram.buckets[position]
        if position and (position - 1) % len(_STEPS) in {0, 4, 7}:
            yield bound / 1e9, below
    yield float("inf"), below + histogram.buckets[-1]


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
        elif kind == "tail_truncated":
            self._count_truncated("divergence", facts)
        elif kind == "log_truncated" and str(facts.get("partition", "")).startswith(METADATA_TOPIC):
            self._count_truncated("metadata_divergence", facts)

    def _count_truncated(self, reason: str, facts: Mapping[str, object]) -> None:
        """A follower reports ``tail_truncated`` whatever is left; a log that is cut to nothing, ``log_restarted``."""
        old, new = facts.get("old"), facts.get("new")
        if isinstance(old, int) and isinstance(new, int):
            self.truncated_records[reason] += old - new

    def count(self, kind: str) -> int:
        """How often this kind happened."""
        return self._reported.get(kind, 0) + self._unheard.counts.get(kind, 0)

    @property
    def by_kind(self) -> dict[str, int]:
        """The number of events of each kind that occurred."""
        unheard = [kind for kind, count in self._unheard.counts.items() if count]
        return {kind: self.count(kind) for kind in sorted({*self._reported, *unheard})}


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


ReadGauges: TypeAlias = Callable[[], ProcessGauges]
