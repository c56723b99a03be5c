"""From bytes to a handler and back; the one place where errors become answers.

A handler takes a typed request and returns a typed response; it knows nothing of bytes or HTTP, so another codec can
stand in front of the same handlers. It raises ProtocolError for a failure of the whole request; failures of single
partitions are part of its response. Anything else that it raises is a bug: it is told as an event, stops the broker,
and is answered with UNKNOWN_SERVER_ERROR, outcome *unknown*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from minikafka.broker.meters import VISIT, RequestMeters, Visit
from minikafka.config import KIB
from minikafka.errors import UNKNOWN, BrokerNotAvailable, ProtocolError, UnknownServerError
from minikafka.ports import CAUSE, INTERNAL, Buffers, Events, RequestContext
from minikafka.types import METADATA_TOPIC
from minikafka.wire.apis import Api
from minikafka.wire.codec import decode_request, encode_response, error_response, find_api, head_size
from minikafka.wire.messages import FetchRequest

ApiHandler: TypeAlias = Callable[[Any, RequestContext], Awaitable[Any]]
"""(typed request, who sent it) -> typed response."""


class Begun:
    """What a handler returns in place of an answer when all that later requests of the same connection must come after
    has happened: ``rest`` waits for the answer.
    """

    __slots__ = ("rest",)

    def __init__(self, rest: Awaitable[Any]) -> None:
        self.rest = rest


class Dispatcher:
    """The broker's table of handlers."""

    def __init__(
        self,
        handlers: Mapping[str, ApiHandler],
        *,
        events: Events,
        on_bug: Callable[[str, BaseException], None],
        is_open: Callable[[], bool],
        ticks_ns: Callable[[], int],
    ) -> None:
        self.meters = RequestMeters()
        self._handlers = handlers
        self._events = events
        self._on_bug = on_bug
        self._is_open = is_open
        self._ticks_ns = ticks_ns
        self._requests = 0

    async def dispatch(self, api_name: str, body: bytes, context: RequestContext = INTERNAL) -> Buffers:
        """Bytes in, bytes out; never raises."""
        try:
            api = find_api(api_name)
        except ProtocolError as error:
            self.meters.of(NO_API).failed(error.name)
            return encode_response(error_response(_ANY_API, error))
        try:
            request = decode_request(api, body)
        except ProtocolError as error:
            self.meters.of(api.name).failed(error.name)
            return encode_response(error_response(api, error))
        is_large = len(body) > LARGE_HEAD and head_size(body) > LARGE_HEAD
        try:
            if is_large:
                await asyncio.sleep(0)
            response = await self.answer(api, request, context)
            if is_large:
                await asyncio.sleep(0)
            buffers = encode_response(response)
        except ProtocolError as error:
            buffers = encode_response(error_response(api, error))
        meter = self.meters.of(metered_as(api, request))
        meter.bytes_in += len(body)
        meter.bytes_out += sum(map(len, buffers))
        return buffers

    async def answer(self, api: Api, request: object, context: RequestContext = INTERNAL) -> Any:
        """The same handlers, typed. Raises ProtocolError and nothing else."""
        meter = self.meters.of(metered_as(api, request))
        if not self._is_open():
            meter.failed(BrokerNotAvailable.name)
            raise BrokerNotAvailable("the broker is stopping or not yet started: ask another one, or later")
        self._requests += 1
        visit = Visit()
        VISIT.set(visit)
        began = self._ticks_ns()
        # Never reset: each request sets its own, and a handler closed with its loop is closed in another context.
        CAUSE.set(f"{api.name}#{self._requests}")
        try:
            return await self._handlers[api.name](request, context)
        except ProtocolError as error:
            meter.failed(error.name)
            raise
        except Exception as error:  # a bug: whatever it is, the caller gets an answer and the broker stops
            meter.failed(UnknownServerError.name)
            self._on_bug(f"handler of {api.name}", error)
            raise UnknownServerError(f"{api.name} failed: {type(error).__name__}", outcome=UNKNOWN) from error
        finally:
            meter.observe(self._ticks_ns() - began, visit.parked_ns)


def metered_as(api: Api, request: object) -> str:
    """Kafka's name of a kind of request: fetches are told apart by who asks."""
    if not isinstance(request, FetchRequest):
        return api.name
    if request.replica_id < 0:
        return "FetchConsumer"
    of_metadata = request.partitions and request.partitions[0].topic == METADATA_TOPIC
    return "FetchMetadata" if of_metadata else "FetchFollower"


LARGE_HEAD = 32 * KIB
"""A request that names so much is read, answered and written in steps; other requests are served in between."""

NO_API = "Unknown"
"""How requests to APIs that do not exist are metered."""

_ANY_API = find_api("ApiVersions")
"""Its error answer has only the members that every response has."""
