"""One request at a door: who asks the broker behind it, who served, and how the answer or the problem goes out."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web

from minikafka import __version__
from minikafka.errors import UNKNOWN, ProtocolError, UnknownServerError
from minikafka.rest import json_text
from minikafka.rest.body import JSON_TYPE, Admission, refuse_unreadable_accept
from minikafka.rest.host import Host
from minikafka.rest.problems import PROBLEM_TYPE, RETRY_AFTER_S, Refused, problem_of
from minikafka.rest.query import Query
from minikafka.types import NodeId


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not a problem."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Visit:
    """One request. ``served_by`` and ``leaders`` fill while it is handled and become headers."""

    def __init__(self, http: web.Request, host: Host, admission: Admission) -> None:
        self.http = http
        self.host = host
        self.admission = admission
        self.query = Query({name: http.query.getall(name) for name in http.query})
        self.served_by: list[NodeId] = []
        self.leaders: list[NodeId] = []

    @property
    def path(self) -> dict[str, str]:
        """The parts of the address that the route names."""
        return dict(self.http.match_info)


API_VERSION = "1"
SERVER = f"minikafka/{__version__}"

Handler: TypeAlias = Callable[[Visit], Awaitable[Reply]]


async def respond(handler: Handler, visit: Visit) -> web.Response:
    """What the handler says, or the problem; it answers whatever happens."""
    try:
        refuse_unreadable_accept(visit.http)
        reply = await handler(visit)
    except Refused as refused:
        return _problem(visit, refused.error, refused.status, refused.headers, refused.members)
    except ProtocolError as error:
        return _problem(visit, error, None, {}, {})
    except Exception as error:  # noqa: BLE001 - a person gets an answer; the story is told as an event
        return _bug(visit, error)
    return _response(visit, reply.body, reply.status, reply.headers, JSON_TYPE)


def _bug(visit: Visit, error: Exception) -> web.Response:
    visit.host.world.events(
        "rest_failed",
        method=visit.http.method,
        path=visit.http.path,
        error=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
    )
    told = UnknownServerError("the broker failed; its log has the story", outcome=UNKNOWN)
    return _problem(visit, told, 500, {}, {})


def _problem(
    visit: Visit, error: ProtocolError, status: int | None, headers: dict[str, str], members: dict[str, Any]
) -> web.Response:
    problem = problem_of(error, status=status, **members)
    if problem["status"] in (429, 503):
        headers = {"Retry-After": str(RETRY_AFTER_S), **headers}
    return _response(visit, problem, problem["status"], headers, PROBLEM_TYPE)


def _response(visit: Visit, body: Any, status: int, headers: dict[str, str], content_type: str) -> web.Response:
    served_by = sorted(dict.fromkeys(visit.served_by)) or [visit.host.node_id]
    told = {"Server": SERVER, "Mk-Api-Version": API_VERSION, "Mk-Served-By": ",".join(map(str, served_by)), **headers}
    if visit.leaders:
        told["Mk-Leader"] = ",".join(map(str, sorted(dict.fromkeys(visit.leaders))))
    response = web.Response(
        body=json_text.text_of(body), status=status, headers=told, content_type=content_type, charset=None
    )
    if told.get("Connection") == "close":
        response.force_close()
    return response
