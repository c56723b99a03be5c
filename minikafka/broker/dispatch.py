"""From bytes to a handler and back; the one place where errors become answers.

A handler takes a typed request and returns a typed response; it knows nothing of bytes or HTTP, so another codec can
stand in front of the same handlers. It raises ProtocolError for a failure of the whole request; failures of single
partitions are part of its response. Anything else that it raises is a bug: it is logged as an event, is answered with
UNKNOWN_SERVER_ERROR, outcome *unknown*, and stops the broker, unless the handler only reads (``Api.reads``).

A handler returns its response at once when nothing must be awaited, so that such a request costs no task. Otherwise it
returns :class:`Begun` (its effect has happened, its response must be awaited) or an awaitable of either. An awaitable
that is :class:`Parked` costs no task either: an event answers it.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeAlias

from minikafka.broker.meters import VISIT, RequestMeter, RequestMeters, Visit
from minikafka.config import KIB
from minikafka.errors import UNKNOWN, BrokerNotAvailable, DiskFailed, ProtocolError, UnknownServerError
from minikafka.invariant import InvariantViolation
from minikafka.parked import Parked, Result
from minikafka.ports import CAUSE, INTERNAL, Buffers, Events, RequestContext
from minikafka.types import METADATA_TOPIC
from minikafka.wire.apis import Api
from minikafka.wire.codec import decode_request, encode_response, error_response, find_api, head_size
from minikafka.wire.messages import Failed, FetchRequest

if TYPE_CHECKING:
    from minikafka.broker.throttle import Throttle
    from minikafka.security.permissions import Screened

ApiHandler: TypeAlias = Callable[[Any, RequestContext], Any]
"""(typed request, who sent it) -> typed response, Begun, or an awaitable of either."""


class Begun:
    """Returned in place of a response when all that later requests of the same connection must come after has happened:
    ``rest`` waits for the response.
    """

    __slots__ = ("rest",)

    def __init__(self, rest: Awaitable[Any]) -> None:
        self.rest = rest


async def settled(answer: Any) -> Any:
    """Wait for the response of a handler, whichever of the three forms ``answer`` has."""
    while not isinstance(answer, Failed):
        if isinstance(answer, Begun):
            answer = answer.rest
        if not _is_awaitable(answer):
            return answer
        answer = await answer
    return answer


def _is_awaitable(answer: Any) -> bool:
    """As ``isinstance(answer, Awaitable)``. What handlers return as a rule is recognized without the abstract class."""
    return not isinstance(answer, Failed) and isinstance(answer, (CoroutineType, Parked, Awaitable))


Screen: TypeAlias = Callable[[str, Any, RequestContext], "Screened | None"]
"""(API, request, who sent it) -> what is left of the request; None: all of it. Raises ProtocolError if it is denied."""


def screened_answer(api: Api, screened: Screened, handle: Callable[[Any], Any]) -> Any:
    """The answer of ``handle`` to what is left of a request, with the denied parts added, in any of the three forms.

    If nothing is left, ``handle`` is not called.
    """
    if screened.request is None:
        return screened.amend(api.response())
    return when_answered(handle(screened.request), screened.amend)


def when_answered(answer: Any, change: Callable[[Any], Any]) -> Any:
    """What ``change`` makes of the response, in the form that ``answer`` has: at once, Begun, or an awaitable."""
    if isinstance(answer, Begun):
        return Begun(when_answered(answer.rest, change))
    if isinstance(answer, Parked):
        answer.then(lambda result: when_answered(result(), change))
        return answer
    if isinstance(answer, Awaitable):
        return _when_awaited(answer, change)
    return change(answer)


async def _when_awaited(waiting: Awaitable[Any], change: Callable[[Any], Any]) -> Any:
    return when_answered(await waiting, change)


class Dispatcher:
    """The broker's table of handlers."""

    def __init__(
        self,
        handlers: Mapping[str, ApiHandler],
        *,
        events: Events,
        on_bug: Callable[[str, BaseException], None],
        ticks_ns: Callable[[], int],
        is_open: bool = False,
        screen: Screen | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        """``screen`` checks the permissions of callers; None: everything is allowed. ``throttle`` has the quotas."""
        self.is_open = is_open
        """Requests are answered. Until then, and after the broker's end, all of them get BROKER_NOT_AVAILABLE."""
        self._throttle = throttle
        self.meters = RequestMeters()
        self._handlers = handlers
        self._events = events
        self._on_bug = on_bug
        self._ticks_ns = ticks_ns
        self._screen = screen
        self._requests = 0

    def dispatch(
        self, api_name: str, body: bytes | bytearray, context: RequestContext = INTERNAL
    ) -> Buffers | Awaitable[Buffers]:
        """Bytes in, bytes out; never raises. An awaitable only if the handler must wait."""
        try:
            api = find_api(api_name)
        except ProtocolError as error:
            self.meters.of(NO_API, context.protocol).failed(error.name)
            return encode_response(error_response(_ANY_API, error))
        try:
            request = decode_request(api, body)
        except ProtocolError as error:
            self.meters.of(api.name, context.protocol).failed(error.name)
            return encode_response(error_response(api, error))
        throttle = self._throttle
        if throttle is not None and throttle.quotas is not None and throttle.applies(api.name, request, context):
            return self._throttled(throttle, api, request, body, context)
        return self.serve(api, request, body, context)

    def _throttled(
        self, throttle: Throttle, api: Api, request: object, body: bytes | bytearray, context: RequestContext
    ) -> Buffers | Awaitable[Buffers]:
        try:
            answer: Buffers | Awaitable[Buffers] = throttle.serve(
                api.name, context, len(body), lambda: self.serve(api, request, body, context)
            )
        except ProtocolError as error:
            self.meters.of(metered_as(api, request), context.protocol).failed(error.name)
            return encode_response(error_response(api, error))
        return answer

    def serve(
        self, api: Api, request: object, body: bytes | bytearray | memoryview, context: RequestContext
    ) -> Buffers | Awaitable[Buffers]:
        """Answer a decoded request of ``body``, without quotas. Never raises."""
        meter = self.meters.of(metered_as(api, request), context.protocol)
        meter.bytes_in += len(body)
        if len(body) > LARGE_HEAD and head_size(body) > LARGE_HEAD:
            return self._in_steps(api, request, context, meter)
        try:
            answer = self.answer(api, request, context, meter)
        except ProtocolError as error:
            answer = error_response(api, error)
        if isinstance(answer, Failed):
            return self._encoded(api, meter, answer)
        if isinstance(answer, Begun):
            answer = answer.rest
        if isinstance(answer, Parked):
            answer.then(partial(self._dispatched_later, api, meter))
            return answer
        return self._dispatched(api, meter, answer)

    async def _dispatched(self, api: Api, meter: RequestMeter, answer: Any) -> Buffers:
        try:
            response = await settled(answer)
        except ProtocolError as error:
            response = error_response(api, error)
        return self._encoded(api, meter, response)

    def _dispatched_later(self, api: Api, meter: RequestMeter, result: Result) -> Buffers | Awaitable[Buffers]:
        try:
            response = result()
        except ProtocolError as error:
            response = error_response(api, error)
        if _is_awaitable(response):
            return self._dispatched(api, meter, response)
        return self._encoded(api, meter, response)

    async def _in_steps(self, api: Api, request: object, context: RequestContext, meter: RequestMeter) -> Buffers:
        await asyncio.sleep(0)
        try:
            response = await settled(self.answer(api, request, context, meter))
        except ProtocolError as error:
            response = error_response(api, error)
        else:
            await asyncio.sleep(0)
        return self._encoded(api, meter, response)

    def _encoded(self, api: Api, meter: RequestMeter, response: Any) -> Buffers:
        try:
            buffers = encode_response(response)
        except ProtocolError as error:
            buffers = encode_response(error_response(api, error))
        meter.bytes_out += sum(map(len, buffers))
        return buffers

    def answer(
        self, api: Api, request: object, context: RequestContext = INTERNAL, meter: RequestMeter | None = None
    ) -> Any:
        """The response of the same handlers, typed; see the head of this file for its forms. Raises ProtocolError and
        nothing else, and so do awaitables that it returns. ``meter`` is that of the request, for callers that know it.
        """
        if meter is None:
            meter = self.meters.of(metered_as(api, request), context.protocol)
        if not self.is_open:
            meter.failed(BrokerNotAvailable.name)
            raise BrokerNotAvailable("the broker is stopping or not yet started: ask another one, or later")
        self._requests += 1
        began_ns, cause = self._ticks_ns(), f"{api.name}#{self._requests}"
        token = CAUSE.set(cause)
        try:
            handler = self._handlers[api.name]
            screened = None if self._screen is None else self._screen(api.name, request, context)
            if screened is None:
                answer = handler(request, context)
            else:
                answer = screened_answer(api, screened, lambda left: handler(left, context))
        except ProtocolError as error:
            meter.failed(error.name)
            meter.observe(self._ticks_ns() - began_ns, 0)
            raise
        except Exception as error:
            meter.observe(self._ticks_ns() - began_ns, 0)
            raise self._bug(api, meter, error) from error
        finally:
            CAUSE.reset(token)
        if not isinstance(answer, Failed) and (isinstance(answer, Begun) or _is_awaitable(answer)):
            return self._under_way(_UnderWay(api, meter, cause, began_ns), answer)
        meter.observe(self._ticks_ns() - began_ns, 0)
        return answer

    def _under_way(self, under_way: _UnderWay, answer: Any) -> Any:
        """Begun or an awaitable, as ``answer`` is, whose end is metered."""
        if isinstance(answer, Begun):
            return Begun(self._under_way(under_way, answer.rest))
        if not isinstance(answer, Parked):
            return self._finish(under_way, answer)
        under_way.visit = answer
        answer.then(partial(self._finished, under_way))
        return answer

    async def _finish(self, under_way: _UnderWay, waiting: Awaitable[Any]) -> Any:
        """What ``waiting`` results in: the response, or Begun."""
        # Never reset: each request sets its own, and a handler closed with its loop is closed in another context.
        VISIT.set(under_way.visit)
        CAUSE.set(under_way.cause)
        try:
            answer = await waiting
        except Exception as error:  # noqa: BLE001 - raised again
            return self._finished(under_way, partial(_raised, error))
        return self._finished(under_way, lambda: answer)

    def _finished(self, under_way: _UnderWay, result: Result) -> Any:
        """The response, Begun, or an awaitable of either if the request is not over yet."""
        answer = None
        try:
            answer = result()
        except ProtocolError as error:
            under_way.meter.failed(error.name)
            raise
        except Exception as error:
            raise self._bug(under_way.api, under_way.meter, error) from error
        finally:
            is_over = not (isinstance(answer, Begun) or _is_awaitable(answer))
            if is_over:
                under_way.meter.observe(self._ticks_ns() - under_way.began_ns, under_way.visit.parked_ns)
        return answer if is_over else self._under_way(under_way, answer)

    def _bug(self, api: Api, meter: RequestMeter, error: Exception) -> UnknownServerError:
        """The caller gets an answer. The broker stops, unless the handler only reads and so has changed nothing."""
        meter.failed(UnknownServerError.name)
        if api.reads and not isinstance(error, (InvariantViolation, DiskFailed)):
            text = "".join(traceback.format_exception(error))
            self._events("request_failed", api=api.name, why=f"{type(error).__name__}: {error}", traceback=text)
        else:
            self._on_bug(f"handler of {api.name}", error)
        return UnknownServerError(f"{api.name} failed: {type(error).__name__}", outcome=UNKNOWN)


class _UnderWay:
    """One request whose response must be awaited, from its handler's call to its response."""

    __slots__ = ("api", "began_ns", "cause", "meter", "visit")

    def __init__(self, api: Api, meter: RequestMeter, cause: str, began_ns: int) -> None:
        self.api = api
        self.meter = meter
        self.cause = cause
        self.began_ns = began_ns
        self.visit: Visit | Parked = Visit()


def _raised(error: Exception) -> None:
    raise error


def metered_as(api: Api, request: object) -> str:
    """Kafka's name of a kind of request: fetches of clients and of followers count apart."""
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
