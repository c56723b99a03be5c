"""The door ``/metrics``: one broker's families as text, a family at a time, so that requests are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from minikafka.broker.broker import Broker
from minikafka.rest.metrics.counts import EventCounts, Windows
from minikafka.rest.metrics.exporter import exporter
from minikafka.rest.metrics.mbeans import mbeans
from minikafka.rest.metrics.own import own
from minikafka.rest.metrics.view import ReadGauges, View

PATH = "/metrics"

NOT_OPEN = "the broker is starting or has stopped\n"


class _Families(Collector):
    """A registry of some families that exist already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """They."""
        return self._families


class MetricsDoor:
    """Stands before one broker. ``events`` is told of every event, from the broker's first on."""

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

    def __call__(self, application: web.Application) -> None:
        """Mount the route; before a door that takes any path."""
        application.router.add_get(PATH, self._get)

    async def _get(self, _request: web.Request) -> web.Response:
        if self._broker is None:
            return web.Response(status=503, text=NOT_OPEN, headers={"Retry-After": "1"})
        return web.Response(body=await self.scrape(self._broker), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def scrape(self, broker: Broker) -> bytes:
        """The text. Other requests are served between two families."""
        parts = []
        for family in self._families(View(broker, broker.config.metrics_partitions_max)):
            parts.append(generate_latest(_Families([family])))
            await asyncio.sleep(0)
        return b"".join(parts)

    def _families(self, view: View) -> Iterator[Metric]:
        process = self._read_gauges()
        yield from mbeans(view, self.events, self._windows, process)
        yield from exporter(view)
        yield from own(view, self.events, process)
        yield from self._process.collect()
