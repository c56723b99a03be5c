"""The table of doors, and how they are mounted on the broker's port.

Order of things at start: make a :class:`Doors`, hand it to the network (``HttpNetwork(doors=doors,
translate=json_rpc)``), start the broker, then :meth:`Doors.open_to` it. Until then, and after
:meth:`Doors.close`, every door says 503.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from minikafka.errors import BrokerNotAvailable, InvalidRequest
from minikafka.rest import json_text
from minikafka.rest.body import Admission
from minikafka.rest.cluster import get_cluster, get_health, get_problem_page, get_readiness
from minikafka.rest.fetch import get_records
from minikafka.rest.host import Host
from minikafka.rest.problems import PROBLEM_PAGES, PROBLEM_TYPE, Refused, malformed, problem_of
from minikafka.rest.produce import post_partition_records, post_records
from minikafka.rest.topics import delete_topic, get_partition, get_topic, get_topics, post_topic
from minikafka.rest.visit import Handler, Reply, Visit, respond

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/healthz", get_health),
    ("GET", "/healthy", get_health),
    ("GET", "/readyz", get_readiness),
    ("GET", "/ready", get_readiness),
    ("GET", PROBLEM_PAGES + "{slug}", get_problem_page),
    ("GET", "/v1/cluster", get_cluster),
    ("GET", "/v1/topics", get_topics),
    ("POST", "/v1/topics", post_topic),
    ("GET", "/v1/topics/{topic}", get_topic),
    ("DELETE", "/v1/topics/{topic}", delete_topic),
    ("POST", "/v1/topics/{topic}/records", post_records),
    ("GET", "/v1/topics/{topic}/partitions/{partition}", get_partition),
    ("GET", "/v1/topics/{topic}/partitions/{partition}/records", get_records),
    ("POST", "/v1/topics/{topic}/partitions/{partition}/records", post_partition_records),
)

_PATTERNS = [(method, path, re.compile(re.sub(r"\{\w+\}", "[^/]+", path))) for method, path, _ in ROUTES]


class Doors:
    """Mounts the routes on an application; stands before one broker."""

    def __init__(self) -> None:
        self._host: Host | None = None
        self._admission = Admission()

    def open_to(self, host: Host) -> None:
        """From now on the requests are for this broker, which has been started."""
        self._host = host

    def close(self) -> None:
        """503 from now on."""
        self._host = None

    def __call__(self, application: web.Application) -> None:
        """The network's ``doors``."""
        for method, path, handler in ROUTES:
            if method == "GET":
                application.router.add_get(path, self._guarded(handler))
            else:
                application.router.add_route(method, path, self._guarded(handler))
        # Not ".*", which a newline in the path would escape.
        application.router.add_route("*", r"/{anything:[\s\S]*}", self._guarded(no_such_door))

    def _guarded(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def on_request(http: web.Request) -> web.Response:
            if self._host is None:
                return _closed()
            return await respond(handler, Visit(http, self._host, self._admission))

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


async def no_such_door(visit: Visit) -> Reply:
    """404 with the nearest path, or 405 with the methods that the path knows."""
    path = visit.http.path
    methods = [method for method, _, pattern in _PATTERNS if pattern.fullmatch(path)]
    if methods:
        allowed = ", ".join(methods)
        raise Refused(
            InvalidRequest(f"{visit.http.method[:20]} cannot be used here; {allowed} can"),
            status=405,
            headers={"Allow": allowed},
        )
    near = difflib.get_close_matches(path, [known for _, known, _ in ROUTES], n=1)
    raise malformed(f"there is nothing at {path[:200]}" + (f"; did you mean {near[0]}?" if near else ""), status=404)
