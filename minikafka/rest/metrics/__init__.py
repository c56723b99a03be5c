"""``GET /metrics``: what a broker counts and where it stands, in Prometheus' text format.

Two families under names that people's dashboards and alerts know already: ``kafka_...`` as Kafka's MBeans are called
behind Strimzi's JMX exporter rules (``mbeans.py``), and kafka_exporter's (``families.py``); what is ours alone begins
with ``mk_``. :class:`MetricsDoor` writes them one family at a time: requests are served in between.

Rules for this package: counters are read from those who count (``broker/meters.py``, ``families.py``), all else from
the broker's state at the moment of the scrape; nothing is kept up to date for a scrape that may never come. Labels are
our own words, node ids, and topics and partitions that exist, of at most ``mk.metrics.partitions.max`` partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from minikafka.broker.broker import Broker
from minikafka.broker.meters import EventCounts, ReadGauges
from minikafka.errors import BrokerNotAvailable
from minikafka.rest.metrics.families import View, Windows, exporter, group_families, look_at_groups
from minikafka.rest.metrics.mbeans import mbeans, own

SAMPLES_MAX: Final = 200
"""Written without a pause: about two milliseconds. With every API in use a family of buckets has 1,500 samples."""


def in_pieces(family: Metric) -> Iterator[Metric]:
    """The family itself with its first samples, then the rest in families of its name: at most SAMPLES_MAX in each."""
    samples = family.samples
    family.samples = samples[:SAMPLES_MAX]
    yield family
    for start in range(SAMPLES_MAX, len(samples), SAMPLES_MAX):
        piece = Metric(family.name, family.documentation, family.type, family.unit)
        piece.samples = samples[start : start + SAMPLES_MAX]
        yield piece


def without_header(text: bytes) -> bytes:
    """The samples of a family's text, without its HELP and TYPE."""
    return text.split(b"\n", 2)[2]


class _Families(Collector):
    """A registry of some families that exist already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """They."""
        return self._families


class MetricsDoor:
    """Stands before one broker. ``events`` is called with every event, from the broker's first on."""

    def __init__(self, read_gauges: ReadGauges, events: EventCounts) -> None:
        self.events = events
        self._read_gauges = read_gauges
        self._windows = Windows()
        self._broker: Broker | None = None
        self._process = CollectorRegistry()
        for each in (ProcessCollector, PlatformCollector, GCCollector):
            each(registry=self._process)

    def open_to(self, broker: Broker) -> None:
        """From now on scrapes are of this broker, which has been started."""
        self._broker = broker

    def close(self) -> None:
        """503 from now on."""
        self._broker = None

    async def text(self) -> bytes:
        """One scrape. BrokerNotAvailable before the start and after the end."""
        if self._broker is None:
            raise BrokerNotAvailable("the broker is starting or has stopped")
        return await self.scrape(self._broker)

    async def scrape(self, broker: Broker) -> bytes:
        """The text. Other requests are served between two families, and within a long one."""
        # Loads HTTP servers of its own: 1 MB of memory that a broker without a scrape does without.
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415

        parts = []
        limit = broker.config.metrics_partitions_max
        for family in self._families(View(broker, limit, await look_at_groups(broker, limit))):
            for piece in in_pieces(family):
                await asyncio.sleep(0)
                text = generate_latest(_Families([piece]))
                parts.append(text if piece is family else without_header(text))
        return b"".join(parts)

    def _families(self, view: View) -> Iterator[Metric]:
        process = self._read_gauges()
        yield from mbeans(view, self.events, self._windows, process)
        yield from exporter(view)
        yield from group_families(view.groups, view.limit)
        yield from own(view, self.events, process)
        yield from self._process.collect()
