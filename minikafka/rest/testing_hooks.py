"""Testing routes that act on any broker of the cluster, whichever broker receives the request.

Faults, machines and lives belong to a process. ``?broker=3`` (for actions: the path) names the broker that shall serve
a request. If that broker is in this process, the request is served here; otherwise it is forwarded as ``RunTestHook``
over ``/rpc``, and the other broker runs the same code.

Rules for this file:

1. A forwarded request carries its sender's principal, address and listener. Both brokers check the permissions of that
   sender, each on its own metadata, and both must have test hooks. What a broker may do itself does not count.
2. A broker that receives a forwarded request serves it or refuses it. It never forwards it again.
3. A forwarded request is sent once. If the connection was refused, nothing was done. If no response arrives in time,
   the outcome is unknown: a broker that was killed cannot say so.
4. No fault strikes ``RunTestHook`` (``world/faults.py``): a broker that is cut off or paused can be healed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from minikafka import errors as kafka
from minikafka.ports import RequestContext
from minikafka.rest import json_text, parameters
from minikafka.rest.body import parsed_object
from minikafka.rest.host import FORWARD_SLACK_S, Host
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import INT32_MAX, HasValues, Integer, Parameter, Parsed, Wrong, values_of
from minikafka.rest.permissions import check
from minikafka.rest.route import Answer, Body, Json, Problems, Reply, Route, Routes, Visit
from minikafka.rpc import call
from minikafka.types import Address, NodeId
from minikafka.web.problems import Refused
from minikafka.wire.limits import shown
from minikafka.wire.messages import RunTestHookRequest, RunTestHookResponse
from minikafka.wire.outcomes import outcome_in
from minikafka.world.connections import identity_of
from minikafka.world.instruments import Act, Injection, Instruments

Value = TypeVar("Value")

ALL_TIMEOUT_S = 2.0
"""How long a request to all brokers waits for each of them."""

OWN: NodeId = -1
ALL: NodeId = -2


def _node_or_all(given: str) -> NodeId:
    if given == "all":
        return ALL
    if not given.isascii() or not given.isdecimal() or len(given) > 10 or int(given) > INT32_MAX:
        raise Wrong(f"{shown(given)}: a broker's node.id or all is needed")
    return int(given)


AT = Integer(
    "broker",
    "node.id of the broker that serves the request; default: the one that receives it.",
    default=OWN,
    low=0,
    high=INT32_MAX,
    example=3,
)
AT_OR_ALL = Parsed(
    "broker",
    "node.id of the broker that serves the request, or `all`; default: the one that receives it.",
    default=OWN,
    reader=_node_or_all,
    described={"type": "string", "pattern": "^(all|[0-9]{1,10})$"},
    example="all",
)
FORWARD = replace(
    parameters.FORWARD, description="`never`: do not forward to another broker, answer 421 with its address instead."
)


class _NoAnswer(Model):
    """A broker that did not answer."""

    broker: int = member("Its node.id.")
    detail: str = member("Why there is no answer.")
    outcome: str = member("Whether the request can have taken effect there.", enum=[kafka.NOT_WRITTEN, kafka.UNKNOWN])


class OfBrokers(Model):
    """What some brokers answered, and which of them did not answer."""

    no_answer: list[Any] | None = many_of(
        _NoAnswer, "With `broker=all`: the brokers that did not answer.", default=None
    )


@dataclass(frozen=True, slots=True)
class HookCall(HasValues):
    """One request to a testing route, at a broker that can serve it."""

    host: Host
    instruments: Instruments
    node: NodeId
    """The broker that it concerns: this one, or another of this process."""
    values: Mapping[str, Any]
    given: Collection[str]
    document: dict[str, Any]
    """Its body; empty for a route without one."""
    software: str
    """Name and version of the program that sent it; empty: not known."""


Serve: TypeAlias = Callable[[HookCall], Awaitable[Json | Reply]]
DeclaredServe = TypeVar("DeclaredServe", bound=Serve)
Merge: TypeAlias = Callable[[Sequence[Any]], dict[str, Any]]
"""Bodies of the responses of several brokers -> the body of one response."""


@dataclass(frozen=True, slots=True)
class Done:
    """A request that was carried out, as the broker that received it knows it."""

    at_ms: int
    broker: NodeId | None
    """None: all brokers."""
    is_alone: bool
    """The broker has its faults for itself; see :class:`Injection`."""
    values: Mapping[str, Any]
    document: Mapping[str, Any]
    body: Mapping[str, Any]
    """Of the response."""

    def injection(self, act: Act, **more: Any) -> Injection:
        """What it injected; ``more`` are further members of the Injection."""
        return Injection(at_ms=self.at_ms, act=act, broker=self.broker, is_alone=self.is_alone, **more)


def instruments_of(visit: Visit) -> Instruments:
    """What the testing doors act with."""
    if visit.doors.instruments is None:
        raise kafka.BrokerNotAvailable("this broker was started without what tests act with")
    return visit.doors.instruments


class HookRoutes(Routes):
    """Testing routes, some of which act on any broker of the cluster."""

    def hook(
        self,
        where: str,
        answers: Answer | Mapping[int, Answer],
        *,
        parameters: tuple[Parameter[Any], ...] = (),
        body: Body | None = None,
        problems: Problems = (),
        node_in: Parameter[NodeId] = AT,
        merge: Merge | None = None,
        **more: Any,
    ) -> Callable[[DeclaredServe], DeclaredServe]:
        """Declare a route that acts on the broker that ``node_in`` names, or with ``broker=all`` on all of them.

        The function runs at the broker that the request concerns. ``AT_OR_ALL`` needs ``merge``. ``more`` are the last
        members of _Anywhere.
        """
        own = () if node_in.place == "path" else (node_in,)
        declare = self.at(
            where,
            answers,
            parameters=(*parameters, *own, FORWARD),
            body=body,
            problems=(*problems, kafka.BrokerIdNotRegistered, kafka.BrokerNotAvailable, kafka.NetworkException),
        )

        def declare_hook(serve: DeclaredServe) -> DeclaredServe:
            declare(_Anywhere(where, serve, node_in, merge, body is not None, **more))
            return serve

        return declare_hook


# ---- the broker that receives the request ----------------------------------------------------------------------------


@dataclass
class _Anywhere:
    """The handler of such a route."""

    name: str
    serve: Serve
    node_in: Parameter[NodeId]
    merge: Merge | None
    reads_body: bool
    wait_s: Callable[[Visit], float] = lambda _visit: 0.0
    """How long the request itself may wait."""
    served_here: Callable[[Instruments, Mapping[str, Any]], bool] = lambda _instruments, _document: False
    """True if this broker can serve a request that concerns another one."""
    injects: Callable[[Done], Iterable[Injection]] = lambda _done: ()
    """What a request has injected, for ``/v1/faults:script``."""

    def __post_init__(self) -> None:
        self.__doc__ = self.serve.__doc__

    async def __call__(self, visit: Visit) -> Reply:
        if self.reads_body:
            await visit.document()
        node = visit.host.node_id if visit[self.node_in] == OWN else visit[self.node_in]
        if node == ALL and self.merge is not None:
            reply = await self._everywhere(visit, self.merge)
        else:
            reply = await self._at(visit, node, FORWARD_SLACK_S)
        self._record(visit, None if node == ALL else node, reply)
        return reply

    def _record(self, visit: Visit, node: NodeId | None, reply: Reply) -> None:
        instruments = instruments_of(visit)
        nodes, at_ms = instruments.faults.nodes, visit.host.world.clock.wall_ms()
        is_alone = node is not None and (str(node) not in nodes or len(nodes) == 1)
        done = Done(at_ms, node, is_alone, visit.values, visit.sent, reply.body)
        instruments.injections.extend(self.injects(done))

    async def _at(self, visit: Visit, node: NodeId, timeout_s: float) -> Reply:
        instruments = instruments_of(visit)
        if _is_here(node, visit.host, instruments) or self.served_here(instruments, visit.sent):
            asked = HookCall(visit.host, instruments, node, visit.values, visit.given, visit.sent, _software(visit))
            reply = Reply.of(await self.serve(asked))
        else:
            reply = await _forward(self.name, visit, node, self.wait_s(visit) + timeout_s)
        location = reply.headers.get("Location")
        return reply if location is None else replace(reply, headers={"Location": f"{location}?broker={node}"})

    async def _everywhere(self, visit: Visit, merge: Merge) -> Reply:
        """Serve at each process of the cluster: its brokers share their faults."""
        host, instruments = visit.host, instruments_of(visit)
        nodes = [node for node in sorted(host.image.brokers) if not _is_here(node, host, instruments)]
        nodes.insert(0, host.node_id)
        found = await asyncio.gather(*(self._outcome_at(visit, node) for node in nodes))
        bodies = [each.body for each in found if isinstance(each, Reply)]
        failed = [
            {"broker": node, "detail": each.error.message, "outcome": each.error.outcome}
            for node, each in zip(nodes, found, strict=True)
            if isinstance(each, Refused)
        ]
        return Reply({**merge(bodies), "no_answer": failed})

    async def _outcome_at(self, visit: Visit, node: NodeId) -> Reply | Refused:
        try:
            return await self._at(visit, node, ALL_TIMEOUT_S)
        except (Refused, kafka.ProtocolError) as raised:
            return Refused.of(raised)


def _software(visit: Visit) -> str:
    return identity_of(visit.http.headers.get("User-Agent", ""))[1]


def _is_here(node: NodeId, host: Host, instruments: Instruments) -> bool:
    if node == host.node_id or str(node) in instruments.faults.nodes:
        return True
    return instruments.lives is not None and node in instruments.lives.nodes()


async def _forward(name: str, visit: Visit, node: NodeId, timeout_s: float) -> Reply:
    """The reply of another broker. Raises Refused for its problem, and ProtocolError if it cannot answer."""
    host, context = visit.host, visit.context
    address = host.address_of(node)
    if address is None:
        raise kafka.BrokerIdNotRegistered(f"no broker {node} is known here, only {sorted(host.image.brokers)}")
    if visit[FORWARD] == "never":
        elsewhere = kafka.InvalidRequest(f"broker {node} is another process; send the request to {address}")
        raise Refused(elsewhere, status=421, broker=visit.broker_out(node))
    request = RunTestHookRequest(
        broker_id=node,
        route=name,
        path=dict(visit.http.match_info),
        query=dict(visit.http.query),
        body=visit.body,
        body_kind="msgpack" if visit.body_kind == "msgpack" else "json",
        principal=context.principal,
        remote=context.remote,
        listener=context.listener,
        client_id=context.client_id,
        software=_software(visit),
    )
    response = await _response_of(host, address, request, timeout_s)
    visit.served_by.append(node)
    document = _document_of(response, node)
    if response.error_code:
        message = f"broker {node}: {response.error_message}"
        error = kafka.error_of(response.error_code, message, outcome=outcome_in(response))
        refused = Refused(error, status=response.status or None)
        refused.members.update(document, broker=visit.broker_out(node))
        raise refused
    return Reply(document, response.status, {"Location": response.location} if response.location else {})


async def _response_of(
    host: Host, address: Address, request: RunTestHookRequest, timeout_s: float
) -> RunTestHookResponse:
    """Raises an error that says whether anything was done: one attempt, for the request may have taken effect."""
    node, broker = request.broker_id, f"broker {request.broker_id} at {address}"
    try:
        response: RunTestHookResponse = await call(
            host.world.network, address, request, deadline=host.world.clock.now() + timeout_s
        )
    except kafka.Unreachable:
        raise kafka.BrokerNotAvailable(
            f"{broker} cannot be reached; nothing was done there. If its process is down, start it with the program "
            "that ran it before"
        ) from None
    except kafka.RequestRefused as refusal:
        raise kafka.BrokerNotAvailable(f"{broker} refused the request unread: {refusal}") from None
    except kafka.OutcomeUnknown:
        if request.route.startswith("GET "):
            raise kafka.NetworkException(f"{broker} did not answer") from None
        raise kafka.NetworkException(
            f"{broker} did not answer; the request may have taken effect, and a broker that has ended cannot say so. "
            f"See /v1/brokers/{node} and /v1/faults?broker={node}",
            outcome=kafka.UNKNOWN,
        ) from None
    return response


def _document_of(response: RunTestHookResponse, node: NodeId) -> dict[str, Any]:
    if not response.document:
        return {}
    try:
        document: dict[str, Any] = json_text.parse(response.document)
    except json_text.NotJson as error:
        raise kafka.NetworkException(
            f"the response of broker {node} cannot be read: {error}", outcome=kafka.UNKNOWN
        ) from None
    return document


# ---- the broker that serves it ---------------------------------------------------------------------------------------


async def serve_forwarded(
    host: Host, instruments: Instruments, routes: Sequence[Route], request: RunTestHookRequest
) -> RunTestHookResponse:
    """Serve a request that another broker has received; errors are in the response."""
    try:
        reply = await _served(host, instruments, routes, request)
    except (Refused, kafka.ProtocolError) as raised:
        return _failed(Refused.of(raised))
    return RunTestHookResponse(
        status=reply.status, document=json_text.text_of(reply.body), location=reply.headers.get("Location", "")
    )


async def _served(host: Host, instruments: Instruments, routes: Sequence[Route], request: RunTestHookRequest) -> Reply:
    if request.broker_id != host.node_id:
        raise kafka.BrokerNotAvailable(
            f"this is broker {host.node_id}, not {request.broker_id}, whose address has changed; repeat the request"
        )
    route = next((each for each in routes if f"{each.method} {each.path}" == request.route), None)
    if route is None or not isinstance(route.handler, _Anywhere):
        raise kafka.InvalidRequest(f"{request.route[:100]!r} is not a testing route that brokers forward")
    _check_sender(host, route, request)
    values, given = values_of(
        route.parameters, path=request.path, query={name: [value] for name, value in request.query.items()}, headers={}
    )
    named = values[route.handler.node_in.name]
    if named not in (OWN, ALL, host.node_id):
        raise kafka.InvalidRequest(f"the request was forwarded to broker {host.node_id} and names broker {named}")
    document = parsed_object(request.body, request.body_kind) if route.body is not None else {}
    asked = HookCall(host, instruments, host.node_id, values, given, document, request.software)
    return Reply.of(await route.handler.serve(asked))


def _check_sender(host: Host, route: Route, request: RunTestHookRequest) -> None:
    """Raise the error of a request that its first sender may not make at this broker."""
    if host.access is None:
        return
    sender = RequestContext("http", request.listener, request.remote, request.client_id, principal=request.principal)
    check(route, host.access.permit(sender, request.route), request.path)


def _failed(refused: Refused) -> RunTestHookResponse:
    document = json_text.text_of({**refused.error.facts, **refused.members})
    return RunTestHookResponse.failed(refused.error, status=refused.status, document=document)
