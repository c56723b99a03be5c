"""The table of doors, how they are mounted on the broker's port, and how their answers go out.

A door is a :class:`minikafka.rest.route.Route` in the ``ROUTES`` of the module that answers it; the same table serves,
and is described by ``/openapi.json``. Order of things at start: make a :class:`Doors`, give it to the network
(``HttpNetwork(load_doors=lambda: doors, translate=json_rpc)``), start the broker, then :meth:`Doors.open_to` it.
Until then, and after :meth:`Doors.close`, every door says 503.

How an answer goes out: JSON or msgpack, a page, a stream, or a problem. It answers whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import re
import traceback
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import msgpack
from aiohttp import web

from minikafka import __version__
from minikafka import errors as kafka
from minikafka.config import KIB
from minikafka.rest import (
    cluster,
    console,
    docs,
    fault_script,
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
    testing_actions,
    testing_faults,
    testing_waits,
    topic_records,
    topics,
    transactions,
)
from minikafka.rest.host import STREAM_COUNT_MAX, STREAM_COUNT_MAX_OF_ONE, STREAM_WRITE_TIMEOUT_S, Host
from minikafka.rest.live import LiveHub
from minikafka.rest.parameters import values_of
from minikafka.rest.permissions import check, quota_key
from minikafka.rest.route import Page, Reply, Route, Stream, Visit
from minikafka.security.quotas import REQUEST
from minikafka.web.accept import JSON, MSGPACK, MSGPACK_TYPES, Accept, unacceptable_type
from minikafka.web.problems import PROBLEM_TYPE, RETRY_AFTER_S, Occurrences, Refused, malformed, problem_of
from minikafka.world.connections import OpenConnection, owner_of
from minikafka.world.http_connections import AUTHENTICATE, PRINCIPAL
from minikafka.world.instruments import Instruments

API_VERSION = "1"
LOOK_S = 0.5
"""Interval at which a stream notices that its reader has left, also while there is nothing to write."""
RECHECK_S = 5.0
"""Interval at which the credentials and permissions of a stream's reader are checked again."""
PIECE_BYTES = 512 * KIB
GZIP_WINDOW, GZIP_MEMORY = 16 + 13, 5
"""zlib's ``wbits`` and ``memLevel`` of a compressed stream: 48 kB of memory for each reader, in place of 256."""
SERVER = f"minikafka/{__version__}"


Metrics: TypeAlias = Callable[[], Awaitable[bytes]]
"""One scrape, as text."""


class ListConnections(Protocol):
    """Lists open connections (``HttpNetwork.connections``)."""

    def __call__(self, *, after: int, limit: int) -> list[OpenConnection]: ...


async def respond(route: Route, visit: Visit) -> web.StreamResponse:
    """What the handler says, or the problem."""
    try:
        if visit.host.access is not None:
            check(route, visit.permit, visit.http.match_info)
        visit.wants_msgpack = _negotiate(",".join(visit.http.headers.getall("Accept", ())), route.media_types)
        http = visit.http
        query = {name: http.query.getall(name) for name in http.query}
        visit.values, visit.given = values_of(route.parameters, path=http.match_info, query=query, headers=http.headers)
        if route.reads_metadata:
            visit.host.check_caught_up()
        if visit.host.throttle.quotas is not None:
            await _admit(route, visit)
        reply = await route.handler(visit)
        if isinstance(reply, Stream):
            return await _streamed(route, visit, reply)
    except (Refused, kafka.ProtocolError) as raised:
        return refuse(visit, Refused.of(raised))
    except Exception as error:  # noqa: BLE001 - a person gets an answer; the story is an event
        return _bug(visit, error)
    if isinstance(reply, Page):
        headers = {**_headers(visit, reply.headers), "Content-Type": reply.media_type}
        return web.Response(body=reply.text, headers=headers)
    reply = Reply.of(reply)
    if visit.note is not None and route.may_have_note:
        reply.body["note"] = visit.note
    if visit.wants_msgpack:
        return _response(visit, reply.body, reply.status, reply.headers, JSON)
    text = await json_text.text_in_turns(reply.body)
    return _written(visit, text, reply.status, reply.headers, JSON)


async def _admit(route: Route, visit: Visit) -> None:
    """Wait while the client is throttled. Raises Refused if it must wait longer."""
    throttle = visit.host.throttle
    key = quota_key(route)
    if key is None or throttle.is_exempt(visit.context):
        return
    visit.quota = key
    try:
        await throttle.admit((key, REQUEST), visit.context)
    except kafka.ThrottlingQuotaExceeded as error:
        wait_s = math.ceil(int(str(error.facts["throttle_time_ms"])) / 1000)
        raise Refused(error, headers={"Retry-After": str(wait_s)}) from None


def refuse(visit: Visit, refused: Refused) -> web.Response:
    """The problem. What the client is not to blame for is an event too, with the same ``instance``."""
    if refused.status >= 500:
        error = refused.error
        facts = {"status": refused.status, "error": error.name, "detail": error.message, "outcome": error.outcome}
        visit.host.world.events("problem_told", instance=visit.instance, method=visit.http.method, **facts)
    return _problem(visit, refused)


def _problem(visit: Visit, refused: Refused) -> web.Response:
    form = None if visit.route is None else visit.route.errors
    retry = {"Retry-After": str(RETRY_AFTER_S)} if refused.status in (429, 503) else {}
    headers = {**retry, **refused.headers}
    if form is not None:
        return _response(visit, form.body_of(refused), refused.status, headers, form.media_type)
    return _response(visit, refused.problem(visit.instance), refused.status, headers, PROBLEM_TYPE)


# ---- what the client takes -------------------------------------------------------------------------------------------


@lru_cache(64)
def _negotiate(accepted: str, media_types: frozenset[str]) -> bool:
    """True for msgpack in place of JSON; 406 when the client takes none of what the route can say."""
    accept = Accept((accepted,))
    wishes = {each: accept.quality(each) for each in media_types}
    if JSON in media_types:
        wishes.update((each, accept.quality(each)) for each in MSGPACK_TYPES)
    if max(wishes.values()) > 0:
        # What is taken in any form (*/*) comes as JSON: a person can read it.
        return JSON in media_types and max(wishes[each] for each in MSGPACK_TYPES) > wishes[JSON]
    raise unacceptable_type(accept, {*media_types, *((MSGPACK,) if JSON in media_types else ())})


# ---- whole answers ---------------------------------------------------------------------------------------------------


def _headers(visit: Visit, more: Mapping[str, str]) -> dict[str, str]:
    served_by = sorted(dict.fromkeys(visit.served_by)) or [visit.host.node_id]
    sent = {"Server": SERVER, "Mk-Api-Version": API_VERSION, "Mk-Served-By": ",".join(map(str, served_by)), **more}
    if visit.leaders:
        sent["Mk-Leader"] = ",".join(map(str, sorted(dict.fromkeys(visit.leaders))))
    return sent


def _response(visit: Visit, body: Any, status: int, headers: Mapping[str, str], media_type: str) -> web.Response:
    if visit.wants_msgpack:
        return _written(visit, msgpack.packb(body, default=str), status, headers, MSGPACK)
    return _written(visit, json_text.text_of(body), status, headers, media_type)


def _written(visit: Visit, data: bytes, status: int, headers: Mapping[str, str], media_type: str) -> web.Response:
    sent = _headers(visit, headers)
    if throttle_ms := visit.count_bytes(len(data)):
        sent["Mk-Throttle-Time-Ms"] = str(throttle_ms)
    if len(data) <= PIECE_BYTES or visit.http.method == "HEAD":
        response = web.Response(body=data, status=status, headers=sent, content_type=media_type, charset=None)
    else:
        sent = {**sent, "Content-Length": str(len(data)), "Content-Type": media_type}
        response = web.Response(body=_pieces(data), status=status, headers=sent)
    if sent.get("Connection") == "close":
        response.force_close()
    return response


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    """A large answer, part by part: to hand all of it to the system at once takes tens of milliseconds."""
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
        await asyncio.sleep(0)


def _bug(visit: Visit, error: Exception) -> web.Response:
    visit.host.world.events(
        "rest_failed",
        instance=visit.instance,
        method=visit.http.method,
        path=visit.http.path,
        error=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
    )
    failure = kafka.UnknownServerError("the broker failed; its log has the story", outcome=kafka.UNKNOWN)
    return _problem(visit, Refused(failure, status=500))


# ---- streams ---------------------------------------------------------------------------------------------------------


async def _streamed(route: Route, visit: Visit, stream: Stream) -> web.StreamResponse:
    """Write chunk by chunk; ends with the chunks, with the reader, or with the server."""
    doors = visit.doors
    async with contextlib.aclosing(stream.chunks):
        owner = owner_of(visit.context.principal, visit.context.remote)
        if doors.streams.total() >= STREAM_COUNT_MAX or doors.streams[owner] >= STREAM_COUNT_MAX_OF_ONE:
            raise kafka.ThrottlingQuotaExceeded(
                f"{doors.streams.total()} streams are open, {doors.streams[owner]} of them of {owner}; one broker "
                f"serves {STREAM_COUNT_MAX} at most, and {STREAM_COUNT_MAX_OF_ONE} of one user or address"
            )
        doors.streams[owner] += 1
        try:
            # Unlike a media type, an encoding that no header names is not accepted.
            accepted = Accept(("identity", *visit.http.headers.getall("Accept-Encoding", ())))
            encode = _gzip() if stream.repeats_itself and accepted.quality("gzip") else _plain
            response = web.StreamResponse(
                headers={
                    **_headers(visit, {}),
                    "Content-Type": stream.media_type,
                    "Cache-Control": "no-store",
                    "X-Accel-Buffering": "no",
                    **({} if encode is _plain else {"Content-Encoding": "gzip"}),
                }
            )
            # A stream has no length: without keep-alive a proxy or an old client sees its end as well.
            response.force_close()
            try:
                await response.prepare(visit.http)
            except ConnectionError:
                return response  # the reader has left while the start of the stream was looked up
            if visit.http.method != "HEAD":
                await _pump(route, visit, response, stream, encode)
        finally:
            doors.streams -= Counter([owner])
    return response


def _plain(chunk: bytes, *, is_last: bool = False) -> bytes:  # noqa: ARG001 - as the chunks of _gzip()
    return chunk


def _gzip() -> Callable[..., bytes]:
    """Compresses chunk after chunk; each can be read when it arrives."""
    packer = zlib.compressobj(1, zlib.DEFLATED, GZIP_WINDOW, GZIP_MEMORY)

    def packed(chunk: bytes, *, is_last: bool = False) -> bytes:
        return packer.compress(chunk) + packer.flush(zlib.Z_FINISH if is_last else zlib.Z_SYNC_FLUSH)

    return packed


async def _refusal_now(route: Route, visit: Visit) -> kafka.ProtocolError | None:
    """Why a request that is being answered would be refused by now."""
    try:
        if await visit.http[AUTHENTICATE]() != visit.http[PRINCIPAL]:
            return kafka.SaslAuthenticationFailed("the credentials are those of another user by now")
        check(route, visit.permit, visit.http.match_info)
    except kafka.ProtocolError as error:
        return error
    return None


async def _end_of_stream(
    route: Route, visit: Visit, writing: asyncio.Future[None], closing: asyncio.Future[Any], stream: Stream
) -> bytes:
    """Wait until the chunks end (empty), or return what is written last: the server closes, or the client may not
    read any more.
    """
    clock = visit.host.world.clock
    checked = clock.now()
    while True:
        done, _ = await asyncio.wait({writing, closing}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return stream.farewell if writing not in done else b""
        if visit.http.transport is None:
            raise ConnectionResetError("the reader has left")
        if clock.now() - checked < RECHECK_S:
            continue
        checked = clock.now()
        error = await _refusal_now(route, visit)
        if error is not None:
            is_events = stream.media_type == json_text.EVENT_STREAM
            return json_text.event("denied", problem_of(error), None) if is_events else b""


async def _pump(
    route: Route, visit: Visit, response: web.StreamResponse, stream: Stream, encode: Callable[..., bytes]
) -> None:
    async def write_all() -> None:
        async for chunk in stream.chunks:
            data = encode(chunk)
            async with asyncio.timeout(STREAM_WRITE_TIMEOUT_S):
                await response.write(data)
            if throttle_ms := visit.count_bytes(len(data)):
                await asyncio.sleep(throttle_ms / 1000)

    writing = asyncio.ensure_future(write_all())
    closing = asyncio.ensure_future(visit.doors.ending.wait())
    try:
        farewell = await _end_of_stream(route, visit, writing, closing, stream)
        if not writing.done():
            writing.cancel()
            await asyncio.wait({writing})
        if not writing.cancelled():
            writing.result()
        if rest := encode(farewell, is_last=True):
            async with asyncio.timeout(STREAM_WRITE_TIMEOUT_S):
                await response.write(rest)
    except Exception as error:  # noqa: BLE001 - the head is out: all that can be done is to end, and to tell the log
        # Without a bug the reader has left, or has not taken a chunk for so long that it is as good as gone.
        if not isinstance(error, ConnectionError | TimeoutError):
            _bug(visit, error)
        if visit.http.transport is not None:
            visit.http.transport.abort()
    finally:
        closing.cancel()
        if not writing.done():
            # The server has lost patience with this handler; the generator must not run on without it.
            writing.cancel()
            await asyncio.wait({writing})


def _routes_of(*modules: Any) -> tuple[Route, ...]:
    return tuple(route for module in modules for route in module.ROUTES)


# In the order of /docs.
_CLUSTER = (console, cluster, live, history, group_history)
_TOPICS = (topics, partitions, operations, quotas, logs, offsets, produce, proxy, fetch, topic_records)
_GROUPS = (groups, group_offsets, group_members, transactions)
_OF_FAULTS = (testing_faults, fault_script, testing_actions)
TESTING_ROUTES = (*_routes_of(*_OF_FAULTS), *testing_faults.MACHINE_ROUTES, *testing_waits.ROUTES)
ROUTES = (*_routes_of(*_CLUSTER, *_TOPICS, *_GROUPS, stories), *TESTING_ROUTES, *docs.ROUTES)


_PART = re.compile(r"\{(\w+)\}")
"""A variable part of a route's path. By itself aiohttp takes no braces in one, which names of groups may have."""


@functools.cache
def _patterns() -> list[tuple[Route, re.Pattern[str]]]:
    """What matches each route's path. Made for the first request that no route matches: it takes 30 ms."""
    return [(route, re.compile("[^/]+".join(map(re.escape, _PART.split(route.path)[::2])))) for route in ROUTES]


def is_there(route: Route, host: Host) -> bool:
    """Return True if this broker serves the route."""
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
        self.instruments, self.metrics, self.connections = instruments, metrics, connections
        self.held_bytes = 0
        """Bytes of bodies that are held now (``queued.max.request.bytes``)."""
        self.streams: Counter[str] = Counter()
        """Streams that are open, by user, or by the address of a client without a name; `-=` leaves no zeros."""
        self.ending = asyncio.Event()
        """Set when the server begins to close."""
        self.occurrences: Occurrences
        self.live: LiveHub
        self._host: Host | None = None

    def open_to(self, host: Host) -> None:
        """From now on the requests are for this broker, which has been started."""
        self.occurrences = Occurrences(host.node_id, host.world.clock.wall_ms())
        self.live = LiveHub(host)
        self._host = host

    def close(self) -> None:
        """503 from now on."""
        self._host = None

    def __call__(self, application: web.Application) -> None:
        """The network's ``doors``."""
        for route in ROUTES:
            path = _PART.sub(r"{\1:[^/]+}", route.path)
            if route.method == "GET":
                application.router.add_get(path, self._guarded(route))
            else:
                application.router.add_route(route.method, path, self._guarded(route))
        # Not ".*", which a newline in the path would escape.
        application.router.add_route("*", r"/{anything:[\s\S]*}", self._guarded(None))
        application.on_shutdown.append(self._end_streams)

    async def _end_streams(self, _application: web.Application) -> None:
        self.ending.set()

    def _guarded(self, route: Route | None) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def on_request(http: web.Request) -> web.StreamResponse:
            if self._host is None:
                return _closed()
            visit = Visit(http, self._host, self, route)
            if route is None or not is_there(route, self._host):
                return refuse(visit, _nothing_there(http, self._host))
            return await respond(route, visit)

        return on_request


def _closed() -> web.Response:
    text = json_text.text_of(problem_of(kafka.BrokerNotAvailable("the broker is starting or has stopped")))
    return web.Response(body=text, status=503, headers={"Retry-After": "1"}, content_type=PROBLEM_TYPE, charset=None)


def _nothing_there(http: web.Request, host: Host) -> Refused:
    """404 with the nearest path, or 405 with the methods that the path knows."""
    path = http.path
    at_path = [route for route, pattern in _patterns() if pattern.fullmatch(path)]
    methods = [route.method for route in at_path if is_there(route, host)]
    if methods:
        allowed = ", ".join(methods)
        error = kafka.InvalidRequest(f"{http.method[:20]} cannot be used here; {allowed} can")
        return Refused(error, status=405, headers={"Allow": allowed})
    if at_path:
        return malformed(f"{path[:200]} is only there with mk.testing.endpoints.enable=true", status=404)
    if proxy.PATHS.match(path):
        return malformed(f"{path[:200]} is not served: {proxy.SERVED}", status=404)
    if path.startswith("/v1/groups//"):
        return Refused(kafka.InvalidGroupId("the group's name is empty: give it one"))
    hint = kafka.did_you_mean(path, [route.path for route in ROUTES if is_there(route, host)])
    return malformed(f"no route matches {http.method[:20]} {path[:200]}{hint or '; GET /docs lists all'}", status=404)
