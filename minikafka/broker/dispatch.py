"""From bytes to a handler and back; the one place where errors become answers.

A handler takes a typed request and returns a typed response; it knows nothing of bytes or HTTP, so another codec can
stand in front of the same handlers. It raises ProtocolError for a failure of the whole request; failures of single
partitions are part of its response. Anything else that it raises is a bug: it is told as an event, stops the broker,
and is answered with UNKNOWN_SERVER_ERROR, outcome *unknown*.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from minikafka.errors import UNKNOWN, BrokerNotAvailable, ProtocolError, UnknownServerError
from minikafka.ports import CAUSE, Buffers, Events
from minikafka.wire.apis import Api
from minikafka.wire.codec import decode_request, encode_response, error_response, find_api

ApiHandler: TypeAlias = Callable[[Any], Awaitable[Any]]


class Dispatcher:
    """The broker's table of handlers."""

    def __init__(
        self,
        handlers: Mapping[str, ApiHandler],
        *,
        events: Events,
        on_bug: Callable[[str, BaseException], None],
        is_open: Callable[[], bool],
    ) -> None:
        self._handlers = handlers
        self._events = events
        self._on_bug = on_bug
        self._is_open = is_open
        self._requests = 0

    async def dispatch(self, api_name: str, body: bytes) -> Buffers:
        """Bytes in, bytes out; never raises."""
        try:
            api = find_api(api_name)
        except ProtocolError as error:
            return encode_response(error_response(_ANY_API, error))
        try:
            return encode_response(await self.answer(api, decode_request(api, body)))
        except ProtocolError as error:
            return encode_response(error_response(api, error))

    async def answer(self, api: Api, request: object) -> Any:
        """The same handlers, typed. Raises ProtocolError and nothing else."""
        if not self._is_open():
            raise BrokerNotAvailable("the broker is stopping or not yet started: ask another one, or later")
        self._requests += 1
        # Never reset: each request sets its own, and a handler closed with its loop is closed in another context.
        CAUSE.set(f"{api.name}#{self._requests}")
        try:
            return await self._handlers[api.name](request)
        except ProtocolError:
            raise
        except Exception as error:  # a bug: whatever it is, the caller gets an answer and the broker stops
            self._on_bug(f"handler of {api.name}", error)
            raise UnknownServerError(f"{api.name} failed: {type(error).__name__}", outcome=UNKNOWN) from error


_ANY_API = find_api("ApiVersions")
"""Its error answer has only the members that every response has."""
