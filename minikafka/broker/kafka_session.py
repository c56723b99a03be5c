"""One connection that speaks Kafka's protocol: frames in, answers out, in order.

- ``kafka_pipeline.py`` decides in which order requests begin and are answered.
- acks=0 has no answer; an error closes the connection, which is all that the client can notice.
- A broker that starts or stops closes the connection: BROKER_NOT_AVAILABLE is final for Kafka's clients, a closed
  connection sends them to another broker.
- A client that exceeds a quota has its answer at once, with ``throttle_time_ms``; nothing further begins for so long
  (KIP-219). A fetch that exceeds one is answered without records.
- At a SASL listener the client logs in first (``kafka_login.py``). A failed login is answered late, then the
  connection is closed.
- A request that cannot be read, or that is not offered, closes the connection and logs why. ApiVersions in an unknown
  version is answered in version 0 with UNSUPPORTED_VERSION (KIP-511).
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from msgspec import structs

from minikafka.broker.dispatch import Begun
from minikafka.broker.image_directory import ImageDirectory, Operations, all_operations
from minikafka.broker.kafka_login import (
    LOGIN_TIMEOUT_S,
    SASL_KEYS,
    KafkaLogin,
    LoginRules,
    answer_without_sasl,
)
from minikafka.broker.kafka_pipeline import PRODUCE_KEY, Pending, Pipeline
from minikafka.broker.large_turns import LargeTurns
from minikafka.config import INT_MAX
from minikafka.errors import (
    BrokerNotAvailable,
    IllegalSaslState,
    InvalidRequest,
    ProtocolError,
    SaslAuthenticationFailed,
    UnsupportedVersion,
)
from minikafka.parked import Parked, Result
from minikafka.ports import Buffers, FrameConnection, MeetFaults, RequestContext, SessionState
from minikafka.security.authorizer import REMEMBERED_LENGTH_MAX
from minikafka.security.http_login import Failures
from minikafka.security.quotas import FETCH, PRODUCE
from minikafka.security.sasl import Stage
from minikafka.tasks import ForTask
from minikafka.wire.apis import BY_NAME
from minikafka.wire.codec import error_response
from minikafka.wire.group_messages import OffsetFetchResponse
from minikafka.wire.kafka.codec import decode, encode
from minikafka.wire.kafka.frames import API_VERSIONS_KEY, Header, read_header, response_head, sized
from minikafka.wire.kafka.offer import (
    API_VERSIONS_FIRST,
    API_VERSIONS_LAST,
    OF_THE_SESSION,
    OFFERS,
    api_versions,
    api_versions_refused,
    software_of,
)
from minikafka.wire.kafka.translate.common import Exchange
from minikafka.wire.kafka.translate.produce import first_error
from minikafka.wire.messages import Failed, FetchRequest, FetchResponse
from minikafka.wire.response_room import Room, size_of_offsets

if TYPE_CHECKING:
    from minikafka.broker.event_limiter import EventLimiter
    from minikafka.broker.meters import RequestMeters
    from minikafka.broker.throttle import Throttle
    from minikafka.quorum.image import MetadataImage

FETCH_KEY = 1
MUTATION_KEYS = frozenset({19, 20, 37})
"""CreateTopics, DeleteTopics and CreatePartitions: the controller may throttle their clients."""

METADATA_KEY = 3
WIDE_COUNT = 1_000
"""Partitions of a cluster in which Metadata counts among them."""

Answering = Callable[[str, object, RequestContext], Any]
"""(our API, typed request, context) -> typed response, Begun, or an awaitable of either. Raises ProtocolError."""


class KafkaDoor:
    """What the sessions of one broker share."""

    def __init__(
        self,
        *,
        answering: Answering,
        meters: RequestMeters,
        image: Callable[[], MetadataImage],
        wall_ms: Callable[[], int],
        events: EventLimiter,
        logins: Mapping[str, LoginRules] | None = None,
        throttle: Throttle | None = None,
        ticks_ns: Callable[[], int] = lambda: 0,
        operations: Operations = all_operations,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """``logins`` has the rules of listeners that demand a login, by name. ``throttle`` has the quotas of clients,
        ``ticks_ns`` measures how long the loop was used for a request. ``is_current``: the image has all users.
        """
        self.is_current = is_current
        self.throttle = throttle
        self.ticks_ns = ticks_ns
        self.operations = operations
        self.logins = logins or {}
        self.answering = answering
        self.wall_ms = wall_ms
        self.meters = meters
        self.image = image
        self.events = events
        self.turns = LargeTurns()
        self.failures = Failures()
        """Wrong credentials by address: guessing becomes slow."""
        self.sessions: dict[KafkaSession, None] = {}
        """Of open connections, in the order in which they were opened."""
        self._counted: tuple[object, bool] = (None, False)
        """The topics that were counted last, and if they have many partitions."""

    def is_wide(self) -> bool:
        """Return True if the cluster has more than WIDE_COUNT partitions."""
        topics = self.image().topics
        if self._counted[0] is not topics:
            self._counted = topics, sum(len(each.partitions) for each in topics.values()) > WIDE_COUNT
        return self._counted[1]

    def software(self) -> Counter[str]:
        """Open connections by the name of the client's library, which is bounded: ``other`` for one that is not known
        here, ``unknown`` for a client that does not name it.
        """
        return Counter(each.software for each in self.sessions)


class KafkaSession:
    """See the head of this file."""

    def __init__(self, door: KafkaDoor, connection: FrameConnection, context: RequestContext) -> None:
        self.meet_faults: MeetFaults | None = None
        self._door = door
        self._connection = connection
        self._context = context
        self._contexts: dict[tuple[int, bytes | None], RequestContext] = {}
        """By version and client id: most requests of a connection differ in nothing else."""
        self._directory = ImageDirectory(door.image, door.wall_ms, door.operations, context)
        self._pipeline = Pipeline()
        self._last: Header | None = None
        """Of the last request."""
        rules = door.logins.get(context.listener)
        self._login = None if rules is None else KafkaLogin(rules)
        self._login_timer: asyncio.TimerHandle | None = None
        """Ends a connection whose client does not log in, then one whose login has failed."""
        self._has_failed = False
        """The login has failed: nothing more begins, and the connection is closed soon."""
        if self._login is not None:
            connection.await_login(self._login.rules.frame_bytes_max)
            end = connection.opened_at + LOGIN_TIMEOUT_S
            self._login_timer = asyncio.get_running_loop().call_at(end, self._login_late)
        throttle = door.throttle
        self._throttle = None if throttle is None or throttle.is_exempt(context) else throttle
        self._unmute: asyncio.TimerHandle | None = None
        """While the client is throttled: the end of that."""
        self._is_paused = False
        self._is_closed = False
        """We hung up: nothing more begins."""
        self._is_gone = False
        """The client left: what it has sent still begins, and nothing is sent."""
        self._has_room = True
        door.sessions[self] = None
        self._handling: dict[asyncio.Task[None] | Parked, None] = {}
        """What will answer requests that wait, in the order of their beginning."""

    # ---- the connection's calls --------------------------------------------------------------------------------------

    @property
    def software(self) -> str:
        """Name of the client's library, as metrics may show it: never a text that a client chose."""
        name = self._context.software.partition(" ")[0]
        return (name if name in SOFTWARE else "other") if name else "unknown"

    @property
    def is_busy(self) -> bool:
        """Return True while a request is being handled or a response is due."""
        return len(self._pipeline) > 0

    def describe(self) -> SessionState:
        """Return what is known about the client now."""
        last, oldest = self._last, self._pipeline.oldest
        if last is None:
            return SessionState(software=self._context.software)
        return SessionState(
            client_id=_client_id_of(last),
            software=self._context.software,
            last_request=_api_of(last),
            api_version=last.version,
            pending_request=None if oldest is None else _api_of(oldest),
        )

    def received(self, frame: memoryview) -> None:
        """A whole frame, without its size; the session keeps it."""
        if self._is_closed or self._has_failed:
            return
        if self._login is not None and self._login.expects_bare_token:
            self._take_bare_token(self._login, frame)
            return
        try:
            header = read_header(frame)
            self._check(header, len(frame))
        except ProtocolError as error:
            self.malformed(error)
            return
        self._last = header
        pending = Pending(header, frame)
        if header.key == METADATA_KEY and self._door.is_wide():
            pending.is_large = True
        self._pipeline.add(pending)
        self._advance()

    def room(self, *, has_room: bool) -> None:
        """Return True if the connection takes more responses. While it does not, no further request begins."""
        self._has_room = has_room
        if has_room:
            self._advance()

    def closed(self) -> None:
        """The connection is gone. Requests that came whole are still handled, as in Kafka: a producer with acks=0 may
        leave as soon as it has sent. Nobody receives the answers.
        """
        self._is_gone = True
        self._end_mute()
        if self._login_timer is not None:
            self._login_timer.cancel()
        self._door.sessions.pop(self, None)
        self._advance()

    def cancel(self) -> None:
        """The process dies: nothing goes on."""
        self._is_closed = True
        self._end_mute()
        if self._login_timer is not None:
            self._login_timer.cancel()
        for waiting in list(self._handling):
            waiting.cancel()

    # ---- order -------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        # Answers to a client that left need no room.
        while (
            not self._is_closed
            and ((self._has_room and self._unmute is None) or self._is_gone)
            and (pending := self._pipeline.next()) is not None
        ):
            throttle = self._throttle
            try:
                if throttle is None or throttle.quotas is None:
                    self._begin(pending)
                else:
                    pending.clock_ns = self._door.ticks_ns()
                    self._begin(pending)
                    pending.clock_ns = self._door.ticks_ns() - pending.clock_ns
            except Exception:
                self._hang_up()  # no later response of the connection could be sent
                raise
            if pending.is_done:
                self._send()
        if self._has_failed:
            return
        wants_pause = self._pipeline.is_full or self._unmute is not None
        if wants_pause != self._is_paused and not (self._is_closed or self._is_gone):
            self._is_paused = not self._is_paused
            if self._is_paused:
                self._connection.pause()
            else:
                self._connection.resume()

    def _mute(self, throttle: Throttle, throttle_ms: int) -> None:
        """Nothing further begins for so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + throttle_ms / 1000
        if self._is_gone or (self._unmute is not None and self._unmute.when() >= end):
            return
        if self._unmute is None:
            throttle.muted += 1
        else:
            self._unmute.cancel()
        self._unmute = loop.call_at(end, self._muted_long_enough)

    def _muted_long_enough(self) -> None:
        self._end_mute()
        self._advance()

    def _end_mute(self) -> None:
        if self._unmute is not None:
            self._unmute.cancel()
            self._unmute = None
            if self._throttle is not None:
                self._throttle.muted -= 1

    def _send(self) -> None:
        for answer in self._pipeline.answered():
            if not (self._is_closed or self._is_gone):
                self._connection.send(answer)

    def _done(self, pending: Pending, answer: Buffers | None) -> None:
        pending.answer, pending.is_done = answer, True
        self._connection.handled(len(pending.frame))
        if answer is not None:
            meter = self._door.meters.of(_metered_as(pending.header), "kafka")
            meter.bytes_in += len(pending.frame)
            meter.bytes_out += sum(map(len, answer))

    def malformed(self, error: ProtocolError) -> None:
        """Close, and say why in the log: the protocol has no way to tell the client."""
        self._door.events(
            "client_connection_refused",
            remote=self._context.remote,
            client=self._context.software or self._context.client_id,
            error=error.name,
            why=error.message,
        )
        self._hang_up()

    def _hang_up(self) -> None:
        self._is_closed = True
        self._connection.close()

    # ---- the login ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _answer_login(self, pending: Pending) -> None:
        login = self._login
        if login is None:
            self._done(pending, answer_without_sasl(pending.header))
            return
        try:
            answer, error = login.answer(pending.header, pending.frame, self._now_ms())
        except ProtocolError as bad:
            self._fail(pending, None, bad)
            return
        if login.sasl.stage is Stage.FAILED and error is not None:
            self._fail(pending, answer, error)
            return
        self._done(pending, answer)
        if error is None and login.sasl.stage is Stage.OPEN:
            self._logged_in(login)

    def _take_bare_token(self, login: KafkaLogin, token: memoryview) -> None:
        try:
            answer = login.bare_token(bytes(token), self._now_ms())
        except ProtocolError as error:
            self._fail(None, None, error)
            return
        self._connection.send(answer)
        self._connection.handled(len(token))
        if login.sasl.stage is Stage.OPEN:
            self._logged_in(login)

    def _logged_in(self, login: KafkaLogin) -> None:
        if self._login_timer is not None:
            self._login_timer.cancel()
        self._context = self._directory.context = replace(self._context, principal=f"User:{login.sasl.user}")
        self._contexts.clear()
        self._connection.logged_in(self._context.principal)

    def _fail(self, pending: Pending | None, answer: Buffers | None, error: ProtocolError) -> None:
        """Answer later and close, so that guessing is slow; the later, the more an address guesses. Until then nothing
        is read.
        """
        login, context = self._login, self._context
        failure = None if login is None else login.sasl.failure
        lacks_keys = failure is not None and failure.reason == "no_keys"
        if isinstance(error, SaslAuthenticationFailed) and (lacks_keys or not self._door.is_current()):
            # Clients take the error of a login for final, and a closed connection for a broker that starts.
            what = "the keys of tokens" if lacks_keys else "the cluster's users"
            self.malformed(BrokerNotAvailable(f"the broker has not read {what} yet"))
            return
        self._door.events(
            "client_login_failed",
            remote=context.remote,
            listener=context.listener,
            client=context.software or context.client_id,
            mechanism="" if login is None else login.sasl.mechanism,
            user="" if failure is None else failure.user[:USER_SHOWN_MAX],
            reason="" if failure is None else failure.reason,
            error=error.name,
            why=error.message,
        )
        self._has_failed = True
        self._connection.pause()
        if self._login_timer is not None:
            self._login_timer.cancel()
        loop = asyncio.get_running_loop()
        delay_s = 0.0 if login is None else login.rules.failure_delay_s
        if isinstance(error, SaslAuthenticationFailed):
            delay_s = max(delay_s, self._door.failures.failed(context.remote, loop.time()))
        self._login_timer = loop.call_later(delay_s, self._end_failed, pending, answer)

    def _end_failed(self, pending: Pending | None, answer: Buffers | None) -> None:
        if pending is not None and answer is not None:
            self._done(pending, answer)
            self._send()
        self._hang_up()

    def _refuse(self, pending: Pending) -> None:
        """Close the connection of a client whose certificate gives no principal.

        TLS has no alert for what is found after the handshake. Clients send ApiVersions first, whose response has an
        error; there is none for other requests. A version that is not offered gets the error that each client can read,
        and the client sends another one.
        """
        header = pending.header
        if header.key == API_VERSIONS_KEY:
            if not API_VERSIONS_FIRST <= header.version <= API_VERSIONS_LAST:
                self._done(pending, self._api_versions(header, pending.frame))
                self._send()
                return
            refused = {"error_code": SaslAuthenticationFailed.code, "api_keys": []}
            answer = encode("ApiVersions", "response", header.version, refused, response_head(header))
            self._done(pending, sized(answer))
            self._send()
        self._hang_up()

    def _login_late(self) -> None:
        self.malformed(IllegalSaslState(f"the client has not logged in after {LOGIN_TIMEOUT_S:.0f} s"))

    # ---- one request -------------------------------------------------------------------------------------------------

    def _check(self, header: Header, size: int) -> None:
        if header.key == API_VERSIONS_KEY:
            return
        if header.key in SASL_KEYS:
            first, last = OF_THE_SESSION[header.key]
            if not first <= header.version <= last:
                raise UnsupportedVersion(f"version {header.version} of API key {header.key} is not offered")
            return
        offer = OFFERS.get(header.key)
        if offer is None:
            name = header.schema.name if header.schema is not None else "unknown"
            raise UnsupportedVersion(f"API key {header.key} ({name}) is not offered")
        if not offer.first <= header.version <= offer.last:
            raise UnsupportedVersion(
                f"{offer.name} version {header.version} is not offered, {offer.first} to {offer.last} are"
            )
        api = BY_NAME[offer.api]
        # Of the requests that are offered, Produce alone carries records: those of Fetch are in its response.
        if size > api.head_bytes_max and header.key != PRODUCE_KEY:
            raise InvalidRequest(
                f"{offer.name}: {size} bytes, {api.head_bytes_max} are accepted: send several requests"
            )

    def _begin(self, pending: Pending) -> None:
        header = pending.header
        if self._context.refusal:
            self._refuse(pending)
            return
        if header.key in SASL_KEYS:
            self._answer_login(pending)
            return
        if self._login is not None and (why := self._login.refusal(header.key, self._now_ms())):
            self._fail(pending, None, IllegalSaslState(f"{_api_of(header)}: {why}"))
            return
        if pending.is_large and not pending.has_turn:
            pending.has_turn = True
            self._door.turns.call(functools.partial(self._begin_in_turn, pending))
            return
        try:
            if header.key == API_VERSIONS_KEY:
                self._done(pending, self._api_versions(header, pending.frame))
                return
            context = self._context_of(header)
            offer = pending.offer = OFFERS[header.key]
            exchange = pending.exchange = Exchange(header.version, self._directory, context.client_id)
            request = None if offer.usual is None else offer.usual.request(pending.frame, header.body_at, exchange)
            if request is None:
                pending.decoded()
        except ProtocolError as error:
            self.malformed(error)
            return
        response: Any
        try:
            if request is None:
                request = offer.request(pending.decoded(), exchange)
            if self._throttle is not None and self._throttle.quotas is not None and header.key == FETCH_KEY:
                request = _within(request, self._throttle.fetch_bytes_max(context))
            pending.is_many = isinstance(request, list)
            response = (
                self._each(pending, offer.api, iter(request), context)
                if pending.is_many
                else self._answer(pending, offer.api, request, context)
            )
        except BrokerNotAvailable:
            self._hang_up()
            return
        except ProtocolError as error:
            response = error_response(BY_NAME[offer.api], error)
        if isinstance(response, Failed):  # the base of all responses, and far cheaper to see than an awaitable
            self._done(pending, self._encoded(pending, response))
            return
        if isinstance(response, Begun):
            pending.has_begun = True
            response = response.rest
        if isinstance(response, Parked) and not pending.is_large:
            self._handling[response] = None
            response.when_ready(functools.partial(self._ready, pending, response))
        elif isinstance(response, (CoroutineType, Awaitable)):  # the abstract class is slow to ask
            self._start(pending, response)
        else:
            self._done(pending, self._encoded(pending, response))

    def _begin_in_turn(self, pending: Pending) -> None:
        """The turn of a large frame has come."""
        if self._is_closed or self._has_failed:
            return
        self._resume_clock(pending)
        try:
            self._begin(pending)
        except Exception:
            self._hang_up()
            raise
        self._resume_clock(pending)
        if pending.is_done:
            self._send()
        self._advance()

    def _start(self, pending: Pending, answer: Begun | Awaitable[Any]) -> None:
        """Wait for the answer in a task."""
        answering = ForTask(answer)
        task = asyncio.get_running_loop().create_task(
            self._await(pending, answering), name=f"kafka-{pending.offer.name}"
        )
        self._handling[task] = None
        task.add_done_callback(answering.close_unused)
        task.add_done_callback(self._ended)

    def _ready(self, pending: Pending, parked: Parked, result: Result) -> None:
        """The event has come for which the request has waited."""
        del self._handling[parked]
        self._resume_clock(pending)
        try:
            response = result()
        except BrokerNotAvailable:
            self._hang_up()
            return
        except ProtocolError as error:
            response = error_response(BY_NAME[pending.offer.api], error)
        if isinstance(response, (Begun, Awaitable)):
            self._start(pending, response)
            return
        try:
            self._done(pending, self._encoded(pending, response))
        except Exception:
            self._hang_up()
            raise
        self._send()
        self._advance()

    def _answer(self, pending: Pending, api: str, request: Any, context: RequestContext) -> Any:
        """The handler's answer, or an awaitable of it, through the faults of the link."""
        if self.meet_faults is None:
            if pending.is_large:
                return self._handled_in_a_turn(pending, api, request, context)
            return self._door.answering(api, request, context)
        return self.meet_faults(context.client_id, api, request, lambda: self._handled(pending, api, request, context))

    async def _handled_in_a_turn(self, pending: Pending, api: str, request: Any, context: RequestContext) -> Any:
        """As :meth:`_handled`; other connections are served between decoding and handling it."""
        if pending.is_many:
            await asyncio.sleep(0)  # each of them is small
        else:
            await self._door.turns.next()
        return await self._handled(pending, api, request, context)

    async def _handled(self, pending: Pending, api: str, request: Any, context: RequestContext) -> Any:
        """The handler's answer; one that reports a failure travels as any other."""
        try:
            return await self._settled(pending, self._door.answering(api, request, context))
        except BrokerNotAvailable:
            raise
        except ProtocolError as error:
            return error_response(BY_NAME[api], error)

    async def _settled(self, pending: Pending, answer: Any) -> Any:
        """Wait for a handler's response; begin later requests as soon as this one's effect has happened."""
        while True:
            if isinstance(answer, Begun):
                pending.has_begun = True
                self._advance()
                answer = answer.rest
            if not isinstance(answer, Awaitable):
                return answer
            answer = await answer

    def _each(self, pending: Pending, api: str, requests: Iterator[Any], context: RequestContext) -> Any:
        """The responses to several requests of one message, in order, or an awaitable. A request that fails does
        not affect the others.
        """
        responses: list[Any] = []
        room = Room()
        for request in requests:
            answer = self._answer_or_error(pending, api, request, context, room)
            if isinstance(answer, (Begun, Awaitable)):
                return self._each_waiting(pending, api, requests, context, responses, answer, room)
            responses.append(_taking(room, answer))
        return responses

    async def _each_waiting(
        self,
        pending: Pending,
        api: str,
        requests: Iterator[Any],
        context: RequestContext,
        responses: list[Any],
        answer: Any,
        room: Room,
    ) -> Any:
        while True:
            try:
                responses.append(_taking(room, await self._settled(pending, answer)))
            except BrokerNotAvailable:
                raise
            except ProtocolError as error:
                responses.append(error_response(BY_NAME[api], error))
            request = next(requests, None)
            if request is None:
                return responses
            answer = self._answer_or_error(pending, api, request, context, room)

    def _answer_or_error(self, pending: Pending, api: str, request: Any, context: RequestContext, room: Room) -> Any:
        try:
            room.check(request.group_id)
            return self._answer(pending, api, request, context)
        except BrokerNotAvailable:
            raise
        except ProtocolError as error:
            return error_response(BY_NAME[api], error)

    async def _await(self, pending: Pending, answering: ForTask[Begun | Awaitable[Any]]) -> None:
        try:
            response = await self._settled(pending, answering.take())
        except BrokerNotAvailable:
            self._hang_up()
            return
        except ProtocolError as error:
            response = error_response(BY_NAME[pending.offer.api], error)
        if pending.is_large:
            await self._door.turns.next()
        self._resume_clock(pending)
        self._done(pending, self._encoded(pending, response))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._handling.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            # A translator's bug, or a message that does not fit its schema: the owner of the loop decides what stops.
            self._hang_up()
            context = {"message": f"{task.get_name()} raised", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return
        self._send()
        self._advance()

    def _resume_clock(self, pending: Pending) -> None:
        if self._throttle is not None and self._throttle.quotas is not None:
            pending.clock_ns = self._door.ticks_ns() - pending.clock_ns

    def _encoded(self, pending: Pending, response: Any) -> Buffers | None:
        throttle = self._throttle
        if throttle is None or throttle.quotas is None:
            return self._framed(pending, response)
        context, key = self._context_of(pending.header), pending.header.key
        bytes_ms = throttle.count(PRODUCE, context, len(pending.frame)) if key == PRODUCE_KEY else 0
        request_ms = 0
        if pending.clock_ns and not pending.is_unanswered:
            request_ms = throttle.count_time(context, self._door.ticks_ns() - pending.clock_ns)
        if key == FETCH_KEY and isinstance(response, FetchResponse):
            answer = self._framed(pending, response)
            size = sum(map(len, answer or ()))
            bytes_ms = throttle.count(FETCH, context, size)
            if not (bytes_ms or request_ms):
                return answer
            throttle.take_back(FETCH, context, size)
            response = _without_records(response)
        mutation_ms = getattr(response, "throttle_time_ms", 0) if key in MUTATION_KEYS else 0
        throttle_ms = max(bytes_ms, request_ms, mutation_ms)
        if throttle_ms:
            self._mute(throttle, throttle_ms)
        return self._framed(pending, response, throttle_ms)

    def _framed(self, pending: Pending, response: Any, throttle_ms: int = 0) -> Buffers | None:
        header, offer, exchange = pending.header, pending.offer, pending.exchange
        if pending.is_unanswered:
            if code := first_error(pending.decoded(), response, exchange):
                self.malformed(InvalidRequest(f"a Produce request with acks=0 failed with error {code}"))
            return None
        head = response_head(header)
        if offer.usual is not None and pending.message is None and not throttle_ms:
            usual = offer.usual.response(response, exchange)
            if usual is not None:
                head += usual
                return sized([head])
        answer = offer.response(pending.decoded(), response, exchange)
        if throttle_ms:
            answer["throttle_time_ms"] = min(throttle_ms, INT_MAX)
        return sized(encode(offer.name, "response", header.version, answer, head))

    def _api_versions(self, header: Header, frame: memoryview) -> Buffers:
        if not API_VERSIONS_FIRST <= header.version <= API_VERSIONS_LAST:
            head = response_head(header)
            return sized(encode("ApiVersions", "response", 0, api_versions_refused(), head))
        message = decode("ApiVersions", "request", header.version, frame, header.body_at)
        image = self._door.image()
        answer = api_versions(header.version, image.features, image.offset)
        try:
            software = software_of(message)
        except InvalidRequest as error:
            answer = {"error_code": error.code, "api_keys": []}
        else:
            if software:
                self._context = replace(self._context, software=software)
                self._contexts.clear()
        return sized(encode("ApiVersions", "response", header.version, answer, response_head(header)))

    def _context_of(self, header: Header) -> RequestContext:
        known = self._contexts.get((header.version, header.client_id))
        if known is None:
            client_id = _client_id_of(header)
            known = replace(self._context, client_id=client_id, api_version=header.version)
            if len(client_id) <= REMEMBERED_LENGTH_MAX:
                if len(self._contexts) >= CONTEXTS_MAX:
                    self._contexts.clear()
                self._contexts[header.version, header.client_id] = known
        return known


SOFTWARE = frozenset(
    """
    aiokafka apache-kafka-java confluent-kafka-dotnet confluent-kafka-go confluent-kafka-javascript
    confluent-kafka-python kafka-go kafka-python kafkajs kcat kgo librdkafka rskafka sarama
    """.split()
)
"""Names of clients' libraries that have a label of their own in metrics (KIP-511)."""

USER_SHOWN_MAX = 255
"""Characters of the name that a failed login gave, in the log."""

CONTEXTS_MAX = 64
"""Contexts that a session keeps."""


def _taking(room: Room, response: Any) -> Any:
    """The response, of which the room has less from now on."""
    if isinstance(response, OffsetFetchResponse):
        room.take(size_of_offsets(response))
    return response


def _within(request: Any, bytes_max: int | None) -> Any:
    """A fetch that returns at most so many bytes."""
    if bytes_max is None or not isinstance(request, FetchRequest) or request.max_bytes <= bytes_max:
        return request
    return structs.replace(request, max_bytes=bytes_max)


def _without_records(response: FetchResponse) -> FetchResponse:
    """The response with all that it says of partitions, but for their records."""
    return structs.replace(
        response,
        partitions=tuple(
            structs.replace(each, records=(), aborted_transactions=None) if each.records else each
            for each in response.partitions
        ),
    )


def _client_id_of(header: Header) -> str:
    return (header.client_id or b"").decode("utf-8", "replace")


def _api_of(header: Header) -> str:
    return header.schema.name if header.schema is not None else "Unknown"


def _metered_as(header: Header) -> str:
    """The kind of a request in the metrics."""
    name = _api_of(header)
    return "FetchConsumer" if name == "Fetch" else name
