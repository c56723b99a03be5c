"""How an answer goes out: JSON or msgpack, a page, a stream, or a problem. It answers whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import math
import traceback
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgpack
from aiohttp import web

from minikafka import __version__
from minikafka.config import KIB
from minikafka.errors import (
    UNKNOWN,
    ProtocolError,
    SaslAuthenticationFailed,
    ThrottlingQuotaExceeded,
    UnknownServerError,
)
from minikafka.rest import json_text
from minikafka.rest.host import STREAM_COUNT_MAX, STREAM_WRITE_TIMEOUT_S
from minikafka.rest.parameters import values_of
from minikafka.rest.permissions import check, quota_key
from minikafka.rest.route import ErrorForm, Route
from minikafka.rest.visit import Page, Stream, Visit
from minikafka.security.quotas import REQUEST
from minikafka.web.accept import JSON, MSGPACK, MSGPACK_TYPES, Accept, unacceptable_type
from minikafka.web.problems import PROBLEM_TYPE, RETRY_AFTER_S, Refused, problem_of
from minikafka.world.http_server import AUTHENTICATE, PRINCIPAL

API_VERSION = "1"
RECHECK_S = 5.0
"""Interval at which the credentials and permissions of a stream's reader are checked again."""
PIECE_BYTES = 512 * KIB
SERVER = f"minikafka/{__version__}"


class Streams:
    """The open streams of one broker's doors."""

    def __init__(self) -> None:
        self.count = 0
        self.ending = asyncio.Event()
        """Set when the server begins to close."""


async def respond(route: Route, visit: Visit, streams: Streams) -> web.StreamResponse:
    """What the handler says, or the problem."""
    try:
        check(route, visit)
        visit.wants_msgpack = _negotiate(visit.accept, route.media_types)
        visit.values = values_of(
            route.parameters,
            path=visit.http.match_info,
            query={name: visit.http.query.getall(name) for name in visit.http.query},
            headers=visit.http.headers,
        )
        if route.reads_metadata:
            visit.host.check_caught_up()
        if visit.host.throttle.quotas is not None:
            await _admit(route, visit)
        reply = await route.handler(visit)
        if isinstance(reply, Stream):
            return await _streamed(route, visit, reply, streams)
    except Refused as refused:
        return refuse(visit, refused, route.errors)
    except ProtocolError as error:
        return refuse(visit, Refused(error), route.errors)
    except Exception as error:  # noqa: BLE001 - a person gets an answer; the story is an event
        return _bug(visit, error, route.errors)
    if isinstance(reply, Page):
        return web.Response(
            body=reply.text, headers={**_headers(visit, reply.headers), "Content-Type": reply.media_type}
        )
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
    except ThrottlingQuotaExceeded as error:
        wait_s = math.ceil(int(str(error.facts["throttle_time_ms"])) / 1000)
        raise Refused(error, headers={"Retry-After": str(wait_s)}) from None


def refuse(visit: Visit, refused: Refused, form: ErrorForm | None = None) -> web.Response:
    """The problem. What the client is not to blame for is an event too, with the same ``instance``."""
    if refused.status >= 500:
        visit.host.world.events(
            "problem_told",
            instance=visit.instance,
            method=visit.http.method,
            status=refused.status,
            error=refused.error.name,
            detail=refused.error.message,
            outcome=refused.error.outcome,
        )
    return _problem(visit, refused, form)


def _problem(visit: Visit, refused: Refused, form: ErrorForm | None) -> web.Response:
    headers = refused.headers
    if refused.status in (429, 503):
        headers = {"Retry-After": str(RETRY_AFTER_S), **headers}
    if form is not None:
        return _response(visit, form.body_of(refused), refused.status, headers, form.media_type)
    problem = problem_of(refused.error, status=refused.status, instance=visit.instance, **refused.members)
    return _response(visit, problem, refused.status, headers, PROBLEM_TYPE)


# ---- what the client takes -------------------------------------------------------------------------------------------


def _negotiate(accept: Accept, media_types: frozenset[str]) -> bool:
    """True for msgpack in place of JSON; 406 when the client takes none of what the route can say."""
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


def _bug(visit: Visit, error: Exception, form: ErrorForm | None = None) -> web.Response:
    visit.host.world.events(
        "rest_failed",
        instance=visit.instance,
        method=visit.http.method,
        path=visit.http.path,
        error=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
    )
    failure = UnknownServerError("the broker failed; its log has the story", outcome=UNKNOWN)
    return _problem(visit, Refused(failure, status=500), form)


# ---- streams ---------------------------------------------------------------------------------------------------------


async def _streamed(route: Route, visit: Visit, stream: Stream, streams: Streams) -> web.StreamResponse:
    """Write chunk by chunk; ends with the chunks, with the reader, or with the server."""
    async with contextlib.aclosing(stream.chunks) as chunks:
        if streams.count >= STREAM_COUNT_MAX:
            raise ThrottlingQuotaExceeded(f"{streams.count} streams are open, which is the most that one broker serves")
        streams.count += 1
        try:
            response = web.StreamResponse(
                headers={
                    **_headers(visit, stream.headers),
                    "Content-Type": stream.media_type,
                    "Cache-Control": "no-store",
                }
            )
            # A stream has no length: without keep-alive a proxy or an old client sees its end as well.
            response.force_close()
            await response.prepare(visit.http)
            if visit.http.method != "HEAD":
                await _pump(route, visit, response, chunks, stream, streams.ending)
        finally:
            streams.count -= 1
    return response


async def _refusal_now(route: Route, visit: Visit) -> ProtocolError | None:
    """Why a request that is being answered would be refused by now."""
    try:
        if await visit.http[AUTHENTICATE]() != visit.http[PRINCIPAL]:
            return SaslAuthenticationFailed("the credentials are those of another user by now")
        check(route, visit)
    except ProtocolError as error:
        return error
    return None


async def _end_of_stream(
    route: Route, visit: Visit, writing: asyncio.Future[None], closing: asyncio.Future[Any], stream: Stream
) -> bytes:
    """Wait until the chunks end (empty), or return what is written last: the server closes, or the client may not
    read any more.
    """
    while True:
        done, _ = await asyncio.wait({writing, closing}, timeout=RECHECK_S, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return stream.farewell if writing not in done else b""
        error = await _refusal_now(route, visit)
        if error is not None:
            is_events = stream.media_type == json_text.EVENT_STREAM
            return json_text.event("denied", problem_of(error), None) if is_events else b""


async def _pump(
    route: Route,
    visit: Visit,
    response: web.StreamResponse,
    chunks: Any,
    stream: Stream,
    ending: asyncio.Event,
) -> None:
    async def write_all() -> None:
        async for chunk in chunks:
            async with asyncio.timeout(STREAM_WRITE_TIMEOUT_S):
                await response.write(chunk)
            if throttle_ms := visit.count_bytes(len(chunk)):
                await asyncio.sleep(throttle_ms / 1000)

    writing = asyncio.ensure_future(write_all())
    closing = asyncio.ensure_future(ending.wait())
    try:
        farewell = await _end_of_stream(route, visit, writing, closing, stream)
        if not writing.done():
            writing.cancel()
            await asyncio.wait({writing})
            await response.write(farewell)
        if not writing.cancelled():
            writing.result()
    except (ConnectionError, TimeoutError):
        # The reader has left, or has not taken a chunk for so long that it is as good as gone.
        if visit.http.transport is not None:
            visit.http.transport.abort()
    except Exception as error:  # noqa: BLE001 - the head is out: all that can be done is to end, and to tell the log
        _bug(visit, error)
        if visit.http.transport is not None:
            visit.http.transport.abort()
    finally:
        closing.cancel()
        if not writing.done():
            # The server has lost patience with this handler; the generator must not run on without it.
            writing.cancel()
            await asyncio.wait({writing})
