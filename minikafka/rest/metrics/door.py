"""What ``/metrics`` tells: one broker's families as text, a family at a time: requests are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from minikafka.broker.broker import Broker
from minikafka.errors import BrokerNotAvailable
from minikafka.rest.metrics.counts import EventCounts, Windows
from minikafka.rest.metrics.exporter import exporter
from minikafka.rest.metrics.groups import group_families, look_at_groups
from minikafka.rest.metrics.mbeans import mbeans
from minikafka.rest.metrics.own import own
from minikafka.rest.metrics.view import ReadGauges, View


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
        """The text. Other requests are served between two families."""
        # Loads HTTP servers of its own: 1 MB of memory that a broker without a scrape does without.
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415

        parts = []
        limit = broker.config.metrics_partitions_max
        for family in self._families(View(broker, limit, await look_at_groups(broker, limit))):
            parts.append(generate_latest(_Families([family])))
            await asyncio.sleep(0)
        return b"".join(parts)

    def _families(self, view: View) -> Iterator[Metric]:
        process = self._read_gauges()
        yield from mbeans(view, self.events, self._windows, process)
        yield from exporter(view)
        yield from group_families(view.groups)
        yield from own(view, self.events, process)
        yield from self._process.collect()
