"""The table of doors, and how they are mounted on the broker's port.

A door is a :class:`minikafka.rest.route.Route` in the ``ROUTES`` of the module that answers it; the same table serves,
and is described by ``/openapi.json``. Order of things at start: make a :class:`Doors`, hand it to the network
(``HttpNetwork(doors=doors, translate=json_rpc)``), start the broker, then :meth:`Doors.open_to` it. Until then, and
after :meth:`Doors.close`, every door says 503.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from minikafka.errors import BrokerNotAvailable, InvalidGroupId, InvalidRequest
from minikafka.rest import (
    cluster,
    connections,
    console,
    controller,
    docs,
    explain,
    fetch,
    group_history,
    group_members,
    group_offsets,
    groups,
    history,
    json_text,
    live,
    logs,
    offsets,
    operations,
    partitions,
    produce,
    proxy,
    quotas,
    stories,
    stream,
    testing_actions,
    testing_events,
    testing_faults,
    testing_script,
    testing_waits,
    topic_records,
    topics,
    transacting,
    transactions,
    whoami,
)
from minikafka.rest.body import Admission
from minikafka.rest.host import Host
from minikafka.rest.live import LiveHub
from minikafka.rest.respond import Streams, refuse, respond
from minikafka.rest.route import Route
from minikafka.rest.visit import ListConnections, Metrics, Visit
from minikafka.spelling import did_you_mean
from minikafka.web.problems import PROBLEM_TYPE, Occurrences, Refused, malformed, problem_of
from minikafka.world.instruments import Instruments

TESTING_ROUTES = (
    *testing_faults.ROUTES,
    *testing_script.ROUTES,
    *testing_actions.ROUTES,
    *testing_faults.MACHINE_ROUTES,
    *testing_waits.ROUTES,
    *testing_events.ROUTES,
)
_DESCRIBED: tuple[Route, ...] = (
    *console.ROUTES,
    *cluster.ROUTES,
    *live.ROUTES,
    *history.ROUTES,
    *group_history.ROUTES,
    *connections.ROUTES,
    *whoami.ROUTES,
    *topics.ROUTES,
    *partitions.ROUTES,
    *explain.ROUTES,
    *operations.ROUTES,
    *quotas.ROUTES,
    *logs.ROUTES,
    *offsets.ROUTES,
    *produce.ROUTES,
    *proxy.ROUTES,
    *fetch.ROUTES,
    *stream.ROUTES,
    *topic_records.ROUTES,
    *groups.ROUTES,
    *group_offsets.ROUTES,
    *group_members.ROUTES,
    *transactions.ROUTES,
    *transacting.ROUTES,
    *controller.ROUTES,
    *stories.ROUTES,
    *TESTING_ROUTES,
)
ROUTES = (*_DESCRIBED, *docs.routes_of(_DESCRIBED))

_PATTERNS = [(route, re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path))) for route in ROUTES]


def is_there(route: Route, host: Host) -> bool:
    """Is this door open on this broker?"""
    return not route.testing or host.config.testing_endpoints_enable


class Doors:
    """Mounts the routes on an application; stands before one broker.

    ``instruments`` are for the testing doors, ``metrics`` is what ``/metrics`` answers, ``connections`` lists the open
    connections for ``/v1/connections``.
    """

    def __init__(
        self,
        instruments: Instruments | None = None,
        metrics: Metrics | None = None,
        connections: ListConnections | None = None,
    ) -> None:
        self._instruments = instruments
        self._metrics = metrics
        self._connections = connections
        self._host: Host | None = None
        self._live: LiveHub | None = None
        self._admission = Admission()
        self._streams = Streams()
        self._occurrences = Occurrences()

    def open_to(self, host: Host) -> None:
        """From now on the requests are for this broker, which has been started."""
        self._occurrences = Occurrences(host.node_id, host.world.clock.wall_ms())
        self._live = LiveHub(host)
        self._host = host

    def close(self) -> None:
        """503 from now on."""
        self._host = None

    def __call__(self, application: web.Application) -> None:
        """The network's ``doors``."""
        for route in ROUTES:
            if route.method == "GET":
                application.router.add_get(route.path, self._guarded(route))
            else:
                application.router.add_route(route.method, route.path, self._guarded(route))
        # Not ".*", which a newline in the path would escape.
        application.router.add_route("*", r"/{anything:[\s\S]*}", self._guarded(None))
        application.on_shutdown.append(self._end_streams)

    async def _end_streams(self, _application: web.Application) -> None:
        self._streams.ending.set()

    def _guarded(self, route: Route | None) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def on_request(http: web.Request) -> web.StreamResponse:
            if self._host is None:
                return _closed()
            visit = Visit(
                http,
                self._host,
                self._admission,
                self._instruments,
                self._metrics,
                self._occurrences,
                self._connections,
                self._live,
            )
            if route is None or not is_there(route, self._host):
                return refuse(visit, _nothing_there(http, self._host))
            return await respond(route, visit, self._streams)

        return on_request


def _closed() -> web.Response:
    error = BrokerNotAvailable("the broker is starting or has stopped")
    return web.Response(
        body=json_text.text_of(problem_of(error)),
        status=503,
        headers={"Retry-After": "1"},
        content_type=PROBLEM_TYPE,
        charset=None,
    )


def _nothing_there(http: web.Request, host: Host) -> Refused:
    """404 with the nearest path, or 405 with the methods that the path knows."""
    path = http.path
    at_path = [route for route, pattern in _PATTERNS if pattern.fullmatch(path)]
    methods = [route.method for route in at_path if is_there(route, host)]
    if methods:
        allowed = ", ".join(methods)
        return Refused(
            InvalidRequest(f"{http.method[:20]} cannot be used here; {allowed} can"),
            status=405,
            headers={"Allow": allowed},
        )
    if at_path:
        return malformed(f"{path[:200]} is only there with mk.testing.endpoints.enable=true", status=404)
    if proxy.PATHS.match(path):
        return malformed(f"{path[:200]} is not served: {proxy.SERVED}", status=404)
    if path.startswith("/v1/groups//"):
        return Refused(InvalidGroupId("the group's name is empty: give it one"))
    hint = did_you_mean(path, [route.path for route, _ in _PATTERNS if is_there(route, host)])
    return malformed(f"there is nothing at {path[:200]}{hint}", status=404)
