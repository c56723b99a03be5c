"""A route of the HTTP API, one request at it, and what its handler may answer.

The same object serves and describes: a route's parameters are read before its handler runs, and a parameter that it
does not declare is refused. ``answers`` are the statuses below 400 with schema and example. ``problems`` are the errors
that its handler may raise beside those of every route (``docs.py`` has those).
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from aiohttp import web

from minikafka import errors as kafka
from minikafka.broker.dispatch import screened_answer, settled
from minikafka.ports import RequestContext
from minikafka.rest.body import BODY_SIZE, FORM_NOTE, FORM_TYPE, kind_of, parsed_object, read_body
from minikafka.rest.host import Host, broker_members, leader_members
from minikafka.rest.parameters import FORWARD, PARTS, TIMEOUT_MS, HasValues, Parameter
from minikafka.rest.schema import Schema, text
from minikafka.security.quotas import PRODUCE
from minikafka.types import NodeId
from minikafka.web.accept import Accept
from minikafka.web.problems import Refused
from minikafka.wire.apis import Api
from minikafka.world.connections import identity_of
from minikafka.world.http_connections import LISTENER, PRINCIPAL

if TYPE_CHECKING:
    from minikafka.rest.routes import Doors
    from minikafka.security.permissions import Permit
    from minikafka.wire.messages import CurrentLeader, DescribeQuorumResponse


Json: TypeAlias = dict[str, Any]
"""An answer with status 200 and no headers of its own: it becomes JSON or msgpack, as the client takes it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of another status, or with headers: a value that becomes JSON or msgpack."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: Json | Reply) -> Reply:
        """Return the answer of a handler with its status."""
        return cls(answer) if isinstance(answer, dict) else answer


@dataclass(frozen=True, slots=True)
class Page:
    """An answer that is text of a type of its own (a page, metrics)."""

    text: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on until its chunks end, its reader leaves, or the broker stops.

    ``farewell`` is sent when the broker stops. A chunk is written when the reader has taken the ones before it: what is
    held for a slow reader is one chunk and the socket's buffer. The generator is closed in every case.

    ``repeats_itself``: it is compressed for readers that accept gzip, each chunk so that it can be read at once.
    """

    chunks: AsyncGenerator[bytes, None]
    media_type: str
    farewell: bytes = b""
    repeats_itself: bool = False


@dataclass(eq=False)
class Visit(HasValues):
    """One request. ``served_by`` and ``leaders`` fill while it is handled and become headers."""

    http: web.Request
    host: Host
    doors: Doors
    route: Route | None
    """None: there is nothing at its path."""
    values: Mapping[str, Any] = field(default_factory=dict)
    given: Collection[str] = ()
    body: bytes = b""
    """The body as it came, once :meth:`document` has read it; then ``body_kind`` and ``sent`` are known too."""
    body_kind: str = "json"
    sent: dict[str, Any] = field(default_factory=dict)
    wants_msgpack: bool = False
    served_by: list[NodeId] = field(default_factory=list)
    leaders: list[NodeId] = field(default_factory=list)
    quota: str | None = None
    """Key of the quota that the request's bytes count against; None: none applies."""

    @functools.cached_property
    def accept(self) -> Accept:
        """What the client takes."""
        return Accept(self.http.headers.getall("Accept", ()))

    @functools.cached_property
    def instance(self) -> str:
        """Which problem this is, if it becomes one."""
        return self.doors.occurrences.next(self.http.rel_url.raw_path)

    @functools.cached_property
    def context(self) -> RequestContext:
        """The sender of the request."""
        client_id, _ = identity_of(self.http.headers.get("User-Agent", ""))
        principal = self.http[PRINCIPAL]
        return RequestContext("http", self.http.app[LISTENER], self.http.remote or "", client_id, principal=principal)

    async def document(self, *, required: bool = True) -> dict[str, Any]:
        """Read the body, which is a JSON object. No body at all is an empty object if none is ``required``."""
        self.body = await read_body(self)
        if required or self.body.strip():
            self.body_kind = kind_of(self.http)
            self.sent = parsed_object(self.body, self.body_kind, self.http)
        return self.sent

    @property
    def note(self) -> str | None:
        """Advice for a client that sent JSON as a form, as ``curl -d`` does."""
        return FORM_NOTE if self.http.content_type.lower() == FORM_TYPE else None

    @property
    def permit(self) -> Permit | None:
        """What the client may do now; None: everything."""
        access = self.host.access
        if access is None:
            return None
        return access.permit(self.context, f"{self.http.method} {self.http.rel_url.raw_path}")

    def leader_out(self, leader: CurrentLeader | DescribeQuorumResponse) -> dict[str, Any]:
        """A leader in answers and problems to this client."""
        return leader_members(self.host, leader, self.context.listener)

    def broker_out(self, node: NodeId) -> dict[str, Any]:
        """A coordinator, a controller or another broker in answers and problems to this client."""
        return broker_members(self.host, node, self.context.listener)

    async def answer(self, api: Api, request: Any, handle: Callable[[Any], Awaitable[Any]]) -> Any:
        """The response of ``handle`` to what the client may request, with the denied parts added."""
        access = self.host.access
        screened = None if access is None else access.screen(api.name, request, self.context)
        if screened is None:
            return await handle(request)
        return await settled(screened_answer(api, screened, handle))

    def count_bytes(self, sent: int) -> int:
        """Count the body that was read, or so many bytes that are sent; return the milliseconds of throttling."""
        if self.quota is None:
            return 0
        size = self.http.get(BODY_SIZE, 0) if self.quota == PRODUCE else sent
        return self.host.throttle.count(self.quota, self.context, size) if size else 0


Handler: TypeAlias = Callable[[Visit], Awaitable[Json | Reply | Page | Stream]]


Problems: TypeAlias = tuple[type[kafka.ProtocolError], ...]

LEADER_PROBLEMS: Problems = (
    kafka.UnknownTopicOrPartition,
    kafka.NotLeaderOrFollower,
    kafka.LeaderNotAvailable,
    kafka.NetworkException,
    kafka.KafkaStorageError,
)
"""What can go wrong wherever a partition's leader is asked."""

CONTROLLER_PROBLEMS: Problems = (kafka.NotController, kafka.LeaderNotAvailable, kafka.NetworkException)
"""What can go wrong wherever the active controller is asked."""


Contents: TypeAlias = Mapping[str, tuple[Schema, Any]]
"""Media type -> schema and example. ``application/json`` may come as msgpack too, and can be had as msgpack."""


@dataclass(frozen=True, slots=True)
class Body:
    """What a request carries."""

    contents: Contents
    description: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """One status that is no problem."""

    description: str
    contents: Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorForm:
    """How a route writes its errors, if not as problems (RFC 9457)."""

    media_type: str
    schema: Schema
    body_of: Callable[[Refused], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Route:
    """A method at a path: who answers, and all that ``/openapi.json`` says of it."""

    method: str
    path: str
    """With ``{name}`` for its variable parts."""
    handler: Handler
    tag: str
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter[Any], ...] = ()
    body: Body | None = None
    query: str = ""
    """Query of the command on ``/docs``, where a request without one is refused, although none of its parameters is
    required by itself."""
    problems: Problems = ()
    errors: ErrorForm | None = None
    """None: errors are problems."""
    testing: bool = False
    """Only there with ``mk.testing.endpoints.enable=true``."""

    @functools.cached_property
    def reads_metadata(self) -> bool:
        """True if the handler looks topics or groups up in the metadata: a broker without it would answer 404."""
        return self.tag in ("topics", "partitions", "records", "groups", "proxy")

    @functools.cached_property
    def may_have_note(self) -> bool:
        """True if an answer may have advice for the client."""
        schemas = [schema for answer in self.answers.values() for schema, _ in answer.contents.values()]
        return any("note" in schema.get("properties", ()) for schema in schemas)

    @functools.cached_property
    def media_types(self) -> frozenset[str]:
        """What its answers can be."""
        return frozenset(each for answer in self.answers.values() for each in answer.contents)


DeclaredHandler = TypeVar("DeclaredHandler", bound=Handler)


class Routes(list[Route]):
    """The routes of a module. Each is declared above its handler, with all that ``/openapi.json`` says of it."""

    def __init__(
        self, tag: str, *, testing: bool = False, also: tuple[Parameter[Any], ...] = (), problems: Problems = ()
    ) -> None:
        """``also``: parameters that all of them have. ``problems``: what can go wrong at all of them."""
        super().__init__()
        self._tag, self._testing, self._also, self._problems = tag, testing, also, problems

    def at(
        self,
        where: str,
        answers: Answer | Mapping[int, Answer],
        *,
        parameters: tuple[Parameter[Any], ...] = (),
        problems: Problems = (),
        tag: str | None = None,
        **more: Any,
    ) -> Callable[[DeclaredHandler], DeclaredHandler]:
        """Declare the route at ``where``, such as ``GET /v1/topics``; ``more`` are further members of the Route.

        The variable parts of the path are parameters of it too. One answer is that of status 200.
        """
        method, path = where.split(" ")
        parts = [PARTS[name] for name in re.findall(r"\{(\w+)\}", path)]
        by_status = {200: answers} if isinstance(answers, Answer) else answers

        def declare(handler: DeclaredHandler) -> DeclaredHandler:
            self.append(
                Route(
                    method=method,
                    path=path,
                    handler=handler,
                    tag=tag or self._tag,
                    answers=by_status,
                    parameters=(*parts, *parameters, *self._also),
                    problems=(*self._problems, *problems),
                    testing=self._testing,
                    **more,
                )
            )
            return handler

        return declare

    def change(
        self,
        where: str,
        answers: Answer | Mapping[int, Answer],
        *,
        parameters: tuple[Parameter[Any], ...] = (),
        problems: Problems = (),
        **more: Any,
    ) -> Callable[[DeclaredHandler], DeclaredHandler]:
        """Declare a route whose handler lets the active controller change something (``leaders.change``)."""
        parameters = (*parameters, TIMEOUT_MS, FORWARD)
        problems = (*CONTROLLER_PROBLEMS, kafka.RequestTimedOut, *problems)
        return self.at(where, answers, parameters=parameters, problems=problems, **more)


def text_answer(description: str, media_type: str, example: str, words: str = "") -> Answer:
    """An answer that is no JSON; ``words`` say what its text is."""
    return Answer(description, {media_type: (text(words), example)})
